/* test_lost.c - consumers that are lost with their order, again and again: P-63, P-71.
 *
 * An order that kills its workers ends as a dead letter; one that several deliver and a sweep
 * closes too is booked once. */
/* tiers: quick full soak */
/* valgrind */
#include "delivery.h"

#include <sched.h>
#include <stdlib.h>

/* -- P-63 ------------------------------------------------------------------------------------- */

/* A worker that takes what is there; the poison kills it. */
struct fleet {
    rig r;
    int deliveries, done;
    int64_t fences[8]; /* of the workers that died */
};

static void work_until_death(void *arg, int number)
{
    struct fleet *f = arg;
    const lapse_order *order;
    (void)number;
    while (lapse_take(f->r.s, "q", 0, &order) == 1) {
        if (strcmp(order->id, "poison") == 0) {
            if (f->deliveries < 8)
                f->fences[f->deliveries] = order->fence;
            if (order->attempt != ++f->deliveries)
                complain("delivery %d is attempt %d", f->deliveries, order->attempt);
            return;
        }
        f->done++;
        if (lapse_settle(f->r.s, order->fence, LAPSE_DONE, 0, NULL) != 0)
            complain("%s", lapse_error_detail());
    }
}

START_TEST(p63_a_task_that_kills_its_worker_ends)
{
    struct fleet f = {.r = rig_manual(_i, START, NULL)};
    put(f.r.s, "q", "poison", 0);
    put_many(f.r.s, "q", "g", 99, 0);
    for (int i = 0; i < 20; i++) { /* The supervisor. */
        advance(&f.r, LAPSE_SECONDS(31));
        crew_run(1, work_until_death, &f);
    }
    check_calm();
    ck_assert_int_eq(f.deliveries, 5);
    ck_assert_int_eq(f.done, 99);
    letter dead = only_letter(f.r.s);
    ck_assert_str_eq(dead.id, "poison");
    ck_assert_int_eq(dead.reason, LAPSE_REASON_LOST);
    ck_assert_int_eq(dead.attempt, 5);
    ck_assert_ptr_nonnull(strstr(dead.error, "lease"));
    for (int i = 0; i < 5; i++) /* Should one of them be alive after all. */
        ck_assert_int_eq(lapse_settle(f.r.s, f.fences[i], LAPSE_DONE, 0, NULL), LAPSE_ESTALE);
    lapse_stats t = stats_of(f.r.s);
    ck_assert_uint_eq(t.lost, 5);
    ck_assert_uint_eq(t.dead_by[LAPSE_REASON_LOST], 1);
    ck_assert_uint_eq(t.done, 99);
    ck_assert_uint_eq(t.failed, 0);
    expect_books(f.r.s);
    rig_close(&f.r);
}
END_TEST

START_TEST(p63_an_operator_can_call_it_off)
{
    rig r = rig_manual(_i, START, NULL);
    put(r.s, "q", "poison", 0);
    advance(&r, r.tick);
    poll_one(r.s, "q", "poison");
    advance(&r, LAPSE_SECONDS(31));
    int64_t fence = poll_one(r.s, "q", "poison")->fence;
    ck_assert_int_eq(lapse_cancel(r.s, "poison", LAPSE_ANY), LAPSE_FATE_RUNNING);
    advance(&r, LAPSE_MINUTES(10));
    expect_nothing(r.s, "q"); /* "Running" means that no other attempt follows. */
    ck_assert_uint_eq(stats_of(r.s).cancelled, 1);
    ck_assert_uint_eq(stats_of(r.s).dead_total, 0);
    ck_assert_int_eq(lapse_settle(r.s, fence, LAPSE_DONE, 0, NULL), LAPSE_ESTALE);
    expect_books(r.s);
    rig_close(&r);
}
END_TEST

/* What the lost consumer looks at stays until it lets go, also when the order is gone. */
START_TEST(p63_the_order_stays_readable_for_the_loser)
{
    rig r = rig_manual(_i, START, NULL);
    char payload[100], id[LAPSE_ID_MAX + 1];
    memset(payload, 'p', sizeof payload);
    memset(id, 'i', sizeof id);
    id[LAPSE_ID_MAX] = '\0';
    atomic_int released = 0;
    lapse_spec spec = {.id = id,
                       .queue = "q",
                       .payload = payload,
                       .payload_len = sizeof payload,
                       .arg = &released,
                       .release = count_release};
    ck_assert_int_gt(lapse_put(r.s, &spec), 0);
    advance(&r, r.tick);
    const lapse_order *lost = poll_one(r.s, "q", id);
    advance(&r, LAPSE_SECONDS(31));
    const lapse_order *held = poll_one(r.s, "q", id);
    ck_assert_uint_eq(held->payload_len, sizeof payload);
    ck_assert_mem_eq(held->payload, payload, sizeof payload);
    ck_assert_int_eq(lapse_settle(r.s, held->fence, LAPSE_DONE, 0, NULL), 0);
    ck_assert_int_eq(atomic_load(&released), 1);
    put_many(r.s, "q", "new", 100, 0); /* They use what was freed. */
    ck_assert_str_eq(lost->id, id);
    ck_assert_mem_eq(lost->payload, payload, sizeof payload);
    ck_assert_int_eq(lapse_settle(r.s, lost->fence, LAPSE_DONE, 0, NULL), LAPSE_ESTALE);
    ck_assert_int_eq(atomic_load(&released), 1);
    rig_close(&r);
}
END_TEST

/* -- P-71 ------------------------------------------------------------------------------------- */

enum { SALES = 100, DELIVERIES = 3, SWEEPERS = 2 };

static struct market {
    lapse *s;
    pthread_mutex_t lock;
    struct sale {
        bool closed;        /* under lock */
        int stock_returned; /* under lock */
        int64_t fence;      /* under lock: of the last write */
        int bookings;       /* under lock */
        lapse_order deliveries[DELIVERIES];
    } sales[SALES];
} market;

/* UPDATE orders SET status = 'closed' WHERE id = ... AND status = 'open' */
static void close_sale(struct sale *sale, int64_t fence)
{
    pthread_mutex_lock(&market.lock);
    sale->stock_returned += !sale->closed;
    sale->closed = true;
    sale->fence = fence > sale->fence ? fence : sale->fence;
    pthread_mutex_unlock(&market.lock);
}

static void deliver_or_sweep(void *arg, int number)
{
    (void)arg;
    for (int i = 0; i < SALES; i++) {
        struct sale *sale = &market.sales[i];
        if (number >= DELIVERIES) {
            close_sale(sale, 0);
            continue;
        }
        int64_t fence = sale->deliveries[number].fence;
        close_sale(sale, fence);
        int result = lapse_settle(market.s, fence, LAPSE_DONE, 0, NULL);
        if (result != (number == DELIVERIES - 1 ? 0 : LAPSE_ESTALE))
            complain("delivery %d: %d", number + 1, result);
        pthread_mutex_lock(&market.lock);
        sale->bookings += result == 0;
        pthread_mutex_unlock(&market.lock);
    }
}

/* Each sale is delivered three times, for two consumers have lost their lease. */
static void deliver_thrice(rig *r)
{
    for (int delivery = 0; delivery < DELIVERIES; delivery++) {
        for (int i = 0; i < SALES; i++) {
            const lapse_order *order;
            ck_assert_int_eq(lapse_poll(r->s, "sales", &order), 1);
            market.sales[atoi(order->id)].deliveries[delivery] = *order;
        }
        if (delivery < DELIVERIES - 1)
            advance(r, LAPSE_SECONDS(31));
    }
}

START_TEST(p71_delivered_thrice_and_swept_twice)
{
    rig r = rig_manual(_i, START, NULL);
    memset(&market, 0, sizeof market);
    pthread_mutex_init(&market.lock, NULL);
    market.s = r.s;
    put_many(r.s, "sales", "", SALES, 0);
    advance(&r, r.tick);
    deliver_thrice(&r);
    crew_run(DELIVERIES + SWEEPERS, deliver_or_sweep, NULL);
    check_calm();
    for (int i = 0; i < SALES; i++) {
        const struct sale *sale = &market.sales[i];
        ck_assert_int_eq(sale->stock_returned, 1);
        ck_assert_int_eq(sale->bookings, 1);
        ck_assert_int_eq(sale->fence, sale->deliveries[DELIVERIES - 1].fence);
        for (int d = 0; d < DELIVERIES; d++) {
            ck_assert_int_eq(sale->deliveries[d].attempt, d + 1);
            ck_assert_int_eq(sale->deliveries[d].generation, sale->deliveries[0].generation);
        }
    }
    lapse_stats t = stats_of(r.s);
    ck_assert_uint_eq(t.done, SALES);
    ck_assert_uint_eq(t.failed, 0);
    ck_assert_uint_eq(t.stale, (DELIVERIES - 1) * SALES);
    expect_books(r.s);
    rig_close(&r);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("lost consumers");
    TCase *group = add_group(suite, "lost consumers");
    ADD_FOR_ENGINES(group, p63_a_task_that_kills_its_worker_ends);
    ADD_FOR_ENGINES(group, p63_an_operator_can_call_it_off);
    ADD_FOR_ENGINES(group, p63_the_order_stays_readable_for_the_loser);
    ADD_FOR_ENGINES(group, p71_delivered_thrice_and_swept_twice);
    return run_suite(suite);
}
