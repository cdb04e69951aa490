/* postgresql.h - the PostgreSQL store from inside: only for stores/postgresql*.c.
 *
 * An order is one row of lapse_order while it is pending or held, of lapse_dead when it is a
 * dead letter, and of lapse_ended while it is remembered. `at` is the one time that moves a
 * row of lapse_order: when it can be claimed, which for a held one is when its lease ends.
 * So a lease that ended needs nobody to notice it, and no process leads.
 *
 *     fence      null: pending. Else held until `at`, and pending from then on
 *     no_more    it was cancelled while held: when its lease ends it ends
 *
 * What a request does is a function in the server (postgresql_sql.c), the same for this store
 * and for the application's own transaction. A turn is one transaction: BEGIN, a statement for
 * each job, the claims and COMMIT are written in one go, and their answers read after that.
 *
 * Times are the server's, as UTC instants to the microsecond; under a manual clock they are the
 * caller's, counted from what his wall clock showed when the store was opened. A `row` of a job
 * or loan is its fence. */
#ifndef LP_POSTGRESQL_H
#define LP_POSTGRESQL_H

#include <libpq-fe.h>

#include "stores/durable.h"

enum { LP_POSTGRESQL_VERSION = 1 }; /* of the tables and functions */

/* -- Statements ------------------------------------------------------------------------ */

#define LP_WHEN "coalesce($1, now())"

/* What is read of an order, wherever it is, in this order (enum below). */
#define LP_COLUMNS_ORDER                                                                           \
    "1 AS place, id, queue, attempt, due, generation, at, fence, 0 AS reason, NULL::bytea AS "     \
    "error, payload, ctid::text AS ctid, 0::bigint AS seq, no_more"
#define LP_COLUMNS_ENDED                                                                           \
    "2, id, queue, attempt, due, generation, ended, 0::bigint, 0, NULL::bytea, NULL::bytea, "      \
    "ctid::text, 0::bigint, false"
#define LP_COLUMNS_DEAD                                                                            \
    "3, id, queue, attempt, due, generation, died, 0::bigint, reason::integer, error, payload, "   \
    "'', seq, false"

enum {
    COL_PLACE, /* one of these */
    COL_ID,
    COL_QUEUE,
    COL_ATTEMPT,
    COL_DUE,
    COL_GENERATION,
    COL_WHEN, /* `at`, or when it ended or died */
    COL_FENCE,
    COL_REASON,
    COL_ERROR,
    COL_PAYLOAD,
    COL_CTID, /* where in the table: a walk goes on behind it */
    COL_SEQ,
    COL_NO_MORE,
};
enum { IN_ORDERS = 1, IN_ENDED, IN_DEAD };

/* What was deleted as `d` is remembered, for as long as `keep` says: a part of a WITH. */
#define LP_REMEMBER(keep)                                                                          \
    " e AS (INSERT INTO @ended SELECT id, generation, queue, attempt, due, " LP_WHEN               \
    " FROM d WHERE " keep " > '0' ON CONFLICT (id) DO UPDATE SET generation ="                     \
    " excluded.generation, queue = excluded.queue, attempt = excluded.attempt,"                    \
    " due = excluded.due, ended = excluded.ended)"

/* name, types of the parameters, text. Types: b bytea, B bytea[], i integer, l bigint, L bigint[],
 * o boolean, s text, t timestamptz, w interval. */
/* clang-format off */
#define LP_POSTGRESQL_STATEMENTS(X)                                                                \
    X(BEGIN, "", "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE")                                \
    X(COMMIT, "", "COMMIT")                                                                        \
    X(ROLLBACK, "", "ROLLBACK")                                                                    \
    X(JOB_BEGIN, "", "SAVEPOINT lapse_job")                                                        \
    X(JOB_UNDO, "", "ROLLBACK TO SAVEPOINT lapse_job")                                             \
    X(JOB_END, "", "RELEASE SAVEPOINT lapse_job")                                                  \
    X(START, "tos", "SELECT " LP_WHEN ", version, keep, set_config('synchronous_commit',"          \
        " CASE WHEN $2 THEN current_setting('synchronous_commit') ELSE 'off' END, true),"          \
        " set_config('lock_timeout', $3, true) FROM @meta")                                        \
    X(KEEP, "l", "WITH u AS (UPDATE @meta SET keep = $1 WHERE keep <> $1 RETURNING keep)"          \
        " SELECT coalesce((SELECT keep FROM u), (SELECT keep FROM @meta))")                        \
    X(PATIENCE, "s", "SELECT set_config('lock_timeout', $1, true)")                                \
    X(ROOM_TRY, "", "SELECT pg_try_advisory_xact_lock('@order'::regclass::oid::bigint)")           \
    X(ROOM_LOCK, "", "SELECT pg_advisory_xact_lock('@order'::regclass::oid::bigint)")              \
    X(ROOM_COUNT, "ll", "SELECT set_config('lapse.room', ($1 - coalesce($2, (SELECT count(*)"      \
        " FROM (SELECT FROM @order LIMIT $1 + 1) o)))::text, true)")                               \
    X(ROOM_LEFT, "", "SELECT current_setting('lapse.room')::bigint")                               \
    X(LOCK, "B", "SELECT FROM @order WHERE id = ANY($1) ORDER BY id FOR UPDATE")                   \
    X(LOCK_BACK, "B", "SELECT FROM @order WHERE id = ANY($1) ORDER BY id DESC FOR UPDATE")         \
    X(SWEEP, "tw", "WITH d AS (DELETE FROM @order WHERE id IN (SELECT id FROM @order"              \
        " WHERE no_more AND at <= " LP_WHEN " FOR UPDATE SKIP LOCKED) RETURNING *),"               \
        LP_REMEMBER("$2") " SELECT id, queue, @room(1) FROM d")                              \
    X(FORGET, "t", "DELETE FROM @ended WHERE id IN (SELECT id FROM @ended WHERE ended < " LP_WHEN  \
        " - (SELECT keep FROM @meta) * interval '1 microsecond'"                                   \
        " ORDER BY ended LIMIT 1024 FOR UPDATE SKIP LOCKED)")                                      \
    X(PUT, "tbwbbol", "SELECT * FROM @put(" LP_WHEN ", $2, $3, $4, $5, $6, $7)")                   \
    X(PUT_LIMITED, "tbwbbolol",                                                                    \
        "SELECT * FROM @put_limited(" LP_WHEN ", $2, $3, $4, $5, $6, $7, $8, $9)")                 \
    X(CANCEL, "tbllw", "SELECT * FROM @cancel(" LP_WHEN ", $2, $3, $4, $5)")                       \
    X(RESCHEDULE, "tbllww", "SELECT * FROM @reschedule(" LP_WHEN ", $2, $3, $4, $5, $6)")          \
    X(REQUEUE, "tblwol", "SELECT * FROM @requeue(" LP_WHEN ", $2, $3, $4, $5, $6)")                \
    X(PURGE, "bl", "WITH d AS (DELETE FROM @dead WHERE seq IN (SELECT seq FROM @dead"              \
        " WHERE ($1 IS NULL OR id = $1) AND ($2 = 0 OR generation = $2) ORDER BY seq LIMIT 1000)"  \
        " RETURNING 1) SELECT count(*) FROM d")                                                    \
    X(END, "tLwo", "WITH d AS (DELETE FROM @order WHERE fence = ANY($2) RETURNING *),"             \
        LP_REMEMBER("$3") " SELECT fence, CASE WHEN $4 THEN @room(1) END FROM d")            \
    X(AGAIN, "tlwwow", "SELECT * FROM @again(" LP_WHEN ", $2, $3, $4, $5, $6)")                    \
    X(DIE, "tlibowl", "SELECT * FROM @die(" LP_WHEN ", $2, $3, $4, $5, $6, $7)")                   \
    X(RENEW, "tlw", "UPDATE @order SET at = " LP_WHEN " + $3 WHERE fence = $2 RETURNING 1")        \
    X(HOLDS, "tl", "SELECT at > " LP_WHEN " FROM @order WHERE fence = $2")                         \
    X(GET, "b", "SELECT * FROM (SELECT " LP_COLUMNS_ORDER " FROM @order WHERE id = $1"             \
        " UNION ALL SELECT " LP_COLUMNS_ENDED " FROM @ended WHERE id = $1 UNION ALL"               \
        " SELECT " LP_COLUMNS_DEAD " FROM @dead WHERE id = $1 AND named) o ORDER BY place LIMIT 1") \
    X(LETTER, "", "SELECT " LP_COLUMNS_DEAD " FROM @dead"                                          \
        " WHERE seq = nullif(current_setting('lapse.letter', true), '')::bigint")                  \
    X(LIST_ORDERS, "si", "SELECT " LP_COLUMNS_ORDER " FROM @order WHERE ctid > $1::tid LIMIT $2")  \
    X(LIST_HELD, "li", "SELECT " LP_COLUMNS_ORDER " FROM @order WHERE fence > $1"                  \
        " ORDER BY fence LIMIT $2")                                                                \
    X(LIST_ENDED, "si", "SELECT " LP_COLUMNS_ENDED " FROM @ended WHERE ctid > $1::tid LIMIT $2")   \
    X(LIST_DEAD, "li", "SELECT " LP_COLUMNS_DEAD " FROM @dead WHERE seq > $1 ORDER BY seq LIMIT $2") \
    X(COUNTS, "tb", "SELECT (SELECT count(*) FROM @order WHERE $2 IS NULL OR queue = $2),"          \
        " (SELECT count(*) FROM @order WHERE fence IS NOT NULL AND at > " LP_WHEN                  \
        " AND ($2 IS NULL OR queue = $2)),"                                                        \
        " CASE WHEN $2 IS NULL THEN (SELECT count(*) FROM @ended) ELSE 0 END,"                     \
        " (SELECT count(*) FROM @dead WHERE $2 IS NULL OR queue = $2),"                            \
        " (SELECT min(w.at) FROM unnest(CASE WHEN $2 IS NULL THEN @queues(false)"                  \
        " ELSE ARRAY[$2] END) q(queue) CROSS JOIN LATERAL (SELECT o.at FROM @order o"              \
        " WHERE o.queue = q.queue AND (o.fence IS NULL OR o.at <= " LP_WHEN ")"                    \
        " ORDER BY o.at, o.seq LIMIT 1) w),"                                                       \
        " pg_total_relation_size('@order')")                                                       \
    X(QUEUES, "o", "SELECT @queues($1)")                                                           \
    X(HEADS, "", "SELECT * FROM @heads()")                                                         \
    X(CLAIM, "twBtlio", "SELECT * FROM @claim(" LP_WHEN ", $2, $3, $4, $5, $6, $7)")               \
    X(HINT, "tbws", "SELECT pg_notify($4, coalesce('=' || encode($2, 'hex'), ''))"                 \
        " WHERE NOT EXISTS (SELECT FROM @order"                                                    \
        " WHERE queue = $2 AND at >= " LP_WHEN " - interval '1 second' AND at < " LP_WHEN " + $3)")
/* clang-format on */

enum {
#define LP_POSTGRESQL_NAME(name, types, sql) ST_##name,
    LP_POSTGRESQL_STATEMENTS(LP_POSTGRESQL_NAME)
#undef LP_POSTGRESQL_NAME
        ST_COUNT
};

/* -- postgresql_sql.c -- */

extern const char *const lp_postgresql_sql[ST_COUNT];
extern const char *const lp_postgresql_types[ST_COUNT];
/* steps[v]: what makes version v + 1 of version v: texts up to NULL. */
extern const char *const *const lp_postgresql_steps[LP_POSTGRESQL_VERSION];
/* With the names written out; `schema` NULL: without one. From malloc, or NULL. */
char *lp_postgresql_expand(const char *text, const char *schema);

/* -- postgresql_value.c: how values go over the wire -- */

enum { ARGS_MAX = 10 };

/* The parameters of a statement. What lp_arg_bytes is given must live until it was sent. */
typedef struct args {
    int count;
    const char *value[ARGS_MAX];
    int length[ARGS_MAX];
    unsigned char room[ARGS_MAX][16];
    char *made; /* an array, to be freed */
} args;

void lp_arg_null(args *a);
void lp_arg_bytes(args *a, const void *bytes, size_t len);
void lp_arg_text(args *a, const char *text);
void lp_arg_number(args *a, int64_t n);
void lp_arg_small(args *a, int32_t n);
void lp_arg_bool(args *a, bool b);
void lp_arg_time(args *a, int64_t at);    /* as stored; INT64_MIN: -infinity */
void lp_arg_wait(args *a, lapse_ns wait); /* as interval, rounded up */
bool lp_arg_numbers(args *a, const int64_t *numbers, size_t count); /* false: no memory */
bool lp_arg_names(args *a, const char *const *names, const size_t *lens, size_t count);

unsigned lp_type_oid(char type);

int64_t lp_value_number(const PGresult *r, int row, int column); /* 0 when null; also a time */
int32_t lp_value_small(const PGresult *r, int row, int column);
bool lp_value_bool(const PGresult *r, int row, int column);
/* A copy with a NUL behind it; NULL without memory. */
char *lp_value_copy(const PGresult *r, int row, int column, size_t *len);
/* The elements of a bytea[] one by one: *at starts as 0; false after the last. */
bool lp_value_element(const PGresult *r, int row, int column, size_t *at, const char **bytes,
                      size_t *len);

/* -- postgresql_url.c -- */

typedef struct settings {
    char *conninfo; /* the URL without our options: it may hold a password */
    char *schema;   /* NULL: the first of the search path */
    lapse_ns poll;
    bool keep_given, may_migrate;
} settings;
int lp_postgresql_read_url(lp_store_config *config, settings *out);
void lp_postgresql_free_settings(settings *s);

/* -- postgresql_session.c: a connection, and statements written and read in one go -- */

struct work;
typedef void (*reader)(struct work *w, const PGresult *r, size_t at);

typedef struct expected {
    reader read; /* NULL: nothing is read of the answer */
    size_t at;
} expected;

typedef struct session {
    PGconn *conn;              /* NULL: not connected */
    char *statement[ST_COUNT]; /* with the names written out */
    lapse_ns limit;            /* no answer takes longer */
    expected *expected;
    size_t expected_count, expected_room;
    bool lost;       /* the connection is of no use any more */
    bool dismissed;  /* the server has ended it while it was idle */
    bool stopped;    /* an error of the server stopped a pipeline before its last statement */
    int failed;      /* the first error of a statement, or 0 */
    char state[6];   /* its SQLSTATE */
    char words[400]; /* and its sentence */
} session;

/* Connect with the settings of a session, and look after the tables: make or migrate them when
 * `may_migrate`. 0 or an error. */
int lp_postgresql_connect(session *s, const settings *options, char **schema, bool may_migrate);
PGconn *lp_postgresql_open_connection(const char *conninfo); /* in any state; NULL: no memory */
void lp_postgresql_disconnect(session *s);
void lp_postgresql_free_session(session *s);

/* Whether the server has closed an idle connection. */
bool lp_postgresql_is_dead(session *s);

/* Add a statement to what is under way; frees what `a` has made. False: see `failed`, `lost`. */
bool lp_postgresql_send(session *s, int statement, args *a, reader read, size_t at);

/* Have all of it executed and read, up to here; `ends`: that is all there was, and what follows
 * an error is not executed only up to here. 0, or `failed`. */
int lp_postgresql_exchange(session *s, struct work *w, bool ends);

/* lp_fail for what went wrong. */
int lp_postgresql_error(const session *s);
int lp_postgresql_fail(const char *state, const char *words);
/* A sentence of the server's or of libpq's as it may be shown: one line, no password. */
void lp_postgresql_clip(char *out, size_t size, const char *words);

/* One statement by itself, on a connection that has nothing under way, which is given up when
 * the answer does not come within the limit. NULL: lp_fail was called and *code says so. */
PGresult *lp_postgresql_query(const session *s, const char *sql, int *code);
/* The same without lp_fail, for any connection. */
PGresult *lp_postgresql_exec(PGconn *conn, const char *sql, lapse_ns limit);

/* -- postgresql_schema.c -- */

/* Whether the tables are of this version; makes or migrates them when `may_migrate`. */
int lp_postgresql_schema(const session *s, const char *schema, bool may_migrate);

/* -- postgresql_rights.c -- */

/* Whether the role may use the tables; and whether it may make or change them. */
int lp_postgresql_check_rights(const session *s, const char *schema);
int lp_postgresql_check_maker(const session *s, const char *schema);

/* -- The store: postgresql.c, postgresql_turn.c, _room.c, _jobs.c, _claim.c,
 * _heads.c, _look.c -- */

enum { FLOORS = 32, HINTS = 8, WARNINGS = 5 };

/* A place in the order of claiming. */
typedef struct place_of {
    int64_t at, seq;
} place_of;

/* From where on a want of these queues looks: what is before it was claimed, or is not there. */
typedef struct floor_of {
    uint64_t want; /* a hash of its queues */
    place_of from;
    lapse_ns widened; /* when it was looked from the very first on; monotonic */
} floor_of;

/* A queue that has orders, and when the first can be claimed, as far as it is known here:
 * INT64_MIN: look; INT64_MAX: there is none. */
typedef struct head {
    char *name;
    int64_t at;
} head;

typedef struct hint {
    const char *queue;
    lapse_ns wait;
} hint;

typedef struct postgresql_store {
    lp_durable base; /* first */
    int sockets[2];  /* under the lock of postgresql_fork.c, as are: */
    struct postgresql_store *next, *before;
    bool guarded;
    session s;
    lp_store_config config;
    settings options;
    char *schema; /* as it was found at the first connection */
    char channel[80];
    PGconn *listener; /* NULL: none yet, or lost */
    bool wants_hints;
    bool outdated;      /* somebody has migrated the tables to a version that is not ours */
    lapse_ns listen_at; /* when it may be tried again; monotonic */
    lapse_ns hinted_at; /* as postgresql_turn.c counts how often we tell others; monotonic */
    lapse_ns heard_at;  /* when we were told last; monotonic */
    lapse_ns forgot_at; /* when ended orders were forgotten last; monotonic */
    lapse_ns keep;      /* as the tables say */
    int64_t clock;      /* the server's, at the last turn; */
    lapse_ns clock_now; /* and the scheduler's then */
    int64_t orders;     /* pending and held, when it was counted; -1: unknown */
    lapse_ns counted_at, count_took; /* monotonic */
    lapse_ns room_since; /* others hold the lock of max_pending; monotonic; 0: they do not */
    char warnings[WARNINGS][320];
    int warning_count;
    uint64_t dead_dropped;
    floor_of floors[FLOORS];
    head *heads; /* by name, for who wants all queues but some */
    size_t head_count, head_room;
    lapse_ns heads_at, heads_took; /* when all were read; monotonic; 0: never */
    bool heads_old;                /* something was put into a queue that is not known */
} postgresql_store;

/* A turn while it is taken. */
typedef struct work {
    postgresql_store *d;
    session *s;
    lp_turn *t;
    bool limited;         /* room is counted in this transaction */
    bool room_busy;       /* others hold the lock for that, and it was waited for */
    bool got_room;        /* we hold it */
    const char *patience; /* the lock_timeout of this transaction */
    bool backwards;       /* rows are locked from the last to the first */
    bool wide;            /* claims look from the very first on */
    int64_t clock;        /* of the server, from START on */
    lp_loan **end;        /* of t->loans */
    unsigned pushed;      /* claimed for pushed wants */
    hint hints[HINTS];
    int hint_count;
    uint64_t dead_dropped;
    int64_t orders;
    bool no_memory;
} work;

/* The scheduler's clock from the server's, and how long until then. */
lapse_ns lp_postgresql_time(const work *w, int64_t at);
lapse_ns lp_postgresql_wait(const work *w, lapse_ns due);
/* The first parameter of most statements. */
void lp_postgresql_arg_now(args *a, const work *w);
void lp_postgresql_arg_keep(args *a, const work *w);

int lp_postgresql_turn(postgresql_store *d, lp_turn *t);

/* -- postgresql_room.c: max_pending -- */

bool lp_postgresql_is_limited(const work *w);
/* At the start of a limited transaction: 0 or an error. Marks the jobs that are put off. */
int lp_postgresql_get_room(work *w);
bool lp_postgresql_is_put_off(const lp_job *j); /* not to be asked in this turn */
void lp_postgresql_ask_room_left(work *w);      /* at the end */

/* -- postgresql_jobs.c: a job as a statement, and its answer -- */

/* Add the statement for the job at `at`, and for those after it that share it unless it is to
 * be `alone`; how many that are, 0 when it could not be added. */
size_t lp_postgresql_ask(work *w, size_t at, bool alone);

/* -- postgresql_claim.c -- */

/* Serve the wants: 0 or an error. Exchanges what is under way where it must. */
int lp_postgresql_claim(work *w);
/* After all was read: when wants of all queues but some can be served next. */
void lp_postgresql_note_next(const work *w);
/* Something may have become due since then that is not known here. */
void lp_postgresql_lower_floors(postgresql_store *d, int64_t at);
void lp_postgresql_forget(postgresql_store *d); /* all that is known of the tables */
/* A loan that only tells of an end. */
void lp_postgresql_tell(work *w, const PGresult *r, size_t at);

/* -- postgresql_heads.c: the queues there are, for who wants all but some -- */

/* Read them anew when that was long ago: 0 or an error. */
int lp_postgresql_learn_heads(work *w);
void lp_postgresql_forget_heads(postgresql_store *d);
/* Something may be in this queue from then on; and: that is when its first can be claimed. */
void lp_postgresql_lower_head(postgresql_store *d, const char *name, size_t len, int64_t at);
void lp_postgresql_set_head(postgresql_store *d, const char *name, size_t len, int64_t at);
/* The queues of a want among which the first `most` orders are that may be due, into
 * `names` and `lens`, which have room for all; from where on to look into them. */
size_t lp_postgresql_choose_heads(const work *w, const lp_want *want, unsigned most,
                                  const char **names, size_t *lens, place_of *from);
/* When the first of any queue of the want can be claimed; INT64_MAX: there is none. */
int64_t lp_postgresql_first_head(const postgresql_store *d, const lp_want *want);
/* Until when, at the latest, all is looked at again; monotonic. */
lapse_ns lp_postgresql_heads_due(const postgresql_store *d);

/* -- postgresql_look.c: get, list, count, queues -- */

bool lp_postgresql_ask_look(work *w, size_t at);
int lp_postgresql_look(const work *w, const PGresult *r, int row, lapse_state state,
                       lapse_info *out);

/* -- postgresql_check.c -- */

void lp_postgresql_check(postgresql_store *d);

/* -- postgresql_fork.c: a child lets go of its parent's connections -- */

int lp_postgresql_guard(postgresql_store *d);
void lp_postgresql_unguard(postgresql_store *d);
void lp_postgresql_note_sockets(postgresql_store *d);

#endif
