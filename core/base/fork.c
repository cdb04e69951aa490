/* fork.c - whether this process is still the one that made a thing.
 *
 * The only process-wide state of the library: a counter that fork() raises in the
 * child. The handler does nothing else, so it is safe in any child. */
#include "fork.h"

#include <pthread.h>

#include "lapse.h"

_Atomic uint64_t lp_fork_count;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static int watch_result;

static void in_child(void)
{
    atomic_fetch_add(&lp_fork_count, 1);
}

static void watch(void)
{
    watch_result = pthread_atfork(NULL, NULL, in_child) ? LAPSE_ENOMEM : LAPSE_OK;
}

int lp_fork_watch(void)
{
    pthread_once(&once, watch);
    return watch_result;
}
