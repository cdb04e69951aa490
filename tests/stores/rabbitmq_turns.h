/* rabbitmq_turns.h - the RabbitMQ store through its table, without an engine: for test_rabbitmq_*.c.
 *
 * A bench is one open store; two benches on one prefix are two processes, as far as RabbitMQ is
 * concerned. Real time, since the broker's clock is real. */
#ifndef LAPSE_TESTS_RABBITMQ_TURNS_H
#define LAPSE_TESTS_RABBITMQ_TURNS_H

#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include "base/clock.h"
#include "stores/rabbitmq.h"
#include "stores/stores.h"

typedef struct bench {
    lp_durable *d;
    lp_store_config config;
    char url[512];
} bench;

static inline rabbit_store *inside(const bench *b)
{
    return (rabbit_store *)b->d;
}

static inline void open_bench(bench *b, const place *p)
{
    snprintf(b->url, sizeof b->url, "%s", p->url);
    b->config = (lp_store_config){.url = b->url,
                                  .lease = LAPSE_SECONDS(30),
                                  .now = lp_clock_now(NULL),
                                  .wall = lp_clock_wall(NULL)};
    int code = lp_rabbitmq_store.open(&b->config, &b->d);
    ck_assert_msg(code == 0, "open: %s", lapse_error_detail());
}

static inline void close_bench(bench *b)
{
    lp_rabbitmq_store.close(b->d);
}

/* One turn with one job (or none) and one want (or none). */
static inline int run(bench *b, lp_job *j, lp_want *w, lp_loan **loans)
{
    lp_job *jobs[] = {j};
    lp_turn t = {.now = lp_clock_now(NULL),
                 .wall = lp_clock_wall(NULL),
                 .lease = LAPSE_SECONDS(30),
                 .jobs = jobs,
                 .job_count = j != NULL,
                 .wants = w,
                 .want_count = w != NULL,
                 .push_most = 100};
    int code = lp_rabbitmq_store.turn(b->d, &t);
    if (loans != NULL)
        *loans = t.loans;
    else
        ck_assert_ptr_null(t.loans);
    return code;
}

/* The answer of one job. */
static inline int64_t ask(bench *b, lp_job *j)
{
    int code = run(b, j, NULL, NULL);
    ck_assert_msg(code == 0, "turn: %s", lapse_error_detail());
    return j->answer;
}

static inline int64_t put_at(bench *b, const char *queue, const char *id, lapse_ns delay,
                             char **detail)
{
    lp_job j = {.op = LP_SCHEDULE,
                .id = id,
                .id_len = strlen(id),
                .queue = queue,
                .due = lp_clock_now(NULL) + delay};
    int64_t answer = ask(b, &j);
    if (detail != NULL)
        *detail = j.detail;
    else
        free(j.detail);
    return answer;
}

/* The next order of a queue, within some seconds. */
static inline lp_loan *claim(bench *b, const char *queue)
{
    const char *queues[] = {queue};
    lapse_ns until = lp_clock_monotonic() + LIMIT;
    while (lp_clock_monotonic() < until) {
        lp_want w = {.queues = queues, .queue_count = 1, .most = 1};
        lp_loan *l;
        ck_assert_int_eq(run(b, NULL, &w, &l), 0);
        if (l != NULL)
            return l;
        struct epoll_event e;
        (void)epoll_wait(lp_rabbitmq_store.hint_fd(b->d), &e, 1, 20);
        lp_rabbitmq_store.hinted(b->d);
    }
    ck_abort_msg("no order came");
    return NULL;
}

static inline int64_t settle_as(bench *b, lp_loan *l, int op)
{
    lp_job j = {.op = op,
                .fence = l->fence,
                .due = lp_clock_now(NULL),
                .at = lp_clock_now(NULL),
                .reason = LAPSE_REASON_REJECTED,
                .error = op == LP_DIE ? "no such order" : NULL,
                .counted = true};
    return ask(b, &j);
}

static inline uint64_t count(bench *b, const char *what)
{
    char name[LP_RABBIT_NAME_MAX + 1];
    uint64_t n;
    lp_rabbit_name(name, inside(b)->settings.prefix, what);
    int code = lp_rabbit_count(&inside(b)->in, LP_RABBIT_DECLARE, name, &n);
    return code == LAPSE_EUNKNOWN ? 0 : n;
}

static inline void delete_queue(bench *b, const char *what)
{
    char name[LP_RABBIT_NAME_MAX + 1];
    lp_rabbit_name(name, inside(b)->settings.prefix, what);
    amqp_queue_delete_t m = {.queue = amqp_cstring_bytes(name)};
    ck_assert_int_eq(lp_rabbit_call(&inside(b)->in, LP_RABBIT_DECLARE, AMQP_QUEUE_DELETE_METHOD, &m,
                                    AMQP_QUEUE_DELETE_OK_METHOD, 0),
                     0);
}

#endif
