/* test_cancel.c - cancel, cancel and wait, counting: P-20 to P-23.
 *
 * For every order exactly one holds: cancel said cancelled and its callback never
 * started, or the callback started once. The races are real threads on the real clock;
 * what they must answer is exact in every run. */
/* tiers: quick full soak */
#include "../support/support.h"

#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* -- P-20 -------------------------------------------------------------------------- */

enum { RACERS = 8, WINDOW = 128 };

struct race_order {
    atomic_int runs;
    atomic_int released;
    int8_t answer;
};

struct race {
    lapse *s;
    uint64_t seed;
    long each;
    bool keeps; /* finished orders are remembered */
    struct race_order *orders;
};

static lapse_verdict run_racer(const lapse_order *order, void *arg)
{
    struct race_order *o = arg;
    if (order->attempt != 1)
        complain("%s: attempt %d", order->id, order->attempt);
    atomic_fetch_add(&o->runs, 1);
    return LAPSE_DONE;
}

static void release_racer(void *arg)
{
    atomic_fetch_add(&((struct race_order *)arg)->released, 1);
}

static void race_id(char id[32], int number, long i)
{
    snprintf(id, 32, "OID%d.%08ld", number, i);
}

/* A window of orders is open at once, each with its own instant of being paid. */
static void race_thread(void *arg, int number)
{
    struct race *race = arg;
    rng luck = {race->seed + (uint64_t)number};
    lapse_ns pay_at[WINDOW];
    char id[32];
    for (long i = 0; i < race->each + WINDOW; i++) {
        if (i >= WINDOW) {
            long old = i - WINDOW;
            while (boot_now() < pay_at[old % WINDOW])
                sched_yield();
            race_id(id, number, old);
            race->orders[number * race->each + old].answer =
                (int8_t)lapse_cancel(race->s, id, LAPSE_ANY);
        }
        if (i < race->each) {
            race_id(id, number, i);
            lapse_ns delay = LAPSE_US(rng_range(&luck, 0, 2000));
            pay_at[i % WINDOW] = boot_now() + LAPSE_US(rng_range(&luck, 0, 2500));
            if (lapse_schedule(race->s, id, delay, run_racer,
                               &race->orders[number * race->each + i]) < 0)
                complain("%s", lapse_error_detail());
        }
    }
}

static void judge_race(const struct race *race)
{
    long tally[5] = {0};
    for (long i = 0; i < RACERS * race->each; i++) {
        const struct race_order *o = &race->orders[i];
        int runs = atomic_load(&o->runs);
        int over = race->keeps ? LAPSE_FATE_DONE : LAPSE_FATE_UNKNOWN;
        bool known = o->answer == LAPSE_FATE_CANCELLED || o->answer == LAPSE_FATE_RUNNING ||
                     o->answer == over;
        ck_assert_msg(known, "order %ld: cancel answered %d", i, o->answer);
        ck_assert_msg(runs == (o->answer != LAPSE_FATE_CANCELLED),
                      "order %ld: cancel answered %d and it ran %d times", i, o->answer, runs);
        ck_assert_int_eq(atomic_load(&o->released), 1);
        tally[o->answer]++;
    }
    printf("cancelled %ld, running %ld, over %ld\n", tally[LAPSE_FATE_CANCELLED],
           tally[LAPSE_FATE_RUNNING], tally[LAPSE_FATE_DONE] + tally[LAPSE_FATE_UNKNOWN]);
    ck_assert_int_gt(tally[LAPSE_FATE_CANCELLED], 0);
    ck_assert_int_gt(tally[LAPSE_FATE_DONE] + tally[LAPSE_FATE_UNKNOWN], 0);
}

static void expect_second_cancel(const struct race *race)
{
    char id[32];
    for (int number = 0; number < RACERS; number++)
        for (long i = 0; i < race->each; i++) {
            race_id(id, number, i);
            int fate = lapse_cancel(race->s, id, LAPSE_ANY);
            ck_assert_int_eq(fate, race->keeps ? LAPSE_FATE_DONE : LAPSE_FATE_UNKNOWN);
        }
}

static void run_race(int engine, unsigned workers, bool keeps)
{
    lapse_options options = {.release = release_racer, .keep = keeps ? LAPSE_HOURS(1) : 0};
    rig r = rig_real(engine, &options);
    struct race race = {.s = r.s, .keeps = keeps};
    race.each = tier(2400, 100000, 10000000) / RACERS;
    race.seed = rng_open("p20_cancel_is_exact").state;
    race.orders = calloc((size_t)(RACERS * race.each), sizeof *race.orders);
    ck_assert_ptr_nonnull(race.orders);
    ck_assert_int_eq(lapse_start(r.s, workers), 0);
    crew_run(RACERS, race_thread, &race);
    while (stats_of(r.s).pending + stats_of(r.s).running > 0)
        sched_yield();
    expect_second_cancel(&race);
    rig_close(&r);
    judge_race(&race);
    free(race.orders);
}

START_TEST(p20_cancel_is_exact)
{
    run_race(_i, 2, false);
}
END_TEST

START_TEST(p20_cancel_is_exact_and_remembered)
{
    run_race(_i, 4, true);
}
END_TEST

/* The moments about the deadline one by one, with invented time. */
START_TEST(p20_each_moment_has_its_answer)
{
    lapse_options options = {.keep = LAPSE_SECONDS(10)};
    rig r = rig_manual(_i, START, &options);
    tape ran;
    tape_open(&ran, r.s);
    int64_t g = lapse_schedule(r.s, "o", LAPSE_MS(5), tape_note, &ran);
    ck_assert_int_gt(g, 0);
    ck_assert_int_eq(lapse_cancel(r.s, "o", g + 1), LAPSE_FATE_UNKNOWN);
    ck_assert_int_eq(lapse_clock_advance(r.clock, LAPSE_SECONDS(1)), 0);
    ck_assert_int_eq(lapse_timeout(r.s), 0); /* Long due, not started: still in time. */
    ck_assert_int_eq(lapse_cancel(r.s, "o", g), LAPSE_FATE_CANCELLED);
    ck_assert_int_eq(lapse_cancel(r.s, "o", g), LAPSE_FATE_DONE);
    advance(&r, LAPSE_SECONDS(1));
    ck_assert_uint_eq(tape_count(&ran), 0);
    ck_assert_int_gt(lapse_schedule(r.s, "o", 0, tape_note, &ran), g);
    advance(&r, r.tick);
    ck_assert_int_eq(lapse_cancel(r.s, "o", LAPSE_ANY), LAPSE_FATE_DONE);
    advance(&r, LAPSE_SECONDS(10) + 1);
    ck_assert_int_eq(lapse_cancel(r.s, "o", LAPSE_ANY), LAPSE_FATE_UNKNOWN);
    ck_assert_uint_eq(tape_count(&ran), 1);
    tape_close(&ran);
    rig_close(&r);
}
END_TEST

START_TEST(p20_cancel_never_fails_for_an_odd_id)
{
    rig r = rig_manual(_i, START, NULL);
    char longest[LAPSE_ID_MAX + 2];
    memset(longest, 'x', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    ck_assert_int_eq(lapse_cancel(r.s, "", LAPSE_ANY), LAPSE_FATE_UNKNOWN);
    ck_assert_int_eq(lapse_cancel(r.s, longest, LAPSE_ANY), LAPSE_FATE_UNKNOWN);
    ck_assert_int_eq(lapse_cancel(r.s, "never seen", -7), LAPSE_FATE_UNKNOWN);
    ck_assert_int_eq(lapse_cancel(r.s, NULL, LAPSE_ANY), LAPSE_EINVAL);
    rig_close(&r);
}
END_TEST

struct two_gates {
    gate entered, go_on;
    atomic_int starts;
};

static void init_gates(struct two_gates *g)
{
    atomic_init(&g->starts, 0);
    gate_init(&g->entered);
    gate_init(&g->go_on);
}

static void destroy_gates(struct two_gates *g)
{
    gate_destroy(&g->entered);
    gate_destroy(&g->go_on);
}

/* A running answer ends the order, even one that asks to be tried again. */
static lapse_verdict retry_after_gate(const lapse_order *order, void *arg)
{
    struct two_gates *g = arg;
    atomic_fetch_add(&g->starts, 1);
    gate_open(&g->entered);
    gate_pass(&g->go_on);
    return lapse_retry(order, 0, "once more");
}

START_TEST(p20_no_attempt_follows_a_running_answer)
{
    lapse_options options = {.keep = LAPSE_HOURS(1)};
    rig r = rig_manual(_i, START, &options);
    struct two_gates g;
    init_gates(&g);
    ck_assert_int_gt(lapse_schedule(r.s, "o", 0, retry_after_gate, &g), 0);
    ck_assert_int_eq(lapse_start(r.s, 2), 0);
    ck_assert(gate_pass(&g.entered));
    ck_assert_int_eq(lapse_cancel(r.s, "o", LAPSE_ANY), LAPSE_FATE_RUNNING);
    ck_assert_int_eq(lapse_cancel(r.s, "o", LAPSE_ANY), LAPSE_FATE_RUNNING);
    gate_open(&g.go_on);
    int fate = lapse_cancel_wait(r.s, "o", LAPSE_ANY, LIMIT);
    ck_assert(fate == LAPSE_FATE_RUNNING || fate == LAPSE_FATE_DONE);
    ck_assert_int_eq(lapse_cancel(r.s, "o", LAPSE_ANY), LAPSE_FATE_DONE);
    ck_assert_int_eq(lapse_clock_advance(r.clock, LAPSE_MINUTES(1)), 0);
    ck_assert(until_others_sleep());
    ck_assert_int_eq(atomic_load(&g.starts), 1);
    ck_assert_uint_eq(pending_in(r.s), 0);
    rig_close(&r);
    destroy_gates(&g);
}
END_TEST

/* -- P-21 -------------------------------------------------------------------------- */

struct object {
    atomic_int *starts; /* outlives the object */
    unsigned char body[256];
};

static lapse_verdict touch(const lapse_order *order, void *arg)
{
    struct object *o = arg;
    atomic_fetch_add(o->starts, 1);
    for (int pass = 0; pass < 50; pass++)
        for (size_t i = 0; i < sizeof o->body; i++)
            o->body[i] = (unsigned char)(o->body[i] + 1);
    return order->generation % 2 == 0 ? LAPSE_DONE : lapse_retry(order, 0, NULL);
}

struct rearm {
    lapse *s;
    atomic_bool over;
};

static void rearm_all_the_time(void *arg, int number)
{
    struct rearm *rearm = arg;
    (void)number;
    while (!atomic_load(&rearm->over)) {
        int fate = lapse_reschedule(rearm->s, "k", LAPSE_ANY, 0);
        if (fate < 0)
            complain("reschedule: %s", lapse_error_detail());
        sched_yield();
    }
}

static void cancel_and_free(lapse *s, atomic_int *starts, bool give_a_moment)
{
    struct object *o = calloc(1, sizeof *o);
    ck_assert_ptr_nonnull(o);
    o->starts = starts;
    int before = atomic_load(starts);
    ck_assert_int_gt(lapse_schedule(s, "k", 0, touch, o), 0);
    if (give_a_moment)
        ck_assert(until_at_least(starts, before + 1));
    ck_assert_int_ge(lapse_cancel_wait(s, "k", LAPSE_ANY, LIMIT), 0);
    int after = atomic_load(starts);
    memset(o, 0xdd, sizeof *o);
    free(o);
    for (int i = 0; i < 20; i++)
        sched_yield();
    ck_assert_int_eq(atomic_load(starts), after);
}

START_TEST(p21_cancel_then_free)
{
    rig r = rig_real(_i, NULL);
    struct rearm rearm = {.s = r.s};
    atomic_int starts = 0;
    rng luck = rng_open("p21_cancel_then_free");
    ck_assert_int_eq(lapse_start(r.s, 2), 0);
    crew c;
    crew_start(&c, 1, rearm_all_the_time, &rearm);
    for (long i = 0; i < tier(100, 2000, 200000); i++)
        cancel_and_free(r.s, &starts, rng_next(&luck) % 4 != 0);
    atomic_store(&rearm.over, true);
    crew_join(&c);
    ck_assert_int_gt(atomic_load(&starts), 0);
    rig_close(&r);
}
END_TEST

START_TEST(p21_cancel_wait_has_a_limit)
{
    rig r = rig_manual(_i, START, NULL);
    struct two_gates g;
    init_gates(&g);
    ck_assert_int_gt(lapse_schedule(r.s, "o", 0, retry_after_gate, &g), 0);
    ck_assert_int_eq(lapse_start(r.s, 1), 0);
    ck_assert(gate_pass(&g.entered));
    ck_assert_int_eq(lapse_cancel_wait(r.s, "o", LAPSE_ANY, LAPSE_MS(5)), LAPSE_ETIMEOUT);
    ck_assert_int_eq(lapse_cancel_wait(r.s, "o", LAPSE_ANY, 0), LAPSE_ETIMEOUT);
    gate_open(&g.go_on);
    int fate = lapse_cancel_wait(r.s, "o", LAPSE_ANY, LAPSE_FOREVER);
    ck_assert(fate == LAPSE_FATE_RUNNING || fate == LAPSE_FATE_UNKNOWN);
    ck_assert_int_eq(atomic_load(&g.starts), 1);
    ck_assert_int_eq(lapse_cancel_wait(r.s, "o", LAPSE_ANY, 0), LAPSE_FATE_UNKNOWN);
    rig_close(&r);
    destroy_gates(&g);
}
END_TEST

/* -- P-22 -------------------------------------------------------------------------- */

static lapse_verdict slow(const lapse_order *order, void *arg)
{
    struct two_gates *g = arg;
    gate_open(&g->entered);
    if (!gate_pass(&g->go_on))
        complain("%s was never let go", order->id);
    return LAPSE_DONE;
}

/* Whether order i of prefix "m" is accepted. */
static bool accept_one(lapse *s, int i)
{
    char id[8];
    snprintf(id, sizeof id, "m%d", i);
    int64_t result = lapse_schedule(s, id, LAPSE_SECONDS(9), never, NULL);
    if (result < 0)
        ck_assert_int_eq(result, LAPSE_EFULL);
    return result > 0;
}

static int accept_21(lapse *s)
{
    int accepted = 0;
    for (int i = 0; i < 21; i++)
        accepted += accept_one(s, i);
    return accepted;
}

START_TEST(p22_pending_does_not_drift)
{
    lapse_options options = {.max_pending = 20};
    rig r = rig_manual(_i, START, &options);
    struct two_gates g;
    init_gates(&g);
    char id[8];
    ck_assert_int_gt(lapse_schedule(r.s, "slow", LAPSE_MS(50), slow, &g), 0);
    for (int i = 0; i < 10; i++) {
        snprintf(id, sizeof id, "n%d", i);
        ck_assert_int_gt(lapse_schedule(r.s, id, LAPSE_MS(50), never, NULL), 0);
    }
    ck_assert_int_eq(lapse_start(r.s, 1), 0);
    ck_assert_int_eq(lapse_clock_advance(r.clock, LAPSE_MS(50)), 0);
    ck_assert(gate_pass(&g.entered));
    for (int i = 0; i < 10; i++) {
        snprintf(id, sizeof id, "n%d", i);
        ck_assert_int_eq(lapse_cancel(r.s, id, LAPSE_ANY), LAPSE_FATE_CANCELLED);
    }
    ck_assert_uint_eq(stats_of(r.s).pending, 0);
    ck_assert_uint_eq(stats_of(r.s).running, 1);
    ck_assert_int_eq(accept_21(r.s), 19); /* The running one counts. */
    gate_open(&g.go_on);
    ck_assert_int_ge(lapse_cancel_wait(r.s, "slow", LAPSE_ANY, LIMIT), 0);
    ck_assert_uint_eq(stats_of(r.s).running, 0);
    ck_assert_uint_eq(stats_of(r.s).pending, 19);
    for (int i = 0; i < 19; i++) {
        snprintf(id, sizeof id, "m%d", i);
        ck_assert_int_eq(lapse_cancel(r.s, id, LAPSE_ANY), LAPSE_FATE_CANCELLED);
    }
    ck_assert_uint_eq(pending_in(r.s), 0);
    ck_assert_int_eq(accept_21(r.s), 20);
    rig_close(&r);
    destroy_gates(&g);
}
END_TEST

/* -- P-23 -------------------------------------------------------------------------- */

struct user_lock {
    pthread_mutex_t u;
    gate entered;
};

static lapse_verdict want_lock(const lapse_order *order, void *arg)
{
    struct user_lock *l = arg;
    (void)order;
    gate_open(&l->entered);
    pthread_mutex_lock(&l->u);
    pthread_mutex_unlock(&l->u);
    return LAPSE_DONE;
}

START_TEST(p23_cancel_under_the_users_lock)
{
    rig r = rig_manual(_i, START, NULL);
    struct user_lock l = {.u = PTHREAD_MUTEX_INITIALIZER};
    gate_init(&l.entered);
    ck_assert_int_eq(lapse_start(r.s, 1), 0);
    pthread_mutex_lock(&l.u);
    ck_assert_int_gt(lapse_schedule(r.s, "c", 0, want_lock, &l), 0);
    ck_assert(gate_pass(&l.entered));
    ck_assert_int_eq(lapse_cancel(r.s, "c", LAPSE_ANY), LAPSE_FATE_RUNNING);
    ck_assert_int_eq(lapse_reschedule(r.s, "c", LAPSE_ANY, 0), LAPSE_FATE_RUNNING);
    lapse_info info;
    ck_assert_int_eq(lapse_get(r.s, "c", &info), 0);
    ck_assert_int_eq(info.state, LAPSE_STATE_RUNNING);
    lapse_info_free(&info);
    pthread_mutex_unlock(&l.u);
    ck_assert_int_ge(lapse_cancel_wait(r.s, "c", LAPSE_ANY, LIMIT), 0);
    rig_close(&r);
    gate_destroy(&l.entered);
    pthread_mutex_destroy(&l.u);
}
END_TEST

struct inside {
    rig *r;
    int answers[3];
};

static lapse_verdict cancel_wait_self(const lapse_order *order, void *arg)
{
    struct inside *in = arg;
    in->answers[0] = lapse_cancel_wait(in->r->s, order->id, LAPSE_ANY, LAPSE_FOREVER);
    in->answers[1] = lapse_cancel_wait(in->r->s, order->id, order->generation, LAPSE_FOREVER);
    return LAPSE_DONE;
}

START_TEST(p23_cancel_wait_inside_its_own_callback)
{
    rig r = rig_manual(_i, START, NULL);
    struct inside in = {.r = &r};
    ck_assert_int_gt(lapse_schedule(r.s, "s", 0, cancel_wait_self, &in), 0);
    advance(&r, 0);
    ck_assert_int_eq(in.answers[0], LAPSE_FATE_RUNNING);
    ck_assert_int_eq(in.answers[1], LAPSE_FATE_RUNNING);
    rig_close(&r);
}
END_TEST

/* Two schedulers whose callbacks call everything in the other and in their own, under a
 * lock of the user's that their callers hold too. */
struct tangle {
    lapse *s[2];
    pthread_mutex_t u;
    uint64_t seed;
    atomic_int runs;
};

static lapse_verdict tangled(const lapse_order *order, void *arg);

static void call_everything(struct tangle *t, rng *luck)
{
    lapse *s = t->s[rng_next(luck) % 2];
    char id[8];
    lapse_info info;
    snprintf(id, sizeof id, "%d", (int)rng_range(luck, 0, 19));
    lapse_spec spec = {.id = id,
                       .delay = LAPSE_US(rng_range(luck, 0, 2000)),
                       .fn = tangled,
                       .arg = t,
                       .flags = LAPSE_REPLACE};
    int64_t result = 0;
    switch (rng_next(luck) % 7) {
    case 0:
        result = lapse_put(s, &spec);
        break;
    case 1:
        result = lapse_schedule(s, id, spec.delay, tangled, t);
        break;
    case 2:
        result = lapse_cancel(s, id, LAPSE_ANY);
        break;
    case 3:
        result = lapse_reschedule(s, id, LAPSE_ANY, spec.delay);
        break;
    case 4:
        result = (int64_t)stats_of(s).pending;
        break;
    case 5:
        result = lapse_timeout(s) >= 0 ? 0 : -1;
        break;
    default:
        result = lapse_get(s, id, &info);
        if (result == 0)
            lapse_info_free(&info);
    }
    if (result < 0 && result != LAPSE_EEXISTS && result != LAPSE_EUNKNOWN &&
        result != LAPSE_ECLOSED)
        complain("a call answered %" PRId64 ": %s", result, lapse_error_detail());
}

static lapse_verdict tangled(const lapse_order *order, void *arg)
{
    struct tangle *t = arg;
    rng luck = {t->seed ^ (uint64_t)order->fence};
    atomic_fetch_add(&t->runs, 1);
    pthread_mutex_lock(&t->u);
    call_everything(t, &luck);
    call_everything(t, &luck);
    pthread_mutex_unlock(&t->u);
    call_everything(t, &luck);
    return LAPSE_DONE;
}

static void tangle_thread(void *arg, int number)
{
    struct tangle *t = arg;
    rng luck = {t->seed + (uint64_t)number};
    for (long i = 0; i < tier(1000, 200000, 5000000); i++) {
        bool lock = rng_next(&luck) % 2 == 0;
        if (lock)
            pthread_mutex_lock(&t->u);
        call_everything(t, &luck);
        if (lock)
            pthread_mutex_unlock(&t->u);
    }
}

START_TEST(p23_no_deadlock_between_two_schedulers)
{
    rig a = rig_real(_i, NULL), b = rig_real(_i, NULL);
    struct tangle t = {.s = {a.s, b.s}, .u = PTHREAD_MUTEX_INITIALIZER};
    t.seed = rng_open("p23_no_deadlock_between_two_schedulers").state;
    ck_assert_int_eq(lapse_start(a.s, 1), 0);
    ck_assert_int_eq(lapse_start(b.s, 2), 0);
    crew_run(3, tangle_thread, &t);
    ck_assert_int_gt(lapse_schedule(a.s, "the last", 0, tangled, &t), 0);
    ck_assert(until_at_least(&t.runs, 1));
    ck_assert_int_eq(lapse_stop(a.s), 0);
    ck_assert_int_eq(lapse_stop(b.s), 0);
    while (stats_of(a.s).running + stats_of(b.s).running > 0) /* Each may call the other. */
        sched_yield();
    rig_close(&a);
    rig_close(&b);
    pthread_mutex_destroy(&t.u);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("cancel");
    TCase *group = add_group(suite, "P-20 to P-23");
    ADD_FOR_ENGINES(group, p20_cancel_is_exact);
    ADD_FOR_ENGINES(group, p20_cancel_is_exact_and_remembered);
    ADD_FOR_ENGINES(group, p20_each_moment_has_its_answer);
    ADD_FOR_ENGINES(group, p20_cancel_never_fails_for_an_odd_id);
    ADD_FOR_ENGINES(group, p20_no_attempt_follows_a_running_answer);
    ADD_FOR_ENGINES(group, p21_cancel_then_free);
    ADD_FOR_ENGINES(group, p21_cancel_wait_has_a_limit);
    ADD_FOR_ENGINES(group, p22_pending_does_not_drift);
    ADD_FOR_ENGINES(group, p23_cancel_under_the_users_lock);
    ADD_FOR_ENGINES(group, p23_cancel_wait_inside_its_own_callback);
    ADD_FOR_ENGINES(group, p23_no_deadlock_between_two_schedulers);
    return run_suite(suite);
}
