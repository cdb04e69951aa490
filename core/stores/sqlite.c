/* sqlite.c - orders in an SQLite database: the store's table, opening, closing.
 *
 * sqlite.h says how orders are kept, sqlite_turn.c what a turn is. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "stores/sqlite.h"

static int is_elsewhere(const sqlite_store *d)
{
    return lp_fail(LAPSE_EDATA,
                   "the database %s was moved or deleted while it was open: put it back, or close "
                   "and open again",
                   lp_text_quote(d->options.path, strnlen(d->options.path, 200)));
}

static int check_place(sqlite_store *d)
{
    int moved = 0;
    sqlite3_file_control(d->s.db, "main", SQLITE_FCNTL_HAS_MOVED, &moved);
    if (!moved)
        return LAPSE_OK;
    return is_elsewhere(d);
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
    t->loans = NULL;
    int code = ensure_open(d);
    if (code < 0)
        return code;
    lp_side_awake(d->beside, d->database);
    return lp_sqlite_turn(d, t);
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
    int code = lp_sqlite_begin_write(d, true);
    if (code == LAPSE_OK)
        code = lp_sqlite_schema(s);
    if (code == LAPSE_OK && !lp_sqlite_begin_turn(s, s->config.now, s->config.wall))
        code = lp_sqlite_error(s);
    if (code == LAPSE_OK) {
        int64_t keep = s->config.keep / 1000000 + (s->config.keep % 1000000 > 0);
        s->changed = true;
        if (d->options.keep_given)
            s->meta.keep = keep;
        code = lp_sqlite_flush(s) ? lp_sqlite_commit(s) : lp_sqlite_error(s);
    }
    if (code < 0)
        lp_sqlite_roll_back(s);
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

/* Whether what was opened anew is the file that was open before. */
static int check_file(sqlite_store *d, bool first)
{
    struct stat st;
    if (stat(d->database, &st) != 0)
        return lp_fail_system("stat", errno);
    if (first) {
        d->device = st.st_dev;
        d->inode = st.st_ino;
    }
    return st.st_dev == d->device && st.st_ino == d->inode ? LAPSE_OK : is_elsewhere(d);
}

/* By the path that the first time has found: the current folder may be another now. */
static int connect_file(sqlite_store *d)
{
    bool first = !d->database;
    int code =
        lp_sqlite_connect(first ? d->options.path : d->database, first, &d->options.busy, &d->s.db);
    if (code == LAPSE_OK && first)
        code = open_beside(d);
    return code < 0 ? code : check_file(d, first);
}

static int open_session(sqlite_store *d)
{
    d->sync = LP_SYNC_UNKNOWN;
    int code = connect_file(d);
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
    /* From now on a turn that waits must not outlast the leases that it would renew. */
    if (d->options.busy > config->lease / 3)
        d->options.busy = config->lease / 3;
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
    return lp_side_sleep(d->beside,
                         next == LAPSE_FOREVER ? INT64_MAX : lp_sqlite_time(&d->s, next));
}

static lapse_ns poll_every(const lp_durable *d)
{
    return ((const sqlite_store *)d)->options.poll;
}

const lp_durable_ops lp_sqlite_store = {
    .scheme = "sqlite",
    .abilities = LAPSE_CAN_DURABLE | LAPSE_CAN_SHARE | LAPSE_CAN_CANCEL | LAPSE_CAN_LIST |
                 LAPSE_CAN_LIMIT | LAPSE_CAN_TRANSACT,
    .open = open_store,
    .close = close_store,
    .turn = turn,
    .hint_fd = hint_fd,
    .hinted = hinted,
    .sleeps = sleeps,
    .poll = poll_every,
};
