/* ask.h - calls that are submitted to a durable store, and answered later. */
#ifndef LAPSE_PYTHON_ASK_H
#define LAPSE_PYTHON_ASK_H

#include "core.h"

/* Scheduler's: (absolute, what schedule takes, tag), with None for what is not given. */
PyObject *scheduler_submit_put(PyObject *self, PyObject *args);

/* (lapse_what, order_id, generation, delay, tag). False: no answer will come, for the call
 * itself knows it. */
PyObject *scheduler_submit(PyObject *self, PyObject *args);

/* The next answer as (tag, result), where an error is an exception that is not raised; None:
 * none has come yet. */
PyObject *ask_collect(binding_state *state, core *c);

#endif
