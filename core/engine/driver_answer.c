/* driver_answer.c - what the store has answered, job by job: to callers, and to what is booked.
 *
 * A settlement is booked when it is posted; an answer that says otherwise takes that back.
 * All under the lock. */
#include <stdlib.h>
#include <string.h>

#include "engine/driver_parts.h"

/* -- Callers -- */

/* The caller is woken once the lock is dropped, so that he does not run into it. */
void lp_driver_answer(lp_driver *d, lp_call *c)
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
void lp_driver_wake_callers(lp_driver *d)
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

/* -- Calls -- */

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
        lp_driver_restore_ready(d, l);
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
    lp_loan *l = lp_driver_loan_of(job);
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
    lp_driver_answer(d, c);
}

/* -- Settlements -- */

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
    lp_driver_free_texts(&l->settlement);
    lp_driver_release(l);
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
    if (!may_pass(job->answer) || lp_driver_loan_of(job)->lease_end <= now)
        return false;
    job->unsure = job->unsure || job->answer == LAPSE_EUNSURE;
    job->answer = 0;
    free(job->detail);
    job->detail = NULL;
    job->next = d->refused;
    d->refused = job;
    return true;
}

/* -- A job -- */

void lp_driver_end_job(lp_driver *d, lp_job *job, lapse_ns now)
{
    switch (job->kind) {
    case KIND_CALL:
        end_call(d, (lp_call *)job);
        return;
    case KIND_SETTLEMENT:
        if (!ask_later(d, job, now))
            end_settlement(d, lp_driver_loan_of(job));
        return;
    default:
        lp_driver_end_renewal(d, lp_driver_loan_of(job), now);
    }
}

void lp_driver_fail_job(lp_driver *d, lp_job *job, int code, lapse_ns now)
{
    if (job->kind == KIND_SETTLEMENT && lp_driver_loan_of(job)->lease_end > now) {
        job->unsure = job->unsure || code == LAPSE_EUNSURE;
        job->next = d->again; /* By its fence it is safe to repeat. */
        d->again = job;
        return;
    }
    if (job->kind == KIND_RENEWAL) {
        lp_driver_fail_renewal(d, lp_driver_loan_of(job), now);
        return;
    }
    job->answer = job->later_at ? LAPSE_EUNSURE : code;
    job->detail = strdup(d->offline_words.text);
    lp_driver_end_job(d, job, now);
}
