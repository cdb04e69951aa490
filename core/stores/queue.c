/* queue.c - what the engine and a store both know of a queue.
 *
 * The rate is a token bucket that holds a twentieth of a second's starts (one at least):
 * no second sees more than 1.05 times the rate. */
#include "stores/queue.h"

enum { SHARE = 4 }; /* one start in so many goes to the newest while there is a backlog */

static double bucket_size(const lp_queue *q)
{
    double size = q->handler->policy.rate / 20.0;
    return size < 1 ? 1 : size;
}

static bool is_rated(const lp_queue *q)
{
    return q->handler && q->handler->policy.rate;
}

void lp_queue_rerate(lp_queue *q)
{
    if (is_rated(q) && q->tokens > bucket_size(q))
        q->tokens = bucket_size(q);
}

static void refill(lp_queue *q, lapse_ns now)
{
    if (now <= q->refilled)
        return;
    q->tokens += (double)(now - q->refilled) * 1e-9 * q->handler->policy.rate;
    lp_queue_rerate(q);
    q->refilled = now;
}

bool lp_queue_open(lp_queue *q, lapse_ns now)
{
    if (q->paused || !q->handler)
        return false;
    if (!is_rated(q))
        return true;
    refill(q, now);
    return q->tokens >= 1;
}

lapse_ns lp_queue_opens_at(const lp_queue *q)
{
    if (q->paused || !q->handler)
        return LAPSE_FOREVER;
    if (!is_rated(q) || q->tokens >= 1)
        return 0;
    /* One more nanosecond: rounding must not wake anybody for nothing. */
    return q->refilled + (lapse_ns)((1 - q->tokens) / q->handler->policy.rate * 1e9) + 1;
}

void lp_queue_spend(lp_queue *q)
{
    if (is_rated(q))
        q->tokens -= 1;
}

void lp_queue_refund(lp_queue *q)
{
    if (is_rated(q))
        q->tokens += 1;
    q->turn -= q->turn_counted;
    q->turn_counted = false;
}

bool lp_queue_newest_first(lp_queue *q, lapse_ns late)
{
    q->turn_counted = is_rated(q) && late > LAPSE_SECONDS(1);
    return q->turn_counted && ++q->turn % SHARE == 0;
}

unsigned lp_queue_plan(lp_queue *q, lapse_ns late, unsigned most, lapse_ns now, bool *newest)
{
    *newest = false;
    q->turn_counted = is_rated(q) && late > LAPSE_SECONDS(1);
    if (!lp_queue_open(q, now))
        return 0;
    if (is_rated(q) && q->tokens < most)
        most = (unsigned)q->tokens;
    if (!q->turn_counted)
        return most;
    unsigned oldest = SHARE - 1 - q->turn % SHARE; /* before the turn of the newest */
    *newest = oldest == 0 && most > 0;
    if (*newest)
        return 1;
    return most < oldest ? most : oldest;
}

void lp_queue_started(lp_queue *q)
{
    lp_queue_spend(q);
    q->turn += q->turn_counted;
}
