/* tool.h - what the files of the tool share: one run of it, its output, its values.
 *
 * A command is a row of the table in cli.c and a function `cli_cmd_<name>` that finds its
 * options and arguments in `cli` and returns an exit code. All output of a command goes
 * through out.c, as text for people or, with --json, as one JSON object a line. */
#ifndef LAPSE_TOOL_H
#define LAPSE_TOOL_H

#include <stdio.h>

#include "cli.h"

/* What was asked for on the command line. */
typedef struct cli_options {
    const char *url;
    bool json, hex;
    const char *queue; /* NULL: all, or "" for schedule */
    unsigned states;   /* lapse_state bits; 0: all */
    int reason;        /* a lapse_reason; 0: all */
    int64_t limit;     /* 0: none */
    int64_t generation;
    lapse_ns delay;
    lapse_ns at; /* 0: none */
    char *payload;
    size_t payload_len;
    bool replace, all, yes, raw, no_write;
    int64_t speed;
    lapse_ns interval, ahead;
} cli_options;

typedef struct cli {
    lapse *s;
    const char *command; /* its name, for messages */
    cli_options o;
    char **args;
    int count;
    bool fields;    /* the record that is being written has some already */
    int records;    /* that were written */
    bool listening; /* stderr is a terminal: progress is shown */
    lapse_ns told;  /* when it was last shown */
    char decoded[LAPSE_ID_MAX + 1];
} cli;

/* -- Messages (cli.c) -------------------------------------------------------------- */

/* Say what is wrong with the command line; returns LAPSE_CLI_USAGE. */
__attribute__((format(printf, 2, 3))) int cli_usage(const cli *c, const char *format, ...);

/* The same of a word that should not stand there, between two parts of a sentence; a URL, which
 * may hold a password, is shown only up to its "//". */
int cli_wrong_word(const cli *c, const char *before, const char *word, const char *after);

/* The same of a text that is no value of `name`, and why: the end of a sentence. */
int cli_no_value(const cli *c, const char *name, const char *text, const char *why);

/* Say why a call failed, with the library's detail; `id` may be NULL. Returns the exit code. */
int cli_fail(cli *c, const char *id, int code);

/* The short name of an error; never NULL. */
const char *cli_error_name(int code);

/* The id that argument `i` means, or NULL after cli_usage. Valid until the next call. */
const char *cli_id(cli *c, int i);

/* The worse of two exit codes. */
int cli_worse(int a, int b);

/* -- Values (values.c): why the text is none, or NULL when `out` is set ------------ */

const char *cli_parse_duration(const char *text, lapse_ns *out);
const char *cli_parse_instant(const char *text, lapse_ns *out);
const char *cli_parse_number(const char *text, int64_t least, int64_t *out);
const char *cli_parse_states(const char *text, unsigned *out);
const char *cli_parse_reason(const char *text, int *out);
const char *cli_parse_hex(const char *text, char out[LAPSE_ID_MAX + 1]);

/* Read a file ("-": stdin) into memory that the caller frees. */
const char *cli_read_file(const char *path, char **out, size_t *len);

/* -- Words (values.c) -------------------------------------------------------------- */

const char *cli_state_word(lapse_state state);
const char *cli_reason_word(lapse_reason reason);
const char *cli_fate_word(int fate);

/* "1h30m", "2.5s", "0s": at most two units, rounded down. */
typedef char cli_span_text[48];
const char *cli_span(lapse_ns ns, cli_span_text out);

/* "2030-01-31 12:00:00.000Z", with milliseconds or, `exact`, nanoseconds and a T. */
typedef char cli_instant_text[48];
const char *cli_instant(lapse_ns utc, bool exact, cli_instant_text out);

/* The URL without its passwords, in new memory; NULL without memory. */
char *cli_url_shown(const char *url);

/* Whether the URL names a file that is not there: opening the store would make an empty one. */
bool cli_file_missing(const char *url);

/* -- Output (out.c) ---------------------------------------------------------------- */

/* A record: an object on one line of JSON, or lines of "name  value". */
void cli_begin(cli *c);
void cli_end(cli *c);
void cli_put_bytes(cli *c, const char *name, const void *bytes, size_t len);
void cli_put_word(cli *c, const char *name, const char *word); /* NULL: left out */
void cli_put_text(cli *c, const char *name, const char *text); /* as cli_print_text */
void cli_put_int(cli *c, const char *name, int64_t value);
void cli_put_count(cli *c, const char *name, uint64_t value);
void cli_put_rate(cli *c, const char *name, double per_second); /* JSON: <name>_per_second */
void cli_put_flag(cli *c, const char *name, bool value);
void cli_put_instant(cli *c, const char *name, lapse_ns utc);
void cli_put_span(cli *c, const char *name, lapse_ns ns); /* JSON: <name>_seconds */

/* Bytes as a person can read them on one line: what is no text is \n, \t, \\ or \xNN. */
void cli_print_bytes(FILE *out, const void *bytes, size_t len);

/* The library's own words, whose escapes are kept as they are. */
void cli_print_text(FILE *out, const char *text);

/* "<id> <word>" or {"id": ..., "<name>": "<word>"}. */
void cli_say(cli *c, const char *id, const char *name, const char *word);

/* The orders of list and dead, a line each. */
void cli_list_heading(cli *c);
void cli_list_row(cli *c, const lapse_info *info);
void cli_dead_heading(cli *c);
void cli_dead_row(cli *c, const lapse_info *info);
void cli_put_info(cli *c, const lapse_info *info);

/* Whether the output goes to a terminal, where it is its own progress. */
bool cli_output_seen(void);

/* Show on a terminal, now and then, how far long work has come; and wipe that line. */
void cli_progress(cli *c, const char *verb, int64_t done, int64_t total);
void cli_progress_end(cli *c);

/* -- Commands ---------------------------------------------------------------------- */

/* Whether options and arguments belong together, before the store is opened; else a message.
 * The delay that an argument means is in the options then. */
bool cli_read_schedule(cli *c);
bool cli_read_reschedule(cli *c);
bool cli_read_get(cli *c);
bool cli_read_requeue(cli *c);
bool cli_read_purge(cli *c);

int cli_cmd_schedule(cli *c);
int cli_cmd_cancel(cli *c);
int cli_cmd_reschedule(cli *c);
int cli_cmd_get(cli *c);
int cli_cmd_list(cli *c);
int cli_cmd_dead(cli *c);
int cli_cmd_requeue(cli *c);
int cli_cmd_purge(cli *c);
int cli_cmd_stats(cli *c);
int cli_cmd_queues(cli *c);
int cli_cmd_metrics(cli *c);
int cli_cmd_check(cli *c);
int cli_cmd_migrate(cli *c);
int cli_cmd_watch(cli *c);
int cli_cmd_demo(cli *c);

/* Whether list, dead, requeue --all and purge --all mean this order. */
bool cli_selected(const cli *c, const lapse_info *info);

/* check, when the store could not even be opened: the error's name and a sentence. */
int cli_check_failed(cli *c, int code, const char *name, const char *detail);

#endif
