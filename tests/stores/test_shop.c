/* test_shop.c - every store: the shop's promises on top of lapse's own. P-70, P-72, P-73, P-75.
 *
 * The shop changes an order only from the state it expects to find (a conditional update)
 * and under its own lock. Together with lapse's answers there is one winner for every order,
 * and stock is exact. */
/* tiers: small full soak */
/* servers */
#include "stores/stores.h"

#include <inttypes.h>
#include <poll.h>
#include <sched.h>
#include <stdlib.h>

/* -- The shop ---------------------------------------------------------------------------------- */

enum status { NONE, OPEN, PAID, CLOSED };

struct shop {
    lapse *front, *back; /* where orders are placed, and where they are closed */
    pthread_mutex_t lock;
    long count, stock; /* stock: under lock */
    uint64_t seed;
    lapse_ns delay, spread;
    struct shop_order {
        enum status status; /* under lock */
        int returned;       /* under lock */
        atomic_int runs;
        int fate; /* what cancel answered the payer */
        bool told_too_late;
    } * orders;
};

static void shop_open(struct shop *shop, long count)
{
    pthread_mutex_init(&shop->lock, NULL);
    shop->count = shop->stock = count;
    shop->orders = calloc((size_t)count, sizeof *shop->orders);
    ck_assert_ptr_nonnull(shop->orders);
}

/* UPDATE orders SET status = `to` WHERE id = ... AND status = `from` */
static bool change(struct shop *shop, struct shop_order *o, enum status from, enum status to)
{
    pthread_mutex_lock(&shop->lock);
    bool changed = o->status == from;
    if (changed) {
        o->status = to;
        shop->stock += to == CLOSED ? 1 : to == OPEN ? -1 : 0;
        o->returned += to == CLOSED;
    }
    pthread_mutex_unlock(&shop->lock);
    return changed;
}

static lapse_verdict close_unpaid(const lapse_order *order, void *arg)
{
    struct shop *shop = arg;
    struct shop_order *o = &shop->orders[atol(order->id + 3)];
    atomic_fetch_add(&o->runs, 1);
    change(shop, o, OPEN, CLOSED);
    return LAPSE_DONE;
}

static void place_order(struct shop *shop, long i)
{
    char id[16];
    snprintf(id, sizeof id, "OID%08ld", i);
    change(shop, &shop->orders[i], NONE, OPEN);
    lapse_spec spec = {.id = id, .queue = "unpaid", .delay = shop->delay};
    if (lapse_put(shop->front, &spec) < 1)
        complain("%s: %s", id, lapse_error_detail());
}

static void pay(struct shop *shop, long i)
{
    char id[16];
    struct shop_order *o = &shop->orders[i];
    snprintf(id, sizeof id, "OID%08ld", i);
    o->told_too_late = !change(shop, o, OPEN, PAID);
    o->fate = lapse_cancel(shop->front, id, LAPSE_ANY);
    if (o->fate < 0)
        complain("%s: %s", id, lapse_error_detail());
}

enum { PAYERS = 4, AT_ONCE = 250 };

/* A customer: orders some, and pays each about when its time is up. */
static void pay_at_the_last_moment(void *arg, int number)
{
    struct shop *shop = arg;
    rng luck = {shop->seed + (uint64_t)number};
    lapse_ns pay_at[AT_ONCE];
    long first = number * shop->count / PAYERS, last = (number + 1) * shop->count / PAYERS;
    for (long from = first; from < last; from += AT_ONCE) {
        long n = last - from < AT_ONCE ? last - from : AT_ONCE;
        for (long i = 0; i < n; i++) {
            place_order(shop, from + i);
            pay_at[i] = boot_now() + shop->delay + rng_range(&luck, -shop->spread, shop->spread);
        }
        for (long i = 0; i < n; i++) {
            while (boot_now() < pay_at[i])
                sched_yield();
            pay(shop, from + i);
        }
    }
}

static void judge(struct shop *shop)
{
    long paid = 0, cancelled = 0;
    for (long i = 0; i < shop->count; i++) {
        const struct shop_order *o = &shop->orders[i];
        ck_assert(o->status == PAID || o->status == CLOSED);
        ck_assert_int_eq(o->returned, o->status == CLOSED);
        ck_assert_int_eq(o->told_too_late, o->status == CLOSED); /* A definite answer. */
        ck_assert_msg(atomic_load(&o->runs) == (o->fate != LAPSE_FATE_CANCELLED),
                      "order %ld: cancel answered %d, the callback ran %d times", i, o->fate,
                      atomic_load(&o->runs));
        if (o->fate == LAPSE_FATE_CANCELLED)
            ck_assert_int_eq(o->status, PAID);
        paid += o->status == PAID;
        cancelled += o->fate == LAPSE_FATE_CANCELLED;
    }
    printf("%ld paid, %ld closed, %ld cancelled in time\n", paid, shop->count - paid, cancelled);
    ck_assert_int_eq(shop->stock, shop->count - paid);
}

static bool all_ended(void *arg)
{
    lapse_stats t = stats_of(arg);
    return t.pending + t.running == 0;
}

/* Closed by the scheduler that took the orders, or by another one on the same store. */
static void pay_and_close(int store, const char *test, bool apart)
{
    place at = new_place(store, NULL);
    rig front = open_real(&at, NULL), back = {.s = NULL};
    struct shop shop = {.front = front.s, .back = front.s, .seed = rng_open(test).state};
    if (apart && !able(&front, test, LAPSE_CAN_SHARE)) {
        rig_close(&front);
        return;
    }
    if (apart) {
        back = open_real(&at, NULL);
        shop.back = back.s;
    }
    shop_open(&shop, store_most(store, tier(400, 3000, 100000)));
    shop.delay = LAPSE_MS(tier(200, 500, 500)); /* Longer than it takes to place so many. */
    shop.spread = LAPSE_MS(lapse_abilities(front.s) & LAPSE_CAN_SHARE ? 4 : 1);
    ck_assert_int_eq(lapse_handle(shop.back, "unpaid", close_unpaid, &shop, NULL, NULL), 0);
    ck_assert_int_eq(lapse_start(shop.back, 2), 0);
    crew_run(PAYERS, pay_at_the_last_moment, &shop);
    check_calm();
    ck_assert(until(all_ended, shop.front));
    if (back.s != NULL)
        rig_close(&back);
    rig_close(&front);
    judge(&shop);
    free(shop.orders);
}

START_TEST(p70_paid_and_timed_out_at_the_same_instant)
{
    STORE_NEEDS(_i, LAPSE_CAN_CANCEL);
    pay_and_close(_i, __func__, false);
}
END_TEST

START_TEST(p70_paid_here_and_closed_there)
{
    STORE_NEEDS(_i, LAPSE_CAN_CANCEL);
    pay_and_close(_i, __func__, true);
}
END_TEST

/* -- P-72: the payment page ------------------------------------------------------------------------ */

START_TEST(p72_payment_started_puts_it_off)
{
    rig r = fresh(_i, &(lapse_options){.keep = LAPSE_MINUTES(10)});
    NEEDS(&r, LAPSE_CAN_CANCEL);
    struct shop shop = {.front = r.s, .back = r.s, .delay = LAPSE_MINUTES(30)};
    shop_open(&shop, 2);
    ck_assert_int_eq(lapse_handle(r.s, "unpaid", close_unpaid, &shop, NULL, NULL), 0);
    place_order(&shop, 0);
    place_order(&shop, 1);
    advance(&r, LAPSE_MINUTES(29));
    ck_assert_int_eq(lapse_reschedule(r.s, "OID00000000", LAPSE_ANY, LAPSE_MINUTES(5)),
                     LAPSE_FATE_RESCHEDULED);
    advance(&r, LAPSE_MINUTES(3)); /* The other is closed; its buyer is late. */
    pay(&shop, 0);
    pay(&shop, 1);
    ck_assert_int_eq(shop.orders[0].fate, LAPSE_FATE_CANCELLED);
    ck_assert_int_eq(shop.orders[1].fate, LAPSE_FATE_DONE);
    ck_assert(!shop.orders[0].told_too_late && shop.orders[1].told_too_late);
    ck_assert_int_eq(lapse_reschedule(r.s, "OID00000001", LAPSE_ANY, LAPSE_MINUTES(5)),
                     LAPSE_FATE_DONE);
    advance(&r, LAPSE_MINUTES(30));
    ck_assert_int_eq(shop.stock, 1);
    rig_close(&r);
    free(shop.orders);
}
END_TEST

/* -- P-74: nothing is given back that was never taken ------------------------------------------------- */

START_TEST(p74_no_compensation_for_what_never_happened)
{
    rig r = fresh(_i, NULL);
    struct shop shop = {.front = r.s, .back = r.s, .delay = LAPSE_MINUTES(30)};
    shop_open(&shop, 2);
    ck_assert_int_eq(lapse_handle(r.s, "unpaid", close_unpaid, &shop, NULL, NULL), 0);
    place_order(&shop, 0);
    shop.orders[1].status = OPEN; /* So that this one is not reserved: */
    place_order(&shop, 1);
    shop.orders[1].status = NONE; /* its transaction was rolled back. */
    advance(&r, LAPSE_MINUTES(30));
    ck_assert_int_eq(atomic_load(&shop.orders[1].runs), 1);
    ck_assert_int_eq(shop.orders[0].returned, 1);
    ck_assert_int_eq(shop.orders[1].returned, 0);
    ck_assert_int_eq(shop.stock, 2);
    rig_close(&r);
    free(shop.orders);
}
END_TEST

/* -- P-73: how late is late -------------------------------------------------------------------------- */

/* At its default settings a store says by how much polling may delay an order. */
START_TEST(p73_lateness_has_a_stated_bound)
{
    long count = tier(300, 1000, 10000);
    lapse_ns longest = LAPSE_MS(tier(300, 3000, 120000));
    rig r = fresh_real(_i, NULL);
    player p;
    rng luck = rng_open("p73_lateness_has_a_stated_bound");
    char id[16];
    player_open(&p, r.s, NULL);
    handle(r.s, "q", &p, NULL);
    ck_assert_int_eq(lapse_start(r.s, 2), 0);
    for (long i = 0; i < count; i++) {
        snprintf(id, sizeof id, "%ld", i);
        put(r.s, "q", id, rng_range(&luck, longest / 24, longest));
    }
    struct pollfd nothing = {.fd = -1};
    for (lapse_ns end = boot_now() + longest; boot_now() < end;)
        ck_assert_int_eq(poll(&nothing, 0, 10), 0);
    ck_assert(tape_wait(&p.ran, (size_t)count));
    lapse_stats t = stats_of(r.s);
    printf("%s: late by %.2f ms in the middle, %.2f ms p99, %.2f ms at most; bound of polling "
           "%.0f ms\n",
           store_name(_i), (double)t.late_p50 / 1e6, (double)t.late_p99 / 1e6,
           (double)t.late_max / 1e6, (double)t.poll_bound / 1e6);
    if (tier(0, 0, 1) == 1) /* On a machine that is not busy with other tests. */
        ck_assert_int_le(t.late_p99, LAPSE_SECONDS(1));
    ck_assert_int_le(t.poll_bound, LAPSE_SECONDS(1));
    player_close(&p);
    rig_close(&r);
}
END_TEST

/* -- P-75: after an outage ---------------------------------------------------------------------------- */

/* No second saw more starts than the rate allows. */
static void expect_rate(const tape *ran, long rate)
{
    size_t first = 0;
    for (size_t i = 0; i < ran->count; i++) {
        while (ran->entries[first].now <= ran->entries[i].now - LAPSE_SECONDS(1))
            first++;
        ck_assert_int_le((long)(i - first + 1), rate + rate / 20 + 1);
    }
}

/* Much is overdue when the only consumer starts, and more comes: it is worked off at the
 * rate, oldest first but for the share of the new, with memory that does not grow with it. */
START_TEST(p75_restart_storm)
{
    long overdue = store_most(_i, tier(2000, 5000, 200000)), rate = overdue / tier(20, 20, 100);
    place at = new_place(_i, NULL);
    rig r = open_place(&at, NULL);
    char(*ids)[16] = calloc((size_t)overdue, sizeof *ids);
    lapse_spec *specs = calloc((size_t)overdue, sizeof *specs);
    int64_t *results = calloc((size_t)overdue, sizeof *results);
    ck_assert(ids != NULL && specs != NULL && results != NULL);
    for (long i = 0; i < overdue; i++) {
        snprintf(ids[i], sizeof ids[i], "old%ld", i);
        specs[i] = (lapse_spec){.id = ids[i], .queue = "q", .delay = LAPSE_MS(i)};
    }
    ck_assert_int_eq(lapse_schedule_many(r.s, specs, (size_t)overdue, results), overdue);
    ck_assert_int_eq(lapse_clock_advance(r.clock, LAPSE_HOURS(1) + LAPSE_MS(overdue)), 0);
    if (lapse_abilities(r.s) & LAPSE_CAN_DURABLE)
        reopen_place(&at, &r, NULL);
    size_t before = resident_bytes();
    player p;
    player_open(&p, r.s, NULL);
    handle(r.s, "q", &p, &(lapse_policy){.rate = (unsigned)rate});
    lapse_ns began = lapse_now(r.s);
    long fresh_ones = 0, ticks = 0;
    while (tape_count(&p.ran) < (size_t)(overdue + fresh_ones) || fresh_ones == 0) {
        if (ticks % 20 == 0 && lapse_now(r.s) < began + LAPSE_SECONDS(60)) {
            char id[16]; /* One new one for each ten that the rate allows. */
            for (long n = rate / 10 / 5 + 1; n > 0; n--) {
                snprintf(id, sizeof id, "new%ld", fresh_ones++);
                put(r.s, "q", id, 0);
            }
        }
        advance(&r, LAPSE_MS(10));
        ck_assert_int_lt(++ticks, 30000);
    }
    expect_rate(&p.ran, rate);
    bool tells_newest = lapse_abilities(r.s) & LAPSE_CAN_LIST;
    long old = 0, front = 0; /* Starts of the oldest that waited; the first that has not run. */
    bool *seen = calloc((size_t)overdue + 1, sizeof *seen);
    ck_assert_ptr_nonnull(seen);
    for (size_t i = 0; i < p.ran.count; i++) {
        const tape_entry *e = &p.ran.entries[i];
        if (e->id[0] == 'n') {
            if (tells_newest) /* A pipe gives the oldest first. */
                ck_assert_int_le(e->late, LAPSE_SECONDS(1));
            continue;
        }
        old += atol(e->id + 3) == front;
        seen[atol(e->id + 3)] = true;
        while (seen[front])
            front++;
    }
    free(seen);
    ck_assert_int_ge(old, overdue * 3 / 4);
    printf("%s: %ld overdue and %ld new at %ld a second: done in %.1f s\n", store_name(_i), overdue,
           fresh_ones, rate, (double)(lapse_now(r.s) - began) / 1e9);
#if !defined(UNDER_ASAN) && !defined(UNDER_TSAN) /* which keep what was freed */
    if (lapse_abilities(r.s) & LAPSE_CAN_SHARE)  /* The backlog stays in the store. */
        ck_assert_uint_le(resident_bytes() - before, (64u << 20) + p.ran.room * sizeof(tape_entry));
#else
    (void)before;
#endif
    player_close(&p);
    rig_close(&r);
    free(ids);
    free(specs);
    free(results);
}
END_TEST

static void fill_suite(Suite *suite)
{
    TCase *group = add_group(suite, "the shop");
    ADD_FOR_STORES(group, p70_paid_and_timed_out_at_the_same_instant);
    ADD_FOR_STORES(group, p70_paid_here_and_closed_there);
    ADD_FOR_STORES(group, p72_payment_started_puts_it_off);
    ADD_FOR_STORES(group, p74_no_compensation_for_what_never_happened);
    group = add_group(suite, "lateness and load");
    ADD_FOR_STORES(group, p73_lateness_has_a_stated_bound);
    ADD_FOR_STORES(group, p75_restart_storm);
}

int main(void)
{
    return stores_main("shop", fill_suite);
}
