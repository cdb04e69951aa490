/* queue.h - what the engine and a store both know of a queue.
 *
 * The store makes one for every name it meets and never frees it before it is closed;
 * the engine says who handles it and how. Guarded by the scheduler's lock. */
#ifndef LP_QUEUE_H
#define LP_QUEUE_H

#include "base/histogram.h"
#include "lapse.h"

/* A handler lives while its queue or a running callback refers to it. */
typedef struct lp_handler {
    lapse_callback fn;
    void *arg;
    lapse_release release; /* may be NULL */
    lapse_policy policy;   /* with all defaults filled in */
    unsigned refs;
} lp_handler;

typedef struct lp_queue {
    char *name;
    lp_handler *handler; /* NULL: for takers */
    bool paused;
    bool taken; /* a taker asked for it by name */

    /* Under a rate: starts that are allowed now, as of `refilled`. */
    double tokens;
    lapse_ns refilled;
    unsigned turn;     /* starts while there is a backlog */
    bool turn_counted; /* the last one was */
    lapse_ns next_due; /* of a durable store: its next order, as of the last look */

    uint64_t pending, running, dead;
    uint64_t started, done, failed, retried, cancelled, dead_total, dead_by[6];
    lp_histogram *lateness; /* NULL: not measured */
} lp_queue;

/* Whether an order without a callback of its own may start now. */
bool lp_queue_open(lp_queue *q, lapse_ns now);

/* It has another handler: no more starts are saved up than its rate allows. */
void lp_queue_rerate(lp_queue *q);

/* When one may, if none arrives meanwhile; LAPSE_FOREVER: not before it is resumed. */
lapse_ns lp_queue_opens_at(const lp_queue *q);

/* One was started, `late` after it was due; whether the next to start is the one that
 * fell due last. */
void lp_queue_spend(lp_queue *q);
void lp_queue_refund(lp_queue *q); /* it did not start after all */
bool lp_queue_newest_first(lp_queue *q, lapse_ns late);

/* The same for stores that claim several at once, where the oldest is `late`: how many of
 * up to `most` to claim, and whether that is the one that fell due last. */
unsigned lp_queue_plan(lp_queue *q, lapse_ns late, unsigned most, lapse_ns now, bool *newest);
void lp_queue_started(lp_queue *q); /* one was claimed so */

#endif
