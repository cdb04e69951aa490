/* errors.c - lapse.Error and one subclass for each line of LAPSE_ERROR_MAP.
 *
 * The map gives number, name and text; the one thing added here is which built-in
 * exception each also is, so that `except ValueError` works as Python users expect. */
#include "binding.h"

#include <stdarg.h>
#include <string.h>

typedef struct error_row {
    int code;
    const char *name, *text;
} error_row;

static const error_row rows[] = {
#define ERROR_ROW(code, number, name, text) {code, name, text},
    LAPSE_ERROR_MAP(ERROR_ROW)
#undef ERROR_ROW
};

enum { ROWS = (int)(sizeof rows / sizeof rows[0]) };

/* The built-in exception that an error is as well; NULL: none. */
static PyObject *builtin_of(int code)
{
    switch ((lapse_error)code) {
    case LAPSE_EINVAL:
    case LAPSE_ERANGE:
    case LAPSE_EID:
    case LAPSE_EURL:
        return PyExc_ValueError;
    case LAPSE_ETIMEOUT:
        return PyExc_TimeoutError;
    case LAPSE_EINTR:
        return PyExc_InterruptedError;
    case LAPSE_ENOMEM:
        return PyExc_MemoryError;
    case LAPSE_ESYSTEM:
        return PyExc_OSError;
    case LAPSE_EOFFLINE:
        return PyExc_ConnectionError;
    case LAPSE_EUNKNOWN:
        return PyExc_LookupError;
    case LAPSE_EUNSUPPORTED:
    case LAPSE_ESTORE:
        return PyExc_NotImplementedError;
    case LAPSE_ECLOSED:
    case LAPSE_EFORKED:
    case LAPSE_EINCALLBACK:
        return PyExc_RuntimeError;
    case LAPSE_OK:
    case LAPSE_EEXISTS:
    case LAPSE_EFULL:
    case LAPSE_ESTALE:
    case LAPSE_EMIXED:
    case LAPSE_EUNSURE:
    case LAPSE_EDATA:
        break;
    }
    return NULL;
}

static PyObject *make_class(PyObject *error, const error_row *row)
{
    char name[64];
    PyOS_snprintf(name, sizeof name, "lapse.%s", row->name);
    PyObject *builtin = builtin_of(row->code);
    PyObject *bases = builtin ? PyTuple_Pack(2, error, builtin) : PyTuple_Pack(1, error);
    PyObject *body = Py_BuildValue("{s:i}", "code", row->code);
    PyObject *made = NULL;
    if (bases && body)
        made = PyErr_NewExceptionWithDoc(name, row->text, bases, body);
    Py_XDECREF(bases);
    Py_XDECREF(body);
    return made;
}

int errors_add(PyObject *module, binding_state *state)
{
    state->errors = PyMem_Calloc(ROWS, sizeof *state->errors);
    if (!state->errors) {
        PyErr_NoMemory();
        return -1;
    }
    PyObject *body = Py_BuildValue("{s:i}", "code", 0);
    if (!body)
        return -1;
    state->error = PyErr_NewExceptionWithDoc(
        "lapse.Error", "What every error of lapse is; `code` is its number in lapse.h.", NULL,
        body);
    Py_DECREF(body);
    if (!state->error || PyModule_AddObjectRef(module, "Error", state->error))
        return -1;
    for (int i = 0; i < ROWS; i++) {
        state->errors[i] = make_class(state->error, &rows[i]);
        if (!state->errors[i] || PyModule_AddObjectRef(module, rows[i].name, state->errors[i]))
            return -1;
    }
    return 0;
}

void errors_free(binding_state *state)
{
    for (int i = 0; state->errors && i < ROWS; i++)
        Py_CLEAR(state->errors[i]);
    PyMem_Free(state->errors);
    state->errors = NULL;
}

int errors_traverse(binding_state *state, visitproc visit, void *arg)
{
    for (int i = 0; state->errors && i < ROWS; i++)
        Py_VISIT(state->errors[i]);
    return 0;
}

/* Borrowed; lapse.Error for a code that this build does not know. */
static PyObject *class_of(binding_state *state, int code)
{
    for (int i = 0; state->errors && i < ROWS; i++)
        if (rows[i].code == code && state->errors[i])
            return state->errors[i];
    return state->error ? state->error : PyExc_RuntimeError;
}

PyObject *raise_code(binding_state *state, int code)
{
    const char *detail = lapse_error_detail();
    if (!detail || !*detail)
        detail = lapse_strerror(code);
    PyObject *message = PyUnicode_DecodeUTF8(detail, (Py_ssize_t)strlen(detail), "replace");
    if (message)
        PyErr_SetObject(class_of(state, code), message);
    Py_XDECREF(message);
    return NULL;
}

PyObject *raise_text(binding_state *state, int code, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    PyObject *message = PyUnicode_FromFormatV(format, args);
    va_end(args);
    if (message)
        PyErr_SetObject(class_of(state, code), message);
    Py_XDECREF(message);
    return NULL;
}

PyObject *error_with(binding_state *state, int code, const char *text)
{
    PyObject *message = PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace");
    if (!message)
        return NULL;
    PyObject *error = PyObject_CallFunctionObjArgs(class_of(state, code), message, NULL);
    Py_DECREF(message);
    return error;
}

PyObject *error_for(binding_state *state, int code, PyObject *order_id)
{
    PyObject *message = PyUnicode_FromFormat("order %R: %s", order_id, lapse_strerror(code));
    if (!message)
        return NULL;
    PyObject *error = PyObject_CallFunctionObjArgs(class_of(state, code), message, NULL);
    Py_DECREF(message);
    return error;
}
