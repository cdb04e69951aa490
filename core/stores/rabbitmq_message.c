/* rabbitmq_message.c - an order as a message, and what the broker adds to it.
 *
 * Every message that is published has lapse's own headers and no others: one that kept the
 * broker's x-death would be dropped as a cycle when it came by the same queue again. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "stores/rabbitmq_link.h"

enum { VERSION = 1 };

rabbit_message *lp_rabbit_new_message(void)
{
    return calloc(1, sizeof(rabbit_message));
}

void lp_rabbit_free_message(rabbit_message *m)
{
    if (!m)
        return;
    free(m->text);
    free(m->body);
    free(m);
}

/* -- Reasons -- */

static const char *const reasons[] = {
    [LAPSE_REASON_FAILED] = "failed",   [LAPSE_REASON_REJECTED] = "rejected",
    [LAPSE_REASON_EXPIRED] = "expired", [LAPSE_REASON_MAXLEN] = "maxlen",
    [LAPSE_REASON_LOST] = "lost",
};

static bool is_text(amqp_bytes_t bytes, const char *text)
{
    return bytes.len == strlen(text) && memcmp(bytes.bytes, text, bytes.len) == 0;
}

static lapse_reason reason_of(amqp_bytes_t text)
{
    for (int i = LAPSE_REASON_FAILED; i <= LAPSE_REASON_LOST; i++)
        if (is_text(text, reasons[i]))
            return (lapse_reason)i;
    /* The broker gave up on a message that was delivered again and again and never settled. */
    return is_text(text, "delivery_limit") ? LAPSE_REASON_LOST : LAPSE_REASON_NONE;
}

/* -- Reading -- */

static const amqp_field_value_t *find(const amqp_table_t *table, const char *name)
{
    for (int i = 0; i < table->num_entries; i++)
        if (is_text(table->entries[i].key, name))
            return &table->entries[i].value;
    return NULL;
}

/* Whatever kind of integer another client made of it. */
static int64_t number_of(const amqp_field_value_t *v, int64_t none)
{
    if (!v)
        return none;
    switch (v->kind) {
    case AMQP_FIELD_KIND_I8:
        return v->value.i8;
    case AMQP_FIELD_KIND_U8:
        return v->value.u8;
    case AMQP_FIELD_KIND_I16:
        return v->value.i16;
    case AMQP_FIELD_KIND_U16:
        return v->value.u16;
    case AMQP_FIELD_KIND_I32:
        return v->value.i32;
    case AMQP_FIELD_KIND_U32:
        return v->value.u32;
    case AMQP_FIELD_KIND_I64:
        return v->value.i64;
    case AMQP_FIELD_KIND_U64:
        return v->value.u64 > INT64_MAX ? none : (int64_t)v->value.u64;
    default:
        return none;
    }
}

static amqp_bytes_t bytes_of(const amqp_field_value_t *v)
{
    bool is = v && (v->kind == AMQP_FIELD_KIND_UTF8 || v->kind == AMQP_FIELD_KIND_BYTES);
    return is ? v->value.bytes : amqp_empty_bytes;
}

static int64_t read_number(const amqp_table_t *t, const char *name, int64_t least, int64_t most)
{
    int64_t n = number_of(find(t, name), least);
    return n < least ? least : n > most ? most : n;
}

/* The latest death stands first. */
static const amqp_table_t *last_death(const amqp_table_t *headers)
{
    const amqp_field_value_t *v = find(headers, "x-death");
    if (!v || v->kind != AMQP_FIELD_KIND_ARRAY || v->value.array.num_entries == 0)
        return NULL;
    const amqp_field_value_t *first = &v->value.array.entries[0];
    return first->kind == AMQP_FIELD_KIND_TABLE ? &first->value.table : NULL;
}

/* Into the block of texts; where they lie. */
static const char *keep(char **at, amqp_bytes_t bytes)
{
    char *start = *at;
    if (bytes.len)
        memcpy(start, bytes.bytes, bytes.len);
    start[bytes.len] = '\0';
    *at += bytes.len + 1;
    return start;
}

static const char *fault_of(const amqp_table_t *headers, amqp_bytes_t id)
{
    if (number_of(find(headers, "lapse-v"), 0) != VERSION)
        return "it was not published by this version of lapse";
    if (id.len == 0 || id.len > LAPSE_ID_MAX || memchr(id.bytes, '\0', id.len))
        return "its message-id is no order id";
    if (number_of(find(headers, "lapse-due"), INT64_MIN) == INT64_MIN)
        return "its lapse-due is missing";
    return NULL;
}

/* Any client may write such a header, of any length. */
enum { DEATH_MAX = 255, SAID = 32 + 2 * DEATH_MAX };

static int clipped(amqp_bytes_t text)
{
    return text.len < DEATH_MAX ? (int)text.len : DEATH_MAX;
}

/* What the broker did to one that says nothing itself. */
static void read_death(rabbit_message *m, const amqp_table_t *death, char **at)
{
    amqp_bytes_t why = bytes_of(find(death, "reason")), where = bytes_of(find(death, "queue"));
    const amqp_field_value_t *when = find(death, "time");
    if (m->order.reason == LAPSE_REASON_NONE)
        m->order.reason = reason_of(why);
    if (when && when->kind == AMQP_FIELD_KIND_TIMESTAMP && when->value.u64 < INT64_MAX / 1000000000)
        m->order.ended = LAPSE_SECONDS((int64_t)when->value.u64);
    m->order.error = *at;
    *at += snprintf(*at, SAID, "RabbitMQ: %.*s in %.*s", clipped(why), (const char *)why.bytes,
                    clipped(where), (const char *)where.bytes) +
           1;
}

bool lp_rabbit_read_properties(rabbit_message *m, const amqp_basic_properties_t *p)
{
    static const amqp_table_t none = {0, NULL};
    const amqp_table_t *h = p->_flags & AMQP_BASIC_HEADERS_FLAG ? &p->headers : &none;
    amqp_bytes_t id = p->_flags & AMQP_BASIC_MESSAGE_ID_FLAG ? p->message_id : amqp_empty_bytes;
    amqp_bytes_t queue = bytes_of(find(h, "lapse-queue")), error = bytes_of(find(h, "lapse-error"));
    const amqp_table_t *death = last_death(h);
    char *at = m->text = malloc(id.len + queue.len + error.len + 3 + SAID);
    if (!at)
        return false;
    rabbit_order *o = &m->order;
    m->bad = fault_of(h, id);
    m->is_ours = number_of(find(h, "lapse-v"), 0) == VERSION;
    o->id = keep(&at, id);
    o->id_len = id.len;
    o->queue = keep(&at, queue);
    o->due = read_number(h, "lapse-due", 0, INT64_MAX);
    o->at = read_number(h, "lapse-at", 0, INT64_MAX);
    o->generation = read_number(h, "lapse-generation", 0, INT64_MAX);
    o->fence = read_number(h, "lapse-fence", 0, INT64_MAX);
    o->attempt = (int)read_number(h, "lapse-attempt", 0, INT32_MAX / 2);
    o->ended = read_number(h, "lapse-ended", 0, INT64_MAX);
    o->late = LAPSE_MS(read_number(h, "lapse-late-ms", 0, INT64_MAX / 1000000));
    o->reason = reason_of(bytes_of(find(h, "lapse-reason")));
    if (find(h, "lapse-error"))
        o->error = keep(&at, error);
    else if (death && o->reason == LAPSE_REASON_NONE)
        read_death(m, death, &at);
    m->redeliveries = read_number(h, "x-delivery-count", 0, INT32_MAX / 2);
    if (p->_flags & AMQP_BASIC_CORRELATION_ID_FLAG && p->correlation_id.len < 20) {
        char digits[24];
        char *end = digits;
        (void)keep(&end, p->correlation_id);
        m->number = strtoull(digits, NULL, 10);
    }
    return true;
}

/* -- Without an id -- */

static uint64_t add_to_hash(uint64_t h, const void *bytes, size_t len)
{
    const unsigned char *at = bytes;
    for (size_t i = 0; i < len; i++)
        h = (h ^ at[i]) * UINT64_C(1099511628211); /* FNV-1a */
    return h;
}

void lp_rabbit_name_message(rabbit_message *m)
{
    rabbit_order *o = &m->order;
    if (o->id_len > 0 && o->id_len <= LAPSE_ID_MAX && !memchr(o->id, '\0', o->id_len))
        return;
    uint64_t h = add_to_hash(UINT64_C(14695981039346656037), o->id, o->id_len);
    h = add_to_hash(h, o->payload, o->payload_len);
    o->id_len = (size_t)snprintf(m->made_up, sizeof m->made_up, "?%016llx", (unsigned long long)h);
    o->id = m->made_up;
}

/* -- Writing -- */

static amqp_bytes_t bytes(const char *at, size_t len)
{
    return (amqp_bytes_t){.len = len, .bytes = (void *)(uintptr_t)at};
}

static void add_number(amqp_table_t *t, const char *name, int64_t n)
{
    amqp_table_entry_t *e = &t->entries[t->num_entries++];
    e->key = amqp_cstring_bytes(name);
    e->value.kind = AMQP_FIELD_KIND_I64;
    e->value.value.i64 = n;
}

static void add_text(amqp_table_t *t, const char *name, const char *text)
{
    amqp_table_entry_t *e = &t->entries[t->num_entries++];
    e->key = amqp_cstring_bytes(name);
    e->value.kind = AMQP_FIELD_KIND_UTF8;
    e->value.value.bytes = amqp_cstring_bytes(text);
}

static void add_death(amqp_table_t *t, const rabbit_order *o)
{
    add_text(t, "lapse-reason", reasons[o->reason]);
    if (o->error)
        add_text(t, "lapse-error", o->error);
    add_number(t, "lapse-ended", o->ended);
    add_number(t, "lapse-late-ms", o->late / LAPSE_MS(1));
}

void lp_rabbit_write_properties(const rabbit_order *o, uint64_t number, rabbit_headers *room,
                                amqp_basic_properties_t *out)
{
    amqp_table_t t = {0, room->entries};
    add_number(&t, "lapse-v", VERSION);
    add_text(&t, "lapse-queue", o->queue);
    add_number(&t, "lapse-due", o->due);
    if (o->at > o->due)
        add_number(&t, "lapse-at", o->at);
    add_number(&t, "lapse-generation", o->generation);
    add_number(&t, "lapse-fence", o->fence);
    add_number(&t, "lapse-attempt", o->attempt);
    if (o->reason != LAPSE_REASON_NONE)
        add_death(&t, o);
    int len = snprintf(room->number, sizeof room->number, "%llu", (unsigned long long)number);
    *out = (amqp_basic_properties_t){
        ._flags = AMQP_BASIC_HEADERS_FLAG | AMQP_BASIC_DELIVERY_MODE_FLAG |
                  AMQP_BASIC_MESSAGE_ID_FLAG | AMQP_BASIC_CORRELATION_ID_FLAG,
        .headers = t,
        .delivery_mode = AMQP_DELIVERY_PERSISTENT,
        .message_id = bytes(o->id, o->id_len),
        .correlation_id = bytes(room->number, (size_t)len),
    };
    if (o->expiration) {
        out->_flags |= AMQP_BASIC_EXPIRATION_FLAG;
        out->expiration = amqp_cstring_bytes(o->expiration);
    }
}
