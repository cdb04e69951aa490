/* engine.h - a scheduler from inside: one lock around a store and those who wait.
 *
 * The engine turns calls into requests, claims due orders, hands them to callbacks or
 * takers and settles what they say. No user code runs under the lock: what must be
 * released is collected (lp_finish) and dealt with after it is dropped.
 * Lock order: a manual clock's lock, then a scheduler's. */
#ifndef LP_ENGINE_H
#define LP_ENGINE_H

#include <pthread.h>
#include <signal.h>

#include "base/clock.h"
#include "base/histogram.h"
#include "stores/store.h"

enum { LP_HELD_BUCKETS = 256 };

/* A descriptor and the instant it is armed with. */
typedef struct lp_alarm {
    int fd;
    bool used;      /* somebody polls it */
    lapse_ns armed; /* LAPSE_FOREVER: not armed */
} lp_alarm;

/* How often things happened; lapse_stats says what they are. */
typedef struct lp_totals {
    uint64_t scheduled, replaced, rescheduled, refused, cancelled, started, done, failed;
    uint64_t retried, rejected, given_back, stale, dead;
} lp_totals;

struct lapse {
    uint64_t epoch; /* lp_fork_epoch of the process that owns all below */
    lapse_options options;
    char *url;

    pthread_mutex_t lock; /* guards all below */
    pthread_cond_t work;    /* followers: the leader left, or orders were announced */
    pthread_cond_t settled; /* a claim was settled, or a call left */
    lp_store *store;
    bool stopped;

    lp_alarm host;              /* lapse_fd */
    lp_alarm waiters;           /* polled by the leader of those who wait */
    bool has_leader;
    unsigned waiting[2];        /* calls that wait for a side, the leader among them */
    unsigned followers;
    unsigned inside;            /* calls that lapse_close waits for */
    unsigned settle_waiters;    /* on `settled` */

    lp_claim *held[LP_HELD_BUCKETS]; /* by fence */
    lp_claim *free_claims;
    unsigned callbacks; /* held claims that run a callback */

    pthread_t *threads;
    unsigned thread_count;

    lapse_ns wall_offset; /* UTC minus scheduler's clock, as of wall_read */
    lapse_ns wall_read;
    uint64_t random;
    lp_totals totals;
    lp_histogram lateness;
    lp_clock_listener listener;
};

/* Take the lock. LAPSE_EINVAL for NULL, LAPSE_EFORKED in a child process. */
int lp_enter(lapse *s);
void lp_leave(lapse *s);

static inline lapse_ns lp_engine_now(const lapse *s)
{
    return lp_clock_now(s->options.clock);
}

/* UTC minus scheduler's clock, read anew once in a while. Under the lock. */
lapse_ns lp_engine_wall_offset(lapse *s, lapse_ns now);

/* One request for the store. Under the lock. */
void lp_ask(lapse *s, lp_request *r, lapse_ns now);

/* Release and free what a request left behind. Without the lock. */
void lp_finish(lp_request *r);

/* -- wait.c -- */

/* Arm the descriptors anew after something became due earlier, at `due`; both under the
 * lock. */
void lp_arm_for(lapse *s, lapse_ns due);
void lp_arm_all(lapse *s);

/* Wake everybody who waits. Under the lock. */
void lp_wake_all(lapse *s);

/* Bring due orders without a callback before their takers. Under the lock. */
void lp_announce(lapse *s, lapse_ns now);

/* Sleep until there may be work for `side`, or `deadline` of lp_clock_monotonic. Under
 * the lock, which it drops meanwhile. 1, 0 when time passed, or LAPSE_EINTR. */
int lp_sleep(lapse *s, lp_side side, lapse_ns deadline);

/* The instant `timeout` from now for lp_sleep and lp_await. */
lapse_ns lp_deadline(lapse_ns timeout);

/* Wait on `settled` until `deadline`; false when it has passed. Under the lock. */
bool lp_await(lapse *s, lapse_ns deadline);

/* Tell those in lp_await. Under the lock. */
void lp_tell_settled(lapse *s);

/* -- deliver.c -- */

/* Claim the next due order. LP_CLAIM_..., LAPSE_ECLOSED or LAPSE_ENOMEM. Under the lock. */
int lp_begin(lapse *s, lp_side side, const char *queue, lapse_ns until, lp_claim **out);

/* End a claim as the verdict, or its cancellation meanwhile, says. The claim is free
 * afterwards; `r` holds what lp_finish must see to. Under the lock. */
void lp_settle(lapse *s, lp_claim *claim, lapse_verdict verdict, lapse_ns delay, const char *error,
               lp_request *r);

/* Run callbacks until lapse_stop. `mask` NULL: leave the thread's signals alone. */
void lp_work(lapse *s, const sigset_t *mask);

/* Whether this thread is inside a callback of `s`. Under the lock. */
bool lp_in_callback(const lapse *s);

/* The held claim of an order that runs a callback, or NULL. Under the lock. */
lp_claim *lp_find_callback(const lapse *s, const char *id, size_t len, int64_t generation);

/* Any held claim of that kind, or NULL. Under the lock. */
lp_claim *lp_any_held(const lapse *s, bool runs_callback);

#endif
