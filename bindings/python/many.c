/* many.c - schedule_many: one result per order, and one call into the core.
 *
 * Orders that cannot be converted get their exception as the result and are left out of
 * the call; `index` leads from what is handed over back to the place in the list. */
#include "put.h"
#include "scheduler.h"

typedef struct batch {
    Py_ssize_t count; /* orders given */
    size_t used;      /* orders handed over */
    put *puts;
    lapse_spec *specs;
    int64_t *answers;
    Py_ssize_t *index;
    PyObject *orders, *results; /* tuple, list */
} batch;

static int batch_open(batch *b, PyObject *orders)
{
    *b = (batch){.orders = PySequence_Tuple(orders)};
    if (!b->orders)
        return -1;
    b->count = PyTuple_Size(b->orders);
    size_t n = b->count ? (size_t)b->count : 1;
    b->results = PyList_New(b->count);
    if (!b->results)
        return -1;
    b->puts = PyMem_Calloc(n, sizeof *b->puts);
    b->specs = PyMem_Calloc(n, sizeof *b->specs);
    b->answers = PyMem_Calloc(n, sizeof *b->answers);
    b->index = PyMem_Calloc(n, sizeof *b->index);
    if (b->puts && b->specs && b->answers && b->index)
        return 0;
    PyErr_NoMemory();
    return -1;
}

/* Whatever was prepared and has no answer above 0 was not accepted. */
static void batch_close(core *c, batch *b)
{
    for (size_t i = 0; i < b->used; i++)
        put_done(c, &b->puts[i], b->answers[i] > 0);
    PyMem_Free(b->puts);
    PyMem_Free(b->specs);
    PyMem_Free(b->answers);
    PyMem_Free(b->index);
    Py_XDECREF(b->orders);
    Py_XDECREF(b->results);
}

static int from_tuple(PyObject *order, PyObject **out)
{
    Py_ssize_t n = PyTuple_Size(order);
    if (n < 2 || n > PUT_ARGUMENTS) {
        PyErr_SetString(PyExc_TypeError, "an order is (order_id, delay, callback, payload, queue, "
                                         "replace), at least the first two");
        return -1;
    }
    for (Py_ssize_t i = 0; i < PUT_ARGUMENTS; i++)
        out[i] = i < n ? PyTuple_GetItem(order, i) : NULL;
    return 0;
}

/* `absolute` is set when it has an instant, `at`, in place of a delay. */
static int from_dict(binding_state *state, PyObject *order, PyObject **out, bool *absolute)
{
    static const binding_name relative[PUT_ARGUMENTS] = {NAME_order_id, NAME_delay, NAME_callback,
                                                         NAME_payload,  NAME_queue, NAME_replace};
    static const binding_name instant[PUT_ARGUMENTS] = {NAME_order_id, NAME_at,    NAME_callback,
                                                        NAME_payload,  NAME_queue, NAME_replace};
    int has_at = PyDict_Contains(order, state->names[NAME_at]);
    if (has_at < 0)
        return -1;
    const binding_name *names = has_at ? instant : relative;
    Py_ssize_t found = 0;
    for (int i = 0; i < PUT_ARGUMENTS; i++) {
        out[i] = PyDict_GetItemWithError(order, state->names[names[i]]);
        if (!out[i] && PyErr_Occurred())
            return -1;
        found += out[i] != NULL;
    }
    *absolute = has_at;
    if (out[0] && out[1] && found == PyDict_Size(order))
        return 0;
    PyErr_SetString(PyExc_TypeError,
                    "an order needs order_id and one of delay and at, and may have "
                    "callback, payload, queue and replace; nothing else");
    return -1;
}

static int read_order(binding_state *state, PyObject *order, put_arguments *given, bool *absolute)
{
    *absolute = false;
    if (PyTuple_Check(order))
        return from_tuple(order, given->all);
    if (PyDict_Check(order))
        return from_dict(state, order, given->all, absolute);
    PyErr_Format(PyExc_TypeError, "an order is a tuple or a dict, not %R", order);
    return -1;
}

/* The exception that is set becomes the result of order `i`; one that is no Exception
 * (Ctrl-C) goes on. */
static int keep_error(batch *b, Py_ssize_t i)
{
    if (!PyErr_ExceptionMatches(PyExc_Exception))
        return -1;
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    Py_XDECREF(type);
    Py_XDECREF(traceback);
    return PyList_SetItem(b->results, i, value);
}

static int prepare_all(scheduler *self, core *c, batch *b)
{
    for (Py_ssize_t i = 0; i < b->count; i++) {
        put_arguments given;
        bool absolute;
        put *p = &b->puts[b->used];
        if (read_order(self->state, PyTuple_GetItem(b->orders, i), &given, &absolute) ||
            put_prepare(self->state, c, &given, absolute, p)) {
            if (keep_error(b, i))
                return -1;
            continue;
        }
        b->specs[b->used] = p->spec;
        b->index[b->used++] = i;
    }
    return 0;
}

static int fill_results(binding_state *state, batch *b)
{
    for (size_t k = 0; k < b->used; k++) {
        PyObject *id = NULL, *result;
        if (b->answers[k] > 0) {
            result = PyLong_FromLongLong(b->answers[k]);
        } else {
            id = text_object(b->puts[k].id.bytes, b->puts[k].id.len);
            result = id ? error_for(state, (int)b->answers[k], id) : NULL;
        }
        Py_XDECREF(id);
        if (!result || PyList_SetItem(b->results, b->index[k], result))
            return -1;
    }
    return 0;
}

static int hand_over(scheduler *self, core *c, batch *b)
{
    if (!b->used)
        return 0;
    bool wake = false;
    for (size_t k = 0; k < b->used; k++)
        wake |= b->puts[k].runs;
    if ((wake && scheduler_wake_workers(self)) || !core_open_or_raise(self->state, c))
        return -1;
    int64_t accepted;
    core_enter(c);
    PyThreadState *gil = PyEval_SaveThread();
    accepted = lapse_schedule_many(c->s, b->specs, b->used, b->answers);
    PyEval_RestoreThread(gil);
    if (accepted < 0)
        raise_code(self->state, (int)accepted);
    core_leave(c);
    return accepted < 0 ? -1 : fill_results(self->state, b);
}

PyObject *scheduler_schedule_many(PyObject *object, PyObject *orders)
{
    scheduler *self = (scheduler *)object;
    core *c = self->core;
    batch b;
    if (!core_open_or_raise(self->state, c))
        return NULL;
    core_hold(c);
    PyObject *results = NULL;
    if (!batch_open(&b, orders) && !prepare_all(self, c, &b) && !hand_over(self, c, &b))
        results = Py_NewRef(b.results);
    batch_close(c, &b);
    core_tidy(self->state, c);
    core_drop(c);
    return results;
}
