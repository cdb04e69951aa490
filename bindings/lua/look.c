/* look.c - what a scheduler tells of its orders: get, orders, stats.
 *
 * The library's copy of an order becomes a table in a protected call, so that it is freed,
 * and a walk ended in order, also where Lua has no memory. */
#include "glue.h"

/* -- Orders -- */

/* (scheduler, [array, index]) -> a table of what the scheduler shows, set in the array if
 * there is one. Called protected, while the library's copy is in hand. */
static int copy_shown(lua_State *L)
{
    const scheduler *s = lua_touserdata(L, 1);
    bool alone = lua_gettop(L) == 1;
    glue_push_info(L, s->shown);
    if (alone)
        return 1;
    lua_rawseti(L, 2, (int)lua_tointeger(L, 3));
    return 0;
}

static int get(lua_State *L)
{
    scheduler *s = glue_self(L);
    const char *id;
    bool possible = glue_read_id(L, 2, &id);
    if (!s->lapse)
        return glue_closed(L);
    if (!possible)
        return glue_condition(L, LAPSE_EUNKNOWN, lapse_strerror(LAPSE_EUNKNOWN));
    lua_pushcfunction(L, copy_shown);
    lua_pushvalue(L, 1);
    lapse_info info;
    int code;
    GLUE_CALL(L, s, code, lapse_get(s->lapse, id, &info));
    if (code < 0)
        return glue_failure(L, code);
    s->shown = &info;
    code = lua_pcall(L, 1, 1, 0);
    s->shown = NULL;
    lapse_info_free(&info);
    return code == 0 ? 1 : lua_error(L);
}

typedef struct walk {
    lua_State *L; /* of the call to orders, which lasts as long as the walk */
    scheduler *s;
    int count;
    bool failed; /* the error is on the stack top */
} walk;

/* The stack holds the scheduler at 1, the array at 3 and copy_shown at 4. */
static bool visit(const lapse_info *info, void *arg)
{
    walk *w = arg;
    w->s->shown = info;
    lua_pushvalue(w->L, 4);
    lua_pushvalue(w->L, 1);
    lua_pushvalue(w->L, 3);
    lua_pushinteger(w->L, ++w->count);
    w->failed = lua_pcall(w->L, 3, 0, 0) != 0;
    return !w->failed;
}

/* An array of what lapse_each shows. */
static int orders(lua_State *L)
{
    scheduler *s = glue_self(L);
    lua_settop(L, 2);
    unsigned states =
        lua_isnil(L, 2) ? 0 : (unsigned)glue_check_name(L, 2, "the state", glue_states);
    if (!s->lapse)
        return glue_closed(L);
    lua_newtable(L);
    lua_pushcfunction(L, copy_shown);
    walk w = {.L = L, .s = s};
    int64_t shown;
    GLUE_CALL(L, s, shown, lapse_each(s->lapse, states, visit, &w));
    s->shown = NULL;
    if (w.failed)
        return lua_error(L);
    if (shown < 0)
        return glue_failure(L, shown);
    lua_settop(L, 3);
    return 1;
}

/* -- Statistics -- */

static int stats(lua_State *L)
{
    scheduler *s = glue_self(L);
    if (!s->lapse)
        return glue_closed(L);
    lapse_stats now;
    int code;
    GLUE_CALL(L, s, code, lapse_statistics(s->lapse, &now));
    if (code < 0)
        return glue_failure(L, code);
    lua_createtable(L, 0, 25);
#define COUNT(field) (glue_push_int64(L, now.field), lua_setfield(L, -2, #field))
#define SECONDS(field) (glue_push_seconds(L, now.field), lua_setfield(L, -2, #field))
    COUNT(pending);
    COUNT(running);
    COUNT(kept);
    COUNT(dead);
    COUNT(scheduled);
    COUNT(refused);
    COUNT(replaced);
    COUNT(rescheduled);
    COUNT(cancelled);
    COUNT(done);
    COUNT(dead_total);
    COUNT(dead_dropped);
    COUNT(started);
    COUNT(failed);
    COUNT(retried);
    COUNT(rejected);
    COUNT(given_back);
    COUNT(stale);
    SECONDS(late_p50);
    SECONDS(late_p99);
    SECONDS(late_p999);
    SECONDS(late_max);
    SECONDS(oldest_due);
    SECONDS(poll_bound);
    COUNT(bytes);
    COUNT(longest_move);
#undef COUNT
#undef SECONDS
    return 1;
}

/* -- Tables -- */

const luaL_Reg glue_default_look_functions[] = {{"get", get}, {NULL, NULL}};

const luaL_Reg glue_look_methods[] = {
    {"get", get},
    {"orders", orders},
    {"stats", stats},
    {NULL, NULL},
};
