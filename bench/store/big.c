/* big.c - a consumer that starts on many pending orders, after a process that used the store
 * died without a word: its memory, the time until it holds an order, the cost of a claim. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../core/measure.h"
#include "workload.h"

enum {
    DUE = 20000,
    LAST = 5000, /* scheduled just before the end: they fill a log */
    BATCH = 100,
};

/* The most that was resident at any time, in MB. */
static double most_resident(pid_t pid)
{
    char path[64], line[256];
    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    FILE *file = fopen(path, "re");
    if (!file)
        bench_die("%s cannot be read", path);
    double kilobytes = -1;
    while (kilobytes < 0 && fgets(line, sizeof line, file))
        if (strncmp(line, "VmHWM:", 6) == 0)
            kilobytes = strtod(line + 6, NULL);
    fclose(file);
    return kilobytes * 1024 / 1e6;
}

static void put_in_child(const store_peer *peer, void *arg)
{
    (void)arg;
    peer->join();
    put_due(peer, DUE);
    peer->leave();
}

/* Schedule and die. */
static void use_and_die(const store_peer *peer, void *arg)
{
    uint64_t seed = *(uint64_t *)arg;
    store_order orders[BATCH];
    peer->join();
    void *link = peer->connect();
    for (int i = 0; i < LAST; i += BATCH) {
        for (int k = 0; k < BATCH; k++)
            make_order(&orders[k], &seed);
        peer->put(link, orders, BATCH);
    }
    kill(getpid(), SIGKILL);
}

void run_big(const store_peer *peer, size_t n, uint64_t seed)
{
    const char *folder = folder_make(peer, n);
    if (n)
        result_add("disk_bytes", (double)folder_bytes(folder) / (double)n);
    peer->start(folder, STORE_FILL);
    in_child(put_in_child, peer, NULL, false);
    peer->stop();
    peer->start(folder, STORE_MEASURE);
    in_child(use_and_die, peer, &seed, true);
    if (peer->crash)
        peer->crash();
    else
        peer->stop();
    int64_t start = wall_ns();
    peer->start(folder, STORE_MEASURE);
    peer->join();
    work_result r = work(peer, 1, 1, DUE);
    result_add("first_claim_ms", (double)(r.first - start) * 1e-6);
    result_add("claim_ns", (double)(r.last - r.first) / (double)(r.claimed - 1));
    result_add("rss_mb", most_resident(peer->server ? peer->server() : getpid()));
    peer->leave();
    peer->stop();
    folder_remove(folder);
}
