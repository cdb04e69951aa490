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

int lp_durable_check_spec(const lapse_spec *spec)
{
    if (spec->fn || spec->arg || spec->release)
        return lp_fail(LAPSE_EUNSUPPORTED,
                       "an order in a database names its handler: set `queue`, not `fn` or `arg`");
    if (spec->payload_len > LAPSE_PAYLOAD_MAX)
        return lp_fail(LAPSE_EINVAL, "the payload has %zu bytes: use %u at most", spec->payload_len,
                       LAPSE_PAYLOAD_MAX);
    if (spec->payload_len && !spec->payload)
        return lp_fail(LAPSE_EINVAL, "the payload is NULL but has %zu bytes", spec->payload_len);
    if (spec->flags & ~(unsigned)LAPSE_REPLACE)
        return lp_fail(LAPSE_EINVAL, "unknown flags %#x: use LAPSE_REPLACE or 0", spec->flags);
    if (spec->queue && strnlen(spec->queue, LAPSE_ID_MAX + 1) > LAPSE_ID_MAX)
        return lp_fail(LAPSE_EINVAL, "the queue %s... is longer than %d bytes",
                       lp_text_quote(spec->queue, 32), LAPSE_ID_MAX);
    return LAPSE_OK;
}
