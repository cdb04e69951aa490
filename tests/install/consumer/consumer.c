/* consumer.c - a program that uses an installed lapse: one order lapses, one is cancelled. */
#include <lapse.h>
#include <stdio.h>

static lapse_verdict close_unpaid(const lapse_order *order, void *closed)
{
    printf("closed %s\n", order->id);
    *(int *)closed += 1;
    return LAPSE_DONE;
}

int main(void)
{
    lapse_clock *clock = NULL;
    lapse *s = NULL;
    int closed = 0;
    if (lapse_clock_manual(0, &clock) < 0)
        return 1;
    if (lapse_open("memory:", &(lapse_options){.clock = clock}, &s) < 0)
        return 1;
    lapse_schedule(s, "paid", LAPSE_MINUTES(30), close_unpaid, &closed);
    lapse_schedule(s, "unpaid", LAPSE_MINUTES(30), close_unpaid, &closed);
    int fate = lapse_cancel(s, "paid", LAPSE_ANY);
    lapse_clock_advance(clock, LAPSE_MINUTES(31));
    int64_t ran = lapse_process(s, 0);
    lapse_close(s, 0);
    lapse_clock_free(clock);
    printf("version %s\n", lapse_version());
    return fate == LAPSE_FATE_CANCELLED && ran == 1 && closed == 1 ? 0 : 1;
}
