/* program.c - see program.h. */
#include "program.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"

void bench_die(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
    exit(1);
}

bool program_lists(int argc, char **argv)
{
    return argc == 2 && strcmp(argv[1], "--list") == 0;
}

bench_call program_call(int argc, char **argv, size_t least)
{
    if (argc != 4 && argc != 5)
        bench_die("usage: %s --list | PEER WORKLOAD ORDERS [SEED]", argv[0]);
    bench_call call = {argv[1], argv[2], strtoull(argv[3], NULL, 10),
                       argc == 5 ? strtoull(argv[4], NULL, 10) : 1};
    if (call.n < least || call.n > 100000000)
        bench_die("ORDERS is %zu to 100 000 000, not %s", least, argv[3]);
    return call;
}

const void *program_find(const char *what, const char *name, const void *table, size_t entry_size)
{
    const char *const *entry = table;
    for (; *entry; entry = (const void *)((const char *)entry + entry_size))
        if (strcmp(*entry, name) == 0)
            return entry;
    bench_die("no %s \"%s\" in this executable; --list names the peers", what, name);
}
