/* clock.h - what time it is, real or invented.
 *
 * The only place that reads a clock. Everything else is told the time. The scheduler's
 * clock is CLOCK_BOOTTIME: it counts the machine's sleep and never steps. */
#ifndef LP_CLOCK_H
#define LP_CLOCK_H

#include "lapse.h"

/* Told, under the clock's lock, that a manual clock was moved. */
typedef struct lp_clock_listener {
    void (*moved)(void *arg);
    void *arg;
    struct lp_clock_listener *next; /* the clock's */
} lp_clock_listener;

/* `clock` is a manual clock or NULL for the real one. */
lapse_ns lp_clock_now(const lapse_clock *clock);
lapse_ns lp_clock_wall(const lapse_clock *clock);

/* Real time that never steps, for the time limits of calls. */
lapse_ns lp_clock_monotonic(void);

void lp_clock_listen(lapse_clock *clock, lp_clock_listener *listener);
void lp_clock_unlisten(lapse_clock *clock, lp_clock_listener *listener);

/* a + b for b of 0 or more; stops at the maximum. */
static inline lapse_ns lp_add_ns(lapse_ns a, lapse_ns b)
{
    lapse_ns sum;
    return __builtin_add_overflow(a, b, &sum) ? INT64_MAX : sum;
}

/* a + b for any b; stops at either end. */
static inline lapse_ns lp_sum_ns(lapse_ns a, lapse_ns b)
{
    lapse_ns sum;
    return __builtin_add_overflow(a, b, &sum) ? (b > 0 ? INT64_MAX : INT64_MIN) : sum;
}

#endif
