/* test_postgresql_tables.c - URL, schema, versions, and which indexes are used.
 *
 * `LAPSE_STORES=postgresql stores_postgresql_tables --golden FILE` writes the golden file of this version: an order in
 * every place, as SQL. */
/* servers: postgresql */
#include "stores/postgresql_client.h"

#include <unistd.h>

/* -- URL ---------------------------------------------------------------------------------------- */

static void swap(char *out, size_t size, const char *url, const char *from, const char *to)
{
    const char *at = strstr(url, from);
    ck_assert_ptr_nonnull(at);
    snprintf(out, size, "%.*s%s%s", (int)(at - url), url, to, at + strlen(from));
}

START_TEST(no_password_is_shown)
{
    static const char *const urls[] = {
        "postgresql://shop:s3cret@127.0.0.1:1/shop",
        "postgresql://shop:s3cret@127.0.0.1:1/shop?no_such=1",
        "postgresql://shop:s3cret@127.0.0.1:wrong/shop",
        "postgresql://shop:s3cret@[::1/shop",
        "postgresql://shop:s3cret@127.0.0.1:1/shop?keep=1parsec",
        "postgresql://127.0.0.1:1/shop?user=shop&password=s3cret",
        "postgresql://127.0.0.1:1/shop?user=shop&password=s3cret&x=%zz",
        "postgresql://shop:a?s3cret@127.0.0.1:1/shop",
        "postgresql:shop:s3cret@127.0.0.1",
    };
    for (size_t i = 0; i < sizeof urls / sizeof *urls; i++) {
        lapse *s = NULL;
        int result = lapse_open(urls[i], NULL, &s);
        ck_assert_msg(result == LAPSE_EURL || result == LAPSE_EOFFLINE || result == LAPSE_ERANGE,
                      "%s: %d", urls[i], result);
        ck_assert_msg(strstr(lapse_error_detail(), "s3cret") == NULL, "%s: %s", urls[i],
                      lapse_error_detail());
        ck_assert_ptr_null(s);
    }
}
END_TEST

START_TEST(what_cannot_be_used_is_said_in_words)
{
    place at = new_place(PG, NULL);
    char url[512];
    lapse *s = NULL;
    swap(url, sizeof url, at.url, "schema=", "schema=a-b");
    EXPECT_ERROR(lapse_open(url, NULL, &s), LAPSE_EURL, "schema");
    swap(url, sizeof url, at.url, "schema=", "migrate=perhaps&schema=");
    EXPECT_ERROR(lapse_open(url, NULL, &s), LAPSE_EURL, "migrate");
    swap(url, sizeof url, at.url, "/postgres?", "/no_such_database?");
    EXPECT_ERROR(lapse_open(url, NULL, &s), LAPSE_EOFFLINE, "no_such_database");
    swap(url, sizeof url, at.url, "schema=", "options=-c%20search_path%3Dnowhere&x=");
    *strstr(url, "&x=") = '\0';
    EXPECT_ERROR(lapse_open(url, NULL, &s), LAPSE_EURL, "search path");
    /* What libpq knows goes to libpq. */
    swap(url, sizeof url, at.url, "schema=", "application_name=shop%201&schema=");
    ck_assert_int_eq(lapse_open(url, NULL, &s), 0);
    PGconn *app = connect_app(&at);
    ck_assert_int_ge(number(app, "SELECT count(*) FROM pg_stat_activity"
                                 " WHERE application_name = 'shop 1'"),
                     1);
    PQfinish(app);
    ck_assert_int_eq(lapse_close(s, LIMIT), 0);
}
END_TEST

/* -- Versions ------------------------------------------------------------------------------------ */

START_TEST(tables_are_made_when_that_is_allowed)
{
    place at = new_place(PG, NULL);
    lapse *s = NULL;
    char url[512];
    snprintf(url, sizeof url, "%s&migrate=no", at.url);
    EXPECT_ERROR(lapse_open(url, NULL, &s), LAPSE_EDATA, "lapse migrate");
    PGconn *app = connect_app(&at);
    char text[200];
    snprintf(text, sizeof text, "SELECT count(*) FROM pg_namespace WHERE nspname = '%s'",
             schema_of(&at));
    ck_assert_int_eq(number(app, text), 0);
    ck_assert_int_eq(lapse_open(at.url, NULL, &s), 0);
    ck_assert_int_eq(lapse_close(s, LIMIT), 0);
    ck_assert_int_eq(lapse_open(url, NULL, &s), 0);
    ck_assert_int_eq(lapse_close(s, LIMIT), 0);
    PQfinish(app);
}
END_TEST

/* As somebody who is allowed nothing: his URL is made of the place's. */
static void make_role(const place *at, PGconn *app, char *url, size_t size)
{
    char text[200];
    snprintf(text, sizeof text, "CREATE ROLE r_%s LOGIN", schema_of(at));
    sql(app, text);
    snprintf(text, sizeof text, "//r_%s@", schema_of(at));
    swap(url, size, at->url, "//postgres@", text);
}

/* Run what the error says, which must be all that was missing. */
static void obey(PGconn *app, const char *url, const char *missing)
{
    lapse *s = NULL;
    EXPECT_ERROR(lapse_open(url, NULL, &s), LAPSE_ESYSTEM, missing);
    const char *grant = strstr(lapse_error_detail(), "GRANT");
    ck_assert_ptr_nonnull(grant);
    char text[512];
    snprintf(text, sizeof text, "%.*s", (int)(strcspn(grant, "\n")), grant);
    char *more = strstr(text, ", or have");
    if (more)
        *more = '\0';
    sql(app, text);
}

START_TEST(a_missing_right_is_named_with_its_grant)
{
    place at = new_place(PG, NULL);
    char url[512], text[300];
    lapse *s = NULL;
    PGconn *app = connect_app(&at);
    make_role(&at, app, url, sizeof url);
    EXPECT_ERROR(lapse_open(url, NULL, &s), LAPSE_ESYSTEM, "lapse migrate");
    rig r = open_real(&at, NULL);
    obey(app, url, "GRANT USAGE ON SCHEMA");
    ck_assert_int_eq(lapse_open(url, NULL, &s), 0);
    ck_assert_int_gt(lapse_put(s, &(lapse_spec){.id = "a"}), 0);
    finish_one(s, "", "a");
    /* One right of one table, taken away while it is open. */
    snprintf(text, sizeof text, "REVOKE DELETE ON lapse_ended FROM r_%s", schema_of(&at));
    sql(app, text);
    EXPECT_ERROR(lapse_put(s, &(lapse_spec){.id = "a"}), LAPSE_ESYSTEM, "lapse check");
    ck_assert_int_eq(lapse_close(s, LIMIT), 0);
    snprintf(text, sizeof text, "GRANT DELETE ON %s.lapse_ended TO r_%s", schema_of(&at),
             schema_of(&at));
    obey(app, url, text);
    snprintf(text, sizeof text, "REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA %s FROM PUBLIC",
             schema_of(&at));
    sql(app, text);
    obey(app, url, "GRANT EXECUTE ON ALL FUNCTIONS");
    ck_assert_msg(lapse_open(url, NULL, &s) == 0, "%s", lapse_error_detail());
    ck_assert_int_gt(lapse_put(s, &(lapse_spec){.id = "a"}), 0);
    finish_one(s, "", "a");
    ck_assert_int_eq(lapse_close(s, LIMIT), 0);
    rig_close(&r);
    PQfinish(app);
}
END_TEST

START_TEST(who_may_not_make_tables_is_told)
{
    place at = new_place(PG, NULL);
    char url[512], text[200];
    lapse *s = NULL;
    PGconn *app = connect_app(&at);
    make_role(&at, app, url, sizeof url);
    EXPECT_ERROR(lapse_open(url, NULL, &s), LAPSE_ESYSTEM, "GRANT CREATE ON DATABASE");
    snprintf(text, sizeof text, "CREATE SCHEMA %s", schema_of(&at));
    sql(app, text);
    obey(app, url, "GRANT USAGE ON SCHEMA");
    obey(app, url, "GRANT USAGE, CREATE ON SCHEMA");
    ck_assert_msg(lapse_open(url, NULL, &s) == 0, "%s", lapse_error_detail());
    ck_assert_int_gt(lapse_put(s, &(lapse_spec){.id = "a"}), 0);
    ck_assert_int_eq(lapse_close(s, LIMIT), 0);
    PQfinish(app);
}
END_TEST

static void open_and_put(void *arg, int number_of_thread)
{
    char id[16];
    lapse *s = NULL;
    snprintf(id, sizeof id, "%d", number_of_thread);
    if (lapse_open(((const place *)arg)->url, NULL, &s) != 0) {
        complain("open: %s", lapse_error_detail());
        return;
    }
    if (lapse_put(s, &(lapse_spec){.id = id, .delay = LAPSE_HOURS(1)}) <= 0)
        complain("put: %s", lapse_error_detail());
    lapse_close(s, LIMIT);
}

START_TEST(many_may_be_first)
{
    enum { TOGETHER = 8 };
    place at = new_place(PG, NULL);
    crew c;
    crew_start(&c, TOGETHER, open_and_put, &at);
    crew_join(&c);
    check_calm();
    rig r = open_real(&at, NULL);
    ck_assert_uint_eq(stats_of(r.s).pending, TOGETHER);
    rig_close(&r);
}
END_TEST

START_TEST(newer_tables_are_refused)
{
    place at = new_place(PG, NULL);
    rig r = open_real(&at, NULL);
    PGconn *app = connect_app(&at);
    sql(app, "UPDATE lapse_meta SET version = 99");
    ck_assert_int_gt(lapse_put(r.s, &(lapse_spec){.id = "a"}), 0); /* Its functions were ours. */
    EXPECT_ERROR(lapse_put(r.s, &(lapse_spec){.id = "b"}), LAPSE_EDATA, "newer lapse");
    lapse *s = NULL;
    EXPECT_ERROR(lapse_open(at.url, NULL, &s), LAPSE_EDATA, "newer lapse");
    sql(app, "UPDATE lapse_meta SET version = 1");
    PQfinish(app);
    rig_close(&r);
}
END_TEST

/* -- Golden files --------------------------------------------------------------------------------- */

/* An order in every place: see check_golden. */
static void fill_golden(lapse *s)
{
    const lapse_order *order;
    ck_assert_int_gt(lapse_put(s, &(lapse_spec){.id = "dead", .payload = "body", .payload_len = 4}),
                     0);
    order = poll_one(s, "", "dead");
    ck_assert_int_eq(lapse_settle(s, order->fence, LAPSE_REJECT, 0, "no such order"), 0);
    ck_assert_int_gt(lapse_put(s, &(lapse_spec){.id = "ended"}), 0);
    ck_assert_int_eq(lapse_cancel(s, "ended", LAPSE_ANY), LAPSE_FATE_CANCELLED);
    ck_assert_int_gt(lapse_put(s, &(lapse_spec){.id = "held"}), 0);
    poll_one(s, "", "held");
    ck_assert_int_gt(lapse_put(s, &(lapse_spec){.id = "running"}), 0);
    poll_one(s, "", "running");
    ck_assert_int_eq(lapse_cancel(s, "running", LAPSE_ANY), LAPSE_FATE_RUNNING);
    lapse_spec far = {.id = "caf\xc3\xa9\x01\xff",
                      .queue = "mail",
                      .delay = LAPSE_DAYS(36500),
                      .payload = "\0\xff",
                      .payload_len = 2};
    ck_assert_int_gt(lapse_put(s, &far), 0);
}

/* As pg_dump would write it, but with a mark for the schema. */
static const char dump[] =
    "PGPASSWORD= pg_dump --schema=%s --no-owner --no-privileges --no-comments --inserts"
    " '%s' | sed -e '/^--/d' -e '/^SET [^c]/d' -e '/^SET client/d'"
    " -e '/^SELECT pg_catalog.set_config/d' -e '/^\\\\/d'"
    " -e '/^[[:space:]]*$/d' -e 's/\\b%s\\b/LAPSE_SCHEMA/g'";

static void write_dump(const place *at, const char *options, const char *file)
{
    char url[512], command[2048];
    base_of(at, url, sizeof url);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    int length = snprintf(command, sizeof command, dump, schema_of(at), url, schema_of(at));
#pragma GCC diagnostic pop
    snprintf(command + length, sizeof command - (size_t)length, " %s > '%s'", options, file);
    ck_assert_int_eq(system(command), 0);
}

static void golden_path(char *out, size_t size, int version)
{
    char folder[512];
    snprintf(folder, sizeof folder, "%s", __FILE__);
    *strrchr(folder, '/') = '\0';
    snprintf(out, size, "%s/golden/postgresql-v%d.sql", folder, version);
}

static void load_golden(const place *at, int version)
{
    char url[512], path[600], command[2048];
    base_of(at, url, sizeof url);
    golden_path(path, sizeof path, version);
    snprintf(command, sizeof command,
             "sed 's/LAPSE_SCHEMA/%s/g' '%s' | psql -q -o /dev/null -v ON_ERROR_STOP=1 '%s' >&2",
             schema_of(at), path, url);
    ck_assert_int_eq(system(command), 0);
}

static void check_golden(lapse *s)
{
    ck_assert_int_eq(lapse_cancel(s, "ended", LAPSE_ANY), LAPSE_FATE_DONE);
    lapse_info info = look(s, "dead");
    ck_assert_int_eq(info.state, LAPSE_STATE_DEAD);
    ck_assert_int_eq(info.reason, LAPSE_REASON_REJECTED);
    ck_assert_str_eq(info.error, "no such order");
    ck_assert_int_eq(info.attempt, 1);
    ck_assert_uint_eq(info.payload_len, 4);
    lapse_info_free(&info);
    info = look(s, "caf\xc3\xa9\x01\xff");
    ck_assert_str_eq(info.queue, "mail");
    ck_assert_mem_eq(info.payload, "\0\xff", 2);
    lapse_info_free(&info);
    /* Their leases have ended: one is delivered again, one was cancelled. */
    const lapse_order *order = poll_one(s, "", "held");
    ck_assert_int_eq(order->attempt, 2);
    settle(s, order->fence, LAPSE_DONE);
    lapse_stats t = stats_of(s);
    ck_assert_uint_eq(t.pending, 1);
    ck_assert_uint_eq(t.running, 0);
    ck_assert_uint_eq(t.dead, 1);
    info = look(s, "running");
    ck_assert_int_eq(info.state, LAPSE_STATE_DONE);
    lapse_info_free(&info);
    int64_t before = order->fence;
    ck_assert_int_gt(lapse_put(s, &(lapse_spec){.id = "next"}), 0);
    order = poll_one(s, "", "next");
    ck_assert_int_gt(order->fence, before);
    settle(s, order->fence, LAPSE_DONE);
}

enum { VERSION = 1 };

START_TEST(every_version_so_far_can_be_opened)
{
    for (int version = 1; version <= VERSION; version++) {
        place at = new_place(PG, NULL);
        load_golden(&at, version);
        rig r = open_real(&at, NULL);
        check_golden(r.s);
        rig_close(&r);
        PGconn *app = connect_app(&at);
        ck_assert_int_eq(number(app, "SELECT version FROM lapse_meta"), VERSION);
        PQfinish(app);
    }
}
END_TEST

/* What is made today is what the newest golden file holds. */
START_TEST(the_newest_golden_file_is_of_these_tables)
{
    place made = new_place(PG, NULL), loaded = new_place(PG, NULL);
    rig r = open_real(&made, NULL);
    rig_close(&r);
    load_golden(&loaded, VERSION);
    char a[600], b[600], command[2048];
    new_path(a, sizeof a, "made.sql");
    new_path(b, sizeof b, "loaded.sql");
    write_dump(&made, "| grep -v -e '^INSERT' -e 'setval'", a);
    write_dump(&loaded, "| grep -v -e '^INSERT' -e 'setval'", b);
    snprintf(command, sizeof command, "test -s '%s' && diff -u '%s' '%s' >&2", a, a, b);
    ck_assert_int_eq(system(command), 0);
}
END_TEST

static const char *golden; /* where to write it */

START_TEST(write_a_golden_file)
{
    place at = new_place(PG, "keep=36500d&lease=10s");
    rig r = open_real(&at, NULL);
    fill_golden(r.s);
    /* It is read by machines whose clock may stand anywhere after. */
    write_dump(&at, "| sed \"s/'20[0-9][0-9]-[0-9]*-[0-9]* /'2020-01-01 /g\"", golden);
    rig_close(&r);
}
END_TEST

/* -- Plans ------------------------------------------------------------------------------------------ */

/* On tables that nobody has analysed, what is read grows with what is done, not with what is
 * there: 5000 orders are held, 5000 wait, and a hundred of each are touched. */
START_TEST(the_right_indexes_are_used_without_statistics)
{
    enum { MANY = 5000, FEW = 100, CHUNK = 1000 };
    place at = new_place(PG, "lease=1h");
    rig r = open_real(&at, NULL);
    PGconn *app = connect_app(&at);
    sql(app, "ALTER TABLE lapse_order SET (autovacuum_enabled = off)");
    rig_close(&r);
    r = open_real(&at, NULL);
    sql(app, "INSERT INTO lapse_order (id, queue, at, seq, generation, fence, due, attempt)"
             " SELECT convert_to('h' || i, 'UTF8'), 'q', now() + interval '1 hour', i, i, i, now(),"
             " 1 FROM generate_series(1, 5000) i");
    sql(app, "INSERT INTO lapse_order (id, queue, at, seq, generation, due)"
             " SELECT convert_to('w' || i, 'UTF8'), 'q', now() + i * interval '1 day', i, i,"
             " now() + i * interval '1 day' FROM generate_series(1, 5000) i");
    reads before = reads_of(app);
    put_batch(r.s, "q", "n", FEW, 0);
    const lapse_order *order;
    for (int i = 0; i < FEW; i++) {
        ck_assert_int_eq(lapse_poll(r.s, "q", &order), 1);
        lapse_verdict verdict = i % 3 == 0 ? LAPSE_DONE : i % 3 == 1 ? LAPSE_RETRY : LAPSE_REJECT;
        ck_assert_int_eq(lapse_renew(r.s, order->fence, 0), 0);
        ck_assert_int_eq(lapse_settle(r.s, order->fence, verdict, LAPSE_HOURS(1), "no"), 0);
    }
    for (int i = 0; i < FEW; i++) {
        char id[16];
        snprintf(id, sizeof id, "w%d", i + 1);
        ck_assert_int_eq(lapse_reschedule(r.s, id, LAPSE_ANY, LAPSE_DAYS(1)),
                         LAPSE_FATE_RESCHEDULED);
        ck_assert_int_eq(lapse_cancel(r.s, id, LAPSE_ANY), LAPSE_FATE_CANCELLED);
        snprintf(id, sizeof id, "h%d", i + 1);
        ck_assert_int_eq(lapse_cancel(r.s, id, LAPSE_ANY), LAPSE_FATE_RUNNING);
    }
    /* The application's connection has the server's defaults. */
    for (int i = 0; i < FEW; i++) {
        char text[100];
        snprintf(text, sizeof text, "SELECT lapse_schedule('a%d', '1 h')", i);
        sql(app, text);
        snprintf(text, sizeof text, "SELECT lapse_cancel('a%d')", i);
        sql(app, text);
    }
    rig_close(&r);
    reads read = reads_of(app);
    ck_assert_int_eq(number(app, "SELECT count(*) FROM pg_stats WHERE tablename = 'lapse_order'"
                                 " AND schemaname = current_schema()"),
                     0);
    read.rows -= before.rows;
    printf("%ld rows of the indexes read\n", read.rows);
    ck_assert_int_eq(read.scans, before.scans);
    /* Seven hundred calls and their turns, each of which looks at a few rows. */
    ck_assert_int_lt(read.rows, 10L * FEW * 9);
    PQfinish(app);
}
END_TEST

/* A backup, or a server that took over without the last writes, has older sequences. */
START_TEST(what_came_back_gives_nothing_twice)
{
    place at = new_place(PG, NULL);
    rig r = open_real(&at, NULL);
    const lapse_order *order;
    PGconn *app = connect_app(&at);
    int64_t generation = 0, fence = 0;
    for (int i = 0; i < 3; i++) {
        sql(app, "SELECT setval('lapse_seq', 1), setval('lapse_fence', 1)");
        reopen_place(&at, &r, NULL);
        int64_t next = lapse_put(r.s, &(lapse_spec){.id = "o", .queue = "q"});
        ck_assert_int_gt(next, generation);
        generation = next;
        ck_assert_int_eq(lapse_poll(r.s, "q", &order), 1);
        ck_assert_int_gt(order->fence, fence);
        fence = order->fence;
        settle(r.s, fence, LAPSE_DONE);
    }
    PQfinish(app);
    rig_close(&r);
}
END_TEST

static void fill_suite(Suite *suite)
{
    TCase *group = add_group(suite, "tables");
    if (golden) {
        tcase_add_test(group, write_a_golden_file);
        return;
    }
    tcase_add_test(group, no_password_is_shown);
    tcase_add_test(group, what_cannot_be_used_is_said_in_words);
    tcase_add_test(group, tables_are_made_when_that_is_allowed);
    tcase_add_test(group, a_missing_right_is_named_with_its_grant);
    tcase_add_test(group, who_may_not_make_tables_is_told);
    tcase_add_test(group, many_may_be_first);
    tcase_add_test(group, newer_tables_are_refused);
    tcase_add_test(group, every_version_so_far_can_be_opened);
    tcase_add_test(group, the_newest_golden_file_is_of_these_tables);
    tcase_add_test(group, what_came_back_gives_nothing_twice);
    tcase_add_test(group, the_right_indexes_are_used_without_statistics);
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "--golden") == 0)
        golden = argv[2];
    return stores_main("postgresql tables", fill_suite);
}
