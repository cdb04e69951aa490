/* simple_store.c - see simple_store.h. */
#include "stores/simple_store.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "stores/url.h"

enum { ROWS = 4096 };
enum { FREE, PENDING, HELD, ENDED, DEAD, PENDING_ELSEWHERE };

typedef struct row {
    int state;
    char id[LAPSE_ID_MAX + 1], queue[LAPSE_ID_MAX + 1];
    size_t id_len, payload_len;
    unsigned char *payload;
    int64_t generation, fence;
    int64_t age; /* of its last schedule, reschedule or retry: grows */
    int attempt;
    bool no_more;
    lapse_ns due, at, ended; /* `at`: claimable from then on */
    lapse_reason reason;
    bool has_error;
    char error[1001];
} row;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static row rows[ROWS];
static int64_t last_generation, last_fence, last_age;
static uint64_t dead_dropped;
static unsigned turns;

typedef struct simple {
    lp_durable base;
    lp_store_config config;
} simple;

void simple_store_clear(void)
{
    for (row *r = rows; r < rows + ROWS; r++)
        free(r->payload);
    memset(rows, 0, sizeof rows);
    dead_dropped = 0;
}

unsigned simple_store_turns(void)
{
    return turns;
}

static bool is_live(const row *r)
{
    return r->state == PENDING || r->state == HELD;
}

static bool is_held(const row *r, lapse_ns now)
{
    return r->state == HELD && r->at > now;
}

static row *find(const lp_job *j, bool live)
{
    row *newest = NULL;
    for (row *r = rows; r < rows + ROWS; r++)
        if (r->state != FREE && (!live || is_live(r)) && r->id_len == j->id_len &&
            memcmp(r->id, j->id, j->id_len) == 0 && (!newest || r->generation > newest->generation))
            newest = r;
    return newest;
}

static row *held_by(const lp_job *j)
{
    row *r = &rows[j->row];
    return r->state == HELD && r->fence == j->fence ? r : NULL;
}

static size_t count_state(int state, const char *queue)
{
    size_t n = 0;
    for (const row *r = rows; r < rows + ROWS; r++)
        n += r->state == state && (!queue || strcmp(queue, r->queue) == 0);
    return n;
}

static void end(const simple *s, row *r, lapse_ns now)
{
    r->state = s->config.keep ? ENDED : FREE;
    r->ended = now;
}

static void show(const row *r, lapse_info *out, lapse_ns now, bool unstarted)
{
    static const lapse_state states[] = {0, LAPSE_STATE_PENDING, LAPSE_STATE_RUNNING,
                                         LAPSE_STATE_DONE, LAPSE_STATE_DEAD};
    *out = (lapse_info){.state = states[r->state],
                        .id = strdup(r->id),
                        .id_len = r->id_len,
                        .queue = strdup(r->queue),
                        .payload_len = r->payload_len,
                        .due = r->due,
                        .ended = r->ended,
                        .generation = r->generation,
                        .attempt = r->attempt,
                        .reason = r->reason,
                        .error = r->has_error ? strdup(r->error) : NULL};
    if (r->state == HELD && (unstarted || !is_held(r, now)))
        out->state = LAPSE_STATE_PENDING;
    if (r->payload_len)
        out->payload = memcpy(malloc(r->payload_len), r->payload, r->payload_len);
    if (out->state == LAPSE_STATE_PENDING && r->due > now)
        out->remaining = r->due - now;
}

static row *oldest_dead(void)
{
    row *oldest = NULL;
    for (row *r = rows; r < rows + ROWS; r++)
        if (r->state == DEAD && (!oldest || r->ended < oldest->ended ||
                                 (r->ended == oldest->ended && r->generation < oldest->generation)))
            oldest = r;
    return oldest;
}

static void kill_row(const simple *s, row *r, lapse_reason reason, const char *error, lapse_ns now)
{
    uint64_t most = s->config.max_dead ? s->config.max_dead : 10000;
    while (count_state(DEAD, NULL) >= most) {
        oldest_dead()->state = FREE;
        dead_dropped++;
    }
    r->state = DEAD;
    r->reason = reason;
    r->ended = now;
    r->has_error = error != NULL;
    snprintf(r->error, sizeof r->error, "%s", error ? error : "");
}

static bool counts_as_pending(const row *r, const lp_job *j, lapse_ns now)
{
    return r->state == PENDING || (r->state == HELD && (r->fence == j->unstarted || r->at <= now));
}

static int64_t make_room(const simple *s, lp_job *j, lapse_ns now)
{
    size_t live = count_state(PENDING, NULL) + count_state(HELD, NULL);
    if (!s->config.max_pending || live < s->config.max_pending)
        return LAPSE_OK;
    row *oldest = NULL;
    for (row *r = rows; r < rows + ROWS; r++)
        if (r->state == PENDING && (!oldest || r->age < oldest->age))
            oldest = r;
    if (s->config.overflow == LAPSE_REFUSE || !oldest)
        return lp_fail(LAPSE_EFULL, "%zu orders are pending, which is max_pending", live);
    kill_row(s, oldest, LAPSE_REASON_MAXLEN, NULL, now);
    j->died = true;
    j->of_queue = strdup(oldest->queue);
    if (j->infos)
        show(oldest, j->infos, now, false);
    return LAPSE_OK;
}

static row *free_row(void)
{
    row *r = rows;
    while (r < rows + ROWS && r->state != FREE)
        r++;
    return r < rows + ROWS ? r : NULL;
}

static int64_t schedule(const simple *s, lp_job *j, lapse_ns now)
{
    row *old = find(j, true);
    bool pending = old && counts_as_pending(old, j, now);
    if (pending && !j->replace)
        return lp_fail(LAPSE_EEXISTS, "order %s is pending already",
                       lp_text_quote(j->id, j->id_len));
    int64_t code = pending ? LAPSE_OK : make_room(s, j, now);
    if (code < 0)
        return code;
    j->running_fence = old && !pending ? old->fence : 0;
    row *r = old ? old : free_row();
    if (!r)
        return lp_fail_memory();
    free(r->payload);
    *r = (row){.state = PENDING,
               .id_len = j->id_len,
               .payload_len = j->payload_len,
               .generation = ++last_generation,
               .age = ++last_age,
               .due = j->due,
               .at = j->due};
    memcpy(r->id, j->id, j->id_len);
    snprintf(r->queue, sizeof r->queue, "%s", j->queue);
    if (j->payload_len)
        r->payload = memcpy(malloc(j->payload_len), j->payload, j->payload_len);
    j->replaced = pending;
    return r->generation;
}

static row *named(const lp_job *j)
{
    row *r = find(j, true);
    return r && (j->generation == LAPSE_ANY || j->generation == r->generation) ? r : NULL;
}

static int64_t ended_fate(const simple *s, const lp_job *j, lapse_ns now)
{
    const row *r = find(j, false);
    bool kept = r && r->state == ENDED && now - r->ended <= s->config.keep;
    return kept && (j->generation == LAPSE_ANY || j->generation == r->generation)
               ? LAPSE_FATE_DONE
               : LAPSE_FATE_UNKNOWN;
}

static int64_t cancel(const simple *s, lp_job *j, lapse_ns now)
{
    row *r = named(j);
    if (!r)
        return ended_fate(s, j, now);
    if (counts_as_pending(r, j, now)) {
        j->of_queue = strdup(r->queue);
        end(s, r, now);
        return LAPSE_FATE_CANCELLED;
    }
    r->no_more = true;
    j->running_fence = r->fence;
    return LAPSE_FATE_RUNNING;
}

static int64_t reschedule(const simple *s, lp_job *j, lapse_ns now)
{
    row *r = named(j);
    if (!r)
        return ended_fate(s, j, now);
    if (!counts_as_pending(r, j, now))
        return LAPSE_FATE_RUNNING;
    if (r->state == HELD && r->fence == j->unstarted)
        r->attempt--;
    r->state = PENDING;
    r->age = ++last_age;
    r->due = r->at = j->due;
    return LAPSE_FATE_RESCHEDULED;
}

static row *find_dead(const lp_job *j)
{
    row *newest = NULL;
    for (row *r = rows; r < rows + ROWS; r++) {
        bool same = !j->id || (r->id_len == j->id_len && memcmp(r->id, j->id, j->id_len) == 0);
        if (r->state == DEAD && same &&
            (j->generation == LAPSE_ANY || j->generation == r->generation) &&
            (!newest || r->generation > newest->generation))
            newest = r;
    }
    return newest;
}

static int64_t requeue(const simple *s, lp_job *j, lapse_ns now)
{
    row *dead = find_dead(j);
    if (!dead)
        return lp_fail(LAPSE_EUNKNOWN, "there is no dead letter");
    if (find(j, true))
        return lp_fail(LAPSE_EEXISTS, "the order is pending or running already");
    dead->state = PENDING_ELSEWHERE; /* No dead letter any more when room is made. */
    int64_t code = make_room(s, j, now);
    dead->state = code < 0 ? DEAD : PENDING;
    if (code < 0)
        return code;
    dead->generation = ++last_generation;
    dead->attempt = 0;
    dead->reason = LAPSE_REASON_NONE;
    dead->age = ++last_age;
    dead->ended = 0;
    dead->has_error = false;
    dead->due = dead->at = j->due;
    return dead->generation;
}

static int64_t purge(const lp_job *j)
{
    int64_t n = 0;
    for (row *r; n < LP_REMAINS_MAX && (r = find_dead(j)); n++)
        r->state = FREE;
    return n;
}

static int64_t stale(void)
{
    return lp_fail(LAPSE_ESTALE, "the claim is not held");
}

static int64_t settle(const simple *s, lp_job *j, lapse_ns now)
{
    row *r = held_by(j);
    if (!r)
        return stale();
    if (j->op == LP_END || r->no_more) {
        end(s, r, now);
        return j->op == LP_END ? 0 : 1;
    }
    r->attempt -= !j->counted;
    if (j->op == LP_DIE) {
        kill_row(s, r, j->reason, j->error, now);
        return 0;
    }
    r->state = PENDING;
    if (j->counted)
        r->age = ++last_age;
    r->due = j->due;
    r->at = j->at;
    return 0;
}

static int64_t list(const lp_job *j, lapse_ns now)
{
    int n = 0;
    for (; *j->cursor < ROWS && n < j->max; (*j->cursor)++) {
        const row *r = &rows[*j->cursor];
        if (r->state == FREE)
            continue;
        show(r, &j->infos[n], now, false);
        if (j->infos[n].state & j->states)
            n++;
        else
            lapse_info_free(&j->infos[n]);
    }
    if (*j->cursor >= ROWS)
        *j->cursor = UINT64_MAX;
    return n;
}

static int64_t list_queues(const lp_job *j)
{
    int n = 0;
    for (; *j->cursor < ROWS && n < j->max; (*j->cursor)++)
        if (rows[*j->cursor].state != FREE)
            j->infos[n++].queue = strdup(rows[*j->cursor].queue);
    if (*j->cursor >= ROWS)
        *j->cursor = UINT64_MAX;
    return n;
}

static int64_t count(const lp_job *j, lapse_ns now)
{
    *j->counts = (lp_counts){.pending = count_state(PENDING, j->queue),
                             .running = count_state(HELD, j->queue),
                             .kept = count_state(ENDED, j->queue),
                             .dead = count_state(DEAD, j->queue),
                             .dead_dropped = dead_dropped,
                             .oldest_due = LAPSE_FOREVER};
    for (const row *r = rows; r < rows + ROWS; r++)
        if (r->state == PENDING && r->due <= now && r->due < j->counts->oldest_due &&
            (!j->queue || strcmp(j->queue, r->queue) == 0))
            j->counts->oldest_due = r->due;
    return 0;
}

static int64_t answer(const simple *s, lp_job *j, lapse_ns now)
{
    row *r;
    switch (j->op) {
    case LP_SCHEDULE:
        return schedule(s, j, now);
    case LP_CANCEL:
        return cancel(s, j, now);
    case LP_RESCHEDULE:
        return reschedule(s, j, now);
    case LP_GET:
        r = find(j, false);
        if (!r)
            return lp_fail(LAPSE_EUNKNOWN, "no order %s is known", lp_text_quote(j->id, j->id_len));
        show(r, j->infos, now, r->state == HELD && r->fence == j->unstarted);
        return 0;
    case LP_REQUEUE:
        return requeue(s, j, now);
    case LP_PURGE:
        return purge(j);
    case LP_END:
    case LP_AGAIN:
    case LP_DIE:
        return settle(s, j, now);
    case LP_RENEW:
        r = held_by(j);
        if (!r)
            return stale();
        r->at = now + j->lease;
        return 0;
    case LP_HOLDS:
        r = held_by(j);
        return r && r->at > now;
    case LP_LIST:
        return list(j, now);
    case LP_COUNT:
        return count(j, now);
    case LP_QUEUES:
        return list_queues(j);
    default:
        return lp_fail(LAPSE_EINVAL, "no such request: %d", j->op);
    }
}

static void answer_job(const simple *s, lp_job *j, lapse_ns now)
{
    j->answer = answer(s, j, now);
    if (j->answer < 0)
        j->detail = strdup(lapse_error_detail());
}

static bool wants(const lp_want *w, const row *r)
{
    bool named = false;
    for (size_t i = 0; i < w->queue_count && !named; i++)
        named = strcmp(w->queues[i], r->queue) == 0;
    return is_live(r) && named != w->others;
}

static row *first_of(const lp_want *w)
{
    row *best = NULL;
    for (row *r = rows; r < rows + ROWS; r++)
        if (wants(w, r) &&
            (!best || r->at < best->at || (r->at == best->at && r->due < best->due) ||
             (r->at == best->at && r->due == best->due && r->generation < best->generation)))
            best = r;
    return best;
}

static row *last_due(const lp_want *w, lapse_ns now)
{
    row *best = NULL;
    for (row *r = rows; r < rows + ROWS; r++)
        if (wants(w, r) && r->at <= now && (!best || r->due > best->due))
            best = r;
    return best;
}

static lp_loan *lend(row *r, size_t want, const lp_turn *t)
{
    lp_loan *l = lp_loan_make(r->id, r->id_len, r->queue, r->payload, r->payload_len);
    r->state = HELD;
    r->attempt++;
    r->at = t->now + t->lease;
    r->fence = ++last_fence;
    l->want = want;
    l->row = r - rows;
    l->fence = r->fence;
    l->generation = r->generation;
    l->attempt = r->attempt;
    l->due = r->due;
    return l;
}

static void append_loan(lp_loan ***end_of_loans, lp_loan *l)
{
    **end_of_loans = l;
    *end_of_loans = &l->next;
}

/* An order that was cancelled while it was held is over when its lease is. */
static void end_cancelled(const simple *s, lp_turn *t, lp_loan ***end_of_loans)
{
    for (row *r = rows; r < rows + ROWS; r++) {
        if (r->state != HELD || !r->no_more || r->at > t->now)
            continue;
        lp_loan *l = lp_loan_make(r->id, r->id_len, r->queue, NULL, 0);
        l->ended = true;
        append_loan(end_of_loans, l);
        end(s, r, t->now);
    }
}

static void serve(lp_turn *t, size_t i, unsigned *pushes, lp_loan ***end_of_loans)
{
    lp_want *w = &t->wants[i];
    row *r;
    for (unsigned n = 0; n < w->most && (!w->pushed || *pushes);) {
        r = w->newest ? last_due(w, t->now) : first_of(w);
        if (!r || r->at > t->now)
            break;
        append_loan(end_of_loans, lend(r, i, t));
        *pushes -= w->pushed;
        n++;
    }
    r = first_of(w);
    w->next = r ? r->at : LAPSE_FOREVER;
}

static void forget_ended(const simple *s, lapse_ns now)
{
    for (row *r = rows; r < rows + ROWS; r++)
        if (r->state == ENDED && now - r->ended > s->config.keep)
            r->state = FREE;
}

static int turn(lp_durable *d, lp_turn *t)
{
    const simple *s = (const simple *)d;
    pthread_mutex_lock(&lock);
    turns++;
    lp_loan **last = &t->loans;
    forget_ended(s, t->now);
    end_cancelled(s, t, &last);
    for (size_t i = 0; i < t->job_count; i++)
        answer_job(s, t->jobs[i], t->now);
    unsigned pushes = t->push_most;
    for (size_t i = 0; i < t->want_count; i++)
        serve(t, i, &pushes, &last);
    for (size_t i = 0; i < t->want_count; i++) {
        const row *r = first_of(&t->wants[i]); /* Others may have been served since. */
        t->wants[i].next = r ? r->at : LAPSE_FOREVER;
    }
    pthread_mutex_unlock(&lock);
    return LAPSE_OK;
}

static int read_option(const lp_url_option *option, lp_store_config *config)
{
    int code = lp_url_common(option, config);
    if (code <= 0)
        return code;
    return lp_fail(LAPSE_EURL, "test: has no option %s",
                   lp_text_quote(option->name, option->name_len));
}

static int open_simple(lp_store_config *config, lp_durable **out)
{
    const char *p = lp_url_query(config->url);
    for (lp_url_option option; lp_url_next(&p, &option);) {
        int code = read_option(&option, config);
        if (code < 0)
            return code;
    }
    simple *s = malloc(sizeof *s);
    *s = (simple){.base = {&simple_store}, .config = *config};
    *out = &s->base;
    return LAPSE_OK;
}

static void close_simple(lp_durable *d)
{
    free(d);
}

static int hint_fd(lp_durable *d)
{
    (void)d;
    return -1;
}

static void hinted(lp_durable *d)
{
    (void)d;
}

static bool sleeps(lp_durable *d, lapse_ns next, lapse_ns now)
{
    (void)d;
    (void)next;
    (void)now;
    return false;
}

static lapse_ns poll_every(const lp_durable *d)
{
    (void)d;
    return LAPSE_MS(100);
}

const lp_durable_ops simple_store = {
    .scheme = "test",
    .abilities =
        LAPSE_CAN_DURABLE | LAPSE_CAN_SHARE | LAPSE_CAN_CANCEL | LAPSE_CAN_LIST | LAPSE_CAN_LIMIT,
    .open = open_simple,
    .close = close_simple,
    .turn = turn,
    .reconnect = NULL,
    .hint_fd = hint_fd,
    .hinted = hinted,
    .sleeps = sleeps,
    .poll = poll_every,
};
