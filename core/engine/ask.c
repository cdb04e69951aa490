/* ask.c - what a host submits, and collects when it has been answered.
 *
 * A store that answers inline does so in lapse_submit; the driver puts its answers here.
 * Both wait in one list, and the host's descriptor is readable until it is empty. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/fork.h"
#include "engine/driver.h"

typedef struct lp_submitted {
    struct lp_submitted *next;
    lapse_answer answer;
    lp_call *call; /* the driver's; NULL: `answer` is whole */
} submitted;

/* -- Answers -- */

static void append(lapse *s, submitted *a)
{
    a->next = NULL;
    if (!s->answers)
        s->answers_end = &s->answers;
    *s->answers_end = a;
    s->answers_end = &a->next;
    lp_arm_for(s, 0);
}

void lp_deliver_answer(lapse *s, submitted *a)
{
    append(s, a);
}

static void keep_words(lapse_answer *a)
{
    a->detail = a->result < 0 ? strdup(lapse_error_detail()) : NULL;
}

/* What the driver answered, counted and told of as if it had been waited for. Under the
 * lock, which it drops. */
static void finish(lapse *s, submitted *a)
{
    lp_task t = {.dead = {.id = NULL}};
    lp_request_init(&t.r, LP_GET);
    t.r.info = a->call->job.op == LP_GET ? &a->answer.info : &t.dead;
    lp_driver_read_answer(s, a->call, &t.r);
    lp_book_answer(s, &t.r);
    if (t.r.op == LP_RESCHEDULE && t.r.answer == LAPSE_EUNKNOWN)
        t.r.answer = LAPSE_FATE_UNKNOWN;
    a->answer.result = t.r.answer;
    keep_words(&a->answer);
    lp_driver_free_call(a->call);
    lp_leave(s);
    lp_finish(s, &t);
    if (t.r.op == LP_GET && t.r.answer == LAPSE_OK)
        lp_info_to_utc(s, &a->answer.info);
}

int lapse_collect(lapse *s, lapse_answer *out)
{
    if (!out)
        return lp_fail(LAPSE_EINVAL, "lapse_collect: `out` is NULL");
    *out = (lapse_answer){.tag = NULL};
    int code = lp_enter(s);
    if (code < 0)
        return code;
    submitted *a = s->answers;
    if (!a) {
        lp_leave(s);
        return 0;
    }
    s->answers = a->next;
    if (!s->answers)
        lp_arm_all(s);
    if (a->call)
        finish(s, a);
    else
        lp_leave(s);
    *out = a->answer;
    free(a);
    return 1;
}

void lapse_answer_free(lapse_answer *answer)
{
    if (!answer)
        return;
    free(answer->detail);
    lapse_info_free(&answer->info);
    *answer = (lapse_answer){.tag = NULL};
}

void lp_drop_answers(lapse *s)
{
    while (s->answers) {
        submitted *a = s->answers;
        s->answers = a->next;
        if (a->call)
            lp_driver_free_call(a->call);
        lapse_answer_free(&a->answer);
        free(a);
    }
}

/* -- Submit -- */

/* Of a store that answers inline. */
static int64_t answer_now(lapse *s, const lapse_ask *ask, lapse_info *info)
{
    switch (ask->what) {
    case LAPSE_ASK_PUT:
        return lapse_put(s, ask->spec);
    case LAPSE_ASK_CANCEL:
        return lapse_cancel(s, ask->id, ask->generation);
    case LAPSE_ASK_RESCHEDULE:
        return lapse_reschedule(s, ask->id, ask->generation, ask->delay);
    case LAPSE_ASK_GET:
        return lapse_get(s, ask->id, info);
    case LAPSE_ASK_REQUEUE:
        return lapse_requeue(s, ask->id, ask->generation, ask->delay);
    }
    return LAPSE_EINVAL;
}

static int append_now(lapse *s, submitted *a)
{
    int code = lp_enter(s);
    if (code < 0) {
        lapse_answer_free(&a->answer);
        free(a);
        return code;
    }
    append(s, a);
    lp_leave(s);
    return LAPSE_OK;
}

static int prepare(const lapse *s, const lapse_ask *ask, lapse_ns now, lp_request *r)
{
    static const lp_op ops[] = {LP_SCHEDULE, LP_CANCEL, LP_RESCHEDULE, LP_GET, LP_REQUEUE};
    if (ask->what == LAPSE_ASK_PUT)
        return ask->spec ? lp_prepare_put(s, ask->spec, now, r)
                         : lp_fail(LAPSE_EINVAL, "the order's `spec` is NULL");
    int code = lp_prepare_named(ops[ask->what], ask->id, ask->generation, r);
    bool delayed = ask->what == LAPSE_ASK_RESCHEDULE || ask->what == LAPSE_ASK_REQUEUE;
    return code == LAPSE_OK && delayed ? lp_prepare_delay(now, ask->delay, r) : code;
}

static bool needs_open(lapse_what what)
{
    return what != LAPSE_ASK_CANCEL && what != LAPSE_ASK_GET;
}

/* To the driver. */
static int submit(lapse *s, const lapse_ask *ask, submitted *a)
{
    lapse_ns now = lp_engine_now(s);
    lapse_info wanted; /* Only that it is: the driver makes its own. */
    lp_request r;
    int code = prepare(s, ask, now, &r);
    if (code == LAPSE_OK)
        code = lp_enter(s);
    if (code < 0)
        return code;
    r.info = ask->what == LAPSE_ASK_GET || s->options.on_dead ? &wanted : NULL;
    if (s->stopped && needs_open(ask->what))
        code = lp_fail(LAPSE_ECLOSED, "the scheduler was stopped: open another");
    else
        code = lp_driver_submit(s, &r, now, a, &a->call);
    lp_leave(s);
    return code;
}

/* No order can have that id: the answer is known. */
static bool is_known(const lapse_ask *ask, int code)
{
    return code == LAPSE_EUNKNOWN && ask->what != LAPSE_ASK_PUT;
}

int lapse_submit(lapse *s, const lapse_ask *ask)
{
    if (!s || !ask || (unsigned)ask->what > LAPSE_ASK_REQUEUE)
        return lp_fail(LAPSE_EINVAL, "lapse_submit: the scheduler or `ask` is NULL, or it asks "
                                     "for nothing that there is");
    if (s->epoch != lp_fork_epoch())
        return lp_enter(s);
    submitted *a = calloc(1, sizeof *a);
    if (!a)
        return lp_fail_memory();
    a->answer.tag = ask->tag;
    if (s->driver) {
        int code = submit(s, ask, a);
        if (code == LAPSE_OK)
            return code;
        if (!is_known(ask, code)) {
            free(a);
            return code;
        }
        bool fate = ask->what == LAPSE_ASK_CANCEL || ask->what == LAPSE_ASK_RESCHEDULE;
        a->answer.result = fate ? LAPSE_FATE_UNKNOWN : code;
    } else {
        a->answer.result = answer_now(s, ask, &a->answer.info);
    }
    keep_words(&a->answer);
    return append_now(s, a);
}
