/* module.c - what require "lapse.core" returns.
 *
 * Makes tables and nothing else: no scheduler, no thread, no descriptor. The module is
 * for lua/lapse/ only; users see what that makes of it.
 *
 *     methods    of schedulers; lua/lapse/init.lua adds those written in Lua
 *     default    the same as functions, for the default scheduler of this Lua state
 *     order, claim  fields and methods of orders
 *     loop       begin, settle and what else lua/lapse/loop.lua needs
 *     verdict    metatable of what retry and reject return
 *     teller     an array for the function of the loop that tells the hooks, and the module
 *     tie        what tells lua/resty/lapse.lua that a request of nginx has ended
 *     new, new_apart, manual_clock, retry, reject, version, built_for */
#include "glue.h"

/* Set functions in the table at `table`. The upvalues lie from `upvalues` on; of UP_LAST and
 * UP_DEFAULT the latter is for functions of the default scheduler, the former for all others. */
static void set_functions(lua_State *L, int table, const luaL_Reg *functions, int upvalues,
                          bool by_default)
{
    for (const luaL_Reg *f = functions; f->name; f++) {
        for (int i = 1; i <= UP_COUNT; i++)
            if (i == (by_default ? UP_LAST : UP_DEFAULT))
                lua_pushnil(L);
            else
                lua_pushvalue(L, upvalues + i - 1);
        lua_pushcclosure(L, f->func, UP_COUNT);
        lua_setfield(L, table, f->name);
    }
}

static void push_metatable(lua_State *L, const char *name)
{
    lua_newtable(L);
    lua_pushstring(L, name);
    lua_setfield(L, -2, "__name");
    lua_pushstring(L, name); /* Hidden from getmetatable. */
    lua_setfield(L, -2, "__metatable");
}

static void push_upvalues(lua_State *L)
{
    push_metatable(L, "lapse.Scheduler");
    push_metatable(L, "lapse.Order");
    push_metatable(L, "lapse.Claim");
    push_metatable(L, "lapse.Clock");
    lua_newtable(L); /* Verdicts are told by their metatable. */
    push_metatable(L, "lapse.Tie");
    lua_pushcfunction(L, glue_offer);
    lua_newtable(L); /* Where Lua puts the function that tells the hooks, and the module. */
    *(glue_last *)lua_newuserdata(L, sizeof(glue_last)) = (glue_last){NULL};
    lua_newtable(L); /* Where the default scheduler will be. */
}

/* A new table in the module under `name`; its index. */
static int add_table(lua_State *L, int module, const char *name)
{
    lua_newtable(L);
    lua_pushvalue(L, -1);
    lua_setfield(L, module, name);
    return lua_gettop(L);
}

static void set_index(lua_State *L, int metatable, int methods)
{
    lua_pushvalue(L, methods);
    lua_setfield(L, metatable, "__index");
}

static void add_schedulers(lua_State *L, int module, int up)
{
    int methods = add_table(L, module, "methods");
    set_functions(L, methods, glue_scheduler_methods, up, false);
    set_functions(L, methods, glue_schedule_methods, up, false);
    set_functions(L, methods, glue_look_methods, up, false);
    set_functions(L, methods, glue_pull_methods, up, false);
    set_functions(L, methods, glue_handle_methods, up, false);
    set_functions(L, methods, glue_dead_methods, up, false);
    set_functions(L, methods, glue_hook_methods, up, false);
    set_index(L, up + UP_SCHEDULER - 1, methods);
    set_functions(L, up + UP_SCHEDULER - 1, glue_scheduler_meta, up, false);
    int by_default = add_table(L, module, "default");
    set_functions(L, by_default, glue_default_functions, up, true);
    set_functions(L, by_default, glue_default_schedule_functions, up, true);
    set_functions(L, by_default, glue_default_look_functions, up, true);
    set_functions(L, by_default, glue_default_handle_functions, up, true);
    set_functions(L, by_default, glue_default_hook_functions, up, true);
    int loop = add_table(L, module, "loop");
    set_functions(L, loop, glue_pass_methods, up, false);
    set_functions(L, loop, glue_run_methods, up, false);
    set_functions(L, loop, glue_tell_methods, up, false);
    set_functions(L, loop, glue_ask_methods, up, false);
    set_functions(L, loop, glue_relay_methods, up, false);
    set_functions(L, loop, glue_opener_methods, up, false);
    set_functions(L, loop, glue_fast_methods, up, false);
}

/* Orders have fields and methods; those that were taken have more. */
static void add_orders(lua_State *L, int module, const char *name, int metatable,
                       const luaL_Reg *meta, const luaL_Reg *methods, int up)
{
    add_table(L, module, name);
    glue_add_order_fields(L);
    set_functions(L, lua_gettop(L), glue_order_methods, up, false);
    if (methods)
        set_functions(L, lua_gettop(L), methods, up, false);
    lua_pushcclosure(L, glue_order_index, 1);
    lua_setfield(L, metatable, "__index");
    set_functions(L, metatable, meta, up, false);
}

/* A class of objects that have methods only. */
static void add_class(lua_State *L, int metatable, const luaL_Reg *meta, const luaL_Reg *methods,
                      int up)
{
    lua_newtable(L);
    set_functions(L, lua_gettop(L), methods, up, false);
    lua_setfield(L, metatable, "__index");
    set_functions(L, metatable, meta, up, false);
}

static void set_text(lua_State *L, int module, const char *name, const char *text)
{
    lua_pushstring(L, text);
    lua_setfield(L, module, name);
}

__attribute__((visibility("default"))) int luaopen_lapse_core(lua_State *L);

int luaopen_lapse_core(lua_State *L)
{
    glue_check_version(L);
    luaL_checkstack(L, 3 * UP_COUNT, "lapse.core");
    lua_newtable(L);
    int module = lua_gettop(L), up = module + 1;
    push_upvalues(L);
    add_schedulers(L, module, up);
    add_orders(L, module, "order", up + UP_ORDER - 1, glue_order_meta, NULL, up);
    add_orders(L, module, "claim", up + UP_CLAIM - 1, glue_claim_meta, glue_claim_methods, up);
    add_class(L, up + UP_CLOCK - 1, glue_clock_meta, glue_clock_methods, up);
    add_class(L, up + UP_TIE - 1, glue_tie_meta, glue_tie_methods, up);
    set_functions(L, module, glue_scheduler_functions, up, false);
    set_functions(L, module, glue_verdict_functions, up, false);
    set_functions(L, module, glue_clock_functions, up, false);
    set_functions(L, module, glue_tie_functions, up, false);
    lua_pushvalue(L, up + UP_VERDICT - 1);
    lua_setfield(L, module, "verdict");
    lua_pushvalue(L, up + UP_TELLER - 1);
    lua_setfield(L, module, "teller");
    set_text(L, module, "version", lapse_version());
    /* lua/lapse/init.lua looks for this text in a file that does not load. */
    set_text(L, module, "built_for", "lapse.core built for " GLUE_BUILT_FOR);
    lua_settop(L, module);
    return 1;
}
