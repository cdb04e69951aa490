/* clock.c - what time it is, real or invented.
 *
 * A manual clock's readings are atomic, so that reading them takes no lock; its lock
 * guards the list of listeners. Lock order: a clock's lock, then a scheduler's. */
#include "clock.h"

#include <float.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#include "error.h"
#include "fork.h"

/* 2026-01-01 00:00 UTC. */
#define MANUAL_WALL_START INT64_C(1767225600000000000)

struct lapse_clock {
    _Atomic lapse_ns now;
    _Atomic lapse_ns wall_offset; /* wall clock minus `now` */
    pthread_mutex_t lock;
    lp_clock_listener *first; /* under lock */
    uint64_t epoch;           /* under lock; the process that owns lock and list */
};

static lapse_ns read_clock(clockid_t id)
{
    struct timespec t;
    clock_gettime(id, &t);
    return (lapse_ns)t.tv_sec * 1000000000 + t.tv_nsec;
}

lapse_ns lp_clock_now(const lapse_clock *clock)
{
    return clock ? atomic_load(&clock->now) : read_clock(CLOCK_BOOTTIME);
}

lapse_ns lp_clock_wall(const lapse_clock *clock)
{
    if (!clock)
        return read_clock(CLOCK_REALTIME);
    return lp_sum_ns(atomic_load(&clock->now), atomic_load(&clock->wall_offset));
}

lapse_ns lp_clock_monotonic(void)
{
    return read_clock(CLOCK_MONOTONIC);
}

/* In a child process the lock may be held by a thread that is not there and the
 * listeners are the parent's: both start anew. */
static void lock_clock(lapse_clock *clock)
{
    if (clock->epoch != lp_fork_epoch()) {
        pthread_mutex_init(&clock->lock, NULL);
        clock->first = NULL;
        clock->epoch = lp_fork_epoch();
    }
    pthread_mutex_lock(&clock->lock);
}

/* Under the clock's lock. */
static void tell_listeners(lapse_clock *clock)
{
    for (lp_clock_listener *l = clock->first; l; l = l->next)
        l->moved(l->arg);
}

void lp_clock_listen(lapse_clock *clock, lp_clock_listener *listener)
{
    lock_clock(clock);
    listener->next = clock->first;
    clock->first = listener;
    pthread_mutex_unlock(&clock->lock);
}

void lp_clock_unlisten(lapse_clock *clock, lp_clock_listener *listener)
{
    lock_clock(clock);
    for (lp_clock_listener **at = &clock->first; *at; at = &(*at)->next) {
        if (*at == listener) {
            *at = listener->next;
            break;
        }
    }
    pthread_mutex_unlock(&clock->lock);
}

int lapse_ns_from_seconds(double seconds, lapse_ns *out)
{
    if (!out)
        return lp_fail(LAPSE_EINVAL, "lapse_ns_from_seconds: `out` is NULL");
    const double most = (double)LAPSE_DELAY_MAX / 1e9;
    if (!(seconds <= most) || seconds < -DBL_MAX) /* NaN fails the first comparison. */
        return lp_fail(LAPSE_ERANGE, "a delay of %g seconds: use 0 to %.0f (100 years)", seconds,
                       most);
    double ns = seconds > 0 ? seconds * 1e9 : 0;
    lapse_ns whole = (lapse_ns)ns;
    *out = (double)whole < ns ? whole + 1 : whole;
    return LAPSE_OK;
}

int lapse_clock_manual(lapse_ns start, lapse_clock **out)
{
    if (!out)
        return lp_fail(LAPSE_EINVAL, "lapse_clock_manual: `out` is NULL");
    *out = NULL;
    if (start < 0 || start > LAPSE_DELAY_MAX)
        return lp_fail(LAPSE_ERANGE, "a manual clock cannot start at %lld ns: use 0 to 100 years",
                       (long long)start);
    lapse_clock *clock = calloc(1, sizeof *clock);
    if (!clock)
        return lp_fail_memory();
    atomic_init(&clock->now, start);
    atomic_init(&clock->wall_offset, MANUAL_WALL_START - start);
    pthread_mutex_init(&clock->lock, NULL);
    clock->epoch = lp_fork_epoch();
    *out = clock;
    return LAPSE_OK;
}

int lapse_clock_advance(lapse_clock *clock, lapse_ns by)
{
    if (!clock)
        return lp_fail(LAPSE_EINVAL, "lapse_clock_advance: `clock` is NULL");
    lock_clock(clock);
    /* Room for the longest delay stays above the clock, so that no sum overflows. */
    lapse_ns room = INT64_MAX - LAPSE_DELAY_MAX - MANUAL_WALL_START - atomic_load(&clock->now);
    if (by < 0 || by > room) {
        pthread_mutex_unlock(&clock->lock);
        return lp_fail(LAPSE_ERANGE, "cannot advance a clock by %lld ns: use 0 to %lld",
                       (long long)by, (long long)room);
    }
    atomic_fetch_add(&clock->now, by);
    tell_listeners(clock);
    pthread_mutex_unlock(&clock->lock);
    return LAPSE_OK;
}

int lapse_clock_set_wall(lapse_clock *clock, lapse_ns utc)
{
    if (!clock)
        return lp_fail(LAPSE_EINVAL, "lapse_clock_set_wall: `clock` is NULL");
    lapse_ns offset;
    if (__builtin_sub_overflow(utc, atomic_load(&clock->now), &offset))
        return lp_fail(LAPSE_ERANGE, "cannot set a wall clock to %lld ns", (long long)utc);
    lock_clock(clock);
    atomic_store(&clock->wall_offset, offset);
    tell_listeners(clock);
    pthread_mutex_unlock(&clock->lock);
    return LAPSE_OK;
}

lapse_ns lapse_clock_now(const lapse_clock *clock)
{
    return lp_clock_now(clock);
}

void lapse_clock_free(lapse_clock *clock)
{
    if (!clock)
        return;
    pthread_mutex_destroy(&clock->lock);
    free(clock);
}
