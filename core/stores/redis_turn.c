/* redis_turn.c - one turn: a pipeline of calls of the script, each with some of the jobs, the
 * last with the wants.
 *
 * A call is done as a whole or not at all. What is sent and not answered may have been done:
 * LAPSE_EUNSURE. A call that finds no script, or another store than the one that was opened, has
 * done nothing; nor has one that is refused for memory, which only its first write can be. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "stores/redis.h"

enum { PART_JOBS = 64, PART_BYTES = 1 << 20 };
enum { SPLIT_ANEW = 1 }; /* a turn's code: nothing was done, take it again in other parts */

/* One call of the script. */
typedef struct part {
    size_t first, count; /* of the turn's jobs */
    bool claims;         /* it has the wants too */
    redisReply *reply;
} part;

/* -- Writing -- */

static bool brings(const lp_job *j)
{
    return j->op == LP_SCHEDULE || j->op == LP_REQUEUE;
}

static void write_want(redis_store *d, const lp_want *w, size_t number)
{
    words *out = &d->words;
    lp_redis_text(out, "W");
    lp_redis_number(out, (int64_t)number);
    lp_redis_text(out, w->others ? "1" : "0");
    lp_redis_text(out, w->pushed ? "1" : "0");
    lp_redis_text(out, w->newest ? "1" : "0");
    lp_redis_number(out, w->most);
    lp_redis_number(out, (int64_t)w->queue_count);
    for (size_t i = 0; i < w->queue_count; i++)
        lp_redis_text(out, w->queues[i]);
}

/* Those of two kinds that stand in a row are one word of the script, with their number. */
static void write_letter(redis_store *d, const lp_turn *t, const part *p, size_t i)
{
    lp_job *const *jobs = t->jobs + p->first;
    int op = jobs[i]->op;
    if ((op != LP_SCHEDULE && op != LP_END) || (i > 0 && jobs[i - 1]->op == op))
        return;
    size_t n = 1;
    while (i + n < p->count && jobs[i + n]->op == op)
        n++;
    lp_redis_text(&d->words, op == LP_SCHEDULE ? "S" : "E");
    lp_redis_number(&d->words, (int64_t)n);
}

static int append_part(redis_store *d, const lp_turn *t, const part *p)
{
    bool ends = true;
    for (size_t i = 0; i < p->count; i++)
        ends = ends && !brings(t->jobs[p->first + i]);
    lp_redis_begin_call(d, d->identity, t->now, t->lease, ends);
    for (size_t i = 0; i < p->count; i++) {
        write_letter(d, t, p, i);
        lp_redis_write_job(d, t, t->jobs[p->first + i]);
    }
    if (p->claims) {
        lp_redis_text(&d->words, "M");
        lp_redis_number(&d->words, t->push_most);
    }
    for (size_t i = 0; p->claims && i < t->want_count; i++)
        write_want(d, &t->wants[i], i);
    return lp_redis_append(d->link, &d->words);
}

/* Where memory has a limit a part brings orders or it does not: one that brings may be refused, and
 * is not to take with it what ends orders, or claims them. */
static bool is_cut_before(const redis_store *d, const lp_turn *t, size_t i)
{
    return d->is_limited && i > 0 && brings(t->jobs[i - 1]) != brings(t->jobs[i]);
}

/* Whether the wants need a part of their own. */
static bool claims_alone(const redis_store *d, const lp_turn *t)
{
    size_t n = t->job_count;
    return t->want_count && (n == 0 || (d->is_limited && brings(t->jobs[n - 1])));
}

/* Into how many parts, written to `out` unless it is NULL. */
static size_t split(const redis_store *d, const lp_turn *t, part *out)
{
    size_t n = 0, at = 0;
    while (at < t->job_count) {
        size_t first = at, bytes = 0;
        while (at < t->job_count && at - first < PART_JOBS && bytes < PART_BYTES &&
               (at == first || !is_cut_before(d, t, at)))
            bytes += t->jobs[at++]->payload_len;
        if (out)
            out[n] = (part){.first = first, .count = at - first};
        n++;
    }
    if (claims_alone(d, t)) {
        if (out)
            out[n] = (part){.first = t->job_count};
        n++;
    }
    if (out && n && t->want_count)
        out[n - 1].claims = true;
    return n;
}

/* -- Sending -- */

static void drop_replies(part *parts, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (parts[i].reply)
            freeReplyObject(parts[i].reply);
        parts[i].reply = NULL;
    }
}

/* The link is of no use any more. */
static int lose_link(redis_store *d, int code)
{
    lp_detail kept;
    lp_detail_save(&kept);
    lp_redis_close_link(d);
    lp_detail_restore(&kept);
    return code;
}

static int unsure(redis_store *d)
{
    lp_detail said;
    lp_detail_save(&said);
    lp_redis_close_link(d);
    return lp_fail(LAPSE_EUNSURE, "whether it was done is not known: %.400s", said.text);
}

static bool has_no_script(const redisReply *r)
{
    return r->type == REDIS_REPLY_ERROR && strncmp(r->str, "NOSCRIPT", 8) == 0;
}

/* Send the parts that have no reply yet, and read the replies. */
static int exchange(redis_store *d, const lp_turn *t, part *parts, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        int code = parts[i].reply ? LAPSE_OK : append_part(d, t, &parts[i]);
        if (code < 0)
            return lose_link(d, code); /* Nothing was sent. */
    }
    for (size_t i = 0; i < count; i++) {
        if (parts[i].reply)
            continue;
        parts[i].reply = lp_redis_reply(d->link);
        if (!parts[i].reply)
            return unsure(d);
    }
    return LAPSE_OK;
}

/* A server that was restarted has forgotten it: those parts were not done. */
static int exchange_again(redis_store *d, const lp_turn *t, part *parts, size_t count)
{
    bool any = false;
    for (size_t i = 0; i < count; i++) {
        if (!has_no_script(parts[i].reply))
            continue;
        freeReplyObject(parts[i].reply);
        parts[i].reply = NULL;
        any = true;
    }
    if (!any)
        return LAPSE_OK;
    int code = lp_redis_load_scripts(d);
    if (code < 0)
        return t->job_count ? unsure(d) : lose_link(d, code);
    return exchange(d, t, parts, count);
}

/* -- Reading -- */

static bool is_reset(const redisReply *r)
{
    const redisReply *status = lp_redis_item(r, 0);
    return status && status->str && strcmp(status->str, "RESET") == 0;
}

static bool is_done(const redisReply *r)
{
    return r && r->type == REDIS_REPLY_ARRAY && r->elements >= 7;
}

static int fault_of(const redisReply *r)
{
    if (r && r->type == REDIS_REPLY_ERROR)
        return lp_redis_refused(r);
    return lp_fail(LAPSE_EDATA, "the script's answer from Redis is damaged");
}

/* The least that was seen in the last seconds is the nearest: every turn takes some time. */
static void note_time(redis_store *d, const lp_turn *t, int64_t server_us)
{
    static const lapse_ns WINDOW = LAPSE_SECONDS(2);
    if (d->config.manual)
        return;
    lapse_ns seen = server_us * 1000 - t->now;
    if (t->now >= d->ahead_until) {
        d->ahead_until = lp_add_ns(t->now, WINDOW);
        d->ahead = d->ahead_next;
        d->ahead_next = seen;
    }
    d->ahead = seen < d->ahead ? seen : d->ahead;
    d->ahead_next = seen < d->ahead_next ? seen : d->ahead_next;
}

/* What the script has packed, the highest byte first. */
static int64_t read_number(const redisReply *r, size_t first, size_t bytes)
{
    uint64_t n = 0;
    for (size_t i = 0; i < bytes; i++)
        n = n << 8 | (unsigned char)r->str[first + i];
    return (int64_t)n;
}

/* Of a loan the script answers these, and the order's state and record as they stand in Redis. */
enum { WANT, ID, QUEUE, STATE, RECORD, BAD, LOAN_WORDS };

static lp_loan *make_loan(const redis_store *d, const lp_turn *t, redisReply *const *r)
{
    enum { STATE_SIZE = 39, RECORD_HEAD = 9 };
    const redisReply *id = r[ID], *queue = r[QUEUE], *state = r[STATE], *record = r[RECORD];
    if (!id->str || !queue->str || !state->str || !record->str || id->len > LAPSE_ID_MAX ||
        state->len != STATE_SIZE)
        return NULL;
    size_t head = record->len < RECORD_HEAD ? record->len : RECORD_HEAD;
    lp_loan *l = lp_loan_make(id->str, id->len, queue->str, record->str + head, record->len - head);
    if (!l)
        return NULL; /* Its lease ends. */
    static const char *const damages[] = {NULL, "its record was damaged in Redis",
                                          "its queue was damaged in Redis"};
    l->bad = damages[r[BAD]->integer % 3];
    l->want = (size_t)r[WANT]->integer;
    l->generation = read_number(state, 1, 6);
    l->fence = read_number(state, 16, 7);
    l->attempt = (int)read_number(state, 23, 4);
    lapse_ns due = lp_redis_scheduler_time(d, read_number(state, 27, 6));
    l->due = due < t->now ? due : t->now;
    return l;
}

static lp_loan *make_end(const redisReply *r)
{
    const redisReply *id = lp_redis_item(r, 0), *queue = lp_redis_item(r, 1);
    if (!id || !id->str || !queue || !queue->str)
        return NULL;
    lp_loan *l = lp_loan_make(id->str, id->len, queue->str, NULL, 0);
    if (l)
        l->ended = true;
    return l;
}

/* To `end`, and where the next one goes. */
static lp_loan **append_loan(lp_loan **end, lp_loan *l)
{
    if (!l)
        return end;
    *end = l;
    return &l->next;
}

static lp_loan **last_loan(lp_turn *t)
{
    lp_loan **end = &t->loans;
    while (*end)
        end = &(*end)->next;
    return end;
}

static void read_claims(redis_store *d, lp_turn *t, const part *p)
{
    const redisReply *loans = lp_redis_item(p->reply, 4), *nexts = lp_redis_item(p->reply, 5);
    lp_loan **end = last_loan(t);
    for (size_t i = 0; loans && i + LOAN_WORDS <= loans->elements; i += LOAN_WORDS)
        end = append_loan(end, make_loan(d, t, loans->element + i));
    for (size_t i = 0; i < t->want_count; i++) {
        int64_t ms = lp_redis_at(nexts, i, -1);
        t->wants[i].next = ms < 0 ? LAPSE_FOREVER : lp_redis_scheduler_time(d, ms);
    }
}

static void read_part(redis_store *d, lp_turn *t, const part *p)
{
    if (!is_done(p->reply)) {
        int code = fault_of(p->reply);
        for (size_t i = 0; i < p->count; i++)
            lp_job_fail(t->jobs[p->first + i], code);
        for (size_t i = 0; p->claims && i < t->want_count; i++)
            t->wants[i].next = lp_add_ns(t->now, d->options.poll);
        return;
    }
    const redisReply *told = lp_redis_item(p->reply, 2), *answers = lp_redis_item(p->reply, 3);
    lp_loan **end = last_loan(t);
    for (size_t i = 0; told && i < told->elements; i++)
        end = append_loan(end, make_end(told->element[i]));
    for (size_t i = 0; i < p->count; i++)
        lp_redis_read_answer(d, t, t->jobs[p->first + i], lp_redis_item(answers, i));
    d->dead_dropped += (uint64_t)lp_redis_at(p->reply, 6, 0);
    if (p->claims)
        read_claims(d, t, p);
}

static bool is_out_of_memory(const redisReply *r)
{
    return r && r->type == REDIS_REPLY_ERROR && strstr(r->str, "OOM command");
}

/* Nothing was done when every part failed, and none by a fault of its own: that there is no memory
 * is one of the orders that were to be brought. */
static int whole_fault(const part *parts, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (is_done(parts[i].reply) || is_out_of_memory(parts[i].reply))
            return LAPSE_OK;
    return count ? fault_of(parts[0].reply) : LAPSE_OK;
}

/* The limit was set after the server was asked for it. */
static bool finds_a_limit(redis_store *d, const part *parts, size_t count)
{
    size_t refused = 0;
    for (size_t i = 0; i < count; i++)
        refused += is_out_of_memory(parts[i].reply);
    bool is_new = refused && !d->is_limited;
    d->is_limited = d->is_limited || refused;
    return is_new && refused == count;
}

static bool any_reset(const part *parts, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (is_reset(parts[i].reply))
            return true;
    return false;
}

/* -- Replicas -- */

static void doubt(const redis_store *d, lp_job *j, long long confirmed)
{
    if (!lp_job_is_promise(j) || j->answer < 0)
        return;
    lp_job_fail(j, lp_fail(LAPSE_EUNSURE,
                           "it was done, but %lld replicas have confirmed it and the URL says "
                           "wait=%llu: a fail-over may lose it; look, or ask again",
                           confirmed, (unsigned long long)d->options.wait));
}

/* What was answered holds only once so many replicas have it. The link is lost with the answer:
 * then it is not known. */
static int confirm(redis_store *d, lp_turn *t)
{
    if (d->options.wait == 0 || !lp_turn_promises(t))
        return LAPSE_OK;
    lp_redis_clear(&d->words);
    lp_redis_text(&d->words, "WAIT");
    lp_redis_number(&d->words, (int64_t)d->options.wait);
    lp_redis_number(&d->words, d->options.wait_limit / LAPSE_MS(1));
    redisReply *r = lp_redis_ask(d->link, &d->words);
    long long confirmed = r && r->type == REDIS_REPLY_INTEGER ? r->integer : 0;
    if (!r)
        lp_redis_close_link(d);
    else
        freeReplyObject(r);
    for (size_t i = 0; confirmed < (long long)d->options.wait && i < t->job_count; i++)
        doubt(d, t->jobs[i], confirmed);
    return LAPSE_OK;
}

/* -- The turn -- */

static void read_parts(redis_store *d, lp_turn *t, const part *parts, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (is_done(parts[i].reply))
            note_time(d, t, lp_redis_at(parts[i].reply, 1, 0));
    for (size_t i = 0; i < count; i++)
        read_part(d, t, &parts[i]);
}

static int take_turn(redis_store *d, lp_turn *t, part *parts, size_t count)
{
    int code = exchange(d, t, parts, count);
    if (code == LAPSE_OK)
        code = exchange_again(d, t, parts, count);
    if (code < 0)
        return code;
    if (any_reset(parts, count))
        return lp_redis_open_link(d, t->now);
    if (finds_a_limit(d, parts, count))
        return SPLIT_ANEW;
    code = whole_fault(parts, count);
    if (code == LAPSE_EOFFLINE)
        return lose_link(d, code);
    if (code < 0)
        return code;
    read_parts(d, t, parts, count);
    return confirm(d, t);
}

/* Whether the turn can be taken again when nothing is known of it: what it may have claimed is
 * claimed again when its lease ends. */
static bool only_looks(const lp_turn *t)
{
    for (size_t i = 0; i < t->job_count; i++)
        if (!lp_job_is_look(t->jobs[i]))
            return false;
    return true;
}

static int try_turn(redis_store *d, lp_turn *t)
{
    if (d->link && lp_redis_is_cut(d->link))
        lp_redis_close_link(d);
    int code = d->link ? LAPSE_OK : lp_redis_open_link(d, t->now);
    if (code < 0)
        return code;
    lp_redis_listen(d);
    size_t count = split(d, t, NULL);
    part *parts = calloc(count + 1, sizeof *parts);
    if (!parts)
        return lp_fail_memory();
    split(d, t, parts);
    if (count)
        code = take_turn(d, t, parts, count);
    drop_replies(parts, count);
    free(parts);
    return code;
}

int lp_redis_turn(redis_store *d, lp_turn *t)
{
    lp_turn_begin(t);
    int code = try_turn(d, t);
    if (code == SPLIT_ANEW || (code == LAPSE_EUNSURE && only_looks(t)))
        code = try_turn(d, t);
    return code;
}
