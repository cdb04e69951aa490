/* cli.h - the command-line tool as a function of the module. */
#ifndef LAPSE_PYTHON_CLI_H
#define LAPSE_PYTHON_CLI_H

#include "binding.h"

/* _cli(arguments: list[bytes]) -> int: run the tool, arguments[0] being its name; the exit
 * code. The GIL is released meanwhile. */
PyObject *cli_run(PyObject *module, PyObject *arguments);

#endif
