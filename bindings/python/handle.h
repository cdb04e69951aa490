/* handle.h - who handles a queue's orders, and how. */
#ifndef LAPSE_PYTHON_HANDLE_H
#define LAPSE_PYTHON_HANDLE_H

#include "convert.h"
#include "core.h"

/* Let `function` handle the orders of `queue` (str); None removes the handler. 0, or -1
 * with an exception and nothing changed. */
int handle_set(binding_state *state, core *c, PyObject *queue, PyObject *function,
               const lapse_policy *policy);

/* Register what the core's dict says: its `lapse` is empty after a fork. 0 or -1. */
int handle_again(binding_state *state, core *c);

/* The queue that an order with this callback goes to because its function handles it; a
 * borrowed str. NULL: it runs by itself; or with an exception when the function has
 * several queues. `queue` is the one that was named, or NULL. */
PyObject *handle_queue_of(binding_state *state, core *c, PyObject *callback, PyObject *queue);

/* Scheduler's calls about queues. */
PyObject *scheduler_handle(PyObject *self, PyObject *args);
PyObject *scheduler_pause(PyObject *self, PyObject *queue);
PyObject *scheduler_resume(PyObject *self, PyObject *queue);

#endif
