/* memory_url.c - the options of memory: in its URL. */
#include <string.h>

#include "base/error.h"
#include "stores/memory.h"
#include "stores/url.h"

static int read_engine(const lp_url_option *option, memory *m)
{
    if (lp_url_value_is(option, "wheel"))
        m->timer_config.kind = LP_WHEEL;
    else if (lp_url_value_is(option, "heap"))
        m->timer_config.kind = LP_HEAP;
    else
        return lp_url_refuse(option, "wheel or heap");
    return LAPSE_OK;
}

static int read_slots(const lp_url_option *option, memory *m)
{
    uint64_t n;
    int code = lp_url_number(option, 1, 4096, &n);
    if (code < 0)
        return code;
    m->timer_config.slots = 64;
    while (m->timer_config.slots < n)
        m->timer_config.slots *= 2;
    return LAPSE_OK;
}

static int read_option(const lp_url_option *option, void *arg)
{
    memory *m = arg;
    if (lp_url_is(option, "engine"))
        return read_engine(option, m);
    if (lp_url_is(option, "tick"))
        return lp_url_duration(option, LAPSE_US(1), LAPSE_HOURS(1), &m->timer_config.tick);
    if (lp_url_is(option, "slots"))
        return read_slots(option, m);
    return lp_url_unknown(option, "memory",
                          "engine, tick, slots, max_pending, overflow, keep, max_dead, lease, "
                          "stuck_after");
}

int lp_memory_read_url(memory *m)
{
    const char *p = m->config.url + strlen("memory:");
    p += strspn(p, "/");
    if (*p && *p != '?')
        return lp_fail(LAPSE_EURL, "memory: takes no path: use memory: or memory:?engine=heap");
    return lp_url_read_options(&m->config, read_option, m);
}
