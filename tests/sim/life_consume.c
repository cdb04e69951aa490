/* life_consume.c - steps of those who run orders: process, begin, take, settle, renew. */
#include "sim/life_parts.h"

#include <poll.h>

/* -- Consume -------------------------------------------------------------------------- */

bool is_readable(void)
{
    struct pollfd p = {.fd = life.fd, .events = POLLIN};
    return poll(&p, 1, 0) == 1;
}

void do_process(void)
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
void do_begin(void)
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

void do_take(void)
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

void do_wait(void)
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

void settle(int claim, lapse_verdict verdict)
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

void do_settle(void)
{
    settle(any_claim(true), (lapse_verdict)roll(5));
}

/* Twice, or what another settles. */
void do_settle_again(void)
{
    settle(any_claim(false), (lapse_verdict)roll(5));
}

void do_settle_nonsense(void)
{
    story("settle with no verdict");
    check_answer(LAPSE_EINVAL, lapse_settle(life.s, tw.last_fence, (lapse_verdict)77, 0, NULL));
}

void do_renew(void)
{
    int claim = any_claim(!one_in(3));
    int64_t fence = claim == NONE ? 1 : tw.claims[claim].fence;
    lapse_ns lease = one_in(3) ? 0 : one_in(9) ? -1 : units(1, 9);
    story("renew fence %lld for %lld", (long long)fence, (long long)lease);
    check_answer(twin_renew(fence, lease), lapse_renew(life.s, fence, lease));
}

void do_holds(void)
{
    int claim = any_claim(false);
    if (claim == NONE)
        return;
    int64_t fence = tw.claims[claim].fence;
    story("does fence %lld hold", (long long)fence);
    check_answer(twin_holds(fence), lapse_holds(life.s, fence));
}

/* A worker dies with its order. */
void do_forget(void)
{
    int claim = any_claim(true);
    if (claim == NONE)
        return;
    story("the worker with fence %lld dies", (long long)tw.claims[claim].fence);
    tw.claims[claim].forgotten = true;
}
