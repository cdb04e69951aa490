/* bench.h - what the workloads and the schedulers under test agree on.
 *
 * A peer is one way to run an order's callback when its time is up: lapse, or an event
 * loop with an id map and a mutex. Every peer is driven through the same table of
 * functions with the same ids, delays and moments, in a process of its own. Nothing here
 * knows how a peer works, and no peer knows which workload drives it. */
#ifndef BENCH_H
#define BENCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BENCH_MS INT64_C(1000000)
#define BENCH_SECOND INT64_C(1000000000)
#define BENCH_DELAY (INT64_C(1800) * BENCH_SECOND) /* an unpaid order's half hour */
#define BENCH_ID_LEN 20                            /* "OID" and 17 digits */
#define BENCH_BATCH 1024                           /* calls between two turns of the loop */

typedef char bench_id[24];

/* An order of a batch. */
typedef struct bench_order {
    bench_id id;
    int64_t delay; /* nanoseconds */
} bench_order;

typedef struct bench_peer {
    const char *name;
    /* The workloads it is run in by default: "throughput", "fixed" (throughput with one
     * constant delay only) or "late". */
    const char *groups;
    void (*open)(void);
    void (*schedule)(const char *id, int64_t delay);
    /* May be NULL: then the orders are scheduled one by one. */
    void (*schedule_many)(const bench_order *orders, size_t count);
    bool (*cancel)(const char *id);
    void (*turn)(void); /* run what is due, do not wait */
    void (*run)(void);  /* real time: run until the last order has fired */
    void (*close)(void);
    uint64_t (*longest_move)(void); /* may be NULL */
} bench_peer;

/* The peers in this executable, ended by one without a name, and what they are. */
extern const bench_peer bench_peers[];
const char *bench_version(void);

/* For a peer's callback. True for the last order that is expected. */
bool bench_fired(const char *id);

/* Say what is wrong and end the process: a run that did not do its work has no result. */
void bench_die(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));

#endif
