/* handle.c - who handles a queue and how; pausing it; its statistics. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "engine/driver.h"

/* -- Policies -- */

static int range(const char *what, long long value, const char *wanted)
{
    return lp_fail(LAPSE_ERANGE, "the policy's %s is %lld: use %s", what, value, wanted);
}

static bool is_duration(lapse_ns t)
{
    return t >= 0 && t <= LAPSE_DELAY_MAX;
}

/* Fill in the defaults of *p, or say what is wrong with it. */
static int complete(lapse_policy *p, const lapse *s)
{
    const struct {
        const char *name;
        lapse_ns value;
    } durations[] = {{"backoff", p->backoff},
                     {"backoff_max", p->backoff_max},
                     {"run_limit", p->run_limit},
                     {"expires", p->expires},
                     {"stuck_after", p->stuck_after}};
    for (size_t i = 0; i < sizeof durations / sizeof *durations; i++)
        if (!is_duration(durations[i].value))
            return range(durations[i].name, durations[i].value, "0 ns to 100 years");
    if (p->attempts < 0 || p->attempts > 4000)
        return range("attempts", p->attempts, "0 (the default) to 4000");
    if (p->backoff_percent < 0 || (p->backoff_percent && p->backoff_percent < 100) ||
        p->backoff_percent > 100000)
        return range("backoff_percent", p->backoff_percent, "0 (the default), or 100 to 100000");
    if (p->jitter_percent > 100)
        return range("jitter_percent", p->jitter_percent, "100 at most");
    p->attempts = p->attempts ? p->attempts : 5;
    p->backoff = p->backoff ? p->backoff : LAPSE_SECONDS(1);
    p->backoff_max = p->backoff_max ? p->backoff_max : LAPSE_HOURS(1);
    p->backoff_percent = p->backoff_percent ? p->backoff_percent : 200;
    p->jitter_percent = p->jitter_percent < 0 ? 0 : p->jitter_percent ? p->jitter_percent : 20;
    p->run_limit = p->run_limit ? p->run_limit : LAPSE_HOURS(1);
    p->stuck_after = p->stuck_after ? p->stuck_after : s->options.stuck_after;
    return LAPSE_OK;
}

/* -- Handlers -- */

static lp_handler *make_handler(lapse_callback fn, void *arg, lapse_release release,
                                const lapse_policy *policy)
{
    lp_handler *h = malloc(sizeof *h);
    if (h)
        *h = (lp_handler){.fn = fn, .arg = arg, .release = release, .policy = *policy, .refs = 1};
    return h;
}

void lp_drop_handler(lp_handler *h, lp_request *r)
{
    if (--h->refs == 0)
        r->remains[r->remains_count++] = (lp_remains){h->release, h->arg, h};
}

/* The queue of a name, ready to be handled or paused. Under the lock. */
static int ready_queue(lapse *s, const char *name, lp_queue **q)
{
    const lp_store_ops *ops = s->store->ops;
    int code = ops->make_queue(s->store, name, q);
    if (code == LAPSE_OK) {
        code = ops->prepare_queue(s->store, *q);
        if (code < 0)
            ops->forget_queue(s->store, *q);
    }
    return code;
}

/* Let `h` (NULL: nobody) handle the queue. Under the lock. */
static int set_handler(lapse *s, const char *name, lp_handler *h, lp_request *r)
{
    if (s->stopped)
        return lp_fail(LAPSE_ECLOSED, "the scheduler was stopped: open another");
    lp_queue *q;
    int code = ready_queue(s, name, &q);
    if (code < 0)
        return code;
    if (h && q->taken)
        return lp_fail(LAPSE_EMIXED, "queue %s is taken from: handle another",
                       lp_text_quote(q->name, strlen(q->name)));
    s->handled += h != NULL;
    s->handled -= q->handler != NULL;
    if (q->handler) {
        lp_drop_handler(q->handler, r);
    } else {
        q->tokens = 1;
        q->refilled = lp_engine_now(s);
    }
    q->handler = h;
    lp_queue_rerate(q);
    if (s->driver)
        lp_driver_poke(s->driver);
    lp_arm_all(s);
    lp_wake_takers(s);
    return LAPSE_OK;
}

int lp_check_queue(const char *queue)
{
    if (queue && strnlen(queue, LAPSE_ID_MAX + 1) > LAPSE_ID_MAX)
        return lp_fail(LAPSE_EINVAL, "the queue name %s... is longer than %d bytes",
                       lp_text_quote(queue, 32), LAPSE_ID_MAX);
    return LAPSE_OK;
}

int lapse_handle(lapse *s, const char *queue, lapse_callback fn, void *arg, lapse_release release,
                 const lapse_policy *policy)
{
    if (!s)
        return lp_fail(LAPSE_EINVAL, "the scheduler is NULL");
    lapse_policy p = policy ? *policy : (lapse_policy){.attempts = 0};
    int code = complete(&p, s);
    if (code == LAPSE_OK)
        code = lp_check_queue(queue);
    if (code < 0)
        return code;
    lp_handler *h = fn ? make_handler(fn, arg, release, &p) : NULL;
    if (fn && !h)
        return lp_fail_memory();
    lp_task t = {.r = {.remains_count = 0}};
    code = lp_enter(s);
    if (code == LAPSE_OK) {
        code = set_handler(s, queue, h, &t.r);
        lp_leave(s);
    }
    if (code < 0)
        free(h);
    lp_finish(s, &t);
    return code;
}

/* -- Pausing -- */

/* No starts are saved up while it is paused. */
static void change_paused(lp_queue *q, bool paused, lapse_ns now)
{
    if (q->paused == paused)
        return;
    (void)lp_queue_open(q, now); /* Those of the time before it count. */
    q->paused = paused;
    q->refilled = now;
}

static int set_paused(lapse *s, const char *queue, bool paused)
{
    int code = lp_check_queue(queue);
    if (code == LAPSE_OK)
        code = lp_enter(s);
    if (code < 0)
        return code;
    lp_queue *q;
    code = ready_queue(s, queue, &q);
    if (code == LAPSE_OK) {
        change_paused(q, paused, lp_engine_now(s));
        if (s->driver)
            lp_driver_poke(s->driver);
        lp_arm_all(s);
        lp_wake_takers(s);
    }
    lp_leave(s);
    return code;
}

int lapse_pause(lapse *s, const char *queue)
{
    return set_paused(s, queue, true);
}

int lapse_resume(lapse *s, const char *queue)
{
    return set_paused(s, queue, false);
}

/* -- Statistics -- */

static lapse_ns late_by(const lapse *s, lapse_ns due)
{
    lapse_ns now = lp_engine_now(s);
    return due < now ? now - due : 0;
}

static void fill_figures(const lapse *s, const lp_queue *q, const lp_counts *now_in,
                         lapse_queue_stats *out)
{
    static const lp_histogram none;
    const lp_histogram *h = q->lateness ? q->lateness : &none;
    *out = (lapse_queue_stats){
        .queue = q->name,
        .handled = q->handler != NULL,
        .paused = q->paused,
        .pending = now_in->pending,
        .running = now_in->running,
        .dead = now_in->dead,
        .started = q->started,
        .done = q->done,
        .failed = q->failed,
        .retried = q->retried,
        .cancelled = q->cancelled,
        .dead_total = q->dead_total,
        .oldest_due = late_by(s, now_in->oldest_due),
        .late_p50 = lp_histogram_at(h, 0.5),
        .late_p99 = lp_histogram_at(h, 0.99),
        .late_max = h->max,
    };
    memcpy(out->dead_by, q->dead_by, sizeof out->dead_by);
}

int lp_queue_figures(lapse *s, const char *queue, lapse_queue_stats *out, bool ask)
{
    int code = lp_enter(s);
    if (code < 0)
        return code;
    lp_queue *q = s->store->ops->queue(s->store, queue);
    if (!q && s->driver && ask) {
        lp_driver_learn_queues(s);
        q = s->store->ops->queue(s->store, queue);
    }
    if (!q) {
        lp_leave(s);
        return lp_fail(LAPSE_EUNKNOWN, "no queue %s is known",
                       lp_text_quote(queue, strnlen(queue, LAPSE_ID_MAX)));
    }
    lp_counts now_in = {.oldest_due = LAPSE_FOREVER};
    if (ask)
        code = s->store->ops->count_queue(s->store, q, &now_in);
    fill_figures(s, q, &now_in, out);
    lp_leave(s);
    return code;
}

static bool count_letter(const lapse_info *info, void *arg)
{
    lapse_queue_stats *out = arg;
    out->dead += strcmp(info->queue, out->queue) == 0;
    return true;
}

/* Of a store that does not keep them by queue. */
static int count_letters(lapse *s, lapse_queue_stats *out)
{
    out->dead = 0;
    int64_t shown = lapse_each(s, LAPSE_STATE_DEAD, count_letter, out);
    if (shown >= 0)
        return LAPSE_OK;
    out->pending = out->running = out->dead = 0;
    out->oldest_due = 0;
    return (int)shown;
}

int lapse_queue_statistics(lapse *s, const char *queue, lapse_queue_stats *out)
{
    if (!out)
        return lp_fail(LAPSE_EINVAL, "lapse_queue_statistics: `out` is NULL");
    int code = lp_check_queue(queue);
    if (code == LAPSE_OK)
        code = lp_queue_figures(s, queue, out, true);
    return code == LAPSE_OK && out->dead == LP_UNCOUNTED ? count_letters(s, out) : code;
}

const char *lapse_queue_name(lapse *s, size_t n)
{
    if (lp_enter(s) < 0)
        return NULL;
    if (n == 0 && s->driver)
        lp_driver_learn_queues(s);
    const lp_queue *q = s->store->ops->queue_at(s->store, n);
    lp_leave(s);
    return q ? q->name : NULL;
}
