/* order.h - lapse.Order: what a callback gets. */
#ifndef LAPSE_PYTHON_ORDER_H
#define LAPSE_PYTHON_ORDER_H

#include "binding.h"

int order_add(PyObject *module, binding_state *state);

/* A Python copy of `order` as an instance of `type`: lapse.Order or a subclass that takes
 * the same arguments. NULL with an exception. */
PyObject *order_object(binding_state *state, PyObject *type, const lapse_order *order);

#endif
