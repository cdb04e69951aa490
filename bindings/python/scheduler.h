/* scheduler.h - lapse._lapse.Scheduler, and its calls as the module's functions use them. */
#ifndef LAPSE_PYTHON_SCHEDULER_H
#define LAPSE_PYTHON_SCHEDULER_H

#include "core.h"

typedef struct scheduler {
    PyObject_HEAD core *core; /* NULL before _open */
    binding_state *state;     /* the type keeps the module alive */
    char lazy;                /* workers are wanted and not started */
} scheduler;

static inline scheduler *as_scheduler(PyObject *object)
{
    return (scheduler *)object;
}

int scheduler_add(PyObject *module, binding_state *state);

/* Whether this is a Scheduler of this module. */
bool scheduler_check(binding_state *state, PyObject *object);

/* Whether it was opened and not closed yet. */
bool scheduler_is_open(PyObject *self);

/* Before an order with a callback is accepted: have somebody run it. 0 or -1. */
int scheduler_wake_workers(scheduler *self);

/* The arguments of these are those of a fast call. */
typedef PyObject *scheduler_call(PyObject *self, PyObject *const *args, Py_ssize_t given,
                                 PyObject *keywords);

/* change.c */
scheduler_call scheduler_schedule, scheduler_schedule_at, scheduler_cancel, scheduler_reschedule;
scheduler_call scheduler_cancel_wait, scheduler_requeue, scheduler_purge;

/* take.c */
scheduler_call scheduler_take, scheduler_poll;
PyObject *scheduler_settle(PyObject *self, PyObject *args);
PyObject *scheduler_renew(PyObject *self, PyObject *args);
PyObject *scheduler_holds(PyObject *self, PyObject *args);

/* many.c and look.c */
PyObject *scheduler_schedule_many(PyObject *self, PyObject *orders);
PyObject *scheduler_get(PyObject *self, PyObject *order_id);
PyObject *scheduler_orders(PyObject *self, PyObject *states);
PyObject *scheduler_stats(PyObject *self, PyObject *ignored);
PyObject *scheduler_queue_stats(PyObject *self, PyObject *queue);
PyObject *scheduler_queues(PyObject *self, PyObject *ignored);
PyObject *scheduler_metrics(PyObject *self, PyObject *ignored);

/* The docstrings, which the module's functions share. */
#define SCHEDULE_DOC(self)                                                                         \
    "schedule(" self "order_id, delay, callback=None, payload=None, queue=None, replace=False)\n"  \
    "--\n\n"                                                                                       \
    "Run callback(order) when `delay` has passed, unless the order is cancelled first.\n"          \
    "\n"                                                                                           \
    "order_id: str or bytes, 1 to 255 bytes without NUL, compared byte for byte.\n"                \
    "delay:    seconds as int, float or timedelta, up to 100 years; below 0 is 0.\n"               \
    "callback: a plain callable; it gets one lapse.Order. A function that handles a queue\n"       \
    "          (see handle) stands for its queue. None: for the queue's handler or taker.\n"       \
    "payload:  bytes-like, copied. queue: a handler's name, or where take() finds it.\n"           \
    "replace:  a pending order of this id gives way, and its callback never starts.\n"             \
    "\n"                                                                                           \
    "Returns the order's generation, an int that grows with every order accepted.\n"               \
    "Raises lapse.Exists, BadId, Range, Full, Closed, Forked, NoMemory, or TypeError;\n"           \
    "then nothing has changed. A durable store: on return it is there for good; a function\n"      \
    "that handles no queue is Unsupported. Any thread, and callbacks."

#define SCHEDULE_AT_DOC(self)                                                                      \
    "schedule_at(" self "order_id, at, callback=None, payload=None, queue=None, "                  \
    "replace=False)\n--\n\n"                                                                       \
    "As schedule, at an instant: an aware datetime, or seconds since 1970 (UTC).\n"                \
    "\n"                                                                                           \
    "A past instant is due at once; a naive datetime raises lapse.Invalid. In memory the\n"        \
    "instant becomes a delay when called: later steps of the wall clock do not move it."

#define CANCEL_DOC(self)                                                                           \
    "cancel(" self "order_id, generation=0)\n--\n\n"                                               \
    "The order was paid: returns its Fate, which is true only when it was cancelled.\n"            \
    "\n"                                                                                           \
    "CANCELLED: the callback has not started and never will. RUNNING: it has started; no\n"        \
    "further attempt follows. DONE: it ended within `keep`. UNKNOWN: no such order. No\n"          \
    "answer is ever taken back. With a generation only that one is cancelled. Never waits\n"       \
    "for a callback. Any thread, and callbacks; also after stop()."

#define RESCHEDULE_DOC(self)                                                                       \
    "reschedule(" self "order_id, delay, generation=0)\n--\n\n"                                    \
    "Give a pending order a new delay from now, in seconds as for schedule.\n"                     \
    "\n"                                                                                           \
    "Returns Fate.RESCHEDULED; or RUNNING, DONE or UNKNOWN, and then nothing has changed.\n"       \
    "Raises lapse.Range, Closed, Forked. Any thread, and callbacks."

#endif
