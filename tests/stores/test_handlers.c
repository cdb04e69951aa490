/* test_handlers.c - every store: handlers, verdicts, policies, pauses, rates.
 * P-24, P-27, P-28, P-63, P-75 to P-77.
 *
 * A handler runs the orders of its queue as its policy says, and its verdict is what
 * happens to them. */
/* tiers: small full */
/* servers */
#include "cases/alike.h"
#include "stores/stores.h"

#include <inttypes.h>
#include <stdlib.h>

/* -- Verdicts ------------------------------------------------------------------------------- */

START_TEST(a_handler_runs_the_orders_of_its_queue)
{
    rig r = fresh(_i, NULL);
    player p, other;
    player_open(&p, r.s, NULL);
    player_open(&other, r.s, NULL);
    put(r.s, "q", "before", LAPSE_MS(10));
    handle(r.s, "q", &p, NULL);
    handle(r.s, NULL, &other, NULL);
    put(r.s, "q", "after", LAPSE_MS(20));
    put(r.s, "", "without a name", LAPSE_MS(15));
    put(r.s, "nobody's", "left alone", 0);
    advance(&r, LAPSE_MS(10) - 1);
    ck_assert_uint_eq(tape_count(&p.ran), 0);
    advance(&r, 1);
    ck_assert_uint_eq(tape_runs(&p.ran, "before"), 1);
    advance(&r, LAPSE_MS(10));
    ck_assert_uint_eq(tape_runs(&p.ran, "after"), 1);
    ck_assert_uint_eq(tape_runs(&other.ran, "without a name"), 1);
    expect_state(r.s, "left alone", LAPSE_STATE_PENDING);
    ck_assert_int_eq(p.ran.entries[0].late, 0);
    ck_assert_uint_eq(stats_of(r.s).done, 3);
    expect_books(r.s);
    player_close(&p);
    player_close(&other);
    rig_close(&r);
}
END_TEST

static lapse_verdict say_by_id(const lapse_order *order)
{
    switch (order->id[0]) {
    case 'd':
        return LAPSE_DONE;
    case 'r':
        return order->attempt < 3 ? lapse_retry(order, LAPSE_SECONDS(5), "no route") : 0;
    case 'j':
        return lapse_reject(order, "no such order");
    case 'f':
        return order->attempt < 2 ? lapse_fail(order, "gateway down") : LAPSE_DONE;
    case 'g':
        return order->late < LAPSE_SECONDS(3) ? LAPSE_GIVE_BACK : LAPSE_DONE;
    default:
        return (lapse_verdict)77; /* As a failure. */
    }
}

struct errors {
    int count;
    char last[200];
};

static void note_error(void *hook_arg, const lapse_order *order, const char *error)
{
    struct errors *e = hook_arg;
    e->count++;
    snprintf(e->last, sizeof e->last, "%s: %s", order->id, error);
}

START_TEST(a_verdict_is_what_happens)
{
    struct errors errors = {0};
    lapse_options options = {.hook_arg = &errors, .on_error = note_error};
    rig r = fresh(_i, &options);
    player p;
    player_open(&p, r.s, say_by_id);
    handle(r.s, "q", &p, &(lapse_policy){.jitter_percent = -1});
    const char *const ids[] = {"done", "retry", "ject", "fail"};
    for (int i = 0; i < 4; i++)
        put(r.s, "q", ids[i], LAPSE_MS(1));
    advance(&r, LAPSE_MS(1));
    ck_assert_uint_eq(tape_count(&p.ran), 4);
    expect_state(r.s, "done", 0);
    expect_state(r.s, "retry", LAPSE_STATE_PENDING);
    letter dead = only_letter(r.s);
    ck_assert_str_eq(dead.id, "ject");
    ck_assert_int_eq(dead.reason, LAPSE_REASON_REJECTED);
    ck_assert_str_eq(dead.error, "no such order");
    ck_assert_int_eq(errors.count, 1);
    ck_assert_str_eq(errors.last, "fail: gateway down");
    advance(&r, LAPSE_SECONDS(1) - 1);
    ck_assert_uint_eq(tape_runs(&p.ran, "fail"), 1);
    advance(&r, 1);
    ck_assert_uint_eq(tape_runs(&p.ran, "fail"), 2);
    advance(&r, LAPSE_SECONDS(4) - 1);
    ck_assert_uint_eq(tape_runs(&p.ran, "retry"), 1);
    advance(&r, 1);
    ck_assert_uint_eq(tape_runs(&p.ran, "retry"), 2);
    advance(&r, LAPSE_SECONDS(5));
    ck_assert_uint_eq(tape_runs(&p.ran, "retry"), 3);
    lapse_stats t = stats_of(r.s);
    ck_assert_uint_eq(t.done, 3);
    ck_assert_uint_eq(t.retried, 3);
    ck_assert_uint_eq(t.failed, 1);
    ck_assert_uint_eq(t.rejected, 1);
    expect_books(r.s);
    player_close(&p);
    rig_close(&r);
}
END_TEST

START_TEST(what_is_given_back_does_not_count)
{
    rig r = fresh(_i, NULL);
    player p;
    player_open(&p, r.s, say_by_id);
    handle(r.s, "q", &p, &(lapse_policy){.attempts = 2});
    put(r.s, "q", "g", LAPSE_MS(1));
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(advance_once(&r, LAPSE_MS(1)), 1);
    ck_assert_int_eq(advance_once(&r, LAPSE_SECONDS(3)), 1);
    ck_assert_uint_eq(tape_count(&p.ran), 4);
    for (int i = 0; i < 4; i++)
        ck_assert_int_eq(p.ran.entries[i].attempt, 1);
    for (int i = 1; i < 4; i++)
        ck_assert_int_gt(p.ran.entries[i].fence, p.ran.entries[i - 1].fence);
    ck_assert_uint_eq(stats_of(r.s).given_back, 3);
    ck_assert_uint_eq(stats_of(r.s).done, 1);
    expect_books(r.s);
    player_close(&p);
    rig_close(&r);
}
END_TEST

START_TEST(p28_an_unknown_verdict_is_a_failure)
{
    rig r = fresh(_i, NULL);
    player p;
    player_open(&p, r.s, say_by_id);
    handle(r.s, "q", &p, &(lapse_policy){.attempts = 1});
    put(r.s, "q", "unknown", 0);
    advance(&r, LAPSE_MS(1));
    ck_assert_int_eq(only_letter(r.s).reason, LAPSE_REASON_FAILED);
    ck_assert_uint_eq(stats_of(r.s).failed, 1);
    player_close(&p);
    rig_close(&r);
}
END_TEST

/* -- Attempts and back-off ------------------------------------------------------------------- */

START_TEST(the_ladder_is_what_the_policy_says)
{
    const lapse_ns gaps[] = {LAPSE_MS(500), LAPSE_MS(1500), LAPSE_SECONDS(3), LAPSE_SECONDS(3),
                             LAPSE_SECONDS(3)};
    lapse_policy policy = {.attempts = 6,
                           .backoff = LAPSE_MS(500),
                           .backoff_percent = 300,
                           .backoff_max = LAPSE_SECONDS(3),
                           .jitter_percent = -1};
    rig r = fresh(_i, NULL);
    player p;
    player_open(&p, r.s, always_fail);
    handle(r.s, "q", &p, &policy);
    put(r.s, "q", "o", LAPSE_MS(1));
    run_for(&r, LAPSE_SECONDS(15));
    ck_assert_uint_eq(tape_count(&p.ran), 6);
    for (int i = 0; i < 6; i++) {
        ck_assert_int_eq(p.ran.entries[i].attempt, i + 1);
        ck_assert_int_eq(p.ran.entries[i].generation, p.ran.entries[0].generation);
        if (i > 0)
            ck_assert_int_eq(p.ran.entries[i].now - p.ran.entries[i - 1].now, gaps[i - 1]);
    }
    letter dead = only_letter(r.s);
    ck_assert_int_eq(dead.reason, LAPSE_REASON_FAILED);
    ck_assert_int_eq(dead.attempt, 6);
    ck_assert_str_eq(dead.error, "gateway down");
    expect_books(r.s);
    player_close(&p);
    rig_close(&r);
}
END_TEST

START_TEST(p76_retries_leave_air)
{
    rig r = fresh(_i, NULL);
    player p;
    player_open(&p, r.s, always_fail);
    handle(r.s, "q", &p, NULL);
    put_batch(r.s, "q", "f", 50, LAPSE_MS(1));
    run_for(&r, LAPSE_SECONDS(20));
    ck_assert_uint_eq(tape_count(&p.ran), 250);
    lapse_ns last[50] = {0};
    int spread = 0;
    for (int i = 0; i < 250; i++) {
        const tape_entry *e = &p.ran.entries[i];
        int n = atoi(e->id + 1);
        if (e->attempt > 1) {
            lapse_ns gap = e->now - last[n], base = LAPSE_SECONDS(1) << (e->attempt - 2);
            ck_assert_int_ge(gap, base * 8 / 10);
            ck_assert_int_le(gap, base * 12 / 10 + r.tick);
            spread += gap / LAPSE_MS(1) != base / LAPSE_MS(1);
        }
        last[n] = e->now;
    }
    ck_assert_int_ge(spread, 150); /* Not all on one beat. */
    ck_assert_uint_eq(stats_of(r.s).dead_by[LAPSE_REASON_FAILED], 50);
    expect_books(r.s);
    player_close(&p);
    rig_close(&r);
}
END_TEST

START_TEST(p76_a_permanent_error_is_not_retried)
{
    rig r = fresh(_i, NULL);
    player p;
    player_open(&p, r.s, always_reject);
    handle(r.s, "q", &p, NULL);
    put(r.s, "q", "o", 0);
    run_for(&r, LAPSE_SECONDS(20));
    ck_assert_uint_eq(tape_count(&p.ran), 1);
    ck_assert_int_eq(only_letter(r.s).attempt, 1);
    ck_assert_int_eq(only_letter(r.s).reason, LAPSE_REASON_REJECTED);
    ck_assert_uint_eq(stats_of(r.s).retried, 0);
    player_close(&p);
    rig_close(&r);
}
END_TEST

/* A host begins and never settles: its losses are attempts, as many as the policy says. */
START_TEST(p63_lost_workers_count_as_attempts_of_the_policy)
{
    rig r = fresh(_i, NULL);
    lapse_policy policy = {.attempts = 3, .run_limit = LAPSE_SECONDS(10)};
    ck_assert_int_eq(lapse_handle(r.s, "q", never, NULL, NULL, &policy), 0);
    put(r.s, "q", "poison", 0);
    put_batch(r.s, "q", "g", 20, 0);
    int deliveries = 0, done = 0;
    int64_t fences[20];
    for (int i = 0; i < 20; i++) {
        const lapse_order *order;
        lapse_callback fn;
        void *arg;
        ck_assert_int_eq(lapse_clock_advance(r.clock, LAPSE_SECONDS(11)), 0);
        while (lapse_begin(r.s, LAPSE_FOREVER, &order, &fn, &arg) == 1)
            if (strcmp(order->id, "poison") == 0) {
                fences[deliveries++] = order->fence;
                ck_assert_int_eq(order->attempt, deliveries);
            } else {
                settle(r.s, order->fence, LAPSE_DONE);
                done++;
            }
    }
    ck_assert_int_eq(deliveries, 3);
    ck_assert_int_eq(done, 20);
    letter dead = only_letter(r.s);
    ck_assert_int_eq(dead.reason, LAPSE_REASON_LOST);
    ck_assert_int_eq(dead.attempt, 3);
    if (!(lapse_abilities(r.s) & LAPSE_CAN_DURABLE)) /* Else who claims it next may count it. */
        ck_assert_uint_eq(stats_of(r.s).lost, 3);
    expect_books(r.s);
    for (int i = 0; i < 3; i++) /* They were slow, not dead. */
        ck_assert_int_eq(lapse_settle(r.s, fences[i], LAPSE_DONE, 0, NULL), LAPSE_ESTALE);
    rig_close(&r);
}
END_TEST

/* P-59: a callback that goes on is renewed past the lease, up to its run limit. */
START_TEST(p59_a_running_callback_is_renewed)
{
    lapse_options options = {.lease = LAPSE_MINUTES(1)};
    rig r = fresh(_i, &options);
    const lapse_order *order, *other;
    lapse_callback fn;
    void *arg;
    lapse_policy policy = {.run_limit = LAPSE_MINUTES(30)};
    ck_assert_int_eq(lapse_handle(r.s, "q", never, NULL, NULL, &policy), 0);
    put(r.s, "q", "o", 0);
    ck_assert_int_eq(lapse_clock_advance(r.clock, LAPSE_MS(1)), 0);
    ck_assert_int_eq(lapse_begin(r.s, LAPSE_FOREVER, &order, &fn, &arg), 1);
    for (int i = 0; i < 29; i++) {
        ck_assert_int_eq(lapse_clock_advance(r.clock, LAPSE_MINUTES(1)), 0);
        ck_assert_int_eq(lapse_begin(r.s, LAPSE_FOREVER, &other, &fn, &arg), 0);
        ck_assert(lapse_holds(r.s, order->fence));
    }
    settle(r.s, order->fence, LAPSE_DONE);
    ck_assert_uint_eq(stats_of(r.s).lost, 0);
    ck_assert_uint_eq(stats_of(r.s).done, 1);
    rig_close(&r);
}
END_TEST

/* -- Too late: P-77 ------------------------------------------------------------------------------ */

START_TEST(p77_overdue_runs_once_and_knows_how_late)
{
    rig r = fresh(_i, NULL);
    run_what_is_overdue(&r, r.tick);
    rig_close(&r);
}
END_TEST

START_TEST(p77_dropped_only_on_request_and_reported)
{
    static letters told;
    told.count = 0;
    lapse_options options = {.hook_arg = &told, .on_dead = keep_letter};
    rig r = fresh(_i, &options);
    player p, patient;
    player_open(&p, r.s, NULL);
    player_open(&patient, r.s, NULL);
    handle(r.s, "q", &p, &(lapse_policy){.expires = LAPSE_SECONDS(5)});
    handle(r.s, "patient", &patient, NULL);
    put(r.s, "q", "too late", LAPSE_SECONDS(10) - LAPSE_MS(1));
    put(r.s, "q", "just in time", LAPSE_SECONDS(10));
    put(r.s, "patient", "late", LAPSE_SECONDS(1));
    lapse_clock_advance(r.clock, LAPSE_SECONDS(15));
    advance(&r, 0);
    ck_assert_uint_eq(tape_count(&p.ran), 1);
    ck_assert_str_eq(p.ran.entries[0].id, "just in time");
    ck_assert_int_eq(p.ran.entries[0].late, LAPSE_SECONDS(5));
    ck_assert_uint_eq(tape_count(&patient.ran), 1);
    ck_assert_int_eq(told.count, 1);
    ck_assert_str_eq(told.list[0].id, "too late");
    ck_assert_int_eq(told.list[0].reason, LAPSE_REASON_EXPIRED);
    ck_assert_int_eq(told.list[0].attempt, 0); /* It was never delivered. */
    ck_assert_uint_eq(stats_of(r.s).dead_by[LAPSE_REASON_EXPIRED], 1);
    ck_assert_uint_eq(stats_of(r.s).started, 2);
    expect_books(r.s);
    player_close(&p);
    player_close(&patient);
    rig_close(&r);
}
END_TEST

/* -- Pause ---------------------------------------------------------------------------------------- */

START_TEST(a_paused_queue_starts_nothing)
{
    rig r = fresh(_i, NULL);
    player p, other;
    player_open(&p, r.s, NULL);
    player_open(&other, r.s, NULL);
    handle(r.s, "q", &p, NULL);
    handle(r.s, "other", &other, NULL);
    ck_assert_int_eq(lapse_pause(r.s, "q"), 0);
    ck_assert_int_eq(lapse_pause(r.s, "q"), 0); /* Once is enough. */
    ck_assert(queue_stats(r.s, "q").paused);
    for (int i = 1; i <= 4; i++)
        put(r.s, "q", (const char *[]){"", "1", "2", "3", "4"}[i], LAPSE_MS(i));
    put(r.s, "other", "other", LAPSE_MS(2));
    advance(&r, LAPSE_SECONDS(10));
    ck_assert_uint_eq(tape_count(&p.ran), 0);
    ck_assert_uint_eq(tape_count(&other.ran), 1);
    if (lapse_abilities(r.s) & LAPSE_CAN_LIST)
        ck_assert_int_eq(queue_stats(r.s, "q").oldest_due, LAPSE_SECONDS(10) - LAPSE_MS(1));
    if (lapse_abilities(r.s) & LAPSE_CAN_CANCEL) {
        ck_assert_int_eq(lapse_cancel(r.s, "2", LAPSE_ANY), LAPSE_FATE_CANCELLED);
        ck_assert_int_eq(lapse_reschedule(r.s, "3", LAPSE_ANY, LAPSE_SECONDS(1)),
                         LAPSE_FATE_RESCHEDULED);
    }
    ck_assert_int_eq(lapse_resume(r.s, "q"), 0);
    advance(&r, 0);
    ck_assert_str_eq(p.ran.entries[0].id, "1");
    if (!(lapse_abilities(r.s) & LAPSE_CAN_CANCEL)) {
        ck_assert_uint_eq(tape_count(&p.ran), 4);
        player_close(&p);
        player_close(&other);
        rig_close(&r);
        return;
    }
    ck_assert_uint_eq(tape_count(&p.ran), 2);
    ck_assert_str_eq(p.ran.entries[1].id, "4");
    advance(&r, LAPSE_SECONDS(1));
    ck_assert_uint_eq(tape_count(&p.ran), 3);
    ck_assert_int_eq(p.ran.entries[2].attempt, 1);
    ck_assert_int_eq(lapse_resume(r.s, "q"), 0);
    expect_books(r.s);
    player_close(&p);
    player_close(&other);
    rig_close(&r);
}
END_TEST

START_TEST(takers_of_a_paused_queue_get_nothing)
{
    rig r = fresh(_i, NULL);
    put(r.s, "q", "running", LAPSE_MS(1));
    put(r.s, "q", "waiting", LAPSE_MS(2));
    advance(&r, LAPSE_MS(3));
    int64_t fence = poll_one(r.s, "q", "running")->fence;
    ck_assert_int_eq(lapse_pause(r.s, "q"), 0);
    expect_nothing(r.s, "q");
    expect_nothing(r.s, NULL);
    ck_assert(lapse_holds(r.s, fence)); /* What runs goes on. */
    settle(r.s, fence, LAPSE_GIVE_BACK);
    expect_nothing(r.s, "q");
    ck_assert_int_eq(lapse_resume(r.s, "q"), 0);
    poll_one(r.s, NULL, "running");
    poll_one(r.s, "q", "waiting");
    rig_close(&r);
}
END_TEST

START_TEST(resume_wakes_the_workers)
{
    rig r = fresh_real(_i, NULL);
    player p;
    player_open(&p, r.s, NULL);
    handle(r.s, "q", &p, NULL);
    ck_assert_int_eq(lapse_pause(r.s, "q"), 0);
    put_batch(r.s, "q", "", 10, 0);
    ck_assert_int_eq(lapse_start(r.s, 2), 0);
    expect_state(r.s, "5", LAPSE_STATE_PENDING);
    ck_assert_uint_eq(tape_count(&p.ran), 0);
    ck_assert_int_eq(lapse_resume(r.s, "q"), 0);
    ck_assert(tape_wait(&p.ran, 10));
    player_close(&p);
    rig_close(&r);
}
END_TEST

/* -- Rates: P-75 ------------------------------------------------------------------------------------ */

/* No second saw more starts than 1.05 times the rate. */
static void expect_rate(const tape *ran, int rate)
{
    size_t first = 0;
    for (size_t i = 0; i < ran->count; i++) {
        while (ran->entries[first].now <= ran->entries[i].now - LAPSE_SECONDS(1))
            first++;
        ck_assert_int_le((int)(i - first + 1), rate + rate / 20 + 1);
    }
}

START_TEST(p75_a_rate_holds_and_is_used_up)
{
    enum { RATE = 100, COUNT = 300 };
    rig r = fresh(_i, NULL);
    player p;
    player_open(&p, r.s, NULL);
    put_batch(r.s, "q", "o", COUNT, 0);
    ck_assert_int_eq(lapse_clock_advance(r.clock, LAPSE_HOURS(1)), 0);
    handle(r.s, "q", &p, &(lapse_policy){.rate = RATE});
    lapse_ns begin = lapse_now(r.s);
    for (int i = 0; i < 2000 && tape_count(&p.ran) < COUNT; i++)
        advance(&r, LAPSE_MS(10));
    ck_assert_uint_eq(tape_count(&p.ran), COUNT);
    expect_rate(&p.ran, RATE);
    ck_assert_int_le(lapse_now(r.s) - begin, LAPSE_MS(3200));
    ck_assert_int_ge(lapse_now(r.s) - begin, LAPSE_MS(2000));
    expect_books(r.s);
    player_close(&p);
    rig_close(&r);
}
END_TEST

/* While there is a backlog, one start in four goes to the newest, which is not held up. */
START_TEST(p75_new_orders_have_their_share)
{
    STORE_NEEDS(_i, LAPSE_CAN_LIST); /* Another knows the first of a queue only. */
    enum { RATE = 100, OLD = 300, NEW = 30 };
    rig r = fresh(_i, NULL);
    player p;
    char id[16];
    player_open(&p, r.s, NULL);
    for (int i = 0; i < OLD; i++) {
        snprintf(id, sizeof id, "old%d", i);
        put(r.s, "q", id, LAPSE_MS(i + 1));
    }
    ck_assert_int_eq(lapse_clock_advance(r.clock, LAPSE_HOURS(1)), 0);
    handle(r.s, "q", &p, &(lapse_policy){.rate = RATE});
    for (int i = 0; i < NEW; i++) { /* Ten new ones a second. */
        snprintf(id, sizeof id, "new%d", i);
        put(r.s, "q", id, 0);
        for (int step = 0; step < 10; step++)
            advance(&r, LAPSE_MS(10));
    }
    while (tape_count(&p.ran) < OLD + NEW)
        advance(&r, LAPSE_MS(10));
    expect_rate(&p.ran, RATE);
    int old = 0;
    for (size_t i = 0; i < p.ran.count; i++) {
        const tape_entry *e = &p.ran.entries[i];
        if (e->id[0] == 'n')
            ck_assert_int_le(e->late, LAPSE_MS(300));
        else if (e->late > LAPSE_SECONDS(1)) { /* Oldest first, but for that share. */
            int n = atoi(e->id + 3);
            old += n == old;
        }
    }
    ck_assert_int_ge(old, OLD / 4);
    expect_books(r.s);
    player_close(&p);
    rig_close(&r);
}
END_TEST

/* Beyond its rate nothing is held: others could run it, and stop finds all of it. */
START_TEST(p75_stop_while_catching_up_loses_nothing)
{
    enum { COUNT = 500 };
    rig r = fresh(_i, NULL);
    player p;
    player_open(&p, r.s, NULL);
    put_batch(r.s, "q", "o", COUNT, 0);
    ck_assert_int_eq(lapse_clock_advance(r.clock, LAPSE_HOURS(1)), 0);
    handle(r.s, "q", &p, &(lapse_policy){.rate = 100});
    for (int i = 0; i < 10; i++)
        advance(&r, LAPSE_MS(100));
    ck_assert_int_eq(lapse_stop(r.s), 0);
    uint64_t ran = tape_count(&p.ran);
    ck_assert_uint_ge(ran, 50);
    ck_assert_uint_le(ran, 150);
    lapse_stats t = stats_of(r.s);
    ck_assert_uint_eq(t.pending, COUNT - ran);
    ck_assert_uint_eq(t.running, 0);
    ck_assert_uint_eq(t.done, ran);
    expect_books(r.s);
    player_close(&p);
    rig_close(&r);
}
END_TEST

/* -- Replaced and removed ----------------------------------------------------------------------------- */

START_TEST(handlers_are_replaced_and_removed)
{
    rig r = fresh(_i, NULL);
    player first, second;
    atomic_int released = 0;
    player_open(&first, r.s, NULL);
    player_open(&second, r.s, NULL);
    handle(r.s, "q", &first, NULL);
    put(r.s, "q", "a", LAPSE_MS(1));
    advance(&r, LAPSE_MS(1));
    ck_assert_int_eq(lapse_handle(r.s, "q", count_run, &released, count_release, NULL), 0);
    handle(r.s, "q", &second, NULL);
    ck_assert_int_eq(atomic_load(&released), 1);
    put(r.s, "q", "b", LAPSE_MS(1));
    advance(&r, LAPSE_MS(1));
    ck_assert_int_eq(lapse_handle(r.s, "q", NULL, NULL, NULL, NULL), 0);
    put(r.s, "q", "c", LAPSE_MS(1));
    advance(&r, LAPSE_MS(1));
    ck_assert_uint_eq(tape_runs(&first.ran, "a"), 1);
    ck_assert_uint_eq(tape_runs(&second.ran, "b"), 1);
    ck_assert_uint_eq(tape_count(&second.ran), 1);
    expect_state(r.s, "c", LAPSE_STATE_PENDING);
    finish_one(r.s, NULL, "c"); /* For a taker. */
    expect_books(r.s);
    player_close(&first);
    player_close(&second);
    rig_close(&r);
}
END_TEST

START_TEST(policies_have_ranges)
{
    rig r = fresh(_i, NULL);
    const lapse_policy bad[] = {
        {.attempts = -1},         {.backoff = -1},
        {.backoff_max = -1},      {.backoff_percent = -1},
        {.jitter_percent = 101},  {.run_limit = -1},
        {.expires = -1},          {.stuck_after = -1},
        {.run_limit = INT64_MAX}, {.expires = LAPSE_DELAY_MAX + 1},
        {.backoff = INT64_MAX},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        int result = lapse_handle(r.s, "q", never, NULL, NULL, &bad[i]);
        ck_assert_msg(result == LAPSE_EINVAL || result == LAPSE_ERANGE, "policy %zu: %d", i,
                      result);
        ck_assert_uint_gt(strlen(lapse_error_detail()), 10);
    }
    put(r.s, "q", "o", 0);
    advance(&r, LAPSE_MS(1));
    finish_one(r.s, "q", "o"); /* No handler came of it. */
    rig_close(&r);
}
END_TEST

static void fill_suite(Suite *suite)
{
    TCase *group = add_group(suite, "verdicts");
    ADD_FOR_STORES(group, a_handler_runs_the_orders_of_its_queue);
    ADD_FOR_STORES(group, a_verdict_is_what_happens);
    ADD_FOR_STORES(group, what_is_given_back_does_not_count);
    ADD_FOR_STORES(group, p28_an_unknown_verdict_is_a_failure);
    group = add_group(suite, "attempts");
    ADD_FOR_STORES(group, the_ladder_is_what_the_policy_says);
    ADD_FOR_STORES(group, p76_retries_leave_air);
    ADD_FOR_STORES(group, p76_a_permanent_error_is_not_retried);
    ADD_FOR_STORES(group, p63_lost_workers_count_as_attempts_of_the_policy);
    ADD_FOR_STORES(group, p59_a_running_callback_is_renewed);
    group = add_group(suite, "overdue");
    ADD_FOR_STORES(group, p77_overdue_runs_once_and_knows_how_late);
    ADD_FOR_STORES(group, p77_dropped_only_on_request_and_reported);
    group = add_group(suite, "pauses and rates");
    ADD_FOR_STORES(group, a_paused_queue_starts_nothing);
    ADD_FOR_STORES(group, takers_of_a_paused_queue_get_nothing);
    ADD_FOR_STORES(group, resume_wakes_the_workers);
    ADD_FOR_STORES(group, p75_a_rate_holds_and_is_used_up);
    ADD_FOR_STORES(group, p75_new_orders_have_their_share);
    ADD_FOR_STORES(group, p75_stop_while_catching_up_loses_nothing);
    group = add_group(suite, "handlers");
    ADD_FOR_STORES(group, handlers_are_replaced_and_removed);
    ADD_FOR_STORES(group, policies_have_ranges);
}

int main(void)
{
    return stores_main("handlers", fill_suite);
}
