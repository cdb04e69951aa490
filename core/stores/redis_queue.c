/* redis_queue.c - the queues: their names and numbers, as far as they are known here.
 *
 * A queue gets its number, which is made of its name, when its first order is scheduled, and keeps
 * it. What a server has lost of them is not known here either once the link to it is new. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "stores/redis.h"

static size_t place_of(const redis_store *d, const char *name)
{
    size_t lo = 0, hi = d->queue_count;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (strcmp(d->queues[mid].name, name) < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

int64_t lp_redis_queue(const redis_store *d, const char *name)
{
    size_t at = place_of(d, name);
    bool found = at < d->queue_count && strcmp(d->queues[at].name, name) == 0;
    return found ? d->queues[at].number : -1;
}

const char *lp_redis_queue_name(const redis_store *d, int64_t number)
{
    for (size_t i = 0; i < d->queue_count; i++)
        if (d->queues[i].number == number)
            return d->queues[i].name;
    return NULL;
}

void lp_redis_forget_queues(redis_store *d)
{
    for (size_t i = 0; i < d->queue_count; i++)
        free(d->queues[i].name);
    d->queue_count = 0;
}

static int make_room(redis_store *d)
{
    if (d->queue_count < d->queue_room)
        return LAPSE_OK;
    size_t room = d->queue_room ? 2 * d->queue_room : 16;
    redis_queue *more = realloc(d->queues, room * sizeof *more);
    if (!more)
        return lp_fail_memory();
    d->queues = more;
    d->queue_room = room;
    return LAPSE_OK;
}

static int add(redis_store *d, const redisReply *name, const redisReply *number)
{
    if (name->type != REDIS_REPLY_STRING || number->type != REDIS_REPLY_STRING)
        return lp_fail(LAPSE_EDATA, "the list of queues in Redis is damaged");
    if (lp_redis_queue(d, name->str) >= 0)
        return LAPSE_OK;
    int code = make_room(d);
    char *copy = code < 0 ? NULL : strdup(name->str);
    if (!copy)
        return lp_fail_memory();
    size_t at = place_of(d, copy);
    memmove(d->queues + at + 1, d->queues + at, (d->queue_count - at) * sizeof *d->queues);
    d->queues[at] = (redis_queue){.name = copy, .number = strtoll(number->str, NULL, 10)};
    d->queue_count++;
    return LAPSE_OK;
}

int lp_redis_read_queues(redis_store *d)
{
    lp_redis_clear(&d->words);
    lp_redis_text(&d->words, "HGETALL");
    lp_redis_text(&d->words, d->keys[1]);
    redisReply *r = lp_redis_ask(d->link, &d->words);
    if (!r)
        return LAPSE_EOFFLINE;
    int code = r->type == REDIS_REPLY_ERROR ? lp_redis_refused(r) : LAPSE_OK;
    for (size_t i = 0; code == LAPSE_OK && i + 1 < r->elements; i += 2)
        code = add(d, r->element[i], r->element[i + 1]);
    freeReplyObject(r);
    return code;
}
