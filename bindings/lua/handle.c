/* handle.c - who handles a queue, and how; pausing it.
 *
 * A handler's function is anchored like any callback (slots.c). The table of handlers,
 * which lies in the scheduler's own table, holds two kinds of entries:
 *
 *     queue's name -> {function, policy}      function -> queue's name; true: of several
 *
 * so that an order can be given the function instead of the name. Entries are made before
 * the library is asked and filled in after it agreed, which allocates nothing. Until then,
 * and after a failure, they hold false. */
#include "glue.h"

#include <limits.h>

enum { FUNCTION = 1, POLICY }; /* in the table of one handler */

/* -- The table of handlers -- */

/* Push it; nil when there is none yet. */
static void push_handlers(lua_State *L)
{
    glue_get_own(L, 1);
    lua_rawgeti(L, -1, OWN_HANDLERS);
    lua_remove(L, -2);
}

static int need_handlers(lua_State *L, scheduler *s)
{
    push_handlers(L);
    if (lua_isnil(L, -1)) {
        lua_pop(L, 1);
        lua_newtable(L);
        glue_get_own(L, 1);
        lua_pushvalue(L, -2);
        lua_rawseti(L, -2, OWN_HANDLERS);
        lua_pop(L, 1);
        s->handles = true;
    }
    return lua_gettop(L);
}

/* Push what the table at `handlers` has for the key at `key`. */
static int look_up(lua_State *L, int handlers, int key)
{
    lua_pushvalue(L, key);
    lua_rawget(L, handlers);
    return lua_type(L, -1);
}

/* Make room for the key at `key`. */
static void reserve(lua_State *L, int handlers, int key)
{
    if (look_up(L, handlers, key) == LUA_TNIL) {
        lua_pushvalue(L, key);
        lua_pushboolean(L, false);
        lua_rawset(L, handlers);
    }
    lua_pop(L, 1);
}

/* Forget a key that came to nothing. */
static void unreserve(lua_State *L, int handlers, int key)
{
    if (look_up(L, handlers, key) == LUA_TBOOLEAN && !lua_toboolean(L, -1)) {
        lua_pushvalue(L, key);
        lua_pushnil(L);
        lua_rawset(L, handlers);
    }
    lua_pop(L, 1);
}

/* Whether the entry at `value` is of a queue that the function at `fn` handles. */
static bool is_handled_by(lua_State *L, int value, int fn)
{
    if (!lua_istable(L, value))
        return false;
    lua_rawgeti(L, value, FUNCTION);
    bool same = lua_rawequal(L, -1, fn);
    lua_pop(L, 1);
    return same;
}

/* The function at `fn` no longer handles one of its queues: see what is left of them. */
static void recount(lua_State *L, int handlers, int fn)
{
    lua_pushvalue(L, fn);
    lua_pushnil(L); /* What is found. */
    int found = lua_gettop(L), queues = 0;
    lua_pushnil(L);
    while (lua_next(L, handlers)) {
        if (lua_type(L, -2) == LUA_TSTRING && is_handled_by(L, lua_gettop(L), fn)) {
            queues++;
            lua_pushvalue(L, -2);
            lua_replace(L, found);
        }
        lua_pop(L, 1);
    }
    if (queues > 1) {
        lua_pushboolean(L, true);
        lua_replace(L, found);
    }
    lua_rawset(L, handlers);
}

/* The function at `fn` handles the queue at `queue`, perhaps besides others. */
static void count_in(lua_State *L, int handlers, int fn, int queue)
{
    bool new = look_up(L, handlers, fn) == LUA_TBOOLEAN && !lua_toboolean(L, -1);
    bool same = lua_rawequal(L, -1, queue);
    lua_pop(L, 1);
    lua_pushvalue(L, fn);
    if (new || same)
        lua_pushvalue(L, queue);
    else
        lua_pushboolean(L, true);
    lua_rawset(L, handlers);
}

int glue_name_handler(lua_State *L, const scheduler *s, int callback, int queue, lapse_spec *spec)
{
    if (!s->handles)
        return 0;
    push_handlers(L);
    int handlers = lua_gettop(L), kind = look_up(L, handlers, callback);
    if (kind == LUA_TNIL) {
        lua_pop(L, 2);
        return 0;
    }
    if (!spec->queue && kind == LUA_TSTRING) {
        spec->queue = lua_tostring(L, -1); /* Stays on the stack. */
        return 1;
    }
    if (!spec->queue)
        return -1;
    look_up(L, handlers, queue);
    bool handled = is_handled_by(L, lua_gettop(L), callback);
    lua_settop(L, handlers - 1);
    return handled;
}

/* -- Policies -- */

static const char *const policy_names[] = {
    "attempts",       "backoff",   "backoff_max", "backoff_percent",
    "jitter_percent", "run_limit", "expires",     "stuck_after",
    "rate",           NULL};

/* Push a field of the table at `policy`; false for nil. */
static bool push_field(lua_State *L, int policy, const char *name)
{
    lua_getfield(L, policy, name);
    return !lua_isnil(L, -1);
}

static unsigned read_whole(lua_State *L, int policy, const char *name)
{
    unsigned value = 0;
    if (push_field(L, policy, name))
        value = (unsigned)glue_check_count(L, -1, name, INT_MAX);
    lua_pop(L, 1);
    return value;
}

/* As the others, but that below 0 means none. */
static int read_jitter(lua_State *L, int policy)
{
    lua_getfield(L, policy, "jitter_percent");
    bool none = lua_type(L, -1) == LUA_TNUMBER && lua_tonumber(L, -1) < 0;
    lua_pop(L, 1);
    return none ? -1 : (int)read_whole(L, policy, "jitter_percent");
}

static lapse_ns read_time(lua_State *L, int policy, const char *name)
{
    int top = lua_gettop(L);
    lapse_ns value = 0;
    if (push_field(L, policy, name))
        value = glue_check_span(L, top + 1, lua_pushfstring(L, "the policy's %s", name));
    lua_settop(L, top);
    return value;
}

static void read_policy(lua_State *L, int from, lapse_policy *to)
{
    if (!lua_istable(L, from))
        glue_misuse(L, "a policy is a table, got %s", luaL_typename(L, from));
    glue_check_keys(L, from, "a policy", policy_names);
    *to = (lapse_policy){
        .attempts = (int)read_whole(L, from, "attempts"),
        .backoff = read_time(L, from, "backoff"),
        .backoff_max = read_time(L, from, "backoff_max"),
        .backoff_percent = (int)read_whole(L, from, "backoff_percent"),
        .jitter_percent = read_jitter(L, from),
        .run_limit = read_time(L, from, "run_limit"),
        .expires = read_time(L, from, "expires"),
        .stuck_after = read_time(L, from, "stuck_after"),
        .rate = read_whole(L, from, "rate"),
    };
}

/* -- Handle -- */

/* Let the function at `fn` handle the queue; its number in the slots, or an error. */
static int64_t try_handle(lua_State *L, scheduler *s, const char *queue, int fn,
                          const lapse_policy *policy)
{
    uint32_t number = slots_anchor(L, &s->slots, fn);
    if (!number)
        return LAPSE_ENOMEM;
    int code = lapse_handle(s->lapse, queue, glue_call_in_lua, slots_arg(&s->slots, number),
                            slots_release, policy);
    if (code < 0)
        slots_drop(L, &s->slots, number);
    return code;
}

/* (scheduler, queue, function, policy, handlers, entry) -> code. Called protected: all that
 * may raise comes before the library is asked. */
static int handle_protected(lua_State *L)
{
    scheduler *s = lua_touserdata(L, 1);
    reserve(L, 5, 2);
    reserve(L, 5, 3);
    int64_t code;
    GLUE_CALL(L, s, code, try_handle(L, s, lua_tostring(L, 2), 3, lua_touserdata(L, 4)));
    lua_pushinteger(L, (lua_Integer)code);
    return 1;
}

/* The queue at 2 has the entry at `entry`, or none if that is nil. */
static void set_entry(lua_State *L, int handlers, int entry)
{
    int kind = look_up(L, handlers, 2), old = lua_gettop(L);
    lua_pushvalue(L, 2);
    lua_pushvalue(L, entry);
    lua_rawset(L, handlers);
    if (kind == LUA_TTABLE) {
        lua_rawgeti(L, old, FUNCTION);
        recount(L, handlers, lua_gettop(L));
    }
    lua_settop(L, old - 1);
}

/* The scheduler, queue, function and policy are at 1 to 4. */
static int add_handler(lua_State *L, scheduler *s)
{
    int handlers = need_handlers(L, s);
    lua_createtable(L, POLICY, 0);
    lua_pushvalue(L, 3);
    lua_rawseti(L, -2, FUNCTION);
    lua_pushvalue(L, 4);
    lua_rawseti(L, -2, POLICY);
    int entry = lua_gettop(L);
    lua_pushcfunction(L, handle_protected);
    for (int i = 1; i <= entry; i++)
        lua_pushvalue(L, i);
    bool fine = lua_pcall(L, entry, 1, 0) == 0;
    int code = fine ? (int)lua_tointeger(L, -1) : LAPSE_ENOMEM;
    if (code == LAPSE_OK) {
        set_entry(L, handlers, entry);
        count_in(L, handlers, 3, 2);
    } else {
        unreserve(L, handlers, 2);
        unreserve(L, handlers, 3);
    }
    return fine ? code : lua_error(L);
}

static int remove_handler(lua_State *L, scheduler *s)
{
    int code;
    GLUE_CALL(L, s, code, lapse_handle(s->lapse, lua_tostring(L, 2), NULL, NULL, NULL, NULL));
    if (code < 0 || !s->handles)
        return code;
    push_handlers(L);
    lua_pushnil(L);
    set_entry(L, lua_gettop(L) - 1, lua_gettop(L));
    return code;
}

static int answer(lua_State *L, scheduler *s, int code)
{
    if (code < 0)
        return glue_finish(L, s, glue_failure(L, code));
    lua_pushboolean(L, true);
    return glue_finish(L, s, 1);
}

/* Put the name of the queue at index 2, where nil means "". */
static void need_queue(lua_State *L)
{
    if (glue_check_queue(L, 2))
        return;
    lua_pushliteral(L, "");
    lua_replace(L, 2);
}

/* (scheduler, queue, function or nil, [policy]) */
static int handle(lua_State *L)
{
    scheduler *s = glue_self_anew(L);
    lua_settop(L, 4);
    need_queue(L);
    if (!lua_isnil(L, 3))
        glue_check_callback(L, 3, "the handler");
    if (!lua_isnil(L, 4)) {
        lapse_policy *policy = lua_newuserdata(L, sizeof *policy);
        read_policy(L, 4, policy);
        lua_replace(L, 4);
    }
    if (!s->lapse)
        return glue_closed(L);
    return answer(L, s, lua_isnil(L, 3) ? remove_handler(L, s) : add_handler(L, s));
}

void glue_restore_handlers(lua_State *L, scheduler *s)
{
    if (!s->handles)
        return;
    push_handlers(L);
    int handlers = lua_gettop(L);
    lua_pushnil(L);
    while (lua_next(L, handlers)) {
        int queue = lua_gettop(L) - 1, entry = queue + 1;
        if (lua_istable(L, entry)) {
            lua_rawgeti(L, entry, FUNCTION);
            lua_rawgeti(L, entry, POLICY);
            try_handle(L, s, lua_tostring(L, queue), entry + 1, lua_touserdata(L, entry + 2));
        }
        lua_settop(L, queue);
    }
    lua_pop(L, 1);
}

void glue_forget_handlers(lua_State *L, scheduler *s)
{
    if (!s->handles)
        return;
    glue_get_own(L, 1);
    lua_pushnil(L);
    lua_rawseti(L, -2, OWN_HANDLERS);
    lua_pop(L, 1);
    s->handles = false;
}

/* -- Pause -- */

static int pause_queue(lua_State *L)
{
    scheduler *s = glue_self(L);
    lua_settop(L, 2);
    const char *queue = glue_check_queue(L, 2);
    if (!s->lapse)
        return glue_closed(L);
    int code;
    GLUE_CALL(L, s, code, lapse_pause(s->lapse, queue));
    return answer(L, s, code);
}

static int resume_queue(lua_State *L)
{
    scheduler *s = glue_self(L);
    lua_settop(L, 2);
    const char *queue = glue_check_queue(L, 2);
    if (!s->lapse)
        return glue_closed(L);
    int code;
    GLUE_CALL(L, s, code, lapse_resume(s->lapse, queue));
    return answer(L, s, code);
}

/* -- Tables -- */

const luaL_Reg glue_default_handle_functions[] = {{"handle", handle}, {NULL, NULL}};

const luaL_Reg glue_handle_methods[] = {
    {"handle", handle},
    {"pause", pause_queue},
    {"resume", resume_queue},
    {NULL, NULL},
};
