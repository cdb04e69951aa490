/* story.h - what happened in a life, one line a step, told only when it ends badly.
 *
 * Lines are kept in memory; a life that holds is forgotten when the next begins. Nothing
 * here knows what the lines are about. */
#ifndef LAPSE_TESTS_STORY_H
#define LAPSE_TESTS_STORY_H

#include <stdint.h>

/* Have the story told too when the process is killed by a crash, a sanitizer or a call
 * that never returns. */
void story_open(void);

/* Forget the last story; `seed` repeats this one. */
void story_begin(uint64_t seed);

/* Add a line, indented as deep as story_nest says. */
void story(const char *format, ...) __attribute__((format(printf, 1, 2)));
void story_nest(int by);

/* Tell the story and what is wrong at its end, and exit. */
_Noreturn void story_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* A promise: when it does not hold, the story ends here. */
#define must(condition, ...)                                                                       \
    do {                                                                                           \
        if (!(condition))                                                                          \
            story_fail(__VA_ARGS__);                                                               \
    } while (0)

#endif
