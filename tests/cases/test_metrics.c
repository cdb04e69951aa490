/* test_metrics.c - the statistics as text for Prometheus.
 *
 * A small reader of exposition format 0.0.4 refuses what Prometheus would, and more: every
 * sample has a head of its own, every series stands there once, and each figure is that of
 * lapse_statistics and lapse_queue_statistics. */
/* tiers: quick full soak */
/* valgrind: soak */
#include "delivery.h"

#include <inttypes.h>
#include <sched.h>
#include <stdlib.h>

/* -- A reader ------------------------------------------------------------------------------ */

enum { SERIES = 16384, METRICS = 128 };

typedef struct reading {
    char *text;
    int metrics, count;
    struct metric {
        const char *name;
        bool counter;
        int samples;
    } metric[METRICS];
    struct series {
        const char *name; /* with its labels, as it stands there */
        const char *value;
    } series[SERIES];
} reading;

static reading now_read;

static bool is_name(const char *s, size_t length)
{
    const char *const allowed = "abcdefghijklmnopqrstuvwxyz_";
    return length > 0 && s[0] != '_' && strspn(s, allowed) == length;
}

/* Past a quoted label value at `s`, or NULL. */
static const char *skip_value(const char *s)
{
    if (*s++ != '"')
        return NULL;
    for (; *s != '"'; s++) {
        if (*s == '\0')
            return NULL;
        if (*s == '\\' && strchr("\\\"n", *++s) == NULL)
            return NULL;
    }
    return s + 1;
}

/* Past the labels at `s`, which begin with a brace; NULL when they are not well formed. */
static const char *skip_labels(const char *s)
{
    do {
        s++;
        size_t length = strcspn(s, "=");
        if (!is_name(s, length) || s[length] != '=')
            return NULL;
        s = skip_value(s + length + 1);
    } while (s != NULL && *s == ',');
    return s != NULL && *s == '}' ? s + 1 : NULL;
}

/* The two lines that come before the samples of a metric. */
static void read_head(reading *r, char *help, char *type)
{
    char *name = help + strlen("# HELP ");
    char *text = strchr(name, ' ');
    ck_assert_msg(strncmp(help, "# HELP ", 7) == 0 && text != NULL, "no help: %s", help);
    *text++ = '\0';
    ck_assert_msg(strlen(text) > 0 && strchr(text, '\\') == NULL, "odd help: %s", text);
    ck_assert_msg(is_name(name, strlen(name)) && strncmp(name, "lapse_", 6) == 0, "%s", name);
    ck_assert_msg(type != NULL && strncmp(type, "# TYPE ", 7) == 0, "%s has no type", name);
    char *kind = type + 7 + strlen(name);
    ck_assert_msg(strncmp(type + 7, name, strlen(name)) == 0 && *kind == ' ', "%s", type);
    bool counter = strcmp(kind, " counter") == 0;
    ck_assert_msg(counter || strcmp(kind, " gauge") == 0, "%s is a%s", name, kind);
    size_t length = strlen(name);
    bool total = length > 6 && strcmp(name + length - 6, "_total") == 0;
    ck_assert_msg(counter == total, "%s is a%s", name, kind);
    for (int i = 0; i < r->metrics; i++)
        ck_assert_msg(strcmp(r->metric[i].name, name) != 0, "%s comes twice", name);
    ck_assert_int_lt(r->metrics, METRICS);
    r->metric[r->metrics++] = (struct metric){.name = name, .counter = counter};
}

static void read_sample(reading *r, char *line)
{
    ck_assert_msg(r->metrics > 0, "a sample before any head: %s", line);
    struct metric *m = &r->metric[r->metrics - 1];
    size_t length = strcspn(line, "{ ");
    ck_assert_msg(strncmp(line, m->name, length) == 0 && m->name[length] == '\0',
                  "%s stands below %s", line, m->name);
    const char *labels = line + length;
    const char *end = *labels == '{' ? skip_labels(labels) : labels;
    ck_assert_msg(end != NULL && *end == ' ', "odd labels: %s", line);
    line[end - line] = '\0';
    const char *value = end + 1;
    char *rest;
    strtod(value, &rest);
    ck_assert_msg(*value >= '0' && *value <= '9' && *rest == '\0', "%s is %s", line, value);
    m->samples++;
    ck_assert_int_lt(r->count, SERIES);
    r->series[r->count++] = (struct series){line, value};
}

static int compare_series(const void *a, const void *b)
{
    return strcmp(((const struct series *)a)->name, ((const struct series *)b)->name);
}

static bool is_utf8(const char *text)
{
    for (const unsigned char *s = (const unsigned char *)text; *s != '\0'; s++) {
        int more = *s < 0x80 ? 0 : *s < 0xe0 ? 1 : *s < 0xf0 ? 2 : 3;
        if ((*s < 0x20 && *s != '\n') || (*s >= 0x80 && *s < 0xc2) || *s > 0xf4)
            return false;
        for (; more > 0; more--)
            if ((*++s & 0xc0) != 0x80)
                return false;
    }
    return true;
}

/* Read all of it; the series are sorted by name. */
static reading *read_metrics(lapse *s)
{
    reading *r = &now_read;
    *r = (reading){.text = lapse_metrics(s)};
    ck_assert_msg(r->text != NULL, "lapse_metrics: %s", lapse_error_detail());
    ck_assert(is_utf8(r->text));
    size_t length = strlen(r->text);
    ck_assert_uint_gt(length, 0);
    ck_assert_int_eq(r->text[length - 1], '\n');
    char *next = r->text;
    for (char *line = strsep(&next, "\n"); *line != '\0'; line = strsep(&next, "\n"))
        if (line[0] == '#')
            read_head(r, line, strsep(&next, "\n"));
        else
            read_sample(r, line);
    ck_assert_ptr_null(next); /* No empty line but the end. */
    for (int i = 0; i < r->metrics; i++)
        ck_assert_msg(r->metric[i].samples > 0, "%s has no sample", r->metric[i].name);
    qsort(r->series, (size_t)r->count, sizeof *r->series, compare_series);
    for (int i = 1; i < r->count; i++)
        ck_assert_msg(compare_series(&r->series[i - 1], &r->series[i]) != 0, "%s comes twice",
                      r->series[i].name);
    return r;
}

static void reading_close(reading *r)
{
    lapse_free(r->text);
}

static const char *text_of(const reading *r, const char *name)
{
    struct series wanted = {name, NULL};
    const struct series *s =
        bsearch(&wanted, r->series, (size_t)r->count, sizeof *r->series, compare_series);
    ck_assert_msg(s != NULL, "no series %s", name);
    return s->value;
}

static void expect_count(const reading *r, const char *name, uint64_t wanted)
{
    char text[24];
    snprintf(text, sizeof text, "%" PRIu64, wanted);
    ck_assert_msg(strcmp(text_of(r, name), text) == 0, "%s is %s, not %s", name, text_of(r, name),
                  text);
}

static void expect_seconds(const reading *r, const char *name, lapse_ns wanted)
{
    char text[32];
    snprintf(text, sizeof text, "%" PRId64 ".%09" PRId64, wanted / LAPSE_SECONDS(1),
             wanted % LAPSE_SECONDS(1));
    ck_assert_msg(strcmp(text_of(r, name), text) == 0, "%s is %s, not %s", name, text_of(r, name),
                  text);
}

/* The reader itself refuses what it should. */
START_TEST(the_reader_refuses_what_is_not_the_format)
{
    const char *const odd[] = {"{queue=\"a",     "{queue=\"a\\x\"}", "{queue=a}",
                               "{=\"a\"}",       "{Queue=\"a\"}",    "{queue=\"a\",}",
                               "{queue=\"a\" }", "{queue=\"a\\\"}",  "{}"};
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++)
        ck_assert_msg(skip_labels(odd[i]) == NULL, "%s is accepted", odd[i]);
    const char *good = "{queue=\"a\\\\b\\\"c\\nd}\",reason=\"lost\"} 1";
    ck_assert_ptr_nonnull(skip_labels(good));
    ck_assert_str_eq(skip_labels(good), " 1");
    ck_assert(!is_utf8("\xff") && !is_utf8("\xc3") && !is_utf8("\xc0\xaf") &&
              is_utf8("\xc3\xa9\n"));
}
END_TEST

/* -- Every figure ------------------------------------------------------------------------------ */

static const char *const reasons[] = {NULL, "failed", "rejected", "expired", "maxlen", "lost"};

static void expect_totals(const reading *r, const lapse_stats *t)
{
    const struct {
        const char *name;
        uint64_t value;
    } rows[] = {
        {"lapse_orders{state=\"pending\"}", t->pending},
        {"lapse_orders{state=\"running\"}", t->running},
        {"lapse_orders{state=\"done\"}", t->kept},
        {"lapse_orders{state=\"dead\"}", t->dead},
        {"lapse_scheduled_total", t->scheduled},
        {"lapse_refused_total", t->refused},
        {"lapse_replaced_total", t->replaced},
        {"lapse_rescheduled_total", t->rescheduled},
        {"lapse_cancelled_total", t->cancelled},
        {"lapse_done_total", t->done},
        {"lapse_started_total", t->started},
        {"lapse_failed_total", t->failed},
        {"lapse_retried_total", t->retried},
        {"lapse_rejected_total", t->rejected},
        {"lapse_given_back_total", t->given_back},
        {"lapse_lost_total", t->lost},
        {"lapse_stale_total", t->stale},
        {"lapse_dead_dropped_total", t->dead_dropped},
        {"lapse_requeued_total", t->requeued},
        {"lapse_purged_total", t->purged},
        {"lapse_memory_bytes", t->bytes},
        {"lapse_longest_move", t->longest_move},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        expect_count(r, rows[i].name, rows[i].value);
    for (int reason = LAPSE_REASON_FAILED; reason <= LAPSE_REASON_LOST; reason++) {
        char name[64];
        snprintf(name, sizeof name, "lapse_dead_total{reason=\"%s\"}", reasons[reason]);
        expect_count(r, name, t->dead_by[reason]);
    }
    expect_seconds(r, "lapse_lateness_seconds{quantile=\"0.5\"}", t->late_p50);
    expect_seconds(r, "lapse_lateness_seconds{quantile=\"0.99\"}", t->late_p99);
    expect_seconds(r, "lapse_lateness_seconds{quantile=\"0.999\"}", t->late_p999);
    expect_seconds(r, "lapse_lateness_seconds{quantile=\"1\"}", t->late_max);
    expect_seconds(r, "lapse_oldest_due_seconds", t->oldest_due);
    expect_seconds(r, "lapse_poll_bound_seconds", t->poll_bound);
    expect_seconds(r, "lapse_offline_seconds", t->offline);
}

/* The name of a queue's series; `label`: its name as it is escaped. */
static const char *series(const char *metric, const char *label, const char *more)
{
    static char name[2048];
    snprintf(name, sizeof name, "lapse_queue_%s{queue=\"%s\"%s}", metric, label, more);
    return name;
}

static void expect_queue(const reading *r, const char *label, const lapse_queue_stats *q)
{
    expect_count(r, series("pending", label, ""), q->pending);
    expect_count(r, series("running", label, ""), q->running);
    expect_count(r, series("dead_letters", label, ""), q->dead);
    expect_count(r, series("handled", label, ""), q->handled);
    expect_count(r, series("paused", label, ""), q->paused);
    expect_count(r, series("started_total", label, ""), q->started);
    expect_count(r, series("done_total", label, ""), q->done);
    expect_count(r, series("failed_total", label, ""), q->failed);
    expect_count(r, series("retried_total", label, ""), q->retried);
    expect_count(r, series("cancelled_total", label, ""), q->cancelled);
    for (int reason = LAPSE_REASON_FAILED; reason <= LAPSE_REASON_LOST; reason++) {
        char more[32];
        snprintf(more, sizeof more, ",reason=\"%s\"", reasons[reason]);
        expect_count(r, series("dead_total", label, more), q->dead_by[reason]);
    }
    expect_seconds(r, series("oldest_due_seconds", label, ""), q->oldest_due);
    expect_seconds(r, series("lateness_seconds", label, ",quantile=\"0.5\""), q->late_p50);
    expect_seconds(r, series("lateness_seconds", label, ",quantile=\"0.99\""), q->late_p99);
    expect_seconds(r, series("lateness_seconds", label, ",quantile=\"1\""), q->late_max);
}

/* How many series there are of the scheduler and of each queue: counts, deaths by reason,
 * lateness, other times. */
enum { OF_ALL = 22 + 5 + 4 + 3, OF_A_QUEUE = 10 + 5 + 3 + 1 };

/* All that can be read agrees with all that can be asked; nothing else is there. */
static void expect_agreement(lapse *s)
{
    lapse_stats t = stats_of(s);
    reading *r = read_metrics(s);
    int queues = 0;
    expect_totals(r, &t);
    for (const char *name; (name = lapse_queue_name(s, (size_t)queues)) != NULL; queues++) {
        lapse_queue_stats q = queue_stats(s, name);
        ck_assert_str_eq(q.queue, name);
        expect_queue(r, name, &q);
    }
    ck_assert_int_eq(r->count, OF_ALL + queues * OF_A_QUEUE);
    reading_close(r);
}

START_TEST(a_new_scheduler_has_figures)
{
    rig r = rig_manual(_i, START, NULL);
    expect_agreement(r.s);
    ck_assert_ptr_null(lapse_metrics(NULL));
    ck_assert_ptr_nonnull(strstr(lapse_error_detail(), "NULL"));
    lapse_free(NULL);
    rig_close(&r);
}
END_TEST

/* Something of everything that is counted. */
static lapse_verdict by_first_letter(const lapse_order *order)
{
    switch (order->id[0]) {
    case 'f':
        return lapse_fail(order, "gateway down");
    case 'r':
        return LAPSE_REJECT;
    case 'g':
        return LAPSE_GIVE_BACK;
    case 'a':
        return lapse_retry(order, LAPSE_SECONDS(10), "again");
    default:
        return LAPSE_DONE;
    }
}

static void live_a_little(rig *r, player *p)
{
    lapse_policy policy = {.attempts = 2, .jitter_percent = -1, .expires = LAPSE_SECONDS(50)};
    handle(r->s, "shop", p, &policy);
    put_many(r->s, "shop", "done", 9, 0);
    put_many(r->s, "shop", "fail", 3, LAPSE_MS(5));
    put_many(r->s, "shop", "reject", 4, LAPSE_MS(7));
    put_many(r->s, "shop", "give", 1, LAPSE_SECONDS(1));
    put_many(r->s, "shop", "again", 2, LAPSE_SECONDS(2));
    put_many(r->s, "pull", "lost", 2, 0);
    put_many(r->s, "paused", "waits", 3, 0);
    ck_assert_int_eq(lapse_pause(r->s, "paused"), 0);
    lapse_put(r->s, &(lapse_spec){.id = "paused", .delay = LAPSE_DELAY_MAX + 1});
    lapse_put(r->s, &(lapse_spec){.id = "waits0"}); /* It exists. */
    lapse_put(r->s, &(lapse_spec){.id = "waits1", .flags = LAPSE_REPLACE});
    lapse_reschedule(r->s, "waits1", LAPSE_ANY, LAPSE_HOURS(1));
    lapse_cancel(r->s, "waits2", LAPSE_ANY);
    for (int i = 0; i < 40; i++) {
        advance(r, LAPSE_MS(77));
        expect_agreement(r->s);
    }
    int64_t fence = poll_one(r->s, "pull", "lost0")->fence;
    advance(r, LAPSE_SECONDS(31));
    poll_one(r->s, "pull", "lost1"); /* The other one is due since it was lost. */
    poll_one(r->s, "pull", "lost0");
    ck_assert_int_eq(lapse_settle(r->s, fence, LAPSE_DONE, 0, NULL), LAPSE_ESTALE);
    advance(r, LAPSE_SECONDS(51)); /* "give0" is too late by now. */
    ck_assert_int_gt(lapse_requeue(r->s, "again0", LAPSE_ANY, 0), 0);
    ck_assert_int_eq(lapse_purge(r->s, "again1", LAPSE_ANY), 1);
    advance(r, LAPSE_MS(1));
    poll_one(r->s, "pull", "lost1"); /* Until the end. */
}

START_TEST(every_figure_is_there)
{
    lapse_options options = {.max_dead = 6, .keep = LAPSE_HOURS(1)};
    rig r = rig_manual(_i, START, &options);
    player p;
    player_open(&p, r.s, by_first_letter);
    live_a_little(&r, &p);
    lapse_stats t = stats_of(r.s);
    const uint64_t counted[] = {t.pending,
                                t.running,
                                t.kept,
                                t.dead,
                                t.scheduled,
                                t.refused,
                                t.replaced,
                                t.rescheduled,
                                t.cancelled,
                                t.done,
                                t.started,
                                t.failed,
                                t.retried,
                                t.rejected,
                                t.given_back,
                                t.lost,
                                t.stale,
                                t.dead_dropped,
                                t.requeued,
                                t.purged,
                                t.dead_by[LAPSE_REASON_FAILED],
                                t.dead_by[LAPSE_REASON_REJECTED],
                                t.dead_by[LAPSE_REASON_EXPIRED],
                                t.bytes,
                                (uint64_t)t.oldest_due,
                                (uint64_t)t.late_p50,
                                (uint64_t)t.late_max};
    for (size_t i = 0; i < sizeof counted / sizeof *counted; i++)
        ck_assert_msg(counted[i] > 0, "figure %zu is 0: nothing shows that it is right", i);
    expect_books(r.s);
    expect_agreement(r.s);
    ck_assert_int_eq(lapse_stop(r.s), 0);
    expect_agreement(r.s); /* What is left is still to be seen. */
    player_close(&p);
    rig_close(&r);
}
END_TEST

/* -- Names --------------------------------------------------------------------------------------- */

/* Any bytes may be a queue's name; each has series of its own. */
static const struct {
    const char *name, *label;
} odd_names[] = {
    {"plain", "plain"},
    {"with space", "with space"},
    {"say \"hello\"", "say \\\"hello\\\""},
    {"back\\slash", "back\\\\\\\\slash"},
    {"\\", "\\\\\\\\"},
    {"two\nlines", "two\\\\x0alines"},
    {"two\\nlines", "two\\\\\\\\nlines"},
    {"two\\x0alines", "two\\\\\\\\x0alines"},
    {"\"} 1\n# HELP lapse_orders", "\\\"} 1\\\\x0a# HELP lapse_orders"},
    {"caf\xc3\xa9", "caf\xc3\xa9"},
    {"\xf0\x9f\x98\x80", "\xf0\x9f\x98\x80"},
    {"\xff", "\\\\xff"},
    {"\\xff", "\\\\\\\\xff"},
    {"half \xc3", "half \\\\xc3"},
    {"\x1b[31m", "\\\\x1b[31m"},
    {"tab\there", "tab\\\\x09here"},
    {"{a=\"b\",c=\"d\"}", "{a=\\\"b\\\",c=\\\"d\\\"}"},
};

START_TEST(labels_are_escaped)
{
    enum { NAMES = sizeof odd_names / sizeof *odd_names };
    rig r = rig_manual(_i, START, NULL);
    for (int i = 0; i < NAMES; i++) {
        char prefix[8];
        snprintf(prefix, sizeof prefix, "%d-", i);
        put_many(r.s, odd_names[i].name, prefix, i + 1, LAPSE_HOURS(1));
    }
    reading *read = read_metrics(r.s);
    for (int i = 0; i < NAMES; i++)
        expect_count(read, series("pending", odd_names[i].label, ""), (uint64_t)i + 1);
    reading_close(read);
    rig_close(&r);
}
END_TEST

START_TEST(labels_of_any_bytes)
{
    rng luck = rng_open("labels_of_any_bytes");
    rig r = rig_manual(_i, START, NULL);
    enum { QUEUES = 300 }; /* The last of them have no lateness. */
    for (int i = 0; i < QUEUES; i++) {
        char name[LAPSE_ID_MAX + 1], id[8];
        snprintf(id, sizeof id, "%d", i);
        int64_t length = i == 0 ? LAPSE_ID_MAX : rng_range(&luck, 8, LAPSE_ID_MAX);
        int64_t low = i == 0 ? 255 : rng_range(&luck, 1, 255);
        for (int64_t at = 0; at < length; at++)
            name[at] = (char)rng_range(&luck, low, 255);
        name[length] = '\0';
        memcpy(name, "q123", 4);
        name[3] = (char)('0' + i % 10);
        name[2] = (char)('0' + i / 10 % 10);
        name[1] = (char)('0' + i / 100);
        put(r.s, name, id, 0);
    }
    advance(&r, LAPSE_SECONDS(1));
    const lapse_order *order;
    while (lapse_poll(r.s, NULL, &order) == 1)
        ck_assert_int_eq(lapse_settle(r.s, order->fence, LAPSE_DONE, 0, NULL), 0);
    reading *read = read_metrics(r.s); /* Well formed, and no series twice. */
    ck_assert_int_eq(read->count, OF_ALL + (QUEUES + 1) * OF_A_QUEUE);
    expect_count(read, "lapse_done_total", QUEUES);
    reading_close(read);
    rig_close(&r);
}
END_TEST

/* -- While it is busy -------------------------------------------------------------------------------- */

static struct traffic {
    lapse *s;
    atomic_bool over;
    atomic_int accepted;
} traffic;

static lapse_verdict pass_through(const lapse_order *order, void *arg)
{
    (void)arg;
    return order->attempt == 1 ? lapse_retry(order, 0, "again") : LAPSE_DONE;
}

static void place_orders(void *arg, int number)
{
    (void)arg;
    for (int i = 0; !atomic_load(&traffic.over); i++) {
        char id[24], queue[8];
        snprintf(id, sizeof id, "%d-%d", number, i);
        snprintf(queue, sizeof queue, "q%d", i % 10);
        int64_t result = lapse_put(traffic.s, &(lapse_spec){.id = id, .queue = queue});
        if (result > 0)
            atomic_fetch_add(&traffic.accepted, 1);
        else if (result != LAPSE_EFULL)
            complain("lapse_put: %s", lapse_error_detail());
        sched_yield();
    }
}

START_TEST(metrics_are_read_while_orders_run)
{
    lapse_options options = {.max_pending = 1000};
    rig r = rig_real(_i, &options);
    memset(&traffic, 0, sizeof traffic);
    traffic.s = r.s;
    for (int i = 0; i < 10; i++) {
        char queue[8];
        snprintf(queue, sizeof queue, "q%d", i);
        ck_assert_int_eq(lapse_handle(r.s, queue, pass_through, NULL, NULL, NULL), 0);
    }
    ck_assert_int_eq(lapse_start(r.s, 2), 0);
    crew c;
    crew_start(&c, 2, place_orders, NULL);
    ck_assert(until_at_least(&traffic.accepted, 1));
    long before = 0;
    for (long i = 0; i < tier(10, 300, 20000); i++) {
        reading *read = read_metrics(r.s);
        long done = strtol(text_of(read, "lapse_done_total"), NULL, 10);
        ck_assert_int_ge(done, before); /* A counter never goes back. */
        before = done;
        reading_close(read);
        sched_yield();
    }
    atomic_store(&traffic.over, true);
    crew_join(&c);
    ck_assert_int_eq(lapse_stop(r.s), 0);
    while (stats_of(r.s).running > 0)
        sched_yield();
    ck_assert_uint_eq(stats_of(r.s).scheduled, (uint64_t)atomic_load(&traffic.accepted));
    expect_books(r.s);
    reading_close(read_metrics(r.s));
    rig_close(&r);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("metrics");
    TCase *group = add_group(suite, "metrics");
    tcase_add_test(group, the_reader_refuses_what_is_not_the_format);
    ADD_FOR_ENGINES(group, a_new_scheduler_has_figures);
    ADD_FOR_ENGINES(group, every_figure_is_there);
    ADD_FOR_ENGINES(group, labels_are_escaped);
    ADD_FOR_ENGINES(group, labels_of_any_bytes);
    ADD_FOR_ENGINES(group, metrics_are_read_while_orders_run);
    return run_suite(suite);
}
