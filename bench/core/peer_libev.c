/* peer_libev.c - orders on a libev loop.
 *
 * ev_timer counts from the loop's idea of now, so ev_now_update comes before each start:
 * else an order starts early by as much as the loop's time is old. */
#include <ev.h>
#include <stdio.h>

typedef ev_timer peer_timer;
#include "order.h"

static struct ev_loop *loop;

static void on_due(struct ev_loop *l, ev_timer *timer, int events)
{
    (void)l, (void)events;
    order *o = (order *)timer;
    order_take(o->id);
    bench_fired(o->id);
    free(o);
}

static void open_loop(void)
{
    idmap_init(&orders);
    loop = ev_loop_new(EVFLAG_AUTO);
    if (!loop)
        bench_die("libev: no loop");
}

static void schedule(const char *id, int64_t delay)
{
    order *o = order_new(id);
    pthread_mutex_lock(&lock);
    order_add(o);
    ev_now_update(loop);
    ev_timer_init(&o->timer, on_due, (double)delay / 1e9, 0);
    ev_timer_start(loop, &o->timer);
    pthread_mutex_unlock(&lock);
}

static bool cancel(const char *id)
{
    pthread_mutex_lock(&lock);
    order *o = order_take(id);
    if (o)
        ev_timer_stop(loop, &o->timer);
    pthread_mutex_unlock(&lock);
    free(o);
    return o != NULL;
}

static void turn(void)
{
    pthread_mutex_lock(&lock);
    ev_run(loop, EVRUN_NOWAIT);
    pthread_mutex_unlock(&lock);
}

static void run(void)
{
    ev_run(loop, 0);
}

static void close_loop(void)
{
    ev_loop_destroy(loop);
}

const bench_peer bench_peers[] = {
    {"libev", "throughput,late", open_loop, schedule, NULL, cancel, turn, run, close_loop, NULL},
    {0},
};

const char *bench_version(void)
{
    static char text[32];
    snprintf(text, sizeof text, "libev %d.%d", ev_version_major(), ev_version_minor());
    return text;
}
