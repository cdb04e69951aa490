/* sqlite_claim.c - from due to held, and what a claim ends in.
 *
 * The index of (queue, at) is a list of each queue in the order of claiming. Some queues
 * together are served by merging the heads of their lists. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "stores/sqlite.h"

/* -- Candidates -- */

typedef struct candidate {
    int64_t at, seq;
} candidate;

/* The first of some queues, as far as they may be claimed. */
typedef struct heads {
    candidate *due;
    size_t count, room;
    int64_t next; /* when the first can be that is not among them */
} heads;

static bool earlier(const candidate *a, const candidate *b)
{
    return a->at != b->at ? a->at < b->at : a->seq < b->seq;
}

static int by_time(const void *a, const void *b)
{
    return earlier(a, b) ? -1 : earlier(b, a);
}

static bool add_candidate(session *s, heads *h, candidate c)
{
    if (h->count == h->room) {
        size_t room = h->room ? 2 * h->room : 64;
        candidate *more = realloc(h->due, room * sizeof *more);
        if (!more) {
            s->failed = SQLITE_NOMEM;
            return false;
        }
        h->due = more;
        h->room = room;
    }
    h->due[h->count++] = c;
    return true;
}

static void note_next(heads *h, int64_t at)
{
    if (at < h->next)
        h->next = at;
}

/* Of one queue: up to `most` that are due, and when the next is. */
static bool add_queue(session *s, heads *h, int q, unsigned most)
{
    sqlite3_stmt *st = lp_sqlite_use(s, ST_QUEUE_HEAD);
    if (!st)
        return false;
    sqlite3_bind_int(st, 1, q);
    for (unsigned n = 0; lp_sqlite_row(s, st); n++) {
        candidate c = {sqlite3_column_int64(st, 0), sqlite3_column_int64(st, 1)};
        if (n == most || c.at > s->now) {
            note_next(h, c.at);
            break;
        }
        if (!add_candidate(s, h, c))
            break;
    }
    sqlite3_reset(st);
    return !s->failed;
}

/* The one of a queue that fell due last, instead of the first. */
static bool prefer_newest(session *s, heads *h, int q)
{
    sqlite3_stmt *st = lp_sqlite_use(s, ST_QUEUE_TAIL);
    if (!st)
        return false;
    sqlite3_bind_int(st, 1, q);
    sqlite3_bind_int64(st, 2, s->now);
    if (lp_sqlite_row(s, st)) {
        candidate c = {sqlite3_column_int64(st, 0), sqlite3_column_int64(st, 1)};
        if (h->count && h->due[0].seq != c.seq) {
            note_next(h, h->due[0].at);
            h->due[0] = c;
            h->count = 1;
        }
        sqlite3_reset(st);
    }
    return !s->failed;
}

static bool is_named(const session *s, const lp_want *w, int q)
{
    for (size_t i = 0; i < w->queue_count; i++)
        if (strcmp(w->queues[i], s->queues[q]->name) == 0)
            return true;
    return false;
}

/* The numbers of a want's queues: call with *at 0 first; -1 after the last. */
static int next_queue(const session *s, const lp_want *w, size_t *at)
{
    while (!w->others && *at < w->queue_count) {
        int q = lp_sqlite_queue(s, w->queues[(*at)++]);
        if (q >= 0 && s->queues[q]->orders > 0)
            return q;
    }
    while (w->others && *at < s->queue_count) {
        int q = (int)(*at)++;
        if (s->queues[q]->orders > 0 && !is_named(s, w, q))
            return q;
    }
    return -1;
}

/* What a want can be served with, in order. */
static bool gather(session *s, const lp_want *w, unsigned most, heads *h)
{
    size_t at = 0;
    int q;
    while ((q = next_queue(s, w, &at)) >= 0) {
        if (!add_queue(s, h, q, most))
            return false;
        if (w->newest && most && !prefer_newest(s, h, q))
            return false;
    }
    if (h->count > 1)
        qsort(h->due, h->count, sizeof *h->due, by_time);
    return true;
}

/* -- Claims -- */

static lapse_ns shown_due(const session *s, const row *r)
{
    return lp_sqlite_scheduler_time(s, r->fence ? r->at : r->due);
}

/* A loan of the row that `st` stands at. */
static lp_loan *make_loan(session *s, sqlite3_stmt *st, const row *r)
{
    char id[LAPSE_ID_MAX + 1];
    const char *flaw = lp_sqlite_flaw(s, st);
    size_t len =
        lp_sqlite_id(sqlite3_column_blob(st, COL_ID), sqlite3_column_bytes(st, COL_ID), id);
    if (len == 0) { /* Something that names it, for the log. */
        memcpy(id, "?", 2);
        len = 1;
    }
    bool known = r->queue >= 0 && (size_t)r->queue < s->queue_count;
    const void *payload = sqlite3_column_blob(st, COL_PAYLOAD);
    lp_loan *l = lp_loan_make(id, len, known ? s->queues[r->queue]->name : "", payload,
                              payload ? (size_t)sqlite3_column_bytes(st, COL_PAYLOAD) : 0);
    if (!l)
        return NULL;
    l->bad = flaw;
    l->row = r->seq;
    l->generation = r->generation;
    l->attempt = r->attempt + 1;
    l->due = shown_due(s, r);
    l->fence = lp_sqlite_next_fence(s);
    return l;
}

static bool hold(session *s, const row *r, const lp_loan *l, lapse_ns lease)
{
    sqlite3_stmt *st = lp_sqlite_use(s, ST_ORDER_HOLD);
    if (!st)
        return false;
    int64_t until = lp_sqlite_time(s, lp_add_ns(s->now_ns, lease));
    sqlite3_bind_int64(st, 1, r->seq);
    sqlite3_bind_int64(st, 2, until);
    sqlite3_bind_int64(st, 3, l->fence);
    sqlite3_bind_int(st, 4, l->attempt);
    sqlite3_bind_int64(st, 5, r->fence ? r->at : r->due);
    s->changed = true;
    return lp_sqlite_run(s, st);
}

/* Claim one; NULL when that failed. */
static lp_loan *claim_row(session *s, int64_t seq, lapse_ns lease)
{
    sqlite3_stmt *st = lp_sqlite_use(s, ST_ORDER_BY_SEQ);
    if (!st)
        return NULL;
    sqlite3_bind_int64(st, 1, seq);
    if (!lp_sqlite_row(s, st)) {
        s->failed = s->failed ? s->failed : SQLITE_CORRUPT; /* The index names no row. */
        return NULL;
    }
    row r = lp_sqlite_read_row(st);
    lp_loan *l = make_loan(s, st, &r);
    sqlite3_reset(st);
    if (!l) {
        s->failed = SQLITE_NOMEM;
        return NULL;
    }
    if (hold(s, &r, l, lease))
        return l;
    free(l);
    return NULL;
}

/* The same behind a savepoint in a careful transaction: NULL without `failed` when just this
 * order cannot be claimed. It stays where it is, and those behind it have their turn. */
static lp_loan *try_row(session *s, int64_t seq, lapse_ns lease)
{
    if (!s->careful)
        return claim_row(s, seq, lease);
    if (!lp_sqlite_mark(s))
        return NULL;
    lp_loan *l = claim_row(s, seq, lease);
    if (l && lp_sqlite_keep(s))
        return l;
    free(l);
    if (!lp_sqlite_is_lost(s))
        lp_sqlite_undo(s);
    return NULL;
}

enum { SKIPPED = 64 }; /* orders of a queue that may be damaged before others wait for them */

/* Serve one want; how many, or below 0. */
static int serve(session *s, const lp_turn *t, size_t number, unsigned most, lp_loan ***end)
{
    lp_want *w = &t->wants[number];
    heads h = {.next = INT64_MAX};
    unsigned n = 0;
    size_t at = 0;
    bool ok = gather(s, w, s->careful && most ? most + SKIPPED : most, &h);
    for (; ok && n < most && at < h.count; at++) {
        lp_loan *l = try_row(s, h.due[at].seq, t->lease);
        ok = !s->failed;
        if (!l)
            continue;
        l->want = number;
        **end = l;
        *end = &l->next;
        note_next(&h, lp_sqlite_time(s, lp_add_ns(s->now_ns, t->lease)));
        n++;
    }
    if (at < h.count)
        note_next(&h, h.due[at].at);
    w->next = h.next == INT64_MAX ? LAPSE_FOREVER : lp_sqlite_scheduler_time(s, h.next);
    free(h.due);
    return ok ? (int)n : LAPSE_EDATA;
}

int lp_sqlite_claim(session *s, lp_turn *t)
{
    lp_loan **end = &t->loans;
    unsigned push_left = t->push_most;
    while (*end)
        end = &(*end)->next;
    for (size_t i = 0; i < t->want_count; i++) {
        const lp_want *w = &t->wants[i];
        unsigned most = w->pushed && w->most > push_left ? push_left : w->most;
        int n = serve(s, t, i, s->writes ? most : 0, &end);
        if (n < 0)
            return lp_sqlite_error(s);
        push_left -= w->pushed ? (unsigned)n : 0;
    }
    return LAPSE_OK;
}

bool lp_sqlite_any_due(const lp_turn *t)
{
    for (size_t i = 0; i < t->want_count; i++)
        if (t->wants[i].most && t->wants[i].next <= t->now)
            return true;
    return false;
}

/* -- Ends of a claim -- */

static int stale(const lp_job *j)
{
    return lp_fail(LAPSE_ESTALE, "no claim with the fence %lld is held: its lease ended",
                   (long long)j->fence);
}

/* The row of a claim: 1, 0 when another has it or nobody, or an error. A claim whose lease
 * ended still has its row as long as nobody else claimed it. */
static int find_claim(session *s, const lp_job *j, row *out)
{
    sqlite3_stmt *st = lp_sqlite_use(s, ST_ORDER_BY_SEQ);
    if (!st)
        return lp_sqlite_error(s);
    sqlite3_bind_int64(st, 1, j->row);
    bool found = lp_sqlite_row(s, st);
    if (found)
        *out = lp_sqlite_read_row(st);
    sqlite3_reset(st);
    if (s->failed)
        return lp_sqlite_error(s);
    return found && out->fence == j->fence;
}

/* Pending once more: due at `due` as its consumer is told, and to be claimed from `at` on. */
static bool repeat(session *s, const lp_job *j, const row *r, int attempt)
{
    int64_t due = lp_sqlite_time(s, j->due), at = lp_sqlite_time(s, j->at);
    return lp_sqlite_wait(s, r, at > due ? at : due, due, attempt);
}

int64_t lp_sqlite_settle(session *s, lp_job *j)
{
    row r;
    int code = find_claim(s, j, &r);
    if (code <= 0)
        return code < 0 ? code : stale(j);
    int attempt = j->counted || r.attempt == 0 ? r.attempt : r.attempt - 1;
    bool over = j->op != LP_END && r.no_more;
    bool ok;
    if (j->op == LP_END || over)
        ok = lp_sqlite_end(s, &r);
    else if (j->op == LP_AGAIN)
        ok = repeat(s, j, &r, attempt);
    else
        ok = j->died = lp_sqlite_die(s, &r, attempt, j->reason, j->error, j->infos);
    return ok ? over : lp_sqlite_error(s);
}

int64_t lp_sqlite_renew(session *s, lp_job *j)
{
    row r;
    int code = find_claim(s, j, &r);
    if (code <= 0)
        return code < 0 ? code : stale(j);
    sqlite3_stmt *st = lp_sqlite_use(s, ST_ORDER_RENEW);
    if (!st)
        return lp_sqlite_error(s);
    sqlite3_bind_int64(st, 1, r.seq);
    sqlite3_bind_int64(st, 2, lp_sqlite_time(s, lp_add_ns(s->now_ns, j->lease)));
    s->changed = true;
    return lp_sqlite_run(s, st) ? LAPSE_OK : lp_sqlite_error(s);
}

int64_t lp_sqlite_holds(session *s, lp_job *j)
{
    row r;
    int code = find_claim(s, j, &r);
    return code == 1 ? lp_sqlite_is_held(s, &r) : code;
}
