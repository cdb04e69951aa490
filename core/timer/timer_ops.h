/* timer_ops.h - what a kind of timer brings. Only for the files of core/timer. */
#ifndef LP_TIMER_OPS_H
#define LP_TIMER_OPS_H

#include "timer.h"

/* The functions of timer.h, by kind. */
struct lp_timer_ops {
    void (*close)(lp_timer *t);
    int (*insert)(lp_timer *t, uint32_t index);
    int (*reserve)(lp_timer *t, size_t count);
    void (*remove)(lp_timer *t, uint32_t index);
    size_t (*expire)(lp_timer *t, lapse_ns now, uint32_t *out, size_t max);
    lapse_ns (*next)(lp_timer *t);
    size_t (*bytes)(const lp_timer *t);
};

int lp_wheel_open(const lp_timer_config *config, lp_timer **out);
int lp_heap_open(const lp_timer_config *config, lp_timer **out);

/* LP_NEVER is no time: what is due then is due one unit before. */
static inline lapse_ns lp_timer_due(const lp_node *node)
{
    return node->due < LP_NEVER ? node->due : LP_NEVER - 1;
}

/* Whether a record is in a timer. */
static inline bool lp_timer_holds(const lp_timer *t, uint32_t index)
{
    const lp_node *node = lp_pool_at(t->pool, index);
    return node->mark != 0;
}

#endif
