/* verdict.c - what a callback returns to be run again, or to become a dead letter.
 *
 * A verdict is a table that its metatable tells from all other values; the loop in Lua
 * reads it. */
#include "glue.h"

static int push_verdict(lua_State *L, lapse_verdict verdict, int delay, int reason)
{
    lua_createtable(L, 0, 3);
    lua_pushinteger(L, verdict);
    lua_setfield(L, -2, "verdict");
    lua_pushvalue(L, delay);
    lua_setfield(L, -2, "delay");
    lua_pushvalue(L, reason);
    lua_setfield(L, -2, "reason");
    lua_pushvalue(L, lua_upvalueindex(UP_VERDICT));
    lua_setmetatable(L, -2);
    return 1;
}

/* (delay or nil, error or nil) */
static int retry(lua_State *L)
{
    glue_check_dot(L);
    lua_settop(L, 2);
    if (!lua_isnil(L, 1))
        glue_check_seconds(L, 1, "the delay");
    glue_check_text(L, 2, "the error");
    return push_verdict(L, LAPSE_RETRY, 1, 2);
}

/* (reason or nil) */
static int reject(lua_State *L)
{
    glue_check_dot(L);
    lua_settop(L, 1);
    glue_check_text(L, 1, "the reason");
    lua_pushnil(L);
    return push_verdict(L, LAPSE_REJECT, 2, 1);
}

const luaL_Reg glue_verdict_functions[] = {{"retry", retry}, {"reject", reject}, {NULL, NULL}};
