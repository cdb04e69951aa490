/* simple_store.h - a durable store as simple as can be, for tests of the driver: an array in
 * memory, searched from end to end. It outlives the schedulers that use it. */
#ifndef LAPSE_TESTS_SIMPLE_STORE_H
#define LAPSE_TESTS_SIMPLE_STORE_H

#include "stores/durable.h"

extern const lp_durable_ops simple_store;

/* Forget all orders. */
void simple_store_clear(void);

/* How many turns have been asked for, and how many of them changed something. */
unsigned simple_store_turns(void);

#endif
