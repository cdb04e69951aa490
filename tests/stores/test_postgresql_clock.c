/* test_postgresql_clock.c - the server's clock judges, whatever those of the machines say. P-60.
 *
 * The wall clock of a process is off by what LAPSE_TEST_SKEW says, in seconds. */
/* tiers: quick full soak */
/* servers: postgresql */
/* link: -Wl,--wrap=lp_clock_wall */
#define _GNU_SOURCE
#include "stores/postgresql_client.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

lapse_ns __real_lp_clock_wall(const lapse_clock *clock);
lapse_ns __wrap_lp_clock_wall(const lapse_clock *clock);

lapse_ns __wrap_lp_clock_wall(const lapse_clock *clock)
{
    const char *skew = getenv("LAPSE_TEST_SKEW");
    return __real_lp_clock_wall(clock) + LAPSE_SECONDS(skew != NULL ? atol(skew) : 0);
}

enum { WORKERS = 3, EACH_MOST = 1000 };

typedef struct sheet {
    atomic_int left;
    _Atomic lapse_ns earliest[WORKERS][EACH_MOST]; /* of this machine's clock: not before */
    atomic_int runs[WORKERS][EACH_MOST];
    atomic_int early;
    _Atomic lapse_ns worst;
} sheet;

static sheet *counted;

static bool map_sheet(const char *path)
{
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || ftruncate(fd, sizeof *counted) != 0)
        return false;
    void *memory = mmap(NULL, sizeof *counted, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    counted = memory == MAP_FAILED ? NULL : memory;
    return counted != NULL;
}

static lapse_verdict note_run(const lapse_order *order, void *arg)
{
    int worker, i;
    (void)arg;
    if (sscanf(order->id, "%d/%d", &worker, &i) != 2)
        return LAPSE_REJECT;
    lapse_ns late = now_ns() - atomic_load(&counted->earliest[worker][i]);
    atomic_fetch_add(&counted->early, late < 0 || order->late < 0);
    lapse_ns worst = atomic_load(&counted->worst);
    while (late > worst && !atomic_compare_exchange_weak(&counted->worst, &worst, late))
        continue;
    atomic_fetch_add(&counted->runs[worker][i], 1);
    atomic_fetch_sub(&counted->left, 1);
    return LAPSE_DONE;
}

/* work <url> <sheet> <worker> <orders>: schedules its own, runs anybody's. */
static int work(int argc, char **argv)
{
    lapse *s;
    if (argc != 5 || !map_sheet(argv[2]))
        return 2;
    int worker = atoi(argv[3]), count = atoi(argv[4]);
    if (lapse_open(argv[1], NULL, &s) != 0)
        return 3;
    if (lapse_handle(s, "q", note_run, NULL, NULL, NULL) != 0 || lapse_start(s, 4) != 0)
        return 4;
    for (int i = 0; i < count; i++) {
        char id[32];
        snprintf(id, sizeof id, "%d/%d", worker, i);
        lapse_spec spec = {.id = id, .queue = "q", .delay = LAPSE_MS(200 + i * 1000 / count)};
        atomic_store(&counted->earliest[worker][i], now_ns() + spec.delay);
        if (lapse_put(s, &spec) <= 0)
            return 5;
    }
    for (lapse_ns until = now_ns() + 2 * LIMIT; atomic_load(&counted->left) > 0;)
        if (now_ns() > until || usleep(2000) != 0) /* sleeps: others work */
            return 6;
    return lapse_close(s, LIMIT) == 0 ? 0 : 7;
}

START_TEST(p60_clocks_of_machines_move_nothing)
{
    static const char *const skews[WORKERS] = {"0", "600", "-600"};
    int count = (int)tier(30, 333, EACH_MOST);
    place at = new_place(PG, "lease=60s");
    rig r = open_real(&at, NULL);
    char path[512], orders[16], number_text[8];
    new_path(path, sizeof path, "sheet");
    snprintf(orders, sizeof orders, "%d", count);
    ck_assert(map_sheet(path));
    atomic_store(&counted->left, WORKERS * count);
    pid_t pids[WORKERS];
    for (int i = 0; i < WORKERS; i++) {
        snprintf(number_text, sizeof number_text, "%d", i);
        setenv("LAPSE_TEST_SKEW", skews[i], 1);
        pids[i] =
            start_part((const char *[]){"work", at.url, path, number_text, orders, NULL}, NULL);
    }
    unsetenv("LAPSE_TEST_SKEW");
    for (int i = 0; i < WORKERS; i++)
        ck_assert_int_eq(end_of(pids[i]), 0);
    for (int i = 0; i < WORKERS; i++)
        for (int n = 0; n < count; n++)
            ck_assert_int_eq(atomic_load(&counted->runs[i][n]), 1);
    ck_assert_int_eq(atomic_load(&counted->early), 0);
    printf("%d orders of three clocks: late by %.0f ms at most\n", WORKERS * count,
           (double)atomic_load(&counted->worst) / 1e6);
    ck_assert_uint_eq(stats_of(r.s).pending + stats_of(r.s).running, 0);
    rig_close(&r);
}
END_TEST

static void fill_suite(Suite *suite)
{
    tcase_add_test(add_group(suite, "clocks"), p60_clocks_of_machines_move_nothing);
}

int main(int argc, char **argv)
{
    play_part(argc, argv, (const part[]){{"work", work}}, 1);
    return stores_main("postgresql clock", fill_suite);
}
