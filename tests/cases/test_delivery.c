/* test_delivery.c - handlers and their policies: P-22, P-28, P-31, P-53, P-72, P-75 to P-77.
 *
 * A queue has one handler, whose policy says how often, how soon, how late and how fast.
 * Replacing it, pausing it and stopping in the middle lose no order and run none twice. */
/* tiers: small full soak */
/* valgrind */
#include "delivery.h"

#include <inttypes.h>
#include <sched.h>
#include <stdlib.h>

/* Go from one thing to do to the next, to the nanosecond, for `span`. */
static void run_for(rig *r, lapse_ns span)
{
    lapse_ns end = lapse_clock_now(r->clock) + span;
    for (;;) {
        lapse_ns left = end - lapse_clock_now(r->clock), next = lapse_timeout(r->s);
        ck_assert_int_ge(next, 0);
        advance(r, next < left ? next : left);
        if (next >= left)
            return;
    }
}

/* -- Handlers ------------------------------------------------------------------------ */

START_TEST(a_handler_runs_the_orders_of_its_queue)
{
    rig r = rig_manual(_i, START, NULL);
    player p;
    player_open(&p, r.s, NULL);
    tape own;
    tape_open(&own, r.s);
    put(r.s, "close", "before", LAPSE_SECONDS(1)); /* Before there is a handler. */
    handle(r.s, "close", &p, NULL);
    int64_t generation = put(r.s, "close", "after", LAPSE_SECONDS(2));
    put(r.s, "another", "another's", LAPSE_SECONDS(1));
    lapse_spec spec = {.id = "own", .queue = "close", .fn = tape_note, .arg = &own};
    ck_assert_int_gt(lapse_put(r.s, &spec), 0);
    advance(&r, LAPSE_SECONDS(1) - 1);
    ck_assert_uint_eq(tape_count(&own), 1);
    ck_assert_uint_eq(tape_count(&p.ran), 0);
    advance(&r, 1);
    ck_assert_uint_eq(tape_runs(&p.ran, "before"), 1);
    advance(&r, LAPSE_SECONDS(1));
    ck_assert_uint_eq(tape_count(&p.ran), 2);
    ck_assert_str_eq(p.ran.entries[1].id, "after");
    ck_assert_int_eq(p.ran.entries[1].generation, generation);
    ck_assert_int_eq(p.ran.entries[1].attempt, 1);
    ck_assert_int_eq(p.ran.entries[1].late, 0);
    ck_assert_int_eq(state_of(r.s, "another's"), LAPSE_STATE_PENDING);
    ck_assert_uint_eq(queue_stats(r.s, "close").done, 3);
    expect_books(r.s);
    tape_close(&own);
    player_close(&p);
    rig_close(&r);
}
END_TEST

static lapse_verdict look_closely(const lapse_order *order, void *arg)
{
    int *looks = arg;
    ck_assert_str_eq(order->id, "OID00000010");
    ck_assert_uint_eq(order->id_len, 11);
    ck_assert_str_eq(order->queue, "");
    ck_assert_uint_eq(order->payload_len, 4);
    ck_assert_mem_eq(order->payload, "a\0b", 4);
    ck_assert_int_gt(order->fence, 0);
    (*looks)++;
    return LAPSE_DONE;
}

START_TEST(the_queue_without_a_name_has_a_handler_too)
{
    rig r = rig_manual(_i, START, NULL);
    int looks = 0;
    ck_assert_int_eq(lapse_handle(r.s, NULL, look_closely, &looks, NULL, NULL), 0);
    lapse_spec spec = {.id = "OID00000010", .payload = "a\0b", .payload_len = 4};
    ck_assert_int_gt(lapse_put(r.s, &spec), 0);
    advance(&r, r.tick);
    ck_assert_int_eq(looks, 1);
    rig_close(&r);
}
END_TEST

START_TEST(a_queue_is_handled_or_taken_from)
{
    rig r = rig_manual(_i, START, NULL);
    const lapse_order *order;
    player p;
    player_open(&p, r.s, NULL);
    atomic_int released = 0;
    handle(r.s, "handled", &p, NULL);
    put(r.s, "handled", "H", 0);
    put(r.s, "taken", "T", 0);
    ck_assert_int_eq(lapse_clock_advance(r.clock, LAPSE_MS(1)), 0);
    ck_assert_int_eq(lapse_poll(r.s, "handled", &order), LAPSE_EMIXED);
    ck_assert_int_eq(lapse_take(r.s, "handled", LAPSE_FOREVER, &order), LAPSE_EMIXED);
    int64_t fence = poll_one(r.s, NULL, "T")->fence; /* Any without a handler. */
    expect_nothing(r.s, NULL);
    expect_nothing(r.s, "taken");
    ck_assert_int_eq(lapse_handle(r.s, "taken", play, &released, count_release, NULL),
                     LAPSE_EMIXED);
    ck_assert_int_eq(atomic_load(&released), 0); /* It was not accepted. */
    ck_assert(!queue_stats(r.s, "taken").handled);
    ck_assert_int_eq(lapse_settle(r.s, fence, LAPSE_DONE, 0, NULL), 0);
    ck_assert_int_eq(lapse_process(r.s, 0), 1);
    ck_assert_uint_eq(tape_runs(&p.ran, "H"), 1);
    player_close(&p);
    rig_close(&r);
}
END_TEST

START_TEST(policies_have_ranges)
{
    const lapse_policy wrong[] = {
        {.attempts = -1},
        {.attempts = INT32_MAX},
        {.backoff = -1},
        {.backoff = LAPSE_DELAY_MAX + 1},
        {.backoff_max = -1},
        {.backoff_max = INT64_MAX},
        {.backoff_percent = -1},
        {.backoff_percent = 99},
        {.jitter_percent = 101},
        {.run_limit = -1},
        {.run_limit = LAPSE_DELAY_MAX + 1},
        {.expires = -1},
        {.expires = INT64_MAX},
        {.stuck_after = -1},
        {.stuck_after = LAPSE_DELAY_MAX + 1},
    };
    rig r = rig_manual(_i, START, NULL);
    player p;
    player_open(&p, r.s, NULL);
    atomic_int released = 0;
    handle(r.s, "q", &p, NULL);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        ck_assert_int_eq(lapse_handle(r.s, "q", count_run, &released, count_release, &wrong[i]),
                         LAPSE_ERANGE);
        ck_assert_int_eq(lapse_handle(r.s, "new", count_run, &released, count_release, &wrong[i]),
                         LAPSE_ERANGE);
    }
    char name[LAPSE_ID_MAX + 2];
    memset(name, 'q', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    ck_assert_int_eq(lapse_handle(r.s, name, count_run, &released, count_release, NULL),
                     LAPSE_EINVAL);
    ck_assert_int_eq(atomic_load(&released), 0);
    lapse_queue_stats stats;
    ck_assert_int_eq(lapse_queue_statistics(r.s, "new", &stats), LAPSE_EUNKNOWN);
    put(r.s, "q", "o", 0);
    advance(&r, r.tick);
    ck_assert_uint_eq(tape_count(&p.ran), 1); /* The old handler is still there. */
    ck_assert_int_eq(lapse_stop(r.s), 0);
    ck_assert_int_eq(lapse_handle(r.s, "q", count_run, &released, count_release, NULL),
                     LAPSE_ECLOSED);
    ck_assert_int_eq(atomic_load(&released), 0);
    player_close(&p);
    rig_close(&r);
}
END_TEST

/* -- Replaced and removed ------------------------------------------------------------- */

START_TEST(a_replaced_handler_is_released_when_it_runs_no_more)
{
    rig r = rig_manual(_i, START, NULL);
    atomic_int first = 0, second = 0;
    const lapse_order *old, *new;
    lapse_callback fn;
    void *arg;
    ck_assert_int_eq(lapse_handle(r.s, "q", never, &first, count_release, NULL), 0);
    put_many(r.s, "q", "", 2, 0);
    ck_assert_int_eq(lapse_clock_advance(r.clock, LAPSE_MS(1)), 0);
    ck_assert_int_eq(lapse_begin(r.s, LAPSE_FOREVER, &old, &fn, &arg), 1);
    ck_assert(fn == never && arg == &first);
    ck_assert_int_eq(lapse_handle(r.s, "q", count_run, &second, count_release, NULL), 0);
    ck_assert_int_eq(atomic_load(&first), 0);
    ck_assert_int_eq(lapse_begin(r.s, LAPSE_FOREVER, &new, &fn, &arg), 1);
    ck_assert(fn == count_run && arg == &second);
    ck_assert_int_eq(lapse_settle(r.s, new->fence, LAPSE_DONE, 0, NULL), 0);
    ck_assert_int_eq(atomic_load(&first), 0); /* It still runs. */
    ck_assert_int_eq(lapse_settle(r.s, old->fence, LAPSE_RETRY, LAPSE_SECONDS(1), NULL), 0);
    ck_assert_int_eq(atomic_load(&first), 1);
    advance(&r, LAPSE_SECONDS(1)); /* The retry is the new one's. */
    ck_assert_int_eq(atomic_load(&second), 1);
    rig_close(&r);
    ck_assert_int_eq(atomic_load(&first), 1);
    ck_assert_int_eq(atomic_load(&second), 2); /* One run and one release. */
}
END_TEST

START_TEST(a_removed_handler_leaves_its_orders_to_others)
{
    rig r = rig_manual(_i, START, NULL);
    atomic_int released = 0;
    player p;
    player_open(&p, r.s, NULL);
    ck_assert_int_eq(lapse_handle(r.s, "q", never, &released, count_release, NULL), 0);
    put_many(r.s, "q", "", 3, LAPSE_SECONDS(1));
    ck_assert(queue_stats(r.s, "q").handled);
    ck_assert_int_eq(lapse_handle(r.s, "q", NULL, NULL, NULL, NULL), 0);
    ck_assert_int_eq(atomic_load(&released), 1);
    ck_assert(!queue_stats(r.s, "q").handled);
    advance(&r, LAPSE_SECONDS(2));
    ck_assert_uint_eq(pending_in(r.s), 3);
    lapse_settle(r.s, poll_one(r.s, NULL, "0")->fence, LAPSE_DONE, 0, NULL);
    handle(r.s, "q", &p, NULL); /* It was never asked for by name. */
    advance(&r, 0);
    ck_assert_uint_eq(tape_count(&p.ran), 2);
    ck_assert_str_eq(p.ran.entries[0].id, "1");
    ck_assert_int_eq(p.ran.entries[0].late, LAPSE_SECONDS(1));
    ck_assert_int_eq(lapse_handle(r.s, "q", NULL, NULL, NULL, NULL), 0);
    ck_assert_int_eq(lapse_handle(r.s, "q", NULL, NULL, NULL, NULL), 0); /* Nothing to remove. */
    player_close(&p);
    rig_close(&r);
}
END_TEST

/* A handler that puts another in its own place, and looks whether it is gone already. */
struct heir {
    rig *r;
    atomic_int released;
    player next;
};

static lapse_verdict make_way(const lapse_order *order, void *arg)
{
    struct heir *h = arg;
    (void)order;
    handle(h->r->s, "q", &h->next, NULL);
    ck_assert_int_eq(atomic_load(&h->released), 0);
    return LAPSE_DONE;
}

static void release_heir(void *arg)
{
    atomic_fetch_add(&((struct heir *)arg)->released, 1);
}

START_TEST(a_handler_may_replace_itself)
{
    rig r = rig_manual(_i, START, NULL);
    struct heir h = {.r = &r};
    player_open(&h.next, r.s, NULL);
    ck_assert_int_eq(lapse_handle(r.s, "q", make_way, &h, release_heir, NULL), 0);
    put_many(r.s, "q", "", 3, 0);
    advance(&r, LAPSE_MS(1));
    ck_assert_int_eq(atomic_load(&h.released), 1);
    ck_assert_uint_eq(tape_count(&h.next.ran), 2);
    player_close(&h.next);
    rig_close(&r);
}
END_TEST

/* Handlers come and go while four threads run them: none is called after its release. */
enum { HANDLERS = 200 };

struct tenant {
    atomic_int inside, released;
};

struct house {
    lapse *s;
    atomic_int runs;
    struct tenant tenants[HANDLERS];
};

static struct house house;

static lapse_verdict visit(const lapse_order *order, void *arg)
{
    struct tenant *t = arg;
    atomic_fetch_add(&t->inside, 1);
    if (atomic_load(&t->released) != 0)
        complain("%s was given to a handler that was released", order->id);
    sched_yield();
    atomic_fetch_sub(&t->inside, 1);
    atomic_fetch_add(&house.runs, 1);
    return order->attempt < 2 ? lapse_retry(order, 0, NULL) : LAPSE_DONE;
}

static void move_out(void *arg)
{
    struct tenant *t = arg;
    if (atomic_load(&t->inside) != 0)
        complain("a handler was released while it ran");
    atomic_fetch_add(&t->released, 1);
}

static void change_tenants(void *arg, int number)
{
    (void)arg;
    for (int i = number; i < HANDLERS; i += 2) {
        int result = lapse_handle(house.s, "q", visit, &house.tenants[i], move_out, NULL);
        if (result != 0)
            complain("lapse_handle: %s", lapse_error_detail());
        sched_yield();
    }
}

static void order_all_the_time(void *arg, int number)
{
    (void)arg, (void)number;
    for (int i = 0; i < 500; i++) {
        char id[8];
        snprintf(id, sizeof id, "%d", i);
        if (lapse_put(house.s, &(lapse_spec){.id = id, .queue = "q"}) < 0)
            complain("lapse_put: %s", lapse_error_detail());
    }
}

static void change_or_order(void *arg, int number)
{
    if (number < 2)
        change_tenants(arg, number);
    else
        order_all_the_time(arg, number);
}

START_TEST(handlers_change_while_they_run)
{
    rig r = rig_real(_i, NULL);
    memset(&house, 0, sizeof house);
    house.s = r.s;
    ck_assert_int_eq(lapse_start(r.s, 4), 0);
    crew_run(3, change_or_order, NULL);
    ck_assert(until_at_least(&house.runs, 1000)); /* Each order twice. */
    rig_close(&r);
    ck_assert_int_eq(atomic_load(&house.runs), 1000);
    for (int i = 0; i < HANDLERS; i++)
        ck_assert_int_eq(atomic_load(&house.tenants[i].released), 1);
}
END_TEST

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

START_TEST(p76_a_permanent_error_is_not_retried)
{
    rig r = rig_manual(_i, START, NULL);
    player p;
    player_open(&p, r.s, always_reject);
    handle(r.s, "q", &p, NULL);
    put(r.s, "q", "o", 0);
    run_for(&r, LAPSE_HOURS(3));
    ck_assert_uint_eq(tape_count(&p.ran), 1);
    ck_assert_int_eq(only_letter(r.s).reason, LAPSE_REASON_REJECTED);
    ck_assert_uint_eq(stats_of(r.s).retried, 0);
    player_close(&p);
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
    const lapse_ns lates[] = {LAPSE_DAYS(30), LAPSE_HOURS(1), LAPSE_SECONDS(2)};
    rig r = rig_manual(_i, START, NULL);
    player p;
    player_open(&p, r.s, NULL);
    for (int i = 0; i < 3; i++)
        put_many(r.s, "q", (const char *[]){"month", "hour", "seconds"}[i], 1,
                 LAPSE_DAYS(30) - lates[i]);
    ck_assert_int_eq(lapse_clock_advance(r.clock, LAPSE_DAYS(30)), 0);
    handle(r.s, "q", &p, NULL); /* As at the start after an outage. */
    put_many(r.s, "q", "n", 100, LAPSE_SECONDS(60));
    ck_assert_int_eq(lapse_process(r.s, 0), 3);
    put_many(r.s, "q", "m", 100, LAPSE_SECONDS(60)); /* Adding some runs no other. */
    ck_assert_int_eq(lapse_process(r.s, 0), 0);
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(p.ran.entries[i].late, lates[i]);
    ck_assert_uint_eq(stats_of(r.s).dead_total, 0);
    run_for(&r, LAPSE_SECONDS(61));
    ck_assert_uint_eq(tape_count(&p.ran), 203);
    ck_assert_uint_eq(tape_runs(&p.ran, "month0"), 1);
    ck_assert_uint_eq(tape_runs(&p.ran, "hour0"), 1);
    ck_assert_uint_eq(tape_runs(&p.ran, "seconds0"), 1);
    player_close(&p);
    rig_close(&r);
}
END_TEST

static void keep_letter(void *hook_arg, const lapse_info *dead)
{
    note_letter(dead, hook_arg);
}

/* Dropping what is late exists, where it was asked for, and is told. */
START_TEST(p77_dropped_only_on_request_and_reported)
{
    static letters told;
    told.count = 0;
    lapse_options options = {.hook_arg = &told, .on_dead = keep_letter};
    rig r = rig_manual(_i, START, &options);
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

/* -- Pausing ------------------------------------------------------------------------------ */

static int64_t put_own(lapse *s, const char *queue, const char *id, lapse_ns delay, tape *ran)
{
    return lapse_put(
        s, &(lapse_spec){.id = id, .queue = queue, .delay = delay, .fn = tape_note, .arg = ran});
}

START_TEST(a_paused_queue_starts_nothing)
{
    const char *const in_order[] = {"h1", "own2", "h3", "own4"};
    rig r = rig_manual(_i, START, NULL);
    player p;
    player_open(&p, r.s, NULL);
    handle(r.s, "q", &p, NULL);
    ck_assert_int_eq(lapse_pause(r.s, "q"), 0);
    ck_assert_int_eq(lapse_pause(r.s, "q"), 0); /* Once is enough. */
    ck_assert(queue_stats(r.s, "q").paused);
    put(r.s, "q", "h1", LAPSE_MS(1));
    put_own(r.s, "q", "own2", LAPSE_MS(2), &p.ran);
    put(r.s, "q", "h3", LAPSE_MS(3));
    put_own(r.s, "q", "own4", LAPSE_MS(4), &p.ran);
    put(r.s, "q", "cancelled", LAPSE_MS(2));
    put_own(r.s, "q", "cancelled too", LAPSE_MS(2), &p.ran);
    put_own(r.s, "other", "other", LAPSE_MS(2), &p.ran);
    advance(&r, LAPSE_SECONDS(10));
    ck_assert_uint_eq(tape_count(&p.ran), 1);
    ck_assert_uint_eq(tape_runs(&p.ran, "other"), 1);
    ck_assert_int_eq(lapse_timeout(r.s), LAPSE_FOREVER); /* Nobody is woken for it. */
    ck_assert_int_eq(queue_stats(r.s, "q").oldest_due, LAPSE_SECONDS(10) - LAPSE_MS(1));
    ck_assert_int_eq(lapse_cancel(r.s, "cancelled", LAPSE_ANY), LAPSE_FATE_CANCELLED);
    ck_assert_int_eq(lapse_cancel(r.s, "cancelled too", LAPSE_ANY), LAPSE_FATE_CANCELLED);
    ck_assert_int_eq(lapse_reschedule(r.s, "own4", LAPSE_ANY, LAPSE_SECONDS(1)),
                     LAPSE_FATE_RESCHEDULED);
    ck_assert_int_eq(lapse_resume(r.s, "q"), 0);
    ck_assert_int_eq(lapse_timeout(r.s), 0);
    advance(&r, 0);
    ck_assert_uint_eq(tape_count(&p.ran), 4);
    advance(&r, LAPSE_SECONDS(1));
    ck_assert_uint_eq(tape_count(&p.ran), 5);
    for (size_t i = 0; i < 4; i++)
        ck_assert_str_eq(p.ran.entries[i + 1].id, in_order[i]);
    ck_assert_int_eq(lapse_resume(r.s, "q"), 0);
    expect_books(r.s);
    player_close(&p);
    rig_close(&r);
}
END_TEST

START_TEST(takers_of_a_paused_queue_get_nothing)
{
    rig r = rig_manual(_i, START, NULL);
    put(r.s, "q", "running", 0);
    put(r.s, "q", "waiting", LAPSE_MS(1));
    advance(&r, LAPSE_MS(2));
    int64_t fence = poll_one(r.s, "q", "running")->fence;
    ck_assert_int_eq(lapse_pause(r.s, "q"), 0);
    expect_nothing(r.s, "q");
    expect_nothing(r.s, NULL);
    ck_assert(lapse_holds(r.s, fence)); /* What runs goes on. */
    ck_assert_int_eq(lapse_settle(r.s, fence, LAPSE_GIVE_BACK, 0, NULL), 0);
    expect_nothing(r.s, "q");
    ck_assert_int_eq(lapse_resume(r.s, "q"), 0);
    poll_one(r.s, NULL, "running");
    poll_one(r.s, "q", "waiting");
    rig_close(&r);
}
END_TEST

START_TEST(pausing_has_errors)
{
    rig r = rig_manual(_i, START, NULL);
    char name[LAPSE_ID_MAX + 2];
    memset(name, 'q', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    ck_assert_int_eq(lapse_pause(r.s, name), LAPSE_EINVAL);
    ck_assert_int_eq(lapse_resume(r.s, name), LAPSE_EINVAL);
    ck_assert_int_eq(lapse_pause(NULL, "q"), LAPSE_EINVAL);
    ck_assert_int_eq(lapse_pause(r.s, NULL), 0); /* The queue "". */
    tape ran;
    tape_open(&ran, r.s);
    ck_assert_int_gt(lapse_schedule(r.s, "o", 0, tape_note, &ran), 0);
    advance(&r, LAPSE_SECONDS(1));
    ck_assert_uint_eq(tape_count(&ran), 0);
    ck_assert_int_eq(lapse_resume(r.s, ""), 0);
    advance(&r, 0);
    ck_assert_uint_eq(tape_count(&ran), 1);
    tape_close(&ran);
    rig_close(&r);
}
END_TEST

/* Workers that sleep are woken by resume, and takers too. */
static void take_one(void *arg, int number)
{
    rig *r = arg;
    const lapse_order *order;
    (void)number;
    if (lapse_take(r->s, "taken", LIMIT, &order) != 1)
        complain("the taker got nothing");
    else
        lapse_settle(r->s, order->fence, LAPSE_DONE, 0, NULL);
}

START_TEST(resume_wakes_those_who_wait)
{
    rig r = rig_real(_i, NULL);
    player p;
    player_open(&p, r.s, NULL);
    handle(r.s, "q", &p, NULL);
    ck_assert_int_eq(lapse_pause(r.s, "q"), 0);
    ck_assert_int_eq(lapse_pause(r.s, "taken"), 0);
    put_many(r.s, "q", "", 10, 0);
    put(r.s, "taken", "t", 0);
    put_own(r.s, "q", "own", 0, &p.ran);
    ck_assert_int_eq(lapse_start(r.s, 2), 0);
    crew c;
    crew_start(&c, 1, take_one, &r);
    ck_assert(until_others_sleep());
    ck_assert_uint_eq(tape_count(&p.ran), 0);
    ck_assert_int_eq(lapse_resume(r.s, "q"), 0);
    ck_assert(tape_wait(&p.ran, 11));
    ck_assert(until_others_sleep());
    ck_assert_int_eq(state_of(r.s, "t"), LAPSE_STATE_PENDING);
    ck_assert_int_eq(lapse_resume(r.s, "taken"), 0);
    crew_join(&c);
    player_close(&p);
    rig_close(&r);
}
END_TEST

/* -- P-75: after an outage ---------------------------------------------------------------- */

/* No second saw more starts than 1.05 times the rate. `at`: in order. */
static void expect_rate(const lapse_ns *at, size_t count, unsigned rate)
{
    size_t most = 0;
    for (size_t first = 0, last = 0; last < count; last++) {
        while (at[last] - at[first] >= LAPSE_SECONDS(1))
            first++;
        most = last - first + 1 > most ? last - first + 1 : most;
    }
    ck_assert_uint_le(most, (size_t)(1.05 * rate));
}

/* Under a clock that moves in lumps, as on a machine that is busy. */
START_TEST(p75_no_second_sees_more)
{
    const unsigned rates[] = {1, 7, 20, 100, 2000};
    rng luck = rng_open("p75_no_second_sees_more");
    for (size_t n = 0; n < sizeof rates / sizeof *rates; n++) {
        rig r = rig_manual(_i, START, NULL);
        player p;
        player_open(&p, r.s, NULL);
        unsigned rate = rates[n];
        int count = (int)rate * 5;
        handle(r.s, "q", &p, &(lapse_policy){.rate = rate});
        put_many(r.s, "q", "", count, 0);
        for (int step = 0; tape_count(&p.ran) < (size_t)count; step++) {
            ck_assert_int_lt(step, 1000000);
            bool lump = rng_range(&luck, 0, 99) == 0;
            advance(&r, lump ? LAPSE_MS(rng_range(&luck, 0, 3000))
                             : LAPSE_US(rng_range(&luck, 0, 60000)));
        }
        static lapse_ns at[10000];
        for (int i = 0; i < count; i++)
            at[i] = p.ran.entries[i].now;
        expect_rate(at, (size_t)count, rate);
        player_close(&p);
        rig_close(&r);
    }
}
END_TEST

/* A host that asks when there is something to do gets all that the rate allows. */
START_TEST(p75_the_rate_is_used_up)
{
    enum { RATE = 50, SECONDS = 60 };
    rig r = rig_manual(_i, START, NULL);
    player p;
    player_open(&p, r.s, NULL);
    handle(r.s, "q", &p, &(lapse_policy){.rate = RATE});
    put_many(r.s, "q", "", RATE * SECONDS, 0);
    run_for(&r, LAPSE_SECONDS(SECONDS));
    ck_assert_uint_ge(tape_count(&p.ran), RATE * SECONDS - RATE / 10);
    player_close(&p);
    rig_close(&r);
}
END_TEST

/* Each queue has its rate; what expires, or waits while paused, uses up or saves up none. */
START_TEST(p75_a_rate_is_of_one_queue_and_of_starts)
{
    rig r = rig_manual(_i, START, NULL);
    player slow, fast;
    player_open(&slow, r.s, NULL);
    player_open(&fast, r.s, NULL);
    handle(r.s, "slow", &slow, &(lapse_policy){.rate = 1, .expires = LAPSE_MINUTES(1)});
    handle(r.s, "fast", &fast, NULL);
    put_many(r.s, "slow", "old", 500, 0);
    put_many(r.s, "slow", "new", 3, LAPSE_MINUTES(2));
    put_many(r.s, "fast", "f", 100, LAPSE_MINUTES(2));
    ck_assert_int_eq(lapse_clock_advance(r.clock, LAPSE_MINUTES(2)), 0);
    advance(&r, 0);
    ck_assert_uint_eq(stats_of(r.s).dead_by[LAPSE_REASON_EXPIRED], 500);
    ck_assert_uint_eq(tape_count(&slow.ran), 1);
    ck_assert_uint_eq(tape_count(&fast.ran), 100);
    ck_assert_int_eq(lapse_pause(r.s, "slow"), 0);
    advance(&r, LAPSE_SECONDS(20));
    ck_assert_int_eq(lapse_resume(r.s, "slow"), 0);
    advance(&r, 0);
    ck_assert_uint_le(tape_count(&slow.ran), 2);
    run_for(&r, LAPSE_SECONDS(3));
    ck_assert_uint_eq(tape_count(&slow.ran), 3);
    player_close(&slow);
    player_close(&fast);
    rig_close(&r);
}
END_TEST

enum { WORKERS = 8 };

/* Order number n is due before order number n + 1; each notes its start. */
typedef struct start {
    int64_t fence;
    lapse_ns now, late;
    long number;
} start;

typedef struct storm {
    rig r;
    unsigned rate;
    long overdue, per_second, placed, room;
    lapse_ns began;
    start *starts;
    atomic_long count;
    atomic_int inside, most_inside;
} storm;

static lapse_verdict weather(const lapse_order *order, void *arg)
{
    storm *st = arg;
    int inside = atomic_fetch_add(&st->inside, 1) + 1;
    int most = atomic_load(&st->most_inside);
    while (inside > most && !atomic_compare_exchange_weak(&st->most_inside, &most, inside))
        continue;
    long slot = atomic_fetch_add(&st->count, 1);
    if (slot < st->room)
        st->starts[slot] =
            (start){order->fence, lapse_now(st->r.s), order->late, strtol(order->id, NULL, 10)};
    else
        complain("%s is one too many", order->id);
    atomic_fetch_sub(&st->inside, 1);
    return LAPSE_DONE;
}

static void place(storm *st, lapse_ns delay)
{
    char id[24];
    snprintf(id, sizeof id, "%ld", st->placed++);
    put(st->r.s, "shop", id, delay);
}

/* `overdue` orders that fell due one by one, the last an hour ago. */
static void storm_open(storm *st, int engine, long overdue, unsigned rate)
{
    *st = (storm){.r = rig_manual(engine, START, NULL), .rate = rate, .overdue = overdue};
    st->per_second = rate / 2;
    st->room = 3 * overdue;
    st->starts = malloc((size_t)st->room * sizeof *st->starts);
    ck_assert_ptr_nonnull(st->starts);
    memset(st->starts, 1, (size_t)st->room * sizeof *st->starts); /* Resident from now on. */
    for (long i = 0; i < overdue; i++)
        place(st, LAPSE_MS(i));
    ck_assert_int_eq(lapse_clock_advance(st->r.clock, LAPSE_MS(overdue) + LAPSE_HOURS(1)), 0);
    ck_assert_int_eq(
        lapse_handle(st->r.s, "shop", weather, st, NULL, &(lapse_policy){.rate = rate}), 0);
    ck_assert_int_eq(lapse_start(st->r.s, WORKERS), 0);
    st->began = lapse_clock_now(st->r.clock);
}

/* All that may start at this reading of the clock has, and has returned. */
static bool is_quiet(void *arg)
{
    storm *st = arg;
    return lapse_timeout(st->r.s) > 0 && stats_of(st->r.s).running == 0;
}

static lapse_ns since_start(const storm *st)
{
    return lapse_clock_now(st->r.clock) - st->began;
}

/* When new order number `n` falls due: they come evenly. */
static lapse_ns new_due(const storm *st, long n)
{
    return st->began + LAPSE_SECONDS(n - st->overdue + 1) / st->per_second;
}

/* Time goes on by some milliseconds, in which new orders fall due. */
static void storm_step(storm *st, rng *luck)
{
    lapse_ns now = lapse_clock_now(st->r.clock), by = LAPSE_MS(rng_range(luck, 1, 20));
    while (new_due(st, st->placed) <= now + by)
        place(st, new_due(st, st->placed) - now);
    ck_assert_int_eq(lapse_clock_advance(st->r.clock, by), 0);
    ck_assert(until(is_quiet, st));
}

static int compare_starts(const void *a, const void *b)
{
    const start *x = a, *y = b;
    return (x->fence > y->fence) - (x->fence < y->fence);
}

/* Each start was the oldest that waited, but for one in four, which was brand-new. */
static void expect_fair_order(const storm *st, long count)
{
    bool *started = calloc((size_t)st->placed, 1);
    long oldest = 0, newest = 0, late_share = 0;
    ck_assert_ptr_nonnull(started);
    for (long i = 0; i < count; i++) {
        const start *s = &st->starts[i];
        ck_assert_int_lt(s->number, st->placed);
        ck_assert(!started[s->number]); /* Nothing runs twice. */
        started[s->number] = true;
        if (s->number == oldest) {
            while (oldest < st->placed && started[oldest])
                oldest++;
            continue;
        }
        newest++;
        ck_assert_int_le(newest, i / 4 + 1);
        late_share += s->now - st->began > LAPSE_SECONDS(1) && s->late > LAPSE_MS(50);
    }
    ck_assert_int_eq(late_share, 0);
    ck_assert_int_ge(newest, count / 5); /* New orders have had their share. */
    free(started);
}

static void judge_storm(storm *st)
{
    long count = atomic_load(&st->count);
    qsort(st->starts, (size_t)count, sizeof *st->starts, compare_starts);
    lapse_ns *at = calloc((size_t)count + 1, sizeof *at);
    ck_assert_ptr_nonnull(at);
    for (long i = 0; i < count; i++)
        at[i] = st->starts[i].now;
    expect_rate(at, (size_t)count, st->rate);
    free(at);
    expect_fair_order(st, count);
    ck_assert_int_le(atomic_load(&st->most_inside), WORKERS);
}

static void storm_close(storm *st)
{
    rig_close(&st->r);
    free(st->starts);
}

#if defined(UNDER_TSAN) || defined(UNDER_ASAN)
#define RSS_IS_OURS false /* The sanitizer keeps what was freed, as does valgrind. */
#else
#define RSS_IS_OURS true
#endif

START_TEST(p75_a_backlog_is_worked_off)
{
    static storm st;
    rng luck = rng_open("p75_a_backlog_is_worked_off");
    storm_open(&st, _i, tier(4000, 50000, 200000), (unsigned)tier(400, 2000, 2000));
    uint64_t bytes = stats_of(st.r.s).bytes;
    size_t rss = resident_bytes();
    lapse_ns wanted = LAPSE_SECONDS(st.overdue) / st.per_second;
    while (stats_of(st.r.s).pending > 0) {
        storm_step(&st, &luck);
        ck_assert_uint_le(stats_of(st.r.s).bytes, bytes + (UINT64_C(1) << 20));
        ck_assert_int_lt(since_start(&st), 2 * wanted);
    }
    lapse_ns took = since_start(&st);
    printf("%ld overdue and %ld new were worked off in %.1f s\n", st.overdue,
           st.placed - st.overdue, (double)took / 1e9);
    ck_assert_int_ge(took, wanted * 95 / 100);
    ck_assert_int_le(took, wanted * 105 / 100);
    if (RSS_IS_OURS && getenv("LAPSE_VALGRIND") == NULL)
        ck_assert_uint_lt(resident_bytes(), rss + (UINT64_C(16) << 20));
    ck_assert_int_eq(atomic_load(&st.count), st.placed);
    judge_storm(&st);
    storm_close(&st);
}
END_TEST

static bool note_rest(const lapse_info *info, void *arg)
{
    char *seen = arg;
    seen[atol(info->id)]++;
    return info->state == LAPSE_STATE_PENDING;
}

START_TEST(p75_stop_while_catching_up_loses_nothing)
{
    static storm st;
    rng luck = rng_open("p75_stop_while_catching_up_loses_nothing");
    storm_open(&st, _i, tier(2000, 50000, 50000), (unsigned)tier(400, 2000, 2000));
    while (atomic_load(&st.count) < st.overdue / 2)
        storm_step(&st, &luck);
    ck_assert_int_eq(lapse_clock_advance(st.r.clock, LAPSE_SECONDS(1)), 0); /* More is due. */
    lapse_ns before = boot_now();
    ck_assert_int_eq(lapse_stop(st.r.s), 0);
    ck_assert_int_lt(boot_now() - before, LAPSE_SECONDS(1));
    while (stats_of(st.r.s).running > 0)
        sched_yield();
    char *seen = calloc((size_t)st.placed, 1);
    ck_assert_ptr_nonnull(seen);
    long count = atomic_load(&st.count);
    for (long i = 0; i < count; i++)
        seen[st.starts[i].number]++;
    ck_assert_int_eq(lapse_each(st.r.s, 0, note_rest, seen), st.placed - count);
    for (long i = 0; i < st.placed; i++)
        ck_assert_int_eq(seen[i], 1);
    expect_books(st.r.s);
    free(seen);
    storm_close(&st);
}
END_TEST

/* -- P-22, through retries, losses and dead letters ------------------------------------ */

enum { MAX_PENDING = 20 };

/* How many more are accepted; they are cancelled at once. */
static int room_left(lapse *s)
{
    int accepted = 0;
    char id[16];
    for (int i = 0; i <= MAX_PENDING; i++) {
        snprintf(id, sizeof id, "room%d", i);
        int64_t result = lapse_put(s, &(lapse_spec){.id = id, .delay = LAPSE_HOURS(1)});
        ck_assert(result > 0 || result == LAPSE_EFULL);
        accepted += result > 0;
    }
    for (int i = 0; i < accepted; i++) {
        snprintf(id, sizeof id, "room%d", i);
        ck_assert_int_eq(lapse_cancel(s, id, LAPSE_ANY), LAPSE_FATE_CANCELLED);
    }
    expect_books(s);
    return accepted;
}

static lapse_verdict by_first_letter(const lapse_order *order)
{
    switch (order->id[0]) {
    case 'f':
        return LAPSE_FAIL;
    case 'r':
        return LAPSE_REJECT;
    case 'g':
        return LAPSE_GIVE_BACK;
    default:
        return LAPSE_DONE;
    }
}

START_TEST(p22_pending_does_not_drift_through_deliveries)
{
    lapse_options options = {.max_pending = MAX_PENDING, .lease = LAPSE_SECONDS(1)};
    rig r = rig_manual(_i, START, &options);
    player p;
    player_open(&p, r.s, by_first_letter);
    handle(r.s, "q", &p, &(lapse_policy){.attempts = 2, .jitter_percent = -1});
    put_many(r.s, "q", "done", 2, 0);
    put_many(r.s, "q", "fail", 3, 0);
    put_many(r.s, "q", "reject", 4, 0);
    put_many(r.s, "q", "give", 1, 0);
    put_many(r.s, "pull", "lost", 5, 0);
    ck_assert_int_eq(room_left(r.s), 5);
    advance(&r, LAPSE_MS(1)); /* Three wait for a retry, one was given back. */
    ck_assert_int_eq(room_left(r.s), MAX_PENDING - 5 - 3 - 1);
    for (int i = 0; i < 5; i++) {
        const lapse_order *order;
        ck_assert_int_eq(lapse_poll(r.s, "pull", &order), 1);
    }
    ck_assert_int_eq(room_left(r.s), MAX_PENDING - 9); /* What runs counts. */
    advance(&r, LAPSE_SECONDS(2));                     /* Those are dead; the leases have ended. */
    ck_assert_int_eq(room_left(r.s), MAX_PENDING - 6);
    ck_assert_uint_eq(stats_of(r.s).dead, 7);
    ck_assert_int_gt(lapse_requeue(r.s, "reject0", LAPSE_ANY, LAPSE_HOURS(1)), 0);
    ck_assert_int_eq(room_left(r.s), MAX_PENDING - 7);
    ck_assert_int_eq(lapse_purge(r.s, NULL, LAPSE_ANY), 6);
    const char *const rest[] = {"reject0", "give0", "lost0", "lost1", "lost2", "lost3", "lost4"};
    for (int i = 0; i < 7; i++)
        ck_assert_int_eq(lapse_cancel(r.s, rest[i], LAPSE_ANY), LAPSE_FATE_CANCELLED);
    ck_assert_uint_eq(pending_in(r.s), 0);
    ck_assert_uint_eq(stats_of(r.s).running, 0);
    ck_assert_int_eq(room_left(r.s), MAX_PENDING);
    player_close(&p);
    rig_close(&r);
}
END_TEST

/* -- P-28: errors ------------------------------------------------------------------------ */

struct complaints {
    lapse *s;
    int errors, dead;
    char last[64];
};

static void on_error(void *hook_arg, const lapse_order *order, const char *error)
{
    struct complaints *c = hook_arg;
    c->errors++;
    if (atoi(order->id) % 2 == 0 || strcmp(error, "gateway down") != 0)
        complain("%s reports %s", order->id, error);
    snprintf(c->last, sizeof c->last, "%s %d", order->id, order->attempt);
}

static void on_dead(void *hook_arg, const lapse_info *dead)
{
    struct complaints *c = hook_arg;
    c->dead++;
    if (lapse_requeue(c->s, dead->id, dead->generation, LAPSE_HOURS(1)) < 0)
        complain("in the hook: %s", lapse_error_detail());
}

static lapse_verdict fail_odd(const lapse_order *order)
{
    return atoi(order->id) % 2 == 0 ? LAPSE_DONE : lapse_fail(order, "gateway down");
}

START_TEST(p28_errors_of_a_handler_stop_nothing)
{
    struct complaints c = {.errors = 0};
    lapse_options options = {.hook_arg = &c, .on_error = on_error, .on_dead = on_dead};
    rig r = rig_manual(_i, START, &options);
    player p;
    c.s = r.s;
    player_open(&p, r.s, fail_odd);
    handle(r.s, "q", &p, &(lapse_policy){.attempts = 2, .jitter_percent = -1});
    put_many(r.s, "q", "", 1000, LAPSE_MS(50));
    advance(&r, LAPSE_MS(50));
    ck_assert_uint_eq(stats_of(r.s).done, 500);
    ck_assert_int_eq(c.errors, 500);
    ck_assert_int_eq(c.dead, 0);
    for (size_t i = 0; i < 1000; i++)
        ck_assert_int_eq(p.ran.entries[i].late, 0);
    run_for(&r, LAPSE_SECONDS(2)); /* The second attempts. */
    ck_assert_int_eq(c.errors, 1000);
    ck_assert_str_eq(c.last, "999 2");
    ck_assert_int_eq(c.dead, 500);
    ck_assert_uint_eq(stats_of(r.s).requeued, 500); /* In the hook. */
    ck_assert_uint_eq(pending_in(r.s), 500);
    put(r.s, "q", "1000", 0);
    advance(&r, r.tick);
    ck_assert_uint_eq(stats_of(r.s).done, 501);
    expect_books(r.s);
    player_close(&p);
    rig_close(&r);
}
END_TEST

/* -- P-31: stop in the middle of retries ------------------------------------------------- */

enum { ADDERS = 4, PER_ADDER = 2000 };

static struct deploy {
    lapse *s;
    gate go;
    atomic_int placed;
    bool accepted[ADDERS][PER_ADDER];
    atomic_int ended[ADDERS][PER_ADDER];
} deploy;

static lapse_verdict end_in_some_way(const lapse_order *order, void *arg)
{
    int adder, number;
    (void)arg;
    if (sscanf(order->id, "%d-%d", &adder, &number) != 2)
        complain("%s is no id", order->id);
    else if ((number + order->attempt) % 3 == 0)
        return lapse_retry(order, LAPSE_US(number), "busy");
    else if (number % 7 == 0)
        return lapse_reject(order, "no such order");
    else
        atomic_fetch_add(&deploy.ended[adder][number], 1);
    return LAPSE_DONE;
}

static void keep_adding(void *arg, int adder)
{
    (void)arg;
    for (int i = 0; i < PER_ADDER; i++) {
        char id[16];
        snprintf(id, sizeof id, "%d-%d", adder, i);
        int64_t result = lapse_put(
            deploy.s, &(lapse_spec){.id = id, .queue = "q", .delay = LAPSE_US(20 * (i % 50))});
        deploy.accepted[adder][i] = result > 0;
        if (result < 0 && result != LAPSE_ECLOSED)
            complain("lapse_put: %s", lapse_error_detail());
        if (atomic_fetch_add(&deploy.placed, 1) == ADDERS * PER_ADDER / 2)
            gate_open(&deploy.go);
        if (i % 16 == 0)
            sched_yield();
    }
}

static bool note_left(const lapse_info *info, void *arg)
{
    int adder, number;
    (void)arg;
    if (sscanf(info->id, "%d-%d", &adder, &number) == 2)
        atomic_fetch_add(&deploy.ended[adder][number], 1);
    return true;
}

START_TEST(p31_stop_divides_exactly_among_retries)
{
    lapse_options options = {.max_dead = ADDERS * PER_ADDER};
    rig r = rig_real(_i, &options);
    memset(&deploy, 0, sizeof deploy);
    deploy.s = r.s;
    gate_init(&deploy.go);
    ck_assert_int_eq(lapse_handle(r.s, "q", end_in_some_way, NULL, NULL, NULL), 0);
    ck_assert_int_eq(lapse_start(r.s, 4), 0);
    crew c;
    crew_start(&c, ADDERS, keep_adding, NULL);
    ck_assert(gate_pass(&deploy.go));
    ck_assert_int_eq(lapse_stop(r.s), 0);
    ck_assert_int_eq(lapse_stop(r.s), 0);
    crew_join(&c);
    while (stats_of(r.s).running > 0)
        sched_yield();
    expect_books(r.s);
    lapse_each(r.s, 0, note_left, NULL);
    int accepted = 0;
    for (int adder = 0; adder < ADDERS; adder++)
        for (int i = 0; i < PER_ADDER; i++) {
            accepted += deploy.accepted[adder][i];
            ck_assert_int_eq(atomic_load(&deploy.ended[adder][i]), deploy.accepted[adder][i]);
        }
    ck_assert_uint_eq(stats_of(r.s).scheduled, (uint64_t)accepted);
    rig_close(&r);
    gate_destroy(&deploy.go);
}
END_TEST

/* -- P-53: the same id again ---------------------------------------------------------------- */

enum life { RETRYING, GIVEN_BACK, RUNNING, CALLED_OFF, DONE, FAILED, REJECTED, EXPIRED, LIVES };

static lapse_verdict live(const lapse_order *order)
{
    switch (order->payload_len) {
    case RETRYING:
        return lapse_retry(order, LAPSE_HOURS(1), "later");
    case GIVEN_BACK:
        return LAPSE_GIVE_BACK;
    case FAILED:
        return order->attempt == 1 ? lapse_retry(order, 0, NULL) : LAPSE_FAIL;
    case REJECTED:
        return LAPSE_REJECT;
    default:
        return LAPSE_DONE;
    }
}

/* The order "X" of the handled queue, brought into a state; the fence of one that runs. */
static int64_t bring_to(rig *r, enum life life)
{
    const lapse_order *order;
    lapse_callback fn;
    void *arg;
    lapse_spec spec = {.id = "X", .queue = "q", .payload = "12345678", .payload_len = life};
    ck_assert_int_gt(lapse_put(r->s, &spec), 0);
    if (life == EXPIRED)
        lapse_clock_advance(r->clock, LAPSE_MINUTES(2));
    if (life != RUNNING && life != CALLED_OFF) {
        for (int i = 0; i < 3; i++)
            advance(r, LAPSE_MS(1));
        return 0;
    }
    lapse_clock_advance(r->clock, LAPSE_MS(1));
    ck_assert_int_eq(lapse_begin(r->s, LAPSE_FOREVER, &order, &fn, &arg), 1);
    if (life == CALLED_OFF)
        ck_assert_int_eq(lapse_cancel(r->s, "X", LAPSE_ANY), LAPSE_FATE_RUNNING);
    return order->fence;
}

static bool is_dead(enum life life)
{
    return life == FAILED || life == REJECTED || life == EXPIRED;
}

/* The second order of the id is as new, whatever the first has come to. */
static void schedule_again(int engine, enum life life, unsigned flags)
{
    rig r = rig_manual(engine, START, NULL);
    player p;
    player_open(&p, r.s, live);
    handle(r.s, "q", &p, &(lapse_policy){.attempts = 2, .expires = LAPSE_MINUTES(1)});
    int64_t fence = bring_to(&r, life);
    bool waits = life == RETRYING || life == GIVEN_BACK;
    lapse_spec spec = {.id = "X", .delay = LAPSE_SECONDS(5), .flags = flags};
    int64_t result = lapse_put(r.s, &spec);
    lapse_info info;
    ck_assert_int_eq(lapse_get(r.s, "X", &info), 0);
    ck_assert_int_eq(info.state, LAPSE_STATE_PENDING);
    if (waits && flags == 0) {
        ck_assert_int_eq(result, LAPSE_EEXISTS);
        ck_assert_str_eq(info.queue, "q");
    } else {
        ck_assert_int_eq(result, info.generation);
        ck_assert_int_eq(info.attempt, 0);
        ck_assert_str_eq(info.queue, "");
        ck_assert_int_ge(info.remaining, LAPSE_SECONDS(5));
    }
    lapse_info_free(&info);
    ck_assert_uint_eq(pending_in(r.s), 1);
    ck_assert_uint_eq(stats_of(r.s).replaced, waits && flags != 0);
    ck_assert_int_eq(lapse_requeue(r.s, "X", LAPSE_ANY, 0),
                     is_dead(life) ? LAPSE_EEXISTS : LAPSE_EUNKNOWN);
    if (fence != 0)
        ck_assert_int_eq(lapse_settle(r.s, fence, LAPSE_FAIL, -1, "late"), LAPSE_ESTALE);
    ck_assert_int_eq(lapse_cancel(r.s, "X", LAPSE_ANY), LAPSE_FATE_CANCELLED);
    ck_assert_uint_eq(pending_in(r.s), 0); /* The first one is not repeated. */
    if (is_dead(life)) {
        ck_assert_int_gt(lapse_requeue(r.s, "X", LAPSE_ANY, 0), 0);
        ck_assert_int_eq(lapse_put(r.s, &spec) > 0, flags != 0);
    }
    expect_books(r.s);
    player_close(&p);
    rig_close(&r);
}

START_TEST(p53_the_same_id_in_every_state_of_a_delivery)
{
    for (int life = 0; life < LIVES; life++) {
        schedule_again(_i, (enum life)life, 0);
        schedule_again(_i, (enum life)life, LAPSE_REPLACE);
    }
}
END_TEST

/* -- P-72: payment after closing ------------------------------------------------------------ */

START_TEST(p72_too_late_is_an_answer)
{
    lapse_options options = {.keep = LAPSE_MINUTES(3)};
    rig r = rig_manual(_i, START, &options);
    player p;
    player_open(&p, r.s, NULL);
    handle(r.s, "close", &p, NULL);
    int64_t generation = put(r.s, "close", "OID1", LAPSE_MINUTES(30));
    advance(&r, LAPSE_MINUTES(29));
    /* "Payment started": five minutes more, in one step. */
    ck_assert_int_eq(lapse_reschedule(r.s, "OID1", generation, LAPSE_MINUTES(5)),
                     LAPSE_FATE_RESCHEDULED);
    advance(&r, LAPSE_MINUTES(5) - 1);
    ck_assert_uint_eq(tape_count(&p.ran), 0);
    advance(&r, 1);
    ck_assert_uint_eq(tape_count(&p.ran), 1);
    lapse_info info;
    ck_assert_int_eq(lapse_get(r.s, "OID1", &info), 0);
    lapse_ns closed = info.ended;
    ck_assert_int_eq(closed, info.due);
    lapse_info_free(&info);
    advance(&r, LAPSE_MINUTES(2));
    ck_assert_int_eq(lapse_cancel(r.s, "OID1", generation), LAPSE_FATE_DONE);
    ck_assert_int_eq(lapse_reschedule(r.s, "OID1", generation, LAPSE_MINUTES(5)), LAPSE_FATE_DONE);
    ck_assert_int_eq(lapse_get(r.s, "OID1", &info), 0);
    ck_assert_int_eq(info.state, LAPSE_STATE_DONE);
    ck_assert_int_eq(info.ended, closed); /* The time of closing, to refund by. */
    lapse_info_free(&info);
    advance(&r, LAPSE_MINUTES(2));
    ck_assert_int_eq(lapse_cancel(r.s, "OID1", generation), LAPSE_FATE_UNKNOWN);
    ck_assert_int_eq(lapse_reschedule(r.s, "OID1", generation, 0), LAPSE_FATE_UNKNOWN);
    rig_close(&r);
    r = rig_manual(_i, START, &options); /* The process has restarted. */
    ck_assert_int_eq(lapse_cancel(r.s, "OID1", generation), LAPSE_FATE_UNKNOWN);
    ck_assert_int_eq(lapse_reschedule(r.s, "OID1", generation, 0), LAPSE_FATE_UNKNOWN);
    player_close(&p);
    rig_close(&r);
}
END_TEST

/* In the middle of closing the answer is "running"; a dead letter was not closed. */
static rig *shop;

static lapse_verdict pay_meanwhile(const lapse_order *order)
{
    ck_assert_int_eq(lapse_reschedule(shop->s, order->id, LAPSE_ANY, LAPSE_MINUTES(5)),
                     LAPSE_FATE_RUNNING);
    ck_assert_int_eq(lapse_cancel(shop->s, order->id, LAPSE_ANY), LAPSE_FATE_RUNNING);
    return LAPSE_FAIL;
}

START_TEST(p72_cancelled_is_said_only_of_what_never_starts)
{
    lapse_options options = {.keep = LAPSE_MINUTES(3)};
    rig r = rig_manual(_i, START, &options);
    shop = &r;
    player p;
    player_open(&p, r.s, pay_meanwhile);
    handle(r.s, "close", &p, NULL);
    put(r.s, "close", "OID1", LAPSE_MINUTES(30));
    advance(&r, LAPSE_MINUTES(30));
    advance(&r, LAPSE_MINUTES(1));
    ck_assert_uint_eq(tape_count(&p.ran), 1); /* No attempt follows "running". */
    ck_assert_int_eq(lapse_cancel(r.s, "OID1", LAPSE_ANY), LAPSE_FATE_DONE);
    ck_assert_uint_eq(stats_of(r.s).dead_total, 0);
    expect_books(r.s);
    player_close(&p);
    rig_close(&r);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("delivery");
    TCase *group = add_group(suite, "handlers");
    ADD_FOR_ENGINES(group, a_handler_runs_the_orders_of_its_queue);
    ADD_FOR_ENGINES(group, the_queue_without_a_name_has_a_handler_too);
    ADD_FOR_ENGINES(group, a_queue_is_handled_or_taken_from);
    ADD_FOR_ENGINES(group, policies_have_ranges);
    ADD_FOR_ENGINES(group, a_replaced_handler_is_released_when_it_runs_no_more);
    ADD_FOR_ENGINES(group, a_removed_handler_leaves_its_orders_to_others);
    ADD_FOR_ENGINES(group, a_handler_may_replace_itself);
    ADD_FOR_ENGINES(group, handlers_change_while_they_run);
    group = add_group(suite, "attempts");
    ADD_FOR_ENGINES(group, attempts_are_used_up);
    ADD_FOR_ENGINES(group, a_retry_that_is_asked_for_uses_up_an_attempt_too);
    ADD_FOR_ENGINES(group, what_is_given_back_does_not_count);
    ADD_FOR_ENGINES(group, a_policy_is_for_the_handlers_orders_only);
    ADD_FOR_ENGINES(group, the_ladder_is_what_the_policy_says);
    ADD_FOR_ENGINES(group, a_long_ladder_does_not_overflow);
    ADD_FOR_ENGINES(group, p76_retries_leave_air);
    ADD_FOR_ENGINES(group, p76_a_permanent_error_is_not_retried);
    ADD_FOR_ENGINES(group, p76_what_fails_together_is_not_retried_together);
    group = add_group(suite, "too late");
    ADD_FOR_ENGINES(group, p77_overdue_runs_once_and_knows_how_late);
    ADD_FOR_ENGINES(group, p77_dropped_only_on_request_and_reported);
    ADD_FOR_ENGINES(group, p77_a_retry_has_a_due_time_of_its_own);
    group = add_group(suite, "pausing");
    ADD_FOR_ENGINES(group, a_paused_queue_starts_nothing);
    ADD_FOR_ENGINES(group, takers_of_a_paused_queue_get_nothing);
    ADD_FOR_ENGINES(group, pausing_has_errors);
    ADD_FOR_ENGINES(group, resume_wakes_those_who_wait);
    group = add_group(suite, "rate");
    ADD_FOR_ENGINES(group, p75_no_second_sees_more);
    ADD_FOR_ENGINES(group, p75_the_rate_is_used_up);
    ADD_FOR_ENGINES(group, p75_a_rate_is_of_one_queue_and_of_starts);
    ADD_FOR_ENGINES(group, p75_a_backlog_is_worked_off);
    ADD_FOR_ENGINES(group, p75_stop_while_catching_up_loses_nothing);
    group = add_group(suite, "orders of handlers");
    ADD_FOR_ENGINES(group, p22_pending_does_not_drift_through_deliveries);
    ADD_FOR_ENGINES(group, p28_errors_of_a_handler_stop_nothing);
    ADD_FOR_ENGINES(group, p31_stop_divides_exactly_among_retries);
    ADD_FOR_ENGINES(group, p53_the_same_id_in_every_state_of_a_delivery);
    ADD_FOR_ENGINES(group, p72_too_late_is_an_answer);
    ADD_FOR_ENGINES(group, p72_cancelled_is_said_only_of_what_never_starts);
    return run_suite(suite);
}
