/* test_growth.c - memory that runs out while thousands of orders come, run and go. */
/* link: -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=free,--wrap=strdup,--wrap=mmap,--wrap=munmap,--wrap=open_memstream,--wrap=timerfd_create,--wrap=pthread_create,--wrap=getrandom */
/* tiers: small full */
/* What grows with the number of orders (records, index, timer, links, queues) grows at
 * counts that no test needs to know: every single call is made with its first, second, ...
 * allocation refused until it succeeds. And what is promised to need no memory is done
 * while there is none. */
#include "fail/world.h"

static picture before, after;
static token tokens[1 << 18];
static world w;

static long orders(void)
{
    return tier(1300, 20000, 20000);
}

/* One shape of orders, in a scheduler with these options. */
typedef struct shape {
    const char *name;
    lapse_options options;
    bool pull, parked, queues;
    bool few; /* each order grows something */
    int id_len;
    long growths; /* refusals seen at least */
} shape;

enum { OVERFLOWING = 3, PAUSED = 4 };

static const shape shapes[] = {
    {.name = "callbacks", .growths = 10},
    {.name = "for takers", .pull = true, .growths = 10},
    {.name = "long ids", .id_len = 200, .few = true, .growths = 250},
    [OVERFLOWING] = {.name = "overflow",
                     .options.overflow = LAPSE_DEAD_LETTER_OLDEST,
                     .growths = 10},
    [PAUSED] = {.name = "paused", .parked = true, .growths = 10},
    {.name = "queues", .queues = true, .pull = true, .few = true, .growths = 750},
};

enum { SHAPES = sizeof shapes / sizeof *shapes };

static const char *id_of(const shape *sh, long i)
{
    static char id[LAPSE_ID_MAX + 1];
    snprintf(id, sizeof id, "%0*ld", sh->id_len ? sh->id_len : 1, i);
    return id;
}

static lapse_spec spec_of(const shape *sh, long i)
{
    static char queue[32];
    snprintf(queue, sizeof queue, "queue %ld", i);
    return (lapse_spec){.id = id_of(sh, i),
                        .delay = LAPSE_MS(i % 7000),
                        .queue = sh->queues && i < 600 ? queue : NULL,
                        .fn = sh->pull ? NULL : run_token,
                        .arg = &tokens[i]};
}

/* Whether the refused call is worth a look at everything. */
static bool look_closely(long refused_so_far)
{
    return refused_so_far < 16 || refused_so_far % 500 == 0;
}

/* Put one, refused memory until it succeeds. Whether it did so without what it was
 * refused, which it then has to make up for. */
static bool put_until_accepted(const shape *sh, long i, bool once, long *seen)
{
    lapse_info info;
    for (long n = 0;; n++) {
        lapse_spec spec = spec_of(sh, i);
        bool closely = i < 150 && look_closely(*seen);
        if (closely)
            take_picture(&before, &w);
        refusals = 0;
        fail_once = once;
        fail_after = n;
        int64_t answer = lapse_put(w.r.s, &spec);
        fail_after = NO_FAILURE;
        *seen += refusals > 0;
        if (noted(&tokens[i], answer) > 0)
            return refusals > 0;
        ck_assert_int_gt(refusals, 0);
        ck_assert_int_eq(answer, LAPSE_ENOMEM);
        ck_assert_int_eq(lapse_get(w.r.s, spec.id, &info), LAPSE_EUNKNOWN);
        if (!closely)
            continue;
        take_picture(&after, &w);
        expect_same(&before, &after, sh->name);
    }
}

static void put_at_once(const shape *sh, long i)
{
    lapse_spec spec = spec_of(sh, i);
    ck_assert_int_gt(noted(&tokens[i], lapse_put(w.r.s, &spec)), 0);
}

/* All of them in; how many allocations were refused. */
static long fill(const shape *sh, const char *url, bool once, long count)
{
    long seen = 0;
    memset(tokens, 0, sizeof tokens);
    lapse_options options = sh->options;
    if (options.overflow)
        options.max_pending = (uint64_t)count;
    open_world(&w, url, options);
    if (sh->parked)
        ck_assert_int_eq(lapse_pause(w.r.s, NULL), 0);
    for (long i = 0; i < count; i++)
        if (put_until_accepted(sh, i, once, &seen) && i + 1 < count)
            put_at_once(sh, ++i);
    ck_assert_uint_eq(pending_in(w.r.s), (uint64_t)count);
    return seen;
}

static void expect_released(const shape *sh, long count, int times)
{
    for (long i = 0; i < count; i++)
        ck_assert_msg(tokens[i].released == times, "%s: order %ld was released %d times", sh->name,
                      i, tokens[i].released);
}

/* Without any memory: rescheduled as far as it goes, cancelled by the half, closed. */
START_TEST(orders_come_and_go)
{
    const shape *sh = &shapes[_i / 2 % SHAPES];
    long count = sh->few ? orders() / 4 : orders();
    long seen = fill(sh, engine_url(_i / 2 / SHAPES), _i % 2, count);
    ck_assert_msg(seen >= sh->growths, "%s: only %ld allocations", sh->name, seen);

    uint64_t moved = 0;
    long starved = 0, cancelled = 0;
    fail_after = 0;
    for (long i = 0; i < count; i += 3) {
        int fate = lapse_reschedule(w.r.s, id_of(sh, i), LAPSE_ANY, LAPSE_HOURS(i % 99));
        moved += fate == LAPSE_FATE_RESCHEDULED;
        starved += fate == LAPSE_ENOMEM;
    }
    for (long i = 0; i < count; i += 2)
        cancelled += lapse_cancel(w.r.s, id_of(sh, i), LAPSE_ANY) == LAPSE_FATE_CANCELLED;
    fail_after = NO_FAILURE;
    ck_assert_uint_gt(moved, 0);
    ck_assert_uint_eq(moved + (uint64_t)starved, (uint64_t)(count + 2) / 3);
    ck_assert_uint_eq(stats_of(w.r.s).rescheduled, moved);
    ck_assert_int_eq(cancelled, (count + 1) / 2);
    ck_assert_uint_eq(pending_in(w.r.s), (uint64_t)(count / 2));
    close_world(&w, sh->name, true);
    expect_released(sh, count, 1);
}
END_TEST

/* The links beside the records grow seldom, by half a megabyte or more. */
START_TEST(links_grow)
{
    const shape *sh = &shapes[_i];
    long count = tier(1300, 132000, 132000);
    most_refused = 0;
    fill(sh, engine_url(WHEEL), false, count);
    ck_assert(tier(0, 1, 1) == 0 || most_refused >= 1 << 19);
    close_world(&w, sh->name, true);
    expect_released(sh, count, 1);
}
END_TEST

/* -- Running ----------------------------------------------------------------------- */

static int64_t fences[1 << 17];

/* Begin or take the next one, refused memory until it succeeds. */
static int64_t claim_until_claimed(const shape *sh, bool once, long *seen)
{
    const lapse_order *order;
    lapse_callback fn;
    void *arg;
    lapse_stats stats = stats_of(w.r.s);
    for (long n = 0;; n++) {
        refusals = 0;
        fail_once = once;
        fail_after = n;
        int code = sh->pull ? lapse_poll(w.r.s, NULL, &order)
                            : lapse_begin(w.r.s, LAPSE_FOREVER, &order, &fn, &arg);
        fail_after = NO_FAILURE;
        *seen += refusals > 0;
        if (code == 1)
            return order->fence;
        ck_assert_int_gt(refusals, 0);
        ck_assert_int_eq(code, LAPSE_ENOMEM);
        lapse_stats now = stats_of(w.r.s);
        ck_assert(now.pending == stats.pending && now.running == stats.running);
    }
}

static void claim_all(const shape *sh, bool once, long count)
{
    long seen = 0;
    ck_assert_int_eq(lapse_clock_advance(w.r.clock, LAPSE_SECONDS(10)), 0);
    for (long i = 0; i < count; i++)
        fences[i] = claim_until_claimed(sh, once, &seen);
    ck_assert_int_ge(seen, count); /* Each claim is an allocation. */
    ck_assert_uint_eq(stats_of(w.r.s).running, (uint64_t)count);
}

static lapse_verdict verdict_of(long i)
{
    static const lapse_verdict verdicts[] = {LAPSE_RETRY, LAPSE_DONE, LAPSE_GIVE_BACK, LAPSE_RETRY,
                                             LAPSE_REJECT};
    return verdicts[i % 5];
}

/* All run at once, and all memory is gone when they are settled: each is where it belongs. */
START_TEST(orders_run_again)
{
    static const shape running[] = {{.name = "callbacks run"}, {.name = "takers", .pull = true}};
    const shape *sh = &running[_i % 2];
    bool once = _i / 2 % 2;
    long count = orders();
    fill(sh, engine_url(_i / 4), once, count);
    claim_all(sh, once, count);

    long settled = 0;
    fail_once = false;
    fail_after = 0;
    for (long i = 0; i < count; i++)
        settled += lapse_settle(w.r.s, fences[i], verdict_of(i), LAPSE_HOURS(i % 50), "no") == 0;
    fail_after = NO_FAILURE;
    ck_assert_int_eq(settled, count);
    lapse_stats stats = stats_of(w.r.s);
    ck_assert_uint_eq(stats.pending, (uint64_t)(count / 5 * 3));
    ck_assert_uint_eq(stats.done, (uint64_t)(count / 5));
    ck_assert_uint_eq(stats.dead_total, (uint64_t)(count / 5));
    ck_assert_uint_eq(stats.retried, (uint64_t)(count / 5 * 2));
    expect_identity(w.r.s);

    ck_assert_int_eq(lapse_clock_advance(w.r.clock, LAPSE_HOURS(50)), 0);
    for (long i = 0; i < count / 5 * 3; i++) {
        long seen = 0;
        int64_t fence = claim_until_claimed(sh, true, &seen);
        ck_assert_int_eq(lapse_settle(w.r.s, fence, LAPSE_DONE, 0, NULL), 0);
    }
    ck_assert_uint_eq(pending_in(w.r.s), 0);
    close_world(&w, sh->name, true);
    expect_released(sh, count, 1);
}
END_TEST

/* Every lease ends while there is no memory: nothing is lost, and nothing is lost twice. */
START_TEST(leases_end)
{
    static const shape taken = {.name = "leases", .pull = true};
    long count = orders() / 4;
    fill(&taken, engine_url(_i), true, count);
    claim_all(&taken, true, count);
    ck_assert_int_eq(lapse_clock_advance(w.r.clock, LAPSE_SECONDS(31)), 0);
    fail_once = false;
    fail_after = 20; /* Some go on, then memory is gone. */
    int64_t ran = lapse_process(w.r.s, 0);
    fail_after = NO_FAILURE;
    ck_assert(ran == 0 || ran == LAPSE_ENOMEM);
    lapse_stats stats = stats_of(w.r.s);
    ck_assert_uint_gt(stats.lost, 0);
    ck_assert_uint_lt(stats.lost, (uint64_t)count);
    ck_assert_uint_eq(stats.running + stats.pending, (uint64_t)count);
    ck_assert_uint_eq(stats.pending, stats.lost);

    advance(&w.r, LAPSE_SECONDS(2));
    for (long i = 0; i < count / 256; i++) /* One call sees to so many at most. */
        ck_assert_int_eq(lapse_process(w.r.s, 0), 0);
    ck_assert_uint_eq(stats_of(w.r.s).lost, (uint64_t)count);
    ck_assert_uint_eq(pending_in(w.r.s), (uint64_t)count);
    for (long i = 0; i < count; i++)
        ck_assert_int_eq(lapse_settle(w.r.s, fences[i], LAPSE_DONE, 0, NULL), LAPSE_ESTALE);
    ck_assert_uint_eq(pending_in(w.r.s), (uint64_t)count);
    expect_identity(w.r.s);
    close_world(&w, "leases", true);
    expect_released(&taken, count, 1);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("growth");
    TCase *group = add_group(suite, "growth");
    tcase_add_loop_test(group, orders_come_and_go, 0, ENGINES * SHAPES * 2);
    tcase_add_loop_test(group, links_grow, OVERFLOWING, PAUSED + 1);
    tcase_add_loop_test(group, orders_run_again, 0, ENGINES * 4);
    ADD_FOR_ENGINES(group, leases_end);
    return run_suite(suite);
}
