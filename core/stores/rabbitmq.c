/* rabbitmq.c - orders in RabbitMQ: the store's table, opening, closing, connecting anew.
 *
 * rabbitmq.h says how orders travel, rabbitmq_turn.c what a turn is. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/wake.h"
#include "stores/rabbitmq.h"
#include "stores/rabbitmq_ticket.h"

/* -- Queues -- */

rabbit_queue *lp_rabbit_find_queue(const rabbit_store *d, const char *name)
{
    for (size_t i = 0; i < d->queue_count; i++)
        if (!d->queues[i]->is_shops && strcmp(d->queues[i]->name, name) == 0)
            return d->queues[i];
    return NULL;
}

static uint16_t channel_of(const rabbit_store *d, const rabbit_queue *q)
{
    if (q->is_shops)
        return LP_RABBIT_SHOP;
    if (d->queue_channels == 0)
        return LP_RABBIT_CONSUME;
    return (uint16_t)(LP_RABBIT_OF_QUEUES + q->number % d->queue_channels);
}

/* Of a new connection: nothing has come on any yet. */
static void deal_channels(rabbit_store *d)
{
    int most = amqp_get_channel_max(d->in.connection); /* 0: any number */
    most = most && most < LP_RABBIT_CHANNELS ? most : LP_RABBIT_CHANNELS;
    d->queue_channels = most >= LP_RABBIT_OF_QUEUES ? (size_t)(most - LP_RABBIT_OF_QUEUES + 1) : 0;
    for (size_t i = 0; i < d->queue_count; i++)
        d->queues[i]->channel = channel_of(d, d->queues[i]);
}

static rabbit_queue *new_queue(rabbit_store *d, const char *name)
{
    if (d->queue_count == d->queue_room) {
        size_t room = d->queue_room ? 2 * d->queue_room : 16;
        rabbit_queue **more = realloc(d->queues, room * sizeof *more);
        if (!more)
            return NULL;
        d->queues = more;
        d->queue_room = room;
    }
    rabbit_queue *q = calloc(1, sizeof *q);
    if (!q || !(q->name = strdup(name))) {
        free(q);
        return NULL;
    }
    lp_rabbit_word(q->word, name);
    lp_rabbit_name_work(q->work, d->settings.prefix, q->word);
    q->number = d->queue_count;
    q->channel = channel_of(d, q);
    d->queues[d->queue_count++] = q;
    return q;
}

rabbit_queue *lp_rabbit_queue(rabbit_store *d, const char *name)
{
    rabbit_queue *q = lp_rabbit_find_queue(d, name);
    return q ? q : new_queue(d, name);
}

int lp_rabbit_settles(rabbit_store *d, lapse_ns *out)
{
    int code = d->settings.settle == 0 ? 0
               : d->in.made            ? 1
                                       : lp_rabbit_is_young(&d->in, LP_RABBIT_DECLARE);
    *out = code == 1 ? lp_add_ns(lp_clock_monotonic(), d->settings.settle) : 0;
    return code < 0 ? code : LAPSE_OK;
}

int lp_rabbit_use_base(rabbit_store *d)
{
    if (d->base_is_declared)
        return LAPSE_OK;
    d->in.made = false;
    int code = lp_rabbit_declare_base(&d->in, LP_RABBIT_DECLARE, d->settings.prefix);
    if (code == LAPSE_OK)
        code = lp_rabbit_settles(d, &d->dead_settles);
    d->base_is_declared = code == LAPSE_OK;
    return code;
}

static int use_shops(rabbit_store *d, rabbit_queue *q)
{
    int code = lp_rabbit_find_work(d);
    q->is_declared = code == LAPSE_OK;
    if (code == LAPSE_EDATA)
        lp_rabbit_note_work(d, q);
    return code;
}

int lp_rabbit_use_queue(rabbit_store *d, rabbit_queue *q)
{
    if (q->is_declared)
        return LAPSE_OK;
    if (q->is_shops)
        return use_shops(d, q);
    int code = lp_rabbit_use_base(d);
    d->in.made = false;
    if (code == LAPSE_OK)
        code = lp_rabbit_declare_work(&d->in, LP_RABBIT_DECLARE, d->settings.prefix, q->word);
    if (code == LAPSE_OK)
        code = lp_rabbit_settles(d, &q->settles);
    q->is_declared = code == LAPSE_OK;
    if (q->is_declared) {
        d->brings_back = true;
        d->bring_back_at = q->settles > d->bring_back_at ? q->settles : d->bring_back_at;
    }
    return code;
}

void lp_rabbit_forget_topology(rabbit_store *d)
{
    d->base_is_declared = false;
    d->levels = 0;
    memset(d->delays.is_declared, 0, sizeof d->delays.is_declared);
    for (size_t i = 0; i < d->queue_count; i++)
        d->queues[i]->is_declared = false;
}

static void free_queues(rabbit_store *d)
{
    for (size_t i = 0; i < d->queue_count; i++) {
        free(d->queues[i]->name);
        free(d->queues[i]->consumers);
        free(d->queues[i]);
    }
    free(d->queues);
}

/* -- What arrives on the links -- */

static void out_message(void *arg, rabbit_message *m)
{
    if (m->returned)
        lp_rabbit_note_returned(arg, m->number);
    lp_rabbit_free_message(m);
}

static void out_confirmed(void *arg, uint64_t number, bool multiple, bool accepted)
{
    rabbit_store *d = arg;
    lp_rabbit_note_confirm(d, d->channel_first + number, multiple, accepted);
}

static void out_closed(void *arg, uint16_t channel)
{
    (void)channel;
    ((rabbit_store *)arg)->out_closed = true;
}

static void in_message(void *arg, rabbit_message *m)
{
    lp_rabbit_take_in(arg, m);
}

static void in_closed(void *arg, uint16_t channel)
{
    ((rabbit_store *)arg)->in_closed[channel] = true;
}

static void no_confirm(void *arg, uint64_t number, bool multiple, bool accepted)
{
    (void)arg, (void)number, (void)multiple, (void)accepted;
}

static void in_cancelled(void *arg, const char *consumer)
{
    lp_rabbit_consumer_gone(arg, consumer);
}

static void no_cancel(void *arg, const char *consumer)
{
    (void)arg, (void)consumer;
}

static const rabbit_ears out_ears = {out_message, out_confirmed, no_cancel, out_closed};
static const rabbit_ears in_ears = {in_message, no_confirm, in_cancelled, in_closed};

static void drop_looked(rabbit_store *d)
{
    while (d->looked) {
        rabbit_message *m = d->looked;
        d->looked = m->next;
        lp_rabbit_free_message(m);
    }
    lp_rabbit_forget_walk(d);
}

/* A channel that the broker has closed, as one whose consumer took too long, has lost what was
 * delivered on it; so has a connection that was lost. */
void lp_rabbit_note_losses(rabbit_store *d)
{
    if (!d->out.connection || d->out_closed)
        lp_rabbit_lose_sent(d);
    if (d->out_closed)
        (void)lp_rabbit_reopen_out(d);
    for (int channel = 1; channel <= LP_RABBIT_CHANNELS; channel++) {
        if (d->in.connection && !d->in_closed[channel])
            continue;
        d->in_closed[channel] = false;
        lp_rabbit_lose_held(d, (uint16_t)channel);
        if (channel == LP_RABBIT_LOOK)
            drop_looked(d);
    }
}

void lp_rabbit_breathe(rabbit_store *d)
{
    lapse_ns now = lp_clock_monotonic();
    if (now - d->breathed_at < d->settings.heartbeat / 4)
        return;
    d->breathed_at = now;
    if (d->in.connection)
        (void)lp_rabbit_drain(&d->in);
    if (d->out.connection)
        (void)lp_rabbit_drain(&d->out);
}

/* -- Links -- */

static int watch(const rabbit_store *d, int fd)
{
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
    return epoll_ctl(d->watch, EPOLL_CTL_ADD, fd, &event) == 0
               ? LAPSE_OK
               : lp_fail(LAPSE_ESYSTEM, "no descriptor can be watched for RabbitMQ");
}

static int watch_link(const rabbit_store *d, rabbit_link *l)
{
    int code = watch(d, l->fd);
    l->watch = code == LAPSE_OK ? d->watch : -1;
    return code;
}

/* The broker counts what it confirms from the channel's beginning. */
static int confirm_publishes(rabbit_store *d)
{
    amqp_confirm_select_t m = {.nowait = 0};
    d->channel_first = d->published;
    d->body_taken = 0;
    return lp_rabbit_call(&d->out, LP_RABBIT_PUBLISH, AMQP_CONFIRM_SELECT_METHOD, &m,
                          AMQP_CONFIRM_SELECT_OK_METHOD, 0);
}

int lp_rabbit_reopen_out(rabbit_store *d)
{
    if (d->out.connection && d->out.closed_code == AMQP_NOT_FOUND)
        lp_rabbit_forget_topology(d); /* Somebody has deleted an exchange. */
    int code = confirm_publishes(d);
    d->out_closed = false;
    if (code < 0)
        lp_rabbit_disconnect(&d->out, false);
    return code;
}

static int open_out(rabbit_store *d)
{
    d->out_closed = false;
    d->body_most = SIZE_MAX;
    int code = lp_rabbit_connect(&d->out, &d->settings, &out_ears, d);
    if (code == LAPSE_OK)
        code = confirm_publishes(d);
    d->links_made++;
    return code < 0 ? code : watch_link(d, &d->out);
}

static int open_in(rabbit_store *d)
{
    int code = lp_rabbit_connect(&d->in, &d->settings, &in_ears, d);
    lp_rabbit_forget_topology(d);
    if (code == LAPSE_OK) {
        deal_channels(d);
        code = lp_rabbit_use_base(d);
    }
    d->links_made++;
    return code < 0 ? code : watch_link(d, &d->in);
}

int lp_rabbit_open_links(rabbit_store *d)
{
    int code = LAPSE_OK;
    lp_rabbit_note_losses(d);
    if (!d->out.connection)
        lp_rabbit_flush(d); /* Nothing is under way any more. */
    if (!d->in.connection)
        code = open_in(d);
    if (code == LAPSE_OK && !d->out.connection)
        code = open_out(d);
    if (code == LAPSE_OK)
        return LAPSE_OK;
    lp_detail kept;
    lp_detail_save(&kept);
    if (!d->out.connection || code != LAPSE_EOFFLINE)
        lp_rabbit_close_links(d, false);
    lp_detail_restore(&kept);
    return code;
}

void lp_rabbit_close_links(rabbit_store *d, bool politely)
{
    lp_rabbit_disconnect(&d->out, politely);
    lp_rabbit_disconnect(&d->in, politely);
    lp_rabbit_note_losses(d);
}

/* -- What is worth a warning -- */

static int check(rabbit_store *d)
{
    char name[LP_RABBIT_NAME_MAX + 1];
    uint64_t lost;
    lp_rabbit_name(name, d->settings.prefix, "unrouted");
    int code = lp_rabbit_count(&d->in, LP_RABBIT_DECLARE, name, &lost);
    if (code == LAPSE_OK && lost)
        snprintf(
            d->warnings[d->warning_count++], LP_RABBIT_WARNING_MAX,
            "%llu orders stand in %.80s: the queues they were for have been deleted; move them "
            "to where they belong, or purge it",
            (unsigned long long)lost, name);
    return code;
}

/* -- The table -- */

static void free_store(rabbit_store *d)
{
    lp_rabbit_close_links(d, false);
    free_queues(d);
    free(d->sent);
    if (d->watch >= 0)
        close(d->watch);
    if (d->timer >= 0)
        lp_wake_close(d->timer);
    lp_rabbit_free_settings(&d->settings);
    free(d);
}

/* What takes the place of these is not safe yet. */
static void await_replaced(rabbit_store *d)
{
    while (d->in.connection && d->replaced) {
        lapse_ns left = lp_rabbit_next_replaced(d) - lp_clock_monotonic();
        if (left > 0)
            lp_wake_pause(left);
        (void)lp_rabbit_drain(&d->in);
        lp_rabbit_note_losses(d);
        if (d->in.connection)
            (void)lp_rabbit_finish_replaced(d);
    }
}

static void return_all(rabbit_store *d, const lp_turn *now)
{
    if (lp_rabbit_return_ready(d, now) >= 0)
        lp_rabbit_flush(d);
    await_replaced(d);
}

/* What was delivered and not started goes back, with what it counts as. */
static void close_store(lp_durable *durable)
{
    rabbit_store *d = (rabbit_store *)durable;
    const lp_turn now = {.now = lp_clock_now(NULL), .wall = lp_clock_wall(NULL)};
    if (d->in.connection && d->out.connection && !d->config.manual &&
        lp_rabbit_end_consumers(d) >= 0)
        return_all(d, &now);
    await_replaced(d);
    if (d->in.connection && d->out.connection && lp_rabbit_pass_acks_on(d) > 0)
        return_all(d, &now);
    lp_rabbit_close_links(d, true);
    free_store(d);
}

static int open_descriptors(rabbit_store *d)
{
    d->watch = epoll_create1(EPOLL_CLOEXEC);
    d->timer = lp_wake_open();
    if (d->watch < 0 || d->timer < 0)
        return lp_fail(LAPSE_ESYSTEM, "no descriptor is left for RabbitMQ");
    return watch(d, d->timer);
}

/* Beside that of lapse, of the same name. */
static int add_shops_queue(rabbit_store *d)
{
    const rabbit_shop *shop = &d->settings.shop;
    if (!shop->work)
        return LAPSE_OK;
    rabbit_queue *own = lp_rabbit_queue(d, shop->queue);
    rabbit_queue *q = own ? new_queue(d, shop->queue) : NULL;
    if (!q)
        return lp_fail_memory();
    q->is_shops = true;
    q->channel = channel_of(d, q);
    snprintf(q->work, sizeof q->work, "%s", shop->work);
    return LAPSE_OK;
}

static int set_up(rabbit_store *d, const lp_store_config *config)
{
    d->config = *config;
    d->config.url = NULL; /* the caller's */
    d->ahead = lp_sum_ns(config->wall, -config->now);
    if (config->manual)
        d->settings.settle = 0;
    /* A call must be answered within a third of the lease: the new is then waited for less. */
    if (d->settings.settle > config->lease / 6)
        d->settings.settle = config->lease / 6;
    /* A turn that waits must not outlast the leases that it would renew. */
    if (d->settings.timeout > config->lease / 3)
        d->settings.timeout = config->lease / 3;
    d->delays.fixed_count = d->settings.fixed_count;
    memcpy(d->delays.fixed, d->settings.fixed, sizeof d->delays.fixed);
    int code = open_descriptors(d);
    if (code == LAPSE_OK)
        code = add_shops_queue(d);
    if (code == LAPSE_OK)
        code = lp_rabbit_open_links(d);
    if (code == LAPSE_OK)
        code = lp_rabbit_find_shop(d);
    return code < 0 ? code : check(d);
}

static int open_alone(const lp_store_config *config, rabbit_settings *settings, lp_durable **out)
{
    rabbit_store *d = calloc(1, sizeof *d);
    if (!d) {
        lp_rabbit_free_settings(settings);
        return lp_fail_memory();
    }
    d->base.ops = &lp_rabbitmq_store;
    d->watch = d->timer = -1;
    d->settings = *settings;
    int code = set_up(d, config);
    if (code < 0) {
        lp_detail kept;
        lp_detail_save(&kept);
        free_store(d);
        lp_detail_restore(&kept);
        return code;
    }
    *out = &d->base;
    return LAPSE_OK;
}

static int open_store(lp_store_config *config, lp_durable **out)
{
    rabbit_settings settings;
    int code = lp_rabbit_read_url(config, &settings);
    if (code == LAPSE_OK && settings.ticket)
        return lp_rabbit_open_ticket(config, &settings, out);
    if (code == LAPSE_OK)
        return open_alone(config, &settings, out);
    lp_rabbit_free_settings(&settings);
    return code;
}

static int turn(lp_durable *durable, lp_turn *t)
{
    return lp_rabbit_turn((rabbit_store *)durable, t);
}

static int hint_fd(lp_durable *durable)
{
    return ((const rabbit_store *)durable)->watch;
}

/* Heartbeats go out while it is read, whether anything has come or not. */
static void hinted(lp_durable *durable)
{
    rabbit_store *d = (rabbit_store *)durable;
    if (d->in.connection)
        (void)lp_rabbit_drain(&d->in);
    if (d->out.connection)
        (void)lp_rabbit_drain(&d->out);
    lp_wake_at(d->timer, lp_add_ns(lp_clock_now(NULL), d->settings.heartbeat / 2));
}

/* What the client library has read from a socket makes no descriptor readable. */
static bool sleeps(lp_durable *durable, lapse_ns next, lapse_ns now)
{
    const rabbit_store *d = (rabbit_store *)durable;
    (void)next, (void)now;
    return lp_rabbit_has_input(&d->in) || lp_rabbit_has_input(&d->out);
}

static lapse_ns poll_every(const lp_durable *durable)
{
    return ((const rabbit_store *)durable)->settings.poll;
}

static const char *warning(const lp_durable *durable, int n)
{
    const rabbit_store *d = (const rabbit_store *)durable;
    return n < d->warning_count ? d->warnings[n] : NULL;
}

static const char *trouble(const lp_durable *durable)
{
    const rabbit_store *d = (const rabbit_store *)durable;
    return *d->trouble ? d->trouble : NULL;
}

const lp_durable_ops lp_rabbitmq_store = {
    .scheme = "amqp",
    .abilities = LAPSE_CAN_DURABLE | LAPSE_CAN_SHARE,
    .open = open_store,
    .close = close_store,
    .turn = turn,
    .hint_fd = hint_fd,
    .hinted = hinted,
    .sleeps = sleeps,
    .poll = poll_every,
    .warning = warning,
    .trouble = trouble,
};
