/* rabbitmq_link.c - a connection to the broker: frames, calls, what arrives in between. */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#if __has_include(<rabbitmq-c/tcp_socket.h>)
#include <rabbitmq-c/ssl_socket.h>
#include <rabbitmq-c/tcp_socket.h>
#else
#include <amqp_ssl_socket.h>
#include <amqp_tcp_socket.h>
#endif

#include "base/clock.h"
#include "base/error.h"
#include "stores/rabbitmq_link.h"

enum { MANY_FRAMES = 1000 }; /* that are read in one go */

static struct timeval timeval_of(lapse_ns t)
{
    t = t > 0 ? t : 0;
    return (struct timeval){.tv_sec = t / LAPSE_SECONDS(1), .tv_usec = t % LAPSE_SECONDS(1) / 1000};
}

/* -- Losing it -- */

static void forget(rabbit_link *l)
{
    for (int i = 0; i <= LP_RABBIT_CHANNELS; i++) {
        lp_rabbit_free_message(l->coming[i]);
        l->coming[i] = NULL;
    }
    /* A child that was forked keeps the socket open, and an epoll would tell of it for ever. */
    if (l->connection && l->watch >= 0)
        (void)epoll_ctl(l->watch, EPOLL_CTL_DEL, l->fd, NULL);
    if (l->connection)
        amqp_destroy_connection(l->connection);
    l->connection = NULL;
    l->fd = l->watch = -1;
    l->blocked = false;
    l->awaits = 0;
    memset(l->is_open, 0, sizeof l->is_open);
}

static int lose(rabbit_link *l, const char *why)
{
    int code = lp_fail(LAPSE_EOFFLINE, "the connection to RabbitMQ was lost: %.300s", why);
    forget(l);
    return code;
}

static int lose_for(rabbit_link *l, int status)
{
    return lose(l, amqp_error_string2(status));
}

static void copy_text(char *out, size_t size, amqp_bytes_t text)
{
    char said[LP_TEXT_MAX + 1], raw[256];
    size_t len = text.len < sizeof raw - 1 ? text.len : sizeof raw - 1;
    if (len)
        memcpy(raw, text.bytes, len);
    raw[len] = '\0';
    lp_text_clip(said, raw);
    len = strnlen(said, size - 1);
    memcpy(out, said, len);
    out[len] = '\0';
}

void lp_rabbit_disconnect(rabbit_link *l, bool politely)
{
    if (politely && l->connection) {
        struct timeval limit = timeval_of(LAPSE_SECONDS(2));
        amqp_set_rpc_timeout(l->connection, &limit);
        amqp_connection_close(l->connection, AMQP_REPLY_SUCCESS);
    }
    forget(l);
}

/* -- Connecting -- */

static int untrusted(const rabbit_settings *s, const char *what)
{
    return lp_fail(LAPSE_ESYSTEM, "RabbitMQ at %s:%u shows a certificate %s",
                   lp_text_quote(s->host, strnlen(s->host, 120)), s->port, what);
}

static int unreachable(const rabbit_settings *s, int status)
{
    if (status == AMQP_STATUS_SSL_PEER_VERIFY_FAILED)
        return untrusted(s, "that is not trusted: name its CA with the URL option cacert");
    if (status == AMQP_STATUS_SSL_HOSTNAME_VERIFY_FAILED)
        return untrusted(s, "for another name: use a host name that stands in it, not an address");
    if (status == AMQP_STATUS_SOCKET_ERROR) /* The client library does not say which. */
        return lp_fail(LAPSE_EOFFLINE,
                       "RabbitMQ at %s:%u cannot be reached: the connection is refused, or there "
                       "is no way to it; see that it runs, and that host and port are right",
                       lp_text_quote(s->host, strnlen(s->host, 120)), s->port);
    return lp_fail(LAPSE_EOFFLINE, "RabbitMQ at %s:%u cannot be reached: %s",
                   lp_text_quote(s->host, strnlen(s->host, 120)), s->port,
                   amqp_error_string2(status));
}

static int bad_file(const char *option, const char *path)
{
    return lp_fail(LAPSE_ESYSTEM, "the URL option %s=%s cannot be used: see that it is a PEM file",
                   option, lp_text_quote(path, strnlen(path, 120)));
}

/* Where Debian and most others keep whom they trust: this client library has no default. */
static const char trusted[] = "/etc/ssl/certs/ca-certificates.crt";

static int set_up_tls(amqp_socket_t *socket, const rabbit_settings *s)
{
    const char *cacert = s->cacert ? s->cacert : trusted;
    amqp_ssl_socket_set_verify_peer(socket, s->verify);
    amqp_ssl_socket_set_verify_hostname(socket, s->verify);
    if ((s->verify || s->cacert) && amqp_ssl_socket_set_cacert(socket, cacert) != AMQP_STATUS_OK)
        return bad_file("cacert", cacert);
    if (s->cert && amqp_ssl_socket_set_key(socket, s->cert, s->key) != AMQP_STATUS_OK)
        return bad_file("cert", s->cert);
    return LAPSE_OK;
}

/* A socket that cannot be written to must not hold up whoever writes for long: the client library
 * has no time limit there. */
static void set_up_socket(int fd, lapse_ns timeout)
{
    int yes = 1;
    unsigned ms = (unsigned)(timeout / LAPSE_MS(1));
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof yes);
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, sizeof ms);
}

static int open_socket(rabbit_link *l)
{
    const rabbit_settings *s = l->settings;
    amqp_socket_t *socket =
        s->tls ? amqp_ssl_socket_new(l->connection) : amqp_tcp_socket_new(l->connection);
    if (!socket)
        return lp_fail_memory();
    int code = s->tls ? set_up_tls(socket, s) : LAPSE_OK;
    if (code < 0)
        return code;
    struct timeval limit = timeval_of(s->timeout);
    int status = amqp_socket_open_noblock(socket, s->host, (int)s->port, &limit);
    if (status != AMQP_STATUS_OK)
        return unreachable(s, status);
    l->fd = amqp_socket_get_sockfd(socket);
    set_up_socket(l->fd, s->timeout);
    return LAPSE_OK;
}

static int login_refused(const rabbit_settings *s, amqp_rpc_reply_t reply)
{
    if (reply.reply_type == AMQP_RESPONSE_LIBRARY_EXCEPTION) {
        if (reply.library_error == AMQP_STATUS_NO_MEMORY)
            return lp_fail_memory();
        return unreachable(s, reply.library_error);
    }
    const amqp_connection_close_t *m = reply.reply.decoded;
    char said[200];
    if (reply.reply.id != AMQP_CONNECTION_CLOSE_METHOD)
        return lp_fail(LAPSE_EOFFLINE, "RabbitMQ ended the connection while it was set up");
    copy_text(said, sizeof said, m->reply_text);
    if (m->reply_code == AMQP_ACCESS_REFUSED)
        return lp_fail(LAPSE_ESYSTEM,
                       "RabbitMQ refuses this user or password, or the vhost to it: %s", said);
    return lp_fail(LAPSE_ESYSTEM, "RabbitMQ refuses the connection: %s", said);
}

static int log_in(rabbit_link *l)
{
    const rabbit_settings *s = l->settings;
    amqp_table_entry_t can[] = {
        {.key = amqp_cstring_bytes("connection.blocked"),
         .value = {.kind = AMQP_FIELD_KIND_BOOLEAN, .value.boolean = 1}},
        {.key = amqp_cstring_bytes("consumer_cancel_notify"),
         .value = {.kind = AMQP_FIELD_KIND_BOOLEAN, .value.boolean = 1}},
    };
    amqp_table_entry_t says[] = {
        {.key = amqp_cstring_bytes("connection_name"),
         .value = {.kind = AMQP_FIELD_KIND_UTF8, .value.bytes = amqp_cstring_bytes("lapse")}},
        {.key = amqp_cstring_bytes("capabilities"),
         .value = {.kind = AMQP_FIELD_KIND_TABLE, .value.table = {2, can}}},
    };
    const amqp_table_t properties = {2, says};
    struct timeval limit = timeval_of(s->timeout);
    amqp_set_handshake_timeout(l->connection, &limit);
    amqp_rpc_reply_t reply =
        amqp_login_with_properties(l->connection, s->vhost, 0, AMQP_DEFAULT_FRAME_SIZE,
                                   (int)((s->heartbeat + LAPSE_SECONDS(1) - 1) / LAPSE_SECONDS(1)),
                                   &properties, AMQP_SASL_METHOD_PLAIN, s->user, s->password);
    if (reply.reply_type != AMQP_RESPONSE_NORMAL)
        return login_refused(s, reply);
    amqp_set_rpc_timeout(l->connection, &limit);
    return LAPSE_OK;
}

int lp_rabbit_connect(rabbit_link *l, const rabbit_settings *settings, const rabbit_ears *ears,
                      void *arg)
{
    *l = (rabbit_link){.settings = settings, .ears = ears, .arg = arg, .fd = -1, .watch = -1};
    l->connection = amqp_new_connection();
    if (!l->connection)
        return lp_fail_memory();
    int code = open_socket(l);
    if (code == LAPSE_OK)
        code = log_in(l);
    if (code < 0)
        forget(l);
    return code;
}

int lp_rabbit_open_channel(rabbit_link *l, uint16_t channel)
{
    amqp_channel_open_t m = {.out_of_band = amqp_empty_bytes};
    int code =
        lp_rabbit_call(l, channel, AMQP_CHANNEL_OPEN_METHOD, &m, AMQP_CHANNEL_OPEN_OK_METHOD, 0);
    l->is_open[channel] = code == LAPSE_OK;
    return code;
}

/* -- What arrives -- */

static void end_message(rabbit_link *l, uint16_t channel)
{
    rabbit_message *m = l->coming[channel];
    l->coming[channel] = NULL;
    if (l->awaits_on == m->channel && l->awaits == AMQP_BASIC_GET_OK_METHOD && !*m->consumer &&
        !m->returned)
        l->got = AMQP_BASIC_GET_OK_METHOD; /* Only now it is there. */
    l->ears->message(l->arg, m);
}

static int begin_message(rabbit_link *l, const amqp_frame_t *f)
{
    rabbit_message *m = lp_rabbit_new_message();
    if (!m)
        return lose(l, "out of memory");
    lp_rabbit_free_message(l->coming[f->channel]);
    l->coming[f->channel] = m;
    m->channel = f->channel;
    const amqp_method_t *method = &f->payload.method;
    if (method->id == AMQP_BASIC_DELIVER_METHOD) {
        const amqp_basic_deliver_t *d = method->decoded;
        m->tag = d->delivery_tag;
        m->is_again = d->redelivered;
        copy_text(m->consumer, sizeof m->consumer, d->consumer_tag);
    } else if (method->id == AMQP_BASIC_GET_OK_METHOD) {
        const amqp_basic_get_ok_t *g = method->decoded;
        m->tag = g->delivery_tag;
        m->is_again = g->redelivered;
    } else {
        const amqp_basic_return_t *r = method->decoded;
        m->returned = r->reply_code;
    }
    return 1;
}

static int read_header(rabbit_link *l, const amqp_frame_t *f)
{
    rabbit_message *m = l->coming[f->channel];
    if (!m)
        return lose(l, "a message without a beginning");
    uint64_t size = f->payload.properties.body_size;
    if (!lp_rabbit_read_properties(m, f->payload.properties.decoded))
        return lose(l, "out of memory");
    m->want = (size_t)size;
    m->too_large = size > LAPSE_PAYLOAD_MAX;
    if (m->too_large)
        m->bad = "it is larger than an order may be";
    else if (size && !(m->body = malloc((size_t)size)))
        return lose(l, "out of memory");
    m->order.payload = m->body;
    if (size == 0)
        end_message(l, f->channel);
    return 1;
}

static int read_body(rabbit_link *l, const amqp_frame_t *f)
{
    rabbit_message *m = l->coming[f->channel];
    amqp_bytes_t part = f->payload.body_fragment;
    if (!m || part.len > m->want)
        return lose(l, "a body without a header");
    if (m->body) {
        memcpy(m->body + m->order.payload_len, part.bytes, part.len);
        m->order.payload_len += part.len;
    }
    m->want -= part.len;
    if (m->want == 0)
        end_message(l, f->channel);
    return 1;
}

static int close_channel(rabbit_link *l, const amqp_frame_t *f)
{
    const amqp_channel_close_t *c = f->payload.method.decoded;
    amqp_channel_close_ok_t ok = {0};
    l->closed_code = c->reply_code;
    copy_text(l->closed_for, sizeof l->closed_for, c->reply_text);
    l->is_open[f->channel] = false;
    if (l->awaits_on == f->channel && l->awaits)
        l->got = AMQP_CHANNEL_CLOSE_METHOD;
    lp_rabbit_free_message(l->coming[f->channel]);
    l->coming[f->channel] = NULL;
    l->ears->closed(l->arg, f->channel);
    return lp_rabbit_send(l, f->channel, AMQP_CHANNEL_CLOSE_OK_METHOD, &ok);
}

static int close_connection(rabbit_link *l, const amqp_frame_t *f)
{
    const amqp_connection_close_t *c = f->payload.method.decoded;
    amqp_connection_close_ok_t ok = {0};
    char said[200];
    copy_text(said, sizeof said, c->reply_text);
    amqp_send_method(l->connection, 0, AMQP_CONNECTION_CLOSE_OK_METHOD, &ok);
    return lose(l, said);
}

static int answer_flow(rabbit_link *l, const amqp_frame_t *f)
{
    const amqp_channel_flow_t *flow = f->payload.method.decoded;
    amqp_channel_flow_ok_t ok = {.active = flow->active};
    return lp_rabbit_send(l, f->channel, AMQP_CHANNEL_FLOW_OK_METHOD, &ok);
}

static void read_reply(rabbit_link *l, const amqp_frame_t *f)
{
    const amqp_method_t *m = &f->payload.method;
    if (!l->awaits || f->channel != l->awaits_on || (m->id != l->awaits && m->id != l->or_awaits))
        return;
    l->got = m->id;
    if (m->id == AMQP_QUEUE_DECLARE_OK_METHOD)
        l->count = ((const amqp_queue_declare_ok_t *)m->decoded)->message_count;
    else if (m->id == AMQP_QUEUE_PURGE_OK_METHOD)
        l->count = ((const amqp_queue_purge_ok_t *)m->decoded)->message_count;
}

static void confirm(rabbit_link *l, const amqp_method_t *m)
{
    if (m->id == AMQP_BASIC_ACK_METHOD) {
        const amqp_basic_ack_t *ack = m->decoded;
        l->ears->confirmed(l->arg, ack->delivery_tag, ack->multiple, true);
    } else {
        const amqp_basic_nack_t *nack = m->decoded;
        l->ears->confirmed(l->arg, nack->delivery_tag, nack->multiple, false);
    }
}

static void cancel(rabbit_link *l, const amqp_method_t *m)
{
    char consumer[32];
    copy_text(consumer, sizeof consumer, ((const amqp_basic_cancel_t *)m->decoded)->consumer_tag);
    l->ears->cancelled(l->arg, consumer);
}

/* 1, or below 0: the link was lost. */
static int read_method(rabbit_link *l, const amqp_frame_t *f)
{
    const amqp_method_t *m = &f->payload.method;
    switch (m->id) {
    case AMQP_BASIC_DELIVER_METHOD:
    case AMQP_BASIC_GET_OK_METHOD:
    case AMQP_BASIC_RETURN_METHOD:
        return begin_message(l, f);
    case AMQP_BASIC_ACK_METHOD:
    case AMQP_BASIC_NACK_METHOD:
        confirm(l, m);
        return 1;
    case AMQP_BASIC_CANCEL_METHOD:
        cancel(l, m);
        return 1;
    case AMQP_CHANNEL_CLOSE_METHOD:
        return close_channel(l, f) < 0 ? LAPSE_EOFFLINE : 1;
    case AMQP_CHANNEL_FLOW_METHOD:
        return answer_flow(l, f) < 0 ? LAPSE_EOFFLINE : 1;
    case AMQP_CONNECTION_CLOSE_METHOD:
        return close_connection(l, f);
    case AMQP_CONNECTION_BLOCKED_METHOD:
        l->blocked = true;
        copy_text(l->blocked_for, sizeof l->blocked_for,
                  ((const amqp_connection_blocked_t *)m->decoded)->reason);
        return 1;
    case AMQP_CONNECTION_UNBLOCKED_METHOD:
        l->blocked = false;
        return 1;
    default:
        read_reply(l, f);
        return 1;
    }
}

static int read_frame(rabbit_link *l, const amqp_frame_t *f)
{
    if (f->channel > LP_RABBIT_CHANNELS)
        return 1;
    switch (f->frame_type) {
    case AMQP_FRAME_METHOD:
        return read_method(l, f);
    case AMQP_FRAME_HEADER:
        return read_header(l, f);
    case AMQP_FRAME_BODY:
        return read_body(l, f);
    default:
        return 1;
    }
}

static int no_link(void)
{
    return lp_fail(LAPSE_EOFFLINE, "there is no connection to RabbitMQ");
}

int lp_rabbit_pump(rabbit_link *l, lapse_ns wait)
{
    amqp_frame_t frame;
    struct timeval limit = timeval_of(wait);
    if (!l->connection)
        return no_link();
    amqp_maybe_release_buffers(l->connection); /* All that was read has been copied. */
    int status = amqp_simple_wait_frame_noblock(l->connection, &frame, &limit);
    if (status == AMQP_STATUS_TIMEOUT)
        return 0;
    if (status != AMQP_STATUS_OK)
        return lose_for(l, status);
    return read_frame(l, &frame);
}

int lp_rabbit_drain(rabbit_link *l)
{
    int code = 1;
    for (int i = 0; code == 1 && i < MANY_FRAMES; i++)
        code = lp_rabbit_pump(l, 0);
    return code;
}

bool lp_rabbit_has_input(const rabbit_link *l)
{
    return l->connection &&
           (amqp_frames_enqueued(l->connection) || amqp_data_in_buffer(l->connection));
}

/* -- Calls -- */

int lp_rabbit_send(rabbit_link *l, uint16_t channel, amqp_method_number_t id, void *method)
{
    if (!l->connection)
        return no_link();
    int status = amqp_send_method(l->connection, channel, id, method);
    return status == AMQP_STATUS_OK ? LAPSE_OK : lose_for(l, status);
}

static int await_reply(rabbit_link *l)
{
    lapse_ns deadline = lp_add_ns(lp_clock_monotonic(), l->settings->timeout);
    while (!l->got) {
        lapse_ns left = deadline - lp_clock_monotonic();
        if (left <= 0)
            return lose(l, "it has not answered within the URL option timeout");
        int code = lp_rabbit_pump(l, left);
        if (code < 0)
            return code;
    }
    return LAPSE_OK;
}

int lp_rabbit_call(rabbit_link *l, uint16_t channel, amqp_method_number_t id, void *method,
                   amqp_method_number_t reply, amqp_method_number_t or_reply)
{
    if (l->connection && !l->is_open[channel] && id != AMQP_CHANNEL_OPEN_METHOD) {
        int code = lp_rabbit_open_channel(l, channel);
        if (code < 0)
            return code;
    }
    l->awaits_on = channel;
    l->awaits = reply;
    l->or_awaits = or_reply;
    l->got = 0;
    int code = lp_rabbit_send(l, channel, id, method);
    if (code == LAPSE_OK)
        code = await_reply(l);
    l->awaits = l->or_awaits = 0;
    if (code == LAPSE_OK && l->got == AMQP_CHANNEL_CLOSE_METHOD)
        return lp_fail(LAPSE_EDATA, "RabbitMQ refuses: %.300s", l->closed_for);
    return code;
}

int lp_rabbit_publish(rabbit_link *l, uint16_t channel, const char *exchange, const char *key,
                      const rabbit_order *o, uint64_t number)
{
    rabbit_headers room;
    amqp_basic_properties_t properties;
    if (!l->connection)
        return no_link();
    lp_rabbit_write_properties(o, number, &room, &properties);
    amqp_bytes_t body = {.len = o->payload_len, .bytes = (void *)(uintptr_t)o->payload};
    int status = amqp_basic_publish(l->connection, channel, amqp_cstring_bytes(exchange),
                                    amqp_cstring_bytes(key), 1, 0, &properties, body);
    return status == AMQP_STATUS_OK ? LAPSE_OK : lose_for(l, status);
}

/* On a channel that the broker has closed there is nothing to say any more: it has taken back all
 * that was delivered there. */
static int check_open(const rabbit_link *l, uint16_t channel)
{
    if (!l->connection)
        return no_link();
    return l->is_open[channel]
               ? LAPSE_OK
               : lp_fail(LAPSE_ESTALE, "RabbitMQ has closed the channel: %.200s", l->closed_for);
}

int lp_rabbit_ack(rabbit_link *l, uint16_t channel, uint64_t tag, bool multiple)
{
    amqp_basic_ack_t m = {.delivery_tag = tag, .multiple = multiple};
    int code = check_open(l, channel);
    if (code < 0)
        return code;
    return lp_rabbit_send(l, channel, AMQP_BASIC_ACK_METHOD, &m);
}

int lp_rabbit_requeue(rabbit_link *l, uint16_t channel, uint64_t tag, bool multiple)
{
    amqp_basic_nack_t m = {.delivery_tag = tag, .multiple = multiple, .requeue = 1};
    int code = check_open(l, channel);
    if (code < 0)
        return code;
    return lp_rabbit_send(l, channel, AMQP_BASIC_NACK_METHOD, &m);
}

int lp_rabbit_reject(rabbit_link *l, uint16_t channel, uint64_t tag)
{
    amqp_basic_reject_t m = {.delivery_tag = tag};
    int code = check_open(l, channel);
    if (code < 0)
        return code;
    return lp_rabbit_send(l, channel, AMQP_BASIC_REJECT_METHOD, &m);
}

/* "message size 2000 is larger than configured max size 1000" */
bool lp_rabbit_said_limit(const rabbit_link *l, size_t *out)
{
    static const char before[] = "max size ";
    const char *at = strstr(l->closed_for, "message size ");
    at = at ? strstr(at, before) : NULL;
    if (l->closed_code != AMQP_PRECONDITION_FAILED || !at)
        return false;
    at += sizeof before - 1;
    *out = strtoull(at, NULL, 10);
    return *at >= '0' && *at <= '9';
}

int lp_rabbit_get(rabbit_link *l, uint16_t channel, const char *queue)
{
    amqp_basic_get_t m = {.queue = amqp_cstring_bytes(queue)};
    int code = lp_rabbit_call(l, channel, AMQP_BASIC_GET_METHOD, &m, AMQP_BASIC_GET_OK_METHOD,
                              AMQP_BASIC_GET_EMPTY_METHOD);
    return code < 0 ? code : l->got == AMQP_BASIC_GET_OK_METHOD;
}
