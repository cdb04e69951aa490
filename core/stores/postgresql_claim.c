/* postgresql_claim.c - from due to held.
 *
 * The index of (queue, at, seq) is a list of each queue in the order of claiming. What was
 * claimed and deleted stands in it until the server has cleaned up, which a transaction that is
 * open somewhere may hold up for hours. So a claim begins where the one before has ended, at
 * its floor, and only every `poll` at the very beginning: an order may also be committed long
 * after it fell due. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "stores/postgresql.h"

/* -- Floors -- */

static uint64_t hash_want(const lp_want *w)
{
    uint64_t hash = UINT64_C(14695981039346656037) + w->others; /* FNV-1a */
    for (size_t i = 0; i < w->queue_count; i++)
        for (const char *p = w->queues[i];; p++) {
            hash = (hash ^ (unsigned char)*p) * UINT64_C(1099511628211);
            if (!*p)
                break;
        }
    return hash ? hash : 1;
}

/* That of a want; the one that was not used for longest makes room. */
static floor_of *find_floor(postgresql_store *d, const lp_want *w)
{
    uint64_t want = hash_want(w);
    floor_of *oldest = d->floors;
    for (floor_of *f = d->floors; f < d->floors + FLOORS; f++) {
        if (f->want == want)
            return f;
        if (f->widened < oldest->widened)
            oldest = f;
    }
    *oldest = (floor_of){.want = want, .at = INT64_MIN};
    return oldest;
}

void lp_postgresql_lower_floors(postgresql_store *d, int64_t at)
{
    for (floor_of *f = d->floors; f < d->floors + FLOORS; f++)
        if (f->at > at)
            f->at = at;
}

static int64_t from_where(work *w, const lp_want *want)
{
    postgresql_store *d = w->d;
    floor_of *f = find_floor(d, want);
    lapse_ns now = lp_clock_monotonic();
    if (!d->config.manual && !w->wide && f->at != INT64_MIN && now - f->widened < d->options.poll)
        return f->at;
    f->widened = now;
    return INT64_MIN;
}

/* -- Queues -- */

static void free_queues(postgresql_store *d)
{
    for (size_t i = 0; i < d->queue_count; i++)
        free(d->queues[i]);
    free(d->queues);
    d->queues = NULL;
    d->queue_count = 0;
}

void lp_postgresql_forget(postgresql_store *d)
{
    free_queues(d);
    memset(d->floors, 0, sizeof d->floors);
    d->queues_at = 0;
    d->orders = -1;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void read_names(work *w, const PGresult *r, size_t at)
{
    (void)at;
    postgresql_store *d = w->d;
    size_t from = 0, len, count = 0;
    const char *name;
    free_queues(d);
    while (lp_value_element(r, 0, 0, &from, &name, &len))
        count++;
    d->queues = count ? calloc(count, sizeof *d->queues) : NULL;
    for (from = 0; d->queues && lp_value_element(r, 0, 0, &from, &name, &len);) {
        char *copy = strndup(name, len);
        if (!copy)
            break;
        d->queues[d->queue_count++] = copy;
    }
    if (d->queues && d->queue_count)
        qsort(d->queues, d->queue_count, sizeof *d->queues, compare_names);
    w->no_memory = w->no_memory || d->queue_count < count;
}

/* Whether a job may have put something into a queue that is not known. */
static bool brings_queue(const postgresql_store *d, const lp_job *j)
{
    const char *name = j->queue ? j->queue : "";
    if (j->op == LP_REQUEUE)
        return true; /* Into the queue that it was in. */
    return j->op == LP_SCHEDULE && (!d->queue_count || !bsearch(&name, d->queues, d->queue_count,
                                                                sizeof *d->queues, compare_names));
}

/* What all queues there are is only known for a while; what was just put here may be new. To
 * look for all takes long when they are many. */
static int learn_names(work *w)
{
    postgresql_store *d = w->d;
    lapse_ns now = lp_clock_monotonic();
    bool brings = false;
    for (size_t i = 0; i < w->t->job_count; i++)
        brings = brings || brings_queue(d, w->t->jobs[i]);
    if (!d->config.manual && !brings && d->queues_at && now - d->queues_at < d->options.poll)
        return LAPSE_OK;
    args a = {0};
    lp_arg_bool(&a, false);
    lp_postgresql_send(w->s, ST_QUEUES, &a, read_names, 0);
    d->queues_at = now;
    return lp_postgresql_exchange(w->s, w, false);
}

static bool is_named(const lp_want *w, const char *queue)
{
    for (size_t i = 0; i < w->queue_count; i++)
        if (strcmp(w->queues[i], queue) == 0)
            return true;
    return false;
}

/* The parameter of the queues of a want; how many, or -1 without memory. */
static int add_queues(const postgresql_store *d, const lp_want *w, args *a)
{
    size_t most = w->others ? d->queue_count : w->queue_count, count = 0;
    const char **names = calloc(most + 1, sizeof *names);
    size_t *lens = calloc(most + 1, sizeof *lens);
    bool ok = names && lens;
    for (size_t i = 0; ok && i < most; i++) {
        const char *name = w->others ? d->queues[i] : w->queues[i];
        if (w->others && is_named(w, name))
            continue;
        names[count] = name;
        lens[count++] = strlen(name);
    }
    ok = ok && lp_arg_names(a, names, lens, count);
    free(names);
    free(lens);
    return ok ? (int)count : -1;
}

/* -- Claims -- */

/* Columns of @claim. */
enum { C_FENCE, C_GENERATION, C_ATTEMPT, C_DUE, C_AT, C_ID, C_QUEUE, C_PAYLOAD };

static void append(work *w, lp_loan *l)
{
    *w->end = l;
    w->end = &l->next;
}

void lp_postgresql_tell(work *w, const PGresult *r, size_t at)
{
    (void)at;
    for (int row = 0; row < PQntuples(r); row++) {
        lp_loan *l =
            lp_loan_make(PQgetvalue(r, row, 0), (size_t)PQgetlength(r, row, 0), "", NULL, 0);
        size_t len;
        char *queue = lp_value_copy(r, row, 1, &len);
        if (l && queue && len) {
            lp_loan *named = lp_loan_make(l->id, l->id_len, queue, NULL, 0);
            free(l);
            l = named;
        }
        free(queue);
        if (!l)
            continue; /* It has ended all the same. */
        l->ended = true;
        append(w, l);
    }
}

static lp_loan *make_loan(const work *w, const PGresult *r, int row)
{
    char *queue = lp_value_copy(r, row, C_QUEUE, NULL);
    if (!queue)
        return NULL;
    lp_loan *l =
        lp_loan_make(PQgetvalue(r, row, C_ID), (size_t)PQgetlength(r, row, C_ID), queue,
                     PQgetvalue(r, row, C_PAYLOAD), (size_t)PQgetlength(r, row, C_PAYLOAD));
    free(queue);
    if (!l)
        return NULL;
    l->row = l->fence = lp_value_number(r, row, C_FENCE);
    l->generation = lp_value_number(r, row, C_GENERATION);
    l->attempt = lp_value_small(r, row, C_ATTEMPT);
    l->due = lp_postgresql_time(w, lp_value_number(r, row, C_DUE));
    if (memchr(l->id, '\0', l->id_len))
        l->bad = "its id was damaged in the database";
    return l;
}

/* After a hint there may be more that were not told of, since they would have been too many. */
static lapse_ns look_soon(const work *w, lapse_ns next)
{
    static const lapse_ns SOON = LAPSE_MS(25);
    bool heard = lp_clock_monotonic() - w->d->heard_at < 2 * SOON;
    lapse_ns soon = lp_add_ns(w->t->now, SOON);
    return heard && soon < next ? soon : next;
}

/* `at`: the want's number, and how many were asked for. */
static void read_claim(work *w, const PGresult *r, size_t at)
{
    lp_want *want = &w->t->wants[at & UINT32_MAX];
    unsigned most = (unsigned)(at >> 32), got = 0;
    int64_t last = INT64_MIN;
    want->next = LAPSE_FOREVER;
    for (int row = 0; row < PQntuples(r); row++) {
        int64_t when = lp_value_number(r, row, C_AT);
        if (PQgetisnull(r, row, C_FENCE)) {
            if (!PQgetisnull(r, row, C_AT))
                want->next = lp_postgresql_time(w, when);
            continue;
        }
        got++;
        last = when > last ? when : last;
        lp_loan *l = make_loan(w, r, row);
        w->no_memory = w->no_memory || !l;
        if (!l)
            continue; /* Its lease ends, and it is claimed again. */
        l->want = at & UINT32_MAX;
        append(w, l);
    }
    w->pushed += want->pushed ? got : 0;
    want->next = look_soon(w, want->next);
    if (most && !want->newest)
        find_floor(w->d, want)->at = got < most ? w->clock : last;
}

static int ask_claim(work *w, size_t number, unsigned most)
{
    lp_want *want = &w->t->wants[number];
    want->next = LAPSE_FOREVER;
    args a = {0};
    lp_postgresql_arg_now(&a, w);
    lp_arg_wait(&a, w->t->lease);
    int queues = add_queues(w->d, want, &a);
    if (queues <= 0) {
        free(a.made);
        if (queues < 0)
            w->s->failed = LAPSE_ENOMEM;
        return queues < 0 ? LAPSE_ENOMEM : LAPSE_OK;
    }
    lp_arg_time(&a, from_where(w, want));
    lp_arg_small(&a, most > INT32_MAX ? INT32_MAX : (int32_t)most);
    lp_arg_bool(&a, want->newest);
    uint64_t at = number | (uint64_t)most << 32;
    return lp_postgresql_send(w->s, ST_CLAIM, &a, read_claim, at) ? LAPSE_OK : LAPSE_EOFFLINE;
}

int lp_postgresql_claim(work *w)
{
    const lp_turn *t = w->t;
    unsigned reserved = 0; /* asked for, and not known to be got */
    bool others = false;
    for (size_t i = 0; i < t->want_count; i++)
        others = others || t->wants[i].others;
    int known = others ? learn_names(w) : LAPSE_OK;
    if (known < 0)
        return known;
    for (size_t i = 0; i < t->want_count; i++) {
        const lp_want *want = &t->wants[i];
        unsigned left = t->push_most > w->pushed ? t->push_most - w->pushed : 0;
        if (want->pushed && reserved && want->most > left - (reserved < left ? reserved : left)) {
            /* What those before leave is known only once they are served. */
            int code = lp_postgresql_exchange(w->s, w, false);
            if (code < 0)
                return code;
            reserved = 0;
            left = t->push_most > w->pushed ? t->push_most - w->pushed : 0;
        }
        unsigned most = want->most;
        if (want->pushed && most > left - reserved)
            most = left - reserved;
        int code = ask_claim(w, i, most);
        if (code < 0)
            return code;
        reserved += want->pushed ? most : 0;
    }
    return LAPSE_OK;
}
