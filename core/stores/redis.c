/* redis.c - orders in Redis: the store's table, opening, closing, connecting anew.
 *
 * redis.h says how orders are kept, redis_turn.c what a turn is. */
#define _GNU_SOURCE /* getrandom */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/clock.h"
#include "base/error.h"
#include "stores/redis.h"

/* -- Calls of the script -- */

/* Under a manual clock the server's time is invented as well: as the wall clock stood when the
 * store was opened, and moved by no step of it. */
void lp_redis_begin_call(redis_store *d, const char *identity, lapse_ns now, lapse_ns lease,
                         bool ends)
{
    words *w = &d->words;
    lp_redis_clear(w);
    lp_redis_text(w, "EVALSHA");
    lp_redis_text(w, d->sha[ends && *d->sha[1]]);
    lp_redis_number(w, LP_REDIS_KEYS);
    for (int i = 0; i < LP_REDIS_KEYS; i++)
        lp_redis_text(w, d->keys[i]);
    lp_redis_text(w, identity);
    if (d->config.manual)
        lp_redis_number(w, lp_sum_ns(now, d->ahead) / 1000);
    else
        lp_redis_text(w, "");
    lp_redis_text(w, d->channel);
    lp_redis_number(w, d->config.max_dead < INT64_MAX ? (int64_t)d->config.max_dead : INT64_MAX);
    lp_redis_number(w,
                    d->config.max_pending < INT64_MAX ? (int64_t)d->config.max_pending : INT64_MAX);
    lp_redis_text(w, d->config.overflow == LAPSE_DEAD_LETTER_OLDEST ? "1" : "0");
    lp_redis_number(w, lease / 1000 + (lease % 1000 > 0));
}

static int load_script(redis_store *d, int which)
{
    char *script = lp_redis_script(which == 1);
    if (!script)
        return lp_fail_memory();
    lp_redis_clear(&d->words);
    lp_redis_text(&d->words, "SCRIPT");
    lp_redis_text(&d->words, "LOAD");
    lp_redis_text(&d->words, script);
    redisReply *r = lp_redis_ask(d->link, &d->words);
    free(script);
    if (!r)
        return LAPSE_EOFFLINE;
    int code = r->type == REDIS_REPLY_ERROR ? lp_redis_refused(r) : LAPSE_OK;
    if (code == LAPSE_OK)
        snprintf(d->sha[which], sizeof d->sha[which], "%s", r->str);
    freeReplyObject(r);
    return code;
}

int lp_redis_load_scripts(redis_store *d)
{
    int code = load_script(d, 0);
    *d->sha[1] = '\0';
    return code < 0 || d->version < 7 ? code : load_script(d, 1);
}

/* -- The store in the server -- */

static int new_identity(char out[LP_REDIS_IDENTITY + 1])
{
    unsigned char bytes[LP_REDIS_IDENTITY / 2];
    if (getrandom(bytes, sizeof bytes, 0) != (ssize_t)sizeof bytes)
        return lp_fail(LAPSE_ESYSTEM, "getrandom failed");
    for (size_t i = 0; i < sizeof bytes; i++)
        snprintf(out + 2 * i, 3, "%02x", bytes[i]);
    return LAPSE_OK;
}

/* The ages of the orders that were there before somebody needed them. */
static int build_ages(redis_store *d, lapse_ns now)
{
    char cursor[24] = "0";
    do {
        lp_redis_clear(&d->words);
        lp_redis_text(&d->words, "HSCAN");
        lp_redis_text(&d->words, d->keys[2]);
        lp_redis_text(&d->words, cursor);
        lp_redis_text(&d->words, "COUNT");
        lp_redis_text(&d->words, "200");
        redisReply *r = lp_redis_ask(d->link, &d->words);
        const redisReply *found = r ? lp_redis_item(r, 1) : NULL;
        if (!found) {
            int code = r && r->type == REDIS_REPLY_ERROR ? lp_redis_refused(r) : LAPSE_EOFFLINE;
            if (r)
                freeReplyObject(r);
            return code;
        }
        snprintf(cursor, sizeof cursor, "%s", r->element[0]->str);
        lp_redis_begin_call(d, d->identity, now, 0, true);
        lp_redis_text(&d->words, "B");
        lp_redis_number(&d->words, (int64_t)found->elements / 2);
        for (size_t i = 0; i + 1 < found->elements; i += 2)
            lp_redis_word(&d->words, found->element[i]->str, found->element[i]->len);
        lp_redis_text(&d->words, strcmp(cursor, "0") == 0 ? "1" : "0");
        redisReply *done = lp_redis_ask(d->link, &d->words);
        freeReplyObject(r);
        int code = !done                             ? LAPSE_EOFFLINE
                   : done->type == REDIS_REPLY_ERROR ? lp_redis_refused(done)
                                                     : LAPSE_OK;
        if (done)
            freeReplyObject(done);
        if (code < 0)
            return code;
    } while (strcmp(cursor, "0") != 0);
    return LAPSE_OK;
}

static void read_store(redis_store *d, const redisReply *answer)
{
    const redisReply *id = lp_redis_item(answer, 1);
    snprintf(d->identity, sizeof d->identity, "%s", id && id->str ? id->str : "");
    d->config.keep = lp_redis_at(answer, 2, 0) * 1000;
}

static int other_layout(const redisReply *answer)
{
    const redisReply *v = lp_redis_item(answer, 1);
    return lp_fail(LAPSE_EDATA,
                   "the store in Redis was made by another version of lapse (layout %.20s, this "
                   "one knows 2): use another prefix",
                   v && v->str ? v->str : "?");
}

int lp_redis_open_store(redis_store *d, lapse_ns now)
{
    char fresh[LP_REDIS_IDENTITY + 1], before[LP_REDIS_IDENTITY + 1];
    int code = new_identity(fresh);
    if (code < 0)
        return code;
    memcpy(before, d->identity, sizeof before);
    lp_redis_begin_call(d, "", now, 0, true); /* Who is to make room must be able to come. */
    lp_redis_text(&d->words, "O");
    lp_redis_text(&d->words, fresh);
    lp_redis_number(&d->words, d->options.keep_given
                                   ? d->config.keep / 1000 + (d->config.keep % 1000 > 0)
                                   : -1);
    lp_redis_text(&d->words, d->config.overflow == LAPSE_DEAD_LETTER_OLDEST ? "1" : "0");
    redisReply *r = lp_redis_ask(d->link, &d->words);
    if (!r)
        return LAPSE_EOFFLINE;
    const redisReply *answers = lp_redis_item(r, 3);
    const redisReply *answer = answers ? lp_redis_item(answers, 0) : NULL;
    bool build = false;
    if (r->type == REDIS_REPLY_ERROR)
        code = lp_redis_refused(r);
    else if (!answer || lp_redis_at(answer, 0, -1) < 0)
        code = other_layout(answer);
    else {
        read_store(d, answer);
        build = lp_redis_at(answer, 3, 0) == 1;
        if (!d->config.manual)
            d->ahead = d->ahead_next = lp_redis_at(r, 1, 0) * 1000 - now;
    }
    freeReplyObject(r);
    if (code == LAPSE_OK && build)
        code = build_ages(d, now);
    if (code < 0) {
        memcpy(d->identity, before,
               sizeof before); /* It is not open: a reset is still to be told. */
        return code;
    }
    return *before && strcmp(before, d->identity) != 0;
}

/* -- The link -- */

void lp_redis_close_link(redis_store *d)
{
    if (d->link)
        redisFree(d->link);
    d->link = NULL;
    lp_redis_stop_listening(d);
}

static int was_reset(void)
{
    return lp_fail(LAPSE_EDATA,
                   "the Redis store was reset: its orders are gone (flushed, lost with "
                   "the server, or another server answers); schedule again those "
                   "that need a timer");
}

static int set_up(redis_store *d, lapse_ns now)
{
    int code = lp_redis_check(d);
    if (code == LAPSE_OK)
        code = lp_redis_load_scripts(d);
    if (code == LAPSE_OK)
        code = lp_redis_open_store(d, now);
    return code == 1 ? was_reset() : code;
}

/* LAPSE_EDATA for a store that was reset leaves the link open: the next turn is in the new one. */
int lp_redis_open_link(redis_store *d, lapse_ns now)
{
    lp_redis_close_link(d);
    int code = lp_redis_connect(&d->options, &d->link);
    if (code < 0) {
        d->link = NULL;
        return code;
    }
    code = set_up(d, now);
    if (code < 0 && code != LAPSE_EDATA) {
        lp_detail kept;
        lp_detail_save(&kept);
        lp_redis_close_link(d);
        lp_detail_restore(&kept);
        return code;
    }
    d->hint_retry_at = d->hint_pause = 0;
    lp_redis_listen(d);
    return code;
}

/* -- The table -- */

static void name_keys(redis_store *d)
{
    static const char *const names[LP_REDIS_KEYS] = {"meta",   "queues",  "job",  "state", "due",
                                                     "run",    "over",    "past", "ended", "dead",
                                                     "deaths", "deadids", "age",  "next"};
    for (int i = 0; i < LP_REDIS_KEYS; i++)
        snprintf(d->keys[i], sizeof d->keys[i], "{%s}:%s", d->options.prefix, names[i]);
    snprintf(d->channel, sizeof d->channel, "{%s}:wake", d->options.prefix);
}

static void free_store(redis_store *d)
{
    lp_redis_close_link(d);
    lp_redis_free_words(&d->words);
    lp_redis_free_settings(&d->options);
    free(d);
}

static void close_store(lp_durable *durable)
{
    free_store((redis_store *)durable);
}

static int open_store(lp_store_config *config, lp_durable **out)
{
    redis_store *d = calloc(1, sizeof *d);
    if (!d)
        return lp_fail_memory();
    d->base.ops = &lp_redis_store;
    int code = lp_redis_read_url(config, &d->options);
    d->config = *config;
    d->config.url = NULL; /* the caller's */
    /* A turn that waits must not outlast the leases that it would renew. */
    if (d->options.timeout > config->lease / 3)
        d->options.timeout = config->lease / 3;
    d->ahead = config->wall - config->now; /* What a manual clock's server shows, for good. */
    name_keys(d);
    hush h = lp_redis_hush();
    if (code == LAPSE_OK)
        code = lp_redis_open_link(d, config->now);
    lp_redis_unhush(&h);
    if (code < 0) {
        free_store(d);
        return code;
    }
    d->is_open = true;
    config->keep = d->config.keep;
    *out = &d->base;
    return LAPSE_OK;
}

static int turn(lp_durable *durable, lp_turn *t)
{
    hush h = lp_redis_hush();
    int code = lp_redis_turn((redis_store *)durable, t);
    lp_redis_unhush(&h);
    return code;
}

static int hint_fd(lp_durable *durable)
{
    const redis_store *d = (redis_store *)durable;
    return d->hint ? d->hint->fd : -1;
}

static void hinted(lp_durable *durable)
{
    lp_redis_drain((redis_store *)durable);
}

/* Hints wait at hint_fd. */
static bool sleeps(lp_durable *durable, lapse_ns next, lapse_ns now)
{
    (void)durable, (void)next, (void)now;
    return false;
}

static lapse_ns poll_every(const lp_durable *durable)
{
    return ((const redis_store *)durable)->options.poll;
}

static const char *warning(const lp_durable *durable, int n)
{
    const redis_store *d = (const redis_store *)durable;
    return n < d->warning_count ? d->warnings[n] : NULL;
}

const lp_durable_ops lp_redis_store = {
    .scheme = "redis",
    .abilities =
        LAPSE_CAN_DURABLE | LAPSE_CAN_SHARE | LAPSE_CAN_CANCEL | LAPSE_CAN_LIST | LAPSE_CAN_LIMIT,
    .open = open_store,
    .close = close_store,
    .turn = turn,
    .hint_fd = hint_fd,
    .hinted = hinted,
    .sleeps = sleeps,
    .poll = poll_every,
    .warning = warning,
};
