/* test_attempts.c - how often, how soon and how late: P-76, P-77.
 *
 * What failed is tried again as its handler's policy says, further apart each time and not all
 * together; what is overdue runs once and knows how late it is, unless the policy drops it. */
/* tiers: small full soak */
/* valgrind */
#include "alike.h"

#include <inttypes.h>
#include <stdlib.h>

/* -- Attempts and back-off ------------------------------------------------------------ */

START_TEST(attempts_are_used_up)
{
    rig r = rig_manual(_i, START, NULL);
    player p;
    player_open(&p, r.s, always_fail);
    handle(r.s, "q", &p, &(lapse_policy){.attempts = 3});
    put(r.s, "q", "o", 0);
    run_for(&r, LAPSE_HOURS(2));
    ck_assert_uint_eq(tape_count(&p.ran), 3);
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(p.ran.entries[i].attempt, i + 1);
    letter dead = only_letter(r.s);
    ck_assert_int_eq(dead.reason, LAPSE_REASON_FAILED);
    ck_assert_int_eq(dead.attempt, 3);
    ck_assert_str_eq(dead.error, "gateway down");
    lapse_stats t = stats_of(r.s);
    ck_assert_uint_eq(t.started, 3);
    ck_assert_uint_eq(t.failed, 3);
    ck_assert_uint_eq(t.retried, 2);
    ck_assert_uint_eq(t.done, 0);
    expect_books(r.s);
    player_close(&p);
    rig_close(&r);
}
END_TEST

static lapse_verdict retry_in_5_s(const lapse_order *order)
{
    return lapse_retry(order, LAPSE_SECONDS(5), "no route");
}

START_TEST(a_retry_that_is_asked_for_uses_up_an_attempt_too)
{
    rig r = rig_manual(_i, START, NULL);
    player p;
    player_open(&p, r.s, retry_in_5_s);
    handle(r.s, "q", &p, &(lapse_policy){.attempts = 4});
    put(r.s, "q", "o", 0);
    run_for(&r, LAPSE_HOURS(2));
    ck_assert_uint_eq(tape_count(&p.ran), 4);
    for (size_t i = 1; i < 4; i++)
        ck_assert_int_eq(p.ran.entries[i].now - p.ran.entries[i - 1].now, LAPSE_SECONDS(5));
    letter dead = only_letter(r.s);
    ck_assert_int_eq(dead.reason, LAPSE_REASON_FAILED);
    ck_assert_str_eq(dead.error, "no route");
    player_close(&p);
    rig_close(&r);
}
END_TEST

/* Fails, but is given back twice in between: one to whom the time is not right yet. */
static int not_yet;

static lapse_verdict fail_unless_not_yet(const lapse_order *order)
{
    if (order->attempt == 2 && not_yet-- > 0)
        return LAPSE_GIVE_BACK;
    return LAPSE_FAIL;
}

START_TEST(what_is_given_back_does_not_count)
{
    const int attempts[] = {1, 2, 2, 2, 3};
    rig r = rig_manual(_i, START, NULL);
    player p;
    not_yet = 2;
    player_open(&p, r.s, fail_unless_not_yet);
    handle(r.s, "q", &p, &(lapse_policy){.attempts = 3, .jitter_percent = -1});
    put(r.s, "q", "o", 0);
    for (int i = 0; i < 100; i++)
        advance(&r, LAPSE_MS(100));
    ck_assert_uint_eq(tape_count(&p.ran), 5);
    for (size_t i = 0; i < 5; i++)
        ck_assert_int_eq(p.ran.entries[i].attempt, attempts[i]);
    ck_assert_int_ge(p.ran.entries[3].late, LAPSE_MS(200)); /* Since it was due first. */
    ck_assert_uint_eq(stats_of(r.s).given_back, 2);
    ck_assert_int_eq(only_letter(r.s).attempt, 3);
    expect_books(r.s);
    player_close(&p);
    rig_close(&r);
}
END_TEST

static lapse_verdict retry_nine_times(const lapse_order *order, void *arg)
{
    atomic_fetch_add((atomic_int *)arg, 1);
    return order->attempt < 10 ? lapse_retry(order, LAPSE_MS(10), NULL) : LAPSE_DONE;
}

/* An order's own callback decides for itself, whatever its queue's policy says. */
START_TEST(a_policy_is_for_the_handlers_orders_only)
{
    rig r = rig_manual(_i, START, NULL);
    player p;
    player_open(&p, r.s, NULL);
    atomic_int runs = 0;
    handle(r.s, "q", &p, &(lapse_policy){.attempts = 1, .expires = LAPSE_MS(1)});
    lapse_spec spec = {.id = "own", .queue = "q", .fn = retry_nine_times, .arg = &runs};
    ck_assert_int_gt(lapse_put(r.s, &spec), 0);
    for (int i = 0; i < 20; i++)
        advance(&r, LAPSE_MS(20)); /* Always late. */
    ck_assert_int_eq(atomic_load(&runs), 10);
    ck_assert_uint_eq(stats_of(r.s).dead_total, 0);
    ck_assert_uint_eq(stats_of(r.s).done, 1);
    player_close(&p);
    rig_close(&r);
}
END_TEST

static void expect_gaps(int engine, const lapse_policy *policy, const int *seconds, size_t count)
{
    rig r = rig_manual(engine, START, NULL);
    player p;
    player_open(&p, r.s, always_fail);
    handle(r.s, "q", &p, policy);
    put(r.s, "q", "o", 0);
    run_for(&r, LAPSE_DAYS(3));
    ck_assert_uint_eq(tape_count(&p.ran), count + 1);
    for (size_t i = 0; i < count; i++)
        ck_assert_int_eq(p.ran.entries[i + 1].now - p.ran.entries[i].now,
                         LAPSE_SECONDS(seconds[i]));
    player_close(&p);
    rig_close(&r);
}

START_TEST(the_ladder_is_what_the_policy_says)
{
    const int defaults[] = {1, 2, 4, 8};
    const int capped[] = {1, 3, 9, 10, 10, 10};
    const int constant[] = {7, 7, 7};
    const int to_an_hour[] = {900, 1800, 3600, 3600, 3600};
    expect_gaps(_i, &(lapse_policy){.jitter_percent = -1}, defaults, 4);
    expect_gaps(_i,
                &(lapse_policy){.attempts = 7,
                                .backoff_max = LAPSE_SECONDS(10),
                                .backoff_percent = 300,
                                .jitter_percent = -1},
                capped, 6);
    expect_gaps(_i,
                &(lapse_policy){.attempts = 4,
                                .backoff = LAPSE_SECONDS(7),
                                .backoff_percent = 100,
                                .jitter_percent = -1},
                constant, 3);
    expect_gaps(_i,
                &(lapse_policy){.attempts = 6, .backoff = LAPSE_MINUTES(15), .jitter_percent = -1},
                to_an_hour, 5);
    expect_gaps(_i, &(lapse_policy){.attempts = 1}, NULL, 0);
}
END_TEST

/* Hundreds of attempts end in the longest back-off, not in a number that overflows. */
START_TEST(a_long_ladder_does_not_overflow)
{
    rig r = rig_manual(_i, START, NULL);
    player p;
    player_open(&p, r.s, always_fail);
    lapse_policy policy = {.attempts = 400,
                           .backoff_max = LAPSE_SECONDS(30),
                           .backoff_percent = 100000,
                           .jitter_percent = 100};
    handle(r.s, "q", &p, &policy);
    put(r.s, "q", "o", 0);
    run_for(&r, LAPSE_DAYS(3));
    ck_assert_uint_eq(tape_count(&p.ran), 400);
    for (size_t i = 2; i < 400; i++) {
        lapse_ns gap = p.ran.entries[i].now - p.ran.entries[i - 1].now;
        ck_assert_int_ge(gap, 0);
        ck_assert_int_le(gap, LAPSE_SECONDS(30) + r.tick);
    }
    player_close(&p);
    rig_close(&r);
}
END_TEST

/* -- P-76 ------------------------------------------------------------------------------ */

static void expect_spread_gaps(const tape *ran, lapse_ns tick)
{
    for (int k = 0; k < 4; k++) {
        lapse_ns gap = ran->entries[k + 1].now - ran->entries[k].now;
        ck_assert_int_ge(gap, LAPSE_MS(800) << k);
        ck_assert_int_le(gap, (LAPSE_MS(1200) << k) + tick);
    }
}

START_TEST(p76_retries_leave_air)
{
    rig r = rig_manual(_i, START, NULL);
    player failing, others;
    player_open(&failing, r.s, always_fail);
    player_open(&others, r.s, NULL);
    handle(r.s, "down", &failing, NULL);
    handle(r.s, "up", &others, NULL);
    put(r.s, "down", "f", 0);
    for (int i = 0; i < 30; i++) {
        char id[8];
        snprintf(id, sizeof id, "o%d", i);
        put(r.s, "up", id, LAPSE_SECONDS(i));
    }
    for (int i = 0; i < 1000; i++)
        ck_assert_int_le(lapse_process(r.s, 0), 2); /* Nothing spins while it waits. */
    run_for(&r, LAPSE_SECONDS(30));
    ck_assert_uint_eq(tape_count(&failing.ran), 5);
    expect_spread_gaps(&failing.ran, r.tick);
    ck_assert_uint_eq(tape_count(&others.ran), 30);
    for (size_t i = 0; i < 30; i++)
        ck_assert_int_le(others.ran.entries[i].late, r.tick);
    letter dead = only_letter(r.s);
    ck_assert_int_eq(dead.reason, LAPSE_REASON_FAILED);
    ck_assert_str_eq(dead.error, "gateway down");
    ck_assert_uint_eq(stats_of(r.s).started, 35);
    player_close(&failing);
    player_close(&others);
    rig_close(&r);
}
END_TEST

static int compare_times(const void *a, const void *b)
{
    const lapse_ns *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

START_TEST(p76_what_fails_together_is_not_retried_together)
{
    enum { TOGETHER = 1000 };
    static lapse_ns at[TOGETHER];
    rig r = rig_manual(_i, START, NULL);
    player p;
    player_open(&p, r.s, always_fail);
    handle(r.s, "q", &p, &(lapse_policy){.attempts = 2});
    put_many(r.s, "q", "", TOGETHER, 0);
    run_for(&r, LAPSE_SECONDS(10));
    ck_assert_uint_eq(tape_count(&p.ran), 2 * TOGETHER);
    for (int i = 0; i < TOGETHER; i++)
        at[i] = p.ran.entries[TOGETHER + i].now / LAPSE_MS(1);
    qsort(at, TOGETHER, sizeof *at, compare_times);
    int ticks = 1, same = 1, most = 1;
    for (int i = 1; i < TOGETHER; i++) {
        same = at[i] == at[i - 1] ? same + 1 : 1;
        most = same > most ? same : most;
        ticks += at[i] != at[i - 1];
    }
    ck_assert_int_ge(ticks, 300); /* Of the 400 in which they may come. */
    ck_assert_int_le(most, 15);
    player_close(&p);
    rig_close(&r);
}
END_TEST

/* -- Too late: P-77 --------------------------------------------------------------------- */

START_TEST(p77_overdue_runs_once_and_knows_how_late)
{
    rig r = rig_manual(_i, START, NULL);
    run_what_is_overdue(&r, 0);
    rig_close(&r);
}
END_TEST

/* A retry is due when it was asked for: it expires by that. */
START_TEST(p77_a_retry_has_a_due_time_of_its_own)
{
    rig r = rig_manual(_i, START, NULL);
    player p;
    player_open(&p, r.s, always_fail);
    lapse_policy policy = {.attempts = 3,
                           .expires = LAPSE_SECONDS(5),
                           .backoff = LAPSE_SECONDS(60),
                           .jitter_percent = -1};
    handle(r.s, "q", &p, &policy);
    put(r.s, "q", "o", 0);
    run_for(&r, LAPSE_SECONDS(61)); /* Long after it was due first. */
    ck_assert_uint_eq(tape_count(&p.ran), 2);
    ck_assert_int_le(p.ran.entries[1].late, r.tick);
    lapse_clock_advance(r.clock, LAPSE_HOURS(1));
    advance(&r, 0);
    ck_assert_uint_eq(tape_count(&p.ran), 2);
    letter dead = only_letter(r.s);
    ck_assert_int_eq(dead.reason, LAPSE_REASON_EXPIRED);
    ck_assert_int_eq(dead.attempt, 2);
    player_close(&p);
    rig_close(&r);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("attempts");
    TCase *group = add_group(suite, "attempts");
    ADD_FOR_ENGINES(group, attempts_are_used_up);
    ADD_FOR_ENGINES(group, a_retry_that_is_asked_for_uses_up_an_attempt_too);
    ADD_FOR_ENGINES(group, what_is_given_back_does_not_count);
    ADD_FOR_ENGINES(group, a_policy_is_for_the_handlers_orders_only);
    ADD_FOR_ENGINES(group, the_ladder_is_what_the_policy_says);
    ADD_FOR_ENGINES(group, a_long_ladder_does_not_overflow);
    ADD_FOR_ENGINES(group, p76_retries_leave_air);
    ADD_FOR_ENGINES(group, p76_what_fails_together_is_not_retried_together);
    group = add_group(suite, "too late");
    ADD_FOR_ENGINES(group, p77_overdue_runs_once_and_knows_how_late);
    ADD_FOR_ENGINES(group, p77_a_retry_has_a_due_time_of_its_own);
    return run_suite(suite);
}
