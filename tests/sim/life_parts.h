/* life_parts.h - a life from inside: only for sim/life*.c. */
#ifndef LAPSE_TESTS_LIFE_PARTS_H
#define LAPSE_TESTS_LIFE_PARTS_H

#include "sim/story.h"
#include "sim/twin.h"
#include "support/support.h"

enum { MANY = 40, FEW = 6, DEPTH = 3, LONG = 300, STEPS = 26 };

struct life {
    lapse *s;
    lapse_clock *clock;
    rng luck;
    lapse_ns start;
    lapse_ns unit; /* most times of this life are a few of these */
    int ids, queues;
    unsigned rate; /* of all handlers, or 0: each has its own */
    int weight[STEPS], weights;
    int fd;          /* lapse_fd, or -1 when this host does not poll it */
    unsigned inside; /* callbacks on the stack */
    /* What is being scheduled at once, for hooks that are told of it meanwhile. */
    const int64_t *many;
    int many_first, many_count;
};

extern struct life life;

/* -- life.c -- */

void step_inside(void);

/* -- life_luck.c -- */

int roll(int sides);
bool one_in(int n);
lapse_ns units(int least, int most);
int any_id(void);
int any_queue(void);
const char *say_queue(int queue);
lapse_ns any_delay(void);
int64_t any_generation(int id);
const char *any_error(void);
bool is_full_up(void);

/* -- life_hooks.c -- */

void release_default(void *arg);
void release_own(void *arg);
void release_handler(void *arg);
void check_same_bytes(const twin_claim *c);
lapse_verdict run_own(const lapse_order *order, void *arg);
lapse_verdict run_handler(const lapse_order *order, void *arg);
void on_error(void *hook_arg, const lapse_order *order, const char *error);
void on_dead(void *hook_arg, const lapse_info *dead);
void on_log(void *hook_arg, lapse_level level, const char *message);

/* -- life_change.c -- */

void do_put(void);
void do_schedule(void);
void do_many(void);
void check_answer(int64_t expected, int64_t got);
void do_cancel(void);
void do_reschedule(void);
void requeue(int id, int64_t generation, lapse_ns delay);
void do_requeue(void);
void do_purge(void);
void do_handle(void);
void do_pause(void);

/* -- life_consume.c -- */

bool is_readable(void);
void do_process(void);
void do_begin(void);
void do_take(void);
void do_wait(void);
void settle(int claim, lapse_verdict verdict);
void do_settle(void);
void do_settle_again(void);
void do_settle_nonsense(void);
void do_renew(void);
void do_holds(void);
void do_forget(void);

/* -- life_look.c -- */

void pass_time(lapse_ns by);
void do_advance(void);
void do_set_wall(void);
void look_at_all(unsigned states);
void do_each(void);
void do_metrics(void);
void look_at_queue(int queue);
void check_step(void);

#endif
