/* memory.c - orders in the memory of this process.
 *
 * An order is one 64-byte record in a pool, found by its id through the index, and in
 * exactly one place that `state` names: a timer, the ready ring or its queue's list when
 * due, a claim when running, or the list of the kept or of the dead. Orders with a
 * callback (push) and those without (pull) have a timer each, so that neither kind waits
 * for the consumers of the other.
 *
 *     PENDING --due--> DUE --claim--> RUNNING --end--> KEPT --keep over--> free
 *        ^                               |  \--die--> DEAD --max_dead--> free
 *        `------------ again ------------'
 *
 * Whatever an order leaves behind (a release, a block to free) is handed back to the
 * engine. Ending, dying and running again allocate nothing that they cannot do without:
 * room in the timer is reserved while an order runs. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/paged.h"
#include "stores/store.h"
#include "stores/url.h"
#include "timer/hash.h"
#include "timer/index.h"
#include "timer/pool.h"
#include "timer/timer.h"

enum { FREE = 0, PENDING, DUE, RUNNING, KEPT, DEAD };

/* Upper bits of node.state. */
enum {
    STATE = 0x0f,
    EXTRA = 0x10, /* `a.extra` (RUNNING: claim->kept) is set */
    NAMED = 0x20, /* the newest of its id: the index knows it */
    PULL = 0x40,  /* no callback */
};

enum {
    INLINE_ID = 21,    /* longest id kept in the record */
    READY = 64,        /* orders in the ready ring */
    STEPS = 1024,      /* records looked at in one call of list */
    QUEUES_MAX = 65535 /* different queue names */
};

/* What only some orders have, and all dead ones that memory allows it. */
typedef struct extra {
    lapse_callback fn;
    void *arg;
    lapse_release release;
    char *error;
    lapse_ns ended;
    size_t payload_len;
    unsigned char payload[];
} extra;

typedef struct order {
    lp_node node;
    int64_t generation;
    union {
        lapse_callback fn; /* without EXTRA */
        extra *extra;      /* with EXTRA, but not RUNNING */
        lp_claim *claim;   /* RUNNING */
    } a;
    union {
        void *arg; /* without EXTRA: PENDING, DUE with a callback */
        struct {
            uint32_t prev, next;
        } link; /* DUE without one, KEPT, DEAD */
    } b;
    uint16_t attempt : 12; /* deliveries so far, saturating */
    uint16_t reason : 4;   /* DEAD: a lapse_reason */
    char id[INLINE_ID + 1]; /* or, when longer, the pointer to it */
} order;

_Static_assert(sizeof(order) == 64, "an order fills one cache line");

typedef struct list {
    uint32_t head, tail;
} list;

typedef struct queue {
    char *name;
    list due; /* orders without a callback whose time is up */
} queue;

/* Neighbours in the order of acceptance, kept only under LAPSE_DEAD_LETTER_OLDEST. */
typedef struct neighbours {
    uint32_t prev, next;
} neighbours;

typedef struct memory {
    lp_store base;
    lp_pool pool;
    lp_index index;
    uint64_t seed;
    lp_timer *timer[2];    /* by lp_side; LP_PULL is opened when first needed */
    uint64_t running[2];   /* by lp_side */
    lapse_ns expired_to;   /* the latest time that due orders were taken out for */
    uint32_t ready[READY]; /* due orders with a callback; LP_NONE where withdrawn */
    unsigned ready_at, ready_end;
    queue *queues; /* [0] is "" */
    size_t queue_count, queue_room;
    list kept, dead;
    lp_paged accepted; /* neighbours by record */
    list oldest;
    lp_counts counts;
    uint64_t extra_bytes;
    int64_t last_generation, last_fence;
    lapse_ns wall_offset; /* UTC minus store clock, at open */
    uint32_t drain_at;
    lp_store_config config;
    lp_timer_config timer_config;
} memory;

static order *at(const memory *m, uint32_t index)
{
    return lp_pool_at(&m->pool, index);
}

static int state_of(const order *o)
{
    return o->node.state & STATE;
}

static void set_state(order *o, int state)
{
    o->node.state = (uint8_t)((o->node.state & ~STATE) | state);
}

static lp_side side_of(const order *o)
{
    return o->node.state & PULL ? LP_PULL : LP_PUSH;
}

/* -- Ids and queues -- */

static char *id_of(order *o)
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
        free(id_of(o));
}

static uint64_t hash_of(const memory *m, order *o)
{
    return lp_hash(id_of(o), o->node.id_len, m->seed);
}

typedef struct key {
    const memory *m;
    const char *id;
    size_t len;
} key;

static bool same_id(const void *k, uint32_t index)
{
    const key *wanted = k;
    order *o = at(wanted->m, index);
    return o->node.id_len == wanted->len && memcmp(id_of(o), wanted->id, wanted->len) == 0;
}

static uint32_t find(const memory *m, uint64_t hash, const char *id, size_t len)
{
    key wanted = {m, id, len};
    return lp_index_find(&m->index, hash, same_id, &wanted);
}

static uint32_t find_request(const memory *m, const lp_request *r)
{
    return find(m, lp_hash(r->id, r->id_len, m->seed), r->id, r->id_len);
}

/* The number of a queue by name, or -1. */
static int find_queue(const memory *m, const char *name)
{
    for (size_t i = 0; i < m->queue_count; i++)
        if (strcmp(m->queues[i].name, name) == 0)
            return (int)i;
    return -1;
}

static int intern_queue(memory *m, const char *name)
{
    int found = name && *name ? find_queue(m, name) : 0;
    if (found >= 0)
        return found;
    if (m->queue_count == QUEUES_MAX)
        return lp_fail(LAPSE_EINVAL, "this scheduler has %d queues already: use fewer names",
                       QUEUES_MAX);
    if (m->queue_count == m->queue_room) {
        queue *more = realloc(m->queues, 2 * m->queue_room * sizeof *more);
        if (!more)
            return lp_fail_memory();
        m->queues = more;
        m->queue_room *= 2;
    }
    queue *q = &m->queues[m->queue_count];
    *q = (queue){.name = strdup(name), .due = {LP_NONE, LP_NONE}};
    if (!q->name)
        return lp_fail_memory();
    return (int)m->queue_count++;
}

/* -- Lists of orders that use b.link -- */

static void append(memory *m, list *l, uint32_t index)
{
    order *o = at(m, index);
    o->b.link.prev = l->tail;
    o->b.link.next = LP_NONE;
    if (l->tail == LP_NONE)
        l->head = index;
    else
        at(m, l->tail)->b.link.next = index;
    l->tail = index;
}

static void unlink_from(memory *m, list *l, uint32_t index)
{
    order *o = at(m, index);
    if (o->b.link.prev == LP_NONE)
        l->head = o->b.link.next;
    else
        at(m, o->b.link.prev)->b.link.next = o->b.link.next;
    if (o->b.link.next == LP_NONE)
        l->tail = o->b.link.prev;
    else
        at(m, o->b.link.next)->b.link.prev = o->b.link.prev;
}

/* -- The order of acceptance -- */

static neighbours *neighbours_of(const memory *m, uint32_t index)
{
    return lp_paged_at(&m->accepted, index, sizeof(neighbours));
}

static bool keeps_oldest(const memory *m)
{
    return m->config.overflow == LAPSE_DEAD_LETTER_OLDEST;
}

static void remember_accepted(memory *m, uint32_t index)
{
    if (!keeps_oldest(m))
        return;
    *neighbours_of(m, index) = (neighbours){m->oldest.tail, LP_NONE};
    if (m->oldest.tail == LP_NONE)
        m->oldest.head = index;
    else
        neighbours_of(m, m->oldest.tail)->next = index;
    m->oldest.tail = index;
}

static void forget_accepted(memory *m, uint32_t index)
{
    if (!keeps_oldest(m))
        return;
    neighbours n = *neighbours_of(m, index);
    if (n.prev == LP_NONE)
        m->oldest.head = n.next;
    else
        neighbours_of(m, n.prev)->next = n.next;
    if (n.next == LP_NONE)
        m->oldest.tail = n.prev;
    else
        neighbours_of(m, n.next)->prev = n.prev;
}

/* -- Remains -- */

static void leave(lp_request *r, lapse_release release, void *arg, void *block)
{
    if (release || block)
        r->remains[r->remains_count++] = (lp_remains){release, arg, block};
}

/* What lies in the record of an order that is not running. */
static extra *extra_of(const order *o)
{
    return o->node.state & EXTRA ? o->a.extra : NULL;
}

static void leave_extra(memory *m, lp_request *r, extra *x, lapse_callback fn, void *arg)
{
    if (!x) {
        leave(r, fn ? m->config.release : NULL, arg, NULL);
        return;
    }
    m->extra_bytes -= sizeof *x + x->payload_len;
    free(x->error);
    bool has_arg = x->fn || x->arg;
    leave(r, !has_arg ? NULL : x->release ? x->release : m->config.release, x->arg, x);
}

/* Everything that an order which is not running holds. */
static void leave_order(memory *m, lp_request *r, order *o)
{
    bool waits = state_of(o) == PENDING || state_of(o) == DUE;
    bool plain = waits && !(o->node.state & (EXTRA | PULL));
    leave_extra(m, r, extra_of(o), plain ? o->a.fn : NULL, plain ? o->b.arg : NULL);
    o->node.state &= (uint8_t)~EXTRA;
}

/* Free the record of an order that is in no place and has left everything. */
static void bury(memory *m, uint32_t index)
{
    order *o = at(m, index);
    if (o->node.state & NAMED)
        lp_index_remove(&m->index, hash_of(m, o), index);
    free_id(o);
    lp_pool_give(&m->pool, index);
}

/* -- Timers -- */

static int open_timer(memory *m, lp_side side)
{
    if (m->timer[side])
        return LAPSE_OK;
    int code = lp_timer_open(&m->timer_config, &m->timer[side]);
    return code < 0 ? lp_fail_memory() : LAPSE_OK;
}

/* Room for one more insert beside those that the running orders may need. */
static int make_room(memory *m, lp_side side)
{
    int code = open_timer(m, side);
    if (code == LAPSE_OK && lp_timer_reserve(m->timer[side], m->running[side] + 1) < 0)
        code = lp_fail_memory();
    return code;
}

/* What is accepted while callbacks run belongs to the next pass, even when the clock
 * stands still. */
static lapse_ns next_pass(const memory *m, lapse_ns due)
{
    bool busy = m->running[LP_PUSH] > 0 && due <= m->expired_to;
    return busy ? lp_add_ns(m->expired_to, 1) : due;
}

/* Into the timer, after make_room. */
static void start_waiting(memory *m, uint32_t index, lapse_ns due)
{
    order *o = at(m, index);
    o->node.due = next_pass(m, due);
    set_state(o, PENDING);
    lp_timer_insert(m->timer[side_of(o)], index);
}

/* Out of the timer, the ring or the queue's list. */
static void stop_waiting(memory *m, uint32_t index)
{
    order *o = at(m, index);
    if (state_of(o) == PENDING) {
        lp_timer_remove(m->timer[side_of(o)], index);
    } else if (side_of(o) == LP_PULL) {
        unlink_from(m, &m->queues[o->node.queue].due, index);
        o->b.arg = NULL;
    } else {
        for (unsigned i = m->ready_at; i < m->ready_end; i++)
            if (m->ready[i] == index)
                m->ready[i] = LP_NONE;
    }
}

/* -- Ending -- */

static void purge_kept(memory *m, lapse_ns now)
{
    for (int i = 0; i < 2 && m->kept.head != LP_NONE; i++) {
        uint32_t index = m->kept.head;
        if (now - at(m, index)->node.due <= m->config.keep)
            return;
        unlink_from(m, &m->kept, index);
        m->counts.kept--;
        bury(m, index);
    }
}

/* The end of an order that is in no place and has left everything. */
static void end_order(memory *m, uint32_t index, lapse_ns now)
{
    order *o = at(m, index);
    purge_kept(m, now);
    if (!m->config.keep || !(o->node.state & NAMED)) {
        bury(m, index);
        return;
    }
    set_state(o, KEPT);
    o->node.due = now;
    append(m, &m->kept, index);
    m->counts.kept++;
}

static void drop_oldest_dead(memory *m, lp_request *r)
{
    uint32_t index = m->dead.head;
    unlink_from(m, &m->dead, index);
    leave_order(m, r, at(m, index));
    m->counts.dead--;
    m->counts.dead_dropped++;
    bury(m, index);
}

/* Make sure that an order which is about to die has an extra for its last words. */
static extra *extra_for_death(memory *m, lp_request *r, extra *x, lapse_callback fn, void *arg)
{
    if (x)
        return x;
    x = calloc(1, sizeof *x);
    if (!x) {
        leave(r, fn ? m->config.release : NULL, arg, NULL);
        return NULL;
    }
    m->extra_bytes += sizeof *x;
    x->fn = fn;
    x->arg = arg;
    return x;
}

/* An order that is in no place becomes a dead letter. Its callback and payload stay
 * with it. Without memory for its last words it keeps only the reason. */
static void die(memory *m, lp_request *r, uint32_t index, extra *x, lapse_reason reason,
                const char *error, lapse_ns now)
{
    order *o = at(m, index);
    o->node.state = (uint8_t)((o->node.state & ~(STATE | EXTRA)) | DEAD | (x ? EXTRA : 0));
    o->a.extra = x;
    o->reason = reason & 15;
    if (x) {
        free(x->error);
        x->error = error ? strdup(error) : NULL;
        x->ended = now;
    }
    append(m, &m->dead, index);
    m->counts.dead++;
    if (m->counts.dead > m->config.max_dead)
        drop_oldest_dead(m, r);
}

/* -- Schedule -- */

static extra *make_extra(memory *m, const lapse_spec *spec)
{
    extra *x = calloc(1, sizeof *x + spec->payload_len);
    if (!x)
        return NULL;
    x->fn = spec->fn;
    x->arg = spec->arg;
    x->release = spec->release;
    x->payload_len = spec->payload_len;
    if (spec->payload_len)
        memcpy(x->payload, spec->payload, spec->payload_len);
    m->extra_bytes += sizeof *x + spec->payload_len;
    return x;
}

/* A record with all that an order needs, in no place yet; LP_NONE without memory. */
static uint32_t make_order(memory *m, const lp_request *r, int queue_number)
{
    const lapse_spec *spec = r->spec;
    uint32_t index = lp_pool_take(&m->pool);
    if (index == LP_NONE)
        return LP_NONE;
    if (keeps_oldest(m) && lp_paged_reserve(&m->accepted, (size_t)index + 1, sizeof(neighbours))) {
        lp_pool_give(&m->pool, index);
        return LP_NONE;
    }
    order *o = at(m, index);
    if (!set_id(o, r->id, r->id_len)) {
        lp_pool_give(&m->pool, index);
        return LP_NONE;
    }
    o->node.queue = (uint16_t)queue_number;
    o->node.state = spec->fn ? 0 : PULL;
    o->attempt = 0;
    o->reason = 0;
    o->a.fn = spec->fn;
    o->b.arg = spec->arg;
    if (spec->payload_len || spec->release || (spec->arg && !spec->fn)) {
        o->a.extra = make_extra(m, spec);
        if (!o->a.extra) {
            free_id(o);
            lp_pool_give(&m->pool, index);
            return LP_NONE;
        }
        o->node.state |= EXTRA;
    }
    return index;
}

/* Undo make_order; the caller keeps what it gave. */
static void unmake_order(memory *m, uint32_t index)
{
    order *o = at(m, index);
    extra *x = extra_of(o);
    if (x)
        m->extra_bytes -= sizeof *x + x->payload_len;
    free(x);
    free_id(o);
    lp_pool_give(&m->pool, index);
}

static int refuse_full(const memory *m)
{
    return lp_fail(LAPSE_EFULL,
                   "%llu orders are pending, which is max_pending: cancel some or raise it",
                   (unsigned long long)m->config.max_pending);
}

static bool is_full(const memory *m)
{
    return m->config.max_pending && m->counts.pending + m->counts.running >= m->config.max_pending;
}

/* Whether a new order may be accepted beside `old`, the newest of its id. */
static int may_accept(const memory *m, const lp_request *r, uint32_t old)
{
    int state = old == LP_NONE ? FREE : state_of(at(m, old));
    bool waiting = state == PENDING || state == DUE;
    if (waiting && !(r->spec->flags & LAPSE_REPLACE))
        return lp_fail(LAPSE_EEXISTS,
                       "order %s is pending already: cancel it, reschedule it, or replace it",
                       lp_text_quote(r->id, r->id_len));
    if (!waiting && is_full(m) && (!keeps_oldest(m) || m->oldest.head == LP_NONE))
        return refuse_full(m);
    return LAPSE_OK;
}

/* The newest of an id gives its name to another; what becomes of it. */
static void give_way(memory *m, lp_request *r, uint32_t old)
{
    order *o = at(m, old);
    o->node.state &= (uint8_t)~NAMED;
    switch (state_of(o)) {
    case PENDING:
    case DUE:
        stop_waiting(m, old);
        forget_accepted(m, old);
        m->counts.pending--;
        leave_order(m, r, o);
        bury(m, old);
        r->replaced = true;
        break;
    case RUNNING:
        o->a.claim->superseded = true;
        break;
    case KEPT:
        unlink_from(m, &m->kept, old);
        m->counts.kept--;
        bury(m, old);
        break;
    default: /* DEAD: stays in its list, without a name */
        break;
    }
}

static void kill_oldest(memory *m, lp_request *r, lapse_ns now)
{
    uint32_t index = m->oldest.head;
    order *o = at(m, index);
    stop_waiting(m, index);
    forget_accepted(m, index);
    m->counts.pending--;
    bool plain = !(o->node.state & (EXTRA | PULL));
    extra *x = extra_for_death(m, r, extra_of(o), plain ? o->a.fn : NULL, plain ? o->b.arg : NULL);
    die(m, r, index, x, LAPSE_REASON_MAXLEN, NULL, now);
    r->died = true;
}

static int64_t schedule(memory *m, lp_request *r, uint64_t hash, lapse_ns now)
{
    uint32_t old = find(m, hash, r->id, r->id_len);
    int code = may_accept(m, r, old);
    if (code < 0)
        return code;
    int queue_number = intern_queue(m, r->spec->queue);
    if (queue_number < 0)
        return queue_number;
    code = make_room(m, r->spec->fn ? LP_PUSH : LP_PULL);
    if (code < 0)
        return code;
    uint32_t index = make_order(m, r, queue_number);
    if (index == LP_NONE)
        return lp_fail_memory();
    if (old == LP_NONE && lp_index_add(&m->index, hash, index) < 0) {
        unmake_order(m, index);
        return lp_fail_memory();
    }
    /* From here on nothing can fail. */
    if (old != LP_NONE) {
        lp_index_replace(&m->index, hash, old, index);
        give_way(m, r, old);
    }
    if (is_full(m))
        kill_oldest(m, r, now);
    order *o = at(m, index);
    o->generation = ++m->last_generation;
    o->node.state |= NAMED;
    start_waiting(m, index, r->due);
    remember_accepted(m, index);
    m->counts.pending++;
    return o->generation;
}

/* -- Cancel, reschedule -- */

/* The fate of an order that has ended. */
static int64_t ended_fate(const memory *m, const order *o, lapse_ns now)
{
    const extra *x = extra_of(o);
    lapse_ns ended = state_of(o) == DEAD && x ? x->ended : o->node.due;
    return m->config.keep && now - ended <= m->config.keep ? LAPSE_FATE_DONE : LAPSE_FATE_UNKNOWN;
}

/* The order that a request names, or NULL. */
static order *named(memory *m, const lp_request *r, uint32_t *index)
{
    *index = find_request(m, r);
    if (*index == LP_NONE)
        return NULL;
    order *o = at(m, *index);
    return r->generation == LAPSE_ANY || r->generation == o->generation ? o : NULL;
}

static int64_t cancel(memory *m, lp_request *r, lapse_ns now)
{
    uint32_t index;
    order *o = named(m, r, &index);
    if (!o)
        return LAPSE_FATE_UNKNOWN;
    switch (state_of(o)) {
    case RUNNING:
        r->claim = o->a.claim;
        return LAPSE_FATE_RUNNING;
    case KEPT:
    case DEAD:
        return ended_fate(m, o, now);
    default:
        stop_waiting(m, index);
        forget_accepted(m, index);
        m->counts.pending--;
        leave_order(m, r, o);
        end_order(m, index, now);
        return LAPSE_FATE_CANCELLED;
    }
}

static int64_t reschedule(memory *m, lp_request *r, lapse_ns now)
{
    uint32_t index;
    order *o = named(m, r, &index);
    if (!o)
        return LAPSE_FATE_UNKNOWN;
    if (state_of(o) == RUNNING)
        return LAPSE_FATE_RUNNING;
    if (state_of(o) == KEPT || state_of(o) == DEAD)
        return ended_fate(m, o, now);
    int code = make_room(m, side_of(o));
    if (code < 0)
        return code;
    stop_waiting(m, index);
    start_waiting(m, index, r->due);
    forget_accepted(m, index);
    remember_accepted(m, index);
    return LAPSE_FATE_RESCHEDULED;
}

/* -- Claims -- */

/* Move due orders of the push side from the timer to the ready ring, which is empty. */
static void refill(memory *m, lapse_ns until)
{
    m->ready_at = 0;
    m->ready_end = (unsigned)lp_timer_expire(m->timer[LP_PUSH], until, m->ready, READY);
    for (unsigned i = 0; i < m->ready_end; i++) {
        order *o = at(m, m->ready[i]);
        set_state(o, DUE);
        lp_index_prefetch(&m->index, hash_of(m, o));
    }
    if (until > m->expired_to)
        m->expired_to = until;
}

/* The first of the ready ring, or LP_NONE. */
static uint32_t first_ready(memory *m)
{
    while (m->ready_at < m->ready_end && m->ready[m->ready_at] == LP_NONE)
        m->ready_at++;
    return m->ready_at < m->ready_end ? m->ready[m->ready_at] : LP_NONE;
}

static bool announce(lp_store *store, lapse_ns now)
{
    memory *m = (memory *)store;
    if (!m->timer[LP_PULL] || lp_timer_next(m->timer[LP_PULL]) > now)
        return false;
    uint32_t due[READY];
    size_t n = lp_timer_expire(m->timer[LP_PULL], now, due, READY);
    for (size_t i = 0; i < n; i++) {
        order *o = at(m, due[i]);
        set_state(o, DUE);
        append(m, &m->queues[o->node.queue].due, due[i]);
    }
    return n > 0;
}

/* The first that waits for a taker: of one queue, or the earliest of all. */
static uint32_t first_waiting(memory *m, const char *name)
{
    if (name) {
        int number = find_queue(m, name);
        return number < 0 ? LP_NONE : m->queues[number].due.head;
    }
    uint32_t best = LP_NONE;
    for (size_t i = 0; i < m->queue_count; i++) {
        uint32_t head = m->queues[i].due.head;
        if (head != LP_NONE && (best == LP_NONE || at(m, head)->node.due < at(m, best)->node.due))
            best = head;
    }
    return best;
}

/* The next due order of a side, still in its place; LP_NONE with *more set when a
 * bounded amount of work has found none yet. */
static uint32_t first_due(memory *m, lp_side side, const char *name, lapse_ns until, bool *more)
{
    *more = false;
    uint32_t index = side == LP_PUSH ? first_ready(m) : first_waiting(m, name);
    if (index != LP_NONE || !m->timer[side] || lp_timer_next(m->timer[side]) > until)
        return index;
    if (side == LP_PUSH)
        refill(m, until);
    else
        announce(&m->base, until);
    index = side == LP_PUSH ? first_ready(m) : first_waiting(m, name);
    *more = index == LP_NONE && lp_timer_next(m->timer[side]) <= until;
    return index;
}

static int64_t next_fence(memory *m, lapse_ns now)
{
    int64_t clock = (now + m->wall_offset) / 1000;
    m->last_fence = clock > m->last_fence ? clock : m->last_fence + 1;
    return m->last_fence;
}

/* Show an order to its consumer. */
static void fill_claim(memory *m, lp_claim *claim, uint32_t index, lapse_ns now)
{
    order *o = at(m, index);
    extra *x = extra_of(o);
    claim->record = index;
    claim->superseded = false;
    claim->kept = x;
    claim->due = o->node.due;
    claim->fn = x ? x->fn : o->node.state & PULL ? NULL : o->a.fn;
    claim->arg = x ? x->arg : o->node.state & PULL ? NULL : o->b.arg;
    claim->order = (lapse_order){
        .id = id_of(o),
        .id_len = o->node.id_len,
        .queue = m->queues[o->node.queue].name,
        .payload = x && x->payload_len ? x->payload : NULL,
        .payload_len = x ? x->payload_len : 0,
        .fence = next_fence(m, now),
        .generation = o->generation,
        .attempt = o->attempt,
    };
}

static uint64_t moved(const memory *m)
{
    uint64_t sum = lp_index_moved(&m->index);
    for (int side = 0; side < 2; side++)
        if (m->timer[side])
            sum += lp_timer_moved(m->timer[side]);
    return sum;
}

static void note_moved(memory *m, uint64_t before)
{
    uint64_t n = moved(m) - before;
    if (n > m->counts.moved)
        m->counts.moved = n;
}

static int claim_next(lp_store *store, lp_side side, const char *name, lapse_ns until, lapse_ns now,
                      lp_claim *claim)
{
    memory *m = (memory *)store;
    uint64_t before = moved(m);
    bool more;
    uint32_t index = first_due(m, side, name, until, &more);
    note_moved(m, before);
    if (index == LP_NONE)
        return more ? LP_CLAIM_MORE : LP_CLAIM_NONE;
    if (make_room(m, side) < 0)
        return LAPSE_ENOMEM;
    order *o = at(m, index);
    if (side == LP_PULL)
        stop_waiting(m, index);
    else
        m->ready_at++;
    forget_accepted(m, index);
    if (o->attempt < 4095)
        o->attempt++;
    fill_claim(m, claim, index, now);
    set_state(o, RUNNING);
    o->a.claim = claim;
    m->counts.pending--;
    m->counts.running++;
    m->running[side]++;
    return LP_CLAIM_ONE;
}

/* The order of a claim, which no longer runs; its record is as before the claim. */
static order *unclaim(memory *m, const lp_claim *claim)
{
    order *o = at(m, claim->record);
    if (claim->kept)
        o->a.extra = claim->kept;
    else
        o->a.fn = claim->fn;
    o->b.arg = claim->kept ? NULL : claim->arg;
    m->counts.running--;
    m->running[side_of(o)]--;
    return o;
}

static int64_t end_claim(memory *m, lp_request *r, lapse_ns now)
{
    order *o = unclaim(m, r->claim);
    leave_extra(m, r, extra_of(o), r->claim->fn, r->claim->arg);
    o->node.state &= (uint8_t)~EXTRA;
    end_order(m, r->claim->record, now);
    return LAPSE_OK;
}

static int64_t again(memory *m, lp_request *r)
{
    lapse_ns due = next_pass(m, r->due);
    order *o = unclaim(m, r->claim);
    if (!r->counted && o->attempt)
        o->attempt--;
    start_waiting(m, r->claim->record, due);
    remember_accepted(m, r->claim->record);
    m->counts.pending++;
    return LAPSE_OK;
}

static int64_t die_claim(memory *m, lp_request *r, lapse_ns now)
{
    unclaim(m, r->claim);
    extra *x = extra_for_death(m, r, r->claim->kept, r->claim->fn, r->claim->arg);
    die(m, r, r->claim->record, x, r->reason, r->error, now);
    return LAPSE_OK;
}

/* -- Looking -- */

static bool copy_strings(memory *m, order *o, const extra *x, lapse_info *out)
{
    out->id_len = o->node.id_len;
    out->id = strdup(id_of(o));
    out->queue = strdup(m->queues[o->node.queue].name);
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
    switch (state_of(o)) {
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

/* Times are the store's clock; the engine turns them into UTC. */
static int look(memory *m, order *o, lapse_info *out, lapse_ns now)
{
    const extra *x = state_of(o) == RUNNING ? o->a.claim->kept : extra_of(o);
    *out = (lapse_info){
        .state = public_state(o),
        .due = o->node.due,
        .generation = o->generation,
        .attempt = o->attempt,
        .reason = o->reason,
    };
    if (out->state == LAPSE_STATE_PENDING && o->node.due > now)
        out->remaining = o->node.due - now;
    if (out->state == LAPSE_STATE_DONE)
        out->ended = o->node.due;
    if (out->state == LAPSE_STATE_DEAD && x)
        out->ended = x->ended;
    if (copy_strings(m, o, x, out))
        return LAPSE_OK;
    lapse_info_free(out);
    return lp_fail_memory();
}

static bool is_over(const memory *m, const order *o, lapse_ns now)
{
    return state_of(o) == KEPT && now - o->node.due > m->config.keep;
}

static int64_t get(memory *m, lp_request *r, lapse_ns now)
{
    uint32_t index = find_request(m, r);
    if (index == LP_NONE || is_over(m, at(m, index), now))
        return lp_fail(LAPSE_EUNKNOWN, "no order %s is known", lp_text_quote(r->id, r->id_len));
    return look(m, at(m, index), r->info, now);
}

static int list_orders(lp_store *store, uint64_t *cursor, unsigned states, lapse_info *out, int max,
                       lapse_ns now)
{
    memory *m = (memory *)store;
    uint32_t limit = lp_pool_limit(&m->pool);
    int n = 0;
    for (int step = 0; step < STEPS && n < max; step++) {
        if (*cursor >= limit) {
            *cursor = UINT64_MAX;
            break;
        }
        order *o = lp_pool_peek(&m->pool, (uint32_t)(*cursor)++);
        if (!o || !(public_state(o) & states) || is_over(m, o, now))
            continue;
        if (look(m, o, &out[n], now) < 0) {
            while (n)
                lapse_info_free(&out[--n]);
            return LAPSE_ENOMEM;
        }
        n++;
    }
    return n;
}

static lapse_ns next_due(lp_store *store, lp_side side)
{
    memory *m = (memory *)store;
    if (side == LP_PUSH && first_ready(m) != LP_NONE)
        return 0;
    return m->timer[side] ? lp_timer_next(m->timer[side]) : LAPSE_FOREVER;
}

static lapse_ns oldest_due(memory *m)
{
    lapse_ns oldest = LAPSE_FOREVER;
    uint32_t ready = first_ready(m), waiting = first_waiting(m, NULL);
    if (ready != LP_NONE)
        oldest = at(m, ready)->node.due;
    if (waiting != LP_NONE && at(m, waiting)->node.due < oldest)
        oldest = at(m, waiting)->node.due;
    for (int side = 0; side < 2; side++)
        if (m->timer[side] && lp_timer_next(m->timer[side]) < oldest)
            oldest = lp_timer_next(m->timer[side]);
    return oldest;
}

static void count(lp_store *store, lp_counts *out)
{
    memory *m = (memory *)store;
    *out = m->counts;
    out->oldest_due = oldest_due(m);
    out->bytes = lp_pool_bytes(&m->pool) + lp_index_bytes(&m->index) + m->extra_bytes +
                 lp_paged_bytes(&m->accepted, sizeof(neighbours));
    for (int side = 0; side < 2; side++)
        if (m->timer[side])
            out->bytes += lp_timer_bytes(m->timer[side]);
}

/* -- Requests -- */

static void answer(memory *m, lp_request *r, uint64_t hash, lapse_ns now)
{
    switch (r->op) {
    case LP_SCHEDULE:
        r->answer = schedule(m, r, hash, now);
        return;
    case LP_CANCEL:
        r->answer = cancel(m, r, now);
        return;
    case LP_RESCHEDULE:
        r->answer = reschedule(m, r, now);
        return;
    case LP_GET:
        r->answer = get(m, r, now);
        return;
    case LP_END:
        r->answer = end_claim(m, r, now);
        return;
    case LP_AGAIN:
        r->answer = again(m, r);
        return;
    case LP_DIE:
        r->answer = die_claim(m, r, now);
        return;
    }
}

static void execute(lp_store *store, lp_request *requests, size_t count, lapse_ns now)
{
    enum { BATCH = 32 };
    memory *m = (memory *)store;
    uint64_t hash[BATCH];
    for (size_t from = 0; from < count; from += BATCH) {
        size_t n = count - from < BATCH ? count - from : BATCH;
        for (size_t i = 0; i < n; i++) {
            const lp_request *r = &requests[from + i];
            hash[i] = r->op == LP_SCHEDULE ? lp_hash(r->id, r->id_len, m->seed) : 0;
            if (n > 1 && hash[i])
                lp_index_prefetch(&m->index, hash[i]);
        }
        for (size_t i = 0; i < n; i++) {
            uint64_t before = moved(m);
            answer(m, &requests[from + i], hash[i], now);
            note_moved(m, before);
        }
    }
}

/* -- Opening and closing -- */

static int read_engine(const lp_url_option *option, memory *m)
{
    if (lp_url_value_is(option, "wheel"))
        m->timer_config.kind = LP_WHEEL;
    else if (lp_url_value_is(option, "heap"))
        m->timer_config.kind = LP_HEAP;
    else
        return lp_fail(LAPSE_EURL, "the URL option engine is not valid: use wheel or heap");
    return LAPSE_OK;
}

static int read_overflow(const lp_url_option *option, memory *m)
{
    if (lp_url_value_is(option, "refuse"))
        m->config.overflow = LAPSE_REFUSE;
    else if (lp_url_value_is(option, "dead_letter_oldest"))
        m->config.overflow = LAPSE_DEAD_LETTER_OLDEST;
    else
        return lp_fail(LAPSE_EURL, "the URL option overflow is not valid: use refuse or "
                                   "dead_letter_oldest");
    return LAPSE_OK;
}

static int read_slots(const lp_url_option *option, memory *m)
{
    uint64_t n;
    int code = lp_url_number(option, 1, 4096, &n);
    if (code < 0)
        return code;
    m->timer_config.slots = 64;
    while (m->timer_config.slots < n)
        m->timer_config.slots *= 2;
    return LAPSE_OK;
}

static int read_option(const lp_url_option *option, memory *m)
{
    if (lp_url_is(option, "engine"))
        return read_engine(option, m);
    if (lp_url_is(option, "tick"))
        return lp_url_duration(option, LAPSE_US(1), LAPSE_HOURS(1), &m->timer_config.tick);
    if (lp_url_is(option, "slots"))
        return read_slots(option, m);
    if (lp_url_is(option, "max_pending"))
        return lp_url_number(option, 0, UINT64_MAX, &m->config.max_pending);
    if (lp_url_is(option, "max_dead"))
        return lp_url_number(option, 0, UINT64_MAX, &m->config.max_dead);
    if (lp_url_is(option, "keep"))
        return lp_url_duration(option, 0, LAPSE_DELAY_MAX, &m->config.keep);
    if (lp_url_is(option, "overflow"))
        return read_overflow(option, m);
    return lp_fail(LAPSE_EURL,
                   "memory: has no option \"%.*s\": use engine, tick, slots, max_pending, "
                   "overflow, keep, max_dead",
                   (int)(option->name_len > 40 ? 40 : option->name_len), option->name);
}

static int read_url(memory *m)
{
    const char *p = m->config.url + strlen("memory:");
    p += strspn(p, "/");
    if (*p && *p != '?')
        return lp_fail(LAPSE_EURL, "memory: takes no path: use memory: or memory:?engine=heap");
    lp_url_option option;
    while (*p && lp_url_next(&p, &option)) {
        int code = option.name_len ? read_option(&option, m) : LAPSE_OK;
        if (code < 0)
            return code;
    }
    return LAPSE_OK;
}

static uint64_t draw_seed(const memory *m)
{
    uint64_t seed;
    if (getrandom(&seed, sizeof seed, GRND_NONBLOCK) == sizeof seed)
        return seed;
    return lp_hash_mix((uint64_t)m->config.wall, (uint64_t)(uintptr_t)m);
}

static void close_memory(lp_store *store)
{
    memory *m = (memory *)store;
    for (int side = 0; side < 2; side++)
        if (m->timer[side])
            lp_timer_close(m->timer[side]);
    for (size_t i = 0; i < m->queue_count; i++)
        free(m->queues[i].name);
    free(m->queues);
    lp_paged_free(&m->accepted);
    lp_index_free(&m->index);
    lp_pool_free(&m->pool);
    free(m);
}

static int fill_memory(memory *m)
{
    int code = read_url(m);
    if (code < 0)
        return code;
    m->queue_room = 4;
    m->queues = calloc(m->queue_room, sizeof *m->queues);
    if (!m->queues)
        return lp_fail_memory();
    m->queues[0] = (queue){.name = strdup(""), .due = {LP_NONE, LP_NONE}};
    m->queue_count = 1;
    if (!m->queues[0].name)
        return lp_fail_memory();
    return open_timer(m, LP_PUSH);
}

static int open_memory(const lp_store_config *config, lp_store **out)
{
    memory *m = calloc(1, sizeof *m);
    if (!m)
        return lp_fail_memory();
    m->base.ops = &lp_memory_store;
    m->config = *config;
    m->wall_offset = config->wall - config->now;
    /* Both go on growing over a restart of the process. */
    m->last_generation = m->last_fence = config->wall / 1000;
    m->expired_to = INT64_MIN;
    m->kept = m->dead = m->oldest = (list){LP_NONE, LP_NONE};
    m->seed = draw_seed(m);
    lp_pool_init(&m->pool, sizeof(order));
    lp_index_init(&m->index);
    m->timer_config = (lp_timer_config){
        .kind = LP_WHEEL, .tick = LAPSE_MS(1), .slots = 64, .start = config->now, .pool = &m->pool};
    int code = fill_memory(m);
    if (code < 0) {
        close_memory(&m->base);
        return code;
    }
    if (m->config.max_dead == 0)
        m->config.max_dead = 10000;
    m->config.url = NULL; /* the caller's */
    *out = &m->base;
    return LAPSE_OK;
}

static bool drain(lp_store *store, lp_remains *out)
{
    memory *m = (memory *)store;
    while (m->drain_at < lp_pool_limit(&m->pool)) {
        order *o = lp_pool_peek(&m->pool, m->drain_at++);
        if (!o)
            continue;
        lp_request r = {.remains_count = 0};
        leave_order(m, &r, o);
        free_id(o);
        *out = r.remains[0];
        return true;
    }
    return false;
}

const lp_store_ops lp_memory_store = {
    .scheme = "memory",
    .abilities = LAPSE_CAN_CALLBACK | LAPSE_CAN_CANCEL | LAPSE_CAN_LIST,
    .open = open_memory,
    .close = close_memory,
    .execute = execute,
    .claim = claim_next,
    .announce = announce,
    .next = next_due,
    .list = list_orders,
    .drain = drain,
    .count = count,
};
