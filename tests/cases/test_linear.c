/* test_linear.c - the answers of several threads about one id match some sequential order.
 *
 * Each thread notes when a call began and when it was answered, on one counter. A search
 * after Wing and Gong (1993) looks for an order of the calls that respects these times and
 * in which a plain state machine of one id gives the same answers. The clock stands still,
 * so that what is due does not change under the search. */
/* tiers: quick full soak */
#include "../support/support.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { THREADS = 3, CALLS = 4, TOTAL = THREADS * CALLS };

enum kind { SCHEDULE, REPLACE, CANCEL, RESCHEDULE, CLAIM, SETTLE, LOOK, KINDS };

static const char *const kind_names[] = {"schedule", "replace", "cancel", "reschedule",
                                         "claim",    "settle",  "look"};

struct call {
    enum kind kind;
    bool far;              /* a delay of an hour instead of none */
    lapse_verdict verdict; /* SETTLE */
    int64_t fence;         /* SETTLE: which claim; CLAIM: which one it got */
    int64_t generation;    /* CLAIM: of what it got; CANCEL, RESCHEDULE: asked for */
    int attempt;           /* CLAIM: of what it got */
    int64_t answer;
    unsigned began, ended;
};

/* -- The state machine --------------------------------------------------------------- */

struct claim {
    int64_t fence, generation;
    int attempt;
    bool no_more; /* a cancel answered running */
};

struct state {
    int64_t pending; /* generation; 0: none */
    int attempt;     /* of the pending one, so far */
    bool far;
    bool next_pass; /* it was accepted beside a running callback and may have to wait */
    bool ended;     /* the newest ended and is remembered */
    bool dead;      /* the newest is a dead letter */
    int64_t newest;
    int64_t last_fence;
    bool push;
    int claims; /* held ones */
    struct claim held[TOTAL];
};

/* New work of a callback belongs to the next pass, and the clock stands still. */
static void wait_for_claim(struct state *s, bool far, int claims_meanwhile)
{
    s->far = far;
    s->next_pass = s->push && claims_meanwhile > 0;
}

static struct claim *running(struct state *s)
{
    for (int i = 0; i < s->claims; i++)
        if (s->held[i].generation == s->newest && s->pending == 0)
            return &s->held[i];
    return NULL;
}

static int fate_without_pending(struct state *s)
{
    if (running(s) != NULL)
        return LAPSE_FATE_RUNNING;
    return s->ended ? LAPSE_FATE_DONE : LAPSE_FATE_UNKNOWN;
}

static bool step_schedule(struct state *s, const struct call *c)
{
    if (s->pending != 0 && c->kind == SCHEDULE)
        return c->answer == LAPSE_EEXISTS;
    if (c->answer <= s->newest)
        return false;
    s->pending = s->newest = c->answer;
    s->attempt = 0;
    wait_for_claim(s, c->far, s->claims);
    s->ended = s->dead = false;
    return true;
}

static bool asks_for_another(const struct state *s, const struct call *c)
{
    return c->generation != LAPSE_ANY && c->generation != s->newest;
}

static bool step_cancel(struct state *s, const struct call *c)
{
    if (asks_for_another(s, c))
        return c->answer == LAPSE_FATE_UNKNOWN;
    if (s->pending == 0) {
        if (running(s) != NULL)
            running(s)->no_more = true;
        return c->answer == fate_without_pending(s);
    }
    s->pending = 0;
    s->ended = true;
    return c->answer == LAPSE_FATE_CANCELLED;
}

static bool step_reschedule(struct state *s, const struct call *c)
{
    if (asks_for_another(s, c))
        return c->answer == LAPSE_FATE_UNKNOWN;
    if (s->pending == 0)
        return c->answer == fate_without_pending(s);
    wait_for_claim(s, c->far, s->claims);
    return c->answer == LAPSE_FATE_RESCHEDULED;
}

static bool step_claim(struct state *s, const struct call *c)
{
    if (s->pending == 0 || s->far || (s->next_pass && c->answer == 0))
        return c->answer == 0;
    if (c->answer != 1 || c->generation != s->pending || c->attempt != s->attempt + 1 ||
        c->fence <= s->last_fence)
        return false;
    s->held[s->claims++] = (struct claim){c->fence, s->pending, c->attempt, false};
    s->last_fence = c->fence;
    s->pending = 0;
    return true;
}

/* End a claim that is still the newest of its id. */
static void settle_newest(struct state *s, const struct claim *claim, const struct call *c)
{
    bool again = c->verdict == LAPSE_RETRY || c->verdict == LAPSE_GIVE_BACK;
    if (again && !claim->no_more) {
        s->pending = claim->generation;
        s->attempt = claim->attempt - (c->verdict == LAPSE_GIVE_BACK);
        wait_for_claim(s, c->verdict == LAPSE_RETRY && c->far, s->claims + 1);
        return;
    }
    s->ended = true;
    s->dead = c->verdict == LAPSE_REJECT && !claim->no_more;
}

static bool step_settle(struct state *s, const struct call *c)
{
    int i = 0;
    while (i < s->claims && s->held[i].fence != c->fence)
        i++;
    if (i == s->claims)
        return c->answer == LAPSE_ESTALE;
    struct claim claim = s->held[i];
    s->held[i] = s->held[--s->claims];
    if (claim.generation != s->newest)
        return c->answer == LAPSE_ESTALE;
    settle_newest(s, &claim, c);
    return c->answer == LAPSE_OK;
}

static bool step_look(struct state *s, const struct call *c)
{
    if (s->pending != 0)
        return c->answer == LAPSE_STATE_PENDING && c->generation == s->newest;
    if (running(s) != NULL)
        return c->answer == LAPSE_STATE_RUNNING && c->generation == s->newest;
    if (!s->ended)
        return c->answer == LAPSE_EUNKNOWN;
    return c->answer == (s->dead ? LAPSE_STATE_DEAD : LAPSE_STATE_DONE) &&
           c->generation == s->newest;
}

/* Take the step if the machine answers as the call was answered. */
static bool step(struct state *s, const struct call *c)
{
    switch (c->kind) {
    case SCHEDULE:
    case REPLACE:
        return step_schedule(s, c);
    case CANCEL:
        return step_cancel(s, c);
    case RESCHEDULE:
        return step_reschedule(s, c);
    case CLAIM:
        return step_claim(s, c);
    case SETTLE:
        return step_settle(s, c);
    case LOOK:
        return step_look(s, c);
    case KINDS:
        break;
    }
    return false;
}

/* -- The search ----------------------------------------------------------------------- */

/* Whether no other open call was answered before call `i` began. */
static bool may_be_next(const struct call *calls, unsigned open, int i)
{
    for (int j = 0; j < TOTAL; j++)
        if ((open >> j & 1) != 0 && calls[j].ended < calls[i].began)
            return false;
    return true;
}

static bool search(const struct call *calls, unsigned open, const struct state *s)
{
    if (open == 0)
        return true;
    for (int i = 0; i < TOTAL; i++) {
        if ((open >> i & 1) == 0 || !may_be_next(calls, open, i))
            continue;
        struct state next = *s;
        if (step(&next, &calls[i]) && search(calls, open & ~(1u << i), &next))
            return true;
    }
    return false;
}

static void print_history(const struct call *calls)
{
    for (int i = 0; i < TOTAL; i++) {
        const struct call *c = &calls[i];
        fprintf(stderr,
                "thread %d [%2u, %2u] %-10s far %d verdict %d fence %" PRId64 " generation %" PRId64
                " attempt %d -> %" PRId64 "\n",
                i / CALLS, c->began, c->ended, kind_names[c->kind], c->far, (int)c->verdict,
                c->fence, c->generation, c->attempt, c->answer);
    }
}

/* The checker itself: it must refuse what no order explains. */
START_TEST(the_checker_refuses_what_cannot_be)
{
    struct call calls[TOTAL];
    struct state fresh = {0};
    for (unsigned i = 0; i < TOTAL; i++) /* One after the other: all unknown. */
        calls[i] = (struct call){
            .kind = CANCEL, .answer = LAPSE_FATE_UNKNOWN, .began = 2 * i, .ended = 2 * i + 1};
    ck_assert(search(calls, (1u << TOTAL) - 1, &fresh));
    calls[3] = (struct call){.kind = SCHEDULE, .answer = 7, .began = 6, .ended = 7};
    ck_assert(!search(calls, (1u << TOTAL) - 1, &fresh)); /* The next one must cancel it. */
    calls[4].answer = LAPSE_FATE_CANCELLED;
    for (int i = 5; i < TOTAL; i++)
        calls[i].answer = LAPSE_FATE_DONE;
    ck_assert(search(calls, (1u << TOTAL) - 1, &fresh));
    calls[9].answer = LAPSE_FATE_CANCELLED; /* Cancelled twice. */
    ck_assert(!search(calls, (1u << TOTAL) - 1, &fresh));
    calls[9].answer = LAPSE_FATE_DONE;
    calls[2].began = 0; /* Now overlapping: the cancel may come after the schedule … */
    calls[2].ended = 30;
    calls[2].answer = LAPSE_FATE_CANCELLED;
    ck_assert(!search(calls, (1u << TOTAL) - 1, &fresh)); /* … but only one of them wins. */
    calls[4].answer = LAPSE_FATE_DONE;
    ck_assert(search(calls, (1u << TOTAL) - 1, &fresh));
}
END_TEST

/* -- Histories -------------------------------------------------------------------------- */

struct history {
    lapse *s;
    bool push; /* orders with a callback, claimed by lapse_begin */
    struct call calls[TOTAL];
    atomic_uint clock;
    _Atomic int64_t last_fence, last_generation;
    pthread_barrier_t together;
};

static lapse_verdict unused(const lapse_order *order, void *arg)
{
    (void)order, (void)arg;
    return LAPSE_DONE;
}

static int64_t put_call(struct history *h, const struct call *c)
{
    lapse_spec spec = {.id = "o",
                       .delay = c->far ? LAPSE_HOURS(1) : 0,
                       .fn = h->push ? unused : NULL,
                       .flags = c->kind == REPLACE ? LAPSE_REPLACE : 0};
    int64_t result = lapse_put(h->s, &spec);
    if (result > 0)
        atomic_store(&h->last_generation, result);
    return result;
}

static int claim_call(struct history *h, struct call *c)
{
    const lapse_order *order = NULL;
    lapse_callback fn;
    void *arg;
    int result = h->push ? lapse_begin(h->s, LAPSE_FOREVER, &order, &fn, &arg)
                         : lapse_poll(h->s, NULL, &order);
    if (result != 1)
        return result;
    c->fence = order->fence;
    c->generation = order->generation;
    c->attempt = order->attempt;
    atomic_store(&h->last_fence, c->fence);
    return result;
}

static int64_t look_call(struct history *h, struct call *c)
{
    lapse_info info;
    int result = lapse_get(h->s, "o", &info);
    if (result < 0)
        return result;
    c->generation = info.generation;
    result = (int)info.state;
    lapse_info_free(&info);
    return result;
}

static int64_t make_call(struct history *h, struct call *c)
{
    switch (c->kind) {
    case SCHEDULE:
    case REPLACE:
        return put_call(h, c);
    case CANCEL:
        return lapse_cancel(h->s, "o", c->generation);
    case RESCHEDULE:
        return lapse_reschedule(h->s, "o", c->generation, c->far ? LAPSE_HOURS(1) : 0);
    case CLAIM:
        return claim_call(h, c);
    case SETTLE:
        return lapse_settle(h->s, c->fence, c->verdict, c->far ? LAPSE_HOURS(1) : 0, NULL);
    case LOOK:
        return look_call(h, c);
    case KINDS:
        break;
    }
    return LAPSE_EINVAL;
}

static void make_calls(void *arg, int number)
{
    struct history *h = arg;
    pthread_barrier_wait(&h->together);
    for (int i = 0; i < CALLS; i++) {
        struct call *c = &h->calls[number * CALLS + i];
        if (c->kind == SETTLE)
            c->fence = atomic_load(&h->last_fence);
        if (c->generation != LAPSE_ANY)
            c->generation = atomic_load(&h->last_generation);
        c->began = atomic_fetch_add(&h->clock, 1);
        c->answer = make_call(h, c);
        c->ended = atomic_fetch_add(&h->clock, 1);
    }
}

static void plan_calls(struct history *h, rng *luck)
{
    static const lapse_verdict verdicts[] = {LAPSE_DONE, LAPSE_RETRY, LAPSE_GIVE_BACK,
                                             LAPSE_REJECT};
    for (int i = 0; i < TOTAL; i++) {
        struct call *c = &h->calls[i];
        *c = (struct call){.kind = (enum kind)(rng_next(luck) % KINDS),
                           .far = rng_next(luck) % 4 == 0,
                           .verdict = verdicts[rng_next(luck) % 4]};
        if (i % CALLS == 0 && rng_next(luck) % 2 == 0)
            c->kind = SCHEDULE;
        bool names = c->kind == CANCEL || c->kind == RESCHEDULE;
        c->generation = names && rng_next(luck) % 3 == 0 ? 1 : LAPSE_ANY;
    }
}

/* Give the threads of the crew a history's worth of calls and check the answers. */
static void check_history(int engine, rng *luck)
{
    uint64_t seed = luck->state;
    lapse_options options = {.keep = LAPSE_HOURS(1)};
    rig r = rig_manual(engine, START, &options);
    static struct history h;
    memset(&h, 0, sizeof h);
    h.s = r.s;
    h.push = rng_next(luck) % 2 == 0;
    plan_calls(&h, luck);
    pthread_barrier_init(&h.together, NULL, THREADS);
    crew_run(THREADS, make_calls, &h);
    pthread_barrier_destroy(&h.together);
    for (int i = 0; i < TOTAL; i++)
        if (h.calls[i].kind == CLAIM && h.calls[i].answer == 1) /* Some are settled already. */
            lapse_settle(r.s, h.calls[i].fence, LAPSE_DONE, 0, NULL);
    struct state fresh = {.push = h.push};
    if (!search(h.calls, (1u << TOTAL) - 1, &fresh)) {
        print_history(h.calls);
        ck_abort_msg("no sequential order explains these answers; LAPSE_SEED=%" PRIu64, seed);
    }
    rig_close(&r);
}

START_TEST(p20_answers_match_some_sequential_order)
{
    rng luck = rng_open("p20_answers_match_some_sequential_order");
    for (long i = 0; i < tier(300, 5000, 500000); i++)
        check_history(_i, &luck);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("linearizability");
    TCase *group = add_group(suite, "one id");
    tcase_add_test(group, the_checker_refuses_what_cannot_be);
    ADD_FOR_ENGINES(group, p20_answers_match_some_sequential_order);
    return run_suite(suite);
}
