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

/* Between two tries, the second twice as long as the first. Whoever may not listen is not told so
 * again and again: rights change now and then. */
static const lapse_ns PAUSE = LAPSE_SECONDS(1), PAUSE_MAX = LAPSE_MINUTES(1),
                      PAUSE_REFUSED = LAPSE_MINUTES(10);

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

static int try_to_listen(redis_store *d)
{
    int code = lp_redis_connect(&d->options, &d->hint);
    if (code < 0) {
        d->hint = NULL;
        return code;
    }
    code = subscribe_all(d);
    if (code < 0)
        lp_redis_stop_listening(d);
    return code;
}

/* Without one nothing is lost but some time. */
void lp_redis_listen(redis_store *d)
{
    lp_detail kept;
    lapse_ns now = lp_clock_monotonic();
    if (d->hint || now < d->hint_retry_at)
        return;
    lp_detail_save(&kept);
    int code = try_to_listen(d);
    bool refused = code < 0 && code != LAPSE_EOFFLINE;
    lp_detail_restore(&kept);
    d->hint_pause = code == LAPSE_OK ? 0 : d->hint_pause ? 2 * d->hint_pause : PAUSE;
    if (d->hint_pause > PAUSE_MAX)
        d->hint_pause = PAUSE_MAX;
    d->hint_retry_at = lp_add_ns(now, refused ? PAUSE_REFUSED : code < 0 ? d->hint_pause : PAUSE);
    if (refused && !d->is_open)
        lp_redis_warn(d,
                      "this user of Redis may not subscribe to the store's channel: what others "
                      "schedule is noticed by polling alone; allow +subscribe and &{prefix}:wake");
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
