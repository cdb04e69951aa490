/* durable.c - orders outlive the process: one places them and is killed, another closes what is
 * overdue.
 *
 * The first process places three orders, two to be paid within two seconds and one within a
 * minute, and then dies by kill -9. Three seconds later the other one opens the same SQLite file.
 * It learns that the third order was paid, and closes the other two, a second late; nobody
 * schedules anything for that. Neither process knows a function of the other: an order names the
 * queue of a handler.
 *
 * With Redis key-expiry events the two orders would be lost: nobody listened when they expired.
 *
 * LAPSE_DEMO_SPEED=20 in the environment makes every delay 20 times shorter. */
#define _GNU_SOURCE /* mkdtemp, CLOCK_BOOTTIME */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <lapse.h>

enum { PATH_LEN = 256 };

static lapse_ns started;

static lapse_ns demo_speed(void)
{
    const char *text = getenv("LAPSE_DEMO_SPEED");
    long speed = text != NULL ? strtol(text, NULL, 10) : 1;
    return speed >= 1 ? speed : 1;
}

/* The clock of all schedulers, in every process. */
static lapse_ns now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_BOOTTIME, &t);
    return LAPSE_SECONDS(t.tv_sec) + t.tv_nsec;
}

static void tell(const char *id, const char *event, const char *note)
{
    printf("%6.2f s  %-12s %-8s %s\n", (double)(now() - started) / 1e9, id, event, note);
    fflush(stdout);
}

static int failed(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, lapse_error_detail());
    return EXIT_FAILURE;
}

/* -- The shop: when lapse_put returns, the order is on the disk -- */

static int place(lapse *s, const char *id, lapse_ns pay_within)
{
    lapse_spec spec = {.id = id, .queue = "close_unpaid", .delay = pay_within / demo_speed()};
    if (lapse_put(s, &spec) < 0)
        return failed("lapse_put");
    tell(id, "placed", "");
    return EXIT_SUCCESS;
}

static int place_orders(const char *url)
{
    lapse *s;
    if (lapse_open(url, NULL, &s) < 0)
        return failed("lapse_open");
    if (place(s, "OID1", LAPSE_SECONDS(2)) || place(s, "OID2", LAPSE_SECONDS(60)) ||
        place(s, "OID3", LAPSE_SECONDS(2)))
        return EXIT_FAILURE;
    return raise(SIGKILL);
}

/* -- The next process: it only consumes -- */

struct closing {
    lapse *lapse;
    int unpaid;
};

static lapse_verdict close_unpaid(const lapse_order *order, void *arg)
{
    struct closing *closing = arg;
    char note[32];
    snprintf(note, sizeof note, "late %.1f ms", (double)order->late / 1e6);
    tell(order->id, "closed", note);
    if (--closing->unpaid == 0)
        lapse_stop(closing->lapse); /* Ends lapse_run below. */
    return LAPSE_DONE;
}

static int close_overdue(const char *url)
{
    struct closing closing = {.unpaid = 2};
    lapse_policy policy = {.attempts = 5};
    if (lapse_open(url, NULL, &closing.lapse) < 0)
        return failed("lapse_open");
    lapse *s = closing.lapse;
    if (lapse_handle(s, "close_unpaid", close_unpaid, &closing, NULL, &policy) < 0)
        return failed("lapse_handle");
    if (lapse_cancel(s, "OID2", LAPSE_ANY) == LAPSE_FATE_CANCELLED)
        tell("OID2", "paid", "");
    int status = lapse_run(s) < 0 ? failed("lapse_run") : EXIT_SUCCESS;
    return lapse_close(s, LAPSE_SECONDS(1)) < 0 ? failed("lapse_close") : status;
}

/* -- Both, in a folder of their own -- */

static void sleep_for(lapse_ns time)
{
    struct timespec t = {.tv_sec = time / LAPSE_SECONDS(1), .tv_nsec = time % LAPSE_SECONDS(1)};
    clock_nanosleep(CLOCK_BOOTTIME, 0, &t, NULL);
}

/* Nothing is open yet when this forks. */
static int run_shop(const char *url)
{
    int how;
    pid_t shop = fork();
    if (shop == 0)
        _exit(place_orders(url));
    if (shop < 0 || waitpid(shop, &how, 0) < 0 || !WIFSIGNALED(how) || WTERMSIG(how) != SIGKILL) {
        fprintf(stderr, "the shop did not end as it should\n");
        return EXIT_FAILURE;
    }
    return EXIT_SUCCESS;
}

static void remove_all(const char *folder)
{
    static const char *const names[] = {"orders.db", "orders.db-wal", "orders.db-shm",
                                        "orders.db-lapse"};
    char path[PATH_LEN];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        unlink(path);
    }
    rmdir(folder);
}

int main(void)
{
    char folder[] = "/tmp/lapse-durable-XXXXXX";
    char url[PATH_LEN];
    started = now();
    if (!mkdtemp(folder)) {
        perror("mkdtemp");
        return EXIT_FAILURE;
    }
    snprintf(url, sizeof url, "sqlite:///%s/orders.db", folder);
    int status = run_shop(url);
    if (status == EXIT_SUCCESS) {
        sleep_for(LAPSE_SECONDS(3) / demo_speed());
        status = close_overdue(url);
    }
    remove_all(folder);
    return status;
}
