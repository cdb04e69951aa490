/* throughput.c - nanoseconds per schedule, cancel and expire, bytes per order.
 *
 * Calls come in batches of BENCH_BATCH. The ids and delays of a batch are made before its
 * clock starts; one turn of the peer's loop after each batch is in the measured time, as a
 * server's loop turns between requests. Time is virtual: see clock.h. What is counted is the
 * CPU time of the calling thread: nothing here waits, so on a quiet machine that is the time
 * that passes, and being preempted does not count. */
#include <stdlib.h>

#include "clock.h"
#include "measure.h"
#include "workload.h"

#define MAX_STEPS 36000
#define ORDERS_PER_STEP 64
/* The last order arrives just before the first is due, even for a peer that rounds down. */
#define ARRIVAL (BENCH_DELAY - 100 * BENCH_MS)
#define MANY 64 /* orders in one call of schedule_many */

static size_t min_size(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Time moves by `step` per order. */
static void schedule_batch(const bench_peer *peer, const bench_order *orders, size_t count,
                           int64_t step)
{
    if (!peer->schedule_many) {
        for (size_t i = 0; i < count; i++) {
            clock_advance(step);
            peer->schedule(orders[i].id, orders[i].delay);
        }
        return;
    }
    for (size_t i = 0; i < count; i += MANY) {
        size_t many = min_size(MANY, count - i);
        clock_advance(step * (int64_t)many);
        peer->schedule_many(orders + i, many);
    }
}

typedef int64_t (*delay_function)(uint64_t *seed);

static int64_t constant_delay(uint64_t *seed)
{
    (void)seed;
    return BENCH_DELAY;
}

/* 1 ms to 1 h. */
static int64_t random_delay(uint64_t *seed)
{
    return BENCH_MS + (int64_t)random_below(seed, 3599999 * (uint64_t)BENCH_MS);
}

static int64_t schedule_all(const bench_peer *peer, size_t n, int64_t step, delay_function delay,
                            uint64_t seed)
{
    bench_order *orders = bench_alloc(BENCH_BATCH, sizeof *orders);
    int64_t spent = 0;
    for (size_t done = 0; done < n; done += BENCH_BATCH) {
        size_t count = min_size(BENCH_BATCH, n - done);
        for (size_t i = 0; i < count; i++) {
            make_id(orders[i].id, done + i);
            orders[i].delay = delay(&seed);
        }
        int64_t start = clock_thread_cpu();
        schedule_batch(peer, orders, count, step);
        peer->turn();
        spent += clock_thread_cpu() - start;
    }
    free(orders);
    if (fired_count != 0)
        bench_die("%s: an order ran while all were being scheduled", peer->name);
    return spent;
}

static int64_t cancel_all(const bench_peer *peer, const uint32_t *numbers, size_t n)
{
    bench_id *ids = bench_alloc(BENCH_BATCH, sizeof *ids);
    int64_t spent = 0;
    size_t cancelled = 0;
    for (size_t done = 0; done < n; done += BENCH_BATCH) {
        size_t count = min_size(BENCH_BATCH, n - done);
        for (size_t i = 0; i < count; i++)
            make_id(ids[i], numbers[done + i]);
        int64_t start = clock_thread_cpu();
        for (size_t i = 0; i < count; i++)
            cancelled += peer->cancel(ids[i]);
        peer->turn();
        spent += clock_thread_cpu() - start;
    }
    free(ids);
    if (cancelled != n)
        bench_die("%s: %zu of %zu orders were cancelled", peer->name, cancelled, n);
    return spent;
}

/* Let `span` pass in equal steps, with about ORDERS_PER_STEP orders due in each. */
static int64_t expire_all(const bench_peer *peer, size_t expected, int64_t span)
{
    size_t steps = min_size(MAX_STEPS, expected / ORDERS_PER_STEP + 1);
    int64_t step = span / (int64_t)steps + 1;
    int64_t start = clock_thread_cpu();
    for (size_t i = 0; i < steps; i++) {
        clock_advance(step);
        peer->turn();
    }
    /* What was rounded up past the end. */
    for (int i = 0; i < 1000 && fired_count < expected; i++) {
        clock_advance(BENCH_MS);
        peer->turn();
    }
    int64_t spent = clock_thread_cpu() - start;
    if (fired_count != expected)
        bench_die("%s: %llu of %zu orders ran", peer->name, (unsigned long long)fired_count,
                  expected);
    return spent;
}

static void add_per(const char *name, int64_t total, size_t count)
{
    result_add(name, (double)total / (double)count);
}

static void add_longest_move(const bench_peer *peer)
{
    if (peer->longest_move)
        result_add("longest_move", (double)peer->longest_move());
}

int64_t fill_const(const bench_peer *peer, size_t n)
{
    clock_freeze();
    peer->open();
    return schedule_all(peer, n, ARRIVAL / (int64_t)n, constant_delay, 0);
}

void run_const(const bench_peer *peer, size_t n, uint64_t seed)
{
    (void)seed;
    int64_t before = resident_bytes();
    add_per("schedule_ns", fill_const(peer, n), n);
    add_per("bytes", resident_bytes() - before, n);
    add_per("expire_ns", expire_all(peer, n, BENCH_DELAY), n);
    add_longest_move(peer);
}

void run_random(const bench_peer *peer, size_t n, uint64_t seed)
{
    int64_t before = resident_bytes();
    clock_freeze();
    peer->open();
    add_per("schedule_ns", schedule_all(peer, n, 0, random_delay, seed), n);
    add_per("bytes", resident_bytes() - before, n);
    add_per("expire_ns", expire_all(peer, n, 2 * BENCH_DELAY), n);
    add_longest_move(peer);
}

void run_cancel(const bench_peer *peer, size_t n, uint64_t seed)
{
    uint32_t *numbers = random_order(&seed, n);
    size_t paid = n / 10 * 9;
    int64_t before = resident_bytes();
    add_per("schedule_ns", fill_const(peer, n), n);
    add_per("bytes", resident_bytes() - before, n);
    add_per("cancel_ns", cancel_all(peer, numbers, paid), paid);
    add_per("bytes_after", resident_bytes() - before, n);
    add_per("expire_ns", expire_all(peer, n - paid, BENCH_DELAY), n - paid);
    add_longest_move(peer);
}

/* Every call on its own: CPU time too, as it does not count being preempted. */
void run_longest(const bench_peer *peer, size_t n, uint64_t seed)
{
    (void)seed;
    int64_t longest = 0, longest_cpu = 0;
    clock_freeze();
    peer->open();
    for (size_t i = 0; i < n; i++) {
        bench_id id;
        make_id(id, i);
        clock_advance(ARRIVAL / (int64_t)n);
        int64_t cpu = clock_thread_cpu();
        int64_t start = clock_real();
        peer->schedule(id, BENCH_DELAY);
        int64_t spent = clock_real() - start;
        cpu = clock_thread_cpu() - cpu;
        longest = spent > longest ? spent : longest;
        longest_cpu = cpu > longest_cpu ? cpu : longest_cpu;
        if (i % BENCH_BATCH == BENCH_BATCH - 1)
            peer->turn();
    }
    result_add("longest_us", (double)longest / 1e3);
    result_add("longest_cpu_us", (double)longest_cpu / 1e3);
    add_longest_move(peer);
}
