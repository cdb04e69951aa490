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

static const lapse_ns WALK_LIMIT = LAPSE_MINUTES(1); /* a walk that nobody goes on with ends */

static const char *name_dead(const rabbit_store *d)
{
    static _Thread_local char name[LP_RABBIT_NAME_MAX + 1];
    lp_rabbit_name(name, d->settings.prefix, "dead");
    return name;
}

/* Somebody has deleted the queue, and what was in it: it is declared anew when it is used next. */
static int or_deleted(rabbit_store *d, int code)
{
    if (code != LAPSE_EDATA || d->in.closed_code != AMQP_NOT_FOUND)
        return code;
    lp_rabbit_forget_topology(d);
    return 0;
}

int lp_rabbit_look(rabbit_store *d, const char *queue, rabbit_message **out)
{
    int code = or_deleted(d, lp_rabbit_get(&d->in, LP_RABBIT_LOOK, queue));
    *out = code == 1 ? d->looked : NULL;
    if (*out)
        d->looked = (*out)->next;
    lp_rabbit_breathe(d);
    return code < 0 ? code : *out != NULL;
}

static int look(rabbit_store *d, rabbit_message **out)
{
    return lp_rabbit_look(d, name_dead(d), out);
}

bool lp_rabbit_is_worn(const rabbit_message *m)
{
    return m->is_ours && !m->bad && m->redeliveries >= LP_RABBIT_LOOKS;
}

/* Takes it over; it is acknowledged, or goes back, once that is confirmed. Without the channel that
 * it came on it is back already. */
static void publish_anew(rabbit_store *d, rabbit_message *m)
{
    bool is_here = d->in.connection && d->in.is_open[LP_RABBIT_LOOK];
    if (is_here && lp_rabbit_send_dead(d, &m->order, (rabbit_sent){.message = m}) == LAPSE_OK)
        return;
    (void)lp_rabbit_requeue(&d->in, LP_RABBIT_LOOK, m->tag, false);
    lp_rabbit_free_message(m);
}

/* -- A walk: what it has shown is not acknowledged until it ends -- */

/* `count` messages up to a tag; who looks next is to find them. */
static int give_back_to(rabbit_store *d, uint64_t tag, uint64_t count)
{
    if (count == 0)
        return LAPSE_OK;
    int code = lp_rabbit_requeue(&d->in, LP_RABBIT_LOOK, tag, true);
    return code < 0 ? code : lp_rabbit_await_count(&d->in, LP_RABBIT_DECLARE, name_dead(d), count);
}

void lp_rabbit_forget_walk(rabbit_store *d)
{
    for (size_t i = 0; i < d->shown_count; i++) {
        lp_rabbit_free_message(d->shown[i].message);
        free(d->shown[i].id);
    }
    free(d->shown);
    d->shown = NULL;
    d->shown_count = d->shown_room = d->shown_bytes = 0;
    d->walk = 0;
}

/* One by one, since some are published anew: oldest first, so that these keep their order. */
static int end_worn_walk(rabbit_store *d)
{
    uint64_t count = d->shown_count;
    for (size_t i = 0; i < d->shown_count; i++) {
        rabbit_message *m = d->shown[i].message;
        d->shown[i].message = NULL;
        if (m)
            publish_anew(d, m);
        else
            (void)lp_rabbit_requeue(&d->in, LP_RABBIT_LOOK, d->shown[i].tag, false);
    }
    lp_rabbit_forget_walk(d);
    lp_rabbit_flush(d);
    return lp_rabbit_await_count(&d->in, LP_RABBIT_DECLARE, name_dead(d), count);
}

int lp_rabbit_end_walk(rabbit_store *d)
{
    if (d->shown_bytes)
        return end_worn_walk(d);
    uint64_t count = d->shown_count, tag = count ? d->shown[count - 1].tag : 0;
    lp_rabbit_forget_walk(d);
    return give_back_to(d, tag, count);
}

/* Whether it is to be kept, so as to be published anew. */
static bool is_kept(size_t *bytes, const rabbit_message *m)
{
    size_t size = sizeof *m + m->order.payload_len;
    if (!lp_rabbit_is_worn(m) || size > LP_RABBIT_RENEW_BYTES - *bytes)
        return false;
    *bytes += size;
    return true;
}

/* Frees it, or takes it over. */
static void keep_or_free(rabbit_store *d, rabbit_message *m, bool shown)
{
    if (shown && is_kept(&d->shown_bytes, m))
        d->shown[d->shown_count - 1].message = m;
    else
        lp_rabbit_free_message(m);
}

static bool remember(rabbit_store *d, const rabbit_message *m)
{
    if (d->shown_count == d->shown_room) {
        size_t room = d->shown_room ? 2 * d->shown_room : 64;
        rabbit_shown *more = realloc(d->shown, room * sizeof *more);
        if (!more)
            return false;
        d->shown = more;
        d->shown_room = room;
    }
    char *id = malloc(m->order.id_len + 1);
    if (!id)
        return false;
    memcpy(id, m->order.id, m->order.id_len + 1);
    d->shown[d->shown_count++] = (rabbit_shown){
        .tag = m->tag, .id = id, .id_len = m->order.id_len, .generation = m->order.generation};
    return true;
}

static void forget_shown(rabbit_store *d, size_t at)
{
    lp_rabbit_free_message(d->shown[at].message);
    free(d->shown[at].id);
    d->shown_count--;
    memmove(d->shown + at, d->shown + at + 1, (d->shown_count - at) * sizeof *d->shown);
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

/* What others have written there may be anything. */
static char *copy_error(const char *error)
{
    char text[LP_TEXT_MAX + 1];
    lp_text_clip(text, error);
    return strdup(text);
}

static int show(const rabbit_store *d, const lp_turn *t, const rabbit_message *m, lapse_info *out)
{
    const rabbit_order *o = &m->order;
    *out =
        (lapse_info){.state = LAPSE_STATE_DEAD,
                     .id = copy_bytes(o->id, o->id_len),
                     .id_len = o->id_len,
                     .queue = strdup(o->queue),
                     .payload = o->payload_len ? copy_bytes(o->payload, o->payload_len) : NULL,
                     .payload_len = o->payload_len,
                     .due = lp_rabbit_scheduler_time(d, t, o->due),
                     .ended = o->ended ? lp_rabbit_scheduler_time(d, t, o->ended) : LP_UNKNOWN_TIME,
                     .generation = o->generation,
                     .attempt = o->attempt,
                     .reason = o->reason,
                     .error = o->error ? copy_error(o->error) : NULL};
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
        bool known = remember(d, m);
        code = known ? show(d, t, m, &j->infos[n]) : lp_fail_memory();
        keep_or_free(d, m, known);
        if (code == LAPSE_OK) {
            n++;
            code = 1;
        }
    }
    *over = code == 0;
    j->answer = n;
    return code < 0 ? code : LAPSE_OK;
}

static int go_on(rabbit_store *d, const lp_job *j)
{
    if (j->states & ~(unsigned)LAPSE_STATE_DEAD)
        return lp_fail(LAPSE_EUNSUPPORTED,
                       "RabbitMQ by itself can list dead letters only: ask for these, or give the "
                       "URL ticket= and another store");
    if (*j->cursor == 0)
        return lp_rabbit_end_walk(d);
    if (*j->cursor != d->walk)
        return lp_fail(LAPSE_ESTALE,
                       "this list of dead letters was ended by another that began, or "
                       "by a minute without a question: list them again");
    return LAPSE_OK;
}

void lp_rabbit_list(rabbit_store *d, const lp_turn *t, lp_job *j)
{
    bool over = false;
    int code = go_on(d, j);
    if (code < 0) {
        lp_job_fail(j, code);
        return;
    }
    code = list_some(d, t, j, &over);
    if (code < 0) {
        int n = (int)j->answer;
        while (n-- > 0)
            lapse_info_free(&j->infos[n]);
        lp_job_fail(j, code);
        lp_rabbit_end_walk(d);
        return;
    }
    *j->cursor = d->walk = ++d->walk_last;
    d->walk_until = lp_add_ns(lp_clock_monotonic(), WALK_LIMIT);
    if (over) {
        (void)lp_rabbit_end_walk(d);
        *j->cursor = UINT64_MAX;
    }
}

/* -- One of them -- */

static bool names(const lp_job *j, const char *id, size_t id_len, int64_t generation)
{
    return id_len == j->id_len && memcmp(id, j->id, id_len) == 0 &&
           (j->generation == LAPSE_ANY || j->generation == generation);
}

static bool is_named(const lp_job *j, const rabbit_message *m)
{
    return names(j, m->order.id, m->order.id_len, m->order.generation);
}

/* The newest that a walk has shown and the job names; shown_count: none. */
static size_t find_shown(const rabbit_store *d, const lp_job *j)
{
    size_t best = d->shown_count;
    for (size_t i = 0; i < d->shown_count; i++) {
        const rabbit_shown *s = &d->shown[i];
        if (names(j, s->id, s->id_len, s->generation) &&
            (best == d->shown_count || s->generation > d->shown[best].generation))
            best = i;
    }
    return best;
}

/* A look through the queue: the tags of what is to be given back. */
typedef struct seen {
    const lp_job *job;
    rabbit_message *best; /* the newest that the job names; or */
    bool deletes;         /* all of them are deleted */
    int64_t deleted;
    uint64_t *tags;
    size_t count, room;
    rabbit_message *worn, **worn_end; /* to be published anew: not among the tags */
    size_t worn_bytes;
    int code;
} seen;

static void note_seen(seen *s, uint64_t tag)
{
    if (s->count == s->room) {
        size_t room = s->room ? 2 * s->room : 256;
        uint64_t *more = realloc(s->tags, room * sizeof *more);
        if (!more) {
            s->code = lp_fail_memory();
            return;
        }
        s->tags = more;
        s->room = room;
    }
    s->tags[s->count++] = tag;
}

static void see(rabbit_store *d, seen *s, rabbit_message *m)
{
    bool is = is_named(s->job, m);
    if (is && s->deletes) {
        s->deleted += lp_rabbit_ack(&d->in, LP_RABBIT_LOOK, m->tag, false) == LAPSE_OK;
        lp_rabbit_free_message(m);
        return;
    }
    bool better = is && (!s->best || s->best->order.generation <= m->order.generation);
    if (!better && is_kept(&s->worn_bytes, m)) {
        *s->worn_end = m;
        s->worn_end = &m->next;
        return;
    }
    note_seen(s, m->tag);
    if (!better) {
        lp_rabbit_free_message(m);
        return;
    }
    lp_rabbit_free_message(s->best);
    s->best = m;
}

static void see_all(rabbit_store *d, seen *s)
{
    while (d->looked) {
        rabbit_message *m = d->looked;
        d->looked = m->next;
        m->next = NULL;
        see(d, s, m);
    }
}

/* Through the whole queue: a consumer is sent it, up to what it may have at once; a get that finds
 * nothing comes after that. Each consumer has its own name: RabbitMQ 3.10 ends the connection of one
 * that begins again while what it was sent before is on its way back. */
static int look_through(rabbit_store *d, seen *s)
{
    char tag[32];
    amqp_basic_qos_t all = {.prefetch_count = 1000};
    s->worn_end = &s->worn;
    int code = lp_rabbit_call(&d->in, LP_RABBIT_LOOK, AMQP_BASIC_QOS_METHOD, &all,
                              AMQP_BASIC_QOS_OK_METHOD, 0);
    int got = 1;
    while (code >= 0 && got == 1) {
        snprintf(tag, sizeof tag, "look.%u", ++d->looks);
        amqp_basic_consume_t begin = {.queue = amqp_cstring_bytes(name_dead(d)),
                                      .consumer_tag = amqp_cstring_bytes(tag)};
        amqp_basic_cancel_t end = {.consumer_tag = amqp_cstring_bytes(tag)};
        code = lp_rabbit_call(&d->in, LP_RABBIT_LOOK, AMQP_BASIC_CONSUME_METHOD, &begin,
                              AMQP_BASIC_CONSUME_OK_METHOD, 0);
        if (code >= 0)
            code = got = lp_rabbit_get(&d->in, LP_RABBIT_LOOK, name_dead(d));
        see_all(d, s);
        if (code >= 0)
            code = lp_rabbit_call(&d->in, LP_RABBIT_LOOK, AMQP_BASIC_CANCEL_METHOD, &end,
                                  AMQP_BASIC_CANCEL_OK_METHOD, 0);
        see_all(d, s);
        lp_rabbit_breathe(d);
    }
    code = or_deleted(d, code);
    return code < 0 ? code : s->code;
}

/* While a walk goes on, what it has shown is not to be given back with it. */
static void give_back_seen(rabbit_store *d, seen *s, uint64_t but)
{
    uint64_t last = 0, count = 0;
    bool one_by_one = d->shown_count || s->worn;
    for (size_t i = 0; i < s->count; i++) {
        if (s->tags[i] == but)
            continue;
        last = s->tags[i];
        count++;
        if (one_by_one)
            (void)lp_rabbit_requeue(&d->in, LP_RABBIT_LOOK, last, false);
    }
    if (!one_by_one)
        (void)give_back_to(d, last, count);
    free(s->tags);
    s->tags = NULL;
    while (s->worn) {
        rabbit_message *m = s->worn;
        s->worn = m->next;
        m->next = NULL;
        publish_anew(d, m);
    }
    lp_rabbit_flush(d);
}

static int unknown(const lp_job *j)
{
    return lp_fail(LAPSE_EUNKNOWN, "there is no dead letter %s",
                   lp_text_quote(j->id, j->id_len < 80 ? j->id_len : 80));
}

/* 1: later, when the way there has settled. */
static int send_again(rabbit_store *d, const lp_turn *t, lp_job *j, const rabbit_message *m)
{
    rabbit_order o = m->order;
    o.due = lp_rabbit_utc(d, t, j->due);
    o.at = 0;
    o.generation = lp_rabbit_next_generation(d);
    o.attempt = 0;
    o.reason = LAPSE_REASON_NONE;
    o.error = NULL;
    lapse_ns settles;
    int code = lp_rabbit_way_settles(d, t, &o, &settles);
    if (code < 0)
        return code;
    if (settles > lp_clock_monotonic()) {
        j->later = true;
        j->later_at = settles;
        return 1;
    }
    j->answer = o.generation;
    code = lp_rabbit_send_order(d, t, &o, (rabbit_sent){.job = j});
    if (code == LAPSE_OK)
        code = lp_rabbit_flush(d); /* It says itself when it failed. */
    return code < 0 ? code : (int)(j->answer < 0 ? j->answer : LAPSE_OK);
}

/* Take the message of one that was shown into the hand: it goes back, and is the next to come once
 * it is there. */
static int look_again(rabbit_store *d, size_t at, seen *s)
{
    rabbit_message *m = NULL;
    uint64_t there = 0, tag = d->shown[at].tag;
    int64_t generation = d->shown[at].generation;
    int code = lp_rabbit_count(&d->in, LP_RABBIT_DECLARE, name_dead(d), &there);
    if (code == LAPSE_OK)
        code = lp_rabbit_requeue(&d->in, LP_RABBIT_LOOK, tag, false);
    if (code < 0)
        return code;
    forget_shown(d, at);
    code = lp_rabbit_await_count(&d->in, LP_RABBIT_DECLARE, name_dead(d), there + 1);
    while (code >= 0 && !s->best && (code = look(d, &m)) == 1) {
        note_seen(s, m->tag);
        if (is_named(s->job, m) && m->order.generation == generation)
            s->best = m;
        else
            lp_rabbit_free_message(m);
    }
    return code < 0 ? code : LAPSE_OK;
}

/* The newest that the job names into s->best. A generation that was shown needs no look for
 * another. */
static int find_newest(rabbit_store *d, const lp_job *j, seen *s)
{
    size_t at = find_shown(d, j);
    bool shown = at < d->shown_count;
    int code = shown && j->generation != LAPSE_ANY ? LAPSE_OK : look_through(d, s);
    at = find_shown(d, j); /* A lost channel has forgotten them. */
    if (code < 0 || !shown || at == d->shown_count ||
        (s->best && s->best->order.generation > d->shown[at].generation))
        return code;
    lp_rabbit_free_message(s->best);
    s->best = NULL;
    return look_again(d, at, s);
}

void lp_rabbit_requeue_dead(rabbit_store *d, const lp_turn *t, lp_job *j)
{
    seen s = {.job = j};
    uint64_t moved = 0;
    int code = find_newest(d, j, &s);
    if (code == LAPSE_OK)
        code = s.best ? send_again(d, t, j, s.best) : unknown(j);
    if (code == LAPSE_OK && s.best) { /* A crash before this leaves both. */
        moved = s.best->tag;
        (void)lp_rabbit_ack(&d->in, LP_RABBIT_LOOK, moved, false);
    } else if (code < 0 && !j->detail) {
        lp_job_fail(j, code);
    }
    lp_rabbit_free_message(s.best);
    give_back_seen(d, &s, moved);
}

static int purge_id(rabbit_store *d, lp_job *j)
{
    seen s = {.job = j, .deletes = true};
    int code = LAPSE_OK;
    for (size_t i = d->shown_count; code == LAPSE_OK && i-- > 0;) {
        const rabbit_shown *one = &d->shown[i];
        if (!names(j, one->id, one->id_len, one->generation))
            continue;
        code = lp_rabbit_ack(&d->in, LP_RABBIT_LOOK, one->tag, false);
        forget_shown(d, i);
        s.deleted++;
    }
    if (code == LAPSE_OK && (s.deleted == 0 || j->generation == LAPSE_ANY))
        code = look_through(d, &s);
    give_back_seen(d, &s, 0);
    j->answer = s.deleted;
    return code;
}

static int purge_all(rabbit_store *d, lp_job *j)
{
    amqp_queue_purge_t m = {.queue = amqp_cstring_bytes(name_dead(d))};
    int code = LAPSE_OK;
    j->answer = (int64_t)d->shown_count;
    while (code == LAPSE_OK && d->shown_count) {
        size_t last = d->shown_count - 1;
        code = lp_rabbit_ack(&d->in, LP_RABBIT_LOOK, d->shown[last].tag, false);
        forget_shown(d, last);
    }
    if (code == LAPSE_OK)
        code = lp_rabbit_call(&d->in, LP_RABBIT_LOOK, AMQP_QUEUE_PURGE_METHOD, &m,
                              AMQP_QUEUE_PURGE_OK_METHOD, 0);
    j->answer += code == LAPSE_OK ? d->in.count : 0;
    return or_deleted(d, code);
}

void lp_rabbit_purge(rabbit_store *d, lp_job *j)
{
    int code = j->id ? purge_id(d, j) : purge_all(d, j);
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

/* Those of all queues lie together. What a walk here has shown is no other's, and counts. */
static int count_dead(rabbit_store *d, bool of_one, uint64_t *sum)
{
    int code = add_count(d, name_dead(d), sum);
    *sum += d->shown_count;
    if (of_one && *sum)
        *sum = LP_UNCOUNTED;
    return code;
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
    if (code == LAPSE_OK)
        code = count_dead(d, j->queue, &c->dead);
    c->running = j->queue && !of ? 0 : count_held(d, of);
    c->dead_dropped = j->queue ? 0 : d->dead_dropped;
    if (code < 0)
        lp_job_fail(j, code);
    else if (j->queue && !of && !c->dead)
        j->answer = LAPSE_EUNKNOWN;
}
