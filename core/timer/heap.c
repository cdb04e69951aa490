/* heap.c - a 4-ary min-heap on due times, exact to the unit.
 *
 * Equal due times come out in order of insertion: the entry carries a number, compared
 * as a difference, so it may wrap. A record's mark is its position plus 1. The children
 * of a position share a cache line; positions live in pages, so growth moves nothing.
 * Does no rounding and keeps nothing of a removed record. */
#include <assert.h>
#include <stdlib.h>

#include "timer_ops.h"

enum {
    PAGE_BITS = 12,
    PAGE_ENTRIES = 1 << PAGE_BITS,
    ARITY = 4,
    SHIFT = 3, /* position p is stored at place p + 3: the children 4p + 1 … 4p + 4 align */
    SPARE_PAGES = 1
};

typedef struct entry {
    lapse_ns due;
    uint32_t index;
    uint32_t number;
} entry;

#define PAGE_BYTES (PAGE_ENTRIES * sizeof(entry))

typedef struct heap {
    lp_timer base;
    lp_paged pages; /* of entry * */
    size_t page_count;
    size_t size;     /* entries; base.count, but for the time of a call */
    size_t reserved; /* room for so many more must stay */
    uint32_t number; /* of the latest insert */
} heap;

static entry *at(const heap *h, size_t position)
{
    size_t place = position + SHIFT;
    entry *const *page = lp_paged_at(&h->pages, place >> PAGE_BITS, sizeof(entry *));
    return *page + (place & (PAGE_ENTRIES - 1));
}

static bool before(const entry *a, const entry *b)
{
    if (a->due != b->due)
        return a->due < b->due;
    return (int32_t)(a->number - b->number) < 0;
}

/* -- Room ------------------------------------------------------------------------ */

static size_t pages_for(size_t entries)
{
    return (entries + SHIFT + PAGE_ENTRIES - 1) >> PAGE_BITS;
}

static entry **page_at(const heap *h, size_t number)
{
    return lp_paged_at(&h->pages, number, sizeof(entry *));
}

static int add_page(heap *h)
{
    int rc = lp_paged_reserve(&h->pages, h->page_count + 1, sizeof(entry *));
    if (rc < 0)
        return rc;
    entry *page = lp_pages_take(PAGE_BYTES);
    if (!page)
        return LAPSE_ENOMEM;
    *page_at(h, h->page_count++) = page;
    return 0;
}

static int make_room(heap *h, size_t entries)
{
    if (entries >= UINT32_MAX)
        return LAPSE_ENOMEM;
    while (h->page_count < pages_for(entries)) {
        int rc = add_page(h);
        if (rc < 0)
            return rc;
    }
    return 0;
}

/* Give the last page back when it is one more than the spare ones. */
static void drop_room(heap *h)
{
    if (h->page_count <= pages_for(h->size + h->reserved) + SPARE_PAGES)
        return;
    lp_pages_give(*page_at(h, --h->page_count), PAGE_BYTES);
    lp_paged_trim(&h->pages, h->page_count);
}

/* -- Order ----------------------------------------------------------------------- */

static void place(heap *h, size_t position, const entry *e)
{
    *at(h, position) = *e;
    lp_node *node = lp_pool_at(h->base.pool, e->index);
    node->mark = (uint32_t)position + 1;
    h->base.moved++;
}

static void sift_up(heap *h, size_t position, entry e)
{
    while (position > 0) {
        size_t parent = (position - 1) / ARITY;
        const entry *p = at(h, parent);
        if (!before(&e, p))
            break;
        place(h, position, p);
        position = parent;
    }
    place(h, position, &e);
}

/* The first of the children from `first` on; there is one. */
static size_t least_child(const heap *h, size_t first)
{
    size_t end = first + ARITY < h->size ? first + ARITY : h->size;
    const entry *children = at(h, first); /* In one page: they share a cache line. */
    size_t least = 0;
    for (size_t i = 1; i < end - first; i++) {
        if (before(&children[i], &children[least]))
            least = i;
    }
    return first + least;
}

/* Load the children of the children from `first` on, for the next step down. */
static void prefetch_below(const heap *h, size_t first)
{
    for (size_t i = 0; i < ARITY; i++) {
        size_t below = (first + i) * ARITY + 1;
        if (below < h->size)
            lp_prefetch(at(h, below));
    }
}

static void sift_down(heap *h, size_t position, entry e)
{
    for (;;) {
        size_t first = position * ARITY + 1;
        if (first >= h->size)
            break;
        prefetch_below(h, first);
        size_t child = least_child(h, first);
        const entry *c = at(h, child);
        if (!before(c, &e))
            break;
        place(h, position, c);
        position = child;
    }
    place(h, position, &e);
}

/* Take the entry out; the last one fills its place. */
static void take_out(heap *h, size_t position)
{
    lp_node *node = lp_pool_at(h->base.pool, at(h, position)->index);
    node->mark = 0;
    entry last = *at(h, --h->size);
    if (position == h->size)
        return;
    if (position > 0 && before(&last, at(h, (position - 1) / ARITY)))
        sift_up(h, position, last);
    else
        sift_down(h, position, last);
}

/* -- The timer's functions ------------------------------------------------------- */

static void heap_close(lp_timer *t)
{
    heap *h = (heap *)t;
    for (size_t number = 0; number < h->page_count; number++)
        lp_pages_give(*page_at(h, number), PAGE_BYTES);
    lp_paged_free(&h->pages);
    free(h);
}

static int heap_reserve(lp_timer *t, size_t count)
{
    heap *h = (heap *)t;
    int rc = count < UINT32_MAX ? make_room(h, h->size + count) : LAPSE_ENOMEM;
    if (rc == 0)
        h->reserved = count;
    return rc;
}

static int heap_insert(lp_timer *t, uint32_t index)
{
    heap *h = (heap *)t;
    int rc = make_room(h, h->size + 1);
    if (rc < 0)
        return rc;
    const lp_node *node = lp_pool_at(t->pool, index);
    entry e = {.due = lp_timer_due(node), .index = index, .number = ++h->number};
    sift_up(h, h->size++, e);
    h->reserved -= h->reserved > 0;
    return 0;
}

static void heap_remove(lp_timer *t, uint32_t index)
{
    heap *h = (heap *)t;
    const lp_node *node = lp_pool_at(t->pool, index);
    take_out(h, node->mark - 1);
    drop_room(h);
}

static size_t heap_expire(lp_timer *t, lapse_ns now, uint32_t *out, size_t max)
{
    heap *h = (heap *)t;
    size_t expired = 0;
    while (expired < max && h->size > 0 && at(h, 0)->due <= now) {
        out[expired++] = at(h, 0)->index;
        take_out(h, 0);
        drop_room(h);
    }
    return expired;
}

static lapse_ns heap_next(lp_timer *t)
{
    return at((heap *)t, 0)->due;
}

static size_t heap_bytes(const lp_timer *t)
{
    const heap *h = (const heap *)t;
    return sizeof *h + h->page_count * PAGE_BYTES + lp_paged_bytes(&h->pages, sizeof(entry *));
}

static const lp_timer_ops heap_ops = {
    .close = heap_close,
    .insert = heap_insert,
    .reserve = heap_reserve,
    .remove = heap_remove,
    .expire = heap_expire,
    .next = heap_next,
    .bytes = heap_bytes,
};

int lp_heap_open(const lp_timer_config *config, lp_timer **out)
{
    heap *h = calloc(1, sizeof *h);
    if (!h)
        return LAPSE_ENOMEM;
    h->base.ops = &heap_ops;
    h->base.pool = config->pool;
    *out = &h->base;
    return 0;
}
