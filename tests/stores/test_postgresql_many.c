/* test_postgresql_many.c - many claim, change the same orders, use many queues. P-57. */
/* tiers: quick full soak */
/* servers: postgresql */
#define _GNU_SOURCE
#include "stores/postgresql_client.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

/* -- In each other's way ----------------------------------------------------------------------- */

/* Threads of this store and an application change the same ids in opposite orders. */
static struct {
    lapse *s;
    const place *at;
    atomic_bool stop;
} mesh;

static void cancel_backwards(void *arg, int thread)
{
    (void)arg, (void)thread;
    PGconn *app = try_connect(mesh.at);
    while (!atomic_load(&mesh.stop)) {
        PQclear(PQexec(app, "BEGIN"));
        for (int i = 9; i >= 0; i--) {
            char text[80];
            snprintf(text, sizeof text, "SELECT lapse_schedule('%d', '1 h', replace => true)", i);
            PQclear(PQexec(app, text)); /* It may be the one that has to give way. */
        }
        PQclear(PQexec(app, "COMMIT"));
        pause_ms(2); /* sleeps: as a shop that is not busy */
    }
    PQfinish(app);
}

START_TEST(deadlocks_are_nobodys_error)
{
    place at = new_place(PG, NULL);
    rig r = open_real(&at, NULL);
    put_batch(r.s, "", "", 10, LAPSE_HOURS(1));
    mesh.s = r.s;
    mesh.at = &at;
    atomic_store(&mesh.stop, false);
    crew c;
    crew_start(&c, 2, cancel_backwards, NULL);
    for (long round = 0; round < tier(20, 50, 2000); round++) {
        lapse_spec specs[10];
        int64_t results[10];
        char ids[10][8];
        for (int i = 0; i < 10; i++) {
            snprintf(ids[i], sizeof ids[i], "%d", (int)((i * 7 + round) % 10));
            specs[i] = (lapse_spec){.id = ids[i], .delay = LAPSE_HOURS(1), .flags = LAPSE_REPLACE};
        }
        int64_t accepted;
        while ((accepted = lapse_schedule_many(r.s, specs, 10, results)) < 10) {
            /* On a slow machine the others may hold a row for more than a second. */
            const char *words = lapse_error_detail();
            ck_assert_msg(strstr(words, "holds the order's row"), "%s", words);
        }
    }
    atomic_store(&mesh.stop, true);
    crew_join(&c);
    ck_assert_uint_eq(stats_of(r.s).pending, 10);
    rig_close(&r);
}
END_TEST

/* -- Many queues ------------------------------------------------------------------------------- */

static atomic_int taken;

static void take_two(void *arg, int thread)
{
    (void)thread;
    for (int i = 0; i < 2; i++) {
        const lapse_order *order;
        int result = lapse_take(arg, NULL, LIMIT, &order);
        if (result != 1 || strcmp(order->id, i ? "new" : "first") != 0)
            complain("%d: %s", result, result == 1 ? order->id : lapse_error_detail());
        else if (lapse_settle(arg, order->fence, LAPSE_DONE, 0, NULL) != 0)
            complain("%s", lapse_error_detail());
        atomic_fetch_add(&taken, 1);
    }
}

/* Who takes from any queue has to know all of them: they are looked for again only when
 * something was put into one that was not known, which is found at once. */
START_TEST(names_are_not_looked_for_with_each_order)
{
    place at = new_place(PG, "poll=1m&options=-c%20track_functions%3Dall");
    rig r = open_real(&at, NULL);
    put(r.s, "q", "first", 0);
    atomic_store(&taken, 0);
    crew c;
    crew_start(&c, 1, take_two, r.s);
    ck_assert(wait_until(has_run, &taken));
    for (int i = 0; i < 100; i++) {
        char id[16];
        snprintf(id, sizeof id, "%d", i);
        put(r.s, "q", id, LAPSE_HOURS(1));
    }
    put(r.s, "unknown", "new", 0);
    crew_join(&c);
    check_calm();
    rig_close(&r); /* Its connection tells what it counted. */
    PGconn *app = connect_app(&at);
    char text[200];
    snprintf(text, sizeof text,
             "SELECT coalesce(sum(calls), 0) FROM pg_stat_user_functions WHERE schemaname = '%s'"
             " AND funcname = 'lapse_heads'",
             schema_of(&at));
    long calls = 0;
    /* sleeps: between two looks */
    for (lapse_ns until = now_ns() + LIMIT; calls == 0 && now_ns() < until; pause_ms(10))
        calls = number(app, text);
    printf("%ld looks for names\n", calls);
    ck_assert_int_gt(calls, 0);
    ck_assert_int_lt(calls, 20);
    PQfinish(app);
}
END_TEST

/* -- Many claimers -------------------------------------------------------------------------------- */

typedef struct sheet {
    atomic_long left;
    atomic_uchar claimed[];
} sheet;

static sheet *counted;

static sheet *map_sheet(const char *path, long orders)
{
    size_t size = sizeof(sheet) + (size_t)orders;
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || ftruncate(fd, (off_t)size) != 0)
        return NULL;
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    return memory == MAP_FAILED ? NULL : memory;
}

static lapse_verdict count_claim(const lapse_order *order, void *arg)
{
    (void)arg;
    atomic_fetch_add(&counted->claimed[atol(order->id)], 1);
    atomic_fetch_sub(&counted->left, 1);
    return LAPSE_DONE;
}

/* claim <url> <sheet> <orders> */
static int claim(int argc, char **argv)
{
    lapse *s;
    if (argc != 4 || (counted = map_sheet(argv[2], atol(argv[3]))) == NULL)
        return 2;
    if (lapse_open(argv[1], NULL, &s) != 0)
        return 3;
    if (lapse_handle(s, "q", count_claim, NULL, NULL, NULL) != 0 || lapse_start(s, 20) != 0)
        return 4;
    while (atomic_load(&counted->left) > 0)
        pause_ms(5); /* sleeps: its workers work */
    return lapse_close(s, LIMIT) == 0 ? 0 : 6;
}

static const int claimers[] = {4, 16};

START_TEST(p57_each_order_is_claimed_once_by_many)
{
    long count = tier(500, 5000, 100000);
    place at = new_place(PG, "lease=60s");
    rig r = open_real(&at, NULL);
    for (long first = 0; first < count; first += 500) {
        char ids[500][16];
        lapse_spec specs[500];
        int64_t results[500];
        for (int i = 0; i < 500; i++) {
            snprintf(ids[i], sizeof ids[i], "%ld", first + i);
            specs[i] = (lapse_spec){.id = ids[i], .queue = "q"};
        }
        ck_assert_int_eq(lapse_schedule_many(r.s, specs, 500, results), 500);
    }
    char path[512], orders[16];
    new_path(path, sizeof path, "sheet");
    snprintf(orders, sizeof orders, "%ld", count);
    counted = map_sheet(path, count);
    ck_assert_ptr_nonnull(counted);
    atomic_store(&counted->left, count);
    pid_t pids[16];
    lapse_ns begun = now_ns();
    for (int i = 0; i < claimers[_i]; i++)
        pids[i] = start_part((const char *[]){"claim", at.url, path, orders, NULL}, NULL);
    for (int i = 0; i < claimers[_i]; i++)
        ck_assert_int_eq(end_of(pids[i]), 0);
    double took = (double)(now_ns() - begun) / 1e9;
    long doubles = 0;
    for (long i = 0; i < count; i++) {
        int n = atomic_load(&counted->claimed[i]);
        ck_assert_int_ge(n, 1);
        doubles += n - 1;
    }
    printf("%d claimers: %ld orders in %.1f s (%.0f a second), %ld doubles\n", claimers[_i], count,
           took, (double)count / took, doubles);
    ck_assert_int_eq(doubles, 0);
    ck_assert_uint_eq(stats_of(r.s).pending + stats_of(r.s).running, 0);
    rig_close(&r);
}
END_TEST

static void fill_suite(Suite *suite)
{
    TCase *group = add_group(suite, "many");
    tcase_add_test(group, deadlocks_are_nobodys_error);
    tcase_add_test(group, names_are_not_looked_for_with_each_order);
    tcase_add_loop_test(group, p57_each_order_is_claimed_once_by_many, 0, 2);
}

int main(int argc, char **argv)
{
    play_part(argc, argv, (const part[]){{"claim", claim}}, 1);
    return stores_main("postgresql many", fill_suite);
}
