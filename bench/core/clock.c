/* clock.c - virtual time for everything in this process: see clock.h. */
#define _GNU_SOURCE
#include "clock.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>

#include "bench.h"

typedef int (*gettime_function)(clockid_t, struct timespec *);

static gettime_function libc_gettime;
static int64_t virtual_uptime; /* 0: not frozen. Written by one thread, read by all */
static int64_t wall_offset;    /* CLOCK_REALTIME less uptime when it was frozen */

static void resolve(void)
{
    void *symbol = dlsym(RTLD_NEXT, "clock_gettime");
    if (!symbol)
        bench_die("clock_gettime: %s", dlerror());
    memcpy(&libc_gettime, &symbol, sizeof symbol);
}

static int real_gettime(clockid_t id, struct timespec *out)
{
    if (!libc_gettime)
        resolve();
    return libc_gettime(id, out);
}

static int64_t read_real(clockid_t id)
{
    struct timespec t;
    if (real_gettime(id, &t) != 0)
        bench_die("clock %d cannot be read", (int)id);
    return (int64_t)t.tv_sec * BENCH_SECOND + t.tv_nsec;
}

static bool counts_cpu(clockid_t id)
{
    return id == CLOCK_PROCESS_CPUTIME_ID || id == CLOCK_THREAD_CPUTIME_ID || id < 0;
}

/* Visible to the libraries, however this is compiled. */
#define EXPORTED __attribute__((visibility("default")))

EXPORTED int clock_gettime(clockid_t id, struct timespec *out)
{
    int result = real_gettime(id, out);
    int64_t now = __atomic_load_n(&virtual_uptime, __ATOMIC_RELAXED);
    if (result != 0 || now == 0 || counts_cpu(id))
        return result;
    if (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)
        now += wall_offset;
    out->tv_sec = now / BENCH_SECOND;
    out->tv_nsec = now % BENCH_SECOND;
    return 0;
}

/* libev and libevent look at the wall clock now and then. */
EXPORTED int gettimeofday(struct timeval *restrict out, void *restrict zone)
{
    (void)zone;
    struct timespec t;
    if (clock_gettime(CLOCK_REALTIME, &t) != 0)
        return -1;
    *out = (struct timeval){.tv_sec = t.tv_sec, .tv_usec = t.tv_nsec / 1000};
    return 0;
}

void clock_freeze(void)
{
    int64_t uptime = read_real(CLOCK_MONOTONIC);
    wall_offset = read_real(CLOCK_REALTIME) - uptime;
    __atomic_store_n(&virtual_uptime, uptime, __ATOMIC_RELAXED);
}

void clock_advance(int64_t ns)
{
    __atomic_store_n(&virtual_uptime, virtual_uptime + ns, __ATOMIC_RELAXED);
}

int64_t clock_real(void)
{
    return read_real(CLOCK_MONOTONIC);
}

int64_t clock_thread_cpu(void)
{
    return read_real(CLOCK_THREAD_CPUTIME_ID);
}
