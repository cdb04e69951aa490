/* model_timer.c - the wheel and the heap beside a sorted list, which is never wrong.
 *
 * Random inserts, removals, reschedules and steps of the clock, small and huge, from many
 * starting times, with an order far in the future pending. After every step both sides
 * must have handed out the same records in the same order, and agree on what is next.
 * LAPSE_SEED repeats a run, LAPSE_OPS sets the number of operations. */
/* tiers: small full soak */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/records.h"
#include "support/support.h"

enum {
    MOST = 60000, /* live records at most */
    LARGE = 4096, /* entries from which a slot may answer `next` too early */
    PORTION = 512,
    MOVED_MOST = 8192,
    CALLS_TO_TIDY = 2 * MOST / LARGE + 1
};

typedef struct setting {
    unsigned slots; /* 0: the heap */
    lapse_ns tick;
} setting;

static const setting settings[] = {{64, 1},       {64, 10},        {256, 1000}, {128, 7},
                                   {64, 1000000}, {4096, 1000000}, {0, 1}};

static const lapse_ns starts[] = {
    0,
    (INT64_C(1) << 31) - 500,
    (INT64_C(1) << 32) - 500,
    (INT64_C(1) << 36) - 500,
    (INT64_C(1) << 40) - 500,
    (INT64_C(1) << 53) - 500,
};

/* -- The list ---------------------------------------------------------------------- */

typedef struct item {
    lapse_ns at; /* the time it is handed out */
    uint64_t serial;
    uint32_t index;
} item;

/* Items [first, end), in order. */
typedef struct list {
    item items[2 * MOST];
    size_t first, end;
} list;

static list l;
static fixture f;
static setting now_with;
static lapse_ns now;
static uint64_t far_serial; /* pending all the time */
static rng r;

static size_t length(void)
{
    return l.end - l.first;
}

/* Where an item due at `at` goes: behind all that are due no later. */
static size_t place_behind(lapse_ns at)
{
    size_t low = l.first, high = l.end;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (l.items[middle].at <= at)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static void list_insert(item i)
{
    if (l.end == 2 * MOST) {
        memmove(l.items, l.items + l.first, length() * sizeof(item));
        l.end -= l.first;
        l.first = 0;
    }
    size_t place = place_behind(i.at);
    memmove(l.items + place + 1, l.items + place, (l.end - place) * sizeof(item));
    l.items[place] = i;
    l.end++;
}

static void list_remove(size_t place)
{
    memmove(l.items + place, l.items + place + 1, (l.end - place - 1) * sizeof(item));
    l.end--;
}

static size_t list_due(void)
{
    return place_behind(now) - l.first;
}

/* When a record due at `due` is handed out. The wheel takes what is past for now. */
static lapse_ns time_of_due(lapse_ns due)
{
    if (now_with.slots == 0)
        return due;
    lapse_ns tick = now_with.tick, floor = now - now % tick;
    lapse_ns up = due <= 0 ? 0 : due % tick == 0 ? due : due - due % tick + tick;
    return up > floor ? up : floor;
}

/* -- Both sides -------------------------------------------------------------------- */

static void insert_both(uint32_t index)
{
    const record *rec = record_at(&f, index);
    int rc = lp_timer_insert(f.timer, index);
    holds(rc == 0);
    watch(&f);
    list_insert((item){.at = time_of_due(rec->node.due), .serial = rec->serial, .index = index});
}

/* Within a few ticks, around the edges of the levels, or anywhere up to far away. */
static lapse_ns random_delay(void)
{
    lapse_ns tick = now_with.tick;
    switch (rng_range(&r, 0, 5)) {
    case 0:
        return rng_range(&r, -3, 3) * tick / 2;
    case 1:
        return rng_range(&r, 0, 100 * tick);
    case 2:
        return (INT64_C(64) << rng_range(&r, 0, 12)) * tick + rng_range(&r, -2, 2) * tick;
    case 3:
        return 1000 * tick; /* The same for all. */
    default:
        return rng_range(&r, 0, (INT64_C(1) << rng_range(&r, 0, 24)) * tick);
    }
}

static void do_insert(void)
{
    if (length() < MOST)
        insert_both(new_record(&f, now + random_delay()));
}

/* A record at random, but not the far one, which is the last. */
static size_t random_place(void)
{
    return (size_t)rng_range(&r, (int64_t)l.first, (int64_t)l.end - 2);
}

static void do_remove(void)
{
    if (length() < 2)
        return;
    size_t place = rng_range(&r, 0, 3) == 0 ? l.first : random_place();
    drop(&f, l.items[place].index);
    list_remove(place);
}

static void do_reschedule(void)
{
    if (length() < 2)
        return;
    size_t place = random_place();
    uint32_t index = l.items[place].index;
    int rc = lp_timer_reserve(f.timer, 1);
    holds(rc == 0);
    lp_timer_remove(f.timer, index);
    watch(&f);
    list_remove(place);
    record_at(&f, index)->node.due = now + random_delay();
    insert_both(index);
}

static void check_next(void)
{
    lapse_ns next = lp_timer_next(f.timer), exact = l.items[l.first].at;
    watch(&f);
    holds(next == exact || (now_with.slots > 0 && length() > LARGE / 2 && next < exact));
}

/* One call; what it hands out must be the beginning of the list. */
static size_t expire_portion(size_t max)
{
    uint32_t out[PORTION];
    size_t due = list_due();
    size_t count = lp_timer_expire(f.timer, now, out, max);
    watch(&f);
    holds(count <= max && count <= due);
    for (size_t i = 0; i < count; i++) {
        const item *expected = &l.items[l.first++];
        holds(out[i] == expected->index);
        holds(record_at(&f, out[i])->serial == expected->serial);
        holds(record_at(&f, out[i])->node.due <= now && record_at(&f, out[i])->node.mark == 0);
        lp_pool_give(&f.pool, out[i]);
    }
    /* Fewer than it could: only while something is to be tidied up. */
    holds(count == max || count == due || lp_timer_next(f.timer) <= now);
    return count;
}

/* Hand out what is due, in portions; sometimes with changes between them. What is
 * inserted meanwhile lies ahead: see time_of_due. */
static void do_expire(void)
{
    bool mix = rng_range(&r, 0, 3) == 0;
    for (size_t idle = 0; list_due() > 0;) {
        size_t count = expire_portion((size_t)rng_range(&r, 1, rng_range(&r, 1, PORTION)));
        idle = count == 0 ? idle + 1 : 0;
        holds(idle < 1000);
        if (mix && length() < MOST)
            insert_both(new_record(&f, now + now_with.tick + rng_range(&r, 0, 1 << 20)));
        if (mix && rng_range(&r, 0, 1) == 0)
            do_remove();
    }
    /* Until all stale entries on the way are gone: from then on what is past counts as
     * now. Before, a call that had enough to tidy up may have stopped short of it. */
    for (int i = 0; i < CALLS_TO_TIDY; i++)
        holds(expire_portion(1) == 0);
    holds(lp_timer_next(f.timer) > now);
}

/* Mostly a little; sometimes to just before, at, or just after what is next; or far. */
static void do_step(void)
{
    lapse_ns next = l.items[l.first].at, tick = now_with.tick;
    bool alone = length() == 1; /* The far one stays. */
    switch (rng_range(&r, 0, 9)) {
    case 0:
        break;
    case 1:
        now = alone || next < now + 1 ? now : next - 1;
        break;
    case 2:
        now = alone || next < now ? now : next;
        break;
    case 3:
        now = alone || next < now ? now : next + rng_range(&r, 0, tick);
        break;
    case 4:
        now += rng_range(&r, 0, (INT64_C(1) << rng_range(&r, 0, 20)) * tick);
        break;
    default:
        now += rng_range(&r, 0, 3 * tick);
    }
    do_expire();
}

/* -- Runs -------------------------------------------------------------------------- */

static void open_both(setting s, lapse_ns start)
{
    now_with = s;
    now = start > INT64_MAX / 64 / s.tick ? start : start * s.tick;
    l.first = l.end = 0;
    fixture_open(&f, s.slots, s.tick, now);
    insert_both(new_record(&f, INT64_MAX / 2 - INT64_MAX / 2 % s.tick));
    far_serial = f.serial;
}

static void close_both(void)
{
    holds(l.items[l.end - 1].serial == far_serial);
    holds(lp_timer_count(f.timer) == length());
    ck_assert_uint_le(f.most_moved, MOVED_MOST);
    fixture_close(&f);
}

/* Keep about `level` records pending for `ops` operations. */
static void run(long ops, size_t level)
{
    for (long i = 0; i < ops; i++) {
        int64_t dice = rng_range(&r, 0, 99);
        if (dice < (length() < level ? 60 : 20))
            do_insert();
        else if (dice < 75)
            do_remove();
        else if (dice < 90)
            do_reschedule();
        else
            do_step();
        check_next();
    }
}

static long operations(void)
{
    const char *given = getenv("LAPSE_OPS");
    return given ? strtol(given, NULL, 0) : tier(20000, 1000000, 10000000);
}

START_TEST(beside_a_sorted_list)
{
    enum { STARTS = sizeof starts / sizeof *starts };
    setting s = settings[_i];
    char name[64];
    (void)snprintf(name, sizeof name, "timer %d: slots %u tick %lld", _i, s.slots,
                   (long long)s.tick);
    r = rng_open(name);
    long ops = operations() / STARTS;
    for (int start = 0; start < STARTS; start++) {
        open_both(s, starts[start]);
        run(ops / 2, 20);
        run(ops / 4, 1000);
        run(ops / 4, 200);
        close_both();
    }
}
END_TEST

/* A crowd: slots with more entries than one call moves. */
START_TEST(beside_a_long_sorted_list)
{
    setting s = settings[_i];
    r = rng_open("timer, crowded");
    long ops = operations() / 50;
    open_both(s, 12345);
    for (long i = 0, crowd = tier(20000, 50000, 50000); i < crowd; i++)
        insert_both(new_record(&f, now + rng_range(&r, 1, 3) * 5000 * s.tick +
                                       rng_range(&r, 0, 100) * s.tick));
    for (long i = 0; i < ops; i++) {
        switch (rng_range(&r, 0, 3)) {
        case 0:
            do_insert();
            break;
        case 1:
            do_remove();
            break;
        case 2:
            do_reschedule();
            break;
        default:
            check_next();
        }
        if (i % 500 == 0)
            do_step();
    }
    now += 20000 * s.tick;
    do_expire();
    close_both();
}
END_TEST

int main(void)
{
    enum { SETTINGS = sizeof settings / sizeof *settings };
    Suite *suite = suite_create("timer beside a list");
    TCase *tc = tcase_create("model");
    tcase_add_loop_test(tc, beside_a_sorted_list, 0, SETTINGS);
    tcase_add_loop_test(tc, beside_a_long_sorted_list, 0, SETTINGS);
    suite_add_tcase(suite, tc);
    return run_suite(suite);
}
