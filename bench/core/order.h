/* order.h - an order as a user of an event loop would write it.
 *
 * One malloc holds the loop's timer and the id. The id map and one mutex for map and loop
 * are beside it. A peer includes this after it has defined `peer_timer`. */
#ifndef BENCH_ORDER_H
#define BENCH_ORDER_H

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "idmap.h"

typedef struct order {
    peer_timer timer; /* first: the loop's pointer to it is the order's */
    char id[];
} order;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of the loop and the map */
static idmap orders;

static inline order *order_new(const char *id)
{
    size_t len = strlen(id) + 1;
    order *o = malloc(offsetof(order, id) + len);
    if (!o)
        bench_die("out of memory for an order");
    memcpy(o->id, id, len);
    return o;
}

/* Under the lock. */
static inline void order_add(order *o)
{
    if (!idmap_insert(&orders, o->id))
        bench_die("an order with the id %s is already pending", o->id);
}

/* Under the lock: no longer in the map; NULL if it was not. */
static inline order *order_take(const char *id)
{
    char *found = idmap_remove(&orders, id);
    return found ? (order *)(void *)(found - offsetof(order, id)) : NULL;
}

#endif
