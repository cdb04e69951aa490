/* workload.h - what a peer is asked to do, and what is measured meanwhile. */
#ifndef BENCH_STORE_WORKLOAD_H
#define BENCH_STORE_WORKLOAD_H

#include "store.h"

/* `n` orders are pending when it begins. */
typedef struct workload {
    const char *name;
    void (*run)(const store_peer *peer, size_t n, uint64_t seed);
} workload;

/* callers.c: schedule and cancel */
void run_callers_1(const store_peer *peer, size_t n, uint64_t seed);
void run_callers_16(const store_peer *peer, size_t n, uint64_t seed);
void run_callers_64(const store_peer *peer, size_t n, uint64_t seed);
void run_many(const store_peer *peer, size_t n, uint64_t seed);
void run_cancel(const store_peer *peer, size_t n, uint64_t seed);

/* work.c: claim and settle */
void run_work_1(const store_peer *peer, size_t n, uint64_t seed);
void run_work_4(const store_peer *peer, size_t n, uint64_t seed);
void run_processes(const store_peer *peer, size_t n, uint64_t seed);

/* big.c: what a consumer needs to start on many */
void run_big(const store_peer *peer, size_t n, uint64_t seed);

/* -- Parts of them -- */

/* An order as most workloads schedule it: a random UUID, due within 30 days but not today. */
void make_order(store_order *order, uint64_t *seed);
/* One whose id says its number, due after `delay`. */
void make_numbered(store_order *order, uint64_t number, int64_t delay);

/* Schedule orders that are due at once, numbered from 0. */
void put_due(const store_peer *peer, size_t count);

/* Claim and settle `count` orders that are due, at most for a while. Times of wall_ns. */
typedef struct work_result {
    int64_t start, first, last; /* when it began; the first claim and the last */
    size_t claimed;
    size_t doubles;      /* claims of an order that had been claimed already */
    size_t fewest, most; /* claims of one process */
} work_result;
work_result work(const store_peer *peer, unsigned processes, unsigned threads, size_t count);

int64_t wall_ns(void);
void run_threads(unsigned count, void *(*run)(void *), void *const args[]);

/* Run this in a child process and wait until it has ended by itself, or, when `killed`, by
 * SIGKILL. */
void in_child(void (*run)(const store_peer *, void *), const store_peer *peer, void *arg,
              bool killed);

/* folder.c: a folder of this run with a store of `n` pending orders in it, made once for all
 * runs and copied; and how many bytes they take on the disk. */
const char *folder_make(const store_peer *peer, size_t n);
int64_t folder_bytes(const char *folder);
void folder_remove(const char *folder);

#endif
