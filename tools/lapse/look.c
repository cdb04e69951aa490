/* look.c - the commands that look at the whole store: stats, queues, metrics, check, migrate. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tool.h"

/* What describes the store, and not this process alone. */
static void put_store(cli *c, const lapse_stats *stats)
{
    cli_put_count(c, "pending", stats->pending);
    cli_put_count(c, "running", stats->running);
    cli_put_count(c, "dead", stats->dead);
    cli_put_count(c, "kept", stats->kept);
    cli_put_span(c, "oldest_due", stats->oldest_due);
    cli_put_span(c, "poll_bound", stats->poll_bound);
    if (c->o.json || stats->offline > 0)
        cli_put_span(c, "offline", stats->offline);
}

int cli_cmd_stats(cli *c)
{
    lapse_stats stats;
    int code = lapse_statistics(c->s, &stats);
    if (code < 0)
        return cli_fail(c, NULL, code);
    cli_begin(c);
    put_store(c, &stats);
    cli_end(c);
    return LAPSE_CLI_DONE;
}

/* -- queues ------------------------------------------------------------------------ */

static void queue_json(cli *c, const char *name, const lapse_queue_stats *q)
{
    cli_begin(c);
    cli_put_word(c, "queue", name);
    cli_put_count(c, "pending", q->pending);
    cli_put_count(c, "running", q->running);
    cli_put_count(c, "dead", q->dead);
    cli_put_span(c, "oldest_due", q->oldest_due);
    cli_end(c);
}

static void queue_text(const char *name, const lapse_queue_stats *q)
{
    cli_span_text oldest;
    printf("%10llu %8llu %8llu  %-9s  ", (unsigned long long)q->pending,
           (unsigned long long)q->running, (unsigned long long)q->dead,
           cli_span(q->oldest_due, oldest));
    cli_print_bytes(stdout, name, strlen(name));
    puts(*name == '\0' ? "-" : "");
}

int cli_cmd_queues(cli *c)
{
    const char *name;
    if (!c->o.json)
        printf("%10s %8s %8s  %-9s  %s\n", "PENDING", "RUNNING", "DEAD", "OLDEST", "QUEUE");
    for (size_t i = 0; (name = lapse_queue_name(c->s, i)) != NULL; i++) {
        lapse_queue_stats q;
        int code = lapse_queue_statistics(c->s, name, &q);
        if (code < 0)
            return cli_fail(c, NULL, code);
        if (c->o.json)
            queue_json(c, name, &q);
        else
            queue_text(name, &q);
    }
    return LAPSE_CLI_DONE;
}

/* -- metrics ----------------------------------------------------------------------- */

int cli_cmd_metrics(cli *c)
{
    char *text = lapse_metrics(c->s);
    if (text == NULL)
        return cli_fail(c, NULL, LAPSE_ENOMEM);
    if (c->o.json) {
        cli_begin(c);
        cli_put_word(c, "content_type", "text/plain; version=0.0.4");
        cli_put_word(c, "metrics", text);
        cli_end(c);
    } else {
        fputs(text, stdout);
    }
    lapse_free(text);
    return LAPSE_CLI_DONE;
}

/* -- check ------------------------------------------------------------------------- */

static void put_url(cli *c)
{
    char *shown = cli_url_shown(c->o.url != NULL ? c->o.url : "memory:");
    cli_put_word(c, "store", shown != NULL ? shown : "?");
    free(shown);
}

/* Why the store is not well. */
static void put_failure(cli *c, const char *what, const char *name, const char *detail)
{
    cli_put_flag(c, "healthy", false);
    cli_put_word(c, "failed", what);
    cli_put_word(c, "error", name);
    cli_put_text(c, "detail", detail);
}

int cli_check_failed(cli *c, int code, const char *name, const char *detail)
{
    cli_begin(c);
    put_url(c);
    put_failure(c, "open", name, detail);
    cli_end(c);
    return code == LAPSE_EURL || code == LAPSE_EINVAL || code == LAPSE_ERANGE ? LAPSE_CLI_USAGE
                                                                              : LAPSE_CLI_NO;
}

static void put_abilities(cli *c)
{
    unsigned can = lapse_abilities(c->s);
    cli_put_flag(c, "durable", (can & LAPSE_CAN_DURABLE) != 0);
    cli_put_flag(c, "shared", (can & LAPSE_CAN_SHARE) != 0);
    cli_put_flag(c, "cancel", (can & LAPSE_CAN_CANCEL) != 0);
    cli_put_flag(c, "list", (can & LAPSE_CAN_LIST) != 0);
    cli_put_flag(c, "limit", (can & LAPSE_CAN_LIMIT) != 0);
    cli_put_flag(c, "transact", (can & LAPSE_CAN_TRANSACT) != 0);
}

/* Whether the URL says that a full store makes room: the probe itself never does (cli.c). */
static bool makes_room(const cli *c)
{
    return c->o.url && strstr(c->o.url, "overflow=dead_letter_oldest") != NULL;
}

#define PROBES "lapse.check" /* their queue */

/* Take a probe: ours, or that of another check, which takes ours; 0 or an error. */
static int take_probe(cli *c)
{
    const lapse_order *order;
    int code = lapse_take(c->s, PROBES, LAPSE_SECONDS(20), &order);
    if (code <= 0)
        return code < 0 ? code : LAPSE_ETIMEOUT;
    return lapse_settle(c->s, order->fence, LAPSE_DONE, 0, NULL);
}

/* Write an order and cancel it, or take it where nothing can be cancelled: it would lie there for
 * ever. 0 or an error. How long the writing took goes to `took`. */
static int probe(cli *c, lapse_ns *took, const char **what)
{
    char id[64];
    bool cancels = (lapse_abilities(c->s) & LAPSE_CAN_CANCEL) != 0;
    lapse_ns began = lapse_now(c->s);
    snprintf(id, sizeof id, "lapse.check/%ld/%lld", (long)getpid(), (long long)began);
    lapse_spec spec = {.id = id, .queue = PROBES, .delay = cancels ? LAPSE_HOURS(1) : 0};
    *what = "write";
    int64_t generation = lapse_put(c->s, &spec);
    if (generation == LAPSE_EFULL && makes_room(c))
        return 0; /* Any other order would have got its place. */
    if (generation < 0)
        return (int)generation;
    *took = lapse_now(c->s) - began;
    *what = cancels ? "cancel" : "take";
    if (!cancels)
        return take_probe(c);
    int fate = lapse_cancel(c->s, id, generation);
    return fate == LAPSE_FATE_CANCELLED ? 0 : fate < 0 ? fate : LAPSE_ESTALE;
}

/* Opening the store has done it. */
int cli_cmd_migrate(cli *c)
{
    cli_begin(c);
    put_url(c);
    cli_put_flag(c, "migrated", true);
    cli_end(c);
    return LAPSE_CLI_DONE;
}

int cli_cmd_check(cli *c)
{
    lapse_stats stats;
    lapse_ns took = 0;
    const char *what = "write";
    lapse_process(c->s, 1); /* Nothing is handled here; what the store warns of is told. */
    int code = c->o.no_write ? 0 : probe(c, &took, &what);
    cli_begin(c);
    put_url(c);
    if (code < 0)
        put_failure(c, what, cli_error_name(code),
                    code == LAPSE_ETIMEOUT && strcmp(what, "take") == 0
                        ? "what was written has not come back within 20 s"
                        : lapse_error_detail());
    int read = lapse_statistics(c->s, &stats);
    if (code == 0 && read < 0)
        put_failure(c, "read", cli_error_name(read), lapse_error_detail());
    if (code == 0 && read == 0)
        cli_put_flag(c, "healthy", true);
    put_abilities(c);
    if (code == 0 && !c->o.no_write)
        cli_put_span(c, "write", took);
    if (read == 0)
        put_store(c, &stats);
    cli_end(c);
    return code == 0 && read == 0 ? LAPSE_CLI_DONE : LAPSE_CLI_NO;
}
