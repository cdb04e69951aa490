/* driver_loan.c - what was claimed, from then until it is settled or given back.
 *
 * A loan for a callback is `ready`, then among those `started`; a taker's is in no list. It
 * is freed once nobody looks at it and no job of it is with the store. The lease of one that
 * runs is renewed in time; what nobody starts goes back. All under the lock. */
#include <stdlib.h>

#include "engine/driver_parts.h"

lp_loan *lp_driver_loan_of(lp_job *job)
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
void lp_driver_release(lp_loan *l)
{
    if (l->dropped)
        lp_driver_drop(l);
}

/* -- Ready, started -- */

void lp_driver_remove_ready(lp_driver *d, lp_loan *l)
{
    *(l->before ? &l->before->after : &d->ready) = l->after;
    *(l->after ? &l->after->before : &d->ready_last) = l->before;
    d->ready_count--;
}

void lp_driver_append_ready(lp_driver *d, lp_loan *l)
{
    l->before = d->ready_last;
    l->after = NULL;
    *(d->ready_last ? &d->ready_last->after : &d->ready) = l;
    d->ready_last = l;
    d->ready_count++;
}

/* Back to where it stood. */
void lp_driver_restore_ready(lp_driver *d, lp_loan *l)
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

/* -- Giving back -- */

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
    lp_driver_post_first(d, &l->settlement);
}

/* A lease is renewed when a third of it has passed. */
static lapse_ns lease_third(const lp_driver *d)
{
    return d->s->options.lease / 3;
}

/* A host that does not start what was claimed for it lets others have it. */
lapse_ns lp_driver_next_give_back(const lp_driver *d)
{
    return d->ready ? lp_add_ns(d->ready->claimed_at, lease_third(d)) : LAPSE_FOREVER;
}

/* So does one whose handler was removed or whose queue is paused meanwhile. */
static void give_back_unwanted(lp_driver *d)
{
    for (lp_loan *l = d->ready, *after; l; l = after) {
        after = l->after;
        const lp_queue *q = lp_driver_queue(d, l->queue);
        if (q && lp_driver_handles(q))
            continue;
        lp_driver_remove_ready(d, l);
        lp_driver_give_back(d, l);
    }
}

void lp_driver_give_back_idle(lp_driver *d, lapse_ns now)
{
    if (d->dirty)
        give_back_unwanted(d);
    while (d->ready && (d->s->stopped || lp_driver_next_give_back(d) <= now)) {
        lp_loan *l = d->ready;
        lp_driver_remove_ready(d, l);
        lp_driver_give_back(d, l);
        d->host_wants = 0;
    }
}

/* -- Leases -- */

/* A lease is as long as the store says, which was told the time before the turn. */
void lp_driver_note_lease(const lp_driver *d, lp_loan *l)
{
    l->lease_end = lp_add_ns(d->turn_at, d->s->options.lease);
    l->renew_at = lp_add_ns(d->turn_at, lease_third(d));
}

/* A renewal that failed is not asked again at once: each attempt may hold up all others. */
static void renew_later(const lp_driver *d, lp_loan *l, lapse_ns now)
{
    l->renew_at = lp_add_ns(now, lease_third(d) / 4);
}

lapse_ns lp_driver_next_renewal(const lp_driver *d)
{
    lapse_ns next = LAPSE_FOREVER;
    for (const lp_loan *l = d->started; l; l = l->after)
        if (!l->renewing && !l->gone)
            next = lp_earlier(next, l->renew_at);
    return next;
}

void lp_driver_plan_renewals(lp_driver *d, lapse_ns now)
{
    lp_plan *p = &d->plan;
    for (lp_loan *l = d->started; l && p->job_count < LP_DRIVER_TURN_JOBS; l = l->after) {
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

void lp_driver_free_texts(lp_job *settlement)
{
    free((char *)(uintptr_t)settlement->error);
    free(settlement->detail);
    free(settlement->of_queue);
    settlement->error = settlement->detail = NULL;
    settlement->of_queue = NULL;
}

void lp_driver_end_renewal(lp_driver *d, lp_loan *l, lapse_ns now)
{
    l->renewing = false;
    lp_driver_free_texts(&l->renewal);
    if (l->dropped) {
        lp_driver_release(l);
        return;
    }
    if (l->renewal.answer == LAPSE_ESTALE) {
        l->gone = true;
        lp_claim_gone(d->s, l->fence, now);
    } else if (l->renewal.answer >= 0) {
        lp_driver_note_lease(d, l);
    } else {
        renew_later(d, l, now);
    }
}

void lp_driver_fail_renewal(lp_driver *d, lp_loan *l, lapse_ns now)
{
    l->renewing = false;
    renew_later(d, l, now);
    lp_driver_release(l);
}

void lp_driver_let_go(lp_job *settlements)
{
    for (lp_job *job = settlements, *next; job; job = next) {
        next = job->next;
        lp_driver_loan_of(job)->settling = false;
        lp_driver_free_texts(job);
        lp_driver_release(lp_driver_loan_of(job));
    }
}
