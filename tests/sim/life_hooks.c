/* life_hooks.c - what the scheduler of a life calls: callbacks, hooks, release. */
#include "sim/life_parts.h"

#include <string.h>

/* -- What the scheduler calls --------------------------------------------------------- */

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

void release_default(void *arg)
{
    release(arg, true);
}

void release_own(void *arg)
{
    release(arg, false);
}

void release_handler(void *arg)
{
    twin_handler_released((int)((const twin_handler *)arg - tw.handlers));
}

void check_same_bytes(const twin_claim *c)
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

lapse_verdict run_own(const lapse_order *order, void *arg)
{
    return live_callback(order, arg, true);
}

lapse_verdict run_handler(const lapse_order *order, void *arg)
{
    return live_callback(order, arg, false);
}

void on_error(void *hook_arg, const lapse_order *order, const char *error)
{
    (void)hook_arg;
    story("  on_error: %.12s: %s", order->id, error);
    twin_told_of_error(order, error);
}

void on_dead(void *hook_arg, const lapse_info *dead)
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

void on_log(void *hook_arg, lapse_level level, const char *message)
{
    (void)hook_arg;
    must(level == LAPSE_WARNING, "the log has level %d", (int)level);
    story("  log: %.60s", message);
    twin_told_of_loss(message);
}
