/* redis_url.c - redis://user:password@host:port/db?name=value, or a socket's path instead. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "stores/redis.h"
#include "stores/url.h"

/* Braces would change the slot of the names in a cluster. */
static int read_prefix(const lp_url_option *option, settings *out)
{
    size_t len = option->value_len;
    bool ok = len > 0 && len <= LP_REDIS_PREFIX_MAX;
    for (size_t i = 0; ok && i < len; i++)
        ok = option->value[i] > ' ' && option->value[i] < 127 && option->value[i] != '{' &&
             option->value[i] != '}';
    if (!ok)
        return lp_url_refuse(option, "1 to 64 printable ASCII characters without braces");
    memcpy(out->prefix, option->value, len);
    out->prefix[len] = '\0';
    return LAPSE_OK;
}

static int read_switch(const lp_url_option *option, bool *out)
{
    *out = lp_url_value_is(option, "1");
    return *out || lp_url_value_is(option, "0") ? LAPSE_OK : lp_url_refuse(option, "0 or 1");
}

static int read_evict(const lp_url_option *option, settings *out)
{
    out->evict = lp_url_value_is(option, "allow");
    return out->evict || lp_url_value_is(option, "refuse")
               ? LAPSE_OK
               : lp_url_refuse(option, "refuse or allow");
}

/* The name of a file, as it stands. */
static int read_file(const lp_url_option *option, char **out)
{
    if (option->value_len == 0)
        return lp_url_refuse(option, "the name of a file");
    free(*out);
    *out = strndup(option->value, option->value_len);
    return *out ? LAPSE_OK : lp_fail_memory();
}

static int read_option(const lp_url_option *option, void *arg)
{
    settings *out = arg;
    if (lp_url_is(option, "prefix"))
        return read_prefix(option, out);
    if (lp_url_is(option, "db"))
        return lp_url_number(option, 0, 1000000, &out->db);
    if (lp_url_is(option, "poll"))
        return lp_url_duration(option, LAPSE_MS(1), LAPSE_HOURS(1), &out->poll);
    if (lp_url_is(option, "timeout"))
        return lp_url_duration(option, LAPSE_MS(10), LAPSE_HOURS(1), &out->timeout);
    if (lp_url_is(option, "wait"))
        return lp_url_number(option, 0, 100, &out->wait);
    if (lp_url_is(option, "wait_limit"))
        return lp_url_duration(option, LAPSE_MS(1), LAPSE_HOURS(1), &out->wait_limit);
    if (lp_url_is(option, "events"))
        return read_switch(option, &out->events);
    if (lp_url_is(option, "eviction"))
        return read_evict(option, out);
    if (lp_url_is(option, "ca"))
        return read_file(option, &out->ca);
    if (lp_url_is(option, "cert"))
        return read_file(option, &out->cert);
    if (lp_url_is(option, "key"))
        return read_file(option, &out->key);
    return lp_url_unknown(
        option, "redis",
        "prefix, db, wait, wait_limit, poll, timeout, events, eviction, ca, cert, "
        "key, max_pending, overflow, keep, max_dead, lease, stuck_after");
}

/* The path is the number of the database. */
static int read_db(const char *path, settings *out)
{
    lp_url_option number = {.name = "db", .name_len = 2, .value = path, .value_len = strlen(path)};
    return *path ? lp_url_number(&number, 0, 1000000, &out->db) : LAPSE_OK;
}

/* redis:///path or redis://%2Fpath/0: a socket. */
static int take_socket(lp_url_place *place, settings *out)
{
    if (place->host && *place->host == '/') {
        out->socket = place->host;
        place->host = NULL;
        return place->path ? read_db(place->path, out) : LAPSE_OK;
    }
    size_t len = strlen(place->path);
    out->socket = malloc(len + 2);
    if (!out->socket)
        return lp_fail_memory();
    out->socket[0] = '/';
    memcpy(out->socket + 1, place->path, len + 1);
    return LAPSE_OK;
}

static int take_place(lp_url_place *place, settings *out)
{
    out->user = place->user;
    out->password = place->password;
    place->user = place->password = NULL;
    if (out->user && !out->password)
        return lp_fail(LAPSE_EURL, "the store URL has a user and no password: use "
                                   "redis://user:password@host or redis://:password@host");
    bool is_socket = place->host ? *place->host == '/' : place->path && strlen(place->path) > 3;
    if (is_socket)
        return take_socket(place, out);
    out->host = place->host ? place->host : strdup("localhost");
    place->host = NULL;
    out->port = place->port ? place->port : 6379;
    if (!out->host)
        return lp_fail_memory();
    return place->path ? read_db(place->path, out) : LAPSE_OK;
}

static int check_tls(const settings *s)
{
    if (!s->tls && (s->ca || s->cert || s->key))
        return lp_fail(LAPSE_EURL, "the URL options ca, cert and key are for TLS: say rediss: "
                                   "instead of redis:");
    if (s->tls && s->socket)
        return lp_fail(LAPSE_EURL, "rediss: needs a host: on a socket there is no TLS, use redis:");
    if (s->key && !s->cert)
        return lp_fail(LAPSE_EURL, "the URL has the option key and no cert, which it belongs to");
    return LAPSE_OK;
}

int lp_redis_read_url(lp_store_config *config, settings *out)
{
    *out = (settings){.prefix = "lapse",
                      .poll = LAPSE_SECONDS(1),
                      .timeout = LAPSE_SECONDS(5),
                      .wait_limit = LAPSE_SECONDS(1)};
    out->keep_given = config->keep > 0 || lp_url_has(config->url, "keep");
    out->tls = strncmp(config->url, "rediss:", 7) == 0;
    if (out->tls && !lp_redis_has_tls())
        return lp_fail(LAPSE_EUNSUPPORTED,
                       "rediss: needs TLS, which this build of lapse lacks: build it with "
                       "libhiredis-dev 1.0 or newer (hiredis_ssl) and libssl-dev, or use redis: "
                       "through a TLS tunnel");
    lp_url_place place;
    int code = lp_url_read_place(config->url, &place);
    if (code < 0)
        return code;
    code = take_place(&place, out);
    lp_url_free_place(&place);
    if (code == LAPSE_OK)
        code = lp_url_read_options(config, read_option, out);
    if (code == LAPSE_OK)
        code = check_tls(out);
    if (code == LAPSE_OK)
        lp_url_fill_in(config);
    return code;
}

void lp_redis_free_settings(settings *s)
{
    lp_url_place place = {.user = s->user, .password = s->password, .host = s->host};
    lp_url_free_place(&place);
    free(s->socket);
    free(s->ca);
    free(s->cert);
    free(s->key);
    s->ca = s->cert = s->key = NULL;
    s->user = s->password = s->host = s->socket = NULL;
}
