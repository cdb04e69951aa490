/* main.c - one process, one peer, one workload, one size: prints one JSON line.
 *
 *     bench_core_libev --list
 *     bench_core_libev libev const 1000000 [seed]
 */
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

#include "measure.h"
#include "program.h"
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

static const workload workloads[] = {
    {"const", run_const},
    {"random", run_random},
    {"cancel", run_cancel},
    {"longest", run_longest},
    {"threads", run_threads},
    {"late", run_late},
    {NULL, NULL},
};

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
    if (program_lists(argc, argv))
        return list_peers();
    bench_call call = program_call(argc, argv, 100);
    const bench_peer *peer = program_find("peer", call.peer, bench_peers, sizeof *bench_peers);
    const workload *work = program_find("workload", call.workload, workloads, sizeof *workloads);
    start_parked_thread();
    work->run(peer, call.n, call.seed);
    result_print(peer->name, work->name, call.n);
    return 0;
}
