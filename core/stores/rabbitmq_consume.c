/* rabbitmq_consume.c - what is delivered here, and who holds it.
 *
 * How many come is asked for in rabbitmq_ask.c. What nobody could start after all goes back after
 * LP_RABBIT_HOLD, published anew, so that the delivery is not counted as an attempt.
 *
 * Under a manual clock there are no consumers: a turn gets all, claims what is due, and gives the
 * rest back. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "stores/rabbitmq.h"

/* A worker has died, or its connection: until it is known with which order, none that nobody has
 * started is to be lost with it. */
static const lapse_ns CAREFUL = LAPSE_SECONDS(1);

/* -- Messages of a queue -- */

static lapse_ns start_of(const rabbit_message *m)
{
    return m->order.at > m->order.due ? m->order.at : m->order.due;
}

static bool is_before(const rabbit_message *a, const rabbit_message *b)
{
    if (start_of(a) != start_of(b))
        return start_of(a) < start_of(b);
    return a->order.generation < b->order.generation;
}

static void put_ready(rabbit_queue *q, rabbit_message *m)
{
    rabbit_message **at = &q->ready;
    while (*at && !is_before(m, *at))
        at = &(*at)->next;
    m->next = *at;
    *at = m;
    q->ready_count++;
}

static rabbit_message *take_ready(rabbit_queue *q, rabbit_message **at)
{
    rabbit_message *m = *at;
    *at = m->next;
    m->next = NULL;
    q->ready_count--;
    return m;
}

void lp_rabbit_take_in(rabbit_store *d, rabbit_message *m)
{
    if (m->channel == LP_RABBIT_LOOK) {
        lp_rabbit_name_message(m);
        rabbit_message **end = &d->looked;
        while (*end)
            end = &(*end)->next;
        *end = m;
        return;
    }
    rabbit_queue *q = *m->consumer ? lp_rabbit_queue_of(d, m->consumer) : d->getting;
    if (!q) {
        lp_rabbit_free_message(m); /* The broker gives it to another when this link ends. */
        return;
    }
    lp_rabbit_count_delivered(q, m->consumer, 1);
    m->from = q;
    m->arrived = lp_clock_monotonic();
    m->order.queue = q->name;
    m->order.reason = LAPSE_REASON_NONE; /* That it has waited is none. */
    m->order.error = NULL;
    if (q->is_shops && !m->too_large)
        lp_rabbit_adopt(d, m);
    if (m->redeliveries)
        q->careful_until = lp_add_ns(m->arrived, CAREFUL);
    put_ready(q, m);
}

/* The broker is rid of it. */
void lp_rabbit_forget_message(rabbit_message *m)
{
    if (m->from)
        lp_rabbit_count_delivered(m->from, m->consumer, -1);
    lp_rabbit_free_message(m);
}

int lp_rabbit_finish(rabbit_store *d, rabbit_message *m)
{
    int code = lp_rabbit_ack(&d->in, m->channel, m->tag, false);
    if (m->from)
        lp_rabbit_note_ack(m->from);
    lp_rabbit_forget_message(m);
    return code;
}

/* -- Held -- */

static rabbit_held **bucket(rabbit_store *d, int64_t fence)
{
    return &d->held[(uint64_t)fence % LP_RABBIT_HELD];
}

rabbit_held *lp_rabbit_find_held(rabbit_store *d, int64_t fence)
{
    rabbit_held *h = *bucket(d, fence);
    while (h && h->fence != fence)
        h = h->next;
    return h;
}

void lp_rabbit_drop_held(rabbit_store *d, rabbit_held *h)
{
    rabbit_held **at = bucket(d, h->fence);
    while (*at != h)
        at = &(*at)->next;
    *at = h->next;
    d->held_count--;
    h->from->held--;
    free(h);
}

static void lose_queue(rabbit_queue *q)
{
    while (q->ready)
        lp_rabbit_free_message(take_ready(q, &q->ready));
    lp_rabbit_forget_consumers(q);
    q->is_known = false;
}

static void lose_sent(rabbit_sent *s, uint16_t channel)
{
    if (s->message && s->message->channel == channel) {
        lp_rabbit_free_message(s->message);
        s->message = NULL;
    }
    if (s->held && s->held->message->channel == channel)
        s->held = NULL;
}

void lp_rabbit_lose_held(rabbit_store *d, uint16_t channel)
{
    for (size_t i = 0; i < d->sent_count; i++)
        lose_sent(&d->sent[i], channel);
    for (size_t i = 0; d->held_count && i < LP_RABBIT_HELD; i++)
        for (rabbit_held *h = d->held[i], *next; h; h = next) {
            next = h->next;
            if (h->message->channel != channel)
                continue;
            lp_rabbit_free_message(h->message);
            lp_rabbit_drop_held(d, h);
        }
    for (rabbit_message **at = &d->replaced; *at;) {
        rabbit_message *m = *at;
        if (m->channel != channel) {
            at = &m->next;
            continue;
        }
        *at = m->next; /* It comes again. */
        lp_rabbit_free_message(m);
    }
    for (size_t i = 0; i < d->queue_count; i++)
        if (d->queues[i]->channel == channel)
            lose_queue(d->queues[i]);
}

/* -- Back to the broker -- */

/* An order as it came, with the deliveries that ended with their consumer. */
static rabbit_order again(const rabbit_store *d, const rabbit_message *m)
{
    rabbit_order o = m->order;
    o.attempt += d->config.manual ? 0 : (int)m->redeliveries;
    return o;
}

static bool is_large(const rabbit_store *d, const rabbit_message *m)
{
    return lp_rabbit_is_too_large(d, m->order.payload_len);
}

static int put_back(rabbit_store *d, const lp_turn *t, rabbit_message *m)
{
    rabbit_order o = again(d, m);
    bool as_it_is = m->bad || is_large(d, m);
    int code = as_it_is ? lp_rabbit_requeue(&d->in, m->channel, m->tag, false)
                        : lp_rabbit_send_order(d, t, &o, (rabbit_sent){.message = m});
    if (as_it_is)
        lp_rabbit_forget_message(m);
    else if (code < 0)
        put_ready(m->from, m);
    return code;
}

int lp_rabbit_return_ready(rabbit_store *d, const lp_turn *t)
{
    int code = LAPSE_OK;
    for (size_t i = 0; code >= 0 && i < d->queue_count; i++)
        while (code >= 0 && d->queues[i]->ready)
            code = put_back(d, t, take_ready(d->queues[i], &d->queues[i]->ready));
    return code;
}

/* Those whose time is far ahead came too early, or have waited for one turn of the ladder; those
 * that are due and that nobody has started are for others. */
static int sweep_queue(rabbit_store *d, const lp_turn *t, rabbit_queue *q, lapse_ns real_now)
{
    lapse_ns utc = lp_rabbit_judge(d, t);
    int code = LAPSE_OK;
    for (rabbit_message **at = &q->ready; code >= 0 && *at;) {
        bool stays = is_large(d, *at); /* It cannot be sent on: here it is waited for. */
        (*at)->moves = (*at)->moves && !stays;
        bool is_early = !stays && start_of(*at) > lp_add_ns(utc, LP_RABBIT_HOLD);
        bool is_long = real_now - (*at)->arrived > LP_RABBIT_HOLD;
        bool is_left = start_of(*at) <= utc && (is_long || lp_rabbit_is_refused(q, *at));
        if (is_left)
            code = lp_rabbit_refuse(d, q, *at);
        if (code < 0)
            break;
        if (is_early || is_left || (*at)->moves)
            code = put_back(d, t, take_ready(q, at));
        else
            at = &(*at)->next;
    }
    return code;
}

/* With what it counts as: the broker counts a delivery. */
static int give_back_held(rabbit_store *d, rabbit_held *h)
{
    rabbit_message *m = h->message;
    int code = lp_rabbit_requeue(&d->in, m->channel, m->tag, false);
    lp_rabbit_drop_held(d, h);
    lp_rabbit_forget_message(m);
    return code;
}

static int bury_held(rabbit_store *d, rabbit_held *h)
{
    rabbit_message *m = h->message;
    int code = lp_rabbit_reject(&d->in, m->channel, m->tag);
    lp_rabbit_drop_held(d, h);
    lp_rabbit_forget_message(m);
    return code;
}

/* Not tried: for whoever wants it here, and after HOLD for all. */
static void unclaim(rabbit_store *d, rabbit_held *h)
{
    rabbit_message *m = h->message;
    lp_rabbit_drop_held(d, h);
    m->arrived = lp_clock_monotonic();
    put_ready(m->from, m);
}

/* The broker itself moves it, to the dead letters too, whatever its size. What is tried again is kept
 * here until its time has come or its lease ends, and then goes back. A shop's queue has dead letters
 * of its own, or none: from there it comes again. */
int lp_rabbit_settle_large(rabbit_store *d, const lp_job *j, rabbit_held *h)
{
    bool dies = j && j->op == LP_DIE;
    if (dies && !h->message->from->is_shops)
        return bury_held(d, h);
    if (j && j->op == LP_AGAIN && !j->counted) {
        unclaim(d, h);
        return LAPSE_OK;
    }
    lapse_ns at = !j || j->op != LP_AGAIN ? h->lease_end : j->at > j->due ? j->at : j->due;
    h->lease_end = at < h->lease_end ? at : h->lease_end;
    h->waits = true;
    return dies ? lp_rabbit_refuse_large(d, h->message->order.payload_len) : LAPSE_OK;
}

/* A lease that has ended counts as an attempt. */
static int end_lease(rabbit_store *d, const lp_turn *t, rabbit_held *h)
{
    if (h->waits || is_large(d, h->message))
        return give_back_held(d, h);
    rabbit_order o = h->message->order;
    o.attempt = h->attempt;
    o.fence = h->fence;
    return lp_rabbit_send_order(d, t, &o, (rabbit_sent){.held = h});
}

int lp_rabbit_sweep_leases(rabbit_store *d, const lp_turn *t)
{
    int code = LAPSE_OK;
    for (size_t i = 0; d->held_count && i < LP_RABBIT_HELD; i++)
        for (rabbit_held *h = d->held[i], *next; code >= 0 && h; h = next) {
            next = h->next;
            if (h->lease_end <= t->now && (h->waits || !h->settling))
                code = end_lease(d, t, h);
        }
    return code;
}

int lp_rabbit_sweep_ready(rabbit_store *d, const lp_turn *t)
{
    int code = LAPSE_OK;
    lapse_ns now = lp_clock_monotonic();
    for (size_t i = 0; code >= 0 && !d->config.manual && i < d->queue_count; i++)
        code = sweep_queue(d, t, d->queues[i], now);
    return code;
}

/* When something of that is to be done; lp_clock_monotonic, but for leases the scheduler's. */
lapse_ns lp_rabbit_next_lease(const rabbit_store *d)
{
    lapse_ns next = LAPSE_FOREVER;
    for (size_t i = 0; d->held_count && i < LP_RABBIT_HELD; i++)
        for (const rabbit_held *h = d->held[i]; h; h = h->next)
            next = (h->waits || !h->settling) && h->lease_end < next ? h->lease_end : next;
    return next;
}

/* -- Wants -- */

static bool is_for(const lp_want *w, const rabbit_queue *q)
{
    size_t i = 0;
    while (i < w->queue_count && strcmp(w->queues[i], q->name) != 0)
        i++;
    return (i < w->queue_count) != w->others;
}

/* A host that is to be told of an order wants one. */
static unsigned wanted_of(const lp_turn *t, const lp_want *w)
{
    if (w->most == 0)
        return !w->pushed && w->others;
    return w->pushed && w->most > t->push_most ? t->push_most : w->most;
}

static int note_wanted(rabbit_store *d, const lp_turn *t)
{
    for (size_t i = 0; i < t->want_count; i++)
        for (size_t k = 0; !t->wants[i].others && k < t->wants[i].queue_count; k++)
            if (!lp_rabbit_queue(d, t->wants[i].queues[k]))
                return lp_fail_memory();
    for (size_t k = 0; k < d->queue_count; k++) {
        rabbit_queue *q = d->queues[k];
        bool is_wanted = false, spare = !d->config.manual;
        q->wanted = 0;
        for (size_t i = 0; i < t->want_count; i++) {
            if (!is_for(&t->wants[i], q))
                continue;
            q->wanted += wanted_of(t, &t->wants[i]);
            spare = spare && t->wants[i].spare;
            is_wanted = true;
        }
        q->spare = is_wanted ? spare : q->spare;
        q->refused_at = q->wanted ? 0 : q->refused_at;
    }
    return LAPSE_OK;
}

/* To find out that it was deleted by asking for orders costs the channel. */
static void look_for(rabbit_store *d, rabbit_queue *q)
{
    uint64_t count;
    bool shares = d->queue_count > d->queue_channels && d->held_count;
    if (shares && q->is_declared && q->consumer_count == 0 &&
        lp_rabbit_count(&d->in, LP_RABBIT_DECLARE, q->work, &count) == LAPSE_EUNKNOWN)
        q->is_declared = false;
}

static int ask(rabbit_store *d, rabbit_queue *q)
{
    q->looked = q->wanted > 0;
    if (q->looked)
        look_for(d, q);
    int code = q->looked ? lp_rabbit_use_queue(d, q) : LAPSE_OK;
    if (code < 0)
        return code;
    if (d->config.manual)
        code = q->looked ? lp_rabbit_get_all(d, q) : LAPSE_OK;
    else
        code = lp_rabbit_ask_for(d, q);
    if (code == LAPSE_EDATA && d->in.closed_code == AMQP_NOT_FOUND)
        q->is_declared = false; /* It was deleted: the next turn sees to it. */
    if (code != LAPSE_ESTALE)
        return code;
    q->looked = false; /* The channel was closed, which is noted first. */
    return LAPSE_OK;
}

/* The others go on without it. One that was deleted is declared in the next turn; one that cannot be
 * used is tried again after a while. */
static int ask_own(rabbit_store *d, rabbit_queue *q)
{
    bool was_declared = q->is_declared;
    q->looked = false;
    if (lp_clock_monotonic() < q->retry_at)
        return LAPSE_OK;
    int code = ask(d, q);
    if (code >= 0 || !d->in.connection)
        return code;
    q->looked = false;
    if (!was_declared || q->is_declared)
        q->retry_at = lp_add_ns(lp_clock_monotonic(), d->settings.poll);
    return LAPSE_OK;
}

/* It may come back. */
static int ask_shop(rabbit_store *d, rabbit_queue *q)
{
    q->looked = false;
    if (lp_clock_monotonic() < q->retry_at)
        return LAPSE_OK;
    int code = ask(d, q);
    if (code != LAPSE_EDATA) {
        if (code >= 0 && q->is_declared)
            *d->trouble = '\0';
        return code;
    }
    q->looked = false;
    lp_rabbit_note_work(d, q);
    return LAPSE_OK;
}

static int ask_for_all(rabbit_store *d, const lp_turn *t)
{
    int code = note_wanted(d, t);
    for (size_t i = 0; code >= 0 && i < d->queue_count; i++)
        code = d->queues[i]->is_shops ? ask_shop(d, d->queues[i]) : ask_own(d, d->queues[i]);
    return code;
}

/* -- Claims -- */

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* Above the last of its order, and of this scheduler, and the clock. */
static int64_t next_fence(rabbit_store *d, const rabbit_message *m)
{
    int64_t fence = larger(lp_clock_wall(NULL) / 1000, larger(m->order.fence, d->last_fence) + 1);
    return d->last_fence = fence;
}

static rabbit_held *hold(rabbit_store *d, const lp_turn *t, rabbit_message *m)
{
    rabbit_held *h = calloc(1, sizeof *h);
    if (!h)
        return NULL;
    h->message = m;
    h->from = m->from;
    h->from->held++;
    h->since = lp_clock_monotonic();
    h->fence = next_fence(d, m);
    h->attempt = again(d, m).attempt + 1;
    h->lease_end = lp_add_ns(t->now, t->lease);
    h->next = *bucket(d, h->fence);
    *bucket(d, h->fence) = h;
    d->held_count++;
    return h;
}

static lp_loan *make_loan(rabbit_store *d, const lp_turn *t, rabbit_message *m, size_t want)
{
    const rabbit_order *o = &m->order;
    bool has_id = o->id_len > 0 && o->id_len <= LAPSE_ID_MAX && !memchr(o->id, '\0', o->id_len);
    lp_loan *l = lp_loan_make(has_id ? o->id : "?", has_id ? o->id_len : 1, o->queue, o->payload,
                              o->payload_len);
    rabbit_held *h = l ? hold(d, t, m) : NULL;
    if (!h) {
        free(l);
        return NULL;
    }
    lapse_ns due = lp_rabbit_scheduler_time(d, t, o->due);
    l->want = want;
    l->fence = h->fence;
    l->generation = o->generation;
    l->attempt = h->attempt;
    l->due = due < t->now ? due : t->now;
    l->bad = m->bad;
    return l;
}

/* Of a want's queues the one whose first fell due first; NULL: none has one that is due. */
static rabbit_queue *find_due(rabbit_store *d, const lp_want *w, lapse_ns utc)
{
    rabbit_queue *best = NULL;
    for (size_t i = 0; i < d->queue_count; i++) {
        rabbit_queue *q = d->queues[i];
        if (q->ready && !q->ready->moves && start_of(q->ready) <= utc && is_for(w, q) &&
            (!best || is_before(q->ready, best->ready)))
            best = q;
    }
    return best;
}

static lapse_ns next_of(const rabbit_store *d, const lp_turn *t, const lp_want *w)
{
    lapse_ns next = LAPSE_FOREVER, now = lp_clock_monotonic();
    for (size_t i = 0; i < d->queue_count; i++) {
        const rabbit_queue *q = d->queues[i];
        if (!is_for(w, q))
            continue;
        /* Without a consumer, or a look, it is not known what there is. */
        bool known = d->config.manual ? q->is_known || q->looked : lp_rabbit_free_slots(q) > 0;
        lapse_ns at = known ? LAPSE_FOREVER : t->now;
        if (!known && q->retry_at > now)
            at = lp_add_ns(t->now, q->retry_at - now);
        if (q->is_shops && !q->is_declared)
            at = lp_add_ns(t->now, d->settings.poll); /* The shop is to declare it again. */
        if (q->ready || (known && d->config.manual && !q->looked && q->first < LAPSE_FOREVER))
            at = lp_rabbit_scheduler_time(d, t, q->ready ? start_of(q->ready) : q->first);
        next = at < next ? at : next;
    }
    return next;
}

static void claim_want(rabbit_store *d, lp_turn *t, size_t number, lp_loan ***end,
                       unsigned *push_left)
{
    const lp_want *w = &t->wants[number];
    lapse_ns utc = lp_rabbit_judge(d, t);
    unsigned left = w->pushed && w->most > *push_left ? *push_left : w->most;
    rabbit_queue *q;
    while (left > 0 && (q = find_due(d, w, utc))) {
        lp_loan *l = make_loan(d, t, q->ready, number);
        if (!l)
            return;
        (void)take_ready(q, &q->ready);
        **end = l;
        *end = &l->next;
        left--;
        *push_left -= w->pushed;
    }
}

/* What was got and not claimed; the broker has it before anybody is answered. */
static int give_rest_of(rabbit_store *d, rabbit_queue *q)
{
    unsigned count = q->ready_count;
    uint64_t last = 0;
    int code = LAPSE_OK;
    q->is_known = true;
    q->first = count ? start_of(q->ready) : LAPSE_FOREVER;
    while (q->ready) {
        rabbit_message *m = take_ready(q, &q->ready);
        last = m->tag > last ? m->tag : last;
        if (d->held_count && code >= 0)
            code = lp_rabbit_requeue(&d->in, m->channel, m->tag, false);
        lp_rabbit_free_message(m);
    }
    if (count && !d->held_count)
        code = lp_rabbit_requeue(&d->in, q->channel, last, true);
    return code < 0 ? code : lp_rabbit_await_count(&d->in, LP_RABBIT_DECLARE, q->work, count);
}

static int give_rest_back(rabbit_store *d)
{
    int code = LAPSE_OK;
    for (size_t i = 0; code >= 0 && i < d->queue_count; i++)
        if (d->queues[i]->looked)
            code = give_rest_of(d, d->queues[i]);
    return code;
}

int lp_rabbit_claim(rabbit_store *d, lp_turn *t)
{
    int code = ask_for_all(d, t);
    lp_rabbit_note_losses(d);
    if (code < 0) {
        for (size_t i = 0; i < t->want_count; i++)
            t->wants[i].next = lp_add_ns(t->now, d->settings.poll);
        return code;
    }
    lp_loan **end = &t->loans;
    unsigned push_left = t->push_most;
    for (size_t i = 0; i < t->want_count; i++)
        claim_want(d, t, i, &end, &push_left);
    for (size_t i = 0; i < t->want_count; i++)
        t->wants[i].next = next_of(d, t, &t->wants[i]);
    return d->config.manual ? give_rest_back(d) : LAPSE_OK;
}
