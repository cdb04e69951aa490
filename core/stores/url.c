/* url.c - the parts of a store's URL. */
#include "stores/url.h"

#include <stdio.h>
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

/* A duration in the largest unit that has no remainder. */
static void write_duration(char *out, size_t size, lapse_ns t)
{
    static const struct {
        const char *unit;
        lapse_ns ns;
    } units[] = {{"d", LAPSE_DAYS(1)},
                 {"h", LAPSE_HOURS(1)},
                 {"m", LAPSE_MINUTES(1)},
                 {"s", LAPSE_SECONDS(1)},
                 {"ms", LAPSE_MS(1)},
                 {"us", LAPSE_US(1)},
                 {"ns", 1}};
    size_t i = 0;
    while (t % units[i].ns)
        i++;
    snprintf(out, size, "%lld%s", (long long)(t / units[i].ns), t ? units[i].unit : "s");
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
    static const struct {
        const char *unit;
        lapse_ns ns;
    } units[] = {{"ns", 1},
                 {"us", LAPSE_US(1)},
                 {"ms", LAPSE_MS(1)},
                 {"s", LAPSE_SECONDS(1)},
                 {"m", LAPSE_MINUTES(1)},
                 {"h", LAPSE_HOURS(1)},
                 {"d", LAPSE_DAYS(1)}};
    uint64_t n;
    size_t len = digits(option, &n);
    for (size_t i = 0; len && i < sizeof units / sizeof *units; i++) {
        if (!is(option->value + len, option->value_len - len, units[i].unit))
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
