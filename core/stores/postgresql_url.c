/* postgresql_url.c - postgresql://user@host/database?name=value: our options, and libpq's.
 *
 * All that is not ours goes to libpq as it stands. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "stores/postgresql.h"
#include "stores/url.h"

static int read_migrate(const lp_url_option *option, settings *out)
{
    if (!lp_url_value_is(option, "yes") && !lp_url_value_is(option, "no"))
        return lp_url_refuse(option, "yes or no");
    out->may_migrate = lp_url_value_is(option, "yes");
    return LAPSE_OK;
}

/* Plain, so that it is written between quotes as it is. */
static int read_schema(const lp_url_option *option, settings *out)
{
    enum { NAME_MAX_BYTES = 63 };
    bool plain = option->value_len > 0 && option->value_len <= NAME_MAX_BYTES;
    for (size_t i = 0; plain && i < option->value_len; i++) {
        char c = option->value[i];
        plain =
            c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    }
    if (!plain)
        return lp_url_refuse(option, "1 to 63 letters, digits and underscores");
    free(out->schema);
    out->schema = strndup(option->value, option->value_len);
    return out->schema ? LAPSE_OK : lp_fail_memory();
}

/* Whether libpq has such an option. */
static bool is_libpq(const lp_url_option *option)
{
    PQconninfoOption *all = PQconndefaults();
    bool found = !all || lp_url_is(option, "ssl"); /* As JDBC has it; libpq takes it. */
    for (const PQconninfoOption *o = all; o && o->keyword && !found; o++)
        found = lp_url_is(option, o->keyword);
    PQconninfoFree(all);
    return found;
}

/* Of a password with a '?' in it the rest looks like an option. */
static int refuse_option(const lp_url_option *option)
{
    bool word = option->name_len > 0 && option->name_len <= 40 && option->value_len < 200 &&
                !memchr(option->name, '@', option->name_len) &&
                !memchr(option->value, '@', option->value_len);
    return lp_fail(
        LAPSE_EURL,
        "postgresql: has no option %s: use max_pending, overflow, keep, max_dead, lease, "
        "stuck_after, poll, schema, migrate, or one of libpq's",
        word ? lp_text_quote(option->name, option->name_len) : "like one in this URL");
}

/* It stands in the URL as it did. There is room for all of them. */
static int leave_to_libpq(const lp_url_option *option, settings *out)
{
    size_t len = (size_t)(option->value + option->value_len - option->name);
    char *end = out->conninfo + strlen(out->conninfo);
    *end++ = strchr(out->conninfo, '?') ? '&' : '?';
    memcpy(end, option->name, len);
    end[len] = '\0';
    return LAPSE_OK;
}

static int read_option(const lp_url_option *option, void *arg)
{
    settings *out = arg;
    if (lp_url_is(option, "poll"))
        return lp_url_duration(option, LAPSE_MS(1), LAPSE_HOURS(1), &out->poll);
    if (lp_url_is(option, "schema"))
        return read_schema(option, out);
    if (lp_url_is(option, "migrate"))
        return read_migrate(option, out);
    return is_libpq(option) ? leave_to_libpq(option, out) : refuse_option(option);
}

/* What libpq says of a URL may quote it, with its password. */
static int check_conninfo(const char *conninfo)
{
    char *message = NULL;
    PQconninfoOption *parsed = PQconninfoParse(conninfo, &message);
    bool secret = strchr(conninfo, '@') || strstr(conninfo, "password");
    char words[300] = "";
    if (!parsed && message && !secret)
        lp_postgresql_clip(words, sizeof words, message);
    PQconninfoFree(parsed);
    PQfreemem(message);
    if (parsed)
        return LAPSE_OK;
    return lp_fail(LAPSE_EURL,
                   "the postgresql URL cannot be read%s%s: use "
                   "postgresql://user:password@host:port/database?name=value, with libpq's options "
                   "and max_pending, overflow, keep, max_dead, lease, stuck_after, poll, schema, "
                   "migrate",
                   *words ? ": " : "", words);
}

int lp_postgresql_read_url(lp_store_config *config, settings *out)
{
    *out = (settings){.poll = LAPSE_MS(500), .may_migrate = true};
    out->keep_given = config->keep > 0 || lp_url_has(config->url, "keep");
    out->conninfo = strdup(config->url);
    if (!out->conninfo)
        return lp_fail_memory();
    out->conninfo[strcspn(out->conninfo, "?")] = '\0';
    if (strncmp(config->url + strcspn(config->url, ":"), "://", 3) != 0)
        return lp_fail(LAPSE_EURL, "a postgresql URL begins with postgresql://");
    int code = lp_url_check_place(config->url);
    if (code == LAPSE_OK)
        code = lp_url_read_options(config, read_option, out);
    if (code == LAPSE_OK)
        code = check_conninfo(out->conninfo);
    if (code < 0)
        return code;
    lp_url_fill_in(config);
    return LAPSE_OK;
}

void lp_postgresql_free_settings(settings *s)
{
    free(s->conninfo);
    free(s->schema);
    s->conninfo = s->schema = NULL;
}
