/* test_postgresql_claims.c - what a claim reads and brings, and who waits for whom: counts, not
 * times. The store is driven by its table, without an engine, where its turns are counted. */
/* servers: postgresql */
#define _GNU_SOURCE
#include "stores/postgresql_client.h"

#include "stores/one_turn.h"

#define LEASE LAPSE_HOURS(1)

static lp_durable *open_turns(const place *at, const char *options)
{
    char url[640];
    snprintf(url, sizeof url, "%s&%s", at->url, options);
    lp_store_config config = {.url = url, .lease = LEASE, .now = now_ns()};
    lp_durable *d = NULL;
    ck_assert_msg(lp_postgresql_store.open(&config, &d) == 0, "%s", lapse_error_detail());
    return d;
}

/* What it has read is counted for good once its connection is gone. */
static void close_turns(lp_durable *d, PGconn *app)
{
    lp_postgresql_store.close(d);
    while (number(app, "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'lapse'"))
        pause_ms(1); /* sleeps: between two looks */
}

static lp_loan *take_turn(lp_durable *d, lp_job *const *jobs, size_t count, lp_want *wants,
                          size_t want_count)
{
    lp_loan *loans;
    int code = take_one_turn(d, now_ns(), 0, LEASE, jobs, count, wants, want_count, &loans);
    ck_assert_msg(code == 0, "%s", lapse_error_detail());
    return loans;
}

static lp_want want_of(const char *const *queue, unsigned most)
{
    return (lp_want){.queues = queue, .queue_count = 1, .most = most};
}

static const char *const q = "q", *const other = "other";

/* How many were claimed and ended. */
static int end_all(lp_durable *d, lp_loan *loans)
{
    static lp_job jobs[1000];
    static lp_job *list[1000];
    int n = 0;
    for (lp_loan *next; loans; loans = next, n++) {
        next = loans->next;
        jobs[n] = (lp_job){.op = LP_END, .row = loans->row, .fence = loans->fence};
        list[n] = &jobs[n];
        free(loans);
    }
    take_turn(d, list, (size_t)n, NULL, 0);
    for (int i = 0; i < n; i++)
        ck_assert_int_eq(jobs[i].answer, LAPSE_OK);
    return n;
}

static int claim_and_end(lp_durable *d, unsigned most)
{
    lp_want w = want_of(&q, most);
    return end_all(d, take_turn(d, NULL, 0, &w, 1));
}

/* -- Dead rows ----------------------------------------------------------------------------------- */

/* `step` between their due times. */
static void insert_orders(PGconn *app, const char *prefix, int count, const char *from,
                          const char *step)
{
    char text[500];
    snprintf(text, sizeof text,
             "INSERT INTO lapse_order (id, queue, at, seq, generation, due) SELECT"
             " convert_to('%s' || i, 'UTF8'), 'q', now() + interval '%s' + i * interval '%s', s, s,"
             " now() FROM (SELECT i, nextval('lapse_seq') AS s FROM generate_series(1, %d) i) x",
             prefix, from, step, count);
    sql(app, text);
}

static const char *const steps[] = {"1 us", "0"};

/* A snapshot keeps all that has ended in the index; one instant may be due to all of it. */
START_TEST(a_claim_reads_nothing_that_is_dead)
{
    enum { DEAD = 2000, CLAIMS = 50, SIZE = 10 };
    place at = new_place(PG, NULL);
    lp_durable *d = open_turns(&at, "poll=1h");
    PGconn *app = connect_app(&at), *old = connect_app(&at);
    sql(app, "ALTER TABLE lapse_order SET (autovacuum_enabled = off)");
    sql(app, "BEGIN"); /* So that now() is one instant. */
    insert_orders(app, "dead", DEAD, "-1 hour", steps[_i]);
    insert_orders(app, "new", CLAIMS * SIZE, _i ? "-1 hour" : "-30 min", steps[_i]);
    sql(app, "COMMIT");
    sql(old, "BEGIN ISOLATION LEVEL REPEATABLE READ");
    sql(old, "SELECT 1");
    for (int left = DEAD; left > 0; left -= 500)
        ck_assert_int_eq(claim_and_end(d, 500), 500);
    close_turns(d, app);
    /* The first claim is from the very beginning on: once by itself, once with others. */
    long read[2];
    for (int i = 0; i < 2; i++) {
        long before = reads_of(app).rows;
        d = open_turns(&at, "poll=1h");
        for (int n = i ? CLAIMS - 1 : 1; n > 0; n--)
            ck_assert_int_eq(claim_and_end(d, SIZE), SIZE);
        close_turns(d, app);
        read[i] = reads_of(app).rows - before;
    }
    printf("%ld rows of the indexes read for %d claims of %d, after a first one that read %ld\n",
           read[1] - read[0], CLAIMS - 2, SIZE, read[0]);
    ck_assert_int_gt(read[0], DEAD);
    /* For an order: found, locked, held, ended, and how many come next. */
    ck_assert_int_lt(read[1] - read[0], 10L * CLAIMS * SIZE);
    sql(old, "ROLLBACK");
    PQfinish(old);
    PQfinish(app);
}
END_TEST

/* -- Bytes ---------------------------------------------------------------------------------------- */

enum { KIB = 1024 };

static void insert_payloads(PGconn *app, const char *queue, int count, int bytes)
{
    char text[500];
    snprintf(
        text, sizeof text,
        "INSERT INTO lapse_order (id, queue, at, seq, generation, due, payload) SELECT"
        " convert_to('%s' || i, 'UTF8'), '%s', now() - interval '1 s' + i * interval '1 us', s,"
        " s, now(), decode(repeat('00', %d), 'hex') FROM"
        " (SELECT i, nextval('lapse_seq') AS s FROM generate_series(1, %d) i) x",
        queue, queue, bytes, count);
    sql(app, text);
}

static size_t count_loans(const lp_loan *loans, size_t want, size_t *bytes)
{
    size_t n = 0;
    for (; loans; loans = loans->next)
        if (loans->want == want) {
            n++;
            *bytes += loans->payload_len;
        }
    return n;
}

START_TEST(a_claim_brings_a_mebibyte)
{
    enum { COUNT = 30, SIZE = 100 * KIB };
    place at = new_place(PG, NULL);
    lp_durable *d = open_turns(&at, "poll=1h");
    PGconn *app = connect_app(&at);
    insert_payloads(app, "q", COUNT, SIZE);
    for (int left = COUNT, next = 1; left > 0;) {
        lp_want w = want_of(&q, 100);
        lp_loan *loans = take_turn(d, NULL, 0, &w, 1);
        size_t bytes = 0, n = count_loans(loans, 0, &bytes);
        ck_assert_uint_eq(n, left > 11 ? 11 : (size_t)left); /* Up to the first behind 1 MiB. */
        ck_assert(left <= 11 || w.next <= now_ns());         /* There is more. */
        for (const lp_loan *l = loans; l; l = l->next) {
            char id[16];
            snprintf(id, sizeof id, "q%d", next++);
            ck_assert_str_eq(l->id, id);
        }
        left -= end_all(d, loans);
    }
    /* One that is larger than all of that comes alone. */
    insert_payloads(app, "other", 2, 3 * KIB * KIB);
    for (int i = 0; i < 2; i++) {
        lp_want w = want_of(&other, 100);
        ck_assert_int_eq(end_all(d, take_turn(d, NULL, 0, &w, 1)), 1);
    }
    lp_postgresql_store.close(d);
    PQfinish(app);
}
END_TEST

START_TEST(all_claims_of_a_turn_share_it)
{
    enum { COUNT = 20, SIZE = 100 * KIB };
    place at = new_place(PG, NULL);
    lp_durable *d = open_turns(&at, "poll=1h");
    PGconn *app = connect_app(&at);
    insert_payloads(app, "q", COUNT, SIZE);
    insert_payloads(app, "other", COUNT, SIZE);
    int got = 0;
    for (int turn = 0; turn < COUNT && got < 2 * COUNT; turn++) {
        lp_want wants[2] = {want_of(&q, 100), want_of(&other, 100)};
        lp_loan *loans = take_turn(d, NULL, 0, wants, 2);
        size_t bytes = 0, n = count_loans(loans, 0, &bytes) + count_loans(loans, 1, &bytes);
        ck_assert_uint_gt(n, 0);
        ck_assert_uint_lt(bytes, KIB * KIB + SIZE);
        if (got + (int)n < 2 * COUNT)
            ck_assert(wants[0].next <= now_ns() || wants[1].next <= now_ns());
        got += end_all(d, loans);
    }
    ck_assert_int_eq(got, 2 * COUNT);
    lp_postgresql_store.close(d);
    PQfinish(app);
}
END_TEST

/* -- The oldest --------------------------------------------------------------------------------- */

static reads reads_of_index(PGconn *app, const char *name)
{
    char text[300];
    (void)reads_of(app);
    snprintf(text, sizeof text,
             "SELECT idx_tup_read FROM pg_stat_user_indexes WHERE schemaname = current_schema() AND"
             " indexrelname = '%s'",
             name);
    return (reads){.rows = number(app, text)};
}

START_TEST(the_oldest_is_found_by_an_index)
{
    enum { FULL = 2000, MORE = 20 };
    place at = new_place(PG, NULL);
    char options[100];
    snprintf(options, sizeof options, "max_pending=%d&overflow=dead_letter_oldest", FULL);
    lp_durable *d = open_turns(&at, options);
    PGconn *app = connect_app(&at);
    sql(app, "ALTER TABLE lapse_order SET (autovacuum_enabled = off)");
    insert_orders(app, "o", FULL - 2, "1 hour", "-1 s"); /* The oldest is due last. */
    /* Older by far: one is held, of the other the lease has ended. */
    sql(app, "INSERT INTO lapse_order (id, queue, at, seq, generation, due, fence, attempt) VALUES"
             " ('held', 'q', now() + interval '1 h', 1, 1, now(), 1, 1),"
             " ('lost', 'q', now() - interval '1 s', 2, 2, now(), 2, 1)");
    for (int i = 0; i < MORE; i++) {
        char id[16], oldest[16];
        lapse_info dead = {.id = NULL};
        snprintf(id, sizeof id, "new%d", i);
        snprintf(oldest, sizeof oldest, "o%d", i);
        lp_job j = {.op = LP_SCHEDULE,
                    .id = id,
                    .id_len = strlen(id),
                    .queue = "q",
                    .due = now_ns() + LAPSE_HOURS(2),
                    .infos = &dead,
                    .max = 1};
        take_turn(d, (lp_job *[]){&j}, 1, NULL, 0);
        ck_assert_int_gt(j.answer, 0);
        ck_assert(j.died);
        ck_assert_str_eq(dead.id, i ? oldest : "lost");
        lapse_info_free(&dead);
        free(j.of_queue);
    }
    close_turns(d, app);
    long read = reads_of_index(app, "lapse_order_seq").rows;
    long held = reads_of_index(app, "lapse_order_fence").rows;
    printf("%ld and %ld rows of indexes read for the oldest of %d, %d times\n", read, held, FULL,
           MORE);
    ck_assert_int_ge(read, MORE);
    ck_assert_int_le(read, MORE * (MORE + 1)); /* Those that died before it are still there. */
    ck_assert_int_le(held, 3 * MORE);
    PQfinish(app);
}
END_TEST

/* -- Any queue ------------------------------------------------------------------------------------ */

/* Where there are thousands of queues, a claim from any of them looks into few. */
START_TEST(not_every_queue_is_looked_into)
{
    enum { QUEUES = 1000, CLAIMS = 50 };
    place at = new_place(PG, NULL);
    lp_durable *d = open_turns(&at, "poll=1h");
    PGconn *app = connect_app(&at);
    char text[400];
    snprintf(text, sizeof text,
             "INSERT INTO lapse_order (id, queue, at, seq, generation, due) SELECT"
             " convert_to('o' || i, 'UTF8'), convert_to('q' || i, 'UTF8'),"
             " now() + interval '1 hour', i, i, now() FROM generate_series(1, %d) i",
             QUEUES);
    sql(app, text);
    long before = reads_of(app).rows;
    lp_want first = {.queues = &q, .queue_count = 1, .others = true, .most = 1};
    ck_assert_ptr_null(take_turn(d, NULL, 0, &first, 1)); /* Learns them all. */
    ck_assert(first.next > now_ns() && first.next < now_ns() + LAPSE_HOURS(2));
    for (int i = 0; i < CLAIMS; i++) {
        char id[16], queue[16];
        snprintf(id, sizeof id, "new%d", i);
        snprintf(queue, sizeof queue, i % 2 ? "q%d" : "unknown%d", i + 1);
        lp_job j = {
            .op = LP_SCHEDULE, .id = id, .id_len = strlen(id), .queue = queue, .due = now_ns()};
        lp_want w = {.queues = &q, .queue_count = 1, .others = true, .most = 1};
        lp_loan *l = take_turn(d, (lp_job *[]){&j}, 1, &w, 1);
        ck_assert_int_gt(j.answer, 0);
        ck_assert_ptr_nonnull(l);
        ck_assert_str_eq(l->id, id);
        ck_assert_str_eq(l->queue, queue);
        /* Given back, it is there again at once. */
        j = (lp_job){.op = LP_AGAIN, .row = l->row, .fence = l->fence, .due = l->due, .at = l->due};
        free(l);
        take_turn(d, (lp_job *[]){&j}, 1, NULL, 0);
        ck_assert_int_eq(j.answer, 0);
        l = take_turn(d, NULL, 0, &w, 1);
        ck_assert_ptr_nonnull(l);
        ck_assert_str_eq(l->id, id);
        ck_assert_int_eq(end_all(d, l), 1);
    }
    close_turns(d, app);
    long read = reads_of(app).rows - before;
    printf("%ld rows of the indexes read for %d claims from %d queues\n", read, CLAIMS, QUEUES);
    ck_assert_int_lt(read, 2L * QUEUES + 100L * CLAIMS);
    PQfinish(app);
}
END_TEST

/* -- max_pending ---------------------------------------------------------------------------------- */

static lapse_answer answer_of(lapse *s, const void *tag)
{
    lapse_answer a;
    /* sleeps: between two looks */
    for (lapse_ns until = now_ns() + LIMIT; now_ns() < until; pause_ms(1))
        if (lapse_collect(s, &a) == 1) {
            ck_assert_ptr_eq(a.tag, tag);
            return a;
        }
    ck_abort_msg("no answer");
}

/* Who accepts orders waits for who does so elsewhere; nobody else does. */
START_TEST(only_who_schedules_waits_for_max_pending)
{
    place at = new_place(PG, "max_pending=1000");
    rig r = open_real(&at, NULL);
    PGconn *app = connect_app(&at);
    put_batch(r.s, "q", "due", 20, 0);
    put_batch(r.s, "q", "later", 20, LAPSE_HOURS(1));
    sql(app, "BEGIN");
    sql(app, "SELECT pg_advisory_xact_lock('lapse_order'::regclass::oid::bigint)");
    int tags[4];
    const lapse_spec spec = {.id = "o", .queue = "q", .delay = LAPSE_HOURS(1)};
    const lapse_order *order;
    ck_assert_int_eq(
        lapse_submit(r.s, &(lapse_ask){.what = LAPSE_ASK_PUT, .tag = tags, .spec = &spec}), 0);
    for (int i = 0; i < 10; i++) {
        char id[16];
        snprintf(id, sizeof id, "later%d", i);
        ck_assert_int_eq(lapse_cancel(r.s, id, LAPSE_ANY), LAPSE_FATE_CANCELLED);
        ck_assert_int_eq(lapse_poll(r.s, "q", &order), 1);
        settle(r.s, order->fence, LAPSE_DONE);
    }
    lapse_answer a = answer_of(r.s, tags); /* It has waited for as long as it may. */
    ck_assert_int_eq(a.result, LAPSE_ETIMEOUT);
    ck_assert_ptr_nonnull(strstr(a.detail, "max_pending"));
    lapse_answer_free(&a);
    /* What was asked in a row keeps its order. */
    const lapse_ask asks[] = {
        {.what = LAPSE_ASK_PUT, .tag = &tags[0], .spec = &spec},
        {.what = LAPSE_ASK_PUT, .tag = &tags[1], .spec = &spec},
        {.what = LAPSE_ASK_RESCHEDULE, .tag = &tags[2], .id = "o", .delay = LAPSE_HOURS(2)},
        {.what = LAPSE_ASK_CANCEL, .tag = &tags[3], .id = "o"},
    };
    for (int i = 0; i < 4; i++)
        ck_assert_int_eq(lapse_submit(r.s, &asks[i]), 0);
    ck_assert_int_eq(lapse_cancel(r.s, "later19", LAPSE_ANY), LAPSE_FATE_CANCELLED);
    sql(app, "ROLLBACK");
    const int64_t expected[] = {1, LAPSE_EEXISTS, LAPSE_FATE_RESCHEDULED, LAPSE_FATE_CANCELLED};
    for (int i = 0; i < 4; i++) {
        a = answer_of(r.s, &tags[i]);
        ck_assert_msg(i ? a.result == expected[i] : a.result > 0, "%d: %lld", i,
                      (long long)a.result);
        lapse_answer_free(&a);
    }
    ck_assert_uint_eq(stats_of(r.s).pending, 10 + 9);
    PQfinish(app);
    rig_close(&r);
}
END_TEST

static void fill_suite(Suite *suite)
{
    TCase *group = add_group(suite, "claims");
    tcase_add_loop_test(group, a_claim_reads_nothing_that_is_dead, 0, 2);
    tcase_add_test(group, a_claim_brings_a_mebibyte);
    tcase_add_test(group, all_claims_of_a_turn_share_it);
    tcase_add_test(group, the_oldest_is_found_by_an_index);
    tcase_add_test(group, not_every_queue_is_looked_into);
    tcase_add_test(group, only_who_schedules_waits_for_max_pending);
}

int main(void)
{
    return stores_main("postgresql claims", fill_suite);
}
