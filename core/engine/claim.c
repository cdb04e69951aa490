/* claim.c - from due to held.
 *
 * A claim is held from lp_begin to lp_settle, in a table by its fence, which is the token that
 * settles it: a second settlement finds nothing and changes nothing. All under the lock. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "engine/driver.h"

/* -- Held claims -- */

static lp_claim **bucket_of(lapse *s, int64_t fence)
{
    return &s->held[(uint64_t)fence % LP_HELD_BUCKETS];
}

lp_claim *lp_find_fence(lapse *s, int64_t fence)
{
    lp_claim *c = *bucket_of(s, fence);
    while (c && c->order.fence != fence)
        c = c->next;
    return c;
}

lp_claim *lp_find_held(lapse *s, int64_t fence)
{
    lp_claim *c = lp_find_fence(s, fence);
    return c && !c->lost && !c->superseded ? c : NULL;
}

lp_claim *lp_take_claim(lapse *s)
{
    lp_claim *c = s->free_claims;
    if (c)
        s->free_claims = c->next;
    else
        c = malloc(sizeof *c);
    return c;
}

void lp_free_claim(lapse *s, lp_claim *c)
{
    c->next = s->free_claims;
    s->free_claims = c;
}

static void hold(lapse *s, lp_claim *c)
{
    lp_claim **bucket = bucket_of(s, c->order.fence);
    c->prev = NULL;
    c->next = *bucket;
    if (c->next)
        c->next->prev = c;
    *bucket = c;
    s->held_count++;
}

void lp_let_go(lapse *s, lp_claim *c)
{
    if (c->prev)
        c->prev->next = c->next;
    else
        *bucket_of(s, c->order.fence) = c->next;
    if (c->next)
        c->next->prev = c->prev;
    lp_free_claim(s, c);
    if (--s->held_count == 0)
        s->check_at = LAPSE_FOREVER;
}

lp_claim *lp_any_held(const lapse *s, bool runs_callback)
{
    for (unsigned i = 0; i < LP_HELD_BUCKETS; i++)
        for (lp_claim *c = s->held[i]; c; c = c->next)
            if (c->runs_callback == runs_callback)
                return c;
    return NULL;
}

lp_claim *lp_find_callback(const lapse *s, const char *id, size_t len, int64_t generation)
{
    for (unsigned i = 0; s->callbacks && i < LP_HELD_BUCKETS; i++)
        for (lp_claim *c = s->held[i]; c; c = c->next)
            if (c->runs_callback && c->order.id_len == len && memcmp(c->order.id, id, len) == 0 &&
                (generation == LAPSE_ANY || generation == c->order.generation))
                return c;
    return NULL;
}

/* -- Begin -- */

lapse_ns lp_engine_wall_offset(lapse *s, lapse_ns now)
{
    if (s->wall_read == INT64_MIN || now - s->wall_read > LAPSE_MS(1)) {
        s->wall_offset = lp_clock_wall(s->options.clock) - now;
        s->wall_read = now;
    }
    return s->wall_offset;
}

static lapse_ns lateness(const lp_claim *c, lapse_ns now)
{
    return now > c->due ? now - c->due : 0;
}

/* The claim of an order becomes one that a consumer holds. */
static void start(lapse *s, lp_claim *c, lp_side side, lapse_ns now)
{
    c->order.due = lp_sum_ns(c->due, lp_engine_wall_offset(s, now));
    c->order.late = lateness(c, now);
    c->thread = (unsigned long)pthread_self();
    c->runs_callback = side == LP_PUSH;
    c->in_callback = false;
    c->no_more = false;
    c->retry_delay = -1;
    c->has_error = false;
    s->callbacks += c->runs_callback;
    s->totals.started++;
    c->queue->started++;
    lp_histogram_add(c->queue->lateness ? c->queue->lateness : &s->lateness, c->order.late);
    hold(s, c);
    lp_watch_claim(s, c, now);
}

/* A claimed order that must not start. */
static void bury(lapse *s, lp_claim *c, lapse_reason reason, const char *error, lp_task *t,
                 lapse_ns now)
{
    lp_request_init(&t->r, LP_DIE);
    t->r.claim = c;
    t->r.reason = reason;
    t->r.error = error;
    lp_book_death(s, c->queue, reason, 1);
    lp_queue_refund(c->queue); /* Nothing was started. */
    lp_ask(s, t, now);
    lp_free_claim(s, c);
}

static bool has_expired(const lp_claim *c, lapse_ns now)
{
    return c->handler && c->handler->policy.expires &&
           lateness(c, now) > c->handler->policy.expires;
}

/* Why an order must not start, and in words; LAPSE_REASON_NONE: it may. In a durable store
 * the deliveries of workers that died are found when it is claimed anew. */
static lapse_reason fault_of(const lapse *s, const lp_claim *c, lapse_ns now, const char **error)
{
    *error = NULL;
    if (s->driver && (*error = lp_driver_fault(c)))
        return LAPSE_REASON_FAILED;
    if (s->driver && c->order.attempt > lp_attempts(c)) {
        *error = "its workers were lost";
        return LAPSE_REASON_LOST;
    }
    return has_expired(c, now) ? LAPSE_REASON_EXPIRED : LAPSE_REASON_NONE;
}

int lp_accept(lapse *s, lp_side side, lp_claim *c, lapse_ns now, lp_task *t)
{
    const char *error;
    c->handler = c->fn || side == LP_PULL ? NULL : c->queue->handler;
    c->no_more = false;
    lapse_reason fault = fault_of(s, c, now, &error);
    if (fault) {
        bury(s, c, fault, error, t, now);
        return LP_CLAIM_MORE;
    }
    if (c->handler)
        c->handler->refs++;
    start(s, c, side, now);
    return LP_CLAIM_ONE;
}

/* Claim with memory that is there. */
static int claim(lapse *s, lp_side side, lp_queue *queue, lapse_ns until, lapse_ns now, lp_claim *c,
                 lp_task *t)
{
    until = until < now ? until : now;
    bool more = side == LP_PUSH && s->handled && lp_announce(s, until);
    int found = s->store->ops->claim(s->store, side, queue, until, now, c);
    if (found != LP_CLAIM_ONE) {
        lp_free_claim(s, c);
        return found == LP_CLAIM_NONE && more ? LP_CLAIM_MORE : found;
    }
    return lp_accept(s, side, c, now, t);
}

int lp_begin(lapse *s, lp_side side, lp_queue *queue, lapse_ns until, lapse_ns now, lp_claim **out,
             lp_task *t)
{
    *out = NULL;
    lp_task_clear(t);
    if (s->stopped)
        return lp_fail(LAPSE_ECLOSED, "the scheduler was stopped: open another");
    lp_claim *c = lp_take_claim(s);
    if (!c)
        return lp_fail_memory();
    int found = claim(s, side, queue, until, now, c, t);
    if (found == LP_CLAIM_ONE)
        *out = c;
    return found;
}
