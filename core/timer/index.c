/* index.c - from the hash of an id to the record that carries it.
 *
 * A lone segment of less than BLOCK_MIN entries is an allocation of just its size. All
 * others sit in a block of addresses for LP_SEGMENT_MAX entries, of which they use the
 * front: they grow and shrink in place, with the shelf as the only other memory.
 *
 * With u entries per segment that was not yet split in this round, splitting begins at
 * SPLIT_FROM and is done at SPLIT_UNTIL, well before a segment is full. Between rounds
 * the segments grow from 3072 to 4096, so the table is 0.55 to 0.85 full. */
#include "index.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum {
    BLOCK_MIN = 2048, /* entries */
    BLOCK_BYTES = LP_SEGMENT_MAX * sizeof(lp_index_entry),
    SEGMENTS_MAX = 1 << 20,
    SPLIT_FROM = 2950,
    SPLIT_UNTIL = 3480,
    MERGE_BELOW = 820, /* entries per segment */
    MERGE_MOST = LP_SEGMENT_MAX - LP_SEGMENT_MAX / 4
};

static lp_segment *segment_at(const lp_index *x, uint32_t number)
{
    return lp_paged_at(&x->segments, number, sizeof(lp_segment));
}

/* -- One segment ----------------------------------------------------------------- */

static uint32_t next_size(uint32_t size)
{
    if (size < BLOCK_MIN)
        return size * 2;
    return size == BLOCK_MIN ? BLOCK_MIN + BLOCK_MIN / 2 : LP_SEGMENT_MAX;
}

/* The smallest size from `least` up that is at most 5/8 full. */
static uint32_t fitting_size(uint32_t count, uint32_t least)
{
    uint32_t size = least;
    while (size < LP_SEGMENT_MAX && count * 8 > size * 5)
        size = next_size(size);
    return size;
}

static lp_index_entry *take_entries(uint32_t size)
{
    return size < BLOCK_MIN ? calloc(size, sizeof(lp_index_entry)) : lp_pages_take(BLOCK_BYTES);
}

static void give_entries(lp_index_entry *entries, uint32_t size)
{
    if (size < BLOCK_MIN)
        free(entries);
    else
        lp_pages_give(entries, BLOCK_BYTES);
}

/* Put the entry in the first free place from its home on. There is one. */
static void put(lp_segment *s, lp_index_entry entry)
{
    assert(s->count + 1 < s->size);
    uint32_t i = lp_index_home(entry.tag, s->size);
    while (s->entries[i].ref != 0)
        i = i + 1 == s->size ? 0 : i + 1;
    s->entries[i] = entry;
    s->count++;
}

static void put_all(lp_index *x, lp_segment *s, const lp_index_entry *entries, uint32_t size)
{
    uint32_t before = s->count;
    for (uint32_t i = 0; i < size; i++) {
        if (entries[i].ref != 0)
            put(s, entries[i]);
    }
    x->moved += s->count - before;
}

/* Change the size of a segment in its block, emptying it onto the shelf. */
static void clear_onto_shelf(lp_index *x, lp_segment *s, uint32_t size)
{
    size_t old = s->size * sizeof *s->entries, now = size * sizeof *s->entries;
    memcpy(x->shelf, s->entries, old);
    memset(s->entries, 0, now);
    if (now < old)
        lp_pages_drop((char *)s->entries + now, old - now);
    x->room += size;
    x->room -= s->size;
    s->size = size;
    s->count = 0;
}

static int need_shelf(lp_index *x)
{
    if (!x->shelf)
        x->shelf = lp_pages_take(BLOCK_BYTES);
    return x->shelf ? 0 : LAPSE_ENOMEM;
}

/* From or to an allocation of its own. */
static int resize_small(lp_index *x, lp_segment *s, uint32_t size)
{
    lp_segment old = *s;
    lp_index_entry *entries = take_entries(size);
    if (!entries)
        return LAPSE_ENOMEM;
    *s = (lp_segment){.entries = entries, .size = size};
    put_all(x, s, old.entries, old.size);
    x->room += size;
    x->room -= old.size;
    give_entries(old.entries, old.size);
    return 0;
}

static int resize(lp_index *x, lp_segment *s, uint32_t size)
{
    if (s->size < BLOCK_MIN || size < BLOCK_MIN)
        return resize_small(x, s, size);
    int rc = need_shelf(x);
    if (rc < 0)
        return rc;
    uint32_t old_size = s->size;
    clear_onto_shelf(x, s, size);
    put_all(x, s, x->shelf, old_size);
    return 0;
}

/* -- The table ------------------------------------------------------------------- */

/* How many entries so many segments, at least one, have before the next one is split. */
static size_t split_above(uint32_t segments)
{
    uint32_t round = UINT32_C(1) << (31 - __builtin_clz(segments));
    size_t from = (size_t)round * SPLIT_FROM;
    size_t pace = SPLIT_UNTIL - SPLIT_FROM;
    return segments < SEGMENTS_MAX ? from + (segments - round) * pace : SIZE_MAX;
}

static void set_segment_count(lp_index *x, uint32_t count)
{
    x->segment_count = count;
    x->mask = count > 1 ? UINT32_MAX >> __builtin_clz(count - 1) : 0;
    x->split_above = split_above(count);
}

/* Add an empty segment at the end. */
static int add_segment(lp_index *x, uint32_t size)
{
    int rc = lp_paged_reserve(&x->segments, x->segment_count + 1, sizeof(lp_segment));
    if (rc < 0)
        return rc;
    lp_index_entry *entries = take_entries(size);
    if (!entries)
        return LAPSE_ENOMEM;
    *segment_at(x, x->segment_count) = (lp_segment){.entries = entries, .size = size};
    set_segment_count(x, x->segment_count + 1);
    x->room += size;
    return 0;
}

/* The segment that this one, which is not the first, was or will be split from. */
static uint32_t buddy_of(uint32_t number)
{
    return number ^ (UINT32_C(1) << (31 - __builtin_clz(number)));
}

/* How many entries of the segment a split moves: those with this bit in their tag. */
static uint32_t count_with_bit(const lp_segment *s, uint32_t bit)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < s->size; i++)
        count += s->entries[i].ref != 0 && (s->entries[i].tag & bit);
    return count;
}

/* Split the next segment in turn, if there is memory for another one. */
static void split(lp_index *x)
{
    uint32_t number = x->segment_count, buddy = buddy_of(number), bit = number ^ buddy;
    lp_segment *low = segment_at(x, buddy);
    uint32_t leaving = count_with_bit(low, bit);
    assert(low->size >= BLOCK_MIN);
    if (need_shelf(x) < 0 || add_segment(x, fitting_size(leaving, BLOCK_MIN)) < 0)
        return;
    lp_segment *high = segment_at(x, number);
    uint32_t old_size = low->size;
    clear_onto_shelf(x, low, fitting_size(low->count - leaving, BLOCK_MIN));
    for (uint32_t i = 0; i < old_size; i++) {
        if (x->shelf[i].ref != 0)
            put((x->shelf[i].tag & bit) ? high : low, x->shelf[i]);
    }
    x->moved += low->count + high->count;
}

/* Merge the last segment into the one it was split from. */
static void merge(lp_index *x)
{
    uint32_t last = x->segment_count - 1;
    lp_segment *low = segment_at(x, buddy_of(last)), *high = segment_at(x, last);
    uint32_t total = low->count + high->count;
    if (total > MERGE_MOST || need_shelf(x) < 0)
        return;
    uint32_t old_size = low->size;
    clear_onto_shelf(x, low, fitting_size(total, BLOCK_MIN));
    put_all(x, low, x->shelf, old_size);
    put_all(x, low, high->entries, high->size);
    x->room -= high->size;
    give_entries(high->entries, high->size);
    *high = (lp_segment){0};
    set_segment_count(x, last);
    lp_paged_trim(&x->segments, x->segment_count);
}

static void shrink(lp_index *x, lp_segment *s)
{
    if (x->segment_count > 1 && x->count < (size_t)x->segment_count * MERGE_BELOW) {
        merge(x);
        return;
    }
    uint32_t least = x->segment_count > 1 ? BLOCK_MIN : LP_SEGMENT_MIN;
    if (s->size > least && s->count < s->size / 4)
        (void)resize(x, s, fitting_size(s->count, least)); /* Without memory it stays. */
}

void lp_index_init(lp_index *x)
{
    *x = (lp_index){0};
}

void lp_index_free(lp_index *x)
{
    for (uint32_t number = 0; number < x->segment_count; number++) {
        lp_segment *s = segment_at(x, number);
        give_entries(s->entries, s->size);
    }
    lp_pages_give(x->shelf, BLOCK_BYTES);
    lp_paged_free(&x->segments);
    lp_index_init(x);
}

/* Room for one more entry in the segment. */
static int make_room(lp_index *x, lp_segment *s)
{
    if (s->count * 5 < s->size * 4)
        return 0;
    if (s->size < LP_SEGMENT_MAX && resize(x, s, next_size(s->size)) == 0)
        return 0;
    return s->count < s->size - s->size / 32 ? 0 : LAPSE_ENOMEM;
}

int lp_index_add_at(lp_index *x, uint64_t hash, uint32_t record, lp_index_place place)
{
    lp_segment *s = place.segment;
    if (!s || x->count > x->split_above || s->count * 5 >= s->size * 4)
        return lp_index_add(x, hash, record);
    *place.entry = (lp_index_entry){.tag = lp_index_tag(hash), .ref = record + 1};
    s->count++;
    x->count++;
    return 0;
}

int lp_index_add(lp_index *x, uint64_t hash, uint32_t record)
{
    if (x->segment_count == 0) {
        int rc = add_segment(x, LP_SEGMENT_MIN);
        if (rc < 0)
            return rc;
    }
    if (x->count > x->split_above)
        split(x);
    uint32_t tag = lp_index_tag(hash);
    lp_segment *s = lp_index_segment(x, tag);
    int rc = make_room(x, s);
    if (rc < 0)
        return rc;
    put(s, (lp_index_entry){.tag = tag, .ref = record + 1});
    x->count++;
    return 0;
}

/* The place of `record`, which must be in the segment. */
static uint32_t place_of(const lp_segment *s, uint32_t tag, uint32_t record)
{
    uint32_t i = lp_index_home(tag, s->size);
    while (s->entries[i].ref != record + 1) {
        assert(s->entries[i].ref != 0);
        i = i + 1 == s->size ? 0 : i + 1;
    }
    return i;
}

/* How far place `to` is behind place `from`, around the end. */
static uint32_t distance(uint32_t from, uint32_t to, uint32_t size)
{
    return to >= from ? to - from : to + size - from;
}

/* Empty a place and move up the entries behind it that would not be found any more.
 * Knuth's algorithm R (vol. 3, 6.4). */
static void clear_place(lp_index *x, lp_segment *s, uint32_t hole)
{
    lp_index_entry *entries = s->entries;
    uint32_t i = hole, size = s->size;
    for (uint32_t behind = 1;; behind++) { /* how far `i` is behind `hole` */
        i = i + 1 == size ? 0 : i + 1;
        const lp_index_entry *e = &entries[i];
        if (e->ref == 0)
            break;
        if (distance(lp_index_home(e->tag, size), i, size) < behind)
            continue;
        entries[hole] = *e;
        hole = i;
        behind = 0;
        x->moved++;
    }
    entries[hole] = (lp_index_entry){0};
    s->count--;
    x->count--;
}

void lp_index_remove_at(lp_index *x, lp_index_place place)
{
    clear_place(x, place.segment, (uint32_t)(place.entry - place.segment->entries));
    shrink(x, place.segment);
}

void lp_index_remove(lp_index *x, uint64_t hash, uint32_t record)
{
    assert(x->count > 0);
    uint32_t tag = lp_index_tag(hash);
    lp_segment *s = lp_index_segment(x, tag);
    lp_index_remove_at(x, (lp_index_place){s, s->entries + place_of(s, tag, record)});
}

void lp_index_replace(lp_index *x, uint64_t hash, uint32_t old, uint32_t record)
{
    uint32_t tag = lp_index_tag(hash);
    lp_segment *s = lp_index_segment(x, tag);
    s->entries[place_of(s, tag, old)].ref = record + 1;
}

size_t lp_index_bytes(const lp_index *x)
{
    return x->room * sizeof(lp_index_entry) + (x->shelf ? BLOCK_BYTES : 0) +
           lp_paged_bytes(&x->segments, sizeof(lp_segment));
}
