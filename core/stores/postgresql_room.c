/* postgresql_room.c - max_pending: who accepts orders under a limit does so one after the other.
 *
 * The lock is one for all schedulers of a store and held up to COMMIT, which may be long when
 * the holder waits for a row, or hangs. So nothing else waits for it: a job that needs it is put
 * off when it is not to be had at once, and so are those after it that name the same order. Then
 * each turn waits for it a moment, in the server's queue, so that everybody gets it in his turn. */
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "stores/postgresql.h"

static const char MOMENT[] = "20ms";
static const lapse_ns PATIENCE = LAPSE_SECONDS(2);

static bool needs_room(const lp_job *j)
{
    return j->op == LP_SCHEDULE || j->op == LP_REQUEUE;
}

bool lp_postgresql_is_limited(const work *w)
{
    for (size_t i = 0; w->d->config.max_pending && i < w->t->job_count; i++)
        if (needs_room(w->t->jobs[i]))
            return true;
    return false;
}

/* -- How many there are -- */

/* They are counted anew when others may have changed them: each time while that is quick, and
 * now and then when it is not. */
static bool knows_orders(const postgresql_store *d)
{
    enum { FEW = 10000, SHARE = 20 };
    return d->orders > FEW && lp_clock_monotonic() - d->counted_at < SHARE * d->count_took;
}

static int64_t most_orders(const postgresql_store *d)
{
    return d->config.max_pending < INT32_MAX ? (int64_t)d->config.max_pending : INT32_MAX;
}

static int count(work *w)
{
    postgresql_store *d = w->d;
    bool known = knows_orders(d);
    lapse_ns before = lp_clock_monotonic();
    args a = {0};
    lp_arg_number(&a, most_orders(d));
    if (known)
        lp_arg_number(&a, d->orders);
    else
        lp_arg_null(&a);
    lp_postgresql_send(w->s, ST_ROOM_COUNT, &a, NULL, 0);
    if (known)
        return LAPSE_OK;
    int code = lp_postgresql_exchange(w->s, w, false);
    d->counted_at = lp_clock_monotonic();
    d->count_took = d->counted_at - before;
    return code;
}

static void read_left(work *w, const PGresult *r, size_t at)
{
    (void)at;
    w->orders = most_orders(w->d) - lp_value_number(r, 0, 0);
}

void lp_postgresql_ask_room_left(work *w)
{
    if (w->limited)
        lp_postgresql_send(w->s, ST_ROOM_LEFT, NULL, read_left, 0);
}

/* -- The lock -- */

static bool same_order(const lp_job *a, const lp_job *b)
{
    return a->id && b->id && a->id_len == b->id_len && memcmp(a->id, b->id, a->id_len) == 0;
}

/* It comes after one that is put off, and means what that one makes. */
static bool follows(const lp_turn *t, size_t at)
{
    for (size_t i = 0; i < at; i++)
        if (lp_postgresql_is_put_off(t->jobs[i]) && same_order(t->jobs[i], t->jobs[at]))
            return true;
    return false;
}

bool lp_postgresql_is_put_off(const lp_job *j)
{
    return j->later || j->answer < 0;
}

static int refuse(void)
{
    return lp_fail(LAPSE_ETIMEOUT,
                   "another scheduler has been accepting orders for %d s, and under max_pending "
                   "one does so after the other: ask again; pg_locks shows who holds the lock",
                   (int)(PATIENCE / LAPSE_SECONDS(1)));
}

/* All that needs the lock, to the next turn; it fails when that has lasted. */
static void put_off(work *w)
{
    postgresql_store *d = w->d;
    lapse_ns now = lp_clock_monotonic();
    if (!d->room_since)
        d->room_since = now;
    bool over = now - d->room_since >= PATIENCE;
    for (size_t i = 0; i < w->t->job_count; i++) {
        lp_job *j = w->t->jobs[i];
        if (!needs_room(j) && !follows(w->t, i))
            continue;
        if (over && needs_room(j))
            lp_job_fail(j, refuse());
        else
            j->later = true;
    }
    if (over)
        d->room_since = 0;
    w->limited = false;
}

static void read_got(work *w, const PGresult *r, size_t at)
{
    (void)at;
    w->got_room = lp_value_bool(r, 0, 0);
}

static int take_lock(work *w, bool waits)
{
    args a = {0};
    if (!waits) {
        lp_postgresql_send(w->s, ST_ROOM_TRY, NULL, read_got, 0);
        return lp_postgresql_exchange(w->s, w, false);
    }
    lp_arg_text(&a, MOMENT);
    lp_postgresql_send(w->s, ST_PATIENCE, &a, NULL, 0);
    lp_postgresql_send(w->s, ST_ROOM_LOCK, NULL, NULL, 0);
    a = (args){0};
    lp_arg_text(&a, w->patience);
    lp_postgresql_send(w->s, ST_PATIENCE, &a, NULL, 0);
    int code = lp_postgresql_exchange(w->s, w, false);
    w->got_room = code == LAPSE_OK;
    w->room_busy = code < 0 && strcmp(w->s->state, "55P03") == 0;
    return code;
}

int lp_postgresql_get_room(work *w)
{
    if (!w->limited)
        return LAPSE_OK;
    if (!w->room_busy) {
        int code = take_lock(w, w->d->room_since != 0);
        if (code < 0)
            return code;
    }
    if (!w->got_room) {
        put_off(w);
        return LAPSE_OK;
    }
    w->d->room_since = 0;
    return count(w);
}
