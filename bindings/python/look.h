/* look.h - orders as tuples. */
#ifndef LAPSE_PYTHON_LOOK_H
#define LAPSE_PYTHON_LOOK_H

#include "binding.h"

/* The fields of lapse.Info in their order. NULL with an exception. */
PyObject *look_tuple(binding_state *state, const lapse_info *info);

#endif
