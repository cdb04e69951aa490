/* sqlite_turn.c - one turn: every job, then the claims, then the counts.
 *
 * A turn that only looks is a read transaction. Any other is one BEGIN IMMEDIATE (a
 * transaction that has read cannot become a writer when another wrote meanwhile) behind the
 * gate. What goes wrong inside a job by no fault of the whole, a damaged page or a trigger of
 * somebody's, is met by doing the turn again with a savepoint around each job, so that only
 * that job fails. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "stores/sqlite.h"

/* How a turn is done. */
enum {
    CAREFULLY = 1, /* a savepoint around each job */
    DURABLY = 2,   /* safe on the disk when it returns */
};

/* -- Jobs -- */

static int64_t answer(session *s, lp_job *j)
{
    switch (j->op) {
    case LP_SCHEDULE:
        return lp_sqlite_schedule(s, j);
    case LP_CANCEL:
        return lp_sqlite_cancel(s, j);
    case LP_RESCHEDULE:
        return lp_sqlite_reschedule(s, j);
    case LP_GET:
        return lp_sqlite_get(s, j);
    case LP_REQUEUE:
        return lp_sqlite_requeue(s, j);
    case LP_PURGE:
        return lp_sqlite_purge(s, j);
    case LP_END:
    case LP_AGAIN:
    case LP_DIE:
        return lp_sqlite_settle(s, j);
    case LP_RENEW:
        return lp_sqlite_renew(s, j);
    case LP_HOLDS:
        return lp_sqlite_holds(s, j);
    case LP_LIST:
        return lp_sqlite_list(s, j);
    case LP_COUNT:
        return lp_sqlite_counts(s, j);
    case LP_QUEUES:
        return lp_sqlite_queues(s, j);
    default:
        return lp_fail(LAPSE_EUNSUPPORTED, "the sqlite store cannot do that");
    }
}

static void answer_job(session *s, lp_job *j)
{
    j->answer = answer(s, j);
    if (j->answer < 0)
        lp_job_fail(j, j->answer);
}

/* -- Answering a turn -- */

bool lp_sqlite_is_lost(session *s)
{
    int rc = s->failed & 0xff;
    return rc == SQLITE_FULL || rc == SQLITE_IOERR || rc == SQLITE_BUSY || rc == SQLITE_READONLY ||
           sqlite3_get_autocommit(s->db);
}

bool lp_sqlite_mark(session *s)
{
    return lp_sqlite_flush(s) && lp_sqlite_do(s, ST_JOB_BEGIN);
}

bool lp_sqlite_keep(session *s)
{
    return lp_sqlite_do(s, ST_JOB_END);
}

bool lp_sqlite_undo(session *s)
{
    s->failed = 0;
    return lp_sqlite_do(s, ST_JOB_UNDO) && lp_sqlite_do(s, ST_JOB_END) && lp_sqlite_reload(s);
}

/* One job behind a savepoint; false when the turn cannot go on. */
static bool answer_carefully(session *s, lp_job *j)
{
    if (!lp_sqlite_mark(s))
        return false;
    uint64_t dropped = s->dead_dropped;
    int64_t first = s->first;
    answer_job(s, j);
    if (s->failed == 0 && lp_sqlite_flush(s))
        return lp_sqlite_keep(s);
    if (lp_sqlite_is_lost(s))
        return false;
    int code = lp_sqlite_error(s);
    lp_job_undo(j);
    s->dead_dropped = dropped;
    s->first = first;
    lp_job_fail(j, code);
    return lp_sqlite_undo(s);
}

static bool answer_all(session *s, lp_turn *t, int how)
{
    for (size_t i = 0; i < t->job_count; i++) {
        if (how & CAREFULLY) {
            if (!answer_carefully(s, t->jobs[i]))
                return false;
            continue;
        }
        answer_job(s, t->jobs[i]);
        if (s->failed)
            return false;
    }
    return true;
}

static void undo_turn(session *s, lp_turn *t, uint64_t dead_dropped)
{
    for (size_t i = 0; i < t->job_count; i++)
        lp_job_undo(t->jobs[i]);
    while (t->loans) {
        lp_loan *l = t->loans;
        t->loans = l->next;
        free(l);
    }
    s->dead_dropped = dead_dropped;
}

void lp_sqlite_roll_back(session *s)
{
    lp_sqlite_reset(s);
    if (!sqlite3_get_autocommit(s->db)) {
        int failed = s->failed;
        lp_sqlite_do(s, ST_ROLLBACK);
        s->failed = failed;
    }
    lp_sqlite_forget(s);
}

/* -- Transactions -- */

static bool set_sync(sqlite_store *d, int sync)
{
    if (d->sync == sync)
        return true;
    d->sync = LP_SYNC_UNKNOWN;
    if (!lp_sqlite_exec(&d->s, sync == LP_SYNC_FULL ? "PRAGMA synchronous = FULL"
                                                    : "PRAGMA synchronous = NORMAL"))
        return false;
    d->sync = sync;
    return true;
}

int lp_sqlite_commit(session *s)
{
    if (lp_sqlite_do(s, ST_COMMIT))
        return LAPSE_OK;
    int code = lp_sqlite_error(s);
    if ((s->failed & 0xff) != SQLITE_IOERR)
        return code;
    lp_detail said;
    lp_detail_save(&said);
    return lp_fail(LAPSE_EUNSURE, "whether it was written is not known: %.400s", said.text);
}

/* All that one write transaction does; below 0 it was not committed. */
static int write_all(sqlite_store *d, lp_turn *t, int how)
{
    session *s = &d->s;
    if (!lp_sqlite_begin_turn(s, t->now, t->wall) || !lp_sqlite_sweep(s, &t->loans) ||
        !answer_all(s, t, how))
        return lp_sqlite_error(s);
    int code = lp_sqlite_claim(s, t);
    if (code < 0)
        return code;
    if (s->need_sync)
        return LAPSE_EUNSURE; /* Again, durably. */
    return lp_sqlite_flush(s) ? lp_sqlite_commit(s) : lp_sqlite_error(s);
}

int lp_sqlite_begin_write(sqlite_store *d, bool durable)
{
    session *s = &d->s;
    s->failed = 0;
    s->writes = true;
    s->durable = durable;
    s->careful = false;
    if (!set_sync(d, s->durable ? LP_SYNC_FULL : LP_SYNC_NORMAL) ||
        !lp_sqlite_do(s, ST_BEGIN_WRITE))
        return lp_sqlite_error(s);
    return LAPSE_OK;
}

static int write_once(sqlite_store *d, lp_turn *t, int how)
{
    session *s = &d->s;
    uint64_t dead_dropped = s->dead_dropped;
    bool gate = lp_side_enter(d->beside, d->options.busy);
    int code = lp_sqlite_begin_write(d, (how & DURABLY) != 0);
    s->careful = (how & CAREFULLY) != 0;
    if (code == LAPSE_OK)
        code = write_all(d, t, how);
    if (code < 0) {
        s->lost = lp_sqlite_is_lost(s);
        lp_sqlite_roll_back(s);
        undo_turn(s, t, dead_dropped);
    }
    if (gate)
        lp_side_leave(d->beside);
    return code;
}

static int write_turn(sqlite_store *d, lp_turn *t, int how)
{
    session *s = &d->s;
    int code = write_once(d, t, how);
    if (code < 0 && s->need_sync && !s->failed)
        code = write_once(d, t, how |= DURABLY);
    bool again = code < 0 && s->failed && !s->lost;
    if (again && !(how & CAREFULLY)) {
        code = write_once(d, t, how | CAREFULLY);
        if (code < 0 && s->need_sync && !s->failed)
            code = write_once(d, t, how | CAREFULLY | DURABLY);
    }
    if (code == LAPSE_OK && s->first != INT64_MAX)
        lp_side_tell(d->beside, s->first);
    /* Nobody knows what a failed write has left in the kernel: begin anew. */
    d->reopen = d->reopen || (code < 0 && (s->failed & 0xff) == SQLITE_IOERR);
    return code;
}

/* A turn of looks, and of wants that nothing is due for; 1 when it has to be a writer. */
static int read_turn(sqlite_store *d, lp_turn *t)
{
    session *s = &d->s;
    uint64_t dead_dropped = s->dead_dropped;
    s->failed = 0;
    s->writes = false;
    int code = LAPSE_OK;
    if (!lp_sqlite_do(s, ST_BEGIN_READ) || !lp_sqlite_begin_turn(s, t->now, t->wall) ||
        !answer_all(s, t, 0))
        code = lp_sqlite_error(s);
    if (code == LAPSE_OK)
        code = lp_sqlite_claim(s, t);
    if (code == LAPSE_OK && lp_sqlite_any_due(t))
        code = 1;
    lp_sqlite_reset(s);
    if (code == LAPSE_OK && !lp_sqlite_do(s, ST_COMMIT))
        code = lp_sqlite_error(s);
    if (code < 0 && s->failed && !lp_sqlite_is_lost(s))
        code = 1; /* Something is damaged: with care, only what asks for it fails. */
    if (code != LAPSE_OK) {
        lp_sqlite_roll_back(s);
        undo_turn(s, t, dead_dropped);
    }
    return code;
}

int lp_sqlite_turn(sqlite_store *d, lp_turn *t)
{
    lp_turn_begin(t);
    if (!lp_turn_changes(t)) {
        int code = read_turn(d, t);
        if (code <= 0)
            return code;
    }
    return write_turn(d, t, lp_turn_promises(t) ? DURABLY : 0);
}
