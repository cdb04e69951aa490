/* tie.c - whether a request of nginx still lives, for lua/resty/lapse.lua.
 *
 * ngx.exit() in a callback ends its request, or timer, at once: no Lua code of it runs any
 * more. nginx then calls the cleanup handlers of the request; ours sets a flag that Lua looks at
 * later. The memory belongs to the Lua object and to the request, and is freed by the one that
 * goes last, as either may. */
#include "glue.h"

#include <stdlib.h>

typedef struct tie {
    unsigned owners;
    bool ended; /* the request is gone */
} tie;

static void leave(tie *t)
{
    if (t && --t->owners == 0)
        free(t);
}

/* nginx calls it when the request ends; `data` is the tie. */
static void request_ended(void *data)
{
    tie *t = data;
    t->ended = true;
    leave(t);
}

/* -> tie, cleanup handler, its data; nil, message, code. Once it has these, nginx owns the tie,
 * too. */
static int new_tie(lua_State *L)
{
    void (*handler)(void *) = request_ended;
    tie **object = glue_new_object(L, sizeof(tie *), 0);
    *object = NULL;
    lua_pushvalue(L, lua_upvalueindex(UP_TIE));
    lua_setmetatable(L, -2);
    *object = calloc(1, sizeof **object);
    if (!*object)
        return glue_no_memory(L);
    (*object)->owners = 2;
    lua_pushlightuserdata(L, (void *)(uintptr_t)handler);
    lua_pushlightuserdata(L, *object);
    return 3;
}

static tie **check_tie(lua_State *L)
{
    if (!glue_is(L, 1, UP_TIE))
        glue_misuse(L, "call it with a colon, on a tie");
    return lua_touserdata(L, 1);
}

static int ended(lua_State *L)
{
    const tie *t = *check_tie(L);
    lua_pushboolean(L, !t || t->ended);
    return 1;
}

/* The request did not take it. */
static int undo(lua_State *L)
{
    tie **object = check_tie(L);
    free(*object);
    *object = NULL;
    return 0;
}

static int collect(lua_State *L)
{
    tie **object = lua_touserdata(L, 1);
    leave(*object);
    *object = NULL;
    return 0;
}

const luaL_Reg glue_tie_functions[] = {{"tie", new_tie}, {NULL, NULL}};

const luaL_Reg glue_tie_methods[] = {{"ended", ended}, {"undo", undo}, {NULL, NULL}};

const luaL_Reg glue_tie_meta[] = {{"__gc", collect}, {NULL, NULL}};
