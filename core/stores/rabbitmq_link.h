/* rabbitmq_link.h - speaking AMQP 0-9-1: a connection, an order as a message, the topology.
 *
 * rabbitmq-c is used for frames, tables and the handshake only. Everything after that goes
 * through lp_rabbit_call, which has a time limit and keeps what else arrives meanwhile in
 * order: it is told to `ears`, which note it and must not use the link. Nothing here takes a
 * lock; a link belongs to the thread that uses it. */
#ifndef LP_RABBITMQ_LINK_H
#define LP_RABBITMQ_LINK_H

#include <stdint.h>
#include <sys/time.h>

#if __has_include(<rabbitmq-c/amqp.h>)
#include <rabbitmq-c/amqp.h>
#include <rabbitmq-c/framing.h>
#else
#include <amqp.h>
#endif

#include "lapse.h"

enum { LP_RABBIT_PREFIX_MAX = 64, LP_RABBIT_NAME_MAX = 255, LP_RABBIT_CHANNELS = 64 };

/* -- rabbitmq_url.c: what a URL says -- */

enum { LP_RABBIT_FIXED_MOST = 16 };

/* What of a shop's own queues is used, by name: rabbitmq_shop.c. */
typedef struct rabbit_shop {
    char *work;          /* a queue to consume from as well; NULL: none */
    char *exchange;      /* to publish orders to that wait; NULL: none */
    char *key, *queue;   /* with this routing key; of which queue of lapse */
    lapse_ns ttl;        /* of the queue behind the exchange; LAPSE_FOREVER: it has none */
    bool expires;        /* each message has a TTL of its own */
    bool has_message_id; /* that is the order's id; else the body is */
} rabbit_shop;

typedef struct rabbit_settings {
    char *user, *password, *host, *vhost;
    unsigned port;
    bool tls, verify;
    char *cacert, *cert, *key; /* files; NULL: not given */
    char prefix[LP_RABBIT_PREFIX_MAX + 1];
    lapse_ns poll, timeout, heartbeat;
    lapse_ns settle; /* what a new queue needs until it survives a kill of the broker */
    int64_t fixed[LP_RABBIT_FIXED_MOST]; /* ms: delays that have a queue of their own */
    int fixed_count;
    bool fixed_given; /* none is found out */
    char *ticket;     /* the URL of the store that keeps the orders; NULL: RabbitMQ does */
    bool poll_given;
    rabbit_shop shop;
} rabbit_settings;

/* -- rabbitmq_message.c: an order as a message -- */

/* What travels. Instants are UTC; those that are 0 are not given. */
typedef struct rabbit_order {
    const char *id, *queue;
    size_t id_len;
    const void *payload;
    size_t payload_len;
    lapse_ns due, at; /* may start from `at` on when that is later */
    int64_t generation, fence;
    int attempt; /* so many have been counted */

    const char *expiration; /* a TTL of its own, in ms; NULL: none */

    /* Of a dead letter. */
    lapse_reason reason;
    const char *error;
    lapse_ns ended, late;
} rabbit_order;

/* One that has come; from malloc, with all that it points to. */
typedef struct rabbit_message {
    struct rabbit_message *next;
    rabbit_order order;
    const char *bad; /* a fixed text: why it is no order of ours; NULL: it is one */
    bool is_ours;    /* lapse has published it */
    bool is_again;   /* it was delivered before, or it was given back */
    bool moves;      /* to a queue of ours, before anybody starts it */
    bool too_large;  /* and its body was not kept */

    uint16_t channel;
    uint64_t tag;      /* for the acknowledgement */
    char consumer[32]; /* its tag; "" when it was got */
    int returned;      /* the code of basic.return; 0: it was delivered */
    uint64_t number;   /* of a returned one: what it was published as */
    int64_t redeliveries;

    char made_up[24]; /* the id of one that has none */

    size_t want; /* bytes of the payload that have not come yet */
    char *text;
    unsigned char *body;

    /* The store's. */
    struct rabbit_queue *from;
    lapse_ns arrived; /* lp_clock_monotonic; */
    lapse_ns settles; /* so is this: what takes its place is safe from then on */
} rabbit_message;

rabbit_message *lp_rabbit_new_message(void);
void lp_rabbit_free_message(rabbit_message *m);

/* Read its properties; false without memory. */
bool lp_rabbit_read_properties(rabbit_message *m, const amqp_basic_properties_t *p);

/* Among dead letters there may be messages without an id that an order can have. Each is named by a
 * number made of what it says, the same at each look; equal ones have one name. */
void lp_rabbit_name_message(rabbit_message *m);

/* Write an order's. `room` must live as long as `out`. */
enum { LP_RABBIT_HEADERS = 16 };
typedef struct rabbit_headers {
    amqp_table_entry_t entries[LP_RABBIT_HEADERS];
    char number[24];
} rabbit_headers;
void lp_rabbit_write_properties(const rabbit_order *o, uint64_t number, rabbit_headers *room,
                                amqp_basic_properties_t *out);

/* -- rabbitmq_link.c: a connection -- */

typedef struct rabbit_ears {
    void (*message)(void *arg, rabbit_message *m); /* takes it over */
    void (*confirmed)(void *arg, uint64_t number, bool multiple, bool accepted);
    void (*cancelled)(void *arg, const char *consumer); /* by the broker */
    void (*closed)(void *arg, uint16_t channel);        /* by the broker, for an error */
} rabbit_ears;

typedef struct rabbit_link {
    amqp_connection_state_t connection; /* NULL: there is none */
    const rabbit_settings *settings;
    const rabbit_ears *ears;
    void *arg;
    int fd;
    int watch; /* an epoll that has `fd`; -1: none */
    bool is_open[LP_RABBIT_CHANNELS + 1];
    char closed_for[200]; /* what the broker said when it last closed a channel */
    int closed_code;
    bool blocked; /* the broker reads nothing that is published */
    char blocked_for[120];

    rabbit_message *coming[LP_RABBIT_CHANNELS + 1]; /* of which not all has arrived */

    /* The reply that a call waits for. */
    uint16_t awaits_on;
    amqp_method_number_t awaits, or_awaits, got;
    uint32_t count; /* that came with it: messages of a queue */

    bool made; /* a queue was declared that was not there; whoever asks sets it back */
} rabbit_link;

/* Connect and log in. LAPSE_EOFFLINE, LAPSE_ESYSTEM, LAPSE_ENOMEM. */
int lp_rabbit_connect(rabbit_link *l, const rabbit_settings *settings, const rabbit_ears *ears,
                      void *arg);

/* `politely`: after all that was sent has been taken. */
void lp_rabbit_disconnect(rabbit_link *l, bool politely);

int lp_rabbit_open_channel(rabbit_link *l, uint16_t channel);

/* Read what has come, waiting up to `wait` for the first of it: 1, or 0: nothing has; below 0 the
 * link was lost, and is closed. */
int lp_rabbit_pump(rabbit_link *l, lapse_ns wait);

/* Read all that has come. */
int lp_rabbit_drain(rabbit_link *l);

/* Whether something has been read from the socket that nobody has looked at. */
bool lp_rabbit_has_input(const rabbit_link *l);

/* Send a method; send it and wait for its reply (`or_reply` 0: the only one). When the broker
 * closes the channel instead: LAPSE_EDATA, l->closed_code says why. */
int lp_rabbit_send(rabbit_link *l, uint16_t channel, amqp_method_number_t id, void *method);
int lp_rabbit_call(rabbit_link *l, uint16_t channel, amqp_method_number_t id, void *method,
                   amqp_method_number_t reply, amqp_method_number_t or_reply);

/* Publish, to be returned when there is no queue for it. */
int lp_rabbit_publish(rabbit_link *l, uint16_t channel, const char *exchange, const char *key,
                      const rabbit_order *o, uint64_t number);

int lp_rabbit_ack(rabbit_link *l, uint16_t channel, uint64_t tag, bool multiple);
int lp_rabbit_requeue(rabbit_link *l, uint16_t channel, uint64_t tag, bool multiple);
/* To where the queue's dead letters go. */
int lp_rabbit_reject(rabbit_link *l, uint16_t channel, uint64_t tag);

/* Whether the broker closed a channel for a message that was too large, and what it takes. */
bool lp_rabbit_said_limit(const rabbit_link *l, size_t *out);

/* Get one message; it is told to the ears. 1: one came. 0: the queue is empty. */
int lp_rabbit_get(rabbit_link *l, uint16_t channel, const char *queue);

/* -- rabbitmq_topology.c: where messages go -- */

/* The last word of a key, which names a queue whatever bytes its name has. */
enum { LP_RABBIT_WORD_MAX = 160 };
void lp_rabbit_word(char out[LP_RABBIT_WORD_MAX + 1], const char *queue);

/* Names of what stands in the broker; `out` has LP_RABBIT_NAME_MAX + 1 bytes. */
void lp_rabbit_name(char *out, const char *prefix, const char *what);
void lp_rabbit_name_work(char *out, const char *prefix, const char *word);
void lp_rabbit_name_level(char *out, const char *prefix, int level);
void lp_rabbit_name_fixed(char *out, const char *prefix, int64_t ms);

enum {
    LP_RABBIT_STEP_MS = 64, /* of the ladder */
    LP_RABBIT_LEVELS = 33,  /* the highest waits 8.7 years; a longer time is waited in turns */
};

/* How a delay is waited for: the steps of the ladder, never less than it, unless it is longer than
 * the ladder; and the key of them, low bits first, then the word. */
typedef struct rabbit_route {
    int level; /* where it enters: the highest bit */
    char key[LP_RABBIT_NAME_MAX + 1];
} rabbit_route;
uint64_t lp_rabbit_steps(lapse_ns delay);
void lp_rabbit_route(rabbit_route *out, uint64_t steps, const char *word);

/* Declare: what all use; a queue of orders; the ladder up to a level, from `from` on; a queue of one
 * delay. */
int lp_rabbit_declare_base(rabbit_link *l, uint16_t channel, const char *prefix);
int lp_rabbit_declare_work(rabbit_link *l, uint16_t channel, const char *prefix, const char *word);
int lp_rabbit_declare_level(rabbit_link *l, uint16_t channel, const char *prefix, int level);
int lp_rabbit_declare_fixed(rabbit_link *l, uint16_t channel, const char *prefix, int64_t ms);

/* Declare what messages that only wake need, and a mailbox that lives as long as the link. */
int lp_rabbit_declare_wake(rabbit_link *l, uint16_t channel, const char *prefix,
                           const char *mailbox);

/* Whether somebody has made a queue of this prefix within settings->settle: 1, or 0. */
int lp_rabbit_is_young(rabbit_link *l, uint16_t channel);

/* How many messages wait in a queue; LAPSE_EUNKNOWN when there is no such queue. */
int lp_rabbit_count(rabbit_link *l, uint16_t channel, const char *queue, uint64_t *out);

/* Until so many wait there, a tenth of a second at most: what was given back takes a moment. */
int lp_rabbit_await_count(rabbit_link *l, uint16_t channel, const char *queue, uint64_t count);

#endif
