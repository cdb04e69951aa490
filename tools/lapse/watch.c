/* watch.c - the store's counts again and again, and how fast they change.
 *
 * What other processes do is seen by what they leave: a rate is the difference of two counts.
 * On a terminal one line stays in its place; elsewhere each look is a line of its own. */
#include <time.h>

#include "tool.h"

typedef struct look {
    lapse_ns at;
    lapse_stats stats;
    lapse_ns within; /* --ahead; 0: not asked for */
    uint64_t ahead;  /* pending orders that fall due within it */
} look;

static bool due_soon(const lapse_info *info, void *arg)
{
    look *now = arg;
    now->ahead += info->remaining <= now->within;
    return true;
}

/* 0 or an error. */
static int take_look(cli *c, look *now)
{
    *now = (look){.at = lapse_now(c->s), .within = c->o.ahead};
    int code = lapse_statistics(c->s, &now->stats);
    if (code < 0 || now->within == 0)
        return code;
    int64_t seen = lapse_each(c->s, LAPSE_STATE_PENDING, due_soon, now);
    return seen < 0 ? (int)seen : 0;
}

static double per_second(uint64_t before, uint64_t after, lapse_ns passed)
{
    return passed > 0 ? ((double)after - (double)before) * 1e9 / (double)passed : 0;
}

static void show_json(cli *c, const look *before, const look *now)
{
    const lapse_stats *s = &now->stats;
    lapse_ns passed = now->at - before->at;
    cli_begin(c);
    cli_put_count(c, "pending", s->pending);
    cli_put_rate(c, "pending_change", per_second(before->stats.pending, s->pending, passed));
    cli_put_count(c, "running", s->running);
    cli_put_count(c, "dead", s->dead);
    cli_put_rate(c, "dead_change", per_second(before->stats.dead, s->dead, passed));
    cli_put_span(c, "oldest_due", s->oldest_due);
    if (now->within > 0) {
        cli_put_count(c, "due_ahead", now->ahead);
        cli_put_rate(c, "due", per_second(0, now->ahead, now->within));
    }
    cli_put_span(c, "offline", s->offline);
    cli_end(c);
}

static void heading(const cli *c)
{
    if (c->o.json)
        return;
    printf("%10s %10s %8s %8s %8s %10s", "PENDING", "CHANGE/s", "RUNNING", "DEAD", "DEAD/s",
           "OLDEST");
    puts(c->o.ahead > 0 ? "      DUE/s" : "");
}

static void show_text(const look *before, const look *now)
{
    const lapse_stats *s = &now->stats;
    lapse_ns passed = now->at - before->at;
    cli_span_text oldest, offline;
    printf("%10llu %+10.1f %8llu %8llu %+8.1f %10s", (unsigned long long)s->pending,
           per_second(before->stats.pending, s->pending, passed), (unsigned long long)s->running,
           (unsigned long long)s->dead, per_second(before->stats.dead, s->dead, passed),
           cli_span(s->oldest_due, oldest));
    if (now->within > 0)
        printf(" %10.1f", per_second(0, now->ahead, now->within));
    if (s->offline > 0)
        printf("  not reached for %s", cli_span(s->offline, offline));
}

static void show(cli *c, bool terminal, const look *before, const look *now)
{
    if (c->o.json) {
        show_json(c, before, now);
    } else {
        fputs(terminal ? "\r" : "", stdout);
        show_text(before, now);
        fputs(terminal ? "\033[K" : "\n", stdout);
    }
    fflush(stdout);
}

/* Until an instant of the scheduler's clock, so that looking takes nothing from the interval. */
static void sleep_until(cli *c, lapse_ns instant)
{
    lapse_ns left;
    while ((left = instant - lapse_now(c->s)) > 0)
        nanosleep(&(struct timespec){left / LAPSE_SECONDS(1), left % LAPSE_SECONDS(1)}, NULL);
}

int cli_cmd_watch(cli *c)
{
    look before, now;
    bool terminal = cli_output_seen() && !c->o.json;
    int code = take_look(c, &before);
    heading(c);
    for (int64_t i = 0; code == 0 && !ferror(stdout); before = now) {
        sleep_until(c, before.at + c->o.interval);
        code = take_look(c, &now);
        if (code == 0)
            show(c, terminal, &before, &now);
        if (++i == c->o.limit)
            break;
    }
    if (terminal)
        putchar('\n');
    return code < 0 ? cli_fail(c, NULL, code) : LAPSE_CLI_DONE;
}
