/* rabbitmq_dead.c - dead letters: the queue of them, looked through, requeued, purged.
 *
 * A queue is looked through by getting its messages without acknowledging them, and giving them
 * back afterwards. Who looks at the same instant sees those that nobody else is looking at. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "stores/rabbitmq.h"

static const lapse_ns WALK_LIMIT = LAPSE_SECONDS(5); /* a walk that nobody goes on with ends */

static const char *name_dead(const rabbit_store *d)
{
    static _Thread_local char name[LP_RABBIT_NAME_MAX + 1];
    lp_rabbit_name(name, d->settings.prefix, "dead");
    return name;
}

/* The next of the queue: 1, 0 when there is none. */
static int look(rabbit_store *d, rabbit_message **out)
{
    int code = lp_rabbit_get(&d->in, LP_RABBIT_LOOK, name_dead(d));
    *out = code == 1 ? d->looked : NULL;
    if (*out)
        d->looked = (*out)->next;
    return code < 0 ? code : *out != NULL;
}

/* `count` messages up to a tag; who looks next is to find them. */
static int give_back_to(rabbit_store *d, uint64_t tag, uint64_t count)
{
    if (count == 0)
        return LAPSE_OK;
    int code = lp_rabbit_requeue(&d->in, LP_RABBIT_LOOK, tag, true);
    return code < 0 ? code : lp_rabbit_await_count(&d->in, LP_RABBIT_DECLARE, name_dead(d), count);
}

int lp_rabbit_end_walk(rabbit_store *d)
{
    uint64_t tag = d->walk_tag, count = d->walk_count;
    d->walk = d->walk_tag = d->walk_count = 0;
    return give_back_to(d, tag, count);
}

/* -- Listing -- */

static char *copy_bytes(const void *bytes, size_t len)
{
    char *copy = malloc(len + 1);
    if (!copy)
        return NULL;
    if (len)
        memcpy(copy, bytes, len);
    copy[len] = '\0';
    return copy;
}

static int show(const lp_turn *t, const rabbit_message *m, lapse_info *out)
{
    const rabbit_order *o = &m->order;
    *out = (lapse_info){.state = LAPSE_STATE_DEAD,
                        .id = copy_bytes(o->id, o->id_len),
                        .id_len = o->id_len,
                        .queue = strdup(o->queue),
                        .payload = o->payload_len ? copy_bytes(o->payload, o->payload_len) : NULL,
                        .payload_len = o->payload_len,
                        .due = lp_rabbit_scheduler_time(t, o->due),
                        .ended = o->ended ? lp_rabbit_scheduler_time(t, o->ended) : LP_UNKNOWN_TIME,
                        .generation = o->generation,
                        .attempt = o->attempt,
                        .reason = o->reason,
                        .error = o->error ? strdup(o->error) : NULL};
    if (out->id && out->queue && (out->payload || !o->payload_len) && (out->error || !o->error))
        return LAPSE_OK;
    lapse_info_free(out);
    return lp_fail_memory();
}

static int list_some(rabbit_store *d, const lp_turn *t, lp_job *j, bool *over)
{
    rabbit_message *m = NULL;
    int code = 1, n = 0;
    while (code == 1 && n < j->max) {
        code = look(d, &m);
        if (code != 1)
            break;
        d->walk_tag = m->tag;
        d->walk_count++;
        int shown = show(t, m, &j->infos[n]);
        lp_rabbit_free_message(m);
        if (shown < 0) {
            j->answer = n;
            return shown;
        }
        n++;
    }
    *over = code == 0;
    j->answer = n;
    return code < 0 ? code : LAPSE_OK;
}

void lp_rabbit_list(rabbit_store *d, const lp_turn *t, lp_job *j)
{
    bool over = true, goes_on = *j->cursor && *j->cursor == d->walk;
    if (j->states & ~(unsigned)LAPSE_STATE_DEAD) {
        lp_job_fail(j, lp_fail(LAPSE_EUNSUPPORTED,
                               "RabbitMQ by itself can list dead letters only: ask for these, or "
                               "give the URL ticket= and another store"));
        return;
    }
    int code = goes_on ? LAPSE_OK : lp_rabbit_end_walk(d);
    if (code == LAPSE_OK && (goes_on || *j->cursor == 0))
        code = list_some(d, t, j, &over);
    if (code < 0) {
        int n = (int)j->answer;
        while (n-- > 0)
            lapse_info_free(&j->infos[n]);
        lp_job_fail(j, code);
        (void)lp_rabbit_end_walk(d);
        return;
    }
    if (over && lp_rabbit_end_walk(d) == LAPSE_OK) {
        *j->cursor = UINT64_MAX;
        return;
    }
    *j->cursor = d->walk = ++d->walk_last;
    d->walk_until = lp_add_ns(lp_clock_monotonic(), WALK_LIMIT);
}

/* -- One of them -- */

static bool is_wanted(const lp_job *j, const rabbit_message *m)
{
    const rabbit_order *o = &m->order;
    return o->id_len == j->id_len && memcmp(o->id, j->id, j->id_len) == 0 &&
           (j->generation == LAPSE_ANY || j->generation == o->generation);
}

/* What was looked at and is to be given back: so many, the last two by tag. */
typedef struct seen {
    uint64_t count, last, before;
} seen;

static void note_seen(seen *s, uint64_t tag)
{
    s->count++;
    s->before = s->last;
    s->last = tag;
}

static void give_back_seen(rabbit_store *d, const seen *s, uint64_t but)
{
    uint64_t count = s->count - (but != 0);
    (void)give_back_to(d, s->last == but ? s->before : s->last, count);
}

/* Delete all that the job names. */
static int delete_all(rabbit_store *d, const lp_job *j, int64_t *count, seen *s)
{
    rabbit_message *m = NULL;
    int code = lp_rabbit_end_walk(d);
    while (code >= 0 && (code = look(d, &m)) == 1) {
        if (is_wanted(j, m)) {
            code = lp_rabbit_ack(&d->in, LP_RABBIT_LOOK, m->tag, false);
            *count += code == LAPSE_OK;
        } else {
            note_seen(s, m->tag);
        }
        lp_rabbit_free_message(m);
    }
    return code;
}

/* The newest that the job names. */
static int find_newest(rabbit_store *d, const lp_job *j, rabbit_message **best, seen *s)
{
    rabbit_message *m = NULL;
    int code = lp_rabbit_end_walk(d);
    while (code >= 0 && (code = look(d, &m)) == 1) {
        note_seen(s, m->tag);
        if (is_wanted(j, m) && (!*best || m->order.generation > (*best)->order.generation)) {
            lp_rabbit_free_message(*best);
            *best = m;
        } else {
            lp_rabbit_free_message(m);
        }
    }
    return code;
}

static int unknown(const lp_job *j)
{
    return lp_fail(LAPSE_EUNKNOWN, "there is no dead letter %s",
                   lp_text_quote(j->id, j->id_len < 80 ? j->id_len : 80));
}

static int send_again(rabbit_store *d, const lp_turn *t, lp_job *j, const rabbit_message *m)
{
    rabbit_order o = m->order;
    o.due = lp_rabbit_utc(t, j->due);
    o.at = 0;
    o.generation = lp_rabbit_next_generation(d);
    o.attempt = 0;
    o.reason = LAPSE_REASON_NONE;
    o.error = NULL;
    j->answer = o.generation;
    int code = lp_rabbit_send_order(d, t, &o, (rabbit_sent){.job = j});
    if (code == LAPSE_OK)
        code = lp_rabbit_flush(d); /* It says itself when it failed. */
    return code < 0 ? code : (int)(j->answer < 0 ? j->answer : LAPSE_OK);
}

void lp_rabbit_requeue_dead(rabbit_store *d, const lp_turn *t, lp_job *j)
{
    rabbit_message *best = NULL;
    seen s = {0, 0, 0};
    uint64_t moved = 0;
    int code = find_newest(d, j, &best, &s);
    if (code == LAPSE_OK && !best)
        code = unknown(j);
    if (code == LAPSE_OK)
        code = send_again(d, t, j, best);
    if (code == LAPSE_OK) { /* A crash before this leaves both. */
        moved = best->tag;
        (void)lp_rabbit_ack(&d->in, LP_RABBIT_LOOK, moved, false);
    } else if (!j->detail) {
        lp_job_fail(j, code);
    }
    lp_rabbit_free_message(best);
    give_back_seen(d, &s, moved);
}

void lp_rabbit_purge(rabbit_store *d, lp_job *j)
{
    int64_t count = 0;
    seen s = {0, 0, 0};
    int code;
    if (j->id) {
        code = delete_all(d, j, &count, &s);
    } else {
        amqp_queue_purge_t m = {.queue = amqp_cstring_bytes(name_dead(d))};
        code = lp_rabbit_end_walk(d);
        if (code == LAPSE_OK)
            code = lp_rabbit_call(&d->in, LP_RABBIT_LOOK, AMQP_QUEUE_PURGE_METHOD, &m,
                                  AMQP_QUEUE_PURGE_OK_METHOD, 0);
        count = d->in.count;
    }
    give_back_seen(d, &s, 0);
    j->answer = count;
    if (code < 0)
        lp_job_fail(j, code);
}

/* -- How many -- */

int lp_rabbit_trim(rabbit_store *d)
{
    enum { AT_ONCE = 100 };
    uint64_t count;
    int code = lp_rabbit_count(&d->in, LP_RABBIT_DECLARE, name_dead(d), &count);
    for (int i = 0; code == LAPSE_OK && count > d->config.max_dead && i < AT_ONCE; i++, count--) {
        rabbit_message *m = NULL;
        code = look(d, &m);
        if (code != 1)
            return code;
        code = lp_rabbit_ack(&d->in, LP_RABBIT_LOOK, m->tag, false);
        lp_rabbit_free_message(m);
        d->dead_dropped++;
    }
    return code;
}

static int add_count(rabbit_store *d, const char *name, uint64_t *sum)
{
    uint64_t count;
    int code = lp_rabbit_count(&d->in, LP_RABBIT_DECLARE, name, &count);
    *sum += count;
    return code == LAPSE_EUNKNOWN ? LAPSE_OK : code;
}

static int count_waiting(rabbit_store *d, uint64_t *sum)
{
    char name[LP_RABBIT_NAME_MAX + 1];
    int code = LAPSE_OK;
    for (int i = 0; code == LAPSE_OK && i < d->levels; i++) {
        lp_rabbit_name_level(name, d->settings.prefix, i);
        code = add_count(d, name, sum);
    }
    for (int i = 0; code == LAPSE_OK && i < d->delays.fixed_count; i++) {
        if (!d->delays.is_declared[i])
            continue;
        lp_rabbit_name_fixed(name, d->settings.prefix, d->delays.fixed[i]);
        code = add_count(d, name, sum);
    }
    return code;
}

static int count_dead(rabbit_store *d, uint64_t *sum)
{
    return add_count(d, name_dead(d), sum);
}

static uint64_t count_held(const rabbit_store *d, const rabbit_queue *of)
{
    uint64_t n = 0;
    for (size_t i = 0; i < LP_RABBIT_HELD; i++)
        for (const rabbit_held *h = d->held[i]; h; h = h->next)
            n += !of || h->message->from == of;
    return n;
}

/* What the broker says it has; of one queue only what has come to it. */
void lp_rabbit_count_all(rabbit_store *d, lp_job *j)
{
    lp_counts *c = j->counts;
    const rabbit_queue *of = j->queue ? lp_rabbit_find_queue(d, j->queue) : NULL;
    *c = (lp_counts){.oldest_due = LAPSE_FOREVER};
    int code = j->queue ? LAPSE_OK : count_waiting(d, &c->pending);
    for (size_t i = 0; code == LAPSE_OK && i < d->queue_count; i++) {
        const rabbit_queue *q = d->queues[i];
        if (q->is_declared && (!j->queue || q == of)) {
            code = add_count(d, q->work, &c->pending);
            c->pending += q->ready_count;
        }
    }
    if (code == LAPSE_OK && !j->queue)
        code = count_dead(d, &c->dead);
    c->running = j->queue && !of ? 0 : count_held(d, of);
    c->dead_dropped = j->queue ? 0 : d->dead_dropped;
    if (code < 0)
        lp_job_fail(j, code);
    else if (j->queue && !of)
        j->answer = LAPSE_EUNKNOWN;
}
