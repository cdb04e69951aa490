/* news.c - what the core's hooks have to say, on its way to Python.
 *
 * A hook of the core runs on threads that hold the GIL and on threads that do not, and
 * while it runs others may wait for it with the GIL held. So it never asks for the GIL: it
 * leaves a copy on the core's list, and the next call of the binding that has the GIL and
 * nothing half done calls the Python function. A thread in a long wait wakes the watcher
 * instead, if there is one. */
#include "news.h"
#include "look.h"
#include "order.h"
#include "watch.h"

#include <stdlib.h>
#include <string.h>

typedef enum news_kind { NEWS_LOG, NEWS_DEAD, NEWS_LOST } news_kind;

struct news {
    news *next;
    news_kind kind;
    lapse_level level;
    const char *text;  /* LOG, LOST */
    lapse_info info;   /* DEAD */
    lapse_order order; /* LOST */
    char bytes[];      /* what the pointers above lead to */
};

/* -- On any thread, with the GIL or without ------------------------------------------ */

static _Thread_local bool is_waiting;

void news_begin_wait(void)
{
    is_waiting = true;
}

void news_end_wait(void)
{
    is_waiting = false;
}

static void post(core *c, news *n)
{
    news *head = atomic_load_explicit(&c->news, memory_order_relaxed);
    do
        n->next = head;
    while (!atomic_compare_exchange_weak_explicit(&c->news, &head, n, memory_order_release,
                                                  memory_order_relaxed));
    if (is_waiting)
        watch_wake(c, WATCH_NEWS);
}

/* Copy `len` bytes and a NUL to *at, and move on. */
static char *keep(char **at, const void *bytes, size_t len)
{
    char *copy = *at;
    if (len)
        memcpy(copy, bytes, len);
    copy[len] = '\0';
    *at = copy + len + 1;
    return copy;
}

static size_t length(const char *text)
{
    return text ? strlen(text) : 0;
}

/* NULL without memory; what is told is lost then, as nobody could be told of that either. */
static news *news_new(news_kind kind, size_t bytes)
{
    news *n = malloc(sizeof *n + bytes);
    if (n)
        *n = (news){.kind = kind};
    return n;
}

static void on_log(void *link, lapse_level level, const char *message)
{
    news *n = news_new(NEWS_LOG, length(message) + 1);
    if (!n)
        return;
    char *at = n->bytes;
    n->level = level;
    n->text = keep(&at, message, length(message));
    post(((core_link *)link)->core, n);
}

static void on_dead(void *link, const lapse_info *dead)
{
    news *n = news_new(NEWS_DEAD, dead->id_len + length(dead->queue) + dead->payload_len +
                                      length(dead->error) + 4);
    if (!n)
        return;
    char *at = n->bytes;
    n->info = *dead;
    n->info.id = keep(&at, dead->id, dead->id_len);
    n->info.queue = keep(&at, dead->queue, length(dead->queue));
    n->info.payload = keep(&at, dead->payload, dead->payload_len);
    n->info.error = dead->error ? keep(&at, dead->error, length(dead->error)) : NULL;
    post(((core_link *)link)->core, n);
}

/* The settlement of a failure on this thread: the last report about its fence is that
 * failure, which Python has told of; one before it says that the order was lost. */
static _Thread_local struct settling {
    int64_t fence; /* 0: none */
    news *last;
} settling;

static void on_error(void *link, const lapse_order *order, const char *error)
{
    news *n = news_new(NEWS_LOST, order->id_len + length(order->queue) + order->payload_len +
                                      length(error) + 4);
    if (!n)
        return;
    core *c = ((core_link *)link)->core;
    char *at = n->bytes;
    n->order = *order;
    n->order.id = keep(&at, order->id, order->id_len);
    n->order.queue = keep(&at, order->queue, length(order->queue));
    n->order.payload = keep(&at, order->payload, order->payload_len);
    n->text = keep(&at, error, length(error));
    if (settling.fence != order->fence) {
        post(c, n);
        return;
    }
    if (settling.last)
        post(c, settling.last);
    settling.last = n;
}

int news_settle_failed(lapse *s, int64_t fence, const char *error)
{
    settling.fence = fence;
    int rc = lapse_settle(s, fence, LAPSE_FAIL, -1, error);
    free(settling.last);
    settling = (struct settling){0};
    return rc;
}

void news_listen(lapse_options *options, core_link *link)
{
    options->hook_arg = link;
    options->log = on_log;
    options->on_dead = on_dead;
    options->on_error = on_error;
}

/* -- With the GIL -------------------------------------------------------------------- */

static PyObject *or_none(PyObject *object)
{
    return object ? object : Py_None;
}

static PyObject *tell_log(binding_state *state, const news *n)
{
    PyObject *text = PyUnicode_DecodeUTF8(n->text, (Py_ssize_t)strlen(n->text), "replace");
    PyObject *done = text ? PyObject_CallFunction(state->log, "iO", (int)n->level, text) : NULL;
    Py_XDECREF(text);
    return done;
}

static PyObject *tell_dead(binding_state *state, PyObject *hook, const news *n)
{
    PyObject *found = look_tuple(state, &n->info);
    PyObject *done = found ? PyObject_CallFunctionObjArgs(state->bury, hook, found, NULL) : NULL;
    Py_XDECREF(found);
    return done;
}

static PyObject *tell_lost(binding_state *state, PyObject *hook, const news *n)
{
    PyObject *order = order_object(state, state->order_type, &n->order);
    PyObject *error = order ? error_with(state, LAPSE_ETIMEOUT, n->text) : NULL;
    PyObject *done = NULL;
    if (error)
        done = PyObject_CallFunctionObjArgs(state->report, hook, order, error, NULL);
    Py_XDECREF(order);
    Py_XDECREF(error);
    return done;
}

static PyObject *tell(binding_state *state, core *c, const news *n)
{
    PyObject *hook = Py_NewRef(or_none(n->kind == NEWS_DEAD ? c->on_dead : c->on_error));
    PyObject *done = NULL;
    switch (n->kind) {
    case NEWS_LOG:
        done = tell_log(state, n);
        break;
    case NEWS_DEAD:
        done = tell_dead(state, hook, n);
        break;
    case NEWS_LOST:
        done = tell_lost(state, hook, n);
        break;
    }
    Py_DECREF(hook);
    return done;
}

/* All that has come, the oldest first. */
static news *take_all(core *c)
{
    news *n = atomic_exchange_explicit(&c->news, NULL, memory_order_acquire), *first = NULL;
    while (n) {
        news *next = n->next;
        n->next = first;
        first = n;
        n = next;
    }
    return first;
}

static void deliver_all(binding_state *state, core *c)
{
    news *n = take_all(c);
    while (n) {
        PyObject *done = tell(state, c, n);
        if (!done)
            PyErr_WriteUnraisable(NULL);
        Py_XDECREF(done);
        news *next = n->next;
        free(n);
        n = next;
    }
}

void news_deliver(binding_state *state, core *c)
{
    PyObject *type, *value, *traceback;
    if (!state->report || !state->bury || !state->log)
        return; /* the module is going */
    PyErr_Fetch(&type, &value, &traceback);
    core_frame here = {.core = c};
    core_enter(c);
    core_push_frame(&here);
    deliver_all(state, c);
    core_pop_frame(&here);
    core_leave(c);
    PyErr_Restore(type, value, traceback);
}

void news_drop(core *c)
{
    news *n = take_all(c);
    while (n) {
        news *next = n->next;
        free(n);
        n = next;
    }
}
