/* pool.h - records of one size, named by a 32-bit index, that never move.
 *
 * A record begins with an lp_node. Indices of freed records are used again; a chunk
 * whose records are all free is given back to the system. Growth allocates one chunk
 * and moves nothing. No lock, no clock: the owner serialises all calls. */
#ifndef LP_POOL_H
#define LP_POOL_H

#include <stdbool.h>

#include "base/paged.h"
#include "base/prefetch.h"
#include "lapse.h"

#define LP_NONE UINT32_MAX /* no record */

/* The head of every record. */
typedef struct lp_node {
    lapse_ns due;   /* set by the owner before insert, not changed while in a timer */
    uint32_t mark;  /* the timer's own; 0 while the record is in no timer */
    uint16_t queue; /* this field and the next two are the owner's: */
    uint8_t state;  /* the pool only sets `state` to 0 in a free record */
    uint8_t id_len;
} lp_node;

enum {
    LP_POOL_BITS = 10,
    LP_POOL_CHUNK = 1 << LP_POOL_BITS /* records in a chunk */
};

/* A chunk is in one list, unless it is full. */
enum {
    LP_POOL_ROOM,   /* has records in use and free ones */
    LP_POOL_SPARE,  /* has memory and no record in use */
    LP_POOL_HOLLOW, /* its memory was given back */
    LP_POOL_LISTS
};

/* Records below `fresh` have been used since the chunk was last empty; `used` of them
 * are in use, the others linked from `free`. */
typedef struct lp_chunk {
    char *records; /* NULL: hollow */
    uint32_t next, prev;
    uint16_t free, used, fresh;
    uint16_t touched; /* highest `fresh` since it has memory */
} lp_chunk;

typedef struct lp_pool {
    lp_paged chunks;    /* of lp_chunk */
    size_t record_size; /* bytes */
    size_t count;       /* records in use */
    size_t keep;        /* free records that must stay at hand */
    size_t touched;     /* records whose memory was ever written */
    uint32_t mapped;    /* chunks with memory */
    uint32_t spares;    /* of them empty */
    uint32_t stamp;     /* the last that a timer of these records gave out */
    uint32_t limit;     /* every chunk from here on is untouched */
    uint32_t lists[LP_POOL_LISTS];
} lp_pool;

/* An empty pool; allocates nothing. `record_size` is a multiple of 8, at least
 * sizeof(lp_node). Records are aligned to it if it is a power of two up to 4096. */
void lp_pool_init(lp_pool *p, size_t record_size);

/* Free all records at once. The pool is as after lp_pool_init. */
void lp_pool_free(lp_pool *p);

/* Take a record; its lp_node is zero, the rest is undefined. LP_NONE without memory. */
uint32_t lp_pool_take(lp_pool *p);

/* Give a record back; it must be in use and in no timer. */
void lp_pool_give(lp_pool *p, uint32_t index);

/* Make sure that `count` records can be taken without fail, whatever is given back
 * meanwhile; holds until the next call. 0 or LAPSE_ENOMEM. */
int lp_pool_reserve(lp_pool *p, size_t count);

/* An index above every one in use, for walks with lp_pool_peek. */
uint32_t lp_pool_limit(const lp_pool *p);

size_t lp_pool_bytes(const lp_pool *p); /* memory held, as far as it was written */

static inline size_t lp_pool_count(const lp_pool *p)
{
    return p->count;
}

/* Records that can be taken without a new chunk. */
static inline size_t lp_pool_left(const lp_pool *p)
{
    return ((size_t)p->mapped << LP_POOL_BITS) - p->count;
}

static inline lp_chunk *lp_pool_chunk(const lp_pool *p, uint32_t index)
{
    return lp_paged_at(&p->chunks, index >> LP_POOL_BITS, sizeof(lp_chunk));
}

/* The record of an index in use. */
static inline void *lp_pool_at(const lp_pool *p, uint32_t index)
{
    return lp_pool_chunk(p, index)->records + (index & (LP_POOL_CHUNK - 1)) * p->record_size;
}

/* Whether the index has a record, in use or free. */
static inline bool lp_pool_has(const lp_pool *p, uint32_t index)
{
    return index >> LP_POOL_BITS < p->limit && lp_pool_chunk(p, index)->records;
}

/* The record of any index, or NULL when none is in use there (its `state` is 0). */
static inline void *lp_pool_peek(const lp_pool *p, uint32_t index)
{
    if (!lp_pool_has(p, index))
        return NULL;
    lp_node *node = lp_pool_at(p, index);
    return node->state ? node : NULL;
}

/* Load the record of an index in use into the cache ahead of its use. */
static inline void lp_pool_prefetch(const lp_pool *p, uint32_t index)
{
    lp_prefetch(lp_pool_at(p, index));
}

#endif
