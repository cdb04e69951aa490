/* test_ids.c - ids and payloads are bytes: P-52 to P-55.
 *
 * Compared byte for byte, never cut, never normalised, never turned into numbers. */
/* tiers: quick */
/* valgrind */
#include "../support/support.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define COUNT_OF(array) (sizeof(array) / sizeof *(array))

/* -- P-52 -------------------------------------------------------------------------- */

START_TEST(p52_an_embedded_nul_is_refused)
{
    rig r = rig_manual(_i, START, NULL);
    const char *ids[] = {"a\0b", "a\0c", "\0ab", "ab\0"};
    for (size_t i = 0; i < COUNT_OF(ids); i++) {
        lapse_spec spec = {.id = ids[i], .id_len = 3, .fn = never};
        ck_assert_int_eq(lapse_put(r.s, &spec), LAPSE_EID);
        ck_assert_int_eq(lapse_check_id(ids[i], 3), LAPSE_EID);
        ck_assert_int_gt((int)strlen(lapse_error_detail()), 0);
    }
    ck_assert_uint_eq(pending_in(r.s), 0);
    ck_assert_int_eq(lapse_cancel(r.s, "a", LAPSE_ANY), LAPSE_FATE_UNKNOWN);
    rig_close(&r);
}
END_TEST

START_TEST(p52_lengths_have_an_edge)
{
    rig r = rig_manual(_i, START, NULL);
    tape ran;
    tape_open(&ran, r.s);
    char id[LAPSE_ID_MAX + 2];
    memset(id, 'x', sizeof id);
    for (size_t len = 1; len <= LAPSE_ID_MAX; len++) {
        lapse_spec spec = {.id = id, .id_len = len, .fn = tape_note, .arg = &ran};
        ck_assert_int_eq(lapse_check_id(id, len), 0);
        ck_assert_int_gt(lapse_put(r.s, &spec), 0);
    }
    lapse_spec too_long = {.id = id, .id_len = LAPSE_ID_MAX + 1, .fn = never};
    ck_assert_int_eq(lapse_put(r.s, &too_long), LAPSE_EID);
    id[LAPSE_ID_MAX + 1] = '\0';
    ck_assert_int_eq(lapse_schedule(r.s, id, 0, never, NULL), LAPSE_EID);
    ck_assert_int_eq(lapse_schedule(r.s, "", 0, never, NULL), LAPSE_EID);
    ck_assert_int_eq(lapse_schedule(r.s, NULL, 0, never, NULL), LAPSE_EID);
    ck_assert_int_eq(lapse_check_id("", 0), LAPSE_EID);
    ck_assert_int_eq(lapse_check_id(NULL, 3), LAPSE_EID);
    advance(&r, r.tick);
    ck_assert_uint_eq(tape_count(&ran), LAPSE_ID_MAX);
    for (size_t i = 0; i < LAPSE_ID_MAX; i++)
        ck_assert_uint_eq(strlen(ran.entries[i].id), i + 1);
    tape_close(&ran);
    rig_close(&r);
}
END_TEST

struct bytes {
    const void *payload;
    size_t len;
    int runs;
};

static lapse_verdict compare_payload(const lapse_order *order, void *arg)
{
    struct bytes *b = arg;
    b->runs++;
    if (order->payload_len != b->len || (order->payload == NULL) != (b->len == 0) ||
        (b->len > 0 && memcmp(order->payload, b->payload, b->len) != 0))
        complain("%s: the payload changed", order->id);
    return LAPSE_DONE;
}

START_TEST(p52_payloads_come_back_bit_for_bit)
{
    static unsigned char all[4096];
    for (size_t i = 0; i < sizeof all; i++)
        all[i] = (unsigned char)(i * 7);
    struct bytes cases[] = {
        {"\0\x80\xff\0", 4, 0}, {"", 0, 0}, {"\0", 1, 0}, {all, sizeof all, 0}, {all, 1, 0},
    };
    rig r = rig_manual(_i, START, NULL);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        char id[16];
        snprintf(id, sizeof id, "p%zu", i);
        lapse_spec spec = {.id = id,
                           .payload = cases[i].payload,
                           .payload_len = cases[i].len,
                           .delay = LAPSE_MS(5),
                           .fn = compare_payload,
                           .arg = &cases[i]};
        ck_assert_int_gt(lapse_put(r.s, &spec), 0);
        lapse_info info;
        ck_assert_int_eq(lapse_get(r.s, id, &info), 0);
        ck_assert_uint_eq(info.payload_len, cases[i].len);
        if (cases[i].len > 0)
            ck_assert_mem_eq(info.payload, cases[i].payload, cases[i].len);
        lapse_info_free(&info);
    }
    advance(&r, LAPSE_MS(6));
    for (size_t i = 0; i < COUNT_OF(cases); i++)
        ck_assert_int_eq(cases[i].runs, 1);
    rig_close(&r);
}
END_TEST

/* Copied in: what the caller does with its memory afterwards does not matter. */
START_TEST(p52_everything_given_is_copied)
{
    rig r = rig_manual(_i, START, NULL);
    char id[] = "OID00000010", queue[] = "close", payload[] = "abc";
    lapse_spec spec = {.id = id, .queue = queue, .payload = payload, .payload_len = 3};
    ck_assert_int_gt(lapse_put(r.s, &spec), 0);
    memset(id, 'z', sizeof id - 1);
    memset(queue, 'z', sizeof queue - 1);
    memset(payload, 'z', sizeof payload - 1);
    advance(&r, r.tick);
    const lapse_order *order;
    ck_assert_int_eq(lapse_poll(r.s, "close", &order), 1);
    ck_assert_str_eq(order->id, "OID00000010");
    ck_assert_uint_eq(order->id_len, 11);
    ck_assert_str_eq(order->queue, "close");
    ck_assert_mem_eq(order->payload, "abc", 3);
    ck_assert_int_eq(lapse_settle(r.s, order->fence, LAPSE_DONE, 0, NULL), 0);
    rig_close(&r);
}
END_TEST

START_TEST(p52_payloads_have_a_limit)
{
    rig r = rig_manual(_i, START, NULL);
    lapse_spec spec = {.id = "o", .payload = "x", .payload_len = LAPSE_PAYLOAD_MAX + 1};
    ck_assert_int_eq(lapse_put(r.s, &spec), LAPSE_EINVAL);
    spec.payload = NULL;
    spec.payload_len = 3;
    ck_assert_int_eq(lapse_put(r.s, &spec), LAPSE_EINVAL);
    ck_assert_uint_eq(pending_in(r.s), 0);
    rig_close(&r);
}
END_TEST

/* -- P-53 -------------------------------------------------------------------------- */

enum before { ABSENT, PENDING, DUE, RUNNING, DONE, FAILED, REJECTED, CANCELLED, BEFORES };

static lapse_verdict always_fail(const lapse_order *order, void *arg)
{
    (void)arg;
    return lapse_fail(order, "broken");
}

/* Take "X", which is due, and end it unless it is to stay running; its fence then. */
static int64_t take_into(rig *r, enum before state)
{
    const lapse_order *order;
    ck_assert_int_eq(lapse_poll(r->s, NULL, &order), 1);
    int64_t fence = order->fence;
    if (state == RUNNING)
        return fence;
    lapse_verdict verdict = state == REJECTED ? LAPSE_REJECT : LAPSE_DONE;
    ck_assert_int_eq(lapse_settle(r->s, fence, verdict, 0, "why"), 0);
    return 0;
}

/* Bring "X" into a state; the fence of the one that runs, else 0. */
static int64_t bring_into(rig *r, enum before state)
{
    lapse_spec spec = {.id = "X", .delay = state == PENDING ? LAPSE_SECONDS(60) : 0};
    spec.fn = state == FAILED ? always_fail : NULL;
    if (state == ABSENT)
        return 0;
    ck_assert_int_gt(lapse_put(r->s, &spec), 0);
    if (state == CANCELLED)
        ck_assert_int_eq(lapse_cancel(r->s, "X", LAPSE_ANY), LAPSE_FATE_CANCELLED);
    if (state == PENDING || state == CANCELLED)
        return 0;
    advance(r, r->tick);
    return state == DUE || state == FAILED ? 0 : take_into(r, state);
}

static rig same_id_rig(int engine, enum before state, lapse_ns keep, int64_t *fence)
{
    lapse_options options = {.keep = keep};
    rig r = rig_manual(engine, START, &options);
    *fence = bring_into(&r, state);
    return r;
}

/* What is expected of the new order: one due after 5 s. */
static void expect_fresh(rig *r, int64_t generation)
{
    lapse_info info;
    ck_assert_int_gt(generation, 0);
    ck_assert_int_eq(lapse_get(r->s, "X", &info), 0);
    ck_assert_int_eq(info.state, LAPSE_STATE_PENDING);
    ck_assert_int_eq(info.generation, generation);
    ck_assert_int_eq(info.attempt, 0);
    ck_assert_int_ge(info.remaining, LAPSE_SECONDS(5));
    ck_assert_int_le(info.remaining, LAPSE_SECONDS(5) + r->tick);
    lapse_info_free(&info);
}

START_TEST(p53_same_id_refused_only_while_pending)
{
    for (int state = 0; state < BEFORES; state++)
        for (lapse_ns keep = 0; keep <= LAPSE_HOURS(1); keep += LAPSE_HOURS(1)) {
            int64_t fence;
            rig r = same_id_rig(_i, (enum before)state, keep, &fence);
            int64_t result = lapse_schedule(r.s, "X", LAPSE_SECONDS(5), never, NULL);
            if (state == PENDING || state == DUE)
                ck_assert_int_eq(result, LAPSE_EEXISTS);
            else
                expect_fresh(&r, result);
            if (fence != 0)
                ck_assert_int_eq(lapse_settle(r.s, fence, LAPSE_RETRY, 0, NULL), LAPSE_ESTALE);
            ck_assert_uint_eq(pending_in(r.s), 1);
            rig_close(&r);
        }
}
END_TEST

START_TEST(p53_a_refusal_leaves_the_old_one_alone)
{
    rig r = rig_manual(_i, START, NULL);
    tape ran;
    tape_open(&ran, r.s);
    int64_t g = lapse_schedule(r.s, "X", LAPSE_SECONDS(60), tape_note, &ran);
    ck_assert_int_eq(lapse_schedule(r.s, "X", LAPSE_SECONDS(1), never, NULL), LAPSE_EEXISTS);
    expect_next_in(&r, &ran, 0, LAPSE_SECONDS(60));
    ck_assert_int_eq(ran.entries[0].generation, g);
    tape_close(&ran);
    rig_close(&r);
}
END_TEST

START_TEST(p53_replace_in_every_state)
{
    for (int state = 0; state < BEFORES; state++)
        for (lapse_ns keep = 0; keep <= LAPSE_HOURS(1); keep += LAPSE_HOURS(1)) {
            int64_t fence;
            rig r = same_id_rig(_i, (enum before)state, keep, &fence);
            lapse_spec spec = {
                .id = "X", .delay = LAPSE_SECONDS(5), .fn = never, .flags = LAPSE_REPLACE};
            expect_fresh(&r, lapse_put(r.s, &spec));
            if (fence != 0)
                ck_assert_int_eq(lapse_settle(r.s, fence, LAPSE_DONE, 0, NULL), LAPSE_ESTALE);
            ck_assert_uint_eq(pending_in(r.s), 1);
            ck_assert_uint_eq(stats_of(r.s).replaced, state == PENDING || state == DUE);
            rig_close(&r);
        }
}
END_TEST

START_TEST(p53_replaced_callback_never_runs)
{
    rig r = rig_manual(_i, START, NULL);
    tape ran;
    tape_open(&ran, r.s);
    int64_t old = lapse_schedule(r.s, "X", LAPSE_SECONDS(1), never, NULL);
    lapse_spec spec = {
        .id = "X", .delay = LAPSE_SECONDS(2), .fn = tape_note, .arg = &ran, .flags = LAPSE_REPLACE};
    int64_t new = lapse_put(r.s, &spec);
    ck_assert_int_gt(new, old);
    ck_assert_int_eq(lapse_cancel(r.s, "X", old), LAPSE_FATE_UNKNOWN);
    ck_assert_int_eq(lapse_reschedule(r.s, "X", old, 0), LAPSE_FATE_UNKNOWN);
    expect_next_in(&r, &ran, 0, LAPSE_SECONDS(2));
    tape_close(&ran);
    rig_close(&r);
}
END_TEST

/* The next generation while the old one runs: two of one id, each with its own end. */
START_TEST(p53_the_next_generation_while_running)
{
    rig r = rig_manual(_i, START, NULL);
    lapse_spec spec = {.id = "X"};
    const lapse_order *first, *second;
    int64_t g1 = lapse_put(r.s, &spec);
    advance(&r, r.tick);
    ck_assert_int_eq(lapse_poll(r.s, NULL, &first), 1);
    int64_t g2 = lapse_put(r.s, &spec);
    ck_assert_int_gt(g2, g1);
    ck_assert_int_eq(lapse_put(r.s, &spec), LAPSE_EEXISTS);
    advance(&r, LAPSE_MS(2));
    ck_assert_int_eq(lapse_poll(r.s, NULL, &second), 1);
    ck_assert_int_eq(first->generation, g1);
    ck_assert_int_eq(second->generation, g2);
    ck_assert_int_gt(second->fence, first->fence);
    ck_assert_int_eq(second->attempt, 1);
    int64_t fence = first->fence;
    ck_assert_int_eq(lapse_settle(r.s, fence, LAPSE_RETRY, 0, NULL), LAPSE_ESTALE);
    ck_assert_int_eq(lapse_settle(r.s, fence, LAPSE_DONE, 0, NULL), LAPSE_ESTALE);
    ck_assert_int_eq(lapse_settle(r.s, second->fence, LAPSE_DONE, 0, NULL), 0);
    advance(&r, LAPSE_HOURS(2));
    ck_assert_int_eq(lapse_poll(r.s, NULL, &first), 0); /* The old one is not repeated. */
    ck_assert_uint_eq(pending_in(r.s), 0);
    rig_close(&r);
}
END_TEST

/* -- P-54 -------------------------------------------------------------------------- */

static const char *const spellings[] = {
    "caf\xc3\xa9-1",
    "cafe\xcc\x81-1", /* composed, decomposed */
    "A",
    "a",
    "x",
    "x ",
    " x",
    "x\t",
    "x\n",
    "\xe2\x84\xab",
    "\xc3\x85", /* U+212B, U+00C5 */
    "1",
    "\xef\xbc\x91",
    "01",
    "1.0",
    "+1", /* a full-width digit and numbers */
    "\x80",
    "\xff",
    "\x7f",
    "\xc3\x28", /* no UTF-8 at all */
    "/",
    "//",
    "OID1",
    "OID1/sms",
    "%00",
    "'",
    "\"",
};

START_TEST(p54_ids_are_bytes)
{
    rig r = rig_manual(_i, START, NULL);
    tape ran;
    tape_open(&ran, r.s);
    for (size_t i = 0; i < COUNT_OF(spellings); i++)
        ck_assert_int_gt(lapse_schedule(r.s, spellings[i], LAPSE_MS(50), tape_note, &ran), 0);
    ck_assert_int_eq(lapse_cancel(r.s, spellings[0], LAPSE_ANY), LAPSE_FATE_CANCELLED);
    advance(&r, LAPSE_MS(50));
    ck_assert_uint_eq(tape_count(&ran), COUNT_OF(spellings) - 1);
    for (size_t i = 1; i < COUNT_OF(spellings); i++)
        ck_assert_str_eq(ran.entries[i - 1].id, spellings[i]);
    tape_close(&ran);
    rig_close(&r);
}
END_TEST

/* -- P-55 -------------------------------------------------------------------------- */

START_TEST(p55_eighteen_digits_are_exact)
{
    rig r = rig_manual(_i, START, NULL);
    tape ran;
    tape_open(&ran, r.s);
    const int64_t number = INT64_C(130775545883395173);
    for (int64_t n = number - 20; n <= number + 20; n++) {
        char id[24];
        snprintf(id, sizeof id, "%" PRId64, n);
        ck_assert_int_gt(lapse_schedule(r.s, id, LAPSE_MS(1), tape_note, &ran), 0);
    }
    ck_assert_int_eq(lapse_cancel(r.s, "130775545883395172", LAPSE_ANY), LAPSE_FATE_CANCELLED);
    advance(&r, LAPSE_MS(1));
    ck_assert_uint_eq(tape_count(&ran), 40);
    ck_assert_uint_eq(tape_runs(&ran, "130775545883395172"), 0);
    ck_assert_uint_eq(tape_runs(&ran, "130775545883395173"), 1);
    tape_close(&ran);
    rig_close(&r);
}
END_TEST

START_TEST(p55_equal_delays_are_equal)
{
    lapse_ns a, b;
    ck_assert_int_eq(lapse_ns_from_seconds(1800.0, &a), 0);
    ck_assert_int_eq(a, LAPSE_MINUTES(30));
    ck_assert_int_eq(lapse_ns_from_seconds(1800.5, &b), 0);
    ck_assert_int_eq(b - a, LAPSE_MS(500));
    ck_assert_int_eq(lapse_ns_from_seconds(9007199254740992.0, &a), LAPSE_ERANGE);
    ck_assert_int_eq(lapse_ns_from_seconds(9007199254740993.0, &a), LAPSE_ERANGE);
}
END_TEST

/* -- One bad order in a batch ------------------------------------------------------- */

START_TEST(one_bad_order_holds_back_no_other)
{
    enum { MANY = 100 };
    rig r = rig_manual(_i, START, NULL);
    static char ids[MANY][300];
    lapse_spec specs[MANY];
    int64_t results[MANY];
    for (int i = 0; i < MANY; i++) {
        snprintf(ids[i], sizeof ids[i], "%d", i);
        specs[i] = (lapse_spec){.id = ids[i], .delay = LAPSE_MS(i)};
    }
    memset(ids[37], 'x', LAPSE_ID_MAX + 1); /* too long */
    specs[38].delay = LAPSE_DELAY_MAX + 1;
    specs[39].id = ids[36];    /* already there */
    specs[40].payload_len = 5; /* of no payload */
    ck_assert_int_eq(lapse_schedule_many(r.s, specs, MANY, results), MANY - 4);
    for (int i = 0; i < MANY; i++) {
        const int64_t bad[] = {LAPSE_EID, LAPSE_ERANGE, LAPSE_EEXISTS, LAPSE_EINVAL};
        if (i >= 37 && i <= 40)
            ck_assert_int_eq(results[i], bad[i - 37]);
        else
            ck_assert_int_gt(results[i], i == 0 || results[i - 1] < 0 ? 0 : results[i - 1]);
    }
    ck_assert_uint_eq(pending_in(r.s), MANY - 4);
    ck_assert_int_eq(lapse_schedule_many(r.s, specs, MANY, results), 0);
    ck_assert_int_eq(results[0], LAPSE_EEXISTS);
    ck_assert_int_eq(lapse_schedule_many(r.s, specs, 0, results), 0);
    /* Refused by the store: 39 in the first batch, in the second all that are valid. */
    ck_assert_uint_eq(stats_of(r.s).refused, 1 + MANY - 3);
    rig_close(&r);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("ids and payloads");
    TCase *group = add_group(suite, "P-52 to P-55");
    ADD_FOR_ENGINES(group, p52_an_embedded_nul_is_refused);
    ADD_FOR_ENGINES(group, p52_lengths_have_an_edge);
    ADD_FOR_ENGINES(group, p52_payloads_come_back_bit_for_bit);
    ADD_FOR_ENGINES(group, p52_everything_given_is_copied);
    ADD_FOR_ENGINES(group, p52_payloads_have_a_limit);
    ADD_FOR_ENGINES(group, p53_same_id_refused_only_while_pending);
    ADD_FOR_ENGINES(group, p53_a_refusal_leaves_the_old_one_alone);
    ADD_FOR_ENGINES(group, p53_replace_in_every_state);
    ADD_FOR_ENGINES(group, p53_replaced_callback_never_runs);
    ADD_FOR_ENGINES(group, p53_the_next_generation_while_running);
    ADD_FOR_ENGINES(group, p54_ids_are_bytes);
    ADD_FOR_ENGINES(group, p55_eighteen_digits_are_exact);
    tcase_add_test(group, p55_equal_delays_are_equal);
    ADD_FOR_ENGINES(group, one_bad_order_holds_back_no_other);
    return run_suite(suite);
}
