/* change.c - calls that change orders: schedule, cancel, reschedule, requeue, purge. */
#include "convert.h"
#include "put.h"
#include "run.h"
#include "scheduler.h"

/* -- Schedule, cancel, change ---------------------------------------------------- */

static PyObject *put_order(scheduler *self, core *c, const put *p, PyObject *time)
{
    if (p->runs && scheduler_wake_workers(self))
        return NULL;
    if (!core_open_or_raise(self->state, c))
        return NULL;
    int64_t generation;
    CORE_CALL(c, generation, lapse_put(c->s, &p->spec));
    if (generation == LAPSE_ERANGE && p->spec.at) {
        refuse_instant(self->state, "at", time);
        return NULL;
    }
    if (generation < 0)
        return raise_code(self->state, (int)generation);
    return PyLong_FromLongLong(generation);
}

static PyObject *schedule(scheduler *self, const put_arguments *given, bool absolute)
{
    core *c = self->core;
    put p;
    if (!core_open_or_raise(self->state, c) || put_prepare(self->state, c, given, absolute, &p))
        return NULL;
    core_hold(c);
    PyObject *generation = put_order(self, c, &p, given->time);
    put_done(c, &p, generation != NULL);
    core_tidy(self->state, c);
    core_drop(c);
    return generation;
}

static const binding_name schedule_names[] = {NAME_order_id, NAME_delay, NAME_callback,
                                              NAME_payload,  NAME_queue, NAME_replace};
static const signature schedule_signature = {"schedule", schedule_names, PUT_ARGUMENTS, 2};

static const binding_name schedule_at_names[] = {NAME_order_id, NAME_at,    NAME_callback,
                                                 NAME_payload,  NAME_queue, NAME_replace};
static const signature schedule_at_signature = {"schedule_at", schedule_at_names, PUT_ARGUMENTS, 2};

static PyObject *schedule_fast(PyObject *object, const signature *sig, PyObject *const *args,
                               Py_ssize_t given, PyObject *keywords)
{
    scheduler *self = as_scheduler(object);
    put_arguments a;
    if (take_arguments(self->state, sig, args, given, keywords, a.all))
        return NULL;
    return schedule(self, &a, sig == &schedule_at_signature);
}

PyObject *scheduler_schedule(PyObject *self, PyObject *const *args, Py_ssize_t given,
                             PyObject *keywords)
{
    return schedule_fast(self, &schedule_signature, args, given, keywords);
}

PyObject *scheduler_schedule_at(PyObject *self, PyObject *const *args, Py_ssize_t given,
                                PyObject *keywords)
{
    return schedule_fast(self, &schedule_at_signature, args, given, keywords);
}

static PyObject *fate_or_raise(binding_state *state, core *c, int fate)
{
    PyObject *result = fate < 0 ? raise_code(state, fate) : fate_object(state, fate);
    core_tidy(state, c);
    return result;
}

PyObject *scheduler_cancel(PyObject *object, PyObject *const *args, Py_ssize_t given,
                           PyObject *keywords)
{
    static const binding_name names[] = {NAME_order_id, NAME_generation};
    static const signature sig = {"cancel", names, 2, 1};
    scheduler *self = as_scheduler(object);
    PyObject *a[2];
    text id;
    int64_t generation;
    if (take_arguments(self->state, &sig, args, given, keywords, a) ||
        convert_generation(a[1], &generation) || convert_id(self->state, a[0], &id))
        return NULL;
    core *c = self->core;
    int fate = LAPSE_FATE_UNKNOWN; /* closed, or an id that cannot exist */
    if (c && c->s && !text_holds_nul(&id))
        CORE_CALL(c, fate, lapse_cancel(c->s, id.bytes, generation));
    text_done(&id);
    return c ? fate_or_raise(self->state, c, fate) : fate_object(self->state, fate);
}

PyObject *scheduler_reschedule(PyObject *object, PyObject *const *args, Py_ssize_t given,
                               PyObject *keywords)
{
    static const binding_name names[] = {NAME_order_id, NAME_delay, NAME_generation};
    static const signature sig = {"reschedule", names, 3, 2};
    scheduler *self = as_scheduler(object);
    PyObject *a[3];
    text id;
    int64_t generation;
    lapse_ns delay;
    core *c = self->core;
    if (take_arguments(self->state, &sig, args, given, keywords, a) ||
        convert_generation(a[2], &generation) ||
        convert_delay(self->state, "delay", a[1], &delay) || !core_open_or_raise(self->state, c) ||
        convert_id(self->state, a[0], &id))
        return NULL;
    int fate = LAPSE_FATE_UNKNOWN;
    if (!text_holds_nul(&id))
        CORE_CALL(c, fate, lapse_reschedule(c->s, id.bytes, generation, delay));
    text_done(&id);
    return fate_or_raise(self->state, c, fate);
}

/* The answer is that of the moment it was called; then the callback is waited for. */
static PyObject *cancel_and_wait(scheduler *self, core *c, const text *id, int64_t generation,
                                 lapse_ns deadline)
{
    int fate;
    CORE_CALL(c, fate, lapse_cancel(c->s, id->bytes, generation));
    if (fate < 0)
        return raise_code(self->state, fate);
    PyObject *shown = text_object(id->bytes, id->len);
    if (!shown)
        return NULL;
    int late = core_wait_order(c, shown, generation, deadline);
    PyObject *result = NULL;
    if (late == 1)
        raise_text(self->state, LAPSE_ETIMEOUT, "order %R still runs: it will not be repeated",
                   shown);
    else if (!late)
        result = fate_object(self->state, fate);
    Py_DECREF(shown);
    core_tidy(self->state, c);
    return result;
}

PyObject *scheduler_cancel_wait(PyObject *object, PyObject *const *args, Py_ssize_t given,
                                PyObject *keywords)
{
    static const binding_name names[] = {NAME_order_id, NAME_timeout, NAME_generation};
    static const signature sig = {"cancel_wait", names, 3, 1};
    scheduler *self = as_scheduler(object);
    PyObject *a[3], *result;
    text id;
    int64_t generation;
    lapse_ns limit;
    core *c = self->core;
    if (take_arguments(self->state, &sig, args, given, keywords, a) ||
        convert_generation(a[2], &generation) || convert_timeout(self->state, a[1], &limit) ||
        convert_id(self->state, a[0], &id))
        return NULL;
    if (!c || !c->s || text_holds_nul(&id)) {
        result = fate_object(self->state, LAPSE_FATE_UNKNOWN);
    } else {
        core_hold(c);
        result = cancel_and_wait(self, c, &id, generation, core_deadline(limit));
        core_drop(c);
    }
    text_done(&id);
    return result;
}

/* -- Dead letters ------------------------------------------------------------------ */

PyObject *scheduler_requeue(PyObject *object, PyObject *const *args, Py_ssize_t given,
                            PyObject *keywords)
{
    static const binding_name names[] = {NAME_order_id, NAME_delay, NAME_generation};
    static const signature sig = {"requeue", names, 3, 1};
    scheduler *self = as_scheduler(object);
    core *c = self->core;
    PyObject *a[3], *result;
    text id;
    int64_t generation, made = LAPSE_EUNKNOWN;
    lapse_ns delay = 0;
    if (take_arguments(self->state, &sig, args, given, keywords, a) ||
        convert_generation(a[2], &generation) ||
        (a[1] && convert_delay(self->state, "delay", a[1], &delay)) ||
        !core_open_or_raise(self->state, c) || scheduler_wake_workers(self) ||
        !core_open_or_raise(self->state, c) || convert_id(self->state, a[0], &id))
        return NULL;
    if (!text_holds_nul(&id))
        CORE_CALL(c, made, lapse_requeue(c->s, id.bytes, generation, delay));
    text_done(&id);
    if (made == LAPSE_EUNKNOWN)
        result = raise_text(self->state, LAPSE_EUNKNOWN, "no dead letter of %R", a[0]);
    else if (made < 0)
        result = raise_code(self->state, (int)made);
    else
        result = PyLong_FromLongLong(made);
    core_tidy(self->state, c);
    return result;
}

PyObject *scheduler_purge(PyObject *object, PyObject *const *args, Py_ssize_t given,
                          PyObject *keywords)
{
    static const binding_name names[] = {NAME_order_id, NAME_generation};
    static const signature sig = {"purge", names, 2, 0};
    scheduler *self = as_scheduler(object);
    core *c = self->core;
    PyObject *a[2];
    text id = {0};
    int64_t generation, purged = 0;
    if (take_arguments(self->state, &sig, args, given, keywords, a) ||
        convert_generation(a[1], &generation) || !core_open_or_raise(self->state, c) ||
        (a[0] && a[0] != Py_None && convert_id(self->state, a[0], &id)))
        return NULL;
    if (!text_holds_nul(&id))
        CORE_CALL(c, purged, lapse_purge(c->s, id.bytes, generation));
    text_done(&id);
    PyObject *result =
        purged < 0 ? raise_code(self->state, (int)purged) : PyLong_FromLongLong(purged);
    core_tidy(self->state, c);
    return result;
}
