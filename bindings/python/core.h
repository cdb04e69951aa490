/* core.h - the core object: what threads hold instead of the Scheduler.
 *
 * A Scheduler, its workers and every call that gives up the GIL hold it; the last of them
 * frees it. Only the Scheduler answers for the Python references in it, so a cycle through
 * a callback is garbage as soon as the Scheduler is, whatever its workers do. */
#ifndef LAPSE_PYTHON_CORE_H
#define LAPSE_PYTHON_CORE_H

#include "slots.h"

/* A callback or a hook on some thread's stack. */
typedef struct core_frame {
    struct core *core;
    PyObject *order; /* the Order it was given; NULL: a hook */
    int64_t generation;
    struct core_frame *outer; /* on the same thread, of whatever core */
    struct core_frame *next;  /* of the same core, on whatever thread */
} core_frame;

typedef struct core_waiter core_waiter;
typedef struct news news;

/* What the hooks of a `lapse` are given: a fork moves the `lapse` to another core. */
typedef struct core_link {
    struct core *core;
} core_link;

typedef struct core {
    lapse *s; /* NULL once closed, and in what a fork left behind; under the GIL, as all */
    slots slots;
    PyObject *on_error;   /* callable or NULL; these five are the Scheduler's to traverse */
    PyObject *on_dead;    /* callable or NULL */
    PyObject *around;     /* callable that makes a context manager, or NULL */
    PyObject *handlers;   /* dict: queue -> (function, policy as bytes); NULL when empty */
    PyObject *queues;     /* dict: function -> its queue, None when it has several; or NULL */
    PyObject *clock;      /* ManualClock or NULL; outlives `s` */
    core_link *link;      /* what the hooks of `s` are given */
    unsigned holds;       /* the Scheduler, Worker objects, calls in flight */
    unsigned users;       /* calls in flight, among them running workers */
    core_frame *frames;   /* callbacks and hooks that run now */
    core_waiter *waiters; /* who wants to know when less is running */
    bool may_block;       /* calls may wait for input or output: give up the GIL for each */
    bool awaits;          /* an event loop awaits what callbacks return */
    unsigned batch;       /* orders to claim at once for that loop, and */
    unsigned wanted;      /* what lapse_want was told; 0: nothing yet */
    bool stopped;
    unsigned watchers;    /* threads in watch_until_stopped */
    bool watch_sleeps;    /* the watcher wants to know of the next callback */
    _Atomic int watch_fd; /* eventfd, or -1 before the first watcher */
    _Atomic(news *) news; /* from any thread; see news.c */
} core;

/* Open the store. NULL with an exception. The clock's reference is taken on success. */
core *core_open(binding_state *state, const char *url, const lapse_options *options,
                PyObject *clock);

/* Another reference, and one given up; the last closes the scheduler. */
static inline core *core_hold(core *c)
{
    c->holds++;
    return c;
}

void core_free(core *c);

static inline void core_drop(core *c)
{
    if (--c->holds == 0)
        core_free(c);
}

/* Drop the references that are the Scheduler's. Runs finalizers. */
void core_clear(core *c);

/* After every call into the library: drop what it has released, and call the hooks for
 * what it had to say. Runs Python code. */
static inline void core_tidy(binding_state *state, core *c);

/* Around whatever uses c->s without the GIL, or lets Python code run meanwhile. */
void core_enter(core *c);
void core_leave(core *c);

/* Raise lapse.Closed about a scheduler that is not open. */
void core_raise_closed(binding_state *state, const core *c);

/* c->s if the scheduler is open, or NULL with lapse.Closed. */
static inline lapse *core_open_or_raise(binding_state *state, core *c)
{
    if (c && c->s)
        return c->s;
    core_raise_closed(state, c);
    return NULL;
}

/* Stop it; nothing when it is closed. 0 or a lapse error. */
int core_stop(core *c);

/* Around a callback, from before it is called until its order is settled. */
void core_push_frame(core_frame *f);
void core_pop_frame(core_frame *f);

/* Whether this thread is inside a callback of `c`. */
bool core_inside(const core *c);

/* Wait until no call is in flight: 0; 1 when `deadline` (of core_now) passed; -1 with an
 * exception that a signal handler raised. Gives up the GIL. */
int core_wait_idle(core *c, lapse_ns deadline);

/* The same until no other thread is inside a callback of the order `id` (str), of any
 * generation or of this one; at once inside that very callback. */
int core_wait_order(core *c, PyObject *id, int64_t generation, lapse_ns deadline);

/* Free the scheduler of a stopped, idle core. 0 or a lapse error. */
int core_close(core *c, lapse_ns timeout);

/* In the child of a fork: what replaces `c`, empty and working, or NULL with an
 * exception. The caller's reference moves over; `c` stays for those who died with the
 * parent. Handlers are to be registered again (handle_again). */
core *core_after_fork(binding_state *state, core *c);

/* Real time that counts sleep, and a deadline by it; both saturate. */
lapse_ns core_now(void);
lapse_ns core_deadline(lapse_ns timeout);
lapse_ns core_remaining(lapse_ns deadline);

/* How long to wait in the core before looking at signals and news. Handlers of Python run
 * on the main thread only, and some of the core's waits do not notice signals: the main
 * thread comes back ten times a second. Others deliver news once a second if there is no
 * watcher to do it, else they come back when the time is up. */
lapse_ns core_slice(const core *c, lapse_ns deadline);

/* result = call, without the GIL when the store may block. */
#define CORE_CALL(c, result, call)                                                                 \
    do {                                                                                           \
        if ((c)->may_block) {                                                                      \
            core_enter(c);                                                                         \
            PyThreadState *gil_ = PyEval_SaveThread();                                             \
            (result) = (call);                                                                     \
            PyEval_RestoreThread(gil_);                                                            \
            core_leave(c);                                                                         \
        } else {                                                                                   \
            slots_enter(&(c)->slots);                                                              \
            (result) = (call);                                                                     \
            slots_leave(&(c)->slots);                                                              \
        }                                                                                          \
    } while (0)

void news_deliver(binding_state *state, core *c);

static inline void core_tidy(binding_state *state, core *c)
{
    slots_drain(&c->slots);
    if (atomic_load_explicit(&c->news, memory_order_relaxed))
        news_deliver(state, c);
}

/* The clock.c side: the lapse_clock of a ManualClock, or NULL with TypeError. */
lapse_clock *clock_of(binding_state *state, PyObject *object);
int clock_add(PyObject *module, binding_state *state);

#endif
