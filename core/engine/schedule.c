/* schedule.c - the public calls that put, change and look up orders.
 *
 * Each checks its arguments without the lock, makes a request of them, and asks the
 * store under it. The time is read first: a delay counts from the call. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "engine/driver.h"

int lapse_check_id(const char *id, size_t id_len)
{
    if (!id)
        return lp_fail(LAPSE_EID, "the order id is NULL: use 1 to %d bytes", LAPSE_ID_MAX);
    if (id_len == 0)
        return lp_fail(LAPSE_EID, "the order id is empty: use 1 to %d bytes", LAPSE_ID_MAX);
    if (id_len > LAPSE_ID_MAX)
        return lp_fail(LAPSE_EID, "the order id %s... is longer than %d bytes",
                       lp_text_quote(id, 32), LAPSE_ID_MAX);
    if (memchr(id, '\0', id_len))
        return lp_fail(LAPSE_EID, "the order id %s contains a NUL byte", lp_text_quote(id, id_len));
    return LAPSE_OK;
}

static size_t id_length(const char *id)
{
    return id ? strnlen(id, LAPSE_ID_MAX + 1) : 0;
}

void lp_ask(lapse *s, lp_task *t, lapse_ns now)
{
    if (s->options.on_dead && !t->r.info)
        t->r.info = &t->dead;
    s->store->ops->execute(s->store, &t->r, 1, now);
}

static void finish(const lp_request *r)
{
    for (unsigned i = 0; i < r->remains_count; i++) {
        if (r->remains[i].release)
            r->remains[i].release(r->remains[i].arg);
        free(r->remains[i].memory);
    }
}

void lp_finish_rest(lapse *s, lp_task *t)
{
    lp_frame frame;
    lp_call_out(s, &frame);
    finish(&t->r);
    if (t->r.died && t->r.info == &t->dead && t->dead.id) {
        lp_info_to_utc(s, &t->dead);
        s->options.on_dead(s->options.hook_arg, &t->dead);
        lapse_info_free(&t->dead);
    }
    lp_call_back(&frame);
}

/* -- Schedule -- */

/* The due time `delay` after `now`, or LAPSE_ERANGE. */
static int due_after(lapse_ns now, lapse_ns delay, lapse_ns *due)
{
    if (delay > LAPSE_DELAY_MAX)
        return lp_fail(LAPSE_ERANGE, "a delay of %lld ns: use 0 to %lld (100 years)",
                       (long long)delay, (long long)LAPSE_DELAY_MAX);
    *due = lp_add_ns(now, delay > 0 ? delay : 0);
    return LAPSE_OK;
}

static int due_at(const lapse *s, lapse_ns now, lapse_ns utc, lapse_ns *due)
{
    lapse_ns wall = lp_clock_wall(s->options.clock);
    if (utc <= wall) {
        *due = now;
        return LAPSE_OK;
    }
    if (wall < utc - LAPSE_DELAY_MAX)
        return lp_fail(LAPSE_ERANGE, "the instant %lld ns is more than 100 years away",
                       (long long)utc);
    /* Read after the wall clock: what passes in between makes it later, not earlier. */
    return due_after(lp_engine_now(s), utc - wall, due);
}

static int check_spec(const lapse_spec *spec)
{
    int code = lp_check_spec(spec);
    if (code < 0)
        return code;
    return spec->queue ? lp_check_queue(spec->queue) : LAPSE_OK;
}

int lp_prepare_put(const lapse *s, const lapse_spec *spec, lapse_ns now, lp_request *r)
{
    lp_request_init(r, LP_SCHEDULE);
    r->spec = spec;
    r->id = spec->id;
    r->id_len = spec->id_len ? spec->id_len : id_length(spec->id);
    bool plain = !spec->id_len && r->id_len > 0 && r->id_len <= LAPSE_ID_MAX;
    int code = plain ? LAPSE_OK : lapse_check_id(r->id, r->id_len);
    if (code == LAPSE_OK)
        code = check_spec(spec);
    if (code == LAPSE_OK)
        code = spec->at ? due_at(s, now, spec->at, &r->due) : due_after(now, spec->delay, &r->due);
    return code;
}

static int closed(void)
{
    return lp_fail(LAPSE_ECLOSED, "the scheduler was stopped: open another");
}

static void book_accepted(lapse *s, const lp_request *r)
{
    if (r->answer == LAPSE_EUNKNOWN)
        return; /* Nothing was refused: there is no such dead letter. */
    if (r->answer < 0) {
        s->totals.refused++;
        return;
    }
    s->totals.scheduled++;
    s->totals.requeued += r->op == LP_REQUEUE;
    s->totals.replaced += r->replaced;
    s->totals.dead += r->died;
    s->totals.dead_by[LAPSE_REASON_MAXLEN] += r->died;
    lp_arm_for(s, r->due);
}

static void book_cancelled(lapse *s, const lp_request *r)
{
    s->totals.cancelled += r->answer == LAPSE_FATE_CANCELLED;
    if (r->answer == LAPSE_FATE_RUNNING && r->claim)
        r->claim->no_more = true;
}

void lp_book_answer(lapse *s, lp_request *r)
{
    switch ((int)r->op) {
    case LP_SCHEDULE:
    case LP_REQUEUE:
        book_accepted(s, r);
        return;
    case LP_CANCEL:
        book_cancelled(s, r);
        return;
    case LP_RESCHEDULE:
        if (r->answer != LAPSE_FATE_RESCHEDULED)
            return;
        s->totals.rescheduled++;
        lp_arm_for(s, r->due);
        return;
    default:
        return;
    }
}

int64_t lapse_put(lapse *s, const lapse_spec *spec)
{
    if (!s || !spec)
        return lp_fail(LAPSE_EINVAL, "the scheduler or the order's `spec` is NULL");
    lapse_ns now = lp_engine_now(s);
    lp_task t;
    int code = lp_prepare_put(s, spec, now, &t.r);
    if (code < 0)
        return code;
    code = lp_enter(s);
    if (code < 0)
        return code;
    if (s->stopped)
        t.r.answer = closed();
    else
        lp_ask(s, &t, now);
    book_accepted(s, &t.r);
    bool watch = lp_must_watch(s, now);
    lp_leave(s);
    lp_finish(s, &t);
    if (watch) {
        lp_detail words; /* of an error; hooks may fail at something else */
        lp_detail_save(&words);
        lp_watch(s);
        lp_detail_restore(&words);
    }
    return t.r.answer;
}

static int no_callback(void)
{
    return lp_fail(LAPSE_EINVAL, "the callback is NULL: give a function, or use lapse_put for an "
                                 "order without one");
}

/* Every field is named: compilers clear all of it first if one is not, which costs more. */
static lapse_spec plain_spec(const char *id, lapse_callback fn, void *arg)
{
    return (lapse_spec){
        .id = id,
        .id_len = 0,
        .queue = NULL,
        .delay = 0,
        .at = 0,
        .payload = NULL,
        .payload_len = 0,
        .fn = fn,
        .arg = arg,
        .release = NULL,
        .flags = 0,
    };
}

int64_t lapse_schedule(lapse *s, const char *id, lapse_ns delay, lapse_callback fn, void *arg)
{
    if (!fn)
        return no_callback();
    lapse_spec spec = plain_spec(id, fn, arg);
    spec.delay = delay;
    return lapse_put(s, &spec);
}

int64_t lapse_schedule_at(lapse *s, const char *id, lapse_ns utc, lapse_callback fn, void *arg)
{
    if (!fn)
        return no_callback();
    /* An instant of 0 would mean "use the delay"; both are past. */
    lapse_spec spec = plain_spec(id, fn, arg);
    spec.at = utc ? utc : -1;
    return lapse_put(s, &spec);
}

/* -- Many at once -- */

enum { MANY = 32, HOLD = 256 }; /* requests in one batch; orders in one hold of the lock */

/* Schedule some in one batch; under the lock. `dead` has room for as many, or is NULL when
 * nobody is to be told. How many were accepted. */
static size_t put_batch(lapse *s, const lapse_spec *specs, size_t count, lapse_ns now,
                        int64_t *results, lp_request *batch, lapse_info *dead)
{
    size_t place[HOLD], n = 0, accepted = 0;
    for (size_t i = 0; i < count; i++) {
        int code = s->stopped ? closed() : lp_prepare_put(s, &specs[i], now, &batch[n]);
        results[i] = code;
        s->totals.refused += code == LAPSE_ECLOSED;
        if (code != LAPSE_OK)
            continue;
        batch[n].info = dead ? &dead[n] : NULL;
        place[n++] = i;
    }
    if (n)
        s->store->ops->execute(s->store, batch, n, now);
    for (size_t i = 0; i < n; i++) {
        results[place[i]] = batch[i].answer;
        accepted += batch[i].answer > 0;
        lp_book_answer(s, &batch[i]);
    }
    for (size_t i = n; i < count; i++)
        lp_request_init(&batch[i], LP_SCHEDULE);
    return accepted;
}

/* Finish a batch after the lock was dropped. */
static void finish_batch(lapse *s, const lp_request *batch, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        lp_task t;
        if (!batch[i].remains_count && !batch[i].died)
            continue; /* Nearly always. */
        t.r = batch[i];
        if (t.r.died && t.r.info) {
            t.dead = *t.r.info;
            t.r.info = &t.dead;
        }
        lp_finish(s, &t);
    }
}

/* Schedule up to HOLD in one hold of the lock. How many, or an error. */
static int64_t put_hold(lapse *s, const lapse_spec *specs, size_t count, lapse_ns now,
                        int64_t *results, lapse_info *dead)
{
    lp_request held[HOLD];
    int64_t accepted = 0;
    size_t done = 0;
    int code = lp_enter(s);
    if (code < 0)
        return code;
    size_t most = s->driver ? HOLD : MANY; /* All of them share a turn of the driver. */
    for (size_t n; done < count; done += n) {
        n = count - done < most ? count - done : most;
        accepted += (int64_t)put_batch(s, specs + done, n, now, results + done, held + done,
                                       dead ? dead + done : NULL);
    }
    lp_leave(s);
    finish_batch(s, held, done);
    return accepted;
}

int64_t lapse_schedule_many(lapse *s, const lapse_spec *specs, size_t count, int64_t *results)
{
    if (!s || !results || (count && !specs))
        return lp_fail(LAPSE_EINVAL, "lapse_schedule_many: an argument is NULL");
    lapse_info *dead = NULL;
    if (s->options.on_dead && !(dead = malloc(HOLD * sizeof *dead)))
        return lp_fail_memory();
    lapse_ns now = lp_engine_now(s);
    int64_t accepted = 0;
    for (size_t from = 0; from < count; from += HOLD) {
        size_t n = count - from < HOLD ? count - from : HOLD;
        int64_t some = put_hold(s, specs + from, n, now, results + from, dead);
        if (some < 0) {
            free(dead);
            return some; /* In a child process, from the first hold on. */
        }
        accepted += some;
    }
    free(dead);
    return accepted;
}

/* -- Cancel, reschedule, get -- */

int lp_prepare_named(lp_op op, const char *id, int64_t generation, lp_request *r)
{
    lp_request_init(r, op);
    if (!id && op != LP_PURGE)
        return lp_fail(LAPSE_EINVAL, "the order id is NULL");
    r->id = id;
    r->id_len = id_length(id);
    r->generation = generation;
    bool possible = !id || (r->id_len > 0 && r->id_len <= LAPSE_ID_MAX);
    return possible ? LAPSE_OK : lp_fail(LAPSE_EUNKNOWN, "no order can have this id");
}

int lp_prepare_delay(lapse_ns now, lapse_ns delay, lp_request *r)
{
    return due_after(now, delay, &r->due);
}

/* Cancel under the lock; remembers it with a running order. */
static int cancel(lapse *s, lp_task *t, lapse_ns now)
{
    lp_ask(s, t, now);
    book_cancelled(s, &t->r);
    return (int)t->r.answer;
}

int lapse_cancel(lapse *s, const char *id, int64_t generation)
{
    lp_task t;
    int possible = lp_prepare_named(LP_CANCEL, id, generation, &t.r);
    if (possible == LAPSE_EINVAL)
        return possible;
    int code = lp_enter(s);
    if (code < 0)
        return code;
    /* Only what was kept and what is held depend on the time. */
    bool timeless = s->options.keep == 0 && s->check_at == LAPSE_FOREVER && !s->driver;
    lapse_ns now = timeless ? 0 : lp_engine_now(s);
    int fate = possible == LAPSE_OK ? cancel(s, &t, now) : LAPSE_FATE_UNKNOWN;
    bool watch = lp_must_watch(s, now);
    lp_leave(s);
    lp_finish(s, &t);
    if (watch)
        lp_watch(s);
    return fate;
}

/* Wait until no callback of the order runs here. Under the lock. */
static int wait_for_callbacks(lapse *s, const lp_request *r, lapse_ns deadline)
{
    unsigned long self = (unsigned long)pthread_self();
    const lp_claim *c;
    while ((c = lp_find_callback(s, r->id, r->id_len, r->generation))) {
        if (c->thread == self)
            return LAPSE_OK;
        if (!lp_await(s, deadline))
            return lp_fail(LAPSE_ETIMEOUT, "order %s is still running: it will not be repeated",
                           lp_text_quote(r->id, r->id_len));
    }
    return LAPSE_OK;
}

int lapse_cancel_wait(lapse *s, const char *id, int64_t generation, lapse_ns timeout)
{
    lp_task t;
    int possible = lp_prepare_named(LP_CANCEL, id, generation, &t.r);
    if (possible == LAPSE_EINVAL)
        return possible;
    lapse_ns deadline = lp_deadline(timeout);
    int code = lp_enter(s);
    if (code < 0)
        return code;
    int fate = LAPSE_FATE_UNKNOWN;
    if (possible == LAPSE_OK) {
        fate = cancel(s, &t, lp_engine_now(s));
        s->inside++;
        code = fate < 0 ? fate : wait_for_callbacks(s, &t.r, deadline);
        s->inside--;
        lp_tell_settled(s);
    }
    lp_leave(s);
    lp_finish(s, &t);
    return code < 0 ? code : fate;
}

/* Ask for what lp_prepare_named prepared, due `delay` from now, and book the answer. */
static int64_t ask_delayed(lapse *s, lapse_ns delay, int possible, lp_task *t)
{
    if (!s)
        return lp_fail(LAPSE_EINVAL, "the scheduler is NULL");
    lapse_ns now = lp_engine_now(s);
    int code = lp_prepare_delay(now, delay, &t->r);
    if (code == LAPSE_OK)
        code = lp_enter(s);
    if (code < 0)
        return code;
    if (s->stopped)
        t->r.answer = closed();
    else if (possible == LAPSE_OK)
        lp_ask(s, t, now);
    else
        t->r.answer = possible;
    lp_book_answer(s, &t->r);
    lp_leave(s);
    lp_finish(s, t);
    return t->r.answer;
}

int lapse_reschedule(lapse *s, const char *id, int64_t generation, lapse_ns delay)
{
    lp_task t;
    int possible = lp_prepare_named(LP_RESCHEDULE, id, generation, &t.r);
    if (possible == LAPSE_EINVAL)
        return possible;
    int64_t answer = ask_delayed(s, delay, possible, &t);
    return answer == LAPSE_EUNKNOWN ? LAPSE_FATE_UNKNOWN : (int)answer;
}

/* -- Dead letters -- */

int64_t lapse_requeue(lapse *s, const char *id, int64_t generation, lapse_ns delay)
{
    lp_task t;
    int possible = lp_prepare_named(LP_REQUEUE, id, generation, &t.r);
    if (possible < 0)
        return possible;
    return ask_delayed(s, delay, possible, &t);
}

int64_t lapse_purge(lapse *s, const char *id, int64_t generation)
{
    int64_t purged = 0;
    for (;;) {
        lp_task t;
        if (lp_prepare_named(LP_PURGE, id, generation, &t.r) < 0)
            return 0;
        int code = lp_enter(s);
        if (code < 0)
            return code;
        lp_ask(s, &t, lp_engine_now(s));
        s->totals.purged += t.r.answer > 0 ? (uint64_t)t.r.answer : 0;
        lp_leave(s);
        lp_finish(s, &t);
        if (t.r.answer < 0)
            return t.r.answer;
        if (t.r.answer == 0)
            return purged;
        purged += t.r.answer;
    }
}
