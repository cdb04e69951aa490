/* main.c - one process, one peer, one workload, one size: prints one JSON line.
 *
 *     bench_core_libev --list
 *     bench_core_libev libev const 1000000 [seed]
 */
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "measure.h"
#include "workload.h"

uint64_t fired_count;
uint64_t fired_expected;
void (*fired_hook)(const char *id);

bool bench_fired(const char *id)
{
    if (fired_hook)
        fired_hook(id);
    return ++fired_count == fired_expected;
}

void bench_die(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
    exit(1);
}

static const workload workloads[] = {
    {"const", run_const},     {"random", run_random},   {"cancel", run_cancel},
    {"longest", run_longest}, {"threads", run_threads}, {"late", run_late},
};

static const workload *find_workload(const char *name)
{
    for (size_t i = 0; i < sizeof workloads / sizeof *workloads; i++)
        if (strcmp(workloads[i].name, name) == 0)
            return &workloads[i];
    bench_die("no workload \"%s\"", name);
}

static const bench_peer *find_peer(const char *name)
{
    for (const bench_peer *peer = bench_peers; peer->name; peer++)
        if (strcmp(peer->name, name) == 0)
            return peer;
    bench_die("no peer \"%s\" in this executable; --list names them", name);
}

static int list_peers(void)
{
    for (const bench_peer *peer = bench_peers; peer->name; peer++)
        printf("%s\t%s\t%s\n", peer->name, peer->groups, bench_version());
    return 0;
}

static void *park(void *arg)
{
    for (;;)
        pause();
    return arg;
}

/* glibc leaves out the atomics of its locks while a process has one thread. */
static void start_parked_thread(void)
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, park, NULL) != 0)
        bench_die("no thread");
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "--list") == 0)
        return list_peers();
    if (argc != 4 && argc != 5)
        bench_die("usage: %s --list | PEER WORKLOAD ORDERS [SEED]", argv[0]);
    const bench_peer *peer = find_peer(argv[1]);
    const workload *work = find_workload(argv[2]);
    size_t n = strtoull(argv[3], NULL, 10);
    if (n < 100 || n > 100000000)
        bench_die("ORDERS is 100 to 100 000 000, not %s", argv[3]);
    start_parked_thread();
    work->run(peer, n, argc == 5 ? strtoull(argv[4], NULL, 10) : 1);
    result_print(peer->name, work->name, n);
    return 0;
}
