/* measure.c - see measure.h. */
#include "measure.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void make_id(bench_id id, uint64_t number)
{
    memcpy(id, "OID00000000000000000", BENCH_ID_LEN + 1);
    for (char *digit = id + BENCH_ID_LEN; number; number /= 10)
        *--digit = (char)('0' + number % 10);
}

uint64_t id_number(const char *id)
{
    return strtoull(id + 3, NULL, 10);
}

uint64_t random_next(uint64_t *state)
{
    uint64_t x = *state += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

uint64_t random_below(uint64_t *state, uint64_t bound)
{
    return random_next(state) % bound;
}

uint32_t *random_order(uint64_t *state, size_t n)
{
    uint32_t *order = bench_alloc(n, sizeof *order);
    for (size_t i = 0; i < n; i++) {
        size_t j = random_below(state, i + 1);
        order[i] = order[j];
        order[j] = (uint32_t)i;
    }
    return order;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double middle(double *values, size_t count)
{
    qsort(values, count, sizeof *values, by_size);
    return values[count / 2];
}

void *bench_alloc(size_t count, size_t size)
{
    void *memory = calloc(count, size);
    if (!memory)
        bench_die("out of memory for %zu x %zu bytes", count, size);
    return memory;
}

int64_t resident_bytes(void)
{
    FILE *file = fopen("/proc/self/smaps_rollup", "re");
    if (!file)
        bench_die("/proc/self/smaps_rollup cannot be read");
    char line[256];
    long long kilobytes = -1;
    while (kilobytes < 0 && fgets(line, sizeof line, file))
        if (strncmp(line, "Anonymous:", 10) == 0)
            kilobytes = strtoll(line + 10, NULL, 10);
    fclose(file);
    if (kilobytes < 0)
        bench_die("/proc/self/smaps_rollup has no line \"Anonymous\"");
    return kilobytes * 1024;
}

static struct {
    const char *name;
    double value;
} figures[32];
static size_t figure_count;

void result_add(const char *name, double value)
{
    if (figure_count == sizeof figures / sizeof *figures)
        bench_die("too many figures in one result");
    figures[figure_count].name = name;
    figures[figure_count].value = value;
    figure_count += 1;
}

void result_print(const char *peer, const char *workload, size_t n)
{
    printf("{\"peer\": \"%s\", \"workload\": \"%s\", \"n\": %zu", peer, workload, n);
    for (size_t i = 0; i < figure_count; i++)
        printf(", \"%s\": %.10g", figures[i].name, figures[i].value);
    printf("}\n");
}
