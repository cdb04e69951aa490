/* driver_want.c - for whom the driver claims orders, and to whom it hands them.
 *
 * All handled queues without a rate are one want, each with a rate is one, and so are all
 * takers of a queue. An order is claimed only for somebody who can start it at once. All
 * under the lock. */
#include <stdlib.h>
#include <string.h>

#include "engine/driver_parts.h"

/* How many orders could start a callback at once. */
unsigned lp_driver_push_demand(const lp_driver *d)
{
    const lapse *s = d->s;
    unsigned wanted = s->waiting[LP_PUSH] + d->host_wants;
    return s->stopped || wanted <= d->ready_count ? 0 : wanted - d->ready_count;
}

/* -- The plan's arrays -- */

static bool grow_wants(lp_plan *p, size_t wants)
{
    if (wants <= p->want_room)
        return true;
    lp_want *more = realloc(p->wants, wants * sizeof *more);
    if (!more)
        return false;
    p->wants = more;
    lp_queue **rated = realloc(p->rated, wants * sizeof *rated);
    if (!rated)
        return false;
    p->rated = rated;
    p->want_room = wants;
    return true;
}

static bool grow_names(lp_plan *p, size_t names)
{
    if (names <= p->name_room)
        return true;
    const char **more = realloc(p->names, names * sizeof *more);
    if (!more)
        return false;
    p->names = more;
    p->name_room = names;
    return true;
}

/* Room for all that so many queues can lead to: each handled, and taken from, and among the
 * others. */
bool lp_driver_make_want_room(lp_plan *p, size_t queues)
{
    return grow_wants(p, 2 * queues + 3) && grow_names(p, 3 * queues);
}

static void add_want(lp_plan *p, lp_want want, lp_queue *rated)
{
    want.next = LAPSE_FOREVER;
    p->rated[p->want_count] = rated;
    p->wants[p->want_count++] = want;
}

/* -- Callbacks -- */

static bool is_rated(const lp_queue *q)
{
    return lp_driver_handles(q) && q->handler->policy.rate;
}

/* What a store has here before somebody can start it is lost with this process, and counted: with so
 * many attempts that is no harm. */
enum { SPARE_ATTEMPTS = 3 };

/* All handled queues without a rate are one want. */
static void plan_group(lp_driver *d, unsigned demand)
{
    lp_plan *p = &d->plan;
    size_t first = p->name_count;
    bool spare = true;
    for (size_t i = 0; i < d->queue_count; i++) {
        const lp_queue *q = d->queues[i];
        if (!lp_driver_handles(q) || is_rated(q))
            continue;
        p->names[p->name_count++] = q->name;
        spare = spare && q->handler->policy.attempts >= SPARE_ATTEMPTS;
    }
    if (p->name_count > first)
        add_want(p,
                 (lp_want){.queues = p->names + first,
                           .queue_count = p->name_count - first,
                           .pushed = true,
                           .spare = spare,
                           .most = demand},
                 NULL);
}

static void plan_rated(lp_driver *d, lp_queue *q, unsigned demand, lapse_ns now)
{
    lp_plan *p = &d->plan;
    lapse_ns late = q->next_due && q->next_due < now ? now - q->next_due : 0;
    bool newest;
    unsigned most = lp_queue_plan(q, late, demand, now, &newest);
    p->names[p->name_count] = q->name;
    add_want(p,
             (lp_want){.queues = &p->names[p->name_count++],
                       .queue_count = 1,
                       .pushed = true,
                       .newest = newest,
                       .most = most},
             q);
}

static void plan_push(lp_driver *d, unsigned demand, lapse_ns now)
{
    bool group_first = d->plan.turns++ % 2 == 0;
    if (group_first)
        plan_group(d, demand);
    size_t start = d->queue_count ? d->plan.turns / 2 % d->queue_count : 0;
    for (size_t i = 0; i < d->queue_count; i++) {
        lp_queue *q = d->queues[(start + i) % d->queue_count];
        if (is_rated(q))
            plan_rated(d, q, demand, now);
    }
    if (!group_first)
        plan_group(d, demand);
}

/* -- Takers -- */

static lp_call *drop_take(lp_call **at)
{
    lp_call *c = *at;
    *at = c->next;
    return c;
}

void lp_driver_add_take(lp_driver *d, lp_call *c)
{
    lp_call **at = &d->takes;
    while (*at)
        at = &(*at)->next;
    c->next = NULL;
    *at = c;
}

/* Takers of a scheduler that was stopped get nothing any more. */
void lp_driver_refuse_takes(lp_driver *d)
{
    while (d->takes) {
        lp_call *c = drop_take(&d->takes);
        c->job.answer = LAPSE_ECLOSED;
        lp_driver_answer(d, c);
    }
}

/* The queues that takers of any queue do not take from. */
static size_t plan_others(lp_driver *d)
{
    lp_plan *p = &d->plan;
    size_t first = p->name_count;
    for (size_t i = 0; i < d->queue_count; i++)
        if (d->queues[i]->handler || d->queues[i]->paused)
            p->names[p->name_count++] = d->queues[i]->name;
    return first;
}

/* Whether a want is that of the takers of this queue; NULL: of any. */
static bool is_takers(const lp_want *w, const char *queue)
{
    if (w->pushed || w->others != (queue == NULL))
        return false;
    return w->others || strcmp(w->queues[0], queue) == 0;
}

/* One more of a queue that some wait for already; false when it is the first. */
static bool add_taker(lp_plan *p, const char *queue)
{
    for (size_t i = 0; i < p->want_count; i++)
        if (is_takers(&p->wants[i], queue)) {
            p->wants[i].most++;
            return true;
        }
    return false;
}

static void plan_take(lp_driver *d, const char *queue, const char *const *others,
                      size_t other_count)
{
    lp_plan *p = &d->plan;
    lp_want want = {.queues = others, .queue_count = other_count, .others = true, .most = 1};
    if (add_taker(p, queue))
        return;
    if (queue) {
        const lp_queue *q = lp_driver_queue(d, queue);
        if (!q || q->paused)
            return;
        p->names[p->name_count] = q->name;
        want = (lp_want){.queues = &p->names[p->name_count++], .queue_count = 1, .most = 1};
    }
    add_want(p, want, NULL);
}

/* All takers of a queue are one want. */
static void plan_takes(lp_driver *d)
{
    size_t first = plan_others(d), count = d->plan.name_count - first;
    for (lp_call **at = &d->takes; *at;) {
        lp_call *c = *at;
        if (atomic_load(&c->state) == CALL_ABANDONED) {
            lp_driver_free_call(drop_take(at));
            continue;
        }
        plan_take(d, c->job.queue, d->plan.names + first, count);
        at = &c->next;
    }
    if (d->host_polls)
        add_want(&d->plan,
                 (lp_want){.queues = d->plan.names + first, .queue_count = count, .others = true},
                 NULL);
}

void lp_driver_plan_wants(lp_driver *d, lapse_ns now)
{
    plan_push(d, lp_driver_push_demand(d), now);
    plan_takes(d);
}

/* -- What was claimed -- */

/* To the first who waits for it. */
static void take_loan(lp_driver *d, const lp_want *w, lp_loan *l)
{
    lp_call **at = &d->takes;
    while (*at && !is_takers(w, (*at)->job.queue))
        at = &(*at)->next;
    if (!*at || d->s->stopped) {
        lp_driver_give_back(d, l); /* More than was asked for. */
        return;
    }
    lp_call *c = drop_take(at);
    c->loan = l;
    c->job.answer = 1;
    lp_driver_answer(d, c);
}

static void push_loan(lp_driver *d, lp_loan *l)
{
    lp_queue *q = lp_driver_queue(d, l->queue);
    l->called = true;
    if (q)
        lp_queue_started(q);
    lp_driver_append_ready(d, l);
}

static void pass_on_loans(lp_driver *d, lp_loan *loans, lapse_ns now)
{
    bool pushed = false;
    for (lp_loan *l = loans, *next; l; l = next) {
        next = l->next;
        if (l->ended) {
            lp_book_ended(d->s, NULL, lp_driver_queue(d, l->queue), true);
            free(l);
            continue;
        }
        l->claimed_at = now; /* Nobody could start it before, however long the turn took. */
        lp_driver_note_lease(d, l);
        if (d->plan.wants[l->want].pushed) {
            push_loan(d, l);
            pushed = true;
        } else {
            take_loan(d, &d->plan.wants[l->want], l);
        }
    }
    if (pushed)
        lp_arm_for(d->s, now);
}

/* Polls that found nothing, or whose turn failed. */
void lp_driver_answer_polls(lp_driver *d, int code)
{
    for (lp_call **at = &d->takes; *at;) {
        lp_call *c = *at;
        if (!c->once) {
            at = &c->next;
            continue;
        }
        drop_take(at);
        c->job.answer = code;
        c->job.detail = code < 0 ? strdup(d->offline_words.text) : NULL;
        lp_driver_answer(d, c);
    }
}

/* When each side can be served next. */
static void note_next(lp_driver *d, lapse_ns now)
{
    lp_plan *p = &d->plan;
    d->push_next = d->take_next = LAPSE_FOREVER;
    for (size_t i = 0; i < p->want_count; i++) {
        lapse_ns next = p->wants[i].next;
        if (!p->wants[i].pushed) {
            d->take_next = lp_earlier(d->take_next, next);
            continue;
        }
        if (p->rated[i])
            p->rated[i]->next_due = next;
        if (p->rated[i] && next < LAPSE_FOREVER) {
            (void)lp_queue_open(p->rated[i], now);
            lapse_ns opens = lp_queue_opens_at(p->rated[i]);
            next = next > opens ? next : opens;
        }
        d->push_next = lp_earlier(d->push_next, next);
    }
}

/* A host that polled and got nothing is told once when something falls due. */
static void tell_host(lp_driver *d, lapse_ns now)
{
    if (!d->host_polls || d->take_next > now)
        return;
    d->host_polls = false;
    d->host_told = true;
    lp_wake_takers(d->s);
}

void lp_driver_serve_wants(lp_driver *d, lp_loan *loans, lapse_ns now)
{
    note_next(d, now);
    pass_on_loans(d, loans, now);
    lp_driver_answer_polls(d, 0);
    tell_host(d, now);
}
