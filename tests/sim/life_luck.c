/* life_luck.c - what a life draws from its seed. */
#include "sim/life_parts.h"

/* -- Luck ----------------------------------------------------------------------------- */

int roll(int sides)
{
    return (int)rng_range(&life.luck, 0, sides - 1);
}

bool one_in(int n)
{
    return roll(n) == 0;
}

lapse_ns units(int least, int most)
{
    return life.unit * rng_range(&life.luck, least, most);
}

int any_id(void)
{
    return roll(life.ids);
}

int any_queue(void)
{
    return roll(life.queues);
}

/* The first queue has no name, which can be said in two ways. */
const char *say_queue(int queue)
{
    return queue == 0 && one_in(2) ? NULL : twin_queues[queue];
}

lapse_ns any_delay(void)
{
    lapse_ns tick = tw.config.tick ? tw.config.tick : 10;
    switch (roll(12)) {
    case 0:
    case 1:
        return 0;
    case 2:
        return -units(1, 3);
    case 3:
        return tick * rng_range(&life.luck, 0, 3) + rng_range(&life.luck, 0, 2) - 1;
    case 4:
        return twin_up(tw.now + units(0, 4)) - tw.now;
    case 5:
        return units(1, 50);
    case 6:
        return one_in(6) ? LAPSE_DELAY_MAX : units(0, 9);
    case 7:
        return one_in(6) ? LAPSE_DELAY_MAX + 1 + rng_range(&life.luck, 0, 1) : units(1, 2);
    default:
        return units(1, 5);
    }
}

int64_t any_generation(int id)
{
    int newest = tw.newest[id];
    if (newest != NONE && one_in(3))
        return tw.orders[newest].generation;
    if (tw.order_count && one_in(6))
        return tw.orders[roll(tw.order_count)].generation;
    return one_in(12) ? 1 + roll(1000) : LAPSE_ANY;
}

const char *any_error(void)
{
    static const char *const errors[] = {NULL, "no route", "the shop is closed", "timeout"};
    return errors[roll(4)];
}

bool is_full_up(void)
{
    return tw.order_count > ORDERS - 2 * MANY || tw.claim_count > CLAIMS - 3 * IDS;
}
