/* news.h - what the core's hooks have to say, on its way to Python. */
#ifndef LAPSE_PYTHON_NEWS_H
#define LAPSE_PYTHON_NEWS_H

#include "core.h"

/* Have the hooks of a scheduler that is about to be opened report to `link`'s core. */
void news_listen(lapse_options *options, core_link *link);

/* Settle what Python has reported as failed: the core's own report of it is left out. */
int news_settle_failed(lapse *s, int64_t fence, const char *error);

/* Around a wait without the GIL that may be long: what comes meanwhile is the watcher's to
 * deliver. */
void news_begin_wait(void);
void news_end_wait(void);

/* Call the hooks of Python for what has come. Runs Python code; keeps the exception that
 * is set. See core_tidy. */
void news_deliver(binding_state *state, core *c);

/* Forget what has come. */
void news_drop(core *c);

#endif
