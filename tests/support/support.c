/* support.c - see support.h. */
#include "support.h"

#include <dirent.h>
#include <poll.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

bool children_can_allocate(const char *test)
{
#if defined(UNDER_ASAN) || defined(UNDER_TSAN)
    printf("skipped: %s: under this sanitizer a child of threads cannot allocate\n", test);
    fflush(stdout);
    return false;
#else
    (void)test;
    return true;
#endif
}

/* -- Amounts and luck -------------------------------------------------------------- */

long tier(long quick, long full, long soak)
{
    const char *name = getenv("LAPSE_TIER");
    if (name == NULL || *name == '\0' || strcmp(name, "quick") == 0)
        return quick;
    if (strcmp(name, "full") == 0)
        return full;
    if (strcmp(name, "soak") == 0)
        return soak;
    fprintf(stderr, "LAPSE_TIER is '%s', not quick, full or soak\n", name);
    exit(EXIT_FAILURE); /* check's own assertions are for running tests only */
}

rng rng_open(const char *test)
{
    const char *given = getenv("LAPSE_SEED");
    uint64_t seed = given != NULL ? strtoull(given, NULL, 0) : (uint64_t)boot_now();
    printf("%s: LAPSE_SEED=%llu\n", test, (unsigned long long)seed);
    fflush(stdout);
    return (rng){seed};
}

uint64_t rng_next(rng *r)
{
    uint64_t z = (r->state += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

int64_t rng_range(rng *r, int64_t lo, int64_t hi)
{
    return lo + (int64_t)(rng_next(r) % ((uint64_t)(hi - lo) + 1));
}

/* -- Engines ----------------------------------------------------------------------- */

const char *engine_url(int engine)
{
    return engine == WHEEL ? "memory:?engine=wheel&tick=1ms" : "memory:?engine=heap";
}

static rig open_rig(const char *url, lapse_ns tick, lapse_clock *clock,
                    const lapse_options *options)
{
    lapse_options given = options != NULL ? *options : (lapse_options){0};
    rig r = {.clock = clock, .tick = tick};
    given.clock = clock;
    int result = lapse_open(url, &given, &r.s);
    ck_assert_msg(result == 0, "lapse_open(%s): %s", url, lapse_error_detail());
    return r;
}

static lapse_ns engine_tick(int engine)
{
    return engine == WHEEL ? LAPSE_MS(1) : 0;
}

rig rig_url(const char *url, lapse_ns tick, lapse_ns start, const lapse_options *options)
{
    lapse_clock *clock;
    ck_assert_int_eq(lapse_clock_manual(start, &clock), 0);
    return open_rig(url, tick, clock, options);
}

rig rig_manual(int engine, lapse_ns start, const lapse_options *options)
{
    return rig_url(engine_url(engine), engine_tick(engine), start, options);
}

rig rig_real(int engine, const lapse_options *options)
{
    return open_rig(engine_url(engine), engine_tick(engine), NULL, options);
}

void rig_close(rig *r)
{
    int result = lapse_close(r->s, LIMIT);
    ck_assert_msg(result == 0, "lapse_close: %s", lapse_error_detail());
    lapse_clock_free(r->clock);
    *r = (rig){0};
    check_calm();
}

int64_t advance_once(rig *r, lapse_ns by)
{
    ck_assert_int_eq(lapse_clock_advance(r->clock, by), 0);
    int64_t ran = lapse_process(r->s, 0);
    ck_assert_msg(ran >= 0, "lapse_process: %s", lapse_error_detail());
    return ran;
}

void advance(rig *r, lapse_ns by)
{
    for (int64_t ran = advance_once(r, by); ran > 0;)
        ran = advance_once(r, 0);
}

lapse_stats stats_of(lapse *s)
{
    lapse_stats stats;
    ck_assert_int_eq(lapse_statistics(s, &stats), 0);
    return stats;
}

uint64_t pending_in(lapse *s)
{
    return stats_of(s).pending;
}

/* -- Tape -------------------------------------------------------------------------- */

static void init_pair(pthread_mutex_t *lock, pthread_cond_t *change)
{
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(change, &attr);
    pthread_condattr_destroy(&attr);
    pthread_mutex_init(lock, NULL);
}

static struct timespec limit_from_now(void)
{
    struct timespec end;
    clock_gettime(CLOCK_MONOTONIC, &end);
    end.tv_sec += LIMIT / LAPSE_SECONDS(1);
    return end;
}

void tape_open(tape *t, lapse *s)
{
    *t = (tape){.s = s};
    init_pair(&t->lock, &t->more);
}

void tape_close(tape *t)
{
    pthread_mutex_destroy(&t->lock);
    pthread_cond_destroy(&t->more);
    free(t->entries);
}

static void grow_tape(tape *t)
{
    t->room = t->room == 0 ? 64 : 2 * t->room;
    t->entries = realloc(t->entries, t->room * sizeof *t->entries);
    if (t->entries == NULL)
        abort();
}

lapse_verdict tape_note(const lapse_order *order, void *arg)
{
    tape *t = arg;
    lapse_ns now = lapse_now(t->s);
    pthread_mutex_lock(&t->lock);
    if (t->count == t->room)
        grow_tape(t);
    tape_entry *e = &t->entries[t->count++];
    *e = (tape_entry){.now = now,
                      .late = order->late,
                      .generation = order->generation,
                      .fence = order->fence,
                      .attempt = order->attempt};
    memcpy(e->id, order->id, order->id_len + 1);
    pthread_cond_broadcast(&t->more);
    pthread_mutex_unlock(&t->lock);
    return LAPSE_DONE;
}

size_t tape_count(tape *t)
{
    pthread_mutex_lock(&t->lock);
    size_t count = t->count;
    pthread_mutex_unlock(&t->lock);
    return count;
}

size_t tape_runs(tape *t, const char *id)
{
    size_t runs = 0;
    pthread_mutex_lock(&t->lock);
    for (size_t i = 0; i < t->count; i++)
        runs += strcmp(t->entries[i].id, id) == 0;
    pthread_mutex_unlock(&t->lock);
    return runs;
}

bool tape_wait(tape *t, size_t count)
{
    struct timespec end = limit_from_now();
    int result = 0;
    pthread_mutex_lock(&t->lock);
    while (t->count < count && result == 0)
        result = pthread_cond_timedwait(&t->more, &t->lock, &end);
    bool reached = t->count >= count;
    pthread_mutex_unlock(&t->lock);
    return reached;
}

void expect_next_in(rig *r, tape *t, size_t count, lapse_ns span)
{
    advance(r, span - 1);
    ck_assert_uint_eq(tape_count(t), count);
    advance(r, 1);
    ck_assert_uint_eq(tape_count(t), count + 1);
}

lapse_verdict never(const lapse_order *order, void *arg)
{
    complain("the callback of '%s' ran and must not", order->id);
    if (arg != NULL)
        atomic_fetch_add((atomic_int *)arg, 1);
    return LAPSE_DONE;
}

lapse_verdict count_run(const lapse_order *order, void *arg)
{
    (void)order;
    atomic_fetch_add((atomic_int *)arg, 1);
    return LAPSE_DONE;
}

void count_release(void *arg)
{
    atomic_fetch_add((atomic_int *)arg, 1);
}

/* -- Threads and events ------------------------------------------------------------ */

void gate_init(gate *g)
{
    g->open = false;
    init_pair(&g->lock, &g->change);
}

void gate_open(gate *g)
{
    pthread_mutex_lock(&g->lock);
    g->open = true;
    pthread_cond_broadcast(&g->change);
    pthread_mutex_unlock(&g->lock);
}

bool gate_pass(gate *g)
{
    struct timespec end = limit_from_now();
    int result = 0;
    pthread_mutex_lock(&g->lock);
    while (!g->open && result == 0)
        result = pthread_cond_timedwait(&g->change, &g->lock, &end);
    bool passed = g->open;
    pthread_mutex_unlock(&g->lock);
    return passed;
}

bool gate_is_open(gate *g)
{
    pthread_mutex_lock(&g->lock);
    bool is_open = g->open;
    pthread_mutex_unlock(&g->lock);
    return is_open;
}

void gate_destroy(gate *g)
{
    pthread_mutex_destroy(&g->lock);
    pthread_cond_destroy(&g->change);
}

static void *member_main(void *arg)
{
    struct crew_member *m = arg;
    m->fn(m->arg, m->number);
    return NULL;
}

void crew_start(crew *c, int count, crew_fn fn, void *arg)
{
    ck_assert_int_le(count, 64);
    c->count = count;
    for (int i = 0; i < count; i++) {
        c->members[i] = (struct crew_member){fn, arg, i};
        ck_assert_int_eq(pthread_create(&c->threads[i], NULL, member_main, &c->members[i]), 0);
    }
}

void crew_join(crew *c)
{
    for (int i = 0; i < c->count; i++)
        pthread_join(c->threads[i], NULL);
}

void crew_run(int count, crew_fn fn, void *arg)
{
    crew c;
    crew_start(&c, count, fn, arg);
    crew_join(&c);
}

bool until(bool (*condition)(void *arg), void *arg)
{
    lapse_ns end = boot_now() + LIMIT;
    while (!condition(arg)) {
        if (boot_now() > end)
            return false;
        sched_yield();
    }
    return true;
}

struct threshold {
    atomic_int *value;
    int least;
};

static bool reached(void *arg)
{
    struct threshold *t = arg;
    return atomic_load(t->value) >= t->least;
}

bool until_at_least(atomic_int *value, int least)
{
    return until(reached, &(struct threshold){value, least});
}

/* The state letter of a thread: what follows the name in brackets in its stat file. */
static char thread_state(const char *tid)
{
    char path[300], line[512] = "";
    snprintf(path, sizeof path, "/proc/self/task/%s/stat", tid);
    FILE *f = fopen(path, "r");
    if (f == NULL)
        return 'X';
    char *end = fgets(line, sizeof line, f) != NULL ? strrchr(line, ')') : NULL;
    fclose(f);
    return end != NULL && end[1] == ' ' ? end[2] : 'X';
}

bool is_counter(int fd)
{
    char path[32], target[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(path, target, sizeof target - 1);
    if (length < 0)
        return false;
    target[length] = '\0';
    return strstr(target, "[timerfd]") != NULL || strstr(target, "[eventfd]") != NULL;
}

static bool others_sleep(void *arg)
{
    (void)arg;
    long self = syscall(SYS_gettid);
    bool all = true;
    DIR *dir = opendir("/proc/self/task");
    ck_assert_ptr_nonnull(dir);
    for (struct dirent *e = readdir(dir); e != NULL; e = readdir(dir))
        if (e->d_name[0] != '.' && atol(e->d_name) != self && thread_state(e->d_name) != 'S')
            all = false;
    closedir(dir);
    return all;
}

bool until_others_sleep(void)
{
    return until(others_sleep, NULL);
}

static pthread_mutex_t complaint_lock = PTHREAD_MUTEX_INITIALIZER;
static char complaint[300]; /* under complaint_lock */

void complain(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    pthread_mutex_lock(&complaint_lock);
    if (complaint[0] == '\0')
        vsnprintf(complaint, sizeof complaint, format, args);
    pthread_mutex_unlock(&complaint_lock);
    va_end(args);
}

void check_calm(void)
{
    char text[sizeof complaint];
    pthread_mutex_lock(&complaint_lock);
    memcpy(text, complaint, sizeof text);
    complaint[0] = '\0';
    pthread_mutex_unlock(&complaint_lock);
    ck_assert_msg(text[0] == '\0', "%s", text);
}

/* -- The machine ------------------------------------------------------------------- */

lapse_ns boot_now(void)
{
    struct timespec t;
    syscall(SYS_clock_gettime, CLOCK_BOOTTIME, &t); /* Past any shim of the test. */
    return LAPSE_SECONDS(t.tv_sec) + t.tv_nsec;
}

size_t resident_bytes(void)
{
    unsigned long total = 0, resident = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    ck_assert_ptr_nonnull(f);
    ck_assert_int_eq(fscanf(f, "%lu %lu", &total, &resident), 2);
    fclose(f);
    return (size_t)resident * (size_t)sysconf(_SC_PAGESIZE);
}

static int count_entries(const char *path)
{
    int count = 0;
    DIR *dir = opendir(path);
    ck_assert_ptr_nonnull(dir);
    for (struct dirent *e = readdir(dir); e != NULL; e = readdir(dir))
        count += e->d_name[0] != '.';
    closedir(dir);
    return count;
}

int open_descriptors(void)
{
    return count_entries("/proc/self/fd") - 1; /* Without the one that lists them. */
}

int thread_count(void)
{
    return count_entries("/proc/self/task");
}

static bool has_threads(void *arg)
{
    return thread_count() == *(int *)arg;
}

bool until_threads(int count)
{
    return until(has_threads, &count);
}

static void do_nothing(void *arg, int number)
{
    (void)arg, (void)number;
}

int idle_threads(void)
{
    crew_run(1, do_nothing, NULL); /* A sanitizer starts its own with the first. */
    int count = thread_count();
    for (int same = 0; same < 300; same++) {
        sched_yield();
        int now = thread_count();
        same = now == count ? same : 0;
        count = now;
    }
    return count;
}

bool readable(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    return poll(&p, 1, 0) == 1 && (p.revents & POLLIN) != 0;
}

/* -- Running ----------------------------------------------------------------------- */

TCase *add_group(Suite *suite, const char *name)
{
    TCase *group = tcase_create(name);
    tcase_set_timeout(group, (double)tier(120, 1200, 24L * 3600));
    suite_add_tcase(suite, group);
    return group;
}

int run_suite(Suite *suite)
{
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
