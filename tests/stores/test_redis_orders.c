/* test_redis_orders.c - the Redis store through its table, without an engine: what a turn promises,
 * whoever else is there. P-60.
 *
 * A bench is one open store with the time that it is told; two benches on one prefix are two
 * processes, as far as Redis is concerned. The server's clock is real. */
/* servers: redis */
#include "stores/stores.h"

#include <hiredis/hiredis.h>
#include <signal.h>
#include <stdlib.h>

#include "stores/durable.h"

#define LEASE LAPSE_SECONDS(30)

typedef struct bench {
    lp_durable *d;
    lp_store_config config;
    lapse_ns skew; /* of the clock that it is told, from the real one */
    lapse_ns lease;
} bench;

/* -- Opening ------------------------------------------------------------------------------ */

static lapse_ns now_of(const bench *b)
{
    return boot_now() + b->skew;
}

static bench open_bench(const place *p, const char *options, lapse_ns skew)
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

static void close_bench(bench *b)
{
    lp_redis_store.close(b->d);
}

/* -- Turns -------------------------------------------------------------------------------- */

static size_t free_loans(lp_loan *l)
{
    size_t n = 0;
    for (lp_loan *next; l; l = next, n++) {
        next = l->next;
        free(l);
    }
    return n;
}

static int run_turn(bench *b, lp_job *const *jobs, size_t count, lp_want *wants, size_t want_count,
                    lp_loan **loans)
{
    lp_turn t = {.now = now_of(b),
                 .wall = UTC_START,
                 .lease = b->lease,
                 .jobs = jobs,
                 .job_count = count,
                 .wants = wants,
                 .want_count = want_count,
                 .push_most = 1000000};
    int code = lp_redis_store.turn(b->d, &t);
    if (loans)
        *loans = t.loans;
    else
        free_loans(t.loans);
    return code;
}

static void forget(lp_job *j)
{
    free(j->detail);
    free(j->of_queue);
    j->detail = j->of_queue = NULL;
}

static int64_t ask(bench *b, lp_job *j)
{
    int code = run_turn(b, &j, 1, NULL, 0, NULL);
    ck_assert_msg(code == 0, "turn: %d %s", code, lapse_error_detail());
    forget(j);
    return j->answer;
}

static lp_job schedule_job(const bench *b, const char *id, lapse_ns delay)
{
    return (lp_job){
        .op = LP_SCHEDULE, .id = id, .id_len = strlen(id), .queue = "q", .due = now_of(b) + delay};
}

static int64_t schedule(bench *b, const char *id, lapse_ns delay)
{
    lp_job j = schedule_job(b, id, delay);
    return ask(b, &j);
}

static int64_t end_claim(bench *b, const lp_loan *l, int op)
{
    lp_job j = {.op = op,
                .row = l->row,
                .fence = l->fence,
                .due = now_of(b),
                .at = now_of(b),
                .lease = LEASE,
                .counted = true,
                .reason = LAPSE_REASON_FAILED};
    return ask(b, &j);
}

static lp_loan *claim(bench *b, unsigned most, bool newest, lapse_ns *next)
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
static lp_loan *claim_soon(bench *b)
{
    lp_loan *l = NULL;
    for (lapse_ns end = boot_now() + LIMIT; !l && boot_now() < end;)
        l = claim(b, 1, false, NULL);
    ck_assert_msg(l != NULL, "nothing has fallen due");
    return l;
}

/* One command on a connection of the test's own. */
static long long redis(const place *p, const char *format, const char *word)
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

/* -- A turn ---------------------------------------------------------------------------------- */

/* More jobs than one call of the script takes: in their order all the same. */
START_TEST(jobs_are_answered_in_order)
{
    enum { COUNT = 500 };
    place p = new_place(_i, NULL);
    bench b = open_bench(&p, "", 0);
    static lp_job jobs[COUNT];
    lp_job *list[COUNT];
    for (int i = 0; i < COUNT; i++) {
        jobs[i] = schedule_job(&b, "o", LAPSE_HOURS(1));
        if (i % 2)
            jobs[i] = (lp_job){.op = LP_CANCEL, .id = "o", .id_len = 1};
        list[i] = &jobs[i];
    }
    ck_assert_int_eq(run_turn(&b, list, COUNT, NULL, 0, NULL), 0);
    int64_t last = 0;
    for (int i = 0; i < COUNT; i++) {
        if (i % 2) {
            ck_assert_int_eq(jobs[i].answer, LAPSE_FATE_CANCELLED);
            ck_assert_str_eq(jobs[i].of_queue, "q");
        } else {
            ck_assert_int_gt(jobs[i].answer, last);
            last = jobs[i].answer;
        }
        forget(&jobs[i]);
    }
    close_bench(&b);
}
END_TEST

/* Due at the same instant: claimed in the order in which they were accepted. */
START_TEST(ties_are_claimed_as_accepted)
{
    enum { COUNT = 300 };
    place p = new_place(_i, NULL);
    bench b = open_bench(&p, "", 0);
    static char ids[COUNT][8];
    static lp_job jobs[COUNT];
    lp_job *list[COUNT];
    lapse_ns due = now_of(&b) - LAPSE_SECONDS(1);
    for (int i = 0; i < COUNT; i++) {
        snprintf(ids[i], sizeof ids[i], "o%d", (i * 7919) % COUNT); /* Not as they sort. */
        jobs[i] = schedule_job(&b, ids[i], 0);
        jobs[i].due = due;
        list[i] = &jobs[i];
    }
    ck_assert_int_eq(run_turn(&b, list, COUNT, NULL, 0, NULL), 0);
    lp_loan *loans = claim(&b, COUNT, false, NULL);
    lp_loan *l = loans;
    int64_t fence = 0;
    for (int i = 0; i < COUNT; i++, l = l->next) {
        ck_assert_ptr_nonnull(l);
        ck_assert_str_eq(l->id, ids[i]);
        ck_assert_int_gt(l->fence, fence);
        fence = l->fence;
    }
    ck_assert_ptr_null(l);
    free_loans(loans);
    close_bench(&b);
}
END_TEST

/* A settlement whose answer was lost is asked again: it is told that it is stale, and nothing is
 * changed by it. */
START_TEST(a_settlement_that_is_asked_again_changes_nothing)
{
    static const int ops[] = {LP_END, LP_AGAIN, LP_DIE};
    for (int i = 0; i < 3; i++) {
        place p = new_place(_i, NULL);
        bench b = open_bench(&p, "keep=1h", 0);
        schedule(&b, "o", 0);
        lp_loan *l = claim_soon(&b);
        ck_assert_int_eq(end_claim(&b, l, LP_RENEW), 0);
        ck_assert_int_eq(end_claim(&b, l, LP_RENEW), 0);
        ck_assert_int_eq(end_claim(&b, l, ops[i]), 0);
        for (int j = 0; j < 3; j++)
            ck_assert_int_eq(end_claim(&b, l, ops[j]), LAPSE_ESTALE);
        ck_assert_int_eq(end_claim(&b, l, LP_RENEW), LAPSE_ESTALE);
        ck_assert_int_eq(end_claim(&b, l, LP_HOLDS), 0);
        lp_counts counts;
        lp_job count = {.op = LP_COUNT, .counts = &counts};
        ck_assert_int_eq(ask(&b, &count), 0);
        ck_assert_uint_eq(counts.kept, ops[i] == LP_END);
        ck_assert_uint_eq(counts.pending, ops[i] == LP_AGAIN);
        ck_assert_uint_eq(counts.dead, ops[i] == LP_DIE);
        ck_assert_uint_eq(counts.running, 0);
        free_loans(l);
        close_bench(&b);
    }
}
END_TEST

/* Under a rate and behind: the one that fell due last, among those that are due. */
START_TEST(the_newest_of_a_backlog)
{
    place p = new_place(_i, NULL);
    bench b = open_bench(&p, "", 0);
    char id[16];
    for (int i = 0; i < 50; i++) {
        snprintf(id, sizeof id, "o%d", i);
        schedule(&b, id, -LAPSE_SECONDS(100 - i));
    }
    schedule(&b, "later", LAPSE_HOURS(1));
    lapse_ns next;
    lp_loan *l = claim(&b, 1, true, &next);
    ck_assert_ptr_nonnull(l);
    ck_assert_str_eq(l->id, "o49");
    ck_assert_int_lt(next, now_of(&b)); /* o0 still waits. */
    free_loans(l);
    l = claim(&b, 1, false, NULL);
    ck_assert_str_eq(l->id, "o0");
    free_loans(l);
    close_bench(&b);
}
END_TEST

/* -- Clocks ---------------------------------------------------------------------------------- */

/* P-60: three machines whose clocks are ten minutes apart. The server's alone judges: none is
 * early by it, no live lease is taken, and each is told its own time. */
START_TEST(p60_machines_with_other_clocks)
{
    static const lapse_ns skews[] = {0, LAPSE_MINUTES(10), -LAPSE_MINUTES(10)};
    static const char *const ids[] = {"a", "b", "c"};
    enum { MACHINES = 3, DELAY_MS = 200 };
    place p = new_place(_i, NULL);
    bench b[MACHINES];
    lapse_ns began[MACHINES];
    for (int i = 0; i < MACHINES; i++)
        b[i] = open_bench(&p, "", skews[i]);
    for (int i = 0; i < MACHINES; i++) {
        began[i] = boot_now();
        ck_assert_int_gt(schedule(&b[i], ids[i], LAPSE_MS(DELAY_MS)), 0);
    }
    for (int i = 0; i < MACHINES; i++) { /* Another claims it than the one that scheduled it. */
        bench *by = &b[(i + 1) % MACHINES];
        lp_loan *l = claim_soon(by);
        ck_assert_str_eq(l->id, ids[i]);
        lapse_ns waited = boot_now() - began[i];
        ck_assert_int_ge(waited, LAPSE_MS(DELAY_MS));
        ck_assert_int_le(l->due, now_of(by));
        ck_assert_int_ge(l->due, now_of(by) - waited);
        for (int j = 0; j < MACHINES; j++) { /* Its lease is live for everybody. */
            lapse_info info;
            lp_job look = {
                .op = LP_GET, .id = l->id, .id_len = l->id_len, .infos = &info, .max = 1};
            ck_assert_int_eq(ask(&b[j], &look), 0);
            ck_assert_int_eq(info.state, LAPSE_STATE_RUNNING);
            lapse_info_free(&info);
        }
        ck_assert_int_eq(end_claim(by, l, LP_END), 0);
        free_loans(l);
    }
    for (int i = 0; i < MACHINES; i++)
        close_bench(&b[i]);
}
END_TEST

/* A lease that has ended gives the order to another, with a higher fence. */
START_TEST(a_lease_ends_by_the_servers_clock)
{
    place p = new_place(_i, NULL);
    bench a = open_bench(&p, "", 0), b = open_bench(&p, "", LAPSE_HOURS(5));
    a.lease = LAPSE_MS(50);
    schedule(&a, "o", 0);
    lp_loan *first = claim_soon(&a), *second = claim_soon(&b);
    ck_assert_int_eq(second->attempt, 2);
    ck_assert_int_gt(second->fence, first->fence);
    ck_assert_int_eq(end_claim(&a, first, LP_END), LAPSE_ESTALE);
    ck_assert_int_eq(end_claim(&b, second, LP_END), 0);
    free_loans(first);
    free_loans(second);
    close_bench(&a);
    close_bench(&b);
}
END_TEST

/* -- The server ------------------------------------------------------------------------------- */

static volatile sig_atomic_t pipes;

static void on_pipe(int number)
{
    (void)number;
    pipes = pipes + 1;
}

/* A connection that was cut raises nothing in the host, whose mask is as it was. */
START_TEST(no_sigpipe_reaches_the_host)
{
    struct sigaction old, ours = {.sa_handler = on_pipe};
    ck_assert_int_eq(sigaction(SIGPIPE, &ours, &old), 0);
    place p = new_place(_i, NULL);
    bench b = open_bench(&p, "", 0);
    for (int i = 0; i < 20; i++) {
        redis(&p, "CLIENT KILL TYPE normal SKIPME yes", "");
        lp_job j = schedule_job(&b, "o", LAPSE_HOURS(1));
        lp_job *job = &j;
        int code = run_turn(&b, &job, 1, NULL, 0, NULL);
        ck_assert_msg(code == 0 || code == LAPSE_EUNSURE, "%d %s", code, lapse_error_detail());
        forget(&j);
    }
    sigset_t mask, pending;
    ck_assert_int_eq(pthread_sigmask(SIG_BLOCK, NULL, &mask), 0);
    ck_assert_int_eq(sigismember(&mask, SIGPIPE), 0);
    ck_assert_int_eq(sigpending(&pending), 0);
    ck_assert_int_eq(sigismember(&pending, SIGPIPE), 0);
    ck_assert_int_eq(pipes, 0);
    close_bench(&b);
    sigaction(SIGPIPE, &old, NULL);
}
END_TEST

/* What somebody has deleted by hand holds nobody up. */
START_TEST(a_record_that_is_gone_holds_nobody_up)
{
    place p = new_place(_i, NULL);
    bench b = open_bench(&p, "", 0);
    schedule(&b, "a", -LAPSE_SECONDS(2));
    schedule(&b, "b", -LAPSE_SECONDS(1));
    ck_assert_int_eq(redis(&p, "HDEL {%.*s}:job %s", "a"), 1);
    lp_loan *l = claim(&b, 2, false, NULL);
    ck_assert_ptr_nonnull(l);
    ck_assert_str_eq(l->id, "b");
    ck_assert_ptr_null(l->next);
    free_loans(l);
    ck_assert_int_eq(redis(&p, "ZCARD {%.*s}:due%s", ""), 0);
    close_bench(&b);
}
END_TEST

/* One that somebody has damaged is told as such, for a dead letter, and holds nobody up. */
START_TEST(a_record_that_is_damaged_holds_nobody_up)
{
    place p = new_place(_i, NULL);
    bench b = open_bench(&p, "", 0);
    schedule(&b, "a", -LAPSE_SECONDS(2));
    schedule(&b, "b", -LAPSE_SECONDS(1));
    redis(&p, "HSET {%.*s}:job %s short", "a");
    lp_job look = {.op = LP_CANCEL, .id = "a", .id_len = 1};
    ck_assert_int_eq(ask(&b, &look), LAPSE_FATE_UNKNOWN);
    lp_loan *l = claim(&b, 2, false, NULL);
    ck_assert_ptr_nonnull(l);
    ck_assert_str_eq(l->id, "a");
    ck_assert_str_eq(l->queue, "q");
    ck_assert_ptr_nonnull(l->bad);
    ck_assert_ptr_nonnull(l->next);
    ck_assert_str_eq(l->next->id, "b");
    ck_assert_ptr_null(l->next->bad);
    ck_assert_int_eq(end_claim(&b, l, LP_DIE), 0);
    ck_assert_int_eq(end_claim(&b, l->next, LP_END), 0);
    free_loans(l);
    redis(&p, "HSET {%.*s}:job %s short", "c"); /* Of no order at all. */
    ck_assert_int_gt(schedule(&b, "c", 0), 0);
    l = claim_soon(&b);
    ck_assert_str_eq(l->id, "c");
    ck_assert_ptr_null(l->bad);
    free_loans(l);
    close_bench(&b);
}
END_TEST

/* The ages of orders are known only once somebody needs them: those from before as well. */
START_TEST(the_oldest_dies_also_of_those_from_before)
{
    enum { BEFORE = 700 };
    place p = new_place(_i, NULL);
    bench b = open_bench(&p, "", 0);
    char id[16];
    for (int i = 0; i < BEFORE; i++) {
        snprintf(id, sizeof id, "o%d", i);
        schedule(&b, id, LAPSE_HOURS(2) - LAPSE_SECONDS(i)); /* The oldest is due last. */
    }
    char options[64];
    snprintf(options, sizeof options, "max_pending=%d&overflow=dead_letter_oldest", BEFORE);
    bench c = open_bench(&p, options, 0);
    for (int i = 0; i < 3; i++) {
        lapse_info dead = {.id = NULL};
        snprintf(id, sizeof id, "n%d", i);
        lp_job j = schedule_job(&c, id, LAPSE_HOURS(1));
        j.infos = &dead;
        j.max = 1;
        ck_assert_int_gt(ask(&c, &j), 0);
        ck_assert(j.died);
        snprintf(id, sizeof id, "o%d", i);
        ck_assert_str_eq(dead.id, id);
        ck_assert_int_eq(dead.reason, LAPSE_REASON_MAXLEN);
        lapse_info_free(&dead);
    }
    close_bench(&b);
    close_bench(&c);
}
END_TEST

/* Walks that were begun and left do not hold up others, nor end one another too soon. */
START_TEST(many_walks_at_the_same_time)
{
    enum { ORDERS = 40, WALKS = 60, STEP = 7 };
    place p = new_place(_i, NULL);
    bench b = open_bench(&p, "", 0);
    char id[16];
    for (int i = 0; i < ORDERS; i++) {
        snprintf(id, sizeof id, "o%d", i);
        schedule(&b, id, LAPSE_HOURS(1));
    }
    uint64_t cursors[WALKS] = {0};
    int found[WALKS] = {0};
    for (int round = 0; round < ORDERS; round++)
        for (int i = 0; i < WALKS; i++) {
            lapse_info infos[STEP];
            if (cursors[i] == UINT64_MAX)
                continue;
            lp_job j = {.op = LP_LIST,
                        .cursor = &cursors[i],
                        .states = LAPSE_STATE_PENDING,
                        .infos = infos,
                        .max = STEP};
            int64_t n = ask(&b, &j);
            ck_assert_int_ge(n, 0);
            found[i] += (int)n;
            while (n)
                lapse_info_free(&infos[--n]);
        }
    for (int i = 0; i < WALKS; i++)
        ck_assert_int_eq(found[i], ORDERS);
    uint64_t old = 0;
    lapse_info infos[STEP];
    for (int i = 0; i < 200; i++) { /* Left behind, each after its first step. */
        uint64_t cursor = 0;
        lp_job j = {.op = LP_LIST,
                    .cursor = &cursor,
                    .states = LAPSE_STATE_PENDING,
                    .infos = infos,
                    .max = STEP};
        for (int64_t n = ask(&b, &j); n;)
            lapse_info_free(&infos[--n]);
        old = old ? old : cursor;
    }
    lp_job j = {
        .op = LP_LIST, .cursor = &old, .states = LAPSE_STATE_PENDING, .infos = infos, .max = STEP};
    ck_assert_int_eq(ask(&b, &j), LAPSE_ETIMEOUT); /* Forgotten, and said so. */
    close_bench(&b);
}
END_TEST

/* The largest payload, and one that fills more than one call. */
START_TEST(large_payloads_come_back)
{
    place p = new_place(_i, NULL);
    bench b = open_bench(&p, "", 0);
    char *payload = malloc(LAPSE_PAYLOAD_MAX);
    ck_assert_ptr_nonnull(payload);
    for (size_t i = 0; i < LAPSE_PAYLOAD_MAX; i++)
        payload[i] = (char)(i * 31 + i / 256);
    lp_job jobs[3];
    lp_job *list[3];
    static const char *const ids[] = {"a", "b", "c"};
    for (int i = 0; i < 3; i++) {
        jobs[i] = schedule_job(&b, ids[i], -LAPSE_SECONDS(3 - i));
        jobs[i].payload = payload;
        jobs[i].payload_len = i == 1 ? LAPSE_PAYLOAD_MAX : 700000;
        list[i] = &jobs[i];
    }
    ck_assert_int_eq(run_turn(&b, list, 3, NULL, 0, NULL), 0);
    for (int i = 0; i < 3; i++) {
        ck_assert_int_gt(jobs[i].answer, 0);
        lp_loan *l = claim(&b, 1, false, NULL);
        ck_assert_ptr_nonnull(l);
        ck_assert_uint_eq(l->payload_len, jobs[i].payload_len);
        ck_assert_int_eq(memcmp(l->payload, payload, l->payload_len), 0);
        free_loans(l);
    }
    free(payload);
    close_bench(&b);
}
END_TEST

/* One turn claims about 1 MiB of them, and says that more could be claimed now: whoever has many
 * workers gets large ones one after the other, each in an answer that comes in time. */
START_TEST(large_payloads_are_claimed_a_few_at_a_time)
{
    enum { COUNT = 8, LEN = 400000, FIT = 3 };
    place p = new_place(_i, NULL);
    bench b = open_bench(&p, "", 0);
    char *payload = calloc(1, LEN);
    ck_assert_ptr_nonnull(payload);
    char id[16];
    for (int i = 0; i < COUNT; i++) {
        snprintf(id, sizeof id, "o%d", i);
        lp_job j = schedule_job(&b, id, -LAPSE_SECONDS(COUNT - i));
        j.payload = payload;
        j.payload_len = LEN;
        ck_assert_int_gt(ask(&b, &j), 0);
    }
    static const char *const queues[] = {"q"};
    for (int claimed = 0; claimed < COUNT;) {
        lp_want wants[2] = {{.queues = queues, .queue_count = 1, .most = 100},
                            {.queues = queues, .queue_count = 1, .most = 100}};
        lp_loan *loans;
        ck_assert_int_eq(run_turn(&b, NULL, 0, wants, 2, &loans), 0);
        int fit = COUNT - claimed < FIT ? COUNT - claimed : FIT;
        for (lp_loan *l = loans; l; l = l->next, claimed++, fit--) {
            snprintf(id, sizeof id, "o%d", claimed);
            ck_assert_str_eq(l->id, id);
            ck_assert_int_eq(l->attempt, 1);
            ck_assert_uint_eq(l->payload_len, LEN);
        }
        ck_assert_int_eq(fit, 0);
        if (claimed < COUNT)
            for (int i = 0; i < 2; i++)
                ck_assert_int_le(wants[i].next, now_of(&b));
        free_loans(loans);
    }
    free(payload);
    close_bench(&b);
}
END_TEST

/* Orders that are refused for memory do not hold back what else is in their turn, whether the limit
 * was there when the store was opened or not. */
static void take_a_turn_without_memory(int i, bool opened_before)
{
    place p = new_place(i, NULL);
    bench b = open_bench(&p, "", 0);
    ck_assert_int_gt(schedule(&b, "held", 0), 0);
    lp_loan *held = claim_soon(&b);
    ck_assert_int_gt(schedule(&b, "far", LAPSE_HOURS(1)), 0);
    ck_assert_int_gt(schedule(&b, "due", -LAPSE_SECONDS(1)), 0);
    redis(&p, "CONFIG SET maxmemory 1mb", "");
    if (!opened_before) {
        close_bench(&b);
        b = open_bench(&p, "keep=1h&max_pending=100&overflow=dead_letter_oldest", 0);
    }
    enum { NEW, CANCEL, NEWER, END, JOBS };
    lp_job jobs[JOBS] = {schedule_job(&b, "new", 0),
                         {.op = LP_CANCEL, .id = "far", .id_len = 3},
                         schedule_job(&b, "newer", 0),
                         {.op = LP_END, .fence = held->fence}};
    lp_job *list[JOBS] = {&jobs[0], &jobs[1], &jobs[2], &jobs[3]};
    static const char *const queues[] = {"q"};
    for (int count = JOBS; count >= 1; count -= JOBS - 1) { /* Also one that brings, alone. */
        lp_want w = {.queues = queues, .queue_count = 1, .most = 10};
        lp_loan *loans;
        int code = run_turn(&b, list, (size_t)count, &w, 1, &loans);
        ck_assert_msg(code == 0, "turn: %d %s", code, lapse_error_detail());
        ck_assert_int_eq(jobs[NEW].answer, LAPSE_ESYSTEM);
        if (count == JOBS) {
            ck_assert_int_eq(jobs[CANCEL].answer, LAPSE_FATE_CANCELLED);
            ck_assert_int_eq(jobs[NEWER].answer, LAPSE_ESYSTEM);
            ck_assert_int_eq(jobs[END].answer, 0);
            ck_assert_ptr_nonnull(loans);
            ck_assert_str_eq(loans->id, "due");
            ck_assert_ptr_null(loans->next);
            lp_job again = {.op = LP_AGAIN, .fence = loans->fence};
            ck_assert_int_eq(ask(&b, &again), 0);
        } else {
            ck_assert_ptr_nonnull(loans);
            ck_assert_str_eq(loans->id, "due");
        }
        for (int j = 0; j < count; j++)
            forget(&jobs[j]);
        free_loans(loans);
    }
    redis(&p, "CONFIG SET maxmemory 0", "");
    ck_assert_int_gt(schedule(&b, "new", 0), 0);
    free_loans(held);
    close_bench(&b);
}

START_TEST(orders_that_are_refused_for_memory_hold_nothing_up)
{
    take_a_turn_without_memory(_i, true);
    take_a_turn_without_memory(_i, false);
}
END_TEST

/* -- Many queues ------------------------------------------------------------------------------ */

enum { QUEUES = 12, IDS = 40 };

static const char *name_queue(int i)
{
    static const char *const names[QUEUES] = {"a", "b", "c", "d", "e", "f",
                                              "g", "h", "i", "j", "k", "l"};
    return names[i];
}

/* Whoever looks at any queue is told what a look at each of them finds. */
static void compare_looks(bench *b)
{
    const char *names[QUEUES];
    for (int i = 0; i < QUEUES; i++)
        names[i] = name_queue(i);
    lp_want w[3] = {{.others = true},
                    {.queues = names, .queue_count = QUEUES},
                    {.queues = names, .queue_count = QUEUES / 2, .others = true}};
    lp_want rest = {.queues = names + QUEUES / 2, .queue_count = QUEUES / 2};
    lp_want wants[] = {w[0], w[1], w[2], rest};
    ck_assert_int_eq(run_turn(b, NULL, 0, wants, 4, NULL), 0);
    ck_assert_int_eq(wants[0].next, wants[1].next);
    ck_assert_int_eq(wants[2].next, wants[3].next);
}

/* In one turn: meanwhile no lease ends. */
static void compare_counts(bench *b)
{
    lp_counts counts[QUEUES + 1], sum = {.oldest_due = LAPSE_FOREVER};
    lp_job jobs[QUEUES + 1], *list[QUEUES + 1];
    for (int i = 0; i <= QUEUES; i++) {
        jobs[i] = (lp_job){.op = LP_COUNT, .counts = &counts[i]};
        jobs[i].queue = i < QUEUES ? name_queue(i) : NULL;
        list[i] = &jobs[i];
    }
    ck_assert_int_eq(run_turn(b, list, QUEUES + 1, NULL, 0, NULL), 0);
    for (int i = 0; i < QUEUES; i++) {
        ck_assert_int_eq(jobs[i].answer, 0);
        sum.pending += counts[i].pending;
        sum.running += counts[i].running;
        sum.dead += counts[i].dead;
        if (counts[i].oldest_due < sum.oldest_due)
            sum.oldest_due = counts[i].oldest_due;
    }
    const lp_counts *all = &counts[QUEUES];
    ck_assert_uint_eq(all->pending, sum.pending);
    ck_assert_uint_eq(all->running, sum.running);
    ck_assert_uint_eq(all->dead, sum.dead);
    ck_assert_int_eq(all->oldest_due, sum.oldest_due);
}

static void do_something(bench *b, unsigned *random)
{
    static const lapse_ns delays[] = {-LAPSE_SECONDS(1), LAPSE_MS(3), LAPSE_SECONDS(50),
                                      LAPSE_HOURS(1)};
    static const int ends[] = {LP_END, LP_AGAIN, LP_DIE, LP_RENEW};
    char id[16];
    unsigned n = *random = *random * 1664525 + 1013904223;
    snprintf(id, sizeof id, "o%u", (n >> 8) % IDS);
    if ((n >> 28) < 8) {
        lp_job j = schedule_job(b, id, delays[(n >> 16) % 4]);
        j.queue = name_queue((int)((n >> 20) % QUEUES));
        j.replace = true;
        ck_assert_int_gt(ask(b, &j), 0);
    } else if ((n >> 28) < 10) {
        lp_job j = {.op = LP_CANCEL, .id = id, .id_len = strlen(id)};
        ck_assert_int_ge(ask(b, &j), 0);
    } else {
        lp_want w = {.others = true, .most = 1 + (n >> 12) % 2};
        lp_loan *loans;
        b->lease = (n >> 16) % 2 ? LEASE : LAPSE_MS(2);
        ck_assert_int_eq(run_turn(b, NULL, 0, &w, 1, &loans), 0);
        if (loans && !loans->ended && (n >> 20) % 2)
            (void)end_claim(b, loans, ends[(n >> 21) % 4]);
        free_loans(loans);
    }
}

START_TEST(any_queue_is_found_by_its_first)
{
    place p = new_place(_i, NULL);
    bench b = open_bench(&p, "", 0);
    unsigned random = 20;
    for (int i = 0; i < QUEUES; i++) { /* Their numbers are known from now on. */
        lp_job j = schedule_job(&b, name_queue(i), LAPSE_HOURS(2));
        j.queue = name_queue(i);
        ck_assert_int_gt(ask(&b, &j), 0);
    }
    for (int i = 0; i < 1500; i++) {
        do_something(&b, &random);
        compare_looks(&b);
        if (i % 10 == 0)
            compare_counts(&b);
    }
    close_bench(&b);
}
END_TEST

static void fill_suite(Suite *suite)
{
    TCase *group = add_group(suite, "a turn");
    ADD_FOR_STORES(group, jobs_are_answered_in_order);
    ADD_FOR_STORES(group, ties_are_claimed_as_accepted);
    ADD_FOR_STORES(group, a_settlement_that_is_asked_again_changes_nothing);
    ADD_FOR_STORES(group, the_newest_of_a_backlog);
    group = add_group(suite, "clocks");
    ADD_FOR_STORES(group, p60_machines_with_other_clocks);
    ADD_FOR_STORES(group, a_lease_ends_by_the_servers_clock);
    group = add_group(suite, "the server");
    ADD_FOR_STORES(group, no_sigpipe_reaches_the_host);
    ADD_FOR_STORES(group, a_record_that_is_gone_holds_nobody_up);
    ADD_FOR_STORES(group, a_record_that_is_damaged_holds_nobody_up);
    ADD_FOR_STORES(group, the_oldest_dies_also_of_those_from_before);
    ADD_FOR_STORES(group, many_walks_at_the_same_time);
    ADD_FOR_STORES(group, large_payloads_come_back);
    ADD_FOR_STORES(group, large_payloads_are_claimed_a_few_at_a_time);
    ADD_FOR_STORES(group, orders_that_are_refused_for_memory_hold_nothing_up);
    group = add_group(suite, "many queues");
    ADD_FOR_STORES(group, any_queue_is_found_by_its_first);
}

int main(void)
{
    return stores_main("redis orders", fill_suite);
}
