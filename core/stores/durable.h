/* durable.h - what the driver asks of a store that does I/O.
 *
 * Such a store is a single-threaded batch executor: one thread, the scheduler's driver,
 * opens it, calls turn() again and again, and closes it. A turn answers every request
 * that came meanwhile and claims what is wanted, in one transaction, pipeline or flush.
 * It takes no lock of the engine's and calls no user code. Tests put a faulty store behind
 * the same table.
 *
 * Times in requests, loans and infos are the scheduler's clock, as is `turn.now`: a store
 * that keeps UTC or a server's time converts by the difference to `now` at the time of the
 * turn (due - now is how long the order has to wait; the instant that is stored is never
 * earlier than that says).
 *
 * What a row is, in every such store: an order is PENDING (claimable from `due` on), or
 * HELD (by the consumer with its `fence`, until its lease ends; from then on claimable
 * again), or ENDED (remembered for `keep`, by id, when it was the newest of its id), or
 * DEAD (a dead letter). Of an id there is at most one PENDING or HELD row: scheduling it
 * anew while it is held gives the row a new generation, and the holder's fence holds
 * nothing any more. */
#ifndef LP_DURABLE_H
#define LP_DURABLE_H

#include "stores/store.h"

/* What can be asked of a durable store beyond lp_op's first ones. LP_END, LP_AGAIN, LP_DIE
 * and the ops below that name a claim do so by `row` or `id`, and `fence`, and answer
 * LAPSE_ESTALE and change nothing unless the row is held with just this fence. */
typedef enum lp_durable_op {
    LP_RENEW = LP_LOSE + 1, /* row, id, fence: the lease lasts until now + `lease` */
    LP_HOLDS,               /* row, id, fence: 1 while the lease has not ended, else 0 */
    LP_LIST,                /* cursor, states, infos, max: as lp_store_ops.list */
    LP_COUNT,               /* counts: of all; `queue` not NULL: of this one */
    LP_QUEUES,              /* cursor, infos, max: names of queues, in infos[].queue */
} lp_durable_op;

/* A request. All that it points to lives until it is answered. */
typedef struct lp_job {
    int op; /* lp_op or lp_durable_op */
    const char *id;
    size_t id_len;
    const char *queue; /* LP_SCHEDULE: "" when none was given */
    const void *payload;
    size_t payload_len;
    bool replace;       /* LP_SCHEDULE */
    int64_t generation; /* LAPSE_ANY: whichever is current */
    lapse_ns due;       /* LP_SCHEDULE, LP_RESCHEDULE, LP_REQUEUE, LP_AGAIN */
    lapse_ns asked;     /* LP_SCHEDULE: when it was called: `due` less the delay that was given */
    lapse_ns at;        /* LP_AGAIN: from when on it may be claimed; `due` or later */

    /* The fence under which this scheduler holds the order of `id` without having started
     * it: such an order counts as PENDING; 0: there is none. */
    int64_t unstarted;

    int64_t row, fence;
    lapse_ns lease;
    lapse_reason reason; /* LP_DIE */
    const char *error;   /* LP_DIE: may be NULL; clipped and escaped already */
    bool counted;        /* LP_AGAIN, LP_DIE: false: the attempt is taken back */
    bool no_more;        /* LP_END: it was cancelled while it ran */

    uint64_t *cursor;
    unsigned states;
    lapse_info *infos; /* LP_GET: one; LP_SCHEDULE, LP_DIE: NULL, or one for what died */
    int max;
    lp_counts *counts;

    /* Out. As in lp_request; LP_AGAIN and LP_DIE: 1 when it ended as cancelled instead,
     * since somebody cancelled it while it was held. Every op: below 0 an error, with its
     * sentence in `detail`: from malloc, the driver's to free; NULL where none is needed
     * (LP_END, LP_AGAIN, LP_DIE, LP_RENEW) or memory ran out. */
    int64_t answer;
    char *detail;
    bool replaced, died;
    bool later;            /* LP_SCHEDULE and what has an id: not asked, somebody was in the way.
                              It is asked in the next turn, before all that came after it; */
    lapse_ns later_at;     /* unless this says when: lp_clock_monotonic. Until then whether it
                              was done is not known. Kept from turn to turn */
    char *of_queue;        /* of the order that LP_CANCEL has cancelled, or that `died`: from
                              malloc; NULL without memory */
    int64_t running_fence; /* who holds the order: LP_CANCEL answered LAPSE_FATE_RUNNING, or
                              LP_SCHEDULE took the place of a held row; else 0 */

    /* The driver's. */
    struct lp_job *next;
    int kind;
    bool unsure; /* it was asked before, and whether it was done is not known */
} lp_job;

/* An order that was claimed. One block of memory: the strings lie behind it. The store
 * fills in all up to `bytes`. */
typedef struct lp_loan {
    struct lp_loan *next;
    size_t want; /* the index of the want that it answers */
    int64_t row, fence, generation;
    int attempt;     /* this delivery counted */
    lapse_ns due;    /* scheduler's clock */
    bool ended;      /* cancelled while it was held, and its lease has ended: the store has ended
                        it, whoever looked first. Only told, without a want; does not count as
                        claimed */
    const char *bad; /* a fixed text: why the row cannot be delivered; NULL: it can */
    const char *id, *queue;
    const void *payload; /* NULL when empty */
    size_t id_len, payload_len;

    /* The driver's, zeroed by lp_loan_make. */
    struct lp_loan *before, *after; /* among those that are ready, or started */
    lp_job settlement, renewal;
    bool called;                              /* for a callback: renewed while it runs */
    bool settling;                            /* `settlement` is with the driver */
    bool settled;                             /* ... and was answered */
    bool booked;                              /* what it does has been counted */
    bool renewing;                            /* `renewal` is with the driver */
    bool dropped;                             /* nobody looks at it any more */
    bool gone;                                /* another consumer has the order */
    lapse_ns claimed_at, lease_end, renew_at; /* scheduler's clock */
    char bytes[];
} lp_loan;

/* A set of queues that somebody here consumes. */
typedef struct lp_want {
    const char *const *queues; /* these; or all that exist but these when `others` */
    size_t queue_count;
    bool others;
    bool pushed;   /* counts against turn.push_most */
    bool newest;   /* the last that fell due instead of the first */
    bool spare;    /* an order of these may lose an attempt without having been started */
    unsigned most; /* claim so many at most; 0: only say when the next is due */

    /* Out: when the next order that was not claimed can be (scheduler's clock; in the past
     * when it could be now); LAPSE_FOREVER: there is none. */
    lapse_ns next;
} lp_want;

typedef struct lp_turn {
    lapse_ns now, wall;  /* scheduler's clock, and UTC at the same instant */
    lapse_ns lease;      /* how long claims are held */
    lp_job *const *jobs; /* answered in this order, before anything is claimed */
    size_t job_count;
    lp_want *wants; /* served in this order, each by due time, ties as accepted */
    size_t want_count;
    unsigned push_most; /* of all wants that are `pushed` together */
    lp_loan *loans;     /* out: in the order of the wants, each from malloc */
} lp_turn;

typedef struct lp_durable lp_durable;

typedef struct lp_durable_ops {
    const char *scheme;
    unsigned abilities;

    /* Open what config->url names (checked by nobody yet); changes `config` where the URL
     * says otherwise. The lease default stands in config already. */
    int (*open)(lp_store_config *config, lp_durable **out);

    /* Let go of everything; held rows stay held. */
    void (*close)(lp_durable *d);

    /* Answer all jobs and claim. Schedule, cancel, reschedule, requeue and purge are
     * durable on return; a turn of claims and settlements alone need not be. Below 0: the
     * whole turn failed and nothing was changed, except LAPSE_EUNSURE: it is not known. No
     * job is answered then. Jobs that fail by themselves do not hold back the others. */
    int (*turn)(lp_durable *d, lp_turn *t);

    /* After LAPSE_EOFFLINE: connect anew; 0 or an error. NULL: such a store has no link. */
    int (*reconnect)(lp_durable *d);

    /* A descriptor that is readable when another consumer may have changed what is due
     * next, or -1; and read it empty. Only a hint: the driver also looks every `poll`. */
    int (*hint_fd)(lp_durable *d);
    void (*hinted)(lp_durable *d);

    /* The driver is about to sleep until `next` (scheduler's clock; in the past: it has no
     * use for orders now), and wants a hint of anything due earlier. True when something
     * may have been missed since the last turn: look again. Must not block. */
    bool (*sleeps)(lp_durable *d, lapse_ns next, lapse_ns now);

    /* How often the driver looks without a hint. */
    lapse_ns (*poll)(const lp_durable *d);

    /* What of the server's settings may lose orders, as found at open: sentence number `n`,
     * counting from 0, or NULL after the last. The same at any time. NULL: there is none. */
    const char *(*warning)(const lp_durable *d, int n);

    /* What is amiss though turns succeed, so that hints are late or missing: a sentence that
     * lives until the next call of the store, or NULL. On the driver's thread. NULL: nothing
     * ever is. */
    const char *(*trouble)(const lp_durable *d);
} lp_durable_ops;

/* The first member of every durable store. */
struct lp_durable {
    const lp_durable_ops *ops;
};

/* A loan with room for its strings, which are copied; NULL without memory. */
lp_loan *lp_loan_make(const char *id, size_t id_len, const char *queue, const void *payload,
                      size_t payload_len);

/* -- What every such store does with jobs -- */

/* Whether its answer is a promise that a power failure must not break. */
bool lp_job_is_promise(const lp_job *j);
bool lp_turn_promises(const lp_turn *t); /* one of its jobs' */

/* Whether it changes nothing. */
bool lp_job_is_look(const lp_job *j);
bool lp_turn_changes(const lp_turn *t); /* one of its jobs does */

/* At the start of a turn: no job has anything of an answer, and where a walk stands is kept in
 * its `row`, so that lp_job_undo brings back also what was not come to. */
void lp_turn_begin(lp_turn *t);

/* It is answered by an error, which lp_fail has said. */
void lp_job_fail(lp_job *j, int64_t code);

/* As it was before it was answered, for another try. */
void lp_job_undo(lp_job *j);

/* Whether an application may put this on its own connection; not its id and time. */
int lp_durable_check_spec(const lapse_spec *spec);

/* Those of this build; table.c knows which. */
extern const lp_durable_ops lp_sqlite_store, lp_postgresql_store, lp_redis_store, lp_rabbitmq_store;

#endif
