/* peer_lapse.c - orders on lapse, through its public header only.
 *
 * The real clock is used: lapse reads CLOCK_BOOTTIME, which clock.c answers with virtual
 * time where a workload has frozen it. */
#include <lapse.h>
#include <semaphore.h>
#include <stdio.h>

#include "bench.h"

static lapse *scheduler;
static sem_t finished; /* posted by the last callback, for those that only wait */

static lapse_verdict on_due(const lapse_order *order, void *arg)
{
    (void)arg;
    if (bench_fired(order->id)) {
        lapse_stop(scheduler);
        sem_post(&finished);
    }
    return LAPSE_DONE;
}

static void check(const char *what, int64_t result)
{
    if (result < 0)
        bench_die("%s: %s (%s)", what, lapse_error_name((int)result), lapse_error_detail());
}

static void open_url(const char *url)
{
    sem_init(&finished, 0, 0);
    check("lapse_open", lapse_open(url, NULL, &scheduler));
}

static void open_wheel(void)
{
    open_url("memory:?engine=wheel");
}

static void open_wheel_128us(void)
{
    open_url("memory:?engine=wheel&tick=128us");
}

static void open_heap(void)
{
    open_url("memory:?engine=heap");
}

static void schedule(const char *id, int64_t delay)
{
    check("lapse_schedule", lapse_schedule(scheduler, id, delay, on_due, NULL));
}

static void schedule_many(const bench_order *orders, size_t count)
{
    lapse_spec specs[BENCH_BATCH];
    int64_t results[BENCH_BATCH];
    for (size_t i = 0; i < count; i++)
        specs[i] = (lapse_spec){.id = orders[i].id, .delay = orders[i].delay, .fn = on_due};
    int64_t accepted = lapse_schedule_many(scheduler, specs, count, results);
    check("lapse_schedule_many", accepted);
    if ((size_t)accepted != count)
        bench_die("lapse_schedule_many: %lld of %zu accepted", (long long)accepted, count);
}

static bool cancel(const char *id)
{
    return lapse_cancel(scheduler, id, LAPSE_ANY) == LAPSE_FATE_CANCELLED;
}

static void turn(void)
{
    check("lapse_process", lapse_process(scheduler, 0));
}

static void run(void)
{
    lapse_run(scheduler);
}

static void run_thread(void)
{
    check("lapse_start", lapse_start(scheduler, 1));
    while (sem_wait(&finished) != 0)
        continue;
}

static void close_scheduler(void)
{
    check("lapse_close", lapse_close(scheduler, LAPSE_SECONDS(10)));
}

static uint64_t longest_move(void)
{
    lapse_stats stats;
    check("lapse_statistics", lapse_statistics(scheduler, &stats));
    return stats.longest_move;
}

#define LAPSE_PEER(name, groups, open, many, run)                                                  \
    {                                                                                              \
        name, groups, open, schedule, many, cancel, turn, run, close_scheduler, longest_move       \
    }

const bench_peer bench_peers[] = {
    LAPSE_PEER("lapse-wheel", "throughput,late", open_wheel, NULL, run),
    LAPSE_PEER("lapse-heap", "throughput,late", open_heap, NULL, run),
    LAPSE_PEER("lapse-wheel-many", "many", open_wheel, schedule_many, run),
    LAPSE_PEER("lapse-heap-many", "many", open_heap, schedule_many, run),
    LAPSE_PEER("lapse-wheel-start", "late", open_wheel, NULL, run_thread),
    LAPSE_PEER("lapse-wheel-128us", "late", open_wheel_128us, NULL, run),
    LAPSE_PEER("lapse-wheel-128us-start", "late", open_wheel_128us, NULL, run_thread),
    LAPSE_PEER("lapse-heap-start", "late", open_heap, NULL, run_thread),
    {0},
};

const char *bench_version(void)
{
    static char text[32];
    snprintf(text, sizeof text, "lapse %s", lapse_version());
    return text;
}
