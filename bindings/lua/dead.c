/* dead.c - dead letters: schedule them again, or delete them.
 *
 * They keep their callbacks in the scheduler's own table until one or the other. */
#include "look.h"

/* (scheduler, id, [delay, [generation]]) -> the new generation; nil, message, code. */
static int requeue(lua_State *L)
{
    scheduler *s = glue_self(L);
    const char *id;
    bool possible = glue_read_id(L, 2, &id);
    lapse_ns delay = lua_isnoneornil(L, 3) ? 0 : glue_check_seconds(L, 3, "the delay");
    int64_t generation = glue_check_generation(L, 4);
    if (!s->lapse)
        return glue_closed(L);
    if (!possible)
        return glue_unknown(L);
    if (s->submits)
        return glue_submit_named(
            L, s,
            (lapse_ask){
                .what = LAPSE_ASK_REQUEUE, .id = id, .generation = generation, .delay = delay});
    int64_t answer;
    GLUE_CALL(L, s, answer, lapse_requeue(s->lapse, id, generation, delay));
    if (answer < 0)
        return glue_finish(L, s, glue_failure(L, answer));
    glue_push_int64(L, answer);
    return glue_finish(L, s, 1);
}

static int64_t make_purge(look *l, lapse *s)
{
    return lapse_purge(s, l->name, l->number);
}

static int push_result(lua_State *L, const look *l)
{
    glue_push_int64(L, l->result);
    return 1;
}

static int purge_aside(lua_State *L, scheduler *s, const char *id, int64_t generation)
{
    look *l = glue_new_look(make_purge, push_result, id);
    if (l)
        l->number = generation;
    return glue_look_aside(L, s, l);
}

/* (scheduler, [id, [generation]]) -> how many were deleted; nil, message, code. */
static int purge(lua_State *L)
{
    scheduler *s = glue_self(L);
    lua_settop(L, 3);
    const char *id = NULL;
    bool possible = lua_isnil(L, 2) || glue_read_id(L, 2, &id);
    int64_t generation = glue_check_generation(L, 3);
    if (!id && generation != LAPSE_ANY)
        glue_misuse(L, "a generation is of one order: name its id");
    if (!s->lapse)
        return glue_closed(L);
    int64_t purged = 0;
    if (possible && s->submits)
        return purge_aside(L, s, id, generation);
    if (possible)
        GLUE_CALL(L, s, purged, lapse_purge(s->lapse, id, generation));
    if (purged < 0)
        return glue_finish(L, s, glue_failure(L, purged));
    glue_push_int64(L, purged);
    return glue_finish(L, s, 1);
}

const luaL_Reg glue_dead_methods[] = {{"requeue", requeue}, {"purge", purge}, {NULL, NULL}};
