/* peer_lapse.c - orders in the sqlite: store, through lapse's public header only. */
#include <lapse.h>
#include <stdio.h>
#include <time.h>

#include "../core/bench.h"
#include "store.h"

static char url[600];
static lapse *scheduler;

static void check(const char *what, int64_t result)
{
    if (result < 0)
        bench_die("%s: %s (%s)", what, lapse_error_name((int)result), lapse_error_detail());
}

static void start(const char *folder, store_use use)
{
    (void)use;
    snprintf(url, sizeof url, "sqlite:///%s/orders.db", folder);
}

static void stop(void) {}

static void join(void)
{
    check("lapse_open", lapse_open(url, NULL, &scheduler));
}

static void leave(void)
{
    check("lapse_close", lapse_close(scheduler, LAPSE_SECONDS(10)));
}

static void *connect_(void)
{
    return scheduler;
}

static void disconnect(void *link)
{
    (void)link;
}

static lapse_spec spec_of(const store_order *order)
{
    return (lapse_spec){.id = order->id,
                        .queue = "close_unpaid",
                        .delay = order->delay,
                        .payload = order->payload,
                        .payload_len = order->payload_len};
}

static void put(void *link, store_order *orders, size_t count)
{
    lapse_spec specs[STORE_BATCH] = {spec_of(orders)};
    int64_t results[STORE_BATCH];
    if (count == 1) {
        check("lapse_put", lapse_put(link, specs));
        return;
    }
    for (size_t i = 1; i < count; i++)
        specs[i] = spec_of(&orders[i]);
    check("lapse_schedule_many", lapse_schedule_many(link, specs, count, results));
    for (size_t i = 0; i < count; i++)
        check("lapse_schedule_many", results[i]);
}

static bool cancel(void *link, const store_order *order)
{
    return lapse_cancel(link, order->id, LAPSE_ANY) == LAPSE_FATE_CANCELLED;
}

static bool take_one(void *link, char id[40])
{
    const lapse_order *order;
    int found = lapse_take(link, "close_unpaid", LAPSE_MS(100), &order);
    check("lapse_take", found);
    if (found == 0)
        return false;
    snprintf(id, 40, "%s", order->id);
    check("lapse_settle", lapse_settle(link, order->fence, LAPSE_DONE, -1, NULL));
    return true;
}

static lapse_verdict on_due(const lapse_order *order, void *arg)
{
    (void)arg;
    work_done(order->id);
    return LAPSE_DONE;
}

static void handle(unsigned threads)
{
    check("lapse_handle", lapse_handle(scheduler, "close_unpaid", on_due, NULL, NULL, NULL));
    check("lapse_start", lapse_start(scheduler, threads));
    while (!work_is_over())
        nanosleep(&(struct timespec){.tv_nsec = 2 * BENCH_MS}, NULL);
    lapse_stop(scheduler);
}

#define LAPSE_PEER(name_, groups_)                                                                 \
    .name = (name_), .kind = "lapse", .groups = (groups_), .start = start, .stop = stop,           \
    .join = join, .leave = leave, .connect = connect_, .disconnect = disconnect, .put = put,       \
    .cancel = cancel

const store_peer store_peers[] = {
    {LAPSE_PEER("lapse", "callers,many,cancel,work,processes,big"), .work = handle},
    {LAPSE_PEER("lapse-take", "work"), .work_one = take_one},
    {0},
};

const char *store_version(void)
{
    static char text[32];
    snprintf(text, sizeof text, "lapse %s", lapse_version());
    return text;
}
