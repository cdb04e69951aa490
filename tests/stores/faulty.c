/* faulty.c - see faulty.h. */
#include "stores/faulty.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "stores/table.h"

faulty faults;

typedef struct wrapped {
    lp_durable base;
    lp_durable *inside;
    char url[512];
    bool cut; /* off: the next turns fail until reconnect */
} wrapped;

static wrapped *of(lp_durable *d)
{
    return (wrapped *)d;
}

void faulty_begin(const lp_durable_ops *inside, const char *scheme)
{
    faults.inside = inside;
    faults.scheme = scheme;
    faulty_hit(FAULT_NONE, 0, 0, 0);
    atomic_store(&faults.offline, false);
    atomic_store(&faults.no_opening, false);
    atomic_store(&faults.no_renewals, false);
    atomic_store(&faults.refusals, 0);
    atomic_store(&faults.renewals_dropped, 0);
    atomic_store(&faults.wait, NULL);
    atomic_store(&faults.turns, 0);
    atomic_store(&faults.reconnects, 0);
    atomic_store(&faults.hit, 0);
    lp_test_store = &faulty_store;
}

void faulty_hit(faulty_how how, int code, int skip, int hits)
{
    atomic_store(&faults.hits, 0);
    atomic_store(&faults.code, code);
    atomic_store(&faults.how, (int)how);
    atomic_store(&faults.skip, skip);
    atomic_store(&faults.hits, hits);
}

/* -- Losing answers -------------------------------------------------------------------------- */

static void drop_infos(lp_job *j)
{
    int64_t count = 0;
    if (j->op == LP_LIST || j->op == LP_QUEUES)
        count = j->answer;
    else if (j->infos && (j->op == LP_GET ? j->answer == LAPSE_OK : j->died))
        count = 1;
    for (int64_t i = 0; i < count; i++) {
        lapse_info_free(&j->infos[i]);
        j->infos[i] = (lapse_info){0};
    }
}

/* As if the store had never answered. */
static void drop_answers(lp_turn *t)
{
    for (size_t i = 0; i < t->job_count; i++) {
        lp_job *j = t->jobs[i];
        drop_infos(j);
        free(j->detail);
        free(j->of_queue);
        j->detail = j->of_queue = NULL;
        j->answer = 0;
        j->replaced = j->died = false;
        j->running_fence = 0;
    }
    while (t->loans) {
        lp_loan *l = t->loans;
        t->loans = l->next;
        free(l);
    }
}

/* -- Turns --------------------------------------------------------------------------------------- */

static bool takes_one(atomic_int *left)
{
    int n = atomic_load(left);
    while (n > 0)
        if (atomic_compare_exchange_weak(left, &n, n - 1))
            return true;
    return false;
}

/* Whether a turn that answers or claims something is to be hit in this way. */
static bool is_hit(faulty_how how)
{
    if (atomic_load(&faults.how) != (int)how || takes_one(&faults.skip))
        return false;
    if (atomic_load(&faults.hits) >= 0 && !takes_one(&faults.hits))
        return false;
    atomic_fetch_add(&faults.hit, 1);
    return true;
}

/* Whether this job is not passed on, but answered here. */
static bool answers(lp_job *j)
{
    bool settles = j->op == LP_END || j->op == LP_AGAIN || j->op == LP_DIE;
    if (j->op == LP_RENEW && atomic_load(&faults.no_renewals)) {
        atomic_fetch_add(&faults.renewals_dropped, 1);
        j->answer = LAPSE_EOFFLINE;
        return true;
    }
    if (!settles || !takes_one(&faults.refusals))
        return false;
    j->answer = atomic_load(&faults.code);
    j->detail = strdup("the test has refused it");
    return true;
}

static int pass_on(wrapped *w, lp_turn *t)
{
    lp_turn rest = *t;
    lp_job **jobs = calloc(t->job_count + 1, sizeof *jobs);
    rest.jobs = jobs;
    rest.job_count = 0;
    for (size_t i = 0; i < t->job_count; i++)
        if (!answers(t->jobs[i]))
            jobs[rest.job_count++] = t->jobs[i];
    int code = faults.inside->turn(w->inside, &rest);
    t->loans = rest.loans;
    free(jobs);
    return code;
}

static int turn(lp_durable *d, lp_turn *t)
{
    wrapped *w = of(d);
    atomic_fetch_add(&faults.turns, 1);
    gate *wait = atomic_load(&faults.wait);
    if (wait != NULL)
        gate_pass(wait);
    w->cut |= atomic_load(&faults.offline);
    if (w->cut)
        return lp_fail(LAPSE_EOFFLINE, "the test has cut the link");
    if (t->job_count > 0 && is_hit(FAULT_FAIL))
        return lp_fail(atomic_load(&faults.code), "the test has made this turn fail");
    int code = pass_on(w, t);
    if (code < 0 || (t->job_count == 0 && t->loans == NULL) || !is_hit(FAULT_LOSE))
        return code;
    drop_answers(t);
    return lp_fail(LAPSE_EUNSURE, "the test has lost this turn's answers");
}

static int reconnect(lp_durable *d)
{
    wrapped *w = of(d);
    atomic_fetch_add(&faults.reconnects, 1);
    if (atomic_load(&faults.offline))
        return lp_fail(LAPSE_EOFFLINE, "the test has cut the link");
    w->cut = false;
    return faults.inside->reconnect ? faults.inside->reconnect(w->inside) : LAPSE_OK;
}

/* -- The rest is passed on ---------------------------------------------------------------------------- */

static int open_wrapped(lp_store_config *config, lp_durable **out)
{
    if (atomic_load(&faults.no_opening))
        return lp_fail(LAPSE_EOFFLINE, "the test has cut the link");
    wrapped *w = calloc(1, sizeof *w);
    if (w == NULL)
        return lp_fail_memory();
    w->base.ops = &faulty_store;
    snprintf(w->url, sizeof w->url, "%s%s", faults.scheme, strchr(config->url, ':'));
    const char *given = config->url;
    config->url = w->url;
    int code = faults.inside->open(config, &w->inside);
    config->url = given;
    if (code < 0)
        free(w);
    else
        *out = &w->base;
    return code;
}

static void close_wrapped(lp_durable *d)
{
    faults.inside->close(of(d)->inside);
    free(d);
}

static int hint_fd(lp_durable *d)
{
    return faults.inside->hint_fd(of(d)->inside);
}

static void hinted(lp_durable *d)
{
    faults.inside->hinted(of(d)->inside);
}

static bool sleeps(lp_durable *d, lapse_ns next, lapse_ns now)
{
    return faults.inside->sleeps(of(d)->inside, next, now);
}

static lapse_ns poll_every(const lp_durable *d)
{
    return faults.inside->poll(((const wrapped *)d)->inside);
}

const lp_durable_ops faulty_store = {
    .scheme = "test",
    .abilities =
        LAPSE_CAN_DURABLE | LAPSE_CAN_SHARE | LAPSE_CAN_CANCEL | LAPSE_CAN_LIST | LAPSE_CAN_LIMIT,
    .open = open_wrapped,
    .close = close_wrapped,
    .turn = turn,
    .reconnect = reconnect,
    .hint_fd = hint_fd,
    .hinted = hinted,
    .sleeps = sleeps,
    .poll = poll_every,
};
