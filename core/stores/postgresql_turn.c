/* postgresql_turn.c - one turn: one transaction, written in one go.
 *
 * What goes wrong with one statement fails all of a transaction. Then the turn is taken again:
 * as it was when other transactions were in the way, else carefully, with a savepoint around
 * each job, so that only the job fails that has to. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/wake.h"
#include "stores/postgresql.h"

static const lapse_ns HINT_EVERY = LAPSE_MS(10), FORGET_EVERY = LAPSE_SECONDS(1);

/* -- Time -- */

/* Microseconds since 2000, as the server counts. */
static const int64_t EPOCH = INT64_C(946684800000000);

static int64_t floor_us(lapse_ns t)
{
    return t / 1000 - (t % 1000 < 0);
}

/* An invented time as UTC: steps of its wall clock move nothing. */
static lapse_ns invented(const work *w)
{
    const lp_store_config *c = &w->d->config;
    return lp_sum_ns(w->t->now, c->wall - c->now);
}

/* What it has beyond the microsecond that the server is told. */
static lapse_ns beyond_us(const work *w)
{
    return w->d->config.manual ? invented(w) - floor_us(invented(w)) * 1000 : 0;
}

lapse_ns lp_postgresql_time(const work *w, int64_t at)
{
    lapse_ns apart;
    if (__builtin_mul_overflow(lp_sum_ns(at, -w->clock), INT64_C(1000), &apart))
        return at < w->clock ? INT64_MIN : LAPSE_FOREVER;
    return lp_sum_ns(w->t->now - beyond_us(w), apart);
}

lapse_ns lp_postgresql_wait(const work *w, lapse_ns due)
{
    return lp_sum_ns(lp_sum_ns(due, -w->t->now), beyond_us(w));
}

void lp_postgresql_arg_now(args *a, const work *w)
{
    if (w->d->config.manual)
        lp_arg_time(a, floor_us(invented(w)) - EPOCH);
    else
        lp_arg_null(a);
}

void lp_postgresql_arg_keep(args *a, const work *w)
{
    lp_arg_wait(a, w->d->keep);
}

/* -- Parts of a turn -- */

static void read_start(work *w, const PGresult *r, size_t at)
{
    (void)at;
    w->clock = lp_value_number(r, 0, 0);
    w->d->outdated = lp_value_small(r, 0, 1) != LP_POSTGRESQL_VERSION;
    w->d->keep = lp_value_number(r, 0, 2) * 1000;
}

static void start(work *w, bool promises, bool careful)
{
    args a = {0};
    lp_postgresql_send(w->s, ST_BEGIN, NULL, NULL, 0);
    lp_postgresql_arg_now(&a, w);
    lp_arg_bool(&a, promises);
    w->patience = careful ? "100ms" : "1s";
    lp_arg_text(&a, w->patience);
    lp_postgresql_send(w->s, ST_START, &a, read_start, 0);
}

/* Rows that are there are locked in one order by everybody here; when others who keep the
 * opposite order were in the way, in theirs. */
static bool lock_rows(work *w)
{
    const lp_turn *t = w->t;
    const char **ids = calloc(t->job_count + 1, sizeof *ids);
    size_t *lens = calloc(t->job_count + 1, sizeof *lens), count = 0;
    for (size_t i = 0; ids && lens && i < t->job_count; i++) {
        const lp_job *j = t->jobs[i];
        if (j->op != LP_CANCEL && j->op != LP_RESCHEDULE && !(j->op == LP_SCHEDULE && j->replace))
            continue;
        ids[count] = j->id;
        lens[count++] = j->id_len;
    }
    args a = {0};
    bool ok = ids && lens && (count < 2 || lp_arg_names(&a, ids, lens, count));
    if (!ok)
        w->s->failed = LAPSE_ENOMEM;
    else if (count >= 2)
        lp_postgresql_send(w->s, w->backwards ? ST_LOCK_BACK : ST_LOCK, &a, NULL, 0);
    free(ids);
    free(lens);
    return ok;
}

static void sweep(work *w)
{
    lapse_ns now = lp_clock_monotonic();
    args a = {0};
    lp_postgresql_arg_now(&a, w);
    lp_postgresql_arg_keep(&a, w);
    lp_postgresql_send(w->s, ST_SWEEP, &a, lp_postgresql_tell, 0);
    if (!w->d->config.manual && now - w->d->forgot_at < FORGET_EVERY)
        return;
    w->d->forgot_at = now;
    a = (args){0};
    lp_postgresql_arg_now(&a, w);
    lp_postgresql_send(w->s, ST_FORGET, &a, NULL, 0);
}

/* A hundred a second, and some at once after a rest. */
static bool may_tell(postgresql_store *d)
{
    enum { AT_ONCE = 20 };
    lapse_ns now = lp_clock_monotonic(), least = now - AT_ONCE * HINT_EVERY;
    lapse_ns from = d->hinted_at > least ? d->hinted_at : least;
    if (from + HINT_EVERY > now)
        return false;
    d->hinted_at = from + HINT_EVERY;
    return true;
}

/* Tell those who sleep, when something is due before all else in its queue. A notification holds
 * a lock that all commits of the server share, so there are never many; who has heard one looks
 * again soon after, for what was not told of. */
static void tell_others(work *w)
{
    if (w->hint_count == 0 || !may_tell(w->d))
        return;
    for (int i = 0; i < w->hint_count; i++) {
        const hint *h = &w->hints[i];
        args a = {0};
        lp_postgresql_arg_now(&a, w);
        if (h->queue)
            lp_arg_bytes(&a, h->queue, strlen(h->queue));
        else
            lp_arg_null(&a);
        lp_arg_wait(&a, h->wait);
        lp_arg_text(&a, w->d->channel);
        lp_postgresql_send(w->s, ST_HINT, &a, NULL, 0);
    }
}

/* -- Jobs -- */

static int ask_all(work *w)
{
    for (size_t at = 0; at < w->t->job_count;) {
        size_t n = lp_postgresql_is_put_off(w->t->jobs[at]) ? 1 : lp_postgresql_ask(w, at, false);
        if (n == 0)
            return LAPSE_EOFFLINE;
        at += n;
    }
    return LAPSE_OK;
}

/* Back to before what failed, behind its savepoint. */
static int undo_part(work *w)
{
    session *s = w->s;
    if (s->lost)
        return s->failed;
    s->failed = 0;
    lp_postgresql_send(s, ST_JOB_UNDO, NULL, NULL, 0);
    lp_postgresql_send(s, ST_JOB_END, NULL, NULL, 0);
    return lp_postgresql_exchange(s, w, true);
}

static int ask_carefully(work *w)
{
    for (size_t at = 0; at < w->t->job_count; at++) {
        lp_job *j = w->t->jobs[at];
        int hints = w->hint_count;
        uint64_t dropped = w->dead_dropped;
        if (lp_postgresql_is_put_off(j))
            continue;
        lp_postgresql_send(w->s, ST_JOB_BEGIN, NULL, NULL, 0);
        lp_postgresql_ask(w, at, true);
        lp_postgresql_send(w->s, ST_JOB_END, NULL, NULL, 0);
        if (lp_postgresql_exchange(w->s, w, true) == LAPSE_OK)
            continue;
        lp_job_undo(j);
        lp_job_fail(j, lp_postgresql_error(w->s));
        w->hint_count = hints;
        w->dead_dropped = dropped;
        if (undo_part(w) != LAPSE_OK)
            return w->s->failed;
    }
    return LAPSE_OK;
}

static void drop_loans(work *w, lp_loan **from)
{
    while (*from) {
        lp_loan *l = *from;
        *from = l->next;
        free(l);
    }
    w->end = from;
}

static int claim_carefully(work *w)
{
    lp_loan **before = w->end;
    lp_postgresql_send(w->s, ST_JOB_BEGIN, NULL, NULL, 0);
    if (lp_postgresql_claim(w) == LAPSE_OK) {
        lp_postgresql_send(w->s, ST_JOB_END, NULL, NULL, 0);
        if (lp_postgresql_exchange(w->s, w, true) == LAPSE_OK)
            return LAPSE_OK;
    } else if (!w->s->lost) {
        lp_postgresql_exchange(w->s, w, true);
    }
    drop_loans(w, before);
    return undo_part(w); /* Nothing is claimed this time. */
}

/* -- A turn -- */

/* All up to COMMIT; the answers of what `careful` did not exchange come with that. */
static int do_all(work *w, bool careful)
{
    start(w, lp_turn_promises(w->t), careful);
    w->limited = lp_postgresql_is_limited(w);
    if (lp_postgresql_get_room(w) < 0)
        return w->s->failed;
    if (!careful && !lock_rows(w))
        return w->s->failed;
    sweep(w);
    if (careful && lp_postgresql_exchange(w->s, w, true) != LAPSE_OK)
        return w->s->failed;
    int code = careful ? ask_carefully(w) : ask_all(w);
    if (code == LAPSE_OK)
        code = careful ? claim_carefully(w) : lp_postgresql_claim(w);
    return code;
}

static void undo_turn(work *w)
{
    for (size_t i = 0; i < w->t->job_count; i++)
        lp_job_undo(w->t->jobs[i]);
    drop_loans(w, &w->t->loans);
    memset(w->d->floors, 0, sizeof w->d->floors);
    w->d->orders = -1;
}

static void roll_back(session *s)
{
    int failed = s->failed;
    if (!s->lost) {
        s->failed = 0;
        s->expected_count = 0;
        lp_postgresql_exchange(s, NULL, true); /* What was cut short is over. */
        s->failed = 0;
        lp_postgresql_send(s, ST_ROLLBACK, NULL, NULL, 0);
        lp_postgresql_exchange(s, NULL, true);
    }
    s->failed = failed;
}

/* The connection broke: whether COMMIT came through is not known if it was on its way, unless
 * the server has said that it stopped before. */
static int fail_lost(const work *w, bool committing)
{
    int code = lp_postgresql_error(w->s);
    if (!committing || !lp_turn_changes(w->t))
        return code < 0 ? lp_fail(LAPSE_EOFFLINE, "the PostgreSQL server cannot be reached: %s",
                                  w->s->words)
                        : code;
    return lp_fail(LAPSE_EUNSURE,
                   "the connection to the PostgreSQL server broke: whether it was done is not "
                   "known; look, or ask again (%s)",
                   w->s->words);
}

static void finish(work *w)
{
    lp_postgresql_ask_room_left(w);
    tell_others(w);
    lp_postgresql_send(w->s, ST_COMMIT, NULL, NULL, 0);
    lp_postgresql_exchange(w->s, w, true);
}

static int take_once(work *w, bool careful)
{
    postgresql_store *d = w->d;
    session *s = w->s;
    w->t->loans = NULL;
    w->end = &w->t->loans;
    s->failed = 0;
    s->lost = false;
    bool committing = do_all(w, careful) == LAPSE_OK && !s->lost;
    if (committing)
        finish(w);
    else if (!s->failed)
        s->failed = LAPSE_ENOMEM;
    if (s->failed == 0) {
        d->dead_dropped += w->dead_dropped;
        d->orders = w->limited ? w->orders : d->orders; /* What ended meanwhile is counted later. */
        d->clock = w->clock;
        d->clock_now = w->t->now;
        lp_postgresql_note_next(w);
        return LAPSE_OK;
    }
    undo_turn(w);
    if (s->lost)
        return fail_lost(w, committing && !s->stopped);
    roll_back(s);
    return lp_postgresql_error(s);
}

static int take(postgresql_store *d, lp_turn *t, bool careful, bool backwards)
{
    const work fresh = {.d = d, .s = &d->s, .t = t, .orders = -1, .backwards = backwards};
    work w = fresh;
    int code = take_once(&w, careful);
    if (code == LAPSE_OK || !w.room_busy)
        return code;
    w = fresh;
    w.room_busy = true; /* Without what needs it. */
    return take_once(&w, careful);
}

/* A deadlock, or a row that changed at the wrong moment. */
static bool was_in_the_way(const session *s)
{
    return strncmp(s->state, "40", 2) == 0;
}

int lp_postgresql_turn(postgresql_store *d, lp_turn *t)
{
    session *s = &d->s;
    lapse_ns until = lp_add_ns(lp_clock_monotonic(), s->limit);
    int code = take(d, t, false, false);
    for (int i = 0; code < 0 && !s->lost && was_in_the_way(s); i++) {
        if (lp_clock_monotonic() > until)
            break;
        lp_wake_pause(LAPSE_MS(1) * (1 << (i < 5 ? i : 5)));
        code = take(d, t, false, i % 2 == 0);
    }
    if (code < 0 && !s->lost && s->failed != LAPSE_ENOMEM)
        code = take(d, t, true, false);
    return code;
}
