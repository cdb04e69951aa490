/* memory_change.c - schedule, cancel, reschedule; requeue and purge of dead letters.
 *
 * Each first does what can fail and then what cannot, so that an error leaves
 * everything as it was. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "stores/memory.h"

/* The newest order of a request's id, or LP_NONE. */
static uint32_t find(const memory *m, const lp_request *r)
{
    return lp_memory_find(m, lp_memory_hash_of(m, r), r->id, r->id_len);
}

static bool waits(const order *o)
{
    return lp_memory_state(o) == PENDING || lp_memory_state(o) == DUE;
}

/* -- Schedule -- */

static int exists(const lp_request *r, const char *how)
{
    return lp_fail(LAPSE_EEXISTS, "order %s is %s already: cancel it, reschedule it, or replace it",
                   lp_text_quote(r->id, r->id_len), how);
}

static int full(const memory *m)
{
    return lp_fail(LAPSE_EFULL,
                   "%llu orders are pending, which is max_pending: cancel some or raise it",
                   (unsigned long long)m->config.max_pending);
}

static bool is_full(const memory *m)
{
    return m->config.max_pending && m->counts.pending + m->counts.running >= m->config.max_pending;
}

/* Whether there is or can be made room for one more. */
static bool has_room(const memory *m)
{
    return !is_full(m) || m->oldest.head != LP_NONE;
}

/* Whether a new order may be accepted beside `old`, the newest of its id. */
static int may_accept(const memory *m, const lp_request *r, uint32_t old)
{
    bool waiting = old != LP_NONE && waits(lp_memory_at(m, old));
    if (waiting && !(r->spec->flags & LAPSE_REPLACE))
        return exists(r, "pending");
    return waiting || has_room(m) ? LAPSE_OK : full(m);
}

/* The newest of an id gives its name to another; what becomes of it. */
static void give_way(memory *m, lp_request *r, uint32_t old)
{
    order *o = lp_memory_at(m, old);
    o->node.state &= (uint8_t)~NAMED;
    switch (lp_memory_state(o)) {
    case PENDING:
    case DUE:
        lp_memory_stop_waiting(m, old);
        lp_memory_leave_order(m, r, o);
        lp_memory_bury(m, old);
        r->replaced = true;
        break;
    case RUNNING:
        o->a.claim->superseded = true;
        break;
    case KEPT:
        lp_memory_unlink(m, &m->kept, old);
        m->counts.kept--;
        lp_memory_bury(m, old);
        break;
    default: /* DEAD: stays in its list, without a name */
        break;
    }
}

static void kill_oldest(memory *m, lp_request *r, lapse_ns now)
{
    uint32_t index = m->oldest.head;
    order *o = lp_memory_at(m, index);
    bool plain = !(o->node.state & (EXTRA | PULL));
    lp_memory_stop_waiting(m, index);
    r->reason = LAPSE_REASON_MAXLEN;
    lp_memory_die(m, r, index, lp_memory_extra(o), plain ? o->a.fn : NULL, plain ? o->b.arg : NULL,
                  now);
}

/* An order gets its number and begins to wait; nothing can fail any more. */
static int64_t accept_order(memory *m, lp_request *r, uint32_t index, lapse_ns now)
{
    if (is_full(m))
        kill_oldest(m, r, now);
    order *o = lp_memory_at(m, index);
    o->generation = ++m->last_generation;
    o->node.state |= NAMED;
    lp_memory_start_waiting(m, index, r->due);
    return o->generation;
}

/* The queue of a request, and a record that waits for its name; *index is LP_NONE with an
 * error. */
static int make_order(memory *m, const lp_request *r, queue **q, uint32_t *index)
{
    int code = LAPSE_OK;
    *index = LP_NONE;
    *q = m->queues[0];
    if (r->spec->queue && *r->spec->queue)
        code = lp_memory_make_queue(m, r->spec->queue, q);
    if (code == LAPSE_OK)
        code = lp_memory_make_room(m, r->spec->fn ? LP_PUSH : LP_PULL);
    if (code == LAPSE_OK)
        *index = lp_memory_make(m, r->id, r->id_len, r->spec, *q);
    return code == LAPSE_OK && *index == LP_NONE ? lp_fail_memory() : code;
}

/* Undo it for an order that is refused; there were `queues` before. */
static void unmake_order(memory *m, queue *q, uint32_t index, size_t queues)
{
    if (index != LP_NONE)
        lp_memory_unmake(m, index);
    if (m->queue_count > queues)
        lp_memory_forget_queue(m, q);
}

/* The record is made while the memory of the index is on its way, before it is known whether the
 * order is accepted. */
int64_t lp_memory_schedule(memory *m, lp_request *r, uint64_t hash, lapse_ns now)
{
    lp_index_prefetch(&m->index, hash);
    queue *q;
    uint32_t index;
    size_t queues = m->queue_count;
    int made = make_order(m, r, &q, &index);
    lp_index_place place;
    uint32_t old = lp_memory_search(m, hash, r->id, r->id_len, &place);
    int code = may_accept(m, r, old);
    if (code == LAPSE_OK && made < 0)
        code = made;
    if (code == LAPSE_OK && old == LP_NONE && lp_index_add_at(&m->index, hash, index, place) < 0)
        code = lp_fail_memory();
    if (code < 0) {
        unmake_order(m, q, index, queues);
        return code;
    }
    if (old != LP_NONE) {
        lp_index_replace(&m->index, hash, old, index);
        give_way(m, r, old);
    }
    return accept_order(m, r, index, now);
}

/* -- Cancel, reschedule -- */

/* The fate of an order that has ended. */
static int64_t ended_fate(const memory *m, const order *o, lapse_ns now)
{
    const extra *x = lp_memory_extra(o);
    lapse_ns ended = lp_memory_state(o) == KEPT ? o->a.ended : x ? x->ended : o->node.due;
    return m->config.keep && now - ended <= m->config.keep ? LAPSE_FATE_DONE : LAPSE_FATE_UNKNOWN;
}

/* The order that a request names and its place in the index, or NULL. */
static order *named(memory *m, const lp_request *r, uint64_t hash, uint32_t *index,
                    lp_index_place *place)
{
    *index = lp_memory_search(m, hash, r->id, r->id_len, place);
    if (*index == LP_NONE)
        return NULL;
    order *o = lp_memory_at(m, *index);
    return r->generation == LAPSE_ANY || r->generation == o->generation ? o : NULL;
}

int64_t lp_memory_cancel(memory *m, lp_request *r, uint64_t hash, lapse_ns now)
{
    uint32_t index;
    lp_index_place place;
    order *o = named(m, r, hash, &index, &place);
    if (!o)
        return LAPSE_FATE_UNKNOWN;
    if (lp_memory_state(o) == RUNNING) {
        r->claim = o->a.claim;
        return LAPSE_FATE_RUNNING;
    }
    if (!waits(o))
        return ended_fate(m, o, now);
    if (!m->config.keep) { /* It goes from the index without another search. */
        lp_index_remove_at(&m->index, place);
        o->node.state &= (uint8_t)~NAMED;
    }
    lp_memory_queue_of(m, o)->shared.cancelled++;
    lp_memory_stop_waiting(m, index);
    o->node.due = lp_memory_due(o);
    lp_memory_leave_order(m, r, o);
    lp_memory_end(m, index, now);
    return LAPSE_FATE_CANCELLED;
}

int64_t lp_memory_reschedule(memory *m, lp_request *r, uint64_t hash, lapse_ns now)
{
    uint32_t index;
    lp_index_place place;
    order *o = named(m, r, hash, &index, &place);
    if (!o)
        return LAPSE_FATE_UNKNOWN;
    if (lp_memory_state(o) == RUNNING)
        return LAPSE_FATE_RUNNING;
    if (!waits(o))
        return ended_fate(m, o, now);
    int code = lp_memory_make_room(m, lp_memory_side(o));
    if (code < 0)
        return code;
    lp_memory_stop_waiting(m, index);
    if (lp_memory_extra(o))
        lp_memory_extra(o)->first_due = LP_UNKNOWN_TIME;
    lp_memory_start_waiting(m, index, r->due);
    return LAPSE_FATE_RESCHEDULED;
}

/* -- Dead letters -- */

/* Whether a request that names no generation, or this one, means this dead letter. */
static bool means(memory *m, const lp_request *r, uint32_t index)
{
    order *o = lp_memory_at(m, index);
    if (r->generation != LAPSE_ANY && r->generation != o->generation)
        return false;
    return !r->id ||
           (o->node.id_len == r->id_len && memcmp(lp_memory_id(o), r->id, r->id_len) == 0);
}

/* The newest dead letter that a request means, or LP_NONE. */
static uint32_t find_dead(memory *m, const lp_request *r)
{
    uint32_t index = r->id ? find(m, r) : LP_NONE;
    if (index != LP_NONE && lp_memory_state(lp_memory_at(m, index)) == DEAD && means(m, r, index))
        return index;
    for (index = m->dead.tail; index != LP_NONE; index = lp_memory_at(m, index)->b.link.prev)
        if (means(m, r, index))
            return index;
    return LP_NONE;
}

static void leave_dead(memory *m, uint32_t index)
{
    lp_memory_unlink(m, &m->dead, index);
    m->counts.dead--;
    lp_memory_queue_of(m, lp_memory_at(m, index))->shared.dead--;
}

/* A dead letter's record is what a new order of its id would get. */
static void revive(memory *m, uint32_t index)
{
    order *o = lp_memory_at(m, index);
    extra *x = lp_memory_extra(o);
    leave_dead(m, index);
    o->reason = 0;
    o->attempt = 0;
    o->b.arg = NULL;
    if (x) {
        free(x->error);
        x->error = NULL;
        x->first_due = LP_UNKNOWN_TIME;
    }
}

static int may_revive(const memory *m, const lp_request *r, uint32_t newest, const order *o)
{
    int state = newest == LP_NONE ? FREE : lp_memory_state(lp_memory_at(m, newest));
    if (state == PENDING || state == DUE)
        return exists(r, "pending");
    if (state == RUNNING)
        return exists(r, "running");
    if (!(o->node.state & (EXTRA | PULL)))
        return lp_fail(LAPSE_EUNSUPPORTED, "the callback of %s was let go when memory ran out",
                       lp_text_quote(r->id, r->id_len));
    return has_room(m) ? LAPSE_OK : full(m);
}

int64_t lp_memory_requeue(memory *m, lp_request *r, lapse_ns now)
{
    uint32_t index = find_dead(m, r);
    if (index == LP_NONE)
        return lp_fail(LAPSE_EUNKNOWN, "there is no dead letter %s",
                       lp_text_quote(r->id, r->id_len));
    order *o = lp_memory_at(m, index);
    uint32_t newest = find(m, r);
    int64_t code = may_revive(m, r, newest, o);
    if (code == LAPSE_OK)
        code = lp_memory_make_room(m, lp_memory_side(o));
    if (code < 0)
        return code;
    uint64_t hash = lp_memory_hash(m, o);
    if (newest == LP_NONE && lp_index_add(&m->index, hash, index) < 0)
        return lp_fail_memory();
    if (newest != LP_NONE && newest != index) {
        lp_index_replace(&m->index, hash, newest, index);
        give_way(m, r, newest);
    }
    revive(m, index);
    return accept_order(m, r, index, now);
}

int64_t lp_memory_purge(memory *m, lp_request *r)
{
    int64_t purged = 0;
    for (; purged < LP_REMAINS_MAX; purged++) {
        uint32_t index = r->id ? find_dead(m, r) : m->dead.head;
        if (index == LP_NONE)
            break;
        leave_dead(m, index);
        lp_memory_leave_order(m, r, lp_memory_at(m, index));
        lp_memory_bury(m, index);
    }
    return purged;
}
