/* look.c - get, orders, stats: what is there, as tuples and dicts.
 *
 * The tuples have the order of lapse.Info, which names their fields. */
#include "convert.h"
#include "scheduler.h"

#include <string.h>

static PyObject *bytes_or_empty(binding_state *state, const void *bytes, size_t len)
{
    return len ? PyBytes_FromStringAndSize(bytes, (Py_ssize_t)len) : Py_NewRef(state->no_payload);
}

/* (state, id, queue, payload, due, remaining, ended, generation, attempt, reason, error) */
static PyObject *info_tuple(binding_state *state, const lapse_info *info)
{
    PyObject *id = text_object(info->id, info->id_len);
    PyObject *queue =
        text_object(info->queue ? info->queue : "", info->queue ? strlen(info->queue) : 0);
    PyObject *payload = bytes_or_empty(state, info->payload, info->payload_len);
    PyObject *tuple = NULL;
    if (id && queue && payload)
        tuple = Py_BuildValue("iOOOdddLiiz", (int)info->state, id, queue, payload,
                              (double)info->due / 1e9, (double)info->remaining / 1e9,
                              (double)info->ended / 1e9, (long long)info->generation, info->attempt,
                              (int)info->reason, info->error);
    Py_XDECREF(id);
    Py_XDECREF(queue);
    Py_XDECREF(payload);
    return tuple;
}

PyObject *scheduler_get(PyObject *object, PyObject *order_id)
{
    scheduler *self = (scheduler *)object;
    core *c = self->core;
    text id;
    lapse_info info;
    if (!core_open_or_raise(self->state, c) || convert_id(self->state, order_id, &id))
        return NULL;
    int rc = LAPSE_EUNKNOWN;
    if (!text_holds_nul(&id))
        CORE_CALL(c, rc, lapse_get(c->s, id.bytes, &info));
    text_done(&id);
    if (rc == LAPSE_EUNKNOWN)
        Py_RETURN_NONE;
    if (rc < 0)
        return raise_code(self->state, rc);
    PyObject *tuple = info_tuple(self->state, &info);
    lapse_info_free(&info);
    return tuple;
}

typedef struct walk {
    binding_state *state;
    PyObject *list;
    bool failed;
} walk;

enum { PAUSE_EVERY = 1024 };

/* The core holds no lock here, so other threads may have the GIL for a while. */
static bool add_to_list(const lapse_info *info, void *arg)
{
    walk *w = arg;
    PyObject *tuple = info_tuple(w->state, info);
    w->failed = !tuple || PyList_Append(w->list, tuple);
    Py_XDECREF(tuple);
    if (!w->failed && PyList_Size(w->list) % PAUSE_EVERY == 0) {
        PyThreadState *gil = PyEval_SaveThread();
        PyEval_RestoreThread(gil);
        w->failed = PyErr_CheckSignals() != 0;
    }
    return !w->failed;
}

PyObject *scheduler_orders(PyObject *object, PyObject *states)
{
    scheduler *self = (scheduler *)object;
    core *c = self->core;
    unsigned long bits = PyLong_AsUnsignedLong(states);
    if ((bits == (unsigned long)-1 && PyErr_Occurred()) || !core_open_or_raise(self->state, c))
        return NULL;
    walk w = {.state = self->state, .list = PyList_New(0)};
    if (!w.list)
        return NULL;
    core_enter(c);
    int64_t rc = lapse_each(c->s, (unsigned)bits, add_to_list, &w);
    if (rc < 0)
        raise_code(self->state, (int)rc);
    core_leave(c);
    if (rc < 0 || w.failed)
        Py_CLEAR(w.list);
    return w.list;
}

typedef enum figure_kind { COUNT, TIME } figure_kind;

typedef struct figure {
    const char *name;
    size_t offset;
    figure_kind kind;
} figure;

#define FIGURE(kind, name)                                                                         \
    {                                                                                              \
#name, offsetof(lapse_stats, name), kind                                                   \
    }

static const figure figures[] = {
    FIGURE(COUNT, pending),  FIGURE(COUNT, running),      FIGURE(COUNT, kept),
    FIGURE(COUNT, dead),     FIGURE(COUNT, scheduled),    FIGURE(COUNT, refused),
    FIGURE(COUNT, replaced), FIGURE(COUNT, rescheduled),  FIGURE(COUNT, cancelled),
    FIGURE(COUNT, done),     FIGURE(COUNT, dead_total),   FIGURE(COUNT, dead_dropped),
    FIGURE(COUNT, requeued), FIGURE(COUNT, purged),       FIGURE(COUNT, lost),
    FIGURE(COUNT, started),  FIGURE(COUNT, failed),       FIGURE(COUNT, retried),
    FIGURE(COUNT, rejected), FIGURE(COUNT, given_back),   FIGURE(COUNT, stale),
    FIGURE(TIME, late_p50),  FIGURE(TIME, late_p99),      FIGURE(TIME, late_p999),
    FIGURE(TIME, late_max),  FIGURE(TIME, oldest_due),    FIGURE(TIME, poll_bound),
    FIGURE(COUNT, bytes),    FIGURE(COUNT, longest_move),
};

static PyObject *figure_object(const lapse_stats *stats, const figure *f)
{
    const char *field = (const char *)stats + f->offset;
    if (f->kind == TIME)
        return convert_seconds(*(const lapse_ns *)(const void *)field);
    return PyLong_FromUnsignedLongLong(*(const uint64_t *)(const void *)field);
}

/* Give `value`, which may be NULL after an error, to the dict. */
static int add_value(PyObject *dict, const char *name, PyObject *value)
{
    int rc = value ? PyDict_SetItemString(dict, name, value) : -1;
    Py_XDECREF(value);
    return rc;
}

/* Dead letters by the number of their lapse_reason; the Python side names them. */
static PyObject *dead_by(const lapse_stats *stats)
{
    Py_ssize_t count = sizeof stats->dead_by / sizeof stats->dead_by[0];
    PyObject *list = PyList_New(count);
    for (Py_ssize_t i = 0; list && i < count; i++) {
        PyObject *n = PyLong_FromUnsignedLongLong(stats->dead_by[i]);
        if (!n || PyList_SetItem(list, i, n))
            Py_CLEAR(list);
    }
    return list;
}

static PyObject *stats_dict(const lapse_stats *stats)
{
    PyObject *dict = PyDict_New();
    for (size_t i = 0; dict && i < sizeof figures / sizeof figures[0]; i++)
        if (add_value(dict, figures[i].name, figure_object(stats, &figures[i])))
            Py_CLEAR(dict);
    if (dict && add_value(dict, "dead_by", dead_by(stats)))
        Py_CLEAR(dict);
    return dict;
}

PyObject *scheduler_stats(PyObject *object, PyObject *Py_UNUSED(ignored))
{
    scheduler *self = (scheduler *)object;
    core *c = self->core;
    lapse_stats stats;
    int rc;
    if (!core_open_or_raise(self->state, c))
        return NULL;
    CORE_CALL(c, rc, lapse_statistics(c->s, &stats));
    return rc < 0 ? raise_code(self->state, rc) : stats_dict(&stats);
}
