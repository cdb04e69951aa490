/* driver.h - the thread that owns a durable store.
 *
 * To the rest of the engine the driver looks like any store (lp_store_ops), except that
 * what it is asked takes a while: the asking thread waits, without the scheduler's lock.
 * Requests belong to the driver, never to the caller's stack; whoever stops waiting
 * leaves his behind.
 *
 *     callers --inbox--> driver thread --turn--> store
 *        ^                    |
 *        |---- answers -------|
 *        `---- ready <--------' what was claimed for callbacks and has not started
 *
 * A claim is made only for somebody who can start it at once: a thread that waits, a taker,
 * a host's loop that has looked and found nothing. Until it starts, cancel, replace,
 * reschedule and stop withdraw it as if it were pending. Of its files driver_parts.h tells. */
#ifndef LP_DRIVER_H
#define LP_DRIVER_H

#include <semaphore.h>
#include <stdatomic.h>

#include "base/error.h"
#include "engine/engine.h"
#include "stores/durable.h"

/* A request of a caller, with copies of all that it points to. */
typedef struct lp_call {
    lp_job job; /* first */
    _Atomic int state;
    sem_t answered;
    bool once;                      /* LP_TAKE: an answer also when there is none */
    lp_loan *loan;                  /* LP_TAKE: what was claimed */
    struct lp_submitted *submitted; /* whose answer is collected, not waited for */
    struct lp_call *next;           /* among `takes`, or `answered` */
    lp_loan *withdrawn;             /* from `ready`, for this call */
    uint64_t cursor;
    lp_counts counts;
    lapse_info *infos; /* of job.infos */
    char bytes[];
} lp_call;

/* The arrays of a turn, kept from one to the next; only the driver's thread touches them. */
typedef struct lp_plan {
    lp_job **jobs;
    size_t job_count, ended; /* of the jobs, how many have been passed on: they may be gone */
    lp_want *wants;
    lp_queue **rated; /* a want's queue that has a rate of its own, or NULL */
    const char **names;
    size_t want_count, want_room, name_count, name_room;
    unsigned turns; /* so that each want is the first in its turn */
} lp_plan;

typedef struct lp_driver {
    lp_store base; /* first */
    lapse *s;
    const lp_durable_ops *ops;
    lp_durable *store;
    lp_plan plan;
    pthread_t thread; /* if `runs` */
    bool runs;
    int timer, bell; /* descriptors as of wake.h: what it sleeps on */
    lapse_ns armed;  /* the timer; INT64_MIN: it has gone off */

    /* Under s->lock: */
    lp_job *inbox, **inbox_end;
    lp_job *again;                      /* settlements of a turn that failed */
    lp_job *refused;                    /* settlements that failed by themselves */
    lp_job *put_off;                    /* calls that the store wants later; job->later_at */
    lapse_ns refused_pause, refused_at; /* and when they are asked again; lp_clock_monotonic */
    lp_call *takes;
    lp_call *answered, **answered_end; /* whose callers are to be woken */
    lp_loan *ready, *ready_last;       /* claimed for callbacks, not started; oldest first */
    unsigned ready_count;
    lp_loan *started; /* callbacks that run */
    lp_queue **queues, **by_name;
    size_t queue_count, queue_room;

    bool sleeping, quit;
    bool woken;         /* since it went to sleep */
    bool dirty;         /* what is wanted has changed: look */
    lapse_ns push_next; /* when the next order can be claimed for a callback, and */
    lapse_ns take_next; /* for one of `takes`; as of the last turn */
    lapse_ns poll_at;   /* when to look without a reason */
    bool host_loops, has_waited;
    unsigned host_wants; /* callbacks that a host has looked for and not started */
    unsigned host_most;  /* so many it wants when it looks: lapse_want */
    bool host_polls;     /* it has polled, got nothing, and is to be told */
    bool host_told;      /* and was */
    lapse_ns turn_at;    /* what time the store was told */

    lapse_ns offline_since;     /* engine's clock; LAPSE_FOREVER: it is not */
    lapse_ns backoff, retry_at; /* after a turn that failed; lp_clock_monotonic */
    int offline_code;
    lp_detail offline_words;
    bool troubled; /* it works, but `trouble` says what is amiss */
    lp_detail trouble;
} lp_driver;

/* Open the store; its thread starts once the scheduler stands. And end both. */
int lp_driver_open(lapse *s, const lp_durable_ops *ops, lp_store_config *config, lp_store **out);
int lp_driver_run(lapse *s);
void lp_driver_close(lp_driver *d);

/* All of these under the lock: */

/* Have the driver see whether there is something to do; look in the store. */
void lp_driver_wake(lp_driver *d);
void lp_driver_poke(lp_driver *d);

/* Post what nobody waits for: 0 or an error. And what it was answered. */
int lp_driver_submit(lapse *s, lp_request *r, lapse_ns now, struct lp_submitted *submitted,
                     lp_call **out);
void lp_driver_read_answer(lapse *s, lp_call *call, lp_request *r);
void lp_driver_free_call(lp_call *call);

/* These drop the lock while they wait: */

/* Claim an order without a callback; see lapse_take. 1 with the claim filled in, 0, or an
 * error. `deadline` of lp_clock_monotonic; 0: do not wait for one. */
int lp_driver_take(lapse *s, lp_queue *queue, lapse_ns deadline, lp_claim *claim);

/* LP_RENEW or LP_HOLDS of a claim. */
int64_t lp_driver_ask_claim(lapse *s, const lp_claim *claim, int op, lapse_ns lease);

/* Make the queues known that the store has. */
void lp_driver_learn_queues(lapse *s);

/* Wait until the driver has done all that is due now: under a manual clock. Or only what it
 * was asked, until `deadline`; whether it has. */
void lp_driver_settle(lapse *s);
bool lp_driver_drain(lapse *s, lapse_ns deadline);

/* And these do not wait: */

/* Somebody begins to wait for a callback; a host has looked for one and found none. */
void lp_driver_waited_for(lp_driver *d);
void lp_driver_looked(lp_driver *d, bool in_pass);

/* A host has polled: when it got nothing it is told once that something is due. */
void lp_driver_polled(lp_driver *d, bool in_vain);

/* How long until a host should look. */
lapse_ns lp_driver_timeout(const lp_driver *d, lapse_ns now);

/* A claim's store-side facts. */
bool lp_driver_has_lost(const lp_claim *claim);  /* another consumer has its order */
void lp_driver_note_lost(const lp_claim *claim); /* the store says so */
lapse_ns lp_driver_lease_end(const lp_claim *claim);
bool lp_driver_is_assured(const lp_claim *claim, lapse_ns now); /* its lease has not ended */
const char *lp_driver_fault(const lp_claim *claim); /* why it cannot be delivered, or NULL */

#endif
