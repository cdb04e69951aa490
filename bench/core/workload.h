/* workload.h - what a peer is asked to do, and what is measured meanwhile. */
#ifndef BENCH_WORKLOAD_H
#define BENCH_WORKLOAD_H

#include "bench.h"

typedef struct workload {
    const char *name;
    void (*run)(const bench_peer *peer, size_t n, uint64_t seed);
} workload;

/* Virtual time (throughput.c, threads.c). */
void run_const(const bench_peer *peer, size_t n, uint64_t seed);
void run_random(const bench_peer *peer, size_t n, uint64_t seed);
void run_cancel(const bench_peer *peer, size_t n, uint64_t seed);
void run_longest(const bench_peer *peer, size_t n, uint64_t seed);
void run_threads(const bench_peer *peer, size_t n, uint64_t seed);

/* Real time (late.c). */
void run_late(const bench_peer *peer, size_t n, uint64_t seed);

/* For bench_fired: how many callbacks have started and how many are expected. */
extern uint64_t fired_count, fired_expected;

/* If set, bench_fired passes each order on to it. */
extern void (*fired_hook)(const char *id);

/* Open the peer under frozen time and schedule `n` orders that arrive evenly over half an
 * hour, each with half an hour to go; returns the nanoseconds the calls took. */
int64_t fill_const(const bench_peer *peer, size_t n);

#endif
