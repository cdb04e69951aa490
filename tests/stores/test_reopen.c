/* test_reopen.c - durable stores: what is kept when a scheduler closes and another opens.
 * P-19, P-31, P-60, P-61, P-72.
 *
 * On return a call is durable: closing adds nothing to it. All that is known of an order
 * outlives the scheduler: its time, payload, attempts, generation and fence, how it ended. */
/* tiers: small full */
/* servers */
#include "stores/stores.h"

#include <inttypes.h>
#include <stdlib.h>

#define NEEDS_DURABLE(r) NEEDS(r, LAPSE_CAN_DURABLE)

/* -- What is kept --------------------------------------------------------------------------- */

START_TEST(pending_orders_are_kept)
{
    STORE_NEEDS(_i, LAPSE_CAN_LIST);
    place at = new_place(_i, NULL);
    rig r = open_place(&at, NULL);
    NEEDS_DURABLE(&r);
    char payload[256];
    for (int i = 0; i < 256; i++)
        payload[i] = (char)i;
    lapse_spec spec = {.id = "\xff\xfe id",
                       .queue = "q \x01",
                       .delay = LAPSE_SECONDS(10),
                       .payload = payload,
                       .payload_len = sizeof payload};
    int64_t generation = lapse_put(r.s, &spec);
    ck_assert_int_gt(generation, 0);
    put_batch(r.s, "q", "o", 100, LAPSE_SECONDS(20));
    advance(&r, LAPSE_SECONDS(4));
    reopen_place(&at, &r, NULL);
    lapse_info info = look(r.s, "\xff\xfe id");
    ck_assert_int_eq(info.state, LAPSE_STATE_PENDING);
    ck_assert_int_eq(info.generation, generation);
    ck_assert_int_eq(info.remaining, LAPSE_SECONDS(6));
    ck_assert_int_eq(info.due, UTC_START + LAPSE_SECONDS(10));
    ck_assert_str_eq(info.queue, "q \x01");
    ck_assert_uint_eq(info.payload_len, sizeof payload);
    ck_assert_mem_eq(info.payload, payload, sizeof payload);
    lapse_info_free(&info);
    ck_assert_uint_eq(pending_in(r.s), 101);
    ck_assert_int_gt(put(r.s, "q", "new", LAPSE_SECONDS(1)), generation + 100);
    EXPECT_ERROR(lapse_put(r.s, &spec), LAPSE_EEXISTS, "");
    advance(&r, LAPSE_SECONDS(6) - 1);
    finish_one(r.s, "q", "new");
    expect_nothing(r.s, NULL);
    advance(&r, 1);
    const lapse_order *order = poll_one(r.s, "q \x01", "\xff\xfe id");
    ck_assert_int_eq(order->late, 0);
    ck_assert_int_eq(order->attempt, 1);
    ck_assert_mem_eq(order->payload, payload, sizeof payload);
    settle(r.s, order->fence, LAPSE_DONE);
    advance(&r, LAPSE_SECONDS(10));
    for (int i = 0; i < 100; i++) {
        char id[16];
        snprintf(id, sizeof id, "o%d", i);
        finish_one(r.s, "q", id); /* Still in the order in which they were accepted. */
    }
    rig_close(&r);
}
END_TEST

START_TEST(attempts_and_backoff_are_kept)
{
    place at = new_place(_i, NULL);
    rig r = open_place(&at, NULL);
    NEEDS_DURABLE(&r);
    player p;
    int64_t last = 0;
    put(r.s, "q", "o", LAPSE_MS(1));
    lapse_policy policy = {.attempts = 3, .backoff = LAPSE_SECONDS(10), .jitter_percent = -1};
    const lapse_ns waits[] = {LAPSE_MS(1), LAPSE_SECONDS(10), LAPSE_SECONDS(20)};
    for (int attempt = 1; attempt <= 3; attempt++) {
        player_open(&p, r.s, always_fail);
        handle(r.s, "q", &p, &policy);
        advance(&r, waits[attempt - 1] - LAPSE_MS(1));
        ck_assert_uint_eq(tape_count(&p.ran), 0);
        advance(&r, LAPSE_MS(1));
        ck_assert_uint_eq(tape_count(&p.ran), 1);
        ck_assert_int_eq(p.ran.entries[0].attempt, attempt);
        ck_assert_int_gt(p.ran.entries[0].fence, last);
        last = p.ran.entries[0].fence;
        reopen_place(&at, &r, NULL);
        player_close(&p);
    }
    letter dead = only_letter(r.s);
    ck_assert_int_eq(dead.attempt, 3);
    ck_assert_int_eq(dead.reason, LAPSE_REASON_FAILED);
    ck_assert_str_eq(dead.error, "gateway down");
    int64_t alive = lapse_requeue(r.s, "o", LAPSE_ANY, 0);
    ck_assert_int_gt(alive, dead.generation);
    reopen_place(&at, &r, NULL);
    advance(&r, LAPSE_MS(1));
    const lapse_order *order = poll_one(r.s, "q", "o");
    ck_assert_int_eq(order->attempt, 1);
    ck_assert_int_eq(order->generation, alive);
    ck_assert_int_gt(order->fence, last);
    settle(r.s, order->fence, LAPSE_DONE);
    rig_close(&r);
}
END_TEST

START_TEST(dead_letters_are_kept)
{
    STORE_NEEDS(_i, LAPSE_CAN_LIST);
    place at = new_place(_i, NULL);
    rig r = open_place(&at, NULL);
    NEEDS_DURABLE(&r);
    put_batch(r.s, "q", "o", 20, 0);
    advance(&r, LAPSE_MS(1));
    const lapse_order *order;
    while (lapse_poll(r.s, "q", &order) == 1)
        ck_assert_int_eq(lapse_settle(r.s, order->fence, LAPSE_REJECT, 0, "no such account"), 0);
    lapse_info before = look(r.s, "o7");
    reopen_place(&at, &r, NULL);
    advance(&r, LAPSE_HOURS(5));
    lapse_info after = look(r.s, "o7");
    ck_assert_int_eq(after.state, LAPSE_STATE_DEAD);
    ck_assert_int_eq(after.reason, LAPSE_REASON_REJECTED);
    ck_assert_str_eq(after.error, "no such account");
    ck_assert_int_eq(after.ended, before.ended);
    ck_assert_int_eq(after.due, before.due);
    ck_assert_int_eq(after.generation, before.generation);
    ck_assert_int_eq(after.attempt, 1);
    lapse_info_free(&before);
    lapse_info_free(&after);
    ck_assert_uint_eq(stats_of(r.s).dead, 20);
    ck_assert_int_eq(lapse_purge(r.s, "o7", LAPSE_ANY), 1);
    ck_assert_int_gt(lapse_requeue(r.s, "o8", LAPSE_ANY, 0), 0);
    reopen_place(&at, &r, NULL);
    expect_state(r.s, "o7", 0);
    ck_assert_uint_eq(stats_of(r.s).dead, 18);
    advance(&r, LAPSE_MS(1));
    finish_one(r.s, "q", "o8");
    rig_close(&r);
}
END_TEST

/* P-72: the shop asks two minutes later, after a restart. */
START_TEST(p72_how_it_ended_is_kept)
{
    STORE_NEEDS(_i, LAPSE_CAN_CANCEL);
    place at = new_place(_i, NULL);
    lapse_options options = {.keep = LAPSE_MINUTES(5)};
    rig r = open_place(&at, &options);
    NEEDS_DURABLE(&r);
    int64_t closed = put(r.s, "q", "closed", 0);
    int64_t paid = put(r.s, "q", "paid", LAPSE_HOURS(1));
    ck_assert_int_eq(lapse_cancel(r.s, "paid", LAPSE_ANY), LAPSE_FATE_CANCELLED);
    advance(&r, LAPSE_MS(1));
    finish_one(r.s, "q", "closed");
    lapse_info before = look(r.s, "closed");
    for (int i = 0; i < 4; i++) {
        reopen_place(&at, &r, &options);
        ck_assert_int_eq(lapse_cancel(r.s, "closed", closed), LAPSE_FATE_DONE);
        ck_assert_int_eq(lapse_cancel(r.s, "closed", LAPSE_ANY), LAPSE_FATE_DONE);
        ck_assert_int_eq(lapse_reschedule(r.s, "closed", closed, 0), LAPSE_FATE_DONE);
        ck_assert_int_eq(lapse_cancel(r.s, "closed", closed + 1), LAPSE_FATE_UNKNOWN);
        ck_assert_int_eq(lapse_cancel(r.s, "paid", paid), LAPSE_FATE_DONE);
        lapse_info info = look(r.s, "closed");
        ck_assert_int_eq(info.ended, before.ended); /* The time of closing. */
        lapse_info_free(&info);
        advance(&r, LAPSE_MINUTES(1));
    }
    lapse_info_free(&before);
    advance(&r, LAPSE_MINUTES(2));
    reopen_place(&at, &r, &options);
    ck_assert_int_eq(lapse_cancel(r.s, "closed", LAPSE_ANY), LAPSE_FATE_UNKNOWN);
    expect_state(r.s, "paid", 0);
    rig_close(&r);
}
END_TEST

START_TEST(what_was_changed_stays_changed)
{
    STORE_NEEDS(_i, LAPSE_CAN_CANCEL);
    place at = new_place(_i, NULL);
    rig r = open_place(&at, NULL);
    NEEDS_DURABLE(&r);
    put(r.s, "q", "cancelled", LAPSE_SECONDS(1));
    put(r.s, "q", "later", LAPSE_SECONDS(1));
    put(r.s, "q", "replaced", LAPSE_SECONDS(1));
    put(r.s, "q", "done", 0);
    advance(&r, LAPSE_MS(1));
    finish_one(r.s, "q", "done");
    ck_assert_int_eq(lapse_cancel(r.s, "cancelled", LAPSE_ANY), LAPSE_FATE_CANCELLED);
    ck_assert_int_eq(lapse_reschedule(r.s, "later", LAPSE_ANY, LAPSE_SECONDS(30)),
                     LAPSE_FATE_RESCHEDULED);
    lapse_spec spec = {.id = "replaced",
                       .queue = "other",
                       .delay = LAPSE_SECONDS(20),
                       .payload = "new",
                       .payload_len = 3,
                       .flags = LAPSE_REPLACE};
    int64_t generation = lapse_put(r.s, &spec);
    reopen_place(&at, &r, NULL);
    advance(&r, LAPSE_SECONDS(10));
    expect_nothing(r.s, NULL);
    advance(&r, LAPSE_SECONDS(10));
    const lapse_order *order = poll_one(r.s, NULL, "replaced");
    ck_assert_str_eq(order->queue, "other");
    ck_assert_int_eq(order->generation, generation);
    ck_assert_mem_eq(order->payload, "new", 3);
    settle(r.s, order->fence, LAPSE_DONE);
    advance(&r, LAPSE_SECONDS(10));
    finish_one(r.s, "q", "later");
    ck_assert_uint_eq(pending_in(r.s), 0);
    rig_close(&r);
}
END_TEST

/* Generations and fences go on where they were, whatever the next process does. */
START_TEST(generations_and_fences_grow_across_openings)
{
    STORE_NEEDS(_i, LAPSE_CAN_CANCEL);
    place at = new_place(_i, NULL);
    rig r = open_place(&at, NULL);
    NEEDS_DURABLE(&r);
    int64_t generation = 0, fence = 0;
    for (int i = 0; i < 12; i++) {
        lapse_spec spec = {.id = "o", .queue = "q", .flags = LAPSE_REPLACE};
        int64_t next = lapse_put(r.s, &spec);
        ck_assert_int_gt(next, generation);
        generation = next;
        advance(&r, LAPSE_MS(1));
        const lapse_order *order = poll_one(r.s, "q", "o");
        ck_assert_int_gt(order->fence, fence);
        fence = order->fence;
        if (i % 3 == 0)
            settle(r.s, fence, LAPSE_DONE);
        else if (i % 3 == 1)
            ck_assert_int_eq(lapse_cancel(r.s, "o", LAPSE_ANY), LAPSE_FATE_RUNNING);
        if (i % 2)
            reopen_place(&at, &r, NULL);
        else
            lapse_clock_set_wall(r.clock, UTC_START + LAPSE_DAYS(i % 4 ? -400 : 400));
    }
    rig_close(&r);
}
END_TEST

/* -- Close gives back ----------------------------------------------------------------------------- */

/* P-31: a graceful end costs no attempt, and the order can be claimed at once. */
START_TEST(close_gives_back_what_was_taken)
{
    place at = new_place(_i, NULL);
    rig r = open_place(&at, NULL);
    NEEDS_DURABLE(&r);
    put_batch(r.s, "q", "o", 10, LAPSE_MS(1));
    advance(&r, LAPSE_MS(1));
    int64_t last = 0;
    for (int i = 0; i < 3; i++) {
        const lapse_order *order;
        for (int n = 0; n < 5; n++) {
            ck_assert_int_eq(lapse_poll(r.s, "q", &order), 1);
            ck_assert_int_eq(order->attempt, 1);
            ck_assert_int_eq(atoi(order->id + 1), n); /* It has kept its place. */
        }
        ck_assert_int_gt(order->fence, last);
        last = order->fence;
        reopen_place(&at, &r, NULL);
        ck_assert_int_eq(lapse_settle(r.s, last, LAPSE_DONE, 0, NULL), LAPSE_ESTALE);
        if (lapse_abilities(r.s) & LAPSE_CAN_LIST)
            ck_assert_uint_eq(pending_in(r.s), 10);
        ck_assert_uint_eq(stats_of(r.s).running, 0);
    }
    rig_close(&r);
}
END_TEST

/* What was answered "running" is not delivered again by the next process either. */
START_TEST(p20_running_is_kept)
{
    STORE_NEEDS(_i, LAPSE_CAN_CANCEL);
    place at = new_place(_i, NULL);
    rig r = open_place(&at, NULL);
    NEEDS_DURABLE(&r);
    put(r.s, "q", "o", LAPSE_MS(1));
    advance(&r, LAPSE_MS(1));
    poll_one(r.s, "q", "o");
    ck_assert_int_eq(lapse_cancel(r.s, "o", LAPSE_ANY), LAPSE_FATE_RUNNING);
    reopen_place(&at, &r, NULL); /* It gives the claim back. */
    for (int i = 0; i < 5; i++) {
        expect_nothing(r.s, NULL);
        advance(&r, LAPSE_MINUTES(1));
    }
    expect_state(r.s, "o", 0);
    ck_assert_uint_eq(stats_of(r.s).dead, 0);
    rig_close(&r);
}
END_TEST

/* -- After an outage --------------------------------------------------------------------------------- */

START_TEST(p61_a_consumer_delivers_what_is_overdue)
{
    place at = new_place(_i, NULL);
    rig r = open_place(&at, NULL);
    NEEDS_DURABLE(&r);
    put_batch(r.s, "q", "a", 100, LAPSE_SECONDS(5));
    leave_place(&r);
    ck_assert_int_eq(lapse_clock_advance(r.clock, LAPSE_SECONDS(10)), 0);
    rig consumer = join_place(&at, &r, NULL);
    player p;
    player_open(&p, consumer.s, NULL);
    handle(consumer.s, "q", &p, NULL);
    ck_assert_int_eq(lapse_process(consumer.s, 0), 100); /* Nobody scheduled anything. */
    for (int i = 0; i < 100; i++) {
        ck_assert_int_eq(p.ran.entries[i].late, LAPSE_SECONDS(5));
        ck_assert_int_eq(p.ran.entries[i].attempt, 1);
    }
    player_close(&p);
    rig_close(&consumer);
}
END_TEST

/* The same with our own threads and takers, on the real clock. */
START_TEST(p61_a_consumer_of_its_own_accord)
{
    place at = new_place(_i, NULL);
    rig r = open_real(&at, NULL);
    NEEDS_DURABLE(&r);
    put_batch(r.s, "q", "a", 50, LAPSE_MS(1));
    put_batch(r.s, "taken", "t", 1, LAPSE_MS(1));
    leave_place(&r);
    rig consumer = open_real(&at, NULL);
    player p;
    const lapse_order *order;
    player_open(&p, consumer.s, NULL);
    ck_assert_int_eq(lapse_start(consumer.s, 2), 0);
    handle(consumer.s, "q", &p, NULL);
    ck_assert(tape_wait(&p.ran, 50));
    ck_assert_int_eq(lapse_take(consumer.s, "taken", LIMIT, &order), 1);
    settle(consumer.s, order->fence, LAPSE_DONE);
    player_close(&p);
    rig_close(&consumer);
}
END_TEST

START_TEST(p77_thirty_days_late_runs_once)
{
    place at = new_place(_i, NULL);
    rig r = open_place(&at, NULL);
    NEEDS_DURABLE(&r);
    put(r.s, "q", "month", 0);
    put(r.s, "q", "hour", LAPSE_DAYS(30) - LAPSE_HOURS(1));
    put(r.s, "q", "second", LAPSE_DAYS(30) - LAPSE_SECONDS(1));
    leave_place(&r);
    ck_assert_int_eq(lapse_clock_advance(r.clock, LAPSE_DAYS(30)), 0);
    rig consumer = join_place(&at, &r, NULL);
    player p;
    player_open(&p, consumer.s, NULL);
    handle(consumer.s, "q", &p, NULL);
    put_batch(consumer.s, "q", "new", 50, LAPSE_SECONDS(60));
    ck_assert_int_eq(lapse_process(consumer.s, 0), 3);
    ck_assert_int_eq(p.ran.entries[0].late / LAPSE_HOURS(1), 30 * 24);
    ck_assert_int_eq(p.ran.entries[1].late, LAPSE_HOURS(1));
    ck_assert_int_eq(p.ran.entries[2].late, LAPSE_SECONDS(1));
    ck_assert_int_eq(lapse_process(consumer.s, 0), 0);
    player_close(&p);
    rig_close(&consumer);
}
END_TEST

/* -- Clocks: P-19, P-60 -------------------------------------------------------------------------------- */

/* A step of the wall clock moves nothing while the machine is up. */
START_TEST(p60_wall_steps_move_nothing)
{
    const lapse_ns steps[] = {LAPSE_MINUTES(10), LAPSE_MINUTES(-10), LAPSE_DAYS(3650),
                              LAPSE_DAYS(-3650)};
    for (int i = 0; i < 4; i++) {
        place at = new_place(_i, NULL);
        rig r = open_place(&at, NULL);
        NEEDS_DURABLE(&r);
        put(r.s, "q", "o", LAPSE_MINUTES(30));
        advance(&r, LAPSE_MINUTES(10));
        ck_assert_int_eq(lapse_clock_set_wall(r.clock, UTC_START + LAPSE_MINUTES(10) + steps[i]),
                         0);
        put(r.s, "q", "after", LAPSE_MINUTES(10));
        advance(&r, LAPSE_MINUTES(10) - 1);
        expect_nothing(r.s, NULL);
        advance(&r, LAPSE_MS(1) + 1);
        const lapse_order *order = poll_one(r.s, "q", "after");
        ck_assert_int_ge(order->late, 0);
        ck_assert_int_le(order->late, LAPSE_MS(1));
        settle(r.s, order->fence, LAPSE_DONE);
        advance(&r, LAPSE_MINUTES(10) - LAPSE_MS(1) - 1);
        expect_nothing(r.s, NULL);
        advance(&r, LAPSE_MS(1) + 1);
        order = poll_one(r.s, "q", "o");
        ck_assert_int_ge(order->late, 0);
        ck_assert_int_le(order->late, LAPSE_MS(1));
        settle(r.s, order->fence, LAPSE_DONE);
        rig_close(&r);
    }
}
END_TEST

/* P-19: whatever the time zone of who wrote it and of who reads it, a delay is a delay. */
START_TEST(p19_time_zones_move_nothing)
{
    STORE_NEEDS(_i, LAPSE_CAN_LIST);
    static const char *const zones[] = {"Europe/Berlin", "America/New_York", "Asia/Shanghai",
                                        "XYZ-14:30"};
    /* Ten minutes before transitions of 2026: New York and Berlin, spring and autumn. */
    static const int64_t instants[] = {INT64_C(1772953200), INT64_C(1774745400),
                                       INT64_C(1792889400), INT64_C(1793512200)};
    for (int i = 0; i < 4; i++) {
        place at = new_place(_i, NULL);
        rig r = open_place(&at, NULL);
        NEEDS_DURABLE(&r);
        setenv("TZ", zones[i], 1);
        tzset();
        ck_assert_int_eq(lapse_clock_set_wall(r.clock, LAPSE_SECONDS(instants[i])), 0);
        reopen_place(&at, &r, NULL);
        put(r.s, "q", "o", LAPSE_MINUTES(30));
        setenv("TZ", zones[(i + 1) % 4], 1);
        tzset();
        reopen_place(&at, &r, NULL);
        lapse_info info = look(r.s, "o");
        ck_assert_int_eq(info.due, LAPSE_SECONDS(instants[i]) + LAPSE_MINUTES(30));
        ck_assert_int_eq(info.remaining, LAPSE_MINUTES(30));
        lapse_info_free(&info);
        advance(&r, LAPSE_MINUTES(30) - LAPSE_MS(1));
        expect_nothing(r.s, NULL);
        advance(&r, LAPSE_MS(1));
        const lapse_order *order = poll_one(r.s, "q", "o");
        ck_assert_int_eq(order->late, 0);
        settle(r.s, order->fence, LAPSE_DONE);
        rig_close(&r);
    }
}
END_TEST

/* -- Many -------------------------------------------------------------------------------------------- */

/* A store in every state, and what is seen of it: the same before and after. */
typedef struct sight {
    char id[32];
    lapse_state state;
    int64_t generation;
    lapse_ns due, ended;
    int64_t attempt;
} sight;

struct seen {
    int count;
    sight list[600];
};

static bool see(const lapse_info *info, void *arg)
{
    struct seen *seen = arg;
    int n = seen->count++;
    snprintf(seen->list[n].id, sizeof seen->list[n].id, "%s", info->id);
    seen->list[n].state = info->state;
    seen->list[n].generation = info->generation;
    seen->list[n].due = info->due;
    seen->list[n].ended = info->ended;
    seen->list[n].attempt = info->attempt;
    return seen->count < 600;
}

static int by_generation(const void *a, const void *b)
{
    int64_t x = ((const sight *)a)->generation, y = ((const sight *)b)->generation;
    return (x > y) - (x < y);
}

static void see_all(lapse *s, struct seen *seen)
{
    memset(seen, 0, sizeof *seen);
    ck_assert_int_ge(lapse_each(s, 0, see, seen), 0);
    qsort(seen->list, (size_t)seen->count, sizeof seen->list[0], by_generation);
}

START_TEST(what_is_seen_is_the_same_after_opening)
{
    STORE_NEEDS(_i, LAPSE_CAN_LIST);
    static struct seen before, after;
    place at = new_place(_i, NULL);
    lapse_options options = {.keep = LAPSE_HOURS(10)};
    rig r = open_place(&at, &options);
    NEEDS_DURABLE(&r);
    rng luck = rng_open("what_is_seen_is_the_same_after_opening");
    for (int round = 0; round < 5; round++) {
        for (int i = 0; i < 80; i++) {
            char id[16];
            const lapse_order *order;
            snprintf(id, sizeof id, "%d", (int)rng_range(&luck, 0, 200));
            lapse_spec spec = {
                .id = id, .queue = "q", .delay = LAPSE_SECONDS(rng_range(&luck, 0, 100))};
            lapse_put(r.s, &spec);
            snprintf(id, sizeof id, "%d", (int)rng_range(&luck, 0, 200));
            if (i % 3 == 0)
                lapse_cancel(r.s, id, LAPSE_ANY);
            if (i % 4 == 0 && lapse_poll(r.s, "q", &order) == 1)
                lapse_settle(r.s, order->fence, (lapse_verdict)rng_range(&luck, 0, 4),
                             LAPSE_SECONDS(5), "why not");
            ck_assert_int_eq(lapse_clock_advance(r.clock, LAPSE_SECONDS(1)), 0);
        }
        lapse_stats t = stats_of(r.s);
        see_all(r.s, &before);
        reopen_place(&at, &r, &options);
        see_all(r.s, &after);
        ck_assert_int_eq(after.count, before.count);
        ck_assert_mem_eq(after.list, before.list, sizeof after.list);
        ck_assert_uint_eq(stats_of(r.s).pending, t.pending);
        ck_assert_uint_eq(stats_of(r.s).kept, t.kept);
        ck_assert_uint_eq(stats_of(r.s).dead, t.dead);
    }
    rig_close(&r);
}
END_TEST

/* Limits are those of who opens, over all that is there. */
START_TEST(p29_limits_count_what_was_there)
{
    STORE_NEEDS(_i, LAPSE_CAN_LIMIT);
    place at = new_place(_i, NULL);
    rig r = open_place(&at, NULL);
    NEEDS_DURABLE(&r);
    put_batch(r.s, "q", "o", 10, LAPSE_HOURS(1));
    reopen_place(&at, &r, &(lapse_options){.max_pending = 5});
    EXPECT_ERROR(lapse_put(r.s, &(lapse_spec){.id = "x"}), LAPSE_EFULL, "max_pending");
    for (int i = 0; i < 6; i++) {
        char id[16];
        snprintf(id, sizeof id, "o%d", i);
        ck_assert_int_eq(lapse_cancel(r.s, id, LAPSE_ANY), LAPSE_FATE_CANCELLED);
    }
    put(r.s, "q", "x", 0);
    EXPECT_ERROR(lapse_put(r.s, &(lapse_spec){.id = "y"}), LAPSE_EFULL, "max_pending");
    rig_close(&r);
}
END_TEST

static void fill_suite(Suite *suite)
{
    TCase *group = add_group(suite, "what is kept");
    ADD_FOR_STORES(group, pending_orders_are_kept);
    ADD_FOR_STORES(group, attempts_and_backoff_are_kept);
    ADD_FOR_STORES(group, dead_letters_are_kept);
    ADD_FOR_STORES(group, p72_how_it_ended_is_kept);
    ADD_FOR_STORES(group, what_was_changed_stays_changed);
    ADD_FOR_STORES(group, generations_and_fences_grow_across_openings);
    ADD_FOR_STORES(group, what_is_seen_is_the_same_after_opening);
    ADD_FOR_STORES(group, p29_limits_count_what_was_there);
    group = add_group(suite, "close gives back");
    ADD_FOR_STORES(group, close_gives_back_what_was_taken);
    ADD_FOR_STORES(group, p20_running_is_kept);
    group = add_group(suite, "after an outage");
    ADD_FOR_STORES(group, p61_a_consumer_delivers_what_is_overdue);
    ADD_FOR_STORES(group, p61_a_consumer_of_its_own_accord);
    ADD_FOR_STORES(group, p77_thirty_days_late_runs_once);
    group = add_group(suite, "clocks");
    ADD_FOR_STORES(group, p60_wall_steps_move_nothing);
    ADD_FOR_STORES(group, p19_time_zones_move_nothing);
}

int main(void)
{
    return stores_main("reopen", fill_suite);
}
