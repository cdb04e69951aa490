/* order.c - lapse.Order: a str equal to the order's id, with the rest as attributes.
 *
 * Immutable, like str. The fields lie behind those of str, whose size the stable ABI
 * does not tell at compile time, so it is asked once. Needs no collector: it refers to
 * str and bytes only. */
#include "order.h"
#include "convert.h"

#include <string.h>

typedef struct fields {
    PyObject *id;      /* exact str */
    PyObject *payload; /* exact bytes */
    PyObject *queue;   /* exact str */
    lapse_ns due, late;
    int64_t fence, generation;
    int attempt;
} fields;

/* The size of str, a constant of the running interpreter; the same in all of a process. */
static Py_ssize_t fields_offset;

static fields *fields_of(PyObject *self)
{
    return (fields *)(void *)((char *)self + fields_offset);
}

/* A bare instance of `type` that equals `id`. */
static PyObject *order_alloc(PyObject *type, PyObject *id)
{
    newfunc make = TYPE_FUNCTION(newfunc, &PyUnicode_Type, Py_tp_new);
    PyObject *args = PyTuple_Pack(1, id);
    PyObject *self = args ? make((PyTypeObject *)type, args, NULL) : NULL;
    Py_XDECREF(args);
    if (self)
        fields_of(self)->id = Py_NewRef(id);
    return self;
}

static PyObject *payload_object(binding_state *state, const void *bytes, size_t len)
{
    return len ? PyBytes_FromStringAndSize(bytes, (Py_ssize_t)len) : Py_NewRef(state->no_payload);
}

static PyObject *queue_object(binding_state *state, const char *queue)
{
    return queue && *queue ? text_object(queue, strlen(queue)) : Py_NewRef(state->empty);
}

PyObject *order_object(binding_state *state, PyObject *type, const lapse_order *order)
{
    PyObject *id = text_object(order->id, order->id_len);
    PyObject *self = id ? order_alloc(type, id) : NULL;
    Py_XDECREF(id);
    if (!self)
        return NULL;
    fields *f = fields_of(self);
    f->payload = payload_object(state, order->payload, order->payload_len);
    f->queue = queue_object(state, order->queue);
    f->due = order->due;
    f->late = order->late;
    f->fence = order->fence;
    f->generation = order->generation;
    f->attempt = order->attempt;
    if (f->payload && f->queue)
        return self;
    Py_DECREF(self);
    return NULL;
}

static int order_fill(binding_state *state, fields *f, PyObject *payload, PyObject *due,
                      PyObject *late, PyObject *queue)
{
    if (due && convert_instant(state, "due", due, &f->due))
        return -1;
    if (late && convert_delay(state, "late", late, &f->late))
        return -1;
    f->payload = payload ? PyBytes_FromObject(payload) : Py_NewRef(state->no_payload);
    f->queue = queue ? PyUnicode_FromObject(queue) : Py_NewRef(state->empty);
    return f->payload && f->queue ? 0 : -1;
}

static PyObject *order_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"id",    "payload",    "attempt", "due", "late",
                            "fence", "generation", "queue",   NULL};
    PyObject *given, *payload = NULL, *due = NULL, *late = NULL, *queue = NULL;
    long long fence = 0, generation = 0;
    int attempt = 1;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "U|OiOOLLU:Order", names, &given, &payload,
                                     &attempt, &due, &late, &fence, &generation, &queue))
        return NULL;
    binding_state *state = binding_state_of(type);
    PyObject *id = state ? PyUnicode_FromObject(given) : NULL;
    PyObject *self = id ? order_alloc((PyObject *)type, id) : NULL;
    Py_XDECREF(id);
    if (!self)
        return NULL;
    fields *f = fields_of(self);
    f->fence = fence;
    f->generation = generation;
    f->attempt = attempt;
    if (order_fill(state, f, payload, due, late, queue)) {
        Py_DECREF(self);
        return NULL;
    }
    return self;
}

static void order_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    fields *f = fields_of(self);
    Py_CLEAR(f->id);
    Py_CLEAR(f->payload);
    Py_CLEAR(f->queue);
    destructor base = TYPE_FUNCTION(destructor, &PyUnicode_Type, Py_tp_dealloc);
    base(self);
    Py_DECREF(type);
}

static PyObject *object_or_none(PyObject *object)
{
    return Py_NewRef(object ? object : Py_None);
}

static PyObject *get_id(PyObject *self, void *Py_UNUSED(closure))
{
    return object_or_none(fields_of(self)->id);
}

static PyObject *get_payload(PyObject *self, void *Py_UNUSED(closure))
{
    return object_or_none(fields_of(self)->payload);
}

static PyObject *get_queue(PyObject *self, void *Py_UNUSED(closure))
{
    return object_or_none(fields_of(self)->queue);
}

static PyObject *get_due(PyObject *self, void *Py_UNUSED(closure))
{
    return convert_seconds(fields_of(self)->due);
}

static PyObject *get_late(PyObject *self, void *Py_UNUSED(closure))
{
    return convert_seconds(fields_of(self)->late);
}

static PyObject *get_fence(PyObject *self, void *Py_UNUSED(closure))
{
    return PyLong_FromLongLong(fields_of(self)->fence);
}

static PyObject *get_generation(PyObject *self, void *Py_UNUSED(closure))
{
    return PyLong_FromLongLong(fields_of(self)->generation);
}

static PyObject *get_attempt(PyObject *self, void *Py_UNUSED(closure))
{
    return PyLong_FromLong(fields_of(self)->attempt);
}

static PyGetSetDef order_getset[] = {
    {"id", get_id, NULL, PyDoc_STR("The id as an exact str, for database drivers."), NULL},
    {"payload", get_payload, NULL, PyDoc_STR("The payload as bytes; b'' when there is none."),
     NULL},
    {"queue", get_queue, NULL, PyDoc_STR("The queue's name; '' is the default one."), NULL},
    {"attempt", get_attempt, NULL, PyDoc_STR("1 on the first delivery."), NULL},
    {"due", get_due, NULL, PyDoc_STR("When it was due, in seconds since 1970 (UTC), as float."),
     NULL},
    {"late", get_late, NULL,
     PyDoc_STR("How many seconds after `due` it started, as float; never negative."), NULL},
    {"fence", get_fence, NULL,
     PyDoc_STR("Grows with every claim: guards a write (... WHERE id = ? AND fence < ?)."), NULL},
    {"generation", get_generation, NULL, PyDoc_STR("What schedule returned for it."), NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

/* Pickled and copied with all its fields, as a plain Order. */
static PyObject *order_reduce(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    binding_state *state = binding_state_of(Py_TYPE(self));
    fields *f = fields_of(self);
    if (!state)
        return NULL;
    return Py_BuildValue("O(OOiddLLO)", state->order_type, f->id, f->payload, f->attempt,
                         (double)f->due / 1e9, (double)f->late / 1e9, (long long)f->fence,
                         (long long)f->generation, f->queue);
}

static PyMethodDef order_methods[] = {
    {"__reduce__", order_reduce, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static const char order_doc[] = PyDoc_STR(
    "Order(id, payload=b'', attempt=1, due=0, late=0, fence=0, generation=0, queue='')\n--\n\n"
    "An order whose time is up: what a callback gets.\n"
    "\n"
    "It is a str equal to the order's id, so `def close(order_id): ...` just works; bytes\n"
    "that are not UTF-8 show as surrogate escapes. The rest is in its attributes; due and\n"
    "late are seconds. Callbacks get one from lapse; make one yourself only to test a callback.");

static PyType_Slot order_slots[] = {
    TYPE_SLOT(Py_tp_new, order_new),       TYPE_SLOT(Py_tp_dealloc, order_dealloc),
    TYPE_SLOT(Py_tp_getset, order_getset), TYPE_SLOT(Py_tp_methods, order_methods),
    TYPE_SLOT(Py_tp_doc, order_doc),       {0, NULL},
};

static int find_offset(void)
{
    PyObject *size = PyObject_GetAttrString((PyObject *)&PyUnicode_Type, "__basicsize__");
    if (!size)
        return -1;
    Py_ssize_t bytes = PyLong_AsSsize_t(size);
    Py_DECREF(size);
    if (bytes < 0)
        return -1;
    Py_ssize_t align = (Py_ssize_t) _Alignof(fields);
    fields_offset = (bytes + align - 1) / align * align;
    return 0;
}

int order_add(PyObject *module, binding_state *state)
{
    if (find_offset())
        return -1;
    PyType_Spec spec = {
        .name = "lapse.Order",
        .basicsize = (int)(fields_offset + (Py_ssize_t)sizeof(fields)),
        .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_IMMUTABLETYPE,
        .slots = order_slots,
    };
    PyObject *bases = PyTuple_Pack(1, &PyUnicode_Type);
    if (!bases)
        return -1;
    state->order_type = PyType_FromModuleAndSpec(module, &spec, bases);
    Py_DECREF(bases);
    return state->order_type ? PyModule_AddType(module, (PyTypeObject *)state->order_type) : -1;
}
