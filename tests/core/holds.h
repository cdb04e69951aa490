/* holds.h - an assertion for inner loops: unlike check's own it costs nothing that holds. */
#ifndef LAPSE_TESTS_HOLDS_H
#define LAPSE_TESTS_HOLDS_H

#include <check.h>

#define holds(condition)                                                                           \
    do {                                                                                           \
        if (!(condition))                                                                          \
            ck_abort_msg("does not hold: %s", #condition);                                         \
    } while (0)

#endif
