/* test_share.c - stores that several schedulers use at once: two in one process, and several
 * processes. P-06, P-20, P-57 to P-59, P-61, P-63, P-71, P-75.
 *
 * What one does the others see; an order is held by one of them at a time. What a test
 * says of `here` and `there` holds whichever of them did it. */
/* tiers: small full */
/* servers */
#define _GNU_SOURCE
#include "stores/stores.h"

#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

typedef struct pair {
    place at;
    rig here, there;
} pair;

static bool open_pair(pair *p, int store, const char *test, const lapse_options *options)
{
    p->at = new_place(store, NULL);
    p->here = open_place(&p->at, options);
    if (!able(&p->here, test, LAPSE_CAN_SHARE)) {
        rig_close(&p->here);
        return false;
    }
    p->there = join_place(&p->at, &p->here, options);
    return true;
}

static void close_pair(pair *p)
{
    leave_place(&p->there);
    rig_close(&p->here);
}

#define OPEN_PAIR(p, options)                                                                      \
    do {                                                                                           \
        if (!open_pair(p, _i, __func__, options))                                                  \
            return;                                                                                \
    } while (0)

/* -- What one does the other sees ------------------------------------------------------------- */

START_TEST(one_list_of_orders)
{
    STORE_NEEDS(_i, LAPSE_CAN_CANCEL);
    pair p;
    OPEN_PAIR(&p, NULL);
    int64_t first = put(p.here.s, "q", "o", LAPSE_SECONDS(10));
    EXPECT_ERROR(lapse_put(p.there.s, &(lapse_spec){.id = "o"}), LAPSE_EEXISTS, "\"o\"");
    lapse_info info = look(p.there.s, "o");
    ck_assert_int_eq(info.generation, first);
    ck_assert_int_eq(info.remaining, LAPSE_SECONDS(10));
    lapse_info_free(&info);
    int64_t second = put(p.there.s, "q", "other", LAPSE_SECONDS(5));
    ck_assert_int_gt(second, first);
    ck_assert_int_eq(lapse_cancel(p.here.s, "other", second), LAPSE_FATE_CANCELLED);
    ck_assert_int_eq(lapse_cancel(p.there.s, "other", second), LAPSE_FATE_UNKNOWN);
    ck_assert_int_eq(lapse_reschedule(p.there.s, "o", first, LAPSE_SECONDS(2)),
                     LAPSE_FATE_RESCHEDULED);
    advance(&p.here, LAPSE_SECONDS(2));
    finish_one(p.here.s, "q", "o");
    ck_assert_uint_eq(pending_in(p.there.s), 0);
    close_pair(&p);
}
END_TEST

/* Cancelled there, it does not start here, due or not. */
START_TEST(p20_cancel_there_withdraws_here)
{
    STORE_NEEDS(_i, LAPSE_CAN_CANCEL);
    pair p;
    player player_here;
    OPEN_PAIR(&p, NULL);
    player_open(&player_here, p.here.s, NULL);
    handle(p.here.s, "q", &player_here, NULL);
    put(p.here.s, "q", "far", LAPSE_SECONDS(10));
    put(p.here.s, "q", "due", LAPSE_MS(1));
    put(p.here.s, "q", "stays", LAPSE_SECONDS(10));
    ck_assert_int_eq(lapse_process(p.here.s, 0), 0); /* It knows of them and sleeps. */
    ck_assert_int_eq(lapse_cancel(p.there.s, "far", LAPSE_ANY), LAPSE_FATE_CANCELLED);
    ck_assert_int_eq(lapse_clock_advance(p.here.clock, LAPSE_MS(1)), 0);
    int fate = lapse_cancel(p.there.s, "due", LAPSE_ANY);
    ck_assert(fate == LAPSE_FATE_CANCELLED || fate == LAPSE_FATE_RUNNING);
    advance(&p.here, LAPSE_SECONDS(10));
    ck_assert_uint_eq(tape_runs(&player_here.ran, "far"), 0);
    ck_assert_uint_le(tape_runs(&player_here.ran, "due"), fate == LAPSE_FATE_RUNNING);
    ck_assert_uint_eq(tape_runs(&player_here.ran, "stays"), 1);
    player_close(&player_here);
    close_pair(&p);
}
END_TEST

START_TEST(replace_and_reschedule_there)
{
    STORE_NEEDS(_i, LAPSE_CAN_CANCEL);
    pair p;
    player player_here;
    OPEN_PAIR(&p, NULL);
    player_open(&player_here, p.here.s, NULL);
    handle(p.here.s, "q", &player_here, NULL);
    put(p.here.s, "q", "later", LAPSE_SECONDS(10));
    put(p.here.s, "q", "replaced", LAPSE_SECONDS(10));
    ck_assert_int_eq(lapse_process(p.here.s, 0), 0);
    ck_assert_int_eq(lapse_reschedule(p.there.s, "later", LAPSE_ANY, LAPSE_SECONDS(20)),
                     LAPSE_FATE_RESCHEDULED);
    lapse_spec spec = {.id = "replaced", .queue = "q", .delay = LAPSE_SECONDS(15)};
    spec.flags = LAPSE_REPLACE;
    int64_t generation = lapse_put(p.there.s, &spec);
    advance(&p.here, LAPSE_SECONDS(14));
    ck_assert_uint_eq(tape_count(&player_here.ran), 0);
    advance(&p.here, LAPSE_SECONDS(1));
    ck_assert_uint_eq(tape_count(&player_here.ran), 1);
    ck_assert_int_eq(player_here.ran.entries[0].generation, generation);
    advance(&p.here, LAPSE_SECONDS(5));
    ck_assert_uint_eq(tape_runs(&player_here.ran, "later"), 1);
    player_close(&player_here);
    close_pair(&p);
}
END_TEST

/* While it runs here: there it is running, and what is said there holds here. */
START_TEST(p20_running_here_is_running_there)
{
    STORE_NEEDS(_i, LAPSE_CAN_CANCEL);
    pair p;
    lapse_options options = {.keep = LAPSE_MINUTES(5)};
    OPEN_PAIR(&p, &options);
    put(p.there.s, "q", "o", LAPSE_MS(1));
    put(p.there.s, "q", "again", LAPSE_MS(2));
    advance(&p.here, LAPSE_MS(2));
    const lapse_order *o = poll_one(p.here.s, "q", "o");
    const lapse_order *again = poll_one(p.here.s, "q", "again");
    expect_state(p.there.s, "o", LAPSE_STATE_RUNNING);
    expect_nothing(p.there.s, NULL);
    ck_assert_int_eq(lapse_cancel(p.there.s, "o", LAPSE_ANY), LAPSE_FATE_RUNNING);
    ck_assert_int_eq(lapse_reschedule(p.there.s, "again", LAPSE_ANY, 0), LAPSE_FATE_RUNNING);
    ck_assert_int_eq(lapse_settle(p.there.s, o->fence, LAPSE_DONE, 0, NULL), LAPSE_ESTALE);
    ck_assert_int_eq(lapse_settle(p.here.s, o->fence, LAPSE_RETRY, 0, NULL), 0);
    ck_assert_int_eq(lapse_cancel(p.there.s, "o", LAPSE_ANY), LAPSE_FATE_DONE);
    int64_t generation = put(p.there.s, "q", "again", LAPSE_MS(1)); /* The next one. */
    ck_assert(!lapse_holds(p.here.s, again->fence));
    ck_assert_int_eq(lapse_settle(p.here.s, again->fence, LAPSE_RETRY, 0, NULL), LAPSE_ESTALE);
    advance(&p.here, LAPSE_MS(1));
    const lapse_order *next = poll_one(p.here.s, "q", "again");
    ck_assert_int_eq(next->generation, generation);
    settle(p.here.s, next->fence, LAPSE_DONE);
    advance(&p.there, LAPSE_MINUTES(1));
    expect_nothing(p.there.s, NULL);
    close_pair(&p);
}
END_TEST

START_TEST(dead_letters_are_shared)
{
    pair p;
    OPEN_PAIR(&p, NULL);
    put_batch(p.here.s, "q", "o", 3, LAPSE_MS(1));
    advance(&p.here, LAPSE_MS(1));
    for (int i = 0; i < 3; i++) {
        const lapse_order *order;
        ck_assert_int_eq(lapse_poll(p.here.s, "q", &order), 1);
        settle(p.here.s, order->fence, LAPSE_REJECT);
    }
    ck_assert_uint_eq(stats_of(p.there.s).dead, 3);
    ck_assert_int_gt(lapse_requeue(p.there.s, "o0", LAPSE_ANY, 0), 0);
    ck_assert_int_eq(lapse_purge(p.there.s, "o1", LAPSE_ANY), 1);
    expect_state(p.here.s, "o1", 0);
    advance(&p.here, LAPSE_MS(1));
    finish_one(p.here.s, "q", "o0");
    close_pair(&p);
}
END_TEST

/* Each handles its own queue; what nobody handles stays; a pause is of one scheduler. */
START_TEST(each_runs_what_it_handles)
{
    pair p;
    player mine, theirs, both;
    OPEN_PAIR(&p, NULL);
    player_open(&mine, p.here.s, NULL);
    player_open(&theirs, p.there.s, NULL);
    player_open(&both, p.there.s, NULL);
    handle(p.here.s, "mine", &mine, NULL);
    handle(p.there.s, "theirs", &theirs, NULL);
    handle(p.here.s, "both", &both, NULL);
    handle(p.there.s, "both", &both, NULL);
    ck_assert_int_eq(lapse_pause(p.here.s, "both"), 0);
    put_batch(p.here.s, "theirs", "t", 5, LAPSE_MS(1));
    put_batch(p.there.s, "mine", "m", 5, LAPSE_MS(1));
    put_batch(p.there.s, "both", "b", 5, LAPSE_MS(1));
    put_batch(p.there.s, "nobody's", "n", 5, LAPSE_MS(1));
    ck_assert_int_eq(lapse_clock_advance(p.here.clock, LAPSE_SECONDS(1)), 0);
    ck_assert_int_eq(lapse_process(p.here.s, 0), 5);
    ck_assert_uint_eq(tape_count(&mine.ran), 5);
    ck_assert_int_eq(lapse_process(p.there.s, 0), 10);
    ck_assert_uint_eq(tape_count(&theirs.ran), 5);
    ck_assert_uint_eq(tape_count(&both.ran), 5);
    if (lapse_abilities(p.here.s) & LAPSE_CAN_LIST)
        ck_assert_uint_eq(pending_in(p.here.s), 5);
    player_close(&mine);
    player_close(&theirs);
    player_close(&both);
    close_pair(&p);
}
END_TEST

START_TEST(p29_the_limit_is_of_the_store)
{
    STORE_NEEDS(_i, LAPSE_CAN_LIMIT);
    pair p;
    OPEN_PAIR(&p, &(lapse_options){.max_pending = 4});
    put_batch(p.here.s, "q", "here", 2, LAPSE_MS(1));
    put_batch(p.there.s, "q", "there", 2, LAPSE_MS(1));
    EXPECT_ERROR(lapse_put(p.here.s, &(lapse_spec){.id = "x"}), LAPSE_EFULL, "max_pending");
    EXPECT_ERROR(lapse_put(p.there.s, &(lapse_spec){.id = "x"}), LAPSE_EFULL, "max_pending");
    ck_assert_int_eq(lapse_cancel(p.here.s, "there1", LAPSE_ANY), LAPSE_FATE_CANCELLED);
    put(p.there.s, "q", "x", 0);
    close_pair(&p);
}
END_TEST

/* -- One holder at a time -------------------------------------------------------------------------- */

START_TEST(p57_each_order_is_claimed_by_one)
{
    enum { COUNT = 300 };
    pair p;
    OPEN_PAIR(&p, NULL);
    static int seen[COUNT];
    memset(seen, 0, sizeof seen);
    put_batch(p.here.s, "q", "", COUNT, LAPSE_MS(1));
    advance(&p.here, LAPSE_MS(1));
    int64_t fences[COUNT];
    for (int i = 0; i < COUNT; i++) {
        const lapse_order *order;
        lapse *s = i % 3 ? p.here.s : p.there.s;
        ck_assert_int_eq(lapse_poll(s, "q", &order), 1);
        ck_assert_int_eq(order->attempt, 1);
        ck_assert_int_eq(seen[atoi(order->id)]++, 0);
        fences[i] = order->fence;
    }
    expect_nothing(p.here.s, "q");
    expect_nothing(p.there.s, "q");
    for (int i = 0; i < COUNT; i++)
        settle(i % 3 ? p.here.s : p.there.s, fences[i], LAPSE_DONE);
    ck_assert_uint_eq(stats_of(p.here.s).running, 0);
    close_pair(&p);
}
END_TEST

/* In a store that nobody can look into a lease is its holder's to end: it comes to that by then. */
static void let_leases_end(lapse *holder)
{
    expect_nothing(holder, "another queue");
}

START_TEST(p59_a_lost_lease_is_taken_over)
{
    bool listed = store_abilities(_i) & LAPSE_CAN_LIST;
    pair p;
    OPEN_PAIR(&p, &(lapse_options){.lease = LAPSE_MINUTES(1)});
    put(p.here.s, "q", "o", LAPSE_MS(1));
    advance(&p.here, LAPSE_MS(1));
    int64_t a = poll_one(p.here.s, "q", "o")->fence;
    advance(&p.there, LAPSE_SECONDS(54));
    expect_nothing(p.there.s, "q");
    ck_assert_int_eq(lapse_renew(p.here.s, a, 0), 0);
    advance(&p.there, LAPSE_SECONDS(54));
    expect_nothing(p.there.s, "q"); /* Renewed. */
    advance(&p.there, LAPSE_SECONDS(12));
    let_leases_end(p.here.s);
    const lapse_order *b = poll_one(p.there.s, "q", "o");
    ck_assert_int_eq(b->attempt, 2);
    ck_assert_int_gt(b->fence, a);
    ck_assert(!lapse_holds(p.here.s, a));
    ck_assert_int_eq(lapse_renew(p.here.s, a, 0), LAPSE_ESTALE);
    ck_assert_int_eq(lapse_settle(p.here.s, a, LAPSE_REJECT, 0, NULL), LAPSE_ESTALE);
    if (listed)
        expect_state(p.here.s, "o", LAPSE_STATE_RUNNING);
    ck_assert(lapse_holds(p.there.s, b->fence));
    settle(p.there.s, b->fence, LAPSE_DONE);
    if (listed)
        expect_state(p.here.s, "o", 0);
    expect_nothing(p.here.s, "q");
    ck_assert_uint_eq(stats_of(p.here.s).dead, 0);
    close_pair(&p);
}
END_TEST

/* A callback that runs is renewed by its driver: the other never gets the order. */
START_TEST(p59_a_running_callback_is_not_taken_over)
{
    pair p;
    player theirs;
    OPEN_PAIR(&p, &(lapse_options){.lease = LAPSE_MINUTES(1)});
    player_open(&theirs, p.there.s, NULL);
    handle(p.there.s, "q", &theirs, NULL);
    ck_assert_int_eq(lapse_handle(p.here.s, "q", never, NULL, NULL, NULL), 0);
    put(p.here.s, "q", "o", LAPSE_MS(1));
    ck_assert_int_eq(lapse_clock_advance(p.here.clock, LAPSE_MS(1)), 0);
    const lapse_order *order, *other;
    lapse_callback fn;
    void *arg;
    ck_assert_int_eq(lapse_begin(p.here.s, LAPSE_FOREVER, &order, &fn, &arg), 1);
    for (int i = 0; i < 60; i++) {
        ck_assert_int_eq(lapse_clock_advance(p.here.clock, LAPSE_SECONDS(15)), 0);
        ck_assert_int_eq(lapse_begin(p.here.s, LAPSE_FOREVER, &other, &fn, &arg), 0);
        ck_assert_int_eq(lapse_process(p.there.s, 0), 0);
    }
    ck_assert(lapse_holds(p.here.s, order->fence));
    settle(p.here.s, order->fence, LAPSE_DONE);
    ck_assert_int_eq(lapse_process(p.here.s, 0), 0); /* The store knows of it by then. */
    advance(&p.there, LAPSE_MINUTES(10));
    ck_assert_uint_eq(tape_count(&theirs.ran), 0);
    player_close(&theirs);
    close_pair(&p);
}
END_TEST

/* P-58: three consumers, a lease far shorter than the delay: it starts once, when due. */
START_TEST(p58_visible_when_due)
{
    pair p;
    player players[3];
    OPEN_PAIR(&p, &(lapse_options){.lease = LAPSE_MINUTES(2)});
    rig third = join_place(&p.at, &p.here, &(lapse_options){.lease = LAPSE_MINUTES(2)});
    rig *rigs[] = {&p.here, &p.there, &third};
    for (int i = 0; i < 3; i++) {
        player_open(&players[i], rigs[i]->s, NULL);
        handle(rigs[i]->s, "q", &players[i], NULL);
    }
    put(p.here.s, "q", "e", LAPSE_MINUTES(20));
    for (int minute = 0; minute < 25; minute++) {
        if (minute < 20)
            expect_state(p.there.s, "e", LAPSE_STATE_PENDING);
        ck_assert_uint_eq(stats_of(p.there.s).running, 0);
        ck_assert_int_eq(lapse_clock_advance(p.here.clock, LAPSE_MINUTES(1)), 0);
        for (int i = 0; i < 3; i++)
            ck_assert_int_ge(lapse_process(rigs[(minute + i) % 3]->s, 0), 0);
    }
    size_t runs = 0;
    for (int i = 0; i < 3; i++) {
        runs += tape_count(&players[i].ran);
        player_close(&players[i]);
    }
    ck_assert_uint_eq(runs, 1);
    leave_place(&third);
    close_pair(&p);
}
END_TEST

/* What a scheduler had when it closed another can claim at once, as if untried. */
START_TEST(close_hands_over)
{
    pair p;
    OPEN_PAIR(&p, NULL);
    put(p.there.s, "q", "o", LAPSE_MS(1));
    advance(&p.there, LAPSE_MS(1));
    int64_t fence = poll_one(p.there.s, "q", "o")->fence;
    expect_nothing(p.here.s, "q");
    leave_place(&p.there);
    const lapse_order *order = poll_one(p.here.s, "q", "o");
    ck_assert_int_eq(order->attempt, 1);
    ck_assert_int_gt(order->fence, fence);
    settle(p.here.s, order->fence, LAPSE_DONE);
    rig_close(&p.here);
}
END_TEST

/* P-71: each sale is delivered three times, here and there in turn, and swept twice beside
 * it; the conditional update absorbs it, and one booking counts. */
enum { SALES = 60, DELIVERIES = 3 };

struct sale {
    bool closed;
    int stock_returned, bookings;
    int64_t fence, fences[DELIVERIES], generation;
};

static void close_sale(struct sale *sale)
{
    sale->stock_returned += !sale->closed;
    sale->closed = true;
}

START_TEST(p71_delivered_thrice_and_swept_twice)
{
    pair p;
    OPEN_PAIR(&p, &(lapse_options){.lease = LAPSE_MINUTES(1)});
    static struct sale sales[SALES];
    memset(sales, 0, sizeof sales);
    put_batch(p.here.s, "sales", "", SALES, LAPSE_MS(1));
    advance(&p.here, LAPSE_MS(1));
    for (int d = 0; d < DELIVERIES; d++) {
        lapse *s = d % 2 ? p.there.s : p.here.s;
        for (int i = 0; i < SALES; i++) {
            const lapse_order *order;
            ck_assert_int_eq(lapse_poll(s, "sales", &order), 1);
            struct sale *sale = &sales[atoi(order->id)];
            ck_assert_int_eq(order->attempt, d + 1);
            ck_assert(d == 0 || sale->generation == order->generation); /* id + generation */
            sale->generation = order->generation;
            sale->fences[d] = order->fence;
            if ((i + d) % 3 == 0)
                close_sale(sale); /* The sweeper. */
            close_sale(sale);
        }
        if (d < DELIVERIES - 1)
            advance(&p.here, LAPSE_SECONDS(90));
        let_leases_end(s);
    }
    for (int i = 0; i < SALES; i++)
        for (int d = DELIVERIES - 1; d >= 0; d--) {
            int result =
                lapse_settle(d % 2 ? p.there.s : p.here.s, sales[i].fences[d], LAPSE_DONE, 0, NULL);
            ck_assert_int_eq(result, d == DELIVERIES - 1 ? 0 : LAPSE_ESTALE);
            sales[i].bookings += result == 0;
        }
    for (int i = 0; i < SALES; i++) {
        ck_assert_int_eq(sales[i].stock_returned, 1);
        ck_assert_int_eq(sales[i].bookings, 1);
    }
    ck_assert_uint_eq(stats_of(p.here.s).pending + stats_of(p.here.s).running, 0);
    ck_assert_uint_eq(stats_of(p.here.s).failed, 0);
    close_pair(&p);
}
END_TEST

/* -- On the real clock -------------------------------------------------------------------------------- */

/* P-06: who sleeps here is woken by an earlier order there. */
START_TEST(p06_an_earlier_order_there_wakes_the_sleeper_here)
{
    enum { TIMES = 10 };
    place at = new_place(_i, NULL);
    rig here = open_real(&at, NULL);
    NEEDS(&here, LAPSE_CAN_SHARE);
    rig there = open_real(&at, NULL);
    player p;
    player_open(&p, here.s, NULL);
    handle(here.s, "q", &p, NULL);
    put(here.s, "q", "far", LAPSE_HOURS(1));
    ck_assert_int_eq(lapse_start(here.s, 1), 0);
    lapse_ns worst = 0;
    for (size_t i = 0; i < TIMES; i++) {
        char id[16];
        snprintf(id, sizeof id, "%zu", i);
        put(there.s, "q", id, LAPSE_MS(2));
        ck_assert(tape_wait(&p.ran, i + 1));
        worst = p.ran.entries[i].late > worst ? p.ran.entries[i].late : worst;
    }
    printf("%s: late by %.3f ms at most; polling may add %.0f ms\n", store_name(_i),
           (double)worst / 1e6, (double)stats_of(here.s).poll_bound / 1e6);
    player_close(&p);
    rig_close(&there);
    rig_close(&here);
}
END_TEST

/* Four schedulers with two workers each, and threads that schedule and cancel meanwhile. */
enum { CROWD = 4, CROWDED = 400 };

struct crowd {
    rig rigs[CROWD];
    atomic_int ran[CROWDED];
    int answers[CROWDED];
};

static lapse_verdict note_one(const lapse_order *order, void *arg)
{
    struct crowd *c = arg;
    atomic_fetch_add(&c->ran[atoi(order->id)], 1);
    return LAPSE_DONE;
}

static void schedule_and_cancel(void *arg, int number)
{
    struct crowd *c = arg;
    lapse *s = c->rigs[number].s, *other = c->rigs[(number + 1) % CROWD].s;
    char id[16];
    for (int i = number; i < CROWDED; i += CROWD) {
        snprintf(id, sizeof id, "%d", i);
        lapse_spec spec = {.id = id, .queue = "q", .delay = LAPSE_MS(i % 5)};
        if (lapse_put(s, &spec) < 1)
            complain("%s: %s", id, lapse_error_detail());
        if (i % 2)
            c->answers[i] = lapse_cancel(other, id, LAPSE_ANY);
    }
}

static bool all_ended(void *arg)
{
    lapse_stats t = stats_of(arg);
    return t.pending + t.running == 0;
}

START_TEST(p20_one_winner_among_schedulers)
{
    place at = new_place(_i, NULL);
    lapse_options options = {.keep = LAPSE_HOURS(1)};
    rig first = open_real(&at, &options);
    NEEDS(&first, LAPSE_CAN_SHARE | LAPSE_CAN_CANCEL);
    struct crowd *c = calloc(1, sizeof *c);
    ck_assert_ptr_nonnull(c);
    c->rigs[0] = first;
    for (int i = 0; i < CROWD; i++) {
        if (i > 0)
            c->rigs[i] = open_real(&at, &options);
        ck_assert_int_eq(lapse_handle(c->rigs[i].s, "q", note_one, c, NULL, NULL), 0);
        ck_assert_int_eq(lapse_start(c->rigs[i].s, 2), 0);
    }
    crew_run(CROWD, schedule_and_cancel, c);
    check_calm();
    ck_assert(until(all_ended, c->rigs[0].s));
    for (int i = 0; i < CROWDED; i++) {
        int expected = i % 2 && c->answers[i] == LAPSE_FATE_CANCELLED ? 0 : 1;
        ck_assert_msg(atomic_load(&c->ran[i]) == expected, "order %d ran %d times, answer %d", i,
                      atomic_load(&c->ran[i]), c->answers[i]);
        ck_assert(i % 2 == 0 || c->answers[i] > 0); /* It was there, or ended within `keep`. */
    }
    for (int i = 0; i < CROWD; i++)
        rig_close(&c->rigs[i]);
    free(c);
}
END_TEST

/* -- Several processes ------------------------------------------------------------------------------------ */

/* consume <url> <attempts> <seconds>: run orders of "q" until none has come for a while; print
 * each. An order whose id begins with "poison" kills this process. */
static lapse_verdict print_order(const lapse_order *order, void *arg)
{
    (void)arg;
    printf("%s %d\n", order->id, order->attempt);
    fflush(stdout);
    if (strncmp(order->id, "poison", 6) == 0)
        abort();
    return LAPSE_DONE;
}

static int consume(int argc, char **argv)
{
    lapse *s;
    if (argc != 3 || lapse_open(argv[1], NULL, &s) != 0) {
        fprintf(stderr, "%s\n", lapse_error_detail());
        return 2;
    }
    signal(SIGABRT, SIG_DFL);
    lapse_policy policy = {.attempts = atoi(argv[2])};
    if (lapse_handle(s, "q", print_order, NULL, NULL, &policy) != 0)
        return 3;
    for (;;) { /* Until the store is empty. */
        lapse_stats stats;
        if (lapse_process(s, 0) < 0)
            return 4;
        if (lapse_statistics(s, &stats) != 0)
            continue; /* On a machine that is too busy: ask again. */
        if (stats.pending + stats.running == 0)
            break;
        int result = lapse_wait(s, LAPSE_MS(20));
        if (result < 0)
            return 5;
    }
    return lapse_close(s, LIMIT) == 0 ? 0 : 6;
}

/* Start it, read what it printed (as a count of lines that begin with `word`), and its end. */
static int run_consumer(const place *at, int *end, const char *word, int *last_attempt)
{
    int out, count = 0;
    char line[300];
    const char *const argv[] = {"consume", at->url, "3", NULL};
    pid_t pid = start_part(argv, &out);
    FILE *lines = fdopen(out, "r");
    ck_assert_ptr_nonnull(lines);
    while (fgets(line, sizeof line, lines) != NULL)
        if (strncmp(line, word, strlen(word)) == 0) {
            count++;
            *last_attempt = atoi(strrchr(line, ' '));
        }
    fclose(lines);
    *end = end_of(pid);
    return count;
}

START_TEST(p61_another_process_delivers_what_is_overdue)
{
    place at = new_place(_i, NULL);
    rig r = open_real(&at, NULL);
    NEEDS_PROCESSES(&r, _i);
    put_batch(r.s, "q", "a", 100, LAPSE_MS(1));
    rig_close(&r);
    int end, attempt = 0;
    ck_assert_int_eq(run_consumer(&at, &end, "a", &attempt), 100);
    ck_assert_int_eq(end, 0);
    ck_assert_int_eq(attempt, 1);
    r = open_real(&at, NULL);
    ck_assert_uint_eq(pending_in(r.s), 0);
    rig_close(&r);
}
END_TEST

/* A supervisor restarts the worker: the poison is delivered three times, then it is dead. */
START_TEST(p63_a_poison_order_does_not_come_back_for_ever)
{
    place at = new_place(_i, NULL);
    rig r = open_real(&at, NULL);
    NEEDS_PROCESSES(&r, _i);
    add_option(&at, "lease=1s"); /* For the workers. */
    put_batch(r.s, "q", "good", 50, LAPSE_MS(1));
    put(r.s, "q", "poison", LAPSE_MS(1));
    put_batch(r.s, "q", "late", 49, LAPSE_MS(2));
    int deliveries = 0, end = -1;
    for (int i = 0; i < 10 && end != 0; i++) {
        int attempt = 0, delivered = run_consumer(&at, &end, "poison", &attempt);
        ck_assert_int_le(delivered, 1);
        deliveries += delivered;
        if (delivered == 1)
            ck_assert_int_eq(attempt, deliveries); /* Counted before it started. */
        ck_assert_int_eq(end, delivered == 1 ? -SIGABRT : 0);
    }
    ck_assert_int_eq(end, 0);
    ck_assert_int_eq(deliveries, 3);
    letter dead = only_letter(r.s);
    ck_assert_str_eq(dead.id, "poison");
    ck_assert_int_eq(dead.reason, LAPSE_REASON_LOST);
    ck_assert_int_eq(dead.attempt, 3);
    ck_assert_uint_eq(pending_in(r.s), 0);
    rig_close(&r);
}
END_TEST

/* An operator can call it off while a worker holds it. */
START_TEST(p63_an_operator_in_another_process_calls_it_off)
{
    STORE_NEEDS(_i, LAPSE_CAN_CANCEL);
    place at = new_place(_i, NULL);
    rig r = open_real(&at, NULL);
    NEEDS_PROCESSES(&r, _i);
    add_option(&at, "lease=1s"); /* For the workers. */
    put(r.s, "q", "poison", 0);
    int end, attempt;
    ck_assert_int_eq(run_consumer(&at, &end, "poison", &attempt), 1);
    ck_assert_int_eq(end, -SIGABRT);
    int fate = lapse_cancel(r.s, "poison", LAPSE_ANY); /* Its lease may have ended already. */
    ck_assert(fate == LAPSE_FATE_RUNNING || fate == LAPSE_FATE_CANCELLED);
    ck_assert_int_eq(run_consumer(&at, &end, "poison", &attempt), 0);
    ck_assert_int_eq(end, 0);
    ck_assert_uint_eq(stats_of(r.s).dead, 0);
    rig_close(&r);
}
END_TEST

static void fill_suite(Suite *suite)
{
    TCase *group = add_group(suite, "one store");
    ADD_FOR_STORES(group, one_list_of_orders);
    ADD_FOR_STORES(group, p20_cancel_there_withdraws_here);
    ADD_FOR_STORES(group, replace_and_reschedule_there);
    ADD_FOR_STORES(group, p20_running_here_is_running_there);
    ADD_FOR_STORES(group, dead_letters_are_shared);
    ADD_FOR_STORES(group, each_runs_what_it_handles);
    ADD_FOR_STORES(group, p29_the_limit_is_of_the_store);
    group = add_group(suite, "one holder");
    ADD_FOR_STORES(group, p57_each_order_is_claimed_by_one);
    ADD_FOR_STORES(group, p59_a_lost_lease_is_taken_over);
    ADD_FOR_STORES(group, p59_a_running_callback_is_not_taken_over);
    ADD_FOR_STORES(group, p58_visible_when_due);
    ADD_FOR_STORES(group, close_hands_over);
    ADD_FOR_STORES(group, p71_delivered_thrice_and_swept_twice);
    group = add_group(suite, "the real clock");
    ADD_FOR_STORES(group, p06_an_earlier_order_there_wakes_the_sleeper_here);
    ADD_FOR_STORES(group, p20_one_winner_among_schedulers);
    group = add_group(suite, "several processes");
    ADD_FOR_STORES(group, p61_another_process_delivers_what_is_overdue);
    ADD_FOR_STORES(group, p63_a_poison_order_does_not_come_back_for_ever);
    ADD_FOR_STORES(group, p63_an_operator_in_another_process_calls_it_off);
}

int main(int argc, char **argv)
{
    static const part parts[] = {{"consume", consume}};
    play_part(argc, argv, parts, 1);
    return stores_main("share", fill_suite);
}
