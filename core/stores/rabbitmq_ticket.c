/* rabbitmq_ticket.c - RabbitMQ wakes, another store keeps the orders.
 *
 * Every job and every claim goes to the store that the URL's ticket= names: what it answers is the
 * answer. After that a message is sent that comes when the order falls due, and shortens the wait
 * of those who could start it (rabbitmq_wake.c). So nothing is lost, started twice or early by what
 * happens to RabbitMQ; without it an order starts late by the poll bound at most, which is then
 * that of the other store. */
#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/wake.h"
#include "stores/rabbitmq.h"
#include "stores/rabbitmq_ticket.h"
#include "stores/table.h"

typedef struct ticket_store {
    lp_durable base;    /* first */
    lp_durable_ops ops; /* base.ops: with the abilities of the store inside */
    lp_durable *inside;
    rabbit_waker waker;
    lapse_ns poll;
    atomic_bool wakes; /* for `poll`, which others ask too */
    int watch, timer;  /* epoll over all that may be readable: the driver's hint */
} ticket_store;

static ticket_store *of(lp_durable *d)
{
    return (ticket_store *)d;
}

/* -- Hints -- */

/* The kernel forgets a descriptor that is closed, and another may have its number now. */
static void look_at(const ticket_store *d, int fd)
{
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
    if (fd >= 0 && epoll_ctl(d->watch, EPOLL_CTL_MOD, fd, &event) != 0)
        (void)epoll_ctl(d->watch, EPOLL_CTL_ADD, fd, &event);
}

static void look_at_link(const ticket_store *d, rabbit_link *l)
{
    look_at(d, l->fd);
    l->watch = l->fd >= 0 ? d->watch : -1;
}

static int hint_fd(lp_durable *durable)
{
    ticket_store *d = of(durable);
    look_at(d, d->inside->ops->hint_fd(d->inside));
    look_at_link(d, &d->waker.in);
    look_at_link(d, &d->waker.out);
    return d->watch;
}

static void note_waker(ticket_store *d)
{
    atomic_store(&d->wakes, lp_rabbit_can_wake(&d->waker));
    lp_wake_at(d->timer, lp_add_ns(lp_clock_now(NULL), d->waker.settings.heartbeat / 2));
}

static void hinted(lp_durable *durable)
{
    ticket_store *d = of(durable);
    struct pollfd p = {.fd = d->inside->ops->hint_fd(d->inside), .events = POLLIN};
    if (p.fd >= 0 && poll(&p, 1, 0) == 1)
        d->inside->ops->hinted(d->inside);
    lp_rabbit_read_wakes(&d->waker);
    note_waker(d);
}

/* What the client library has read from a socket makes no descriptor readable; what others have
 * scheduled between our look and our binding has woken nobody; and a wake-up that came after the look
 * has been read in the same turn. */
static bool sleeps(lp_durable *durable, lapse_ns next, lapse_ns now)
{
    ticket_store *d = of(durable);
    bool missed = lp_rabbit_has_input(&d->waker.in) || lp_rabbit_has_input(&d->waker.out) ||
                  d->waker.is_fresh;
    d->waker.is_fresh = false;
    return d->inside->ops->sleeps(d->inside, next, now) || missed;
}

static lapse_ns poll_every(const lp_durable *durable)
{
    const ticket_store *d = (const ticket_store *)durable;
    lapse_ns inside = d->inside->ops->poll(d->inside);
    return atomic_load(&d->wakes) || d->poll < inside ? d->poll : inside;
}

static const char *trouble(const lp_durable *durable)
{
    const ticket_store *d = (const ticket_store *)durable;
    const char *inside = d->inside->ops->trouble ? d->inside->ops->trouble(d->inside) : NULL;
    return inside ? inside : *d->waker.trouble ? d->waker.trouble : NULL;
}

static const char *warning(const lp_durable *durable, int n)
{
    const ticket_store *d = (const ticket_store *)durable;
    return d->inside->ops->warning(d->inside, n);
}

/* -- Turns -- */

/* Whether an order can start at `*at` from now on that could not before. */
static bool can_start(const lp_job *j, lapse_ns *at)
{
    *at = j->due;
    switch (j->op) {
    case LP_SCHEDULE:
    case LP_REQUEUE:
        return j->answer > 0;
    case LP_RESCHEDULE:
        return j->answer == LAPSE_FATE_RESCHEDULED;
    case LP_AGAIN:
        *at = j->at > j->due ? j->at : j->due;
        return j->answer == 0;
    default:
        return false;
    }
}

static void wake_for(ticket_store *d, const lp_turn *t, const lp_job *j, lapse_ns at)
{
    lapse_ns utc = lp_sum_ns(lp_sum_ns(at, -t->now), t->wall);
    const char *queue = j->op == LP_SCHEDULE ? j->queue : NULL; /* Of the others it is not known. */
    const rabbit_order o = {.id = j->id ? j->id : "",
                            .id_len = j->id ? j->id_len : 0,
                            .queue = queue ? queue : "",
                            .due = utc,
                            .generation = j->op == LP_SCHEDULE ? j->answer : 0};
    lp_rabbit_wake(&d->waker, queue, lp_sum_ns(at, -t->now), &o);
}

static void wait_for_wants(ticket_store *d, const lp_turn *t)
{
    for (size_t i = 0; i < t->want_count; i++) {
        const lp_want *w = &t->wants[i];
        if (w->others)
            lp_rabbit_wait_for(&d->waker, NULL);
        for (size_t k = 0; !w->others && k < w->queue_count; k++)
            lp_rabbit_wait_for(&d->waker, w->queues[k]);
    }
}

/* Once the orders are kept: whatever becomes of this, they start. */
static void see_to_waker(ticket_store *d, const lp_turn *t)
{
    lp_detail kept;
    lp_detail_save(&kept);
    lp_rabbit_read_wakes(&d->waker);
    if (lp_rabbit_keep_waker(&d->waker) == LAPSE_OK) {
        lapse_ns at;
        wait_for_wants(d, t);
        *d->waker.last_key = '\0';
        for (size_t i = 0; i < t->job_count; i++)
            if (can_start(t->jobs[i], &at))
                wake_for(d, t, t->jobs[i], at);
    }
    note_waker(d);
    lp_detail_restore(&kept);
}

static int turn(lp_durable *durable, lp_turn *t)
{
    ticket_store *d = of(durable);
    d->waker.is_fresh = false;
    int code = d->inside->ops->turn(d->inside, t);
    if (code == LAPSE_OK)
        see_to_waker(d, t);
    return code;
}

static int reconnect(lp_durable *durable)
{
    ticket_store *d = of(durable);
    return d->inside->ops->reconnect(d->inside);
}

/* -- Opening -- */

static void close_store(lp_durable *durable)
{
    ticket_store *d = of(durable);
    if (d->inside)
        d->inside->ops->close(d->inside);
    lp_rabbit_close_waker(&d->waker);
    if (d->watch >= 0)
        close(d->watch);
    if (d->timer >= 0)
        lp_wake_close(d->timer);
    free(d);
}

static int open_inside(ticket_store *d, lp_store_config *config, const char *url)
{
    lp_store_kind kind = {NULL, NULL};
    int code = strchr(url, ':') ? lp_store_find(url, &kind) : LAPSE_OK; /* Else it is no URL. */
    if (code < 0)
        return code;
    if (!kind.durable || strncmp(url, "amqp", 4) == 0)
        return lp_fail(LAPSE_EURL, "ticket= names a store that keeps the orders while RabbitMQ "
                                   "wakes: use sqlite:, postgresql: or redis:");
    const char *given = config->url;
    config->url = url;
    code = kind.durable->open(config, &d->inside);
    config->url = given;
    return code;
}

static const lp_durable_ops table = {
    .scheme = "amqp",
    .close = close_store,
    .turn = turn,
    .hint_fd = hint_fd,
    .hinted = hinted,
    .sleeps = sleeps,
    .poll = poll_every,
    .trouble = trouble,
};

static void inherit(ticket_store *d)
{
    const lp_durable_ops *inside = d->inside->ops;
    d->ops.abilities = inside->abilities;
    d->ops.reconnect = inside->reconnect ? reconnect : NULL;
    d->ops.warning = inside->warning ? warning : NULL;
}

static int open_descriptors(ticket_store *d)
{
    d->watch = epoll_create1(EPOLL_CLOEXEC);
    d->timer = lp_wake_open();
    if (d->watch < 0 || d->timer < 0)
        return lp_fail(LAPSE_ESYSTEM, "no descriptor is left for RabbitMQ");
    look_at(d, d->timer);
    return LAPSE_OK;
}

static int set_up(ticket_store *d, lp_store_config *config, rabbit_settings *settings)
{
    d->poll = settings->poll;
    int code = open_inside(d, config, settings->ticket);
    if (code == LAPSE_OK)
        code = open_descriptors(d);
    if (code == LAPSE_OK)
        code = lp_rabbit_open_waker(&d->waker, settings);
    if (code < 0)
        return code;
    inherit(d);
    note_waker(d);
    return LAPSE_OK;
}

int lp_rabbit_open_ticket(lp_store_config *config, rabbit_settings *settings, lp_durable **out)
{
    ticket_store *d = calloc(1, sizeof *d);
    int code = d ? LAPSE_OK : lp_fail_memory();
    if (d) {
        d->ops = table;
        d->base.ops = &d->ops;
        d->watch = d->timer = d->waker.in.fd = d->waker.out.fd = -1;
        code = set_up(d, config, settings);
    }
    lp_rabbit_free_settings(settings);
    if (code < 0) {
        lp_detail kept;
        lp_detail_save(&kept);
        if (d)
            close_store(&d->base);
        lp_detail_restore(&kept);
        return code;
    }
    *out = &d->base;
    return LAPSE_OK;
}
