/* memory.c - orders in the memory of this process: the store's table, opening, closing.
 *
 * memory.h says how orders are kept. */
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/error.h"
#include "stores/memory.h"

static void answer(memory *m, lp_request *r, uint64_t hash, lapse_ns now)
{
    switch (r->op) {
    case LP_SCHEDULE:
        r->answer = lp_memory_schedule(m, r, hash, now);
        return;
    case LP_CANCEL:
        r->answer = lp_memory_cancel(m, r, hash, now);
        return;
    case LP_RESCHEDULE:
        r->answer = lp_memory_reschedule(m, r, hash, now);
        return;
    case LP_GET:
        r->answer = lp_memory_get(m, r, now);
        return;
    case LP_REQUEUE:
        r->answer = lp_memory_requeue(m, r, now);
        return;
    case LP_PURGE:
        r->answer = lp_memory_purge(m, r);
        return;
    case LP_END:
        r->answer = lp_memory_end_claim(m, r, now);
        return;
    case LP_AGAIN:
        r->answer = lp_memory_again(m, r);
        return;
    case LP_DIE:
        r->answer = lp_memory_die_claim(m, r, now);
        return;
    case LP_LOSE:
        r->answer = lp_memory_lose(m, r, now);
        return;
    }
}

/* Of a request about an order that is looked for by its id. */
static uint64_t hash_of(const memory *m, const lp_request *r)
{
    bool by_id = r->op == LP_SCHEDULE || r->op == LP_CANCEL || r->op == LP_RESCHEDULE;
    return by_id ? lp_memory_hash_of(m, r) : 0;
}

/* Of several, hashes first and loads what their schedules will look at, so that the cache
 * misses overlap. */
static void execute_batch(memory *m, lp_request *requests, size_t count, lapse_ns now)
{
    enum { BATCH = 32 };
    uint64_t hash[BATCH];
    for (size_t from = 0; from < count; from += BATCH) {
        size_t n = count - from < BATCH ? count - from : BATCH;
        for (size_t i = 0; i < n; i++) {
            hash[i] = hash_of(m, &requests[from + i]);
            lp_index_prefetch(&m->index, hash[i]);
        }
        for (size_t i = 0; i < n; i++) {
            answer(m, &requests[from + i], hash[i], now);
            lp_memory_note_moved(m);
        }
    }
}

static void execute(lp_store *store, lp_request *requests, size_t count, lapse_ns now)
{
    memory *m = (memory *)store;
    if (count > 1) {
        execute_batch(m, requests, count, now);
        return;
    }
    answer(m, requests, hash_of(m, requests), now);
    lp_memory_note_moved(m);
}

static lp_queue *queue_by_name(lp_store *store, const char *name)
{
    return (lp_queue *)lp_memory_find_queue((memory *)store, name);
}

static int make_queue(lp_store *store, const char *name, lp_queue **out)
{
    queue *q;
    int code = lp_memory_make_queue((memory *)store, name, &q);
    *out = (lp_queue *)q;
    return code;
}

static void forget_queue(lp_store *store, lp_queue *q)
{
    lp_memory_forget_queue((memory *)store, (queue *)q);
}

static lp_queue *queue_at(lp_store *store, size_t n)
{
    memory *m = (memory *)store;
    return n < m->queue_count ? &m->queues[n]->shared : NULL;
}

static int prepare_queue(lp_store *store, lp_queue *q)
{
    return lp_memory_list_queue((memory *)store, (queue *)q);
}

static uint64_t draw_seed(const memory *m)
{
    uint64_t seed;
    if (getrandom(&seed, sizeof seed, GRND_NONBLOCK) == sizeof seed)
        return seed;
    return lp_hash_mix((uint64_t)m->config.wall | 1, (uint64_t)(uintptr_t)m);
}

static void close_memory(lp_store *store)
{
    memory *m = (memory *)store;
    for (int side = 0; side < 2; side++)
        if (m->timer[side])
            lp_timer_close(m->timer[side]);
    lp_memory_free_queues(m);
    lp_paged_free(&m->accepted);
    lp_paged_free(&m->parked);
    lp_index_free(&m->index);
    lp_pool_free(&m->pool);
    free(m);
}

static int fill_memory(memory *m)
{
    int code = lp_memory_read_url(m);
    if (code < 0)
        return code;
    queue *first;
    code = lp_memory_make_queue(m, "", &first);
    return code < 0 ? code : lp_memory_make_room(m, LP_PUSH);
}

static int open_memory(lp_store_config *config, lp_store **out)
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
    m->kept = m->dead = (list){LP_NONE, LP_NONE, NULL};
    m->oldest = (list){LP_NONE, LP_NONE, &m->accepted};
    m->seed = draw_seed(m);
    lp_pool_init(&m->pool, sizeof(order));
    lp_index_init(&m->index);
    lp_index_init(&m->queue_index);
    m->timer_config = (lp_timer_config){
        .kind = LP_WHEEL, .tick = LAPSE_MS(1), .slots = 64, .start = config->now, .pool = &m->pool};
    int code = fill_memory(m);
    if (code < 0) {
        close_memory(&m->base);
        return code;
    }
    if (m->config.max_dead == 0)
        m->config.max_dead = 10000;
    *config = m->config;
    m->config.url = NULL; /* the caller's */
    *out = &m->base;
    return LAPSE_OK;
}

static bool drain(lp_store *store, lp_remains *out)
{
    memory *m = (memory *)store;
    while (m->drain_at < lp_pool_limit(&m->pool)) {
        uint32_t index = m->drain_at++;
        order *o = lp_pool_peek(&m->pool, index);
        if (!o)
            continue;
        lp_request r = {.remains_count = 0};
        lp_memory_leave_order(m, &r, o);
        if (o->node.id_len > INLINE_ID)
            free(lp_memory_id(o));
        *out = r.remains[0];
        return true;
    }
    return false;
}

const lp_store_ops lp_memory_store = {
    .scheme = "memory",
    .abilities = LAPSE_CAN_CALLBACK | LAPSE_CAN_CANCEL | LAPSE_CAN_LIST | LAPSE_CAN_LIMIT,
    .open = open_memory,
    .close = close_memory,
    .execute = execute,
    .claim = lp_memory_claim,
    .announce = lp_memory_announce,
    .waits = lp_memory_waits,
    .next = lp_memory_next,
    .list = lp_memory_list,
    .queue = queue_by_name,
    .queue_at = queue_at,
    .make_queue = make_queue,
    .forget_queue = forget_queue,
    .count_queue = lp_memory_count_queue,
    .prepare_queue = prepare_queue,
    .drain = drain,
    .count = lp_memory_count,
};
