/* life.c - one whole life of a scheduler, from a seed.
 *
 * Each step is told to the twin, asked of the scheduler, and compared. Callbacks take
 * steps themselves before they answer. The luck of a life is its seed's alone. */
#include "sim/life.h"

#include <stdio.h>

#include "sim/life_parts.h"

struct life life;

/* -- Steps ---------------------------------------------------------------------------- */

static void do_stop(void)
{
    if (!one_in(8))
        return;
    story("stop");
    check_answer(LAPSE_OK, lapse_stop(life.s));
    tw.stopped = true;
}

static void do_close_inside(void)
{
    if (life.inside) {
        story("close inside a callback");
        check_answer(LAPSE_EINCALLBACK, lapse_close(life.s, 0));
    }
}

/* More falls due at once than a rate lets through. */
static void do_rush(void)
{
    if (!life.rate || life.inside)
        return;
    story("a rush");
    do_handle();
    do_many();
    do_many();
    pass_time(LAPSE_MS(1500) + units(0, 2));
    for (int i = 0; i < 8; i++) {
        do_process();
        check_step();
        pass_time(LAPSE_SECONDS(1) / life.rate + roll(3));
    }
}

static const struct step {
    void (*take)(void);
    int weight;
} steps[STEPS] = {
    {do_put, 16},         {do_schedule, 6}, {do_many, 5},         {do_cancel, 8},
    {do_reschedule, 5},   {do_requeue, 3},  {do_purge, 1},        {do_handle, 4},
    {do_pause, 3},        {do_process, 14}, {do_begin, 5},        {do_take, 9},
    {do_wait, 2},         {do_settle, 9},   {do_settle_again, 2}, {do_settle_nonsense, 1},
    {do_renew, 2},        {do_holds, 2},    {do_forget, 1},       {do_advance, 18},
    {do_set_wall, 2},     {do_each, 1},     {do_metrics, 1},      {do_stop, 1},
    {do_close_inside, 1}, {do_rush, 2},
};

/* Each life has habits: it never does some things and does others often. */
static void form_habits(void)
{
    static const int factors[] = {0, 1, 1, 1, 3};
    while (life.weights == 0)
        for (int i = 0; i < STEPS; i++) {
            life.weight[i] = steps[i].weight * factors[roll(5)];
            life.weights += life.weight[i];
        }
}

static void take_step(void)
{
    int i = 0, dice = roll(life.weights);
    while (dice >= life.weight[i])
        dice -= life.weight[i++];
    steps[i].take();
}

void step_inside(void)
{
    take_step();
    if (one_in(4))
        check_step();
}

/* -- Birth and death ------------------------------------------------------------------ */

/* Uptimes at which something has gone wrong before. */
static lapse_ns any_start(void)
{
    static const lapse_ns edges[] = {
        0,
        1,
        LAPSE_MS(1) - 1,
        LAPSE_SECONDS(1),
        (INT64_C(1) << 31) * 1000000 - 5,
        (INT64_C(1) << 32) * 1000000 - 5,
        (INT64_C(1) << 32) - 5,
        (INT64_C(1) << 53) - 5,
        (INT64_C(1) << 60) - 5,
        LAPSE_DELAY_MAX,
    };
    int count = sizeof edges / sizeof *edges;
    return one_in(2) ? edges[roll(count)] : rng_range(&life.luck, 0, LAPSE_DAYS(1000));
}

static lapse_ns any_tick(void)
{
    static const lapse_ns ticks[] = {LAPSE_US(1),   LAPSE_US(10),     LAPSE_MS(1),   LAPSE_MS(7),
                                     LAPSE_MS(100), LAPSE_SECONDS(1), LAPSE_HOURS(1)};
    return one_in(2) ? 0 : ticks[roll(7)];
}

static lapse_ns any_unit(lapse_ns tick)
{
    const lapse_ns choice[] = {1, LAPSE_US(1), LAPSE_MS(1), LAPSE_MS(400), LAPSE_SECONDS(40)};
    if (tick && one_in(2))
        return one_in(2) ? tick : tick / 2 + 1;
    return choice[roll(5)];
}

static void make_url(char *url, size_t size, lapse_ns tick)
{
    static const int slots[] = {1, 64, 100, 256};
    if (tick)
        (void)snprintf(url, size, "memory:?engine=wheel&tick=%lldus&slots=%d",
                       (long long)(tick / 1000), slots[roll(4)]);
    else
        (void)snprintf(url, size, "memory:?engine=heap");
}

static lapse_options any_options(void)
{
    return (lapse_options){
        .clock = life.clock,
        .max_pending = one_in(3) ? (uint64_t)(1 + roll(life.ids)) : 0,
        .overflow = one_in(2) ? LAPSE_REFUSE : LAPSE_DEAD_LETTER_OLDEST,
        .keep = one_in(2) ? 0 : units(1, 20),
        .max_dead = one_in(2) ? (uint64_t)(1 + roll(4)) : 0,
        .lease = one_in(4) ? 0 : units(1, 12),
        .stuck_after = one_in(2) ? 0 : units(1, 8),
        .release = one_in(2) ? release_default : NULL,
        .on_error = on_error,
        .on_dead = on_dead,
        .log = on_log,
    };
}

static twin_config config_of(const lapse_options *o, lapse_ns tick)
{
    return (twin_config){
        .tick = tick,
        .max_pending = o->max_pending,
        .max_dead = o->max_dead ? o->max_dead : 10000,
        .overflow = o->overflow,
        .keep = o->keep,
        .lease = o->lease ? o->lease : LAPSE_SECONDS(30),
        .releases = o->release != NULL,
    };
}

static void be_born(uint64_t seed)
{
    char url[96];
    life = (struct life){.luck = {seed}, .fd = -1};
    story_begin(seed);
    lapse_ns tick = any_tick();
    life.unit = any_unit(tick);
    life.ids = one_in(20) ? IDS : 1 + roll(FEW);
    life.queues = 1 + roll(QUEUES);
    life.rate = one_in(6) ? (unsigned)(1 + roll(3)) : 0;
    life.start = any_start();
    form_habits();
    make_url(url, sizeof url, tick);
    must(lapse_clock_manual(life.start, &life.clock) == LAPSE_OK, "no clock");
    lapse_options options = any_options();
    twin_config config = config_of(&options, tick);
    twin_open(&config, life.start, LAPSE_SECONDS(1767225600));
    story("%s at %lld; max_pending %llu%s, max_dead %llu, keep %lld, lease %lld", url,
          (long long)life.start, (unsigned long long)options.max_pending,
          options.overflow == LAPSE_REFUSE ? "" : " (oldest dies)",
          (unsigned long long)config.max_dead, (long long)options.keep, (long long)config.lease);
    must(lapse_open(url, &options, &life.s) == LAPSE_OK, "open: %s", lapse_error_detail());
    if (one_in(3))
        life.fd = lapse_fd(life.s);
}

/* Workers that began a callback come back, late; takers need not. */
static void end_callbacks(void)
{
    for (int i = 0; i < tw.claim_count; i++)
        if (!tw.claims[i].settled && tw.claims[i].called) {
            check_answer(LAPSE_EINCALLBACK, lapse_close(life.s, 0));
            tw.stopped = true;
            settle(i, (lapse_verdict)roll(5));
            check_step();
        }
}

static void die(void)
{
    story("the end");
    check_answer(LAPSE_OK, lapse_stop(life.s));
    tw.stopped = true;
    check_step();
    look_at_all(0);
    look_at_all(LAPSE_STATE_PENDING);
    for (int queue = 0; queue < QUEUES; queue++)
        look_at_queue(queue);
    do_put();
    do_process();
    end_callbacks();
    twin_close();
    check_answer(LAPSE_OK, lapse_close(life.s, 0));
    twin_check_closed();
    lapse_clock_free(life.clock);
}

unsigned life_live(uint64_t seed)
{
    be_born(seed);
    unsigned count = 20 + (unsigned)roll(41);
    for (unsigned i = 0; i < count; i++) {
        take_step();
        check_step();
    }
    die();
    return count;
}
