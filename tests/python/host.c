/* host.c - texts in several interpreters of one process, as a server with one for each
 * application runs them.
 *
 *     host {run|own|thread|end} <number> <text> ...
 *
 * run: in interpreter <number>, which is made if it is not there; 0 is the main one. own: the
 * same, made with a GIL of its own. thread: as run, on a thread of the host. end: the
 * interpreter ends, with what is pending in it; the text is not used. The exit code tells
 * whether all went well; Python prints what did not. */
#include <Python.h>

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { INTERPRETERS = 16 };

static PyThreadState *shops[INTERPRETERS]; /* the thread state it was made with */

static PyThreadState *make(int own_gil)
{
    PyThreadState *made = NULL;
#if PY_VERSION_HEX >= 0x030C0000
    PyInterpreterConfig config = {
        .use_main_obmalloc = !own_gil,
        .allow_fork = 1,
        .allow_exec = 1,
        .allow_threads = 1,
        .allow_daemon_threads = 1,
        .check_multi_interp_extensions = own_gil,
        .gil = own_gil ? PyInterpreterConfig_OWN_GIL : PyInterpreterConfig_SHARED_GIL,
    };
    PyStatus status = Py_NewInterpreterFromConfig(&made, &config);
    if (PyStatus_Exception(status))
        Py_ExitStatusException(status);
#else
    if (!own_gil)
        made = Py_NewInterpreter();
#endif
    if (!made)
        abort();
    return made;
}

static int run(int n, const char *text, int own_gil)
{
    if (shops[n])
        PyThreadState_Swap(shops[n]);
    else
        shops[n] = make(own_gil);
    int rc = PyRun_SimpleString(text);
    PyThreadState_Swap(shops[0]);
    return rc;
}

typedef struct request {
    PyInterpreterState *shop;
    const char *text;
    int rc;
} request;

static void *serve(void *arg)
{
    request *r = arg;
    PyThreadState *mine = PyThreadState_New(r->shop);
    PyEval_RestoreThread(mine);
    r->rc = PyRun_SimpleString(r->text);
    PyThreadState_Clear(mine);
    PyThreadState_DeleteCurrent();
    return NULL;
}

static int run_on_thread(int n, const char *text)
{
    pthread_t thread;
    request r = {PyThreadState_GetInterpreter(shops[n]), text, -1};
    PyThreadState *here = PyEval_SaveThread();
    if (pthread_create(&thread, NULL, serve, &r))
        abort();
    pthread_join(thread, NULL);
    PyEval_RestoreThread(here);
    return r.rc;
}

static int end(int n)
{
    PyThreadState_Swap(shops[n]);
    Py_EndInterpreter(shops[n]);
    shops[n] = NULL;
    PyThreadState_Swap(shops[0]);
    return 0;
}

static int step(const char *what, int n, const char *text)
{
    if (n < 0 || n >= INTERPRETERS)
        abort();
    if (!strcmp(what, "thread"))
        return run_on_thread(n, text);
    if (!strcmp(what, "end"))
        return end(n);
    return run(n, text, !strcmp(what, "own"));
}

int main(int argc, char **argv)
{
    int rc = 0;
    Py_Initialize();
    shops[0] = PyThreadState_Get();
    for (int i = 1; i + 2 < argc && !rc; i += 3)
        rc = step(argv[i], atoi(argv[i + 1]), argv[i + 2]);
    for (int n = 1; n < INTERPRETERS; n++)
        if (shops[n])
            end(n);
    if (Py_FinalizeEx() < 0)
        rc = -1;
    return rc ? 1 : 0;
}
