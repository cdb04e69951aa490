/* late.c - how late callbacks start in real time, and what that costs in CPU.
 *
 * `n` orders fall due at random moments within five seconds, in a process that does
 * nothing else. An order is due its delay after the moment just before the call that
 * scheduled it; it is early when its callback starts before that. */
#include <stdlib.h>
#include <sys/resource.h>

#include "clock.h"
#include "measure.h"
#include "workload.h"

#define LEAD (BENCH_SECOND / 2) /* scheduling ends before the first is due */
#define SPREAD (5 * BENCH_SECOND)

static int64_t *due;  /* by number of the order */
static int64_t *late; /* start less due, in order of starting */

static void record(const char *id)
{
    late[fired_count] = clock_real() - due[id_number(id)];
}

static int by_value(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static void schedule_at_random(const bench_peer *peer, size_t n, uint64_t seed)
{
    int64_t begin = clock_real();
    for (size_t i = 0; i < n; i++) {
        bench_id id;
        make_id(id, i);
        int64_t at = begin + LEAD + (int64_t)random_below(&seed, (uint64_t)SPREAD);
        int64_t now = clock_real();
        due[i] = at;
        peer->schedule(id, at - now);
    }
    if (clock_real() - begin > LEAD)
        bench_die("%s: scheduling took longer than the first delay", peer->name);
}

static double to_ms(const struct timeval *t)
{
    return (double)t->tv_sec * 1e3 + (double)t->tv_usec / 1e3;
}

static double cpu_ms(const struct rusage *usage)
{
    return to_ms(&usage->ru_utime) + to_ms(&usage->ru_stime);
}

static void add_quantile(const char *name, size_t n, double quantile)
{
    result_add(name, (double)late[(size_t)(quantile * (double)(n - 1))] / 1e6);
}

static void add_results(size_t n)
{
    size_t early = 0;
    qsort(late, n, sizeof *late, by_value);
    while (early < n && late[early] < 0)
        early += 1;
    result_add("early", (double)early);
    add_quantile("min_ms", n, 0);
    add_quantile("p50_ms", n, 0.5);
    add_quantile("p99_ms", n, 0.99);
    add_quantile("p999_ms", n, 0.999);
    add_quantile("max_ms", n, 1);
}

void run_late(const bench_peer *peer, size_t n, uint64_t seed)
{
    due = bench_alloc(n, sizeof *due);
    late = bench_alloc(n, sizeof *late);
    fired_expected = n;
    fired_hook = record;
    peer->open();
    schedule_at_random(peer, n, seed);

    struct rusage from, to;
    getrusage(RUSAGE_SELF, &from);
    peer->run();
    getrusage(RUSAGE_SELF, &to);
    if (fired_count != n)
        bench_die("%s: %llu of %zu orders ran", peer->name, (unsigned long long)fired_count, n);
    add_results(n);
    result_add("cpu_ms", cpu_ms(&to) - cpu_ms(&from));
    result_add("switches", (double)(to.ru_nvcsw - from.ru_nvcsw + to.ru_nivcsw - from.ru_nivcsw));
    peer->close();
    free(due);
    free(late);
}
