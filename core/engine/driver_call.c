/* driver_call.c - what a thread asks of the driver, and waits for.
 *
 * A call is copied, posted, and waited for without the lock. Whoever stops waiting leaves it
 * behind: it is the driver's then. */
#define _GNU_SOURCE /* sem_clockwait */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/error.h"
#include "engine/driver_parts.h"

void lp_driver_free_call(lp_call *c)
{
    for (int i = 0; c->infos && i < c->job.max; i++)
        lapse_info_free(&c->infos[i]);
    sem_destroy(&c->answered);
    free(c->infos);
    free(c->job.detail);
    free(c->job.of_queue);
    free(c);
}

lp_call *lp_driver_new_call(int op, size_t bytes, int infos)
{
    lp_call *c = malloc(sizeof *c + bytes);
    if (!c)
        return NULL;
    memset(c, 0, sizeof *c);
    c->job.op = op;
    c->job.kind = KIND_CALL;
    c->infos = infos ? calloc((size_t)infos, sizeof *c->infos) : NULL;
    if (infos && !c->infos) {
        free(c);
        return NULL;
    }
    c->job.infos = c->infos;
    c->job.max = infos;
    c->job.cursor = &c->cursor;
    c->job.counts = &c->counts;
    sem_init(&c->answered, 0, 0);
    return c;
}

/* -- Waiting for an answer -- */

/* No call waits longer for the store. */
lapse_ns lp_driver_time_limit(const lapse *s)
{
    lapse_ns limit = s->options.lease / 4;
    return limit < LAPSE_MS(100) ? LAPSE_MS(100) : limit;
}

/* 0, or an errno. Without the lock. */
static int wait_for(lp_call *c, lapse_ns deadline)
{
    struct timespec t = {.tv_sec = deadline / 1000000000, .tv_nsec = deadline % 1000000000};
    int result = deadline == LAPSE_FOREVER ? sem_wait(&c->answered)
                                           : sem_clockwait(&c->answered, CLOCK_MONOTONIC, &t);
    if (result)
        return errno;
    (void)atomic_load(&c->state); /* What was written before it was moved on is seen now. */
    return 0;
}

/* True when the call was answered after all, and the driver has done with it; else it is the
 * driver's now. */
static bool abandon(lp_call *c)
{
    int waiting = CALL_WAITING;
    if (atomic_compare_exchange_strong(&c->state, &waiting, CALL_ABANDONED))
        return false;
    while (sem_wait(&c->answered) != 0)
        continue; /* It is about to be posted. */
    return true;
}

static bool await(lp_call *c, lapse_ns deadline)
{
    int error;
    do
        error = wait_for(c, deadline);
    while (error == EINTR);
    return !error || abandon(c);
}

int lp_driver_unsure(lapse_ns limit)
{
    return lp_fail(LAPSE_EUNSURE,
                   "the store has not answered for %.1f s: whether it was done is not known; "
                   "look, or ask again",
                   (double)limit * 1e-9);
}

/* Under the lock, which is dropped meanwhile. NULL when the answer did not come: `*code`
 * says so. */
lp_call *lp_driver_ask(lapse *s, lp_call *c, int *code)
{
    if (!c) {
        *code = lp_fail_memory();
        return NULL;
    }
    lapse_ns limit = lp_driver_time_limit(s);
    lp_driver_post(s->driver, &c->job);
    s->inside++;
    pthread_mutex_unlock(&s->lock);
    bool answered = await(c, lp_add_ns(lp_clock_monotonic(), limit));
    pthread_mutex_lock(&s->lock);
    s->inside--;
    lp_tell_settled(s);
    if (!answered) {
        *code = lp_driver_unsure(limit);
        return NULL;
    }
    *code = (int)c->job.answer;
    if (c->job.answer < 0)
        lp_fail(*code, "%s", c->job.detail ? c->job.detail : lapse_strerror(*code));
    return c;
}

/* -- Requests -- */

/* A copy of an engine's request; NULL without memory. */
static lp_call *copy_request(const lp_request *r)
{
    const lapse_spec *spec = r->op == LP_SCHEDULE ? r->spec : NULL;
    const char *queue = spec && spec->queue ? spec->queue : "";
    size_t queue_size = strlen(queue) + 1, payload = spec ? spec->payload_len : 0;
    lp_call *c =
        lp_driver_new_call((int)r->op, r->id_len + 1 + queue_size + payload, r->info ? 1 : 0);
    if (!c)
        return NULL;
    char *at = c->bytes;
    if (r->id) {
        c->job.id = memcpy(at, r->id, r->id_len);
        at[r->id_len] = '\0';
    }
    at += r->id_len + 1;
    c->job.id_len = r->id_len;
    c->job.queue = memcpy(at, queue, queue_size);
    if (payload)
        c->job.payload = memcpy(at + queue_size, spec->payload, payload);
    c->job.payload_len = payload;
    c->job.replace = spec && spec->flags & LAPSE_REPLACE;
    c->job.generation = r->generation;
    c->job.due = r->due;
    return c;
}

static void copy_answer(lapse *s, lp_request *r, lp_call *c)
{
    r->answer = c->job.answer;
    if (r->answer < 0) {
        lp_fail((int)r->answer, "%s",
                c->job.detail ? c->job.detail : lapse_strerror((int)r->answer));
        return;
    }
    r->replaced = c->job.replaced;
    r->died = c->job.died;
    if (r->info && c->infos && (r->op == LP_GET || r->died)) {
        *r->info = c->infos[0];
        c->infos[0] = (lapse_info){.id = NULL};
    }
    if (r->op == LP_CANCEL && r->answer == LAPSE_FATE_RUNNING)
        r->claim = lp_find_held(s, c->job.running_fence);
    lp_queue *q = c->job.of_queue ? lp_driver_queue(s->driver, c->job.of_queue) : NULL;
    if (q && r->op == LP_CANCEL)
        q->cancelled++;
    if (q && r->died)
        lp_count_dead(q, LAPSE_REASON_MAXLEN, 1);
}

/* Orders outlive the process; functions do not. */
static bool brings_callback(const lapse_spec *spec)
{
    return spec->fn || spec->arg || spec->release;
}

static int refuse_callback(void)
{
    return lp_fail(LAPSE_EUNSUPPORTED, "an order in a durable store cannot bring its own function: "
                                       "name the queue of a handler (lapse_handle)");
}

/* What is asked for while callbacks run does not start in the same pass. */
static lapse_ns after_pass(const lapse *s, lapse_ns due, lapse_ns now)
{
    return s->callbacks && due <= now ? now + 1 : due;
}

static lp_call *post_request(lapse *s, lp_request *r, lapse_ns now)
{
    if (r->op == LP_SCHEDULE && brings_callback(r->spec)) {
        r->answer = refuse_callback();
        return NULL;
    }
    lp_call *c = copy_request(r);
    if (!c) {
        r->answer = lp_fail_memory();
        return NULL;
    }
    c->job.due = after_pass(s, r->due, now);
    c->job.asked = now;
    lp_driver_post(s->driver, &c->job);
    return c;
}

int lp_driver_submit(lapse *s, lp_request *r, lapse_ns now, struct lp_submitted *submitted,
                     lp_call **out)
{
    *out = post_request(s, r, now);
    if (!*out)
        return (int)r->answer;
    (*out)->submitted = submitted;
    return LAPSE_OK;
}

void lp_driver_read_answer(lapse *s, lp_call *c, lp_request *r)
{
    r->op = (lp_op)c->job.op;
    r->id = c->job.id;
    r->id_len = c->job.id_len;
    r->due = c->job.due;
    copy_answer(s, r, c);
}

/* Post all, then wait for all: they share a turn. */
void lp_driver_ask_all(lapse *s, lp_request *requests, size_t count, lapse_ns now)
{
    enum { TOGETHER = 256 };
    lp_call *calls[TOGETHER];
    lapse_ns limit = lp_driver_time_limit(s), deadline = lp_add_ns(lp_clock_monotonic(), limit);
    for (size_t i = 0; i < count; i++)
        calls[i] = post_request(s, &requests[i], now);
    s->inside++;
    pthread_mutex_unlock(&s->lock);
    bool lost[TOGETHER] = {false};
    for (size_t i = count; i-- > 0;) /* Once the last has come, all have: one sleep. */
        lost[i] = calls[i] && !await(calls[i], deadline);
    pthread_mutex_lock(&s->lock);
    s->inside--;
    for (size_t i = 0; i < count; i++) {
        if (lost[i])
            requests[i].answer = lp_driver_unsure(limit);
        if (!calls[i] || lost[i])
            continue;
        copy_answer(s, &requests[i], calls[i]);
        lp_driver_free_call(calls[i]);
    }
    lp_tell_settled(s);
}

/* -- Takers -- */

int lp_driver_take(lapse *s, lp_queue *queue, lapse_ns deadline, lp_claim *claim)
{
    size_t size = queue ? strlen(queue->name) + 1 : 0;
    lp_call *c = lp_driver_new_call(LP_TAKE, size, 0);
    if (!c)
        return lp_fail_memory();
    if (queue)
        c->job.queue = memcpy(c->bytes, queue->name, size);
    c->once = deadline == 0;
    lapse_ns limit = lp_driver_time_limit(s);
    if (c->once)
        deadline = lp_add_ns(lp_clock_monotonic(), limit);
    bool polled = c->once;
    lp_driver_post(s->driver, &c->job);
    pthread_mutex_unlock(&s->lock);
    int error = wait_for(c, deadline);
    while (error == EINTR && polled)
        error = wait_for(c, deadline);
    bool answered = !error || abandon(c);
    pthread_mutex_lock(&s->lock);
    if (!answered)
        lp_driver_poke(s->driver); /* It lets go of the call. */
    if (!answered && error == EINTR)
        return lp_fail(LAPSE_EINTR, "a signal interrupted the wait: look at it and wait again");
    if (!answered)
        return polled ? lp_driver_unsure(limit) : 0;
    int code = (int)c->job.answer;
    if (code == 1) {
        lp_driver_fill_claim(claim, c->loan, lp_driver_queue(s->driver, c->loan->queue));
        c->loan = NULL;
    } else if (code < 0) {
        lp_fail(code, "%s",
                c->job.detail ? c->job.detail : "the scheduler was stopped: open another");
    }
    lp_driver_free_call(c);
    return code;
}
