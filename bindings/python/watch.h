/* watch.h - looking after callbacks when every worker may be stuck in one. */
#ifndef LAPSE_PYTHON_WATCH_H
#define LAPSE_PYTHON_WATCH_H

#include "core.h"

/* Why the watcher is woken. News and stop wake it at once; a callback that starts only
 * ends a sleep without limit. */
enum { WATCH_START = 1, WATCH_NEWS = 1 << 20 };

/* On any thread, with the GIL or without. Nothing when there was never a watcher. */
void watch_wake(core *c, unsigned why);

/* Look after the core's callbacks until it is stopped: 0, or -1 with an exception. */
int watch_until_stopped(binding_state *state, core *c);

#endif
