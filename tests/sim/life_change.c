/* life_change.c - steps that change orders and queues: schedule, cancel, requeue, handle, pause. */
#include "sim/life_parts.h"

#include <string.h>

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

void do_put(void)
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

void do_schedule(void)
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

void do_many(void)
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

void check_answer(int64_t expected, int64_t got)
{
    story("  -> %lld", (long long)got);
    must(got == expected, "it answered %lld, not %lld (%s)", (long long)got, (long long)expected,
         lapse_error_detail());
}

void do_cancel(void)
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

void do_reschedule(void)
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

void requeue(int id, int64_t generation, lapse_ns delay)
{
    story("requeue %.12s generation %lld after %lld", twin_ids[id], (long long)generation,
          (long long)delay);
    int expected = delay > LAPSE_DELAY_MAX
                       ? LAPSE_ERANGE
                       : twin_requeue(id, generation, tw.now + (delay > 0 ? delay : 0));
    int order = tw.order_count - 1;
    check_accepted(expected, lapse_requeue(life.s, twin_ids[id], generation, delay), order);
}

void do_requeue(void)
{
    int id = any_id();
    if (!is_full_up())
        requeue(id, any_generation(id), any_delay());
}

void do_purge(void)
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

void do_handle(void)
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

void do_pause(void)
{
    int queue = any_queue();
    bool paused = !tw.queues[queue].paused || one_in(4);
    story("%s \"%s\"", paused ? "pause" : "resume", twin_queues[queue]);
    twin_pause(queue, paused);
    check_answer(LAPSE_OK, paused ? lapse_pause(life.s, say_queue(queue))
                                  : lapse_resume(life.s, say_queue(queue)));
}
