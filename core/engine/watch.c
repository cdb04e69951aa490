/* watch.c - claims that last too long: lost when their lease or run limit ends, named
 * in the log when their callback seems stuck.
 *
 * `check_at` is at or before the next instant at which a claim may need it; whoever is
 * about sees to it then: the leader of those who wait, any call that has the time at hand,
 * or the watcher when all of our threads may be stuck. A lost claim stays in the table
 * until its consumer settles it: its order has gone on without it. */
#define _GNU_SOURCE /* pthread_cond_clockwait */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/error.h"
#include "engine/engine.h"

/* What a claim needs. */
typedef enum event { NOTHING, LOST, STUCK } event;

static lapse_ns earlier(lapse_ns a, lapse_ns b)
{
    return a < b ? a : b;
}

/* The next instant at which a claim may need something. */
static lapse_ns next_check(const lp_claim *c)
{
    if (c->lost)
        return LAPSE_FOREVER;
    return c->stuck_reported ? c->lease_end : earlier(c->lease_end, c->stuck_at);
}

static void check_by(lapse *s, lapse_ns at)
{
    if (at >= s->check_at)
        return;
    s->check_at = at;
    if (at < s->watched_to)
        pthread_cond_signal(&s->watch);
    lp_arm_for(s, at);
}

void lp_watch_claim(lapse *s, lp_claim *c, lapse_ns now)
{
    lapse_ns stuck_after = s->options.stuck_after;
    c->lease = c->runs_callback ? LAPSE_HOURS(1) : s->options.lease;
    if (c->handler) {
        c->lease = c->handler->policy.run_limit;
        stuck_after = c->handler->policy.stuck_after;
    }
    c->lease_end = lp_add_ns(now, c->lease);
    c->stuck_reported = !c->runs_callback;
    c->stuck_at = lp_add_ns(now, stuck_after);
    check_by(s, next_check(c));
}

/* The order of a claim goes on without it. */
static bool lose(lapse *s, lp_claim *c, lapse_ns now, lp_task *t)
{
    lp_request_init(&t->r, LP_LOSE);
    t->r.claim = c;
    t->r.due = now;
    t->r.counted = true;
    t->r.ends = c->fn || c->superseded || c->no_more;
    if (!t->r.ends && c->order.attempt >= lp_attempts(c)) {
        t->r.reason = LAPSE_REASON_LOST;
        t->r.error = "the lease ended before it was settled";
    }
    lp_ask(s, t, now);
    if (t->r.answer < 0) {
        c->lease_end = lp_add_ns(now, LAPSE_SECONDS(1)); /* No memory: later. */
        return false;
    }
    c->lost = true;
    s->totals.lost++;
    if (t->r.ends) {
        s->totals.done += !c->no_more;
        s->totals.cancelled += c->no_more;
        c->queue->done += !c->no_more;
        c->queue->cancelled += c->no_more;
    } else if (t->r.reason) {
        s->totals.dead++;
        s->totals.dead_by[LAPSE_REASON_LOST]++;
    } else {
        s->totals.retried++;
        c->queue->retried++;
        lp_arm_for(s, now);
    }
    return true;
}

static event look_at(lapse *s, lp_claim *c, lapse_ns now, lp_task *t)
{
    if (!c->lost && c->lease_end <= now && lose(s, c, now, t))
        return LOST;
    if (!c->lost && !c->stuck_reported && c->stuck_at <= now) {
        c->stuck_reported = true;
        return STUCK;
    }
    return NOTHING;
}

/* A claim that needs something, or NULL, when `check_at` is right again. */
static lp_claim *next_event(lapse *s, lapse_ns now, event *what, lp_task *t)
{
    lapse_ns next = LAPSE_FOREVER;
    for (unsigned i = 0; i < LP_HELD_BUCKETS; i++)
        for (lp_claim *c = s->held[i]; c; c = c->next) {
            if (c->pinned)
                continue; /* Another thread sees to it. */
            *what = look_at(s, c, now, t);
            if (*what != NOTHING)
                return c;
            next = earlier(next, next_check(c));
        }
    s->check_at = next;
    return NULL;
}

static void tell(lapse *s, const lp_claim *c, event what)
{
    char text[256];
    const char *id = lp_text_quote(c->order.id, c->order.id_len);
    if (what == LOST)
        snprintf(text, sizeof text, "order %s was not settled in time: its consumer has lost it",
                 id);
    else
        snprintf(text, sizeof text, "the callback of order %s is still running", id);
    if (s->options.log)
        s->options.log(s->options.hook_arg, LAPSE_WARNING, text);
    if (what == LOST && c->runs_callback)
        lp_report(s, c, "the callback ran longer than its run_limit: it has lost the order");
}

void lp_watch(lapse *s)
{
    for (;;) {
        lp_task t;
        event what = NOTHING;
        lp_task_clear(&t);
        pthread_mutex_lock(&s->lock);
        lp_claim *c = next_event(s, lp_engine_now(s), &what, &t);
        if (!c) {
            if (!s->stopped)
                lp_arm_all(s);
            pthread_mutex_unlock(&s->lock);
            return;
        }
        c->pinned = true;
        c->pinner = (unsigned long)pthread_self();
        pthread_mutex_unlock(&s->lock);
        tell(s, c, what);
        if (what == LOST)
            lp_finish(s, &t);
        pthread_mutex_lock(&s->lock);
        c->pinned = false;
        if (c->gone)
            lp_free_claim(s, c);
        else
            s->check_at = earlier(s->check_at, next_check(c));
        lp_tell_settled(s);
        pthread_mutex_unlock(&s->lock);
    }
}

lapse_ns lp_watch_claims(lapse *s)
{
    lapse_ns now = lp_engine_now(s);
    if (!lp_must_watch(s, now))
        return now;
    pthread_mutex_unlock(&s->lock);
    lp_watch(s);
    pthread_mutex_lock(&s->lock);
    return lp_engine_now(s);
}

/* Sleep until `check_at`, or until it is moved forward. Under the lock. */
static void sleep_watcher(lapse *s, lapse_ns now)
{
    s->watched_to = s->check_at;
    if (s->check_at == LAPSE_FOREVER || s->options.clock) {
        pthread_cond_wait(&s->watch, &s->lock);
    } else {
        lapse_ns at = lp_deadline(s->check_at - now);
        struct timespec t = {.tv_sec = at / 1000000000, .tv_nsec = at % 1000000000};
        pthread_cond_clockwait(&s->watch, &s->lock, CLOCK_MONOTONIC, &t);
    }
    s->watched_to = INT64_MIN;
}

void *lp_run_watcher(void *scheduler)
{
    lapse *s = scheduler;
    pthread_mutex_lock(&s->lock);
    while (!s->stopped) {
        lapse_ns now = lp_engine_now(s);
        if (!lp_must_watch(s, now)) {
            sleep_watcher(s, now);
            continue;
        }
        pthread_mutex_unlock(&s->lock);
        lp_watch(s);
        pthread_mutex_lock(&s->lock);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* -- What consumers ask -- */

int lapse_renew(lapse *s, int64_t fence, lapse_ns lease)
{
    if (lease < 0 || lease > LAPSE_DELAY_MAX)
        return lp_fail(LAPSE_ERANGE, "a lease of %lld ns: use 0 to 100 years", (long long)lease);
    int code = lp_enter(s);
    if (code < 0)
        return code;
    lapse_ns now = lp_engine_now(s);
    lp_claim *c = lp_find_held(s, fence);
    if (c && c->lease_end > now) {
        c->lease_end = lp_add_ns(now, lease ? lease : c->lease);
        check_by(s, next_check(c));
    } else {
        code = lp_fail(LAPSE_ESTALE, "no claim with the fence %lld is held: its lease ended",
                       (long long)fence);
    }
    lp_leave(s);
    return code;
}

bool lapse_holds(lapse *s, int64_t fence)
{
    if (lp_enter(s) < 0)
        return false;
    const lp_claim *c = lp_find_held(s, fence);
    bool holds = c && c->lease_end > lp_engine_now(s);
    lp_leave(s);
    return holds;
}
