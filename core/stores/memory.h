/* memory.h - the memory store from inside: only for stores/memory*.c.
 *
 * An order is one 64-byte record in a pool, found by its id through the index, and in
 * exactly one place that its state names:
 *
 *     PENDING   one of the two timers: push (it brings a callback) or pull (it does not),
 *               so that neither kind waits for the consumers of the other
 *     DUE       push: the ready ring, or PARKED in its queue's list while that is paused
 *               pull: its queue's list
 *     RUNNING   a claim of the engine
 *     KEPT      the list of those that ended within `keep`
 *     DEAD      the list of dead letters
 *
 *     PENDING --due--> DUE --claim--> RUNNING --end--> KEPT --keep over--> free
 *        ^                               |  \--die--> DEAD --max_dead--> free
 *        `------------ again ------------'
 *
 * Whatever an order leaves behind (a release, a block to free) is handed back to the
 * engine. Ending, dying and running again allocate nothing that they cannot do without:
 * room in the timer is reserved while an order runs. */
#ifndef LP_MEMORY_H
#define LP_MEMORY_H

#include "base/paged.h"
#include "stores/store.h"
#include "timer/hash.h"
#include "timer/index.h"
#include "timer/pool.h"
#include "timer/timer.h"

enum { FREE = 0, PENDING, DUE, RUNNING, KEPT, DEAD };

/* node.state holds one of the above and these. */
enum {
    STATE = 0x0f,
    EXTRA = 0x10,  /* `a.extra` (RUNNING: claim->kept) is set */
    NAMED = 0x20,  /* the newest of its id: the index knows it */
    PULL = 0x40,   /* no callback of its own */
    PARKED = 0x80, /* DUE with a callback, in its queue's list */
};

enum {
    INLINE_ID = 21,     /* longest id kept in the record */
    READY = 64,         /* orders in the ready ring */
    ATTEMPT_MAX = 4095, /* where the count of attempts stops */
};

/* What only some orders have, and all dead ones that memory allows it. */
typedef struct extra {
    lapse_callback fn;
    void *arg;
    lapse_release release;
    char *error;
    lapse_ns ended;
    lapse_ns first_due; /* before it was given back; LP_UNKNOWN_TIME: it was not */
    size_t payload_len;
    unsigned char payload[];
} extra;

/* Neighbours in a list, by record. */
typedef struct links {
    uint32_t prev, next;
} links;

typedef struct order {
    lp_node node;
    int64_t generation;
    union {
        lapse_callback fn; /* without EXTRA */
        extra *extra;      /* with EXTRA, but not RUNNING */
        lp_claim *claim;   /* RUNNING */
        lapse_ns ended;    /* KEPT */
    } a;
    union {
        void *arg;  /* without EXTRA: PENDING, DUE with a callback */
        links link; /* DUE without one, KEPT, DEAD */
    } b;
    uint16_t attempt : 12;  /* deliveries so far, saturating */
    uint16_t reason : 4;    /* DEAD: a lapse_reason */
    char id[INLINE_ID + 1]; /* or, when longer, the pointer to it */
} order;

_Static_assert(sizeof(order) == 64, "an order fills one cache line");

/* A list of records, through their b.link or through a table beside them. */
typedef struct list {
    uint32_t head, tail;
    lp_paged *table; /* of links; NULL: b.link */
} list;

typedef struct queue {
    lp_queue shared; /* first: the engine's lp_queue is this queue */
    uint16_t number;
    bool listed; /* in memory.active */
    list due;    /* without a callback of their own */
    list parked; /* with one, while the queue is paused and until they start */
} queue;

typedef struct memory {
    lp_store base;
    lp_pool pool;
    lp_index index;
    uint64_t seed;
    lp_timer *timer[2];    /* by lp_side; LP_PULL is opened when first needed */
    uint64_t running[2];   /* by lp_side of the order */
    uint64_t called;       /* of these, claimed for a callback */
    uint64_t assured[2];   /* inserts into the timers that cannot fail; above `running` */
    uint64_t moved;        /* entries moved in all structures, as of the last look */
    lapse_ns expired_to;   /* the latest time that due orders were taken out for */
    uint32_t ready[READY]; /* due orders with a callback; LP_NONE where withdrawn */
    unsigned ready_at, ready_end;

    queue **queues; /* [0] is "" */
    size_t queue_count, queue_room;
    lp_index queue_index;
    queue *found;   /* that an order named last, as most programs name few; or NULL */
    queue **active; /* queues that are handled or have parked orders */
    size_t active_count;

    list kept, dead, oldest;   /* `oldest`: pending, as accepted; under overflow only */
    lp_paged accepted, parked; /* links of `oldest` and of the queues' parked */
    bool parks;                /* a queue has been paused: `parked` covers all records */

    lp_counts counts;
    uint64_t extra_bytes;
    int64_t last_generation, last_fence;
    lapse_ns wall_offset; /* UTC minus store clock, at open */
    uint32_t drain_at;
    lp_store_config config;
    lp_timer_config timer_config;
} memory;

static inline order *lp_memory_at(const memory *m, uint32_t index)
{
    order *chunk = (void *)lp_pool_chunk(&m->pool, index)->records;
    return &chunk[index % LP_POOL_CHUNK];
}

static inline int lp_memory_state(const order *o)
{
    return o->node.state & STATE;
}

static inline void lp_memory_set_state(order *o, int state)
{
    o->node.state = (uint8_t)((o->node.state & ~(STATE | PARKED)) | state);
}

static inline lp_side lp_memory_side(const order *o)
{
    return o->node.state & PULL ? LP_PULL : LP_PUSH;
}

static inline queue *lp_memory_queue_of(const memory *m, const order *o)
{
    return m->queues[o->node.queue];
}

/* What lies in the record of an order that is not running. */
static inline extra *lp_memory_extra(const order *o)
{
    return o->node.state & EXTRA ? o->a.extra : NULL;
}

/* When it was due, as its consumer is told. */
static inline lapse_ns lp_memory_due(const order *o)
{
    const extra *x = lp_memory_extra(o);
    return x && x->first_due != LP_UNKNOWN_TIME ? x->first_due : o->node.due;
}

/* -- memory_order.c: records, queues, places -- */

char *lp_memory_id(order *o);
uint64_t lp_memory_hash(const memory *m, order *o);
static inline uint64_t lp_memory_hash_of(const memory *m, const lp_request *r)
{
    return lp_hash(r->id, r->id_len, m->seed);
}
uint32_t lp_memory_find(const memory *m, uint64_t hash, const char *id, size_t len);
uint32_t lp_memory_search(const memory *m, uint64_t hash, const char *id, size_t len,
                          lp_index_place *place);

queue *lp_memory_find_queue(const memory *m, const char *name);
int lp_memory_make_queue(memory *m, const char *name, queue **out);
void lp_memory_forget_queue(memory *m, queue *q); /* if it was never used */
void lp_memory_free_queues(memory *m);
int lp_memory_list_queue(memory *m, queue *q); /* into m->active */
size_t lp_memory_links_bytes(const memory *m);

void lp_memory_append(memory *m, list *l, uint32_t index);
void lp_memory_insert(memory *m, list *l, uint32_t index, uint32_t before); /* LP_NONE: last */
void lp_memory_unlink(memory *m, list *l, uint32_t index);

/* A record with all that an order needs, in no place yet; LP_NONE without memory. */
uint32_t lp_memory_make(memory *m, const char *id, size_t len, const lapse_spec *spec,
                        const queue *q);
void lp_memory_unmake(memory *m, uint32_t index);

/* An extra for an order that had none; NULL without memory. */
extra *lp_memory_add_extra(memory *m, lapse_callback fn, void *arg);

/* Hand what an order holds to the request. */
void lp_memory_leave(lp_request *r, lapse_release release, void *arg, void *block);
void lp_memory_leave_extra(memory *m, lp_request *r, extra *x, lapse_callback fn, void *arg);
void lp_memory_leave_order(memory *m, lp_request *r, order *o);

/* Free the record of an order that is in no place and has left everything. */
void lp_memory_bury(memory *m, uint32_t index);

int lp_memory_reserve(memory *m, lp_side side);

/* Room for one more insert beside those that the running orders may need. */
static inline int lp_memory_make_room(memory *m, lp_side side)
{
    return m->assured[side] > m->running[side] ? LAPSE_OK : lp_memory_reserve(m, side);
}

/* Into the timer, after make_room, as pending; and out of wherever it waits. */
void lp_memory_start_waiting(memory *m, uint32_t index, lapse_ns due);
void lp_memory_stop_waiting(memory *m, uint32_t index);

/* The end of an order that is in no place and has left everything. */
void lp_memory_end(memory *m, uint32_t index, lapse_ns now);

/* An order that is in no place becomes a dead letter. `x`, or else `fn` and `arg`, is
 * what it has. */
void lp_memory_die(memory *m, lp_request *r, uint32_t index, extra *x, lapse_callback fn, void *arg,
                   lapse_ns now);

/* -- memory_change.c, memory_claim.c, memory_look.c -- */

int64_t lp_memory_schedule(memory *m, lp_request *r, uint64_t hash, lapse_ns now);
int64_t lp_memory_cancel(memory *m, lp_request *r, uint64_t hash, lapse_ns now);
int64_t lp_memory_reschedule(memory *m, lp_request *r, uint64_t hash, lapse_ns now);
int64_t lp_memory_requeue(memory *m, lp_request *r, lapse_ns now);
int64_t lp_memory_purge(memory *m, lp_request *r);

int lp_memory_claim(lp_store *store, lp_side side, lp_queue *from, lapse_ns until, lapse_ns now,
                    lp_claim *claim);
bool lp_memory_announce(lp_store *store, lapse_ns now);
bool lp_memory_waits(lp_store *store);
lapse_ns lp_memory_next(lp_store *store, lp_side side);
uint32_t lp_memory_first_ready(memory *m);
int64_t lp_memory_end_claim(memory *m, lp_request *r, lapse_ns now);
int64_t lp_memory_again(memory *m, lp_request *r);
int64_t lp_memory_die_claim(memory *m, lp_request *r, lapse_ns now);
int64_t lp_memory_lose(memory *m, lp_request *r, lapse_ns now);

int lp_memory_look(memory *m, order *o, lapse_info *out, lapse_ns now);
int64_t lp_memory_get(memory *m, lp_request *r, lapse_ns now);
int lp_memory_list(lp_store *store, uint64_t *cursor, unsigned states, lapse_info *out, int max,
                   lapse_ns now);
int lp_memory_count_queue(lp_store *store, lp_queue *q, lp_counts *out);
int lp_memory_count(lp_store *store, lp_counts *out);

/* Note what was moved since the last look, if it is the most. */
static inline void lp_memory_note_moved(memory *m)
{
    uint64_t sum = lp_index_moved(&m->index) + lp_timer_moved(m->timer[LP_PUSH]);
    if (m->timer[LP_PULL])
        sum += lp_timer_moved(m->timer[LP_PULL]);
    if (sum - m->moved > m->counts.moved)
        m->counts.moved = sum - m->moved;
    m->moved = sum;
}

/* -- memory_url.c -- */

int lp_memory_read_url(memory *m);

#endif
