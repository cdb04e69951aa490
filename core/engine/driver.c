/* driver.c - the driver's thread: plan a turn, let the store have it, pass on the answers.
 *
 * The lock is held while a turn is planned and while its answers are passed on, never
 * while the store works. */
#include "engine/driver.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/wake.h"

enum { TURN_JOBS = 512 }; /* requests of one turn */

static const lapse_ns LEASE_MIN = LAPSE_MS(10);
static const lapse_ns BACKOFF_MIN = LAPSE_MS(20), BACKOFF_MAX = LAPSE_SECONDS(2);

static lapse_ns earlier(lapse_ns a, lapse_ns b)
{
    return a < b ? a : b;
}

/* -- Waking, posting -- */

void lp_driver_wake(lp_driver *d)
{
    if (!d->sleeping || d->woken)
        return;
    d->woken = true;
    lp_bell_ring(d->bell);
}

void lp_driver_poke(lp_driver *d)
{
    d->dirty = true;
    lp_driver_wake(d);
}

void lp_driver_post(lp_driver *d, lp_job *job)
{
    job->next = NULL;
    *d->inbox_end = job;
    d->inbox_end = &job->next;
    lp_driver_wake(d);
}

/* -- Loans -- */

static lp_loan *loan_of(lp_job *job)
{
    size_t at =
        job->kind == KIND_RENEWAL ? offsetof(lp_loan, renewal) : offsetof(lp_loan, settlement);
    return (lp_loan *)(void *)((char *)job - at);
}

void lp_driver_drop(lp_loan *l)
{
    l->dropped = true;
    if (!l->settling && !l->renewing)
        free(l);
}

/* A job of a loan was answered, or will not be. */
static void release_loan(lp_loan *l)
{
    if (l->dropped)
        lp_driver_drop(l);
}

void lp_driver_remove_ready(lp_driver *d, lp_loan *l)
{
    *(l->before ? &l->before->after : &d->ready) = l->after;
    *(l->after ? &l->after->before : &d->ready_last) = l->before;
    d->ready_count--;
}

static void append_ready(lp_driver *d, lp_loan *l)
{
    l->before = d->ready_last;
    l->after = NULL;
    *(d->ready_last ? &d->ready_last->after : &d->ready) = l;
    d->ready_last = l;
    d->ready_count++;
}

/* Back to where it stood. */
static void restore_ready(lp_driver *d, lp_loan *l)
{
    l->before = NULL;
    l->after = d->ready;
    *(d->ready ? &d->ready->before : &d->ready_last) = l;
    d->ready = l;
    d->ready_count++;
}

void lp_driver_start(lp_driver *d, lp_loan *l)
{
    l->before = NULL;
    l->after = d->started;
    if (l->after)
        l->after->before = l;
    d->started = l;
}

void lp_driver_unstart(lp_driver *d, lp_loan *l)
{
    *(l->before ? &l->before->after : &d->started) = l->after;
    if (l->after)
        l->after->before = l->before;
}

/* Before all that was asked for: it shall find the order pending. */
static void post_first(lp_driver *d, lp_job *job)
{
    job->next = d->inbox;
    if (!d->inbox)
        d->inbox_end = &job->next;
    d->inbox = job;
    lp_driver_wake(d);
}

void lp_driver_give_back(lp_driver *d, lp_loan *l)
{
    lp_queue *q = lp_driver_queue(d, l->queue);
    if (q && l->called)
        lp_queue_refund(q);
    l->settlement = (lp_job){.op = LP_AGAIN,
                             .kind = KIND_SETTLEMENT,
                             .id = l->id,
                             .id_len = l->id_len,
                             .row = l->row,
                             .fence = l->fence,
                             .due = l->due,
                             .at = l->due};
    l->settling = true;
    l->dropped = true;
    post_first(d, &l->settlement);
}

/* -- Queues -- */

static bool grow_queues(lp_driver *d)
{
    if (d->queue_count < d->queue_room)
        return true;
    size_t room = d->queue_room ? 2 * d->queue_room : 16;
    lp_queue **more = realloc(d->queues, room * sizeof *more);
    if (!more)
        return false;
    d->queues = more;
    more = realloc(d->by_name, room * sizeof *more);
    if (!more)
        return false;
    d->by_name = more;
    d->queue_room = room;
    return true;
}

/* Where a name stands, or would stand, in `by_name`. */
static size_t place_of(const lp_driver *d, const char *name)
{
    size_t lo = 0, hi = d->queue_count;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (strcmp(d->by_name[mid]->name, name) < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

lp_queue *lp_driver_find_queue(const lp_driver *d, const char *name)
{
    size_t place = place_of(d, name);
    bool found = place < d->queue_count && strcmp(d->by_name[place]->name, name) == 0;
    return found ? d->by_name[place] : NULL;
}

static lp_queue *new_queue(lp_driver *d, const char *name)
{
    enum { MEASURED = 256 }; /* queues that have a histogram */
    if (!grow_queues(d))
        return NULL;
    lp_queue *q = calloc(1, sizeof *q);
    if (!q || !(q->name = strdup(name))) {
        free(q);
        return NULL;
    }
    if (d->queue_count < MEASURED)
        q->lateness = calloc(1, sizeof *q->lateness);
    size_t place = place_of(d, name);
    memmove(d->by_name + place + 1, d->by_name + place,
            (d->queue_count - place) * sizeof *d->by_name);
    d->by_name[place] = q;
    d->queues[d->queue_count++] = q;
    return q;
}

lp_queue *lp_driver_queue(lp_driver *d, const char *name)
{
    lp_queue *q = lp_driver_find_queue(d, name);
    return q ? q : new_queue(d, name);
}

/* -- Planning -- */

/* How many orders could start a callback at once. */
static unsigned push_demand(const lp_driver *d)
{
    const lapse *s = d->s;
    unsigned wanted = s->waiting[LP_PUSH] + d->host_wants;
    return s->stopped || wanted <= d->ready_count ? 0 : wanted - d->ready_count;
}

static bool make_want_room(lp_plan *p, size_t wants)
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

static bool make_name_room(lp_plan *p, size_t names)
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
static bool make_room(lp_plan *p, size_t queues)
{
    if (!p->jobs)
        p->jobs = malloc((TURN_JOBS + 1) * sizeof *p->jobs);
    return p->jobs && make_want_room(p, 2 * queues + 3) && make_name_room(p, 3 * queues);
}

static void add_want(lp_plan *p, lp_want want, lp_queue *rated)
{
    want.next = LAPSE_FOREVER;
    p->rated[p->want_count] = rated;
    p->wants[p->want_count++] = want;
}

static bool is_handled(const lp_queue *q)
{
    return q->handler && !q->paused;
}

static bool is_rated(const lp_queue *q)
{
    return is_handled(q) && q->handler->policy.rate;
}

/* All handled queues without a rate are one want. */
static void plan_group(lp_driver *d, unsigned demand)
{
    lp_plan *p = &d->plan;
    size_t first = p->name_count;
    for (size_t i = 0; i < d->queue_count; i++)
        if (is_handled(d->queues[i]) && !is_rated(d->queues[i]))
            p->names[p->name_count++] = d->queues[i]->name;
    if (p->name_count > first)
        add_want(p,
                 (lp_want){.queues = p->names + first,
                           .queue_count = p->name_count - first,
                           .pushed = true,
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

static lp_call *drop_take(lp_call **at)
{
    lp_call *c = *at;
    *at = c->next;
    return c;
}

/* The caller is woken once the lock is dropped, so that he does not run into it. */
static void answer_call(lp_driver *d, lp_call *c)
{
    if (c->submitted) {
        lp_deliver_answer(d->s, c->submitted);
        return;
    }
    c->next = NULL;
    *d->answered_end = c;
    d->answered_end = &c->next;
}

/* Nobody waits for this answer any more. */
static void forget_call(lp_driver *d, lp_call *c)
{
    if (c->loan)
        lp_driver_give_back(d, c->loan);
    c->loan = NULL;
    lp_driver_free_call(c);
}

/* Under the lock, which it drops meanwhile. */
static void wake_callers(lp_driver *d)
{
    lp_call *next, *c = d->answered, *abandoned = NULL;
    d->answered = NULL;
    d->answered_end = &d->answered;
    pthread_mutex_unlock(&d->s->lock);
    for (; c; c = next) {
        int waiting = CALL_WAITING;
        next = c->next;
        if (atomic_compare_exchange_strong(&c->state, &waiting, CALL_ANSWERED)) {
            sem_post(&c->answered);
            continue;
        }
        c->next = abandoned;
        abandoned = c;
    }
    pthread_mutex_lock(&d->s->lock);
    for (c = abandoned; c; c = next) {
        next = c->next;
        forget_call(d, c);
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

/* -- Jobs of a turn -- */

static bool names_id(const lp_job *job)
{
    return job->id && job->op != LP_PURGE;
}

static bool is_for(const lp_loan *l, const lp_job *job)
{
    return l->id_len == job->id_len && memcmp(l->id, job->id, job->id_len) == 0;
}

static bool withdraws(const lp_job *job, const lp_loan *l)
{
    bool changes = job->op == LP_CANCEL || job->op == LP_RESCHEDULE ||
                   (job->op == LP_SCHEDULE && job->replace);
    return changes && (job->generation == LAPSE_ANY || job->generation == l->generation);
}

/* An order that this scheduler holds unstarted counts as pending. Orders are claimed only
 * by turns, so that what is ready now is all there is until this job is answered. */
static void look_for_unstarted(lp_driver *d, lp_call *c)
{
    c->job.unstarted = 0;
    c->withdrawn = NULL;
    for (lp_loan *l = d->ready; l && names_id(&c->job); l = l->after) {
        if (!is_for(l, &c->job))
            continue;
        c->job.unstarted = l->fence;
        if (withdraws(&c->job, l)) {
            lp_driver_remove_ready(d, l);
            c->withdrawn = l;
        }
        return;
    }
}

static void add_take(lp_driver *d, lp_call *c)
{
    lp_call **at = &d->takes;
    while (*at)
        at = &(*at)->next;
    c->next = NULL;
    *at = c;
}

static void add_job(lp_driver *d, lp_job *job)
{
    if (job->kind == KIND_CALL && job->op == LP_TAKE) {
        add_take(d, (lp_call *)job);
        return;
    }
    if (job->kind == KIND_CALL)
        look_for_unstarted(d, (lp_call *)job);
    d->plan.jobs[d->plan.job_count++] = job;
}

/* How long until what was refused is asked again; real time. */
static lapse_ns refused_wait(const lp_driver *d)
{
    lapse_ns left = d->refused ? d->refused_at - lp_clock_monotonic() : LAPSE_FOREVER;
    return left > 0 ? left : 0;
}

/* How long until the first that the store has put off for a time is asked again; real time. */
static lapse_ns put_off_wait(const lp_driver *d)
{
    lapse_ns first = LAPSE_FOREVER;
    for (const lp_job *job = d->put_off; job; job = job->next)
        first = earlier(first, job->later_at);
    if (first == LAPSE_FOREVER)
        return first;
    lapse_ns left = first - lp_clock_monotonic();
    return left > 0 ? left : 0;
}

static void plan_put_off(lp_driver *d)
{
    lapse_ns now = lp_clock_monotonic();
    for (lp_job **at = &d->put_off; *at && d->plan.job_count < TURN_JOBS;) {
        lp_job *job = *at;
        if (job->later_at > now) {
            at = &job->next;
            continue;
        }
        *at = job->next;
        add_job(d, job);
    }
}

static void plan_jobs(lp_driver *d)
{
    lp_plan *p = &d->plan;
    /* What failed before waits, so that it does not fail what is asked meanwhile; under a manual
     * clock its lease might end before it is tried again. */
    bool waits = d->backoff && !d->s->options.clock && d->retry_at > lp_clock_monotonic();
    while (d->again && !waits && p->job_count < TURN_JOBS) {
        lp_job *job = d->again;
        d->again = job->next;
        add_job(d, job);
    }
    waits = !d->s->options.clock && refused_wait(d) > 0;
    while (d->refused && !waits && p->job_count < TURN_JOBS) {
        lp_job *job = d->refused;
        d->refused = job->next;
        add_job(d, job);
    }
    plan_put_off(d);
    while (d->inbox && p->job_count < TURN_JOBS) {
        lp_job *job = d->inbox;
        d->inbox = job->next;
        if (!d->inbox)
            d->inbox_end = &d->inbox;
        add_job(d, job);
    }
}

/* A lease is renewed when a third of it has passed. */
static lapse_ns lease_third(const lp_driver *d)
{
    return d->s->options.lease / 3;
}

static lapse_ns next_renewal(const lp_driver *d)
{
    lapse_ns next = LAPSE_FOREVER;
    for (const lp_loan *l = d->started; l; l = l->after)
        if (!l->renewing && !l->gone)
            next = earlier(next, l->renew_at);
    return next;
}

static void plan_renewals(lp_driver *d, lapse_ns now)
{
    lp_plan *p = &d->plan;
    for (lp_loan *l = d->started; l && p->job_count < TURN_JOBS; l = l->after) {
        if (l->renewing || l->gone || l->renew_at > now)
            continue;
        l->renewal = (lp_job){.op = LP_RENEW,
                              .kind = KIND_RENEWAL,
                              .id = l->id,
                              .id_len = l->id_len,
                              .row = l->row,
                              .fence = l->fence,
                              .lease = d->s->options.lease};
        l->renewing = true;
        p->jobs[p->job_count++] = &l->renewal;
    }
}

/* A host that does not start what was claimed for it lets others have it. */
static lapse_ns next_give_back(const lp_driver *d)
{
    return d->ready ? lp_add_ns(d->ready->claimed_at, lease_third(d)) : LAPSE_FOREVER;
}

/* So does one whose handler was removed or whose queue is paused meanwhile. */
static void give_back_unwanted(lp_driver *d)
{
    for (lp_loan *l = d->ready, *after; l; l = after) {
        after = l->after;
        const lp_queue *q = lp_driver_queue(d, l->queue);
        if (q && is_handled(q))
            continue;
        lp_driver_remove_ready(d, l);
        lp_driver_give_back(d, l);
    }
}

static void give_back_idle(lp_driver *d, lapse_ns now)
{
    if (d->dirty)
        give_back_unwanted(d);
    while (d->ready && (d->s->stopped || next_give_back(d) <= now)) {
        lp_loan *l = d->ready;
        lp_driver_remove_ready(d, l);
        lp_driver_give_back(d, l);
        d->host_wants = 0;
    }
}

/* Takers of a scheduler that was stopped get nothing any more. */
static void refuse_takes(lp_driver *d)
{
    while (d->takes) {
        lp_call *c = drop_take(&d->takes);
        c->job.answer = LAPSE_ECLOSED;
        answer_call(d, c);
    }
}

/* False without memory. */
static bool plan_turn(lp_driver *d, lapse_ns now)
{
    lp_plan *p = &d->plan;
    if (!make_room(p, d->queue_count + 1))
        return false;
    p->job_count = p->want_count = p->name_count = 0;
    d->dirty = false;
    plan_renewals(d, now);
    plan_jobs(d);
    if (d->s->stopped)
        return true;
    plan_push(d, push_demand(d), now);
    plan_takes(d);
    return true;
}

/* -- Answers -- */

/* What became of the loan that a call withdrew. */
static void end_withdrawal(lp_driver *d, lp_call *c)
{
    lp_loan *l = c->withdrawn;
    c->withdrawn = NULL;
    if (!l)
        return;
    bool gone = c->job.op == LP_SCHEDULE ? c->job.answer > 0
                                         : c->job.answer == LAPSE_FATE_CANCELLED ||
                                               c->job.answer == LAPSE_FATE_RESCHEDULED;
    if (c->job.answer == LAPSE_EUNSURE) {
        lp_driver_give_back(d, l); /* If it was not done it is pending again; else this is stale. */
        return;
    }
    if (!gone) {
        restore_ready(d, l);
        return;
    }
    lp_queue *q = lp_driver_queue(d, l->queue);
    if (q)
        lp_queue_refund(q);
    lp_driver_drop(l);
}

static void note_replaced(lp_driver *d, lp_job *job, int64_t fence)
{
    if (job->kind != KIND_SETTLEMENT || job->fence != fence)
        return;
    lp_loan *l = loan_of(job);
    if (l->booked && job->op != LP_END) /* It is not repeated, and no dead letter. */
        lp_book_ended(d->s, job, lp_driver_queue(d, l->queue), false);
    l->booked = false; /* What is booked stands, whatever the answer. */
}

/* An order was scheduled anew: what runs here has lost it. If that has just ended, its
 * settlement will be stale, and that is as it should be. */
static void supersede(lp_driver *d, int64_t fence)
{
    lp_claim *c = lp_find_held(d->s, fence);
    if (c && !c->lost)
        c->superseded = true;
    for (size_t i = d->plan.ended; i < d->plan.job_count; i++)
        note_replaced(d, d->plan.jobs[i], fence);
    for (lp_job *j = d->inbox; j; j = j->next)
        note_replaced(d, j, fence);
    for (lp_job *j = d->again; j; j = j->next)
        note_replaced(d, j, fence);
    for (lp_job *j = d->refused; j; j = j->next)
        note_replaced(d, j, fence);
}

static void end_call(lp_driver *d, lp_call *c)
{
    if (c->job.op == LP_SCHEDULE && c->job.answer > 0 && c->job.running_fence)
        supersede(d, c->job.running_fence);
    end_withdrawal(d, c);
    answer_call(d, c);
}

static void free_texts(lp_job *settlement)
{
    free((char *)(uintptr_t)settlement->error);
    free(settlement->detail);
    free(settlement->of_queue);
    settlement->error = settlement->detail = NULL;
    settlement->of_queue = NULL;
}

static void end_settlement(lp_driver *d, lp_loan *l)
{
    l->settling = false;
    l->settled = true;
    if (l->settlement.unsure && l->settlement.answer == LAPSE_ESTALE) {
        l->settlement.answer = LAPSE_EUNSURE; /* Most likely it was done the first time. */
        l->booked = false;
    }
    if (l->settlement.answer == 1 && l->booked)
        lp_book_ended(d->s, &l->settlement, lp_driver_queue(d, l->queue), true);
    if (l->settlement.answer < 0 && l->booked)
        lp_unbook(d->s, &l->settlement, lp_driver_queue(d, l->queue));
    free_texts(&l->settlement);
    release_loan(l);
}

/* What may pass while a lease lasts: a row that somebody has locked, a store without room. */
static bool may_pass(int64_t code)
{
    return code == LAPSE_ETIMEOUT || code == LAPSE_EOFFLINE || code == LAPSE_ESYSTEM ||
           code == LAPSE_ENOMEM || code == LAPSE_EUNSURE;
}

/* A settlement that the store refused for itself is asked again, with back-off: what has run
 * shall not run anew only because its end came at a bad moment. By its fence it is safe. */
static bool ask_later(lp_driver *d, lp_job *job, lapse_ns now)
{
    if (!may_pass(job->answer) || loan_of(job)->lease_end <= now)
        return false;
    job->unsure = job->unsure || job->answer == LAPSE_EUNSURE;
    job->answer = 0;
    free(job->detail);
    job->detail = NULL;
    job->next = d->refused;
    d->refused = job;
    return true;
}

/* The pauses are a part of the lease: the store may have been held up by each attempt. */
static void note_refused(lp_driver *d)
{
    lapse_ns lease = d->s->options.lease;
    if (!d->refused) {
        d->refused_pause = 0;
        return;
    }
    if (refused_wait(d) > 0)
        return; /* Not asked this time. */
    d->refused_pause = d->refused_pause ? earlier(2 * d->refused_pause, lease / 8) : lease / 32;
    d->refused_pause = earlier(d->refused_pause, BACKOFF_MAX);
    d->refused_at = lp_add_ns(lp_clock_monotonic(), d->refused_pause);
}

/* A lease is as long as the store says, which was told the time before the turn. */
static void note_lease(const lp_driver *d, lp_loan *l)
{
    l->lease_end = lp_add_ns(d->turn_at, d->s->options.lease);
    l->renew_at = lp_add_ns(d->turn_at, lease_third(d));
}

/* A renewal that failed is not asked again at once: each attempt may hold up all others. */
static void renew_later(const lp_driver *d, lp_loan *l, lapse_ns now)
{
    l->renew_at = lp_add_ns(now, lease_third(d) / 4);
}

static void end_renewal(lp_driver *d, lp_loan *l, lapse_ns now)
{
    l->renewing = false;
    free_texts(&l->renewal);
    if (l->dropped) {
        release_loan(l);
        return;
    }
    if (l->renewal.answer == LAPSE_ESTALE) {
        l->gone = true;
        lp_claim_gone(d->s, l->fence, now);
    } else if (l->renewal.answer >= 0) {
        note_lease(d, l);
    } else {
        renew_later(d, l, now);
    }
}

static void end_job(lp_driver *d, lp_job *job, lapse_ns now)
{
    switch (job->kind) {
    case KIND_CALL:
        end_call(d, (lp_call *)job);
        return;
    case KIND_SETTLEMENT:
        if (!ask_later(d, job, now))
            end_settlement(d, loan_of(job));
        return;
    default:
        end_renewal(d, loan_of(job), now);
    }
}

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
    answer_call(d, c);
}

static void push_loan(lp_driver *d, lp_loan *l)
{
    lp_queue *q = lp_driver_queue(d, l->queue);
    l->called = true;
    if (q)
        lp_queue_started(q);
    append_ready(d, l);
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
        note_lease(d, l);
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

/* Polls that found nothing. */
static void answer_polls(lp_driver *d)
{
    for (lp_call **at = &d->takes; *at;) {
        lp_call *c = *at;
        if (!c->once) {
            at = &c->next;
            continue;
        }
        drop_take(at);
        c->job.answer = 0;
        answer_call(d, c);
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
            d->take_next = earlier(d->take_next, next);
            continue;
        }
        if (p->rated[i])
            p->rated[i]->next_due = next;
        if (p->rated[i] && next < LAPSE_FOREVER) {
            (void)lp_queue_open(p->rated[i], now);
            lapse_ns opens = lp_queue_opens_at(p->rated[i]);
            next = next > opens ? next : opens;
        }
        d->push_next = earlier(d->push_next, next);
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

/* -- Failure -- */

/* The store's link is down, or up again: whoever looks after claims tells. */
static void note_link(lp_driver *d, int code, lapse_ns now)
{
    bool was = d->offline_since != LAPSE_FOREVER;
    if (code == LAPSE_OK && was) {
        d->offline_since = LAPSE_FOREVER;
        lp_tell_link(d->s, LAPSE_OK);
    } else if (code < 0 && !was) {
        d->offline_since = now;
        lp_tell_link(d->s, code);
    }
}

/* Of a store that does all it is asked, but late. */
static void note_trouble(lp_driver *d)
{
    const char *text = d->ops->trouble ? d->ops->trouble(d->store) : NULL;
    if (d->troubled == (text != NULL))
        return;
    d->troubled = text != NULL;
    snprintf(d->trouble.text, sizeof d->trouble.text, "%s", text ? text : "");
    lp_tell_trouble(d->s);
}

static void fail_job(lp_driver *d, lp_job *job, int code, lapse_ns now)
{
    if (job->kind == KIND_SETTLEMENT && loan_of(job)->lease_end > now) {
        job->unsure = job->unsure || code == LAPSE_EUNSURE;
        job->next = d->again; /* By its fence it is safe to repeat. */
        d->again = job;
        return;
    }
    if (job->kind == KIND_RENEWAL) {
        loan_of(job)->renewing = false;
        renew_later(d, loan_of(job), now);
        release_loan(loan_of(job));
        return;
    }
    job->answer = job->later_at ? LAPSE_EUNSURE : code;
    job->detail = strdup(d->offline_words.text);
    end_job(d, job, now);
}

/* Shorter by up to a quarter: those who lost one server do not all come back at the same instant. */
static lapse_ns spread_out(lapse_ns pause)
{
    uint64_t bits = (uint64_t)lp_clock_monotonic() * UINT64_C(0x9E3779B97F4A7C15);
    return pause - (lapse_ns)((bits >> 32) % (uint64_t)(pause / 4));
}

static void fail_turn(lp_driver *d, int code, lapse_ns now)
{
    lp_plan *p = &d->plan;
    d->backoff = d->backoff ? earlier(2 * d->backoff, BACKOFF_MAX) : BACKOFF_MIN;
    d->retry_at = lp_add_ns(lp_clock_monotonic(), spread_out(d->backoff));
    d->offline_code = code;
    note_link(d, code, now);
    for (size_t i = p->job_count; i-- > 0;) /* Backwards: `again` is a stack. */
        fail_job(d, p->jobs[i], code, now);
    for (lp_call **at = &d->takes; *at;) {
        lp_call *c = *at;
        if (!c->once) {
            at = &c->next;
            continue;
        }
        drop_take(at);
        c->job.answer = code;
        c->job.detail = strdup(d->offline_words.text);
        answer_call(d, c);
    }
    d->dirty = true;
}

/* What the store has put off comes first in the next turn, in the order in which it was asked. */
static void ask_once_more(lp_driver *d)
{
    for (size_t i = d->plan.job_count; i-- > 0;) {
        lp_job *job = d->plan.jobs[i];
        if (!job || !job->later)
            continue;
        lp_call *c = (lp_call *)job;
        if (c->withdrawn)
            restore_ready(d, c->withdrawn);
        c->withdrawn = NULL;
        if (job->later_at) {
            job->next = d->put_off;
            d->put_off = job;
        } else {
            post_first(d, job);
        }
    }
}

static void end_turn(lp_driver *d, lp_loan *loans, lapse_ns now)
{
    lp_plan *p = &d->plan;
    if (!d->again) {
        d->backoff = 0;
        note_link(d, LAPSE_OK, now);
    }
    for (size_t i = 0; i < p->job_count; i++) {
        p->ended = i + 1;
        if (p->jobs[i]->later)
            continue;
        end_job(d, p->jobs[i], now);
        p->jobs[i] = NULL; /* It may be gone. */
    }
    ask_once_more(d);
    note_refused(d);
    note_next(d, now);
    pass_on_loans(d, loans, now);
    answer_polls(d);
    tell_host(d, now);
    lp_tell_settled(d->s);
}

/* Without the lock. */
static int let_store_work(lp_driver *d, lp_turn *t, lp_detail *words)
{
    int code = LAPSE_OK;
    if (d->backoff && d->offline_code == LAPSE_EOFFLINE && d->ops->reconnect)
        code = d->ops->reconnect(d->store);
    if (code == LAPSE_OK)
        code = d->ops->turn(d->store, t);
    if (code < 0)
        lp_detail_save(words);
    return code;
}

static void take_turn(lp_driver *d, lapse_ns now)
{
    lapse *s = d->s;
    lp_turn t = {.now = now,
                 .wall = lp_clock_wall(s->options.clock),
                 .lease = s->options.lease,
                 .jobs = d->plan.jobs,
                 .job_count = d->plan.job_count,
                 .wants = d->plan.wants,
                 .want_count = d->plan.want_count,
                 .push_most = push_demand(d)};
    d->turn_at = now;
    pthread_mutex_unlock(&s->lock);
    lp_detail words;
    int code = let_store_work(d, &t, &words);
    pthread_mutex_lock(&s->lock);
    if (code < 0)
        d->offline_words = words;
    now = lp_engine_now(s);
    if (code < 0)
        fail_turn(d, code, now);
    else
        end_turn(d, t.loans, now);
    d->poll_at = lp_add_ns(now, d->ops->poll(d->store));
    note_trouble(d);
}

/* -- When -- */

static bool wants_orders(const lp_driver *d)
{
    return push_demand(d) > 0 || d->takes || d->host_polls;
}

/* The next instant at which there is something to do without being told; INT64_MIN: now. */
static lapse_ns next_thing(const lp_driver *d)
{
    if (d->inbox || d->again || d->dirty || refused_wait(d) == 0 || put_off_wait(d) == 0 ||
        (d->s->stopped && (d->ready || d->takes)))
        return INT64_MIN;
    lapse_ns next = earlier(next_renewal(d), next_give_back(d));
    if (push_demand(d) > 0)
        next = earlier(next, d->push_next);
    if (d->takes || d->host_polls)
        next = earlier(next, d->take_next);
    if (wants_orders(d))
        next = earlier(next, d->poll_at);
    return next;
}

/* How long to leave a store alone that failed; 0: not at all. */
static lapse_ns pause_left(const lp_driver *d)
{
    if (!d->backoff || d->inbox || d->quit)
        return 0;
    lapse_ns left = d->retry_at - lp_clock_monotonic();
    return left > 0 ? left : 0;
}

static void arm(lp_driver *d, lapse_ns at)
{
    if (at == d->armed)
        return;
    d->armed = at;
    lp_wake_at(d->timer, at);
}

/* Until `at` of the engine's clock, a hint, a ring, or `limit` of real time. Under the lock,
 * which it drops meanwhile. */
static void sleep_until(lp_driver *d, lapse_ns at, lapse_ns limit)
{
    enum { TIMER = 1, BELL = 2, HINT = 4 };
    lapse *s = d->s;
    const int fds[] = {d->timer, d->bell, d->ops->hint_fd(d->store)};
    d->sleeping = true;
    d->woken = false;
    arm(d, s->options.clock ? LAPSE_FOREVER : at);
    lp_tell_settled(s);
    pthread_mutex_unlock(&s->lock);
    int readable = lp_wake_wait_any(fds, 3, limit);
    readable = readable < 0 ? 0 : readable;
    if (readable & BELL)
        lp_bell_quiet(d->bell);
    if (readable & HINT)
        d->ops->hinted(d->store);
    pthread_mutex_lock(&s->lock);
    d->sleeping = false;
    if (readable & TIMER)
        d->armed = INT64_MIN;
    d->dirty = d->dirty || readable & HINT;
    note_trouble(d);
}

/* What the store may wake us for: only what somebody here could start. */
static lapse_ns wanted_next(const lp_driver *d)
{
    lapse_ns next = push_demand(d) > 0 ? d->push_next : INT64_MIN;
    bool takes = d->takes || d->host_polls;
    return takes && (next == INT64_MIN || d->take_next < next) ? d->take_next : next;
}

static void rest(lp_driver *d, lapse_ns at, lapse_ns now)
{
    lapse_ns pause = pause_left(d);
    if (pause > 0) {
        sleep_until(d, LAPSE_FOREVER, pause);
        return;
    }
    if (d->ops->sleeps(d->store, wanted_next(d), now)) {
        d->dirty = true;
        return;
    }
    sleep_until(d, at, earlier(refused_wait(d), put_off_wait(d)));
}

static bool is_over(const lp_driver *d)
{
    return d->quit && !d->inbox && !d->put_off && (!d->again || d->backoff) && !d->ready &&
           !d->takes && !d->answered;
}

static void *run(void *arg)
{
    lp_driver *d = arg;
    lapse *s = d->s;
    pthread_mutex_lock(&s->lock);
    while (!is_over(d)) {
        lapse_ns now = lp_engine_now(s);
        give_back_idle(d, now);
        if (s->stopped)
            refuse_takes(d);
        if (d->answered) {
            wake_callers(d);
            continue;
        }
        lapse_ns at = next_thing(d);
        if (at > now || pause_left(d) > 0)
            rest(d, at, now);
        else if (plan_turn(d, now))
            take_turn(d, now);
        else
            sleep_until(d, LAPSE_FOREVER, LAPSE_MS(10)); /* Without memory: later. */
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* -- Opening -- */

static int start_thread(lp_driver *d)
{
    sigset_t all, mask;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &mask);
    int number = pthread_create(&d->thread, NULL, run, d);
    pthread_sigmask(SIG_SETMASK, &mask, NULL);
    return number ? lp_fail_system("pthread_create", number) : LAPSE_OK;
}

static void free_driver(lp_driver *d)
{
    if (d->store)
        d->ops->close(d->store);
    if (d->timer >= 0)
        lp_wake_close(d->timer);
    if (d->bell >= 0)
        lp_wake_close(d->bell);
    for (size_t i = 0; i < d->queue_count; i++) {
        free(d->queues[i]->lateness);
        free(d->queues[i]->name);
        free(d->queues[i]);
    }
    free(d->queues);
    free(d->by_name);
    free(d->plan.jobs);
    free(d->plan.wants);
    free(d->plan.rated);
    free(d->plan.names);
    free(d);
}

static int set_up(lp_driver *d, lp_store_config *config)
{
    d->armed = INT64_MIN;
    d->timer = lp_wake_open();
    d->bell = d->timer < 0 ? -1 : lp_bell_open();
    if (d->timer < 0 || d->bell < 0)
        return LAPSE_ESYSTEM;
    if (!lp_driver_queue(d, ""))
        return lp_fail_memory();
    return d->ops->open(config, &d->store);
}

int lp_driver_open(lapse *s, const lp_durable_ops *ops, lp_store_config *config, lp_store **out)
{
    lp_driver *d = calloc(1, sizeof *d);
    if (!d)
        return lp_fail_memory();
    d->base.ops = &lp_driver_store;
    d->s = s;
    d->ops = ops;
    d->inbox_end = &d->inbox;
    d->answered_end = &d->answered;
    d->push_next = d->take_next = d->poll_at = LAPSE_FOREVER;
    d->offline_since = LAPSE_FOREVER;
    d->host_most = 1;
    config->lease = config->lease ? config->lease : LAPSE_SECONDS(30);
    int code = set_up(d, config);
    if (code == LAPSE_OK && config->lease < LEASE_MIN)
        code = lp_fail(LAPSE_ERANGE,
                       "a lease of %lld ns: a durable store needs 10 ms at least to start anything",
                       (long long)config->lease);
    if (code < 0) {
        free_driver(d);
        return code;
    }
    d->ops = d->store->ops; /* One store may open another in its place. */
    *out = &d->base;
    return LAPSE_OK;
}

/* Once the scheduler stands. */
int lp_driver_run(lapse *s)
{
    if (!s->driver)
        return LAPSE_OK;
    int code = start_thread(s->driver);
    s->driver->runs = code == LAPSE_OK;
    return code;
}

static void let_go(lp_job *settlements)
{
    for (lp_job *job = settlements, *next; job; job = next) {
        next = job->next;
        loan_of(job)->settling = false;
        free_texts(job);
        release_loan(loan_of(job));
    }
}

void lp_driver_close(lp_driver *d)
{
    if (d->runs) {
        pthread_mutex_lock(&d->s->lock);
        d->quit = true;
        lp_driver_wake(d);
        pthread_mutex_unlock(&d->s->lock);
        pthread_join(d->thread, NULL);
    }
    let_go(d->again); /* Not even the last attempt was taken: the leases end. */
    let_go(d->refused);
    free_driver(d);
}
