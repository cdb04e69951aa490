/* relay.c - tells nginx that a scheduler's descriptor is readable.
 *
 * nginx's Lua can wait for sockets of its own only, not for a descriptor of ours. So a thread
 * waits for that, and writes one byte into a socket that a light thread of the worker reads:
 *
 *     lapse_fd --\
 *     ring -------> thread -- byte --> unix socket --> cosocket of the driver
 *     time ------/     ^------------- watch ----------------/
 *
 * It writes one byte for each `watch`: what for, it says. Whatever happens between two of them
 * is told by the next byte.
 *
 * The socket's name in the file system is gone before anybody could use it: the worker reaches
 * it through a descriptor of its own, and another process is not listened to. The thread never
 * enters Lua, and calls nothing of the library. */
#define _GNU_SOURCE /* O_PATH, accept4, ppoll, struct ucred */
#include "glue.h"
#include "thread.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* What a byte says. */
enum { RUNG = 'r', READABLE = 'f', TIMED_OUT = 't' };

struct relay {
    int bell;       /* something under the lock has changed */
    int listener;   /* the socket */
    int place;      /* the same in the file system, without a name */
    int connection; /* the thread's; -1: none */
    pthread_t thread;
    bool runs;

    pthread_mutex_t lock; /* guards all below */
    int watched;          /* the scheduler's descriptor; -1: it is not open yet */
    bool quit, rung;
    bool watching; /* a byte is wanted */
    bool with_fd;  /* also when the descriptor is readable */
    lapse_ns until;
};

/* -- The thread -- */

static void hang_up(relay *r)
{
    if (r->connection >= 0)
        close(r->connection);
    r->connection = -1;
}

/* Only this process may listen. */
static bool is_own(int caller)
{
    struct ucred who = {0};
    socklen_t size = sizeof who;
    return getsockopt(caller, SOL_SOCKET, SO_PEERCRED, &who, &size) == 0 && who.pid == getpid();
}

/* The last connection counts: a driver has taken over. */
static void answer_callers(relay *r)
{
    int caller;
    while ((caller = accept4(r->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0) {
        if (!is_own(caller)) {
            close(caller);
            continue;
        }
        hang_up(r);
        r->connection = caller;
    }
}

/* False: nobody listens any more, so that it is to be told to the next one. */
static bool tell(relay *r, char what)
{
    if (r->connection >= 0 && send(r->connection, &what, 1, MSG_NOSIGNAL) == 1)
        return true;
    hang_up(r);
    return false;
}

enum { BELL, LISTENER, CONNECTION, WATCHED, FDS };

/* Wait for something to do. Without the lock. */
static void sleep_on(struct pollfd *fds, lapse_ns limit)
{
    struct timespec t = {.tv_sec = limit / 1000000000, .tv_nsec = limit % 1000000000};
    if (ppoll(fds, FDS, limit == LAPSE_FOREVER ? NULL : &t, NULL) >= 0)
        return;
    for (int i = 0; i < FDS; i++)
        fds[i].revents = 0;
}

/* What there is to tell; 0: nothing. Under the lock. */
static char find_news(const relay *r, bool readable)
{
    if (r->rung)
        return RUNG;
    if (r->with_fd && readable)
        return READABLE;
    return glue_real_now() >= r->until ? TIMED_OUT : 0;
}

/* Under the lock: a driver that has connected and then said what it wants is heard in this
 * order. */
static void look_for_news(relay *r, bool readable)
{
    char news = r->watching ? find_news(r, readable) : 0;
    if (news)
        answer_callers(r);
    if (!news || !tell(r, news))
        return;
    r->watching = false;
    r->rung = false;
}

static void *serve(void *arg)
{
    relay *r = arg;
    pthread_mutex_lock(&r->lock);
    while (!r->quit) {
        bool waits = r->watching && r->connection >= 0;
        lapse_ns left = waits ? r->until - glue_real_now() : LAPSE_FOREVER;
        struct pollfd fds[FDS] = {
            [BELL] = {.fd = r->bell, .events = POLLIN},
            [LISTENER] = {.fd = r->listener, .events = POLLIN},
            [CONNECTION] = {.fd = r->connection, .events = POLLRDHUP},
            [WATCHED] = {.fd = waits && r->with_fd ? r->watched : -1, .events = POLLIN},
        };
        pthread_mutex_unlock(&r->lock);
        sleep_on(fds, left < 0 ? 0 : left);
        if (fds[BELL].revents)
            bell_quiet(r->bell);
        if (fds[CONNECTION].revents)
            hang_up(r);
        if (fds[LISTENER].revents)
            answer_callers(r);
        pthread_mutex_lock(&r->lock);
        look_for_news(r, fds[WATCHED].revents != 0);
    }
    pthread_mutex_unlock(&r->lock);
    hang_up(r);
    return NULL;
}

/* -- Make -- */

/* A folder of this process alone, with a name that lasts for a moment. */
static int make_folder(char *folder, size_t size)
{
    const char *const places[] = {getenv("TMPDIR"), P_tmpdir, "/dev/shm"};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        if (!places[i] || snprintf(folder, size, "%s/lapse-XXXXXX", places[i]) >= (int)size)
            continue;
        if (mkdtemp(folder))
            return 0;
    }
    return -1;
}

/* Listen on a socket that has no name; `place` leads to it. False, and errno. */
static bool listen_in(relay *r, const char *folder)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    snprintf(name.sun_path, sizeof name.sun_path, "%s/socket", folder);
    r->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (r->listener < 0 || bind(r->listener, (const struct sockaddr *)&name, sizeof name) < 0)
        return false;
    r->place = open(name.sun_path, O_PATH | O_CLOEXEC);
    bool fine = r->place >= 0 && listen(r->listener, 8) == 0;
    int number = errno;
    unlink(name.sun_path);
    errno = number;
    return fine;
}

static bool open_socket(relay *r)
{
    char folder[sizeof((struct sockaddr_un *)0)->sun_path - sizeof "/socket"];
    if (make_folder(folder, sizeof folder) < 0)
        return false;
    bool fine = listen_in(r, folder);
    int number = errno;
    rmdir(folder);
    errno = number;
    return fine;
}

static bool start_thread(relay *r)
{
    errno = thread_start(&r->thread, serve, r);
    r->runs = errno == 0;
    return r->runs;
}

/* NULL; or what failed, and errno. */
static const char *set_up(relay *r)
{
    r->bell = bell_open();
    if (r->bell < 0)
        return "eventfd";
    if (!open_socket(r))
        return "a private socket in TMPDIR or " P_tmpdir;
    return start_thread(r) ? NULL : "a thread";
}

static void close_all(const relay *r)
{
    const int fds[] = {r->bell, r->listener, r->place};
    for (size_t i = 0; i < sizeof fds / sizeof *fds; i++)
        if (fds[i] >= 0)
            close(fds[i]);
}

void glue_close_relay(scheduler *s)
{
    relay *r = s->relay;
    s->relay = NULL;
    if (!r)
        return;
    if (r->runs) {
        pthread_mutex_lock(&r->lock);
        r->quit = true;
        pthread_mutex_unlock(&r->lock);
        bell_ring(r->bell);
        pthread_join(r->thread, NULL);
    }
    close_all(r);
    pthread_mutex_destroy(&r->lock);
    free(r);
}

void glue_ring(scheduler *s)
{
    relay *r = s->relay;
    if (!r)
        return;
    pthread_mutex_lock(&r->lock);
    r->rung = true;
    pthread_mutex_unlock(&r->lock);
    bell_ring(r->bell);
}

void glue_relay_watches(scheduler *s)
{
    relay *r = s->relay;
    int watched = s->lapse ? lapse_fd(s->lapse) : -1;
    if (!r)
        return;
    pthread_mutex_lock(&r->lock);
    r->watched = watched;
    pthread_mutex_unlock(&r->lock);
    bell_ring(r->bell);
}

int glue_push_relay(lua_State *L, scheduler *s)
{
    relay *r = calloc(1, sizeof *r);
    if (!r)
        return glue_no_memory(L);
    r->bell = r->listener = r->place = r->connection = r->watched = -1;
    pthread_mutex_init(&r->lock, NULL);
    s->relay = r;
    const char *failed = set_up(r);
    if (failed) {
        int number = errno;
        glue_close_relay(s);
        return glue_refused(L, failed, number);
    }
    lua_pushfstring(L, "unix:/proc/self/fd/%d", r->place);
    return 1;
}

/* -- For Lua -- */

/* (scheduler, seconds, whether also when the descriptor is readable) A byte is wanted, after so
 * long at the latest. */
static int watch(lua_State *L)
{
    const scheduler *s = glue_self(L);
    lapse_ns pause = glue_check_seconds(L, 2, "the pause");
    relay *r = s->relay;
    if (!r)
        return 0;
    pthread_mutex_lock(&r->lock);
    r->watching = true;
    r->with_fd = lua_toboolean(L, 3);
    r->until = glue_real_now() + pause;
    pthread_mutex_unlock(&r->lock);
    bell_ring(r->bell);
    return 0;
}

/* Have the driver look at once. */
static int ring_relay(lua_State *L)
{
    glue_ring(glue_self(L));
    return 0;
}

const luaL_Reg glue_relay_methods[] = {
    {"watch", watch},
    {"ring", ring_relay},
    {NULL, NULL},
};
