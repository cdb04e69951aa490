/* threads.c - callbacks on the caller's thread, or on threads of our own.
 *
 * Our threads block every signal; around a callback they carry the mask of the thread
 * that started them, so that what a callback forks or starts inherits a sane one. */
#include <errno.h>
#include <stdlib.h>

#include "base/error.h"
#include "engine/engine.h"

enum { THREADS_MAX = 256 };

typedef struct worker {
    lapse *s;
    sigset_t mask;
} worker;

/* One call that lapse_close waits for is over. */
static void leave(lapse *s)
{
    pthread_mutex_lock(&s->lock);
    s->inside--;
    lp_tell_settled(s);
    pthread_mutex_unlock(&s->lock);
}

static void *run_worker(void *arg)
{
    worker w = *(worker *)arg;
    free(arg);
    if (lp_work(w.s, &w.mask) == LAPSE_ECLOSED)
        leave(w.s);
    return NULL;
}

int lapse_run(lapse *s)
{
    int code = lp_enter(s);
    if (code < 0)
        return code;
    s->inside++;
    lp_leave(s);
    if (lp_work(s, NULL) == LAPSE_EFORKED)
        return lp_fail(LAPSE_EFORKED, "a callback forked and returned in the child: the orders "
                                      "there are the parent's");
    leave(s);
    return LAPSE_OK;
}

static int start_one(lapse *s, const sigset_t *mask)
{
    worker *w = malloc(sizeof *w);
    if (!w)
        return lp_fail_memory();
    *w = (worker){.s = s, .mask = *mask};
    int number = pthread_create(&s->threads[s->thread_count], NULL, run_worker, w);
    if (number) {
        free(w);
        return lp_fail_system("pthread_create", number);
    }
    s->thread_count++;
    s->inside++; /* It leaves when it ends. */
    return LAPSE_OK;
}

/* One thread beside them looks after callbacks that never return: they may hold all of
 * the others. */
static int start_watcher(lapse *s)
{
    if (s->has_watcher)
        return LAPSE_OK;
    int number = pthread_create(&s->watcher, NULL, lp_run_watcher, s);
    if (number)
        return lp_fail_system("pthread_create", number);
    s->has_watcher = true;
    s->inside++; /* It leaves when it ends. */
    return LAPSE_OK;
}

/* Under the lock. Those that were started before one failed go on. */
static int start_all(lapse *s, unsigned threads)
{
    if (s->stopped)
        return lp_fail(LAPSE_ECLOSED, "the scheduler was stopped: open another");
    if (threads < 1 || s->thread_count + threads > THREADS_MAX)
        return lp_fail(LAPSE_EINVAL, "cannot start %u threads beside %u: use 1 to %d in all",
                       threads, s->thread_count, THREADS_MAX);
    pthread_t *more = realloc(s->threads, (s->thread_count + threads) * sizeof *more);
    if (!more)
        return lp_fail_memory();
    s->threads = more;
    sigset_t all, mask;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &mask);
    int code = start_watcher(s);
    for (unsigned i = 0; i < threads && code == LAPSE_OK; i++)
        code = start_one(s, &mask);
    pthread_sigmask(SIG_SETMASK, &mask, NULL);
    return code;
}

int lapse_start(lapse *s, unsigned threads)
{
    int code = lp_enter(s);
    if (code < 0)
        return code;
    code = start_all(s, threads);
    lp_leave(s);
    return code;
}
