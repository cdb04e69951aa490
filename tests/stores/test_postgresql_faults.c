/* test_postgresql_faults.c - the server dies, the link breaks, others are in the way. P-57, P-62.
 *
 * A proxy stands between the store and the server where a link has to break at one moment. */
/* tiers: quick full soak */
/* servers: postgresql */
#define _GNU_SOURCE
#include "stores/postgresql_client.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static lapse_ns now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (lapse_ns)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void pause_ms(int ms)
{
    usleep((useconds_t)ms * 1000); /* sleeps: something else has to happen meanwhile */
}

static bool wait_until(bool (*holds)(void *arg), void *arg)
{
    for (lapse_ns until = now_ns() + 2 * LIMIT; now_ns() < until; pause_ms(2))
        if (holds(arg))
            return true;
    return false;
}

/* -- A proxy ---------------------------------------------------------------------------------- */

typedef struct proxy {
    int listener, port, server_port;
    pthread_t thread;
    atomic_bool quit;
    atomic_bool refuse;     /* nobody is let in, and who is inside is cut off */
    atomic_bool mute;       /* simple queries are never answered */
    atomic_int cut_answers; /* the next answers are thrown away, and the link with them */
} proxy;

enum { LINKS = 16 };

static int listen_somewhere(int *port)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&a, sizeof a), 0);
    ck_assert_int_eq(listen(fd, 16), 0);
    ck_assert_int_eq(getsockname(fd, (struct sockaddr *)&a, &size), 0);
    *port = ntohs(a.sin_port);
    return fd;
}

static int reach(int port)
{
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_port = htons((uint16_t)port),
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(fd, (struct sockaddr *)&a, sizeof a) == 0)
        return fd;
    close(fd);
    return -1;
}

static bool forward(proxy *p, int from, int to, bool answers)
{
    char bytes[65536];
    ssize_t n = read(from, bytes, sizeof bytes);
    if (n <= 0)
        return false;
    if (!answers && bytes[0] == 'Q' && atomic_load(&p->mute))
        return true;
    if (answers && atomic_load(&p->cut_answers) > 0) {
        atomic_fetch_sub(&p->cut_answers, 1);
        return false;
    }
    for (ssize_t done = 0, m; done < n; done += m)
        if ((m = send(to, bytes + done, (size_t)(n - done), MSG_NOSIGNAL)) <= 0)
            return false;
    return true;
}

static void *run_proxy(void *arg)
{
    proxy *p = arg;
    int ends[LINKS][2], count = 0;
    while (!atomic_load(&p->quit)) {
        struct pollfd fds[1 + 2 * LINKS] = {{.fd = p->listener, .events = POLLIN}};
        for (int i = 0; i < 2 * count; i++)
            fds[1 + i] = (struct pollfd){.fd = ends[i / 2][i % 2], .events = POLLIN};
        poll(fds, (nfds_t)(1 + 2 * count), 5);
        bool refuse = atomic_load(&p->refuse);
        for (int i = count; i-- > 0;) {
            bool ok = !refuse;
            for (int side = 0; side < 2 && ok; side++)
                if (fds[1 + 2 * i + side].revents)
                    ok = forward(p, ends[i][side], ends[i][1 - side], side == 1);
            if (ok)
                continue;
            close(ends[i][0]);
            close(ends[i][1]);
            memmove(ends + i, ends + i + 1, (size_t)(count - i - 1) * sizeof ends[0]);
            count--;
        }
        if (!(fds[0].revents & POLLIN))
            continue;
        int client = accept4(p->listener, NULL, NULL, SOCK_CLOEXEC);
        int server = refuse || count == LINKS ? -1 : reach(p->server_port);
        if (server < 0) {
            close(client);
            continue;
        }
        ends[count][0] = client;
        ends[count++][1] = server;
    }
    for (int i = 0; i < 2 * count; i++)
        close(ends[i / 2][i % 2]);
    close(p->listener);
    return NULL;
}

/* The same place, but through the proxy. */
static place open_proxy(proxy *p, const place *at)
{
    place through = *at;
    const char *port = strrchr(at->url, ':') + 1;
    *p = (proxy){.server_port = atoi(port)};
    p->listener = listen_somewhere(&p->port);
    snprintf(through.url, sizeof through.url, "%.*s%d%s", (int)(port - at->url), at->url, p->port,
             strchr(port, '/'));
    ck_assert_int_eq(pthread_create(&p->thread, NULL, run_proxy, p), 0);
    return through;
}

static void close_proxy(proxy *p)
{
    atomic_store(&p->quit, true);
    pthread_join(p->thread, NULL);
}

/* -- The link ------------------------------------------------------------------------------------ */

START_TEST(a_lost_answer_is_told_as_not_known)
{
    place at = new_place(PG, NULL);
    rig direct = open_real(&at, NULL);
    proxy p;
    place through = open_proxy(&p, &at);
    rig r = open_real(&through, NULL);
    for (int i = 0; i < 5; i++) {
        char id[16];
        snprintf(id, sizeof id, "%d", i);
        lapse_spec spec = {.id = id, .delay = LAPSE_HOURS(1)};
        atomic_store(&p.cut_answers, 1);
        EXPECT_ERROR(lapse_put(r.s, &spec), LAPSE_EUNSURE, "not known");
        lapse_info info = look(direct.s, id); /* It was done. */
        ck_assert_int_eq(info.state, LAPSE_STATE_PENDING);
        lapse_info_free(&info);
        ck_assert_int_eq(lapse_put(r.s, &spec), LAPSE_EEXISTS); /* To ask again is safe. */
        atomic_store(&p.cut_answers, 1);
        EXPECT_ERROR(lapse_cancel(r.s, id, LAPSE_ANY), LAPSE_EUNSURE, "not known");
        ck_assert_int_eq(lapse_cancel(r.s, id, LAPSE_ANY), LAPSE_FATE_UNKNOWN);
    }
    rig_close(&r);
    rig_close(&direct);
    close_proxy(&p);
}
END_TEST

/* A settlement is asked for again by itself, and is done once. */
START_TEST(a_lost_settlement_is_done_once)
{
    place at = new_place(PG, NULL);
    proxy p;
    place through = open_proxy(&p, &at);
    rig r = open_real(&through, NULL);
    for (int i = 0; i < 5; i++) {
        const lapse_order *order;
        lapse_spec spec = {.id = "o"};
        ck_assert_int_gt(lapse_put(r.s, &spec), 0);
        order = poll_one(r.s, "", "o");
        ck_assert_int_eq(order->attempt, 1);
        atomic_store(&p.cut_answers, 1);
        int result = lapse_settle(r.s, order->fence, LAPSE_DONE, 0, NULL);
        ck_assert_msg(result == LAPSE_OK || result == LAPSE_EUNSURE, "%d", result);
        ck_assert_uint_eq(stats_of(r.s).pending + stats_of(r.s).running, 0);
    }
    rig_close(&r);
    close_proxy(&p);
}
END_TEST

static bool has_run(void *arg)
{
    return atomic_load((atomic_int *)arg) > 0;
}

static atomic_int runs;

static lapse_verdict note_run(const lapse_order *order, void *arg)
{
    (void)order, (void)arg;
    atomic_fetch_add(&runs, 1);
    return LAPSE_DONE;
}

START_TEST(p62_the_link_drops_and_comes_back)
{
    place at = new_place(PG, NULL);
    rig direct = open_real(&at, NULL);
    proxy p;
    place through = open_proxy(&p, &at);
    rig r = open_real(&through, NULL);
    ck_assert_int_eq(lapse_handle(r.s, "q", note_run, NULL, NULL, NULL), 0);
    ck_assert_int_eq(lapse_start(r.s, 1), 0);
    const int outages[] = {50, 1000, (int)tier(1500, 5000, 60000)};
    for (size_t i = 0; i < sizeof outages / sizeof *outages; i++) {
        atomic_store(&runs, 0);
        atomic_store(&p.refuse, true);
        put(direct.s, "q", "meanwhile", 0);
        lapse_ns begun = now_ns();
        while (now_ns() - begun < LAPSE_MS(outages[i])) {
            lapse_spec spec = {.id = "x", .queue = "none"};
            int64_t result = lapse_put(r.s, &spec);
            ck_assert_msg(result == LAPSE_EOFFLINE || result == LAPSE_EUNSURE, "%lld: %s",
                          (long long)result, lapse_error_detail());
            pause_ms(20);
        }
        lapse_stats t;
        ck_assert_int_lt(lapse_statistics(r.s, &t), 0);
        ck_assert_int_gt(t.offline, 0);
        ck_assert_int_eq(atomic_load(&runs), 0);
        atomic_store(&p.refuse, false);
        ck_assert(wait_until(has_run, &runs));
        ck_assert_int_eq(stats_of(r.s).offline, 0);
        lapse_cancel(direct.s, "x", LAPSE_ANY); /* Whose answer was lost, if it was. */
    }
    rig_close(&r);
    rig_close(&direct);
    close_proxy(&p);
}
END_TEST

/* Who listens is cut off alone, and then who works: no order waits for longer than polling. */
START_TEST(p62_connections_are_ended_one_by_one)
{
    place at = new_place(PG, NULL);
    rig r = open_real(&at, NULL), other = open_real(&at, NULL);
    PGconn *app = connect_app(&at);
    ck_assert_int_eq(lapse_handle(r.s, "q", note_run, NULL, NULL, NULL), 0);
    ck_assert_int_eq(lapse_start(r.s, 1), 0);
    static const char *const which[] = {"query LIKE 'LISTEN%'", "query NOT LIKE 'LISTEN%'", "true"};
    for (int i = 0; i < 9; i++) {
        char text[300];
        snprintf(text, sizeof text,
                 "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE"
                 " application_name = 'lapse' AND %s",
                 which[i % 3]);
        number(app, text);
        atomic_store(&runs, 0);
        while (lapse_put(other.s, &(lapse_spec){.id = "o", .queue = "q"}) < 0)
            pause_ms(1);
        ck_assert(wait_until(has_run, &runs));
    }
    PQfinish(app);
    rig_close(&other);
    rig_close(&r);
}
END_TEST

/* A connection that was ended while nobody used it is made anew before the next turn. */
START_TEST(an_idle_connection_may_be_ended)
{
    static const char ended[] = "SELECT count(pg_terminate_backend(pid, 60000)) FROM"
                                " pg_stat_activity WHERE application_name = 'lapse'";
    place at = new_place(PG, NULL);
    rig r = open_real(&at, NULL);
    PGconn *app = connect_app(&at);
    for (int i = 0; i < 10; i++) {
        char id[16];
        snprintf(id, sizeof id, "%d", i);
        ck_assert_int_ge(number(app, ended), 1); /* They are gone when it answers. */
        int64_t result = lapse_put(r.s, &(lapse_spec){.id = id, .delay = LAPSE_HOURS(1)});
        ck_assert_msg(result > 0, "%d: %lld %s", i, (long long)result, lapse_error_detail());
    }
    ck_assert_uint_eq(stats_of(r.s).pending, 10);
    PQfinish(app);
    rig_close(&r);
}
END_TEST

static struct {
    lapse *s;
    atomic_int result, done;
} cancelled;

static void cancel_one(void *arg, int thread)
{
    (void)arg, (void)thread;
    atomic_store(&cancelled.result, lapse_cancel(cancelled.s, "o", LAPSE_ANY));
    atomic_store(&cancelled.done, 1);
}

/* One that is ended in the midst of a turn, before COMMIT, has done nothing: that is known. */
START_TEST(what_was_stopped_before_its_end_was_not_done)
{
    static const char stop[] = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE"
                               " application_name = 'lapse' AND wait_event_type = 'Lock'";
    place at = new_place(PG, NULL);
    rig r = open_real(&at, NULL);
    PGconn *holder = connect_app(&at), *app = connect_app(&at);
    put(r.s, "q", "o", LAPSE_HOURS(1));
    cancelled.s = r.s;
    bool met = false;
    for (int i = 0; i < 20 && !met; i++) { /* The wait for the row may be over too soon. */
        crew c;
        sql(holder, "BEGIN");
        sql(holder, "SELECT FROM lapse_order FOR UPDATE");
        atomic_store(&cancelled.done, 0);
        crew_start(&c, 1, cancel_one, NULL);
        while (!met && !atomic_load(&cancelled.done))
            met = number(app, stop) > 0;
        crew_join(&c);
        sql(holder, "ROLLBACK");
    }
    ck_assert(met);
    ck_assert_int_eq(atomic_load(&cancelled.result), LAPSE_EOFFLINE);
    ck_assert_int_eq(lapse_cancel(r.s, "o", LAPSE_ANY), LAPSE_FATE_CANCELLED);
    PQfinish(app);
    PQfinish(holder);
    rig_close(&r);
}
END_TEST

static atomic_int signals;

static void count_signal(int number_of_signal)
{
    (void)number_of_signal;
    atomic_fetch_add(&signals, 1);
}

START_TEST(no_signal_reaches_the_host)
{
    place at = new_place(PG, NULL);
    signal(SIGPIPE, count_signal);
    rig r = open_real(&at, NULL);
    PGconn *app = connect_app(&at);
    for (int i = 0; i < 20; i++) {
        number(app, "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE"
                    " application_name = 'lapse'");
        lapse_put(r.s, &(lapse_spec){.id = "o", .queue = "q", .flags = LAPSE_REPLACE});
    }
    ck_assert_int_eq(atomic_load(&signals), 0);
    signal(SIGPIPE, SIG_DFL);
    PQfinish(app);
    rig_close(&r);
}
END_TEST

/* -- The server -------------------------------------------------------------------------------- */

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
        int64_t result = lapse_put(load.s, &spec);
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

/* -- Others ------------------------------------------------------------------------------------- */

/* Threads of this store and an application change the same ids in opposite orders. */
static struct {
    lapse *s;
    const place *at;
    atomic_bool stop;
} mesh;

static void cancel_backwards(void *arg, int thread)
{
    (void)arg, (void)thread;
    PGconn *app = try_connect(mesh.at);
    while (!atomic_load(&mesh.stop)) {
        PQclear(PQexec(app, "BEGIN"));
        for (int i = 9; i >= 0; i--) {
            char text[80];
            snprintf(text, sizeof text, "SELECT lapse_schedule('%d', '1 h', replace => true)", i);
            PQclear(PQexec(app, text)); /* It may be the one that has to give way. */
        }
        PQclear(PQexec(app, "COMMIT"));
        pause_ms(2);
    }
    PQfinish(app);
}

START_TEST(deadlocks_are_nobodys_error)
{
    place at = new_place(PG, NULL);
    rig r = open_real(&at, NULL);
    put_batch(r.s, "", "", 10, LAPSE_HOURS(1));
    mesh.s = r.s;
    mesh.at = &at;
    atomic_store(&mesh.stop, false);
    crew c;
    crew_start(&c, 2, cancel_backwards, NULL);
    for (long round = 0; round < tier(20, 100, 2000); round++) {
        lapse_spec specs[10];
        int64_t results[10];
        char ids[10][8];
        for (int i = 0; i < 10; i++) {
            snprintf(ids[i], sizeof ids[i], "%d", (int)((i * 7 + round) % 10));
            specs[i] = (lapse_spec){.id = ids[i], .delay = LAPSE_HOURS(1), .flags = LAPSE_REPLACE};
        }
        int64_t accepted = lapse_schedule_many(r.s, specs, 10, results);
        ck_assert_msg(accepted == 10, "%lld: %s", (long long)accepted, lapse_error_detail());
    }
    atomic_store(&mesh.stop, true);
    crew_join(&c);
    ck_assert_uint_eq(stats_of(r.s).pending, 10);
    rig_close(&r);
}
END_TEST

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

/* Who lets us in and then says nothing is given up too. */
START_TEST(a_silent_server_does_not_hold_up_the_opening)
{
    place made = new_place(PG, "lease=3s"), at = made;
    add_option(&at, "migrate=no");
    rig r = open_real(&made, NULL);
    rig_close(&r);
    proxy p;
    lapse *s = NULL;
    place through = open_proxy(&p, &at);
    atomic_store(&p.mute, true);
    EXPECT_ERROR(lapse_open(through.url, NULL, &s), LAPSE_EOFFLINE, "not answered in time");
    close_proxy(&p);
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

/* -- Many queues ------------------------------------------------------------------------------- */

static atomic_int taken;

static void take_two(void *arg, int thread)
{
    (void)thread;
    for (int i = 0; i < 2; i++) {
        const lapse_order *order;
        int result = lapse_take(arg, NULL, LIMIT, &order);
        if (result != 1 || strcmp(order->id, i ? "new" : "first") != 0)
            complain("%d: %s", result, result == 1 ? order->id : lapse_error_detail());
        else if (lapse_settle(arg, order->fence, LAPSE_DONE, 0, NULL) != 0)
            complain("%s", lapse_error_detail());
        atomic_fetch_add(&taken, 1);
    }
}

/* Who takes from any queue has to know all of them: they are looked for again only when
 * something was put into one that was not known, which is found at once. */
START_TEST(names_are_not_looked_for_with_each_order)
{
    place at = new_place(PG, "poll=1m&options=-c%20track_functions%3Dall");
    rig r = open_real(&at, NULL);
    put(r.s, "q", "first", 0);
    atomic_store(&taken, 0);
    crew c;
    crew_start(&c, 1, take_two, r.s);
    ck_assert(wait_until(has_run, &taken));
    for (int i = 0; i < 100; i++) {
        char id[16];
        snprintf(id, sizeof id, "%d", i);
        put(r.s, "q", id, LAPSE_HOURS(1));
    }
    put(r.s, "unknown", "new", 0);
    crew_join(&c);
    check_calm();
    rig_close(&r); /* Its connection tells what it counted. */
    PGconn *app = connect_app(&at);
    char text[200];
    snprintf(text, sizeof text,
             "SELECT coalesce(sum(calls), 0) FROM pg_stat_user_functions WHERE schemaname = '%s'"
             " AND funcname = 'lapse_queues'",
             schema_of(&at));
    long calls = 0;
    for (lapse_ns until = now_ns() + LIMIT; calls == 0 && now_ns() < until; pause_ms(10))
        calls = number(app, text);
    printf("%ld looks for names\n", calls);
    ck_assert_int_gt(calls, 0);
    ck_assert_int_lt(calls, 20);
    PQfinish(app);
}
END_TEST

/* -- Many claimers -------------------------------------------------------------------------------- */

typedef struct sheet {
    atomic_long left;
    atomic_uchar claimed[];
} sheet;

static sheet *counted;

static sheet *map_sheet(const char *path, long orders)
{
    size_t size = sizeof(sheet) + (size_t)orders;
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || ftruncate(fd, (off_t)size) != 0)
        return NULL;
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    return memory == MAP_FAILED ? NULL : memory;
}

static lapse_verdict count_claim(const lapse_order *order, void *arg)
{
    (void)arg;
    atomic_fetch_add(&counted->claimed[atol(order->id)], 1);
    atomic_fetch_sub(&counted->left, 1);
    return LAPSE_DONE;
}

/* claim <url> <sheet> <orders> */
static int claim(int argc, char **argv)
{
    lapse *s;
    if (argc != 4 || (counted = map_sheet(argv[2], atol(argv[3]))) == NULL)
        return 2;
    if (lapse_open(argv[1], NULL, &s) != 0)
        return 3;
    if (lapse_handle(s, "q", count_claim, NULL, NULL, NULL) != 0 || lapse_start(s, 20) != 0)
        return 4;
    while (atomic_load(&counted->left) > 0)
        pause_ms(5);
    return lapse_close(s, LIMIT) == 0 ? 0 : 6;
}

static const int claimers[] = {4, 16};

START_TEST(p57_each_order_is_claimed_once_by_many)
{
    long count = tier(500, 5000, 100000);
    place at = new_place(PG, "lease=60s");
    rig r = open_real(&at, NULL);
    for (long first = 0; first < count; first += 500) {
        char ids[500][16];
        lapse_spec specs[500];
        int64_t results[500];
        for (int i = 0; i < 500; i++) {
            snprintf(ids[i], sizeof ids[i], "%ld", first + i);
            specs[i] = (lapse_spec){.id = ids[i], .queue = "q"};
        }
        ck_assert_int_eq(lapse_schedule_many(r.s, specs, 500, results), 500);
    }
    char path[512], orders[16];
    new_path(path, sizeof path, "sheet");
    snprintf(orders, sizeof orders, "%ld", count);
    counted = map_sheet(path, count);
    ck_assert_ptr_nonnull(counted);
    atomic_store(&counted->left, count);
    pid_t pids[16];
    lapse_ns begun = now_ns();
    for (int i = 0; i < claimers[_i]; i++)
        pids[i] = start_part((const char *[]){"claim", at.url, path, orders, NULL}, NULL);
    for (int i = 0; i < claimers[_i]; i++)
        ck_assert_int_eq(end_of(pids[i]), 0);
    double took = (double)(now_ns() - begun) / 1e9;
    long doubles = 0;
    for (long i = 0; i < count; i++) {
        int n = atomic_load(&counted->claimed[i]);
        ck_assert_int_ge(n, 1);
        doubles += n - 1;
    }
    printf("%d claimers: %ld orders in %.1f s (%.0f a second), %ld doubles\n", claimers[_i], count,
           took, (double)count / took, doubles);
    ck_assert_int_eq(doubles, 0);
    ck_assert_uint_eq(stats_of(r.s).pending + stats_of(r.s).running, 0);
    rig_close(&r);
}
END_TEST

static void fill_suite(Suite *suite)
{
    TCase *group = add_group(suite, "the link");
    tcase_add_test(group, a_lost_answer_is_told_as_not_known);
    tcase_add_test(group, a_lost_settlement_is_done_once);
    tcase_add_test(group, p62_the_link_drops_and_comes_back);
    tcase_add_test(group, p62_connections_are_ended_one_by_one);
    tcase_add_test(group, an_idle_connection_may_be_ended);
    tcase_add_test(group, what_was_stopped_before_its_end_was_not_done);
    tcase_add_test(group, no_signal_reaches_the_host);
    group = add_group(suite, "the server and others");
    tcase_add_test(group, p57_a_killed_server_loses_nothing_that_was_answered);
    tcase_add_test(group, a_port_may_be_taken_meanwhile);
    tcase_add_test(group, deadlocks_are_nobodys_error);
    tcase_add_test(group, a_locked_table_does_not_hold_up_the_opening);
    tcase_add_test(group, a_silent_server_does_not_hold_up_the_opening);
    tcase_add_test(group, names_are_not_looked_for_with_each_order);
    tcase_add_test(group, a_child_leaves_the_parents_connection_alone);
    tcase_add_loop_test(group, p57_each_order_is_claimed_once_by_many, 0, 2);
}

int main(int argc, char **argv)
{
    play_part(argc, argv, (const part[]){{"claim", claim}}, 1);
    return stores_main("postgresql faults", fill_suite);
}
