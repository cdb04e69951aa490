/* fuzz_open.c - what lapse_open makes of options and URLs.
 *
 * The first bytes are the options, the rest is the URL. What it accepts is compared with a
 * reading of the URL that is made here, after lapse.h; a scheduler that opens behaves as
 * that says, and a refusal explains itself in printable text. */
#include "fuzz.h"
#include "stores/url.h"

/* What the URL is expected to mean. */
typedef struct meaning {
    bool valid;
    bool heap;
    lapse_ns tick;
    uint64_t max_pending, max_dead;
    bool dead_letter_oldest;
    lapse_ns keep, lease, stuck_after;
} meaning;

static bool starts(const char *text, const char *with)
{
    return strncmp(text, with, strlen(with)) == 0;
}

/* A whole number up to `max`, then `rest`. */
static bool read_number(const char *text, uint64_t max, uint64_t *out, const char **rest)
{
    uint64_t n = 0;
    const char *p = text;
    for (; *p >= '0' && *p <= '9'; p++) {
        unsigned digit = (unsigned)(*p - '0');
        if (n > (UINT64_MAX - digit) / 10)
            return false;
        n = n * 10 + digit;
    }
    *out = n;
    *rest = p;
    return p != text && n <= max;
}

static bool read_duration(const char *text, lapse_ns min, lapse_ns max, lapse_ns *out)
{
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
    uint64_t n;
    const char *unit;
    if (!read_number(text, UINT64_MAX, &n, &unit))
        return false;
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        if (strcmp(unit, units[i].name) != 0)
            continue;
        if (n > (uint64_t)(max / units[i].ns) || (lapse_ns)n * units[i].ns < min)
            return false;
        *out = (lapse_ns)n * units[i].ns;
        return true;
    }
    return false;
}

static bool read_option(char *name, meaning *m)
{
    char *value = strchr(name, '=');
    if (!*name || strcmp(name, "=") == 0)
        return true; /* "a=1&&b=2" is as good as "a=1&b=2". */
    if (!value)
        return false;
    *value++ = '\0';
    const char *rest = value;
    uint64_t n = 0;
    if (strcmp(name, "engine") == 0) {
        m->heap = strcmp(value, "heap") == 0;
        return m->heap || strcmp(value, "wheel") == 0;
    }
    if (strcmp(name, "overflow") == 0) {
        m->dead_letter_oldest = strcmp(value, "dead_letter_oldest") == 0;
        return m->dead_letter_oldest || strcmp(value, "refuse") == 0;
    }
    if (strcmp(name, "tick") == 0)
        return read_duration(value, LAPSE_US(1), LAPSE_HOURS(1), &m->tick);
    if (strcmp(name, "keep") == 0)
        return read_duration(value, 0, LAPSE_DELAY_MAX, &m->keep);
    if (strcmp(name, "lease") == 0)
        return read_duration(value, 0, LAPSE_DELAY_MAX, &m->lease);
    if (strcmp(name, "stuck_after") == 0)
        return read_duration(value, 0, LAPSE_DELAY_MAX, &m->stuck_after);
    if (strcmp(name, "slots") == 0)
        return read_number(value, 4096, &n, &rest) && n > 0 && !*rest;
    if (strcmp(name, "max_pending") == 0)
        return read_number(value, UINT64_MAX, &m->max_pending, &rest) && !*rest;
    if (strcmp(name, "max_dead") == 0)
        return read_number(value, UINT64_MAX, &m->max_dead, &rest) && !*rest;
    return false;
}

static bool is_on_a_server(const char *url)
{
    static const char *const schemes[] = {
        "postgresql:", "postgres:", "redis:", "rediss:", "amqp:", "amqps:"};
    for (size_t i = 0; i < sizeof schemes / sizeof *schemes; i++)
        if (starts(url, schemes[i]))
            return true;
    return false;
}

static void read_url(char *url, meaning *m)
{
    if (!starts(url, "memory:"))
        return;
    char *at = url + strlen("memory:");
    at += strspn(at, "/");
    m->valid = !*at || *at == '?';
    char *query = *at ? at + 1 : at;
    for (char *option; m->valid && (option = strsep(&query, "&"));)
        m->valid = read_option(option, m);
}

/* UTF-8 without control characters, and not empty. */
static void check_text(const char *text)
{
    must(*text);
    for (const uint8_t *p = (const uint8_t *)text; *p;) {
        unsigned more = *p < 0x80 ? 0 : *p < 0xe0 ? 1 : *p < 0xf0 ? 2 : 3;
        must(*p >= 0x20 && *p != 0x7f && (*p < 0x80 || *p >= 0xc2) && *p <= 0xf4);
        for (p++; more; more--, p++)
            must((*p & 0xc0) == 0x80);
    }
}

static lapse_verdict done(const lapse_order *order, void *arg)
{
    (void)order, (void)arg;
    return LAPSE_DONE;
}

/* An order of 1 ns is due at the next tick, or exactly then. */
static void check_engine(lapse *s, const meaning *m, lapse_ns now)
{
    must(lapse_timeout(s) == LAPSE_FOREVER);
    must(lapse_schedule(s, "1", 1, done, NULL) > 0);
    lapse_ns due = m->heap ? now + 1 : (now / m->tick + 1) * m->tick;
    must(lapse_timeout(s) == due - now);
}

/* Orders beyond max_pending are refused, or push out the oldest, of which max_dead stay. */
static void check_limits(lapse *s, const meaning *m)
{
    static const char *const ids[] = {"2", "3", "4", "5", "6"};
    uint64_t pending = 1, dead = 0;
    lapse_stats t;
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) {
        bool full = m->max_pending && pending >= m->max_pending;
        int64_t code = lapse_schedule(s, ids[i], LAPSE_HOURS(2), done, NULL);
        must(full && !m->dead_letter_oldest ? code == LAPSE_EFULL : code > 0);
        pending += !full;
        dead += full && m->dead_letter_oldest && (!m->max_dead || dead < m->max_dead);
        must(lapse_statistics(s, &t) == 0);
        must(t.pending == pending && t.dead == dead);
    }
}

static void check_times(lapse *s, const meaning *m, lapse_clock *clock)
{
    const lapse_order *order;
    lapse_spec spec = {.id = "pulled", .flags = LAPSE_REPLACE};
    must(lapse_purge(s, NULL, LAPSE_ANY) >= 0);
    must(lapse_cancel(s, "6", LAPSE_ANY) >= 0 && lapse_cancel(s, "1", LAPSE_ANY) >= 0);
    if (lapse_put(s, &spec) < 0)
        return;
    lapse_ns wait = lapse_timeout(s);
    must(lapse_clock_advance(clock, wait) == 0 && lapse_poll(s, NULL, &order) == 1);
    int64_t fence = order->fence;
    lapse_ns lease = m->lease ? m->lease : LAPSE_SECONDS(30);
    must(lapse_holds(s, fence) && lapse_clock_advance(clock, lease - 1) == 0);
    must(lapse_holds(s, fence));
    must(lapse_settle(s, fence, LAPSE_DONE, 0, NULL) == 0);
    must(lapse_cancel(s, "pulled", LAPSE_ANY) == (m->keep ? LAPSE_FATE_DONE : LAPSE_FATE_UNKNOWN));
    must(lapse_clock_advance(clock, m->keep) == 0);
    must(lapse_cancel(s, "pulled", LAPSE_ANY) == (m->keep ? LAPSE_FATE_DONE : LAPSE_FATE_UNKNOWN));
    must(lapse_clock_advance(clock, 1) == 0);
    must(lapse_cancel(s, "pulled", LAPSE_ANY) == LAPSE_FATE_UNKNOWN);
}

static bool is_duration(lapse_ns t)
{
    return t >= 0 && t <= LAPSE_DELAY_MAX;
}

static void fill_options(bytes *in, lapse_options *o)
{
    unsigned set = next_byte(in);
    if (set & 1)
        o->keep = next_duration(in);
    if (set & 2)
        o->lease = next_duration(in);
    if (set & 4)
        o->stuck_after = next_duration(in);
    if (set & 8)
        o->max_pending = next_byte(in);
    if (set & 16)
        o->max_dead = next_byte(in);
    if (set & 32)
        o->overflow = (lapse_overflow)below(in, 3);
}

static void check_refusal(int code, bool valid_options, const meaning *m)
{
    if (!valid_options)
        must(code == LAPSE_ERANGE || code == LAPSE_EINVAL);
    else
        must(!m->valid && (code == LAPSE_EURL || code == LAPSE_ERANGE));
    check_text(lapse_error_detail());
}

/* Of a URL that names a server only the place is read: nobody is to be connected to. */
static void read_place(const char *url)
{
    lp_url_place place;
    bool fine = lp_url_check_place(url) == 0;
    if (!fine)
        check_text(lapse_error_detail());
    int code = lp_url_read_place(url, &place);
    if (code == 0) {
        must(place.port <= 65535);
        lp_url_free_place(&place);
    } else {
        must(code == LAPSE_EURL);
        check_text(lapse_error_detail());
    }
}

static void open_url(const char *url, lapse_options *options, const meaning *m)
{
    lapse *s;
    must(lapse_clock_manual(LAPSE_HOURS(1), &options->clock) == 0);
    bool valid_options = is_duration(options->keep) && is_duration(options->lease) &&
                         is_duration(options->stuck_after) &&
                         (unsigned)options->overflow <= LAPSE_DEAD_LETTER_OLDEST;
    int code = lapse_open(url, options, &s);
    if (code < 0) {
        must(!s);
        check_refusal(code, valid_options, m);
    } else {
        must(code == 0 && valid_options && m->valid);
        check_engine(s, m, LAPSE_HOURS(1));
        check_limits(s, m);
        check_times(s, m, options->clock);
        must(lapse_close(s, 0) == 0);
    }
    lapse_clock_free(options->clock);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    bytes in = {data, data + size};
    lapse_options options = {.clock = NULL};
    fill_options(&in, &options);
    size_t len = (size_t)(in.end - in.at);
    char *url = malloc(len + 1), *scratch = malloc(len + 1);
    must(url && scratch);
    memcpy(url, in.at, len);
    url[len] = '\0';
    strcpy(scratch, url);
    meaning m = {.tick = LAPSE_MS(1),
                 .max_pending = options.max_pending,
                 .max_dead = options.max_dead,
                 .dead_letter_oldest = options.overflow == LAPSE_DEAD_LETTER_OLDEST,
                 .keep = options.keep,
                 .lease = options.lease,
                 .stuck_after = options.stuck_after};
    read_url(scratch, &m);
    if (is_on_a_server(url))
        read_place(url);
    else if (!starts(url, "sqlite:")) /* It would make files, wherever chance says. */
        open_url(url, &options, &m);
    free(url);
    free(scratch);
    return 0;
}
