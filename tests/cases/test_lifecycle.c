/* test_lifecycle.c - bounds, memory, stop and close: P-29 to P-31.
 *
 * The limit is exact, what ended is freed at once, and after a stop the set of orders
 * that did not run is exact too. */
/* tiers: small full soak */
#include "../support/support.h"

#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* -- P-29 -------------------------------------------------------------------------- */

enum { FLOODERS = 8 };

struct flood {
    lapse *s;
    long each;
    atomic_int accepted, full;
};

static void flood_thread(void *arg, int number)
{
    struct flood *f = arg;
    for (long i = 0; i < f->each; i++) {
        char id[24];
        snprintf(id, sizeof id, "%d.%ld", number, i);
        int64_t result = lapse_schedule(f->s, id, LAPSE_MINUTES(10), never, NULL);
        if (result > 0)
            atomic_fetch_add(&f->accepted, 1);
        else if (result == LAPSE_EFULL)
            atomic_fetch_add(&f->full, 1);
        else
            complain("%s answered %" PRId64, id, result);
    }
}

static bool cancel_first(const lapse_info *info, void *arg)
{
    struct flood *f = arg;
    if (lapse_cancel(f->s, info->id, info->generation) != LAPSE_FATE_CANCELLED)
        complain("%s was listed and could not be cancelled", info->id);
    return --f->each > 0;
}

static int accept_more(lapse *s, int tries)
{
    int accepted = 0;
    for (int i = 0; i < tries; i++) {
        char id[16];
        snprintf(id, sizeof id, "more%d", i);
        accepted += lapse_schedule(s, id, LAPSE_MINUTES(10), never, NULL) > 0;
    }
    return accepted;
}

START_TEST(p29_the_limit_is_exact)
{
    const long limit = tier(2000, 100000, 1000000);
    lapse_options options = {.max_pending = (uint64_t)limit};
    rig r = rig_real(_i, &options);
    struct flood f = {.s = r.s, .each = 2 * limit / FLOODERS};
    crew_run(FLOODERS, flood_thread, &f);
    ck_assert_int_eq(atomic_load(&f.accepted), limit);
    ck_assert_int_eq(atomic_load(&f.full), limit);
    uint64_t bytes = stats_of(r.s).bytes;
    ck_assert_int_eq(accept_more(r.s, 50), 0);
    ck_assert_uint_eq(stats_of(r.s).bytes, bytes);
    f.each = 10;
    ck_assert_int_eq(lapse_each(r.s, LAPSE_STATE_PENDING, cancel_first, &f), 10);
    ck_assert_int_eq(accept_more(r.s, 50), 10);
    ck_assert_uint_eq(stats_of(r.s).pending, (uint64_t)limit);
    ck_assert_uint_eq(stats_of(r.s).refused, (uint64_t)limit + 50 + 40);
    rig_close(&r);
}
END_TEST

START_TEST(p29_the_limit_in_the_url_wins)
{
    char url[96];
    snprintf(url, sizeof url, "%s&max_pending=3", engine_url(_i));
    lapse_options options = {.max_pending = 7};
    rig r = rig_url(url, 0, START, &options);
    ck_assert_int_eq(accept_more(r.s, 10), 3);
    rig_close(&r);
}
END_TEST

/* The oldest by acceptance gives way, not the one due first. */
struct dead {
    char ids[8][16];
    lapse_reason reasons[8];
    int count;
};

static bool note_dead(const lapse_info *info, void *arg)
{
    struct dead *d = arg;
    ck_assert_int_eq(info->state, LAPSE_STATE_DEAD);
    ck_assert_int_gt(info->ended, 0);
    if (d->count < 8) {
        snprintf(d->ids[d->count], sizeof d->ids[0], "%s", info->id);
        d->reasons[d->count] = info->reason;
    }
    d->count++;
    return true;
}

START_TEST(p29_overflow_to_the_dead_letters)
{
    atomic_int released = 0;
    lapse_options options = {
        .max_pending = 3, .overflow = LAPSE_DEAD_LETTER_OLDEST, .release = count_release};
    rig r = rig_manual(_i, START, &options);
    const char *ids[] = {"first", "second", "third", "fourth", "fifth"};
    for (int i = 0; i < 5; i++)
        ck_assert_int_gt(lapse_schedule(r.s, ids[i], LAPSE_MINUTES(10 - i), never, &released), 0);
    ck_assert_int_eq(atomic_load(&released), 0); /* A dead letter keeps its argument. */
    struct dead d = {.count = 0};
    ck_assert_int_eq(lapse_each(r.s, LAPSE_STATE_DEAD, note_dead, &d), 2);
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(d.reasons[i], LAPSE_REASON_MAXLEN);
        ck_assert(strcmp(d.ids[i], "first") == 0 || strcmp(d.ids[i], "second") == 0);
    }
    lapse_stats stats = stats_of(r.s);
    ck_assert_uint_eq(stats.pending, 3);
    ck_assert_uint_eq(stats.dead, 2);
    ck_assert_uint_eq(stats.dead_total, 2);
    ck_assert_int_eq(lapse_cancel(r.s, "first", LAPSE_ANY), LAPSE_FATE_UNKNOWN);
    rig_close(&r);
    ck_assert_int_eq(atomic_load(&released), 5);
}
END_TEST

/* A running order cannot give way: when all are running, the new one is refused. */
START_TEST(p29_overflow_never_drops_what_runs)
{
    lapse_options options = {.max_pending = 1, .overflow = LAPSE_DEAD_LETTER_OLDEST};
    rig r = rig_manual(_i, START, &options);
    lapse_spec spec = {.id = "taken"};
    const lapse_order *order;
    ck_assert_int_gt(lapse_put(r.s, &spec), 0);
    advance(&r, r.tick);
    ck_assert_int_eq(lapse_poll(r.s, NULL, &order), 1);
    spec.id = "new";
    ck_assert_int_eq(lapse_put(r.s, &spec), LAPSE_EFULL);
    ck_assert_int_eq(lapse_settle(r.s, order->fence, LAPSE_DONE, 0, NULL), 0);
    ck_assert_int_gt(lapse_put(r.s, &spec), 0);
    rig_close(&r);
}
END_TEST

START_TEST(p29_dead_letters_are_bounded)
{
    atomic_int released = 0;
    lapse_options options = {.max_dead = 10, .release = count_release};
    rig r = rig_manual(_i, START, &options);
    for (int i = 0; i < 25; i++) {
        char id[16];
        snprintf(id, sizeof id, "%d", i);
        lapse_spec spec = {.id = id, .arg = &released};
        const lapse_order *order;
        ck_assert_int_gt(lapse_put(r.s, &spec), 0);
        advance(&r, r.tick);
        ck_assert_int_eq(lapse_poll(r.s, NULL, &order), 1);
        ck_assert_int_eq(lapse_settle(r.s, order->fence, LAPSE_REJECT, 0, "no such order"), 0);
        ck_assert_int_eq(atomic_load(&released), i < 10 ? 0 : i - 9);
    }
    struct dead d = {.count = 0};
    ck_assert_int_eq(lapse_each(r.s, LAPSE_STATE_DEAD, note_dead, &d), 10);
    for (int i = 0; i < 8; i++)
        ck_assert_int_ge(atoi(d.ids[i]), 15); /* The oldest are dropped. */
    ck_assert_uint_eq(stats_of(r.s).dead, 10);
    ck_assert_uint_eq(stats_of(r.s).dead_dropped, 15);
    ck_assert_uint_eq(stats_of(r.s).dead_total, 25);
    rig_close(&r);
    ck_assert_int_eq(atomic_load(&released), 25);
}
END_TEST

/* -- P-30 -------------------------------------------------------------------------- */

#if defined(UNDER_TSAN) || defined(UNDER_ASAN)
#define RSS_IS_OURS false /* The sanitizer keeps what was freed. */
#else
#define RSS_IS_OURS true
#endif

static void expect_no_growth(lapse *s, size_t rss, uint64_t bytes)
{
    ck_assert_uint_le(stats_of(s).bytes, bytes + (UINT64_C(1) << 20));
    if (RSS_IS_OURS)
        ck_assert_uint_lt(resident_bytes(), rss + (UINT64_C(5) << 20));
}

/* Paid orders: scheduled for half an hour, cancelled at once, with 1 000 others open. */
START_TEST(p30_cancelled_orders_leave_at_once)
{
    const int64_t rounds = tier(20000, 200000, 10000000);
    enum { OPEN = 1000 };
    static char payload[1024];
    atomic_int released = 0;
    lapse_options options = {.release = count_release};
    rig r = rig_manual(_i, START, &options);
    size_t rss = 0;
    uint64_t bytes = 0;
    for (int64_t i = 0; i < rounds; i++) {
        char id[24];
        snprintf(id, sizeof id, "o%" PRId64, i);
        lapse_spec spec = {.id = id,
                           .delay = LAPSE_MINUTES(30),
                           .payload = payload,
                           .payload_len = sizeof payload,
                           .fn = never,
                           .arg = &released};
        ck_assert_int_gt(lapse_put(r.s, &spec), 0);
        if (i < OPEN)
            continue; /* These stay open all the time. */
        ck_assert_int_eq(lapse_cancel(r.s, id, LAPSE_ANY), LAPSE_FATE_CANCELLED);
        ck_assert_int_eq(atomic_load(&released), i - OPEN + 1);
        if (i % 1000 == 0)
            advance_once(&r, LAPSE_MS(1));
        if (i == rounds / 10) {
            rss = resident_bytes();
            bytes = stats_of(r.s).bytes;
        }
    }
    expect_no_growth(r.s, rss, bytes);
    ck_assert_uint_eq(pending_in(r.s), OPEN);
    rig_close(&r);
    ck_assert_int_eq(atomic_load(&released), rounds);
}
END_TEST

/* The same id again and again, as a basket that is changed all the time. */
START_TEST(p30_the_id_is_free_again_at_once)
{
    rig r = rig_manual(_i, START, NULL);
    const long rounds = tier(10000, 200000, 2000000);
    size_t rss = 0;
    uint64_t bytes = 0;
    for (long i = 0; i < rounds; i++) {
        ck_assert_int_gt(lapse_schedule(r.s, "same", LAPSE_MINUTES(30), never, NULL), 0);
        ck_assert_int_eq(lapse_reschedule(r.s, "same", LAPSE_ANY, LAPSE_MINUTES(31)),
                         LAPSE_FATE_RESCHEDULED);
        ck_assert_int_eq(lapse_cancel(r.s, "same", LAPSE_ANY), LAPSE_FATE_CANCELLED);
        if (i == rounds / 10) {
            rss = resident_bytes();
            bytes = stats_of(r.s).bytes;
        }
    }
    expect_no_growth(r.s, rss, bytes);
    ck_assert_uint_eq(pending_in(r.s), 0);
    rig_close(&r);
}
END_TEST

/* Orders that fire, 1 000 open at a time. */
START_TEST(p30_finished_orders_leave_at_once)
{
    const int64_t rounds = tier(20000, 200000, 1000000);
    static char payload[1024];
    atomic_int released = 0;
    lapse_options options = {.release = count_release};
    rig r = rig_manual(_i, START, &options);
    atomic_int runs = 0;
    size_t rss = 0;
    uint64_t bytes = 0;
    int64_t ran = 0;
    for (int64_t i = 0; i < rounds; i++) {
        char id[24];
        snprintf(id, sizeof id, "o%" PRId64, i);
        lapse_spec spec = {.id = id,
                           .delay = LAPSE_MS(1000),
                           .payload = payload,
                           .payload_len = sizeof payload,
                           .fn = count_run};
        spec.arg = i % 2 == 0 ? &runs : &released; /* Either is counted up by both. */
        ck_assert_int_gt(lapse_put(r.s, &spec), 0);
        ran += advance_once(&r, LAPSE_MS(1));
        if (i == rounds / 10) {
            rss = resident_bytes();
            bytes = stats_of(r.s).bytes;
        }
    }
    expect_no_growth(r.s, rss, bytes);
    ck_assert_uint_le(pending_in(r.s), 1001);
    advance(&r, LAPSE_SECONDS(2));
    ck_assert_uint_eq(pending_in(r.s), 0);
    ck_assert_int_gt(ran, 0);
    /* Each order adds one for its run and one for its release. */
    ck_assert_int_eq(atomic_load(&runs) + atomic_load(&released), 2 * rounds);
    rig_close(&r);
    ck_assert_int_eq(atomic_load(&runs) + atomic_load(&released), 2 * rounds);
}
END_TEST

/* Memory for a peak is given back, or used again for the next peak. */
START_TEST(p30_a_peak_is_not_kept_for_ever)
{
    const long peak = tier(5000, 100000, 1000000);
    rig r = rig_manual(_i, START, NULL);
    uint64_t at_peak[3];
    for (int round = 0; round < 3; round++) {
        for (long i = 0; i < peak; i++) {
            char id[24];
            snprintf(id, sizeof id, "%d.%ld", round, i);
            ck_assert_int_gt(lapse_schedule(r.s, id, LAPSE_HOURS(1) + i, never, NULL), 0);
        }
        at_peak[round] = stats_of(r.s).bytes;
        for (long i = 0; i < peak; i++) {
            char id[24];
            snprintf(id, sizeof id, "%d.%ld", round, i);
            ck_assert_int_eq(lapse_cancel(r.s, id, LAPSE_ANY), LAPSE_FATE_CANCELLED);
        }
        advance(&r, LAPSE_HOURS(2));
        ck_assert_uint_eq(pending_in(r.s), 0);
    }
    ck_assert_uint_le(at_peak[2], at_peak[0] + at_peak[0] / 4);
    rig_close(&r);
}
END_TEST

/* -- release, in every way an order can end ----------------------------------------- */

static lapse_verdict say(const lapse_order *order, void *arg)
{
    (void)arg;
    switch (order->id[0]) {
    case 'r':
        return order->attempt < 3 ? lapse_retry(order, LAPSE_SECONDS(1), NULL) : LAPSE_DONE;
    case 'x':
        return lapse_reject(order, "no such order");
    case 'f':
        return lapse_fail(order, "broken");
    case 'g':
        return order->late < LAPSE_SECONDS(1) ? LAPSE_GIVE_BACK : LAPSE_DONE;
    default:
        return LAPSE_DONE;
    }
}

START_TEST(p30_release_is_called_once_on_every_way_out)
{
    const char *ids[] = {"done",       "retried",   "x rejected", "failed",
                         "given back", "cancelled", "replaced",   "left over"};
    enum { COUNT = sizeof ids / sizeof *ids };
    atomic_int released[COUNT + 2] = {0};
    rig r = rig_manual(_i, START, NULL);
    for (int i = 0; i < COUNT; i++) {
        lapse_spec spec = {.id = ids[i], .fn = say, .arg = &released[i], .release = count_release};
        spec.delay = i < 5 ? LAPSE_SECONDS(1) : LAPSE_HOURS(1);
        ck_assert_int_gt(lapse_put(r.s, &spec), 0);
    }
    lapse_spec again = {.id = "replaced",
                        .delay = LAPSE_HOURS(1),
                        .fn = say,
                        .arg = &released[COUNT],
                        .release = count_release};
    again.flags = LAPSE_REPLACE;
    ck_assert_int_gt(lapse_put(r.s, &again), 0);
    ck_assert_int_eq(atomic_load(&released[6]), 1);
    /* A refused one was never accepted, so nothing is released. */
    again.flags = 0;
    again.arg = &released[COUNT + 1];
    ck_assert_int_eq(lapse_put(r.s, &again), LAPSE_EEXISTS);
    ck_assert_int_eq(lapse_cancel(r.s, "cancelled", LAPSE_ANY), LAPSE_FATE_CANCELLED);
    ck_assert_int_eq(atomic_load(&released[5]), 1);
    advance_once(&r, LAPSE_SECONDS(1));
    ck_assert_int_eq(atomic_load(&released[0]), 1);
    ck_assert_int_eq(atomic_load(&released[1]), 0);
    for (int i = 0; i < 10; i++)
        advance_once(&r, LAPSE_SECONDS(1));
    ck_assert_int_eq(atomic_load(&released[2]), 0); /* A dead letter may be tried again. */
    for (int i = 0; i < COUNT - 1; i++)
        ck_assert_msg(i == 2 || atomic_load(&released[i]) == 1, "'%s' was released %d times",
                      ids[i], atomic_load(&released[i]));
    ck_assert_int_eq(atomic_load(&released[COUNT - 1]), 0);
    rig_close(&r);
    for (int i = 0; i <= COUNT; i++)
        ck_assert_int_eq(atomic_load(&released[i]), 1);
    ck_assert_int_eq(atomic_load(&released[COUNT + 1]), 0);
}
END_TEST

/* -- P-31 -------------------------------------------------------------------------- */

enum { ADDERS = 4, MANY = 100000 };

/* One per order: how often it ran and how often it was listed. */
struct ledger {
    lapse *s;
    uint64_t seed;
    atomic_int added[ADDERS];
    atomic_int ran;
    struct line {
        struct ledger *of;
        atomic_uchar ran, accepted;
        unsigned char listed;
    } lines[ADDERS][MANY];
};

static lapse_verdict write_line(const lapse_order *order, void *arg)
{
    struct line *line = arg;
    (void)order;
    atomic_fetch_add(&line->ran, 1);
    atomic_fetch_add(&line->of->ran, 1);
    return LAPSE_DONE;
}

static void add_until_closed(void *arg, int number)
{
    struct ledger *l = arg;
    rng luck = {l->seed + (uint64_t)number};
    for (int i = 0; i < MANY; i++) {
        char id[24];
        snprintf(id, sizeof id, "%d.%d", number, i);
        struct line *line = &l->lines[number][i];
        line->of = l;
        int64_t result =
            lapse_schedule(l->s, id, LAPSE_US(rng_range(&luck, 0, 50000)), write_line, line);
        if (result == LAPSE_ECLOSED)
            return;
        if (result < 0)
            complain("%s answered %" PRId64, id, result);
        atomic_store(&line->accepted, 1);
        atomic_store(&l->added[number], i + 1);
        if (i % 16 == 0)
            sched_yield(); /* All four get on, also where there are fewer processors. */
    }
}

static bool list_line(const lapse_info *info, void *arg)
{
    struct ledger *l = arg;
    int number, i;
    ck_assert_int_eq(sscanf(info->id, "%d.%d", &number, &i), 2);
    l->lines[number][i].listed++;
    return true;
}

static void settle_ledger(const struct ledger *l)
{
    long ran = 0, listed = 0;
    for (int number = 0; number < ADDERS; number++)
        for (int i = 0; i < MANY; i++) {
            const struct line *line = &l->lines[number][i];
            int r = atomic_load(&line->ran), accepted = atomic_load(&line->accepted);
            ck_assert_msg(r + line->listed == accepted, "%d.%d: accepted %d, ran %d, listed %d",
                          number, i, accepted, r, line->listed);
            ran += r;
            listed += line->listed;
        }
    printf("ran %ld, listed %ld\n", ran, listed);
}

/* All add, and some of what they added has run. */
static bool in_full_swing(void *arg)
{
    struct ledger *l = arg;
    if (atomic_load(&l->ran) < 200)
        return false;
    for (int i = 0; i < ADDERS; i++)
        if (atomic_load(&l->added[i]) < 500)
            return false;
    return true;
}

START_TEST(p31_stop_divides_exactly)
{
    int threads = idle_threads(), descriptors = open_descriptors();
    rig r = rig_real(_i, NULL);
    struct ledger *l = calloc(1, sizeof *l);
    ck_assert_ptr_nonnull(l);
    l->s = r.s;
    l->seed = rng_open("p31_stop_divides_exactly").state;
    ck_assert_int_eq(lapse_start(r.s, 2), 0);
    crew c;
    crew_start(&c, ADDERS, add_until_closed, l);
    ck_assert(until(in_full_swing, l));
    ck_assert_int_eq(lapse_stop(r.s), 0);
    crew_join(&c);
    ck_assert_int_eq(lapse_schedule(r.s, "x", 1, never, NULL), LAPSE_ECLOSED);
    ck_assert_int_eq(lapse_reschedule(r.s, "x", LAPSE_ANY, 1), LAPSE_ECLOSED);
    ck_assert_int_eq(lapse_stop(r.s), 0);
    int64_t listed = lapse_each(r.s, LAPSE_STATE_PENDING, list_line, l);
    ck_assert_int_eq(listed, (int64_t)stats_of(r.s).pending);
    rig_close(&r);
    settle_ledger(l);
    ck_assert(until_threads(threads));
    ck_assert_int_eq(open_descriptors(), descriptors);
    free(l);
}
END_TEST

/* After a stop an order can still be paid, and looked at. */
START_TEST(p31_what_is_left_can_be_cancelled_and_listed)
{
    rig r = rig_manual(_i, START, NULL);
    for (int i = 0; i < 1000; i++) {
        char id[8];
        snprintf(id, sizeof id, "%d", i);
        ck_assert_int_gt(lapse_schedule(r.s, id, LAPSE_MS(i), never, NULL), 0);
    }
    ck_assert_int_eq(lapse_stop(r.s), 0);
    ck_assert_int_eq(lapse_clock_advance(r.clock, LAPSE_HOURS(1)), 0);
    ck_assert_int_eq(lapse_process(r.s, 0), LAPSE_ECLOSED);
    ck_assert_int_le(lapse_run(r.s), 0); /* Returns at once. */
    ck_assert_int_eq(lapse_wait(r.s, LAPSE_FOREVER), LAPSE_ECLOSED);
    ck_assert_int_eq(lapse_start(r.s, 1), LAPSE_ECLOSED);
    const lapse_order *order;
    ck_assert_int_eq(lapse_take(r.s, NULL, LAPSE_FOREVER, &order), LAPSE_ECLOSED);
    ck_assert_int_eq(lapse_cancel(r.s, "7", LAPSE_ANY), LAPSE_FATE_CANCELLED);
    lapse_info info;
    ck_assert_int_eq(lapse_get(r.s, "8", &info), 0);
    ck_assert_int_eq(info.state, LAPSE_STATE_PENDING);
    lapse_info_free(&info);
    ck_assert_uint_eq(pending_in(r.s), 999);
    rig_close(&r);
}
END_TEST

/* Stop wakes everybody who waits. */
static void wait_in_every_way(void *arg, int number)
{
    lapse *s = arg;
    const lapse_order *order;
    int64_t result = 0;
    switch (number) {
    case 0:
        result = lapse_run(s) == 0 ? LAPSE_ECLOSED : 0;
        break;
    case 1:
        result = lapse_wait(s, LAPSE_FOREVER);
        break;
    case 2:
        result = lapse_take(s, NULL, LAPSE_FOREVER, &order);
        break;
    default:
        result = lapse_take(s, "queue", LIMIT, &order);
        break;
    }
    if (result != LAPSE_ECLOSED)
        complain("waiter %d: %" PRId64, number, result);
}

START_TEST(p31_stop_wakes_all_who_wait)
{
    rig r = _i % 2 == 0 ? rig_real(WHEEL, NULL) : rig_manual(HEAP, START, NULL);
    ck_assert_int_eq(lapse_start(r.s, 2), 0);
    crew c;
    crew_start(&c, 6, wait_in_every_way, r.s);
    ck_assert(until_others_sleep());
    ck_assert_int_eq(lapse_stop(r.s), 0);
    crew_join(&c);
    rig_close(&r);
}
END_TEST

START_TEST(p31_nothing_is_left_behind)
{
    int threads = idle_threads(), descriptors = open_descriptors();
    for (int i = 0; i < 50; i++) {
        rig r = i % 2 == 0 ? rig_real(_i, NULL) : rig_manual(_i, START, NULL);
        ck_assert_int_gt(lapse_schedule(r.s, "o", LAPSE_HOURS(1), never, NULL), 0);
        ck_assert_int_ge(lapse_fd(r.s), 0);
        ck_assert_int_eq(lapse_start(r.s, 3), 0);
        rig_close(&r);
    }
    ck_assert(until_threads(threads));
    ck_assert_int_eq(open_descriptors(), descriptors);
    ck_assert_int_eq(lapse_close(NULL, 0), 0);
    lapse_clock_free(NULL);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("life cycle");
    TCase *group = add_group(suite, "P-29 to P-31");
    ADD_FOR_ENGINES(group, p29_the_limit_is_exact);
    ADD_FOR_ENGINES(group, p29_the_limit_in_the_url_wins);
    ADD_FOR_ENGINES(group, p29_overflow_to_the_dead_letters);
    ADD_FOR_ENGINES(group, p29_overflow_never_drops_what_runs);
    ADD_FOR_ENGINES(group, p29_dead_letters_are_bounded);
    ADD_FOR_ENGINES(group, p30_cancelled_orders_leave_at_once);
    ADD_FOR_ENGINES(group, p30_the_id_is_free_again_at_once);
    ADD_FOR_ENGINES(group, p30_finished_orders_leave_at_once);
    ADD_FOR_ENGINES(group, p30_a_peak_is_not_kept_for_ever);
    ADD_FOR_ENGINES(group, p30_release_is_called_once_on_every_way_out);
    ADD_FOR_ENGINES(group, p31_stop_divides_exactly);
    ADD_FOR_ENGINES(group, p31_what_is_left_can_be_cancelled_and_listed);
    tcase_add_loop_test(group, p31_stop_wakes_all_who_wait, 0, 2);
    ADD_FOR_ENGINES(group, p31_nothing_is_left_behind);
    return run_suite(suite);
}
