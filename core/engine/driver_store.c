/* driver_store.c - the driver as the rest of the engine sees it: a store that takes a while.
 *
 * Calls are copied, posted and waited for without the lock; settlements of callbacks are
 * posted only, since they may ride on the next flush. */
#define _GNU_SOURCE /* sem_clockwait */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/error.h"
#include "engine/driver.h"

static lp_driver *driver_of(lp_store *store)
{
    return (lp_driver *)store;
}

/* -- Calls -- */

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

static lp_call *new_call(int op, size_t bytes, int infos)
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

/* A copy of an engine's request; NULL without memory. */
static lp_call *copy_request(const lp_request *r)
{
    const lapse_spec *spec = r->op == LP_SCHEDULE ? r->spec : NULL;
    const char *queue = spec && spec->queue ? spec->queue : "";
    size_t queue_size = strlen(queue) + 1, payload = spec ? spec->payload_len : 0;
    lp_call *c = new_call((int)r->op, r->id_len + 1 + queue_size + payload, r->info ? 1 : 0);
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

/* No call waits longer for the store. */
static lapse_ns time_limit(const lapse *s)
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

static int unsure(lapse_ns limit)
{
    return lp_fail(LAPSE_EUNSURE,
                   "the store has not answered for %.1f s: whether it was done is not known; "
                   "look, or ask again",
                   (double)limit * 1e-9);
}

/* Under the lock, which is dropped meanwhile. NULL when the answer did not come: `*code`
 * says so. */
static lp_call *ask(lapse *s, lp_call *c, int *code)
{
    if (!c) {
        *code = lp_fail_memory();
        return NULL;
    }
    lapse_ns limit = time_limit(s);
    lp_driver_post(s->driver, &c->job);
    s->inside++;
    pthread_mutex_unlock(&s->lock);
    bool answered = await(c, lp_add_ns(lp_clock_monotonic(), limit));
    pthread_mutex_lock(&s->lock);
    s->inside--;
    lp_tell_settled(s);
    if (!answered) {
        *code = unsure(limit);
        return NULL;
    }
    *code = (int)c->job.answer;
    if (c->job.answer < 0)
        lp_fail(*code, "%s", c->job.detail ? c->job.detail : lapse_strerror(*code));
    return c;
}

/* -- Requests -- */

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
static void ask_all(lapse *s, lp_request *requests, size_t count, lapse_ns now)
{
    enum { TOGETHER = 256 };
    lp_call *calls[TOGETHER];
    lapse_ns limit = time_limit(s), deadline = lp_add_ns(lp_clock_monotonic(), limit);
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
            requests[i].answer = unsure(limit);
        if (!calls[i] || lost[i])
            continue;
        copy_answer(s, &requests[i], calls[i]);
        lp_driver_free_call(calls[i]);
    }
    lp_tell_settled(s);
}

/* -- Settlements -- */

static lp_loan *loan_of(const lp_claim *c)
{
    return c->kept;
}

static char *copy_text(const char *text)
{
    return text ? strdup(text) : NULL;
}

/* The order of a claim as a dead letter. */
static void describe_death(const lp_request *r, lapse_ns now)
{
    const lapse_order *o = &r->claim->order;
    *r->info = (lapse_info){.state = LAPSE_STATE_DEAD,
                            .id = strdup(o->id),
                            .id_len = o->id_len,
                            .queue = strdup(o->queue),
                            .due = r->claim->due,
                            .ended = now,
                            .generation = o->generation,
                            .attempt = o->attempt - (r->counted || r->op == LP_LOSE ? 0 : 1),
                            .reason = r->reason,
                            .error = copy_text(r->error)};
    if (o->payload_len && (r->info->payload = malloc(o->payload_len))) {
        memcpy(r->info->payload, o->payload, o->payload_len);
        r->info->payload_len = o->payload_len;
    }
    if (!r->info->id || !r->info->queue)
        lapse_info_free(r->info); /* Not told of, but listed. */
}

static int op_of(const lp_request *r)
{
    if (r->op != LP_LOSE)
        return (int)r->op;
    return r->ends ? LP_END : r->reason ? LP_DIE : LP_AGAIN;
}

static void post_settlement(lapse *s, lp_request *r, lapse_ns now)
{
    lp_loan *l = loan_of(r->claim);
    int op = op_of(r);
    bool pass = l->called && r->due <= now;
    l->settlement = (lp_job){.op = op,
                             .kind = KIND_SETTLEMENT,
                             .id = l->id,
                             .id_len = l->id_len,
                             .row = l->row,
                             .fence = l->fence,
                             .due = r->due,
                             .at = pass ? now + 1 : r->due,
                             .reason = r->reason,
                             .error = op == LP_DIE ? copy_text(r->error) : NULL,
                             .counted = r->counted,
                             .no_more = r->claim->no_more};
    l->settling = true;
    l->booked = !r->waits;
    lp_driver_post(s->driver, &l->settlement);
    if (op == LP_DIE) {
        r->died = true;
        if (r->info)
            describe_death(r, now);
    }
}

/* Until the settlement is answered, or is not in time. */
static int64_t await_settlement(lapse *s, const lp_loan *l)
{
    lapse_ns limit = time_limit(s), deadline = lp_add_ns(lp_clock_monotonic(), limit);
    s->inside++;
    while (l->settling && lp_await(s, deadline))
        continue;
    s->inside--;
    return l->settling ? unsure(limit) : l->settlement.answer;
}

static void leave_started(lapse *s, lp_loan *l)
{
    if (l->called)
        lp_driver_unstart(s->driver, l);
}

/* An order that a callback or taker held ends, waits again, or dies. */
static void settle(lapse *s, lp_request *r, lapse_ns now)
{
    lp_loan *l = loan_of(r->claim);
    r->answer = LAPSE_OK;
    if (!r->claim->lost)
        leave_started(s, l); /* It is renewed no more, not even while its end is waited for. */
    if (!r->claim->lost && !l->gone && !r->claim->superseded) {
        post_settlement(s, r, now);
        if (r->waits)
            r->answer = await_settlement(s, l);
        if (r->answer != LAPSE_OK && r->died) {
            lapse_info_free(r->info);
            r->died = false;
        }
    }
    lp_driver_drop(l);
}

/* The lease here has ended. For a taker it has in the store too; a callback's is renewed
 * until now, and let go. */
static void lose(lapse *s, lp_request *r, lapse_ns now)
{
    lp_loan *l = loan_of(r->claim);
    r->answer = LAPSE_OK;
    if (!l->called)
        return;
    leave_started(s, l);
    if (!l->gone && !r->claim->superseded)
        post_settlement(s, r, now);
}

static void execute(lp_store *store, lp_request *requests, size_t count, lapse_ns now)
{
    lapse *s = driver_of(store)->s;
    switch (requests[0].op) {
    case LP_END:
    case LP_AGAIN:
    case LP_DIE:
        settle(s, requests, now);
        return;
    case LP_LOSE:
        lose(s, requests, now);
        return;
    default:
        ask_all(s, requests, count, now);
    }
}

/* -- Claims -- */

static void fill_claim(lapse *s, lp_claim *c, lp_loan *l, lp_queue *q)
{
    (void)s;
    c->superseded = false;
    c->lost = false;
    c->kept = l;
    c->called = l->called;
    c->due = l->due;
    c->queue = q;
    c->fn = NULL;
    c->arg = NULL;
    c->order = (lapse_order){.id = l->id,
                             .id_len = l->id_len,
                             .queue = q->name,
                             .payload = l->payload,
                             .payload_len = l->payload_len,
                             .fence = l->fence,
                             .generation = l->generation,
                             .attempt = l->attempt};
}

/* The first that is ready and may start; those that may not any more go back. */
static lp_loan *first_ready(lp_driver *d, lapse_ns now)
{
    lp_loan *l;
    while ((l = d->ready)) {
        const lp_queue *q = lp_driver_queue(d, l->queue);
        bool may_start = q && q->handler && !q->paused;
        if (may_start && l->lease_end > now)
            return l;
        lp_driver_remove_ready(d, l);
        lp_driver_give_back(d, l);
    }
    return NULL;
}

static int claim(lp_store *store, lp_side side, lp_queue *queue, lapse_ns until, lapse_ns now,
                 lp_claim *c)
{
    lp_driver *d = driver_of(store);
    (void)queue;
    lp_loan *l = side == LP_PUSH ? first_ready(d, now) : NULL;
    if (!l || l->due > until)
        return LP_CLAIM_NONE;
    lp_driver_remove_ready(d, l);
    lp_driver_start(d, l);
    d->host_wants -= d->host_wants > 0;
    fill_claim(d->s, c, l, lp_driver_queue(d, l->queue));
    return LP_CLAIM_ONE;
}

static bool announce(lp_store *store, lapse_ns now)
{
    (void)store;
    (void)now;
    return false; /* Takers ask the driver. */
}

static bool waits(lp_store *store)
{
    (void)store;
    return false;
}

static lapse_ns next(lp_store *store, lp_side side)
{
    return side == LP_PUSH && driver_of(store)->ready ? 0 : LAPSE_FOREVER;
}

int lp_driver_take(lapse *s, lp_queue *queue, lapse_ns deadline, lp_claim *claim)
{
    size_t size = queue ? strlen(queue->name) + 1 : 0;
    lp_call *c = new_call(LP_TAKE, size, 0);
    if (!c)
        return lp_fail_memory();
    if (queue)
        c->job.queue = memcpy(c->bytes, queue->name, size);
    c->once = deadline == 0;
    lapse_ns limit = time_limit(s);
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
        return polled ? unsure(limit) : 0;
    int code = (int)c->job.answer;
    if (code == 1) {
        fill_claim(s, claim, c->loan, lp_driver_queue(s->driver, c->loan->queue));
        c->loan = NULL;
    } else if (code < 0) {
        lp_fail(code, "%s",
                c->job.detail ? c->job.detail : "the scheduler was stopped: open another");
    }
    lp_driver_free_call(c);
    return code;
}

/* -- Look -- */

/* An order that is claimed and has not started is shown as it was. */
static void show_unstarted(const lp_driver *d, lapse_info *info)
{
    const lp_loan *l = info->state == LAPSE_STATE_RUNNING ? d->ready : NULL;
    while (l && (l->generation != info->generation || l->id_len != info->id_len ||
                 memcmp(l->id, info->id, l->id_len) != 0))
        l = l->after;
    if (!l)
        return;
    info->state = LAPSE_STATE_PENDING;
    info->attempt--;
}

/* Take over those whose state is in `states`; how many. */
static int keep_shown(const lp_driver *d, lp_call *c, int count, unsigned states, lapse_info *out)
{
    int n = 0;
    for (int i = 0; i < count; i++) {
        show_unstarted(d, &c->infos[i]);
        if (!(c->infos[i].state & states))
            continue; /* Freed with the call. */
        out[n++] = c->infos[i];
        c->infos[i] = (lapse_info){.id = NULL};
    }
    return n;
}

static int list(lp_store *store, uint64_t *cursor, unsigned states, lapse_info *out, int max,
                lapse_ns now)
{
    static const unsigned LIVE = LAPSE_STATE_PENDING | LAPSE_STATE_RUNNING;
    lp_driver *d = driver_of(store);
    (void)now;
    int n;
    lp_call *c = new_call(LP_LIST, 0, max);
    if (c) {
        c->cursor = *cursor;
        c->job.states = states & LAPSE_STATE_PENDING ? states | LIVE : states;
    }
    c = ask(d->s, c, &n);
    if (!c)
        return n;
    n = n > 0 ? keep_shown(d, c, n, states, out) : n;
    *cursor = c->cursor;
    lp_driver_free_call(c);
    return n;
}

static int ask_counts(lapse *s, const lp_queue *q, lp_counts *out)
{
    *out = (lp_counts){.oldest_due = LAPSE_FOREVER};
    size_t size = q ? strlen(q->name) + 1 : 0;
    int code;
    lp_call *c = new_call(LP_COUNT, size, 0);
    if (c && q)
        c->job.queue = memcpy(c->bytes, q->name, size);
    c = ask(s, c, &code);
    if (!c)
        return code;
    if (code >= 0)
        *out = c->counts;
    lp_driver_free_call(c);
    return code < 0 && code != LAPSE_EUNKNOWN ? code : LAPSE_OK; /* It has none of a new queue. */
}

static bool is_of(const lp_queue *q, const char *name)
{
    return !q || strcmp(q->name, name) == 0;
}

/* What is ready counts as pending; what runs though its id was scheduled anew, as running. */
static void correct(const lp_driver *d, const lp_queue *q, lp_counts *out)
{
    for (const lp_loan *l = d->ready; l; l = l->after) {
        if (!is_of(q, l->queue))
            continue;
        out->running -= out->running > 0;
        out->pending++;
        if (l->due < out->oldest_due)
            out->oldest_due = l->due;
    }
    for (unsigned i = 0; d->s->held_count && i < LP_HELD_BUCKETS; i++)
        for (const lp_claim *c = d->s->held[i]; c; c = c->next)
            out->running += c->superseded && !c->lost && is_of(q, c->queue->name);
}

static int count_queue(lp_store *store, lp_queue *q, lp_counts *out)
{
    lp_driver *d = driver_of(store);
    int code = ask_counts(d->s, q, out);
    if (code == LAPSE_OK)
        correct(d, q, out);
    return code;
}

static int count(lp_store *store, lp_counts *out)
{
    return count_queue(store, NULL, out);
}

void lp_driver_learn_queues(lapse *s)
{
    enum { CHUNK = 64 };
    uint64_t cursor = 0;
    while (cursor != UINT64_MAX) {
        int n;
        lp_call *c = new_call(LP_QUEUES, 0, CHUNK);
        if (c)
            c->cursor = cursor;
        c = ask(s, c, &n);
        if (!c)
            return;
        for (int i = 0; i < n; i++)
            (void)lp_driver_queue(s->driver, c->infos[i].queue);
        cursor = n < 0 ? UINT64_MAX : c->cursor;
        lp_driver_free_call(c);
    }
}

int64_t lp_driver_ask_claim(lapse *s, const lp_claim *claim, int op, lapse_ns lease)
{
    const lp_loan *l = loan_of(claim);
    int code;
    lp_call *c = new_call(op, l->id_len + 1, 0);
    if (c) {
        c->job.id = memcpy(c->bytes, l->id, l->id_len + 1); /* The loan may be gone first. */
        c->job.id_len = l->id_len;
        c->job.row = l->row;
        c->job.fence = l->fence;
        c->job.lease = lease;
    }
    c = ask(s, c, &code);
    if (c)
        lp_driver_free_call(c);
    return code;
}

bool lp_driver_has_lost(const lp_claim *claim)
{
    return loan_of(claim)->gone;
}

void lp_driver_note_lost(const lp_claim *claim)
{
    loan_of(claim)->gone = true;
}

lapse_ns lp_driver_lease_end(const lp_claim *claim)
{
    return loan_of(claim)->lease_end;
}

bool lp_driver_is_assured(const lp_claim *claim, lapse_ns now)
{
    return loan_of(claim)->lease_end > now;
}

const char *lp_driver_fault(const lp_claim *claim)
{
    return loan_of(claim)->bad;
}

/* -- Queues -- */

static lp_queue *find_queue(lp_store *store, const char *name)
{
    return lp_driver_find_queue(driver_of(store), name ? name : "");
}

static lp_queue *queue_at(lp_store *store, size_t n)
{
    const lp_driver *d = driver_of(store);
    return n < d->queue_count ? d->queues[n] : NULL;
}

static int make_queue(lp_store *store, const char *name, lp_queue **out)
{
    *out = lp_driver_queue(driver_of(store), name ? name : "");
    return *out ? LAPSE_OK : lp_fail_memory();
}

static void forget_queue(lp_store *store, lp_queue *q)
{
    (void)store; /* A name costs little. */
    (void)q;
}

static int prepare_queue(lp_store *store, lp_queue *q)
{
    (void)q;
    lp_driver_poke(driver_of(store));
    return LAPSE_OK;
}

/* -- Waiting -- */

void lp_driver_waited_for(lp_driver *d)
{
    d->has_waited = true;
    if (!d->host_loops)
        d->host_wants = 0; /* It waits now, and wants no more than one. */
    lp_driver_wake(d);
}

void lp_driver_looked(lp_driver *d, bool in_pass)
{
    bool only_waits = d->has_waited && !d->host_loops && !d->s->options.clock && !in_pass;
    if (d->ready || only_waits)
        return;
    bool more = d->host_wants < d->host_most;
    d->host_wants = d->host_most;
    if (more)
        lp_driver_poke(d);
}

void lp_driver_polled(lp_driver *d, bool in_vain)
{
    d->host_told = false;
    if (!d->host_loops || d->host_polls || !in_vain)
        return;
    d->host_polls = true;
    lp_driver_poke(d);
}

lapse_ns lp_driver_timeout(const lp_driver *d, lapse_ns now)
{
    if (d->ready || d->host_told)
        return 0;
    if (d->backoff) {
        lapse_ns left = d->retry_at - lp_clock_monotonic();
        return left > LAPSE_MS(1) ? left : LAPSE_MS(1);
    }
    lapse_ns at = d->push_next < d->poll_at ? d->push_next : d->poll_at;
    if (d->take_next < at)
        at = d->take_next;
    return at > now ? at - now : LAPSE_MS(1); /* It is being fetched. */
}

static bool is_settled(const lp_driver *d)
{
    return d->sleeping && !d->inbox && (!d->dirty || d->backoff);
}

/* And has nothing left of what the store refused, unless it cannot ask now. */
static bool is_drained(const lp_driver *d)
{
    return is_settled(d) && (!d->refused || d->backoff || d->s->options.clock);
}

bool lp_driver_drain(lapse *s, lapse_ns deadline)
{
    const lp_driver *d = s->driver;
    s->inside++;
    while (!is_drained(d) && lp_await(s, deadline))
        continue;
    s->inside--;
    return is_drained(d);
}

void lp_driver_settle(lapse *s)
{
    lp_driver_poke(s->driver);
    lp_driver_drain(s, LAPSE_FOREVER);
}

/* -- The table -- */

static int open_driver(lp_store_config *config, lp_store **out)
{
    (void)config;
    *out = NULL;
    return lp_fail(LAPSE_ESTORE, "a driver is opened by lp_driver_open");
}

static void close_driver(lp_store *store)
{
    lp_driver_close(driver_of(store));
}

static bool drain(lp_store *store, lp_remains *out)
{
    (void)store;
    (void)out;
    return false; /* The orders stay in the store. */
}

const lp_store_ops lp_driver_store = {
    .scheme = NULL,
    .abilities = 0, /* those of the durable store */
    .open = open_driver,
    .close = close_driver,
    .execute = execute,
    .claim = claim,
    .announce = announce,
    .waits = waits,
    .next = next,
    .list = list,
    .queue = find_queue,
    .queue_at = queue_at,
    .make_queue = make_queue,
    .forget_queue = forget_queue,
    .count_queue = count_queue,
    .prepare_queue = prepare_queue,
    .drain = drain,
    .count = count,
};
