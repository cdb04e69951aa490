/* driver_look.c - copies of orders, counts and names of queues, from a durable store.
 *
 * What is claimed and has not started is pending here, whatever the store says. */
#include <string.h>

#include "engine/driver_parts.h"

/* An order that is claimed and has not started is shown as it was. */
static void show_unstarted(const lp_driver *d, lapse_info *info)
{
    const lp_loan *l = info->state == LAPSE_STATE_RUNNING ? d->ready : NULL;
    while (l && (l->generation != info->generation || l->id_len != info->id_len ||
                 memcmp(l->id, info->id, l->id_len) != 0))
        l = l->after;
    if (!l)
        return;
    info->state = LAPSE_STATE_PENDING;
    info->attempt--;
}

/* Take over those whose state is in `states`; how many. */
static int keep_shown(const lp_driver *d, lp_call *c, int count, unsigned states, lapse_info *out)
{
    int n = 0;
    for (int i = 0; i < count; i++) {
        show_unstarted(d, &c->infos[i]);
        if (!(c->infos[i].state & states))
            continue; /* Freed with the call. */
        out[n++] = c->infos[i];
        c->infos[i] = (lapse_info){.id = NULL};
    }
    return n;
}

int lp_driver_list(lp_store *store, uint64_t *cursor, unsigned states, lapse_info *out, int max,
                   lapse_ns now)
{
    static const unsigned LIVE = LAPSE_STATE_PENDING | LAPSE_STATE_RUNNING;
    lp_driver *d = lp_driver_of(store);
    (void)now;
    int n;
    lp_call *c = lp_driver_new_call(LP_LIST, 0, max);
    if (c) {
        c->cursor = *cursor;
        c->job.states = states & LAPSE_STATE_PENDING ? states | LIVE : states;
    }
    c = lp_driver_ask(d->s, c, &n);
    if (!c)
        return n;
    n = n > 0 ? keep_shown(d, c, n, states, out) : n;
    *cursor = c->cursor;
    lp_driver_free_call(c);
    return n;
}

static int ask_counts(lapse *s, const lp_queue *q, lp_counts *out)
{
    *out = (lp_counts){.oldest_due = LAPSE_FOREVER};
    size_t size = q ? strlen(q->name) + 1 : 0;
    int code;
    lp_call *c = lp_driver_new_call(LP_COUNT, size, 0);
    if (c && q)
        c->job.queue = memcpy(c->bytes, q->name, size);
    c = lp_driver_ask(s, c, &code);
    if (!c)
        return code;
    if (code >= 0)
        *out = c->counts;
    lp_driver_free_call(c);
    return code < 0 && code != LAPSE_EUNKNOWN ? code : LAPSE_OK; /* It has none of a new queue. */
}

static bool is_of(const lp_queue *q, const char *name)
{
    return !q || strcmp(q->name, name) == 0;
}

/* What is ready counts as pending; what runs though its id was scheduled anew, as running. */
static void correct(const lp_driver *d, const lp_queue *q, lp_counts *out)
{
    for (const lp_loan *l = d->ready; l; l = l->after) {
        if (!is_of(q, l->queue))
            continue;
        out->running -= out->running > 0;
        out->pending++;
        if (l->due < out->oldest_due)
            out->oldest_due = l->due;
    }
    for (unsigned i = 0; d->s->held_count && i < LP_HELD_BUCKETS; i++)
        for (const lp_claim *c = d->s->held[i]; c; c = c->next)
            out->running += c->superseded && !c->lost && is_of(q, c->queue->name);
}

int lp_driver_count_queue(lp_store *store, lp_queue *q, lp_counts *out)
{
    lp_driver *d = lp_driver_of(store);
    int code = ask_counts(d->s, q, out);
    if (code == LAPSE_OK)
        correct(d, q, out);
    return code;
}

int lp_driver_count(lp_store *store, lp_counts *out)
{
    return lp_driver_count_queue(store, NULL, out);
}

void lp_driver_learn_queues(lapse *s)
{
    enum { CHUNK = 64 };
    uint64_t cursor = 0;
    while (cursor != UINT64_MAX) {
        int n;
        lp_call *c = lp_driver_new_call(LP_QUEUES, 0, CHUNK);
        if (c)
            c->cursor = cursor;
        c = lp_driver_ask(s, c, &n);
        if (!c)
            return;
        for (int i = 0; i < n; i++)
            (void)lp_driver_queue(s->driver, c->infos[i].queue);
        cursor = n < 0 ? UINT64_MAX : c->cursor;
        lp_driver_free_call(c);
    }
}
