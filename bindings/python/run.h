/* run.h - begin, call back, settle. */
#ifndef LAPSE_PYTHON_RUN_H
#define LAPSE_PYTHON_RUN_H

#include "core.h"

/* Run the callbacks that are due now, at most `max` (0: no limit); never waits. How many
 * ran; LAPSE_ECLOSED; or RUN_RAISED with what a signal handler raised. */
enum { RUN_RAISED = -1000 };
int64_t run_due(binding_state *state, core *c, uint64_t max);

/* Wait and run until the scheduler is stopped: 0, or -1 with an exception. A worker keeps
 * signals away from its thread while it waits. */
int run_until_stopped(binding_state *state, core *c, bool is_worker);

/* An event loop that awaits what callbacks return. What it takes it settles. */
typedef struct run_loop {
    PyObject *start; /* start(order, awaitable): the callback has returned this */
    PyObject *enter; /* enter(order, callback, around): it is to be called inside around */
    uint64_t room;   /* so many more orders the loop takes now */
} run_loop;

/* As run_due for a loop: callbacks that return anything else are done at once. Ends early
 * when there is no room, and so that the loop is not held up. */
int64_t run_in_loop(binding_state *state, core *c, run_loop *loop);

#endif
