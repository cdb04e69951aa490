/* postgresql_rights.c - what the role must be allowed to, and the GRANT for what it is not.
 *
 * Asked when a connection is made, of the catalogues, which anybody may read: the server's own
 * word for a missing right names neither the right nor the way out. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "stores/postgresql.h"

/* `#` stands for the schema. Rights on the same things are one GRANT. */
static const char missing[] =
    "WITH needs(place, name, rights) AS (VALUES"
    " (1, 'lapse_order', '{SELECT,INSERT,UPDATE,DELETE}'::text[]),"
    " (1, 'lapse_ended', '{SELECT,INSERT,UPDATE,DELETE}'),"
    " (1, 'lapse_dead', '{SELECT,INSERT,UPDATE,DELETE}'),"
    " (1, 'lapse_meta', '{SELECT,UPDATE}'),"
    " (2, 'lapse_seq', '{SELECT,UPDATE}'), (2, 'lapse_fence', '{SELECT,UPDATE}')),"
    " space AS (SELECT oid, nspname FROM pg_namespace WHERE nspname = '#'),"
    " lacks AS (SELECT n.place, format('%I.%I', s.nspname, n.name) AS what,"
    "  array_to_string(ARRAY(SELECT r FROM unnest(n.rights) r WHERE NOT CASE n.place"
    "   WHEN 2 THEN has_sequence_privilege(c.oid, r) ELSE has_table_privilege(c.oid, r) END),"
    "   ', ') AS rights"
    "  FROM space s JOIN pg_class c ON c.relnamespace = s.oid JOIN needs n ON n.name = c.relname)"
    " SELECT string_agg(format('GRANT %s ON %s TO %I', rights, what, current_user), '; '"
    "  ORDER BY place), current_user FROM ("
    "  SELECT 0 AS place, 'USAGE' AS rights, format('SCHEMA %I', nspname) AS what FROM space"
    "  WHERE NOT has_schema_privilege(oid, 'USAGE')"
    "  UNION ALL SELECT place, rights, CASE place WHEN 2 THEN 'SEQUENCE ' ELSE '' END"
    "  || string_agg(what, ', ' ORDER BY what) FROM lacks WHERE rights <> ''"
    "  GROUP BY place, rights"
    "  UNION ALL SELECT 3, 'EXECUTE', format('ALL FUNCTIONS IN SCHEMA %I', s.nspname)"
    "  FROM space s WHERE EXISTS (SELECT FROM pg_proc p WHERE p.pronamespace = s.oid"
    "  AND p.proname LIKE 'lapse\\_%' AND NOT has_function_privilege(p.oid, 'EXECUTE'))) g";

/* To make tables, or to change them. */
static const char cannot_make[] =
    "SELECT CASE"
    " WHEN s.oid IS NULL AND NOT has_database_privilege(current_database(), 'CREATE')"
    "  THEN format('GRANT CREATE ON DATABASE %I TO %I', current_database(), current_user)"
    " WHEN s.oid IS NOT NULL AND (NOT has_schema_privilege(s.oid, 'CREATE')"
    "  OR NOT has_schema_privilege(s.oid, 'USAGE'))"
    "  THEN format('GRANT USAGE, CREATE ON SCHEMA %I TO %I', s.nspname, current_user)"
    " WHEN NOT pg_has_role(c.relowner, 'USAGE')"
    "  THEN format('GRANT %s TO %I', c.relowner::regrole, current_user) END, current_user"
    " FROM (SELECT 1) one LEFT JOIN pg_namespace s ON s.nspname = '#'"
    " LEFT JOIN pg_class c ON c.relnamespace = s.oid AND c.relname = 'lapse_meta'";

static char *write_question(const char *question, const char *schema)
{
    const char *mark = strchr(question, '#');
    size_t room = strlen(question) + strlen(schema) + 1;
    char *sql = malloc(room);
    if (sql)
        snprintf(sql, room, "%.*s%s%s", (int)(mark - question), question, schema, mark + 1);
    return sql;
}

/* The answer, or NULL: lp_fail was called and *code says so. */
static PGresult *ask(const session *s, const char *question, const char *schema, int *code)
{
    char *sql = write_question(question, schema);
    if (!sql) {
        *code = lp_fail_memory();
        return NULL;
    }
    PGresult *r = lp_postgresql_query(s, sql, code);
    free(sql);
    return r;
}

int lp_postgresql_check_rights(const session *s, const char *schema)
{
    int code = LAPSE_OK;
    PGresult *r = ask(s, missing, schema, &code);
    if (r && !PQgetisnull(r, 0, 0))
        code = lp_fail(LAPSE_ESYSTEM,
                       "the PostgreSQL role \"%s\" lacks rights on the tables of lapse: have their "
                       "owner run %s",
                       PQgetvalue(r, 0, 1), PQgetvalue(r, 0, 0));
    PQclear(r);
    return code;
}

int lp_postgresql_check_maker(const session *s, const char *schema)
{
    int code = LAPSE_OK;
    PGresult *r = ask(s, cannot_make, schema, &code);
    if (r && !PQgetisnull(r, 0, 0))
        code = lp_fail(LAPSE_ESYSTEM,
                       "the PostgreSQL role \"%s\" may not make the tables of lapse in the schema "
                       "%s: run %s, or have another role run lapse migrate",
                       PQgetvalue(r, 0, 1), schema, PQgetvalue(r, 0, 0));
    PQclear(r);
    return code;
}
