/* test_signals.c - signals are the host's: P-33.
 *
 * A thread counts as ours unless it marked itself as the host's. */
/* tiers: small full soak */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "../support/support.h"

#include <dirent.h>
#include <inttypes.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* -- P-33: signals ----------------------------------------------------------------- */

static const int signals[] = {SIGINT, SIGTERM, SIGALRM, SIGUSR1};
enum { SIGNALS = sizeof signals / sizeof *signals };

static _Thread_local bool host_thread;
static _Thread_local bool in_callback;
static atomic_int on_host, on_ours, on_ours_outside;

static void note_signal(int number)
{
    (void)number;
    if (host_thread)
        atomic_fetch_add(&on_host, 1);
    else
        atomic_fetch_add(&on_ours, 1);
    if (!host_thread && !in_callback)
        atomic_fetch_add(&on_ours_outside, 1);
}

static sigset_t install_handlers(void)
{
    struct sigaction action = {.sa_handler = note_signal, .sa_flags = SA_RESTART};
    sigset_t set;
    sigemptyset(&set);
    for (int i = 0; i < SIGNALS; i++) {
        ck_assert_int_eq(sigaction(signals[i], &action, NULL), 0);
        sigaddset(&set, signals[i]);
    }
    host_thread = true;
    return set;
}

static void send_each(int times)
{
    for (int n = 0; n < times; n++)
        for (int i = 0; i < SIGNALS; i++)
            ck_assert_int_eq(kill(getpid(), signals[i]), 0);
}

static bool same_mask(const sigset_t *a, const sigset_t *b)
{
    for (int number = 1; number < NSIG; number++)
        if (sigismember(a, number) != sigismember(b, number))
            return false;
    return true;
}

/* The signals that a thread blocks, from its status file; 0 when it has gone. */
static uint64_t blocked_in(const char *tid)
{
    char path[300], line[256];
    uint64_t blocked = 0;
    snprintf(path, sizeof path, "/proc/self/task/%s/status", tid);
    FILE *f = fopen(path, "r");
    while (f != NULL && fgets(line, sizeof line, f) != NULL)
        if (strncmp(line, "SigBlk:", 7) == 0)
            blocked = strtoull(line + 7, NULL, 16);
    if (f != NULL)
        fclose(f);
    return blocked;
}

/* How many threads other than this one block all four signals, and how many do not. */
static void count_blocking(int *blocking, int *open)
{
    long self = syscall(SYS_gettid);
    uint64_t all = 0;
    for (int i = 0; i < SIGNALS; i++)
        all |= UINT64_C(1) << (signals[i] - 1);
    *blocking = *open = 0;
    DIR *dir = opendir("/proc/self/task");
    ck_assert_ptr_nonnull(dir);
    for (struct dirent *e = readdir(dir); e != NULL; e = readdir(dir))
        if (e->d_name[0] != '.' && atol(e->d_name) != self) {
            if ((blocked_in(e->d_name) & all) == all)
                ++*blocking;
            else
                ++*open;
        }
    closedir(dir);
}

static void expect_blocking(int blocking, int open)
{
    int seen_blocking, seen_open;
    count_blocking(&seen_blocking, &seen_open);
    ck_assert_int_eq(seen_blocking, blocking);
    ck_assert_int_eq(seen_open, open);
}

/* With all of the host's threads blocking them, signals stay pending: nobody of ours
 * takes one. */
START_TEST(p33_idle_threads_take_no_signal)
{
    sigset_t set = install_handlers(), before, after;
    rig r = rig_real(_i, NULL);
    tape ran;
    tape_open(&ran, r.s);
    pthread_sigmask(SIG_SETMASK, NULL, &before);
    ck_assert_int_eq(lapse_start(r.s, 3), 0);
    pthread_sigmask(SIG_SETMASK, NULL, &after);
    ck_assert(same_mask(&before, &after));
    ck_assert(until_others_sleep());
    expect_blocking(thread_count() - 1, 0);
    ck_assert_int_gt(lapse_schedule(r.s, "o", 0, tape_note, &ran), 0);
    ck_assert(tape_wait(&ran, 1));
    ck_assert(until_others_sleep()); /* After a callback too. */
    expect_blocking(thread_count() - 1, 0);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    send_each(10);
    ck_assert(until_others_sleep());
    ck_assert_int_eq(atomic_load(&on_host) + atomic_load(&on_ours), 0);
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
    ck_assert_int_eq(atomic_load(&on_host), SIGNALS);
    rig_close(&r);
    ck_assert_int_eq(atomic_load(&on_ours), 0);
    tape_close(&ran);
}
END_TEST

struct at_work {
    lapse *s;
    gate entered, go_on;
    sigset_t seen;
};

static lapse_verdict look_at_mask(const lapse_order *order, void *arg)
{
    struct at_work *w = arg;
    pthread_sigmask(SIG_SETMASK, NULL, &w->seen);
    gate_open(&w->entered);
    if (!gate_pass(&w->go_on))
        complain("%s was never let go", order->id);
    return LAPSE_DONE;
}

/* Around a callback our thread carries the mask that the caller of lapse_start had. */
START_TEST(p33_a_callback_has_the_callers_mask)
{
    sigset_t set = install_handlers(), expected;
    sigdelset(&set, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &set, NULL); /* A mixed one: SIGTERM stays open. */
    pthread_sigmask(SIG_SETMASK, NULL, &expected);
    rig r = rig_real(_i, NULL);
    struct at_work w = {.s = r.s};
    gate_init(&w.entered);
    gate_init(&w.go_on);
    ck_assert_int_eq(lapse_start(r.s, 1), 0);
    pthread_sigmask(SIG_UNBLOCK, &set, NULL); /* Later changes of the caller do not count. */
    ck_assert_int_gt(lapse_schedule(r.s, "o", 0, look_at_mask, &w), 0);
    ck_assert(gate_pass(&w.entered));
    ck_assert(same_mask(&w.seen, &expected));
    ck_assert(until_others_sleep());
    expect_blocking(thread_count() - 2, 1);
    gate_open(&w.go_on);
    ck_assert_int_ge(lapse_cancel_wait(r.s, "o", LAPSE_ANY, LIMIT), 0);
    ck_assert(until_others_sleep());
    expect_blocking(thread_count() - 1, 0);
    rig_close(&r);
    gate_destroy(&w.entered);
    gate_destroy(&w.go_on);
}
END_TEST

/* On the host's own thread nothing is changed, in a callback or outside. */
START_TEST(p33_the_hosts_thread_keeps_its_mask)
{
    sigset_t set = install_handlers(), before, after;
    sigdelset(&set, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    pthread_sigmask(SIG_SETMASK, NULL, &before);
    rig r = rig_manual(_i, START, NULL);
    struct at_work w = {.s = r.s};
    gate_init(&w.entered);
    gate_init(&w.go_on);
    gate_open(&w.go_on);
    ck_assert_int_gt(lapse_schedule(r.s, "o", 0, look_at_mask, &w), 0);
    advance(&r, 0);
    ck_assert(gate_is_open(&w.entered));
    ck_assert(same_mask(&w.seen, &before));
    rig_close(&r);
    pthread_sigmask(SIG_SETMASK, NULL, &after);
    ck_assert(same_mask(&after, &before));
    gate_destroy(&w.entered);
    gate_destroy(&w.go_on);
}
END_TEST

struct bustle {
    lapse *s;
    atomic_int runs;
    atomic_bool over;
};

/* Busy all the time; the flag tells the handler that the host's code is running. */
static lapse_verdict work_in_callback(const lapse_order *order, void *arg)
{
    struct bustle *b = arg;
    in_callback = true;
    atomic_fetch_add(&b->runs, 1);
    if (!atomic_load(&b->over))
        lapse_schedule(b->s, order->id, LAPSE_US(200), work_in_callback, b);
    in_callback = false;
    return LAPSE_DONE;
}

static void open_host_thread(void *arg, int number)
{
    struct bustle *b = arg;
    (void)number;
    sigset_t none;
    sigemptyset(&none);
    host_thread = true;
    pthread_sigmask(SIG_SETMASK, &none, NULL);
    while (!atomic_load(&b->over))
        sched_yield();
}

/* The caller of lapse_start blocks the signals: none is ever handled on our threads,
 * however busy they are. Another thread of the host takes them all. */
START_TEST(p33_blocked_by_the_caller_means_never)
{
    sigset_t set = install_handlers();
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    rig r = rig_real(_i, NULL);
    struct bustle b = {.s = r.s};
    ck_assert_int_eq(lapse_start(r.s, 2), 0);
    crew c;
    crew_start(&c, 1, open_host_thread, &b);
    for (int i = 0; i < 4; i++)
        ck_assert_int_gt(lapse_schedule(r.s, (char[]){(char)('a' + i), 0}, 0, work_in_callback, &b),
                         0);
    ck_assert(until_at_least(&b.runs, 10));
    send_each((int)tier(200, 1000, 20000));
    ck_assert(until_at_least(&on_host, 1));
    ck_assert(until_at_least(&b.runs, atomic_load(&b.runs) + 10));
    atomic_store(&b.over, true);
    crew_join(&c);
    rig_close(&r);
    ck_assert_int_eq(atomic_load(&on_ours), 0);
    ck_assert_int_eq(atomic_load(&on_ours_outside), 0);
}
END_TEST

/* The caller has them open: all are handled, none ends a wait of ours or loses an order. */
START_TEST(p33_open_signals_disturb_nothing)
{
    install_handlers();
    rig r = rig_real(_i, NULL);
    struct bustle b = {.s = r.s};
    atomic_int runs = 0;
    ck_assert_int_eq(lapse_start(r.s, 2), 0);
    ck_assert_int_gt(lapse_schedule(r.s, "busy", 0, work_in_callback, &b), 0);
    for (int i = 0; i < 200; i++) {
        char id[8];
        snprintf(id, sizeof id, "%d", i);
        ck_assert_int_gt(lapse_schedule(r.s, id, LAPSE_US(100 * i), count_run, &runs), 0);
        send_each((int)tier(1, 5, 100));
    }
    ck_assert(until_at_least(&runs, 200));
    atomic_store(&b.over, true);
    rig_close(&r);
    ck_assert_int_gt(atomic_load(&on_host) + atomic_load(&on_ours), 0);
    ck_assert_int_eq(atomic_load(&runs), 200);
}
END_TEST

/* A signal that the host handles ends its own wait with a named error, nothing else. */
static void signal_main_until(void *arg, int number)
{
    struct bustle *b = arg;
    (void)number;
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, NULL);
    while (!atomic_load(&b->over)) {
        kill(getpid(), SIGUSR1);
        sched_yield();
    }
}

START_TEST(p33_a_waiting_host_sees_its_signal)
{
    install_handlers();
    struct sigaction action = {.sa_handler = note_signal};
    ck_assert_int_eq(sigaction(SIGUSR1, &action, NULL), 0);
    rig r = rig_real(_i, NULL);
    struct bustle b = {.s = r.s};
    const lapse_order *order;
    ck_assert_int_gt(lapse_schedule(r.s, "o", LAPSE_HOURS(1), never, NULL), 0);
    crew c;
    crew_start(&c, 1, signal_main_until, &b);
    ck_assert_int_eq(lapse_wait(r.s, LAPSE_FOREVER), LAPSE_EINTR);
    ck_assert_int_eq(lapse_take(r.s, NULL, LAPSE_FOREVER, &order), LAPSE_EINTR);
    atomic_store(&b.over, true);
    crew_join(&c);
    ck_assert_int_eq(lapse_wait(r.s, LAPSE_MS(1)), 0);
    rig_close(&r);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("signals");
    TCase *group = add_group(suite, "P-32 to P-34");
    ADD_FOR_ENGINES(group, p33_idle_threads_take_no_signal);
    ADD_FOR_ENGINES(group, p33_a_callback_has_the_callers_mask);
    ADD_FOR_ENGINES(group, p33_the_hosts_thread_keeps_its_mask);
    ADD_FOR_ENGINES(group, p33_blocked_by_the_caller_means_never);
    ADD_FOR_ENGINES(group, p33_open_signals_disturb_nothing);
    ADD_FOR_ENGINES(group, p33_a_waiting_host_sees_its_signal);
    return run_suite(suite);
}
