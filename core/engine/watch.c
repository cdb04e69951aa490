/* watch.c - claims that last too long: lost when their lease or run limit ends, named
 * in the log when their callback seems stuck.
 *
 * `check_at` is at or before the next instant at which a claim may need it; whoever is
 * about sees to it then: the leader of those who wait, any call that has the time at hand,
 * or the watcher when all of our threads may be stuck. A lost claim stays in the table
 * until its consumer settles it: its order has gone on without it. */
#define _GNU_SOURCE /* pthread_cond_clockwait */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/error.h"
#include "base/fork.h"
#include "engine/driver.h"

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
    if (s->driver && !c->runs_callback)
        c->lease_end = lp_driver_lease_end(c);
    c->stuck_reported = !c->runs_callback;
    c->stuck_at = lp_add_ns(now, stuck_after);
    check_by(s, next_check(c));
}

/* The order of a claim goes on without it, which nobody here decides: in a durable store a
 * taker's lease ends by itself, and another consumer may have the order already. */
static bool lose_quietly(lapse *s, lp_claim *c)
{
    c->lost = true;
    s->totals.lost++;
    if (c->superseded) { /* Nobody else will count it. */
        *(c->no_more ? &s->totals.cancelled : &s->totals.done) += 1;
        *(c->no_more ? &c->queue->cancelled : &c->queue->done) += 1;
    }
    return true;
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
        t->r.error = c->runs_callback ? "the callback ran longer than its run_limit"
                                      : "the lease ended before it was settled";
    }
    lp_ask(s, t, now);
    if (s->driver && (!c->runs_callback || lp_driver_has_lost(c)))
        return lose_quietly(s, c);
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
        if (s->driver)
            lp_count_dead(c->queue, LAPSE_REASON_LOST, 1);
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

/* A claim of bucket *from or after that needs something, with *from its bucket; or NULL,
 * and when *from is 0 `check_at` is right again. */
static lp_claim *next_event(lapse *s, lapse_ns now, unsigned *from, event *what, lp_task *t)
{
    lapse_ns next = LAPSE_FOREVER;
    for (unsigned i = *from; i < LP_HELD_BUCKETS; i++)
        for (lp_claim *c = s->held[i]; c; c = c->next) {
            *what = look_at(s, c, now, t);
            if (*what != NOTHING) {
                *from = i;
                return c;
            }
            next = earlier(next, next_check(c));
        }
    if (*from == 0)
        s->check_at = next;
    return NULL;
}

/* What is told of a claim once the lock is dropped: a copy, since its consumer may settle
 * it at any moment. */
typedef struct news {
    event what;
    bool runs_callback;
    bool gone; /* another consumer has the order */
    lapse_order order;
    lapse_ns running; /* for how long */
    char id[LAPSE_ID_MAX + 1];
} news;

static void copy_news(const lapse *s, news *n, const lp_claim *c, event what, lapse_ns now)
{
    *n = (news){.what = what, .runs_callback = c->runs_callback, .order = c->order};
    n->gone = s->driver && lp_driver_has_lost(c);
    n->running = now - c->due - c->order.late;
    memcpy(n->id, c->order.id, c->order.id_len + 1);
    n->order.id = n->id;
    n->order.payload = NULL;
    if (what == LOST && c->runs_callback && c->order.payload_len)
        n->order.payload = malloc(c->order.payload_len);
    if (n->order.payload)
        memcpy((void *)(uintptr_t)n->order.payload, c->order.payload, c->order.payload_len);
    else
        n->order.payload_len = 0; /* Without memory it is told without. */
}

static void tell(lapse *s, const news *n)
{
    char text[256];
    const char *id = lp_text_quote(n->id, n->order.id_len);
    if (n->what == LOST)
        snprintf(text, sizeof text,
                 "order %s was not settled in time: its consumer, with the fence %lld, has lost it",
                 id, (long long)n->order.fence);
    else
        snprintf(text, sizeof text, "the callback of order %s is still running after %.1f s", id,
                 (double)n->running * 1e-9);
    lp_frame frame;
    lp_call_out(s, &frame);
    if (s->options.log)
        s->options.log(s->options.hook_arg, LAPSE_WARNING, text);
    lp_call_back(&frame);
    if (n->what == LOST && n->runs_callback)
        lp_report(s, &n->order,
                  n->gone ? "its lease could not be renewed: it has lost the order"
                          : "the callback ran longer than its run_limit: it has lost the order");
    free((void *)(uintptr_t)n->order.payload);
}

/* Tell of the store's link, if there is news. */
static void tell_link(lapse *s)
{
    char text[640] = "the store can be reached again";
    pthread_mutex_lock(&s->lock);
    bool is_news = s->has_link_news;
    int code = s->link_news;
    if (is_news && code < 0)
        snprintf(text, sizeof text, "the store failed: %s", s->driver->offline_words.text);
    s->has_link_news = false;
    pthread_mutex_unlock(&s->lock);
    if (!is_news || !s->options.log)
        return;
    lp_frame frame;
    lp_call_out(s, &frame);
    s->options.log(s->options.hook_arg, code < 0 ? LAPSE_ERROR : LAPSE_INFO, text);
    lp_call_back(&frame);
}

/* Tell what the store has found at open, once. */
static void tell_warnings(lapse *s)
{
    pthread_mutex_lock(&s->lock);
    bool has = s->has_warnings;
    s->has_warnings = false;
    pthread_mutex_unlock(&s->lock);
    const lp_durable_ops *ops = s->driver->ops;
    const char *text;
    for (int i = 0; has && s->options.log && (text = ops->warning(s->driver->store, i)); i++) {
        lp_frame frame;
        lp_call_out(s, &frame);
        s->options.log(s->options.hook_arg, LAPSE_WARNING, text);
        lp_call_back(&frame);
    }
}

/* Tell that something is amiss with the store, or is not any more. */
static void tell_trouble(lapse *s)
{
    lp_detail said = {"the store is as it should be again"};
    pthread_mutex_lock(&s->lock);
    bool is_news = s->has_trouble_news && s->options.log, troubled = s->driver->troubled;
    if (troubled)
        said = s->driver->trouble;
    s->has_trouble_news = false;
    pthread_mutex_unlock(&s->lock);
    if (!is_news)
        return;
    lp_frame frame;
    lp_call_out(s, &frame);
    s->options.log(s->options.hook_arg, troubled ? LAPSE_WARNING : LAPSE_INFO, said.text);
    lp_call_back(&frame);
}

void lp_watch(lapse *s)
{
    if (s->driver) {
        tell_warnings(s);
        tell_trouble(s);
        tell_link(s);
    }
    enum { MOST = 256 }; /* events that one call sees to; the next goes on */
    unsigned from = 0;
    for (int i = 0; i < MOST; i++) {
        lp_task t;
        news n = {.what = NOTHING};
        lp_task_clear(&t);
        if (s->epoch != lp_fork_epoch())
            return; /* A hook returned in a child. */
        pthread_mutex_lock(&s->lock);
        bool whole = from == 0;
        lapse_ns now = lp_engine_now(s);
        const lp_claim *c = next_event(s, now, &from, &n.what, &t);
        if (c)
            copy_news(s, &n, c, n.what, now);
        else if (whole && !s->stopped)
            lp_arm_all(s);
        pthread_mutex_unlock(&s->lock);
        if (!c && whole)
            return;
        if (!c) {
            from = 0; /* Once more, for the time of the next look. */
            continue;
        }
        tell(s, &n);
        if (n.what == LOST)
            lp_finish(s, &t);
    }
}

void lp_claim_gone(lapse *s, int64_t fence, lapse_ns now)
{
    lp_claim *c = lp_find_held(s, fence);
    if (!c)
        return;
    c->lease_end = now;
    check_by(s, now);
}

void lp_tell_warnings(lapse *s)
{
    const lp_driver *d = s->driver;
    if (!d || !d->ops->warning || !d->ops->warning(d->store, 0))
        return;
    s->has_warnings = true;
    check_by(s, INT64_MIN);
}

void lp_tell_link(lapse *s, int code)
{
    s->has_link_news = true;
    s->link_news = code;
    check_by(s, INT64_MIN);
}

void lp_tell_trouble(lapse *s)
{
    s->has_trouble_news = true;
    check_by(s, INT64_MIN);
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
        if (s->epoch != lp_fork_epoch())
            return NULL; /* A hook returned in a child. */
        pthread_mutex_lock(&s->lock);
    }
    s->inside--;
    lp_tell_settled(s);
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
    if (c && c->lease_end > now && s->driver && !c->runs_callback) {
        code = (int)lp_driver_ask_claim(s, c, LP_RENEW, lease ? lease : c->lease);
        c = lp_find_held(s, fence); /* The lock was dropped. */
    }
    if (code < 0 && code != LAPSE_ESTALE) {
        /* The store's own words. */
    } else if (code == LAPSE_OK && c && c->lease_end > now) {
        c->lease_end = lp_add_ns(now, lease ? lease : c->lease);
        check_by(s, next_check(c));
    } else {
        code = lp_fail(LAPSE_ESTALE, "no claim with the fence %lld is held: its lease ended",
                       (long long)fence);
    }
    lp_leave(s);
    return code;
}

/* Of a durable store. A "no" is not taken back. Under the lock, which it drops meanwhile. */
static bool ask_whether_held(lapse *s, const lp_claim *c, int64_t fence)
{
    int64_t answer = lp_driver_ask_claim(s, c, LP_HOLDS, 0);
    c = lp_find_held(s, fence);
    if (c && answer == 0) {
        lp_driver_note_lost(c);
        lp_claim_gone(s, fence, lp_engine_now(s));
    }
    return c && answer == 1;
}

bool lapse_holds(lapse *s, int64_t fence)
{
    if (lp_enter(s) < 0)
        return false;
    const lp_claim *c = lp_find_held(s, fence);
    bool holds = c && c->lease_end > lp_engine_now(s);
    if (holds && s->driver)
        holds = ask_whether_held(s, c, fence);
    lp_leave(s);
    return holds;
}
