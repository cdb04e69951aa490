/* take.c - claims without a callback: take and poll, and how they end.
 *
 * A take waits in C in slices, and looks at signals and news between them. */
#include "claim.h"
#include "convert.h"
#include "news.h"
#include "run.h"
#include "scheduler.h"

/* A claim as Python sees it; it knows its scheduler, to settle itself. */
static PyObject *claim_object(scheduler *self, core *c, const lapse_order *order)
{
    int64_t fence = order->fence;
    PyObject *claim = claim_make(self->state, c, self->state->claim_type, order);
    if (!claim || !PyObject_SetAttr(claim, self->state->names[NAME__scheduler], (PyObject *)self))
        return claim;
    Py_DECREF(claim);
    claim_give_back(c, fence);
    return NULL;
}

static PyObject *claim_or_none(scheduler *self, core *c, int rc, const lapse_order *order)
{
    if (rc == RUN_RAISED)
        return NULL;
    if (rc < 0)
        return raise_code(self->state, rc);
    if (rc == 0)
        Py_RETURN_NONE;
    return claim_object(self, c, order);
}

/* News are delivered between the waits, and by the caller once the claim is safe. */
static int take(binding_state *state, core *c, const char *queue, lapse_ns deadline,
                const lapse_order **order)
{
    int rc = LAPSE_ECLOSED;
    while (c->s) {
        lapse_ns slice = core_slice(c, deadline);
        PyThreadState *gil = PyEval_SaveThread();
        news_begin_wait();
        rc = lapse_take(c->s, queue, slice, order);
        news_end_wait();
        PyEval_RestoreThread(gil);
        if (rc == 1)
            break; /* a signal that came meanwhile is seen after the claim is safe */
        if (PyErr_CheckSignals())
            return RUN_RAISED;
        if (rc != LAPSE_EINTR && (rc < 0 || !core_remaining(deadline)))
            break;
        core_tidy(state, c);
    }
    return rc;
}

PyObject *scheduler_take(PyObject *object, PyObject *const *args, Py_ssize_t given,
                         PyObject *keywords)
{
    static const binding_name names[] = {NAME_queue, NAME_timeout};
    static const signature sig = {"take", names, 2, 0};
    scheduler *self = as_scheduler(object);
    core *c = self->core;
    PyObject *a[2];
    lapse_ns limit;
    text queue;
    const lapse_order *order = NULL;
    if (take_arguments(self->state, &sig, args, given, keywords, a) ||
        convert_timeout(self->state, a[1], &limit) || !core_open_or_raise(self->state, c) ||
        convert_queue(self->state, a[0], &queue))
        return NULL;
    core_enter(c);
    int rc = take(self->state, c, queue.bytes, core_deadline(limit), &order);
    PyObject *claim = claim_or_none(self, c, rc, order);
    text_done(&queue);
    core_tidy(self->state, c);
    core_leave(c);
    return claim;
}

PyObject *scheduler_poll(PyObject *object, PyObject *const *args, Py_ssize_t given,
                         PyObject *keywords)
{
    static const binding_name names[] = {NAME_queue};
    static const signature sig = {"poll", names, 1, 0};
    scheduler *self = as_scheduler(object);
    core *c = self->core;
    PyObject *a[1];
    text queue;
    const lapse_order *order = NULL;
    if (take_arguments(self->state, &sig, args, given, keywords, a) ||
        !core_open_or_raise(self->state, c) || convert_queue(self->state, a[0], &queue))
        return NULL;
    core_enter(c);
    int rc;
    CORE_CALL(c, rc, lapse_poll(c->s, queue.bytes, &order));
    PyObject *claim = claim_or_none(self, c, rc, order);
    text_done(&queue);
    core_tidy(self->state, c);
    core_leave(c);
    return claim;
}

PyObject *scheduler_settle(PyObject *object, PyObject *args)
{
    return claim_settle(as_scheduler(object)->state, as_scheduler(object)->core, args);
}

PyObject *scheduler_renew(PyObject *object, PyObject *args)
{
    return claim_renew(as_scheduler(object)->state, as_scheduler(object)->core, args);
}

PyObject *scheduler_holds(PyObject *object, PyObject *args)
{
    return claim_holds(as_scheduler(object)->core, args);
}
