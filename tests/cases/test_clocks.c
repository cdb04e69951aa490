/* test_clocks.c - which clock counts, P-15 to P-18.
 *
 * The functions below named like libc's stand before them: they step the wall clock and
 * let the machine "sleep" for this process only, and they write down every wait that
 * depends on the wall clock. The kernel's own sleep cannot be stepped for one process, so
 * such a wait is a failure by itself. */
/* tiers: small full soak */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "../support/support.h"

#include <dlfcn.h>
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <sched.h>
#include <semaphore.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

/* -- The shim ---------------------------------------------------------------------- */

static _Atomic lapse_ns wall_offset, boot_offset;
static atomic_int wall_waits, boot_timers, other_timers;

/* When each timer is armed, to let it see the sleep of the machine; by descriptor. */
enum { DESCRIPTORS = 256 };
static pthread_mutex_t armed_lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    bool boot;        /* a timer on CLOCK_BOOTTIME */
    lapse_ns at;      /* absolute, on the shifted clock; 0: disarmed */
} armed[DESCRIPTORS]; /* under armed_lock */

static lapse_ns from_timespec(const struct timespec *t)
{
    return LAPSE_SECONDS((int64_t)t->tv_sec) + t->tv_nsec;
}

static struct timespec to_timespec(lapse_ns ns)
{
    return (struct timespec){ns / LAPSE_SECONDS(1), ns % LAPSE_SECONDS(1)};
}

static bool is_wall(clockid_t clock)
{
    return clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE ||
           clock == CLOCK_REALTIME_ALARM || clock == CLOCK_TAI;
}

static lapse_ns offset_of(clockid_t clock)
{
    if (is_wall(clock))
        return atomic_load(&wall_offset);
    return clock == CLOCK_BOOTTIME || clock == CLOCK_BOOTTIME_ALARM ? atomic_load(&boot_offset) : 0;
}

int clock_gettime(clockid_t clock, struct timespec *out)
{
    int result = (int)syscall(SYS_clock_gettime, clock, out);
    if (result == 0)
        *out = to_timespec(from_timespec(out) + offset_of(clock));
    return result;
}

int gettimeofday(struct timeval *restrict out, void *restrict zone)
{
    struct timespec t;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &t);
    *out = (struct timeval){t.tv_sec, t.tv_nsec / 1000};
    return 0;
}

time_t time(time_t *out)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    if (out != NULL)
        *out = t.tv_sec;
    return t.tv_sec;
}

int timerfd_create(clockid_t clock, int flags)
{
    int fd = (int)syscall(SYS_timerfd_create, clock, flags);
    bool boot = clock == CLOCK_BOOTTIME || clock == CLOCK_BOOTTIME_ALARM;
    atomic_fetch_add(boot ? &boot_timers : &other_timers, 1);
    pthread_mutex_lock(&armed_lock);
    if (fd >= 0 && fd < DESCRIPTORS) {
        armed[fd].boot = boot;
        armed[fd].at = 0;
    }
    pthread_mutex_unlock(&armed_lock);
    return fd;
}

/* Arm with what the kernel's own clock says at the shifted instant. */
static int arm_shifted(int fd, int flags, const struct itimerspec *value, struct itimerspec *old)
{
    struct itimerspec real = *value;
    lapse_ns at = from_timespec(&value->it_value);
    if ((flags & TFD_TIMER_ABSTIME) != 0 && at != 0) {
        lapse_ns shifted = at - atomic_load(&boot_offset);
        real.it_value = to_timespec(shifted > 0 ? shifted : 1);
    }
    return (int)syscall(SYS_timerfd_settime, fd, flags, &real, old);
}

int timerfd_settime(int fd, int flags, const struct itimerspec *value, struct itimerspec *old)
{
    pthread_mutex_lock(&armed_lock);
    lapse_ns at = from_timespec(&value->it_value);
    if (at != 0 && (flags & TFD_TIMER_ABSTIME) == 0)
        at += boot_now() + atomic_load(&boot_offset);
    if (fd >= 0 && fd < DESCRIPTORS)
        armed[fd].at = at;
    int result = arm_shifted(fd, flags, value, old);
    pthread_mutex_unlock(&armed_lock);
    return result;
}

/* The machine sleeps for `how_long`: only CLOCK_BOOTTIME counts it, and a timer on that
 * clock sees it at resume. */
static void machine_sleeps(lapse_ns how_long)
{
    pthread_mutex_lock(&armed_lock);
    atomic_fetch_add(&boot_offset, how_long);
    for (int fd = 0; fd < DESCRIPTORS; fd++) {
        struct itimerspec value = {.it_value = to_timespec(armed[fd].at)};
        if (armed[fd].boot && armed[fd].at != 0)
            arm_shifted(fd, TFD_TIMER_ABSTIME, &value, NULL);
    }
    pthread_mutex_unlock(&armed_lock);
}

int clock_nanosleep(clockid_t clock, int flags, const struct timespec *request,
                    struct timespec *left)
{
    if (is_wall(clock) && (flags & TIMER_ABSTIME) != 0)
        atomic_fetch_add(&wall_waits, 1);
    return syscall(SYS_clock_nanosleep, clock, flags, request, left) == 0 ? 0 : errno;
}

/* ThreadSanitizer must see the waits itself: there its own stand-ins are left in place, and
 * the other builds tell which clock the waits are on. */
#ifndef UNDER_TSAN

static void *next_symbol(const char *name)
{
    void *symbol = dlvsym(RTLD_NEXT, name, "GLIBC_2.3.2"); /* x86-64 keeps an older one too. */
    return symbol != NULL ? symbol : dlsym(RTLD_NEXT, name);
}

/* An instant after 2001 is one of the wall clock; no machine is up that long. */
static void note_absolute(const struct timespec *end)
{
    if (end->tv_sec > 1000000000)
        atomic_fetch_add(&wall_waits, 1);
}

int pthread_cond_timedwait(pthread_cond_t *restrict cond, pthread_mutex_t *restrict mutex,
                           const struct timespec *restrict end)
{
    int (*next)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
    *(void **)&next = next_symbol("pthread_cond_timedwait");
    note_absolute(end);
    return next(cond, mutex, end);
}

int pthread_cond_clockwait(pthread_cond_t *cond, pthread_mutex_t *mutex, clockid_t clock,
                           const struct timespec *end)
{
    int (*next)(pthread_cond_t *, pthread_mutex_t *, clockid_t, const struct timespec *);
    *(void **)&next = dlsym(RTLD_NEXT, "pthread_cond_clockwait");
    if (is_wall(clock))
        atomic_fetch_add(&wall_waits, 1);
    return next(cond, mutex, clock, end);
}

int pthread_mutex_timedlock(pthread_mutex_t *restrict mutex, const struct timespec *restrict end)
{
    int (*next)(pthread_mutex_t *, const struct timespec *);
    *(void **)&next = dlsym(RTLD_NEXT, "pthread_mutex_timedlock");
    atomic_fetch_add(&wall_waits, 1);
    return next(mutex, end);
}

int sem_timedwait(sem_t *restrict sem, const struct timespec *restrict end)
{
    int (*next)(sem_t *, const struct timespec *);
    *(void **)&next = dlsym(RTLD_NEXT, "sem_timedwait");
    atomic_fetch_add(&wall_waits, 1);
    return next(sem, end);
}

#endif

static void step_wall(lapse_ns by)
{
    atomic_fetch_add(&wall_offset, by);
}

static void expect_no_wall_waits(void)
{
    ck_assert_int_eq(atomic_load(&wall_waits), 0);
    ck_assert_int_eq(atomic_load(&other_timers), 0);
    ck_assert_int_ge(atomic_load(&boot_timers), 1);
}

static const lapse_ns steps[] = {LAPSE_HOURS(-1), LAPSE_HOURS(1), LAPSE_DAYS(-5 * 365),
                                 LAPSE_DAYS(10 * 365)};
enum { STEPS = sizeof steps / sizeof *steps };

/* -- P-15 -------------------------------------------------------------------------- */

enum { SPREAD = 60 };

static lapse_verdict note_lateness(const lapse_order *order, void *arg)
{
    lapse_ns late = boot_now() - *(const lapse_ns *)arg;
    if (late < 0)
        complain("%s ran %" PRId64 " ns early", order->id, -late);
    if (late > LAPSE_SECONDS(10)) /* The machine may be busy; the steps are an hour. */
        complain("%s ran %" PRId64 " ns late", order->id, late);
    if (order->late < 0 || order->late > LAPSE_SECONDS(10))
        complain("%s was told it is %" PRId64 " ns late", order->id, order->late);
    return LAPSE_DONE;
}

START_TEST(p15_wall_steps_do_not_move_orders)
{
    rig r = rig_real(_i, NULL);
    lapse_ns due[SPREAD];
    ck_assert_int_eq(lapse_start(r.s, 1), 0);
    for (int i = 0; i < SPREAD; i++) {
        char id[8];
        snprintf(id, sizeof id, "%d", i);
        lapse_ns delay = LAPSE_MS(1 + i);
        due[i] = boot_now() + delay;
        ck_assert_int_gt(lapse_schedule(r.s, id, delay, note_lateness, &due[i]), 0);
        step_wall(steps[i % STEPS]);
    }
    ck_assert_int_gt(lapse_timeout(r.s), -1);
    while (pending_in(r.s) + stats_of(r.s).running > 0) {
        step_wall(LAPSE_HOURS(-1));
        sched_yield();
    }
    ck_assert_uint_eq(stats_of(r.s).done, SPREAD);
    ck_assert_int_lt(stats_of(r.s).late_max, LAPSE_SECONDS(10));
    rig_close(&r);
    expect_no_wall_waits();
}
END_TEST

/* To the nanosecond: the same orders at the same readings, whatever the wall clock does. */
START_TEST(p15_wall_steps_under_a_manual_clock)
{
    rig r = rig_manual(_i, START, NULL);
    tape ran;
    tape_open(&ran, r.s);
    for (int i = 1; i <= SPREAD; i++) {
        char id[8];
        snprintf(id, sizeof id, "%d", i);
        ck_assert_int_gt(lapse_schedule(r.s, id, LAPSE_SECONDS(i), tape_note, &ran), 0);
    }
    for (int i = 1; i <= SPREAD; i++) {
        lapse_ns wall = LAPSE_DAYS(20000) + steps[i % STEPS];
        ck_assert_int_eq(lapse_clock_set_wall(r.clock, wall), 0);
        expect_next_in(&r, &ran, (size_t)i - 1, LAPSE_SECONDS(1));
        ck_assert_int_eq(ran.entries[i - 1].late, 0);
    }
    tape_close(&ran);
    rig_close(&r);
}
END_TEST

/* A calendar time becomes a delay when it is given. */
START_TEST(p15_schedule_at_is_a_delay_from_then_on)
{
    for (int i = 0; i < STEPS; i++) {
        rig r = rig_manual(_i, START, NULL);
        tape ran;
        tape_open(&ran, r.s);
        lapse_ns wall = LAPSE_DAYS(20000);
        ck_assert_int_eq(lapse_clock_set_wall(r.clock, wall), 0);
        ck_assert_int_gt(lapse_schedule_at(r.s, "o", wall + LAPSE_SECONDS(60), tape_note, &ran), 0);
        ck_assert_int_eq(lapse_clock_set_wall(r.clock, wall + steps[i]), 0);
        expect_next_in(&r, &ran, 0, LAPSE_SECONDS(60));
        tape_close(&ran);
        rig_close(&r);
    }
}
END_TEST

/* -- P-16 -------------------------------------------------------------------------- */

START_TEST(p16_sleep_of_the_machine_counts)
{
    rig r = rig_real(_i, NULL);
    tape ran;
    tape_open(&ran, r.s);
    ck_assert_int_eq(lapse_start(r.s, 1), 0);
    ck_assert_int_gt(lapse_schedule(r.s, "40", LAPSE_MINUTES(40), tape_note, &ran), 0);
    ck_assert_int_gt(lapse_schedule(r.s, "20", LAPSE_MINUTES(20), tape_note, &ran), 0);
    ck_assert_int_gt(lapse_schedule(r.s, "10", LAPSE_MINUTES(10), tape_note, &ran), 0);
    machine_sleeps(LAPSE_MINUTES(5));
    ck_assert(until_others_sleep());
    ck_assert_uint_eq(tape_count(&ran), 0);
    machine_sleeps(LAPSE_MINUTES(30));
    ck_assert(tape_wait(&ran, 2));
    ck_assert_str_eq(ran.entries[0].id, "10");
    ck_assert_str_eq(ran.entries[1].id, "20");
    ck_assert_int_ge(ran.entries[0].late, LAPSE_MINUTES(25));
    ck_assert_int_le(lapse_timeout(r.s), LAPSE_MINUTES(5) + r.tick); /* It did not move. */
    machine_sleeps(LAPSE_MINUTES(4));
    ck_assert(until_others_sleep());
    ck_assert_uint_eq(tape_count(&ran), 2);
    machine_sleeps(LAPSE_MINUTES(1) + LAPSE_MS(1));
    ck_assert(tape_wait(&ran, 3));
    tape_close(&ran);
    rig_close(&r);
    expect_no_wall_waits();
}
END_TEST

START_TEST(p16_long_sleep_in_order_under_a_manual_clock)
{
    rig r = rig_manual(_i, START, NULL);
    tape ran;
    tape_open(&ran, r.s);
    for (int minutes = 40; minutes >= 10; minutes /= 2) {
        char id[8];
        snprintf(id, sizeof id, "%d", minutes);
        ck_assert_int_gt(lapse_schedule(r.s, id, LAPSE_MINUTES(minutes), tape_note, &ran), 0);
    }
    advance(&r, LAPSE_MINUTES(36));
    ck_assert_uint_eq(tape_count(&ran), 2);
    ck_assert_str_eq(ran.entries[0].id, "10");
    ck_assert_str_eq(ran.entries[1].id, "20");
    expect_next_in(&r, &ran, 2, LAPSE_MINUTES(4));
    tape_close(&ran);
    rig_close(&r);
}
END_TEST

/* -- P-17: every way to wait ------------------------------------------------------- */

struct waiter {
    lapse *s;
    const char *way;
    gate came;
};

static lapse_verdict come(const lapse_order *order, void *arg)
{
    (void)order;
    gate_open(&((struct waiter *)arg)->came);
    return LAPSE_DONE;
}

static void expect_result(const char *way, int64_t got, int64_t expected)
{
    if (got != expected)
        complain("%s answered %" PRId64 " instead of %" PRId64, way, got, expected);
}

static void wait_by_run(struct waiter *w)
{
    expect_result("lapse_run", lapse_run(w->s), 0);
}

static void wait_by_wait(struct waiter *w)
{
    expect_result("lapse_wait", lapse_wait(w->s, LIMIT), 1);
    expect_result("lapse_process", lapse_process(w->s, 0), 1);
}

static void wait_by_take(struct waiter *w)
{
    const lapse_order *order;
    expect_result("lapse_take", lapse_take(w->s, NULL, LIMIT, &order), 1);
    expect_result("lapse_settle", lapse_settle(w->s, order->fence, LAPSE_DONE, 0, NULL), 0);
    gate_open(&w->came);
}

static void wait_by_descriptor(struct waiter *w)
{
    struct pollfd p = {.fd = lapse_fd(w->s), .events = POLLIN};
    expect_result("poll", poll(&p, 1, LIMIT / LAPSE_MS(1)), 1);
    expect_result("lapse_process", lapse_process(w->s, 0), 1);
}

static const struct {
    const char *name;
    void (*wait)(struct waiter *w);
    bool takes;
} ways[] = {
    {"run", wait_by_run, false},
    {"wait", wait_by_wait, false},
    {"take", wait_by_take, true},
    {"descriptor", wait_by_descriptor, false},
};
enum { WAYS = sizeof ways / sizeof *ways };

static void wait_in_thread(void *arg, int number)
{
    (void)number;
    struct waiter *w = arg;
    for (int i = 0; i < WAYS; i++)
        if (ways[i].name == w->way)
            ways[i].wait(w);
}

static void wait_through_step(int engine, int way, lapse_ns step)
{
    rig r = rig_real(engine, NULL);
    struct waiter w = {.s = r.s, .way = ways[way].name};
    gate_init(&w.came);
    lapse_spec spec = {
        .id = "x", .delay = LAPSE_MS(40), .fn = ways[way].takes ? NULL : come, .arg = &w};
    lapse_ns not_before = boot_now() + spec.delay;
    ck_assert_int_gt(lapse_put(r.s, &spec), 0);
    crew c;
    crew_start(&c, 1, wait_in_thread, &w);
    ck_assert(until_others_sleep()); /* It is inside its wait, and nobody calls the API. */
    step_wall(step);
    ck_assert_msg(gate_pass(&w.came), "waiting by %s: lost at a step of %" PRId64 " ns",
                  ways[way].name, step);
    ck_assert_int_ge(boot_now(), not_before);
    ck_assert_int_eq(lapse_stop(r.s), 0);
    crew_join(&c);
    gate_destroy(&w.came);
    rig_close(&r);
}

START_TEST(p17_no_wait_sleeps_on_the_wall_clock)
{
    for (int way = 0; way < WAYS; way++)
        for (int i = 0; i < (int)tier(1, STEPS, STEPS); i++)
            wait_through_step(_i, way, steps[i]);
    ck_assert_int_eq(atomic_load(&wall_waits), 0);
    ck_assert_int_eq(atomic_load(&other_timers), 0);
}
END_TEST

START_TEST(p17_our_own_threads_do_not_either)
{
    rig r = rig_real(_i, NULL);
    tape ran;
    tape_open(&ran, r.s);
    ck_assert_int_eq(lapse_start(r.s, 3), 0);
    for (size_t i = 0; i < STEPS; i++) {
        ck_assert_int_gt(lapse_schedule(r.s, "x", LAPSE_MS(20), tape_note, &ran), 0);
        ck_assert(until_others_sleep());
        step_wall(steps[i]);
        ck_assert(tape_wait(&ran, i + 1));
    }
    tape_close(&ran);
    rig_close(&r);
    expect_no_wall_waits();
}
END_TEST

/* -- P-18 -------------------------------------------------------------------------- */

struct burner {
    rig *r;
    tape *ran;
    gate entered, go_on;
};

static lapse_verdict burn_300_ms(const lapse_order *order, void *arg)
{
    struct burner *b = arg;
    (void)order;
    if (lapse_clock_advance(b->r->clock, LAPSE_MS(300)) != 0 ||
        lapse_schedule(b->r->s, "n", LAPSE_MS(200), tape_note, b->ran) < 0)
        complain("%s", lapse_error_detail());
    return LAPSE_DONE;
}

START_TEST(p18_a_delay_counts_from_the_call)
{
    rig r = rig_manual(_i, START, NULL);
    tape ran;
    tape_open(&ran, r.s);
    struct burner b = {.r = &r, .ran = &ran};
    ck_assert_int_gt(lapse_schedule(r.s, "c", LAPSE_MS(10), burn_300_ms, &b), 0);
    advance(&r, LAPSE_MS(10));
    ck_assert_int_eq(lapse_now(r.s), START + LAPSE_MS(310));
    expect_next_in(&r, &ran, 0, LAPSE_MS(200));
    ck_assert_int_eq(ran.entries[0].late, 0);
    tape_close(&ran);
    rig_close(&r);
}
END_TEST

static lapse_verdict block(const lapse_order *order, void *arg)
{
    struct burner *b = arg;
    gate_open(&b->entered);
    if (!gate_pass(&b->go_on))
        complain("%s was never let go", order->id);
    return LAPSE_DONE;
}

START_TEST(p18_also_while_the_worker_is_blocked)
{
    rig r = rig_manual(_i, START, NULL);
    tape ran;
    tape_open(&ran, r.s);
    struct burner b = {.r = &r, .ran = &ran};
    gate_init(&b.entered);
    gate_init(&b.go_on);
    ck_assert_int_gt(lapse_schedule(r.s, "c", 0, block, &b), 0);
    ck_assert_int_eq(lapse_start(r.s, 1), 0);
    ck_assert(gate_pass(&b.entered));
    ck_assert_int_eq(lapse_clock_advance(r.clock, LAPSE_SECONDS(5)), 0);
    ck_assert_int_gt(lapse_schedule(r.s, "n", LAPSE_MS(200), tape_note, &ran), 0);
    gate_open(&b.go_on);
    ck_assert(until_others_sleep());
    ck_assert_int_eq(lapse_clock_advance(r.clock, LAPSE_MS(200) - 1), 0);
    ck_assert(until_others_sleep());
    ck_assert_uint_eq(tape_count(&ran), 0);
    ck_assert_int_eq(lapse_clock_advance(r.clock, 1), 0);
    ck_assert(tape_wait(&ran, 1));
    ck_assert_int_eq(lapse_close(r.s, LIMIT), 0);
    lapse_clock_free(r.clock);
    gate_destroy(&b.entered);
    gate_destroy(&b.go_on);
    tape_close(&ran);
    check_calm();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("clocks");
    TCase *group = add_group(suite, "P-15 to P-18");
    ADD_FOR_ENGINES(group, p15_wall_steps_do_not_move_orders);
    ADD_FOR_ENGINES(group, p15_wall_steps_under_a_manual_clock);
    ADD_FOR_ENGINES(group, p15_schedule_at_is_a_delay_from_then_on);
    ADD_FOR_ENGINES(group, p16_sleep_of_the_machine_counts);
    ADD_FOR_ENGINES(group, p16_long_sleep_in_order_under_a_manual_clock);
    ADD_FOR_ENGINES(group, p17_no_wait_sleeps_on_the_wall_clock);
    ADD_FOR_ENGINES(group, p17_our_own_threads_do_not_either);
    ADD_FOR_ENGINES(group, p18_a_delay_counts_from_the_call);
    ADD_FOR_ENGINES(group, p18_also_while_the_worker_is_blocked);
    return run_suite(suite);
}
