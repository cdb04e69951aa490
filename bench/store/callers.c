/* callers.c - schedule and cancel: some callers, each of which waits until its order is kept
 * for good before it makes the next call. */
#include <stdlib.h>
#include <string.h>

#include "../core/measure.h"
#include "workload.h"

enum {
    CALLERS_MAX = 64,
    BATCH = 100,        /* orders a call in `many` */
    CANCELLED = 20000,  /* orders to cancel, at most */
    CALLS_MAX = 400000, /* times that are noted of one caller */
};

static const int64_t DURATION = 1500 * BENCH_MS;

typedef struct caller {
    const store_peer *peer;
    void *link;
    uint64_t seed;
    int64_t until;
    size_t calls;
    uint32_t *took;                 /* ns of each call */
    bool (*call)(struct caller *c); /* false: there is nothing left to do */
    /* cancel: */
    store_order *orders;
    size_t order_count;
    /* many: */
    uint64_t next;
} caller;

static void *call_until(void *arg)
{
    caller *c = arg;
    int64_t now = wall_ns();
    while (now < c->until && c->calls < CALLS_MAX && c->call(c))
        now = wall_ns();
    return NULL;
}

/* A call, timed. */
static void note(caller *c, int64_t start)
{
    int64_t took = wall_ns() - start;
    c->took[c->calls++] = took > UINT32_MAX ? UINT32_MAX : (uint32_t)took;
}

static bool schedule_one(caller *c)
{
    store_order order;
    make_order(&order, &c->seed);
    int64_t start = wall_ns();
    c->peer->put(c->link, &order, 1);
    note(c, start);
    return true;
}

static bool schedule_many(caller *c)
{
    store_order orders[BATCH];
    for (size_t i = 0; i < BATCH; i++)
        make_numbered(&orders[i], c->next++, BENCH_DELAY);
    int64_t start = wall_ns();
    c->peer->put(c->link, orders, BATCH);
    note(c, start);
    return true;
}

static bool cancel_one(caller *c)
{
    if (c->calls == c->order_count)
        return false;
    const store_order *order = &c->orders[c->calls];
    int64_t start = wall_ns();
    if (!c->peer->cancel(c->link, order))
        bench_die("%s: %s could not be cancelled", c->peer->name, order->id);
    note(c, start);
    return true;
}

/* -- Results -- */

static int by_size(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static void add_results(const caller *callers, unsigned count, int64_t spent, size_t batch,
                        const char *figure)
{
    size_t calls = 0, at = 0;
    for (unsigned i = 0; i < count; i++)
        calls += callers[i].calls;
    if (!calls)
        bench_die("not one call was answered in time");
    uint32_t *took = bench_alloc(calls, sizeof *took);
    for (unsigned i = 0; i < count; at += callers[i++].calls)
        memcpy(took + at, callers[i].took, callers[i].calls * sizeof *took);
    qsort(took, calls, sizeof *took, by_size);
    result_add(figure, (double)spent / (double)(calls * batch));
    result_add("per_s", (double)(calls * batch) * (double)BENCH_SECOND / (double)spent);
    result_add("p50_us", took[calls / 2] * 1e-3);
    result_add("p99_us", took[calls - 1 - calls / 100] * 1e-3);
    free(took);
}

/* -- Workloads -- */

static void connect_all(const store_peer *peer, caller *callers, unsigned count, uint64_t seed,
                        bool (*call)(caller *))
{
    for (unsigned i = 0; i < count; i++)
        callers[i] = (caller){.peer = peer,
                              .link = peer->connect(),
                              .seed = seed * 1000 + i,
                              .took = bench_alloc(CALLS_MAX, sizeof(uint32_t)),
                              .call = call};
}

static int64_t call(caller *callers, unsigned count)
{
    void *args[CALLERS_MAX];
    int64_t start = wall_ns();
    for (unsigned i = 0; i < count; i++) {
        callers[i].until = start + DURATION;
        args[i] = &callers[i];
    }
    run_threads(count, call_until, args);
    return wall_ns() - start;
}

static void disconnect_all(const store_peer *peer, caller *callers, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        peer->disconnect(callers[i].link);
        free(callers[i].took);
    }
}

static void run_callers(const store_peer *peer, size_t n, uint64_t seed, unsigned count,
                        size_t batch, bool (*kind)(caller *))
{
    caller callers[CALLERS_MAX];
    const char *folder = folder_make(peer, n);
    peer->start(folder, STORE_MEASURE);
    peer->join();
    connect_all(peer, callers, count, seed, kind);
    int64_t spent = call(callers, count);
    add_results(callers, count, spent, batch, "schedule_ns");
    disconnect_all(peer, callers, count);
    peer->leave();
    peer->stop();
    folder_remove(folder);
}

void run_callers_1(const store_peer *peer, size_t n, uint64_t seed)
{
    run_callers(peer, n, seed, 1, 1, schedule_one);
}

void run_callers_16(const store_peer *peer, size_t n, uint64_t seed)
{
    run_callers(peer, n, seed, 16, 1, schedule_one);
}

void run_callers_64(const store_peer *peer, size_t n, uint64_t seed)
{
    run_callers(peer, n, seed, 64, 1, schedule_one);
}

void run_many(const store_peer *peer, size_t n, uint64_t seed)
{
    run_callers(peer, n, seed, 1, BATCH, schedule_many);
}

static store_order *put_orders(const store_peer *peer, const char *folder, uint64_t seed)
{
    store_order *orders = bench_alloc(CANCELLED, sizeof *orders);
    for (size_t i = 0; i < CANCELLED; i++)
        make_order(&orders[i], &seed);
    peer->start(folder, STORE_FILL);
    peer->join();
    void *link = peer->connect();
    for (size_t i = 0; i < CANCELLED; i += STORE_BATCH)
        peer->put(link, orders + i, CANCELLED - i < STORE_BATCH ? CANCELLED - i : STORE_BATCH);
    peer->disconnect(link);
    peer->leave();
    peer->stop();
    return orders;
}

/* In the order in which they were scheduled, each caller its own share. */
void run_cancel(const store_peer *peer, size_t n, uint64_t seed)
{
    caller callers[CALLERS_MAX];
    const char *folder = folder_make(peer, n);
    store_order *orders = put_orders(peer, folder, seed << 32);
    peer->start(folder, STORE_MEASURE);
    peer->join();
    connect_all(peer, callers, CALLERS_MAX, seed, cancel_one);
    size_t share = CANCELLED / CALLERS_MAX;
    for (size_t i = 0; i < CALLERS_MAX; i++) {
        callers[i].orders = orders + i * share;
        callers[i].order_count = share;
    }
    int64_t spent = call(callers, CALLERS_MAX);
    add_results(callers, CALLERS_MAX, spent, 1, "cancel_ns");
    disconnect_all(peer, callers, CALLERS_MAX);
    peer->leave();
    peer->stop();
    folder_remove(folder);
    free(orders);
}
