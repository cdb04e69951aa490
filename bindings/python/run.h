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

/* A new Worker: what a thread holds; its run() returns when the scheduler is stopped. */
PyObject *worker_new(binding_state *state, core *c);
int worker_add(PyObject *module, binding_state *state);

#endif
