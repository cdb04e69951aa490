/* redis_turns.h - the Redis store through its table, without an engine: for test_redis_*.c.
 *
 * A bench is one open store with the time that it is told; two benches on one prefix are two
 * processes, as far as Redis is concerned. The server's clock is real. */
#ifndef LAPSE_TESTS_REDIS_TURNS_H
#define LAPSE_TESTS_REDIS_TURNS_H

#include "stores/stores.h"

#include <hiredis/hiredis.h>
#include <stdlib.h>

#include "stores/one_turn.h"

#define LEASE LAPSE_SECONDS(30)

typedef struct bench {
    lp_durable *d;
    lp_store_config config;
    lapse_ns skew; /* of the clock that it is told, from the real one */
    lapse_ns lease;
} bench;

/* -- Opening ------------------------------------------------------------------------------ */

static inline lapse_ns now_of(const bench *b)
{
    return boot_now() + b->skew;
}

static inline bench open_bench(const place *p, const char *options, lapse_ns skew)
{
    char url[640];
    snprintf(url, sizeof url, "%s&%s", p->url, options);
    bench b = {.skew = skew, .lease = LEASE};
    b.config = (lp_store_config){
        .url = url, .lease = LEASE, .now = boot_now() + skew, .wall = UTC_START - skew};
    int code = lp_redis_store.open(&b.config, &b.d);
    ck_assert_msg(code == 0, "open: %d %s", code, lapse_error_detail());
    b.config.url = NULL;
    return b;
}

static inline void close_bench(bench *b)
{
    lp_redis_store.close(b->d);
}

/* -- Turns -------------------------------------------------------------------------------- */

static inline int run_turn(bench *b, lp_job *const *jobs, size_t count, lp_want *wants,
                           size_t want_count, lp_loan **loans)
{
    lp_loan *claimed = NULL;
    int code = take_one_turn(b->d, now_of(b), UTC_START, b->lease, jobs, count, wants, want_count,
                             &claimed);
    if (loans)
        *loans = claimed;
    else
        free_loans(claimed);
    return code;
}

static inline void forget(lp_job *j)
{
    free(j->detail);
    free(j->of_queue);
    j->detail = j->of_queue = NULL;
}

static inline int64_t ask(bench *b, lp_job *j)
{
    int code = run_turn(b, &j, 1, NULL, 0, NULL);
    ck_assert_msg(code == 0, "turn: %d %s", code, lapse_error_detail());
    forget(j);
    return j->answer;
}

static inline lp_job schedule_job(const bench *b, const char *id, lapse_ns delay)
{
    return (lp_job){
        .op = LP_SCHEDULE, .id = id, .id_len = strlen(id), .queue = "q", .due = now_of(b) + delay};
}

static inline int64_t schedule(bench *b, const char *id, lapse_ns delay)
{
    lp_job j = schedule_job(b, id, delay);
    return ask(b, &j);
}

static inline int64_t end_claim(bench *b, const lp_loan *l, int op)
{
    lp_job j = {.op = op,
                .id = l->id,
                .id_len = l->id_len,
                .fence = l->fence,
                .due = now_of(b),
                .at = now_of(b),
                .lease = LEASE,
                .counted = true,
                .reason = LAPSE_REASON_FAILED};
    return ask(b, &j);
}

static inline lp_loan *claim(bench *b, unsigned most, bool newest, lapse_ns *next)
{
    static const char *const queues[] = {"q"};
    lp_want w = {.queues = queues, .queue_count = 1, .most = most, .newest = newest};
    lp_loan *loans;
    int code = run_turn(b, NULL, 0, &w, 1, &loans);
    ck_assert_msg(code == 0, "turn: %d %s", code, lapse_error_detail());
    if (next)
        *next = w.next;
    return loans;
}

/* Ask until one is due. */
static inline lp_loan *claim_soon(bench *b)
{
    lp_loan *l = NULL;
    for (lapse_ns end = boot_now() + LIMIT; !l && boot_now() < end;)
        l = claim(b, 1, false, NULL);
    ck_assert_msg(l != NULL, "nothing has fallen due");
    return l;
}

/* One command on a connection of the test's own. */
static inline long long redis(const place *p, const char *format, const char *word)
{
    unsigned port = 0;
    ck_assert_int_eq(sscanf(strstr(p->url, "127.0.0.1:"), "127.0.0.1:%u", &port), 1);
    redisContext *c = redisConnect("127.0.0.1", (int)port);
    ck_assert_msg(c && !c->err, "%s", c ? c->errstr : "");
    char command[400];
    const char *prefix = strstr(p->url, "prefix=") + 7;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    snprintf(command, sizeof command, format, (int)strcspn(prefix, "&"), prefix, word);
#pragma GCC diagnostic pop
    redisReply *r = redisCommand(c, command);
    ck_assert_msg(r && r->type != REDIS_REPLY_ERROR, "%s: %s", command, r ? r->str : c->errstr);
    long long n = r->integer;
    freeReplyObject(r);
    redisFree(c);
    return n;
}

#endif
