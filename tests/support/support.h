/* support.h - what the C tests share: engines, invented time, a tape of what ran.
 *
 * A rig is one scheduler with its clock. Assertions are made on the thread of the test
 * only; other threads report with `complain`, and `check_calm` turns the first complaint
 * into a failure. Nothing here sleeps: waits are for an event and end in LIMIT at worst. */
#ifndef LAPSE_TESTS_SUPPORT_H
#define LAPSE_TESTS_SUPPORT_H

#include <check.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "lapse.h"

/* The sanitizer of this build, if any. */
#if defined(__SANITIZE_THREAD__)
#define UNDER_TSAN
#elif defined(__SANITIZE_ADDRESS__)
#define UNDER_ASAN
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define UNDER_TSAN
#elif __has_feature(address_sanitizer)
#define UNDER_ASAN
#endif
#endif

/* Whether the child of a process with threads can allocate in this build; if not, says that
 * the test is skipped. Such a child inherits the locks of a sanitizer's allocator as they
 * stand, while the allocator of the C library frees its own. */
bool children_can_allocate(const char *test);

/* -- Amounts and luck -------------------------------------------------------------- */

/* By the environment's LAPSE_TIER: quick (the default), full or soak. */
long tier(long quick, long full, long soak);

/* splitmix64: the same numbers from the same seed everywhere. */
typedef struct rng {
    uint64_t state;
} rng;

/* LAPSE_SEED from the environment, else a fresh one; printed with the test's name. */
rng rng_open(const char *test);
uint64_t rng_next(rng *r);
/* From `lo` to `hi`, both included. */
int64_t rng_range(rng *r, int64_t lo, int64_t hi);

/* -- Engines ----------------------------------------------------------------------- */

enum { WHEEL, HEAP, ENGINES };

/* Register a test once for each engine; `_i` is WHEEL or HEAP in it. */
#define ADD_FOR_ENGINES(tcase, test) tcase_add_loop_test(tcase, test, 0, ENGINES)

const char *engine_url(int engine);

typedef struct rig {
    lapse *s;
    lapse_clock *clock; /* NULL: the real one */
    lapse_ns tick;      /* what the engine may round a due time up by */
} rig;

#define START LAPSE_HOURS(1) /* the first reading of a manual clock; on every tick */
#define UTC_START INT64_C(1767225600000000000) /* 2026-01-01, where a manual clock starts */

/* `options` may be NULL; its clock is ignored. */
rig rig_manual(int engine, lapse_ns start, const lapse_options *options);
rig rig_real(int engine, const lapse_options *options);
/* A manual clock and any URL. `tick` is what the URL says. */
rig rig_url(const char *url, lapse_ns tick, lapse_ns start, const lapse_options *options);
void rig_close(rig *r);

/* Move the manual clock and run what is due, passes repeated until nothing is. */
void advance(rig *r, lapse_ns by);
/* The same with a single pass: how many ran. */
int64_t advance_once(rig *r, lapse_ns by);

lapse_stats stats_of(lapse *s);
uint64_t pending_in(lapse *s);

/* -- Tape: what ran, in order ------------------------------------------------------ */

typedef struct tape_entry {
    char id[LAPSE_ID_MAX + 1];
    lapse_ns now; /* the scheduler's clock when it ran */
    lapse_ns late;
    int64_t generation;
    int64_t fence;
    int attempt;
} tape_entry;

typedef struct tape {
    pthread_mutex_t lock;
    pthread_cond_t more;
    lapse *s; /* whose clock is noted */
    size_t count;
    size_t room;
    tape_entry *entries;
} tape;

void tape_open(tape *t, lapse *s);
void tape_close(tape *t);
/* As a callback with the tape as `arg`: notes the order and answers done. */
lapse_verdict tape_note(const lapse_order *order, void *arg);
size_t tape_count(tape *t);
/* How often `id` ran. */
size_t tape_runs(tape *t, const char *id);
/* Wait until `count` ran; false after LIMIT. */
bool tape_wait(tape *t, size_t count);

/* Where `count` have run, the next one starts in `span`, and not a nanosecond earlier. */
void expect_next_in(rig *r, tape *t, size_t count, lapse_ns span);

/* A callback that must not run; `arg` may be a counter (atomic_int *) or NULL. */
lapse_verdict never(const lapse_order *order, void *arg);
/* Adds 1 to `arg`, an atomic_int. */
lapse_verdict count_run(const lapse_order *order, void *arg);
void count_release(void *arg);

/* -- Threads and events ------------------------------------------------------------ */

#define LIMIT LAPSE_SECONDS(30) /* the wait for an event that must come */

/* A gate is shut until it is opened; then it stays open. */
typedef struct gate {
    pthread_mutex_t lock;
    pthread_cond_t change;
    bool open;
} gate;

void gate_init(gate *g);
void gate_open(gate *g);
/* False when it is still shut after LIMIT. */
bool gate_pass(gate *g);
bool gate_is_open(gate *g);
void gate_destroy(gate *g);

/* Run `fn` in `count` threads at once, with (arg, number of the thread), and join them. */
typedef void (*crew_fn)(void *arg, int number);
typedef struct crew {
    int count;
    pthread_t threads[64];
    struct crew_member {
        crew_fn fn;
        void *arg;
        int number;
    } members[64];
} crew;
void crew_start(crew *c, int count, crew_fn fn, void *arg);
void crew_join(crew *c);
void crew_run(int count, crew_fn fn, void *arg);

/* Wait until `condition(arg)` holds, giving the CPU away; false after LIMIT. */
bool until(bool (*condition)(void *arg), void *arg);
bool until_at_least(atomic_int *value, int least);
/* Whether a descriptor is a timerfd or an eventfd. */
bool is_counter(int fd);

/* Wait until every other thread of this process sleeps in the kernel. */
bool until_others_sleep(void);

void complain(const char *format, ...) __attribute__((format(printf, 1, 2)));
void check_calm(void);

/* -- The machine ------------------------------------------------------------------- */

lapse_ns boot_now(void);
size_t resident_bytes(void);
int open_descriptors(void);
int thread_count(void);
/* The number of threads before a test starts any, the sanitizer's own among them. */
int idle_threads(void);
/* Wait until there are `count` threads: one that was joined may still be on its way out. */
bool until_threads(int count);
bool readable(int fd);

/* -- Running ----------------------------------------------------------------------- */

/* A group of tests with a time limit that suits the tier. */
TCase *add_group(Suite *suite, const char *name);

/* Run the suite as CK_FORK says; the exit status of main. */
int run_suite(Suite *suite);

#endif
