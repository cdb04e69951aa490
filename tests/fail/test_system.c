/* test_system.c - opening without memory, and system calls that fail. */
/* link: -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=free,--wrap=strdup,--wrap=mmap,--wrap=munmap,--wrap=open_memstream,--wrap=timerfd_create,--wrap=pthread_create,--wrap=getrandom */
/* valgrind */
#include "fail/world.h"

static const char *const urls[] = {NULL, "memory:", "memory:?engine=heap",
                                   "memory:?tick=1us&slots=4096&max_pending=9&keep=1h",
                                   "memory:?overflow=dead_letter_oldest&max_dead=1"};

enum { URLS = sizeof urls / sizeof *urls };

static void open_and_close(const lapse_options *options, const char *url)
{
    lapse *s;
    ck_assert_int_eq(lapse_open(url, options, &s), 0);
    ck_assert_int_eq(lapse_close(s, 0), 0);
}

START_TEST(open_without_memory)
{
    lapse_clock *clock;
    ck_assert_int_eq(lapse_clock_manual(START, &clock), 0);
    lapse_options options = {.clock = _i % 2 ? clock : NULL};
    const char *url = urls[_i / 2];
    open_and_close(&options, url); /* What is done once in a process. */
    int descriptors = open_descriptors();
    long allocated = live, mapped = map_live, n = 0, failures = 0;
    for (bool refused_one = true; refused_one; n++) {
        lapse *s = (lapse *)&options; /* Any value. */
        refusals = 0;
        fail_once = n % 2;
        fail_after = n / 2;
        int code = lapse_open(url, &options, &s);
        fail_after = NO_FAILURE;
        refused_one = refusals > 0;
        if (code < 0) {
            ck_assert(refused_one && code == LAPSE_ENOMEM);
            ck_assert_ptr_null(s);
            failures++;
        } else { /* Some memory is only asked for ahead of time. */
            ck_assert_int_gt(lapse_schedule(s, "1", 0, never, NULL), 0);
            ck_assert_int_eq(lapse_close(s, 0), 0);
        }
        ck_assert_int_eq(live, allocated);
        ck_assert_int_eq(map_live, mapped);
        ck_assert_int_eq(open_descriptors(), descriptors);
    }
    ck_assert_int_ge(failures, 2 * 8);
    lapse_clock_free(clock);
}
END_TEST

START_TEST(open_without_descriptors)
{
    open_and_close(NULL, urls[_i]);
    int descriptors = open_descriptors();
    long allocated = live, mapped = map_live;
    for (long n = 0; n < 2; n++) {
        lapse *s;
        failing = TIMERFD_CREATE;
        calls_left = n;
        int code = lapse_open(urls[_i], NULL, &s);
        failing = NO_CALL;
        ck_assert_int_eq(code, LAPSE_ESYSTEM);
        ck_assert_ptr_nonnull(strstr(lapse_error_detail(), "timerfd_create failed: "));
        ck_assert_ptr_null(s);
        ck_assert_int_eq(live, allocated);
        ck_assert_int_eq(map_live, mapped);
        ck_assert_int_eq(open_descriptors(), descriptors);
    }
}
END_TEST

/* Ids are hashed with a number from the system; without one it works as well. */
START_TEST(open_without_randomness)
{
    static world w;
    failing = GETRANDOM;
    calls_left = 0;
    open_world(&w, engine_url(_i), (lapse_options){.keep = LAPSE_HOURS(1)});
    failing = NO_CALL;
    populate(&w);
    close_world(&w, "open_without_randomness", true);
}
END_TEST

/* The threads that were started before one failed go on, and more can be started. */
START_TEST(start_without_threads)
{
    for (long n = 0; n < 4; n++) {
        long allocated = live;
        rig r = rig_real(_i, NULL);
        threads_live = 0;
        failing = PTHREAD_CREATE;
        calls_left = n;
        int code = lapse_start(r.s, 3);
        failing = NO_CALL;
        ck_assert_int_eq(code, LAPSE_ESYSTEM);
        ck_assert_ptr_nonnull(strstr(lapse_error_detail(), "pthread_create failed: "));
        ck_assert_int_eq(threads_live, n);
        ck_assert_int_eq(lapse_start(r.s, 2), 0);
        ck_assert_int_eq(threads_live, n ? n + 2 : 3); /* One of them is the watcher. */
        tape ran;
        tape_open(&ran, r.s);
        ck_assert_int_gt(lapse_schedule(r.s, "1", 0, tape_note, &ran), 0);
        ck_assert(tape_wait(&ran, 1));
        rig_close(&r);
        tape_close(&ran);
        ck_assert_int_eq(live, allocated);
    }
}
END_TEST

START_TEST(run_without_memory)
{
    static world w;
    open_world(&w, engine_url(_i), (lapse_options){.keep = 0});
    put(&w, (lapse_spec){.id = "1", .fn = run_token});
    token *t = &w.tokens[w.token_count - 1];
    refusals = 0;
    fail_once = true;
    fail_after = 0;
    int64_t ran = lapse_process(w.r.s, 0);
    ck_assert_int_eq(ran, LAPSE_ENOMEM);
    ck_assert_int_eq(t->runs, 0);
    ck_assert_int_eq(lapse_process(w.r.s, 0), 1);
    ck_assert_int_eq(t->runs, 1);
    close_world(&w, "run_without_memory", true);
}
END_TEST

/* A thread inside lapse_run that gets no memory tries again. */
static lapse_verdict stop_it(const lapse_order *order, void *arg)
{
    (void)order;
    return lapse_stop(arg) == 0 ? LAPSE_DONE : LAPSE_FAIL;
}

START_TEST(run_goes_on)
{
    rig r = rig_real(_i, NULL);
    ck_assert_int_gt(lapse_schedule(r.s, "1", 0, stop_it, r.s), 0);
    refusals = 0;
    fail_once = true;
    fail_after = 0;
    int code = lapse_run(r.s);
    fail_after = NO_FAILURE;
    ck_assert_int_eq(code, 0);
    ck_assert_int_eq(refusals, 1);
    ck_assert_uint_eq(stats_of(r.s).done, 1);
    rig_close(&r);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("system");
    TCase *group = add_group(suite, "system");
    tcase_add_loop_test(group, open_without_memory, 0, 2 * URLS);
    tcase_add_loop_test(group, open_without_descriptors, 0, URLS);
    ADD_FOR_ENGINES(group, open_without_randomness);
    ADD_FOR_ENGINES(group, start_without_threads);
    ADD_FOR_ENGINES(group, run_without_memory);
    ADD_FOR_ENGINES(group, run_goes_on);
    return run_suite(suite);
}
