/* measure.h - ids, random numbers, memory, and the one JSON line a run prints. */
#ifndef BENCH_MEASURE_H
#define BENCH_MEASURE_H

#include <stddef.h>
#include <stdint.h>

#include "bench.h"

/* Write the id of order `number`, and read it back. */
void make_id(bench_id id, uint64_t number);
uint64_t id_number(const char *id);

/* splitmix64; and a number below `bound`. */
uint64_t random_next(uint64_t *state);
uint64_t random_below(uint64_t *state, uint64_t bound);

/* The numbers 0 to n - 1 in random order. */
uint32_t *random_order(uint64_t *state, size_t n);

/* The middle one; sorts them. */
double middle(double *values, size_t count);

void *bench_alloc(size_t count, size_t size);

/* Anonymous memory resident in this process, in bytes: exact, from smaps_rollup. */
int64_t resident_bytes(void);

/* Add a figure to the result; print the result as one JSON line. */
void result_add(const char *name, double value);
void result_print(const char *peer, const char *workload, size_t n);

#endif
