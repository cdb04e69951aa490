/* sqlite_look.c - copies of orders, and counts. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "stores/sqlite.h"

static char *copy_blob(sqlite3_stmt *st, int column, size_t *len)
{
    const void *bytes = sqlite3_column_blob(st, column);
    *len = bytes ? (size_t)sqlite3_column_bytes(st, column) : 0;
    char *copy = malloc(*len + 1);
    if (copy) {
        if (*len)
            memcpy(copy, bytes, *len);
        copy[*len] = '\0';
    }
    return copy;
}

static bool copy_strings(session *s, sqlite3_stmt *st, lapse_info *out)
{
    char id[LAPSE_ID_MAX + 1];
    size_t len;
    out->id_len =
        lp_sqlite_id(sqlite3_column_blob(st, COL_ID), sqlite3_column_bytes(st, COL_ID), id);
    out->id = out->id_len ? strdup(id) : copy_blob(st, COL_ID, &out->id_len);
    int q = sqlite3_column_int(st, COL_QUEUE);
    out->queue = strdup(q >= 0 && (size_t)q < s->queue_count ? s->queues[q]->name : "");
    if (sqlite3_column_bytes(st, COL_PAYLOAD) > 0) {
        out->payload = copy_blob(st, COL_PAYLOAD, &out->payload_len);
        if (!out->payload)
            return false;
    }
    if (out->state == LAPSE_STATE_DEAD && sqlite3_column_type(st, COL_ERROR) != SQLITE_NULL) {
        out->error = copy_blob(st, COL_ERROR, &len);
        if (!out->error)
            return false;
    }
    return out->id && out->queue;
}

int lp_sqlite_look(session *s, sqlite3_stmt *st, lapse_state state, lapse_info *out)
{
    row r = lp_sqlite_read_row(st);
    *out = (lapse_info){
        .state = state,
        .due = lp_sqlite_scheduler_time(s, r.due),
        .generation = r.generation,
        .attempt = r.attempt,
    };
    if (state == LAPSE_STATE_PENDING) {
        if (r.fence) /* Its lease ended: it is due again since then. */
            out->due = lp_sqlite_scheduler_time(s, r.at);
        lapse_ns at = lp_sqlite_scheduler_time(s, r.at);
        out->remaining = at > s->now_ns ? at - s->now_ns : 0;
    }
    if (state == LAPSE_STATE_DONE || state == LAPSE_STATE_DEAD)
        out->ended = lp_sqlite_scheduler_time(s, r.at);
    if (state == LAPSE_STATE_DEAD)
        out->reason = (lapse_reason)sqlite3_column_int(st, COL_REASON);
    if (copy_strings(s, st, out))
        return LAPSE_OK;
    lapse_info_free(out);
    return lp_fail_memory();
}

bool lp_sqlite_is_kept(const session *s, int64_t ended)
{
    lapse_ns age = s->now_ns - lp_sqlite_scheduler_time(s, ended);
    return s->meta.keep > 0 && age <= s->meta.keep * 1000000;
}

/* The state of the row of lapse_order that `st` stands at; 0: it has ended, nobody has
 * noticed yet. */
static lapse_state state_of(const session *s, sqlite3_stmt *st, int64_t unstarted)
{
    row r = lp_sqlite_read_row(st);
    if (!lp_sqlite_is_held(s, &r))
        return r.no_more ? 0 : LAPSE_STATE_PENDING;
    return r.fence == unstarted ? LAPSE_STATE_PENDING : LAPSE_STATE_RUNNING;
}

/* -- Get -- */

static int unknown(const lp_job *j)
{
    return lp_fail(LAPSE_EUNKNOWN, "no order %s is known", lp_text_quote(j->id, j->id_len));
}

static sqlite3_stmt *by_id(session *s, int which, const key *k)
{
    sqlite3_stmt *st = lp_sqlite_use(s, which);
    if (!st)
        return NULL;
    sqlite3_bind_blob(st, 1, k->bytes, k->len, SQLITE_STATIC);
    return lp_sqlite_row(s, st) ? st : NULL;
}

static int64_t get_order(session *s, const lp_job *j, sqlite3_stmt *st)
{
    lapse_state state = state_of(s, st, j->unstarted);
    const char *flaw = lp_sqlite_flaw(s, st);
    if (state == 0)
        return s->meta.keep > 0 ? lp_sqlite_look(s, st, LAPSE_STATE_DONE, j->infos) : unknown(j);
    if (flaw)
        return lp_fail(LAPSE_EDATA, "order %s cannot be read: %s", lp_text_quote(j->id, j->id_len),
                       flaw);
    int code = lp_sqlite_look(s, st, state, j->infos);
    row r = lp_sqlite_read_row(st);
    if (code == LAPSE_OK && state == LAPSE_STATE_PENDING && lp_sqlite_is_held(s, &r)) {
        j->infos->attempt--; /* This delivery has not started. */
        j->infos->due = lp_sqlite_scheduler_time(s, r.due);
        j->infos->remaining = 0;
    }
    return code;
}

int64_t lp_sqlite_get(session *s, lp_job *j)
{
    key k = lp_sqlite_key(j->id, j->id_len);
    int64_t code = LAPSE_OK;
    sqlite3_stmt *st = by_id(s, ST_ORDER_BY_ID, &k);
    if (st) {
        code = get_order(s, j, st);
    } else if (!s->failed && (st = by_id(s, ST_ENDED_BY_ID, &k))) {
        bool kept = lp_sqlite_is_kept(s, sqlite3_column_int64(st, COL_WHEN));
        code = kept ? lp_sqlite_look(s, st, LAPSE_STATE_DONE, j->infos) : unknown(j);
    } else if (!s->failed && (st = by_id(s, ST_DEAD_NAMED, &k))) {
        code = lp_sqlite_look(s, st, LAPSE_STATE_DEAD, j->infos);
    }
    if (s->failed)
        return lp_sqlite_error(s);
    if (!st)
        return unknown(j);
    sqlite3_reset(st);
    return code;
}

/* -- List -- */

/* A cursor is the part of the walk, in the upper bits, and the row to go on from. */
enum { ORDERS, ENDED, DEAD, PARTS, PART_BIT = 61, STEPS = 1024 };

static const unsigned states_of[PARTS] = {
    [ORDERS] = LAPSE_STATE_PENDING | LAPSE_STATE_RUNNING,
    [ENDED] = LAPSE_STATE_DONE,
    [DEAD] = LAPSE_STATE_DEAD,
};

static int statement_of(int part, unsigned states)
{
    if (part == ORDERS)
        return states & LAPSE_STATE_PENDING ? ST_LIST_ORDERS : ST_LIST_HELD;
    return part == ENDED ? ST_LIST_ENDED : ST_LIST_DEAD;
}

static lapse_state state_in(const session *s, sqlite3_stmt *st, int part)
{
    if (part == ORDERS)
        return state_of(s, st, 0);
    if (part == DEAD)
        return LAPSE_STATE_DEAD;
    return lp_sqlite_is_kept(s, sqlite3_column_int64(st, COL_WHEN)) ? LAPSE_STATE_DONE : 0;
}

/* Walk on through one part: true when it was walked to its end. */
static bool list_part(session *s, lp_job *j, int part, int64_t *from, int *n, int *steps)
{
    sqlite3_stmt *st = lp_sqlite_use(s, statement_of(part, j->states));
    if (!st)
        return false;
    sqlite3_bind_int64(st, 1, *from);
    while (*n<j->max && * steps> 0) {
        if (!lp_sqlite_row(s, st))
            return !s->failed;
        --*steps;
        *from = sqlite3_column_int64(st, COL_SEQ) + 1;
        lapse_state state = state_in(s, st, part);
        if (!(state & j->states))
            continue;
        if (lp_sqlite_look(s, st, state, &j->infos[*n]) < 0) {
            s->failed = SQLITE_NOMEM;
            break;
        }
        ++*n;
    }
    sqlite3_reset(st);
    return false;
}

static void free_infos(lp_job *j, int n)
{
    while (n)
        lapse_info_free(&j->infos[--n]);
}

int64_t lp_sqlite_list(session *s, lp_job *j)
{
    const uint64_t mask = (UINT64_C(1) << PART_BIT) - 1;
    int part = (int)(*j->cursor >> PART_BIT) & 3, n = 0, steps = STEPS;
    int64_t from = (int64_t)(*j->cursor & mask);
    while (part < PARTS) {
        if ((states_of[part] & j->states) && !list_part(s, j, part, &from, &n, &steps))
            break;
        part++;
        from = 0;
    }
    if (s->failed) {
        free_infos(j, n);
        return lp_sqlite_error(s);
    }
    *j->cursor = part < PARTS ? (uint64_t)part << PART_BIT | (uint64_t)from : UINT64_MAX;
    return n;
}

/* -- Counts -- */

/* The one number that a statement about a queue gives; `none` without a row. */
static int64_t number_of(session *s, int which, int q, int64_t none)
{
    sqlite3_stmt *st = lp_sqlite_use(s, which);
    if (!st)
        return none;
    sqlite3_bind_int(st, 1, q);
    sqlite3_bind_int64(st, 2, s->now);
    if (!lp_sqlite_row(s, st))
        return none;
    int64_t n = sqlite3_column_int64(st, 0);
    sqlite3_reset(st);
    return n;
}

static void count_queue(session *s, int q, lp_counts *out)
{
    const queue *of = s->queues[q];
    out->dead += (uint64_t)of->dead;
    if (of->orders <= 0)
        return;
    int64_t held = number_of(s, ST_QUEUE_HELD, q, 0), over = number_of(s, ST_QUEUE_OVER, q, 0);
    int64_t oldest = number_of(s, ST_QUEUE_OLDEST, q, INT64_MAX);
    int64_t pending = of->orders - held - over;
    /* What is over is counted as ended by the turn that sweeps it; until then it runs. */
    out->running += (uint64_t)(held + over);
    out->pending += pending > 0 ? (uint64_t)pending : 0;
    lapse_ns due = oldest == INT64_MAX ? LAPSE_FOREVER : lp_sqlite_scheduler_time(s, oldest);
    if (due < out->oldest_due)
        out->oldest_due = due;
}

static uint64_t bytes_used(session *s)
{
    int used = 0, most;
    sqlite3_db_status(s->db, SQLITE_DBSTATUS_CACHE_USED, &used, &most, 0);
    return used > 0 ? (uint64_t)used : 0;
}

int64_t lp_sqlite_counts(session *s, lp_job *j)
{
    lp_counts *out = j->counts;
    *out = (lp_counts){.oldest_due = LAPSE_FOREVER};
    int only = j->queue ? lp_sqlite_queue(s, j->queue) : -1;
    if (j->queue && only < 0)
        return lp_fail(LAPSE_EUNKNOWN, "no queue %s is known",
                       lp_text_quote(j->queue, strlen(j->queue)));
    if (only >= 0)
        count_queue(s, only, out);
    for (size_t q = 0; !j->queue && q < s->queue_count; q++)
        count_queue(s, (int)q, out);
    if (!j->queue) {
        out->kept = s->meta.ended > 0 ? (uint64_t)s->meta.ended : 0;
        out->dead_dropped = s->dead_dropped;
        out->bytes = bytes_used(s);
    }
    return s->failed ? lp_sqlite_error(s) : LAPSE_OK;
}

int64_t lp_sqlite_queues(session *s, lp_job *j)
{
    int n = 0;
    for (; n < j->max && *j->cursor < s->queue_count; n++, ++*j->cursor) {
        j->infos[n] = (lapse_info){.queue = strdup(s->queues[*j->cursor]->name)};
        if (!j->infos[n].queue) {
            free_infos(j, n);
            return lp_fail_memory();
        }
    }
    if (*j->cursor >= s->queue_count)
        *j->cursor = UINT64_MAX;
    return n;
}
