/* test_wakeup.c - fork, signals and descriptors: P-32 to P-34.
 *
 * The functions below named like libc's stand before them and, when `faults` is set, give
 * the odd answers that a kernel may give. A thread counts as ours unless it marked itself
 * as the host's. */
/* tiers: small full soak */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "../support/support.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <unistd.h>

/* -- The shim ---------------------------------------------------------------------- */

static atomic_bool faults;
static atomic_uint fault_count; /* Also what decides which answer is next. */
static atomic_int poll_calls;

/* 1 to `kinds` in turn, or 0 for an honest answer every other time. */
static unsigned next_fault(unsigned kinds)
{
    if (!atomic_load(&faults))
        return 0;
    unsigned n = atomic_fetch_add(&fault_count, 1);
    return n % 2 == 0 ? 0 : 1 + n / 2 % kinds;
}

static bool is_counter(int fd)
{
    char path[32], target[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(path, target, sizeof target - 1);
    if (length < 0)
        return false;
    target[length] = '\0';
    return strstr(target, "[timerfd]") != NULL || strstr(target, "[eventfd]") != NULL;
}

static ssize_t failing(int error)
{
    errno = error;
    return -1;
}

ssize_t read(int fd, void *buffer, size_t size)
{
    if (atomic_load(&faults) && size == sizeof(uint64_t) && is_counter(fd)) {
        switch (next_fault(4)) {
        case 1:
            return failing(EAGAIN);
        case 2:
            return failing(EINTR);
        case 3:
            return failing(ECANCELED);
        case 4:
            if (syscall(SYS_read, fd, buffer, size) != (long)size)
                return failing(EAGAIN);
            memcpy(buffer, &(uint64_t){26000000}, sizeof(uint64_t));
            return (ssize_t)size;
        default:
            break;
        }
    }
    return (ssize_t)syscall(SYS_read, fd, buffer, size);
}

ssize_t write(int fd, const void *buffer, size_t size)
{
    if (atomic_load(&faults) && size == sizeof(uint64_t) && is_counter(fd)) {
        switch (next_fault(2)) {
        case 1: /* Saturated: it stays readable, and the write is not taken. */
            syscall(SYS_write, fd, buffer, size);
            return failing(EAGAIN);
        case 2:
            return failing(EINTR);
        default:
            break;
        }
    }
    return (ssize_t)syscall(SYS_write, fd, buffer, size);
}

/* As for a timer that is cancelled by steps of the clock: armed all the same. */
int timerfd_settime(int fd, int flags, const struct itimerspec *value, struct itimerspec *old)
{
    int result = (int)syscall(SYS_timerfd_settime, fd, flags, value, old);
    if (result == 0 && next_fault(3) == 1)
        return (int)failing(ECANCELED);
    return result;
}

int poll(struct pollfd *fds, nfds_t count, int timeout)
{
    atomic_fetch_add(&poll_calls, 1);
    switch (next_fault(3)) {
    case 1:
        return (int)failing(EINTR);
    case 2: /* Readable for no reason, as after a change of the clock. */
        for (nfds_t i = 0; i < count; i++)
            fds[i].revents = fds[i].events;
        return (int)count;
    default:
        return (int)syscall(SYS_poll, fds, count, timeout);
    }
}

int ppoll(struct pollfd *fds, nfds_t count, const struct timespec *timeout, const sigset_t *mask)
{
    struct timespec left = timeout != NULL ? *timeout : (struct timespec){0, 0};
    atomic_fetch_add(&poll_calls, 1);
    if (next_fault(2) == 1)
        return (int)failing(EINTR);
    return (int)syscall(SYS_ppoll, fds, count, timeout != NULL ? &left : NULL, mask, _NSIG / 8);
}

/* -- P-32: fork -------------------------------------------------------------------- */

enum { PARENTS = 10 };

/* Exit status of a child that ran `check`: 0 when it held. */
static int in_child(int (*check)(rig *r), rig *r)
{
    fflush(NULL);
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0)
        _exit(check(r));
    int status = 0;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert(WIFEXITED(status));
    return WEXITSTATUS(status);
}

#define REQUIRE(condition)                                                                         \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "in the child, line %d: %s\n", __LINE__, #condition);                  \
            return 1;                                                                              \
        }                                                                                          \
    } while (0)

/* The tape of the parent's orders, copied into the child by the fork. */
static tape parents;

static int expect_forked(rig *r)
{
    const lapse_order *order;
    lapse_callback fn;
    void *arg;
    lapse_info info;
    lapse_stats stats;
    lapse_spec spec = {.id = "c"};
    int64_t result;
    REQUIRE(lapse_schedule(r->s, "c", LAPSE_MS(50), tape_note, &parents) == LAPSE_EFORKED);
    REQUIRE(lapse_schedule_at(r->s, "c", 0, tape_note, &parents) == LAPSE_EFORKED);
    REQUIRE(lapse_put(r->s, &spec) == LAPSE_EFORKED);
    REQUIRE(lapse_schedule_many(r->s, &spec, 1, &result) == LAPSE_EFORKED);
    REQUIRE(lapse_cancel(r->s, "0", LAPSE_ANY) == LAPSE_EFORKED);
    REQUIRE(lapse_cancel_wait(r->s, "0", LAPSE_ANY, 0) == LAPSE_EFORKED);
    REQUIRE(lapse_reschedule(r->s, "0", LAPSE_ANY, 0) == LAPSE_EFORKED);
    REQUIRE(lapse_get(r->s, "0", &info) == LAPSE_EFORKED);
    REQUIRE(lapse_each(r->s, 0, NULL, NULL) < 0);
    REQUIRE(lapse_fd(r->s) == LAPSE_EFORKED);
    REQUIRE(lapse_timeout(r->s) == LAPSE_EFORKED);
    REQUIRE(lapse_process(r->s, 0) == LAPSE_EFORKED);
    REQUIRE(lapse_run(r->s) == LAPSE_EFORKED);
    REQUIRE(lapse_start(r->s, 1) == LAPSE_EFORKED);
    REQUIRE(lapse_wait(r->s, 0) == LAPSE_EFORKED);
    REQUIRE(lapse_begin(r->s, LAPSE_FOREVER, &order, &fn, &arg) == LAPSE_EFORKED);
    REQUIRE(lapse_poll(r->s, NULL, &order) == LAPSE_EFORKED);
    REQUIRE(lapse_take(r->s, NULL, 0, &order) == LAPSE_EFORKED);
    REQUIRE(lapse_settle(r->s, 1, LAPSE_DONE, 0, NULL) == LAPSE_EFORKED);
    REQUIRE(lapse_statistics(r->s, &stats) == LAPSE_EFORKED);
    REQUIRE(lapse_stop(r->s) == LAPSE_EFORKED);
    REQUIRE(lapse_close(r->s, 0) == 0);
    REQUIRE(tape_count(&parents) == 0);
    return 0;
}

static int expect_new_life(rig *r)
{
    atomic_int runs = 0;
    lapse_stats stats;
    REQUIRE(lapse_after_fork(r->s) == 0);
    REQUIRE(lapse_statistics(r->s, &stats) == 0);
    REQUIRE(stats.pending == 0 && stats.running == 0);
    REQUIRE(lapse_cancel(r->s, "0", LAPSE_ANY) == LAPSE_FATE_UNKNOWN);
    REQUIRE(lapse_schedule(r->s, "0", LAPSE_MS(1), count_run, &runs) > 0);
    REQUIRE(lapse_start(r->s, 2) == 0);
    REQUIRE(until_at_least(&runs, 1));
    int fd = lapse_fd(r->s);
    REQUIRE(fd >= 0 && (fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0);
    REQUIRE(lapse_schedule(r->s, "1", LAPSE_HOURS(1), count_run, &runs) > 0);
    REQUIRE(!readable(fd));
    REQUIRE(lapse_close(r->s, LIMIT) == 0);
    REQUIRE(tape_count(&parents) == 0);
    return 0;
}

/* A child that ends without a word. */
static int just_exit(rig *r)
{
    (void)r;
    return 0;
}

static pid_t parent;

static void release_in_parent(void *arg)
{
    (void)arg;
    if (getpid() != parent)
        _exit(99);
}

START_TEST(p32_child_is_told_and_parent_is_untouched)
{
    if (!children_can_allocate(__func__))
        return;
    int (*const children[])(rig *) = {expect_forked, expect_new_life, just_exit};
    for (size_t c = 0; c < sizeof children / sizeof *children; c++) {
        rig r = rig_real(_i, NULL);
        tape_open(&parents, r.s);
        ck_assert_int_ge(lapse_fd(r.s), 0);
        ck_assert_int_eq(lapse_start(r.s, 2), 0);
        for (int i = 0; i < PARENTS; i++) {
            char id[8];
            snprintf(id, sizeof id, "%d", i);
            ck_assert_int_gt(lapse_schedule(r.s, id, LAPSE_MS(150), tape_note, &parents), 0);
        }
        ck_assert_int_eq(in_child(children[c], &r), 0);
        ck_assert(tape_wait(&parents, PARENTS));
        ck_assert_int_gt(lapse_schedule(r.s, "after", LAPSE_MS(1), tape_note, &parents), 0);
        ck_assert(tape_wait(&parents, PARENTS + 1));
        rig_close(&r);
        tape_close(&parents);
    }
}
END_TEST

static int after_fork_releases_nothing(rig *r)
{
    REQUIRE(lapse_after_fork(r->s) == 0);
    REQUIRE(lapse_close(r->s, 0) == 0);
    return 0;
}

START_TEST(p32_the_parents_arguments_are_not_released_in_the_child)
{
    rig r = rig_manual(_i, START, NULL);
    lapse_spec spec = {
        .id = "o", .delay = LAPSE_HOURS(1), .fn = never, .release = release_in_parent};
    parent = getpid();
    ck_assert_int_gt(lapse_put(r.s, &spec), 0);
    ck_assert_int_eq(in_child(after_fork_releases_nothing, &r), 0);
    ck_assert_int_eq(lapse_after_fork(r.s), 0); /* Nothing happens in the parent. */
    ck_assert_uint_eq(pending_in(r.s), 1);
    ck_assert_int_eq(lapse_close(r.s, LIMIT), 0);
    lapse_clock_free(r.clock);
}
END_TEST

/* Another thread is inside the scheduler all the time while the process forks. */
struct busy {
    lapse *s;
    atomic_bool over;
};

static void schedule_and_cancel(void *arg, int number)
{
    struct busy *b = arg;
    char id[8];
    snprintf(id, sizeof id, "%d", number);
    while (!atomic_load(&b->over)) {
        if (lapse_schedule(b->s, id, LAPSE_HOURS(1), never, NULL) < 0 ||
            lapse_cancel(b->s, id, LAPSE_ANY) != LAPSE_FATE_CANCELLED)
            complain("%s", lapse_error_detail());
    }
}

static int use_and_close(rig *r)
{
    atomic_int runs = 0;
    REQUIRE(lapse_cancel(r->s, "x", LAPSE_ANY) == LAPSE_EFORKED);
    REQUIRE(lapse_after_fork(r->s) == 0);
    REQUIRE(lapse_schedule(r->s, "x", 0, count_run, &runs) > 0);
    while (atomic_load(&runs) == 0)
        REQUIRE(lapse_process(r->s, 0) >= 0);
    REQUIRE(lapse_close(r->s, LIMIT) == 0);
    return 0;
}

START_TEST(p32_no_lock_is_inherited)
{
    if (!children_can_allocate(__func__))
        return;
    rig r = rig_real(_i, NULL);
    struct busy b = {.s = r.s};
    crew c;
    crew_start(&c, 2, schedule_and_cancel, &b);
    for (long i = 0; i < tier(10, 200, 5000); i++)
        ck_assert_int_eq(in_child(use_and_close, &r), 0);
    atomic_store(&b.over, true);
    crew_join(&c);
    rig_close(&r);
}
END_TEST

static bool close_on_exec_everywhere(void)
{
    bool all = true;
    DIR *dir = opendir("/proc/self/fd");
    ck_assert_ptr_nonnull(dir);
    for (struct dirent *e = readdir(dir); e != NULL; e = readdir(dir))
        if (e->d_name[0] != '.' && is_counter(atoi(e->d_name)))
            all = all && (fcntl(atoi(e->d_name), F_GETFD) & FD_CLOEXEC) != 0;
    closedir(dir);
    return all;
}

START_TEST(p32_descriptors_close_on_exec)
{
    rig r = rig_real(_i, NULL), m = rig_manual(_i, START, NULL);
    int fd = lapse_fd(r.s);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_ge(lapse_fd(m.s), 0);
    ck_assert_int_eq(lapse_fd(r.s), fd); /* One for life. */
    ck_assert_int_eq(lapse_start(r.s, 1), 0);
    ck_assert_int_eq(lapse_start(m.s, 1), 0);
    ck_assert(close_on_exec_everywhere());
    ck_assert((fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0);
    rig_close(&m);
    rig_close(&r);
}
END_TEST

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

/* -- P-34: odd answers of the kernel ------------------------------------------------ */

enum { ODD_THREADS = 4 };

struct odd {
    lapse *s;
    long each;
    atomic_int *runs; /* by order */
    atomic_int total;
};

static lapse_verdict run_odd(const lapse_order *order, void *arg)
{
    struct odd *o = arg;
    int number;
    long i;
    if (sscanf(order->id, "%d.%ld", &number, &i) != 2)
        complain("odd id %s", order->id);
    else
        atomic_fetch_add(&o->runs[number * o->each + i], 1);
    atomic_fetch_add(&o->total, 1);
    return LAPSE_DONE;
}

static void schedule_odd(void *arg, int number)
{
    struct odd *o = arg;
    rng luck = {(uint64_t)number};
    for (long i = 0; i < o->each; i++) {
        char id[24];
        snprintf(id, sizeof id, "%d.%ld", number, i);
        if (lapse_schedule(o->s, id, LAPSE_US(rng_range(&luck, 0, 3000)), run_odd, o) < 0)
            complain("%s: %s", id, lapse_error_detail());
    }
}

START_TEST(p34_odd_answers_of_the_kernel)
{
    rig r = rig_real(_i, NULL);
    struct odd o = {.s = r.s, .each = tier(1000, 25000, 500000)};
    long count = ODD_THREADS * o.each;
    o.runs = calloc((size_t)count, sizeof *o.runs);
    ck_assert_ptr_nonnull(o.runs);
    ck_assert_int_eq(lapse_start(r.s, 2), 0);
    atomic_store(&faults, true);
    crew_run(ODD_THREADS, schedule_odd, &o);
    ck_assert(until_at_least(&o.total, (int)count));
    atomic_store(&faults, false);
    for (long i = 0; i < count; i++)
        ck_assert_int_eq(atomic_load(&o.runs[i]), 1);
    ck_assert_uint_gt(atomic_load(&fault_count), 0);
    rig_close(&r);
    free(o.runs);
}
END_TEST

/* A descriptor that a host polls: odd answers end in a call that finds nothing to do. */
START_TEST(p34_odd_answers_to_a_polling_host)
{
    rig r = rig_real(_i, NULL);
    atomic_int runs = 0;
    int fd = lapse_fd(r.s);
    ck_assert_int_ge(fd, 0);
    atomic_store(&faults, true);
    for (int i = 0; i < 200; i++) {
        ck_assert_int_gt(lapse_schedule(r.s, "o", LAPSE_US(50 * (i % 20)), count_run, &runs), 0);
        while (atomic_load(&runs) == i) {
            struct pollfd p = {.fd = fd, .events = POLLIN};
            poll(&p, 1, LIMIT / LAPSE_MS(1));
            ck_assert_int_ge(lapse_process(r.s, 0), 0);
        }
    }
    atomic_store(&faults, false);
    ck_assert_uint_gt(atomic_load(&fault_count), 0);
    rig_close(&r);
}
END_TEST

/* Idle means asleep: between two events there is a handful of polls at most. */
START_TEST(p34_idle_is_asleep)
{
    rig r = rig_real(_i, NULL);
    tape ran;
    tape_open(&ran, r.s);
    ck_assert_int_eq(lapse_start(r.s, 4), 0);
    ck_assert_int_gt(lapse_schedule(r.s, "far", LAPSE_HOURS(1), never, NULL), 0);
    for (size_t i = 1; i <= 5; i++) {
        ck_assert(until_others_sleep());
        int before = atomic_load(&poll_calls);
        ck_assert_int_gt(lapse_schedule(r.s, "near", LAPSE_MS(20), tape_note, &ran), 0);
        ck_assert(tape_wait(&ran, i));
        ck_assert(until_others_sleep());
        ck_assert_int_le(atomic_load(&poll_calls) - before, 8);
    }
    tape_close(&ran);
    rig_close(&r);
}
END_TEST

/* Readable exactly while something is to be run. */
START_TEST(p34_the_descriptor_tells_the_truth)
{
    rig r = rig_manual(_i, START, NULL);
    tape ran;
    tape_open(&ran, r.s);
    int fd = lapse_fd(r.s);
    ck_assert(!readable(fd));
    ck_assert_int_gt(lapse_schedule(r.s, "o", LAPSE_MS(10), tape_note, &ran), 0);
    ck_assert(!readable(fd));
    ck_assert_int_eq(lapse_clock_advance(r.clock, LAPSE_MS(10)), 0);
    ck_assert(readable(fd));
    ck_assert_int_eq(lapse_timeout(r.s), 0);
    ck_assert_int_eq(lapse_cancel(r.s, "o", LAPSE_ANY), LAPSE_FATE_CANCELLED);
    lapse_process(r.s, 0); /* A look may be needed to see that it is gone. */
    ck_assert(!readable(fd));
    ck_assert_int_gt(lapse_schedule(r.s, "p", 0, tape_note, &ran), 0);
    ck_assert(readable(fd));
    ck_assert_int_eq(lapse_process(r.s, 0), 1);
    ck_assert(!readable(fd));
    ck_assert_int_eq(lapse_timeout(r.s), LAPSE_FOREVER);
    lapse_spec taken = {.id = "t"};
    const lapse_order *order;
    ck_assert_int_gt(lapse_put(r.s, &taken), 0);
    ck_assert(readable(fd));
    ck_assert_int_eq(lapse_poll(r.s, NULL, &order), 1);
    ck_assert(!readable(fd));
    ck_assert_int_eq(lapse_settle(r.s, order->fence, LAPSE_GIVE_BACK, 0, NULL), 0);
    ck_assert(readable(fd));
    ck_assert_int_eq(lapse_fd(r.s), fd);
    tape_close(&ran);
    rig_close(&r);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("fork, signals, descriptors");
    TCase *group = add_group(suite, "P-32 to P-34");
    ADD_FOR_ENGINES(group, p32_child_is_told_and_parent_is_untouched);
    ADD_FOR_ENGINES(group, p32_the_parents_arguments_are_not_released_in_the_child);
    ADD_FOR_ENGINES(group, p32_no_lock_is_inherited);
    ADD_FOR_ENGINES(group, p32_descriptors_close_on_exec);
    ADD_FOR_ENGINES(group, p33_idle_threads_take_no_signal);
    ADD_FOR_ENGINES(group, p33_a_callback_has_the_callers_mask);
    ADD_FOR_ENGINES(group, p33_the_hosts_thread_keeps_its_mask);
    ADD_FOR_ENGINES(group, p33_blocked_by_the_caller_means_never);
    ADD_FOR_ENGINES(group, p33_open_signals_disturb_nothing);
    ADD_FOR_ENGINES(group, p33_a_waiting_host_sees_its_signal);
    ADD_FOR_ENGINES(group, p34_odd_answers_of_the_kernel);
    ADD_FOR_ENGINES(group, p34_odd_answers_to_a_polling_host);
    ADD_FOR_ENGINES(group, p34_idle_is_asleep);
    ADD_FOR_ENGINES(group, p34_the_descriptor_tells_the_truth);
    return run_suite(suite);
}
