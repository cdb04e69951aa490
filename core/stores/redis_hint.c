/* redis_hint.c - a second connection, on which the script's hints come.
 *
 * A hint says that a queue has a new first order. What it says in detail is not read: the driver
 * looks, as it also does now and then without one. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/error.h"
#include "stores/redis.h"

static const lapse_ns RETRY = LAPSE_SECONDS(1);

static int subscribe(redis_store *d, const char *verb, const char *channel)
{
    lp_redis_clear(&d->words);
    lp_redis_text(&d->words, verb);
    lp_redis_text(&d->words, channel);
    redisReply *r = lp_redis_ask(d->hint, &d->words);
    if (!r)
        return LAPSE_EOFFLINE;
    int code = r->type == REDIS_REPLY_ERROR ? lp_redis_refused(r) : LAPSE_OK;
    freeReplyObject(r);
    return code;
}

/* That Redis tells of what happens to a key needs its option notify-keyspace-events. */
static int subscribe_all(redis_store *d)
{
    int code = subscribe(d, "SUBSCRIBE", d->channel);
    if (code < 0 || !d->options.events)
        return code;
    char channel[160];
    snprintf(channel, sizeof channel, "__keyspace@%llu__:%s", (unsigned long long)d->options.db,
             d->keys[4]);
    return subscribe(d, "SUBSCRIBE", channel);
}

void lp_redis_stop_listening(redis_store *d)
{
    if (d->hint)
        redisFree(d->hint);
    d->hint = NULL;
}

/* Without one nothing is lost but some time. */
void lp_redis_listen(redis_store *d)
{
    lapse_ns now = lp_clock_monotonic();
    if (d->hint || now < d->hint_retry_at)
        return;
    d->hint_retry_at = lp_add_ns(now, RETRY);
    if (lp_redis_connect(&d->options, &d->hint) < 0) {
        d->hint = NULL;
        return;
    }
    if (subscribe_all(d) < 0)
        lp_redis_stop_listening(d);
}

void lp_redis_drain(redis_store *d)
{
    char bytes[4096];
    ssize_t n = 1;
    while (d->hint && n > 0)
        n = recv(d->hint->fd, bytes, sizeof bytes, MSG_DONTWAIT);
    bool is_open = n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR);
    if (d->hint && !is_open)
        lp_redis_stop_listening(d);
}
