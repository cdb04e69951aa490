/* store.h - what the workloads and the durable stores under test agree on.
 *
 * A peer is one way to keep orders so that they outlive a power failure: lapse on SQLite,
 * beanstalkd with its log, a bare SQLite loop, or only the disk. Every peer is driven through
 * the same table of functions with the same ids, payloads and delays, in a process of its own.
 *
 * A store lives in a folder. `start` makes it ready there (a server is started); a process that
 * uses it calls `join`, each of its threads `connect`. */
#ifndef BENCH_STORE_H
#define BENCH_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define STORE_DAY (INT64_C(86400) * 1000000000)
#define STORE_PAYLOAD_MAX 200
#define STORE_BATCH 256 /* orders of one call of put, at most */

typedef struct store_order {
    char id[40];
    int64_t delay; /* nanoseconds */
    size_t payload_len;
    const char *payload; /* lives as long as the process */
    uint64_t ticket;     /* how the store calls it, if not by its id; set by put */
} store_order;

typedef enum store_use {
    STORE_MEASURE,
    STORE_FILL, /* before anything is measured: may be done in any way that ends the same */
} store_use;

typedef struct store_peer {
    const char *name;
    const char *kind;   /* peers of one kind have the same files */
    const char *groups; /* the workloads that it is run in by default: see suite.py */

    void (*start)(const char *folder, store_use use);
    void (*stop)(void);    /* after all processes have left; everything is in the folder */
    void (*crash)(void);   /* the server dies at once; NULL: there is none */
    pid_t (*server)(void); /* whose memory counts; NULL: this process's */

    void (*join)(void);
    void (*leave)(void);
    void *(*connect)(void);
    void (*disconnect)(void *link);

    /* On return they are kept for good, each one. */
    void (*put)(void *link, store_order *orders, size_t count);
    bool (*cancel)(void *link, const store_order *order);

    /* Claim one that is due, waiting a little, and settle it; false: there was none. */
    bool (*work_one)(void *link, char id[40]);
    /* The same on so many threads of its own, each order passed to work_done, until that says
     * that it is enough; NULL: threads that call work_one. */
    void (*work)(unsigned threads);
} store_peer;

/* The peers in this executable, ended by one without a name, and what they are. */
extern const store_peer store_peers[];
const char *store_version(void);

/* For a peer's `work`: an order was claimed. True when no more are to be. */
bool work_done(const char *id);
bool work_is_over(void);

#endif
