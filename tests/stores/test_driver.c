/* test_driver.c - every durable store: what the driver has claimed and nobody has started.
 *
 * A host's loop looks (lapse_fd, lapse_timeout) and one order is claimed for it. Until it
 * starts it counts as pending, whatever the store's row says. */
/* tiers: small full */
#include "stores/stores.h"

#include <stdlib.h>

#include <string.h>

/* A host that looks, with "ready" claimed for it and not started. */
static rig with_one_ready(int store, tape *t)
{
    rig r = fresh(store, NULL);
    tape_open(t, r.s);
    ck_assert_int_eq(lapse_handle(r.s, "work", tape_note, t, NULL, NULL), LAPSE_OK);
    ck_assert_int_ge(lapse_fd(r.s), 0);
    put(r.s, "work", "ready", LAPSE_SECONDS(5));
    ck_assert_int_eq(lapse_clock_advance(r.clock, LAPSE_SECONDS(6)), LAPSE_OK);
    ck_assert_int_eq(lapse_timeout(r.s), 0);
    return r;
}

static void end(rig *r, tape *t)
{
    expect_books(r->s);
    rig_close(r);
    if (t)
        tape_close(t);
}

#define WITH_ONE_READY(r, t)                                                                       \
    tape t;                                                                                        \
    rig r = with_one_ready(_i, &t);                                                                \
    if (!able(&r, __func__, LAPSE_CAN_DURABLE)) {                                                  \
        rig_close(&r);                                                                             \
        tape_close(&t);                                                                            \
        return;                                                                                    \
    }

START_TEST(cancel_withdraws)
{
    STORE_NEEDS(_i, LAPSE_CAN_CANCEL);
    WITH_ONE_READY(r, t);
    ck_assert_int_eq(lapse_cancel(r.s, "ready", 12345), LAPSE_FATE_UNKNOWN);
    ck_assert_int_eq(lapse_cancel(r.s, "ready", LAPSE_ANY), LAPSE_FATE_CANCELLED);
    ck_assert_int_eq(lapse_cancel(r.s, "ready", LAPSE_ANY), LAPSE_FATE_UNKNOWN);
    ck_assert_int_eq(lapse_process(r.s, 0), 0);
    ck_assert_uint_eq(tape_count(&t), 0);
    ck_assert_uint_eq(stats_of(r.s).cancelled, 1);
    end(&r, &t);
}
END_TEST

START_TEST(it_counts_as_pending)
{
    STORE_NEEDS(_i, LAPSE_CAN_LIST);
    WITH_ONE_READY(r, t);
    lapse_info info = look(r.s, "ready");
    ck_assert_int_eq(info.state, LAPSE_STATE_PENDING);
    lapse_info_free(&info);
    lapse_stats now = stats_of(r.s);
    ck_assert_uint_eq(now.pending, 1);
    ck_assert_uint_eq(now.running, 0);
    EXPECT_ERROR(lapse_put(r.s, &(lapse_spec){.id = "ready", .queue = "work"}), LAPSE_EEXISTS,
                 "ready");
    ck_assert_int_eq(lapse_process(r.s, 0), 1);
    ck_assert_int_eq(t.entries[0].attempt, 1);
    end(&r, &t);
}
END_TEST

static bool note_state(const lapse_info *info, void *arg)
{
    ck_assert_int_eq(info->state, LAPSE_STATE_PENDING);
    ck_assert_int_eq(info->attempt, 0);
    ++*(int *)arg;
    return true;
}

START_TEST(a_walk_shows_it_as_pending)
{
    STORE_NEEDS(_i, LAPSE_CAN_LIST);
    WITH_ONE_READY(r, t);
    int shown = 0;
    ck_assert_int_eq(lapse_each(r.s, LAPSE_STATE_PENDING, note_state, &shown), 1);
    ck_assert_int_eq(lapse_each(r.s, LAPSE_STATE_RUNNING, note_state, &shown), 0);
    ck_assert_int_eq(lapse_each(r.s, 0, note_state, &shown), 1);
    ck_assert_int_eq(shown, 2);
    end(&r, &t);
}
END_TEST

START_TEST(replace_withdraws)
{
    STORE_NEEDS(_i, LAPSE_CAN_CANCEL);
    WITH_ONE_READY(r, t);
    int64_t generation = lapse_put(r.s, &(lapse_spec){.id = "ready",
                                                      .queue = "work",
                                                      .delay = LAPSE_SECONDS(1),
                                                      .flags = LAPSE_REPLACE});
    ck_assert_int_gt(generation, 0);
    ck_assert_int_eq(lapse_process(r.s, 0), 0);
    ck_assert_uint_eq(stats_of(r.s).replaced, 1);
    advance(&r, LAPSE_SECONDS(2));
    ck_assert_uint_eq(tape_count(&t), 1);
    ck_assert_int_eq(t.entries[0].generation, generation);
    ck_assert_int_eq(t.entries[0].attempt, 1);
    end(&r, &t);
}
END_TEST

START_TEST(reschedule_withdraws)
{
    STORE_NEEDS(_i, LAPSE_CAN_CANCEL);
    WITH_ONE_READY(r, t);
    ck_assert_int_eq(lapse_reschedule(r.s, "ready", LAPSE_ANY, LAPSE_SECONDS(10)),
                     LAPSE_FATE_RESCHEDULED);
    ck_assert_int_eq(lapse_process(r.s, 0), 0);
    advance(&r, LAPSE_SECONDS(9));
    ck_assert_uint_eq(tape_count(&t), 0);
    advance(&r, LAPSE_SECONDS(1));
    ck_assert_uint_eq(tape_count(&t), 1);
    ck_assert_int_eq(t.entries[0].attempt, 1); /* What did not start does not count. */
    end(&r, &t);
}
END_TEST

START_TEST(stop_gives_back)
{
    tape t, other;
    place p = new_place(_i, NULL);
    rig r = open_place(&p, NULL);
    NEEDS(&r, LAPSE_CAN_DURABLE | LAPSE_CAN_SHARE);
    tape_open(&t, r.s);
    ck_assert_int_eq(lapse_handle(r.s, "work", tape_note, &t, NULL, NULL), LAPSE_OK);
    ck_assert_int_ge(lapse_fd(r.s), 0);
    put(r.s, "work", "o", 0);
    ck_assert_int_eq(lapse_clock_advance(r.clock, LAPSE_MS(1)), LAPSE_OK);
    ck_assert_int_eq(lapse_timeout(r.s), 0);
    rig second = join_place(&p, &r, NULL);
    tape_open(&other, second.s);
    ck_assert_int_eq(lapse_handle(second.s, "work", tape_note, &other, NULL, NULL), LAPSE_OK);
    ck_assert_int_eq(lapse_process(second.s, 0), 0); /* The first holds it. */
    ck_assert_int_eq(lapse_stop(r.s), LAPSE_OK);
    ck_assert_int_eq(lapse_close(r.s, LIMIT), LAPSE_OK);
    ck_assert_int_eq(lapse_process(second.s, 0), 1);
    ck_assert_int_eq(other.entries[0].attempt, 1);
    ck_assert_uint_eq(tape_count(&t), 0);
    rig_close(&second);
    tape_close(&t);
    tape_close(&other);
}
END_TEST

START_TEST(a_host_that_does_not_come_lets_others)
{
    STORE_NEEDS(_i, LAPSE_CAN_LIST);
    tape t, other;
    place p = new_place(_i, NULL);
    rig r = open_place(&p, NULL);
    NEEDS(&r, LAPSE_CAN_DURABLE | LAPSE_CAN_SHARE);
    tape_open(&t, r.s);
    ck_assert_int_eq(lapse_handle(r.s, "work", tape_note, &t, NULL, NULL), LAPSE_OK);
    ck_assert_int_ge(lapse_fd(r.s), 0);
    put(r.s, "work", "o", 0);
    ck_assert_int_eq(lapse_clock_advance(r.clock, LAPSE_MS(1)), LAPSE_OK);
    ck_assert_int_eq(lapse_timeout(r.s), 0);
    rig second = join_place(&p, &r, NULL);
    tape_open(&other, second.s);
    ck_assert_int_eq(lapse_handle(second.s, "work", tape_note, &other, NULL, NULL), LAPSE_OK);
    /* A third of the lease is what it may keep others waiting. */
    ck_assert_int_eq(lapse_clock_advance(r.clock, LAPSE_SECONDS(11)), LAPSE_OK);
    lapse_info info = look(r.s, "o"); /* Its driver has been at work since. */
    ck_assert_int_eq(info.state, LAPSE_STATE_PENDING);
    ck_assert_int_eq(info.attempt, 0);
    lapse_info_free(&info);
    ck_assert_int_eq(lapse_process(second.s, 0), 1);
    ck_assert_int_eq(other.entries[0].attempt, 1);
    leave_place(&second);
    rig_close(&r);
    tape_close(&t);
    tape_close(&other);
}
END_TEST

START_TEST(a_host_is_given_as_many_as_it_wants)
{
    tape t, other;
    place p = new_place(_i, NULL);
    rig r = open_place(&p, NULL);
    NEEDS(&r, LAPSE_CAN_DURABLE | LAPSE_CAN_SHARE);
    tape_open(&t, r.s);
    ck_assert_int_eq(lapse_handle(r.s, "work", tape_note, &t, NULL, NULL), LAPSE_OK);
    EXPECT_ERROR(lapse_want(r.s, 0), LAPSE_EINVAL, "0 callbacks");
    EXPECT_ERROR(lapse_want(r.s, LAPSE_WANT_MAX + 1), LAPSE_EINVAL, "1001 callbacks");
    ck_assert_int_eq(lapse_want(r.s, 4), LAPSE_OK);
    ck_assert_int_ge(lapse_fd(r.s), 0);
    put_batch(r.s, "work", "o", 10, 0);
    ck_assert_int_eq(lapse_clock_advance(r.clock, LAPSE_MS(10)), LAPSE_OK);
    ck_assert_int_eq(lapse_timeout(r.s), 0);
    rig second = join_place(&p, &r, NULL);
    tape_open(&other, second.s);
    ck_assert_int_eq(lapse_handle(second.s, "work", tape_note, &other, NULL, NULL), LAPSE_OK);
    ck_assert_int_eq(lapse_process(second.s, 0), 6);
    ck_assert_int_eq(lapse_process(r.s, 0), 4);
    ck_assert_int_eq(lapse_process(r.s, 0), 0);
    for (int i = 0; i < 4; i++)
        ck_assert_int_eq(atoi(t.entries[i].id + 1), i); /* The oldest, and in order. */
    leave_place(&second);
    rig_close(&r);
    tape_close(&t);
    tape_close(&other);
}
END_TEST

/* -- Takers ------------------------------------------------------------------------------- */

START_TEST(a_host_that_polls_is_told)
{
    rig r = fresh(_i, NULL);
    ck_assert_int_ge(lapse_fd(r.s), 0);
    expect_nothing(r.s, NULL);
    put(r.s, NULL, "o", LAPSE_SECONDS(5));
    ck_assert_int_gt(lapse_timeout(r.s), 0);
    ck_assert_int_eq(lapse_clock_advance(r.clock, LAPSE_SECONDS(6)), LAPSE_OK);
    ck_assert_int_eq(lapse_timeout(r.s), 0);
    finish_one(r.s, NULL, "o");
    expect_nothing(r.s, NULL);
    ck_assert_int_gt(lapse_timeout(r.s), 0);
    end(&r, NULL);
}
END_TEST

enum { CROWD = 60 }; /* times two */

static void take_in_vain(void *arg, int number)
{
    const lapse_order *order;
    (void)number;
    if (lapse_take(arg, number % 2 ? "idle" : "idle too", LAPSE_FOREVER, &order) != LAPSE_ECLOSED)
        complain("a taker got something");
}

/* However many wait for what does not come, others are served. */
START_TEST(a_crowd_of_takers_is_in_nobodys_way)
{
    rig r = fresh(_i, NULL);
    crew crowds[2];
    for (int i = 0; i < 2; i++)
        crew_start(&crowds[i], CROWD, take_in_vain, r.s);
    until_others_sleep();
    put(r.s, "busy", "o", 0);
    ck_assert_int_eq(lapse_clock_advance(r.clock, LAPSE_MS(1)), LAPSE_OK);
    finish_one(r.s, "busy", "o");
    ck_assert_int_eq(lapse_stop(r.s), LAPSE_OK);
    for (int i = 0; i < 2; i++)
        crew_join(&crowds[i]);
    check_calm();
    end(&r, NULL);
}
END_TEST

static void look_for_more(void *arg, const lapse_info *info)
{
    (void)info;
    ck_assert_int_ge(lapse_timeout(*(lapse **)arg), 0);
}

/* The driver claims "b" after the pass has looked for the last time, and before it ends. */
START_TEST(a_pass_runs_what_is_claimed_behind_its_back)
{
    lapse *s = NULL;
    const lapse_options options = {.on_dead = look_for_more, .hook_arg = &s};
    rig r = fresh(_i, &options);
    s = r.s;
    player p;
    player_open(&p, r.s, always_reject);
    handle(r.s, "work", &p, NULL);
    put(r.s, "work", "a", LAPSE_MS(1));
    put(r.s, "work", "b", LAPSE_MS(2));
    ck_assert_int_eq(lapse_clock_advance(r.clock, LAPSE_MS(5)), LAPSE_OK);
    ck_assert_int_eq(lapse_process(r.s, 0), 2);
    ck_assert_uint_eq(tape_count(&p.ran), 2);
    player_close(&p);
    end(&r, NULL);
}
END_TEST

/* -- Dead letters ----------------------------------------------------------------------------- */

START_TEST(requeue_makes_room_without_losing_it)
{
    STORE_NEEDS(_i, LAPSE_CAN_LIMIT);
    const lapse_options options = {
        .max_pending = 1, .max_dead = 1, .overflow = LAPSE_DEAD_LETTER_OLDEST};
    rig r = fresh(_i, &options);
    put(r.s, NULL, "a", 0);
    ck_assert_int_eq(lapse_clock_advance(r.clock, LAPSE_MS(1)), LAPSE_OK);
    ck_assert_int_eq(lapse_settle(r.s, poll_one(r.s, NULL, "a")->fence, LAPSE_REJECT, 0, NULL), 0);
    put(r.s, NULL, "b", LAPSE_HOURS(1));
    ck_assert_int_gt(lapse_requeue(r.s, "a", LAPSE_ANY, 0), 0);
    ck_assert_uint_eq(stats_of(r.s).pending, 1);
    lapse_info info = look(r.s, "b");
    ck_assert_int_eq(info.state, LAPSE_STATE_DEAD);
    lapse_info_free(&info);
    ck_assert_int_eq(lapse_clock_advance(r.clock, LAPSE_MS(1)), LAPSE_OK);
    finish_one(r.s, NULL, "a");
    end(&r, NULL);
}
END_TEST

START_TEST(the_largest_max_dead_keeps_them)
{
    const lapse_options options = {.max_dead = UINT64_MAX};
    rig r = fresh(_i, &options);
    put(r.s, NULL, "a", 0);
    ck_assert_int_eq(lapse_clock_advance(r.clock, LAPSE_MS(1)), LAPSE_OK);
    ck_assert_int_eq(lapse_settle(r.s, poll_one(r.s, NULL, "a")->fence, LAPSE_REJECT, 0, NULL), 0);
    ck_assert_uint_eq(stats_of(r.s).dead, 1);
    end(&r, NULL);
}
END_TEST

/* -- Leases ------------------------------------------------------------------------------ */

START_TEST(a_callback_is_renewed_up_to_its_run_limit)
{
    place p = new_place(_i, NULL);
    rig r = open_place(&p, NULL);
    NEEDS(&r, LAPSE_CAN_DURABLE | LAPSE_CAN_SHARE);
    rig second = join_place(&p, &r, NULL);
    const lapse_policy policy = {.run_limit = LAPSE_MINUTES(2)};
    tape other;
    tape_open(&other, second.s);
    ck_assert_int_eq(lapse_handle(r.s, "work", tape_note, NULL, NULL, &policy), LAPSE_OK);
    ck_assert_int_eq(lapse_handle(second.s, "work", tape_note, &other, NULL, &policy), LAPSE_OK);
    put(r.s, "work", "o", 0);
    ck_assert_int_eq(lapse_clock_advance(r.clock, LAPSE_MS(1)), LAPSE_OK);
    const lapse_order *order;
    lapse_callback fn;
    void *arg;
    ck_assert_int_eq(lapse_begin(r.s, LAPSE_FOREVER, &order, &fn, &arg), 1);
    for (int i = 0; i < 11; i++) { /* The lease is 30 s. */
        ck_assert_int_eq(lapse_clock_advance(r.clock, LAPSE_SECONDS(10)), LAPSE_OK);
        ck_assert_int_ge(lapse_timeout(r.s), 0);
        ck_assert_int_eq(lapse_process(second.s, 0), 0);
    }
    ck_assert(lapse_holds(r.s, order->fence));
    ck_assert_int_eq(lapse_clock_advance(r.clock, LAPSE_SECONDS(20)), LAPSE_OK);
    ck_assert_int_ge(lapse_process(r.s, 1), 0); /* Sees to it, and may run it anew. */
    int64_t fence = order->fence;
    ck_assert(!lapse_holds(r.s, fence));
    EXPECT_ERROR(lapse_settle(r.s, fence, LAPSE_DONE, 0, NULL), LAPSE_ESTALE, "lease");
    ck_assert_uint_eq(stats_of(r.s).lost, 1);
    leave_place(&second);
    tape_close(&other);
    rig_close(&r);
}
END_TEST

static void note_error(void *arg, const lapse_order *order, const char *error)
{
    (void)order;
    snprintf(arg, 200, "%s", error);
}

START_TEST(a_lease_lost_to_another_is_told)
{
    STORE_NEEDS(_i, LAPSE_CAN_CANCEL);
    char error[200] = "";
    place p = new_place(_i, NULL);
    const lapse_options options = {.on_error = note_error, .hook_arg = error};
    rig r = open_place(&p, &options);
    NEEDS(&r, LAPSE_CAN_DURABLE | LAPSE_CAN_SHARE);
    ck_assert_int_eq(lapse_handle(r.s, "work", tape_note, NULL, NULL, NULL), LAPSE_OK);
    put(r.s, "work", "o", 0);
    ck_assert_int_eq(lapse_clock_advance(r.clock, LAPSE_MS(1)), LAPSE_OK);
    const lapse_order *order;
    lapse_callback fn;
    void *arg;
    ck_assert_int_eq(lapse_begin(r.s, LAPSE_FOREVER, &order, &fn, &arg), 1);
    int64_t fence = order->fence;
    /* Scheduled anew elsewhere: the row has another generation. */
    rig second = join_place(&p, &r, NULL);
    put(second.s, "elsewhere", "o", LAPSE_HOURS(1));
    ck_assert_int_eq(lapse_clock_advance(r.clock, LAPSE_SECONDS(11)), LAPSE_OK);
    ck_assert_int_ge(lapse_timeout(r.s), 0); /* Its driver renews, and is refused. */
    ck_assert_int_eq(lapse_process(r.s, 0), 0);
    ck_assert(!lapse_holds(r.s, fence));
    ck_assert_ptr_nonnull(strstr(error, "could not be renewed"));
    EXPECT_ERROR(lapse_settle(r.s, fence, LAPSE_DONE, 0, NULL), LAPSE_ESTALE, "");
    lapse_info info = look(second.s, "o");
    ck_assert_int_eq(info.state, LAPSE_STATE_PENDING);
    lapse_info_free(&info);
    leave_place(&second);
    rig_close(&r);
}
END_TEST

/* -- Cancelled while held ------------------------------------------------------------------ */

START_TEST(running_elsewhere_is_not_repeated)
{
    STORE_NEEDS(_i, LAPSE_CAN_CANCEL);
    place p = new_place(_i, NULL);
    rig r = open_place(&p, NULL);
    NEEDS(&r, LAPSE_CAN_DURABLE | LAPSE_CAN_SHARE);
    put(r.s, NULL, "o", 0);
    ck_assert_int_eq(lapse_clock_advance(r.clock, LAPSE_MS(1)), LAPSE_OK);
    int64_t fence = poll_one(r.s, NULL, "o")->fence;
    rig second = join_place(&p, &r, NULL);
    ck_assert_int_eq(lapse_cancel(second.s, "o", LAPSE_ANY), LAPSE_FATE_RUNNING);
    ck_assert_int_eq(lapse_settle(r.s, fence, LAPSE_RETRY, 0, NULL), LAPSE_OK);
    ck_assert_int_eq(lapse_clock_advance(r.clock, LAPSE_HOURS(2)), LAPSE_OK);
    expect_nothing(r.s, NULL);
    ck_assert_uint_eq(stats_of(r.s).pending, 0);
    /* The same when its consumer dies. */
    put(r.s, NULL, "p", 0);
    ck_assert_int_eq(lapse_clock_advance(r.clock, LAPSE_MS(1)), LAPSE_OK);
    poll_one(r.s, NULL, "p");
    ck_assert_int_eq(lapse_cancel(second.s, "p", LAPSE_ANY), LAPSE_FATE_RUNNING);
    ck_assert_int_eq(lapse_clock_advance(r.clock, LAPSE_HOURS(2)), LAPSE_OK);
    expect_nothing(second.s, NULL);
    ck_assert_uint_eq(stats_of(second.s).pending + stats_of(second.s).running, 0);
    leave_place(&second);
    rig_close(&r);
}
END_TEST

/* -- Submit and collect -------------------------------------------------------------------- */

static lapse_answer collected(rig *r, const void *tag)
{
    lapse_answer a;
    int got;
    while ((got = lapse_collect(r->s, &a)) == 0)
        ck_assert_int_eq(lapse_timeout(r->s) < 0, 0);
    ck_assert_int_eq(got, 1);
    ck_assert_ptr_eq(a.tag, tag);
    return a;
}

START_TEST(answers_come_in_order)
{
    STORE_NEEDS(_i, LAPSE_CAN_CANCEL);
    rig r = fresh(_i, NULL);
    int tags[5];
    const lapse_spec spec = {.id = "o", .delay = LAPSE_HOURS(1)};
    const lapse_ask asks[] = {
        {.what = LAPSE_ASK_PUT, .tag = &tags[0], .spec = &spec},
        {.what = LAPSE_ASK_PUT, .tag = &tags[1], .spec = &spec},
        {.what = LAPSE_ASK_RESCHEDULE, .tag = &tags[2], .id = "o", .delay = LAPSE_HOURS(2)},
        {.what = LAPSE_ASK_GET, .tag = &tags[3], .id = "o"},
        {.what = LAPSE_ASK_CANCEL, .tag = &tags[4], .id = "o"},
    };
    for (int i = 0; i < 5; i++)
        ck_assert_int_eq(lapse_submit(r.s, &asks[i]), LAPSE_OK);
    lapse_answer a[5];
    for (int i = 0; i < 5; i++)
        a[i] = collected(&r, &tags[i]);
    ck_assert_int_gt(a[0].result, 0);
    ck_assert_int_eq(a[1].result, LAPSE_EEXISTS);
    ck_assert_ptr_nonnull(strstr(a[1].detail, "\"o\""));
    ck_assert_int_eq(a[2].result, LAPSE_FATE_RESCHEDULED);
    ck_assert_int_eq(a[3].result, LAPSE_OK);
    ck_assert_str_eq(a[3].info.id, "o");
    ck_assert_int_eq(a[3].info.remaining, LAPSE_HOURS(2));
    ck_assert_int_eq(a[3].info.generation, a[0].result);
    ck_assert_int_eq(a[4].result, LAPSE_FATE_CANCELLED);
    for (int i = 0; i < 5; i++)
        lapse_answer_free(&a[i]);
    lapse_answer none;
    ck_assert_int_eq(lapse_collect(r.s, &none), 0);
    expect_books(r.s);
    rig_close(&r);
}
END_TEST

START_TEST(what_is_wrong_by_itself_is_said_at_once)
{
    rig r = fresh(_i, NULL);
    NEEDS(&r, LAPSE_CAN_DURABLE);
    const lapse_spec own = {.id = "o", .fn = tape_note}, far = {.id = "o", .delay = INT64_MAX};
    EXPECT_ERROR(lapse_submit(r.s, &(lapse_ask){.what = LAPSE_ASK_PUT, .spec = &own}),
                 LAPSE_EUNSUPPORTED, "handler");
    EXPECT_ERROR(lapse_submit(r.s, &(lapse_ask){.what = LAPSE_ASK_PUT, .spec = &far}), LAPSE_ERANGE,
                 "100 years");
    EXPECT_ERROR(lapse_submit(r.s, &(lapse_ask){.what = LAPSE_ASK_PUT}), LAPSE_EINVAL, "spec");
    EXPECT_ERROR(lapse_submit(r.s, &(lapse_ask){.what = (lapse_what)9}), LAPSE_EINVAL, "");
    ck_assert_int_eq(lapse_stop(r.s), LAPSE_OK);
    const lapse_spec good = {.id = "o"};
    EXPECT_ERROR(lapse_submit(r.s, &(lapse_ask){.what = LAPSE_ASK_PUT, .spec = &good}),
                 LAPSE_ECLOSED, "stopped");
    rig_close(&r);
}
END_TEST

START_TEST(close_forgets_answers)
{
    rig r = fresh(_i, NULL);
    const lapse_spec spec = {
        .id = "o", .delay = LAPSE_HOURS(1), .payload = "xyz", .payload_len = 3};
    for (int i = 0; i < 20; i++) {
        ck_assert_int_eq(lapse_submit(r.s, &(lapse_ask){.what = LAPSE_ASK_PUT, .spec = &spec}), 0);
        ck_assert_int_eq(lapse_submit(r.s, &(lapse_ask){.what = LAPSE_ASK_GET, .id = "o"}), 0);
    }
    rig_close(&r);
}
END_TEST

static void fill(Suite *suite)
{
    TCase *loans = tcase_create("claimed and not started");
    ADD_FOR_STORES(loans, cancel_withdraws);
    ADD_FOR_STORES(loans, it_counts_as_pending);
    ADD_FOR_STORES(loans, a_walk_shows_it_as_pending);
    ADD_FOR_STORES(loans, replace_withdraws);
    ADD_FOR_STORES(loans, reschedule_withdraws);
    ADD_FOR_STORES(loans, stop_gives_back);
    ADD_FOR_STORES(loans, a_host_that_does_not_come_lets_others);
    ADD_FOR_STORES(loans, a_host_is_given_as_many_as_it_wants);
    suite_add_tcase(suite, loans);

    TCase *others = tcase_create("takers, dead letters");
    ADD_FOR_STORES(others, a_host_that_polls_is_told);
    ADD_FOR_STORES(others, a_crowd_of_takers_is_in_nobodys_way);
    ADD_FOR_STORES(others, a_pass_runs_what_is_claimed_behind_its_back);
    ADD_FOR_STORES(others, requeue_makes_room_without_losing_it);
    ADD_FOR_STORES(others, the_largest_max_dead_keeps_them);
    suite_add_tcase(suite, others);

    TCase *leases = tcase_create("leases");
    ADD_FOR_STORES(leases, a_callback_is_renewed_up_to_its_run_limit);
    ADD_FOR_STORES(leases, a_lease_lost_to_another_is_told);
    ADD_FOR_STORES(leases, running_elsewhere_is_not_repeated);
    suite_add_tcase(suite, leases);

    TCase *asks = tcase_create("submit and collect");
    ADD_FOR_STORES(asks, answers_come_in_order);
    ADD_FOR_STORES(asks, what_is_wrong_by_itself_is_said_at_once);
    ADD_FOR_STORES(asks, close_forgets_answers);
    suite_add_tcase(suite, asks);
}

int main(void)
{
    return stores_main("driver", fill);
}
