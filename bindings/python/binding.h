/* binding.h - what the files of lapse._lapse share: the interpreter, the module's state,
 * errors.
 *
 * Built against the stable ABI of CPython 3.11. Every PyObject that outlives a call is
 * reached from the module's state or from a Scheduler, and both show it to the collector.
 * Unless a function says otherwise it needs the GIL. */
#ifndef LAPSE_PYTHON_BINDING_H
#define LAPSE_PYTHON_BINDING_H

#define PY_SSIZE_T_CLEAN
#include <pyconfig.h>
#if !defined(Py_LIMITED_API) && !defined(Py_GIL_DISABLED)
#define Py_LIMITED_API 0x030B0000
#endif
#include <Python.h>
#include <structmember.h>

#include "lapse.h"

/* CPython keeps a type's functions as void pointers, which ISO C has no word for. */
#define TYPE_SLOT(slot, function)                                                                  \
    {                                                                                              \
        slot, __extension__(void *)(function)                                                      \
    }
#define TYPE_FUNCTION(kind, type, slot) (__extension__(kind) PyType_GetSlot(type, slot))

/* Names as interned strings: parameters that are matched by hand, and attributes that are
 * looked up for an order. A lookup by a C string makes a new one each time, and CPython's
 * cache of attributes keeps thousands of them. */
#define BINDING_NAMES(X)                                                                           \
    X(order_id)                                                                                    \
    X(delay)                                                                                       \
    X(at)                                                                                          \
    X(callback)                                                                                    \
    X(payload)                                                                                     \
    X(queue)                                                                                       \
    X(replace)                                                                                     \
    X(generation)                                                                                  \
    X(timeout)                                                                                     \
    X(__await__)                                                                                   \
    X(__call__)                                                                                    \
    X(__code__)                                                                                    \
    X(__func__)                                                                                    \
    X(_delay_ns)                                                                                   \
    X(_scheduler)                                                                                  \
    X(_start_workers)                                                                              \
    X(close)                                                                                       \
    X(co_flags)                                                                                    \
    X(days)                                                                                        \
    X(error)                                                                                       \
    X(func)                                                                                        \
    X(microseconds)                                                                                \
    X(seconds)                                                                                     \
    X(utcoffset)

typedef enum binding_name {
#define BINDING_NAME_ENUM(name) NAME_##name,
    BINDING_NAMES(BINDING_NAME_ENUM)
#undef BINDING_NAME_ENUM
        NAME_COUNT
} binding_name;

enum { FATE_COUNT = LAPSE_FATE_DONE + 1 };

/* Everything a module instance owns; one per interpreter. */
#define BINDING_OBJECTS(X)                                                                         \
    X(error) /* lapse.Error */                                                                     \
    X(order_type)                                                                                  \
    X(scheduler_type)                                                                              \
    X(worker_type)                                                                                 \
    X(clock_type)                                                                                  \
    X(datetime_type)                                                                               \
    X(timedelta_type)                                                                              \
    X(epoch) /* 1970-01-01 as an aware datetime */                                                 \
    X(function_type)                                                                               \
    X(method_type)                                                                                 \
    X(partial_type)                                                                                \
    X(coroutine_type)                                                                              \
    X(empty)             /* "" */                                                                  \
    X(no_payload)        /* b"" */                                                                 \
    X(default_scheduler) /* what the module's functions use, once there is one */                  \
    /* From the Python side, looked up once: */                                                    \
    X(claim_type)                                                                                  \
    X(retry_type)                                                                                  \
    X(reject_type)                                                                                 \
    X(report)   /* report(on_error, order, error) -> text of the error */                          \
    X(bury)     /* bury(on_dead, the fields of an Info) */                                         \
    X(surround) /* surround(around, callback, order) -> what the callback returned */              \
    X(log)      /* log(lapse_level, text) */

typedef struct binding_state {
#define BINDING_OBJECT_FIELD(name) PyObject *name;
    BINDING_OBJECTS(BINDING_OBJECT_FIELD)
#undef BINDING_OBJECT_FIELD
    PyObject *names[NAME_COUNT];
    PyObject *fates[FATE_COUNT]; /* members of lapse.Fate */
    PyObject **errors;           /* lapse.Error's subclasses, in the order of the map */
} binding_state;

/* -- Errors (errors.c) ----------------------------------------------------------- */

/* Make lapse.Error and its subclasses and add them to the module. 0 or -1. */
int errors_add(PyObject *module, binding_state *state);
void errors_free(binding_state *state);
int errors_traverse(binding_state *state, visitproc visit, void *arg);

/* Set the exception of `code` with the detail of this thread's last failed call. Always
 * returns NULL. */
PyObject *raise_code(binding_state *state, int code);

/* The same with a text of its own, as PyUnicode_FromFormat. */
PyObject *raise_text(binding_state *state, int code, const char *format, ...);

/* A new exception of `code` with a text, not raised; NULL with one raised. */
PyObject *error_with(binding_state *state, int code, const char *text);

/* The same about an order. */
PyObject *error_for(binding_state *state, int code, PyObject *order_id);

/* -- Module (module.c) ----------------------------------------------------------- */

/* Look up what the Python side defines, once. 0 or -1. */
int binding_link(binding_state *state);

/* The state behind a type of this module, or behind a subclass written in Python. NULL
 * with TypeError. */
binding_state *binding_state_of(PyTypeObject *type);

/* object.name, and object.name(); new references, or NULL with an exception. */
static inline PyObject *attribute(binding_state *state, PyObject *object, binding_name name)
{
    return PyObject_GetAttr(object, state->names[name]);
}

static inline PyObject *call_method(binding_state *state, PyObject *object, binding_name name)
{
    return PyObject_CallMethodObjArgs(object, state->names[name], NULL);
}

PyObject *find_fate(binding_state *state, int fate);

/* The member of lapse.Fate; a new reference. */
static inline PyObject *fate_object(binding_state *state, int fate)
{
    bool known = fate >= 0 && fate < FATE_COUNT && state->fates[fate];
    return known ? Py_NewRef(state->fates[fate]) : find_fate(state, fate);
}

/* The parameters of a fast call; the first `required` must be given. */
typedef struct signature {
    const char *function;
    const binding_name *names;
    int count, required;
} signature;

int take_any_arguments(binding_state *state, const signature *sig, PyObject *const *args,
                       Py_ssize_t given, PyObject *keywords, PyObject **out);

/* Sort the arguments of a fast call into `out` by `names`; what is not given is NULL. 0 or -1
 * with a TypeError. */
static inline int take_arguments(binding_state *state, const signature *sig, PyObject *const *args,
                                 Py_ssize_t given, PyObject *keywords, PyObject **out)
{
    if (keywords || given < sig->required || given > sig->count)
        return take_any_arguments(state, sig, args, given, keywords, out);
    int i = 0;
    for (; i < given; i++)
        out[i] = args[i];
    for (; i < sig->count; i++)
        out[i] = NULL;
    return 0;
}

#endif
