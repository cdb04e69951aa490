/* compare.c - what the scheduler shows of itself, beside what the twin knows. */
#include <string.h>

#include "sim/story.h"
#include "sim/twin.h"

static void same(const char *what, uint64_t is, uint64_t expected)
{
    must(is == expected, "%s is %llu, not %llu", what, (unsigned long long)is,
         (unsigned long long)expected);
}

/* -- Counts --------------------------------------------------------------------------- */

/* Count the orders by where they are; `queue` NONE: all. */
static void count_places(int queue, uint64_t count[DEAD + 1], uint64_t *listed, uint64_t dead_by[6])
{
    memset(count, 0, (DEAD + 1) * sizeof *count);
    memset(dead_by, 0, 6 * sizeof *dead_by);
    *listed = 0;
    for (int i = 0; i < tw.order_count; i++) {
        const twin_order *o = &tw.orders[i];
        if (queue != NONE && o->queue != queue)
            continue;
        count[o->place]++;
        *listed += o->listed;
        if (o->place == DEAD)
            dead_by[o->reason]++;
    }
}

static uint64_t count_kept(void)
{
    uint64_t n = 0;
    for (int i = 0; i < tw.order_count; i++)
        n += tw.orders[i].kept && twin_remembered(&tw.orders[i]);
    return n;
}

/* Every order is in exactly one place. */
static void check_places(const lapse_stats *t)
{
    uint64_t count[DEAD + 1], listed, dead_by[6];
    count_places(NONE, count, &listed, dead_by);
    same("pending", t->pending, count[WAITING]);
    same("running", t->running, count[HELD]);
    same("done", t->done, count[DONE]);
    same("cancelled", t->cancelled, count[CANCELLED]);
    same("replaced", t->replaced, count[REPLACED]);
    same("dead_total", t->dead_total, count[DEAD]);
    same("dead", t->dead, listed);
    for (int reason = 0; reason < 6; reason++)
        same("dead_by", t->dead_by[reason], dead_by[reason]);
    must(t->kept >= count_kept(), "%llu are kept, not at least %llu", (unsigned long long)t->kept,
         (unsigned long long)count_kept());
    same("scheduled", t->scheduled,
         t->done + t->cancelled + t->replaced + t->dead_total + t->pending + t->running);
    must(!tw.config.max_pending || t->pending + t->running <= tw.config.max_pending,
         "more than max_pending are pending");
    must(t->dead <= tw.config.max_dead, "more than max_dead are dead");
}

static void check_events(const lapse_stats *t)
{
    same("scheduled", t->scheduled, tw.sum.scheduled);
    same("refused", t->refused, tw.sum.refused);
    same("rescheduled", t->rescheduled, tw.sum.rescheduled);
    same("dead_dropped", t->dead_dropped, tw.sum.dead_dropped);
    same("requeued", t->requeued, tw.sum.requeued);
    same("purged", t->purged, tw.sum.purged);
    same("lost", t->lost, tw.sum.lost);
    same("started", t->started, tw.sum.started);
    same("failed", t->failed, tw.sum.failed);
    same("retried", t->retried, tw.sum.retried);
    same("rejected", t->rejected, tw.sum.rejected);
    same("given_back", t->given_back, tw.sum.given_back);
    same("stale", t->stale, tw.sum.stale);
    same("late_max", (uint64_t)t->late_max, (uint64_t)tw.sum.late_max);
    must(t->late_p50 <= t->late_p99 && t->late_p99 <= t->late_p999 && t->late_p999 <= t->late_max,
         "the quantiles of lateness are out of order");
    same("poll_bound", (uint64_t)t->poll_bound, 0);
}

static void check_oldest_due(lapse_ns oldest)
{
    lapse_ns least = 0, most = 0;
    for (int i = 0; i < tw.order_count; i++) {
        const twin_order *o = &tw.orders[i];
        if (o->place != WAITING)
            continue;
        if (tw.now - twin_up(o->hi) > least)
            least = tw.now - twin_up(o->hi);
        if (tw.now - o->lo > most)
            most = tw.now - o->lo;
    }
    must(oldest >= least && oldest <= most, "oldest_due is %lld, not from %lld to %lld",
         (long long)oldest, (long long)least, (long long)most);
}

/* An `arg` is released as soon as its callback can no longer start and has returned. */
static void check_releases(void)
{
    for (int i = 0; i < tw.token_count; i++) {
        const twin_token *t = &tw.tokens[i];
        const twin_order *o = &tw.orders[t->order];
        must(t->released == (t->expected && twin_is_over(o)), "%s generation %lld was %s",
             twin_name(o), (long long)o->generation,
             t->released ? "released too early" : "not released");
    }
    for (int i = 0; i < tw.handler_count; i++)
        must(tw.handlers[i].released == (tw.handlers[i].refs == 0),
             "a handler of \"%s\" was not released", twin_queues[tw.handlers[i].queue]);
}

static void check_told(void)
{
    for (int i = 0; i < tw.order_count; i++)
        must(tw.orders[i].place != DEAD || tw.orders[i].told, "on_dead was not told of %s",
             twin_name(&tw.orders[i]));
    must(tw.errors_due == 0, "on_error was not told of %u errors", tw.errors_due);
    must(tw.drops_seen == 0, "a dead letter was dropped, though there is room");
}

void twin_check(const lapse_stats *stats)
{
    check_places(stats);
    check_events(stats);
    check_oldest_due(stats->oldest_due);
    check_releases();
    check_told();
}

void twin_check_queue(int queue, int code, const lapse_queue_stats *t)
{
    const twin_queue *q = &tw.queues[queue];
    must(code == (q->known ? LAPSE_OK : LAPSE_EUNKNOWN), "queue statistics of \"%s\" answer %d",
         twin_queues[queue], code);
    if (code < 0)
        return;
    uint64_t count[DEAD + 1], listed, dead_by[6];
    count_places(queue, count, &listed, dead_by);
    must(strcmp(t->queue, twin_queues[queue]) == 0 && t->paused == q->paused &&
             t->handled == (q->handler != NONE),
         "queue \"%s\" is not as it was made", twin_queues[queue]);
    same("pending of a queue", t->pending, count[WAITING]);
    same("running of a queue", t->running, count[HELD]);
    same("dead of a queue", t->dead, listed);
    same("done of a queue", t->done, count[DONE]);
    same("cancelled of a queue", t->cancelled, count[CANCELLED]);
    same("dead_total of a queue", t->dead_total, count[DEAD]);
    for (int reason = 0; reason < 6; reason++)
        same("dead_by of a queue", t->dead_by[reason], dead_by[reason]);
    same("started of a queue", t->started, q->sum.started);
    same("failed of a queue", t->failed, q->sum.failed);
    same("retried of a queue", t->retried, q->sum.retried);
    same("late_max of a queue", (uint64_t)t->late_max, (uint64_t)q->sum.late_max);
}

/* -- Orders --------------------------------------------------------------------------- */

static lapse_state state_of(const twin_order *o)
{
    switch (o->place) {
    case WAITING:
        return LAPSE_STATE_PENDING;
    case HELD:
        return LAPSE_STATE_RUNNING;
    case DEAD:
        return LAPSE_STATE_DEAD;
    default:
        return LAPSE_STATE_DONE;
    }
}

static bool same_text(const char *a, const char *b)
{
    return a && b ? strcmp(a, b) == 0 : a == b;
}

static lapse_ns until(lapse_ns due)
{
    return due > tw.now ? due - tw.now : 0;
}

static void check_info_times(const twin_order *o, const lapse_info *info)
{
    bool ended = info->state == LAPSE_STATE_DONE || info->state == LAPSE_STATE_DEAD;
    must(info->due >= twin_utc(o->first_lo) && info->due <= twin_utc(o->first_hi),
         "%s is shown as due at %lld, not from %lld to %lld", twin_name(o), (long long)info->due,
         (long long)twin_utc(o->first_lo), (long long)twin_utc(o->first_hi));
    must(info->ended == (ended ? twin_utc(o->ended) : 0), "%s ended at %lld, not %lld",
         twin_name(o), (long long)info->ended, (long long)(ended ? twin_utc(o->ended) : 0));
    if (o->place == WAITING)
        must(info->remaining >= until(o->lo) && info->remaining <= until(o->hi),
             "%s has %lld ns left, not from %lld to %lld", twin_name(o), (long long)info->remaining,
             (long long)until(o->lo), (long long)until(o->hi));
    else
        must(info->remaining == 0, "%s has %lld ns left", twin_name(o), (long long)info->remaining);
}

static void check_info_payload(const twin_order *o, const lapse_info *info)
{
    bool has = info->state != LAPSE_STATE_DONE && o->payload_len > 0;
    must(info->payload_len == (has ? o->payload_len : 0) && (info->payload != NULL) == has &&
             (!has || memcmp(info->payload, o->payload, o->payload_len) == 0),
         "the payload of %s is not what was given", twin_name(o));
}

void twin_check_info(const lapse_info *info)
{
    int order = twin_find(info->id, info->generation);
    must(order != NONE, "%s generation %lld is shown, which was never accepted", info->id,
         (long long)info->generation);
    const twin_order *o = &tw.orders[order];
    must(info->state == state_of(o), "%s generation %lld is shown in state %d, not %d",
         twin_name(o), (long long)o->generation, (int)info->state, (int)state_of(o));
    must(info->id_len == strlen(twin_name(o)) && strcmp(info->queue, twin_queues[o->queue]) == 0,
         "%s is shown with a wrong length or queue", twin_name(o));
    must(info->attempt == o->attempt, "%s is shown with %d attempts, not %d", twin_name(o),
         info->attempt, o->attempt);
    must(info->reason == o->reason && same_text(info->error, o->error),
         "%s is shown dead by %d (%s), not %d (%s)", twin_name(o), (int)info->reason,
         info->error ? info->error : "nothing said", (int)o->reason,
         o->error ? o->error : "nothing said");
    check_info_times(o, info);
    check_info_payload(o, info);
}

/* A look may tell more precisely when an order is due. */
static void learn(twin_order *o, const lapse_info *info)
{
    if (o->place == WAITING && info->remaining > 0 && o->first_lo == o->lo && o->first_hi == o->hi)
        o->lo = o->hi = o->first_lo = o->first_hi = tw.now + info->remaining;
}

void twin_check_get(int id, int code, const lapse_info *info)
{
    int newest = tw.newest[id];
    bool visible = newest != NONE && twin_visible(&tw.orders[newest]);
    must(code == (visible ? LAPSE_OK : LAPSE_EUNKNOWN), "get of %s answers %d", twin_ids[id], code);
    if (code < 0)
        return;
    must(info->generation == tw.orders[newest].generation, "get of %s shows generation %lld",
         twin_ids[id], (long long)info->generation);
    twin_check_info(info);
    learn(&tw.orders[newest], info);
}

int64_t twin_shown(unsigned states)
{
    int64_t n = 0;
    for (int i = 0; i < tw.order_count; i++)
        n += twin_visible(&tw.orders[i]) && (state_of(&tw.orders[i]) & states);
    return n;
}

/* -- Time ----------------------------------------------------------------------------- */

static lapse_ns earlier(lapse_ns a, lapse_ns b)
{
    return a < b ? a : b;
}

/* When a start of a queue must be let through at the latest, if one is due now. */
static lapse_ns rate_opens(const twin_order *o)
{
    int handler = tw.queues[o->queue].handler;
    if (o->own || handler == NONE || twin_up(o->hi) > tw.now || !tw.handlers[handler].policy.rate)
        return LAPSE_FOREVER;
    return tw.now + LAPSE_SECONDS(1) / tw.handlers[handler].policy.rate + 2;
}

/* The latest time at which a host must look again. Due orders that wait for a taker are
 * none of its business. */
static lapse_ns latest_look(void)
{
    lapse_ns at = LAPSE_FOREVER;
    if (twin_any((twin_way){.called = true, .until = tw.now}, true))
        return 0;
    for (int i = 0; i < tw.order_count; i++) {
        const twin_order *o = &tw.orders[i];
        if (o->place != WAITING || tw.queues[o->queue].paused)
            continue;
        if (o->lo > tw.now || o->own)
            at = earlier(at, twin_up(o->hi));
        at = earlier(at, rate_opens(o));
    }
    for (int i = 0; i < tw.claim_count; i++)
        if (!tw.claims[i].settled && !tw.claims[i].lost)
            at = earlier(at, tw.claims[i].lease_end);
    return at == LAPSE_FOREVER ? at : until(at);
}

lapse_ns twin_earliest(void)
{
    lapse_ns at = LAPSE_FOREVER;
    for (int i = 0; i < tw.order_count; i++)
        if (tw.orders[i].place == WAITING)
            at = earlier(at, tw.orders[i].lo);
    return at;
}

/* The earliest time at which there can be something to do. */
static lapse_ns earliest_look(void)
{
    lapse_ns at = twin_earliest();
    for (int i = 0; i < tw.claim_count; i++)
        if (!tw.claims[i].settled)
            at = 0; /* It may be looked at, for being stuck. */
    return at == LAPSE_FOREVER ? at : until(at);
}

void twin_check_timeout(lapse_ns timeout)
{
    if (tw.stopped) {
        must(timeout == LAPSE_FOREVER, "a stopped scheduler wants to be called");
        return;
    }
    must(timeout >= earliest_look() && timeout <= latest_look(),
         "the timeout is %lld, not from %lld to %lld", (long long)timeout,
         (long long)earliest_look(), (long long)latest_look());
}

/* -- The end -------------------------------------------------------------------------- */

void twin_close(void)
{
    tw.closing = true;
    for (int q = 0; q < QUEUES; q++)
        if (tw.queues[q].handler != NONE)
            tw.handlers[tw.queues[q].handler].refs--;
}

void twin_check_closed(void)
{
    for (int i = 0; i < tw.token_count; i++)
        must(tw.tokens[i].released == tw.tokens[i].expected, "%s was %s",
             twin_name(&tw.orders[tw.tokens[i].order]),
             tw.tokens[i].released ? "released, though nobody asked" : "never released");
    for (int i = 0; i < tw.handler_count; i++)
        must(tw.handlers[i].released, "a handler of \"%s\" was never released",
             twin_queues[tw.handlers[i].queue]);
    must(tw.errors_due == 0, "on_error was not told of %u errors", tw.errors_due);
}
