/* test_postgresql_faults.c - the link to the server breaks, or says nothing. P-62.
 *
 * A proxy stands between the store and the server where a link has to break at one moment. */
/* tiers: quick full soak */
/* servers: postgresql */
#define _GNU_SOURCE
#include "stores/postgresql_client.h"

#include <arpa/inet.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

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
            pause_ms(20); /* sleeps: the outage lasts as long as the case says */
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
            pause_ms(1); /* sleeps: between two tries */
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
    tcase_add_test(group, a_silent_server_does_not_hold_up_the_opening);
}

int main(void)
{
    return stores_main("postgresql faults", fill_suite);
}
