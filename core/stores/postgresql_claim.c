/* postgresql_claim.c - from due to held.
 *
 * The index of (queue, at, seq) is a list of each queue in the order of claiming. What was
 * claimed and deleted stands in it until the server has cleaned up, which a transaction that is
 * open somewhere may hold up for hours. So a claim begins behind what the one before has
 * claimed last, at its floor, and only every `poll` at the very beginning: an order may also be
 * committed long after it fell due. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "stores/postgresql.h"

/* -- Floors -- */

static const place_of VERY_FIRST = {INT64_MIN, INT64_MIN};

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
    *oldest = (floor_of){.want = want, .from = VERY_FIRST};
    return oldest;
}

void lp_postgresql_lower_floors(postgresql_store *d, int64_t at)
{
    for (floor_of *f = d->floors; f < d->floors + FLOORS; f++)
        if (f->from.at >= at)
            f->from = (place_of){at, INT64_MIN};
}

static place_of from_where(work *w, const lp_want *want)
{
    postgresql_store *d = w->d;
    floor_of *f = find_floor(d, want);
    lapse_ns now = lp_clock_monotonic();
    if (!d->config.manual && !w->wide && f->from.at != INT64_MIN &&
        now - f->widened < d->options.poll)
        return f->from;
    f->widened = now;
    return VERY_FIRST;
}

void lp_postgresql_forget(postgresql_store *d)
{
    lp_postgresql_forget_heads(d);
    memset(d->floors, 0, sizeof d->floors);
    d->orders = -1;
}

/* -- Claims -- */

/* Columns of @claim. */
enum { C_FENCE, C_GENERATION, C_ATTEMPT, C_DUE, C_AT, C_SEQ, C_ID, C_QUEUE, C_PAYLOAD };

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

/* Where the next claim of this want begins. What was not claimed although it is due is behind
 * the last that was: all of that was asked for, or their payloads are large. */
static void note_floor(work *w, const lp_want *want, bool more, place_of last)
{
    find_floor(w->d, want)->from = more ? last : (place_of){w->clock, INT64_MIN};
}

/* When the next of a queue can be claimed. */
static void read_next(const work *w, lp_want *want, const PGresult *r, int row)
{
    int64_t when = PQgetisnull(r, row, C_AT) ? INT64_MAX : lp_value_number(r, row, C_AT);
    lapse_ns next = when == INT64_MAX ? LAPSE_FOREVER : lp_postgresql_time(w, when);
    want->next = next < want->next ? next : want->next;
    if (want->others)
        lp_postgresql_set_head(w->d, PQgetvalue(r, row, C_QUEUE),
                               (size_t)PQgetlength(r, row, C_QUEUE), when);
}

/* `at`: the want's number, and how many were asked for. */
static void read_claim(work *w, const PGresult *r, size_t at)
{
    lp_want *want = &w->t->wants[at & UINT32_MAX];
    unsigned most = (unsigned)(at >> 32), got = 0;
    place_of last = VERY_FIRST;
    want->next = LAPSE_FOREVER;
    for (int row = 0; row < PQntuples(r); row++) {
        if (PQgetisnull(r, row, C_FENCE)) {
            read_next(w, want, r, row);
            continue;
        }
        got++;
        last = (place_of){lp_value_number(r, row, C_AT), lp_value_number(r, row, C_SEQ)};
        lp_loan *l = make_loan(w, r, row);
        w->no_memory = w->no_memory || !l;
        if (!l)
            continue; /* Its lease ends, and it is claimed again. */
        l->want = at & UINT32_MAX;
        append(w, l);
    }
    w->pushed += want->pushed ? got : 0;
    if (most && !want->newest && !want->others)
        note_floor(w, want, got == most || want->next <= w->t->now, last);
    want->next = look_soon(w, want->next);
}

/* The parameters of the queues of a want and of where to begin; how many queues, or -1 without
 * memory. */
static int add_queues(work *w, const lp_want *want, unsigned most, args *a)
{
    size_t count = want->others ? w->d->head_count : want->queue_count;
    const char **names = calloc(count + 1, sizeof *names);
    size_t *lens = calloc(count + 1, sizeof *lens);
    place_of from = VERY_FIRST;
    bool ok = names && lens;
    if (ok && want->others)
        count = lp_postgresql_choose_heads(w, want, most, names, lens, &from);
    else if (ok)
        from = from_where(w, want);
    for (size_t i = 0; ok && !want->others && i < count; i++) {
        names[i] = want->queues[i];
        lens[i] = strlen(names[i]);
    }
    ok = ok && lp_arg_names(a, names, lens, count);
    lp_arg_time(a, from.at);
    lp_arg_number(a, from.seq);
    free(names);
    free(lens);
    return ok ? (int)count : -1;
}

static int ask_claim(work *w, size_t number, unsigned most)
{
    lp_want *want = &w->t->wants[number];
    want->next = LAPSE_FOREVER;
    args a = {0};
    lp_postgresql_arg_now(&a, w);
    lp_arg_wait(&a, w->t->lease);
    int queues = add_queues(w, want, most, &a);
    if (queues <= 0) {
        free(a.made);
        if (queues < 0)
            w->s->failed = LAPSE_ENOMEM;
        return queues < 0 ? LAPSE_ENOMEM : LAPSE_OK;
    }
    lp_arg_small(&a, most > INT32_MAX ? INT32_MAX : (int32_t)most);
    lp_arg_bool(&a, want->newest);
    uint64_t at = number | (uint64_t)most << 32;
    return lp_postgresql_send(w->s, ST_CLAIM, &a, read_claim, at) ? LAPSE_OK : LAPSE_EOFFLINE;
}

void lp_postgresql_note_next(const work *w)
{
    for (size_t i = 0; i < w->t->want_count; i++) {
        lp_want *want = &w->t->wants[i];
        if (!want->others)
            continue;
        int64_t first = lp_postgresql_first_head(w->d, want);
        want->next = first == INT64_MAX ? LAPSE_FOREVER : lp_postgresql_time(w, first);
        if (w->d->heads_old) {
            lapse_ns wait = lp_postgresql_heads_due(w->d) - lp_clock_monotonic();
            lapse_ns look = lp_add_ns(w->t->now, wait > 0 ? wait : 0);
            want->next = look < want->next ? look : want->next;
        }
        want->next = look_soon(w, want->next);
    }
}

int lp_postgresql_claim(work *w)
{
    const lp_turn *t = w->t;
    unsigned reserved = 0; /* asked for, and not known to be got */
    bool others = false;
    for (size_t i = 0; i < t->want_count; i++)
        others = others || t->wants[i].others;
    int known = others ? lp_postgresql_learn_heads(w) : LAPSE_OK;
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
