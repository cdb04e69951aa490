/* settle.c - what a verdict leads to, and what is booked of it.
 *
 * An order that was held ends, waits for another attempt, or dies; which one the verdict, the
 * policy and what became of it meanwhile decide together. All under the lock. */
#include "engine/driver.h"

/* -- Policy -- */

/* A number from 0 to 1, for spreading retries; xorshift64*, Vigna 2016. */
static double spread(lapse *s)
{
    s->random ^= s->random >> 12;
    s->random ^= s->random << 25;
    s->random ^= s->random >> 27;
    return (double)((s->random * UINT64_C(2685821657736338717)) >> 11) * 0x1p-53;
}

/* The policy of orders without a callback of their own that have no handler. */
static const lapse_policy taken_policy = {
    .attempts = 5,
    .backoff = LAPSE_SECONDS(1),
    .backoff_max = LAPSE_HOURS(1),
    .backoff_percent = 200,
    .jitter_percent = 20,
};

static const lapse_policy *policy_of(const lp_claim *c)
{
    return c->handler ? &c->handler->policy : &taken_policy;
}

int lp_attempts(const lp_claim *c)
{
    return c->fn ? 1 : policy_of(c)->attempts;
}

/* Exponential and spread, so that what failed together is not tried again together. */
static lapse_ns backoff(lapse *s, const lp_claim *c)
{
    const lapse_policy *p = policy_of(c);
    double delay = (double)p->backoff, most = (double)p->backoff_max;
    for (int i = 1; i < c->order.attempt && delay < most; i++)
        delay = delay * p->backoff_percent / 100;
    if (delay > most)
        delay = most;
    delay *= 1 + (2 * spread(s) - 1) * p->jitter_percent / 100;
    return (lapse_ns)(delay > most ? most : delay);
}

static lapse_ns retry_delay(lapse *s, const lp_claim *c, lapse_ns delay)
{
    if (delay < 0)
        return backoff(s, c);
    return delay > LAPSE_DELAY_MAX ? LAPSE_DELAY_MAX : delay;
}

/* -- Decide -- */

static void end(lp_request *r)
{
    r->op = LP_END;
}

static void again(lp_request *r, lapse_ns due)
{
    r->op = LP_AGAIN;
    r->due = due;
    r->counted = true;
}

static void die(lp_request *r, lapse_reason reason, const char *error)
{
    r->op = LP_DIE;
    r->reason = reason;
    r->error = error;
    r->counted = true;
}

/* Another attempt, if there is one left: one that an order's own callback asks for
 * always is. */
static void retry(lapse *s, lp_claim *c, lapse_ns delay, const char *error, lapse_ns now,
                  lp_request *r)
{
    if (c->fn || c->order.attempt < lp_attempts(c))
        again(r, lp_add_ns(now, retry_delay(s, c, delay)));
    else
        die(r, LAPSE_REASON_FAILED, error);
}

/* What a failed attempt leads to. */
static void fail(lapse *s, lp_claim *c, lapse_ns now, const char *error, lp_request *r)
{
    s->totals.failed++;
    c->queue->failed++;
    if (c->fn)
        end(r); /* A callback of its own has one attempt. */
    else
        retry(s, c, -1, error, now, r);
}

static void decide(lapse *s, lp_claim *c, lapse_verdict verdict, lapse_ns delay, const char *error,
                   lapse_ns now, lp_request *r)
{
    switch (verdict) {
    case LAPSE_DONE:
        end(r);
        return;
    case LAPSE_RETRY:
        retry(s, c, delay, error, now, r);
        return;
    case LAPSE_REJECT:
        s->totals.rejected++;
        die(r, LAPSE_REASON_REJECTED, error);
        return;
    case LAPSE_GIVE_BACK:
        s->totals.given_back++;
        again(r, c->due);
        r->counted = false;
        return;
    case LAPSE_FAIL:
        fail(s, c, now, error, r);
        return;
    }
}

/* -- Book -- */

void lp_count_dead(lp_queue *q, lapse_reason reason, uint64_t by)
{
    q->dead_total += by;
    q->dead_by[reason] += by;
}

/* A store that answers inline counts for its queues itself. */
void lp_book_death(lapse *s, lp_queue *q, lapse_reason reason, uint64_t by)
{
    s->totals.dead += by;
    s->totals.dead_by[reason] += by;
    if (s->driver)
        lp_count_dead(q, reason, by);
}

/* Book what was decided, or that it was not so (`by` -1): each order ends in one of done,
 * cancelled and dead. */
static void book(lapse *s, lp_queue *q, int op, lapse_reason reason, bool no_more, bool counted,
                 uint64_t by)
{
    switch (op) {
    case LP_END:
        *(no_more ? &s->totals.cancelled : &s->totals.done) += by;
        *(no_more ? &q->cancelled : &q->done) += by;
        return;
    case LP_AGAIN:
        s->totals.retried += counted ? by : 0;
        q->retried += counted ? by : 0;
        return;
    default:
        lp_book_death(s, q, reason, by);
        return;
    }
}

static void book_job(lapse *s, const lp_job *job, lp_queue *q, uint64_t by)
{
    book(s, q, job->op, job->reason, job->no_more, job->counted, by);
}

void lp_unbook(lapse *s, const lp_job *settlement, lp_queue *q)
{
    s->totals.stale++;
    if (q)
        book_job(s, settlement, q, UINT64_MAX);
}

void lp_book_ended(lapse *s, const lp_job *booked, lp_queue *q, bool cancelled)
{
    if (q && booked)
        book_job(s, booked, q, UINT64_MAX);
    if (q)
        book(s, q, LP_END, LAPSE_REASON_NONE, cancelled, false, 1);
}

/* -- Settle -- */

/* Whether only the store knows if the claim still holds its order: a taker renews by itself,
 * and a callback's lease may have ended where it could not be renewed. A host's loop must not
 * wait: what it was told is corrected when the store has answered. */
static bool must_wait(const lapse *s, const lp_claim *c, lapse_verdict verdict, lapse_ns now)
{
    if (!s->driver || verdict == LAPSE_GIVE_BACK)
        return false;
    return !c->runs_callback || (!s->driver->host_loops && !lp_driver_is_assured(c, now));
}

int lp_settle(lapse *s, lp_claim *c, lapse_verdict verdict, lapse_ns delay, const char *error,
              lapse_ns now, lp_task *t)
{
    lp_request_init(&t->r, LP_END);
    t->r.claim = c;
    bool fresh = !c->lost && !c->superseded;
    if (!c->lost) {
        decide(s, c, verdict, delay, error, now, &t->r);
        bool wished = t->r.op == LP_END;
        /* Cancelled or scheduled anew while it ran: it is not repeated and does not die. */
        if (c->superseded || c->no_more)
            end(&t->r);
        c->no_more = c->no_more && !wished; /* It was done all the same. */
    }
    t->r.waits = must_wait(s, c, verdict, now);
    if (t->r.waits)
        c->lease_end = LAPSE_FOREVER; /* Nobody is to lose it meanwhile. */
    lp_ask(s, t, now);
    bool refused = t->r.answer < 0; /* by a store that others use too */
    if (t->r.answer == 1) {         /* Cancelled by one of them: it ended instead. */
        end(&t->r);
        c->no_more = true;
    }
    if (!c->lost && !refused)
        book(s, c->queue, (int)t->r.op, t->r.reason, c->no_more, t->r.counted, 1);
    s->totals.stale += !fresh || refused;
    if (c->handler)
        lp_drop_handler(c->handler, &t->r);
    s->callbacks -= c->runs_callback;
    if (t->r.op == LP_AGAIN)
        lp_arm_for(s, t->r.due);
    if (t->r.op == LP_AGAIN && !t->r.counted)
        lp_wake_takers(s);
    lp_let_go(s, c);
    lp_tell_settled(s);
    return refused ? (int)t->r.answer : fresh ? LAPSE_OK : LAPSE_ESTALE;
}
