/* worker.h - lapse._lapse.Worker: what a thread or an event loop holds instead of its
 * Scheduler. */
#ifndef LAPSE_PYTHON_WORKER_H
#define LAPSE_PYTHON_WORKER_H

#include "core.h"

PyObject *worker_new(binding_state *state, core *c);
int worker_add(PyObject *module, binding_state *state);

#endif
