/* redis.c - the Redis store turn by turn, as the driver's thread drives it: for redis.py, which
 * lets it and redis-benchmark take turns.
 *
 *     bench_store_redis URL [orders [in a turn [claimed in a turn]]]
 *
 * All orders are scheduled, due at once, then all claimed, then all ended: a JSON line of rates,
 * orders a second. The prefix must be a new one. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "stores/redis.h"

enum { PAYLOAD = 64, TURN_MAX = 1024 };

static const char *const queues[] = {"close"};

typedef struct run {
    lp_durable *d;
    size_t orders, in_turn;
    unsigned claimed;
    lp_loan **loans; /* all that were claimed */
} run;

static void die(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, lapse_error_detail());
    exit(1);
}

static lapse_ns now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_BOOTTIME, &t);
    return (lapse_ns)t.tv_sec * 1000000000 + t.tv_nsec;
}

static double rate(const run *r, lapse_ns began)
{
    return (double)r->orders / ((double)(now_ns() - began) / 1e9);
}

static void take_turn(run *r, lp_job *const *jobs, size_t count, lp_want *want, lp_loan **loans)
{
    lp_turn t = {.now = now_ns(),
                 .lease = LAPSE_HOURS(1),
                 .jobs = jobs,
                 .job_count = count,
                 .wants = want,
                 .want_count = want != NULL,
                 .push_most = TURN_MAX};
    if (r->d->ops->turn(r->d, &t) < 0)
        die("turn");
    for (size_t i = 0; i < count; i++)
        if (jobs[i]->answer < 0)
            die("job");
    if (loans)
        *loans = t.loans;
}

static double schedule(run *r)
{
    static lp_job jobs[TURN_MAX], *list[TURN_MAX];
    static char ids[TURN_MAX][16], payload[PAYLOAD];
    memset(payload, 'x', sizeof payload);
    lapse_ns began = now_ns();
    for (size_t done = 0, n; done < r->orders; done += n) {
        n = r->orders - done < r->in_turn ? r->orders - done : r->in_turn;
        for (size_t i = 0; i < n; i++) {
            int len = snprintf(ids[i], sizeof ids[i], "OID%08zu", done + i);
            jobs[i] = (lp_job){.op = LP_SCHEDULE,
                               .id = ids[i],
                               .id_len = (size_t)len,
                               .queue = queues[0],
                               .payload = payload,
                               .payload_len = sizeof payload,
                               .due = now_ns()};
            list[i] = &jobs[i];
        }
        take_turn(r, list, n, NULL, NULL);
    }
    return rate(r, began);
}

static double claim(run *r)
{
    lapse_ns began = now_ns();
    for (size_t done = 0; done < r->orders;) {
        lp_want want = {.queues = queues, .queue_count = 1, .most = r->claimed};
        lp_loan *l;
        take_turn(r, NULL, 0, &want, &l);
        for (; l; l = l->next)
            r->loans[done++] = l;
    }
    return rate(r, began);
}

static double end(run *r)
{
    static lp_job jobs[TURN_MAX], *list[TURN_MAX];
    lapse_ns began = now_ns();
    for (size_t done = 0, n; done < r->orders; done += n) {
        n = r->orders - done < r->claimed ? r->orders - done : r->claimed;
        for (size_t i = 0; i < n; i++) {
            const lp_loan *l = r->loans[done + i];
            jobs[i] = (lp_job){.op = LP_END, .id = l->id, .id_len = l->id_len, .fence = l->fence};
            list[i] = &jobs[i];
        }
        take_turn(r, list, n, NULL, NULL);
    }
    return rate(r, began);
}

static size_t number(int argc, char **argv, int i, size_t otherwise, size_t most)
{
    size_t n = i < argc ? strtoul(argv[i], NULL, 10) : otherwise;
    return n < 1 ? 1 : n < most ? n : most;
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: %s URL [orders [in a turn [claimed in a turn]]]\n", argv[0]);
        return 2;
    }
    run r = {.orders = number(argc, argv, 2, 100000, 10000000),
             .in_turn = number(argc, argv, 3, 256, TURN_MAX),
             .claimed = (unsigned)number(argc, argv, 4, 100, 500)};
    lp_store_config config = {
        .url = argv[1], .lease = LAPSE_SECONDS(30), .now = now_ns(), .max_dead = 10000};
    if (lp_redis_store.open(&config, &r.d) < 0)
        die(argv[1]);
    r.loans = calloc(r.orders, sizeof(lp_loan *));
    if (!r.loans)
        die("memory");
    double scheduled = schedule(&r), claimed = claim(&r), ended = end(&r);
    printf("{\"orders\": %zu, \"schedule\": %.0f, \"claim\": %.0f, \"end\": %.0f}\n", r.orders,
           scheduled, claimed, ended);
    for (size_t i = 0; i < r.orders; i++)
        free(r.loans[i]);
    free(r.loans);
    r.d->ops->close(r.d);
    return 0;
}
