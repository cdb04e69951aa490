/* claim.h - a claim from outside: take it, settle it, hold it longer.
 *
 * What a Scheduler and a Worker have in common. `args` is the tuple of a call. */
#ifndef LAPSE_PYTHON_CLAIM_H
#define LAPSE_PYTHON_CLAIM_H

#include "core.h"

/* An Order of `type` for what was claimed, which is given back when there is no memory for
 * one; NULL with an exception. */
PyObject *claim_make(binding_state *state, core *c, PyObject *type, const lapse_order *order);

/* As if it had not been tried. */
void claim_give_back(core *c, int64_t fence);

/* The next due order of `queue` (str or None) that has no callback, as a `type`; None when
 * `limit` has passed or a signal came. One with a limit waits without the GIL. */
PyObject *claim_take(binding_state *state, core *c, PyObject *queue, PyObject *type,
                     lapse_ns limit);

/* (fence, verdict, delay_ns, error) */
PyObject *claim_settle(binding_state *state, core *c, PyObject *args);

/* (fence, lease_ns) */
PyObject *claim_renew(binding_state *state, core *c, PyObject *args);

/* (fence) */
PyObject *claim_holds(core *c, PyObject *args);

#endif
