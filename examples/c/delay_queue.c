/* delay_queue.c - a delay queue: take orders as their time comes, one after the other.
 *
 * Five orders of three seconds each; each one is scheduled when the one before it was
 * taken, so they come after about 3.00, 6.00, 9.00, 12.00 and 15.00 seconds. An order
 * without a callback waits for whoever takes it, as in a DelayQueue.
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

/* Schedule one order, wait until it comes, and settle it. */
static int one_order(lapse *s, int number)
{
    char id[16], note[32];
    const lapse_order *order;
    snprintf(id, sizeof id, "OID%08d", number);
    lapse_spec spec = {.id = id, .delay = LAPSE_SECONDS(3) / demo_speed()};
    if (lapse_put(s, &spec) < 0)
        return failed("lapse_put");
    if (lapse_take(s, NULL, LAPSE_FOREVER, &order) < 0)
        return failed("lapse_take");
    snprintf(note, sizeof note, "late %.1f ms", (double)order->late / 1e6);
    tell(s, order->id, "taken", note);
    if (lapse_settle(s, order->fence, LAPSE_DONE, 0, NULL) < 0)
        return failed("lapse_settle");
    return EXIT_SUCCESS;
}

int main(void)
{
    lapse *s;
    if (lapse_open("memory:?engine=heap", NULL, &s) < 0)
        return failed("lapse_open");
    started = lapse_now(s);
    int status = EXIT_SUCCESS;
    for (int number = 1; number <= 5 && status == EXIT_SUCCESS; number++)
        status = one_order(s, number);
    lapse_close(s, LAPSE_SECONDS(1));
    return status;
}
