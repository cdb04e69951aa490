/* test_lease.c - claims that last too long: P-59.
 *
 * A claim holds its order until its lease or run limit ends; then the order goes on without
 * it, and what the lost consumer says is stale. Two runs cannot always be prevented; two
 * bookings are. */
/* tiers: quick full soak */
/* valgrind */
#include "delivery.h"

#include <sched.h>
#include <stdlib.h>

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
    return run_suite(suite);
}
