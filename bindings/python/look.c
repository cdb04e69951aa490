/* look.c - get, orders, stats: what is there, as tuples and dicts.
 *
 * The tuples have the order of lapse.Info, which names their fields. */
#include "look.h"
#include "convert.h"
#include "scheduler.h"

#include <string.h>

static PyObject *bytes_or_empty(binding_state *state, const void *bytes, size_t len)
{
    return len ? PyBytes_FromStringAndSize(bytes, (Py_ssize_t)len) : Py_NewRef(state->no_payload);
}

/* (state, id, queue, payload, due, remaining, ended, generation, attempt, reason, error) */
PyObject *look_tuple(binding_state *state, const lapse_info *info)
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
    PyObject *tuple = look_tuple(self->state, &info);
    lapse_info_free(&info);
    return tuple;
}

typedef struct walk {
    binding_state *state;
    PyObject *list;
    PyThreadState *without; /* the GIL was given up: the store may block */
    bool failed;
} walk;

enum { PAUSE_EVERY = 1024 };

/* The core holds no lock here, so other threads may have the GIL for a while. */
static void add_to_list(walk *w, const lapse_info *info)
{
    PyObject *tuple = look_tuple(w->state, info);
    w->failed = !tuple || PyList_Append(w->list, tuple);
    Py_XDECREF(tuple);
    if (w->failed || PyList_Size(w->list) % PAUSE_EVERY)
        return;
    PyThreadState *gil = PyEval_SaveThread();
    PyEval_RestoreThread(gil);
    w->failed = PyErr_CheckSignals() != 0;
}

static bool see(const lapse_info *info, void *arg)
{
    walk *w = arg;
    bool waits = w->without != NULL;
    if (waits)
        PyEval_RestoreThread(w->without);
    add_to_list(w, info);
    if (waits)
        w->without = PyEval_SaveThread();
    return !w->failed;
}

static int64_t walk_all(walk *w, core *c, unsigned states)
{
    if (!c->may_block)
        return lapse_each(c->s, states, see, w);
    w->without = PyEval_SaveThread();
    int64_t rc = lapse_each(c->s, states, see, w);
    PyEval_RestoreThread(w->without);
    return rc;
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
    int64_t rc = walk_all(&w, c, (unsigned)bits);
    if (rc < 0 && !w.failed)
        raise_code(self->state, (int)rc);
    core_leave(c);
    if (rc < 0 || w.failed)
        Py_CLEAR(w.list);
    return w.list;
}

typedef enum figure_kind { COUNT, TIME, FLAG } figure_kind;

typedef struct figure {
    const char *name;
    size_t offset;
    figure_kind kind;
} figure;

#define FIGURE_OF(type, kind, name)                                                                \
    {                                                                                              \
#name, offsetof(type, name), kind                                                          \
    }
#define FIGURE(kind, name) FIGURE_OF(lapse_stats, kind, name)
#define QUEUE_FIGURE(kind, name) FIGURE_OF(lapse_queue_stats, kind, name)

static const figure figures[] = {
    FIGURE(COUNT, pending),  FIGURE(COUNT, running),     FIGURE(COUNT, kept),
    FIGURE(COUNT, dead),     FIGURE(COUNT, scheduled),   FIGURE(COUNT, refused),
    FIGURE(COUNT, replaced), FIGURE(COUNT, rescheduled), FIGURE(COUNT, cancelled),
    FIGURE(COUNT, done),     FIGURE(COUNT, dead_total),  FIGURE(COUNT, dead_dropped),
    FIGURE(COUNT, requeued), FIGURE(COUNT, purged),      FIGURE(COUNT, lost),
    FIGURE(COUNT, started),  FIGURE(COUNT, failed),      FIGURE(COUNT, retried),
    FIGURE(COUNT, rejected), FIGURE(COUNT, given_back),  FIGURE(COUNT, stale),
    FIGURE(TIME, late_p50),  FIGURE(TIME, late_p99),     FIGURE(TIME, late_p999),
    FIGURE(TIME, late_max),  FIGURE(TIME, oldest_due),   FIGURE(TIME, poll_bound),
    FIGURE(TIME, offline),   FIGURE(COUNT, bytes),       FIGURE(COUNT, longest_move),
};

static const figure queue_figures[] = {
    QUEUE_FIGURE(FLAG, handled),    QUEUE_FIGURE(FLAG, paused),      QUEUE_FIGURE(COUNT, pending),
    QUEUE_FIGURE(COUNT, running),   QUEUE_FIGURE(COUNT, dead),       QUEUE_FIGURE(COUNT, started),
    QUEUE_FIGURE(COUNT, done),      QUEUE_FIGURE(COUNT, failed),     QUEUE_FIGURE(COUNT, retried),
    QUEUE_FIGURE(COUNT, cancelled), QUEUE_FIGURE(COUNT, dead_total), QUEUE_FIGURE(TIME, oldest_due),
    QUEUE_FIGURE(TIME, late_p50),   QUEUE_FIGURE(TIME, late_p99),    QUEUE_FIGURE(TIME, late_max),
};

static PyObject *figure_object(const void *stats, const figure *f)
{
    const char *field = (const char *)stats + f->offset;
    if (f->kind == TIME)
        return convert_seconds(*(const lapse_ns *)(const void *)field);
    if (f->kind == FLAG)
        return PyBool_FromLong(*(const bool *)(const void *)field);
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
enum { REASONS = LAPSE_REASON_LOST + 1 };

static PyObject *dead_by(const uint64_t *by)
{
    PyObject *list = PyList_New(REASONS);
    for (Py_ssize_t i = 0; list && i < REASONS; i++) {
        PyObject *n = PyLong_FromUnsignedLongLong(by[i]);
        if (!n || PyList_SetItem(list, i, n))
            Py_CLEAR(list);
    }
    return list;
}

static PyObject *dict_of(const void *stats, const figure *rows, size_t count, const uint64_t *by)
{
    PyObject *dict = PyDict_New();
    for (size_t i = 0; dict && i < count; i++)
        if (add_value(dict, rows[i].name, figure_object(stats, &rows[i])))
            Py_CLEAR(dict);
    if (dict && add_value(dict, "dead_by", dead_by(by)))
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
    if (rc < 0)
        return raise_code(self->state, rc);
    return dict_of(&stats, figures, sizeof figures / sizeof figures[0], stats.dead_by);
}

PyObject *scheduler_queue_stats(PyObject *object, PyObject *queue)
{
    scheduler *self = (scheduler *)object;
    core *c = self->core;
    lapse_queue_stats stats;
    text name;
    int rc;
    if (!core_open_or_raise(self->state, c) || convert_queue(self->state, queue, &name))
        return NULL;
    CORE_CALL(c, rc, lapse_queue_statistics(c->s, name.bytes, &stats));
    text_done(&name);
    if (rc < 0)
        return raise_code(self->state, rc);
    return dict_of(&stats, queue_figures, sizeof queue_figures / sizeof queue_figures[0],
                   stats.dead_by);
}

PyObject *scheduler_queues(PyObject *object, PyObject *Py_UNUSED(ignored))
{
    scheduler *self = (scheduler *)object;
    core *c = self->core;
    PyObject *list = core_open_or_raise(self->state, c) ? PyList_New(0) : NULL;
    for (size_t n = 0; list && c->s; n++) {
        const char *name;
        CORE_CALL(c, name, lapse_queue_name(c->s, n));
        if (!name)
            break;
        PyObject *shown = text_object(name, strlen(name));
        if (!shown || PyList_Append(list, shown))
            Py_CLEAR(list);
        Py_XDECREF(shown);
    }
    return list;
}

PyObject *scheduler_metrics(PyObject *object, PyObject *Py_UNUSED(ignored))
{
    scheduler *self = (scheduler *)object;
    core *c = self->core;
    char *metrics;
    if (!core_open_or_raise(self->state, c))
        return NULL;
    CORE_CALL(c, metrics, lapse_metrics(c->s));
    if (!metrics)
        return raise_code(self->state, LAPSE_ENOMEM);
    PyObject *result = PyUnicode_DecodeUTF8(metrics, (Py_ssize_t)strlen(metrics), "replace");
    lapse_free(metrics);
    return result;
}
