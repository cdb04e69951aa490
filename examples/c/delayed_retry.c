/* delayed_retry.c - a retry ladder: each attempt says when the next one shall be.
 *
 * The callback finds that it cannot go on and asks for another attempt after one, two and
 * four seconds; the fourth attempt succeeds. With RabbitMQ each rung is a queue of its own,
 * with a time to live and a dead-letter exchange that leads back.
 *
 * LAPSE_DEMO_SPEED=20 in the environment makes every delay 20 times shorter. */
#include <stdio.h>
#include <stdlib.h>

#include <lapse.h>

static lapse_ns started;

static lapse_ns demo_speed(void)
{
    const char *text = getenv("LAPSE_DEMO_SPEED");
    long speed = text != NULL ? strtol(text, NULL, 10) : 1;
    return speed >= 1 ? speed : 1;
}

static void tell(lapse *s, const char *id, const char *event, const char *note)
{
    printf("%6.2f s  %-12s %-8s %s\n", (double)(lapse_now(s) - started) / 1e9, id, event, note);
    fflush(stdout);
}

static int failed(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, lapse_error_detail());
    return EXIT_FAILURE;
}

/* Seconds before the second, third and fourth attempt. */
static const int ladder[] = {1, 2, 4};

static lapse_verdict notify_shop(const lapse_order *order, void *arg)
{
    lapse *s = arg;
    char note[32];
    snprintf(note, sizeof note, "%d", order->attempt);
    tell(s, order->id, "attempt", note);
    if (order->attempt <= (int)(sizeof ladder / sizeof *ladder))
        return lapse_retry(order, LAPSE_SECONDS(ladder[order->attempt - 1]) / demo_speed(),
                           "the shop does not answer");
    snprintf(note, sizeof note, "attempt %d", order->attempt);
    tell(s, order->id, "done", note);
    lapse_stop(s); /* Ends lapse_run below. */
    return LAPSE_DONE;
}

int main(void)
{
    lapse *s;
    if (lapse_open("memory:", NULL, &s) < 0)
        return failed("lapse_open");
    started = lapse_now(s);
    if (lapse_schedule(s, "OID00000010", 0, notify_shop, s) < 0)
        return failed("lapse_schedule");
    int status = lapse_run(s) < 0 ? failed("lapse_run") : EXIT_SUCCESS;
    lapse_close(s, LAPSE_SECONDS(1));
    return status;
}
