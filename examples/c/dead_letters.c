/* dead_letters.c - what cannot be done is kept with its reason, and put back when it can.
 *
 * Three refunds are due after half a second. The first is paid out; the second has no
 * account to go to, which no retry would change; the third meets a gateway that is down
 * until its three attempts, one and two seconds apart, are used up. Two dead letters are
 * left: one is deleted, the other is put back when the gateway is up again, and is paid out.
 *
 * With RabbitMQ this takes a second exchange and queue, a header that counts deaths, and a
 * program that moves messages back.
 *
 * LAPSE_DEMO_SPEED=20 in the environment makes every delay 20 times shorter. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lapse.h>

struct desk {
    lapse *lapse;
    lapse_ns started;
    bool gateway_is_up;
    bool waits; /* for O3: to be dead, then to be paid out */
};

static lapse_ns demo_speed(void)
{
    const char *text = getenv("LAPSE_DEMO_SPEED");
    long speed = text != NULL ? strtol(text, NULL, 10) : 1;
    return speed >= 1 ? speed : 1;
}

static void tell(const struct desk *desk, const char *id, const char *event, const char *note)
{
    printf("%6.2f s  %-12s %-8s %s\n", (double)(lapse_now(desk->lapse) - desk->started) / 1e9, id,
           event, note);
    fflush(stdout);
}

static int failed(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, lapse_error_detail());
    return EXIT_FAILURE;
}

static lapse_verdict refund(const lapse_order *order, void *arg)
{
    struct desk *desk = arg;
    char note[32];
    if (strcmp(order->id, "O2") == 0)
        return lapse_reject(order, "no such account");
    if (strcmp(order->id, "O3") == 0 && !desk->gateway_is_up)
        return lapse_fail(order, "gateway down");
    snprintf(note, sizeof note, "attempt %d", order->attempt);
    tell(desk, order->id, "done", note);
    if (strcmp(order->id, "O3") == 0)
        desk->waits = false;
    return LAPSE_DONE;
}

static void on_error(void *arg, const lapse_order *order, const char *error)
{
    char note[64];
    snprintf(note, sizeof note, "attempt %d: %s", order->attempt, error);
    tell(arg, order->id, "failed", note);
}

static const char *reason_name(lapse_reason reason)
{
    return reason == LAPSE_REASON_REJECTED ? "rejected" : "failed";
}

static void on_dead(void *arg, const lapse_info *letter)
{
    struct desk *desk = arg;
    char note[64];
    snprintf(note, sizeof note, "%s: %s", reason_name(letter->reason), letter->error);
    tell(desk, letter->id, "dead", note);
    if (letter->reason == LAPSE_REASON_FAILED)
        desk->waits = false;
}

static bool tell_letter(const lapse_info *letter, void *arg)
{
    char note[64];
    snprintf(note, sizeof note, "%s, attempt %d", reason_name(letter->reason), letter->attempt);
    tell(arg, letter->id, "letter", note);
    return true;
}

/* Let what is due run until there is nothing to wait for any more. */
static int run(struct desk *desk)
{
    desk->waits = true;
    while (desk->waits) {
        int due = lapse_wait(desk->lapse, LAPSE_FOREVER);
        if (due < 0 && due != LAPSE_EINTR)
            return failed("lapse_wait");
        if (due == 1 && lapse_process(desk->lapse, 0) < 0)
            return failed("lapse_process");
    }
    return EXIT_SUCCESS;
}

static int open_desk(struct desk *desk)
{
    lapse_options options = {.hook_arg = desk, .on_error = on_error, .on_dead = on_dead};
    if (lapse_open("memory:", &options, &desk->lapse) < 0)
        return failed("lapse_open");
    desk->started = lapse_now(desk->lapse);
    lapse_policy policy = {
        .attempts = 3, .backoff = LAPSE_SECONDS(1) / demo_speed(), .jitter_percent = -1};
    if (lapse_handle(desk->lapse, "refund", refund, desk, NULL, &policy) < 0)
        return failed("lapse_handle");
    return EXIT_SUCCESS;
}

static int place(struct desk *desk, const char *id)
{
    lapse_spec spec = {.id = id, .queue = "refund", .delay = LAPSE_MS(500) / demo_speed()};
    return lapse_put(desk->lapse, &spec) < 0 ? failed("lapse_put") : EXIT_SUCCESS;
}

/* What a person does who looks after the dead letters. */
static int clear_up(struct desk *desk)
{
    lapse_each(desk->lapse, LAPSE_STATE_DEAD, tell_letter, desk);
    lapse_purge(desk->lapse, "O2", LAPSE_ANY);
    tell(desk, "O2", "purged", "");
    desk->gateway_is_up = true;
    tell(desk, "O3", "requeued", "");
    if (lapse_requeue(desk->lapse, "O3", LAPSE_ANY, LAPSE_MS(500) / demo_speed()) < 0)
        return failed("lapse_requeue");
    return EXIT_SUCCESS;
}

int main(void)
{
    struct desk desk = {.gateway_is_up = false};
    int status = open_desk(&desk);
    for (int i = 0; i < 3 && status == EXIT_SUCCESS; i++)
        status = place(&desk, (const char *[]){"O1", "O2", "O3"}[i]);
    if (status == EXIT_SUCCESS)
        status = run(&desk);
    if (status == EXIT_SUCCESS)
        status = clear_up(&desk);
    if (status == EXIT_SUCCESS)
        status = run(&desk);
    lapse_close(desk.lapse, LAPSE_SECONDS(1));
    return status;
}
