/* postgresql.c - orders in a PostgreSQL database: the store's table, opening, hints.
 *
 * postgresql.h says how orders are kept, postgresql_turn.c what a turn is.
 *
 * A consumer that sleeps has a second connection that listens. What it hears only shortens its
 * sleep: whatever is due is found by looking every `poll`. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "stores/postgresql.h"

static const lapse_ns LISTEN_AGAIN = LAPSE_SECONDS(5);

/* -- Connecting -- */

/* A turn must not outlast the leases that it would renew. */
static lapse_ns turn_limit(const lp_store_config *config)
{
    lapse_ns limit = config->lease / 3;
    if (limit < LAPSE_SECONDS(2))
        return LAPSE_SECONDS(2);
    return limit < LAPSE_SECONDS(30) ? limit : LAPSE_SECONDS(30);
}

static int connect_store(postgresql_store *d, bool may_migrate)
{
    d->s.limit = turn_limit(&d->config);
    int code = lp_postgresql_connect(&d->s, &d->options, &d->schema, may_migrate);
    lp_postgresql_note_sockets(d);
    if (code < 0)
        return code;
    lp_postgresql_forget(d);
    d->outdated = false;
    return LAPSE_OK;
}

/* Notifications go by the database, so the channel is named after the schema. */
static void name_channel(postgresql_store *d)
{
    snprintf(d->channel, sizeof d->channel, "lapse_%.56s", d->schema);
}

static void read_keep(work *w, const PGresult *r, size_t at)
{
    (void)at;
    w->d->keep = lp_value_number(r, 0, 0) * 1000;
}

/* For how long ended orders are remembered: who opens with a value of his own sets it. */
static int settle_keep(postgresql_store *d)
{
    work w = {.d = d, .s = &d->s};
    args a = {0};
    if (d->options.keep_given)
        lp_arg_number(&a, d->config.keep / 1000 + (d->config.keep % 1000 > 0));
    else
        lp_arg_null(&a);
    lp_postgresql_send(&d->s, ST_KEEP, &a, read_keep, 0);
    return lp_postgresql_exchange(&d->s, &w, true) < 0 ? lp_postgresql_error(&d->s) : LAPSE_OK;
}

/* Between two pipelines, of which there is none yet. */
static int look_around(postgresql_store *d)
{
    PGconn *conn = d->s.conn;
    if (PQexitPipelineMode(conn) == 1)
        lp_postgresql_check(d);
    if (PQenterPipelineMode(conn) == 1)
        return LAPSE_OK;
    return lp_fail(LAPSE_ESYSTEM, "libpq refuses its pipeline mode");
}

static const char *warning(const lp_durable *durable, int n)
{
    const postgresql_store *d = (const postgresql_store *)durable;
    return n < d->warning_count ? d->warnings[n] : NULL;
}

static void free_store(postgresql_store *d)
{
    lp_postgresql_unguard(d);
    if (d->listener)
        PQfinish(d->listener);
    lp_postgresql_free_session(&d->s);
    lp_postgresql_forget(d);
    lp_postgresql_free_settings(&d->options);
    free(d->schema);
    free(d);
}

static int open_all(postgresql_store *d, lp_store_config *config)
{
    int code = lp_postgresql_guard(d);
    if (code == LAPSE_OK)
        code = lp_postgresql_read_url(config, &d->options);
    d->config = *config;
    d->config.url = NULL; /* the caller's */
    if (code == LAPSE_OK && d->options.schema && !(d->schema = strdup(d->options.schema)))
        code = lp_fail_memory();
    if (code == LAPSE_OK)
        code = connect_store(d, d->options.may_migrate);
    if (code == LAPSE_OK)
        code = settle_keep(d);
    if (code == LAPSE_OK)
        code = look_around(d);
    if (code < 0)
        return code;
    name_channel(d);
    config->keep = d->keep;
    return LAPSE_OK;
}

static int open_store(lp_store_config *config, lp_durable **out)
{
    postgresql_store *d = calloc(1, sizeof *d);
    if (!d)
        return lp_fail_memory();
    d->base.ops = &lp_postgresql_store;
    d->orders = -1;
    d->heard_at = INT64_MIN / 2;
    int code = open_all(d, config);
    if (code < 0) {
        free_store(d);
        return code;
    }
    *out = &d->base;
    return LAPSE_OK;
}

static void close_store(lp_durable *durable)
{
    free_store((postgresql_store *)durable);
}

static int reconnect(lp_durable *durable)
{
    return connect_store((postgresql_store *)durable, false);
}

/* -- Hints -- */

static void stop_listening(postgresql_store *d)
{
    if (d->listener)
        PQfinish(d->listener);
    d->listener = NULL;
    lp_postgresql_note_sockets(d);
}

/* Before a turn, so that the turn sees all that was committed before it listens. */
static void listen(postgresql_store *d)
{
    lapse_ns now = lp_clock_monotonic();
    if (d->listener && PQstatus(d->listener) != CONNECTION_OK)
        stop_listening(d);
    if (!d->wants_hints || d->listener || now < d->listen_at)
        return;
    d->listen_at = lp_add_ns(now, LISTEN_AGAIN);
    d->listener = lp_postgresql_open_connection(d->options.conninfo);
    if (!d->listener)
        return;
    char sql[128];
    snprintf(sql, sizeof sql, "LISTEN \"%s\"", d->channel);
    PGresult *r = PQstatus(d->listener) == CONNECTION_OK
                      ? lp_postgresql_exec(d->listener, sql, d->s.limit)
                      : NULL;
    bool ok = PQresultStatus(r) == PGRES_COMMAND_OK;
    PQclear(r);
    if (!ok)
        stop_listening(d); /* Polling goes on. */
    lp_postgresql_note_sockets(d);
}

/* A notification is "=" and the name of the queue in hexadecimal, or nothing when that is not
 * known. */
static void note_queue(postgresql_store *d, const char *words)
{
    char name[LAPSE_ID_MAX + 1];
    size_t len = 0;
    unsigned byte;
    const char *hex = words + (*words == '=');
    for (; len < sizeof name && sscanf(hex, "%2x", &byte) == 1; hex += 2)
        name[len++] = (char)byte;
    if (*words != '=' || *hex || memchr(name, '\0', len))
        d->heads_old = true;
    else
        lp_postgresql_lower_head(d, name, len, INT64_MIN);
}

/* Whether anything was heard. */
static bool hear(postgresql_store *d)
{
    if (!d->listener)
        return false;
    bool heard = false;
    if (!PQconsumeInput(d->listener)) {
        stop_listening(d);
        d->heads_old = true;
        return true; /* What was missed meanwhile is looked for. */
    }
    for (PGnotify *n; (n = PQnotifies(d->listener)); PQfreemem(n)) {
        note_queue(d, n->extra);
        heard = true;
    }
    return heard;
}

static int hint_fd(lp_durable *durable)
{
    const postgresql_store *d = (const postgresql_store *)durable;
    return d->listener ? PQsocket(d->listener) : -1;
}

/* What a transaction has put that began a moment before the last turn. */
static void look_back(postgresql_store *d)
{
    d->heard_at = lp_clock_monotonic();
    lp_postgresql_lower_floors(d, d->clock - 2 * INT64_C(1000000));
}

static void hinted(lp_durable *durable)
{
    postgresql_store *d = (postgresql_store *)durable;
    if (hear(d))
        look_back(d);
}

static bool sleeps(lp_durable *durable, lapse_ns next, lapse_ns now)
{
    postgresql_store *d = (postgresql_store *)durable;
    d->wants_hints = next > now && !d->config.manual;
    if (!d->wants_hints)
        return false;
    if (!d->listener)
        return lp_clock_monotonic() >= d->listen_at; /* The next turn listens first. */
    if (!hear(d))
        return false;
    look_back(d);
    return true;
}

static lapse_ns poll_every(const lp_durable *d)
{
    return ((const postgresql_store *)d)->options.poll;
}

/* -- Turns -- */

static int turn(lp_durable *durable, lp_turn *t)
{
    postgresql_store *d = (postgresql_store *)durable;
    lp_turn_begin(t);
    if (d->outdated || lp_postgresql_is_dead(&d->s)) {
        int code = connect_store(d, false);
        if (code < 0)
            return code;
    }
    listen(d);
    int code = lp_postgresql_turn(d, t);
    if (d->s.lost)
        lp_postgresql_disconnect(&d->s);
    if (d->s.lost)
        lp_postgresql_note_sockets(d);
    return code;
}

const lp_durable_ops lp_postgresql_store = {
    .scheme = "postgresql",
    .abilities = LAPSE_CAN_DURABLE | LAPSE_CAN_SHARE | LAPSE_CAN_CANCEL | LAPSE_CAN_LIST |
                 LAPSE_CAN_LIMIT | LAPSE_CAN_TRANSACT,
    .open = open_store,
    .close = close_store,
    .turn = turn,
    .reconnect = reconnect,
    .hint_fd = hint_fd,
    .hinted = hinted,
    .sleeps = sleeps,
    .poll = poll_every,
    .warning = warning,
};
