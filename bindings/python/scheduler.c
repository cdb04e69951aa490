/* scheduler.c - lapse._lapse.Scheduler: the C part of lapse.Scheduler.
 *
 * Owns the core's Python references and shows them to the collector; when it goes, it
 * stops the core and drops them, and waits for nobody. Threads, defaults and exit are the
 * Python part's. Calls that wait give up the GIL and look at signals; calls on a memory
 * store do not, they are shorter than a hand-over. */
#include "scheduler.h"
#include "ask.h"
#include "claim.h"
#include "handle.h"
#include "news.h"
#include "order.h"
#include "put.h"
#include "run.h"
#include "worker.h"

#include <string.h>

static scheduler *as_scheduler(PyObject *object)
{
    return (scheduler *)object;
}

/* -- Life ------------------------------------------------------------------------ */

static PyObject *scheduler_new(PyTypeObject *type, PyObject *Py_UNUSED(args),
                               PyObject *Py_UNUSED(keywords))
{
    binding_state *state = binding_state_of(type);
    scheduler *self = state ? (scheduler *)PyType_GenericAlloc(type, 0) : NULL;
    if (self)
        self->state = state;
    return (PyObject *)self;
}

static int scheduler_traverse(PyObject *object, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(object));
    core *c = as_scheduler(object)->core;
    if (!c)
        return 0;
    Py_VISIT(c->on_error);
    Py_VISIT(c->on_dead);
    Py_VISIT(c->around);
    Py_VISIT(c->handlers);
    Py_VISIT(c->queues);
    Py_VISIT(c->clock);
    return slots_traverse(&c->slots, visit, arg);
}

/* Nothing starts any more and no reference is left; whoever still runs has its own. */
static int scheduler_clear(PyObject *object)
{
    core *c = as_scheduler(object)->core;
    if (!c)
        return 0;
    core_hold(c);
    core_stop(c);
    core_clear(c);
    core_drop(c);
    return 0;
}

static void scheduler_dealloc(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    scheduler_clear(object);
    core *c = as_scheduler(object)->core;
    as_scheduler(object)->core = NULL;
    if (c)
        core_drop(c);
    freefunc release = TYPE_FUNCTION(freefunc, type, Py_tp_free);
    release(object);
    Py_DECREF(type);
}

static int parse_overflow(binding_state *state, const char *word, lapse_overflow *out)
{
    if (!strcmp(word, "refuse"))
        *out = LAPSE_REFUSE;
    else if (!strcmp(word, "dead_letter_oldest"))
        *out = LAPSE_DEAD_LETTER_OLDEST;
    else {
        raise_text(state, LAPSE_EINVAL, "overflow is 'refuse' or 'dead_letter_oldest', not '%s'",
                   word);
        return -1;
    }
    return 0;
}

static int check_hook(PyObject *hook, const char *takes)
{
    if (hook == Py_None || PyCallable_Check(hook))
        return 0;
    PyErr_Format(PyExc_TypeError, "%s, not %R", takes, hook);
    return -1;
}

static int check_on_error(PyObject *hook)
{
    return check_hook(hook, "on_error is a callable that takes (order, error)");
}

static int check_on_dead(PyObject *hook)
{
    return check_hook(hook, "on_dead is a callable that takes (info, reason)");
}

static int check_around(PyObject *around)
{
    return check_hook(around, "around is a callable that takes an order and returns a context "
                              "manager");
}

static PyObject *scheduler_open(PyObject *object, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"url",         "on_error", "on_dead",  "max_pending",
                            "overflow",    "keep",     "max_dead", "lease",
                            "stuck_after", "clock",    "around",   NULL};
    scheduler *self = as_scheduler(object);
    binding_state *state = self->state;
    const char *url, *overflow;
    PyObject *on_error, *on_dead, *max_pending, *keep, *max_dead, *lease, *stuck_after, *clock,
        *around;
    lapse_options options = {.release = slots_release};
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "sOOOsOOOOOO:_open", names, &url, &on_error,
                                     &on_dead, &max_pending, &overflow, &keep, &max_dead, &lease,
                                     &stuck_after, &clock, &around))
        return NULL;
    if (self->core) {
        PyErr_SetString(PyExc_RuntimeError, "the scheduler is open already");
        return NULL;
    }
    if (binding_link(state) || check_on_error(on_error) || check_on_dead(on_dead) ||
        check_around(around) ||
        convert_count(state, "max_pending", max_pending, &options.max_pending) ||
        convert_count(state, "max_dead", max_dead, &options.max_dead) ||
        parse_overflow(state, overflow, &options.overflow) ||
        convert_duration(state, "keep", keep, &options.keep) ||
        convert_duration(state, "lease", lease, &options.lease) ||
        convert_duration(state, "stuck_after", stuck_after, &options.stuck_after))
        return NULL;
    if (clock == Py_None)
        clock = NULL;
    else if (!(options.clock = clock_of(state, clock)))
        return NULL;
    self->core = core_open(state, url, &options, clock);
    if (!self->core)
        return NULL;
    if (on_error != Py_None)
        self->core->on_error = Py_NewRef(on_error);
    if (on_dead != Py_None)
        self->core->on_dead = Py_NewRef(on_dead);
    if (around != Py_None)
        self->core->around = Py_NewRef(around);
    Py_RETURN_NONE;
}

static PyObject *scheduler_stop(PyObject *object, PyObject *Py_UNUSED(ignored))
{
    scheduler *self = as_scheduler(object);
    int rc = self->core ? core_stop(self->core) : 0;
    if (rc < 0)
        return raise_code(self->state, rc);
    Py_RETURN_NONE;
}

/* The wait for running callbacks ran out of time: say for which. */
static PyObject *still_running(binding_state *state, const core *c)
{
    const core_frame *f = c->frames;
    while (f && !f->order)
        f = f->next;
    if (f)
        raise_text(state, LAPSE_ETIMEOUT, "order %R still runs: close again to wait for it",
                   f->order);
    else
        raise_text(state, LAPSE_ETIMEOUT, "a call is still under way: close again to wait for it");
    return NULL;
}

/* Returns how many orders will not run: those of a durable store stay in it. */
static PyObject *close_idle(binding_state *state, core *c, lapse_ns deadline)
{
    lapse_stats stats = {.pending = 0};
    if (c->s && !c->may_block)
        lapse_statistics(c->s, &stats);
    if (c->s) {
        int rc = core_close(c, core_remaining(deadline));
        if (rc < 0)
            return raise_code(state, rc);
    }
    core_tidy(state, c);
    core_clear(c);
    return PyLong_FromUnsignedLongLong(stats.pending);
}

static PyObject *scheduler_close(PyObject *object, PyObject *timeout)
{
    scheduler *self = as_scheduler(object);
    core *c = self->core;
    lapse_ns limit;
    if (convert_timeout(self->state, timeout, &limit))
        return NULL;
    if (!c || !c->s)
        return PyLong_FromLong(0);
    if (core_inside(c))
        return raise_text(self->state, LAPSE_EINCALLBACK,
                          "close inside a callback of this scheduler would wait for itself: "
                          "use stop()");
    lapse_ns deadline = core_deadline(limit);
    core_hold(c);
    int rc = core_stop(c);
    PyObject *result = NULL;
    if (rc < 0) {
        raise_code(self->state, rc);
    } else {
        int late = core_wait_idle(c, deadline);
        if (late == 1)
            still_running(self->state, c);
        else if (!late)
            result = close_idle(self->state, c, deadline);
    }
    core_drop(c);
    return result;
}

static PyObject *scheduler_after_fork(PyObject *object, PyObject *Py_UNUSED(ignored))
{
    scheduler *self = as_scheduler(object);
    if (!self->core || !self->core->s)
        Py_RETURN_NONE;
    core *old = core_hold(self->core);
    core *fresh = core_after_fork(self->state, old);
    if (fresh)
        self->core = fresh;
    core_drop(old);
    if (!fresh || handle_again(self->state, fresh))
        return NULL;
    Py_RETURN_NONE;
}

/* -- Schedule, cancel, change ---------------------------------------------------- */

bool scheduler_is_open(PyObject *object)
{
    core *c = as_scheduler(object)->core;
    return c && c->s;
}

int scheduler_wake_workers(scheduler *self)
{
    if (!self->lazy)
        return 0;
    PyObject *done = call_method(self->state, (PyObject *)self, NAME__start_workers);
    Py_XDECREF(done);
    return done ? 0 : -1;
}

static PyObject *put_order(scheduler *self, core *c, const put *p, PyObject *time)
{
    if (p->runs && scheduler_wake_workers(self))
        return NULL;
    if (!core_open_or_raise(self->state, c))
        return NULL;
    int64_t generation;
    CORE_CALL(c, generation, lapse_put(c->s, &p->spec));
    if (generation == LAPSE_ERANGE && p->spec.at) {
        refuse_instant(self->state, "at", time);
        return NULL;
    }
    if (generation < 0)
        return raise_code(self->state, (int)generation);
    return PyLong_FromLongLong(generation);
}

static PyObject *schedule(scheduler *self, const put_arguments *given, bool absolute)
{
    core *c = self->core;
    put p;
    if (!core_open_or_raise(self->state, c) || put_prepare(self->state, c, given, absolute, &p))
        return NULL;
    core_hold(c);
    PyObject *generation = put_order(self, c, &p, given->time);
    put_done(c, &p, generation != NULL);
    core_tidy(self->state, c);
    core_drop(c);
    return generation;
}

static const binding_name schedule_names[] = {NAME_order_id, NAME_delay, NAME_callback,
                                              NAME_payload,  NAME_queue, NAME_replace};
static const signature schedule_signature = {"schedule", schedule_names, PUT_ARGUMENTS, 2};

static const binding_name schedule_at_names[] = {NAME_order_id, NAME_at,    NAME_callback,
                                                 NAME_payload,  NAME_queue, NAME_replace};
static const signature schedule_at_signature = {"schedule_at", schedule_at_names, PUT_ARGUMENTS, 2};

static PyObject *schedule_fast(PyObject *object, const signature *sig, PyObject *const *args,
                               Py_ssize_t given, PyObject *keywords)
{
    scheduler *self = as_scheduler(object);
    put_arguments a;
    if (take_arguments(self->state, sig, args, given, keywords, a.all))
        return NULL;
    return schedule(self, &a, sig == &schedule_at_signature);
}

PyObject *scheduler_schedule(PyObject *self, PyObject *const *args, Py_ssize_t given,
                             PyObject *keywords)
{
    return schedule_fast(self, &schedule_signature, args, given, keywords);
}

PyObject *scheduler_schedule_at(PyObject *self, PyObject *const *args, Py_ssize_t given,
                                PyObject *keywords)
{
    return schedule_fast(self, &schedule_at_signature, args, given, keywords);
}

static PyObject *fate_or_raise(binding_state *state, core *c, int fate)
{
    PyObject *result = fate < 0 ? raise_code(state, fate) : fate_object(state, fate);
    core_tidy(state, c);
    return result;
}

PyObject *scheduler_cancel(PyObject *object, PyObject *const *args, Py_ssize_t given,
                           PyObject *keywords)
{
    static const binding_name names[] = {NAME_order_id, NAME_generation};
    static const signature sig = {"cancel", names, 2, 1};
    scheduler *self = as_scheduler(object);
    PyObject *a[2];
    text id;
    int64_t generation;
    if (take_arguments(self->state, &sig, args, given, keywords, a) ||
        convert_generation(a[1], &generation) || convert_id(self->state, a[0], &id))
        return NULL;
    core *c = self->core;
    int fate = LAPSE_FATE_UNKNOWN; /* closed, or an id that cannot exist */
    if (c && c->s && !text_holds_nul(&id))
        CORE_CALL(c, fate, lapse_cancel(c->s, id.bytes, generation));
    text_done(&id);
    return c ? fate_or_raise(self->state, c, fate) : fate_object(self->state, fate);
}

PyObject *scheduler_reschedule(PyObject *object, PyObject *const *args, Py_ssize_t given,
                               PyObject *keywords)
{
    static const binding_name names[] = {NAME_order_id, NAME_delay, NAME_generation};
    static const signature sig = {"reschedule", names, 3, 2};
    scheduler *self = as_scheduler(object);
    PyObject *a[3];
    text id;
    int64_t generation;
    lapse_ns delay;
    core *c = self->core;
    if (take_arguments(self->state, &sig, args, given, keywords, a) ||
        convert_generation(a[2], &generation) ||
        convert_delay(self->state, "delay", a[1], &delay) || !core_open_or_raise(self->state, c) ||
        convert_id(self->state, a[0], &id))
        return NULL;
    int fate = LAPSE_FATE_UNKNOWN;
    if (!text_holds_nul(&id))
        CORE_CALL(c, fate, lapse_reschedule(c->s, id.bytes, generation, delay));
    text_done(&id);
    return fate_or_raise(self->state, c, fate);
}

/* The answer is that of the moment it was called; then the callback is waited for. */
static PyObject *cancel_and_wait(scheduler *self, core *c, const text *id, int64_t generation,
                                 lapse_ns deadline)
{
    int fate;
    CORE_CALL(c, fate, lapse_cancel(c->s, id->bytes, generation));
    if (fate < 0)
        return raise_code(self->state, fate);
    PyObject *shown = text_object(id->bytes, id->len);
    if (!shown)
        return NULL;
    int late = core_wait_order(c, shown, generation, deadline);
    PyObject *result = NULL;
    if (late == 1)
        raise_text(self->state, LAPSE_ETIMEOUT, "order %R still runs: it will not be repeated",
                   shown);
    else if (!late)
        result = fate_object(self->state, fate);
    Py_DECREF(shown);
    core_tidy(self->state, c);
    return result;
}

static PyObject *scheduler_cancel_wait(PyObject *object, PyObject *const *args, Py_ssize_t given,
                                       PyObject *keywords)
{
    static const binding_name names[] = {NAME_order_id, NAME_timeout, NAME_generation};
    static const signature sig = {"cancel_wait", names, 3, 1};
    scheduler *self = as_scheduler(object);
    PyObject *a[3], *result;
    text id;
    int64_t generation;
    lapse_ns limit;
    core *c = self->core;
    if (take_arguments(self->state, &sig, args, given, keywords, a) ||
        convert_generation(a[2], &generation) || convert_timeout(self->state, a[1], &limit) ||
        convert_id(self->state, a[0], &id))
        return NULL;
    if (!c || !c->s || text_holds_nul(&id)) {
        result = fate_object(self->state, LAPSE_FATE_UNKNOWN);
    } else {
        core_hold(c);
        result = cancel_and_wait(self, c, &id, generation, core_deadline(limit));
        core_drop(c);
    }
    text_done(&id);
    return result;
}

/* -- Pull ------------------------------------------------------------------------ */

/* A claim as Python sees it; it knows its scheduler, to settle itself. */
static PyObject *claim_object(scheduler *self, core *c, const lapse_order *order)
{
    int64_t fence = order->fence;
    PyObject *claim = claim_make(self->state, c, self->state->claim_type, order);
    if (!claim || !PyObject_SetAttr(claim, self->state->names[NAME__scheduler], (PyObject *)self))
        return claim;
    Py_DECREF(claim);
    claim_give_back(c, fence);
    return NULL;
}

static PyObject *claim_or_none(scheduler *self, core *c, int rc, const lapse_order *order)
{
    if (rc == RUN_RAISED)
        return NULL;
    if (rc < 0)
        return raise_code(self->state, rc);
    if (rc == 0)
        Py_RETURN_NONE;
    return claim_object(self, c, order);
}

/* News are delivered between the waits, and by the caller once the claim is safe. */
static int take(binding_state *state, core *c, const char *queue, lapse_ns deadline,
                const lapse_order **order)
{
    int rc = LAPSE_ECLOSED;
    while (c->s) {
        lapse_ns slice = core_slice(c, deadline);
        PyThreadState *gil = PyEval_SaveThread();
        news_begin_wait();
        rc = lapse_take(c->s, queue, slice, order);
        news_end_wait();
        PyEval_RestoreThread(gil);
        if (rc == 1)
            break; /* a signal that came meanwhile is seen after the claim is safe */
        if (PyErr_CheckSignals())
            return RUN_RAISED;
        if (rc != LAPSE_EINTR && (rc < 0 || !core_remaining(deadline)))
            break;
        core_tidy(state, c);
    }
    return rc;
}

static PyObject *scheduler_take(PyObject *object, PyObject *const *args, Py_ssize_t given,
                                PyObject *keywords)
{
    static const binding_name names[] = {NAME_queue, NAME_timeout};
    static const signature sig = {"take", names, 2, 0};
    scheduler *self = as_scheduler(object);
    core *c = self->core;
    PyObject *a[2];
    lapse_ns limit;
    text queue;
    const lapse_order *order = NULL;
    if (take_arguments(self->state, &sig, args, given, keywords, a) ||
        convert_timeout(self->state, a[1], &limit) || !core_open_or_raise(self->state, c) ||
        convert_queue(self->state, a[0], &queue))
        return NULL;
    core_enter(c);
    int rc = take(self->state, c, queue.bytes, core_deadline(limit), &order);
    PyObject *claim = claim_or_none(self, c, rc, order);
    text_done(&queue);
    core_tidy(self->state, c);
    core_leave(c);
    return claim;
}

static PyObject *scheduler_poll(PyObject *object, PyObject *const *args, Py_ssize_t given,
                                PyObject *keywords)
{
    static const binding_name names[] = {NAME_queue};
    static const signature sig = {"poll", names, 1, 0};
    scheduler *self = as_scheduler(object);
    core *c = self->core;
    PyObject *a[1];
    text queue;
    const lapse_order *order = NULL;
    if (take_arguments(self->state, &sig, args, given, keywords, a) ||
        !core_open_or_raise(self->state, c) || convert_queue(self->state, a[0], &queue))
        return NULL;
    core_enter(c);
    int rc;
    CORE_CALL(c, rc, lapse_poll(c->s, queue.bytes, &order));
    PyObject *claim = claim_or_none(self, c, rc, order);
    text_done(&queue);
    core_tidy(self->state, c);
    core_leave(c);
    return claim;
}

static PyObject *scheduler_settle(PyObject *object, PyObject *args)
{
    return claim_settle(as_scheduler(object)->state, as_scheduler(object)->core, args);
}

static PyObject *scheduler_renew(PyObject *object, PyObject *args)
{
    return claim_renew(as_scheduler(object)->state, as_scheduler(object)->core, args);
}

static PyObject *scheduler_holds(PyObject *object, PyObject *args)
{
    return claim_holds(as_scheduler(object)->core, args);
}

/* -- Dead letters ------------------------------------------------------------------ */

static PyObject *scheduler_requeue(PyObject *object, PyObject *const *args, Py_ssize_t given,
                                   PyObject *keywords)
{
    static const binding_name names[] = {NAME_order_id, NAME_delay, NAME_generation};
    static const signature sig = {"requeue", names, 3, 1};
    scheduler *self = as_scheduler(object);
    core *c = self->core;
    PyObject *a[3], *result;
    text id;
    int64_t generation, made = LAPSE_EUNKNOWN;
    lapse_ns delay = 0;
    if (take_arguments(self->state, &sig, args, given, keywords, a) ||
        convert_generation(a[2], &generation) ||
        (a[1] && convert_delay(self->state, "delay", a[1], &delay)) ||
        !core_open_or_raise(self->state, c) || scheduler_wake_workers(self) ||
        !core_open_or_raise(self->state, c) || convert_id(self->state, a[0], &id))
        return NULL;
    if (!text_holds_nul(&id))
        CORE_CALL(c, made, lapse_requeue(c->s, id.bytes, generation, delay));
    text_done(&id);
    if (made == LAPSE_EUNKNOWN)
        result = raise_text(self->state, LAPSE_EUNKNOWN, "no dead letter of %R", a[0]);
    else if (made < 0)
        result = raise_code(self->state, (int)made);
    else
        result = PyLong_FromLongLong(made);
    core_tidy(self->state, c);
    return result;
}

static PyObject *scheduler_purge(PyObject *object, PyObject *const *args, Py_ssize_t given,
                                 PyObject *keywords)
{
    static const binding_name names[] = {NAME_order_id, NAME_generation};
    static const signature sig = {"purge", names, 2, 0};
    scheduler *self = as_scheduler(object);
    core *c = self->core;
    PyObject *a[2];
    text id = {0};
    int64_t generation, purged = 0;
    if (take_arguments(self->state, &sig, args, given, keywords, a) ||
        convert_generation(a[1], &generation) || !core_open_or_raise(self->state, c) ||
        (a[0] && a[0] != Py_None && convert_id(self->state, a[0], &id)))
        return NULL;
    if (!text_holds_nul(&id))
        CORE_CALL(c, purged, lapse_purge(c->s, id.bytes, generation));
    text_done(&id);
    PyObject *result =
        purged < 0 ? raise_code(self->state, (int)purged) : PyLong_FromLongLong(purged);
    core_tidy(self->state, c);
    return result;
}

/* -- The host's loop -------------------------------------------------------------- */

static PyObject *scheduler_fileno(PyObject *object, PyObject *Py_UNUSED(ignored))
{
    scheduler *self = as_scheduler(object);
    if (!core_open_or_raise(self->state, self->core))
        return NULL;
    int fd = lapse_fd(self->core->s);
    return fd < 0 ? raise_code(self->state, fd) : PyLong_FromLong(fd);
}

static PyObject *scheduler_timeout(PyObject *object, PyObject *Py_UNUSED(ignored))
{
    scheduler *self = as_scheduler(object);
    if (!core_open_or_raise(self->state, self->core))
        return NULL;
    lapse_ns left; /* under a manual clock a durable store is waited for */
    CORE_CALL(self->core, left, lapse_timeout(self->core->s));
    if (left < 0)
        return raise_code(self->state, (int)left);
    if (left == LAPSE_FOREVER)
        Py_RETURN_NONE;
    return convert_seconds(left);
}

static PyObject *scheduler_now(PyObject *object, PyObject *Py_UNUSED(ignored))
{
    scheduler *self = as_scheduler(object);
    if (!core_open_or_raise(self->state, self->core))
        return NULL;
    return convert_seconds(lapse_now(self->core->s));
}

static PyObject *scheduler_process(PyObject *object, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"max", NULL};
    scheduler *self = as_scheduler(object);
    PyObject *max = NULL;
    uint64_t limit = 0;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "|O:process", names, &max) ||
        (max && convert_count(self->state, "max", max, &limit)) ||
        !core_open_or_raise(self->state, self->core))
        return NULL;
    int64_t ran = run_due(self->state, self->core, limit);
    if (ran == RUN_RAISED)
        return NULL;
    return ran < 0 ? raise_code(self->state, (int)ran) : PyLong_FromLongLong(ran);
}

static PyObject *scheduler_run(PyObject *object, PyObject *Py_UNUSED(ignored))
{
    scheduler *self = as_scheduler(object);
    if (!core_open_or_raise(self->state, self->core) ||
        run_until_stopped(self->state, self->core, false))
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *scheduler_worker(PyObject *object, PyObject *Py_UNUSED(ignored))
{
    scheduler *self = as_scheduler(object);
    if (!core_open_or_raise(self->state, self->core))
        return NULL;
    return worker_new(self->state, self->core);
}

/* What calls Python back: on_error, on_dead, around. */
static void swap_hook(PyObject **hook, PyObject *value)
{
    PyObject *old = *hook;
    *hook = value == Py_None ? NULL : Py_NewRef(value);
    Py_XDECREF(old);
}

#define HOOK(name)                                                                                 \
    static PyObject *get_##name(PyObject *object, void *Py_UNUSED(closure))                        \
    {                                                                                              \
        core *c = as_scheduler(object)->core;                                                      \
        return Py_NewRef(c && c->name ? c->name : Py_None);                                        \
    }                                                                                              \
    static int set_##name(PyObject *object, PyObject *value, void *Py_UNUSED(closure))             \
    {                                                                                              \
        scheduler *self = as_scheduler(object);                                                    \
        if (!value)                                                                                \
            value = Py_None;                                                                       \
        if (check_##name(value) || !core_open_or_raise(self->state, self->core))                   \
            return -1;                                                                             \
        swap_hook(&self->core->name, value);                                                       \
        return 0;                                                                                  \
    }

HOOK(on_error)
HOOK(on_dead)
HOOK(around)

/* An event loop is going to await what callbacks return: coroutine functions are welcome. */
static PyObject *scheduler_await_results(PyObject *object, PyObject *Py_UNUSED(ignored))
{
    scheduler *self = as_scheduler(object);
    if (!core_open_or_raise(self->state, self->core))
        return NULL;
    self->core->awaits = true;
    Py_RETURN_NONE;
}

static PyObject *get_closed(PyObject *object, void *Py_UNUSED(closure))
{
    return PyBool_FromLong(!scheduler_is_open(object));
}

#define REQUEUE_DOC                                                                                \
    "requeue($self, order_id, delay=0, generation=0)\n--\n\n"                                      \
    "Make a dead letter a pending order again, due after `delay` seconds.\n"                       \
    "\n"                                                                                           \
    "With its callback or queue and its payload; its attempts are counted anew. generation:\n"     \
    "that dead letter of the id, 0 for the newest. Returns the new generation. Raises\n"           \
    "lapse.Unknown when there is no such dead letter, Exists when the id is pending again,\n"      \
    "Full, Range, Closed, Forked. Any thread, and callbacks."

#define PURGE_DOC                                                                                  \
    "purge($self, order_id=None, generation=0)\n--\n\n"                                            \
    "Delete dead letters: of one id, or with None all there are; returns how many.\n"              \
    "\n"                                                                                           \
    "With a generation only that one of the id. Any thread, and callbacks."

/* -- The type --------------------------------------------------------------------- */

#define FAST(function) ((PyCFunction)(void (*)(void))(function))

static PyMethodDef scheduler_methods[] = {
    {"schedule", FAST(scheduler_schedule), METH_FASTCALL | METH_KEYWORDS,
     PyDoc_STR(SCHEDULE_DOC("$self, "))},
    {"schedule_at", FAST(scheduler_schedule_at), METH_FASTCALL | METH_KEYWORDS,
     PyDoc_STR(SCHEDULE_AT_DOC("$self, "))},
    {"schedule_many", scheduler_schedule_many, METH_O,
     PyDoc_STR("schedule_many($self, orders, /)\n--\n\n"
               "Schedule many orders with one lock; one bad order does not hold back the others.\n"
               "\n"
               "orders: an iterable of tuples (order_id, delay, callback, payload, queue,\n"
               "replace), of which the first two must be there, or of dicts with these keys, or\n"
               "with at, an instant as in schedule_at, in place of delay.\n"
               "Returns a list: for each order its generation, or the exception it would have\n"
               "raised. Any thread, and callbacks.")},
    {"cancel", FAST(scheduler_cancel), METH_FASTCALL | METH_KEYWORDS,
     PyDoc_STR(CANCEL_DOC("$self, "))},
    {"cancel_wait", FAST(scheduler_cancel_wait), METH_FASTCALL | METH_KEYWORDS,
     PyDoc_STR("cancel_wait($self, order_id, timeout=None, generation=0)\n--\n\n"
               "Cancel, and if the callback is running wait until it has returned.\n"
               "\n"
               "timeout: seconds, None without limit; lapse.Timeout when it passes. Afterwards no\n"
               "callback of this order runs in this process. Inside that very callback it answers\n"
               "RUNNING at once. Ctrl-C is seen. Any thread, and callbacks.")},
    {"reschedule", FAST(scheduler_reschedule), METH_FASTCALL | METH_KEYWORDS,
     PyDoc_STR(RESCHEDULE_DOC("$self, "))},
    {"take", FAST(scheduler_take), METH_FASTCALL | METH_KEYWORDS,
     PyDoc_STR("take($self, queue=None, timeout=None)\n--\n\n"
               "Wait for the next due order that has no callback, and claim it.\n"
               "\n"
               "queue: None for any. timeout: seconds, None without limit. Returns a Claim, to be\n"
               "used with `with`, or None when the time passed. Raises lapse.Closed when the\n"
               "scheduler is stopped. Ctrl-C is seen. Any thread.")},
    {"poll", FAST(scheduler_poll), METH_FASTCALL | METH_KEYWORDS,
     PyDoc_STR("poll($self, queue=None)\n--\n\nAs take, but never waits.")},
    {"pause", scheduler_pause, METH_O,
     PyDoc_STR("pause($self, queue, /)\n--\n\n"
               "No order of `queue` (str; '' is the default one) starts until resume().\n"
               "\n"
               "With a callback of its own or not. What runs goes on; orders stay cancellable.\n"
               "Raises lapse.Invalid, Forked, NoMemory. Any thread, and callbacks.")},
    {"resume", scheduler_resume, METH_O,
     PyDoc_STR("resume($self, queue, /)\n--\n\n"
               "Let the orders of `queue` start again, those that are due oldest first.")},
    {"requeue", FAST(scheduler_requeue), METH_FASTCALL | METH_KEYWORDS, PyDoc_STR(REQUEUE_DOC)},
    {"purge", FAST(scheduler_purge), METH_FASTCALL | METH_KEYWORDS, PyDoc_STR(PURGE_DOC)},
    {"queues", scheduler_queues, METH_NOARGS,
     PyDoc_STR(
         "queues($self, /)\n--\n\n"
         "The names of all queues that had an order or a handler, as a list of str; '' is one.")},
    {"metrics", scheduler_metrics, METH_NOARGS,
     PyDoc_STR("metrics($self, /)\n--\n\n"
               "All statistics as text for Prometheus, in its exposition format 0.0.4.\n"
               "\n"
               "For a metrics endpoint: serve it as 'text/plain; version=0.0.4'. Any thread.")},
    {"fileno", scheduler_fileno, METH_NOARGS,
     PyDoc_STR("fileno($self, /)\n--\n\n"
               "A descriptor that is readable while process() has something to run.\n"
               "\nFor select, asyncio's add_reader and the like. Never read or close it.")},
    {"timeout", scheduler_timeout, METH_NOARGS,
     PyDoc_STR("timeout($self, /)\n--\n\n"
               "Seconds until something is due, as float; None when nothing is pending.")},
    {"now", scheduler_now, METH_NOARGS,
     PyDoc_STR("now($self, /)\n--\n\n"
               "The scheduler's clock in seconds, as float: uptime, sleep included.")},
    {"process", FAST(scheduler_process), METH_VARARGS | METH_KEYWORDS,
     PyDoc_STR("process($self, max=0)\n--\n\n"
               "Run the callbacks that are due now, in order, on this thread; never waits.\n"
               "\n"
               "max: at most so many, 0 without limit. What they schedule with no delay does not\n"
               "run in this call. Errors of callbacks go to on_error, as on a worker. Returns how\n"
               "many ran. Raises lapse.Closed after stop(): take fileno() out of the loop then.")},
    {"run", scheduler_run, METH_NOARGS,
     PyDoc_STR("run($self, /)\n--\n\n"
               "Run callbacks on this thread until stop() is called; Ctrl-C is seen.")},
    {"stop", scheduler_stop, METH_NOARGS,
     PyDoc_STR("stop($self, /)\n--\n\n"
               "Nothing starts any more, and schedule raises lapse.Closed.\n"
               "\n"
               "Running callbacks go on; orders that did not run can be listed with orders().\n"
               "Waits for nothing. Any thread, and callbacks; a second call does nothing.")},
    {"_open", FAST(scheduler_open), METH_VARARGS | METH_KEYWORDS, NULL},
    {"_close", scheduler_close, METH_O, NULL},
    {"_submit", scheduler_submit, METH_VARARGS, NULL},
    {"_submit_put", scheduler_submit_put, METH_VARARGS, NULL},
    {"_settle", scheduler_settle, METH_VARARGS, NULL},
    {"_renew", scheduler_renew, METH_VARARGS, NULL},
    {"_holds", scheduler_holds, METH_VARARGS, NULL},
    {"_handle", scheduler_handle, METH_VARARGS, NULL},
    {"_queue_stats", scheduler_queue_stats, METH_O, NULL},
    {"_worker", scheduler_worker, METH_NOARGS, NULL},
    {"_await_results", scheduler_await_results, METH_NOARGS, NULL},
    {"_after_fork", scheduler_after_fork, METH_NOARGS, NULL},
    {"_get", scheduler_get, METH_O, NULL},
    {"_orders", scheduler_orders, METH_O, NULL},
    {"_stats", scheduler_stats, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef scheduler_members[] = {
    {"_lazy", T_BOOL, offsetof(scheduler, lazy), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef scheduler_getset[] = {
    {"on_error", get_on_error, set_on_error,
     PyDoc_STR("Called as on_error(order, error) for what a callback raises; None: logging."),
     NULL},
    {"on_dead", get_on_dead, set_on_dead,
     PyDoc_STR("Called as on_dead(info, reason) for each dead letter; None: logging."), NULL},
    {"around", get_around, set_around,
     PyDoc_STR("Called as around(order); its context manager is entered for the callback."), NULL},
    {"closed", get_closed, NULL, PyDoc_STR("Whether close() has freed it."), NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static const char scheduler_doc[] = PyDoc_STR("The C part of lapse.Scheduler.");

static PyType_Slot scheduler_slots[] = {
    TYPE_SLOT(Py_tp_new, scheduler_new),
    TYPE_SLOT(Py_tp_dealloc, scheduler_dealloc),
    TYPE_SLOT(Py_tp_traverse, scheduler_traverse),
    TYPE_SLOT(Py_tp_clear, scheduler_clear),
    TYPE_SLOT(Py_tp_methods, scheduler_methods),
    TYPE_SLOT(Py_tp_members, scheduler_members),
    TYPE_SLOT(Py_tp_getset, scheduler_getset),
    TYPE_SLOT(Py_tp_doc, scheduler_doc),
    {0, NULL},
};

static PyType_Spec scheduler_spec = {
    .name = "lapse._lapse.Scheduler",
    .basicsize = sizeof(scheduler),
    .flags =
        Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = scheduler_slots,
};

bool scheduler_check(binding_state *state, PyObject *object)
{
    return PyObject_TypeCheck(object, (PyTypeObject *)state->scheduler_type);
}

int scheduler_add(PyObject *module, binding_state *state)
{
    state->scheduler_type = PyType_FromModuleAndSpec(module, &scheduler_spec, NULL);
    return state->scheduler_type ? PyModule_AddType(module, (PyTypeObject *)state->scheduler_type)
                                 : -1;
}
