/* rabbitmq_unrouted.c - what fell due for a queue that was not there comes back to it.
 *
 * P.deliver hands to P.unrouted what it has no queue for: somebody has deleted the queue of a
 * handler. Once a scheduler that uses the queue has declared it again, its orders are published
 * anew, and start late. What is for others is given back. */
#include <stdlib.h>

#include "base/clock.h"
#include "stores/rabbitmq.h"

static const lapse_ns AT_ONCE = LAPSE_SECONDS(1); /* of a turn, for this */

typedef struct round {
    const lp_turn *turn;
    char name[LP_RABBIT_NAME_MAX + 1];
    uint64_t *tags; /* of what is given back */
    size_t count;
    bool any; /* came back */
} round;

static bool is_used(const rabbit_store *d, const rabbit_message *m)
{
    const rabbit_queue *q = m->bad ? NULL : lp_rabbit_find_queue(d, m->order.queue);
    return q && q->is_declared;
}

/* Takes it over, unless it fails. */
static int send(rabbit_store *d, round *r, rabbit_message *m)
{
    rabbit_order o = m->order;
    o.reason = LAPSE_REASON_NONE; /* That it has waited is none. */
    o.error = NULL;
    if (!is_used(d, m))
        return lp_rabbit_send_to(d, "", r->name, &o, (rabbit_sent){.message = m});
    int code = lp_rabbit_send_order(d, r->turn, &o, (rabbit_sent){.message = m});
    r->any = r->any || code == LAPSE_OK;
    return code;
}

static int pass_on(rabbit_store *d, round *r, rabbit_message *m)
{
    bool moves =
        (is_used(d, m) || lp_rabbit_is_worn(m)) && !lp_rabbit_is_too_large(d, m->order.payload_len);
    int code = moves ? send(d, r, m) : LAPSE_OK;
    if (moves && code == LAPSE_OK)
        return code;
    r->tags[r->count++] = m->tag;
    lp_rabbit_free_message(m);
    return code;
}

static int look_through(rabbit_store *d, round *r, uint64_t there)
{
    lapse_ns until = lp_add_ns(lp_clock_monotonic(), AT_ONCE);
    int code = 1;
    while (code == 1 && there-- > 0) {
        rabbit_message *m;
        code = lp_rabbit_look(d, r->name, &m);
        if (code == 1 && pass_on(d, r, m) < 0)
            code = 0;
        if (code == 1 && lp_clock_monotonic() > until) {
            d->brings_back = r->any; /* Else it is all for others. */
            code = 0;
        }
    }
    lp_rabbit_flush(d);
    for (size_t i = 0; i < r->count; i++)
        (void)lp_rabbit_requeue(&d->in, LP_RABBIT_LOOK, r->tags[i], false);
    return code < 0 ? code : LAPSE_OK;
}

int lp_rabbit_bring_back(rabbit_store *d, const lp_turn *t)
{
    round r = {.turn = t};
    uint64_t there;
    if (!d->brings_back || !d->in.connection || lp_clock_monotonic() < d->bring_back_at)
        return LAPSE_OK;
    d->brings_back = false;
    lp_rabbit_name(r.name, d->settings.prefix, "unrouted");
    int code = lp_rabbit_count(&d->in, LP_RABBIT_DECLARE, r.name, &there);
    if (code < 0 || there == 0)
        return code;
    r.tags = malloc((size_t)there * sizeof *r.tags);
    if (!r.tags)
        return LAPSE_ENOMEM;
    code = look_through(d, &r, there);
    free(r.tags);
    return code;
}
