/* clock.c - lapse.ManualClock: a clock for tests that goes only when told to.
 *
 * Holds no other object, so it can be in no cycle; a core that uses it holds it until its
 * scheduler is closed. */
#include "convert.h"
#include "core.h"

typedef struct clock_object {
    PyObject_HEAD lapse_clock *clock;
    binding_state *state; /* the type keeps the module alive */
} clock_object;

static PyObject *clock_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"start", NULL};
    PyObject *start = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "|O:ManualClock", names, &start))
        return NULL;
    clock_object *self = (clock_object *)PyType_GenericAlloc(type, 0);
    if (!self)
        return NULL;
    self->state = PyType_GetModuleState(type);
    lapse_ns from = 0;
    int rc = start ? convert_delay(self->state, "start", start, &from) : 0;
    if (!rc) {
        rc = lapse_clock_manual(from, &self->clock);
        if (rc < 0)
            raise_code(self->state, rc);
    }
    if (rc) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static void clock_dealloc(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    lapse_clock_free(((clock_object *)object)->clock);
    freefunc release = TYPE_FUNCTION(freefunc, type, Py_tp_free);
    release(object);
    Py_DECREF(type);
}

static PyObject *clock_advance(PyObject *object, PyObject *by)
{
    clock_object *self = (clock_object *)object;
    lapse_ns step;
    if (convert_step(self->state, "by", by, &step))
        return NULL;
    int rc = lapse_clock_advance(self->clock, step);
    if (rc < 0)
        return raise_code(self->state, rc);
    Py_RETURN_NONE;
}

static PyObject *clock_set_wall(PyObject *object, PyObject *utc)
{
    clock_object *self = (clock_object *)object;
    lapse_ns instant;
    if (convert_instant(self->state, "utc", utc, &instant))
        return NULL;
    int rc = lapse_clock_set_wall(self->clock, instant);
    if (rc < 0)
        return raise_code(self->state, rc);
    Py_RETURN_NONE;
}

static PyObject *clock_now(PyObject *object, PyObject *Py_UNUSED(ignored))
{
    return convert_seconds(lapse_clock_now(((clock_object *)object)->clock));
}

static PyMethodDef clock_methods[] = {
    {"advance", clock_advance, METH_O,
     PyDoc_STR("advance($self, by, /)\n--\n\n"
               "Move the clock, and its wall clock, forward by seconds (int, float or timedelta).\n"
               "\n"
               "Runs no callback itself; wakes the workers that wait for what falls due.\n"
               "Raises lapse.Range below 0 and above 100 years. Any thread.")},
    {"set_wall", clock_set_wall, METH_O,
     PyDoc_STR("set_wall($self, utc, /)\n--\n\n"
               "Step the wall clock to `utc`: an aware datetime, or seconds since 1970.\n"
               "\n"
               "Forward or back; no pending order moves. Any thread.")},
    {"now", clock_now, METH_NOARGS,
     PyDoc_STR("now($self, /)\n--\n\nThe clock's reading in seconds, as float. Any thread.")},
    {NULL, NULL, 0, NULL},
};

static const char clock_doc[] =
    PyDoc_STR("ManualClock(start=0)\n--\n\n"
              "A clock that stands still until it is advanced, for tests with invented time.\n"
              "\n"
              "`start` is its first reading in seconds, 0 or more; its wall clock starts at\n"
              "2026-01-01 00:00 UTC. Give it to Scheduler(clock=...); it may serve several.");

static PyType_Slot clock_slots[] = {
    TYPE_SLOT(Py_tp_new, clock_new),
    TYPE_SLOT(Py_tp_dealloc, clock_dealloc),
    TYPE_SLOT(Py_tp_methods, clock_methods),
    TYPE_SLOT(Py_tp_doc, clock_doc),
    {0, NULL},
};

static PyType_Spec clock_spec = {
    .name = "lapse.ManualClock",
    .basicsize = sizeof(clock_object),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = clock_slots,
};

lapse_clock *clock_of(binding_state *state, PyObject *object)
{
    if ((PyObject *)Py_TYPE(object) == state->clock_type)
        return ((clock_object *)object)->clock;
    PyErr_SetString(PyExc_TypeError, "clock is a lapse.ManualClock, or None for the real one");
    return NULL;
}

int clock_add(PyObject *module, binding_state *state)
{
    state->clock_type = PyType_FromModuleAndSpec(module, &clock_spec, NULL);
    return state->clock_type ? PyModule_AddType(module, (PyTypeObject *)state->clock_type) : -1;
}
