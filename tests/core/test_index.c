/* test_index.c - an id map that never stops to copy itself. */
/* link: -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=mmap,--wrap=munmap */
/* valgrind */
/* tiers: quick full soak */
#include <check.h>
#include <stdio.h>
#include <string.h>

#include "core/fail_alloc.h"
#include "core/holds.h"
#include "support/support.h"
#include "timer/hash.h"
#include "timer/index.h"

enum { MOVED_MOST = 8192 }; /* entries that one call may move */

static lp_index x;
static uint64_t moved, most_moved;

/* Record i has the id i. */
static uint64_t hash_of(uint32_t id)
{
    return lp_hash(&id, sizeof id, 99);
}

static bool same(const void *key, uint32_t record)
{
    return record == *(const uint32_t *)key;
}

static uint32_t find_under(uint64_t hash, uint32_t id)
{
    return lp_index_find(&x, hash, same, &id);
}

static bool found(uint32_t id)
{
    return find_under(hash_of(id), id) == id;
}

static void watch(void)
{
    uint64_t now = lp_index_moved(&x);
    if (now - moved > most_moved)
        most_moved = now - moved;
    moved = now;
}

static void add(uint32_t id)
{
    int rc = lp_index_add(&x, hash_of(id), id);
    holds(rc == 0);
    watch();
}

static void drop(uint32_t id)
{
    lp_index_remove(&x, hash_of(id), id);
    watch();
}

static void open_index(void)
{
    lp_index_init(&x);
    moved = most_moved = 0;
}

START_TEST(an_empty_index_finds_nothing)
{
    open_index();
    ck_assert(!found(1));
    lp_index_prefetch(&x, hash_of(1));
    ck_assert_uint_eq(lp_index_bytes(&x), 0);
    add(1);
    drop(1);
    ck_assert(!found(1));
    ck_assert_uint_eq(lp_index_count(&x), 0);
    lp_index_free(&x);
}
END_TEST

START_TEST(finds_what_was_added_and_nothing_else)
{
    enum { COUNT = 20000 };
    open_index();
    for (uint32_t id = 0; id < COUNT; id++) {
        holds(!found(id));
        add(id);
        holds(found(id));
    }
    for (uint32_t id = 0; id < COUNT; id++)
        holds(found(id) && !found(id + COUNT));
    ck_assert_uint_eq(lp_index_count(&x), COUNT);
    lp_index_free(&x);
}
END_TEST

/* Records with one and the same hash are told apart by the match alone. */
START_TEST(equal_hashes)
{
    const uint64_t hash = UINT64_C(0x12345678abcdef01);
    open_index();
    for (uint32_t id = 0; id < 40; id++)
        ck_assert_int_eq(lp_index_add(&x, hash, id), 0);
    lp_index_remove(&x, hash, 7);
    lp_index_remove(&x, hash, 39);
    for (uint32_t id = 0; id < 40; id++)
        ck_assert_uint_eq(find_under(hash, id), id == 7 || id == 39 ? LP_NONE : id);
    lp_index_free(&x);
}
END_TEST

/* Every tag wants the last place: the search goes on at the front. */
START_TEST(around_the_end_of_a_segment)
{
    open_index();
    for (uint32_t id = 0; id < 30; id++)
        ck_assert_int_eq(lp_index_add(&x, UINT64_MAX - ((uint64_t)id << 32), id), 0);
    for (uint32_t id = 0; id < 30; id += 2)
        lp_index_remove(&x, UINT64_MAX - ((uint64_t)id << 32), id);
    for (uint32_t id = 0; id < 30; id++)
        ck_assert_uint_eq(find_under(UINT64_MAX - ((uint64_t)id << 32), id), id % 2 ? id : LP_NONE);
    lp_index_free(&x);
}
END_TEST

START_TEST(replace_names_the_new_record)
{
    enum { COUNT = 5000, NEW = 1000000 };
    open_index();
    for (uint32_t id = 0; id < COUNT; id++)
        add(id);
    for (uint32_t id = 0; id < COUNT; id += 3)
        lp_index_replace(&x, hash_of(id), id, id + NEW);
    for (uint32_t id = 0; id < COUNT; id++) {
        uint32_t record = id % 3 == 0 ? id + NEW : id;
        holds(find_under(hash_of(id), record) == record);
        holds(id % 3 != 0 || !found(id));
        lp_index_remove(&x, hash_of(id), record);
    }
    ck_assert_uint_eq(lp_index_count(&x), 0);
    lp_index_free(&x);
}
END_TEST

/* All the way up and down: no call moves many, and the memory follows. */
START_TEST(grows_and_shrinks_in_bounded_steps)
{
    uint32_t count = (uint32_t)tier(150000, 1000000, 10000000);
    size_t worst = 0;
    open_index();
    for (uint32_t id = 0; id < count; id++) {
        add(id);
        if (id >= 20000 && lp_index_bytes(&x) * 100 / (id + 1) > worst)
            worst = lp_index_bytes(&x) * 100 / (id + 1);
    }
    ck_assert_uint_le(most_moved, MOVED_MOST);
    ck_assert_uint_le(worst, 1900); /* bytes for 100 entries */
    for (uint32_t id = 0; id < count; id += 7)
        holds(found(id));
    most_moved = 0;
    for (uint32_t id = 0; id < count; id++) {
        drop(id);
        if (id % (count / 8) == 0)
            ck_assert(!found(id) && found(count - 1));
    }
    ck_assert_uint_le(most_moved, MOVED_MOST);
    ck_assert_uint_le(lp_index_bytes(&x), 100000);
    ck_assert_uint_eq(lp_index_count(&x), 0);
    lp_index_free(&x);
}
END_TEST

/* A count that swings around any size does not make the table swing. */
START_TEST(does_not_flap)
{
    open_index();
    for (uint32_t count = 0; count < 60000; count += 1000) {
        for (uint32_t id = count; id < count + 1000; id++)
            add(id);
        uint64_t before = lp_index_moved(&x);
        for (int round = 0; round < 10; round++) {
            for (uint32_t id = count; id < count + 1000; id++)
                drop(id);
            for (uint32_t id = count; id < count + 1000; id++)
                add(id);
        }
        /* At most each segment once, and a few entries for each removal. */
        holds(lp_index_moved(&x) - before < count + 16384 + UINT64_C(10) * 1000 * 8);
    }
    lp_index_free(&x);
}
END_TEST

/* After a time without memory: each try makes one of the splits that are due. */
static void add_later(uint32_t id)
{
    int rc = LAPSE_ENOMEM;
    for (uint32_t tries = 0; rc != 0 && tries <= x.segment_count; tries++)
        rc = lp_index_add(&x, hash_of(id), id);
    holds(rc == 0);
}

/* Memory ends at the n-th allocation: what is in stays in, and goes out without any. */
START_TEST(survives_failing_memory)
{
    enum { MOST = 60000 };
    long before = map_live;
    for (long n = 0; n < 16; n++) {
        open_index();
        fail_after = n;
        uint32_t count = 0;
        int rc = 0;
        while (count < MOST && rc == 0) {
            rc = lp_index_add(&x, hash_of(count), count);
            count += rc == 0;
        }
        bool all = true;
        for (uint32_t id = 0; id < count; id++)
            all = all && found(id);
        bool more = count < MOST && found(count);
        fail_after = NO_FAILURE;
        ck_assert(all && !more);
        ck_assert_int_eq(rc, LAPSE_ENOMEM);
        ck_assert_uint_eq(lp_index_count(&x), count);
        for (uint32_t id = count; id < count + 5000; id++)
            add_later(id);
        fail_after = 0;
        for (uint32_t id = 0; id < count; id++)
            lp_index_remove(&x, hash_of(id), id);
        fail_after = NO_FAILURE;
        for (uint32_t id = 0; id < count + 5000; id += 11)
            holds(found(id) == (id >= count));
        ck_assert_uint_eq(lp_index_count(&x), 5000);
        lp_index_free(&x);
        ck_assert_int_eq(map_live, before);
    }
}
END_TEST

/* Without memory to split, a segment is full some day: an error, not an endless search. */
START_TEST(a_full_segment_is_an_error)
{
    open_index();
    uint32_t count = 0;
    while (lp_index_count(&x) < 2000)
        add(count++);
    add(count++);
    while (x.room < LP_SEGMENT_MAX)
        add(count++);
    fail_after = 0;
    int rc = 0;
    while (rc == 0) {
        rc = lp_index_add(&x, hash_of(count), count);
        count += rc == 0;
    }
    bool missing = found(count + 1);
    fail_after = NO_FAILURE;
    ck_assert_int_eq(rc, LAPSE_ENOMEM);
    ck_assert(!missing);
    ck_assert_uint_gt(count, LP_SEGMENT_MAX * 9 / 10);
    ck_assert_uint_lt(count, LP_SEGMENT_MAX);
    for (uint32_t id = count; id < 40000; id++)
        add(id); /* With memory it catches up. */
    for (uint32_t id = 0; id < 40000; id++)
        holds(found(id));
    lp_index_free(&x);
}
END_TEST

/* Beside an array of what is in. */
START_TEST(random_use)
{
    enum { MOST = 40000 };
    static bool in[MOST];
    rng r = rng_open("index");
    open_index();
    size_t count = 0;
    int64_t lean = 5;
    for (long i = 0, ops = tier(300000, 3000000, 30000000); i < ops; i++) {
        if (i % 30000 == 0)
            lean = rng_range(&r, 1, 9);
        uint32_t id = (uint32_t)rng_range(&r, 0, MOST - 1);
        holds(found(id) == in[id]);
        if (!in[id] && rng_range(&r, 0, 9) < lean) {
            add(id);
            in[id] = true;
            count++;
        } else if (in[id] && rng_range(&r, 0, 9) >= lean) {
            drop(id);
            in[id] = false;
            count--;
        }
    }
    ck_assert_uint_eq(lp_index_count(&x), count);
    for (uint32_t id = 0; id < MOST; id++)
        holds(found(id) == in[id]);
    lp_index_free(&x);
}
END_TEST

/* -- The hash -- */

START_TEST(hash_depends_on_every_byte_the_length_and_the_seed)
{
    unsigned char bytes[80] = {0};
    for (size_t length = 0; length < sizeof bytes; length++) {
        uint64_t plain = lp_hash(bytes, length, 1);
        ck_assert(plain == lp_hash(bytes, length, 1));
        ck_assert(plain != lp_hash(bytes, length, 2));
        ck_assert(plain != lp_hash(bytes, length + 1, 1));
        for (size_t i = 0; i < length; i++) {
            for (unsigned bit = 0; bit < 8; bit++) {
                bytes[i] = (unsigned char)(1u << bit);
                holds(plain != lp_hash(bytes, length, 1));
            }
            bytes[i] = 0;
        }
    }
}
END_TEST

/* Ids that count up, as shops give them, fill 4096 places like chance would. */
START_TEST(hash_spreads_ids_that_count_up)
{
    enum { PLACES = 4096, COUNT = PLACES * 16 };
    for (int shift = 0; shift <= 52; shift += 4) {
        static unsigned hits[PLACES];
        memset(hits, 0, sizeof hits);
        for (unsigned i = 0; i < COUNT; i++) {
            char id[32];
            int length = snprintf(id, sizeof id, "ORDER-2026-%09u", i);
            hits[lp_hash(id, (size_t)length, 5) >> shift & (PLACES - 1)]++;
        }
        double chi = 0;
        for (unsigned i = 0; i < PLACES; i++)
            chi += ((double)hits[i] - 16) * ((double)hits[i] - 16) / 16;
        /* 4095 degrees of freedom: mean 4095, deviation 90. */
        ck_assert(chi > 4095 - 6 * 90 && chi < 4095 + 6 * 90);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("index");
    TCase *tc = tcase_create("index");
    tcase_add_test(tc, an_empty_index_finds_nothing);
    tcase_add_test(tc, finds_what_was_added_and_nothing_else);
    tcase_add_test(tc, equal_hashes);
    tcase_add_test(tc, around_the_end_of_a_segment);
    tcase_add_test(tc, replace_names_the_new_record);
    tcase_add_test(tc, grows_and_shrinks_in_bounded_steps);
    tcase_add_test(tc, does_not_flap);
    tcase_add_test(tc, survives_failing_memory);
    tcase_add_test(tc, a_full_segment_is_an_error);
    tcase_add_test(tc, random_use);
    suite_add_tcase(suite, tc);
    tc = tcase_create("hash");
    tcase_add_test(tc, hash_depends_on_every_byte_the_length_and_the_seed);
    tcase_add_test(tc, hash_spreads_ids_that_count_up);
    suite_add_tcase(suite, tc);
    return run_suite(suite);
}
