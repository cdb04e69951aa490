/* test_pool.c - records that never move, and memory that goes back. */
/* link: -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=mmap,--wrap=munmap */
/* valgrind */
/* tiers: quick full soak */
#include <check.h>

#include "core/fail_alloc.h"
#include "core/holds.h"
#include "support/support.h"
#include "timer/pool.h"

typedef struct record {
    lp_node node;
    uint64_t serial;
    char rest[40];
} record;

static lp_pool pool;

static void open_pool(void)
{
    lp_pool_init(&pool, sizeof(record));
}

static record *at(uint32_t index)
{
    return lp_pool_at(&pool, index);
}

static uint32_t take(uint64_t serial)
{
    uint32_t index = lp_pool_take(&pool);
    holds(index != LP_NONE);
    at(index)->node.state = 1;
    at(index)->serial = serial;
    return index;
}

/* An array that never moves what is in it. */
START_TEST(paged_entries_stay)
{
    enum { ENTRIES = 5 * LP_PAGED_LEAF };
    lp_paged a = {0};
    ck_assert_int_eq(lp_paged_reserve(&a, 1, sizeof(uint64_t)), 0);
    uint64_t *first = lp_paged_at(&a, 0, sizeof(uint64_t));
    *first = 7;
    ck_assert_int_eq(lp_paged_reserve(&a, ENTRIES, sizeof(uint64_t)), 0);
    ck_assert_uint_ge(lp_paged_size(&a), ENTRIES);
    for (size_t i = 1; i < ENTRIES; i++) {
        uint64_t *entry = lp_paged_at(&a, i, sizeof(uint64_t));
        holds(*entry == 0);
        *entry = i;
    }
    ck_assert_ptr_eq(lp_paged_at(&a, 0, sizeof(uint64_t)), first);
    lp_paged_trim(&a, LP_PAGED_LEAF);
    ck_assert_uint_eq(lp_paged_size(&a), (size_t)2 * LP_PAGED_LEAF);
    ck_assert_uint_eq(*first, 7);
    lp_paged_free(&a);
    ck_assert_uint_eq(lp_paged_bytes(&a, sizeof(uint64_t)), 0);
}
END_TEST

START_TEST(paged_has_an_end)
{
    lp_paged a = {0};
    size_t beyond = (size_t)LP_PAGED_LEAF * LP_PAGED_ROOT_MAX + 1;
    ck_assert_int_eq(lp_paged_reserve(&a, beyond, 1), LAPSE_ENOMEM);
    ck_assert_uint_eq(lp_paged_size(&a), beyond - 1);
    lp_paged_free(&a);
}
END_TEST

START_TEST(a_new_record_has_a_zero_node_and_is_aligned)
{
    open_pool();
    uint32_t index = take(1);
    at(index)->node = (lp_node){.due = 5, .queue = 6, .state = 7, .id_len = 8};
    lp_pool_give(&pool, index);
    uint32_t again = lp_pool_take(&pool);
    ck_assert_uint_eq(again, index);
    ck_assert_int_eq(at(again)->node.due, 0);
    ck_assert_uint_eq(at(again)->node.mark, 0);
    ck_assert_uint_eq(at(again)->node.queue, 0);
    ck_assert_uint_eq(at(again)->node.state, 0);
    ck_assert_uint_eq(at(again)->node.id_len, 0);
    ck_assert_uint_eq((uintptr_t)at(again) % sizeof(record), 0);
    lp_pool_free(&pool);
}
END_TEST

START_TEST(records_never_move)
{
    enum { COUNT = 20 * LP_POOL_CHUNK };
    static record *where[COUNT];
    static uint32_t index[COUNT];
    open_pool();
    for (uint32_t i = 0; i < COUNT; i++) {
        index[i] = take(i);
        where[i] = at(index[i]);
    }
    ck_assert_uint_eq(lp_pool_count(&pool), COUNT);
    for (uint32_t i = 0; i < COUNT; i++) {
        holds(index[i] < lp_pool_limit(&pool));
        holds(at(index[i]) == where[i]);
        holds(lp_pool_peek(&pool, index[i]) == where[i]);
        holds(at(index[i])->serial == i);
    }
    lp_pool_free(&pool);
}
END_TEST

START_TEST(peek_sees_only_what_is_in_use)
{
    open_pool();
    ck_assert_ptr_null(lp_pool_peek(&pool, 0));
    ck_assert_ptr_null(lp_pool_peek(&pool, LP_NONE));
    uint32_t first = take(1), second = take(2);
    ck_assert_ptr_nonnull(lp_pool_peek(&pool, first));
    lp_pool_give(&pool, first);
    ck_assert_ptr_null(lp_pool_peek(&pool, first));
    ck_assert_ptr_nonnull(lp_pool_peek(&pool, second));
    ck_assert_ptr_null(lp_pool_peek(&pool, second + 1));
    ck_assert_ptr_null(lp_pool_peek(&pool, lp_pool_limit(&pool)));
    lp_pool_free(&pool);
}
END_TEST

/* Two thirds of a large pool go: their memory too, but for a few chunks. */
START_TEST(empty_chunks_go_back)
{
    enum { CHUNKS = 48, COUNT = CHUNKS * LP_POOL_CHUNK };
    static uint32_t index[COUNT];
    open_pool();
    long before = map_live;
    for (uint32_t i = 0; i < COUNT; i++)
        index[i] = take(i);
    size_t full = lp_pool_bytes(&pool);
    for (uint32_t i = COUNT / 3; i < COUNT; i++)
        lp_pool_give(&pool, index[i]);
    ck_assert_uint_le(lp_pool_bytes(&pool), full / 3 + full / 8);
    ck_assert_uint_le(lp_pool_limit(&pool), CHUNKS / 2 * LP_POOL_CHUNK);
    for (uint32_t i = 0; i < COUNT / 3; i++)
        holds(at(index[i])->serial == i);
    for (uint32_t i = 0; i < COUNT / 3; i++)
        lp_pool_give(&pool, index[i]);
    ck_assert_uint_le(pool.mapped, 2);
    lp_pool_free(&pool);
    ck_assert_uint_eq(lp_pool_bytes(&pool), 0);
    ck_assert_int_eq(map_live, before);
}
END_TEST

/* A hollow chunk in the middle is found again, with its old indices. */
START_TEST(hollow_chunks_are_used_again)
{
    enum { CHUNKS = 8, COUNT = CHUNKS * LP_POOL_CHUNK };
    static uint32_t index[COUNT];
    open_pool();
    for (uint32_t i = 0; i < COUNT; i++)
        index[i] = take(i);
    for (uint32_t i = LP_POOL_CHUNK; i < 7 * LP_POOL_CHUNK; i++)
        lp_pool_give(&pool, index[i]);
    ck_assert_uint_le(pool.mapped, 4);
    ck_assert_ptr_null(lp_pool_peek(&pool, index[2 * LP_POOL_CHUNK]));
    for (uint32_t i = LP_POOL_CHUNK; i < 7 * LP_POOL_CHUNK; i++)
        index[i] = take(i);
    ck_assert_uint_eq(lp_pool_limit(&pool), COUNT);
    for (uint32_t i = 0; i < COUNT; i++)
        holds(at(index[i])->serial == i);
    lp_pool_free(&pool);
}
END_TEST

START_TEST(a_count_that_swings_costs_no_system_call)
{
    static uint32_t index[2 * LP_POOL_CHUNK];
    open_pool();
    for (uint32_t i = 0; i < LP_POOL_CHUNK; i++)
        take(i);
    index[0] = take(1);
    lp_pool_give(&pool, index[0]);
    long before = map_calls;
    for (int round = 0; round < 100; round++) {
        for (uint32_t i = 0; i < LP_POOL_CHUNK; i++)
            index[i] = take(i);
        for (uint32_t i = 0; i < LP_POOL_CHUNK; i++)
            lp_pool_give(&pool, index[i]);
    }
    ck_assert_int_eq(map_calls, before);
    lp_pool_free(&pool);
}
END_TEST

START_TEST(what_is_reserved_is_there)
{
    enum { COUNT = 3 * LP_POOL_CHUNK + 5 };
    static uint32_t index[4 * LP_POOL_CHUNK];
    open_pool();
    for (uint32_t i = 0; i < 4 * LP_POOL_CHUNK; i++)
        index[i] = take(i);
    ck_assert_int_eq(lp_pool_reserve(&pool, COUNT), 0);
    for (uint32_t i = 0; i < 4 * LP_POOL_CHUNK; i++)
        lp_pool_give(&pool, index[i]); /* Gives nothing back that is reserved. */
    ck_assert_uint_ge(lp_pool_left(&pool), COUNT);
    fail_after = 0;
    uint32_t taken = 0;
    while (taken < COUNT && lp_pool_take(&pool) != LP_NONE)
        taken++;
    fail_after = NO_FAILURE;
    ck_assert_uint_eq(taken, COUNT);
    lp_pool_free(&pool);
}
END_TEST

/* Memory ends at the n-th allocation, for every n: no record, nothing lost. */
START_TEST(survives_failing_memory)
{
    long before = map_live;
    for (long n = 0; n < 12; n++) {
        open_pool();
        fail_after = n;
        uint32_t taken = 0;
        while (taken < 6 * LP_POOL_CHUNK && lp_pool_take(&pool) != LP_NONE)
            taken++;
        bool reserved = lp_pool_reserve(&pool, 10 * LP_POOL_CHUNK) == 0;
        fail_after = NO_FAILURE;
        ck_assert(!reserved);
        ck_assert_uint_eq(lp_pool_count(&pool), taken);
        ck_assert_uint_ne(lp_pool_take(&pool), LP_NONE);
        lp_pool_free(&pool);
        ck_assert_int_eq(map_live, before);
    }
}
END_TEST

/* The system may refuse to unmap: the memory goes back all the same. */
START_TEST(survives_a_refused_unmap)
{
    enum { COUNT = 8 * LP_POOL_CHUNK };
    static uint32_t index[COUNT];
    open_pool();
    for (uint32_t i = 0; i < COUNT; i++)
        index[i] = take(i);
    const char *records = (const char *)at(index[COUNT - 1]);
    unmap_refused = true;
    for (uint32_t i = 0; i < COUNT; i++)
        lp_pool_give(&pool, index[i]);
    unmap_refused = false;
    ck_assert_uint_le(pool.mapped, 2);
    for (size_t i = 0; i < sizeof(record); i++)
        ck_assert_int_eq(records[i], 0); /* A new page. */
    lp_pool_free(&pool);
}
END_TEST

/* Any order of takes and gives: indices are unique, contents stay. */
START_TEST(random_use)
{
    enum { MOST = 12 * LP_POOL_CHUNK };
    static uint32_t index[MOST];
    static uint64_t serial[MOST];
    rng r = rng_open("pool");
    uint32_t count = 0, target = 0;
    open_pool();
    for (long i = 0, ops = tier(200000, 2000000, 20000000); i < ops; i++) {
        if (i % 20000 == 0)
            target = (uint32_t)rng_range(&r, 0, MOST);
        bool grow = count < target ? rng_range(&r, 0, 9) < 8 : rng_range(&r, 0, 9) < 2;
        if (grow && count < MOST) {
            serial[count] = (uint64_t)i;
            index[count++] = take((uint64_t)i);
        } else if (count > 0) {
            uint32_t at_random = (uint32_t)rng_range(&r, 0, count - 1);
            holds(at(index[at_random])->serial == serial[at_random]);
            lp_pool_give(&pool, index[at_random]);
            index[at_random] = index[--count];
            serial[at_random] = serial[count];
        }
    }
    uint32_t seen = 0;
    for (uint32_t i = 0; i < lp_pool_limit(&pool); i++)
        seen += lp_pool_peek(&pool, i) != NULL;
    ck_assert_uint_eq(seen, count);
    ck_assert_uint_eq(lp_pool_count(&pool), count);
    lp_pool_free(&pool);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("pool");
    TCase *tc = tcase_create("pool");
    tcase_add_test(tc, paged_entries_stay);
    tcase_add_test(tc, paged_has_an_end);
    tcase_add_test(tc, a_new_record_has_a_zero_node_and_is_aligned);
    tcase_add_test(tc, records_never_move);
    tcase_add_test(tc, peek_sees_only_what_is_in_use);
    tcase_add_test(tc, empty_chunks_go_back);
    tcase_add_test(tc, hollow_chunks_are_used_again);
    tcase_add_test(tc, a_count_that_swings_costs_no_system_call);
    tcase_add_test(tc, what_is_reserved_is_there);
    tcase_add_test(tc, survives_failing_memory);
    tcase_add_test(tc, survives_a_refused_unmap);
    tcase_add_test(tc, random_use);
    suite_add_tcase(suite, tc);
    return run_suite(suite);
}
