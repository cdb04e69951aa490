/* cli.c - which commands there are, and one run of one of them.
 *
 * A row of the table says all about a command: its words, the options that it takes, whether it
 * makes sense on a store that ends with it. Checks and --help follow from that. */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "options.h"

/* -- Commands ---------------------------------------------------------------------- */

enum { MANY = 1 << 20 };

typedef struct command {
    const char *name, *arguments, *summary, *more;
    int options, least, most; /* arguments, besides options */
    bool memory;              /* makes sense on a store that ends with the command */
    bool opens;               /* wants the store open */
    bool (*read)(cli *c);     /* looks at the command line before that; may be NULL */
    int (*run)(cli *c);
} command;

/* clang-format off */
static const command commands[] = {
    {"demo", "", "Orders that are paid in time, and orders that lapse, in memory",
     "Eight orders are placed. Each has 3 seconds to be paid; what is not paid is closed and\n"
     "its stock given back. Always in memory: no store is touched.",
     SPEED | JSON | HELP, 0, 0, true, false, NULL, cli_cmd_demo},
    {"schedule", "ID DELAY | ID --at INSTANT", "Schedule an order",
     "DELAY is a number with a unit (ns us ms s m h d); a bare number is seconds: 30m, 1.5.",
     QUEUE | AT | PAYLOAD | PAYLOAD_FILE | REPLACE | HEX | COMMON, 1, 2, false, true,
     cli_read_schedule, cli_cmd_schedule},
    {"cancel", "ID...", "Cancel orders and say what became of them",
     "Prints cancelled, running, done or unknown. The exit code is 0 only if all were cancelled.",
     GENERATION | HEX | COMMON, 1, MANY, false, true, NULL, cli_cmd_cancel},
    {"reschedule", "ID DELAY", "Give a pending order a new delay from now",
     "Prints rescheduled, running, done or unknown. The exit code is 0 only for the first.",
     GENERATION | HEX | COMMON, 2, 2, false, true, cli_read_reschedule, cli_cmd_reschedule},
    {"get", "ID...", "Show orders in full",
     "With --raw only the payload of one order, as it is.",
     RAW | HEX | COMMON, 1, MANY, false, true, cli_read_get, cli_cmd_get},
    {"list", "", "List orders, in no promised order", "",
     STATE | QUEUE | LIMIT | COMMON, 0, 0, false, true, NULL, cli_cmd_list},
    {"stats", "", "Count what is in the store", "",
     COMMON, 0, 0, false, true, NULL, cli_cmd_stats},
    {"queues", "", "Count what is in each queue", "",
     COMMON, 0, 0, false, true, NULL, cli_cmd_queues},
    {"dead", "", "List dead letters: orders that were given up", "",
     QUEUE | REASON | LIMIT | COMMON, 0, 0, false, true, NULL, cli_cmd_dead},
    {"requeue", "ID... | --all", "Make dead letters pending orders again", "",
     ALL | QUEUE | REASON | DELAY | GENERATION | HEX | COMMON, 0, MANY, false, true,
     cli_read_requeue, cli_cmd_requeue},
    {"purge", "ID... | --all --yes", "Delete dead letters", "",
     ALL | YES | QUEUE | REASON | GENERATION | HEX | COMMON, 0, MANY, false, true,
     cli_read_purge, cli_cmd_purge},
    {"check", "", "Say whether the store is healthy, and what it can do",
     "Opens it, writes an order that is due in an hour and cancels it. The exit code is 0 only if\n"
     "all of that works.",
     NO_WRITE | COMMON, 0, 0, true, true, NULL, cli_cmd_check},
    {"migrate", "", "Make or migrate the tables of a store in a database",
     "For a role that may make tables; the applications may then do without that right and open\n"
     "with migrate=no. Does nothing when the tables are of this version.",
     COMMON, 0, 0, false, true, NULL, cli_cmd_migrate},
    {"watch", "", "Show again and again what is in the store, its rates and lateness",
     "OLDEST is how long the oldest due order has waited: the lateness of now. On a terminal the\n"
     "line stays in its place.",
     INTERVAL | LIMIT | AHEAD | COMMON, 0, 0, false, true, NULL, cli_cmd_watch},
    {"metrics", "", "Print the statistics as Prometheus text", "",
     COMMON, 0, 0, false, true, NULL, cli_cmd_metrics},
};
/* clang-format on */

enum { COMMANDS = sizeof commands / sizeof *commands };

static const command *find_command(const char *name)
{
    for (size_t i = 0; i < COMMANDS; i++)
        if (strcmp(commands[i].name, name) == 0)
            return &commands[i];
    return NULL;
}

/* -- Messages ---------------------------------------------------------------------- */

static void complain(const cli *c)
{
    fflush(stdout);
    fprintf(stderr, "lapse%s%s: ", c->command != NULL ? " " : "",
            c->command != NULL ? c->command : "");
}

int cli_usage(const cli *c, const char *format, ...)
{
    va_list list;
    complain(c);
    va_start(list, format);
    vfprintf(stderr, format, list);
    va_end(list);
    fprintf(stderr, "\nlapse%s%s --help tells more.\n", c->command != NULL ? " " : "",
            c->command != NULL ? c->command : "");
    return LAPSE_CLI_USAGE;
}

int cli_wrong_word(const cli *c, const char *before, const char *word, const char *after)
{
    const char *url = strstr(word, "://");
    if (url == NULL)
        return cli_usage(c, "%s%s%s", before, word, after);
    return cli_usage(c, "%s%.*s...%s: name the store with -u", before, (int)(url - word + 3), word,
                     after);
}

int cli_no_value(const cli *c, const char *name, const char *text, const char *why)
{
    complain(c);
    fprintf(stderr, "%s \"", name);
    cli_print_bytes(stderr, text, strlen(text));
    fprintf(stderr, "\" %s\n", why);
    return LAPSE_CLI_USAGE;
}

static int exit_code_of(int code)
{
    switch (code) {
    case LAPSE_EEXISTS:
    case LAPSE_EFULL:
    case LAPSE_EUNKNOWN:
        return LAPSE_CLI_NO;
    case LAPSE_EINVAL:
    case LAPSE_ERANGE:
    case LAPSE_EID:
    case LAPSE_EURL:
        return LAPSE_CLI_USAGE;
    default:
        return LAPSE_CLI_STORE;
    }
}

static void report(cli *c, const char *id, const char *name, const char *detail)
{
    if (!c->o.json) {
        complain(c);
        cli_print_text(stderr, detail);
        fputc('\n', stderr);
        return;
    }
    cli_begin(c);
    cli_put_word(c, "id", id);
    cli_put_word(c, "error", name);
    cli_put_word(c, "detail", detail);
    cli_end(c);
}

const char *cli_error_name(int code)
{
    const char *name = lapse_error_name(code);
    return name != NULL ? name : "Error";
}

int cli_fail(cli *c, const char *id, int code)
{
    report(c, id, cli_error_name(code), lapse_error_detail());
    return exit_code_of(code);
}

int cli_worse(int a, int b)
{
    return a > b ? a : b;
}

const char *cli_id(cli *c, int i)
{
    const char *id = c->args[i];
    if (c->o.hex) {
        const char *wrong = cli_parse_hex(id, c->decoded);
        if (wrong != NULL)
            cli_no_value(c, "ID", id, wrong);
        return wrong == NULL ? c->decoded : NULL;
    }
    size_t len = strlen(id);
    if (len >= 1 && len <= LAPSE_ID_MAX)
        return id;
    cli_usage(c, "an order id is 1 to %d bytes, not %zu", LAPSE_ID_MAX, len);
    return NULL;
}

/* -- Help -------------------------------------------------------------------------- */

static void help_tool(FILE *out)
{
    fputs("Usage: lapse [--url URL] COMMAND [OPTION]... [ARGUMENT]...\n\n"
          "Look at and change the orders in a store of lapse. The store is the one of --url or\n"
          "of the environment variable LAPSE_URL, which keeps passwords out of lists of\n"
          "processes. Orders in memory: end with the command: demo and check alone make sense\n"
          "there.\n\nCommands:\n",
          out);
    for (size_t i = 0; i < COMMANDS; i++)
        fprintf(out, "  %-10s %s\n", commands[i].name, commands[i].summary);
    cli_help_options(out, FIRST);
    fputs("\nExit codes: 0 done; 1 the answer is no (unknown, running, exists, unhealthy);\n"
          "2 the command line is wrong; 3 the store failed.\n"
          "lapse COMMAND --help tells of one command, the manual page lapse(1) of all.\n",
          out);
}

static void help_command(const command *chosen)
{
    printf("Usage: lapse %s [OPTION]...%s%s\n\n%s.\n", chosen->name, *chosen->arguments ? " " : "",
           chosen->arguments, chosen->summary);
    if (*chosen->more)
        printf("%s\n", chosen->more);
    cli_help_options(stdout, chosen->options);
}

/* -- One run ----------------------------------------------------------------------- */

static void log_line(void *arg, lapse_level level, const char *message)
{
    if (level < LAPSE_WARNING)
        return;
    complain(arg);
    cli_print_text(stderr, message);
    fputc('\n', stderr);
}

static bool outlives(const cli *c)
{
    return (lapse_abilities(c->s) & LAPSE_CAN_DURABLE) != 0;
}

/* The store is not open: `code` says why. check has this as its answer. */
static int not_open(cli *c, const command *chosen, int code, const char *detail)
{
    const char *name = cli_error_name(code);
    if (chosen->run == cli_cmd_check)
        return cli_check_failed(c, code, name, detail);
    report(c, NULL, name, detail);
    return exit_code_of(code);
}

/* The order by which `check` finds out whether it can write must push out no other. */
static int open_for(cli *c, const command *chosen, const lapse_options *settings)
{
    char url[4096];
    if (chosen->run != cli_cmd_check || !c->o.url)
        return lapse_open(c->o.url, settings, &c->s);
    int n = snprintf(url, sizeof url, "%s%coverflow=refuse", c->o.url,
                     strchr(c->o.url, '?') ? '&' : '?');
    return lapse_open(n < (int)sizeof url ? url : c->o.url, settings, &c->s);
}

/* Run a command on a store that is opened for it. A mistyped name makes no new store, except
 * where something is to be written into it. */
static int run_opened(cli *c, const command *chosen)
{
    lapse_options settings = {.hook_arg = c, .log = log_line};
    if (chosen->run != cli_cmd_schedule && cli_file_missing(c->o.url))
        return not_open(c, chosen, LAPSE_EOFFLINE,
                        "there is no such file: the first schedule makes it");
    int code = open_for(c, chosen, &settings);
    if (code < 0)
        return not_open(c, chosen, code, lapse_error_detail());
    int result;
    if (!chosen->memory && !outlives(c))
        result = cli_usage(c, "orders in memory: end with this command: name a store that keeps "
                              "them, with --url or LAPSE_URL");
    else
        result = chosen->run(c);
    code = lapse_close(c->s, LAPSE_SECONDS(10));
    return code < 0 ? cli_worse(result, cli_fail(c, NULL, code)) : result;
}

static int run_command(cli *c, const command *chosen, int argc, char **argv)
{
    c->command = chosen->name;
    int result = cli_take_options(c, argc, argv, chosen->options);
    if (result == ASKED_HELP) {
        help_command(chosen);
        return LAPSE_CLI_DONE;
    }
    if (result != GO_ON)
        return result;
    c->args = argv + optind;
    c->count = argc - optind;
    if (c->count < chosen->least)
        return cli_usage(c, "wants %s", chosen->arguments);
    if (c->count > chosen->most)
        return cli_wrong_word(c, "\"", c->args[chosen->most], "\" is too much");
    if (chosen->read != NULL && !chosen->read(c))
        return LAPSE_CLI_USAGE;
    return c->s != NULL || !chosen->opens ? chosen->run(c) : run_opened(c, chosen);
}

static int run(cli *c, int argc, char **argv)
{
    int result = cli_take_first_options(c, argc, argv, FIRST);
    if (result == ASKED_HELP) {
        help_tool(stdout);
        return LAPSE_CLI_DONE;
    }
    if (result == ASKED_VERSION) {
        printf("lapse %s\n", lapse_version());
        return LAPSE_CLI_DONE;
    }
    if (result != GO_ON)
        return result;
    int at = optind;
    if (at >= argc) {
        help_tool(stderr);
        return LAPSE_CLI_USAGE;
    }
    const command *chosen = find_command(argv[at]);
    if (chosen == NULL)
        return cli_wrong_word(c, "there is no command \"", argv[at], "\"");
    return run_command(c, chosen, argc - at, argv + at);
}

/* What was printed has reached its place, or the exit code says that it has not. */
static int flushed(int result)
{
    if (fflush(stdout) == 0 && !ferror(stdout))
        return result;
    fputs("lapse: the output could not be written\n", stderr);
    clearerr(stdout);
    return LAPSE_CLI_STORE;
}

int lapse_cli_on(lapse *s, int argc, char **argv)
{
    cli c = {.s = s};
    const char *url = getenv("LAPSE_URL");
    c.o.url = url != NULL && *url != '\0' ? url : NULL;
    c.o.interval = LAPSE_SECONDS(1);
    c.listening = isatty(STDERR_FILENO) != 0;
    int result = run(&c, argc, argv);
    free(c.o.payload);
    return flushed(result);
}

int lapse_cli(int argc, char **argv)
{
    return lapse_cli_on(NULL, argc, argv);
}
