/* dead.c - requeue and purge: what is done about dead letters.
 *
 * Several are collected first and then taken one by one, by id and generation: the walk does
 * not meet the orders that it makes, and what died meanwhile is left for the next time. */
#include <stdlib.h>
#include <string.h>

#include "tool.h"

/* Dead letters one behind the other in one block: generation, then the id with its NUL. */
struct letters {
    cli *c;
    char *bytes;
    size_t used, room;
    int64_t count;
    bool no_memory;
};

static bool make_room(struct letters *l, size_t size)
{
    if (l->room - l->used >= size)
        return true;
    size_t room = 2 * l->room + size + 4096;
    char *grown = realloc(l->bytes, room);
    if (grown == NULL) {
        l->no_memory = true;
        return false;
    }
    l->bytes = grown;
    l->room = room;
    return true;
}

static bool collect_one(const lapse_info *info, void *arg)
{
    struct letters *l = arg;
    if (!cli_selected(l->c, info))
        return true;
    if (!make_room(l, sizeof info->generation + info->id_len + 1))
        return false;
    memcpy(l->bytes + l->used, &info->generation, sizeof info->generation);
    memcpy(l->bytes + l->used + sizeof info->generation, info->id, info->id_len + 1);
    l->used += sizeof info->generation + info->id_len + 1;
    l->count++;
    cli_progress(l->c, "reading", l->count, 0);
    return true;
}

static int collect(cli *c, struct letters *l)
{
    int64_t seen = lapse_each(c->s, LAPSE_STATE_DEAD, collect_one, l);
    cli_progress_end(c);
    if (seen < 0)
        return cli_fail(c, NULL, (int)seen);
    if (!l->no_memory)
        return LAPSE_CLI_DONE;
    cli_usage(c, "too many dead letters for this machine's memory: name a --queue or --reason");
    return LAPSE_CLI_STORE;
}

/* What is done to one dead letter: below 0 an error, else how many it was done to. */
typedef int64_t deed(cli *c, const char *id, int64_t generation);

static int64_t requeue(cli *c, const char *id, int64_t generation)
{
    int64_t answer = lapse_requeue(c->s, id, generation, c->o.delay);
    return answer < 0 ? answer : 1;
}

static int64_t purge(cli *c, const char *id, int64_t generation)
{
    return lapse_purge(c->s, id, generation);
}

static void sum_up(cli *c, const char *done, int64_t count, int64_t failed)
{
    if (c->o.json) {
        cli_begin(c);
        cli_put_int(c, done, count);
        cli_put_int(c, "failed", failed);
        cli_end(c);
        return;
    }
    printf("%lld %s", (long long)count, done);
    if (failed > 0)
        printf(", %lld not", (long long)failed);
    putchar('\n');
}

/* Do it to all that were collected. One that is gone by now is no failure. */
static int to_all(cli *c, deed *act, const char *verb, const char *done)
{
    struct letters l = {.c = c};
    int result = collect(c, &l);
    int64_t count = 0, failed = 0;
    size_t at = 0;
    for (int64_t i = 0; result != LAPSE_CLI_STORE && i < l.count; i++) {
        int64_t generation;
        memcpy(&generation, l.bytes + at, sizeof generation);
        const char *id = l.bytes + at + sizeof generation;
        int64_t answer = act(c, id, generation);
        at += sizeof generation + strlen(id) + 1;
        if (answer < 0 && answer != LAPSE_EUNKNOWN) {
            cli_progress_end(c);
            result = cli_worse(result, cli_fail(c, id, (int)answer));
            failed++;
        }
        count += answer > 0 ? answer : 0;
        cli_progress(c, verb, i + 1, l.count);
    }
    cli_progress_end(c);
    free(l.bytes);
    sum_up(c, done, count, failed);
    return result;
}

/* Ids, or --all: one of them, and what only goes with --all. */
bool cli_read_requeue(cli *c)
{
    if (c->o.all == (c->count > 0))
        cli_usage(c, "wants either ID... or --all");
    else if (!c->o.all && (c->o.queue != NULL || c->o.reason != 0))
        cli_usage(c, "--queue and --reason go with --all");
    else if (c->o.all && c->o.generation != LAPSE_ANY)
        cli_usage(c, "--generation goes with an ID");
    else
        return true;
    return false;
}

static int requeue_one(cli *c, const char *id)
{
    int64_t generation = lapse_requeue(c->s, id, c->o.generation, c->o.delay);
    if (generation < 0)
        return cli_fail(c, id, (int)generation);
    if (!c->o.json) {
        cli_print_bytes(stdout, id, strlen(id));
        printf(" requeued, generation %lld\n", (long long)generation);
        return LAPSE_CLI_DONE;
    }
    cli_begin(c);
    cli_put_word(c, "id", id);
    cli_put_int(c, "generation", generation);
    cli_end(c);
    return LAPSE_CLI_DONE;
}

static int purge_one(cli *c, const char *id)
{
    int64_t count = lapse_purge(c->s, id, c->o.generation);
    if (count < 0)
        return cli_fail(c, id, (int)count);
    if (!c->o.json) {
        cli_print_bytes(stdout, id, strlen(id));
        printf(count > 0 ? " purged (%lld)\n" : " unknown\n", (long long)count);
    } else {
        cli_begin(c);
        cli_put_word(c, "id", id);
        cli_put_int(c, "purged", count);
        cli_end(c);
    }
    return count > 0 ? LAPSE_CLI_DONE : LAPSE_CLI_NO;
}

static int to_each(cli *c, int (*act)(cli *c, const char *id))
{
    int result = LAPSE_CLI_DONE;
    for (int i = 0; i < c->count; i++) {
        const char *id = cli_id(c, i);
        result = cli_worse(result, id != NULL ? act(c, id) : LAPSE_CLI_USAGE);
    }
    return result;
}

int cli_cmd_requeue(cli *c)
{
    return c->o.all ? to_all(c, requeue, "requeueing", "requeued") : to_each(c, requeue_one);
}

bool cli_read_purge(cli *c)
{
    if (!cli_read_requeue(c))
        return false;
    if (c->o.all && !c->o.yes)
        cli_usage(c, "--all deletes dead letters for good: add --yes");
    return !c->o.all || c->o.yes;
}

/* All there are: one call. */
static int purge_everything(cli *c)
{
    int64_t count = lapse_purge(c->s, NULL, LAPSE_ANY);
    if (count < 0)
        return cli_fail(c, NULL, (int)count);
    sum_up(c, "purged", count, 0);
    return LAPSE_CLI_DONE;
}

int cli_cmd_purge(cli *c)
{
    if (!c->o.all)
        return to_each(c, purge_one);
    if (c->o.queue == NULL && c->o.reason == 0)
        return purge_everything(c);
    return to_all(c, purge, "purging", "purged");
}
