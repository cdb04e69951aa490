/* test_kill.c - stores that processes share: kill -9 at every step. P-57, P-63.
 *
 * Workers are this program again. They die by SIGKILL between claim and settle at the step
 * they were told, or whenever their parent likes; others go on, and they are started anew.
 * In the end every order was done, none ran more often than once, and once for each
 * kill that hit it or lease that ended, and whatever a call had promised is there. */
/* tiers: small full soak */
/* servers */
#define _GNU_SOURCE
#include "stores/stores.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

/* -- What happened: a file that all processes map ------------------------------------------ */

enum { ORDERS_MOST = 20000, WORKERS = 4 };

typedef struct ledger {
    atomic_int runs[ORDERS_MOST]; /* deliveries that started */
    atomic_int done[ORDERS_MOST]; /* settlements that were answered with success */
    atomic_int hits[ORDERS_MOST]; /* deaths while this order was with the one who died */
    atomic_int lost[ORDERS_MOST]; /* settlements that were told that the lease had ended */
    atomic_int with[WORKERS];     /* the order that a worker has, or -1 */
} ledger;

static ledger *map_ledger(const char *path)
{
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || ftruncate(fd, sizeof(ledger)) != 0)
        return NULL;
    void *memory = mmap(NULL, sizeof(ledger), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    return memory == MAP_FAILED ? NULL : memory;
}

/* -- The worker ------------------------------------------------------------------------------ */

/* Where it dies, in the order in which it comes there. */
enum { NEVER, BEFORE_CLAIM, AFTER_CLAIM, IN_CALLBACK, AFTER_CALLBACK, AFTER_SETTLEMENT, STEPS };

static struct worker {
    ledger *l;
    lapse *s;
    int number, step;
    bool takes;
    long after; /* orders that it finishes first */
    lapse_ns idle_since;
} me;

static void die_at(int step)
{
    if (step == me.step && me.after <= 0)
        kill(getpid(), SIGKILL);
}

static lapse_verdict work(const lapse_order *order, void *arg)
{
    (void)order, (void)arg;
    die_at(IN_CALLBACK);
    return LAPSE_DONE;
}

/* One order, as a host does it that calls callbacks itself. */
static int work_on(const lapse_order *order, lapse_callback fn, void *arg)
{
    int n = atoi(order->id);
    me.idle_since = 0;
    atomic_store(&me.l->with[me.number], n);
    atomic_fetch_add(&me.l->runs[n], 1);
    die_at(AFTER_CLAIM);
    lapse_verdict verdict = fn(order, arg);
    die_at(AFTER_CALLBACK);
    int result = lapse_settle(me.s, order->fence, verdict, 0, NULL);
    if (me.takes && result == 0) /* A taker's is in the store when it is answered. */
        atomic_store(&me.l->with[me.number], -1);
    die_at(AFTER_SETTLEMENT);
    if (result == 0)
        atomic_fetch_add(&me.l->done[n], 1);
    else if (result == LAPSE_ESTALE || result == LAPSE_EUNSURE) /* The machine is too busy. */
        atomic_fetch_add(&me.l->lost[n], 1);
    me.after--;
    return result == LAPSE_ESTALE || result == LAPSE_EUNSURE ? 0 : result;
}

/* A callback's settlement is in the store once the next one has been claimed, or the
 * statistics have been asked for: until then the order is still with its worker. */
static bool is_empty(void)
{
    lapse_stats stats;
    if (lapse_statistics(me.s, &stats) != 0)
        return false;
    atomic_store(&me.l->with[me.number], -1);
    return stats.pending + stats.running == 0;
}

/* A pipe counts what waits, and not what it has not yet heard is nobody's any more: what a worker
 * that was killed had been sent. */
static bool stays_empty(void)
{
    if (!is_empty()) {
        me.idle_since = 0;
        return false;
    }
    if (lapse_abilities(me.s) & LAPSE_CAN_LIST)
        return true;
    if (me.idle_since == 0)
        me.idle_since = lapse_now(me.s);
    return lapse_now(me.s) - me.idle_since >= LAPSE_SECONDS(3);
}

/* work <url> <ledger> <number> <step> <after> <how> */
static int work_until_empty(int argc, char **argv)
{
    if (argc != 7 || (me.l = map_ledger(argv[2])) == NULL)
        return 2;
    me.number = atoi(argv[3]);
    me.step = atoi(argv[4]);
    me.after = atol(argv[5]);
    me.takes = strcmp(argv[6], "take") == 0;
    if (lapse_open(argv[1], NULL, &me.s) != 0) {
        fprintf(stderr, "%s: %s\n", argv[1], lapse_error_detail());
        return 3;
    }
    lapse_policy policy = {.attempts = 1000};
    if (!me.takes && lapse_handle(me.s, "q", work, NULL, NULL, &policy) != 0)
        return 4;
    for (int result = 0; result >= 0;) {
        const lapse_order *order;
        lapse_callback fn = work;
        void *arg = NULL;
        die_at(BEFORE_CLAIM);
        result = me.takes ? lapse_take(me.s, "q", LAPSE_MS(20), &order)
                          : lapse_begin(me.s, LAPSE_FOREVER, &order, &fn, &arg);
        if (result == 1)
            result = work_on(order, fn, arg);
        else if (result == LAPSE_EUNSURE)
            result = 0; /* What was claimed, if anything, comes again. */
        else if (result == 0 && stays_empty())
            return lapse_close(me.s, LIMIT) == 0 ? 0 : 5;
        else if (result == 0 && !me.takes)
            result = lapse_wait(me.s, LAPSE_MS(20));
    }
    fprintf(stderr, "worker: %s\n", lapse_error_detail());
    return 6;
}

/* -- The supervisor -------------------------------------------------------------------------------- */

typedef struct fleet {
    place at;
    char path[400];
    ledger *l;
    const char *how;
    rng luck;
    pid_t pids[WORKERS];
    int kills, kills_wanted, next_step;
} fleet;

static void start_worker(fleet *f, int number)
{
    char words[3][24];
    int step = NEVER;
    if (f->kills + WORKERS <= f->kills_wanted) /* The last ones live. */
        step = 1 + f->next_step++ % (STEPS - 1);
    snprintf(words[0], sizeof words[0], "%d", number);
    snprintf(words[1], sizeof words[1], "%d", step);
    snprintf(words[2], sizeof words[2], "%d", (int)rng_range(&f->luck, 0, 12));
    const char *const argv[] = {"work",   f->at.url, f->path, words[0],
                                words[1], words[2],  f->how,  NULL};
    atomic_store(&f->l->with[number], -1);
    f->pids[number] = start_part(argv, NULL);
}

/* The end of any worker: its number, or -1 when none is left. */
static int wait_for_one(fleet *f, int *status)
{
    for (;;) {
        pid_t pid = waitpid(-1, status, 0);
        if (pid < 0 && errno == EINTR)
            continue;
        if (pid < 0)
            return -1;
        for (int i = 0; i < WORKERS; i++)
            if (f->pids[i] == pid)
                return i;
    }
}

/* Workers, until the store is empty and those who ended so are all of them. */
static void supervise(fleet *f)
{
    int status, number;
    for (int i = 0; i < WORKERS; i++)
        start_worker(f, i);
    while ((number = wait_for_one(f, &status)) >= 0) {
        f->pids[number] = 0;
        if (WIFEXITED(status)) {
            ck_assert_int_eq(WEXITSTATUS(status), 0);
            continue;
        }
        ck_assert_int_eq(WTERMSIG(status), SIGKILL);
        f->kills++;
        int had = atomic_load(&f->l->with[number]);
        if (had >= 0)
            atomic_fetch_add(&f->l->hits[had], 1);
        start_worker(f, number);
    }
}

/* Fails, with what the store knows of the order. */
static void tell_of_loss(fleet *f, long n)
{
    char id[16];
    rig r = open_real(&f->at, NULL);
    snprintf(id, sizeof id, "%ld", n);
    lapse_stats t = stats_of(r.s);
    ck_abort_msg("order %ld never ran: its state is %d; %d hits, %" PRIu64 " pending, %" PRIu64
                 " running, %" PRIu64 " dead",
                 n, state_of(r.s, id), atomic_load(&f->l->hits[n]), t.pending, t.running, t.dead);
}

/* What acknowledges without an answer, as a pipe does, may lose with a kill what was sent last: at
 * most that many runs again. */
static long most_unheard(const fleet *f)
{
    enum { IN_FLIGHT = 2 };
    rig r = open_real(&f->at, NULL);
    bool is_pipe = (lapse_abilities(r.s) & LAPSE_CAN_LIST) == 0;
    rig_close(&r);
    return is_pipe ? IN_FLIGHT * f->kills : 0;
}

static void judge(fleet *f, long count)
{
    long runs = 0, most = 0, hit = 0, lost = 0, unheard = 0, allowed = most_unheard(f);
    for (long i = 0; i < count; i++) {
        int ran = atomic_load(&f->l->runs[i]), hits = atomic_load(&f->l->hits[i]);
        int stale = atomic_load(&f->l->lost[i]);
        if (ran < 1)
            tell_of_loss(f, i);
        if (ran > 1 + hits + stale)
            unheard += ran - (1 + hits + stale);
        ck_assert_msg(unheard <= allowed,
                      "order %ld ran %d times; %d kills hit it, %d leases ended", i, ran, hits,
                      stale);
        ck_assert_msg(atomic_load(&f->l->done[i]) <= 1 + hits || allowed > 0,
                      "order %ld was done twice", i);
        runs += ran;
        most = ran > most ? ran : most;
        hit += hits;
        lost += stale;
    }
    printf("%s, %s: %ld orders, %d kills of which %ld hit an order, %ld leases ended, %ld runs, "
           "of one order %ld at most, %ld acknowledgements lost\n",
           store_name(f->at.store), f->how, count, f->kills, hit, lost, runs, most, unheard);
    rig r = open_real(&f->at, NULL);
    lapse_stats t = stats_of(r.s);
    ck_assert_uint_eq(t.pending + t.running, 0);
    ck_assert_uint_eq(t.dead, 0);
    rig_close(&r);
}

static void put_numbers(lapse *s, const char *queue, long count)
{
    enum { TOGETHER = 500 };
    static char ids[TOGETHER][16];
    static lapse_spec specs[TOGETHER];
    static int64_t results[TOGETHER];
    for (long first = 0; first < count; first += TOGETHER) {
        long n = count - first < TOGETHER ? count - first : TOGETHER;
        for (long i = 0; i < n; i++) {
            snprintf(ids[i], sizeof ids[i], "%ld", first + i);
            specs[i] = (lapse_spec){.id = ids[i], .queue = queue};
        }
        ck_assert_int_eq(lapse_schedule_many(s, specs, (size_t)n, results), n);
    }
}

static void kill_at_every_step(int store, const char *test, const char *how)
{
    fleet f = {.at = new_place(store, NULL), .how = how};
    rig r = open_real(&f.at, NULL);
    add_option(&f.at, "lease=1s"); /* For the workers. */
    bool shared = able(&r, test, LAPSE_CAN_SHARE) && shared_by_processes(store, test);
    long count = tier(300, 2500, ORDERS_MOST);
    if (shared)
        put_numbers(r.s, "q", count);
    rig_close(&r);
    if (!shared)
        return;
    f.luck = rng_open(test);
    f.kills_wanted = (int)tier(15, 25, 250);
    new_path(f.path, sizeof f.path, "ledger");
    f.l = map_ledger(f.path);
    ck_assert_ptr_nonnull(f.l);
    supervise(&f);
    judge(&f, count);
    munmap(f.l, sizeof *f.l);
}

START_TEST(p57_kill_at_every_step_of_a_callback)
{
    kill_at_every_step(_i, __func__, "handle");
}
END_TEST

START_TEST(p57_kill_at_every_step_of_a_taker)
{
    kill_at_every_step(_i, __func__, "take");
}
END_TEST

/* -- Promises that were given before the kill ------------------------------------------------------- */

/* promise <url> <seed>: schedule and cancel as fast as can be, and say so when it was
 * answered: "+<id>", "-<id>", until killed. */
static int promise(int argc, char **argv)
{
    lapse *s;
    if (argc != 3 || lapse_open(argv[1], NULL, &s) != 0)
        return 2;
    uint64_t seed = strtoull(argv[2], NULL, 0);
    for (int i = 0;; i++) {
        char id[48], line[64];
        snprintf(id, sizeof id, "%" PRIx64 "-%d", seed, i);
        lapse_spec spec = {.id = id, .queue = "q", .delay = LAPSE_HOURS(1)};
        spec.payload = id;
        spec.payload_len = strlen(id);
        if (lapse_put(s, &spec) < 1)
            return 3;
        int length = snprintf(line, sizeof line, "+%s\n", id);
        if (write(STDOUT_FILENO, line, (size_t)length) != length)
            return 4;
        if (i % 3)
            continue;
        if (lapse_cancel(s, id, LAPSE_ANY) != LAPSE_FATE_CANCELLED)
            return 5;
        line[0] = '-';
        if (write(STDOUT_FILENO, line, (size_t)length) != length)
            return 6;
    }
}

/* put <url> <seed>: the same without cancelling, of orders that are due by and by: for stores that
 * can only be asked by taking what they have. */
static int put_on(int argc, char **argv)
{
    lapse *s;
    if (argc != 3 || lapse_open(argv[1], NULL, &s) != 0)
        return 2;
    for (int i = 0;; i++) {
        char id[24], line[32];
        snprintf(id, sizeof id, "%s-%d", argv[2], i);
        lapse_spec spec = {.id = id, .queue = "q", .delay = LAPSE_MS(i % 4 * 100)};
        if (lapse_put(s, &spec) < 1)
            return 3;
        int length = snprintf(line, sizeof line, "%s\n", id);
        if (write(STDOUT_FILENO, line, (size_t)length) != length)
            return 4;
    }
}

/* What a child promised stands; what it was just about to promise may stand too. */
static long check_promises(lapse *s, FILE *lines)
{
    char line[80];
    long count = 0;
    while (fgets(line, sizeof line, lines) != NULL) {
        if (strchr(line, '\n') == NULL)
            break; /* Killed in the middle of a line. */
        *strchr(line, '\n') = '\0';
        count++;
        if (line[0] == '-') {
            ck_assert_int_eq(state_of(s, line + 1), 0);
            continue;
        }
        lapse_info info;
        int result = lapse_get(s, line + 1, &info);
        bool may_be_cancelled = atoi(strrchr(line, '-') + 1) % 3 == 0;
        ck_assert_msg(result == 0 || may_be_cancelled, "%s was accepted and is lost", line + 1);
        if (result != 0)
            continue;
        ck_assert_uint_eq(info.payload_len, strlen(line + 1));
        ck_assert_mem_eq(info.payload, line + 1, info.payload_len);
        lapse_info_free(&info);
    }
    return count;
}

START_TEST(p57_what_was_answered_before_a_kill_stands)
{
    enum { PROMISERS = 3 };
    place at = new_place(_i, NULL);
    rig r = open_real(&at, NULL);
    NEEDS(&r, LAPSE_CAN_CANCEL | LAPSE_CAN_LIST);
    NEEDS_PROCESSES(&r, _i);
    rng luck = rng_open("p57_what_was_answered_before_a_kill_stands");
    long promises = 0, rounds = tier(5, 12, 400);
    for (long round = 0; round < rounds; round++) {
        pid_t pids[PROMISERS];
        int outs[PROMISERS];
        for (int i = 0; i < PROMISERS; i++) {
            char seed[24];
            snprintf(seed, sizeof seed, "%" PRIu64, rng_next(&luck));
            const char *const argv[] = {"promise", at.url, seed, NULL};
            pids[i] = start_part(argv, &outs[i]);
        }
        struct pollfd first = {.fd = outs[0], .events = POLLIN};
        ck_assert_int_eq(poll(&first, 1, (int)(LIMIT / LAPSE_MS(1))), 1);
        lapse_ns until_kill = boot_now() + LAPSE_US(rng_range(&luck, 0, 20000));
        while (boot_now() < until_kill)
            ck_assert_int_ge(poll(&first, 0, 1), 0);
        for (int i = 0; i < PROMISERS; i++)
            ck_assert_int_eq(kill(pids[i], SIGKILL), 0);
        for (int i = 0; i < PROMISERS; i++) {
            ck_assert_int_eq(end_of(pids[i]), -SIGKILL);
            FILE *lines = fdopen(outs[i], "r");
            ck_assert_ptr_nonnull(lines);
            promises += check_promises(r.s, lines);
            fclose(lines);
        }
        if (round % 5 == 0) { /* Also by one who opens it after the kill. */
            rig_close(&r);
            r = open_real(&at, NULL);
        }
    }
    printf("%s: %ld promises, %ld rounds of %d kills\n", store_name(_i), promises, rounds,
           PROMISERS);
    ck_assert_int_gt(promises, rounds);
    rig_close(&r);
}
END_TEST

/* Each that was answered is delivered, to somebody who was there already. */
static long check_deliveries(tape *ran, FILE *lines)
{
    char line[32];
    long count = 0;
    while (fgets(line, sizeof line, lines) != NULL) {
        if (strchr(line, '\n') == NULL)
            break; /* Killed in the middle of a line. */
        *strchr(line, '\n') = '\0';
        lapse_ns patience = boot_now() + LIMIT;
        while (tape_runs(ran, line) == 0 && boot_now() < patience)
            ck_assert_int_ge(poll(NULL, 0, 1), 0); /* sleeps: the store's time */
        ck_assert_msg(tape_runs(ran, line) > 0, "%s was accepted and is lost", line);
        count++;
    }
    return count;
}

START_TEST(p57_what_was_answered_before_a_kill_is_delivered)
{
    enum { PUTTERS = 3 };
    place at = new_place(_i, NULL);
    rig r = open_real(&at, NULL);
    NEEDS_PROCESSES(&r, _i);
    player pl;
    player_open(&pl, r.s, NULL);
    handle(r.s, "q", &pl, NULL);
    ck_assert_int_eq(lapse_start(r.s, 2), 0);
    rng luck = rng_open("p57_what_was_answered_before_a_kill_is_delivered");
    long promises = 0, rounds = tier(3, 5, 100);
    for (long round = 0; round < rounds; round++) {
        pid_t pids[PUTTERS];
        int outs[PUTTERS];
        for (int i = 0; i < PUTTERS; i++) {
            char name[16];
            snprintf(name, sizeof name, "%ld.%d", round, i);
            const char *const argv[] = {"put", at.url, name, NULL};
            pids[i] = start_part(argv, &outs[i]);
        }
        struct pollfd first = {.fd = outs[0], .events = POLLIN};
        ck_assert_int_eq(poll(&first, 1, (int)(LIMIT / LAPSE_MS(1))), 1);
        lapse_ns until_kill = boot_now() + LAPSE_US(rng_range(&luck, 0, 20000));
        while (boot_now() < until_kill)
            ck_assert_int_ge(poll(&first, 0, 1), 0);
        for (int i = 0; i < PUTTERS; i++)
            ck_assert_int_eq(kill(pids[i], SIGKILL), 0);
        for (int i = 0; i < PUTTERS; i++) {
            ck_assert_int_eq(end_of(pids[i]), -SIGKILL);
            FILE *lines = fdopen(outs[i], "r");
            ck_assert_ptr_nonnull(lines);
            promises += check_deliveries(&pl.ran, lines);
            fclose(lines);
        }
    }
    printf("%s: %ld promises, %ld rounds of %d kills\n", store_name(_i), promises, rounds, PUTTERS);
    ck_assert_int_ge(promises, rounds);
    player_close(&pl);
    rig_close(&r);
}
END_TEST

static void fill_suite(Suite *suite)
{
    TCase *group = add_group(suite, "kill -9");
    ADD_FOR_STORES(group, p57_kill_at_every_step_of_a_callback);
    ADD_FOR_STORES(group, p57_kill_at_every_step_of_a_taker);
    ADD_FOR_STORES(group, p57_what_was_answered_before_a_kill_stands);
    ADD_FOR_STORES(group, p57_what_was_answered_before_a_kill_is_delivered);
}

int main(int argc, char **argv)
{
    static const part parts[] = {{"work", work_until_empty}, {"promise", promise}, {"put", put_on}};
    play_part(argc, argv, parts, 3);
    return stores_main("kill", fill_suite);
}
