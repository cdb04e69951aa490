/* ask.c - calls of a host that must not wait for a durable store, such as nginx.
 *
 * Such a scheduler `submits`: what its methods would wait for is submitted, and they return a
 * ticket instead of the answer. lua/resty/lapse/ask.lua collects the answers, each with its
 * ticket, and wakes whoever waits for it. No Lua value is kept for an answer. */
#include "look.h"

enum { WHAT_BITS = 3, WHAT_MASK = (1 << WHAT_BITS) - 1 };

int64_t glue_new_ticket(scheduler *s)
{
    return ++s->tickets;
}

/* -- Submit -- */

int64_t glue_submit(scheduler *s, lapse_ask *ask)
{
    int64_t ticket = glue_new_ticket(s);
    ask->tag = (void *)((uintptr_t)ticket << WHAT_BITS | (uintptr_t)ask->what);
    int code = lapse_submit(s->lapse, ask);
    return code < 0 ? code : ticket;
}

int64_t glue_submit_put(scheduler *s, const lapse_spec *spec)
{
    lapse_ask ask = {.what = LAPSE_ASK_PUT, .spec = spec};
    return glue_submit(s, &ask);
}

int glue_submit_named(lua_State *L, scheduler *s, lapse_ask ask)
{
    int64_t ticket;
    GLUE_CALL(L, s, ticket, glue_submit(s, &ask));
    if (ticket < 0)
        return glue_finish(L, s, glue_failure(L, ticket));
    glue_push_int64(L, ticket);
    return glue_finish(L, s, 1);
}

/* -- Collect -- */

static int push_failure(lua_State *L, int64_t result, const char *words)
{
    int code = (int)result;
    return glue_condition(L, code, words && *words ? words : lapse_strerror(code));
}

static void push_result(lua_State *L, scheduler *s, const lapse_answer *a, int what)
{
    if (a->result < 0) {
        push_failure(L, a->result, a->detail);
    } else if (what == LAPSE_ASK_CANCEL || what == LAPSE_ASK_RESCHEDULE) {
        glue_push_fate(L, (int)a->result);
    } else if (what == LAPSE_ASK_GET) {
        s->shown = &a->info;
        glue_push_info(L, s->shown);
    } else {
        glue_push_int64(L, a->result);
    }
}

/* (scheduler) -> ticket, what the waiting call returns. In a protected call, while the answer
 * is in hand. */
static int push_answer(lua_State *L)
{
    scheduler *s = lua_touserdata(L, 1);
    uintptr_t tag = (uintptr_t)s->answer->tag;
    lua_settop(L, 0);
    glue_push_int64(L, (int64_t)(tag >> WHAT_BITS));
    push_result(L, s, s->answer, (int)(tag & WHAT_MASK));
    return lua_gettop(L);
}

static int collect_answer(lua_State *L, scheduler *s, lapse_answer *answer)
{
    s->answer = answer;
    int failed = lua_pcall(L, 1, LUA_MULTRET, 0);
    s->answer = NULL;
    s->shown = NULL;
    lapse_answer_free(answer);
    return failed;
}

/* (look) -> ticket, results. Likewise. */
static int push_look(lua_State *L)
{
    const look *l = lua_touserdata(L, 1);
    lua_settop(L, 0);
    glue_push_int64(L, l->ticket);
    return 1 + (l->result < 0 ? push_failure(L, l->result, l->words) : l->push(L, l));
}

static int collect_look(lua_State *L, look *l)
{
    lua_pushlightuserdata(L, l);
    int failed = lua_pcall(L, 1, LUA_MULTRET, 0);
    glue_free_look(l);
    return failed;
}

/* scheduler -> ticket and results of the next answer; nil: none has come. */
static int collect(lua_State *L)
{
    scheduler *s = glue_self(L);
    lua_settop(L, 1);
    if (!s->lapse)
        return 0;
    int failed;
    lapse_answer answer;
    look *l = glue_next_look(s);
    lua_pushcfunction(L, l ? push_look : push_answer);
    if (l) {
        failed = collect_look(L, l);
    } else {
        lua_pushvalue(L, 1);
        if (lapse_collect(s->lapse, &answer) <= 0)
            return glue_finish(L, s, 0);
        failed = collect_answer(L, s, &answer);
    }
    return failed ? lua_error(L) : glue_finish(L, s, lua_gettop(L) - 1);
}

const luaL_Reg glue_ask_methods[] = {{"collect", collect}, {NULL, NULL}};
