/* wheel.c - a hierarchical timing wheel (Varghese and Lauck 1987).
 *
 * `cur` is the tick up to which everything was handed out. A tick is written in digits
 * of `bits` bits; an entry stands on the level of the highest digit in which its tick
 * differs from `cur`, in the slot of its own digit there. So all of level 0 is earlier
 * than all of level 1, and so on; on each level the lowest occupied slot is the earliest.
 * When `cur` reaches a slot above level 0, its entries cascade to the levels below. A
 * cascade that is interrupted leaves the slot open: what belongs into its range queues
 * up behind its entries until it is empty.
 *
 * A slot is a chain of blocks of {record, stamp, low bits of the tick}, in order of
 * insertion; appending, cascading and sweeping keep that order. An entry is live while
 * its record bears its stamp. A removed record loses its mark and leaves the entry behind,
 * stale; slots in which more than half is stale are swept, a block at a time.
 *
 * Handing out never allocates. Every insert leaves as many free blocks as there are
 * slots without room in their last block, at most all. A cascade takes one for each of
 * those that it fills first, and from there on frees a block for each one it fills up.
 *
 * Times below 0 count as 0. The wheel does not know how late it is asked. */
#include <assert.h>
#include <stdlib.h>

#include "timer_ops.h"

enum {
    BLOCK_ENTRIES = 20,
    LEVELS_MAX = 11,     /* of 6 bits each, for 63 bits */
    CALL_ENTRIES = 4096, /* stale or moved entries that one call handles */
    CLOSED = LEVELS_MAX
};

#define NO_TICK UINT64_MAX

typedef struct entry {
    uint32_t index;
    uint32_t stamp;
    uint32_t low; /* bits of the tick */
} entry;

/* Entries [begin, end) count. Lives in a pool, hence the node. */
typedef struct block {
    union {
        lp_node node;
        struct {
            uint32_t next;
            uint8_t begin, end;
        } chain;
    } head;
    entry entries[BLOCK_ENTRIES];
} block;

_Static_assert(sizeof(block) == 256, "four cache lines");

/* Holds something only while its bit is set. */
typedef struct slot {
    uint32_t head, tail;
    uint32_t count; /* entries */
    uint32_t stale; /* of them, about */
    uint32_t swept; /* the sweep goes on behind this block; LP_NONE: at the head */
    uint32_t least_index, least_stamp;
    uint64_t least_tick; /* above level 0: no live entry is earlier */
} slot;

typedef struct level {
    slot *slots;
    uint64_t *words;  /* a bit for each slot */
    uint64_t summary; /* a bit for each word that is not 0 */
} level;

typedef struct wheel {
    lp_timer base;
    uint64_t tick; /* width, in units of time */
    uint64_t cur;
    uint64_t last; /* the tick of the end of time */
    unsigned bits, level_count;
    unsigned open;   /* level whose slot at `cur` is being cascaded, or CLOSED */
    size_t floor;    /* blocks kept at hand: one for each slot, and one */
    size_t reserved; /* inserts that must not fail */
    size_t bytes;
    void *memory; /* of the levels */
    lp_pool blocks;
    uint8_t level_of_bit[64];
    level levels[LEVELS_MAX];
} wheel;

/* -- Ticks ----------------------------------------------------------------------- */

/* Up: late is allowed, early is not. What is past counts as now. */
static uint64_t tick_of(const wheel *w, const lp_node *node)
{
    lapse_ns due = lp_timer_due(node);
    uint64_t tick = due <= 0 ? 0 : ((uint64_t)due + w->tick - 1) / w->tick;
    return tick > w->cur ? tick : w->cur;
}

static lapse_ns time_of(const wheel *w, uint64_t tick)
{
    uint64_t end = LP_NEVER - 1;
    return (lapse_ns)(tick > end / w->tick ? end : tick * w->tick);
}

/* The latest tick that is due at `now`. */
static uint64_t tick_at(const wheel *w, lapse_ns now)
{
    if (now >= LP_NEVER - 1)
        return w->last;
    return (uint64_t)now / w->tick;
}

static unsigned digit(const wheel *w, uint64_t tick, unsigned on)
{
    return (unsigned)(tick >> (on * w->bits)) & ((1u << w->bits) - 1);
}

/* Whether the tick lies in the range of the level's slot at `cur`. */
static bool in_reach(const wheel *w, uint64_t tick, unsigned on)
{
    return (tick ^ w->cur) >> (on * w->bits) == 0;
}

static unsigned level_of(const wheel *w, uint64_t tick)
{
    if (w->open != CLOSED && in_reach(w, tick, w->open))
        return w->open;
    uint64_t difference = tick ^ w->cur;
    return difference == 0 ? 0 : w->level_of_bit[63 - __builtin_clzll(difference)];
}

/* -- Occupied slots -------------------------------------------------------------- */

static bool occupied(const level *l, unsigned number)
{
    return l->words[number / 64] >> (number % 64) & 1;
}

static void set_occupied(level *l, unsigned number)
{
    l->words[number / 64] |= UINT64_C(1) << (number % 64);
    l->summary |= UINT64_C(1) << (number / 64);
}

static void set_empty(level *l, unsigned number)
{
    l->words[number / 64] &= ~(UINT64_C(1) << (number % 64));
    if (l->words[number / 64] == 0)
        l->summary &= ~(UINT64_C(1) << (number / 64));
}

/* There is one. */
static unsigned first_occupied(const level *l)
{
    unsigned word = (unsigned)__builtin_ctzll(l->summary);
    return word * 64 + (unsigned)__builtin_ctzll(l->words[word]);
}

/* The lowest level with an occupied slot; level_count when there is none. */
static unsigned lowest_level(const wheel *w)
{
    unsigned on = 0;
    while (on < w->level_count && w->levels[on].summary == 0)
        on++;
    return on;
}

/* -- Entries and blocks ---------------------------------------------------------- */

static lp_node *live_node(const wheel *w, const entry *e)
{
    if (!lp_pool_has(w->base.pool, e->index))
        return NULL;
    lp_node *node = lp_pool_at(w->base.pool, e->index);
    return node->mark == e->stamp ? node : NULL;
}

static void prefetch_record(const wheel *w, const entry *e)
{
    if (lp_pool_has(w->base.pool, e->index))
        lp_pool_prefetch(w->base.pool, e->index);
}

static void prefetch_records(const wheel *w, const block *b)
{
    for (unsigned i = b->head.chain.begin; i < b->head.chain.end; i++)
        prefetch_record(w, &b->entries[i]);
}

static block *block_at(const wheel *w, uint32_t number)
{
    return lp_pool_at(&w->blocks, number);
}

static void prefetch_block(const wheel *w, uint32_t number)
{
    if (number == LP_NONE)
        return;
    const char *b = lp_pool_at(&w->blocks, number);
    for (size_t line = 0; line < sizeof(block); line += 64)
        lp_prefetch(b + line);
}

static block *add_block(wheel *w, slot *s)
{
    uint32_t number = lp_pool_take(&w->blocks);
    assert(number != LP_NONE); /* The floor is for this. */
    block *b = block_at(w, number);
    b->head.chain.next = LP_NONE;
    b->head.chain.begin = b->head.chain.end = 0;
    if (s->head == LP_NONE)
        s->head = number;
    else
        block_at(w, s->tail)->head.chain.next = number;
    s->tail = number;
    return b;
}

/* Unlink and free the block behind `prev`; at the head if that is LP_NONE. */
static void drop_block(wheel *w, slot *s, uint32_t prev)
{
    uint32_t *link = prev == LP_NONE ? &s->head : &block_at(w, prev)->head.chain.next;
    uint32_t number = *link;
    *link = block_at(w, number)->head.chain.next;
    if (s->tail == number)
        s->tail = prev;
    if (s->swept == number)
        s->swept = prev;
    lp_pool_give(&w->blocks, number);
}

static void append(wheel *w, slot *s, uint64_t tick, uint32_t index, uint32_t stamp)
{
    block *b = s->head == LP_NONE ? NULL : block_at(w, s->tail);
    if (!b || b->head.chain.end == BLOCK_ENTRIES)
        b = add_block(w, s);
    b->entries[b->head.chain.end++] = (entry){index, stamp, (uint32_t)tick};
    s->count++;
}

/* Put an entry of this record where its tick belongs. Returns the level. */
static unsigned place(wheel *w, uint64_t tick, uint32_t index, uint32_t stamp)
{
    unsigned on = level_of(w, tick), number = digit(w, tick, on);
    level *l = &w->levels[on];
    slot *s = &l->slots[number];
    if (!occupied(l, number)) {
        set_occupied(l, number);
        *s = (slot){.head = LP_NONE, .tail = LP_NONE, .swept = LP_NONE, .least_tick = NO_TICK};
    }
    append(w, s, tick, index, stamp);
    if (tick < s->least_tick) {
        s->least_tick = tick;
        s->least_index = index;
        s->least_stamp = stamp;
    }
    return on;
}

/* -- Sweeping -------------------------------------------------------------------- */

/* Keep only the live entries of a block, from its front on. */
static void compact(wheel *w, slot *s, block *b)
{
    unsigned kept = 0, before = b->head.chain.end - b->head.chain.begin;
    for (unsigned i = b->head.chain.begin; i < b->head.chain.end; i++) {
        if (live_node(w, &b->entries[i]))
            b->entries[kept++] = b->entries[i];
    }
    b->head.chain.begin = 0;
    b->head.chain.end = (uint8_t)kept;
    unsigned dropped = before - kept;
    s->count -= dropped;
    s->stale -= s->stale < dropped ? s->stale : dropped;
    w->base.moved += before;
}

/* Move the entries of `b` behind those of `to`, if they all fit. */
static bool merge(wheel *w, block *to, const block *b)
{
    unsigned first = to->head.chain.begin, kept = to->head.chain.end - first;
    if (kept + b->head.chain.end > BLOCK_ENTRIES)
        return false;
    for (unsigned i = 0; first > 0 && i < kept; i++)
        to->entries[i] = to->entries[first + i];
    for (unsigned i = 0; i < b->head.chain.end; i++)
        to->entries[kept + i] = b->entries[i];
    to->head.chain.begin = 0;
    to->head.chain.end = (uint8_t)(kept + b->head.chain.end);
    w->base.moved += b->head.chain.end;
    return true;
}

/* Load what the next sweeps of the slot will look at: the records of the block behind
 * `number`, and the block after that. */
static void prefetch_sweep(const wheel *w, uint32_t number)
{
    uint32_t next = block_at(w, number)->head.chain.next;
    if (next == LP_NONE)
        return;
    const block *b = block_at(w, next);
    prefetch_records(w, b);
    prefetch_block(w, b->head.chain.next);
}

/* Sweep the next block of the slot; behind the last one comes the first. */
static void sweep(wheel *w, slot *s)
{
    uint32_t prev = s->swept == s->tail ? LP_NONE : s->swept;
    uint32_t number = prev == LP_NONE ? s->head : block_at(w, prev)->head.chain.next;
    block *b = block_at(w, number);
    prefetch_sweep(w, number);
    compact(w, s, b);
    if (b->head.chain.end == 0 || (prev != LP_NONE && merge(w, block_at(w, prev), b)))
        drop_block(w, s, prev);
    else
        prev = number;
    s->swept = prev;
}

/* -- Handing out ----------------------------------------------------------------- */

/* Whether `low` holds all bits in which the ticks of the level's slots differ. */
static bool low_suffices(const wheel *w, unsigned on)
{
    return (on + 1) * w->bits <= 32;
}

/* The tick of an entry on a level where `low` suffices. */
static uint64_t tick_from_low(const wheel *w, unsigned on, const entry *e)
{
    uint64_t mask = (UINT64_C(1) << ((on + 1) * w->bits)) - 1;
    return (w->cur & ~mask) | (e->low & mask);
}

/* Put an entry of the slot at `cur` on the level it belongs to now, or drop it. */
static void move_down(wheel *w, unsigned on, bool check, const entry *e)
{
    const lp_node *node = check ? live_node(w, e) : NULL;
    if (check && !node)
        return;
    uint64_t tick = low_suffices(w, on) ? tick_from_low(w, on, e) : tick_of(w, node);
    if (!in_reach(w, tick, on)) /* A stale entry whose stamp came round again. */
        return;
    if (place(w, tick, e->index, e->stamp) == 0)
        prefetch_record(w, e); /* It is due soon. */
}

/* Distribute the level's slot at `cur` over the levels below; at most `budget` entries. */
static size_t cascade(wheel *w, unsigned on, size_t budget)
{
    unsigned number = digit(w, w->cur, on);
    slot *s = &w->levels[on].slots[number];
    bool check = !low_suffices(w, on) || s->stale > s->count / 8;
    size_t moved = 0;
    w->open = CLOSED; /* So that nothing is placed in it. */
    while (s->head != LP_NONE && moved < budget) {
        block *b = block_at(w, s->head);
        prefetch_block(w, b->head.chain.next);
        for (; b->head.chain.begin < b->head.chain.end && moved < budget; moved++)
            move_down(w, on, check, &b->entries[b->head.chain.begin++]);
        if (b->head.chain.begin == b->head.chain.end)
            drop_block(w, s, LP_NONE);
    }
    s->count -= (uint32_t)moved;
    w->base.moved += moved;
    if (s->head == LP_NONE)
        set_empty(&w->levels[on], number);
    else
        w->open = on;
    return moved;
}

/* Where expired records go. */
typedef struct harvest {
    uint32_t *out;
    size_t count, max;
    size_t budget; /* stale or moved entries still allowed */
} harvest;

/* Hand out the entries of the slot at `cur` on level 0. */
static void drain(wheel *w, harvest *h)
{
    unsigned number = digit(w, w->cur, 0);
    slot *s = &w->levels[0].slots[number];
    lapse_ns time = time_of(w, w->cur);
    prefetch_records(w, block_at(w, s->head));
    while (s->head != LP_NONE) {
        block *b = block_at(w, s->head);
        if (b->head.chain.begin == b->head.chain.end) {
            drop_block(w, s, LP_NONE);
            if (s->head != LP_NONE)
                prefetch_records(w, block_at(w, s->head));
            continue;
        }
        if (h->count == h->max || h->budget == 0)
            return;
        const entry *e = &b->entries[b->head.chain.begin++];
        s->count--;
        lp_node *node = live_node(w, e);
        if (node && lp_timer_due(node) <= time) {
            node->mark = 0;
            h->out[h->count++] = e->index;
        } else {
            s->stale -= s->stale > 0;
            h->budget--;
        }
    }
    set_empty(&w->levels[0], number);
}

/* Move on to the earliest occupied slot if it begins at `until` or before. */
static bool move_on(wheel *w, uint64_t until, unsigned *on)
{
    *on = w->open != CLOSED ? w->open : lowest_level(w);
    uint64_t start = NO_TICK;
    if (w->open != CLOSED) {
        start = w->cur;
    } else if (*on < w->level_count) {
        uint64_t upper = w->cur >> (*on * w->bits) & ~((UINT64_C(1) << w->bits) - 1);
        start = (upper | first_occupied(&w->levels[*on])) << (*on * w->bits);
    }
    /* When no slot begins by then, `until` leaves every entry on its level. */
    w->cur = start <= until ? start : until;
    return start <= until;
}

static size_t wheel_expire(lp_timer *t, lapse_ns now, uint32_t *out, size_t max)
{
    wheel *w = (wheel *)t;
    harvest h = {.out = out, .max = max, .budget = CALL_ENTRIES};
    uint64_t until = tick_at(w, now);
    unsigned on;
    if (now < 0 || until < w->cur)
        return 0;
    while (h.count < max && h.budget > 0 && move_on(w, until, &on)) {
        if (on == 0)
            drain(w, &h);
        else
            h.budget -= cascade(w, on, h.budget);
    }
    return h.count;
}

/* -- The next tick --------------------------------------------------------------- */

/* Free all blocks of a slot in which nothing is live. */
static void clear_slot(wheel *w, unsigned on, unsigned number)
{
    slot *s = &w->levels[on].slots[number];
    while (s->head != LP_NONE)
        drop_block(w, s, LP_NONE);
    set_empty(&w->levels[on], number);
    if (on == w->open && number == digit(w, w->cur, on))
        w->open = CLOSED;
}

/* Note the entry as the least one of its slot if it is live and earlier. */
static void consider(const wheel *w, unsigned on, slot *s, const entry *e)
{
    bool low = low_suffices(w, on);
    if (low && tick_from_low(w, on, e) >= s->least_tick)
        return; /* Most entries, without a look at the record. */
    const lp_node *node = live_node(w, e);
    if (!node)
        return;
    uint64_t tick = low ? tick_from_low(w, on, e) : tick_of(w, node);
    if (tick < s->least_tick) {
        s->least_tick = tick;
        s->least_index = e->index;
        s->least_stamp = e->stamp;
    }
}

static void find_least(wheel *w, unsigned on, slot *s)
{
    s->least_tick = NO_TICK;
    for (uint32_t number = s->head; number != LP_NONE;) {
        const block *b = block_at(w, number);
        number = b->head.chain.next;
        prefetch_block(w, number);
        for (unsigned i = b->head.chain.begin; i < b->head.chain.end; i++)
            consider(w, on, s, &b->entries[i]);
    }
}

/* The earliest live tick of a slot above level 0, or a bound below it if the slot is
 * large; NO_TICK if nothing in it is live: then it is empty afterwards. */
static uint64_t least_above(wheel *w, unsigned on, unsigned number)
{
    slot *s = &w->levels[on].slots[number];
    entry least = {.index = s->least_index, .stamp = s->least_stamp};
    if (live_node(w, &least) || s->count > CALL_ENTRIES)
        return s->least_tick;
    find_least(w, on, s);
    if (s->least_tick == NO_TICK)
        clear_slot(w, on, number);
    return s->least_tick;
}

/* The tick of a slot on level 0, if anything in it is live; NO_TICK as above. What is
 * stale at its head is dropped, as far as the budget goes. */
static uint64_t least_at_bottom(wheel *w, unsigned number, size_t *budget)
{
    slot *s = &w->levels[0].slots[number];
    while (s->head != LP_NONE) {
        block *b = block_at(w, s->head);
        if (b->head.chain.begin == b->head.chain.end) {
            drop_block(w, s, LP_NONE);
        } else if (*budget == 0 || live_node(w, &b->entries[b->head.chain.begin])) {
            return (w->cur & ~((UINT64_C(1) << w->bits) - 1)) | number;
        } else {
            b->head.chain.begin++;
            s->count--;
            s->stale -= s->stale > 0;
            --*budget;
        }
    }
    set_empty(&w->levels[0], number);
    return NO_TICK;
}

static uint64_t least_tick(wheel *w)
{
    uint64_t open_least = NO_TICK;
    size_t budget = CALL_ENTRIES;
    if (w->open != CLOSED)
        open_least = least_above(w, w->open, digit(w, w->cur, w->open));
    for (;;) {
        unsigned on = lowest_level(w);
        if (on >= w->level_count || on == w->open) /* The rest is later. */
            return open_least;
        unsigned number = first_occupied(&w->levels[on]);
        uint64_t least = on == 0 ? least_at_bottom(w, number, &budget) : least_above(w, on, number);
        if (least != NO_TICK)
            return least < open_least ? least : open_least;
    }
}

static lapse_ns wheel_next(lp_timer *t)
{
    wheel *w = (wheel *)t;
    uint64_t least = least_tick(w);
    assert(least != NO_TICK); /* The count says that something is live. */
    return time_of(w, least > w->cur ? least : w->cur);
}

/* -- In and out ------------------------------------------------------------------ */

/* How many blocks so many inserts may take: one for each slot, and those filled up. */
static size_t blocks_for(const wheel *w, size_t inserts)
{
    size_t most = w->floor + inserts / BLOCK_ENTRIES;
    return inserts < most ? inserts : most;
}

static int wheel_reserve(lp_timer *t, size_t count)
{
    wheel *w = (wheel *)t;
    int rc = lp_pool_reserve(&w->blocks, w->floor + blocks_for(w, count));
    if (rc == 0)
        w->reserved = count;
    return rc;
}

/* Use up a part of the reserve, or make sure of one block above the floor. */
static int ready_insert(wheel *w)
{
    if (w->reserved > 0) {
        if (--w->reserved % 64 == 0) /* Not each time: it costs more than the rest. */
            w->blocks.keep = w->floor + blocks_for(w, w->reserved);
        return 0;
    }
    return lp_pool_left(&w->blocks) > w->floor ? 0 : lp_pool_reserve(&w->blocks, w->floor + 1);
}

static int wheel_insert(lp_timer *t, uint32_t index)
{
    wheel *w = (wheel *)t;
    int rc = ready_insert(w);
    if (rc < 0)
        return rc;
    /* Stamps are the pool's: a record may go from one timer to another, and what it left
     * behind in the first must stay stale. */
    uint32_t stamp = ++w->base.pool->stamp;
    if (stamp == 0) /* 0 is no mark. */
        stamp = ++w->base.pool->stamp;
    lp_node *node = lp_pool_at(t->pool, index);
    uint64_t tick = tick_of(w, node);
    node->mark = stamp;
    place(w, tick, index, stamp);
    return 0;
}

static void wheel_remove(lp_timer *t, uint32_t index)
{
    wheel *w = (wheel *)t;
    lp_node *node = lp_pool_at(t->pool, index);
    uint64_t tick = tick_of(w, node);
    unsigned on = level_of(w, tick), number = digit(w, tick, on);
    slot *s = &w->levels[on].slots[number];
    node->mark = 0;
    s->stale++;
    if (on == w->open || s->stale <= s->count / 2)
        return;
    sweep(w, s);
    if (s->head == LP_NONE)
        set_empty(&w->levels[on], number);
}

/* -- Opening --------------------------------------------------------------------- */

static void wheel_close(lp_timer *t)
{
    wheel *w = (wheel *)t;
    lp_pool_free(&w->blocks);
    free(w->memory);
    free(w);
}

static size_t wheel_bytes(const lp_timer *t)
{
    const wheel *w = (const wheel *)t;
    return w->bytes + lp_pool_bytes(&w->blocks);
}

static const lp_timer_ops wheel_ops = {
    .close = wheel_close,
    .insert = wheel_insert,
    .reserve = wheel_reserve,
    .remove = wheel_remove,
    .expire = wheel_expire,
    .next = wheel_next,
    .bytes = wheel_bytes,
};

/* How many slots a level has: the highest one may need fewer digits. */
static size_t slots_on(const wheel *w, unsigned on)
{
    uint64_t most = w->last >> (on * w->bits);
    size_t all = (size_t)1 << w->bits;
    return most < all ? most + 1 : all;
}

static size_t words_on(const wheel *w, unsigned on)
{
    return (slots_on(w, on) + 63) / 64;
}

static void set_shape(wheel *w, const lp_timer_config *config)
{
    w->tick = (uint64_t)config->tick;
    w->bits = (unsigned)__builtin_ctz(config->slots);
    w->last = (LP_NEVER - 1 + w->tick - 1) / w->tick;
    w->cur = config->start <= 0 ? 0 : (uint64_t)config->start / w->tick;
    w->open = CLOSED;
    for (unsigned bit = 0; bit < 64; bit++)
        w->level_of_bit[bit] = (uint8_t)(bit / w->bits);
    w->level_count = w->level_of_bit[63 - __builtin_clzll(w->last | 1)] + 1u;
}

/* All slots, then all words, in one piece. */
static int take_levels(wheel *w)
{
    size_t slots = 0, words = 0;
    for (unsigned on = 0; on < w->level_count; on++) {
        slots += slots_on(w, on);
        words += words_on(w, on);
    }
    size_t bytes = slots * sizeof(slot) + words * sizeof(uint64_t);
    w->memory = calloc(1, bytes);
    if (!w->memory)
        return LAPSE_ENOMEM;
    slot *slot_at = w->memory;
    uint64_t *word_at = (uint64_t *)(slot_at + slots);
    for (unsigned on = 0; on < w->level_count; on++) {
        w->levels[on] = (level){.slots = slot_at, .words = word_at};
        slot_at += slots_on(w, on);
        word_at += words_on(w, on);
    }
    w->floor = slots + 1;
    w->bytes = sizeof *w + bytes;
    return 0;
}

int lp_wheel_open(const lp_timer_config *config, lp_timer **out)
{
    wheel *w = calloc(1, sizeof *w);
    if (!w)
        return LAPSE_ENOMEM;
    w->base.ops = &wheel_ops;
    w->base.pool = config->pool;
    set_shape(w, config);
    lp_pool_init(&w->blocks, sizeof(block));
    if (take_levels(w) < 0 || lp_pool_reserve(&w->blocks, w->floor) < 0) {
        wheel_close(&w->base);
        return LAPSE_ENOMEM;
    }
    *out = &w->base;
    return 0;
}
