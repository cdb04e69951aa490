/* rabbitmq_shop.c - a shop's own delay exchange and work queue, used by name.
 *
 * Shops have an exchange whose messages wait in a queue with a TTL, and come by a dead-letter
 * exchange to a work queue. With work= orders are taken from that queue beside lapse's own, and
 * with delay_exchange= new ones are published there. They are looked for, never declared, bound or
 * changed. What is tried again, was given back, or came too early goes by lapse's own queues, and
 * dead letters are lapse's.
 *
 * A message of the shop is an order whose id is its body, or its message-id; it is due when it
 * comes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "stores/rabbitmq.h"
#include "stores/url.h"

/* -- The URL -- */

static int read_ttl(const lp_url_option *option, rabbit_shop *out)
{
    out->ttl = LAPSE_FOREVER;
    if (lp_url_value_is(option, "none"))
        return LAPSE_OK;
    return lp_url_duration(option, LAPSE_MS(1), LAPSE_DAYS(3650), &out->ttl);
}

static int read_choice(const lp_url_option *option, const char *yes, const char *no, bool *out)
{
    char wanted[64];
    *out = lp_url_value_is(option, yes);
    snprintf(wanted, sizeof wanted, "%s or %s", yes, no);
    return *out || lp_url_value_is(option, no) ? LAPSE_OK : lp_url_refuse(option, wanted);
}

int lp_rabbit_read_shop(const lp_url_option *option, rabbit_shop *out)
{
    if (lp_url_is(option, "work"))
        return lp_url_decoded(option, "work", &out->work);
    if (lp_url_is(option, "queue"))
        return lp_url_decoded(option, "queue", &out->queue);
    if (lp_url_is(option, "delay_exchange"))
        return lp_url_decoded(option, "delay_exchange", &out->exchange);
    if (lp_url_is(option, "routing_key"))
        return lp_url_decoded(option, "routing_key", &out->key);
    if (lp_url_is(option, "ttl"))
        return read_ttl(option, out);
    if (lp_url_is(option, "expiration"))
        return read_choice(option, "message", "queue", &out->expires);
    if (lp_url_is(option, "id"))
        return read_choice(option, "message_id", "body", &out->has_message_id);
    return 1;
}

int lp_rabbit_check_shop(rabbit_shop *shop)
{
    bool names = shop->work || shop->exchange;
    if (!names && (shop->queue || shop->key || shop->ttl || shop->expires || shop->has_message_id))
        return lp_fail(LAPSE_EURL, "the URL options queue, routing_key, ttl, expiration and id are "
                                   "of a shop's own queues: give work= or delay_exchange= too");
    if (!names)
        return LAPSE_OK;
    if (!shop->queue && !shop->work)
        return lp_fail(LAPSE_EURL, "the URL has delay_exchange= and neither work= nor queue=: say "
                                   "with queue= whose orders go there");
    if (shop->exchange && !shop->ttl)
        return lp_fail(LAPSE_EURL,
                       "the URL has delay_exchange= without ttl=: say what x-message-ttl the queue "
                       "behind it has (ttl=30m, or ttl=none), which RabbitMQ does not tell");
    if (shop->exchange && !shop->expires && shop->ttl == LAPSE_FOREVER)
        return lp_fail(LAPSE_EURL, "with ttl=none nothing would wait: give the URL "
                                   "expiration=message, so that each message has its own TTL");
    if (!shop->queue && !(shop->queue = strdup(shop->work)))
        return lp_fail_memory();
    if (strlen(shop->queue) > LAPSE_ID_MAX || (shop->work && strlen(shop->work) > LAPSE_ID_MAX))
        return lp_fail(LAPSE_EURL, "the URL options work and queue have %d bytes at most",
                       LAPSE_ID_MAX);
    return LAPSE_OK;
}

void lp_rabbit_free_shop(rabbit_shop *shop)
{
    free(shop->work);
    free(shop->queue);
    free(shop->exchange);
    free(shop->key);
    *shop = (rabbit_shop){.work = NULL};
}

/* -- Looking for what is named -- */

static int not_there(const rabbit_link *l, int code, const char *option, const char *name)
{
    if (code == LAPSE_EUNKNOWN || (code == LAPSE_EDATA && l->closed_code == AMQP_NOT_FOUND))
        return lp_fail(LAPSE_EDATA,
                       "RabbitMQ has no %s (the URL option %s): it is the shop's to declare",
                       lp_text_quote(name, strnlen(name, 120)), option);
    return code;
}

static int find_exchange(rabbit_store *d, const char *name)
{
    amqp_exchange_declare_t m = {
        .exchange = amqp_cstring_bytes(name), .type = amqp_cstring_bytes(""), .passive = 1};
    int code = lp_rabbit_call(&d->in, LP_RABBIT_DECLARE, AMQP_EXCHANGE_DECLARE_METHOD, &m,
                              AMQP_EXCHANGE_DECLARE_OK_METHOD, 0);
    return not_there(&d->in, code, "delay_exchange", name);
}

int lp_rabbit_find_work(rabbit_store *d)
{
    uint64_t count;
    const char *work = d->settings.shop.work;
    int code = lp_rabbit_count(&d->in, LP_RABBIT_DECLARE, work, &count);
    return not_there(&d->in, code, "work", work);
}

void lp_rabbit_note_work(rabbit_store *d, rabbit_queue *q)
{
    q->is_declared = false;
    q->retry_at = lp_add_ns(lp_clock_monotonic(), d->settings.poll);
    if (d->in.closed_code == AMQP_NOT_FOUND)
        snprintf(
            d->trouble, sizeof d->trouble, "%s",
            "the queue of the URL option work is gone from RabbitMQ: the orders in it are too, "
            "and none come from there until it is declared again");
    else
        snprintf(d->trouble, sizeof d->trouble,
                 "RabbitMQ lets nothing be taken from the queue of the URL option work: %.150s",
                 d->in.closed_for);
}

int lp_rabbit_find_shop(rabbit_store *d)
{
    const rabbit_shop *shop = &d->settings.shop;
    int code = shop->exchange ? find_exchange(d, shop->exchange) : LAPSE_OK;
    return code == LAPSE_OK && shop->work ? lp_rabbit_find_work(d) : code;
}

/* -- Publishing -- */

bool lp_rabbit_is_shops(const rabbit_store *d, const rabbit_order *o)
{
    return d->settings.shop.exchange && strcmp(d->settings.shop.queue, o->queue) == 0;
}

/* Instants are not to the millisecond what the queue has: who means its TTL may be a moment off. */
static lapse_ns tolerance(lapse_ns ttl)
{
    return ttl / 10 < LAPSE_SECONDS(1) ? ttl / 10 : LAPSE_SECONDS(1);
}

/* `delay` is the one that was given: a call that waited for its turn has less left of it. */
static int check_delay(const rabbit_store *d, lapse_ns delay)
{
    const rabbit_shop *shop = &d->settings.shop;
    lapse_ns early = shop->expires ? 0 : shop->ttl - delay;
    if (delay <= shop->ttl && early <= tolerance(shop->ttl))
        return LAPSE_OK;
    return lp_fail(LAPSE_EUNSUPPORTED,
                   "a delay of %.1f s cannot be had: the queue behind delay_exchange=%s has a TTL "
                   "of %.1f s, %s",
                   (double)delay * 1e-9, lp_text_quote(shop->exchange, strnlen(shop->exchange, 80)),
                   (double)shop->ttl * 1e-9,
                   shop->expires ? "and the smaller of that and the message's wins"
                                 : "and messages have none (expiration=queue)");
}

int lp_rabbit_send_to_shop(rabbit_store *d, lapse_ns delay, const rabbit_order *given,
                           rabbit_sent sent)
{
    const rabbit_shop *shop = &d->settings.shop;
    char expiration[24];
    rabbit_order o = *given;
    delay = delay > 0 ? delay : 0;
    int code = check_delay(d, lp_sum_ns(sent.job->due, -sent.job->asked));
    if (code < 0)
        return code;
    if (!shop->has_message_id && o.payload_len)
        return lp_fail(LAPSE_EUNSUPPORTED, "an order for delay_exchange= has its id as its body: "
                                           "leave the payload out, or give the URL id=message_id");
    if (!shop->has_message_id) {
        o.payload = o.id;
        o.payload_len = o.id_len;
    }
    if (shop->expires) {
        int64_t ms = delay / LAPSE_MS(1) + (delay % LAPSE_MS(1) > 0);
        snprintf(expiration, sizeof expiration, "%lld", (long long)ms);
        o.expiration = expiration;
    }
    sent.to_shop = true;
    return lp_rabbit_send_to(d, shop->exchange, shop->key ? shop->key : "", &o, sent);
}

int lp_rabbit_returned_by_shop(const rabbit_store *d)
{
    const rabbit_shop *shop = &d->settings.shop;
    char exchange[100];
    snprintf(exchange, sizeof exchange, "%s",
             lp_text_quote(shop->exchange, strnlen(shop->exchange, 80)));
    const char *key = shop->key ? shop->key : "";
    return lp_fail(LAPSE_ESYSTEM,
                   "no queue is bound to delay_exchange=%s for routing_key=%s: the message would "
                   "be gone",
                   exchange, lp_text_quote(key, strnlen(key, 80)));
}

/* -- Taking over -- */

static bool is_id(const void *bytes, size_t len)
{
    return len > 0 && len <= LAPSE_ID_MAX && !memchr(bytes, '\0', len);
}

static void take_id(const rabbit_shop *shop, rabbit_message *m)
{
    rabbit_order *o = &m->order;
    bool from_body = !shop->has_message_id;
    const void *id = from_body ? o->payload : o->id;
    size_t len = from_body ? o->payload_len : o->id_len;
    m->bad = NULL;
    if (!is_id(id, len)) {
        m->bad = from_body ? "its body is no order id: 1 to 255 bytes without NUL are"
                           : "its message-id is no order id: 1 to 255 bytes without NUL are";
        return;
    }
    o->id = id;
    o->id_len = len;
    if (from_body)
        o->payload_len = 0;
}

void lp_rabbit_adopt(rabbit_store *d, rabbit_message *m)
{
    const rabbit_shop *shop = &d->settings.shop;
    rabbit_order *o = &m->order;
    if (m->is_again && m->redeliveries == 0 && !d->config.manual) {
        /* A classic queue counts no deliveries: one of ours does from now on. */
        m->redeliveries = 1;
        m->moves = true;
    }
    if (m->is_ours) { /* It has been by the shop's exchange. */
        if (!shop->has_message_id)
            o->payload_len = 0;
        return;
    }
    o->due = lp_clock_wall(NULL);
    o->generation = lp_rabbit_next_generation(d);
    o->reason = LAPSE_REASON_NONE;
    o->error = NULL;
    take_id(shop, m);
    m->moves = m->moves && !m->bad;
}
