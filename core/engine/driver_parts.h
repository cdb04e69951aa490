/* driver_parts.h - the driver from inside: only for engine/driver*.c.
 *
 *     driver.c         the thread: when, and what it sleeps on
 *     driver_turn.c    a turn: plan, store, answers, failure
 *     driver_want.c    for whom orders are claimed, and who gets them
 *     driver_answer.c  what the store has answered to each job
 *     driver_loan.c    what was claimed: ready, started, renewed, given back
 *     driver_queue.c   the queues that are known
 *     driver_call.c    what a thread asks, and waits for
 *     driver_claim.c   claims that callbacks and takers hold, and their end
 *     driver_look.c    copies of orders, and counts
 *     driver_store.c   the table of functions, and what a host's loop waits for
 *
 * The first six run on the driver's thread, but for what they do for the others. All is under
 * the lock but where it says otherwise. */
#ifndef LP_DRIVER_PARTS_H
#define LP_DRIVER_PARTS_H

#include "engine/driver.h"

enum { LP_DRIVER_TURN_JOBS = 512 }; /* requests of one turn */

/* What only a driver is asked. */
enum { LP_TAKE = LP_QUEUES + 1 }; /* `queue`, NULL: any: an order without a callback */

/* Where a call stands between its caller and the driver: who moves it on from WAITING owns
 * what follows. */
enum { CALL_WAITING, CALL_ANSWERED, CALL_ABANDONED };

/* Whose a job is. */
enum { KIND_CALL, KIND_SETTLEMENT, KIND_RENEWAL };

static inline lp_driver *lp_driver_of(lp_store *store)
{
    return (lp_driver *)store;
}

static inline lapse_ns lp_earlier(lapse_ns a, lapse_ns b)
{
    return a < b ? a : b;
}

/* -- driver.c -- */

/* Have a job answered; before all that was asked for: it shall find the order pending. */
void lp_driver_post(lp_driver *d, lp_job *job);
void lp_driver_post_first(lp_driver *d, lp_job *job);

/* -- driver_turn.c -- */

/* False without memory. */
bool lp_driver_plan_turn(lp_driver *d, lapse_ns now);

/* What was planned; drops the lock meanwhile. */
void lp_driver_take_turn(lp_driver *d, lapse_ns now);

/* How long until something that the store refused or put off is asked again; real time. */
lapse_ns lp_driver_retry_wait(const lp_driver *d);

/* Of a store that does all it is asked, but late. */
void lp_driver_note_trouble(lp_driver *d);

/* -- driver_want.c -- */

/* How many orders could start a callback at once. */
unsigned lp_driver_push_demand(const lp_driver *d);

static inline bool lp_driver_handles(const lp_queue *q)
{
    return q->handler && !q->paused;
}

/* Room for what so many queues can lead to; false without memory. And plan it. */
bool lp_driver_make_want_room(lp_plan *p, size_t queues);
void lp_driver_plan_wants(lp_driver *d, lapse_ns now);

/* Hand over what a turn has claimed. */
void lp_driver_serve_wants(lp_driver *d, lp_loan *loans, lapse_ns now);

/* Takers: one more; those of a stopped scheduler get nothing; polls get `code` at once. */
void lp_driver_add_take(lp_driver *d, lp_call *c);
void lp_driver_refuse_takes(lp_driver *d);
void lp_driver_answer_polls(lp_driver *d, int code);

/* -- driver_answer.c -- */

/* A call's answer stands; its caller is woken by the other, which drops the lock. */
void lp_driver_answer(lp_driver *d, lp_call *c);
void lp_driver_wake_callers(lp_driver *d);

/* A job was answered; its whole turn failed. It may be gone afterwards. */
void lp_driver_end_job(lp_driver *d, lp_job *job, lapse_ns now);
void lp_driver_fail_job(lp_driver *d, lp_job *job, int code, lapse_ns now);

/* -- driver_loan.c -- */

/* Whose settlement or renewal this is. */
lp_loan *lp_driver_loan_of(lp_job *job);

/* Forget a loan; frees it unless a job of it is still with the store. And one whose job was
 * answered, or will not be: frees it if it was forgotten. */
void lp_driver_drop(lp_loan *l);
void lp_driver_release(lp_loan *l);

/* Out of `ready`, to its end, back to its head; into and out of `started`. */
void lp_driver_remove_ready(lp_driver *d, lp_loan *l);
void lp_driver_append_ready(lp_driver *d, lp_loan *l);
void lp_driver_restore_ready(lp_driver *d, lp_loan *l);
void lp_driver_start(lp_driver *d, lp_loan *l);
void lp_driver_unstart(lp_driver *d, lp_loan *l);

/* A claim that has not started goes back to the store, untried. So do all that nobody starts;
 * and when the next of them is to. */
void lp_driver_give_back(lp_driver *d, lp_loan *l);
void lp_driver_give_back_idle(lp_driver *d, lapse_ns now);
lapse_ns lp_driver_next_give_back(const lp_driver *d);

/* A lease begins, as of the last turn; when the first is to be renewed; those that are; and
 * what became of one. */
void lp_driver_note_lease(const lp_driver *d, lp_loan *l);
lapse_ns lp_driver_next_renewal(const lp_driver *d);
void lp_driver_plan_renewals(lp_driver *d, lapse_ns now);
void lp_driver_end_renewal(lp_driver *d, lp_loan *l, lapse_ns now);
void lp_driver_fail_renewal(lp_driver *d, lp_loan *l, lapse_ns now);

/* What a settlement or renewal owns. And of settlements that will not be asked any more, all. */
void lp_driver_free_texts(lp_job *job);
void lp_driver_let_go(lp_job *settlements);

/* -- driver_queue.c -- */

/* The queue of a name, or NULL; made if need be, or NULL without memory. */
lp_queue *lp_driver_find_queue(const lp_driver *d, const char *name);
lp_queue *lp_driver_queue(lp_driver *d, const char *name);
void lp_driver_free_queues(lp_driver *d);

/* -- driver_call.c -- */

/* A call with so many bytes behind it, and room for `infos`; NULL without memory. */
lp_call *lp_driver_new_call(int op, size_t bytes, int infos);

/* Post it (NULL: there was no memory) and wait. NULL when the answer did not come: `*code`
 * says so; else it is the answer. Drops the lock meanwhile. */
lp_call *lp_driver_ask(lapse *s, lp_call *c, int *code);

/* Post all, then wait for all: they share a turn. Drops the lock meanwhile. */
void lp_driver_ask_all(lapse *s, lp_request *requests, size_t count, lapse_ns now);

/* No call waits longer for the store; the error that it has. */
lapse_ns lp_driver_time_limit(const lapse *s);
int lp_driver_unsure(lapse_ns limit);

/* -- driver_claim.c -- */

/* Make a claim of a loan; the next that is ready and due by `until` starts: LP_CLAIM_... */
void lp_driver_fill_claim(lp_claim *c, lp_loan *l, lp_queue *q);
int lp_driver_start_ready(lp_driver *d, lapse_ns until, lapse_ns now, lp_claim *c);

/* An order that a callback or taker held ends, waits again, or dies; its lease here has ended.
 * The first drops the lock if it waits. */
void lp_driver_end_claim(lapse *s, lp_request *r, lapse_ns now);
void lp_driver_lose_claim(lapse *s, lp_request *r, lapse_ns now);

/* -- driver_look.c: as in lp_store_ops; drop the lock meanwhile -- */

int lp_driver_list(lp_store *store, uint64_t *cursor, unsigned states, lapse_info *out, int max,
                   lapse_ns now);
int lp_driver_count(lp_store *store, lp_counts *out);
int lp_driver_count_queue(lp_store *store, lp_queue *q, lp_counts *out);

/* -- driver_store.c -- */

extern const lp_store_ops lp_driver_store;

#endif
