/* store.h - where orders live: what the engine asks of a store.
 *
 * A store is a single-threaded batch executor: it is handed requests, answers each, and
 * lets due orders be claimed. It takes no lock, reads no clock and calls no user code;
 * what must be released or freed comes back in the answer, for the engine to do once its
 * lock is dropped. Times are the store's own clock, which for "memory:" is the
 * scheduler's. Faulty stores for tests enter by the same table. */
#ifndef LP_STORE_H
#define LP_STORE_H

#include <string.h>

#include "base/error.h"
#include "lapse.h"
#include "stores/queue.h"

/* What an order leaves behind when it ends. */
typedef struct lp_remains {
    lapse_release release; /* NULL: nothing to release */
    void *arg;
    void *memory; /* to free(); may be NULL */
} lp_remains;

#define LP_UNKNOWN_TIME INT64_MIN /* as when an order ended */

#define LP_REMAINS_MAX 4 /* a request leaves at most so many */

/* An order that a consumer holds. The engine owns the memory, the store fills in the
 * first part; `order` is first so that a callback's order names its claim. */
typedef struct lp_claim {
    lapse_order order; /* `due` and `late` are the engine's to fill */
    lapse_callback fn; /* the order's own; NULL: it has none */
    void *arg;
    lapse_ns due; /* store clock */
    lp_queue *queue;
    uint32_t record; /* the store's own */
    void *kept;      /* the store's own */
    bool called;     /* claimed as LP_PUSH */
    bool superseded; /* its id was scheduled anew: it will not be repeated */

    /* The engine's, under its lock: */
    struct lp_claim *next, *prev; /* held claims, or the free ones */
    lp_handler *handler;          /* that runs it, or NULL */
    unsigned long thread;         /* that began it */
    bool runs_callback;           /* begun for a callback, not taken */
    bool in_callback;             /* only who called its callback or hook may settle it */
    bool no_more;                 /* cancelled while held: no further attempt */
    bool lost;                    /* its lease ended: the order has gone on without it */
    bool stuck_reported;
    lapse_ns lease, lease_end; /* scheduler's clock */
    lapse_ns stuck_at;
    lapse_ns retry_delay; /* what the callback asked for; below 0: the policy's */
    bool has_error;
    char error[1001];
} lp_claim;

typedef enum lp_op {
    LP_SCHEDULE,   /* id, due, spec */
    LP_CANCEL,     /* id, generation */
    LP_RESCHEDULE, /* id, generation, due */
    LP_GET,        /* id, info */
    LP_REQUEUE,    /* id, generation, due */
    LP_PURGE,      /* id (NULL: any), generation: up to LP_REMAINS_MAX dead letters */
    LP_END,        /* claim: it ends; a lost one only leaves what it still holds */
    LP_AGAIN,      /* claim, due: pending once more; `counted`: the attempt counts */
    LP_DIE,        /* claim, reason, error: to the dead letters */
    LP_LOSE,       /* claim: its order goes on without it: again at `due`, or dead when
                      `reason` is set, or ended when `ends`. The claim stays readable
                      until LP_END */
} lp_op;

typedef struct lp_request {
    lp_op op;
    lapse_reason reason;
    bool counted, ends;
    bool waits;            /* LP_END, LP_AGAIN, LP_DIE: until it is known whether it was done */
    bool replaced;         /* out; LP_SCHEDULE: a pending order gave way */
    bool died;             /* out: an order became a dead letter */
    uint8_t remains_count; /* out */
    const char *id;
    size_t id_len;
    int64_t generation;
    lapse_ns due;
    const lapse_spec *spec;
    lp_claim *claim;  /* in; LP_CANCEL: out, when the answer is LAPSE_FATE_RUNNING */
    lapse_info *info; /* LP_GET: what was found. Else, unless NULL: what died */
    const char *error;

    /* Out: a generation (LP_SCHEDULE, LP_REQUEUE), a lapse_fate (LP_CANCEL,
     * LP_RESCHEDULE), a number (LP_PURGE), or 0; below 0 an error, and nothing was
     * changed. */
    int64_t answer;
    lp_remains remains[LP_REMAINS_MAX]; /* undefined from remains_count on */
} lp_request;

/* What an order brings in any store, but its id, queue and time. */
static inline int lp_check_spec(const lapse_spec *spec)
{
    if (spec->payload_len > LAPSE_PAYLOAD_MAX)
        return lp_fail(LAPSE_EINVAL, "the payload has %zu bytes: use %u at most", spec->payload_len,
                       LAPSE_PAYLOAD_MAX);
    if (spec->payload_len && !spec->payload)
        return lp_fail(LAPSE_EINVAL, "the payload is NULL but has %zu bytes", spec->payload_len);
    if (spec->flags & ~(unsigned)LAPSE_REPLACE)
        return lp_fail(LAPSE_EINVAL, "unknown flags %#x: use LAPSE_REPLACE or 0", spec->flags);
    return LAPSE_OK;
}

/* A request that asks for nothing but `op` yet. Up to 80 bytes are cleared by a few stores; what
 * compilers make of more takes longer to begin than a store takes to look for an id. */
static inline void lp_request_init(lp_request *r, lp_op op)
{
    memset(r, 0, offsetof(lp_request, answer));
    r->answer = 0;
    r->op = op;
}

_Static_assert(offsetof(lp_request, answer) <= 80, "cleared by a few stores");

/* As the dead letters of one queue: only a look at each of them would tell. */
#define LP_UNCOUNTED UINT64_MAX

typedef struct lp_counts {
    uint64_t pending, running, kept, dead, dead_dropped;
    lapse_ns oldest_due; /* store clock; LAPSE_FOREVER: none */
    uint64_t bytes, moved;
} lp_counts;

typedef struct lp_store lp_store;

/* What a store is opened with: the options, after the URL had its say. */
typedef struct lp_store_config {
    const char *url; /* checked by lp_url_parse already */
    uint64_t max_pending, max_dead;
    lapse_overflow overflow;
    lapse_ns keep, lease, stuck_after;
    lapse_release release; /* for orders that bring none */
    lapse_ns now;          /* store clock at open */
    lapse_ns wall;         /* UTC at the same instant */
    bool manual;           /* the clock is a manual one */
} lp_store_config;

/* What a claim found. */
enum {
    LP_CLAIM_NONE, /* nothing is due */
    LP_CLAIM_ONE,  /* the claim is filled in */
    LP_CLAIM_MORE, /* nothing yet after a bounded amount of work: ask again */
};

/* Which orders to claim. */
typedef enum lp_side {
    LP_PUSH, /* those with a callback */
    LP_PULL, /* those without */
} lp_side;

typedef struct lp_store_ops {
    const char *scheme;
    unsigned abilities; /* lapse_ability bits */

    /* `config` is changed where the URL says otherwise. */
    int (*open)(lp_store_config *config, lp_store **out);
    void (*close)(lp_store *s);

    /* Answer each request, in order. */
    void (*execute)(lp_store *s, lp_request *requests, size_t count, lapse_ns now);

    /* Claim the next order that is due at `until`. LP_PUSH: one with a callback of its own
     * or of a queue that is open; LP_PULL: of `queue`, NULL any that is not handled.
     * LP_CLAIM_..., or LAPSE_ENOMEM and the order stays due. */
    int (*claim)(lp_store *s, lp_side side, lp_queue *queue, lapse_ns until, lapse_ns now,
                 lp_claim *claim);

    /* Bring orders without a callback that are due at `now` to their queues, a bounded
     * number of them. True when some were brought. */
    bool (*announce)(lp_store *s, lapse_ns now);

    /* Whether an order that was announced waits for a taker. */
    bool (*waits)(lp_store *s);

    /* When the next order of a side can be claimed; LAPSE_FOREVER: none. 0 or a past time
     * when one can be. LP_PUSH counts orders without a callback once they were announced,
     * LP_PULL until then. */
    lapse_ns (*next)(lp_store *s, lp_side side);

    /* Copy up to `max` orders whose state is in `states` into `out`, starting at *cursor
     * (0 first), and move it on; a bounded number of steps. The number copied, with
     * *cursor UINT64_MAX after the last; or LAPSE_ENOMEM. */
    int (*list)(lp_store *s, uint64_t *cursor, unsigned states, lapse_info *out, int max,
                lapse_ns now);

    /* The queue of a name (NULL: ""), or NULL; and of a number, counting from 0, or NULL
     * after the last. */
    lp_queue *(*queue)(lp_store *s, const char *name);
    lp_queue *(*queue_at)(lp_store *s, size_t n);

    /* The same, made if need be; and, after a failure, forgotten if it was never used. */
    int (*make_queue)(lp_store *s, const char *name, lp_queue **out);
    void (*forget_queue)(lp_store *s, lp_queue *q);

    /* As count, of one queue: pending, running, dead, and when the oldest order was due that waits for
     * its handler or a taker, or was parked while it is paused. */
    int (*count_queue)(lp_store *s, lp_queue *q, lp_counts *out);

    /* Before the engine changes a queue's handler or pauses it: make room for what that
     * takes. 0 or LAPSE_ENOMEM. */
    int (*prepare_queue)(lp_store *s, lp_queue *q);

    /* Take any one order out, for close: false when none is left. */
    bool (*drain)(lp_store *s, lp_remains *out);

    /* 0, or an error and all counts are 0. */
    int (*count)(lp_store *s, lp_counts *out);
} lp_store_ops;

/* The first member of every store. */
struct lp_store {
    const lp_store_ops *ops;
};

extern const lp_store_ops lp_memory_store;

#endif
