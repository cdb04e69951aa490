/* memory_look.c - copies of orders, and counts.
 *
 * Times are the store's clock; the engine turns them into UTC. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "stores/memory.h"

enum { STEPS = 1024 }; /* records looked at in one call of lp_memory_list */

static bool copy_strings(memory *m, order *o, const extra *x, lapse_info *out)
{
    out->id_len = o->node.id_len;
    out->id = strdup(lp_memory_id(o));
    out->queue = strdup(lp_memory_queue_of(m, o)->shared.name);
    if (x && x->payload_len) {
        out->payload = malloc(x->payload_len);
        if (!out->payload)
            return false;
        memcpy(out->payload, x->payload, x->payload_len);
        out->payload_len = x->payload_len;
    }
    if (x && x->error) {
        out->error = strdup(x->error);
        if (!out->error)
            return false;
    }
    return out->id && out->queue;
}

static lapse_state public_state(const order *o)
{
    switch (lp_memory_state(o)) {
    case RUNNING:
        return LAPSE_STATE_RUNNING;
    case KEPT:
        return LAPSE_STATE_DONE;
    case DEAD:
        return LAPSE_STATE_DEAD;
    default:
        return LAPSE_STATE_PENDING;
    }
}

int lp_memory_look(memory *m, order *o, lapse_info *out, lapse_ns now)
{
    const extra *x = lp_memory_state(o) == RUNNING ? o->a.claim->kept : lp_memory_extra(o);
    *out = (lapse_info){
        .state = public_state(o),
        .due = lp_memory_state(o) == RUNNING ? o->a.claim->due : lp_memory_due(o),
        .generation = o->generation,
        .attempt = o->attempt,
        .reason = o->reason,
    };
    if (out->state == LAPSE_STATE_PENDING && o->node.due > now)
        out->remaining = o->node.due - now;
    if (out->state == LAPSE_STATE_DONE)
        out->ended = o->a.ended;
    if (out->state == LAPSE_STATE_DEAD)
        out->ended = x ? x->ended : LP_UNKNOWN_TIME;
    if (copy_strings(m, o, x, out))
        return LAPSE_OK;
    lapse_info_free(out);
    return lp_fail_memory();
}

static bool is_over(const memory *m, const order *o, lapse_ns now)
{
    return lp_memory_state(o) == KEPT && now - o->a.ended > m->config.keep;
}

int64_t lp_memory_get(memory *m, lp_request *r, lapse_ns now)
{
    uint32_t index = lp_memory_find(m, lp_memory_hash_of(m, r), r->id, r->id_len);
    if (index == LP_NONE || is_over(m, lp_memory_at(m, index), now))
        return lp_fail(LAPSE_EUNKNOWN, "no order %s is known", lp_text_quote(r->id, r->id_len));
    return lp_memory_look(m, lp_memory_at(m, index), r->info, now);
}

/* Whether a walk shows this record: a lost claim's has gone over to another. */
static bool is_shown(const memory *m, const order *o, unsigned states, lapse_ns now)
{
    if (lp_memory_state(o) == RUNNING && o->a.claim->lost)
        return false;
    return (public_state(o) & states) && !is_over(m, o, now);
}

int lp_memory_list(lp_store *store, uint64_t *cursor, unsigned states, lapse_info *out, int max,
                   lapse_ns now)
{
    memory *m = (memory *)store;
    uint32_t limit = lp_pool_limit(&m->pool);
    int n = 0;
    for (int step = 0; step < STEPS && n < max && *cursor < limit; step++) {
        order *o = lp_pool_peek(&m->pool, (uint32_t)(*cursor)++);
        if (!o || !is_shown(m, o, states, now))
            continue;
        if (lp_memory_look(m, o, &out[n], now) < 0) {
            while (n)
                lapse_info_free(&out[--n]);
            return LAPSE_ENOMEM;
        }
        n++;
    }
    if (*cursor >= limit)
        *cursor = UINT64_MAX;
    return n;
}

static lapse_ns earliest(const memory *m, uint32_t index, lapse_ns than)
{
    if (index == LP_NONE || lp_memory_at(m, index)->node.due > than)
        return than;
    return lp_memory_at(m, index)->node.due;
}

static lapse_ns oldest_due(memory *m)
{
    lapse_ns oldest = earliest(m, lp_memory_first_ready(m), LAPSE_FOREVER);
    for (size_t i = 0; i < m->queue_count; i++) {
        oldest = earliest(m, m->queues[i]->due.head, oldest);
        oldest = earliest(m, m->queues[i]->parked.head, oldest);
    }
    for (int side = 0; side < 2; side++)
        if (m->timer[side] && lp_timer_next(m->timer[side]) < oldest)
            oldest = lp_timer_next(m->timer[side]);
    return oldest;
}

int lp_memory_count_queue(lp_store *store, lp_queue *wanted, lp_counts *out)
{
    const memory *m = (const memory *)store;
    const queue *q = (const queue *)wanted;
    *out = (lp_counts){
        .pending = wanted->pending,
        .running = wanted->running,
        .dead = wanted->dead,
        .oldest_due = earliest(m, q->parked.head, earliest(m, q->due.head, LAPSE_FOREVER)),
    };
    return LAPSE_OK;
}

int lp_memory_count(lp_store *store, lp_counts *out)
{
    memory *m = (memory *)store;
    *out = m->counts;
    out->oldest_due = oldest_due(m);
    out->bytes = lp_pool_bytes(&m->pool) + lp_index_bytes(&m->index) + m->extra_bytes +
                 lp_memory_links_bytes(m);
    for (int side = 0; side < 2; side++)
        if (m->timer[side])
            out->bytes += lp_timer_bytes(m->timer[side]);
    return LAPSE_OK;
}
