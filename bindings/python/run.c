/* run.c - begin, call back, settle.
 *
 * A thread waits in the core without the GIL, takes it once and runs what is due. An event
 * loop never waits here; it is handed what callbacks want awaited. What a callback raises
 * never leaves this file: Retry and Reject, returned as well, are verdicts, the rest goes to
 * report(). No order is half done when run_due returns: signals are looked
 * at between orders only. */
#include "run.h"
#include "claim.h"
#include "news.h"
#include "order.h"
#include "put.h"
#include "watch.h"

#include <signal.h>
#include <time.h>

/* What a callback said about its order. */
typedef struct verdict {
    bool later; /* nothing yet: the event loop has it now, and settles */
    lapse_verdict what;
    lapse_ns delay;  /* LAPSE_RETRY */
    PyObject *error; /* str or NULL */
} verdict;

/* The exception that is set, taken over, complete with its traceback. */
static PyObject *take_raised(void)
{
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    if (traceback && value)
        PyException_SetTraceback(value, traceback);
    Py_XDECREF(type);
    Py_XDECREF(traceback);
    return value;
}

/* Report an error once: to on_error, else logging, else as unraisable. */
static verdict failed(binding_state *state, PyObject *on_error, PyObject *order, PyObject *error)
{
    PyObject *told = PyObject_CallFunctionObjArgs(state->report, on_error ? on_error : Py_None,
                                                  order, error, NULL);
    if (!told)
        PyErr_WriteUnraisable(order);
    return (verdict){.what = LAPSE_FAIL, .error = told};
}

/* Retry and Reject keep what they were made with as `_delay_ns` and `error`. */
static int asked(binding_state *state, PyObject *raised, verdict *out)
{
    PyObject *delay = attribute(state, raised, NAME__delay_ns);
    out->delay = delay ? PyLong_AsLongLong(delay) : -1;
    Py_XDECREF(delay);
    if (PyErr_Occurred())
        return -1;
    out->error = attribute(state, raised, NAME_error);
    if (out->error && PyUnicode_Check(out->error))
        return 0;
    Py_CLEAR(out->error);
    return PyErr_Occurred() ? -1 : 0;
}

static verdict judge(binding_state *state, PyObject *on_error, PyObject *order, PyObject *raised)
{
    verdict v = {.what = LAPSE_FAIL};
    if (PyErr_GivenExceptionMatches(raised, state->retry_type))
        v.what = LAPSE_RETRY;
    else if (PyErr_GivenExceptionMatches(raised, state->reject_type))
        v.what = LAPSE_REJECT;
    else
        return failed(state, on_error, order, raised);
    if (!asked(state, raised, &v))
        return v;
    PyObject *broken = take_raised(); /* a subclass that lacks what Retry sets */
    v = failed(state, on_error, order, broken);
    Py_XDECREF(broken);
    return v;
}

/* A coroutine that nobody awaits would be an order that nobody closed. */
static int refuse_coroutine(binding_state *state, PyObject *result)
{
    if ((PyObject *)Py_TYPE(result) != state->coroutine_type)
        return 0;
    PyObject *closed = call_method(state, result, NAME_close);
    Py_XDECREF(closed);
    if (closed)
        PyErr_SetString(PyExc_TypeError,
                        "the callback returned a coroutine, which nothing awaits: " COROUTINE_HINT);
    return -1;
}

static bool is_verdict(binding_state *state, PyObject *result)
{
    return PyErr_GivenExceptionMatches(result, state->retry_type) ||
           PyErr_GivenExceptionMatches(result, state->reject_type);
}

/* A Retry or Reject that was returned, as an instance or a class, is as good as raised. */
static PyObject *returned_verdict(binding_state *state, PyObject *result)
{
    if (result == Py_None || !is_verdict(state, result))
        return NULL;
    if (!PyType_Check(result))
        return Py_NewRef(result);
    PyObject *made = PyObject_CallNoArgs(result);
    return made ? made : take_raised();
}

/* What the callback returned: NULL with what it, or what is around it, raised. */
static PyObject *call_plain(binding_state *state, PyObject *around, PyObject *callback,
                            PyObject *order)
{
    PyObject *result =
        around ? PyObject_CallFunctionObjArgs(state->surround, around, callback, order, NULL)
               : PyObject_CallFunctionObjArgs(callback, order, NULL);
    if (result && refuse_coroutine(state, result))
        Py_CLEAR(result);
    return result;
}

static bool is_awaitable(binding_state *state, PyObject *result)
{
    PyObject *type = (PyObject *)Py_TYPE(result);
    if (type == state->coroutine_type || result == Py_None)
        return result != Py_None;
    PyObject *await = attribute(state, type, NAME___await__);
    if (!await)
        PyErr_Clear();
    Py_XDECREF(await);
    return await != NULL;
}

/* In an event loop: true when it goes on with the order; else *result is as in call_plain.
 * What is around a callback stays until its answer, so the loop calls those itself. */
static bool call_in_loop(binding_state *state, const run_loop *loop, PyObject *around,
                         PyObject *callback, PyObject *order, PyObject **result)
{
    PyObject *told;
    if (around) {
        told = PyObject_CallFunctionObjArgs(loop->enter, order, callback, around, NULL);
    } else {
        *result = PyObject_CallFunctionObjArgs(callback, order, NULL);
        if (!*result || !is_awaitable(state, *result))
            return false;
        told = PyObject_CallFunctionObjArgs(loop->start, order, *result, NULL);
        Py_CLEAR(*result);
    }
    Py_XDECREF(told);
    return told != NULL;
}

static verdict call_back(binding_state *state, const run_loop *loop, core *c, PyObject *callback,
                         PyObject *order)
{
    verdict v = {.later = false, .what = LAPSE_DONE};
    PyObject *on_error = Py_XNewRef(c->on_error), *around = Py_XNewRef(c->around), *result = NULL;
    if (loop)
        v.later = call_in_loop(state, loop, around, callback, order, &result);
    else
        result = call_plain(state, around, callback, order);
    if (!v.later) {
        PyObject *said = result ? returned_verdict(state, result) : take_raised();
        Py_XDECREF(result);
        if (said)
            v = judge(state, on_error, order, said);
        Py_XDECREF(said);
    }
    Py_XDECREF(around);
    Py_XDECREF(on_error);
    return v;
}

/* LAPSE_ESTALE, when the id was scheduled anew meanwhile, is as good as settled; a core
 * that was forked away from the callback has nothing to settle. */
static void settle(core *c, int64_t fence, verdict *v)
{
    int ignored = 0;
    const char *error = v->error ? PyUnicode_AsUTF8AndSize(v->error, NULL) : NULL;
    if (v->error && !error)
        PyErr_Clear();
    if (c->s && v->what == LAPSE_FAIL)
        CORE_CALL(c, ignored, news_settle_failed(c->s, fence, error));
    else if (c->s)
        CORE_CALL(c, ignored, lapse_settle(c->s, fence, v->what, v->delay, error));
    (void)ignored;
    Py_CLEAR(v->error);
}

/* Run the callback of an order that was begun, and settle it; `order` ends with that.
 * True when the event loop has it now. */
static bool run_callback(binding_state *state, const run_loop *loop, core *c,
                         const lapse_order *order, PyObject *callback)
{
    int64_t fence = order->fence;
    verdict v = {.what = LAPSE_FAIL};
    core_frame here = {.core = c, .generation = order->generation};
    here.order = order_object(state, state->order_type, order);
    if (!here.order) {
        PyErr_WriteUnraisable(callback);
        settle(c, fence, &v);
        return false;
    }
    core_push_frame(&here);
    v = call_back(state, loop, c, callback, here.order);
    if (!v.later)
        settle(c, fence, &v);
    core_pop_frame(&here);
    Py_DECREF(here.order);
    return v.later;
}

/* Begin the next order that is due by `until`: 1, with its callback, a new reference that
 * is NULL when the collector took it, so that the scheduler is stopped; 0: none is; or an
 * error. */
static int begin_one(binding_state *state, core *c, lapse_ns until, const lapse_order **order,
                     PyObject **callback)
{
    lapse_callback fn;
    void *arg;
    int rc;
    if (!c->s)
        return LAPSE_ECLOSED;
    CORE_CALL(c, rc, lapse_begin(c->s, until, order, &fn, &arg));
    if (rc == 0)
        core_tidy(state, c);
    if (rc == 1)
        *callback = Py_XNewRef(((slot *)arg)->callback);
    return rc;
}

/* Start the next order that is due by `until`, and finish it or leave it to the loop, which
 * has room for one less then: 1; 0: none is due; or an error. */
static int run_one(binding_state *state, run_loop *loop, core *c, lapse_ns until)
{
    const lapse_order *order;
    PyObject *callback;
    int rc = begin_one(state, c, until, &order, &callback);
    if (rc != 1)
        return rc;
    if (!callback)
        claim_give_back(c, order->fence);
    else if (run_callback(state, loop, c, order, callback))
        loop->room--;
    core_tidy(state, c);
    Py_XDECREF(callback);
    return 1;
}

enum { CHECK_EVERY = 64 };
#define HOLD_MAX INT64_C(5000000) /* nanoseconds, CPython's own switch interval */

/* Callbacks written in C never let go of the GIL by themselves. */
static void let_others(lapse_ns *since)
{
    if (core_now() - *since < HOLD_MAX)
        return;
    PyThreadState *gil = PyEval_SaveThread();
    PyEval_RestoreThread(gil);
    *since = core_now();
}

static int64_t run_batch(binding_state *state, core *c, uint64_t max)
{
    lapse_ns until = lapse_now(c->s);
    lapse_ns since = core_now();
    int64_t ran = 0;
    for (;;) {
        if (max && (uint64_t)ran == max)
            return ran;
        int rc = run_one(state, NULL, c, until);
        if (rc == 0 || (rc < 0 && ran))
            return ran;
        if (rc < 0)
            return rc;
        if (++ran % CHECK_EVERY)
            continue;
        if (PyErr_CheckSignals())
            return RUN_RAISED;
        let_others(&since);
    }
}

/* A loop claims one order of a durable store at first. Each time that all of them began at once it
 * claims twice as many, but no more than it has room for; when that took its time, half as many: a
 * burst needs few looks at the store, and few orders wait for a busy loop while another is idle. */
enum { BATCH_MOST = 256 };
#define AT_ONCE INT64_C(4000000) /* nanoseconds */

static void want_batch(core *c, uint64_t room)
{
    uint64_t most = room < c->batch ? room : c->batch;
    int rc;
    most = most ? most : 1;
    if (!c->may_block || !c->s || c->wanted == most)
        return;
    CORE_CALL(c, rc, lapse_want(c->s, (unsigned)most));
    c->wanted = rc < 0 ? 0 : (unsigned)most;
}

static void judge_batch(core *c, uint64_t ran, lapse_ns took)
{
    uint64_t batch = ran < c->batch ? ran : 2 * ran;
    if (ran == 0)
        return;
    if (took > AT_ONCE)
        batch = c->batch / 2;
    c->batch = batch < 1 ? 1 : batch > BATCH_MOST ? BATCH_MOST : (unsigned)batch;
}

/* Ends when nothing is due, when the loop has no room, and early enough to let it do
 * something else: the descriptor stays readable then. */
static int64_t run_loop_batch(binding_state *state, run_loop *loop, core *c)
{
    lapse_ns until = lapse_now(c->s);
    lapse_ns since = core_now();
    int64_t ran = 0;
    while (loop->room) {
        want_batch(c, loop->room);
        int rc = run_one(state, loop, c, until);
        if (rc == 0)
            judge_batch(c, (uint64_t)ran, core_now() - since);
        if (rc == 0 || (rc < 0 && ran))
            return ran;
        if (rc < 0)
            return rc;
        if (++ran % CHECK_EVERY)
            continue;
        if (PyErr_CheckSignals())
            return RUN_RAISED;
        if (core_now() - since >= HOLD_MAX)
            break;
    }
    judge_batch(c, (uint64_t)ran, core_now() - since);
    return ran;
}

/* The host has been told of the stop: its descriptor is not readable any more. Of a
 * stopped scheduler lapse_process runs nothing and does just that. */
static void tell_stopped(core *c)
{
    int64_t ignored;
    if (!c->s)
        return;
    CORE_CALL(c, ignored, lapse_process(c->s, 1));
    (void)ignored;
}

/* What a pass came to; a host learns of a stop but once. */
static int64_t end_pass(core *c, int64_t ran)
{
    if (ran == LAPSE_ECLOSED)
        tell_stopped(c);
    core_leave(c);
    return ran;
}

int64_t run_due(binding_state *state, core *c, uint64_t max)
{
    if (!c->s)
        return LAPSE_ECLOSED;
    core_enter(c);
    return end_pass(c, run_batch(state, c, max));
}

int64_t run_in_loop(binding_state *state, core *c, run_loop *loop)
{
    if (!c->s)
        return LAPSE_ECLOSED;
    core_enter(c);
    return end_pass(c, run_loop_batch(state, loop, c));
}

/* Wait for work without the GIL; a worker blocks signals meanwhile, so that they go to the
 * threads of the host, and gets its own mask back before any callback runs. */
static int wait_for_work(core *c, bool is_worker)
{
    int rc;
    sigset_t all, before;
    lapse *s = c->s;
    lapse_ns timeout = is_worker ? LAPSE_FOREVER : core_slice(c, LAPSE_FOREVER);
    PyThreadState *gil = PyEval_SaveThread();
    if (is_worker) {
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
    }
    news_begin_wait();
    rc = lapse_wait(s, timeout);
    news_end_wait();
    if (is_worker)
        pthread_sigmask(SIG_SETMASK, &before, NULL);
    PyEval_RestoreThread(gil);
    return rc;
}

/* Memory is short: the order stays due, and the thread lives on to try again. */
static int breathe(void)
{
    struct timespec pause = {.tv_nsec = 10000000};
    PyThreadState *gil = PyEval_SaveThread();
    nanosleep(&pause, NULL);
    PyEval_RestoreThread(gil);
    return 0;
}

int run_until_stopped(binding_state *state, core *c, bool is_worker)
{
    int64_t rc = 0;
    core_enter(c);
    while (rc >= 0 && c->s) {
        rc = wait_for_work(c, is_worker);
        core_tidy(state, c);
        if (PyErr_CheckSignals())
            rc = RUN_RAISED;
        else if (rc == LAPSE_EINTR)
            rc = 0;
        else if (rc > 0 && c->s)
            rc = run_batch(state, c, 0);
        if (rc == LAPSE_ENOMEM)
            rc = breathe();
    }
    core_leave(c);
    if (rc == RUN_RAISED)
        return -1;
    if (rc >= 0 || rc == LAPSE_ECLOSED)
        return 0;
    raise_code(state, (int)rc);
    return -1;
}
