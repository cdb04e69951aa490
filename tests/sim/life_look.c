/* life_look.c - time passes, and what is seen after each step. */
#include "sim/life_parts.h"

#include <stdio.h>
#include <string.h>

/* -- Time ----------------------------------------------------------------------------- */

/* To something that will happen, or a nanosecond beside it. */
static lapse_ns to_an_event(void)
{
    lapse_ns at = tw.now;
    if (tw.claim_count && one_in(3))
        at = tw.claims[roll(tw.claim_count)].lease_end;
    else if (tw.order_count)
        at = tw.orders[roll(tw.order_count)].hi;
    if (one_in(2))
        at = twin_up(at);
    at += roll(3) - 1;
    return at > tw.now && at - tw.now < LAPSE_DAYS(365) ? at - tw.now : 0;
}

static lapse_ns any_step_of_time(void)
{
    lapse_ns timeout = lapse_timeout(life.s);
    switch (roll(8)) {
    case 0:
        return 0;
    case 1:
        return tw.config.tick ? tw.config.tick : 1;
    case 2:
        return timeout < LAPSE_DAYS(365) ? timeout : 0;
    case 3:
    case 4:
        return to_an_event();
    case 5:
        return one_in(12) ? LAPSE_DAYS(roll(400)) : LAPSE_MS(roll(3000));
    default:
        return units(0, 6);
    }
}

void pass_time(lapse_ns by)
{
    story("%lld ns pass: it is %lld", (long long)by, (long long)(tw.now + by - life.start));
    int got = lapse_clock_advance(life.clock, by);
    must(got == LAPSE_OK, "the clock stands still: %s", lapse_error_detail());
    tw.now += by;
    tw.wall += by;
    must(lapse_now(life.s) == tw.now, "the clock says %lld, not %lld", (long long)lapse_now(life.s),
         (long long)tw.now);
}

void do_advance(void)
{
    pass_time(any_step_of_time());
}

/* The wall clock drifts, or is set: from 1969 to 2100. */
void do_set_wall(void)
{
    lapse_ns utc = tw.wall + units(-3, 3);
    if (one_in(3))
        utc = LAPSE_HOURS(rng_range(&life.luck, -9000, 1100000));
    story("the wall clock is set by %lld", (long long)(utc - tw.wall));
    check_answer(LAPSE_OK, lapse_clock_set_wall(life.clock, utc));
    tw.wall = utc;
}

/* -- Look ----------------------------------------------------------------------------- */

typedef struct walk {
    bool seen[ORDERS];
    int64_t count, most;
} walk;

static bool show(const lapse_info *info, void *arg)
{
    walk *w = arg;
    twin_check_info(info);
    int order = twin_find(info->id, info->generation);
    must(twin_visible(&tw.orders[order]), "%s generation %lld is shown, long ended", info->id,
         (long long)info->generation);
    must(!w->seen[order], "%s generation %lld is shown twice", info->id,
         (long long)info->generation);
    w->seen[order] = true;
    return ++w->count != w->most;
}

void look_at_all(unsigned states)
{
    walk w = {.most = 0};
    int64_t shown = lapse_each(life.s, states, show, &w);
    int64_t expected = twin_shown(states ? states : 15);
    must(shown == w.count && shown == expected, "%lld orders are shown, not %lld", (long long)shown,
         (long long)expected);
}

void do_each(void)
{
    walk w = {.most = 1 + roll(3)};
    look_at_all((unsigned)roll(16));
    lapse_each(life.s, 0, show, &w);
}

void do_metrics(void)
{
    char line[64];
    char *text = lapse_metrics(life.s);
    (void)snprintf(line, sizeof line, "\nlapse_scheduled_total %llu\n",
                   (unsigned long long)tw.sum.scheduled);
    must(text && strstr(text, line), "the metrics do not say %s", line);
    lapse_free(text);
}

static void look_at_ids(void)
{
    int count = life.ids > FEW ? FEW : life.ids, first = roll(life.ids - count + 1);
    for (int id = first; id < first + count; id++) {
        lapse_info info;
        int code = lapse_get(life.s, twin_ids[id], &info);
        twin_check_get(id, code, &info);
        if (code == LAPSE_OK)
            lapse_info_free(&info);
    }
}

void look_at_queue(int queue)
{
    lapse_queue_stats stats;
    int code = lapse_queue_statistics(life.s, twin_queues[queue], &stats);
    twin_check_queue(queue, code, &stats);
}

static void check_descriptor(void)
{
    twin_way way = {.called = true, .until = tw.now};
    if (life.fd >= 0 && !tw.stopped)
        must(!twin_any(way, true) || is_readable(),
             "a callback is due, but the descriptor is not readable");
}

void check_step(void)
{
    lapse_stats stats;
    must(lapse_statistics(life.s, &stats) == LAPSE_OK, "no statistics");
    twin_check(&stats);
    look_at_ids();
    look_at_queue(any_queue());
    twin_check_timeout(lapse_timeout(life.s));
    check_descriptor();
    if (one_in(8))
        look_at_all(0);
}
