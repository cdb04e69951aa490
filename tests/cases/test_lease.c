/* test_lease.c - claims that last too long: P-27, P-59, P-63, P-71.
 *
 * A claim holds its order until its lease or run limit ends; then the order goes on without
 * it, and what the lost consumer says is stale. Two runs cannot always be prevented; two
 * bookings are. A callback that never returns is named, and blocks no other worker. */
/* tiers: quick full soak */
/* valgrind */
#include "delivery.h"

#include <sched.h>
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

/* -- Leases of takers --------------------------------------------------------------------- */

static void expect_lease(rig *r, lapse_ns lease)
{
    put(r->s, "q", "o", 0);
    advance(r, r->tick);
    const lapse_order *order = poll_one(r->s, "q", "o");
    int64_t fence = order->fence;
    advance(r, lease - 1);
    ck_assert(lapse_holds(r->s, fence));
    expect_nothing(r->s, "q");
    advance(r, 1);
    ck_assert(!lapse_holds(r->s, fence));
    advance(r, r->tick);
    const lapse_order *again = poll_one(r->s, "q", "o");
    ck_assert_int_eq(again->attempt, 2);
    ck_assert_int_eq(again->generation, order->generation); /* Still the loser's to read. */
    ck_assert_int_gt(again->fence, fence);
    ck_assert(lapse_holds(r->s, again->fence));
    ck_assert_int_eq(lapse_settle(r->s, again->fence, LAPSE_DONE, 0, NULL), 0);
    ck_assert_int_eq(lapse_settle(r->s, fence, LAPSE_DONE, 0, NULL), LAPSE_ESTALE);
    ck_assert_uint_eq(stats_of(r->s).lost, 1);
    ck_assert_uint_eq(stats_of(r->s).stale, 1);
    ck_assert_uint_eq(stats_of(r->s).done, 1);
    expect_books(r->s);
}

START_TEST(a_lease_is_what_the_options_say)
{
    rig r = rig_manual(_i, START, NULL);
    expect_lease(&r, LAPSE_SECONDS(30));
    rig_close(&r);
    lapse_options options = {.lease = LAPSE_SECONDS(7)};
    r = rig_manual(_i, START, &options);
    expect_lease(&r, LAPSE_SECONDS(7));
    rig_close(&r);
    char url[96];
    snprintf(url, sizeof url, "%s&lease=250ms", engine_url(_i));
    r = rig_url(url, _i == WHEEL ? LAPSE_MS(1) : 0, START, &options);
    expect_lease(&r, LAPSE_MS(250));
    rig_close(&r);
}
END_TEST

START_TEST(a_lease_is_renewed)
{
    lapse_options options = {.lease = LAPSE_SECONDS(10)};
    rig r = rig_manual(_i, START, &options);
    put(r.s, "q", "o", 0);
    advance(&r, r.tick);
    int64_t fence = poll_one(r.s, "q", "o")->fence;
    for (int i = 0; i < 50; i++) { /* From now, not from the lease's end. */
        advance(&r, LAPSE_SECONDS(9));
        ck_assert_int_eq(lapse_renew(r.s, fence, 0), 0);
        expect_nothing(r.s, "q");
    }
    ck_assert_int_eq(lapse_renew(r.s, fence, LAPSE_HOURS(1)), 0); /* A long one, */
    advance(&r, LAPSE_HOURS(1) - 1);
    ck_assert(lapse_holds(r.s, fence));
    ck_assert_int_eq(lapse_renew(r.s, fence, LAPSE_SECONDS(1)), 0); /* and a short one. */
    advance(&r, LAPSE_SECONDS(1));
    ck_assert(!lapse_holds(r.s, fence));
    ck_assert_int_eq(lapse_renew(r.s, fence, LAPSE_SECONDS(1)), LAPSE_ESTALE);
    advance(&r, r.tick);
    ck_assert_int_eq(poll_one(r.s, "q", "o")->attempt, 2);
    rig_close(&r);
}
END_TEST

START_TEST(renewing_has_errors)
{
    rig r = rig_manual(_i, START, NULL);
    put(r.s, "q", "o", 0);
    advance(&r, r.tick);
    int64_t fence = poll_one(r.s, "q", "o")->fence;
    ck_assert_int_eq(lapse_renew(r.s, fence, -1), LAPSE_ERANGE);
    ck_assert_int_eq(lapse_renew(r.s, fence, LAPSE_DELAY_MAX + 1), LAPSE_ERANGE);
    ck_assert_int_eq(lapse_renew(NULL, fence, 0), LAPSE_EINVAL);
    const int64_t strangers[] = {0, -1, INT64_MIN, INT64_MAX, fence + 1, fence - 1};
    for (size_t i = 0; i < sizeof strangers / sizeof *strangers; i++) {
        ck_assert_int_eq(lapse_renew(r.s, strangers[i], 0), LAPSE_ESTALE);
        ck_assert(!lapse_holds(r.s, strangers[i]));
    }
    ck_assert(!lapse_holds(NULL, fence));
    ck_assert(lapse_holds(r.s, fence));
    ck_assert_int_eq(lapse_settle(r.s, fence, LAPSE_DONE, 0, NULL), 0);
    ck_assert(!lapse_holds(r.s, fence));
    ck_assert_int_eq(lapse_renew(r.s, fence, 0), LAPSE_ESTALE);
    rig_close(&r);
}
END_TEST

START_TEST(a_superseded_claim_is_not_held)
{
    rig r = rig_manual(_i, START, NULL);
    put(r.s, "q", "o", 0);
    advance(&r, r.tick);
    int64_t fence = poll_one(r.s, "q", "o")->fence;
    put(r.s, "q", "o", LAPSE_HOURS(1)); /* The next generation. */
    ck_assert(!lapse_holds(r.s, fence));
    ck_assert_int_eq(lapse_renew(r.s, fence, 0), LAPSE_ESTALE);
    advance(&r, LAPSE_MINUTES(1)); /* Its lease ends: nothing is repeated. */
    expect_nothing(r.s, "q");
    ck_assert_int_eq(lapse_settle(r.s, fence, LAPSE_DONE, 0, NULL), LAPSE_ESTALE);
    ck_assert_uint_eq(pending_in(r.s), 1);
    expect_books(r.s);
    rig_close(&r);
}
END_TEST

/* -- P-59 ---------------------------------------------------------------------------------- */

START_TEST(p59_a_lost_lease_books_nothing)
{
    lapse_options options = {.lease = LAPSE_SECONDS(1), .keep = LAPSE_HOURS(1)};
    rig r = rig_manual(_i, START, &options);
    put(r.s, "q", "o", 0);
    advance(&r, r.tick);
    const lapse_order *a = poll_one(r.s, "q", "o");
    advance(&r, LAPSE_MS(1500));
    const lapse_order *b = poll_one(r.s, "q", "o");
    ck_assert_int_eq(lapse_renew(r.s, b->fence, LAPSE_SECONDS(60)), 0);
    ck_assert_str_eq(b->id, a->id);
    ck_assert_int_eq(b->attempt, a->attempt + 1);
    ck_assert_int_gt(b->fence, a->fence);
    int64_t lost = a->fence, held = b->fence;
    ck_assert_int_eq(lapse_renew(r.s, lost, LAPSE_SECONDS(1)), LAPSE_ESTALE);
    ck_assert_int_eq(lapse_settle(r.s, lost, LAPSE_DONE, 0, NULL), LAPSE_ESTALE);
    ck_assert_int_eq(state_of(r.s, "o"), LAPSE_STATE_RUNNING);
    ck_assert_int_eq(lapse_settle(r.s, held, LAPSE_DONE, 0, NULL), 0);
    ck_assert_int_eq(lapse_settle(r.s, held, LAPSE_DONE, 0, NULL), LAPSE_ESTALE);
    ck_assert_int_eq(state_of(r.s, "o"), LAPSE_STATE_DONE);
    ck_assert_uint_eq(stats_of(r.s).done, 1);
    expect_books(r.s);
    rig_close(&r);
}
END_TEST

/* Whatever the loser says, and whether the winner said something before it or not. */
START_TEST(p59_no_verdict_of_the_loser_counts)
{
    for (int verdict = LAPSE_DONE; verdict <= LAPSE_GIVE_BACK; verdict++)
        for (int loser_first = 0; loser_first < 2; loser_first++) {
            lapse_options options = {.lease = LAPSE_SECONDS(1)};
            rig r = rig_manual(_i, START, &options);
            put(r.s, "q", "o", 0);
            advance(&r, r.tick);
            int64_t lost = poll_one(r.s, "q", "o")->fence;
            advance(&r, LAPSE_SECONDS(2));
            int64_t held = poll_one(r.s, "q", "o")->fence;
            if (!loser_first)
                ck_assert_int_eq(lapse_settle(r.s, held, LAPSE_DONE, 0, NULL), 0);
            ck_assert_int_eq(lapse_settle(r.s, lost, (lapse_verdict)verdict, 0, "late"),
                             LAPSE_ESTALE);
            if (loser_first)
                ck_assert_int_eq(lapse_settle(r.s, held, LAPSE_DONE, 0, NULL), 0);
            ck_assert_uint_eq(pending_in(r.s), 0);
            ck_assert_uint_eq(stats_of(r.s).done, 1);
            ck_assert_uint_eq(stats_of(r.s).dead_total, 0);
            expect_books(r.s);
            rig_close(&r);
        }
}
END_TEST

/* With renewal the second never gets it; a renewal that comes too late is none. */
START_TEST(p59_renewal_on_and_failing)
{
    lapse_options options = {.lease = LAPSE_SECONDS(1)};
    rig r = rig_manual(_i, START, &options);
    put(r.s, "q", "o", 0);
    advance(&r, r.tick);
    int64_t fence = poll_one(r.s, "q", "o")->fence;
    for (int i = 0; i < 10; i++) { /* Three seconds of work. */
        advance(&r, LAPSE_MS(300));
        ck_assert_int_eq(lapse_renew(r.s, fence, 0), 0);
        expect_nothing(r.s, "q");
    }
    advance(&r, LAPSE_SECONDS(2)); /* The renewals are held up. */
    ck_assert_int_eq(lapse_renew(r.s, fence, 0), LAPSE_ESTALE);
    int64_t second = poll_one(r.s, "q", "o")->fence;
    ck_assert(!lapse_holds(r.s, fence));
    ck_assert(lapse_holds(r.s, second));
    ck_assert_int_eq(lapse_settle(r.s, fence, LAPSE_DONE, 0, NULL), LAPSE_ESTALE);
    ck_assert_int_eq(lapse_settle(r.s, second, LAPSE_DONE, 0, NULL), 0);
    rig_close(&r);
}
END_TEST

/* Two who work in turn for longer than their lease and settle all the same. */
enum { SLOW_TAKERS = 6, SLOW_ORDERS = 400 };

static struct slow_work {
    lapse *s;
    int count;
    atomic_int ended;
    atomic_int booked[SLOW_ORDERS];
    _Atomic int64_t fence[SLOW_ORDERS]; /* of the last delivery */
} slow_work;

static void work_for(lapse_ns span)
{
    lapse_ns end = boot_now() + span;
    while (boot_now() < end)
        sched_yield();
}

static void take_and_dawdle(void *arg, int number)
{
    rng luck = {(uint64_t)number};
    (void)arg;
    while (atomic_load(&slow_work.ended) < slow_work.count) {
        const lapse_order *order;
        int result = lapse_take(slow_work.s, "q", LAPSE_MS(1), &order);
        if (result != 1)
            continue;
        int i = atoi(order->id);
        int64_t before = atomic_load(&slow_work.fence[i]);
        while (before < order->fence &&
               !atomic_compare_exchange_weak(&slow_work.fence[i], &before, order->fence))
            continue;
        work_for(LAPSE_US(rng_range(&luck, 0, 4) == 0 ? 3000 : 50));
        int64_t fence = order->fence;
        if (lapse_settle(slow_work.s, fence, LAPSE_DONE, 0, NULL) == 0) {
            atomic_fetch_add(&slow_work.booked[i], 1);
            atomic_fetch_add(&slow_work.ended, 1);
        }
    }
}

static void count_dead(void *hook_arg, const lapse_info *dead)
{
    (void)hook_arg;
    if (dead->reason != LAPSE_REASON_LOST)
        complain("%s is dead for another reason: %d", dead->id, (int)dead->reason);
    atomic_fetch_add(&slow_work.booked[atoi(dead->id)], 1);
    atomic_fetch_add(&slow_work.ended, 1);
}

START_TEST(p59_each_order_is_booked_once)
{
    lapse_options options = {.lease = LAPSE_MS(2), .on_dead = count_dead};
    rig r = rig_real(_i, &options);
    memset(&slow_work, 0, sizeof slow_work);
    slow_work.s = r.s;
    slow_work.count = (int)tier(100, SLOW_ORDERS, SLOW_ORDERS);
    put_many(r.s, "q", "", slow_work.count, 0);
    crew_run(SLOW_TAKERS, take_and_dawdle, NULL);
    for (int i = 0; i < slow_work.count; i++)
        ck_assert_int_eq(atomic_load(&slow_work.booked[i]), 1);
    lapse_stats t = stats_of(r.s);
    printf("%d orders, %d deliveries, %d lost, %d stale, %d dead\n", slow_work.count,
           (int)t.started, (int)t.lost, (int)t.stale, (int)t.dead_total);
    ck_assert_uint_eq(t.done + t.dead_total, (uint64_t)slow_work.count);
    expect_books(r.s);
    rig_close(&r);
}
END_TEST

/* -- A callback beyond its run limit --------------------------------------------------------- */

struct overrun {
    rig *r;
    tape ran;
    int errors;
    char error[64], log_line[256];
};

/* The first attempt takes three seconds, and asks before it writes. */
static lapse_verdict take_three_seconds(const lapse_order *order, void *arg)
{
    struct overrun *o = arg;
    tape_note(order, &o->ran);
    if (order->attempt > 1)
        return LAPSE_DONE;
    ck_assert(lapse_holds(o->r->s, order->fence));
    ck_assert_int_eq(lapse_clock_advance(o->r->clock, LAPSE_SECONDS(3)), 0);
    ck_assert(!lapse_holds(o->r->s, order->fence));
    ck_assert_int_eq(lapse_renew(o->r->s, order->fence, 0), LAPSE_ESTALE);
    return lapse_reject(order, "this is not heard");
}

static void note_overrun(void *hook_arg, const lapse_order *order, const char *error)
{
    struct overrun *o = hook_arg;
    o->errors++;
    snprintf(o->error, sizeof o->error, "%s: %s", order->id, error);
}

static void note_log(void *hook_arg, lapse_level level, const char *message)
{
    struct overrun *o = hook_arg;
    (void)level;
    snprintf(o->log_line, sizeof o->log_line, "%s", message);
}

START_TEST(p59_a_callback_beyond_its_run_limit)
{
    struct overrun o = {.errors = 0};
    lapse_options options = {.hook_arg = &o, .on_error = note_overrun, .log = note_log};
    rig r = rig_manual(_i, START, &options);
    o.r = &r;
    tape_open(&o.ran, r.s);
    lapse_policy policy = {.run_limit = LAPSE_SECONDS(1)};
    ck_assert_int_eq(lapse_handle(r.s, "q", take_three_seconds, &o, NULL, &policy), 0);
    put(r.s, "q", "o", 0);
    advance(&r, r.tick);
    advance(&r, r.tick);
    ck_assert_uint_eq(tape_count(&o.ran), 2);
    ck_assert_int_eq(o.ran.entries[1].attempt, 2);
    ck_assert_int_gt(o.ran.entries[1].fence, o.ran.entries[0].fence);
    ck_assert_int_eq(o.errors, 1);
    ck_assert_msg(strncmp(o.error, "o: ", 3) == 0 && strstr(o.error, "run_limit") != NULL,
                  "on_error was told: %s", o.error);
    ck_assert_ptr_nonnull(strstr(o.log_line, "\"o\""));
    lapse_stats t = stats_of(r.s);
    ck_assert_uint_eq(t.lost, 1);
    ck_assert_uint_eq(t.stale, 1);
    ck_assert_uint_eq(t.done, 1);
    ck_assert_uint_eq(t.dead_total, 0);
    expect_books(r.s);
    tape_close(&o.ran);
    rig_close(&r);
}
END_TEST

/* An order's own callback has one attempt: with its run limit it is over. */
START_TEST(a_lost_callback_of_its_own_is_not_repeated)
{
    rig r = rig_manual(_i, START, NULL);
    const lapse_order *order;
    lapse_callback fn;
    void *arg;
    ck_assert_int_gt(lapse_schedule(r.s, "o", 0, never, NULL), 0);
    ck_assert_int_eq(lapse_clock_advance(r.clock, LAPSE_MS(1)), 0);
    ck_assert_int_eq(lapse_begin(r.s, LAPSE_FOREVER, &order, &fn, &arg), 1);
    advance(&r, LAPSE_HOURS(1) - 1);
    ck_assert(lapse_holds(r.s, order->fence));
    advance(&r, 1);
    ck_assert(!lapse_holds(r.s, order->fence));
    advance(&r, LAPSE_HOURS(1));
    ck_assert_uint_eq(stats_of(r.s).done, 1);
    ck_assert_uint_eq(stats_of(r.s).lost, 1);
    ck_assert_int_eq(lapse_settle(r.s, order->fence, LAPSE_RETRY, 0, NULL), LAPSE_ESTALE);
    ck_assert_uint_eq(pending_in(r.s), 0);
    expect_books(r.s);
    rig_close(&r);
}
END_TEST

/* -- P-27 ------------------------------------------------------------------------------------- */

struct hung {
    gate go_on;
    atomic_int entered, returned; /* of those that hang */
    atomic_int runs;              /* of the others */
};

static void hung_open(struct hung *h)
{
    memset(h, 0, sizeof *h);
    gate_init(&h->go_on);
}

static void hung_close(struct hung *h)
{
    gate_destroy(&h->go_on);
}

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

/* Time goes on by `by`; those who can run what is due then have done so. */
static void let_run(rig *r, struct hung *h, lapse_ns by, int runs)
{
    ck_assert_int_eq(lapse_clock_advance(r->clock, by), 0);
    ck_assert(until_at_least(&h->runs, runs));
}

START_TEST(p27_the_others_run_on_time)
{
    enum { TOGETHER = 60, SHORT = 1000 };
    struct journal log;
    lapse_options options = {.stuck_after = LAPSE_HOURS(9)};
    journal_open(&log, &options);
    rig r = rig_manual(_i, START, &options);
    struct hung h;
    hung_open(&h);
    lapse_policy policy = {.stuck_after = LAPSE_SECONDS(20)};
    ck_assert_int_eq(lapse_handle(r.s, "q", pay, &h, NULL, &policy), 0);
    ck_assert_int_eq(lapse_start(r.s, 4), 0);
    put(r.s, "q", "stuck order", LAPSE_SECONDS(1));
    put_many(r.s, "q", "together", TOGETHER, LAPSE_SECONDS(1)); /* In one batch with it. */
    put_many(r.s, "q", "short", SHORT, LAPSE_SECONDS(2));
    let_run(&r, &h, LAPSE_SECONDS(1), TOGETHER);
    ck_assert(until_at_least(&h.entered, 1));
    let_run(&r, &h, LAPSE_SECONDS(1), TOGETHER + SHORT);
    ck_assert(until_others_sleep());
    ck_assert_uint_eq(stats_of(r.s).running, 1);
    ck_assert_int_eq(lapse_cancel(r.s, "stuck order", LAPSE_ANY), LAPSE_FATE_RUNNING);
    ck_assert_int_eq(lapse_clock_advance(r.clock, LAPSE_SECONDS(19) - 1), 0);
    ck_assert(until_others_sleep());
    ck_assert_int_eq(lines_written(&log, NULL), 0);
    ck_assert_int_eq(lapse_clock_advance(r.clock, 1), 0);
    ck_assert(until(has_line, &log));
    ck_assert_int_eq(lines_written(&log, "\"stuck order\""), 1);
    ck_assert_int_eq(lapse_clock_advance(r.clock, LAPSE_MINUTES(10)), 0);
    ck_assert(until_others_sleep());
    ck_assert_int_eq(lines_written(&log, NULL), 1); /* Once. */
    ck_assert_int_eq(lapse_close(r.s, LAPSE_MS(10)), LAPSE_ETIMEOUT);
    ck_assert_msg(strstr(lapse_error_detail(), "\"stuck order\"") != NULL, "the detail is: %s",
                  lapse_error_detail());
    gate_open(&h.go_on);
    rig_close(&r);
    hung_close(&h);
}
END_TEST

/* All four hang; what fell due with them is still to be had, and goes to the first free. */
START_TEST(p27_the_rest_of_a_batch_can_be_cancelled)
{
    enum { REST = 50 };
    rig r = rig_manual(_i, START, NULL);
    struct hung h;
    hung_open(&h);
    ck_assert_int_eq(lapse_handle(r.s, "q", pay, &h, NULL, NULL), 0);
    put_many(r.s, "q", "stuck", 4, 0);
    put_many(r.s, "q", "cancelled", REST, 0);
    put_many(r.s, "q", "moved", REST, 0);
    put_many(r.s, "q", "rest", REST, 0);
    ck_assert_int_eq(lapse_start(r.s, 4), 0);
    ck_assert_int_eq(lapse_clock_advance(r.clock, LAPSE_MS(1)), 0);
    ck_assert(until_at_least(&h.entered, 4));
    for (int i = 0; i < REST; i++) {
        char id[16];
        snprintf(id, sizeof id, "cancelled%d", i);
        ck_assert_int_eq(lapse_cancel(r.s, id, LAPSE_ANY), LAPSE_FATE_CANCELLED);
        snprintf(id, sizeof id, "moved%d", i);
        ck_assert_int_eq(lapse_reschedule(r.s, id, LAPSE_ANY, LAPSE_HOURS(1)),
                         LAPSE_FATE_RESCHEDULED);
    }
    gate_open(&h.go_on);
    ck_assert(until_at_least(&h.runs, REST));
    ck_assert(until_others_sleep());
    ck_assert_int_eq(atomic_load(&h.runs), REST);
    ck_assert_uint_eq(pending_in(r.s), REST);
    expect_books(r.s);
    rig_close(&r);
    hung_close(&h);
}
END_TEST

/* The only worker hangs: the others wait for it, but somebody tells. */
START_TEST(p27_a_single_worker_that_hangs_is_named)
{
    struct journal log;
    lapse_options options = {.max_pending = 0};
    journal_open(&log, &options);
    rig r = rig_manual(_i, START, &options);
    struct hung h;
    hung_open(&h);
    ck_assert_int_eq(lapse_handle(r.s, "q", pay, &h, NULL, NULL), 0);
    put_many(r.s, "q", "stuck", 1, 0);
    put_many(r.s, "q", "waiting", 5, LAPSE_MS(1));
    ck_assert_int_eq(lapse_start(r.s, 1), 0);
    ck_assert_int_eq(lapse_clock_advance(r.clock, LAPSE_MS(1)), 0);
    ck_assert(until_at_least(&h.entered, 1));
    ck_assert(until_others_sleep());
    ck_assert_int_eq(atomic_load(&h.runs), 0);
    ck_assert_int_eq(lapse_cancel(r.s, "waiting0", LAPSE_ANY), LAPSE_FATE_CANCELLED);
    for (int i = 1; i < 5; i++) {
        char id[16];
        snprintf(id, sizeof id, "waiting%d", i);
        ck_assert_int_eq(lapse_reschedule(r.s, id, LAPSE_ANY, LAPSE_MINUTES(1)),
                         LAPSE_FATE_RESCHEDULED);
    }
    ck_assert_int_eq(lapse_clock_advance(r.clock, LAPSE_MINUTES(1)), 0); /* The default. */
    ck_assert(until(has_line, &log));
    ck_assert_int_eq(lines_written(&log, "\"stuck0\""), 1);
    gate_open(&h.go_on);
    ck_assert(until_at_least(&h.runs, 4));
    rig_close(&r);
    hung_close(&h);
}
END_TEST

/* Beyond its run limit the order goes on on another worker; the first one is too late. */
START_TEST(p27_a_hung_order_is_tried_again_elsewhere)
{
    struct journal log;
    lapse_options options = {.max_pending = 0};
    journal_open(&log, &options);
    rig r = rig_manual(_i, START, &options);
    struct hung h;
    hung_open(&h);
    lapse_policy policy = {.run_limit = LAPSE_SECONDS(10)};
    ck_assert_int_eq(lapse_handle(r.s, "q", pay, &h, NULL, &policy), 0);
    put(r.s, "q", "stuck order", 0);
    ck_assert_int_eq(lapse_start(r.s, 4), 0);
    ck_assert_int_eq(lapse_clock_advance(r.clock, LAPSE_MS(1)), 0);
    ck_assert(until_at_least(&h.entered, 1));
    ck_assert_int_eq(lapse_clock_advance(r.clock, LAPSE_SECONDS(10)), 0);
    ck_assert(until(has_line, &log));
    let_run(&r, &h, LAPSE_MS(1), 1); /* On the wheel it is due at the next tick. */
    ck_assert(until_others_sleep());
    ck_assert_uint_eq(stats_of(r.s).done, 1);
    ck_assert_uint_eq(stats_of(r.s).lost, 1);
    ck_assert_int_eq(atomic_load(&h.returned), 0);
    ck_assert_int_eq(lapse_close(r.s, LAPSE_MS(10)), LAPSE_ETIMEOUT); /* It still runs here. */
    ck_assert_ptr_nonnull(strstr(lapse_error_detail(), "\"stuck order\""));
    gate_open(&h.go_on);
    ck_assert(until_at_least(&h.returned, 1));
    rig_close(&r);
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

/* -- P-63 ------------------------------------------------------------------------------------- */

/* A worker that takes what is there; the poison kills it. */
struct fleet {
    rig r;
    int deliveries, done;
    int64_t fences[8]; /* of the workers that died */
};

static void work_until_death(void *arg, int number)
{
    struct fleet *f = arg;
    const lapse_order *order;
    (void)number;
    while (lapse_take(f->r.s, "q", 0, &order) == 1) {
        if (strcmp(order->id, "poison") == 0) {
            if (f->deliveries < 8)
                f->fences[f->deliveries] = order->fence;
            if (order->attempt != ++f->deliveries)
                complain("delivery %d is attempt %d", f->deliveries, order->attempt);
            return;
        }
        f->done++;
        if (lapse_settle(f->r.s, order->fence, LAPSE_DONE, 0, NULL) != 0)
            complain("%s", lapse_error_detail());
    }
}

START_TEST(p63_a_task_that_kills_its_worker_ends)
{
    struct fleet f = {.r = rig_manual(_i, START, NULL)};
    put(f.r.s, "q", "poison", 0);
    put_many(f.r.s, "q", "g", 99, 0);
    for (int i = 0; i < 20; i++) { /* The supervisor. */
        advance(&f.r, LAPSE_SECONDS(31));
        crew_run(1, work_until_death, &f);
    }
    check_calm();
    ck_assert_int_eq(f.deliveries, 5);
    ck_assert_int_eq(f.done, 99);
    letter dead = only_letter(f.r.s);
    ck_assert_str_eq(dead.id, "poison");
    ck_assert_int_eq(dead.reason, LAPSE_REASON_LOST);
    ck_assert_int_eq(dead.attempt, 5);
    ck_assert_ptr_nonnull(strstr(dead.error, "lease"));
    for (int i = 0; i < 5; i++) /* Should one of them be alive after all. */
        ck_assert_int_eq(lapse_settle(f.r.s, f.fences[i], LAPSE_DONE, 0, NULL), LAPSE_ESTALE);
    lapse_stats t = stats_of(f.r.s);
    ck_assert_uint_eq(t.lost, 5);
    ck_assert_uint_eq(t.dead_by[LAPSE_REASON_LOST], 1);
    ck_assert_uint_eq(t.done, 99);
    ck_assert_uint_eq(t.failed, 0);
    expect_books(f.r.s);
    rig_close(&f.r);
}
END_TEST

/* The same for a handler: its policy says how often. The host begins and never settles. */
START_TEST(p63_lost_workers_count_as_attempts_of_the_policy)
{
    rig r = rig_manual(_i, START, NULL);
    lapse_policy policy = {.attempts = 3, .run_limit = LAPSE_SECONDS(10)};
    ck_assert_int_eq(lapse_handle(r.s, "q", never, NULL, NULL, &policy), 0);
    put(r.s, "q", "poison", 0);
    put_many(r.s, "q", "g", 99, 0);
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
                ck_assert_int_eq(lapse_settle(r.s, order->fence, LAPSE_DONE, 0, NULL), 0);
                done++;
            }
    }
    ck_assert_int_eq(deliveries, 3);
    ck_assert_int_eq(done, 99);
    letter dead = only_letter(r.s);
    ck_assert_int_eq(dead.reason, LAPSE_REASON_LOST);
    ck_assert_int_eq(dead.attempt, 3);
    ck_assert_uint_eq(stats_of(r.s).lost, 3);
    expect_books(r.s);
    for (int i = 0; i < 3; i++) /* They were slow, not dead. */
        ck_assert_int_eq(lapse_settle(r.s, fences[i], LAPSE_DONE, 0, NULL), LAPSE_ESTALE);
    rig_close(&r);
}
END_TEST

START_TEST(p63_an_operator_can_call_it_off)
{
    rig r = rig_manual(_i, START, NULL);
    put(r.s, "q", "poison", 0);
    advance(&r, r.tick);
    poll_one(r.s, "q", "poison");
    advance(&r, LAPSE_SECONDS(31));
    int64_t fence = poll_one(r.s, "q", "poison")->fence;
    ck_assert_int_eq(lapse_cancel(r.s, "poison", LAPSE_ANY), LAPSE_FATE_RUNNING);
    advance(&r, LAPSE_MINUTES(10));
    expect_nothing(r.s, "q"); /* "Running" means that no other attempt follows. */
    ck_assert_uint_eq(stats_of(r.s).cancelled, 1);
    ck_assert_uint_eq(stats_of(r.s).dead_total, 0);
    ck_assert_int_eq(lapse_settle(r.s, fence, LAPSE_DONE, 0, NULL), LAPSE_ESTALE);
    expect_books(r.s);
    rig_close(&r);
}
END_TEST

/* What the lost consumer looks at stays until it lets go, also when the order is gone. */
START_TEST(p63_the_order_stays_readable_for_the_loser)
{
    rig r = rig_manual(_i, START, NULL);
    char payload[100], id[LAPSE_ID_MAX + 1];
    memset(payload, 'p', sizeof payload);
    memset(id, 'i', sizeof id);
    id[LAPSE_ID_MAX] = '\0';
    atomic_int released = 0;
    lapse_spec spec = {.id = id,
                       .queue = "q",
                       .payload = payload,
                       .payload_len = sizeof payload,
                       .arg = &released,
                       .release = count_release};
    ck_assert_int_gt(lapse_put(r.s, &spec), 0);
    advance(&r, r.tick);
    const lapse_order *lost = poll_one(r.s, "q", id);
    advance(&r, LAPSE_SECONDS(31));
    const lapse_order *held = poll_one(r.s, "q", id);
    ck_assert_uint_eq(held->payload_len, sizeof payload);
    ck_assert_mem_eq(held->payload, payload, sizeof payload);
    ck_assert_int_eq(lapse_settle(r.s, held->fence, LAPSE_DONE, 0, NULL), 0);
    ck_assert_int_eq(atomic_load(&released), 1);
    put_many(r.s, "q", "new", 100, 0); /* They use what was freed. */
    ck_assert_str_eq(lost->id, id);
    ck_assert_mem_eq(lost->payload, payload, sizeof payload);
    ck_assert_int_eq(lapse_settle(r.s, lost->fence, LAPSE_DONE, 0, NULL), LAPSE_ESTALE);
    ck_assert_int_eq(atomic_load(&released), 1);
    rig_close(&r);
}
END_TEST

/* -- P-71 ------------------------------------------------------------------------------------- */

enum { SALES = 100, DELIVERIES = 3, SWEEPERS = 2 };

static struct market {
    lapse *s;
    pthread_mutex_t lock;
    struct sale {
        bool closed;        /* under lock */
        int stock_returned; /* under lock */
        int64_t fence;      /* under lock: of the last write */
        int bookings;       /* under lock */
        lapse_order deliveries[DELIVERIES];
    } sales[SALES];
} market;

/* UPDATE orders SET status = 'closed' WHERE id = ... AND status = 'open' */
static void close_sale(struct sale *sale, int64_t fence)
{
    pthread_mutex_lock(&market.lock);
    sale->stock_returned += !sale->closed;
    sale->closed = true;
    sale->fence = fence > sale->fence ? fence : sale->fence;
    pthread_mutex_unlock(&market.lock);
}

static void deliver_or_sweep(void *arg, int number)
{
    (void)arg;
    for (int i = 0; i < SALES; i++) {
        struct sale *sale = &market.sales[i];
        if (number >= DELIVERIES) {
            close_sale(sale, 0);
            continue;
        }
        int64_t fence = sale->deliveries[number].fence;
        close_sale(sale, fence);
        int result = lapse_settle(market.s, fence, LAPSE_DONE, 0, NULL);
        if (result != (number == DELIVERIES - 1 ? 0 : LAPSE_ESTALE))
            complain("delivery %d: %d", number + 1, result);
        pthread_mutex_lock(&market.lock);
        sale->bookings += result == 0;
        pthread_mutex_unlock(&market.lock);
    }
}

/* Each sale is delivered three times, for two consumers have lost their lease. */
static void deliver_thrice(rig *r)
{
    for (int delivery = 0; delivery < DELIVERIES; delivery++) {
        for (int i = 0; i < SALES; i++) {
            const lapse_order *order;
            ck_assert_int_eq(lapse_poll(r->s, "sales", &order), 1);
            market.sales[atoi(order->id)].deliveries[delivery] = *order;
        }
        if (delivery < DELIVERIES - 1)
            advance(r, LAPSE_SECONDS(31));
    }
}

START_TEST(p71_delivered_thrice_and_swept_twice)
{
    rig r = rig_manual(_i, START, NULL);
    memset(&market, 0, sizeof market);
    pthread_mutex_init(&market.lock, NULL);
    market.s = r.s;
    put_many(r.s, "sales", "", SALES, 0);
    advance(&r, r.tick);
    deliver_thrice(&r);
    crew_run(DELIVERIES + SWEEPERS, deliver_or_sweep, NULL);
    check_calm();
    for (int i = 0; i < SALES; i++) {
        const struct sale *sale = &market.sales[i];
        ck_assert_int_eq(sale->stock_returned, 1);
        ck_assert_int_eq(sale->bookings, 1);
        ck_assert_int_eq(sale->fence, sale->deliveries[DELIVERIES - 1].fence);
        for (int d = 0; d < DELIVERIES; d++) {
            ck_assert_int_eq(sale->deliveries[d].attempt, d + 1);
            ck_assert_int_eq(sale->deliveries[d].generation, sale->deliveries[0].generation);
        }
    }
    lapse_stats t = stats_of(r.s);
    ck_assert_uint_eq(t.done, SALES);
    ck_assert_uint_eq(t.failed, 0);
    ck_assert_uint_eq(t.stale, (DELIVERIES - 1) * SALES);
    expect_books(r.s);
    rig_close(&r);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("leases");
    TCase *group = add_group(suite, "leases");
    ADD_FOR_ENGINES(group, a_lease_is_what_the_options_say);
    ADD_FOR_ENGINES(group, a_lease_is_renewed);
    ADD_FOR_ENGINES(group, renewing_has_errors);
    ADD_FOR_ENGINES(group, a_superseded_claim_is_not_held);
    ADD_FOR_ENGINES(group, p59_a_lost_lease_books_nothing);
    ADD_FOR_ENGINES(group, p59_no_verdict_of_the_loser_counts);
    ADD_FOR_ENGINES(group, p59_renewal_on_and_failing);
    ADD_FOR_ENGINES(group, p59_each_order_is_booked_once);
    ADD_FOR_ENGINES(group, p59_a_callback_beyond_its_run_limit);
    ADD_FOR_ENGINES(group, a_lost_callback_of_its_own_is_not_repeated);
    group = add_group(suite, "hung callbacks");
    ADD_FOR_ENGINES(group, p27_the_others_run_on_time);
    ADD_FOR_ENGINES(group, p27_the_rest_of_a_batch_can_be_cancelled);
    ADD_FOR_ENGINES(group, p27_a_single_worker_that_hangs_is_named);
    ADD_FOR_ENGINES(group, p27_a_hung_order_is_tried_again_elsewhere);
    ADD_FOR_ENGINES(group, a_stuck_callback_is_named_when_it_is_time);
    group = add_group(suite, "lost consumers");
    ADD_FOR_ENGINES(group, p63_a_task_that_kills_its_worker_ends);
    ADD_FOR_ENGINES(group, p63_lost_workers_count_as_attempts_of_the_policy);
    ADD_FOR_ENGINES(group, p63_an_operator_can_call_it_off);
    ADD_FOR_ENGINES(group, p63_the_order_stays_readable_for_the_loser);
    ADD_FOR_ENGINES(group, p71_delivered_thrice_and_swept_twice);
    return run_suite(suite);
}
