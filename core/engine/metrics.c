/* metrics.c - the statistics as text, in Prometheus' exposition format 0.0.4.
 *
 * https://prometheus.io/docs/instrumenting/exposition_formats/ */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "engine/engine.h"

/* A text that grows; after a failure it only remembers that. */
typedef struct text {
    char *bytes;
    size_t length, room;
    bool failed;
} text;

static bool make_room(text *out, size_t more)
{
    size_t room = out->room ? out->room : 4096;
    while (room <= out->length + more)
        room *= 2;
    char *bytes = room == out->room ? out->bytes : realloc(out->bytes, room);
    if (!bytes) {
        out->failed = true;
        return false;
    }
    out->bytes = bytes;
    out->room = room;
    return true;
}

__attribute__((format(printf, 2, 3))) static void add(text *out, const char *format, ...)
{
    enum { LINE = 1024 }; /* no line of ours is longer; a queue's name is added apart */
    va_list args;
    if (out->failed || !make_room(out, LINE))
        return;
    va_start(args, format);
    int n = vsnprintf(out->bytes + out->length, LINE, format, args);
    va_end(args);
    out->length += (size_t)n;
}

static const char *const reasons[] = {NULL, "failed", "rejected", "expired", "maxlen", "lost"};

static void head(text *out, const char *name, const char *type, const char *help)
{
    add(out, "# HELP lapse_%s %s\n# TYPE lapse_%s %s\n", name, help, name, type);
}

static void number(text *out, const char *name, const char *type, const char *help, uint64_t value)
{
    head(out, name, type, help);
    add(out, "lapse_%s %llu\n", name, (unsigned long long)value);
}

static void seconds(text *out, lapse_ns value)
{
    add(out, "%lld.%09lld\n", (long long)(value / 1000000000), (long long)(value % 1000000000));
}

static void write_states(text *out, const lapse_stats *t)
{
    head(out, "orders", "gauge", "Orders now, by state.");
    add(out, "lapse_orders{state=\"pending\"} %llu\n", (unsigned long long)t->pending);
    add(out, "lapse_orders{state=\"running\"} %llu\n", (unsigned long long)t->running);
    add(out, "lapse_orders{state=\"done\"} %llu\n", (unsigned long long)t->kept);
    add(out, "lapse_orders{state=\"dead\"} %llu\n", (unsigned long long)t->dead);
}

static void write_totals(text *out, const lapse_stats *t)
{
    const struct {
        const char *name, *help;
        uint64_t value;
    } rows[] = {
        {"scheduled_total", "Orders accepted.", t->scheduled},
        {"refused_total", "Orders not accepted.", t->refused},
        {"replaced_total", "Orders that gave way to another of their id.", t->replaced},
        {"rescheduled_total", "Orders given a new time.", t->rescheduled},
        {"cancelled_total", "Orders cancelled.", t->cancelled},
        {"done_total", "Orders ended by their callback or taker.", t->done},
        {"started_total", "Deliveries.", t->started},
        {"failed_total", "Deliveries that failed.", t->failed},
        {"retried_total", "Deliveries followed by another.", t->retried},
        {"rejected_total", "Deliveries that were rejected.", t->rejected},
        {"given_back_total", "Deliveries given back untried.", t->given_back},
        {"lost_total", "Deliveries whose lease or run limit ended first.", t->lost},
        {"stale_total", "Settlements that came too late.", t->stale},
        {"dead_dropped_total", "Dead letters dropped beyond max_dead.", t->dead_dropped},
        {"requeued_total", "Dead letters scheduled again.", t->requeued},
        {"purged_total", "Dead letters deleted.", t->purged},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        number(out, rows[i].name, "counter", rows[i].help, rows[i].value);
    head(out, "dead_total", "counter", "Orders that became dead letters, by reason.");
    for (int i = LAPSE_REASON_FAILED; i <= LAPSE_REASON_LOST; i++)
        add(out, "lapse_dead_total{reason=\"%s\"} %llu\n", reasons[i],
            (unsigned long long)t->dead_by[i]);
}

static void write_times(text *out, const lapse_stats *t)
{
    head(out, "lateness_seconds", "gauge", "How late orders started.");
    add(out, "lapse_lateness_seconds{quantile=\"0.5\"} ");
    seconds(out, t->late_p50);
    add(out, "lapse_lateness_seconds{quantile=\"0.99\"} ");
    seconds(out, t->late_p99);
    add(out, "lapse_lateness_seconds{quantile=\"0.999\"} ");
    seconds(out, t->late_p999);
    add(out, "lapse_lateness_seconds{quantile=\"1\"} ");
    seconds(out, t->late_max);
    head(out, "oldest_due_seconds", "gauge", "How long the oldest due order has waited.");
    add(out, "lapse_oldest_due_seconds ");
    seconds(out, t->oldest_due);
    head(out, "poll_bound_seconds", "gauge", "What polling may add to lateness.");
    add(out, "lapse_poll_bound_seconds ");
    seconds(out, t->poll_bound);
    head(out, "offline_seconds", "gauge", "For how long the store could not be reached.");
    add(out, "lapse_offline_seconds ");
    seconds(out, t->offline);
    number(out, "memory_bytes", "gauge", "Memory held for orders.", t->bytes);
    number(out, "longest_move", "gauge", "Most entries that one call has moved.", t->longest_move);
}

/* A label's value. The format reserves three characters and wants UTF-8; other bytes are
 * written as \xNN, with every backslash doubled, so that no two names look alike. */
static void label(text *out, const char *name)
{
    for (size_t left = strlen(name), n; left; name += n, left -= n) {
        n = lp_text_character(name, left);
        if (n == 0)
            add(out, "\\\\x%02x", (unsigned char)*name);
        else if (*name == '\\')
            add(out, "\\\\\\\\");
        else if (*name == '"')
            add(out, "\\\"");
        else
            add(out, "%.*s", (int)n, name);
        n += n == 0;
    }
}

static void queue_label(text *out, const char *metric, const char *name)
{
    add(out, "lapse_queue_%s{queue=\"", metric);
    label(out, name);
    add(out, "\"");
}

typedef void (*write_queue)(text *out, const lapse_queue_stats *q, size_t field);

/* All queues as they are now, looked at once. */
typedef struct queues {
    struct seen {
        lapse_queue_stats stats;
        bool asked; /* the store has said what is in it now */
    } * seen;
    size_t count, room;
} queues;

static bool make_queue_room(queues *all)
{
    if (all->count < all->room)
        return true;
    size_t room = all->room ? 2 * all->room : 64;
    struct seen *more = realloc(all->seen, room * sizeof *more);
    if (!more)
        return false;
    all->seen = more;
    all->room = room;
    return true;
}

/* False without memory. */
static bool look_at_queues(lapse *s, queues *all)
{
    const char *name;
    bool answers = true; /* One that does not is not asked for each queue. */
    for (size_t n = 0; (name = lapse_queue_name(s, n)); n++) {
        if (!make_queue_room(all))
            return false;
        struct seen *next = &all->seen[all->count];
        int code = lp_queue_figures(s, name, &next->stats, answers);
        if (code == LAPSE_EUNKNOWN)
            continue;
        answers = answers && code == LAPSE_OK;
        next->asked = answers;
        all->count++;
    }
    return true;
}

/* One metric of every queue; what only the store knows of those that it has answered for. */
static void each_queue(text *out, const queues *all, write_queue write, size_t field, bool now)
{
    for (size_t i = 0; i < all->count; i++)
        if (all->seen[i].asked || !now)
            write(out, &all->seen[i].stats, field);
}

enum { NOW_ROWS = 3 }; /* of these, how many tell of orders now */

static const struct {
    const char *name, *type, *help;
    size_t offset;
} queue_counts[] = {
    {"pending", "gauge", "Pending orders.", offsetof(lapse_queue_stats, pending)},
    {"running", "gauge", "Running orders.", offsetof(lapse_queue_stats, running)},
    {"dead_letters", "gauge", "Dead letters.", offsetof(lapse_queue_stats, dead)},
    {"started_total", "counter", "Deliveries.", offsetof(lapse_queue_stats, started)},
    {"done_total", "counter", "Orders done.", offsetof(lapse_queue_stats, done)},
    {"failed_total", "counter", "Failures.", offsetof(lapse_queue_stats, failed)},
    {"retried_total", "counter", "Retries.", offsetof(lapse_queue_stats, retried)},
    {"cancelled_total", "counter", "Cancelled orders.", offsetof(lapse_queue_stats, cancelled)},
};

static void write_count(text *out, const lapse_queue_stats *q, size_t row)
{
    uint64_t value;
    memcpy(&value, (const char *)q + queue_counts[row].offset, sizeof value);
    if (value == LP_UNCOUNTED)
        return;
    queue_label(out, queue_counts[row].name, q->queue);
    add(out, "} %llu\n", (unsigned long long)value);
}

static void write_handled(text *out, const lapse_queue_stats *q, size_t unused)
{
    (void)unused;
    queue_label(out, "handled", q->queue);
    add(out, "} %d\n", q->handled);
}

static void write_paused(text *out, const lapse_queue_stats *q, size_t unused)
{
    (void)unused;
    queue_label(out, "paused", q->queue);
    add(out, "} %d\n", q->paused);
}

static void write_deaths(text *out, const lapse_queue_stats *q, size_t unused)
{
    (void)unused;
    for (int i = LAPSE_REASON_FAILED; i <= LAPSE_REASON_LOST; i++) {
        queue_label(out, "dead_total", q->queue);
        add(out, ",reason=\"%s\"} %llu\n", reasons[i], (unsigned long long)q->dead_by[i]);
    }
}

static void write_oldest(text *out, const lapse_queue_stats *q, size_t unused)
{
    (void)unused;
    queue_label(out, "oldest_due_seconds", q->queue);
    add(out, "} ");
    seconds(out, q->oldest_due);
}

static void write_lateness(text *out, const lapse_queue_stats *q, size_t unused)
{
    (void)unused;
    const char *const quantiles[] = {"0.5", "0.99", "1"};
    const lapse_ns values[] = {q->late_p50, q->late_p99, q->late_max};
    for (int i = 0; i < 3; i++) {
        queue_label(out, "lateness_seconds", q->queue);
        add(out, ",quantile=\"%s\"} ", quantiles[i]);
        seconds(out, values[i]);
    }
}

static void write_queues(text *out, const queues *all)
{
    for (size_t row = 0; row < sizeof queue_counts / sizeof *queue_counts; row++) {
        char metric[64];
        snprintf(metric, sizeof metric, "queue_%s", queue_counts[row].name);
        head(out, metric, queue_counts[row].type, queue_counts[row].help);
        each_queue(out, all, write_count, row, row < NOW_ROWS);
    }
    head(out, "queue_handled", "gauge", "Whether the queue has a handler.");
    each_queue(out, all, write_handled, 0, false);
    head(out, "queue_paused", "gauge", "Whether the queue is paused.");
    each_queue(out, all, write_paused, 0, false);
    head(out, "queue_dead_total", "counter", "Orders that became dead letters, by reason.");
    each_queue(out, all, write_deaths, 0, false);
    head(out, "queue_oldest_due_seconds", "gauge", "How long the oldest due order has waited.");
    each_queue(out, all, write_oldest, 0, true);
    head(out, "queue_lateness_seconds", "gauge", "How late orders started.");
    each_queue(out, all, write_lateness, 0, false);
}

/* As text, which is NULL after a failure. */
static char *write_all(const lapse_stats *totals, bool asked, const queues *all)
{
    text out = {.bytes = NULL};
    if (asked)
        write_states(&out, totals);
    write_totals(&out, totals);
    write_times(&out, totals);
    write_queues(&out, all);
    if (!out.failed)
        return out.bytes;
    free(out.bytes);
    return NULL;
}

char *lapse_metrics(lapse *s)
{
    lapse_stats totals;
    int code = lapse_statistics(s, &totals);
    if (code == LAPSE_EINVAL || code == LAPSE_EFORKED)
        return NULL;
    queues all = {.seen = NULL};
    char *written = look_at_queues(s, &all) ? write_all(&totals, code == LAPSE_OK, &all) : NULL;
    free(all.seen);
    if (!written)
        lp_fail_memory();
    return written;
}

void lapse_free(void *memory)
{
    free(memory);
}
