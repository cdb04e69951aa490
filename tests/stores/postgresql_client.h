/* postgresql_client.h - an application's own connection to the store's database, for
 * test_postgresql_*.c. */
#ifndef LAPSE_TESTS_POSTGRESQL_CLIENT_H
#define LAPSE_TESTS_POSTGRESQL_CLIENT_H

#include <libpq-fe.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "stores/stores.h"

/* The store of these tests: the only one that LAPSE_STORES names. */
enum { PG = 0 };

static inline const char *schema_of(const place *p)
{
    static char schema[64];
    const char *at = strstr(p->url, "schema=");
    ck_assert_ptr_nonnull(at);
    snprintf(schema, sizeof schema, "%.*s", (int)strcspn(at + 7, "&"), at + 7);
    return schema;
}

static inline void base_of(const place *p, char *out, size_t size)
{
    snprintf(out, size, "%.*s", (int)strcspn(p->url, "?"), p->url);
}

/* Asserts nothing: also for other threads and for children. */
static inline PGconn *try_connect(const place *p)
{
    char url[512], path[128];
    base_of(p, url, sizeof url);
    PGconn *conn = PQconnectdb(url);
    snprintf(path, sizeof path, "SET search_path = %s, public", schema_of(p));
    PQclear(PQexec(conn, path));
    return conn;
}

/* With the store's schema in its search path. */
static inline PGconn *connect_app(const place *p)
{
    PGconn *conn = try_connect(p);
    ck_assert_msg(PQstatus(conn) == CONNECTION_OK, "%s", PQerrorMessage(conn));
    return conn;
}

static inline void sql(PGconn *conn, const char *text)
{
    PGresult *r = PQexec(conn, text);
    ExecStatusType status = PQresultStatus(r);
    ck_assert_msg(status == PGRES_COMMAND_OK || status == PGRES_TUPLES_OK, "%s: %s", text,
                  PQerrorMessage(conn));
    PQclear(r);
}

/* The SQLSTATE of a statement that must fail. */
static inline const char *sql_fails(PGconn *conn, const char *text)
{
    static char state[8];
    PGresult *r = PQexec(conn, text);
    ck_assert_msg(PQresultStatus(r) == PGRES_FATAL_ERROR, "%s: did not fail", text);
    snprintf(state, sizeof state, "%s", PQresultErrorField(r, PG_DIAG_SQLSTATE));
    PQclear(r);
    return state;
}

/* The first column of the first row as text; of the next call but seven it is overwritten. */
static inline const char *word(PGconn *conn, const char *text)
{
    static char words[8][256];
    static int at;
    char *out = words[at++ % 8];
    PGresult *r = PQexec(conn, text);
    ck_assert_msg(PQresultStatus(r) == PGRES_TUPLES_OK, "%s: %s", text, PQerrorMessage(conn));
    snprintf(out, sizeof words[0], "%s", PQntuples(r) ? PQgetvalue(r, 0, 0) : "");
    PQclear(r);
    return out;
}

static inline long number(PGconn *conn, const char *text)
{
    return atol(word(conn, text));
}

/* -- Time -- */

static inline lapse_ns now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (lapse_ns)t.tv_sec * 1000000000 + t.tv_nsec;
}

static inline void pause_ms(int ms)
{
    usleep((useconds_t)ms * 1000); /* sleeps: who calls it says why */
}

static inline bool wait_until(bool (*holds)(void *arg), void *arg)
{
    /* sleeps: between two looks */
    for (lapse_ns until = now_ns() + 2 * LIMIT; now_ns() < until; pause_ms(2))
        if (holds(arg))
            return true;
    return false;
}

static inline bool has_run(void *arg)
{
    return atomic_load((atomic_int *)arg) > 0;
}

/* -- What the server has counted -- */

typedef struct reads {
    long scans, rows;
} reads;

/* Of lapse_order, as the server has counted; what is under way is told when sessions end. */
static inline reads reads_of(PGconn *app)
{
    sql(app, "SELECT pg_stat_force_next_flush()");
    sql(app, "SELECT pg_stat_clear_snapshot()");
    char schema[64];
    snprintf(schema, sizeof schema, "%s", word(app, "SELECT current_schema()"));
    char text[300];
    reads r;
    snprintf(text, sizeof text,
             "SELECT seq_scan FROM pg_stat_user_tables WHERE schemaname = '%s' AND relname ="
             " 'lapse_order'",
             schema);
    r.scans = number(app, text);
    snprintf(text, sizeof text,
             "SELECT sum(idx_tup_read) FROM pg_stat_user_indexes WHERE schemaname = '%s' AND"
             " relname = 'lapse_order'",
             schema);
    r.rows = number(app, text);
    return r;
}

#endif
