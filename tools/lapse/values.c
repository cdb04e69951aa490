/* values.c - texts to values and back: durations, instants, numbers, words, URLs.
 *
 * Pure functions. A parser answers why a text is wrong, as the end of a sentence that begins
 * with the text, or NULL. Durations are rounded up: nothing is early. */
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tool.h"

/* -- Durations --------------------------------------------------------------------- */

static const struct {
    const char *name;
    lapse_ns ns;
} units[] = {
    {"d", LAPSE_DAYS(1)},
    {"h", LAPSE_HOURS(1)},
    {"m", LAPSE_MINUTES(1)},
    {"s", LAPSE_SECONDS(1)},
    {"ms", LAPSE_MS(1)},
    {"us", LAPSE_US(1)},
    {"ns", 1},
};
enum { UNITS = sizeof units / sizeof *units };

static const char too_long[] = "is more than 100 years";

/* The unit that `text` names; nothing: seconds. 0 when it names none. */
static lapse_ns find_unit(const char *text)
{
    if (*text == '\0')
        return LAPSE_SECONDS(1);
    for (size_t i = 0; i < UNITS; i++)
        if (strcmp(text, units[i].name) == 0)
            return units[i].ns;
    return 0;
}

/* Digits after the point, each worth a tenth of the one before. At nine of them every unit from
 * the second up is whole nanoseconds still; below one nanosecond they round up. */
static lapse_ns fraction(const char *digits, size_t count, lapse_ns unit)
{
    lapse_ns sum = 0;
    bool partial = false;
    for (size_t i = 0; i < count; i++) {
        lapse_ns digit = digits[i] - '0';
        if (unit > 1) {
            unit /= 10;
            sum += digit * unit;
        } else {
            partial |= digit != 0;
        }
    }
    return sum + partial;
}

const char *cli_parse_duration(const char *text, lapse_ns *out)
{
    size_t whole = strspn(text, "0123456789"), tenths = 0;
    const char *rest = text + whole;
    if (whole > 0 && *rest == '.') {
        tenths = strspn(rest + 1, "0123456789");
        rest += 1 + tenths;
    }
    lapse_ns unit = find_unit(rest);
    if (whole == 0 || unit == 0 || (rest[-1] == '.'))
        return "is no duration: a number with one of ns us ms s m h d, as 30m or 1.5s";
    if (tenths > 9)
        return "has more than 9 digits after the point";
    errno = 0;
    long long value = strtoll(text, NULL, 10);
    if (errno != 0 || value > LAPSE_DELAY_MAX / unit)
        return too_long;
    lapse_ns ns = value * unit + fraction(text + whole + 1, tenths, unit);
    if (ns > LAPSE_DELAY_MAX)
        return too_long;
    *out = ns;
    return NULL;
}

const char *cli_span(lapse_ns ns, cli_span_text out)
{
    size_t i = 0;
    while (i + 1 < UNITS && ns < units[i].ns)
        i++;
    long long whole = ns / units[i].ns, rest = ns % units[i].ns;
    if (ns == 0)
        snprintf(out, sizeof(cli_span_text), "0s");
    else if (units[i].ns <= LAPSE_SECONDS(1) && rest * 10 / units[i].ns > 0)
        snprintf(out, sizeof(cli_span_text), "%lld.%lld%s", whole, rest * 10 / units[i].ns,
                 units[i].name);
    else if (units[i].ns > LAPSE_SECONDS(1) && rest / units[i + 1].ns > 0)
        snprintf(out, sizeof(cli_span_text), "%lld%s%lld%s", whole, units[i].name,
                 rest / units[i + 1].ns, units[i + 1].name);
    else
        snprintf(out, sizeof(cli_span_text), "%lld%s", whole, units[i].name);
    return out;
}

/* -- Instants ---------------------------------------------------------------------- */

static const char no_instant[] =
    "is no instant: 2030-01-31T12:00:00Z, with +08:00 for another zone than UTC, or @ and the "
    "seconds since 1970";

/* `count` digits, moving past them; below 0 when they are not there. */
static int digits(const char **text, int count)
{
    int value = 0;
    for (int i = 0; i < count; i++, (*text)++) {
        if (!isdigit((unsigned char)**text))
            return -1;
        value = value * 10 + (**text - '0');
    }
    return value;
}

static bool skip(const char **text, char c)
{
    if (**text != c)
        return false;
    (*text)++;
    return true;
}

/* "2030-01-31T12:00[:00]": false unless it is a date and time that exist. */
static bool parse_civil(const char **text, struct tm *tm)
{
    tm->tm_year = digits(text, 4) - 1900;
    bool shape = skip(text, '-');
    tm->tm_mon = digits(text, 2) - 1;
    shape = shape && skip(text, '-');
    tm->tm_mday = digits(text, 2);
    shape = shape && (skip(text, 'T') || skip(text, 't') || skip(text, ' '));
    tm->tm_hour = digits(text, 2);
    shape = shape && skip(text, ':');
    tm->tm_min = digits(text, 2);
    tm->tm_sec = shape && skip(text, ':') ? digits(text, 2) : 0;
    return shape && tm->tm_year >= 0 && tm->tm_mon >= 0 && tm->tm_mon < 12 && tm->tm_mday >= 1 &&
           tm->tm_hour >= 0 && tm->tm_hour < 24 && tm->tm_min >= 0 && tm->tm_min < 60 &&
           tm->tm_sec >= 0 && tm->tm_sec < 60;
}

/* Seconds east of UTC; false when no zone is named: which one is meant is not guessed. */
static bool parse_zone(const char **text, long *east)
{
    *east = 0;
    if (skip(text, 'Z') || skip(text, 'z'))
        return true;
    int sign = **text == '-' ? -1 : 1;
    if (!skip(text, '+') && !skip(text, '-'))
        return false;
    int hours = digits(text, 2);
    skip(text, ':');
    int minutes = digits(text, 2);
    *east = sign * (hours * 3600L + minutes * 60L);
    return hours >= 0 && hours < 24 && minutes >= 0 && minutes < 60;
}

/* ".5": up to nine digits; false when there are more or none. */
static bool parse_fraction(const char **text, lapse_ns *out)
{
    *out = 0;
    if (!skip(text, '.'))
        return true;
    size_t count = strspn(*text, "0123456789");
    *out = fraction(*text, count, LAPSE_SECONDS(1));
    *text += count;
    return count >= 1 && count <= 9;
}

/* Seconds and a fraction as one instant, above 0: what is before 1970 is due at once. */
static const char *instant_of(long long seconds, lapse_ns part, lapse_ns *out)
{
    if (seconds > INT64_MAX / LAPSE_SECONDS(1) - 1)
        return "is too far in the future";
    lapse_ns ns = seconds < 0 ? 0 : seconds * LAPSE_SECONDS(1) + part;
    *out = ns > 0 ? ns : 1;
    return NULL;
}

static const char *parse_epoch(const char *text, lapse_ns *out)
{
    lapse_ns part;
    size_t whole = strspn(text, "0123456789");
    const char *rest = text + whole;
    errno = 0;
    long long seconds = strtoll(text, NULL, 10);
    if (whole == 0 || !parse_fraction(&rest, &part) || *rest != '\0')
        return no_instant;
    return instant_of(errno != 0 ? INT64_MAX : seconds, part, out);
}

const char *cli_parse_instant(const char *text, lapse_ns *out)
{
    struct tm tm = {0};
    lapse_ns part;
    long east;
    if (*text == '@')
        return parse_epoch(text + 1, out);
    if (!parse_civil(&text, &tm) || !parse_fraction(&text, &part))
        return no_instant;
    if (!parse_zone(&text, &east))
        return "names no time zone: end it with Z for UTC, or with +08:00";
    int day = tm.tm_mday;
    long long seconds = timegm(&tm);
    if (*text != '\0' || tm.tm_mday != day)
        return no_instant;
    return instant_of(seconds - east, part, out);
}

const char *cli_instant(lapse_ns utc, bool exact, cli_instant_text out)
{
    time_t seconds = utc / LAPSE_SECONDS(1);
    lapse_ns rest = utc % LAPSE_SECONDS(1);
    if (rest < 0) {
        rest += LAPSE_SECONDS(1);
        seconds -= 1;
    }
    struct tm tm;
    gmtime_r(&seconds, &tm);
    size_t n = strftime(out, sizeof(cli_instant_text),
                        exact ? "%Y-%m-%dT%H:%M:%S" : "%Y-%m-%d %H:%M:%S", &tm);
    if (exact)
        snprintf(out + n, sizeof(cli_instant_text) - n, ".%09lldZ", (long long)rest);
    else
        snprintf(out + n, sizeof(cli_instant_text) - n, ".%03lldZ", (long long)rest / 1000000);
    return out;
}

/* -- Numbers and bytes ------------------------------------------------------------- */

const char *cli_parse_number(const char *text, int64_t least, int64_t *out)
{
    size_t len = strspn(text, "0123456789");
    errno = 0;
    long long value = strtoll(text, NULL, 10);
    if (len == 0 || text[len] != '\0' || errno != 0)
        return "is no number";
    if (value < least)
        return "is too small";
    *out = value;
    return NULL;
}

static int nibble(char c)
{
    const char *place = c != '\0' ? strchr("0123456789abcdef", tolower((unsigned char)c)) : NULL;
    return place != NULL ? (int)(place - "0123456789abcdef") : -1;
}

const char *cli_parse_hex(const char *text, char out[LAPSE_ID_MAX + 1])
{
    size_t len = strlen(text) / 2;
    if (len == 0 || len > LAPSE_ID_MAX || strlen(text) % 2 != 0)
        return "is no id in hexadecimal digits: 1 to 255 bytes, two digits each";
    for (size_t i = 0; i < len; i++) {
        int high = nibble(text[2 * i]), low = nibble(text[2 * i + 1]);
        if (high < 0 || low < 0 || high + low == 0)
            return "is no id in hexadecimal digits: each is 0-9 or a-f, and no byte is 00";
        out[i] = (char)(high << 4 | low);
    }
    out[len] = '\0';
    return NULL;
}

/* Valid until the next call; the tool makes one at a time. */
static const char *unreadable(void)
{
    static char why[128];
    snprintf(why, sizeof why, "cannot be read: %s", strerror(errno));
    return why;
}

/* All that can be read, at most one byte more than a payload may have. */
static const char *read_all(FILE *file, char **out, size_t *len)
{
    size_t room = 4096, have = 0;
    char *bytes = malloc(room);
    while (bytes != NULL) {
        have += fread(bytes + have, 1, room - have, file);
        if (have < room || have > LAPSE_PAYLOAD_MAX)
            break;
        room *= 2;
        char *grown = realloc(bytes, room);
        if (grown == NULL)
            free(bytes);
        bytes = grown;
    }
    *out = bytes;
    *len = have;
    if (bytes == NULL)
        return "is too large for this machine's memory";
    if (ferror(file))
        return unreadable();
    return have > LAPSE_PAYLOAD_MAX ? "is larger than a payload may be (16 MiB)" : NULL;
}

const char *cli_read_file(const char *path, char **out, size_t *len)
{
    if (strcmp(path, "-") == 0)
        return read_all(stdin, out, len);
    FILE *file = fopen(path, "rb");
    if (file == NULL)
        return unreadable();
    const char *wrong = read_all(file, out, len);
    fclose(file);
    return wrong;
}

/* -- Words ------------------------------------------------------------------------- */

static const struct {
    lapse_state state;
    const char *word;
} states[] = {
    {LAPSE_STATE_PENDING, "pending"},
    {LAPSE_STATE_RUNNING, "running"},
    {LAPSE_STATE_DONE, "done"},
    {LAPSE_STATE_DEAD, "dead"},
};

static const char *const reasons[] = {"none", "failed", "rejected", "expired", "maxlen", "lost"};

const char *cli_state_word(lapse_state state)
{
    for (size_t i = 0; i < sizeof states / sizeof *states; i++)
        if (states[i].state == state)
            return states[i].word;
    return "unknown";
}

const char *cli_reason_word(lapse_reason reason)
{
    return (size_t)reason < sizeof reasons / sizeof *reasons ? reasons[reason] : "unknown";
}

const char *cli_fate_word(int fate)
{
    switch ((lapse_fate)fate) {
    case LAPSE_FATE_UNKNOWN:
        return "unknown";
    case LAPSE_FATE_CANCELLED:
        return "cancelled";
    case LAPSE_FATE_RESCHEDULED:
        return "rescheduled";
    case LAPSE_FATE_RUNNING:
        return "running";
    case LAPSE_FATE_DONE:
        return "done";
    }
    return "unknown";
}

/* The state named by these bytes; 0: none. */
static unsigned state_bit(const char *word, size_t len)
{
    for (size_t i = 0; i < sizeof states / sizeof *states; i++)
        if (strlen(states[i].word) == len && memcmp(states[i].word, word, len) == 0)
            return states[i].state;
    return 0;
}

const char *cli_parse_states(const char *text, unsigned *out)
{
    unsigned found = 0;
    while (true) {
        size_t len = strcspn(text, ",");
        unsigned bit = state_bit(text, len);
        if (bit == 0)
            return "names no state: pending, running, done, dead, or some of these with commas";
        found |= bit;
        if (text[len] == '\0')
            break;
        text += len + 1;
    }
    *out = found;
    return NULL;
}

const char *cli_parse_reason(const char *text, int *out)
{
    for (size_t i = 1; i < sizeof reasons / sizeof *reasons; i++) {
        if (strcmp(text, reasons[i]) == 0) {
            *out = (int)i;
            return NULL;
        }
    }
    return "names no reason: failed, rejected, expired, maxlen or lost";
}

/* -- URLs -------------------------------------------------------------------------- */

/* Replace [from, to) of a string in place by "***"; the string has room for it. */
static void hide(char *from, char *to)
{
    memmove(from + 3, to, strlen(to) + 1);
    memset(from, '*', 3);
}

/* The end of a parameter whose name may tell a secret: all but the well known harmless ones. */
static bool harmless(const char *name, size_t len)
{
    static const char *const known[] = {
        "engine",     "tick",        "slots",  "max_pending", "overflow", "max_dead", "keep",
        "lease",      "stuck_after", "poll",   "busy",        "prefix",   "db",       "wait",
        "wait_limit", "timeout",     "events", "eviction",    "schema",   "migrate",
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strlen(known[i]) == len && memcmp(known[i], name, len) == 0)
            return true;
    return false;
}

static void hide_parameters(char *at)
{
    while (*at != '\0') {
        size_t name = strcspn(at, "=&");
        char *end = at + strcspn(at, "&");
        if (at[name] == '=' && !harmless(at, name)) {
            size_t rest = strlen(end);
            hide(at + name + 1, end);
            end = at + strlen(at) - rest;
        }
        at = *end == '&' ? end + 1 : end;
    }
}

/* Where the user and password end: at the last "@", for a password may hold any sign. */
static char *hide_password(char *authority)
{
    char *at = *authority != '/' ? strrchr(authority, '@') : NULL;
    if (at == NULL)
        return authority;
    char *colon = memchr(authority, ':', (size_t)(at - authority));
    if (colon == NULL)
        return at;
    hide(colon + 1, at);
    return colon + 4;
}

char *cli_url_shown(const char *url)
{
    size_t signs = 0;
    for (const char *p = url; *p != '\0'; p++)
        signs += *p == ':' || *p == '=';
    char *shown = malloc(strlen(url) + 3 * signs + 4);
    if (shown == NULL)
        return NULL;
    strcpy(shown, url); /* NOLINT: it is as long */
    char *rest = strstr(shown, "://");
    rest = rest != NULL ? hide_password(rest + 3) : shown;
    char *query = strchr(rest, '?');
    if (query != NULL)
        hide_parameters(query + 1);
    return shown;
}

bool cli_file_missing(const char *url)
{
    static const char scheme[] = "sqlite:///";
    if (url == NULL || strncmp(url, scheme, strlen(scheme)) != 0)
        return false;
    const char *path = url + strlen(scheme);
    char *name = strndup(path, strcspn(path, "?"));
    bool missing = name != NULL && *name != '\0' && access(name, F_OK) != 0 && errno == ENOENT;
    free(name);
    return missing;
}
