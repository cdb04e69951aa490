/* test_redis_orders.c - the Redis store through its table: what a turn promises, whoever else is
 * there. P-60. */
/* servers: redis */
#include "stores/redis_turns.h"

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
    group = add_group(suite, "many queues");
    ADD_FOR_STORES(group, any_queue_is_found_by_its_first);
}

int main(void)
{
    return stores_main("redis orders", fill_suite);
}
