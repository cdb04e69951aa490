/* peer_sqlite.c - what a shop would write by itself: a table like lapse's in an SQLite
 * database, one transaction for each call. The threads of a process share one connection,
 * which is quicker than one each; processes wait for each other by SQLite's busy handler. */
#include <pthread.h>
#include <sqlite3.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "../core/bench.h"
#include "store.h"

enum { BEGIN, COMMIT, PUT, CANCEL, FIND, CLAIM, END, STATEMENTS };

static const char *const sql[STATEMENTS] = {
    [BEGIN] = "BEGIN IMMEDIATE",
    [COMMIT] = "COMMIT",
    [PUT] = "INSERT INTO orders (id, at, queue, payload) VALUES (?1, ?2, 1, ?3)",
    [CANCEL] = "DELETE FROM orders WHERE id = ?1 AND attempt = 0",
    [FIND] = "SELECT seq, id FROM orders WHERE queue = 1 AND at <= ?1 ORDER BY at LIMIT 1",
    [CLAIM] = "UPDATE orders SET at = ?2, attempt = attempt + 1 WHERE seq = ?1",
    [END] = "DELETE FROM orders WHERE seq = ?1 AND attempt > 0",
};

static const char tables[] =
    "PRAGMA journal_mode = WAL;"
    "CREATE TABLE IF NOT EXISTS orders (seq INTEGER PRIMARY KEY, id BLOB NOT NULL UNIQUE,"
    " at INTEGER NOT NULL, queue INTEGER NOT NULL, attempt INTEGER NOT NULL DEFAULT 0,"
    " payload BLOB);"
    "CREATE INDEX IF NOT EXISTS orders_at ON orders (queue, at);";

static char path[600];
static store_use wanted;
static sqlite3 *db;
static sqlite3_stmt *statements[STATEMENTS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void check(int rc)
{
    if (rc != SQLITE_OK && rc != SQLITE_DONE && rc != SQLITE_ROW)
        bench_die("SQLite: %s", sqlite3_errmsg(db));
}

static int64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / BENCH_MS;
}

static void start(const char *folder, store_use use)
{
    snprintf(path, sizeof path, "%s/orders.db", folder);
    wanted = use;
}

static void stop(void) {}

static void join(void)
{
    check(sqlite3_open(path, &db));
    check(sqlite3_busy_timeout(db, 60000));
    check(sqlite3_exec(db, tables, NULL, NULL, NULL));
    const char *pragmas = wanted == STORE_FILL
                              ? "PRAGMA synchronous = OFF; PRAGMA wal_autocheckpoint = 50000"
                              : "PRAGMA synchronous = FULL";
    check(sqlite3_exec(db, pragmas, NULL, NULL, NULL));
    for (int i = 0; i < STATEMENTS; i++)
        check(sqlite3_prepare_v3(db, sql[i], -1, SQLITE_PREPARE_PERSISTENT, &statements[i], NULL));
}

static void leave(void)
{
    for (int i = 0; i < STATEMENTS; i++)
        sqlite3_finalize(statements[i]);
    check(sqlite3_close(db));
}

static void *connect_(void)
{
    return db;
}

static void disconnect(void *link)
{
    (void)link;
}

static void run(int which)
{
    check(sqlite3_step(statements[which]));
    check(sqlite3_reset(statements[which]));
}

static void begin(void)
{
    pthread_mutex_lock(&lock);
    run(BEGIN);
}

static void commit(void)
{
    run(COMMIT);
    pthread_mutex_unlock(&lock);
}

static void bind_id(int which, const char *id)
{
    sqlite3_bind_blob(statements[which], 1, id, (int)strlen(id), SQLITE_STATIC);
}

static void put(void *link, store_order *orders, size_t count)
{
    (void)link;
    begin();
    for (size_t i = 0; i < count; i++) {
        bind_id(PUT, orders[i].id);
        sqlite3_bind_int64(statements[PUT], 2, now_ms() + orders[i].delay / BENCH_MS);
        sqlite3_bind_blob(statements[PUT], 3, orders[i].payload, (int)orders[i].payload_len,
                          SQLITE_STATIC);
        run(PUT);
    }
    commit();
}

static bool cancel(void *link, const store_order *order)
{
    (void)link;
    begin();
    bind_id(CANCEL, order->id);
    run(CANCEL);
    bool found = sqlite3_changes(db) == 1;
    commit();
    return found;
}

/* The number of the row, or 0. */
static int64_t find_due(char id[40])
{
    int64_t seq = 0;
    sqlite3_bind_int64(statements[FIND], 1, now_ms());
    int rc = sqlite3_step(statements[FIND]);
    check(rc);
    if (rc == SQLITE_ROW) {
        seq = sqlite3_column_int64(statements[FIND], 0);
        const void *bytes = sqlite3_column_blob(statements[FIND], 1);
        snprintf(id, 40, "%.*s", sqlite3_column_bytes(statements[FIND], 1), (const char *)bytes);
    }
    sqlite3_reset(statements[FIND]);
    return seq;
}

static bool work_one(void *link, char id[40])
{
    (void)link;
    begin();
    int64_t seq = find_due(id);
    if (seq) {
        sqlite3_bind_int64(statements[CLAIM], 1, seq);
        sqlite3_bind_int64(statements[CLAIM], 2, now_ms() + 30000);
        run(CLAIM);
    }
    commit();
    if (!seq)
        return false;
    begin();
    sqlite3_bind_int64(statements[END], 1, seq);
    run(END);
    commit();
    return true;
}

const store_peer store_peers[] = {
    {.name = "sqlite",
     .kind = "sqlite",
     .groups = "callers,many,cancel,work,processes",
     .start = start,
     .stop = stop,
     .join = join,
     .leave = leave,
     .connect = connect_,
     .disconnect = disconnect,
     .put = put,
     .cancel = cancel,
     .work_one = work_one},
    {0},
};

const char *store_version(void)
{
    static char text[32];
    snprintf(text, sizeof text, "SQLite %s", sqlite3_libversion());
    return text;
}
