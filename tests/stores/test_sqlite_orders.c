/* test_sqlite_orders.c - what a turn does to rows, and that it agrees with itself. */
/* tiers: small */
/* valgrind */
#include "stores/turns.h"

/* The counts that are kept are those that a scan would find. */
static void check_counts(bench *b)
{
    lp_counts c = counts_of(b);
    ck_assert_int_eq((int64_t)(c.pending + c.running), look("SELECT count(*) FROM lapse_order"));
    ck_assert_int_eq((int64_t)c.dead, look("SELECT count(*) FROM lapse_dead"));
    ck_assert_int_eq((int64_t)c.kept, look("SELECT count(*) FROM lapse_ended"));
}

START_TEST(an_order_is_claimed_when_due_and_ends)
{
    bench b = open_bench("");
    lapse_ns next;
    ck_assert_int_gt(schedule(&b, "a", LAPSE_SECONDS(5)), 0);
    pass(&b, LAPSE_SECONDS(5) - 1);
    ck_assert_ptr_null(claim(&b, 10, &next));
    ck_assert_int_eq(next, START + LAPSE_SECONDS(5));
    pass(&b, 1);
    lp_loan *l = claim(&b, 10, &next);
    ck_assert_ptr_nonnull(l);
    ck_assert_ptr_null(l->next);
    ck_assert_int_eq(l->due, START + LAPSE_SECONDS(5));
    ck_assert_int_eq(l->attempt, 1);
    ck_assert_int_eq(next, b.now + LEASE); /* When its lease ends. */
    ck_assert_int_eq(state_of(&b, "a"), LAPSE_STATE_RUNNING);
    ck_assert_uint_eq(counts_of(&b).running, 1);
    ck_assert_int_eq(settle(&b, l, LP_END), 0);
    ck_assert_int_eq(settle(&b, l, LP_END), LAPSE_ESTALE);
    ck_assert_int_eq(state_of(&b, "a"), 0);
    check_counts(&b);
    free_loans(l);
    close_bench(&b);
}
END_TEST

/* Orders come by due time, ties as accepted, whatever their queues. */
START_TEST(several_queues_are_served_by_due_time)
{
    bench b = open_bench("");
    static const char *const queues[] = {"x", "y", "z"};
    for (int i = 0; i < 30; i++) {
        char id[8];
        snprintf(id, sizeof id, "o%02d", i);
        lp_job j = schedule_job(id, b.now + LAPSE_MS(i / 6));
        j.queue = queues[i % 3];
        ck_assert_int_gt(ask(&b, &j), 0);
    }
    pass(&b, LAPSE_MS(3));
    lp_want w = {.queues = queues, .queue_count = 2, .most = 100};
    lp_loan *loans;
    ck_assert_int_eq(run_turn(&b, NULL, 0, &w, 1, &loans), 0);
    int expect = 0;
    for (lp_loan *l = loans; l; l = l->next) {
        char id[8];
        expect += expect % 3 == 2;
        snprintf(id, sizeof id, "o%02d", expect++);
        ck_assert_str_eq(l->id, id);
    }
    ck_assert_uint_eq(free_loans(loans), 16); /* Two of three, due in the first 4 ms. */
    ck_assert_int_eq(w.next, START + LAPSE_MS(4));
    /* The others than these two. */
    lp_want rest = {.queues = queues, .queue_count = 2, .others = true, .most = 3};
    ck_assert_int_eq(run_turn(&b, NULL, 0, &rest, 1, &loans), 0);
    ck_assert_str_eq(loans->id, "o02");
    ck_assert_str_eq(loans->queue, "z");
    ck_assert_uint_eq(free_loans(loans), 3);
    ck_assert_int_eq(rest.next, START + LAPSE_MS(1));
    check_counts(&b);
    close_bench(&b);
}
END_TEST

START_TEST(pushed_wants_share_a_limit_and_newest_takes_the_last)
{
    bench b = open_bench("");
    for (int i = 0; i < 10; i++) {
        char id[8];
        snprintf(id, sizeof id, "o%d", i);
        schedule(&b, id, LAPSE_MS(i));
    }
    pass(&b, LAPSE_MS(8));
    static const char *const queues[] = {""};
    lp_want w[] = {
        {.queues = queues, .queue_count = 1, .newest = true, .pushed = true, .most = 1},
        {.queues = queues, .queue_count = 1, .pushed = true, .most = 5},
        {.queues = queues, .queue_count = 1, .most = 1},
    };
    lp_turn t = {
        .now = b.now, .wall = b.wall, .lease = LEASE, .wants = w, .want_count = 3, .push_most = 3};
    ck_assert_int_eq(b.ops->turn(b.d, &t), 0);
    const char *expected[] = {"o8", "o0", "o1", "o2"};
    size_t wants[] = {0, 1, 1, 2};
    int n = 0;
    for (lp_loan *l = t.loans; l; l = l->next, n++) {
        ck_assert_str_eq(l->id, expected[n]);
        ck_assert_uint_eq(l->want, wants[n]);
    }
    ck_assert_int_eq(n, 4);
    free_loans(t.loans);
    ck_assert_int_eq(w[2].next, START + LAPSE_MS(3));
    close_bench(&b);
}
END_TEST

START_TEST(a_lease_ends_by_itself)
{
    bench b = open_bench("");
    schedule(&b, "a", 0);
    lp_loan *first = claim_one(&b, "a");
    pass(&b, LEASE - 1);
    ck_assert_ptr_null(claim(&b, 1, NULL));
    lp_job holds = {.op = LP_HOLDS, .row = first->row, .fence = first->fence};
    ck_assert_int_eq(ask(&b, &holds), 1);
    pass(&b, 1);
    ck_assert_int_eq(ask(&b, &holds), 0);
    ck_assert_int_eq(state_of(&b, "a"), LAPSE_STATE_PENDING);
    ck_assert_uint_eq(counts_of(&b).pending, 1);
    ck_assert_uint_eq(counts_of(&b).running, 0);
    lp_loan *second = claim_one(&b, "a");
    ck_assert_int_eq(settle(&b, first, LP_END), LAPSE_ESTALE);
    ck_assert_int_eq(second->attempt, 2);
    ck_assert_int_gt(second->fence, first->fence);
    ck_assert_int_eq(second->generation, first->generation);
    lp_job renew = {
        .op = LP_RENEW, .row = second->row, .fence = second->fence, .lease = LAPSE_HOURS(1)};
    ck_assert_int_eq(ask(&b, &renew), 0);
    renew.fence = first->fence;
    ck_assert_int_eq(ask(&b, &renew), LAPSE_ESTALE);
    pass(&b, LAPSE_HOURS(1)); /* Late, but nobody else has claimed it. */
    ck_assert_int_eq(settle(&b, second, LP_END), 0);
    free_loans(first);
    free_loans(second);
    check_counts(&b);
    close_bench(&b);
}
END_TEST

/* Cancelled while held: no further attempt, whichever way the claim ends. */
START_TEST(no_attempt_follows_running)
{
    static const int ends[] = {LP_END, LP_AGAIN, LP_DIE, -1};
    bench b = open_bench("");
    for (int i = 0; i < 4; i++) {
        schedule(&b, "a", 0);
        lp_loan *l = claim_one(&b, "a");
        lp_job j = {.op = LP_CANCEL, .id = "a", .id_len = 1};
        ck_assert_int_eq(ask(&b, &j), LAPSE_FATE_RUNNING);
        ck_assert_int_eq(j.running_fence, l->fence);
        ck_assert_int_eq(cancel(&b, "a"), LAPSE_FATE_RUNNING);
        ck_assert_int_eq(state_of(&b, "a"), LAPSE_STATE_RUNNING);
        if (ends[i] < 0)
            pass(&b, LEASE); /* Its holder died. */
        else
            ck_assert_int_eq(settle(&b, l, ends[i]), ends[i] != LP_END);
        ck_assert_int_eq(state_of(&b, "a"), 0);
        ck_assert_uint_eq(counts_of(&b).pending, 0);
        lp_loan *told = claim(&b, 1, NULL);
        ck_assert(ends[i] < 0 ? told && told->ended && !told->next : !told);
        ck_assert(!told || strcmp(told->id, "a") == 0);
        free_loans(told);
        ck_assert_int_eq(cancel(&b, "a"), LAPSE_FATE_UNKNOWN);
        check_counts(&b);
        free_loans(l);
    }
    close_bench(&b);
}
END_TEST

START_TEST(a_claim_that_was_not_started_counts_as_pending)
{
    bench b = open_bench("");
    schedule(&b, "a", 0);
    lp_loan *l = claim_one(&b, "a");
    lp_job again = schedule_job("a", b.now);
    again.unstarted = l->fence;
    ck_assert_int_eq(ask(&b, &again), LAPSE_EEXISTS);
    lp_job move = {.op = LP_RESCHEDULE, .id = "a", .id_len = 1, .due = b.now + LAPSE_SECONDS(1)};
    ck_assert_int_eq(ask(&b, &move), LAPSE_FATE_RUNNING);
    move.unstarted = l->fence;
    ck_assert_int_eq(ask(&b, &move), LAPSE_FATE_RESCHEDULED);
    ck_assert_int_eq(settle(&b, l, LP_END), LAPSE_ESTALE);
    free_loans(l);
    pass(&b, LAPSE_SECONDS(1));
    l = claim_one(&b, "a");
    ck_assert_int_eq(l->attempt, 1); /* The first was taken back. */
    lp_job drop = {.op = LP_CANCEL, .id = "a", .id_len = 1, .unstarted = l->fence};
    ck_assert_int_eq(ask(&b, &drop), LAPSE_FATE_CANCELLED);
    free_loans(l);
    schedule(&b, "a", 0);
    l = claim_one(&b, "a");
    again.replace = true;
    again.unstarted = l->fence;
    ck_assert_int_gt(ask(&b, &again), l->generation);
    ck_assert(again.replaced);
    free_loans(l);
    check_counts(&b);
    close_bench(&b);
}
END_TEST

/* While it is held its id may be scheduled anew: the holder holds nothing any more. */
START_TEST(a_new_generation_takes_the_row_of_a_held_one)
{
    bench b = open_bench("");
    int64_t first = schedule(&b, "a", 0);
    lp_loan *l = claim_one(&b, "a");
    int64_t second = schedule(&b, "a", LAPSE_SECONDS(1));
    ck_assert_int_gt(second, first);
    ck_assert_int_eq(settle(&b, l, LP_AGAIN), LAPSE_ESTALE);
    lp_job old = {.op = LP_CANCEL, .id = "a", .id_len = 1, .generation = first};
    ck_assert_int_eq(ask(&b, &old), LAPSE_FATE_UNKNOWN);
    ck_assert_int_eq(state_of(&b, "a"), LAPSE_STATE_PENDING);
    ck_assert_int_eq(schedule(&b, "a", 0), LAPSE_EEXISTS);
    free_loans(l);
    check_counts(&b);
    close_bench(&b);
}
END_TEST

START_TEST(a_retry_waits_and_a_return_keeps_its_due_time)
{
    bench b = open_bench("");
    schedule(&b, "a", 0);
    pass(&b, LAPSE_SECONDS(1));
    lp_loan *l = claim_one(&b, "a");
    lp_job back = {.op = LP_AGAIN,
                   .row = l->row,
                   .fence = l->fence,
                   .due = l->due,
                   .at = b.now + LAPSE_SECONDS(1)};
    ck_assert_int_eq(ask(&b, &back), 0);
    free_loans(l);
    lapse_info info = get(&b, "a");
    ck_assert_int_eq(info.due, START);
    ck_assert_int_eq(info.remaining, LAPSE_SECONDS(1));
    ck_assert_int_eq(info.attempt, 0);
    lapse_info_free(&info);
    pass(&b, LAPSE_SECONDS(1));
    l = claim_one(&b, "a");
    ck_assert_int_eq(l->due, START);
    ck_assert_int_eq(l->attempt, 1);
    lp_job retry = {.op = LP_AGAIN,
                    .row = l->row,
                    .fence = l->fence,
                    .counted = true,
                    .due = b.now + LAPSE_SECONDS(3),
                    .at = b.now + LAPSE_SECONDS(3)};
    ck_assert_int_eq(ask(&b, &retry), 0);
    free_loans(l);
    pass(&b, LAPSE_SECONDS(3));
    l = claim_one(&b, "a");
    ck_assert_int_eq(l->due, b.now);
    ck_assert_int_eq(l->attempt, 2);
    free_loans(l);
    close_bench(&b);
}
END_TEST

START_TEST(dead_letters_are_kept_listed_requeued_and_purged)
{
    bench b = open_bench("max_dead=3");
    for (int i = 0; i < 5; i++) {
        char id[8];
        snprintf(id, sizeof id, "d%d", i);
        lp_job j = schedule_job(id, b.now);
        j.payload = "body";
        j.payload_len = 4;
        ask(&b, &j);
        lp_loan *l = claim_one(&b, id);
        lapse_info dead;
        lp_job die = {.op = LP_DIE,
                      .row = l->row,
                      .fence = l->fence,
                      .counted = true,
                      .reason = LAPSE_REASON_FAILED,
                      .error = "no stock",
                      .infos = &dead};
        ck_assert_int_eq(ask(&b, &die), 0);
        ck_assert(die.died);
        ck_assert_str_eq(dead.id, id);
        ck_assert_str_eq(dead.error, "no stock");
        ck_assert_int_eq(dead.ended, b.now);
        lapse_info_free(&dead);
        free_loans(l);
    }
    ck_assert_uint_eq(counts_of(&b).dead, 3);
    ck_assert_uint_eq(counts_of(&b).dead_dropped, 2);
    ck_assert_int_eq(state_of(&b, "d1"), 0);
    ck_assert_int_eq(state_of(&b, "d2"), LAPSE_STATE_DEAD);
    lp_job requeue = {.op = LP_REQUEUE, .id = "d2", .id_len = 2, .due = b.now + LAPSE_MS(5)};
    int64_t generation = ask(&b, &requeue);
    ck_assert_int_gt(generation, 5);
    ck_assert_int_eq(ask(&b, &requeue), LAPSE_EUNKNOWN);
    pass(&b, LAPSE_MS(5));
    lp_loan *l = claim_one(&b, "d2");
    ck_assert_int_eq(l->attempt, 1);
    ck_assert_int_eq(l->generation, generation);
    ck_assert_mem_eq(l->payload, "body", 4);
    free_loans(l);
    lp_job purge = {.op = LP_PURGE};
    ck_assert_int_eq(ask(&b, &purge), 2);
    ck_assert_int_eq(ask(&b, &purge), 0);
    check_counts(&b);
    close_bench(&b);
}
END_TEST

/* A dead letter whose id lives on is not what get answers, even when that ended. */
START_TEST(a_dead_letter_gives_its_name_to_the_next)
{
    bench b = open_bench("");
    int64_t first = schedule(&b, "a", 0);
    lp_loan *l = claim_one(&b, "a");
    settle(&b, l, LP_DIE);
    free_loans(l);
    ck_assert_int_eq(state_of(&b, "a"), LAPSE_STATE_DEAD);
    schedule(&b, "a", 0);
    lp_job requeue = {.op = LP_REQUEUE, .id = "a", .id_len = 1, .generation = first};
    ck_assert_int_eq(ask(&b, &requeue), LAPSE_EEXISTS);
    ck_assert_int_eq(cancel(&b, "a"), LAPSE_FATE_CANCELLED);
    ck_assert_int_eq(state_of(&b, "a"), 0);
    ck_assert_int_gt(ask(&b, &requeue), first);
    check_counts(&b);
    close_bench(&b);
}
END_TEST

START_TEST(ended_orders_are_remembered_as_long_as_keep)
{
    bench b = open_bench("keep=10s");
    schedule(&b, "a", 0);
    ck_assert_int_eq(cancel(&b, "a"), LAPSE_FATE_CANCELLED);
    pass(&b, LAPSE_SECONDS(10));
    ck_assert_int_eq(cancel(&b, "a"), LAPSE_FATE_DONE);
    ck_assert_int_eq(state_of(&b, "a"), LAPSE_STATE_DONE);
    ck_assert_uint_eq(counts_of(&b).kept, 1);
    pass(&b, LAPSE_MS(1));
    ck_assert_int_eq(cancel(&b, "a"), LAPSE_FATE_UNKNOWN);
    ck_assert_int_eq(state_of(&b, "a"), 0);
    ck_assert_uint_eq(counts_of(&b).kept, 0); /* The cancel has swept it. */
    schedule(&b, "b", 0);
    cancel(&b, "b");
    schedule(&b, "b", 0);
    ck_assert_uint_eq(counts_of(&b).kept, 0); /* Its id lives on. */
    check_counts(&b);
    close_bench(&b);

    /* Who opens it without a word on it leaves it as it is. */
    b = open_at("", b.now, b.wall);
    ck_assert_int_eq(b.config.keep, LAPSE_SECONDS(10));
    close_bench(&b);
    b = open_at("keep=0s", b.now, b.wall);
    ck_assert_int_eq(b.config.keep, 0);
    close_bench(&b);
}
END_TEST

START_TEST(max_pending_refuses_or_lets_the_oldest_die)
{
    bench b = open_bench("max_pending=3");
    for (const char *id = "abc"; *id; id++) {
        char text[2] = {*id, '\0'};
        ck_assert_int_gt(schedule(&b, text, LAPSE_SECONDS(1)), 0);
    }
    ck_assert_int_eq(schedule(&b, "d", 0), LAPSE_EFULL);
    ck_assert_int_eq(schedule(&b, "a", 0), LAPSE_EEXISTS);
    cancel(&b, "b");
    ck_assert_int_gt(schedule(&b, "d", LAPSE_SECONDS(1)), 0);
    close_bench(&b);

    b = open_bench("max_pending=3&overflow=dead_letter_oldest");
    lp_job move = {.op = LP_RESCHEDULE, .id = "a", .id_len = 1, .due = b.now + LAPSE_SECONDS(9)};
    lapse_info before = get(&b, "a");
    int64_t generation = before.generation;
    lapse_info_free(&before);
    ck_assert_int_eq(ask(&b, &move), LAPSE_FATE_RESCHEDULED);
    lapse_info info = get(&b, "a");
    ck_assert_int_eq(info.generation, generation); /* It moved; its number is what it was. */
    lapse_info_free(&info);
    lapse_info dead;
    lp_job j = schedule_job("e", b.now);
    j.infos = &dead;
    ck_assert_int_gt(ask(&b, &j), 0);
    ck_assert(j.died);
    ck_assert_str_eq(dead.id, "c");
    ck_assert_int_eq(dead.reason, LAPSE_REASON_MAXLEN);
    lapse_info_free(&dead);
    ck_assert_int_eq(state_of(&b, "c"), LAPSE_STATE_DEAD);
    ck_assert_int_eq(state_of(&b, "a"), LAPSE_STATE_PENDING);
    check_counts(&b);
    close_bench(&b);
}
END_TEST

/* A walk in small steps shows each order once, and only what was asked for. */
START_TEST(a_walk_shows_every_order_once)
{
    bench b = open_bench("keep=1h");
    for (int i = 0; i < 100; i++) {
        char id[8];
        snprintf(id, sizeof id, "o%02d", i);
        schedule(&b, id, i < 40 ? 0 : LAPSE_HOURS(1));
    }
    lp_loan *l = claim(&b, 40, NULL);
    int n = 0;
    for (lp_loan *at = l; at; at = at->next, n++)
        if (n < 30)
            settle(&b, at, n < 10 ? LP_END : LP_DIE);
    free_loans(l);
    static const struct {
        unsigned states;
        int count;
    } cases[] = {{LAPSE_STATE_PENDING, 60},
                 {LAPSE_STATE_RUNNING, 10},
                 {LAPSE_STATE_DONE, 10},
                 {LAPSE_STATE_DEAD, 20},
                 {15, 100}};
    for (size_t i = 0; i < 5; i++) {
        uint64_t cursor = 0;
        bool seen[100] = {false};
        int count = 0;
        while (cursor != UINT64_MAX) {
            lapse_info infos[7];
            lp_job j = {.op = LP_LIST,
                        .cursor = &cursor,
                        .states = cases[i].states,
                        .infos = infos,
                        .max = 7};
            int64_t found = ask(&b, &j);
            ck_assert_int_ge(found, 0);
            for (int64_t k = 0; k < found; k++) {
                ck_assert(infos[k].state & cases[i].states);
                ck_assert(!seen[atoi(infos[k].id + 1)]);
                seen[atoi(infos[k].id + 1)] = true;
                lapse_info_free(&infos[k]);
                count++;
            }
        }
        ck_assert_int_eq(count, cases[i].count);
    }
    check_counts(&b);
    close_bench(&b);
}
END_TEST

START_TEST(queues_are_named_and_counted)
{
    bench b = open_bench("");
    lp_job j = schedule_job("a", b.now - LAPSE_SECONDS(1));
    j.queue = "mail";
    ask(&b, &j);
    schedule(&b, "b", LAPSE_SECONDS(1));
    uint64_t cursor = 0;
    lapse_info infos[4];
    lp_job names = {.op = LP_QUEUES, .cursor = &cursor, .infos = infos, .max = 4};
    ck_assert_int_eq(ask(&b, &names), 2);
    ck_assert_uint_eq(cursor, UINT64_MAX);
    ck_assert_str_eq(infos[0].queue, "");
    ck_assert_str_eq(infos[1].queue, "mail");
    lapse_info_free(&infos[0]);
    lapse_info_free(&infos[1]);
    lp_counts c;
    lp_job count = {.op = LP_COUNT, .queue = "mail", .counts = &c};
    ck_assert_int_eq(ask(&b, &count), 0);
    ck_assert_uint_eq(c.pending, 1);
    ck_assert_int_eq(c.oldest_due, b.now - LAPSE_SECONDS(1));
    count.queue = "post";
    ck_assert_int_eq(ask(&b, &count), LAPSE_EUNKNOWN);
    ck_assert_int_eq(counts_of(&b).oldest_due, b.now - LAPSE_SECONDS(1));
    close_bench(&b);
}
END_TEST

/* Ids are bytes: as long as they may be, not UTF-8, and UUIDs in every spelling. */
START_TEST(ids_come_back_as_they_were)
{
    bench b = open_bench("");
    char longest[LAPSE_ID_MAX + 1];
    memset(longest, 'x', LAPSE_ID_MAX);
    longest[LAPSE_ID_MAX] = '\0';
    const char *ids[] = {"a",
                         longest,
                         "\xff\xfe\x80",
                         "0189d3f2-7c1a-7b3e-9f00-aabbccddeeff",
                         "0189D3F2-7C1A-7B3E-9F00-AABBCCDDEEFF",
                         "0189d3f27c1a7b3e9f00aabbccddeeff",
                         "0189d3f2-7c1a-7b3e-9f00-aabbccddeefg",
                         "0189d3f2-7c1a-7b3e-9f00-aabbccddeef",
                         "0189d3f2_7c1a-7b3e-9f00-aabbccddeeff",
                         "\x01\x89\xd3\xf2\x7c\x1a\x7b\x3e\x9f\x01\xaa\xbb\xcc\xdd\xee\xff"};
    enum { COUNT = sizeof ids / sizeof *ids };
    for (int i = 0; i < COUNT; i++)
        ck_assert_int_gt(schedule(&b, ids[i], 0), 0);
    lp_loan *loans = claim(&b, 100, NULL), *l = loans;
    for (int i = 0; i < COUNT; i++, l = l->next) {
        ck_assert_str_eq(l->id, ids[i]);
        ck_assert_uint_eq(l->id_len, strlen(ids[i]));
        ck_assert_ptr_null(l->bad);
        ck_assert_int_eq(state_of(&b, ids[i]), LAPSE_STATE_RUNNING);
    }
    ck_assert_uint_eq(free_loans(loans), COUNT);
    ck_assert_int_eq(look("SELECT count(*) FROM lapse_order WHERE length(id) = 17"), 1);
    close_bench(&b);
}
END_TEST

static void fill(TCase *tests)
{
    tcase_add_test(tests, an_order_is_claimed_when_due_and_ends);
    tcase_add_test(tests, several_queues_are_served_by_due_time);
    tcase_add_test(tests, pushed_wants_share_a_limit_and_newest_takes_the_last);
    tcase_add_test(tests, a_lease_ends_by_itself);
    tcase_add_test(tests, no_attempt_follows_running);
    tcase_add_test(tests, a_claim_that_was_not_started_counts_as_pending);
    tcase_add_test(tests, a_new_generation_takes_the_row_of_a_held_one);
    tcase_add_test(tests, a_retry_waits_and_a_return_keeps_its_due_time);
    tcase_add_test(tests, dead_letters_are_kept_listed_requeued_and_purged);
    tcase_add_test(tests, a_dead_letter_gives_its_name_to_the_next);
    tcase_add_test(tests, ended_orders_are_remembered_as_long_as_keep);
    tcase_add_test(tests, max_pending_refuses_or_lets_the_oldest_die);
    tcase_add_test(tests, a_walk_shows_every_order_once);
    tcase_add_test(tests, queues_are_named_and_counted);
    tcase_add_test(tests, ids_come_back_as_they_were);
}

int main(void)
{
    return run_sqlite_suite("sqlite orders", fill);
}
