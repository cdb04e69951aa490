/* twin.c - what is asked of a scheduler, and the answer that must come. */
#include "sim/twin.h"

#include <stdio.h>
#include <string.h>

#include "sim/story.h"

twin_world tw;

const char *twin_ids[IDS];
const char *const twin_queues[QUEUES] = {"", "mail", "stock", "pay"};

/* Short and long, so that records keep some themselves and not others. */
static void name_ids(void)
{
    static char names[IDS][LAPSE_ID_MAX + 1];
    static const size_t lengths[] = {0, 0, 21, 22, 255, 40, 0, 100};
    for (int i = 0; i < IDS; i++) {
        int n = snprintf(names[i], sizeof names[i], "OID%d", i + 1);
        size_t length = lengths[(size_t)i % (sizeof lengths / sizeof *lengths)];
        if (length)
            memset(names[i] + n, '-', length - (size_t)n);
        twin_ids[i] = names[i];
    }
}

void twin_open(const twin_config *config, lapse_ns now, lapse_ns wall)
{
    if (!twin_ids[0])
        name_ids();
    memset(&tw, 0, offsetof(twin_world, orders));
    tw.config = *config;
    tw.now = now;
    tw.wall = wall;
    for (int id = 0; id < IDS; id++)
        tw.newest[id] = NONE;
    for (int q = 0; q < QUEUES; q++)
        tw.queues[q].handler = NONE;
    tw.queues[0].known = true;
}

/* -- Orders --------------------------------------------------------------------------- */

const char *twin_name(const twin_order *o)
{
    return twin_ids[o->id];
}

int twin_find(const char *id, int64_t generation)
{
    for (int i = 0; i < tw.order_count; i++)
        if (tw.orders[i].generation == generation && strcmp(twin_name(&tw.orders[i]), id) == 0)
            return i;
    return NONE;
}

lapse_ns twin_up(lapse_ns due)
{
    lapse_ns tick = tw.config.tick;
    return tick && due % tick ? due - due % tick + tick : due;
}

lapse_ns twin_utc(lapse_ns at)
{
    return at + (tw.wall - tw.now);
}

bool twin_remembered(const twin_order *o)
{
    return tw.config.keep && tw.now - o->ended <= tw.config.keep;
}

bool twin_visible(const twin_order *o)
{
    return o->place == WAITING || o->place == HELD || (o->place == DEAD && o->listed) ||
           (o->kept && twin_remembered(o));
}

bool twin_called_back(const twin_order *o)
{
    return o->own || tw.queues[o->queue].handler != NONE;
}

void twin_wait(twin_order *o, lapse_ns lo, lapse_ns hi)
{
    /* While callbacks run, what is due at once may wait for the next nanosecond. */
    if (twin_called_back(o) && (tw.called > 0 || tw.hooked) && hi <= tw.now)
        hi = tw.now + 1;
    o->lo = o->first_lo = lo;
    o->hi = o->first_hi = hi;
    o->frame = twin_called_back(o) && !tw.hooked ? twin_frame() : 0;
    o->waits_since = ++tw.waits;
    o->place = WAITING;
}

static int index_of(const twin_order *o)
{
    return (int)(o - tw.orders);
}

static void lose_name(const twin_order *o)
{
    if (tw.newest[o->id] == index_of(o))
        tw.newest[o->id] = NONE;
}

void twin_end(twin_order *o, twin_place how)
{
    o->place = how;
    o->ended = tw.now;
    o->kept = tw.config.keep && tw.newest[o->id] == index_of(o);
    if (!o->kept)
        lose_name(o);
}

bool twin_is_over(const twin_order *o)
{
    if (o->place == WAITING || o->place == HELD || o->holds != NONE)
        return false;
    return o->place != DEAD || !o->listed;
}

static void unlist(twin_order *o)
{
    o->listed = false;
    lose_name(o);
}

/* The dead letter, of those that `wanted` accepts, that died first or last; or NONE. */
static int dead_letter(bool last, int id, int64_t generation)
{
    int found = NONE;
    for (int i = 0; i < tw.order_count; i++) {
        const twin_order *o = &tw.orders[i];
        if (!o->listed || (id != NONE && o->id != id) ||
            (id != NONE && generation != LAPSE_ANY && o->generation != generation))
            continue;
        if (found == NONE || (o->died > tw.orders[found].died) == last)
            found = i;
    }
    return found;
}

static uint64_t count_listed(void)
{
    uint64_t n = 0;
    for (int i = 0; i < tw.order_count; i++)
        n += tw.orders[i].listed;
    return n;
}

static void drop_oldest_dead(void)
{
    unlist(&tw.orders[dead_letter(false, NONE, 0)]);
    tw.sum.dead_dropped++;
}

void twin_die(twin_order *o, lapse_reason reason, const char *error)
{
    o->place = DEAD;
    o->listed = true;
    o->told = false;
    o->reason = reason;
    o->error = error;
    o->ended = tw.now;
    o->died = ++tw.deaths;
    if (count_listed() > tw.config.max_dead)
        drop_oldest_dead();
}

/* -- Schedule ------------------------------------------------------------------------- */

static bool is_full(void)
{
    uint64_t n = 0;
    for (int i = 0; i < tw.order_count; i++)
        n += tw.orders[i].place == WAITING || tw.orders[i].place == HELD;
    return tw.config.max_pending && n >= tw.config.max_pending;
}

/* The order that began to wait longest ago, or NONE. */
static int oldest_waiting(void)
{
    int oldest = NONE;
    for (int i = 0; i < tw.order_count; i++)
        if (tw.orders[i].place == WAITING &&
            (oldest == NONE || tw.orders[i].waits_since < tw.orders[oldest].waits_since))
            oldest = i;
    return oldest;
}

static bool has_room(void)
{
    return !is_full() ||
           (tw.config.overflow == LAPSE_DEAD_LETTER_OLDEST && oldest_waiting() != NONE);
}

/* The newest of an id gives its name to another. */
static void give_way(twin_order *o)
{
    o->kept = false;
    if (o->place == WAITING) {
        o->place = REPLACED;
        tw.sum.replaced++;
    }
    for (int i = 0; i < tw.claim_count; i++)
        if (o->place == HELD && tw.claims[i].order == index_of(o) && !tw.claims[i].lost)
            tw.claims[i].superseded = true;
}

static twin_order *accept_order(const twin_order *model, lapse_ns due)
{
    if (tw.newest[model->id] != NONE)
        give_way(&tw.orders[tw.newest[model->id]]);
    if (is_full())
        twin_die(&tw.orders[oldest_waiting()], LAPSE_REASON_MAXLEN, NULL);
    twin_order *o = &tw.orders[tw.order_count++];
    *o = *model;
    o->generation = 0;
    tw.newest[o->id] = index_of(o);
    twin_wait(o, due, due);
    tw.sum.scheduled++;
    return o;
}

static int refuse(int code)
{
    tw.sum.refused++;
    return code;
}

static int give_token(const twin_new *n)
{
    if (!n->has_arg)
        return NONE;
    tw.tokens[tw.token_count] = (twin_token){
        .order = tw.order_count - 1,
        .by_default = !n->own_release,
        .expected = n->own_release || tw.config.releases,
    };
    return tw.token_count++;
}

int twin_schedule(const twin_new *n)
{
    if (tw.stopped)
        return refuse(LAPSE_ECLOSED);
    int old = tw.newest[n->id];
    bool waits = old != NONE && tw.orders[old].place == WAITING;
    if (waits && !n->replace)
        return refuse(LAPSE_EEXISTS);
    if (!waits && !has_room())
        return refuse(LAPSE_EFULL);
    twin_order model = {.id = n->id,
                        .queue = n->queue,
                        .own = n->own,
                        .holds = NONE,
                        .payload_len = n->payload_len};
    memcpy(model.payload, n->payload, n->payload_len);
    tw.queues[n->queue].known = true;
    twin_order *o = accept_order(&model, n->due);
    o->token = give_token(n);
    return LAPSE_OK;
}

void twin_accepted(int order, int64_t generation)
{
    must(generation > 0, "generation %lld", (long long)generation);
    for (int i = 0; i < tw.order_count; i++) {
        int64_t other = tw.orders[i].generation;
        if (i != order && other)
            must((other < generation) == (i < order),
                 "generation %lld is out of turn: the order number %d has %lld",
                 (long long)generation, i, (long long)other);
    }
    tw.orders[order].generation = generation;
}

/* -- Cancel, reschedule --------------------------------------------------------------- */

/* The order that an id and a generation name, or NULL. */
static twin_order *named(int id, int64_t generation)
{
    if (tw.newest[id] == NONE)
        return NULL;
    twin_order *o = &tw.orders[tw.newest[id]];
    return generation == LAPSE_ANY || generation == o->generation ? o : NULL;
}

static int fate_of_ended(const twin_order *o)
{
    return twin_remembered(o) ? LAPSE_FATE_DONE : LAPSE_FATE_UNKNOWN;
}

int twin_cancel(int id, int64_t generation)
{
    twin_order *o = named(id, generation);
    if (!o)
        return LAPSE_FATE_UNKNOWN;
    if (o->place == WAITING) {
        twin_end(o, CANCELLED);
        return LAPSE_FATE_CANCELLED;
    }
    if (o->place != HELD)
        return fate_of_ended(o);
    for (int i = 0; i < tw.claim_count; i++)
        if (tw.claims[i].order == index_of(o) && !tw.claims[i].settled && !tw.claims[i].lost)
            tw.claims[i].no_more = true;
    return LAPSE_FATE_RUNNING;
}

int twin_reschedule(int id, int64_t generation, lapse_ns due)
{
    twin_order *o = named(id, generation);
    if (tw.stopped)
        return LAPSE_ECLOSED;
    if (!o)
        return LAPSE_FATE_UNKNOWN;
    if (o->place == HELD)
        return LAPSE_FATE_RUNNING;
    if (o->place != WAITING)
        return fate_of_ended(o);
    o->again = true;
    twin_wait(o, due, due);
    tw.sum.rescheduled++;
    return LAPSE_FATE_RESCHEDULED;
}

/* -- Dead letters --------------------------------------------------------------------- */

int twin_requeue(int id, int64_t generation, lapse_ns due)
{
    if (tw.stopped)
        return refuse(LAPSE_ECLOSED);
    int found = dead_letter(true, id, generation), newest = tw.newest[id];
    if (found == NONE)
        return LAPSE_EUNKNOWN;
    if (newest != NONE && (tw.orders[newest].place == WAITING || tw.orders[newest].place == HELD))
        return refuse(LAPSE_EEXISTS);
    if (!has_room())
        return refuse(LAPSE_EFULL);
    twin_order *dead = &tw.orders[found], model = *dead;
    unlist(dead);
    dead->token = NONE;
    model.listed = model.again = false;
    model.reason = LAPSE_REASON_NONE;
    model.error = NULL;
    model.attempt = 0;
    if (model.token != NONE)
        tw.tokens[model.token].order = tw.order_count;
    accept_order(&model, due);
    tw.sum.requeued++;
    return LAPSE_OK;
}

int64_t twin_purge(int id, int64_t generation)
{
    int64_t n = 0;
    for (int found; (found = dead_letter(true, id, generation)) != NONE; n++)
        unlist(&tw.orders[found]);
    tw.sum.purged += (uint64_t)n;
    return n;
}

/* -- Queues --------------------------------------------------------------------------- */

static bool is_duration(lapse_ns t)
{
    return t >= 0 && t <= LAPSE_DELAY_MAX;
}

static bool is_policy(const lapse_policy *p)
{
    return p->attempts >= 0 && is_duration(p->backoff) && is_duration(p->run_limit) &&
           is_duration(p->expires);
}

/* The defaults that lapse.h names. */
static lapse_policy complete(lapse_policy p)
{
    p.attempts = p.attempts ? p.attempts : 5;
    p.backoff = p.backoff ? p.backoff : LAPSE_SECONDS(1);
    p.backoff_max = p.backoff_max ? p.backoff_max : LAPSE_HOURS(1);
    p.backoff_percent = p.backoff_percent ? p.backoff_percent : 200;
    p.jitter_percent = p.jitter_percent < 0 ? 0 : p.jitter_percent ? p.jitter_percent : 20;
    p.run_limit = p.run_limit ? p.run_limit : LAPSE_HOURS(1);
    return p;
}

int twin_handle(int queue, const lapse_policy *policy)
{
    twin_queue *q = &tw.queues[queue];
    if (policy && !is_policy(policy))
        return LAPSE_ERANGE;
    if (tw.stopped)
        return LAPSE_ECLOSED;
    if (policy && q->taken)
        return LAPSE_EMIXED;
    q->known = true;
    const twin_handler *old = q->handler == NONE ? NULL : &tw.handlers[q->handler];
    if (old)
        tw.handlers[q->handler].refs--;
    q->handler = NONE;
    if (!policy)
        return LAPSE_OK;
    q->handler = tw.handler_count++;
    twin_handler *h = &tw.handlers[q->handler];
    if (old) /* What was saved up under its rate is the queue's. */
        *h = *old;
    h->queue = queue;
    h->policy = complete(*policy);
    h->refs = 1;
    h->released = false;
    h->count = 0;
    h->spent = old && h->spent;
    q->rate_reset = tw.now; /* Until now it saved up at the old rate. */
    return LAPSE_OK;
}

void twin_pause(int queue, bool paused)
{
    tw.queues[queue].known = true;
    if (tw.queues[queue].paused != paused)
        tw.queues[queue].rate_reset = tw.now;
    tw.queues[queue].paused = paused;
}

int twin_take(int queue)
{
    if (queue != NONE) {
        tw.queues[queue].known = true;
        if (tw.queues[queue].handler != NONE)
            return LAPSE_EMIXED;
        tw.queues[queue].taken = true;
    }
    return tw.stopped ? LAPSE_ECLOSED : LAPSE_OK;
}

/* -- Releases ------------------------------------------------------------------------- */

void twin_released(int token, bool by_default)
{
    must(token >= 0 && token < tw.token_count, "release of something never given");
    twin_token *t = &tw.tokens[token];
    const twin_order *o = &tw.orders[t->order];
    if (!twin_is_over(o))
        twin_settled();
    if (!tw.closing && o->listed && t->order == dead_letter(false, NONE, 0) &&
        count_listed() == tw.config.max_dead) {
        drop_oldest_dead(); /* For one that has just expired. */
        tw.drops_seen++;
    }
    must(!t->released, "%s generation %lld was released twice", twin_name(o),
         (long long)o->generation);
    must(tw.closing || twin_is_over(o), "%s is released though it may still run", twin_name(o));
    must(t->expected && t->by_default == by_default, "the wrong release was called for %s",
         twin_name(o));
    t->released = true;
}

void twin_handler_released(int handler)
{
    twin_handler *h = &tw.handlers[handler];
    if (h->refs)
        twin_settled();
    must(!h->released, "a handler of %s was released twice", twin_queues[h->queue]);
    must(h->refs == 0, "a handler of %s was released while it is in use", twin_queues[h->queue]);
    h->released = true;
}
