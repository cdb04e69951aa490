/* sqlite_session.c - a connection, its prepared statements, and what is known of the tables.
 *
 * Counts are kept in memory while a transaction lasts and written once at its end. What
 * another connection has committed shows in SQLite's data_version, which is looked at in every
 * transaction. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "stores/sqlite.h"

enum { QUEUES_MAX = 65535 };

static const char *const sql[ST_COUNT] = {
#define LP_SQLITE_TEXT(name, text) text,
    LP_SQLITE_STATEMENTS(LP_SQLITE_TEXT)
#undef LP_SQLITE_TEXT
};

/* -- Statements -- */

sqlite3_stmt *lp_sqlite_use(session *s, int which)
{
    sqlite3_stmt *st = s->statement[which];
    if (st) {
        sqlite3_reset(st);
        return st;
    }
    int rc = sqlite3_prepare_v3(s->db, sql[which], -1, SQLITE_PREPARE_PERSISTENT, &st, NULL);
    if (rc != SQLITE_OK) {
        s->failed = rc;
        return NULL;
    }
    s->statement[which] = st;
    return st;
}

bool lp_sqlite_row(session *s, sqlite3_stmt *st)
{
    if (!st)
        return false;
    int rc = sqlite3_step(st);
    if (rc == SQLITE_ROW)
        return true;
    if (rc != SQLITE_DONE)
        s->failed = rc;
    sqlite3_reset(st);
    return false;
}

bool lp_sqlite_run(session *s, sqlite3_stmt *st)
{
    if (!st)
        return false;
    int rc = sqlite3_step(st);
    if (rc != SQLITE_DONE && rc != SQLITE_ROW)
        s->failed = rc;
    sqlite3_reset(st);
    return rc == SQLITE_DONE || rc == SQLITE_ROW;
}

bool lp_sqlite_do(session *s, int which)
{
    return lp_sqlite_run(s, lp_sqlite_use(s, which));
}

bool lp_sqlite_exec(session *s, const char *text)
{
    int rc = sqlite3_exec(s->db, text, NULL, NULL, NULL);
    if (rc != SQLITE_OK)
        s->failed = rc;
    return rc == SQLITE_OK;
}

/* -- Errors -- */

static int fail_io(sqlite3 *db, int rc, const char *doing, const char *path)
{
    char what[400];
    int number = sqlite3_system_errno(db);
    sqlite3_snprintf(sizeof what, what, "%s the database %s (%s)", doing, path,
                     sqlite3_errstr(rc & 0xff));
    if (number)
        return lp_fail_system(what, number);
    return lp_fail(LAPSE_ESYSTEM, "%s failed: SQLite's error %d", what, rc);
}

int lp_sqlite_fail(sqlite3 *db, int rc, const char *doing)
{
    const char *path = db ? sqlite3_db_filename(db, "main") : "";
    const char *message = db ? sqlite3_errmsg(db) : sqlite3_errstr(rc);
    path = path ? lp_text_quote(path, strnlen(path, 120)) : "";
    switch (rc & 0xff) {
    case SQLITE_NOMEM:
        return lp_fail_memory();
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
        return lp_fail(LAPSE_ETIMEOUT,
                       "%s the database %s: another connection holds its lock for too long; end "
                       "its transaction, or raise the URL option busy",
                       doing, path);
    case SQLITE_FULL:
        return lp_fail(LAPSE_ESYSTEM,
                       "%s the database %s failed: its disk is full; free some space", doing, path);
    case SQLITE_IOERR:
    case SQLITE_CANTOPEN:
        return fail_io(db, rc, doing, path);
    case SQLITE_READONLY:
    case SQLITE_PERM:
    case SQLITE_AUTH:
        return lp_fail(LAPSE_ESYSTEM,
                       "%s the database %s failed: it cannot be written (%s); see to the "
                       "permissions of the file and its folder",
                       doing, path, message);
    case SQLITE_NOTADB:
        return lp_fail(LAPSE_EDATA, "%s is not an SQLite database: use another path", path);
    case SQLITE_TOOBIG:
        return lp_fail(LAPSE_EINVAL, "%s the database %s failed: %s; make the payload smaller",
                       doing, path, message);
    default:
        return lp_fail(LAPSE_EDATA, "%s the database %s failed: %s (SQLite's error %d)", doing,
                       path, message, rc);
    }
}

int lp_sqlite_error(session *s)
{
    return lp_sqlite_fail(s->db, s->failed, s->writes ? "writing to" : "reading");
}

/* -- What is known -- */

static bool read_meta(session *s)
{
    sqlite3_stmt *st = lp_sqlite_use(s, ST_META_READ);
    if (!lp_sqlite_row(s, st)) {
        if (st && !s->failed)
            s->failed = SQLITE_CORRUPT;
        return false;
    }
    meta *m = &s->meta;
    const char *boot = (const char *)sqlite3_column_text(st, 1);
    memset(m->boot, 0, sizeof m->boot);
    strncpy(m->boot, boot ? boot : "", LP_BOOT_LEN);
    m->ahead = sqlite3_column_int64(st, 2);
    m->clock = sqlite3_column_int64(st, 3);
    m->seq = sqlite3_column_int64(st, 4);
    m->fence = sqlite3_column_int64(st, 5);
    m->fence_top = sqlite3_column_int64(st, 6);
    m->keep = sqlite3_column_int64(st, 7);
    m->ended = sqlite3_column_int64(st, 8);
    m->wall = sqlite3_column_int64(st, 9);
    sqlite3_reset(st);
    return true;
}

static bool write_meta(session *s)
{
    sqlite3_stmt *st = lp_sqlite_use(s, ST_META_WRITE);
    if (!st)
        return false;
    const meta *m = &s->meta;
    sqlite3_bind_text(st, 1, m->boot, -1, SQLITE_STATIC);
    sqlite3_bind_int64(st, 2, m->ahead);
    sqlite3_bind_int64(st, 3, m->clock);
    sqlite3_bind_int64(st, 4, m->seq);
    sqlite3_bind_int64(st, 5, m->fence);
    sqlite3_bind_int64(st, 6, m->fence_top);
    sqlite3_bind_int64(st, 7, m->keep);
    sqlite3_bind_int64(st, 8, m->ended);
    sqlite3_bind_int64(st, 9, m->wall);
    return lp_sqlite_run(s, st);
}

static int by_name(const void *a, const void *b)
{
    return strcmp((*(queue *const *)a)->name, (*(queue *const *)b)->name);
}

static bool grow_queues(session *s)
{
    if (s->queue_count < s->queue_room)
        return true;
    size_t room = s->queue_room ? 2 * s->queue_room : 16;
    queue **more = realloc(s->queues, room * sizeof *more);
    if (!more)
        return false;
    s->queues = more;
    more = realloc(s->by_name, room * sizeof *more);
    if (!more)
        return false;
    s->by_name = more;
    s->queue_room = room;
    return true;
}

/* One more at the end; not among `by_name` yet. */
static queue *append_queue(session *s, const void *name, size_t len)
{
    queue *q = grow_queues(s) ? calloc(1, sizeof *q) : NULL;
    if (!q || !(q->name = malloc(len + 1))) {
        free(q);
        s->failed = SQLITE_NOMEM;
        return NULL;
    }
    if (len)
        memcpy(q->name, name, len);
    q->name[len] = '\0';
    q->id = (int)s->queue_count;
    s->queues[s->queue_count++] = q;
    return q;
}

/* Queue numbers count from 0, without gaps, and never change. */
static bool read_queues(session *s)
{
    size_t n = 0, had = s->queue_count;
    s->orders = s->dead = 0;
    sqlite3_stmt *st = lp_sqlite_use(s, ST_QUEUES_READ);
    while (lp_sqlite_row(s, st)) {
        const void *name = sqlite3_column_blob(st, 1);
        if (sqlite3_column_int64(st, 0) != (sqlite3_int64)n)
            s->failed = SQLITE_CORRUPT;
        else if (n == s->queue_count)
            append_queue(s, name, (size_t)sqlite3_column_bytes(st, 1));
        if (s->failed) {
            sqlite3_reset(st);
            break;
        }
        queue *q = s->queues[n++];
        q->orders = sqlite3_column_int64(st, 2);
        q->dead = sqlite3_column_int64(st, 3);
        q->changed = false;
        s->orders += q->orders;
        s->dead += q->dead;
    }
    while (s->queue_count > n) { /* Made by a transaction that was rolled back. */
        queue *q = s->queues[--s->queue_count];
        free(q->name);
        free(q);
    }
    if (n != had || s->failed) {
        memcpy(s->by_name, s->queues, s->queue_count * sizeof(queue *));
        qsort(s->by_name, s->queue_count, sizeof(queue *), by_name);
    }
    return !s->failed;
}

void lp_sqlite_forget(session *s)
{
    s->known = false;
}

static bool is_up_to_date(session *s)
{
    sqlite3_stmt *st = lp_sqlite_use(s, ST_DATA_VERSION);
    if (!lp_sqlite_row(s, st))
        return false;
    int64_t version = sqlite3_column_int64(st, 0);
    sqlite3_reset(st);
    bool same = s->known && version == s->data_version;
    s->data_version = version;
    return same;
}

bool lp_sqlite_reload(session *s)
{
    s->known = read_meta(s) && read_queues(s);
    return s->known;
}

bool lp_sqlite_begin_turn(session *s, lapse_ns now, lapse_ns wall)
{
    s->first = INT64_MAX;
    s->changed = false;
    s->need_sync = false;
    if (!is_up_to_date(s)) {
        if (s->failed || !lp_sqlite_reload(s))
            return false;
    }
    return lp_sqlite_anchor(s, now, wall);
}

bool lp_sqlite_flush(session *s)
{
    if (!s->changed)
        return true;
    for (size_t i = 0; i < s->queue_count; i++) {
        queue *q = s->queues[i];
        if (!q->changed)
            continue;
        sqlite3_stmt *st = lp_sqlite_use(s, ST_QUEUE_WRITE);
        if (!st)
            return false;
        sqlite3_bind_int(st, 1, q->id);
        sqlite3_bind_int64(st, 2, q->orders);
        sqlite3_bind_int64(st, 3, q->dead);
        if (!lp_sqlite_run(s, st))
            return false;
        q->changed = false;
    }
    if (s->now > s->meta.clock) {
        s->meta.clock = s->now;
        s->meta.wall = s->wall;
    }
    return write_meta(s);
}

/* -- Queues -- */

static int find_name(const session *s, const char *name, size_t *place)
{
    size_t lo = 0, hi = s->queue_count;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        int order = strcmp(s->by_name[mid]->name, name);
        if (order == 0)
            return s->by_name[mid]->id;
        if (order < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    *place = lo;
    return -1;
}

int lp_sqlite_queue(const session *s, const char *name)
{
    size_t place;
    return find_name(s, name, &place);
}

char *lp_sqlite_queue_name(const session *s, int q)
{
    return q >= 0 && (size_t)q < s->queue_count ? strdup(s->queues[q]->name) : NULL;
}

int lp_sqlite_make_queue(session *s, const char *name)
{
    size_t place, len = strlen(name);
    int id = find_name(s, name, &place);
    if (id >= 0)
        return id;
    if (s->queue_count >= QUEUES_MAX)
        return lp_fail(LAPSE_EINVAL, "this store has %d queues already: use fewer names",
                       QUEUES_MAX);
    sqlite3_stmt *st = lp_sqlite_use(s, ST_QUEUE_ADD);
    if (!st)
        return LAPSE_ENOMEM;
    sqlite3_bind_int64(st, 1, (sqlite3_int64)s->queue_count);
    sqlite3_bind_blob(st, 2, name, (int)len, SQLITE_STATIC);
    if (!lp_sqlite_run(s, st))
        return LAPSE_EDATA;
    queue *q = append_queue(s, name, len);
    if (!q)
        return LAPSE_ENOMEM;
    memmove(s->by_name + place + 1, s->by_name + place,
            (s->queue_count - 1 - place) * sizeof(queue *));
    s->by_name[place] = q;
    s->changed = true;
    return q->id;
}

void lp_sqlite_count(session *s, int q, int orders, int dead)
{
    s->changed = true;
    s->orders += orders;
    s->dead += dead;
    if (q < 0 || (size_t)q >= s->queue_count)
        return; /* A damaged row. */
    s->queues[q]->orders += orders;
    s->queues[q]->dead += dead;
    s->queues[q]->changed = true;
}

void lp_sqlite_reset(session *s)
{
    for (int i = 0; i < ST_COUNT; i++)
        if (s->statement[i])
            sqlite3_reset(s->statement[i]);
}

void lp_sqlite_free_session(session *s)
{
    for (int i = 0; i < ST_COUNT; i++) {
        sqlite3_finalize(s->statement[i]);
        s->statement[i] = NULL;
    }
    for (size_t i = 0; i < s->queue_count; i++) {
        free(s->queues[i]->name);
        free(s->queues[i]);
    }
    free(s->queues);
    free(s->by_name);
    s->queues = s->by_name = NULL;
    s->queue_count = s->queue_room = 0;
    s->known = false;
}

void lp_sqlite_close_session(session *s)
{
    lp_sqlite_free_session(s);
    sqlite3_close(s->db);
    s->db = NULL;
}
