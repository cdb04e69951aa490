/* clock.h - the time the peers see, and the time we measure with.
 *
 * clock_gettime and gettimeofday of this executable stand before libc's. Until
 * clock_freeze they pass through. Afterwards they still read the real clock, so that its
 * cost is in every figure, but answer virtual time, which moves only by clock_advance. */
#ifndef BENCH_CLOCK_H
#define BENCH_CLOCK_H

#include <stdint.h>

void clock_freeze(void);
void clock_advance(int64_t ns);

/* Nanoseconds of the real CLOCK_MONOTONIC, and of CPU time of the calling thread. */
int64_t clock_real(void);
int64_t clock_thread_cpu(void);

#endif
