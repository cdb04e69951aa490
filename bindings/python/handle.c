/* handle.c - who handles a queue's orders, and how; pausing a queue.
 *
 * The library knows a handler by its slot, as it knows an order's callback. The core's two
 * dicts remember it by name and by function: to find the queue when the function is given
 * in place of its name, and to register it again in the child of a fork. They are replaced
 * as a whole and never changed, so whoever looks at one may run Python code meanwhile. */
#include "handle.h"
#include "put.h"
#include "scheduler.h"

#include <limits.h>
#include <string.h>

/* -- The dicts ----------------------------------------------------------------------- */

/* A copy of `handlers` (or of none) in which `queue` has this entry; NULL: it has none. */
static PyObject *with_entry(PyObject *handlers, PyObject *queue, PyObject *entry)
{
    PyObject *copy = handlers ? PyDict_Copy(handlers) : PyDict_New();
    int rc = copy ? 0 : -1;
    if (copy && entry)
        rc = PyDict_SetItem(copy, queue, entry);
    else if (copy && PyDict_GetItemWithError(copy, queue))
        rc = PyDict_DelItem(copy, queue);
    if (rc || PyErr_Occurred())
        Py_CLEAR(copy);
    return copy;
}

/* Remember that `function` handles `queue`; None when it handles another as well. What
 * cannot be hashed is left out: it is found by its queue's name only. */
static int add_function(PyObject *queues, PyObject *function, PyObject *queue)
{
    if (PyObject_Hash(function) == -1) {
        if (!PyErr_ExceptionMatches(PyExc_TypeError))
            return -1;
        PyErr_Clear();
        return 0;
    }
    bool several = PyDict_GetItemWithError(queues, function) != NULL;
    if (PyErr_Occurred())
        return -1;
    return PyDict_SetItem(queues, function, several ? Py_None : queue);
}

static PyObject *by_function(PyObject *handlers)
{
    PyObject *queues = PyDict_New(), *queue, *entry;
    Py_ssize_t at = 0;
    while (queues && PyDict_Next(handlers, &at, &queue, &entry))
        if (add_function(queues, PyTuple_GetItem(entry, 0), queue))
            Py_CLEAR(queues);
    return queues;
}

static PyObject *make_entry(PyObject *function, const lapse_policy *policy)
{
    if (function == Py_None)
        return NULL;
    return Py_BuildValue("Oy#", function, (const char *)policy, (Py_ssize_t)sizeof *policy);
}

/* What the dicts will be; made before anything is changed. */
typedef struct dicts {
    PyObject *handlers, *queues;
} dicts;

static void dicts_drop(dicts *d)
{
    Py_CLEAR(d->handlers);
    Py_CLEAR(d->queues);
}

/* Comparing functions may run Python code, and that may register another handler: then
 * once more. */
static int dicts_make(core *c, PyObject *queue, PyObject *entry, dicts *out)
{
    bool changed;
    *out = (dicts){NULL, NULL};
    do {
        dicts_drop(out);
        PyObject *before = Py_XNewRef(c->handlers);
        out->handlers = with_entry(before, queue, entry);
        if (out->handlers)
            out->queues = by_function(out->handlers);
        changed = c->handlers != before;
        Py_XDECREF(before);
    } while (out->queues && changed);
    if (out->queues)
        return 0;
    dicts_drop(out);
    return -1;
}

/* Swap them in; what they replace goes to `d`. */
static void dicts_swap(core *c, dicts *d)
{
    dicts old = {c->handlers, c->queues};
    bool any = PyDict_Size(d->handlers) > 0;
    c->handlers = any ? d->handlers : NULL;
    c->queues = any ? d->queues : NULL;
    if (!any)
        dicts_drop(d);
    *d = old;
}

PyObject *handle_queue_of(binding_state *state, core *c, PyObject *callback, PyObject *queue)
{
    PyObject *found = PyDict_GetItemWithError(c->queues, callback);
    if (!found) {
        if (PyErr_ExceptionMatches(PyExc_TypeError))
            PyErr_Clear(); /* it cannot be hashed, so it is not in there */
        return NULL;
    }
    if (!queue || queue == Py_None) {
        if (found != Py_None)
            return found;
        raise_text(state, LAPSE_EINVAL, "%R handles several queues: name the one that is meant",
                   callback);
        return NULL;
    }
    PyObject *entry = Py_XNewRef(PyDict_GetItemWithError(c->handlers, queue));
    int same = entry ? PyObject_RichCompareBool(PyTuple_GetItem(entry, 0), callback, Py_EQ) : 0;
    Py_XDECREF(entry);
    return same > 0 ? queue : NULL;
}

/* -- Registering ---------------------------------------------------------------------- */

static int tell_library(binding_state *state, core *c, const char *queue, PyObject *function,
                        const lapse_policy *policy)
{
    slot *s = function == Py_None ? NULL : slots_take(&c->slots, function);
    if (!s && function != Py_None)
        return -1;
    int rc;
    CORE_CALL(c, rc,
              lapse_handle(c->s, queue, s ? put_python_runs_it : NULL, s, slots_release, policy));
    if (rc == 0)
        return 0;
    raise_code(state, rc);
    if (s)
        slots_give(&c->slots, s);
    return -1;
}

int handle_set(binding_state *state, core *c, PyObject *queue, PyObject *function,
               const lapse_policy *policy)
{
    text name;
    dicts d;
    if (function != Py_None && put_check_callback(state, c, function))
        return -1;
    if (convert_queue(state, queue, &name))
        return -1;
    PyObject *entry = make_entry(function, policy);
    int rc = entry || function == Py_None ? dicts_make(c, queue, entry, &d) : -1;
    if (!rc) {
        rc = core_open_or_raise(state, c) ? tell_library(state, c, name.bytes, function, policy)
                                          : -1;
        if (!rc)
            dicts_swap(c, &d);
        dicts_drop(&d);
    }
    Py_XDECREF(entry);
    text_done(&name);
    return rc;
}

int handle_again(binding_state *state, core *c)
{
    PyObject *handlers = Py_XNewRef(c->handlers), *queue, *entry;
    Py_ssize_t at = 0;
    int rc = 0;
    while (!rc && handlers && PyDict_Next(handlers, &at, &queue, &entry)) {
        text name;
        lapse_policy policy;
        memcpy(&policy, PyBytes_AsString(PyTuple_GetItem(entry, 1)), sizeof policy);
        rc = convert_queue(state, queue, &name);
        if (!rc)
            rc = tell_library(state, c, name.bytes, PyTuple_GetItem(entry, 0), &policy);
        text_done(&name);
    }
    Py_XDECREF(handlers);
    return rc;
}

/* -- Scheduler's calls ------------------------------------------------------------------ */

/* A number of a policy. The library knows the ranges; here it only has to fit. */
static int read_figure(binding_state *state, const char *name, PyObject *value, int *out)
{
    int overflow;
    if (!PyLong_Check(value) || PyBool_Check(value)) {
        PyErr_Format(PyExc_TypeError, "%s is an int, got %R", name, value);
        return -1;
    }
    long n = PyLong_AsLongAndOverflow(value, &overflow);
    if (n == -1 && !overflow && PyErr_Occurred())
        return -1;
    if (overflow || n < INT_MIN || n > INT_MAX) {
        raise_text(state, LAPSE_ERANGE, "%s: %R is out of range", name, value);
        return -1;
    }
    *out = (int)n;
    return 0;
}

/* A rate has no sign in C. */
static int read_rate(binding_state *state, PyObject *value, unsigned *out)
{
    int per_second;
    if (read_figure(state, "rate", value, &per_second))
        return -1;
    if (per_second < 0) {
        raise_text(state, LAPSE_ERANGE,
                   "rate: %R is below 0: use orders per second, or 0 for no "
                   "limit",
                   value);
        return -1;
    }
    *out = (unsigned)per_second;
    return 0;
}

static int read_figures(binding_state *state, PyObject *const *v, lapse_policy *p)
{
    return read_figure(state, "attempts", v[0], &p->attempts) ||
                   read_figure(state, "backoff_percent", v[3], &p->backoff_percent) ||
                   read_figure(state, "jitter_percent", v[4], &p->jitter_percent) ||
                   read_rate(state, v[7], &p->rate)
               ? -1
               : 0;
}

static int read_policy(binding_state *state, PyObject *const *v, lapse_policy *p)
{
    if (read_figures(state, v, p) || convert_duration(state, "backoff", v[1], &p->backoff) ||
        convert_duration(state, "backoff_max", v[2], &p->backoff_max) ||
        convert_duration(state, "run_limit", v[5], &p->run_limit) ||
        convert_duration(state, "expires", v[6], &p->expires) ||
        convert_duration(state, "stuck_after", v[8], &p->stuck_after))
        return -1;
    return 0;
}

/* Orders that wait for this handler already are nobody's to run without workers. On a durable
 * store others may schedule for it at any time, and nobody here would hear of it. */
static int wake_for(scheduler *self, core *c, PyObject *queue)
{
    text name;
    lapse_queue_stats found = {.pending = 0};
    int rc = LAPSE_EUNKNOWN;
    if (!self->lazy)
        return 0; /* they run already, or it is a loop's: that never waits for an answer */
    if (c->may_block)
        return scheduler_wake_workers(self);
    if (convert_queue(self->state, queue, &name))
        return -1;
    if (core_open_or_raise(self->state, c))
        CORE_CALL(c, rc, lapse_queue_statistics(c->s, name.bytes, &found));
    text_done(&name);
    if (PyErr_Occurred())
        return -1;
    return rc == 0 && found.pending ? scheduler_wake_workers(self) : 0;
}

PyObject *scheduler_handle(PyObject *object, PyObject *args)
{
    scheduler *self = (scheduler *)object;
    core *c = self->core;
    PyObject *queue, *function, *v[9];
    lapse_policy policy = {.attempts = 0};
    if (!PyArg_ParseTuple(args, "UOOOOOOOOOO:handle", &queue, &function, &v[0], &v[1], &v[2], &v[3],
                          &v[4], &v[5], &v[6], &v[7], &v[8]) ||
        read_policy(self->state, v, &policy) || !core_open_or_raise(self->state, c) ||
        !(queue = PyUnicode_FromObject(queue))) /* an exact str: the dicts' key */
        return NULL;
    core_hold(c);
    int rc = function == Py_None ? 0 : wake_for(self, c, queue);
    if (!rc)
        rc = handle_set(self->state, c, queue, function, &policy);
    core_tidy(self->state, c);
    core_drop(c);
    Py_DECREF(queue);
    if (rc)
        return NULL;
    Py_RETURN_NONE;
}

typedef int queue_call(lapse *s, const char *queue);

static PyObject *on_queue(PyObject *object, PyObject *queue, queue_call *call)
{
    scheduler *self = (scheduler *)object;
    core *c = self->core;
    text name;
    int rc;
    if (!core_open_or_raise(self->state, c) || convert_queue(self->state, queue, &name))
        return NULL;
    CORE_CALL(c, rc, call(c->s, name.bytes));
    text_done(&name);
    if (rc < 0)
        return raise_code(self->state, rc);
    Py_RETURN_NONE;
}

PyObject *scheduler_pause(PyObject *self, PyObject *queue)
{
    return on_queue(self, queue, lapse_pause);
}

PyObject *scheduler_resume(PyObject *self, PyObject *queue)
{
    return on_queue(self, queue, lapse_resume);
}
