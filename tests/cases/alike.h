/* alike.h - cases of the memory store that every durable one holds too: each has a fresh rig. */
#ifndef LAPSE_TESTS_ALIKE_H
#define LAPSE_TESTS_ALIKE_H

#include "delivery.h"

static inline void settle_a_claim_once(rig *r)
{
    put(r->s, NULL, "o", 0);
    advance(r, LAPSE_MS(1));
    int64_t fence = poll_one(r->s, NULL, "o")->fence;
    ck_assert_int_gt(fence, 0);
    expect_nothing(r->s, NULL);
    EXPECT_ERROR(lapse_settle(r->s, fence + 1, LAPSE_DONE, 0, NULL), LAPSE_ESTALE, "");
    EXPECT_ERROR(lapse_settle(r->s, 0, LAPSE_DONE, 0, NULL), LAPSE_ESTALE, "");
    EXPECT_ERROR(lapse_settle(r->s, -1, LAPSE_DONE, 0, NULL), LAPSE_ESTALE, "");
    EXPECT_ERROR(lapse_settle(r->s, fence, (lapse_verdict)99, 0, NULL), LAPSE_EINVAL, "99");
    ck_assert_uint_eq(stats_of(r->s).running, 1);
    settle(r->s, fence, LAPSE_DONE);
    EXPECT_ERROR(lapse_settle(r->s, fence, LAPSE_DONE, 0, NULL), LAPSE_ESTALE, "");
    EXPECT_ERROR(lapse_settle(r->s, fence, LAPSE_RETRY, 0, NULL), LAPSE_ESTALE, "");
    ck_assert_uint_eq(stats_of(r->s).done, 1);
    ck_assert_uint_eq(pending_in(r->s), 0);
    expect_books(r->s);
}

static inline void retry_and_give_back_a_claim(rig *r)
{
    put(r->s, NULL, "o", 0);
    advance(r, LAPSE_MS(1));
    const lapse_order *order = poll_one(r->s, NULL, "o");
    ck_assert_int_eq(order->attempt, 1);
    int64_t fence = order->fence;
    ck_assert_int_eq(lapse_settle(r->s, fence, LAPSE_RETRY, LAPSE_SECONDS(3), "busy"), 0);
    advance(r, LAPSE_SECONDS(3) - 1);
    expect_nothing(r->s, NULL);
    advance(r, 1);
    order = poll_one(r->s, NULL, "o");
    ck_assert_int_eq(order->attempt, 2);
    ck_assert_int_gt(order->fence, fence);
    settle(r->s, order->fence, LAPSE_GIVE_BACK);
    order = poll_one(r->s, NULL, "o"); /* At once, and it does not count. */
    ck_assert_int_eq(order->attempt, 2);
    settle(r->s, order->fence, LAPSE_DONE);
    ck_assert_uint_eq(stats_of(r->s).given_back, 1);
    ck_assert_uint_eq(stats_of(r->s).retried, 1);
    expect_books(r->s);
}

static inline void fail_until_dead(rig *r)
{
    put(r->s, "q", "o", 0);
    int attempts = 0;
    for (int i = 0; i < 200 && stats_of(r->s).dead == 0; i++) {
        const lapse_order *order;
        advance(r, LAPSE_SECONDS(1));
        if (lapse_poll(r->s, "q", &order) == 1) {
            ck_assert_int_eq(order->attempt, ++attempts);
            ck_assert_int_eq(lapse_settle(r->s, order->fence, LAPSE_FAIL, 0, "down"), 0);
        }
    }
    ck_assert_int_eq(attempts, 5);
    letter dead = only_letter(r->s);
    ck_assert_int_eq(dead.reason, LAPSE_REASON_FAILED);
    ck_assert_str_eq(dead.error, "down");
    ck_assert_str_eq(dead.queue, "q");
    ck_assert_int_eq(dead.attempt, 5);
    ck_assert_uint_eq(stats_of(r->s).failed, 5);
    expect_books(r->s);
}

/* P-77. `rounding`: by how much less than the truth it may be late. */
static inline void run_what_is_overdue(rig *r, lapse_ns rounding)
{
    const lapse_ns lates[] = {LAPSE_DAYS(30), LAPSE_HOURS(1), LAPSE_SECONDS(2)};
    player p;
    player_open(&p, r->s, NULL);
    for (int i = 0; i < 3; i++)
        put_batch(r->s, "q", (const char *[]){"month", "hour", "seconds"}[i], 1,
                  LAPSE_DAYS(30) - lates[i]);
    ck_assert_int_eq(lapse_clock_advance(r->clock, LAPSE_DAYS(30)), 0);
    handle(r->s, "q", &p, NULL); /* As at the start after an outage. */
    put_batch(r->s, "q", "n", 100, LAPSE_SECONDS(60));
    ck_assert_int_eq(lapse_process(r->s, 0), 3);
    put_batch(r->s, "q", "m", 100, LAPSE_SECONDS(60)); /* Adding some runs no other. */
    ck_assert_int_eq(lapse_process(r->s, 0), 0);
    for (int i = 0; i < 3; i++) {
        ck_assert_int_ge(p.ran.entries[i].late, lates[i] - rounding);
        ck_assert_int_le(p.ran.entries[i].late, lates[i]);
    }
    run_for(r, LAPSE_SECONDS(61));
    ck_assert_uint_eq(tape_count(&p.ran), 203);
    ck_assert_uint_eq(tape_runs(&p.ran, "month0"), 1);
    ck_assert_uint_eq(tape_runs(&p.ran, "hour0"), 1);
    ck_assert_uint_eq(tape_runs(&p.ran, "seconds0"), 1);
    ck_assert_uint_eq(stats_of(r->s).dead_total, 0);
    player_close(&p);
}

#endif
