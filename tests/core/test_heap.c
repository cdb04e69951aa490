/* test_heap.c - exact order, also among equals. */
/* link: -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=mmap,--wrap=munmap */
/* valgrind */
/* tiers: quick full soak */
#include "timer/heap.c" /* For the state that users cannot reach. */

#include "core/fail_alloc.h"
#include "core/records.h"
#include "support/support.h"

static fixture b;

/* Whether every entry is due after its parent, and every record knows its place. */
static bool in_order(void)
{
    const heap *h = (const heap *)b.timer;
    for (size_t i = 0; i < h->size; i++) {
        const lp_node *node = lp_pool_at(&b.pool, at(h, i)->index);
        if (node->mark != i + 1 || node->due != at(h, i)->due)
            return false;
        if (i > 0 && before(at(h, i), at(h, (i - 1) / ARITY)))
            return false;
    }
    return true;
}

START_TEST(children_share_a_cache_line)
{
    fixture_open(&b, 0, 1, 0);
    for (lapse_ns due = 0; due < 3 * PAGE_ENTRIES; due++)
        insert(&b, due);
    const heap *h = (const heap *)b.timer;
    for (size_t parent = 0; parent * ARITY + ARITY < h->size; parent++) {
        uintptr_t first = (uintptr_t)at(h, parent * ARITY + 1);
        holds(first % 64 == 0);
        holds((uintptr_t)at(h, parent * ARITY + ARITY) - first == 3 * sizeof(entry));
    }
    fixture_close(&b);
}
END_TEST

START_TEST(equal_due_times_come_in_order_of_insertion)
{
    uint64_t serials[300];
    fixture_open(&b, 0, 1, 0);
    for (int i = 0; i < 300; i++)
        insert(&b, i % 3);
    ck_assert_uint_eq(expire_all(&b, 2, serials, 300), 300);
    for (int i = 1; i < 300; i++)
        holds(i % 100 == 0 || serials[i] == serials[i - 1] + 3);
    fixture_close(&b);
}
END_TEST

/* The number of an insert may wrap between two that are due at one time. */
START_TEST(order_survives_the_wrap_of_the_numbers)
{
    uint64_t serials[20];
    fixture_open(&b, 0, 1, 0);
    ((heap *)b.timer)->number = UINT32_MAX - 10;
    for (int i = 0; i < 20; i++)
        insert(&b, 7);
    ck_assert_uint_eq(expire_all(&b, 7, serials, 20), 20);
    for (unsigned i = 0; i < 20; i++)
        ck_assert_uint_eq(serials[i], i + 1);
    fixture_close(&b);
}
END_TEST

START_TEST(exact_to_the_unit)
{
    uint64_t serial;
    fixture_open(&b, 0, 1, 0);
    insert(&b, 1000001);
    ck_assert_int_eq(lp_timer_next(b.timer), 1000001);
    ck_assert_uint_eq(expire_some(&b, 1000000, &serial, 1), 0);
    ck_assert_uint_eq(expire_some(&b, 1000001, &serial, 1), 1);
    fixture_close(&b);
}
END_TEST

START_TEST(any_may_be_removed)
{
    enum { COUNT = 3000 };
    static uint32_t index[COUNT];
    rng r = rng_open("heap");
    fixture_open(&b, 0, 1, 0);
    for (int i = 0; i < COUNT; i++)
        index[i] = insert(&b, rng_range(&r, 0, COUNT / 2));
    for (int left = COUNT; left > 0; left--) {
        int64_t i = rng_range(&r, 0, left - 1);
        drop(&b, index[i]);
        index[i] = index[left - 1];
        holds(left % 64 != 0 || in_order());
    }
    ck_assert_uint_eq(lp_timer_count(b.timer), 0);
    ck_assert_int_eq(lp_timer_next(b.timer), LP_NEVER);
    fixture_close(&b);
}
END_TEST

/* No step costs more than the way through the heap, and pages go back. */
START_TEST(grows_and_shrinks_in_bounded_steps)
{
    uint32_t count = (uint32_t)tier(100000, 1000000, 10000000);
    rng r = rng_open("heap");
    long before = map_live;
    fixture_open(&b, 0, 1, 0);
    for (uint32_t i = 0; i < count; i++)
        insert(&b, rng_range(&r, 0, 1000000));
    ck_assert_uint_le(b.most_moved, 16);
    ck_assert(in_order());
    size_t full = lp_timer_bytes(b.timer);
    uint64_t serials[64];
    size_t left = count;
    for (; left > count / 2; left -= 64)
        ck_assert_uint_eq(expire_some(&b, 1000000, serials, 64), 64);
    ck_assert_uint_le(b.most_moved, 64 * 16);
    ck_assert_uint_le(lp_timer_bytes(b.timer), full / 2 + 3 * PAGE_BYTES);
    expire_all(&b, 1000000, serials, 0);
    ck_assert_uint_le(lp_timer_bytes(b.timer), 3 * PAGE_BYTES);
    fixture_close(&b);
    ck_assert_int_eq(map_live, before);
}
END_TEST

START_TEST(swinging_around_a_page_costs_no_system_call)
{
    uint32_t index[16];
    fixture_open(&b, 0, 1, 0);
    for (int i = 0; i < 2 * PAGE_ENTRIES - 8; i++)
        insert(&b, i);
    for (int i = 0; i < 16; i++)
        index[i] = insert(&b, i);
    long before = map_calls;
    for (int round = 0; round < 50; round++) {
        for (int i = 0; i < 16; i++)
            drop(&b, index[i]);
        for (int i = 0; i < 16; i++)
            index[i] = insert(&b, i);
    }
    ck_assert_int_eq(map_calls, before);
    fixture_close(&b);
}
END_TEST

/* Memory ends at the n-th allocation: an error, the record is out, all others in. */
START_TEST(survives_failing_memory)
{
    enum { COUNT = 6 * PAGE_ENTRIES };
    static uint32_t index[COUNT];
    long before = map_live;
    for (long n = 0; n < 6; n++) {
        fixture_open(&b, 0, 1, 0);
        for (int i = 0; i < COUNT; i++)
            index[i] = new_record(&b, i);
        int count = 0, rc = 0;
        fail_after = n;
        while (count < COUNT && rc == 0) {
            rc = lp_timer_insert(b.timer, index[count]);
            count += rc == 0;
        }
        fail_after = NO_FAILURE;
        ck_assert_int_eq(rc, LAPSE_ENOMEM);
        ck_assert_uint_eq(lp_timer_count(b.timer), (size_t)count);
        ck_assert_uint_eq(record_at(&b, index[count])->node.mark, 0);
        ck_assert(in_order());
        fail_after = 0;
        for (int i = 0; i < count; i++)
            lp_timer_remove(b.timer, index[i]);
        fail_after = NO_FAILURE;
        ck_assert_uint_eq(lp_timer_count(b.timer), 0);
        fixture_close(&b);
        ck_assert_int_eq(map_live, before);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("heap");
    TCase *tc = tcase_create("heap");
    tcase_add_test(tc, children_share_a_cache_line);
    tcase_add_test(tc, equal_due_times_come_in_order_of_insertion);
    tcase_add_test(tc, order_survives_the_wrap_of_the_numbers);
    tcase_add_test(tc, exact_to_the_unit);
    tcase_add_test(tc, any_may_be_removed);
    tcase_add_test(tc, grows_and_shrinks_in_bounded_steps);
    tcase_add_test(tc, swinging_around_a_page_costs_no_system_call);
    tcase_add_test(tc, survives_failing_memory);
    suite_add_tcase(suite, tc);
    return run_suite(suite);
}
