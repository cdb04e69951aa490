/* rabbitmq.c - orders of one delay through the RabbitMQ store, beside a bare queue with a TTL and a
 * work queue behind it, through the same client library: JSON lines.
 *
 *     bench_store_rabbitmq URL [orders [milliseconds]]
 *
 * Both publish 100 at a time and wait for their confirms, and have a consumer beside that
 * acknowledges each order; both sets of queues are quorum queues with the same arguments. They take
 * turns on one broker, and the middle of several rounds counts. What is timed begins with the first
 * order and ends when the last is done: the delay is in it, once. The bare consumer has up to 200
 * orders at a time. So has lapse in the line of 0 threads, where one thread of the host's runs them
 * (lapse_want); with 1 or 16 threads of its own it has so many. */
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include "lapse.h"

#include "../core/measure.h"

#if __has_include(<rabbitmq-c/amqp.h>)
#include <rabbitmq-c/amqp.h>
#include <rabbitmq-c/framing.h>
#include <rabbitmq-c/tcp_socket.h>
#else
#include <amqp.h>
#include <amqp_framing.h>
#include <amqp_tcp_socket.h>
#endif

enum { BATCH = 100, ROUNDS = 5, PREFETCH = 200, BODY = 64 };

static long orders = 20000, delay_ms = 200;
static int round_number;

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* -- lapse -- */

static atomic_long done;

static lapse_verdict close_unpaid(const lapse_order *order, void *arg)
{
    (void)order, (void)arg;
    atomic_fetch_add(&done, 1);
    return LAPSE_DONE;
}

static lapse *open_lapse(const char *base)
{
    char url[512];
    lapse *s;
    snprintf(url, sizeof url, "%s%cprefix=bench%ld_%d&fixed=%ldms", base,
             strchr(base, '?') ? '&' : '?', (long)getpid(), round_number, delay_ms);
    if (lapse_open(url, NULL, &s) < 0)
        bench_die("lapse_open: %s", lapse_error_detail());
    return s;
}

static void schedule(lapse *s, long from)
{
    static char ids[BATCH][24], body[BODY];
    lapse_spec specs[BATCH];
    int64_t results[BATCH];
    for (int i = 0; i < BATCH; i++) {
        snprintf(ids[i], sizeof ids[i], "OID%08ld", from + i);
        specs[i] = (lapse_spec){.id = ids[i],
                                .queue = "close_unpaid",
                                .delay = LAPSE_MS(delay_ms),
                                .payload = body,
                                .payload_len = sizeof body};
    }
    if (lapse_schedule_many(s, specs, BATCH, results) != BATCH)
        bench_die("lapse_schedule_many: %s", lapse_error_detail());
}

static void await_done(long count)
{
    while (atomic_load(&done) < count)
        usleep(200);
}

/* One thread that runs what has come, as a host's loop does. */
static void *consume_lapse(void *arg)
{
    lapse *s = arg;
    struct pollfd ready = {.fd = lapse_fd(s), .events = POLLIN};
    if (lapse_want(s, PREFETCH) < 0)
        bench_die("lapse_want: %s", lapse_error_detail());
    while (lapse_process(s, 0) >= 0)
        (void)poll(&ready, 1, 1000);
    return NULL;
}

static double run_lapse(const char *url, unsigned threads)
{
    lapse *front = open_lapse(url), *back = open_lapse(url);
    pthread_t host;
    if (lapse_handle(back, "close_unpaid", close_unpaid, NULL, NULL, NULL) < 0 ||
        (threads && lapse_start(back, threads) < 0))
        bench_die("consumer: %s", lapse_error_detail());
    if (!threads)
        pthread_create(&host, NULL, consume_lapse, back);
    atomic_store(&done, 0);
    schedule(front, 0); /* Declares what is needed. */
    await_done(BATCH);
    double begun = now_s();
    for (long i = 0; i < orders; i += BATCH)
        schedule(front, i);
    await_done(BATCH + orders);
    double took = now_s() - begun;
    lapse_close(front, LAPSE_SECONDS(10));
    lapse_stop(back);
    if (!threads)
        pthread_join(host, NULL);
    lapse_close(back, LAPSE_SECONDS(10));
    return (double)orders / took;
}

/* -- The bare queue -- */

typedef struct bare {
    amqp_connection_state_t c;
    char wait[64], work[64], exchange[64];
} bare;

static void check(bare *b, const char *what)
{
    amqp_rpc_reply_t r = amqp_get_rpc_reply(b->c);
    if (r.reply_type != AMQP_RESPONSE_NORMAL)
        bench_die("%s: RabbitMQ refuses", what);
}

static bare connect_bare(const char *url)
{
    bare b = {.c = amqp_new_connection()};
    static char copy[512];
    struct amqp_connection_info info;
    snprintf(copy, sizeof copy, "%.*s", (int)strcspn(url, "?"), url);
    size_t length = strlen(copy);
    if (length && copy[length - 1] == '/')
        copy[length - 1] = '\0'; /* Else its vhost were the empty one. */
    amqp_default_connection_info(&info);
    if (amqp_parse_url(copy, &info) != AMQP_STATUS_OK)
        bench_die("%s: is no URL that rabbitmq-c reads", url);
    amqp_socket_t *socket = amqp_tcp_socket_new(b.c);
    if (amqp_socket_open(socket, info.host, info.port) != AMQP_STATUS_OK)
        bench_die("%s: cannot be reached", url);
    if (amqp_login(b.c, info.vhost, 0, AMQP_DEFAULT_FRAME_SIZE, 0, AMQP_SASL_METHOD_PLAIN,
                   info.user, info.password)
            .reply_type != AMQP_RESPONSE_NORMAL)
        bench_die("%s: refuses this user", url);
    amqp_channel_open(b.c, 1);
    check(&b, "channel");
    snprintf(b.wait, sizeof b.wait, "bare%ld_%d.wait", (long)getpid(), round_number);
    snprintf(b.work, sizeof b.work, "bare%ld_%d.work", (long)getpid(), round_number);
    snprintf(b.exchange, sizeof b.exchange, "bare%ld_%d", (long)getpid(), round_number);
    return b;
}

static amqp_table_entry_t text(const char *name, const char *value)
{
    return (amqp_table_entry_t){
        .key = amqp_cstring_bytes(name),
        .value = {.kind = AMQP_FIELD_KIND_UTF8, .value.bytes = amqp_cstring_bytes(value)}};
}

static void declare_bare(bare *b)
{
    amqp_table_entry_t work[] = {text("x-queue-type", "quorum")};
    amqp_table_entry_t wait[] = {
        work[0],
        text("x-dead-letter-exchange", b->exchange),
        text("x-dead-letter-strategy", "at-least-once"),
        text("x-overflow", "reject-publish"),
        {.key = amqp_cstring_bytes("x-message-ttl"),
         .value = {.kind = AMQP_FIELD_KIND_I64, .value.i64 = delay_ms}},
    };
    const amqp_table_t work_table = {1, work}, wait_table = {5, wait};
    amqp_exchange_declare(b->c, 1, amqp_cstring_bytes(b->exchange), amqp_cstring_bytes("fanout"), 0,
                          1, 0, 0, amqp_empty_table);
    check(b, "exchange");
    amqp_queue_declare(b->c, 1, amqp_cstring_bytes(b->work), 0, 1, 0, 0, work_table);
    check(b, "work queue");
    amqp_queue_bind(b->c, 1, amqp_cstring_bytes(b->work), amqp_cstring_bytes(b->exchange),
                    amqp_empty_bytes, amqp_empty_table);
    check(b, "binding");
    amqp_queue_declare(b->c, 1, amqp_cstring_bytes(b->wait), 0, 1, 0, 0, wait_table);
    check(b, "delay queue");
}

static void disconnect_bare(bare *b)
{
    amqp_connection_close(b->c, AMQP_REPLY_SUCCESS);
    amqp_destroy_connection(b->c);
}

static void *consume_bare(void *arg)
{
    bare b = connect_bare(arg);
    amqp_basic_qos(b.c, 1, 0, PREFETCH, 0);
    amqp_basic_consume(b.c, 1, amqp_cstring_bytes(b.work), amqp_empty_bytes, 0, 0, 0,
                       amqp_empty_table);
    check(&b, "consume");
    for (long i = 0; i < BATCH + orders; i++) {
        amqp_envelope_t e;
        amqp_maybe_release_buffers(b.c);
        if (amqp_consume_message(b.c, &e, NULL, 0).reply_type != AMQP_RESPONSE_NORMAL)
            bench_die("consume: the connection was lost");
        amqp_basic_ack(b.c, 1, e.delivery_tag, 0);
        amqp_destroy_envelope(&e);
        atomic_fetch_add(&done, 1);
    }
    disconnect_bare(&b);
    return NULL;
}

/* Until the broker has confirmed up to this number. */
static void await_confirm(bare *b, uint64_t number)
{
    static uint64_t seen;
    seen = number <= BATCH ? 0 : seen;
    while (seen < number) {
        amqp_frame_t f;
        if (amqp_simple_wait_frame(b->c, &f) != AMQP_STATUS_OK ||
            f.frame_type != AMQP_FRAME_METHOD || f.payload.method.id != AMQP_BASIC_ACK_METHOD)
            bench_die("publish: was not confirmed");
        const amqp_basic_ack_t *ack = f.payload.method.decoded;
        seen = ack->multiple ? ack->delivery_tag : seen + 1;
    }
    amqp_maybe_release_buffers(b->c);
}

static void publish_bare(bare *b, uint64_t from)
{
    static char body[BODY];
    char id[24];
    for (int i = 0; i < BATCH; i++) {
        snprintf(id, sizeof id, "OID%08ld", (long)from + i);
        amqp_basic_properties_t p = {._flags =
                                         AMQP_BASIC_DELIVERY_MODE_FLAG | AMQP_BASIC_MESSAGE_ID_FLAG,
                                     .delivery_mode = 2,
                                     .message_id = amqp_cstring_bytes(id)};
        if (amqp_basic_publish(b->c, 1, amqp_empty_bytes, amqp_cstring_bytes(b->wait), 1, 0, &p,
                               (amqp_bytes_t){sizeof body, body}) != AMQP_STATUS_OK)
            bench_die("publish: the connection was lost");
    }
    await_confirm(b, from + BATCH);
}

static double run_bare(char *url)
{
    bare b = connect_bare(url);
    pthread_t consumer;
    declare_bare(&b);
    amqp_confirm_select(b.c, 1);
    check(&b, "confirm");
    atomic_store(&done, 0);
    pthread_create(&consumer, NULL, consume_bare, url);
    publish_bare(&b, 0);
    await_done(BATCH);
    double begun = now_s();
    for (long i = 0; i < orders; i += BATCH)
        publish_bare(&b, (uint64_t)(BATCH + i));
    await_done(BATCH + orders);
    double took = now_s() - begun;
    pthread_join(consumer, NULL);
    amqp_queue_delete(b.c, 1, amqp_cstring_bytes(b.wait), 0, 0);
    amqp_queue_delete(b.c, 1, amqp_cstring_bytes(b.work), 0, 0);
    amqp_exchange_delete(b.c, 1, amqp_cstring_bytes(b.exchange), 0);
    disconnect_bare(&b);
    return (double)orders / took;
}

static void compare(char *url, unsigned threads)
{
    double ours[ROUNDS], bare_rate[ROUNDS], ratio[ROUNDS];
    for (int i = 0; i < ROUNDS; i++, round_number++) {
        ours[i] = run_lapse(url, threads);
        bare_rate[i] = run_bare(url);
        ratio[i] = ours[i] / bare_rate[i];
    }
    double half = middle(ratio, ROUNDS);
    printf("{\"what\": \"schedule to done, one delay of %ld ms, %d a call\", \"threads\": %u, "
           "\"orders\": %ld, \"lapse_per_s\": %.0f, \"bare_per_s\": %.0f, \"ratio\": %.2f, "
           "\"least\": %.2f, \"most\": %.2f}\n",
           delay_ms, BATCH, threads, orders, middle(ours, ROUNDS), middle(bare_rate, ROUNDS), half,
           ratio[0], ratio[ROUNDS - 1]);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    if (argc < 2)
        bench_die("usage: bench_store_rabbitmq URL [orders [milliseconds]]");
    orders = argc > 2 ? atol(argv[2]) / BATCH * BATCH : orders;
    delay_ms = argc > 3 ? atol(argv[3]) : delay_ms;
    compare(argv[1], 0);
    compare(argv[1], 1);
    compare(argv[1], 16);
    return 0;
}
