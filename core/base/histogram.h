/* histogram.h - how late orders started, in log-linear buckets.
 *
 * Sixteen buckets per power of two: a value read back is at most 1/16 too high and never
 * too low. Fixed size, no allocation. */
#ifndef LP_HISTOGRAM_H
#define LP_HISTOGRAM_H

#include "lapse.h"

#define LP_HISTOGRAM_BUCKETS (16 * 60)

typedef struct lp_histogram {
    uint64_t count;
    lapse_ns max;
    uint64_t bucket[LP_HISTOGRAM_BUCKETS];
} lp_histogram;

/* `value`: 0 or more. */
void lp_histogram_add(lp_histogram *h, lapse_ns value);

/* Add all of `from` to `h`. */
void lp_histogram_merge(lp_histogram *h, const lp_histogram *from);

/* The value below or at which `share` (0 to 1) of all lie; 0 when there is none. */
lapse_ns lp_histogram_at(const lp_histogram *h, double share);

#endif
