/* rabbitmq_turn.c - one turn: what has come, the jobs, the confirms, the claims. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/wake.h"
#include "stores/rabbitmq.h"

static lapse_ns utc_now(const rabbit_store *d, const lp_turn *t)
{
    return d->config.manual ? lp_sum_ns(t->now, d->ahead) : t->wall;
}

lapse_ns lp_rabbit_utc(const rabbit_store *d, const lp_turn *t, lapse_ns at)
{
    return lp_sum_ns(lp_sum_ns(at, -t->now), utc_now(d, t));
}

lapse_ns lp_rabbit_scheduler_time(const rabbit_store *d, const lp_turn *t, lapse_ns utc)
{
    return lp_sum_ns(lp_sum_ns(utc, -utc_now(d, t)), t->now);
}

lapse_ns lp_rabbit_judge(const rabbit_store *d, const lp_turn *t)
{
    lapse_ns steady = lp_sum_ns(t->now, d->ahead), wall = utc_now(d, t);
    return steady > wall ? steady : wall;
}

int64_t lp_rabbit_next_generation(rabbit_store *d)
{
    int64_t now = lp_clock_wall(NULL) / 1000;
    return d->last_generation = now > d->last_generation ? now : d->last_generation + 1;
}

/* -- Jobs -- */

static int needs_ticket(const char *what)
{
    return lp_fail(LAPSE_EUNSUPPORTED,
                   "RabbitMQ by itself cannot %s: look in the callback whether the order is still "
                   "wanted, or give the URL ticket= and another store",
                   what);
}

/* One that was confirmed before its queues had settled: the broker that did so still runs, since
 * the connection is the same and answers. The job keeps in `row` which, in `fence` the answer. */
static int settled(rabbit_store *d, lp_job *j)
{
    uint64_t count;
    char dead[LP_RABBIT_NAME_MAX + 1];
    lp_rabbit_name(dead, d->settings.prefix, "dead");
    if (j->row == d->links_made && d->seen_at != d->turn_at) {
        if (lp_rabbit_count(&d->in, LP_RABBIT_DECLARE, dead, &count) == LAPSE_OK)
            d->seen_at = d->turn_at;
    }
    if (j->row != d->links_made || d->seen_at != d->turn_at)
        return lp_fail(LAPSE_EUNSURE,
                       "whether it was done is not known: the connection to RabbitMQ was lost "
                       "within the URL option new after a queue on its way was made");
    j->answer = j->fence;
    return LAPSE_OK;
}

static int schedule(rabbit_store *d, const lp_turn *t, lp_job *j)
{
    if (j->later_at)
        return settled(d, j);
    if (j->replace)
        return needs_ticket("replace an order");
    const rabbit_order o = {.id = j->id,
                            .id_len = j->id_len,
                            .queue = j->queue,
                            .payload = j->payload,
                            .payload_len = j->payload_len,
                            .due = lp_rabbit_utc(d, t, j->due),
                            .generation = lp_rabbit_next_generation(d)};
    j->answer = o.generation;
    return lp_rabbit_send_order(d, t, &o, (rabbit_sent){.job = j});
}

static int end(rabbit_store *d, rabbit_held *h)
{
    rabbit_message *m = h->message;
    lp_rabbit_drop_held(d, h);
    return lp_rabbit_finish(d, m);
}

static int again(rabbit_store *d, const lp_turn *t, lp_job *j, rabbit_held *h)
{
    rabbit_order o = h->message->order;
    o.due = lp_rabbit_utc(d, t, j->due);
    o.at = j->at > j->due ? lp_rabbit_utc(d, t, j->at) : 0;
    o.attempt = h->attempt - !j->counted;
    o.fence = h->fence;
    if (lp_rabbit_is_too_large(d, o.payload_len))
        return lp_rabbit_settle_large(d, j, h);
    return lp_rabbit_send_order(d, t, &o, (rabbit_sent){.job = j, .held = h});
}

static int die(rabbit_store *d, const lp_turn *t, lp_job *j, rabbit_held *h)
{
    rabbit_order o = h->message->order;
    o.reason = j->reason;
    o.error = j->error;
    o.ended = lp_rabbit_utc(d, t, t->now);
    o.late = o.ended > o.due ? o.ended - o.due : 0;
    o.attempt = h->attempt - !j->counted;
    o.fence = h->fence;
    if (lp_rabbit_is_too_large(d, o.payload_len))
        return lp_rabbit_settle_large(d, j, h);
    return lp_rabbit_send_dead(d, &o, (rabbit_sent){.job = j, .held = h});
}

static int settle(rabbit_store *d, const lp_turn *t, lp_job *j)
{
    rabbit_held *h = lp_rabbit_find_held(d, j->fence);
    if (!h || h->settling || h->waits)
        return LAPSE_ESTALE;
    switch (j->op) {
    case LP_END:
        lp_rabbit_note_pace(h);
        return end(d, h);
    case LP_AGAIN:
        return again(d, t, j, h);
    case LP_DIE:
        return die(d, t, j, h);
    default: /* LP_RENEW */
        h->lease_end = lp_add_ns(t->now, j->lease);
        return LAPSE_OK;
    }
}

/* Whoever looks is told of what was done before. */
static void look(rabbit_store *d, const lp_turn *t, lp_job *j)
{
    lp_rabbit_flush(d);
    switch (j->op) {
    case LP_REQUEUE:
        lp_rabbit_requeue_dead(d, t, j);
        return;
    case LP_PURGE:
        lp_rabbit_purge(d, j);
        return;
    case LP_LIST:
        lp_rabbit_list(d, t, j);
        return;
    default: /* LP_COUNT */
        lp_rabbit_count_all(d, j);
    }
}

static void list_queues(const rabbit_store *d, lp_job *j)
{
    int n = 0;
    for (; n < j->max && *j->cursor < d->queue_count; n++, ++*j->cursor) {
        j->infos[n].queue = strdup(d->queues[*j->cursor]->name);
        if (!j->infos[n].queue)
            break;
    }
    j->answer = n;
    if (*j->cursor >= d->queue_count || n < j->max)
        *j->cursor = UINT64_MAX;
}

static int holds(rabbit_store *d, const lp_turn *t, const lp_job *j)
{
    const rabbit_held *h = lp_rabbit_find_held(d, j->fence);
    return h && !h->waits && h->lease_end > t->now;
}

static void answer(rabbit_store *d, const lp_turn *t, lp_job *j)
{
    int code = LAPSE_OK;
    switch (j->op) {
    case LP_SCHEDULE:
        code = schedule(d, t, j);
        break;
    case LP_CANCEL:
        code = needs_ticket("cancel");
        break;
    case LP_RESCHEDULE:
        code = needs_ticket("reschedule");
        break;
    case LP_GET:
        code = needs_ticket("look up an order");
        break;
    case LP_END:
    case LP_AGAIN:
    case LP_DIE:
    case LP_RENEW:
        code = settle(d, t, j);
        break;
    case LP_HOLDS:
        j->answer = holds(d, t, j);
        return;
    case LP_QUEUES:
        list_queues(d, j);
        return;
    default:
        look(d, t, j);
        return;
    }
    if (code < 0)
        lp_job_fail(j, code);
}

/* -- The turn -- */

/* A consumer, or a lease, or a heartbeat may need a turn before anything is asked for. What this
 * turn could not do, as a broker that takes nothing in lets nobody, is tried again a moment later. */
static void arm(rabbit_store *d)
{
    lapse_ns now = lp_clock_now(NULL);
    lapse_ns at = lp_add_ns(now, d->settings.heartbeat / 2);
    if (!d->config.manual) {
        lapse_ns soon = lp_add_ns(now, LAPSE_MS(255));
        lapse_ns lease = lp_rabbit_next_lease(d);
        lapse_ns hold = lp_rabbit_has_surplus(d) ? soon : LAPSE_FOREVER;
        lease = lease > now ? lease : soon;
        at = lease < at ? lease : at;
        at = hold < at ? hold : at;
        lapse_ns replaced = lp_rabbit_next_replaced(d) - lp_clock_monotonic();
        at = d->replaced && lp_add_ns(now, replaced) < at ? lp_add_ns(now, replaced) : at;
    }
    lp_wake_at(d->timer, at);
}

static bool any_died(const lp_turn *t)
{
    for (size_t i = 0; i < t->job_count; i++)
        if (t->jobs[i]->op == LP_DIE && t->jobs[i]->answer >= 0)
            return true;
    return false;
}

static int read_both(rabbit_store *d)
{
    int code = lp_rabbit_drain(&d->in);
    if (code >= 0)
        code = lp_rabbit_drain(&d->out);
    lp_rabbit_note_losses(d);
    return code < 0 ? code : LAPSE_OK;
}

/* A link that was lost is made anew in the same turn: what was held is lost all the same. */
static int get_links(rabbit_store *d, const lp_turn *t)
{
    if (d->in.connection && d->out.connection)
        (void)read_both(d);
    if (!d->in.connection && !d->config.manual)
        d->ahead = lp_sum_ns(t->wall, -t->now);
    return lp_rabbit_open_links(d);
}

static void answer_all(rabbit_store *d, lp_turn *t)
{
    for (size_t i = 0; i < t->job_count; i++) {
        answer(d, t, t->jobs[i]);
        lp_rabbit_breathe(d);
        lp_rabbit_note_losses(d);
    }
    lp_rabbit_flush(d);
    if (any_died(t))
        (void)lp_rabbit_trim(d);
}

/* What fails here fails for nobody: the next turn does it. */
static void tidy(rabbit_store *d, const lp_turn *t)
{
    if (d->walk && lp_clock_monotonic() > d->walk_until)
        (void)lp_rabbit_end_walk(d);
    (void)lp_rabbit_finish_replaced(d);
    (void)lp_rabbit_sweep_leases(d, t);
    (void)lp_rabbit_sweep_ready(d, t);
    (void)lp_rabbit_bring_back(d, t);
    lp_rabbit_flush(d);
}

int lp_rabbit_turn(rabbit_store *d, lp_turn *t)
{
    lp_turn_begin(t);
    d->turn_at = d->breathed_at = lp_clock_monotonic();
    int code = get_links(d, t);
    if (code < 0)
        return code;
    answer_all(d, t);
    if (d->in.connection)
        tidy(d, t);
    for (size_t i = 0; i < t->want_count; i++)
        t->wants[i].next = lp_add_ns(t->now, d->settings.poll);
    if (d->in.connection && t->want_count)
        (void)lp_rabbit_claim(d, t);
    else if (d->in.connection && !d->config.manual)
        (void)lp_rabbit_ask_for_less(d);
    lp_rabbit_note_losses(d);
    arm(d);
    return LAPSE_OK;
}
