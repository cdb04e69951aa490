/* test_postgresql_server.c - the server is killed, its tables are locked, a process forks. P-57. */
/* tiers: quick full soak */
/* servers: postgresql */
#define _GNU_SOURCE
#include "stores/postgresql_client.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

/* -- Killed ------------------------------------------------------------------------------------- */

enum { WRITERS = 8, PROMISES_MOST = 200000 };

static struct {
    lapse *s;
    atomic_bool stop;
    atomic_int given;
    atomic_uchar promised[PROMISES_MOST];
} load;

static void write_on(void *arg, int writer)
{
    (void)arg, (void)writer;
    while (!atomic_load(&load.stop)) {
        char id[16];
        int i = atomic_fetch_add(&load.given, 1);
        if (i >= PROMISES_MOST)
            return;
        snprintf(id, sizeof id, "%d", i);
        lapse_spec spec = {.id = id, .queue = "q", .delay = LAPSE_HOURS(1)};
        int64_t result;
        while ((result = lapse_put(load.s, &spec)) == LAPSE_EOFFLINE && !atomic_load(&load.stop))
            pause_ms(1); /* sleeps: it was not done; between two tries */
        atomic_store(&load.promised[i], result > 0);
        if (result < 0 && result != LAPSE_EOFFLINE && result != LAPSE_EUNSURE)
            complain("%s: %lld %s", id, (long long)result, lapse_error_detail());
    }
}

static bool grows(void *arg)
{
    return atomic_load(&load.given) > *(const int *)arg;
}

START_TEST(p57_a_killed_server_loses_nothing_that_was_answered)
{
    place at = new_place(PG, NULL);
    rig r = open_real(&at, NULL);
    memset(&load, 0, sizeof load);
    load.s = r.s;
    crew c;
    crew_start(&c, WRITERS, write_on, NULL);
    long rounds = tier(1, 3, 30);
    for (long i = 0; i < rounds; i++) {
        int until = atomic_load(&load.given) + 500;
        ck_assert(wait_until(grows, &until));
        server_do(store_server(PG), "kill", NULL, 0);
        server_do(store_server(PG), "start", NULL, 0);
    }
    int until = atomic_load(&load.given) + 100;
    ck_assert(wait_until(grows, &until));
    atomic_store(&load.stop, true);
    crew_join(&c);
    check_calm();
    int promised = 0, lost = 0;
    PGconn *app = connect_app(&at);
    PGresult *all = PQexec(app, "SELECT convert_from(id, 'UTF8')::int FROM lapse_order");
    static bool there[PROMISES_MOST];
    memset(there, 0, sizeof there);
    for (int i = 0; i < PQntuples(all); i++)
        there[atoi(PQgetvalue(all, i, 0))] = true;
    PQclear(all);
    for (int i = 0; i < PROMISES_MOST; i++) {
        promised += atomic_load(&load.promised[i]);
        lost += atomic_load(&load.promised[i]) && !there[i];
    }
    printf("%d promises, %ld kills of the server, %d lost\n", promised, rounds, lost);
    ck_assert_int_gt(promised, 0);
    ck_assert_int_eq(lost, 0);
    PQfinish(app);
    rig_close(&r);
}
END_TEST

static void run_script(int port_wait, const char *verb, const char *folder, const char *errors,
                       char *line, size_t size)
{
    char command[1024];
    snprintf(command, sizeof command, "LAPSE_PORT_WAIT=%d '%s/postgresql' %s '%s' %ld 2>'%s'",
             port_wait, LAPSE_SERVERS, verb, folder, (long)getpid(), errors);
    FILE *out = popen(command, "r");
    ck_assert_ptr_nonnull(out);
    if (fgets(line, (int)size, out) != NULL)
        line[strcspn(line, "\n")] = '\0';
    ck_assert_int_eq(pclose(out), 0);
}

static int port_of(const char *url)
{
    return atoi(strrchr(url, ':') + 1);
}

/* The script that these tests start it with: a server that was killed comes back on its port,
 * or on another when somebody has taken that meanwhile, and says so. */
START_TEST(a_port_may_be_taken_meanwhile)
{
    char folder[400], errors[400], before[200] = "", after[200] = "", said[200] = "";
    new_path(folder, sizeof folder, "server");
    new_path(errors, sizeof errors, "said");
    run_script(30, "start", folder, errors, before, sizeof before);
    run_script(30, "kill", folder, errors, after, sizeof after);
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_port = htons((uint16_t)port_of(before)),
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int taken_by = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(setsockopt(taken_by, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int)), 0);
    ck_assert_int_eq(bind(taken_by, (struct sockaddr *)&a, sizeof a), 0);
    ck_assert_int_eq(listen(taken_by, 1), 0);
    run_script(0, "start", folder, errors, after, sizeof after);
    ck_assert_int_ne(port_of(after), port_of(before));
    FILE *file = fopen(errors, "r");
    ck_assert_ptr_nonnull(file);
    ck_assert_ptr_nonnull(fgets(said, sizeof said, file));
    fclose(file);
    ck_assert_ptr_nonnull(strstr(said, "is taken"));
    PGconn *conn = PQconnectdb(after);
    ck_assert_msg(PQstatus(conn) == CONNECTION_OK, "%s", PQerrorMessage(conn));
    PQfinish(conn);
    run_script(30, "kill", folder, errors, before, sizeof before);
    run_script(30, "start", folder, errors, before, sizeof before);
    ck_assert_str_eq(before, after); /* It stays there. */
    run_script(30, "stop", folder, errors, before, sizeof before);
    close(taken_by);
}
END_TEST

/* -- Held up ------------------------------------------------------------------------------------- */

/* Nobody waits for as long as somebody else's lock: opening ends with an error, and a
 * scheduler whose connection was ended meanwhile closes. */
START_TEST(a_locked_table_does_not_hold_up_the_opening)
{
    place made = new_place(PG, "lease=3s"), at = made;
    add_option(&at, "migrate=no");
    lapse *s = NULL;
    rig r = open_real(&made, NULL);
    PGconn *holder = connect_app(&at);
    sql(holder, "BEGIN");
    sql(holder, "LOCK TABLE lapse_meta");
    EXPECT_ERROR(lapse_open(at.url, NULL, &s), LAPSE_ETIMEOUT, "the table, for too long");
    ck_assert_ptr_null(s);
    number(holder, "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE"
                   " application_name = 'lapse'");
    ck_assert_int_lt(lapse_put(r.s, &(lapse_spec){.id = "o", .delay = LAPSE_HOURS(1)}), 0);
    rig_close(&r);
    sql(holder, "ROLLBACK");
    ck_assert_int_eq(lapse_open(at.url, NULL, &s), 0);
    ck_assert_int_eq(lapse_close(s, LIMIT), 0);
    PQfinish(holder);
}
END_TEST

/* A child that ends, or opens a store of its own, is not noticed by its parent. */
START_TEST(a_child_leaves_the_parents_connection_alone)
{
    place at = new_place(PG, NULL);
    rig r = open_real(&at, NULL);
    put(r.s, "q", "before", LAPSE_HOURS(1));
    for (int i = 0; i < 3; i++) {
        pid_t pid = fork();
        if (pid == 0) {
            lapse *s = NULL;
            if (lapse_put(r.s, &(lapse_spec){.id = "x"}) != LAPSE_EFORKED)
                _exit(1);
            if (lapse_close(r.s, LIMIT) != 0)
                _exit(2);
            if (i > 0 && (lapse_open(at.url, NULL, &s) != 0 ||
                          lapse_put(s, &(lapse_spec){.id = i == 1 ? "one" : "two",
                                                     .delay = LAPSE_HOURS(1)}) <= 0 ||
                          lapse_close(s, LIMIT) != 0))
                _exit(3);
            _exit(0);
        }
        ck_assert_int_eq(end_of(pid), 0);
        ck_assert_int_eq(lapse_reschedule(r.s, "before", LAPSE_ANY, LAPSE_HOURS(2)),
                         LAPSE_FATE_RESCHEDULED);
    }
    ck_assert_uint_eq(stats_of(r.s).pending, 3);
    rig_close(&r);
}
END_TEST

static void fill_suite(Suite *suite)
{
    TCase *group = add_group(suite, "the server");
    tcase_add_test(group, p57_a_killed_server_loses_nothing_that_was_answered);
    tcase_add_test(group, a_port_may_be_taken_meanwhile);
    tcase_add_test(group, a_locked_table_does_not_hold_up_the_opening);
    tcase_add_test(group, a_child_leaves_the_parents_connection_alone);
}

int main(void)
{
    return stores_main("postgresql server", fill_suite);
}
