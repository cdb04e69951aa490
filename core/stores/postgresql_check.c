/* postgresql_check.c - what of the server's settings and state may lose orders or make claims
 * slow, as found when the store is opened. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "stores/postgresql.h"

static const char question[] =
    "SELECT current_setting('synchronous_commit'), current_setting('fsync'),"
    " (SELECT n_dead_tup FROM pg_stat_user_tables WHERE relid = '@order'::regclass),"
    " (SELECT n_live_tup FROM pg_stat_user_tables WHERE relid = '@order'::regclass),"
    " a.pid, extract(epoch FROM now() - a.xact_start)::bigint, a.application_name,"
    " (SELECT count(*) FROM pg_prepared_xacts"
    "  WHERE database = current_database() AND prepared < now() - interval '1 minute')"
    " FROM (SELECT 1) one LEFT JOIN LATERAL (SELECT pid, xact_start, application_name"
    " FROM pg_stat_activity WHERE backend_xmin IS NOT NULL AND pid <> pg_backend_pid()"
    " AND datname = current_database() ORDER BY xact_start LIMIT 1) a ON true";

enum { SYNC, FSYNC, DEAD_ROWS, LIVE_ROWS, PID, AGE, APPLICATION, PREPARED };

enum { OLD_SECONDS = 60, MANY_DEAD = 10000 };

__attribute__((format(printf, 2, 3))) static void warn(postgresql_store *d, const char *format, ...)
{
    va_list list;
    if (d->warning_count == WARNINGS)
        return;
    char *out = d->warnings[d->warning_count++];
    size_t said = (size_t)snprintf(out, sizeof d->warnings[0], "PostgreSQL: ");
    va_start(list, format);
    vsnprintf(out + said, sizeof d->warnings[0] - said, format, list);
    va_end(list);
}

static const char *text_of(const PGresult *r, int column)
{
    return PQgetvalue(r, 0, column);
}

static void judge(postgresql_store *d, const PGresult *r)
{
    long dead = atol(text_of(r, DEAD_ROWS)), live = atol(text_of(r, LIVE_ROWS));
    if (strcmp(text_of(r, SYNC), "off") == 0)
        warn(d,
             "synchronous_commit is off: what was answered in the last moments before a crash of "
             "the server is lost; turn it on for this role, or add "
             "options=-c%%20synchronous_commit%%3Don to the URL");
    if (strcmp(text_of(r, FSYNC), "off") == 0)
        warn(d, "fsync is off: a power failure of the server may lose or damage everything");
    if (atol(text_of(r, AGE)) >= OLD_SECONDS)
        warn(d,
             "the oldest open transaction has lasted %s s (process %s, %.60s): what ended since is "
             "not cleaned up, and tables grow; end it",
             text_of(r, AGE), text_of(r, PID), text_of(r, APPLICATION));
    if (atol(text_of(r, PREPARED)) > 0)
        warn(d,
             "%s prepared transactions were left open: what ended since is not cleaned up; "
             "commit or roll them back",
             text_of(r, PREPARED));
    if (dead >= MANY_DEAD && dead > live)
        warn(d,
             "lapse_order has %ld dead rows beside %ld: VACUUM does not keep up; see what holds "
             "it up, or run VACUUM lapse_order",
             dead, live);
}

/* Before the pipeline begins. What cannot be asked is not warned of. */
void lp_postgresql_check(postgresql_store *d)
{
    char *sql = lp_postgresql_expand(question, d->schema);
    d->warning_count = 0;
    PGresult *r = sql ? lp_postgresql_exec(d->s.conn, sql, d->s.limit) : NULL;
    free(sql);
    if (PQresultStatus(r) == PGRES_TUPLES_OK && PQntuples(r) == 1)
        judge(d, r);
    PQclear(r);
}
