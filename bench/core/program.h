/* program.h - what each executable has: a command line that names a peer and a workload. */
#ifndef BENCH_PROGRAM_H
#define BENCH_PROGRAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct bench_call {
    const char *peer, *workload;
    size_t n; /* orders */
    uint64_t seed;
} bench_call;

/* Whether the peers are to be listed: a line each of name, groups and version, between tabs. */
bool program_lists(int argc, char **argv);

/* PEER WORKLOAD ORDERS [SEED]; that many orders at least. */
bench_call program_call(int argc, char **argv, size_t least);

/* In a table of entries that begin with their name, ended by one without. */
const void *program_find(const char *what, const char *name, const void *table, size_t entry_size);

#endif
