/* world.c - a store in a known state, and the tool's commands on it.
 *
 *     cli_world <url> <step> , <step> , ...
 *
 * A step is a command of the tool, or one of these, which the tool itself cannot do:
 *     +take <id> <queue>              schedule it and hold it: it is running
 *     +done <id> <queue>              the same, and settle it as done
 *     +reject <id> <queue> <error>    the same, and settle it as a dead letter
 * All steps use one open scheduler, so that also a store in memory keeps what they did. After
 * each command its exit code follows on a line, "exit <code>". */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lapse/cli.h>

static void give_up(const char *step)
{
    fprintf(stderr, "cli_world: %s: %s\n", step, lapse_error_detail());
    exit(99);
}

/* Schedule the order in a queue where nothing else is due, and claim it. */
static int64_t hold(lapse *s, const char *id, const char *queue)
{
    const lapse_order *order;
    lapse_spec spec = {.id = id, .queue = queue, .payload = "held", .payload_len = 4};
    if (lapse_put(s, &spec) < 0)
        give_up("put");
    if (lapse_take(s, queue, LAPSE_SECONDS(60), &order) != 1 || strcmp(order->id, id) != 0)
        give_up("take");
    return order->fence;
}

static void settle(lapse *s, int64_t fence, lapse_verdict verdict, const char *error)
{
    if (lapse_settle(s, fence, verdict, -1, error) < 0)
        give_up("settle");
}

static void prepare(lapse *s, int count, char **words)
{
    if (count < 3)
        give_up("too few words");
    int64_t fence = hold(s, words[1], words[2]);
    if (strcmp(words[0], "+done") == 0)
        settle(s, fence, LAPSE_DONE, NULL);
    else if (strcmp(words[0], "+reject") == 0)
        settle(s, fence, LAPSE_REJECT, count > 3 ? words[3] : NULL);
    else if (strcmp(words[0], "+take") != 0)
        give_up(words[0]);
}

/* The step that begins at `at`; where the next one does. */
static int step(lapse *s, int argc, char **argv, int at)
{
    int end = at;
    while (end < argc && strcmp(argv[end], ",") != 0)
        end++;
    if (argv[at][0] == '+') {
        prepare(s, end - at, argv + at);
    } else {
        char *comma = argv[end];
        argv[at - 1] = "lapse";
        argv[end] = NULL;
        int code = lapse_cli_on(s, end - at + 1, argv + at - 1);
        argv[end] = comma;
        printf("exit %d\n", code);
    }
    return end + 1;
}

int main(int argc, char **argv)
{
    lapse *s;
    if (argc < 3 || lapse_open(argv[1], NULL, &s) < 0)
        give_up("open");
    for (int at = 2; at < argc;)
        at = step(s, argc, argv, at);
    if (lapse_close(s, LAPSE_SECONDS(10)) < 0)
        give_up("close");
    return 0;
}
