/* test_faults.c - durable stores that fail: before a turn, after it, for a while, or slowly.
 * P-62; P-59 with renewals that fail.
 *
 * Whatever the store does: a call says what is known of it, nothing that was accepted is
 * lost, nothing runs twice but what a lost answer explains, and the scheduler goes on by
 * itself when the store is back. Each test runs over each durable store (faulty.h). */
/* tiers: small full */
#include "stores/faulty.h"
#include "stores/simple_store.h"
#include "stores/stores.h"
#include "stores/table.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>
#include <unistd.h>

static const struct inside {
    const char *name, *scheme;
    const char *url; /* as the faulty store's, with %s for a fresh path, or without */
} insides[] = {
    {"simple", "test", "test:"},
    {"sqlite", "sqlite", "test:///%s"},
};

enum { INSIDES = sizeof insides / sizeof *insides };

/* NULL: this build has no such store. */
static const lp_durable_ops *inside_ops(int inside)
{
    char url[64];
    lp_store_kind kind = {NULL, &simple_store};
    snprintf(url, sizeof url, "%s:", insides[inside].scheme);
    if (strcmp(insides[inside].scheme, "test") != 0 && lp_store_find(url, &kind) != 0)
        return NULL;
    return kind.durable;
}

static int built_insides(void)
{
    int count = 0;
    while (count < INSIDES && inside_ops(count) != NULL)
        count++;
    if (count < INSIDES)
        printf("skipped: %s: %s\n", insides[count].name, lapse_error_detail());
    return count;
}

#define ADD_FOR_INSIDES(tcase, test) tcase_add_loop_test(tcase, test, 0, built_insides())

/* A fresh store behind the faults, which are off. */
static place faulty_place(int inside)
{
    place p = {.store = -1};
    char path[400];
    new_path(path, sizeof path, "orders.db");
    simple_store_clear();
    faulty_begin(inside_ops(inside), insides[inside].scheme);
    if (strchr(insides[inside].url, '%') == NULL)
        snprintf(p.url, sizeof p.url, "%s", insides[inside].url);
    else
        snprintf(p.url, sizeof p.url, "test:///%s", path);
    return p;
}

static rig faulty_rig(int inside, const lapse_options *options)
{
    place p = faulty_place(inside);
    return open_place(&p, options);
}

static void no_more_faults(void)
{
    faulty_hit(FAULT_NONE, 0, 0, 0);
    atomic_store(&faults.offline, false);
}

static int64_t try_put(lapse *s, const char *id)
{
    return lapse_put(s, &(lapse_spec){.id = id, .queue = "q", .delay = LAPSE_SECONDS(1)});
}

/* Repeat until the store is there again: the driver tries with a back-off of its own. */
static int64_t put_at_last(lapse *s, const char *id)
{
    int64_t result = try_put(s, id);
    for (lapse_ns end = boot_now() + LIMIT;
         result < 0 && result != LAPSE_EEXISTS && boot_now() < end;)
        result = try_put(s, id);
    return result;
}

/* -- A turn fails ------------------------------------------------------------------------------ */

START_TEST(a_failed_call_changes_nothing)
{
    const int codes[] = {LAPSE_ESYSTEM, LAPSE_ETIMEOUT, LAPSE_ENOMEM, LAPSE_EOFFLINE};
    for (int i = 0; i < 4; i++) {
        rig r = faulty_rig(_i, NULL);
        put(r.s, "q", "there", LAPSE_SECONDS(1));
        faulty_hit(FAULT_FAIL, codes[i], 0, -1);
        EXPECT_ERROR(try_put(r.s, "new"), codes[i], "made this turn fail");
        EXPECT_ERROR(lapse_cancel(r.s, "there", LAPSE_ANY), codes[i], "made this turn fail");
        EXPECT_ERROR(lapse_reschedule(r.s, "there", LAPSE_ANY, 0), codes[i], "");
        lapse_info info;
        EXPECT_ERROR(lapse_get(r.s, "there", &info), codes[i], "");
        no_more_faults();
        ck_assert_int_gt(put_at_last(r.s, "after"), 0);
        ck_assert_int_eq(state_of(r.s, "new"), 0);
        info = look(r.s, "there");
        ck_assert_int_eq(info.state, LAPSE_STATE_PENDING);
        ck_assert_int_eq(info.remaining, LAPSE_SECONDS(1));
        lapse_info_free(&info);
        advance(&r, LAPSE_SECONDS(1));
        finish_one(r.s, "q", "there");
        finish_one(r.s, "q", "after");
        expect_nothing(r.s, "q");
        expect_books(r.s);
        rig_close(&r);
    }
}
END_TEST

/* One turn fails, whichever it is: all that was accepted runs once, all that was refused
 * does not run. */
START_TEST(any_one_turn_may_fail)
{
    enum { ORDERS = 12 };
    int spared = 0, hit = 1;
    for (; hit > 0; spared++) {
        rig r = faulty_rig(_i, NULL);
        player p;
        int64_t put_results[ORDERS];
        int cancels[ORDERS];
        char id[16];
        player_open(&p, r.s, NULL);
        handle(r.s, "q", &p, NULL);
        faulty_hit(FAULT_FAIL, LAPSE_ESYSTEM, spared, 1);
        for (int i = 0; i < ORDERS; i++) {
            snprintf(id, sizeof id, "%d", i);
            put_results[i] = try_put(r.s, id);
            cancels[i] = i % 3 ? 0 : lapse_cancel(r.s, id, LAPSE_ANY);
        }
        ck_assert_int_eq(lapse_clock_advance(r.clock, LAPSE_SECONDS(1)), 0);
        for (lapse_ns end = boot_now() + LIMIT; boot_now() < end;) {
            lapse_stats t;
            lapse_process(r.s, 0);
            if (lapse_statistics(r.s, &t) == 0 && t.pending + t.running == 0)
                break;
        }
        hit = atomic_load(&faults.hit);
        no_more_faults();
        for (int i = 0; i < ORDERS; i++) {
            snprintf(id, sizeof id, "%d", i);
            size_t expected = put_results[i] > 0 && cancels[i] != LAPSE_FATE_CANCELLED;
            ck_assert_msg(tape_runs(&p.ran, id) == expected, "turn %d failed: %s ran %zu times",
                          spared, id, tape_runs(&p.ran, id));
        }
        expect_books(r.s);
        player_close(&p);
        rig_close(&r);
    }
    printf("%s: %d turns\n", insides[_i].name, spared - 1);
    ck_assert_int_gt(spared, ORDERS);
}
END_TEST

/* One settlement is refused and all else of its turn is done, as when somebody has locked its
 * row: it is asked again, and so what has run does not run anew when its lease ends. */
START_TEST(a_refused_settlement_is_asked_again)
{
    const int codes[] = {LAPSE_ETIMEOUT, LAPSE_EOFFLINE, LAPSE_ESYSTEM, LAPSE_ENOMEM,
                         LAPSE_EUNSURE};
    for (int i = 0; i < 5; i++) {
        rig r = faulty_rig(_i, &(lapse_options){.lease = LAPSE_MINUTES(1)});
        player p;
        player_open(&p, r.s, NULL);
        handle(r.s, "q", &p, NULL);
        put(r.s, "q", "o", LAPSE_SECONDS(1));
        faulty_hit(FAULT_NONE, codes[i], 0, 0);
        atomic_store(&faults.refusals, 2);
        advance(&r, LAPSE_SECONDS(1));
        for (int step = 0; step < 30; step++)
            advance(&r, LAPSE_SECONDS(10));
        ck_assert_int_eq(atomic_load(&faults.refusals), 0);
        ck_assert_uint_eq(tape_runs(&p.ran, "o"), 1);
        ck_assert_uint_eq(stats_of(r.s).pending + stats_of(r.s).running, 0);
        expect_books(r.s);
        player_close(&p);
        rig_close(&r);
    }
}
END_TEST

/* Under the real clock it is asked again by itself, and close waits for it. */
START_TEST(close_waits_for_a_refused_settlement)
{
    place at = faulty_place(_i);
    rig r = open_real(&at, &(lapse_options){.lease = LAPSE_SECONDS(20)});
    player p;
    player_open(&p, r.s, NULL);
    handle(r.s, "q", &p, NULL);
    ck_assert_int_eq(lapse_start(r.s, 1), 0);
    faulty_hit(FAULT_NONE, LAPSE_ETIMEOUT, 0, 0);
    atomic_store(&faults.refusals, 1);
    put(r.s, "q", "o", 0);
    ck_assert(tape_wait(&p.ran, 1));
    player_close(&p);
    rig_close(&r);
    ck_assert_int_eq(atomic_load(&faults.refusals), 0);
    r = open_real(&at, NULL);
    ck_assert_uint_eq(stats_of(r.s).pending + stats_of(r.s).running, 0);
    rig_close(&r);
}
END_TEST

/* -- Answers are lost ---------------------------------------------------------------------------- */

START_TEST(a_lost_answer_is_told_as_not_known)
{
    rig r = faulty_rig(_i, NULL);
    put(r.s, "q", "paid", LAPSE_SECONDS(1));
    faulty_hit(FAULT_LOSE, 0, 0, 1);
    EXPECT_ERROR(try_put(r.s, "o"), LAPSE_EUNSURE, "");
    faulty_hit(FAULT_LOSE, 0, 0, 1);
    int fate = lapse_cancel(r.s, "paid", LAPSE_ANY);
    ck_assert_int_eq(fate, LAPSE_EUNSURE);
    no_more_faults();
    /* To schedule the same id again is safe; a cancel that is repeated may find nothing. */
    ck_assert_int_eq(put_at_last(r.s, "o"), LAPSE_EEXISTS);
    ck_assert_int_eq(lapse_cancel(r.s, "paid", LAPSE_ANY), LAPSE_FATE_UNKNOWN);
    advance(&r, LAPSE_SECONDS(1));
    finish_one(r.s, "q", "o");
    expect_nothing(r.s, "q");
    rig_close(&r);
}
END_TEST

/* What was claimed in a lost turn is held by nobody who knows: it comes again after its
 * lease, as the next attempt. What was settled in one stays settled. */
START_TEST(any_one_answer_may_be_lost)
{
    enum { ORDERS = 8 };
    int spared = 0, hit = 1, repeated = 0;
    for (; hit > 0; spared++) {
        rig r = faulty_rig(_i, &(lapse_options){.lease = LAPSE_MINUTES(1)});
        player p;
        int64_t put_results[ORDERS];
        char id[16];
        player_open(&p, r.s, NULL);
        handle(r.s, "q", &p, NULL);
        faulty_hit(FAULT_LOSE, 0, spared, 1);
        for (int i = 0; i < ORDERS; i++) {
            snprintf(id, sizeof id, "%d", i);
            put_results[i] = try_put(r.s, id);
        }
        ck_assert_int_eq(lapse_clock_advance(r.clock, LAPSE_SECONDS(1)), 0);
        for (lapse_ns end = boot_now() + LIMIT; boot_now() < end;) {
            lapse_stats t;
            lapse_process(r.s, 0);
            if (lapse_statistics(r.s, &t) == 0 && t.pending + t.running == 0)
                break;
            ck_assert_int_eq(lapse_clock_advance(r.clock, LAPSE_SECONDS(10)), 0);
        }
        hit = atomic_load(&faults.hit);
        for (int i = 0; i < ORDERS; i++) {
            snprintf(id, sizeof id, "%d", i);
            size_t runs = tape_runs(&p.ran, id);
            bool unsure = put_results[i] == LAPSE_EUNSURE; /* And here it was done. */
            ck_assert(put_results[i] > 0 || unsure);
            ck_assert_msg(runs == 1, "the answer of turn %d was lost: %s ran %zu times", spared, id,
                          runs);
        }
        for (size_t i = 0; i < p.ran.count; i++)
            repeated += p.ran.entries[i].attempt > 1;
        player_close(&p);
        rig_close(&r);
    }
    printf("%s: %d turns, %d second attempts\n", insides[_i].name, spared - 1, repeated);
    ck_assert_int_gt(spared, ORDERS);
    ck_assert_int_gt(repeated, 0); /* Claims were lost too. */
}
END_TEST

/* A settlement whose answer was lost is repeated by its fence: stale then is done before. */
START_TEST(a_lost_settlement_is_booked_once)
{
    const lapse_verdict verdicts[] = {LAPSE_DONE, LAPSE_RETRY, LAPSE_REJECT};
    for (int v = 0; v < 3; v++) {
        rig r = faulty_rig(_i, NULL);
        put(r.s, "q", "o", LAPSE_MS(1));
        advance(&r, LAPSE_MS(1));
        int64_t fence = poll_one(r.s, "q", "o")->fence;
        faulty_hit(FAULT_LOSE, 0, 0, 1);
        int result = lapse_settle(r.s, fence, verdicts[v], LAPSE_SECONDS(1), "why");
        ck_assert_msg(result == 0 || result == LAPSE_EUNSURE || result == LAPSE_ESTALE, "%d: %s",
                      result, lapse_error_detail());
        ck_assert_int_gt(put_at_last(r.s, "after"), 0);
        advance(&r, LAPSE_SECONDS(5));
        const lapse_order *order;
        int left = 0, again = 0;
        while (lapse_poll(r.s, "q", &order) == 1) {
            left++;
            again += strcmp(order->id, "o") == 0;
            settle(r.s, order->fence, LAPSE_DONE);
        }
        ck_assert_int_eq(again, verdicts[v] == LAPSE_RETRY);
        ck_assert_int_eq(left, 1 + again);
        ck_assert_uint_eq(stats_of(r.s).dead, verdicts[v] == LAPSE_REJECT);
        ck_assert_uint_eq(stats_of(r.s).running, 0);
        rig_close(&r);
    }
}
END_TEST

/* -- The link is down: P-62 ------------------------------------------------------------------------- */

struct log {
    pthread_mutex_t lock;
    int warnings, back;
};

static void note_link(void *hook_arg, lapse_level level, const char *message)
{
    struct log *log = hook_arg;
    pthread_mutex_lock(&log->lock);
    log->warnings += level >= LAPSE_WARNING && strstr(message, "cut the link") != NULL;
    log->back += level < LAPSE_WARNING;
    pthread_mutex_unlock(&log->lock);
}

static bool count_one(const lapse_info *info, void *arg)
{
    (void)info;
    ++*(int *)arg;
    return true;
}

static bool is_offline(void *arg)
{
    lapse_stats t;
    return lapse_statistics(arg, &t) != 0 || t.offline > 0;
}

static bool is_online(void *arg)
{
    lapse_stats t;
    return lapse_statistics(arg, &t) == 0 && t.offline == 0;
}

START_TEST(p62_the_link_drops_and_comes_back)
{
    struct log log = {.lock = PTHREAD_MUTEX_INITIALIZER};
    place at = faulty_place(_i);
    rig r = open_real(&at, &(lapse_options){.hook_arg = &log, .log = note_link});
    player p;
    player_open(&p, r.s, NULL);
    handle(r.s, "q", &p, NULL);
    ck_assert_int_eq(lapse_start(r.s, 2), 0);
    size_t ran = 0;
    for (int outage = 0; outage < 3; outage++) {
        put_batch(r.s, "q", (const char *[]){"a", "b", "c"}[outage], 20, LAPSE_MS(30));
        atomic_store(&faults.offline, true);
        ck_assert(until(is_offline, r.s));
        int64_t result = try_put(r.s, "refused"); /* An error, not a token; at once. */
        ck_assert_int_eq(result, LAPSE_EOFFLINE);
        ck_assert_ptr_nonnull(strstr(lapse_error_detail(), "cut the link"));
        ck_assert_int_eq(lapse_cancel(r.s, "nobody", LAPSE_ANY), LAPSE_EOFFLINE);
        int tries = atomic_load(&faults.reconnects);
        lapse_ns began = boot_now();
        /* sleeps: nobody asks for a while */
        ck_assert_int_eq(poll(NULL, 0, (int)tier(100, 1000, 60000)), 0);
        tries = atomic_load(&faults.reconnects) - tries;
        /* With back-off: 20 ms, doubled up to 2 s. */
        ck_assert_int_le(tries, 10 + (int)((boot_now() - began) / LAPSE_SECONDS(2)));
        ck_assert(is_offline(r.s));
        atomic_store(&faults.offline, false);
        ck_assert(until(is_online, r.s));
        ran += 20;
        ck_assert(tape_wait(&p.ran, ran)); /* And nobody scheduled anything. */
        ck_assert_int_gt(lapse_put(r.s, &(lapse_spec){.id = "o", .queue = "other"}), 0);
        ck_assert_int_eq(lapse_cancel(r.s, "o", LAPSE_ANY), LAPSE_FATE_CANCELLED);
    }
    ck_assert_uint_eq(tape_count(&p.ran), ran);
    ck_assert_int_eq(state_of(r.s, "refused"), 0);
    player_close(&p);
    rig_close(&r);
    ck_assert_int_ge(log.warnings, 3);
    ck_assert_int_le(log.warnings, 30); /* Said once in an outage, not with each try. */
    ck_assert_int_ge(log.back, 3);
}
END_TEST

/* What is not known is not shown as nothing; how long it has been so is. */
START_TEST(a_store_that_cannot_be_asked_is_not_empty)
{
    rig r = faulty_rig(_i, NULL);
    put_batch(r.s, "q", "o", 3, LAPSE_HOURS(1));
    lapse_stats t = stats_of(r.s);
    ck_assert_uint_eq(t.pending, 3);
    ck_assert_int_eq(t.offline, 0);
    lapse_queue_stats q;
    for (int kind = 0; kind < 2; kind++) {
        if (kind == 0)
            faulty_hit(FAULT_FAIL, LAPSE_ETIMEOUT, 0, -1);
        else
            atomic_store(&faults.offline, true);
        int result = lapse_statistics(r.s, &t);
        ck_assert_msg(result < 0 || t.pending == 3, "%d, %" PRIu64 " pending", result, t.pending);
        ck_assert_int_eq(lapse_clock_advance(r.clock, LAPSE_SECONDS(7)), 0);
        result = lapse_statistics(r.s, &t);
        ck_assert_msg(result < 0 || t.pending == 3, "%d, %" PRIu64 " pending", result, t.pending);
        ck_assert_int_ge(t.offline, LAPSE_SECONDS(7)); /* Filled in all the same. */
        result = lapse_queue_statistics(r.s, "q", &q);
        ck_assert_msg(result < 0 || q.pending == 3, "%d, %" PRIu64 " pending", result, q.pending);
        ck_assert_int_lt(lapse_each(r.s, 0, count_one, &(int){0}), 0);
        no_more_faults();
        ck_assert(until(is_online, r.s));
        ck_assert_uint_eq(stats_of(r.s).pending, 3);
    }
    rig_close(&r);
}
END_TEST

START_TEST(p62_close_does_not_wait_for_the_link)
{
    place at = faulty_place(_i);
    rig r = open_real(&at, NULL);
    const lapse_order *order;
    put_batch(r.s, "q", "o", 5, 0);
    ck_assert_int_eq(lapse_take(r.s, "q", LIMIT, &order), 1);
    atomic_store(&faults.offline, true);
    ck_assert(until(is_offline, r.s));
    ck_assert_int_eq(lapse_close(r.s, LIMIT), 0);
    atomic_store(&faults.offline, false);
    r = open_real(&at, NULL);
    lapse_stats t = stats_of(r.s); /* What it held waits for its lease's end. */
    ck_assert_uint_eq(t.pending + t.running, 5);
    rig_close(&r);
}
END_TEST

START_TEST(p62_opening_without_a_link_is_an_error)
{
    place at = faulty_place(_i);
    lapse *s = NULL;
    int threads = idle_threads(), descriptors = open_descriptors();
    atomic_store(&faults.no_opening, true);
    for (int i = 0; i < 3; i++) {
        EXPECT_ERROR(lapse_open(at.url, NULL, &s), LAPSE_EOFFLINE, "cut the link");
        ck_assert_ptr_null(s);
    }
    ck_assert(until_threads(threads));
    ck_assert_int_eq(open_descriptors(), descriptors);
    atomic_store(&faults.no_opening, false);
    ck_assert_int_eq(lapse_open(at.url, NULL, &s), 0);
    ck_assert_int_eq(lapse_close(s, LIMIT), 0);
}
END_TEST

/* -- It is slow ------------------------------------------------------------------------------------- */

/* A caller does not wait longer than a third of the lease, and is told that it is not known. */
START_TEST(a_slow_store_is_not_waited_for)
{
    place at = faulty_place(_i);
    gate wait;
    gate_init(&wait);
    rig r = open_real(&at, &(lapse_options){.lease = LAPSE_MS(300)});
    atomic_store(&faults.wait, &wait);
    lapse_ns began = boot_now();
    int64_t result = try_put(r.s, "o");
    ck_assert_msg(result == LAPSE_EUNSURE || result == LAPSE_ETIMEOUT, "%" PRId64 ": %s", result,
                  lapse_error_detail());
    ck_assert_uint_gt(strlen(lapse_error_detail()), 20);
    printf("%s: gave up after %.0f ms of a lease of 300 ms\n", insides[_i].name,
           (double)(boot_now() - began) / 1e6);
    ck_assert_int_ge(lapse_cancel(r.s, "o", LAPSE_ANY), LAPSE_EUNSURE);
    atomic_store(&faults.wait, NULL);
    gate_open(&wait);
    result = put_at_last(r.s, "o"); /* It was done after all, or is now. */
    ck_assert(result > 0 || result == LAPSE_EEXISTS);
    rig_close(&r);
    gate_destroy(&wait);
}
END_TEST

/* -- Renewals fail: P-59 ---------------------------------------------------------------------------- */

START_TEST(p59_who_cannot_renew_has_lost_it)
{
    place at = faulty_place(_i);
    lapse_options options = {.lease = LAPSE_MINUTES(1)};
    rig here = open_place(&at, &options);
    ck_assert_int_eq(lapse_handle(here.s, "q", never, NULL, NULL, NULL), 0);
    put(here.s, "q", "o", LAPSE_MS(1));
    ck_assert_int_eq(lapse_clock_advance(here.clock, LAPSE_MS(1)), 0);
    const lapse_order *order, *taken;
    lapse_callback fn;
    void *arg;
    ck_assert_int_eq(lapse_begin(here.s, LAPSE_FOREVER, &order, &fn, &arg), 1);
    ck_assert_int_eq(lapse_pause(here.s, "q"), 0); /* It claims no more for itself. */
    atomic_store(&faults.no_renewals, true);
    rig there = join_place(&at, &here, &options);
    for (int i = 0; i < 6; i++)
        ck_assert_int_eq(lapse_clock_advance(here.clock, LAPSE_SECONDS(15)), 0);
    ck_assert_int_eq(lapse_poll(there.s, "q", &taken), 1);
    ck_assert_int_eq(taken->attempt, 2);
    ck_assert_int_gt(taken->fence, order->fence);
    ck_assert(!lapse_holds(here.s, order->fence));
    ck_assert_int_eq(lapse_settle(here.s, order->fence, LAPSE_REJECT, 0, NULL), LAPSE_ESTALE);
    atomic_store(&faults.no_renewals, false);
    settle(there.s, taken->fence, LAPSE_DONE);
    ck_assert_uint_eq(stats_of(there.s).dead, 0);
    ck_assert_uint_eq(stats_of(here.s).stale, 1);
    leave_place(&there);
    rig_close(&here);
}
END_TEST

/* Not with each turn: it may have been what held all others up. */
START_TEST(a_failed_renewal_is_asked_again_a_little_later)
{
    rig r = faulty_rig(_i, &(lapse_options){.lease = LAPSE_MINUTES(1)});
    ck_assert_int_eq(lapse_handle(r.s, "q", never, NULL, NULL, NULL), 0);
    put(r.s, "q", "o", LAPSE_MS(1));
    ck_assert_int_eq(lapse_clock_advance(r.clock, LAPSE_MS(1)), 0);
    const lapse_order *order;
    lapse_callback fn;
    void *arg;
    ck_assert_int_eq(lapse_begin(r.s, LAPSE_FOREVER, &order, &fn, &arg), 1);
    atomic_store(&faults.no_renewals, true);
    ck_assert_int_eq(lapse_clock_advance(r.clock, LAPSE_SECONDS(25)), 0);
    char id[16];
    for (int i = 0; i < 20; i++) {
        snprintf(id, sizeof id, "%d", i);
        ck_assert_int_gt(try_put(r.s, id), 0);
    }
    ck_assert_int_eq(atomic_load(&faults.renewals_dropped), 1);
    ck_assert_int_eq(lapse_clock_advance(r.clock, LAPSE_SECONDS(10)), 0);
    ck_assert_int_gt(try_put(r.s, "after"), 0);
    ck_assert_int_eq(atomic_load(&faults.renewals_dropped), 2);
    atomic_store(&faults.no_renewals, false);
    for (int i = 0; i < 10; i++)
        ck_assert_int_eq(lapse_clock_advance(r.clock, LAPSE_SECONDS(10)), 0);
    ck_assert(lapse_holds(r.s, order->fence));
    ck_assert_int_eq(lapse_settle(r.s, order->fence, LAPSE_DONE, 0, NULL), 0);
    rig_close(&r);
}
END_TEST

/* -- For long --------------------------------------------------------------------------------------- */

/* Faults of all kinds at random: each order that was accepted comes to an end, once. */
START_TEST(random_faults_lose_nothing)
{
    int count = (int)tier(200, 2000, 50000);
    rig r = faulty_rig(_i, &(lapse_options){.lease = LAPSE_MINUTES(1)});
    player p;
    rng luck = rng_open("random_faults_lose_nothing");
    int64_t *results = calloc((size_t)count, sizeof *results);
    int *fates = calloc((size_t)count, sizeof *fates);
    ck_assert(results != NULL && fates != NULL);
    player_open(&p, r.s, NULL);
    handle(r.s, "q", &p, &(lapse_policy){.attempts = 1000});
    char id[16];
    for (int i = 0; i < count; i++) {
        int dice = (int)rng_range(&luck, 0, 19);
        if (dice < 2)
            faulty_hit(dice ? FAULT_LOSE : FAULT_FAIL, LAPSE_ESYSTEM, (int)rng_range(&luck, 0, 3),
                       1);
        snprintf(id, sizeof id, "%d", i);
        lapse_spec spec = {.id = id, .queue = "q", .delay = LAPSE_MS(rng_range(&luck, 0, 100))};
        results[i] = lapse_put(r.s, &spec);
        if (dice < 8)
            fates[i] = lapse_cancel(r.s, id, LAPSE_ANY);
        if (dice == 19)
            advance(&r, LAPSE_MS(20));
    }
    no_more_faults();
    for (lapse_ns end = boot_now() + LIMIT; boot_now() < end;) {
        lapse_stats t;
        advance(&r, LAPSE_SECONDS(10));
        if (lapse_statistics(r.s, &t) == 0 && t.pending + t.running == 0)
            break;
    }
    int unsure = 0;
    for (int i = 0; i < count; i++) {
        snprintf(id, sizeof id, "%d", i);
        size_t runs = tape_runs(&p.ran, id);
        if (results[i] == LAPSE_EUNSURE || fates[i] == LAPSE_EUNSURE) {
            unsure++;
            ck_assert_uint_le(runs, 1);
        } else
            ck_assert_msg(runs == (results[i] > 0 && fates[i] != LAPSE_FATE_CANCELLED),
                          "%s: put %" PRId64 ", cancel %d, ran %zu times", id, results[i], fates[i],
                          runs);
    }
    printf("%s: %d of %d not known\n", insides[_i].name, unsure, count);
    player_close(&p);
    rig_close(&r);
    free(results);
    free(fates);
}
END_TEST

static void fill_suite(Suite *suite)
{
    TCase *group = add_group(suite, "turns fail");
    ADD_FOR_INSIDES(group, a_failed_call_changes_nothing);
    ADD_FOR_INSIDES(group, any_one_turn_may_fail);
    ADD_FOR_INSIDES(group, a_refused_settlement_is_asked_again);
    ADD_FOR_INSIDES(group, close_waits_for_a_refused_settlement);
    group = add_group(suite, "answers are lost");
    ADD_FOR_INSIDES(group, a_lost_answer_is_told_as_not_known);
    ADD_FOR_INSIDES(group, any_one_answer_may_be_lost);
    ADD_FOR_INSIDES(group, a_lost_settlement_is_booked_once);
    group = add_group(suite, "the link");
    ADD_FOR_INSIDES(group, p62_the_link_drops_and_comes_back);
    ADD_FOR_INSIDES(group, a_store_that_cannot_be_asked_is_not_empty);
    ADD_FOR_INSIDES(group, p62_close_does_not_wait_for_the_link);
    ADD_FOR_INSIDES(group, p62_opening_without_a_link_is_an_error);
    group = add_group(suite, "slow");
    ADD_FOR_INSIDES(group, a_slow_store_is_not_waited_for);
    ADD_FOR_INSIDES(group, p59_who_cannot_renew_has_lost_it);
    ADD_FOR_INSIDES(group, a_failed_renewal_is_asked_again_a_little_later);
    group = add_group(suite, "all at random");
    ADD_FOR_INSIDES(group, random_faults_lose_nothing);
}

int main(void)
{
    return stores_main("faults", fill_suite);
}
