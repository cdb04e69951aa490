/* fuzz.h - what the fuzz targets share: bytes to decide by, and what must hold.
 *
 * A target is LLVMFuzzerTestOneInput, for libFuzzer and for replay.c alike. */
#ifndef LAPSE_TESTS_FUZZ_H
#define LAPSE_TESTS_FUZZ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lapse.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* End the program, which is how libFuzzer learns of it. */
#define must(condition)                                                                            \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: does not hold: %s (%s)\n", __FILE__, __LINE__, #condition,     \
                    lapse_error_detail());                                                         \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

typedef struct bytes {
    const uint8_t *at, *end;
} bytes;

static inline bool any_left(const bytes *b)
{
    return b->at < b->end;
}

/* The next byte, 0 when none is left. */
static inline unsigned next_byte(bytes *b)
{
    return any_left(b) ? *b->at++ : 0;
}

static inline unsigned below(bytes *b, unsigned limit)
{
    return next_byte(b) % limit;
}

/* A duration: mostly a small number of some unit, sometimes what no call accepts. */
static inline lapse_ns next_duration(bytes *b)
{
    static const lapse_ns units[] = {1,
                                     LAPSE_US(1),
                                     LAPSE_MS(1),
                                     LAPSE_SECONDS(1),
                                     LAPSE_MINUTES(1),
                                     LAPSE_HOURS(1),
                                     LAPSE_DAYS(1),
                                     LAPSE_DAYS(365)};
    static const lapse_ns odd[] = {INT64_MIN, -1, LAPSE_DELAY_MAX, LAPSE_DELAY_MAX + 1, INT64_MAX};
    unsigned n = next_byte(b);
    if (n >= 256 - sizeof odd / sizeof *odd)
        return odd[255 - n];
    return units[n >> 5] * (n & 31);
}

#endif
