/* one_turn.h - one turn of a durable store through its table, without an engine: for the benches
 * of turns.h and redis_turns.h, and for test_postgresql_*.c. */
#ifndef LAPSE_TESTS_ONE_TURN_H
#define LAPSE_TESTS_ONE_TURN_H

#include <stdlib.h>

#include "stores/durable.h"
#include "support/support.h"

/* How many they were. */
static inline size_t free_loans(lp_loan *l)
{
    size_t n = 0;
    for (lp_loan *next; l; l = next, n++) {
        next = l->next;
        free(l);
    }
    return n;
}

/* A turn at `now`, whose claims are in *loans. Asserts nothing: also for other threads and for
 * children. */
static inline int take_one_turn(lp_durable *d, lapse_ns now, lapse_ns wall, lapse_ns lease,
                                lp_job *const *jobs, size_t count, lp_want *wants,
                                size_t want_count, lp_loan **loans)
{
    lp_turn t = {.now = now,
                 .wall = wall,
                 .lease = lease,
                 .jobs = jobs,
                 .job_count = count,
                 .wants = wants,
                 .want_count = want_count,
                 .push_most = 1000000};
    int code = d->ops->turn(d, &t);
    *loans = t.loans;
    return code;
}

#endif
