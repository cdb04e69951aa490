/* durable.c - what all durable stores share. */
#include "stores/durable.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"

lp_loan *lp_loan_make(const char *id, size_t id_len, const char *queue, const void *payload,
                      size_t payload_len)
{
    size_t queue_len = strlen(queue);
    lp_loan *l = malloc(sizeof *l + id_len + 1 + queue_len + 1 + payload_len);
    if (!l)
        return NULL;
    memset(l, 0, sizeof *l);
    char *at = l->bytes;
    l->id = memcpy(at, id, id_len);
    at[id_len] = '\0';
    at += id_len + 1;
    l->queue = memcpy(at, queue, queue_len + 1);
    at += queue_len + 1;
    if (payload_len)
        l->payload = memcpy(at, payload, payload_len);
    l->id_len = id_len;
    l->payload_len = payload_len;
    return l;
}

/* -- Jobs -- */

bool lp_job_is_promise(const lp_job *j)
{
    return j->op == LP_SCHEDULE || j->op == LP_CANCEL || j->op == LP_RESCHEDULE ||
           j->op == LP_REQUEUE || j->op == LP_PURGE;
}

bool lp_turn_promises(const lp_turn *t)
{
    for (size_t i = 0; i < t->job_count; i++)
        if (lp_job_is_promise(t->jobs[i]))
            return true;
    return false;
}

bool lp_job_is_look(const lp_job *j)
{
    return j->op == LP_GET || j->op == LP_LIST || j->op == LP_COUNT || j->op == LP_QUEUES ||
           j->op == LP_HOLDS;
}

bool lp_turn_changes(const lp_turn *t)
{
    for (size_t i = 0; i < t->job_count; i++)
        if (!lp_job_is_look(t->jobs[i]))
            return true;
    return false;
}

static bool is_settlement(const lp_job *j)
{
    return j->op == LP_END || j->op == LP_AGAIN || j->op == LP_DIE || j->op == LP_RENEW;
}

static bool walks(const lp_job *j)
{
    return j->op == LP_LIST || j->op == LP_QUEUES;
}

static void begin(lp_job *j)
{
    j->answer = 0;
    j->detail = j->of_queue = NULL;
    j->died = j->replaced = j->later = false;
    j->running_fence = 0;
    if (walks(j))
        j->row = (int64_t)*j->cursor;
}

void lp_turn_begin(lp_turn *t)
{
    t->loans = NULL;
    for (size_t i = 0; i < t->job_count; i++)
        begin(t->jobs[i]);
}

void lp_job_fail(lp_job *j, int64_t code)
{
    j->answer = code;
    if (!is_settlement(j)) /* Nobody reads of those why. */
        j->detail = strdup(lapse_error_detail());
}

void lp_job_undo(lp_job *j)
{
    if (walks(j)) {
        *j->cursor = (uint64_t)j->row;
        for (int64_t i = 0; i < j->answer; i++)
            lapse_info_free(&j->infos[i]);
    } else if (j->infos && (j->died || (j->op == LP_GET && j->answer == LAPSE_OK))) {
        lapse_info_free(j->infos);
        *j->infos = (lapse_info){0};
    }
    free(j->detail);
    free(j->of_queue);
    begin(j);
}

int lp_durable_check_spec(const lapse_spec *spec)
{
    if (spec->fn || spec->arg || spec->release)
        return lp_fail(LAPSE_EUNSUPPORTED,
                       "an order in a database names its handler: set `queue`, not `fn` or `arg`");
    int code = lp_check_spec(spec);
    if (code < 0)
        return code;
    if (spec->queue && strnlen(spec->queue, LAPSE_ID_MAX + 1) > LAPSE_ID_MAX)
        return lp_fail(LAPSE_EINVAL, "the queue %s... is longer than %d bytes",
                       lp_text_quote(spec->queue, 32), LAPSE_ID_MAX);
    return LAPSE_OK;
}
