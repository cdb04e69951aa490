/* ask.c - calls that an event loop submits to a durable store, and whose answers it collects.
 *
 * Nothing here waits. A call is known by its tag, a number of the loop's, whose lowest bits
 * say what was asked: the answer is turned into what the waiting call returns. No Python
 * object is kept for it. On a store in memory the loop makes the call itself. */
#include "ask.h"
#include "look.h"
#include "put.h"
#include "scheduler.h"

#include <string.h>

enum { WHAT_BITS = 3, WHAT_MASK = (1 << WHAT_BITS) - 1 };

/* -- Submit ------------------------------------------------------------------------- */

static int submit(scheduler *self, core *c, const lapse_ask *ask)
{
    if (!core_open_or_raise(self->state, c))
        return -1;
    int rc = lapse_submit(c->s, ask);
    if (rc < 0)
        raise_code(self->state, rc);
    return rc < 0 ? -1 : 0;
}

static int submit_put(scheduler *self, core *c, const put_arguments *given, bool absolute,
                      unsigned long long tag)
{
    put p;
    if (put_prepare(self->state, c, given, absolute, &p))
        return -1;
    lapse_ask ask = {.what = LAPSE_ASK_PUT, .tag = (void *)(uintptr_t)tag, .spec = &p.spec};
    int rc = submit(self, c, &ask);
    put_done(c, &p, rc == 0);
    return rc;
}

PyObject *scheduler_submit_put(PyObject *object, PyObject *args)
{
    scheduler *self = (scheduler *)object;
    core *c = self->core;
    put_arguments given;
    unsigned long long tag;
    int absolute;
    if (!PyArg_ParseTuple(args, "pOOOOOOK:_submit_put", &absolute, &given.order_id, &given.time,
                          &given.callback, &given.payload, &given.queue, &given.replace, &tag) ||
        !core_open_or_raise(self->state, c))
        return NULL;
    core_hold(c);
    int rc = submit_put(self, c, &given, absolute != 0, tag << WHAT_BITS | LAPSE_ASK_PUT);
    core_tidy(self->state, c);
    core_drop(c);
    if (rc)
        return NULL;
    Py_RETURN_NONE;
}

static bool has_delay(int what)
{
    return what == LAPSE_ASK_RESCHEDULE || what == LAPSE_ASK_REQUEUE;
}

/* False when the call itself knows the answer: no order can have this id, or it is a cancel
 * after close. */
PyObject *scheduler_submit(PyObject *object, PyObject *args)
{
    scheduler *self = (scheduler *)object;
    core *c = self->core;
    PyObject *order_id, *generation, *delay;
    unsigned long long tag;
    int what;
    if (!PyArg_ParseTuple(args, "iOOOK:_submit", &what, &order_id, &generation, &delay, &tag))
        return NULL;
    lapse_ask ask = {.what = (lapse_what)what,
                     .tag = (void *)(uintptr_t)(tag << WHAT_BITS | (unsigned)what)};
    text id;
    if (what == LAPSE_ASK_CANCEL && !scheduler_is_open(object))
        Py_RETURN_FALSE;
    if (convert_generation(generation, &ask.generation) ||
        (has_delay(what) && convert_delay(self->state, "delay", delay, &ask.delay)) ||
        !core_open_or_raise(self->state, c) || convert_id(self->state, order_id, &id))
        return NULL;
    bool possible = !text_holds_nul(&id);
    ask.id = id.bytes;
    int rc = possible ? submit(self, c, &ask) : 0;
    text_done(&id);
    return rc ? NULL : PyBool_FromLong(possible);
}

/* -- Collect ------------------------------------------------------------------------ */

static PyObject *as_error(binding_state *state, const lapse_answer *a)
{
    const char *words = a->detail && *a->detail ? a->detail : lapse_strerror((int)a->result);
    return error_with(state, (int)a->result, words);
}

static PyObject *as_result(binding_state *state, int what, const lapse_answer *a)
{
    if (what == LAPSE_ASK_GET && a->result == LAPSE_EUNKNOWN)
        return Py_NewRef(Py_None);
    if (a->result < 0)
        return as_error(state, a);
    if (what == LAPSE_ASK_GET)
        return look_tuple(state, &a->info);
    if (what == LAPSE_ASK_CANCEL || what == LAPSE_ASK_RESCHEDULE)
        return fate_object(state, (int)a->result);
    return PyLong_FromLongLong(a->result);
}

/* (tag, result); an error is an exception that is not raised. */
static PyObject *as_pair(binding_state *state, const lapse_answer *a)
{
    uintptr_t tag = (uintptr_t)a->tag;
    PyObject *result = as_result(state, (int)(tag & WHAT_MASK), a);
    return result ? Py_BuildValue("KN", (unsigned long long)tag >> WHAT_BITS, result) : NULL;
}

PyObject *ask_collect(binding_state *state, core *c)
{
    lapse_answer answer;
    if (!core_open_or_raise(state, c))
        return NULL;
    int rc = lapse_collect(c->s, &answer);
    if (rc < 0)
        return raise_code(state, rc);
    if (rc == 0)
        Py_RETURN_NONE;
    PyObject *pair = as_pair(state, &answer);
    lapse_answer_free(&answer);
    core_tidy(state, c);
    return pair;
}
