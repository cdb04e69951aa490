/* memory_order.c - an order's record and the places it can be in.
 *
 * All that moves an order from one place to another is here; when and why is not. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "stores/memory.h"

enum { QUEUES_MAX = 65535, MEASURED_QUEUES = 256 };

/* -- Ids -- */

char *lp_memory_id(order *o)
{
    if (o->node.id_len <= INLINE_ID)
        return o->id;
    char *id;
    memcpy(&id, o->id, sizeof id);
    return id;
}

static bool set_id(order *o, const char *id, size_t len)
{
    char *to = o->id;
    if (len > INLINE_ID) {
        to = malloc(len + 1);
        if (!to)
            return false;
        memcpy(o->id, &to, sizeof to);
    }
    memcpy(to, id, len);
    to[len] = '\0';
    o->node.id_len = (uint8_t)len;
    return true;
}

static void free_id(order *o)
{
    if (o->node.id_len > INLINE_ID)
        free(lp_memory_id(o));
}

uint64_t lp_memory_hash(const memory *m, order *o)
{
    return lp_hash(lp_memory_id(o), o->node.id_len, m->seed);
}

typedef struct key {
    const memory *m;
    const char *id;
    size_t len;
} key;

static bool same_id(const void *k, uint32_t index)
{
    const key *wanted = k;
    order *o = lp_memory_at(wanted->m, index);
    return o->node.id_len == wanted->len && memcmp(lp_memory_id(o), wanted->id, wanted->len) == 0;
}

uint32_t lp_memory_search(const memory *m, uint64_t hash, const char *id, size_t len,
                          lp_index_place *place)
{
    key wanted = {m, id, len};
    return lp_index_search(&m->index, hash, same_id, &wanted, place);
}

uint32_t lp_memory_find(const memory *m, uint64_t hash, const char *id, size_t len)
{
    lp_index_place place;
    return lp_memory_search(m, hash, id, len, &place);
}

/* -- Queues -- */

static bool same_name(const void *k, uint32_t number)
{
    const key *wanted = k;
    return strcmp(wanted->m->queues[number]->shared.name, wanted->id) == 0;
}

queue *lp_memory_find_queue(const memory *m, const char *name)
{
    if (!name || !*name)
        return m->queues[0];
    size_t len = strlen(name);
    key wanted = {m, name, len};
    uint32_t number =
        lp_index_find(&m->queue_index, lp_hash(name, len, m->seed), same_name, &wanted);
    return number == LP_NONE ? NULL : m->queues[number];
}

static bool grow_queues(memory *m)
{
    if (m->queue_count < m->queue_room)
        return true;
    size_t room = m->queue_room ? 2 * m->queue_room : 4;
    queue **queues = realloc(m->queues, room * sizeof *queues);
    if (queues)
        m->queues = queues;
    queue **active = realloc(m->active, room * sizeof *active);
    if (active)
        m->active = active;
    if (!queues || !active)
        return false;
    m->queue_room = room;
    return true;
}

static queue *new_queue(memory *m, const char *name)
{
    queue *q = calloc(1, sizeof *q);
    if (!q)
        return NULL;
    q->shared.name = strdup(name);
    if (m->queue_count < MEASURED_QUEUES)
        q->shared.lateness = calloc(1, sizeof *q->shared.lateness);
    if (!q->shared.name || (m->queue_count < MEASURED_QUEUES && !q->shared.lateness) ||
        lp_index_add(&m->queue_index, lp_hash(name, strlen(name), m->seed),
                     (uint32_t)m->queue_count) < 0) {
        free(q->shared.name);
        free(q->shared.lateness);
        free(q);
        return NULL;
    }
    q->number = (uint16_t)m->queue_count;
    q->due = (list){LP_NONE, LP_NONE, NULL};
    q->parked = (list){LP_NONE, LP_NONE, &m->parked};
    return q;
}

int lp_memory_make_queue(memory *m, const char *name, queue **out)
{
    if (m->found && name && strcmp(m->found->shared.name, name) == 0) {
        *out = m->found;
        return LAPSE_OK;
    }
    *out = m->queue_count ? lp_memory_find_queue(m, name) : NULL;
    if (*out) {
        m->found = *out;
        return LAPSE_OK;
    }
    if (m->queue_count == QUEUES_MAX)
        return lp_fail(LAPSE_EINVAL, "this scheduler has %d queues already: use fewer names",
                       QUEUES_MAX);
    *out = grow_queues(m) ? new_queue(m, name) : NULL;
    if (!*out)
        return lp_fail_memory();
    m->queues[m->queue_count++] = *out;
    return LAPSE_OK;
}

static void free_queue(queue *q)
{
    free(q->shared.name);
    free(q->shared.lateness);
    free(q);
}

void lp_memory_forget_queue(memory *m, queue *q)
{
    const lp_queue *s = &q->shared;
    bool used = q->listed || s->taken || s->pending || s->running || s->started || s->cancelled ||
                s->dead_total;
    if (used || q->number == 0 || q->number + 1u != m->queue_count)
        return;
    lp_index_remove(&m->queue_index, lp_hash(s->name, strlen(s->name), m->seed), q->number);
    m->queue_count--;
    if (m->found == q)
        m->found = NULL;
    free_queue(q);
}

void lp_memory_free_queues(memory *m)
{
    for (size_t i = 0; i < m->queue_count; i++)
        free_queue(m->queues[i]);
    free(m->queues);
    free(m->active);
    lp_index_free(&m->queue_index);
}

/* -- Links beside the records -- */

/* In blocks, so that a table has room for 2^30. */
enum { LINKS_BLOCK = 256 };
static const size_t LINKS_BYTES = LINKS_BLOCK * sizeof(links);

static links *links_in(const lp_paged *table, uint32_t index)
{
    links *block = lp_paged_at(table, index / LINKS_BLOCK, LINKS_BYTES);
    return block + index % LINKS_BLOCK;
}

static int reserve_links(lp_paged *table, size_t count)
{
    return lp_paged_reserve(table, (count + LINKS_BLOCK - 1) / LINKS_BLOCK, LINKS_BYTES);
}

size_t lp_memory_links_bytes(const memory *m)
{
    /* Of its last leaf a table has touched what the records need. */
    size_t each = lp_pool_limit(&m->pool) * sizeof(links);
    return (m->accepted.leaves ? each : 0) + (m->parked.leaves ? each : 0);
}

int lp_memory_list_queue(memory *m, queue *q)
{
    if (!m->parks && reserve_links(&m->parked, lp_pool_limit(&m->pool)))
        return lp_fail_memory();
    m->parks = true;
    if (!q->listed)
        m->active[m->active_count++] = q;
    q->listed = true;
    return LAPSE_OK;
}

/* -- Lists -- */

static links *links_of(const memory *m, const list *l, uint32_t index)
{
    return l->table ? links_in(l->table, index) : &lp_memory_at(m, index)->b.link;
}

void lp_memory_insert(memory *m, list *l, uint32_t index, uint32_t before)
{
    uint32_t after = before == LP_NONE ? l->tail : links_of(m, l, before)->prev;
    *links_of(m, l, index) = (links){after, before};
    if (after == LP_NONE)
        l->head = index;
    else
        links_of(m, l, after)->next = index;
    if (before == LP_NONE)
        l->tail = index;
    else
        links_of(m, l, before)->prev = index;
}

void lp_memory_append(memory *m, list *l, uint32_t index)
{
    lp_memory_insert(m, l, index, LP_NONE);
}

void lp_memory_unlink(memory *m, list *l, uint32_t index)
{
    links at = *links_of(m, l, index);
    if (at.prev == LP_NONE)
        l->head = at.next;
    else
        links_of(m, l, at.prev)->next = at.next;
    if (at.next == LP_NONE)
        l->tail = at.prev;
    else
        links_of(m, l, at.next)->prev = at.prev;
}

static bool keeps_oldest(const memory *m)
{
    return m->config.overflow == LAPSE_DEAD_LETTER_OLDEST;
}

/* -- Making and leaving -- */

static extra *make_extra(memory *m, const lapse_spec *spec)
{
    extra *x = calloc(1, sizeof *x + spec->payload_len);
    if (!x)
        return NULL;
    x->fn = spec->fn;
    x->arg = spec->arg;
    x->release = spec->release;
    x->payload_len = spec->payload_len;
    x->first_due = LP_UNKNOWN_TIME;
    if (spec->payload_len)
        memcpy(x->payload, spec->payload, spec->payload_len);
    m->extra_bytes += sizeof *x + spec->payload_len;
    return x;
}

/* Links beside the record, where lists that this scheduler uses need them. */
static bool make_links(memory *m, uint32_t index)
{
    size_t need = (size_t)index + 1;
    return !(keeps_oldest(m) && reserve_links(&m->accepted, need)) &&
           !(m->parks && reserve_links(&m->parked, need));
}

static bool fill_record(memory *m, uint32_t index, const char *id, size_t len,
                        const lapse_spec *spec, const queue *q)
{
    order *o = lp_memory_at(m, index);
    if (!make_links(m, index) || !set_id(o, id, len))
        return false;
    o->node.queue = q->number;
    o->node.state = spec->fn ? 0 : PULL;
    o->attempt = 0;
    o->reason = 0;
    o->a.fn = spec->fn;
    o->b.arg = spec->arg;
    if (!spec->payload_len && !spec->release && (spec->fn || !spec->arg))
        return true;
    o->a.extra = make_extra(m, spec);
    if (!o->a.extra) {
        free_id(o);
        return false;
    }
    o->node.state |= EXTRA;
    return true;
}

uint32_t lp_memory_make(memory *m, const char *id, size_t len, const lapse_spec *spec,
                        const queue *q)
{
    uint32_t index = lp_pool_take(&m->pool);
    if (index != LP_NONE && !fill_record(m, index, id, len, spec, q)) {
        lp_memory_at(m, index)->node.state = 0;
        lp_pool_give(&m->pool, index);
        index = LP_NONE;
    }
    return index;
}

void lp_memory_unmake(memory *m, uint32_t index)
{
    order *o = lp_memory_at(m, index);
    extra *x = lp_memory_extra(o);
    if (x)
        m->extra_bytes -= sizeof *x + x->payload_len;
    free(x);
    free_id(o);
    lp_pool_give(&m->pool, index);
}

void lp_memory_leave(lp_request *r, lapse_release release, void *arg, void *block)
{
    if (release || block)
        r->remains[r->remains_count++] = (lp_remains){release, arg, block};
}

void lp_memory_leave_extra(memory *m, lp_request *r, extra *x, lapse_callback fn, void *arg)
{
    if (!x) {
        lp_memory_leave(r, fn ? m->config.release : NULL, arg, NULL);
        return;
    }
    m->extra_bytes -= sizeof *x + x->payload_len;
    free(x->error);
    lapse_release release = x->release ? x->release : m->config.release;
    bool given = x->fn || x->arg || x->release;
    lp_memory_leave(r, given ? release : NULL, x->arg, x);
}

void lp_memory_leave_order(memory *m, lp_request *r, order *o)
{
    bool waits = lp_memory_state(o) == PENDING || lp_memory_state(o) == DUE;
    if (waits && !(o->node.state & (EXTRA | PULL))) { /* Nearly always. */
        lp_memory_leave(r, m->config.release, o->b.arg, NULL);
        return;
    }
    lp_memory_leave_extra(m, r, lp_memory_extra(o), NULL, NULL);
    o->node.state &= (uint8_t)~EXTRA;
}

void lp_memory_bury(memory *m, uint32_t index)
{
    order *o = lp_memory_at(m, index);
    if (o->node.state & NAMED)
        lp_index_remove(&m->index, lp_memory_hash(m, o), index);
    free_id(o);
    lp_pool_give(&m->pool, index);
}

/* -- Waiting -- */

static int open_timer(memory *m, lp_side side)
{
    if (m->timer[side])
        return LAPSE_OK;
    int code = lp_timer_open(&m->timer_config, &m->timer[side]);
    return code < 0 ? lp_fail_memory() : LAPSE_OK;
}

int lp_memory_reserve(memory *m, lp_side side)
{
    enum { AHEAD = 63 }; /* so that it is rarely asked for */
    int code = open_timer(m, side);
    if (code < 0)
        return code;
    size_t need = m->running[side] + 1;
    if (lp_timer_reserve(m->timer[side], need + AHEAD) == 0)
        need += AHEAD;
    else if (lp_timer_reserve(m->timer[side], need) < 0)
        return lp_fail_memory();
    m->assured[side] = need;
    return LAPSE_OK;
}

/* What is accepted for callbacks while callbacks run belongs to the next pass, even when
 * the clock stands still. */
static lapse_ns next_pass(const memory *m, const order *o, lapse_ns due)
{
    if (m->called == 0 || due > m->expired_to)
        return due;
    bool called_back = !(o->node.state & PULL) || lp_memory_queue_of(m, o)->shared.handler;
    return called_back ? m->expired_to + 1 : due;
}

void lp_memory_start_waiting(memory *m, uint32_t index, lapse_ns due)
{
    order *o = lp_memory_at(m, index);
    lp_side side = lp_memory_side(o);
    o->node.due = next_pass(m, o, due);
    lp_memory_set_state(o, PENDING);
    m->counts.pending++;
    lp_memory_queue_of(m, o)->shared.pending++;
    m->assured[side]--;
    if (keeps_oldest(m))
        lp_memory_append(m, &m->oldest, index);
    lp_timer_insert(m->timer[side], index);
}

static void leave_ready(memory *m, uint32_t index)
{
    unsigned i = m->ready_at;
    while (m->ready[i] != index)
        i++;
    m->ready[i] = LP_NONE;
}

void lp_memory_stop_waiting(memory *m, uint32_t index)
{
    order *o = lp_memory_at(m, index);
    queue *q = lp_memory_queue_of(m, o);
    if (lp_memory_state(o) == PENDING) {
        lp_timer_remove(m->timer[lp_memory_side(o)], index);
    } else if (o->node.state & PARKED) {
        lp_memory_unlink(m, &q->parked, index);
    } else if (o->node.state & PULL) {
        lp_memory_unlink(m, &q->due, index);
        o->b.arg = NULL;
    } else {
        leave_ready(m, index);
    }
    if (keeps_oldest(m))
        lp_memory_unlink(m, &m->oldest, index);
    m->counts.pending--;
    q->shared.pending--;
}

/* -- Ending -- */

/* Forget what was kept for too long: two at a time, so that it goes faster than it
 * comes. */
static void purge_kept(memory *m, lapse_ns now)
{
    for (int i = 0; i < 2 && m->kept.head != LP_NONE; i++) {
        uint32_t index = m->kept.head;
        if (now - lp_memory_at(m, index)->a.ended <= m->config.keep)
            return;
        lp_memory_unlink(m, &m->kept, index);
        m->counts.kept--;
        lp_memory_bury(m, index);
    }
}

void lp_memory_end(memory *m, uint32_t index, lapse_ns now)
{
    if (!m->config.keep) {
        lp_memory_bury(m, index);
        return;
    }
    order *o = lp_memory_at(m, index);
    purge_kept(m, now);
    if (!(o->node.state & NAMED)) {
        lp_memory_bury(m, index);
        return;
    }
    lp_memory_set_state(o, KEPT);
    o->a.ended = now;
    lp_memory_append(m, &m->kept, index);
    m->counts.kept++;
}

extra *lp_memory_add_extra(memory *m, lapse_callback fn, void *arg)
{
    extra *x = calloc(1, sizeof *x);
    if (!x)
        return NULL;
    m->extra_bytes += sizeof *x;
    x->fn = fn;
    x->arg = arg;
    x->first_due = LP_UNKNOWN_TIME;
    return x;
}

static void drop_oldest_dead(memory *m, lp_request *r)
{
    uint32_t index = m->dead.head;
    order *o = lp_memory_at(m, index);
    lp_memory_unlink(m, &m->dead, index);
    lp_memory_leave_order(m, r, o);
    m->counts.dead--;
    m->counts.dead_dropped++;
    lp_memory_queue_of(m, o)->shared.dead--;
    lp_memory_bury(m, index);
}

void lp_memory_die(memory *m, lp_request *r, uint32_t index, extra *x, lapse_callback fn, void *arg,
                   lapse_ns now)
{
    order *o = lp_memory_at(m, index);
    if (!x) /* Without memory for its last words it keeps only the reason. */
        x = lp_memory_add_extra(m, fn, arg);
    if (!x)
        lp_memory_leave(r, fn ? m->config.release : NULL, arg, NULL);
    lp_memory_set_state(o, DEAD);
    o->node.state = (uint8_t)((o->node.state & ~EXTRA) | (x ? EXTRA : 0));
    o->a.extra = x;
    o->reason = r->reason & 15;
    if (x) {
        free(x->error);
        x->error = r->error ? strdup(r->error) : NULL;
        x->ended = now;
    }
    lp_memory_append(m, &m->dead, index);
    m->counts.dead++;
    lp_memory_queue_of(m, o)->shared.dead++;
    lp_memory_queue_of(m, o)->shared.dead_total++;
    lp_memory_queue_of(m, o)->shared.dead_by[r->reason]++;
    r->died = true;
    if (r->info)
        lp_memory_look(m, o, r->info, now);
    if (m->counts.dead > m->config.max_dead)
        drop_oldest_dead(m, r);
}
