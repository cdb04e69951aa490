/* compat.h - what differs between Lua 5.4 and Lua 5.1 with LuaJIT.
 *
 * The only file that asks for the Lua version. Each side uses a symbol that the other
 * does not have, so that a module built for the other fails when it is loaded. */
#ifndef LAPSE_LUA_COMPAT_H
#define LAPSE_LUA_COMPAT_H

#include <lauxlib.h>
#include <lua.h>
#include <stdint.h>

#if LUA_VERSION_NUM == 501

#define GLUE_BUILT_FOR "Lua 5.1 and LuaJIT"

/* An object is a userdata with a table of its own: here its environment. */
#define glue_new_object(L, size, tables) ((void)(tables), lua_newuserdata(L, size))
#define glue_get_own(L, index) lua_getfenv(L, index)
#define glue_set_own(L, index) ((void)lua_setfenv(L, index))
#define glue_length(L, index) lua_objlen(L, index)
#define glue_check_version(L) ((void)(L))

/* Every number is a double: exact up to 2^53. */
#define glue_push_int64(L, value) lua_pushnumber(L, (lua_Number)(value))

#elif LUA_VERSION_NUM >= 504

#define GLUE_BUILT_FOR "Lua 5.4"

#define glue_new_object(L, size, tables) lua_newuserdatauv(L, size, tables)
#define glue_get_own(L, index) ((void)lua_getiuservalue(L, index, 1))
#define glue_set_own(L, index) ((void)lua_setiuservalue(L, index, 1))
#define glue_length(L, index) lua_rawlen(L, index)
#define glue_check_version(L) luaL_checkversion(L)
#define glue_push_int64(L, value) lua_pushinteger(L, (lua_Integer)(value))

#else
#error "lapse.core is for Lua 5.1, LuaJIT and Lua 5.4"
#endif

#endif
