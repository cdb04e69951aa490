/* look.c - looking at orders and at the scheduler: get, each, statistics.
 *
 * Shows copies; a visitor runs without the lock. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/fork.h"
#include "engine/driver.h"

enum { CHUNK = 16 }; /* orders copied in one hold of the lock */

static const unsigned ALL_STATES =
    LAPSE_STATE_PENDING | LAPSE_STATE_RUNNING | LAPSE_STATE_DONE | LAPSE_STATE_DEAD;

void lapse_info_free(lapse_info *info)
{
    if (!info)
        return;
    free(info->id);
    free(info->queue);
    free(info->payload);
    free(info->error);
    *info = (lapse_info){.id = NULL};
}

static void to_utc(lapse_info *info, lapse_ns offset)
{
    info->due = lp_sum_ns(info->due, offset);
    if (info->state == LAPSE_STATE_DONE || info->state == LAPSE_STATE_DEAD)
        info->ended = info->ended == LP_UNKNOWN_TIME ? 0 : lp_sum_ns(info->ended, offset);
}

void lp_info_to_utc(lapse *s, lapse_info *info)
{
    to_utc(info, lp_clock_wall(s->options.clock) - lp_engine_now(s));
}

int lapse_get(lapse *s, const char *id, lapse_info *out)
{
    if (!id || !out)
        return lp_fail(LAPSE_EINVAL, "lapse_get: `id` or `out` is NULL");
    *out = (lapse_info){.id = NULL};
    size_t len = strnlen(id, LAPSE_ID_MAX + 1);
    int code = lapse_check_id(id, len);
    if (code < 0)
        return lp_fail(LAPSE_EUNKNOWN, "no order can have this id");
    code = lp_enter(s);
    if (code < 0)
        return code;
    lapse_ns now = lp_engine_now(s);
    lp_task t;
    lp_request_init(&t.r, LP_GET);
    t.r.id = id;
    t.r.id_len = len;
    t.r.info = out;
    lp_ask(s, &t, now);
    if (t.r.answer == LAPSE_OK)
        to_utc(out, lp_engine_wall_offset(s, now));
    lp_leave(s);
    return (int)t.r.answer;
}

/* Copy the next orders of a walk. */
static int copy_chunk(lapse *s, uint64_t *cursor, unsigned states, lapse_info *chunk)
{
    int n = lp_enter(s);
    if (n < 0)
        return n;
    lapse_ns now = lp_engine_now(s);
    n = s->store->ops->list(s->store, cursor, states, chunk, CHUNK, now);
    for (int i = 0; i < n; i++)
        to_utc(&chunk[i], lp_engine_wall_offset(s, now));
    lp_leave(s);
    return n;
}

int64_t lapse_each(lapse *s, unsigned states, lapse_visitor visitor, void *arg)
{
    if (!visitor)
        return lp_fail(LAPSE_EINVAL, "lapse_each: `visitor` is NULL");
    if (states & ~ALL_STATES)
        return lp_fail(LAPSE_EINVAL, "unknown states %#x: use lapse_state bits, or 0 for all",
                       states);
    lapse_info chunk[CHUNK];
    uint64_t cursor = 0;
    int64_t shown = 0;
    lp_frame frame;
    bool go_on = true;
    while (go_on && cursor != UINT64_MAX) {
        int n = copy_chunk(s, &cursor, states ? states : ALL_STATES, chunk);
        if (n < 0)
            return n;
        for (int i = 0; i < n; i++) {
            if (go_on) {
                lp_call_out(s, &frame);
                go_on = visitor(&chunk[i], arg);
                lp_call_back(&frame);
                shown++;
            }
            lapse_info_free(&chunk[i]);
        }
    }
    return shown;
}

/* How late orders of all queues started. Under the lock. */
static void merge_lateness(lapse *s, lp_histogram *all)
{
    *all = s->lateness;
    const lp_queue *q;
    for (size_t n = 0; (q = s->store->ops->queue_at(s->store, n)); n++)
        if (q->lateness)
            lp_histogram_merge(all, q->lateness);
}

int lapse_statistics(lapse *s, lapse_stats *out)
{
    if (!out)
        return lp_fail(LAPSE_EINVAL, "lapse_statistics: `out` is NULL");
    int code = lp_enter(s);
    if (code < 0)
        return code;
    lp_counts now_in;
    code = s->store->ops->count(s->store, &now_in);
    lapse_ns now = lp_engine_now(s);
    const lp_totals *t = &s->totals;
    lp_histogram lateness;
    merge_lateness(s, &lateness);
    *out = (lapse_stats){
        .pending = now_in.pending,
        .running = now_in.running,
        .kept = now_in.kept,
        .dead = now_in.dead,
        .scheduled = t->scheduled,
        .refused = t->refused,
        .replaced = t->replaced,
        .rescheduled = t->rescheduled,
        .cancelled = t->cancelled,
        .done = t->done,
        .dead_total = t->dead,
        .dead_dropped = now_in.dead_dropped,
        .requeued = t->requeued,
        .purged = t->purged,
        .lost = t->lost,
        .started = t->started,
        .failed = t->failed,
        .retried = t->retried,
        .rejected = t->rejected,
        .given_back = t->given_back,
        .stale = t->stale,
        .late_p50 = lp_histogram_at(&lateness, 0.5),
        .late_p99 = lp_histogram_at(&lateness, 0.99),
        .late_p999 = lp_histogram_at(&lateness, 0.999),
        .late_max = lateness.max,
        .oldest_due = now_in.oldest_due < now ? now - now_in.oldest_due : 0,
        .bytes = now_in.bytes,
        .longest_move = now_in.moved,
    };
    memcpy(out->dead_by, t->dead_by, sizeof out->dead_by);
    if (s->driver) {
        out->poll_bound = s->driver->ops->poll(s->driver->store);
        if (s->driver->offline_since != LAPSE_FOREVER)
            out->offline = now - s->driver->offline_since + 1;
    }
    lp_leave(s);
    return code;
}

lapse_ns lapse_now(const lapse *s)
{
    return s ? lp_engine_now(s) : 0;
}

unsigned lapse_abilities(const lapse *s)
{
    if (!s || s->epoch != lp_fork_epoch())
        return 0;
    return s->driver ? s->driver->ops->abilities : s->store->ops->abilities;
}
