/* memory_claim.c - from due to claimed, and what a claim ends in. */
#include "base/error.h"
#include "stores/memory.h"

/* -- Due orders -- */

static void reach(memory *m, lapse_ns now)
{
    if (now > m->expired_to)
        m->expired_to = now;
}

/* Move due orders with a callback from the timer to the ready ring, which is empty. */
static void refill(memory *m, lapse_ns until)
{
    m->ready_at = 0;
    m->ready_end = (unsigned)lp_timer_expire(m->timer[LP_PUSH], until, m->ready, READY);
    for (unsigned i = 0; i < m->ready_end; i++) {
        order *o = lp_memory_at(m, m->ready[i]);
        lp_memory_set_state(o, DUE);
        lp_index_prefetch(&m->index, lp_memory_hash(m, o));
    }
}

static void park(memory *m, uint32_t index)
{
    order *o = lp_memory_at(m, index);
    o->node.state |= PARKED;
    lp_memory_append(m, &lp_memory_queue_of(m, o)->parked, index);
}

uint32_t lp_memory_first_ready(memory *m)
{
    for (; m->ready_at < m->ready_end; m->ready_at++) {
        uint32_t index = m->ready[m->ready_at];
        if (index == LP_NONE)
            continue;
        if (!m->parks || !lp_memory_queue_of(m, lp_memory_at(m, index))->shared.paused)
            return index;
        park(m, index);
    }
    return LP_NONE;
}

bool lp_memory_announce(lp_store *store, lapse_ns now)
{
    memory *m = (memory *)store;
    if (!m->timer[LP_PULL] || lp_timer_next(m->timer[LP_PULL]) > now)
        return false;
    uint32_t due[READY];
    size_t n = lp_timer_expire(m->timer[LP_PULL], now, due, READY);
    for (size_t i = 0; i < n; i++) {
        order *o = lp_memory_at(m, due[i]);
        lp_memory_set_state(o, DUE);
        lp_memory_append(m, &lp_memory_queue_of(m, o)->due, due[i]);
    }
    reach(m, now);
    lp_memory_note_moved(m);
    return n > 0;
}

/* A due time as the timer tells them apart. */
static lapse_ns resolved(const memory *m, lapse_ns due)
{
    if (m->timer_config.kind == LP_HEAP)
        return due;
    lapse_ns tick = m->timer_config.tick;
    return due / tick + (due % tick > 0);
}

static bool earlier(const memory *m, uint32_t a, uint32_t b)
{
    const order *x = lp_memory_at(m, a), *y = lp_memory_at(m, b);
    lapse_ns x_due = resolved(m, x->node.due), y_due = resolved(m, y->node.due);
    return x_due != y_due ? x_due < y_due : x->generation < y->generation;
}

/* Take `index` for *best if it is the earlier of the two. */
static bool improve(const memory *m, uint32_t index, uint32_t *best)
{
    if (index == LP_NONE || (*best != LP_NONE && !earlier(m, index, *best)))
        return false;
    *best = index;
    return true;
}

/* Whether a queue that was handled or paused is so no more. */
static bool is_plain(const queue *q)
{
    return !q->shared.handler && !q->shared.paused && q->parked.head == LP_NONE;
}

/* The first order that was due by `until` and may start a callback now; *from is the
 * handled queue it comes from, or NULL. */
static uint32_t first_push(memory *m, lapse_ns until, lapse_ns now, queue **from)
{
    uint32_t best = lp_memory_first_ready(m);
    *from = NULL;
    for (size_t i = 0; i < m->active_count; i++) {
        queue *q = m->active[i];
        if (is_plain(q)) {
            q->listed = false;
            m->active[i--] = m->active[--m->active_count];
            continue;
        }
        if (!q->shared.paused && improve(m, q->parked.head, &best))
            *from = NULL;
        if (q->due.head != LP_NONE && lp_queue_open(&q->shared, now) &&
            improve(m, q->due.head, &best))
            *from = q;
    }
    if (best != LP_NONE && lp_memory_at(m, best)->node.due > until)
        return LP_NONE;
    if (!*from)
        return best;
    bool newest = lp_queue_newest_first(&(*from)->shared, now - lp_memory_at(m, best)->node.due);
    uint32_t last = (*from)->due.tail;
    return newest && lp_memory_at(m, last)->node.due <= until ? last : best;
}

/* The first order that waits for a taker. */
static uint32_t first_pull(memory *m, queue *from)
{
    if (from)
        return from->shared.paused ? LP_NONE : from->due.head;
    uint32_t best = LP_NONE;
    for (size_t i = 0; i < m->queue_count; i++)
        if (!m->queues[i]->shared.handler && !m->queues[i]->shared.paused)
            improve(m, m->queues[i]->due.head, &best);
    return best;
}

bool lp_memory_waits(lp_store *store)
{
    return first_pull((memory *)store, NULL) != LP_NONE;
}

static uint32_t first_due(memory *m, lp_side side, queue *wanted, lapse_ns until, lapse_ns now,
                          queue **from)
{
    *from = NULL;
    return side == LP_PUSH ? first_push(m, until, now, from) : first_pull(m, wanted);
}

static bool timer_is_due(memory *m, lp_side side, lapse_ns until)
{
    return m->timer[side] && lp_timer_next(m->timer[side]) <= until;
}

/* The same after a bounded amount of work on the timer, if that is needed to know;
 * LP_NONE with *more set when that has found none yet. */
static uint32_t find_due(memory *m, lp_side side, queue *wanted, lapse_ns until, lapse_ns now,
                         queue **from, bool *more)
{
    *more = false;
    bool drained = side == LP_PULL || lp_memory_first_ready(m) == LP_NONE;
    if (drained && timer_is_due(m, side, until)) {
        if (side == LP_PUSH)
            refill(m, until);
        else
            lp_memory_announce(&m->base, until);
    }
    uint32_t index = first_due(m, side, wanted, until, now, from);
    *more = index == LP_NONE && timer_is_due(m, side, until);
    return index;
}

/* -- Claims -- */

static int64_t next_fence(memory *m, lapse_ns now)
{
    int64_t clock = (now + m->wall_offset) / 1000;
    m->last_fence = clock > m->last_fence ? clock : m->last_fence + 1;
    return m->last_fence;
}

/* Show an order to its consumer. */
static void fill_claim(memory *m, lp_claim *claim, uint32_t index, lapse_ns now)
{
    order *o = lp_memory_at(m, index);
    extra *x = lp_memory_extra(o);
    bool plain = !x && !(o->node.state & PULL);
    claim->record = index;
    claim->superseded = false;
    claim->lost = false;
    claim->kept = x;
    claim->due = lp_memory_due(o);
    claim->queue = &lp_memory_queue_of(m, o)->shared;
    claim->fn = x ? x->fn : plain ? o->a.fn : NULL;
    claim->arg = x ? x->arg : plain ? o->b.arg : NULL;
    claim->order = (lapse_order){
        .id = lp_memory_id(o),
        .id_len = o->node.id_len,
        .queue = claim->queue->name,
        .payload = x && x->payload_len ? x->payload : NULL,
        .payload_len = x ? x->payload_len : 0,
        .fence = next_fence(m, now),
        .generation = o->generation,
        .attempt = o->attempt,
    };
}

static void start_running(memory *m, uint32_t index, lp_claim *claim, lapse_ns now)
{
    order *o = lp_memory_at(m, index);
    lp_memory_stop_waiting(m, index);
    if (o->attempt < ATTEMPT_MAX)
        o->attempt++;
    fill_claim(m, claim, index, now);
    lp_memory_set_state(o, RUNNING);
    o->a.claim = claim;
    m->counts.running++;
    m->running[lp_memory_side(o)]++;
    m->called += claim->called;
    claim->queue->running++;
}

int lp_memory_claim(lp_store *store, lp_side side, lp_queue *from, lapse_ns until, lapse_ns now,
                    lp_claim *claim)
{
    memory *m = (memory *)store;
    if (side == LP_PUSH)
        reach(m, until);
    bool more;
    queue *handled;
    uint32_t index = find_due(m, side, (queue *)from, until, now, &handled, &more);
    lp_memory_note_moved(m);
    if (index == LP_NONE)
        return more ? LP_CLAIM_MORE : LP_CLAIM_NONE;
    if (lp_memory_make_room(m, lp_memory_side(lp_memory_at(m, index))) < 0)
        return LAPSE_ENOMEM;
    if (handled)
        lp_queue_spend(&handled->shared);
    claim->called = side == LP_PUSH;
    start_running(m, index, claim, now);
    return LP_CLAIM_ONE;
}

lapse_ns lp_memory_next(lp_store *store, lp_side side)
{
    memory *m = (memory *)store;
    lapse_ns next = m->timer[side] ? lp_timer_next(m->timer[side]) : LAPSE_FOREVER;
    if (side == LP_PULL)
        return next;
    if (lp_memory_first_ready(m) != LP_NONE)
        return 0;
    for (size_t i = 0; i < m->active_count; i++) {
        const queue *q = m->active[i];
        if (!q->shared.paused && q->parked.head != LP_NONE)
            return 0;
        lapse_ns opens = q->due.head == LP_NONE ? LAPSE_FOREVER : lp_queue_opens_at(&q->shared);
        if (opens < next)
            next = opens;
    }
    return next;
}

/* -- Ends of a claim -- */

static void stop_running(memory *m, const lp_claim *claim)
{
    m->counts.running--;
    m->running[lp_memory_side(lp_memory_at(m, claim->record))]--;
    m->called -= claim->called;
    claim->queue->running--;
}

/* The order of a claim, which no longer runs; its record is as before the claim. */
static order *unclaim(memory *m, const lp_claim *claim)
{
    order *o = lp_memory_at(m, claim->record);
    if (claim->kept)
        o->a.extra = claim->kept;
    else
        o->a.fn = claim->fn;
    o->b.arg = claim->kept ? NULL : claim->arg;
    if (!claim->lost)
        stop_running(m, claim);
    return o;
}

int64_t lp_memory_end_claim(memory *m, lp_request *r, lapse_ns now)
{
    order *o = unclaim(m, r->claim);
    o->node.due = r->claim->due; /* As it was before it was given back. */
    lp_memory_leave_extra(m, r, lp_memory_extra(o), r->claim->fn, r->claim->arg);
    o->node.state &= (uint8_t)~EXTRA;
    lp_memory_end(m, r->claim->record, now);
    return LAPSE_OK;
}

/* A taken order that is given back stands where it stood: before those due later. */
static void wait_in_place(memory *m, uint32_t index, lapse_ns due)
{
    order *o = lp_memory_at(m, index);
    list *l = &lp_memory_queue_of(m, o)->due;
    lp_memory_start_waiting(m, index, due);
    lp_timer_remove(m->timer[LP_PULL], index);
    o->node.due = due;
    lp_memory_set_state(o, DUE);
    uint32_t before = l->head;
    while (before != LP_NONE && earlier(m, before, index))
        before = lp_memory_at(m, before)->b.link.next;
    lp_memory_insert(m, l, index, before);
}

/* Its lateness goes on counting from when it was due, if there is memory to note it. */
static void remember_due(memory *m, order *o, const lp_claim *claim)
{
    extra *x = lp_memory_extra(o);
    if (!x && (x = lp_memory_add_extra(m, claim->fn, claim->arg))) {
        o->a.extra = x;
        o->node.state |= EXTRA;
    }
    if (x)
        x->first_due = claim->due;
}

int64_t lp_memory_again(memory *m, lp_request *r)
{
    const lp_claim *claim = r->claim;
    lapse_ns due = r->due;
    if (claim->called && due <= m->expired_to)
        due = m->expired_to + 1; /* Not in the pass that it was called back in. */
    order *o = unclaim(m, claim);
    extra *x = lp_memory_extra(o);
    if (x)
        x->first_due = LP_UNKNOWN_TIME;
    if (!r->counted && o->attempt)
        o->attempt--;
    if (!r->counted && claim->called)
        remember_due(m, o, claim);
    if (r->counted || claim->called)
        lp_memory_start_waiting(m, claim->record, due);
    else
        wait_in_place(m, claim->record, due);
    return LAPSE_OK;
}

int64_t lp_memory_die_claim(memory *m, lp_request *r, lapse_ns now)
{
    order *o = unclaim(m, r->claim);
    if (!r->counted && o->attempt)
        o->attempt--;
    lp_memory_die(m, r, r->claim->record, r->claim->kept, r->claim->fn, r->claim->arg, now);
    return LAPSE_OK;
}

/* A second record for an order whose claim is lost; the first goes on holding what the
 * consumer looks at. LP_NONE without memory. */
static uint32_t double_order(memory *m, const lp_claim *claim)
{
    extra *x = claim->kept;
    lapse_spec spec = {.id = NULL};
    if (x)
        spec = (lapse_spec){.payload = x->payload,
                            .payload_len = x->payload_len,
                            .arg = x->arg,
                            .release = x->release};
    order *o = lp_memory_at(m, claim->record);
    uint32_t index =
        lp_memory_make(m, claim->order.id, claim->order.id_len, &spec, lp_memory_queue_of(m, o));
    if (index == LP_NONE)
        return LP_NONE;
    order *twin = lp_memory_at(m, index);
    twin->generation = o->generation;
    twin->attempt = o->attempt;
    twin->node.due = claim->due;
    if (x) {
        x->arg = NULL; /* The twin's to release. */
        x->release = NULL;
    }
    return index;
}

static void rename_order(memory *m, uint32_t from, uint32_t to)
{
    order *o = lp_memory_at(m, from);
    o->node.state &= (uint8_t)~NAMED;
    if (to == LP_NONE) {
        lp_index_remove(&m->index, lp_memory_hash(m, o), from);
    } else {
        lp_index_replace(&m->index, lp_memory_hash(m, o), from, to);
        lp_memory_at(m, to)->node.state |= NAMED;
    }
}

int64_t lp_memory_lose(memory *m, lp_request *r, lapse_ns now)
{
    const lp_claim *claim = r->claim;
    uint32_t twin = LP_NONE;
    if (!r->ends) {
        int code = lp_memory_make_room(m, LP_PULL);
        if (code < 0)
            return code;
        twin = double_order(m, claim);
        if (twin == LP_NONE)
            return lp_fail_memory();
    }
    if (lp_memory_at(m, claim->record)->node.state & NAMED)
        rename_order(m, claim->record, twin);
    stop_running(m, claim);
    if (twin != LP_NONE && r->reason)
        lp_memory_die(m, r, twin, lp_memory_extra(lp_memory_at(m, twin)), NULL, NULL, now);
    else if (twin != LP_NONE)
        lp_memory_start_waiting(m, twin, r->due);
    return LAPSE_OK;
}
