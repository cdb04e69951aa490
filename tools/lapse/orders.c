/* orders.c - the commands on single orders, and the list of them. */
#include <string.h>

#include "tool.h"

/* The second argument as a delay. False after a message. */
static bool read_delay(cli *c)
{
    const char *wrong = cli_parse_duration(c->args[1], &c->o.delay);
    if (wrong != NULL)
        cli_no_value(c, "DELAY", c->args[1], wrong);
    return wrong == NULL;
}

bool cli_read_schedule(cli *c)
{
    if ((c->count == 2) == (c->o.at != 0)) {
        cli_usage(c, "wants either DELAY or --at");
        return false;
    }
    return cli_id(c, 0) != NULL && (c->count == 1 || read_delay(c));
}

static void say_scheduled(cli *c, const char *id, int64_t generation)
{
    if (c->o.json) {
        cli_begin(c);
        cli_put_word(c, "id", id);
        cli_put_int(c, "generation", generation);
        cli_end(c);
        return;
    }
    cli_print_bytes(stdout, id, strlen(id));
    printf(" scheduled, generation %lld\n", (long long)generation);
}

int cli_cmd_schedule(cli *c)
{
    const char *id = cli_id(c, 0);
    lapse_spec spec = {
        .id = id,
        .queue = c->o.queue,
        .delay = c->o.delay,
        .at = c->o.at,
        .payload = c->o.payload,
        .payload_len = c->o.payload_len,
        .flags = c->o.replace ? LAPSE_REPLACE : 0,
    };
    int64_t generation = lapse_put(c->s, &spec);
    if (generation < 0)
        return cli_fail(c, id, (int)generation);
    say_scheduled(c, id, generation);
    return LAPSE_CLI_DONE;
}

/* Tell a fate, or an error; the exit code is 0 for the fate that was hoped for. */
static int answer(cli *c, const char *id, int fate, lapse_fate hoped)
{
    if (fate < 0)
        return cli_fail(c, id, fate);
    cli_say(c, id, "fate", cli_fate_word(fate));
    return fate == (int)hoped ? LAPSE_CLI_DONE : LAPSE_CLI_NO;
}

int cli_cmd_cancel(cli *c)
{
    int result = LAPSE_CLI_DONE;
    for (int i = 0; i < c->count; i++) {
        const char *id = cli_id(c, i);
        int code = id == NULL ? LAPSE_CLI_USAGE
                              : answer(c, id, lapse_cancel(c->s, id, c->o.generation),
                                       LAPSE_FATE_CANCELLED);
        result = cli_worse(result, code);
    }
    return result;
}

bool cli_read_reschedule(cli *c)
{
    return cli_id(c, 0) != NULL && read_delay(c);
}

int cli_cmd_reschedule(cli *c)
{
    const char *id = cli_id(c, 0);
    int fate = lapse_reschedule(c->s, id, c->o.generation, c->o.delay);
    return answer(c, id, fate, LAPSE_FATE_RESCHEDULED);
}

bool cli_read_get(cli *c)
{
    bool odd = c->o.raw && (c->count != 1 || c->o.json);
    if (odd)
        cli_usage(c, "--raw prints the payload of one order, and not as JSON");
    return !odd;
}

static void show(cli *c, const lapse_info *info)
{
    if (c->o.raw) {
        if (info->payload_len > 0)
            fwrite(info->payload, 1, info->payload_len, stdout);
        return;
    }
    cli_begin(c);
    cli_put_info(c, info);
    if (info->payload_len > 0)
        cli_put_bytes(c, "payload", info->payload, info->payload_len);
    cli_end(c);
}

static int get_one(cli *c, const char *id)
{
    lapse_info info;
    int code = lapse_get(c->s, id, &info);
    if (code < 0)
        return cli_fail(c, id, code);
    show(c, &info);
    lapse_info_free(&info);
    return LAPSE_CLI_DONE;
}

int cli_cmd_get(cli *c)
{
    int result = LAPSE_CLI_DONE;
    for (int i = 0; i < c->count; i++) {
        const char *id = cli_id(c, i);
        result = cli_worse(result, id != NULL ? get_one(c, id) : LAPSE_CLI_USAGE);
    }
    return result;
}

/* -- list -------------------------------------------------------------------------- */

bool cli_selected(const cli *c, const lapse_info *info)
{
    return (c->o.queue == NULL || strcmp(c->o.queue, info->queue) == 0) &&
           (c->o.reason == 0 || c->o.reason == (int)info->reason);
}

struct listing {
    cli *c;
    void (*row)(cli *c, const lapse_info *info);
    int64_t shown, seen;
    bool quiet; /* the rows are on the terminal, so that progress would only be in their way */
};

static bool list_one(const lapse_info *info, void *arg)
{
    struct listing *l = arg;
    l->seen++;
    if (cli_selected(l->c, info)) {
        l->row(l->c, info);
        l->shown++;
    }
    if (!l->quiet)
        cli_progress(l->c, "listing", l->seen, 0);
    return !ferror(stdout) && (l->c->o.limit == 0 || l->shown < l->c->o.limit);
}

static int list(cli *c, unsigned states, struct listing *l)
{
    l->c = c;
    l->quiet = cli_output_seen();
    int64_t seen = lapse_each(c->s, states, list_one, l);
    cli_progress_end(c);
    return seen < 0 ? cli_fail(c, NULL, (int)seen) : LAPSE_CLI_DONE;
}

int cli_cmd_list(cli *c)
{
    struct listing l = {.row = cli_list_row};
    cli_list_heading(c);
    return list(c, c->o.states, &l);
}

int cli_cmd_dead(cli *c)
{
    struct listing l = {.row = cli_dead_row};
    cli_dead_heading(c);
    return list(c, LAPSE_STATE_DEAD, &l);
}
