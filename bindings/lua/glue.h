/* glue.h - what the files of the Lua binding share.
 *
 * Rules that hold in all of them:
 *
 * - Nothing outlives a call except in userdata, upvalues and metatables: two Lua states
 *   in one process know nothing of each other. No lua_State is ever kept.
 * - C hands out due orders, Lua calls the callbacks (lua/lapse/loop.lua). The library
 *   never enters Lua by itself: a visitor does so in a protected call, `release`, the hooks
 *   and the finalizers not at all.
 * - Where Lua allocates it may raise, and the call jumps away. Before that nothing is
 *   held that would be lost; once the library changed something, what still allocates
 *   runs in a protected call, and its failure is undone before it is passed on.
 * - A scheduler is used by the one thread that runs its Lua state. */
#ifndef LAPSE_LUA_GLUE_H
#define LAPSE_LUA_GLUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "compat.h"
#include "lapse.h"
#include "slots.h"

/* Upvalues of every function of the module. */
enum {
    UP_SCHEDULER = 1, /* metatable of schedulers */
    UP_ORDER,         /* metatable of orders that callbacks are shown */
    UP_CLAIM,         /* metatable of orders that were taken */
    UP_CLOCK,         /* metatable of manual clocks */
    UP_VERDICT,       /* metatable of what retry and reject return */
    UP_TIE,           /* metatable of ties to a request of nginx */
    UP_OFFER,         /* glue_offer as a function */
    UP_TELLER,        /* {function that tells the hooks, the module's table}, set in Lua */
    UP_LAST,          /* glue_last; nil where UP_DEFAULT is not */
    UP_DEFAULT,       /* {scheduler}, which then is the first argument; else nil */
    UP_COUNT = UP_DEFAULT
};

/* -- scheduler.c -- */

/* Where a scheduler's own table keeps what is not a callback. */
enum { OWN_SCHEDULER = 0, OWN_ON_ERROR = -1, OWN_ON_DEAD = -2, OWN_LOG = -3, OWN_HANDLERS = -4 };

/* A callback that is running: between lapse_begin and lapse_settle. */
typedef struct run {
    int64_t fence;  /* 0: the pass at this depth has run nothing yet */
    lapse_ns until; /* where the pass at this depth ends; not of one that runs apart */
    bool overran;   /* it has lost its order, by its run_limit */
} run;

typedef struct scheduler {
    lapse *lapse;            /* NULL once closed */
    struct clock_box *clock; /* NULL: the real one */
    slots slots;
    run *runs; /* [0, depth) are running, innermost last; or they run apart, in any order */
    uint32_t depth, run_room;
    const lapse_order *offered; /* arguments of glue_offer */
    void *offered_arg;
    const lapse_info *shown; /* arguments of protected calls that copy it */
    const char *text;
    uint32_t kept;   /* number of a callback that is anchored without an order; 0: none */
    bool unfinished; /* after a call by way of fast.c: call glue_finish */
    bool handles;    /* there is a table of handlers */
    bool wants_dead, wants_log;
    struct event *first_event, *last_event; /* what the hooks are to be told */
    uint32_t event_count, to_tell;
    uint64_t untold; /* events that there was no memory for */
    bool telling;
    bool durable; /* its orders outlive the process, and name handlers */
    bool over;    /* run has returned after stop */
    bool hosted;  /* by nginx: a child that is forked has no use for it */
    bool submits; /* its calls do not wait, and return tickets: ask.c */
    int64_t tickets;
    lua_Integer wanted;         /* as lapse_want was told; 0: nothing yet */
    const lapse_answer *answer; /* argument of a protected call that copies it */
    struct relay *relay;        /* relay.c; NULL: none */
    struct aside *aside;        /* aside.c; NULL: none */
    struct opener *opener;      /* opener.c; NULL: it is open, or closed */
} scheduler;

/* The scheduler that was used last, which needs no second look at its metatable. */
typedef struct glue_last {
    struct scheduler *scheduler; /* NULL: none, or it was collected */
} glue_last;

/* The scheduler that a call is about, at index 1. Raises for anything else. */
scheduler *glue_self(lua_State *L);

/* The same, for a call that a stopped scheduler refuses: a default scheduler whose run is over
 * is replaced by a new one, which has its hooks, handlers and pauses. */
scheduler *glue_self_anew(lua_State *L);

/* Raise if the first argument is the module: it has functions, not methods. */
void glue_check_dot(lua_State *L);

/* Push the default scheduler, which is made when first asked for, and again after close. */
void glue_push_default(lua_State *L);

/* In the child of a fork: make the scheduler at index 1 an empty one. True: the call that
 * answered LAPSE_EFORKED is to be made again. */
bool glue_revive(lua_State *L, scheduler *s);

/* Make a call, once more if it turned out to be the first one in a child. */
#define GLUE_CALL(L, s, result, call)                                                              \
    do                                                                                             \
        (result) = (call);                                                                         \
    while ((result) == LAPSE_EFORKED && glue_revive(L, s))

/* Have room for one more run; false without memory. */
bool glue_reserve_run(scheduler *s);

/* End what runs at `depth` and above as not finished. */
void glue_unwind(scheduler *s, uint32_t depth, lapse_verdict verdict, const char *why);

/* The end of a call into the library, with its results on the stack: let go of callbacks,
 * tell the hooks. Returns `results`. Raises nothing; the hooks may close the scheduler. */
int glue_finish(lua_State *L, scheduler *s, int results);

/* Let the interpreter see the signal that interrupted a wait; raises if it says so. */
void glue_after_signal(lua_State *L);

/* What is left of a time limit that began at `start`, by the same clock. */
lapse_ns glue_real_now(void);
lapse_ns glue_left(lapse_ns timeout, lapse_ns start);

extern const luaL_Reg glue_scheduler_functions[]; /* without a scheduler: new */
extern const luaL_Reg glue_default_functions[];   /* for the default scheduler */
extern const luaL_Reg glue_scheduler_methods[];
extern const luaL_Reg glue_pass_methods[]; /* of schedulers, for the loop in Lua */
extern const luaL_Reg glue_scheduler_meta[];

/* -- hooks.c -- */

/* Let the options' hooks make events of what they are told. */
void glue_listen(scheduler *s, lapse_options *options);
void glue_forget_events(scheduler *s);

static inline bool glue_has_news(const scheduler *s)
{
    return s->first_event || s->untold;
}

extern const luaL_Reg glue_default_hook_functions[];
extern const luaL_Reg glue_hook_methods[]; /* of schedulers */
extern const luaL_Reg glue_tell_methods[]; /* of schedulers, for the loop in Lua */

/* -- handle.c -- */

/* If the function at `callback` handles the queue that `spec` names, which stands at index
 * `queue`, or one queue and `spec` names none: make `spec` one for that handler. Returns 1 if
 * it did, and leaves the name on the stack; 0 if the function is a callback; -1 if it handles
 * several queues. Allocates nothing. */
int glue_name_handler(lua_State *L, const scheduler *s, int callback, int queue, lapse_spec *spec);

/* In the child of a fork: register the handlers anew. */
void glue_restore_handlers(lua_State *L, scheduler *s);

/* Let go of them. Allocates nothing. */
void glue_forget_handlers(lua_State *L, scheduler *s);

extern const luaL_Reg glue_default_handle_functions[];
extern const luaL_Reg glue_handle_methods[]; /* of schedulers */

/* -- dead.c -- */

extern const luaL_Reg glue_dead_methods[]; /* of schedulers */

/* -- schedule.c -- */

/* An order that says no more than its id. Every field is named: compilers clear all of it first
 * if one is not, which costs more. */
static inline lapse_spec glue_spec(const char *id, size_t id_len)
{
    return (lapse_spec){
        .id = id,
        .id_len = id_len,
        .queue = NULL,
        .delay = 0,
        .at = 0,
        .payload = NULL,
        .payload_len = 0,
        .fn = NULL,
        .arg = NULL,
        .release = NULL,
        .flags = 0,
    };
}

/* Marks an order whose callback is a Lua function, which only the loop in Lua calls. */
lapse_verdict glue_call_in_lua(const lapse_order *order, void *arg);

extern const luaL_Reg glue_default_schedule_functions[];
extern const luaL_Reg glue_schedule_methods[]; /* of schedulers */

/* -- look.c -- */

extern const luaL_Reg glue_default_look_functions[];
extern const luaL_Reg glue_look_methods[]; /* of schedulers */

/* -- ask.c -- */

/* Submit what a waiting call would ask: a ticket, or an error. */
int64_t glue_submit(scheduler *s, lapse_ask *ask);
int64_t glue_submit_put(scheduler *s, const lapse_spec *spec);

/* The same as the results of a method. */
int glue_submit_named(lua_State *L, scheduler *s, lapse_ask ask);

int64_t glue_new_ticket(scheduler *s);

extern const luaL_Reg glue_ask_methods[]; /* of schedulers, for the loop in Lua */

/* -- aside.c -- */

typedef struct aside aside;

void glue_close_aside(scheduler *s);

/* -- opener.c -- */

typedef struct opener opener;

/* Open the store on a thread: 0, or an errno. */
int glue_start_opener(scheduler *s, const char *url, const lapse_options *options);
void glue_close_opener(scheduler *s);

extern const luaL_Reg glue_opener_methods[]; /* of schedulers, for the loop in Lua */

/* -- relay.c -- */

/* Open it, and push where to connect to, as nginx names it: 1; or nil, message, code: 3. */
int glue_push_relay(lua_State *L, scheduler *s);

/* The scheduler is open: from now on its descriptor is watched. */
void glue_relay_watches(scheduler *s);

typedef struct relay relay;

/* Have the driver in Lua look at once; from any thread. */
void glue_ring(scheduler *s);

void glue_close_relay(scheduler *s);

extern const luaL_Reg glue_relay_methods[]; /* of schedulers, for the loop in Lua */

/* -- fast.c -- */

extern const luaL_Reg glue_fast_methods[]; /* of schedulers, for the loop in Lua */

/* -- order.c -- */

int glue_offer(lua_State *L);

extern const luaL_Reg glue_run_methods[];  /* of schedulers, for the loop in Lua */
extern const luaL_Reg glue_pull_methods[]; /* of schedulers */
extern const luaL_Reg glue_order_meta[];
extern const luaL_Reg glue_order_methods[];
extern const luaL_Reg glue_claim_meta[];
extern const luaL_Reg glue_claim_methods[]; /* besides those of orders */

/* Fill the table on the stack top with the fields of an order. */
void glue_add_order_fields(lua_State *L);

/* The __index of orders; its one upvalue is the table of fields and methods. */
int glue_order_index(lua_State *L);

/* -- tie.c -- */

extern const luaL_Reg glue_tie_functions[]; /* without a scheduler: tie */
extern const luaL_Reg glue_tie_methods[];
extern const luaL_Reg glue_tie_meta[];

/* -- verdict.c -- */

extern const luaL_Reg glue_verdict_functions[]; /* without a scheduler: retry, reject */

/* -- clock.c -- */

extern const luaL_Reg glue_clock_functions[]; /* manual_clock */
extern const luaL_Reg glue_clock_methods[];
extern const luaL_Reg glue_clock_meta[];

/* The clock at `index`, shared until glue_clock_leave. */
struct clock_box *glue_clock_share(lua_State *L, int index);
lapse_clock *glue_clock_of(const struct clock_box *box);
void glue_clock_leave(struct clock_box *box); /* NULL is allowed */

/* -- convert.c -- */

/* Raise an error that begins with the place of the call and the name of the function. */
int glue_misuse(lua_State *L, const char *format, ...);

/* The results of a call that failed: nil, what went wrong, the name of the code. Raises
 * for a code that only a wrong argument causes. */
int glue_failure(lua_State *L, int64_t code);
int glue_condition(lua_State *L, int code, const char *message);
int glue_closed(lua_State *L);
int glue_unknown(lua_State *L);
int glue_no_memory(lua_State *L);
int glue_refused(lua_State *L, const char *what, int number); /* by the system: its errno */

/* true; or false and why not: the results of cancel and reschedule. */
int glue_push_fate(lua_State *L, int fate);

/* Whether `index` holds an object with the metatable in this upvalue. */
bool glue_is(lua_State *L, int index, int upvalue);

/* What stands at `index`. They raise for what it cannot be; `what` names it. */
const char *glue_check_id(lua_State *L, int index, size_t *len); /* what the library checks */
bool glue_read_id(lua_State *L, int index, const char **id);     /* false: no such id can be */
const char *glue_check_queue(lua_State *L, int index);           /* nil: NULL */
const char *glue_check_text(lua_State *L, int index, const char *what); /* nil: NULL */
lapse_ns glue_check_seconds(lua_State *L, int index, const char *what); /* below 0: 0 */
lapse_ns glue_check_span(lua_State *L, int index, const char *what);    /* below 0: raises */
lapse_ns glue_check_timeout(lua_State *L, int index);                   /* nil: LAPSE_FOREVER */
lapse_ns glue_check_instant(lua_State *L, int index, const char *what); /* never 0 */
int64_t glue_check_generation(lua_State *L, int index);                 /* nil: LAPSE_ANY */
uint64_t glue_check_count(lua_State *L, int index, const char *what, uint64_t most);
void glue_check_callback(lua_State *L, int index, const char *what);

/* Raise unless every key of the table at `index` is one of `names`. */
void glue_check_keys(lua_State *L, int index, const char *what, const char *const *names);

void glue_push_seconds(lua_State *L, lapse_ns ns);

/* In decimal: what Lua makes of a large number loses digits. A key is `id:generation`. */
void glue_push_decimal(lua_State *L, int64_t number);
void glue_push_key(lua_State *L, const char *id, int64_t generation);

void glue_push_info(lua_State *L, const lapse_info *info);
void glue_push_deaths(lua_State *L, const uint64_t *dead_by); /* a table by reason */

/* Words for the values of an enum; the last one has no name. */
typedef struct glue_name {
    const char *name;
    int value;
} glue_name;
extern const glue_name glue_states[];

/* Raises for what is none of them, and lists them. */
int glue_check_name(lua_State *L, int index, const char *what, const glue_name *names);
const char *glue_name_of(const glue_name *names, int value); /* NULL: it has none */

#endif
