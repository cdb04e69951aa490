/* test_dead_bound.c - dead letters are bounded: P-29 and P-30 as far as they go.
 *
 * The oldest are dropped for newer ones, they take no room of pending orders, and their memory
 * does not grow, also while many clear them at once. */
/* tiers: quick full soak */
/* valgrind */
#include "delivery.h"

#include <inttypes.h>
#include <sched.h>
#include <stdlib.h>

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

static char long_words[1501];

static lapse_verdict reject_at_length(const lapse_order *order, void *arg)
{
    (void)arg;
    return lapse_reject(order, long_words);
}

START_TEST(p30_dead_letters_do_not_pile_up)
{
    const int64_t rounds = tier(1500, 100000, 10000000);
    static char payload[1024];
    memset(long_words, 'x', 1500);
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
    Suite *suite = suite_create("bounds of dead letters");
    TCase *group = add_group(suite, "bounds");
    ADD_FOR_ENGINES(group, p29_the_oldest_dead_letters_are_dropped);
    ADD_FOR_ENGINES(group, p29_dead_letters_take_no_room);
    ADD_FOR_ENGINES(group, p29_who_makes_room);
    ADD_FOR_ENGINES(group, p29_the_limit_of_a_handled_queue_is_exact);
    ADD_FOR_ENGINES(group, p30_dead_letters_do_not_pile_up);
    ADD_FOR_ENGINES(group, the_dead_are_cleared_by_many_at_once);
    return run_suite(suite);
}
