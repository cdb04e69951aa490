/* records.h - records for the tests of the timers: a pool of numbered nodes.
 *
 * `serial` tells an order from a later one that was given the same index. */
#ifndef LAPSE_TESTS_RECORDS_H
#define LAPSE_TESTS_RECORDS_H

#include <check.h>

#include "core/holds.h"
#include "timer/timer.h"

typedef struct record {
    lp_node node;
    uint64_t serial;
} record;

/* One timer over one pool. */
typedef struct fixture {
    lp_pool pool;
    lp_timer *timer;
    uint64_t serial;     /* of the latest record */
    uint64_t moved;      /* what the timer's counter was when last looked at */
    uint64_t most_moved; /* by any one call since the opening */
} fixture;

static inline record *record_at(const fixture *b, uint32_t index)
{
    return lp_pool_at(&b->pool, index);
}

/* `slots` 0: the heap. */
static inline void fixture_open(fixture *b, unsigned slots, lapse_ns tick, lapse_ns start)
{
    *b = (fixture){0};
    lp_pool_init(&b->pool, sizeof(record));
    lp_timer_config config = {.kind = slots > 0 ? LP_WHEEL : LP_HEAP,
                              .tick = tick,
                              .slots = slots,
                              .start = start,
                              .pool = &b->pool};
    ck_assert_int_eq(lp_timer_open(&config, &b->timer), 0);
}

static inline void fixture_close(fixture *b)
{
    lp_timer_close(b->timer);
    lp_pool_free(&b->pool);
}

/* Note how much the call just made has moved. */
static inline void watch(fixture *b)
{
    uint64_t moved = lp_timer_moved(b->timer);
    if (moved - b->moved > b->most_moved)
        b->most_moved = moved - b->moved;
    b->moved = moved;
}

/* A record, not yet in the timer. */
static inline uint32_t new_record(fixture *b, lapse_ns due)
{
    uint32_t index = lp_pool_take(&b->pool);
    holds(index != LP_NONE);
    record *r = record_at(b, index);
    r->node.due = due;
    r->node.state = 1;
    r->serial = ++b->serial;
    return index;
}

static inline uint32_t insert(fixture *b, lapse_ns due)
{
    uint32_t index = new_record(b, due);
    int rc = lp_timer_insert(b->timer, index);
    holds(rc == 0);
    watch(b);
    return index;
}

static inline void drop(fixture *b, uint32_t index)
{
    lp_timer_remove(b->timer, index);
    watch(b);
    lp_pool_give(&b->pool, index);
}

/* Expire at `now`, once; the records go back to the pool. How many there were. */
static inline size_t expire_some(fixture *b, lapse_ns now, uint64_t *serials, size_t max)
{
    uint32_t out[512];
    holds(max <= 512);
    size_t count = lp_timer_expire(b->timer, now, out, max);
    watch(b);
    for (size_t i = 0; i < count; i++) {
        holds(record_at(b, out[i])->node.due <= now && record_at(b, out[i])->node.mark == 0);
        serials[i] = record_at(b, out[i])->serial;
        lp_pool_give(&b->pool, out[i]);
    }
    return count;
}

/* Expire at `now` until nothing is due: how many in all. Up to `room` serials are kept. */
static inline size_t expire_all(fixture *b, lapse_ns now, uint64_t *serials, size_t room)
{
    uint64_t some[512];
    size_t total = 0, idle = 0;
    while (lp_timer_count(b->timer) > 0 && lp_timer_next(b->timer) <= now) {
        size_t count = expire_some(b, now, some, 512);
        ck_assert_msg(count > 0 || ++idle < 10000, "due, but never handed out");
        for (size_t i = 0; i < count; i++, total++) {
            if (total < room)
                serials[total] = some[i];
        }
    }
    return total;
}

#endif
