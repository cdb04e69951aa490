/* test_change.c - every store: cancel, reschedule, get and each. P-20, P-26, P-72.
 *
 * An answer is never taken back: what was said to be cancelled never starts, and nothing
 * follows "running". */
/* tiers: small full */
/* servers */
#include "stores/stores.h"

#include <inttypes.h>
#include <stdlib.h>

/* -- Cancel ------------------------------------------------------------------------------ */

START_TEST(p20_each_moment_has_its_answer)
{
    lapse_options options = {.keep = LAPSE_MINUTES(5)};
    rig r = fresh(_i, &options);
    NEEDS(&r, LAPSE_CAN_CANCEL);
    ck_assert_int_eq(lapse_cancel(r.s, "never", LAPSE_ANY), LAPSE_FATE_UNKNOWN);
    put(r.s, "q", "pending", LAPSE_HOURS(1));
    ck_assert_int_eq(lapse_cancel(r.s, "pending", LAPSE_ANY), LAPSE_FATE_CANCELLED);
    ck_assert_int_eq(lapse_cancel(r.s, "pending", LAPSE_ANY), LAPSE_FATE_DONE); /* It ended. */
    put(r.s, "q", "due", 0);
    advance(&r, LAPSE_SECONDS(1));
    ck_assert_int_eq(lapse_cancel(r.s, "due", LAPSE_ANY), LAPSE_FATE_CANCELLED);
    expect_nothing(r.s, "q");
    put(r.s, "q", "running", 0);
    advance(&r, LAPSE_MS(1));
    int64_t fence = poll_one(r.s, "q", "running")->fence;
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(lapse_cancel(r.s, "running", LAPSE_ANY), LAPSE_FATE_RUNNING);
    settle(r.s, fence, LAPSE_DONE);
    ck_assert_int_eq(lapse_cancel(r.s, "running", LAPSE_ANY), LAPSE_FATE_DONE);
    advance(&r, LAPSE_MINUTES(5) - 1);
    ck_assert_int_eq(lapse_cancel(r.s, "running", LAPSE_ANY), LAPSE_FATE_DONE);
    advance(&r, LAPSE_MS(5)); /* No less than `keep`; rounding is up. */
    ck_assert_int_eq(lapse_cancel(r.s, "running", LAPSE_ANY), LAPSE_FATE_UNKNOWN);
    lapse_stats t = stats_of(r.s);
    ck_assert_uint_eq(t.cancelled, 2);
    ck_assert_uint_eq(t.done, 1);
    expect_books(r.s);
    rig_close(&r);
}
END_TEST

START_TEST(p20_an_odd_id_is_unknown)
{
    rig r = fresh(_i, NULL);
    NEEDS(&r, LAPSE_CAN_CANCEL);
    char longest[LAPSE_ID_MAX + 2];
    memset(longest, 'i', sizeof longest);
    longest[LAPSE_ID_MAX + 1] = '\0';
    ck_assert_int_eq(lapse_cancel(r.s, longest, LAPSE_ANY), LAPSE_FATE_UNKNOWN);
    ck_assert_int_eq(lapse_cancel(r.s, "", LAPSE_ANY), LAPSE_FATE_UNKNOWN);
    ck_assert_int_eq(lapse_cancel(r.s, "x", -5), LAPSE_FATE_UNKNOWN);
    ck_assert_int_eq(lapse_cancel(r.s, "x", INT64_MAX), LAPSE_FATE_UNKNOWN);
    ck_assert_int_eq(lapse_cancel(r.s, NULL, LAPSE_ANY), LAPSE_EINVAL);
    ck_assert_int_eq(lapse_reschedule(r.s, longest, LAPSE_ANY, 0), LAPSE_FATE_UNKNOWN);
    ck_assert_int_eq(lapse_reschedule(r.s, "", LAPSE_ANY, 0), LAPSE_FATE_UNKNOWN);
    ck_assert_int_eq(lapse_reschedule(r.s, NULL, LAPSE_ANY, 0), LAPSE_EINVAL);
    lapse_info info;
    ck_assert_int_eq(lapse_get(r.s, longest, &info), LAPSE_EUNKNOWN);
    ck_assert_int_eq(lapse_get(r.s, "", &info), LAPSE_EUNKNOWN);
    rig_close(&r);
}
END_TEST

START_TEST(p20_a_generation_is_meant_as_it_is_said)
{
    lapse_options options = {.keep = LAPSE_MINUTES(5)};
    rig r = fresh(_i, &options);
    NEEDS(&r, LAPSE_CAN_CANCEL);
    int64_t first = put(r.s, "q", "o", LAPSE_SECONDS(1));
    ck_assert_int_eq(lapse_cancel(r.s, "o", first + 1), LAPSE_FATE_UNKNOWN);
    ck_assert_int_eq(lapse_cancel(r.s, "o", first), LAPSE_FATE_CANCELLED);
    int64_t second = put(r.s, "q", "o", 0);
    ck_assert_int_ne(lapse_cancel(r.s, "o", first), LAPSE_FATE_CANCELLED);
    advance(&r, LAPSE_MS(1));
    int64_t fence = poll_one(r.s, "q", "o")->fence;
    ck_assert_int_eq(lapse_cancel(r.s, "o", first), LAPSE_FATE_UNKNOWN);
    ck_assert_int_eq(lapse_cancel(r.s, "o", second), LAPSE_FATE_RUNNING);
    settle(r.s, fence, LAPSE_RETRY); /* Nothing follows "running". */
    ck_assert_int_eq(lapse_cancel(r.s, "o", second), LAPSE_FATE_DONE);
    ck_assert_int_eq(lapse_cancel(r.s, "o", second + 1), LAPSE_FATE_UNKNOWN);
    advance(&r, LAPSE_HOURS(2));
    expect_nothing(r.s, "q");
    rig_close(&r);
}
END_TEST

START_TEST(p20_no_attempt_follows_a_running_answer)
{
    const lapse_verdict verdicts[] = {LAPSE_DONE, LAPSE_RETRY, LAPSE_REJECT, LAPSE_FAIL,
                                      LAPSE_GIVE_BACK};
    for (int v = 0; v < 5; v++) {
        lapse_options options = {.keep = LAPSE_HOURS(5)};
        rig r = fresh(_i, &options);
        NEEDS(&r, LAPSE_CAN_CANCEL);
        put(r.s, "q", "o", 0);
        advance(&r, LAPSE_MS(1));
        int64_t fence = poll_one(r.s, "q", "o")->fence;
        ck_assert_int_eq(lapse_cancel(r.s, "o", LAPSE_ANY), LAPSE_FATE_RUNNING);
        settle(r.s, fence, verdicts[v]);
        ck_assert_uint_eq(pending_in(r.s), 0);
        ck_assert_uint_eq(stats_of(r.s).dead, 0);
        advance(&r, LAPSE_HOURS(2));
        expect_nothing(r.s, NULL);
        ck_assert_int_eq(lapse_cancel(r.s, "o", LAPSE_ANY), LAPSE_FATE_DONE);
        ck_assert_uint_eq(stats_of(r.s).done, v == 0);
        ck_assert_uint_eq(stats_of(r.s).cancelled, v != 0);
        expect_books(r.s);
        rig_close(&r);
    }
}
END_TEST

/* Nor when its holder is lost. */
START_TEST(p20_none_follows_when_the_holder_is_lost)
{
    rig r = fresh(_i, NULL);
    NEEDS(&r, LAPSE_CAN_CANCEL);
    put(r.s, "q", "o", 0);
    advance(&r, LAPSE_MS(1));
    int64_t fence = poll_one(r.s, "q", "o")->fence;
    ck_assert_int_eq(lapse_cancel(r.s, "o", LAPSE_ANY), LAPSE_FATE_RUNNING);
    advance(&r, LAPSE_MINUTES(10));
    expect_nothing(r.s, "q");
    ck_assert_int_eq(lapse_settle(r.s, fence, LAPSE_DONE, 0, NULL), LAPSE_ESTALE);
    ck_assert_uint_eq(stats_of(r.s).cancelled, 1);
    ck_assert_uint_eq(stats_of(r.s).dead_total, 0);
    ck_assert_int_eq(state_of(r.s, "o"), 0);
    expect_books(r.s);
    rig_close(&r);
}
END_TEST

static bool count_one(const lapse_info *info, void *arg)
{
    (void)info;
    ++*(int *)arg;
    return true;
}

/* "Running" was the answer, so it may have started: it is over when its lease is, and no
 * later answer says that it never started. Nobody has to claim anything for that. */
START_TEST(p20_what_ran_is_not_pending_when_its_lease_ends)
{
    STORE_NEEDS(_i, LAPSE_CAN_LIMIT);
    for (int look_by = 0; look_by < 5; look_by++) {
        lapse_options options = {.max_pending = look_by < 4 ? 1 : 2, .keep = LAPSE_HOURS(1)};
        rig r = fresh(_i, &options);
        NEEDS(&r, LAPSE_CAN_CANCEL | LAPSE_CAN_LIST);
        int shown = 0;
        put(r.s, "q", "o", 0);
        advance(&r, LAPSE_MS(1));
        poll_one(r.s, "q", "o");
        ck_assert_int_eq(lapse_cancel(r.s, "o", LAPSE_ANY), LAPSE_FATE_RUNNING);
        ck_assert_int_eq(lapse_clock_advance(r.clock, LAPSE_SECONDS(31)), 0);
        switch (look_by) {
        case 0:
            ck_assert_int_ne(lapse_cancel(r.s, "o", LAPSE_ANY), LAPSE_FATE_CANCELLED);
            break;
        case 1:
            ck_assert_int_ne(lapse_reschedule(r.s, "o", LAPSE_ANY, 0), LAPSE_FATE_RESCHEDULED);
            break;
        case 2:
            ck_assert_int_ne(state_of(r.s, "o"), LAPSE_STATE_PENDING);
            break;
        case 3:
            lapse_each(r.s, LAPSE_STATE_PENDING, count_one, &shown);
            break;
        default:
            put(r.s, "q", "o", LAPSE_HOURS(1));
            break;
        }
        ck_assert_int_eq(shown, 0);
        expect_nothing(r.s, NULL);
        if (look_by < 4)
            put(r.s, "q", "another", LAPSE_HOURS(1)); /* It takes no room either. */
        ck_assert_uint_eq(pending_in(r.s), 1);
        expect_books(r.s);
        rig_close(&r);
    }
}
END_TEST

/* P-22, P-30: a cancelled order leaves at once and for good; its id is free again. */
START_TEST(a_cancelled_order_is_gone)
{
    int count = store_most(_i, tier(60, 1000, 20000));
    rig r = fresh(_i, NULL);
    NEEDS(&r, LAPSE_CAN_CANCEL);
    player p;
    player_open(&p, r.s, NULL);
    handle(r.s, "q", &p, NULL);
    char id[16];
    for (int round = 0; round < 2; round++) {
        put_batch(r.s, "q", "o", count, LAPSE_SECONDS(1));
        for (int i = 0; i < count; i++) {
            snprintf(id, sizeof id, "o%d", i);
            ck_assert_int_eq(lapse_cancel(r.s, id, LAPSE_ANY), LAPSE_FATE_CANCELLED);
        }
        ck_assert_uint_eq(pending_in(r.s), 0);
        ck_assert_int_eq(lapse_each(r.s, 0, NULL, NULL), LAPSE_EINVAL);
    }
    advance(&r, LAPSE_HOURS(1));
    ck_assert_uint_eq(tape_count(&p.ran), 0);
    ck_assert_uint_eq(stats_of(r.s).cancelled, 2 * (uint64_t)count);
    expect_books(r.s);
    player_close(&p);
    rig_close(&r);
}
END_TEST

/* Threads cancel what others run: each order has one end, and its answer says which. */
enum { RACERS = 4, RACED = 400 };

struct race {
    rig r;
    atomic_int ran[RACED];
    int answers[RACED];
};

static lapse_verdict note_run(const lapse_order *order, void *arg)
{
    struct race *race = arg;
    atomic_fetch_add(&race->ran[atoi(order->id)], 1);
    return LAPSE_DONE;
}

static void cancel_some(void *arg, int number)
{
    struct race *race = arg;
    char id[16];
    for (int i = number; i < RACED; i += RACERS) {
        snprintf(id, sizeof id, "%d", i);
        race->answers[i] = lapse_cancel(race->r.s, id, LAPSE_ANY);
    }
}

static bool nothing_left(void *arg)
{
    lapse_stats t = stats_of(arg);
    return t.pending + t.running == 0;
}

START_TEST(p20_one_winner_among_threads)
{
    lapse_options options = {.keep = LAPSE_HOURS(1)};
    rig r = fresh_real(_i, &options);
    NEEDS(&r, LAPSE_CAN_CANCEL);
    struct race *race = calloc(1, sizeof *race);
    ck_assert_ptr_nonnull(race);
    race->r = r;
    ck_assert_int_eq(lapse_handle(race->r.s, "q", note_run, race, NULL, NULL), 0);
    ck_assert_int_eq(lapse_start(race->r.s, 2), 0);
    lapse_spec specs[RACED];
    char ids[RACED][16];
    int64_t results[RACED];
    for (int i = 0; i < RACED; i++) {
        snprintf(ids[i], sizeof ids[i], "%d", i);
        specs[i] = (lapse_spec){.id = ids[i], .queue = "q", .delay = LAPSE_MS(i / 8)};
    }
    ck_assert_int_eq(lapse_schedule_many(race->r.s, specs, RACED, results), RACED);
    crew_run(RACERS, cancel_some, race);
    ck_assert(until(nothing_left, race->r.s));
    int cancelled = 0;
    for (int i = 0; i < RACED; i++) {
        int ran = atomic_load(&race->ran[i]);
        ck_assert_int_ne(race->answers[i], LAPSE_FATE_UNKNOWN);
        ck_assert_int_eq(ran, race->answers[i] != LAPSE_FATE_CANCELLED);
        cancelled += race->answers[i] == LAPSE_FATE_CANCELLED;
    }
    ck_assert_uint_eq(stats_of(race->r.s).cancelled, (uint64_t)cancelled);
    expect_books(race->r.s);
    rig_close(&race->r);
    free(race);
}
END_TEST

/* -- Cancel and wait -------------------------------------------------------------------------- */

struct slow {
    lapse *s;
    gate entered, go_on;
    atomic_int runs, returned;
    int answer; /* of cancel_wait inside the callback */
};

static lapse_verdict run_slowly(const lapse_order *order, void *arg)
{
    struct slow *slow = arg;
    atomic_fetch_add(&slow->runs, 1);
    slow->answer = lapse_cancel_wait(slow->s, order->id, LAPSE_ANY, LAPSE_FOREVER);
    gate_open(&slow->entered);
    if (!gate_pass(&slow->go_on))
        complain("the gate stayed shut");
    atomic_fetch_add(&slow->returned, 1);
    return LAPSE_RETRY;
}

START_TEST(p21_cancel_wait_waits_for_the_callback)
{
    rig r = fresh_real(_i, NULL);
    NEEDS(&r, LAPSE_CAN_CANCEL);
    struct slow slow = {.s = r.s};
    gate_init(&slow.entered);
    gate_init(&slow.go_on);
    ck_assert_int_eq(lapse_handle(r.s, "q", run_slowly, &slow, NULL, NULL), 0);
    ck_assert_int_eq(lapse_start(r.s, 1), 0);
    put(r.s, "other", "pending", LAPSE_HOURS(1));
    ck_assert_int_eq(lapse_cancel_wait(r.s, "pending", LAPSE_ANY, LAPSE_FOREVER),
                     LAPSE_FATE_CANCELLED);
    ck_assert_int_eq(lapse_cancel_wait(r.s, "nobody", LAPSE_ANY, LAPSE_FOREVER),
                     LAPSE_FATE_UNKNOWN);
    put(r.s, "q", "o", 0);
    ck_assert(gate_pass(&slow.entered));
    ck_assert_int_eq(lapse_cancel_wait(r.s, "o", LAPSE_ANY, LAPSE_MS(5)), LAPSE_ETIMEOUT);
    ck_assert_int_eq(atomic_load(&slow.returned), 0);
    gate_open(&slow.go_on);
    int answer = lapse_cancel_wait(r.s, "o", LAPSE_ANY, LIMIT);
    ck_assert(answer == LAPSE_FATE_RUNNING || answer == LAPSE_FATE_UNKNOWN);
    ck_assert_int_eq(atomic_load(&slow.returned), 1);
    ck_assert_int_eq(slow.answer, LAPSE_FATE_RUNNING); /* Inside it answered at once. */
    ck_assert(until(nothing_left, r.s));
    ck_assert_int_eq(atomic_load(&slow.runs), 1); /* The retry did not come. */
    rig_close(&r);
    gate_destroy(&slow.entered);
    gate_destroy(&slow.go_on);
}
END_TEST

/* -- Reschedule -------------------------------------------------------------------------------- */

START_TEST(reschedule_later_and_earlier)
{
    rig r = fresh(_i, NULL);
    NEEDS(&r, LAPSE_CAN_CANCEL);
    int64_t generation = put(r.s, "q", "o", LAPSE_SECONDS(10));
    put(r.s, "q", "other", LAPSE_SECONDS(20));
    advance(&r, LAPSE_SECONDS(5));
    ck_assert_int_eq(lapse_reschedule(r.s, "o", generation, LAPSE_SECONDS(10)),
                     LAPSE_FATE_RESCHEDULED);
    advance(&r, LAPSE_SECONDS(10) - 1);
    expect_nothing(r.s, "q");
    ck_assert_int_eq(lapse_reschedule(r.s, "o", LAPSE_ANY, LAPSE_HOURS(1)), LAPSE_FATE_RESCHEDULED);
    ck_assert_int_eq(lapse_reschedule(r.s, "o", LAPSE_ANY, LAPSE_MS(10)), LAPSE_FATE_RESCHEDULED);
    ck_assert_int_eq(lapse_reschedule(r.s, "other", LAPSE_ANY, -1), LAPSE_FATE_RESCHEDULED);
    advance(&r, LAPSE_MS(5));
    finish_one(r.s, "q", "other");
    expect_nothing(r.s, "q");
    advance(&r, LAPSE_MS(10));
    const lapse_order *order = poll_one(r.s, "q", "o");
    ck_assert_int_eq(order->generation, generation);
    ck_assert_int_eq(order->attempt, 1);
    settle(r.s, order->fence, LAPSE_DONE);
    ck_assert_uint_eq(stats_of(r.s).rescheduled, 4);
    expect_books(r.s);
    rig_close(&r);
}
END_TEST

/* Due already, but nobody has claimed it: it can still be put off. */
START_TEST(reschedule_what_is_due)
{
    rig r = fresh(_i, NULL);
    NEEDS(&r, LAPSE_CAN_CANCEL);
    player p;
    player_open(&p, r.s, NULL);
    handle(r.s, "q", &p, NULL);
    put_batch(r.s, "q", "o", 3, 0);
    ck_assert_int_eq(lapse_clock_advance(r.clock, LAPSE_SECONDS(1)), 0);
    ck_assert_int_eq(lapse_reschedule(r.s, "o1", LAPSE_ANY, LAPSE_HOURS(1)),
                     LAPSE_FATE_RESCHEDULED);
    ck_assert_int_eq(lapse_cancel(r.s, "o2", LAPSE_ANY), LAPSE_FATE_CANCELLED);
    advance(&r, 0);
    ck_assert_uint_eq(tape_count(&p.ran), 1);
    ck_assert_uint_eq(tape_runs(&p.ran, "o0"), 1);
    advance(&r, LAPSE_HOURS(1));
    ck_assert_uint_eq(tape_count(&p.ran), 2);
    ck_assert_uint_eq(tape_runs(&p.ran, "o1"), 1);
    ck_assert_int_eq(p.ran.entries[1].attempt, 1);
    expect_books(r.s);
    player_close(&p);
    rig_close(&r);
}
END_TEST

START_TEST(p72_reschedule_answers_what_became_of_it)
{
    lapse_options options = {.keep = LAPSE_MINUTES(5)};
    rig r = fresh(_i, &options);
    NEEDS(&r, LAPSE_CAN_CANCEL);
    ck_assert_int_eq(lapse_reschedule(r.s, "o", LAPSE_ANY, 0), LAPSE_FATE_UNKNOWN);
    int64_t generation = put(r.s, "q", "o", 0);
    ck_assert_int_eq(lapse_reschedule(r.s, "o", generation + 1, 0), LAPSE_FATE_UNKNOWN);
    advance(&r, LAPSE_MS(1));
    int64_t fence = poll_one(r.s, "q", "o")->fence;
    ck_assert_int_eq(lapse_reschedule(r.s, "o", LAPSE_ANY, LAPSE_HOURS(1)), LAPSE_FATE_RUNNING);
    ck_assert(lapse_holds(r.s, fence)); /* And nothing is changed: */
    ck_assert_int_eq(lapse_settle(r.s, fence, LAPSE_RETRY, LAPSE_SECONDS(1), NULL), 0);
    advance(&r, LAPSE_SECONDS(1));
    finish_one(r.s, "q", "o"); /* it may be repeated. */
    ck_assert_int_eq(lapse_reschedule(r.s, "o", LAPSE_ANY, LAPSE_HOURS(1)), LAPSE_FATE_DONE);
    advance(&r, LAPSE_MINUTES(6));
    ck_assert_int_eq(lapse_reschedule(r.s, "o", LAPSE_ANY, LAPSE_HOURS(1)), LAPSE_FATE_UNKNOWN);
    ck_assert_uint_eq(stats_of(r.s).rescheduled, 0);
    rig_close(&r);
}
END_TEST

/* -- Get ---------------------------------------------------------------------------------------- */

static void expect_info(const lapse_info *info, lapse_state state, int64_t generation, int attempt)
{
    ck_assert_int_eq(info->state, state);
    ck_assert_int_eq(info->generation, generation);
    ck_assert_int_eq(info->attempt, attempt);
    ck_assert_str_eq(info->id, "o");
    ck_assert_uint_eq(info->id_len, 1);
    ck_assert_str_eq(info->queue, "q");
    ck_assert_int_eq(info->reason, LAPSE_REASON_NONE);
    ck_assert_ptr_null(info->error);
}

START_TEST(get_tells_every_state)
{
    lapse_options options = {.keep = LAPSE_MINUTES(5)};
    rig r = fresh(_i, &options);
    NEEDS(&r, LAPSE_CAN_LIST);
    lapse_spec spec = {.id = "o",
                       .queue = "q",
                       .delay = LAPSE_SECONDS(10),
                       .payload = "p\0yload",
                       .payload_len = 7};
    int64_t generation = lapse_put(r.s, &spec);
    advance(&r, LAPSE_SECONDS(4));
    lapse_info info = look(r.s, "o");
    expect_info(&info, LAPSE_STATE_PENDING, generation, 0);
    ck_assert_int_eq(info.remaining, LAPSE_SECONDS(6));
    ck_assert_int_eq(info.due, UTC_START + LAPSE_SECONDS(10));
    ck_assert_int_eq(info.ended, 0);
    ck_assert_uint_eq(info.payload_len, 7);
    ck_assert_mem_eq(info.payload, "p\0yload", 7);
    lapse_info_free(&info);
    advance(&r, LAPSE_SECONDS(7)); /* Overdue by one. */
    info = look(r.s, "o");
    expect_info(&info, LAPSE_STATE_PENDING, generation, 0);
    ck_assert_int_eq(info.remaining, 0);
    ck_assert_int_eq(info.due, UTC_START + LAPSE_SECONDS(10));
    lapse_info_free(&info);
    int64_t fence = poll_one(r.s, "q", "o")->fence;
    info = look(r.s, "o");
    expect_info(&info, LAPSE_STATE_RUNNING, generation, 1);
    ck_assert_int_eq(info.remaining, 0);
    ck_assert_int_eq(info.due, UTC_START + LAPSE_SECONDS(10)); /* Not its lease's end. */
    ck_assert_uint_eq(info.payload_len, 7);
    lapse_info_free(&info);
    ck_assert_int_eq(lapse_settle(r.s, fence, LAPSE_RETRY, LAPSE_SECONDS(3), "busy"), 0);
    info = look(r.s, "o");
    expect_info(&info, LAPSE_STATE_PENDING, generation, 1);
    ck_assert_int_eq(info.remaining, LAPSE_SECONDS(3));
    ck_assert_int_eq(info.due, UTC_START + LAPSE_SECONDS(14));
    lapse_info_free(&info);
    advance(&r, LAPSE_SECONDS(3));
    finish_one(r.s, "q", "o");
    info = look(r.s, "o");
    ck_assert_int_eq(info.state, LAPSE_STATE_DONE);
    ck_assert_int_eq(info.generation, generation);
    ck_assert_int_eq(info.ended, UTC_START + LAPSE_SECONDS(14)); /* When it was closed. */
    lapse_info_free(&info);
    advance(&r, LAPSE_MINUTES(6));
    ck_assert_int_eq(lapse_get(r.s, "o", &info), LAPSE_EUNKNOWN);
    ck_assert_int_eq(lapse_get(r.s, NULL, &info), LAPSE_EINVAL);
    ck_assert_int_eq(lapse_get(r.s, "o", NULL), LAPSE_EINVAL);
    rig_close(&r);
}
END_TEST

START_TEST(without_keep_nothing_is_remembered)
{
    rig r = fresh(_i, NULL);
    NEEDS(&r, LAPSE_CAN_CANCEL);
    put(r.s, "q", "done", 0);
    put(r.s, "q", "cancelled", 0);
    ck_assert_int_eq(lapse_cancel(r.s, "cancelled", LAPSE_ANY), LAPSE_FATE_CANCELLED);
    advance(&r, LAPSE_MS(1));
    finish_one(r.s, "q", "done");
    ck_assert_int_eq(lapse_cancel(r.s, "done", LAPSE_ANY), LAPSE_FATE_UNKNOWN);
    ck_assert_int_eq(lapse_cancel(r.s, "cancelled", LAPSE_ANY), LAPSE_FATE_UNKNOWN);
    ck_assert_int_eq(state_of(r.s, "done"), 0);
    ck_assert_uint_eq(stats_of(r.s).kept, 0);
    rig_close(&r);
}
END_TEST

/* -- Each --------------------------------------------------------------------------------------- */

enum { SHOWN = 300 };

struct walk {
    lapse *s;
    int seen[SHOWN];
    unsigned states;
    int shown, end_after;
    bool change;
};

static bool see(const lapse_info *info, void *arg)
{
    struct walk *w = arg;
    int n = atoi(info->id);
    w->seen[n]++;
    w->shown++;
    w->states |= (unsigned)info->state;
    if (w->change && lapse_cancel(w->s, info->id, info->generation) != LAPSE_FATE_CANCELLED)
        complain("order %d could not be cancelled from a visitor", n);
    return w->end_after == 0 || w->shown < w->end_after;
}

START_TEST(each_shows_every_order_once)
{
    rig r = fresh(_i, NULL);
    NEEDS(&r, LAPSE_CAN_LIST);
    static struct walk w;
    put_batch(r.s, "q", "", SHOWN, LAPSE_SECONDS(1));
    w = (struct walk){.s = r.s};
    ck_assert_int_eq(lapse_each(r.s, 0, see, &w), SHOWN);
    for (int i = 0; i < SHOWN; i++)
        ck_assert_int_eq(w.seen[i], 1);
    w = (struct walk){.s = r.s, .end_after = 10};
    ck_assert_int_eq(lapse_each(r.s, LAPSE_STATE_PENDING, see, &w), 10);
    ck_assert_int_eq(w.shown, 10);
    w = (struct walk){.s = r.s, .change = true};
    ck_assert_int_eq(lapse_each(r.s, LAPSE_STATE_PENDING, see, &w), SHOWN);
    check_calm();
    for (int i = 0; i < SHOWN; i++)
        ck_assert_int_eq(w.seen[i], 1);
    ck_assert_int_eq(lapse_each(r.s, 0, see, &w), 0);
    ck_assert_uint_eq(pending_in(r.s), 0);
    rig_close(&r);
}
END_TEST

START_TEST(each_by_state)
{
    lapse_options options = {.keep = LAPSE_MINUTES(5)};
    rig r = fresh(_i, &options);
    NEEDS(&r, LAPSE_CAN_LIST);
    static struct walk w;
    put_batch(r.s, "q", "", 40, 0);
    advance(&r, LAPSE_MS(1));
    for (int i = 0; i < 30; i++) {
        char id[16];
        snprintf(id, sizeof id, "%d", i);
        int64_t fence = poll_one(r.s, "q", id)->fence;
        if (i >= 10)
            settle(r.s, fence, i < 20 ? LAPSE_DONE : LAPSE_REJECT);
    }
    const lapse_state states[] = {LAPSE_STATE_RUNNING, LAPSE_STATE_DONE, LAPSE_STATE_DEAD,
                                  LAPSE_STATE_PENDING};
    for (int n = 0; n < 4; n++) {
        w = (struct walk){.s = r.s};
        ck_assert_int_eq(lapse_each(r.s, states[n], see, &w), 10);
        ck_assert_uint_eq(w.states, states[n]);
        for (int i = 0; i < 40; i++)
            ck_assert_int_eq(w.seen[i], i / 10 == n);
    }
    w = (struct walk){.s = r.s};
    ck_assert_int_eq(lapse_each(r.s, LAPSE_STATE_RUNNING | LAPSE_STATE_DEAD, see, &w), 20);
    w = (struct walk){.s = r.s};
    ck_assert_int_eq(lapse_each(r.s, 0, see, &w), 40);
    lapse_stats t = stats_of(r.s);
    ck_assert_uint_eq(t.pending, 10);
    ck_assert_uint_eq(t.running, 10);
    ck_assert_uint_eq(t.kept, 10);
    ck_assert_uint_eq(t.dead, 10);
    rig_close(&r);
}
END_TEST

/* P-31: stop divides exactly: each order ran, or is listed. */
START_TEST(p31_after_stop_the_list_is_exact)
{
    rig r = fresh(_i, NULL);
    NEEDS(&r, LAPSE_CAN_LIST);
    static struct walk w;
    player p;
    player_open(&p, r.s, NULL);
    handle(r.s, "q", &p, NULL);
    put_batch(r.s, "q", "", 100, 0);
    ck_assert_int_eq(lapse_clock_advance(r.clock, LAPSE_SECONDS(1)), 0);
    ck_assert_int_eq(lapse_process(r.s, 37), 37);
    ck_assert_int_eq(lapse_stop(r.s), 0);
    ck_assert_int_eq(lapse_stop(r.s), 0);
    ck_assert_int_eq(lapse_process(r.s, 0), LAPSE_ECLOSED);
    w = (struct walk){.s = r.s};
    ck_assert_int_eq(lapse_each(r.s, LAPSE_STATE_PENDING, see, &w), 63);
    char id[16];
    for (int i = 0; i < 100; i++) {
        snprintf(id, sizeof id, "%d", i);
        ck_assert_int_eq((int)tape_runs(&p.ran, id) + w.seen[i], 1);
    }
    ck_assert_int_eq(lapse_each(r.s, LAPSE_STATE_RUNNING, see, &w), 0);
    expect_books(r.s);
    player_close(&p);
    rig_close(&r);
}
END_TEST

static void fill_suite(Suite *suite)
{
    TCase *group = add_group(suite, "cancel");
    ADD_FOR_STORES(group, p20_each_moment_has_its_answer);
    ADD_FOR_STORES(group, p20_an_odd_id_is_unknown);
    ADD_FOR_STORES(group, p20_a_generation_is_meant_as_it_is_said);
    ADD_FOR_STORES(group, p20_no_attempt_follows_a_running_answer);
    ADD_FOR_STORES(group, p20_none_follows_when_the_holder_is_lost);
    ADD_FOR_STORES(group, p20_what_ran_is_not_pending_when_its_lease_ends);
    ADD_FOR_STORES(group, a_cancelled_order_is_gone);
    ADD_FOR_STORES(group, p20_one_winner_among_threads);
    ADD_FOR_STORES(group, p21_cancel_wait_waits_for_the_callback);
    group = add_group(suite, "reschedule");
    ADD_FOR_STORES(group, reschedule_later_and_earlier);
    ADD_FOR_STORES(group, reschedule_what_is_due);
    ADD_FOR_STORES(group, p72_reschedule_answers_what_became_of_it);
    group = add_group(suite, "look");
    ADD_FOR_STORES(group, get_tells_every_state);
    ADD_FOR_STORES(group, without_keep_nothing_is_remembered);
    ADD_FOR_STORES(group, each_shows_every_order_once);
    ADD_FOR_STORES(group, each_by_state);
    ADD_FOR_STORES(group, p31_after_stop_the_list_is_exact);
}

int main(void)
{
    return stores_main("change", fill_suite);
}
