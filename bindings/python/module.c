/* module.c - lapse._lapse: its state, its constants, and the default scheduler's calls.
 *
 * Multi-phase, with all state per module, so every interpreter that shares the GIL has
 * its own. The module's functions are the hot calls of lapse.Scheduler on the default
 * one, which the Python side makes at the first use. */
#include "cli.h"
#include "convert.h"
#include "order.h"
#include "scheduler.h"
#include "worker.h"

static struct PyModuleDef module_def;

binding_state *binding_state_of(PyTypeObject *type)
{
    while (type) {
        binding_state *state = PyType_GetModuleState(type);
        if (state)
            return state;
        PyErr_Clear();
        type = PyType_GetSlot(type, Py_tp_base);
    }
    PyErr_SetString(PyExc_TypeError, "not a type of lapse");
    return NULL;
}

static int import_into(PyObject **where, const char *module, const char *name)
{
    if (*where)
        return 0;
    PyObject *m = PyImport_ImportModule(module);
    *where = m ? PyObject_GetAttrString(m, name) : NULL;
    Py_XDECREF(m);
    return *where ? 0 : -1;
}

static int link_fates(binding_state *state)
{
    PyObject *type = NULL;
    if (import_into(&type, "lapse._enums", "Fate"))
        return -1;
    for (int i = 0; i < FATE_COUNT; i++) {
        PyObject *member = PyObject_CallFunction(type, "i", i);
        if (!member)
            break;
        PyObject *old = state->fates[i];
        state->fates[i] = member;
        Py_XDECREF(old);
    }
    Py_DECREF(type);
    return PyErr_Occurred() ? -1 : 0;
}

int binding_link(binding_state *state)
{
    if (state->report && state->fates[0])
        return 0;
    if (link_fates(state) || import_into(&state->claim_type, "lapse._scheduler", "Claim") ||
        import_into(&state->retry_type, "lapse._verdicts", "Retry") ||
        import_into(&state->reject_type, "lapse._verdicts", "Reject") ||
        import_into(&state->bury, "lapse._verdicts", "bury") ||
        import_into(&state->log, "lapse._verdicts", "log") ||
        import_into(&state->surround, "lapse._verdicts", "surround") ||
        import_into(&state->report, "lapse._verdicts", "report"))
        return -1;
    return 0;
}

PyObject *find_fate(binding_state *state, int fate)
{
    if (fate < 0 || fate >= FATE_COUNT || binding_link(state)) {
        if (!PyErr_Occurred())
            PyErr_Format(PyExc_SystemError, "unknown fate %d", fate);
        return NULL;
    }
    return Py_NewRef(state->fates[fate]);
}

/* The place of a keyword among the names, or -1 with an exception. */
static int find_keyword(binding_state *state, const signature *sig, PyObject *keyword)
{
    for (int i = 0; i < sig->count; i++)
        if (state->names[sig->names[i]] == keyword)
            return i;
    for (int i = 0; i < sig->count; i++)
        if (PyUnicode_Compare(state->names[sig->names[i]], keyword) == 0)
            return i;
    if (!PyErr_Occurred())
        PyErr_Format(PyExc_TypeError, "%s() got an unexpected keyword argument %R", sig->function,
                     keyword);
    return -1;
}

static int take_keywords(binding_state *state, const signature *sig, PyObject *const *values,
                         PyObject *keywords, PyObject **out)
{
    for (Py_ssize_t k = 0; k < PyTuple_Size(keywords); k++) {
        PyObject *keyword = PyTuple_GetItem(keywords, k);
        int i = find_keyword(state, sig, keyword);
        if (i < 0)
            return -1;
        if (out[i]) {
            PyErr_Format(PyExc_TypeError, "%s() got multiple values for argument %R", sig->function,
                         keyword);
            return -1;
        }
        out[i] = values[k];
    }
    return 0;
}

int take_any_arguments(binding_state *state, const signature *sig, PyObject *const *args,
                       Py_ssize_t given, PyObject *keywords, PyObject **out)
{
    if (given > sig->count) {
        PyErr_Format(PyExc_TypeError, "%s() takes at most %d arguments (%zd given)", sig->function,
                     sig->count, given);
        return -1;
    }
    for (Py_ssize_t i = 0; i < sig->count; i++)
        out[i] = i < given ? args[i] : NULL;
    if (keywords && take_keywords(state, sig, args + given, keywords, out))
        return -1;
    for (int i = 0; i < sig->required; i++)
        if (!out[i]) {
            PyErr_Format(PyExc_TypeError, "%s() missing required argument %R", sig->function,
                         state->names[sig->names[i]]);
            return -1;
        }
    return 0;
}

/* -- The module's functions -------------------------------------------------------- */

static binding_state *state_of_module(PyObject *module)
{
    return PyModule_GetState(module);
}

/* The default scheduler, a new reference; made on the first use, and after a close. */
static PyObject *default_scheduler(PyObject *module)
{
    binding_state *state = state_of_module(module);
    if (state->default_scheduler && scheduler_is_open(state->default_scheduler))
        return Py_NewRef(state->default_scheduler);
    PyObject *make = NULL;
    if (import_into(&make, "lapse._scheduler", "default_scheduler"))
        return NULL;
    PyObject *made = PyObject_CallNoArgs(make);
    Py_DECREF(make);
    return made;
}

static PyObject *set_default(PyObject *module, PyObject *object)
{
    binding_state *state = state_of_module(module);
    if (object != Py_None && !scheduler_check(state, object)) {
        PyErr_SetString(PyExc_TypeError, "the default scheduler is a lapse.Scheduler");
        return NULL;
    }
    PyObject *old = state->default_scheduler;
    state->default_scheduler = object == Py_None ? NULL : Py_NewRef(object);
    Py_XDECREF(old);
    Py_RETURN_NONE;
}

static PyObject *on_default(PyObject *module, scheduler_call *call, PyObject *const *args,
                            Py_ssize_t given, PyObject *keywords)
{
    PyObject *self = default_scheduler(module);
    if (!self)
        return NULL;
    PyObject *result = call(self, args, given, keywords);
    Py_DECREF(self);
    return result;
}

static PyObject *module_schedule(PyObject *module, PyObject *const *args, Py_ssize_t given,
                                 PyObject *keywords)
{
    return on_default(module, scheduler_schedule, args, given, keywords);
}

static PyObject *module_schedule_at(PyObject *module, PyObject *const *args, Py_ssize_t given,
                                    PyObject *keywords)
{
    return on_default(module, scheduler_schedule_at, args, given, keywords);
}

static PyObject *module_cancel(PyObject *module, PyObject *const *args, Py_ssize_t given,
                               PyObject *keywords)
{
    return on_default(module, scheduler_cancel, args, given, keywords);
}

static PyObject *module_reschedule(PyObject *module, PyObject *const *args, Py_ssize_t given,
                                   PyObject *keywords)
{
    return on_default(module, scheduler_reschedule, args, given, keywords);
}

static PyObject *module_seconds_to_ns(PyObject *module, PyObject *args)
{
    PyObject *value;
    const char *name = "delay";
    lapse_ns ns;
    if (!PyArg_ParseTuple(args, "O|s:_seconds_to_ns", &value, &name) ||
        convert_delay(state_of_module(module), name, value, &ns))
        return NULL;
    return PyLong_FromLongLong(ns);
}

#define FAST(function) ((PyCFunction)(void (*)(void))(function))
#define ON_DEFAULT "\n\nThis function uses the default scheduler; see default_scheduler()."

static PyMethodDef module_methods[] = {
    {"schedule", FAST(module_schedule), METH_FASTCALL | METH_KEYWORDS,
     PyDoc_STR(SCHEDULE_DOC("") ON_DEFAULT)},
    {"schedule_at", FAST(module_schedule_at), METH_FASTCALL | METH_KEYWORDS,
     PyDoc_STR(SCHEDULE_AT_DOC("") ON_DEFAULT)},
    {"cancel", FAST(module_cancel), METH_FASTCALL | METH_KEYWORDS,
     PyDoc_STR(CANCEL_DOC("") ON_DEFAULT)},
    {"reschedule", FAST(module_reschedule), METH_FASTCALL | METH_KEYWORDS,
     PyDoc_STR(RESCHEDULE_DOC("") ON_DEFAULT)},
    {"_set_default", set_default, METH_O, NULL},
    {"_seconds_to_ns", module_seconds_to_ns, METH_VARARGS, NULL},
    {"_cli", cli_run, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

/* -- Making and unmaking ----------------------------------------------------------- */

static int add_constants(PyObject *module)
{
    static const struct {
        const char *name;
        int value;
    } rows[] = {
        {"FATE_UNKNOWN", LAPSE_FATE_UNKNOWN},
        {"FATE_CANCELLED", LAPSE_FATE_CANCELLED},
        {"FATE_RESCHEDULED", LAPSE_FATE_RESCHEDULED},
        {"FATE_RUNNING", LAPSE_FATE_RUNNING},
        {"FATE_DONE", LAPSE_FATE_DONE},
        {"STATE_PENDING", LAPSE_STATE_PENDING},
        {"STATE_RUNNING", LAPSE_STATE_RUNNING},
        {"STATE_DONE", LAPSE_STATE_DONE},
        {"STATE_DEAD", LAPSE_STATE_DEAD},
        {"REASON_NONE", LAPSE_REASON_NONE},
        {"REASON_FAILED", LAPSE_REASON_FAILED},
        {"REASON_REJECTED", LAPSE_REASON_REJECTED},
        {"REASON_EXPIRED", LAPSE_REASON_EXPIRED},
        {"REASON_MAXLEN", LAPSE_REASON_MAXLEN},
        {"REASON_LOST", LAPSE_REASON_LOST},
        {"ASK_CANCEL", LAPSE_ASK_CANCEL},
        {"ASK_RESCHEDULE", LAPSE_ASK_RESCHEDULE},
        {"ASK_GET", LAPSE_ASK_GET},
        {"ASK_REQUEUE", LAPSE_ASK_REQUEUE},
        {"VERDICT_DONE", LAPSE_DONE},
        {"VERDICT_RETRY", LAPSE_RETRY},
        {"VERDICT_REJECT", LAPSE_REJECT},
        {"VERDICT_FAIL", LAPSE_FAIL},
        {"VERDICT_GIVE_BACK", LAPSE_GIVE_BACK},
        {"ID_MAX", LAPSE_ID_MAX},
        {"PAYLOAD_MAX", LAPSE_PAYLOAD_MAX},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (PyModule_AddIntConstant(module, rows[i].name, rows[i].value))
            return -1;
    return PyModule_AddStringConstant(module, "__version__", lapse_version());
}

static int intern_names(binding_state *state)
{
    static const char *const names[NAME_COUNT] = {
#define BINDING_NAME_TEXT(name) #name,
        BINDING_NAMES(BINDING_NAME_TEXT)
#undef BINDING_NAME_TEXT
    };
    for (int i = 0; i < NAME_COUNT; i++) {
        state->names[i] = PyUnicode_InternFromString(names[i]);
        if (!state->names[i])
            return -1;
    }
    return 0;
}

static int make_epoch(binding_state *state)
{
    PyObject *zone = NULL, *utc = NULL;
    if (!import_into(&zone, "datetime", "timezone"))
        utc = PyObject_GetAttrString(zone, "utc");
    if (utc)
        state->epoch =
            PyObject_CallFunction(state->datetime_type, "iiiiiiiO", 1970, 1, 1, 0, 0, 0, 0, utc);
    Py_XDECREF(zone);
    Py_XDECREF(utc);
    return state->epoch ? 0 : -1;
}

static int import_types(binding_state *state)
{
    state->empty = PyUnicode_FromString("");
    state->no_payload = PyBytes_FromStringAndSize(NULL, 0);
    if (!state->empty || !state->no_payload ||
        import_into(&state->datetime_type, "datetime", "datetime") ||
        import_into(&state->timedelta_type, "datetime", "timedelta") ||
        import_into(&state->function_type, "types", "FunctionType") ||
        import_into(&state->method_type, "types", "MethodType") ||
        import_into(&state->coroutine_type, "types", "CoroutineType") ||
        import_into(&state->partial_type, "functools", "partial"))
        return -1;
    return make_epoch(state);
}

static int module_exec(PyObject *module)
{
    binding_state *state = state_of_module(module);
    if (intern_names(state) || import_types(state) || errors_add(module, state) ||
        order_add(module, state) || clock_add(module, state) || worker_add(module, state) ||
        scheduler_add(module, state))
        return -1;
    return add_constants(module);
}

static int module_traverse(PyObject *module, visitproc visit, void *arg)
{
    binding_state *state = state_of_module(module);
    if (!state)
        return 0;
#define BINDING_OBJECT_VISIT(name) Py_VISIT(state->name);
    BINDING_OBJECTS(BINDING_OBJECT_VISIT)
#undef BINDING_OBJECT_VISIT
    for (int i = 0; i < FATE_COUNT; i++)
        Py_VISIT(state->fates[i]);
    return errors_traverse(state, visit, arg);
}

static int module_clear(PyObject *module)
{
    binding_state *state = state_of_module(module);
    if (!state)
        return 0;
#define BINDING_OBJECT_CLEAR(name) Py_CLEAR(state->name);
    BINDING_OBJECTS(BINDING_OBJECT_CLEAR)
#undef BINDING_OBJECT_CLEAR
    for (int i = 0; i < FATE_COUNT; i++)
        Py_CLEAR(state->fates[i]);
    for (int i = 0; i < NAME_COUNT; i++)
        Py_CLEAR(state->names[i]);
    errors_free(state);
    return 0;
}

static void module_free(void *module)
{
    module_clear(module);
}

static PyModuleDef_Slot module_slots[] = {
    TYPE_SLOT(Py_mod_exec, module_exec),
    {0, NULL},
};

static struct PyModuleDef module_def = {
    PyModuleDef_HEAD_INIT,
    .m_name = "lapse._lapse",
    .m_doc = PyDoc_STR("The C part of lapse; import lapse instead."),
    .m_size = sizeof(binding_state),
    .m_methods = module_methods,
    .m_slots = module_slots,
    .m_traverse = module_traverse,
    .m_clear = module_clear,
    .m_free = module_free,
};

PyMODINIT_FUNC PyInit__lapse(void)
{
    return PyModuleDef_Init(&module_def);
}
