/* cli.h - the command-line tool as functions, for its program and for the Python package.
 *
 * It writes to stdout and stderr, keeps getopt's global state, and ends nothing: the exit
 * code is returned. One call at a time in a process. */
#ifndef LAPSE_CLI_H
#define LAPSE_CLI_H

#include <lapse.h>

/* What the exit code says. */
typedef enum lapse_cli_exit {
    LAPSE_CLI_DONE = 0,
    LAPSE_CLI_NO = 1,    /* the store's answer is no: unknown, running, exists, unhealthy */
    LAPSE_CLI_USAGE = 2, /* the command line is wrong; nothing was done */
    LAPSE_CLI_STORE = 3, /* the store, or writing the output, failed */
} lapse_cli_exit;

/* Run `lapse <arguments>`; argv[0] is not looked at. Returns the exit code. */
int lapse_cli(int argc, char **argv);

/* The same on a scheduler that is open already and stays open; --url is not looked at. */
int lapse_cli_on(lapse *s, int argc, char **argv);

#endif
