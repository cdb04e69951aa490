/* wait.c - who sleeps until when.
 *
 * Of the calls that wait, one is the leader and polls a descriptor that is armed with
 * the next due time; the others, its followers, wait without a clock. The leader hands
 * over when it leaves: whenever there is no leader but a follower, a signal is on its
 * way. A host's own poll loop has a descriptor to itself (lapse_fd). */
#define _GNU_SOURCE /* pthread_cond_clockwait */
#include <errno.h>
#include <time.h>

#include "base/error.h"
#include "base/wake.h"
#include "engine/engine.h"

static lapse_ns next_of(lapse *s, lp_side side)
{
    return s->store->ops->next(s->store, side);
}

static void arm(lapse *s, lp_alarm *a, lapse_ns want)
{
    if (!a->used || want == a->armed)
        return;
    a->armed = want;
    if (!s->options.clock)
        lp_wake_at(a->fd, want);
    else if (want <= lp_engine_now(s))
        lp_wake_now(a->fd);
    else
        lp_wake_at(a->fd, LAPSE_FOREVER); /* until the clock is moved */
}

static void arm_host(lapse *s)
{
    if (!s->host.used)
        return;
    lapse_ns push = next_of(s, LP_PUSH), pull = next_of(s, LP_PULL);
    arm(s, &s->host, push < pull ? push : pull);
}

static void arm_waiters(lapse *s)
{
    if (!s->waiters.used)
        return;
    lapse_ns want = LAPSE_FOREVER;
    for (int side = 0; side < 2; side++)
        if (s->waiting[side] && next_of(s, (lp_side)side) < want)
            want = next_of(s, (lp_side)side);
    arm(s, &s->waiters, want);
}

void lp_arm_all(lapse *s)
{
    if (s->stopped)
        return;
    if (s->options.clock) /* What is armed may have fallen due by the clock's move. */
        s->host.armed = s->waiters.armed = INT64_MIN;
    arm_host(s);
    arm_waiters(s);
}

void lp_arm_for(lapse *s, lapse_ns due)
{
    if (due < s->host.armed)
        arm_host(s);
    if (due < s->waiters.armed)
        arm_waiters(s);
}

void lp_wake_all(lapse *s)
{
    lp_wake_now(s->host.fd);
    lp_wake_now(s->waiters.fd);
    s->host.armed = s->waiters.armed = INT64_MIN;
    pthread_cond_broadcast(&s->work);
    lp_tell_settled(s);
}

void lp_announce(lapse *s, lapse_ns now)
{
    bool any = false;
    while (s->store->ops->announce(s->store, now))
        any = true;
    if (any && s->followers)
        pthread_cond_broadcast(&s->work);
}

lapse_ns lp_deadline(lapse_ns timeout)
{
    return timeout == LAPSE_FOREVER ? LAPSE_FOREVER
                                    : lp_add_ns(lp_clock_monotonic(), timeout < 0 ? 0 : timeout);
}

/* True when the wait ended before its deadline. */
static bool wait_on(lapse *s, pthread_cond_t *condition, lapse_ns deadline)
{
    if (deadline == LAPSE_FOREVER)
        return pthread_cond_wait(condition, &s->lock) == 0;
    struct timespec t = {.tv_sec = deadline / 1000000000, .tv_nsec = deadline % 1000000000};
    return pthread_cond_clockwait(condition, &s->lock, CLOCK_MONOTONIC, &t) == 0;
}

static int lead(lapse *s, lapse_ns deadline)
{
    s->has_leader = true;
    s->waiters.used = true;
    arm_waiters(s);
    lp_leave(s);
    lapse_ns timeout = LAPSE_FOREVER;
    if (deadline != LAPSE_FOREVER) {
        timeout = deadline - lp_clock_monotonic();
        timeout = timeout < 0 ? 0 : timeout;
    }
    int woken = lp_wake_wait(s->waiters.fd, timeout);
    pthread_mutex_lock(&s->lock);
    s->has_leader = false;
    s->waiters.used = false;
    s->waiters.armed = INT64_MIN; /* It may have gone off: arm it anew next time. */
    return woken;
}

int lp_sleep(lapse *s, lp_side side, lapse_ns deadline)
{
    s->waiting[side]++;
    int woken;
    if (s->has_leader) {
        arm_waiters(s); /* The leader may not have slept for this side. */
        s->followers++;
        woken = wait_on(s, &s->work, deadline);
        s->followers--;
    } else {
        woken = lead(s, deadline);
    }
    s->waiting[side]--;
    if (!s->has_leader && s->followers) {
        if (s->waiting[LP_PULL] && s->waiting[LP_PUSH])
            pthread_cond_broadcast(&s->work); /* Each looks for its own side. */
        else
            pthread_cond_signal(&s->work);
    }
    return woken;
}

bool lp_await(lapse *s, lapse_ns deadline)
{
    s->settle_waiters++;
    bool woken = wait_on(s, &s->settled, deadline);
    s->settle_waiters--;
    return woken;
}

void lp_tell_settled(lapse *s)
{
    if (s->settle_waiters)
        pthread_cond_broadcast(&s->settled);
}

int lapse_fd(lapse *s)
{
    int code = lp_enter(s);
    if (code < 0)
        return code;
    s->host.used = true;
    if (!s->stopped)
        arm_host(s);
    lp_leave(s);
    return s->host.fd;
}

lapse_ns lapse_timeout(lapse *s)
{
    int code = lp_enter(s);
    if (code < 0)
        return code;
    lapse_ns now = lp_engine_now(s);
    lapse_ns push = next_of(s, LP_PUSH), pull = next_of(s, LP_PULL);
    lapse_ns next = s->stopped ? LAPSE_FOREVER : push < pull ? push : pull;
    lp_leave(s);
    if (next == LAPSE_FOREVER)
        return LAPSE_FOREVER;
    return next > now ? next - now : 0;
}

/* Under the lock: 1 as soon as a callback is due. */
static int wait_for_callback(lapse *s, lapse_ns deadline)
{
    while (!s->stopped) {
        if (next_of(s, LP_PUSH) <= lp_engine_now(s))
            return 1;
        int woken = lp_sleep(s, LP_PUSH, deadline);
        if (woken == LAPSE_EINTR)
            return lp_fail(LAPSE_EINTR, "a signal interrupted the wait: look at it and wait again");
        if (!woken)
            return !s->stopped && next_of(s, LP_PUSH) <= lp_engine_now(s);
    }
    return lp_fail(LAPSE_ECLOSED, "the scheduler was stopped: open another");
}

int lapse_wait(lapse *s, lapse_ns timeout)
{
    lapse_ns deadline = lp_deadline(timeout);
    int code = lp_enter(s);
    if (code < 0)
        return code;
    s->inside++;
    code = wait_for_callback(s, deadline);
    s->inside--;
    lp_tell_settled(s);
    lp_leave(s);
    return code;
}

/* Under the lock: claim an order without a callback, waiting for one. */
static int take(lapse *s, const char *queue, lapse_ns deadline, lp_claim **claim)
{
    for (;;) {
        lp_announce(s, lp_engine_now(s));
        int found = lp_begin(s, LP_PULL, queue, LAPSE_FOREVER, claim);
        if (found == LP_CLAIM_MORE)
            continue;
        if (found != LP_CLAIM_NONE)
            return found;
        if (deadline != LAPSE_FOREVER && lp_clock_monotonic() >= deadline)
            return 0;
        int woken = lp_sleep(s, LP_PULL, deadline);
        if (woken == LAPSE_EINTR)
            return lp_fail(LAPSE_EINTR, "a signal interrupted the wait: look at it and wait again");
    }
}

int lapse_take(lapse *s, const char *queue, lapse_ns timeout, const lapse_order **order)
{
    if (!order)
        return lp_fail(LAPSE_EINVAL, "lapse_take: `order` is NULL");
    *order = NULL;
    lapse_ns deadline = timeout <= 0 ? 0 : lp_deadline(timeout);
    int code = lp_enter(s);
    if (code < 0)
        return code;
    lp_claim *claim = NULL;
    s->inside++;
    code = take(s, queue, deadline, &claim);
    s->inside--;
    if (!s->stopped)
        arm_host(s);
    lp_tell_settled(s);
    lp_leave(s);
    if (code == LP_CLAIM_ONE)
        *order = &claim->order;
    return code;
}

int lapse_poll(lapse *s, const char *queue, const lapse_order **order)
{
    return lapse_take(s, queue, 0, order);
}
