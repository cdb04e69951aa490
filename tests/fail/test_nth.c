/* test_nth.c - every public call with its n-th allocation failing, for every n. */
/* link: -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=free,--wrap=strdup,--wrap=mmap,--wrap=munmap,--wrap=open_memstream,--wrap=timerfd_create,--wrap=pthread_create,--wrap=getrandom */
/* valgrind */
/* Each call is made in a world of its own with the first, then the second, ... of its
 * allocations refused, until it makes none that is. A call that was refused one answers
 * LAPSE_ENOMEM and has changed nothing, and the same call works when it is made again; or
 * it does without, where the header says what it then leaves out. Each is done twice:
 * with one allocation refused, and with all from it on. */
#include "fail/world.h"

/* A call to be made in a world. */
typedef struct scene {
    const char *name;
    void (*prepare)(world *w);
    int64_t (*call)(world *w); /* below 0: an error */
    void (*without)(world *w); /* what holds when it succeeded all the same */
    int least;                 /* allocations that it makes, at least */
} scene;

static const unsigned char payload[300] = {7, 0, 9};

/* The token of the call itself: given with `arg` where a call takes one. */
static token *own(world *w)
{
    return &w->tokens[TOKENS - 1];
}

static int64_t put_own(world *w, lapse_spec spec)
{
    spec.arg = own(w);
    return noted(own(w), lapse_put(w->r.s, &spec));
}

static int dead_letters(world *w)
{
    return (int)stats_of(w->r.s).dead;
}

static lapse_state state_of(world *w, const char *id)
{
    lapse_info info;
    ck_assert_msg(lapse_get(w->r.s, id, &info) == 0, "%s: %s", id, lapse_error_detail());
    lapse_state state = info.state;
    lapse_info_free(&info);
    return state;
}

/* To prepare a world that has nothing else. */
static void one_order(world *w)
{
    put(w, (lapse_spec){.id = "only", .delay = LAPSE_HOURS(1), .fn = run_token});
}

/* -- Schedule ---------------------------------------------------------------------- */

static int64_t schedule_short(world *w)
{
    return noted(own(w), lapse_schedule(w->r.s, "new", LAPSE_HOURS(1), run_token, own(w)));
}

static int64_t schedule_long(world *w)
{
    return noted(own(w), lapse_schedule(w->r.s, "a-new-order/with-an-id-of-its-own-memory",
                                        LAPSE_HOURS(1), run_token, own(w)));
}

static int64_t schedule_at(world *w)
{
    return noted(own(w), lapse_schedule_at(w->r.s, "a-new-order/for-an-instant-in-the-past", 0,
                                           run_token, own(w)));
}

static int64_t schedule_over_kept(world *w)
{
    return noted(own(w), lapse_schedule(w->r.s, "kept", LAPSE_HOURS(1), run_token, own(w)));
}

static int64_t schedule_over_dead(world *w)
{
    return noted(own(w), lapse_schedule(w->r.s, LONG_DEAD, LAPSE_HOURS(1), run_token, own(w)));
}

static int64_t schedule_over_running(world *w)
{
    return noted(own(w), lapse_schedule(w->r.s, LONG_HELD, LAPSE_HOURS(1), run_token, own(w)));
}

static int64_t put_loaded(world *w)
{
    return put_own(w, (lapse_spec){.id = "a-new-order/with-all-that-one-can-have",
                                   .queue = "a queue of its own",
                                   .delay = LAPSE_HOURS(1),
                                   .payload = payload,
                                   .payload_len = sizeof payload,
                                   .fn = run_token,
                                   .release = release_token});
}

static int64_t put_replacing(world *w)
{
    return put_own(w, (lapse_spec){.id = LONG_ID,
                                   .queue = "handled",
                                   .delay = LAPSE_HOURS(1),
                                   .payload = payload,
                                   .payload_len = sizeof payload,
                                   .flags = LAPSE_REPLACE});
}

static int64_t put_to_pull(world *w)
{
    return put_own(w, (lapse_spec){.id = "new", .queue = "for takers", .delay = LAPSE_HOURS(1)});
}

/* Some memory is only asked for ahead of time. */
static void was_put(world *w)
{
    ck_assert_int_eq(own(w)->accepted, 1);
    ck_assert_int_eq(state_of(w, "new"), LAPSE_STATE_PENDING);
}

static const char *const many_ids[] = {"m0", "many/a-long-id-of-forty-bytes-or-so-0", "m2",
                                       "many/a-long-id-of-forty-bytes-or-so-1"};

/* Works when all four were accepted; else each of the others was refused memory. */
static int64_t schedule_many(world *w)
{
    lapse_spec specs[5] = {{.id = ""}};
    int64_t results[5];
    token *t = own(w);
    for (int i = 0; i < 4; i++) {
        t[i - 4] = (token){0};
        specs[i] = (lapse_spec){.id = many_ids[i],
                                .queue = i < 2 ? "handled" : "many",
                                .payload = payload,
                                .payload_len = i % 2 ? sizeof payload : 0,
                                .delay = LAPSE_HOURS(1),
                                .arg = &t[i - 4]};
    }
    int64_t accepted = lapse_schedule_many(w->r.s, specs, 5, results);
    if (accepted < 0)
        return accepted;
    fail_after = NO_FAILURE;
    ck_assert_int_eq(results[4], LAPSE_EID);
    for (int i = 0; i < 4; i++) {
        noted(&t[i - 4], results[i]);
        if (results[i] > 0)
            ck_assert_int_eq(state_of(w, many_ids[i]), LAPSE_STATE_PENDING);
        else
            ck_assert_int_eq(results[i], LAPSE_ENOMEM);
    }
    return accepted;
}

/* Those that were refused were not put. */
static void some_of_many(world *w)
{
    uint64_t put_now = 0;
    for (int i = 0; i < 4; i++)
        put_now += (uint64_t)own(w)[i - 4].accepted;
    ck_assert_uint_lt(put_now, 4);
    ck_assert_uint_eq(pending_in(w->r.s), 6 + put_now);
}

/* -- Cancel and change: they need no memory ---------------------------------------- */

static int64_t cancel_all(world *w)
{
    static const char *const ids[] = {"short", LONG_ID, "loaded", "to pull", "to handle", "parked",
                                      "held",  "taken", "kept",   "dead",    "unknown",   ""};
    int64_t cancelled = 0;
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) {
        int fate = i % 2 ? lapse_cancel(w->r.s, ids[i], LAPSE_ANY)
                         : lapse_cancel_wait(w->r.s, ids[i], LAPSE_ANY, 0);
        cancelled += fate == LAPSE_FATE_CANCELLED;
    }
    return cancelled == 6 ? 0 : -100;
}

static int64_t reschedule_all(world *w)
{
    static const char *const ids[] = {"short", LONG_ID, "loaded", "to pull", "to handle", "parked"};
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) {
        int fate = lapse_reschedule(w->r.s, ids[i], LAPSE_ANY, LAPSE_DAYS(i));
        if (fate != LAPSE_FATE_RESCHEDULED)
            return -100;
    }
    return 0;
}

/* -- Look -------------------------------------------------------------------------- */

static int64_t get(world *w, const char *id)
{
    lapse_info info;
    memset(&info, 0xa5, sizeof info);
    int code = lapse_get(w->r.s, id, &info);
    fail_after = NO_FAILURE;
    if (code < 0)
        ck_assert(!info.id && !info.queue && !info.payload && !info.error);
    else
        ck_assert_str_eq(info.id, id);
    lapse_info_free(&info);
    return code;
}

static int64_t get_loaded(world *w)
{
    return get(w, "loaded");
}

static int64_t get_dead(world *w)
{
    return get(w, "dead");
}

static int64_t get_running(world *w)
{
    return get(w, LONG_HELD);
}

static bool look(const lapse_info *info, void *arg)
{
    (void)arg;
    return info->id && info->queue;
}

static int64_t each(world *w)
{
    return lapse_each(w->r.s, 0, look, NULL);
}

static int64_t statistics(world *w)
{
    lapse_stats stats;
    lapse_queue_stats queue;
    int code = lapse_statistics(w->r.s, &stats);
    if (code == 0)
        code = lapse_queue_statistics(w->r.s, "handled", &queue);
    return code == 0 && lapse_queue_name(w->r.s, 0) && lapse_abilities(w->r.s) ? 0 : -100;
}

static int64_t metrics(world *w)
{
    char *text = lapse_metrics(w->r.s);
    lapse_free(text);
    return text ? 0 : LAPSE_ENOMEM;
}

/* -- Running callbacks ------------------------------------------------------------- */

static void due(world *w, lapse_verdict verdict, const char *queue, bool own_callback)
{
    use_up_claims(w);
    put(w, (lapse_spec){.id = "due", .queue = queue, .fn = own_callback ? run_token : NULL});
    w->tokens[w->token_count - 1].verdict = verdict;
    w->tokens[0].verdict = verdict; /* The handler's. */
    ck_assert_int_eq(lapse_clock_advance(w->r.clock, LAPSE_MS(2)), 0);
}

static void due_done(world *w)
{
    due(w, LAPSE_DONE, "", true);
}

static void due_retry(world *w)
{
    due(w, LAPSE_RETRY, "", true);
}

static void due_reject(world *w)
{
    due(w, LAPSE_REJECT, "", true);
    w->tokens[w->token_count - 1].error = "no such order";
}

static void due_failing(world *w)
{
    due(w, LAPSE_FAIL, "", true);
}

static void due_given_back(world *w)
{
    due(w, LAPSE_GIVE_BACK, "", true);
}

static void due_for_handler(world *w)
{
    due(w, LAPSE_FAIL, "handled", false);
}

/* It fails once more, and dies. */
static void due_last_time(world *w)
{
    due(w, LAPSE_FAIL, "handled", false);
    w->tokens[0].error = "failed twice";
    ck_assert_int_eq(lapse_process(w->r.s, 0), 1);
    ck_assert_int_eq(lapse_clock_advance(w->r.clock, LAPSE_SECONDS(2)), 0);
}

static void due_too_late(world *w)
{
    handle(w, "fresh", &(lapse_policy){.expires = LAPSE_MS(1)});
    due(w, LAPSE_DONE, "fresh", false);
    ck_assert_int_eq(lapse_clock_advance(w->r.clock, LAPSE_SECONDS(1)), 0);
}

static int64_t process(world *w)
{
    return lapse_process(w->r.s, 0);
}

/* A dead letter that had no memory for its last words, or whose hook was not told. */
static void died(world *w)
{
    ck_assert_int_eq(state_of(w, "due"), LAPSE_STATE_DEAD);
    ck_assert_int_eq(dead_letters(w), 3);
}

static void given_back(world *w)
{
    ck_assert_int_eq(state_of(w, "due"), LAPSE_STATE_PENDING);
    ck_assert_uint_eq(stats_of(w->r.s).given_back, 1);
}

static int64_t begin_due(world *w)
{
    const lapse_order *order;
    lapse_callback fn;
    void *arg;
    int code = lapse_begin(w->r.s, LAPSE_FOREVER, &order, &fn, &arg);
    if (code == 1)
        w->begun[w->begun_count++] = order->fence;
    return code == 0 ? -100 : code;
}

static void due_to_pull(world *w)
{
    use_up_claims(w);
    put(w, (lapse_spec){.id = "due", .queue = "for takers", .payload = payload, .payload_len = 3});
    ck_assert_int_eq(lapse_clock_advance(w->r.clock, LAPSE_MS(2)), 0);
    ck_assert_int_eq(lapse_wait(w->r.s, 0), 0); /* Brings it to its queue. */
}

static int64_t poll_one(world *w)
{
    const lapse_order *order;
    int code = lapse_poll(w->r.s, "for takers", &order);
    return code == 0 ? -100 : code;
}

static int64_t take_any(world *w)
{
    const lapse_order *order;
    int code = lapse_take(w->r.s, NULL, LAPSE_FOREVER, &order);
    return code == 0 ? -100 : code;
}

static int64_t poll_new_queue(world *w)
{
    const lapse_order *order;
    return lapse_poll(w->r.s, "nobody put anything here", &order);
}

static int64_t wait_for_due(world *w)
{
    return lapse_wait(w->r.s, 0);
}

/* -- Settling ---------------------------------------------------------------------- */

static int64_t settle_done(world *w)
{
    return lapse_settle(w->r.s, w->begun[--w->begun_count], LAPSE_DONE, 0, NULL);
}

static int64_t settle_retry(world *w)
{
    return lapse_settle(w->r.s, w->begun[--w->begun_count], LAPSE_RETRY, LAPSE_HOURS(1), "again");
}

static int64_t settle_reject(world *w)
{
    return lapse_settle(w->r.s, w->begun[--w->begun_count], LAPSE_REJECT, 0, "no such order");
}

static void held_died(world *w)
{
    ck_assert_int_eq(state_of(w, LONG_HELD), LAPSE_STATE_DEAD);
    ck_assert_uint_eq(stats_of(w->r.s).dead_by[LAPSE_REASON_REJECTED], 3);
}

/* The callback of the plain one is forgotten with its last words. */
static int64_t settle_plain_reject(world *w)
{
    int64_t fence = w->begun[0];
    w->begun[0] = w->begun[--w->begun_count];
    return lapse_settle(w->r.s, fence, LAPSE_REJECT, 0, "no such order");
}

static void plain_died(world *w)
{
    ck_assert_int_eq(state_of(w, "held"), LAPSE_STATE_DEAD);
    lapse_info info;
    ck_assert_int_eq(lapse_get(w->r.s, "held", &info), 0);
    ck_assert_int_eq(info.reason, LAPSE_REASON_REJECTED);
    bool spoke = info.error != NULL;
    lapse_info_free(&info);
    int64_t again = lapse_requeue(w->r.s, "held", LAPSE_ANY, LAPSE_HOURS(1));
    ck_assert_msg(again > 0 || (again == LAPSE_EUNSUPPORTED && !spoke), "%s", lapse_error_detail());
}

static int64_t settle_give_back(world *w)
{
    int64_t fence = w->begun[0];
    w->begun[0] = w->begun[--w->begun_count];
    return lapse_settle(w->r.s, fence, LAPSE_GIVE_BACK, 0, NULL);
}

static void held_waits(world *w)
{
    ck_assert_int_eq(state_of(w, "held"), LAPSE_STATE_PENDING);
}

static int64_t settle_taken(world *w)
{
    int64_t fence = w->taken;
    if (!lapse_holds(w->r.s, fence))
        return -100;
    int code = lapse_renew(w->r.s, fence, LAPSE_MINUTES(1));
    return code < 0 ? code : lapse_settle(w->r.s, fence, LAPSE_GIVE_BACK, 0, NULL);
}

/* -- Losing ------------------------------------------------------------------------ */

static int64_t lease_ends(world *w)
{
    lapse_clock_advance(w->r.clock, LAPSE_SECONDS(31));
    return lapse_process(w->r.s, 0);
}

/* Without memory to go on with, the order stays with its consumer a second longer. */
static void taken_goes_on(world *w)
{
    ck_assert_int_eq(state_of(w, "taken"), LAPSE_STATE_RUNNING);
    ck_assert_uint_eq(stats_of(w->r.s).lost, 0);
    ck_assert_int_eq(lapse_clock_advance(w->r.clock, LAPSE_SECONDS(1)), 0);
    ck_assert_int_eq(lapse_process(w->r.s, 0), 0);
    ck_assert_int_eq(state_of(w, "taken"), LAPSE_STATE_PENDING);
    ck_assert_uint_eq(stats_of(w->r.s).lost, 1);
}

static void hangs(world *w)
{
    handle(w, "once", &(lapse_policy){.attempts = 1, .run_limit = LAPSE_SECONDS(10)});
    put(w, (lapse_spec){.id = "hanging", .queue = "once", .payload = payload, .payload_len = 9});
    begin_and_hold(w);
}

static int64_t run_limit_ends(world *w)
{
    lapse_clock_advance(w->r.clock, LAPSE_SECONDS(11));
    lapse_process(w->r.s, 0); /* Nothing is due; it looks after the claims. */
    int settled = lapse_settle(w->r.s, w->begun[--w->begun_count], LAPSE_DONE, 0, NULL);
    return settled == LAPSE_ESTALE ? 0 : settled;
}

/* Lost, and dead with or without its last words; or not lost for want of memory, and done. */
static void hanging_ended(world *w)
{
    lapse_stats t = stats_of(w->r.s);
    ck_assert_int_eq(state_of(w, "hanging"), t.lost ? LAPSE_STATE_DEAD : LAPSE_STATE_DONE);
    ck_assert_uint_eq(t.dead_by[LAPSE_REASON_LOST], t.lost);
}

/* -- Queues, dead letters, the rest ------------------------------------------------- */

static int64_t handle_own(world *w, const char *queue)
{
    int code = lapse_handle(w->r.s, queue, run_token, own(w), release_token, NULL);
    own(w)->accepted += code == 0;
    return code;
}

static int64_t handle_new(world *w)
{
    return handle_own(w, "a queue of its own");
}

static int64_t handle_anew(world *w)
{
    return handle_own(w, "handled");
}

static int64_t handle_no_more(world *w)
{
    return lapse_handle(w->r.s, "handled", NULL, NULL, NULL, NULL);
}

static int64_t pause_new(world *w)
{
    return lapse_pause(w->r.s, "a queue of its own");
}

static int64_t pause_and_resume(world *w)
{
    int code = lapse_pause(w->r.s, "handled");
    return code < 0 ? code : lapse_resume(w->r.s, "paused");
}

/* Its name is another's in the index by now. */
static void dead_without_a_name(world *w)
{
    put(w, (lapse_spec){.id = "dead", .fn = run_token});
    begin_and_settle(w, LAPSE_DONE, NULL);
}

static int64_t requeue(world *w)
{
    return lapse_requeue(w->r.s, "dead", LAPSE_ANY, LAPSE_HOURS(1));
}

static int64_t purge(world *w)
{
    return lapse_purge(w->r.s, NULL, LAPSE_ANY) == 2 ? 0 : -100;
}

static int64_t look_at_time(world *w)
{
    lapse_ns timeout = lapse_timeout(w->r.s);
    int fd = lapse_fd(w->r.s);
    int moved = lapse_clock_advance(w->r.clock, 1);
    return timeout > 0 && fd >= 0 && lapse_now(w->r.s) > 0 ? moved : -100;
}

static int64_t start_three(world *w)
{
    return lapse_start(w->r.s, 3);
}

static int64_t stop(world *w)
{
    return lapse_stop(w->r.s);
}

static int64_t make_clock(world *w)
{
    (void)w;
    lapse_clock *clock;
    int code = lapse_clock_manual(0, &clock);
    if (code < 0 && clock)
        return -100;
    lapse_clock_free(clock);
    return code;
}

static const scene scenes[] = {
    {"schedule", NULL, schedule_short, NULL, 0},
    {"schedule a long id", NULL, schedule_long, NULL, 1},
    {"schedule_at", NULL, schedule_at, NULL, 1},
    {"schedule over a kept one", NULL, schedule_over_kept, NULL, 0},
    {"schedule over a dead letter", NULL, schedule_over_dead, NULL, 1},
    {"schedule over a running one", NULL, schedule_over_running, NULL, 1},
    {"put with everything", NULL, put_loaded, NULL, 5},
    {"put that replaces", NULL, put_replacing, NULL, 2},
    {"put for takers", NULL, put_to_pull, NULL, 1},
    {"schedule_many", NULL, schedule_many, some_of_many, 8},
    {"cancel", NULL, cancel_all, NULL, 0},
    {"reschedule", NULL, reschedule_all, NULL, 0},
    {"get", NULL, get_loaded, NULL, 3},
    {"get a dead letter", NULL, get_dead, NULL, 4},
    {"get a running one", NULL, get_running, NULL, 2},
    {"each", NULL, each, NULL, 20},
    {"statistics", NULL, statistics, NULL, 0},
    {"metrics", NULL, metrics, NULL, 1},
    {"process: done", due_done, process, NULL, 1},
    {"process: retry", due_retry, process, NULL, 1},
    {"process: reject", due_reject, process, died, 5},
    {"process: failed", due_failing, process, NULL, 1},
    {"process: given back", due_given_back, process, given_back, 2},
    {"process: handler failed", due_for_handler, process, NULL, 1},
    {"process: failed for good", due_last_time, process, died, 3},
    {"process: expired", due_too_late, process, died, 3},
    {"begin", due_done, begin_due, NULL, 1},
    {"poll", due_to_pull, poll_one, NULL, 1},
    {"poll a new queue", NULL, poll_new_queue, NULL, 3},
    {"take", due_to_pull, take_any, NULL, 1},
    {"wait", due_done, wait_for_due, NULL, 0},
    {"settle: done", NULL, settle_done, NULL, 0},
    {"settle: retry", NULL, settle_retry, NULL, 0},
    {"settle: reject", NULL, settle_reject, held_died, 3},
    {"settle: reject a plain one", NULL, settle_plain_reject, plain_died, 4},
    {"settle: give back", NULL, settle_give_back, held_waits, 1},
    {"settle what was taken", NULL, settle_taken, NULL, 0},
    {"a lease ends", NULL, lease_ends, taken_goes_on, 1},
    {"a run limit ends", hangs, run_limit_ends, hanging_ended, 3},
    {"handle", NULL, handle_new, NULL, 4},
    {"handle anew", NULL, handle_anew, NULL, 1},
    {"handle no more", NULL, handle_no_more, NULL, 0},
    {"pause", NULL, pause_new, NULL, 3},
    {"pause and resume", NULL, pause_and_resume, NULL, 0},
    {"requeue", NULL, requeue, NULL, 0},
    {"requeue over a kept one", dead_without_a_name, requeue, NULL, 0},
    {"purge", NULL, purge, NULL, 0},
    {"fd, timeout, now, advance", NULL, look_at_time, NULL, 0},
    {"start", NULL, start_three, NULL, 4},
    {"stop", NULL, stop, NULL, 0},
    {"clock_manual", NULL, make_clock, NULL, 1},
    {"the first order", one_order, schedule_long, NULL, 1},
    {"the first for takers", one_order, put_to_pull, was_put, 3},
    {"the first poll", one_order, poll_new_queue, NULL, 3},
    {"the first handler", one_order, handle_new, NULL, 4},
    {"the first pause", one_order, pause_new, NULL, 4},
};

enum { SCENES = sizeof scenes / sizeof *scenes };

static picture before, after;

/* Once, with allocation `n` refused; whether there was one. */
static bool play(const scene *sc, const char *url, long n, bool once)
{
    char what[160];
    snprintf(what, sizeof what, "%s, %s, allocation %ld%s", sc->name, url, n,
             once ? "" : " and all after it");
    static world w;
    open_world(&w, url, (lapse_options){.keep = LAPSE_HOURS(1), .max_dead = 5});
    if (sc->prepare != one_order)
        populate(&w);
    if (sc->prepare)
        sc->prepare(&w);
    w.token_count = TOKENS; /* The picture shows the call's own, too. */
    take_picture(&before, &w);

    refusals = 0;
    fail_once = once;
    fail_after = n;
    int64_t answer = sc->call(&w);
    fail_after = NO_FAILURE;
    fail_once = false;
    bool failed = refusals > 0;
    ck_assert_msg(answer >= 0 || (failed && answer == LAPSE_ENOMEM), "%s: %lld: %s", what,
                  (long long)answer, lapse_error_detail());
    if (answer < 0) {
        take_picture(&after, &w);
        expect_same(&before, &after, what);
        answer = sc->call(&w);
        ck_assert_msg(answer >= 0, "%s: again: %lld: %s", what, (long long)answer,
                      lapse_error_detail());
    } else if (failed) {
        ck_assert_msg(sc->without != NULL, "%s: it did without", what);
        sc->without(&w);
    }
    close_world(&w, what, n % 2);
    return failed;
}

START_TEST(nth_allocation)
{
    const scene *sc = &scenes[_i % SCENES];
    const char *url = engine_url(_i / SCENES);
    for (int once = 0; once <= 1; once++) {
        long n = 0;
        while (play(sc, url, n, once))
            n++;
        ck_assert_msg(n >= sc->least, "%s: only %ld allocations", sc->name, n);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("nth");
    TCase *group = add_group(suite, "nth");
    tcase_add_loop_test(group, nth_allocation, 0, ENGINES * SCENES);
    return run_suite(suite);
}
