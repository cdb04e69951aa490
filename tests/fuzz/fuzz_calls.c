/* fuzz_calls.c - the public calls in any order, under a manual clock, on both engines.
 *
 * The first bytes choose the scheduler, the others calls and what they are given; a
 * callback that is run reads on where its caller was. Checked all along: no order starts
 * early, or after it was cancelled or replaced; fences and generations grow; every order
 * accepted is in exactly one place by the statistics, and they agree with the list; and
 * at the end every `arg` accepted was released once, and not before it was done with.
 * Failures of memory are test_nth.c's, threads test_*.c's. */
#include "fuzz.h"

enum { IDS = 10, VALID_IDS = 8, QUEUES = 4, ORDERS = 4096, HELD = 64, DEPTH = 3 };

/* What was given as `arg` of an order or of a handler. */
typedef struct token {
    bool accepted;
    int released;
    int running;
} token;

/* A generation of an order. */
typedef struct birth {
    lapse_ns earliest; /* it starts no sooner */
    bool no_more;      /* it does not start any more */
} birth;

/* A claim that is held. */
typedef struct held {
    int64_t fence, generation;
    token *token; /* NULL: taken */
} held;

static struct {
    bytes in;
    lapse *s;
    lapse_clock *clock;
    uint64_t max_pending, max_dead;
    bool stopped, closing;
    int depth;
    unsigned calls;
    token tokens[ORDERS];
    unsigned token_count;
    birth births[ORDERS];
    int64_t first_generation, last_generation, last_fence;
    int64_t newest[IDS]; /* generation; 0: none yet */
    held held[HELD];
    unsigned held_count;
} f;

static const char *id_at(unsigned n)
{
    static char longest[LAPSE_ID_MAX + 1], too_long[LAPSE_ID_MAX + 2];
    static const char *const ids[IDS] = {"1",
                                         "2",
                                         "OID00000010",
                                         "an-id-of-21-bytes-xyz",
                                         "an-id-of-22-bytes-xyz/",
                                         "\xc3\xa9t\xc3\xa9 \xff\n",
                                         "OID00000010/sms",
                                         longest,
                                         "",
                                         too_long};
    memset(longest, 'x', sizeof longest - 1);
    memset(too_long, 'x', sizeof too_long - 1);
    return ids[n];
}

static const char *next_queue(void)
{
    static const char *const queues[QUEUES] = {NULL, "mail", "a \"queue\"\\\n", "stock"};
    return queues[below(&f.in, QUEUES)];
}

/* -- What is known of orders -------------------------------------------------------- */

static birth *birth_of(int64_t generation)
{
    must(generation >= f.first_generation && generation <= f.last_generation);
    return &f.births[generation - f.first_generation];
}

static lapse_ns add(lapse_ns a, lapse_ns b)
{
    lapse_ns sum;
    return __builtin_add_overflow(a, b > 0 ? b : 0, &sum) ? INT64_MAX : sum;
}

/* An order was accepted, to start no sooner than `earliest`. */
static void note_birth(unsigned id, int64_t generation, lapse_ns earliest)
{
    must(f.last_generation == 0 || generation == f.last_generation + 1);
    if (f.last_generation == 0)
        f.first_generation = generation;
    f.last_generation = generation;
    if (f.newest[id])
        birth_of(f.newest[id])->no_more = true;
    f.newest[id] = generation;
    *birth_of(generation) = (birth){.earliest = earliest};
}

static bool room_for_more(void)
{
    return f.token_count < ORDERS - 64 && f.last_generation - f.first_generation < ORDERS - 64;
}

static token *new_token(void)
{
    return &f.tokens[f.token_count++];
}

static void release(void *arg)
{
    token *t = arg;
    if (!t)
        return;
    must(t->accepted && t->released == 0 && t->running == 0);
    t->released++;
    if (!f.closing)
        must(lapse_timeout(f.s) >= 0);
}

/* An order was handed out. */
static void note_start(const lapse_order *order)
{
    birth *b = birth_of(order->generation);
    must(!b->no_more);
    must(lapse_now(f.s) >= b->earliest);
    must(order->fence > f.last_fence);
    must(order->attempt >= 1 && order->late >= 0);
    must(strlen(order->id) == order->id_len && order->queue);
    must(!order->payload == !order->payload_len);
    f.last_fence = order->fence;
}

/* It was asked for again, if its claim still holds. */
static void note_retry(int64_t generation, lapse_ns delay)
{
    birth_of(generation)->earliest =
        add(lapse_now(f.s), delay < LAPSE_DELAY_MAX ? delay : LAPSE_DELAY_MAX);
}

/* -- Callbacks and hooks -------------------------------------------------------------- */

static void one_call(void);

static lapse_verdict answer(const lapse_order *order)
{
    static const char *const errors[] = {NULL, "no route", "broken \xff\xc3(\n"};
    const char *error = errors[below(&f.in, 3)];
    lapse_ns delay;
    switch (below(&f.in, 8)) {
    case 0:
        return LAPSE_RETRY;
    case 1:
        delay = next_duration(&f.in);
        if (lapse_holds(f.s, order->fence))
            note_retry(order->generation, delay);
        return lapse_retry(order, delay, error);
    case 2:
        return lapse_reject(order, error);
    case 3:
        return lapse_fail(order, error);
    case 4:
        return LAPSE_GIVE_BACK;
    case 5:
        return (lapse_verdict)77;
    default:
        return LAPSE_DONE;
    }
}

static lapse_verdict run(const lapse_order *order, void *arg)
{
    token *t = arg;
    note_start(order);
    must(t->accepted && t->released == 0);
    t->running++;
    f.depth++;
    for (unsigned calls = below(&f.in, 3); f.depth < DEPTH && calls; calls--)
        one_call();
    f.depth--;
    t->running--;
    must(lapse_close(f.s, 0) == LAPSE_EINCALLBACK);
    return answer(order);
}

static void on_error(void *arg, const lapse_order *order, const char *error)
{
    must(arg == &f && order->id && error && strlen(error) <= 1000);
}

static void on_dead(void *arg, const lapse_info *dead)
{
    must(arg == &f && dead->state == LAPSE_STATE_DEAD && dead->id && dead->queue);
    must(dead->reason >= LAPSE_REASON_FAILED && dead->reason <= LAPSE_REASON_LOST);
    must(lapse_timeout(f.s) >= 0);
}

static void on_log(void *arg, lapse_level level, const char *message)
{
    must(arg == &f && level == LAPSE_WARNING && *message);
}

/* -- Schedule ------------------------------------------------------------------------ */

static const uint8_t payload[64];

static void fill_spec(lapse_spec *spec, unsigned id)
{
    unsigned flags = next_byte(&f.in);
    *spec = (lapse_spec){.id = id_at(id), .queue = next_queue()};
    spec->delay = next_duration(&f.in);
    if (flags & 1)
        spec->fn = run;
    if (flags & 2)
        spec->flags = LAPSE_REPLACE;
    if (flags & 4)
        spec->release = release;
    if (flags & 8) {
        spec->payload = payload;
        spec->payload_len = flags >> 4;
    }
    if ((flags & 0xf0) == 0xf0) /* The wall clock starts at 2026. */
        spec->at = add(INT64_C(1767225600000000000), spec->delay);
    if (!(flags & 2) && (flags & 0xf0) == 0x70)
        spec->flags = 4; /* There is no such flag. */
}

static bool is_valid(const lapse_spec *spec, unsigned id)
{
    return id < VALID_IDS && spec->flags <= LAPSE_REPLACE &&
           (spec->at || spec->delay <= LAPSE_DELAY_MAX);
}

/* Whether `code` is a possible answer. */
static void check_refusal(const lapse_spec *spec, unsigned id, int64_t code)
{
    if (!is_valid(spec, id))
        must(code == LAPSE_EID || code == LAPSE_ERANGE || code == LAPSE_EINVAL ||
             (f.stopped && code == LAPSE_ECLOSED));
    else if (f.stopped)
        must(code == LAPSE_ECLOSED || (spec->at && code == LAPSE_ERANGE));
    else
        must((code == LAPSE_EEXISTS && f.newest[id] && !(spec->flags & LAPSE_REPLACE)) ||
             (code == LAPSE_EFULL && f.max_pending) || (spec->at && code == LAPSE_ERANGE));
}

static void note_put(const lapse_spec *spec, unsigned id, int64_t code)
{
    if (code <= 0) {
        check_refusal(spec, id, code);
        return;
    }
    must(is_valid(spec, id) && !f.stopped);
    ((token *)spec->arg)->accepted = true;
    note_birth(id, code, spec->at ? 0 : add(lapse_now(f.s), spec->delay));
}

static void call_put(void)
{
    lapse_spec spec;
    unsigned id = below(&f.in, IDS);
    fill_spec(&spec, id);
    spec.arg = new_token();
    note_put(&spec, id, lapse_put(f.s, &spec));
}

static void call_schedule(void)
{
    unsigned id = below(&f.in, IDS);
    lapse_ns delay = next_duration(&f.in);
    lapse_spec spec = {.id = id_at(id), .delay = delay, .fn = run, .arg = new_token()};
    note_put(&spec, id, lapse_schedule(f.s, spec.id, delay, run, spec.arg));
}

/* Accepted one after the other, but noted only now: a later one may have replaced an
 * earlier one. */
static void call_schedule_many(void)
{
    enum { MOST = 40 };
    lapse_spec specs[MOST] = {{.id = NULL}};
    unsigned ids[MOST];
    int64_t results[MOST] = {0}, accepted = 0;
    unsigned count = below(&f.in, MOST + 1);
    for (unsigned i = 0; i < count; i++) {
        ids[i] = below(&f.in, IDS);
        fill_spec(&specs[i], ids[i]);
        specs[i].arg = new_token();
        ((token *)specs[i].arg)->accepted = true; /* May be released before the call returns. */
    }
    int64_t answered = lapse_schedule_many(f.s, specs, count, results);
    for (unsigned i = 0; i < count; i++) {
        accepted += results[i] > 0;
        token *t = specs[i].arg;
        must(results[i] > 0 || t->released == 0);
        t->accepted = false;
        if (results[i] > 0 || !is_valid(&specs[i], ids[i]))
            note_put(&specs[i], ids[i], results[i]);
    }
    must(answered == accepted);
}

/* -- Cancel and change ---------------------------------------------------------------- */

static int64_t next_generation(unsigned id)
{
    unsigned which = next_byte(&f.in);
    return which < 128 ? LAPSE_ANY : f.newest[id] - (which > 200);
}

static void call_cancel(void)
{
    unsigned id = below(&f.in, IDS);
    int64_t generation = next_generation(id);
    int fate = below(&f.in, 4) ? lapse_cancel(f.s, id_at(id), generation)
                               : lapse_cancel_wait(f.s, id_at(id), generation, 0);
    must(fate >= LAPSE_FATE_UNKNOWN && fate <= LAPSE_FATE_DONE && fate != LAPSE_FATE_RESCHEDULED);
    if (fate == LAPSE_FATE_CANCELLED || fate == LAPSE_FATE_RUNNING) {
        must(f.newest[id] && (!generation || generation == f.newest[id]));
        birth_of(f.newest[id])->no_more = true;
    }
}

static void call_reschedule(void)
{
    unsigned id = below(&f.in, IDS);
    int64_t generation = next_generation(id);
    lapse_ns delay = next_duration(&f.in);
    int fate = lapse_reschedule(f.s, id_at(id), generation, delay);
    must((fate >= LAPSE_FATE_UNKNOWN && fate <= LAPSE_FATE_DONE) || fate == LAPSE_ERANGE ||
         fate == LAPSE_ECLOSED);
    if (fate == LAPSE_FATE_RESCHEDULED) {
        must(!f.stopped && f.newest[id] && !birth_of(f.newest[id])->no_more);
        birth_of(f.newest[id])->earliest = add(lapse_now(f.s), delay);
    }
}

/* -- Deliver -------------------------------------------------------------------------- */

static void call_process(void)
{
    int64_t ran = lapse_process(f.s, below(&f.in, 5));
    must(ran >= 0 || (f.stopped && ran == LAPSE_ECLOSED));
}

static void hold(const lapse_order *order, token *t)
{
    note_start(order);
    if (t)
        t->running++;
    f.held[f.held_count++] = (held){order->fence, order->generation, t};
}

static void call_begin(void)
{
    const lapse_order *order;
    lapse_callback fn;
    void *arg;
    if (f.held_count == HELD)
        return;
    int code =
        lapse_begin(f.s, below(&f.in, 2) ? LAPSE_FOREVER : lapse_now(f.s), &order, &fn, &arg);
    must(code == 0 || code == 1 || (f.stopped && code == LAPSE_ECLOSED));
    if (code != 1)
        return;
    must(fn == run);
    hold(order, arg);
}

static void call_poll(void)
{
    const lapse_order *order;
    if (f.held_count == HELD)
        return;
    int code = below(&f.in, 2) ? lapse_poll(f.s, next_queue(), &order)
                               : lapse_take(f.s, next_queue(), 0, &order);
    must(code == 0 || code == 1 || code == LAPSE_EMIXED || (f.stopped && code == LAPSE_ECLOSED));
    if (code == 1)
        hold(order, NULL);
    else
        must(!order);
}

static int settle(const held *h, lapse_verdict verdict, lapse_ns delay)
{
    bool again = verdict == LAPSE_RETRY && delay >= 0 && lapse_holds(f.s, h->fence);
    if (h->token)
        h->token->running--;
    int code =
        lapse_settle(f.s, h->fence, verdict, delay, below(&f.in, 2) ? "no \xff route" : NULL);
    must(code == 0 || code == LAPSE_ESTALE);
    if (again && code == 0)
        note_retry(h->generation, delay);
    must(lapse_settle(f.s, h->fence, LAPSE_DONE, 0, NULL) == LAPSE_ESTALE);
    must(!lapse_holds(f.s, h->fence) && lapse_renew(f.s, h->fence, 0) == LAPSE_ESTALE);
    return code;
}

static void call_settle(void)
{
    if (!f.held_count)
        return;
    unsigned n = below(&f.in, f.held_count);
    held h = f.held[n];
    f.held[n] = f.held[--f.held_count];
    lapse_verdict verdict = (lapse_verdict)below(&f.in, 5);
    settle(&h, verdict, next_duration(&f.in));
}

static void call_renew(void)
{
    if (!f.held_count)
        return;
    const held *h = &f.held[below(&f.in, f.held_count)];
    bool holds = lapse_holds(f.s, h->fence);
    int code = lapse_renew(f.s, h->fence, next_duration(&f.in));
    must(code == LAPSE_ERANGE || (code == 0) == holds);
}

static void call_wait(void)
{
    int code = lapse_wait(f.s, 0);
    must(code == 0 || code == 1 || (f.stopped && code == LAPSE_ECLOSED));
    must(code != 0 || f.stopped || lapse_timeout(f.s) >= 0);
}

/* -- Queues and dead letters ----------------------------------------------------------- */

static void fill_policy(lapse_policy *p)
{
    *p = (lapse_policy){.attempts = (int)below(&f.in, 4)};
    unsigned set = next_byte(&f.in);
    if (set & 1)
        p->backoff = next_duration(&f.in);
    if (set & 2)
        p->backoff_max = next_duration(&f.in);
    if (set & 4)
        p->backoff_percent = 90 + (int)next_byte(&f.in);
    if (set & 8)
        p->jitter_percent = (int)next_byte(&f.in) - 120;
    if (set & 16)
        p->run_limit = next_duration(&f.in);
    if (set & 32)
        p->expires = next_duration(&f.in);
    if (set & 64)
        p->stuck_after = next_duration(&f.in);
    if (set & 128)
        p->rate = next_byte(&f.in);
}

static void call_handle(void)
{
    lapse_policy policy;
    const char *queue = next_queue();
    fill_policy(&policy);
    token *t = new_token();
    bool none = below(&f.in, 4) == 0;
    t->accepted = true; /* For a release from within. */
    int code = lapse_handle(f.s, queue, none ? NULL : run, t, release, &policy);
    must(code == 0 || code == LAPSE_ERANGE || code == LAPSE_EMIXED ||
         (f.stopped && code == LAPSE_ECLOSED));
    must(t->released == 0);
    t->accepted = code == 0 && !none;
}

static void call_pause(void)
{
    const char *queue = next_queue();
    int code = below(&f.in, 2) ? lapse_resume(f.s, queue) : lapse_pause(f.s, queue);
    must(code == 0);
}

static void call_requeue(void)
{
    unsigned id = below(&f.in, IDS);
    lapse_ns delay = next_duration(&f.in);
    int64_t code = lapse_requeue(f.s, id_at(id), next_generation(id), delay);
    if (code > 0)
        note_birth(id, code, add(lapse_now(f.s), delay));
    else
        must(code == LAPSE_EUNKNOWN || code == LAPSE_EEXISTS || code == LAPSE_ERANGE ||
             (f.max_pending && code == LAPSE_EFULL) || (f.stopped && code == LAPSE_ECLOSED));
}

static void call_purge(void)
{
    unsigned id = below(&f.in, IDS + 1);
    must(lapse_purge(f.s, id < IDS ? id_at(id) : NULL,
                     id < IDS ? next_generation(id) : LAPSE_ANY) >= 0);
}

/* -- Look ------------------------------------------------------------------------------ */

static void call_get(void)
{
    lapse_info info;
    unsigned id = below(&f.in, IDS);
    int code = lapse_get(f.s, id_at(id), &info);
    must(code == 0 || code == LAPSE_EUNKNOWN);
    if (code < 0)
        return;
    must(strcmp(info.id, id_at(id)) == 0 && info.generation <= f.newest[id]);
    must((info.state == LAPSE_STATE_DEAD) == (info.reason != LAPSE_REASON_NONE));
    must(info.state == LAPSE_STATE_PENDING || info.remaining == 0);
    lapse_info_free(&info);
}

static bool stop_some_time(const lapse_info *info, void *arg)
{
    (void)arg;
    must(info->id && info->queue && strlen(info->id) == info->id_len);
    return below(&f.in, 4) != 0;
}

static void call_each(void)
{
    unsigned states = below(&f.in, 32);
    int64_t shown = lapse_each(f.s, states, stop_some_time, NULL);
    must(states < 16 ? shown >= 0 : shown == LAPSE_EINVAL);
}

static void call_metrics(void)
{
    char *text = lapse_metrics(f.s);
    must(text && strstr(text, "lapse_orders{state=\"pending\"} "));
    must(text[strlen(text) - 1] == '\n');
    lapse_free(text);
}

/* -- Time ------------------------------------------------------------------------------ */

static void call_advance(void)
{
    lapse_ns before = lapse_now(f.s), by = next_duration(&f.in);
    int code = lapse_clock_advance(f.clock, by);
    must(code == 0 || code == LAPSE_ERANGE);
    must(lapse_now(f.s) == before + (code == 0 ? by : 0));
}

static void call_advance_to_next(void)
{
    lapse_ns timeout = lapse_timeout(f.s);
    must(timeout >= 0);
    if (timeout != LAPSE_FOREVER)
        lapse_clock_advance(f.clock, timeout);
}

static void call_set_wall(void)
{
    int code = lapse_clock_set_wall(f.clock, next_duration(&f.in));
    must(code == 0 || code == LAPSE_ERANGE);
}

static void call_stop(void)
{
    if (below(&f.in, 8)) /* Seldom: little happens after it. */
        return;
    must(lapse_stop(f.s) == 0);
    f.stopped = true;
}

static void call_fd(void)
{
    must(lapse_fd(f.s) >= 0 && lapse_abilities(f.s) != 0 && lapse_after_fork(f.s) == 0);
}

/* -- What holds after every call -------------------------------------------------------- */

static bool count_state(const lapse_info *info, void *arg)
{
    uint64_t *counts = arg;
    counts[info->state]++;
    return true;
}

static void check_list(const lapse_stats *t)
{
    uint64_t counts[16] = {0};
    must(lapse_each(f.s, 0, count_state, counts) >= 0);
    must(counts[LAPSE_STATE_PENDING] == t->pending);
    must(counts[LAPSE_STATE_RUNNING] == t->running);
    must(counts[LAPSE_STATE_DEAD] == t->dead);
    must(counts[LAPSE_STATE_DONE] <= t->kept);
}

static void check_queues(const lapse_stats *t)
{
    lapse_queue_stats q, sum = {.queue = NULL};
    const char *name;
    for (size_t n = 0; (name = lapse_queue_name(f.s, n)); n++) {
        must(lapse_queue_statistics(f.s, name, &q) == 0);
        sum.pending += q.pending;
        sum.running += q.running;
        sum.dead += q.dead;
        sum.started += q.started;
        sum.failed += q.failed;
        sum.dead_total += q.dead_total;
    }
    must(sum.pending == t->pending && sum.running == t->running && sum.dead == t->dead);
    must(sum.started == t->started && sum.failed == t->failed && sum.dead_total == t->dead_total);
}

static void check_statistics(bool closely)
{
    lapse_stats t;
    must(lapse_statistics(f.s, &t) == 0);
    must(t.scheduled == t.done + t.cancelled + t.replaced + t.dead_total + t.pending + t.running);
    uint64_t dead = 0;
    for (int i = 0; i < 6; i++)
        dead += t.dead_by[i];
    must(dead == t.dead_total && t.dead_by[LAPSE_REASON_NONE] == 0);
    must(t.dead_total == t.dead + t.dead_dropped + t.purged + t.requeued);
    must(!f.max_pending || t.pending + t.running <= f.max_pending);
    must(t.dead <= f.max_dead);
    if (!closely)
        return;
    check_list(&t);
    check_queues(&t);
}

static void one_call(void)
{
    static void (*const calls[])(void) = {
        call_put,
        call_put,
        call_schedule,
        call_schedule_many,
        call_cancel,
        call_process,
        call_process,
        call_begin,
        call_poll,
        call_settle,
        call_advance,
        call_advance,
        call_advance_to_next,
        call_reschedule,
        call_renew,
        call_handle,
        call_pause,
        call_requeue,
        call_purge,
        call_get,
        call_each,
        call_metrics,
        call_wait,
        call_set_wall,
        call_stop,
        call_fd,
    };
    unsigned n = next_byte(&f.in);
    if (room_for_more())
        calls[n % (sizeof calls / sizeof *calls)]();
    if (++f.calls % 16 == 0)
        check_statistics(f.calls % 64 == 0);
}

/* -- One input -------------------------------------------------------------------------- */

static void open_scheduler(void)
{
    static const char *const urls[] = {
        "memory:",
        "memory:?engine=heap",
        "memory:?tick=1us&slots=128",
        "memory:?tick=1h&slots=4096",
        "memory:?tick=7ms",
    };
    static const lapse_ns starts[] = {0, LAPSE_HOURS(1), LAPSE_HOURS(1) + 123456789,
                                      LAPSE_DAYS(3650), LAPSE_DELAY_MAX};
    const char *url = urls[below(&f.in, 5)];
    must(lapse_clock_manual(starts[below(&f.in, 5)], &f.clock) == 0);
    unsigned set = next_byte(&f.in);
    lapse_options options = {
        .clock = f.clock,
        .max_pending = set & 1 ? 1 + below(&f.in, 8) : 0,
        .overflow = set & 2 ? LAPSE_DEAD_LETTER_OLDEST : LAPSE_REFUSE,
        .keep = set & 4 ? LAPSE_SECONDS(5) : 0,
        .max_dead = set & 8 ? 1 + below(&f.in, 4) : 0,
        .lease = set & 16 ? LAPSE_MS(5) : 0,
        .stuck_after = set & 32 ? LAPSE_MS(2) : 0,
        .release = release,
        .hook_arg = &f,
        .on_error = set & 64 ? on_error : NULL,
        .on_dead = set & 64 ? on_dead : NULL,
        .log = set & 128 ? on_log : NULL,
    };
    must(lapse_open(url, &options, &f.s) == 0);
    f.max_pending = options.max_pending;
    f.max_dead = options.max_dead ? options.max_dead : 10000;
}

static void close_scheduler(void)
{
    while (f.held_count) {
        held h = f.held[--f.held_count];
        settle(&h, LAPSE_DONE, 0);
    }
    check_statistics(true);
    f.closing = true;
    must(lapse_close(f.s, 0) == 0);
    lapse_clock_free(f.clock);
    for (unsigned i = 0; i < f.token_count; i++)
        must(f.tokens[i].released == f.tokens[i].accepted);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    memset(&f, 0, offsetof(__typeof__(f), tokens));
    memset(f.tokens, 0, f.token_count * sizeof *f.tokens);
    f.token_count = 0;
    f.first_generation = f.last_generation = f.last_fence = 0;
    memset(f.newest, 0, sizeof f.newest);
    f.held_count = 0;
    f.in = (bytes){data, data + size};
    open_scheduler();
    while (any_left(&f.in))
        one_call();
    close_scheduler();
    return 0;
}
