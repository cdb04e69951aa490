/* wake.h - one descriptor that is readable when there is something to do.
 *
 * A timerfd on CLOCK_BOOTTIME: armed with an instant it counts the machine's sleep, and
 * re-arming it wakes whoever polls it. Arming it also makes it unreadable until the new
 * instant, so it is never read and no count of it is ever looked at. */
#ifndef LP_WAKE_H
#define LP_WAKE_H

#ifndef __linux__
#error "lapse runs on Linux only for now: it needs timerfd"
#endif

#include "lapse.h"

int lp_wake_open(void); /* the descriptor, or LAPSE_ESYSTEM */
void lp_wake_close(int fd);

/* Readable from `instant` of CLOCK_BOOTTIME on; LAPSE_FOREVER: never. */
void lp_wake_at(int fd, lapse_ns instant);

void lp_wake_now(int fd);

/* A descriptor that is readable from a ring until it is quieted: an eventfd. Ringing costs a
 * tenth of arming a timer with a time that has passed. */
int lp_bell_open(void); /* the descriptor, or LAPSE_ESYSTEM */
void lp_bell_ring(int fd);
void lp_bell_quiet(int fd);

/* Wait until one of `count` descriptors (up to 4; those below 0 are left out) is readable, or
 * `timeout` passed: a set of bits, 1 << i for the i-th, or 0, or LAPSE_EINTR. */
int lp_wake_wait_any(const int *fds, int count, lapse_ns timeout);

/* Wait until it is readable or `timeout` passed (LAPSE_FOREVER: no limit).
 * 1, 0 when time passed, or LAPSE_EINTR. */
int lp_wake_wait(int fd, lapse_ns timeout);

/* Do nothing for a short time, after a failure that may pass. */
void lp_wake_pause(lapse_ns duration);

#endif
