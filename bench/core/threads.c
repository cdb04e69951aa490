/* threads.c - two producers on one scheduler.
 *
 * `n` orders are pending; each thread owns half of them and cancels a random one of its
 * own, then schedules a new one, again and again. The same work is then done by one
 * thread alone. The calls are written down before the clock starts. */
#include <pthread.h>
#include <stdlib.h>

#include "clock.h"
#include "measure.h"
#include "workload.h"

#define MAX_PAIRS 1000000

typedef struct pair {
    bench_id cancelled, scheduled;
} pair;

typedef struct producer {
    const bench_peer *peer;
    pair *pairs;
    size_t count;
    size_t missed; /* cancels that found nothing */
    pthread_barrier_t *barrier;
} producer;

typedef struct live_orders {
    uint64_t *numbers;
    size_t count;
    uint64_t next; /* number of the next new order */
} live_orders;

static pair *plan(live_orders *live, size_t count, uint64_t *seed)
{
    pair *pairs = bench_alloc(count, sizeof *pairs);
    for (size_t i = 0; i < count; i++) {
        uint64_t *picked = &live->numbers[random_below(seed, live->count)];
        make_id(pairs[i].cancelled, *picked);
        *picked = live->next++;
        make_id(pairs[i].scheduled, *picked);
    }
    return pairs;
}

static void churn(producer *p)
{
    for (size_t i = 0; i < p->count; i++) {
        p->missed += !p->peer->cancel(p->pairs[i].cancelled);
        p->peer->schedule(p->pairs[i].scheduled, BENCH_DELAY);
        if (i % BENCH_BATCH == BENCH_BATCH - 1)
            p->peer->turn();
    }
}

static void *produce(void *arg)
{
    producer *p = arg;
    pthread_barrier_wait(p->barrier);
    churn(p);
    return NULL;
}

static void check_missed(const producer *p)
{
    if (p->missed)
        bench_die("%s: %zu cancels found no order", p->peer->name, p->missed);
}

static int64_t churn_on_two_threads(producer p[2])
{
    pthread_barrier_t barrier;
    pthread_barrier_init(&barrier, NULL, 3);
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) {
        p[i].barrier = &barrier;
        if (pthread_create(&threads[i], NULL, produce, &p[i]) != 0)
            bench_die("no thread");
    }
    pthread_barrier_wait(&barrier);
    int64_t start = clock_real();
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    int64_t spent = clock_real() - start;
    pthread_barrier_destroy(&barrier);
    return spent;
}

static int64_t churn_on_one_thread(producer p[2])
{
    int64_t start = clock_real();
    churn(&p[0]);
    churn(&p[1]);
    return clock_real() - start;
}

static void plan_round(producer p[2], live_orders live[2], size_t count, uint64_t *seed)
{
    for (int i = 0; i < 2; i++) {
        free(p[i].pairs);
        p[i].pairs = plan(&live[i], count, seed);
        p[i].count = count;
    }
}

void run_threads(const bench_peer *peer, size_t n, uint64_t seed)
{
    size_t half = n / 2, pairs = n < MAX_PAIRS ? n : MAX_PAIRS;
    live_orders live[2];
    for (size_t i = 0; i < 2; i++) {
        live[i] = (live_orders){.numbers = bench_alloc(half, sizeof(uint64_t)),
                                .count = half,
                                .next = (i + 1) * UINT64_C(1000000000000)};
        for (size_t k = 0; k < half; k++)
            live[i].numbers[k] = i * half + k;
    }
    producer p[2] = {{.peer = peer}, {.peer = peer}};
    fill_const(peer, n);

    plan_round(p, live, pairs / 2, &seed);
    result_add("pair_2_threads_ns", (double)churn_on_two_threads(p) / (double)pairs);
    plan_round(p, live, pairs / 2, &seed);
    result_add("pair_1_thread_ns", (double)churn_on_one_thread(p) / (double)pairs);
    for (int i = 0; i < 2; i++) {
        check_missed(&p[i]);
        free(p[i].pairs);
        free(live[i].numbers);
    }
}
