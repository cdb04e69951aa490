/* pool.c - records of one size, named by a 32-bit index, that never move.
 *
 * Chunks with room are used before empty ones, so that empty ones can go. One chunk in
 * sixteen, and one more, may be empty and keep its memory: a count that swings a little
 * costs no system call. */
#include "pool.h"

#include <assert.h>

enum {
    NO_SLOT = UINT16_MAX,
    CHUNKS_MAX = (1 << (32 - LP_POOL_BITS)) - 1, /* LP_NONE stays free */
    SPARE_SHARE = 16,
    RELEASES_PER_GIVE = 2,
    TRIMS_PER_RELEASE = 64
};

static lp_chunk *chunk_at(const lp_pool *p, uint32_t number)
{
    return lp_paged_at(&p->chunks, number, sizeof(lp_chunk));
}

static size_t chunk_bytes(const lp_pool *p)
{
    return p->record_size << LP_POOL_BITS;
}

static void put_in(lp_pool *p, int list, uint32_t number)
{
    lp_chunk *c = chunk_at(p, number);
    c->prev = LP_NONE;
    c->next = p->lists[list];
    if (c->next != LP_NONE)
        chunk_at(p, c->next)->prev = number;
    p->lists[list] = number;
}

static void take_out(lp_pool *p, int list, uint32_t number)
{
    lp_chunk *c = chunk_at(p, number);
    if (c->next != LP_NONE)
        chunk_at(p, c->next)->prev = c->prev;
    if (c->prev != LP_NONE)
        chunk_at(p, c->prev)->next = c->next;
    else
        p->lists[list] = c->next;
}

static void move_to(lp_pool *p, int from, int to, uint32_t number)
{
    take_out(p, from, number);
    put_in(p, to, number);
}

void lp_pool_init(lp_pool *p, size_t record_size)
{
    assert(record_size % 8 == 0 && record_size >= sizeof(lp_node));
    *p = (lp_pool){.record_size = record_size};
    for (int list = 0; list < LP_POOL_LISTS; list++)
        p->lists[list] = LP_NONE;
}

void lp_pool_free(lp_pool *p)
{
    for (uint32_t number = 0; number < p->limit; number++)
        lp_pages_give(chunk_at(p, number)->records, chunk_bytes(p));
    lp_paged_free(&p->chunks);
    lp_pool_init(p, p->record_size);
}

/* A chunk without memory and in no list: a hollow one, or the first unused one. */
static int find_hollow(lp_pool *p, uint32_t *number)
{
    *number = p->lists[LP_POOL_HOLLOW];
    if (*number != LP_NONE) {
        take_out(p, LP_POOL_HOLLOW, *number);
        return 0;
    }
    if (p->limit == CHUNKS_MAX)
        return LAPSE_ENOMEM;
    int rc = lp_paged_reserve(&p->chunks, p->limit + 1, sizeof(lp_chunk));
    if (rc == 0)
        *number = p->limit++;
    return rc;
}

/* One more spare chunk. */
static int map_chunk(lp_pool *p)
{
    char *records = lp_pages_take(chunk_bytes(p));
    if (!records)
        return LAPSE_ENOMEM;
    uint32_t number;
    int rc = find_hollow(p, &number);
    if (rc < 0) {
        lp_pages_give(records, chunk_bytes(p));
        return rc;
    }
    *chunk_at(p, number) = (lp_chunk){.records = records, .free = NO_SLOT};
    put_in(p, LP_POOL_SPARE, number);
    p->mapped++;
    p->spares++;
    return 0;
}

/* Forget the hollow chunks at the end. */
static void trim(lp_pool *p)
{
    for (int i = 0; i < TRIMS_PER_RELEASE && p->limit > 0; i++) {
        if (chunk_at(p, p->limit - 1)->records)
            break;
        take_out(p, LP_POOL_HOLLOW, --p->limit);
    }
    lp_paged_trim(&p->chunks, p->limit);
}

static void release_spare(lp_pool *p)
{
    uint32_t number = p->lists[LP_POOL_SPARE];
    lp_chunk *c = chunk_at(p, number);
    lp_pages_give(c->records, chunk_bytes(p));
    c->records = NULL;
    p->touched -= c->touched;
    p->mapped--;
    p->spares--;
    move_to(p, LP_POOL_SPARE, LP_POOL_HOLLOW, number);
    trim(p);
}

static bool too_many_spares(const lp_pool *p)
{
    return p->spares > 1 + p->mapped / SPARE_SHARE && lp_pool_left(p) >= p->keep + LP_POOL_CHUNK;
}

/* The last record in use was given back. */
static void retire(lp_pool *p, uint32_t number)
{
    lp_chunk *c = chunk_at(p, number);
    c->free = NO_SLOT;
    c->fresh = 0; /* Used from the start again, in order. */
    move_to(p, LP_POOL_ROOM, LP_POOL_SPARE, number);
    p->spares++;
    for (int i = 0; i < RELEASES_PER_GIVE && too_many_spares(p); i++)
        release_spare(p);
}

int lp_pool_reserve(lp_pool *p, size_t count)
{
    while (lp_pool_left(p) < count) {
        int rc = map_chunk(p);
        if (rc < 0)
            return rc;
    }
    p->keep = count;
    return 0;
}

/* A chunk with room, or LP_NONE without memory. */
static uint32_t find_room(lp_pool *p)
{
    if (p->lists[LP_POOL_ROOM] != LP_NONE)
        return p->lists[LP_POOL_ROOM];
    if (p->lists[LP_POOL_SPARE] == LP_NONE && map_chunk(p) < 0)
        return LP_NONE;
    uint32_t number = p->lists[LP_POOL_SPARE];
    move_to(p, LP_POOL_SPARE, LP_POOL_ROOM, number);
    p->spares--;
    return number;
}

/* The next unused record; counts the memory it touches first. */
static uint32_t take_fresh(lp_pool *p, lp_chunk *c)
{
    uint32_t slot = c->fresh++;
    if (c->fresh > c->touched) {
        c->touched = c->fresh;
        p->touched++;
    }
    return slot;
}

static uint32_t take_freed(const lp_pool *p, lp_chunk *c)
{
    uint32_t slot = c->free;
    const lp_node *node = (const lp_node *)(c->records + slot * p->record_size);
    c->free = (uint16_t)node->due;
    if (c->free != NO_SLOT) /* The next one taken: on its way while this one is filled. */
        lp_prefetch(c->records + c->free * p->record_size);
    return slot;
}

uint32_t lp_pool_take(lp_pool *p)
{
    uint32_t number = find_room(p);
    if (number == LP_NONE)
        return LP_NONE;
    lp_chunk *c = chunk_at(p, number);
    uint32_t slot = c->free == NO_SLOT ? take_fresh(p, c) : take_freed(p, c);
    p->count++;
    if (++c->used == LP_POOL_CHUNK)
        take_out(p, LP_POOL_ROOM, number);
    *(lp_node *)(c->records + slot * p->record_size) = (lp_node){0};
    return number << LP_POOL_BITS | slot;
}

void lp_pool_give(lp_pool *p, uint32_t index)
{
    uint32_t number = index >> LP_POOL_BITS;
    lp_chunk *c = chunk_at(p, number);
    lp_node *node = lp_pool_at(p, index);
    assert(c->used > 0 && node->mark == 0);
    node->state = 0;
    node->due = c->free; /* The link to the next free record. */
    c->free = (uint16_t)(index & (LP_POOL_CHUNK - 1));
    p->count--;
    if (c->used-- == LP_POOL_CHUNK)
        put_in(p, LP_POOL_ROOM, number);
    if (c->used == 0)
        retire(p, number);
}

uint32_t lp_pool_limit(const lp_pool *p)
{
    return p->limit << LP_POOL_BITS;
}

size_t lp_pool_bytes(const lp_pool *p)
{
    return p->touched * p->record_size + lp_paged_bytes(&p->chunks, sizeof(lp_chunk));
}
