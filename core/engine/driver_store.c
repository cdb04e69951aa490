/* driver_store.c - the driver as the rest of the engine sees it: a store that takes a while,
 * and what a host's loop has looked for and waits for. */
#include "base/error.h"
#include "engine/driver_parts.h"

/* -- Orders -- */

static void execute(lp_store *store, lp_request *requests, size_t count, lapse_ns now)
{
    lapse *s = lp_driver_of(store)->s;
    switch (requests[0].op) {
    case LP_END:
    case LP_AGAIN:
    case LP_DIE:
        lp_driver_end_claim(s, requests, now);
        return;
    case LP_LOSE:
        lp_driver_lose_claim(s, requests, now);
        return;
    default:
        lp_driver_ask_all(s, requests, count, now);
    }
}

static int claim(lp_store *store, lp_side side, lp_queue *queue, lapse_ns until, lapse_ns now,
                 lp_claim *c)
{
    (void)queue;
    if (side != LP_PUSH)
        return LP_CLAIM_NONE;
    return lp_driver_start_ready(lp_driver_of(store), until, now, c);
}

static bool announce(lp_store *store, lapse_ns now)
{
    (void)store;
    (void)now;
    return false; /* Takers ask the driver. */
}

static bool waits(lp_store *store)
{
    (void)store;
    return false;
}

static lapse_ns next(lp_store *store, lp_side side)
{
    return side == LP_PUSH && lp_driver_of(store)->ready ? 0 : LAPSE_FOREVER;
}

/* -- Queues -- */

static lp_queue *find_queue(lp_store *store, const char *name)
{
    return lp_driver_find_queue(lp_driver_of(store), name ? name : "");
}

static lp_queue *queue_at(lp_store *store, size_t n)
{
    const lp_driver *d = lp_driver_of(store);
    return n < d->queue_count ? d->queues[n] : NULL;
}

static int make_queue(lp_store *store, const char *name, lp_queue **out)
{
    *out = lp_driver_queue(lp_driver_of(store), name ? name : "");
    return *out ? LAPSE_OK : lp_fail_memory();
}

static void forget_queue(lp_store *store, lp_queue *q)
{
    (void)store; /* A name costs little. */
    (void)q;
}

static int prepare_queue(lp_store *store, lp_queue *q)
{
    (void)q;
    lp_driver_poke(lp_driver_of(store));
    return LAPSE_OK;
}

/* -- Waiting -- */

void lp_driver_waited_for(lp_driver *d)
{
    d->has_waited = true;
    if (!d->host_loops)
        d->host_wants = 0; /* It waits now, and wants no more than one. */
    lp_driver_wake(d);
}

void lp_driver_looked(lp_driver *d, bool in_pass)
{
    bool only_waits = d->has_waited && !d->host_loops && !d->s->options.clock && !in_pass;
    if (d->ready || only_waits)
        return;
    bool more = d->host_wants < d->host_most;
    d->host_wants = d->host_most;
    if (more)
        lp_driver_poke(d);
}

void lp_driver_polled(lp_driver *d, bool in_vain)
{
    d->host_told = false;
    if (!d->host_loops || d->host_polls || !in_vain)
        return;
    d->host_polls = true;
    lp_driver_poke(d);
}

lapse_ns lp_driver_timeout(const lp_driver *d, lapse_ns now)
{
    if (d->ready || d->host_told)
        return 0;
    if (d->backoff) {
        lapse_ns left = d->retry_at - lp_clock_monotonic();
        return left > LAPSE_MS(1) ? left : LAPSE_MS(1);
    }
    lapse_ns at = d->push_next < d->poll_at ? d->push_next : d->poll_at;
    if (d->take_next < at)
        at = d->take_next;
    return at > now ? at - now : LAPSE_MS(1); /* It is being fetched. */
}

static bool is_settled(const lp_driver *d)
{
    return d->sleeping && !d->inbox && (!d->dirty || d->backoff);
}

/* And has nothing left of what the store refused, unless it cannot ask now. */
static bool is_drained(const lp_driver *d)
{
    return is_settled(d) && (!d->refused || d->backoff || d->s->options.clock);
}

bool lp_driver_drain(lapse *s, lapse_ns deadline)
{
    const lp_driver *d = s->driver;
    s->inside++;
    while (!is_drained(d) && lp_await(s, deadline))
        continue;
    s->inside--;
    return is_drained(d);
}

void lp_driver_settle(lapse *s)
{
    lp_driver_poke(s->driver);
    lp_driver_drain(s, LAPSE_FOREVER);
}

/* -- The table -- */

static int open_driver(lp_store_config *config, lp_store **out)
{
    (void)config;
    *out = NULL;
    return lp_fail(LAPSE_ESTORE, "a driver is opened by lp_driver_open");
}

static void close_driver(lp_store *store)
{
    lp_driver_close(lp_driver_of(store));
}

static bool drain(lp_store *store, lp_remains *out)
{
    (void)store;
    (void)out;
    return false; /* The orders stay in the store. */
}

const lp_store_ops lp_driver_store = {
    .scheme = NULL,
    .abilities = 0, /* those of the durable store */
    .open = open_driver,
    .close = close_driver,
    .execute = execute,
    .claim = claim,
    .announce = announce,
    .waits = waits,
    .next = next,
    .list = lp_driver_list,
    .queue = find_queue,
    .queue_at = queue_at,
    .make_queue = make_queue,
    .forget_queue = forget_queue,
    .count_queue = lp_driver_count_queue,
    .prepare_queue = prepare_queue,
    .drain = drain,
    .count = lp_driver_count,
};
