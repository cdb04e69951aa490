/* sqlite_app.c - schedule and cancel on the application's own connection.
 *
 * The same requests as the store's, in a savepoint of the application's transaction or, when
 * there is none, in one of their own. What the store would know of the tables is read anew in
 * every call: nothing is kept of a connection that is not ours. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "lapse_sqlite.h"
#include "stores/sqlite.h"

typedef int64_t (*request)(session *s, lp_job *j);

/* In a transaction or a savepoint. */
static int64_t ask_inside(session *s, lp_job *j, request ask)
{
    int code = lp_sqlite_schema(s);
    if (code < 0)
        return code;
    if (!lp_sqlite_begin_turn(s, s->config.now, s->config.wall) || !lp_sqlite_sweep(s, NULL))
        return lp_sqlite_error(s);
    int64_t answer = ask(s, j);
    if (answer < 0)
        return answer;
    return lp_sqlite_flush(s) ? answer : lp_sqlite_error(s);
}

static int64_t ask_session(session *s, lp_job *j, request ask)
{
    bool alone = sqlite3_get_autocommit(s->db) != 0;
    s->writes = s->durable = true;
    if (!lp_sqlite_exec(s, alone ? "BEGIN IMMEDIATE" : "SAVEPOINT lapse_call"))
        return lp_sqlite_error(s);
    int64_t answer = ask_inside(s, j, ask);
    if (answer >= 0 && lp_sqlite_exec(s, alone ? "COMMIT" : "RELEASE lapse_call"))
        return answer;
    if (answer >= 0)
        answer = lp_sqlite_error(s);
    lp_sqlite_reset(s);
    if (!sqlite3_get_autocommit(s->db))
        lp_sqlite_exec(s, alone ? "ROLLBACK" : "ROLLBACK TO lapse_call; RELEASE lapse_call");
    return answer;
}

static int64_t ask_database(sqlite3 *db, lapse_ns now, lp_job *j, request ask)
{
    session s = {.db = db};
    s.config = (lp_store_config){.max_dead = UINT64_MAX, .now = now, .wall = lp_clock_wall(NULL)};
    lp_sqlite_read_boot(&s);
    sqlite3_int64 last = sqlite3_last_insert_rowid(db); /* the application's, of its own insert */
    int64_t answer = ask_session(&s, j, ask);
    sqlite3_set_last_insert_rowid(db, last);
    lp_sqlite_free_session(&s);
    free(j->of_queue);
    return answer;
}

static int find_due(const lapse_spec *spec, lapse_ns now, lapse_ns *due)
{
    lapse_ns delay = spec->delay;
    if (spec->at) {
        if (__builtin_sub_overflow(spec->at, lp_clock_wall(NULL), &delay))
            delay = spec->at < 0 ? 0 : INT64_MAX;
        now = lp_clock_now(NULL); /* After the wall clock: what passes makes it later. */
    }
    if (delay > LAPSE_DELAY_MAX)
        return lp_fail(LAPSE_ERANGE, "a delay of %lld ns: use 0 to %lld (100 years)",
                       (long long)delay, (long long)LAPSE_DELAY_MAX);
    *due = lp_add_ns(now, delay > 0 ? delay : 0);
    return LAPSE_OK;
}

static size_t length(const char *id)
{
    return id ? strnlen(id, LAPSE_ID_MAX + 1) : 0;
}

int64_t lapse_sqlite_put(sqlite3 *db, const lapse_spec *spec)
{
    if (!db || !spec)
        return lp_fail(LAPSE_EINVAL, "lapse_sqlite_put: `db` or `spec` is NULL");
    lp_job j = {.op = LP_SCHEDULE,
                .id = spec->id,
                .id_len = spec->id_len ? spec->id_len : length(spec->id),
                .queue = spec->queue ? spec->queue : "",
                .payload = spec->payload,
                .payload_len = spec->payload_len,
                .replace = (spec->flags & LAPSE_REPLACE) != 0};
    int code = lapse_check_id(j.id, j.id_len);
    if (code == LAPSE_OK)
        code = lp_durable_check_spec(spec);
    lapse_ns now = lp_clock_now(NULL);
    if (code == LAPSE_OK)
        code = find_due(spec, now, &j.due);
    return code < 0 ? code : ask_database(db, now, &j, lp_sqlite_schedule);
}

int lapse_sqlite_cancel(sqlite3 *db, const char *id, int64_t generation)
{
    if (!db || !id)
        return lp_fail(LAPSE_EINVAL, "lapse_sqlite_cancel: `db` or `id` is NULL");
    lp_job j = {.op = LP_CANCEL, .id = id, .id_len = length(id), .generation = generation};
    if (j.id_len == 0 || j.id_len > LAPSE_ID_MAX)
        return LAPSE_FATE_UNKNOWN;
    return (int)ask_database(db, lp_clock_now(NULL), &j, lp_sqlite_cancel);
}
