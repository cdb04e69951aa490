/* test_sqlite_clock.c - due times over reboots and steps of the wall clock: P-19, P-60; and
 * fences that no failure can bring back. */
/* tiers: small */
/* valgrind */
#include <time.h>

#include "stores/turns.h"

static bench reopen(bench *b, lapse_ns now, lapse_ns wall)
{
    if (b->d)
        close_bench(b);
    return open_at("", now, wall);
}

START_TEST(p60_steps_of_the_wall_clock_move_nothing)
{
    bench b = open_bench("");
    schedule(&b, "a", LAPSE_MINUTES(30));
    b.wall += LAPSE_MINUTES(10);
    pass(&b, LAPSE_MINUTES(15));
    ck_assert_ptr_null(claim(&b, 1, NULL));
    b.wall -= LAPSE_HOURS(5);
    b = reopen(&b, b.now, b.wall); /* The machine stayed up. */
    pass(&b, LAPSE_MINUTES(15) - 1);
    lapse_ns next;
    ck_assert_ptr_null(claim(&b, 1, &next));
    ck_assert_int_eq(next, START + LAPSE_MINUTES(30));
    pass(&b, 1);
    lp_loan *l = claim_one(&b, "a");
    ck_assert_int_eq(l->due, START + LAPSE_MINUTES(30));
    free_loans(l);
    close_bench(&b);
}
END_TEST

/* After a reboot the machine's clock begins anew and only the wall clock is left. */
START_TEST(p60_a_reboot_goes_on_by_the_wall_clock)
{
    bench b = open_bench("");
    schedule(&b, "a", LAPSE_MINUTES(30));
    pass(&b, LAPSE_MINUTES(10));
    b = reopen(&b, 0, WALL + LAPSE_MINUTES(25)); /* It was off for a quarter of an hour. */
    lapse_ns next;
    ck_assert_ptr_null(claim(&b, 1, &next));
    ck_assert_int_eq(next, LAPSE_MINUTES(5));
    pass(&b, LAPSE_MINUTES(5) - 1);
    ck_assert_ptr_null(claim(&b, 1, NULL));
    pass(&b, 1);
    free_loans(claim_one(&b, "a"));
    close_bench(&b);
}
END_TEST

/* A clock that lost its battery stands in the past: no time passed, nothing is early. */
START_TEST(a_wall_clock_of_the_past_is_not_believed)
{
    bench b = open_bench("");
    schedule(&b, "a", LAPSE_MINUTES(30));
    pass(&b, LAPSE_MINUTES(10));
    schedule(&b, "b", LAPSE_MINUTES(30)); /* The latest reading that is written. */
    b = reopen(&b, 0, 0);
    lapse_ns next;
    ck_assert_ptr_null(claim(&b, 1, &next));
    ck_assert_int_eq(next, LAPSE_MINUTES(20));
    close_bench(&b);
}
END_TEST

/* Another boot, as its name tells, although the machine's clock is already further. */
START_TEST(a_boot_is_told_by_its_name)
{
    bench b = open_bench("");
    schedule(&b, "a", LAPSE_MINUTES(30));
    close_bench(&b);
    poke("UPDATE lapse_meta SET boot = 'another'");
    b = reopen(&b, START + LAPSE_DAYS(9), WALL + LAPSE_MINUTES(10));
    lapse_ns next;
    ck_assert_ptr_null(claim(&b, 1, &next));
    ck_assert_int_eq(next, b.now + LAPSE_MINUTES(20));
    close_bench(&b);
}
END_TEST

/* Two processes that have it open while the machine is up agree on the anchor. */
START_TEST(processes_share_the_anchor)
{
    bench a = open_bench("");
    bench b = open_at("", START + LAPSE_SECONDS(1), WALL - LAPSE_HOURS(3));
    schedule(&a, "a", LAPSE_SECONDS(5));
    lapse_ns next;
    ck_assert_ptr_null(claim(&b, 1, &next));
    ck_assert_int_eq(next, START + LAPSE_SECONDS(5));
    pass(&b, LAPSE_SECONDS(4));
    free_loans(claim_one(&b, "a"));
    close_bench(&a);
    close_bench(&b);
}
END_TEST

START_TEST(p19_a_time_zone_moves_nothing)
{
    static const char *const zones[] = {"Europe/Berlin", "America/New_York", "Asia/Shanghai"};
    /* Ten minutes before each change of 2026: 29 March and 25 October in Berlin, 8 March and
     * 1 November in New York. */
    static const int64_t changes[] = {INT64_C(1774745400), INT64_C(1792889400), INT64_C(1772952600),
                                      INT64_C(1793511600)};
    for (int i = 0; i < 12; i++) {
        ck_assert_int_eq(setenv("TZ", zones[i % 3], 1), 0);
        tzset();
        unlink(path_of("orders.db"));
        lapse_ns wall = changes[i / 3] * LAPSE_SECONDS(1);
        bench b = open_at("", START, wall);
        schedule(&b, "a", LAPSE_SECONDS(1800));
        ck_assert_int_eq(setenv("TZ", zones[(i + 1) % 3], 1), 0);
        tzset();
        b = reopen(&b, START + 1, wall + 1);
        lapse_info info = get(&b, "a");
        ck_assert_int_eq(info.due, START + LAPSE_SECONDS(1800));
        lapse_info_free(&info);
        pass(&b, LAPSE_SECONDS(1800) - 2);
        ck_assert_ptr_null(claim(&b, 1, NULL));
        pass(&b, 1);
        free_loans(claim_one(&b, "a"));
        close_bench(&b);
    }
}
END_TEST

/* Rounding is up: not one nanosecond early, and at most a millisecond late. */
START_TEST(nothing_is_early_by_a_nanosecond)
{
    static const lapse_ns odd[] = {1, 999999, 1000000, 1000001, 123456789};
    for (int i = 0; i < 5; i++) {
        unlink(path_of("orders.db"));
        bench b = open_at("", START + odd[i], WALL + 777777);
        schedule(&b, "a", odd[4 - i]);
        lapse_ns due = b.now + odd[4 - i], next;
        b.now = due - 1;
        ck_assert_ptr_null(claim(&b, 1, &next));
        ck_assert_int_ge(next, due);
        ck_assert_int_lt(next, due + LAPSE_MS(1));
        b.now = next - 1;
        ck_assert_ptr_null(claim(&b, 1, NULL));
        b.now = next;
        free_loans(claim_one(&b, "a"));
        close_bench(&b);
    }
}
END_TEST

START_TEST(a_due_time_far_away_is_kept)
{
    bench b = open_bench("");
    schedule(&b, "a", LAPSE_DELAY_MAX);
    lapse_info info = get(&b, "a");
    ck_assert_int_eq(info.due, START + LAPSE_DELAY_MAX);
    lapse_info_free(&info);
    lp_job past = schedule_job("b", INT64_MIN / 2);
    ck_assert_int_gt(ask(&b, &past), 0);
    free_loans(claim_one(&b, "b"));
    close_bench(&b);
}
END_TEST

/* A claim may be lost with the power, its fence must not come again: before a fence is given
 * out, one above it is safe. */
START_TEST(a_lost_claim_leaves_its_fence_behind)
{
    bench b = open_bench("");
    schedule(&b, "a", 0);
    lp_loan *first = claim_one(&b, "a");
    ck_assert_int_ge(look("SELECT fence_top FROM lapse_meta"), first->fence);
    close_bench(&b);
    /* The power fails: what is left is the state before the claim, but for what was safe.
     * The battery of the clock is dead as well. */
    poke("UPDATE lapse_meta SET fence = 0, boot = 'another';"
         "UPDATE lapse_order SET fence = NULL, attempt = 0, at = due, due = NULL");
    b = reopen(&b, LAPSE_SECONDS(1), 0);
    lp_loan *second = claim_one(&b, "a");
    ck_assert_int_gt(second->fence, first->fence);
    free_loans(first);
    free_loans(second);
    close_bench(&b);
}
END_TEST

START_TEST(fences_and_generations_grow_over_everything)
{
    int64_t fence = 0, generation = 0;
    bench b = open_bench("");
    for (int i = 0; i < 20; i++) {
        for (int k = 0; k < 3; k++) {
            char id[8];
            snprintf(id, sizeof id, "o%d", k);
            int64_t g = schedule(&b, id, 0);
            ck_assert_int_gt(g, generation);
            generation = g;
        }
        pass(&b, LAPSE_MS(1));
        lp_loan *l = claim(&b, 3, NULL);
        for (lp_loan *at = l; at; at = at->next) {
            ck_assert_int_gt(at->fence, fence);
            fence = at->fence;
            settle(&b, at, LP_END);
        }
        ck_assert_uint_eq(free_loans(l), 3);
        b = i % 2 ? reopen(&b, 0, 0) : reopen(&b, b.now + 1, b.wall + 1);
    }
    close_bench(&b);
}
END_TEST

static void fill(TCase *tests)
{
    tcase_add_test(tests, p60_steps_of_the_wall_clock_move_nothing);
    tcase_add_test(tests, p60_a_reboot_goes_on_by_the_wall_clock);
    tcase_add_test(tests, a_wall_clock_of_the_past_is_not_believed);
    tcase_add_test(tests, a_boot_is_told_by_its_name);
    tcase_add_test(tests, processes_share_the_anchor);
    tcase_add_test(tests, p19_a_time_zone_moves_nothing);
    tcase_add_test(tests, nothing_is_early_by_a_nanosecond);
    tcase_add_test(tests, a_due_time_far_away_is_kept);
    tcase_add_test(tests, a_lost_claim_leaves_its_fence_behind);
    tcase_add_test(tests, fences_and_generations_grow_over_everything);
}

int main(void)
{
    return run_sqlite_suite("sqlite clock", fill);
}
