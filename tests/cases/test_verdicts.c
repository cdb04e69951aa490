/* test_verdicts.c - take and settle, verdicts, what is remembered, and the books.
 *
 * A claim is ended once, by its fence. What a verdict asks for happens, unless the order
 * was cancelled or scheduled anew meanwhile. After any run the statistics add up. */
/* tiers: quick full soak */
#include "alike.h"

#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* -- Verdicts of a callback ---------------------------------------------------------- */

static void schedule_script(rig *r, player *script, lapse_verdict (*say)(const lapse_order *order))
{
    player_open(script, r->s, say);
    ck_assert_int_gt(lapse_schedule(r->s, "o", LAPSE_SECONDS(1), play, script), 0);
    advance(r, LAPSE_SECONDS(1));
    ck_assert_uint_eq(tape_count(&script->ran), 1);
}

static lapse_verdict retry_twice(const lapse_order *order)
{
    return order->attempt < 3 ? lapse_retry(order, LAPSE_SECONDS(5), "no route") : LAPSE_DONE;
}

START_TEST(retry_by_request)
{
    rig r = rig_manual(_i, START, NULL);
    player script;
    schedule_script(&r, &script, retry_twice);
    for (size_t attempt = 2; attempt <= 3; attempt++) {
        expect_next_in(&r, &script.ran, attempt - 1, LAPSE_SECONDS(5));
        const tape_entry *e = &script.ran.entries[attempt - 1];
        ck_assert_int_eq(e->attempt, (int)attempt);
        ck_assert_int_eq(e->generation, e[-1].generation);
        ck_assert_int_gt(e->fence, e[-1].fence);
    }
    advance(&r, LAPSE_HOURS(3));
    ck_assert_uint_eq(tape_count(&script.ran), 3);
    ck_assert_uint_eq(stats_of(r.s).retried, 2);
    ck_assert_uint_eq(stats_of(r.s).done, 1);
    player_close(&script);
    rig_close(&r);
}
END_TEST

static lapse_verdict retry_by_policy(const lapse_order *order)
{
    return order->attempt < 3 ? LAPSE_RETRY : LAPSE_DONE;
}

START_TEST(retry_without_a_delay_backs_off)
{
    rig r = rig_manual(_i, START, NULL);
    player script;
    schedule_script(&r, &script, retry_by_policy);
    advance(&r, LAPSE_MS(500));
    ck_assert_uint_eq(tape_count(&script.ran), 1); /* Not at once. */
    for (int i = 0; i < 100; i++)
        advance(&r, LAPSE_MS(100));
    ck_assert_uint_eq(tape_count(&script.ran), 3);
    lapse_ns first = script.ran.entries[1].now - script.ran.entries[0].now;
    lapse_ns second = script.ran.entries[2].now - script.ran.entries[1].now;
    ck_assert_int_ge(first, LAPSE_MS(700));
    ck_assert_int_gt(second, first);
    player_close(&script);
    rig_close(&r);
}
END_TEST

static lapse_verdict retry_then_look(const lapse_order *order)
{
    return order->attempt < 2 ? lapse_retry(order, LAPSE_SECONDS(60), NULL) : LAPSE_DONE;
}

START_TEST(an_order_that_waits_for_its_retry_is_pending)
{
    rig r = rig_manual(_i, START, NULL);
    player script;
    schedule_script(&r, &script, retry_then_look);
    lapse_info info;
    ck_assert_int_eq(lapse_get(r.s, "o", &info), 0);
    ck_assert_int_eq(info.state, LAPSE_STATE_PENDING);
    ck_assert_int_eq(info.attempt, 1);
    lapse_info_free(&info);
    ck_assert_int_eq(lapse_reschedule(r.s, "o", LAPSE_ANY, LAPSE_SECONDS(1)),
                     LAPSE_FATE_RESCHEDULED);
    advance(&r, LAPSE_SECONDS(1));
    ck_assert_uint_eq(tape_count(&script.ran), 2);
    player_close(&script);
    schedule_script(&r, &script, retry_then_look);
    ck_assert_int_eq(lapse_cancel(r.s, "o", LAPSE_ANY), LAPSE_FATE_CANCELLED);
    advance(&r, LAPSE_HOURS(1));
    ck_assert_uint_eq(tape_count(&script.ran), 1);
    player_close(&script);
    rig_close(&r);
}
END_TEST

START_TEST(reject_makes_a_dead_letter_with_a_reason)
{
    rig r = rig_manual(_i, START, NULL);
    player script;
    schedule_script(&r, &script, always_reject);
    letter d = only_letter(r.s);
    ck_assert_int_eq(d.reason, LAPSE_REASON_REJECTED);
    ck_assert_str_eq(d.id, "o");
    ck_assert_str_eq(d.error, "no such order");
    ck_assert_int_eq(d.attempt, 1);
    ck_assert_int_gt(d.ended, LAPSE_DAYS(365 * 50)); /* UTC */
    lapse_info info;
    ck_assert_int_eq(lapse_get(r.s, "o", &info), 0);
    ck_assert_int_eq(info.state, LAPSE_STATE_DEAD);
    lapse_info_free(&info);
    ck_assert_uint_eq(stats_of(r.s).rejected, 1);
    ck_assert_uint_eq(stats_of(r.s).dead, 1);
    advance(&r, LAPSE_HOURS(3));
    ck_assert_uint_eq(tape_count(&script.ran), 1);
    player_close(&script);
    rig_close(&r);
}
END_TEST

static lapse_verdict give_back_once(const lapse_order *order)
{
    return order->late < LAPSE_SECONDS(1) ? LAPSE_GIVE_BACK : LAPSE_DONE;
}

START_TEST(give_back_does_not_count)
{
    rig r = rig_manual(_i, START, NULL);
    player script;
    player_open(&script, r.s, give_back_once);
    ck_assert_int_gt(lapse_schedule(r.s, "o", 0, play, &script), 0);
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(advance_once(&r, LAPSE_MS(2)), 1);
    ck_assert_uint_eq(pending_in(r.s), 1);
    ck_assert_int_eq(advance_once(&r, LAPSE_SECONDS(1)), 1);
    ck_assert_uint_eq(pending_in(r.s), 0);
    for (size_t i = 0; i < 4; i++)
        ck_assert_int_eq(script.ran.entries[i].attempt, 1);
    ck_assert_uint_eq(stats_of(r.s).given_back, 3);
    ck_assert_uint_eq(stats_of(r.s).done, 1);
    player_close(&script);
    rig_close(&r);
}
END_TEST

/* -- Poll, take, settle -------------------------------------------------------------- */

START_TEST(poll_yields_in_order_of_due_time)
{
    rig r = rig_manual(_i, START, NULL);
    put(r.s, NULL, "third", LAPSE_MS(30));
    put(r.s, NULL, "first", LAPSE_MS(10));
    put(r.s, "q", "second", LAPSE_MS(20));
    expect_nothing(r.s, NULL);
    advance(&r, LAPSE_MS(10));
    lapse_settle(r.s, poll_one(r.s, NULL, "first")->fence, LAPSE_DONE, 0, NULL);
    expect_nothing(r.s, NULL);
    advance(&r, LAPSE_MS(100));
    expect_nothing(r.s, "another queue");
    lapse_settle(r.s, poll_one(r.s, NULL, "second")->fence, LAPSE_DONE, 0, NULL);
    expect_nothing(r.s, "q");
    lapse_settle(r.s, poll_one(r.s, "", "third")->fence, LAPSE_DONE, 0, NULL);
    ck_assert_uint_eq(stats_of(r.s).done, 3);
    rig_close(&r);
}
END_TEST

START_TEST(take_leaves_orders_with_a_callback)
{
    rig r = rig_manual(_i, START, NULL);
    tape ran;
    tape_open(&ran, r.s);
    ck_assert_int_gt(lapse_schedule(r.s, "own", 0, tape_note, &ran), 0);
    put(r.s, NULL, "taken", 0);
    ck_assert_int_eq(lapse_clock_advance(r.clock, LAPSE_MS(1)), 0);
    const lapse_order *order = poll_one(r.s, NULL, "taken");
    expect_nothing(r.s, NULL);
    ck_assert_int_eq(lapse_process(r.s, 0), 1);
    ck_assert_uint_eq(tape_runs(&ran, "own"), 1);
    ck_assert_int_eq(lapse_settle(r.s, order->fence, LAPSE_DONE, 0, NULL), 0);
    tape_close(&ran);
    rig_close(&r);
}
END_TEST

START_TEST(a_claim_is_settled_once)
{
    rig r = rig_manual(_i, START, NULL);
    settle_a_claim_once(&r);
    rig_close(&r);
}
END_TEST

START_TEST(settle_retry_and_give_back)
{
    rig r = rig_manual(_i, START, NULL);
    retry_and_give_back_a_claim(&r);
    rig_close(&r);
}
END_TEST

START_TEST(what_a_cancelled_one_asks_for_does_not_happen)
{
    const lapse_verdict verdicts[] = {LAPSE_DONE, LAPSE_RETRY, LAPSE_REJECT, LAPSE_FAIL,
                                      LAPSE_GIVE_BACK};
    for (size_t v = 0; v < 5; v++) {
        lapse_options options = {.keep = LAPSE_HOURS(5)};
        rig r = rig_manual(_i, START, &options);
        put(r.s, NULL, "o", 0);
        advance(&r, LAPSE_MS(1));
        const lapse_order *order = poll_one(r.s, NULL, "o");
        ck_assert_int_eq(lapse_cancel(r.s, "o", LAPSE_ANY), LAPSE_FATE_RUNNING);
        ck_assert_int_eq(lapse_settle(r.s, order->fence, verdicts[v], 0, NULL), 0);
        ck_assert_uint_eq(pending_in(r.s), 0);
        ck_assert_uint_eq(stats_of(r.s).dead, 0);
        advance(&r, LAPSE_HOURS(2));
        expect_nothing(r.s, NULL);
        ck_assert_int_eq(lapse_cancel(r.s, "o", LAPSE_ANY), LAPSE_FATE_DONE);
        rig_close(&r);
    }
}
END_TEST

START_TEST(a_failing_taker_uses_up_the_attempts)
{
    rig r = rig_manual(_i, START, NULL);
    fail_until_dead(&r);
    rig_close(&r);
}
END_TEST

START_TEST(begin_and_settle_for_hosts)
{
    rig r = rig_manual(_i, START, NULL);
    atomic_int runs = 0;
    const lapse_order *order;
    lapse_callback fn;
    void *arg;
    ck_assert_int_gt(lapse_schedule(r.s, "now", 0, count_run, &runs), 0);
    ck_assert_int_gt(lapse_schedule(r.s, "later", LAPSE_MS(10), count_run, &runs), 0);
    ck_assert_int_eq(lapse_clock_advance(r.clock, LAPSE_MS(20)), 0);
    ck_assert_int_eq(lapse_wait(r.s, LAPSE_FOREVER), 1);
    ck_assert_int_eq(lapse_begin(r.s, START, &order, &fn, &arg), 1); /* Due by then. */
    ck_assert_str_eq(order->id, "now");
    ck_assert(fn == count_run && arg == &runs);
    ck_assert_int_eq(fn(order, arg), LAPSE_DONE);
    const lapse_order *other;
    ck_assert_int_eq(lapse_begin(r.s, START + LAPSE_MS(5), &other, &fn, &arg), 0);
    ck_assert_int_eq(lapse_settle(r.s, order->fence, LAPSE_DONE, 0, NULL), 0);
    ck_assert_int_eq(lapse_begin(r.s, LAPSE_FOREVER, &order, &fn, &arg), 1);
    ck_assert_str_eq(order->id, "later");
    ck_assert_int_eq(lapse_settle(r.s, order->fence, LAPSE_RETRY, LAPSE_MS(1), NULL), 0);
    ck_assert_int_eq(lapse_begin(r.s, LAPSE_FOREVER, &order, &fn, &arg), 0);
    ck_assert_int_eq(lapse_wait(r.s, 0), 0);
    ck_assert_int_eq(lapse_stop(r.s), 0);
    ck_assert_int_eq(lapse_begin(r.s, LAPSE_FOREVER, &order, &fn, &arg), LAPSE_ECLOSED);
    rig_close(&r);
}
END_TEST

enum { TAKERS = 6 };

struct takers {
    lapse *s;
    int count;
    atomic_int taken[2000];
    atomic_int total;
};

static void take_until_closed(void *arg, int number)
{
    struct takers *t = arg;
    const lapse_order *order;
    (void)number;
    for (;;) {
        int result = lapse_take(t->s, NULL, LAPSE_FOREVER, &order);
        if (result == LAPSE_ECLOSED)
            return;
        if (result != 1) {
            complain("lapse_take: %d", result);
            return;
        }
        atomic_fetch_add(&t->taken[atoi(order->id)], 1);
        if (order->late < 0)
            complain("%s came early", order->id);
        if (lapse_settle(t->s, order->fence, LAPSE_DONE, 0, NULL) != 0)
            complain("settle: %s", lapse_error_detail());
        atomic_fetch_add(&t->total, 1);
    }
}

START_TEST(each_order_is_taken_by_one)
{
    rig r = rig_real(_i, NULL);
    static struct takers t;
    memset(&t, 0, sizeof t);
    t.s = r.s;
    t.count = (int)tier(500, 2000, 2000);
    crew c;
    crew_start(&c, TAKERS, take_until_closed, &t);
    for (int i = 0; i < t.count; i++) {
        char id[8];
        snprintf(id, sizeof id, "%d", i);
        put(r.s, i % 3 == 0 ? "q" : NULL, id, LAPSE_US(100 * (i % 50)));
    }
    ck_assert(until_at_least(&t.total, t.count));
    ck_assert_int_eq(lapse_stop(r.s), 0);
    crew_join(&c);
    for (int i = 0; i < t.count; i++)
        ck_assert_int_eq(atomic_load(&t.taken[i]), 1);
    rig_close(&r);
}
END_TEST

/* Takers of one queue do not keep those of another from waking. */
struct one_queue {
    lapse *s;
    gate got[2];
};

static void take_one(void *arg, int number)
{
    struct one_queue *q = arg;
    const lapse_order *order;
    const char *name = number == 0 ? "a" : "b";
    if (lapse_take(q->s, name, LIMIT, &order) != 1 || strcmp(order->queue, name) != 0)
        complain("the taker of %s got nothing", name);
    else
        lapse_settle(q->s, order->fence, LAPSE_DONE, 0, NULL);
    gate_open(&q->got[number]);
}

START_TEST(takers_of_two_queues)
{
    for (int first = 0; first < 2; first++) {
        rig r = rig_real(_i, NULL);
        struct one_queue q = {.s = r.s};
        gate_init(&q.got[0]);
        gate_init(&q.got[1]);
        crew c;
        crew_start(&c, 2, take_one, &q);
        ck_assert(until_others_sleep());
        put(r.s, first == 0 ? "a" : "b", "1", LAPSE_MS(5));
        ck_assert(gate_pass(&q.got[first]));
        ck_assert(until_others_sleep());
        ck_assert(!gate_is_open(&q.got[1 - first]));
        put(r.s, first == 0 ? "b" : "a", "2", 0);
        ck_assert(gate_pass(&q.got[1 - first]));
        crew_join(&c);
        gate_destroy(&q.got[0]);
        gate_destroy(&q.got[1]);
        rig_close(&r);
    }
}
END_TEST

START_TEST(take_has_a_limit)
{
    rig r = rig_manual(_i, START, NULL);
    const lapse_order *order;
    lapse_ns start = boot_now();
    put(r.s, NULL, "o", LAPSE_HOURS(1));
    ck_assert_int_eq(lapse_take(r.s, NULL, 0, &order), 0);
    ck_assert_int_eq(lapse_take(r.s, NULL, -5, &order), 0);
    ck_assert_int_eq(lapse_take(r.s, NULL, LAPSE_MS(20), &order), 0); /* Real time. */
    ck_assert_int_ge(boot_now() - start, LAPSE_MS(20));
    rig_close(&r);
}
END_TEST

/* Claims that were taken and not settled are given back when it closes: released once. */
START_TEST(unsettled_claims_end_with_the_scheduler)
{
    rig r = rig_manual(_i, START, NULL);
    atomic_int released = 0;
    lapse_spec spec = {.id = "o", .arg = &released, .release = count_release};
    ck_assert_int_gt(lapse_put(r.s, &spec), 0);
    advance(&r, r.tick);
    poll_one(r.s, NULL, "o");
    rig_close(&r);
    ck_assert_int_eq(atomic_load(&released), 1);
}
END_TEST

/* -- Keep ---------------------------------------------------------------------------- */

START_TEST(what_ended_is_remembered_for_a_while)
{
    lapse_options options = {.keep = LAPSE_SECONDS(30)};
    rig r = rig_manual(_i, START, &options);
    tape ran;
    tape_open(&ran, r.s);
    ck_assert_int_gt(lapse_schedule(r.s, "o", LAPSE_SECONDS(1), tape_note, &ran), 0);
    advance(&r, LAPSE_SECONDS(1));
    for (int second = 0; second < 30; second++) {
        lapse_info info;
        ck_assert_int_eq(lapse_cancel(r.s, "o", LAPSE_ANY), LAPSE_FATE_DONE);
        ck_assert_int_eq(lapse_reschedule(r.s, "o", LAPSE_ANY, 0), LAPSE_FATE_DONE);
        ck_assert_int_eq(lapse_get(r.s, "o", &info), 0);
        ck_assert_int_eq(info.state, LAPSE_STATE_DONE);
        ck_assert_int_eq(info.remaining, 0);
        ck_assert_int_gt(info.ended, 0);
        lapse_info_free(&info);
        ck_assert_uint_eq(stats_of(r.s).kept, 1);
        advance(&r, LAPSE_SECONDS(1));
    }
    advance(&r, LAPSE_SECONDS(1));
    ck_assert_int_eq(lapse_cancel(r.s, "o", LAPSE_ANY), LAPSE_FATE_UNKNOWN);
    lapse_info info;
    ck_assert_int_eq(lapse_get(r.s, "o", &info), LAPSE_EUNKNOWN);
    tape_close(&ran);
    rig_close(&r);
}
END_TEST

START_TEST(without_keep_nothing_is_remembered)
{
    rig r = rig_manual(_i, START, NULL);
    tape ran;
    tape_open(&ran, r.s);
    ck_assert_int_gt(lapse_schedule(r.s, "o", LAPSE_SECONDS(1), tape_note, &ran), 0);
    advance(&r, LAPSE_SECONDS(1));
    ck_assert_int_eq(lapse_cancel(r.s, "o", LAPSE_ANY), LAPSE_FATE_UNKNOWN);
    ck_assert_uint_eq(stats_of(r.s).kept, 0);
    tape_close(&ran);
    rig_close(&r);
}
END_TEST

/* -- The books ------------------------------------------------------------------------ */

static void expect_balance(lapse *s)
{
    lapse_stats t = stats_of(s);
    ck_assert_uint_eq(t.scheduled,
                      t.done + t.cancelled + t.replaced + t.dead_total + t.pending + t.running);
    ck_assert_uint_eq(t.dead_total, t.dead + t.dead_dropped);
    ck_assert_int_le(t.late_p50, t.late_p99);
    ck_assert_int_le(t.late_p99, t.late_p999);
    ck_assert_int_ge(t.late_p50, 0);
}

enum { HELD = 16 };

struct book {
    rig r;
    rng luck;
    int64_t held[HELD]; /* fences; 0: none */
    uint64_t scheduled, refused, cancelled, rescheduled;
};

static lapse_verdict random_verdict(const lapse_order *order, void *arg)
{
    struct book *b = arg;
    switch (rng_next(&b->luck) % 6) {
    case 0:
        return lapse_retry(order, LAPSE_US(rng_range(&b->luck, 0, 3000)), "again");
    case 1:
        return lapse_reject(order, "odd");
    case 2:
        return LAPSE_FAIL;
    case 3:
        return LAPSE_GIVE_BACK;
    default:
        return LAPSE_DONE;
    }
}

static void schedule_random(struct book *b, const char *id)
{
    bool has_callback = rng_next(&b->luck) % 2 == 0;
    lapse_spec spec = {.id = id, .delay = LAPSE_US(rng_range(&b->luck, -5, 5000))};
    spec.fn = has_callback ? random_verdict : NULL;
    spec.arg = has_callback ? b : NULL;
    spec.flags = rng_next(&b->luck) % 4 == 0 ? LAPSE_REPLACE : 0;
    int64_t result = lapse_put(b->r.s, &spec);
    ck_assert(result > 0 || result == LAPSE_EEXISTS || result == LAPSE_EFULL);
    b->scheduled += result > 0;
    b->refused += result < 0;
}

static void poll_random(struct book *b)
{
    const lapse_order *order;
    int64_t *slot = &b->held[rng_next(&b->luck) % HELD];
    if (*slot == 0 && lapse_poll(b->r.s, NULL, &order) == 1)
        *slot = order->fence;
}

static void settle_random(struct book *b)
{
    int64_t *slot = &b->held[rng_next(&b->luck) % HELD];
    lapse_verdict verdict = (lapse_verdict)(rng_next(&b->luck) % 5);
    if (*slot != 0) {
        int result =
            lapse_settle(b->r.s, *slot, verdict, LAPSE_US(rng_range(&b->luck, 0, 3000)), NULL);
        ck_assert(result == 0 || result == LAPSE_ESTALE);
    }
    *slot = 0;
}

static void random_step(struct book *b)
{
    char id[8];
    snprintf(id, sizeof id, "%d", (int)rng_range(&b->luck, 0, 40));
    switch (rng_next(&b->luck) % 8) {
    case 0:
    case 1:
        schedule_random(b, id);
        break;
    case 2:
        b->cancelled += lapse_cancel(b->r.s, id, LAPSE_ANY) == LAPSE_FATE_CANCELLED;
        break;
    case 3:
        b->rescheduled +=
            lapse_reschedule(b->r.s, id, LAPSE_ANY, LAPSE_US(rng_range(&b->luck, 0, 5000))) ==
            LAPSE_FATE_RESCHEDULED;
        break;
    case 4:
        poll_random(b);
        break;
    case 5:
        settle_random(b);
        break;
    case 6:
        advance_once(&b->r, LAPSE_US(rng_range(&b->luck, 0, 2000)));
        break;
    default:
        ck_assert_int_ge(lapse_process(b->r.s, 3), 0);
        break;
    }
}

static bool count_visit(const lapse_info *info, void *arg)
{
    uint64_t *by_state = arg;
    by_state[info->state]++;
    return true;
}

static void expect_listing(lapse *s)
{
    uint64_t by_state[16] = {0};
    lapse_stats t = stats_of(s);
    lapse_each(s, 0, count_visit, by_state);
    ck_assert_uint_eq(by_state[LAPSE_STATE_PENDING], t.pending);
    ck_assert_uint_eq(by_state[LAPSE_STATE_RUNNING], t.running);
    ck_assert_uint_eq(by_state[LAPSE_STATE_DEAD], t.dead);
    ck_assert_uint_le(by_state[LAPSE_STATE_DONE], t.kept);
}

START_TEST(the_statistics_add_up)
{
    rng luck = rng_open("the_statistics_add_up");
    for (long round = 0; round < tier(20, 500, 20000); round++) {
        lapse_options options = {.max_pending = 25,
                                 .max_dead = 7,
                                 .overflow =
                                     round % 2 == 0 ? LAPSE_REFUSE : LAPSE_DEAD_LETTER_OLDEST,
                                 .keep = round % 3 == 0 ? LAPSE_MS(3) : 0};
        struct book b = {.r = rig_manual(_i, START, &options), .luck = {rng_next(&luck)}};
        for (int step = 0; step < 2000; step++)
            random_step(&b);
        lapse_stats t = stats_of(b.r.s);
        ck_assert_uint_eq(t.scheduled, b.scheduled);
        ck_assert_uint_eq(t.refused, b.refused);
        ck_assert_uint_eq(t.rescheduled, b.rescheduled);
        ck_assert_uint_ge(t.cancelled, b.cancelled);
        expect_balance(b.r.s);
        expect_listing(b.r.s);
        ck_assert_int_eq(lapse_stop(b.r.s), 0);
        expect_balance(b.r.s);
        expect_listing(b.r.s);
        rig_close(&b.r);
    }
}
END_TEST

START_TEST(lateness_is_measured)
{
    rig r = rig_manual(_i, START, NULL);
    atomic_int runs = 0;
    for (int i = 0; i < 1000; i++) {
        char id[8];
        snprintf(id, sizeof id, "%d", i);
        ck_assert_int_gt(lapse_schedule(r.s, id, LAPSE_MS(1000 - i), count_run, &runs), 0);
    }
    lapse_stats before = stats_of(r.s);
    ck_assert_int_eq(before.oldest_due, 0);
    ck_assert_int_eq(lapse_clock_advance(r.clock, LAPSE_MS(1000)), 0);
    ck_assert_int_eq(stats_of(r.s).oldest_due, LAPSE_MS(999));
    advance(&r, 0);
    lapse_stats t = stats_of(r.s);
    ck_assert_uint_eq(t.started, 1000);
    ck_assert_int_eq(t.late_max, LAPSE_MS(999));
    ck_assert_int_ge(t.late_p50, LAPSE_MS(500) - LAPSE_MS(500) / 16);
    ck_assert_int_le(t.late_p50, LAPSE_MS(500) + LAPSE_MS(500) / 16);
    ck_assert_int_ge(t.late_p99, LAPSE_MS(990) - LAPSE_MS(990) / 16);
    ck_assert_int_le(t.late_p99, LAPSE_MS(990) + LAPSE_MS(990) / 16);
    ck_assert_int_eq(t.poll_bound, 0);
    ck_assert_int_eq(t.oldest_due, 0);
    rig_close(&r);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("verdicts, pull, books");
    TCase *group = add_group(suite, "verdicts");
    ADD_FOR_ENGINES(group, retry_by_request);
    ADD_FOR_ENGINES(group, retry_without_a_delay_backs_off);
    ADD_FOR_ENGINES(group, an_order_that_waits_for_its_retry_is_pending);
    ADD_FOR_ENGINES(group, reject_makes_a_dead_letter_with_a_reason);
    ADD_FOR_ENGINES(group, give_back_does_not_count);
    group = add_group(suite, "take and settle");
    ADD_FOR_ENGINES(group, poll_yields_in_order_of_due_time);
    ADD_FOR_ENGINES(group, take_leaves_orders_with_a_callback);
    ADD_FOR_ENGINES(group, a_claim_is_settled_once);
    ADD_FOR_ENGINES(group, settle_retry_and_give_back);
    ADD_FOR_ENGINES(group, what_a_cancelled_one_asks_for_does_not_happen);
    ADD_FOR_ENGINES(group, a_failing_taker_uses_up_the_attempts);
    ADD_FOR_ENGINES(group, begin_and_settle_for_hosts);
    ADD_FOR_ENGINES(group, each_order_is_taken_by_one);
    ADD_FOR_ENGINES(group, takers_of_two_queues);
    ADD_FOR_ENGINES(group, take_has_a_limit);
    ADD_FOR_ENGINES(group, unsettled_claims_end_with_the_scheduler);
    group = add_group(suite, "keep");
    ADD_FOR_ENGINES(group, what_ended_is_remembered_for_a_while);
    ADD_FOR_ENGINES(group, without_keep_nothing_is_remembered);
    group = add_group(suite, "books");
    ADD_FOR_ENGINES(group, the_statistics_add_up);
    ADD_FOR_ENGINES(group, lateness_is_measured);
    return run_suite(suite);
}
