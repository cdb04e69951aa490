/* test_rabbitmq_ask.c - how many orders are asked for: what nobody has started loses no attempt, and
 * is kept from nobody. */
/* servers: rabbitmq */
#define _GNU_SOURCE
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "stores/rabbitmq_turns.h"
#include "stores/stores.h"

static const char *const queues[] = {"q"};

static void put_orders(bench *b, int from, int count)
{
    for (int i = from; i < from + count; i++) {
        char id[16];
        snprintf(id, sizeof id, "o%d", i);
        ck_assert_int_gt(put_at(b, "q", id, 0, NULL), 0);
    }
}

static rabbit_queue *queue_of(const bench *b)
{
    return lp_rabbit_find_queue(inside(b), "q");
}

/* What is here, or may come, that nobody has started. */
static unsigned asked_for(const bench *b)
{
    const rabbit_queue *q = queue_of(b);
    return q ? q->ready_count + lp_rabbit_free_slots(q) : 0;
}

static lp_loan *claim_up_to(bench *b, unsigned most, bool spare)
{
    lp_want w = {.queues = queues, .queue_count = 1, .pushed = true, .spare = spare, .most = most};
    lp_loan *l;
    ck_assert_int_eq(run(b, NULL, &w, &l), 0);
    return l;
}

/* End them, each delivered for the first time; how many there were. */
static int end_all(bench *b, lp_loan *l)
{
    int n = 0;
    for (lp_loan *next; l; l = next, n++) {
        next = l->next;
        ck_assert_msg(l->attempt == 1, "%s came with attempt %d", l->id, l->attempt);
        ck_assert_int_eq(settle_as(b, l, LP_END), 0);
        free(l);
    }
    return n;
}

static void pause_for(bench *b)
{
    struct epoll_event e;
    (void)epoll_wait(lp_rabbitmq_store.hint_fd(b->d), &e, 1, 20);
    lp_rabbitmq_store.hinted(b->d);
}

/* More and less are asked for while they come, and who asks closes again and again. */
static void ask_for_more_and_less(int store, bool spare)
{
    enum { ALL = 600, A_TIME = 60 };
    bench b, other;
    place p = new_place(store, NULL);
    open_bench(&other, &p);
    put_orders(&other, 0, ALL);
    for (int done = 0, turn = 0; done < ALL;) {
        open_bench(&b, &p);
        for (int here = 0; here < A_TIME && done + here < ALL; turn++) {
            lp_loan *l = claim_up_to(&b, 1 + (unsigned)turn % 16, spare);
            if (l == NULL)
                pause_for(&b);
            here += end_all(&b, l);
            if (here >= A_TIME || done + here == ALL)
                done += here;
        }
        close_bench(&b);
    }
    ck_assert_uint_eq(count(&other, "work.q"), 0);
    close_bench(&other);
}

START_TEST(those_that_nobody_started_lose_no_attempt)
{
    ask_for_more_and_less(_i, false);
    ask_for_more_and_less(_i, true);
}
END_TEST

/* The broker may be slower with acknowledgements than who sends them and closes. */
START_TEST(what_has_ended_does_not_come_again)
{
    enum { ALL = 300 };
    bench b, other;
    place p = new_place(_i, NULL);
    open_bench(&b, &p);
    open_bench(&other, &p);
    put_orders(&other, 0, ALL);
    for (int done = 0; done < ALL;)
        done += end_all(&b, claim_up_to(&b, 100, false));
    close_bench(&b);
    ck_assert_int_gt(put_at(&other, "q", "last", LAPSE_MS(500), NULL), 0);
    lp_loan *l = claim(&other, "q");
    ck_assert_str_eq(l->id, "last");
    free(l);
    close_bench(&other);
}
END_TEST

START_TEST(no_more_come_than_can_start_where_an_attempt_counts)
{
    bench b;
    place p = new_place(_i, NULL);
    open_bench(&b, &p);
    put_orders(&b, 0, 100);
    for (int done = 0; done < 100;) {
        lp_loan *l = claim_up_to(&b, 3, false);
        ck_assert_uint_le(asked_for(&b), 3);
        if (l == NULL)
            pause_for(&b);
        done += end_all(&b, l);
    }
    close_bench(&b);
}
END_TEST

/* Until some are here that nobody has asked to start yet. */
static int get_ahead(bench *b)
{
    int done = 0;
    while (asked_for(b) < 20 || queue_of(b)->ready_count < 5) {
        lp_loan *l = claim_up_to(b, 1, true);
        if (l == NULL)
            pause_for(b);
        done += end_all(b, l);
    }
    return done;
}

START_TEST(those_here_ahead_that_nobody_starts_go_to_another)
{
    enum { ALL = 300 };
    bench b, other;
    place p = new_place(_i, NULL);
    open_bench(&b, &p);
    open_bench(&other, &p);
    put_orders(&b, 0, ALL);
    int done = get_ahead(&b);
    lp_loan *slow = claim_up_to(&b, 1, true);
    ck_assert_ptr_nonnull(slow);
    while (done < ALL - 1) {
        lp_loan *none = claim_up_to(&b, 0, true), *l = claim_up_to(&other, 1, false);
        ck_assert_ptr_null(none);
        if (l == NULL)
            pause_for(&other);
        done += end_all(&other, l);
    }
    ck_assert_int_eq(end_all(&b, slow), 1);
    ck_assert_uint_eq(asked_for(&b), 0);
    close_bench(&other);
    close_bench(&b);
}
END_TEST

/* When a worker dies, one of those that it held may be the reason. */
START_TEST(those_of_a_worker_that_died_come_one_at_a_time)
{
    bench b;
    place p = new_place(_i, NULL);
    open_bench(&b, &p);
    put_orders(&b, 0, 200);
    (void)get_ahead(&b);
    close(inside(&b)->in.fd); /* The broker sees its end. */
    int attempt = 1;
    while (attempt == 1) {
        lp_loan *l = claim_up_to(&b, 1, true);
        bool is_ahead = asked_for(&b) > 1;
        if (l == NULL)
            pause_for(&b);
        attempt = l ? l->attempt : 1;
        if (attempt == 2)
            ck_assert(!is_ahead || lp_clock_monotonic() > queue_of(&b)->careful_until);
        free(l);
    }
    close_bench(&b);
}
END_TEST

/* -- A channel that the broker closes -- */

static unsigned free_of(const bench *b, const char *queue)
{
    const rabbit_queue *q = lp_rabbit_find_queue(inside(b), queue);
    return q ? lp_rabbit_free_slots(q) : 0;
}

/* As for a callback that takes too long. That it has is not read yet. */
static void have_closed(bench *b, const char *queue)
{
    amqp_basic_ack_t never = {.delivery_tag = 1000000};
    uint16_t channel = lp_rabbit_find_queue(inside(b), queue)->channel;
    struct pollfd p = {.fd = inside(b)->in.fd, .events = POLLIN};
    ck_assert_int_eq(lp_rabbit_drain(&inside(b)->in), 0);
    ck_assert_int_eq(lp_rabbit_send(&inside(b)->in, channel, AMQP_BASIC_ACK_METHOD, &never), 0);
    ck_assert_int_eq(poll(&p, 1, (int)(LIMIT / LAPSE_MS(1))), 1);
}

static lp_loan *claim_each(bench *b, lp_want *wants, size_t count)
{
    lp_turn t = {.now = lp_clock_now(NULL),
                 .wall = lp_clock_wall(NULL),
                 .lease = LAPSE_SECONDS(30),
                 .wants = wants,
                 .want_count = count,
                 .push_most = 100};
    ck_assert_int_eq(lp_rabbit_claim(inside(b), &t), 0);
    return t.loans;
}

static int free_all(lp_loan *l)
{
    int n = 0;
    for (lp_loan *next; l; l = next, n++) {
        next = l->next;
        free(l);
    }
    return n;
}

/* It is found out while another queue is asked. */
START_TEST(what_comes_after_a_channel_was_closed_is_not_kept)
{
    enum { ALL = 12 };
    static const char *const first[] = {"p"};
    bench b;
    place p = new_place(_i, NULL);
    open_bench(&b, &p);
    lp_want wants[] = {{.queues = first, .queue_count = 1, .most = 1},
                       {.queues = queues, .queue_count = 1, .most = ALL}};
    ck_assert_ptr_nonnull(lp_rabbit_queue(inside(&b), "p"));
    put_orders(&b, 0, 1);
    free(claim(&b, "q"));
    put_orders(&b, 1, ALL - 1);
    have_closed(&b, "q");
    int n = free_all(claim_each(&b, wants, 2));
    ck_assert_int_eq(n, 0); /* Now it is known. */
    for (; n < ALL; n++)
        free(claim(&b, "q"));
    close_bench(&b);
}
END_TEST

START_TEST(a_closed_channel_costs_no_other)
{
    bench b;
    place p = new_place(_i, NULL);
    open_bench(&b, &p);
    ck_assert_ptr_null(claim_up_to(&b, 3, true));
    ck_assert_uint_eq(free_of(&b, "q"), 3);
    queue_of(&b)->surplus_since = 1;
    queue_of(&b)->consumers[0].is_ahead = true;
    have_closed(&b, "q");
    ck_assert_int_eq(lp_rabbit_ask_for_less(inside(&b)), 0);
    (void)count(&b, "work.q");
    (void)count(&b, "work.q");
    ck_assert_ptr_nonnull(inside(&b)->in.connection);
    close_bench(&b);
}
END_TEST

/* Somebody has declared its work queue as he likes. */
START_TEST(a_queue_that_cannot_be_used_holds_up_no_other)
{
    static const char *const names[] = {"bad", "q"};
    bench b;
    char work[LP_RABBIT_NAME_MAX + 1];
    place p = new_place(_i, "poll=1m");
    open_bench(&b, &p);
    lp_rabbit_name(work, inside(&b)->settings.prefix, "work.bad");
    amqp_queue_declare_t m = {.queue = amqp_cstring_bytes(work)};
    ck_assert_int_eq(lp_rabbit_call(&inside(&b)->in, LP_RABBIT_DECLARE, AMQP_QUEUE_DECLARE_METHOD,
                                    &m, AMQP_QUEUE_DECLARE_OK_METHOD, 0),
                     0);
    put_orders(&b, 0, 1);
    ck_assert_ptr_nonnull(lp_rabbit_queue(inside(&b), "bad"));
    lp_loan *l = NULL;
    for (lapse_ns end = lp_clock_monotonic() + LIMIT; !l && lp_clock_monotonic() < end;) {
        lp_want w = {.queues = names, .queue_count = 2, .most = 2};
        ck_assert_int_eq(run(&b, NULL, &w, &l), 0);
        if (!l)
            pause_for(&b);
    }
    ck_assert_int_eq(end_all(&b, l), 1);
    lp_want bad = {.queues = names, .queue_count = 1, .most = 1};
    lapse_ns now = lp_clock_now(NULL);
    ck_assert_int_eq(run(&b, NULL, &bad, NULL), 0);
    ck_assert_int_gt(bad.next, now + LAPSE_SECONDS(30));
    delete_queue(&b, "work.bad");
    close_bench(&b);
}
END_TEST

/* Has waited here so long, and will for ever unless it is refused with the one before. */
static void wait_long(const bench *b, bool is_first)
{
    rabbit_queue *q = queue_of(b);
    lapse_ns now = lp_clock_monotonic();
    q->refused_at = q->refused_at ? now : 0;
    if (q->ready)
        q->ready->arrived = is_first ? now - 2 * LP_RABBIT_HOLD : now + LIMIT;
}

/* As of a handler that was paused. */
START_TEST(one_that_nobody_starts_does_not_wait_in_slot_after_slot)
{
    bench b, other;
    place p = new_place(_i, NULL);
    open_bench(&b, &p);
    open_bench(&other, &p);
    ck_assert_ptr_null(claim_up_to(&b, 12, false));
    ck_assert_uint_eq(free_of(&b, "q"), 12);
    ck_assert_ptr_null(claim_up_to(&other, 1, false));
    put_orders(&b, 0, 1);
    lp_loan *l = NULL;
    for (lapse_ns end = lp_clock_monotonic() + LIMIT; !l && lp_clock_monotonic() < end;) {
        wait_long(&b, queue_of(&b)->refused_at == 0);
        ck_assert_ptr_null(claim_up_to(&b, 0, false));
        l = claim_up_to(&other, 1, false);
        if (!l)
            pause_for(&b);
    }
    ck_assert_int_eq(end_all(&other, l), 1);
    close_bench(&other);
    close_bench(&b);
}
END_TEST

static void fill_suite(Suite *suite)
{
    TCase *group = add_group(suite, "how many are asked for");
    ADD_FOR_STORES(group, those_that_nobody_started_lose_no_attempt);
    ADD_FOR_STORES(group, what_has_ended_does_not_come_again);
    ADD_FOR_STORES(group, no_more_come_than_can_start_where_an_attempt_counts);
    ADD_FOR_STORES(group, those_here_ahead_that_nobody_starts_go_to_another);
    ADD_FOR_STORES(group, those_of_a_worker_that_died_come_one_at_a_time);
    ADD_FOR_STORES(group, what_comes_after_a_channel_was_closed_is_not_kept);
    ADD_FOR_STORES(group, a_closed_channel_costs_no_other);
    ADD_FOR_STORES(group, a_queue_that_cannot_be_used_holds_up_no_other);
    ADD_FOR_STORES(group, one_that_nobody_starts_does_not_wait_in_slot_after_slot);
}

int main(void)
{
    return stores_main("orders asked for of RabbitMQ", fill_suite);
}
