/* test_sqlite_side.c - what processes on one file have to do with each other: the gate, hints,
 * the log that is brought back, fork. */
/* tiers: small full */
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "stores/sqlite.h"
#include "stores/turns.h"

static const char boot[] = "the boot of this test";

static side *open_side(void)
{
    side *b = lp_side_open(path_of("orders.db"), boot, true);
    ck_assert_ptr_nonnull(b);
    return b;
}

static void make_file(void)
{
    FILE *f = fopen(path_of("orders.db"), "a");
    ck_assert_ptr_nonnull(f);
    fclose(f);
}

/* -- Hints ----------------------------------------------------------------------------- */

START_TEST(who_sleeps_longer_is_told)
{
    bench a = open_bench(""), b = open_bench("");
    int fd = b.ops->hint_fd(b.d);
    lapse_ns next;
    ck_assert_ptr_null(claim(&b, 1, &next));
    ck_assert_int_eq(next, LAPSE_FOREVER);
    ck_assert(!b.ops->sleeps(b.d, next, b.now));
    schedule(&a, "late", LAPSE_SECONDS(9));
    ck_assert(readable(fd));
    b.ops->hinted(b.d);
    ck_assert(!readable(fd));
    ck_assert_ptr_null(claim(&b, 1, &next));
    ck_assert(!b.ops->sleeps(b.d, next, b.now));
    schedule(&a, "later", LAPSE_SECONDS(10)); /* Not earlier: nobody is woken. */
    ck_assert(!readable(fd));
    schedule(&a, "soon", LAPSE_SECONDS(1));
    ck_assert(readable(fd));
    b.ops->hinted(b.d);
    /* Who is awake, or wants no order, is not told. */
    ck_assert_ptr_null(claim(&b, 1, &next));
    schedule(&a, "sooner", LAPSE_MS(500));
    ck_assert(!readable(fd));
    ck_assert(b.ops->sleeps(b.d, next, b.now)); /* But it has missed one. */
    ck_assert(!b.ops->sleeps(b.d, b.now - 1, b.now));
    schedule(&a, "soonest", 0);
    ck_assert(!readable(fd));
    close_bench(&a);
    close_bench(&b);
}
END_TEST

START_TEST(without_the_side_file_all_goes_on)
{
    bench a = open_bench(""), b = open_bench("");
    lapse_ns next;
    ck_assert_int_eq(unlink(path_of("orders.db-lapse")), 0);
    ck_assert_int_gt(schedule(&a, "a", 0), 0); /* Which makes another. */
    free_loans(claim_one(&b, "a"));
    ck_assert_int_eq(access(path_of("orders.db-lapse"), F_OK), 0);
    claim(&b, 1, &next);
    ck_assert(!b.ops->sleeps(b.d, next, b.now));
    schedule(&a, "b", 0);
    ck_assert(readable(b.ops->hint_fd(b.d)));
    close_bench(&a);
    close_bench(&b);

    /* Something else has its name. */
    ck_assert_int_eq(unlink(path_of("orders.db-lapse")), 0);
    ck_assert_int_eq(mkdir(path_of("orders.db-lapse"), 0755), 0);
    a = open_bench("");
    ck_assert_int_gt(schedule(&a, "c", 0), 0);
    ck_assert(!a.ops->sleeps(a.d, LAPSE_FOREVER, a.now));
    close_bench(&a);
    ck_assert_int_eq(rmdir(path_of("orders.db-lapse")), 0);
    FILE *f = fopen(path_of("orders.db-lapse"), "w");
    fprintf(f, "not what is looked for");
    fclose(f);
    a = open_bench("");
    ck_assert_int_gt(schedule(&a, "d", 0), 0);
    close_bench(&a);
}
END_TEST

/* -- The gate -------------------------------------------------------------------------- */

/* In a child: enter the gate and die in it. */
static void die_inside(void)
{
    pid_t pid = fork();
    if (pid == 0) {
        side *b = lp_side_open(path_of("orders.db"), boot, true);
        if (!b || !lp_side_enter(b, LAPSE_SECONDS(10)))
            _exit(1);
        raise(SIGKILL);
    }
    int status;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert(WIFSIGNALED(status));
}

START_TEST(who_dies_in_the_gate_leaves_it_open)
{
    make_file();
    side *b = open_side();
    for (int i = 0; i < 3; i++) {
        die_inside();
        ck_assert(lp_side_enter(b, LAPSE_SECONDS(20)));
        lp_side_leave(b);
    }
    lp_side_close(b);
}
END_TEST

START_TEST(a_gate_of_another_boot_is_made_anew)
{
    make_file();
    side *b = open_side();
    ck_assert(lp_side_enter(b, LAPSE_SECONDS(20)));
    /* The power fails with the gate shut; nobody is there to open it. */
    side *later = lp_side_open(path_of("orders.db"), "the next boot", true);
    ck_assert(lp_side_enter(later, LAPSE_SECONDS(20)));
    lp_side_leave(later);
    lp_side_close(later);
    lp_side_close(b);
}
END_TEST

START_TEST(the_wait_at_the_gate_is_bounded)
{
    make_file();
    side *a = open_side(), *b = open_side();
    ck_assert(lp_side_enter(a, LAPSE_SECONDS(20)));
    ck_assert(!lp_side_enter(b, LAPSE_MS(5)));
    lp_side_leave(a);
    ck_assert(lp_side_enter(b, LAPSE_SECONDS(20)));
    lp_side_leave(b);
    lp_side_close(a);
    lp_side_close(b);
}
END_TEST

/* One of those who wait for the gate. */
typedef struct waiter {
    side *b;
    _Atomic int *entered; /* by how many so far */
    int place;            /* as which it entered */
} waiter;

static void *enter_once(void *arg)
{
    waiter *w = arg;
    if (!lp_side_enter(w->b, LIMIT))
        complain("the gate was not entered");
    w->place = atomic_fetch_add(w->entered, 1);
    lp_side_leave(w->b);
    return NULL;
}

typedef struct crowd {
    side *b;
    int count;
} crowd;

static bool all_wait(void *arg)
{
    const crowd *c = arg;
    return lp_side_waiting(c->b) == c->count;
}

/* Who leaves and comes back at once, as a busy process does, is last in line. */
START_TEST(the_gate_is_entered_in_the_order_of_coming)
{
    enum { CREW = 6 };
    make_file();
    side *b = open_side();
    lp_side_set_patience(b, LIMIT);
    waiter waiters[CREW];
    pthread_t threads[CREW];
    for (int i = 0; i < CREW; i++) {
        waiters[i].b = open_side();
        lp_side_set_patience(waiters[i].b, LIMIT);
    }
    for (int round = 0; round < (int)tier(20, 500, 500); round++) {
        atomic_int entered = 0;
        ck_assert(lp_side_enter(b, LIMIT));
        for (int i = 0; i < CREW; i++) {
            waiters[i].entered = &entered;
            ck_assert_int_eq(pthread_create(&threads[i], NULL, enter_once, &waiters[i]), 0);
            ck_assert(until(all_wait, &(crowd){b, i + 1}));
        }
        lp_side_leave(b);
        ck_assert(lp_side_enter(b, LIMIT));
        ck_assert_int_eq(atomic_load(&entered), CREW);
        lp_side_leave(b);
        for (int i = 0; i < CREW; i++) {
            pthread_join(threads[i], NULL);
            ck_assert_int_eq(waiters[i].place, i);
        }
    }
    check_calm();
    for (int i = 0; i < CREW; i++)
        lp_side_close(waiters[i].b);
    lp_side_close(b);
}
END_TEST

/* One that died in line holds nobody up for long. */
START_TEST(who_dies_in_line_loses_its_place)
{
    make_file();
    side *b = open_side();
    lp_side_set_patience(b, LAPSE_MS(1));
    ck_assert(lp_side_enter(b, LIMIT));
    pid_t pid = fork();
    if (pid == 0) {
        side *mine = lp_side_open(path_of("orders.db"), boot, true);
        if (mine)
            lp_side_enter(mine, LIMIT);
        _exit(1); /* It was let in, which must not be. */
    }
    ck_assert(until(all_wait, &(crowd){b, 1}));
    ck_assert_int_eq(kill(pid, SIGKILL), 0);
    int status;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert(WIFSIGNALED(status));
    lp_side_leave(b);
    ck_assert(lp_side_enter(b, LIMIT));
    ck_assert_int_eq(lp_side_waiting(b), 0);
    lp_side_leave(b);
    lp_side_close(b);
}
END_TEST

/* -- The log --------------------------------------------------------------------------- */

static off_t size_of(const char *name)
{
    struct stat st;
    return stat(path_of(name), &st) == 0 ? st.st_size : -1;
}

static bool log_is_back(void *arg)
{
    (void)arg;
    return size_of("orders.db") > (off_t)50 << 20;
}

/* A writer has found it empty. */
static bool log_is_small(void *bench_)
{
    bench *b = bench_;
    schedule(b, "small", 0);
    cancel(b, "small");
    return size_of("orders.db-wal") <= (off_t)64 << 20;
}

/* A log that has grown is brought back beside the work, and is begun anew then. */
START_TEST(the_log_is_brought_back)
{
    bench b = open_bench("");
    char *payload = calloc(1, 1 << 20);
    char id[16];
    for (int i = 0; i < 80; i++) {
        snprintf(id, sizeof id, "o%d", i);
        lp_job j = schedule_job(id, b.now);
        j.payload = payload;
        j.payload_len = 1 << 20;
        ck_assert_int_gt(ask(&b, &j), 0);
    }
    ck_assert(until(log_is_back, NULL));
    ck_assert(until(log_is_small, &b));
    free(payload);
    close_bench(&b);
    ck_assert_int_ne(access(path_of("orders.db-wal"), F_OK), 0);
}
END_TEST

/* -- fork ------------------------------------------------------------------------------ */

/* Whether the kernel notes a lock of this process on the database. */
static bool holds_locks(void)
{
    struct stat st;
    char line[256], inode[64];
    bool found = false;
    ck_assert_int_eq(stat(path_of("orders.db"), &st), 0);
    snprintf(inode, sizeof inode, ":%lu ", (unsigned long)st.st_ino);
    FILE *f = fopen("/proc/locks", "r");
    ck_assert_ptr_nonnull(f);
    while (fgets(line, sizeof line, f)) {
        long pid = -1;
        sscanf(line, "%*s %*s %*s %*s %ld", &pid);
        found = found || (pid == getpid() && strstr(line, inode) && strstr(line, "POSIX"));
    }
    fclose(f);
    return found;
}

static int be_a_child(void)
{
    bench b;
    if (holds_locks())
        return 1;
    if (try_open(&b, "", START, WALL) != 0)
        return 2;
    if (!holds_locks()) /* It must not rely on its parent's. */
        return 3;
    lp_job j = schedule_job("child", START), *jobs[] = {&j};
    if (run_turn(&b, jobs, 1, NULL, 0, NULL) != 0 || j.answer <= 0)
        return 4;
    close_bench(&b);
    return 0;
}

START_TEST(a_child_has_locks_of_its_own)
{
    if (!children_can_allocate(__func__))
        return;
    bench b = open_bench("");
    schedule(&b, "parent", 0);
    ck_assert(holds_locks());
    pid_t pid = fork();
    if (pid == 0)
        _exit(be_a_child());
    int status;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_int_eq(status, 0);
    ck_assert(holds_locks());
    ck_assert_int_eq(state_of(&b, "child"), LAPSE_STATE_PENDING);
    ck_assert_int_eq(access(path_of("orders.db-wal"), F_OK), 0);
    ck_assert_int_gt(schedule(&b, "after", 0), 0);
    close_bench(&b);
}
END_TEST

/* Forks while turns are under way: none meets a transaction. */
typedef struct busy {
    bench b;
    atomic_bool stop;
    int scheduled;
} busy;

static void *work(void *arg)
{
    busy *w = arg;
    while (!atomic_load(&w->stop)) {
        char id[16];
        snprintf(id, sizeof id, "w%d", w->scheduled++);
        lp_job j = schedule_job(id, START), *jobs[] = {&j};
        if (run_turn(&w->b, jobs, 1, NULL, 0, NULL) != 0 || j.answer <= 0)
            complain("turn: %s", lapse_error_detail());
    }
    return NULL;
}

START_TEST(fork_waits_for_the_turn)
{
    if (!children_can_allocate(__func__))
        return;
    busy w = {.b = open_bench("")};
    pthread_t thread;
    ck_assert_int_eq(pthread_create(&thread, NULL, work, &w), 0);
    int children = (int)tier(10, 100, 100);
    for (int i = 0; i < children; i++) {
        pid_t pid = fork();
        if (pid == 0) {
            bench b;
            if (try_open(&b, "", START, WALL) != 0)
                _exit(1);
            char id[16];
            snprintf(id, sizeof id, "c%d", i);
            lp_job j = schedule_job(id, START), *jobs[] = {&j};
            if (run_turn(&b, jobs, 1, NULL, 0, NULL) != 0 || j.answer <= 0)
                _exit(2);
            close_bench(&b);
            _exit(0);
        }
        int status;
        ck_assert_int_eq(waitpid(pid, &status, 0), pid);
        ck_assert_int_eq(status, 0);
    }
    atomic_store(&w.stop, true);
    pthread_join(thread, NULL);
    check_calm();
    ck_assert_uint_eq(counts_of(&w.b).pending, (uint64_t)(w.scheduled + children));
    close_bench(&w.b);
    ck_assert_int_eq(look("SELECT count(*) FROM lapse_order"), w.scheduled + children);
}
END_TEST

/* Nothing of ours is open on the database or its shared memory but SQLite's own. */
START_TEST(all_is_closed_in_the_end)
{
    int before = open_descriptors(), threads = idle_threads();
    for (int i = 0; i < 3; i++) {
        bench b = open_bench("");
        schedule(&b, "a", 0);
        cancel(&b, "a");
        close_bench(&b);
    }
    ck_assert_int_eq(open_descriptors(), before);
    ck_assert(until_threads(threads));
}
END_TEST

static void fill(TCase *tests)
{
    tcase_add_test(tests, who_sleeps_longer_is_told);
    tcase_add_test(tests, without_the_side_file_all_goes_on);
    tcase_add_test(tests, who_dies_in_the_gate_leaves_it_open);
    tcase_add_test(tests, a_gate_of_another_boot_is_made_anew);
    tcase_add_test(tests, the_wait_at_the_gate_is_bounded);
    tcase_add_test(tests, the_gate_is_entered_in_the_order_of_coming);
    tcase_add_test(tests, who_dies_in_line_loses_its_place);
    tcase_add_test(tests, the_log_is_brought_back);
    tcase_add_test(tests, a_child_has_locks_of_its_own);
    tcase_add_test(tests, fork_waits_for_the_turn);
    tcase_add_test(tests, all_is_closed_in_the_end);
}

int main(void)
{
    return run_sqlite_suite("sqlite side", fill);
}
