/* test_arguments.c - what no call accepts, and the words it is refused with. */
/* valgrind */
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "support/support.h"

static char too_long[LAPSE_ID_MAX + 2];

static void refused_with(int64_t code, int expected, const char *word)
{
    ck_assert_msg(code == expected, "%lld instead of %s: %s", (long long)code,
                  lapse_error_name(expected), lapse_error_detail());
    ck_assert_msg(strstr(lapse_error_detail(), word) != NULL, "no \"%s\" in: %s", word,
                  lapse_error_detail());
}

/* -- Errors ------------------------------------------------------------------------- */

START_TEST(errors_have_names)
{
    static const struct {
        int code;
        const char *name, *text;
    } map[] = {
#define ROW(code, number, name, text) {number, name, text},
        LAPSE_ERROR_MAP(ROW)
#undef ROW
    };
    for (size_t i = 0; i < sizeof map / sizeof *map; i++) {
        ck_assert_int_eq(map[i].code, -(int)i - 1);
        ck_assert_str_eq(lapse_error_name(map[i].code), map[i].name);
        ck_assert_str_eq(lapse_strerror(map[i].code), map[i].text);
    }
    ck_assert_ptr_null(lapse_error_name(1));
    ck_assert_ptr_null(lapse_error_name(LAPSE_OK));
    ck_assert_str_eq(lapse_strerror(LAPSE_OK), "no error");
    ck_assert_str_eq(lapse_strerror(-1000), "unknown error");
    char version[32];
    snprintf(version, sizeof version, "%d.%d.%d", LAPSE_VERSION_MAJOR, LAPSE_VERSION_MINOR,
             LAPSE_VERSION_PATCH);
    ck_assert_str_eq(lapse_version(), version);
}
END_TEST

START_TEST(system_errors_are_words)
{
    ck_assert_int_eq(lp_fail_system("open", ENOENT), LAPSE_ESYSTEM);
    ck_assert_str_eq(lapse_error_detail(), "open failed: No such file or directory");
    ck_assert_int_eq(lp_fail_system("open", 123456), LAPSE_ESYSTEM);
    ck_assert_ptr_nonnull(strstr(lapse_error_detail(), "123456"));
}
END_TEST

/* Every kind of byte sequence that is not UTF-8, and the ends of what is. */
START_TEST(text_is_escaped)
{
    static const struct {
        const char *in, *out;
    } rows[] = {
        {"caf\xc3\xa9", "\"caf\xc3\xa9\""},
        {"\xe2\x82\xac \xf0\x9f\x98\x80", "\"\xe2\x82\xac \xf0\x9f\x98\x80\""},
        {"\xf4\x8f\xbf\xbf", "\"\xf4\x8f\xbf\xbf\""},
        {"\xf4\x90\x80\x80", "\"\\xf4\\x90\\x80\\x80\""},
        {"\xe0\x9f\xbf", "\"\\xe0\\x9f\\xbf\""},
        {"\xed\xa0\x80", "\"\\xed\\xa0\\x80\""},
        {"\xf0\x8f\xbf\xbf", "\"\\xf0\\x8f\\xbf\\xbf\""},
        {"\xc1\xbf", "\"\\xc1\\xbf\""},
        {"\xf5", "\"\\xf5\""},
        {"\xe2\x82", "\"\\xe2\\x82\""},
        {"\xe2(\xac", "\"\\xe2(\\xac\""},
        {"a\nb\x7f", "\"a\\x0ab\\x7f\""},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        ck_assert_str_eq(lp_text_quote(rows[i].in, strlen(rows[i].in)), rows[i].out);
    char clipped[LP_TEXT_MAX + 1], in[3 * LP_TEXT_MAX];
    memset(in, '\n', sizeof in);
    in[sizeof in - 1] = '\0';
    lp_text_clip(clipped, in);
    ck_assert_uint_eq(strlen(clipped), LP_TEXT_MAX);
    ck_assert(strncmp(clipped, "\\x0a\\x0a", 8) == 0);
}
END_TEST

/* -- Arguments ------------------------------------------------------------------------ */

START_TEST(null_is_refused)
{
    const lapse_order *order;
    lapse_callback fn;
    void *arg;
    lapse_info info;
    lapse_stats stats;
    lapse_queue_stats queue;
    int64_t results[1];
    lapse_spec spec = {.id = "1", .fn = never};
    lapse *none = NULL;
    refused_with(lapse_open(NULL, NULL, NULL), LAPSE_EINVAL, "`out` is NULL");
    refused_with(lapse_clock_manual(0, NULL), LAPSE_EINVAL, "`out` is NULL");
    refused_with(lapse_clock_advance(NULL, 0), LAPSE_EINVAL, "`clock` is NULL");
    refused_with(lapse_clock_set_wall(NULL, 0), LAPSE_EINVAL, "`clock` is NULL");
    refused_with(lapse_ns_from_seconds(1, NULL), LAPSE_EINVAL, "`out` is NULL");
    refused_with(lapse_stop(none), LAPSE_EINVAL, "NULL");
    refused_with(lapse_after_fork(none), LAPSE_EINVAL, "NULL");
    refused_with(lapse_schedule(none, "1", 0, never, NULL), LAPSE_EINVAL, "NULL");
    refused_with(lapse_put(none, &spec), LAPSE_EINVAL, "NULL");
    refused_with(lapse_schedule_many(none, &spec, 1, results), LAPSE_EINVAL, "NULL");
    refused_with(lapse_cancel(none, "1", LAPSE_ANY), LAPSE_EINVAL, "NULL");
    refused_with(lapse_cancel_wait(none, "1", LAPSE_ANY, 0), LAPSE_EINVAL, "NULL");
    refused_with(lapse_reschedule(none, "1", LAPSE_ANY, 0), LAPSE_EINVAL, "NULL");
    refused_with(lapse_get(none, "1", &info), LAPSE_EINVAL, "NULL");
    refused_with(lapse_each(none, 0, NULL, NULL), LAPSE_EINVAL, "NULL");
    refused_with(lapse_fd(none), LAPSE_EINVAL, "NULL");
    refused_with(lapse_timeout(none), LAPSE_EINVAL, "NULL");
    refused_with(lapse_process(none, 0), LAPSE_EINVAL, "NULL");
    refused_with(lapse_run(none), LAPSE_EINVAL, "NULL");
    refused_with(lapse_start(none, 1), LAPSE_EINVAL, "NULL");
    refused_with(lapse_wait(none, 0), LAPSE_EINVAL, "NULL");
    refused_with(lapse_begin(none, 0, &order, &fn, &arg), LAPSE_EINVAL, "NULL");
    refused_with(lapse_handle(none, NULL, never, NULL, NULL, NULL), LAPSE_EINVAL, "NULL");
    refused_with(lapse_pause(none, NULL), LAPSE_EINVAL, "NULL");
    refused_with(lapse_poll(none, NULL, &order), LAPSE_EINVAL, "NULL");
    refused_with(lapse_settle(none, 1, LAPSE_DONE, 0, NULL), LAPSE_EINVAL, "NULL");
    refused_with(lapse_renew(none, 1, 0), LAPSE_EINVAL, "NULL");
    refused_with(lapse_requeue(none, "1", LAPSE_ANY, 0), LAPSE_EINVAL, "NULL");
    refused_with(lapse_purge(none, NULL, LAPSE_ANY), LAPSE_EINVAL, "NULL");
    refused_with(lapse_statistics(none, &stats), LAPSE_EINVAL, "NULL");
    refused_with(lapse_queue_statistics(none, "", &queue), LAPSE_EINVAL, "NULL");
    ck_assert(!lapse_holds(none, 1));
    ck_assert_ptr_null(lapse_metrics(none));
    ck_assert_ptr_null(lapse_queue_name(none, 0));
    ck_assert_int_eq(lapse_now(none), 0);
    ck_assert_uint_eq(lapse_abilities(none), 0);
    ck_assert_int_eq(lapse_close(none, 0), 0);
    lapse_clock_free(NULL);
    lapse_info_free(NULL);
    lapse_free(NULL);
}
END_TEST

START_TEST(arguments_are_checked)
{
    rig r = rig_manual(_i, START, NULL);
    lapse *s = r.s;
    const lapse_order *order;
    lapse_callback fn;
    void *arg;
    lapse_info info;
    int64_t result;
    lapse_spec spec = {.id = "1"};
    refused_with(lapse_schedule(s, "1", 0, NULL, NULL), LAPSE_EINVAL, "callback is NULL");
    refused_with(lapse_schedule_at(s, "1", 0, NULL, NULL), LAPSE_EINVAL, "callback is NULL");
    refused_with(lapse_put(s, NULL), LAPSE_EINVAL, "`spec` is NULL");
    refused_with(lapse_schedule_many(s, NULL, 1, &result), LAPSE_EINVAL, "NULL");
    refused_with(lapse_schedule_many(s, &spec, 1, NULL), LAPSE_EINVAL, "NULL");
    refused_with(lapse_schedule(s, NULL, 0, never, NULL), LAPSE_EID, "NULL");
    refused_with(lapse_schedule(s, "", 0, never, NULL), LAPSE_EID, "empty");
    refused_with(lapse_schedule(s, too_long, 0, never, NULL), LAPSE_EID, "longer than 255");
    refused_with(lapse_check_id("a\0b", 3), LAPSE_EID, "\"a\\x00b\" contains a NUL");
    refused_with(lapse_schedule(s, "1", LAPSE_DELAY_MAX + 1, never, NULL), LAPSE_ERANGE,
                 "100 years");
    refused_with(lapse_schedule_at(s, "1", INT64_MAX, never, NULL), LAPSE_ERANGE, "100 years");
    spec.queue = too_long;
    refused_with(lapse_put(s, &spec), LAPSE_EINVAL, "queue name");
    spec = (lapse_spec){.id = "1", .payload_len = 1};
    refused_with(lapse_put(s, &spec), LAPSE_EINVAL, "payload is NULL");
    spec = (lapse_spec){.id = "1", .payload = "", .payload_len = LAPSE_PAYLOAD_MAX + 1};
    refused_with(lapse_put(s, &spec), LAPSE_EINVAL, "16777216 at most");
    spec = (lapse_spec){.id = "1", .flags = 6};
    refused_with(lapse_put(s, &spec), LAPSE_EINVAL, "flags 0x6");
    refused_with(lapse_cancel(s, NULL, LAPSE_ANY), LAPSE_EINVAL, "id is NULL");
    refused_with(lapse_cancel_wait(s, NULL, LAPSE_ANY, 0), LAPSE_EINVAL, "id is NULL");
    refused_with(lapse_reschedule(s, NULL, LAPSE_ANY, 0), LAPSE_EINVAL, "id is NULL");
    refused_with(lapse_reschedule(s, "1", LAPSE_ANY, LAPSE_DELAY_MAX + 1), LAPSE_ERANGE, "delay");
    refused_with(lapse_get(s, NULL, &info), LAPSE_EINVAL, "NULL");
    refused_with(lapse_get(s, "1", NULL), LAPSE_EINVAL, "NULL");
    refused_with(lapse_get(s, too_long, &info), LAPSE_EUNKNOWN, "no order");
    refused_with(lapse_each(s, 16, NULL, NULL), LAPSE_EINVAL, "`visitor` is NULL");
    refused_with(lapse_begin(s, 0, NULL, &fn, &arg), LAPSE_EINVAL, "NULL");
    refused_with(lapse_poll(s, NULL, NULL), LAPSE_EINVAL, "`order` is NULL");
    refused_with(lapse_poll(s, too_long, &order), LAPSE_EINVAL, "queue name");
    refused_with(lapse_handle(s, too_long, never, NULL, NULL, NULL), LAPSE_EINVAL, "queue name");
    refused_with(lapse_pause(s, too_long), LAPSE_EINVAL, "queue name");
    refused_with(lapse_settle(s, 1, (lapse_verdict)5, 0, NULL), LAPSE_EINVAL, "5 is no verdict");
    refused_with(lapse_settle(s, 1, LAPSE_DONE, 0, NULL), LAPSE_ESTALE, "fence 1");
    refused_with(lapse_renew(s, 1, -1), LAPSE_ERANGE, "lease");
    refused_with(lapse_renew(s, 1, LAPSE_DELAY_MAX + 1), LAPSE_ERANGE, "lease");
    refused_with(lapse_renew(s, 1, 0), LAPSE_ESTALE, "fence 1");
    refused_with(lapse_requeue(s, NULL, LAPSE_ANY, 0), LAPSE_EINVAL, "id is NULL");
    refused_with(lapse_requeue(s, "", LAPSE_ANY, 0), LAPSE_EUNKNOWN, "no order");
    refused_with(lapse_requeue(s, "1", LAPSE_ANY, 0), LAPSE_EUNKNOWN, "no dead letter \"1\"");
    refused_with(lapse_requeue(s, "1", LAPSE_ANY, LAPSE_DELAY_MAX + 1), LAPSE_ERANGE, "delay");
    refused_with(lapse_statistics(s, NULL), LAPSE_EINVAL, "NULL");
    refused_with(lapse_queue_statistics(s, "", NULL), LAPSE_EINVAL, "NULL");
    refused_with(lapse_start(s, 0), LAPSE_EINVAL, "0 threads");
    refused_with(lapse_start(s, 257), LAPSE_EINVAL, "257 threads");
    ck_assert_int_eq(lapse_cancel(s, too_long, LAPSE_ANY), LAPSE_FATE_UNKNOWN);
    ck_assert_int_eq(lapse_reschedule(s, "", LAPSE_ANY, 0), LAPSE_FATE_UNKNOWN);
    ck_assert_int_eq(lapse_purge(s, "", LAPSE_ANY), 0);
    lapse_stats stats = stats_of(s);
    ck_assert_uint_eq(stats.scheduled, 0);
    ck_assert_uint_eq(stats.bytes, stats_of(s).bytes);
    rig_close(&r);
}
END_TEST

START_TEST(clocks_are_checked)
{
    lapse_clock *clock;
    refused_with(lapse_clock_manual(-1, &clock), LAPSE_ERANGE, "-1 ns");
    refused_with(lapse_clock_manual(LAPSE_DELAY_MAX + 1, &clock), LAPSE_ERANGE, "100 years");
    ck_assert_ptr_null(clock);
    ck_assert_int_eq(lapse_clock_manual(LAPSE_DELAY_MAX, &clock), 0);
    refused_with(lapse_clock_advance(clock, -1), LAPSE_ERANGE, "-1 ns");
    refused_with(lapse_clock_advance(clock, INT64_MAX), LAPSE_ERANGE, "use 0 to");
    refused_with(lapse_clock_set_wall(clock, INT64_MIN), LAPSE_ERANGE, "wall clock");
    ck_assert_int_eq(lapse_clock_now(clock), LAPSE_DELAY_MAX);
    lapse_clock_free(clock);

    lapse_ns ns;
    refused_with(lapse_ns_from_seconds(NAN, &ns), LAPSE_ERANGE, "nan");
    refused_with(lapse_ns_from_seconds(INFINITY, &ns), LAPSE_ERANGE, "inf");
    refused_with(lapse_ns_from_seconds(-INFINITY, &ns), LAPSE_ERANGE, "inf");
    refused_with(lapse_ns_from_seconds(4e9, &ns), LAPSE_ERANGE, "100 years");
    ck_assert_int_eq(lapse_ns_from_seconds(1.5e-9, &ns), 0);
    ck_assert_int_eq(ns, 2);
    ck_assert_int_eq(lapse_ns_from_seconds(-3, &ns), 0);
    ck_assert_int_eq(ns, 0);
}
END_TEST

START_TEST(policies_are_checked)
{
    static const struct {
        const char *word;
        lapse_policy policy;
    } rows[] = {
        {"attempts", {.attempts = -1}},
        {"attempts", {.attempts = INT_MAX}},
        {"backoff", {.backoff = -1}},
        {"backoff", {.backoff = LAPSE_DELAY_MAX + 1}},
        {"backoff", {.backoff_max = -1}},
        {"backoff", {.backoff_max = INT64_MAX}},
        {"backoff_percent", {.backoff_percent = -1}},
        {"backoff_percent", {.backoff_percent = 99}},
        {"backoff_percent", {.backoff_percent = INT_MAX}},
        {"jitter_percent", {.jitter_percent = 101}},
        {"run_limit", {.run_limit = -1}},
        {"expires", {.expires = INT64_MIN}},
        {"stuck_after", {.stuck_after = INT64_MAX}},
    };
    rig r = rig_manual(_i, START, NULL);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        refused_with(lapse_handle(r.s, "q", never, NULL, NULL, &rows[i].policy), LAPSE_ERANGE,
                     rows[i].word);
    lapse_queue_stats q;
    refused_with(lapse_queue_statistics(r.s, "q", &q), LAPSE_EUNKNOWN, "\"q\"");
    rig_close(&r);
}
END_TEST

START_TEST(options_are_checked)
{
    static const struct {
        const char *url, *word;
        int code;
        lapse_options options;
    } rows[] = {
        {NULL, "keep", LAPSE_ERANGE, {.keep = -1}},
        {NULL, "lease", LAPSE_ERANGE, {.lease = LAPSE_DELAY_MAX + 1}},
        {NULL, "stuck_after", LAPSE_ERANGE, {.stuck_after = INT64_MIN}},
        {NULL, "2 is no overflow policy", LAPSE_EINVAL, {.overflow = (lapse_overflow)2}},
        {"", "no scheme", LAPSE_EURL, {.keep = 0}},
        {"memory", "no scheme", LAPSE_EURL, {.keep = 0}},
        {"memories:", "\"memories\" is not the scheme", LAPSE_EURL, {.keep = 0}},
        {"\x01\xff:", "\"\\x01\\xff\"", LAPSE_EURL, {.keep = 0}},
        {"memory:/a/path", "takes no path", LAPSE_EURL, {.keep = 0}},
        {"memory:?engine=hoop", "wheel or heap", LAPSE_EURL, {.keep = 0}},
        {"memory:?overflow=drop", "refuse or dead_letter_oldest", LAPSE_EURL, {.keep = 0}},
        {"memory:?slots=4097", "1 to 4096", LAPSE_ERANGE, {.keep = 0}},
        {"memory:?slots=", "whole number", LAPSE_EURL, {.keep = 0}},
        {"memory:?max_pending=99999999999999999999", "whole number", LAPSE_EURL, {.keep = 0}},
        {"memory:?tick=999ns", "tick", LAPSE_ERANGE, {.keep = 0}},
        {"memory:?tick=61m", "tick", LAPSE_ERANGE, {.keep = 0}},
        {"memory:?keep=9223372036854775807d", "keep", LAPSE_ERANGE, {.keep = 0}},
        {"memory:?lease=5", "unit", LAPSE_EURL, {.keep = 0}},
        {"memory:?lease=5w", "unit", LAPSE_EURL, {.keep = 0}},
        {"memory:?colour=\x1b[31m", "colour", LAPSE_EURL, {.keep = 0}},
        {"memory:?=5", "option", LAPSE_EURL, {.keep = 0}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        lapse *s = (lapse *)&s;
        refused_with(lapse_open(rows[i].url, &rows[i].options, &s), rows[i].code, rows[i].word);
        ck_assert_ptr_null(s);
        ck_assert_ptr_null(strstr(lapse_error_detail(), "secret"));
        ck_assert_ptr_null(strchr(lapse_error_detail(), 0x1b));
    }
}
END_TEST

/* -- After stop ------------------------------------------------------------ */

START_TEST(stopped_is_closed)
{
    rig r = rig_manual(_i, START, NULL);
    lapse *s = r.s;
    const lapse_order *order;
    lapse_callback fn;
    void *arg;
    int64_t result;
    ck_assert_int_gt(lapse_schedule(s, "1", 0, never, NULL), 0);
    ck_assert_int_eq(lapse_stop(s), 0);
    ck_assert_int_eq(lapse_stop(s), 0);
    lapse_spec spec = {.id = "2"};
    refused_with(lapse_put(s, &spec), LAPSE_ECLOSED, "stopped");
    ck_assert_int_eq(lapse_schedule_many(s, &spec, 1, &result), 0);
    ck_assert_int_eq(result, LAPSE_ECLOSED);
    refused_with(lapse_reschedule(s, "1", LAPSE_ANY, 0), LAPSE_ECLOSED, "stopped");
    refused_with(lapse_requeue(s, "1", LAPSE_ANY, 0), LAPSE_ECLOSED, "stopped");
    refused_with(lapse_process(s, 0), LAPSE_ECLOSED, "stopped");
    refused_with(lapse_wait(s, LAPSE_FOREVER), LAPSE_ECLOSED, "stopped");
    refused_with(lapse_begin(s, LAPSE_FOREVER, &order, &fn, &arg), LAPSE_ECLOSED, "stopped");
    refused_with(lapse_take(s, NULL, LAPSE_FOREVER, &order), LAPSE_ECLOSED, "stopped");
    refused_with(lapse_start(s, 1), LAPSE_ECLOSED, "stopped");
    refused_with(lapse_handle(s, NULL, never, NULL, NULL, NULL), LAPSE_ECLOSED, "stopped");
    ck_assert_int_eq(lapse_run(s), 0);
    ck_assert_int_eq(lapse_timeout(s), LAPSE_FOREVER);
    ck_assert_uint_eq(stats_of(s).refused, 3);
    ck_assert_int_eq(lapse_cancel(s, "1", LAPSE_ANY), LAPSE_FATE_CANCELLED);
    rig_close(&r);
}
END_TEST

/* -- Limits ------------------------------------------------------------------------- */

/* Known queues go on working when there can be no more. */
START_TEST(queues_have_a_limit)
{
    rig r = rig_manual(_i, START, NULL);
    const lapse_order *order;
    int64_t result;
    int made = 0;
    char name[16] = "";
    for (; made < 65534; made++) { /* And "". */
        snprintf(name, sizeof name, "queue %d", made);
        if (lapse_pause(r.s, name) < 0)
            break;
    }
    ck_assert_msg(made == 65534, "%d queues: %s", made, lapse_error_detail());
    lapse_spec spec = {.id = "1", .queue = "one more"};
    refused_with(lapse_put(r.s, &spec), LAPSE_EINVAL, "65535 queues");
    ck_assert_int_eq(lapse_schedule_many(r.s, &spec, 1, &result), 0);
    refused_with(result, LAPSE_EINVAL, "65535 queues");
    refused_with(lapse_handle(r.s, "one more", never, NULL, NULL, NULL), LAPSE_EINVAL, "65535");
    refused_with(lapse_pause(r.s, "one more"), LAPSE_EINVAL, "65535 queues");
    refused_with(lapse_poll(r.s, "one more", &order), LAPSE_EINVAL, "65535 queues");
    ck_assert_int_eq(lapse_resume(r.s, name), 0);
    spec.queue = name;
    ck_assert_int_gt(lapse_put(r.s, &spec), 0);
    ck_assert_str_eq(lapse_queue_name(r.s, 65534), name);
    ck_assert_ptr_null(lapse_queue_name(r.s, 65535));
    rig_close(&r);
}
END_TEST

static gate released, let_go;

static void release_slowly(void *arg)
{
    (void)arg;
    gate_open(&released);
    if (!gate_pass(&let_go))
        complain("the gate stayed shut");
}

static void process_one(void *arg, int number)
{
    (void)number;
    if (lapse_process(arg, 1) != 1)
        complain("nothing ran");
}

/* A call that is still inside keeps the scheduler, also when no callback runs. */
START_TEST(close_waits_for_calls)
{
    rig r = rig_real(_i, NULL);
    atomic_int ran = 0;
    gate_init(&released);
    gate_init(&let_go);
    lapse_spec spec = {.id = "1", .fn = count_run, .arg = &ran, .release = release_slowly};
    ck_assert_int_gt(lapse_put(r.s, &spec), 0);
    ck_assert_int_eq(lapse_wait(r.s, LIMIT), 1);
    crew c;
    crew_start(&c, 1, process_one, r.s);
    ck_assert(gate_pass(&released));
    refused_with(lapse_close(r.s, 0), LAPSE_ETIMEOUT, "1 calls");
    gate_open(&let_go);
    crew_join(&c);
    ck_assert_int_eq(ran, 1);
    rig_close(&r);
    gate_destroy(&released);
    gate_destroy(&let_go);
}
END_TEST

int main(void)
{
    memset(too_long, 'x', sizeof too_long - 1);
    Suite *suite = suite_create("arguments");
    TCase *group = add_group(suite, "arguments");
    tcase_add_test(group, errors_have_names);
    tcase_add_test(group, system_errors_are_words);
    tcase_add_test(group, text_is_escaped);
    tcase_add_test(group, null_is_refused);
    ADD_FOR_ENGINES(group, arguments_are_checked);
    tcase_add_test(group, clocks_are_checked);
    ADD_FOR_ENGINES(group, policies_are_checked);
    tcase_add_test(group, options_are_checked);
    ADD_FOR_ENGINES(group, stopped_is_closed);
    ADD_FOR_ENGINES(group, queues_have_a_limit);
    ADD_FOR_ENGINES(group, close_waits_for_calls);
    return run_suite(suite);
}
