/* wait.c - who sleeps until when.
 *
 * Of the calls that wait, one is the leader and polls a descriptor that is armed with
 * the next due time; the others, its followers, wait without a clock. The leader hands
 * over when it leaves: whenever there is no leader but a follower, a signal is on its
 * way. A host's own poll loop has a descriptor to itself (lapse_fd). */
#define _GNU_SOURCE /* pthread_cond_clockwait */
#include <string.h>
#include <time.h>

#include "base/error.h"
#include "base/wake.h"
#include "engine/driver.h"

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

static lapse_ns earlier(lapse_ns a, lapse_ns b)
{
    return a < b ? a : b;
}

/* When there is something to do of any kind. */
static lapse_ns next_thing(lapse *s)
{
    if (s->answers)
        return 0;
    return earlier(earlier(next_of(s, LP_PUSH), next_of(s, LP_PULL)), s->check_at);
}

static void arm_host(lapse *s)
{
    if (s->host.used)
        arm(s, &s->host, s->host_nudge ? 0 : next_thing(s));
}

static void arm_waiters(lapse *s)
{
    if (!s->waiters.used)
        return;
    lapse_ns want = s->nudge ? 0 : s->check_at;
    if (s->waiting[LP_PUSH])
        want = earlier(want, next_of(s, LP_PUSH));
    if (s->waiting[LP_PULL] || s->handled)
        want = earlier(want, next_of(s, LP_PULL));
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

void lp_arm_earlier(lapse *s, lapse_ns due)
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
    pthread_cond_broadcast(&s->watch);
    lp_tell_settled(s);
}

void lp_wake_takers(lapse *s)
{
    if (s->stopped)
        return;
    s->host_nudge = s->host.used;
    arm_host(s);
    if (!s->waiting[LP_PULL])
        return;
    s->nudge = s->has_leader;
    arm_waiters(s);
    pthread_cond_broadcast(&s->work);
}

void lp_host_looked(lapse *s)
{
    s->host_nudge = false;
}

bool lp_announce(lapse *s, lapse_ns now)
{
    enum { ROUNDS = 4 };
    bool any = false, more = true;
    for (int i = 0; i < ROUNDS && more; i++) {
        more = s->store->ops->announce(s->store, now);
        any = any || more;
    }
    if (any) {
        s->announcements++;
        lp_wake_takers(s);
    }
    return more || next_of(s, LP_PULL) <= now;
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
    s->nudge = false;
    s->waiters.used = false;
    s->waiters.armed = INT64_MIN; /* It may have gone off: arm it anew next time. */
    return woken;
}

int lp_sleep(lapse *s, lp_side side, lapse_ns deadline)
{
    s->waiting[side]++;
    if (s->driver && side == LP_PUSH)
        lp_driver_waited_for(s->driver);
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

int lapse_want(lapse *s, unsigned callbacks)
{
    if (callbacks < 1 || callbacks > LAPSE_WANT_MAX)
        return lp_fail(LAPSE_EINVAL, "lapse_want: %u callbacks: it is 1 to %d", callbacks,
                       LAPSE_WANT_MAX);
    int code = lp_enter(s);
    if (code < 0)
        return code;
    if (s->driver)
        s->driver->host_most = callbacks;
    lp_leave(s);
    return LAPSE_OK;
}

int lapse_fd(lapse *s)
{
    int code = lp_enter(s);
    if (code < 0)
        return code;
    s->host.used = true;
    if (s->driver) {
        s->driver->host_loops = true;
        lp_driver_looked(s->driver, true);
    }
    if (!s->stopped)
        arm_host(s);
    lp_leave(s);
    return s->host.fd;
}

/* When a host without a descriptor should look. Under the lock. */
static lapse_ns driver_next(lapse *s, lapse_ns now)
{
    s->driver->host_loops = true;
    lp_driver_looked(s->driver, true);
    if (s->options.clock)
        lp_driver_settle(s);
    return earlier(lp_add_ns(now, lp_driver_timeout(s->driver, now)), s->check_at);
}

lapse_ns lapse_timeout(lapse *s)
{
    int code = lp_enter(s);
    if (code < 0)
        return code;
    lapse_ns now = lp_engine_now(s);
    lapse_ns next = s->answers   ? 0
                    : s->stopped ? LAPSE_FOREVER
                    : s->driver  ? driver_next(s, now)
                                 : next_thing(s);
    lp_leave(s);
    if (next == LAPSE_FOREVER)
        return LAPSE_FOREVER;
    return next > now ? next - now : 0;
}

/* Whether a callback is due now. Under the lock. */
static bool callback_is_due(lapse *s)
{
    lapse_ns now = lp_engine_now(s);
    bool more = s->handled && lp_announce(s, now);
    return more || next_of(s, LP_PUSH) <= now;
}

/* Under the lock: 1 as soon as a callback is due. */
static int wait_for_callback(lapse *s, lapse_ns deadline)
{
    while (!s->stopped) {
        lp_watch_claims(s);
        if (s->stopped)
            break; /* while the lock was dropped */
        if (callback_is_due(s))
            return 1;
        int woken = lp_sleep(s, LP_PUSH, deadline);
        if (woken == LAPSE_EINTR)
            return lp_fail(LAPSE_EINTR, "a signal interrupted the wait: look at it and wait again");
        if (!woken)
            return !s->stopped && callback_is_due(s);
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

/* The queue that a taker names: NULL in *queue for any. Under the lock. */
static int taken_queue(lapse *s, const char *name, lp_queue **queue)
{
    *queue = NULL;
    if (!name)
        return LAPSE_OK;
    int code = s->store->ops->make_queue(s->store, name, queue);
    if (code == LAPSE_OK && (*queue)->handler)
        code = lp_fail(LAPSE_EMIXED, "queue %s has a handler here: take from another, or remove it",
                       lp_text_quote(name, strnlen(name, LAPSE_ID_MAX)));
    return code;
}

/* Claim an order without a callback, waiting for one. Under the lock, which it drops
 * meanwhile. */
static int take(lapse *s, lp_queue *queue, lapse_ns deadline, lp_claim **claim)
{
    for (;;) {
        lapse_ns now = lp_watch_claims(s);
        bool more = lp_announce(s, now);
        lp_task nothing;
        int found = lp_begin(s, LP_PULL, queue, now, now, claim, &nothing);
        if (found == LP_CLAIM_MORE || (found == LP_CLAIM_NONE && more)) {
            lp_leave(s); /* Others may want it. */
            pthread_mutex_lock(&s->lock);
            continue;
        }
        if (found != LP_CLAIM_NONE)
            return found;
        if (deadline != LAPSE_FOREVER && lp_clock_monotonic() >= deadline)
            return 0;
        if (lp_sleep(s, LP_PULL, deadline) == LAPSE_EINTR)
            return lp_fail(LAPSE_EINTR, "a signal interrupted the wait: look at it and wait again");
    }
}

/* The same from a durable store. */
static int take_durable(lapse *s, lp_queue *queue, lapse_ns deadline, lp_claim **claim)
{
    for (;;) {
        lp_watch_claims(s);
        if (s->stopped)
            return lp_fail(LAPSE_ECLOSED, "the scheduler was stopped: open another");
        lp_claim *c = lp_take_claim(s);
        if (!c)
            return lp_fail_memory();
        int found = lp_driver_take(s, queue, deadline, c);
        if (found != LP_CLAIM_ONE) {
            lp_free_claim(s, c);
            return found;
        }
        lp_task t;
        lp_task_clear(&t);
        found = lp_accept(s, LP_PULL, c, lp_engine_now(s), &t);
        if (found == LP_CLAIM_ONE) {
            *claim = c;
            return found;
        }
        lp_leave(s);
        lp_finish(s, &t); /* A dead letter instead. */
        pthread_mutex_lock(&s->lock);
    }
}

/* Take from a queue, which is marked as taken from unless that fails for want of memory.
 * Under the lock, which it drops meanwhile. */
static int take_from(lapse *s, const char *name, lapse_ns deadline, lp_claim **claim)
{
    lp_queue *queue;
    int code = taken_queue(s, name, &queue);
    if (code < 0)
        return code;
    bool new = queue && !queue->taken;
    if (queue)
        queue->taken = true;
    code = s->driver ? take_durable(s, queue, deadline, claim) : take(s, queue, deadline, claim);
    if (code == LAPSE_ENOMEM && new) {
        queue->taken = false;
        s->store->ops->forget_queue(s->store, queue);
    }
    return code;
}

int lapse_take(lapse *s, const char *queue, lapse_ns timeout, const lapse_order **order)
{
    if (!order)
        return lp_fail(LAPSE_EINVAL, "`order` is NULL: give a place for the order");
    *order = NULL;
    lapse_ns deadline = timeout <= 0 ? 0 : lp_deadline(timeout);
    int code = lp_check_queue(queue);
    if (code == LAPSE_OK)
        code = lp_enter(s);
    if (code < 0)
        return code;
    lp_claim *claim = NULL;
    s->inside++;
    uint64_t announced = s->announcements;
    code = take_from(s, queue, deadline, &claim);
    s->inside--;
    bool looked = code == 0 ? s->announcements == announced
                            : code == LP_CLAIM_ONE && !s->store->ops->waits(s->store);
    if (timeout <= 0 && looked)
        lp_host_looked(s);
    if (timeout <= 0 && s->driver && code >= 0)
        lp_driver_polled(s->driver, code == 0);
    if (!s->stopped)
        arm_host(s);
    lp_tell_settled(s);
    lp_leave(s);
    if (claim)
        *order = &claim->order;
    return code;
}

int lapse_poll(lapse *s, const char *queue, const lapse_order **order)
{
    return lapse_take(s, queue, 0, order);
}
