/* delivery.h - what the tests of handlers, leases and dead letters share.
 *
 * A player is a handler that notes what it is given and answers what the test says.
 * `expect_books` holds at every moment: each order accepted is in exactly one place, and
 * the queues together tell what the scheduler tells. */
#ifndef LAPSE_TESTS_DELIVERY_H
#define LAPSE_TESTS_DELIVERY_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../support/support.h"

/* -- Orders without a callback ------------------------------------------------------- */

static inline int64_t put(lapse *s, const char *queue, const char *id, lapse_ns delay)
{
    int64_t generation = lapse_put(s, &(lapse_spec){.id = id, .queue = queue, .delay = delay});
    ck_assert_msg(generation > 0, "lapse_put(%s): %s", id, lapse_error_detail());
    return generation;
}

static inline void put_with_payload(lapse *s, const char *queue, const char *id, lapse_ns delay)
{
    lapse_spec spec = {
        .id = id, .queue = queue, .delay = delay, .payload = "pay\0oad", .payload_len = 7};
    ck_assert_int_gt(lapse_put(s, &spec), 0);
}

/* "<prefix>0" to "<prefix><count - 1>", all with the same delay. */
static inline void put_many(lapse *s, const char *queue, const char *prefix, int count,
                            lapse_ns delay)
{
    for (int i = 0; i < count; i++) {
        char id[32];
        snprintf(id, sizeof id, "%s%d", prefix, i);
        put(s, queue, id, delay);
    }
}

/* The same with one call: durable stores write once. */
static inline void put_batch(lapse *s, const char *queue, const char *prefix, int count,
                             lapse_ns delay)
{
    char(*ids)[32] = calloc((size_t)count, sizeof *ids);
    lapse_spec *specs = calloc((size_t)count, sizeof *specs);
    int64_t *results = calloc((size_t)count, sizeof *results);
    ck_assert(ids != NULL && specs != NULL && results != NULL);
    for (int i = 0; i < count; i++) {
        snprintf(ids[i], sizeof ids[i], "%s%d", prefix, i);
        specs[i] = (lapse_spec){.id = ids[i], .queue = queue, .delay = delay};
    }
    int64_t accepted = lapse_schedule_many(s, specs, (size_t)count, results);
    ck_assert_msg(accepted == count, "%lld of %d accepted: %s", (long long)accepted, count,
                  lapse_error_detail());
    free(ids);
    free(specs);
    free(results);
}

/* The next order of a queue, which must be `id`. */
static inline const lapse_order *poll_one(lapse *s, const char *queue, const char *id)
{
    const lapse_order *order = NULL;
    ck_assert_int_eq(lapse_poll(s, queue, &order), 1);
    ck_assert_str_eq(order->id, id);
    return order;
}

static inline void expect_nothing(lapse *s, const char *queue)
{
    const lapse_order *order = NULL;
    ck_assert_int_eq(lapse_poll(s, queue, &order), 0);
    ck_assert_ptr_null(order);
}

/* Settle, which must succeed. */
static inline void settle(lapse *s, int64_t fence, lapse_verdict verdict)
{
    int result = lapse_settle(s, fence, verdict, 0, NULL);
    ck_assert_msg(result == 0, "lapse_settle: %s", lapse_error_detail());
}

/* The code of a call that must fail with this code and a sentence that holds `words`. */
#define EXPECT_ERROR(call, code, words)                                                            \
    do {                                                                                           \
        int64_t result_ = (call);                                                                  \
        ck_assert_msg(result_ == (code), "%s: %lld (%s)", #call, (long long)result_,               \
                      lapse_error_detail());                                                       \
        ck_assert_msg(strstr(lapse_error_detail(), words) != NULL, "%s: \"%s\" lacks \"%s\"",      \
                      #call, lapse_error_detail(), words);                                         \
    } while (0)

/* -- Players ------------------------------------------------------------------------- */

typedef struct player {
    tape ran;
    lapse_verdict (*say)(const lapse_order *order); /* NULL: done */
} player;

static inline lapse_verdict play(const lapse_order *order, void *arg)
{
    player *p = arg;
    tape_note(order, &p->ran);
    return p->say != NULL ? p->say(order) : LAPSE_DONE;
}

static inline void player_open(player *p, lapse *s, lapse_verdict (*say)(const lapse_order *order))
{
    *p = (player){.say = say};
    tape_open(&p->ran, s);
}

static inline void player_close(player *p)
{
    tape_close(&p->ran);
}

static inline void handle(lapse *s, const char *queue, player *p, const lapse_policy *policy)
{
    int result = lapse_handle(s, queue, play, p, NULL, policy);
    ck_assert_msg(result == 0, "lapse_handle: %s", lapse_error_detail());
}

static inline lapse_verdict always_fail(const lapse_order *order)
{
    return lapse_fail(order, "gateway down");
}

static inline lapse_verdict always_reject(const lapse_order *order)
{
    return lapse_reject(order, "no such order");
}

/* -- Time ----------------------------------------------------------------------------- */

/* Go from one thing to do to the next, to the nanosecond, for `span`. */
static inline void run_for(rig *r, lapse_ns span)
{
    lapse_ns end = lapse_now(r->s) + span;
    for (;;) {
        lapse_ns wait = lapse_timeout(r->s), left = end - lapse_now(r->s);
        ck_assert_int_ge(wait, 0);
        if (wait > left || left == 0)
            break;
        ck_assert_int_eq(lapse_clock_advance(r->clock, wait), 0);
        ck_assert_int_ge(lapse_process(r->s, 0), 0);
    }
    advance(r, end - lapse_now(r->s));
}

/* -- Looking ------------------------------------------------------------------------- */

/* The state of an order, or 0 when it is unknown. */
static inline int state_of(lapse *s, const char *id)
{
    lapse_info info;
    if (lapse_get(s, id, &info) != 0)
        return 0;
    int state = (int)info.state;
    lapse_info_free(&info);
    return state;
}

/* Where it can be looked at. */
#define expect_state(s, id, state)                                                                 \
    do {                                                                                           \
        if (lapse_abilities(s) & LAPSE_CAN_LIST)                                                   \
            ck_assert_int_eq(state_of(s, id), state);                                              \
    } while (0)

static inline lapse_queue_stats queue_stats(lapse *s, const char *queue)
{
    lapse_queue_stats stats;
    ck_assert_int_eq(lapse_queue_statistics(s, queue, &stats), 0);
    return stats;
}

typedef struct letter {
    char id[64], queue[64], error[1100];
    lapse_reason reason;
    int attempt;
    int64_t generation;
    lapse_ns due, ended;
    size_t payload_len;
} letter;

typedef struct letters {
    int count; /* also of those beyond the room */
    letter list[64];
} letters;

static inline void read_letter(letter *out, const lapse_info *info)
{
    *out = (letter){.reason = info->reason,
                    .attempt = info->attempt,
                    .generation = info->generation,
                    .due = info->due,
                    .ended = info->ended,
                    .payload_len = info->payload_len};
    snprintf(out->id, sizeof out->id, "%s", info->id);
    snprintf(out->queue, sizeof out->queue, "%s", info->queue);
    snprintf(out->error, sizeof out->error, "%s", info->error != NULL ? info->error : "(none)");
}

static inline bool note_letter(const lapse_info *info, void *arg)
{
    letters *l = arg;
    if (info->state != LAPSE_STATE_DEAD)
        complain("%s is no dead letter", info->id);
    if (l->count < 64)
        read_letter(&l->list[l->count], info);
    l->count++;
    return true;
}

/* As an on_dead hook, with letters. */
static inline void keep_letter(void *hook_arg, const lapse_info *dead)
{
    note_letter(dead, hook_arg);
}

/* The only dead letter there is. */
static inline letter only_letter(lapse *s)
{
    letters l = {.count = 0};
    ck_assert_int_eq(lapse_each(s, LAPSE_STATE_DEAD, note_letter, &l), 1);
    return l.list[0];
}

/* -- The books ------------------------------------------------------------------------- */

static inline void expect_queues_add_up(lapse *s, const lapse_stats *t)
{
    lapse_queue_stats all = {.queue = "all"}, q;
    for (size_t n = 0; lapse_queue_name(s, n) != NULL; n++) {
        q = queue_stats(s, lapse_queue_name(s, n));
        all.pending += q.pending;
        all.running += q.running;
        all.dead += q.dead;
        all.started += q.started;
        all.done += q.done;
        all.failed += q.failed;
        all.retried += q.retried;
        all.cancelled += q.cancelled;
        all.dead_total += q.dead_total;
        for (int reason = 0; reason < 6; reason++)
            all.dead_by[reason] += q.dead_by[reason];
    }
    ck_assert_uint_eq(all.pending, t->pending);
    ck_assert_uint_eq(all.running, t->running);
    ck_assert_uint_eq(all.dead, t->dead);
    ck_assert_uint_eq(all.started, t->started);
    ck_assert_uint_eq(all.done, t->done);
    ck_assert_uint_eq(all.failed, t->failed);
    ck_assert_uint_eq(all.retried, t->retried);
    ck_assert_uint_eq(all.cancelled, t->cancelled);
    ck_assert_uint_eq(all.dead_total, t->dead_total);
    for (int reason = 0; reason < 6; reason++)
        ck_assert_uint_eq(all.dead_by[reason], t->dead_by[reason]);
}

static inline void expect_books(lapse *s)
{
    lapse_stats t = stats_of(s);
    uint64_t by_reason = 0;
    for (int reason = 0; reason < 6; reason++)
        by_reason += t.dead_by[reason];
    ck_assert_uint_eq(t.scheduled,
                      t.done + t.cancelled + t.replaced + t.dead_total + t.pending + t.running);
    ck_assert_uint_eq(t.dead_total, by_reason);
    ck_assert_uint_eq(t.dead_total, t.dead + t.dead_dropped + t.requeued + t.purged);
    ck_assert_uint_eq(t.dead_by[LAPSE_REASON_NONE], 0);
    expect_queues_add_up(s, &t);
}

#endif
