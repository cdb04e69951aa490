/* cli.c - lapse._lapse._cli, which `lapse` and `python -m lapse` call.
 *
 * The tool is the one of tools/lapse, compiled into this module; it sees no Python. */
#include "cli.h"

#include <lapse/cli.h>

/* The bytes in a tuple as an argv that borrows them; NULL with an exception. */
static char **borrow_argv(PyObject *tuple, Py_ssize_t count)
{
    char **argv = PyMem_Calloc((size_t)count + 1, sizeof *argv);
    if (!argv) {
        PyErr_NoMemory();
        return NULL;
    }
    for (Py_ssize_t i = 0; i < count; i++)
        if (PyBytes_AsStringAndSize(PyTuple_GetItem(tuple, i), &argv[i], NULL)) {
            PyMem_Free(argv);
            return NULL;
        }
    return argv;
}

PyObject *cli_run(PyObject *module, PyObject *arguments)
{
    (void)module;
    PyObject *tuple = PySequence_Tuple(arguments);
    Py_ssize_t count = tuple ? PyTuple_Size(tuple) : 0;
    char **argv = tuple ? borrow_argv(tuple, count) : NULL;
    long code = 0;
    if (argv) {
        Py_BEGIN_ALLOW_THREADS;
        code = lapse_cli((int)count, argv);
        Py_END_ALLOW_THREADS;
    }
    Py_XDECREF(tuple);
    if (!argv)
        return NULL;
    PyMem_Free(argv);
    return PyLong_FromLong(code);
}
