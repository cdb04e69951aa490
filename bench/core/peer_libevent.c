/* peer_libevent.c - orders on a libevent base, in three ways.
 *
 * libevent          the default: event_add reads the coarse clock, which runs behind
 * libevent-precise  EVENT_BASE_FLAG_PRECISE_TIMER: the exact clock and a timerfd
 * libevent-common   the default with the half hour registered as a common timeout, an
 *                   O(1) queue; of use only where every delay is the same */
#include <event2/event.h>
#include <event2/event_struct.h>
#include <stdio.h>

typedef struct event peer_timer;
#include "order.h"

static struct event_base *base;
static const struct timeval *common; /* NULL: delays go to the heap */

static void on_due(evutil_socket_t fd, short events, void *arg)
{
    (void)fd, (void)events;
    order *o = arg;
    order_take(o->id);
    bench_fired(o->id);
    free(o);
}

static void open_base(void)
{
    idmap_init(&orders);
    base = event_base_new();
    if (!base)
        bench_die("libevent: no base");
}

static void open_precise(void)
{
    idmap_init(&orders);
    struct event_config *config = event_config_new();
    event_config_set_flag(config, EVENT_BASE_FLAG_PRECISE_TIMER);
    base = event_base_new_with_config(config);
    event_config_free(config);
    if (!base)
        bench_die("libevent: no base");
}

static void open_common(void)
{
    open_base();
    common = event_base_init_common_timeout(base, &(struct timeval){BENCH_DELAY / BENCH_SECOND, 0});
    if (!common)
        bench_die("libevent: no common timeout");
}

static void schedule_in(const char *id, const struct timeval *delay)
{
    order *o = order_new(id);
    pthread_mutex_lock(&lock);
    order_add(o);
    evtimer_assign(&o->timer, base, on_due, o);
    evtimer_add(&o->timer, delay);
    pthread_mutex_unlock(&lock);
}

/* Rounded up to its microseconds. */
static void schedule(const char *id, int64_t delay)
{
    int64_t us = (delay + 999) / 1000;
    schedule_in(id, &(struct timeval){us / 1000000, us % 1000000});
}

static void schedule_common(const char *id, int64_t delay)
{
    if (delay != BENCH_DELAY)
        bench_die("libevent-common has one delay only");
    schedule_in(id, common);
}

static bool cancel(const char *id)
{
    pthread_mutex_lock(&lock);
    order *o = order_take(id);
    if (o)
        evtimer_del(&o->timer);
    pthread_mutex_unlock(&lock);
    free(o);
    return o != NULL;
}

static void turn(void)
{
    pthread_mutex_lock(&lock);
    event_base_loop(base, EVLOOP_NONBLOCK);
    pthread_mutex_unlock(&lock);
}

static void run(void)
{
    event_base_dispatch(base);
}

static void close_base(void)
{
    event_base_free(base);
}

const bench_peer bench_peers[] = {
    {"libevent", "throughput,late", open_base, schedule, NULL, cancel, turn, run, close_base, NULL},
    {"libevent-precise", "late", open_precise, schedule, NULL, cancel, turn, run, close_base, NULL},
    {"libevent-common", "fixed", open_common, schedule_common, NULL, cancel, turn, run, close_base,
     NULL},
    {0},
};

const char *bench_version(void)
{
    static char text[64];
    snprintf(text, sizeof text, "libevent %s", event_get_version());
    return text;
}
