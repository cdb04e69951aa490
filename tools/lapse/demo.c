/* demo.c - the command `demo`: a shop whose unpaid orders are closed, in memory.
 *
 * The story of examples/c/shop.c, told by the installed tool. Payment and closing may meet at
 * the same instant: both change an order only if it is still open, so that exactly one of them
 * wins, and stock is given back by the one that closed it. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tool.h"

enum { ORDERS = 8, STOCK = 100 };

enum status { OPEN, PAID, CLOSED };

struct shop {
    cli *c;
    lapse_ns started;
    int64_t speed;
    pthread_mutex_t lock;
    pthread_cond_t ended;           /* one more order is paid or closed */
    enum status orders[ORDERS + 1]; /* under lock; by number, from 1 */
    int stock, paid, closed;        /* under lock */
};

static void order_id(char id[16], int number)
{
    snprintf(id, 16, "OID%08d", number);
}

/* One event; under the shop's lock, so that they are told in order. `late` below 0: no word. */
static void tell(const struct shop *shop, int number, const char *event, lapse_ns late)
{
    char id[16];
    cli *c = shop->c;
    lapse_ns at = lapse_now(c->s) - shop->started;
    order_id(id, number);
    if (c->o.json) {
        cli_begin(c);
        cli_put_span(c, "at", at);
        cli_put_word(c, "id", id);
        cli_put_word(c, "event", event);
        if (late >= 0)
            cli_put_span(c, "late", late);
        cli_end(c);
    } else {
        printf("%6.2f s  %-12s %-8s ", (double)at / 1e9, id, event);
        if (late >= 0)
            printf("late %.1f ms\n", (double)late / 1e6);
        else
            puts(strcmp(event, "too late") == 0 ? "the order was closed" : "");
    }
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
    pthread_cond_signal(&shop->ended);
    return true;
}

/* Its time is up: close the order if it was not paid. */
static lapse_verdict close_unpaid(const lapse_order *order, void *arg)
{
    struct shop *shop = arg;
    int number = (int)strtol(order->id + 3, NULL, 10);
    pthread_mutex_lock(&shop->lock);
    if (change(shop, number, CLOSED)) {
        shop->stock++;
        tell(shop, number, "closed", order->late);
    }
    pthread_mutex_unlock(&shop->lock);
    return LAPSE_DONE;
}

static int place(struct shop *shop, int number)
{
    char id[16];
    order_id(id, number);
    pthread_mutex_lock(&shop->lock);
    shop->stock--;
    shop->orders[number] = OPEN;
    tell(shop, number, "placed", -1);
    pthread_mutex_unlock(&shop->lock);
    int64_t generation =
        lapse_schedule(shop->c->s, id, LAPSE_SECONDS(3) / shop->speed, close_unpaid, shop);
    return generation < 0 ? (int)generation : 0;
}

static int pay(struct shop *shop, int number)
{
    char id[16];
    order_id(id, number);
    pthread_mutex_lock(&shop->lock);
    bool paid = change(shop, number, PAID);
    tell(shop, number, paid ? "paid" : "too late", -1);
    pthread_mutex_unlock(&shop->lock);
    return paid ? lapse_cancel(shop->c->s, id, LAPSE_ANY) : 0;
}

/* What the customers do, in tenths of a second after the start. */
static const struct {
    int at;
    int (*act)(struct shop *shop, int number);
    int number;
} story[] = {
    {0, place, 1},  {3, place, 2},  {6, place, 3}, {9, place, 4},  {10, pay, 1},
    {12, place, 5}, {15, place, 6}, {16, pay, 5},  {18, place, 7}, {21, place, 8},
    {31, pay, 3},   {38, pay, 7},   {51, pay, 6},
};

static void sleep_until(const struct shop *shop, int tenths)
{
    lapse_ns left, instant = shop->started + LAPSE_MS(100 * tenths) / shop->speed;
    while ((left = instant - lapse_now(shop->c->s)) > 0)
        nanosleep(&(struct timespec){left / LAPSE_SECONDS(1), left % LAPSE_SECONDS(1)}, NULL);
}

static int play(struct shop *shop)
{
    for (size_t i = 0; i < sizeof story / sizeof *story; i++) {
        sleep_until(shop, story[i].at);
        int code = story[i].act(shop, story[i].number);
        if (code < 0)
            return code;
    }
    sleep_until(shop, 60);
    pthread_mutex_lock(&shop->lock); /* A busy machine may be late. */
    while (shop->paid + shop->closed < ORDERS)
        pthread_cond_wait(&shop->ended, &shop->lock);
    pthread_mutex_unlock(&shop->lock);
    return 0;
}

static void sum_up(const struct shop *shop)
{
    cli *c = shop->c;
    if (!c->o.json) {
        printf("%d placed, %d paid, %d closed, stock %d/%d\n", ORDERS, shop->paid, shop->closed,
               shop->stock, STOCK);
        return;
    }
    cli_begin(c);
    cli_put_int(c, "placed", ORDERS);
    cli_put_int(c, "paid", shop->paid);
    cli_put_int(c, "closed", shop->closed);
    cli_put_int(c, "stock", shop->stock);
    cli_end(c);
}

/* In the open scheduler; 0 or an error. */
static int run_shop(struct shop *shop)
{
    int code = lapse_start(shop->c->s, 1);
    shop->started = lapse_now(shop->c->s);
    if (code == 0)
        code = play(shop);
    int closing = lapse_close(shop->c->s, LAPSE_SECONDS(10));
    return code < 0 ? code : closing;
}

/* A pace for all demos: LAPSE_DEMO_SPEED in the environment, unless --speed says another. */
static int64_t pace(const cli *c)
{
    int64_t speed = 1;
    const char *text = getenv("LAPSE_DEMO_SPEED");
    if (c->o.speed > 0)
        return c->o.speed;
    return text != NULL && cli_parse_number(text, 1, &speed) == NULL ? speed : 1;
}

int cli_cmd_demo(cli *c)
{
    struct shop shop = {.c = c,
                        .speed = pace(c),
                        .lock = PTHREAD_MUTEX_INITIALIZER,
                        .ended = PTHREAD_COND_INITIALIZER,
                        .stock = STOCK};
    int code = lapse_open("memory:", NULL, &c->s);
    if (code == 0)
        code = run_shop(&shop);
    if (code < 0)
        return cli_fail(c, NULL, code);
    sum_up(&shop);
    return LAPSE_CLI_DONE;
}
