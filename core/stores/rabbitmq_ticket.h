/* rabbitmq_ticket.h - RabbitMQ wakes, another store keeps the orders: only for rabbitmq*.c. */
#ifndef LP_RABBITMQ_TICKET_H
#define LP_RABBITMQ_TICKET_H

#include "stores/durable.h"
#include "stores/rabbitmq_link.h"

/* Open the store that settings->ticket names, and the links that wake. Takes over what is in
 * `settings`, in any case. */
int lp_rabbit_open_ticket(lp_store_config *config, rabbit_settings *settings, lp_durable **out);

/* -- rabbitmq_wake.c: messages that wake -- */

/* A queue for which somebody here waits. */
typedef struct rabbit_bound {
    struct rabbit_bound *next;
    char word[LP_RABBIT_WORD_MAX + 1];
} rabbit_bound;

typedef struct rabbit_waker {
    rabbit_settings settings;
    char prefix[LP_RABBIT_PREFIX_MAX + 8];
    char mailbox[LP_RABBIT_NAME_MAX + 1];
    rabbit_link out, in;
    bool closed;         /* the broker has closed a channel */
    bool is_fresh;       /* since orders were last looked for it was woken, or waits for more */
    int levels;          /* of the ladder that are declared */
    rabbit_bound *bound; /* what the mailbox gets, on this connection */
    char last_key[LP_RABBIT_NAME_MAX + 1]; /* published in this turn */
    lapse_ns retry_at, pause;              /* lp_clock_monotonic */
    char trouble[300];                     /* why nobody is woken; "": somebody is */
} rabbit_waker;

/* Takes the settings over. The broker need not be there. LAPSE_ESYSTEM when it refuses us. */
int lp_rabbit_open_waker(rabbit_waker *w, rabbit_settings *settings);
void lp_rabbit_close_waker(rabbit_waker *w);

/* Connect anew when it is time to try. */
int lp_rabbit_keep_waker(rabbit_waker *w);
bool lp_rabbit_can_wake(const rabbit_waker *w);

/* Be woken for a queue; NULL: for any. */
void lp_rabbit_wait_for(rabbit_waker *w, const char *queue);

/* Wake those who wait for a queue (NULL: all who wait) after `delay`. What cannot be sent at once
 * is not sent. `now` is the scheduler's clock, `o` goes with it. */
void lp_rabbit_wake(rabbit_waker *w, const char *queue, lapse_ns delay, const rabbit_order *o);

/* Read what has come, and send heartbeats. */
void lp_rabbit_read_wakes(rabbit_waker *w);

#endif
