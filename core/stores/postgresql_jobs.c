/* postgresql_jobs.c - what changes orders: a job as a statement, and its answer. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "stores/postgresql.h"

static int64_t max_dead(const work *w)
{
    uint64_t most = w->d->config.max_dead;
    return most > INT64_MAX ? INT64_MAX : (int64_t)most;
}

static bool makes_room(const work *w)
{
    return w->d->config.overflow == LAPSE_DEAD_LETTER_OLDEST;
}

/* What is due before anybody would look by himself: */
static bool is_soon(const work *w, lapse_ns wait)
{
    return wait < LAPSE_SECONDS(1) || wait < w->d->options.poll ||
           lp_add_ns(lp_clock_monotonic(), wait) < lp_postgresql_heads_due(w->d);
}

/* ... others are told, */
static void note_hint(work *w, const char *queue, lapse_ns wait)
{
    if (wait >= LAPSE_SECONDS(1) && wait >= w->d->options.poll)
        return;
    for (int i = 0; i < w->hint_count; i++) {
        hint *h = &w->hints[i];
        if (h->queue != queue && (!h->queue || !queue || strcmp(h->queue, queue) != 0))
            continue;
        h->wait = wait < h->wait ? wait : h->wait;
        return;
    }
    if (w->hint_count < HINTS)
        w->hints[w->hint_count++] = (hint){queue, wait};
}

/* ... and so is who wants any queue here. Column `column` names the queue. */
static void note_head(work *w, const PGresult *r, int column, lapse_ns wait)
{
    if (!PQgetisnull(r, 0, column) && is_soon(w, wait))
        lp_postgresql_lower_head(w->d, PQgetvalue(r, 0, column), (size_t)PQgetlength(r, 0, column),
                                 lp_sum_ns(w->clock, wait / 1000));
}

/* -- What died to make room -- */

static void read_letter(work *w, const PGresult *r, size_t at)
{
    lp_job *j = w->t->jobs[at];
    if (!j->died || PQntuples(r) != 1)
        return;
    free(j->of_queue);
    j->of_queue = lp_value_copy(r, 0, COL_QUEUE, NULL);
    if (j->infos && lp_postgresql_look(w, r, 0, LAPSE_STATE_DEAD, j->infos) < 0)
        *j->infos = (lapse_info){0}; /* Without memory: not told. */
}

static bool ask_letter(work *w, size_t at)
{
    return lp_postgresql_send(w->s, ST_LETTER, NULL, read_letter, at);
}

/* -- Schedule, requeue -- */

static int exists(const lp_job *j, const char *how)
{
    return lp_fail(LAPSE_EEXISTS, "order %s is %s already: cancel it, reschedule it, or replace it",
                   lp_text_quote(j->id, j->id_len), how);
}

static int full(const work *w)
{
    return lp_fail(LAPSE_EFULL,
                   "%llu orders are pending, which is max_pending: cancel some or raise it",
                   (unsigned long long)w->d->config.max_pending);
}

static void read_put(work *w, const PGresult *r, size_t at)
{
    lp_job *j = w->t->jobs[at];
    j->answer = lp_value_number(r, 0, 0);
    if (j->answer == 0)
        lp_job_fail(j, exists(j, "pending"));
    else if (j->answer < 0)
        lp_job_fail(j, full(w));
    j->replaced = lp_value_bool(r, 0, 1);
    j->running_fence = lp_value_number(r, 0, 2);
    if (PQnfields(r) > 3) {
        j->died = lp_value_number(r, 0, 3) > 0;
        w->dead_dropped += (uint64_t)lp_value_number(r, 0, 4);
    }
}

static bool ask_schedule(work *w, size_t at)
{
    const lp_job *j = w->t->jobs[at];
    const char *queue = j->queue ? j->queue : "";
    lapse_ns wait = lp_postgresql_wait(w, j->due);
    args a = {0};
    lp_postgresql_arg_now(&a, w);
    lp_arg_bytes(&a, j->id, j->id_len);
    lp_arg_wait(&a, wait);
    lp_arg_bytes(&a, queue, strlen(queue));
    if (j->payload_len)
        lp_arg_bytes(&a, j->payload, j->payload_len);
    else
        lp_arg_null(&a);
    lp_arg_bool(&a, j->replace);
    lp_arg_number(&a, j->unstarted);
    note_hint(w, queue, wait);
    if (is_soon(w, wait))
        lp_postgresql_lower_head(w->d, queue, strlen(queue), INT64_MIN);
    if (!w->limited)
        return lp_postgresql_send(w->s, ST_PUT, &a, read_put, at);
    lp_arg_bool(&a, makes_room(w));
    lp_arg_number(&a, max_dead(w));
    return lp_postgresql_send(w->s, ST_PUT_LIMITED, &a, read_put, at) && ask_letter(w, at);
}

static void read_requeue(work *w, const PGresult *r, size_t at)
{
    lp_job *j = w->t->jobs[at];
    j->answer = lp_value_number(r, 0, 0);
    j->died = lp_value_number(r, 0, 1) > 0;
    w->dead_dropped += (uint64_t)lp_value_number(r, 0, 2);
    note_head(w, r, 3, lp_postgresql_wait(w, j->due));
    if (j->answer == 0)
        lp_job_fail(j, lp_fail(LAPSE_EUNKNOWN, "there is no dead letter %s",
                               lp_text_quote(j->id, j->id_len)));
    else if (j->answer == -1)
        lp_job_fail(j, full(w));
    else if (j->answer < 0)
        lp_job_fail(j, exists(j, j->answer == -2 ? "pending" : "running"));
}

static bool ask_requeue(work *w, size_t at)
{
    const lp_job *j = w->t->jobs[at];
    lapse_ns wait = lp_postgresql_wait(w, j->due);
    args a = {0};
    lp_postgresql_arg_now(&a, w);
    lp_arg_bytes(&a, j->id, j->id_len);
    lp_arg_number(&a, j->generation);
    lp_arg_wait(&a, wait);
    lp_arg_bool(&a, makes_room(w));
    lp_arg_number(&a, max_dead(w));
    note_hint(w, NULL, wait);
    return lp_postgresql_send(w->s, ST_REQUEUE, &a, read_requeue, at) && ask_letter(w, at);
}

/* -- Cancel, reschedule, purge -- */

static void add_named(args *a, const work *w, const lp_job *j)
{
    lp_postgresql_arg_now(a, w);
    lp_arg_bytes(a, j->id, j->id_len);
    lp_arg_number(a, j->generation);
    lp_arg_number(a, j->unstarted);
    lp_postgresql_arg_keep(a, w);
}

static void read_cancel(work *w, const PGresult *r, size_t at)
{
    lp_job *j = w->t->jobs[at];
    j->answer = lp_value_small(r, 0, 0);
    if (j->answer == LAPSE_FATE_CANCELLED)
        j->of_queue = lp_value_copy(r, 0, 1, NULL);
    j->running_fence = lp_value_number(r, 0, 2);
}

static bool ask_cancel(work *w, size_t at)
{
    args a = {0};
    add_named(&a, w, w->t->jobs[at]);
    return lp_postgresql_send(w->s, ST_CANCEL, &a, read_cancel, at);
}

static void read_reschedule(work *w, const PGresult *r, size_t at)
{
    lp_job *j = w->t->jobs[at];
    j->answer = lp_value_small(r, 0, 0);
    note_head(w, r, 1, lp_postgresql_wait(w, j->due));
}

static bool ask_reschedule(work *w, size_t at)
{
    const lp_job *j = w->t->jobs[at];
    lapse_ns wait = lp_postgresql_wait(w, j->due);
    args a = {0};
    add_named(&a, w, j);
    lp_arg_wait(&a, wait);
    note_hint(w, NULL, wait);
    return lp_postgresql_send(w->s, ST_RESCHEDULE, &a, read_reschedule, at);
}

static void read_number(work *w, const PGresult *r, size_t at)
{
    w->t->jobs[at]->answer = lp_value_number(r, 0, 0);
}

static bool ask_purge(work *w, size_t at)
{
    const lp_job *j = w->t->jobs[at];
    args a = {0};
    if (j->id)
        lp_arg_bytes(&a, j->id, j->id_len);
    else
        lp_arg_null(&a);
    lp_arg_number(&a, j->generation);
    return lp_postgresql_send(w->s, ST_PURGE, &a, read_number, at);
}

/* -- Ends of a claim -- */

/* Jobs that end claims one after the other are one statement: `at` holds how many, too. */
enum { GROUP_SHIFT = 32 };

static void read_end(work *w, const PGresult *r, size_t at)
{
    size_t first = at & UINT32_MAX, count = at >> GROUP_SHIFT;
    int rows = PQntuples(r), row = 0;
    for (size_t i = first; i < first + count; i++) {
        lp_job *j = w->t->jobs[i];
        j->answer = LAPSE_ESTALE;
        for (int n = 0; n < rows; n++, row = (row + 1) % rows) /* Most often in the same order. */
            if (lp_value_number(r, row, 0) == j->fence) {
                j->answer = LAPSE_OK;
                break;
            }
    }
}

static size_t ask_end(work *w, size_t at, bool alone)
{
    enum { MOST = 512 };
    int64_t fences[MOST];
    size_t count = 0;
    while (at + count < w->t->job_count && count < MOST && w->t->jobs[at + count]->op == LP_END) {
        fences[count] = w->t->jobs[at + count]->fence;
        count++;
        if (alone)
            break;
    }
    args a = {0};
    lp_postgresql_arg_now(&a, w);
    if (!lp_arg_numbers(&a, fences, count)) {
        w->s->failed = LAPSE_ENOMEM;
        return 0;
    }
    lp_postgresql_arg_keep(&a, w);
    lp_arg_bool(&a, w->limited);
    bool ok = lp_postgresql_send(w->s, ST_END, &a, read_end, at | (uint64_t)count << GROUP_SHIFT);
    return ok ? count : 0;
}

static int stale(const lp_job *j)
{
    return lp_fail(LAPSE_ESTALE, "no claim with the fence %lld is held: its lease ended",
                   (long long)j->fence);
}

/* Of a statement that answers null, or nothing, when no such claim is held. */
static void read_settled(work *w, const PGresult *r, size_t at)
{
    lp_job *j = w->t->jobs[at];
    if (PQntuples(r) == 0 || PQgetisnull(r, 0, 0))
        lp_job_fail(j, stale(j));
    else
        j->answer = lp_value_small(r, 0, 0);
}

static void read_again(work *w, const PGresult *r, size_t at)
{
    read_settled(w, r, at);
    note_head(w, r, 1, lp_postgresql_wait(w, w->t->jobs[at]->at));
}

static bool ask_again(work *w, size_t at)
{
    const lp_job *j = w->t->jobs[at];
    args a = {0};
    lp_postgresql_arg_now(&a, w);
    lp_arg_number(&a, j->fence);
    lp_arg_wait(&a, lp_postgresql_wait(w, j->due));
    lp_arg_wait(&a, lp_postgresql_wait(w, j->at));
    lp_arg_bool(&a, j->counted);
    lp_postgresql_arg_keep(&a, w);
    w->wide = w->wide || j->at <= w->t->now; /* It may fall due before what is claimed now. */
    return lp_postgresql_send(w->s, ST_AGAIN, &a, read_again, at);
}

static void read_die(work *w, const PGresult *r, size_t at)
{
    lp_job *j = w->t->jobs[at];
    read_settled(w, r, at);
    j->died = lp_value_number(r, 0, 1) > 0;
    w->dead_dropped += (uint64_t)lp_value_number(r, 0, 2);
}

static bool ask_die(work *w, size_t at)
{
    const lp_job *j = w->t->jobs[at];
    args a = {0};
    lp_postgresql_arg_now(&a, w);
    lp_arg_number(&a, j->fence);
    lp_arg_small(&a, (int32_t)j->reason);
    if (j->error)
        lp_arg_bytes(&a, j->error, strlen(j->error));
    else
        lp_arg_null(&a);
    lp_arg_bool(&a, j->counted);
    lp_postgresql_arg_keep(&a, w);
    lp_arg_number(&a, max_dead(w));
    return lp_postgresql_send(w->s, ST_DIE, &a, read_die, at) && (!j->infos || ask_letter(w, at));
}

static void read_renewed(work *w, const PGresult *r, size_t at)
{
    lp_job *j = w->t->jobs[at];
    if (PQntuples(r) == 0)
        lp_job_fail(j, stale(j));
    else
        j->answer = LAPSE_OK;
}

static bool ask_renew(work *w, size_t at)
{
    const lp_job *j = w->t->jobs[at];
    args a = {0};
    lp_postgresql_arg_now(&a, w);
    lp_arg_number(&a, j->fence);
    lp_arg_wait(&a, j->lease);
    return lp_postgresql_send(w->s, ST_RENEW, &a, read_renewed, at);
}

static void read_holds(work *w, const PGresult *r, size_t at)
{
    w->t->jobs[at]->answer = lp_value_bool(r, 0, 0);
}

static bool ask_holds(work *w, size_t at)
{
    args a = {0};
    lp_postgresql_arg_now(&a, w);
    lp_arg_number(&a, w->t->jobs[at]->fence);
    return lp_postgresql_send(w->s, ST_HOLDS, &a, read_holds, at);
}

static bool ask_one(work *w, size_t at)
{
    lp_job *j = w->t->jobs[at];
    switch (j->op) {
    case LP_SCHEDULE:
        return ask_schedule(w, at);
    case LP_CANCEL:
        return ask_cancel(w, at);
    case LP_RESCHEDULE:
        return ask_reschedule(w, at);
    case LP_REQUEUE:
        return ask_requeue(w, at);
    case LP_PURGE:
        return ask_purge(w, at);
    case LP_AGAIN:
        return ask_again(w, at);
    case LP_DIE:
        return ask_die(w, at);
    case LP_RENEW:
        return ask_renew(w, at);
    case LP_HOLDS:
        return ask_holds(w, at);
    case LP_GET:
    case LP_LIST:
    case LP_COUNT:
    case LP_QUEUES:
        return lp_postgresql_ask_look(w, at);
    default:
        lp_job_fail(j,
                    lp_fail(LAPSE_EUNSUPPORTED, "the postgresql store cannot do that (%d)", j->op));
        return true;
    }
}

size_t lp_postgresql_ask(work *w, size_t at, bool alone)
{
    lp_job *j = w->t->jobs[at];
    if (j->op == LP_END)
        return ask_end(w, at, alone);
    return ask_one(w, at) ? 1 : 0;
}
