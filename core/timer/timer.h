/* timer.h - which record is due next: a wheel or a heap behind one interface.
 *
 * Times are int64 in any unit the owner likes; nothing here reads a clock, takes a lock
 * or knows what a record is for. A record is in the timer or not: node->mark says. */
#ifndef LP_TIMER_H
#define LP_TIMER_H

#include "pool.h"

#define LP_NEVER INT64_MAX

typedef enum lp_timer_kind { LP_WHEEL, LP_HEAP } lp_timer_kind;

typedef struct lp_timer_config {
    lp_timer_kind kind;
    lapse_ns tick;  /* wheel: width of a slot on the lowest level, 1 or more */
    unsigned slots; /* wheel: slots per level, a power of two, 64 to 4096 */
    lapse_ns start; /* the earliest time that will be asked about */
    lp_pool *pool;  /* where the records live; outlives the timer */
} lp_timer_config;

typedef struct lp_timer_ops lp_timer_ops;

/* The head of every timer; the owner only reads it, through the functions below. */
typedef struct lp_timer {
    const lp_timer_ops *ops;
    lp_pool *pool;
    size_t count;   /* records in it */
    uint64_t moved; /* entries moved so far */
} lp_timer;

int lp_timer_open(const lp_timer_config *config, lp_timer **out); /* 0 or LAPSE_ENOMEM */
void lp_timer_close(lp_timer *t);

/* Put in the record, by its node->due. Due times already passed are due at once.
 * 0 or LAPSE_ENOMEM (and nothing changed). */
int lp_timer_insert(lp_timer *t, uint32_t index);

/* Make sure that the next `count` inserts cannot fail. 0 or LAPSE_ENOMEM. */
int lp_timer_reserve(lp_timer *t, size_t count);

/* Take out the record; it must be in. */
void lp_timer_remove(lp_timer *t, uint32_t index);

/* Take out up to `max` records that are due at `now`, in order of due time (the wheel:
 * of the tick it was rounded up to), ties in order of insertion. Does a bounded amount
 * of clean-up per call: fewer than `max`, even none, does not say that no more is due;
 * lp_timer_next(t) > now does. */
size_t lp_timer_expire(lp_timer *t, lapse_ns now, uint32_t *out, size_t max);

/* The time at which the next record is due, rounded up to the tick; LP_NEVER when
 * empty. Exact, except when the earliest record of a wheel slot with more than 4 096
 * entries was just removed: then it may be too early, never too late. */
lapse_ns lp_timer_next(lp_timer *t);

size_t lp_timer_bytes(const lp_timer *t);

static inline size_t lp_timer_count(const lp_timer *t)
{
    return t->count;
}

/* Entries moved so far, for bounds. */
static inline uint64_t lp_timer_moved(const lp_timer *t)
{
    return t->moved;
}

#endif
