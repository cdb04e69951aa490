/* test_hung.c - callbacks that never return: P-27.
 *
 * Such a one is named, blocks no other worker, and its order is tried again elsewhere. */
/* tiers: quick full soak */
/* valgrind */
#include "delivery.h"

#include <stdlib.h>

/* -- The log --------------------------------------------------------------------------- */

struct journal {
    pthread_mutex_t lock;
    int count;          /* under lock */
    char lines[8][256]; /* under lock */
};

static void write_down(void *hook_arg, lapse_level level, const char *message)
{
    struct journal *j = hook_arg;
    pthread_mutex_lock(&j->lock);
    if (level != LAPSE_WARNING)
        complain("level %d: %s", (int)level, message);
    if (j->count < 8)
        snprintf(j->lines[j->count], sizeof j->lines[0], "%s", message);
    j->count++;
    pthread_mutex_unlock(&j->lock);
}

static void journal_open(struct journal *j, lapse_options *options)
{
    memset(j, 0, sizeof *j);
    pthread_mutex_init(&j->lock, NULL);
    options->hook_arg = j;
    options->log = write_down;
}

/* How many lines there are, and whether the last one names `id`. */
static int lines_written(struct journal *j, const char *id)
{
    pthread_mutex_lock(&j->lock);
    int count = j->count;
    if (id != NULL && (count == 0 || count > 8 || strstr(j->lines[count - 1], id) == NULL))
        complain("the log does not name %s: %s", id, count > 0 ? j->lines[count - 1] : "(empty)");
    pthread_mutex_unlock(&j->lock);
    return count;
}

static bool has_line(void *arg)
{
    return lines_written(arg, NULL) > 0;
}

/* -- P-27 ------------------------------------------------------------------------------------- */

struct hung {
    rig r;
    struct journal log;
    gate go_on;
    atomic_int entered, returned; /* of those that hang */
    atomic_int runs;              /* of the others */
};

/* A payment call that never comes back for some orders; for the others it is quick. */
static lapse_verdict pay(const lapse_order *order, void *arg)
{
    struct hung *h = arg;
    if (strncmp(order->id, "stuck", 5) != 0 || order->attempt > 1) {
        if (order->late > LAPSE_MS(1))
            complain("%s is %lld ns late", order->id, (long long)order->late);
        atomic_fetch_add(&h->runs, 1);
        return LAPSE_DONE;
    }
    atomic_fetch_add(&h->entered, 1);
    if (!gate_pass(&h->go_on))
        complain("%s was never let go", order->id);
    atomic_fetch_add(&h->returned, 1);
    return LAPSE_DONE;
}

/* Payments are the orders of "q". */
static void hung_open(struct hung *h, int engine, lapse_options options, const lapse_policy *policy)
{
    memset(h, 0, sizeof *h);
    gate_init(&h->go_on);
    journal_open(&h->log, &options);
    h->r = rig_manual(engine, START, &options);
    ck_assert_int_eq(lapse_handle(h->r.s, "q", pay, h, NULL, policy), 0);
}

static void hung_close(struct hung *h)
{
    rig_close(&h->r);
    gate_destroy(&h->go_on);
}

/* So many threads begin what is due, and so many of them hang in it. */
static void start_until_stuck(struct hung *h, unsigned threads, int stuck)
{
    ck_assert_int_eq(lapse_start(h->r.s, threads), 0);
    ck_assert_int_eq(lapse_clock_advance(h->r.clock, LAPSE_MS(1)), 0);
    ck_assert(until_at_least(&h->entered, stuck));
}

/* Time goes on by `by`; those who can run what is due then have done so. */
static void let_run(struct hung *h, lapse_ns by, int runs)
{
    ck_assert_int_eq(lapse_clock_advance(h->r.clock, by), 0);
    ck_assert(until_at_least(&h->runs, runs));
}

START_TEST(p27_the_others_run_on_time)
{
    enum { TOGETHER = 60, SHORT = 1000 };
    struct hung h;
    lapse_options options = {.stuck_after = LAPSE_HOURS(9)};
    hung_open(&h, _i, options, &(lapse_policy){.stuck_after = LAPSE_SECONDS(20)});
    ck_assert_int_eq(lapse_start(h.r.s, 4), 0);
    put(h.r.s, "q", "stuck order", LAPSE_SECONDS(1));
    put_many(h.r.s, "q", "together", TOGETHER, LAPSE_SECONDS(1)); /* In one batch with it. */
    put_many(h.r.s, "q", "short", SHORT, LAPSE_SECONDS(2));
    let_run(&h, LAPSE_SECONDS(1), TOGETHER);
    ck_assert(until_at_least(&h.entered, 1));
    let_run(&h, LAPSE_SECONDS(1), TOGETHER + SHORT);
    ck_assert(until_others_sleep());
    ck_assert_uint_eq(stats_of(h.r.s).running, 1);
    ck_assert_int_eq(lapse_cancel(h.r.s, "stuck order", LAPSE_ANY), LAPSE_FATE_RUNNING);
    ck_assert_int_eq(lapse_clock_advance(h.r.clock, LAPSE_SECONDS(19) - 1), 0);
    ck_assert(until_others_sleep());
    ck_assert_int_eq(lines_written(&h.log, NULL), 0);
    ck_assert_int_eq(lapse_clock_advance(h.r.clock, 1), 0);
    ck_assert(until(has_line, &h.log));
    ck_assert_int_eq(lines_written(&h.log, "\"stuck order\""), 1);
    ck_assert_int_eq(lapse_clock_advance(h.r.clock, LAPSE_MINUTES(10)), 0);
    ck_assert(until_others_sleep());
    ck_assert_int_eq(lines_written(&h.log, NULL), 1); /* Once. */
    ck_assert_int_eq(lapse_close(h.r.s, LAPSE_MS(10)), LAPSE_ETIMEOUT);
    ck_assert_msg(strstr(lapse_error_detail(), "\"stuck order\"") != NULL, "the detail is: %s",
                  lapse_error_detail());
    gate_open(&h.go_on);
    hung_close(&h);
}
END_TEST

/* All four hang; what fell due with them is still to be had, and goes to the first free. */
START_TEST(p27_the_rest_of_a_batch_can_be_cancelled)
{
    enum { REST = 50 };
    struct hung h;
    hung_open(&h, _i, (lapse_options){.max_pending = 0}, NULL);
    put_many(h.r.s, "q", "stuck", 4, 0);
    put_many(h.r.s, "q", "cancelled", REST, 0);
    put_many(h.r.s, "q", "moved", REST, 0);
    put_many(h.r.s, "q", "rest", REST, 0);
    start_until_stuck(&h, 4, 4);
    for (int i = 0; i < REST; i++) {
        char id[16];
        snprintf(id, sizeof id, "cancelled%d", i);
        ck_assert_int_eq(lapse_cancel(h.r.s, id, LAPSE_ANY), LAPSE_FATE_CANCELLED);
        snprintf(id, sizeof id, "moved%d", i);
        ck_assert_int_eq(lapse_reschedule(h.r.s, id, LAPSE_ANY, LAPSE_HOURS(1)),
                         LAPSE_FATE_RESCHEDULED);
    }
    gate_open(&h.go_on);
    ck_assert(until_at_least(&h.runs, REST));
    ck_assert(until_others_sleep());
    ck_assert_int_eq(atomic_load(&h.runs), REST);
    ck_assert_uint_eq(pending_in(h.r.s), REST);
    expect_books(h.r.s);
    hung_close(&h);
}
END_TEST

/* The only worker hangs: the others wait for it, but somebody tells. */
START_TEST(p27_a_single_worker_that_hangs_is_named)
{
    struct hung h;
    hung_open(&h, _i, (lapse_options){.max_pending = 0}, NULL);
    put_many(h.r.s, "q", "stuck", 1, 0);
    put_many(h.r.s, "q", "waiting", 5, LAPSE_MS(1));
    start_until_stuck(&h, 1, 1);
    ck_assert(until_others_sleep());
    ck_assert_int_eq(atomic_load(&h.runs), 0);
    ck_assert_int_eq(lapse_cancel(h.r.s, "waiting0", LAPSE_ANY), LAPSE_FATE_CANCELLED);
    for (int i = 1; i < 5; i++) {
        char id[16];
        snprintf(id, sizeof id, "waiting%d", i);
        ck_assert_int_eq(lapse_reschedule(h.r.s, id, LAPSE_ANY, LAPSE_MINUTES(1)),
                         LAPSE_FATE_RESCHEDULED);
    }
    ck_assert_int_eq(lapse_clock_advance(h.r.clock, LAPSE_MINUTES(1)), 0); /* The default. */
    ck_assert(until(has_line, &h.log));
    ck_assert_int_eq(lines_written(&h.log, "\"stuck0\""), 1);
    gate_open(&h.go_on);
    ck_assert(until_at_least(&h.runs, 4));
    hung_close(&h);
}
END_TEST

/* Beyond its run limit the order goes on on another worker; the first one is too late. */
START_TEST(p27_a_hung_order_is_tried_again_elsewhere)
{
    struct hung h;
    lapse_policy policy = {.run_limit = LAPSE_SECONDS(10)};
    hung_open(&h, _i, (lapse_options){.max_pending = 0}, &policy);
    put(h.r.s, "q", "stuck order", 0);
    start_until_stuck(&h, 4, 1);
    ck_assert_int_eq(lapse_clock_advance(h.r.clock, LAPSE_SECONDS(10)), 0);
    ck_assert(until(has_line, &h.log));
    let_run(&h, LAPSE_MS(1), 1); /* On the wheel it is due at the next tick. */
    ck_assert(until_others_sleep());
    ck_assert_uint_eq(stats_of(h.r.s).done, 1);
    ck_assert_uint_eq(stats_of(h.r.s).lost, 1);
    ck_assert_int_eq(atomic_load(&h.returned), 0);
    ck_assert_int_eq(lapse_close(h.r.s, LAPSE_MS(10)), LAPSE_ETIMEOUT); /* It still runs here. */
    ck_assert_ptr_nonnull(strstr(lapse_error_detail(), "\"stuck order\""));
    gate_open(&h.go_on);
    ck_assert(until_at_least(&h.returned, 1));
    hung_close(&h);
}
END_TEST

/* A host that calls callbacks itself is told too, once, by whoever looks next. */
START_TEST(a_stuck_callback_is_named_when_it_is_time)
{
    struct journal log;
    lapse_options options = {.stuck_after = LAPSE_SECONDS(7)};
    journal_open(&log, &options);
    rig r = rig_manual(_i, START, &options);
    const lapse_order *order;
    lapse_callback fn;
    void *arg;
    ck_assert_int_gt(lapse_schedule(r.s, "called", 0, never, NULL), 0);
    put(r.s, "q", "taken", 0);
    ck_assert_int_eq(lapse_clock_advance(r.clock, LAPSE_MS(1)), 0);
    ck_assert_int_eq(lapse_begin(r.s, LAPSE_FOREVER, &order, &fn, &arg), 1);
    int64_t taken = poll_one(r.s, "q", "taken")->fence;
    ck_assert_int_eq(lapse_timeout(r.s), LAPSE_SECONDS(7));
    advance(&r, LAPSE_SECONDS(7) - 1);
    ck_assert_int_eq(lines_written(&log, NULL), 0);
    advance(&r, 1);
    ck_assert_int_eq(lines_written(&log, "\"called\""), 1);
    advance(&r, LAPSE_SECONDS(20));
    ck_assert_int_eq(lines_written(&log, NULL), 1); /* A taker may take its time, */
    advance(&r, LAPSE_SECONDS(10));
    ck_assert_int_eq(lines_written(&log, "\"taken\""), 2); /* until its lease ends. */
    ck_assert_int_eq(lapse_settle(r.s, taken, LAPSE_DONE, 0, NULL), LAPSE_ESTALE);
    ck_assert_int_eq(lapse_settle(r.s, order->fence, LAPSE_DONE, 0, NULL), 0);
    rig_close(&r);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("hung callbacks");
    TCase *group = add_group(suite, "hung callbacks");
    ADD_FOR_ENGINES(group, p27_the_others_run_on_time);
    ADD_FOR_ENGINES(group, p27_the_rest_of_a_batch_can_be_cancelled);
    ADD_FOR_ENGINES(group, p27_a_single_worker_that_hangs_is_named);
    ADD_FOR_ENGINES(group, p27_a_hung_order_is_tried_again_elsewhere);
    ADD_FOR_ENGINES(group, a_stuck_callback_is_named_when_it_is_time);
    return run_suite(suite);
}
