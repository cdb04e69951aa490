/* driver_turn.c - a turn: plan it, let the store have it, pass on the answers.
 *
 * The lock is held while a turn is planned and while its answers are passed on, never while
 * the store works. A turn that failed as a whole is followed by a pause; only settlements
 * are asked anew, which their fence makes safe. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/driver_parts.h"

static const lapse_ns BACKOFF_MIN = LAPSE_MS(20), BACKOFF_MAX = LAPSE_SECONDS(2);

/* -- What waits to be asked again -- */

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
        first = lp_earlier(first, job->later_at);
    if (first == LAPSE_FOREVER)
        return first;
    lapse_ns left = first - lp_clock_monotonic();
    return left > 0 ? left : 0;
}

lapse_ns lp_driver_retry_wait(const lp_driver *d)
{
    return lp_earlier(refused_wait(d), put_off_wait(d));
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
    d->refused_pause = d->refused_pause ? lp_earlier(2 * d->refused_pause, lease / 8) : lease / 32;
    d->refused_pause = lp_earlier(d->refused_pause, BACKOFF_MAX);
    d->refused_at = lp_add_ns(lp_clock_monotonic(), d->refused_pause);
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
            lp_driver_restore_ready(d, c->withdrawn);
        c->withdrawn = NULL;
        if (job->later_at) {
            job->next = d->put_off;
            d->put_off = job;
        } else {
            lp_driver_post_first(d, job);
        }
    }
}

/* -- Planning -- */

/* False without memory. */
static bool make_room(lp_driver *d)
{
    lp_plan *p = &d->plan;
    if (!p->jobs)
        p->jobs = malloc((LP_DRIVER_TURN_JOBS + 1) * sizeof *p->jobs);
    return p->jobs && lp_driver_make_want_room(p, d->queue_count + 1);
}

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

static void add_job(lp_driver *d, lp_job *job)
{
    if (job->kind == KIND_CALL && job->op == LP_TAKE) {
        lp_driver_add_take(d, (lp_call *)job);
        return;
    }
    if (job->kind == KIND_CALL)
        look_for_unstarted(d, (lp_call *)job);
    d->plan.jobs[d->plan.job_count++] = job;
}

static void plan_put_off(lp_driver *d)
{
    lapse_ns now = lp_clock_monotonic();
    for (lp_job **at = &d->put_off; *at && d->plan.job_count < LP_DRIVER_TURN_JOBS;) {
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
    while (d->again && !waits && p->job_count < LP_DRIVER_TURN_JOBS) {
        lp_job *job = d->again;
        d->again = job->next;
        add_job(d, job);
    }
    waits = !d->s->options.clock && refused_wait(d) > 0;
    while (d->refused && !waits && p->job_count < LP_DRIVER_TURN_JOBS) {
        lp_job *job = d->refused;
        d->refused = job->next;
        add_job(d, job);
    }
    plan_put_off(d);
    while (d->inbox && p->job_count < LP_DRIVER_TURN_JOBS) {
        lp_job *job = d->inbox;
        d->inbox = job->next;
        if (!d->inbox)
            d->inbox_end = &d->inbox;
        add_job(d, job);
    }
}

bool lp_driver_plan_turn(lp_driver *d, lapse_ns now)
{
    lp_plan *p = &d->plan;
    if (!make_room(d))
        return false;
    p->job_count = p->want_count = p->name_count = 0;
    d->dirty = false;
    lp_driver_plan_renewals(d, now);
    plan_jobs(d);
    if (d->s->stopped)
        return true;
    lp_driver_plan_wants(d, now);
    return true;
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
void lp_driver_note_trouble(lp_driver *d)
{
    const char *text = d->ops->trouble ? d->ops->trouble(d->store) : NULL;
    if (d->troubled == (text != NULL))
        return;
    d->troubled = text != NULL;
    snprintf(d->trouble.text, sizeof d->trouble.text, "%s", text ? text : "");
    lp_tell_trouble(d->s);
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
    d->backoff = d->backoff ? lp_earlier(2 * d->backoff, BACKOFF_MAX) : BACKOFF_MIN;
    d->retry_at = lp_add_ns(lp_clock_monotonic(), spread_out(d->backoff));
    d->offline_code = code;
    note_link(d, code, now);
    for (size_t i = p->job_count; i-- > 0;) /* Backwards: `again` is a stack. */
        lp_driver_fail_job(d, p->jobs[i], code, now);
    lp_driver_answer_polls(d, code);
    d->dirty = true;
}

/* -- A turn -- */

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
        lp_driver_end_job(d, p->jobs[i], now);
        p->jobs[i] = NULL; /* It may be gone. */
    }
    ask_once_more(d);
    note_refused(d);
    lp_driver_serve_wants(d, loans, now);
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

void lp_driver_take_turn(lp_driver *d, lapse_ns now)
{
    lapse *s = d->s;
    lp_turn t = {.now = now,
                 .wall = lp_clock_wall(s->options.clock),
                 .lease = s->options.lease,
                 .jobs = d->plan.jobs,
                 .job_count = d->plan.job_count,
                 .wants = d->plan.wants,
                 .want_count = d->plan.want_count,
                 .push_most = lp_driver_push_demand(d)};
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
    lp_driver_note_trouble(d);
}
