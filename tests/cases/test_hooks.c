/* test_hooks.c - hooks that act: on the very order they are told of, and by closing.
 *
 * A scheduler is not closed where it cannot be, and closing keeps its time limit while a hook
 * stays. */
/* tiers: small full soak */
#include "delivery.h"

#include <stdlib.h>

/* -- Hooks that act on the order they are told of ---------------------------------------- */

#define LONG_ID "an id that is too long to stand in the record of its order"

static struct {
    lapse *s;
    int64_t fence;
    int settled, told;
} teller;

/* Ends the order, and has its memory used for others. */
static void settle_from_the_log(void *hook_arg, lapse_level level, const char *message)
{
    (void)hook_arg, (void)level, (void)message;
    lapse_settle(teller.s, teller.fence, LAPSE_DONE, 0, NULL);
    ck_assert(!lapse_holds(teller.s, teller.fence));
    for (int i = 0; i < 100; i++) {
        char id[100];
        snprintf(id, sizeof id, "%-58d", i);
        put(teller.s, "other", id, LAPSE_HOURS(9));
    }
    teller.settled++;
}

static void read_the_order(void *hook_arg, const lapse_order *order, const char *error)
{
    (void)hook_arg, (void)error;
    ck_assert_str_eq(order->id, LONG_ID);
    ck_assert_int_eq(order->fence, teller.fence);
    ck_assert_str_eq(order->queue, "q");
    ck_assert_uint_eq(order->payload_len, 200);
    for (size_t i = 0; i < order->payload_len; i++)
        ck_assert_int_eq(((const char *)order->payload)[i], 'p');
    teller.told++;
}

START_TEST(a_hook_settles_the_order_that_another_is_told_of)
{
    lapse_options hooks = {.log = settle_from_the_log, .on_error = read_the_order};
    rig r = rig_manual(_i, START, &hooks);
    char payload[200];
    memset(payload, 'p', sizeof payload);
    lapse_spec spec = {.id = LONG_ID,
                       .queue = "q",
                       .fn = never,
                       .payload = payload,
                       .payload_len = sizeof payload};
    ck_assert_int_gt(lapse_put(r.s, &spec), 0);
    const lapse_order *order;
    lapse_callback fn;
    void *arg;
    ck_assert_int_eq(lapse_begin(r.s, LAPSE_FOREVER, &order, &fn, &arg), 1);
    teller.s = r.s;
    teller.fence = order->fence;
    teller.settled = teller.told = 0;
    ck_assert_int_eq(lapse_clock_advance(r.clock, LAPSE_HOURS(2)), 0);
    ck_assert_int_ge(lapse_process(r.s, 1), 0);
    ck_assert_int_ge(teller.settled, 1);
    ck_assert_int_eq(teller.told, 1);
    rig_close(&r);
}
END_TEST

/* A callback that goes on until a hook was told of it, and hooks that wait for its end. */
static struct {
    lapse *s;
    gate running, told;
    atomic_bool returned;
    atomic_int waited;
} pair;

static lapse_verdict run_until_told(const lapse_order *order, void *arg)
{
    (void)order, (void)arg;
    gate_open(&pair.running);
    if (!gate_pass(&pair.told))
        complain("no hook was told");
    atomic_store(&pair.returned, true);
    return LAPSE_DONE;
}

static void wait_for_the_order(void)
{
    gate_open(&pair.told);
    int fate = lapse_cancel_wait(pair.s, "a", LAPSE_ANY, LIMIT);
    if (fate < 0)
        complain("lapse_cancel_wait in a hook: %s", lapse_error_detail());
    if (!atomic_load(&pair.returned))
        complain("lapse_cancel_wait answered %d while the callback ran", fate);
    atomic_fetch_add(&pair.waited, 1);
}

static void wait_in_on_error(void *hook_arg, const lapse_order *order, const char *error)
{
    (void)hook_arg, (void)order, (void)error;
    wait_for_the_order();
}

static void wait_in_log(void *hook_arg, lapse_level level, const char *message)
{
    (void)hook_arg, (void)level, (void)message;
    wait_for_the_order();
}

static void wait_in_a_hook(int engine, const lapse_options *hooks, const lapse_policy *policy)
{
    rig r = rig_manual(engine, START, hooks);
    pair.s = r.s;
    atomic_store(&pair.returned, false);
    atomic_store(&pair.waited, 0);
    gate_init(&pair.running);
    gate_init(&pair.told);
    ck_assert_int_eq(lapse_handle(r.s, "q", run_until_told, NULL, NULL, policy), 0);
    ck_assert_int_eq(lapse_start(r.s, 2), 0);
    put(r.s, "q", "a", 0);
    ck_assert(gate_pass(&pair.running));
    ck_assert_int_eq(lapse_clock_advance(r.clock, LAPSE_SECONDS(2)), 0);
    ck_assert(until_at_least(&pair.waited, 1));
    rig_close(&r);
    gate_destroy(&pair.running);
    gate_destroy(&pair.told);
}

static const lapse_policy short_run = {.attempts = 1, .run_limit = LAPSE_SECONDS(1)};
static const lapse_policy soon_stuck = {.attempts = 1, .stuck_after = LAPSE_SECONDS(1)};

START_TEST(on_error_waits_for_the_order_that_was_lost)
{
    wait_in_a_hook(_i, &(lapse_options){.on_error = wait_in_on_error}, &short_run);
}
END_TEST

START_TEST(the_log_waits_for_the_order_that_was_lost)
{
    wait_in_a_hook(_i, &(lapse_options){.log = wait_in_log}, &short_run);
}
END_TEST

START_TEST(the_log_waits_for_the_order_that_is_stuck)
{
    wait_in_a_hook(_i, &(lapse_options){.log = wait_in_log}, &soon_stuck);
}
END_TEST

/* -- Closing where it cannot be done ----------------------------------------------------- */

enum place { RELEASE, ON_ERROR, ON_DEAD, LOG, VISITOR, PLACES };

static lapse *closing;
static atomic_int refused[PLACES];

static void try_to_close(enum place place)
{
    int answer = lapse_close(closing, 0);
    if (answer != LAPSE_EINCALLBACK)
        complain("lapse_close in place %d answered %d", (int)place, answer);
    atomic_fetch_add(&refused[place], 1);
}

/* With NULL as its argument it is quiet: closing itself calls it too. */
static void close_in_release(void *arg)
{
    if (arg != NULL)
        try_to_close(RELEASE);
}

static void close_in_on_error(void *hook_arg, const lapse_order *order, const char *error)
{
    (void)hook_arg, (void)order, (void)error;
    try_to_close(ON_ERROR);
}

static void close_in_on_dead(void *hook_arg, const struct lapse_info *dead)
{
    (void)hook_arg, (void)dead;
    try_to_close(ON_DEAD);
}

static void close_in_log(void *hook_arg, lapse_level level, const char *message)
{
    (void)hook_arg, (void)level, (void)message;
    try_to_close(LOG);
}

static bool close_in_visitor(const lapse_info *info, void *arg)
{
    (void)info, (void)arg;
    try_to_close(VISITOR);
    return true;
}

static const lapse_options closing_hooks = {.lease = LAPSE_SECONDS(10),
                                            .release = close_in_release,
                                            .on_error = close_in_on_error,
                                            .on_dead = close_in_on_dead,
                                            .log = close_in_log};

static rig rig_closing(int engine)
{
    rig r = rig_manual(engine, START, &closing_hooks);
    closing = r.s;
    for (int place = 0; place < PLACES; place++)
        atomic_store(&refused[place], 0);
    return r;
}

static void put_releasing(lapse *s, const char *id, lapse_ns delay, lapse_callback fn)
{
    lapse_spec spec = {.id = id, .delay = delay, .fn = fn, .arg = &closing, .flags = LAPSE_REPLACE};
    ck_assert_msg(lapse_put(s, &spec) > 0, "%s", lapse_error_detail());
}

static lapse_verdict say_done(const lapse_order *order, void *arg)
{
    (void)order, (void)arg;
    return LAPSE_DONE;
}

static lapse_verdict say_fail(const lapse_order *order, void *arg)
{
    (void)arg;
    return lapse_fail(order, "gateway down");
}

static lapse_verdict say_reject(const lapse_order *order, void *arg)
{
    (void)arg;
    return lapse_reject(order, "no such order");
}

/* What `place` was told since the last call. */
static int refusals(enum place place)
{
    return atomic_exchange(&refused[place], 0);
}

START_TEST(closing_in_release)
{
    rig r = rig_closing(_i);
    put_releasing(r.s, "ran", 0, say_done);
    advance(&r, LAPSE_MS(1));
    ck_assert_int_eq(refusals(RELEASE), 1);
    put_releasing(r.s, "replaced", LAPSE_HOURS(1), say_done);
    put_releasing(r.s, "replaced", LAPSE_HOURS(1), say_done);
    ck_assert_int_eq(refusals(RELEASE), 1);
    lapse_spec spec = {
        .id = "replaced", .delay = 1, .fn = say_done, .arg = &closing, .flags = LAPSE_REPLACE};
    int64_t result;
    ck_assert_int_eq(lapse_schedule_many(r.s, &spec, 1, &result), 1);
    ck_assert_int_eq(refusals(RELEASE), 1);
    ck_assert_int_eq(lapse_cancel(r.s, "replaced", LAPSE_ANY), LAPSE_FATE_CANCELLED);
    ck_assert_int_eq(refusals(RELEASE), 1);
    ck_assert_int_eq(lapse_handle(r.s, "q", say_done, &closing, close_in_release, NULL), 0);
    ck_assert_int_eq(lapse_handle(r.s, "q", NULL, NULL, NULL, NULL), 0);
    ck_assert_int_eq(refusals(RELEASE), 1);
    rig_close(&r);
}
END_TEST

START_TEST(closing_in_on_error)
{
    rig r = rig_closing(_i);
    ck_assert_int_gt(lapse_schedule(r.s, "o", 0, say_fail, NULL), 0);
    advance(&r, LAPSE_MS(1));
    ck_assert_int_eq(refusals(ON_ERROR), 1);
    put(r.s, "A", "a", 0);
    ck_assert_int_eq(lapse_clock_advance(r.clock, LAPSE_MS(1)), 0);
    const lapse_order *order = poll_one(r.s, "A", "a");
    ck_assert_int_eq(lapse_settle(r.s, order->fence, LAPSE_FAIL, 0, "no route"), 0);
    ck_assert_int_eq(refusals(ON_ERROR), 1);
    rig_close(&r);
}
END_TEST

START_TEST(closing_in_on_dead_and_log)
{
    rig r = rig_closing(_i);
    ck_assert_int_gt(lapse_schedule(r.s, "o", 0, say_reject, NULL), 0);
    advance(&r, LAPSE_MS(1));
    ck_assert_int_eq(refusals(ON_DEAD), 1);
    put(r.s, "A", "a", 0);
    ck_assert_int_eq(lapse_clock_advance(r.clock, LAPSE_MS(1)), 0);
    (void)poll_one(r.s, "A", "a"); /* never settled */
    advance(&r, LAPSE_SECONDS(11));
    ck_assert_int_eq(refusals(LOG), 1);
    rig_close(&r);
}
END_TEST

START_TEST(closing_in_visitors)
{
    rig r = rig_closing(_i);
    put_many(r.s, "q", "o", 40, LAPSE_HOURS(1));
    ck_assert_int_eq(lapse_each(r.s, 0, close_in_visitor, NULL), 40);
    ck_assert_int_eq(refusals(VISITOR), 40);
    for (int i = 0; i < 3; i++) {
        char id[32];
        snprintf(id, sizeof id, "dead%d", i);
        ck_assert_int_gt(lapse_schedule(r.s, id, 0, say_reject, NULL), 0);
    }
    advance(&r, LAPSE_MS(1));
    ck_assert_int_eq(lapse_each(r.s, LAPSE_STATE_DEAD, close_in_visitor, NULL), 3);
    ck_assert_int_eq(refusals(VISITOR), 3);
    rig_close(&r);
}
END_TEST

START_TEST(closing_in_hooks_of_a_worker)
{
    rig r = rig_closing(_i);
    ck_assert_int_eq(lapse_start(r.s, 2), 0);
    put_releasing(r.s, "1", 0, say_done);
    ck_assert(until_at_least(&refused[RELEASE], 1));
    put_releasing(r.s, "2", 0, say_fail);
    put_releasing(r.s, "3", 0, say_reject);
    ck_assert_int_eq(lapse_clock_advance(r.clock, LAPSE_MS(1)), 0);
    ck_assert(until_at_least(&refused[ON_ERROR], 1));
    ck_assert(until_at_least(&refused[ON_DEAD], 1));
    put_releasing(r.s, "4", 0, say_done); /* The workers are sound. */
    ck_assert_int_eq(lapse_clock_advance(r.clock, LAPSE_MS(1)), 0);
    ck_assert(until_at_least(&refused[RELEASE], 3));
    lapse_stop(r.s);
    ck_assert_int_eq(lapse_purge(r.s, NULL, LAPSE_ANY), 1);
    rig_close(&r);
}
END_TEST

/* -- The time limit of closing ------------------------------------------------------------ */

static gate entered, leave;

static void stay(void)
{
    gate_open(&entered);
    if (!gate_pass(&leave))
        complain("a hook was not let go");
}

static void stay_in_release(void *arg)
{
    if (arg != NULL)
        stay();
}

static void stay_in_on_dead(void *hook_arg, const struct lapse_info *dead)
{
    (void)hook_arg, (void)dead;
    stay();
}

static void stay_in_log(void *hook_arg, lapse_level level, const char *message)
{
    (void)hook_arg, (void)level, (void)message;
    stay();
}

/* Closing gives up while a hook is busy, and succeeds when it is not. */
static void expect_timeout_while_a_hook_stays(rig *r)
{
    ck_assert(gate_pass(&entered));
    ck_assert_int_eq(lapse_close(r->s, 0), LAPSE_ETIMEOUT);
    ck_assert_int_eq(lapse_close(r->s, LAPSE_MS(5)), LAPSE_ETIMEOUT);
    ck_assert(!gate_is_open(&leave));
    gate_open(&leave);
    rig_close(r);
    gate_destroy(&entered);
    gate_destroy(&leave);
}

static rig rig_staying(int engine, const lapse_options *hooks)
{
    rig r = rig_manual(engine, START, hooks);
    gate_init(&entered);
    gate_init(&leave);
    ck_assert_int_eq(lapse_start(r.s, 1), 0);
    return r;
}

START_TEST(the_time_limit_holds_while_a_worker_is_in_release)
{
    rig r = rig_staying(_i, &(lapse_options){.release = stay_in_release});
    ck_assert_int_gt(lapse_schedule(r.s, "o", 0, say_done, &entered), 0);
    expect_timeout_while_a_hook_stays(&r);
}
END_TEST

START_TEST(the_time_limit_holds_while_a_worker_is_in_on_dead)
{
    rig r = rig_staying(_i, &(lapse_options){.on_dead = stay_in_on_dead});
    ck_assert_int_gt(lapse_schedule(r.s, "o", 0, say_reject, NULL), 0);
    expect_timeout_while_a_hook_stays(&r);
}
END_TEST

static gate busy;

static lapse_verdict run_until_a_hook_is_entered(const lapse_order *order, void *arg)
{
    (void)order, (void)arg;
    gate_open(&busy);
    if (!gate_pass(&entered))
        complain("nobody looked after the callback");
    return LAPSE_DONE;
}

static bool nothing_runs(void *arg)
{
    return stats_of(arg).running == 0;
}

/* The only worker is busy: the log is told on the thread that looks after it. */
START_TEST(the_time_limit_holds_while_the_log_is_written)
{
    rig r = rig_staying(_i, &(lapse_options){.log = stay_in_log, .stuck_after = LAPSE_SECONDS(1)});
    gate_init(&busy);
    ck_assert_int_gt(lapse_schedule(r.s, "o", 0, run_until_a_hook_is_entered, NULL), 0);
    ck_assert(gate_pass(&busy));
    ck_assert_int_eq(lapse_clock_advance(r.clock, LAPSE_SECONDS(2)), 0);
    ck_assert(gate_pass(&entered));
    ck_assert(until(nothing_runs, r.s));
    expect_timeout_while_a_hook_stays(&r);
    gate_destroy(&busy);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("hooks");
    TCase *group = add_group(suite, "hooks");
    ADD_FOR_ENGINES(group, a_hook_settles_the_order_that_another_is_told_of);
    ADD_FOR_ENGINES(group, on_error_waits_for_the_order_that_was_lost);
    ADD_FOR_ENGINES(group, the_log_waits_for_the_order_that_was_lost);
    ADD_FOR_ENGINES(group, the_log_waits_for_the_order_that_is_stuck);
    group = add_group(suite, "closing");
    ADD_FOR_ENGINES(group, closing_in_release);
    ADD_FOR_ENGINES(group, closing_in_on_error);
    ADD_FOR_ENGINES(group, closing_in_on_dead_and_log);
    ADD_FOR_ENGINES(group, closing_in_visitors);
    ADD_FOR_ENGINES(group, closing_in_hooks_of_a_worker);
    ADD_FOR_ENGINES(group, the_time_limit_holds_while_a_worker_is_in_release);
    ADD_FOR_ENGINES(group, the_time_limit_holds_while_a_worker_is_in_on_dead);
    ADD_FOR_ENGINES(group, the_time_limit_holds_while_the_log_is_written);
    return run_suite(suite);
}
