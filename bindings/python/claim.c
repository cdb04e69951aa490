/* claim.c - a claim from outside: take it, settle it, hold it longer.
 *
 * On a store that may block these give up the GIL. */
#include "claim.h"
#include "convert.h"
#include "news.h"
#include "order.h"

void claim_give_back(core *c, int64_t fence)
{
    int ignored = 0;
    if (c->s)
        CORE_CALL(c, ignored, lapse_settle(c->s, fence, LAPSE_GIVE_BACK, 0, NULL));
    (void)ignored;
}

PyObject *claim_make(binding_state *state, core *c, PyObject *type, const lapse_order *order)
{
    int64_t fence = order->fence;
    PyObject *claim = order_object(state, type, order);
    if (!claim)
        claim_give_back(c, fence);
    return claim;
}

static int take(core *c, const char *queue, lapse_ns limit, const lapse_order **order)
{
    int rc;
    if (limit <= 0) {
        CORE_CALL(c, rc, lapse_poll(c->s, queue, order));
        return rc;
    }
    PyThreadState *gil = PyEval_SaveThread();
    rc = lapse_take(c->s, queue, limit, order);
    PyEval_RestoreThread(gil);
    return rc == LAPSE_EINTR ? 0 : rc;
}

PyObject *claim_take(binding_state *state, core *c, PyObject *queue, PyObject *type, lapse_ns limit)
{
    text name;
    const lapse_order *order = NULL;
    PyObject *claim = NULL;
    if (!core_open_or_raise(state, c) || convert_queue(state, queue, &name))
        return NULL;
    core_enter(c);
    int rc = take(c, name.bytes, limit, &order);
    if (rc < 0)
        raise_code(state, rc);
    else
        claim = rc ? claim_make(state, c, type, order) : Py_NewRef(Py_None);
    text_done(&name);
    core_tidy(state, c);
    core_leave(c);
    return claim;
}

PyObject *claim_settle(binding_state *state, core *c, PyObject *args)
{
    long long fence, delay;
    int verdict, rc;
    const char *error;
    if (!PyArg_ParseTuple(args, "LiLz:settle", &fence, &verdict, &delay, &error) ||
        !core_open_or_raise(state, c))
        return NULL;
    if (verdict == LAPSE_FAIL)
        CORE_CALL(c, rc, news_settle_failed(c->s, fence, error));
    else
        CORE_CALL(c, rc, lapse_settle(c->s, fence, (lapse_verdict)verdict, delay, error));
    if (rc < 0)
        raise_code(state, rc);
    core_tidy(state, c);
    return rc < 0 ? NULL : Py_NewRef(Py_None);
}

PyObject *claim_renew(binding_state *state, core *c, PyObject *args)
{
    long long fence, lease;
    int rc;
    if (!PyArg_ParseTuple(args, "LL:renew", &fence, &lease) || !core_open_or_raise(state, c))
        return NULL;
    CORE_CALL(c, rc, lapse_renew(c->s, fence, lease));
    if (rc < 0)
        return raise_code(state, rc);
    Py_RETURN_NONE;
}

PyObject *claim_holds(core *c, PyObject *args)
{
    long long fence;
    bool holds = false;
    if (!PyArg_ParseTuple(args, "L:holds", &fence))
        return NULL;
    if (c && c->s)
        CORE_CALL(c, holds, lapse_holds(c->s, fence));
    return PyBool_FromLong(holds);
}
