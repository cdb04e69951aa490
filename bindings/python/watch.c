/* watch.c - looking after callbacks when every worker may be stuck in one.
 *
 * A thread that waits for work sees to claims that last too long, and so does every call.
 * When all workers are inside callbacks nobody waits: then the watcher looks, once in a
 * while and only for as long as something runs. It sleeps without limit otherwise. It also
 * delivers the news of threads that are in a long wait. It runs no order. */
#include "watch.h"
#include "news.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>

enum { LOOK_EVERY = 1000, LOOK_EVERY_MANUAL = 10 }; /* milliseconds */

void watch_wake(core *c, unsigned why)
{
    int fd = atomic_load_explicit(&c->watch_fd, memory_order_acquire);
    if (fd >= 0)
        eventfd_write(fd, why);
}

static int open_fd(core *c)
{
    if (atomic_load_explicit(&c->watch_fd, memory_order_relaxed) >= 0)
        return 0;
    int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (fd < 0) {
        PyErr_SetFromErrno(PyExc_OSError);
        return -1;
    }
    atomic_store_explicit(&c->watch_fd, fd, memory_order_release);
    return 0;
}

/* Sleep up to `timeout` ms (-1: no limit); what woke it. */
static unsigned sleep_until_woken(int fd, int timeout)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    eventfd_t why = 0;
    if (poll(&p, 1, timeout) > 0)
        eventfd_read(fd, &why);
    return (unsigned)why;
}

/* Without the GIL and with all signals blocked, so that they go to the host's threads. */
static void sleep_a_while(core *c)
{
    sigset_t all, before;
    if (atomic_load_explicit(&c->news, memory_order_relaxed))
        return;
    int fd = atomic_load_explicit(&c->watch_fd, memory_order_relaxed);
    int every = c->clock ? LOOK_EVERY_MANUAL : LOOK_EVERY;
    bool runs = c->frames != NULL;
    c->watch_sleeps = !runs;
    PyThreadState *gil = PyEval_SaveThread();
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    if (runs || sleep_until_woken(fd, -1) < WATCH_NEWS)
        sleep_until_woken(fd, every);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    PyEval_RestoreThread(gil);
    c->watch_sleeps = false;
}

/* Any wait of the core sees to claims that last too long; this one is over at once. */
static void look(core *c)
{
    if (!c->frames || !c->s)
        return;
    PyThreadState *gil = PyEval_SaveThread();
    lapse_wait(c->s, 0);
    PyEval_RestoreThread(gil);
}

int watch_until_stopped(binding_state *state, core *c)
{
    if (open_fd(c))
        return -1;
    core_enter(c);
    c->watchers++;
    while (!c->stopped) {
        sleep_a_while(c);
        look(c);
        core_tidy(state, c);
    }
    c->watchers--;
    core_leave(c);
    return 0;
}
