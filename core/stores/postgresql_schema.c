/* postgresql_schema.c - whether the tables are there, and of which version.
 *
 * To change tables or functions: raise LP_POSTGRESQL_VERSION, add the step from the version
 * before to lp_postgresql_steps, and a dump of that version to tests/stores/golden. All steps
 * run in one transaction, one process at a time. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "stores/postgresql.h"

static PGresult *query(const session *s, const char *text, const char *schema, int *code)
{
    char *sql = lp_postgresql_expand(text, schema);
    if (!sql) {
        *code = lp_fail_memory();
        return NULL;
    }
    PGresult *r = lp_postgresql_query(s, sql, code);
    free(sql);
    return r;
}

static int run(const session *s, const char *text, const char *schema)
{
    int code = LAPSE_OK;
    PQclear(query(s, text, schema, &code));
    return code;
}

/* The number that a query answers with; below 0 an error. */
static int ask_number(const session *s, const char *text, const char *schema)
{
    int code = LAPSE_OK;
    PGresult *r = query(s, text, schema, &code);
    if (!r)
        return code;
    int n = PQntuples(r) == 1 ? atoi(PQgetvalue(r, 0, 0)) : 0;
    PQclear(r);
    return n;
}

/* 0: there are none. */
static int find_version(const session *s, const char *schema)
{
    int there = ask_number(s, "SELECT (to_regclass('@meta') IS NOT NULL)::int", schema);
    return there > 0 ? ask_number(s, "SELECT version FROM @meta", schema) : there;
}

/* Asked first: a role may use a schema and not be allowed to make one. */
static int make_schema(const session *s, const char *schema)
{
    char sql[200];
    snprintf(sql, sizeof sql, "SELECT count(*) FROM pg_namespace WHERE nspname = '%.63s'", schema);
    int there = ask_number(s, sql, NULL);
    if (there != 0)
        return there < 0 ? there : LAPSE_OK;
    snprintf(sql, sizeof sql, "CREATE SCHEMA \"%.63s\"", schema);
    return run(s, sql, NULL);
}

static int run_steps(const session *s, const char *schema, int version)
{
    int code = version == 0 ? make_schema(s, schema) : LAPSE_OK;
    for (; code == LAPSE_OK && version < LP_POSTGRESQL_VERSION; version++)
        for (const char *const *text = lp_postgresql_steps[version]; code == LAPSE_OK && *text;
             text++)
            code = run(s, *text, schema);
    if (code < 0)
        return code;
    char sql[80];
    snprintf(sql, sizeof sql, "UPDATE @meta SET version = %d", LP_POSTGRESQL_VERSION);
    return run(s, sql, schema);
}

/* In a transaction. */
static int migrate_alone(const session *s, const char *schema)
{
    int code = run(s, "BEGIN", NULL);
    if (code == LAPSE_OK)
        code = find_version(s, schema); /* Another may have been first. */
    if (code >= 0 && code < LP_POSTGRESQL_VERSION)
        code = run_steps(s, schema, code);
    if (code >= 0)
        return run(s, "COMMIT", NULL);
    lp_detail words;
    lp_detail_save(&words);
    PQclear(lp_postgresql_exec(s->conn, "ROLLBACK", s->limit));
    lp_detail_restore(&words);
    return code;
}

/* One after the other. The lock is taken before the transaction begins: one that has begun may
 * not see yet what the other has made. */
static int migrate(const session *s, const char *schema)
{
    char lock[160];
    snprintf(lock, sizeof lock, "SELECT pg_advisory_lock(hashtext('lapse %.63s'))", schema);
    int code = run(s, lock, NULL);
    if (code < 0)
        return code;
    code = migrate_alone(s, schema);
    lp_detail words;
    lp_detail_save(&words);
    snprintf(lock, sizeof lock, "SELECT pg_advisory_unlock(hashtext('lapse %.63s'))", schema);
    PQclear(lp_postgresql_exec(s->conn, lock, s->limit));
    lp_detail_restore(&words);
    return code;
}

int lp_postgresql_schema(const session *s, const char *schema, bool may_migrate)
{
    int version = find_version(s, schema);
    if (version < 0 || version == LP_POSTGRESQL_VERSION)
        return version < 0 ? version : LAPSE_OK;
    if (version > LP_POSTGRESQL_VERSION)
        return lp_fail(LAPSE_EDATA,
                       "schema %s has the tables of a newer lapse (version %d, this one knows %d): "
                       "install that, or name another schema",
                       schema, version, LP_POSTGRESQL_VERSION);
    if (!may_migrate)
        return lp_fail(LAPSE_EDATA,
                       "schema %s has %s (version %d, this lapse wants %d): run lapse migrate",
                       schema, version ? "the tables of an older lapse" : "no tables of lapse",
                       version, LP_POSTGRESQL_VERSION);
    int code = lp_postgresql_check_maker(s, schema);
    return code < 0 ? code : migrate(s, schema);
}
