/* life.c - one whole life of a scheduler, from a seed.
 *
 * Each step is told to the twin, asked of the scheduler, and compared. Callbacks take
 * steps themselves before they answer. The luck of a life is its seed's alone. */
#include "sim/life.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>

#include "sim/story.h"
#include "sim/twin.h"
#include "support/support.h"

enum { MANY = 40, FEW = 6, DEPTH = 3, LONG = 300, STEPS = 26 };

static struct life {
    lapse *s;
    lapse_clock *clock;
    rng luck;
    lapse_ns start;
    lapse_ns unit; /* most times of this life are a few of these */
    int ids, queues;
    unsigned rate; /* of all handlers, or 0: each has its own */
    int weight[STEPS], weights;
    int fd;          /* lapse_fd, or -1 when this host does not poll it */
    unsigned inside; /* callbacks on the stack */
    /* What is being scheduled at once, for hooks that are told of it meanwhile. */
    const int64_t *many;
    int many_first, many_count;
} life;

/* -- Luck ----------------------------------------------------------------------------- */

static int roll(int sides)
{
    return (int)rng_range(&life.luck, 0, sides - 1);
}

static bool one_in(int n)
{
    return roll(n) == 0;
}

static lapse_ns units(int least, int most)
{
    return life.unit * rng_range(&life.luck, least, most);
}

static int any_id(void)
{
    return roll(life.ids);
}

static int any_queue(void)
{
    return roll(life.queues);
}

/* The first queue has no name, which can be said in two ways. */
static const char *say_queue(int queue)
{
    return queue == 0 && one_in(2) ? NULL : twin_queues[queue];
}

static lapse_ns any_delay(void)
{
    lapse_ns tick = tw.config.tick ? tw.config.tick : 10;
    switch (roll(12)) {
    case 0:
    case 1:
        return 0;
    case 2:
        return -units(1, 3);
    case 3:
        return tick * rng_range(&life.luck, 0, 3) + rng_range(&life.luck, 0, 2) - 1;
    case 4:
        return twin_up(tw.now + units(0, 4)) - tw.now;
    case 5:
        return units(1, 50);
    case 6:
        return one_in(6) ? LAPSE_DELAY_MAX : units(0, 9);
    case 7:
        return one_in(6) ? LAPSE_DELAY_MAX + 1 + rng_range(&life.luck, 0, 1) : units(1, 2);
    default:
        return units(1, 5);
    }
}

static int64_t any_generation(int id)
{
    int newest = tw.newest[id];
    if (newest != NONE && one_in(3))
        return tw.orders[newest].generation;
    if (tw.order_count && one_in(6))
        return tw.orders[roll(tw.order_count)].generation;
    return one_in(12) ? 1 + roll(1000) : LAPSE_ANY;
}

static const char *any_error(void)
{
    static const char *const errors[] = {NULL, "no route", "the shop is closed", "timeout"};
    return errors[roll(4)];
}

static bool is_full_up(void)
{
    return tw.order_count > ORDERS - 2 * MANY || tw.claim_count > CLAIMS - 3 * IDS;
}

/* -- What the scheduler calls --------------------------------------------------------- */

static void step_inside(void);

static void learn_many(void)
{
    for (int i = 0, order = life.many_first; i < life.many_count; i++)
        if (life.many[i] > 0)
            twin_accepted(order++, life.many[i]);
    life.many_count = 0;
}

static void release(const void *arg, bool by_default)
{
    twin_released((int)((const twin_token *)arg - tw.tokens), by_default);
}

static void release_default(void *arg)
{
    release(arg, true);
}

static void release_own(void *arg)
{
    release(arg, false);
}

static void release_handler(void *arg)
{
    twin_handler_released((int)((const twin_handler *)arg - tw.handlers));
}

static void check_same_bytes(const twin_claim *c)
{
    const twin_order *o = &tw.orders[c->order];
    must(strcmp(c->shown->id, twin_name(o)) == 0 && c->shown->fence == c->fence &&
             c->shown->payload_len == o->payload_len &&
             (!o->payload_len || memcmp(c->shown->payload, o->payload, o->payload_len) == 0),
         "what the consumer of %s is shown has changed while it holds it", twin_name(o));
}

/* What a callback says, in C and to the twin. */
static lapse_verdict answer(const lapse_order *order, int claim)
{
    int64_t fence = tw.claims[claim].fence;
    const char *error = any_error();
    lapse_ns delay = one_in(3) ? any_delay() : units(0, 3);
    switch (roll(14)) {
    case 0:
    case 1:
        story("fails: %s", error ? error : "says nothing");
        twin_settle(fence, LAPSE_FAIL, -1, error, true);
        return lapse_fail(order, error);
    case 2:
        story("retries after %lld", (long long)delay);
        twin_settle(fence, LAPSE_RETRY, delay < 0 ? 0 : delay, error, true);
        return lapse_retry(order, delay, error);
    case 3:
        story("retries");
        twin_settle(fence, LAPSE_RETRY, -1, NULL, true);
        return LAPSE_RETRY;
    case 4:
        story("rejects: %s", error ? error : "says nothing");
        twin_settle(fence, LAPSE_REJECT, -1, error, true);
        return lapse_reject(order, error);
    case 5:
        story("gives back");
        twin_settle(fence, LAPSE_GIVE_BACK, -1, NULL, true);
        return LAPSE_GIVE_BACK;
    case 6:
        story("answers nonsense");
        twin_settle(fence, LAPSE_FAIL, -1, "the callback returned no verdict", true);
        return (lapse_verdict)(one_in(2) ? 99 : -1);
    default:
        story("done");
        twin_settle(fence, LAPSE_DONE, -1, NULL, true);
        return LAPSE_DONE;
    }
}

/* A callback's life: it starts, does something, or hangs, and answers. */
static lapse_verdict live_callback(const lapse_order *order, const void *arg, bool own)
{
    must(tw.depth > 0, "%s is called back by nobody", order->id);
    twin_pass *pass = &tw.pass[tw.depth - 1];
    story("%.12s generation %lld starts, attempt %d, fence %lld, %lld late", order->id,
          (long long)order->generation, order->attempt, (long long)order->fence,
          (long long)order->late);
    int claim = twin_start(
        order, (twin_way){.called = true, .until = pass->until, .frame = pass->frame}, arg, own);
    pass->ran++;
    tw.claims[claim].inside = true;
    life.inside++;
    story_nest(1);
    while (tw.depth < DEPTH && one_in(2))
        step_inside();
    check_same_bytes(&tw.claims[claim]);
    lapse_verdict verdict = answer(order, claim);
    story_nest(-1);
    life.inside--;
    return verdict;
}

static lapse_verdict run_own(const lapse_order *order, void *arg)
{
    return live_callback(order, arg, true);
}

static lapse_verdict run_handler(const lapse_order *order, void *arg)
{
    return live_callback(order, arg, false);
}

static void on_error(void *hook_arg, const lapse_order *order, const char *error)
{
    (void)hook_arg;
    story("  on_error: %.12s: %s", order->id, error);
    twin_told_of_error(order, error);
}

static void requeue(int id, int64_t generation, lapse_ns delay);

static void on_dead(void *hook_arg, const lapse_info *dead)
{
    (void)hook_arg;
    story("  on_dead: %.12s generation %lld, reason %d", dead->id, (long long)dead->generation,
          (int)dead->reason);
    learn_many();
    twin_told_of_dead(dead);
    /* Where nothing that is not yet told of can stand in the way. */
    if (tw.config.overflow == LAPSE_REFUSE && tw.config.max_dead > ORDERS && !is_full_up() &&
        one_in(3)) {
        const twin_order *o = &tw.orders[twin_find(dead->id, dead->generation)];
        bool nested = tw.hooked;
        tw.hooked = true;
        requeue(o->id, o->generation, any_delay());
        tw.hooked = nested;
    }
}

static void on_log(void *hook_arg, lapse_level level, const char *message)
{
    (void)hook_arg;
    must(level == LAPSE_WARNING, "the log has level %d", (int)level);
    story("  log: %.60s", message);
    twin_told_of_loss(message);
}

/* -- Schedule ------------------------------------------------------------------------- */

/* A spec and what the twin knows of it. */
typedef struct wish {
    lapse_spec spec;
    twin_new n;
    int error; /* what is wrong with it */
    unsigned char payload[PAYLOAD];
} wish;

static const char *long_text(void)
{
    static char text[LONG + 1];
    memset(text, 'x', LONG);
    return text;
}

static void spoil(wish *w)
{
    switch (roll(6)) {
    case 0:
        w->spec.id = one_in(2) ? "" : NULL;
        w->error = LAPSE_EID;
        return;
    case 1:
        w->spec.id = long_text();
        w->error = LAPSE_EID;
        return;
    case 2:
        w->spec.payload = NULL;
        w->spec.payload_len = 1;
        w->error = LAPSE_EINVAL;
        return;
    case 3:
        w->spec.flags = 8;
        w->error = LAPSE_EINVAL;
        return;
    case 4:
        w->spec.queue = long_text();
        w->error = LAPSE_EINVAL;
        return;
    default:
        w->spec.at = 0;
        w->spec.delay = LAPSE_DELAY_MAX + 1;
        w->error = LAPSE_ERANGE;
    }
}

static void choose_payload(wish *w)
{
    if (one_in(2))
        return;
    w->n.payload_len = (size_t)roll(PAYLOAD + 1);
    for (size_t i = 0; i < w->n.payload_len; i++)
        w->payload[i] = (unsigned char)rng_next(&life.luck);
    w->spec.payload = w->payload;
    w->spec.payload_len = w->n.payload_len;
}

static void choose_time(wish *w)
{
    lapse_ns delay = any_delay();
    if (delay > LAPSE_DELAY_MAX)
        w->error = LAPSE_ERANGE;
    else
        w->n.due = tw.now + (delay > 0 ? delay : 0);
    if (one_in(4) && tw.wall + delay != 0)
        w->spec.at = tw.wall + delay;
    else
        w->spec.delay = delay;
}

/* The token that the twin gives next, if the order is accepted. */
static void choose_consumer(wish *w, bool own, int token)
{
    w->n.own = own;
    w->n.has_arg = own || one_in(3);
    w->n.own_release = w->n.has_arg && one_in(2);
    w->spec.fn = own ? run_own : NULL;
    w->spec.arg = w->n.has_arg ? &tw.tokens[token] : NULL;
    w->spec.release = w->n.own_release ? release_own : NULL;
}

static void make_wish(wish *w, int token)
{
    *w = (wish){.n = {.id = any_id(), .queue = any_queue(), .replace = one_in(3)}};
    w->n.payload = w->payload;
    w->spec.id = twin_ids[w->n.id];
    w->spec.queue = say_queue(w->n.queue);
    w->spec.id_len = one_in(2) ? strlen(w->spec.id) : 0;
    w->spec.flags = w->n.replace ? LAPSE_REPLACE : 0;
    choose_payload(w);
    choose_time(w);
    choose_consumer(w, one_in(2), token);
    if (!w->error && one_in(25)) {
        w->spec.id_len = 0;
        spoil(w);
    }
}

/* After an order was asked for: `expected` is what the twin said. */
static void check_accepted(int64_t expected, int64_t got, int order)
{
    story("  -> %lld", (long long)got);
    must(expected == LAPSE_OK ? got > 0 : got == expected, "it answered %lld, not %lld (%s)",
         (long long)got, (long long)expected, lapse_error_detail());
    if (got > 0)
        twin_accepted(order, got);
}

static void tell_wish(const wish *w)
{
    story("put %.12s in \"%s\"%s%s due %+lld, %zu bytes%s", twin_ids[w->n.id],
          twin_queues[w->n.queue], w->n.own ? " with a callback" : "",
          w->n.replace ? " replacing" : "", (long long)(w->n.due - tw.now), w->n.payload_len,
          w->error ? ", bad" : "");
}

static void do_put(void)
{
    wish w;
    if (is_full_up())
        return;
    make_wish(&w, tw.token_count);
    tell_wish(&w);
    int expected = w.error ? w.error : twin_schedule(&w.n);
    int order = tw.order_count - 1;
    check_accepted(expected, lapse_put(life.s, &w.spec), order);
    if (!w.error)
        twin_watched();
}

static void do_schedule(void)
{
    wish w;
    if (is_full_up())
        return;
    make_wish(&w, tw.token_count);
    choose_consumer(&w, true, tw.token_count);
    w.n.own_release = w.n.replace = false;
    w.n.queue = 0;
    w.n.payload_len = 0;
    w.error = w.error == LAPSE_EINVAL ? 0 : w.error;
    tell_wish(&w);
    int expected = w.error ? w.error : twin_schedule(&w.n);
    int order = tw.order_count - 1;
    int64_t got = w.spec.at ? lapse_schedule_at(life.s, w.spec.id, w.spec.at, run_own, w.spec.arg)
                            : lapse_schedule(life.s, w.spec.id, w.spec.delay, run_own, w.spec.arg);
    check_accepted(expected, got, order);
}

static void do_many(void)
{
    wish w[MANY];
    lapse_spec specs[MANY];
    int64_t got[MANY];
    int expected[MANY], count = 1 + roll(life.ids < FEW ? life.ids : life.ids / 4);
    int accepted = 0;
    if (is_full_up() || life.many_count)
        return;
    story("schedule %d at once:", count);
    life.many_first = tw.order_count;
    for (int i = 0; i < count; i++) {
        make_wish(&w[i], tw.token_count);
        tell_wish(&w[i]);
        expected[i] = w[i].error && !tw.stopped ? w[i].error : twin_schedule(&w[i].n);
        accepted += expected[i] == LAPSE_OK;
        specs[i] = w[i].spec;
    }
    life.many = got;
    life.many_count = count;
    int64_t n = lapse_schedule_many(life.s, specs, (size_t)count, got);
    for (int i = 0, order = life.many_first; i < count; i++)
        check_accepted(expected[i], got[i], got[i] > 0 ? order++ : NONE);
    life.many_count = 0;
    must(n == accepted, "%lld were accepted, not %d", (long long)n, accepted);
}

/* -- Change --------------------------------------------------------------------------- */

static void check_answer(int64_t expected, int64_t got)
{
    story("  -> %lld", (long long)got);
    must(got == expected, "it answered %lld, not %lld (%s)", (long long)got, (long long)expected,
         lapse_error_detail());
}

static void do_cancel(void)
{
    int id = any_id();
    int64_t generation = any_generation(id);
    bool wait = one_in(4);
    story("cancel%s %.12s generation %lld", wait ? " and wait" : "", twin_ids[id],
          (long long)generation);
    int expected = twin_cancel(id, generation);
    check_answer(expected, wait ? lapse_cancel_wait(life.s, twin_ids[id], generation, 0)
                                : lapse_cancel(life.s, twin_ids[id], generation));
    if (!wait)
        twin_watched();
}

static void do_reschedule(void)
{
    int id = any_id();
    int64_t generation = any_generation(id);
    lapse_ns delay = any_delay();
    story("reschedule %.12s generation %lld after %lld", twin_ids[id], (long long)generation,
          (long long)delay);
    int expected = delay > LAPSE_DELAY_MAX
                       ? LAPSE_ERANGE
                       : twin_reschedule(id, generation, tw.now + (delay > 0 ? delay : 0));
    check_answer(expected, lapse_reschedule(life.s, twin_ids[id], generation, delay));
}

static void requeue(int id, int64_t generation, lapse_ns delay)
{
    story("requeue %.12s generation %lld after %lld", twin_ids[id], (long long)generation,
          (long long)delay);
    int expected = delay > LAPSE_DELAY_MAX
                       ? LAPSE_ERANGE
                       : twin_requeue(id, generation, tw.now + (delay > 0 ? delay : 0));
    int order = tw.order_count - 1;
    check_accepted(expected, lapse_requeue(life.s, twin_ids[id], generation, delay), order);
}

static void do_requeue(void)
{
    int id = any_id();
    if (!is_full_up())
        requeue(id, any_generation(id), any_delay());
}

static void do_purge(void)
{
    int id = one_in(3) ? NONE : any_id();
    int64_t generation = id == NONE ? LAPSE_ANY : any_generation(id);
    story("purge %.12s generation %lld", id == NONE ? "all" : twin_ids[id], (long long)generation);
    int64_t expected = twin_purge(id, generation);
    check_answer(expected, lapse_purge(life.s, id == NONE ? NULL : twin_ids[id], generation));
}

/* -- Queues --------------------------------------------------------------------------- */

static lapse_policy any_policy(void)
{
    static const unsigned rates[] = {0, 0, 0, 1, 3, 100, 1000000};
    static const int jitters[] = {-1, 0, 50, 100};
    return (lapse_policy){
        .attempts = roll(4) - (one_in(20) ? 4 : 0),
        .backoff = one_in(3) ? 0 : units(1, 3),
        .backoff_max = one_in(3) ? units(2, 6) : 0,
        .backoff_percent = one_in(2) ? 0 : 100 + roll(300),
        .jitter_percent = jitters[roll(4)],
        .run_limit = one_in(2) ? 0 : units(1, 6),
        .expires = one_in(2) ? 0 : units(1, 20),
        .stuck_after = one_in(2) ? 0 : units(1, 6),
        .rate = life.rate ? life.rate : rates[roll(7)],
    };
}

static void do_handle(void)
{
    int queue = any_queue();
    bool removed = one_in(3);
    lapse_policy policy = any_policy();
    if (tw.handler_count == HANDLERS)
        return;
    story("%s \"%s\": attempts %d, run_limit %lld, expires %lld, rate %u",
          removed ? "stop handling" : "handle", twin_queues[queue], policy.attempts,
          (long long)policy.run_limit, (long long)policy.expires, policy.rate);
    twin_handler *h = &tw.handlers[tw.handler_count];
    int expected = twin_handle(queue, removed ? NULL : &policy);
    check_answer(expected, lapse_handle(life.s, say_queue(queue), removed ? NULL : run_handler, h,
                                        release_handler, removed ? NULL : &policy));
}

static void do_pause(void)
{
    int queue = any_queue();
    bool paused = !tw.queues[queue].paused || one_in(4);
    story("%s \"%s\"", paused ? "pause" : "resume", twin_queues[queue]);
    twin_pause(queue, paused);
    check_answer(LAPSE_OK, paused ? lapse_pause(life.s, say_queue(queue))
                                  : lapse_resume(life.s, say_queue(queue)));
}

/* -- Consume -------------------------------------------------------------------------- */

static bool is_readable(void)
{
    struct pollfd p = {.fd = life.fd, .events = POLLIN};
    return poll(&p, 1, 0) == 1;
}

static void do_process(void)
{
    if (tw.depth == DEPTH || is_full_up())
        return;
    size_t max = one_in(3) ? (size_t)(1 + roll(3)) : 0;
    bool was_stopped = tw.stopped;
    uint64_t hooks = tw.sum.lost + tw.sum.requeued;
    story("process up to %zu", max);
    twin_enter_pass();
    int64_t got = lapse_process(life.s, max);
    twin_settled();
    twin_pass pass = tw.pass[tw.depth - 1];
    twin_way way = {.called = true, .until = pass.until, .frame = pass.frame};
    must(!was_stopped || pass.ran == 0, "%zu ran after the stop", pass.ran);
    must(max == 0 || pass.ran <= max, "%zu ran, more than %zu", pass.ran, max);
    check_answer(pass.ran ? (int64_t)pass.ran : tw.stopped ? LAPSE_ECLOSED : 0, got);
    bool looked = max == 0 || pass.ran < max;
    if (looked)
        twin_none(way);
    twin_leave_pass();
    twin_watched();
    bool quiet = hooks == tw.sum.lost + tw.sum.requeued && tw.now == pass.until;
    if (looked && quiet && !tw.stopped)
        must(lapse_timeout(life.s) > 0, "there is nothing to run, but the timeout is 0");
    if (looked && quiet && life.fd >= 0)
        must(!is_readable(), "there is nothing to run, but the descriptor is readable");
}

static void tell_claim(const char *how, const lapse_order *order)
{
    story("  %s %.12s generation %lld, attempt %d, fence %lld, %lld late", how, order->id,
          (long long)order->generation, order->attempt, (long long)order->fence,
          (long long)order->late);
}

/* As a host that calls callbacks itself; it settles some other time. */
static void do_begin(void)
{
    const lapse_order *order;
    lapse_callback fn;
    void *arg;
    lapse_ns until = one_in(2) ? LAPSE_FOREVER : tw.now + units(-2, 1);
    if (is_full_up())
        return;
    story("begin what is due by %lld", (long long)(until == LAPSE_FOREVER ? 0 : until - tw.now));
    int got = lapse_begin(life.s, until, &order, &fn, &arg);
    twin_way way = {.called = true, .until = until < tw.now ? until : tw.now};
    if (got == 1) {
        tell_claim("begun", order);
        twin_start(order, way, arg, fn == run_own);
    } else {
        check_answer(tw.stopped ? LAPSE_ECLOSED : 0, got);
        must(!order, "an order is shown, though none was begun");
        twin_none(way);
    }
    twin_watched();
}

static void do_take(void)
{
    int queue = one_in(2) ? NONE : any_queue();
    const char *name = queue == NONE ? NULL : twin_queues[queue];
    const lapse_order *order;
    if (is_full_up())
        return;
    story("take from \"%s\"", queue == NONE ? "any" : name);
    int expected = twin_take(queue);
    int got = one_in(2) ? lapse_poll(life.s, name, &order) : lapse_take(life.s, name, 0, &order);
    twin_way way = {.queue = queue, .until = tw.now};
    if (expected == LAPSE_OK && got == 1) {
        tell_claim("taken", order);
        twin_start(order, way, NULL, false);
    } else {
        check_answer(expected, got);
        must(!order, "an order is shown, though none was taken");
        if (got == 0)
            twin_none(way);
    }
    if (expected != LAPSE_EMIXED)
        twin_watched();
}

static void do_wait(void)
{
    twin_way way = {.called = true, .until = tw.now};
    story("wait");
    int got = lapse_wait(life.s, 0);
    story("  -> %d", got);
    if (tw.stopped) {
        must(got == LAPSE_ECLOSED, "it answered %d", got);
        return;
    }
    must(got == 1 || !twin_any(way, true), "a callback is due, but waiting for one ended with %d",
         got);
    must(got == 0 || twin_earliest() <= tw.now, "nothing is due, but waiting ended with %d", got);
    twin_watched();
}

/* -- Settle --------------------------------------------------------------------------- */

/* A claim that a worker or a taker holds, or has held; or NONE. */
static int any_claim(bool held)
{
    for (int tries = 0; tw.claim_count && tries < 8; tries++) {
        int i = roll(tw.claim_count);
        const twin_claim *c = &tw.claims[i];
        if (!held || (!c->settled && !c->inside && !c->forgotten))
            return i;
    }
    return NONE;
}

static void settle(int claim, lapse_verdict verdict)
{
    const char *error = any_error();
    lapse_ns delay = any_delay();
    int64_t fence = claim == NONE ? 1 : tw.claims[claim].fence;
    if (claim != NONE && !tw.claims[claim].settled)
        check_same_bytes(&tw.claims[claim]);
    story("settle fence %lld: verdict %d, delay %lld, error %s", (long long)fence, (int)verdict,
          (long long)delay, error ? error : "none");
    twin_settle(fence, verdict, delay, error, false);
    int got = lapse_settle(life.s, fence, verdict, delay, error);
    check_answer(twin_settled(), got);
}

static void do_settle(void)
{
    settle(any_claim(true), (lapse_verdict)roll(5));
}

/* Twice, or what another settles. */
static void do_settle_again(void)
{
    settle(any_claim(false), (lapse_verdict)roll(5));
}

static void do_settle_nonsense(void)
{
    story("settle with no verdict");
    check_answer(LAPSE_EINVAL, lapse_settle(life.s, tw.last_fence, (lapse_verdict)77, 0, NULL));
}

static void do_renew(void)
{
    int claim = any_claim(!one_in(3));
    int64_t fence = claim == NONE ? 1 : tw.claims[claim].fence;
    lapse_ns lease = one_in(3) ? 0 : one_in(9) ? -1 : units(1, 9);
    story("renew fence %lld for %lld", (long long)fence, (long long)lease);
    check_answer(twin_renew(fence, lease), lapse_renew(life.s, fence, lease));
}

static void do_holds(void)
{
    int claim = any_claim(false);
    if (claim == NONE)
        return;
    int64_t fence = tw.claims[claim].fence;
    story("does fence %lld hold", (long long)fence);
    check_answer(twin_holds(fence), lapse_holds(life.s, fence));
}

/* A worker dies with its order. */
static void do_forget(void)
{
    int claim = any_claim(true);
    if (claim == NONE)
        return;
    story("the worker with fence %lld dies", (long long)tw.claims[claim].fence);
    tw.claims[claim].forgotten = true;
}

/* -- Time ----------------------------------------------------------------------------- */

/* To something that will happen, or a nanosecond beside it. */
static lapse_ns to_an_event(void)
{
    lapse_ns at = tw.now;
    if (tw.claim_count && one_in(3))
        at = tw.claims[roll(tw.claim_count)].lease_end;
    else if (tw.order_count)
        at = tw.orders[roll(tw.order_count)].hi;
    if (one_in(2))
        at = twin_up(at);
    at += roll(3) - 1;
    return at > tw.now && at - tw.now < LAPSE_DAYS(365) ? at - tw.now : 0;
}

static lapse_ns any_step_of_time(void)
{
    lapse_ns timeout = lapse_timeout(life.s);
    switch (roll(8)) {
    case 0:
        return 0;
    case 1:
        return tw.config.tick ? tw.config.tick : 1;
    case 2:
        return timeout < LAPSE_DAYS(365) ? timeout : 0;
    case 3:
    case 4:
        return to_an_event();
    case 5:
        return one_in(12) ? LAPSE_DAYS(roll(400)) : LAPSE_MS(roll(3000));
    default:
        return units(0, 6);
    }
}

static void pass_time(lapse_ns by)
{
    story("%lld ns pass: it is %lld", (long long)by, (long long)(tw.now + by - life.start));
    int got = lapse_clock_advance(life.clock, by);
    must(got == LAPSE_OK, "the clock stands still: %s", lapse_error_detail());
    tw.now += by;
    tw.wall += by;
    must(lapse_now(life.s) == tw.now, "the clock says %lld, not %lld", (long long)lapse_now(life.s),
         (long long)tw.now);
}

static void do_advance(void)
{
    pass_time(any_step_of_time());
}

/* The wall clock drifts, or is set: from 1969 to 2100. */
static void do_set_wall(void)
{
    lapse_ns utc = tw.wall + units(-3, 3);
    if (one_in(3))
        utc = LAPSE_HOURS(rng_range(&life.luck, -9000, 1100000));
    story("the wall clock is set by %lld", (long long)(utc - tw.wall));
    check_answer(LAPSE_OK, lapse_clock_set_wall(life.clock, utc));
    tw.wall = utc;
}

/* -- Look ----------------------------------------------------------------------------- */

typedef struct walk {
    bool seen[ORDERS];
    int64_t count, most;
} walk;

static bool show(const lapse_info *info, void *arg)
{
    walk *w = arg;
    twin_check_info(info);
    int order = twin_find(info->id, info->generation);
    must(twin_visible(&tw.orders[order]), "%s generation %lld is shown, long ended", info->id,
         (long long)info->generation);
    must(!w->seen[order], "%s generation %lld is shown twice", info->id,
         (long long)info->generation);
    w->seen[order] = true;
    return ++w->count != w->most;
}

static void look_at_all(unsigned states)
{
    walk w = {.most = 0};
    int64_t shown = lapse_each(life.s, states, show, &w);
    int64_t expected = twin_shown(states ? states : 15);
    must(shown == w.count && shown == expected, "%lld orders are shown, not %lld", (long long)shown,
         (long long)expected);
}

static void do_each(void)
{
    walk w = {.most = 1 + roll(3)};
    look_at_all((unsigned)roll(16));
    lapse_each(life.s, 0, show, &w);
}

static void do_metrics(void)
{
    char line[64];
    char *text = lapse_metrics(life.s);
    (void)snprintf(line, sizeof line, "\nlapse_scheduled_total %llu\n",
                   (unsigned long long)tw.sum.scheduled);
    must(text && strstr(text, line), "the metrics do not say %s", line);
    lapse_free(text);
}

static void look_at_ids(void)
{
    int count = life.ids > FEW ? FEW : life.ids, first = roll(life.ids - count + 1);
    for (int id = first; id < first + count; id++) {
        lapse_info info;
        int code = lapse_get(life.s, twin_ids[id], &info);
        twin_check_get(id, code, &info);
        if (code == LAPSE_OK)
            lapse_info_free(&info);
    }
}

static void look_at_queue(int queue)
{
    lapse_queue_stats stats;
    int code = lapse_queue_statistics(life.s, twin_queues[queue], &stats);
    twin_check_queue(queue, code, &stats);
}

static void check_descriptor(void)
{
    twin_way way = {.called = true, .until = tw.now};
    if (life.fd >= 0 && !tw.stopped)
        must(!twin_any(way, true) || is_readable(),
             "a callback is due, but the descriptor is not readable");
}

static void check_step(void)
{
    lapse_stats stats;
    must(lapse_statistics(life.s, &stats) == LAPSE_OK, "no statistics");
    twin_check(&stats);
    look_at_ids();
    look_at_queue(any_queue());
    twin_check_timeout(lapse_timeout(life.s));
    check_descriptor();
    if (one_in(8))
        look_at_all(0);
}

/* -- Steps ---------------------------------------------------------------------------- */

static void do_stop(void)
{
    if (!one_in(8))
        return;
    story("stop");
    check_answer(LAPSE_OK, lapse_stop(life.s));
    tw.stopped = true;
}

static void do_close_inside(void)
{
    if (life.inside) {
        story("close inside a callback");
        check_answer(LAPSE_EINCALLBACK, lapse_close(life.s, 0));
    }
}

/* More falls due at once than a rate lets through. */
static void do_rush(void)
{
    if (!life.rate || life.inside)
        return;
    story("a rush");
    do_handle();
    do_many();
    do_many();
    pass_time(LAPSE_MS(1500) + units(0, 2));
    for (int i = 0; i < 8; i++) {
        do_process();
        check_step();
        pass_time(LAPSE_SECONDS(1) / life.rate + roll(3));
    }
}

static const struct step {
    void (*take)(void);
    int weight;
} steps[STEPS] = {
    {do_put, 16},         {do_schedule, 6}, {do_many, 5},         {do_cancel, 8},
    {do_reschedule, 5},   {do_requeue, 3},  {do_purge, 1},        {do_handle, 4},
    {do_pause, 3},        {do_process, 14}, {do_begin, 5},        {do_take, 9},
    {do_wait, 2},         {do_settle, 9},   {do_settle_again, 2}, {do_settle_nonsense, 1},
    {do_renew, 2},        {do_holds, 2},    {do_forget, 1},       {do_advance, 18},
    {do_set_wall, 2},     {do_each, 1},     {do_metrics, 1},      {do_stop, 1},
    {do_close_inside, 1}, {do_rush, 2},
};

/* Each life has habits: it never does some things and does others often. */
static void form_habits(void)
{
    static const int factors[] = {0, 1, 1, 1, 3};
    while (life.weights == 0)
        for (int i = 0; i < STEPS; i++) {
            life.weight[i] = steps[i].weight * factors[roll(5)];
            life.weights += life.weight[i];
        }
}

static void take_step(void)
{
    int i = 0, dice = roll(life.weights);
    while (dice >= life.weight[i])
        dice -= life.weight[i++];
    steps[i].take();
}

static void step_inside(void)
{
    take_step();
    if (one_in(4))
        check_step();
}

/* -- Birth and death ------------------------------------------------------------------ */

/* Uptimes at which something has gone wrong before. */
static lapse_ns any_start(void)
{
    static const lapse_ns edges[] = {
        0,
        1,
        LAPSE_MS(1) - 1,
        LAPSE_SECONDS(1),
        (INT64_C(1) << 31) * 1000000 - 5,
        (INT64_C(1) << 32) * 1000000 - 5,
        (INT64_C(1) << 32) - 5,
        (INT64_C(1) << 53) - 5,
        (INT64_C(1) << 60) - 5,
        LAPSE_DELAY_MAX,
    };
    int count = sizeof edges / sizeof *edges;
    return one_in(2) ? edges[roll(count)] : rng_range(&life.luck, 0, LAPSE_DAYS(1000));
}

static lapse_ns any_tick(void)
{
    static const lapse_ns ticks[] = {LAPSE_US(1),   LAPSE_US(10),     LAPSE_MS(1),   LAPSE_MS(7),
                                     LAPSE_MS(100), LAPSE_SECONDS(1), LAPSE_HOURS(1)};
    return one_in(2) ? 0 : ticks[roll(7)];
}

static lapse_ns any_unit(lapse_ns tick)
{
    const lapse_ns choice[] = {1, LAPSE_US(1), LAPSE_MS(1), LAPSE_MS(400), LAPSE_SECONDS(40)};
    if (tick && one_in(2))
        return one_in(2) ? tick : tick / 2 + 1;
    return choice[roll(5)];
}

static void make_url(char *url, size_t size, lapse_ns tick)
{
    static const int slots[] = {1, 64, 100, 256};
    if (tick)
        (void)snprintf(url, size, "memory:?engine=wheel&tick=%lldus&slots=%d",
                       (long long)(tick / 1000), slots[roll(4)]);
    else
        (void)snprintf(url, size, "memory:?engine=heap");
}

static lapse_options any_options(void)
{
    return (lapse_options){
        .clock = life.clock,
        .max_pending = one_in(3) ? (uint64_t)(1 + roll(life.ids)) : 0,
        .overflow = one_in(2) ? LAPSE_REFUSE : LAPSE_DEAD_LETTER_OLDEST,
        .keep = one_in(2) ? 0 : units(1, 20),
        .max_dead = one_in(2) ? (uint64_t)(1 + roll(4)) : 0,
        .lease = one_in(4) ? 0 : units(1, 12),
        .stuck_after = one_in(2) ? 0 : units(1, 8),
        .release = one_in(2) ? release_default : NULL,
        .on_error = on_error,
        .on_dead = on_dead,
        .log = on_log,
    };
}

static twin_config config_of(const lapse_options *o, lapse_ns tick)
{
    return (twin_config){
        .tick = tick,
        .max_pending = o->max_pending,
        .max_dead = o->max_dead ? o->max_dead : 10000,
        .overflow = o->overflow,
        .keep = o->keep,
        .lease = o->lease ? o->lease : LAPSE_SECONDS(30),
        .releases = o->release != NULL,
    };
}

static void be_born(uint64_t seed)
{
    char url[96];
    life = (struct life){.luck = {seed}, .fd = -1};
    story_begin(seed);
    lapse_ns tick = any_tick();
    life.unit = any_unit(tick);
    life.ids = one_in(20) ? IDS : 1 + roll(FEW);
    life.queues = 1 + roll(QUEUES);
    life.rate = one_in(6) ? (unsigned)(1 + roll(3)) : 0;
    life.start = any_start();
    form_habits();
    make_url(url, sizeof url, tick);
    must(lapse_clock_manual(life.start, &life.clock) == LAPSE_OK, "no clock");
    lapse_options options = any_options();
    twin_config config = config_of(&options, tick);
    twin_open(&config, life.start, LAPSE_SECONDS(1767225600));
    story("%s at %lld; max_pending %llu%s, max_dead %llu, keep %lld, lease %lld", url,
          (long long)life.start, (unsigned long long)options.max_pending,
          options.overflow == LAPSE_REFUSE ? "" : " (oldest dies)",
          (unsigned long long)config.max_dead, (long long)options.keep, (long long)config.lease);
    must(lapse_open(url, &options, &life.s) == LAPSE_OK, "open: %s", lapse_error_detail());
    if (one_in(3))
        life.fd = lapse_fd(life.s);
}

/* Workers that began a callback come back, late; takers need not. */
static void end_callbacks(void)
{
    for (int i = 0; i < tw.claim_count; i++)
        if (!tw.claims[i].settled && tw.claims[i].called) {
            check_answer(LAPSE_EINCALLBACK, lapse_close(life.s, 0));
            tw.stopped = true;
            settle(i, (lapse_verdict)roll(5));
            check_step();
        }
}

static void die(void)
{
    story("the end");
    check_answer(LAPSE_OK, lapse_stop(life.s));
    tw.stopped = true;
    check_step();
    look_at_all(0);
    look_at_all(LAPSE_STATE_PENDING);
    for (int queue = 0; queue < QUEUES; queue++)
        look_at_queue(queue);
    do_put();
    do_process();
    end_callbacks();
    twin_close();
    check_answer(LAPSE_OK, lapse_close(life.s, 0));
    twin_check_closed();
    lapse_clock_free(life.clock);
}

unsigned life_live(uint64_t seed)
{
    be_born(seed);
    unsigned count = 20 + (unsigned)roll(41);
    for (unsigned i = 0; i < count; i++) {
        take_step();
        check_step();
    }
    die();
    return count;
}
