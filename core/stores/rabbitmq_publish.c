/* rabbitmq_publish.c - orders on their way: the route, the confirm, what follows from it.
 *
 * A turn publishes all that it has to and waits once for the confirms (lp_rabbit_flush). Only
 * what was confirmed lets go of the message that it takes the place of. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "stores/rabbitmq.h"

/* What may be under way: with more, who publishes could fill the socket and wait for a broker that
 * waits for him. */
enum { MOST_BYTES = 256 << 10, MOST_MESSAGES = 500, OVERHEAD = 300 };

static const lapse_ns BLOCKED_LIMIT = LAPSE_SECONDS(1);

/* -- Delays that come again and again -- */

static const int64_t GRID_MS = 50; /* what a queue of one delay may add to it */

/* A queue that is made is never deleted. So it is made only for what looks like a setting, whole
 * seconds that are asked for in many turns, and not for a batch that is due at some instant. */
enum { OFTEN = 32, WHOLE_MS = 1000 };

static int find_fixed(const rabbit_delays *k, int64_t ms)
{
    for (int i = 0; i < k->fixed_count; i++)
        if (ms <= k->fixed[i] && k->fixed[i] - ms < GRID_MS)
            return i;
    return -1;
}

/* As of Misra and Gries: what is more than one in so many of all delays is among those counted. What
 * is asked for in one turn is one batch, and counts once. */
static unsigned count_delay(rabbit_delays *k, int64_t ms, lapse_ns turn)
{
    int free_one = -1;
    for (int i = 0; i < LP_RABBIT_COUNTERS; i++) {
        if (k->seen[i].count && k->seen[i].ms == ms) {
            k->seen[i].count += k->seen[i].turn != turn;
            k->seen[i].turn = turn;
            return k->seen[i].count;
        }
        if (!k->seen[i].count)
            free_one = i;
    }
    if (free_one >= 0) {
        k->seen[free_one].ms = ms;
        k->seen[free_one].turn = turn;
        return k->seen[free_one].count = 1;
    }
    for (int i = 0; i < LP_RABBIT_COUNTERS; i++)
        k->seen[i].count--;
    return 0;
}

int lp_rabbit_fixed(rabbit_store *d, lapse_ns delay)
{
    rabbit_delays *k = &d->delays;
    int64_t ms = delay / LAPSE_MS(1) + (delay % LAPSE_MS(1) > 0);
    int found = find_fixed(k, ms);
    if (found >= 0 || d->settings.fixed_given || k->fixed_count == LP_RABBIT_FIXED_MOST ||
        ms > LAPSE_DAYS(3650) / LAPSE_MS(1))
        return found;
    int64_t grid = (ms + GRID_MS - 1) / GRID_MS * GRID_MS;
    if (grid % WHOLE_MS || count_delay(k, grid, d->turn_at) < OFTEN)
        return -1;
    k->is_declared[k->fixed_count] = false;
    k->fixed[k->fixed_count] = grid;
    return k->fixed_count++;
}

/* -- Under way -- */

static size_t size_of(const rabbit_order *o)
{
    return o->payload_len + o->id_len + OVERHEAD;
}

static rabbit_sent *find_sent(rabbit_store *d, uint64_t number)
{
    uint64_t at = number - d->sent_first;
    return number >= d->sent_first && at < d->sent_count ? &d->sent[at] : NULL;
}

static void stop_waiting(rabbit_store *d, const rabbit_sent *s)
{
    if (s->waived)
        return;
    d->sent_open--;
    d->sent_bytes -= s->bytes;
}

static void end_one(rabbit_store *d, rabbit_sent *s, sent_state how)
{
    if (!s->open)
        return;
    s->open = false;
    if (how != LOST && how != TOO_LARGE && s->body > d->body_taken)
        d->body_taken = s->body;
    if (s->state == SENT)
        s->state = how;
    stop_waiting(d, s);
}

static void waive_all(rabbit_store *d)
{
    for (size_t i = 0; i < d->sent_count; i++) {
        rabbit_sent *s = &d->sent[i];
        if (!s->open || s->waived)
            continue;
        stop_waiting(d, s);
        s->waived = true;
    }
}

void lp_rabbit_note_confirm(rabbit_store *d, uint64_t number, bool multiple, bool accepted)
{
    for (size_t i = 0; multiple && i < d->sent_count && d->sent_first + i < number; i++)
        end_one(d, &d->sent[i], accepted ? ACCEPTED : REFUSED);
    rabbit_sent *s = find_sent(d, number);
    if (s)
        end_one(d, s, accepted ? ACCEPTED : REFUSED);
}

/* It comes before the confirm. */
void lp_rabbit_note_returned(rabbit_store *d, uint64_t number)
{
    rabbit_sent *s = find_sent(d, number);
    if (s && s->open)
        s->state = RETURNED;
}

/* For the first body that is larger than it takes the broker closes the channel, and says how large
 * it may be. */
static void find_too_large(rabbit_store *d)
{
    if (!lp_rabbit_said_limit(&d->out, &d->body_most))
        return;
    size_t i = 0;
    while (i < d->sent_count && (!d->sent[i].open || d->sent[i].body <= d->body_most))
        i++;
    if (i < d->sent_count)
        end_one(d, &d->sent[i], TOO_LARGE);
}

void lp_rabbit_lose_sent(rabbit_store *d)
{
    if (d->out_closed)
        find_too_large(d);
    for (size_t i = 0; i < d->sent_count; i++)
        end_one(d, &d->sent[i], LOST);
}

/* What has not been confirmed in time. */
static void give_up_waiting(rabbit_store *d)
{
    if (d->out.blocked) {
        lp_fail(LAPSE_ETIMEOUT, "RabbitMQ takes nothing in: %.100s", d->out.blocked_for);
        waive_all(d);
        return;
    }
    lp_rabbit_disconnect(&d->out, false); /* A late confirm has no meaning any more. */
    lp_rabbit_lose_sent(d);
    lp_fail(LAPSE_ETIMEOUT, "RabbitMQ has not confirmed within the URL option timeout");
}

/* Until no more than that is under way. */
static void await_confirms(rabbit_store *d, size_t messages, size_t bytes)
{
    lapse_ns start = lp_clock_monotonic();
    while (d->sent_open > messages || d->sent_bytes > bytes) {
        lapse_ns limit = d->settings.timeout;
        if (d->out.blocked && limit > BLOCKED_LIMIT)
            limit = BLOCKED_LIMIT;
        lapse_ns left = lp_add_ns(start, limit) - lp_clock_monotonic();
        lp_rabbit_breathe(d);
        if (left <= 0)
            give_up_waiting(d);
        else if (lp_rabbit_pump(&d->out, left < LAPSE_MS(100) ? left : LAPSE_MS(100)) < 0)
            lp_rabbit_lose_sent(d);
        if (d->out_closed) {
            lp_rabbit_lose_sent(d);
            lp_fail(LAPSE_EUNSURE, "RabbitMQ has closed the channel: %.200s", d->out.closed_for);
        }
    }
}

static bool make_room(rabbit_store *d)
{
    if (d->sent_count < d->sent_room)
        return true;
    size_t room = d->sent_room ? 2 * d->sent_room : 64;
    rabbit_sent *more = realloc(d->sent, room * sizeof *more);
    if (!more)
        return false;
    d->sent = more;
    d->sent_room = room;
    return true;
}

static int blocked(const rabbit_link *l)
{
    return lp_fail(LAPSE_ESYSTEM,
                   "RabbitMQ takes nothing in until it has memory and disk again: %.100s",
                   l->blocked_for);
}

bool lp_rabbit_is_too_large(const rabbit_store *d, size_t body)
{
    return body > d->body_most;
}

int lp_rabbit_refuse_large(const rabbit_store *d, size_t body)
{
    return lp_fail(LAPSE_EINVAL,
                   "the payload has %zu bytes, and RabbitMQ takes %zu at most: raise its setting "
                   "max_message_size, or keep the data elsewhere and let the order name it",
                   body, d->body_most);
}

/* A body that is larger than any before may cost the channel, and with it what is not confirmed: it
 * is under way alone. */
static bool is_trial(const rabbit_store *d, const rabbit_sent *s)
{
    return s->body > d->body_taken;
}

static int make_way(rabbit_store *d, const rabbit_sent *s)
{
    size_t most = s->bytes < MOST_BYTES ? MOST_BYTES - s->bytes : 0;
    if (is_trial(d, s))
        await_confirms(d, 0, 0);
    else
        await_confirms(d, MOST_MESSAGES, most);
    if (d->out_closed && d->out.closed_code == AMQP_PRECONDITION_FAILED)
        (void)lp_rabbit_reopen_out(d);
    if (d->out.blocked)
        return blocked(&d->out);
    if (!d->out.connection || d->out_closed)
        return lp_fail(LAPSE_EOFFLINE, "the connection to RabbitMQ was lost");
    return LAPSE_OK;
}

int lp_rabbit_send_to(rabbit_store *d, const char *exchange, const char *key, const rabbit_order *o,
                      rabbit_sent sent)
{
    if (lp_rabbit_is_too_large(d, o->payload_len))
        return lp_rabbit_refuse_large(d, o->payload_len);
    if (d->out.connection && lp_rabbit_drain(&d->out) < 0)
        return LAPSE_EOFFLINE;
    if (d->out.blocked)
        return blocked(&d->out);
    if (!make_room(d))
        return lp_fail_memory();
    sent.bytes = size_of(o);
    sent.body = o->payload_len;
    int code = make_way(d, &sent);
    if (code < 0)
        return code;
    code = lp_rabbit_publish(&d->out, LP_RABBIT_PUBLISH, exchange, key, o, d->published + 1);
    if (code < 0) {
        lp_rabbit_lose_sent(d);
        return code;
    }
    d->published++;
    if (d->sent_count == 0)
        d->sent_first = d->published;
    sent.state = SENT;
    sent.open = true;
    d->sent[d->sent_count++] = sent;
    d->sent_open++;
    d->sent_bytes += sent.bytes;
    if (sent.held)
        sent.held->settling = true;
    if (is_trial(d, &sent))
        await_confirms(d, 0, 0);
    return LAPSE_OK;
}

/* -- Routes -- */

static lapse_ns later_of(lapse_ns a, lapse_ns b)
{
    return a > b ? a : b;
}

/* So short a time is waited for here, once it is delivered: the ladder's step is longer. */
static const lapse_ns SHORT = LAPSE_MS(20);

static int climb(rabbit_store *d, int level)
{
    int from = d->levels, code = LAPSE_OK;
    lapse_ns settles = 0;
    d->in.made = false;
    while (code == LAPSE_OK && d->levels <= level) {
        code = lp_rabbit_declare_level(&d->in, LP_RABBIT_DECLARE, d->settings.prefix, d->levels);
        d->levels += code == LAPSE_OK;
    }
    if (code == LAPSE_OK && from < d->levels)
        code = lp_rabbit_settles(d, &settles);
    if (code < 0)
        d->levels = from;
    for (int i = from; i < d->levels; i++)
        d->level_settles[i] = settles;
    return code;
}

/* What is left of a delay that counts from the turn's beginning: to declare takes its time. */
static lapse_ns left_of(const rabbit_store *d, lapse_ns delay)
{
    lapse_ns passed = lp_clock_monotonic() - d->turn_at;
    return delay > passed ? delay - passed : 0;
}

/* The way of an order: where it is published, and when all queues on it have settled. A queue that
 * was made just now does not survive a kill of the broker, which notes its number on the disk a
 * moment later. */
typedef struct way {
    char exchange[LP_RABBIT_NAME_MAX + 1], key[LP_RABBIT_NAME_MAX + 1];
    lapse_ns settles;
} way;

static void go_straight(const rabbit_queue *q, way *out)
{
    *out->exchange = '\0';
    snprintf(out->key, sizeof out->key, "%s", q->work);
}

static int go_by_ladder(rabbit_store *d, lapse_ns delay, const rabbit_queue *q, way *out)
{
    rabbit_route route;
    lp_rabbit_route(&route, lp_rabbit_steps(delay), q->word);
    int code = climb(d, route.level);
    if (code < 0)
        return code;
    lp_rabbit_route(&route, lp_rabbit_steps(left_of(d, delay)), q->word);
    if (route.level < 0) {
        go_straight(q, out);
        return LAPSE_OK;
    }
    for (int i = 0; i <= route.level; i++)
        out->settles = later_of(out->settles, d->level_settles[i]);
    lp_rabbit_name_level(out->exchange, d->settings.prefix, route.level);
    snprintf(out->key, sizeof out->key, "%s", route.key);
    return LAPSE_OK;
}

/* Until it has settled the ladder serves, which others have needed before. */
static bool is_settled(rabbit_store *d, int fixed, int *code)
{
    rabbit_delays *k = &d->delays;
    *code = LAPSE_OK;
    if (!k->is_declared[fixed]) {
        d->in.made = false;
        *code =
            lp_rabbit_declare_fixed(&d->in, LP_RABBIT_DECLARE, d->settings.prefix, k->fixed[fixed]);
        if (*code == LAPSE_OK)
            *code = lp_rabbit_settles(d, &k->settles[fixed]);
        k->is_declared[fixed] = *code == LAPSE_OK;
    }
    return *code == LAPSE_OK && lp_clock_monotonic() >= k->settles[fixed];
}

static void go_by_fixed(const rabbit_store *d, int fixed, const rabbit_queue *q, way *out)
{
    lp_rabbit_name_fixed(out->exchange, d->settings.prefix, d->delays.fixed[fixed]);
    snprintf(out->key, sizeof out->key, "%s", q->word);
}

static int find_way(rabbit_store *d, rabbit_queue *q, lapse_ns delay, bool is_new, way *out)
{
    int code = LAPSE_OK;
    out->settles = q->settles;
    if (d->config.manual || delay <= SHORT) {
        go_straight(q, out);
        return LAPSE_OK;
    }
    int fixed = is_new ? lp_rabbit_fixed(d, delay) : -1;
    if (fixed >= 0 && is_settled(d, fixed, &code)) {
        go_by_fixed(d, fixed, q, out);
        return LAPSE_OK;
    }
    return code < 0 ? code : go_by_ladder(d, delay, q, out);
}

static lapse_ns start_of(const rabbit_order *o)
{
    return later_of(o->at, o->due);
}

static lapse_ns delay_of(const rabbit_store *d, const lp_turn *t, const rabbit_order *o)
{
    return lp_sum_ns(start_of(o), -lp_rabbit_utc(d, t, t->now));
}

static int use_queue_of(rabbit_store *d, const rabbit_order *o, rabbit_queue **out)
{
    *out = lp_rabbit_queue(d, o->queue);
    return *out ? lp_rabbit_use_queue(d, *out) : lp_fail_memory();
}

int lp_rabbit_way_settles(rabbit_store *d, const lp_turn *t, const rabbit_order *o, lapse_ns *out)
{
    way w;
    rabbit_queue *q;
    int code = use_queue_of(d, o, &q);
    if (code == LAPSE_OK)
        code = find_way(d, q, delay_of(d, t, o), false, &w);
    *out = code == LAPSE_OK ? w.settles : 0;
    return code;
}

int lp_rabbit_send_order(rabbit_store *d, const lp_turn *t, const rabbit_order *o, rabbit_sent sent)
{
    way w;
    rabbit_queue *q;
    int code = use_queue_of(d, o, &q);
    if (code < 0)
        return code;
    lapse_ns delay = delay_of(d, t, o);
    if (sent.job && sent.job->op == LP_SCHEDULE && lp_rabbit_is_shops(d, o))
        return lp_rabbit_send_to_shop(d, delay, o, sent);
    q->first = start_of(o) < q->first ? start_of(o) : q->first;
    code = find_way(d, q, delay, sent.job && sent.job->op != LP_AGAIN, &w);
    sent.settles = w.settles;
    return code < 0 ? code : lp_rabbit_send_to(d, w.exchange, w.key, o, sent);
}

int lp_rabbit_send_dead(rabbit_store *d, const rabbit_order *o, rabbit_sent sent)
{
    char name[LP_RABBIT_NAME_MAX + 1];
    int code = lp_rabbit_use_base(d);
    if (code < 0)
        return code;
    lp_rabbit_name(name, d->settings.prefix, "dead");
    sent.settles = d->dead_settles;
    return lp_rabbit_send_to(d, "", name, o, sent);
}

/* -- Confirmed, or not -- */

static int fault_of(rabbit_store *d, const rabbit_sent *s, const lp_detail *lost)
{
    switch (s->state) {
    case REFUSED:
        return lp_fail(LAPSE_EFULL,
                       "RabbitMQ refuses it: a queue on its way is at its limit (a policy's "
                       "max-length), or could not write it");
    case TOO_LARGE:
        return lp_rabbit_refuse_large(d, s->body);
    case RETURNED:
        if (s->to_shop)
            return lp_rabbit_returned_by_shop(d);
        lp_rabbit_forget_topology(d);
        return lp_fail(LAPSE_ESYSTEM,
                       "RabbitMQ has no queue for it: it was deleted while lapse used it, and is "
                       "declared anew when it is needed again");
    default:
        return lp_fail(LAPSE_EUNSURE, "whether it was done is not known: %.400s", lost->text);
    }
}

static void give_up(rabbit_store *d, rabbit_message *m)
{
    lp_rabbit_requeue(&d->in, m->channel, m->tag, false);
    lp_rabbit_forget_message(m);
}

/* The message that was replaced is kept until what took its place is safe. */
static void finish_at(rabbit_store *d, rabbit_message *m, lapse_ns settles)
{
    if (settles <= lp_clock_monotonic()) {
        lp_rabbit_finish(d, m);
        return;
    }
    m->settles = settles;
    m->next = d->replaced;
    d->replaced = m;
}

int lp_rabbit_finish_replaced(rabbit_store *d)
{
    int code = LAPSE_OK;
    lapse_ns now = lp_clock_monotonic();
    for (rabbit_message **at = &d->replaced; code == LAPSE_OK && *at;) {
        rabbit_message *m = *at;
        if (m->settles > now) {
            at = &m->next;
            continue;
        }
        *at = m->next;
        code = lp_rabbit_finish(d, m);
    }
    return code;
}

lapse_ns lp_rabbit_next_replaced(const rabbit_store *d)
{
    lapse_ns next = LAPSE_FOREVER;
    for (const rabbit_message *m = d->replaced; m; m = m->next)
        next = m->settles < next ? m->settles : next;
    return next;
}

/* Whoever schedules is answered once the order survives a kill of the broker. */
static void put_off(const rabbit_store *d, lp_job *j, lapse_ns settles)
{
    if (j->op != LP_SCHEDULE || settles <= lp_clock_monotonic())
        return;
    j->later = true;
    j->later_at = settles;
    j->row = d->links_made;
    j->fence = j->answer;
}

/* Whether it was done shows later: what it takes the place of waits for that. */
static void end_job(rabbit_store *d, rabbit_sent *s, const lp_detail *why)
{
    if (s->job)
        lp_job_fail(s->job, fault_of(d, s, why));
    s->job = NULL;
}

static int outcome_of(rabbit_store *d, const rabbit_sent *s, const lp_detail *lost)
{
    if (s->state == ACCEPTED)
        return LAPSE_OK;
    if (s->state == TOO_LARGE && s->held)
        return lp_rabbit_settle_large(d, s->job, s->held);
    return fault_of(d, s, lost);
}

static void end_sent(rabbit_store *d, rabbit_sent *s, const lp_detail *lost)
{
    bool accepted = s->state == ACCEPTED;
    int code = outcome_of(d, s, lost);
    s->ended = true;
    if (code < 0 && s->job)
        lp_job_fail(s->job, code);
    else if (s->job)
        put_off(d, s->job, s->settles);
    if (s->held && accepted) {
        rabbit_message *m = s->held->message;
        lp_rabbit_drop_held(d, s->held);
        finish_at(d, m, s->settles);
    } else if (s->held && s->state != TOO_LARGE) {
        s->held->settling = false;
    }
    if (s->message && accepted)
        finish_at(d, s->message, s->settles);
    else if (s->message)
        give_up(d, s->message);
    s->message = NULL; /* It may stand here for a while yet, and these are gone. */
    s->held = NULL;
    s->job = NULL;
}

int lp_rabbit_flush(rabbit_store *d)
{
    lp_detail lost;
    await_confirms(d, 0, 0);
    lp_detail_save(&lost);
    lp_rabbit_note_losses(d); /* Of what was held, some may be gone. */
    size_t open = 0;
    for (size_t i = 0; i < d->sent_count; i++) {
        rabbit_sent *s = &d->sent[i];
        open += s->open;
        if (s->open)
            end_job(d, s, &lost);
        else if (!s->ended)
            end_sent(d, s, &lost);
    }
    if (!open)
        d->sent_count = 0;
    return LAPSE_OK;
}
