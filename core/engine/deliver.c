/* deliver.c - claim, call back, settle.
 *
 * A claim is held from lp_begin to lp_settle, in a table by its fence, which is the
 * token that settles it: a second settlement finds nothing and changes nothing. Taking
 * the next order and ending the one before it share one hold of the lock. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/fork.h"
#include "base/wake.h"
#include "engine/driver.h"

/* -- Held claims -- */

static lp_claim **bucket_of(lapse *s, int64_t fence)
{
    return &s->held[(uint64_t)fence % LP_HELD_BUCKETS];
}

static lp_claim *find_fence(lapse *s, int64_t fence)
{
    lp_claim *c = *bucket_of(s, fence);
    while (c && c->order.fence != fence)
        c = c->next;
    return c;
}

lp_claim *lp_find_held(lapse *s, int64_t fence)
{
    lp_claim *c = find_fence(s, fence);
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

static void let_go(lapse *s, lp_claim *c)
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

static _Thread_local const lp_frame *frames;

void lp_call_out(const lapse *s, lp_frame *frame)
{
    *frame = (lp_frame){s, frames};
    frames = frame;
}

void lp_call_back(const lp_frame *frame)
{
    frames = frame->below;
}

bool lp_in_callback(const lapse *s)
{
    for (const lp_frame *f = frames; f; f = f->below)
        if (f->s == s)
            return true;
    unsigned long self = (unsigned long)pthread_self();
    for (unsigned i = 0; s->callbacks && i < LP_HELD_BUCKETS; i++)
        for (const lp_claim *c = s->held[i]; c; c = c->next)
            if (c->runs_callback && c->thread == self)
                return true;
    return false;
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

void lp_count_dead(lp_queue *q, lapse_reason reason, uint64_t by)
{
    q->dead_total += by;
    q->dead_by[reason] += by;
}

/* A store that answers inline counts for its queues itself. */
static void count_death(lapse *s, lp_queue *q, lapse_reason reason, uint64_t by)
{
    s->totals.dead += by;
    s->totals.dead_by[reason] += by;
    if (s->driver)
        lp_count_dead(q, reason, by);
}

/* A claimed order that must not start. */
static void bury(lapse *s, lp_claim *c, lapse_reason reason, const char *error, lp_task *t,
                 lapse_ns now)
{
    lp_request_init(&t->r, LP_DIE);
    t->r.claim = c;
    t->r.reason = reason;
    t->r.error = error;
    count_death(s, c->queue, reason, 1);
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

/* -- Settle -- */

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
        count_death(s, q, reason, by);
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
    let_go(s, c);
    lp_tell_settled(s);
    return refused ? (int)t->r.answer : fresh ? LAPSE_OK : LAPSE_ESTALE;
}

/* Whether a claim's lease has ended, but nobody has seen to it yet. */
static bool is_overdue(const lp_claim *c, lapse_ns now)
{
    return !c->lost && c->lease_end <= now;
}

static bool is_verdict(lapse_verdict verdict)
{
    return (unsigned)verdict <= LAPSE_GIVE_BACK;
}

void lp_report(lapse *s, const lapse_order *order, const char *error)
{
    if (!s->options.on_error)
        return;
    lp_frame frame;
    lp_call_out(s, &frame);
    s->options.on_error(s->options.hook_arg, order, error);
    lp_call_back(&frame);
}

int lapse_settle(lapse *s, int64_t fence, lapse_verdict verdict, lapse_ns delay, const char *error)
{
    char text[LP_TEXT_MAX + 1];
    if (!is_verdict(verdict))
        return lp_fail(LAPSE_EINVAL,
                       "%d is no verdict: use LAPSE_DONE, LAPSE_RETRY, LAPSE_REJECT, "
                       "LAPSE_FAIL or LAPSE_GIVE_BACK",
                       (int)verdict);
    if (error) {
        lp_text_clip(text, error);
        error = text;
    }
    int code = lp_enter(s);
    if (code < 0)
        return code;
    lp_claim *c;
    lapse_ns now;
    do { /* One look sees to a bounded number of claims that are lost. */
        now = lp_watch_claims(s);
        c = find_fence(s, fence);
    } while (c && is_overdue(c, now));
    if (!c || c->in_callback) {
        s->totals.stale++;
        lp_leave(s);
        return lp_fail(LAPSE_ESTALE, "no claim with the fence %lld is held: it was settled before",
                       (long long)fence);
    }
    c->in_callback = true; /* Nobody else may settle it. */
    if (verdict == LAPSE_FAIL && s->options.on_error) {
        lp_leave(s);
        lp_report(s, &c->order, error ? error : "the consumer failed");
        code = lp_enter(s);
        if (code < 0)
            return code; /* In a child that the hook forked. */
    }
    lp_task t;
    code = lp_settle(s, c, verdict, delay, error, lp_engine_now(s), &t);
    lp_leave(s);
    lp_finish(s, &t);
    if (code != LAPSE_ESTALE)
        return code;
    return lp_fail(LAPSE_ESTALE, "the order is no longer this consumer's: its lease ended or it "
                                 "was scheduled anew");
}

static void show_claim(lp_claim *c, const lapse_order **order, lapse_callback *fn, void **arg)
{
    *order = &c->order;
    *fn = c->handler ? c->handler->fn : c->fn;
    *arg = c->handler ? c->handler->arg : c->arg;
}

int lapse_begin(lapse *s, lapse_ns until, const lapse_order **order, lapse_callback *fn, void **arg)
{
    if (!order || !fn || !arg)
        return lp_fail(LAPSE_EINVAL, "lapse_begin: `order`, `fn` or `arg` is NULL");
    *order = NULL;
    int found;
    do {
        lp_claim *c;
        lp_task t;
        found = lp_enter(s);
        if (found < 0)
            return found;
        lapse_ns now = lp_engine_now(s);
        found = lp_begin(s, LP_PUSH, NULL, until, now, &c, &t);
        if (found == LP_CLAIM_ONE)
            show_claim(c, order, fn, arg);
        else if (found == LP_CLAIM_NONE)
            found = lp_end_look(s, until, false);
        bool watch = lp_must_watch(s, now);
        lp_leave(s);
        lp_finish(s, &t);
        if (watch)
            lp_watch(s);
    } while (found == LP_CLAIM_MORE);
    return found;
}

/* -- Running callbacks -- */

static void set_error(const lapse_order *order, const char *error)
{
    lp_claim *c = (lp_claim *)(uintptr_t)order;
    c->has_error = error != NULL;
    if (error)
        lp_text_clip(c->error, error);
}

lapse_verdict lapse_retry(const lapse_order *order, lapse_ns delay, const char *error)
{
    lp_claim *c = (lp_claim *)(uintptr_t)order;
    c->retry_delay = delay < 0 ? 0 : delay;
    set_error(order, error);
    return LAPSE_RETRY;
}

lapse_verdict lapse_reject(const lapse_order *order, const char *reason)
{
    set_error(order, reason);
    return LAPSE_REJECT;
}

lapse_verdict lapse_fail(const lapse_order *order, const char *error)
{
    set_error(order, error);
    return LAPSE_FAIL;
}

/* Call back, without the lock. `mask`: the signals of the caller of lapse_start. */
static lapse_verdict call(lapse *s, lp_claim *c, const sigset_t *mask)
{
    const lapse_order *order;
    lapse_callback fn;
    void *arg;
    sigset_t blocked;
    show_claim(c, &order, &fn, &arg);
    if (mask)
        pthread_sigmask(SIG_SETMASK, mask, &blocked);
    lp_frame frame;
    lp_call_out(s, &frame);
    lapse_verdict verdict = fn(order, arg);
    lp_call_back(&frame);
    if (!is_verdict(verdict))
        verdict = lapse_fail(order, "the callback returned no verdict");
    if (verdict == LAPSE_FAIL)
        lp_report(s, order, c->has_error ? c->error : "the callback failed");
    if (mask)
        pthread_sigmask(SIG_SETMASK, &blocked, NULL);
    return verdict;
}

/* What time it was. */
static lapse_ns settle_call(lapse *s, lp_claim *c, lapse_verdict verdict, lp_task *t)
{
    lapse_ns now;
    do
        now = lp_watch_claims(s);
    while (is_overdue(c, now));
    lp_settle(s, c, verdict, c->retry_delay, c->has_error ? c->error : NULL, now, t);
    return now;
}

/* Settle `*c`, if there is one, and begin the next, in one hold of the lock. `epoch` is
 * that of the process in which this began: a callback may return in a child. */
static int settle_and_begin(lapse *s, lp_claim **c, lapse_verdict verdict, lapse_ns until,
                            uint64_t epoch)
{
    lp_task settled, begun;
    if (epoch != lp_fork_epoch())
        return LAPSE_EFORKED;
    lp_task_clear(&settled);
    pthread_mutex_lock(&s->lock);
    lapse_ns now = *c ? settle_call(s, *c, verdict, &settled) : lp_watch_claims(s);
    int found = lp_begin(s, LP_PUSH, NULL, until, now, c, &begun);
    if (found == LP_CLAIM_ONE)
        (*c)->in_callback = true;
    pthread_mutex_unlock(&s->lock);
    lp_finish(s, &settled);
    lp_finish(s, &begun);
    return found;
}

/* Settle the last one. */
static int settle_only(lapse *s, lp_claim *c, lapse_verdict verdict, uint64_t epoch)
{
    lp_task t;
    if (epoch != lp_fork_epoch())
        return LAPSE_EFORKED;
    pthread_mutex_lock(&s->lock);
    settle_call(s, c, verdict, &t);
    pthread_mutex_unlock(&s->lock);
    lp_finish(s, &t);
    return LP_CLAIM_ONE;
}

/* Run callbacks that are due by `until` while `max` allows; how many ran. Sets *found
 * to what the last look answered. */
static size_t run_due(lapse *s, lapse_ns until, size_t max, const sigset_t *mask, int *found)
{
    uint64_t epoch = lp_fork_epoch();
    lp_claim *c = NULL;
    lapse_verdict verdict = LAPSE_DONE;
    size_t ran = 0;
    for (;;) {
        *found = settle_and_begin(s, &c, verdict, until, epoch);
        if (*found == LP_CLAIM_MORE)
            continue;
        if (*found != LP_CLAIM_ONE)
            return ran;
        verdict = call(s, c, mask);
        if (++ran == max)
            break;
    }
    *found = settle_only(s, c, verdict, epoch);
    return ran;
}

/* Under a manual clock the driver does now what it has to: whether something can start by
 * `until`. It may have found that after the last look, before the lock was taken again. */
static bool look_again(lapse *s, lapse_ns until, bool in_pass)
{
    const lp_driver *d = s->driver;
    if (!d)
        return false;
    if (!d->ready) {
        lp_driver_looked(s->driver, in_pass);
        if (s->options.clock)
            lp_driver_settle(s);
    }
    return s->options.clock && d->ready && d->ready->due <= until;
}

int lp_end_look(lapse *s, lapse_ns until, bool in_pass)
{
    if (look_again(s, until, in_pass))
        return LP_CLAIM_MORE;
    lp_announce(s, lp_engine_now(s));
    lp_host_looked(s);
    lp_arm_all(s);
    return LP_CLAIM_NONE;
}

/* Leave the descriptor of a host's loop as it should be after a pass; whether it turned
 * out that there is more. */
static int end_pass(lapse *s, lapse_ns until, bool *more)
{
    pthread_mutex_lock(&s->lock);
    *more = !s->stopped && lp_end_look(s, until, true) == LP_CLAIM_MORE;
    bool stopped = s->stopped, watch = lp_must_watch(s, lp_engine_now(s));
    if (stopped)
        lp_wake_at(s->host.fd, LAPSE_FOREVER); /* It has told the host. */
    pthread_mutex_unlock(&s->lock);
    if (watch)
        lp_watch(s);
    return stopped ? lp_fail(LAPSE_ECLOSED, "the scheduler was stopped: open another") : 0;
}

int64_t lapse_process(lapse *s, size_t max)
{
    int code = lp_enter(s);
    if (code < 0)
        return code;
    s->inside++;
    lp_leave(s);
    lapse_ns until = lp_engine_now(s);
    size_t ran = 0;
    int found;
    bool more;
    do {
        ran += run_due(s, until, max ? max - ran : 0, NULL, &found);
        if (found == LAPSE_EFORKED)
            return lp_fail(found, "a callback forked and returned in the child: the orders there "
                                  "are the parent's");
        code = end_pass(s, until, &more);
    } while (more && (max == 0 || ran < max) && found == LP_CLAIM_NONE);
    pthread_mutex_lock(&s->lock);
    s->inside--;
    lp_tell_settled(s);
    pthread_mutex_unlock(&s->lock);
    if (ran)
        return (int64_t)ran;
    return found == LAPSE_ENOMEM ? found : code;
}

int lp_work(lapse *s, const sigset_t *mask)
{
    for (;;) {
        int found;
        run_due(s, LAPSE_FOREVER, 0, mask, &found);
        if (found == LAPSE_ECLOSED || found == LAPSE_EFORKED)
            return found;
        if (found == LAPSE_ENOMEM)
            lp_wake_pause(LAPSE_MS(10)); /* The order stays due. */
        lapse_wait(s, LAPSE_FOREVER);
    }
}
