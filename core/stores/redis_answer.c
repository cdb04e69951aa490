/* redis_answer.c - a job as words for the script, and the script's answer as the job's. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "stores/redis.h"

/* -- Replies -- */

const redisReply *lp_redis_item(const redisReply *r, size_t i)
{
    bool has = r && r->type == REDIS_REPLY_ARRAY && i < r->elements;
    return has ? r->element[i] : NULL;
}

int64_t lp_redis_at(const redisReply *r, size_t i, int64_t none)
{
    const redisReply *e = lp_redis_item(r, i);
    return e && e->type == REDIS_REPLY_INTEGER ? e->integer : none;
}

/* -- Times -- */

lapse_ns lp_redis_scheduler_time(const redis_store *d, int64_t ms)
{
    lapse_ns utc = LAPSE_MS(ms);
    return lp_sum_ns(utc, -d->ahead);
}

static int64_t ceil_us(lapse_ns t)
{
    return t / 1000 + (t % 1000 > 0);
}

/* How long from the turn's beginning on, as the script adds it to its own time. */
static int64_t delay_of(const redis_store *d, const lp_turn *t, lapse_ns due)
{
    lapse_ns cut = d->config.manual ? lp_sum_ns(t->now, d->ahead) % 1000
                                    : 0; /* The script is told whole us. */
    return ceil_us(lp_sum_ns(due, -t->now) + cut);
}

/* An instant that is past is one that the store has given: it comes back as it was. */
static void write_instant(redis_store *d, const lp_turn *t, lapse_ns due)
{
    if (due > t->now) {
        lp_redis_number(&d->words, -1);
        lp_redis_number(&d->words, delay_of(d, t, due));
        return;
    }
    lapse_ns utc = lp_sum_ns(due, d->ahead);
    lp_redis_number(&d->words, utc < 0 ? 0 : (utc + 500000) / 1000000);
    lp_redis_number(&d->words, 0);
}

/* -- Jobs -- */

static void write_switch(redis_store *d, bool on)
{
    lp_redis_text(&d->words, on ? "1" : "0");
}

/* The bytes of a number, the highest first. */
static unsigned char *put_number(unsigned char *at, uint64_t n, int bytes)
{
    while (bytes--)
        *at++ = (unsigned char)(n >> 8 * bytes);
    return at;
}

/* Several in a row share the letter, and the number of them. */
static void write_schedule(redis_store *d, const lp_turn *t, const lp_job *j)
{
    enum { REPLACE = 1, TELL = 2, SIZE = 8 + 8 + 1 };
    words *w = &d->words;
    unsigned char head[SIZE], *at = head;
    at = put_number(at, (uint64_t)delay_of(d, t, j->due), 8);
    at = put_number(at, (uint64_t)j->unstarted, 8);
    *at = (unsigned char)((j->replace ? REPLACE : 0) | (j->infos ? TELL : 0));
    lp_redis_copy(w, head, sizeof head);
    lp_redis_word(w, j->id, j->id_len);
    lp_redis_word(w, j->payload, j->payload_len);
    lp_redis_text(w, j->queue); /* The server alone knows its number. */
}

static void write_named(redis_store *d, const char *letter, const lp_job *j)
{
    lp_redis_text(&d->words, letter);
    lp_redis_word(&d->words, j->id, j->id_len);
    lp_redis_number(&d->words, j->generation);
}

static void write_purge(redis_store *d, const lp_job *j)
{
    lp_redis_text(&d->words, "P");
    write_switch(d, j->id == NULL);
    lp_redis_word(&d->words, j->id, j->id ? j->id_len : 0);
    lp_redis_number(&d->words, j->generation);
}

/* Who holds what. The letter of an LP_END stands before the first of several. */
static void write_claim(redis_store *d, const char *letter, const lp_job *j)
{
    if (letter)
        lp_redis_text(&d->words, letter);
    lp_redis_word(&d->words, j->id, j->id_len);
    lp_redis_number(&d->words, j->fence);
}

static void write_again(redis_store *d, const lp_turn *t, const lp_job *j)
{
    write_claim(d, "A", j);
    write_instant(d, t, j->due);
    write_instant(d, t, j->at);
    write_switch(d, j->counted);
}

static void write_death(redis_store *d, const lp_job *j)
{
    write_claim(d, "D", j);
    lp_redis_number(&d->words, (int64_t)j->reason);
    write_switch(d, j->error != NULL);
    lp_redis_text(&d->words, j->error ? j->error : "");
    write_switch(d, j->counted);
    write_switch(d, j->infos != NULL);
}

static walk *find_walk(redis_store *d, uint64_t cursor)
{
    walk *w = &d->walks[cursor % LP_REDIS_WALKS];
    return cursor && w->cursor == cursor ? w : NULL;
}

static void write_list(redis_store *d, const lp_job *j)
{
    static const walk start = {0};
    const walk *at = find_walk(d, *j->cursor);
    at = at ? at : &start;
    lp_redis_text(&d->words, "L");
    /* One that was forgotten is at its end, where nothing is found. */
    lp_redis_number(&d->words, *j->cursor && at == &start ? 4 : at->part);
    lp_redis_text(&d->words, at->score);
    lp_redis_word(&d->words, at->member, at->len);
    lp_redis_number(&d->words, j->states);
    lp_redis_number(&d->words, j->max);
}

void lp_redis_write_job(redis_store *d, const lp_turn *t, lp_job *j)
{
    words *w = &d->words;
    switch (j->op) {
    case LP_SCHEDULE:
        write_schedule(d, t, j);
        return;
    case LP_CANCEL:
        write_named(d, "C", j);
        lp_redis_number(w, j->unstarted);
        return;
    case LP_RESCHEDULE:
        write_named(d, "R", j);
        lp_redis_number(w, delay_of(d, t, j->due));
        lp_redis_number(w, j->unstarted);
        return;
    case LP_GET:
        lp_redis_text(w, "G");
        lp_redis_word(w, j->id, j->id_len);
        lp_redis_number(w, j->unstarted);
        return;
    case LP_REQUEUE:
        write_named(d, "Q", j);
        lp_redis_number(w, delay_of(d, t, j->due));
        return;
    case LP_PURGE:
        write_purge(d, j);
        return;
    case LP_END:
        write_claim(d, NULL, j);
        return;
    case LP_AGAIN:
        write_again(d, t, j);
        return;
    case LP_DIE:
        write_death(d, j);
        return;
    case LP_RENEW:
        write_claim(d, "N", j);
        lp_redis_number(w, ceil_us(j->lease));
        return;
    case LP_HOLDS:
        write_claim(d, "H", j);
        return;
    case LP_LIST:
        write_list(d, j);
        return;
    case LP_QUEUES:
        lp_redis_text(w, "U");
        lp_redis_number(w, (int64_t)*j->cursor);
        lp_redis_number(w, j->max);
        return;
    default: /* LP_COUNT */
        lp_redis_text(w, "K");
        write_switch(d, j->queue == NULL);
        lp_redis_text(w, j->queue ? j->queue : "");
    }
}

/* -- Answers -- */

static char *copy_bytes(const redisReply *r, size_t *len)
{
    *len = r && r->type == REDIS_REPLY_STRING ? r->len : 0;
    char *copy = malloc(*len + 1);
    if (!copy)
        return NULL;
    if (*len)
        memcpy(copy, r->str, *len);
    copy[*len] = '\0';
    return copy;
}

/* What the script's `show` has made. */
static int read_info(const redis_store *d, const lp_turn *t, const redisReply *r, lapse_info *out)
{
    enum { STATE, ID, QUEUE, GENERATION, ATTEMPT, DUE, WHEN, REASON, ERROR, PAYLOAD };
    size_t error_len, queue_len;
    const redisReply *error = lp_redis_item(r, ERROR), *payload = lp_redis_item(r, PAYLOAD);
    lapse_ns when = lp_redis_scheduler_time(d, lp_redis_at(r, WHEN, 0));
    *out = (lapse_info){.state = (lapse_state)lp_redis_at(r, STATE, 0),
                        .due = lp_redis_scheduler_time(d, lp_redis_at(r, DUE, 0)),
                        .generation = lp_redis_at(r, GENERATION, 0),
                        .attempt = (int)lp_redis_at(r, ATTEMPT, 0),
                        .reason = (lapse_reason)lp_redis_at(r, REASON, 0)};
    if (out->state == LAPSE_STATE_PENDING && when > t->now)
        out->remaining = when - t->now;
    if (out->state == LAPSE_STATE_DONE || out->state == LAPSE_STATE_DEAD)
        out->ended = when;
    out->id = copy_bytes(lp_redis_item(r, ID), &out->id_len);
    out->queue = copy_bytes(lp_redis_item(r, QUEUE), &queue_len);
    bool has_error = error && error->type == REDIS_REPLY_STRING;
    if (has_error)
        out->error = copy_bytes(error, &error_len);
    if (payload && payload->len)
        out->payload = copy_bytes(payload, &out->payload_len);
    bool complete = out->id && out->queue && (!has_error || out->error) &&
                    (!payload || !payload->len || out->payload);
    if (complete)
        return LAPSE_OK;
    lapse_info_free(out);
    return lp_fail_memory();
}

static char *copy_name(const redisReply *r, size_t i)
{
    size_t len;
    return copy_bytes(lp_redis_item(r, i), &len);
}

/* What died for room, or at the end of a claim: its queue and itself stand at `i`. */
static void read_death(const redis_store *d, const lp_turn *t, lp_job *j, const redisReply *r,
                       size_t i)
{
    const redisReply *info = lp_redis_item(r, i + 1);
    j->died = true;
    j->of_queue = copy_name(r, i);
    if (j->infos && info && info->type == REDIS_REPLY_ARRAY)
        (void)read_info(d, t, info, j->infos); /* Without memory: not told. */
}

static int exists(const lp_job *j, bool running)
{
    return lp_fail(LAPSE_EEXISTS, "order %s is %s already: cancel it, reschedule it, or replace it",
                   lp_text_quote(j->id, j->id_len), running ? "running" : "pending");
}

static int full(const redis_store *d)
{
    return lp_fail(LAPSE_EFULL,
                   "%llu orders are pending, which is max_pending: cancel some or raise it",
                   (unsigned long long)d->config.max_pending);
}

static int unknown(const lp_job *j)
{
    if (j->op == LP_COUNT)
        return lp_fail(LAPSE_EUNKNOWN, "no queue %s is known",
                       lp_text_quote(j->queue, strlen(j->queue)));
    return lp_fail(LAPSE_EUNKNOWN,
                   j->op == LP_GET ? "no order %s is known" : "there is no dead letter %s",
                   lp_text_quote(j->id, j->id_len));
}

static int damaged(const lp_job *j)
{
    if (j->op == LP_SCHEDULE)
        return lp_fail(LAPSE_EDATA, "the number of queue %s was damaged in Redis: use another name",
                       lp_text_quote(j->queue, strlen(j->queue)));
    if (j->op == LP_REQUEUE)
        return lp_fail(LAPSE_EDATA, "the dead letter %s was damaged in Redis: purge it",
                       lp_text_quote(j->id, j->id_len));
    return lp_fail(LAPSE_EDATA, "the script's answer from Redis is damaged");
}

/* The sentence for what the script refused. */
static int refuse(const redis_store *d, const lp_job *j, const redisReply *r)
{
    int64_t code = lp_redis_at(r, 0, LAPSE_EDATA);
    switch (code) {
    case LAPSE_EEXISTS:
        return exists(j, lp_redis_at(r, 1, 0) == 1);
    case LAPSE_EFULL:
        return full(d);
    case LAPSE_EUNKNOWN:
        return unknown(j);
    case LAPSE_EINVAL:
        return lp_fail(LAPSE_EINVAL, "this store has 2047 queues already: use fewer names");
    case LAPSE_ESTALE:
        return LAPSE_ESTALE; /* Nobody reads it. */
    default:
        return damaged(j);
    }
}

/* The infos that were made so far are of no use any more. */
static void drop_infos(lp_job *j, int n)
{
    while (n)
        lapse_info_free(&j->infos[--n]);
    lp_job_fail(j, lp_fail_memory());
}

/* Where a walk has come to. */
static void note_walk(redis_store *d, lp_job *j, const redisReply *r)
{
    const redisReply *score = lp_redis_item(r, 2), *member = lp_redis_item(r, 3);
    walk *w = find_walk(d, *j->cursor);
    if (!w) {
        *j->cursor = ++d->walk_count;
        w = &d->walks[*j->cursor % LP_REDIS_WALKS];
    }
    *w = (walk){.cursor = *j->cursor, .part = lp_redis_at(r, 1, 4)};
    snprintf(w->score, sizeof w->score, "%s", score && score->str ? score->str : "");
    if (member && member->str && member->len <= sizeof w->member) {
        w->len = member->len;
        memcpy(w->member, member->str, w->len);
    }
    if (w->part >= 4) {
        w->cursor = 0;
        *j->cursor = UINT64_MAX;
    }
}

static void read_list(redis_store *d, const lp_turn *t, lp_job *j, const redisReply *r)
{
    const redisReply *found = lp_redis_item(r, 4);
    if (*j->cursor && !find_walk(d, *j->cursor)) {
        lp_job_fail(j, lp_fail(LAPSE_ETIMEOUT, "too many lists of orders at the same time: "
                                               "list again"));
        return;
    }
    int n = 0;
    for (size_t i = 0; found && i < found->elements && n < j->max; i++, n++)
        if (read_info(d, t, found->element[i], &j->infos[n]) < 0) {
            drop_infos(j, n);
            return;
        }
    note_walk(d, j, r);
    j->answer = n;
}

static void read_counts(const redis_store *d, lp_job *j, const redisReply *r)
{
    int64_t oldest = lp_redis_at(r, 5, -1);
    *j->counts = (lp_counts){
        .pending = (uint64_t)lp_redis_at(r, 1, 0),
        .running = (uint64_t)lp_redis_at(r, 2, 0),
        .kept = (uint64_t)lp_redis_at(r, 3, 0),
        .dead = (uint64_t)lp_redis_at(r, 4, 0),
        .oldest_due = oldest < 0 ? LAPSE_FOREVER : lp_redis_scheduler_time(d, oldest),
    };
    if (!j->queue)
        j->counts->dead_dropped = d->dead_dropped;
}

static void read_names(lp_job *j, const redisReply *r)
{
    const redisReply *names = lp_redis_item(r, 2);
    int64_t next = lp_redis_at(r, 1, -1);
    int n = 0;
    for (size_t i = 0; names && i < names->elements && n < j->max; i++, n++) {
        j->infos[n] = (lapse_info){.queue = copy_name(names, i)};
        if (!j->infos[n].queue) {
            drop_infos(j, n);
            return;
        }
    }
    *j->cursor = next < 0 ? UINT64_MAX : (uint64_t)next;
    j->answer = n;
}

static void read_done(redis_store *d, const lp_turn *t, lp_job *j, const redisReply *r)
{
    switch (j->op) {
    case LP_SCHEDULE:
    case LP_REQUEUE:
        j->replaced = lp_redis_at(r, 1, 0) == 1;
        j->running_fence = lp_redis_at(r, 2, 0);
        if (r->elements > 3)
            read_death(d, t, j, r, 3);
        return;
    case LP_CANCEL:
        if (j->answer == LAPSE_FATE_CANCELLED)
            j->of_queue = copy_name(r, 1);
        if (j->answer == LAPSE_FATE_RUNNING)
            j->running_fence = lp_redis_at(r, 1, 0);
        return;
    case LP_GET:
        if (read_info(d, t, lp_redis_item(r, 1), j->infos) < 0)
            lp_job_fail(j, LAPSE_ENOMEM);
        return;
    case LP_DIE:
        if (j->answer == 0)
            read_death(d, t, j, r, 1);
        return;
    case LP_LIST:
        read_list(d, t, j, r);
        return;
    case LP_COUNT:
        read_counts(d, j, r);
        return;
    case LP_QUEUES:
        read_names(j, r);
        return;
    default:
        return;
    }
}

void lp_redis_read_answer(redis_store *d, const lp_turn *t, lp_job *j, const redisReply *r)
{
    bool is_plain = r && r->type == REDIS_REPLY_INTEGER; /* Nothing but that it was done. */
    j->answer = is_plain ? r->integer : lp_redis_at(r, 0, LAPSE_EDATA);
    if (is_plain)
        return;
    if (j->answer < 0)
        lp_job_fail(j, refuse(d, j, r));
    else
        read_done(d, t, j, r);
}
