/* deliver.c - call back: the public functions that start orders and settle them.
 *
 * Taking the next order and ending the one before it share one hold of the lock; the callback
 * runs between two of them. */
#include "base/error.h"
#include "base/fork.h"
#include "base/wake.h"
#include "engine/driver.h"

/* -- User code -- */

static _Thread_local const lp_frame *frames;

void lp_call_out(const lapse *s, lp_frame *frame)
{
    *frame = (lp_frame){s, frames, &frames};
    frames = frame;
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

void lp_report(lapse *s, const lapse_order *order, const char *error)
{
    if (!s->options.on_error)
        return;
    lp_frame frame;
    lp_call_out(s, &frame);
    s->options.on_error(s->options.hook_arg, order, error);
    lp_call_back(&frame);
}

/* -- For hosts that call back themselves -- */

/* Whether a claim's lease has ended, but nobody has seen to it yet. */
static bool is_overdue(const lp_claim *c, lapse_ns now)
{
    return !c->lost && c->lease_end <= now;
}

static bool is_verdict(lapse_verdict verdict)
{
    return (unsigned)verdict <= LAPSE_GIVE_BACK;
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
        c = lp_find_fence(s, fence);
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

/* After a look for callbacks due by `until` that found none: LP_CLAIM_NONE; or LP_CLAIM_MORE:
 * the driver has found some since. Under the lock, which it may drop meanwhile. */
static int end_look(lapse *s, lapse_ns until, bool in_pass)
{
    if (look_again(s, until, in_pass))
        return LP_CLAIM_MORE;
    lp_announce(s, lp_engine_now(s));
    lp_host_looked(s);
    lp_arm_all(s);
    return LP_CLAIM_NONE;
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
            found = end_look(s, until, false);
        bool watch = lp_must_watch(s, now);
        lp_leave(s);
        lp_finish(s, &t);
        if (watch)
            lp_watch(s);
    } while (found == LP_CLAIM_MORE);
    return found;
}

/* -- What a callback says -- */

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

/* -- Running callbacks -- */

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

/* Leave the descriptor of a host's loop as it should be after a pass; whether it turned
 * out that there is more. */
static int end_pass(lapse *s, lapse_ns until, bool *more)
{
    pthread_mutex_lock(&s->lock);
    *more = !s->stopped && end_look(s, until, true) == LP_CLAIM_MORE;
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
