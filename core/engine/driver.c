/* driver.c - the driver's thread: when it takes a turn, and what it sleeps on.
 *
 * It holds the lock but while it sleeps, wakes callers, and the store works. What a turn is
 * stands in driver_turn.c. */
#include <signal.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/wake.h"
#include "engine/driver_parts.h"

static const lapse_ns LEASE_MIN = LAPSE_MS(10);

/* -- Waking, posting -- */

void lp_driver_wake(lp_driver *d)
{
    if (!d->sleeping || d->woken)
        return;
    d->woken = true;
    lp_bell_ring(d->bell);
}

void lp_driver_poke(lp_driver *d)
{
    d->dirty = true;
    lp_driver_wake(d);
}

void lp_driver_post(lp_driver *d, lp_job *job)
{
    job->next = NULL;
    *d->inbox_end = job;
    d->inbox_end = &job->next;
    lp_driver_wake(d);
}

/* Before all that was asked for: it shall find the order pending. */
void lp_driver_post_first(lp_driver *d, lp_job *job)
{
    job->next = d->inbox;
    if (!d->inbox)
        d->inbox_end = &job->next;
    d->inbox = job;
    lp_driver_wake(d);
}

/* -- When -- */

static bool wants_orders(const lp_driver *d)
{
    return lp_driver_push_demand(d) > 0 || d->takes || d->host_polls;
}

/* The next instant at which there is something to do without being told; INT64_MIN: now. */
static lapse_ns next_thing(const lp_driver *d)
{
    if (d->inbox || d->again || d->dirty || lp_driver_retry_wait(d) == 0 ||
        (d->s->stopped && (d->ready || d->takes)))
        return INT64_MIN;
    lapse_ns next = lp_earlier(lp_driver_next_renewal(d), lp_driver_next_give_back(d));
    if (lp_driver_push_demand(d) > 0)
        next = lp_earlier(next, d->push_next);
    if (d->takes || d->host_polls)
        next = lp_earlier(next, d->take_next);
    if (wants_orders(d))
        next = lp_earlier(next, d->poll_at);
    return next;
}

/* How long to leave a store alone that failed; 0: not at all. */
static lapse_ns pause_left(const lp_driver *d)
{
    if (!d->backoff || d->inbox || d->quit)
        return 0;
    lapse_ns left = d->retry_at - lp_clock_monotonic();
    return left > 0 ? left : 0;
}

static void arm(lp_driver *d, lapse_ns at)
{
    if (at == d->armed)
        return;
    d->armed = at;
    lp_wake_at(d->timer, at);
}

/* Until `at` of the engine's clock, a hint, a ring, or `limit` of real time. Under the lock,
 * which it drops meanwhile. */
static void sleep_until(lp_driver *d, lapse_ns at, lapse_ns limit)
{
    enum { TIMER = 1, BELL = 2, HINT = 4 };
    lapse *s = d->s;
    const int fds[] = {d->timer, d->bell, d->ops->hint_fd(d->store)};
    d->sleeping = true;
    d->woken = false;
    arm(d, s->options.clock ? LAPSE_FOREVER : at);
    lp_tell_settled(s);
    pthread_mutex_unlock(&s->lock);
    int readable = lp_wake_wait_any(fds, 3, limit);
    readable = readable < 0 ? 0 : readable;
    if (readable & BELL)
        lp_bell_quiet(d->bell);
    if (readable & HINT)
        d->ops->hinted(d->store);
    pthread_mutex_lock(&s->lock);
    d->sleeping = false;
    if (readable & TIMER)
        d->armed = INT64_MIN;
    d->dirty = d->dirty || readable & HINT;
    lp_driver_note_trouble(d);
}

/* What the store may wake us for: only what somebody here could start. */
static lapse_ns wanted_next(const lp_driver *d)
{
    lapse_ns next = lp_driver_push_demand(d) > 0 ? d->push_next : INT64_MIN;
    bool takes = d->takes || d->host_polls;
    return takes && (next == INT64_MIN || d->take_next < next) ? d->take_next : next;
}

static void rest(lp_driver *d, lapse_ns at, lapse_ns now)
{
    lapse_ns pause = pause_left(d);
    if (pause > 0) {
        sleep_until(d, LAPSE_FOREVER, pause);
        return;
    }
    if (d->ops->sleeps(d->store, wanted_next(d), now)) {
        d->dirty = true;
        return;
    }
    sleep_until(d, at, lp_driver_retry_wait(d));
}

static bool is_over(const lp_driver *d)
{
    return d->quit && !d->inbox && !d->put_off && (!d->again || d->backoff) && !d->ready &&
           !d->takes && !d->answered;
}

static void *run(void *arg)
{
    lp_driver *d = arg;
    lapse *s = d->s;
    pthread_mutex_lock(&s->lock);
    while (!is_over(d)) {
        lapse_ns now = lp_engine_now(s);
        lp_driver_give_back_idle(d, now);
        if (s->stopped)
            lp_driver_refuse_takes(d);
        if (d->answered) {
            lp_driver_wake_callers(d);
            continue;
        }
        lapse_ns at = next_thing(d);
        if (at > now || pause_left(d) > 0)
            rest(d, at, now);
        else if (lp_driver_plan_turn(d, now))
            lp_driver_take_turn(d, now);
        else
            sleep_until(d, LAPSE_FOREVER, LAPSE_MS(10)); /* Without memory: later. */
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* -- Opening -- */

static int start_thread(lp_driver *d)
{
    sigset_t all, mask;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &mask);
    int number = pthread_create(&d->thread, NULL, run, d);
    pthread_sigmask(SIG_SETMASK, &mask, NULL);
    return number ? lp_fail_system("pthread_create", number) : LAPSE_OK;
}

static void free_driver(lp_driver *d)
{
    if (d->store)
        d->ops->close(d->store);
    if (d->timer >= 0)
        lp_wake_close(d->timer);
    if (d->bell >= 0)
        lp_wake_close(d->bell);
    lp_driver_free_queues(d);
    free(d->plan.jobs);
    free(d->plan.wants);
    free(d->plan.rated);
    free(d->plan.names);
    free(d);
}

static int set_up(lp_driver *d, lp_store_config *config)
{
    d->armed = INT64_MIN;
    d->timer = lp_wake_open();
    d->bell = d->timer < 0 ? -1 : lp_bell_open();
    if (d->timer < 0 || d->bell < 0)
        return LAPSE_ESYSTEM;
    if (!lp_driver_queue(d, ""))
        return lp_fail_memory();
    return d->ops->open(config, &d->store);
}

int lp_driver_open(lapse *s, const lp_durable_ops *ops, lp_store_config *config, lp_store **out)
{
    lp_driver *d = calloc(1, sizeof *d);
    if (!d)
        return lp_fail_memory();
    d->base.ops = &lp_driver_store;
    d->s = s;
    d->ops = ops;
    d->inbox_end = &d->inbox;
    d->answered_end = &d->answered;
    d->push_next = d->take_next = d->poll_at = LAPSE_FOREVER;
    d->offline_since = LAPSE_FOREVER;
    d->host_most = 1;
    config->lease = config->lease ? config->lease : LAPSE_SECONDS(30);
    int code = set_up(d, config);
    if (code == LAPSE_OK && config->lease < LEASE_MIN)
        code = lp_fail(LAPSE_ERANGE,
                       "a lease of %lld ns: a durable store needs 10 ms at least to start anything",
                       (long long)config->lease);
    if (code < 0) {
        free_driver(d);
        return code;
    }
    d->ops = d->store->ops; /* One store may open another in its place. */
    *out = &d->base;
    return LAPSE_OK;
}

/* Once the scheduler stands. */
int lp_driver_run(lapse *s)
{
    if (!s->driver)
        return LAPSE_OK;
    int code = start_thread(s->driver);
    s->driver->runs = code == LAPSE_OK;
    return code;
}

void lp_driver_close(lp_driver *d)
{
    if (d->runs) {
        pthread_mutex_lock(&d->s->lock);
        d->quit = true;
        lp_driver_wake(d);
        pthread_mutex_unlock(&d->s->lock);
        pthread_join(d->thread, NULL);
    }
    lp_driver_let_go(d->again); /* Not even the last attempt was taken: the leases end. */
    lp_driver_let_go(d->refused);
    free_driver(d);
}
