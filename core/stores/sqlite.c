/* sqlite.c - orders in an SQLite database: the store's table, opening, one turn.
 *
 * A turn that only looks is a read transaction. Any other is one BEGIN IMMEDIATE (a
 * transaction that has read cannot become a writer when another wrote meanwhile) behind the
 * gate: every job, then the claims, then the counts. What goes wrong inside a job by no fault
 * of the whole, a damaged page or a trigger of somebody's, is met by doing the turn again with
 * a savepoint around each job, so that only that job fails. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "stores/sqlite.h"

enum { SYNC_UNKNOWN, SYNC_NORMAL, SYNC_FULL };

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

static bool is_look(const lp_job *j)
{
    return j->op == LP_GET || j->op == LP_HOLDS || j->op == LP_LIST || j->op == LP_COUNT ||
           j->op == LP_QUEUES;
}

/* Whether its answer is a promise that a power failure must not break. */
static bool is_promise(const lp_job *j)
{
    return j->op == LP_SCHEDULE || j->op == LP_CANCEL || j->op == LP_RESCHEDULE ||
           j->op == LP_REQUEUE || j->op == LP_PURGE;
}

static bool is_settlement(const lp_job *j)
{
    return j->op == LP_END || j->op == LP_AGAIN || j->op == LP_DIE || j->op == LP_RENEW;
}

static bool walks(const lp_job *j)
{
    return j->op == LP_LIST || j->op == LP_QUEUES;
}

/* A job as it was before it was answered, for another try. */
static void undo_answer(lp_job *j)
{
    if (walks(j)) {
        *j->cursor = (uint64_t)j->row;
        for (int64_t i = 0; i < j->answer; i++)
            lapse_info_free(&j->infos[i]);
    } else if (j->infos && (j->died || (j->op == LP_GET && j->answer == LAPSE_OK))) {
        lapse_info_free(j->infos);
        *j->infos = (lapse_info){0};
    }
    free(j->detail);
    free(j->of_queue);
    j->detail = j->of_queue = NULL;
    j->answer = 0;
    j->died = j->replaced = false;
}

static void answer_job(session *s, lp_job *j)
{
    j->detail = j->of_queue = NULL;
    j->died = j->replaced = false;
    if (walks(j))
        j->row = (int64_t)*j->cursor;
    j->answer = answer(s, j);
    if (j->answer < 0 && !is_settlement(j))
        j->detail = strdup(lapse_error_detail());
}

/* -- Answering a turn -- */

/* Whether the whole transaction is lost, not only what one job did. */
static bool is_lost(session *s)
{
    int rc = s->failed & 0xff;
    return rc == SQLITE_FULL || rc == SQLITE_IOERR || rc == SQLITE_BUSY || rc == SQLITE_READONLY ||
           sqlite3_get_autocommit(s->db);
}

/* One job behind a savepoint; false when the turn cannot go on. */
static bool answer_carefully(session *s, lp_job *j)
{
    if (!lp_sqlite_flush(s) || !lp_sqlite_do(s, ST_JOB_BEGIN))
        return false;
    uint64_t dropped = s->dead_dropped;
    int64_t first = s->first;
    answer_job(s, j);
    if (s->failed == 0 && lp_sqlite_flush(s))
        return lp_sqlite_do(s, ST_JOB_END);
    if (is_lost(s))
        return false;
    int code = lp_sqlite_error(s);
    undo_answer(j);
    s->failed = 0;
    s->dead_dropped = dropped;
    s->first = first;
    j->answer = code;
    j->detail = strdup(lapse_error_detail());
    return lp_sqlite_do(s, ST_JOB_UNDO) && lp_sqlite_do(s, ST_JOB_END) && lp_sqlite_reload(s);
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
        undo_answer(t->jobs[i]);
    while (t->loans) {
        lp_loan *l = t->loans;
        t->loans = l->next;
        free(l);
    }
    s->dead_dropped = dead_dropped;
}

static void roll_back(session *s)
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
    d->sync = SYNC_UNKNOWN;
    if (!lp_sqlite_exec(&d->s, sync == SYNC_FULL ? "PRAGMA synchronous = FULL"
                                                 : "PRAGMA synchronous = NORMAL"))
        return false;
    d->sync = sync;
    return true;
}

static int commit(session *s)
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
    if (!lp_sqlite_begin_turn(s, t->now, t->wall) || !lp_sqlite_sweep(s, &t->loans) || !answer_all(s, t, how))
        return lp_sqlite_error(s);
    int code = lp_sqlite_claim(s, t);
    if (code < 0)
        return code;
    if (s->need_sync)
        return LAPSE_EUNSURE; /* Again, durably. */
    return lp_sqlite_flush(s) ? commit(s) : lp_sqlite_error(s);
}

static int begin_write(sqlite_store *d, int how)
{
    session *s = &d->s;
    s->failed = 0;
    s->writes = true;
    s->durable = (how & DURABLY) != 0;
    if (!set_sync(d, s->durable ? SYNC_FULL : SYNC_NORMAL) || !lp_sqlite_do(s, ST_BEGIN_WRITE))
        return lp_sqlite_error(s);
    return LAPSE_OK;
}

static int write_once(sqlite_store *d, lp_turn *t, int how)
{
    session *s = &d->s;
    uint64_t dead_dropped = s->dead_dropped;
    bool gate = lp_side_enter(d->beside, d->options.busy);
    int code = begin_write(d, how);
    if (code == LAPSE_OK)
        code = write_all(d, t, how);
    if (code < 0) {
        s->lost = is_lost(s);
        roll_back(s);
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
    bool again = code < 0 && s->failed && !s->lost && t->job_count > 0;
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
    if (code != LAPSE_OK) {
        roll_back(s);
        undo_turn(s, t, dead_dropped);
    }
    return code;
}

/* -- The store -- */

static int check_place(sqlite_store *d)
{
    int moved = 0;
    sqlite3_file_control(d->s.db, "main", SQLITE_FCNTL_HAS_MOVED, &moved);
    if (!moved)
        return LAPSE_OK;
    return lp_fail(LAPSE_EDATA,
                   "the database %s was moved or deleted while it was open: put it back, or close "
                   "and open again",
                   lp_text_quote(d->options.path, strnlen(d->options.path, 200)));
}

static int open_session(sqlite_store *d);

static int ensure_open(sqlite_store *d)
{
    if (d->reopen) {
        lp_sqlite_close_session(&d->s);
        d->reopen = false;
        int code = open_session(d);
        d->reopen = code < 0;
        if (code < 0)
            return code;
    }
    return check_place(d);
}

static int take_turn(sqlite_store *d, lp_turn *t)
{
    bool writes = false, promises = false;
    t->loans = NULL;
    for (size_t i = 0; i < t->job_count; i++) {
        writes = writes || !is_look(t->jobs[i]);
        promises = promises || is_promise(t->jobs[i]);
    }
    int code = ensure_open(d);
    if (code < 0)
        return code;
    lp_side_awake(d->beside, d->database);
    if (!writes) {
        code = read_turn(d, t);
        if (code <= 0)
            return code;
    }
    return write_turn(d, t, promises ? DURABLY : 0);
}

static int turn(lp_durable *durable, lp_turn *t)
{
    sqlite_store *d = (sqlite_store *)durable;
    lp_guard_begin(&d->guard);
    int code = take_turn(d, t);
    lp_guard_end(&d->guard);
    return code;
}

static int note_log(void *store, sqlite3 *db, const char *name, int pages)
{
    sqlite_store *d = store;
    (void)db, (void)name;
    lp_checkpointer_note(d->checkpointer, (int64_t)pages * d->page_size);
    return SQLITE_OK;
}

static int read_page_size(sqlite3 *db)
{
    sqlite3_stmt *st;
    int size = 4096;
    if (sqlite3_prepare_v2(db, "PRAGMA page_size", -1, &st, NULL) == SQLITE_OK &&
        sqlite3_step(st) == SQLITE_ROW)
        size = sqlite3_column_int(st, 0);
    sqlite3_finalize(st);
    return size;
}

/* Make the tables if need be, and settle for how long ended orders are remembered. */
static int set_up_tables(sqlite_store *d)
{
    session *s = &d->s;
    int code = begin_write(d, DURABLY);
    if (code == LAPSE_OK)
        code = lp_sqlite_schema(s);
    if (code == LAPSE_OK && !lp_sqlite_begin_turn(s, s->config.now, s->config.wall))
        code = lp_sqlite_error(s);
    if (code == LAPSE_OK) {
        int64_t keep = s->config.keep / 1000000 + (s->config.keep % 1000000 > 0);
        s->changed = true;
        if (d->options.keep_given)
            s->meta.keep = keep;
        code = lp_sqlite_flush(s) ? commit(s) : lp_sqlite_error(s);
    }
    if (code < 0)
        roll_back(s);
    return code;
}

/* What lies beside the database; once. */
static int open_beside(sqlite_store *d)
{
    d->database = strdup(sqlite3_db_filename(d->s.db, "main"));
    if (!d->database)
        return lp_fail_memory();
    d->beside = lp_side_open(d->database, d->s.boot, true);
    if (!d->beside)
        return lp_fail_memory();
    return lp_checkpointer_open(d->database, d->s.boot, &d->checkpointer);
}

static int open_session(sqlite_store *d)
{
    d->sync = SYNC_UNKNOWN;
    int code = lp_sqlite_connect(d->options.path, &d->options.busy, &d->s.db);
    if (code == LAPSE_OK && !d->beside)
        code = open_beside(d);
    if (code < 0)
        return code;
    d->page_size = read_page_size(d->s.db);
    sqlite3_wal_hook(d->s.db, note_log, d);
    bool gate = lp_side_enter(d->beside, d->options.busy);
    code = set_up_tables(d);
    if (gate)
        lp_side_leave(d->beside);
    return code;
}

/* In a child, whose parent's it is. */
static void let_go(void *store)
{
    sqlite_store *d = store;
    lp_sqlite_abandon(d->s.db);
    d->s.db = NULL;
    if (d->beside)
        lp_side_abandon(d->beside);
}

static void free_store(sqlite_store *d)
{
    lp_checkpointer_close(d->checkpointer);
    lp_guard_remove(&d->guard);
    lp_sqlite_close_session(&d->s);
    lp_side_close(d->beside);
    free(d->database);
    free(d->options.path);
    free(d);
}

static void close_store(lp_durable *durable)
{
    if (lp_guard_enter() < 0)
        return; /* It was entered to open it: this cannot be. */
    free_store((sqlite_store *)durable);
    lp_guard_leave();
}

static int open_guarded(lp_store_config *config, lp_durable **out)
{
    sqlite_store *d = calloc(1, sizeof *d);
    if (!d)
        return lp_fail_memory();
    d->base.ops = &lp_sqlite_store;
    lp_guard_add(&d->guard, d, let_go);
    int code = lp_sqlite_read_url(config, &d->options);
    d->s.config = *config;
    lp_sqlite_read_boot(&d->s);
    if (code == LAPSE_OK)
        code = open_session(d);
    if (code < 0) {
        free_store(d);
        return code;
    }
    config->keep = d->s.meta.keep * 1000000;
    d->s.config.url = NULL; /* the caller's */
    *out = &d->base;
    return LAPSE_OK;
}

static int open_store(lp_store_config *config, lp_durable **out)
{
    int code = lp_guard_enter();
    if (code < 0)
        return code;
    code = open_guarded(config, out);
    lp_guard_leave();
    return code;
}

static int hint_fd(lp_durable *d)
{
    return lp_side_fd(((sqlite_store *)d)->beside);
}

static void hinted(lp_durable *d)
{
    lp_side_drain(((sqlite_store *)d)->beside);
}

static bool sleeps(lp_durable *durable, lapse_ns next, lapse_ns now)
{
    sqlite_store *d = (sqlite_store *)durable;
    if (next <= now)
        return lp_side_sleep(d->beside, INT64_MIN);
    return lp_side_sleep(d->beside, next == LAPSE_FOREVER ? INT64_MAX : lp_sqlite_time(&d->s, next));
}

static lapse_ns poll_every(const lp_durable *d)
{
    return ((const sqlite_store *)d)->options.poll;
}

const lp_durable_ops lp_sqlite_store = {
    .scheme = "sqlite",
    .abilities = LAPSE_CAN_DURABLE | LAPSE_CAN_SHARE | LAPSE_CAN_CANCEL | LAPSE_CAN_LIST |
                 LAPSE_CAN_TRANSACT,
    .open = open_store,
    .close = close_store,
    .turn = turn,
    .hint_fd = hint_fd,
    .hinted = hinted,
    .sleeps = sleeps,
    .poll = poll_every,
};
