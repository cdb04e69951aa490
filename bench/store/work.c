/* work.c - claim and settle: orders that are due, some threads or some processes that share
 * them. Every claim is noted in memory that all processes share, so that none goes unseen. */
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../core/measure.h"
#include "workload.h"

enum { DUE = 20000, PROCESSES = 4, THREADS_MAX = 64 };

/* After the first claim; and until it. */
static const int64_t LONGEST = 4 * BENCH_SECOND, LONGEST_FIRST = 600 * BENCH_SECOND;

typedef struct board {
    _Atomic unsigned ready;             /* processes that have joined */
    _Atomic int64_t start, first, last; /* 0: not yet */
    _Atomic size_t claimed, doubles;
    _Atomic size_t by_process[PROCESSES];
    size_t count;
    _Atomic unsigned char marks[];
} board;

static board *shared_board;
static unsigned own_process;

static void pause_ms(long ms)
{
    nanosleep(&(struct timespec){.tv_nsec = ms * BENCH_MS}, NULL);
}

static bool is_over(const board *b, int64_t now)
{
    if (b->first == 0)
        return now - b->start > LONGEST_FIRST;
    return b->claimed >= b->count || now - b->first > LONGEST;
}

bool work_is_over(void)
{
    return is_over(shared_board, wall_ns());
}

bool work_done(const char *id)
{
    board *b = shared_board;
    uint64_t number = id_number(id);
    if (number >= b->count)
        bench_die("%s is not one of the orders that are due", id);
    if (atomic_fetch_add(&b->marks[number], 1))
        b->doubles++;
    b->by_process[own_process]++;
    int64_t now = wall_ns(), none = 0;
    atomic_compare_exchange_strong(&b->first, &none, now);
    b->last = now;
    b->claimed++;
    return is_over(b, now);
}

static board *make_board(size_t count)
{
    board *b =
        mmap(NULL, sizeof *b + count, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (b == MAP_FAILED)
        bench_die("out of memory");
    b->count = count;
    return b;
}

/* -- One process -- */

static void *work_on(void *arg)
{
    const store_peer *peer = arg;
    void *link = peer->connect();
    char id[40];
    while (!work_is_over())
        if (peer->work_one(link, id) && work_done(id))
            break;
    peer->disconnect(link);
    return NULL;
}

static void work_here(const store_peer *peer, unsigned threads)
{
    if (peer->work) {
        peer->work(threads);
        return;
    }
    void *args[THREADS_MAX];
    for (unsigned i = 0; i < threads; i++)
        args[i] = (void *)(uintptr_t)peer;
    run_threads(threads, work_on, args);
}

static void work_in_child(const store_peer *peer, unsigned number, unsigned threads)
{
    board *b = shared_board;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    own_process = number;
    peer->join();
    b->ready++;
    while (b->start == 0)
        pause_ms(1);
    work_here(peer, threads);
    peer->leave();
    _exit(0);
}

/* -- All -- */

static void wait_for_all(const pid_t *pids, unsigned processes)
{
    for (unsigned i = 0; i < processes; i++) {
        int status;
        if (waitpid(pids[i], &status, 0) < 0 || status != 0)
            bench_die("a process that claims ended with status %#x", (unsigned)status);
    }
}

static void work_in_children(const store_peer *peer, unsigned processes, unsigned threads)
{
    board *b = shared_board;
    pid_t pids[PROCESSES];
    for (unsigned i = 0; i < processes; i++) {
        pids[i] = fork();
        if (pids[i] < 0)
            bench_die("no process");
        if (pids[i] == 0)
            work_in_child(peer, i, threads);
    }
    while (b->ready < processes)
        pause_ms(1);
    b->start = wall_ns();
    wait_for_all(pids, processes);
}

work_result work(const store_peer *peer, unsigned processes, unsigned threads, size_t count)
{
    board *b = shared_board = make_board(count);
    if (processes > 1) {
        work_in_children(peer, processes, threads);
    } else {
        b->start = wall_ns();
        work_here(peer, threads);
    }
    if (!b->claimed)
        bench_die("%s: no order was claimed in time", peer->name);
    work_result r = {.start = b->start,
                     .first = b->first,
                     .last = b->last,
                     .claimed = b->claimed,
                     .doubles = b->doubles,
                     .fewest = b->by_process[0],
                     .most = b->by_process[0]};
    for (unsigned i = 1; i < processes; i++) {
        size_t claims = b->by_process[i];
        r.fewest = claims < r.fewest ? claims : r.fewest;
        r.most = claims > r.most ? claims : r.most;
    }
    return r; /* The board stays: the last callback may not have returned yet. */
}

void put_due(const store_peer *peer, size_t count)
{
    store_order orders[STORE_BATCH];
    void *link = peer->connect();
    for (size_t i = 0; i < count; i += STORE_BATCH) {
        size_t n = count - i < STORE_BATCH ? count - i : STORE_BATCH;
        for (size_t k = 0; k < n; k++)
            make_numbered(&orders[k], i + k, 0);
        peer->put(link, orders, n);
    }
    peer->disconnect(link);
}

static void put_in_child(const store_peer *peer, void *arg)
{
    peer->join();
    put_due(peer, *(const size_t *)arg);
    peer->leave();
}

static void run_work(const store_peer *peer, size_t n, unsigned processes, unsigned threads)
{
    size_t count = DUE;
    const char *folder = folder_make(peer, n);
    peer->start(folder, STORE_FILL);
    in_child(put_in_child, peer, &count, false);
    peer->stop();
    peer->start(folder, STORE_MEASURE);
    if (processes == 1)
        peer->join();
    work_result r = work(peer, processes, threads, count);
    if (processes == 1)
        peer->leave();
    peer->stop();
    folder_remove(folder);
    if (r.doubles)
        bench_die("%s: %zu orders were claimed twice", peer->name, r.doubles);
    double ns = (double)(r.last - r.start) / (double)r.claimed;
    result_add("claim_ns", ns);
    result_add("per_s", (double)BENCH_SECOND / ns);
    if (processes > 1)
        result_add("fairness_pct", 100.0 * (double)r.fewest / (double)r.most);
    result_add("doubles", (double)r.doubles);
}

void run_work_1(const store_peer *peer, size_t n, uint64_t seed)
{
    (void)seed;
    run_work(peer, n, 1, 1);
}

void run_work_4(const store_peer *peer, size_t n, uint64_t seed)
{
    (void)seed;
    run_work(peer, n, 1, 4);
}

void run_processes(const store_peer *peer, size_t n, uint64_t seed)
{
    (void)seed;
    run_work(peer, n, PROCESSES, 1);
}
