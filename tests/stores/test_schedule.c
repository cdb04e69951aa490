/* test_schedule.c - every store: what is scheduled comes back, as it was given, in time.
 * P-09 to P-11, P-52 to P-54, P-56.
 *
 * Never early, in order of due time, each id once; ids and payloads are bytes. */
/* tiers: small full soak */
/* servers */
#include "stores/stores.h"

#include <inttypes.h>
#include <stdlib.h>

/* -- When ------------------------------------------------------------------------------- */

START_TEST(nothing_is_early)
{
    rig r = fresh(_i, NULL);
    put(r.s, "q", "o", LAPSE_MS(50));
    put(r.s, "q", "odd", LAPSE_MS(70) + 1); /* Rounding is up. */
    advance(&r, LAPSE_MS(50) - 1);
    expect_nothing(r.s, "q");
    advance(&r, 1);
    const lapse_order *order = poll_one(r.s, "q", "o");
    ck_assert_int_eq(order->late, 0);
    ck_assert_int_eq(order->attempt, 1);
    settle(r.s, order->fence, LAPSE_DONE);
    advance(&r, LAPSE_MS(20));
    expect_nothing(r.s, "q");
    advance(&r, LAPSE_MS(1));
    finish_one(r.s, "q", "odd");
    rig_close(&r);
}
END_TEST

/* Long delays are what they say, to the nanosecond where the store knows those. */
START_TEST(p09_a_century_is_a_century)
{
    STORE_NEEDS(_i, LAPSE_CAN_LIST);
    const lapse_ns delays[] = {LAPSE_DAYS(25), LAPSE_DAYS(50), LAPSE_DAYS(400), LAPSE_DAYS(3650),
                               LAPSE_DELAY_MAX};
    rig r = fresh(_i, NULL);
    char id[16];
    for (int i = 0; i < 5; i++) {
        snprintf(id, sizeof id, "far%d", i);
        put(r.s, "q", id, delays[i]);
        lapse_info info = look(r.s, id);
        ck_assert_int_ge(info.remaining, delays[i]);
        ck_assert_int_le(info.remaining, delays[i] + r.tick);
        lapse_info_free(&info);
    }
    lapse_ns past = 0;
    for (int i = 0; i < 5; i++) {
        snprintf(id, sizeof id, "far%d", i);
        advance(&r, delays[i] - past - LAPSE_MS(1));
        expect_nothing(r.s, "q");
        advance(&r, LAPSE_MS(1));
        finish_one(r.s, "q", id);
        past = delays[i];
    }
    rig_close(&r);
}
END_TEST

START_TEST(p10_a_refused_time_changes_nothing)
{
    STORE_NEEDS(_i, LAPSE_CAN_LIST);
    rig r = fresh(_i, NULL);
    int64_t first = put(r.s, "q", "o", LAPSE_SECONDS(1));
    lapse_spec far = {.id = "far", .delay = LAPSE_DELAY_MAX + 1};
    EXPECT_ERROR(lapse_put(r.s, &far), LAPSE_ERANGE, "100 years");
    far = (lapse_spec){.id = "o", .delay = INT64_MAX, .flags = LAPSE_REPLACE};
    EXPECT_ERROR(lapse_put(r.s, &far), LAPSE_ERANGE, "100 years");
    EXPECT_ERROR(lapse_reschedule(r.s, "o", LAPSE_ANY, LAPSE_DELAY_MAX + 1), LAPSE_ERANGE, "");
    expect_state(r.s, "far", 0);
    lapse_info info = look(r.s, "o");
    ck_assert_int_eq(info.generation, first);
    ck_assert_int_le(info.remaining, LAPSE_SECONDS(1) + r.tick);
    lapse_info_free(&info);
    ck_assert_uint_eq(stats_of(r.s).scheduled, 1);
    rig_close(&r);
}
END_TEST

START_TEST(p11_a_negative_delay_is_zero)
{
    const lapse_ns delays[] = {-1, LAPSE_MS(-46), LAPSE_SECONDS(-2515194), INT64_MIN};
    rig r = fresh(_i, NULL);
    for (int i = 0; i < 4; i++)
        put(r.s, "q", (const char *[]){"a", "b", "c", "d"}[i], delays[i]);
    advance(&r, LAPSE_MS(1));
    for (int i = 0; i < 4; i++) {
        const lapse_order *order = poll_one(r.s, "q", (const char *[]){"a", "b", "c", "d"}[i]);
        ck_assert_int_ge(order->late, 0);
        ck_assert_int_le(order->late, LAPSE_MS(1));
        settle(r.s, order->fence, LAPSE_DONE);
    }
    rig_close(&r);
}
END_TEST

START_TEST(instants_are_utc)
{
    STORE_NEEDS(_i, LAPSE_CAN_LIST);
    rig r = fresh(_i, NULL);
    lapse_spec spec = {.id = "at", .queue = "q", .at = UTC_START + LAPSE_HOURS(3)};
    ck_assert_int_gt(lapse_put(r.s, &spec), 0);
    spec = (lapse_spec){.id = "past", .queue = "q", .at = LAPSE_DAYS(365)};
    ck_assert_int_gt(lapse_put(r.s, &spec), 0);
    spec = (lapse_spec){.id = "before 1970", .queue = "q", .at = LAPSE_DAYS(-365)};
    ck_assert_int_gt(lapse_put(r.s, &spec), 0);
    spec = (lapse_spec){.id = "too far", .queue = "q", .at = INT64_MAX};
    ck_assert_int_eq(lapse_put(r.s, &spec), LAPSE_ERANGE);
    lapse_info info = look(r.s, "at");
    ck_assert_int_eq(info.due, UTC_START + LAPSE_HOURS(3));
    ck_assert_int_eq(info.remaining, LAPSE_HOURS(3));
    lapse_info_free(&info);
    advance(&r, LAPSE_MS(1));
    finish_one(r.s, "q", "past");
    finish_one(r.s, "q", "before 1970");
    advance(&r, LAPSE_HOURS(3) - LAPSE_MS(1) - 1);
    expect_nothing(r.s, "q");
    advance(&r, 1);
    const lapse_order *order = poll_one(r.s, "q", "at");
    ck_assert_int_eq(order->due, UTC_START + LAPSE_HOURS(3));
    ck_assert_int_eq(order->late, 0);
    settle(r.s, order->fence, LAPSE_DONE);
    rig_close(&r);
}
END_TEST

/* By due time, ties as they were accepted. */
START_TEST(in_order)
{
    enum { COUNT = 300, INSTANTS = 40 };
    rig r = fresh(_i, NULL);
    rng luck = rng_open("in_order");
    static int due[COUNT];
    char id[16];
    for (int i = 0; i < COUNT; i++) {
        due[i] = (int)rng_range(&luck, 1, INSTANTS);
        snprintf(id, sizeof id, "%d", i);
        put(r.s, i % 2 ? "a" : "b", id, LAPSE_MS(10) * due[i]);
    }
    advance(&r, LAPSE_SECONDS(1));
    for (int instant = 1, n = 0; instant <= INSTANTS; instant++)
        for (int i = 0; i < COUNT; i++)
            if (due[i] == instant) {
                snprintf(id, sizeof id, "%d", i);
                const lapse_order *order = poll_one(r.s, NULL, id);
                ck_assert_int_eq(order->late, LAPSE_SECONDS(1) - LAPSE_MS(10) * instant);
                if (++n % 3) /* Some are held while others are claimed. */
                    settle(r.s, order->fence, LAPSE_DONE);
            }
    expect_nothing(r.s, NULL);
    ck_assert_uint_eq(stats_of(r.s).running, COUNT / 3);
    expect_books(r.s);
    rig_close(&r);
}
END_TEST

/* -- Which: ids -------------------------------------------------------------------------- */

START_TEST(p52_ids_have_edges)
{
    rig r = fresh(_i, NULL);
    char longest[LAPSE_ID_MAX + 2];
    memset(longest, 'i', sizeof longest);
    longest[LAPSE_ID_MAX + 1] = '\0';
    EXPECT_ERROR(lapse_put(r.s, &(lapse_spec){.id = longest}), LAPSE_EID, "255");
    EXPECT_ERROR(lapse_put(r.s, &(lapse_spec){.id = ""}), LAPSE_EID, "");
    EXPECT_ERROR(lapse_put(r.s, &(lapse_spec){.id = "a\0b", .id_len = 3}), LAPSE_EID, "NUL");
    EXPECT_ERROR(lapse_put(r.s, &(lapse_spec){.id = NULL}), LAPSE_EID, "");
    ck_assert_uint_eq(pending_in(r.s), 0);
    longest[LAPSE_ID_MAX] = '\0';
    put(r.s, "q", longest, 0);
    put(r.s, "q", "1", 0);
    ck_assert_int_gt(lapse_put(r.s, &(lapse_spec){.id = "with length", .id_len = 4, .queue = "q"}),
                     0);
    advance(&r, LAPSE_MS(1));
    const lapse_order *order = poll_one(r.s, "q", longest);
    ck_assert_uint_eq(order->id_len, LAPSE_ID_MAX);
    finish_one(r.s, "q", "1");
    finish_one(r.s, "q", "with");
    if (lapse_abilities(r.s) & LAPSE_CAN_CANCEL)
        ck_assert_int_eq(lapse_cancel(r.s, longest, LAPSE_ANY), LAPSE_FATE_RUNNING);
    settle(r.s, order->fence, LAPSE_DONE);
    rig_close(&r);
}
END_TEST

/* Ids that something might hold for the same: none is. */
static const char *const alike[] = {
    "caf\xc3\xa9-1",
    "cafe\xcc\x81-1",
    "A",
    "a",
    "x",
    "x ",
    " x",
    "\xe2\x84\xab", /* Angstrom sign, and the letter */
    "\xc3\x85",
    "\xef\xbc\x91",
    "1",
    "01",
    "1.0",
    "1e0",
    "+1",
    "%",
    "_",
    "*",
    "'",
    "''",
    "\\",
    "\xff\xfe\x80", /* No UTF-8 at all */
    "\xff\xfe\x81",
    "\xc3",
    "550e8400-e29b-41d4-a716-446655440101",
    "550E8400-E29B-41D4-A716-446655440101",
    "550E8400-e29b-41d4-a716-446655440101",
    "550e8400e29b41d4a716446655440101",
    "{550e8400-e29b-41d4-a716-446655440101}",
    "\x55\x0e\x84\x01\xe2\x9b\x41\xd4\xa7\x16\x44\x66\x55\x44\x01\x01", /* As bytes */
    "130775545883395173",
    "130775545883395172",
    "NULL",
    "\t",
    "\n",
    "\x01",
};

enum { ALIKE = sizeof alike / sizeof *alike };

START_TEST(p54_ids_are_bytes)
{
    STORE_NEEDS(_i, LAPSE_CAN_CANCEL);
    rig r = fresh(_i, NULL);
    for (int i = 0; i < ALIKE; i++)
        put(r.s, "q", alike[i], LAPSE_SECONDS(1 + i));
    for (int i = 0; i < ALIKE; i++) {
        EXPECT_ERROR(lapse_put(r.s, &(lapse_spec){.id = alike[i]}), LAPSE_EEXISTS, "");
        lapse_info info = look(r.s, alike[i]);
        ck_assert_str_eq(info.id, alike[i]);
        ck_assert_uint_eq(info.id_len, strlen(alike[i]));
        ck_assert_int_ge(info.remaining, LAPSE_SECONDS(1 + i));
        lapse_info_free(&info);
    }
    for (int i = 0; i < ALIKE; i += 2)
        ck_assert_int_eq(lapse_cancel(r.s, alike[i], LAPSE_ANY), LAPSE_FATE_CANCELLED);
    for (int i = 0; i < ALIKE; i++)
        ck_assert_int_eq(state_of(r.s, alike[i]), i % 2 ? LAPSE_STATE_PENDING : 0);
    advance(&r, LAPSE_SECONDS(1 + ALIKE));
    for (int i = 1; i < ALIKE; i += 2)
        finish_one(r.s, "q", alike[i]);
    expect_nothing(r.s, NULL);
    rig_close(&r);
}
END_TEST

/* Random bytes of every length, in both directions. */
START_TEST(any_bytes_are_an_id)
{
    rig r = fresh(_i, NULL);
    rng luck = rng_open("any_bytes_are_an_id");
    char id[LAPSE_ID_MAX + 1];
    for (int length = 1; length <= LAPSE_ID_MAX; length += 1 + length / 8) {
        for (int i = 0; i < length; i++)
            id[i] = (char)rng_range(&luck, 1, 255);
        id[length] = '\0';
        put(r.s, id, id, 0); /* Names of queues are bytes too. */
        advance(&r, LAPSE_MS(1));
        const lapse_order *order = poll_one(r.s, id, id);
        ck_assert_str_eq(order->queue, id);
        ck_assert_uint_eq(order->id_len, (size_t)length);
        settle(r.s, order->fence, LAPSE_DONE);
    }
    rig_close(&r);
}
END_TEST

/* -- What: payloads ------------------------------------------------------------------------ */

static void fill(char *bytes, size_t length, uint64_t seed)
{
    rng luck = {seed};
    for (size_t i = 0; i < length; i++)
        bytes[i] = i < 512 ? (char)(i * 131) : (char)rng_next(&luck);
}

static void look_at_payload(lapse *s, const char *kept, size_t length)
{
    lapse_info info = look(s, "o");
    ck_assert_uint_eq(info.payload_len, length);
    ck_assert(length == 0 || memcmp(info.payload, kept, length) == 0);
    ck_assert(length > 0 || info.payload == NULL);
    lapse_info_free(&info);
}

START_TEST(p52_payloads_come_back_bit_for_bit)
{
    const size_t lengths[] = {0, 1, 2, 255, 256, 4000, 4096, 65536, 1000003, LAPSE_PAYLOAD_MAX};
    rig r = fresh(_i, NULL);
    char *given = malloc(LAPSE_PAYLOAD_MAX + 1), *kept = malloc(LAPSE_PAYLOAD_MAX + 1);
    ck_assert(given != NULL && kept != NULL);
    for (int i = 0; i < 10; i++) {
        lapse_spec spec = {.id = "o", .queue = "q", .payload = given, .payload_len = lengths[i]};
        fill(given, lengths[i], (uint64_t)i);
        memcpy(kept, given, lengths[i]);
        ck_assert_msg(lapse_put(r.s, &spec) > 0, "%s", lapse_error_detail());
        memset(given, 'x', lengths[i]); /* It was copied. */
        if (lapse_abilities(r.s) & LAPSE_CAN_LIST)
            look_at_payload(r.s, kept, lengths[i]);
        advance(&r, LAPSE_MS(1));
        const lapse_order *order = poll_one(r.s, "q", "o");
        ck_assert_uint_eq(order->payload_len, lengths[i]);
        ck_assert(lengths[i] == 0 || memcmp(order->payload, kept, lengths[i]) == 0);
        ck_assert(lengths[i] > 0 || order->payload == NULL);
        settle(r.s, order->fence, LAPSE_DONE);
    }
    lapse_spec spec = {.id = "o", .payload = given, .payload_len = LAPSE_PAYLOAD_MAX + 1};
    EXPECT_ERROR(lapse_put(r.s, &spec), LAPSE_EINVAL, "16777217");
    spec.payload = NULL;
    spec.payload_len = 3;
    ck_assert_int_lt(lapse_put(r.s, &spec), 0);
    ck_assert_uint_eq(pending_in(r.s), 0);
    free(given);
    free(kept);
    rig_close(&r);
}
END_TEST

START_TEST(what_is_given_is_copied)
{
    rig r = fresh(_i, NULL);
    char id[] = "order", queue[] = "queue", payload[] = "payload";
    lapse_spec spec = {.id = id, .queue = queue, .payload = payload, .payload_len = 7};
    ck_assert_int_gt(lapse_put(r.s, &spec), 0);
    memset(id, 'x', 5);
    memset(queue, 'x', 5);
    memset(payload, 'x', 7);
    advance(&r, LAPSE_MS(1));
    const lapse_order *order = poll_one(r.s, "queue", "order");
    ck_assert_str_eq(order->queue, "queue");
    ck_assert_mem_eq(order->payload, "payload", 7);
    settle(r.s, order->fence, LAPSE_DONE);
    rig_close(&r);
}
END_TEST

/* -- The same id again ------------------------------------------------------------------------ */

START_TEST(generations_grow)
{
    STORE_NEEDS(_i, LAPSE_CAN_CANCEL);
    rig r = fresh(_i, NULL);
    int64_t last = 0;
    char id[16];
    for (int i = 0; i < 50; i++) {
        snprintf(id, sizeof id, "%d", i % 7);
        int64_t next = put(r.s, "q", id, LAPSE_SECONDS(1));
        ck_assert_int_gt(next, last);
        last = next;
        if (i % 7 == 6)
            for (int j = 0; j < 7; j++) {
                snprintf(id, sizeof id, "%d", j);
                ck_assert_int_eq(lapse_cancel(r.s, id, LAPSE_ANY), LAPSE_FATE_CANCELLED);
            }
    }
    rig_close(&r);
}
END_TEST

static int64_t put_payload(rig *r, const char *payload, lapse_ns delay, unsigned flags)
{
    return lapse_put(r->s, &(lapse_spec){.id = "o",
                                         .queue = "q",
                                         .delay = delay,
                                         .payload = payload,
                                         .payload_len = strlen(payload),
                                         .flags = flags});
}

START_TEST(p53_refused_while_pending)
{
    STORE_NEEDS(_i, LAPSE_CAN_CANCEL);
    rig r = fresh(_i, NULL);
    int64_t first = put_payload(&r, "first", LAPSE_SECONDS(5), 0);
    EXPECT_ERROR(put_payload(&r, "second", LAPSE_SECONDS(1), 0), LAPSE_EEXISTS, "\"o\"");
    ck_assert_uint_eq(stats_of(r.s).refused, 1);
    advance(&r, LAPSE_SECONDS(2));
    expect_nothing(r.s, "q"); /* The old time holds, */
    advance(&r, LAPSE_SECONDS(3));
    const lapse_order *order = poll_one(r.s, "q", "o");
    ck_assert_int_eq(order->generation, first);
    ck_assert_mem_eq(order->payload, "first", 5); /* and all the rest. */
    settle(r.s, order->fence, LAPSE_DONE);
    expect_books(r.s);
    rig_close(&r);
}
END_TEST

START_TEST(p53_replaced_while_pending)
{
    STORE_NEEDS(_i, LAPSE_CAN_CANCEL);
    rig r = fresh(_i, NULL);
    int64_t first = put_payload(&r, "first", LAPSE_SECONDS(1), LAPSE_REPLACE);
    int64_t second = put_payload(&r, "second", LAPSE_SECONDS(5), LAPSE_REPLACE);
    ck_assert_int_gt(second, first);
    ck_assert_int_eq(lapse_cancel(r.s, "o", first), LAPSE_FATE_UNKNOWN);
    ck_assert_int_eq(lapse_reschedule(r.s, "o", first, 0), LAPSE_FATE_UNKNOWN);
    advance(&r, LAPSE_SECONDS(4));
    expect_nothing(r.s, "q");
    advance(&r, LAPSE_SECONDS(1));
    const lapse_order *order = poll_one(r.s, "q", "o");
    ck_assert_int_eq(order->generation, second);
    ck_assert_mem_eq(order->payload, "second", 6);
    settle(r.s, order->fence, LAPSE_DONE);
    expect_nothing(r.s, "q");
    ck_assert_uint_eq(stats_of(r.s).replaced, 1);
    expect_books(r.s);
    rig_close(&r);
}
END_TEST

/* Due and waiting for somebody to claim it: it gives way all the same. */
START_TEST(p53_replaced_when_due)
{
    STORE_NEEDS(_i, LAPSE_CAN_CANCEL);
    rig r = fresh(_i, NULL);
    ck_assert_int_gt(put_payload(&r, "first", 0, 0), 0);
    put(r.s, "q", "other", 0);
    advance(&r, LAPSE_SECONDS(1));
    EXPECT_ERROR(put_payload(&r, "second", 0, 0), LAPSE_EEXISTS, "");
    ck_assert_int_gt(put_payload(&r, "second", LAPSE_SECONDS(1), LAPSE_REPLACE), 0);
    finish_one(r.s, "q", "other");
    expect_nothing(r.s, "q");
    advance(&r, LAPSE_SECONDS(1));
    const lapse_order *order = poll_one(r.s, "q", "o");
    ck_assert_mem_eq(order->payload, "second", 6);
    settle(r.s, order->fence, LAPSE_DONE);
    expect_books(r.s);
    rig_close(&r);
}
END_TEST

/* While it runs the id starts a new generation, and what runs is not repeated. */
START_TEST(p53_the_next_generation_while_running)
{
    STORE_NEEDS(_i, LAPSE_CAN_CANCEL);
    const lapse_verdict verdicts[] = {LAPSE_DONE, LAPSE_RETRY, LAPSE_REJECT, LAPSE_FAIL,
                                      LAPSE_GIVE_BACK};
    for (int v = 0; v < 5; v++) {
        rig r = fresh(_i, NULL);
        int64_t first = put_payload(&r, "first", 0, 0);
        advance(&r, LAPSE_MS(1));
        const lapse_order *order = poll_one(r.s, "q", "o");
        int64_t second = put_payload(&r, "second", LAPSE_SECONDS(1), 0);
        ck_assert_msg(second > first, "%s", lapse_error_detail());
        ck_assert(!lapse_holds(r.s, order->fence));
        ck_assert_mem_eq(order->payload, "first", 5); /* Its holder still reads it. */
        ck_assert_int_eq(lapse_cancel(r.s, "o", first), LAPSE_FATE_UNKNOWN);
        ck_assert_int_eq(lapse_settle(r.s, order->fence, verdicts[v], 0, NULL), LAPSE_ESTALE);
        expect_nothing(r.s, "q");
        lapse_info info = look(r.s, "o");
        ck_assert_int_eq(info.state, LAPSE_STATE_PENDING);
        ck_assert_int_eq(info.generation, second);
        ck_assert_int_eq(info.attempt, 0);
        lapse_info_free(&info);
        advance(&r, LAPSE_SECONDS(1));
        order = poll_one(r.s, "q", "o");
        ck_assert_int_eq(order->generation, second);
        ck_assert_int_eq(order->attempt, 1);
        settle(r.s, order->fence, LAPSE_DONE);
        advance(&r, LAPSE_HOURS(2));
        expect_nothing(r.s, "q");
        ck_assert_uint_eq(stats_of(r.s).dead, 0);
        expect_books(r.s);
        rig_close(&r);
    }
}
END_TEST

START_TEST(p53_an_id_that_ended_is_free)
{
    STORE_NEEDS(_i, LAPSE_CAN_CANCEL);
    lapse_options options = {.keep = LAPSE_HOURS(1)};
    rig r = fresh(_i, &options);
    put(r.s, "q", "o", 0);
    advance(&r, LAPSE_MS(1));
    finish_one(r.s, "q", "o");
    put(r.s, "q", "o", 0);
    ck_assert_int_eq(lapse_cancel(r.s, "o", LAPSE_ANY), LAPSE_FATE_CANCELLED);
    put(r.s, "q", "o", 0);
    advance(&r, LAPSE_MS(1));
    settle(r.s, poll_one(r.s, "q", "o")->fence, LAPSE_REJECT);
    expect_state(r.s, "o", LAPSE_STATE_DEAD);
    put(r.s, "q", "o", 0);
    expect_state(r.s, "o", LAPSE_STATE_PENDING);
    advance(&r, LAPSE_MS(1));
    finish_one(r.s, "q", "o");
    ck_assert_uint_eq(stats_of(r.s).dead, 1);
    expect_books(r.s);
    rig_close(&r);
}
END_TEST

/* -- Many at once ------------------------------------------------------------------------------- */

START_TEST(p56_one_bad_order_holds_back_no_other)
{
    STORE_NEEDS(_i, LAPSE_CAN_CANCEL);
    enum { COUNT = 100 };
    rig r = fresh(_i, NULL);
    static char ids[COUNT][300];
    static lapse_spec specs[COUNT];
    static int64_t results[COUNT];
    put(r.s, "q", "id 50", LAPSE_HOURS(1));
    for (int i = 0; i < COUNT; i++) {
        snprintf(ids[i], sizeof ids[i], "id %d", i);
        specs[i] = (lapse_spec){.id = ids[i], .queue = "q", .delay = LAPSE_MS(10)};
    }
    memset(ids[37], 'x', 299); /* Too long. */
    specs[60].delay = LAPSE_DELAY_MAX + 1;
    specs[70].id = "id 69"; /* Twice in one call. */
    specs[80].id = NULL;
    ck_assert_int_eq(lapse_schedule_many(r.s, specs, COUNT, results), COUNT - 5);
    for (int i = 0; i < COUNT; i++)
        switch (i) {
        case 37:
        case 80:
            ck_assert_int_eq(results[i], LAPSE_EID);
            break;
        case 50:
            ck_assert_int_eq(results[i], LAPSE_EEXISTS);
            break;
        case 60:
            ck_assert_int_eq(results[i], LAPSE_ERANGE);
            break;
        case 70:
            ck_assert_int_eq(results[i], LAPSE_EEXISTS);
            break;
        default:
            ck_assert_int_gt(results[i], 0);
            break;
        }
    ck_assert_uint_eq(pending_in(r.s), COUNT - 4);
    ck_assert_int_eq(lapse_schedule_many(r.s, specs, COUNT, results), 0); /* No duplicates. */
    ck_assert_uint_eq(pending_in(r.s), COUNT - 4);
    ck_assert_int_eq(lapse_schedule_many(r.s, specs, 0, results), 0);
    ck_assert_int_eq(lapse_schedule_many(r.s, NULL, 1, results), LAPSE_EINVAL);
    advance(&r, LAPSE_MS(10));
    for (int i = 0; i < COUNT; i++)
        if (i != 37 && i != 50 && i != 60 && i != 70 && i != 80)
            finish_one(r.s, "q", ids[i]); /* In the order in which they were given. */
    expect_nothing(r.s, "q");
    expect_books(r.s);
    rig_close(&r);
}
END_TEST

START_TEST(many_thousands_at_once)
{
    int count = store_most(_i, tier(3000, 6000, 300000));
    rig r = fresh(_i, NULL);
    char(*ids)[16] = calloc((size_t)count, sizeof *ids);
    lapse_spec *specs = calloc((size_t)count, sizeof *specs);
    int64_t *results = calloc((size_t)count, sizeof *results);
    ck_assert(ids != NULL && specs != NULL && results != NULL);
    for (int i = 0; i < count; i++) {
        snprintf(ids[i], sizeof ids[i], "%d", i);
        specs[i] = (lapse_spec){.id = ids[i], .queue = "q", .delay = LAPSE_MS(count - i)};
    }
    ck_assert_int_eq(lapse_schedule_many(r.s, specs, (size_t)count, results), count);
    for (int i = 1; i < count; i++)
        ck_assert_int_gt(results[i], results[i - 1]);
    player p;
    player_open(&p, r.s, NULL);
    handle(r.s, "q", &p, NULL);
    advance(&r, LAPSE_MS(count));
    ck_assert_uint_eq(tape_count(&p.ran), (size_t)count);
    for (int i = 0; i < count; i++)
        ck_assert_str_eq(p.ran.entries[i].id, ids[count - 1 - i]);
    expect_books(r.s);
    player_close(&p);
    rig_close(&r);
    free(ids);
    free(specs);
    free(results);
}
END_TEST

/* -- Queues, callbacks, closed ------------------------------------------------------------------- */

START_TEST(queues_are_apart)
{
    rig r = fresh(_i, NULL);
    put(r.s, NULL, "in none", 0);
    put(r.s, "", "in none too", LAPSE_MS(1));
    put(r.s, "a", "in a", LAPSE_MS(2));
    put(r.s, "A", "in A", LAPSE_MS(3));
    put(r.s, "a ", "in a and a space", LAPSE_MS(4));
    if (lapse_abilities(r.s) & LAPSE_CAN_CANCEL)
        EXPECT_ERROR(lapse_put(r.s, &(lapse_spec){.id = "in a", .queue = "b"}), LAPSE_EEXISTS, "");
    char name[LAPSE_ID_MAX + 2];
    memset(name, 'q', sizeof name - 1);
    name[LAPSE_ID_MAX + 1] = '\0';
    EXPECT_ERROR(lapse_put(r.s, &(lapse_spec){.id = "x", .queue = name}), LAPSE_EINVAL, "queue");
    name[LAPSE_ID_MAX] = '\0';
    put(r.s, name, "in the longest", LAPSE_MS(5));
    advance(&r, LAPSE_MS(10));
    expect_nothing(r.s, "b");
    finish_one(r.s, "A", "in A");
    finish_one(r.s, "a ", "in a and a space");
    finish_one(r.s, name, "in the longest");
    finish_one(r.s, "", "in none");
    finish_one(r.s, NULL, "in none too");
    finish_one(r.s, NULL, "in a");
    expect_nothing(r.s, NULL);
    ck_assert_uint_eq(queue_stats(r.s, "a").done, 1);
    lapse_queue_stats q;
    ck_assert_int_eq(lapse_queue_statistics(r.s, "never", &q), LAPSE_EUNKNOWN);
    expect_books(r.s);
    rig_close(&r);
}
END_TEST

/* A store whose orders outlive the process cannot keep a function, and says what to do. */
START_TEST(an_orders_own_callback)
{
    rig r = fresh(_i, NULL);
    atomic_int runs = 0;
    int64_t plain = lapse_schedule(r.s, "plain", 0, count_run, &runs);
    if (lapse_abilities(r.s) & LAPSE_CAN_CALLBACK) {
        ck_assert_int_gt(plain, 0);
        advance(&r, LAPSE_MS(1));
        ck_assert_int_eq(atomic_load(&runs), 1);
    } else {
        lapse_spec spec = {.id = "full", .queue = "q", .fn = count_run, .arg = &runs};
        ck_assert_int_eq(plain, LAPSE_EUNSUPPORTED);
        EXPECT_ERROR(lapse_put(r.s, &spec), LAPSE_EUNSUPPORTED, "handle");
        EXPECT_ERROR(lapse_schedule_at(r.s, "at", 1, count_run, &runs), LAPSE_EUNSUPPORTED, "");
        ck_assert_uint_eq(pending_in(r.s), 0);
        advance(&r, LAPSE_HOURS(1));
        ck_assert_int_eq(atomic_load(&runs), 0);
    }
    EXPECT_ERROR(lapse_schedule(r.s, "none", 0, NULL, NULL), LAPSE_EINVAL, "");
    rig_close(&r);
}
END_TEST

START_TEST(a_stopped_scheduler_takes_none)
{
    rig r = fresh(_i, NULL);
    put(r.s, "q", "before", LAPSE_SECONDS(1));
    ck_assert_int_eq(lapse_stop(r.s), 0);
    int64_t result;
    lapse_spec spec = {.id = "after"};
    EXPECT_ERROR(lapse_put(r.s, &spec), LAPSE_ECLOSED, "");
    ck_assert_int_le(lapse_schedule_many(r.s, &spec, 1, &result), 0);
    EXPECT_ERROR(lapse_reschedule(r.s, "before", LAPSE_ANY, 0), LAPSE_ECLOSED, "");
    if (lapse_abilities(r.s) & LAPSE_CAN_CANCEL)
        ck_assert_int_eq(lapse_cancel(r.s, "before", LAPSE_ANY), LAPSE_FATE_CANCELLED);
    expect_state(r.s, "after", 0);
    rig_close(&r);
}
END_TEST

static void fill_suite(Suite *suite)
{
    TCase *group = add_group(suite, "times");
    ADD_FOR_STORES(group, nothing_is_early);
    ADD_FOR_STORES(group, p09_a_century_is_a_century);
    ADD_FOR_STORES(group, p10_a_refused_time_changes_nothing);
    ADD_FOR_STORES(group, p11_a_negative_delay_is_zero);
    ADD_FOR_STORES(group, instants_are_utc);
    ADD_FOR_STORES(group, in_order);
    group = add_group(suite, "ids and payloads");
    ADD_FOR_STORES(group, p52_ids_have_edges);
    ADD_FOR_STORES(group, p54_ids_are_bytes);
    ADD_FOR_STORES(group, any_bytes_are_an_id);
    ADD_FOR_STORES(group, p52_payloads_come_back_bit_for_bit);
    ADD_FOR_STORES(group, what_is_given_is_copied);
    group = add_group(suite, "the same id");
    ADD_FOR_STORES(group, generations_grow);
    ADD_FOR_STORES(group, p53_refused_while_pending);
    ADD_FOR_STORES(group, p53_replaced_while_pending);
    ADD_FOR_STORES(group, p53_replaced_when_due);
    ADD_FOR_STORES(group, p53_the_next_generation_while_running);
    ADD_FOR_STORES(group, p53_an_id_that_ended_is_free);
    group = add_group(suite, "many");
    ADD_FOR_STORES(group, p56_one_bad_order_holds_back_no_other);
    ADD_FOR_STORES(group, many_thousands_at_once);
    group = add_group(suite, "queues and callbacks");
    ADD_FOR_STORES(group, queues_are_apart);
    ADD_FOR_STORES(group, an_orders_own_callback);
    ADD_FOR_STORES(group, a_stopped_scheduler_takes_none);
}

int main(void)
{
    return stores_main("schedule", fill_suite);
}
