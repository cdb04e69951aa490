/* thread.h - what the threads of the binding need: to be started, and bells.
 *
 * A bell is a descriptor that one thread rings and another waits for. */
#ifndef LAPSE_LUA_THREAD_H
#define LAPSE_LUA_THREAD_H

#include <pthread.h>

#include "lapse.h"

/* Start a thread that blocks all signals: 0 or an errno. */
int thread_start(pthread_t *thread, void *(*serve)(void *), void *arg);

int bell_open(void); /* the descriptor; -1 and errno */
void bell_ring(int bell);
void bell_quiet(int bell);

/* Wait for a ring, `limit` at most, and make the bell quiet. */
void bell_wait(int bell, lapse_ns limit);

#endif
