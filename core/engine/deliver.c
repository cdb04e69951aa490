/* deliver.c - claim, call back, settle.
 *
 * A claim is held from lp_begin to lp_settle, in a table by its fence, which is the
 * token that settles it: a second settlement finds nothing and changes nothing. Taking
 * the next order and ending the one before it share one hold of the lock. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/wake.h"
#include "engine/engine.h"

/* Orders without a callback of their own: deliveries before they are dead letters, and
 * the delays between them. */
enum { ATTEMPTS = 5 };
#define BACKOFF_FIRST LAPSE_SECONDS(1)
#define BACKOFF_LAST LAPSE_HOURS(1)

/* -- Held claims -- */

static lp_claim **bucket_of(lapse *s, int64_t fence)
{
    return &s->held[(uint64_t)fence % LP_HELD_BUCKETS];
}

static lp_claim *find_held(lapse *s, int64_t fence)
{
    lp_claim *c = *bucket_of(s, fence);
    while (c && c->order.fence != fence)
        c = c->next;
    return c;
}

static lp_claim *take_claim(lapse *s)
{
    lp_claim *c = s->free_claims;
    if (c)
        s->free_claims = c->next;
    else
        c = malloc(sizeof *c);
    return c;
}

static void free_claim(lapse *s, lp_claim *c)
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
}

static void let_go(lapse *s, lp_claim *c)
{
    if (c->prev)
        c->prev->next = c->next;
    else
        *bucket_of(s, c->order.fence) = c->next;
    if (c->next)
        c->next->prev = c->prev;
    free_claim(s, c);
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

bool lp_in_callback(const lapse *s)
{
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

static void show(lapse *s, lp_claim *c, lp_side side, lapse_ns now)
{
    c->order.due = c->due + lp_engine_wall_offset(s, now);
    c->order.late = now > c->due ? now - c->due : 0;
    c->thread = (unsigned long)pthread_self();
    c->runs_callback = side == LP_PUSH;
    c->in_callback = false;
    c->no_more = false;
    c->retry_delay = -1;
    c->has_error = false;
    s->callbacks += c->runs_callback;
    s->totals.started++;
    lp_histogram_add(&s->lateness, c->order.late);
}

int lp_begin(lapse *s, lp_side side, const char *queue, lapse_ns until, lp_claim **out)
{
    *out = NULL;
    if (s->stopped)
        return lp_fail(LAPSE_ECLOSED, "the scheduler was stopped: open another");
    lp_claim *c = take_claim(s);
    if (!c)
        return lp_fail_memory();
    lapse_ns now = lp_engine_now(s);
    int found = s->store->ops->claim(s->store, side, queue, until < now ? until : now, now, c);
    if (found != LP_CLAIM_ONE) {
        free_claim(s, c);
        return found;
    }
    show(s, c, side, now);
    hold(s, c);
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

/* Exponential, within a fifth of its value. */
static lapse_ns backoff(lapse *s, int attempt)
{
    lapse_ns delay = BACKOFF_FIRST;
    for (int i = 1; i < attempt && delay < BACKOFF_LAST; i++)
        delay *= 2;
    if (delay > BACKOFF_LAST)
        delay = BACKOFF_LAST;
    return (lapse_ns)((double)delay * (0.8 + 0.4 * spread(s)));
}

static lapse_ns retry_delay(lapse *s, const lp_claim *c, lapse_ns delay)
{
    if (delay < 0)
        return backoff(s, c->order.attempt);
    return delay > LAPSE_DELAY_MAX ? LAPSE_DELAY_MAX : delay;
}

static void end(lapse *s, lp_request *r, bool cancelled)
{
    r->op = LP_END;
    r->cancelled = cancelled;
    if (cancelled)
        s->totals.cancelled++;
    else
        s->totals.done++;
}

static void again(lapse *s, lp_request *r, lapse_ns due)
{
    r->op = LP_AGAIN;
    r->due = due;
    r->counted = true;
    s->totals.retried++;
}

static void die(lapse *s, lp_request *r, lapse_reason reason, const char *error)
{
    r->op = LP_DIE;
    r->reason = reason;
    r->error = error;
    s->totals.dead++;
}

/* What a failed attempt leads to. */
static void fail(lapse *s, lp_claim *c, lapse_ns now, const char *error, lp_request *r)
{
    s->totals.failed++;
    if (c->fn)
        end(s, r, false); /* A callback of its own has one attempt. */
    else if (c->order.attempt >= ATTEMPTS)
        die(s, r, LAPSE_REASON_FAILED, error);
    else
        again(s, r, lp_add_ns(now, backoff(s, c->order.attempt)));
}

static void decide(lapse *s, lp_claim *c, lapse_verdict verdict, lapse_ns delay, const char *error,
                   lapse_ns now, lp_request *r)
{
    switch (verdict) {
    case LAPSE_DONE:
        end(s, r, false);
        return;
    case LAPSE_RETRY:
        again(s, r, lp_add_ns(now, retry_delay(s, c, delay)));
        return;
    case LAPSE_REJECT:
        s->totals.rejected++;
        die(s, r, LAPSE_REASON_REJECTED, error);
        return;
    case LAPSE_GIVE_BACK:
        s->totals.given_back++;
        r->op = LP_AGAIN;
        r->due = c->due;
        return;
    case LAPSE_FAIL:
        fail(s, c, now, error, r);
        return;
    }
}

void lp_settle(lapse *s, lp_claim *c, lapse_verdict verdict, lapse_ns delay, const char *error,
               lp_request *r)
{
    lapse_ns now = lp_engine_now(s);
    *r = (lp_request){.claim = c};
    decide(s, c, verdict, delay, error, now, r);
    /* Cancelled or scheduled anew while it ran: what it asks for does not happen. */
    if (r->op != LP_END && (c->superseded || c->no_more)) {
        s->totals.retried -= r->op == LP_AGAIN && verdict != LAPSE_GIVE_BACK;
        s->totals.dead -= r->op == LP_DIE;
        end(s, r, c->no_more);
    }
    s->totals.stale += c->superseded;
    lp_ask(s, r, now);
    s->callbacks -= c->runs_callback;
    if (r->op == LP_AGAIN)
        lp_arm_for(s, r->due);
    let_go(s, c);
    lp_tell_settled(s);
}

static bool is_verdict(lapse_verdict verdict)
{
    return (unsigned)verdict <= LAPSE_GIVE_BACK;
}

static void report(lapse *s, const lp_claim *c, const char *error)
{
    if (s->options.on_error)
        s->options.on_error(s->options.hook_arg, &c->order, error);
}

int lapse_settle(lapse *s, int64_t fence, lapse_verdict verdict, lapse_ns delay, const char *error)
{
    char text[LP_TEXT_MAX + 1];
    if (!is_verdict(verdict))
        return lp_fail(LAPSE_EINVAL, "%d is no verdict: use LAPSE_DONE, LAPSE_RETRY, LAPSE_REJECT, "
                                     "LAPSE_FAIL or LAPSE_GIVE_BACK",
                       (int)verdict);
    if (error) {
        lp_text_clip(text, error);
        error = text;
    }
    int code = lp_enter(s);
    if (code < 0)
        return code;
    lp_claim *c = find_held(s, fence);
    if (!c || c->in_callback) {
        s->totals.stale++;
        lp_leave(s);
        return lp_fail(LAPSE_ESTALE, "no claim with the fence %lld is held: it was settled before",
                       (long long)fence);
    }
    if (verdict == LAPSE_FAIL && s->options.on_error) {
        /* The claim stays held meanwhile, but nobody else may settle it. */
        c->in_callback = true;
        lp_leave(s);
        report(s, c, error ? error : "the consumer failed");
        pthread_mutex_lock(&s->lock);
    }
    bool superseded = c->superseded;
    lp_request r;
    lp_settle(s, c, verdict, delay, error, &r);
    lp_leave(s);
    lp_finish(&r);
    if (superseded)
        return lp_fail(LAPSE_ESTALE, "the order was scheduled anew while it ran: this settlement "
                                     "changes nothing of the new one");
    return LAPSE_OK;
}

int lapse_begin(lapse *s, lapse_ns until, const lapse_order **order, lapse_callback *fn, void **arg)
{
    if (!order || !fn || !arg)
        return lp_fail(LAPSE_EINVAL, "lapse_begin: `order`, `fn` or `arg` is NULL");
    *order = NULL;
    int found;
    do {
        lp_claim *c;
        found = lp_enter(s);
        if (found < 0)
            return found;
        found = lp_begin(s, LP_PUSH, NULL, until, &c);
        if (found == LP_CLAIM_ONE) {
            *order = &c->order;
            *fn = c->fn;
            *arg = c->arg;
        } else if (found == LP_CLAIM_NONE) {
            lp_announce(s, lp_engine_now(s));
            lp_arm_all(s);
        }
        lp_leave(s);
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
    sigset_t blocked;
    if (mask)
        pthread_sigmask(SIG_SETMASK, mask, &blocked);
    lapse_verdict verdict = c->fn(&c->order, c->arg);
    if (!is_verdict(verdict))
        verdict = lapse_fail(&c->order, "the callback returned no verdict");
    if (verdict == LAPSE_FAIL)
        report(s, c, c->has_error ? c->error : "the callback failed");
    if (mask)
        pthread_sigmask(SIG_SETMASK, &blocked, NULL);
    return verdict;
}

/* Settle `*c`, if there is one, and begin the next, in one hold of the lock. */
static int settle_and_begin(lapse *s, lp_claim **c, lapse_verdict verdict, lapse_ns until)
{
    lp_request r = {.remains_count = 0};
    pthread_mutex_lock(&s->lock);
    if (*c)
        lp_settle(s, *c, verdict, (*c)->retry_delay, (*c)->has_error ? (*c)->error : NULL, &r);
    int found = lp_begin(s, LP_PUSH, NULL, until, c);
    if (found == LP_CLAIM_ONE)
        (*c)->in_callback = true;
    pthread_mutex_unlock(&s->lock);
    lp_finish(&r);
    return found;
}

/* Run callbacks that are due by `until` while `max` allows; how many ran. Sets *found
 * to what the last look answered. */
static size_t run_due(lapse *s, lapse_ns until, size_t max, const sigset_t *mask, int *found)
{
    lp_claim *c = NULL;
    lapse_verdict verdict = LAPSE_DONE;
    size_t ran = 0;
    for (;;) {
        *found = settle_and_begin(s, &c, verdict, until);
        if (*found == LP_CLAIM_MORE)
            continue;
        if (*found != LP_CLAIM_ONE)
            return ran;
        verdict = call(s, c, mask);
        if (++ran == max)
            break;
    }
    lp_request r;
    pthread_mutex_lock(&s->lock);
    lp_settle(s, c, verdict, c->retry_delay, c->has_error ? c->error : NULL, &r);
    pthread_mutex_unlock(&s->lock);
    lp_finish(&r);
    return ran;
}

/* Leave the descriptor of a host's loop as it should be after a pass. */
static int end_pass(lapse *s)
{
    pthread_mutex_lock(&s->lock);
    bool stopped = s->stopped;
    if (stopped) {
        lp_wake_at(s->host.fd, LAPSE_FOREVER); /* It has told the host. */
    } else {
        lp_announce(s, lp_engine_now(s));
        lp_arm_all(s);
    }
    pthread_mutex_unlock(&s->lock);
    return stopped ? lp_fail(LAPSE_ECLOSED, "the scheduler was stopped: open another") : 0;
}

int64_t lapse_process(lapse *s, size_t max)
{
    int code = lp_enter(s);
    if (code < 0)
        return code;
    s->inside++;
    lp_leave(s);
    int found;
    size_t ran = run_due(s, lp_engine_now(s), max, NULL, &found);
    code = end_pass(s);
    pthread_mutex_lock(&s->lock);
    s->inside--;
    lp_tell_settled(s);
    pthread_mutex_unlock(&s->lock);
    if (ran)
        return (int64_t)ran;
    return found == LAPSE_ENOMEM ? found : code;
}

void lp_work(lapse *s, const sigset_t *mask)
{
    for (;;) {
        int found;
        run_due(s, LAPSE_FOREVER, 0, mask, &found);
        if (found == LAPSE_ECLOSED)
            return;
        if (found == LAPSE_ENOMEM)
            lp_wake_pause(LAPSE_MS(10)); /* The order stays due. */
        lapse_wait(s, LAPSE_FOREVER);
    }
}
