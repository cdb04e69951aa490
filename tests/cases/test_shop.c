/* test_shop.c - the shop's own promises on top of the library's: P-70, P-71, P-74.
 *
 * The shop changes an order only from the state it expects to find (a conditional update)
 * and under its own lock; lapse never calls it with a lock held. Together there is one
 * winner for every order, and stock is given back once or not at all. */
/* tiers: quick full soak */
#include "../support/support.h"

#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

enum status { OPEN, PAID, CLOSED };

struct shop {
    lapse *s;
    pthread_mutex_t lock;
    long count;
    uint64_t seed;
    struct shop_order {
        struct shop *shop;
        enum status status; /* under lock */
        int stock_back;     /* under lock */
        bool reserved;      /* its stock was taken */
        atomic_int runs;
        int answer; /* of cancel, to the payer */
        bool told_too_late;
    } * orders;
};

/* UPDATE orders SET status = `to` WHERE id = … AND status = 'open' */
static bool change(struct shop_order *o, enum status to)
{
    pthread_mutex_lock(&o->shop->lock);
    bool changed = o->status == OPEN;
    if (changed)
        o->status = to;
    if (changed && to == CLOSED && o->reserved)
        o->stock_back++;
    pthread_mutex_unlock(&o->shop->lock);
    return changed;
}

static lapse_verdict close_unpaid(const lapse_order *order, void *arg)
{
    struct shop_order *o = arg;
    (void)order;
    atomic_fetch_add(&o->runs, 1);
    change(o, CLOSED);
    return LAPSE_DONE;
}

static struct shop shop_open(lapse *s, long count)
{
    struct shop shop = {.s = s, .lock = PTHREAD_MUTEX_INITIALIZER, .count = count};
    shop.orders = calloc((size_t)count, sizeof *shop.orders);
    ck_assert_ptr_nonnull(shop.orders);
    return shop;
}

static void order_id(char id[16], long i)
{
    snprintf(id, 16, "OID%08ld", i);
}

/* A customer: orders, and pays about when the time is up. */
static void pay_at_the_last_moment(void *arg, int number)
{
    struct shop *shop = arg;
    rng luck = {shop->seed + (uint64_t)number};
    enum { AT_ONCE = 64 };
    lapse_ns pay_at[AT_ONCE];
    char id[16];
    long first = number * shop->count / 4, last = (number + 1) * shop->count / 4;
    for (long from = first; from < last; from += AT_ONCE) {
        long n = last - from < AT_ONCE ? last - from : AT_ONCE;
        for (long i = 0; i < n; i++) {
            struct shop_order *o = &shop->orders[from + i];
            o->shop = shop;
            o->reserved = true;
            order_id(id, from + i);
            pay_at[i] = boot_now() + LAPSE_US(rng_range(&luck, 4000, 6000));
            if (lapse_schedule(shop->s, id, LAPSE_MS(5), close_unpaid, o) < 0)
                complain("%s", lapse_error_detail());
        }
        for (long i = 0; i < n; i++) {
            struct shop_order *o = &shop->orders[from + i];
            order_id(id, from + i);
            while (boot_now() < pay_at[i])
                sched_yield();
            o->told_too_late = !change(o, PAID);
            o->answer = lapse_cancel(shop->s, id, LAPSE_ANY);
        }
    }
}

static void judge(struct shop *shop)
{
    long paid = 0;
    for (long i = 0; i < shop->count; i++) {
        const struct shop_order *o = &shop->orders[i];
        ck_assert(o->status == PAID || o->status == CLOSED);
        ck_assert_int_eq(o->stock_back, o->status == CLOSED);
        ck_assert_int_eq(o->told_too_late, o->status == CLOSED);
        ck_assert_int_eq(atomic_load(&o->runs), o->answer != LAPSE_FATE_CANCELLED);
        if (o->answer == LAPSE_FATE_CANCELLED)
            ck_assert_int_eq(o->status, PAID);
        paid += o->status == PAID;
    }
    printf("paid %ld, closed %ld\n", paid, shop->count - paid);
}

START_TEST(p70_paid_and_timed_out_at_the_same_instant)
{
    rig r = rig_real(_i, NULL);
    struct shop shop = shop_open(r.s, tier(1000, 10000, 200000));
    shop.seed = rng_open("p70_paid_and_timed_out_at_the_same_instant").state;
    ck_assert_int_eq(lapse_start(r.s, 2), 0);
    crew_run(4, pay_at_the_last_moment, &shop);
    while (stats_of(r.s).pending + stats_of(r.s).running > 0)
        sched_yield();
    rig_close(&r);
    judge(&shop);
    free(shop.orders);
}
END_TEST

/* Delivered three times and swept twice: closed once, stock back once, no failure. */
static lapse_verdict close_and_repeat(const lapse_order *order, void *arg)
{
    close_unpaid(order, arg);
    return order->attempt < 3 ? lapse_retry(order, 0, NULL) : LAPSE_DONE;
}

START_TEST(p71_closed_twice_stock_returned_once)
{
    rig r = rig_manual(_i, START, NULL);
    struct shop shop = shop_open(r.s, 100);
    for (long i = 0; i < shop.count; i++) {
        char id[16];
        order_id(id, i);
        shop.orders[i] = (struct shop_order){.shop = &shop, .reserved = true};
        ck_assert_int_gt(lapse_schedule(r.s, id, LAPSE_MS(5), close_and_repeat, &shop.orders[i]),
                         0);
    }
    for (int ms = 0; ms < 10; ms++) {
        if (ms == 3 || ms == 8) /* The sweeper beside it. */
            for (long i = 0; i < shop.count; i += 2)
                change(&shop.orders[i], CLOSED);
        advance(&r, LAPSE_MS(1));
    }
    for (long i = 0; i < shop.count; i++) {
        ck_assert_int_eq(atomic_load(&shop.orders[i].runs), 3);
        ck_assert_int_eq(shop.orders[i].status, CLOSED);
        ck_assert_int_eq(shop.orders[i].stock_back, 1);
    }
    ck_assert_uint_eq(stats_of(r.s).failed, 0);
    rig_close(&r);
    free(shop.orders);
}
END_TEST

/* Nothing is given back that was never taken. */
START_TEST(p74_no_compensation_for_what_never_happened)
{
    rig r = rig_manual(_i, START, NULL);
    struct shop shop = shop_open(r.s, 2);
    for (long i = 0; i < shop.count; i++) {
        char id[16];
        order_id(id, i);
        shop.orders[i] = (struct shop_order){.shop = &shop, .reserved = i == 0};
        ck_assert_int_gt(lapse_schedule(r.s, id, LAPSE_MS(5), close_unpaid, &shop.orders[i]), 0);
    }
    advance(&r, LAPSE_MS(5));
    ck_assert_int_eq(shop.orders[0].stock_back, 1);
    ck_assert_int_eq(shop.orders[1].stock_back, 0);
    ck_assert_int_eq(shop.orders[1].status, CLOSED);
    rig_close(&r);
    free(shop.orders);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("shop");
    TCase *group = add_group(suite, "P-70, P-71, P-74");
    ADD_FOR_ENGINES(group, p70_paid_and_timed_out_at_the_same_instant);
    ADD_FOR_ENGINES(group, p71_closed_twice_stock_returned_once);
    ADD_FOR_ENGINES(group, p74_no_compensation_for_what_never_happened);
    return run_suite(suite);
}
