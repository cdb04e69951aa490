/* redis_link.c - a connection to the server: words, replies, errors. */
#define _GNU_SOURCE /* MSG_DONTWAIT */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/error.h"
#include "stores/redis.h"

/* -- Words -- */

void lp_redis_clear(words *w)
{
    w->count = 0;
    w->failed = false;
}

static bool grow(words *w)
{
    size_t room = w->room ? 2 * w->room : 256;
    struct word *list = realloc(w->list, room * sizeof *list);
    if (!list)
        return false;
    w->list = list;
    const char **argv = realloc(w->argv, room * sizeof *argv);
    if (!argv)
        return false;
    w->argv = argv;
    size_t *lens = realloc(w->lens, room * sizeof *lens);
    if (!lens)
        return false;
    w->lens = lens;
    w->room = room;
    return true;
}

void lp_redis_word(words *w, const void *at, size_t len)
{
    if (w->count == w->room && !grow(w)) {
        w->failed = true;
        return;
    }
    struct word *next = &w->list[w->count++];
    next->at = at && len ? at : "";
    next->len = len;
}

void lp_redis_text(words *w, const char *text)
{
    lp_redis_word(w, text, strlen(text));
}

void lp_redis_copy(words *w, const void *bytes, size_t len)
{
    lp_redis_word(w, NULL, 0);
    if (w->failed)
        return;
    struct word *last = &w->list[w->count - 1];
    last->at = NULL;
    last->len = len;
    memcpy(last->bytes, bytes, len);
}

void lp_redis_number(words *w, int64_t n)
{
    char digits[24];
    lp_redis_copy(w, digits, (size_t)snprintf(digits, sizeof digits, "%" PRId64, n));
}

void lp_redis_free_words(words *w)
{
    free(w->list);
    free(w->argv);
    free(w->lens);
    *w = (words){.list = NULL};
}

/* -- Commands -- */

int lp_redis_append(redisContext *c, words *w)
{
    if (w->failed)
        return lp_fail_memory();
    for (size_t i = 0; i < w->count; i++) {
        w->argv[i] = w->list[i].at ? w->list[i].at : w->list[i].bytes;
        w->lens[i] = w->list[i].len;
    }
    if (redisAppendCommandArgv(c, (int)w->count, w->argv, w->lens) == REDIS_OK)
        return LAPSE_OK;
    return lp_fail_memory();
}

static int fail_link(const redisContext *c)
{
    if (c->err == REDIS_ERR_OOM)
        return lp_fail_memory();
    if (c->err == REDIS_ERR_IO && (errno == EAGAIN || errno == EWOULDBLOCK))
        return lp_fail(LAPSE_EOFFLINE, "Redis has not answered within the URL option timeout");
    return lp_fail(LAPSE_EOFFLINE, "the connection to Redis was lost: %s", c->errstr);
}

redisReply *lp_redis_reply(redisContext *c)
{
    void *reply = NULL;
    errno = 0;
    if (redisGetReply(c, &reply) == REDIS_OK && reply)
        return reply;
    (void)fail_link(c);
    return NULL;
}

redisReply *lp_redis_ask(redisContext *c, words *w)
{
    return lp_redis_append(c, w) < 0 ? NULL : lp_redis_reply(c);
}

/* -- Errors -- */

int lp_redis_refused(const redisReply *r)
{
    /* Where in the sentence they stand depends on the server's version. */
    static const struct {
        const char *word;
        int code;
        const char *text;
    } known[] = {
        {"LOADING", LAPSE_EOFFLINE, "Redis is still loading its data"},
        {"READONLY", LAPSE_EOFFLINE,
         "this Redis is a replica, which cannot be written: name its "
         "primary"},
        {"MASTERDOWN", LAPSE_EOFFLINE, "this Redis is a replica that has lost its primary"},
        {"CLUSTERDOWN", LAPSE_EOFFLINE, "the Redis cluster is down"},
        {"NOREPLICAS", LAPSE_EOFFLINE, "Redis has too few replicas to accept writes"},
        {"MOVED", LAPSE_EUNSUPPORTED,
         "this node of the Redis cluster does not hold the prefix: "
         "name the node that does"},
        {"OOM", LAPSE_ESYSTEM, "the memory that Redis may use (maxmemory) is used up: raise it"},
        {"MISCONF", LAPSE_ESYSTEM, "Redis cannot save its data and refuses writes: see its log"},
        {"NOAUTH", LAPSE_ESYSTEM,
         "Redis wants a password: put it into the URL, "
         "redis://:password@host"},
        {"WRONGPASS", LAPSE_ESYSTEM, "Redis refuses this user or password"},
        {"invalid password", LAPSE_ESYSTEM, "Redis refuses this password"},
        {"NOPERM", LAPSE_ESYSTEM, "this user of Redis may not do what the store needs"},
        {"BUSY", LAPSE_ETIMEOUT, "Redis is busy with a script of somebody"},
        {"WRONGTYPE", LAPSE_EDATA, "a key of the store is something else: use another prefix"},
    };
    char said[LP_TEXT_MAX + 1];
    lp_text_clip(said, r->str ? r->str : "");
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strstr(said, known[i].word))
            return lp_fail(known[i].code, "%s (%.200s)", known[i].text, said);
    return lp_fail(LAPSE_EDATA, "Redis refuses: %.300s", said);
}

/* -- Connecting -- */

static struct timeval timeval_of(lapse_ns t)
{
    return (struct timeval){.tv_sec = t / LAPSE_SECONDS(1), .tv_usec = t % LAPSE_SECONDS(1) / 1000};
}

static redisContext *connect_to(const settings *s)
{
    struct timeval limit = timeval_of(s->timeout);
    return s->socket ? redisConnectUnixWithTimeout(s->socket, limit)
                     : redisConnectWithTimeout(s->host, (int)s->port, limit);
}

static int unreachable(const settings *s, const redisContext *c)
{
    char place[300];
    if (s->socket)
        snprintf(place, sizeof place, "%s", lp_text_quote(s->socket, strnlen(s->socket, 120)));
    else
        snprintf(place, sizeof place, "%s:%u", lp_text_quote(s->host, strnlen(s->host, 120)),
                 s->port);
    return lp_fail(LAPSE_EOFFLINE, "Redis at %s cannot be reached: %s", place, c->errstr);
}

/* One command whose answer is only whether it was done. */
static int must(redisContext *c, words *w)
{
    redisReply *r = lp_redis_ask(c, w);
    if (!r)
        return LAPSE_EOFFLINE;
    int code = r->type == REDIS_REPLY_ERROR ? lp_redis_refused(r) : LAPSE_OK;
    freeReplyObject(r);
    return code;
}

static int log_in(redisContext *c, const settings *s, words *w)
{
    int code = LAPSE_OK;
    if (s->password) {
        lp_redis_clear(w);
        lp_redis_text(w, "AUTH");
        if (s->user)
            lp_redis_text(w, s->user);
        lp_redis_text(w, s->password);
        code = must(c, w);
    }
    if (code == LAPSE_OK && s->db) {
        lp_redis_clear(w);
        lp_redis_text(w, "SELECT");
        lp_redis_number(w, (int64_t)s->db);
        code = must(c, w);
    }
    return code;
}

int lp_redis_connect(const settings *s, redisContext **out)
{
    redisContext *c = connect_to(s);
    if (!c)
        return lp_fail_memory();
    words w = {.list = NULL};
    int code = c->err ? unreachable(s, c) : LAPSE_OK;
    if (code == LAPSE_OK) {
        fcntl(c->fd, F_SETFD, FD_CLOEXEC);
        redisSetTimeout(c, timeval_of(s->timeout));
        if (!s->socket)
            redisEnableKeepAlive(c);
        code = s->tls ? lp_redis_start_tls(s, c) : LAPSE_OK;
        if (code == LAPSE_OK)
            code = log_in(c, s, &w);
    }
    lp_redis_free_words(&w);
    if (code < 0) {
        redisFree(c);
        return code;
    }
    *out = c;
    return LAPSE_OK;
}

bool lp_redis_is_cut(redisContext *c)
{
    char byte;
    if (c->err)
        return true;
    ssize_t n = recv(c->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    /* Between two turns nothing is to be read: what is there belongs to nobody. */
    return n >= 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
}

/* -- SIGPIPE -- */

hush lp_redis_hush(void)
{
    hush h;
    sigset_t pipe, pending;
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    sigemptyset(&pending);
    sigpending(&pending);
    h.was_pending = sigismember(&pending, SIGPIPE) == 1;
    pthread_sigmask(SIG_BLOCK, &pipe, &h.mask);
    return h;
}

/* One that was raised meanwhile is ours. */
void lp_redis_unhush(const hush *h)
{
    sigset_t pipe;
    const struct timespec none = {0, 0};
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    while (!h->was_pending && sigtimedwait(&pipe, NULL, &none) < 0 && errno == EINTR)
        ;
    pthread_sigmask(SIG_SETMASK, &h->mask, NULL);
}
