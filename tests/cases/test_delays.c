/* test_delays.c - delay values and units, P-09 to P-13.
 *
 * Every way a time can enter from C is tried: schedule, put, schedule_at, schedule_many,
 * reschedule, a retry's delay, and the conversion from seconds that both bindings use. */
/* tiers: quick full soak */
#include "../support/support.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* -- P-09 -------------------------------------------------------------------------- */

static const struct {
    const char *id;
    lapse_ns delay;
} monthly[] = {
    {"24.9 days", LAPSE_HOURS(2490) * 24 / 100},
    {"30 days", LAPSE_DAYS(30)},
    {"49.8 days", LAPSE_HOURS(4980) * 24 / 100},
    {"60 days", LAPSE_DAYS(60)},
};
enum { MONTHLY = sizeof monthly / sizeof *monthly };

static void schedule_monthly(rig *r, tape *ran)
{
    lapse_spec specs[1] = {0};
    int64_t result;
    for (int i = 0; i < MONTHLY; i++) {
        specs[0] = (lapse_spec){
            .id = monthly[i].id, .delay = monthly[i].delay, .fn = tape_note, .arg = ran};
        if (i % 3 == 0)
            result = lapse_schedule(r->s, monthly[i].id, monthly[i].delay, tape_note, ran);
        else if (i % 3 == 1)
            result = lapse_put(r->s, specs);
        else
            ck_assert_int_eq(lapse_schedule_many(r->s, specs, 1, &result), 1);
        ck_assert_int_gt(result, 0);
    }
}

static void expect_remaining(rig *r)
{
    for (int i = 0; i < MONTHLY; i++) {
        lapse_info info;
        ck_assert_int_eq(lapse_get(r->s, monthly[i].id, &info), 0);
        ck_assert_int_ge(info.remaining, monthly[i].delay);
        ck_assert_int_le(info.remaining, monthly[i].delay + r->tick);
        ck_assert_int_eq(info.state, LAPSE_STATE_PENDING);
        lapse_info_free(&info);
    }
}

START_TEST(p09_a_month_is_a_month)
{
    rig r = rig_manual(_i, START, NULL);
    tape ran;
    tape_open(&ran, r.s);
    schedule_monthly(&r, &ran);
    expect_remaining(&r);
    advance(&r, LAPSE_SECONDS(5));
    ck_assert_uint_eq(tape_count(&ran), 0);
    lapse_ns passed = LAPSE_SECONDS(5);
    for (int i = 0; i < MONTHLY; i++) {
        expect_next_in(&r, &ran, (size_t)i, monthly[i].delay - passed);
        ck_assert_str_eq(ran.entries[i].id, monthly[i].id);
        passed = monthly[i].delay;
    }
    tape_close(&ran);
    rig_close(&r);
}
END_TEST

START_TEST(p09_a_rescheduled_month_is_a_month)
{
    rig r = rig_manual(_i, START, NULL);
    tape ran;
    tape_open(&ran, r.s);
    ck_assert_int_gt(lapse_schedule(r.s, "o", LAPSE_SECONDS(1), tape_note, &ran), 0);
    ck_assert_int_eq(lapse_reschedule(r.s, "o", LAPSE_ANY, LAPSE_DAYS(60)), LAPSE_FATE_RESCHEDULED);
    expect_next_in(&r, &ran, 0, LAPSE_DAYS(60));
    tape_close(&ran);
    rig_close(&r);
}
END_TEST

/* -- P-10 -------------------------------------------------------------------------- */

START_TEST(p10_not_a_number_is_refused)
{
    const double refused[] = {NAN, -NAN, INFINITY, -INFINITY, 1e300, 3155760000.1, 9.3e9, 1e18};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        lapse_ns out = 12345;
        ck_assert_int_eq(lapse_ns_from_seconds(refused[i], &out), LAPSE_ERANGE);
        ck_assert_int_eq(out, 12345);
        ck_assert_ptr_nonnull(lapse_error_detail());
        ck_assert_int_gt((int)strlen(lapse_error_detail()), 0);
    }
}
END_TEST

START_TEST(p10_seconds_round_up)
{
    const struct {
        double seconds;
        lapse_ns expected;
    } cases[] = {
        {5e-324, 1},
        {1e-10, 1},
        {1e-9, 1},
        {1.5e-9, 2},
        {0.1, LAPSE_MS(100)},
        {1.1, LAPSE_MS(1100)},
        {0.0004, LAPSE_US(400)},
        {-0.0, 0},
        {0.0, 0},
        {-5e-324, 0},
        {-1e300, 0},
        {-46, 0},
        {1800.0, LAPSE_SECONDS(1800)},
        {1800.5, LAPSE_MS(1800500)},
        {3155760000.0, LAPSE_DELAY_MAX},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        lapse_ns out = -1;
        ck_assert_int_eq(lapse_ns_from_seconds(cases[i].seconds, &out), 0);
        ck_assert_msg(out == cases[i].expected, "%g s became %" PRId64 " ns", cases[i].seconds,
                      out);
    }
}
END_TEST

/* Up, within what a double can tell apart: 0.1 is 100 ms although the double next to it
 * is a little more. */
START_TEST(p10_conversion_is_never_early)
{
    rng luck = rng_open("p10_conversion_is_never_early");
    for (int i = 0; i < 100000; i++) {
        double seconds = ldexp((double)(rng_next(&luck) >> 11), (int)rng_range(&luck, -90, -25));
        lapse_ns out = -1;
        ck_assert_int_eq(lapse_ns_from_seconds(seconds, &out), 0);
        long double asked = (long double)seconds * 1e9L;
        long double ulp = asked * 0x1p-52L;
        ck_assert_msg((long double)out >= asked - ulp && (long double)out <= asked + ulp + 1.0L,
                      "%.17g s became %" PRId64 " ns", seconds, out);
    }
}
END_TEST

START_TEST(p10_below_the_resolution_is_one_tick)
{
    rig r = rig_manual(_i, START, NULL);
    tape ran;
    tape_open(&ran, r.s);
    lapse_ns delay;
    ck_assert_int_eq(lapse_ns_from_seconds(5e-324, &delay), 0);
    ck_assert_int_gt(lapse_schedule(r.s, "d", delay, tape_note, &ran), 0);
    advance(&r, 0);
    ck_assert_uint_eq(tape_count(&ran), 0);
    advance(&r, r.tick > 0 ? r.tick : 1);
    ck_assert_uint_eq(tape_count(&ran), 1);
    tape_close(&ran);
    rig_close(&r);
}
END_TEST

static lapse_verdict reschedule_too_far(const lapse_order *order, void *arg)
{
    rig *r = arg;
    int64_t result = lapse_schedule(r->s, "from inside", LAPSE_DELAY_MAX + 1, never, NULL);
    if (result != LAPSE_ERANGE)
        complain("schedule from inside answered %" PRId64, result);
    return lapse_retry(order, INT64_MAX, "again, in a very long time");
}

/* A refused time changes nothing: the pending order keeps its own. */
START_TEST(p10_a_refused_time_changes_nothing)
{
    rig r = rig_manual(_i, START, NULL);
    tape ran;
    tape_open(&ran, r.s);
    ck_assert_int_gt(lapse_schedule(r.s, "o", LAPSE_SECONDS(1), tape_note, &ran), 0);
    lapse_spec spec = {
        .id = "o", .delay = LAPSE_DELAY_MAX + 1, .fn = never, .flags = LAPSE_REPLACE};
    ck_assert_int_eq(lapse_put(r.s, &spec), LAPSE_ERANGE);
    ck_assert_int_eq(lapse_reschedule(r.s, "o", LAPSE_ANY, LAPSE_DELAY_MAX + 1), LAPSE_ERANGE);
    ck_assert_int_eq(lapse_schedule_at(r.s, "p", INT64_MAX, never, NULL), LAPSE_ERANGE);
    ck_assert_uint_eq(pending_in(r.s), 1);
    advance(&r, LAPSE_SECONDS(1));
    ck_assert_uint_eq(tape_count(&ran), 1);
    tape_close(&ran);
    rig_close(&r);
}
END_TEST

/* A retry's delay has no caller to refuse: it ends at the longest delay instead. */
START_TEST(p10_a_retry_too_far_away_is_the_farthest)
{
    rig r = rig_manual(_i, START, NULL);
    ck_assert_int_gt(lapse_schedule(r.s, "o", 0, reschedule_too_far, &r), 0);
    ck_assert_int_eq(advance_once(&r, 0), 1);
    lapse_info info;
    ck_assert_int_eq(lapse_get(r.s, "o", &info), 0);
    ck_assert_int_eq(info.state, LAPSE_STATE_PENDING);
    ck_assert_int_ge(info.remaining, LAPSE_DELAY_MAX);
    ck_assert_int_le(info.remaining, LAPSE_DELAY_MAX + r.tick);
    lapse_info_free(&info);
    ck_assert_int_eq(lapse_cancel(r.s, "o", LAPSE_ANY), LAPSE_FATE_CANCELLED);
    rig_close(&r);
}
END_TEST

START_TEST(p10_times_in_urls_and_options)
{
    const struct {
        const char *url;
        int expected;
    } cases[] = {
        {"memory:?tick=0ms", LAPSE_EURL},          {"memory:?tick=-1ms", LAPSE_EURL},
        {"memory:?tick=nan", LAPSE_EURL},          {"memory:?tick=1", LAPSE_EURL},
        {"memory:?tick=1e300s", LAPSE_EURL},       {"memory:?keep=inf", LAPSE_EURL},
        {"memory:?keep=99999999999s", LAPSE_EURL}, {"memory:?tick=2h", LAPSE_EURL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        lapse *s = NULL;
        int result = lapse_open(cases[i].url, NULL, &s);
        ck_assert_msg(result == cases[i].expected || result == LAPSE_ERANGE, "%s answered %d",
                      cases[i].url, result);
        ck_assert_ptr_null(s);
    }
    lapse *s = NULL;
    lapse_options options = {.keep = LAPSE_DELAY_MAX + 1};
    ck_assert_int_eq(lapse_open(NULL, &options, &s), LAPSE_ERANGE);
}
END_TEST

/* -- P-11 -------------------------------------------------------------------------- */

START_TEST(p11_a_negative_delay_is_zero)
{
    const lapse_ns past[] = {-1,
                             LAPSE_MS(-46),
                             LAPSE_MS(-2147483648LL),
                             LAPSE_SECONDS(-2515194),
                             LAPSE_MS(-(INT64_C(1) << 62)),
                             INT64_MIN + 1,
                             INT64_MIN};
    enum { COUNT = sizeof past / sizeof *past };
    const lapse_ns starts[] = {0, START + LAPSE_MS(9999), START + LAPSE_US(500)};
    for (size_t at = 0; at < sizeof starts / sizeof *starts; at++) {
        rig r = rig_manual(_i, starts[at], NULL);
        tape ran;
        tape_open(&ran, r.s);
        for (size_t i = 0; i < COUNT; i++) {
            char id[16];
            snprintf(id, sizeof id, "n%zu", i);
            ck_assert_int_gt(lapse_schedule(r.s, id, past[i], tape_note, &ran), 0);
        }
        ck_assert_int_le(lapse_timeout(r.s), r.tick);
        advance(&r, r.tick);
        ck_assert_uint_eq(tape_count(&ran), COUNT);
        for (size_t i = 0; i < COUNT; i++) {
            ck_assert_int_eq(ran.entries[i].id[1], '0' + (int)i);
            ck_assert_int_ge(ran.entries[i].late, 0);
            ck_assert_int_le(ran.entries[i].late, r.tick);
        }
        tape_close(&ran);
        rig_close(&r);
    }
}
END_TEST

START_TEST(p11_a_past_instant_is_due_at_once)
{
    const lapse_ns instants[] = {1, -1, INT64_MIN, LAPSE_DAYS(365)};
    rig r = rig_manual(_i, START, NULL);
    tape ran;
    tape_open(&ran, r.s);
    for (size_t i = 0; i < sizeof instants / sizeof *instants; i++) {
        char id[16];
        snprintf(id, sizeof id, "at%zu", i);
        ck_assert_int_gt(lapse_schedule_at(r.s, id, instants[i], tape_note, &ran), 0);
    }
    advance(&r, r.tick);
    ck_assert_uint_eq(tape_count(&ran), 4);
    for (size_t i = 0; i < 4; i++)
        ck_assert_int_ge(ran.entries[i].late, 0);
    tape_close(&ran);
    rig_close(&r);
}
END_TEST

/* -- P-12 -------------------------------------------------------------------------- */

struct punctual {
    lapse *s;
    uint64_t seed;
    atomic_int ran, early;
    struct punctual_order {
        struct punctual *of;
        lapse_ns not_before;
    } * orders;
    long each; /* orders per thread */
};

static lapse_verdict check_punctual(const lapse_order *order, void *arg)
{
    lapse_ns now = boot_now();
    struct punctual_order *o = arg;
    if (now < o->not_before) {
        atomic_fetch_add(&o->of->early, 1);
        complain("%s ran %" PRId64 " ns early", order->id, o->not_before - now);
    }
    if (order->late < 0)
        complain("%s was %" PRId64 " ns late", order->id, order->late);
    atomic_fetch_add(&o->of->ran, 1);
    return LAPSE_DONE;
}

static void schedule_punctual(void *arg, int number)
{
    struct punctual *p = arg;
    rng luck = {p->seed + (uint64_t)number};
    for (long i = 0; i < p->each; i++) {
        char id[24];
        snprintf(id, sizeof id, "%d.%ld", number, i);
        lapse_ns delay = LAPSE_US(rng_range(&luck, 0, 50000));
        if (i % 10 == 0)
            delay = rng_range(&luck, 0, 3000000); /* Fractions of a tick. */
        struct punctual_order *o = &p->orders[number * p->each + i];
        *o = (struct punctual_order){p, boot_now() + delay};
        if (lapse_schedule(p->s, id, delay, check_punctual, o) < 0)
            complain("%s", lapse_error_detail());
    }
}

START_TEST(p12_never_early)
{
    rig r = rig_real(_i, NULL);
    struct punctual p = {.s = r.s, .each = tier(500, 25000, 250000)};
    p.seed = rng_open("p12_never_early").state;
    p.orders = calloc((size_t)(4 * p.each), sizeof *p.orders);
    ck_assert_ptr_nonnull(p.orders);
    ck_assert_int_eq(lapse_start(r.s, 2), 0);
    crew_run(4, schedule_punctual, &p);
    ck_assert(until_at_least(&p.ran, (int)(4 * p.each)));
    ck_assert_int_eq(atomic_load(&p.early), 0);
    ck_assert_uint_eq(stats_of(r.s).started, (uint64_t)(4 * p.each));
    rig_close(&r);
    free(p.orders);
}
END_TEST

/* To the nanosecond, about every tick edge. */
START_TEST(p12_never_early_about_a_tick_edge)
{
    const lapse_ns edges[] = {-2, -1, 0, 1, 2};
    for (size_t a = 0; a < 5; a++)
        for (size_t b = 0; b < 5; b++) {
            rig r = rig_manual(_i, START + edges[a], NULL);
            tape ran;
            tape_open(&ran, r.s);
            lapse_ns delay = LAPSE_MS(3) + edges[b], due = START + edges[a] + delay;
            ck_assert_int_gt(lapse_schedule(r.s, "o", delay, tape_note, &ran), 0);
            advance(&r, delay - 1);
            ck_assert_uint_eq(tape_count(&ran), 0);
            advance(&r, 1 + r.tick);
            ck_assert_uint_eq(tape_count(&ran), 1);
            ck_assert_int_eq(ran.entries[0].late, ran.entries[0].now - due);
            tape_close(&ran);
            rig_close(&r);
        }
}
END_TEST

/* -- P-13 -------------------------------------------------------------------------- */

static const lapse_ns constants[] = {LAPSE_US(7),       LAPSE_MS(1500), LAPSE_SECONDS(90),
                                     LAPSE_MINUTES(30), LAPSE_HOURS(2), LAPSE_DAYS(1)};

START_TEST(p13_units_are_in_the_name)
{
    const lapse_ns expected[] = {INT64_C(7000),          INT64_C(1500000000),
                                 INT64_C(90000000000),   INT64_C(1800000000000),
                                 INT64_C(7200000000000), INT64_C(86400000000000)};
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++)
        ck_assert_int_eq(constants[i], expected[i]);
    ck_assert_int_eq(LAPSE_DELAY_MAX, INT64_C(3155760000000000000));
}
END_TEST

START_TEST(p13_units_saturate)
{
    ck_assert_int_eq(LAPSE_DAYS(INT64_C(106752)), INT64_MAX);
    ck_assert_int_lt(LAPSE_DAYS(INT64_C(106751)), INT64_MAX);
    ck_assert_int_eq(LAPSE_DAYS(INT64_C(-106752)), INT64_MIN);
    ck_assert_int_eq(LAPSE_MS(INT64_MAX), INT64_MAX);
    ck_assert_int_eq(LAPSE_MS(INT64_MIN), INT64_MIN);
    ck_assert_int_eq(LAPSE_US(INT64_C(1) << 62), INT64_MAX);
}
END_TEST

/* The same amount whatever integer type it comes in. */
START_TEST(p13_units_of_every_integer_type)
{
    int as_int = 5;
    unsigned as_unsigned = 5;
    long as_long = 5;
    size_t as_size = 5;
    uint64_t as_u64 = 5;
    int64_t as_i64 = -5;
    ck_assert_int_eq(LAPSE_MS(as_int), INT64_C(5000000));
    ck_assert_int_eq(LAPSE_MS(as_unsigned), INT64_C(5000000));
    ck_assert_int_eq(LAPSE_MS(as_long), INT64_C(5000000));
    ck_assert_int_eq(LAPSE_MS(as_size), INT64_C(5000000));
    ck_assert_int_eq(LAPSE_MS(as_u64), INT64_C(5000000));
    ck_assert_int_eq(LAPSE_MS(as_i64), INT64_C(-5000000));
    ck_assert_int_eq(LAPSE_DAYS(as_size), 5 * INT64_C(86400000000000));
}
END_TEST

START_TEST(p13_1500_ms_is_one_and_a_half_seconds)
{
    rig r = rig_manual(_i, START, NULL);
    tape ran;
    tape_open(&ran, r.s);
    lapse_ns seconds;
    ck_assert_int_eq(lapse_ns_from_seconds(1.5, &seconds), 0);
    ck_assert_int_eq(seconds, LAPSE_MS(1500));
    ck_assert_int_gt(lapse_schedule(r.s, "o", LAPSE_MS(1500), tape_note, &ran), 0);
    advance(&r, LAPSE_MS(1499));
    ck_assert_uint_eq(tape_count(&ran), 0);
    advance(&r, LAPSE_MS(1));
    ck_assert_uint_eq(tape_count(&ran), 1);
    tape_close(&ran);
    rig_close(&r);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("delays");
    TCase *group = add_group(suite, "P-09 to P-13");
    ADD_FOR_ENGINES(group, p09_a_month_is_a_month);
    ADD_FOR_ENGINES(group, p09_a_rescheduled_month_is_a_month);
    tcase_add_test(group, p10_not_a_number_is_refused);
    tcase_add_test(group, p10_seconds_round_up);
    tcase_add_test(group, p10_conversion_is_never_early);
    ADD_FOR_ENGINES(group, p10_below_the_resolution_is_one_tick);
    ADD_FOR_ENGINES(group, p10_a_refused_time_changes_nothing);
    ADD_FOR_ENGINES(group, p10_a_retry_too_far_away_is_the_farthest);
    tcase_add_test(group, p10_times_in_urls_and_options);
    ADD_FOR_ENGINES(group, p11_a_negative_delay_is_zero);
    ADD_FOR_ENGINES(group, p11_a_past_instant_is_due_at_once);
    ADD_FOR_ENGINES(group, p12_never_early);
    ADD_FOR_ENGINES(group, p12_never_early_about_a_tick_edge);
    tcase_add_test(group, p13_units_are_in_the_name);
    tcase_add_test(group, p13_units_saturate);
    tcase_add_test(group, p13_units_of_every_integer_type);
    ADD_FOR_ENGINES(group, p13_1500_ms_is_one_and_a_half_seconds);
    return run_suite(suite);
}
