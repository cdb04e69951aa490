/* test_timer.c - what the wheel and the heap promise alike. */
/* valgrind */
#include "core/records.h"
#include "support/support.h"

enum { TICK = 10 };

static fixture f;

static void open_kind(int engine)
{
    fixture_open(&f, engine == WHEEL ? 64 : 0, TICK, 0);
}

START_TEST(an_empty_timer)
{
    uint64_t serial;
    open_kind(_i);
    ck_assert_int_eq(lp_timer_next(f.timer), LP_NEVER);
    ck_assert_uint_eq(lp_timer_count(f.timer), 0);
    ck_assert_uint_eq(expire_some(&f, 0, &serial, 1), 0);
    ck_assert_uint_eq(expire_some(&f, INT64_MAX, &serial, 1), 0);
    ck_assert_uint_gt(lp_timer_bytes(f.timer), 0);
    fixture_close(&f);
    lp_timer_close(NULL);
}
END_TEST

START_TEST(not_before_its_time)
{
    uint64_t serial;
    open_kind(_i);
    insert(&f, 500);
    ck_assert_int_eq(lp_timer_next(f.timer), 500);
    ck_assert_uint_eq(expire_some(&f, 499, &serial, 1), 0);
    ck_assert_uint_eq(expire_some(&f, 500, &serial, 0), 0);
    ck_assert_uint_eq(lp_timer_count(f.timer), 1);
    ck_assert_uint_eq(expire_some(&f, 500, &serial, 1), 1);
    ck_assert_uint_eq(lp_timer_count(f.timer), 0);
    ck_assert_uint_eq(expire_some(&f, 500, &serial, 1), 0);
    fixture_close(&f);
}
END_TEST

START_TEST(rounded_up_to_the_tick)
{
    lapse_ns due = _i == WHEEL ? 510 : 501;
    open_kind(_i);
    insert(&f, 501);
    ck_assert_int_eq(lp_timer_next(f.timer), due);
    ck_assert_uint_eq(expire_all(&f, due - 1, NULL, 0), 0);
    ck_assert_uint_eq(expire_all(&f, due, NULL, 0), 1);
    fixture_close(&f);
}
END_TEST

START_TEST(in_order_of_due_time)
{
    const lapse_ns due[] = {40, 10, 300000, 20, 640, 650, 30};
    const uint64_t sorted[] = {2, 4, 7, 1, 5, 6, 3};
    uint64_t serials[7];
    open_kind(_i);
    for (int i = 0; i < 7; i++)
        insert(&f, due[i]);
    ck_assert_uint_eq(expire_all(&f, 1000000, serials, 7), 7);
    ck_assert_mem_eq(serials, sorted, sizeof sorted);
    fixture_close(&f);
}
END_TEST

START_TEST(past_and_negative_due_times_are_due_at_once)
{
    uint64_t serials[3];
    open_kind(_i);
    ck_assert_uint_eq(expire_all(&f, 1000, serials, 3), 0);
    insert(&f, -5);
    insert(&f, 0);
    insert(&f, 999);
    ck_assert_int_le(lp_timer_next(f.timer), 1000);
    ck_assert_uint_eq(expire_some(&f, 1000, serials, 3), 3);
    for (unsigned i = 0; i < 3; i++)
        ck_assert_uint_eq(serials[i], i + 1);
    fixture_close(&f);
}
END_TEST

START_TEST(the_end_of_time)
{
    uint64_t serials[3];
    open_kind(_i);
    insert(&f, INT64_MAX);
    insert(&f, INT64_MAX - 1);
    ck_assert_int_eq(lp_timer_next(f.timer), INT64_MAX - 1);
    ck_assert_uint_eq(expire_some(&f, INT64_MAX - 2, serials, 3), 0);
    ck_assert_uint_eq(expire_all(&f, INT64_MAX, serials, 3), 2);
    ck_assert(serials[0] == 1 && serials[1] == 2);
    ck_assert_int_eq(lp_timer_next(f.timer), LP_NEVER);
    fixture_close(&f);
}
END_TEST

START_TEST(removed_ones_do_not_come)
{
    uint64_t serials[3];
    open_kind(_i);
    uint32_t first = insert(&f, 100), second = insert(&f, 200), third = insert(&f, 300);
    drop(&f, first);
    ck_assert_int_eq(lp_timer_next(f.timer), 200);
    drop(&f, third);
    drop(&f, insert(&f, 5));
    ck_assert_uint_eq(record_at(&f, second)->serial, 2);
    ck_assert_uint_eq(expire_all(&f, 1000, serials, 3), 1);
    ck_assert_uint_eq(serials[0], 2);
    fixture_close(&f);
}
END_TEST

/* Out and in again is behind those that are due at the same time. */
START_TEST(rescheduled_ones_go_to_the_end)
{
    uint64_t serials[3];
    open_kind(_i);
    uint32_t first = insert(&f, 100);
    insert(&f, 200);
    insert(&f, 200);
    lp_timer_remove(f.timer, first);
    ck_assert_uint_eq(record_at(&f, first)->node.mark, 0);
    record_at(&f, first)->node.due = 200;
    ck_assert_int_eq(lp_timer_insert(f.timer, first), 0);
    ck_assert_uint_ne(record_at(&f, first)->node.mark, 0);
    ck_assert_int_eq(lp_timer_next(f.timer), 200);
    ck_assert_uint_eq(expire_all(&f, 1000, serials, 3), 3);
    ck_assert(serials[0] == 2 && serials[1] == 3 && serials[2] == 1);
    fixture_close(&f);
}
END_TEST

/* In small portions, with a clock that stands still. */
START_TEST(portions_go_on_where_the_last_one_ended)
{
    uint64_t serials[7], expected = 0;
    open_kind(_i);
    for (int i = 0; i < 100; i++)
        insert(&f, 10 + i / 9 * 10);
    for (int portion = 1; expected < 100; portion = portion % 7 + 1) {
        size_t count = expire_some(&f, 1000, serials, (size_t)portion);
        ck_assert(count == (size_t)portion || expected + count == 100);
        for (size_t i = 0; i < count; i++)
            ck_assert_uint_eq(serials[i], ++expected);
    }
    fixture_close(&f);
}
END_TEST

START_TEST(a_clock_that_goes_back_hands_out_nothing)
{
    uint64_t serial;
    open_kind(_i);
    insert(&f, 2000);
    ck_assert_uint_eq(expire_all(&f, 1000, &serial, 1), 0);
    ck_assert_uint_eq(expire_some(&f, 500, &serial, 1), 0);
    ck_assert_uint_eq(expire_some(&f, -500, &serial, 1), 0);
    ck_assert_uint_eq(expire_all(&f, 2000, &serial, 1), 1);
    fixture_close(&f);
}
END_TEST

START_TEST(reserve_and_close_with_records_in)
{
    open_kind(_i);
    ck_assert_int_eq(lp_timer_reserve(f.timer, 10000), 0);
    for (int i = 0; i < 10000; i++)
        insert(&f, i);
    ck_assert_int_eq(lp_timer_reserve(f.timer, 0), 0);
    ck_assert_uint_eq(lp_timer_count(f.timer), 10000);
    ck_assert_uint_gt(lp_timer_bytes(f.timer), 100000);
    fixture_close(&f);
}
END_TEST

START_TEST(two_timers_over_one_pool)
{
    uint64_t serial;
    open_kind(_i);
    lp_timer_config config = {.kind = _i == WHEEL ? LP_WHEEL : LP_HEAP,
                              .tick = 1,
                              .slots = 64,
                              .start = 0,
                              .pool = &f.pool};
    lp_timer *other;
    uint32_t out;
    ck_assert_int_eq(lp_timer_open(&config, &other), 0);
    insert(&f, 100);
    uint32_t index = new_record(&f, 50);
    ck_assert_int_eq(lp_timer_insert(other, index), 0);
    ck_assert_uint_eq(expire_some(&f, 60, &serial, 1), 0);
    ck_assert_uint_eq(lp_timer_expire(other, 60, &out, 1), 1);
    ck_assert_uint_eq(out, index);
    ck_assert_uint_eq(expire_some(&f, 100, &serial, 1), 1);
    lp_timer_close(other);
    fixture_close(&f);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("timer");
    TCase *tc = tcase_create("timer");
    ADD_FOR_ENGINES(tc, an_empty_timer);
    ADD_FOR_ENGINES(tc, not_before_its_time);
    ADD_FOR_ENGINES(tc, rounded_up_to_the_tick);
    ADD_FOR_ENGINES(tc, in_order_of_due_time);
    ADD_FOR_ENGINES(tc, past_and_negative_due_times_are_due_at_once);
    ADD_FOR_ENGINES(tc, the_end_of_time);
    ADD_FOR_ENGINES(tc, removed_ones_do_not_come);
    ADD_FOR_ENGINES(tc, rescheduled_ones_go_to_the_end);
    ADD_FOR_ENGINES(tc, portions_go_on_where_the_last_one_ended);
    ADD_FOR_ENGINES(tc, a_clock_that_goes_back_hands_out_nothing);
    ADD_FOR_ENGINES(tc, reserve_and_close_with_records_in);
    ADD_FOR_ENGINES(tc, two_timers_over_one_pool);
    suite_add_tcase(suite, tc);
    return run_suite(suite);
}
