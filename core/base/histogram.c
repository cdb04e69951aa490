/* histogram.c - how late orders started, in log-linear buckets. */
#include "histogram.h"

/* Values below 16 have a bucket each; above, the four bits after the highest one
 * choose among sixteen. */
static unsigned bucket_of(uint64_t value)
{
    if (value < 16)
        return (unsigned)value;
    unsigned high = 63 - (unsigned)__builtin_clzll(value);
    return (high - 3) * 16 + (unsigned)((value >> (high - 4)) & 15);
}

/* The highest value of a bucket. */
static lapse_ns top_of(unsigned bucket)
{
    if (bucket < 16)
        return bucket;
    unsigned shift = bucket / 16 - 1;
    return (lapse_ns)(((UINT64_C(16) + bucket % 16 + 1) << shift) - 1);
}

void lp_histogram_add(lp_histogram *h, lapse_ns value)
{
    h->bucket[bucket_of((uint64_t)value)]++;
    h->count++;
    if (value > h->max)
        h->max = value;
}

void lp_histogram_merge(lp_histogram *h, const lp_histogram *from)
{
    for (unsigned i = 0; i < LP_HISTOGRAM_BUCKETS; i++)
        h->bucket[i] += from->bucket[i];
    h->count += from->count;
    if (from->max > h->max)
        h->max = from->max;
}

lapse_ns lp_histogram_at(const lp_histogram *h, double share)
{
    uint64_t need = (uint64_t)((double)h->count * share);
    uint64_t seen = 0;
    for (unsigned i = 0; i < LP_HISTOGRAM_BUCKETS; i++) {
        seen += h->bucket[i];
        if (seen > need || (seen == h->count && seen)) {
            lapse_ns top = top_of(i);
            return top < h->max ? top : h->max;
        }
    }
    return 0;
}
