/* test_wakeup.c - descriptors that a kernel may give odd answers about: P-34.
 *
 * The functions below named like libc's stand before them and, when `faults` is set, give
 * the odd answers that a kernel may give. */
/* tiers: small full soak */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "../support/support.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
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

/* Workers that always had something to do have not asked the kernel for anything yet. */
static void go_on_until_it_was_asked(lapse *s)
{
    atomic_int runs = 0;
    for (int i = 1; atomic_load(&fault_count) == 0; i++) {
        ck_assert_int_gt(lapse_schedule(s, "more", LAPSE_US(50), count_run, &runs), 0);
        ck_assert(until_at_least(&runs, i));
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
    go_on_until_it_was_asked(r.s);
    atomic_store(&faults, false);
    for (long i = 0; i < count; i++)
        ck_assert_int_eq(atomic_load(&o.runs[i]), 1);
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
    Suite *suite = suite_create("descriptors");
    TCase *group = add_group(suite, "P-32 to P-34");
    ADD_FOR_ENGINES(group, p34_odd_answers_of_the_kernel);
    ADD_FOR_ENGINES(group, p34_odd_answers_to_a_polling_host);
    ADD_FOR_ENGINES(group, p34_idle_is_asleep);
    ADD_FOR_ENGINES(group, p34_the_descriptor_tells_the_truth);
    return run_suite(suite);
}
