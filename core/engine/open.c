/* open.c - the life of a scheduler: open, stop, close, fork. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/fork.h"
#include "base/wake.h"
#include "engine/driver.h"
#include "stores/table.h"

/* A manual clock was moved. */
static void clock_moved(void *arg)
{
    lapse *s = arg;
    pthread_mutex_lock(&s->lock);
    s->wall_read = INT64_MIN;
    lp_arm_all(s);
    if (s->driver)
        lp_driver_poke(s->driver);
    if (lp_must_watch(s, lp_engine_now(s)))
        pthread_cond_broadcast(&s->watch);
    pthread_mutex_unlock(&s->lock);
}

static int open_alarm(lp_alarm *a)
{
    *a = (lp_alarm){.fd = lp_wake_open(), .armed = LAPSE_FOREVER};
    return a->fd < 0 ? a->fd : LAPSE_OK;
}

static int open_alarms(lapse *s)
{
    int code = open_alarm(&s->host);
    if (code < 0)
        return code;
    code = open_alarm(&s->waiters);
    if (code < 0)
        lp_wake_close(s->host.fd);
    return code;
}

static int open_store(lapse *s)
{
    lp_store_kind kind;
    int code = lp_store_find(s->url, &kind);
    if (code < 0)
        return code;
    lp_store_config config = {
        .url = s->url,
        .max_pending = s->options.max_pending,
        .max_dead = s->options.max_dead,
        .overflow = s->options.overflow,
        .keep = s->options.keep,
        .lease = s->options.lease,
        .stuck_after = s->options.stuck_after,
        .release = s->options.release,
        .now = lp_engine_now(s),
        .wall = lp_clock_wall(s->options.clock),
        .manual = s->options.clock != NULL,
    };
    code = kind.ops ? kind.ops->open(&config, &s->store)
                    : lp_driver_open(s, kind.durable, &config, &s->store);
    if (code == LAPSE_OK) {
        s->driver = kind.ops ? NULL : (lp_driver *)s->store;
        s->options.keep = config.keep;
        s->options.lease = config.lease ? config.lease : LAPSE_SECONDS(30);
        s->options.stuck_after = config.stuck_after ? config.stuck_after : LAPSE_MINUTES(1);
    }
    return code;
}

/* The store, the descriptors and the locks. */
static void let_go(lapse *s)
{
    s->store->ops->close(s->store);
    lp_wake_close(s->host.fd);
    lp_wake_close(s->waiters.fd);
    pthread_cond_destroy(&s->work);
    pthread_cond_destroy(&s->settled);
    pthread_cond_destroy(&s->watch);
    pthread_mutex_destroy(&s->lock);
}

/* Make everything but `options` and `url`, in fresh or inherited memory alike. */
static int set_up(lapse *s)
{
    *s = (lapse){.options = s->options, .url = s->url};
    int code = open_store(s);
    if (code < 0)
        return code;
    code = open_alarms(s);
    if (code < 0) {
        s->store->ops->close(s->store);
        return code;
    }
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->work, NULL);
    pthread_cond_init(&s->settled, NULL);
    pthread_cond_init(&s->watch, NULL);
    s->check_at = LAPSE_FOREVER;
    s->watched_to = INT64_MIN;
    s->wall_read = INT64_MIN;
    /* Repeatable under a manual clock. */
    uint64_t place = s->options.clock ? 0 : (uint64_t)(uintptr_t)s;
    s->random = ((uint64_t)lp_engine_now(s) ^ place) | 1;
    s->epoch = lp_fork_epoch();
    lp_tell_warnings(s);
    code = lp_driver_run(s);
    if (code < 0) {
        let_go(s);
        return code;
    }
    if (s->options.clock) {
        s->listener = (lp_clock_listener){.moved = clock_moved, .arg = s};
        lp_clock_listen(s->options.clock, &s->listener);
    }
    return LAPSE_OK;
}

static int check_duration(const char *name, lapse_ns value)
{
    if (value < 0 || value > LAPSE_DELAY_MAX)
        return lp_fail(LAPSE_ERANGE, "%s is %lld ns: use 0 to 100 years", name, (long long)value);
    return LAPSE_OK;
}

static int check_options(const lapse_options *o)
{
    if (o->overflow != LAPSE_REFUSE && o->overflow != LAPSE_DEAD_LETTER_OLDEST)
        return lp_fail(LAPSE_EINVAL,
                       "%d is no overflow policy: use LAPSE_REFUSE or "
                       "LAPSE_DEAD_LETTER_OLDEST",
                       (int)o->overflow);
    int code = check_duration("keep", o->keep);
    if (code == LAPSE_OK)
        code = check_duration("lease", o->lease);
    if (code == LAPSE_OK)
        code = check_duration("stuck_after", o->stuck_after);
    return code;
}

int lapse_open(const char *url, const lapse_options *options, lapse **out)
{
    if (!out)
        return lp_fail(LAPSE_EINVAL, "lapse_open: `out` is NULL");
    *out = NULL;
    static const lapse_options defaults;
    if (!options)
        options = &defaults;
    int code = check_options(options);
    if (code < 0)
        return code;
    if (lp_fork_watch() < 0)
        return lp_fail_memory();
    lapse *s = calloc(1, sizeof *s);
    if (!s)
        return lp_fail_memory();
    s->options = *options;
    s->url = strdup(url ? url : "memory:");
    code = s->url ? set_up(s) : lp_fail_memory();
    if (code < 0) {
        free(s->url);
        free(s);
        return code;
    }
    *out = s;
    return LAPSE_OK;
}

int lp_refuse(const lapse *s)
{
    if (!s)
        return lp_fail(LAPSE_EINVAL, "the scheduler is NULL");
    return lp_fail(LAPSE_EFORKED, "this scheduler was opened before fork(): call "
                                  "lapse_after_fork, or open another");
}

static void stop(lapse *s)
{
    if (s->stopped)
        return;
    s->stopped = true;
    lp_wake_all(s);
    if (s->driver)
        lp_driver_wake(s->driver);
}

int lapse_stop(lapse *s)
{
    int code = lp_enter(s);
    if (code < 0)
        return code;
    stop(s);
    lp_leave(s);
    return LAPSE_OK;
}

/* Wait until nobody is in a callback or in one of our waiting calls. Under the lock. */
static int wait_until_quiet(lapse *s, lapse_ns deadline)
{
    while (s->callbacks || s->inside) {
        if (lp_await(s, deadline))
            continue;
        const lp_claim *stuck = lp_any_held(s, true);
        if (stuck)
            return lp_fail(LAPSE_ETIMEOUT,
                           "order %s is still running: call lapse_close again when it is done",
                           lp_text_quote(stuck->order.id, stuck->order.id_len));
        return lp_fail(LAPSE_ETIMEOUT,
                       "%u calls of this scheduler have not returned yet: call "
                       "lapse_close again",
                       s->inside);
    }
    return LAPSE_OK;
}

static void give_back_taken(lapse *s)
{
    for (;;) {
        lp_task t;
        pthread_mutex_lock(&s->lock);
        lp_claim *taken = lp_any_held(s, false);
        if (taken)
            lp_settle(s, taken, LAPSE_GIVE_BACK, 0, NULL, lp_engine_now(s), &t);
        pthread_mutex_unlock(&s->lock);
        if (!taken)
            return;
        lp_finish(s, &t);
    }
}

/* Of the queue number `n`; false when there is none. A driver may still look at it. */
static bool remove_handler(lapse *s, size_t n, lp_request *r)
{
    pthread_mutex_lock(&s->lock);
    lp_queue *q = s->store->ops->queue_at(s->store, n);
    if (q && q->handler) {
        lp_drop_handler(q->handler, r);
        q->handler = NULL;
    }
    pthread_mutex_unlock(&s->lock);
    return q != NULL;
}

/* Let go of the orders that remain; nobody else uses the scheduler any more. */
static void tear_down(lapse *s)
{
    if (s->options.clock)
        lp_clock_unlisten(s->options.clock, &s->listener);
    lp_task t = {.r = {.remains_count = 0}};
    for (size_t i = 0; remove_handler(s, i, &t.r); i++) {
        lp_finish(s, &t);
        t.r.remains_count = 0;
    }
    while (s->store->ops->drain(s->store, &t.r.remains[0])) {
        t.r.remains_count = 1;
        lp_finish(s, &t);
    }
    let_go(s);
    lp_drop_answers(s);
    while (s->free_claims) {
        lp_claim *next = s->free_claims->next;
        free(s->free_claims);
        s->free_claims = next;
    }
    free(s->threads);
    free(s->url);
    free(s);
}

static void join_threads(lapse *s)
{
    for (unsigned i = 0; i < s->thread_count; i++)
        pthread_join(s->threads[i], NULL);
    s->thread_count = 0;
    if (s->has_watcher)
        pthread_join(s->watcher, NULL);
    s->has_watcher = false;
}

/* Until a durable store has taken what was settled last. */
static int wait_for_store(lapse *s, lapse_ns deadline)
{
    if (!s->driver)
        return LAPSE_OK;
    pthread_mutex_lock(&s->lock);
    bool settled = lp_driver_drain(s, deadline);
    pthread_mutex_unlock(&s->lock);
    return settled ? LAPSE_OK
                   : lp_fail(LAPSE_ETIMEOUT, "the store has not taken the last settlements yet: "
                                             "call lapse_close again");
}

int lapse_close(lapse *s, lapse_ns timeout)
{
    if (!s)
        return LAPSE_OK;
    if (s->epoch != lp_fork_epoch())
        return LAPSE_OK; /* Another process's: nothing of it is touched. */
    lapse_ns deadline = lp_deadline(timeout);
    pthread_mutex_lock(&s->lock);
    if (lp_in_callback(s)) {
        pthread_mutex_unlock(&s->lock);
        return lp_fail(LAPSE_EINCALLBACK, "a callback cannot close its own scheduler: use "
                                          "lapse_stop there and close it outside");
    }
    stop(s);
    int code = wait_until_quiet(s, deadline);
    pthread_mutex_unlock(&s->lock);
    if (code < 0)
        return code;
    join_threads(s);
    give_back_taken(s);
    code = wait_for_store(s, deadline);
    if (code < 0)
        return code;
    tear_down(s);
    return LAPSE_OK;
}

/* Nothing inherited is locked, freed or closed: its state is whatever another thread
 * left it in at the moment of fork(). */
int lapse_after_fork(lapse *s)
{
    if (!s)
        return lp_fail(LAPSE_EINVAL, "the scheduler is NULL");
    if (s->epoch == lp_fork_epoch())
        return LAPSE_OK;
    uint64_t inherited = s->epoch;
    int code = set_up(s);
    if (code < 0)
        s->epoch = inherited; /* as forked as before */
    return code;
}
