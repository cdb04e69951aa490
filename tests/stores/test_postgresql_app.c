/* test_postgresql_app.c - schedule and cancel in the application's own transaction. P-64, P-71,
 * P-74. */
/* servers: postgresql */
#include "lapse_postgresql.h"
#include "stores/postgresql_client.h"

#include <sched.h>
#include <time.h>
#include <unistd.h>

/* -- C, on the caller's connection ------------------------------------------------------------ */

START_TEST(p64_the_order_and_its_timeout_are_committed_together)
{
    place at = new_place(PG, NULL);
    rig r = open_real(&at, NULL);
    PGconn *app = connect_app(&at);
    sql(app, "CREATE TABLE orders (id text)");
    lapse_spec spec = {.id = "OID1",
                       .queue = "close",
                       .payload = "p\0\xff",
                       .payload_len = 3,
                       .delay = LAPSE_MINUTES(30)};

    sql(app, "BEGIN; INSERT INTO orders VALUES ('OID1')");
    ck_assert_int_gt(lapse_postgresql_put(app, NULL, &spec), 0);
    sql(app, "ROLLBACK");
    EXPECT_ERROR(lapse_get(r.s, "OID1", &(lapse_info){0}), LAPSE_EUNKNOWN, "OID1");

    sql(app, "BEGIN; INSERT INTO orders VALUES ('OID1')");
    int64_t generation = lapse_postgresql_put(app, schema_of(&at), &spec);
    ck_assert_int_gt(generation, 0);
    EXPECT_ERROR(lapse_postgresql_put(app, NULL, &spec), LAPSE_EEXISTS, "OID1");
    EXPECT_ERROR(lapse_get(r.s, "OID1", &(lapse_info){0}), LAPSE_EUNKNOWN, "OID1");
    sql(app, "INSERT INTO orders VALUES ('after')"); /* The refusal ended nothing. */
    sql(app, "COMMIT");
    ck_assert_int_eq(number(app, "SELECT count(*) FROM orders"), 2);
    lapse_info info = look(r.s, "OID1");
    ck_assert_int_eq(info.state, LAPSE_STATE_PENDING);
    ck_assert_int_eq(info.generation, generation);
    ck_assert_str_eq(info.queue, "close");
    ck_assert_uint_eq(info.payload_len, 3);
    ck_assert_mem_eq(info.payload, "p\0\xff", 3);
    lapse_info_free(&info);

    sql(app, "BEGIN");
    ck_assert_int_eq(lapse_postgresql_cancel(app, NULL, "OID1", generation + 1),
                     LAPSE_FATE_UNKNOWN);
    ck_assert_int_eq(lapse_postgresql_cancel(app, NULL, "OID1", generation), LAPSE_FATE_CANCELLED);
    sql(app, "ROLLBACK");
    info = look(r.s, "OID1");
    ck_assert_int_eq(info.state, LAPSE_STATE_PENDING);
    lapse_info_free(&info);
    /* Without a transaction it is one of its own. */
    spec.flags = LAPSE_REPLACE;
    ck_assert_int_gt(lapse_postgresql_put(app, NULL, &spec), generation);
    ck_assert_int_eq(lapse_postgresql_cancel(app, NULL, "OID1", LAPSE_ANY), LAPSE_FATE_CANCELLED);
    EXPECT_ERROR(lapse_get(r.s, "OID1", &(lapse_info){0}), LAPSE_EUNKNOWN, "OID1");
    PQfinish(app);
    rig_close(&r);
}
END_TEST

START_TEST(what_is_wrong_is_said_and_changes_nothing)
{
    place at = new_place(PG, NULL);
    rig r = open_real(&at, NULL);
    PGconn *app = connect_app(&at);
    lapse_spec spec = {.id = "x"};
    EXPECT_ERROR(lapse_postgresql_put(app, NULL, &(lapse_spec){.id = "x", .fn = never}),
                 LAPSE_EUNSUPPORTED, "queue");
    EXPECT_ERROR(
        lapse_postgresql_put(app, NULL, &(lapse_spec){.id = "x", .delay = LAPSE_DELAY_MAX + 1}),
        LAPSE_ERANGE, "100 years");
    ck_assert_int_eq(lapse_postgresql_put(app, NULL, &(lapse_spec){.id = ""}), LAPSE_EID);
    EXPECT_ERROR(lapse_postgresql_put(NULL, NULL, &spec), LAPSE_EINVAL, "NULL");
    EXPECT_ERROR(lapse_postgresql_put(app, "a\"b", &spec), LAPSE_EINVAL, "schema");
    EXPECT_ERROR(lapse_postgresql_put(app, "no_such_schema", &spec), LAPSE_EDATA, "lapse migrate");
    EXPECT_ERROR(lapse_postgresql_cancel(app, NULL, NULL, 0), LAPSE_EINVAL, "NULL");
    ck_assert_int_eq(lapse_postgresql_cancel(app, NULL, "", 0), LAPSE_FATE_UNKNOWN);
    ck_assert_int_eq(PQsendQuery(app, "SELECT 1"), 1);
    EXPECT_ERROR(lapse_postgresql_put(app, NULL, &spec), LAPSE_EINVAL, "under way");
    for (PGresult *result; (result = PQgetResult(app));)
        PQclear(result);
    sql(app, "BEGIN");
    sql_fails(app, "SELECT 1 / 0");
    EXPECT_ERROR(lapse_postgresql_put(app, NULL, &spec), LAPSE_EINVAL, "roll it back");
    sql(app, "ROLLBACK");
    ck_assert_uint_eq(stats_of(r.s).pending, 0);
    PQfinish(app);
    rig_close(&r);
}
END_TEST

/* -- SQL, from any client, trigger, language ---------------------------------------------------- */

START_TEST(p64_sql_functions_are_the_same_requests)
{
    place at = new_place(PG, "keep=1h");
    rig r = open_real(&at, NULL);
    PGconn *app = connect_app(&at);
    long generation = number(app, "SELECT lapse_schedule('OID1', '30 minutes', 'close')");
    ck_assert_int_gt(generation, 0);
    ck_assert_str_eq(sql_fails(app, "SELECT lapse_schedule('OID1', '1 hour')"), "23505");
    lapse_info info = look(r.s, "OID1");
    ck_assert_str_eq(info.queue, "close");
    ck_assert_int_eq(info.generation, generation);
    ck_assert_int_le(info.remaining, LAPSE_MINUTES(30));
    ck_assert_int_gt(info.remaining, LAPSE_MINUTES(29));
    lapse_info_free(&info);
    ck_assert_int_gt(number(app, "SELECT lapse_schedule('OID1', '1 day', queue => 'later',"
                                 " payload => '\\x00ff', replace => true)"),
                     generation);
    info = look(r.s, "OID1");
    ck_assert_str_eq(info.queue, "later");
    ck_assert_uint_eq(info.payload_len, 2);
    lapse_info_free(&info);
    ck_assert_str_eq(word(app, "SELECT lapse_cancel('OID1', 1)"), "unknown");
    ck_assert_str_eq(word(app, "SELECT lapse_cancel('OID1')"), "cancelled");
    ck_assert_str_eq(word(app, "SELECT lapse_cancel('OID1')"), "done");
    ck_assert_str_eq(word(app, "SELECT lapse_cancel('nobody')"), "unknown");
    /* Text is UTF-8 in the store, whatever the client speaks. */
    sql(app, "SET client_encoding = 'LATIN1'");
    ck_assert_int_gt(number(app, "SELECT lapse_schedule('caf\xe9', '-1 hour')"), 0);
    finish_one(r.s, "", "caf\xc3\xa9");
    static const char *const wrong[] = {
        "SELECT lapse_schedule('', '1 s')",
        "SELECT lapse_schedule(NULL, '1 s')",
        "SELECT lapse_schedule('x', NULL)",
        "SELECT lapse_schedule('x', '101 years')",
        "SELECT lapse_schedule('x', '1 s', repeat('q', 256))",
        "SELECT lapse_schedule(repeat('x', 256), '1 s')",
        "SELECT lapse_schedule('x', '1 s', '', convert_to(repeat('p', 16777217), 'UTF8'))",
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        ck_assert_msg(strcmp(sql_fails(app, wrong[i]), "22023") == 0, "%s", wrong[i]);
    ck_assert_uint_eq(stats_of(r.s).pending, 0);
    PQfinish(app);
    rig_close(&r);
}
END_TEST

/* P-74: what reserves the stock and what gives it back stand or fall together. */
START_TEST(p74_a_trigger_schedules_and_cancels)
{
    place at = new_place(PG, NULL);
    rig r = open_real(&at, NULL);
    PGconn *app = connect_app(&at);
    sql(app, "CREATE TABLE orders (id text PRIMARY KEY, paid boolean NOT NULL DEFAULT false)");
    sql(app, "CREATE FUNCTION watch() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
             " IF TG_OP = 'INSERT' THEN PERFORM lapse_schedule(NEW.id, '30 minutes', 'close');"
             " ELSIF NEW.paid THEN PERFORM lapse_cancel(NEW.id); END IF; RETURN NULL; END $$");
    sql(app, "CREATE TRIGGER watch AFTER INSERT OR UPDATE ON orders FOR EACH ROW"
             " EXECUTE FUNCTION watch()");
    sql(app, "INSERT INTO orders SELECT 'O' || i FROM generate_series(1, 1000) i");
    sql(app, "BEGIN; INSERT INTO orders SELECT 'P' || i FROM generate_series(1, 1000) i; ROLLBACK");
    ck_assert_uint_eq(stats_of(r.s).pending, 1000);
    sql(app, "UPDATE orders SET paid = true WHERE id <= 'O3'");
    ck_assert_int_eq((long)stats_of(r.s).pending,
                     number(app, "SELECT count(*) FROM orders WHERE NOT paid"));
    PQfinish(app);
    rig_close(&r);
}
END_TEST

/* -- Transactions that stay open --------------------------------------------------------------- */

enum { TRANSACTIONS = 40 };

static struct shop {
    atomic_int runs[TRANSACTIONS];
    _Atomic lapse_ns ran[TRANSACTIONS];
} shop;

static lapse_verdict note_run(const lapse_order *order, void *arg)
{
    (void)arg;
    int i = atoi(order->id);
    atomic_store(&shop.ran[i], now_ns());
    atomic_fetch_add(&shop.runs[i], 1);
    return LAPSE_DONE;
}

/* Each is begun, holds its order while others end, and ends in random order: committed, rolled
 * back, or cut off. */
START_TEST(p64_open_transactions_run_after_their_commit_and_only_then)
{
    place at = new_place(PG, NULL);
    rig r = open_real(&at, NULL);
    memset(&shop, 0, sizeof shop);
    ck_assert_int_eq(lapse_handle(r.s, "close", note_run, NULL, NULL, NULL), 0);
    ck_assert_int_eq(lapse_start(r.s, 2), 0);
    rng luck = rng_open("p64_open_transactions_run_after_their_commit_and_only_then");
    PGconn *apps[TRANSACTIONS];
    int order[TRANSACTIONS];
    for (int i = 0; i < TRANSACTIONS; i++) {
        char id[16];
        snprintf(id, sizeof id, "%d", i);
        apps[i] = connect_app(&at);
        sql(apps[i], "BEGIN");
        lapse_spec spec = {.id = id, .queue = "close", .delay = i % 3 ? 0 : LAPSE_MS(700)};
        ck_assert_int_gt(lapse_postgresql_put(apps[i], NULL, &spec), 0);
        order[i] = i;
    }
    for (int i = TRANSACTIONS - 1; i > 0; i--) {
        int other = (int)rng_range(&luck, 0, i), kept = order[i];
        order[i] = order[other];
        order[other] = kept;
    }
    lapse_ns commits[TRANSACTIONS] = {0}, begun = now_ns();
    int committed = 0;
    for (int n = 0; n < TRANSACTIONS; n++) {
        int i = order[n];
        ck_assert_int_eq(atomic_load(&shop.runs[i]), 0);
        int fate = (int)rng_range(&luck, 0, 3);
        if (fate == 0) {
            sql(apps[i], "ROLLBACK");
        } else if (fate > 1) {
            commits[i] = now_ns();
            sql(apps[i], "COMMIT");
            committed++;
        }
        PQfinish(apps[i]); /* Of those that neither was asked of, it is the end. */
        usleep((useconds_t)(tier(20, 80, 400) * 1000)); /* sleeps: they stay open for seconds */
    }
    for (int i = 0; i < TRANSACTIONS; i++)
        while (commits[i] && !atomic_load(&shop.runs[i]) && now_ns() - begun < LIMIT + LIMIT)
            sched_yield();
    lapse_ns worst = 0, bound = stats_of(r.s).poll_bound;
    usleep((useconds_t)(2 * bound / 1000)); /* sleeps: nothing more may run */
    for (int i = 0; i < TRANSACTIONS; i++) {
        ck_assert_int_eq(atomic_load(&shop.runs[i]), commits[i] != 0);
        lapse_ns after = atomic_load(&shop.ran[i]) - commits[i];
        ck_assert(!commits[i] || after > 0);
        worst = commits[i] && after > worst ? after : worst;
    }
    printf("%d of %d committed: run %.0f ms after the commit at most; bound of polling %.0f ms\n",
           committed, TRANSACTIONS, (double)worst / 1e6, (double)bound / 1e6);
    ck_assert_uint_eq(stats_of(r.s).pending, 0);
    rig_close(&r);
}
END_TEST

/* An id that somebody's open transaction holds is waited for a moment; nobody else waits. */
START_TEST(p56_an_order_that_is_locked_does_not_hold_back_the_others)
{
    enum { COUNT = 100 };
    place at = new_place(PG, NULL);
    rig r = open_real(&at, NULL);
    PGconn *app = connect_app(&at);
    sql(app, "BEGIN");
    ck_assert_int_gt(number(app, "SELECT lapse_schedule('37', '1 hour')"), 0);
    lapse_spec specs[COUNT];
    char ids[COUNT][16];
    int64_t results[COUNT];
    for (int i = 0; i < COUNT; i++) {
        snprintf(ids[i], sizeof ids[i], "%d", i);
        specs[i] = (lapse_spec){.id = ids[i], .delay = LAPSE_HOURS(1)};
    }
    ck_assert_int_eq(lapse_schedule_many(r.s, specs, COUNT, results), COUNT - 1);
    for (int i = 0; i < COUNT; i++)
        ck_assert_int_eq(results[i] > 0, i != 37);
    ck_assert_int_eq(results[37], LAPSE_ETIMEOUT);
    sql(app, "COMMIT");
    ck_assert_int_eq(lapse_schedule_many(r.s, specs, COUNT, results), 0);
    ck_assert_int_eq(results[37], LAPSE_EEXISTS);
    ck_assert_uint_eq(stats_of(r.s).pending, COUNT);
    PQfinish(app);
    rig_close(&r);
}
END_TEST

static void fill_suite(Suite *suite)
{
    TCase *group = add_group(suite, "the application's transaction");
    tcase_add_test(group, p64_the_order_and_its_timeout_are_committed_together);
    tcase_add_test(group, what_is_wrong_is_said_and_changes_nothing);
    tcase_add_test(group, p64_sql_functions_are_the_same_requests);
    tcase_add_test(group, p74_a_trigger_schedules_and_cancels);
    tcase_add_test(group, p64_open_transactions_run_after_their_commit_and_only_then);
    tcase_add_test(group, p56_an_order_that_is_locked_does_not_hold_back_the_others);
}

int main(void)
{
    return stores_main("postgresql app", fill_suite);
}
