/* test_handlers.c - who handles a queue, and when it pauses.
 *
 * A queue has one handler. Replacing it, removing it and pausing it lose no order and run none
 * twice, also while it runs. */
/* tiers: small full soak */
/* valgrind */
#include "delivery.h"

#include <sched.h>
#include <stdlib.h>

/* -- Handlers ------------------------------------------------------------------------ */

START_TEST(a_handler_runs_the_orders_of_its_queue)
{
    rig r = rig_manual(_i, START, NULL);
    player p;
    player_open(&p, r.s, NULL);
    tape own;
    tape_open(&own, r.s);
    put(r.s, "close", "before", LAPSE_SECONDS(1)); /* Before there is a handler. */
    handle(r.s, "close", &p, NULL);
    int64_t generation = put(r.s, "close", "after", LAPSE_SECONDS(2));
    put(r.s, "another", "another's", LAPSE_SECONDS(1));
    lapse_spec spec = {.id = "own", .queue = "close", .fn = tape_note, .arg = &own};
    ck_assert_int_gt(lapse_put(r.s, &spec), 0);
    advance(&r, LAPSE_SECONDS(1) - 1);
    ck_assert_uint_eq(tape_count(&own), 1);
    ck_assert_uint_eq(tape_count(&p.ran), 0);
    advance(&r, 1);
    ck_assert_uint_eq(tape_runs(&p.ran, "before"), 1);
    advance(&r, LAPSE_SECONDS(1));
    ck_assert_uint_eq(tape_count(&p.ran), 2);
    ck_assert_str_eq(p.ran.entries[1].id, "after");
    ck_assert_int_eq(p.ran.entries[1].generation, generation);
    ck_assert_int_eq(p.ran.entries[1].attempt, 1);
    ck_assert_int_eq(p.ran.entries[1].late, 0);
    ck_assert_int_eq(state_of(r.s, "another's"), LAPSE_STATE_PENDING);
    ck_assert_uint_eq(queue_stats(r.s, "close").done, 3);
    expect_books(r.s);
    tape_close(&own);
    player_close(&p);
    rig_close(&r);
}
END_TEST

static lapse_verdict look_closely(const lapse_order *order, void *arg)
{
    int *looks = arg;
    ck_assert_str_eq(order->id, "OID00000010");
    ck_assert_uint_eq(order->id_len, 11);
    ck_assert_str_eq(order->queue, "");
    ck_assert_uint_eq(order->payload_len, 4);
    ck_assert_mem_eq(order->payload, "a\0b", 4);
    ck_assert_int_gt(order->fence, 0);
    (*looks)++;
    return LAPSE_DONE;
}

START_TEST(the_queue_without_a_name_has_a_handler_too)
{
    rig r = rig_manual(_i, START, NULL);
    int looks = 0;
    ck_assert_int_eq(lapse_handle(r.s, NULL, look_closely, &looks, NULL, NULL), 0);
    lapse_spec spec = {.id = "OID00000010", .payload = "a\0b", .payload_len = 4};
    ck_assert_int_gt(lapse_put(r.s, &spec), 0);
    advance(&r, r.tick);
    ck_assert_int_eq(looks, 1);
    rig_close(&r);
}
END_TEST

START_TEST(a_queue_is_handled_or_taken_from)
{
    rig r = rig_manual(_i, START, NULL);
    const lapse_order *order;
    player p;
    player_open(&p, r.s, NULL);
    atomic_int released = 0;
    handle(r.s, "handled", &p, NULL);
    put(r.s, "handled", "H", 0);
    put(r.s, "taken", "T", 0);
    ck_assert_int_eq(lapse_clock_advance(r.clock, LAPSE_MS(1)), 0);
    ck_assert_int_eq(lapse_poll(r.s, "handled", &order), LAPSE_EMIXED);
    ck_assert_int_eq(lapse_take(r.s, "handled", LAPSE_FOREVER, &order), LAPSE_EMIXED);
    int64_t fence = poll_one(r.s, NULL, "T")->fence; /* Any without a handler. */
    expect_nothing(r.s, NULL);
    expect_nothing(r.s, "taken");
    ck_assert_int_eq(lapse_handle(r.s, "taken", play, &released, count_release, NULL),
                     LAPSE_EMIXED);
    ck_assert_int_eq(atomic_load(&released), 0); /* It was not accepted. */
    ck_assert(!queue_stats(r.s, "taken").handled);
    ck_assert_int_eq(lapse_settle(r.s, fence, LAPSE_DONE, 0, NULL), 0);
    ck_assert_int_eq(lapse_process(r.s, 0), 1);
    ck_assert_uint_eq(tape_runs(&p.ran, "H"), 1);
    player_close(&p);
    rig_close(&r);
}
END_TEST

START_TEST(policies_have_ranges)
{
    const lapse_policy wrong[] = {
        {.attempts = -1},
        {.attempts = INT32_MAX},
        {.backoff = -1},
        {.backoff = LAPSE_DELAY_MAX + 1},
        {.backoff_max = -1},
        {.backoff_max = INT64_MAX},
        {.backoff_percent = -1},
        {.backoff_percent = 99},
        {.jitter_percent = 101},
        {.run_limit = -1},
        {.run_limit = LAPSE_DELAY_MAX + 1},
        {.expires = -1},
        {.expires = INT64_MAX},
        {.stuck_after = -1},
        {.stuck_after = LAPSE_DELAY_MAX + 1},
    };
    rig r = rig_manual(_i, START, NULL);
    player p;
    player_open(&p, r.s, NULL);
    atomic_int released = 0;
    handle(r.s, "q", &p, NULL);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        ck_assert_int_eq(lapse_handle(r.s, "q", count_run, &released, count_release, &wrong[i]),
                         LAPSE_ERANGE);
        ck_assert_int_eq(lapse_handle(r.s, "new", count_run, &released, count_release, &wrong[i]),
                         LAPSE_ERANGE);
    }
    char name[LAPSE_ID_MAX + 2];
    memset(name, 'q', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    ck_assert_int_eq(lapse_handle(r.s, name, count_run, &released, count_release, NULL),
                     LAPSE_EINVAL);
    ck_assert_int_eq(atomic_load(&released), 0);
    lapse_queue_stats stats;
    ck_assert_int_eq(lapse_queue_statistics(r.s, "new", &stats), LAPSE_EUNKNOWN);
    put(r.s, "q", "o", 0);
    advance(&r, r.tick);
    ck_assert_uint_eq(tape_count(&p.ran), 1); /* The old handler is still there. */
    ck_assert_int_eq(lapse_stop(r.s), 0);
    ck_assert_int_eq(lapse_handle(r.s, "q", count_run, &released, count_release, NULL),
                     LAPSE_ECLOSED);
    ck_assert_int_eq(atomic_load(&released), 0);
    player_close(&p);
    rig_close(&r);
}
END_TEST

/* -- Replaced and removed ------------------------------------------------------------- */

START_TEST(a_replaced_handler_is_released_when_it_runs_no_more)
{
    rig r = rig_manual(_i, START, NULL);
    atomic_int first = 0, second = 0;
    const lapse_order *old, *new;
    lapse_callback fn;
    void *arg;
    ck_assert_int_eq(lapse_handle(r.s, "q", never, &first, count_release, NULL), 0);
    put_many(r.s, "q", "", 2, 0);
    ck_assert_int_eq(lapse_clock_advance(r.clock, LAPSE_MS(1)), 0);
    ck_assert_int_eq(lapse_begin(r.s, LAPSE_FOREVER, &old, &fn, &arg), 1);
    ck_assert(fn == never && arg == &first);
    ck_assert_int_eq(lapse_handle(r.s, "q", count_run, &second, count_release, NULL), 0);
    ck_assert_int_eq(atomic_load(&first), 0);
    ck_assert_int_eq(lapse_begin(r.s, LAPSE_FOREVER, &new, &fn, &arg), 1);
    ck_assert(fn == count_run && arg == &second);
    ck_assert_int_eq(lapse_settle(r.s, new->fence, LAPSE_DONE, 0, NULL), 0);
    ck_assert_int_eq(atomic_load(&first), 0); /* It still runs. */
    ck_assert_int_eq(lapse_settle(r.s, old->fence, LAPSE_RETRY, LAPSE_SECONDS(1), NULL), 0);
    ck_assert_int_eq(atomic_load(&first), 1);
    advance(&r, LAPSE_SECONDS(1)); /* The retry is the new one's. */
    ck_assert_int_eq(atomic_load(&second), 1);
    rig_close(&r);
    ck_assert_int_eq(atomic_load(&first), 1);
    ck_assert_int_eq(atomic_load(&second), 2); /* One run and one release. */
}
END_TEST

START_TEST(a_removed_handler_leaves_its_orders_to_others)
{
    rig r = rig_manual(_i, START, NULL);
    atomic_int released = 0;
    player p;
    player_open(&p, r.s, NULL);
    ck_assert_int_eq(lapse_handle(r.s, "q", never, &released, count_release, NULL), 0);
    put_many(r.s, "q", "", 3, LAPSE_SECONDS(1));
    ck_assert(queue_stats(r.s, "q").handled);
    ck_assert_int_eq(lapse_handle(r.s, "q", NULL, NULL, NULL, NULL), 0);
    ck_assert_int_eq(atomic_load(&released), 1);
    ck_assert(!queue_stats(r.s, "q").handled);
    advance(&r, LAPSE_SECONDS(2));
    ck_assert_uint_eq(pending_in(r.s), 3);
    lapse_settle(r.s, poll_one(r.s, NULL, "0")->fence, LAPSE_DONE, 0, NULL);
    handle(r.s, "q", &p, NULL); /* It was never asked for by name. */
    advance(&r, 0);
    ck_assert_uint_eq(tape_count(&p.ran), 2);
    ck_assert_str_eq(p.ran.entries[0].id, "1");
    ck_assert_int_eq(p.ran.entries[0].late, LAPSE_SECONDS(1));
    ck_assert_int_eq(lapse_handle(r.s, "q", NULL, NULL, NULL, NULL), 0);
    ck_assert_int_eq(lapse_handle(r.s, "q", NULL, NULL, NULL, NULL), 0); /* Nothing to remove. */
    player_close(&p);
    rig_close(&r);
}
END_TEST

/* A handler that puts another in its own place, and looks whether it is gone already. */
struct heir {
    rig *r;
    atomic_int released;
    player next;
};

static lapse_verdict make_way(const lapse_order *order, void *arg)
{
    struct heir *h = arg;
    (void)order;
    handle(h->r->s, "q", &h->next, NULL);
    ck_assert_int_eq(atomic_load(&h->released), 0);
    return LAPSE_DONE;
}

static void release_heir(void *arg)
{
    atomic_fetch_add(&((struct heir *)arg)->released, 1);
}

START_TEST(a_handler_may_replace_itself)
{
    rig r = rig_manual(_i, START, NULL);
    struct heir h = {.r = &r};
    player_open(&h.next, r.s, NULL);
    ck_assert_int_eq(lapse_handle(r.s, "q", make_way, &h, release_heir, NULL), 0);
    put_many(r.s, "q", "", 3, 0);
    advance(&r, LAPSE_MS(1));
    ck_assert_int_eq(atomic_load(&h.released), 1);
    ck_assert_uint_eq(tape_count(&h.next.ran), 2);
    player_close(&h.next);
    rig_close(&r);
}
END_TEST

/* Handlers come and go while four threads run them: none is called after its release. */
enum { HANDLERS = 200 };

struct tenant {
    atomic_int inside, released;
};

struct house {
    lapse *s;
    atomic_int runs;
    struct tenant tenants[HANDLERS];
};

static struct house house;

static lapse_verdict visit(const lapse_order *order, void *arg)
{
    struct tenant *t = arg;
    atomic_fetch_add(&t->inside, 1);
    if (atomic_load(&t->released) != 0)
        complain("%s was given to a handler that was released", order->id);
    sched_yield();
    atomic_fetch_sub(&t->inside, 1);
    atomic_fetch_add(&house.runs, 1);
    return order->attempt < 2 ? lapse_retry(order, 0, NULL) : LAPSE_DONE;
}

static void move_out(void *arg)
{
    struct tenant *t = arg;
    if (atomic_load(&t->inside) != 0)
        complain("a handler was released while it ran");
    atomic_fetch_add(&t->released, 1);
}

static void change_tenants(void *arg, int number)
{
    (void)arg;
    for (int i = number; i < HANDLERS; i += 2) {
        int result = lapse_handle(house.s, "q", visit, &house.tenants[i], move_out, NULL);
        if (result != 0)
            complain("lapse_handle: %s", lapse_error_detail());
        sched_yield();
    }
}

static void order_all_the_time(void *arg, int number)
{
    (void)arg, (void)number;
    for (int i = 0; i < 500; i++) {
        char id[8];
        snprintf(id, sizeof id, "%d", i);
        if (lapse_put(house.s, &(lapse_spec){.id = id, .queue = "q"}) < 0)
            complain("lapse_put: %s", lapse_error_detail());
    }
}

static void change_or_order(void *arg, int number)
{
    if (number < 2)
        change_tenants(arg, number);
    else
        order_all_the_time(arg, number);
}

START_TEST(handlers_change_while_they_run)
{
    rig r = rig_real(_i, NULL);
    memset(&house, 0, sizeof house);
    house.s = r.s;
    ck_assert_int_eq(lapse_start(r.s, 4), 0);
    crew_run(3, change_or_order, NULL);
    ck_assert(until_at_least(&house.runs, 1000)); /* Each order twice. */
    rig_close(&r);
    ck_assert_int_eq(atomic_load(&house.runs), 1000);
    for (int i = 0; i < HANDLERS; i++)
        ck_assert_int_eq(atomic_load(&house.tenants[i].released), 1);
}
END_TEST

/* -- Pausing ------------------------------------------------------------------------------ */

static int64_t put_own(lapse *s, const char *queue, const char *id, lapse_ns delay, tape *ran)
{
    return lapse_put(
        s, &(lapse_spec){.id = id, .queue = queue, .delay = delay, .fn = tape_note, .arg = ran});
}

START_TEST(a_paused_queue_starts_nothing)
{
    const char *const in_order[] = {"h1", "own2", "h3", "own4"};
    rig r = rig_manual(_i, START, NULL);
    player p;
    player_open(&p, r.s, NULL);
    handle(r.s, "q", &p, NULL);
    ck_assert_int_eq(lapse_pause(r.s, "q"), 0);
    ck_assert_int_eq(lapse_pause(r.s, "q"), 0); /* Once is enough. */
    ck_assert(queue_stats(r.s, "q").paused);
    put(r.s, "q", "h1", LAPSE_MS(1));
    put_own(r.s, "q", "own2", LAPSE_MS(2), &p.ran);
    put(r.s, "q", "h3", LAPSE_MS(3));
    put_own(r.s, "q", "own4", LAPSE_MS(4), &p.ran);
    put(r.s, "q", "cancelled", LAPSE_MS(2));
    put_own(r.s, "q", "cancelled too", LAPSE_MS(2), &p.ran);
    put_own(r.s, "other", "other", LAPSE_MS(2), &p.ran);
    advance(&r, LAPSE_SECONDS(10));
    ck_assert_uint_eq(tape_count(&p.ran), 1);
    ck_assert_uint_eq(tape_runs(&p.ran, "other"), 1);
    ck_assert_int_eq(lapse_timeout(r.s), LAPSE_FOREVER); /* Nobody is woken for it. */
    ck_assert_int_eq(queue_stats(r.s, "q").oldest_due, LAPSE_SECONDS(10) - LAPSE_MS(1));
    ck_assert_int_eq(lapse_cancel(r.s, "cancelled", LAPSE_ANY), LAPSE_FATE_CANCELLED);
    ck_assert_int_eq(lapse_cancel(r.s, "cancelled too", LAPSE_ANY), LAPSE_FATE_CANCELLED);
    ck_assert_int_eq(lapse_reschedule(r.s, "own4", LAPSE_ANY, LAPSE_SECONDS(1)),
                     LAPSE_FATE_RESCHEDULED);
    ck_assert_int_eq(lapse_resume(r.s, "q"), 0);
    ck_assert_int_eq(lapse_timeout(r.s), 0);
    advance(&r, 0);
    ck_assert_uint_eq(tape_count(&p.ran), 4);
    advance(&r, LAPSE_SECONDS(1));
    ck_assert_uint_eq(tape_count(&p.ran), 5);
    for (size_t i = 0; i < 4; i++)
        ck_assert_str_eq(p.ran.entries[i + 1].id, in_order[i]);
    ck_assert_int_eq(lapse_resume(r.s, "q"), 0);
    expect_books(r.s);
    player_close(&p);
    rig_close(&r);
}
END_TEST

START_TEST(pausing_has_errors)
{
    rig r = rig_manual(_i, START, NULL);
    char name[LAPSE_ID_MAX + 2];
    memset(name, 'q', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    ck_assert_int_eq(lapse_pause(r.s, name), LAPSE_EINVAL);
    ck_assert_int_eq(lapse_resume(r.s, name), LAPSE_EINVAL);
    ck_assert_int_eq(lapse_pause(NULL, "q"), LAPSE_EINVAL);
    ck_assert_int_eq(lapse_pause(r.s, NULL), 0); /* The queue "". */
    tape ran;
    tape_open(&ran, r.s);
    ck_assert_int_gt(lapse_schedule(r.s, "o", 0, tape_note, &ran), 0);
    advance(&r, LAPSE_SECONDS(1));
    ck_assert_uint_eq(tape_count(&ran), 0);
    ck_assert_int_eq(lapse_resume(r.s, ""), 0);
    advance(&r, 0);
    ck_assert_uint_eq(tape_count(&ran), 1);
    tape_close(&ran);
    rig_close(&r);
}
END_TEST

/* Workers that sleep are woken by resume, and takers too. */
static void take_one(void *arg, int number)
{
    rig *r = arg;
    const lapse_order *order;
    (void)number;
    if (lapse_take(r->s, "taken", LIMIT, &order) != 1)
        complain("the taker got nothing");
    else
        lapse_settle(r->s, order->fence, LAPSE_DONE, 0, NULL);
}

START_TEST(resume_wakes_those_who_wait)
{
    rig r = rig_real(_i, NULL);
    player p;
    player_open(&p, r.s, NULL);
    handle(r.s, "q", &p, NULL);
    ck_assert_int_eq(lapse_pause(r.s, "q"), 0);
    ck_assert_int_eq(lapse_pause(r.s, "taken"), 0);
    put_many(r.s, "q", "", 10, 0);
    put(r.s, "taken", "t", 0);
    put_own(r.s, "q", "own", 0, &p.ran);
    ck_assert_int_eq(lapse_start(r.s, 2), 0);
    crew c;
    crew_start(&c, 1, take_one, &r);
    ck_assert(until_others_sleep());
    ck_assert_uint_eq(tape_count(&p.ran), 0);
    ck_assert_int_eq(lapse_resume(r.s, "q"), 0);
    ck_assert(tape_wait(&p.ran, 11));
    ck_assert(until_others_sleep());
    ck_assert_int_eq(state_of(r.s, "t"), LAPSE_STATE_PENDING);
    ck_assert_int_eq(lapse_resume(r.s, "taken"), 0);
    crew_join(&c);
    player_close(&p);
    rig_close(&r);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("handlers");
    TCase *group = add_group(suite, "handlers");
    ADD_FOR_ENGINES(group, a_handler_runs_the_orders_of_its_queue);
    ADD_FOR_ENGINES(group, the_queue_without_a_name_has_a_handler_too);
    ADD_FOR_ENGINES(group, a_queue_is_handled_or_taken_from);
    ADD_FOR_ENGINES(group, policies_have_ranges);
    ADD_FOR_ENGINES(group, a_replaced_handler_is_released_when_it_runs_no_more);
    ADD_FOR_ENGINES(group, a_removed_handler_leaves_its_orders_to_others);
    ADD_FOR_ENGINES(group, a_handler_may_replace_itself);
    ADD_FOR_ENGINES(group, handlers_change_while_they_run);
    group = add_group(suite, "pausing");
    ADD_FOR_ENGINES(group, a_paused_queue_starts_nothing);
    ADD_FOR_ENGINES(group, pausing_has_errors);
    ADD_FOR_ENGINES(group, resume_wakes_those_who_wait);
    return run_suite(suite);
}
