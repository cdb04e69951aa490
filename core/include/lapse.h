/* lapse.h - run a callback when an order's time is up, unless it was cancelled.
 *
 *     lapse *s;
 *     lapse_open("memory:", NULL, &s);
 *     lapse_schedule(s, "OID00000010", LAPSE_MINUTES(30), close_unpaid, shop);
 *     lapse_start(s, 1);                            // or lapse_run, lapse_process
 *     ...
 *     lapse_cancel(s, "OID00000010", LAPSE_ANY);    // the order was paid
 *     ...
 *     lapse_close(s, LAPSE_SECONDS(10));
 *
 * This header is the manual. What holds for every function:
 *
 * Results.   A function that can fail returns 0 or more on success and one of the
 *            negative LAPSE_E... codes on failure; lapse_error_detail() then holds a
 *            sentence with the value that was wrong and what to do about it. On
 *            failure nothing was changed.
 * Time.      Every time is a lapse_ns: int64_t nanoseconds. Delays count from the
 *            call, on CLOCK_BOOTTIME: the machine's sleep counts, steps of the wall
 *            clock do not. Calendar instants are nanoseconds since 1970-01-01 UTC.
 *            Below 0 means 0; above LAPSE_DELAY_MAX is LAPSE_ERANGE. Rounding is up:
 *            nothing is early. The `timeout` of a waiting call always counts real
 *            time, also under a manual clock; LAPSE_FOREVER waits without a limit.
 * Ids.       1 to LAPSE_ID_MAX bytes without NUL, compared byte for byte. Calls take
 *            a NUL-terminated string; lapse_put also takes a length.
 * Ownership. What is given is copied before the call returns; only `fn` and `arg` are
 *            kept. What a callback is shown belongs to it until it returns.
 * Threads.   Every function may be called from any thread, and from callbacks unless
 *            it says otherwise. No lock is held while user code runs.
 * Fork.      In a child process every call on an inherited scheduler answers
 *            LAPSE_EFORKED until lapse_after_fork(); lapse_close() only forgets it.
 */
#ifndef LAPSE_H
#define LAPSE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The version, written here only: the build, the bindings and the packages read it. */
#define LAPSE_VERSION_MAJOR 0
#define LAPSE_VERSION_MINOR 1
#define LAPSE_VERSION_PATCH 0

#if defined(LAPSE_STATIC)
#define LAPSE_API
#else
#define LAPSE_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* -- Time ------------------------------------------------------------------------ */

/* Nanoseconds: a duration, an instant of the scheduler's clock, or a UTC instant. */
typedef int64_t lapse_ns;

/* `n` units, at the ends of the range instead of wrapped when it does not fit. `n` is an
 * integer that fits int64_t (1.5 does not compile: write LAPSE_MS(1500)) and is evaluated more
 * than once. Constant expressions when `n` is one. */
#define LAPSE_UNITS(n, unit)                                                                       \
    ((lapse_ns)((n) | 0) > INT64_MAX / (unit)   ? INT64_MAX                                        \
     : (lapse_ns)((n) | 0) < INT64_MIN / (unit) ? INT64_MIN                                        \
                                                : (lapse_ns)(n) * (unit))
#define LAPSE_US(n) LAPSE_UNITS(n, INT64_C(1000))
#define LAPSE_MS(n) LAPSE_UNITS(n, INT64_C(1000000))
#define LAPSE_SECONDS(n) LAPSE_UNITS(n, INT64_C(1000000000))
#define LAPSE_MINUTES(n) LAPSE_UNITS(n, INT64_C(60000000000))
#define LAPSE_HOURS(n) LAPSE_UNITS(n, INT64_C(3600000000000))
#define LAPSE_DAYS(n) LAPSE_UNITS(n, INT64_C(86400000000000))

#define LAPSE_DELAY_MAX LAPSE_DAYS(36525) /* the longest delay: 100 years */
#define LAPSE_FOREVER INT64_MAX           /* as a timeout: no limit */

/* Turn seconds into nanoseconds, rounded up; what is below 0 becomes 0. LAPSE_ERANGE
 * for NaN, the infinities and more than 100 years. Both bindings use it. */
LAPSE_API int lapse_ns_from_seconds(double seconds, lapse_ns *out);

/* -- Errors ---------------------------------------------------------------------- */

/* code, number, name of the exception in Python and of the code in Lua, text. */
#define LAPSE_ERROR_MAP(X)                                                                         \
    X(LAPSE_EINVAL, -1, "Invalid", "an argument is not valid")                                     \
    X(LAPSE_ERANGE, -2, "Range", "a time is NaN, infinite, or more than 100 years away")           \
    X(LAPSE_EID, -3, "BadId", "an order id is 1 to 255 bytes without NUL")                         \
    X(LAPSE_EEXISTS, -4, "Exists", "an order with this id is already pending")                     \
    X(LAPSE_EFULL, -5, "Full", "max_pending orders are pending")                                   \
    X(LAPSE_ECLOSED, -6, "Closed", "the scheduler has been stopped")                               \
    X(LAPSE_EFORKED, -7, "Forked", "the scheduler was opened before fork()")                       \
    X(LAPSE_EINCALLBACK, -8, "InCallback", "not allowed inside a callback")                        \
    X(LAPSE_ETIMEOUT, -9, "Timeout", "the time limit passed first")                                \
    X(LAPSE_ESTALE, -10, "Stale", "the claim is no longer held")                                   \
    X(LAPSE_EUNKNOWN, -11, "Unknown", "no such order")                                             \
    X(LAPSE_EURL, -12, "BadUrl", "the store URL is not valid")                                     \
    X(LAPSE_ESTORE, -13, "NoStore", "this build has no such store")                                \
    X(LAPSE_EUNSUPPORTED, -14, "Unsupported", "the store cannot do this")                          \
    X(LAPSE_EMIXED, -15, "Mixed", "a queue is either handled or taken from, not both")             \
    X(LAPSE_EINTR, -16, "Interrupted", "a signal interrupted the wait")                            \
    X(LAPSE_EUNSURE, -17, "Unsure", "the answer was lost; whether it was done is not known")       \
    X(LAPSE_ENOMEM, -18, "NoMemory", "out of memory")                                              \
    X(LAPSE_ESYSTEM, -19, "System", "the operating system refused")                                \
    X(LAPSE_EOFFLINE, -20, "Offline", "the store cannot be reached")                               \
    X(LAPSE_EDATA, -21, "BadStore", "what is stored is not what this version can use")

typedef enum lapse_error {
    LAPSE_OK = 0,
#define LAPSE_ERROR_ENUM(code, number, name, text) code = (number),
    LAPSE_ERROR_MAP(LAPSE_ERROR_ENUM)
#undef LAPSE_ERROR_ENUM
} lapse_error;

/* The fixed text of a code; never NULL, also for codes that do not exist. */
LAPSE_API const char *lapse_strerror(int code);

/* The short name of a code ("Exists"), as the bindings use it; NULL for no code. */
LAPSE_API const char *lapse_error_name(int code);

/* What exactly went wrong in the last failed call of this thread, with the value and
 * what to do. Valid until the next call of this thread. Never holds a password. */
LAPSE_API const char *lapse_error_detail(void);

/* "0.1.0": the version of the library that is running. */
LAPSE_API const char *lapse_version(void);

/* -- Orders ---------------------------------------------------------------------- */

#define LAPSE_ID_MAX 255              /* bytes in an order id or a queue's name */
#define LAPSE_PAYLOAD_MAX (16u << 20) /* bytes in a payload */
#define LAPSE_ANY 0                   /* as a generation: whichever is current */

typedef struct lapse lapse;
struct lapse_info;

/* An order whose time is up, as its callback (or taker) sees it. `id` and `queue` are
 * NUL-terminated. Everything in it lives until the callback returns or the order is
 * settled. */
typedef struct lapse_order {
    const char *id;
    size_t id_len;
    const char *queue;
    const void *payload; /* NULL when there is none */
    size_t payload_len;
    lapse_ns due;       /* UTC instant it was due */
    lapse_ns late;      /* how long after `due` it started; never negative */
    int64_t fence;      /* grows with every claim: guards the callback's own write */
    int64_t generation; /* what lapse_schedule returned for it */
    int attempt;        /* 1 on the first delivery */
} lapse_order;

/* What a callback says about its order. */
typedef enum lapse_verdict {
    LAPSE_DONE = 0,  /* finished */
    LAPSE_RETRY,     /* asks to run again; see lapse_retry */
    LAPSE_REJECT,    /* hopeless: to the dead letters; see lapse_reject */
    LAPSE_FAIL,      /* failed: to on_error, then again or done as the policy says */
    LAPSE_GIVE_BACK, /* not tried: pending again with its due time, the attempt does not
                        count. A callback's starts in a later pass */
} lapse_verdict;

/* Runs when the order's time is up. Called without locks, on a thread that is inside
 * lapse_process or lapse_run or that lapse_start made. */
typedef lapse_verdict (*lapse_callback)(const lapse_order *order, void *arg);

/* Called once for every order that was accepted with `arg`: when its callback has
 * returned, or can no longer start. A dead letter can start again: its `arg` is released
 * when it is purged or dropped. Called without locks, on any thread that uses the
 * scheduler, before the call that caused it returns. */
typedef void (*lapse_release)(void *arg);

/* For a callback: `return lapse_retry(order, LAPSE_SECONDS(5), "no route")` asks for
 * another attempt after `delay` (below 0: 0; above the maximum: the maximum). `error`
 * may be NULL; it is copied. */
LAPSE_API lapse_verdict lapse_retry(const lapse_order *order, lapse_ns delay, const char *error);

/* For a callback: `return lapse_reject(order, "no such order")` sends the order to the
 * dead letters with this reason, which is copied and may be NULL. */
LAPSE_API lapse_verdict lapse_reject(const lapse_order *order, const char *reason);

/* For a callback: `return lapse_fail(order, strerror(errno))` reports an error. */
LAPSE_API lapse_verdict lapse_fail(const lapse_order *order, const char *error);

/* -- The clock ------------------------------------------------------------------- */

/* A clock that stands still until it is advanced: for tests with invented time. One
 * clock may serve several schedulers. */
typedef struct lapse_clock lapse_clock;

/* `start`: the first reading in nanoseconds of uptime, 0 to LAPSE_DELAY_MAX, else
 * LAPSE_ERANGE. Its wall clock starts at 2026-01-01 00:00 UTC. */
LAPSE_API int lapse_clock_manual(lapse_ns start, lapse_clock **out);

/* Move the clock forward, and its wall clock with it; wakes those who wait for what
 * falls due. LAPSE_ERANGE below 0 or past the end of time. Runs no callback. */
LAPSE_API int lapse_clock_advance(lapse_clock *clock, lapse_ns by);

/* Step the wall clock to a UTC instant, forward or back. */
LAPSE_API int lapse_clock_set_wall(lapse_clock *clock, lapse_ns utc);

/* The clock's reading. */
LAPSE_API lapse_ns lapse_clock_now(const lapse_clock *clock);

/* Free it, after every scheduler that uses it was closed. NULL is allowed. */
LAPSE_API void lapse_clock_free(lapse_clock *clock);

/* -- Opening and closing --------------------------------------------------------- */

typedef enum lapse_overflow {
    LAPSE_REFUSE = 0,         /* a schedule beyond max_pending answers LAPSE_EFULL */
    LAPSE_DEAD_LETTER_OLDEST, /* the order that was scheduled, rescheduled or retried longest
                                 ago goes to the dead letters */
} lapse_overflow;

typedef enum lapse_level { LAPSE_DEBUG, LAPSE_INFO, LAPSE_WARNING, LAPSE_ERROR } lapse_level;

/* All zero is a good default. Hooks are called without locks, on the thread on which
 * the thing happened, and may call the library. */
typedef struct lapse_options {
    lapse_clock *clock;      /* NULL: the real clock */
    uint64_t max_pending;    /* pending and running orders at most; 0: no limit */
    lapse_overflow overflow; /* what happens beyond it */
    lapse_ns keep;           /* how long cancel and get remember a finished order */
    uint64_t max_dead;       /* dead letters kept; 0: 10 000. The oldest are dropped */
    lapse_ns lease;          /* how long a claim lasts without being renewed; 0: 30 s */
    lapse_ns stuck_after;    /* a callback running longer is named in the log; 0: 1 min */
    lapse_release release;   /* for orders that bring none of their own */
    void *hook_arg;          /* first argument of the hooks below */
    /* An order's callback failed; `error` is what it said, clipped to 1000 bytes. */
    void (*on_error)(void *hook_arg, const lapse_order *order, const char *error);
    /* An order became a dead letter; what `dead` holds lives until the hook returns. Not
     * told of one for which there was no memory to copy it: it is listed all the same. On a
     * durable store it is told when that is decided, before the store has answered. */
    void (*on_dead)(void *hook_arg, const struct lapse_info *dead);
    void (*log)(void *hook_arg, lapse_level level, const char *message);
} lapse_options;

/* Open the store at `url`; NULL means "memory:".
 *
 *   memory:?engine=wheel&tick=1ms&slots=64   timing wheel: O(1), rounds up to the tick
 *   memory:?engine=heap                      4-ary heap: exact to the nanosecond
 *
 *   sqlite:///orders.db                      durable, shared by processes: docs/sqlite.md
 *   postgresql://user@host/db                durable, shared by machines: docs/postgresql.md
 *   redis://host:6379/0                      the same: docs/redis.md
 *   amqp://host/vhost                        through RabbitMQ: docs/rabbitmq.md
 *
 * `tick` is a number with a unit (ns, us, ms, s, m, h, d), 1us to 1h. `slots` per wheel
 * level, 1 to 4096, is rounded up to a power of two, 64 at least. Every option of lapse_options that is a
 * number may stand in the URL too: max_pending, overflow=refuse|dead_letter_oldest,
 * max_dead, and with a unit keep, lease, stuck_after; the URL wins.
 *
 * A durable store has a thread of its own that talks to it; calls wait for its answer, at most
 * a quarter of the `lease`, then they answer LAPSE_EUNSURE (see also lapse_submit). Its orders
 * name the queue of a handler, for functions do not outlive the process: an order that
 * brings its own `fn`, `arg` or `release` is LAPSE_EUNSUPPORTED. Orders of queues that
 * nobody here handles are left for those who do. Handlers, pauses, rates and the counts
 * "since it was opened" are this scheduler's; the orders are everybody's. Any call may also
 * answer LAPSE_EOFFLINE, LAPSE_ETIMEOUT (too busy), LAPSE_EDATA or LAPSE_ESYSTEM.
 *
 * Errors: LAPSE_EURL, LAPSE_ESTORE, LAPSE_EINVAL, LAPSE_ERANGE, LAPSE_ENOMEM,
 * LAPSE_ESYSTEM; of a durable store also LAPSE_EOFFLINE, LAPSE_EDATA. The options are copied. */
LAPSE_API int lapse_open(const char *url, const lapse_options *options, lapse **out);

/* Nothing starts any more, and schedule answers LAPSE_ECLOSED. Running callbacks go
 * on. Orders that did not run stay and can be listed with lapse_each. Waiting calls
 * return. Allowed in a callback; a second call does nothing. */
LAPSE_API int lapse_stop(lapse *s);

/* Stop, wait up to `timeout` for running callbacks and for our threads, then free the
 * scheduler. Claims that were taken and not settled are given back. LAPSE_ETIMEOUT
 * leaves it stopped and valid, and the detail names an order that still runs: call
 * again. LAPSE_EINCALLBACK inside one of its own callbacks or hooks. No other call may run at
 * the same time or follow. NULL is allowed. */
LAPSE_API int lapse_close(lapse *s, lapse_ns timeout);

/* In the child of a fork: make the inherited scheduler an empty one that works (memory)
 * or connects anew (durable). The parent's orders stay the parent's; their `release` is
 * not called here. Its descriptor is a new one. Nothing happens in the parent. Not at
 * the same time as any other call. */
LAPSE_API int lapse_after_fork(lapse *s);

/* -- Schedule -------------------------------------------------------------------- */

/* Run `fn` with `arg` when `delay` has passed, unless the order is cancelled first.
 * Returns the order's generation, above 0; it grows with every order accepted.
 * Errors: LAPSE_EEXISTS (the pending order is untouched), LAPSE_EID, LAPSE_ERANGE,
 * LAPSE_EFULL, LAPSE_ECLOSED, LAPSE_EINVAL (`fn` is NULL), LAPSE_EUNSUPPORTED (a durable
 * store names handlers), LAPSE_ENOMEM. An id whose callback is running starts a new
 * generation: the running one is not repeated whatever it answers. */
LAPSE_API int64_t lapse_schedule(lapse *s, const char *id, lapse_ns delay, lapse_callback fn,
                                 void *arg);

/* The same at a UTC instant; one that is past is due at once. In memory the instant is
 * turned into a delay when called: later steps of the wall clock do not move it. */
LAPSE_API int64_t lapse_schedule_at(lapse *s, const char *id, lapse_ns utc, lapse_callback fn,
                                    void *arg);

enum { LAPSE_REPLACE = 1 }; /* flag: a pending order of this id gives way */

/* A new order in full; all zero but the id is due at once in the queue "". */
typedef struct lapse_spec {
    const char *id;
    size_t id_len;       /* 0: `id` is NUL-terminated */
    const char *queue;   /* NULL: "". A handler's name, or where lapse_take finds it */
    lapse_ns delay;      /* from now */
    lapse_ns at;         /* if not 0: a UTC instant instead of `delay` */
    const void *payload; /* opaque bytes, returned as they are; none when it is empty */
    size_t payload_len;
    lapse_callback fn;     /* NULL: for the queue's handler or a taker */
    void *arg;             /* for `fn`; without one it is only released */
    lapse_release release; /* NULL: the one of lapse_options */
    unsigned flags;        /* LAPSE_REPLACE or 0 */
} lapse_spec;

/* Schedule what `spec` says: as lapse_schedule. */
LAPSE_API int64_t lapse_put(lapse *s, const lapse_spec *spec);

/* Schedule `count` orders with one lock (durable stores: one transaction). results[i]
 * is what lapse_put would have returned for specs[i]; a bad one does not hold back the
 * others. Returns how many were accepted, or an error before any was tried. */
LAPSE_API int64_t lapse_schedule_many(lapse *s, const lapse_spec *specs, size_t count,
                                      int64_t *results);

/* Whether these bytes can be an order id: 0 or LAPSE_EID. */
LAPSE_API int lapse_check_id(const char *id, size_t id_len);

/* -- Cancel and change ----------------------------------------------------------- */

/* What became of an order. No answer is ever taken back. */
typedef enum lapse_fate {
    LAPSE_FATE_UNKNOWN = 0, /* no such order, or of another generation, or long done */
    LAPSE_FATE_CANCELLED,   /* its callback has not started and never will */
    LAPSE_FATE_RESCHEDULED, /* it is pending with its new time */
    LAPSE_FATE_RUNNING,     /* a consumer holds it; no further attempt will follow */
    LAPSE_FATE_DONE,        /* it ended within the last `keep` */
} lapse_fate;

/* The order was paid. Returns a lapse_fate; an id that cannot exist is unknown. With a
 * generation other than LAPSE_ANY only that one is cancelled. Never waits for a
 * callback. Works after lapse_stop. Errors: LAPSE_EFORKED, LAPSE_EINVAL (`id` is NULL). */
LAPSE_API int lapse_cancel(lapse *s, const char *id, int64_t generation);

/* Cancel, and if it is running wait up to `timeout` for its callback to return: after
 * any answer but LAPSE_ETIMEOUT no callback of this order runs in this process. Inside
 * that very callback it answers LAPSE_FATE_RUNNING at once. A signal does not end the wait.
 * Errors: as lapse_cancel, LAPSE_ETIMEOUT. */
LAPSE_API int lapse_cancel_wait(lapse *s, const char *id, int64_t generation, lapse_ns timeout);

/* Give a pending order a new delay from now; same generation, callback and payload.
 * Returns LAPSE_FATE_RESCHEDULED; or RUNNING, DONE or UNKNOWN and nothing is changed.
 * Errors: LAPSE_ERANGE, LAPSE_ECLOSED, LAPSE_EFORKED, LAPSE_EINVAL, LAPSE_ENOMEM. */
LAPSE_API int lapse_reschedule(lapse *s, const char *id, int64_t generation, lapse_ns delay);

/* -- Ask without waiting: for a host's loop on a durable store ------------------- */

/* On a durable store the calls above wait until it has answered. A host that must not wait
 * submits the same, goes on with its loop, and collects the answers when lapse_fd is
 * readable. With "memory:" the answer is there at once, and is collected in the same way.
 *
 * What was submitted is done in that order, also in respect of waiting calls. */
typedef enum lapse_what {
    LAPSE_ASK_PUT,        /* spec */
    LAPSE_ASK_CANCEL,     /* id, generation */
    LAPSE_ASK_RESCHEDULE, /* id, generation, delay */
    LAPSE_ASK_GET,        /* id */
    LAPSE_ASK_REQUEUE,    /* id, generation, delay */
} lapse_what;

/* What it points to is copied. */
typedef struct lapse_ask {
    lapse_what what;
    void *tag; /* comes back with the answer */
    const lapse_spec *spec;
    const char *id;
    int64_t generation;
    lapse_ns delay;
} lapse_ask;

/* Declared below. */
struct lapse_answer;

/* 0: an answer will come. Or an error, and none will: as the waiting call when it is wrong
 * by itself (LAPSE_EID, LAPSE_ERANGE, ...), LAPSE_ECLOSED, LAPSE_EFORKED, LAPSE_ENOMEM. */
LAPSE_API int lapse_submit(lapse *s, const lapse_ask *ask);

/* The next answer: 1 and `out` is filled in, or 0: none has come yet. Never waits. */
LAPSE_API int lapse_collect(lapse *s, struct lapse_answer *out);

/* -- Look ------------------------------------------------------------------------ */

typedef enum lapse_state {
    LAPSE_STATE_PENDING = 1,
    LAPSE_STATE_RUNNING = 2,
    LAPSE_STATE_DONE = 4, /* ended within the last `keep`, done or cancelled */
    LAPSE_STATE_DEAD = 8,
} lapse_state;

/* Why an order is a dead letter. */
typedef enum lapse_reason {
    LAPSE_REASON_NONE = 0,
    LAPSE_REASON_FAILED,   /* attempts used up */
    LAPSE_REASON_REJECTED, /* its callback said so */
    LAPSE_REASON_EXPIRED,  /* too late to run */
    LAPSE_REASON_MAXLEN,   /* made room under LAPSE_DEAD_LETTER_OLDEST */
    LAPSE_REASON_LOST,     /* its workers died */
} lapse_reason;

/* A look at an order. In lapse_get the strings and bytes are the caller's, freed by
 * lapse_info_free; in a visitor they live until it returns. */
typedef struct lapse_info {
    lapse_state state;
    char *id;
    size_t id_len;
    char *queue;
    void *payload;
    size_t payload_len;
    lapse_ns due;       /* UTC instant */
    lapse_ns remaining; /* until it is due; 0 when due, running or ended */
    lapse_ns ended;     /* UTC instant it was done or died; 0 before */
    int64_t generation;
    int attempt; /* deliveries so far */
    lapse_reason reason;
    char *error; /* last error of a dead letter, or NULL */
} lapse_info;

/* Look up the newest generation of an order. Returns 0 or LAPSE_EUNKNOWN, LAPSE_ENOMEM. */
LAPSE_API int lapse_get(lapse *s, const char *id, lapse_info *out);
LAPSE_API void lapse_info_free(lapse_info *info);

/* The answer to what was submitted; free it with lapse_answer_free. */
typedef struct lapse_answer {
    void *tag;
    int64_t result;  /* what the waiting call returns */
    char *detail;    /* of an error: a sentence; NULL without memory */
    lapse_info info; /* LAPSE_ASK_GET, when result is 0 */
} lapse_answer;

LAPSE_API void lapse_answer_free(lapse_answer *answer);

/* Return false to end the walk. May call the library. */
typedef bool (*lapse_visitor)(const lapse_info *info, void *arg);

/* Show every order whose state is in `states` (lapse_state bits; 0: all) to `visitor`,
 * in no promised order. No lock is held meanwhile: an order that changes during the
 * walk may be missed or shown in either state, all others are shown once; after
 * lapse_stop the list of pending orders is exact. Returns how many were shown. */
LAPSE_API int64_t lapse_each(lapse *s, unsigned states, lapse_visitor visitor, void *arg);

/* -- Run callbacks: the host's loop, or ours ------------------------------------- */

/* One descriptor for the scheduler's whole life, readable while there is something to
 * run now. For a host's poll loop: when readable, call lapse_process (or lapse_poll until
 * it answers 0). Never read or close it. For "memory:" a timerfd on CLOCK_BOOTTIME armed
 * with the next due time. */
LAPSE_API int lapse_fd(lapse *s);

/* How long until there is something to do: 0 when a callback can run or an order fell due
 * that lapse_poll may claim, which is told once; LAPSE_FOREVER when nothing will be; or an
 * error. For a host that computes its own timeout. Under a manual clock: by that clock. */
LAPSE_API lapse_ns lapse_timeout(lapse *s);

/* Run the callbacks that are due now, in order, at most `max` of them (0: no limit), on
 * this thread; never waits. What they schedule with no delay does not run in this call: it
 * is due at the next instant that the store tells apart (the wheel: its next tick).
 * On a durable store orders are claimed once this has looked for them, and lapse_fd is
 * readable when they have come; under a manual clock this waits for that.
 * Returns how many ran, or LAPSE_ECLOSED after lapse_stop, LAPSE_EFORKED. */
LAPSE_API int64_t lapse_process(lapse *s, size_t max);

/* Run callbacks on this thread until lapse_stop; waits without using the CPU. */
LAPSE_API int lapse_run(lapse *s);

/* Start `threads` (1 to 256) of our own that do so. They block all signals, but for the
 * time a callback runs they carry the caller's mask. May be called again for more.
 * Errors: LAPSE_EINVAL, LAPSE_ECLOSED, LAPSE_ENOMEM, LAPSE_ESYSTEM; after one of the last
 * two some may have been started. */
LAPSE_API int lapse_start(lapse *s, unsigned threads);

/* For bindings and other hosts that call callbacks themselves: wait up to `timeout`
 * until a callback is due. 1: one is. 0: time passed. LAPSE_ECLOSED: stopped.
 * LAPSE_EINTR: a signal handler ran; the host looks at its signals and calls again. Of
 * several threads that wait on one scheduler only one notices. */
LAPSE_API int lapse_wait(lapse *s, lapse_ns timeout);

/* Start the next order that has a callback and is due by `until` (an instant of
 * lapse_now; LAPSE_FOREVER: now), and hand it to the caller, who calls the callback and
 * then settles. 1: `order`, `fn` and `arg` are set. 0: none is due. LAPSE_ECLOSED. */
LAPSE_API int lapse_begin(lapse *s, lapse_ns until, const lapse_order **order, lapse_callback *fn,
                          void **arg);

/* For such a host on a durable store: `callbacks` can start at once here (1 to
 * LAPSE_WANT_MAX; 1 until it is said). Whenever lapse_begin or lapse_timeout finds that nothing
 * has been claimed yet, up to so many are claimed together. Those that are not begun soon are
 * other consumers' again. LAPSE_EINVAL, LAPSE_EFORKED. */
#define LAPSE_WANT_MAX 1000
LAPSE_API int lapse_want(lapse *s, unsigned callbacks);

/* The scheduler's clock: nanoseconds of CLOCK_BOOTTIME, or of its manual clock. */
LAPSE_API lapse_ns lapse_now(const lapse *s);

/* -- Handlers -------------------------------------------------------------------- */

/* How a queue's orders are delivered. All zero is the default that is named. */
typedef struct lapse_policy {
    int attempts;         /* deliveries before an order that failed or asked for a retry
                               is a dead letter; 0: 5 */
    lapse_ns backoff;     /* before the second attempt; 0: 1 s */
    lapse_ns backoff_max; /* the longest; 0: 1 h */
    int backoff_percent;  /* each is so many percent of the one before; 0: 200 */
    int jitter_percent;   /* each is spread by so many percent, up and down; 0: 20,
                               below 0: none */
    lapse_ns run_limit;   /* a callback that runs longer has lost its order; 0: 1 h */
    lapse_ns expires;     /* an order later than this is a dead letter; 0: never */
    lapse_ns stuck_after; /* as in lapse_options; 0: what stands there */
    unsigned rate;        /* orders started per second at most; 0: no limit */
} lapse_policy;

/* Let `fn` with `arg` handle the orders of `queue` (NULL: "") that bring no callback of
 * their own, as `policy` says (NULL: all defaults; it is copied). They are run by the same
 * loop as all callbacks. Registering a queue again replaces its handler for the orders
 * that start afterwards; `fn` NULL removes it, and its orders stay pending for a taker
 * or the next handler. `release` (may be NULL) is called for `arg` when it was replaced or
 * removed and runs no more, or at close. Allowed in a callback.
 *
 * Under a `rate` due orders start oldest first; while the oldest is more than a second
 * late, one start in four goes to the one that fell due last, so that new orders are not
 * held up behind a backlog.
 *
 * Errors: LAPSE_EMIXED when the queue has been taken from, LAPSE_EINVAL, LAPSE_ERANGE,
 * LAPSE_ECLOSED, LAPSE_ENOMEM. */
LAPSE_API int lapse_handle(lapse *s, const char *queue, lapse_callback fn, void *arg,
                           lapse_release release, const lapse_policy *policy);

/* No order of `queue` (NULL: "") starts, with a callback of its own or not, until
 * lapse_resume. What runs goes on. Orders stay cancellable. */
LAPSE_API int lapse_pause(lapse *s, const char *queue);
LAPSE_API int lapse_resume(lapse *s, const char *queue);

/* -- Pull: claim orders without a callback --------------------------------------- */

/* Claim the next due order of `queue` (NULL: any without a handler) that has no callback,
 * as DelayQueue's poll. 1: `order` is set and the caller holds it until lapse_settle, for
 * the `lease` of lapse_options; when that ends first, the order is delivered anew, and
 * after five deliveries it is a dead letter. 0: none is due. LAPSE_EMIXED: the queue has a
 * handler. */
LAPSE_API int lapse_poll(lapse *s, const char *queue, const lapse_order **order);

/* The same, waiting up to `timeout` for one, as DelayQueue's take. Also LAPSE_ECLOSED
 * and LAPSE_EINTR. */
LAPSE_API int lapse_take(lapse *s, const char *queue, lapse_ns timeout, const lapse_order **order);

/* End what lapse_begin, lapse_poll or lapse_take began; `fence` is the order's and names
 * the claim. `delay` counts for LAPSE_RETRY: below 0 the policy's back-off. `error` (may
 * be NULL) goes to on_error for LAPSE_FAIL and to the dead letter for LAPSE_REJECT. The
 * order is invalid afterwards. LAPSE_ESTALE: no such claim is held, or its id was
 * scheduled anew meanwhile; nothing else is wrong then. */
LAPSE_API int lapse_settle(lapse *s, int64_t fence, lapse_verdict verdict, lapse_ns delay,
                           const char *error);

/* Hold a claim for another `lease` from now (0: as long as it was given for). LAPSE_ESTALE
 * when it is no longer held. Callbacks need none: they hold theirs up to run_limit. */
LAPSE_API int lapse_renew(lapse *s, int64_t fence, lapse_ns lease);

/* Whether the claim with this fence still holds its order: what a long callback asks
 * before it writes. */
LAPSE_API bool lapse_holds(lapse *s, int64_t fence);

/* -- Dead letters ---------------------------------------------------------------- */

/* lapse_each(s, LAPSE_STATE_DEAD, ...) lists them. */

/* Make a dead letter a pending order again, with its callback and payload, its attempts
 * counted anew, due after `delay`. Names the newest dead letter of the id, or that of a
 * generation. Returns the new generation. Errors: LAPSE_EUNKNOWN, LAPSE_EEXISTS (the id
 * is pending again already), and those of lapse_schedule. */
LAPSE_API int64_t lapse_requeue(lapse *s, const char *id, int64_t generation, lapse_ns delay);

/* Delete dead letters: of one id (LAPSE_ANY: all of it, else one generation), or with `id`
 * NULL all there are. Returns how many. */
LAPSE_API int64_t lapse_purge(lapse *s, const char *id, int64_t generation);

/* -- Statistics ------------------------------------------------------------------ */

/* Every order accepted is in exactly one place:
 * scheduled = done + cancelled + replaced + dead_total + pending + running. On a durable
 * store this holds for a scheduler that has it to itself, while nothing is under way; calls
 * that were answered LAPSE_EUNSURE are not counted. */
typedef struct lapse_stats {
    /* Orders now, by state; `kept` with those that outstayed `keep` and are not swept yet. */
    uint64_t pending, running, kept, dead;
    /* Since it was opened. */
    uint64_t scheduled;    /* accepted */
    uint64_t refused;      /* not accepted: exists, full, closed, out of memory */
    uint64_t replaced;     /* gave way to another of the same id before they started */
    uint64_t rescheduled;  /* were given a new time */
    uint64_t cancelled;    /* ended without a callback, or were not repeated for it */
    uint64_t done;         /* ended by their callback or taker, also by its only failure */
    uint64_t dead_total;   /* became dead letters */
    uint64_t dead_by[6];   /* of these, by lapse_reason */
    uint64_t dead_dropped; /* of these, dropped beyond max_dead */
    uint64_t requeued;     /* of these, scheduled again: counted in `scheduled` too */
    uint64_t purged;       /* of these, deleted */
    uint64_t lost;         /* deliveries whose lease or run_limit ended first */
    uint64_t started;      /* deliveries */
    uint64_t failed;       /* of these, failed */
    uint64_t retried;      /* of these, followed by another */
    uint64_t rejected;     /* of these, rejected */
    uint64_t given_back;   /* of these, given back */
    uint64_t stale;        /* settlements that came too late */
    /* How late orders started; the three p... are at most 1/16 too high. */
    lapse_ns late_p50, late_p99, late_p999, late_max;
    lapse_ns oldest_due;   /* how long the oldest due order has waited; 0: none is due */
    lapse_ns poll_bound;   /* what polling may add to lateness; 0 for "memory:" */
    lapse_ns offline;      /* for how long the store could not be reached; 0: it can be */
    uint64_t bytes;        /* memory held for orders */
    uint64_t longest_move; /* most entries that any one call has moved in our structures */
} lapse_stats;

/* 0, or the error of a durable store that could not be asked: then the orders now, `bytes`
 * and `oldest_due` are 0, and the rest is right. */
LAPSE_API int lapse_statistics(lapse *s, lapse_stats *out);

/* One queue. Counts as in lapse_stats; those of time cover its last starts. */
typedef struct lapse_queue_stats {
    const char *queue; /* lives as long as the scheduler */
    bool handled, paused;
    uint64_t pending, running, dead;
    uint64_t started, done, failed, retried, cancelled, dead_total, dead_by[6];
    lapse_ns oldest_due; /* how long its oldest order has waited that was brought to a handler
                            or taker, or is held back by a pause */
    lapse_ns late_p50, late_p99, late_max; /* 0 in the 257th queue and later */
} lapse_queue_stats;

/* LAPSE_EUNKNOWN for a queue that never had an order or a handler; else as lapse_statistics. A
 * store that has its dead letters in one heap (RabbitMQ) is looked through for `dead`. */
LAPSE_API int lapse_queue_statistics(lapse *s, const char *queue, lapse_queue_stats *out);

/* The name of the queue number `n`, counting from 0, or NULL after the last. */
LAPSE_API const char *lapse_queue_name(lapse *s, size_t n);

/* Everything above as text in Prometheus' exposition format 0.0.4, for a metrics
 * endpoint; NULL on an error. What a durable store could not be asked is left out, and so are dead
 * letters by queue where they would have to be looked through. Free it with lapse_free. */
LAPSE_API char *lapse_metrics(lapse *s);
LAPSE_API void lapse_free(void *memory);

/* What the store can do: a set of these. */
typedef enum lapse_ability {
    LAPSE_CAN_CALLBACK = 1,  /* an order may bring its own function */
    LAPSE_CAN_DURABLE = 2,   /* orders outlive the process */
    LAPSE_CAN_SHARE = 4,     /* several processes may use it */
    LAPSE_CAN_CANCEL = 8,    /* cancel, reschedule, exists */
    LAPSE_CAN_LIST = 16,     /* get and each */
    LAPSE_CAN_TRANSACT = 32, /* schedule inside the application's transaction */
    LAPSE_CAN_LIMIT = 64,    /* max_pending, overflow */
} lapse_ability;

LAPSE_API unsigned lapse_abilities(const lapse *s);

#ifdef __cplusplus
}
#endif

#endif
