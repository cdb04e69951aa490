/* sim_lives.c - whole lives of schedulers, each from a seed, beside a stupid twin.
 *
 * One thread, invented time: the clock stands, drifts, jumps; callbacks fail, hang,
 * re-schedule, cancel and replace; workers hold claims, come late, or die. After every
 * step everything that the scheduler shows must be what the twin says. A life that ends
 * badly tells its story. LAPSE_SEED is the seed of the first life and LAPSE_LIVES their
 * number: one life is repeated by its own seed and LAPSE_LIVES=1. */
/* tiers: quick full soak */
#include <stdio.h>
#include <stdlib.h>

#include "sim/life.h"
#include "sim/story.h"
#include "support/support.h"

static uint64_t from_environment(const char *name, uint64_t otherwise)
{
    const char *given = getenv(name);
    return given ? strtoull(given, NULL, 0) : otherwise;
}

int main(void)
{
    uint64_t seed = from_environment("LAPSE_SEED", (uint64_t)boot_now());
    uint64_t lives = from_environment("LAPSE_LIVES", (uint64_t)tier(1000, 20000, 10000000));
    uint64_t steps = 0;
    printf("LAPSE_SEED=%llu LAPSE_LIVES=%llu\n", (unsigned long long)seed,
           (unsigned long long)lives);
    (void)fflush(stdout);
    story_open();
    lapse_ns start = boot_now();
    for (uint64_t i = 0; i < lives; i++)
        steps += life_live(seed + i);
    double seconds = (double)(boot_now() - start) * 1e-9;
    printf("%llu lives held, %llu steps, %.0f lives/s\n", (unsigned long long)lives,
           (unsigned long long)steps, (double)lives / seconds);
    return 0;
}
