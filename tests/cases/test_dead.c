/* test_dead.c - dead letters: why, and what is kept of them.
 *
 * An order that cannot be delivered stays to be looked at, with its reason and last error,
 * until it is scheduled again, purged, or dropped for newer ones. */
/* tiers: quick full soak */
/* valgrind */
#include "letters.h"

#include <stdlib.h>

/* -- Reasons ----------------------------------------------------------------------------- */

START_TEST(five_reasons)
{
    static const char lost[] = "the lease ended before it was settled";
    static letters told, listed;
    player p;
    told.count = listed.count = 0;
    lapse_options options = options_of_five(&told);
    rig r = rig_manual(_i, START, &options);
    kill_five(&r, &p);
    expect_five(&told, lost); /* As it happened, */
    for (int i = 0; i < 5; i++)
        ck_assert_str_eq(told.list[i].id, five[i].id);
    ck_assert_int_eq(lapse_each(r.s, LAPSE_STATE_DEAD, note_letter, &listed), 5);
    expect_five(&listed, lost); /* and as it is kept. */
    expect_five_counted(&r);
    player_close(&p);
    rig_close(&r);
}
END_TEST

START_TEST(a_dead_letter_tells_its_times)
{
    rig r = rig_manual(_i, START, NULL);
    player p;
    player_open(&p, r.s, always_fail);
    handle(r.s, "q", &p, &(lapse_policy){.attempts = 2, .jitter_percent = -1});
    lapse_ns utc = INT64_C(1767225600000000000); /* 2026-01-01, where the clock starts. */
    int64_t generation = put(r.s, "q", "o", LAPSE_SECONDS(10));
    advance(&r, LAPSE_SECONDS(10));
    advance(&r, LAPSE_SECONDS(3));
    letter dead = only_letter(r.s);
    ck_assert_int_eq(dead.due, utc + LAPSE_SECONDS(11)); /* The last attempt's. */
    ck_assert_int_eq(dead.ended, utc + LAPSE_SECONDS(13));
    ck_assert_int_eq(dead.generation, generation);
    lapse_info info;
    ck_assert_int_eq(lapse_get(r.s, "o", &info), 0);
    ck_assert_int_eq(info.remaining, 0);
    ck_assert_int_eq(info.reason, LAPSE_REASON_FAILED);
    ck_assert_int_eq(info.generation, generation);
    lapse_info_free(&info);
    ck_assert_int_eq(lapse_cancel(r.s, "o", LAPSE_ANY), LAPSE_FATE_UNKNOWN);
    ck_assert_int_eq(lapse_reschedule(r.s, "o", LAPSE_ANY, 0), LAPSE_FATE_UNKNOWN);
    player_close(&p);
    rig_close(&r);
}
END_TEST

/* -- What they say -------------------------------------------------------------------------- */

START_TEST(errors_are_escaped)
{
    rig r = rig_manual(_i, START, NULL);
    player p;
    player_open(&p, r.s, say_last_words);
    handle(r.s, "q", &p, NULL);
    expect_kept(&r, "", "");
    expect_kept(&r, "caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80",
                "caf\xc3\xa9 \xe2\x82\xac "
                "\xf0\x9f\x98\x80");
    expect_kept(&r, "a\nb\tc\x1b[31m\x7f", "a\\x0ab\\x09c\\x1b[31m\\x7f");
    expect_kept(&r, "\xff\xfe", "\\xff\\xfe");
    expect_kept(&r, "half \xc3", "half \\xc3");
    expect_kept(&r, "overlong \xc0\xaf", "overlong \\xc0\\xaf");
    expect_kept(&r, "surrogate \xed\xa0\x80", "surrogate \\xed\\xa0\\x80");
    expect_kept(&r, "' OR 1=1; -- \"quoted\" %s %n", "' OR 1=1; -- \"quoted\" %s %n");
    player_close(&p);
    rig_close(&r);
}
END_TEST

START_TEST(errors_are_clipped)
{
    rig r = rig_manual(_i, START, NULL);
    player p;
    player_open(&p, r.s, say_last_words);
    handle(r.s, "q", &p, NULL);
    char words[4000], kept[1001];
    memset(words, 'x', sizeof words);
    memset(kept, 'x', sizeof kept);
    words[3999] = kept[1000] = '\0';
    expect_kept(&r, words, kept);
    words[1000] = '\0';
    expect_kept(&r, words, kept);
    words[1000] = 'x';
    memcpy(words + 999, "\xc3\xa9", 2); /* Not cut in the middle of a character, */
    kept[999] = '\0';
    expect_kept(&r, words, kept);
    memcpy(words + 998, "\x01zz", 3); /* nor of an escape. */
    kept[998] = '\0';
    expect_kept(&r, words, kept);
    rng luck = rng_open("errors_are_clipped");
    for (long i = 0; i < tier(300, 10000, 1000000); i++) {
        int64_t length = rng_range(&luck, 0, 1400), low = rng_range(&luck, 1, 255);
        for (int64_t at = 0; at < length; at++)
            words[at] = (char)rng_range(&luck, low, 255);
        words[length] = '\0';
        expect_kept(&r, words, NULL);
    }
    player_close(&p);
    rig_close(&r);
}
END_TEST

static lapse_verdict say_nothing(const lapse_order *order)
{
    return order->attempt < 2 ? lapse_fail(order, "an earlier one") : LAPSE_REJECT;
}

/* The last error is that of the last attempt, also when that gave none. */
START_TEST(silence_is_no_error)
{
    rig r = rig_manual(_i, START, NULL);
    player p;
    player_open(&p, r.s, say_nothing);
    handle(r.s, "q", &p, &(lapse_policy){.jitter_percent = -1});
    put(r.s, "q", "o", 0);
    advance(&r, LAPSE_MS(1));
    advance(&r, LAPSE_SECONDS(2));
    lapse_info info;
    ck_assert_int_eq(lapse_get(r.s, "o", &info), 0);
    ck_assert_int_eq(info.state, LAPSE_STATE_DEAD);
    ck_assert_ptr_null(info.error);
    lapse_info_free(&info);
    player_close(&p);
    rig_close(&r);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("dead letters");
    TCase *group = add_group(suite, "reasons");
    ADD_FOR_ENGINES(group, five_reasons);
    ADD_FOR_ENGINES(group, a_dead_letter_tells_its_times);
    ADD_FOR_ENGINES(group, errors_are_escaped);
    ADD_FOR_ENGINES(group, errors_are_clipped);
    ADD_FOR_ENGINES(group, silence_is_no_error);
    return run_suite(suite);
}
