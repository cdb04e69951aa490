/* rabbitmq_url.c - amqp://user:password@host:port/vhost?name=value, and amqps:. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "stores/rabbitmq.h"
#include "stores/url.h"

static int read_prefix(const lp_url_option *option, rabbit_settings *out)
{
    size_t len = option->value_len;
    bool reserved = strncmp(option->value, "amq", 3) == 0 && (len == 3 || option->value[3] == '.');
    bool ok = len > 0 && len <= LP_RABBIT_PREFIX_MAX && !reserved;
    for (size_t i = 0; ok && i < len; i++)
        ok = option->value[i] > ' ' && option->value[i] < 127;
    if (!ok)
        return lp_url_refuse(
            option, "1 to 64 printable ASCII characters, not amq or amq. at the beginning");
    memcpy(out->prefix, option->value, len);
    out->prefix[len] = '\0';
    return LAPSE_OK;
}

static int read_text(const lp_url_option *option, char **out)
{
    free(*out);
    *out = strndup(option->value, option->value_len);
    return *out ? LAPSE_OK : lp_fail_memory();
}

static int read_verify(const lp_url_option *option, bool *out)
{
    *out = lp_url_value_is(option, "peer");
    return *out || lp_url_value_is(option, "none") ? LAPSE_OK
                                                   : lp_url_refuse(option, "peer or none");
}

/* "30m,2h": each is a delay; "none": no delay has a queue of its own. */
static int read_fixed(const lp_url_option *option, rabbit_settings *out)
{
    const char *at = option->value, *end = at + option->value_len;
    out->fixed_given = true;
    out->fixed_count = 0;
    if (lp_url_value_is(option, "none"))
        return LAPSE_OK;
    while (at <= end) {
        const char *comma = memchr(at, ',', (size_t)(end - at));
        lp_url_option one = {.name = option->name, .name_len = option->name_len, .value = at};
        one.value_len = (size_t)((comma ? comma : end) - at);
        lapse_ns delay;
        if (out->fixed_count == LP_RABBIT_FIXED_MOST)
            return lp_url_refuse(option, "16 delays at most");
        int code = lp_url_duration(&one, LAPSE_MS(1), LAPSE_DAYS(3650), &delay);
        if (code < 0)
            return code;
        out->fixed[out->fixed_count++] = delay / LAPSE_MS(1) + (delay % LAPSE_MS(1) > 0);
        at += one.value_len + 1;
    }
    return LAPSE_OK;
}

static int read_ticket(const lp_url_option *option, rabbit_settings *out)
{
    if (option->value_len == 0)
        return lp_url_refuse(option, "the URL of the store that keeps the orders, %-encoded");
    return lp_url_decoded(option, "ticket", &out->ticket);
}

static int read_own(const lp_url_option *option, void *arg)
{
    rabbit_settings *out = arg;
    int code = lp_rabbit_read_shop(option, &out->shop);
    if (code <= 0)
        return code;
    if (lp_url_is(option, "prefix"))
        return read_prefix(option, out);
    if (lp_url_is(option, "fixed"))
        return read_fixed(option, out);
    if (lp_url_is(option, "ticket"))
        return read_ticket(option, out);
    out->poll_given = out->poll_given || lp_url_is(option, "poll");
    if (lp_url_is(option, "poll"))
        return lp_url_duration(option, LAPSE_MS(1), LAPSE_HOURS(1), &out->poll);
    if (lp_url_is(option, "timeout"))
        return lp_url_duration(option, LAPSE_MS(10), LAPSE_HOURS(1), &out->timeout);
    if (lp_url_is(option, "new"))
        return lp_url_duration(option, 0, LAPSE_MINUTES(1), &out->settle);
    if (lp_url_is(option, "heartbeat"))
        return lp_url_duration(option, LAPSE_SECONDS(1), LAPSE_HOURS(1), &out->heartbeat);
    if (lp_url_is(option, "cacert"))
        return read_text(option, &out->cacert);
    if (lp_url_is(option, "cert"))
        return read_text(option, &out->cert);
    if (lp_url_is(option, "key"))
        return read_text(option, &out->key);
    if (lp_url_is(option, "verify"))
        return read_verify(option, &out->verify);
    return lp_url_unknown(
        option, "amqp",
        "prefix, fixed, ticket, timeout, heartbeat, poll, new, cacert, cert, key, verify, work, "
        "queue, delay_exchange, routing_key, ttl, expiration, id, max_dead, lease, stuck_after");
}

/* A broker cannot count what is on its way in several queues as one step of publishing. */
static int check_limits(const lp_store_config *config, const rabbit_settings *out)
{
    if (out->ticket && (out->shop.work || out->shop.exchange))
        return lp_fail(LAPSE_EURL, "with ticket= RabbitMQ only wakes: leave work= and "
                                   "delay_exchange= out");
    if (out->ticket)
        return LAPSE_OK;
    if (config->max_pending || config->overflow != LAPSE_REFUSE)
        return lp_fail(LAPSE_EUNSUPPORTED,
                       "RabbitMQ by itself cannot hold max_pending or overflow: leave them out, or "
                       "give the URL ticket= and another store");
    return LAPSE_OK;
}

static int or_default(char **text, const char *standard)
{
    if (!*text)
        *text = strdup(standard);
    return *text ? LAPSE_OK : lp_fail_memory();
}

static int take_place(lp_url_place *place, rabbit_settings *out)
{
    out->user = place->user;
    out->password = place->password;
    out->host = place->host;
    if (place->path && *place->path) {
        out->vhost = place->path;
        place->path = NULL;
    }
    place->user = place->password = place->host = NULL;
    out->port = place->port ? place->port : out->tls ? 5671 : 5672;
    int code = or_default(&out->user, "guest");
    if (code == LAPSE_OK)
        code = or_default(&out->password, "guest");
    if (code == LAPSE_OK)
        code = or_default(&out->host, "localhost");
    return code < 0 ? code : or_default(&out->vhost, "/");
}

int lp_rabbit_read_url(lp_store_config *config, rabbit_settings *out)
{
    *out = (rabbit_settings){.prefix = "lapse",
                             .poll = LAPSE_SECONDS(1),
                             .timeout = LAPSE_SECONDS(5),
                             .heartbeat = LAPSE_SECONDS(10),
                             .settle = LAPSE_SECONDS(2),
                             .verify = true,
                             .tls = strncmp(config->url, "amqps:", 6) == 0};
    lp_url_place place;
    int code = lp_url_read_place(config->url, &place);
    if (code < 0)
        return code;
    code = take_place(&place, out);
    lp_url_free_place(&place);
    if (code == LAPSE_OK)
        code = lp_url_read_options(config, read_own, out);
    if (code == LAPSE_OK)
        code = check_limits(config, out);
    if (code == LAPSE_OK)
        code = lp_rabbit_check_shop(&out->shop);
    if (code == LAPSE_OK && !out->cert != !out->key)
        code = lp_fail(LAPSE_EURL, "the URL options cert and key go together: one is missing");
    if (code < 0)
        return code;
    if (out->ticket && !out->poll_given)
        out->poll = LAPSE_SECONDS(10); /* Wake-ups come first. */
    lp_url_fill_in(config);
    return LAPSE_OK;
}

void lp_rabbit_free_settings(rabbit_settings *s)
{
    lp_url_place place = {
        .user = s->user, .password = s->password, .host = s->host, .path = s->vhost};
    lp_url_free_place(&place);
    free(s->cacert);
    free(s->cert);
    free(s->key);
    lp_rabbit_free_shop(&s->shop);
    if (s->ticket) /* It may hold a password. */
        explicit_bzero(s->ticket, strlen(s->ticket));
    free(s->ticket);
    s->ticket = NULL;
    s->user = s->password = s->host = s->vhost = s->cacert = s->cert = s->key = NULL;
}
