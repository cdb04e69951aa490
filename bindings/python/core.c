/* core.c - the core object: what threads hold instead of the Scheduler.
 *
 * Counts are plain integers under the GIL. `s` is used without the GIL only between
 * core_enter and core_leave, and is closed only when no such call is left. */
#include "news.h"
#include "watch.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Waits in poll(), which a signal interrupts. */
struct core_waiter {
    int fd; /* eventfd */
    core_waiter *next;
};

static _Thread_local core_frame *innermost;

lapse_ns core_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_BOOTTIME, &t);
    return (lapse_ns)t.tv_sec * 1000000000 + t.tv_nsec;
}

lapse_ns core_deadline(lapse_ns timeout)
{
    lapse_ns now = core_now();
    return timeout > LAPSE_FOREVER - now ? LAPSE_FOREVER : now + timeout;
}

lapse_ns core_remaining(lapse_ns deadline)
{
    if (deadline == LAPSE_FOREVER)
        return LAPSE_FOREVER;
    lapse_ns left = deadline - core_now();
    return left > 0 ? left : 0;
}

lapse_ns core_slice(const core *c, lapse_ns deadline)
{
    lapse_ns left = core_remaining(deadline), most = LAPSE_FOREVER;
    if (syscall(SYS_gettid) == getpid())
        most = LAPSE_MS(100);
    else if (!c->watchers)
        most = LAPSE_SECONDS(1);
    return left < most ? left : most;
}

static core *core_new(void)
{
    core *c = PyMem_Calloc(1, sizeof *c);
    if (!c) {
        PyErr_NoMemory();
        return NULL;
    }
    c->holds = 1;
    atomic_init(&c->watch_fd, -1);
    return c;
}

static core_link *link_new(core *c)
{
    core_link *link = PyMem_Malloc(sizeof *link);
    if (link)
        link->core = c;
    else
        PyErr_NoMemory();
    return link;
}

core *core_open(binding_state *state, const char *url, const lapse_options *options,
                PyObject *clock)
{
    core *c = core_new();
    if (!c || !(c->link = link_new(c))) {
        PyMem_Free(c);
        return NULL;
    }
    lapse_options told = *options;
    news_listen(&told, c->link);
    int rc;
    PyThreadState *gil = PyEval_SaveThread();
    rc = lapse_open(url, &told, &c->s);
    PyEval_RestoreThread(gil);
    if (rc < 0) {
        raise_code(state, rc);
        PyMem_Free(c->link);
        PyMem_Free(c);
        return NULL;
    }
    c->clock = Py_XNewRef(clock);
    c->may_block = (lapse_abilities(c->s) & LAPSE_CAN_DURABLE) != 0;
    return c;
}

static int close_last(core *c)
{
    int rc = 0;
    lapse *s = c->s;
    c->s = NULL;
    if (!s)
        return 0;
    if (!c->may_block)
        return lapse_close(s, 0);
    PyThreadState *gil = PyEval_SaveThread();
    rc = lapse_close(s, LAPSE_SECONDS(5)); /* the store takes what was settled last */
    PyEval_RestoreThread(gil);
    return rc;
}

void core_clear(core *c)
{
    Py_CLEAR(c->on_error);
    Py_CLEAR(c->on_dead);
    Py_CLEAR(c->around);
    Py_CLEAR(c->handlers);
    Py_CLEAR(c->queues);
    slots_clear(&c->slots);
}

static void close_watch(core *c)
{
    int fd = atomic_exchange(&c->watch_fd, -1);
    if (fd >= 0)
        close(fd);
}

void core_free(core *c)
{
    if (close_last(c) < 0)
        return; /* it still runs something: keep what that may touch */
    core_clear(c);
    slots_free(&c->slots);
    news_drop(c);
    close_watch(c);
    Py_XDECREF(c->clock);
    PyMem_Free(c->link);
    PyMem_Free(c);
}

void core_enter(core *c)
{
    c->holds++;
    c->users++;
}

/* Every waiter looks again; each has a descriptor of its own, so none takes another's. */
static void tell_waiters(core *c)
{
    for (core_waiter *w = c->waiters; w; w = w->next)
        eventfd_write(w->fd, 1);
}

void core_leave(core *c)
{
    if (--c->users == 0)
        tell_waiters(c);
    slots_drain(&c->slots);
    core_drop(c);
}

void core_push_frame(core_frame *f)
{
    f->outer = innermost;
    innermost = f;
    f->next = f->core->frames;
    f->core->frames = f;
    if (f->core->watch_sleeps) {
        f->core->watch_sleeps = false;
        watch_wake(f->core, WATCH_START);
    }
}

void core_pop_frame(core_frame *f)
{
    core_frame **p = &f->core->frames;
    innermost = f->outer;
    while (*p != f)
        p = &(*p)->next;
    *p = f->next;
    tell_waiters(f->core);
}

bool core_inside(const core *c)
{
    for (const core_frame *f = innermost; f; f = f->outer)
        if (f->core == c)
            return true;
    return false;
}

void core_raise_closed(binding_state *state, const core *c)
{
    raise_text(state, LAPSE_ECLOSED,
               c ? "the scheduler has been closed"
                 : "the scheduler was never opened: call __init__ first");
}

int core_stop(core *c)
{
    int rc = 0;
    if (c->s)
        CORE_CALL(c, rc, lapse_stop(c->s));
    c->stopped = true;
    watch_wake(c, WATCH_NEWS);
    return rc;
}

static bool is_idle(const core *c, PyObject *Py_UNUSED(id), int64_t Py_UNUSED(generation))
{
    return c->users == 0;
}

static bool is_mine(const core_frame *f)
{
    for (const core_frame *mine = innermost; mine; mine = mine->outer)
        if (mine == f)
            return true;
    return false;
}

/* Frames are compared by text: Order is a str. */
static bool has_returned(const core *c, PyObject *id, int64_t generation)
{
    for (const core_frame *f = c->frames; f; f = f->next)
        if (f->order && (generation == LAPSE_ANY || generation == f->generation) &&
            PyUnicode_Compare(f->order, id) == 0)
            return is_mine(f);
    return true;
}

typedef bool condition(const core *c, PyObject *id, int64_t generation);

/* One sleep, until something changed, a signal came, or the time is up. */
static void sleep_until_told(core_waiter *w, lapse_ns left)
{
    eventfd_t known;
    struct pollfd p = {.fd = w->fd, .events = POLLIN};
    struct timespec limit = {left / 1000000000, left % 1000000000};
    eventfd_read(w->fd, &known);
    PyThreadState *gil = PyEval_SaveThread();
    ppoll(&p, 1, &limit, NULL);
    PyEval_RestoreThread(gil);
}

static int wait_as(core_waiter *w, const core *c, condition *holds, PyObject *id,
                   int64_t generation, lapse_ns deadline)
{
    while (!holds(c, id, generation)) {
        lapse_ns left = core_remaining(deadline);
        if (!left)
            return 1;
        sleep_until_told(w, left);
        if (PyErr_CheckSignals())
            return -1;
    }
    return 0;
}

static void add_waiter(core *c, core_waiter *w)
{
    w->next = c->waiters;
    c->waiters = w;
}

static void remove_waiter(core *c, const core_waiter *w)
{
    core_waiter **p = &c->waiters;
    while (*p != w)
        p = &(*p)->next;
    *p = w->next;
}

static int core_wait(core *c, condition *holds, PyObject *id, int64_t generation, lapse_ns deadline)
{
    if (holds(c, id, generation))
        return 0;
    core_waiter w = {.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
    if (w.fd < 0) {
        PyErr_SetFromErrno(PyExc_OSError);
        return -1;
    }
    core_hold(c);
    add_waiter(c, &w);
    int rc = wait_as(&w, c, holds, id, generation, deadline);
    remove_waiter(c, &w);
    close(w.fd);
    core_drop(c);
    return rc;
}

int core_wait_idle(core *c, lapse_ns deadline)
{
    return core_wait(c, is_idle, NULL, 0, deadline);
}

int core_wait_order(core *c, PyObject *id, int64_t generation, lapse_ns deadline)
{
    return core_wait(c, has_returned, id, generation, deadline);
}

int core_close(core *c, lapse_ns timeout)
{
    lapse *s = c->s;
    c->s = NULL; /* from here on no call of another thread finds it */
    int rc;
    PyThreadState *gil = PyEval_SaveThread();
    rc = lapse_close(s, timeout);
    PyEval_RestoreThread(gil);
    if (rc < 0)
        c->s = s;
    slots_drain(&c->slots);
    return rc;
}

/* What belongs to the `lapse` and to the Scheduler goes on with `fresh`. */
static void move(core *c, core *fresh)
{
    fresh->s = c->s;
    fresh->link = c->link;
    fresh->link->core = fresh;
    fresh->on_error = c->on_error;
    fresh->on_dead = c->on_dead;
    fresh->around = c->around;
    fresh->handlers = c->handlers;
    fresh->queues = c->queues;
    fresh->clock = Py_XNewRef(c->clock);
    fresh->may_block = c->may_block;
    fresh->awaits = c->awaits;
    c->s = NULL;
    c->link = NULL;
    c->on_error = c->on_dead = c->around = c->handlers = c->queues = NULL;
}

core *core_after_fork(binding_state *state, core *c)
{
    core *fresh = core_new();
    if (!fresh)
        return NULL;
    int rc = lapse_after_fork(c->s);
    if (rc < 0) {
        raise_code(state, rc);
        PyMem_Free(fresh);
        return NULL;
    }
    move(c, fresh);
    close_watch(c);
    slots_clear(&c->slots); /* the parent's orders stay the parent's */
    core_drop(c);
    return fresh;
}
