/* test_dead.c - dead letters: why, what is kept of them, requeue, purge, their bound.
 * P-29 and P-30 as far as dead letters go.
 *
 * An order that cannot be delivered stays to be looked at, with its reason and last error,
 * until it is scheduled again, purged, or dropped for newer ones. */
/* tiers: quick full soak */
/* valgrind */
#include "delivery.h"

#include <inttypes.h>
#include <sched.h>
#include <stdlib.h>

/* -- Reasons ----------------------------------------------------------------------------- */

static lapse_verdict die_by_name(const lapse_order *order)
{
    if (strcmp(order->id, "failed") == 0)
        return lapse_fail(order, "gateway down");
    if (strcmp(order->id, "rejected") == 0)
        return lapse_reject(order, "no such account");
    return LAPSE_DONE;
}

static void keep_letter(void *hook_arg, const lapse_info *dead)
{
    note_letter(dead, hook_arg);
}

/* One dead letter of each reason, in this order, each with a payload of 7 bytes. */
static const struct {
    const char *id, *queue, *error;
    lapse_reason reason;
    int attempt;
} five[] = {
    {"maxlen", "q", "(none)", LAPSE_REASON_MAXLEN, 0},
    {"rejected", "q", "no such account", LAPSE_REASON_REJECTED, 1},
    {"failed", "q", "gateway down", LAPSE_REASON_FAILED, 2},
    {"lost", "pull", "the lease ended before it was settled", LAPSE_REASON_LOST, 5},
    {"expired", "q", "(none)", LAPSE_REASON_EXPIRED, 0},
};

static void put_with_payload(lapse *s, const char *queue, const char *id, lapse_ns delay)
{
    lapse_spec spec = {
        .id = id, .queue = queue, .delay = delay, .payload = "payload", .payload_len = 7};
    ck_assert_int_gt(lapse_put(s, &spec), 0);
}

static void kill_five(rig *r)
{
    put_with_payload(r->s, "q", "maxlen", LAPSE_HOURS(1));
    put_with_payload(r->s, "q", "failed", 0);
    put_with_payload(r->s, "q", "rejected", 0);
    put_with_payload(r->s, "pull", "lost", 0);
    put_with_payload(r->s, "q", "expired", LAPSE_MINUTES(4)); /* One too many. */
    advance(r, LAPSE_MS(1));
    advance(r, LAPSE_SECONDS(1));
    for (int i = 0; i < 5; i++) {
        poll_one(r->s, "pull", "lost");
        advance(r, LAPSE_SECONDS(31));
    }
    ck_assert_int_eq(lapse_clock_advance(r->clock, LAPSE_HOURS(1)), 0);
    advance(r, 0);
}

static rig rig_of_five(int engine, letters *told, player *p)
{
    lapse_options options = {.max_pending = 4,
                             .overflow = LAPSE_DEAD_LETTER_OLDEST,
                             .hook_arg = told,
                             .on_dead = keep_letter};
    rig r = rig_manual(engine, START, &options);
    player_open(p, r.s, die_by_name);
    lapse_policy policy = {.attempts = 2, .jitter_percent = -1, .expires = LAPSE_MINUTES(30)};
    handle(r.s, "q", p, &policy);
    kill_five(&r);
    return r;
}

static void expect_five(const letters *l)
{
    ck_assert_int_eq(l->count, 5);
    for (int i = 0; i < 5; i++) {
        int at = 0;
        while (at < 5 && strcmp(l->list[at].id, five[i].id) != 0)
            at++;
        ck_assert_msg(at < 5, "no dead letter %s", five[i].id);
        const letter *dead = &l->list[at];
        ck_assert_str_eq(dead->queue, five[i].queue);
        ck_assert_str_eq(dead->error, five[i].error);
        ck_assert_int_eq(dead->reason, five[i].reason);
        ck_assert_int_eq(dead->attempt, five[i].attempt);
        ck_assert_uint_eq(dead->payload_len, 7);
        ck_assert_int_gt(dead->ended, LAPSE_DAYS(365 * 56)); /* UTC */
        ck_assert_int_eq(dead->ended < dead->due, dead->reason == LAPSE_REASON_MAXLEN);
    }
}

START_TEST(five_reasons)
{
    static letters told, listed;
    player p;
    told.count = listed.count = 0;
    rig r = rig_of_five(_i, &told, &p);
    expect_five(&told); /* As it happened, */
    for (int i = 0; i < 5; i++)
        ck_assert_str_eq(told.list[i].id, five[i].id);
    ck_assert_int_eq(lapse_each(r.s, LAPSE_STATE_DEAD, note_letter, &listed), 5);
    expect_five(&listed); /* and as it is kept. */
    lapse_stats t = stats_of(r.s);
    lapse_queue_stats q = queue_stats(r.s, "q");
    for (int i = 0; i < 5; i++) {
        ck_assert_uint_eq(t.dead_by[five[i].reason], 1);
        ck_assert_uint_eq(q.dead_by[five[i].reason], five[i].reason != LAPSE_REASON_LOST);
        ck_assert_int_eq(state_of(r.s, five[i].id), LAPSE_STATE_DEAD);
    }
    ck_assert_uint_eq(t.dead, 5);
    ck_assert_uint_eq(t.pending, 0);
    expect_books(r.s);
    player_close(&p);
    rig_close(&r);
}
END_TEST

START_TEST(a_dead_letter_tells_its_times)
{
    rig r = rig_manual(_i, START, NULL);
    player p;
    player_open(&p, r.s, always_fail);
    handle(r.s, "q", &p, &(lapse_policy){.attempts = 2, .jitter_percent = -1});
    lapse_ns utc = INT64_C(1767225600000000000); /* 2026-01-01, where the clock starts. */
    int64_t generation = put(r.s, "q", "o", LAPSE_SECONDS(10));
    advance(&r, LAPSE_SECONDS(10));
    advance(&r, LAPSE_SECONDS(3));
    letter dead = only_letter(r.s);
    ck_assert_int_eq(dead.due, utc + LAPSE_SECONDS(11)); /* The last attempt's. */
    ck_assert_int_eq(dead.ended, utc + LAPSE_SECONDS(13));
    ck_assert_int_eq(dead.generation, generation);
    lapse_info info;
    ck_assert_int_eq(lapse_get(r.s, "o", &info), 0);
    ck_assert_int_eq(info.remaining, 0);
    ck_assert_int_eq(info.reason, LAPSE_REASON_FAILED);
    ck_assert_int_eq(info.generation, generation);
    lapse_info_free(&info);
    ck_assert_int_eq(lapse_cancel(r.s, "o", LAPSE_ANY), LAPSE_FATE_UNKNOWN);
    ck_assert_int_eq(lapse_reschedule(r.s, "o", LAPSE_ANY, 0), LAPSE_FATE_UNKNOWN);
    player_close(&p);
    rig_close(&r);
}
END_TEST

/* -- What they say -------------------------------------------------------------------------- */

static char last_words[5000];

static lapse_verdict say_last_words(const lapse_order *order)
{
    return lapse_reject(order, last_words);
}

/* The reason is kept as valid UTF-8 without control characters, of 1000 bytes at most. */
static bool is_clean(const char *text)
{
    const unsigned char *s = (const unsigned char *)text;
    while (*s != '\0') {
        int more = *s < 0x80 ? 0 : *s < 0xe0 ? 1 : *s < 0xf0 ? 2 : 3;
        if (*s < 0x20 || *s == 0x7f || (*s >= 0x80 && *s < 0xc2) || *s > 0xf4)
            return false;
        for (s++; more > 0; more--)
            if ((*s++ & 0xc0) != 0x80)
                return false;
    }
    return true;
}

static void expect_kept(rig *r, const char *words, const char *kept)
{
    snprintf(last_words, sizeof last_words, "%s", words);
    put(r->s, "q", "o", 0);
    advance(r, LAPSE_MS(1));
    letter dead = only_letter(r->s);
    ck_assert(is_clean(dead.error));
    ck_assert_uint_le(strlen(dead.error), 1000);
    if (kept != NULL)
        ck_assert_str_eq(dead.error, kept);
    ck_assert_int_eq(lapse_purge(r->s, "o", LAPSE_ANY), 1);
}

START_TEST(errors_are_escaped)
{
    rig r = rig_manual(_i, START, NULL);
    player p;
    player_open(&p, r.s, say_last_words);
    handle(r.s, "q", &p, NULL);
    expect_kept(&r, "", "");
    expect_kept(&r, "caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80",
                "caf\xc3\xa9 \xe2\x82\xac "
                "\xf0\x9f\x98\x80");
    expect_kept(&r, "a\nb\tc\x1b[31m\x7f", "a\\x0ab\\x09c\\x1b[31m\\x7f");
    expect_kept(&r, "\xff\xfe", "\\xff\\xfe");
    expect_kept(&r, "half \xc3", "half \\xc3");
    expect_kept(&r, "overlong \xc0\xaf", "overlong \\xc0\\xaf");
    expect_kept(&r, "surrogate \xed\xa0\x80", "surrogate \\xed\\xa0\\x80");
    expect_kept(&r, "' OR 1=1; -- \"quoted\" %s %n", "' OR 1=1; -- \"quoted\" %s %n");
    player_close(&p);
    rig_close(&r);
}
END_TEST

START_TEST(errors_are_clipped)
{
    rig r = rig_manual(_i, START, NULL);
    player p;
    player_open(&p, r.s, say_last_words);
    handle(r.s, "q", &p, NULL);
    char words[4000], kept[1001];
    memset(words, 'x', sizeof words);
    memset(kept, 'x', sizeof kept);
    words[3999] = kept[1000] = '\0';
    expect_kept(&r, words, kept);
    words[1000] = '\0';
    expect_kept(&r, words, kept);
    words[1000] = 'x';
    memcpy(words + 999, "\xc3\xa9", 2); /* Not cut in the middle of a character, */
    kept[999] = '\0';
    expect_kept(&r, words, kept);
    memcpy(words + 998, "\x01zz", 3); /* nor of an escape. */
    kept[998] = '\0';
    expect_kept(&r, words, kept);
    rng luck = rng_open("errors_are_clipped");
    for (long i = 0; i < tier(300, 10000, 1000000); i++) {
        int64_t length = rng_range(&luck, 0, 1400), low = rng_range(&luck, 1, 255);
        for (int64_t at = 0; at < length; at++)
            words[at] = (char)rng_range(&luck, low, 255);
        words[length] = '\0';
        expect_kept(&r, words, NULL);
    }
    player_close(&p);
    rig_close(&r);
}
END_TEST

static lapse_verdict say_nothing(const lapse_order *order)
{
    return order->attempt < 2 ? lapse_fail(order, "an earlier one") : LAPSE_REJECT;
}

/* The last error is that of the last attempt, also when that gave none. */
START_TEST(silence_is_no_error)
{
    rig r = rig_manual(_i, START, NULL);
    player p;
    player_open(&p, r.s, say_nothing);
    handle(r.s, "q", &p, &(lapse_policy){.jitter_percent = -1});
    put(r.s, "q", "o", 0);
    advance(&r, LAPSE_MS(1));
    advance(&r, LAPSE_SECONDS(2));
    lapse_info info;
    ck_assert_int_eq(lapse_get(r.s, "o", &info), 0);
    ck_assert_int_eq(info.state, LAPSE_STATE_DEAD);
    ck_assert_ptr_null(info.error);
    lapse_info_free(&info);
    player_close(&p);
    rig_close(&r);
}
END_TEST

/* -- Requeue --------------------------------------------------------------------------------- */

START_TEST(requeue_starts_anew)
{
    rig r = rig_manual(_i, START, NULL);
    player p;
    player_open(&p, r.s, always_fail);
    handle(r.s, "q", &p, &(lapse_policy){.attempts = 2, .jitter_percent = -1});
    put_with_payload(r.s, "q", "o", 0);
    advance(&r, LAPSE_MS(1));
    advance(&r, LAPSE_SECONDS(1));
    int64_t dead = only_letter(r.s).generation;
    int64_t alive = lapse_requeue(r.s, "o", LAPSE_ANY, LAPSE_SECONDS(5));
    ck_assert_int_gt(alive, dead);
    lapse_info info;
    ck_assert_int_eq(lapse_get(r.s, "o", &info), 0);
    ck_assert_int_eq(info.state, LAPSE_STATE_PENDING);
    ck_assert_int_eq(info.generation, alive);
    ck_assert_int_eq(info.attempt, 0);
    ck_assert_int_eq(info.reason, LAPSE_REASON_NONE);
    ck_assert_int_eq(info.ended, 0);
    ck_assert_ptr_null(info.error);
    ck_assert_uint_eq(info.payload_len, 7);
    ck_assert_mem_eq(info.payload, "payload", 7);
    lapse_info_free(&info);
    ck_assert_int_eq(lapse_cancel(r.s, "o", dead), LAPSE_FATE_UNKNOWN);
    advance(&r, LAPSE_SECONDS(5) - 1);
    ck_assert_uint_eq(tape_count(&p.ran), 2);
    advance(&r, 1);
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

START_TEST(requeue_has_errors)
{
    lapse_options options = {.max_pending = 2};
    rig r = rig_manual(_i, START, &options);
    player p;
    player_open(&p, r.s, always_reject);
    handle(r.s, "q", &p, NULL);
    int64_t generation = put(r.s, "q", "o", 0);
    advance(&r, LAPSE_MS(1));
    char longest[LAPSE_ID_MAX + 2];
    memset(longest, 'i', sizeof longest);
    longest[LAPSE_ID_MAX + 1] = '\0';
    ck_assert_int_eq(lapse_requeue(r.s, "other", LAPSE_ANY, 0), LAPSE_EUNKNOWN);
    ck_assert_int_eq(lapse_requeue(r.s, "o", generation + 1, 0), LAPSE_EUNKNOWN);
    ck_assert_int_lt(lapse_requeue(r.s, "", LAPSE_ANY, 0), 0);
    ck_assert_int_lt(lapse_requeue(r.s, longest, LAPSE_ANY, 0), 0);
    ck_assert_int_eq(lapse_requeue(r.s, NULL, LAPSE_ANY, 0), LAPSE_EINVAL);
    ck_assert_int_eq(lapse_requeue(NULL, "o", LAPSE_ANY, 0), LAPSE_EINVAL);
    ck_assert_int_eq(lapse_requeue(r.s, "o", LAPSE_ANY, LAPSE_DELAY_MAX + 1), LAPSE_ERANGE);
    put(r.s, "pull", "o", 0); /* The id is used again. */
    ck_assert_int_eq(lapse_requeue(r.s, "o", LAPSE_ANY, 0), LAPSE_EEXISTS);
    advance(&r, LAPSE_MS(1));
    int64_t fence = poll_one(r.s, "pull", "o")->fence;
    ck_assert_int_eq(lapse_requeue(r.s, "o", generation, 0), LAPSE_EEXISTS);
    put(r.s, "pull", "second", 0);
    ck_assert_int_eq(lapse_settle(r.s, fence, LAPSE_DONE, 0, NULL), 0);
    put(r.s, "pull", "third", 0);
    ck_assert_int_eq(lapse_requeue(r.s, "o", LAPSE_ANY, 0), LAPSE_EFULL);
    ck_assert_int_eq(only_letter(r.s).generation, generation); /* It is still there. */
    ck_assert_int_eq(lapse_cancel(r.s, "third", LAPSE_ANY), LAPSE_FATE_CANCELLED);
    ck_assert_int_gt(lapse_requeue(r.s, "o", generation, 0), generation);
    advance(&r, LAPSE_MS(1));
    ck_assert_int_eq(lapse_stop(r.s), 0);
    ck_assert_int_eq(lapse_requeue(r.s, "o", LAPSE_ANY, 0), LAPSE_ECLOSED);
    ck_assert_int_eq(only_letter(r.s).attempt, 1);
    expect_books(r.s);
    player_close(&p);
    rig_close(&r);
}
END_TEST

/* Dead letters of one id: the newest, unless a generation is named. */
START_TEST(several_dead_letters_of_one_id)
{
    rig r = rig_manual(_i, START, NULL);
    player p;
    player_open(&p, r.s, always_reject);
    handle(r.s, "q", &p, NULL);
    int64_t generations[4];
    for (int i = 0; i < 4; i++) {
        generations[i] = put(r.s, "q", "o", 0);
        advance(&r, LAPSE_MS(1));
    }
    ck_assert_uint_eq(stats_of(r.s).dead, 4);
    lapse_info info;
    ck_assert_int_eq(lapse_get(r.s, "o", &info), 0);
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

/* -- P-29: the bound ------------------------------------------------------------------------------ */

START_TEST(p29_the_oldest_dead_letters_are_dropped)
{
    atomic_int released = 0;
    char url[96];
    snprintf(url, sizeof url, "%s&max_dead=10", engine_url(_i));
    lapse_options options = {.max_dead = 5000, .release = count_release};
    rig r = rig_url(url, _i == WHEEL ? LAPSE_MS(1) : 0, START, &options);
    player p;
    player_open(&p, r.s, always_reject);
    handle(r.s, "q", &p, NULL);
    for (int i = 0; i < 25; i++) {
        char id[8];
        snprintf(id, sizeof id, "%d", i);
        ck_assert_int_gt(lapse_put(r.s, &(lapse_spec){.id = id, .queue = "q", .arg = &released}),
                         0);
        advance(&r, LAPSE_MS(1));
        ck_assert_int_eq(atomic_load(&released), i < 10 ? 0 : i - 9);
    }
    letters kept = {.count = 0};
    ck_assert_int_eq(lapse_each(r.s, LAPSE_STATE_DEAD, note_letter, &kept), 10);
    for (int i = 0; i < 10; i++)
        ck_assert_int_ge(atoi(kept.list[i].id), 15);
    ck_assert_int_eq(state_of(r.s, "14"), 0);
    ck_assert_int_eq(state_of(r.s, "15"), LAPSE_STATE_DEAD);
    lapse_queue_stats q = queue_stats(r.s, "q");
    ck_assert_uint_eq(q.dead, 10);
    ck_assert_uint_eq(q.dead_total, 25);
    ck_assert_uint_eq(stats_of(r.s).dead_dropped, 15);
    ck_assert_int_gt(lapse_requeue(r.s, "15", LAPSE_ANY, LAPSE_HOURS(1)), 0); /* Makes room. */
    put(r.s, "q", "new", 0);
    advance(&r, LAPSE_MS(1));
    ck_assert_uint_eq(stats_of(r.s).dead_dropped, 15);
    expect_books(r.s);
    player_close(&p);
    rig_close(&r);
    ck_assert_int_eq(atomic_load(&released), 25);
}
END_TEST

/* Dead letters are no pending ones: they use up no room, and a full house kills none. */
START_TEST(p29_dead_letters_take_no_room)
{
    lapse_options options = {.max_pending = 5};
    rig r = rig_manual(_i, START, &options);
    player p;
    player_open(&p, r.s, always_reject);
    handle(r.s, "q", &p, NULL);
    for (int round = 0; round < 10; round++) {
        char prefix[8];
        snprintf(prefix, sizeof prefix, "%d-", round);
        put_many(r.s, "q", prefix, 5, 0);
        ck_assert_int_eq(lapse_put(r.s, &(lapse_spec){.id = "more", .queue = "q"}), LAPSE_EFULL);
        advance(&r, LAPSE_MS(1));
    }
    ck_assert_uint_eq(stats_of(r.s).dead, 50);
    expect_books(r.s);
    player_close(&p);
    rig_close(&r);
}
END_TEST

/* With room made by the oldest: who was scheduled, moved or retried longest ago. */
static lapse_verdict retry_later(const lapse_order *order)
{
    return lapse_retry(order, LAPSE_HOURS(1), NULL);
}

START_TEST(p29_who_makes_room)
{
    lapse_options options = {.max_pending = 4, .overflow = LAPSE_DEAD_LETTER_OLDEST};
    rig r = rig_manual(_i, START, &options);
    player p;
    player_open(&p, r.s, retry_later);
    handle(r.s, "q", &p, NULL);
    put(r.s, "q", "retried", 0);
    put(r.s, "", "moved", LAPSE_HOURS(1));
    put(r.s, "", "waits", LAPSE_HOURS(5));
    put(r.s, "pull", "taken", 0);
    advance(&r, LAPSE_MS(1));
    int64_t fence = poll_one(r.s, "pull", "taken")->fence;
    ck_assert_int_eq(lapse_reschedule(r.s, "moved", LAPSE_ANY, LAPSE_HOURS(1)),
                     LAPSE_FATE_RESCHEDULED);
    const char *const victims[] = {"waits", "retried", "moved"};
    for (int i = 0; i < 3; i++) {
        char id[8];
        snprintf(id, sizeof id, "new%d", i);
        put(r.s, "", id, LAPSE_HOURS(2));
        ck_assert_int_eq(state_of(r.s, victims[i]), LAPSE_STATE_DEAD);
        ck_assert_uint_eq(stats_of(r.s).dead, (uint64_t)i + 1);
    }
    ck_assert_int_eq(state_of(r.s, "taken"), LAPSE_STATE_RUNNING); /* It cannot make room. */
    ck_assert_int_eq(lapse_settle(r.s, fence, LAPSE_DONE, 0, NULL), 0);
    ck_assert_int_gt(lapse_requeue(r.s, "waits", LAPSE_ANY, LAPSE_HOURS(9)), 0);
    ck_assert_int_gt(lapse_requeue(r.s, "moved", LAPSE_ANY, LAPSE_HOURS(9)), 0);
    ck_assert_int_eq(state_of(r.s, "new0"), LAPSE_STATE_DEAD); /* Requeue makes room too. */
    ck_assert_uint_eq(pending_in(r.s), 4);
    expect_books(r.s);
    player_close(&p);
    rig_close(&r);
}
END_TEST

/* Eight threads into a queue that is handled and full. */
enum { CROWD = 8, LIMIT_PENDING = 1000 };

static struct crowd {
    lapse *s;
    int each;
    atomic_int accepted, full;
} crowd;

static void push_in(void *arg, int number)
{
    (void)arg;
    for (int i = 0; i < crowd.each; i++) {
        char id[24];
        snprintf(id, sizeof id, "%d-%d", number, i);
        int64_t result =
            lapse_put(crowd.s, &(lapse_spec){.id = id, .queue = "q", .delay = LAPSE_MINUTES(10)});
        if (result > 0)
            atomic_fetch_add(&crowd.accepted, 1);
        else if (result == LAPSE_EFULL)
            atomic_fetch_add(&crowd.full, 1);
        else
            complain("lapse_put: %s", lapse_error_detail());
    }
}

START_TEST(p29_the_limit_of_a_handled_queue_is_exact)
{
    lapse_options options = {.max_pending = LIMIT_PENDING};
    rig r = rig_manual(_i, START, &options);
    player p;
    player_open(&p, r.s, always_reject);
    handle(r.s, "q", &p, NULL);
    memset(&crowd, 0, sizeof crowd);
    crowd.s = r.s;
    crowd.each = 2 * LIMIT_PENDING / CROWD;
    crew_run(CROWD, push_in, NULL);
    ck_assert_int_eq(atomic_load(&crowd.accepted), LIMIT_PENDING);
    ck_assert_int_eq(atomic_load(&crowd.full), LIMIT_PENDING);
    advance(&r, LAPSE_MINUTES(10));
    ck_assert_uint_eq(stats_of(r.s).dead, LIMIT_PENDING);
    memset(&crowd, 0, sizeof crowd);
    crowd.s = r.s;
    crowd.each = 2 * LIMIT_PENDING / CROWD;
    crew_run(CROWD, push_in, NULL); /* The same ids; the dead take no room. */
    ck_assert_int_eq(atomic_load(&crowd.accepted), LIMIT_PENDING);
    ck_assert_int_eq(lapse_requeue(r.s, "0-0", LAPSE_ANY, 0) < 0, 1);
    expect_books(r.s);
    player_close(&p);
    rig_close(&r);
}
END_TEST

/* -- P-30: their memory ---------------------------------------------------------------------------- */

#if defined(UNDER_TSAN) || defined(UNDER_ASAN)
#define RSS_IS_OURS false /* The sanitizer keeps what was freed, as does valgrind. */
#else
#define RSS_IS_OURS true
#endif

static lapse_verdict reject_at_length(const lapse_order *order, void *arg)
{
    (void)arg;
    return lapse_reject(order, last_words);
}

START_TEST(p30_dead_letters_do_not_pile_up)
{
    const int64_t rounds = tier(1500, 100000, 10000000);
    static char payload[1024];
    memset(last_words, 'x', 1500);
    last_words[1500] = '\0';
    atomic_int released = 0;
    lapse_options options = {.max_dead = 300, .release = count_release};
    rig r = rig_manual(_i, START, &options);
    ck_assert_int_eq(lapse_handle(r.s, "q", reject_at_length, NULL, NULL, NULL), 0);
    size_t rss = 0;
    uint64_t bytes = 0;
    for (int64_t i = 0; i < rounds; i++) {
        char id[32];
        snprintf(id, sizeof id, "a-long-order-number-%" PRId64, i);
        lapse_spec spec = {.id = id,
                           .queue = "q",
                           .payload = payload,
                           .payload_len = sizeof payload,
                           .arg = &released};
        ck_assert_int_gt(lapse_put(r.s, &spec), 0);
        advance_once(&r, LAPSE_MS(1));
        if (i % 3 == 0)
            ck_assert_int_eq(lapse_purge(r.s, id, LAPSE_ANY), 1);
        else if (i % 3 == 1)
            ck_assert_int_gt(lapse_requeue(r.s, id, LAPSE_ANY, LAPSE_SECONDS(1)), 0);
        if (i == rounds / 5) {
            rss = resident_bytes();
            bytes = stats_of(r.s).bytes;
        }
    }
    ck_assert_uint_le(stats_of(r.s).dead, 300);
    ck_assert_uint_ge(stats_of(r.s).dead, 298);
    ck_assert_uint_le(stats_of(r.s).bytes, bytes + (UINT64_C(1) << 20));
    if (RSS_IS_OURS && getenv("LAPSE_VALGRIND") == NULL)
        ck_assert_uint_lt(resident_bytes(), rss + (UINT64_C(5) << 20));
    expect_books(r.s);
    rig_close(&r);
    ck_assert_int_eq(atomic_load(&released), rounds);
}
END_TEST

/* -- From many threads -------------------------------------------------------------------------------- */

enum { MOURNERS = 4, MOURNED = 300 };

static struct funeral {
    lapse *s;
    int rounds;
    atomic_int busy;
} funeral;

static bool look_at_dead(const lapse_info *info, void *arg)
{
    (void)arg;
    if (info->state != LAPSE_STATE_DEAD || info->error == NULL || info->ended == 0)
        complain("%s is shown half", info->id);
    return true;
}

static void mourn(void *arg, int number)
{
    rng luck = {(uint64_t)number + 1};
    (void)arg;
    for (int i = 0; i < funeral.rounds; i++) {
        char id[8];
        snprintf(id, sizeof id, "%d", (int)rng_range(&luck, 0, MOURNED - 1));
        int64_t result = 0;
        switch (rng_range(&luck, 0, 4)) {
        case 0:
        case 1:
            result = lapse_put(funeral.s, &(lapse_spec){.id = id, .queue = "q"});
            break;
        case 2:
            result = lapse_requeue(funeral.s, id, LAPSE_ANY, 0);
            break;
        case 3:
            result = lapse_purge(funeral.s, i % 50 == 0 ? NULL : id, LAPSE_ANY);
            break;
        default:
            result = i % 20 == 0 ? lapse_each(funeral.s, LAPSE_STATE_DEAD, look_at_dead, NULL) : 0;
            break;
        }
        if (result < 0 && result != LAPSE_EEXISTS && result != LAPSE_EUNKNOWN)
            complain("%s: %s", id, lapse_error_detail());
    }
}

static lapse_verdict mostly_reject(const lapse_order *order, void *arg)
{
    (void)arg;
    return order->fence % 4 == 0 ? LAPSE_DONE : lapse_reject(order, "no such order");
}

START_TEST(the_dead_are_cleared_by_many_at_once)
{
    lapse_options options = {.max_dead = MOURNED / 3};
    rig r = rig_real(_i, &options);
    memset(&funeral, 0, sizeof funeral);
    funeral.s = r.s;
    funeral.rounds = (int)tier(2000, 50000, 500000);
    ck_assert_int_eq(lapse_handle(r.s, "q", mostly_reject, NULL, NULL, NULL), 0);
    ck_assert_int_eq(lapse_start(r.s, 3), 0);
    crew_run(MOURNERS, mourn, NULL);
    ck_assert_int_eq(lapse_stop(r.s), 0);
    while (stats_of(r.s).running > 0)
        sched_yield();
    expect_books(r.s);
    ck_assert_uint_le(stats_of(r.s).dead, MOURNED / 3);
    rig_close(&r);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("dead letters");
    TCase *group = add_group(suite, "reasons");
    ADD_FOR_ENGINES(group, five_reasons);
    ADD_FOR_ENGINES(group, a_dead_letter_tells_its_times);
    ADD_FOR_ENGINES(group, errors_are_escaped);
    ADD_FOR_ENGINES(group, errors_are_clipped);
    ADD_FOR_ENGINES(group, silence_is_no_error);
    group = add_group(suite, "requeue and purge");
    ADD_FOR_ENGINES(group, requeue_starts_anew);
    ADD_FOR_ENGINES(group, requeue_keeps_the_callback);
    ADD_FOR_ENGINES(group, requeue_has_errors);
    ADD_FOR_ENGINES(group, several_dead_letters_of_one_id);
    ADD_FOR_ENGINES(group, purge_deletes_for_good);
    ADD_FOR_ENGINES(group, a_visitor_may_requeue_and_purge);
    ADD_FOR_ENGINES(group, a_walk_may_end_early);
    ADD_FOR_ENGINES(group, on_dead_may_replay);
    group = add_group(suite, "bounds");
    ADD_FOR_ENGINES(group, p29_the_oldest_dead_letters_are_dropped);
    ADD_FOR_ENGINES(group, p29_dead_letters_take_no_room);
    ADD_FOR_ENGINES(group, p29_who_makes_room);
    ADD_FOR_ENGINES(group, p29_the_limit_of_a_handled_queue_is_exact);
    ADD_FOR_ENGINES(group, p30_dead_letters_do_not_pile_up);
    ADD_FOR_ENGINES(group, the_dead_are_cleared_by_many_at_once);
    return run_suite(suite);
}
