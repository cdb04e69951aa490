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
#include "base/fork.h"
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
    uint64_t retried, rejected, given_back, stale, dead, dead_by[6], requeued, purged, lost;
} lp_totals;

struct lapse {
    uint64_t epoch; /* lp_fork_epoch of the process that owns all below */
    lapse_options options;
    char *url;

    pthread_mutex_t lock;   /* guards all below */
    pthread_cond_t work;    /* followers: the leader left, or orders were announced */
    pthread_cond_t settled; /* a claim was settled, or a call left */
    lp_store *store;
    struct lp_driver *driver; /* the same, or NULL when the store answers inline */
    bool stopped;
    struct lp_submitted *answers, **answers_end; /* to be collected */
    int link_news; /* of the store's link, not told yet: LAPSE_OK: it is up again */
    bool has_link_news, has_warnings, has_trouble_news;

    lp_alarm host;    /* lapse_fd */
    lp_alarm waiters; /* polled by the leader of those who wait */
    bool has_leader;
    bool nudge, host_nudge; /* the leader, or the host, is to look whatever the time */
    uint64_t announcements; /* how often orders were brought before takers */
    unsigned waiting[2];    /* calls that wait for a side, the leader among them */
    unsigned followers;
    unsigned inside;         /* calls that lapse_close waits for */
    unsigned settle_waiters; /* on `settled` */

    lp_claim *held[LP_HELD_BUCKETS]; /* by fence */
    lp_claim *free_claims;
    uint64_t held_count;
    unsigned callbacks;  /* held claims that run a callback */
    unsigned handled;    /* queues that have a handler */
    lapse_ns check_at;   /* when some claim may be lost or stuck; LAPSE_FOREVER: none */
    lapse_ns watched_to; /* what the watcher sleeps until; INT64_MIN: it does not sleep */
    pthread_cond_t watch;
    bool has_watcher;

    pthread_t *threads;
    pthread_t watcher; /* if has_watcher */
    unsigned thread_count;

    lapse_ns wall_offset; /* UTC minus scheduler's clock, as of wall_read */
    lapse_ns wall_read;
    uint64_t random;
    lp_totals totals;
    lp_histogram lateness; /* of orders whose queue has no histogram of its own */
    lp_clock_listener listener;
};

/* Why a scheduler's lock cannot be taken. */
int lp_refuse(const lapse *s);

/* Take the lock. LAPSE_EINVAL for NULL, LAPSE_EFORKED in a child process. */
static inline int lp_enter(lapse *s)
{
    if (!s || s->epoch != lp_fork_epoch())
        return lp_refuse(s);
    pthread_mutex_lock(&s->lock);
    return LAPSE_OK;
}

static inline void lp_leave(lapse *s)
{
    pthread_mutex_unlock(&s->lock);
}

static inline lapse_ns lp_engine_now(const lapse *s)
{
    return lp_clock_now(s->options.clock);
}

/* UTC minus scheduler's clock, read anew once in a while. Under the lock. */
lapse_ns lp_engine_wall_offset(lapse *s, lapse_ns now);

/* A request and what it leads to once the lock is dropped. */
typedef struct lp_task {
    lp_request r;
    lapse_info dead; /* filled in when r.died and somebody is to be told */
} lp_task;

/* A task that has led to nothing yet. */
static inline void lp_task_clear(lp_task *t)
{
    t->r.remains_count = 0;
    t->r.died = false;
}

/* One request for the store. Under the lock. */
void lp_ask(lapse *s, lp_task *t, lapse_ns now);

/* Release and free what it left behind, and tell of a dead letter. Without the lock. */
void lp_finish_rest(lapse *s, lp_task *t);

static inline void lp_finish(lapse *s, lp_task *t)
{
    if (t->r.remains_count || t->r.died)
        lp_finish_rest(s, t);
}

/* A copy of an order from the store's clock to UTC. Without the lock. */
void lp_info_to_utc(lapse *s, lapse_info *info);

/* -- wait.c -- */

/* Arm the descriptors anew; and after something became due, at `due`, if that is earlier. Both
 * under the lock. */
void lp_arm_all(lapse *s);
void lp_arm_earlier(lapse *s, lapse_ns due);

static inline void lp_arm_for(lapse *s, lapse_ns due)
{
    if ((s->host.used && due < s->host.armed) || (s->waiters.used && due < s->waiters.armed))
        lp_arm_earlier(s, due);
}

/* Wake everybody who waits. Under the lock. */
void lp_wake_all(lapse *s);

/* Wake takers: an order came before them other than by its time. Under the lock. */
void lp_wake_takers(lapse *s);

/* A host has looked for orders of its own: those announced so far are told. Under the
 * lock. */
void lp_host_looked(lapse *s);

/* Bring due orders without a callback to their queues, a bounded number of them; whether
 * more are due. Under the lock. */
bool lp_announce(lapse *s, lapse_ns now);

/* Sleep until there may be work for `side`, or `deadline` of lp_clock_monotonic. Under
 * the lock, which it drops meanwhile. 1, 0 when time passed, or LAPSE_EINTR. */
int lp_sleep(lapse *s, lp_side side, lapse_ns deadline);

/* The instant `timeout` from now for lp_sleep and lp_await. */
lapse_ns lp_deadline(lapse_ns timeout);

/* Wait on `settled` until `deadline`; false when it has passed. Under the lock. */
bool lp_await(lapse *s, lapse_ns deadline);

/* Tell those in lp_await. Under the lock. */
void lp_tell_settled(lapse *s);

/* -- claim.c: from due to held. Under the lock -- */

/* Claim the next due order. LP_CLAIM_..., LAPSE_ECLOSED or LAPSE_ENOMEM. One that has
 * expired becomes a dead letter instead, which `t` holds (LP_CLAIM_MORE). */
int lp_begin(lapse *s, lp_side side, lp_queue *queue, lapse_ns until, lapse_ns now, lp_claim **out,
             lp_task *t);

/* An order was claimed; it starts, or becomes a dead letter (LP_CLAIM_MORE), which `t`
 * holds. LP_CLAIM_ONE: the claim is held. */
int lp_accept(lapse *s, lp_side side, lp_claim *claim, lapse_ns now, lp_task *t);

/* Memory for a claim, or NULL. */
lp_claim *lp_take_claim(lapse *s);
void lp_free_claim(lapse *s, lp_claim *claim);

/* A claim is held no more; it is free. */
void lp_let_go(lapse *s, lp_claim *claim);

/* The held claim of a fence, or NULL; that still holds its order, or NULL. */
lp_claim *lp_find_fence(lapse *s, int64_t fence);
lp_claim *lp_find_held(lapse *s, int64_t fence);

/* The held claim of an order that runs a callback, or NULL. */
lp_claim *lp_find_callback(const lapse *s, const char *id, size_t len, int64_t generation);

/* Any held claim of that kind, or NULL. */
lp_claim *lp_any_held(const lapse *s, bool runs_callback);

/* -- settle.c: what a verdict leads to. Under the lock -- */

/* End a claim as the verdict, or what became of it meanwhile, says. The claim is free
 * afterwards; `t` holds what lp_finish must see to. LAPSE_OK, or LAPSE_ESTALE, or a
 * durable store's error. May drop the lock meanwhile. */
int lp_settle(lapse *s, lp_claim *claim, lapse_verdict verdict, lapse_ns delay, const char *error,
              lapse_ns now, lp_task *t);

/* After how many deliveries an order is a dead letter. */
int lp_attempts(const lp_claim *claim);

/* What a settlement booked was not so: the store says that the claim was stale. */
struct lp_job;
void lp_unbook(lapse *s, const struct lp_job *settlement, lp_queue *q);

/* It ended, cancelled by another scheduler or scheduled anew while it was held: what was
 * booked of it, if anything was, is not so. */
void lp_book_ended(lapse *s, const struct lp_job *booked, lp_queue *q, bool cancelled);

/* An order became a dead letter (`by` -1: it did not). And one more of a queue of a durable
 * store. */
void lp_book_death(lapse *s, lp_queue *q, lapse_reason reason, uint64_t by);
void lp_count_dead(lp_queue *q, lapse_reason reason, uint64_t by);

/* -- deliver.c: call back -- */

/* Run callbacks until lapse_stop (LAPSE_ECLOSED), or until one returns in a child process
 * (LAPSE_EFORKED). `mask` NULL: leave the thread's signals alone. */
int lp_work(lapse *s, const sigset_t *mask);

/* Tell the host's hook of an error. Without the lock. */
void lp_report(lapse *s, const lapse_order *order, const char *error);

/* User code that a scheduler called and that has not returned, by thread. */
typedef struct lp_frame {
    const lapse *s;
    const struct lp_frame *below;
    const struct lp_frame **top; /* where the thread keeps its innermost one */
} lp_frame;

void lp_call_out(const lapse *s, lp_frame *frame);

static inline void lp_call_back(const lp_frame *frame)
{
    *frame->top = frame->below;
}

/* Whether this thread is inside a callback or hook of `s`. Under the lock. */
bool lp_in_callback(const lapse *s);

/* -- watch.c: claims that last too long -- */

/* Have `claim` looked at in time. Under the lock. */
void lp_watch_claim(lapse *s, lp_claim *claim, lapse_ns now);

/* Another consumer has the order of this fence. Under the lock. */
void lp_claim_gone(lapse *s, int64_t fence, lapse_ns now);

/* What the store warns of is to be told. Under the lock. */
void lp_tell_warnings(lapse *s);

/* The store's link is up again (LAPSE_OK), or down. Under the lock. */
void lp_tell_link(lapse *s, int code);

/* Something is amiss with the store, though it works, or is not any more. Under the lock. */
void lp_tell_trouble(lapse *s);

/* Deal with claims that are lost or stuck, if it is time. Without the lock. */
void lp_watch(lapse *s);

/* The same under the lock, which it drops meanwhile; what time it is. */
lapse_ns lp_watch_claims(lapse *s);

/* Whether it may be time. Under the lock. */
static inline bool lp_must_watch(const lapse *s, lapse_ns now)
{
    return now >= s->check_at;
}

/* Look after claims until lapse_stop: for scheduler threads that may all be stuck. */
void *lp_run_watcher(void *scheduler);

/* -- schedule.c: what it shares with ask.c -- */

/* Check what is asked for and make the request of it: 0 or an error. An id that no order can
 * have is LAPSE_EUNKNOWN in lp_prepare_named. */
int lp_prepare_put(const lapse *s, const lapse_spec *spec, lapse_ns now, lp_request *r);
int lp_prepare_named(lp_op op, const char *id, int64_t generation, lp_request *r);
int lp_prepare_delay(lapse_ns now, lapse_ns delay, lp_request *r);

/* Count what a request was answered, and wake whom it concerns. Under the lock. */
void lp_book_answer(lapse *s, lp_request *r);

/* -- ask.c: answers that are collected -- */

/* The driver has answered what was submitted. Under the lock. */
void lp_deliver_answer(lapse *s, struct lp_submitted *submitted);

/* What nobody has collected, at close. */
void lp_drop_answers(lapse *s);

/* -- handle.c -- */

/* Whether this can be a queue's name: 0 or LAPSE_EINVAL. */
int lp_check_queue(const char *queue);

/* lapse_queue_statistics; without asking the store what is in it now unless `ask`. */
int lp_queue_figures(lapse *s, const char *queue, lapse_queue_stats *out, bool ask);

/* Drop a reference to a handler; what the last one leaves goes into `r`. Under the lock. */
void lp_drop_handler(lp_handler *h, lp_request *r);

#endif
