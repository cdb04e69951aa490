/* test_many.c - stores that processes share: many processes at once. P-62, P-65.
 *
 * Every order is claimed once, each process gets its share, and nobody is told of a lock
 * that another holds. Processes are this program again; what they do they count in a file
 * that all map. */
/* tiers: small full soak */
/* servers */
#define _GNU_SOURCE
#include "stores/stores.h"

#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PROCESSES_MOST = 8 };

typedef struct sheet {
    atomic_int ready, go, stop;
    atomic_long claims[PROCESSES_MOST], schedules[PROCESSES_MOST];
    atomic_long left;       /* orders that nobody has claimed yet */
    atomic_uchar claimed[]; /* by number */
} sheet;

static size_t sheet_size(long orders)
{
    return sizeof(sheet) + (size_t)orders;
}

static sheet *map_sheet(const char *path, long orders)
{
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || ftruncate(fd, (off_t)sheet_size(orders)) != 0)
        return NULL;
    void *memory = mmap(NULL, sheet_size(orders), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    return memory == MAP_FAILED ? NULL : memory;
}

static void wait_for_go(sheet *h)
{
    atomic_fetch_add(&h->ready, 1);
    while (!atomic_load(&h->go))
        sched_yield();
}

static bool all_ready(void *arg)
{
    const sheet *h = arg;
    return atomic_load(&h->ready) == PROCESSES_MOST / 2;
}

/* -- Four processes claim ------------------------------------------------------------------- */

enum { CLAIMERS = PROCESSES_MOST / 2, THREADS = 16 };

static struct claimer {
    sheet *h;
    int number;
} claimer;

static lapse_verdict count_claim(const lapse_order *order, void *arg)
{
    (void)arg;
    atomic_fetch_add(&claimer.h->claimed[atol(order->id)], 1);
    atomic_fetch_add(&claimer.h->claims[claimer.number], 1);
    atomic_fetch_sub(&claimer.h->left, 1);
    return LAPSE_DONE;
}

/* claim <url> <sheet> <orders> <number> */
static int claim(int argc, char **argv)
{
    lapse *s;
    if (argc != 5 || (claimer.h = map_sheet(argv[2], atol(argv[3]))) == NULL)
        return 2;
    claimer.number = atoi(argv[4]);
    if (lapse_open(argv[1], NULL, &s) != 0) {
        fprintf(stderr, "%s\n", lapse_error_detail());
        return 3;
    }
    wait_for_go(claimer.h);
    if (lapse_handle(s, "q", count_claim, NULL, NULL, NULL) != 0 || lapse_start(s, THREADS) != 0)
        return 4;
    while (atomic_load(&claimer.h->left) > 0) {
        lapse_stats stats;
        if (lapse_statistics(s, &stats) != 0) {
            fprintf(stderr, "%s\n", lapse_error_detail());
            return 5;
        }
    }
    return lapse_close(s, LIMIT) == 0 ? 0 : 6;
}

static void put_numbers(lapse *s, long count)
{
    enum { TOGETHER = 1000 };
    static char ids[TOGETHER][16];
    static lapse_spec specs[TOGETHER];
    static int64_t results[TOGETHER];
    for (long first = 0; first < count; first += TOGETHER) {
        long n = count - first < TOGETHER ? count - first : TOGETHER;
        for (long i = 0; i < n; i++) {
            snprintf(ids[i], sizeof ids[i], "%ld", first + i);
            specs[i] = (lapse_spec){.id = ids[i], .queue = "q"};
        }
        ck_assert_int_eq(lapse_schedule_many(s, specs, (size_t)n, results), n);
    }
}

START_TEST(each_order_is_claimed_once_and_each_process_gets_its_share)
{
    long count = tier(2000, 20000, 1000000);
    place at = new_place(_i, "lease=60s");
    rig r = open_real(&at, NULL);
    NEEDS_PROCESSES(&r, _i);
    put_numbers(r.s, count);
    char path[400], words[2][24];
    new_path(path, sizeof path, "sheet");
    sheet *h = map_sheet(path, count);
    ck_assert_ptr_nonnull(h);
    atomic_store(&h->left, count);
    pid_t pids[CLAIMERS];
    snprintf(words[0], sizeof words[0], "%ld", count);
    for (int i = 0; i < CLAIMERS; i++) {
        snprintf(words[1], sizeof words[1], "%d", i);
        const char *const argv[] = {"claim", at.url, path, words[0], words[1], NULL};
        pids[i] = start_part(argv, NULL);
    }
    ck_assert(until(all_ready, h));
    lapse_ns began = boot_now();
    atomic_store(&h->go, 1);
    for (int i = 0; i < CLAIMERS; i++)
        ck_assert_int_eq(end_of(pids[i]), 0);
    double seconds = (double)(boot_now() - began) / 1e9;
    long fewest = count, most = 0;
    for (int i = 0; i < CLAIMERS; i++) {
        long n = atomic_load(&h->claims[i]);
        most = n > most ? n : most;
    }
    long doubles = 0;
    for (long i = 0; i < count; i++) {
        ck_assert_int_ge(atomic_load(&h->claimed[i]), 1);
        doubles += atomic_load(&h->claimed[i]) > 1;
    }
    double fairness = (double)fewest / (double)most;
    printf("%s: %ld claims by %d processes in %.1f s (%.0f a second), %ld doubles, fairness %.2f "
           "(%ld to %ld)\n",
           store_name(_i), count, CLAIMERS, seconds, (double)count / seconds, doubles, fairness,
           fewest, most);
    ck_assert_int_eq(doubles, 0);
    if (tier(0, 0, 1) == 1) /* Measured: a machine that is busy is not fair either. */
        ck_assert_double_ge(fairness, 0.8);
    lapse_stats t = stats_of(r.s);
    ck_assert_uint_eq(t.pending + t.running + t.dead, 0);
    munmap(h, sheet_size(count));
    rig_close(&r);
}
END_TEST

/* -- P-65: eight processes schedule, claim and cancel on one file ----------------------------------- */

/* mix <url> <sheet> <orders> <number>: until told to stop; any error is an end with 5. */
static int mix(int argc, char **argv)
{
    lapse *s;
    sheet *h;
    if (argc != 5 || (h = map_sheet(argv[2], atol(argv[3]))) == NULL)
        return 2;
    int number = atoi(argv[4]);
    long most = atol(argv[3]) / PROCESSES_MOST;
    if (lapse_open(argv[1], NULL, &s) != 0) {
        fprintf(stderr, "open: %s\n", lapse_error_detail());
        return 3;
    }
    int64_t result = 0;
    for (long i = 0; !atomic_load(&h->stop) && i < most; i++) {
        char id[24];
        const lapse_order *order;
        snprintf(id, sizeof id, "%ld", number * most + i);
        lapse_spec spec = {.id = id, .queue = "q", .delay = i % 2 ? 0 : LAPSE_HOURS(1)};
        if ((result = lapse_put(s, &spec)) < 0)
            break;
        atomic_fetch_add(&h->schedules[number], 1);
        if (i % 2 == 0 && (result = lapse_cancel(s, id, LAPSE_ANY)) != LAPSE_FATE_CANCELLED)
            break;
        if ((result = lapse_poll(s, "q", &order)) < 0)
            break;
        if (result != 1)
            continue;
        atomic_fetch_add(&h->claimed[atol(order->id)], 1);
        atomic_fetch_add(&h->claims[number], 1);
        if ((result = lapse_settle(s, order->fence, LAPSE_DONE, 0, NULL)) < 0)
            break;
    }
    if (result < 0) {
        fprintf(stderr, "process %d: %" PRId64 ", %s\n", number, result, lapse_error_detail());
        return 5;
    }
    return lapse_close(s, LIMIT) == 0 ? 0 : 6;
}

static long least_of(atomic_long *counts)
{
    long least = LONG_MAX;
    for (int i = 0; i < PROCESSES_MOST; i++)
        least = atomic_load(&counts[i]) < least ? atomic_load(&counts[i]) : least;
    return least;
}

START_TEST(p65_nobody_is_told_of_a_lock)
{
    long orders = tier(8 * 1000, 8 * 20000, 8 * 1000000);
    place at = new_place(_i, "lease=60s");
    rig r = open_real(&at, NULL);
    NEEDS(&r, LAPSE_CAN_CANCEL);
    NEEDS_PROCESSES(&r, _i);
    char path[400], words[2][24];
    new_path(path, sizeof path, "sheet");
    sheet *h = map_sheet(path, orders);
    ck_assert_ptr_nonnull(h);
    pid_t pids[PROCESSES_MOST];
    snprintf(words[0], sizeof words[0], "%ld", orders);
    lapse_ns end = boot_now() + LAPSE_MS(tier(700, 2500, 60000));
    for (int i = 0; i < PROCESSES_MOST; i++) {
        snprintf(words[1], sizeof words[1], "%d", i);
        const char *const argv[] = {"mix", at.url, path, words[0], words[1], NULL};
        pids[i] = start_part(argv, NULL);
    }
    lapse_ns patience = boot_now() + LIMIT; /* for those that start slowly */
    while (boot_now() < end || (least_of(h->schedules) == 0 && boot_now() < patience))
        ck_assert_int_ge(lapse_cancel(r.s, "nobody", LAPSE_ANY), 0); /* This one is the ninth. */
    atomic_store(&h->stop, 1);
    for (int i = 0; i < PROCESSES_MOST; i++)
        ck_assert_int_eq(end_of(pids[i]), 0);
    long claims = 0, schedules = 0, fewest = least_of(h->schedules), due = 0;
    for (int i = 0; i < PROCESSES_MOST; i++) {
        long n = atomic_load(&h->schedules[i]);
        claims += atomic_load(&h->claims[i]);
        schedules += n;
        due += n / 2;
    }
    for (long i = 0; i < orders; i++)
        ck_assert_int_le(atomic_load(&h->claimed[i]), 1);
    printf("%s: %d processes: %ld scheduled (%ld by the slowest), %ld claimed\n", store_name(_i),
           PROCESSES_MOST, schedules, fewest, claims);
    ck_assert_int_gt(fewest, 0);
    ck_assert_int_eq((long)pending_in(r.s), due - claims);
    munmap(h, sheet_size(orders));
    rig_close(&r);
}
END_TEST

static void fill_suite(Suite *suite)
{
    TCase *group = add_group(suite, "many processes");
    ADD_FOR_STORES(group, each_order_is_claimed_once_and_each_process_gets_its_share);
    ADD_FOR_STORES(group, p65_nobody_is_told_of_a_lock);
}

int main(int argc, char **argv)
{
    static const part parts[] = {{"claim", claim}, {"mix", mix}};
    play_part(argc, argv, parts, 2);
    return stores_main("many", fill_suite);
}
