/* turns.h - the SQLite store through its table, without an engine: for test_sqlite_*.c.
 *
 * A bench is one open store with the time that it is told; nothing here reads a clock. Two
 * benches on one file are two processes, as far as SQLite is concerned. */
#ifndef LAPSE_TESTS_TURNS_H
#define LAPSE_TESTS_TURNS_H

#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "stores/one_turn.h"
#include "support/support.h"

#define LEASE LAPSE_SECONDS(30)
#define WALL INT64_C(1767225600000000000) /* 2026-01-01, at START */

typedef struct bench {
    lp_durable *d;
    const lp_durable_ops *ops;
    lp_store_config config;
    lapse_ns now, wall;
} bench;

/* -- Files ----------------------------------------------------------------------------- */

static char folder[64];

static inline void make_folder(void)
{
    strcpy(folder, "/tmp/lapse-sqlite-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
}

static inline void remove_folder(void)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    ck_assert_int_eq(system(command), 0);
}

static inline const char *path_of(const char *name)
{
    static char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

/* -- Opening --------------------------------------------------------------------------- */

/* `now` and `wall`: as of the open; any URL. The answer of open. */
static inline int try_url(bench *b, const char *url, lapse_ns now, lapse_ns wall)
{
    *b = (bench){.ops = &lp_sqlite_store, .now = now, .wall = wall};
    b->config =
        (lp_store_config){.url = url, .lease = LEASE, .now = now, .wall = wall, .manual = true};
    return b->ops->open(&b->config, &b->d);
}

static inline int try_open(bench *b, const char *options, lapse_ns now, lapse_ns wall)
{
    char url[256];
    snprintf(url, sizeof url, "sqlite:///%s?%s", path_of("orders.db"), options);
    int code = try_url(b, url, now, wall);
    b->config.url = NULL;
    return code;
}

static inline bench open_at(const char *options, lapse_ns now, lapse_ns wall)
{
    bench b;
    int code = try_open(&b, options, now, wall);
    ck_assert_msg(code == 0, "open: %d %s", code, lapse_error_detail());
    return b;
}

static inline bench open_bench(const char *options)
{
    return open_at(options, START, WALL);
}

static inline void close_bench(bench *b)
{
    b->ops->close(b->d);
    b->d = NULL;
}

/* Time passes; the wall clock goes with it. */
static inline void pass(bench *b, lapse_ns by)
{
    b->now += by;
    b->wall += by;
}

/* -- Turns ----------------------------------------------------------------------------- */

/* Asserts nothing: also for other threads and for children. */
static inline int run_turn(bench *b, lp_job *const *jobs, size_t count, lp_want *wants,
                           size_t want_count, lp_loan **loans)
{
    lp_loan *claimed = NULL;
    int code =
        take_one_turn(b->d, b->now, b->wall, LEASE, jobs, count, wants, want_count, &claimed);
    if (loans)
        *loans = claimed;
    else if (free_loans(claimed))
        complain("a turn without wants brought orders");
    return code;
}

/* One job, whose turn must succeed: its answer. */
static inline int64_t ask(bench *b, lp_job *j)
{
    int code = run_turn(b, &j, 1, NULL, 0, NULL);
    ck_assert_msg(code == 0, "turn: %d %s", code, lapse_error_detail());
    int64_t answer = j->answer;
    free(j->detail);
    free(j->of_queue);
    j->detail = j->of_queue = NULL;
    return answer;
}

static inline lp_job schedule_job(const char *id, lapse_ns due)
{
    return (lp_job){.op = LP_SCHEDULE, .id = id, .id_len = strlen(id), .queue = "", .due = due};
}

static inline int64_t schedule(bench *b, const char *id, lapse_ns delay)
{
    lp_job j = schedule_job(id, b->now + delay);
    return ask(b, &j);
}

static inline int64_t cancel(bench *b, const char *id)
{
    lp_job j = {.op = LP_CANCEL, .id = id, .id_len = strlen(id)};
    return ask(b, &j);
}

static inline int64_t settle(bench *b, const lp_loan *l, int op)
{
    lp_job j = {.op = op,
                .row = l->row,
                .fence = l->fence,
                .due = b->now,
                .at = b->now,
                .counted = true,
                .reason = LAPSE_REASON_FAILED};
    return ask(b, &j);
}

/* Claim up to `most` of the queue "": a list to free; *next as the store says. */
static inline lp_loan *claim(bench *b, unsigned most, lapse_ns *next)
{
    static const char *const queues[] = {""};
    lp_want w = {.queues = queues, .queue_count = 1, .most = most};
    lp_loan *loans;
    int code = run_turn(b, NULL, 0, &w, 1, &loans);
    ck_assert_msg(code == 0, "turn: %d %s", code, lapse_error_detail());
    if (next)
        *next = w.next;
    return loans;
}

/* Claim just this order, and keep the loan. */
static inline lp_loan *claim_one(bench *b, const char *id)
{
    lp_loan *l = claim(b, 1, NULL);
    ck_assert_msg(l != NULL, "nothing to claim for %s", id);
    ck_assert_str_eq(l->id, id);
    return l;
}

static inline lapse_info get(bench *b, const char *id)
{
    lapse_info info;
    lp_job j = {.op = LP_GET, .id = id, .id_len = strlen(id), .infos = &info, .max = 1};
    int64_t code = ask(b, &j);
    ck_assert_msg(code == 0, "get %s: %lld", id, (long long)code);
    return info;
}

static inline lapse_state state_of(bench *b, const char *id)
{
    lapse_info info;
    lp_job j = {.op = LP_GET, .id = id, .id_len = strlen(id), .infos = &info, .max = 1};
    if (ask(b, &j) == LAPSE_EUNKNOWN)
        return 0;
    lapse_state state = info.state;
    lapse_info_free(&info);
    return state;
}

static inline lp_counts counts_of(bench *b)
{
    lp_counts c;
    lp_job j = {.op = LP_COUNT, .counts = &c};
    ck_assert_int_eq((int)ask(b, &j), 0);
    return c;
}

/* -- Another connection, as the application or an administrator has one ------------------ */

static inline sqlite3 *open_app(void)
{
    sqlite3 *db;
    ck_assert_int_eq(sqlite3_open(path_of("orders.db"), &db), SQLITE_OK);
    return db;
}

static inline void sql(sqlite3 *db, const char *text)
{
    char *error = NULL;
    int rc = sqlite3_exec(db, text, NULL, NULL, &error);
    ck_assert_msg(rc == SQLITE_OK, "%s: %s", text, error ? error : "");
}

/* The first column of the first row. */
static inline int64_t number(sqlite3 *db, const char *text)
{
    sqlite3_stmt *st;
    ck_assert_int_eq(sqlite3_prepare_v2(db, text, -1, &st, NULL), SQLITE_OK);
    ck_assert_int_eq(sqlite3_step(st), SQLITE_ROW);
    int64_t n = sqlite3_column_int64(st, 0);
    sqlite3_finalize(st);
    return n;
}

/* The same with a connection of its own, which must not stay open. */
static inline int64_t look(const char *text)
{
    sqlite3 *db = open_app();
    int64_t n = number(db, text);
    sqlite3_close(db);
    return n;
}

static inline void poke(const char *text)
{
    sqlite3 *db = open_app();
    sql(db, text);
    sqlite3_close(db);
}

static inline int run_sqlite_suite(const char *name, void (*fill)(TCase *tests))
{
    Suite *suite = suite_create(name);
    TCase *tests = add_group(suite, name);
    tcase_add_checked_fixture(tests, make_folder, remove_folder);
    fill(tests);
    return run_suite(suite);
}

#endif
