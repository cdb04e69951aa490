/* redis.h - the Redis store from inside: only for stores/redis*.c.
 *
 * All that happens to orders happens in one script (redis_script.c), to which a turn's jobs and
 * wants are arguments. The script is atomic and judges by the server's clock; here its arguments
 * are written and its answers are read. An order is
 *
 *     job   HASH  id -> record: generation, number of its place in due, payload. Written once
 *     state HASH  id -> state: attempts, fence, lease, times, from its first claim on
 *     due   ZSET  while it is pending; or
 *     run   ZSET  while it is held: the leases. In both the score is a queue's number and a time,
 *                 so that a queue is a run of the set in the order of claiming; ties go by the
 *                 member: in due a number that grows among those of a queue and ms, and its id;
 *                 in run its generation and its id
 *     over  ZSET  id, by the end of its lease: it was cancelled while held
 *     age   ZSET  id, by acceptance, from the first overflow=dead_letter_oldest on
 *     next  ZSET  number of a queue, by a time before which nothing in it can be claimed
 *
 * and of what is no more: past (id -> how its newest ended), ended (by when, for `keep`), dead,
 * deaths (by when), deadids (by id). meta holds the store's identity, its layout, the last
 * generation and the last fence. All names begin with {prefix}: one slot of a cluster.
 *
 * Most orders are pending for the first time, and cost what they do there: a short member, a
 * record that fits what Redis' allocator gives, no state. A payload is never written again.
 *
 * Times are milliseconds of the server's clock, rounded up. */
#ifndef LP_REDIS_H
#define LP_REDIS_H

#include <hiredis/hiredis.h>
#include <signal.h>

#include "stores/durable.h"

enum { LP_REDIS_KEYS = 14, LP_REDIS_SHA = 40, LP_REDIS_IDENTITY = 32, LP_REDIS_PREFIX_MAX = 64 };

typedef struct settings {
    char *host, *socket; /* one of them */
    unsigned port;
    char *user, *password; /* NULL: none */
    bool tls;
    char *ca, *cert, *key; /* files, with TLS; NULL: the machine's, none, that of `cert` */
    uint64_t db;
    char prefix[LP_REDIS_PREFIX_MAX + 1];
    lapse_ns poll, timeout;
    uint64_t wait;       /* replicas that confirm */
    lapse_ns wait_limit; /* how long they may take */
    bool events;         /* keyspace notifications are a hint too */
    bool evict;          /* the server may drop orders: that is known */
    bool keep_given;
} settings;

/* -- redis_url.c -- */

int lp_redis_read_url(lp_store_config *config, settings *out); /* to be freed in any case */
void lp_redis_free_settings(settings *s);

/* -- redis_script.c -- */

/* Its text, in pieces, with NULL behind the last: redis_script_....c. */
extern const char *const lp_redis_script_rows[], *const lp_redis_script_jobs[],
                                                     *const lp_redis_script_claims[];

/* The script, from malloc; NULL without memory. `when_full`: it may write when the memory that
 * Redis may use is used up. */
char *lp_redis_script(bool when_full);

/* -- redis_link.c: a connection -- */

/* The words of a command. What they point to must live until it is appended. */
typedef struct words {
    struct word {
        const char *at; /* NULL: `bytes` */
        size_t len;
        char bytes[24];
    } * list;
    const char **argv;
    size_t *lens;
    size_t count, room;
    bool failed; /* without memory */
} words;

void lp_redis_clear(words *w);
void lp_redis_word(words *w, const void *at, size_t len);
void lp_redis_text(words *w, const char *text);
void lp_redis_number(words *w, int64_t n);
void lp_redis_copy(words *w, const void *bytes, size_t len); /* at most 24 */
void lp_redis_free_words(words *w);

/* Add a command to what is sent with the next reply that is read. */
int lp_redis_append(redisContext *c, words *w);

/* The next reply; NULL and lp_fail when the connection is lost. */
redisReply *lp_redis_reply(redisContext *c);

/* Send a command and read its reply. */
redisReply *lp_redis_ask(redisContext *c, words *w);

/* lp_fail with what an error reply means. */
int lp_redis_refused(const redisReply *r);

/* Connect and log in. */
int lp_redis_connect(const settings *s, redisContext **out);

/* Whether the other side has closed it, as far as is known here. */
bool lp_redis_is_cut(redisContext *c);

/* Around whatever writes to a socket: hiredis raises SIGPIPE, which is the host's. */
typedef struct hush {
    sigset_t mask;
    bool was_pending;
} hush;
hush lp_redis_hush(void);
void lp_redis_unhush(const hush *h);

/* -- redis_tls.c -- */

/* Whether this build has it. */
bool lp_redis_has_tls(void);

/* TLS on a connection that is new. */
int lp_redis_start_tls(const settings *s, redisContext *c);

/* -- redis.c -- */

/* A walk through the orders, between two calls: the last that was looked at. */
typedef struct walk {
    uint64_t cursor; /* what it is named by; 0: free */
    int64_t part;
    char score[32];
    size_t len;
    char member[LAPSE_ID_MAX + 16];
} walk;

enum { LP_REDIS_WALKS = 64, LP_REDIS_WARNING_MAX = 300, LP_REDIS_WARNINGS = 5 };

typedef struct redis_store {
    lp_durable base; /* first */
    lp_store_config config;
    settings options;
    redisContext *link;            /* NULL: there is none */
    char sha[2][LP_REDIS_SHA + 1]; /* the script's, and the one's that writes when it is full */
    char identity[LP_REDIS_IDENTITY + 1]; /* of the store that was opened */
    char keys[LP_REDIS_KEYS][LP_REDIS_PREFIX_MAX + 16];
    char channel[LP_REDIS_PREFIX_MAX + 16];
    words words;

    uint64_t dead_dropped;
    walk walks[LP_REDIS_WALKS];
    uint64_t walk_count;

    /* The server's clock minus the scheduler's, at most by the time that a turn takes: the least
     * that was seen lately. */
    lapse_ns ahead, ahead_next;
    lapse_ns ahead_until;

    redisContext *hint; /* subscribed; NULL: there is none */
    lapse_ns hint_retry_at, hint_pause;

    int version;       /* major, of the server */
    uint64_t replicas; /* that it had when it was opened */
    bool is_limited;   /* it may refuse orders for memory (maxmemory) */
    bool is_open;      /* warnings are as they were found before */
    char warnings[LP_REDIS_WARNINGS][LP_REDIS_WARNING_MAX];
    int warning_count;
} redis_store;

/* Connect, look at the server, and open the store in it. */
int lp_redis_open_link(redis_store *d, lapse_ns now);
void lp_redis_close_link(redis_store *d);

/* The store of this prefix: found or made. 1: it is another than before. */
int lp_redis_open_store(redis_store *d, lapse_ns now);

/* Begin a call of the script in d->words: `identity` "" for any store; `ends` when it takes more
 * from the server than it brings. And the same for a script that was lost. */
void lp_redis_begin_call(redis_store *d, const char *identity, lapse_ns now, lapse_ns lease,
                         bool ends);
int lp_redis_load_scripts(redis_store *d);

/* -- redis_check.c -- */

/* Look at what the server says of itself: an error, or what is worth a warning is noted. */
int lp_redis_check(redis_store *d);

/* Note a warning, if the store is being opened. */
void lp_redis_warn(redis_store *d, const char *text);

/* -- redis_turn.c, redis_answer.c -- */

int lp_redis_turn(redis_store *d, lp_turn *t);

/* Write a job's words; the job is one of the script's. */
void lp_redis_write_job(redis_store *d, const lp_turn *t, lp_job *j);
/* Read its answer. */
void lp_redis_read_answer(redis_store *d, const lp_turn *t, lp_job *j, const redisReply *r);

/* The number at a place of an array; `none` when there is none. */
int64_t lp_redis_at(const redisReply *r, size_t i, int64_t none);
const redisReply *lp_redis_item(const redisReply *r, size_t i);

/* Times of the server, in ms, as the scheduler's. */
lapse_ns lp_redis_scheduler_time(const redis_store *d, int64_t ms);

/* -- redis_hint.c -- */

void lp_redis_listen(redis_store *d); /* if it does not */
void lp_redis_drain(redis_store *d);
void lp_redis_stop_listening(redis_store *d);

#endif
