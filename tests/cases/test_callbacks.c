/* test_callbacks.c - what callbacks may do and what their errors do: P-24 to P-28.
 *
 * Everything in the API may be called from a callback; new work belongs to the next pass;
 * a callback that fails, blocks or stops the scheduler harms no other. */
/* tiers: quick full soak */
/* valgrind */
#include "../support/support.h"

#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* -- P-24 -------------------------------------------------------------------------- */

struct rearming {
    lapse *s;
    lapse_ns delay;
    atomic_int runs;
};

static lapse_verdict rearm_self(const lapse_order *order, void *arg)
{
    struct rearming *a = arg;
    atomic_fetch_add(&a->runs, 1);
    int64_t result = lapse_schedule(a->s, order->id, a->delay, rearm_self, a);
    if (result < 0 && result != LAPSE_ECLOSED)
        complain("re-arming: %s", lapse_error_detail());
    return LAPSE_DONE;
}

START_TEST(p24_new_work_belongs_to_the_next_pass)
{
    const lapse_ns delays[] = {0, -5, LAPSE_SECONDS(-5)};
    for (size_t d = 0; d < 3; d++) {
        rig r = rig_manual(_i, START, NULL);
        tape ran;
        tape_open(&ran, r.s);
        struct rearming a = {.s = r.s, .delay = delays[d]};
        ck_assert_int_gt(lapse_schedule(r.s, "a", a.delay, rearm_self, &a), 0);
        ck_assert_int_gt(lapse_schedule(r.s, "b", LAPSE_MS(20), tape_note, &ran), 0);
        for (int ms = 0; ms < 40; ms++) {
            int before = atomic_load(&a.runs);
            int64_t others = (int64_t)tape_count(&ran);
            int64_t in_pass = advance_once(&r, ms == 0 ? 0 : LAPSE_MS(1));
            ck_assert_int_eq(atomic_load(&a.runs), before + 1);
            ck_assert_int_eq(in_pass, 1 + (int64_t)tape_count(&ran) - others);
            ck_assert_uint_eq(tape_count(&ran), ms >= 20);
        }
        tape_close(&ran);
        rig_close(&r);
    }
}
END_TEST

START_TEST(p24_stop_and_others_get_through)
{
    rig r = rig_real(_i, NULL);
    tape ran;
    tape_open(&ran, r.s);
    struct rearming a = {.s = r.s, .delay = 0}, c = {.s = r.s, .delay = -5};
    lapse_ns start = boot_now();
    ck_assert_int_eq(lapse_start(r.s, 1), 0);
    ck_assert_int_gt(lapse_schedule(r.s, "a", 0, rearm_self, &a), 0);
    ck_assert_int_gt(lapse_schedule(r.s, "c", -5, rearm_self, &c), 0);
    ck_assert_int_gt(lapse_schedule(r.s, "b", LAPSE_MS(20), tape_note, &ran), 0);
    ck_assert(tape_wait(&ran, 1));
    ck_assert(until_at_least(&a.runs, 2));
    ck_assert(until_at_least(&c.runs, 2));
    ck_assert_int_eq(lapse_close(r.s, LIMIT), 0);
    lapse_ns elapsed = boot_now() - start;
    if (r.tick > 0) {
        ck_assert_int_le(atomic_load(&a.runs), elapsed / r.tick + 2);
        ck_assert_int_le(atomic_load(&c.runs), elapsed / r.tick + 2);
    }
    tape_close(&ran);
    check_calm();
}
END_TEST

/* -- P-25: beside a plain list ----------------------------------------------------- */

/* The script is a pure function of an order's id and how often that id has run, so that
 * the scheduler and the list play the same one. */
enum { PLAYERS = 1000, IDS = 8 * PLAYERS };

struct stage; /* Where the script is played: the scheduler or the list. */
struct stage_ops {
    bool (*schedule)(struct stage *st, int id, lapse_ns delay);
    bool (*cancel)(struct stage *st, int id);
    bool (*reschedule)(struct stage *st, int id, lapse_ns delay);
};

struct stage {
    const struct stage_ops *ops;
    rig r;        /* of the scheduler */
    lapse_ns now; /* of the list */
    uint64_t seed;
    int next_id;
    int runs[IDS];
    struct played {
        int id;
        lapse_ns at;
        bool answers[3];
    } * played;
    size_t played_count;
    struct entry { /* of the list; in order of acceptance */
        lapse_ns due;
        int id;
        bool gone;
    } * entries;
    size_t entry_count;
    bool in_pass;
    lapse_ns tick;
};

enum { PLAYED_MAX = 64 * PLAYERS };

static void play(struct stage *st, int id, lapse_ns now)
{
    rng luck = {st->seed + (uint64_t)id * 1000003 + (uint64_t)st->runs[id]++};
    ck_assert_uint_lt(st->played_count, PLAYED_MAX);
    struct played *p = &st->played[st->played_count++];
    *p = (struct played){.id = id, .at = now};
    int neighbour = id == 0 ? 1 : id - 1;
    lapse_ns anywhere = LAPSE_MS(rng_range(&luck, 0, 300));
    switch (st->runs[id] > 4 ? 6 : rng_next(&luck) % 7) {
    case 0:
        p->answers[0] = st->ops->schedule(st, id, 0);
        break;
    case 1:
        p->answers[0] = st->ops->schedule(st, id, LAPSE_MS(7));
        break;
    case 2:
        p->answers[0] = st->ops->schedule(st, id, LAPSE_MS(500));
        break;
    case 3:
        for (int i = 0; i < 3 && st->next_id < IDS; i++)
            p->answers[i] = st->ops->schedule(st, st->next_id++, anywhere);
        break;
    case 4:
        p->answers[0] = st->ops->cancel(st, neighbour);
        break;
    case 5:
        p->answers[0] = st->ops->reschedule(st, neighbour, anywhere);
        break;
    default:
        break; /* just run */
    }
}

static lapse_verdict play_order(const lapse_order *order, void *arg)
{
    struct stage *st = arg;
    play(st, atoi(order->id), lapse_now(st->r.s));
    return LAPSE_DONE;
}

static bool real_schedule(struct stage *st, int id, lapse_ns delay)
{
    char text[12];
    snprintf(text, sizeof text, "%d", id);
    int64_t result = lapse_schedule(st->r.s, text, delay, play_order, st);
    ck_assert(result > 0 || result == LAPSE_EEXISTS);
    return result > 0;
}

static bool real_cancel(struct stage *st, int id)
{
    char text[12];
    snprintf(text, sizeof text, "%d", id);
    return lapse_cancel(st->r.s, text, LAPSE_ANY) == LAPSE_FATE_CANCELLED;
}

static bool real_reschedule(struct stage *st, int id, lapse_ns delay)
{
    char text[12];
    snprintf(text, sizeof text, "%d", id);
    return lapse_reschedule(st->r.s, text, LAPSE_ANY, delay) == LAPSE_FATE_RESCHEDULED;
}

static struct entry *list_find(struct stage *st, int id)
{
    for (size_t i = st->entry_count; i > 0; i--)
        if (st->entries[i - 1].id == id && !st->entries[i - 1].gone)
            return &st->entries[i - 1];
    return NULL;
}

static void list_append(struct stage *st, int id, lapse_ns delay)
{
    ck_assert_uint_lt(st->entry_count, PLAYED_MAX);
    lapse_ns due = st->now + delay;
    if (st->in_pass && due == st->now)
        due++; /* What a callback schedules belongs to the next instant. */
    if (st->tick > 0)
        due = (due + st->tick - 1) / st->tick * st->tick;
    st->entries[st->entry_count++] = (struct entry){due, id, false};
}

static bool list_schedule(struct stage *st, int id, lapse_ns delay)
{
    if (list_find(st, id) != NULL)
        return false;
    list_append(st, id, delay);
    return true;
}

static bool list_cancel(struct stage *st, int id)
{
    struct entry *e = list_find(st, id);
    if (e != NULL)
        e->gone = true;
    return e != NULL;
}

static bool list_reschedule(struct stage *st, int id, lapse_ns delay)
{
    bool found = list_cancel(st, id);
    if (found)
        list_append(st, id, delay);
    return found;
}

/* The least due entry, the earliest accepted among equals. */
static struct entry *list_next(struct stage *st)
{
    struct entry *best = NULL;
    for (size_t i = 0; i < st->entry_count; i++) {
        struct entry *e = &st->entries[i];
        if (!e->gone && e->due <= st->now && (best == NULL || e->due < best->due))
            best = e;
    }
    return best;
}

static int64_t list_pass(struct stage *st)
{
    int64_t ran = 0;
    st->in_pass = true;
    for (struct entry *e; (e = list_next(st)) != NULL; ran++) {
        e->gone = true;
        play(st, e->id, st->now);
    }
    st->in_pass = false;
    return ran;
}

static const struct stage_ops real_ops = {real_schedule, real_cancel, real_reschedule};
static const struct stage_ops list_ops = {list_schedule, list_cancel, list_reschedule};

static struct stage *stage_open(const struct stage_ops *ops, uint64_t seed, lapse_ns tick)
{
    struct stage *st = calloc(1, sizeof *st);
    ck_assert_ptr_nonnull(st);
    st->ops = ops;
    st->seed = seed;
    st->tick = tick;
    st->now = START;
    st->next_id = PLAYERS;
    st->played = calloc(PLAYED_MAX, sizeof *st->played);
    st->entries = calloc(PLAYED_MAX, sizeof *st->entries);
    ck_assert(st->played != NULL && st->entries != NULL);
    for (int i = 0; i < PLAYERS && ops == &list_ops; i++)
        list_schedule(st, i, LAPSE_MS(50));
    return st;
}

static void stage_close(struct stage *st)
{
    free(st->played);
    free(st->entries);
    free(st);
}

static void compare_stages(const struct stage *a, const struct stage *b)
{
    size_t count = a->played_count < b->played_count ? a->played_count : b->played_count;
    for (size_t i = 0; i < count; i++) {
        const struct played *x = &a->played[i], *y = &b->played[i];
        ck_assert_msg(x->id == y->id && x->at == y->at &&
                          memcmp(x->answers, y->answers, sizeof x->answers) == 0,
                      "run %zu: order %d at %" PRId64 ", the list has %d at %" PRId64, i, x->id,
                      x->at - START, y->id, y->at - START);
    }
    ck_assert_uint_eq(a->played_count, b->played_count);
}

START_TEST(p25_callbacks_change_what_is_being_walked)
{
    rng luck = rng_open("p25_callbacks_change_what_is_being_walked");
    for (long round = 0; round < tier(2, 20, 500); round++) {
        uint64_t seed = rng_next(&luck);
        rig r = rig_manual(_i, START, NULL);
        struct stage *real = stage_open(&real_ops, seed, r.tick);
        struct stage *list = stage_open(&list_ops, seed, r.tick);
        real->r = r;
        for (int i = 0; i < PLAYERS; i++)
            ck_assert(real_schedule(real, i, LAPSE_MS(50)));
        for (int ms = 0; ms < 5000; ms += 25) {
            ck_assert_int_eq(lapse_clock_advance(r.clock, LAPSE_MS(25)), 0);
            list->now += LAPSE_MS(25);
            int64_t in_real, in_list;
            do {
                in_real = lapse_process(r.s, 0);
                in_list = list_pass(list);
                ck_assert_int_eq(in_real, in_list);
            } while (in_list > 0);
        }
        compare_stages(real, list);
        ck_assert_uint_gt(real->played_count, PLAYERS / 2);
        stage_close(list);
        stage_close(real);
        rig_close(&r);
    }
}
END_TEST

/* -- P-26 -------------------------------------------------------------------------- */

struct answers {
    rig *r;
    int count;
    int64_t got[8];
    int runs;
};

static void answer(struct answers *a, int64_t value)
{
    if (a->count < 8)
        a->got[a->count++] = value;
}

static lapse_verdict cancel_self(const lapse_order *order, void *arg)
{
    struct answers *a = arg;
    a->runs++;
    answer(a, lapse_cancel(a->r->s, order->id, LAPSE_ANY));
    answer(a, lapse_cancel(a->r->s, order->id, order->generation));
    return lapse_retry(order, 0, NULL);
}

START_TEST(p26_cancel_self)
{
    rig r = rig_manual(_i, START, NULL);
    struct answers a = {.r = &r};
    ck_assert_int_gt(lapse_schedule(r.s, "s", LAPSE_MS(10), cancel_self, &a), 0);
    advance(&r, LAPSE_MS(100));
    advance(&r, LAPSE_HOURS(2));
    ck_assert_int_eq(a.got[0], LAPSE_FATE_RUNNING);
    ck_assert_int_eq(a.got[1], LAPSE_FATE_RUNNING);
    ck_assert_int_eq(a.runs, 1);
    rig_close(&r);
}
END_TEST

static lapse_verdict rearm_then_cancel(const lapse_order *order, void *arg)
{
    struct answers *a = arg;
    a->runs++;
    answer(a, lapse_reschedule(a->r->s, order->id, LAPSE_ANY, LAPSE_MS(10)));
    answer(a, lapse_schedule(a->r->s, order->id, LAPSE_MS(10), rearm_then_cancel, a) > 0);
    answer(a, lapse_cancel(a->r->s, order->id, LAPSE_ANY));
    return LAPSE_DONE;
}

START_TEST(p26_rearm_self_then_cancel)
{
    rig r = rig_manual(_i, START, NULL);
    struct answers a = {.r = &r};
    ck_assert_int_gt(lapse_schedule(r.s, "u", LAPSE_MS(10), rearm_then_cancel, &a), 0);
    advance(&r, LAPSE_MS(10));
    advance(&r, LAPSE_HOURS(2));
    ck_assert_int_eq(a.got[0], LAPSE_FATE_RUNNING);
    ck_assert_int_eq(a.got[1], true);
    ck_assert_int_eq(a.got[2], LAPSE_FATE_CANCELLED);
    ck_assert_int_eq(a.runs, 1);
    ck_assert_uint_eq(pending_in(r.s), 0);
    rig_close(&r);
}
END_TEST

static lapse_verdict stop_inside(const lapse_order *order, void *arg)
{
    struct answers *a = arg;
    (void)order;
    a->runs++;
    answer(a, lapse_stop(a->r->s));
    answer(a, lapse_stop(a->r->s));
    answer(a, lapse_schedule(a->r->s, "late", 0, never, NULL));
    answer(a, lapse_close(a->r->s, 0));
    return LAPSE_DONE;
}

static void expect_stopped_inside(const struct answers *a)
{
    ck_assert_int_eq(a->got[0], 0);
    ck_assert_int_eq(a->got[1], 0);
    ck_assert_int_eq(a->got[2], LAPSE_ECLOSED);
    ck_assert_int_eq(a->got[3], LAPSE_EINCALLBACK);
}

START_TEST(p26_stop_inside)
{
    rig r = rig_manual(_i, START, NULL);
    struct answers a = {.r = &r};
    ck_assert_int_gt(lapse_schedule(r.s, "first", LAPSE_MS(10), stop_inside, &a), 0);
    ck_assert_int_gt(lapse_schedule(r.s, "second", LAPSE_MS(10), never, NULL), 0);
    ck_assert_int_eq(lapse_clock_advance(r.clock, LAPSE_MS(20)), 0);
    ck_assert_int_eq(lapse_process(r.s, 0), 1);
    expect_stopped_inside(&a);
    ck_assert_int_eq(lapse_process(r.s, 0), LAPSE_ECLOSED);
    ck_assert_uint_eq(pending_in(r.s), 1);
    rig_close(&r);
}
END_TEST

START_TEST(p26_stop_inside_our_own_thread)
{
    rig r = rig_real(_i, NULL);
    struct answers a = {.r = &r};
    ck_assert_int_gt(lapse_schedule(r.s, "first", 0, stop_inside, &a), 0);
    ck_assert_int_eq(lapse_run(r.s), 0);
    expect_stopped_inside(&a);
    rig_close(&r);
    r = rig_real(_i, NULL);
    a = (struct answers){.r = &r};
    int before = idle_threads();
    ck_assert_int_eq(lapse_start(r.s, 2), 0);
    ck_assert_int_gt(lapse_schedule(r.s, "first", 0, stop_inside, &a), 0);
    while (lapse_wait(r.s, LAPSE_FOREVER) == 1) /* Due, and not yet run by the threads. */
        sched_yield();
    ck_assert_int_eq(lapse_wait(r.s, LAPSE_FOREVER), LAPSE_ECLOSED);
    rig_close(&r);
    expect_stopped_inside(&a);
    ck_assert(until_threads(before));
}
END_TEST

/* Another scheduler may be closed inside a callback. */
static lapse_verdict close_other(const lapse_order *order, void *arg)
{
    lapse *other = arg;
    (void)order;
    if (lapse_close(other, LIMIT) != 0)
        complain("closing another: %s", lapse_error_detail());
    return LAPSE_DONE;
}

START_TEST(p26_close_another_inside)
{
    rig r = rig_manual(_i, START, NULL);
    atomic_int released = 0;
    lapse_options options = {.release = count_release};
    lapse *other;
    ck_assert_int_eq(lapse_open(engine_url(_i), &options, &other), 0);
    ck_assert_int_gt(lapse_schedule(other, "o", LAPSE_HOURS(1), never, &released), 0);
    ck_assert_int_gt(lapse_schedule(r.s, "o", 0, close_other, other), 0);
    advance(&r, 0);
    ck_assert_int_eq(atomic_load(&released), 1);
    rig_close(&r);
}
END_TEST

/* The order is the callback's until it returns, whatever happened to its id meanwhile. */
static lapse_verdict replace_then_read(const lapse_order *order, void *arg)
{
    rig *r = arg;
    lapse_spec spec = {
        .id = order->id, .delay = LAPSE_HOURS(1), .fn = never, .flags = LAPSE_REPLACE};
    for (int i = 0; i < 100; i++)
        if (lapse_put(r->s, &spec) <= 0)
            complain("%s", lapse_error_detail());
    lapse_cancel(r->s, order->id, LAPSE_ANY);
    if (strcmp(order->id, "OID00000010") != 0 || order->payload_len != 3 ||
        memcmp(order->payload, "abc", 3) != 0 || strcmp(order->queue, "q") != 0)
        complain("the order changed under its callback");
    return LAPSE_DONE;
}

START_TEST(p26_the_order_lives_until_the_callback_returns)
{
    rig r = rig_manual(_i, START, NULL);
    lapse_spec spec = {.id = "OID00000010",
                       .queue = "q",
                       .payload = "abc",
                       .payload_len = 3,
                       .fn = replace_then_read,
                       .arg = &r};
    ck_assert_int_gt(lapse_put(r.s, &spec), 0);
    advance(&r, 0);
    ck_assert_uint_eq(pending_in(r.s), 0);
    rig_close(&r);
}
END_TEST

/* -- P-27 -------------------------------------------------------------------------- */

struct stuck {
    gate entered, go_on;
};

static lapse_verdict hang(const lapse_order *order, void *arg)
{
    struct stuck *g = arg;
    gate_open(&g->entered);
    if (!gate_pass(&g->go_on))
        complain("%s was never let go", order->id);
    return LAPSE_DONE;
}

START_TEST(p27_one_stuck_callback_blocks_no_other_worker)
{
    enum { SHORT = 1000 };
    rig r = rig_real(_i, NULL);
    struct stuck g;
    gate_init(&g.entered);
    gate_init(&g.go_on);
    atomic_int runs = 0;
    ck_assert_int_eq(lapse_start(r.s, 4), 0);
    ck_assert_int_gt(lapse_schedule(r.s, "stuck order", 0, hang, &g), 0);
    ck_assert(gate_pass(&g.entered));
    for (int i = 0; i < SHORT; i++) {
        char id[8];
        snprintf(id, sizeof id, "%d", i);
        ck_assert_int_gt(lapse_schedule(r.s, id, LAPSE_MS(5), count_run, &runs), 0);
    }
    ck_assert(until_at_least(&runs, SHORT));
    ck_assert_int_eq(lapse_close(r.s, LAPSE_MS(10)), LAPSE_ETIMEOUT);
    ck_assert_msg(strstr(lapse_error_detail(), "stuck order") != NULL, "the detail is: %s",
                  lapse_error_detail());
    ck_assert_int_eq(lapse_schedule(r.s, "more", 0, never, NULL), LAPSE_ECLOSED);
    ck_assert_uint_eq(stats_of(r.s).running, 1);
    gate_open(&g.go_on);
    rig_close(&r);
    gate_destroy(&g.entered);
    gate_destroy(&g.go_on);
}
END_TEST

START_TEST(p27_a_single_worker_lets_the_others_wait)
{
    rig r = rig_manual(_i, START, NULL);
    struct stuck g;
    gate_init(&g.entered);
    gate_init(&g.go_on);
    tape ran;
    tape_open(&ran, r.s);
    ck_assert_int_gt(lapse_schedule(r.s, "stuck", 0, hang, &g), 0);
    ck_assert_int_gt(lapse_schedule(r.s, "next", 0, tape_note, &ran), 0);
    ck_assert_int_eq(lapse_start(r.s, 1), 0);
    ck_assert(gate_pass(&g.entered));
    ck_assert(until_others_sleep());
    ck_assert_uint_eq(tape_count(&ran), 0);
    ck_assert_int_eq(lapse_cancel(r.s, "stuck", LAPSE_ANY), LAPSE_FATE_RUNNING);
    gate_open(&g.go_on);
    ck_assert(tape_wait(&ran, 1));
    tape_close(&ran);
    rig_close(&r);
    gate_destroy(&g.entered);
    gate_destroy(&g.go_on);
}
END_TEST

/* -- P-28 -------------------------------------------------------------------------- */

struct errors {
    lapse *s;
    int count;
    int wrong; /* reports with another text or id than expected */
};

static lapse_verdict fail_odd(const lapse_order *order, void *arg)
{
    int *ok = arg;
    if (atoi(order->id) % 2 == 0) {
        (*ok)++;
        return LAPSE_DONE;
    }
    return atoi(order->id) % 4 == 1 ? LAPSE_FAIL : lapse_fail(order, "no stock");
}

static void on_error(void *hook_arg, const lapse_order *order, const char *error)
{
    struct errors *e = hook_arg;
    e->count++;
    bool named = atoi(order->id) % 4 == 1 || (error != NULL && strcmp(error, "no stock") == 0);
    e->wrong += atoi(order->id) % 2 == 0 || !named;
    lapse_stats stats; /* The hook may call the library. */
    e->wrong += lapse_statistics(e->s, &stats) != 0;
}

START_TEST(p28_errors_stop_nothing)
{
    struct errors e = {0};
    lapse_options options = {.hook_arg = &e, .on_error = on_error};
    rig r = rig_manual(_i, START, &options);
    int ok = 0;
    e.s = r.s;
    for (int i = 0; i < 1000; i++) {
        char id[8];
        snprintf(id, sizeof id, "%d", i);
        ck_assert_int_gt(lapse_schedule(r.s, id, LAPSE_MS(50), fail_odd, &ok), 0);
    }
    advance(&r, LAPSE_MS(60));
    ck_assert_int_eq(ok, 500);
    ck_assert_int_eq(e.count, 500);
    ck_assert_int_eq(e.wrong, 0);
    ck_assert_uint_eq(stats_of(r.s).failed, 500);
    ck_assert_uint_eq(pending_in(r.s), 0); /* A callable has one attempt. */
    ck_assert_int_gt(lapse_schedule(r.s, "1000", LAPSE_MS(50), fail_odd, &ok), 0);
    advance(&r, LAPSE_MS(60));
    ck_assert_int_eq(ok, 501);
    rig_close(&r);
}
END_TEST

/* An error text may be long or odd; it is copied, clipped and ends. */
static lapse_verdict fail_with_long_text(const lapse_order *order, void *arg)
{
    char text[5000];
    (void)arg;
    memset(text, 0xe9, sizeof text - 1);
    text[sizeof text - 1] = '\0';
    return lapse_fail(order, text);
}

static void note_length(void *hook_arg, const lapse_order *order, const char *error)
{
    (void)order;
    *(size_t *)hook_arg = strlen(error);
}

START_TEST(p28_error_texts_are_clipped)
{
    size_t length = 0;
    lapse_options options = {.hook_arg = &length, .on_error = note_length};
    rig r = rig_manual(_i, START, &options);
    ck_assert_int_gt(lapse_schedule(r.s, "o", 0, fail_with_long_text, NULL), 0);
    advance(&r, 0);
    ck_assert_uint_gt(length, 0);
    ck_assert_uint_le(length, 1000);
    rig_close(&r);
}
END_TEST

/* A verdict that does not exist is a failure, not a wild jump. */
static lapse_verdict nonsense(const lapse_order *order, void *arg)
{
    (void)order, (void)arg;
    int value = 77;
    lapse_verdict verdict;
    memcpy(&verdict, &value, sizeof verdict);
    return verdict;
}

START_TEST(p28_an_unknown_verdict_is_a_failure)
{
    struct errors e = {0};
    lapse_options options = {.hook_arg = &e, .on_error = on_error};
    rig r = rig_manual(_i, START, &options);
    e.s = r.s;
    ck_assert_int_gt(lapse_schedule(r.s, "1", 0, nonsense, NULL), 0);
    advance(&r, 0);
    advance(&r, LAPSE_HOURS(2));
    ck_assert_int_eq(e.count, 1);
    ck_assert_uint_eq(stats_of(r.s).failed, 1);
    ck_assert_uint_eq(pending_in(r.s), 0);
    rig_close(&r);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("callbacks");
    TCase *group = add_group(suite, "P-24 to P-28");
    ADD_FOR_ENGINES(group, p24_new_work_belongs_to_the_next_pass);
    ADD_FOR_ENGINES(group, p24_stop_and_others_get_through);
    ADD_FOR_ENGINES(group, p25_callbacks_change_what_is_being_walked);
    ADD_FOR_ENGINES(group, p26_cancel_self);
    ADD_FOR_ENGINES(group, p26_rearm_self_then_cancel);
    ADD_FOR_ENGINES(group, p26_stop_inside);
    ADD_FOR_ENGINES(group, p26_stop_inside_our_own_thread);
    ADD_FOR_ENGINES(group, p26_close_another_inside);
    ADD_FOR_ENGINES(group, p26_the_order_lives_until_the_callback_returns);
    ADD_FOR_ENGINES(group, p27_one_stuck_callback_blocks_no_other_worker);
    ADD_FOR_ENGINES(group, p27_a_single_worker_lets_the_others_wait);
    ADD_FOR_ENGINES(group, p28_errors_stop_nothing);
    ADD_FOR_ENGINES(group, p28_error_texts_are_clipped);
    ADD_FOR_ENGINES(group, p28_an_unknown_verdict_is_a_failure);
    return run_suite(suite);
}
