/* test_requeue.c - what is done with dead letters: requeue, purge, and on_dead's own replay.
 *
 * A dead letter becomes a pending order again with all it had, or is deleted for good. */
/* tiers: quick full soak */
/* valgrind */
#include "delivery.h"

#include <stdlib.h>

/* -- Requeue --------------------------------------------------------------------------------- */

/* An order with a callback of its own keeps it, and its argument, until it is over. */
struct stubborn {
    int runs, give_in, released;
    int64_t generation;
};

static lapse_verdict refuse(const lapse_order *order, void *arg)
{
    struct stubborn *s = arg;
    s->generation = order->generation;
    return ++s->runs < s->give_in ? lapse_reject(order, "not me") : LAPSE_DONE;
}

static void let_go(void *arg)
{
    ((struct stubborn *)arg)->released++;
}

START_TEST(requeue_keeps_the_callback)
{
    rig r = rig_manual(_i, START, NULL);
    struct stubborn s = {.give_in = 4};
    lapse_spec spec = {.id = "o", .fn = refuse, .arg = &s, .release = let_go};
    ck_assert_int_gt(lapse_put(r.s, &spec), 0);
    advance(&r, LAPSE_MS(1));
    for (int again = 1; again < 4; again++) {
        ck_assert_int_eq(s.runs, again);
        ck_assert_int_eq(s.released, 0);
        int64_t generation = lapse_requeue(r.s, "o", s.generation, -5); /* At once. */
        ck_assert_int_gt(generation, s.generation);
        advance(&r, LAPSE_MS(1));
    }
    ck_assert_int_eq(s.runs, 4);
    ck_assert_int_eq(s.released, 1);
    ck_assert_uint_eq(stats_of(r.s).dead, 0);
    rig_close(&r);
    ck_assert_int_eq(s.released, 1);
}
END_TEST

/* -- Purge ------------------------------------------------------------------------------------ */

START_TEST(purge_deletes_for_good)
{
    atomic_int released = 0;
    lapse_options options = {.release = count_release};
    rig r = rig_manual(_i, START, &options);
    player p;
    player_open(&p, r.s, always_reject);
    handle(r.s, "q", &p, NULL);
    ck_assert_int_eq(lapse_purge(r.s, NULL, LAPSE_ANY), 0);
    for (int i = 0; i < 100; i++) {
        char id[8];
        snprintf(id, sizeof id, "%d", i);
        lapse_spec spec = {.id = id, .queue = "q", .arg = &released};
        ck_assert_int_gt(lapse_put(r.s, &spec), 0);
    }
    advance(&r, LAPSE_MS(1));
    ck_assert_int_eq(atomic_load(&released), 0); /* They can start again. */
    ck_assert_int_eq(lapse_purge(r.s, "55", LAPSE_ANY), 1);
    ck_assert_int_eq(lapse_purge(r.s, "55", LAPSE_ANY), 0);
    ck_assert_int_eq(lapse_purge(r.s, "unknown", LAPSE_ANY), 0);
    ck_assert_int_eq(atomic_load(&released), 1);
    ck_assert_int_eq(state_of(r.s, "55"), 0);
    ck_assert_int_eq(lapse_requeue(r.s, "55", LAPSE_ANY, 0), LAPSE_EUNKNOWN);
    lapse_queue_stats q = queue_stats(r.s, "q");
    ck_assert_uint_eq(q.dead, 99);
    ck_assert_uint_eq(q.dead_total, 100);
    ck_assert_int_eq(lapse_stop(r.s), 0);
    ck_assert_int_eq(lapse_purge(r.s, NULL, LAPSE_ANY), 99);
    ck_assert_int_eq(atomic_load(&released), 100);
    ck_assert_uint_eq(stats_of(r.s).purged, 100);
    ck_assert_uint_eq(stats_of(r.s).dead, 0);
    expect_books(r.s);
    player_close(&p);
    rig_close(&r);
    ck_assert_int_eq(atomic_load(&released), 100);
}
END_TEST

/* A visitor may clear up what it is shown. */
struct janitor {
    lapse *s;
    int shown, requeued, purged;
};

static bool clear_up(const lapse_info *info, void *arg)
{
    struct janitor *j = arg;
    j->shown++;
    if (atoi(info->id) % 2 == 0)
        j->purged += lapse_purge(j->s, info->id, info->generation) == 1;
    else
        j->requeued += lapse_requeue(j->s, info->id, info->generation, LAPSE_HOURS(1)) > 0;
    return true;
}

START_TEST(a_visitor_may_requeue_and_purge)
{
    rig r = rig_manual(_i, START, NULL);
    player p;
    player_open(&p, r.s, always_reject);
    handle(r.s, "q", &p, NULL);
    put_many(r.s, "q", "", 200, 0);
    advance(&r, LAPSE_MS(1));
    struct janitor j = {.s = r.s};
    ck_assert_int_eq(lapse_each(r.s, LAPSE_STATE_DEAD, clear_up, &j), 200);
    ck_assert_int_eq(j.shown, 200);
    ck_assert_int_eq(j.purged, 100);
    ck_assert_int_eq(j.requeued, 100);
    ck_assert_uint_eq(stats_of(r.s).dead, 0);
    ck_assert_uint_eq(pending_in(r.s), 100);
    expect_books(r.s);
    player_close(&p);
    rig_close(&r);
}
END_TEST

static bool end_after_three(const lapse_info *info, void *arg)
{
    (void)info;
    return ++*(int *)arg < 3;
}

START_TEST(a_walk_may_end_early)
{
    rig r = rig_manual(_i, START, NULL);
    player p;
    player_open(&p, r.s, always_reject);
    handle(r.s, "q", &p, NULL);
    put_many(r.s, "q", "", 50, 0);
    advance(&r, LAPSE_MS(1));
    int shown = 0;
    ck_assert_int_eq(lapse_each(r.s, LAPSE_STATE_DEAD, end_after_three, &shown), 3);
    ck_assert_int_eq(shown, 3);
    player_close(&p);
    rig_close(&r);
}
END_TEST

/* -- on_dead ------------------------------------------------------------------------------------ */

/* A hook that replays what was lost and throws away the rest. */
struct undertaker {
    lapse *s;
    int replayed, purged, left;
};

static void replay(void *hook_arg, const lapse_info *dead)
{
    struct undertaker *u = hook_arg;
    int number = atoi(dead->id);
    if (number % 3 == 0)
        u->replayed += lapse_requeue(u->s, dead->id, dead->generation, LAPSE_SECONDS(1)) > 0;
    else if (number % 3 == 1)
        u->purged += lapse_purge(u->s, dead->id, dead->generation) == 1;
    else
        u->left++;
}

START_TEST(on_dead_may_replay)
{
    struct undertaker u = {.s = NULL};
    lapse_options options = {.hook_arg = &u, .on_dead = replay};
    rig r = rig_manual(_i, START, &options);
    u.s = r.s;
    player p;
    player_open(&p, r.s, always_reject);
    handle(r.s, "q", &p, NULL);
    put_many(r.s, "q", "", 30, 0);
    advance(&r, LAPSE_MS(1));
    ck_assert_int_eq(u.replayed, 10);
    ck_assert_int_eq(u.purged, 10);
    ck_assert_int_eq(u.left, 10);
    p.say = NULL;
    advance(&r, LAPSE_SECONDS(1));
    ck_assert_uint_eq(stats_of(r.s).done, 10);
    ck_assert_uint_eq(stats_of(r.s).dead, 10);
    expect_books(r.s);
    player_close(&p);
    rig_close(&r);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("requeue");
    TCase *group = add_group(suite, "requeue and purge");
    ADD_FOR_ENGINES(group, requeue_keeps_the_callback);
    ADD_FOR_ENGINES(group, purge_deletes_for_good);
    ADD_FOR_ENGINES(group, a_visitor_may_requeue_and_purge);
    ADD_FOR_ENGINES(group, a_walk_may_end_early);
    ADD_FOR_ENGINES(group, on_dead_may_replay);
    return run_suite(suite);
}
