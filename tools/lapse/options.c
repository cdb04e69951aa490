/* options.c - the command line's options: from the table to getopt, to values, to help. */
#include "options.h"

#include <getopt.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    char letter;
    const char *argument, *help;
} options[] = {
#define OPTION_ROW(number, name, letter, argument, help) {name, letter, argument, help},
    OPTIONS(OPTION_ROW)
#undef OPTION_ROW
};

void cli_help_options(FILE *out, int set)
{
    fputs("\nOptions:\n", out);
    for (int i = 0; i < OPTION_COUNT; i++) {
        char text[40];
        if ((set & 1 << i) == 0)
            continue;
        snprintf(text, sizeof text, "--%s%s%s", options[i].name, options[i].argument ? " " : "",
                 options[i].argument ? options[i].argument : "");
        fprintf(out, "  %c%c%c %-21s %s\n", options[i].letter ? '-' : ' ',
                options[i].letter ? options[i].letter : ' ', options[i].letter ? ',' : ' ', text,
                options[i].help);
    }
}

/* -- Values ------------------------------------------------------------------------ */

static const char *load_payload(cli *c, const char *text, bool file)
{
    free(c->o.payload);
    c->o.payload = NULL;
    if (file)
        return cli_read_file(text, &c->o.payload, &c->o.payload_len);
    c->o.payload = strdup(text);
    c->o.payload_len = strlen(text);
    return c->o.payload == NULL ? "is too large for this machine's memory" : NULL;
}

static const char *parse_interval(const char *text, lapse_ns *out)
{
    const char *wrong = cli_parse_duration(text, out);
    return wrong == NULL && *out < LAPSE_MS(1) ? "is shorter than 1ms" : wrong;
}

static const char *set_flag(bool *flag)
{
    *flag = true;
    return NULL;
}

static const char *set_text(const char **where, const char *text)
{
    *where = text;
    return NULL;
}

/* Take one option; why its argument is none, or NULL. */
static const char *take(cli *c, int number, const char *text)
{
    cli_options *o = &c->o;
    switch (number) {
    case O_QUEUE:
        return set_text(&o->queue, text);
    case O_STATE:
        return cli_parse_states(text, &o->states);
    case O_REASON:
        return cli_parse_reason(text, &o->reason);
    case O_LIMIT:
        return cli_parse_number(text, 1, &o->limit);
    case O_AT:
        return cli_parse_instant(text, &o->at);
    case O_PAYLOAD:
        return load_payload(c, text, false);
    case O_PAYLOAD_FILE:
        return load_payload(c, text, true);
    case O_REPLACE:
        return set_flag(&o->replace);
    case O_DELAY:
        return cli_parse_duration(text, &o->delay);
    case O_GENERATION:
        return cli_parse_number(text, 1, &o->generation);
    case O_ALL:
        return set_flag(&o->all);
    case O_YES:
        return set_flag(&o->yes);
    case O_HEX:
        return set_flag(&o->hex);
    case O_RAW:
        return set_flag(&o->raw);
    case O_NO_WRITE:
        return set_flag(&o->no_write);
    case O_INTERVAL:
        return parse_interval(text, &o->interval);
    case O_AHEAD:
        return parse_interval(text, &o->ahead);
    case O_SPEED:
        return cli_parse_number(text, 1, &o->speed);
    case O_URL:
        return set_text(&o->url, text);
    case O_JSON:
        return set_flag(&o->json);
    default:
        return NULL; /* help and version end the parsing before */
    }
}

enum { LONG_ONLY = 256 };

/* The tables that getopt_long reads, for a set of options. `first`: "+:" or ":". */
static void describe(int set, const char *first, char letters[3 * OPTION_COUNT + 4],
                     struct option longs[OPTION_COUNT + 1])
{
    char *end = stpcpy(letters, first);
    size_t n = 0;
    for (int i = 0; i < OPTION_COUNT; i++) {
        if ((set & 1 << i) == 0)
            continue;
        longs[n++] =
            (struct option){options[i].name, options[i].argument ? required_argument : no_argument,
                            NULL, LONG_ONLY + i};
        if (options[i].letter)
            end += sprintf(end, "%c%s", options[i].letter, options[i].argument ? ":" : "");
    }
    longs[n] = (struct option){0};
}

/* The number of the option that getopt_long answered; below 0: none of ours. */
static int option_number(int answer)
{
    if (answer >= LONG_ONLY)
        return answer - LONG_ONLY;
    for (int i = 0; i < OPTION_COUNT; i++)
        if (options[i].letter == answer)
            return i;
    return -1;
}

/* `first`: as getopt's first letters, "+:" before the first argument, ":" among all. */
static int parse_options(cli *c, int argc, char **argv, int set, const char *first)
{
    char letters[3 * OPTION_COUNT + 4];
    struct option longs[OPTION_COUNT + 1];
    int answer;
    describe(set, first, letters, longs);
    optind = 0; /* glibc and musl: begin anew */
    opterr = 0;
    while ((answer = getopt_long(argc, argv, letters, longs, NULL)) != -1) {
        if (answer == '?' || answer == ':') {
            const char *word = argv[optind - 1];
            bool lacks = answer == ':';
            if (lacks)
                return cli_usage(c, "%s wants an argument", word);
            if (optopt > 0 && optopt < LONG_ONLY)
                return cli_usage(c, "there is no option -%c", optopt);
            return cli_wrong_word(c, "there is no option ", word, "");
        }
        int number = option_number(answer);
        if (number == O_HELP)
            return ASKED_HELP;
        if (number == O_VERSION)
            return ASKED_VERSION;
        const char *wrong = take(c, number, optarg);
        if (wrong != NULL)
            return cli_no_value(c, options[number].name, optarg, wrong);
    }
    return GO_ON;
}

int cli_take_options(cli *c, int argc, char **argv, int set)
{
    return parse_options(c, argc, argv, set, ":");
}

int cli_take_first_options(cli *c, int argc, char **argv, int set)
{
    return parse_options(c, argc, argv, set, "+:");
}
