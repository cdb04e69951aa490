/* options.h - which options there are, each with its own help line, as a set of bits.
 *
 * A command names the set that it takes; parsing and help follow from it. */
#ifndef LAPSE_OPTIONS_H
#define LAPSE_OPTIONS_H

#include "tool.h"

/* Name, long form, letter, what its argument is called (NULL: it has none), help. */
#define OPTIONS(X)                                                                                 \
    X(QUEUE, "queue", 'q', "NAME", "only orders of this queue; for schedule: in this queue")       \
    X(STATE, "state", 's', "LIST", "only pending, running, done or dead; several with commas")     \
    X(REASON, "reason", 'r', "WORD", "only failed, rejected, expired, maxlen or lost ones")        \
    X(LIMIT, "limit", 'n', "NUMBER", "stop after so many")                                         \
    X(AT, "at", 0, "INSTANT", "due at 2030-01-31T12:00:00Z, or @ and seconds since 1970")          \
    X(PAYLOAD, "payload", 'p', "TEXT", "what the order brings to its handler")                     \
    X(PAYLOAD_FILE, "payload-file", 0, "FILE", "the same from a file; -: from standard input")     \
    X(REPLACE, "replace", 0, NULL, "a pending order of this id gives way")                         \
    X(DELAY, "delay", 'd', "DURATION", "due after so long; at once without it")                    \
    X(GENERATION, "generation", 'g', "NUMBER", "only this generation of the order")                \
    X(ALL, "all", 0, NULL, "all dead letters, or those of --queue and --reason")                   \
    X(YES, "yes", 'y', NULL, "do it: deleting all of them is meant")                               \
    X(HEX, "hex", 0, NULL, "ids are given as hexadecimal digits, as id_hex shows them")            \
    X(RAW, "raw", 0, NULL, "print the payload alone, byte for byte")                               \
    X(NO_WRITE, "no-write", 0, NULL, "write no probe order; only open and read")                   \
    X(INTERVAL, "interval", 'i', "DURATION", "between two lines; 1s without it")                   \
    X(AHEAD, "ahead", 0, "DURATION", "count what falls due within it: reads all that is pending")  \
    X(SPEED, "speed", 0, "NUMBER", "divide every delay by it; 1 without it")                       \
    X(URL, "url", 'u', "URL", "the store; without it the one of LAPSE_URL, else memory:")          \
    X(JSON, "json", 'j', NULL, "one JSON object a line")                                           \
    X(HELP, "help", 'h', NULL, "this text")                                                        \
    X(VERSION, "version", 'V', NULL, "the version")

enum {
#define OPTION_NUMBER(number, name, letter, argument, help) O_##number,
    OPTIONS(OPTION_NUMBER)
#undef OPTION_NUMBER
        OPTION_COUNT
};

enum {
#define OPTION_BIT(number, name, letter, argument, help) number = 1 << O_##number,
    OPTIONS(OPTION_BIT)
#undef OPTION_BIT
        COMMON = URL | JSON | HELP,
    FIRST = URL | JSON | HELP | VERSION, /* may stand before the command */
};

/* What parsing ended with, if not with an exit code. */
enum { GO_ON = -1, ASKED_HELP = -2, ASKED_VERSION = -3 };

/* Take the options of `set` among the arguments, or only those before the first argument that is
 * none. GO_ON, what was asked for instead, or an exit code. `optind` tells where the rest
 * begins. */
int cli_take_options(cli *c, int argc, char **argv, int set);
int cli_take_first_options(cli *c, int argc, char **argv, int set);

/* A line of help for each option of the set. */
void cli_help_options(FILE *out, int set);

#endif
