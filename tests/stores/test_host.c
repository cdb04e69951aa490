/* test_host.c - every store: the host's loop or our threads, stop and close, fork, figures.
 * P-24, P-26, P-28, P-31, P-32, P-34.
 *
 * The host stays in charge: nothing runs but in its calls or on threads it asked for; what
 * it may not do is refused with a name; a child process inherits nothing. */
/* tiers: small full */
/* servers */
#include "stores/stores.h"

#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>
#include <unistd.h>

/* -- The host's loop ------------------------------------------------------------------------ */

/* As a host that computes its own timeout: sleep as long as it is told, until something
 * ran; how long that took. A shared store may want to be looked at more often. */
static lapse_ns sleep_as_told(rig *r)
{
    for (lapse_ns slept = 0;;) {
        lapse_ns wait = lapse_timeout(r->s);
        ck_assert_int_ge(wait, 0);
        ck_assert_int_lt(wait, LAPSE_FOREVER);
        ck_assert_int_eq(lapse_clock_advance(r->clock, wait), 0);
        slept += wait;
        int64_t ran = lapse_process(r->s, 0);
        ck_assert_int_ge(ran, 0);
        if (ran > 0)
            return slept;
    }
}

START_TEST(the_timeout_tells_when)
{
    rig r = fresh(_i, NULL);
    player p;
    player_open(&p, r.s, NULL);
    handle(r.s, "q", &p, NULL);
    put(r.s, "q", "o", LAPSE_SECONDS(10));
    put(r.s, "q", "later", LAPSE_SECONDS(20));
    put(r.s, "others'", "not mine", LAPSE_SECONDS(5));
    for (int i = 0; i < 2; i++) {
        lapse_ns slept = sleep_as_told(&r);
        ck_assert_int_ge(slept, LAPSE_SECONDS(10));
        ck_assert_int_le(slept, LAPSE_SECONDS(10) + r.tick);
    }
    ck_assert_uint_eq(tape_count(&p.ran), 2);
    if (!(lapse_abilities(r.s) & LAPSE_CAN_SHARE))
        ck_assert_int_eq(lapse_timeout(r.s), LAPSE_FOREVER);
    player_close(&p);
    rig_close(&r);
}
END_TEST

static bool is_readable(void *arg)
{
    return readable(*(int *)arg);
}

START_TEST(the_descriptor_tells_when)
{
    rig r = fresh(_i, NULL);
    player p;
    player_open(&p, r.s, NULL);
    handle(r.s, "q", &p, NULL);
    int fd = lapse_fd(r.s);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(lapse_process(r.s, 0), 0);
    ck_assert(!readable(fd));
    put(r.s, "q", "o", LAPSE_SECONDS(10));
    ck_assert_int_eq(lapse_clock_advance(r.clock, LAPSE_SECONDS(10)), 0);
    ck_assert(until(is_readable, &fd));
    ck_assert_int_eq(lapse_timeout(r.s), 0);
    ck_assert_int_eq(lapse_fd(r.s), fd);
    ck_assert_int_eq(lapse_process(r.s, 0), 1);
    ck_assert_int_eq(lapse_process(r.s, 0), 0);
    ck_assert(!readable(fd));
    player_close(&p);
    rig_close(&r);
}
END_TEST

START_TEST(process_runs_so_many)
{
    rig r = fresh(_i, NULL);
    player p;
    player_open(&p, r.s, NULL);
    handle(r.s, "q", &p, NULL);
    put_batch(r.s, "q", "o", 100, 0);
    ck_assert_int_eq(lapse_clock_advance(r.clock, LAPSE_SECONDS(1)), 0);
    ck_assert_int_eq(lapse_process(r.s, 1), 1);
    ck_assert_int_eq(lapse_timeout(r.s), 0);
    ck_assert_int_eq(lapse_process(r.s, 33), 33);
    ck_assert_uint_eq(pending_in(r.s), 66); /* What was not started is not held. */
    ck_assert_int_eq(lapse_process(r.s, 0), 66);
    ck_assert_int_eq(lapse_process(r.s, 0), 0);
    for (int i = 0; i < 100; i++)
        ck_assert_int_eq(atoi(p.ran.entries[i].id + 1), i);
    expect_books(r.s);
    player_close(&p);
    rig_close(&r);
}
END_TEST

/* Under the real clock a host that polls the descriptor needs nothing else. */
START_TEST(a_polling_host_misses_nothing)
{
    enum { COUNT = 50 };
    rig r = fresh_real(_i, NULL);
    player p;
    player_open(&p, r.s, NULL);
    handle(r.s, "q", &p, NULL);
    struct pollfd host = {.fd = lapse_fd(r.s), .events = POLLIN};
    char id[16];
    for (int i = 0; i < COUNT; i++) {
        snprintf(id, sizeof id, "%d", i);
        put(r.s, "q", id, LAPSE_MS(rng_range(&(rng){(uint64_t)i}, 0, 100)));
    }
    while (tape_count(&p.ran) < COUNT) {
        ck_assert_int_eq(poll(&host, 1, (int)(LIMIT / LAPSE_MS(1))), 1);
        ck_assert_int_ge(lapse_process(r.s, 0), 0);
    }
    player_close(&p);
    rig_close(&r);
}
END_TEST

/* -- Our threads -------------------------------------------------------------------------------- */

START_TEST(threads_run_what_falls_due)
{
    enum { COUNT = 200 };
    rig r = fresh_real(_i, NULL);
    player p;
    player_open(&p, r.s, NULL);
    handle(r.s, "q", &p, NULL);
    EXPECT_ERROR(lapse_start(r.s, 0), LAPSE_EINVAL, "");
    EXPECT_ERROR(lapse_start(r.s, 257), LAPSE_EINVAL, "257");
    ck_assert_int_eq(lapse_start(r.s, 3), 0);
    lapse_ns began = boot_now();
    char id[16];
    for (int i = 0; i < COUNT; i++) {
        snprintf(id, sizeof id, "%d", i);
        put(r.s, "q", id, LAPSE_MS(i % 40));
    }
    ck_assert(tape_wait(&p.ran, COUNT));
    for (int i = 0; i < COUNT; i++) {
        const tape_entry *e = &p.ran.entries[i];
        ck_assert_int_ge(e->now - began, LAPSE_MS(atoi(e->id) % 40)); /* P-12 */
        ck_assert_int_ge(e->late, 0);
        ck_assert_uint_eq(tape_runs(&p.ran, e->id), 1);
    }
    ck_assert_int_eq(lapse_stop(r.s), 0);
    player_close(&p);
    rig_close(&r);
}
END_TEST

static void run_scheduler(void *arg, int number)
{
    (void)number;
    int result = lapse_run(arg);
    if (result != 0 && result != LAPSE_ECLOSED)
        complain("lapse_run: %d, %s", result, lapse_error_detail());
}

START_TEST(run_ends_with_stop)
{
    rig r = fresh_real(_i, NULL);
    player p;
    crew c;
    player_open(&p, r.s, NULL);
    handle(r.s, "q", &p, NULL);
    crew_start(&c, 2, run_scheduler, r.s);
    put_batch(r.s, "q", "o", 20, LAPSE_MS(5));
    ck_assert(tape_wait(&p.ran, 20));
    put(r.s, "q", "never", LAPSE_HOURS(1));
    ck_assert_int_eq(lapse_stop(r.s), 0);
    crew_join(&c);
    ck_assert_uint_eq(pending_in(r.s), 1);
    ck_assert_uint_eq(tape_count(&p.ran), 20);
    player_close(&p);
    rig_close(&r);
}
END_TEST

/* A sleeper is woken by what is due earlier than it slept for. */
START_TEST(p06_an_earlier_order_wakes_the_sleeper)
{
    rig r = fresh_real(_i, NULL);
    player p;
    player_open(&p, r.s, NULL);
    handle(r.s, "q", &p, NULL);
    ck_assert_int_eq(lapse_start(r.s, 1), 0);
    put(r.s, "q", "far", LAPSE_HOURS(10));
    for (size_t i = 0; i < 10; i++) {
        char id[16];
        snprintf(id, sizeof id, "%zu", i);
        put(r.s, "q", id, LAPSE_MS(3));
        ck_assert(tape_wait(&p.ran, i + 1));
    }
    player_close(&p);
    rig_close(&r);
}
END_TEST

/* -- Inside callbacks ------------------------------------------------------------------------------ */

struct nest {
    lapse *s;
    int depth, runs;
    int codes[8];
    int64_t generation;
};

static lapse_verdict schedule_self(const lapse_order *order, void *arg)
{
    struct nest *n = arg;
    n->runs++;
    lapse_spec spec = {.id = order->id, .queue = order->queue};
    if (n->runs < n->depth && (n->generation = lapse_put(n->s, &spec)) <= order->generation)
        complain("%s", lapse_error_detail());
    return LAPSE_DONE;
}

START_TEST(p24_what_a_callback_schedules_is_of_the_next_pass)
{
    rig r = fresh(_i, NULL);
    struct nest n = {.s = r.s, .depth = 5};
    ck_assert_int_eq(lapse_handle(r.s, "q", schedule_self, &n, NULL, NULL), 0);
    put(r.s, "q", "o", 0);
    for (int i = 1; i <= 5; i++) {
        ck_assert_int_eq(advance_once(&r, LAPSE_MS(1)), 1);
        ck_assert_int_eq(n.runs, i);
    }
    ck_assert_int_eq(advance_once(&r, LAPSE_SECONDS(1)), 0);
    ck_assert_uint_eq(pending_in(r.s), 0);
    expect_books(r.s);
    check_calm();
    rig_close(&r);
}
END_TEST

static lapse_verdict use_everything(const lapse_order *order, void *arg)
{
    struct nest *n = arg;
    lapse_info info;
    lapse_stats stats;
    const lapse_order *other;
    n->runs++;
    n->codes[0] = lapse_close(n->s, LAPSE_FOREVER);
    n->codes[1] = lapse_cancel(n->s, order->id, LAPSE_ANY);
    n->codes[2] = lapse_cancel(n->s, "other", LAPSE_ANY);
    n->codes[3] = lapse_get(n->s, order->id, &info);
    if (n->codes[3] == 0)
        lapse_info_free(&info);
    n->codes[4] = lapse_statistics(n->s, &stats);
    n->codes[5] = lapse_poll(n->s, "taken", &other);
    n->codes[6] = lapse_holds(n->s, order->fence);
    n->codes[7] = lapse_stop(n->s);
    return LAPSE_DONE;
}

START_TEST(p26_a_callback_may_use_everything_but_close)
{
    rig r = fresh(_i, NULL);
    NEEDS(&r, LAPSE_CAN_CANCEL);
    struct nest n = {.s = r.s};
    ck_assert_int_eq(lapse_handle(r.s, "q", use_everything, &n, NULL, NULL), 0);
    put(r.s, "q", "o", LAPSE_MS(1));
    put(r.s, "q", "other", LAPSE_MS(1));
    put(r.s, "q", "third", LAPSE_MS(1));
    put(r.s, "taken", "t", LAPSE_MS(1));
    ck_assert_int_eq(lapse_clock_advance(r.clock, LAPSE_MS(1)), 0);
    ck_assert_int_eq(lapse_process(r.s, 0), 1); /* It stopped the rest. */
    const int expected[] = {
        LAPSE_EINCALLBACK, LAPSE_FATE_RUNNING, LAPSE_FATE_CANCELLED, 0, 0, 1, 1, 0};
    for (int i = 0; i < 8; i++)
        ck_assert_msg(n.codes[i] == expected[i], "call %d: %d", i, n.codes[i]);
    expect_state(r.s, "third", LAPSE_STATE_PENDING);
    expect_books(r.s);
    rig_close(&r);
}
END_TEST

/* -- Stop and close -------------------------------------------------------------------------------- */

struct hung {
    gate entered, go_on;
};

static lapse_verdict hang(const lapse_order *order, void *arg)
{
    struct hung *h = arg;
    (void)order;
    gate_open(&h->entered);
    if (!gate_pass(&h->go_on))
        complain("the gate stayed shut");
    return LAPSE_DONE;
}

START_TEST(close_names_what_still_runs)
{
    rig r = fresh_real(_i, NULL);
    struct hung h;
    gate_init(&h.entered);
    gate_init(&h.go_on);
    ck_assert_int_eq(lapse_handle(r.s, "q", hang, &h, NULL, NULL), 0);
    ck_assert_int_eq(lapse_start(r.s, 1), 0);
    put(r.s, "q", "the slow one", 0);
    ck_assert(gate_pass(&h.entered));
    EXPECT_ERROR(lapse_close(r.s, LAPSE_MS(5)), LAPSE_ETIMEOUT, "\"the slow one\"");
    EXPECT_ERROR(lapse_put(r.s, &(lapse_spec){.id = "x"}), LAPSE_ECLOSED, "");
    ck_assert_uint_eq(stats_of(r.s).running, 1); /* Stopped and valid. */
    gate_open(&h.go_on);
    rig_close(&r);
    gate_destroy(&h.entered);
    gate_destroy(&h.go_on);
}
END_TEST

/* P-31: after close no thread and no descriptor is left. */
START_TEST(p31_nothing_is_left_behind)
{
    int threads = idle_threads(), descriptors = open_descriptors();
    for (int i = 0; i < 5; i++) {
        rig r = fresh_real(_i, NULL);
        const lapse_order *order;
        player p;
        player_open(&p, r.s, NULL);
        handle(r.s, "q", &p, NULL);
        ck_assert_int_eq(lapse_start(r.s, 2), 0);
        ck_assert_int_ge(lapse_fd(r.s), 0);
        put_batch(r.s, "q", "o", 10, 0);
        put_batch(r.s, "taken", "t", 3, 0);
        ck_assert_int_eq(lapse_take(r.s, "taken", LIMIT, &order), 1); /* Never settled. */
        ck_assert(tape_wait(&p.ran, 10));
        player_close(&p);
        rig_close(&r);
    }
    ck_assert(until_threads(threads));
    ck_assert_int_eq(open_descriptors(), descriptors);
}
END_TEST

/* -- fork: P-32 ------------------------------------------------------------------------------------ */

/* In the child: exits with the number of the check that failed. */
#define CHECK_IN_CHILD(n, holds)                                                                   \
    do {                                                                                           \
        if (!(holds))                                                                              \
            _exit(n);                                                                              \
    } while (0)

static void be_a_child(rig *r, bool durable)
{
    lapse_info info;
    const lapse_order *order;
    CHECK_IN_CHILD(1, lapse_cancel(r->s, "parent's", LAPSE_ANY) == LAPSE_EFORKED);
    CHECK_IN_CHILD(2, lapse_put(r->s, &(lapse_spec){.id = "x"}) == LAPSE_EFORKED);
    CHECK_IN_CHILD(3, lapse_process(r->s, 0) == LAPSE_EFORKED);
    CHECK_IN_CHILD(4, strstr(lapse_error_detail(), "lapse_after_fork") != NULL);
    CHECK_IN_CHILD(5, lapse_after_fork(r->s) == 0);
    CHECK_IN_CHILD(6, lapse_after_fork(r->s) == 0);
    /* Empty in memory; a durable one has connected anew and sees what is there. */
    int found = lapse_get(r->s, "parent's", &info);
    if (lapse_abilities(r->s) & LAPSE_CAN_LIST)
        CHECK_IN_CHILD(7, found == (durable ? 0 : LAPSE_EUNKNOWN));
    if (found == 0)
        lapse_info_free(&info);
    CHECK_IN_CHILD(8, lapse_put(r->s, &(lapse_spec){.id = "child's", .queue = "c"}) > 0);
    CHECK_IN_CHILD(9, lapse_take(r->s, "c", LIMIT, &order) == 1);
    CHECK_IN_CHILD(10, lapse_settle(r->s, order->fence, LAPSE_DONE, 0, NULL) == 0);
    CHECK_IN_CHILD(11, lapse_close(r->s, LIMIT) == 0);
    _exit(0);
}

START_TEST(p32_a_child_inherits_nothing)
{
    if (!children_can_allocate(__func__))
        return;
    rig r = fresh_real(_i, NULL);
    if (lapse_abilities(r.s) & LAPSE_CAN_SHARE)
        NEEDS_PROCESSES(&r, _i);
    player p;
    player_open(&p, r.s, NULL);
    handle(r.s, "q", &p, NULL);
    put(r.s, "q", "parent's", LAPSE_HOURS(1));
    ck_assert_int_eq(lapse_start(r.s, 2), 0);
    bool durable = lapse_abilities(r.s) & LAPSE_CAN_DURABLE;
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0)
        be_a_child(&r, durable);
    ck_assert_int_eq(end_of(pid), 0);
    pid = fork(); /* One that only forgets it. */
    if (pid == 0)
        _exit(lapse_close(r.s, LAPSE_FOREVER) == 0 ? 0 : 1);
    ck_assert_int_eq(end_of(pid), 0);
    expect_state(r.s, "parent's", LAPSE_STATE_PENDING);
    put(r.s, "q", "goes on", 0);
    ck_assert(tape_wait(&p.ran, 1));
    player_close(&p);
    rig_close(&r);
}
END_TEST

/* -- Figures ----------------------------------------------------------------------------------------- */

START_TEST(the_statistics_add_up)
{
    STORE_NEEDS(_i, LAPSE_CAN_LIMIT);
    lapse_options options = {
        .keep = LAPSE_HOURS(1), .max_pending = 300, .lease = LAPSE_SECONDS(40)};
    rig r = fresh(_i, &options);
    NEEDS(&r, LAPSE_CAN_CANCEL);
    rng luck = rng_open("the_statistics_add_up");
    int64_t fences[400];
    int held = 0;
    for (int i = 0; i < (int)tier(600, 6000, 200000); i++) {
        char id[16];
        const lapse_order *order;
        snprintf(id, sizeof id, "%d", (int)rng_range(&luck, 0, 99));
        lapse_spec spec = {.id = id,
                           .queue = i % 3 ? "q" : "other",
                           .delay = LAPSE_SECONDS(rng_range(&luck, 0, 50)),
                           .flags = i % 4 ? 0 : LAPSE_REPLACE};
        switch (rng_range(&luck, 0, 7)) {
        case 0:
        case 1:
        case 2:
            lapse_put(r.s, &spec);
            break;
        case 3:
            lapse_cancel(r.s, id, LAPSE_ANY);
            break;
        case 4:
            lapse_reschedule(r.s, id, LAPSE_ANY, spec.delay);
            break;
        case 5:
            if (held < 400 && lapse_poll(r.s, NULL, &order) == 1)
                fences[held++] = order->fence;
            break;
        case 6:
            if (held > 0) {
                held--;
                lapse_settle(r.s, fences[held], (lapse_verdict)rng_range(&luck, 0, 4), 0, NULL);
            }
            break;
        default:
            ck_assert_int_eq(lapse_clock_advance(r.clock, LAPSE_SECONDS(3)), 0);
            break;
        }
        if (i % 50 == 0)
            expect_books(r.s);
    }
    while (held > 0)
        lapse_settle(r.s, fences[--held], LAPSE_DONE, 0, NULL);
    expect_books(r.s);
    rig_close(&r);
}
END_TEST

START_TEST(lateness_is_measured)
{
    rig r = fresh(_i, NULL);
    player p;
    player_open(&p, r.s, NULL);
    handle(r.s, "q", &p, NULL);
    put_batch(r.s, "q", "o", 99, LAPSE_MS(1));
    put(r.s, "q", "late", LAPSE_MS(2));
    advance(&r, LAPSE_MS(1));
    ck_assert_int_eq(stats_of(r.s).oldest_due, 0);
    ck_assert_int_eq(lapse_clock_advance(r.clock, LAPSE_SECONDS(16)), 0);
    lapse_ns oldest = stats_of(r.s).oldest_due;
    ck_assert_int_eq(oldest, LAPSE_SECONDS(16) - LAPSE_MS(1));
    advance(&r, 0);
    lapse_stats t = stats_of(r.s);
    ck_assert_int_eq(t.oldest_due, 0);
    ck_assert_int_le(t.late_p50, LAPSE_MS(1));
    ck_assert_int_eq(t.late_max, LAPSE_SECONDS(16) - LAPSE_MS(1));
    ck_assert_int_ge(t.late_p999, t.late_max);
    ck_assert_int_le(t.late_p999, t.late_max + t.late_max / 16 + 1);
    /* What polling may add to it is a stated number, and 0 where nothing is polled. */
    if (lapse_abilities(r.s) & LAPSE_CAN_SHARE) {
        ck_assert_int_gt(t.poll_bound, 0);
        ck_assert_int_le(t.poll_bound, LAPSE_SECONDS(1));
    } else
        ck_assert_int_eq(t.poll_bound, 0);
    player_close(&p);
    rig_close(&r);
}
END_TEST

START_TEST(the_figures_are_in_the_metrics)
{
    rig r = fresh(_i, NULL);
    player p;
    player_open(&p, r.s, NULL);
    handle(r.s, "q", &p, NULL);
    put_batch(r.s, "q", "o", 7, LAPSE_MS(1));
    put_batch(r.s, "say \"hello\"", "p", 2, LAPSE_HOURS(1));
    advance(&r, LAPSE_MS(1));
    char *text = lapse_metrics(r.s);
    ck_assert_ptr_nonnull(text);
    ck_assert_ptr_nonnull(strstr(text, "# TYPE "));
    ck_assert_ptr_nonnull(strstr(text, "{queue=\"say \\\"hello\\\"\"} 2\n"));
    ck_assert(text[strlen(text) - 1] == '\n');
    lapse_free(text);
    player_close(&p);
    rig_close(&r);
}
END_TEST

START_TEST(queues_have_names)
{
    rig r = fresh(_i, NULL);
    put(r.s, "a", "1", 0);
    put(r.s, "b", "2", 0);
    put(r.s, "", "3", 0);
    bool seen[3] = {false, false, false};
    for (size_t n = 0; lapse_queue_name(r.s, n) != NULL; n++) {
        const char *name = lapse_queue_name(r.s, n);
        ck_assert_msg(strcmp(name, "") == 0 || strcmp(name, "a") == 0 || strcmp(name, "b") == 0,
                      "%s", name);
        bool *slot = &seen[*name == '\0' ? 0 : *name - 'a' + 1];
        ck_assert(!*slot);
        *slot = true;
    }
    ck_assert(seen[0] && seen[1] && seen[2]);
    ck_assert_uint_eq(queue_stats(r.s, "a").pending, 1);
    rig_close(&r);
}
END_TEST

/* -- Errors -------------------------------------------------------------------------------------------- */

START_TEST(bad_urls_are_told)
{
    place at = new_place(_i, "no_such_option=1");
    lapse *s = NULL;
    EXPECT_ERROR(lapse_open(at.url, NULL, &s), LAPSE_EURL, "no_such_option");
    ck_assert_ptr_null(s);
    at = new_place(_i, "keep=1parsec");
    EXPECT_ERROR(lapse_open(at.url, NULL, &s), LAPSE_EURL, "keep");
    at = new_place(_i, "lease=100000000d");
    EXPECT_ERROR(lapse_open(at.url, NULL, &s), LAPSE_ERANGE, "lease");
    at = new_place(_i, "max_pending=-1");
    EXPECT_ERROR(lapse_open(at.url, NULL, &s), LAPSE_EURL, "max_pending");
    ck_assert_ptr_null(s);
}
END_TEST

START_TEST(null_is_an_argument_that_is_refused)
{
    rig r = fresh(_i, NULL);
    ck_assert_int_eq(lapse_put(NULL, &(lapse_spec){.id = "x"}), LAPSE_EINVAL);
    ck_assert_int_eq(lapse_put(r.s, NULL), LAPSE_EINVAL);
    ck_assert_int_eq(lapse_poll(r.s, NULL, NULL), LAPSE_EINVAL);
    ck_assert_int_eq(lapse_take(r.s, NULL, 0, NULL), LAPSE_EINVAL);
    ck_assert_int_eq(lapse_statistics(r.s, NULL), LAPSE_EINVAL);
    ck_assert_int_eq(lapse_close(NULL, 0), 0);
    rig_close(&r);
}
END_TEST

static void fill_suite(Suite *suite)
{
    TCase *group = add_group(suite, "the host's loop");
    ADD_FOR_STORES(group, the_timeout_tells_when);
    ADD_FOR_STORES(group, the_descriptor_tells_when);
    ADD_FOR_STORES(group, process_runs_so_many);
    ADD_FOR_STORES(group, a_polling_host_misses_nothing);
    group = add_group(suite, "our threads");
    ADD_FOR_STORES(group, threads_run_what_falls_due);
    ADD_FOR_STORES(group, run_ends_with_stop);
    ADD_FOR_STORES(group, p06_an_earlier_order_wakes_the_sleeper);
    group = add_group(suite, "inside callbacks");
    ADD_FOR_STORES(group, p24_what_a_callback_schedules_is_of_the_next_pass);
    ADD_FOR_STORES(group, p26_a_callback_may_use_everything_but_close);
    group = add_group(suite, "stop, close, fork");
    ADD_FOR_STORES(group, close_names_what_still_runs);
    ADD_FOR_STORES(group, p31_nothing_is_left_behind);
    ADD_FOR_STORES(group, p32_a_child_inherits_nothing);
    group = add_group(suite, "figures and errors");
    ADD_FOR_STORES(group, the_statistics_add_up);
    ADD_FOR_STORES(group, lateness_is_measured);
    ADD_FOR_STORES(group, the_figures_are_in_the_metrics);
    ADD_FOR_STORES(group, queues_have_names);
    ADD_FOR_STORES(group, bad_urls_are_told);
    ADD_FOR_STORES(group, null_is_an_argument_that_is_refused);
}

int main(void)
{
    return stores_main("host", fill_suite);
}
