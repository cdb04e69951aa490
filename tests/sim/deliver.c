/* deliver.c - what a scheduler does by itself, and whether it may. */
#include <stdlib.h>
#include <string.h>

#include "sim/story.h"
#include "sim/twin.h"

/* -- Passes --------------------------------------------------------------------------- */

void twin_enter_pass(void)
{
    tw.pass[tw.depth++] = (twin_pass){.frame = ++tw.frames, .until = tw.now};
}

void twin_leave_pass(void)
{
    tw.depth--;
}

unsigned twin_frame(void)
{
    return tw.depth ? tw.pass[tw.depth - 1].frame : 0;
}

/* -- Which order may start ------------------------------------------------------------ */

typedef enum answer { NO, MAYBE, YES } answer;

/* Whether a rate surely lets the next start through. */
static bool rate_is_open(const twin_queue *q, const twin_handler *h)
{
    lapse_ns saved_since = q->rate_reset > h->spent_at ? q->rate_reset : h->spent_at;
    return !h->spent || (double)(tw.now - saved_since) * 1e-9 * h->policy.rate >= 1 + 1e-6;
}

static void spend(twin_handler *h)
{
    h->spent = true;
    h->spent_at = tw.now;
}

static answer may_call(const twin_order *o)
{
    const twin_queue *q = &tw.queues[o->queue];
    if (q->paused)
        return NO;
    if (o->own)
        return YES;
    if (q->handler == NONE)
        return NO;
    const twin_handler *h = &tw.handlers[q->handler];
    return !h->policy.rate || rate_is_open(q, h) ? YES : MAYBE;
}

static answer may_take(const twin_order *o, int queue)
{
    const twin_queue *q = &tw.queues[o->queue];
    bool wanted = queue == NONE || queue == o->queue;
    return !o->own && wanted && !q->paused && q->handler == NONE ? YES : NO;
}

/* Whether the order may be handed out that way, its time apart. */
static answer may_start(const twin_order *o, twin_way way)
{
    if (tw.stopped || o->place != WAITING || (o->frame && o->frame == way.frame))
        return NO;
    return way.called ? may_call(o) : may_take(o, way.queue);
}

static bool surely_due(const twin_order *o, twin_way way)
{
    return twin_up(o->hi) <= way.until;
}

bool twin_any(twin_way way, bool surely)
{
    for (int i = 0; i < tw.order_count; i++) {
        const twin_order *o = &tw.orders[i];
        answer may = may_start(o, way);
        if (surely ? may == YES && surely_due(o, way) : may != NO && o->lo <= way.until)
            return true;
    }
    return false;
}

void twin_none(twin_way way)
{
    for (int i = 0; i < tw.order_count; i++) {
        const twin_order *o = &tw.orders[i];
        must(may_start(o, way) != YES || !surely_due(o, way),
             "%s generation %lld has been due since %lld, but was not handed out", twin_name(o),
             (long long)o->generation, (long long)o->hi);
    }
}

/* -- Whose turn it is ----------------------------------------------------------------- */

/* Whether `a` surely comes before `b`. */
static bool before(const twin_order *a, const twin_order *b)
{
    if (twin_up(a->hi) != twin_up(b->lo) || twin_up(a->lo) != twin_up(b->hi))
        return twin_up(a->hi) < twin_up(b->lo);
    return !a->again && !b->again && a < b;
}

static bool same_line(const twin_order *a, const twin_order *b)
{
    return !a->own && !b->own && a->queue == b->queue;
}

static bool is_rated(const twin_order *o, twin_way way)
{
    return way.called && !o->own && tw.handlers[tw.queues[o->queue].handler].policy.rate;
}

/* The first order of the same queue that surely comes before `o`, or NULL. */
static const twin_order *overtaken(const twin_order *o, twin_way way)
{
    for (int i = 0; i < tw.order_count; i++) {
        const twin_order *e = &tw.orders[i];
        if (e != o && same_line(e, o) && may_start(e, way) != NO && surely_due(e, way) &&
            before(e, o))
            return e;
    }
    return NULL;
}

/* Under a rate, while the oldest is more than a second late, one start in four goes to
 * the one that fell due last. */
static void check_newest_share(const twin_order *o, twin_way way)
{
    bool backlog = false;
    for (int i = 0; i < tw.order_count; i++) {
        const twin_order *e = &tw.orders[i];
        if (e == o || !same_line(e, o) || may_start(e, way) == NO)
            continue;
        backlog = backlog || tw.now - e->lo > LAPSE_SECONDS(1);
        must(!surely_due(e, way) || twin_up(e->lo) <= twin_up(o->hi),
             "%s overtakes its queue, but %s fell due later", twin_name(o), twin_name(e));
    }
    must(backlog, "%s overtakes its queue, where nothing is a second late", twin_name(o));
    must(tw.queues[o->queue].since_newest >= 3, "%s overtakes after %u others", twin_name(o),
         tw.queues[o->queue].since_newest);
}

/* Whether `o` may have been such a one, though equals do not tell. */
static bool may_be_newest_share(const twin_order *o, twin_way way)
{
    if (!is_rated(o, way) || tw.queues[o->queue].since_newest < 3)
        return false;
    for (int i = 0; i < tw.order_count; i++) {
        const twin_order *e = &tw.orders[i];
        if (e != o && same_line(e, o) && may_start(e, way) != NO && e->lo <= way.until &&
            tw.now - e->lo > LAPSE_SECONDS(1) && !before(o, e))
            return true;
    }
    return false;
}

/* The first order of any queue that surely comes before `o`, or NULL. */
static const twin_order *passed_over(const twin_order *o, twin_way way)
{
    for (int i = 0; i < tw.order_count; i++) {
        const twin_order *e = &tw.orders[i];
        if (e != o && may_start(e, way) == YES && surely_due(e, way) && before(e, o))
            return e;
    }
    return NULL;
}

static void check_turn(const twin_order *o, twin_way way)
{
    unsigned *since_newest = &tw.queues[o->queue].since_newest;
    if (is_rated(o, way) && overtaken(o, way)) {
        check_newest_share(o, way);
        *since_newest = 0;
        return;
    }
    const twin_order *e = passed_over(o, way);
    must(!e || may_be_newest_share(o, way),
         "%s generation %lld starts, but it is the turn of %s generation %lld", twin_name(o),
         (long long)o->generation, twin_name(e), (long long)e->generation);
    *since_newest = e ? 0 : *since_newest + is_rated(o, way);
}

/* No window of time sees more starts than the rate and what may be saved up. */
static void check_rate(twin_handler *h)
{
    if (!h->policy.rate)
        return;
    spend(h);
    h->starts[h->count++] = tw.now;
    double saved = h->policy.rate / 20.0 > 1 ? h->policy.rate / 20.0 : 1;
    for (size_t i = 0; i < h->count; i++) {
        double most = saved + (double)(tw.now - h->starts[i]) * 1e-9 * h->policy.rate;
        must((double)(h->count - i) <= most + 1e-6, "%zu starts of %s in %lld ns: its rate is %u",
             h->count - i, twin_queues[h->queue], (long long)(tw.now - h->starts[i]),
             h->policy.rate);
    }
}

/* -- Start ---------------------------------------------------------------------------- */

static const char *place_name(twin_place place)
{
    static const char *const names[] = {"waiting", "held", "done", "cancelled", "replaced", "dead"};
    return names[place];
}

static void check_shown(const twin_order *o, const lapse_order *shown)
{
    must(shown->id_len == strlen(twin_name(o)) && strcmp(shown->queue, twin_queues[o->queue]) == 0,
         "%s is shown with a wrong length or queue", twin_name(o));
    must(shown->payload_len == o->payload_len &&
             (o->payload_len == 0) == (shown->payload == NULL) &&
             (!o->payload_len || memcmp(shown->payload, o->payload, o->payload_len) == 0),
         "the payload of %s is not what was given", twin_name(o));
}

static lapse_ns since(lapse_ns due)
{
    return tw.now > due ? tw.now - due : 0;
}

static void check_times(const twin_order *o, const lapse_order *shown, twin_way way)
{
    must(o->lo <= tw.now, "%s starts %lld ns early", twin_name(o), (long long)(o->lo - tw.now));
    must(o->lo <= way.until, "%s starts, due %lld ns after what was asked for", twin_name(o),
         (long long)(o->lo - way.until));
    must(shown->late >= since(o->first_hi) && shown->late <= since(o->first_lo),
         "%s is %lld ns late, not from %lld to %lld", twin_name(o), (long long)shown->late,
         (long long)since(o->first_hi), (long long)since(o->first_lo));
    must(shown->due == twin_utc(tw.now - shown->late), "%s is shown as due at %lld, not %lld",
         twin_name(o), (long long)shown->due, (long long)twin_utc(tw.now - shown->late));
}

static void check_consumer(const twin_order *o, const void *fn_arg, bool fn_own)
{
    int handler = tw.queues[o->queue].handler;
    if (o->own)
        must(fn_own && fn_arg == &tw.tokens[o->token], "%s got another's callback", twin_name(o));
    else
        must(!fn_own && handler != NONE && fn_arg == &tw.handlers[handler],
             "%s got another's handler", twin_name(o));
}

static void check_alone(int order)
{
    for (int i = 0; i < tw.claim_count; i++) {
        const twin_claim *c = &tw.claims[i];
        must(c->order != order || c->settled || c->lost, "%s is held twice",
             twin_name(&tw.orders[order]));
    }
}

static twin_claim *add_claim(int order, const lapse_order *shown, bool called)
{
    const twin_order *o = &tw.orders[order];
    must(tw.claim_count < CLAIMS, "more deliveries than this life is made for");
    twin_claim *c = &tw.claims[tw.claim_count++];
    *c = (twin_claim){.shown = shown,
                      .fence = shown->fence,
                      .order = order,
                      .handler = called && !o->own ? tw.queues[o->queue].handler : NONE,
                      .called = called,
                      .lease = called ? LAPSE_HOURS(1) : tw.config.lease};
    if (c->handler != NONE) {
        tw.handlers[c->handler].refs++;
        c->lease = tw.handlers[c->handler].policy.run_limit;
    }
    c->lease_end = tw.now + c->lease;
    return c;
}

static void book_start(const twin_order *o, lapse_ns late)
{
    lapse_queue_stats *q = &tw.queues[o->queue].sum;
    tw.sum.started++;
    q->started++;
    if (late > tw.sum.late_max)
        tw.sum.late_max = late;
    if (late > q->late_max)
        q->late_max = late;
}

int twin_start(const lapse_order *shown, twin_way way, const void *fn_arg, bool fn_own)
{
    twin_settled();
    int order = twin_find(shown->id, shown->generation);
    must(order != NONE, "%s generation %lld starts, which was never accepted", shown->id,
         (long long)shown->generation);
    twin_order *o = &tw.orders[order];
    must(!tw.stopped, "%s starts after the stop", twin_name(o));
    must(o->place == WAITING, "%s generation %lld starts, but it is %s", twin_name(o),
         (long long)o->generation, place_name(o->place));
    must(may_start(o, way) != NO,
         "%s starts where it must not: paused, in the pass it belongs "
         "after, or by the wrong consumer",
         twin_name(o));
    must(shown->fence > tw.last_fence, "fence %lld after %lld", (long long)shown->fence,
         (long long)tw.last_fence);
    must(shown->attempt == o->attempt + 1, "%s has attempt %d after %d", twin_name(o),
         shown->attempt, o->attempt);
    check_alone(order);
    check_shown(o, shown);
    check_times(o, shown, way);
    if (way.called)
        check_consumer(o, fn_arg, fn_own);
    check_turn(o, way);
    twin_claim *c = add_claim(order, shown, way.called);
    if (c->handler != NONE) {
        lapse_ns expires = tw.handlers[c->handler].policy.expires;
        must(!expires || shown->late <= expires, "%s starts though it has expired", twin_name(o));
        check_rate(&tw.handlers[c->handler]);
    }
    tw.last_fence = shown->fence;
    o->place = HELD;
    o->attempt++;
    o->first_lo = o->first_hi = tw.now - shown->late;
    tw.called += way.called;
    book_start(o, shown->late);
    return tw.claim_count - 1;
}

/* -- Settle --------------------------------------------------------------------------- */

static twin_claim *find_claim(int64_t fence)
{
    for (int i = 0; i < tw.claim_count; i++)
        if (tw.claims[i].fence == fence && !tw.claims[i].settled)
            return &tw.claims[i];
    return NULL;
}

static const lapse_policy *policy_of(const twin_claim *c)
{
    static const lapse_policy taken = {.attempts = 5,
                                       .backoff = LAPSE_SECONDS(1),
                                       .backoff_max = LAPSE_HOURS(1),
                                       .backoff_percent = 200,
                                       .jitter_percent = 20};
    return c->handler == NONE ? &taken : &tw.handlers[c->handler].policy;
}

static int attempts_of(const twin_claim *c)
{
    return tw.orders[c->order].own ? 1 : policy_of(c)->attempts;
}

static void stop_holding(twin_claim *c)
{
    if (!c->lost)
        tw.called -= c->called;
}

static void wait_after(twin_claim *c, lapse_ns lo, lapse_ns hi)
{
    twin_order *o = &tw.orders[c->order];
    o->again = true;
    tw.sum.retried++;
    tw.queues[o->queue].sum.retried++;
    twin_wait(o, lo, hi);
    /* What was called back starts in a later pass. */
    if (c->called && o->hi <= tw.now)
        o->hi = o->first_hi = tw.now + 1;
}

static void back_off(twin_claim *c)
{
    const lapse_policy *p = policy_of(c);
    double delay = (double)p->backoff, most = (double)p->backoff_max;
    for (int i = 1; i < tw.orders[c->order].attempt && delay < most; i++)
        delay = delay * p->backoff_percent / 100;
    if (delay > most)
        delay = most;
    double spread = delay * p->jitter_percent / 100 * (1 + 1e-9) + 1;
    double lo = delay - spread > 0 ? delay - spread : 0;
    double hi = delay + spread < most ? delay + spread : most;
    wait_after(c, tw.now + (lapse_ns)lo, tw.now + (lapse_ns)hi);
}

/* Another attempt, if there is one left: what an own callback asks for always is. */
static void retry(twin_claim *c, lapse_ns delay, const char *error)
{
    twin_order *o = &tw.orders[c->order];
    if (!o->own && o->attempt >= attempts_of(c)) {
        twin_die(o, LAPSE_REASON_FAILED, error);
        return;
    }
    if (delay < 0) {
        back_off(c);
        return;
    }
    if (delay > LAPSE_DELAY_MAX)
        delay = LAPSE_DELAY_MAX;
    wait_after(c, tw.now + delay, tw.now + delay);
}

static void give_back(twin_claim *c)
{
    twin_order *o = &tw.orders[c->order];
    lapse_ns due = o->first_lo;
    o->attempt--;
    o->again = true;
    twin_wait(o, due, due);
    o->first_hi = due;
    o->hi = c->called ? tw.now + 1 : due;
    if (!c->called)
        o->frame = 0; /* A taken one stands where it stood. */
}

/* A fresh claim ends as its consumer says. */
static void decide(twin_claim *c, lapse_verdict verdict, lapse_ns delay, const char *error)
{
    twin_order *o = &tw.orders[c->order];
    switch (verdict) {
    case LAPSE_DONE:
        twin_end(o, DONE);
        return;
    case LAPSE_RETRY:
        retry(c, delay, error);
        return;
    case LAPSE_REJECT:
        twin_die(o, LAPSE_REASON_REJECTED, error);
        return;
    case LAPSE_GIVE_BACK:
        give_back(c);
        return;
    case LAPSE_FAIL:
        if (o->own)
            twin_end(o, DONE);
        else
            retry(c, -1, error);
        return;
    }
}

static void book_verdict(const twin_claim *c, lapse_verdict verdict)
{
    bool failed = verdict == LAPSE_FAIL;
    tw.sum.rejected += verdict == LAPSE_REJECT;
    tw.sum.given_back += verdict == LAPSE_GIVE_BACK;
    tw.sum.failed += failed;
    tw.queues[tw.orders[c->order].queue].sum.failed += failed;
}

/* Cancelled or scheduled anew while it ran: it ends, whatever it wishes. */
static void end_for_good(twin_claim *c, lapse_verdict verdict)
{
    twin_order *o = &tw.orders[c->order];
    bool wished = verdict == LAPSE_DONE || (verdict == LAPSE_FAIL && o->own);
    twin_end(o, c->no_more && !wished ? CANCELLED : DONE);
}

void twin_settle(int64_t fence, lapse_verdict verdict, lapse_ns delay, const char *error,
                 bool inside)
{
    const twin_claim *c = find_claim(fence);
    tw.settling = (twin_settling){true, fence, verdict, delay, error, inside, LAPSE_OK};
    if (c && (!c->inside || inside))
        tw.errors_due += verdict == LAPSE_FAIL;
}

static int settle(const twin_settling *s)
{
    twin_claim *c = find_claim(s->fence);
    if (!c || (c->inside && !s->inside)) {
        tw.sum.stale++;
        return LAPSE_ESTALE;
    }
    must(c->lost || c->lease_end > tw.now, "%s is settled, though its lease ended %lld ns ago",
         twin_name(&tw.orders[c->order]), (long long)(tw.now - c->lease_end));
    bool fresh = !c->lost && !c->superseded;
    stop_holding(c);
    c->settled = true;
    if (!c->lost) {
        book_verdict(c, s->verdict);
        if (c->superseded || c->no_more)
            end_for_good(c, s->verdict);
        else
            decide(c, s->verdict, s->delay, s->error);
    }
    twin_order *o = &tw.orders[c->order];
    if (o->holds == (int)(c - tw.claims))
        o->holds = NONE;
    if (c->handler != NONE)
        tw.handlers[c->handler].refs--;
    tw.sum.stale += !fresh;
    return fresh ? LAPSE_OK : LAPSE_ESTALE;
}

int twin_settled(void)
{
    if (tw.settling.asked) {
        tw.settling.asked = false;
        tw.settling.answer = settle(&tw.settling);
    }
    return tw.settling.answer;
}

bool twin_holds(int64_t fence)
{
    const twin_claim *c = find_claim(fence);
    return c && !c->lost && !c->superseded && c->lease_end > tw.now;
}

int twin_renew(int64_t fence, lapse_ns lease)
{
    if (lease < 0 || lease > LAPSE_DELAY_MAX)
        return LAPSE_ERANGE;
    if (!twin_holds(fence))
        return LAPSE_ESTALE;
    twin_claim *c = find_claim(fence);
    c->lease_end = tw.now + (lease ? lease : c->lease);
    return LAPSE_OK;
}

/* -- Lost ----------------------------------------------------------------------------- */

static void lose(twin_claim *c)
{
    twin_order *o = &tw.orders[c->order];
    must(c->lease_end <= tw.now, "%s is lost %lld ns early", twin_name(o),
         (long long)(c->lease_end - tw.now));
    stop_holding(c);
    c->lost = true;
    tw.sum.lost++;
    tw.errors_due += c->called;
    if (o->own || c->superseded || c->no_more) {
        twin_end(o, c->no_more ? CANCELLED : DONE);
        o->kept = false;
        if (tw.newest[o->id] == c->order)
            tw.newest[o->id] = NONE;
        o->holds = (int)(c - tw.claims);
    } else if (o->attempt >= attempts_of(c)) {
        twin_die(o, LAPSE_REASON_LOST,
                 c->called ? "the callback ran longer than its run_limit"
                           : "the lease ended before it was settled");
    } else {
        o->again = true;
        tw.sum.retried++;
        tw.queues[o->queue].sum.retried++;
        twin_wait(o, tw.now, twin_called_back(o) ? tw.now + 1 : tw.now);
        o->frame = 0;
    }
}

static bool is_overdue(const twin_claim *c)
{
    return !c->settled && !c->lost && c->lease_end <= tw.now;
}

void twin_told_of_loss(const char *message)
{
    if (!strstr(message, "was not settled in time"))
        return;
    const char *fence = strstr(message, "with the fence ");
    must(fence, "a loss without a fence: %s", message);
    twin_claim *c = find_claim(strtoll(fence + strlen("with the fence "), NULL, 10));
    must(c && is_overdue(c), "a loss that cannot be: %s", message);
    lose(c);
}

void twin_watched(void)
{
    for (int i = 0; i < tw.claim_count; i++)
        must(!is_overdue(&tw.claims[i]), "%s is held though its lease ended %lld ns ago",
             twin_name(&tw.orders[tw.claims[i].order]),
             (long long)(tw.now - tw.claims[i].lease_end));
}

/* -- Told ----------------------------------------------------------------------------- */

/* An order that is too late to run becomes a dead letter instead. */
static void expire(twin_order *o)
{
    twin_queue *q = &tw.queues[o->queue];
    must(!o->own && q->handler != NONE && !q->paused && !tw.stopped,
         "%s expires, but nothing would have started it", twin_name(o));
    lapse_ns expires = tw.handlers[q->handler].policy.expires;
    must(expires && since(o->first_lo) > expires, "%s expires, %lld ns late", twin_name(o),
         (long long)since(o->first_lo));
    q->since_newest++;
    tw.drops_seen -= tw.drops_seen > 0;
    twin_die(o, LAPSE_REASON_EXPIRED, NULL);
}

void twin_told_of_dead(const lapse_info *dead)
{
    int order = twin_find(dead->id, dead->generation);
    must(order != NONE, "%s died, which was never accepted", dead->id);
    twin_order *o = &tw.orders[order];
    if (dead->reason != LAPSE_REASON_LOST)
        twin_settled();
    if (o->place == WAITING && dead->reason == LAPSE_REASON_EXPIRED)
        expire(o);
    must(o->place == DEAD && !o->told, "on_dead tells of %s, which is %s", twin_name(o),
         place_name(o->place));
    twin_check_info(dead);
    o->told = true;
}

void twin_told_of_error(const lapse_order *shown, const char *error)
{
    must(tw.errors_due > 0, "on_error for %s, where nothing failed: %s", shown->id, error);
    must(shown->id_len == strlen(shown->id) && error && *error, "on_error with nothing to say");
    tw.errors_due--;
}
