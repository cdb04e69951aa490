/* test_races.c - orders of events that are rare, brought about again and again.
 *
 * Instants that were read too early, a fork in a callback, rates under repeated changes, and
 * many claims that end at once. Where a race cannot be forced the tiers say how often it is
 * tried; nothing here depends on how long anything takes. */
/* tiers: small full soak */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "delivery.h"

#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* -- A wall clock that is slow to read ------------------------------------------------- */

static atomic_bool slow_wall; /* each reading takes SLOW, as when the thread loses its CPU */

#define SLOW LAPSE_MS(3)

int clock_gettime(clockid_t clock, struct timespec *out)
{
    if (clock == CLOCK_REALTIME && atomic_load(&slow_wall)) {
        lapse_ns end = boot_now() + SLOW;
        while (boot_now() < end)
            continue;
    }
    return (int)syscall(SYS_clock_gettime, clock, out);
}

static lapse_ns wall_now(void)
{
    struct timespec t;
    syscall(SYS_clock_gettime, CLOCK_REALTIME, &t);
    return LAPSE_SECONDS(t.tv_sec) + t.tv_nsec;
}

/* -- An instant is never early ----------------------------------------------------------- */

static lapse_verdict expect_reached(const lapse_order *order, void *arg)
{
    const lapse_ns *at = arg;
    lapse_ns early = *at - wall_now();
    if (early > 0)
        complain("order %s ran %lld ns before its instant", order->id, (long long)early);
    return LAPSE_DONE;
}

static void run_all(lapse *s)
{
    while (pending_in(s) > 0) {
        ck_assert_int_ge(lapse_wait(s, LIMIT), 0);
        ck_assert_int_ge(lapse_process(s, 0), 0);
    }
}

/* The thread loses its CPU between the readings of the two clocks. */
START_TEST(instants_with_a_slow_wall_clock)
{
    enum { MANY = 3 };
    rig r = rig_real(_i, NULL);
    lapse_ns at = wall_now() + LAPSE_MS(30);
    int64_t results[MANY];
    lapse_spec one = {.id = "put", .at = at, .fn = expect_reached, .arg = &at};
    lapse_spec specs[MANY] = {one, one, one};
    specs[0].id = "many 0", specs[1].id = "many 1", specs[2].id = "many 2";
    atomic_store(&slow_wall, true);
    ck_assert_int_gt(lapse_schedule_at(r.s, "at", at, expect_reached, &at), 0);
    ck_assert_int_gt(lapse_put(r.s, &one), 0);
    ck_assert_int_eq(lapse_schedule_many(r.s, specs, MANY, results), MANY);
    atomic_store(&slow_wall, false);
    run_all(r.s);
    rig_close(&r);
}
END_TEST

/* A long call: the last of its orders has the same instant as the first. */
START_TEST(an_instant_of_a_long_list)
{
    size_t count = (size_t)tier(3000, 200000, 500000);
    rig r = rig_real(_i, NULL);
    lapse_ns at = wall_now() + (lapse_ns)count * LAPSE_US(6);
    lapse_spec *specs = calloc(count, sizeof *specs);
    char(*ids)[24] = calloc(count, sizeof *ids);
    int64_t *results = calloc(count, sizeof *results);
    ck_assert(specs != NULL && ids != NULL && results != NULL);
    for (size_t i = 0; i < count; i++) {
        snprintf(ids[i], sizeof ids[i], "%zu", i);
        specs[i] = (lapse_spec){.id = ids[i], .at = at, .fn = expect_reached, .arg = &at};
    }
    ck_assert_int_eq(lapse_schedule_many(r.s, specs, count, results), (int64_t)count);
    run_all(r.s);
    free(specs);
    free(ids);
    free(results);
    rig_close(&r);
}
END_TEST

/* -- A fork in a callback ---------------------------------------------------------------- */

static pid_t test_pid;
static pthread_key_t ending; /* its destructor ends a child together with its thread */
static atomic_int child_status;

static void end_child(void *arg)
{
    (void)arg;
    _exit(0);
}

static int status_of(pid_t pid)
{
    int status = 0;
    if (pid < 0 || waitpid(pid, &status, 0) != pid)
        return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* The child goes on where the parent does; the parent waits for its end. */
static lapse_verdict fork_and_return(const lapse_order *order, void *arg)
{
    (void)order, (void)arg;
    pid_t pid = fork();
    if (pid != 0) {
        atomic_store(&child_status, status_of(pid));
        return LAPSE_DONE;
    }
    alarm((unsigned)(LIMIT / LAPSE_SECONDS(1))); /* It ends also if it never comes back. */
    pthread_setspecific(ending, &ending);
    return LAPSE_DONE;
}

static lapse_verdict stop_in_the_parent(const lapse_order *order, void *arg)
{
    tape *ran = arg;
    if (getpid() != test_pid)
        _exit(9);
    tape_note(order, ran);
    lapse_stop(ran->s);
    return LAPSE_DONE;
}

static void expect_forked_in_the_child(lapse *s, int64_t answer)
{
    if (getpid() == test_pid)
        return;
    if (answer != LAPSE_EFORKED)
        _exit(2);
    if (lapse_process(s, 0) != LAPSE_EFORKED || lapse_cancel(s, "2", LAPSE_ANY) != LAPSE_EFORKED)
        _exit(3);
    _exit(lapse_close(s, 0) == 0 ? 0 : 4);
}

static void put_forking(rig *r, tape *ran)
{
    test_pid = getpid();
    atomic_store(&child_status, -1);
    tape_open(ran, r->s);
    ck_assert_int_eq(pthread_key_create(&ending, end_child), 0);
    ck_assert_int_gt(lapse_schedule(r->s, "1", 0, fork_and_return, NULL), 0);
    ck_assert_int_gt(lapse_schedule(r->s, "2", 0, stop_in_the_parent, ran), 0);
    fflush(NULL);
}

static void expect_forked_once(rig *r, tape *ran)
{
    ck_assert_uint_eq(tape_count(ran), 1);
    ck_assert_int_eq(atomic_load(&child_status), 0);
    ck_assert_uint_eq(stats_of(r->s).done, 2);
    pthread_key_delete(ending);
    tape_close(ran);
    rig_close(r);
}

START_TEST(a_child_that_returns_from_a_callback_of_process)
{
    rig r = rig_manual(_i, START, NULL);
    tape ran;
    put_forking(&r, &ran);
    int64_t answer = lapse_process(r.s, 0);
    expect_forked_in_the_child(r.s, answer);
    ck_assert_int_eq(answer, 2);
    expect_forked_once(&r, &ran);
}
END_TEST

START_TEST(a_child_that_returns_from_a_callback_of_run)
{
    rig r = rig_manual(_i, START, NULL);
    tape ran;
    put_forking(&r, &ran);
    int answer = lapse_run(r.s);
    expect_forked_in_the_child(r.s, answer);
    ck_assert_int_eq(answer, 0);
    expect_forked_once(&r, &ran);
}
END_TEST

static bool both_are_done(void *arg)
{
    return stats_of(arg).done == 2;
}

/* In the child the worker is the only thread; it ends. */
START_TEST(a_child_that_returns_from_a_callback_of_a_worker)
{
    rig r = rig_manual(_i, START, NULL);
    tape ran;
    put_forking(&r, &ran);
    ck_assert_int_eq(lapse_start(r.s, 1), 0);
    ck_assert(tape_wait(&ran, 1));
    ck_assert(until(both_are_done, r.s));
    expect_forked_once(&r, &ran);
}
END_TEST

/* -- Rates under repeated changes ---------------------------------------------------------- */

static const lapse_policy two_a_second = {.rate = 2};

/* How many of a queue with two starts a second start in five, with `change` each 100 ms. */
static int starts_in_five_seconds(int engine, void (*change)(lapse *s, atomic_int *ran))
{
    rig r = rig_manual(engine, START, NULL);
    atomic_int ran = 0;
    ck_assert_int_eq(lapse_handle(r.s, "q", count_run, &ran, NULL, &two_a_second), 0);
    put_many(r.s, "q", "o", 100, 0);
    advance(&r, LAPSE_SECONDS(1)); /* What it starts with is used up. */
    int before = atomic_load(&ran);
    for (int i = 0; i < 50; i++) {
        ck_assert_int_eq(lapse_clock_advance(r.clock, LAPSE_MS(100)), 0);
        change(r.s, &ran);
        advance(&r, 0);
    }
    int starts = atomic_load(&ran) - before;
    rig_close(&r);
    return starts;
}

static void change_nothing(lapse *s, atomic_int *ran)
{
    (void)s, (void)ran;
}

static void resume_again(lapse *s, atomic_int *ran)
{
    (void)ran;
    ck_assert_int_eq(lapse_resume(s, "q"), 0);
}

static void pause_and_resume(lapse *s, atomic_int *ran)
{
    (void)ran;
    ck_assert_int_eq(lapse_pause(s, "q"), 0);
    ck_assert_int_eq(lapse_pause(s, "q"), 0);
    ck_assert_int_eq(lapse_resume(s, "q"), 0);
}

static void handle_again(lapse *s, atomic_int *ran)
{
    ck_assert_int_eq(lapse_handle(s, "q", count_run, ran, NULL, &two_a_second), 0);
}

START_TEST(a_rate_survives_changes)
{
    static void (*const changes[])(lapse * s, atomic_int * ran) = {change_nothing, resume_again,
                                                                   pause_and_resume, handle_again};
    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++) {
        int starts = starts_in_five_seconds(_i, changes[i]);
        ck_assert_msg(starts >= 9 && starts <= 11, "change %zu: %d starts instead of 10", i,
                      starts);
    }
}
END_TEST

/* -- Much at once --------------------------------------------------------------------------- */

/* Claims that end together are all seen to, by no single call. */
START_TEST(many_claims_are_lost_at_once)
{
    int count = (int)tier(3000, 20000, 60000);
    rig r = rig_manual(_i, START, &(lapse_options){.lease = LAPSE_SECONDS(2)});
    put_many(r.s, "q", "o", count, 0);
    ck_assert_int_eq(lapse_clock_advance(r.clock, LAPSE_MS(1)), 0);
    const lapse_order *order = NULL;
    for (int i = 0; i < count; i++)
        ck_assert_int_eq(lapse_poll(r.s, "q", &order), 1);
    int64_t fence = order->fence;
    ck_assert_int_eq(lapse_clock_advance(r.clock, LAPSE_SECONDS(3)), 0);
    put(r.s, "z", "new", LAPSE_HOURS(1));
    ck_assert_uint_lt(stats_of(r.s).lost, (uint64_t)count);
    int calls = 0;
    while (stats_of(r.s).lost < (uint64_t)count && calls++ < count)
        ck_assert_int_eq(lapse_process(r.s, 0), 0);
    ck_assert_uint_eq(stats_of(r.s).lost, (uint64_t)count);
    ck_assert_int_lt(calls, count / 10);
    ck_assert(!lapse_holds(r.s, fence));
    ck_assert_uint_eq(pending_in(r.s), (uint64_t)count + 1);
    for (int i = 0; i < count; i++) {
        ck_assert_int_eq(lapse_poll(r.s, "q", &order), 1);
        ck_assert_int_eq(order->attempt, 2);
        ck_assert_int_eq(lapse_settle(r.s, order->fence, LAPSE_DONE, 0, NULL), 0);
    }
    expect_nothing(r.s, "q");
    expect_books(r.s);
    rig_close(&r);
}
END_TEST

typedef struct canceller {
    lapse *s;
    int count;
    atomic_int gone;
} canceller;

/* Every other order is paid meanwhile. */
static void cancel_every_other(void *arg, int number)
{
    canceller *c = arg;
    (void)number;
    for (int i = 0; i < c->count; i += 2) {
        char id[32];
        snprintf(id, sizeof id, "o%d", i);
        if (lapse_cancel(c->s, id, LAPSE_ANY) == LAPSE_FATE_CANCELLED)
            atomic_fetch_add(&c->gone, 1);
    }
}

/* A call for one queue brings all of another before its takers, in several steps. */
START_TEST(much_falls_due_in_a_queue_that_nobody_asked_for)
{
    int count = (int)tier(20000, 100000, 1000000);
    rig r = rig_manual(_i, START, &(lapse_options){.lease = LAPSE_HOURS(10)});
    canceller c = {.s = r.s, .count = count};
    crew other;
    put_many(r.s, "q", "o", count, LAPSE_SECONDS(1));
    ck_assert_int_eq(lapse_clock_advance(r.clock, LAPSE_SECONDS(2)), 0);
    crew_start(&other, 1, cancel_every_other, &c);
    expect_nothing(r.s, "B");
    crew_join(&other);
    ck_assert_int_eq(atomic_load(&c.gone), (count + 1) / 2);
    for (int i = 1; i < count; i += 2) {
        char id[32];
        snprintf(id, sizeof id, "o%d", i);
        const lapse_order *order = poll_one(r.s, "q", id);
        ck_assert_int_eq(lapse_settle(r.s, order->fence, LAPSE_DONE, 0, NULL), 0);
    }
    expect_nothing(r.s, "q");
    expect_books(r.s);
    rig_close(&r);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("races");
    TCase *group = add_group(suite, "instants, forks, rates, amounts");
    ADD_FOR_ENGINES(group, instants_with_a_slow_wall_clock);
    ADD_FOR_ENGINES(group, an_instant_of_a_long_list);
    ADD_FOR_ENGINES(group, a_child_that_returns_from_a_callback_of_process);
    ADD_FOR_ENGINES(group, a_child_that_returns_from_a_callback_of_run);
    ADD_FOR_ENGINES(group, a_child_that_returns_from_a_callback_of_a_worker);
    ADD_FOR_ENGINES(group, a_rate_survives_changes);
    ADD_FOR_ENGINES(group, many_claims_are_lost_at_once);
    ADD_FOR_ENGINES(group, much_falls_due_in_a_queue_that_nobody_asked_for);
    return run_suite(suite);
}
