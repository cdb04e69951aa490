/* rabbitmq_wake.c - messages that wake those who wait, when something falls due.
 *
 *     P.wake.level.NN     the ladder, as in rabbitmq_topology.c
 *     P.wake.deliver      from there to the mailboxes of all who wait for that queue
 *     P.wake.spare        what there was no mailbox for: the last one, since a ladder that finds no
 *                         queue would stand still
 *     P.wake.<number>     a mailbox: it goes with its connection, and holds one message
 *
 * A wake-up is a hint: it is not confirmed, not stored for who is away, not repeated, and what the
 * socket does not take at once is dropped. Whoever is woken looks into the store that keeps the
 * orders, as he also does now and then without being woken. */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/random.h>

#include <linux/sockios.h>

#include "base/clock.h"
#include "base/error.h"
#include "stores/rabbitmq.h"
#include "stores/rabbitmq_ticket.h"

enum { CHANNEL = 1, UNSENT_MOST = 64 << 10 };

static const lapse_ns PAUSE_MIN = LAPSE_MS(500), PAUSE_MAX = LAPSE_SECONDS(30);

/* No queue has this word: a '%' in one is followed by two hexadecimal digits. */
#define ALL "%all"

/* -- What arrives: that it does is all -- */

static void drop_message(void *arg, rabbit_message *m)
{
    ((rabbit_waker *)arg)->is_fresh = true;
    lp_rabbit_free_message(m);
}

static void no_confirm(void *arg, uint64_t number, bool multiple, bool accepted)
{
    (void)arg, (void)number, (void)multiple, (void)accepted;
}

static void cancelled(void *arg, const char *consumer)
{
    (void)consumer;
    ((rabbit_waker *)arg)->closed = true;
}

static void closed(void *arg, uint16_t channel)
{
    (void)channel;
    ((rabbit_waker *)arg)->closed = true;
}

static const rabbit_ears ears = {drop_message, no_confirm, cancelled, closed};

/* -- Links -- */

static void forget_bound(rabbit_waker *w)
{
    while (w->bound) {
        rabbit_bound *b = w->bound;
        w->bound = b->next;
        free(b);
    }
    w->levels = 0;
}

static void disconnect(rabbit_waker *w, bool politely)
{
    lp_rabbit_disconnect(&w->out, politely);
    lp_rabbit_disconnect(&w->in, politely);
    forget_bound(w);
    w->closed = false;
}

bool lp_rabbit_can_wake(const rabbit_waker *w)
{
    return w->in.connection && w->out.connection && !w->closed && !w->out.blocked;
}

static int bind(rabbit_waker *w, const char *word)
{
    char deliver[LP_RABBIT_NAME_MAX + 1], key[LP_RABBIT_WORD_MAX + 3];
    lp_rabbit_name(deliver, w->prefix, "deliver");
    snprintf(key, sizeof key, "#%s%s", *word ? "." : "", word);
    amqp_queue_bind_t m = {.queue = amqp_cstring_bytes(w->mailbox),
                           .exchange = amqp_cstring_bytes(deliver),
                           .routing_key = amqp_cstring_bytes(key)};
    return lp_rabbit_call(&w->in, CHANNEL, AMQP_QUEUE_BIND_METHOD, &m, AMQP_QUEUE_BIND_OK_METHOD,
                          0);
}

static int consume(rabbit_waker *w)
{
    amqp_basic_consume_t m = {.queue = amqp_cstring_bytes(w->mailbox), .no_ack = 1, .exclusive = 1};
    return lp_rabbit_call(&w->in, CHANNEL, AMQP_BASIC_CONSUME_METHOD, &m,
                          AMQP_BASIC_CONSUME_OK_METHOD, 0);
}

/* One for each connection: while the broker has not noticed that the last is gone, its mailbox is
 * nobody else's. */
static int name_mailbox(rabbit_waker *w)
{
    unsigned long long number;
    if (getrandom(&number, sizeof number, 0) != (ssize_t)sizeof number)
        return lp_fail(LAPSE_ESYSTEM, "getrandom failed");
    snprintf(w->mailbox, sizeof w->mailbox, "%s.%016llx", w->prefix, number);
    return LAPSE_OK;
}

static int connect_both(rabbit_waker *w)
{
    int code = name_mailbox(w);
    if (code == LAPSE_OK)
        code = lp_rabbit_connect(&w->in, &w->settings, &ears, w);
    if (code == LAPSE_OK)
        code = lp_rabbit_declare_wake(&w->in, CHANNEL, w->prefix, w->mailbox);
    if (code == LAPSE_OK)
        code = bind(w, ALL);
    if (code == LAPSE_OK)
        code = consume(w);
    if (code == LAPSE_OK)
        code = lp_rabbit_connect(&w->out, &w->settings, &ears, w);
    return code == LAPSE_OK ? lp_rabbit_open_channel(&w->out, CHANNEL) : code;
}

static void note_trouble(rabbit_waker *w, const char *why)
{
    if (!*w->trouble)
        snprintf(w->trouble, sizeof w->trouble,
                 "RabbitMQ wakes nobody, orders may start later by the poll bound: %.200s", why);
}

/* A broker that takes its time to refuse takes a tenth of this thread's at most. */
static void put_off(rabbit_waker *w, lapse_ns began)
{
    lapse_ns now = lp_clock_monotonic(), took = now - began;
    lapse_ns longer = w->pause < PAUSE_MAX / 2 ? 2 * w->pause : PAUSE_MAX;
    w->pause = w->pause ? longer : PAUSE_MIN;
    w->retry_at = lp_add_ns(now, w->pause > 10 * took ? w->pause : 10 * took);
}

int lp_rabbit_keep_waker(rabbit_waker *w)
{
    if (w->closed || !w->in.connection || !w->out.connection)
        disconnect(w, false);
    else
        return LAPSE_OK;
    lapse_ns began = lp_clock_monotonic();
    if (began < w->retry_at)
        return LAPSE_EOFFLINE;
    int code = connect_both(w);
    if (code < 0) {
        note_trouble(w, lapse_error_detail());
        disconnect(w, false);
        put_off(w, began);
        return code;
    }
    *w->trouble = '\0';
    w->pause = w->retry_at = 0;
    return LAPSE_OK;
}

int lp_rabbit_open_waker(rabbit_waker *w, rabbit_settings *settings)
{
    w->settings = *settings;
    *settings = (rabbit_settings){.user = NULL};
    w->out.fd = w->in.fd = -1;
    w->settings.settle = 0; /* A wake-up may be lost. */
    /* Whoever schedules waits for this too. */
    if (w->settings.timeout > LAPSE_SECONDS(1))
        w->settings.timeout = LAPSE_SECONDS(1);
    snprintf(w->prefix, sizeof w->prefix, "%s.wake", w->settings.prefix);
    int code = lp_rabbit_keep_waker(w);
    return code == LAPSE_EOFFLINE ? LAPSE_OK : code;
}

void lp_rabbit_close_waker(rabbit_waker *w)
{
    disconnect(w, true);
    lp_rabbit_free_settings(&w->settings);
}

/* -- Waiting -- */

void lp_rabbit_wait_for(rabbit_waker *w, const char *queue)
{
    char word[LP_RABBIT_WORD_MAX + 1] = "";
    if (queue)
        lp_rabbit_word(word, queue);
    if (!lp_rabbit_can_wake(w))
        return;
    for (const rabbit_bound *b = w->bound; b; b = b->next)
        if (!*b->word || strcmp(b->word, word) == 0)
            return;
    rabbit_bound *b = malloc(sizeof *b);
    if (!b || bind(w, word) < 0) {
        free(b);
        return;
    }
    memcpy(b->word, word, sizeof word);
    b->next = w->bound;
    w->bound = b;
    w->is_fresh = true;
}

void lp_rabbit_read_wakes(rabbit_waker *w)
{
    if (w->in.connection && lp_rabbit_drain(&w->in) < 0)
        note_trouble(w, lapse_error_detail());
    if (w->out.connection && lp_rabbit_drain(&w->out) < 0)
        note_trouble(w, lapse_error_detail());
    if (w->out.connection && w->out.blocked)
        note_trouble(w, w->out.blocked_for);
    else if (lp_rabbit_can_wake(w))
        *w->trouble = '\0';
}

/* -- Waking -- */

/* Whether what is sent now leaves this machine without waiting for the broker. */
static bool has_room(const rabbit_link *l)
{
    int unsent = 0;
    struct pollfd p = {.fd = l->fd, .events = POLLOUT};
    return ioctl(l->fd, SIOCOUTQ, &unsent) == 0 && unsent < UNSENT_MOST && poll(&p, 1, 0) == 1 &&
           p.revents & POLLOUT;
}

static int climb(rabbit_waker *w, int level)
{
    int code = LAPSE_OK;
    while (code == LAPSE_OK && w->levels <= level) {
        code = lp_rabbit_declare_level(&w->in, CHANNEL, w->prefix, w->levels);
        w->levels += code == LAPSE_OK;
    }
    return code;
}

/* Those of one turn that go the same way at the same time are one. */
void lp_rabbit_wake(rabbit_waker *w, const char *queue, lapse_ns delay, const rabbit_order *o)
{
    char word[LP_RABBIT_WORD_MAX + 1] = ALL, exchange[LP_RABBIT_NAME_MAX + 1];
    rabbit_route route;
    if (queue)
        lp_rabbit_word(word, queue);
    lp_rabbit_route(&route, lp_rabbit_steps(delay), word);
    if (!lp_rabbit_can_wake(w) || strcmp(w->last_key, route.key) == 0 || !has_room(&w->out) ||
        climb(w, route.level) < 0)
        return;
    if (route.level < 0)
        lp_rabbit_name(exchange, w->prefix, "deliver");
    else
        lp_rabbit_name_level(exchange, w->prefix, route.level);
    if (lp_rabbit_publish(&w->out, CHANNEL, exchange, route.key, o, 0) < 0)
        note_trouble(w, lapse_error_detail());
    else
        memcpy(w->last_key, route.key, sizeof route.key);
}
