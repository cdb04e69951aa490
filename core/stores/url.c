/* url.c - the parts of a store's URL. */
#define _DEFAULT_SOURCE /* explicit_bzero */
#include "stores/url.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

const char *lp_url_query(const char *url)
{
    const char *mark = strchr(url, '?');
    return mark ? mark + 1 : url + strlen(url);
}

bool lp_url_next(const char **at, lp_url_option *out)
{
    const char *p = *at;
    if (!*p)
        return false;
    size_t len = strcspn(p, "&");
    const char *equals = memchr(p, '=', len);
    out->name = p;
    out->name_len = equals ? (size_t)(equals - p) : len;
    out->value = equals ? equals + 1 : p + len;
    out->value_len = len - out->name_len - (equals ? 1 : 0);
    *at = p + len + (p[len] == '&');
    return true;
}

static bool is(const char *text, size_t len, const char *word)
{
    return len == strlen(word) && memcmp(text, word, len) == 0;
}

bool lp_url_is(const lp_url_option *option, const char *name)
{
    return is(option->name, option->name_len, name);
}

bool lp_url_value_is(const lp_url_option *option, const char *value)
{
    return is(option->value, option->value_len, value);
}

/* Decimal digits at the start of the value; how many, 0 when they do not fit. */
static size_t digits(const lp_url_option *option, uint64_t *out)
{
    size_t n = 0;
    *out = 0;
    for (; n < option->value_len && option->value[n] >= '0' && option->value[n] <= '9'; n++) {
        uint64_t digit = (uint64_t)(option->value[n] - '0');
        if (__builtin_mul_overflow(*out, UINT64_C(10), out) ||
            __builtin_add_overflow(*out, digit, out))
            return 0;
    }
    return n;
}

static size_t shown(size_t len)
{
    return len < 40 ? len : 40;
}

static int bad(int code, const lp_url_option *option, const char *wanted)
{
    return lp_fail(code, "the URL option %s has the value %s: use %s",
                   lp_text_quote(option->name, shown(option->name_len)),
                   lp_text_quote(option->value, shown(option->value_len)), wanted);
}

int lp_url_refuse(const lp_url_option *option, const char *wanted)
{
    return bad(LAPSE_EURL, option, wanted);
}

static const struct {
    const char *name;
    lapse_ns ns;
} units[] = {{"ns", 1},
             {"us", LAPSE_US(1)},
             {"ms", LAPSE_MS(1)},
             {"s", LAPSE_SECONDS(1)},
             {"m", LAPSE_MINUTES(1)},
             {"h", LAPSE_HOURS(1)},
             {"d", LAPSE_DAYS(1)}};
enum { UNITS = sizeof units / sizeof *units };

/* A duration in the largest unit that has no remainder. */
static void write_duration(char *out, size_t size, lapse_ns t)
{
    size_t i = UNITS - 1;
    while (t % units[i].ns)
        i--;
    snprintf(out, size, "%lld%s", (long long)(t / units[i].ns), t ? units[i].name : "s");
}

int lp_url_number(const lp_url_option *option, uint64_t min, uint64_t max, uint64_t *out)
{
    uint64_t n;
    size_t len = digits(option, &n);
    if (!len || len != option->value_len)
        return bad(LAPSE_EURL, option, "a whole number");
    char wanted[64];
    snprintf(wanted, sizeof wanted, "%llu to %llu", (unsigned long long)min,
             (unsigned long long)max);
    if (n < min || n > max)
        return bad(LAPSE_ERANGE, option, wanted);
    *out = n;
    return LAPSE_OK;
}

int lp_url_duration(const lp_url_option *option, lapse_ns min, lapse_ns max, lapse_ns *out)
{
    uint64_t n;
    size_t len = digits(option, &n);
    for (size_t i = 0; len && i < UNITS; i++) {
        if (!is(option->value + len, option->value_len - len, units[i].name))
            continue;
        lapse_ns value;
        char wanted[64];
        char least[24], most[24];
        write_duration(least, sizeof least, min);
        write_duration(most, sizeof most, max);
        snprintf(wanted, sizeof wanted, "%s to %s", least, most);
        if (__builtin_mul_overflow(n, units[i].ns, &value) || value < min || value > max)
            return bad(LAPSE_ERANGE, option, wanted);
        *out = value;
        return LAPSE_OK;
    }
    return bad(LAPSE_EURL, option, "a number with a unit, as 500us, 10ms, 2s, 30m");
}

/* -- What every store has -- */

static int read_overflow(const lp_url_option *option, lp_store_config *config)
{
    if (lp_url_value_is(option, "refuse"))
        config->overflow = LAPSE_REFUSE;
    else if (lp_url_value_is(option, "dead_letter_oldest"))
        config->overflow = LAPSE_DEAD_LETTER_OLDEST;
    else
        return lp_url_refuse(option, "refuse or dead_letter_oldest");
    return LAPSE_OK;
}

int lp_url_common(const lp_url_option *option, lp_store_config *config)
{
    if (lp_url_is(option, "max_pending"))
        return lp_url_number(option, 0, UINT64_MAX, &config->max_pending);
    if (lp_url_is(option, "max_dead"))
        return lp_url_number(option, 0, UINT64_MAX, &config->max_dead);
    if (lp_url_is(option, "keep"))
        return lp_url_duration(option, 0, LAPSE_DELAY_MAX, &config->keep);
    if (lp_url_is(option, "lease"))
        return lp_url_duration(option, 0, LAPSE_DELAY_MAX, &config->lease);
    if (lp_url_is(option, "stuck_after"))
        return lp_url_duration(option, 0, LAPSE_DELAY_MAX, &config->stuck_after);
    if (lp_url_is(option, "overflow"))
        return read_overflow(option, config);
    return 1;
}

int lp_url_read_options(lp_store_config *config, lp_url_reader own, void *arg)
{
    const char *p = lp_url_query(config->url);
    lp_url_option option;
    while (lp_url_next(&p, &option)) {
        bool empty = option.name_len == 0 && option.value_len == 0;
        int code = empty ? LAPSE_OK : lp_url_common(&option, config);
        if (code > 0)
            code = own(&option, arg);
        if (code < 0)
            return code;
    }
    return LAPSE_OK;
}

int lp_url_unknown(const lp_url_option *option, const char *scheme, const char *known)
{
    return lp_fail(LAPSE_EURL, "%s: has no option %s: use %s", scheme,
                   lp_text_quote(option->name, shown(option->name_len)), known);
}

bool lp_url_has(const char *url, const char *name)
{
    const char *p = lp_url_query(url);
    lp_url_option option;
    while (lp_url_next(&p, &option))
        if (lp_url_is(&option, name))
            return true;
    return false;
}

void lp_url_fill_in(lp_store_config *config)
{
    if (config->max_dead == 0)
        config->max_dead = 10000;
    if (config->lease == 0)
        config->lease = LAPSE_SECONDS(30);
}

/* -- The place -- */

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* The bytes that %-encoded text stands for, into *out: how many, or -1. */
static int decode(const char *text, size_t len, char *out)
{
    int n = 0;
    for (size_t i = 0; i < len; i++) {
        if (text[i] != '%') {
            out[n++] = text[i];
            continue;
        }
        int high = i + 2 < len ? hex_digit(text[i + 1]) : -1;
        int low = high < 0 ? -1 : hex_digit(text[i + 2]);
        if (low < 0 || high * 16 + low == 0)
            return -1;
        out[n++] = (char)(high * 16 + low);
        i += 2;
    }
    return n;
}

/* `what` names the part; its value is not shown, since it may be a password. */
static int take_part(const char *text, size_t len, const char *what, char **out)
{
    char *copy = malloc(len + 1);
    if (!copy)
        return lp_fail_memory();
    int n = decode(text, len, copy);
    if (n < 0) {
        free(copy);
        return lp_fail(LAPSE_EURL,
                       "the %s in the store URL has a '%%' that is not followed by two "
                       "hexadecimal digits, or %%00: write '%%' itself as %%25",
                       what);
    }
    copy[n] = '\0';
    *out = copy;
    return LAPSE_OK;
}

int lp_url_decoded(const lp_url_option *option, const char *name, char **out)
{
    free(*out);
    *out = NULL;
    return take_part(option->value, option->value_len, name, out);
}

/* What stands there is not shown: in a URL that is written wrongly it may be of a password. */
static int bad_port(void)
{
    return lp_fail(LAPSE_EURL, "the port in the store URL is not a number from 1 to 65535: use "
                               "host:port, and write ':' in a user's name as %%3A");
}

static int read_port(const char *text, size_t len, unsigned *out)
{
    unsigned n = 0;
    for (size_t i = 0; i < len; i++) {
        if (text[i] < '0' || text[i] > '9' || n > 65535)
            return bad_port();
        n = 10 * n + (unsigned)(text[i] - '0');
    }
    *out = n;
    return n > 65535 || (len && n == 0) ? bad_port() : LAPSE_OK;
}

static int read_user(const char *text, size_t len, lp_url_place *out)
{
    const char *colon = memchr(text, ':', len);
    size_t user = colon ? (size_t)(colon - text) : len;
    int code = user ? take_part(text, user, "user", &out->user) : LAPSE_OK;
    if (code < 0 || !colon)
        return code;
    return take_part(colon + 1, len - user - 1, "password", &out->password);
}

static int read_host(const char *text, size_t len, lp_url_place *out)
{
    const char *end = *text == '[' ? memchr(text, ']', len) : NULL;
    if (len && *text == '[' && !end)
        return lp_fail(LAPSE_EURL, "the host in the store URL begins with '[' and has no ']'");
    const char *after = end ? end + 1 : memchr(text, ':', len);
    after = after ? after : text + len;
    const char *from = end ? text + 1 : text;
    size_t host = (size_t)((end ? end : after) - from), left = (size_t)(text + len - after);
    if (left && *after != ':')
        return bad_port();
    int code = host ? take_part(from, host, "host", &out->host) : LAPSE_OK;
    return code < 0 || !left ? code : read_port(after + 1, left - 1, &out->port);
}

/* The last '@' before the path: one in a password may stand as it is. */
static const char *last_at(const char *text, size_t len)
{
    while (len && text[len - 1] != '@')
        len--;
    return len ? text + len - 1 : NULL;
}

/* What follows "scheme://", up to its options, and of it what comes before the path. What is
 * behind an '@' there may be of a password with a '/' or '?'. */
static int find_place(const char *url, const char **out, size_t *all, size_t *len)
{
    const char *at = strchr(url, ':');
    if (!at || strncmp(at, "://", 3) != 0)
        return lp_fail(LAPSE_EURL, "the store URL has no // behind its scheme: use for instance "
                                   "redis://localhost:6379/0");
    *out = at += 3;
    *all = strcspn(at, "?");
    *len = strcspn(at, "/?");
    if (strchr(at + *len, '@'))
        return lp_fail(LAPSE_EURL, "the store URL has an '@' behind its host: in a password write "
                                   "'/' as %%2F and '?' as %%3F, elsewhere '@' as %%40");
    return LAPSE_OK;
}

static int check_hosts(const char *hosts, size_t len)
{
    int code = LAPSE_OK;
    for (size_t at = 0; code == LAPSE_OK && at <= len;) {
        const char *comma = memchr(hosts + at, ',', len - at);
        size_t one = comma ? (size_t)(comma - hosts) - at : len - at;
        lp_url_place place = {.user = NULL};
        code = read_host(hosts + at, one, &place);
        lp_url_free_place(&place);
        at += one + 1;
    }
    return code;
}

int lp_url_check_place(const char *url)
{
    const char *at = url;
    size_t all = 0, len = 0;
    int code = find_place(url, &at, &all, &len);
    if (code < 0)
        return code;
    const char *host = last_at(at, len);
    if (host && memchr(at, '@', (size_t)(host - at)))
        return lp_fail(LAPSE_EURL, "the store URL has more than one '@' before its path: write "
                                   "'@' in a user's name or a password as %%40");
    host = host ? host + 1 : at;
    return check_hosts(host, (size_t)(at + len - host));
}

static int read_place(const char *url, lp_url_place *out)
{
    const char *at = url;
    size_t all = 0, len = 0;
    int found = find_place(url, &at, &all, &len);
    if (found < 0)
        return found;
    const char *host = last_at(at, len);
    int code = host ? read_user(at, (size_t)(host - at), out) : LAPSE_OK;
    host = host ? host + 1 : at;
    if (code == LAPSE_OK)
        code = read_host(host, (size_t)(at + len - host), out);
    if (code == LAPSE_OK && len < all)
        code = take_part(at + len + 1, all - len - 1, "path", &out->path);
    return code;
}

int lp_url_read_place(const char *url, lp_url_place *out)
{
    *out = (lp_url_place){.user = NULL};
    int code = read_place(url, out);
    if (code < 0)
        lp_url_free_place(out);
    return code;
}

void lp_url_free_place(lp_url_place *place)
{
    free(place->user);
    if (place->password) /* It does not stay in memory that others get. */
        explicit_bzero(place->password, strlen(place->password));
    free(place->password);
    free(place->host);
    free(place->path);
    *place = (lp_url_place){.user = NULL};
}
