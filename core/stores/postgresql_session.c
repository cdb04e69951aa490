/* postgresql_session.c - a connection to the server, and statements written in one go.
 *
 * libpq's pipeline mode, without blocking: what is sent and what is answered may both be large,
 * so reading goes on while writing does. Every wait for the server ends after `limit`; then the
 * connection is given up. libpq itself keeps SIGPIPE from the host. */
#define _GNU_SOURCE /* ppoll */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "stores/postgresql.h"

static const char NOT_IN_TIME[] = "the server has not answered in time";

/* -- Errors -- */

void lp_postgresql_clip(char *out, size_t size, const char *words)
{
    size_t n = 0;
    words = words ? words : "";
    for (; *words && n + 1 < size; words++)
        out[n++] = *words == '\n' || *words == '\t' ? ' ' : *words;
    while (n && out[n - 1] == ' ')
        n--;
    out[n] = '\0';
}

static bool is_state(const char *state, const char *class)
{
    return strncmp(state, class, strlen(class)) == 0;
}

/* The server is going, or is not the one that takes writes. */
static bool is_offline(const char *state)
{
    return is_state(state, "08") || is_state(state, "57P0") || is_state(state, "53300") ||
           is_state(state, "25006");
}

int lp_postgresql_fail(const char *state, const char *words)
{
    if (is_state(state, "25006"))
        return lp_fail(
            LAPSE_EOFFLINE,
            "the PostgreSQL server only reads (%s): connect to the primary, for instance "
            "with target_session_attrs=read-write",
            words);
    if (is_offline(state))
        return lp_fail(LAPSE_EOFFLINE, "the PostgreSQL server cannot be reached: %s", words);
    if (is_state(state, "55P03"))
        return lp_fail(LAPSE_ETIMEOUT,
                       "another transaction holds the order's row, or the table, for too long: end "
                       "it, then ask again (%s)",
                       words);
    if (is_state(state, "57014"))
        return lp_fail(LAPSE_ETIMEOUT, "the PostgreSQL server took too long: %s", words);
    if (is_state(state, "40"))
        return lp_fail(LAPSE_ETIMEOUT, "other transactions were in the way again and again: %s",
                       words);
    if (is_state(state, "42501"))
        return lp_fail(LAPSE_ESYSTEM,
                       "the PostgreSQL role may not do this (%s): lapse check says which right it "
                       "lacks, and the GRANT for it",
                       words);
    if (is_state(state, "42P01") || is_state(state, "42883") || is_state(state, "3F000"))
        return lp_fail(LAPSE_EDATA, "the tables of lapse are not there (%s): run lapse migrate",
                       words);
    if (is_state(state, "53"))
        return lp_fail(LAPSE_ESYSTEM, "the PostgreSQL server has no room: %s", words);
    return lp_fail(LAPSE_EDATA, "the PostgreSQL server refused: %s (SQLSTATE %s)", words,
                   *state ? state : "none");
}

int lp_postgresql_error(const session *s)
{
    if (s->failed == LAPSE_ENOMEM)
        return lp_fail_memory();
    return lp_postgresql_fail(s->state, s->words);
}

/* The first error counts; those after it follow from it. */
static void note_error(session *s, int code, const char *state, const char *words)
{
    if (s->failed)
        return;
    s->failed = code;
    snprintf(s->state, sizeof s->state, "%s", state ? state : "08006");
    lp_postgresql_clip(s->words, sizeof s->words, words);
}

static void lose(session *s, const char *words)
{
    note_error(s, LAPSE_EOFFLINE, "08006", words);
    s->lost = true;
}

static void lose_connection(session *s)
{
    const char *words = PQerrorMessage(s->conn);
    lose(s, words && *words ? words : "the connection was lost");
}

/* -- Waiting -- */

/* Until there is something to read, or room to write if it `writes`. False: the time is over. */
static bool wait_for(PGconn *conn, bool writes, lapse_ns until)
{
    lapse_ns left = until - lp_clock_monotonic();
    if (left <= 0)
        return false;
    struct pollfd p = {.fd = PQsocket(conn), .events = (short)(POLLIN | (writes ? POLLOUT : 0))};
    struct timespec t = {.tv_sec = left / 1000000000, .tv_nsec = left % 1000000000};
    (void)ppoll(&p, 1, &t, NULL); /* What woke it is seen by trying. */
    return true;
}

/* The next result, or NULL at the end of a statement; also NULL when the connection is lost. */
static PGresult *next_result(session *s, lapse_ns until)
{
    for (;;) {
        int pending = PQflush(s->conn);
        if (pending < 0) {
            lose_connection(s);
            return NULL;
        }
        if (!PQisBusy(s->conn))
            return PQgetResult(s->conn);
        if (!wait_for(s->conn, pending > 0, until)) {
            lose(s, NOT_IN_TIME);
            return NULL;
        }
        if (!PQconsumeInput(s->conn)) {
            lose_connection(s);
            return NULL;
        }
    }
}

bool lp_postgresql_is_dead(session *s)
{
    if (!s->conn || s->lost || PQstatus(s->conn) != CONNECTION_OK)
        return true;
    struct pollfd p = {.fd = PQsocket(s->conn), .events = POLLIN};
    while (poll(&p, 1, 0) > 0) /* A last word first, then the end. */
        if (!PQconsumeInput(s->conn) || PQstatus(s->conn) != CONNECTION_OK)
            return true;
    (void)PQisBusy(s->conn); /* It reads what has come. */
    return s->dismissed || PQstatus(s->conn) != CONNECTION_OK;
}

/* -- Statements -- */

static bool make_room(session *s)
{
    if (s->expected_count < s->expected_room)
        return true;
    size_t room = s->expected_room ? 2 * s->expected_room : 64;
    expected *more = realloc(s->expected, room * sizeof *more);
    if (!more) {
        s->failed = LAPSE_ENOMEM;
        return false;
    }
    s->expected = more;
    s->expected_room = room;
    return true;
}

static bool send_prepared(session *s, int statement, const args *a)
{
    char name[24];
    int formats[ARGS_MAX];
    for (int i = 0; i < ARGS_MAX; i++)
        formats[i] = 1;
    snprintf(name, sizeof name, "lapse%d", statement);
    if (PQsendQueryPrepared(s->conn, name, a->count, a->value, a->length, formats, 1))
        return true;
    lose_connection(s);
    return false;
}

bool lp_postgresql_send(session *s, int statement, args *a, reader read, size_t at)
{
    static const args none;
    bool ok = !s->lost && s->failed != LAPSE_ENOMEM && make_room(s) &&
              send_prepared(s, statement, a ? a : &none);
    if (ok)
        s->expected[s->expected_count++] = (expected){read, at};
    if (a) {
        free(a->made);
        a->made = NULL;
    }
    return ok;
}

static void read_one(session *s, struct work *w, const expected *e, const PGresult *r)
{
    const char *state;
    switch (PQresultStatus(r)) {
    case PGRES_TUPLES_OK:
    case PGRES_COMMAND_OK:
        if (e->read && !s->failed)
            e->read(w, r, e->at);
        return;
    case PGRES_PIPELINE_ABORTED:
        return;
    default:
        if (PQstatus(s->conn) != CONNECTION_OK)
            s->lost = true;
        state = PQresultErrorField(r, PG_DIAG_SQLSTATE); /* NULL: libpq says it, not the server. */
        s->stopped = s->stopped || (state && e + 1 < s->expected + s->expected_count);
        note_error(s, LAPSE_EDATA, state, PQresultErrorMessage(r));
        if (is_offline(s->state))
            s->lost = true;
    }
}

static void read_all(session *s, struct work *w, lapse_ns until)
{
    for (size_t i = 0; i < s->expected_count && !s->lost; i++) {
        PGresult *r = next_result(s, until);
        if (!r) {
            if (!s->lost)
                lose(s, "the server's answers do not match");
            return;
        }
        read_one(s, w, &s->expected[i], r);
        PQclear(r);
        r = s->lost ? NULL : next_result(s, until);
        PQclear(r);
    }
}

static void read_sync(session *s, lapse_ns until)
{
    PGresult *r = next_result(s, until);
    if (PQresultStatus(r) != PGRES_PIPELINE_SYNC && !s->lost)
        lose(s, "the server's answers do not match");
    PQclear(r);
}

int lp_postgresql_exchange(session *s, struct work *w, bool ends)
{
    if (s->lost || s->failed == LAPSE_ENOMEM) {
        s->lost = true; /* What was sent so far is never finished. */
        s->expected_count = 0;
        return s->failed;
    }
    lapse_ns until = lp_add_ns(lp_clock_monotonic(), s->limit);
    if (!(ends ? PQpipelineSync(s->conn) : PQsendFlushRequest(s->conn)))
        lose_connection(s);
    s->stopped = false;
    read_all(s, w, until);
    s->expected_count = 0;
    if (ends && !s->lost)
        read_sync(s, until);
    return s->failed;
}

/* The next result of a statement by itself; NULL: there is none, or the time is over. */
static PGresult *result_until(PGconn *conn, lapse_ns until, bool *over)
{
    for (;;) {
        int pending = PQflush(conn);
        if (pending < 0 || !PQisBusy(conn))
            return PQgetResult(conn); /* Of a connection that broke it says why. */
        if (!wait_for(conn, pending > 0, until)) {
            *over = true;
            return NULL;
        }
        if (!PQconsumeInput(conn))
            return PQgetResult(conn);
    }
}

PGresult *lp_postgresql_exec(PGconn *conn, const char *sql, lapse_ns limit)
{
    lapse_ns until = lp_add_ns(lp_clock_monotonic(), limit);
    PGresult *last = NULL, *r;
    bool over = false;
    if (PQsetnonblocking(conn, 1) != 0 || !PQsendQuery(conn, sql))
        return NULL;
    while ((r = result_until(conn, until, &over))) {
        PQclear(last);
        last = r;
        if (PQstatus(conn) != CONNECTION_OK)
            break;
    }
    if (!over)
        return last;
    PQclear(last);
    return NULL;
}

PGresult *lp_postgresql_query(const session *s, const char *sql, int *code)
{
    PGresult *r = lp_postgresql_exec(s->conn, sql, s->limit);
    ExecStatusType status = PQresultStatus(r);
    if (status == PGRES_TUPLES_OK || status == PGRES_COMMAND_OK)
        return r;
    char words[400];
    const char *state = PQresultErrorField(r, PG_DIAG_SQLSTATE);
    lp_postgresql_clip(words, sizeof words, r ? PQresultErrorMessage(r) : PQerrorMessage(s->conn));
    *code = lp_postgresql_fail(state ? state : "08006", *words ? words : NOT_IN_TIME);
    PQclear(r);
    return NULL;
}

/* -- Connecting -- */

void lp_postgresql_disconnect(session *s)
{
    if (s->conn)
        PQfinish(s->conn);
    s->conn = NULL;
    s->expected_count = 0;
}

void lp_postgresql_free_session(session *s)
{
    lp_postgresql_disconnect(s);
    for (int i = 0; i < ST_COUNT; i++)
        free(s->statement[i]);
    free(s->expected);
    memset(s, 0, sizeof *s);
}

static int write_statements(session *s, const char *schema)
{
    for (int i = 0; i < ST_COUNT; i++) {
        if (s->statement[i])
            continue;
        s->statement[i] = lp_postgresql_expand(lp_postgresql_sql[i], schema);
        if (!s->statement[i])
            return lp_fail_memory();
    }
    return LAPSE_OK;
}

static bool send_prepare(session *s, int statement)
{
    char name[24];
    Oid types[ARGS_MAX];
    const char *letters = lp_postgresql_types[statement];
    int count = (int)strlen(letters);
    for (int i = 0; i < count; i++)
        types[i] = lp_type_oid(letters[i]);
    snprintf(name, sizeof name, "lapse%d", statement);
    if (!PQsendPrepare(s->conn, name, s->statement[statement], count, types)) {
        lose_connection(s);
        return false;
    }
    s->expected[s->expected_count++] = (expected){NULL, 0};
    return true;
}

/* All statements, in one go. */
static int prepare(session *s)
{
    s->failed = 0;
    s->lost = false;
    for (int i = 0; i < ST_COUNT; i++)
        if (!make_room(s) || !send_prepare(s, i))
            break;
    if (lp_postgresql_exchange(s, NULL, true))
        return lp_postgresql_error(s);
    return LAPSE_OK;
}

/* The library prints nothing. */
static void ignore_notice(void *arg, const PGresult *r)
{
    (void)arg;
    (void)r;
}

/* What a server says to an idle connection before it ends it comes as a notice. */
static void note_dismissal(void *arg, const PGresult *r)
{
    session *s = arg;
    const char *severity = PQresultErrorField(r, PG_DIAG_SEVERITY_NONLOCALIZED);
    if (severity && (strcmp(severity, "FATAL") == 0 || strcmp(severity, "PANIC") == 0))
        s->dismissed = true;
}

PGconn *lp_postgresql_open_connection(const char *conninfo)
{
    /* What the URL says comes last, and so it counts. */
    static const char *const names[] = {
        "connect_timeout",           "keepalives_idle", "keepalives_interval", "keepalives_count",
        "fallback_application_name", "dbname",          "client_encoding",     NULL};
    const char *values[] = {"5", "10", "5", "3", "lapse", conninfo, "UTF8", NULL};
    PGconn *conn = PQconnectdbParams(names, values, 1);
    if (conn)
        PQsetNoticeReceiver(conn, ignore_notice, NULL);
    return conn;
}

static int fail_to_connect(const PGconn *conn)
{
    char words[400];
    lp_postgresql_clip(words, sizeof words, PQerrorMessage(conn));
    return lp_fail(LAPSE_EOFFLINE, "the PostgreSQL server cannot be reached: %s", words);
}

/* No plan is to depend on whether the tables were analysed: the indexes are always right.
 * Nothing of the set-up waits for longer than a turn would. */
static int set_up(const session *s)
{
    char sql[600];
    int code = LAPSE_OK;
    long long ms = (long long)(s->limit / 1000000);
    snprintf(sql, sizeof sql,
             "SELECT set_config(name, value, false) FROM (VALUES ('statement_timeout', '%lld'),"
             " ('lock_timeout', '%lld'), ('enable_seqscan', 'off'), ('enable_bitmapscan', 'off'),"
             " ('enable_hashjoin', 'off'), ('enable_mergejoin', 'off'), ('jit', 'off'),"
             " ('plan_cache_mode', 'force_generic_plan'),"
             " ('idle_in_transaction_session_timeout', '60s'),"
             " ('standard_conforming_strings', 'on')) v(name, value)",
             ms / 8 * 7, ms / 4 * 3);
    PQclear(lp_postgresql_query(s, sql, &code));
    return code;
}

/* Statements of turns wait for each other's rows, but not for long; work that is done late is
 * not lost, so nothing else ends them. */
static int end_set_up(const session *s)
{
    int code = LAPSE_OK;
    PQclear(lp_postgresql_query(s,
                                "SELECT set_config('statement_timeout', '0', false),"
                                " set_config('lock_timeout', '1s', false)",
                                &code));
    return code;
}

static int check_server(const PGconn *conn)
{
    int version = PQserverVersion(conn);
    if (version >= 140000)
        return LAPSE_OK;
    return lp_fail(LAPSE_EUNSUPPORTED, "PostgreSQL %d is too old: use 14 or newer",
                   version / 10000);
}

static int find_schema(const session *s, char **schema)
{
    int code = LAPSE_OK;
    PGresult *r = lp_postgresql_query(s, "SELECT current_schema()", &code);
    if (!r)
        return code;
    if (PQntuples(r) != 1 || PQgetisnull(r, 0, 0))
        code = lp_fail(LAPSE_EURL, "the role's search path names no schema that exists: add "
                                   "schema=NAME to the URL");
    else if (!(*schema = strdup(PQgetvalue(r, 0, 0))))
        code = lp_fail_memory();
    PQclear(r);
    if (code == LAPSE_OK && *schema && strpbrk(*schema, "\"'@~\\")) {
        free(*schema);
        *schema = NULL;
        code = lp_fail(LAPSE_EURL, "the role's first schema has a name with quotes: add "
                                   "schema=NAME to the URL");
    }
    return code;
}

/* Fences and generations are above all earlier ones, also when the server came back with older
 * sequences: they never stand behind the clock. Nobody else moves them meanwhile; claims and
 * orders only count them up, slower than the clock. */
static int anchor_sequences(const session *s, const char *schema)
{
    char *sql = lp_postgresql_expand(
        "DO $$ DECLARE us bigint := (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;"
        " BEGIN PERFORM pg_advisory_xact_lock('@fence'::regclass::oid::bigint);"
        " IF (SELECT last_value FROM @fence) < us THEN PERFORM setval('@fence', us); END IF;"
        " IF (SELECT last_value FROM @seq) < us THEN PERFORM setval('@seq', us); END IF; END $$",
        schema);
    if (!sql)
        return lp_fail_memory();
    int code = LAPSE_OK;
    PQclear(lp_postgresql_query(s, sql, &code));
    free(sql);
    return code;
}

/* A pool that gives each transaction another connection: prepared statements and settings would
 * be gone or somebody else's. Of a pool the process number is not the server's; whether a second
 * connection gets the same server process tells which kind it is. */
static int check_pool(const session *s, const char *conninfo)
{
    int code = LAPSE_OK;
    PGresult *r = lp_postgresql_query(s, "SELECT pg_backend_pid()", &code);
    if (!r)
        return code;
    int pid = atoi(PQgetvalue(r, 0, 0));
    PQclear(r);
    if (pid == PQbackendPID(s->conn))
        return LAPSE_OK;
    PGconn *other = lp_postgresql_open_connection(conninfo);
    r = PQstatus(other) == CONNECTION_OK
            ? lp_postgresql_exec(other, "SELECT pg_backend_pid()", s->limit)
            : NULL;
    bool shared = PQntuples(r) == 1 && atoi(PQgetvalue(r, 0, 0)) == pid;
    PQclear(r);
    PQfinish(other);
    if (!shared)
        return LAPSE_OK;
    return lp_fail(
        LAPSE_EUNSUPPORTED,
        "the server is behind a pool in transaction mode: prepared statements, settings "
        "and LISTEN are lost between transactions there; use the pool's session mode, or "
        "connect to the server itself");
}

static int connect_and_set_up(session *s, const settings *options, char **schema, bool may_migrate)
{
    s->conn = lp_postgresql_open_connection(options->conninfo);
    int code = LAPSE_OK;
    if (!s->conn)
        return lp_fail_memory();
    s->dismissed = false;
    PQsetNoticeReceiver(s->conn, note_dismissal, s);
    if (PQstatus(s->conn) != CONNECTION_OK)
        code = fail_to_connect(s->conn);
    if (code == LAPSE_OK)
        code = check_server(s->conn);
    if (code == LAPSE_OK)
        code = check_pool(s, options->conninfo);
    if (code == LAPSE_OK)
        code = set_up(s);
    if (code == LAPSE_OK && !*schema)
        code = find_schema(s, schema);
    if (code == LAPSE_OK)
        code = lp_postgresql_check_rights(s, *schema);
    if (code == LAPSE_OK)
        code = lp_postgresql_schema(s, *schema, may_migrate);
    if (code == LAPSE_OK)
        code = anchor_sequences(s, *schema);
    if (code == LAPSE_OK)
        code = end_set_up(s);
    if (code == LAPSE_OK)
        code = write_statements(s, *schema);
    if (code == LAPSE_OK &&
        (PQsetnonblocking(s->conn, 1) != 0 || PQenterPipelineMode(s->conn) != 1))
        code = lp_fail(LAPSE_ESYSTEM, "libpq refuses its pipeline mode");
    if (code == LAPSE_OK)
        code = prepare(s);
    return code;
}

int lp_postgresql_connect(session *s, const settings *options, char **schema, bool may_migrate)
{
    static const lapse_ns MIGRATION = LAPSE_SECONDS(10); /* Another may be at it. */
    lapse_ns limit = s->limit;
    if (may_migrate && limit < MIGRATION)
        s->limit = MIGRATION;
    lp_postgresql_disconnect(s);
    int code = connect_and_set_up(s, options, schema, may_migrate);
    s->limit = limit;
    if (code < 0)
        lp_postgresql_disconnect(s);
    return code;
}
