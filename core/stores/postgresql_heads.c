/* postgresql_heads.c - the queues there are, for who wants all but some.
 *
 * To look at each of thousands of queues takes long. So they are all read now and then, with the
 * time of the first order in each; what is put, claimed and heard of meanwhile changes that, and
 * a claim looks only into those in which something may be due. A time that is too early costs a
 * look; one that is too late is set right by the next reading, which is the bound. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "stores/postgresql.h"

/* -- Names -- */

/* The first that is not before the name. */
static size_t find_place(const postgresql_store *d, const char *name, size_t len)
{
    size_t low = 0, high = d->head_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const char *here = d->heads[middle].name;
        int order = strncmp(here, name, len);
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static head *find_head(const postgresql_store *d, const char *name, size_t len)
{
    size_t at = find_place(d, name, len);
    bool found = at < d->head_count && strncmp(d->heads[at].name, name, len) == 0 &&
                 d->heads[at].name[len] == '\0';
    return found ? &d->heads[at] : NULL;
}

static bool insert(postgresql_store *d, const char *name, size_t len, int64_t at)
{
    if (d->head_count == d->head_room) {
        size_t room = d->head_room ? 2 * d->head_room : 64;
        head *more = realloc(d->heads, room * sizeof *more);
        if (!more)
            return false;
        d->heads = more;
        d->head_room = room;
    }
    char *copy = strndup(name, len);
    if (!copy)
        return false;
    size_t place = find_place(d, name, len);
    memmove(d->heads + place + 1, d->heads + place, (d->head_count - place) * sizeof *d->heads);
    d->heads[place] = (head){copy, at};
    d->head_count++;
    return true;
}

void lp_postgresql_forget_heads(postgresql_store *d)
{
    for (size_t i = 0; i < d->head_count; i++)
        free(d->heads[i].name);
    free(d->heads);
    d->heads = NULL;
    d->head_count = d->head_room = 0;
    d->heads_at = 0;
    d->heads_old = false;
}

void lp_postgresql_lower_head(postgresql_store *d, const char *name, size_t len, int64_t at)
{
    if (!d->heads_at)
        return; /* Nobody wants them. */
    head *h = find_head(d, name, len);
    if (h)
        h->at = at < h->at ? at : h->at;
    else if (!insert(d, name, len, at))
        d->heads_old = true;
}

void lp_postgresql_set_head(postgresql_store *d, const char *name, size_t len, int64_t at)
{
    head *h = find_head(d, name, len);
    if (h)
        h->at = at;
}

/* -- Reading all -- */

lapse_ns lp_postgresql_heads_due(const postgresql_store *d)
{
    enum { SHARE = 20 };
    lapse_ns pause = SHARE * d->heads_took;
    if (!d->heads_old && pause < d->options.poll)
        pause = d->options.poll;
    return d->heads_at ? lp_add_ns(d->heads_at, pause) : 0;
}

static void read_heads(work *w, const PGresult *r, size_t at)
{
    (void)at;
    lp_postgresql_forget_heads(w->d);
    for (int row = 0; row < PQntuples(r) && !w->no_memory; row++)
        w->no_memory = !insert(w->d, PQgetvalue(r, row, 0), (size_t)PQgetlength(r, row, 0),
                               lp_value_number(r, row, 1));
}

int lp_postgresql_learn_heads(work *w)
{
    postgresql_store *d = w->d;
    lapse_ns before = lp_clock_monotonic();
    if (!d->config.manual && before < lp_postgresql_heads_due(d))
        return LAPSE_OK;
    /* What is under way is not a part of what it takes. */
    int code = lp_postgresql_exchange(w->s, w, false);
    if (code < 0)
        return code;
    before = lp_clock_monotonic();
    lp_postgresql_send(w->s, ST_HEADS, NULL, read_heads, 0);
    code = lp_postgresql_exchange(w->s, w, false);
    if (code < 0)
        return code;
    d->heads_at = lp_clock_monotonic();
    d->heads_took = d->heads_at - before;
    return LAPSE_OK;
}

/* -- Wants -- */

static bool is_named(const lp_want *w, const char *queue)
{
    for (size_t i = 0; i < w->queue_count; i++)
        if (strcmp(w->queues[i], queue) == 0)
            return true;
    return false;
}

/* A moment in which nothing is due that could be by the server's clock, which is known only once
 * the turn has begun. */
static int64_t latest(const work *w)
{
    if (w->clock)
        return w->clock;
    return lp_sum_ns(w->d->clock, (w->t->now - w->d->clock_now) / 1000 + INT64_C(1000000));
}

static int by_time(const void *a, const void *b)
{
    const head *x = *(const head *const *)a, *y = *(const head *const *)b;
    return (x->at > y->at) - (x->at < y->at);
}

/* The `most` orders that are due first are in the `most` queues whose first is due first. */
size_t lp_postgresql_choose_heads(const work *w, const lp_want *want, unsigned most,
                                  const char **names, size_t *lens, place_of *from)
{
    enum { SPARE = 16 }; /* others may have emptied some meanwhile */
    const postgresql_store *d = w->d;
    const head **due = calloc(d->head_count + 1, sizeof *due);
    size_t count = 0;
    int64_t until = latest(w);
    for (size_t i = 0; due && i < d->head_count; i++)
        if (d->heads[i].at <= until && !is_named(want, d->heads[i].name))
            due[count++] = &d->heads[i];
    if (count > 1)
        qsort(due, count, sizeof(const head *), by_time);
    if (count > (size_t)most + SPARE)
        count = (size_t)most + SPARE;
    for (size_t i = 0; i < count; i++) {
        names[i] = due[i]->name;
        lens[i] = strlen(names[i]);
    }
    *from = (place_of){count && !d->config.manual ? due[0]->at : INT64_MIN, INT64_MIN};
    free(due);
    return count;
}

int64_t lp_postgresql_first_head(const postgresql_store *d, const lp_want *want)
{
    int64_t first = INT64_MAX;
    for (size_t i = 0; i < d->head_count; i++)
        if (d->heads[i].at < first && !is_named(want, d->heads[i].name))
            first = d->heads[i].at;
    return first;
}
