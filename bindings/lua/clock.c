/* clock.c - the manual clock: time that a test invents.
 *
 * Its memory is shared by the Lua object and the schedulers that use it and freed by the
 * last of them, as finalizers run in no promised order. */
#include "glue.h"

#include <stdlib.h>

typedef struct clock_box {
    lapse_clock *clock;
    unsigned users;
} clock_box;

struct clock_box *glue_clock_share(lua_State *L, int index)
{
    if (!glue_is(L, index, UP_CLOCK))
        glue_misuse(L, "the clock is one of lapse.manual_clock, got %s", luaL_typename(L, index));
    clock_box *box = *(clock_box **)lua_touserdata(L, index);
    box->users++;
    return box;
}

lapse_clock *glue_clock_of(const struct clock_box *box)
{
    return box->clock;
}

void glue_clock_leave(struct clock_box *box)
{
    if (!box || --box->users)
        return;
    lapse_clock_free(box->clock);
    free(box);
}

static lapse_clock *check_clock(lua_State *L)
{
    if (!glue_is(L, 1, UP_CLOCK))
        glue_misuse(L, "call it with a colon, on a clock");
    return (*(clock_box **)lua_touserdata(L, 1))->clock;
}

static int manual_clock(lua_State *L)
{
    glue_check_dot(L);
    lapse_ns start = lua_isnoneornil(L, 1) ? 0 : glue_check_span(L, 1, "a clock's start");
    clock_box **object = glue_new_object(L, sizeof(clock_box *), 0);
    *object = NULL;
    lua_pushvalue(L, lua_upvalueindex(UP_CLOCK));
    lua_setmetatable(L, -2);
    *object = calloc(1, sizeof **object);
    if (!*object)
        return glue_no_memory(L);
    (*object)->users = 1;
    int code = lapse_clock_manual(start, &(*object)->clock);
    return code < 0 ? glue_failure(L, code) : 1;
}

static int advance(lua_State *L)
{
    lapse_clock *clock = check_clock(L);
    lapse_ns by = glue_check_seconds(L, 2, "the step");
    if (lua_tonumber(L, 2) < 0)
        glue_misuse(L, "a clock goes forward only; set_wall steps its wall clock");
    int code = lapse_clock_advance(clock, by);
    if (code < 0)
        return glue_failure(L, code);
    lua_settop(L, 1);
    return 1;
}

static int set_wall(lua_State *L)
{
    lapse_clock *clock = check_clock(L);
    int code = lapse_clock_set_wall(clock, glue_check_instant(L, 2, "the instant"));
    if (code < 0)
        return glue_failure(L, code);
    lua_settop(L, 1);
    return 1;
}

static int now(lua_State *L)
{
    glue_push_seconds(L, lapse_clock_now(check_clock(L)));
    return 1;
}

static int collect(lua_State *L)
{
    clock_box **object = lua_touserdata(L, 1);
    glue_clock_leave(*object);
    *object = NULL;
    return 0;
}

const luaL_Reg glue_clock_functions[] = {{"manual_clock", manual_clock}, {NULL, NULL}};

const luaL_Reg glue_clock_methods[] = {
    {"advance", advance},
    {"now", now},
    {"set_wall", set_wall},
    {NULL, NULL},
};

const luaL_Reg glue_clock_meta[] = {{"__gc", collect}, {NULL, NULL}};
