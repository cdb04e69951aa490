/* test_rate.c - how fast: P-75.
 *
 * After an outage no second sees more starts than the rate of a queue; the rate is used up; and
 * new orders are not held up behind the backlog. */
/* tiers: small full soak */
/* valgrind */
#include "delivery.h"

#include <inttypes.h>
#include <sched.h>
#include <stdlib.h>

/* -- P-75: after an outage ---------------------------------------------------------------- */

/* No second saw more starts than 1.05 times the rate. `at`: in order. */
static void expect_rate(const lapse_ns *at, size_t count, unsigned rate)
{
    size_t most = 0;
    for (size_t first = 0, last = 0; last < count; last++) {
        while (at[last] - at[first] >= LAPSE_SECONDS(1))
            first++;
        most = last - first + 1 > most ? last - first + 1 : most;
    }
    ck_assert_uint_le(most, (size_t)(1.05 * rate));
}

/* Under a clock that moves in lumps, as on a machine that is busy. */
START_TEST(p75_no_second_sees_more)
{
    const unsigned rates[] = {1, 7, 20, 100, 2000};
    rng luck = rng_open("p75_no_second_sees_more");
    for (size_t n = 0; n < sizeof rates / sizeof *rates; n++) {
        rig r = rig_manual(_i, START, NULL);
        player p;
        player_open(&p, r.s, NULL);
        unsigned rate = rates[n];
        int count = (int)rate * 5;
        handle(r.s, "q", &p, &(lapse_policy){.rate = rate});
        put_many(r.s, "q", "", count, 0);
        for (int step = 0; tape_count(&p.ran) < (size_t)count; step++) {
            ck_assert_int_lt(step, 1000000);
            bool lump = rng_range(&luck, 0, 99) == 0;
            advance(&r, lump ? LAPSE_MS(rng_range(&luck, 0, 3000))
                             : LAPSE_US(rng_range(&luck, 0, 60000)));
        }
        static lapse_ns at[10000];
        for (int i = 0; i < count; i++)
            at[i] = p.ran.entries[i].now;
        expect_rate(at, (size_t)count, rate);
        player_close(&p);
        rig_close(&r);
    }
}
END_TEST

/* A host that asks when there is something to do gets all that the rate allows. */
START_TEST(p75_the_rate_is_used_up)
{
    enum { RATE = 50, SECONDS = 60 };
    rig r = rig_manual(_i, START, NULL);
    player p;
    player_open(&p, r.s, NULL);
    handle(r.s, "q", &p, &(lapse_policy){.rate = RATE});
    put_many(r.s, "q", "", RATE * SECONDS, 0);
    run_for(&r, LAPSE_SECONDS(SECONDS));
    ck_assert_uint_ge(tape_count(&p.ran), RATE * SECONDS - RATE / 10);
    player_close(&p);
    rig_close(&r);
}
END_TEST

/* Each queue has its rate; what expires, or waits while paused, uses up or saves up none. */
START_TEST(p75_a_rate_is_of_one_queue_and_of_starts)
{
    rig r = rig_manual(_i, START, NULL);
    player slow, fast;
    player_open(&slow, r.s, NULL);
    player_open(&fast, r.s, NULL);
    handle(r.s, "slow", &slow, &(lapse_policy){.rate = 1, .expires = LAPSE_MINUTES(1)});
    handle(r.s, "fast", &fast, NULL);
    put_many(r.s, "slow", "old", 500, 0);
    put_many(r.s, "slow", "new", 3, LAPSE_MINUTES(2));
    put_many(r.s, "fast", "f", 100, LAPSE_MINUTES(2));
    ck_assert_int_eq(lapse_clock_advance(r.clock, LAPSE_MINUTES(2)), 0);
    advance(&r, 0);
    ck_assert_uint_eq(stats_of(r.s).dead_by[LAPSE_REASON_EXPIRED], 500);
    ck_assert_uint_eq(tape_count(&slow.ran), 1);
    ck_assert_uint_eq(tape_count(&fast.ran), 100);
    ck_assert_int_eq(lapse_pause(r.s, "slow"), 0);
    advance(&r, LAPSE_SECONDS(20));
    ck_assert_int_eq(lapse_resume(r.s, "slow"), 0);
    advance(&r, 0);
    ck_assert_uint_le(tape_count(&slow.ran), 2);
    run_for(&r, LAPSE_SECONDS(3));
    ck_assert_uint_eq(tape_count(&slow.ran), 3);
    player_close(&slow);
    player_close(&fast);
    rig_close(&r);
}
END_TEST

enum { WORKERS = 8 };

/* Order number n is due before order number n + 1; each notes its start. */
typedef struct start {
    int64_t fence;
    lapse_ns now, late;
    long number;
} start;

typedef struct storm {
    rig r;
    unsigned rate;
    long overdue, per_second, placed, room;
    lapse_ns began;
    start *starts;
    atomic_long count;
    atomic_int inside, most_inside;
} storm;

static lapse_verdict weather(const lapse_order *order, void *arg)
{
    storm *st = arg;
    int inside = atomic_fetch_add(&st->inside, 1) + 1;
    int most = atomic_load(&st->most_inside);
    while (inside > most && !atomic_compare_exchange_weak(&st->most_inside, &most, inside))
        continue;
    long slot = atomic_fetch_add(&st->count, 1);
    if (slot < st->room)
        st->starts[slot] =
            (start){order->fence, lapse_now(st->r.s), order->late, strtol(order->id, NULL, 10)};
    else
        complain("%s is one too many", order->id);
    atomic_fetch_sub(&st->inside, 1);
    return LAPSE_DONE;
}

static void place(storm *st, lapse_ns delay)
{
    char id[24];
    snprintf(id, sizeof id, "%ld", st->placed++);
    put(st->r.s, "shop", id, delay);
}

/* `overdue` orders that fell due one by one, the last an hour ago. */
static void storm_open(storm *st, int engine, long overdue, unsigned rate)
{
    *st = (storm){.r = rig_manual(engine, START, NULL), .rate = rate, .overdue = overdue};
    st->per_second = rate / 2;
    st->room = 3 * overdue;
    st->starts = malloc((size_t)st->room * sizeof *st->starts);
    ck_assert_ptr_nonnull(st->starts);
    memset(st->starts, 1, (size_t)st->room * sizeof *st->starts); /* Resident from now on. */
    for (long i = 0; i < overdue; i++)
        place(st, LAPSE_MS(i));
    ck_assert_int_eq(lapse_clock_advance(st->r.clock, LAPSE_MS(overdue) + LAPSE_HOURS(1)), 0);
    ck_assert_int_eq(
        lapse_handle(st->r.s, "shop", weather, st, NULL, &(lapse_policy){.rate = rate}), 0);
    ck_assert_int_eq(lapse_start(st->r.s, WORKERS), 0);
    st->began = lapse_clock_now(st->r.clock);
}

/* All that may start at this reading of the clock has, and has returned. */
static bool is_quiet(void *arg)
{
    storm *st = arg;
    return lapse_timeout(st->r.s) > 0 && stats_of(st->r.s).running == 0;
}

static lapse_ns since_start(const storm *st)
{
    return lapse_clock_now(st->r.clock) - st->began;
}

/* When new order number `n` falls due: they come evenly. */
static lapse_ns new_due(const storm *st, long n)
{
    return st->began + LAPSE_SECONDS(n - st->overdue + 1) / st->per_second;
}

/* Time goes on by some milliseconds, in which new orders fall due. */
static void storm_step(storm *st, rng *luck)
{
    lapse_ns now = lapse_clock_now(st->r.clock), by = LAPSE_MS(rng_range(luck, 1, 20));
    while (new_due(st, st->placed) <= now + by)
        place(st, new_due(st, st->placed) - now);
    ck_assert_int_eq(lapse_clock_advance(st->r.clock, by), 0);
    ck_assert(until(is_quiet, st));
}

static int compare_starts(const void *a, const void *b)
{
    const start *x = a, *y = b;
    return (x->fence > y->fence) - (x->fence < y->fence);
}

/* Each start was the oldest that waited, but for one in four, which was brand-new. */
static void expect_fair_order(const storm *st, long count)
{
    bool *started = calloc((size_t)st->placed, 1);
    long oldest = 0, newest = 0, late_share = 0;
    ck_assert_ptr_nonnull(started);
    for (long i = 0; i < count; i++) {
        const start *s = &st->starts[i];
        ck_assert_int_lt(s->number, st->placed);
        ck_assert(!started[s->number]); /* Nothing runs twice. */
        started[s->number] = true;
        if (s->number == oldest) {
            while (oldest < st->placed && started[oldest])
                oldest++;
            continue;
        }
        newest++;
        ck_assert_int_le(newest, i / 4 + 1);
        late_share += s->now - st->began > LAPSE_SECONDS(1) && s->late > LAPSE_MS(50);
    }
    ck_assert_int_eq(late_share, 0);
    ck_assert_int_ge(newest, count / 5); /* New orders have had their share. */
    free(started);
}

static void judge_storm(storm *st)
{
    long count = atomic_load(&st->count);
    qsort(st->starts, (size_t)count, sizeof *st->starts, compare_starts);
    lapse_ns *at = calloc((size_t)count + 1, sizeof *at);
    ck_assert_ptr_nonnull(at);
    for (long i = 0; i < count; i++)
        at[i] = st->starts[i].now;
    expect_rate(at, (size_t)count, st->rate);
    free(at);
    expect_fair_order(st, count);
    ck_assert_int_le(atomic_load(&st->most_inside), WORKERS);
}

static void storm_close(storm *st)
{
    rig_close(&st->r);
    free(st->starts);
}

#if defined(UNDER_TSAN) || defined(UNDER_ASAN)
#define RSS_IS_OURS false /* The sanitizer keeps what was freed, as does valgrind. */
#else
#define RSS_IS_OURS true
#endif

START_TEST(p75_a_backlog_is_worked_off)
{
    static storm st;
    rng luck = rng_open("p75_a_backlog_is_worked_off");
    storm_open(&st, _i, tier(4000, 50000, 200000), (unsigned)tier(400, 2000, 2000));
    uint64_t bytes = stats_of(st.r.s).bytes;
    size_t rss = resident_bytes();
    lapse_ns wanted = LAPSE_SECONDS(st.overdue) / st.per_second;
    while (stats_of(st.r.s).pending > 0) {
        storm_step(&st, &luck);
        ck_assert_uint_le(stats_of(st.r.s).bytes, bytes + (UINT64_C(1) << 20));
        ck_assert_int_lt(since_start(&st), 2 * wanted);
    }
    lapse_ns took = since_start(&st);
    printf("%ld overdue and %ld new were worked off in %.1f s\n", st.overdue,
           st.placed - st.overdue, (double)took / 1e9);
    ck_assert_int_ge(took, wanted * 95 / 100);
    ck_assert_int_le(took, wanted * 105 / 100);
    if (RSS_IS_OURS && getenv("LAPSE_VALGRIND") == NULL)
        ck_assert_uint_lt(resident_bytes(), rss + (UINT64_C(16) << 20));
    ck_assert_int_eq(atomic_load(&st.count), st.placed);
    judge_storm(&st);
    storm_close(&st);
}
END_TEST

static bool note_rest(const lapse_info *info, void *arg)
{
    char *seen = arg;
    seen[atol(info->id)]++;
    return info->state == LAPSE_STATE_PENDING;
}

START_TEST(p75_stop_while_catching_up_loses_nothing)
{
    static storm st;
    rng luck = rng_open("p75_stop_while_catching_up_loses_nothing");
    storm_open(&st, _i, tier(2000, 50000, 50000), (unsigned)tier(400, 2000, 2000));
    while (atomic_load(&st.count) < st.overdue / 2)
        storm_step(&st, &luck);
    ck_assert_int_eq(lapse_clock_advance(st.r.clock, LAPSE_SECONDS(1)), 0); /* More is due. */
    lapse_ns before = boot_now();
    ck_assert_int_eq(lapse_stop(st.r.s), 0);
    ck_assert_int_lt(boot_now() - before, LAPSE_SECONDS(1));
    while (stats_of(st.r.s).running > 0)
        sched_yield();
    char *seen = calloc((size_t)st.placed, 1);
    ck_assert_ptr_nonnull(seen);
    long count = atomic_load(&st.count);
    for (long i = 0; i < count; i++)
        seen[st.starts[i].number]++;
    ck_assert_int_eq(lapse_each(st.r.s, 0, note_rest, seen), st.placed - count);
    for (long i = 0; i < st.placed; i++)
        ck_assert_int_eq(seen[i], 1);
    expect_books(st.r.s);
    free(seen);
    storm_close(&st);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("rate");
    TCase *group = add_group(suite, "rate");
    ADD_FOR_ENGINES(group, p75_no_second_sees_more);
    ADD_FOR_ENGINES(group, p75_the_rate_is_used_up);
    ADD_FOR_ENGINES(group, p75_a_rate_is_of_one_queue_and_of_starts);
    ADD_FOR_ENGINES(group, p75_a_backlog_is_worked_off);
    ADD_FOR_ENGINES(group, p75_stop_while_catching_up_loses_nothing);
    return run_suite(suite);
}
