/* fork.h - whether this process is still the one that made a thing. */
#ifndef LP_FORK_H
#define LP_FORK_H

#include <stdatomic.h>
#include <stdint.h>

extern _Atomic uint64_t lp_fork_count; /* forks between the first process and this one */

/* A number that differs in every process of a line of forks. */
static inline uint64_t lp_fork_epoch(void)
{
    return atomic_load_explicit(&lp_fork_count, memory_order_relaxed);
}

/* Start counting; called before the first epoch is kept. 0 or LAPSE_ENOMEM. */
int lp_fork_watch(void);

#endif
