/* test_wheel.c - a wheel whose visible behaviour is that of a sorted list.
 *
 * The names that begin with a P are cases that other timer libraries met. */
/* link: -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=mmap,--wrap=munmap */
/* valgrind */
/* tiers: quick full soak */
#include "timer/wheel.c" /* For the state that users cannot reach. */

#include "core/fail_alloc.h"
#include "core/records.h"
#include "support/support.h"

enum { MOVED_MOST = 8192 }; /* entries that one call may move */

static fixture f;

static wheel *the_wheel(void)
{
    return (wheel *)f.timer;
}

/* Whether every live entry stands where the rule says, and the bits tell the truth. */
static bool well_formed(void)
{
    const wheel *w = the_wheel();
    size_t alive = 0, blocks = 0;
    for (unsigned on = 0; on < w->level_count; on++) {
        for (unsigned number = 0; number < slots_on(w, on); number++) {
            const slot *s = &w->levels[on].slots[number];
            size_t count = 0;
            if (!occupied(&w->levels[on], number))
                continue;
            for (uint32_t at = s->head; at != LP_NONE; at = block_at(w, at)->head.chain.next) {
                const block *b = block_at(w, at);
                blocks++;
                for (unsigned i = b->head.chain.begin; i < b->head.chain.end; i++, count++) {
                    const lp_node *node = live_node(w, &b->entries[i]);
                    if (!node)
                        continue;
                    alive++;
                    uint64_t tick = tick_of(w, node);
                    bool open = on == w->open && number == digit(w, w->cur, on);
                    if (!open && (digit(w, tick, on) != number || !in_reach(w, tick, on + 1)))
                        return false;
                }
            }
            if (count != s->count || count == 0)
                return false;
        }
    }
    return alive == w->base.count && blocks == lp_pool_count(&w->blocks);
}

/* -- Edges ------------------------------------------------------------------------- */

/* From `offset`, all delays around `span`: each is handed out at its tick, not before. */
static void edges_from(uint64_t offset, uint64_t span)
{
    const uint64_t delays[] = {2 * span + 1, span - 1, 2 * span, span, 2 * span - 1, span + 1};
    const uint64_t sorted[] = {span - 1, span, span + 1, 2 * span - 1, 2 * span, 2 * span + 1};
    uint64_t serial[6], first = f.serial + 1, got;
    size_t count = expire_some(&f, (lapse_ns)offset, &got, 1); /* Only moves on. */
    for (unsigned i = 0; i < 6; i++)
        insert(&f, (lapse_ns)(offset + delays[i]));
    for (unsigned i = 0; i < 6; i++) {
        lapse_ns due = (lapse_ns)(offset + sorted[i]);
        holds(lp_timer_next(f.timer) == due);
        count += expire_all(&f, due - 1, &got, 1);
        holds(count == i);
        count += expire_all(&f, due, &serial[i], 1);
        holds(count == i + 1);
        uint64_t delay = delays[serial[i] - first];
        holds(delay == sorted[i]);
    }
}

/* The same one tick at a time, as far as the list goes on. */
static void edges_by_tick(uint64_t offset, uint64_t span)
{
    const uint64_t delays[] = {2 * span + 1, span - 1, 2 * span, span, 2 * span - 1, span + 1};
    uint64_t serial, first = f.serial + 1;
    holds(expire_all(&f, (lapse_ns)offset, &serial, 1) == 0);
    for (unsigned i = 0; i < 6; i++)
        insert(&f, (lapse_ns)(offset + delays[i]));
    for (uint64_t passed = 0; passed <= 2 * span + 1; passed++) {
        size_t count = expire_all(&f, (lapse_ns)(offset + passed), &serial, 1);
        bool due = false;
        for (unsigned i = 0; i < 6; i++)
            due = due || delays[i] == passed;
        holds(count == (due ? 1 : 0));
        holds(count == 0 || delays[serial - first] == passed);
    }
}

START_TEST(P_03_every_edge_of_the_two_lowest_levels)
{
    for (uint64_t span = 64; span <= 4096; span *= 64) {
        for (uint64_t offset = 0; offset < span; offset++) {
            /* Beyond a far order, so that the wheel is never empty. */
            fixture_open(&f, 64, 1, 0);
            insert(&f, INT64_C(1) << 50);
            if (span == 64 || offset % 256 == 255)
                edges_by_tick(offset, span);
            else
                edges_from(offset, span);
            fixture_close(&f);
        }
    }
}
END_TEST

START_TEST(P_03_edges_of_all_levels_above)
{
    rng r = rng_open("wheel");
    for (unsigned bits = 6; bits <= 12; bits += 3) {
        for (unsigned on = 2; on * bits < 61; on++) {
            uint64_t span = UINT64_C(1) << (on * bits);
            for (int i = 0; i < 20; i++) {
                fixture_open(&f, 1u << bits, 1, 0);
                edges_from((uint64_t)rng_range(&r, 0, (int64_t)span - 1), span);
                fixture_close(&f);
            }
        }
    }
}
END_TEST

/* -- Cases ------------------------------------------------------------------------- */

START_TEST(P_01_a_huge_delay_is_far_away)
{
    const lapse_ns far[] = {
        INT64_C(1) << 31, (INT64_C(1) << 31) - 1, INT64_C(1) << 32, (INT64_C(1) << 32) - 1,
        INT64_C(1) << 53, INT64_C(1) << 62,       INT64_MAX - 1,    INT64_MAX};
    uint32_t index[8];
    uint64_t serial = 0;
    for (lapse_ns tick = 1; tick <= 1000000; tick *= 1000) {
        fixture_open(&f, 64, tick, 0);
        for (int i = 0; i < 8; i++)
            index[i] = insert(&f, far[i]);
        insert(&f, 50);
        ck_assert_uint_eq(expire_all(&f, 1000000, &serial, 1), 1);
        ck_assert_uint_eq(serial, 9);
        ck_assert_uint_eq(lp_timer_count(f.timer), 8);
        for (int i = 0; i < 8; i++)
            drop(&f, index[i]);
        ck_assert_int_eq(lp_timer_next(f.timer), LP_NEVER);
        fixture_close(&f);
    }
}
END_TEST

START_TEST(the_end_of_time_is_not_never)
{
    uint64_t serials[3];
    for (lapse_ns tick = 1; tick <= 1000000; tick *= 1000) {
        fixture_open(&f, 256, tick, 0);
        insert(&f, INT64_MAX - 1);
        insert(&f, INT64_MAX);
        ck_assert_int_eq(lp_timer_next(f.timer), INT64_MAX - 1);
        ck_assert_uint_eq(expire_all(&f, INT64_MAX - 2, serials, 3), 0);
        ck_assert_int_eq(lp_timer_next(f.timer), INT64_MAX - 1);
        insert(&f, 5); /* Past: at once. */
        ck_assert_uint_eq(expire_all(&f, INT64_MAX, serials, 3), 3);
        ck_assert_int_eq(lp_timer_next(f.timer), LP_NEVER);
        fixture_close(&f);
    }
}
END_TEST

START_TEST(P_02_a_delay_does_not_grow_with_the_age_of_the_wheel)
{
    enum { TICK = 100, DELAY = 10000, STEP = 37 };
    uint64_t serial;
    fixture_open(&f, 512, TICK, 0);
    lapse_ns now = 0, started = 0;
    insert(&f, DELAY);
    for (int round = 0; round < 1000; now += STEP) {
        if (expire_all(&f, now, &serial, 1) == 0)
            continue;
        ck_assert_int_ge(now - started, DELAY);
        ck_assert_int_le(now - started, DELAY + TICK + STEP);
        started = now;
        insert(&f, now + DELAY);
        round++;
    }
    fixture_close(&f);
}
END_TEST

START_TEST(P_04_polled_late_everything_due_comes_at_once)
{
    uint64_t serials[99];
    fixture_open(&f, 64, 10, 0);
    for (lapse_ns due = 995; due >= 15; due -= 10)
        insert(&f, due);
    ck_assert_uint_eq(expire_some(&f, 1000, serials, 512), 99);
    for (int i = 0; i < 99; i++)
        ck_assert_uint_eq(serials[i], (uint64_t)(99 - i));
    fixture_close(&f);
}
END_TEST

START_TEST(P_05_inserting_at_the_current_tick)
{
    uint64_t serials[8];
    fixture_open(&f, 64, 10, 0);
    uint32_t pending = insert(&f, 9000);
    insert(&f, 50);
    ck_assert_uint_eq(expire_all(&f, 50, serials, 8), 1);
    insert(&f, 50);                    /* 3: delay 0 */
    insert(&f, 51);                    /* 4: delay 1 */
    insert(&f, 59);                    /* 5: one unit before the tick */
    lp_timer_remove(f.timer, pending); /* 1: to exactly now */
    record_at(&f, pending)->node.due = 50;
    ck_assert_int_eq(lp_timer_insert(f.timer, pending), 0);
    ck_assert_int_eq(lp_timer_next(f.timer), 50);
    ck_assert_uint_eq(expire_all(&f, 50, serials, 8), 2);
    ck_assert(serials[0] == 3 && serials[1] == 1);
    ck_assert_uint_eq(expire_all(&f, 59, serials, 8), 0);
    ck_assert_uint_eq(expire_all(&f, 60, serials, 8), 2);
    ck_assert(serials[0] == 4 && serials[1] == 5);
    fixture_close(&f);
}
END_TEST

/* The sooner one was placed long ago and stands on a coarser level than the later one. */
START_TEST(P_06_a_later_one_on_a_finer_level_hides_nothing)
{
    uint64_t serials[2];
    rng r = rng_open("wheel");
    for (int round = 0; round < 2000; round++) {
        fixture_open(&f, 64, 1, 0);
        lapse_ns sooner = rng_range(&r, 64, 1 << 20);
        lapse_ns now = sooner - rng_range(&r, 1, 64);
        insert(&f, sooner);
        ck_assert_uint_eq(expire_all(&f, now, serials, 2), 0);
        insert(&f, sooner + rng_range(&r, 0, 70));
        holds(lp_timer_next(f.timer) == sooner);
        holds(expire_all(&f, sooner + 70, serials, 2) == 2 && serials[0] == 1);
        fixture_close(&f);
    }
}
END_TEST

START_TEST(P_07_works_after_any_uptime)
{
    const lapse_ns tick = 1000000;
    rng r = rng_open("wheel");
    for (int power = 31; power <= 41; power++) {
        lapse_ns start = ((INT64_C(1) << power) - 500) * tick;
        size_t kept = 0;
        fixture_open(&f, 64, tick, start);
        insert(&f, start + LAPSE_DAYS(3000));
        ck_assert_uint_eq(expire_all(&f, start, NULL, 0), 0);
        for (int i = 0; i < 1000; i++) {
            uint32_t index = insert(&f, start + rng_range(&r, 1, 900) * tick);
            if (i % 3 == 0)
                drop(&f, index);
            else
                kept++;
        }
        size_t count = 0;
        for (lapse_ns now = start; now <= start + 2000 * tick; now += tick) {
            ck_assert_int_ge(lp_timer_next(f.timer), now);
            count += expire_all(&f, now, NULL, 0);
        }
        ck_assert_uint_eq(count, kept);
        fixture_close(&f);
    }
}
END_TEST

/* What a jump costs follows from the entries alone: each moves at most once a level. */
START_TEST(P_08_a_jump_costs_nothing_for_empty_slots)
{
    rng r = rng_open("wheel");
    static uint64_t serials[1000];
    static lapse_ns due[1001];
    fixture_open(&f, 64, LAPSE_MS(10), 0);
    for (int i = 1; i <= 1000; i++)
        insert(&f, due[i] = rng_range(&r, 0, LAPSE_DAYS(30)));
    ck_assert_uint_eq(expire_all(&f, LAPSE_DAYS(5 * 365), serials, 1000), 1000);
    for (int i = 1; i < 1000; i++)
        holds((due[serials[i - 1]] + LAPSE_MS(10) - 1) / LAPSE_MS(10) <=
              (due[serials[i]] + LAPSE_MS(10) - 1) / LAPSE_MS(10));
    ck_assert_uint_le(lp_timer_moved(f.timer), 1000 * the_wheel()->level_count);
    fixture_close(&f);
}
END_TEST

/* -- Order ------------------------------------------------------------------------- */

/* One tick, inserted from afar, from nearby, and while it is handed out. */
START_TEST(ties_come_in_order_of_insertion)
{
    uint64_t serials[64], count = 0;
    const lapse_ns due = 70000;
    fixture_open(&f, 64, 1, 0);
    for (lapse_ns now = 0; now < due; now += 997) {
        ck_assert_uint_eq(expire_all(&f, now, serials, 1), 0);
        for (int i = 0; i < 5; i++)
            insert(&f, due);
    }
    uint64_t last = f.serial;
    while (count < last + 100) {
        size_t got = expire_some(&f, due, serials, 7);
        ck_assert_uint_gt(got, 0);
        for (size_t i = 0; i < got; i++)
            ck_assert_uint_eq(serials[i], ++count);
        if (f.serial < last + 100)
            insert(&f, due - (lapse_ns)(f.serial % 3)); /* Past ones queue up as well. */
        for (int i = 0; f.serial < last + 100 && i < 3; i++)
            insert(&f, due);
    }
    ck_assert_uint_eq(lp_timer_count(f.timer), 0);
    fixture_close(&f);
}
END_TEST

/* A slot with more entries than one call moves: what comes in meanwhile waits its turn. */
START_TEST(ties_keep_their_order_across_an_interrupted_cascade)
{
    enum { COUNT = 20000, TICKS = 50 };
    static uint64_t last_of[TICKS + 1];
    uint64_t serials[16];
    static lapse_ns due[2 * COUNT];
    fixture_open(&f, 64, 1, 0);
    for (int i = 0; i < COUNT; i++) {
        due[f.serial + 1] = 6400 + i % TICKS;
        insert(&f, due[f.serial + 1]);
    }
    size_t idle = 0, total = 0;
    while (lp_timer_count(f.timer) > 0) {
        size_t got = expire_some(&f, 6450, serials, 16);
        idle += got == 0;
        ck_assert(got > 0 || lp_timer_next(f.timer) <= 6450);
        for (size_t i = 0; i < got; i++, total++) {
            lapse_ns at = due[serials[i]] - 6400;
            holds(serials[i] > last_of[at]);
            last_of[at] = serials[i];
        }
        holds(total % 512 != 0 || well_formed());
        if (f.serial < COUNT + 500) { /* Between the steps of the cascade, too. */
            due[f.serial + 1] = 6400 + (lapse_ns)(f.serial % TICKS);
            if (got == 0 || due[f.serial + 1] > due[serials[got - 1]])
                insert(&f, due[f.serial + 1]);
            else
                f.serial++; /* Nothing is inserted behind the current tick here. */
        }
    }
    ck_assert_uint_ge(idle, 2);
    ck_assert_uint_le(f.most_moved, MOVED_MOST);
    fixture_close(&f);
}
END_TEST

START_TEST(a_removed_one_leaves_the_order_of_the_others)
{
    enum { COUNT = 5000 };
    static uint32_t index[COUNT];
    static uint64_t serials[COUNT];
    fixture_open(&f, 64, 1, 0);
    for (int i = 0; i < COUNT; i++)
        index[i] = insert(&f, 100000);
    for (int i = 0; i < COUNT; i++) {
        if (i % 7 != 3)
            drop(&f, index[i]);
    }
    ck_assert(well_formed());
    size_t left = lp_timer_count(f.timer);
    ck_assert_uint_eq(expire_all(&f, 100000, serials, COUNT), left);
    for (size_t i = 0; i < left; i++)
        holds(serials[i] == 7 * i + 4);
    fixture_close(&f);
}
END_TEST

/* -- Stale entries ------------------------------------------------------------------ */

START_TEST(a_stamp_that_comes_round_fires_nothing_early)
{
    uint64_t serial;
    fixture_open(&f, 64, 1, 0);
    f.pool.stamp = UINT32_MAX - 1;
    uint32_t index = insert(&f, 100); /* stamp UINT32_MAX */
    insert(&f, 101);
    insert(&f, 102);
    lp_timer_remove(f.timer, index); /* Its entry stays. */
    f.pool.stamp = UINT32_MAX - 1;
    record_at(&f, index)->node.due = 5000;
    ck_assert_int_eq(lp_timer_insert(f.timer, index), 0); /* The same record and stamp. */
    ck_assert_uint_eq(expire_all(&f, 4999, &serial, 1), 2);
    ck_assert_uint_eq(lp_timer_count(f.timer), 1);
    ck_assert_uint_eq(expire_all(&f, 5000, &serial, 1), 1);
    ck_assert_uint_eq(serial, 1);
    fixture_close(&f);
}
END_TEST

/* The same where the entry is dropped by a cascade that looks at the record's due time. */
START_TEST(a_stamp_that_comes_round_is_dropped_by_a_cascade)
{
    const lapse_ns far = INT64_C(1) << 40;
    uint64_t serial;
    fixture_open(&f, 64, 1, 0);
    uint32_t index = insert(&f, far);
    insert(&f, far + 1);
    insert(&f, far + 2);
    uint32_t mark = record_at(&f, index)->node.mark;
    lp_timer_remove(f.timer, index);
    f.pool.stamp = mark - 1;
    record_at(&f, index)->node.due = 4 * far;
    ck_assert_int_eq(lp_timer_insert(f.timer, index), 0);
    ck_assert_uint_eq(expire_all(&f, 4 * far - 1, NULL, 0), 2);
    ck_assert_uint_eq(lp_timer_count(f.timer), 1);
    ck_assert_uint_eq(expire_all(&f, 4 * far, &serial, 1), 1);
    ck_assert_uint_eq(serial, 1);
    fixture_close(&f);
}
END_TEST

/* What one wheel left behind stays stale when the record goes into another one. */
START_TEST(two_wheels_over_one_pool)
{
    lp_timer_config config = {.kind = LP_WHEEL, .tick = 1, .slots = 64, .pool = &f.pool};
    lp_timer *other;
    uint32_t index[10], out;
    fixture_open(&f, 64, 1, 0);
    ck_assert_int_eq(lp_timer_open(&config, &other), 0);
    for (int i = 0; i < 10; i++)
        index[i] = insert(&f, 100 + i);
    for (int i = 0; i < 10; i += 3) {
        lp_timer_remove(f.timer, index[i]);
        record_at(&f, index[i])->node.due = 5;
        ck_assert_int_eq(lp_timer_insert(other, index[i]), 0);
    }
    ck_assert_int_eq(lp_timer_next(f.timer), 101);
    ck_assert_uint_eq(expire_all(&f, 1000, NULL, 0), 6);
    for (int i = 0; i < 10; i += 3) {
        ck_assert_uint_eq(lp_timer_expire(other, 1000, &out, 1), 1);
        ck_assert_uint_eq(out, index[i]);
    }
    lp_timer_close(other);
    fixture_close(&f);
}
END_TEST

START_TEST(a_stamp_is_never_0)
{
    fixture_open(&f, 64, 1, 0);
    f.pool.stamp = UINT32_MAX - 2;
    for (int i = 0; i < 5; i++) {
        uint32_t index = insert(&f, 1000);
        ck_assert_uint_ne(record_at(&f, index)->node.mark, 0);
        drop(&f, index);
    }
    fixture_close(&f);
}
END_TEST

/* Entries may outlive their record, and the memory of its chunk. */
START_TEST(stale_entries_of_records_whose_memory_is_gone)
{
    enum { COUNT = 20 * LP_POOL_CHUNK };
    static uint32_t index[COUNT];
    fixture_open(&f, 64, 1, 0);
    for (int i = 0; i < COUNT; i++)
        index[i] = insert(&f, 10000 + i % 100);
    for (int i = COUNT - 1; i >= COUNT * 5 / 8; i--)
        drop(&f, index[i]);
    ck_assert_uint_lt(f.pool.mapped, 16);
    ck_assert(well_formed());
    ck_assert_int_eq(lp_timer_next(f.timer), 10000);
    ck_assert_uint_eq(expire_all(&f, 20000, NULL, 0), COUNT * 5 / 8);
    ck_assert_uint_eq(lp_pool_count(&the_wheel()->blocks), 0);
    fixture_close(&f);
}
END_TEST

START_TEST(cancelled_orders_leave_no_memory_behind)
{
    enum { COUNT = 100000 };
    static uint32_t index[COUNT];
    rng r = rng_open("wheel");
    fixture_open(&f, 64, 1, 0);
    for (int i = 0; i < COUNT; i++)
        index[i] = insert(&f, rng_range(&r, 1, 3600000));
    size_t full = lp_timer_bytes(f.timer);
    ck_assert_uint_le(full, COUNT * 14 + 100000);
    for (int i = COUNT - 1; i > 0; i--) {
        int64_t other = rng_range(&r, 0, i);
        uint32_t swapped = index[i];
        index[i] = index[other];
        index[other] = swapped;
    }
    for (int i = 0; i < COUNT * 9 / 10; i++)
        drop(&f, index[i]);
    /* At most as many stale entries as live ones, in blocks at least half full. */
    ck_assert_uint_le(lp_pool_count(&the_wheel()->blocks), COUNT / 10 * 4 / BLOCK_ENTRIES + 500);
    for (int i = COUNT * 9 / 10; i < COUNT; i++)
        drop(&f, index[i]);
    ck_assert_uint_le(lp_pool_count(&the_wheel()->blocks), 200);
    ck_assert_uint_le(f.most_moved, MOVED_MOST);
    ck_assert_int_eq(lp_timer_next(f.timer), LP_NEVER);
    fixture_close(&f);
}
END_TEST

START_TEST(next_is_exact_after_the_earliest_was_removed)
{
    enum { COUNT = CALL_ENTRIES };
    static uint32_t index[COUNT];
    fixture_open(&f, 64, 1, 0);
    for (int i = 0; i < COUNT; i++)
        index[i] = insert(&f, 4096 * 64 + i);
    for (int i = 0; i < COUNT; i++) {
        holds(lp_timer_next(f.timer) == 4096 * 64 + i);
        drop(&f, index[i]);
    }
    ck_assert_int_eq(lp_timer_next(f.timer), LP_NEVER);
    fixture_close(&f);
}
END_TEST

START_TEST(next_may_be_early_in_a_large_slot_never_late)
{
    enum { COUNT = 3 * CALL_ENTRIES };
    static uint32_t index[COUNT];
    fixture_open(&f, 64, 1, 0);
    for (int i = 0; i < COUNT; i++)
        index[i] = insert(&f, (4096 * 64) + i);
    drop(&f, index[0]);
    ck_assert_int_le(lp_timer_next(f.timer), (4096 * 64) + 1);
    for (int i = 1; i < COUNT; i++) {
        lapse_ns next = lp_timer_next(f.timer);
        holds(next <= 4096 * 64 + i && next >= 4096 * 64);
        drop(&f, index[i]);
    }
    fixture_close(&f);
}
END_TEST

/* -- Bounds and memory --------------------------------------------------------------- */

/* Everything in few slots, as one delay for all makes it. */
START_TEST(no_call_moves_many)
{
    uint32_t count = (uint32_t)tier(60000, 1000000, 5000000);
    uint64_t serials[64];
    rng r = rng_open("wheel");
    fixture_open(&f, 64, 1, 0);
    uint32_t *index = malloc(count * sizeof *index);
    for (uint32_t i = 0; i < count; i++)
        index[i] = insert(&f, 1800000 + rng_range(&r, 0, 100));
    for (uint32_t i = 0; i < count / 4; i++)
        drop(&f, index[i * 4]);
    size_t left = lp_timer_count(f.timer);
    while (lp_timer_next(f.timer) <= 1800050)
        left -= expire_some(&f, 1800050, serials, 64);
    ck_assert_uint_eq(lp_timer_count(f.timer), left);
    left -= expire_all(&f, 2000000, serials, 0);
    ck_assert_uint_eq(left, 0);
    ck_assert_uint_le(f.most_moved, MOVED_MOST);
    ck_assert_uint_eq(lp_pool_count(&the_wheel()->blocks), 0);
    free(index);
    fixture_close(&f);
}
END_TEST

/* Handing out needs no memory, however the entries lie. */
START_TEST(expire_allocates_nothing)
{
    static uint32_t out[512];
    rng r = rng_open("wheel");
    for (unsigned slots = 64; slots <= 4096; slots *= 8) {
        for (int spread = 8; spread <= 40; spread += 8) {
            fixture_open(&f, slots, 1, 0);
            for (long i = 0, count = tier(6000, 60000, 600000); i < count; i++)
                insert(&f, rng_range(&r, 1, INT64_C(1) << spread));
            size_t left = lp_timer_count(f.timer), idle = 0;
            fail_after = 0;
            refusals = 0;
            while (left > 0 && idle < 100) {
                lapse_ns now = lp_timer_next(f.timer) + (left % 3 == 0 ? 1000 : 0);
                size_t count = lp_timer_expire(f.timer, now, out, 512);
                left -= count;
                idle = count == 0 ? idle + 1 : 0;
            }
            fail_after = NO_FAILURE;
            ck_assert_uint_eq(left, 0);
            ck_assert_int_eq(refusals, 0);
            fixture_close(&f);
        }
    }
}
END_TEST

/* Memory ends at the n-th allocation: an error, the record is out, all others in. */
START_TEST(survives_failing_memory)
{
    enum { COUNT = 100000 };
    static uint32_t index[COUNT];
    rng r = rng_open("wheel");
    long before = map_live;
    for (long n = 0; n < 3; n++) {
        fixture_open(&f, 64, 1, 0);
        for (int i = 0; i < COUNT; i++)
            index[i] = new_record(&f, rng_range(&r, 0, 1 << 24));
        int count = 0, rc = 0;
        fail_after = n;
        while (count < COUNT && rc == 0) {
            rc = lp_timer_insert(f.timer, index[count]);
            count += rc == 0;
        }
        size_t left = (size_t)count;
        for (int i = 0; i < count; i += 2, left--)
            lp_timer_remove(f.timer, index[i]);
        fail_after = NO_FAILURE;
        ck_assert_int_eq(rc, LAPSE_ENOMEM);
        ck_assert_uint_eq(record_at(&f, index[count])->node.mark, 0);
        ck_assert(well_formed());
        ck_assert_uint_eq(expire_all(&f, 1 << 24, NULL, 0), left);
        fixture_close(&f);
        ck_assert_int_eq(map_live, before);
    }
}
END_TEST

START_TEST(open_survives_failing_memory)
{
    long before = map_live;
    lp_pool pool;
    lp_pool_init(&pool, sizeof(record));
    lp_timer_config config = {.kind = LP_WHEEL, .tick = 1, .slots = 4096, .pool = &pool};
    int failures = 0, rc = LAPSE_ENOMEM;
    for (long n = 0; rc != 0; n++) {
        lp_timer *t = NULL;
        fail_after = n;
        rc = lp_timer_open(&config, &t);
        fail_after = NO_FAILURE;
        failures += rc == LAPSE_ENOMEM;
        lp_timer_close(t);
        ck_assert_int_eq(map_live, before);
    }
    ck_assert_int_ge(failures, 4);
    lp_pool_free(&pool);
}
END_TEST

/* What was reserved holds, whatever is expired and removed before it is used. */
START_TEST(reserved_inserts_cannot_fail)
{
    enum { OTHERS = 30000, COUNT = 25000 };
    static uint32_t other[OTHERS], index[COUNT], out[512];
    rng r = rng_open("wheel");
    for (int spread = 10; spread <= 40; spread += 10) {
        fixture_open(&f, 64, 1, 0);
        for (int i = 0; i < OTHERS; i++)
            other[i] = insert(&f, rng_range(&r, 1, INT64_C(1) << spread));
        for (int i = 0; i < COUNT; i++)
            index[i] = new_record(&f, rng_range(&r, 1, INT64_C(1) << spread));
        ck_assert_int_eq(lp_timer_reserve(f.timer, COUNT), 0);
        int failed = 0;
        fail_after = 0;
        for (int i = 0; i < OTHERS / 2; i++)
            lp_timer_remove(f.timer, other[i]);
        for (int i = 0; i < COUNT; i++) {
            failed += lp_timer_insert(f.timer, index[i]) != 0;
            if (i % 100 == 0) /* A little, so that slots are left half drained. */
                (void)lp_timer_expire(f.timer, lp_timer_next(f.timer), out, 100);
        }
        fail_after = NO_FAILURE;
        ck_assert_int_eq(failed, 0);
        ck_assert(well_formed());
        fixture_close(&f);
    }
}
END_TEST

/* Also when nearly everything else goes between the first of them and the second. */
START_TEST(a_reserve_outlives_removals)
{
    enum { OTHERS = 150000, COUNT = 80000 };
    static uint32_t other[OTHERS], index[COUNT];
    fixture_open(&f, 64, 1, 0);
    for (int i = 0; i < OTHERS; i++)
        other[i] = insert(&f, 100000);
    for (int i = 0; i < COUNT; i++)
        index[i] = new_record(&f, 200000);
    ck_assert_int_eq(lp_timer_reserve(f.timer, COUNT), 0);
    ck_assert_int_eq(lp_timer_insert(f.timer, index[0]), 0);
    for (int i = 0; i < OTHERS; i++)
        drop(&f, other[i]);
    int failed = 0;
    fail_after = 0;
    for (int i = 1; i < COUNT; i++)
        failed += lp_timer_insert(f.timer, index[i]) != 0;
    fail_after = NO_FAILURE;
    ck_assert_int_eq(failed, 0);
    ck_assert_uint_eq(expire_all(&f, 200000, NULL, 0), COUNT);
    fixture_close(&f);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("wheel");
    TCase *tc = tcase_create("edges");
    tcase_add_test(tc, P_03_every_edge_of_the_two_lowest_levels);
    tcase_add_test(tc, P_03_edges_of_all_levels_above);
    suite_add_tcase(suite, tc);
    tc = tcase_create("cases");
    tcase_add_test(tc, P_01_a_huge_delay_is_far_away);
    tcase_add_test(tc, the_end_of_time_is_not_never);
    tcase_add_test(tc, P_02_a_delay_does_not_grow_with_the_age_of_the_wheel);
    tcase_add_test(tc, P_04_polled_late_everything_due_comes_at_once);
    tcase_add_test(tc, P_05_inserting_at_the_current_tick);
    tcase_add_test(tc, P_06_a_later_one_on_a_finer_level_hides_nothing);
    tcase_add_test(tc, P_07_works_after_any_uptime);
    tcase_add_test(tc, P_08_a_jump_costs_nothing_for_empty_slots);
    suite_add_tcase(suite, tc);
    tc = tcase_create("order");
    tcase_add_test(tc, ties_come_in_order_of_insertion);
    tcase_add_test(tc, ties_keep_their_order_across_an_interrupted_cascade);
    tcase_add_test(tc, a_removed_one_leaves_the_order_of_the_others);
    suite_add_tcase(suite, tc);
    tc = tcase_create("stale");
    tcase_add_test(tc, a_stamp_that_comes_round_fires_nothing_early);
    tcase_add_test(tc, a_stamp_that_comes_round_is_dropped_by_a_cascade);
    tcase_add_test(tc, two_wheels_over_one_pool);
    tcase_add_test(tc, a_stamp_is_never_0);
    tcase_add_test(tc, stale_entries_of_records_whose_memory_is_gone);
    tcase_add_test(tc, cancelled_orders_leave_no_memory_behind);
    tcase_add_test(tc, next_is_exact_after_the_earliest_was_removed);
    tcase_add_test(tc, next_may_be_early_in_a_large_slot_never_late);
    suite_add_tcase(suite, tc);
    tc = tcase_create("bounds");
    tcase_add_test(tc, no_call_moves_many);
    tcase_add_test(tc, expire_allocates_nothing);
    tcase_add_test(tc, survives_failing_memory);
    tcase_add_test(tc, open_survives_failing_memory);
    tcase_add_test(tc, reserved_inserts_cannot_fail);
    tcase_add_test(tc, a_reserve_outlives_removals);
    suite_add_tcase(suite, tc);
    return run_suite(suite);
}
