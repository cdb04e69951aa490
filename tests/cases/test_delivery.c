/* test_delivery.c - orders of handlers to their end: P-22, P-28, P-31, P-53, P-72.
 *
 * Through retries, losses and dead letters, while errors come and the scheduler stops, each order
 * is in one place; and what a call answers about it is never taken back. */
/* tiers: small full soak */
/* valgrind */
#include "delivery.h"

#include <inttypes.h>
#include <sched.h>
#include <stdlib.h>

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
    expect_next_in(&r, &p.ran, 0, LAPSE_MINUTES(5));
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
    TCase *group = add_group(suite, "orders of handlers");
    ADD_FOR_ENGINES(group, p22_pending_does_not_drift_through_deliveries);
    ADD_FOR_ENGINES(group, p28_errors_of_a_handler_stop_nothing);
    ADD_FOR_ENGINES(group, p31_stop_divides_exactly_among_retries);
    ADD_FOR_ENGINES(group, p53_the_same_id_in_every_state_of_a_delivery);
    ADD_FOR_ENGINES(group, p72_too_late_is_an_answer);
    ADD_FOR_ENGINES(group, p72_cancelled_is_said_only_of_what_never_starts);
    return run_suite(suite);
}
