/* peer_libuv.c - orders on a libuv loop.
 *
 * uv_timer_start counts from the loop's cached time, so uv_update_time comes first. A
 * handle may be freed only in its close callback, which the next turn of the loop calls. */
#include <stdio.h>
#include <uv.h>

typedef uv_timer_t peer_timer;
#include "order.h"

static uv_loop_t loop;

static void on_closed(uv_handle_t *handle)
{
    free(handle);
}

static void on_due(uv_timer_t *timer)
{
    order *o = (order *)timer;
    order_take(o->id);
    bench_fired(o->id);
    uv_close((uv_handle_t *)timer, on_closed);
}

static void open_loop(void)
{
    idmap_init(&orders);
    if (uv_loop_init(&loop) != 0)
        bench_die("libuv: no loop");
}

/* Rounded up to its milliseconds. */
static void schedule(const char *id, int64_t delay)
{
    order *o = order_new(id);
    pthread_mutex_lock(&lock);
    order_add(o);
    uv_update_time(&loop);
    uv_timer_init(&loop, &o->timer);
    uv_timer_start(&o->timer, on_due, (uint64_t)((delay + BENCH_MS - 1) / BENCH_MS), 0);
    pthread_mutex_unlock(&lock);
}

static bool cancel(const char *id)
{
    pthread_mutex_lock(&lock);
    order *o = order_take(id);
    if (o)
        uv_close((uv_handle_t *)&o->timer, on_closed);
    pthread_mutex_unlock(&lock);
    return o != NULL;
}

static void turn(void)
{
    pthread_mutex_lock(&lock);
    uv_run(&loop, UV_RUN_NOWAIT);
    pthread_mutex_unlock(&lock);
}

static void run(void)
{
    uv_run(&loop, UV_RUN_DEFAULT);
}

static void close_loop(void)
{
    uv_loop_close(&loop);
}

const bench_peer bench_peers[] = {
    {"libuv", "throughput,late", open_loop, schedule, NULL, cancel, turn, run, close_loop, NULL},
    {0},
};

const char *bench_version(void)
{
    static char text[32];
    snprintf(text, sizeof text, "libuv %s", uv_version_string());
    return text;
}
