/* durable.c - what all durable stores share. */
#include "stores/durable.h"

#include <stdlib.h>
#include <string.h>

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
