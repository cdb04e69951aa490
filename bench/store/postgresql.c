/* postgresql.c - the PostgreSQL store beside a bare libpq loop of the same statements, and claims
 * while an old transaction keeps dead rows alive: JSON lines.
 *
 *     bench_store_postgresql URL [orders [dead rows]]
 *
 * The store is driven turn by turn, as the driver's thread does; the bare loop prepares the same
 * statements and pipelines as many of them. Both take turns on fresh schemas of one database, and
 * the middle of several rounds counts. A schema is dropped when it is done with. */
#include <libpq-fe.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../core/measure.h"
#include "stores/postgresql.h"

enum { BATCH = 100, ROUNDS = 5, SAMPLES = 400, CLAIM = 20 };

static const lapse_ns LEASE = LAPSE_HOURS(1);

static lapse_ns now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (lapse_ns)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* -- The store -- */

typedef struct place {
    char url[600], schema[64];
    lp_durable *d;
    PGconn *conn;
} place;

static int places;

static void sql(PGconn *conn, const char *text)
{
    PGresult *r = PQexec(conn, text);
    if (PQresultStatus(r) != PGRES_COMMAND_OK && PQresultStatus(r) != PGRES_TUPLES_OK)
        bench_die("%s: %s", text, PQerrorMessage(conn));
    PQclear(r);
}

static place open_fresh(const char *base)
{
    place p;
    snprintf(p.schema, sizeof p.schema, "lapse_bench_%d", places++);
    snprintf(p.url, sizeof p.url, "%s%cschema=%s", base, strchr(base, '?') ? '&' : '?', p.schema);
    p.conn = PQconnectdb(base);
    char text[200];
    snprintf(text, sizeof text, "DROP SCHEMA IF EXISTS %s CASCADE", p.schema);
    PQclear(PQexec(p.conn, "SET client_min_messages = error"));
    sql(p.conn, text);
    lp_store_config config = {.url = p.url, .lease = LEASE, .now = now_ns()};
    if (lp_postgresql_store.open(&config, &p.d) < 0)
        bench_die("open: %s", lapse_error_detail());
    return p;
}

static void drop(place *p)
{
    char text[200];
    if (p->d)
        lp_postgresql_store.close(p->d);
    snprintf(text, sizeof text, "DROP SCHEMA %s CASCADE", p->schema);
    sql(p->conn, text);
    PQfinish(p->conn);
}

static lp_loan *turn(lp_durable *d, lp_job *const *jobs, size_t count, unsigned most)
{
    static const char *const queues[] = {"close_unpaid"};
    lp_want want = {.queues = queues, .queue_count = 1, .most = most};
    lp_turn t = {.now = now_ns(),
                 .lease = LEASE,
                 .jobs = jobs,
                 .job_count = count,
                 .wants = &want,
                 .want_count = most ? 1 : 0};
    if (lp_postgresql_store.turn(d, &t) < 0)
        bench_die("turn: %s", lapse_error_detail());
    return t.loans;
}

/* Claim so many, and end those of one turn in the next. */
static void take_and_end(lp_durable *d, long orders)
{
    static lp_job jobs[BATCH];
    lp_job *list[BATCH];
    size_t held = 0;
    for (long taken = 0; taken < orders;) {
        lp_loan *loans = turn(d, list, held, BATCH);
        held = 0;
        for (lp_loan *next; loans; loans = next, taken++) {
            next = loans->next;
            jobs[held] = (lp_job){.op = LP_END, .row = loans->row, .fence = loans->fence};
            list[held] = &jobs[held];
            held++;
            free(loans);
        }
    }
    turn(d, list, held, 0);
}

/* Numbers of orders a second: scheduled, and claimed and ended. */
typedef struct rates {
    double put, take;
} rates;

static rates measure_store(const char *base, long orders)
{
    place p = open_fresh(base);
    static lp_job jobs[BATCH];
    lp_job *list[BATCH];
    static char ids[BATCH][32];
    static const char payload[64] = "sixty-four bytes";
    rates r;
    lapse_ns begun = now_ns();
    for (long first = 0; first < orders; first += BATCH) {
        for (int i = 0; i < BATCH; i++) {
            snprintf(ids[i], sizeof ids[i], "OID%08ld", first + i);
            jobs[i] = (lp_job){.op = LP_SCHEDULE,
                               .id = ids[i],
                               .id_len = strlen(ids[i]),
                               .queue = "close_unpaid",
                               .payload = payload,
                               .payload_len = sizeof payload,
                               .due = now_ns()};
            list[i] = &jobs[i];
        }
        turn(p.d, list, BATCH, 0);
    }
    r.put = (double)orders * 1e9 / (double)(now_ns() - begun);
    begun = now_ns();
    take_and_end(p.d, orders);
    r.take = (double)orders * 1e9 / (double)(now_ns() - begun);
    drop(&p);
    return r;
}

/* -- The bare loop -- */

static void prepare(PGconn *conn, const char *name, int statement, const char *schema)
{
    Oid types[ARGS_MAX];
    const char *letters = lp_postgresql_types[statement];
    int count = (int)strlen(letters);
    for (int i = 0; i < count; i++)
        types[i] = lp_type_oid(letters[i]);
    char *text = lp_postgresql_expand(lp_postgresql_sql[statement], schema);
    PGresult *r = PQprepare(conn, name, text, count, types);
    if (PQresultStatus(r) != PGRES_COMMAND_OK)
        bench_die("%s: %s", text, PQerrorMessage(conn));
    PQclear(r);
    free(text);
}

static void send(PGconn *conn, const char *name, args *a)
{
    static const args none;
    int formats[ARGS_MAX] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    const args *b = a ? a : &none;
    if (!PQsendQueryPrepared(conn, name, b->count, b->value, b->length, formats, 1))
        bench_die("%s: %s", name, PQerrorMessage(conn));
    if (a)
        free(a->made);
}

/* Read all up to the sync; the result of the statement number `kept` is returned. */
static PGresult *read_all(PGconn *conn, int count, int kept)
{
    PGresult *result = NULL;
    if (PQpipelineSync(conn) != 1)
        bench_die("sync: %s", PQerrorMessage(conn));
    for (int i = 0; i < count; i++) {
        PGresult *r = PQgetResult(conn);
        if (PQresultStatus(r) != PGRES_TUPLES_OK && PQresultStatus(r) != PGRES_COMMAND_OK)
            bench_die("result: %s", PQresultErrorMessage(r));
        if (i == kept)
            result = r;
        else
            PQclear(r);
        PQclear(PQgetResult(conn));
    }
    PQclear(PQgetResult(conn));
    return result;
}

static void send_start(PGconn *conn, bool promises)
{
    args a = {0};
    lp_arg_null(&a);
    lp_arg_bool(&a, promises);
    lp_arg_text(&a, "1s");
    send(conn, "begin", NULL);
    send(conn, "start", &a);
}

static rates measure_bare(const char *base, long orders)
{
    place p = open_fresh(base);
    lp_postgresql_store.close(p.d);
    p.d = NULL;
    static const struct {
        const char *name;
        int statement;
    } all[] = {{"begin", ST_BEGIN}, {"start", ST_START}, {"put", ST_PUT},
               {"claim", ST_CLAIM}, {"end", ST_END},     {"commit", ST_COMMIT}};
    sql(p.conn,
        "SELECT set_config('enable_seqscan', 'off', false), set_config('jit', 'off', false),"
        " set_config('enable_hashjoin', 'off', false), set_config('enable_mergejoin', 'off', "
        "false),"
        " set_config('plan_cache_mode', 'force_generic_plan', false)");
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        prepare(p.conn, all[i].name, all[i].statement, p.schema);
    PQenterPipelineMode(p.conn);
    static const char payload[64] = "sixty-four bytes", *const queue = "close_unpaid";
    size_t queue_len = strlen(queue);
    rates r;
    lapse_ns begun = now_ns();
    for (long first = 0; first < orders; first += BATCH) {
        send_start(p.conn, true);
        for (int i = 0; i < BATCH; i++) {
            char id[32];
            args a = {0};
            snprintf(id, sizeof id, "OID%08ld", first + i);
            lp_arg_null(&a);
            lp_arg_bytes(&a, id, strlen(id));
            lp_arg_wait(&a, 0);
            lp_arg_bytes(&a, queue, queue_len);
            lp_arg_bytes(&a, payload, sizeof payload);
            lp_arg_bool(&a, false);
            lp_arg_number(&a, 0);
            send(p.conn, "put", &a);
        }
        send(p.conn, "commit", NULL);
        read_all(p.conn, BATCH + 3, -1);
    }
    r.put = (double)orders * 1e9 / (double)(now_ns() - begun);
    begun = now_ns();
    int64_t fences[BATCH];
    size_t held = 0;
    for (long taken = 0; taken < orders || held;) {
        int sent = 2;
        send_start(p.conn, false);
        if (held) {
            args a = {0};
            lp_arg_null(&a);
            lp_arg_numbers(&a, fences, held);
            lp_arg_wait(&a, 0);
            lp_arg_bool(&a, false);
            send(p.conn, "end", &a);
            sent++;
        }
        args a = {0};
        lp_arg_null(&a);
        lp_arg_wait(&a, LEASE);
        lp_arg_names(&a, &queue, &queue_len, 1);
        lp_arg_time(&a, INT64_MIN);
        lp_arg_number(&a, INT64_MIN);
        lp_arg_small(&a, taken < orders ? BATCH : 0);
        lp_arg_bool(&a, false);
        send(p.conn, "claim", &a);
        send(p.conn, "commit", NULL);
        PGresult *claimed = read_all(p.conn, sent + 2, sent);
        held = 0;
        for (int row = 0; row < PQntuples(claimed); row++)
            if (!PQgetisnull(claimed, row, 0))
                fences[held++] = lp_value_number(claimed, row, 0);
        taken += (long)held;
        PQclear(claimed);
    }
    r.take = (double)orders * 1e9 / (double)(now_ns() - begun);
    PQexitPipelineMode(p.conn);
    drop(&p);
    return r;
}

/* -- An old transaction -- */

/* All are due at one instant (`tied`), or one after the other. */
static void insert_due(const place *p, char letter, long count, bool tied)
{
    char text[500];
    snprintf(text, sizeof text,
             "INSERT INTO %s.lapse_order (id, queue, at, seq, generation, due) SELECT"
             " convert_to('%c' || i, 'UTF8'), 'close_unpaid', date_trunc('day', now()) - interval"
             " '1 day' + %s, s, s, now() FROM (SELECT i, nextval('%s.lapse_seq') AS s FROM"
             " generate_series(1, %ld) i) x",
             p->schema, letter, tied ? "interval '0'" : "s % 1000000000 * interval '1 us'",
             p->schema, count);
    sql(p->conn, text);
}

static double claim_p50(const char *base, long dead, bool snapshot, bool tied)
{
    place p = open_fresh(base);
    PGconn *old = PQconnectdb(base);
    char text[200];
    if (snapshot) {
        sql(old, "BEGIN ISOLATION LEVEL REPEATABLE READ");
        sql(old, "SELECT 1");
    }
    insert_due(&p, 'a', dead, tied);
    take_and_end(p.d, dead); /* All of these die. */
    if (!snapshot) {
        snprintf(text, sizeof text, "VACUUM %s.lapse_order", p.schema);
        sql(p.conn, text);
    }
    insert_due(&p, 'b', (SAMPLES + 100L) * CLAIM, tied);
    double *took = calloc(SAMPLES, sizeof *took);
    for (int i = 0; i < SAMPLES; i++) {
        lapse_ns begun = now_ns();
        lp_loan *loans = turn(p.d, NULL, 0, CLAIM);
        took[i] = (double)(now_ns() - begun) / 1e6;
        for (lp_loan *next; loans; loans = next) {
            next = loans->next;
            free(loans);
        }
    }
    double p50 = middle(took, SAMPLES);
    free(took);
    PQfinish(old);
    drop(&p);
    return p50;
}

int main(int argc, char **argv)
{
    if (argc < 2)
        bench_die("usage: bench_store_postgresql URL [orders [dead rows]]");
    long orders = argc > 2 ? atol(argv[2]) : 10000, dead = argc > 3 ? atol(argv[3]) : 80000;
    double put[2][ROUNDS], take[2][ROUNDS];
    for (int i = 0; i < ROUNDS; i++) {
        rates store = measure_store(argv[1], orders), bare = measure_bare(argv[1], orders);
        put[0][i] = store.put, put[1][i] = bare.put;
        take[0][i] = store.take, take[1][i] = bare.take;
    }
    double ours = middle(put[0], ROUNDS), bare = middle(put[1], ROUNDS);
    printf("{\"what\": \"schedule, %d a turn\", \"orders\": %ld, \"lapse_per_s\": %.0f, "
           "\"bare_per_s\": %.0f, \"ratio\": %.2f}\n",
           BATCH, orders, ours, bare, ours / bare);
    ours = middle(take[0], ROUNDS), bare = middle(take[1], ROUNDS);
    printf("{\"what\": \"claim and end, %d a turn\", \"orders\": %ld, \"lapse_per_s\": %.0f, "
           "\"bare_per_s\": %.0f, \"ratio\": %.2f}\n",
           BATCH, orders, ours, bare, ours / bare);
    for (int tied = 0; tied < 2; tied++) {
        double without[ROUNDS], with[ROUNDS];
        for (int i = 0; i < ROUNDS; i++) {
            without[i] = claim_p50(argv[1], dead, false, tied);
            with[i] = claim_p50(argv[1], dead, true, tied);
        }
        ours = middle(with, ROUNDS), bare = middle(without, ROUNDS);
        printf("{\"what\": \"claim of %d beside %ld dead rows%s\", \"p50_ms_cleaned\": %.2f, "
               "\"p50_ms_old_transaction\": %.2f, \"ratio\": %.2f}\n",
               CLAIM, dead, tied ? ", due at one instant" : "", bare, ours, ours / bare);
    }
    return 0;
}
