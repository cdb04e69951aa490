/* sqlite_url.c - sqlite:///path?name=value: where the file is, and the options.
 *
 * As SQLAlchemy reads it: three slashes and a path that is relative to the current folder,
 * or a fourth one that begins an absolute path. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "stores/sqlite.h"
#include "stores/url.h"

static const char form[] = "use sqlite:///orders.db or sqlite:////absolute/path/orders.db";

static int read_path(const char *url, char **out)
{
    const char *p = url + strlen("sqlite:");
    size_t slashes = strspn(p, "/"), len = strcspn(p, "?");
    if (slashes < 3 || len <= 3)
        return lp_fail(LAPSE_EURL, "%s names no file: %s", lp_text_quote(url, strcspn(url, "?")),
                       form);
    const char *path = p + 3;
    len -= 3;
    /* SQLite reads names that begin with "file:" or are ":memory:" in ways of its own. */
    const char *before = *path == '/' ? "" : "./";
    size_t first = strlen(before);
    char *copy = malloc(first + len + 1);
    if (!copy)
        return lp_fail_memory();
    memcpy(copy, before, first);
    memcpy(copy + first, path, len);
    copy[first + len] = '\0';
    *out = copy;
    return LAPSE_OK;
}

static int read_option(const lp_url_option *option, void *arg)
{
    settings *out = arg;
    if (lp_url_is(option, "poll"))
        return lp_url_duration(option, LAPSE_MS(1), LAPSE_HOURS(1), &out->poll);
    if (lp_url_is(option, "busy"))
        return lp_url_duration(option, LAPSE_MS(1), LAPSE_HOURS(1), &out->busy);
    return lp_url_unknown(option, "sqlite",
                          "max_pending, overflow, keep, max_dead, lease, stuck_after, poll, busy");
}

int lp_sqlite_read_url(lp_store_config *config, settings *out)
{
    *out = (settings){.poll = LAPSE_MS(500), .busy = LAPSE_SECONDS(5)};
    out->keep_given = config->keep > 0 || lp_url_has(config->url, "keep");
    int code = lp_url_read_options(config, read_option, out);
    if (code == LAPSE_OK)
        code = read_path(config->url, &out->path);
    if (code < 0)
        return code;
    lp_url_fill_in(config);
    return LAPSE_OK;
}
