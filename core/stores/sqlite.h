/* sqlite.h - the SQLite store from inside: only for stores/sqlite*.c.
 *
 * An order is one row of lapse_order while it is pending or held, of lapse_dead when it is a
 * dead letter, and of lapse_ended while it is remembered. `at` is the one time that moves a
 * row of lapse_order: when it can be claimed, which for a held one is when its lease ends.
 * So a lease that ended needs nobody to notice it.
 *
 *     fence      null: pending. Else held until `at`, and pending from then on
 *     no_more    it was cancelled while held: when its lease ends it ends
 *
 * Times are milliseconds of the store's clock (sqlite_clock.c), rounded up. Ids and names are
 * bytes. A session is a connection with its prepared statements and what it knows of the
 * tables; the store has one, and lapse_sqlite_put makes one of the application's connection
 * for the length of a call. */
#ifndef LP_SQLITE_H
#define LP_SQLITE_H

#include <pthread.h>
#include <sqlite3.h>
#include <sys/stat.h>

#include "stores/durable.h"

enum {
    LP_SQLITE_VERSION = 1, /* of the tables */
    LP_BOOT_LEN = 36,      /* as the kernel names a boot */
};

/* -- Statements ------------------------------------------------------------------------ */

/* What is read of an order, wherever it is, in this order (enum below). */
#define LP_ORDER_COLUMNS                                                                           \
    "seq, id, queue, attempt, coalesce(due, at), coalesce(generation, seq), crc, payload, at, "    \
    "fence, no_more"
#define LP_ENDED_COLUMNS "seq, id, queue, attempt, due, generation, null, null, ended"
#define LP_DEAD_COLUMNS                                                                            \
    "seq, id, queue, attempt, due, generation, crc, payload, died, reason, error"

enum {
    COL_SEQ,
    COL_ID,
    COL_QUEUE,
    COL_ATTEMPT,
    COL_DUE,
    COL_GENERATION,
    COL_CRC,
    COL_PAYLOAD,
    COL_WHEN, /* `at`, or when it ended or died */
    COL_FENCE,
    COL_REASON = COL_FENCE,
    COL_NO_MORE,
    COL_ERROR = COL_NO_MORE,
};

/* clang-format off */
#define LP_SQLITE_STATEMENTS(X)                                                                    \
    X(BEGIN_READ, "BEGIN")                                                                         \
    X(BEGIN_WRITE, "BEGIN IMMEDIATE")                                                              \
    X(COMMIT, "COMMIT")                                                                            \
    X(ROLLBACK, "ROLLBACK")                                                                        \
    X(JOB_BEGIN, "SAVEPOINT lapse_job")                                                            \
    X(JOB_UNDO, "ROLLBACK TO lapse_job")                                                           \
    X(JOB_END, "RELEASE lapse_job")                                                                \
    X(DATA_VERSION, "PRAGMA data_version")                                                         \
    X(META_READ, "SELECT version, boot, ahead, clock, seq, fence, fence_top, keep, ended, wall"          \
                 " FROM lapse_meta WHERE one = 1")                                                 \
    X(META_WRITE, "UPDATE lapse_meta SET boot = ?1, ahead = ?2, clock = ?3, seq = ?4,"             \
                  " fence = ?5, fence_top = ?6, keep = ?7, ended = ?8, wall = ?9 WHERE one = 1")              \
    X(QUEUES_READ, "SELECT id, name, orders, dead FROM lapse_queue ORDER BY id")                   \
    X(QUEUE_ADD, "INSERT INTO lapse_queue (id, name, orders, dead) VALUES (?1, ?2, 0, 0)")         \
    X(QUEUE_WRITE, "UPDATE lapse_queue SET orders = ?2, dead = ?3 WHERE id = ?1")                  \
    X(ORDER_ADD, "INSERT INTO lapse_order (seq, id, at, queue, crc, payload)"                      \
                 " VALUES (?1, ?2, ?3, ?4, ?5, ?6) ON CONFLICT (id) DO NOTHING")                   \
    X(ORDER_BY_ID, "SELECT " LP_ORDER_COLUMNS " FROM lapse_order WHERE id = ?1")                   \
    X(ORDER_BY_SEQ, "SELECT " LP_ORDER_COLUMNS " FROM lapse_order WHERE seq = ?1")                 \
    X(ORDER_OLDEST, "SELECT " LP_ORDER_COLUMNS " FROM lapse_order"                                 \
                    " WHERE fence IS NULL OR at <= ?1 ORDER BY seq LIMIT 1")                       \
    X(ORDER_DELETE, "DELETE FROM lapse_order WHERE seq = ?1")                                      \
    X(ORDER_HOLD, "UPDATE lapse_order SET at = ?2, fence = ?3, attempt = ?4, due = ?5"             \
                  " WHERE seq = ?1")                                                               \
    X(ORDER_WAIT, "UPDATE lapse_order SET at = ?2, due = ?3, attempt = ?4, seq = ?5,"              \
                  " generation = ?6, fence = NULL WHERE seq = ?1")                                 \
    X(ORDER_RENEW, "UPDATE lapse_order SET at = ?2 WHERE seq = ?1")                                \
    X(ORDER_NO_MORE, "UPDATE lapse_order SET no_more = 1 WHERE seq = ?1")                          \
    X(ORDER_END, "INSERT OR REPLACE INTO lapse_ended"                                              \
                 " (id, generation, queue, attempt, due, ended)"                                   \
                 " SELECT id, coalesce(generation, seq), queue, attempt, coalesce(due, at), ?2"    \
                 " FROM lapse_order WHERE seq = ?1")                                               \
    X(ORDER_DIE, "INSERT INTO lapse_dead (id, generation, queue, attempt, due, died, reason,"      \
                 " error, named, crc, payload)"                                                    \
                 " SELECT id, coalesce(generation, seq), queue, ?2, coalesce(due, at), ?3, ?4,"    \
                 " ?5, 1, crc, payload FROM lapse_order WHERE seq = ?1")                           \
    X(QUEUE_HEAD, "SELECT at, seq FROM lapse_order INDEXED BY lapse_order_at"                      \
                  " WHERE queue = ?1 ORDER BY at, seq")                                            \
    X(QUEUE_TAIL, "SELECT at, seq FROM lapse_order INDEXED BY lapse_order_at"                      \
                  " WHERE queue = ?1 AND at <= ?2 ORDER BY at DESC, seq DESC LIMIT 1")             \
    X(QUEUE_OLDEST, "SELECT at FROM lapse_order INDEXED BY lapse_order_at WHERE queue = ?1"        \
                    " AND (fence IS NULL OR at <= ?2) ORDER BY at, seq LIMIT 1")                   \
    X(QUEUE_NONE, "SELECT " LP_ORDER_COLUMNS " FROM lapse_order INDEXED BY lapse_order_at" \
                  " WHERE queue >= ?1 LIMIT 1") \
    X(QUEUE_HELD, "SELECT count(*) FROM lapse_order INDEXED BY lapse_order_held"                   \
                  " WHERE fence IS NOT NULL AND queue = ?1 AND at > ?2")                           \
    X(QUEUE_OVER, "SELECT count(*) FROM lapse_order INDEXED BY lapse_order_no_more"                \
                  " WHERE no_more = 1 AND at <= ?2 AND queue = ?1")                                \
    X(OVER, "SELECT " LP_ORDER_COLUMNS " FROM lapse_order INDEXED BY lapse_order_no_more"          \
            " WHERE no_more = 1 AND at <= ?1 LIMIT 1")                                             \
    X(ENDED_BY_ID, "SELECT " LP_ENDED_COLUMNS " FROM lapse_ended WHERE id = ?1")                   \
    X(ENDED_DELETE, "DELETE FROM lapse_ended WHERE id = ?1")                                       \
    X(ENDED_OLDEST, "SELECT seq, ended FROM lapse_ended ORDER BY seq LIMIT 1")                     \
    X(ENDED_FORGET, "DELETE FROM lapse_ended WHERE seq = ?1")                                      \
    X(DEAD_NAMED, "SELECT " LP_DEAD_COLUMNS " FROM lapse_dead WHERE id = ?1 AND named = 1")        \
    X(DEAD_FIND, "SELECT " LP_DEAD_COLUMNS " FROM lapse_dead"                                      \
                 " WHERE id = ?1 AND (?2 = 0 OR generation = ?2) ORDER BY generation DESC LIMIT 1") \
    X(DEAD_BY_SEQ, "SELECT " LP_DEAD_COLUMNS " FROM lapse_dead WHERE seq = ?1")                    \
    X(DEAD_UNNAME, "UPDATE lapse_dead SET named = 0 WHERE id = ?1 AND named = 1")                  \
    X(DEAD_REVIVE, "INSERT INTO lapse_order (seq, id, at, queue, crc, payload)"                    \
                   " SELECT ?2, id, ?3, queue, crc, payload FROM lapse_dead WHERE seq = ?1")       \
    X(DEAD_DELETE, "DELETE FROM lapse_dead WHERE seq = ?1")                                        \
    X(DEAD_OLDEST, "SELECT " LP_DEAD_COLUMNS " FROM lapse_dead ORDER BY seq LIMIT 1")              \
    X(LIST_ORDERS, "SELECT " LP_ORDER_COLUMNS " FROM lapse_order WHERE seq >= ?1 ORDER BY seq")    \
    X(LIST_HELD, "SELECT " LP_ORDER_COLUMNS " FROM lapse_order INDEXED BY lapse_order_held"        \
                 " WHERE fence IS NOT NULL AND seq >= ?1 ORDER BY seq")                            \
    X(LIST_ENDED, "SELECT " LP_ENDED_COLUMNS " FROM lapse_ended WHERE seq >= ?1 ORDER BY seq")     \
    X(LIST_DEAD, "SELECT " LP_DEAD_COLUMNS " FROM lapse_dead WHERE seq >= ?1 ORDER BY seq")
/* clang-format on */

enum {
#define LP_SQLITE_NAME(name, sql) ST_##name,
    LP_SQLITE_STATEMENTS(LP_SQLITE_NAME)
#undef LP_SQLITE_NAME
        ST_COUNT
};

/* -- Session --------------------------------------------------------------------------- */

typedef struct queue {
    int id;
    bool changed; /* its counts, since they were written */
    int64_t orders, dead;
    char *name;
} queue;

/* The row of lapse_meta. */
typedef struct meta {
    char boot[LP_BOOT_LEN + 1];
    int64_t ahead;     /* store's clock minus the machine's, in this boot */
    int64_t clock;     /* the latest reading that was written, */
    int64_t wall;      /* and what the wall clock showed then; ms of UTC */
    int64_t seq;       /* the last one given */
    int64_t fence;     /* the last one given */
    int64_t fence_top; /* none above it is given before one is safe on the disk */
    int64_t keep;      /* ms */
    int64_t ended;     /* rows of lapse_ended */
} meta;

typedef struct session {
    sqlite3 *db;
    sqlite3_stmt *statement[ST_COUNT];
    lp_store_config config;
    char boot[LP_BOOT_LEN + 1]; /* the present one */

    /* What was read of the tables; right while `known`, inside a transaction. */
    bool known;
    int64_t data_version;
    meta meta;
    queue **queues; /* by number; the array is never shrunk */
    queue **by_name;
    size_t queue_count, queue_room;
    int64_t orders, dead; /* of all queues */
    uint64_t dead_dropped;

    /* The transaction that is under way. */
    bool writes;     /* it may */
    bool careful;    /* what goes wrong with one order is undone by a savepoint */
    bool durable;    /* what it writes is safe when it returns */
    bool need_sync;  /* it should have been that */
    bool changed;    /* it has written something */
    bool lost;       /* it failed as a whole, not by one job */
    int failed;      /* what SQLite said when something failed, or 0 */
    int64_t now;     /* store's clock */
    int64_t wall;    /* ms of UTC */
    lapse_ns now_ns; /* scheduler's */
    int64_t first;   /* the earliest `at` of what was scheduled; INT64_MAX: nothing */
} session;

/* -- sqlite_session.c -- */

/* A statement to bind and step, or NULL and `failed` is set. */
sqlite3_stmt *lp_sqlite_use(session *s, int which);

/* Step it: true with a row. False at the end, and on an error, which sets `failed`. */
bool lp_sqlite_row(session *s, sqlite3_stmt *st);

/* Step it to its end and reset it; false on an error. */
bool lp_sqlite_run(session *s, sqlite3_stmt *st);
bool lp_sqlite_do(session *s, int which); /* one without parameters */
bool lp_sqlite_exec(session *s, const char *sql);

/* The code and the sentence for what `failed` says. */
int lp_sqlite_error(session *s);

/* The same for a code of SQLite: lp_fail with a sentence that says what to do. */
int lp_sqlite_fail(sqlite3 *db, int rc, const char *doing);

/* Bring what is known up to date, and the time. In a transaction. */
bool lp_sqlite_begin_turn(session *s, lapse_ns now, lapse_ns wall);

/* Write what changed of the counts. */
bool lp_sqlite_flush(session *s);

void lp_sqlite_forget(session *s); /* what is known, after a rollback */
bool lp_sqlite_reload(session *s); /* and read it again, in a transaction */
void lp_sqlite_reset(session *s);  /* no statement stands at a row any more */
void lp_sqlite_free_session(session *s);
void lp_sqlite_close_session(session *s); /* and its connection */

/* Its name, for whoever frees it; NULL without memory. */
char *lp_sqlite_queue_name(const session *s, int q);
/* The number of a queue, or -1; and made if need be (below 0: lp_fail or `failed`). */
int lp_sqlite_queue(const session *s, const char *name);
int lp_sqlite_make_queue(session *s, const char *name);
void lp_sqlite_count(session *s, int q, int orders, int dead);

/* -- sqlite_clock.c -- */

void lp_sqlite_read_boot(session *s);
/* Whether the anchor is of this boot; if not, make one that is and never goes back. */
bool lp_sqlite_anchor(session *s, lapse_ns now, lapse_ns wall);
int64_t lp_sqlite_time(const session *s, lapse_ns scheduler); /* rounded up */
lapse_ns lp_sqlite_scheduler_time(const session *s, int64_t at);
int64_t lp_sqlite_next_fence(session *s);

/* -- sqlite_row.c -- */

enum { KEY_MAX = LAPSE_ID_MAX };

/* An id as it is stored. */
typedef struct key {
    unsigned char bytes[KEY_MAX];
    int len;
} key;
key lp_sqlite_key(const char *id, size_t len);
/* The id again: its length, at most LAPSE_ID_MAX, or 0 when it cannot be one. `out` has room
 * for LAPSE_ID_MAX + 1. */
size_t lp_sqlite_id(const void *bytes, int len, char *out);
uint32_t lp_sqlite_crc(const key *k, int q, const void *payload, size_t len);

/* What of an order's row is looked at most. */
typedef struct row {
    int64_t seq, at, due, generation;
    int64_t fence; /* 0: pending */
    int queue, attempt;
    bool no_more;
} row;
/* Of the row that `st` stands at. */
row lp_sqlite_read_row(sqlite3_stmt *st);
/* Why a row cannot be delivered, a fixed text; or NULL. */
const char *lp_sqlite_flaw(const session *s, sqlite3_stmt *st);

/* Whether a consumer holds it and its lease has not ended. */
static inline bool lp_sqlite_is_held(const session *s, const row *r)
{
    return r->fence && r->at > s->now;
}

bool lp_sqlite_find(session *s, const key *k, row *out); /* false also when `failed` */
bool lp_sqlite_delete(session *s, const row *r);
bool lp_sqlite_end(session *s, const row *r);
bool lp_sqlite_die(session *s, const row *r, int attempt, lapse_reason reason, const char *error,
                   lapse_info *info);
/* Pending from `at` on. */
bool lp_sqlite_wait(session *s, const row *r, int64_t at, int64_t due, int attempt);
/* Of what ended, nothing of this id is its newest any more. */
bool lp_sqlite_supersede(session *s, const key *k);
/* End what was cancelled while held and whose lease is over, with a loan that tells of each
 * unless `told` is NULL; forget what ended long ago. */
bool lp_sqlite_sweep(session *s, lp_loan **told);

/* -- sqlite_change.c, sqlite_claim.c, sqlite_look.c: the requests -- */

int64_t lp_sqlite_schedule(session *s, lp_job *j);
int64_t lp_sqlite_cancel(session *s, lp_job *j);
int64_t lp_sqlite_reschedule(session *s, lp_job *j);
int64_t lp_sqlite_requeue(session *s, lp_job *j);
int64_t lp_sqlite_purge(session *s, lp_job *j);

int64_t lp_sqlite_settle(session *s, lp_job *j); /* LP_END, LP_AGAIN, LP_DIE */
int64_t lp_sqlite_renew(session *s, lp_job *j);
int64_t lp_sqlite_holds(session *s, lp_job *j);
int lp_sqlite_claim(session *s, lp_turn *t); /* serve the wants */
bool lp_sqlite_any_due(const lp_turn *t);    /* whether a want could be */

int64_t lp_sqlite_get(session *s, lp_job *j);
int64_t lp_sqlite_list(session *s, lp_job *j);
int64_t lp_sqlite_counts(session *s, lp_job *j);
int64_t lp_sqlite_queues(session *s, lp_job *j);
int lp_sqlite_look(session *s, sqlite3_stmt *st, lapse_state state, lapse_info *out);
/* Whether an order that ended then is still remembered. */
bool lp_sqlite_is_kept(const session *s, int64_t ended);

/* -- sqlite_schema.c -- */

/* Make the tables, or bring them up to this version. In a write transaction. */
int lp_sqlite_schema(session *s);
/* Open a connection for the store, in WAL mode; it waits for locks as long as *busy, which
 * must live as long, says. */
int lp_sqlite_connect(const char *path, bool may_create, lapse_ns *busy, sqlite3 **out);
/* The name of a file system that several machines share, by its statfs type; or NULL. */
const char *lp_sqlite_shared_fs(unsigned long type);

/* -- sqlite_url.c -- */

typedef struct settings {
    char *path;
    lapse_ns poll, busy;
    bool keep_given;
} settings;
int lp_sqlite_read_url(lp_store_config *config, settings *out); /* `path` from malloc */

/* -- sqlite_side.c: the file beside, through which processes agree -- */

typedef struct side side;
/* NULL without memory; a side file that cannot be used is done without. `sleeps`: it wants to
 * be woken. */
side *lp_side_open(const char *database, const char *boot, bool sleeps);
void lp_side_close(side *b);
/* Wait for the gate, but not longer than `limit`; whether it was entered. */
bool lp_side_enter(side *b, lapse_ns limit);
void lp_side_leave(side *b);
/* For tests: how many wait for the gate; how long who is first may take to enter it. */
int lp_side_waiting(const side *b);
void lp_side_set_patience(side *b, lapse_ns patience);
int lp_side_fd(const side *b);
void lp_side_drain(side *b);
/* From here on note what others schedule. */
void lp_side_awake(side *b, const char *database);
/* The earliest of what was scheduled, for those who sleep longer. */
void lp_side_tell(side *b, int64_t at);
/* True when something earlier than `next` was scheduled since lp_side_awake. */
bool lp_side_sleep(side *b, int64_t next);

/* In a child, of its parent's: nothing is told to the others. */
void lp_side_abandon(side *b);

/* -- sqlite_fork.c -- */

/* A connection that fork() must not meet in a transaction: its thread holds `busy` meanwhile. */
typedef struct guarded {
    pthread_mutex_t busy;
    void *owner;                 /* NULL: not guarded */
    void (*let_go)(void *owner); /* called in a child */
    struct guarded *next, *before;
} guarded;

/* Around opening and closing connections; entering closes what was inherited. */
int lp_guard_enter(void);
void lp_guard_leave(void);
/* Inside of these: */
void lp_guard_add(guarded *g, void *owner, void (*let_go)(void *owner));
void lp_guard_remove(guarded *g);
/* Around each transaction. */
void lp_guard_begin(guarded *g);
void lp_guard_end(guarded *g);
/* Close an idle connection of the parent's. */
void lp_sqlite_abandon(sqlite3 *db);

/* -- sqlite_checkpoint.c -- */

typedef struct checkpointer checkpointer;
int lp_checkpointer_open(const char *path, const char *boot, checkpointer **out);
void lp_checkpointer_close(checkpointer *c); /* NULL is allowed */
/* After a commit: the log is so long. */
void lp_checkpointer_note(checkpointer *c, int64_t bytes);

/* -- The store: sqlite.c, sqlite_turn.c -- */

enum { LP_SYNC_UNKNOWN, LP_SYNC_NORMAL, LP_SYNC_FULL };

typedef struct sqlite_store {
    lp_durable base; /* first */
    session s;
    settings options;
    char *database; /* as SQLite names it: an absolute path; NULL until it was opened once */
    dev_t device;   /* which file that was */
    ino_t inode;
    guarded guard;
    side *beside;
    checkpointer *checkpointer;
    int page_size;
    int sync;    /* what SQLite was told last */
    bool reopen; /* before anything else */
} sqlite_store;

int lp_sqlite_turn(sqlite_store *d, lp_turn *t); /* of an open store */
int lp_sqlite_begin_write(sqlite_store *d, bool durable);
int lp_sqlite_commit(session *s);
void lp_sqlite_roll_back(session *s);
/* Whether the whole transaction is lost, not only what failed last. */
bool lp_sqlite_is_lost(session *s);
/* Around what may be undone alone, in a careful transaction; false: it cannot go on. */
bool lp_sqlite_mark(session *s);
bool lp_sqlite_keep(session *s);
bool lp_sqlite_undo(session *s);

#endif
