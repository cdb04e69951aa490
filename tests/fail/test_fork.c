/* test_fork.c - the child of a fork: every call is refused, and starting anew may fail. */
/* link: -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=free,--wrap=strdup,--wrap=mmap,--wrap=munmap,--wrap=open_memstream,--wrap=timerfd_create,--wrap=pthread_create,--wrap=getrandom */
/* Not under valgrind: what a child inherits is lost on purpose. */
#include <sys/wait.h>
#include <unistd.h>

#include "fail/world.h"

/* Children of fork() end without what an exit does: a build that counts lines is told. */
extern void __gcov_dump(void) __attribute__((weak));

static _Noreturn void leave(int code)
{
    if (__gcov_dump)
        __gcov_dump();
    _exit(code);
}

/* The exit code of a child. */
static int code_of(pid_t child)
{
    int status;
    ck_assert_int_gt(child, 0);
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_msg(WIFEXITED(status), "the child died of signal %d", WTERMSIG(status));
    return WEXITSTATUS(status);
}

/* -- Calls --------------------------------------------------------------------------- */

static bool see(const lapse_info *info, void *arg)
{
    (void)info, (void)arg;
    return true;
}

/* Which call does not say that it is in a child; 0: all do. */
static int call_all(lapse *s)
{
    const lapse_order *order;
    lapse_callback fn;
    void *arg;
    lapse_info info;
    lapse_stats stats;
    lapse_queue_stats queue;
    int64_t result;
    lapse_spec spec = {.id = "2", .fn = never};
    const int64_t answers[] = {
        lapse_put(s, &spec),
        lapse_schedule_many(s, &spec, 1, &result),
        lapse_cancel(s, "1", LAPSE_ANY),
        lapse_cancel_wait(s, "1", LAPSE_ANY, LAPSE_FOREVER),
        lapse_reschedule(s, "1", LAPSE_ANY, 0),
        lapse_requeue(s, "1", LAPSE_ANY, 0),
        lapse_purge(s, NULL, LAPSE_ANY),
        lapse_get(s, "1", &info),
        lapse_each(s, 0, see, NULL),
        lapse_fd(s),
        lapse_timeout(s),
        lapse_process(s, 0),
        lapse_run(s),
        lapse_start(s, 1),
        lapse_wait(s, LAPSE_FOREVER),
        lapse_begin(s, LAPSE_FOREVER, &order, &fn, &arg),
        lapse_take(s, NULL, LAPSE_FOREVER, &order),
        lapse_settle(s, 1, LAPSE_DONE, 0, NULL),
        lapse_renew(s, 1, 0),
        lapse_handle(s, NULL, never, NULL, NULL, NULL),
        lapse_pause(s, NULL),
        lapse_resume(s, NULL),
        lapse_statistics(s, &stats),
        lapse_queue_statistics(s, "", &queue),
        lapse_stop(s),
    };
    int count = sizeof answers / sizeof *answers;
    for (int i = 0; i < count; i++)
        if (answers[i] != LAPSE_EFORKED)
            return i + 1;
    if (lapse_holds(s, 1) || lapse_metrics(s) || lapse_queue_name(s, 0))
        return count + 1;
    return lapse_close(s, LAPSE_FOREVER) == 0 ? 0 : count + 2;
}

/* The clock moves in the child without the schedulers that the parent has on it. */
static int clock_in_child(lapse_clock *clock, lapse *s)
{
    lapse_ns now = lapse_clock_now(clock);
    if (lapse_clock_advance(clock, LAPSE_SECONDS(1)) < 0)
        return 101;
    if (lapse_clock_now(clock) != now + LAPSE_SECONDS(1))
        return 102;
    if (lapse_after_fork(s) < 0 || lapse_schedule(s, "1", 0, count_run, NULL) < 0)
        return 103;
    if (lapse_cancel(s, "1", LAPSE_ANY) != LAPSE_FATE_CANCELLED)
        return 104;
    return lapse_close(s, 0) == 0 ? 0 : 105;
}

static void fork_and_call(rig *r, bool clock)
{
    fflush(NULL);
    pid_t child = fork();
    if (child == 0)
        leave(clock ? clock_in_child(r->clock, r->s) : call_all(r->s));
    int wrong = code_of(child);
    ck_assert_msg(wrong == 0, "call %d is wrong in the child", wrong);
}

START_TEST(forked_is_refused)
{
    rig r = rig_manual(_i, START, NULL);
    ck_assert_int_gt(lapse_schedule(r.s, "1", 0, never, NULL), 0);
    fork_and_call(&r, false);
    fork_and_call(&r, true);
    ck_assert_int_eq(lapse_cancel(r.s, "1", LAPSE_ANY), LAPSE_FATE_CANCELLED);
    rig_close(&r);
}
END_TEST

/* -- Starting anew ------------------------------------------------------------------ */

/* What the child of a fork finds wrong, or 0. */
static int in_child(lapse *s, long n, failing_call call)
{
    refusals = 0;
    if (call == NO_CALL)
        fail_after = n;
    failing = call;
    calls_left = n;
    int code = lapse_after_fork(s);
    fail_after = NO_FAILURE;
    failing = NO_CALL;
    if (code == 0)
        return refusals > 0 ? 1 : lapse_close(s, 0) == 0 ? 100 : 2;
    if (code != (call == NO_CALL ? LAPSE_ENOMEM : LAPSE_ESYSTEM))
        return 3;
    if (lapse_schedule(s, "1", 0, never, NULL) != LAPSE_EFORKED ||
        lapse_timeout(s) != LAPSE_EFORKED)
        return 4;
    if ((lapse_abilities(s) & ~63u) || lapse_now(s) == 0)
        return 5;
    if (lapse_after_fork(s) != 0 || lapse_schedule(s, "1", 0, never, NULL) <= 0)
        return 6;
    return lapse_close(s, 0) == 0 ? 0 : 7;
}

static int fork_and_try(lapse *s, long n, failing_call call)
{
    fflush(NULL);
    pid_t child = fork();
    if (child == 0)
        leave(in_child(s, n, call));
    return code_of(child);
}

START_TEST(after_fork_without_memory)
{
    static world w;
    open_world(&w, engine_url(_i), (lapse_options){.keep = LAPSE_HOURS(1)});
    populate(&w);
    long n = 0;
    int found;
    while ((found = fork_and_try(w.r.s, n, NO_CALL)) == 0)
        n++;
    ck_assert_int_eq(found, 100);
    ck_assert_int_gt(n, 8);
    ck_assert_int_eq(fork_and_try(w.r.s, 0, TIMERFD_CREATE), 0);
    ck_assert_int_eq(fork_and_try(w.r.s, 1, TIMERFD_CREATE), 0);
    close_world(&w, "after_fork", true);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("fork");
    TCase *group = add_group(suite, "fork");
    ADD_FOR_ENGINES(group, forked_is_refused);
    ADD_FOR_ENGINES(group, after_fork_without_memory);
    return run_suite(suite);
}
