/* fork.c - whether this process is still the one that made a thing.
 *
 * The only process-wide state of the library: a counter that fork() raises in the
 * child. The handler does nothing else, so it is safe in any child. */
#include "fork.h"

#include <pthread.h>

#include "lapse.h"

_Atomic uint64_t lp_fork_count;

static atomic_bool watching;

static void in_child(void)
{
    atomic_fetch_add(&lp_fork_count, 1);
}

/* Two threads that come first together register twice: the counter rises by two then,
 * which says the same. */
int lp_fork_watch(void)
{
    if (atomic_load(&watching))
        return LAPSE_OK;
    if (pthread_atfork(NULL, NULL, in_child))
        return LAPSE_ENOMEM;
    atomic_store(&watching, true);
    return LAPSE_OK;
}
