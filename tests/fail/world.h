/* world.h - a scheduler with an order in every state, and a picture of all it shows.
 *
 * Two pictures are equal when nothing visible was changed between them. Every order is
 * put with a token of its own as `arg`; a token knows how often its order was accepted,
 * ran and was released, and what its callback answers. */
#ifndef LAPSE_TESTS_WORLD_H
#define LAPSE_TESTS_WORLD_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fail/fail_calls.h"
#include "support/support.h"

enum { TOKENS = 64, HELD = 16, LINES = 512, LINE = 1024 };

typedef struct token {
    int accepted, runs, released;
    lapse_verdict verdict;
    lapse_ns retry_after; /* if not 0 */
    const char *error;
} token;

typedef struct picture {
    int count;
    char lines[LINES][LINE];
} picture;

typedef struct world {
    rig r;
    token tokens[TOKENS];
    int token_count;
    int64_t begun[HELD]; /* fences to settle before it can be closed */
    int begun_count;
    int64_t taken; /* fence of a taken order */
    int errors, deaths, logs;
    long live, maps; /* before it was made */
    int descriptors;
} world;

static const char LONG_ID[] = "a-long-id/that-does-not-fit-into-the-record";
static const char LONG_HELD[] = "a-long-id/whose-callback-is-running-just-now";
static const char LONG_DEAD[] = "a-long-id/that-is-among-the-dead-letters-now";

static inline void release_token(void *arg)
{
    token *t = arg;
    if (t)
        t->released++;
}

static inline lapse_verdict run_token(const lapse_order *order, void *arg)
{
    token *t = arg;
    t->runs++;
    if (t->verdict == LAPSE_RETRY && t->retry_after)
        return lapse_retry(order, t->retry_after, t->error);
    if (t->verdict == LAPSE_REJECT)
        return lapse_reject(order, t->error);
    return t->verdict == LAPSE_FAIL && t->error ? lapse_fail(order, t->error) : t->verdict;
}

static inline void note_error(void *arg, const lapse_order *order, const char *error)
{
    ((world *)arg)->errors += order && error;
}

static inline void note_death(void *arg, const lapse_info *dead)
{
    ((world *)arg)->deaths += dead->state == LAPSE_STATE_DEAD;
}

static inline void note_log(void *arg, lapse_level level, const char *message)
{
    ((world *)arg)->logs += level == LAPSE_WARNING && message;
}

static inline token *new_token(world *w)
{
    ck_assert_int_lt(w->token_count, TOKENS);
    return &w->tokens[w->token_count++];
}

/* Note the answer to a call that put `t`. */
static inline int64_t noted(token *t, int64_t answer)
{
    t->accepted += answer > 0;
    return answer;
}

static inline int64_t put(world *w, lapse_spec spec)
{
    token *t = new_token(w);
    spec.arg = t;
    int64_t answer = noted(t, lapse_put(w->r.s, &spec));
    ck_assert_msg(answer > 0, "%s: %s", spec.id, lapse_error_detail());
    return answer;
}

/* Begin the callback that is due next: its fence. */
static inline int64_t begin(world *w)
{
    const lapse_order *order;
    lapse_callback fn;
    void *arg;
    ck_assert_int_eq(lapse_clock_advance(w->r.clock, LAPSE_MS(2)), 0);
    ck_assert_int_eq(lapse_begin(w->r.s, LAPSE_FOREVER, &order, &fn, &arg), 1);
    return order->fence;
}

static inline int64_t begin_and_hold(world *w)
{
    ck_assert_int_lt(w->begun_count, HELD);
    return w->begun[w->begun_count++] = begin(w);
}

static inline void begin_and_settle(world *w, lapse_verdict verdict, const char *error)
{
    int64_t fence = begin(w);
    ck_assert_int_eq(lapse_settle(w->r.s, fence, verdict, -1, error), 0);
}

static inline int64_t poll_due(world *w, const char *queue)
{
    const lapse_order *order;
    ck_assert_int_eq(lapse_clock_advance(w->r.clock, LAPSE_MS(2)), 0);
    ck_assert_int_eq(lapse_poll(w->r.s, queue, &order), 1);
    return order->fence;
}

static inline void handle(world *w, const char *queue, const lapse_policy *policy)
{
    token *t = new_token(w);
    ck_assert_int_eq(lapse_handle(w->r.s, queue, run_token, t, release_token, policy), 0);
    t->accepted++;
}

/* Hold so many claims that the next one needs memory. */
static inline void use_up_claims(world *w)
{
    static const char *const ids[] = {"u0", "u1", "u2", "u3"};
    for (int i = 0; i < 4; i++) {
        put(w, (lapse_spec){.id = ids[i], .fn = run_token});
        begin_and_hold(w);
    }
}

static inline void open_world(world *w, const char *url, lapse_options options)
{
    memset(w, 0, sizeof *w);
    w->live = live;
    w->maps = map_live;
    w->descriptors = open_descriptors();
    options.release = release_token;
    options.hook_arg = w;
    options.on_error = note_error;
    options.on_dead = note_death;
    options.log = note_log;
    w->r = rig_url(url, LAPSE_MS(1), START, &options);
}

/* One order in every state that there is. */
static inline void populate(world *w)
{
    static const unsigned char bytes[100] = {1, 0, 2};
    handle(w, "handled", &(lapse_policy){.attempts = 2, .jitter_percent = -1});
    put(w, (lapse_spec){.id = "taken", .queue = "for takers"});
    w->taken = poll_due(w, "for takers");
    put(w, (lapse_spec){.id = "kept", .fn = run_token});
    begin_and_settle(w, LAPSE_DONE, NULL);
    put(w,
        (lapse_spec){.id = "dead", .fn = run_token, .payload = bytes, .payload_len = sizeof bytes});
    begin_and_settle(w, LAPSE_REJECT, "no such order");
    put(w, (lapse_spec){.id = LONG_DEAD, .fn = run_token});
    begin_and_settle(w, LAPSE_REJECT, NULL);
    put(w, (lapse_spec){.id = "held", .fn = run_token});
    begin_and_hold(w);
    put(w, (lapse_spec){.id = LONG_HELD, .fn = run_token, .release = release_token});
    begin_and_hold(w);
    ck_assert_int_eq(lapse_pause(w->r.s, "paused"), 0);
    put(w, (lapse_spec){.id = "parked", .queue = "paused", .fn = run_token});
    put(w, (lapse_spec){.id = "short", .delay = LAPSE_HOURS(2), .fn = run_token});
    put(w, (lapse_spec){.id = LONG_ID, .delay = LAPSE_HOURS(3), .fn = run_token});
    put(w, (lapse_spec){.id = "loaded",
                        .delay = LAPSE_HOURS(4),
                        .fn = run_token,
                        .release = release_token,
                        .payload = bytes,
                        .payload_len = sizeof bytes});
    put(w, (lapse_spec){.id = "to pull", .queue = "for takers", .delay = LAPSE_HOURS(2)});
    put(w, (lapse_spec){.id = "to handle", .queue = "handled", .delay = LAPSE_HOURS(2)});
    ck_assert_int_eq(lapse_process(w->r.s, 0), 0);
}

/* -- Pictures ---------------------------------------------------------------------- */

static inline char *next_line(picture *p)
{
    ck_assert_int_lt(p->count, LINES);
    return p->lines[p->count++];
}

static inline uint64_t sum_of(const void *bytes, size_t len)
{
    uint64_t sum = len;
    for (size_t i = 0; i < len; i++)
        sum = sum * 31 + ((const unsigned char *)bytes)[i];
    return sum;
}

static inline bool show_order(const lapse_info *i, void *arg)
{
    snprintf(next_line(arg), LINE,
             "%s %d in \"%s\" %llx due %lld, %lld; ended %lld; %lld #%d %d %s", i->id,
             (int)i->state, i->queue, (unsigned long long)sum_of(i->payload, i->payload_len),
             (long long)i->due, (long long)i->remaining, (long long)i->ended,
             (long long)i->generation, i->attempt, (int)i->reason, i->error ? i->error : "-");
    return true;
}

static inline void show_queues(picture *p, lapse *s)
{
    const char *name;
    for (size_t n = 0; (name = lapse_queue_name(s, n)); n++) {
        lapse_queue_stats q;
        ck_assert_int_eq(lapse_queue_statistics(s, name, &q), 0);
        q.queue = NULL;
        q.oldest_due = 0; /* Counts what somebody has looked for. */
        snprintf(next_line(p), LINE, "queue \"%s\" %d %d %llx", name, q.handled, q.paused,
                 (unsigned long long)sum_of(&q, sizeof q));
    }
}

/* All but what a refusal itself counts and what memory is at hand. */
static inline void show_statistics(picture *p, lapse *s)
{
    lapse_stats t = stats_of(s);
    t.refused = t.bytes = t.longest_move = 0;
    snprintf(next_line(p), LINE,
             "%llu pending, %llu running, %llu kept, %llu dead, %llu scheduled, %llu started: %llx",
             (unsigned long long)t.pending, (unsigned long long)t.running,
             (unsigned long long)t.kept, (unsigned long long)t.dead,
             (unsigned long long)t.scheduled, (unsigned long long)t.started,
             (unsigned long long)sum_of(&t, sizeof t));
}

static inline void show_tokens(picture *p, const world *w)
{
    for (int i = 0; i < w->token_count; i++)
        snprintf(next_line(p), LINE, "token %d: %d accepted, %d runs, %d released", i,
                 w->tokens[i].accepted, w->tokens[i].runs, w->tokens[i].released);
}

static inline int by_text(const void *a, const void *b)
{
    return strcmp(a, b);
}

static inline void take_picture(picture *p, world *w)
{
    p->count = 0;
    ck_assert_int_ge(lapse_each(w->r.s, 0, show_order, p), 0);
    show_queues(p, w->r.s);
    show_statistics(p, w->r.s);
    show_tokens(p, w);
    snprintf(next_line(p), LINE, "timeout %lld, hooks %d %d %d", (long long)lapse_timeout(w->r.s),
             w->errors, w->deaths, w->logs);
    qsort(p->lines, (size_t)p->count, LINE, by_text);
}

static inline const char *line_at(const picture *p, int i)
{
    return i < p->count ? p->lines[i] : "nothing";
}

static inline void expect_same(const picture *before, const picture *after, const char *what)
{
    for (int i = 0; i < before->count || i < after->count; i++)
        ck_assert_msg(strcmp(line_at(before, i), line_at(after, i)) == 0,
                      "%s: changed\n  from %s\n  to   %s", what, line_at(before, i),
                      line_at(after, i));
}

/* -- The end ----------------------------------------------------------------------- */

static inline void expect_identity(lapse *s)
{
    lapse_stats t = stats_of(s);
    ck_assert_uint_eq(t.scheduled,
                      t.done + t.cancelled + t.replaced + t.dead_total + t.pending + t.running);
}

/* Close, without memory if `starved`; everything accepted is released once and all memory,
 * mappings and descriptors are given back. */
static inline void close_world(world *w, const char *what, bool starved)
{
    expect_identity(w->r.s);
    for (int i = 0; i < w->begun_count; i++) {
        int code = lapse_settle(w->r.s, w->begun[i], LAPSE_DONE, 0, NULL);
        ck_assert(code == 0 || code == LAPSE_ESTALE); /* Scheduled anew meanwhile. */
    }
    if (starved)
        fail_after = 0;
    int closed = lapse_close(w->r.s, LIMIT);
    fail_after = NO_FAILURE;
    ck_assert_int_eq(closed, 0);
    for (int i = 0; i < w->token_count; i++)
        ck_assert_msg(w->tokens[i].released == w->tokens[i].accepted,
                      "%s: token %d: %d accepted, %d released", what, i, w->tokens[i].accepted,
                      w->tokens[i].released);
    lapse_clock_free(w->r.clock);
    ck_assert_msg(live == w->live, "%s: %ld allocations were not freed", what, live - w->live);
    ck_assert_msg(map_live == w->maps, "%s: %ld mappings are left", what, map_live - w->maps);
    ck_assert_int_eq(open_descriptors(), w->descriptors);
}

#endif
