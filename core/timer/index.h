/* index.h - from the hash of an id to the record that carries it.
 *
 * Open addressing in segments of at most 4096 entries {tag, record}. The tag alone says
 * which segment and which position, so no record is touched when entries move. A full
 * segment grows by itself up to 4096 entries; from there on the table grows by splitting
 * one segment at a time, in the order of linear hashing (Litwin 1980), and shrinks by
 * merging the last one back: no call moves more than two segments' entries. Whether an id is there
 * is the caller's to compare; duplicates are the caller's matter. No lock. */
#ifndef LP_INDEX_H
#define LP_INDEX_H

#include <stdbool.h>

#include "pool.h"

typedef struct lp_index_entry {
    uint32_t tag;
    uint32_t ref; /* record + 1; 0: empty */
} lp_index_entry;

typedef struct lp_segment {
    lp_index_entry *entries;
    uint32_t size;  /* entries it has room for, 64 to LP_SEGMENT_MAX */
    uint32_t count; /* entries in it; always below `size` */
} lp_segment;

enum { LP_SEGMENT_MIN = 64, LP_SEGMENT_MAX = 4096 };

typedef struct lp_index {
    lp_paged segments; /* of lp_segment */
    uint32_t segment_count;
    uint32_t mask;         /* the smallest 2^n - 1 that is segment_count - 1 or more */
    size_t count;          /* entries in all */
    size_t split_above;    /* more entries than this, and the next segment is split */
    size_t room;           /* sizes of all segments */
    lp_index_entry *shelf; /* where entries wait while their segment is laid out anew */
    uint64_t moved;        /* entries moved so far */
} lp_index;

/* Where an entry stands, or where the search for it stopped; until the index is changed. */
typedef struct lp_index_place {
    lp_segment *segment; /* NULL: nothing was in the index */
    lp_index_entry *entry;
} lp_index_place;

/* An empty index; allocates nothing. */
void lp_index_init(lp_index *x);

/* Free everything; the index is as after lp_index_init. */
void lp_index_free(lp_index *x);

/* Add `record` under `hash`. 0, or LAPSE_ENOMEM and nothing was added. After a time
 * without memory that may be so a few times more, until the splits due were made. */
int lp_index_add(lp_index *x, uint64_t hash, uint32_t record);

/* The same right after lp_index_search found nothing and said where it stopped. */
int lp_index_add_at(lp_index *x, uint64_t hash, uint32_t record, lp_index_place place);

/* Remove `record` under `hash`; it must be there. Cannot fail. */
void lp_index_remove(lp_index *x, uint64_t hash, uint32_t record);

/* The same right after lp_index_search found it and said where. */
void lp_index_remove_at(lp_index *x, lp_index_place place);

/* Let the entry of `old` under `hash`, which must be there, name `record` instead.
 * Both carry the same id. Cannot fail. */
void lp_index_replace(lp_index *x, uint64_t hash, uint32_t old, uint32_t record);

size_t lp_index_bytes(const lp_index *x); /* memory held */

static inline size_t lp_index_count(const lp_index *x)
{
    return x->count;
}

/* Entries moved so far by growing, splitting, merging and removing, for bounds. */
static inline uint64_t lp_index_moved(const lp_index *x)
{
    return x->moved;
}

/* The upper half of the hash is the tag, its upper bits the position in a segment,
 * its lower bits the number of the segment. */
static inline uint32_t lp_index_tag(uint64_t hash)
{
    return (uint32_t)(hash >> 32);
}

/* The index must not be empty. */
static inline lp_segment *lp_index_segment(const lp_index *x, uint32_t tag)
{
    uint32_t number = tag & x->mask;
    if (number >= x->segment_count)
        number &= x->mask >> 1;
    return lp_paged_at(&x->segments, number, sizeof(lp_segment));
}

/* Where the search for a tag begins; grows with the tag, so moves keep the order. */
static inline uint32_t lp_index_home(uint32_t tag, uint32_t size)
{
    return ((tag >> 16) * size) >> 16;
}

/* Whether `record` carries the id that is looked for; `key` is passed on. */
typedef bool (*lp_index_match)(const void *key, uint32_t record);

/* The record under `hash` for which `match` holds, or LP_NONE; *place is where it stands, or
 * where the search stopped. Inlined together with a static `match`. */
__attribute__((always_inline)) static inline uint32_t
lp_index_search(const lp_index *x, uint64_t hash, lp_index_match match, const void *key,
                lp_index_place *place)
{
    *place = (lp_index_place){NULL, NULL};
    if (x->count == 0)
        return LP_NONE;
    uint32_t tag = lp_index_tag(hash);
    lp_segment *s = lp_index_segment(x, tag);
    lp_index_entry *end = s->entries + s->size;
    lp_index_entry *e = s->entries + lp_index_home(tag, s->size);
    while (e->ref != 0 && !(e->tag == tag && match(key, e->ref - 1))) {
        if (++e == end) /* Ends: a segment is never full. */
            e = s->entries;
    }
    *place = (lp_index_place){s, e};
    return e->ref != 0 ? e->ref - 1 : LP_NONE;
}

/* The same for those who do not mean to add it. */
__attribute__((always_inline)) static inline uint32_t
lp_index_find(const lp_index *x, uint64_t hash, lp_index_match match, const void *key)
{
    lp_index_place place;
    return lp_index_search(x, hash, match, key, &place);
}

/* Load the place of `hash` into the cache ahead of its use. */
static inline void lp_index_prefetch(const lp_index *x, uint64_t hash)
{
    if (x->count == 0)
        return;
    uint32_t tag = lp_index_tag(hash);
    const lp_segment *s = lp_index_segment(x, tag);
    lp_prefetch(s->entries + lp_index_home(tag, s->size));
}

#endif
