/* test_dead.c - every store: dead letters, and limits on how many there may be. P-29, P-30.
 *
 * An order that cannot be delivered stays to be looked at, with its reason and last error,
 * until it is scheduled again, purged, or dropped for newer ones. */
/* tiers: small full */
/* servers */
#include "cases/letters.h"
#include "stores/stores.h"

#include <inttypes.h>
#include <stdlib.h>

/* -- Reasons --------------------------------------------------------------------------------- */

START_TEST(five_reasons)
{
    STORE_NEEDS(_i, LAPSE_CAN_LIMIT);
    static letters told, listed;
    player p;
    told.count = listed.count = 0;
    lapse_options options = options_of_five(&told);
    rig r = fresh(_i, &options);
    kill_five(&r, &p);
    expect_five(&told, NULL); /* As it happened, */
    ck_assert_int_eq(lapse_each(r.s, LAPSE_STATE_DEAD, note_letter, &listed), 5);
    expect_five(&listed, NULL); /* and as it is kept. */
    expect_five_counted(&r);
    player_close(&p);
    rig_close(&r);
}
END_TEST

START_TEST(a_dead_letter_tells_its_times)
{
    rig r = fresh(_i, NULL);
    player p;
    player_open(&p, r.s, always_fail);
    handle(r.s, "q", &p, &(lapse_policy){.attempts = 2, .jitter_percent = -1});
    int64_t generation = put(r.s, "q", "o", LAPSE_SECONDS(10));
    advance(&r, LAPSE_SECONDS(10));
    advance(&r, LAPSE_SECONDS(3));
    letter dead = only_letter(r.s);
    ck_assert_int_eq(dead.due, UTC_START + LAPSE_SECONDS(11)); /* The last attempt's. */
    ck_assert_int_eq(dead.ended, UTC_START + LAPSE_SECONDS(13));
    ck_assert_int_eq(dead.generation, generation);
    if (lapse_abilities(r.s) & LAPSE_CAN_LIST) {
        lapse_info info = look(r.s, "o");
        ck_assert_int_eq(info.remaining, 0);
        ck_assert_int_eq(info.reason, LAPSE_REASON_FAILED);
        ck_assert_int_eq(info.generation, generation);
        lapse_info_free(&info);
    }
    if (lapse_abilities(r.s) & LAPSE_CAN_CANCEL) {
        ck_assert_int_eq(lapse_cancel(r.s, "o", LAPSE_ANY), LAPSE_FATE_UNKNOWN);
        ck_assert_int_eq(lapse_reschedule(r.s, "o", LAPSE_ANY, 0), LAPSE_FATE_UNKNOWN);
    }
    player_close(&p);
    rig_close(&r);
}
END_TEST

/* What is kept is valid UTF-8 without control characters, of 1000 bytes at most. */
START_TEST(errors_are_escaped_and_clipped)
{
    rig r = fresh(_i, NULL);
    player p;
    player_open(&p, r.s, say_last_words);
    handle(r.s, "q", &p, NULL);
    expect_kept(&r, "", "");
    expect_kept(&r, "caf\xc3\xa9 \xe2\x82\xac", "caf\xc3\xa9 \xe2\x82\xac");
    expect_kept(&r, "a\nb\tc\x1b[31m\x7f", "a\\x0ab\\x09c\\x1b[31m\\x7f");
    expect_kept(&r, "\xff\xfe", "\\xff\\xfe");
    expect_kept(&r, "' OR 1=1; -- \"quoted\" %s %n ?1 $1 :a",
                "' OR 1=1; -- \"quoted\" %s %n ?1 $1 :a");
    char words[4000], kept[1001];
    memset(words, 'x', sizeof words);
    memset(kept, 'x', sizeof kept);
    words[3999] = kept[1000] = '\0';
    expect_kept(&r, words, kept);
    memcpy(words + 999, "\xc3\xa9", 2); /* Not cut in the middle of a character. */
    kept[999] = '\0';
    expect_kept(&r, words, kept);
    player_close(&p);
    rig_close(&r);
}
END_TEST

/* -- Requeue and purge ------------------------------------------------------------------------ */

static void look_at_requeued(lapse *s, int64_t alive)
{
    lapse_info info = look(s, "o");
    ck_assert_int_eq(info.state, LAPSE_STATE_PENDING);
    ck_assert_int_eq(info.generation, alive);
    ck_assert_int_eq(info.attempt, 0);
    ck_assert_int_eq(info.reason, LAPSE_REASON_NONE);
    ck_assert_int_eq(info.ended, 0);
    ck_assert_ptr_null(info.error);
    ck_assert_uint_eq(info.payload_len, 7);
    ck_assert_mem_eq(info.payload, "pay\0oad", 7);
    lapse_info_free(&info);
}

START_TEST(requeue_starts_anew)
{
    rig r = fresh(_i, NULL);
    player p;
    player_open(&p, r.s, always_fail);
    handle(r.s, "q", &p, &(lapse_policy){.attempts = 2, .jitter_percent = -1});
    put_with_payload(r.s, "q", "o", 0);
    advance(&r, LAPSE_MS(1));
    advance(&r, LAPSE_SECONDS(1));
    int64_t dead = only_letter(r.s).generation;
    int64_t alive = lapse_requeue(r.s, "o", LAPSE_ANY, LAPSE_SECONDS(5));
    ck_assert_int_gt(alive, dead);
    if (lapse_abilities(r.s) & LAPSE_CAN_LIST)
        look_at_requeued(r.s, alive);
    if (lapse_abilities(r.s) & LAPSE_CAN_CANCEL)
        ck_assert_int_eq(lapse_cancel(r.s, "o", dead), LAPSE_FATE_UNKNOWN);
    lapse_ns tick = r.tick > 0 ? r.tick : 1;
    advance(&r, LAPSE_SECONDS(5) - tick);
    ck_assert_uint_eq(tape_count(&p.ran), 2);
    advance(&r, tick);
    ck_assert_uint_eq(tape_count(&p.ran), 3);
    ck_assert_int_eq(p.ran.entries[2].attempt, 1); /* Its attempts are counted anew. */
    ck_assert_int_eq(p.ran.entries[2].late, 0);
    ck_assert_int_eq(p.ran.entries[2].generation, alive);
    ck_assert_int_gt(p.ran.entries[2].fence, p.ran.entries[1].fence);
    p.say = NULL;
    advance(&r, LAPSE_SECONDS(2));
    lapse_stats t = stats_of(r.s);
    ck_assert_uint_eq(t.scheduled, 2);
    ck_assert_uint_eq(t.requeued, 1);
    ck_assert_uint_eq(t.dead_total, 1);
    ck_assert_uint_eq(t.dead, 0);
    ck_assert_uint_eq(t.done, 1);
    expect_books(r.s);
    player_close(&p);
    rig_close(&r);
}
END_TEST

START_TEST(requeue_has_errors)
{
    STORE_NEEDS(_i, LAPSE_CAN_LIMIT);
    lapse_options options = {.max_pending = 2};
    rig r = fresh(_i, &options);
    NEEDS(&r, LAPSE_CAN_CANCEL);
    player p;
    player_open(&p, r.s, always_reject);
    handle(r.s, "q", &p, NULL);
    int64_t generation = put(r.s, "q", "o", 0);
    advance(&r, LAPSE_MS(1));
    ck_assert_int_eq(lapse_requeue(r.s, "other", LAPSE_ANY, 0), LAPSE_EUNKNOWN);
    ck_assert_int_eq(lapse_requeue(r.s, "o", generation + 1, 0), LAPSE_EUNKNOWN);
    ck_assert_int_lt(lapse_requeue(r.s, "", LAPSE_ANY, 0), 0);
    ck_assert_int_eq(lapse_requeue(r.s, NULL, LAPSE_ANY, 0), LAPSE_EINVAL);
    ck_assert_int_eq(lapse_requeue(NULL, "o", LAPSE_ANY, 0), LAPSE_EINVAL);
    char longest[LAPSE_ID_MAX + 2];
    memset(longest, 'i', sizeof longest);
    longest[LAPSE_ID_MAX + 1] = '\0';
    ck_assert_int_lt(lapse_requeue(r.s, longest, LAPSE_ANY, 0), 0);
    ck_assert_int_eq(lapse_requeue(r.s, "o", LAPSE_ANY, LAPSE_DELAY_MAX + 1), LAPSE_ERANGE);
    put(r.s, "pull", "o", 0); /* The id is used again. */
    EXPECT_ERROR(lapse_requeue(r.s, "o", LAPSE_ANY, 0), LAPSE_EEXISTS, "");
    advance(&r, LAPSE_MS(1));
    int64_t fence = poll_one(r.s, "pull", "o")->fence;
    EXPECT_ERROR(lapse_requeue(r.s, "o", generation, 0), LAPSE_EEXISTS, "");
    put(r.s, "pull", "second", 0);
    settle(r.s, fence, LAPSE_DONE);
    put(r.s, "pull", "third", 0);
    EXPECT_ERROR(lapse_requeue(r.s, "o", LAPSE_ANY, 0), LAPSE_EFULL, "2");
    ck_assert_int_eq(only_letter(r.s).generation, generation); /* It is still there. */
    ck_assert_int_eq(lapse_cancel(r.s, "third", LAPSE_ANY), LAPSE_FATE_CANCELLED);
    ck_assert_int_gt(lapse_requeue(r.s, "o", generation, 0), generation);
    advance(&r, LAPSE_MS(1));
    ck_assert_int_eq(lapse_stop(r.s), 0);
    EXPECT_ERROR(lapse_requeue(r.s, "o", LAPSE_ANY, 0), LAPSE_ECLOSED, "");
    ck_assert_int_eq(only_letter(r.s).attempt, 1);
    expect_books(r.s);
    player_close(&p);
    rig_close(&r);
}
END_TEST

START_TEST(several_dead_letters_of_one_id)
{
    rig r = fresh(_i, NULL);
    NEEDS(&r, LAPSE_CAN_CANCEL);
    player p;
    player_open(&p, r.s, always_reject);
    handle(r.s, "q", &p, NULL);
    int64_t generations[4];
    for (int i = 0; i < 4; i++) {
        generations[i] = put(r.s, "q", "o", 0);
        advance(&r, LAPSE_MS(1));
    }
    ck_assert_uint_eq(stats_of(r.s).dead, 4);
    lapse_info info = look(r.s, "o");
    ck_assert_int_eq(info.generation, generations[3]);
    lapse_info_free(&info);
    ck_assert_int_eq(lapse_purge(r.s, "o", generations[3]), 1);
    ck_assert_int_eq(lapse_purge(r.s, "o", generations[3]), 0);
    ck_assert_int_gt(lapse_requeue(r.s, "o", generations[0], LAPSE_HOURS(1)), generations[3]);
    ck_assert_int_eq(lapse_cancel(r.s, "o", LAPSE_ANY), LAPSE_FATE_CANCELLED);
    ck_assert_int_gt(lapse_requeue(r.s, "o", LAPSE_ANY, LAPSE_HOURS(1)), 0);
    ck_assert_int_eq(only_letter(r.s).generation, generations[1]); /* The newest went. */
    ck_assert_int_eq(lapse_purge(r.s, "o", LAPSE_ANY), 1);
    ck_assert_uint_eq(pending_in(r.s), 1); /* Purging is for the dead. */
    expect_books(r.s);
    player_close(&p);
    rig_close(&r);
}
END_TEST

/* -- By queue: a walk chooses, ids and generations name -- */

enum { OF_P = 37, OF_Q = 5 }; /* more than a walk shows at once */

typedef struct chosen {
    const char *queue;
    struct {
        char id[32];
        int64_t generation;
    } seen[OF_P];
    int count;
} chosen;

static bool choose(const lapse_info *info, void *arg)
{
    chosen *c = arg;
    if (strcmp(info->queue, c->queue) != 0)
        return true;
    snprintf(c->seen[c->count].id, sizeof c->seen->id, "%s", info->id);
    c->seen[c->count++].generation = info->generation;
    return c->count < OF_P;
}

static chosen letters_of(lapse *s, const char *queue)
{
    chosen c = {.queue = queue};
    int64_t shown = lapse_each(s, LAPSE_STATE_DEAD, choose, &c);
    ck_assert_msg(shown >= c.count, "%s", lapse_error_detail());
    return c;
}

static void expect_letters(lapse *s, uint64_t p, uint64_t q)
{
    ck_assert_uint_eq(stats_of(s).dead, p + q);
    ck_assert_uint_eq(queue_stats(s, "p").dead, p);
    ck_assert_uint_eq(queue_stats(s, "q").dead, q);
    ck_assert_uint_eq(stats_of(s).dead, p + q); /* To count them changes nothing. */
}

/* What the metrics say of a queue's dead letters, if they do, is right. */
static void expect_metric(lapse *s, const char *queue, uint64_t count)
{
    char begins[64], whole[96];
    snprintf(begins, sizeof begins, "\nlapse_queue_dead_letters{queue=\"%s\"}", queue);
    snprintf(whole, sizeof whole, "%s %llu\n", begins, (unsigned long long)count);
    char *text = lapse_metrics(s);
    ck_assert_ptr_nonnull(text);
    ck_assert_msg(!strstr(text, begins) || strstr(text, whole), "not %s", whole + 1);
    ck_assert(count > 0 || strstr(text, whole)); /* Of none every store knows. */
    lapse_free(text);
}

START_TEST(dead_letters_of_one_queue)
{
    rig r = fresh(_i, NULL);
    player p, q;
    player_open(&p, r.s, always_reject);
    player_open(&q, r.s, always_reject);
    handle(r.s, "p", &p, NULL);
    handle(r.s, "q", &q, NULL);
    expect_letters(r.s, 0, 0);
    expect_metric(r.s, "p", 0);
    put_batch(r.s, "p", "o", OF_P, 0);
    put_batch(r.s, "q", "x", OF_Q, 0);
    advance(&r, LAPSE_MS(1));
    expect_letters(r.s, OF_P, OF_Q);
    expect_metric(r.s, "p", OF_P);
    expect_metric(r.s, "q", OF_Q);
    ck_assert_int_eq(lapse_handle(r.s, "q", NULL, NULL, NULL, NULL), 0);
    chosen of_q = letters_of(r.s, "q");
    ck_assert_int_eq(of_q.count, OF_Q);
    for (int i = 0; i < OF_Q; i++)
        ck_assert_int_gt(lapse_requeue(r.s, of_q.seen[i].id, of_q.seen[i].generation, 0), 0);
    expect_letters(r.s, OF_P, 0);
    ck_assert_uint_eq(pending_in(r.s), OF_Q);
    chosen of_p = letters_of(r.s, "p");
    ck_assert_int_eq(of_p.count, OF_P);
    for (int i = 1; i < OF_P; i++)
        ck_assert_int_eq(lapse_purge(r.s, of_p.seen[i].id, of_p.seen[i].generation), 1);
    expect_letters(r.s, 1, 0);
    ck_assert_str_eq(only_letter(r.s).id, of_p.seen[0].id);
    expect_books(r.s);
    player_close(&p);
    player_close(&q);
    rig_close(&r);
}
END_TEST

START_TEST(purge_deletes_for_good)
{
    rig r = fresh(_i, NULL);
    player p;
    player_open(&p, r.s, always_reject);
    handle(r.s, "q", &p, NULL);
    put_batch(r.s, "q", "o", 100, 0);
    put_batch(r.s, "pull", "alive", 3, 0);
    advance(&r, LAPSE_MS(1));
    ck_assert_uint_eq(stats_of(r.s).dead, 100);
    ck_assert_int_eq(lapse_purge(r.s, "o7", LAPSE_ANY), 1);
    ck_assert_int_eq(lapse_purge(r.s, "o7", LAPSE_ANY), 0);
    ck_assert_int_eq(lapse_purge(r.s, "alive0", LAPSE_ANY), 0);
    ck_assert_int_eq(lapse_purge(r.s, NULL, LAPSE_ANY), 99);
    expect_state(r.s, "o1", 0);
    ck_assert_int_eq(lapse_requeue(r.s, "o1", LAPSE_ANY, 0), LAPSE_EUNKNOWN);
    ck_assert_uint_eq(stats_of(r.s).purged, 100);
    ck_assert_uint_eq(stats_of(r.s).dead, 0);
    ck_assert_uint_eq(pending_in(r.s), 3);
    expect_books(r.s);
    player_close(&p);
    rig_close(&r);
}
END_TEST

/* Hooks and visitors may change what they are shown. */
struct replay {
    lapse *s;
    int count;
};

static bool requeue_or_purge(const lapse_info *info, void *arg)
{
    struct replay *replay = arg;
    if (replay->count++ % 2
            ? lapse_purge(replay->s, info->id, info->generation) != 1
            : lapse_requeue(replay->s, info->id, info->generation, LAPSE_HOURS(1)) < 1)
        complain("%s: %s", info->id, lapse_error_detail());
    return true;
}

static void requeue_once(void *hook_arg, const lapse_info *dead)
{
    struct replay *replay = hook_arg;
    if (replay->count++ < 10 && lapse_requeue(replay->s, dead->id, dead->generation, 0) < 1)
        complain("%s: %s", dead->id, lapse_error_detail());
}

START_TEST(a_visitor_may_requeue_and_purge)
{
    rig r = fresh(_i, NULL);
    player p;
    struct replay replay = {.s = r.s};
    player_open(&p, r.s, always_reject);
    handle(r.s, "q", &p, NULL);
    put_batch(r.s, "q", "o", 50, 0);
    advance(&r, LAPSE_MS(1));
    ck_assert_int_eq(lapse_each(r.s, LAPSE_STATE_DEAD, requeue_or_purge, &replay), 50);
    check_calm();
    ck_assert_uint_eq(pending_in(r.s), 25);
    ck_assert_uint_eq(stats_of(r.s).dead, 0);
    expect_books(r.s);
    player_close(&p);
    rig_close(&r);
}
END_TEST

START_TEST(on_dead_may_replay)
{
    struct replay replay = {.s = NULL};
    lapse_options options = {.hook_arg = &replay, .on_dead = requeue_once};
    rig r = fresh(_i, &options);
    player p;
    replay.s = r.s;
    player_open(&p, r.s, always_reject);
    handle(r.s, "q", &p, NULL);
    put_batch(r.s, "q", "o", 10, 0);
    advance(&r, LAPSE_MS(1));
    advance(&r, LAPSE_MS(1));
    check_calm();
    ck_assert_int_eq(replay.count, 20);
    ck_assert_uint_eq(tape_count(&p.ran), 20);
    ck_assert_uint_eq(stats_of(r.s).dead, 10);
    ck_assert_uint_eq(stats_of(r.s).requeued, 10);
    expect_books(r.s);
    player_close(&p);
    rig_close(&r);
}
END_TEST

/* -- Limits: P-29 ---------------------------------------------------------------------------- */

START_TEST(p29_the_limit_is_exact)
{
    STORE_NEEDS(_i, LAPSE_CAN_LIMIT);
    place at = new_place(_i, "max_pending=3");
    rig r = open_place(&at, &(lapse_options){.max_pending = 1000}); /* The URL wins. */
    put_batch(r.s, "q", "o", 3, LAPSE_MS(1));
    EXPECT_ERROR(lapse_put(r.s, &(lapse_spec){.id = "x"}), LAPSE_EFULL, "3");
    expect_state(r.s, "x", 0);
    lapse_spec spec = {.id = "o1", .queue = "q", .delay = LAPSE_MS(2), .flags = LAPSE_REPLACE};
    ck_assert_int_gt(lapse_put(r.s, &spec), 0); /* It takes another's place. */
    advance(&r, LAPSE_MS(5));
    int64_t fence = poll_one(r.s, "q", "o0")->fence;
    EXPECT_ERROR(lapse_put(r.s, &(lapse_spec){.id = "x"}), LAPSE_EFULL, ""); /* It counts too. */
    settle(r.s, fence, LAPSE_REJECT);
    put(r.s, "q", "x", 0); /* Dead letters do not. */
    EXPECT_ERROR(lapse_put(r.s, &(lapse_spec){.id = "y"}), LAPSE_EFULL, "");
    ck_assert_uint_eq(stats_of(r.s).refused, 3);
    ck_assert_uint_eq(pending_in(r.s), 3);
    expect_books(r.s);
    rig_close(&r);
}
END_TEST

START_TEST(p29_a_batch_is_cut_where_the_limit_is)
{
    STORE_NEEDS(_i, LAPSE_CAN_LIMIT);
    rig r = fresh(_i, &(lapse_options){.max_pending = 5});
    const char *const ids[] = {"0", "1", "2", "3", "4", "5", "6", "7"};
    lapse_spec specs[8];
    int64_t results[8];
    for (int i = 0; i < 8; i++)
        specs[i] = (lapse_spec){.id = ids[i], .queue = "q", .delay = LAPSE_SECONDS(1)};
    ck_assert_int_eq(lapse_schedule_many(r.s, specs, 8, results), 5);
    for (int i = 0; i < 8; i++)
        ck_assert(i < 5 ? results[i] > 0 : results[i] == LAPSE_EFULL);
    ck_assert_uint_eq(pending_in(r.s), 5);
    rig_close(&r);
}
END_TEST

START_TEST(p29_the_oldest_makes_room)
{
    STORE_NEEDS(_i, LAPSE_CAN_LIMIT);
    static letters told;
    told.count = 0;
    lapse_options options = {.max_pending = 3,
                             .overflow = LAPSE_DEAD_LETTER_OLDEST,
                             .hook_arg = &told,
                             .on_dead = keep_letter};
    rig r = fresh(_i, &options);
    put(r.s, "q", "first", LAPSE_HOURS(1));
    put(r.s, "q", "second", LAPSE_HOURS(2));
    put(r.s, "q", "third", LAPSE_HOURS(3));
    if (lapse_abilities(r.s) & LAPSE_CAN_CANCEL)
        ck_assert_int_eq(lapse_reschedule(r.s, "first", LAPSE_ANY, LAPSE_HOURS(1)),
                         LAPSE_FATE_RESCHEDULED); /* That makes it the youngest. */
    put(r.s, "q", "fourth", LAPSE_HOURS(1));
    ck_assert_int_eq(told.count, 1);
    ck_assert_str_eq(told.list[0].id, lapse_abilities(r.s) & LAPSE_CAN_CANCEL ? "second" : "first");
    ck_assert_int_eq(told.list[0].reason, LAPSE_REASON_MAXLEN);
    put(r.s, "q", "fifth", LAPSE_HOURS(1));
    ck_assert_str_eq(told.list[1].id, lapse_abilities(r.s) & LAPSE_CAN_CANCEL ? "third" : "second");
    ck_assert_uint_eq(pending_in(r.s), 3);
    ck_assert_uint_eq(stats_of(r.s).dead_by[LAPSE_REASON_MAXLEN], 2);
    ck_assert_uint_eq(stats_of(r.s).refused, 0);
    expect_books(r.s);
    rig_close(&r);
}
END_TEST

/* What runs is never dropped: when nothing else is there, the new one is refused. */
START_TEST(p29_what_runs_is_not_dropped)
{
    STORE_NEEDS(_i, LAPSE_CAN_LIMIT);
    lapse_options options = {.max_pending = 2, .overflow = LAPSE_DEAD_LETTER_OLDEST};
    rig r = fresh(_i, &options);
    put_batch(r.s, "q", "o", 2, LAPSE_MS(1));
    advance(&r, LAPSE_MS(1));
    int64_t first = poll_one(r.s, "q", "o0")->fence, second = poll_one(r.s, "q", "o1")->fence;
    EXPECT_ERROR(lapse_put(r.s, &(lapse_spec){.id = "x", .queue = "q"}), LAPSE_EFULL, "");
    ck_assert(lapse_holds(r.s, first) && lapse_holds(r.s, second));
    settle(r.s, first, LAPSE_DONE);
    put(r.s, "q", "x", 0);
    settle(r.s, second, LAPSE_DONE);
    expect_books(r.s);
    rig_close(&r);
}
END_TEST

START_TEST(p30_dead_letters_do_not_pile_up)
{
    place at = new_place(_i, "max_dead=10");
    rig r = open_place(&at, NULL);
    player p;
    static letters l;
    player_open(&p, r.s, always_reject);
    handle(r.s, "q", &p, NULL);
    char id[16];
    for (int i = 0; i < 25; i++) {
        snprintf(id, sizeof id, "%d", i);
        put(r.s, "q", id, 0);
        advance(&r, LAPSE_MS(1));
    }
    l.count = 0;
    ck_assert_int_eq(lapse_each(r.s, LAPSE_STATE_DEAD, note_letter, &l), 10);
    for (int i = 0; i < 10; i++)
        ck_assert_int_ge(atoi(l.list[i].id), 15); /* The oldest are dropped. */
    lapse_stats t = stats_of(r.s);
    ck_assert_uint_eq(t.dead, 10);
    ck_assert_uint_eq(t.dead_dropped, 15);
    ck_assert_uint_eq(t.dead_total, 25);
    ck_assert_int_eq(lapse_requeue(r.s, "3", LAPSE_ANY, 0), LAPSE_EUNKNOWN);
    expect_books(r.s);
    player_close(&p);
    rig_close(&r);
}
END_TEST

static void fill_suite(Suite *suite)
{
    TCase *group = add_group(suite, "reasons");
    ADD_FOR_STORES(group, five_reasons);
    ADD_FOR_STORES(group, a_dead_letter_tells_its_times);
    ADD_FOR_STORES(group, errors_are_escaped_and_clipped);
    group = add_group(suite, "requeue and purge");
    ADD_FOR_STORES(group, requeue_starts_anew);
    ADD_FOR_STORES(group, requeue_has_errors);
    ADD_FOR_STORES(group, several_dead_letters_of_one_id);
    ADD_FOR_STORES(group, dead_letters_of_one_queue);
    ADD_FOR_STORES(group, purge_deletes_for_good);
    ADD_FOR_STORES(group, a_visitor_may_requeue_and_purge);
    ADD_FOR_STORES(group, on_dead_may_replay);
    group = add_group(suite, "limits");
    ADD_FOR_STORES(group, p29_the_limit_is_exact);
    ADD_FOR_STORES(group, p29_a_batch_is_cut_where_the_limit_is);
    ADD_FOR_STORES(group, p29_the_oldest_makes_room);
    ADD_FOR_STORES(group, p29_what_runs_is_not_dropped);
    ADD_FOR_STORES(group, p30_dead_letters_do_not_pile_up);
}

int main(void)
{
    return stores_main("dead letters", fill_suite);
}
