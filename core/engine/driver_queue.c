/* driver_queue.c - the queues that the driver knows, by number and by name.
 *
 * A queue is made once, under the lock, and lives as long as the driver. */
#include <stdlib.h>
#include <string.h>

#include "engine/driver_parts.h"

static bool grow_queues(lp_driver *d)
{
    if (d->queue_count < d->queue_room)
        return true;
    size_t room = d->queue_room ? 2 * d->queue_room : 16;
    lp_queue **more = realloc(d->queues, room * sizeof *more);
    if (!more)
        return false;
    d->queues = more;
    more = realloc(d->by_name, room * sizeof *more);
    if (!more)
        return false;
    d->by_name = more;
    d->queue_room = room;
    return true;
}

/* Where a name stands, or would stand, in `by_name`. */
static size_t place_of(const lp_driver *d, const char *name)
{
    size_t lo = 0, hi = d->queue_count;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (strcmp(d->by_name[mid]->name, name) < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

lp_queue *lp_driver_find_queue(const lp_driver *d, const char *name)
{
    size_t place = place_of(d, name);
    bool found = place < d->queue_count && strcmp(d->by_name[place]->name, name) == 0;
    return found ? d->by_name[place] : NULL;
}

static lp_queue *new_queue(lp_driver *d, const char *name)
{
    enum { MEASURED = 256 }; /* queues that have a histogram */
    if (!grow_queues(d))
        return NULL;
    lp_queue *q = calloc(1, sizeof *q);
    if (!q || !(q->name = strdup(name))) {
        free(q);
        return NULL;
    }
    if (d->queue_count < MEASURED)
        q->lateness = calloc(1, sizeof *q->lateness);
    size_t place = place_of(d, name);
    memmove(d->by_name + place + 1, d->by_name + place,
            (d->queue_count - place) * sizeof *d->by_name);
    d->by_name[place] = q;
    d->queues[d->queue_count++] = q;
    return q;
}

lp_queue *lp_driver_queue(lp_driver *d, const char *name)
{
    lp_queue *q = lp_driver_find_queue(d, name);
    return q ? q : new_queue(d, name);
}

void lp_driver_free_queues(lp_driver *d)
{
    for (size_t i = 0; i < d->queue_count; i++) {
        free(d->queues[i]->lateness);
        free(d->queues[i]->name);
        free(d->queues[i]);
    }
    free(d->queues);
    free(d->by_name);
}
