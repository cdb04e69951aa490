/* redis_script.c - the script that does all that happens to orders, in Redis' Lua, put together.
 *
 * It is called with the names of the store's keys, and as arguments: the identity that the store
 * must have ("": any), the time in us when a manual clock gives it ("": the server's), the
 * channel for hints, max_dead, max_pending, whether the oldest dies for room, the lease in us; and
 * then one job or want after the other, a letter and what it needs, as the functions of `ops` read
 * them. It answers {'RESET'}, or {'OK', time, what ended since its lease did, answers, loans, when
 * each want can be served next, dead letters dropped}; loans one behind the other, six words each.
 * Queues go in and out by name.
 *
 * Numbers are doubles: a time in us and a fence are exact until the year 2255. A generation is at
 * least the time in units of 16 us, so that after a fail-over that lost the last ones none is
 * given twice.
 *
 * One record that is damaged is its own order's affair: what is read is looked at first, and what
 * cannot be read is as if it were not there, but for a claim and a list of dead letters, which tell
 * it. No error of the script comes from what stands in a record or a member.
 *
 * The text is in pieces as long as a C literal may be. */
#include <stdlib.h>
#include <string.h>

#include "stores/redis.h"

static const char *const *const files[] = {lp_redis_script_rows, lp_redis_script_jobs,
                                           lp_redis_script_claims};

char *lp_redis_script(bool when_full)
{
    /* Without it a server that is full would let nothing be claimed or settled: never be less full. */
    const char *flags = when_full ? "#!lua flags=allow-oom\n" : "";
    size_t len = strlen(flags) + 1;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        for (const char *const *part = files[i]; *part; part++)
            len += strlen(*part);
    char *script = malloc(len);
    if (!script)
        return NULL;
    char *at = stpcpy(script, flags);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        for (const char *const *part = files[i]; *part; part++)
            at = stpcpy(at, *part);
    return script;
}
