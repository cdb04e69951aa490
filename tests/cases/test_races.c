/* test_races.c - orders of events that are rare, brought about again and again.
 *
 * Lost wake-ups, instants that were read too early, a fork in a callback, hooks that act
 * on the very order they are told of, closing where it cannot be done, rates under
 * repeated changes, and many claims that end at once. Where a race cannot be forced the
 * tiers say how often it is tried; nothing here depends on how long anything takes. */
/* tiers: small full soak */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "delivery.h"

#include <poll.h>
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

/* -- Takers ---------------------------------------------------------------------------- */

/* A thread that takes until the scheduler is stopped. */
typedef struct taker {
    lapse *s;
    const char *queue;
    lapse_ns timeout; /* of each call */
    tape taken;
    crew thread;
} taker;

static void take_until_stopped(void *arg, int number)
{
    taker *t = arg;
    const lapse_order *order;
    int found;
    (void)number;
    while ((found = lapse_take(t->s, t->queue, t->timeout, &order)) >= 0) {
        if (found == 0)
            continue;
        if (lapse_settle(t->s, order->fence, LAPSE_DONE, 0, NULL) != 0)
            complain("lapse_settle: %s", lapse_error_detail());
        tape_note(&(lapse_order){.id = ""}, &t->taken); /* Its id is free again. */
    }
    if (found != LAPSE_ECLOSED)
        complain("lapse_take: %s", lapse_error_detail());
}

static void taker_start(taker *t, lapse *s, const char *queue, lapse_ns timeout)
{
    *t = (taker){.s = s, .queue = queue, .timeout = timeout};
    tape_open(&t->taken, s);
    crew_start(&t->thread, 1, take_until_stopped, t);
}

/* After lapse_stop. */
static void taker_end(taker *t)
{
    crew_join(&t->thread);
    tape_close(&t->taken);
}

static void expect_taken(taker *t, size_t count)
{
    ck_assert_msg(tape_wait(&t->taken, count), "order %zu is due and its taker sleeps", count);
}

/* Claims that end hours from now: no lease wakes anybody here. */
static const lapse_options long_lease = {.lease = LAPSE_HOURS(10)};

/* -- No wake-up is lost: other takers --------------------------------------------------- */

/* Another taker's calls announce the orders of the first and arm the timer for themselves. */
START_TEST(a_taker_beside_one_with_short_timeouts)
{
    rig r = rig_real(_i, &long_lease);
    taker a, b;
    long rounds = tier(40, 1000, 100000);
    taker_start(&a, r.s, "A", LAPSE_FOREVER);
    taker_start(&b, r.s, "B", LAPSE_US(300));
    for (long n = 1; n <= rounds; n++) {
        put(r.s, "A", "a", LAPSE_US(500));
        expect_taken(&a, (size_t)n);
    }
    lapse_stop(r.s);
    taker_end(&a);
    taker_end(&b);
    rig_close(&r);
}
END_TEST

/* Workers announce on their way from one callback to the next. */
START_TEST(a_taker_beside_busy_workers)
{
    rig r = rig_real(_i, &long_lease);
    taker a;
    atomic_int ran = 0;
    long rounds = tier(15, 1000, 100000);
    ck_assert_int_eq(lapse_handle(r.s, "H", count_run, &ran, NULL, NULL), 0);
    taker_start(&a, r.s, "A", LAPSE_FOREVER);
    ck_assert_int_eq(lapse_start(r.s, 2), 0);
    for (long n = 1; n <= rounds; n++) {
        lapse_ns delay = LAPSE_US(500 + n * 97 % 1500);
        char id[32];
        for (int i = 0; i < 6; i++) {
            snprintf(id, sizeof id, "h%ld.%d", n, i);
            put(r.s, "H", id, delay + LAPSE_US(300 * (i - 2)));
        }
        put(r.s, "A", "a", delay);
        expect_taken(&a, (size_t)n);
    }
    ck_assert(until_at_least(&ran, (int)rounds * 6));
    lapse_stop(r.s);
    taker_end(&a);
    rig_close(&r);
}
END_TEST

/* -- No wake-up is lost: what comes before takers other than by its time ---------------- */

/* A way to keep the orders of queue "A" from takers, and to let them go. */
typedef struct lid {
    const char *name;
    int (*shut)(lapse *s);
    int (*lift)(lapse *s);
} lid;

static int pause_a(lapse *s)
{
    return lapse_pause(s, "A");
}

static int resume_a(lapse *s)
{
    return lapse_resume(s, "A");
}

static int handle_a(lapse *s)
{
    return lapse_handle(s, "A", never, NULL, NULL, NULL);
}

static int unhandle_a(lapse *s)
{
    return lapse_handle(s, "A", NULL, NULL, NULL, NULL);
}

static const lid lids[] = {
    {"resume", pause_a, resume_a},
    {"removal of a handler", handle_a, unhandle_a},
};
enum { LIDS = sizeof lids / sizeof lids[0] };

static bool is_overdue(void *arg)
{
    return queue_stats(arg, "A").oldest_due > 0;
}

static void shut_over_a_due_order(rig *r, const lid *l)
{
    ck_assert_int_eq(l->shut(r->s), 0);
    put(r->s, "A", "x", 0);
    if (r->clock != NULL)
        ck_assert_int_eq(lapse_clock_advance(r->clock, LAPSE_MS(1)), 0);
    ck_assert_msg(until(is_overdue, r->s), "%s: the order does not fall due", l->name);
    ck_assert(until_others_sleep());
}

/* The lid is lifted, and at once a schedule arms the timer anew. */
START_TEST(a_lifted_lid_before_a_schedule)
{
    rig r = rig_real(_i, &long_lease);
    taker any;
    long rounds = tier(6, 1000, 20000);
    put(r.s, "A", "far", LAPSE_SECONDS(600));
    taker_start(&any, r.s, NULL, LAPSE_FOREVER);
    for (long n = 1; n <= rounds; n++) {
        const lid *l = &lids[n % LIDS];
        shut_over_a_due_order(&r, l);
        ck_assert_int_eq(l->lift(r.s), 0);
        put(r.s, "A", "near", LAPSE_SECONDS(300));
        ck_assert_msg(tape_wait(&any.taken, (size_t)n), "after the %s the taker sleeps", l->name);
        ck_assert_int_eq(lapse_cancel(r.s, "near", LAPSE_ANY), LAPSE_FATE_CANCELLED);
    }
    lapse_stop(r.s);
    taker_end(&any);
    rig_close(&r);
}
END_TEST

/* The lid is lifted, and at once the clock is moved. */
START_TEST(a_lifted_lid_before_an_advance)
{
    rig r = rig_manual(_i, START, &long_lease);
    taker any;
    long rounds = tier(10, 1000, 20000);
    put(r.s, "A", "far", LAPSE_HOURS(10));
    taker_start(&any, r.s, NULL, LAPSE_FOREVER);
    for (long n = 1; n <= rounds; n++) {
        const lid *l = &lids[n % LIDS];
        shut_over_a_due_order(&r, l);
        ck_assert_int_eq(l->lift(r.s), 0);
        ck_assert_int_eq(lapse_clock_advance(r.clock, LAPSE_MS(1)), 0);
        ck_assert_msg(tape_wait(&any.taken, (size_t)n), "after the %s the taker sleeps", l->name);
    }
    lapse_stop(r.s);
    taker_end(&any);
    rig_close(&r);
}
END_TEST

static void give_back_and_schedule(int engine)
{
    rig r = rig_real(engine, &long_lease);
    taker a;
    const lapse_order *order;
    put(r.s, "A", "x", 0);
    put(r.s, "A", "far", LAPSE_SECONDS(600));
    ck_assert_int_eq(lapse_take(r.s, "A", LIMIT, &order), 1);
    taker_start(&a, r.s, "A", LAPSE_FOREVER);
    ck_assert(until_others_sleep());
    ck_assert_int_eq(lapse_settle(r.s, order->fence, LAPSE_GIVE_BACK, 0, NULL), 0);
    put(r.s, "A", "near", LAPSE_SECONDS(300));
    expect_taken(&a, 1);
    lapse_stop(r.s);
    taker_end(&a);
    rig_close(&r);
}

START_TEST(an_order_given_back_before_a_schedule)
{
    long rounds = tier(5, 500, 10000);
    for (long n = 0; n < rounds; n++)
        give_back_and_schedule(_i);
}
END_TEST

/* -- No wake-up is lost: the host's descriptor ------------------------------------------ */

/* Of two queues that are due one is looked at: the other is still told. */
START_TEST(the_descriptor_tells_of_the_other_queue)
{
    rig r = rig_manual(_i, START, NULL);
    int fd = lapse_fd(r.s);
    put(r.s, "A", "a", 0);
    put(r.s, "B", "b", 0);
    ck_assert(readable(fd));
    const lapse_order *b = poll_one(r.s, "B", "b");
    ck_assert(readable(fd));
    const lapse_order *a = poll_one(r.s, "A", "a");
    expect_nothing(r.s, "A");
    expect_nothing(r.s, "B");
    ck_assert(!readable(fd));
    ck_assert_int_eq(lapse_settle(r.s, a->fence, LAPSE_DONE, 0, NULL), 0);
    ck_assert_int_eq(lapse_settle(r.s, b->fence, LAPSE_DONE, 0, NULL), 0);
    rig_close(&r);
}
END_TEST

/* A resumed order is told until it is looked for, whatever else is called meanwhile. */
START_TEST(the_descriptor_tells_of_a_resumed_order)
{
    rig r = rig_manual(_i, START, NULL);
    int fd = lapse_fd(r.s);
    ck_assert_int_eq(lapse_pause(r.s, "A"), 0);
    put(r.s, "A", "a", 0);
    expect_nothing(r.s, "A");
    expect_nothing(r.s, "A");
    ck_assert(!readable(fd));
    ck_assert_int_eq(lapse_resume(r.s, "A"), 0);
    ck_assert(readable(fd));
    ck_assert_int_eq(lapse_resume(r.s, "other"), 0);
    put(r.s, "A", "later", LAPSE_HOURS(1));
    ck_assert_int_eq(lapse_clock_advance(r.clock, LAPSE_MS(1)), 0);
    ck_assert(readable(fd));
    const lapse_order *a = poll_one(r.s, "A", "a");
    expect_nothing(r.s, "A");
    ck_assert(!readable(fd));
    ck_assert_int_eq(lapse_settle(r.s, a->fence, LAPSE_DONE, 0, NULL), 0);
    rig_close(&r);
}
END_TEST

/* The next order of "A", for a host that sleeps on the descriptor. */
static const lapse_order *await_order(lapse *s, int fd)
{
    const lapse_order *order = NULL;
    int found = 0;
    while (found == 0) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        ck_assert_msg(poll(&p, 1, (int)(LIMIT / LAPSE_MS(1))) == 1,
                      "an order is due and the descriptor is not readable");
        found = lapse_poll(s, "A", &order);
    }
    ck_assert_int_eq(found, 1);
    return order;
}

START_TEST(a_host_beside_a_taker)
{
    rig r = rig_real(_i, &long_lease);
    taker b;
    long rounds = tier(60, 1000, 100000);
    int fd = lapse_fd(r.s);
    taker_start(&b, r.s, "B", LAPSE_US(400));
    for (long n = 0; n < rounds; n++) {
        put(r.s, "A", "a", LAPSE_US(700));
        const lapse_order *order = await_order(r.s, fd);
        ck_assert_int_eq(lapse_settle(r.s, order->fence, LAPSE_DONE, 0, NULL), 0);
    }
    lapse_stop(r.s);
    taker_end(&b);
    rig_close(&r);
}
END_TEST

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
    rig r = rig_manual(_i, START, &long_lease);
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

static void add_wakeups(Suite *suite)
{
    TCase *group = add_group(suite, "wake-ups");
    ADD_FOR_ENGINES(group, a_taker_beside_one_with_short_timeouts);
    ADD_FOR_ENGINES(group, a_taker_beside_busy_workers);
    ADD_FOR_ENGINES(group, a_lifted_lid_before_a_schedule);
    ADD_FOR_ENGINES(group, a_lifted_lid_before_an_advance);
    ADD_FOR_ENGINES(group, an_order_given_back_before_a_schedule);
    ADD_FOR_ENGINES(group, the_descriptor_tells_of_the_other_queue);
    ADD_FOR_ENGINES(group, the_descriptor_tells_of_a_resumed_order);
    ADD_FOR_ENGINES(group, a_host_beside_a_taker);
}

static void add_hooks(Suite *suite)
{
    TCase *group = add_group(suite, "hooks");
    ADD_FOR_ENGINES(group, a_hook_settles_the_order_that_another_is_told_of);
    ADD_FOR_ENGINES(group, on_error_waits_for_the_order_that_was_lost);
    ADD_FOR_ENGINES(group, the_log_waits_for_the_order_that_was_lost);
    ADD_FOR_ENGINES(group, the_log_waits_for_the_order_that_is_stuck);
}

static void add_closing(Suite *suite)
{
    TCase *group = add_group(suite, "closing");
    ADD_FOR_ENGINES(group, closing_in_release);
    ADD_FOR_ENGINES(group, closing_in_on_error);
    ADD_FOR_ENGINES(group, closing_in_on_dead_and_log);
    ADD_FOR_ENGINES(group, closing_in_visitors);
    ADD_FOR_ENGINES(group, closing_in_hooks_of_a_worker);
    ADD_FOR_ENGINES(group, the_time_limit_holds_while_a_worker_is_in_release);
    ADD_FOR_ENGINES(group, the_time_limit_holds_while_a_worker_is_in_on_dead);
    ADD_FOR_ENGINES(group, the_time_limit_holds_while_the_log_is_written);
}

int main(void)
{
    Suite *suite = suite_create("races");
    add_wakeups(suite);
    TCase *group = add_group(suite, "instants, forks, rates, amounts");
    ADD_FOR_ENGINES(group, instants_with_a_slow_wall_clock);
    ADD_FOR_ENGINES(group, an_instant_of_a_long_list);
    ADD_FOR_ENGINES(group, a_child_that_returns_from_a_callback_of_process);
    ADD_FOR_ENGINES(group, a_child_that_returns_from_a_callback_of_run);
    ADD_FOR_ENGINES(group, a_child_that_returns_from_a_callback_of_a_worker);
    ADD_FOR_ENGINES(group, a_rate_survives_changes);
    ADD_FOR_ENGINES(group, many_claims_are_lost_at_once);
    ADD_FOR_ENGINES(group, much_falls_due_in_a_queue_that_nobody_asked_for);
    add_hooks(suite);
    add_closing(suite);
    return run_suite(suite);
}
