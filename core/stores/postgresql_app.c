/* postgresql_app.c - schedule and cancel on the application's own connection.
 *
 * One statement each, in whatever transaction is open. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "lapse_postgresql.h"
#include "stores/postgresql.h"

static int check_schema(const char *schema)
{
    if (!schema || (*schema && strlen(schema) <= 63 && !strpbrk(schema, "\"'@~\\")))
        return LAPSE_OK;
    return lp_fail(LAPSE_EINVAL, "the schema %s: use the name of a schema, without quotes",
                   lp_text_quote(schema, strnlen(schema, 63)));
}

static int check_connection(PGconn *conn)
{
    if (PQstatus(conn) != CONNECTION_OK)
        return lp_fail(LAPSE_EOFFLINE, "the connection to the PostgreSQL server is not open");
    if (PQtransactionStatus(conn) == PQTRANS_ACTIVE || PQpipelineStatus(conn) != PQ_PIPELINE_OFF)
        return lp_fail(LAPSE_EINVAL,
                       "the connection has a query under way: read its results first");
    if (PQtransactionStatus(conn) == PQTRANS_INERROR)
        return lp_fail(LAPSE_EINVAL, "the connection's transaction has failed: roll it back first");
    return LAPSE_OK;
}

/* The result of a statement that gives one row, or NULL: lp_fail was called. */
static PGresult *run(PGconn *conn, const char *schema, const char *text, const char *letters,
                     const args *a, int *code)
{
    Oid types[ARGS_MAX];
    int formats[ARGS_MAX];
    char *sql = lp_postgresql_expand(text, schema);
    if (!sql) {
        *code = lp_fail_memory();
        return NULL;
    }
    for (int i = 0; i < a->count; i++) {
        types[i] = lp_type_oid(letters[i]);
        formats[i] = 1;
    }
    PGresult *r = PQexecParams(conn, sql, a->count, types, a->value, a->length, formats, 1);
    free(sql);
    if (PQresultStatus(r) == PGRES_TUPLES_OK && PQntuples(r) == 1)
        return r;
    char words[400];
    const char *state = PQresultErrorField(r, PG_DIAG_SQLSTATE);
    lp_postgresql_clip(words, sizeof words, r ? PQresultErrorMessage(r) : PQerrorMessage(conn));
    *code = lp_postgresql_fail(state ? state : "08006", words);
    PQclear(r);
    return NULL;
}

/* A calendar time is an instant for the server too. */
static int find_wait(const lapse_spec *spec, lapse_ns *wait)
{
    *wait = spec->delay > 0 ? spec->delay : 0;
    if (spec->at && __builtin_sub_overflow(spec->at, lp_clock_wall(NULL), wait))
        *wait = spec->at < 0 ? 0 : INT64_MAX;
    if (*wait > LAPSE_DELAY_MAX)
        return lp_fail(LAPSE_ERANGE, "a delay of %lld ns: use 0 to %lld (100 years)",
                       (long long)*wait, (long long)LAPSE_DELAY_MAX);
    *wait = *wait > 0 ? *wait : 0;
    return LAPSE_OK;
}

static size_t length(const char *id)
{
    return id ? strnlen(id, LAPSE_ID_MAX + 1) : 0;
}

static int64_t put(PGconn *conn, const char *schema, const lapse_spec *spec, size_t id_len,
                   lapse_ns wait)
{
    const char *queue = spec->queue ? spec->queue : "";
    args a = {0};
    lp_arg_bytes(&a, spec->id, id_len);
    lp_arg_wait(&a, wait);
    lp_arg_bytes(&a, queue, strlen(queue));
    if (spec->payload_len)
        lp_arg_bytes(&a, spec->payload, spec->payload_len);
    else
        lp_arg_null(&a);
    lp_arg_bool(&a, (spec->flags & LAPSE_REPLACE) != 0);
    int code = LAPSE_OK;
    PGresult *r = run(conn, schema, "SELECT * FROM @put(clock_timestamp(), $1, $2, $3, $4, $5, 0)",
                      "bwbbo", &a, &code);
    int64_t generation = r ? lp_value_number(r, 0, 0) : code;
    PQclear(r);
    if (generation == 0)
        return lp_fail(LAPSE_EEXISTS, "order %s is pending already: cancel it, or replace it",
                       lp_text_quote(spec->id, id_len));
    return generation;
}

int64_t lapse_postgresql_put(PGconn *conn, const char *schema, const lapse_spec *spec)
{
    if (!conn || !spec)
        return lp_fail(LAPSE_EINVAL, "lapse_postgresql_put: `conn` or `spec` is NULL");
    size_t id_len = spec->id_len ? spec->id_len : length(spec->id);
    lapse_ns wait = 0;
    int code = lapse_check_id(spec->id, id_len);
    if (code == LAPSE_OK)
        code = lp_durable_check_spec(spec);
    if (code == LAPSE_OK)
        code = check_schema(schema);
    if (code == LAPSE_OK)
        code = find_wait(spec, &wait);
    if (code == LAPSE_OK)
        code = check_connection(conn);
    return code < 0 ? code : put(conn, schema, spec, id_len, wait);
}

int lapse_postgresql_cancel(PGconn *conn, const char *schema, const char *id, int64_t generation)
{
    if (!conn || !id)
        return lp_fail(LAPSE_EINVAL, "lapse_postgresql_cancel: `conn` or `id` is NULL");
    int code = check_schema(schema);
    if (code == LAPSE_OK)
        code = check_connection(conn);
    if (code < 0)
        return code;
    if (length(id) == 0 || length(id) > LAPSE_ID_MAX)
        return LAPSE_FATE_UNKNOWN;
    args a = {0};
    lp_arg_bytes(&a, id, length(id));
    lp_arg_number(&a, generation);
    PGresult *r = run(conn, schema,
                      "SELECT * FROM @cancel(clock_timestamp(), $1, $2, 0,"
                      " (SELECT keep * interval '1 microsecond' FROM @meta))",
                      "bl", &a, &code);
    int fate = r ? lp_value_small(r, 0, 0) : code;
    PQclear(r);
    return fate;
}
