/* rabbitmq_ask.c - how many orders of a queue are asked for: its consumers.
 *
 * Of every queue so many are asked for as could start at once: a consumer with that prefetch, or a
 * get where it is not known yet whether there is anything. Where orders end quickly, as many more
 * are as end in AHEAD; or each would wait for the broker's answer to the one before. These wait
 * here, unclaimed.
 *
 * Prefetch belongs to a consumer for its life: when more are wanted than may still come, another is
 * added. When one is cancelled, the broker puts back what it has sent and the channel has not passed
 * on, and counts that as a delivery: the order has lost an attempt and was never started. Nothing is
 * on its way to a consumer that has all it may have: only such a one is cancelled, and they are small,
 * so that one order that nobody can start fills its consumer. What is for orders ahead is a large
 * one; it ends when they take longer now, and nothing is in the queue. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "stores/rabbitmq.h"

static const lapse_ns AHEAD = LAPSE_MS(20);
enum { PREFETCH_MOST = 10000, AHEAD_MOST = 256, SMALL = 16 };

/* -- Consumers -- */

static void write_tag(char out[32], const rabbit_queue *q, unsigned serial)
{
    snprintf(out, 32, "%zu.%u", q->number, serial);
}

rabbit_queue *lp_rabbit_queue_of(const rabbit_store *d, const char *consumer)
{
    size_t number = strtoul(consumer, NULL, 10);
    return number < d->queue_count ? d->queues[number] : NULL;
}

static rabbit_consumer *find_consumer(const rabbit_queue *q, const char *consumer)
{
    const char *dot = strchr(consumer, '.');
    unsigned long serial = dot ? strtoul(dot + 1, NULL, 10) : 0;
    for (size_t i = 0; i < q->consumer_count; i++)
        if (q->consumers[i].serial == serial)
            return &q->consumers[i];
    return NULL;
}

static bool is_full(const rabbit_consumer *c)
{
    return c->unacked >= c->prefetch;
}

unsigned lp_rabbit_free_slots(const rabbit_queue *q)
{
    unsigned n = 0;
    for (size_t i = 0; i < q->consumer_count; i++)
        n += is_full(&q->consumers[i]) ? 0 : q->consumers[i].prefetch - q->consumers[i].unacked;
    return n;
}

void lp_rabbit_count_delivered(rabbit_queue *q, const char *consumer, int more)
{
    rabbit_consumer *c = find_consumer(q, consumer);
    if (c)
        c->unacked += (unsigned)more;
}

static void forget(rabbit_queue *q, rabbit_consumer *c)
{
    *c = q->consumers[--q->consumer_count];
}

void lp_rabbit_forget_consumers(rabbit_queue *q)
{
    q->consumer_count = 0;
    q->surplus_since = 0;
}

/* The broker has ended it: the queue was deleted. */
void lp_rabbit_consumer_gone(rabbit_store *d, const char *consumer)
{
    rabbit_queue *q = lp_rabbit_queue_of(d, consumer);
    rabbit_consumer *c = q ? find_consumer(q, consumer) : NULL;
    if (!c)
        return;
    forget(q, c);
    q->is_declared = false;
}

/* The broker has closed its channel, and what that means is not noted yet. On the same channel, opened
 * again, there would be what is lost and what is not; and whoever speaks on one that is closed loses
 * the connection. */
static bool is_lost(const rabbit_store *d, const rabbit_queue *q)
{
    return d->in.connection && d->in_closed[q->channel];
}

static int lost(const rabbit_store *d)
{
    return lp_fail(LAPSE_ESTALE, "RabbitMQ has closed the channel: %.200s", d->in.closed_for);
}

static int call(rabbit_store *d, const rabbit_queue *q, amqp_method_number_t id, void *method,
                amqp_method_number_t reply)
{
    if (is_lost(d, q))
        return lost(d);
    return lp_rabbit_call(&d->in, q->channel, id, method, reply, 0);
}

static int cancel(rabbit_store *d, rabbit_queue *q, rabbit_consumer *c)
{
    char tag[32];
    write_tag(tag, q, c->serial);
    forget(q, c);
    if (is_lost(d, q))
        return LAPSE_OK;
    amqp_basic_cancel_t m = {.consumer_tag = amqp_cstring_bytes(tag), .nowait = 1};
    return lp_rabbit_send(&d->in, q->channel, AMQP_BASIC_CANCEL_METHOD, &m);
}

static bool has_ahead(const rabbit_queue *q)
{
    for (size_t i = 0; i < q->consumer_count; i++)
        if (q->consumers[i].is_ahead)
            return true;
    return false;
}

static int cancel_ahead(rabbit_store *d, rabbit_queue *q)
{
    int code = LAPSE_OK;
    for (size_t i = q->consumer_count; code >= 0 && i-- > 0;)
        if (q->consumers[i].is_ahead)
            code = cancel(d, q, &q->consumers[i]);
    return code;
}

static int set_prefetch(rabbit_store *d, const rabbit_queue *q, unsigned most)
{
    amqp_basic_qos_t m = {.prefetch_count = (uint16_t)most};
    return call(d, q, AMQP_BASIC_QOS_METHOD, &m, AMQP_BASIC_QOS_OK_METHOD);
}

static bool make_room(rabbit_queue *q)
{
    if (q->consumer_count < q->consumer_room)
        return true;
    size_t room = q->consumer_room ? 2 * q->consumer_room : 4;
    rabbit_consumer *more = realloc(q->consumers, room * sizeof *more);
    if (!more)
        return false;
    q->consumers = more;
    q->consumer_room = room;
    return true;
}

/* With the prefetch that was set last. */
static int start_one(rabbit_store *d, rabbit_queue *q, unsigned prefetch)
{
    char tag[32];
    if (!make_room(q))
        return lp_fail_memory();
    write_tag(tag, q, ++q->serial);
    amqp_basic_consume_t m = {.queue = amqp_cstring_bytes(q->work),
                              .consumer_tag = amqp_cstring_bytes(tag)};
    q->consumers[q->consumer_count++] =
        (rabbit_consumer){.serial = q->serial, .prefetch = prefetch};
    int code = call(d, q, AMQP_BASIC_CONSUME_METHOD, &m, AMQP_BASIC_CONSUME_OK_METHOD);
    rabbit_consumer *c = code == LAPSE_OK ? NULL : find_consumer(q, tag);
    if (c)
        forget(q, c);
    return code;
}

static int start_small(rabbit_store *d, rabbit_queue *q, unsigned count)
{
    unsigned size = count < SMALL ? 1 : count / SMALL;
    int code = set_prefetch(d, q, size);
    for (; code == LAPSE_OK && count >= size; count -= size)
        code = start_one(d, q, size);
    if (code == LAPSE_OK && count > 0)
        code = set_prefetch(d, q, count);
    return code < 0 || count == 0 ? code : start_one(d, q, count);
}

static int start_ahead(rabbit_store *d, rabbit_queue *q, unsigned count)
{
    int code = set_prefetch(d, q, count);
    if (code == LAPSE_OK)
        code = start_one(d, q, count);
    rabbit_consumer *last = q->consumer_count ? &q->consumers[q->consumer_count - 1] : NULL;
    if (code == LAPSE_OK && last && last->serial == q->serial)
        last->is_ahead = true;
    return code;
}

/* -- How many -- */

void lp_rabbit_note_pace(const rabbit_held *h)
{
    rabbit_queue *q = h->from;
    lapse_ns took = lp_clock_monotonic() - h->since;
    q->takes = q->takes ? q->takes + (took - q->takes) / 8 : took;
    q->takes = q->takes > 0 ? q->takes : 1;
}

/* What those that run, or could, end in that time. */
static unsigned ahead(const rabbit_queue *q)
{
    if (!q->spare || q->takes == 0 || lp_clock_monotonic() < q->careful_until)
        return 0;
    uint64_t n = (uint64_t)(q->wanted + q->held) * (uint64_t)AHEAD / (uint64_t)q->takes;
    return n < AHEAD_MOST ? (unsigned)n : AHEAD_MOST;
}

static unsigned unmet_of(const rabbit_queue *q, unsigned wanted)
{
    wanted = wanted < PREFETCH_MOST ? wanted : PREFETCH_MOST;
    return wanted > q->ready_count ? wanted - q->ready_count : 0;
}

/* What is had ahead need not be exact: to ask anew costs two answers of the broker's. */
static bool has_enough(const rabbit_queue *q, unsigned wanted, unsigned with_ahead)
{
    unsigned has = lp_rabbit_free_slots(q);
    return has >= wanted && 2 * has >= with_ahead - with_ahead / 8;
}

/* Up to so many; how many have come. */
static int get_some(rabbit_store *d, rabbit_queue *q, unsigned most)
{
    int code = 1;
    unsigned n = 0;
    d->getting = q;
    while (code == 1 && n < most) {
        code = is_lost(d, q) ? lost(d) : lp_rabbit_get(&d->in, q->channel, q->work);
        n += code == 1;
        lp_rabbit_breathe(d);
    }
    d->getting = NULL;
    return code < 0 ? code : (int)n;
}

static int ask_for_more(rabbit_store *d, rabbit_queue *q)
{
    int code = q->consumer_count ? LAPSE_OK : get_some(d, q, unmet_of(q, q->wanted));
    unsigned more = ahead(q), most = unmet_of(q, q->wanted + more), there = lp_rabbit_free_slots(q);
    q->surplus_since = 0;
    if (code < 0 || there >= most)
        return code < 0 ? code : LAPSE_OK;
    return more ? start_ahead(d, q, most - there) : start_small(d, q, most - there);
}

/* A large one serves better, once there is one. */
static int end_small(rabbit_store *d, rabbit_queue *q)
{
    int code = LAPSE_OK;
    for (size_t i = has_ahead(q) && ahead(q) ? q->consumer_count : 0; code >= 0 && i-- > 0;)
        if (!q->consumers[i].is_ahead && is_full(&q->consumers[i]))
            code = cancel(d, q, &q->consumers[i]);
    return code;
}

/* More than is wanted now may be right again in a moment; and what is in the queue is about to come. */
static int ask_for_fewer(rabbit_store *d, rabbit_queue *q, unsigned most)
{
    lapse_ns now = lp_clock_monotonic();
    uint64_t coming = 0;
    if (!has_ahead(q) || lp_rabbit_free_slots(q) <= most) {
        q->surplus_since = 0;
        return LAPSE_OK;
    }
    if (!q->surplus_since)
        q->surplus_since = now;
    if (now - q->surplus_since <= LP_RABBIT_HOLD)
        return LAPSE_OK;
    q->surplus_since = now;
    int code = lp_rabbit_count(&d->in, LP_RABBIT_DECLARE, q->work, &coming);
    if (code < 0 || coming)
        return code == LAPSE_EUNKNOWN ? LAPSE_OK : code;
    q->surplus_since = 0;
    return cancel_ahead(d, q);
}

int lp_rabbit_ask_for(rabbit_store *d, rabbit_queue *q)
{
    int code = end_small(d, q);
    unsigned unmet = unmet_of(q, q->wanted), with_ahead = unmet_of(q, q->wanted + ahead(q));
    if (code < 0)
        return code;
    return has_enough(q, unmet, with_ahead) ? ask_for_fewer(d, q, with_ahead) : ask_for_more(d, q);
}

int lp_rabbit_ask_for_less(rabbit_store *d)
{
    int code = LAPSE_OK;
    for (size_t i = 0; code >= 0 && i < d->queue_count; i++) {
        rabbit_queue *q = d->queues[i];
        q->wanted = 0;
        code = ask_for_fewer(d, q, unmet_of(q, 0));
    }
    return code;
}

bool lp_rabbit_has_surplus(const rabbit_store *d)
{
    for (size_t i = 0; i < d->queue_count; i++)
        if (d->queues[i]->ready || d->queues[i]->surplus_since)
            return true;
    return false;
}

/* While nothing is wanted, an order would wait in each slot that was asked for once. What fills its
 * consumer ends it, so that this ends too. */
bool lp_rabbit_is_refused(const rabbit_queue *q, const rabbit_message *m)
{
    const rabbit_consumer *c = find_consumer(q, m->consumer);
    bool lately = q->refused_at && lp_clock_monotonic() - q->refused_at <= LP_RABBIT_HOLD;
    return lately && q->wanted == 0 && c && is_full(c);
}

/* They take longer than was thought. */
int lp_rabbit_refuse(rabbit_store *d, rabbit_queue *q, const rabbit_message *m)
{
    rabbit_consumer *c = find_consumer(q, m->consumer);
    q->takes = q->takes > LP_RABBIT_HOLD ? q->takes : LP_RABBIT_HOLD;
    q->refused_at = lp_clock_monotonic();
    return c && is_full(c) ? cancel(d, q, c) : LAPSE_OK;
}

/* -- All -- */

/* A few are got one by one. Of more a consumer is sent all at once; when a get finds nothing after
 * that, all have been sent, and come before the answer to the next call. */
int lp_rabbit_get_all(rabbit_store *d, rabbit_queue *q)
{
    enum { FEW = 4 };
    int got = get_some(d, q, FEW);
    if (got < FEW)
        return got < 0 ? got : LAPSE_OK;
    int code = set_prefetch(d, q, 0);
    if (code == LAPSE_OK)
        code = start_one(d, q, 0);
    if (code == LAPSE_OK)
        code = get_some(d, q, UINT32_MAX);
    if (code >= 0)
        code = set_prefetch(d, q, 0);
    return code < 0 || !q->consumer_count ? code : cancel(d, q, &q->consumers[0]);
}

/* -- The end -- */

/* What is in a queue comes to who has asked for it. */
static void await_coming(rabbit_store *d, rabbit_queue *q)
{
    lapse_ns end = lp_add_ns(lp_clock_monotonic(), LP_RABBIT_HOLD);
    uint64_t coming = 1;
    while (lp_rabbit_free_slots(q) && coming && lp_clock_monotonic() < end) {
        int code = lp_rabbit_count(&d->in, LP_RABBIT_DECLARE, q->work, &coming);
        if (code < 0)
            return;
    }
}

/* The answer comes after all that was delivered. */
static int cancel_and_wait(rabbit_store *d, rabbit_queue *q, rabbit_consumer *c)
{
    char tag[32];
    write_tag(tag, q, c->serial);
    forget(q, c);
    amqp_basic_cancel_t m = {.consumer_tag = amqp_cstring_bytes(tag)};
    return call(d, q, AMQP_BASIC_CANCEL_METHOD, &m, AMQP_BASIC_CANCEL_OK_METHOD);
}

int lp_rabbit_end_consumers(rabbit_store *d)
{
    int code = LAPSE_OK;
    for (size_t i = 0; code >= 0 && i < d->queue_count; i++) {
        rabbit_queue *q = d->queues[i];
        await_coming(d, q);
        while (code >= 0 && q->consumer_count)
            code = cancel_and_wait(d, q, &q->consumers[q->consumer_count - 1]);
    }
    lp_rabbit_note_losses(d);
    return code;
}

/* A channel sends a queue some thirty acknowledgements, and more when these have got there; what still
 * waits is forgotten when it closes, and what has ended would come again. By the end of a consumer,
 * which the queue answers, they have got there, and the others are sent. */
enum { ACKS_AT_ONCE = 30 };
static const lapse_ns LATELY = LAPSE_SECONDS(1);

void lp_rabbit_note_ack(rabbit_queue *q)
{
    lapse_ns now = lp_clock_monotonic();
    q->acks = now - q->acked_at > LATELY ? 1 : q->acks + 1;
    q->acked_at = now;
}

static int pass_on(rabbit_store *d, rabbit_queue *q)
{
    int code = set_prefetch(d, q, 1);
    for (int i = 0; code == LAPSE_OK && i < 2; i++) {
        code = start_one(d, q, 1);
        if (code == LAPSE_OK && q->consumer_count)
            code = cancel_and_wait(d, q, &q->consumers[0]);
    }
    return code;
}

int lp_rabbit_pass_acks_on(rabbit_store *d)
{
    int code = LAPSE_OK;
    for (size_t i = 0; code >= 0 && i < d->queue_count; i++) {
        rabbit_queue *q = d->queues[i];
        if (q->acks > ACKS_AT_ONCE && lp_clock_monotonic() - q->acked_at < LATELY)
            code = pass_on(d, q) < 0 ? LAPSE_EOFFLINE : 1;
    }
    lp_rabbit_note_losses(d);
    return code;
}
