/* hooks.c - what the library has to tell: dead letters, log messages, lost runs.
 *
 * It tells in the middle of its work, where Lua must not be entered. What it says is
 * copied into an event, in C's memory, and handed to the hooks in Lua when the call is
 * back in the glue (glue_finish). A run that lasted too long is only marked: the loop
 * tells on_error when its callback has returned. */
#include "glue.h"

#include <stdlib.h>
#include <string.h>

enum { DEAD_LETTER = -1 }; /* as the level of an event */

typedef struct event {
    struct event *next;
    int level;       /* of a message, or DEAD_LETTER */
    lapse_info dead; /* its pointers lead into `bytes` */
    char bytes[];    /* the message; or id, queue, error, payload */
} event;

static const glue_name levels[] = {
    {"debug", LAPSE_DEBUG},
    {"info", LAPSE_INFO},
    {"warning", LAPSE_WARNING},
    {"error", LAPSE_ERROR},
    {NULL, 0},
};

/* -- The library tells -- */

/* A new event at the end of the list; NULL without memory. */
static event *add_event(scheduler *s, int level, size_t bytes)
{
    event *e = malloc(sizeof *e + bytes);
    if (!e) {
        s->untold++;
        return NULL;
    }
    e->next = NULL;
    e->level = level;
    if (s->last_event)
        s->last_event->next = e;
    else
        s->first_event = e;
    s->last_event = e;
    s->event_count++;
    return e;
}

static char *put_bytes(char **to, const void *from, size_t len)
{
    char *at = *to;
    if (!from)
        return NULL;
    memcpy(at, from, len);
    *to = at + len;
    return at;
}

static size_t text_size(const char *text)
{
    return text ? strlen(text) + 1 : 0;
}

static void told_of_death(void *scheduler_, const lapse_info *dead)
{
    scheduler *s = scheduler_;
    size_t queue = text_size(dead->queue), error = text_size(dead->error);
    if (!s->wants_dead)
        return;
    event *e = add_event(s, DEAD_LETTER, dead->id_len + 1 + queue + error + dead->payload_len);
    if (!e)
        return;
    char *to = e->bytes;
    e->dead = *dead;
    e->dead.id = put_bytes(&to, dead->id, dead->id_len + 1);
    e->dead.queue = put_bytes(&to, dead->queue, queue);
    e->dead.error = put_bytes(&to, dead->error, error);
    e->dead.payload = put_bytes(&to, dead->payload, dead->payload_len);
}

static void told_to_log(void *scheduler_, lapse_level level, const char *message)
{
    scheduler *s = scheduler_;
    size_t size = text_size(message);
    event *e = s->wants_log ? add_event(s, (int)level, size) : NULL;
    if (e)
        memcpy(e->bytes, message, size);
}

/* Of a run that has lost its order; of one that failed too, which the loop knows. */
static void told_of_error(void *scheduler_, const lapse_order *order, const char *error)
{
    const scheduler *s = scheduler_;
    (void)error;
    for (uint32_t i = s->depth; i > 0; i--)
        if (s->runs[i - 1].fence == order->fence)
            s->runs[i - 1].overran = true;
}

void glue_listen(scheduler *s, lapse_options *options)
{
    options->hook_arg = s;
    options->on_dead = told_of_death;
    options->log = told_to_log;
    options->on_error = told_of_error;
}

static void drop_event(scheduler *s)
{
    event *e = s->first_event;
    s->first_event = e->next;
    if (!e->next)
        s->last_event = NULL;
    s->event_count--;
    if (s->to_tell > 0)
        s->to_tell--;
    free(e);
}

void glue_forget_events(scheduler *s)
{
    while (s->first_event)
        drop_event(s);
    s->untold = 0;
}

/* -- The hooks are told -- */

int glue_finish(lua_State *L, scheduler *s, int results)
{
    slots_drain(L, &s->slots);
    if (!glue_has_news(s) || s->telling)
        return results;
    lua_rawgeti(L, lua_upvalueindex(UP_TELLER), 1);
    lua_pushvalue(L, 1);
    s->telling = true;
    s->to_tell = s->event_count; /* What the hooks cause is told by the next call. */
    if (lua_pcall(L, 1, 0, 0) != 0)
        lua_pop(L, 1); /* No memory: what is left is told by the next call. */
    s->telling = false;
    s->to_tell = 0;
    return results;
}

static int finish(lua_State *L)
{
    return glue_finish(L, glue_self(L), 0);
}

/* Push the name of a hook and the hook; false if there is none. */
static bool push_hook(lua_State *L, const char *name, int own)
{
    lua_settop(L, 1);
    lua_pushstring(L, name);
    glue_get_own(L, 1);
    lua_rawgeti(L, -1, own);
    lua_remove(L, -2);
    return !lua_isnil(L, -1);
}

/* What there was no memory to copy. */
static int push_untold(lua_State *L, scheduler *s)
{
    int count = s->untold > 1000000 ? 1000000 : (int)s->untold;
    s->untold = 0;
    if (!count || !push_hook(L, "log", OWN_LOG))
        return 0;
    lua_pushliteral(L, "error");
    lua_pushfstring(L, "%d events could not be told of: out of memory", count);
    return 4;
}

/* scheduler -> name of the hook, hook, its arguments, of the next event; nothing after
 * the last. The event is dropped when all of that is in Lua's hands. */
static int next_event(lua_State *L)
{
    scheduler *s = glue_self(L);
    while (s->to_tell > 0) {
        const event *e = s->first_event;
        bool died = e->level == DEAD_LETTER;
        bool heard = push_hook(L, died ? "on_dead" : "log", died ? OWN_ON_DEAD : OWN_LOG);
        if (heard && died) {
            glue_push_info(L, &e->dead);
        } else if (heard) {
            lua_pushstring(L, glue_name_of(levels, e->level));
            lua_pushstring(L, e->bytes);
        }
        drop_event(s);
        if (heard)
            return lua_gettop(L) - 1;
    }
    return push_untold(L, s);
}

/* -- Who is told -- */

static void set_hook(lua_State *L, const char *name, int own)
{
    lua_settop(L, 2);
    if (!lua_isnil(L, 2))
        glue_check_callback(L, 2, name);
    glue_get_own(L, 1);
    lua_pushvalue(L, 2);
    lua_rawseti(L, -2, own);
}

static int on_error(lua_State *L)
{
    glue_self(L);
    set_hook(L, "on_error", OWN_ON_ERROR);
    return 0;
}

static int on_dead(lua_State *L)
{
    scheduler *s = glue_self(L);
    set_hook(L, "on_dead", OWN_ON_DEAD);
    s->wants_dead = !lua_isnil(L, 2);
    return 0;
}

static int error_handler(lua_State *L)
{
    glue_self(L);
    glue_get_own(L, 1);
    lua_rawgeti(L, -1, OWN_ON_ERROR);
    return 1;
}

/* -- Tables -- */

const luaL_Reg glue_default_hook_functions[] = {
    {"on_error", on_error},
    {"on_dead", on_dead},
    {NULL, NULL},
};

const luaL_Reg glue_hook_methods[] = {
    {"on_error", on_error},
    {"on_dead", on_dead},
    {NULL, NULL},
};

const luaL_Reg glue_tell_methods[] = {
    {"error_handler", error_handler},
    {"finish", finish},
    {"next_event", next_event},
    {NULL, NULL},
};
