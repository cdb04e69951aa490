/* put.h - from Python arguments to a lapse_spec. */
#ifndef LAPSE_PYTHON_PUT_H
#define LAPSE_PYTHON_PUT_H

#include "convert.h"
#include "core.h"

enum { PUT_ARGUMENTS = 6 };

/* The arguments of schedule and schedule_at; NULL: not given. Borrowed. */
typedef union put_arguments {
    struct {
        PyObject *order_id, *time, *callback, *payload, *queue, *replace;
    };
    PyObject *all[PUT_ARGUMENTS];
} put_arguments;

/* A spec and what keeps its pointers valid. */
typedef struct put {
    lapse_spec spec;
    text id, queue;
    Py_buffer payload;
    slot *slot; /* taken for the callback, or NULL */
    bool runs;  /* it may be for a worker of ours to run */
} put;

/* Fill in `out`; `absolute`: the time is a UTC instant. 0, or -1 with an exception and
 * nothing to undo. */
int put_prepare(binding_state *state, core *c, const put_arguments *given, bool absolute, put *out);

/* Whether this can be called back: 0, or -1 with a TypeError. */
int put_check_callback(binding_state *state, const core *c, PyObject *callback);

/* What to do instead of giving a coroutine function as a callback. */
#define COROUTINE_HINT                                                                             \
    "this scheduler runs plain functions; lapse.aio.Scheduler runs coroutine functions, and a "    \
    "worker one that does asyncio.run_coroutine_threadsafe(f(order), loop).result()"

/* Marks an order, or a handler, whose callable is in a slot. */
lapse_verdict put_python_runs_it(const lapse_order *order, void *arg);

/* After the call: give back the slot of an order that was not accepted, and the views. */
void put_done(core *c, put *p, bool accepted);

#endif
