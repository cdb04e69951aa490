/* shop.c - unpaid orders are closed and their stock is given back.
 *
 * Eight orders are placed; a customer has 3 seconds to pay. Four pay in time, four do
 * not, and one of these comes too late. Payment and closing may meet at the same instant:
 * both change the order only if it is still open (`change`, as an UPDATE … WHERE status =
 * 'open' in a database), so that exactly one of them wins, and stock is given back only by
 * the one that closed it.
 *
 * LAPSE_DEMO_SPEED=20 in the environment makes every delay 20 times shorter. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <lapse.h>

enum { ORDERS = 8, STOCK = 100 };

enum status { OPEN, PAID, CLOSED };

struct shop {
    lapse *lapse;
    lapse_ns started;
    pthread_mutex_t lock;
    enum status orders[ORDERS + 1]; /* under lock; by number, from 1 */
    int stock, paid, closed;        /* under lock */
};

static lapse_ns demo_speed(void)
{
    const char *text = getenv("LAPSE_DEMO_SPEED");
    long speed = text != NULL ? strtol(text, NULL, 10) : 1;
    return speed >= 1 ? speed : 1;
}

static void order_id(char id[16], int number)
{
    snprintf(id, 16, "OID%08d", number);
}

/* One line of the timeline; under the shop's lock, so that lines are in order. */
static void tell(const struct shop *shop, int number, const char *event, const char *note)
{
    char id[16];
    order_id(id, number);
    printf("%6.2f s  %-12s %-8s %s\n", (double)(lapse_now(shop->lapse) - shop->started) / 1e9, id,
           event, note);
    fflush(stdout);
}

/* The order goes from open to `to`; false when it is not open any more. Under the lock. */
static bool change(struct shop *shop, int number, enum status to)
{
    if (shop->orders[number] != OPEN)
        return false;
    shop->orders[number] = to;
    if (to == PAID)
        shop->paid++;
    else
        shop->closed++;
    return true;
}

/* Its time is up: close the order if it was not paid. */
static lapse_verdict close_unpaid(const lapse_order *order, void *arg)
{
    struct shop *shop = arg;
    char note[32];
    int number = atoi(order->id + 3);
    snprintf(note, sizeof note, "late %.1f ms", (double)order->late / 1e6);
    pthread_mutex_lock(&shop->lock);
    if (change(shop, number, CLOSED)) {
        shop->stock++;
        tell(shop, number, "closed", note);
    }
    pthread_mutex_unlock(&shop->lock);
    return LAPSE_DONE;
}

static void place(struct shop *shop, int number)
{
    char id[16];
    order_id(id, number);
    pthread_mutex_lock(&shop->lock);
    shop->stock--;
    shop->orders[number] = OPEN;
    tell(shop, number, "placed", "");
    pthread_mutex_unlock(&shop->lock);
    if (lapse_schedule(shop->lapse, id, LAPSE_SECONDS(3) / demo_speed(), close_unpaid, shop) < 0)
        fprintf(stderr, "%s: %s\n", id, lapse_error_detail());
}

static void pay(struct shop *shop, int number)
{
    char id[16];
    order_id(id, number);
    pthread_mutex_lock(&shop->lock);
    bool paid = change(shop, number, PAID);
    tell(shop, number, paid ? "paid" : "too late", paid ? "" : "the order was closed");
    pthread_mutex_unlock(&shop->lock);
    if (paid)
        lapse_cancel(shop->lapse, id, LAPSE_ANY);
}

/* What the customers do, in tenths of a second after the start. */
static const struct {
    int at;
    void (*act)(struct shop *shop, int number);
    int number;
} story[] = {
    {0, place, 1},  {3, place, 2},  {6, place, 3}, {9, place, 4},  {10, pay, 1},
    {12, place, 5}, {15, place, 6}, {16, pay, 5},  {18, place, 7}, {21, place, 8},
    {31, pay, 3},   {38, pay, 7},   {51, pay, 6},
};

static void sleep_until(const struct shop *shop, int tenths)
{
    lapse_ns instant = shop->started + LAPSE_MS(100 * tenths) / demo_speed();
    lapse_ns left = instant - lapse_now(shop->lapse);
    if (left > 0)
        nanosleep(&(struct timespec){left / LAPSE_SECONDS(1), left % LAPSE_SECONDS(1)}, NULL);
}

static void play(struct shop *shop)
{
    for (size_t i = 0; i < sizeof story / sizeof *story; i++) {
        sleep_until(shop, story[i].at);
        story[i].act(shop, story[i].number);
    }
    sleep_until(shop, 60);
}

static int failed(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, lapse_error_detail());
    return EXIT_FAILURE;
}

int main(void)
{
    struct shop shop = {.lock = PTHREAD_MUTEX_INITIALIZER, .stock = STOCK};
    if (lapse_open("memory:", NULL, &shop.lapse) < 0)
        return failed("lapse_open");
    if (lapse_start(shop.lapse, 1) < 0)
        return failed("lapse_start");
    shop.started = lapse_now(shop.lapse);
    play(&shop);
    if (lapse_close(shop.lapse, LAPSE_SECONDS(10)) < 0)
        return failed("lapse_close");
    printf("%d placed, %d paid, %d closed, stock %d/%d\n", ORDERS, shop.paid, shop.closed,
           shop.stock, STOCK);
    return EXIT_SUCCESS;
}
