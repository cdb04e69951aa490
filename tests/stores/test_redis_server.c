/* test_redis_server.c - the Redis store through its table: a link that is cut, a server that is
 * full, payloads that fill an answer, walks that are left. */
/* servers: redis */
#include "stores/redis_turns.h"

#include <signal.h>

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
                         {.op = LP_END, .id = "held", .id_len = 4, .fence = held->fence}};
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
            lp_job again = {.op = LP_AGAIN, .id = "due", .id_len = 3, .fence = loans->fence};
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

static void fill_suite(Suite *suite)
{
    TCase *group = add_group(suite, "the server");
    ADD_FOR_STORES(group, no_sigpipe_reaches_the_host);
    ADD_FOR_STORES(group, the_oldest_dies_also_of_those_from_before);
    ADD_FOR_STORES(group, many_walks_at_the_same_time);
    ADD_FOR_STORES(group, large_payloads_come_back);
    ADD_FOR_STORES(group, large_payloads_are_claimed_a_few_at_a_time);
    ADD_FOR_STORES(group, orders_that_are_refused_for_memory_hold_nothing_up);
}

int main(void)
{
    return stores_main("redis server", fill_suite);
}
