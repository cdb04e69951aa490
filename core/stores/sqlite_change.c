/* sqlite_change.c - schedule, cancel, reschedule; requeue and purge of dead letters.
 *
 * Each first refuses what it must and then writes. */
#include "base/error.h"
#include "stores/sqlite.h"

/* An order that was claimed and not started counts as pending to who claimed it. */
static bool waits(const session *s, const row *r, const lp_job *j)
{
    return !lp_sqlite_is_held(s, r) || (j->unstarted && r->fence == j->unstarted);
}

/* The attempts of an order that waits once more, without a claim that was not started. */
static int attempts(const session *s, const row *r)
{
    return lp_sqlite_is_held(s, r) && r->attempt ? r->attempt - 1 : r->attempt;
}

/* -- Schedule -- */

static int exists(const lp_job *j, const char *how)
{
    return lp_fail(LAPSE_EEXISTS, "order %s is %s already: cancel it, reschedule it, or replace it",
                   lp_text_quote(j->id, j->id_len), how);
}

static bool is_full(const session *s)
{
    return s->config.max_pending && s->orders >= 0 && (uint64_t)s->orders >= s->config.max_pending;
}

static int full(const session *s)
{
    return lp_fail(LAPSE_EFULL,
                   "%llu orders are pending, which is max_pending: cancel some or raise it",
                   (unsigned long long)s->config.max_pending);
}

/* The order that was accepted longest ago goes to the dead letters. */
/* The order that is to make room for another: 0, or an error. */
static int find_oldest(session *s, row *oldest)
{
    if (s->config.overflow != LAPSE_DEAD_LETTER_OLDEST)
        return full(s);
    sqlite3_stmt *st = lp_sqlite_use(s, ST_ORDER_OLDEST);
    if (!st)
        return lp_sqlite_error(s);
    sqlite3_bind_int64(st, 1, s->now);
    if (!lp_sqlite_row(s, st))
        return s->failed ? lp_sqlite_error(s) : full(s);
    *oldest = lp_sqlite_read_row(st);
    sqlite3_reset(st);
    return LAPSE_OK;
}

static int kill_oldest(session *s, lp_job *j, const row *oldest)
{
    j->died = lp_sqlite_die(s, oldest, oldest->attempt, LAPSE_REASON_MAXLEN, NULL, j->infos);
    if (!j->died)
        return lp_sqlite_error(s);
    j->of_queue = lp_sqlite_queue_name(s, oldest->queue);
    return LAPSE_OK;
}

static int make_room(session *s, lp_job *j)
{
    row oldest;
    if (!is_full(s))
        return LAPSE_OK;
    int code = find_oldest(s, &oldest);
    return code < 0 ? code : kill_oldest(s, j, &oldest);
}

/* An order was accepted: the earliest is told to the others. */
static void note(session *s, int64_t at)
{
    if (at < s->first)
        s->first = at;
}

/* Insert; its generation, 0 when the id is there already, or an error. */
static int64_t insert(session *s, const lp_job *j, const key *k, int q)
{
    sqlite3_stmt *st = lp_sqlite_use(s, ST_ORDER_ADD);
    if (!st)
        return lp_sqlite_error(s);
    int64_t at = lp_sqlite_time(s, j->due);
    sqlite3_bind_int64(st, 1, s->meta.seq + 1);
    sqlite3_bind_blob(st, 2, k->bytes, k->len, SQLITE_STATIC);
    sqlite3_bind_int64(st, 3, at);
    sqlite3_bind_int(st, 4, q);
    sqlite3_bind_int(st, 5, (int32_t)lp_sqlite_crc(k, q, j->payload, j->payload_len));
    if (j->payload_len)
        sqlite3_bind_blob64(st, 6, j->payload, j->payload_len, SQLITE_STATIC);
    else
        sqlite3_bind_null(st, 6);
    if (!lp_sqlite_run(s, st))
        return lp_sqlite_error(s);
    if (sqlite3_changes(s->db) == 0)
        return 0;
    lp_sqlite_count(s, q, 1, 0);
    note(s, at);
    return ++s->meta.seq;
}

/* A new order of an id that `old`, if not NULL, has now. */
static int64_t accept_order(session *s, lp_job *j, const key *k, const row *old)
{
    int q = lp_sqlite_make_queue(s, j->queue ? j->queue : "");
    if (q < 0)
        return s->failed ? lp_sqlite_error(s) : q;
    int code = old ? LAPSE_OK : make_room(s, j);
    if (code < 0)
        return code;
    if (old && !lp_sqlite_delete(s, old))
        return lp_sqlite_error(s);
    int64_t generation = insert(s, j, k, q);
    if (generation > 0 && !lp_sqlite_supersede(s, k))
        return lp_sqlite_error(s);
    return generation;
}

int64_t lp_sqlite_schedule(session *s, lp_job *j)
{
    key k = lp_sqlite_key(j->id, j->id_len);
    int q = lp_sqlite_queue(s, j->queue ? j->queue : "");
    if (q >= 0 && !is_full(s)) { /* Nearly always the id is new. */
        int64_t generation = insert(s, j, &k, q);
        if (generation > 0 && !lp_sqlite_supersede(s, &k))
            return lp_sqlite_error(s);
        if (generation != 0)
            return generation;
    }
    row old;
    bool found = lp_sqlite_find(s, &k, &old);
    if (s->failed)
        return lp_sqlite_error(s);
    if (!found)
        return accept_order(s, j, &k, NULL);
    bool waiting = waits(s, &old, j);
    if (waiting && !j->replace)
        return exists(j, "pending");
    j->replaced = waiting;
    j->running_fence = waiting ? 0 : old.fence;
    return accept_order(s, j, &k, &old);
}

/* -- Cancel, reschedule -- */

/* The fate of an order that is not there any more. */
static int64_t ended_fate(session *s, const lp_job *j, const key *k)
{
    static const int places[] = {ST_ENDED_BY_ID, ST_DEAD_NAMED};
    for (int i = 0; i < 2; i++) {
        if (i == 0 ? s->meta.ended == 0 : s->dead == 0)
            continue;
        sqlite3_stmt *st = lp_sqlite_use(s, places[i]);
        if (!st)
            return lp_sqlite_error(s);
        sqlite3_bind_blob(st, 1, k->bytes, k->len, SQLITE_STATIC);
        if (!lp_sqlite_row(s, st)) {
            if (s->failed)
                return lp_sqlite_error(s);
            continue;
        }
        row r = lp_sqlite_read_row(st);
        sqlite3_reset(st);
        bool meant = j->generation == LAPSE_ANY || j->generation == r.generation;
        return meant && lp_sqlite_is_kept(s, r.at) ? LAPSE_FATE_DONE : LAPSE_FATE_UNKNOWN;
    }
    return LAPSE_FATE_UNKNOWN;
}

/* The order that a request names: 1, 0 when it is not pending or held, or an error. */
static int find_named(session *s, const lp_job *j, row *out, int64_t *fate)
{
    key k = lp_sqlite_key(j->id, j->id_len);
    bool found = lp_sqlite_find(s, &k, out);
    if (s->failed)
        return lp_sqlite_error(s);
    if (!found) {
        *fate = ended_fate(s, j, &k);
        return *fate < 0 ? (int)*fate : 0;
    }
    *fate = LAPSE_FATE_UNKNOWN;
    return j->generation == LAPSE_ANY || j->generation == out->generation;
}

static int64_t cancel_held(session *s, lp_job *j, const row *r)
{
    j->running_fence = r->fence;
    if (r->no_more)
        return LAPSE_FATE_RUNNING;
    sqlite3_stmt *st = lp_sqlite_use(s, ST_ORDER_NO_MORE);
    if (!st)
        return lp_sqlite_error(s);
    sqlite3_bind_int64(st, 1, r->seq);
    s->changed = true;
    return lp_sqlite_run(s, st) ? LAPSE_FATE_RUNNING : lp_sqlite_error(s);
}

int64_t lp_sqlite_cancel(session *s, lp_job *j)
{
    row r;
    int64_t fate;
    int code = find_named(s, j, &r, &fate);
    if (code <= 0)
        return code < 0 ? code : fate;
    if (!waits(s, &r, j))
        return cancel_held(s, j, &r);
    if (!lp_sqlite_end(s, &r))
        return lp_sqlite_error(s);
    j->of_queue = lp_sqlite_queue_name(s, r.queue);
    return LAPSE_FATE_CANCELLED;
}

int64_t lp_sqlite_reschedule(session *s, lp_job *j)
{
    row r;
    int64_t fate;
    int code = find_named(s, j, &r, &fate);
    if (code <= 0)
        return code < 0 ? code : fate;
    if (!waits(s, &r, j))
        return LAPSE_FATE_RUNNING;
    int64_t at = lp_sqlite_time(s, j->due);
    return lp_sqlite_wait(s, &r, at, at, attempts(s, &r)) ? LAPSE_FATE_RESCHEDULED
                                                          : lp_sqlite_error(s);
}

/* -- Dead letters -- */

/* The newest dead letter that a request means: 1, 0 or an error. */
static int find_dead(session *s, const lp_job *j, const key *k, row *out)
{
    sqlite3_stmt *st = lp_sqlite_use(s, j->id ? ST_DEAD_FIND : ST_DEAD_OLDEST);
    if (!st)
        return lp_sqlite_error(s);
    if (j->id) {
        sqlite3_bind_blob(st, 1, k->bytes, k->len, SQLITE_STATIC);
        sqlite3_bind_int64(st, 2, j->generation);
    }
    if (!lp_sqlite_row(s, st))
        return s->failed ? lp_sqlite_error(s) : 0;
    *out = lp_sqlite_read_row(st);
    sqlite3_reset(st);
    return 1;
}

static bool delete_dead(session *s, const row *r)
{
    sqlite3_stmt *st = lp_sqlite_use(s, ST_DEAD_DELETE);
    if (!st)
        return false;
    sqlite3_bind_int64(st, 1, r->seq);
    if (!lp_sqlite_run(s, st))
        return false;
    lp_sqlite_count(s, r->queue, 0, -1);
    return true;
}

static int64_t revive(session *s, lp_job *j, const key *k, const row *dead)
{
    int64_t at = lp_sqlite_time(s, j->due);
    sqlite3_stmt *st = lp_sqlite_use(s, ST_DEAD_REVIVE);
    if (!st)
        return lp_sqlite_error(s);
    sqlite3_bind_int64(st, 1, dead->seq);
    sqlite3_bind_int64(st, 2, s->meta.seq + 1);
    sqlite3_bind_int64(st, 3, at);
    if (!lp_sqlite_run(s, st) || !delete_dead(s, dead) || !lp_sqlite_supersede(s, k))
        return lp_sqlite_error(s);
    lp_sqlite_count(s, dead->queue, 1, 0);
    note(s, at);
    return ++s->meta.seq;
}

int64_t lp_sqlite_requeue(session *s, lp_job *j)
{
    key k = lp_sqlite_key(j->id, j->id_len);
    row dead, newest;
    int code = find_dead(s, j, &k, &dead);
    if (code == 0)
        return lp_fail(LAPSE_EUNKNOWN, "there is no dead letter %s",
                       lp_text_quote(j->id, j->id_len));
    if (code < 0)
        return code;
    bool found = lp_sqlite_find(s, &k, &newest);
    if (s->failed)
        return lp_sqlite_error(s);
    if (found)
        return exists(j, waits(s, &newest, j) ? "pending" : "running");
    /* First the letter leaves: one more of them may drop the oldest, which it may be. */
    row oldest;
    bool makes_room = is_full(s);
    code = makes_room ? find_oldest(s, &oldest) : LAPSE_OK;
    if (code < 0)
        return code;
    int64_t generation = revive(s, j, &k, &dead);
    if (generation > 0 && makes_room)
        code = kill_oldest(s, j, &oldest);
    return code < 0 ? code : generation;
}

int64_t lp_sqlite_purge(session *s, lp_job *j)
{
    enum { MOST = 1000 }; /* at once; the driver asks again */
    key k = {.len = 0};
    if (j->id)
        k = lp_sqlite_key(j->id, j->id_len);
    int64_t purged = 0;
    for (; purged < MOST; purged++) {
        row dead;
        int code = find_dead(s, j, &k, &dead);
        if (code < 0)
            return code;
        if (code == 0)
            break;
        if (!delete_dead(s, &dead))
            return lp_sqlite_error(s);
    }
    return purged;
}
