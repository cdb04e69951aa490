/* test_sqlite_file.c - the file: what may be opened, versions of the tables, damage, and the
 * application's own connection: P-56, P-64, P-65.
 *
 * `stores_sqlite_file --golden <path>` writes the file that the golden test reads: the tables
 * of this version with an order in every place. One is kept for each version, as
 * tests/stores/golden/v<number>.db, and never written again. */
/* tiers: small */
/* valgrind */
/* link: -Wl,--wrap=statfs */
#include <fcntl.h>
#include <sched.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <sys/wait.h>

#include "lapse_sqlite.h"
#include "stores/sqlite.h"
#include "stores/turns.h"

/* -- A file system of another kind -- */

static long fs_type; /* what statfs is to say; 0: the truth */

int __real_statfs(const char *path, struct statfs *out);
int __wrap_statfs(const char *path, struct statfs *out);

int __wrap_statfs(const char *path, struct statfs *out)
{
    int rc = __real_statfs(path, out);
    if (fs_type)
        out->f_type = fs_type;
    return rc;
}

/* -- Opening -- */

static void expect_refusal(const char *url, int code, const char *words)
{
    bench b;
    int answer = try_url(&b, url, START, WALL);
    ck_assert_msg(answer == code, "%s: %d %s", url, answer, lapse_error_detail());
    ck_assert_msg(strstr(lapse_error_detail(), words) != NULL, "%s: %s", url, lapse_error_detail());
}

START_TEST(a_url_names_a_file_as_sqlalchemy_reads_it)
{
    expect_refusal("sqlite:", LAPSE_EURL, "names no file");
    expect_refusal("sqlite://", LAPSE_EURL, "names no file");
    expect_refusal("sqlite:///", LAPSE_EURL, "names no file");
    expect_refusal("sqlite:///?poll=1s", LAPSE_EURL, "names no file");
    expect_refusal("sqlite://orders.db", LAPSE_EURL, "absolute");
    expect_refusal("sqlite:///a.db?pol=1s", LAPSE_EURL, "poll");
    expect_refusal("sqlite:///a.db?poll=0s", LAPSE_ERANGE, "1ms");
    expect_refusal("sqlite:///a.db?overflow=drop", LAPSE_EURL, "refuse");

    char here[256];
    ck_assert_ptr_nonnull(getcwd(here, sizeof here));
    ck_assert_int_eq(chdir(folder), 0);
    bench b;
    ck_assert_int_eq(try_url(&b, "sqlite:///file:odd%20name.db?poll=2s", START, WALL), 0);
    ck_assert_int_eq(b.ops->poll(b.d), LAPSE_SECONDS(2));
    ck_assert_int_eq(access("file:odd%20name.db", F_OK), 0);
    close_bench(&b);
    ck_assert_int_eq(chdir(here), 0);
}
END_TEST

START_TEST(what_cannot_be_used_is_said_in_words)
{
    char url[300];
    snprintf(url, sizeof url, "sqlite:///%s", path_of("no/such/orders.db"));
    expect_refusal(url, LAPSE_EURL, "does not exist");
    snprintf(url, sizeof url, "sqlite:///%s", folder);
    expect_refusal(url, LAPSE_EURL, "is a folder");

    FILE *f = fopen(path_of("orders.db"), "w");
    for (int i = 0; i < 1000; i++)
        fprintf(f, "this is not a database\n");
    fclose(f);
    snprintf(url, sizeof url, "sqlite:///%s", path_of("orders.db"));
    expect_refusal(url, LAPSE_EDATA, "not an SQLite database");
    ck_assert_int_eq(unlink(path_of("orders.db")), 0);

    static const long shared[] = {0x6969, 0x65735546, 0x01021997, 0xff534d42};
    for (int i = 0; i < 4; i++) {
        fs_type = shared[i];
        expect_refusal(url, LAPSE_EUNSUPPORTED, "a disk of this machine");
    }
    fs_type = 0;
    ck_assert_int_eq(access(path_of("orders.db"), F_OK), -1);
}
END_TEST

/* Run as nobody where the test is root, to whom every file can be written. */
START_TEST(a_file_that_cannot_be_written_is_refused)
{
    bench b = open_bench("");
    close_bench(&b);
    ck_assert_int_eq(chmod(path_of("orders.db"), 0444), 0);
    ck_assert_int_eq(chmod(folder, 0555), 0);
    pid_t pid = fork();
    if (pid == 0) {
        if (geteuid() == 0 && seteuid(65534) != 0)
            _exit(2);
        int code = try_open(&b, "", START, WALL);
        _exit(code == LAPSE_ESYSTEM && strstr(lapse_error_detail(), "written") ? 0 : 1);
    }
    int status;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_int_eq(chmod(folder, 0755), 0);
    ck_assert_int_eq(status, 0);
}
END_TEST

START_TEST(a_rollback_journal_is_switched_or_said)
{
    sqlite3 *app = open_app();
    sql(app, "CREATE TABLE shop (id); INSERT INTO shop VALUES (1); PRAGMA user_version = 7;"
             "PRAGMA application_id = 99; BEGIN; SELECT * FROM shop");
    bench b;
    ck_assert_int_eq(try_open(&b, "busy=20ms", START, WALL), LAPSE_ETIMEOUT);
    ck_assert_ptr_nonnull(strstr(lapse_error_detail(), "journal_mode"));
    sql(app, "COMMIT");
    sqlite3_close(app);
    b = open_bench("busy=20ms");
    ck_assert_int_gt(schedule(&b, "a", 0), 0);
    close_bench(&b);
    /* What is the application's stays what it was. */
    ck_assert_int_eq(look("PRAGMA user_version"), 7);
    ck_assert_int_eq(look("PRAGMA application_id"), 99);
    ck_assert_int_eq(look("SELECT count(*) FROM shop"), 1);
}
END_TEST

START_TEST(a_file_that_was_moved_away_is_noticed)
{
    bench b = open_bench("");
    char to[128];
    snprintf(to, sizeof to, "%s/elsewhere.db", folder);
    ck_assert_int_eq(rename(path_of("orders.db"), to), 0);
    lp_job j = schedule_job("a", START), *jobs[] = {&j};
    ck_assert_int_eq(run_turn(&b, jobs, 1, NULL, 0, NULL), LAPSE_EDATA);
    ck_assert_ptr_nonnull(strstr(lapse_error_detail(), "moved"));
    ck_assert_int_eq(rename(to, path_of("orders.db")), 0);
    ck_assert_int_eq(run_turn(&b, jobs, 1, NULL, 0, NULL), 0);
    close_bench(&b);
}
END_TEST

/* -- Versions -- */

START_TEST(newer_tables_are_refused)
{
    bench b = open_bench("");
    close_bench(&b);
    poke("UPDATE lapse_meta SET version = version + 1");
    ck_assert_int_eq(try_open(&b, "", START, WALL), LAPSE_EDATA);
    ck_assert_ptr_nonnull(strstr(lapse_error_detail(), "newer"));
    poke("UPDATE lapse_meta SET version = version - 1; DROP TABLE lapse_order");
    lp_job j = schedule_job("a", START), *jobs[] = {&j};
    b = open_bench("");
    ck_assert_int_eq(run_turn(&b, jobs, 1, NULL, 0, NULL), LAPSE_EDATA);
    close_bench(&b);
}
END_TEST

/* An order in every place, at START: see check_golden. */
static void write_golden(void)
{
    sqlite3 *app = open_app();
    sql(app, "PRAGMA page_size = 512; VACUUM");
    sqlite3_close(app);
    bench b = open_bench("keep=1h");
    lp_job j = schedule_job("dead", b.now);
    j.payload = "body";
    j.payload_len = 4;
    ask(&b, &j);
    lp_loan *l = claim_one(&b, "dead");
    lp_job die = {.op = LP_DIE,
                  .row = l->row,
                  .fence = l->fence,
                  .counted = true,
                  .reason = LAPSE_REASON_REJECTED,
                  .error = "no such order"};
    ask(&b, &die);
    free_loans(l);
    schedule(&b, "ended", 0);
    cancel(&b, "ended");
    schedule(&b, "held", 0);
    free_loans(claim_one(&b, "held"));
    schedule(&b, "running", 0);
    free_loans(claim_one(&b, "running"));
    cancel(&b, "running");
    j = schedule_job("0189d3f2-7c1a-7b3e-9f00-aabbccddeeff", b.now + LAPSE_MINUTES(1));
    j.queue = "mail";
    j.payload = "\0\xff";
    j.payload_len = 2;
    ask(&b, &j);
    close_bench(&b);
}

static void check_golden(bench *b)
{
    ck_assert_int_eq(state_of(b, "ended"), LAPSE_STATE_DONE);
    ck_assert_int_eq(state_of(b, "held"), LAPSE_STATE_RUNNING);
    ck_assert_int_eq(state_of(b, "running"), LAPSE_STATE_RUNNING);
    lapse_info info = get(b, "dead");
    ck_assert_int_eq(info.reason, LAPSE_REASON_REJECTED);
    ck_assert_str_eq(info.error, "no such order");
    ck_assert_int_eq(info.attempt, 1);
    ck_assert_uint_eq(info.payload_len, 4);
    lapse_info_free(&info);
    info = get(b, "0189d3f2-7c1a-7b3e-9f00-aabbccddeeff");
    ck_assert_int_eq(info.due, START + LAPSE_MINUTES(1));
    ck_assert_str_eq(info.queue, "mail");
    ck_assert_mem_eq(info.payload, "\0\xff", 2);
    lapse_info_free(&info);
    lp_counts c = counts_of(b);
    ck_assert_uint_eq(c.pending, 1);
    ck_assert_uint_eq(c.running, 2);
    ck_assert_uint_eq(c.kept, 1);
    ck_assert_uint_eq(c.dead, 1);
    pass(b, LEASE);
    lp_loan *l = claim(b, 10, NULL);
    ck_assert_ptr_nonnull(l);
    ck_assert(l->ended);
    ck_assert_str_eq(l->id, "running");
    ck_assert_ptr_nonnull(l->next);
    ck_assert_str_eq(l->next->id, "held");
    ck_assert_int_eq(l->next->attempt, 2);
    ck_assert_ptr_null(l->next->bad);
    free_loans(l);
}

static void copy_golden(int version)
{
    char from[512], command[800];
    snprintf(from, sizeof from, "%s", __FILE__);
    *strrchr(from, '/') = '\0';
    snprintf(command, sizeof command, "cp '%s/golden/v%d.db' '%s'", from, version,
             path_of("orders.db"));
    ck_assert_int_eq(system(command), 0);
}

START_TEST(every_version_so_far_can_be_opened)
{
    for (int version = 1; version <= LP_SQLITE_VERSION; version++) {
        copy_golden(version);
        bench b = open_bench("");
        check_golden(&b);
        close_bench(&b);
        ck_assert_int_eq(look("SELECT version FROM lapse_meta"), LP_SQLITE_VERSION);
    }
}
END_TEST

/* What is written today is what the newest golden file holds. */
START_TEST(the_newest_golden_file_is_of_these_tables)
{
    static const char schema[] =
        "SELECT group_concat(sql, ';') FROM"
        " (SELECT sql FROM sqlite_master WHERE sql NOT NULL ORDER BY name)";
    char *text[2];
    for (int i = 0; i < 2; i++) {
        unlink(path_of("orders.db"));
        if (i == 0)
            copy_golden(LP_SQLITE_VERSION);
        else
            write_golden();
        sqlite3 *app = open_app();
        sqlite3_stmt *st;
        ck_assert_int_eq(sqlite3_prepare_v2(app, schema, -1, &st, NULL), SQLITE_OK);
        ck_assert_int_eq(sqlite3_step(st), SQLITE_ROW);
        text[i] = strdup((const char *)sqlite3_column_text(st, 0));
        sqlite3_finalize(st);
        sqlite3_close(app);
    }
    ck_assert_str_eq(text[0], text[1]);
    free(text[0]);
    free(text[1]);
    bench b = open_bench("");
    check_golden(&b);
    close_bench(&b);
}
END_TEST

/* -- P-56, damage -- */

START_TEST(p56_one_bad_order_does_not_hold_back_the_others)
{
    bench b = open_bench("");
    close_bench(&b);
    poke("CREATE TRIGGER no37 BEFORE INSERT ON lapse_order WHEN new.id = CAST('o37' AS BLOB)"
         " BEGIN SELECT RAISE(ABORT, 'thirty-seven is not wanted'); END");
    b = open_bench("");
    enum { COUNT = 100 };
    lp_job jobs[COUNT], *list[COUNT];
    char ids[COUNT][8];
    for (int i = 0; i < COUNT; i++) {
        snprintf(ids[i], sizeof ids[i], "o%d", i);
        jobs[i] = schedule_job(ids[i], b.now);
        if (i % 2)
            jobs[i].queue = "new"; /* Made in this very turn. */
        list[i] = &jobs[i];
    }
    ck_assert_int_eq(run_turn(&b, list, COUNT, NULL, 0, NULL), 0);
    int64_t last = 0;
    for (int i = 0; i < COUNT; i++) {
        if (i == 37) {
            ck_assert_int_eq(jobs[i].answer, LAPSE_EDATA);
            ck_assert_ptr_nonnull(strstr(jobs[i].detail, "thirty-seven"));
            free(jobs[i].detail);
            continue;
        }
        ck_assert_int_gt(jobs[i].answer, last);
        ck_assert_ptr_null(jobs[i].detail);
        last = jobs[i].answer;
    }
    ck_assert_uint_eq(counts_of(&b).pending, COUNT - 1);
    ck_assert_int_eq(look("SELECT sum(orders) FROM lapse_queue"), COUNT - 1);
    /* A second try of the others finds them there. */
    ck_assert_int_eq(run_turn(&b, list, COUNT, NULL, 0, NULL), 0);
    for (int i = 0; i < COUNT; i++) {
        ck_assert_int_eq(jobs[i].answer, i == 37 ? LAPSE_EDATA : LAPSE_EEXISTS);
        free(jobs[i].detail);
    }
    close_bench(&b);
}
END_TEST

/* What cannot even be claimed is passed over, and what was asked in the same turn is done. */
START_TEST(an_order_that_cannot_be_claimed_is_passed_over)
{
    bench b = open_bench("");
    schedule(&b, "bad", 0);
    schedule(&b, "good", 0);
    poke("CREATE TRIGGER t BEFORE UPDATE ON lapse_order WHEN new.id = CAST('bad' AS BLOB)"
         " BEGIN SELECT RAISE(ABORT, 'it is stuck'); END");
    static const char *const queues[] = {""};
    lp_want w = {.queues = queues, .queue_count = 1, .most = 1};
    lp_job j = schedule_job("more", b.now + LAPSE_SECONDS(1)), *jobs[] = {&j};
    lp_loan *l;
    ck_assert_int_eq(run_turn(&b, jobs, 1, &w, 1, &l), 0);
    ck_assert_int_gt(j.answer, 0);
    ck_assert_ptr_nonnull(l);
    ck_assert_str_eq(l->id, "good");
    ck_assert_int_gt(w.next, b.now); /* Nobody tries again and again. */
    free_loans(l);
    ck_assert_int_eq(state_of(&b, "bad"), LAPSE_STATE_PENDING);
    poke("DROP TRIGGER t");
    free_loans(claim_one(&b, "bad"));
    close_bench(&b);
}
END_TEST

START_TEST(a_damaged_row_is_told_apart)
{
    bench b = open_bench("");
    for (const char *id = "abcd"; *id; id++) {
        char text[2] = {*id, '\0'};
        lp_job j = schedule_job(text, b.now);
        j.payload = "payload";
        j.payload_len = 7;
        ask(&b, &j);
    }
    poke("UPDATE lapse_order SET payload = x'7061796c6f6164ff' WHERE id = x'61';"
         "UPDATE lapse_order SET id = x'7a' WHERE id = x'62';"
         "UPDATE lapse_order SET id = x'63007a' WHERE id = x'63'");
    lapse_info info;
    lp_job get_a = {.op = LP_GET, .id = "a", .id_len = 1, .infos = &info, .max = 1};
    ck_assert_int_eq(ask(&b, &get_a), LAPSE_EDATA);
    lp_loan *l = claim(&b, 10, NULL), *at = l;
    const char *ids[] = {"a", "z", "?", "d"};
    for (int i = 0; i < 4; i++, at = at->next) {
        ck_assert_ptr_nonnull(at);
        ck_assert_str_eq(at->id, ids[i]);
        ck_assert((at->bad == NULL) == (i == 3));
        ck_assert_int_eq(settle(&b, at, i < 3 ? LP_DIE : LP_END), 0);
    }
    free_loans(l);
    ck_assert_uint_eq(counts_of(&b).dead, 3);
    ck_assert_uint_eq(counts_of(&b).pending, 0);
    close_bench(&b);
}
END_TEST

/* -- P-64 -- */

START_TEST(p64_the_order_and_its_timeout_are_committed_together)
{
    bench b = open_at("", boot_now(), WALL);
    b.config.manual = false;
    sqlite3 *app = open_app();
    sql(app, "CREATE TABLE orders (id TEXT)");
    lapse_spec spec = {.id = "OID1", .queue = "close", .payload = "p", .payload_len = 1};

    sql(app, "BEGIN IMMEDIATE; INSERT INTO orders VALUES ('OID1')");
    ck_assert_int_gt(lapse_sqlite_put(app, &spec), 0);
    sql(app, "ROLLBACK");
    ck_assert_int_eq(state_of(&b, "OID1"), 0);

    sql(app, "BEGIN IMMEDIATE; INSERT INTO orders VALUES ('OID1')");
    int64_t generation = lapse_sqlite_put(app, &spec);
    ck_assert_int_gt(generation, 0);
    ck_assert_int_eq(lapse_sqlite_put(app, &spec), LAPSE_EEXISTS);
    ck_assert_int_eq(state_of(&b, "OID1"), 0);       /* Not before the commit. */
    sql(app, "INSERT INTO orders VALUES ('after')"); /* The refusal ended nothing. */
    sql(app, "COMMIT");
    ck_assert_int_eq(number(app, "SELECT count(*) FROM orders"), 2);
    ck_assert_int_eq(state_of(&b, "OID1"), LAPSE_STATE_PENDING);
    ck_assert_uint_eq(counts_of(&b).pending, 1);

    sql(app, "BEGIN IMMEDIATE");
    ck_assert_int_eq(lapse_sqlite_cancel(app, "OID1", generation + 1), LAPSE_FATE_UNKNOWN);
    ck_assert_int_eq(lapse_sqlite_cancel(app, "OID1", generation), LAPSE_FATE_CANCELLED);
    sql(app, "ROLLBACK");
    ck_assert_int_eq(state_of(&b, "OID1"), LAPSE_STATE_PENDING);
    /* Without a transaction it is one of its own. */
    ck_assert_int_eq(lapse_sqlite_cancel(app, "OID1", LAPSE_ANY), LAPSE_FATE_CANCELLED);
    ck_assert_int_eq(state_of(&b, "OID1"), 0);
    sqlite3_close(app);
    close_bench(&b);
}
END_TEST

START_TEST(p64_the_tables_are_made_by_who_comes_first)
{
    sqlite3 *app = open_app();
    sql(app, "PRAGMA journal_mode = WAL; CREATE TABLE orders (id TEXT); BEGIN IMMEDIATE");
    lapse_spec spec = {.id = "OID1", .queue = "close", .delay = LAPSE_SECONDS(5)};
    lapse_ns before = boot_now();
    ck_assert_int_gt(lapse_sqlite_put(app, &spec), 0);
    lapse_ns after = boot_now();
    sql(app, "COMMIT");
    bench b = {.ops = &lp_sqlite_store, .now = after, .wall = WALL};
    char url[256];
    snprintf(url, sizeof url, "sqlite:///%s", path_of("orders.db"));
    b.config = (lp_store_config){.url = url, .lease = LEASE, .now = after, .wall = WALL};
    ck_assert_int_eq(b.ops->open(&b.config, &b.d), 0);
    lapse_info info = get(&b, "OID1"); /* The machine's clock serves both. */
    ck_assert_int_ge(info.due, before + LAPSE_SECONDS(5));
    ck_assert_int_le(info.due, after + LAPSE_SECONDS(5) + LAPSE_MS(1));
    lapse_info_free(&info);
    close_bench(&b);

    lapse_spec callback = {.id = "x", .fn = never};
    ck_assert_int_eq(lapse_sqlite_put(app, &callback), LAPSE_EUNSUPPORTED);
    lapse_spec far = {.id = "x", .delay = LAPSE_DELAY_MAX + 1};
    ck_assert_int_eq(lapse_sqlite_put(app, &far), LAPSE_ERANGE);
    lapse_spec empty = {.id = ""};
    ck_assert_int_eq(lapse_sqlite_put(app, &empty), LAPSE_EID);
    ck_assert_int_eq(lapse_sqlite_put(NULL, &spec), LAPSE_EINVAL);
    ck_assert_int_eq(lapse_sqlite_cancel(app, NULL, 0), LAPSE_EINVAL);
    ck_assert_int_eq(lapse_sqlite_cancel(app, "", 0), LAPSE_FATE_UNKNOWN);
    sqlite3_close(app);
}
END_TEST

/* -- P-65 -- */

/* Another holds the lock for longer than the limit: the turn fails as a whole and says so;
 * once it is free all goes on. A turn that only looks is not held up at all. */
START_TEST(p65_a_lock_is_waited_for_and_then_named)
{
    bench b = open_bench("busy=30ms");
    schedule(&b, "a", 0);
    sqlite3 *app = open_app();
    sql(app, "BEGIN IMMEDIATE");
    lp_job j = schedule_job("b", b.now), *jobs[] = {&j};
    ck_assert_int_eq(run_turn(&b, jobs, 1, NULL, 0, NULL), LAPSE_ETIMEOUT);
    ck_assert_ptr_nonnull(strstr(lapse_error_detail(), "busy"));
    ck_assert_int_eq(state_of(&b, "a"), LAPSE_STATE_PENDING);
    ck_assert_uint_eq(counts_of(&b).pending, 1);
    sql(app, "COMMIT");
    ck_assert_int_eq(run_turn(&b, jobs, 1, NULL, 0, NULL), 0);
    ck_assert_int_gt(j.answer, 0);
    sqlite3_close(app);
    close_bench(&b);
}
END_TEST

/* A walk goes on where it was, also when a turn of others that it was part of has failed. */
START_TEST(a_walk_keeps_its_place_when_its_turn_fails)
{
    enum { MANY = 10, STEP = 3 };
    bench b = open_bench("busy=30ms");
    for (int i = 0; i < MANY; i++) {
        char id[8];
        snprintf(id, sizeof id, "%d", i);
        schedule(&b, id, 0);
    }
    uint64_t cursor = 0;
    lapse_info infos[MANY + 1];
    lp_job put = schedule_job("new", b.now);
    lp_job walk = {.op = LP_LIST, .cursor = &cursor, .states = LAPSE_STATE_PENDING, .infos = infos};
    walk.max = STEP;
    ck_assert_int_eq(ask(&b, &walk), STEP);
    uint64_t place = cursor;
    sqlite3 *app = open_app();
    sql(app, "BEGIN IMMEDIATE");
    lp_job next = {.op = LP_LIST, .cursor = &cursor, .states = LAPSE_STATE_PENDING};
    next.infos = infos + STEP;
    next.max = MANY + 1 - STEP;
    lp_job *jobs[] = {&put, &next};
    ck_assert_int_eq(run_turn(&b, jobs, 2, NULL, 0, NULL), LAPSE_ETIMEOUT);
    ck_assert_uint_eq(cursor, place);
    sql(app, "COMMIT");
    ck_assert_int_eq(ask(&b, &next), MANY - STEP);
    for (int i = 0; i < MANY; i++)
        lapse_info_free(&infos[i]);
    sqlite3_close(app);
    close_bench(&b);
}
END_TEST

static void *let_go_soon(void *app)
{
    lapse_ns until_ = boot_now() + LAPSE_MS(30);
    while (boot_now() < until_)
        sched_yield();
    sql(app, "COMMIT");
    return NULL;
}

START_TEST(p65_no_caller_sees_a_lock_that_is_let_go_in_time)
{
    bench b = open_bench("busy=20s&lease=60s");
    sqlite3 *app = open_app();
    for (int i = 0; i < 5; i++) {
        sql(app, "BEGIN IMMEDIATE");
        pthread_t thread;
        ck_assert_int_eq(pthread_create(&thread, NULL, let_go_soon, app), 0);
        char id[4];
        snprintf(id, sizeof id, "o%d", i);
        ck_assert_int_gt(schedule(&b, id, 0), 0);
        free_loans(claim_one(&b, id));
        pthread_join(thread, NULL);
    }
    sqlite3_close(app);
    close_bench(&b);
}
END_TEST

static const char *golden; /* where to write it */

START_TEST(write_a_golden_file)
{
    write_golden();
    char command[300];
    snprintf(command, sizeof command, "mv '%s' '%s'", path_of("orders.db"), golden);
    ck_assert_int_eq(system(command), 0);
}
END_TEST

static void fill(TCase *tests)
{
    if (golden) {
        tcase_add_test(tests, write_a_golden_file);
        return;
    }
    tcase_add_test(tests, a_url_names_a_file_as_sqlalchemy_reads_it);
    tcase_add_test(tests, what_cannot_be_used_is_said_in_words);
    tcase_add_test(tests, a_file_that_cannot_be_written_is_refused);
    tcase_add_test(tests, a_rollback_journal_is_switched_or_said);
    tcase_add_test(tests, a_file_that_was_moved_away_is_noticed);
    tcase_add_test(tests, newer_tables_are_refused);
    tcase_add_test(tests, every_version_so_far_can_be_opened);
    tcase_add_test(tests, the_newest_golden_file_is_of_these_tables);
    tcase_add_test(tests, p56_one_bad_order_does_not_hold_back_the_others);
    tcase_add_test(tests, an_order_that_cannot_be_claimed_is_passed_over);
    tcase_add_test(tests, a_damaged_row_is_told_apart);
    tcase_add_test(tests, p64_the_order_and_its_timeout_are_committed_together);
    tcase_add_test(tests, p64_the_tables_are_made_by_who_comes_first);
    tcase_add_test(tests, p65_a_lock_is_waited_for_and_then_named);
    tcase_add_test(tests, a_walk_keeps_its_place_when_its_turn_fails);
    tcase_add_test(tests, p65_no_caller_sees_a_lock_that_is_let_go_in_time);
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "--golden") == 0)
        golden = argv[2];
    return run_sqlite_suite("sqlite file", fill);
}
