/* test_lost_wakeups.c - nobody who waits is forgotten.
 *
 * Takers beside others that time out or work, and what comes before takers and hosts other than
 * by its time. Where a race cannot be forced the tiers say how often it is tried; nothing here
 * depends on how long anything takes. */
/* tiers: small full soak */
#include "delivery.h"

#include <poll.h>

/* -- Takers ---------------------------------------------------------------------------- */

/* A thread that takes until the scheduler is stopped. */
typedef struct taker {
    lapse *s;
    const char *queue;
    lapse_ns timeout; /* of each call */
    tape taken;
    crew thread;
} taker;

static void take_until_stopped(void *arg, int number)
{
    taker *t = arg;
    const lapse_order *order;
    int found;
    (void)number;
    while ((found = lapse_take(t->s, t->queue, t->timeout, &order)) >= 0) {
        if (found == 0)
            continue;
        if (lapse_settle(t->s, order->fence, LAPSE_DONE, 0, NULL) != 0)
            complain("lapse_settle: %s", lapse_error_detail());
        tape_note(&(lapse_order){.id = ""}, &t->taken); /* Its id is free again. */
    }
    if (found != LAPSE_ECLOSED)
        complain("lapse_take: %s", lapse_error_detail());
}

static void taker_start(taker *t, lapse *s, const char *queue, lapse_ns timeout)
{
    *t = (taker){.s = s, .queue = queue, .timeout = timeout};
    tape_open(&t->taken, s);
    crew_start(&t->thread, 1, take_until_stopped, t);
}

/* After lapse_stop. */
static void taker_end(taker *t)
{
    crew_join(&t->thread);
    tape_close(&t->taken);
}

static void expect_taken(taker *t, size_t count)
{
    ck_assert_msg(tape_wait(&t->taken, count), "order %zu is due and its taker sleeps", count);
}

/* Claims that end hours from now: no lease wakes anybody here. */
static const lapse_options long_lease = {.lease = LAPSE_HOURS(10)};

/* -- No wake-up is lost: other takers --------------------------------------------------- */

/* Another taker's calls announce the orders of the first and arm the timer for themselves. */
START_TEST(a_taker_beside_one_with_short_timeouts)
{
    rig r = rig_real(_i, &long_lease);
    taker a, b;
    long rounds = tier(40, 1000, 100000);
    taker_start(&a, r.s, "A", LAPSE_FOREVER);
    taker_start(&b, r.s, "B", LAPSE_US(300));
    for (long n = 1; n <= rounds; n++) {
        put(r.s, "A", "a", LAPSE_US(500));
        expect_taken(&a, (size_t)n);
    }
    lapse_stop(r.s);
    taker_end(&a);
    taker_end(&b);
    rig_close(&r);
}
END_TEST

/* Workers announce on their way from one callback to the next. */
START_TEST(a_taker_beside_busy_workers)
{
    rig r = rig_real(_i, &long_lease);
    taker a;
    atomic_int ran = 0;
    long rounds = tier(15, 1000, 100000);
    ck_assert_int_eq(lapse_handle(r.s, "H", count_run, &ran, NULL, NULL), 0);
    taker_start(&a, r.s, "A", LAPSE_FOREVER);
    ck_assert_int_eq(lapse_start(r.s, 2), 0);
    for (long n = 1; n <= rounds; n++) {
        lapse_ns delay = LAPSE_US(500 + n * 97 % 1500);
        char id[32];
        for (int i = 0; i < 6; i++) {
            snprintf(id, sizeof id, "h%ld.%d", n, i);
            put(r.s, "H", id, delay + LAPSE_US(300 * (i - 2)));
        }
        put(r.s, "A", "a", delay);
        expect_taken(&a, (size_t)n);
    }
    ck_assert(until_at_least(&ran, (int)rounds * 6));
    lapse_stop(r.s);
    taker_end(&a);
    rig_close(&r);
}
END_TEST

/* -- No wake-up is lost: what comes before takers other than by its time ---------------- */

/* A way to keep the orders of queue "A" from takers, and to let them go. */
typedef struct lid {
    const char *name;
    int (*shut)(lapse *s);
    int (*lift)(lapse *s);
} lid;

static int pause_a(lapse *s)
{
    return lapse_pause(s, "A");
}

static int resume_a(lapse *s)
{
    return lapse_resume(s, "A");
}

static int handle_a(lapse *s)
{
    return lapse_handle(s, "A", never, NULL, NULL, NULL);
}

static int unhandle_a(lapse *s)
{
    return lapse_handle(s, "A", NULL, NULL, NULL, NULL);
}

static const lid lids[] = {
    {"resume", pause_a, resume_a},
    {"removal of a handler", handle_a, unhandle_a},
};
enum { LIDS = sizeof lids / sizeof lids[0] };

static bool is_overdue(void *arg)
{
    return queue_stats(arg, "A").oldest_due > 0;
}

static void shut_over_a_due_order(rig *r, const lid *l)
{
    ck_assert_int_eq(l->shut(r->s), 0);
    put(r->s, "A", "x", 0);
    if (r->clock != NULL)
        ck_assert_int_eq(lapse_clock_advance(r->clock, LAPSE_MS(1)), 0);
    ck_assert_msg(until(is_overdue, r->s), "%s: the order does not fall due", l->name);
    ck_assert(until_others_sleep());
}

/* The lid is lifted, and at once a schedule arms the timer anew. */
START_TEST(a_lifted_lid_before_a_schedule)
{
    rig r = rig_real(_i, &long_lease);
    taker any;
    long rounds = tier(6, 1000, 20000);
    put(r.s, "A", "far", LAPSE_SECONDS(600));
    taker_start(&any, r.s, NULL, LAPSE_FOREVER);
    for (long n = 1; n <= rounds; n++) {
        const lid *l = &lids[n % LIDS];
        shut_over_a_due_order(&r, l);
        ck_assert_int_eq(l->lift(r.s), 0);
        put(r.s, "A", "near", LAPSE_SECONDS(300));
        ck_assert_msg(tape_wait(&any.taken, (size_t)n), "after the %s the taker sleeps", l->name);
        ck_assert_int_eq(lapse_cancel(r.s, "near", LAPSE_ANY), LAPSE_FATE_CANCELLED);
    }
    lapse_stop(r.s);
    taker_end(&any);
    rig_close(&r);
}
END_TEST

/* The lid is lifted, and at once the clock is moved. */
START_TEST(a_lifted_lid_before_an_advance)
{
    rig r = rig_manual(_i, START, &long_lease);
    taker any;
    long rounds = tier(10, 1000, 20000);
    put(r.s, "A", "far", LAPSE_HOURS(10));
    taker_start(&any, r.s, NULL, LAPSE_FOREVER);
    for (long n = 1; n <= rounds; n++) {
        const lid *l = &lids[n % LIDS];
        shut_over_a_due_order(&r, l);
        ck_assert_int_eq(l->lift(r.s), 0);
        ck_assert_int_eq(lapse_clock_advance(r.clock, LAPSE_MS(1)), 0);
        ck_assert_msg(tape_wait(&any.taken, (size_t)n), "after the %s the taker sleeps", l->name);
    }
    lapse_stop(r.s);
    taker_end(&any);
    rig_close(&r);
}
END_TEST

static void give_back_and_schedule(int engine)
{
    rig r = rig_real(engine, &long_lease);
    taker a;
    const lapse_order *order;
    put(r.s, "A", "x", 0);
    put(r.s, "A", "far", LAPSE_SECONDS(600));
    ck_assert_int_eq(lapse_take(r.s, "A", LIMIT, &order), 1);
    taker_start(&a, r.s, "A", LAPSE_FOREVER);
    ck_assert(until_others_sleep());
    ck_assert_int_eq(lapse_settle(r.s, order->fence, LAPSE_GIVE_BACK, 0, NULL), 0);
    put(r.s, "A", "near", LAPSE_SECONDS(300));
    expect_taken(&a, 1);
    lapse_stop(r.s);
    taker_end(&a);
    rig_close(&r);
}

START_TEST(an_order_given_back_before_a_schedule)
{
    long rounds = tier(5, 500, 10000);
    for (long n = 0; n < rounds; n++)
        give_back_and_schedule(_i);
}
END_TEST

/* -- No wake-up is lost: the host's descriptor ------------------------------------------ */

/* Of two queues that are due one is looked at: the other is still told. */
START_TEST(the_descriptor_tells_of_the_other_queue)
{
    rig r = rig_manual(_i, START, NULL);
    int fd = lapse_fd(r.s);
    put(r.s, "A", "a", 0);
    put(r.s, "B", "b", 0);
    ck_assert(readable(fd));
    const lapse_order *b = poll_one(r.s, "B", "b");
    ck_assert(readable(fd));
    const lapse_order *a = poll_one(r.s, "A", "a");
    expect_nothing(r.s, "A");
    expect_nothing(r.s, "B");
    ck_assert(!readable(fd));
    ck_assert_int_eq(lapse_settle(r.s, a->fence, LAPSE_DONE, 0, NULL), 0);
    ck_assert_int_eq(lapse_settle(r.s, b->fence, LAPSE_DONE, 0, NULL), 0);
    rig_close(&r);
}
END_TEST

/* A resumed order is told until it is looked for, whatever else is called meanwhile. */
START_TEST(the_descriptor_tells_of_a_resumed_order)
{
    rig r = rig_manual(_i, START, NULL);
    int fd = lapse_fd(r.s);
    ck_assert_int_eq(lapse_pause(r.s, "A"), 0);
    put(r.s, "A", "a", 0);
    expect_nothing(r.s, "A");
    expect_nothing(r.s, "A");
    ck_assert(!readable(fd));
    ck_assert_int_eq(lapse_resume(r.s, "A"), 0);
    ck_assert(readable(fd));
    ck_assert_int_eq(lapse_resume(r.s, "other"), 0);
    put(r.s, "A", "later", LAPSE_HOURS(1));
    ck_assert_int_eq(lapse_clock_advance(r.clock, LAPSE_MS(1)), 0);
    ck_assert(readable(fd));
    const lapse_order *a = poll_one(r.s, "A", "a");
    expect_nothing(r.s, "A");
    ck_assert(!readable(fd));
    ck_assert_int_eq(lapse_settle(r.s, a->fence, LAPSE_DONE, 0, NULL), 0);
    rig_close(&r);
}
END_TEST

/* The next order of "A", for a host that sleeps on the descriptor. */
static const lapse_order *await_order(lapse *s, int fd)
{
    const lapse_order *order = NULL;
    int found = 0;
    while (found == 0) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        ck_assert_msg(poll(&p, 1, (int)(LIMIT / LAPSE_MS(1))) == 1,
                      "an order is due and the descriptor is not readable");
        found = lapse_poll(s, "A", &order);
    }
    ck_assert_int_eq(found, 1);
    return order;
}

START_TEST(a_host_beside_a_taker)
{
    rig r = rig_real(_i, &long_lease);
    taker b;
    long rounds = tier(60, 1000, 100000);
    int fd = lapse_fd(r.s);
    taker_start(&b, r.s, "B", LAPSE_US(400));
    for (long n = 0; n < rounds; n++) {
        put(r.s, "A", "a", LAPSE_US(700));
        const lapse_order *order = await_order(r.s, fd);
        ck_assert_int_eq(lapse_settle(r.s, order->fence, LAPSE_DONE, 0, NULL), 0);
    }
    lapse_stop(r.s);
    taker_end(&b);
    rig_close(&r);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("lost wake-ups");
    TCase *group = add_group(suite, "wake-ups");
    ADD_FOR_ENGINES(group, a_taker_beside_one_with_short_timeouts);
    ADD_FOR_ENGINES(group, a_taker_beside_busy_workers);
    ADD_FOR_ENGINES(group, a_lifted_lid_before_a_schedule);
    ADD_FOR_ENGINES(group, a_lifted_lid_before_an_advance);
    ADD_FOR_ENGINES(group, an_order_given_back_before_a_schedule);
    ADD_FOR_ENGINES(group, the_descriptor_tells_of_the_other_queue);
    ADD_FOR_ENGINES(group, the_descriptor_tells_of_a_resumed_order);
    ADD_FOR_ENGINES(group, a_host_beside_a_taker);
    return run_suite(suite);
}
