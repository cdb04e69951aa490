/* fast.c - schedule and cancel for LuaJIT's FFI, which calls them from compiled code.
 *
 * Only for schedulers in memory. They see no Lua state: what needs one is left for the caller. That
 * is lua/resty/lapse/fast.lua, which goes the long way round, by the methods, whenever a call is not
 * of the plainest kind: 0 means that nothing was tried.
 *
 * A callback is given by its cell (slots.h). The caller has one kept, the function that it
 * schedules with most: so it stays anchored and is counted only. */
#include "glue.h"

#include <string.h>

static bool serves(const scheduler *s)
{
    return s->lapse && !s->durable;
}

/* -> the generation; 0; or an error. */
static double put(scheduler *s, lapse_spec *spec, double delay)
{
    if (lapse_ns_from_seconds(delay, &spec->delay) < 0)
        return 0;
    int64_t generation = lapse_put(s->lapse, spec);
    if (generation == LAPSE_EID)
        return 0;
    s->unfinished = glue_has_news(s) || s->slots.released;
    return (double)generation;
}

static double fast_schedule(scheduler *s, const char *id, size_t id_len, double delay, void *cell)
{
    if (!serves(s)) /* Nor is there a cell any more. */
        return 0;
    lapse_spec spec = glue_spec(id, id_len);
    spec.fn = glue_call_in_lua;
    spec.arg = cell;
    slots_use(cell);
    double generation = put(s, &spec, delay);
    if (generation <= 0)
        slots_release(cell); /* It stays, as it is kept. */
    return generation;
}

static double fast_put(scheduler *s, const char *id, size_t id_len, double delay, const char *queue,
                       size_t queue_len, const char *payload, size_t payload_len)
{
    if (!serves(s) || queue_len > LAPSE_ID_MAX || memchr(queue, '\0', queue_len) ||
        payload_len > LAPSE_PAYLOAD_MAX)
        return 0;
    lapse_spec spec = glue_spec(id, id_len);
    spec.queue = queue;
    spec.payload = payload;
    spec.payload_len = payload_len;
    return put(s, &spec, delay);
}

/* -> a lapse_fate; or an error, and nothing was tried. */
static int fast_cancel(scheduler *s, const char *id, size_t id_len)
{
    if (!serves(s))
        return LAPSE_ECLOSED;
    if (lapse_check_id(id, id_len) < 0)
        return LAPSE_FATE_UNKNOWN;
    int fate = lapse_cancel(s->lapse, id, LAPSE_ANY);
    s->unfinished = glue_has_news(s) || s->slots.released;
    return fate;
}

/* -- For Lua -- */

/* scheduler -> schedule, put, cancel, and where they say that there is something to finish. */
static int entries(lua_State *L)
{
    double (*schedule)(scheduler *, const char *, size_t, double, void *) = fast_schedule;
    double (*put_order)(scheduler *, const char *, size_t, double, const char *, size_t,
                        const char *, size_t) = fast_put;
    int (*cancel)(scheduler *, const char *, size_t) = fast_cancel;
    scheduler *s = glue_self(L);
    lua_pushlightuserdata(L, (void *)(uintptr_t)schedule);
    lua_pushlightuserdata(L, (void *)(uintptr_t)put_order);
    lua_pushlightuserdata(L, (void *)(uintptr_t)cancel);
    lua_pushlightuserdata(L, &s->unfinished);
    return 4;
}

/* (scheduler, function or nil) Keep this one and no other. -> its cell; or nil. */
static int keep(lua_State *L)
{
    scheduler *s = glue_self(L);
    lua_settop(L, 2);
    if (!s->lapse)
        return 0;
    uint32_t number = lua_isfunction(L, 2) ? slots_anchor(L, &s->slots, 2) : 0;
    if (s->kept)
        slots_drop(L, &s->slots, s->kept);
    s->kept = number;
    if (!number)
        return 0;
    lua_pushlightuserdata(L, slots_arg(&s->slots, number));
    return 1;
}

/* (scheduler, error) What such a call answered, as the results of a method. */
static int failure(lua_State *L)
{
    scheduler *s = glue_self(L);
    return glue_finish(L, s, glue_failure(L, (int64_t)luaL_checknumber(L, 2)));
}

const luaL_Reg glue_fast_methods[] = {
    {"fast", entries},
    {"keep", keep},
    {"failure", failure},
    {NULL, NULL},
};
