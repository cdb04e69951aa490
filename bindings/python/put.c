/* put.c - from Python arguments to a lapse_spec.
 *
 * Everything is converted before anything is taken, so a bad argument changes nothing. */
#include "put.h"
#include "handle.h"

/* Of a code object's co_flags; the stable ABI has no names for them. */
#define IS_GENERATOR 0x20
#define IS_COROUTINE 0x80
#define IS_ITERABLE_COROUTINE 0x100
#define IS_ASYNC_GENERATOR 0x200
#define IS_LAZY (IS_GENERATOR | IS_COROUTINE | IS_ITERABLE_COROUTINE | IS_ASYNC_GENERATOR)

/* Only lapse_process would call it, and the binding begins and settles instead. */
lapse_verdict put_python_runs_it(const lapse_order *order, void *arg)
{
    (void)arg;
    return lapse_fail(order, "this order's callback is Python's to run");
}

/* What a partial or a bound method calls in the end; a new reference. */
static PyObject *underlying(binding_state *state, PyObject *callback)
{
    PyObject *f = Py_NewRef(callback);
    for (;;) {
        binding_name inner;
        if ((PyObject *)Py_TYPE(f) == state->method_type)
            inner = NAME___func__;
        else if ((PyObject *)Py_TYPE(f) == state->partial_type)
            inner = NAME_func;
        else
            return f;
        PyObject *next = attribute(state, f, inner);
        Py_DECREF(f);
        if (!next)
            return NULL;
        f = next;
    }
}

static long code_flags(binding_state *state, PyObject *function)
{
    PyObject *code = attribute(state, function, NAME___code__);
    PyObject *flags = code ? attribute(state, code, NAME_co_flags) : NULL;
    long bits = flags ? PyLong_AsLong(flags) : -1;
    Py_XDECREF(flags);
    Py_XDECREF(code);
    return bits;
}

/* The code flags of a function, or of the __call__ that the type of `f` has; 0 for what is
 * written in C. */
static long flags_of(binding_state *state, PyObject *f)
{
    if ((PyObject *)Py_TYPE(f) == state->function_type)
        return code_flags(state, f);
    PyObject *call = attribute(state, (PyObject *)Py_TYPE(f), NAME___call__);
    if (!call)
        return -1;
    long flags = (PyObject *)Py_TYPE(call) == state->function_type ? code_flags(state, call) : 0;
    Py_DECREF(call);
    return flags;
}

int put_check_callback(binding_state *state, const core *c, PyObject *callback)
{
    if (!PyCallable_Check(callback)) {
        PyErr_Format(PyExc_TypeError, "callback is a callable that takes the order, not %R",
                     callback);
        return -1;
    }
    PyObject *f = underlying(state, callback);
    if (!f)
        return -1;
    long flags = flags_of(state, f);
    Py_DECREF(f);
    if (flags < 0)
        return -1;
    if (!(flags & IS_LAZY) || (c->awaits && flags & IS_COROUTINE))
        return 0;
    if (flags & (IS_COROUTINE | IS_ITERABLE_COROUTINE))
        PyErr_Format(PyExc_TypeError,
                     "%R is a coroutine function, which nothing awaits: " COROUTINE_HINT, callback);
    else
        PyErr_Format(PyExc_TypeError,
                     "%R is a generator function, and calling it runs nothing: this scheduler runs "
                     "plain functions",
                     callback);
    return -1;
}

/* What a spec says beside what a `put` keeps valid. */
typedef struct plain {
    lapse_ns delay, at;
    unsigned flags;
} plain;

static int prepare_time(binding_state *state, PyObject *time, bool absolute, plain *out)
{
    if (!absolute)
        return convert_delay(state, "delay", time, &out->delay);
    if (convert_instant(state, "at", time, &out->at))
        return -1;
    if (!out->at)
        out->at = -1; /* 0 would say that there is none; 1970 is past either way */
    return 0;
}

static int prepare_flags(PyObject *replace, plain *out)
{
    int wanted = replace ? PyObject_IsTrue(replace) : 0;
    out->flags = wanted > 0 ? LAPSE_REPLACE : 0;
    return wanted < 0 ? -1 : 0;
}

static int prepare_payload(PyObject *payload, put *out)
{
    if (!payload || payload == Py_None)
        return 0;
    if (PyUnicode_Check(payload)) {
        PyErr_SetString(PyExc_TypeError, "payload is bytes: write \"...\".encode()");
        return -1;
    }
    if (!PyObject_CheckBuffer(payload))
        return refuse_type("payload is bytes-like", payload);
    return PyObject_GetBuffer(payload, &out->payload, PyBUF_SIMPLE);
}

/* A durable order outlives this process and its functions. */
static int refuse_unregistered(binding_state *state, PyObject *callback)
{
    raise_text(state, LAPSE_EUNSUPPORTED,
               "%R handles no such queue here: an order in a durable store outlives the process, "
               "so register the function with handle(\"name\", function), or name the queue that "
               "another process handles",
               callback);
    return -1;
}

static int prepare_callback(binding_state *state, core *c, PyObject *callback, put *out)
{
    if (c->may_block)
        return PyCallable_Check(callback) ? refuse_unregistered(state, callback)
                                          : put_check_callback(state, c, callback);
    out->runs = true;
    if (!slots_remembers(&c->slots, callback) && put_check_callback(state, c, callback))
        return -1;
    out->slot = slots_take(&c->slots, callback);
    return out->slot ? 0 : -1;
}

/* An order that a handler is for: its queue instead of a callback. */
static int prepare_queue(binding_state *state, PyObject *queue, put *out)
{
    text_done(&out->queue);
    out->runs = true;
    if (convert_queue(state, queue, &out->queue))
        return -1;
    if (!out->queue.owner)
        out->queue.owner = Py_NewRef(queue);
    return 0;
}

/* A callback of its own, a function that was registered instead of its queue's name, or
 * none: then it may still be for a handler. */
static int prepare_consumer(binding_state *state, core *c, const put_arguments *given, put *out)
{
    PyObject *callback = given->callback, *queue = NULL;
    out->runs = c->handlers != NULL;
    if (!callback || callback == Py_None)
        return 0;
    if (c->queues) {
        queue = handle_queue_of(state, c, callback, given->queue);
        if (PyErr_Occurred())
            return -1;
    }
    return queue ? prepare_queue(state, queue, out) : prepare_callback(state, c, callback, out);
}

int put_prepare(binding_state *state, core *c, const put_arguments *given, bool absolute, put *out)
{
    plain p = {.delay = 0};
    out->id = out->queue = (text){.bytes = NULL};
    out->payload.obj = out->payload.buf = NULL;
    out->payload.len = 0;
    out->slot = NULL;
    if (convert_id(state, given->order_id, &out->id) ||
        prepare_time(state, given->time, absolute, &p) ||
        (given->queue && convert_queue(state, given->queue, &out->queue)) ||
        prepare_flags(given->replace, &p) || prepare_payload(given->payload, out) ||
        prepare_consumer(state, c, given, out)) {
        put_done(c, out, false);
        return -1;
    }
    /* Every field is named: compilers clear all of it first if one is not, which costs more. */
    out->spec = (lapse_spec){
        .id = out->id.bytes,
        .id_len = out->id.len,
        .queue = out->queue.bytes,
        .delay = p.delay,
        .at = p.at,
        .payload = out->payload.buf,
        .payload_len = (size_t)out->payload.len,
        .fn = out->slot ? put_python_runs_it : NULL,
        .arg = out->slot,
        .release = NULL,
        .flags = p.flags,
    };
    return 0;
}

void put_done(core *c, put *p, bool accepted)
{
    text_done(&p->id);
    text_done(&p->queue);
    if (p->payload.obj)
        PyBuffer_Release(&p->payload);
    if (p->slot && !accepted)
        slots_give(&c->slots, p->slot);
    p->slot = NULL;
}
