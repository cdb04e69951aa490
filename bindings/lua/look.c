/* look.c - what a scheduler tells of its orders: get, orders, and counts of all kinds.
 *
 * What the library gives away, a copy or a text, becomes a Lua value in a protected call, so
 * that it is freed, and a walk ended in order, also where Lua has no memory. */
#include "look.h"

#include <stdlib.h>
#include <string.h>

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

/* The same for a look from another thread. */

static bool copy_bytes(char **to, const void *from, size_t len)
{
    if (!from)
        return true;
    *to = malloc(len + 1);
    if (*to)
        memcpy(*to, from, len);
    if (*to)
        (*to)[len] = '\0';
    return *to != NULL;
}

static bool copy_text_of(char **to, const char *from)
{
    return copy_bytes(to, from, from ? strlen(from) : 0);
}

static bool copy_info(lapse_info *to, const lapse_info *from)
{
    char *payload = NULL;
    *to = *from;
    to->id = to->queue = to->error = NULL;
    bool fine = copy_bytes(&to->id, from->id, from->id_len) &&
                copy_text_of(&to->queue, from->queue) && copy_text_of(&to->error, from->error) &&
                copy_bytes(&payload, from->payload, from->payload_len);
    to->payload = payload;
    if (!fine)
        lapse_info_free(to);
    return fine;
}

static bool keep_shown(const lapse_info *info, void *arg)
{
    look *l = arg;
    if (l->count == l->room) {
        size_t room = l->room ? 2 * l->room : 64;
        lapse_info *more = realloc(l->infos, room * sizeof *more);
        if (!more)
            return false;
        l->infos = more;
        l->room = room;
    }
    if (!copy_info(&l->infos[l->count], info))
        return false;
    l->count++;
    return true;
}

static int64_t make_orders(look *l, lapse *s)
{
    int64_t shown = lapse_each(s, l->states, keep_shown, l);
    return shown > (int64_t)l->count ? LAPSE_ENOMEM : shown;
}

static int push_orders(lua_State *L, const look *l)
{
    lua_createtable(L, (int)l->count, 0);
    for (size_t i = 0; i < l->count; i++) {
        glue_push_info(L, &l->infos[i]);
        lua_rawseti(L, -2, (int)i + 1);
    }
    return 1;
}

static int orders_aside(lua_State *L, scheduler *s, unsigned states)
{
    look *l = glue_new_look(make_orders, push_orders, NULL);
    if (l)
        l->states = states;
    return glue_look_aside(L, s, l);
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
    if (s->submits)
        return orders_aside(L, s, states);
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

#define COUNT(field) (glue_push_int64(L, now->field), lua_setfield(L, -2, #field))
#define SECONDS(field) (glue_push_seconds(L, now->field), lua_setfield(L, -2, #field))
#define FLAG(field) (lua_pushboolean(L, now->field), lua_setfield(L, -2, #field))

static int push_stats(lua_State *L, const look *l)
{
    const lapse_stats *now = &l->stats;
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
    glue_push_deaths(L, now->dead_by);
    lua_setfield(L, -2, "dead_by");
    return 1;
}

static int64_t make_stats(look *l, lapse *s)
{
    return lapse_statistics(s, &l->stats);
}

static int stats(lua_State *L)
{
    scheduler *s = glue_self(L);
    if (!s->lapse)
        return glue_closed(L);
    if (s->submits)
        return glue_look_aside(L, s, glue_new_look(make_stats, push_stats, NULL));
    look now = {.name = NULL};
    int code;
    GLUE_CALL(L, s, code, lapse_statistics(s->lapse, &now.stats));
    return code < 0 ? glue_failure(L, code) : push_stats(L, &now);
}

static int push_queue_stats(lua_State *L, const look *l)
{
    const lapse_queue_stats *now = &l->queue;
    lua_createtable(L, 0, 17);
    lua_pushstring(L, now->queue);
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
    glue_push_deaths(L, now->dead_by);
    lua_setfield(L, -2, "dead_by");
    return 1;
}

static int64_t make_queue_stats(look *l, lapse *s)
{
    return lapse_queue_statistics(s, l->name, &l->queue);
}

/* (scheduler, [queue]) -> a table; nil, message, "Unknown". */
static int queue_stats(lua_State *L)
{
    scheduler *s = glue_self(L);
    lua_settop(L, 2);
    const char *queue = glue_check_queue(L, 2);
    if (!s->lapse)
        return glue_closed(L);
    if (s->submits)
        return glue_look_aside(L, s, glue_new_look(make_queue_stats, push_queue_stats, queue));
    look now = {.name = NULL};
    int code;
    GLUE_CALL(L, s, code, lapse_queue_statistics(s->lapse, queue, &now.queue));
    return code < 0 ? glue_failure(L, code) : push_queue_stats(L, &now);
}

#undef COUNT
#undef SECONDS
#undef FLAG

static int64_t make_queues(look *l, lapse *s)
{
    const char *name;
    int64_t code = lapse_statistics(s, &l->stats); /* Says so if it is closed or offline. */
    for (size_t i = 0; code >= 0 && (name = lapse_queue_name(s, i)); i++) {
        char **more = realloc(l->names, (i + 1) * sizeof *more);
        if (!more)
            return LAPSE_ENOMEM;
        l->names = more;
        if (!(more[i] = strdup(name)))
            return LAPSE_ENOMEM;
        l->count = i + 1;
    }
    return code;
}

static int push_queues(lua_State *L, const look *l)
{
    lua_createtable(L, (int)l->count, 0);
    for (size_t i = 0; i < l->count; i++) {
        lua_pushstring(L, l->names[i]);
        lua_rawseti(L, -2, (int)i + 1);
    }
    return 1;
}

/* An array of the names of all queues. */
static int queues(lua_State *L)
{
    scheduler *s = glue_self(L);
    if (!s->lapse)
        return glue_closed(L);
    if (s->submits)
        return glue_look_aside(L, s, glue_new_look(make_queues, push_queues, NULL));
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

static int64_t make_metrics(look *l, lapse *s)
{
    int code = lapse_statistics(s, &l->stats);
    l->text = code < 0 ? NULL : lapse_metrics(s);
    return code < 0 || l->text ? code : LAPSE_ENOMEM;
}

static int push_metrics(lua_State *L, const look *l)
{
    lua_pushstring(L, l->text);
    return 1;
}

static int metrics(lua_State *L)
{
    scheduler *s = glue_self(L);
    if (!s->lapse)
        return glue_closed(L);
    if (s->submits)
        return glue_look_aside(L, s, glue_new_look(make_metrics, push_metrics, NULL));
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
