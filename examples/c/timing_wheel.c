/* timing_wheel.c - one order of five seconds beside a ticking clock.
 *
 * The program has a loop of its own: it waits until the next tick of its clock or until
 * the order is due, whichever comes first, and lets lapse run what is due. No thread is
 * started, and nothing wakes up in between.
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

/* The order and whether it is still open. */
struct shop {
    lapse *lapse;
    bool open;
};

static lapse_verdict close_unpaid(const lapse_order *order, void *arg)
{
    struct shop *shop = arg;
    char note[32];
    snprintf(note, sizeof note, "late %.1f ms", (double)order->late / 1e6);
    tell(shop->lapse, order->id, "closed", note);
    shop->open = false;
    return LAPSE_DONE;
}

/* Wait for the next tick of the clock and run what falls due before it. */
static int run_until(struct shop *shop, lapse_ns instant)
{
    for (lapse_ns now = lapse_now(shop->lapse); shop->open && now < instant;
         now = lapse_now(shop->lapse)) {
        int due = lapse_wait(shop->lapse, instant - now);
        if (due < 0 && due != LAPSE_EINTR)
            return failed("lapse_wait");
        if (due == 1 && lapse_process(shop->lapse, 0) < 0)
            return failed("lapse_process");
    }
    return EXIT_SUCCESS;
}

static int tick_until_closed(struct shop *shop, lapse_ns second)
{
    for (int tick = 1; shop->open; tick++) {
        char note[16];
        if (run_until(shop, started + tick * second) != EXIT_SUCCESS)
            return EXIT_FAILURE;
        snprintf(note, sizeof note, "%d", tick);
        if (shop->open)
            tell(shop->lapse, "clock", "tick", note);
    }
    return EXIT_SUCCESS;
}

int main(void)
{
    lapse_ns second = LAPSE_SECONDS(1) / demo_speed();
    struct shop shop = {.open = true};
    if (lapse_open("memory:?engine=wheel&tick=1ms", NULL, &shop.lapse) < 0)
        return failed("lapse_open");
    started = lapse_now(shop.lapse);
    if (lapse_schedule(shop.lapse, "OID00000010", 5 * second, close_unpaid, &shop) < 0)
        return failed("lapse_schedule");
    int status = tick_until_closed(&shop, second);
    lapse_close(shop.lapse, LAPSE_SECONDS(1));
    return status;
}
