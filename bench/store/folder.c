/* folder.c - where a store lives while it is measured.
 *
 * A store with many pending orders takes a while to make. It is made once, below
 * LAPSE_BENCH_DIR/filled, and each run works on a copy, which is on the disk for good before
 * anything is measured. All stores are flat folders of plain files. */
#define _GNU_SOURCE /* copy_file_range */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../core/measure.h"
#include "workload.h"

enum { FILLERS = 4, PATH_SIZE = 512 };

static void join_path(char *out, const char *folder, const char *name)
{
    if (snprintf(out, PATH_SIZE, "%s/%s", folder, name) >= PATH_SIZE)
        bench_die("the path %s/%s is too long", folder, name);
}

static void for_each_file(const char *folder,
                          void (*visit)(const char *folder, const char *name, void *arg), void *arg)
{
    DIR *d = opendir(folder);
    if (!d)
        bench_die("%s: %s", folder, strerror(errno));
    for (const struct dirent *e; (e = readdir(d));)
        if (e->d_type == DT_REG)
            visit(folder, e->d_name, arg);
    closedir(d);
}

static void make_folder(const char *path)
{
    if (mkdir(path, 0700) != 0 && errno != EEXIST)
        bench_die("%s: %s", path, strerror(errno));
}

/* -- Copy, measure, remove -- */

static void copy_file(const char *folder, const char *name, void *to)
{
    char from_path[PATH_SIZE], to_path[PATH_SIZE];
    join_path(from_path, folder, name);
    join_path(to_path, to, name);
    int in = open(from_path, O_RDONLY | O_CLOEXEC);
    int out = open(to_path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    ssize_t n = 0;
    if (in >= 0 && out >= 0)
        do
            n = copy_file_range(in, NULL, out, NULL, 64 << 20, 0);
        while (n > 0);
    if (in < 0 || out < 0 || n < 0 || fsync(out) != 0)
        bench_die("copying %s: %s", from_path, strerror(errno));
    close(in);
    close(out);
}

static void add_bytes(const char *folder, const char *name, void *sum)
{
    char path[PATH_SIZE];
    join_path(path, folder, name);
    struct stat st;
    if (stat(path, &st) == 0)
        *(int64_t *)sum += (int64_t)st.st_blocks * 512;
}

int64_t folder_bytes(const char *folder)
{
    int64_t sum = 0;
    for_each_file(folder, add_bytes, &sum);
    return sum;
}

static void remove_file(const char *folder, const char *name, void *arg)
{
    (void)arg;
    char path[PATH_SIZE];
    join_path(path, folder, name);
    unlink(path);
}

void folder_remove(const char *folder)
{
    for_each_file(folder, remove_file, NULL);
    rmdir(folder);
}

/* -- Fill -- */

typedef struct filler {
    const store_peer *peer;
    size_t count;
    uint64_t seed;
} filler;

static void *fill_part(void *arg)
{
    filler *f = arg;
    store_order orders[STORE_BATCH];
    void *link = f->peer->connect();
    while (f->count) {
        size_t n = f->count < STORE_BATCH ? f->count : STORE_BATCH;
        for (size_t i = 0; i < n; i++)
            make_order(&orders[i], &f->seed);
        f->peer->put(link, orders, n);
        f->count -= n;
    }
    f->peer->disconnect(link);
    return NULL;
}

static void fill(const store_peer *peer, void *arg)
{
    size_t n = *(size_t *)arg;
    filler fillers[FILLERS];
    void *args[FILLERS];
    for (size_t i = 0; i < FILLERS; i++) {
        fillers[i] = (filler){.peer = peer, .count = n / FILLERS, .seed = (i + 1) << 56};
        args[i] = &fillers[i];
    }
    fillers[0].count += n % FILLERS;
    peer->join();
    run_threads(FILLERS, fill_part, args);
    peer->leave();
}

/* The name appears once it is full. */
static void make_filled(const store_peer *peer, size_t n, const char *folder)
{
    char unfinished[PATH_SIZE];
    if (snprintf(unfinished, sizeof unfinished, "%s.%d", folder, (int)getpid()) >= PATH_SIZE)
        bench_die("the path %s is too long", folder);
    make_folder(unfinished);
    int64_t start = wall_ns();
    peer->start(unfinished, STORE_FILL);
    in_child(fill, peer, &n, false);
    peer->stop();
    fprintf(stderr, "%s: %zu orders in %.1f s, %.0f bytes each\n", peer->kind, n,
            (double)(wall_ns() - start) / BENCH_SECOND,
            (double)folder_bytes(unfinished) / (double)n);
    if (rename(unfinished, folder) != 0)
        bench_die("%s: %s", folder, strerror(errno));
}

const char *folder_make(const store_peer *peer, size_t n)
{
    static char run[PATH_SIZE];
    const char *base = getenv("LAPSE_BENCH_DIR");
    char name[64], all[PATH_SIZE], filled[PATH_SIZE];
    if (!base)
        bench_die("LAPSE_BENCH_DIR does not name a folder for the stores");
    snprintf(name, sizeof name, "run-%d", (int)getpid());
    join_path(run, base, name);
    make_folder(run);
    if (n == 0)
        return run;
    join_path(all, base, "filled");
    make_folder(all);
    snprintf(name, sizeof name, "%s-%zu", peer->kind, n);
    join_path(filled, all, name);
    if (access(filled, F_OK) != 0)
        make_filled(peer, n, filled);
    for_each_file(filled, copy_file, run);
    return run;
}
