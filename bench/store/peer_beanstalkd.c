/* peer_beanstalkd.c - orders as delayed jobs of a beanstalkd of our own, with its log in the
 * run's folder, on a port of the loopback that nobody else knows.
 *
 * It gets its listening socket from us, as systemd would pass it, so that no port is guessed.
 * A job's number, which a shop would have to keep beside its order, is kept with the order. */
#define _GNU_SOURCE /* memmem */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../core/measure.h"
#include "store.h"

typedef struct link {
    int fd;
    size_t at, len; /* of `in` */
    char in[16384];
    char out[STORE_BATCH * (STORE_PAYLOAD_MAX + 128)];
} link_;

static struct sockaddr_in address;
static pid_t server_pid;

/* -- The server -- */

static const char *find_server(void)
{
    static const char *const places[] = {"/usr/bin/beanstalkd", "/usr/local/bin/beanstalkd"};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        if (access(places[i], X_OK) == 0)
            return places[i];
    return NULL;
}

/* With the options that beanstalkd sets on the sockets it makes; accepted ones inherit them. */
static int listen_somewhere(void)
{
    socklen_t size = sizeof address;
    int on = 1;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    address =
        (struct sockaddr_in){.sin_family = AF_INET, .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}};
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof address) != 0 ||
        getsockname(fd, (struct sockaddr *)&address, &size) != 0 || listen(fd, 1024) != 0)
        bench_die("no port on the loopback: %s", strerror(errno));
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return fd;
}

/* In the child: what it is passed is descriptor 3. */
static void exec_server(int listening, const char *folder, const char *const flags[2])
{
    char pid[16];
    snprintf(pid, sizeof pid, "%d", (int)getpid());
    setenv("LISTEN_PID", pid, 1);
    setenv("LISTEN_FDS", "1", 1);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (dup2(listening, 3) < 0 || fcntl(3, F_SETFD, 0) != 0)
        _exit(126);
    execl(find_server(), "beanstalkd", "-b", folder, flags[0], flags[1], (char *)NULL);
    _exit(127);
}

static void end_server(int with)
{
    kill(server_pid, with);
    waitpid(server_pid, NULL, 0);
}

static void stop(void)
{
    end_server(SIGTERM);
}

static void crash(void)
{
    end_server(SIGKILL);
}

static pid_t server(void)
{
    return server_pid;
}

/* -- A connection -- */

static void nothing(void) {}

static void *connect_(void)
{
    link_ *l = bench_alloc(1, sizeof *l);
    int on = 1;
    l->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (l->fd < 0 || connect(l->fd, (struct sockaddr *)&address, sizeof address) != 0)
        bench_die("beanstalkd: %s", strerror(errno));
    setsockopt(l->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return l;
}

static void disconnect(void *link)
{
    close(((link_ *)link)->fd);
    free(link);
}

static void send_all(link_ *l, size_t len)
{
    for (size_t done = 0; done < len;) {
        ssize_t n = send(l->fd, l->out + done, len - done, 0);
        if (n < 0 && errno != EINTR)
            bench_die("beanstalkd: %s", strerror(errno));
        done += n > 0 ? (size_t)n : 0;
    }
}

static void receive(link_ *l)
{
    memmove(l->in, l->in + l->at, l->len - l->at);
    l->len -= l->at;
    l->at = 0;
    ssize_t n = recv(l->fd, l->in + l->len, sizeof l->in - l->len, 0);
    if (n == 0 || (n < 0 && errno != EINTR))
        bench_die("beanstalkd has gone: %s", n ? strerror(errno) : "it closed the connection");
    l->len += n > 0 ? (size_t)n : 0;
}

/* The next line, without its end; lives until the next call. */
static const char *read_line(link_ *l)
{
    char *end;
    while (!(end = memmem(l->in + l->at, l->len - l->at, "\r\n", 2)))
        receive(l);
    *end = '\0';
    const char *line = l->in + l->at;
    l->at = (size_t)(end - l->in) + 2;
    return line;
}

static const char *read_body(link_ *l, size_t len)
{
    while (l->len - l->at < len + 2)
        receive(l);
    const char *body = l->in + l->at;
    l->at += len + 2;
    return body;
}

__attribute__((format(printf, 2, 3))) static const char *ask(link_ *l, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int len = vsnprintf(l->out, sizeof l->out, format, args);
    va_end(args);
    send_all(l, (size_t)len);
    return read_line(l);
}

/* -- Start -- */

/* Until it answers, which is when it has read its log. */
static void start_server(const char *folder, const char *const flags[2])
{
    int listening = listen_somewhere();
    server_pid = fork();
    if (server_pid < 0)
        bench_die("no process");
    if (server_pid == 0)
        exec_server(listening, folder, flags);
    close(listening);
    link_ *l = connect_();
    ask(l, "list-tube-used\r\n");
    disconnect(l);
}

static const char *const never[2] = {"-F", NULL};

static void start_f0(const char *folder, store_use use)
{
    static const char *const always[2] = {"-f", "0"};
    start_server(folder, use == STORE_FILL ? never : always);
}

static void start_default(const char *folder, store_use use)
{
    static const char *const nothing[2] = {NULL, NULL};
    start_server(folder, use == STORE_FILL ? never : nothing);
}

/* -- Orders -- */

static size_t write_put(char *out, const store_order *o)
{
    int64_t seconds = (o->delay + BENCH_SECOND - 1) / BENCH_SECOND;
    size_t id_len = strlen(o->id);
    int n = sprintf(out, "put 0 %" PRId64 " 120 %zu\r\n%s\n", seconds, id_len + 1 + o->payload_len,
                    o->id);
    memcpy(out + n, o->payload, o->payload_len);
    memcpy(out + n + o->payload_len, "\r\n", 2);
    return (size_t)n + o->payload_len + 2;
}

static void put(void *link, store_order *orders, size_t count)
{
    link_ *l = link;
    size_t len = 0;
    for (size_t i = 0; i < count; i++)
        len += write_put(l->out + len, &orders[i]);
    send_all(l, len);
    for (size_t i = 0; i < count; i++) {
        const char *line = read_line(l);
        if (sscanf(line, "INSERTED %" SCNu64, &orders[i].ticket) != 1)
            bench_die("beanstalkd: put: %s", line);
    }
}

static bool cancel(void *link, const store_order *order)
{
    return strcmp(ask(link, "delete %" PRIu64 "\r\n", order->ticket), "DELETED") == 0;
}

static bool work_one(void *link, char id[40])
{
    uint64_t ticket;
    size_t len;
    const char *line = ask(link, "reserve-with-timeout 1\r\n");
    if (sscanf(line, "RESERVED %" SCNu64 " %zu", &ticket, &len) != 2) {
        if (strcmp(line, "TIMED_OUT") != 0)
            bench_die("beanstalkd: reserve: %s", line);
        return false;
    }
    const char *body = read_body(link, len);
    snprintf(id, 40, "%.*s", (int)strcspn(body, "\n"), body);
    line = ask(link, "delete %" PRIu64 "\r\n", ticket);
    if (strcmp(line, "DELETED") != 0)
        bench_die("beanstalkd: delete: %s", line);
    return true;
}

#define BEANSTALKD_PEER(name_, start_)                                                             \
    {                                                                                              \
        .name = (name_), .kind = "beanstalkd", .groups = "callers,many,cancel,work,processes,big", \
        .start = (start_), .stop = stop, .crash = crash, .server = server, .join = nothing,        \
        .leave = nothing, .connect = connect_, .disconnect = disconnect, .put = put,               \
        .cancel = cancel, .work_one = work_one                                                     \
    }

const store_peer store_peers[] = {
    BEANSTALKD_PEER("beanstalkd-f0", start_f0),
    BEANSTALKD_PEER("beanstalkd", start_default),
    {0},
};

const char *store_version(void)
{
    static char text[64];
    char command[80];
    if (!find_server())
        return NULL;
    snprintf(command, sizeof command, "%s -v", find_server());
    FILE *out = popen(command, "re");
    if (!out || !fgets(text, sizeof text, out))
        return NULL;
    pclose(out);
    text[strcspn(text, "\n")] = '\0';
    return text;
}
