/* driver_claim.c - claims of a durable store: from ready to held, and their end.
 *
 * A settlement of a callback is posted only, since it may ride on the next flush; one of which
 * only the store knows whether its claim still holds is waited for. All under the lock. */
#include <stdlib.h>
#include <string.h>

#include "engine/driver_parts.h"

static lp_loan *loan_of(const lp_claim *c)
{
    return c->kept;
}

/* -- Begin -- */

void lp_driver_fill_claim(lp_claim *c, lp_loan *l, lp_queue *q)
{
    c->superseded = false;
    c->lost = false;
    c->kept = l;
    c->called = l->called;
    c->due = l->due;
    c->queue = q;
    c->fn = NULL;
    c->arg = NULL;
    c->order = (lapse_order){.id = l->id,
                             .id_len = l->id_len,
                             .queue = q->name,
                             .payload = l->payload,
                             .payload_len = l->payload_len,
                             .fence = l->fence,
                             .generation = l->generation,
                             .attempt = l->attempt};
}

/* The first that is ready and may start; those that may not any more go back. */
static lp_loan *first_ready(lp_driver *d, lapse_ns now)
{
    lp_loan *l;
    while ((l = d->ready)) {
        const lp_queue *q = lp_driver_queue(d, l->queue);
        bool may_start = q && q->handler && !q->paused;
        if (may_start && l->lease_end > now)
            return l;
        lp_driver_remove_ready(d, l);
        lp_driver_give_back(d, l);
    }
    return NULL;
}

int lp_driver_start_ready(lp_driver *d, lapse_ns until, lapse_ns now, lp_claim *c)
{
    lp_loan *l = first_ready(d, now);
    if (!l || l->due > until)
        return LP_CLAIM_NONE;
    lp_driver_remove_ready(d, l);
    lp_driver_start(d, l);
    d->host_wants -= d->host_wants > 0;
    lp_driver_fill_claim(c, l, lp_driver_queue(d, l->queue));
    return LP_CLAIM_ONE;
}

/* -- Settle -- */

static char *copy_text(const char *text)
{
    return text ? strdup(text) : NULL;
}

/* With a NUL after them. */
static char *copy_bytes(const void *bytes, size_t len)
{
    char *copy = malloc(len + 1);
    if (copy)
        memcpy(copy, bytes, len);
    if (copy)
        copy[len] = '\0';
    return copy;
}

/* The order of a claim as a dead letter. What a store could not read as an order may have an id with
 * any bytes in it. */
static void describe_death(const lp_request *r, lapse_ns now)
{
    const lapse_order *o = &r->claim->order;
    *r->info = (lapse_info){.state = LAPSE_STATE_DEAD,
                            .id = copy_bytes(o->id, o->id_len),
                            .id_len = o->id_len,
                            .queue = strdup(o->queue),
                            .due = r->claim->due,
                            .ended = now,
                            .generation = o->generation,
                            .attempt = o->attempt - (r->counted || r->op == LP_LOSE ? 0 : 1),
                            .reason = r->reason,
                            .error = copy_text(r->error)};
    if (o->payload_len && (r->info->payload = copy_bytes(o->payload, o->payload_len)))
        r->info->payload_len = o->payload_len;
    if (!r->info->id || !r->info->queue)
        lapse_info_free(r->info); /* Not told of, but listed. */
}

static int op_of(const lp_request *r)
{
    if (r->op != LP_LOSE)
        return (int)r->op;
    return r->ends ? LP_END : r->reason ? LP_DIE : LP_AGAIN;
}

static void post_settlement(lapse *s, lp_request *r, lapse_ns now)
{
    lp_loan *l = loan_of(r->claim);
    int op = op_of(r);
    bool pass = l->called && r->due <= now;
    l->settlement = (lp_job){.op = op,
                             .kind = KIND_SETTLEMENT,
                             .id = l->id,
                             .id_len = l->id_len,
                             .row = l->row,
                             .fence = l->fence,
                             .due = r->due,
                             .at = pass ? now + 1 : r->due,
                             .reason = r->reason,
                             .error = op == LP_DIE ? copy_text(r->error) : NULL,
                             .counted = r->counted,
                             .no_more = r->claim->no_more};
    l->settling = true;
    l->booked = !r->waits;
    lp_driver_post(s->driver, &l->settlement);
    if (op == LP_DIE) {
        r->died = true;
        if (r->info)
            describe_death(r, now);
    }
}

/* Until the settlement is answered, or is not in time. */
static int64_t await_settlement(lapse *s, const lp_loan *l)
{
    lapse_ns limit = lp_driver_time_limit(s), deadline = lp_add_ns(lp_clock_monotonic(), limit);
    s->inside++;
    while (l->settling && lp_await(s, deadline))
        continue;
    s->inside--;
    return l->settling ? lp_driver_unsure(limit) : l->settlement.answer;
}

static void leave_started(lapse *s, lp_loan *l)
{
    if (l->called)
        lp_driver_unstart(s->driver, l);
}

/* An order that a callback or taker held ends, waits again, or dies. */
void lp_driver_end_claim(lapse *s, lp_request *r, lapse_ns now)
{
    lp_loan *l = loan_of(r->claim);
    r->answer = LAPSE_OK;
    if (!r->claim->lost)
        leave_started(s, l); /* It is renewed no more, not even while its end is waited for. */
    if (!r->claim->lost && !l->gone && !r->claim->superseded) {
        post_settlement(s, r, now);
        if (r->waits)
            r->answer = await_settlement(s, l);
        if (r->answer != LAPSE_OK && r->died) {
            lapse_info_free(r->info);
            r->died = false;
        }
    }
    lp_driver_drop(l);
}

/* The lease here has ended. For a taker it has in the store too; a callback's is renewed
 * until now, and let go. */
void lp_driver_lose_claim(lapse *s, lp_request *r, lapse_ns now)
{
    lp_loan *l = loan_of(r->claim);
    r->answer = LAPSE_OK;
    if (!l->called)
        return;
    leave_started(s, l);
    if (!l->gone && !r->claim->superseded)
        post_settlement(s, r, now);
}

/* -- What the store knows of it -- */

int64_t lp_driver_ask_claim(lapse *s, const lp_claim *claim, int op, lapse_ns lease)
{
    const lp_loan *l = loan_of(claim);
    int code;
    lp_call *c = lp_driver_new_call(op, l->id_len + 1, 0);
    if (c) {
        c->job.id = memcpy(c->bytes, l->id, l->id_len + 1); /* The loan may be gone first. */
        c->job.id_len = l->id_len;
        c->job.row = l->row;
        c->job.fence = l->fence;
        c->job.lease = lease;
    }
    c = lp_driver_ask(s, c, &code);
    if (c)
        lp_driver_free_call(c);
    return code;
}

bool lp_driver_has_lost(const lp_claim *claim)
{
    return loan_of(claim)->gone;
}

void lp_driver_note_lost(const lp_claim *claim)
{
    loan_of(claim)->gone = true;
}

lapse_ns lp_driver_lease_end(const lp_claim *claim)
{
    return loan_of(claim)->lease_end;
}

bool lp_driver_is_assured(const lp_claim *claim, lapse_ns now)
{
    return loan_of(claim)->lease_end > now;
}

const char *lp_driver_fault(const lp_claim *claim)
{
    return loan_of(claim)->bad;
}
