/* test_fork.c - a scheduler that a process had when it forked: P-32. */
/* tiers: small full soak */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "../support/support.h"

#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

/* -- P-32: fork -------------------------------------------------------------------- */

enum { PARENTS = 10 };

/* Exit status of a child that ran `check`: 0 when it held. */
static int in_child(int (*check)(rig *r), rig *r)
{
    fflush(NULL);
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0)
        _exit(check(r));
    int status = 0;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert(WIFEXITED(status));
    return WEXITSTATUS(status);
}

#define REQUIRE(condition)                                                                         \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "in the child, line %d: %s\n", __LINE__, #condition);                  \
            return 1;                                                                              \
        }                                                                                          \
    } while (0)

/* The tape of the parent's orders, copied into the child by the fork. */
static tape parents;

static int expect_forked(rig *r)
{
    const lapse_order *order;
    lapse_callback fn;
    void *arg;
    lapse_info info;
    lapse_stats stats;
    lapse_spec spec = {.id = "c"};
    int64_t result;
    REQUIRE(lapse_schedule(r->s, "c", LAPSE_MS(50), tape_note, &parents) == LAPSE_EFORKED);
    REQUIRE(lapse_schedule_at(r->s, "c", 0, tape_note, &parents) == LAPSE_EFORKED);
    REQUIRE(lapse_put(r->s, &spec) == LAPSE_EFORKED);
    REQUIRE(lapse_schedule_many(r->s, &spec, 1, &result) == LAPSE_EFORKED);
    REQUIRE(lapse_cancel(r->s, "0", LAPSE_ANY) == LAPSE_EFORKED);
    REQUIRE(lapse_cancel_wait(r->s, "0", LAPSE_ANY, 0) == LAPSE_EFORKED);
    REQUIRE(lapse_reschedule(r->s, "0", LAPSE_ANY, 0) == LAPSE_EFORKED);
    REQUIRE(lapse_get(r->s, "0", &info) == LAPSE_EFORKED);
    REQUIRE(lapse_each(r->s, 0, NULL, NULL) < 0);
    REQUIRE(lapse_fd(r->s) == LAPSE_EFORKED);
    REQUIRE(lapse_timeout(r->s) == LAPSE_EFORKED);
    REQUIRE(lapse_process(r->s, 0) == LAPSE_EFORKED);
    REQUIRE(lapse_run(r->s) == LAPSE_EFORKED);
    REQUIRE(lapse_start(r->s, 1) == LAPSE_EFORKED);
    REQUIRE(lapse_wait(r->s, 0) == LAPSE_EFORKED);
    REQUIRE(lapse_begin(r->s, LAPSE_FOREVER, &order, &fn, &arg) == LAPSE_EFORKED);
    REQUIRE(lapse_poll(r->s, NULL, &order) == LAPSE_EFORKED);
    REQUIRE(lapse_take(r->s, NULL, 0, &order) == LAPSE_EFORKED);
    REQUIRE(lapse_settle(r->s, 1, LAPSE_DONE, 0, NULL) == LAPSE_EFORKED);
    REQUIRE(lapse_statistics(r->s, &stats) == LAPSE_EFORKED);
    REQUIRE(lapse_stop(r->s) == LAPSE_EFORKED);
    REQUIRE(lapse_close(r->s, 0) == 0);
    REQUIRE(tape_count(&parents) == 0);
    return 0;
}

static int expect_new_life(rig *r)
{
    atomic_int runs = 0;
    lapse_stats stats;
    REQUIRE(lapse_after_fork(r->s) == 0);
    REQUIRE(lapse_statistics(r->s, &stats) == 0);
    REQUIRE(stats.pending == 0 && stats.running == 0);
    REQUIRE(lapse_cancel(r->s, "0", LAPSE_ANY) == LAPSE_FATE_UNKNOWN);
    REQUIRE(lapse_schedule(r->s, "0", LAPSE_MS(1), count_run, &runs) > 0);
    REQUIRE(lapse_start(r->s, 2) == 0);
    REQUIRE(until_at_least(&runs, 1));
    int fd = lapse_fd(r->s);
    REQUIRE(fd >= 0 && (fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0);
    REQUIRE(lapse_schedule(r->s, "1", LAPSE_HOURS(1), count_run, &runs) > 0);
    REQUIRE(!readable(fd));
    REQUIRE(lapse_close(r->s, LIMIT) == 0);
    REQUIRE(tape_count(&parents) == 0);
    return 0;
}

/* A child that ends without a word. */
static int just_exit(rig *r)
{
    (void)r;
    return 0;
}

static pid_t parent;

static void release_in_parent(void *arg)
{
    (void)arg;
    if (getpid() != parent)
        _exit(99);
}

START_TEST(p32_child_is_told_and_parent_is_untouched)
{
    if (!children_can_allocate(__func__))
        return;
    int (*const children[])(rig *) = {expect_forked, expect_new_life, just_exit};
    for (size_t c = 0; c < sizeof children / sizeof *children; c++) {
        rig r = rig_real(_i, NULL);
        tape_open(&parents, r.s);
        ck_assert_int_ge(lapse_fd(r.s), 0);
        ck_assert_int_eq(lapse_start(r.s, 2), 0);
        for (int i = 0; i < PARENTS; i++) {
            char id[8];
            snprintf(id, sizeof id, "%d", i);
            ck_assert_int_gt(lapse_schedule(r.s, id, LAPSE_MS(150), tape_note, &parents), 0);
        }
        ck_assert_int_eq(in_child(children[c], &r), 0);
        ck_assert(tape_wait(&parents, PARENTS));
        ck_assert_int_gt(lapse_schedule(r.s, "after", LAPSE_MS(1), tape_note, &parents), 0);
        ck_assert(tape_wait(&parents, PARENTS + 1));
        rig_close(&r);
        tape_close(&parents);
    }
}
END_TEST

static int after_fork_releases_nothing(rig *r)
{
    REQUIRE(lapse_after_fork(r->s) == 0);
    REQUIRE(lapse_close(r->s, 0) == 0);
    return 0;
}

START_TEST(p32_the_parents_arguments_are_not_released_in_the_child)
{
    rig r = rig_manual(_i, START, NULL);
    lapse_spec spec = {
        .id = "o", .delay = LAPSE_HOURS(1), .fn = never, .release = release_in_parent};
    parent = getpid();
    ck_assert_int_gt(lapse_put(r.s, &spec), 0);
    ck_assert_int_eq(in_child(after_fork_releases_nothing, &r), 0);
    ck_assert_int_eq(lapse_after_fork(r.s), 0); /* Nothing happens in the parent. */
    ck_assert_uint_eq(pending_in(r.s), 1);
    ck_assert_int_eq(lapse_close(r.s, LIMIT), 0);
    lapse_clock_free(r.clock);
}
END_TEST

/* Another thread is inside the scheduler all the time while the process forks. */
struct busy {
    lapse *s;
    atomic_bool over;
};

static void schedule_and_cancel(void *arg, int number)
{
    struct busy *b = arg;
    char id[8];
    snprintf(id, sizeof id, "%d", number);
    while (!atomic_load(&b->over)) {
        if (lapse_schedule(b->s, id, LAPSE_HOURS(1), never, NULL) < 0 ||
            lapse_cancel(b->s, id, LAPSE_ANY) != LAPSE_FATE_CANCELLED)
            complain("%s", lapse_error_detail());
    }
}

static int use_and_close(rig *r)
{
    atomic_int runs = 0;
    REQUIRE(lapse_cancel(r->s, "x", LAPSE_ANY) == LAPSE_EFORKED);
    REQUIRE(lapse_after_fork(r->s) == 0);
    REQUIRE(lapse_schedule(r->s, "x", 0, count_run, &runs) > 0);
    while (atomic_load(&runs) == 0)
        REQUIRE(lapse_process(r->s, 0) >= 0);
    REQUIRE(lapse_close(r->s, LIMIT) == 0);
    return 0;
}

START_TEST(p32_no_lock_is_inherited)
{
    if (!children_can_allocate(__func__))
        return;
    rig r = rig_real(_i, NULL);
    struct busy b = {.s = r.s};
    crew c;
    crew_start(&c, 2, schedule_and_cancel, &b);
    for (long i = 0; i < tier(10, 200, 5000); i++)
        ck_assert_int_eq(in_child(use_and_close, &r), 0);
    atomic_store(&b.over, true);
    crew_join(&c);
    rig_close(&r);
}
END_TEST

static bool close_on_exec_everywhere(void)
{
    bool all = true;
    DIR *dir = opendir("/proc/self/fd");
    ck_assert_ptr_nonnull(dir);
    for (struct dirent *e = readdir(dir); e != NULL; e = readdir(dir))
        if (e->d_name[0] != '.' && is_counter(atoi(e->d_name)))
            all = all && (fcntl(atoi(e->d_name), F_GETFD) & FD_CLOEXEC) != 0;
    closedir(dir);
    return all;
}

START_TEST(p32_descriptors_close_on_exec)
{
    rig r = rig_real(_i, NULL), m = rig_manual(_i, START, NULL);
    int fd = lapse_fd(r.s);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_ge(lapse_fd(m.s), 0);
    ck_assert_int_eq(lapse_fd(r.s), fd); /* One for life. */
    ck_assert_int_eq(lapse_start(r.s, 1), 0);
    ck_assert_int_eq(lapse_start(m.s, 1), 0);
    ck_assert(close_on_exec_everywhere());
    ck_assert((fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0);
    rig_close(&m);
    rig_close(&r);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("fork");
    TCase *group = add_group(suite, "P-32 to P-34");
    ADD_FOR_ENGINES(group, p32_child_is_told_and_parent_is_untouched);
    ADD_FOR_ENGINES(group, p32_the_parents_arguments_are_not_released_in_the_child);
    ADD_FOR_ENGINES(group, p32_no_lock_is_inherited);
    ADD_FOR_ENGINES(group, p32_descriptors_close_on_exec);
    return run_suite(suite);
}
