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

static int read_overflow(const lp_url_option *option, memory *m)
{
    if (lp_url_value_is(option, "refuse"))
        m->config.overflow = LAPSE_REFUSE;
    else if (lp_url_value_is(option, "dead_letter_oldest"))
        m->config.overflow = LAPSE_DEAD_LETTER_OLDEST;
    else
        return lp_url_refuse(option, "refuse or dead_letter_oldest");
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

static int read_option(const lp_url_option *option, memory *m)
{
    if (lp_url_is(option, "engine"))
        return read_engine(option, m);
    if (lp_url_is(option, "tick"))
        return lp_url_duration(option, LAPSE_US(1), LAPSE_HOURS(1), &m->timer_config.tick);
    if (lp_url_is(option, "slots"))
        return read_slots(option, m);
    if (lp_url_is(option, "max_pending"))
        return lp_url_number(option, 0, UINT64_MAX, &m->config.max_pending);
    if (lp_url_is(option, "max_dead"))
        return lp_url_number(option, 0, UINT64_MAX, &m->config.max_dead);
    if (lp_url_is(option, "keep"))
        return lp_url_duration(option, 0, LAPSE_DELAY_MAX, &m->config.keep);
    if (lp_url_is(option, "lease"))
        return lp_url_duration(option, 0, LAPSE_DELAY_MAX, &m->config.lease);
    if (lp_url_is(option, "stuck_after"))
        return lp_url_duration(option, 0, LAPSE_DELAY_MAX, &m->config.stuck_after);
    if (lp_url_is(option, "overflow"))
        return read_overflow(option, m);
    return lp_fail(LAPSE_EURL,
                   "memory: has no option %s: use engine, tick, slots, max_pending, overflow, "
                   "keep, max_dead, lease, stuck_after",
                   lp_text_quote(option->name, option->name_len < 40 ? option->name_len : 40));
}

int lp_memory_read_url(memory *m)
{
    const char *p = m->config.url + strlen("memory:");
    p += strspn(p, "/");
    if (*p && *p != '?')
        return lp_fail(LAPSE_EURL, "memory: takes no path: use memory: or memory:?engine=heap");
    p = lp_url_query(p);
    lp_url_option option;
    while (lp_url_next(&p, &option)) {
        int code = option.name_len || option.value_len ? read_option(&option, m) : LAPSE_OK;
        if (code < 0)
            return code;
    }
    return LAPSE_OK;
}
