/* worker.c - lapse._lapse.Worker: what a thread or an event loop holds instead of its
 * Scheduler.
 *
 * It refers to no Python object: on_error is the Scheduler's, and gone when it is. A worker of
 * a closed or forked scheduler answers with an error. */
#include "worker.h"
#include "ask.h"
#include "claim.h"
#include "run.h"
#include "watch.h"

typedef struct worker {
    PyObject_HEAD core *core;
    binding_state *state; /* the type keeps the module alive */
} worker;

static worker *as_worker(PyObject *object)
{
    return (worker *)object;
}

PyObject *worker_new(binding_state *state, core *c)
{
    PyTypeObject *type = (PyTypeObject *)state->worker_type;
    worker *self = (worker *)PyType_GenericAlloc(type, 0);
    if (!self)
        return NULL;
    self->core = core_hold(c);
    self->state = state;
    return (PyObject *)self;
}

static void worker_dealloc(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    core *c = ((worker *)object)->core;
    if (c)
        core_drop(c);
    freefunc release = TYPE_FUNCTION(freefunc, type, Py_tp_free);
    release(object);
    Py_DECREF(type);
}

static PyObject *worker_run(PyObject *object, PyObject *Py_UNUSED(ignored))
{
    worker *self = as_worker(object);
    if (run_until_stopped(self->state, self->core, true))
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *worker_watch(PyObject *object, PyObject *Py_UNUSED(ignored))
{
    worker *self = as_worker(object);
    if (watch_until_stopped(self->state, self->core))
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *worker_stop(PyObject *object, PyObject *Py_UNUSED(ignored))
{
    worker *self = as_worker(object);
    int rc = core_stop(self->core);
    if (rc < 0)
        return raise_code(self->state, rc);
    Py_RETURN_NONE;
}

static PyObject *ran_or_raise(binding_state *state, int64_t ran)
{
    if (ran == RUN_RAISED)
        return NULL;
    return ran < 0 ? raise_code(state, (int)ran) : PyLong_FromLongLong(ran);
}

static PyObject *worker_serve(PyObject *object, PyObject *args)
{
    worker *self = as_worker(object);
    run_loop loop;
    unsigned long long room;
    if (!PyArg_ParseTuple(args, "OOK:serve", &loop.start, &loop.enter, &room))
        return NULL;
    loop.room = room;
    return ran_or_raise(self->state, run_in_loop(self->state, self->core, &loop));
}

/* Any wait of the core sees to claims that last too long; this one is over at once. */
static PyObject *worker_look(PyObject *object, PyObject *Py_UNUSED(ignored))
{
    worker *self = as_worker(object);
    core *c = self->core;
    int ignored;
    if (c->s) {
        core_enter(c);
        CORE_CALL(c, ignored, lapse_wait(c->s, 0));
        (void)ignored;
        core_tidy(self->state, c);
        core_leave(c);
    }
    Py_RETURN_NONE;
}

static PyObject *worker_take(PyObject *object, PyObject *args)
{
    worker *self = as_worker(object);
    PyObject *queue, *type;
    long long limit;
    if (!PyArg_ParseTuple(args, "OOL:take", &queue, &type, &limit))
        return NULL;
    return claim_take(self->state, self->core, queue, type, limit);
}

static PyObject *worker_collect(PyObject *object, PyObject *Py_UNUSED(ignored))
{
    return ask_collect(as_worker(object)->state, as_worker(object)->core);
}

static PyObject *worker_settle(PyObject *object, PyObject *args)
{
    return claim_settle(as_worker(object)->state, as_worker(object)->core, args);
}

static PyObject *worker_renew(PyObject *object, PyObject *args)
{
    return claim_renew(as_worker(object)->state, as_worker(object)->core, args);
}

static PyObject *worker_holds(PyObject *object, PyObject *args)
{
    return claim_holds(as_worker(object)->core, args);
}

static PyObject *get_on_error(PyObject *object, void *Py_UNUSED(closure))
{
    PyObject *hook = as_worker(object)->core->on_error;
    return Py_NewRef(hook ? hook : Py_None);
}

static PyObject *get_may_block(PyObject *object, void *Py_UNUSED(closure))
{
    return PyBool_FromLong(as_worker(object)->core->may_block);
}

static PyGetSetDef worker_getset[] = {
    {"on_error", get_on_error, NULL, PyDoc_STR("The Scheduler's, None when it is gone."), NULL},
    {"may_block", get_may_block, NULL,
     PyDoc_STR("Whether calls on the store may wait for input or output."), NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMethodDef worker_methods[] = {
    {"run", worker_run, METH_NOARGS,
     PyDoc_STR("run($self, /)\n--\n\nRun callbacks on this thread until the scheduler stops.")},
    {"watch", worker_watch, METH_NOARGS,
     PyDoc_STR("watch($self, /)\n--\n\n"
               "Look after callbacks that run too long, until the scheduler stops.")},
    {"stop", worker_stop, METH_NOARGS,
     PyDoc_STR("stop($self, /)\n--\n\nStop the scheduler; see Scheduler.stop.")},
    {"serve", worker_serve, METH_VARARGS,
     PyDoc_STR("serve($self, start, enter, room, /)\n--\n\n"
               "Run what is due in an event loop; what is to be awaited goes to start(order,\n"
               "awaitable), or enter(order, callback, around), at most `room` of them. Returns\n"
               "how many orders it began.")},
    {"look", worker_look, METH_NOARGS,
     PyDoc_STR("look($self, /)\n--\n\nSee to callbacks that run too long.")},
    {"take", worker_take, METH_VARARGS,
     PyDoc_STR("take($self, queue, type, limit_ns, /)\n--\n\n"
               "Claim the next due order without a callback, as an instance of `type`; None when\n"
               "the limit has passed. 0 does not wait.")},
    {"collect", worker_collect, METH_NOARGS,
     PyDoc_STR("collect($self, /)\n--\n\n"
               "The next answer to what was submitted, as (tag, result), where an error is an\n"
               "exception that is not raised; None when none has come yet.")},
    {"settle", worker_settle, METH_VARARGS,
     PyDoc_STR("settle($self, fence, verdict, delay_ns, error, /)\n--\n\nEnd a claim.")},
    {"renew", worker_renew, METH_VARARGS,
     PyDoc_STR("renew($self, fence, lease_ns, /)\n--\n\nHold a claim longer.")},
    {"holds", worker_holds, METH_VARARGS,
     PyDoc_STR("holds($self, fence, /)\n--\n\nWhether the claim is still held.")},
    {NULL, NULL, 0, NULL},
};

static const char worker_doc[] =
    PyDoc_STR("What a thread or an event loop holds instead of its Scheduler.");

static PyType_Slot worker_slots[] = {
    TYPE_SLOT(Py_tp_dealloc, worker_dealloc),
    TYPE_SLOT(Py_tp_methods, worker_methods),
    TYPE_SLOT(Py_tp_getset, worker_getset),
    TYPE_SLOT(Py_tp_doc, worker_doc),
    {0, NULL},
};

static PyType_Spec worker_spec = {
    .name = "lapse._lapse.Worker",
    .basicsize = sizeof(worker),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = worker_slots,
};

int worker_add(PyObject *module, binding_state *state)
{
    state->worker_type = PyType_FromModuleAndSpec(module, &worker_spec, NULL);
    return state->worker_type ? PyModule_AddType(module, (PyTypeObject *)state->worker_type) : -1;
}
