/* postgresql_look.c - copies of orders, and counts. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "stores/postgresql.h"

static bool copy_strings(const PGresult *r, int row, lapse_info *out)
{
    out->id = lp_value_copy(r, row, COL_ID, &out->id_len);
    out->queue = lp_value_copy(r, row, COL_QUEUE, NULL);
    if (!PQgetisnull(r, row, COL_PAYLOAD) &&
        !(out->payload = lp_value_copy(r, row, COL_PAYLOAD, &out->payload_len)))
        return false;
    if (!PQgetisnull(r, row, COL_ERROR) && !(out->error = lp_value_copy(r, row, COL_ERROR, NULL)))
        return false;
    return out->id && out->queue;
}

int lp_postgresql_look(const work *w, const PGresult *r, int row, lapse_state state,
                       lapse_info *out)
{
    lapse_ns when = lp_postgresql_time(w, lp_value_number(r, row, COL_WHEN));
    *out = (lapse_info){
        .state = state,
        .due = lp_postgresql_time(w, lp_value_number(r, row, COL_DUE)),
        .generation = lp_value_number(r, row, COL_GENERATION),
        .attempt = lp_value_small(r, row, COL_ATTEMPT),
        .reason = (lapse_reason)lp_value_small(r, row, COL_REASON),
    };
    if (state == LAPSE_STATE_PENDING) {
        if (lp_value_number(r, row, COL_FENCE)) /* Its lease ended: it is due again since then. */
            out->due = when;
        out->remaining = when > w->t->now ? when - w->t->now : 0;
    }
    if (state == LAPSE_STATE_DONE || state == LAPSE_STATE_DEAD)
        out->ended = when;
    if (copy_strings(r, row, out))
        return LAPSE_OK;
    lapse_info_free(out);
    return lp_fail_memory();
}

static bool is_kept(const work *w, const PGresult *r, int row)
{
    lapse_ns age = w->t->now - lp_postgresql_time(w, lp_value_number(r, row, COL_WHEN));
    return w->d->keep > 0 && age <= w->d->keep;
}

static bool is_held(const work *w, const PGresult *r, int row)
{
    return lp_value_number(r, row, COL_FENCE) && lp_value_number(r, row, COL_WHEN) > w->clock;
}

/* 0: it has ended, and is not remembered. */
static lapse_state state_of(const work *w, const PGresult *r, int row, int64_t unstarted)
{
    switch (lp_value_small(r, row, COL_PLACE)) {
    case IN_ENDED:
        return is_kept(w, r, row) ? LAPSE_STATE_DONE : 0;
    case IN_DEAD:
        return LAPSE_STATE_DEAD;
    default:
        if (!is_held(w, r, row))
            return lp_value_bool(r, row, COL_NO_MORE) ? 0 : LAPSE_STATE_PENDING;
        return unstarted && lp_value_number(r, row, COL_FENCE) == unstarted ? LAPSE_STATE_PENDING
                                                                            : LAPSE_STATE_RUNNING;
    }
}

/* -- Get -- */

static void read_get(work *w, const PGresult *r, size_t at)
{
    lp_job *j = w->t->jobs[at];
    lapse_state state = PQntuples(r) ? state_of(w, r, 0, j->unstarted) : 0;
    if (state == 0) {
        lp_job_fail(
            j, lp_fail(LAPSE_EUNKNOWN, "no order %s is known", lp_text_quote(j->id, j->id_len)));
        return;
    }
    int code = lp_postgresql_look(w, r, 0, state, j->infos);
    j->answer = code;
    if (code < 0) {
        lp_job_fail(j, code);
    } else if (state == LAPSE_STATE_PENDING && is_held(w, r, 0)) {
        j->infos->attempt--; /* This delivery has not started. */
        j->infos->due = lp_postgresql_time(w, lp_value_number(r, 0, COL_DUE));
        j->infos->remaining = 0;
    }
}

/* -- List -- */

/* A cursor is the part of the walk, in the upper bits, and what to go on behind: a place in the
 * table, a fence, a letter. */
enum { PART_BIT = 61, OFFSET_BITS = 16 };
#define POSITION_MASK ((UINT64_C(1) << PART_BIT) - 1)

static const unsigned states_of[] = {
    [IN_ORDERS] = LAPSE_STATE_PENDING | LAPSE_STATE_RUNNING,
    [IN_ENDED] = LAPSE_STATE_DONE,
    [IN_DEAD] = LAPSE_STATE_DEAD,
};

/* The first part from `part` on in which something asked for may be; 0: none. */
static int next_part(int part, unsigned states)
{
    for (; part <= IN_DEAD; part++)
        if (states_of[part] & states)
            return part;
    return 0;
}

static int part_of(uint64_t cursor)
{
    int part = (int)(cursor >> PART_BIT);
    return part ? part : IN_ORDERS;
}

static uint64_t first_of(int part)
{
    return (uint64_t)(part & 3) << PART_BIT;
}

static void finish_part(lp_job *j, int part)
{
    part = next_part(part + 1, j->states);
    *j->cursor = part ? first_of(part) : UINT64_MAX;
}

/* What the part is walked along. */
static bool by_place(const lp_job *j, int part)
{
    return part == IN_ENDED || (part == IN_ORDERS && j->states & LAPSE_STATE_PENDING);
}

static uint64_t position_of(const lp_job *j, const PGresult *r, int row, int part)
{
    if (part == IN_DEAD)
        return (uint64_t)lp_value_number(r, row, COL_SEQ);
    if (!by_place(j, part))
        return (uint64_t)lp_value_number(r, row, COL_FENCE);
    unsigned block = 0, offset = 0;
    char text[40];
    snprintf(text, sizeof text, "%.*s", PQgetlength(r, row, COL_CTID),
             PQgetvalue(r, row, COL_CTID));
    if (sscanf(text, "(%u,%u)", &block, &offset) != 2)
        return 0;
    return (uint64_t)block << OFFSET_BITS | offset;
}

static void read_list(work *w, const PGresult *r, size_t at)
{
    lp_job *j = w->t->jobs[at];
    int part = next_part(part_of(*j->cursor), j->states), n = 0, rows = PQntuples(r);
    for (int row = 0; row < rows; row++) {
        lapse_state state = state_of(w, r, row, 0);
        if (!(state & j->states))
            continue;
        int code = lp_postgresql_look(w, r, row, state, &j->infos[n]);
        if (code < 0) {
            while (n)
                lapse_info_free(&j->infos[--n]);
            lp_job_fail(j, code);
            return;
        }
        n++;
    }
    j->answer = n;
    if (rows < j->max)
        finish_part(j, part);
    else
        *j->cursor = first_of(part) | position_of(j, r, rows - 1, part);
}

static bool ask_list(work *w, size_t at)
{
    static const int statements[] = {[IN_ENDED] = ST_LIST_ENDED, [IN_DEAD] = ST_LIST_DEAD};
    lp_job *j = w->t->jobs[at];
    int part = next_part(part_of(*j->cursor), j->states);
    uint64_t position = part == part_of(*j->cursor) ? *j->cursor & POSITION_MASK : 0;
    char place[40];
    args a = {0};
    if (!part) {
        *j->cursor = UINT64_MAX;
        j->answer = 0;
        return true;
    }
    if (by_place(j, part)) {
        snprintf(place, sizeof place, "(%u,%u)", (unsigned)(position >> OFFSET_BITS),
                 (unsigned)(position & 0xffff));
        lp_arg_text(&a, place);
    } else {
        lp_arg_number(&a, (int64_t)position);
    }
    lp_arg_small(&a, j->max);
    int orders = by_place(j, part) ? ST_LIST_ORDERS : ST_LIST_HELD;
    return lp_postgresql_send(w->s, part == IN_ORDERS ? orders : statements[part], &a, read_list,
                              at);
}

/* -- Counts -- */

static void read_count(work *w, const PGresult *r, size_t at)
{
    lp_job *j = w->t->jobs[at];
    int64_t all = lp_value_number(r, 0, 0), held = lp_value_number(r, 0, 1);
    *j->counts = (lp_counts){
        .pending = (uint64_t)(all > held ? all - held : 0),
        .running = (uint64_t)held,
        .kept = (uint64_t)lp_value_number(r, 0, 2),
        .dead = (uint64_t)lp_value_number(r, 0, 3),
        .dead_dropped = j->queue ? 0 : w->d->dead_dropped + w->dead_dropped,
        .oldest_due =
            PQgetisnull(r, 0, 4) ? LAPSE_FOREVER : lp_postgresql_time(w, lp_value_number(r, 0, 4)),
        .bytes = j->queue ? 0 : (uint64_t)lp_value_number(r, 0, 5),
    };
    j->answer = LAPSE_OK;
}

static bool ask_count(work *w, size_t at)
{
    const lp_job *j = w->t->jobs[at];
    args a = {0};
    lp_postgresql_arg_now(&a, w);
    if (j->queue)
        lp_arg_bytes(&a, j->queue, strlen(j->queue));
    else
        lp_arg_null(&a);
    return lp_postgresql_send(w->s, ST_COUNTS, &a, read_count, at);
}

static void read_queues(work *w, const PGresult *r, size_t at)
{
    lp_job *j = w->t->jobs[at];
    uint64_t place = 0;
    size_t from = 0, len;
    const char *name;
    int n = 0;
    while (lp_value_element(r, 0, 0, &from, &name, &len)) {
        if (place++ < *j->cursor)
            continue;
        if (n == j->max) {
            *j->cursor += (uint64_t)n;
            j->answer = n;
            return;
        }
        j->infos[n] = (lapse_info){.queue = strndup(name, len)};
        if (!j->infos[n++].queue)
            break;
    }
    *j->cursor = UINT64_MAX;
    j->answer = n;
}

static bool ask_queues(work *w, size_t at)
{
    args a = {0};
    lp_arg_bool(&a, true);
    return lp_postgresql_send(w->s, ST_QUEUES, &a, read_queues, at);
}

bool lp_postgresql_ask_look(work *w, size_t at)
{
    switch (w->t->jobs[at]->op) {
    case LP_GET: {
        args a = {0};
        lp_arg_bytes(&a, w->t->jobs[at]->id, w->t->jobs[at]->id_len);
        return lp_postgresql_send(w->s, ST_GET, &a, read_get, at);
    }
    case LP_LIST:
        return ask_list(w, at);
    case LP_COUNT:
        return ask_count(w, at);
    default:
        return ask_queues(w, at);
    }
}
