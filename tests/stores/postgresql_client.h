/* postgresql_client.h - an application's own connection to the store's database, for
 * test_postgresql_*.c. */
#ifndef LAPSE_TESTS_POSTGRESQL_CLIENT_H
#define LAPSE_TESTS_POSTGRESQL_CLIENT_H

#include <libpq-fe.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

#endif
