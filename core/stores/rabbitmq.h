/* rabbitmq.h - the RabbitMQ store from inside: only for stores/rabbitmq*.c.
 *
 * RabbitMQ is a pipe, not a table: an order is one message on its way, and nobody can look for
 * it. What rabbitmq_topology.c declares takes it to the queue of its handler when it is due; here
 * it is published and confirmed, delivered to who can start it at once, and acknowledged when it
 * ends. What goes on living is published anew, and confirmed, before the old message is
 * acknowledged: a crash in between repeats an order and loses none.
 *
 * Two connections, both of the driver's thread: the broker stops reading from one that publishes
 * when its memory or disk runs out, and what was delivered must be settled all the same.
 *
 * Times that travel are UTC, as this machine's clock says. Under a manual clock nothing waits in
 * the broker, whose clock goes on: an order goes to its queue at once, and every turn looks at
 * all that is there. */
#ifndef LP_RABBITMQ_H
#define LP_RABBITMQ_H

#include "stores/durable.h"
#include "stores/rabbitmq_link.h"
#include "stores/url.h"

int lp_rabbit_read_url(lp_store_config *config, rabbit_settings *out); /* to be freed in any case */
void lp_rabbit_free_settings(rabbit_settings *s);

/* Channels: of the publishing connection, and of the consuming one. What goes wrong with a queue, as
 * when somebody deletes it or a shop's is another's alone, costs the channel, and all that is held on
 * it: each has one of its own. Of more queues than that some share one. */
enum {
    LP_RABBIT_PUBLISH = 1,
    LP_RABBIT_CONSUME = 1, /* where the broker allows no more than these */
    LP_RABBIT_LOOK = 2,
    LP_RABBIT_DECLARE = 3,
    LP_RABBIT_SHOP = 4,
    LP_RABBIT_OF_QUEUES = 5, /* the first */
};

/* A consumer of a queue. Its tag is made of the queue's number and its serial. */
typedef struct rabbit_consumer {
    unsigned serial;
    unsigned prefetch; /* how many it may have unacknowledged, and */
    unsigned unacked;  /* how many it has */
    bool is_ahead;     /* for those that are had ahead */
} rabbit_consumer;

/* A queue of orders. */
typedef struct rabbit_queue {
    char *name;
    char word[LP_RABBIT_WORD_MAX + 1];
    char work[LP_RABBIT_NAME_MAX + 1];
    size_t number;
    bool is_declared;  /* on this connection */
    lapse_ns settles;  /* lp_clock_monotonic: from then on it survives a kill of the broker */
    bool is_shops;     /* `work` is a shop's: orders are only taken from it */
    lapse_ns retry_at; /* lp_clock_monotonic: not asked before that, since it was refused */
    uint16_t channel;  /* that its orders come on */

    rabbit_consumer *consumers;
    size_t consumer_count, consumer_room;
    unsigned serial; /* of the last */

    /* Delivered and not claimed, by due time. */
    rabbit_message *ready;
    unsigned ready_count;

    unsigned held;  /* and claimed, here */
    lapse_ns takes; /* how long one is held, lately; 0: not known */
    bool spare;     /* as in lp_want */
    unsigned acks;  /* lately, and when the last was; lp_clock_monotonic */
    lapse_ns acked_at;
    lapse_ns careful_until; /* lp_clock_monotonic */

    unsigned wanted; /* by this turn, which has */
    bool looked;     /* asked the broker for it */
    bool is_known;   /* under a manual clock: of what it held at the last look, and has been sent */
    lapse_ns first;  /* since, the first was for then; UTC */
    lapse_ns surplus_since; /* lp_clock_monotonic; 0: no more is asked for than is wanted */
    lapse_ns refused_at;    /* lp_clock_monotonic: when one went back last; 0: wanted since */
} rabbit_queue;

/* An order that a consumer here holds. */
typedef struct rabbit_held {
    struct rabbit_held *next;
    rabbit_message *message;
    rabbit_queue *from;
    lapse_ns since; /* lp_clock_monotonic */
    int64_t fence;
    int attempt;
    lapse_ns lease_end;
    bool settling; /* its successor is published */
    bool waits;    /* settled, and goes back as it is when the lease ends: see settle_large */
} rabbit_held;

enum { LP_RABBIT_HELD = 256 }; /* buckets */

/* What was published and is not confirmed. */
typedef enum sent_state { SENT, ACCEPTED, REFUSED, RETURNED, LOST, TOO_LARGE } sent_state;
typedef struct rabbit_sent {
    sent_state state;
    lp_job *job;             /* NULL: nobody's */
    rabbit_held *held;       /* what it takes the place of, or */
    rabbit_message *message; /* this, which nobody holds */
    bool open;               /* not confirmed, and */
    bool waived;             /* nobody waits for it: see lp_rabbit_flush */
    bool ended;
    size_t bytes, body;
    bool to_shop;     /* to the exchange of a shop */
    lapse_ns settles; /* when all queues on its way have */
} rabbit_sent;

/* Delays that were asked for lately: those that come again and again get a queue of their own. */
enum { LP_RABBIT_COUNTERS = 32 };
typedef struct rabbit_delays {
    struct {
        int64_t ms;
        unsigned count;
        lapse_ns turn; /* in which it was counted last */
    } seen[LP_RABBIT_COUNTERS];
    int64_t fixed[LP_RABBIT_FIXED_MOST];
    bool is_declared[LP_RABBIT_FIXED_MOST];
    lapse_ns settles[LP_RABBIT_FIXED_MOST];
    int fixed_count;
} rabbit_delays;

/* A look gives back what it has seen, which the broker counts as a delivery: with a policy's
 * delivery-limit it would drop an order in the end. One that has been given back so often is
 * published anew instead. */
enum { LP_RABBIT_LOOKS = 2, LP_RABBIT_RENEW_BYTES = 64 << 20 /* kept for that in one look */ };

/* A dead letter that a walk has shown. */
typedef struct rabbit_shown {
    uint64_t tag;
    char *id;
    size_t id_len;
    int64_t generation;
    rabbit_message *message; /* to be published anew; NULL: it is given back */
} rabbit_shown;

enum { LP_RABBIT_WARNING_MAX = 300, LP_RABBIT_WARNINGS = 2 };

typedef struct rabbit_store {
    lp_durable base; /* first */
    lp_store_config config;
    rabbit_settings settings;
    rabbit_link out, in;                    /* publishing, consuming */
    bool out_closed;                        /* its channel, and */
    bool in_closed[LP_RABBIT_CHANNELS + 1]; /* those of `in`: see lp_rabbit_note_losses */
    int watch, timer;                       /* epoll over both and the timer: the driver's hint */

    rabbit_queue **queues;
    size_t queue_count, queue_room;
    size_t queue_channels; /* that the broker allows for them */
    lapse_ns ahead;        /* UTC minus the scheduler's clock, when the connection was made */
    lapse_ns turn_at;      /* lp_clock_monotonic when the turn began */
    lapse_ns breathed_at;  /* and when both links were last read in it */
    bool base_is_declared;
    int levels; /* of the ladder that are declared */
    lapse_ns level_settles[LP_RABBIT_LEVELS + 1], dead_settles;
    int64_t links_made; /* connections so far */
    lapse_ns seen_at;   /* turn_at of the turn in which the broker has last answered */
    rabbit_delays delays;

    rabbit_held *held[LP_RABBIT_HELD];
    size_t held_count;
    int64_t last_fence, last_generation;

    /* Published since the last flush that left none open; the first has the number `sent_first`. */
    rabbit_sent *sent;
    size_t sent_count, sent_room;
    size_t sent_open, sent_bytes; /* that somebody waits for */
    uint64_t sent_first, published;
    uint64_t channel_first; /* what was published before the channel was opened */

    /* Bytes of a body: the largest that this channel has taken, and what the broker has said that
     * it takes at most, SIZE_MAX before it has. */
    size_t body_taken, body_most;

    rabbit_message *replaced; /* what goes on in queues that have not settled */

    rabbit_message *looked; /* what has come on LP_RABBIT_LOOK, first in first out */
    rabbit_queue *getting;  /* what comes without a consumer's tag is of this queue */
    bool brings_back;       /* a queue was declared, and orders may have missed it; */
    lapse_ns bring_back_at; /* lp_clock_monotonic: it has settled */

    /* A walk through the dead letters: those it has shown are unacknowledged until it ends. */
    uint64_t walk, walk_last;
    unsigned looks; /* consumers so far for a look through the whole queue */
    rabbit_shown *shown;
    size_t shown_count, shown_room, shown_bytes;
    lapse_ns walk_until; /* lp_clock_monotonic */

    uint64_t dead_dropped;
    char warnings[LP_RABBIT_WARNINGS][LP_RABBIT_WARNING_MAX];
    int warning_count;
    char trouble[LP_RABBIT_WARNING_MAX]; /* with the shop's queue; "": there is none */
} rabbit_store;

/* -- rabbitmq.c -- */

/* After the broker has closed the publishing channel, and what was on it has been judged. */
int lp_rabbit_reopen_out(rabbit_store *d);

/* Both connections and what is declared once. */
int lp_rabbit_open_links(rabbit_store *d);
void lp_rabbit_close_links(rabbit_store *d, bool politely);

/* What a closed channel or connection means for what was published, held or looked at. Where
 * nothing of these is in use. */
void lp_rabbit_note_losses(rabbit_store *d);

/* In a turn that takes long: read both links, or the broker takes who sends no heartbeat for dead. */
void lp_rabbit_breathe(rabbit_store *d);

/* The queue of a name, made if need be; NULL without memory. Or only if it is known. */
rabbit_queue *lp_rabbit_queue(rabbit_store *d, const char *name);
rabbit_queue *lp_rabbit_find_queue(const rabbit_store *d, const char *name);
/* Have it declared; and what all use. */
int lp_rabbit_use_base(rabbit_store *d);
int lp_rabbit_use_queue(rabbit_store *d, rabbit_queue *q);
/* When what was declared since in.made was set to false has settled: 0: it has. */
int lp_rabbit_settles(rabbit_store *d, lapse_ns *out);
/* Everything is declared anew when it is used next. */
void lp_rabbit_forget_topology(rabbit_store *d);

int64_t lp_rabbit_next_generation(rabbit_store *d);

/* UTC of the scheduler's clock, and back. */
lapse_ns lp_rabbit_utc(const rabbit_store *d, const lp_turn *t, lapse_ns at);
lapse_ns lp_rabbit_scheduler_time(const rabbit_store *d, const lp_turn *t, lapse_ns utc);

/* By what time an order that has come is judged: the broker has waited already, so that of the
 * wall clock and one that no step has moved since the connection was made the later will do. */
lapse_ns lp_rabbit_judge(const rabbit_store *d, const lp_turn *t);

/* -- rabbitmq_publish.c -- */

/* Publish an order to be delivered at `due` and `at`; what it replaces and who asks stand in
 * `sent`. */
int lp_rabbit_send_order(rabbit_store *d, const lp_turn *t, const rabbit_order *o,
                         rabbit_sent sent);
/* When the queues on its way have settled. */
int lp_rabbit_way_settles(rabbit_store *d, const lp_turn *t, const rabbit_order *o, lapse_ns *out);
int lp_rabbit_send_dead(rabbit_store *d, const rabbit_order *o, rabbit_sent sent);

/* Wait for all confirms; jobs are answered, what was replaced is acknowledged. A broker that takes
 * nothing in is not waited for: what it has not confirmed lies in the socket, and will be taken in
 * when it can be. So it is not published again, and what it takes the place of is not either. */
int lp_rabbit_flush(rabbit_store *d);

void lp_rabbit_note_confirm(rabbit_store *d, uint64_t number, bool multiple, bool accepted);
void lp_rabbit_note_returned(rabbit_store *d, uint64_t number);
void lp_rabbit_lose_sent(rabbit_store *d); /* the channel or the connection is gone */

/* Whether the broker is known to take no body of this size; LAPSE_EINVAL, which says so. */
bool lp_rabbit_is_too_large(const rabbit_store *d, size_t body);
int lp_rabbit_refuse_large(const rabbit_store *d, size_t body);

/* Acknowledge what was replaced by what is safe now; when there is more to acknowledge. */
int lp_rabbit_finish_replaced(rabbit_store *d);
lapse_ns lp_rabbit_next_replaced(const rabbit_store *d); /* lp_clock_monotonic */

/* Has this delay a queue of its own? Its number among the fixed, or -1. Counts it. */
int lp_rabbit_fixed(rabbit_store *d, lapse_ns delay);

/* Publish as it stands. */
int lp_rabbit_send_to(rabbit_store *d, const char *exchange, const char *key, const rabbit_order *o,
                      rabbit_sent sent);

/* -- rabbitmq_consume.c -- */

/* What has come: to its queue, or to `looked`. */
void lp_rabbit_take_in(rabbit_store *d, rabbit_message *m);
/* A channel, or the connection, is gone: what was held on it is not held any more. */
void lp_rabbit_lose_held(rabbit_store *d, uint16_t channel);

rabbit_held *lp_rabbit_find_held(rabbit_store *d, int64_t fence);
void lp_rabbit_drop_held(rabbit_store *d, rabbit_held *h);
/* Acknowledge, and free; or only free: the broker has it again. */
int lp_rabbit_finish(rabbit_store *d, rabbit_message *m);
void lp_rabbit_forget_message(rabbit_message *m);

/* End what is held and cannot be published anew, since the broker takes nothing so large any more.
 * `j` NULL: its lease has ended. */
int lp_rabbit_settle_large(rabbit_store *d, const lp_job *j, rabbit_held *h);

/* Publish anew those whose lease has ended, and what is ready too early or for nobody. */
int lp_rabbit_sweep_leases(rabbit_store *d, const lp_turn *t);
int lp_rabbit_sweep_ready(rabbit_store *d, const lp_turn *t);
lapse_ns lp_rabbit_next_lease(const rabbit_store *d); /* scheduler's clock */

/* Have delivered what the wants are for, and claim it. */
int lp_rabbit_claim(rabbit_store *d, lp_turn *t);

/* All that is ready goes back. */
int lp_rabbit_return_ready(rabbit_store *d, const lp_turn *t);

/* -- rabbitmq_ask.c -- */

/* So long is something here that nobody can start, or asked for. */
static const lapse_ns LP_RABBIT_HOLD = LAPSE_MS(250);

/* Of the consumer that a message came to; NULL: a queue that is not known. */
rabbit_queue *lp_rabbit_queue_of(const rabbit_store *d, const char *consumer);
/* It has so many more. */
void lp_rabbit_count_delivered(rabbit_queue *q, const char *consumer, int more);
void lp_rabbit_consumer_gone(rabbit_store *d, const char *consumer);
void lp_rabbit_forget_consumers(rabbit_queue *q); /* the channel is gone */
/* How many may come that have been asked for. */
unsigned lp_rabbit_free_slots(const rabbit_queue *q);

/* Ask for `wanted`, and what else is to be here; or nothing is wanted of any queue. */
int lp_rabbit_ask_for(rabbit_store *d, rabbit_queue *q);
int lp_rabbit_ask_for_less(rabbit_store *d);
bool lp_rabbit_has_surplus(const rabbit_store *d);
/* One that has run ends: how long it took. */
void lp_rabbit_note_pace(const rabbit_held *h);
/* Nobody here can start this one: it goes back, and had better not come here again. */
int lp_rabbit_refuse(rabbit_store *d, rabbit_queue *q, const rabbit_message *m);
/* The one before was refused a moment ago, and nothing is wanted since. */
bool lp_rabbit_is_refused(const rabbit_queue *q, const rabbit_message *m);

/* All that there is. */
int lp_rabbit_get_all(rabbit_store *d, rabbit_queue *q);

/* Nothing more is delivered, and what was on its way is here. */
int lp_rabbit_end_consumers(rabbit_store *d);

/* One was acknowledged; at the end, whether the queues have all that were: 1: for that, something
 * may have come. */
void lp_rabbit_note_ack(rabbit_queue *q);
int lp_rabbit_pass_acks_on(rabbit_store *d);

/* -- rabbitmq_dead.c -- */

void lp_rabbit_list(rabbit_store *d, const lp_turn *t, lp_job *j);
void lp_rabbit_requeue_dead(rabbit_store *d, const lp_turn *t, lp_job *j);
void lp_rabbit_purge(rabbit_store *d, lp_job *j);
int lp_rabbit_trim(rabbit_store *d);
int lp_rabbit_end_walk(rabbit_store *d);
void lp_rabbit_forget_walk(rabbit_store *d); /* the channel is gone */
void lp_rabbit_count_all(rabbit_store *d, lp_job *j);

/* The next of a queue that is looked through, or in a queue of ours that is for good: 1; 0: there is
 * none. Whether it is published anew when the look is over. */
int lp_rabbit_look(rabbit_store *d, const char *queue, rabbit_message **out);
bool lp_rabbit_is_worn(const rabbit_message *m);

/* -- rabbitmq_unrouted.c -- */

/* Orders that fell due for a queue that was not there, and is now. */
int lp_rabbit_bring_back(rabbit_store *d, const lp_turn *t);

/* -- rabbitmq_shop.c: a shop's own delay exchange and work queue -- */

/* 1: the option is none of these. */
int lp_rabbit_read_shop(const lp_url_option *option, rabbit_shop *out);
int lp_rabbit_check_shop(rabbit_shop *shop);
void lp_rabbit_free_shop(rabbit_shop *shop);

/* Whether what the URL names is there; the work queue alone. */
int lp_rabbit_find_shop(rabbit_store *d);
int lp_rabbit_find_work(rabbit_store *d);
/* Nothing can be taken from the work queue now, for what lp_fail has said. */
void lp_rabbit_note_work(rabbit_store *d, rabbit_queue *q);

/* Whether a new order goes to its exchange; have it wait there; what to say when it came back. */
bool lp_rabbit_is_shops(const rabbit_store *d, const rabbit_order *o);
int lp_rabbit_send_to_shop(rabbit_store *d, lapse_ns delay, const rabbit_order *given,
                           rabbit_sent sent);
int lp_rabbit_returned_by_shop(const rabbit_store *d);

/* A message from its work queue becomes an order. */
void lp_rabbit_adopt(rabbit_store *d, rabbit_message *m);

/* -- rabbitmq_turn.c -- */

int lp_rabbit_turn(rabbit_store *d, lp_turn *t);

#endif
