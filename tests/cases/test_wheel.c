/* test_wheel.c - wheel arithmetic and range, P-01 to P-08, on both engines.
 *
 * The yardstick is a plain sorted list rounded up to a tick: what the wheel does may not
 * be told from it. The heap passes the same tests with its tick of a nanosecond.
 */
/* tiers: small full soak */
/* valgrind: soak */
#include "../support/support.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* -- P-01 -------------------------------------------------------------------------- */

static const lapse_ns huge[] = {
    LAPSE_MS(INT64_C(2147483647)),
    LAPSE_MS(INT64_C(1) << 31),
    LAPSE_MS((INT64_C(1) << 32) - 1),
    LAPSE_MS(INT64_C(1) << 32),
    LAPSE_MS(INT64_C(1) << 53),
    LAPSE_MS(INT64_C(1) << 62),
    LAPSE_DELAY_MAX - 1,
    LAPSE_DELAY_MAX,
    LAPSE_DELAY_MAX + 1,
    INT64_C(1) << 53,
    INT64_C(1) << 62,
    INT64_MAX - 1,
    INT64_MAX,
};
enum { HUGE_COUNT = sizeof huge / sizeof *huge };

/* Schedule every huge delay; bit i of the result says that huge[i] was accepted. */
static unsigned schedule_huge(rig *r)
{
    unsigned accepted = 0;
    for (unsigned i = 0; i < HUGE_COUNT; i++) {
        char id[16];
        snprintf(id, sizeof id, "huge%u", i);
        int64_t result = lapse_schedule(r->s, id, huge[i], never, NULL);
        if (huge[i] > LAPSE_DELAY_MAX)
            ck_assert_int_eq(result, LAPSE_ERANGE);
        else
            ck_assert_int_gt(result, 0);
        accepted |= (unsigned)(result > 0) << i;
    }
    return accepted;
}

static void cancel_huge(rig *r, unsigned accepted)
{
    for (unsigned i = 0; i < HUGE_COUNT; i++) {
        char id[16];
        snprintf(id, sizeof id, "huge%u", i);
        int fate = (accepted >> i & 1) != 0 ? LAPSE_FATE_CANCELLED : LAPSE_FATE_UNKNOWN;
        ck_assert_int_eq(lapse_cancel(r->s, id, LAPSE_ANY), fate);
    }
}

static void huge_from(int engine, lapse_ns start)
{
    rig r = rig_manual(engine, start, NULL);
    tape ran;
    tape_open(&ran, r.s);
    unsigned accepted = schedule_huge(&r);
    ck_assert_int_gt(lapse_schedule(r.s, "near", LAPSE_MS(50), tape_note, &ran), 0);
    advance(&r, LAPSE_SECONDS(1));
    ck_assert_uint_eq(tape_count(&ran), 1);
    ck_assert_uint_eq(pending_in(r.s), (unsigned)__builtin_popcount(accepted));
    cancel_huge(&r, accepted);
    ck_assert_uint_eq(pending_in(r.s), 0);
    tape_close(&ran);
    rig_close(&r);
}

START_TEST(p01_huge_delay_is_far_away)
{
    huge_from(_i, 0);
    huge_from(_i, START);
    huge_from(_i, LAPSE_MS(INT64_C(1) << 41));
    huge_from(_i, LAPSE_DELAY_MAX);
}
END_TEST

/* As far as the clock goes, but for the last second. */
static void advance_to_the_end(rig *r)
{
    for (lapse_ns by = INT64_MAX; by >= LAPSE_SECONDS(1); by /= 2) {
        lapse_ns before = lapse_now(r->s);
        int result = lapse_clock_advance(r->clock, by);
        ck_assert(result == 0 || result == LAPSE_ERANGE);
        ck_assert_int_eq(lapse_now(r->s), result == 0 ? before + by : before);
    }
}

START_TEST(p01_end_of_time_does_not_wrap)
{
    rig r = rig_manual(_i, LAPSE_DELAY_MAX, NULL);
    tape ran;
    tape_open(&ran, r.s);
    advance_to_the_end(&r);
    ck_assert_int_gt(lapse_schedule(r.s, "century", LAPSE_DELAY_MAX, never, NULL), 0);
    ck_assert_int_gt(lapse_schedule(r.s, "near", LAPSE_MS(50), tape_note, &ran), 0);
    advance(&r, LAPSE_MS(100));
    ck_assert_uint_eq(tape_count(&ran), 1);
    ck_assert_int_eq(lapse_cancel(r.s, "century", LAPSE_ANY), LAPSE_FATE_CANCELLED);
    tape_close(&ran);
    rig_close(&r);
}
END_TEST

START_TEST(p01_clock_has_a_range)
{
    lapse_clock *clock = NULL;
    ck_assert_int_eq(lapse_clock_manual(-1, &clock), LAPSE_ERANGE);
    ck_assert_int_eq(lapse_clock_manual(LAPSE_DELAY_MAX + 1, &clock), LAPSE_ERANGE);
    ck_assert_ptr_null(clock);
    ck_assert_int_eq(lapse_clock_manual(LAPSE_DELAY_MAX, &clock), 0);
    ck_assert_int_eq(lapse_clock_advance(clock, -1), LAPSE_ERANGE);
    ck_assert_int_eq(lapse_clock_advance(clock, INT64_MAX), LAPSE_ERANGE);
    ck_assert_int_eq(lapse_clock_now(clock), LAPSE_DELAY_MAX);
    lapse_clock_free(clock);
}
END_TEST

/* -- P-02 -------------------------------------------------------------------------- */

struct periodic {
    rig *r;
    lapse_ns last;
    lapse_ns shortest, longest;
    int runs, wanted;
};

static lapse_verdict again(const lapse_order *order, void *arg)
{
    struct periodic *p = arg;
    lapse_ns now = lapse_now(p->r->s), gap = now - p->last;
    p->shortest = gap < p->shortest ? gap : p->shortest;
    p->longest = gap > p->longest ? gap : p->longest;
    p->last = now;
    if (++p->runs < p->wanted &&
        lapse_schedule(p->r->s, order->id, LAPSE_SECONDS(10), again, p) < 0)
        complain("re-schedule %d: %s", p->runs, lapse_error_detail());
    return LAPSE_DONE;
}

START_TEST(p02_gaps_do_not_grow)
{
    rig r = _i == WHEEL
                ? rig_url("memory:?engine=wheel&tick=100ms&slots=512", LAPSE_MS(100), START, NULL)
                : rig_manual(HEAP, START, NULL);
    struct periodic p = {.r = &r, .last = START, .shortest = INT64_MAX};
    p.wanted = (int)tier(150, 1000, 10000); /* A turn of the wheel is five of them. */
    ck_assert_int_gt(lapse_schedule(r.s, "p", LAPSE_SECONDS(10), again, &p), 0);
    for (int i = 0; p.runs < p.wanted && i < 300 * p.wanted; i++)
        advance_once(&r, LAPSE_MS(37));
    ck_assert_int_eq(p.runs, p.wanted);
    ck_assert_int_ge(p.shortest, LAPSE_SECONDS(10));
    ck_assert_int_lt(p.longest, LAPSE_SECONDS(10) + LAPSE_MS(100) + LAPSE_MS(37));
    rig_close(&r);
}
END_TEST

/* -- P-03: beside a sorted list ---------------------------------------------------- */

enum { SLOTS = 64, TURN = SLOTS * SLOTS, BOUNDARY = 6 }; /* TURN: of the second level */

/* What the list expects next; entries are sorted by due tick, then by acceptance. */
struct list {
    struct list_entry {
        int64_t tick;
        intptr_t name;
    } entries[BOUNDARY];
    int next;
};

static struct {
    intptr_t names[BOUNDARY];
    int count;
} fired;

static lapse_verdict fire(const lapse_order *order, void *arg)
{
    (void)order;
    if (fired.count < BOUNDARY)
        fired.names[fired.count++] = (intptr_t)arg;
    return LAPSE_DONE;
}

static void list_add(struct list *l, int count, int64_t tick, intptr_t name)
{
    int i = count;
    for (; i > 0 && l->entries[i - 1].tick > tick; i--)
        l->entries[i] = l->entries[i - 1];
    l->entries[i] = (struct list_entry){tick, name};
}

/* Schedule the delays about one and two spans of a level, in the wheel and the list. */
static void schedule_boundary(rig *r, struct list *l, int64_t now, int64_t span)
{
    const int64_t delays[BOUNDARY] = {span + 1,     2 * span, span - 1,
                                      2 * span + 1, span,     2 * span - 1};
    *l = (struct list){.next = 0};
    fired.count = 0;
    for (int i = 0; i < BOUNDARY; i++) {
        char id[8];
        snprintf(id, sizeof id, "%d", i);
        ck_assert_int_gt(lapse_schedule(r->s, id, LAPSE_MS(delays[i]), fire, (void *)(intptr_t)i),
                         0);
        list_add(l, i, now + delays[i], i);
    }
}

/* Move to `tick` and compare what ran with what the list says is due. */
static void expect_at(rig *r, struct list *l, int64_t *now, int64_t tick)
{
    fired.count = 0;
    advance_once(r, LAPSE_MS(tick - *now));
    *now = tick;
    int count = 0;
    for (; l->next < BOUNDARY && l->entries[l->next].tick <= tick; l->next++, count++)
        ck_assert_msg(count < fired.count && fired.names[count] == l->entries[l->next].name,
                      "at tick %" PRId64 ": order %d of the list did not run in its place", tick,
                      l->next);
    ck_assert_msg(fired.count == count, "at tick %" PRId64 ": %d ran instead of %d", tick,
                  fired.count, count);
}

/* Step towards the next due tick by random strides, stop one tick short of it, then on it. */
static void stride(rig *r, struct list *l, int64_t *now, rng *luck)
{
    while (l->next < BOUNDARY) {
        int64_t due = l->entries[l->next].tick;
        for (int i = 0; i < 8 && *now < due - 1; i++)
            expect_at(r, l, now, rng_range(luck, *now, due - 1));
        expect_at(r, l, now, due - 1);
        expect_at(r, l, now, due);
    }
}

/* `offset` is where the wheel stands when the orders come: it opened there, or came there. */
static void boundary(int engine, int64_t span, int64_t offset, bool opened_there, rng *luck)
{
    const char *url =
        engine == WHEEL ? "memory:?engine=wheel&tick=1ms&slots=64" : "memory:?engine=heap";
    rig r = rig_url(url, LAPSE_MS(1), opened_there ? LAPSE_MS(offset) : 0, NULL);
    if (!opened_there)
        advance(&r, LAPSE_MS(offset));
    struct list l;
    int64_t now = offset;
    schedule_boundary(&r, &l, now, span);
    if (luck != NULL)
        stride(&r, &l, &now, luck);
    else
        while (l.next < BOUNDARY)
            expect_at(&r, &l, &now, now + 1);
    rig_close(&r);
}

START_TEST(p03_lowest_level_every_offset)
{
    for (int64_t offset = 0; offset < SLOTS; offset++) {
        boundary(_i, SLOTS, offset, true, NULL);
        boundary(_i, SLOTS, offset, false, NULL);
    }
}
END_TEST

START_TEST(p03_second_level_tick_by_tick)
{
    const int64_t step = tier(1361, 67, 1);
    for (int64_t offset = 0; offset < TURN; offset += step)
        boundary(_i, TURN, offset, offset % 2 == 0, NULL);
}
END_TEST

START_TEST(p03_second_level_every_offset_in_strides)
{
    rng luck = rng_open("p03_second_level_every_offset_in_strides");
    const int64_t step = tier(61, 1, 1);
    for (int64_t offset = 0; offset < TURN; offset += step)
        boundary(_i, TURN, offset, offset % 2 == 0, &luck);
}
END_TEST

START_TEST(p03_higher_levels_random_offsets)
{
    rng luck = rng_open("p03_higher_levels_random_offsets");
    int64_t span = (int64_t)SLOTS * SLOTS * SLOTS; /* 64^3 ticks up to 64^6, some two years */
    for (int level = 2; level < 6; level++, span *= SLOTS)
        for (int i = 0; i < tier(20, 200, 2000); i++)
            boundary(_i, span, rng_range(&luck, 0, span - 1), i % 2 == 0, &luck);
}
END_TEST

START_TEST(p03_every_number_of_slots)
{
    for (unsigned slots = 64; slots <= 4096; slots *= 2) {
        char url[64];
        snprintf(url, sizeof url, "memory:?engine=wheel&tick=1ms&slots=%u", slots);
        rig r = rig_url(url, LAPSE_MS(1), LAPSE_MS(slots / 2), NULL);
        struct list l;
        int64_t now = slots / 2;
        schedule_boundary(&r, &l, now, slots);
        while (l.next < BOUNDARY)
            expect_at(&r, &l, &now, now + 1);
        rig_close(&r);
    }
}
END_TEST

/* -- P-04 -------------------------------------------------------------------------- */

static const char *ten_ms(int engine)
{
    return engine == WHEEL ? "memory:?engine=wheel&tick=10ms" : "memory:?engine=heap";
}

static void schedule_99(rig *r, tape *ran)
{
    for (int d = 15; d < 1000; d += 10) {
        char id[8];
        snprintf(id, sizeof id, "%d", d);
        ck_assert_int_gt(lapse_schedule(r->s, id, LAPSE_MS(d), tape_note, ran), 0);
    }
}

static void expect_99_in_order(const tape *ran)
{
    ck_assert_uint_eq(ran->count, 99);
    for (size_t i = 0; i < ran->count; i++)
        ck_assert_int_eq(atoi(ran->entries[i].id), 15 + 10 * (int)i);
}

START_TEST(p04_one_late_poll_serves_all)
{
    rig r = rig_url(ten_ms(_i), LAPSE_MS(10), START, NULL);
    tape ran;
    tape_open(&ran, r.s);
    schedule_99(&r, &ran);
    ck_assert_int_eq(advance_once(&r, LAPSE_MS(1000)), 99);
    expect_99_in_order(&ran);
    tape_close(&ran);
    rig_close(&r);
}
END_TEST

START_TEST(p04_a_batch_limit_says_more_is_due)
{
    rig r = rig_url(ten_ms(_i), LAPSE_MS(10), START, NULL);
    tape ran;
    tape_open(&ran, r.s);
    schedule_99(&r, &ran);
    ck_assert_int_eq(lapse_clock_advance(r.clock, LAPSE_MS(1000)), 0);
    for (int left = 99; left > 0; left -= 10) {
        ck_assert_int_eq(lapse_timeout(r.s), 0);
        ck_assert(readable(lapse_fd(r.s)));
        ck_assert_int_eq(lapse_process(r.s, 10), left < 10 ? left : 10);
    }
    ck_assert_int_eq(lapse_timeout(r.s), LAPSE_FOREVER);
    ck_assert(!readable(lapse_fd(r.s)));
    expect_99_in_order(&ran);
    tape_close(&ran);
    rig_close(&r);
}
END_TEST

/* -- P-05 -------------------------------------------------------------------------- */

struct equal {
    rig *r;
    tape *ran;
    int rescheduled;
};

static lapse_verdict schedule_at_wheel_time(const lapse_order *order, void *arg)
{
    struct equal *e = arg;
    (void)order;
    const lapse_ns delays[] = {0, 1, LAPSE_MS(1), LAPSE_MS(10) - 1, LAPSE_MS(10)};
    for (size_t i = 0; i < sizeof delays / sizeof *delays; i++) {
        char id[8];
        snprintf(id, sizeof id, "new%zu", i);
        if (lapse_schedule(e->r->s, id, delays[i], tape_note, e->ran) < 0)
            complain("schedule in the callback: %s", lapse_error_detail());
    }
    e->rescheduled = lapse_reschedule(e->r->s, "later", LAPSE_ANY, 0);
    return LAPSE_DONE;
}

START_TEST(p05_deadline_equal_to_the_wheels_time)
{
    for (int at = 49; at <= 61; at++) {
        rig r = rig_url(ten_ms(_i), LAPSE_MS(10), START, NULL);
        tape ran;
        tape_open(&ran, r.s);
        struct equal e = {&r, &ran, 0};
        ck_assert_int_gt(lapse_schedule(r.s, "later", LAPSE_SECONDS(9), tape_note, &ran), 0);
        ck_assert_int_gt(lapse_schedule(r.s, "c", LAPSE_MS(at), schedule_at_wheel_time, &e), 0);
        lapse_ns due = _i == WHEEL ? LAPSE_MS((at + 9) / 10 * 10) : LAPSE_MS(at);
        ck_assert_int_eq(advance_once(&r, due), 1);
        ck_assert_int_eq(e.rescheduled, LAPSE_FATE_RESCHEDULED);
        ck_assert_uint_eq(tape_count(&ran), 0);
        advance(&r, LAPSE_MS(10));
        ck_assert_uint_eq(tape_count(&ran), 6);
        ck_assert_uint_eq(tape_runs(&ran, "later"), 1);
        tape_close(&ran);
        rig_close(&r);
    }
}
END_TEST

/* -- P-06 -------------------------------------------------------------------------- */

START_TEST(p06_a_nearer_order_wakes_the_sleeper)
{
    rig r = rig_real(_i, NULL);
    tape ran;
    tape_open(&ran, r.s);
    ck_assert_int_gt(lapse_schedule(r.s, "far", LAPSE_HOURS(1), never, NULL), 0);
    ck_assert_int_eq(lapse_start(r.s, 2), 0);
    for (size_t i = 1; i <= 20; i++) {
        char id[16];
        snprintf(id, sizeof id, "near%zu", i);
        ck_assert(until_others_sleep());
        ck_assert_int_gt(lapse_schedule(r.s, id, LAPSE_MS(1), tape_note, &ran), 0);
        ck_assert(tape_wait(&ran, i));
    }
    ck_assert_int_eq(lapse_cancel(r.s, "far", LAPSE_ANY), LAPSE_FATE_CANCELLED);
    tape_close(&ran);
    rig_close(&r);
}
END_TEST

/* The sooner one was placed long ago on a coarse level, the later one just now. */
START_TEST(p06_the_next_deadline_is_the_least_of_all_levels)
{
    for (lapse_ns sooner = LAPSE_MS(65); sooner < LAPSE_DAYS(30); sooner *= 3) {
        rig r =
            rig_url(_i == WHEEL ? "memory:?engine=wheel&tick=1ms&slots=64" : "memory:?engine=heap",
                    LAPSE_MS(1), START, NULL);
        tape ran;
        tape_open(&ran, r.s);
        ck_assert_int_gt(lapse_schedule(r.s, "sooner", sooner, tape_note, &ran), 0);
        advance(&r, sooner - LAPSE_MS(5));
        ck_assert_int_gt(lapse_schedule(r.s, "later", LAPSE_MS(6), tape_note, &ran), 0);
        ck_assert_int_ge(lapse_timeout(r.s), LAPSE_MS(5));
        ck_assert_int_lt(lapse_timeout(r.s), LAPSE_MS(6));
        advance(&r, LAPSE_MS(5) + r.tick);
        ck_assert_uint_ge(tape_count(&ran), 1);
        advance(&r, LAPSE_MS(1));
        ck_assert_uint_eq(tape_count(&ran), 2);
        ck_assert_str_eq(ran.entries[0].id, "sooner");
        ck_assert_int_le(ran.entries[0].late, 2 * r.tick);
        tape_close(&ran);
        rig_close(&r);
    }
}
END_TEST

struct pairs {
    rig *r;
    uint64_t seed;
    atomic_int near_runs;
};

static void schedule_pairs(void *arg, int number)
{
    struct pairs *p = arg;
    rng luck = {p->seed + (uint64_t)number};
    long rounds = tier(250, 2500, 25000);
    for (long i = 0; i < rounds; i++) {
        char near[24], far[24];
        snprintf(near, sizeof near, "near%d.%ld", number, i);
        snprintf(far, sizeof far, "far%d.%ld", number, i);
        lapse_ns soon = LAPSE_US(rng_range(&luck, 0, 3000));
        lapse_ns late = LAPSE_MS(rng_range(&luck, 60000, 3600000));
        if (lapse_schedule(p->r->s, far, late, never, NULL) < 0 ||
            lapse_schedule(p->r->s, near, soon, count_run, &p->near_runs) < 0)
            complain("%s", lapse_error_detail());
        if (i % 16 == 15 && !until_at_least(&p->near_runs, (int)i + 1))
            complain("order %s was missed", near);
        if (lapse_cancel(p->r->s, far, LAPSE_ANY) != LAPSE_FATE_CANCELLED)
            complain("%s was not there to cancel", far);
    }
}

START_TEST(p06_no_miss_among_random_pairs)
{
    rig r = rig_real(_i, NULL);
    struct pairs p = {.r = &r};
    p.seed = rng_open("p06_no_miss_among_random_pairs").state;
    ck_assert_int_eq(lapse_start(r.s, 2), 0);
    crew_run(4, schedule_pairs, &p);
    ck_assert(until_at_least(&p.near_runs, (int)(4 * tier(250, 2500, 25000))));
    ck_assert_uint_eq(pending_in(r.s), 0);
    rig_close(&r);
}
END_TEST

/* -- P-07 -------------------------------------------------------------------------- */

enum { MIXED = 1000 };

struct mixed {
    lapse *s;
    struct mixed_order {
        struct mixed *of;
        lapse_ns due;
        lapse_ns ran;
        int runs;
        bool cancelled;
    } orders[MIXED];
};

static lapse_verdict note_mixed(const lapse_order *order, void *arg)
{
    struct mixed_order *o = arg;
    (void)order;
    o->runs++;
    o->ran = lapse_now(o->of->s);
    return LAPSE_DONE;
}

static void schedule_mixed(struct mixed *m, rng *luck)
{
    for (int i = 0; i < MIXED; i++) {
        char id[8];
        snprintf(id, sizeof id, "%d", i);
        lapse_ns delay = LAPSE_MS(rng_range(luck, 1, 900));
        m->orders[i] = (struct mixed_order){.of = m, .due = lapse_now(m->s) + delay};
        ck_assert_int_gt(lapse_schedule(m->s, id, delay, note_mixed, &m->orders[i]), 0);
    }
    for (int i = 0; i < MIXED; i += 3) {
        char id[8];
        snprintf(id, sizeof id, "%d", i);
        ck_assert_int_eq(lapse_cancel(m->s, id, LAPSE_ANY), LAPSE_FATE_CANCELLED);
        m->orders[i].cancelled = true;
    }
}

static void run_across(int engine, lapse_ns edge, rng *luck)
{
    static struct mixed m;
    rig r = rig_manual(engine, edge - LAPSE_MS(500), NULL);
    m.s = r.s;
    ck_assert_int_gt(lapse_schedule(r.s, "long", LAPSE_DAYS(3650), never, NULL), 0);
    schedule_mixed(&m, luck);
    for (int i = 0; i < 200; i++)
        advance_once(&r, LAPSE_MS(10));
    for (int i = 0; i < MIXED; i++) {
        const struct mixed_order *o = &m.orders[i];
        ck_assert_int_eq(o->runs, !o->cancelled);
        if (o->runs > 0) {
            ck_assert_int_ge(o->ran, o->due);
            ck_assert_int_lt(o->ran, o->due + LAPSE_MS(10) + r.tick);
        }
    }
    ck_assert_int_eq(lapse_cancel(r.s, "long", LAPSE_ANY), LAPSE_FATE_CANCELLED);
    ck_assert_uint_eq(pending_in(r.s), 0);
    rig_close(&r);
}

START_TEST(p07_uptime_is_an_input)
{
    rng luck = rng_open("p07_uptime_is_an_input");
    const int bits[] = {31, 32, 36, 40, 41};
    for (size_t i = 0; i < sizeof bits / sizeof *bits; i++)
        run_across(_i, LAPSE_MS(INT64_C(1) << bits[i]), &luck);
    run_across(_i, LAPSE_MS(500), &luck);
    run_across(_i, INT64_C(1) << 61, &luck);
}
END_TEST

/* -- P-08 -------------------------------------------------------------------------- */

struct in_order {
    rig *r;
    lapse_ns last_due;
    int runs;
};

static lapse_verdict check_order(const lapse_order *order, void *arg)
{
    struct in_order *o = arg;
    if (order->due + o->r->tick < o->last_due)
        complain("%s ran after one due %" PRId64 " ns later", order->id, o->last_due - order->due);
    o->last_due = order->due;
    o->runs++;
    return LAPSE_DONE;
}

static void spread_over_30_days(rig *r, struct in_order *o, long count, rng *luck)
{
    for (long i = 0; i < count; i++) {
        char id[16];
        snprintf(id, sizeof id, "%ld", i);
        lapse_ns delay = LAPSE_MS(rng_range(luck, 1, 30 * INT64_C(86400000)));
        ck_assert_int_gt(lapse_schedule(r->s, id, delay, check_order, o), 0);
    }
}

/* A jump over 15 700 million empty ticks of 10 ms. The work of a call is counted in the
 * entries it moves, so a machine's speed does not matter; the limit of the group's time
 * ends a loop over ticks. */
START_TEST(p08_a_jump_costs_what_is_due)
{
    rng luck = rng_open("p08_a_jump_costs_what_is_due");
    rig r = rig_url(ten_ms(_i), LAPSE_MS(10), START, NULL);
    struct in_order o = {.r = &r};
    spread_over_30_days(&r, &o, 1000, &luck);
    ck_assert_int_eq(advance_once(&r, LAPSE_DAYS(5 * 365)), 1000);
    ck_assert_int_eq(o.runs, 1000);
    ck_assert_uint_le(stats_of(r.s).longest_move, 4096);
    ck_assert_int_eq(advance_once(&r, LAPSE_DAYS(5 * 365)), 0);
    rig_close(&r);
}
END_TEST

/* Many jumps: a hundred thousand days take no time when nothing is due. */
START_TEST(p08_empty_jumps_are_free)
{
    rig r = rig_url(ten_ms(_i), LAPSE_MS(10), START, NULL);
    tape ran;
    tape_open(&ran, r.s);
    ck_assert_int_gt(lapse_schedule(r.s, "last", LAPSE_DAYS(30000), tape_note, &ran), 0);
    for (int day = 0; day < 29999; day++) /* One order keeps the wheel from resting. */
        ck_assert_int_eq(advance_once(&r, LAPSE_DAYS(1)), 0);
    ck_assert_int_eq(advance_once(&r, LAPSE_DAYS(1)), 1);
    ck_assert_int_eq(ran.entries[0].late, 0);
    tape_close(&ran);
    rig_close(&r);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("wheel range");
    TCase *group = add_group(suite, "P-01 to P-08");
    ADD_FOR_ENGINES(group, p01_huge_delay_is_far_away);
    ADD_FOR_ENGINES(group, p01_end_of_time_does_not_wrap);
    tcase_add_test(group, p01_clock_has_a_range);
    ADD_FOR_ENGINES(group, p02_gaps_do_not_grow);
    ADD_FOR_ENGINES(group, p03_lowest_level_every_offset);
    ADD_FOR_ENGINES(group, p03_second_level_tick_by_tick);
    ADD_FOR_ENGINES(group, p03_second_level_every_offset_in_strides);
    ADD_FOR_ENGINES(group, p03_higher_levels_random_offsets);
    tcase_add_test(group, p03_every_number_of_slots);
    ADD_FOR_ENGINES(group, p04_one_late_poll_serves_all);
    ADD_FOR_ENGINES(group, p04_a_batch_limit_says_more_is_due);
    ADD_FOR_ENGINES(group, p05_deadline_equal_to_the_wheels_time);
    ADD_FOR_ENGINES(group, p06_a_nearer_order_wakes_the_sleeper);
    ADD_FOR_ENGINES(group, p06_the_next_deadline_is_the_least_of_all_levels);
    ADD_FOR_ENGINES(group, p06_no_miss_among_random_pairs);
    ADD_FOR_ENGINES(group, p07_uptime_is_an_input);
    ADD_FOR_ENGINES(group, p08_a_jump_costs_what_is_due);
    ADD_FOR_ENGINES(group, p08_empty_jumps_are_free);
    return run_suite(suite);
}
