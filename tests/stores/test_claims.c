/* test_claims.c - every store: poll, take, settle, leases and fences. P-57 to P-59, P-63.
 *
 * One consumer holds an order at a time. Who lost his lease can settle nothing; each claim
 * has a fence above every earlier one of its id. */
/* tiers: small full */
/* servers */
#include "cases/alike.h"
#include "stores/stores.h"

#include <inttypes.h>
#include <stdlib.h>

/* -- Settle ------------------------------------------------------------------------------- */

START_TEST(a_claim_is_settled_once)
{
    rig r = fresh(_i, NULL);
    settle_a_claim_once(&r);
    rig_close(&r);
}
END_TEST

START_TEST(retry_and_give_back)
{
    rig r = fresh(_i, NULL);
    retry_and_give_back_a_claim(&r);
    rig_close(&r);
}
END_TEST

START_TEST(a_given_back_order_keeps_its_place)
{
    rig r = fresh(_i, NULL);
    put(r.s, NULL, "first", LAPSE_MS(1));
    put(r.s, NULL, "second", LAPSE_MS(2));
    put(r.s, NULL, "third", LAPSE_MS(3));
    advance(&r, LAPSE_MS(10));
    settle(r.s, poll_one(r.s, NULL, "first")->fence, LAPSE_GIVE_BACK);
    const lapse_order *order = poll_one(r.s, NULL, "first");
    ck_assert_int_eq(order->late, LAPSE_MS(9)); /* And its due time. */
    poll_one(r.s, NULL, "second");
    poll_one(r.s, NULL, "third");
    rig_close(&r);
}
END_TEST

START_TEST(a_failing_taker_uses_up_the_attempts)
{
    rig r = fresh(_i, NULL);
    fail_until_dead(&r);
    rig_close(&r);
}
END_TEST

/* What a taker was lent stays as it is while others come and go. */
START_TEST(what_is_lent_stays)
{
    rig r = fresh(_i, NULL);
    char payload[300];
    memset(payload, 'p', sizeof payload);
    lapse_spec spec = {
        .id = "lent", .queue = "q", .payload = payload, .payload_len = sizeof payload};
    ck_assert_int_gt(lapse_put(r.s, &spec), 0);
    advance(&r, LAPSE_MS(1));
    const lapse_order *lent = poll_one(r.s, "q", "lent");
    for (int i = 0; i < 50; i++) {
        put(r.s, "q", "passing", 0);
        advance(&r, LAPSE_MS(1));
        finish_one(r.s, "q", "passing");
    }
    ck_assert_str_eq(lent->id, "lent");
    ck_assert_str_eq(lent->queue, "q");
    ck_assert_uint_eq(lent->payload_len, sizeof payload);
    ck_assert_mem_eq(lent->payload, payload, sizeof payload);
    settle(r.s, lent->fence, LAPSE_DONE);
    rig_close(&r);
}
END_TEST

/* -- Take ------------------------------------------------------------------------------------ */

struct taker {
    rig *r;
    const char *queue;
    int result;
    char id[64];
};

static void take_one(void *arg, int number)
{
    struct taker *t = arg;
    const lapse_order *order = NULL;
    (void)number;
    t->result = lapse_take(t->r->s, t->queue, LIMIT, &order);
    if (t->result == 1) {
        snprintf(t->id, sizeof t->id, "%s", order->id);
        if (lapse_settle(t->r->s, order->fence, LAPSE_DONE, 0, NULL) != 0)
            complain("%s", lapse_error_detail());
    }
}

START_TEST(take_has_a_limit)
{
    rig r = fresh_real(_i, NULL);
    const lapse_order *order = NULL;
    put(r.s, "other", "o", 0);
    put(r.s, "q", "later", LAPSE_HOURS(1));
    lapse_ns before = boot_now();
    ck_assert_int_eq(lapse_take(r.s, "q", LAPSE_MS(20), &order), 0);
    ck_assert_int_ge(boot_now() - before, LAPSE_MS(20));
    ck_assert_ptr_null(order);
    ck_assert_int_eq(lapse_take(r.s, "q", 0, &order), 0);
    ck_assert_int_eq(lapse_take(r.s, "q", -1, &order), 0);
    ck_assert_int_eq(lapse_take(r.s, "other", LIMIT, &order), 1);
    settle(r.s, order->fence, LAPSE_DONE);
    rig_close(&r);
}
END_TEST

/* One who waits is woken by what is scheduled, made due, given back, or by time. */
START_TEST(a_taker_is_woken)
{
    rig r = fresh_real(_i, NULL);
    struct taker t = {.r = &r, .queue = "q"};
    crew c;
    put(r.s, "q", "far", LAPSE_HOURS(1));
    crew_start(&c, 1, take_one, &t);
    put(r.s, "q", "by schedule", 0);
    crew_join(&c);
    ck_assert_str_eq(t.id, "by schedule");
    crew_start(&c, 1, take_one, &t);
    put(r.s, "q", "by time", LAPSE_MS(20));
    crew_join(&c);
    ck_assert_str_eq(t.id, "by time");
    put(r.s, "q", "given back", 0);
    const lapse_order *order;
    ck_assert_int_eq(lapse_take(r.s, "q", LIMIT, &order), 1);
    crew_start(&c, 1, take_one, &t);
    settle(r.s, order->fence, LAPSE_GIVE_BACK);
    crew_join(&c);
    ck_assert_str_eq(t.id, "given back");
    if (lapse_abilities(r.s) & LAPSE_CAN_CANCEL) {
        crew_start(&c, 1, take_one, &t);
        ck_assert_int_eq(lapse_reschedule(r.s, "far", LAPSE_ANY, 0), LAPSE_FATE_RESCHEDULED);
        crew_join(&c);
        ck_assert_str_eq(t.id, "far");
    }
    crew_start(&c, 1, take_one, &t);
    ck_assert_int_eq(lapse_stop(r.s), 0);
    crew_join(&c);
    ck_assert_int_eq(t.result, LAPSE_ECLOSED);
    rig_close(&r);
}
END_TEST

START_TEST(a_taker_is_woken_by_a_moved_clock)
{
    rig r = fresh(_i, NULL);
    struct taker t = {.r = &r};
    crew c;
    put(r.s, "q", "o", LAPSE_HOURS(1));
    crew_start(&c, 1, take_one, &t);
    ck_assert(until_others_sleep());
    ck_assert_int_eq(lapse_clock_advance(r.clock, LAPSE_HOURS(1)), 0);
    crew_join(&c);
    ck_assert_str_eq(t.id, "o");
    rig_close(&r);
}
END_TEST

enum { TAKERS = 6, TAKEN = 600 };

struct takers {
    rig r;
    atomic_int taken[TAKEN], total;
    int64_t fences[TAKEN];
};

static void take_until_all(void *arg, int number)
{
    struct takers *t = arg;
    const lapse_order *order;
    (void)number;
    while (atomic_load(&t->total) < TAKEN) {
        int result = lapse_take(t->r.s, "q", LAPSE_MS(20), &order);
        if (result < 0)
            complain("lapse_take: %s", lapse_error_detail());
        if (result != 1)
            continue;
        int n = atoi(order->id);
        if (atomic_fetch_add(&t->taken[n], 1) != 0)
            complain("order %d was taken twice", n);
        t->fences[n] = order->fence;
        atomic_fetch_add(&t->total, 1);
        if (lapse_settle(t->r.s, order->fence, LAPSE_DONE, 0, NULL) != 0)
            complain("lapse_settle: %s", lapse_error_detail());
    }
}

START_TEST(each_order_is_taken_by_one)
{
    static struct takers t;
    memset(&t, 0, sizeof t);
    t.r = fresh_real(_i, NULL);
    crew c;
    crew_start(&c, TAKERS, take_until_all, &t);
    for (int i = 0; i < TAKEN; i++) {
        char id[16];
        snprintf(id, sizeof id, "%d", i);
        put(t.r.s, "q", id, LAPSE_US(i * 50));
    }
    crew_join(&c);
    check_calm();
    ck_assert_uint_eq(stats_of(t.r.s).done, TAKEN);
    ck_assert_uint_eq(stats_of(t.r.s).started, TAKEN);
    expect_books(t.r.s);
    rig_close(&t.r);
}
END_TEST

START_TEST(a_queue_is_handled_or_taken_from)
{
    rig r = fresh(_i, NULL);
    const lapse_order *order = NULL;
    player p;
    player_open(&p, r.s, NULL);
    handle(r.s, "handled", &p, NULL);
    put(r.s, "handled", "h", 0);
    put(r.s, "taken", "t", 0);
    put(r.s, "nobody's", "n", 0);
    advance(&r, LAPSE_MS(1));
    ck_assert_uint_eq(tape_count(&p.ran), 1);
    EXPECT_ERROR(lapse_poll(r.s, "handled", &order), LAPSE_EMIXED, "handle");
    EXPECT_ERROR(lapse_take(r.s, "handled", 0, &order), LAPSE_EMIXED, "handle");
    finish_one(r.s, "taken", "t");
    EXPECT_ERROR(lapse_handle(r.s, "taken", play, &p, NULL, NULL), LAPSE_EMIXED, "taken");
    finish_one(r.s, NULL, "n"); /* Any queue without a handler. */
    put(r.s, "handled", "h", 0);
    ck_assert_int_eq(lapse_clock_advance(r.clock, LAPSE_MS(1)), 0);
    expect_nothing(r.s, NULL);
    ck_assert_int_eq(lapse_process(r.s, 0), 1);
    player_close(&p);
    rig_close(&r);
}
END_TEST

/* -- Leases ------------------------------------------------------------------------------------- */

START_TEST(a_lease_is_what_the_options_say)
{
    lapse_options options = {.lease = LAPSE_SECONDS(90)};
    const lapse_ns leases[] = {LAPSE_SECONDS(30), LAPSE_SECONDS(90)};
    for (int i = 0; i < 2; i++) {
        rig r = fresh(_i, i == 0 ? NULL : &options);
        put(r.s, "q", "o", 0);
        advance(&r, LAPSE_MS(1));
        int64_t fence = poll_one(r.s, "q", "o")->fence;
        advance(&r, leases[i] - LAPSE_MS(1));
        ck_assert(lapse_holds(r.s, fence));
        expect_nothing(r.s, "q");
        advance(&r, LAPSE_MS(2));
        ck_assert(!lapse_holds(r.s, fence));
        const lapse_order *order = poll_one(r.s, "q", "o");
        ck_assert_int_eq(order->attempt, 2);
        ck_assert_int_gt(order->fence, fence);
        settle(r.s, order->fence, LAPSE_DONE);
        rig_close(&r);
    }
}
END_TEST

START_TEST(p59_a_lost_lease_books_nothing)
{
    const lapse_verdict verdicts[] = {LAPSE_DONE, LAPSE_RETRY, LAPSE_REJECT, LAPSE_FAIL,
                                      LAPSE_GIVE_BACK};
    for (int v = 0; v < 5; v++) {
        lapse_options options = {.lease = LAPSE_MINUTES(1)};
        rig r = fresh(_i, &options);
        put(r.s, "q", "o", 0);
        advance(&r, LAPSE_MS(1));
        int64_t a = poll_one(r.s, "q", "o")->fence;
        advance(&r, LAPSE_SECONDS(90));
        const lapse_order *b = poll_one(r.s, "q", "o");
        ck_assert_int_eq(b->attempt, 2);
        ck_assert_int_gt(b->fence, a);
        ck_assert_int_eq(lapse_settle(r.s, a, verdicts[v], 0, NULL), LAPSE_ESTALE);
        ck_assert_int_eq(lapse_renew(r.s, a, LAPSE_SECONDS(1)), LAPSE_ESTALE);
        ck_assert(!lapse_holds(r.s, a));
        ck_assert(lapse_holds(r.s, b->fence));
        expect_state(r.s, "o", LAPSE_STATE_RUNNING);
        settle(r.s, b->fence, LAPSE_DONE);
        ck_assert_int_eq(lapse_settle(r.s, b->fence, LAPSE_DONE, 0, NULL), LAPSE_ESTALE);
        lapse_stats t = stats_of(r.s);
        ck_assert_uint_eq(t.done, 1);
        ck_assert_uint_eq(t.lost, 1);
        ck_assert_uint_eq(t.started, 2);
        ck_assert_uint_ge(t.stale, 1);
        expect_books(r.s);
        rig_close(&r);
    }
}
END_TEST

/* Late, but nobody else has claimed it: it is lost all the same. */
START_TEST(p59_late_is_stale_also_without_another)
{
    lapse_options options = {.lease = LAPSE_MINUTES(1)};
    rig r = fresh(_i, &options);
    put(r.s, "q", "o", 0);
    advance(&r, LAPSE_MS(1));
    int64_t fence = poll_one(r.s, "q", "o")->fence;
    advance(&r, LAPSE_SECONDS(90));
    ck_assert_int_eq(lapse_settle(r.s, fence, LAPSE_DONE, 0, NULL), LAPSE_ESTALE);
    const lapse_order *order = poll_one(r.s, "q", "o");
    ck_assert_int_eq(order->attempt, 2);
    settle(r.s, order->fence, LAPSE_DONE);
    rig_close(&r);
}
END_TEST

START_TEST(p59_a_renewed_lease_is_kept)
{
    lapse_options options = {.lease = LAPSE_MINUTES(1)};
    rig r = fresh(_i, &options);
    put(r.s, "q", "o", 0);
    advance(&r, LAPSE_MS(1));
    int64_t fence = poll_one(r.s, "q", "o")->fence;
    for (int i = 0; i < 20; i++) {
        advance(&r, LAPSE_SECONDS(54));
        ck_assert_int_eq(lapse_renew(r.s, fence, 0), 0);
        expect_nothing(r.s, "q");
    }
    ck_assert_int_eq(lapse_renew(r.s, fence, LAPSE_HOURS(10)), 0);
    advance(&r, LAPSE_HOURS(9));
    expect_nothing(r.s, "q");
    ck_assert(lapse_holds(r.s, fence));
    EXPECT_ERROR(lapse_renew(r.s, fence, -1), LAPSE_ERANGE, "");
    EXPECT_ERROR(lapse_renew(r.s, fence, LAPSE_DELAY_MAX + 1), LAPSE_ERANGE, "");
    EXPECT_ERROR(lapse_renew(r.s, fence + 1, 0), LAPSE_ESTALE, "");
    settle(r.s, fence, LAPSE_DONE);
    EXPECT_ERROR(lapse_renew(r.s, fence, 0), LAPSE_ESTALE, "");
    ck_assert(!lapse_holds(r.s, fence));
    ck_assert_uint_eq(stats_of(r.s).lost, 0);
    rig_close(&r);
}
END_TEST

/* P-58: nobody holds an order before it is due, however short the lease. */
START_TEST(p58_nothing_is_held_before_it_is_due)
{
    lapse_options options = {.lease = LAPSE_MINUTES(1)};
    rig r = fresh(_i, &options);
    player p;
    player_open(&p, r.s, NULL);
    handle(r.s, "q", &p, NULL);
    put(r.s, "q", "e", LAPSE_MINUTES(10));
    for (int i = 0; i < 19; i++) {
        advance(&r, LAPSE_SECONDS(30));
        expect_state(r.s, "e", LAPSE_STATE_PENDING);
        ck_assert_uint_eq(stats_of(r.s).running, 0);
    }
    advance(&r, LAPSE_SECONDS(30));
    ck_assert_uint_eq(tape_count(&p.ran), 1);
    advance(&r, LAPSE_MINUTES(10));
    ck_assert_uint_eq(tape_count(&p.ran), 1);
    ck_assert_int_eq(p.ran.entries[0].attempt, 1);
    player_close(&p);
    rig_close(&r);
}
END_TEST

/* Fences grow through retries, losses, generations and requeues. */
START_TEST(fences_only_grow)
{
    lapse_options options = {.lease = LAPSE_MINUTES(1)};
    rig r = fresh(_i, &options);
    int64_t last = 0;
    for (int generation = 0; generation < 5; generation++) {
        put(r.s, "q", "o", 0);
        advance(&r, LAPSE_MS(1));
        for (int i = 0; i < 3; i++) {
            const lapse_order *order = poll_one(r.s, "q", "o");
            ck_assert_int_gt(order->fence, last);
            last = order->fence;
            if (i == 0)
                advance(&r, LAPSE_SECONDS(90)); /* Lost. */
            else if (i == 1)
                settle(r.s, last, LAPSE_GIVE_BACK);
            else
                settle(r.s, last, generation % 2 ? LAPSE_DONE : LAPSE_REJECT);
        }
        if (generation % 2 == 0) {
            ck_assert_int_gt(lapse_requeue(r.s, "o", LAPSE_ANY, 0), 0);
            advance(&r, LAPSE_MS(1));
            const lapse_order *order = poll_one(r.s, "q", "o");
            ck_assert_int_gt(order->fence, last);
            last = order->fence;
            settle(r.s, last, LAPSE_DONE);
        }
    }
    rig_close(&r);
}
END_TEST

/* P-63: a task that kills its worker ends, whoever takes it. */
START_TEST(p63_a_poison_order_ends)
{
    rig r = fresh(_i, NULL);
    put(r.s, "q", "poison", 0);
    put_batch(r.s, "q", "g", 99, 0);
    int deliveries = 0, done = 0;
    for (int i = 0; i < 20; i++) {
        const lapse_order *order;
        advance(&r, LAPSE_SECONDS(31));
        while (lapse_poll(r.s, "q", &order) == 1)
            if (strcmp(order->id, "poison") == 0) {
                ck_assert_int_eq(order->attempt, ++deliveries);
                break; /* Its worker is no more. */
            } else {
                settle(r.s, order->fence, LAPSE_DONE);
                done++;
            }
    }
    ck_assert_int_eq(deliveries, 5);
    ck_assert_int_eq(done, 99);
    letter dead = only_letter(r.s);
    ck_assert_str_eq(dead.id, "poison");
    ck_assert_int_eq(dead.reason, LAPSE_REASON_LOST);
    ck_assert_int_eq(dead.attempt, 5);
    ck_assert_uint_eq(stats_of(r.s).lost, 5);
    expect_books(r.s);
    rig_close(&r);
}
END_TEST

/* What the loser looks at stays until it lets go, also when the order is gone. */
START_TEST(the_order_stays_readable_for_the_loser)
{
    rig r = fresh(_i, NULL);
    char payload[100], id[LAPSE_ID_MAX + 1];
    memset(payload, 'p', sizeof payload);
    memset(id, 'i', sizeof id);
    id[LAPSE_ID_MAX] = '\0';
    lapse_spec spec = {.id = id, .queue = "q", .payload = payload, .payload_len = sizeof payload};
    ck_assert_int_gt(lapse_put(r.s, &spec), 0);
    advance(&r, LAPSE_MS(1));
    const lapse_order *lost = poll_one(r.s, "q", id);
    advance(&r, LAPSE_SECONDS(31));
    finish_one(r.s, "q", id);
    put_batch(r.s, "q", "new", 100, 0); /* They use what was freed. */
    advance(&r, LAPSE_MS(1));
    ck_assert_str_eq(lost->id, id);
    ck_assert_mem_eq(lost->payload, payload, sizeof payload);
    ck_assert_int_eq(lapse_settle(r.s, lost->fence, LAPSE_DONE, 0, NULL), LAPSE_ESTALE);
    rig_close(&r);
}
END_TEST

/* -- For hosts ------------------------------------------------------------------------------------ */

START_TEST(begin_and_settle)
{
    rig r = fresh(_i, NULL);
    player p;
    player_open(&p, r.s, NULL);
    handle(r.s, "q", &p, NULL);
    const lapse_order *order, *other;
    lapse_callback fn;
    void *arg;
    put(r.s, "q", "now", LAPSE_MS(1));
    put(r.s, "q", "later", LAPSE_MS(10));
    ck_assert_int_eq(lapse_clock_advance(r.clock, LAPSE_MS(20)), 0);
    ck_assert_int_eq(lapse_wait(r.s, LIMIT), 1);
    ck_assert_int_eq(lapse_begin(r.s, START + LAPSE_MS(1), &order, &fn, &arg), 1);
    ck_assert_str_eq(order->id, "now");
    ck_assert(fn == play && arg == &p);
    ck_assert_int_eq(fn(order, arg), LAPSE_DONE);
    ck_assert_int_eq(lapse_begin(r.s, START + LAPSE_MS(5), &other, &fn, &arg), 0);
    settle(r.s, order->fence, LAPSE_DONE);
    ck_assert_int_eq(lapse_begin(r.s, LAPSE_FOREVER, &order, &fn, &arg), 1);
    ck_assert_str_eq(order->id, "later");
    ck_assert_int_eq(lapse_settle(r.s, order->fence, LAPSE_RETRY, LAPSE_MS(5), NULL), 0);
    ck_assert_int_eq(lapse_begin(r.s, LAPSE_FOREVER, &order, &fn, &arg), 0);
    ck_assert_int_eq(lapse_wait(r.s, 0), 0);
    ck_assert_int_eq(lapse_stop(r.s), 0);
    ck_assert_int_eq(lapse_begin(r.s, LAPSE_FOREVER, &order, &fn, &arg), LAPSE_ECLOSED);
    expect_books(r.s);
    player_close(&p);
    rig_close(&r);
}
END_TEST

static void fill_suite(Suite *suite)
{
    TCase *group = add_group(suite, "settle");
    ADD_FOR_STORES(group, a_claim_is_settled_once);
    ADD_FOR_STORES(group, retry_and_give_back);
    ADD_FOR_STORES(group, a_given_back_order_keeps_its_place);
    ADD_FOR_STORES(group, a_failing_taker_uses_up_the_attempts);
    ADD_FOR_STORES(group, what_is_lent_stays);
    ADD_FOR_STORES(group, begin_and_settle);
    group = add_group(suite, "take");
    ADD_FOR_STORES(group, take_has_a_limit);
    ADD_FOR_STORES(group, a_taker_is_woken);
    ADD_FOR_STORES(group, a_taker_is_woken_by_a_moved_clock);
    ADD_FOR_STORES(group, each_order_is_taken_by_one);
    ADD_FOR_STORES(group, a_queue_is_handled_or_taken_from);
    group = add_group(suite, "leases");
    ADD_FOR_STORES(group, a_lease_is_what_the_options_say);
    ADD_FOR_STORES(group, p59_a_lost_lease_books_nothing);
    ADD_FOR_STORES(group, p59_late_is_stale_also_without_another);
    ADD_FOR_STORES(group, p59_a_renewed_lease_is_kept);
    ADD_FOR_STORES(group, p58_nothing_is_held_before_it_is_due);
    ADD_FOR_STORES(group, fences_only_grow);
    ADD_FOR_STORES(group, p63_a_poison_order_ends);
    ADD_FOR_STORES(group, the_order_stays_readable_for_the_loser);
}

int main(void)
{
    return stores_main("claims", fill_suite);
}
