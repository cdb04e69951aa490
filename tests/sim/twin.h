/* twin.h - the stupid twin of a scheduler: arrays, searched from end to end.
 *
 * It is told what is asked of the scheduler before the scheduler is, and says what the
 * answer must be; of what the scheduler does by itself it says whether it may. Every
 * promise that lapse.h makes of one thread stands here once, in its simplest form. A
 * breach ends the story.
 *
 * Where the scheduler may choose (jitter, a nanosecond more for what callbacks schedule)
 * a due time is a range from `lo` to `hi`. Times are the manual clock's. The twin never
 * calls the library. */
#ifndef LAPSE_TESTS_TWIN_H
#define LAPSE_TESTS_TWIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lapse.h"

enum { IDS = 160, QUEUES = 4, ORDERS = 1000, CLAIMS = 3000, HANDLERS = 128, PAYLOAD = 64 };
enum { NONE = -1 };

/* Where an order is, or how it ended. */
typedef enum twin_place { WAITING, HELD, DONE, CANCELLED, REPLACED, DEAD } twin_place;

/* One generation of an order. */
typedef struct twin_order {
    int64_t generation; /* 0 until the scheduler has said it */
    int id, queue;
    int token; /* its `arg`, or NONE */
    bool own;  /* it brings its own callback */
    twin_place place;
    bool kept;                   /* DONE or CANCELLED: remembered while `keep` lasts */
    bool listed;                 /* DEAD: among the dead letters */
    bool told;                   /* DEAD: on_dead knows */
    bool again;                  /* it did not only wait once: ties with it may go either way */
    lapse_ns lo, hi;             /* when it is due */
    lapse_ns first_lo, first_hi; /* what its lateness counts from */
    lapse_ns ended;
    int64_t waits_since; /* counts the waits */
    int64_t died;        /* counts the dead letters */
    unsigned frame;      /* the pass that it must not start in; 0: none */
    int attempt;
    int holds; /* the claim that keeps its `arg` after its end, or NONE */
    lapse_reason reason;
    const char *error;
    size_t payload_len;
    unsigned char payload[PAYLOAD];
} twin_order;

/* What `arg` of an order points to. */
typedef struct twin_token {
    int order;
    bool by_default; /* released by the scheduler's function, not one of its own */
    bool expected, released;
} twin_token;

/* One delivery. */
typedef struct twin_claim {
    const lapse_order *shown;
    int64_t fence;
    int order;
    int handler; /* or NONE */
    bool called; /* for a callback, not taken */
    bool inside; /* its callback runs: nobody else may settle it */
    bool settled;
    bool lost;
    bool superseded, no_more;
    bool forgotten; /* its worker died */
    lapse_ns lease, lease_end;
} twin_claim;

/* What `arg` of a handler points to. */
typedef struct twin_handler {
    int queue;
    lapse_policy policy; /* with the defaults filled in */
    unsigned refs;
    bool released;
    bool spent; /* a start was allowed, the last at `spent_at` */
    lapse_ns spent_at;
    size_t count; /* starts, and when */
    lapse_ns starts[CLAIMS];
} twin_handler;

typedef struct twin_queue {
    bool known, taken, paused;
    int handler;         /* or NONE */
    lapse_ns rate_reset; /* since when starts may be saved up */
    unsigned since_newest;
    lapse_queue_stats sum; /* as above */
} twin_queue;

/* A pass: a call of lapse_process. */
typedef struct twin_pass {
    unsigned frame;
    lapse_ns until;
    size_t ran;
} twin_pass;

/* A settlement that was asked for: the scheduler first sees to leases that have ended, and
 * only then to this. */
typedef struct twin_settling {
    bool asked;
    int64_t fence;
    lapse_verdict verdict;
    lapse_ns delay;
    const char *error;
    bool inside; /* by the return of its callback */
    int answer;
} twin_settling;

typedef struct twin_config {
    lapse_ns tick; /* 0: the heap */
    uint64_t max_pending, max_dead;
    lapse_overflow overflow;
    lapse_ns keep, lease;
    bool releases; /* lapse_options has a `release` */
} twin_config;

typedef struct twin_world {
    twin_config config;
    lapse_ns now, wall; /* the clock and its wall clock */
    bool stopped, closing;
    bool hooked; /* inside a hook: the next order may have been begun already */
    int order_count, claim_count, handler_count, token_count;
    int newest[IDS]; /* the order that an id names, or NONE */
    int64_t last_fence, waits, deaths;
    unsigned frames, depth;
    twin_pass pass[8];
    twin_settling settling;
    unsigned called;     /* claims for callbacks that hold their order */
    unsigned errors_due; /* calls of on_error that must come */
    unsigned drops_seen; /* dead letters that made room for one not yet told of */
    lapse_stats sum;     /* what the arrays do not tell: events */
    twin_queue queues[QUEUES];
    twin_order orders[ORDERS];
    twin_claim claims[CLAIMS];
    twin_token tokens[ORDERS];
    twin_handler handlers[HANDLERS];
} twin_world;

extern twin_world tw;
extern const char *twin_ids[IDS];
extern const char *const twin_queues[QUEUES];

/* A new order, as far as the twin cares. */
typedef struct twin_new {
    int id, queue;
    bool own, has_arg, own_release, replace;
    lapse_ns due;
    size_t payload_len;
    const unsigned char *payload;
} twin_new;

void twin_open(const twin_config *config, lapse_ns now, lapse_ns wall);

/* -- What is asked: the answer that must come ----------------------------------------- */

/* 0, and the order and its token are the last ones there are; or an error. */
int twin_schedule(const twin_new *n);
/* What was accepted has this generation. */
void twin_accepted(int order, int64_t generation);
int twin_cancel(int id, int64_t generation);
int twin_reschedule(int id, int64_t generation, lapse_ns due);
int twin_requeue(int id, int64_t generation, lapse_ns due);
int64_t twin_purge(int id, int64_t generation);         /* id NONE: all */
int twin_handle(int queue, const lapse_policy *policy); /* NULL: remove */
void twin_pause(int queue, bool paused);
int twin_take(int queue); /* NONE: any. 0: an order or none */
int twin_renew(int64_t fence, lapse_ns lease);
bool twin_holds(int64_t fence);
/* Before and after. */
void twin_settle(int64_t fence, lapse_verdict verdict, lapse_ns delay, const char *error,
                 bool inside);
int twin_settled(void);

/* -- What the scheduler does ---------------------------------------------------------- */

/* The ways to get an order: from a pass or lapse_begin, or of a queue (NONE: any). */
typedef struct twin_way {
    bool called;
    int queue;
    lapse_ns until;
    unsigned frame; /* 0: no pass */
} twin_way;

/* An order was handed out. Its claim. */
int twin_start(const lapse_order *shown, twin_way way, const void *fn_arg, bool fn_own);
/* Nothing more was handed out, though it could have been. */
void twin_none(twin_way way);
/* Whether an order may, or must, be handed out now. */
bool twin_any(twin_way way, bool surely);

void twin_enter_pass(void);
void twin_leave_pass(void);
unsigned twin_frame(void); /* of the pass that a callback runs in; 0: none */

void twin_told_of_dead(const lapse_info *dead);
void twin_told_of_error(const lapse_order *shown, const char *error);
void twin_told_of_loss(const char *message);
void twin_released(int token, bool by_default);
void twin_handler_released(int handler);

/* No lease that has ended is held any more. */
void twin_watched(void);

/* -- What must hold after every step, in compare.c ------------------------------------ */

void twin_check(const lapse_stats *stats);
void twin_check_queue(int queue, int code, const lapse_queue_stats *stats);
void twin_check_get(int id, int code, const lapse_info *info);
void twin_check_info(const lapse_info *info); /* in a walk over all */
lapse_ns twin_earliest(void);                 /* when any order may be due */
int64_t twin_shown(unsigned states);          /* how many a walk shows */
void twin_check_timeout(lapse_ns timeout);

/* Before and after lapse_close. */
void twin_close(void);
void twin_check_closed(void);

/* -- Among twin.c, deliver.c and compare.c -------------------------------------------- */

/* An order begins to wait, due at some time from `lo` to `hi`. */
void twin_wait(twin_order *o, lapse_ns lo, lapse_ns hi);
void twin_end(twin_order *o, twin_place how);
void twin_die(twin_order *o, lapse_reason reason, const char *error);
bool twin_called_back(const twin_order *o); /* as things are now, by a callback */

/* A due time as the store sees it: the wheel rounds up to its tick. */
lapse_ns twin_up(lapse_ns due);
int twin_find(const char *id, int64_t generation); /* an order, or NONE */
bool twin_is_over(const twin_order *o);            /* nothing of it can start or is running */
bool twin_remembered(const twin_order *o);         /* its end lies within `keep` */
bool twin_visible(const twin_order *o);            /* as the newest of its id */
lapse_ns twin_utc(lapse_ns at);
const char *twin_name(const twin_order *o);

#endif
