/* life.h - one whole life of a scheduler, from a seed. */
#ifndef LAPSE_TESTS_LIFE_H
#define LAPSE_TESTS_LIFE_H

#include <stdint.h>

/* Returns the number of steps it took; does not return when a promise was broken. */
unsigned life_live(uint64_t seed);

#endif
