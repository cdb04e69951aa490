/* redis_tls.c - rediss: TLS on a new connection, which ends unless the server proves its name.
 *
 * hiredis verifies a server's certificate but not whose it is, so the session is made here and
 * hiredis reads and writes through it. */
#include "base/error.h"
#include "stores/redis.h"

#ifdef LAPSE_WITH_REDIS_TLS

#include <arpa/inet.h>
#include <errno.h>
#include <hiredis/hiredis_ssl.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <string.h>

bool lp_redis_has_tls(void)
{
    return true;
}

static const char *reason(void)
{
    const char *text = ERR_reason_error_string(ERR_peek_last_error());
    return text ? text : "no reason is known";
}

static int bad_file(const char *option, const char *path)
{
    return lp_fail(LAPSE_EURL, "the URL option %s: %s cannot be used: %s", option,
                   lp_text_quote(path, strlen(path) < 200 ? strlen(path) : 200), reason());
}

static int take_files(const settings *s, SSL_CTX *ctx)
{
    if (s->ca && SSL_CTX_load_verify_locations(ctx, s->ca, NULL) != 1)
        return bad_file("ca", s->ca);
    if (!s->ca && SSL_CTX_set_default_verify_paths(ctx) != 1)
        return lp_fail(LAPSE_ESYSTEM, "the certificates that this machine trusts cannot be "
                                      "read: name those of Redis in the URL option ca");
    if (s->cert && SSL_CTX_use_certificate_chain_file(ctx, s->cert) != 1)
        return bad_file("cert", s->cert);
    const char *key = s->key ? s->key : s->cert; /* One file may hold both. */
    if (key && SSL_CTX_use_PrivateKey_file(ctx, key, SSL_FILETYPE_PEM) != 1)
        return bad_file(s->key ? "key" : "cert", key);
    return LAPSE_OK;
}

/* The name, or the address, that the certificate must have. */
static bool expect(SSL *ssl, const char *host)
{
    unsigned char address[sizeof(struct in6_addr)];
    if (inet_pton(AF_INET, host, address) == 1 || inet_pton(AF_INET6, host, address) == 1)
        return X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), host) == 1;
    return SSL_set1_host(ssl, host) == 1 && SSL_set_tlsext_host_name(ssl, host) == 1;
}

static SSL *new_session(const settings *s, int *code)
{
    SSL_CTX *ctx = SSL_CTX_new(TLS_client_method());
    SSL *ssl = NULL;
    if (!ctx) {
        *code = lp_fail_memory();
        return NULL;
    }
    SSL_CTX_set_min_proto_version(ctx, TLS1_2_VERSION);
    SSL_CTX_set_verify(ctx, SSL_VERIFY_PEER, NULL);
    *code = take_files(s, ctx);
    if (*code == LAPSE_OK) {
        ssl = SSL_new(ctx);
        if (!ssl || !expect(ssl, s->host)) {
            SSL_free(ssl);
            ssl = NULL;
            *code = lp_fail_memory();
        }
    }
    SSL_CTX_free(ctx); /* A session keeps it. */
    return ssl;
}

static int refused(const settings *s, const SSL *ssl, const redisContext *c)
{
    const char *host = lp_text_quote(s->host, strnlen(s->host, 120));
    long found = SSL_get_verify_result(ssl);
    if (found == X509_V_ERR_HOSTNAME_MISMATCH || found == X509_V_ERR_IP_ADDRESS_MISMATCH)
        return lp_fail(LAPSE_ESYSTEM,
                       "TLS: the certificate of Redis at %s is for another name: put a name "
                       "that it has into the URL",
                       host);
    if (found != X509_V_OK)
        return lp_fail(LAPSE_ESYSTEM,
                       "TLS: the certificate of Redis at %s is not trusted (%s): name the "
                       "file of its CA in the URL option ca",
                       host, X509_verify_cert_error_string(found));
    return lp_fail(LAPSE_EOFFLINE, "TLS with Redis at %s fails: %s", host, c->errstr);
}

int lp_redis_start_tls(const settings *s, redisContext *c)
{
    int code = LAPSE_OK;
    ERR_clear_error();
    SSL *ssl = new_session(s, &code);
    if (ssl && redisInitiateSSL(c, ssl) != REDIS_OK) {
        code = refused(s, ssl, c);
        SSL_free(ssl);
    }
    ERR_clear_error(); /* The queue is the thread's, which others use too. */
    return code;
}

#else

bool lp_redis_has_tls(void)
{
    return false;
}

int lp_redis_start_tls(const settings *s, redisContext *c)
{
    (void)s, (void)c;
    return lp_fail(LAPSE_EUNSUPPORTED, "this build of lapse has no TLS for Redis");
}

#endif
