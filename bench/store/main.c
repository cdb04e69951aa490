/* main.c - one process, one peer, one workload, one number of pending orders: one JSON line.
 *
 *     bench_store_lapse --list
 *     LAPSE_BENCH_DIR=/var/tmp/x bench_store_lapse lapse callers64 1000000 [seed]
 *
 * Stores are kept below LAPSE_BENCH_DIR while they are used; filled ones stay there for the
 * next run. */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../core/measure.h"
#include "../core/program.h"
#include "workload.h"

int64_t wall_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * BENCH_SECOND + t.tv_nsec;
}

void run_threads(unsigned count, void *(*run)(void *), void *const args[])
{
    pthread_t *threads = bench_alloc(count, sizeof *threads);
    for (unsigned i = 0; i < count; i++)
        if (pthread_create(&threads[i], NULL, run, args[i]) != 0)
            bench_die("no thread");
    for (unsigned i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
    free(threads);
}

void in_child(void (*run)(const store_peer *, void *), const store_peer *peer, void *arg,
              bool killed)
{
    pid_t pid = fork();
    if (pid < 0)
        bench_die("no process");
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        run(peer, arg);
        _exit(0);
    }
    int status;
    waitpid(pid, &status, 0);
    bool right = killed ? WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL : status == 0;
    if (!right)
        bench_die("%s: a process ended with status %#x", peer->name, (unsigned)status);
}

/* -- Orders -- */

static const char *random_bytes(void)
{
    static char bytes[STORE_PAYLOAD_MAX];
    uint64_t state = 1;
    for (size_t i = 0; !bytes[0] || i < sizeof bytes; i++)
        bytes[i % sizeof bytes] = (char)('!' + random_below(&state, 90));
    return bytes;
}

static void fill_order(store_order *order, uint64_t length)
{
    static const char *payload;
    if (!payload)
        payload = random_bytes();
    order->payload = payload;
    order->payload_len = 64 + length % (STORE_PAYLOAD_MAX - 63);
}

void make_order(store_order *order, uint64_t *seed)
{
    uint64_t a = random_next(seed), b = random_next(seed);
    snprintf(order->id, sizeof order->id, "%08x-%04x-4%03x-%04x-%012llx", (unsigned)(a >> 32),
             (unsigned)(a >> 16 & 0xffff), (unsigned)(a & 0xfff),
             (unsigned)(0x8000 | (b >> 48 & 0x3fff)), (unsigned long long)(b & 0xffffffffffff));
    order->delay = STORE_DAY + (int64_t)random_below(seed, 29 * (uint64_t)STORE_DAY);
    fill_order(order, random_next(seed));
}

void make_numbered(store_order *order, uint64_t number, int64_t delay)
{
    bench_id id;
    make_id(id, number);
    memcpy(order->id, id, sizeof id);
    order->delay = delay;
    fill_order(order, number * 79);
}

/* -- Choosing -- */

static const workload workloads[] = {
    {"callers1", run_callers_1},
    {"callers16", run_callers_16},
    {"callers64", run_callers_64},
    {"many", run_many},
    {"cancel", run_cancel},
    {"work1", run_work_1},
    {"work4", run_work_4},
    {"processes", run_processes},
    {"big", run_big},
    {NULL, NULL},
};

static int list_peers(void)
{
    const char *version = store_version();
    for (const store_peer *peer = store_peers; version && peer->name; peer++)
        printf("%s\t%s\t%s\n", peer->name, peer->groups, version);
    return 0;
}

int main(int argc, char **argv)
{
    if (program_lists(argc, argv))
        return list_peers();
    bench_call call = program_call(argc, argv, 0);
    const store_peer *peer = program_find("peer", call.peer, store_peers, sizeof *store_peers);
    const workload *load = program_find("workload", call.workload, workloads, sizeof *workloads);
    signal(SIGPIPE, SIG_IGN);
    load->run(peer, call.n, call.seed);
    result_print(peer->name, load->name, call.n);
    return 0;
}
