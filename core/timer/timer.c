/* timer.c - which record is due next: the door to the wheel and the heap.
 *
 * Keeps what both promise alike: a record is in at most once, and is out when it is
 * handed out. How they find it is their matter. */
#include "timer.h"

#include <assert.h>

#include "timer_ops.h"

int lp_timer_open(const lp_timer_config *config, lp_timer **out)
{
    int rc = config->kind == LP_WHEEL ? lp_wheel_open(config, out) : lp_heap_open(config, out);
    if (rc == 0)
        (*out)->pool = config->pool;
    return rc;
}

void lp_timer_close(lp_timer *t)
{
    if (t)
        t->ops->close(t);
}

int lp_timer_insert(lp_timer *t, uint32_t index)
{
    assert(!lp_timer_holds(t, index));
    int rc = t->ops->insert(t, index);
    t->count += rc == 0;
    return rc;
}

int lp_timer_reserve(lp_timer *t, size_t count)
{
    return t->ops->reserve(t, count);
}

void lp_timer_remove(lp_timer *t, uint32_t index)
{
    assert(lp_timer_holds(t, index) && t->count > 0);
    t->count--;
    t->ops->remove(t, index);
}

size_t lp_timer_expire(lp_timer *t, lapse_ns now, uint32_t *out, size_t max)
{
    size_t expired = t->ops->expire(t, now, out, max);
    t->count -= expired;
    return expired;
}

lapse_ns lp_timer_next(lp_timer *t)
{
    return t->count == 0 ? LP_NEVER : t->ops->next(t);
}

size_t lp_timer_bytes(const lp_timer *t)
{
    return t->ops->bytes(t);
}
