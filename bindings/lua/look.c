/* look.c - what a scheduler tells of its orders: get, orders, and counts of all kinds.
 *
 * What the library gives away, a copy or a text, becomes a Lua value in a protected call, so
 * that it is freed, and a walk ended in order, also where Lua has no memory. */
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
        return glue_unknown(L);
    if (s->submits)
        return glue_submit_named(L, s, (lapse_ask){.what = LAPSE_ASK_GET, .id = id});
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

#define COUNT(field) (glue_push_int64(L, now.field), lua_setfield(L, -2, #field))
#define SECONDS(field) (glue_push_seconds(L, now.field), lua_setfield(L, -2, #field))
#define FLAG(field) (lua_pushboolean(L, now.field), lua_setfield(L, -2, #field))

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
    lua_createtable(L, 0, 30);
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
    COUNT(requeued);
    COUNT(purged);
    COUNT(lost);
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
    SECONDS(offline);
    COUNT(bytes);
    COUNT(longest_move);
    glue_push_deaths(L, now.dead_by);
    lua_setfield(L, -2, "dead_by");
    return 1;
}

/* (scheduler, [queue]) -> a table; nil, message, "Unknown". */
static int queue_stats(lua_State *L)
{
    scheduler *s = glue_self(L);
    lua_settop(L, 2);
    const char *queue = glue_check_queue(L, 2);
    if (!s->lapse)
        return glue_closed(L);
    lapse_queue_stats now;
    int code;
    GLUE_CALL(L, s, code, lapse_queue_statistics(s->lapse, queue, &now));
    if (code < 0)
        return glue_failure(L, code);
    lua_createtable(L, 0, 17);
    lua_pushstring(L, now.queue);
    lua_setfield(L, -2, "queue");
    FLAG(handled);
    FLAG(paused);
    COUNT(pending);
    COUNT(running);
    COUNT(dead);
    COUNT(started);
    COUNT(done);
    COUNT(failed);
    COUNT(retried);
    COUNT(cancelled);
    COUNT(dead_total);
    SECONDS(oldest_due);
    SECONDS(late_p50);
    SECONDS(late_p99);
    SECONDS(late_max);
    glue_push_deaths(L, now.dead_by);
    lua_setfield(L, -2, "dead_by");
    return 1;
}

#undef COUNT
#undef SECONDS
#undef FLAG

/* An array of the names of all queues. */
static int queues(lua_State *L)
{
    scheduler *s = glue_self(L);
    if (!s->lapse)
        return glue_closed(L);
    lapse_stats now; /* A child notices here that it is one. */
    int code;
    GLUE_CALL(L, s, code, lapse_statistics(s->lapse, &now));
    if (code < 0)
        return glue_failure(L, code);
    lua_newtable(L);
    const char *name;
    for (int i = 0; (name = lapse_queue_name(s->lapse, (size_t)i)); i++) {
        lua_pushstring(L, name);
        lua_rawseti(L, -2, i + 1);
    }
    return 1;
}

/* (scheduler) -> the text that it has in hand. */
static int copy_text(lua_State *L)
{
    const scheduler *s = lua_touserdata(L, 1);
    lua_pushstring(L, s->text);
    return 1;
}

static int metrics(lua_State *L)
{
    scheduler *s = glue_self(L);
    if (!s->lapse)
        return glue_closed(L);
    lapse_stats now;
    int code;
    GLUE_CALL(L, s, code, lapse_statistics(s->lapse, &now));
    if (code < 0)
        return glue_failure(L, code);
    lua_pushcfunction(L, copy_text);
    lua_pushvalue(L, 1);
    char *text = lapse_metrics(s->lapse);
    if (!text)
        return glue_no_memory(L);
    s->text = text;
    code = lua_pcall(L, 1, 1, 0);
    s->text = NULL;
    lapse_free(text);
    return code == 0 ? 1 : lua_error(L);
}

/* -- Tables -- */

const luaL_Reg glue_default_look_functions[] = {{"get", get}, {NULL, NULL}};

const luaL_Reg glue_look_methods[] = {
    {"get", get},       {"orders", orders},   {"stats", stats}, {"queue_stats", queue_stats},
    {"queues", queues}, {"metrics", metrics}, {NULL, NULL},
};
