/* rabbitmq_topology.c - where messages go: names, keys, what is declared.
 *
 *     P.level.32 ... P.level.00    the ladder: of each level an exchange and a queue whose
 *                                  messages wait 64 ms * 2^level
 *     P.fix.1800000                the same for one delay
 *     P.deliver                    exchange: from there to
 *     P.work.QUEUE                 what is due
 *     P.dead                       dead letters
 *     P.unrouted                   what P.deliver had no queue for
 *
 * A key is the delay in binary, lowest bit first, and the word of the queue: "0.1.1.close_unpaid"
 * waits six steps. At its exchange a level's bit decides: 1 goes into the queue, and after that
 * time to the level below; 0 goes there at once. In a queue all wait equally long, so that none is
 * held up by one before it.
 *
 * Every queue is a quorum queue that hands on expired messages only once they were taken
 * (at-least-once), which needs reject-publish. None of them is ever deleted by itself. */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/wake.h"
#include "stores/rabbitmq_link.h"

/* -- Names -- */

static bool is_plain(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-';
}

static uint64_t hash(const char *text, uint64_t h)
{
    for (; *text; text++)
        h = (h ^ (unsigned char)*text) * UINT64_C(1099511628211);
    return h ^ h >> 29;
}

/* Plain characters stand as they are, others as %XX; no name at all is "%". One that is too long
 * ends in a number made of all of it. */
void lp_rabbit_word(char out[LP_RABBIT_WORD_MAX + 1], const char *queue)
{
    enum { ENDING = 2 + 32 };
    size_t n = 0;
    const char *at = queue;
    for (; *at && n + 3 <= LP_RABBIT_WORD_MAX; at++) {
        if (is_plain(*at))
            out[n++] = *at;
        else
            n += (size_t)sprintf(out + n, "%%%02X", (unsigned char)*at);
    }
    if (*at) {
        n = LP_RABBIT_WORD_MAX - ENDING;
        n += (size_t)sprintf(out + n, "%%%%%016llx%016llx",
                             (unsigned long long)hash(queue, UINT64_C(14695981039346656037)),
                             (unsigned long long)hash(queue, UINT64_C(1099511628211)));
    }
    if (n == 0)
        out[n++] = '%';
    out[n] = '\0';
}

void lp_rabbit_name(char *out, const char *prefix, const char *what)
{
    snprintf(out, LP_RABBIT_NAME_MAX + 1, "%s.%s", prefix, what);
}

void lp_rabbit_name_work(char *out, const char *prefix, const char *word)
{
    snprintf(out, LP_RABBIT_NAME_MAX + 1, "%s.work.%s", prefix, word);
}

void lp_rabbit_name_level(char *out, const char *prefix, int level)
{
    snprintf(out, LP_RABBIT_NAME_MAX + 1, "%s.level.%02d", prefix, level);
}

void lp_rabbit_name_fixed(char *out, const char *prefix, int64_t ms)
{
    snprintf(out, LP_RABBIT_NAME_MAX + 1, "%s.fix.%lld", prefix, (long long)ms);
}

/* -- Routes -- */

uint64_t lp_rabbit_steps(lapse_ns delay)
{
    const uint64_t most = (UINT64_C(1) << LP_RABBIT_LEVELS) - 1;
    const lapse_ns step = LAPSE_MS(LP_RABBIT_STEP_MS);
    if (delay <= 0)
        return 0;
    uint64_t steps = (uint64_t)(delay / step) + (delay % step > 0); /* Late is allowed. */
    return steps < most ? steps : most;
}

void lp_rabbit_route(rabbit_route *out, uint64_t steps, const char *word)
{
    size_t n = 0;
    out->level = -1;
    for (; steps; steps >>= 1) {
        out->key[n++] = steps & 1 ? '1' : '0';
        out->key[n++] = '.';
        out->level++;
    }
    snprintf(out->key + n, sizeof out->key - n, "%s", word);
}

/* -- Declaring -- */

static int explain(const rabbit_link *l, int code, const char *what)
{
    if (code != LAPSE_EDATA)
        return code;
    if (l->closed_code == AMQP_PRECONDITION_FAILED)
        return lp_fail(LAPSE_EDATA,
                       "%.80s stands in RabbitMQ with other arguments: use another prefix, or "
                       "delete it (%.200s)",
                       what, l->closed_for);
    if (l->closed_code == AMQP_ACCESS_REFUSED)
        return lp_fail(LAPSE_ESYSTEM, "this user of RabbitMQ may not declare %.80s (%.200s)", what,
                       l->closed_for);
    return lp_fail(LAPSE_EDATA, "RabbitMQ refuses to declare %.80s: %.200s", what, l->closed_for);
}

static int declare_exchange(rabbit_link *l, uint16_t channel, const char *name, const char *type,
                            const char *alternate)
{
    amqp_table_entry_t entry = {
        .key = amqp_cstring_bytes("alternate-exchange"),
        .value = {.kind = AMQP_FIELD_KIND_UTF8,
                  .value.bytes = amqp_cstring_bytes(alternate ? alternate : "")}};
    amqp_exchange_declare_t m = {
        .exchange = amqp_cstring_bytes(name),
        .type = amqp_cstring_bytes(type),
        .durable = 1,
        .arguments = {.num_entries = alternate ? 1 : 0, .entries = &entry}};
    int code = lp_rabbit_call(l, channel, AMQP_EXCHANGE_DECLARE_METHOD, &m,
                              AMQP_EXCHANGE_DECLARE_OK_METHOD, 0);
    return explain(l, code, name);
}

/* An argument of a queue: a text, or a number. */
typedef struct argument {
    const char *name, *text;
    int64_t number;
} argument;

enum { ARGUMENTS = 8 };

static int declare_as(rabbit_link *l, uint16_t channel, const char *name, const argument *list)
{
    amqp_table_entry_t entries[ARGUMENTS];
    int n = 0;
    for (const argument *a = list; a->name; a++) {
        entries[n].key = amqp_cstring_bytes(a->name);
        entries[n].value.kind = a->text ? AMQP_FIELD_KIND_UTF8 : AMQP_FIELD_KIND_I64;
        if (a->text)
            entries[n].value.value.bytes = amqp_cstring_bytes(a->text);
        else
            entries[n].value.value.i64 = a->number;
        n++;
    }
    amqp_queue_declare_t m = {.queue = amqp_cstring_bytes(name),
                              .durable = 1,
                              .arguments = {.num_entries = n, .entries = entries}};
    int code =
        lp_rabbit_call(l, channel, AMQP_QUEUE_DECLARE_METHOD, &m, AMQP_QUEUE_DECLARE_OK_METHOD, 0);
    return explain(l, code, name);
}

/* Others are told that something is new by a queue that lasts for as long as it is. */
static int mark_young(rabbit_link *l, uint16_t channel)
{
    char name[LP_RABBIT_NAME_MAX + 1];
    const argument arguments[] = {{"x-queue-type", "classic", 0},
                                  {"x-expires", NULL, l->settings->settle / LAPSE_MS(1)},
                                  {NULL, NULL, 0}};
    lp_rabbit_name(name, l->settings->prefix, "young");
    return declare_as(l, channel, name, arguments);
}

int lp_rabbit_is_young(rabbit_link *l, uint16_t channel)
{
    char name[LP_RABBIT_NAME_MAX + 1];
    uint64_t count;
    lp_rabbit_name(name, l->settings->prefix, "young");
    int code = lp_rabbit_count(l, channel, name, &count);
    return code == LAPSE_EUNKNOWN ? 0 : code < 0 ? code : 1;
}

static int declare_queue(rabbit_link *l, uint16_t channel, const char *name, const argument *list)
{
    uint64_t count;
    int code = LAPSE_OK;
    if (l->settings->settle > 0)
        code = lp_rabbit_count(l, channel, name, &count);
    if (code == LAPSE_EUNKNOWN) {
        l->made = true;
        code = mark_young(l, channel);
    }
    return code < 0 && code != LAPSE_EDATA ? code : declare_as(l, channel, name, list);
}

static int bind_queue(rabbit_link *l, uint16_t channel, const char *queue, const char *exchange,
                      const char *key)
{
    amqp_queue_bind_t m = {.queue = amqp_cstring_bytes(queue),
                           .exchange = amqp_cstring_bytes(exchange),
                           .routing_key = amqp_cstring_bytes(key)};
    int code = lp_rabbit_call(l, channel, AMQP_QUEUE_BIND_METHOD, &m, AMQP_QUEUE_BIND_OK_METHOD, 0);
    return explain(l, code, queue);
}

static int bind_exchange(rabbit_link *l, uint16_t channel, const char *to, const char *from,
                         const char *key)
{
    amqp_exchange_bind_t m = {.destination = amqp_cstring_bytes(to),
                              .source = amqp_cstring_bytes(from),
                              .routing_key = amqp_cstring_bytes(key)};
    int code =
        lp_rabbit_call(l, channel, AMQP_EXCHANGE_BIND_METHOD, &m, AMQP_EXCHANGE_BIND_OK_METHOD, 0);
    return explain(l, code, to);
}

/* Those who look at a queue give back what they saw, which counts as a delivery: no number of looks
 * is to end a message. Newer brokers have a limit where none is given. */
#define NO_LIMIT INT32_MAX

static int declare_kept(rabbit_link *l, uint16_t channel, const char *name)
{
    const argument arguments[] = {
        {"x-queue-type", "quorum", 0}, {"x-delivery-limit", NULL, NO_LIMIT}, {NULL, NULL, 0}};
    return declare_queue(l, channel, name, arguments);
}

int lp_rabbit_declare_base(rabbit_link *l, uint16_t channel, const char *prefix)
{
    char deliver[LP_RABBIT_NAME_MAX + 1], unrouted[LP_RABBIT_NAME_MAX + 1];
    char dead[LP_RABBIT_NAME_MAX + 1];
    lp_rabbit_name(deliver, prefix, "deliver");
    lp_rabbit_name(unrouted, prefix, "unrouted");
    lp_rabbit_name(dead, prefix, "dead");
    int code = declare_exchange(l, channel, unrouted, "fanout", NULL);
    if (code == LAPSE_OK)
        code = declare_kept(l, channel, unrouted);
    if (code == LAPSE_OK)
        code = bind_queue(l, channel, unrouted, unrouted, "");
    if (code == LAPSE_OK)
        code = declare_exchange(l, channel, deliver, "topic", unrouted);
    if (code == LAPSE_OK)
        code = declare_exchange(l, channel, dead, "fanout", NULL);
    if (code == LAPSE_OK)
        code = declare_kept(l, channel, dead);
    if (code == LAPSE_OK)
        code = bind_queue(l, channel, dead, dead, "");
    return code;
}

int lp_rabbit_declare_work(rabbit_link *l, uint16_t channel, const char *prefix, const char *word)
{
    char name[LP_RABBIT_NAME_MAX + 1], deliver[LP_RABBIT_NAME_MAX + 1];
    char dead[LP_RABBIT_NAME_MAX + 1], key[LP_RABBIT_WORD_MAX + 3];
    lp_rabbit_name_work(name, prefix, word);
    lp_rabbit_name(deliver, prefix, "deliver");
    lp_rabbit_name(dead, prefix, "dead");
    snprintf(key, sizeof key, "#.%s", word);
    const argument arguments[] = {{"x-queue-type", "quorum", 0},
                                  {"x-dead-letter-exchange", dead, 0},
                                  {"x-dead-letter-strategy", "at-least-once", 0},
                                  {"x-overflow", "reject-publish", 0},
                                  {"x-delivery-limit", NULL, NO_LIMIT},
                                  {NULL, NULL, 0}};
    int code = declare_queue(l, channel, name, arguments);
    return code < 0 ? code : bind_queue(l, channel, name, deliver, key);
}

/* A queue in which all wait `ms`, and are then published to `next` with the key they have. */
static int declare_wait(rabbit_link *l, uint16_t channel, const char *name, const char *next,
                        int64_t ms)
{
    const argument arguments[] = {
        {"x-queue-type", "quorum", 0},       {"x-message-ttl", NULL, ms},
        {"x-dead-letter-exchange", next, 0}, {"x-dead-letter-strategy", "at-least-once", 0},
        {"x-overflow", "reject-publish", 0}, {NULL, NULL, 0}};
    return declare_queue(l, channel, name, arguments);
}

/* What a level's exchange looks for in a key: its bit. */
static void write_pattern(char *out, int level, char bit)
{
    size_t n = 0;
    for (int i = 0; i < level; i++) {
        out[n++] = '*';
        out[n++] = '.';
    }
    out[n++] = bit;
    memcpy(out + n, ".#", sizeof ".#");
}

int lp_rabbit_declare_level(rabbit_link *l, uint16_t channel, const char *prefix, int level)
{
    char name[LP_RABBIT_NAME_MAX + 1], next[LP_RABBIT_NAME_MAX + 1];
    char pattern[2 * LP_RABBIT_LEVELS + 8];
    lp_rabbit_name_level(name, prefix, level);
    if (level)
        lp_rabbit_name_level(next, prefix, level - 1);
    else
        lp_rabbit_name(next, prefix, "deliver");
    int code = declare_exchange(l, channel, name, "topic", NULL);
    if (code == LAPSE_OK)
        code = declare_wait(l, channel, name, next, (int64_t)LP_RABBIT_STEP_MS << level);
    write_pattern(pattern, level, '1');
    if (code == LAPSE_OK)
        code = bind_queue(l, channel, name, name, pattern);
    write_pattern(pattern, level, '0');
    return code < 0 ? code : bind_exchange(l, channel, next, name, pattern);
}

int lp_rabbit_declare_fixed(rabbit_link *l, uint16_t channel, const char *prefix, int64_t ms)
{
    char name[LP_RABBIT_NAME_MAX + 1], deliver[LP_RABBIT_NAME_MAX + 1];
    lp_rabbit_name_fixed(name, prefix, ms);
    lp_rabbit_name(deliver, prefix, "deliver");
    int code = declare_exchange(l, channel, name, "fanout", NULL);
    if (code == LAPSE_OK)
        code = declare_wait(l, channel, name, deliver, ms);
    return code < 0 ? code : bind_queue(l, channel, name, name, "");
}

int lp_rabbit_declare_wake(rabbit_link *l, uint16_t channel, const char *prefix,
                           const char *mailbox)
{
    char spare[LP_RABBIT_NAME_MAX + 1], deliver[LP_RABBIT_NAME_MAX + 1];
    const argument last_one[] = {{"x-queue-type", "quorum", 0},
                                 {"x-max-length", NULL, 1},
                                 {"x-overflow", "drop-head", 0},
                                 {NULL, NULL, 0}};
    amqp_table_entry_t small[] = {
        {.key = amqp_cstring_bytes("x-queue-type"), /* A vhost may have another for the default. */
         .value = {.kind = AMQP_FIELD_KIND_UTF8, .value.bytes = amqp_cstring_bytes("classic")}},
        {.key = amqp_cstring_bytes("x-max-length"),
         .value = {.kind = AMQP_FIELD_KIND_I64, .value.i64 = 1}}};
    amqp_queue_declare_t box = {.queue = amqp_cstring_bytes(mailbox),
                                .exclusive = 1,
                                .auto_delete = 1,
                                .arguments = {.num_entries = 2, .entries = small}};
    lp_rabbit_name(spare, prefix, "spare");
    lp_rabbit_name(deliver, prefix, "deliver");
    int code = declare_exchange(l, channel, spare, "fanout", NULL);
    if (code == LAPSE_OK)
        code = declare_queue(l, channel, spare, last_one);
    if (code == LAPSE_OK)
        code = bind_queue(l, channel, spare, spare, "");
    if (code == LAPSE_OK)
        code = declare_exchange(l, channel, deliver, "topic", spare);
    if (code < 0)
        return code;
    code = lp_rabbit_call(l, channel, AMQP_QUEUE_DECLARE_METHOD, &box, AMQP_QUEUE_DECLARE_OK_METHOD,
                          0);
    return explain(l, code, mailbox);
}

int lp_rabbit_count(rabbit_link *l, uint16_t channel, const char *queue, uint64_t *out)
{
    amqp_queue_declare_t m = {.queue = amqp_cstring_bytes(queue), .passive = 1};
    int code =
        lp_rabbit_call(l, channel, AMQP_QUEUE_DECLARE_METHOD, &m, AMQP_QUEUE_DECLARE_OK_METHOD, 0);
    *out = code == LAPSE_OK ? l->count : 0;
    if (code == LAPSE_EDATA && l->closed_code == AMQP_NOT_FOUND)
        return LAPSE_EUNKNOWN;
    return code;
}

int lp_rabbit_await_count(rabbit_link *l, uint16_t channel, const char *queue, uint64_t count)
{
    enum { TRIES = 100 };
    uint64_t there = 0;
    int code = LAPSE_OK;
    for (int i = 0; code == LAPSE_OK && there < count && i < TRIES; i++) {
        if (i)
            lp_wake_pause(LAPSE_MS(1));
        code = lp_rabbit_count(l, channel, queue, &there);
    }
    return code;
}
