/* schedule.c - schedule, cancel and change orders.
 *
 * A callback is anchored before its order is scheduled and dropped if that is refused; one
 * that handles a queue is anchored there already, and its order only names the queue.
 * Arguments are checked before anything is changed; what is read from a table is read
 * without calling into Lua. */
#include "glue.h"

/* -- Schedule -- */

lapse_verdict glue_call_in_lua(const lapse_order *order, void *arg)
{
    (void)order;
    (void)arg;
    return LAPSE_GIVE_BACK;
}

/* Schedule `spec` with the callback at index `callback`, 0: none. -> the generation, or a
 * ticket. */
static int64_t try_put(lua_State *L, scheduler *s, lapse_spec *spec, int callback)
{
    uint32_t number = 0;
    if (callback) {
        number = slots_anchor(L, &s->slots, callback);
        if (!number)
            return LAPSE_ENOMEM;
        spec->fn = glue_call_in_lua;
        spec->arg = slots_arg(&s->slots, number);
    }
    int64_t generation = s->submits ? glue_submit_put(s, spec) : lapse_put(s->lapse, spec);
    if (generation < 0 && number)
        slots_drop(L, &s->slots, number);
    return generation;
}

/* Whether the order is for the handler that the callback is. */
static bool name_handler(lua_State *L, const scheduler *s, int callback, int queue,
                         lapse_spec *spec)
{
    int named = glue_name_handler(L, s, callback, queue, spec);
    if (named < 0)
        glue_misuse(L, "the callback handles several queues: name one of them");
    return named > 0;
}

/* A durable order outlives this process and its functions. */
static int refuse_unregistered(lua_State *L)
{
    return glue_condition(L, LAPSE_EUNSUPPORTED,
                          "the callback handles no such queue here: an order in a durable store "
                          "outlives the process, so register it with handle(queue, callback), or "
                          "name the queue that another process handles");
}

/* `queue` is where the name of the queue stands, if `spec` has one. */
static int put_order(lua_State *L, scheduler *s, lapse_spec *spec, int callback, int queue)
{
    if (!s->lapse)
        return glue_closed(L);
    if (callback && s->handles && name_handler(L, s, callback, queue, spec))
        callback = 0;
    if (callback && s->durable)
        return refuse_unregistered(L);
    int64_t generation;
    GLUE_CALL(L, s, generation, try_put(L, s, spec, callback));
    if (generation < 0)
        return glue_finish(L, s, glue_failure(L, generation));
    glue_push_int64(L, generation);
    return glue_finish(L, s, 1);
}

static int schedule(lua_State *L)
{
    scheduler *s = glue_self_anew(L);
    if (lua_gettop(L) != 4)
        lua_settop(L, 4);
    size_t id_len;
    const char *id = glue_check_id(L, 2, &id_len);
    lapse_ns delay = glue_check_seconds(L, 3, "the delay");
    glue_check_callback(L, 4, "the callback");
    lapse_spec spec = glue_spec(id, id_len);
    spec.delay = delay;
    return put_order(L, s, &spec, 4, 0);
}

static int schedule_at(lua_State *L)
{
    scheduler *s = glue_self(L);
    lua_settop(L, 4);
    lapse_spec spec = {.id = NULL};
    spec.id = glue_check_id(L, 2, &spec.id_len);
    spec.at = glue_check_instant(L, 3, "the instant");
    glue_check_callback(L, 4, "the callback");
    return put_order(L, s, &spec, 4, 0);
}

/* -- Orders in full -- */

static const char *const spec_names[] = {"id",      "queue",    "delay",   "at",
                                         "payload", "callback", "replace", NULL};
enum { SPEC_ID, SPEC_QUEUE, SPEC_DELAY, SPEC_AT, SPEC_PAYLOAD, SPEC_CALLBACK, SPEC_REPLACE, SPECS };

/* Push the fields of the table at `table`, in the order of spec_names. Calls nothing and
 * allocates nothing when the names lie on the stack from `names` on. */
static int push_spec(lua_State *L, int table, int names)
{
    int first = lua_gettop(L) + 1;
    for (int i = 0; i < SPECS; i++) {
        lua_pushvalue(L, names + i);
        lua_rawget(L, table);
    }
    return first;
}

static int push_spec_names(lua_State *L)
{
    luaL_checkstack(L, 3 * SPECS, "an order");
    for (int i = 0; i < SPECS; i++)
        lua_pushstring(L, spec_names[i]);
    return lua_gettop(L) - SPECS + 1;
}

static void check_spec_types(lua_State *L, int table)
{
    if (!lua_istable(L, table))
        glue_misuse(L, "an order is a table with id, delay or at, and callback or queue; got %s",
                    luaL_typename(L, table));
    glue_check_keys(L, table, "an order", spec_names);
}

/* Read what push_spec pushed from `first` on, but the id; the strings must stay on the
 * stack or in their table while `spec` is used. Raises for wrong types and ranges. */
static void read_spec(lua_State *L, int first, lapse_spec *spec)
{
    spec->queue = glue_check_queue(L, first + SPEC_QUEUE);
    if (!lua_isnil(L, first + SPEC_DELAY))
        spec->delay = glue_check_seconds(L, first + SPEC_DELAY, "the delay");
    if (!lua_isnil(L, first + SPEC_AT)) {
        if (!lua_isnil(L, first + SPEC_DELAY))
            glue_misuse(L, "an order has a delay or an instant `at`, not both");
        spec->at = glue_check_instant(L, first + SPEC_AT, "the instant");
    }
    glue_check_text(L, first + SPEC_PAYLOAD, "the payload");
    if (!lua_isnil(L, first + SPEC_PAYLOAD))
        spec->payload = lua_tolstring(L, first + SPEC_PAYLOAD, &spec->payload_len);
    if (!lua_isnil(L, first + SPEC_CALLBACK))
        glue_check_callback(L, first + SPEC_CALLBACK, "the callback");
    if (lua_toboolean(L, first + SPEC_REPLACE))
        spec->flags = LAPSE_REPLACE;
}

static int put(lua_State *L)
{
    scheduler *s = glue_self_anew(L);
    lua_settop(L, 2);
    check_spec_types(L, 2);
    int first = push_spec(L, 2, push_spec_names(L));
    lapse_spec spec = {.id = NULL};
    spec.id = glue_check_id(L, first + SPEC_ID, &spec.id_len);
    read_spec(L, first, &spec);
    bool has_callback = !lua_isnil(L, first + SPEC_CALLBACK);
    return put_order(L, s, &spec, has_callback ? first + SPEC_CALLBACK : 0, first + SPEC_QUEUE);
}

/* -- Many orders -- */

typedef struct batch {
    size_t count;
    size_t filled;     /* specs that are ready, their callbacks anchored */
    lapse_spec *specs; /* these lead into the same block */
    int64_t *results;
    uint32_t *numbers; /* 0: no callback, or refused before it was tried */
} batch;

static batch *push_batch(lua_State *L, size_t count)
{
    size_t each = sizeof(lapse_spec) + sizeof(int64_t) + sizeof(uint32_t);
    batch *b = lua_newuserdata(L, sizeof *b + count * each);
    *b = (batch){.count = count};
    b->specs = (lapse_spec *)(b + 1);
    b->results = (int64_t *)(b->specs + count);
    b->numbers = (uint32_t *)(b->results + count);
    return b;
}

/* (scheduler, orders, batch, name of the callback's field) Anchor all callbacks. */
static int anchor_batch(lua_State *L)
{
    scheduler *s = lua_touserdata(L, 1);
    batch *b = lua_touserdata(L, 3);
    for (size_t i = 0; i < b->count; i++) {
        lua_settop(L, 4);
        lua_rawgeti(L, 2, (int)i + 1);
        lua_pushvalue(L, 4);
        lua_rawget(L, -2);
        b->numbers[i] = 0;
        if (!lua_isnil(L, -1)) {
            b->numbers[i] = slots_anchor(L, &s->slots, lua_gettop(L));
            if (!b->numbers[i])
                return luaL_error(L, "%s", lapse_strerror(LAPSE_ENOMEM));
        }
        b->filled = i + 1;
    }
    return 0;
}

static void drop_batch(lua_State *L, scheduler *s, batch *b, bool all)
{
    for (size_t i = 0; i < b->filled; i++)
        if (b->numbers[i] && (all || b->results[i] < 0))
            slots_drop(L, &s->slots, b->numbers[i]);
}

/* One order after the other, with the types checked; a bad id or time is a result. */
static void check_batch(lua_State *L, const scheduler *s, int names)
{
    size_t count = glue_length(L, 2);
    for (size_t i = 0; i < count; i++) {
        int top = lua_gettop(L);
        lua_rawgeti(L, 2, (int)i + 1);
        check_spec_types(L, top + 1);
        int first = push_spec(L, top + 1, names);
        const char *id;
        lapse_spec spec = {.id = NULL};
        glue_read_id(L, first + SPEC_ID, &id);
        read_spec(L, first, &spec);
        if (!lua_isnil(L, first + SPEC_CALLBACK))
            name_handler(L, s, first + SPEC_CALLBACK, first + SPEC_QUEUE, &spec);
        lua_settop(L, top);
    }
}

/* Read the batch once more, now to use it. Allocates nothing, so that no finalizer runs
 * and the strings stay where they are. An id that cannot be is left for the library. */
static void fill_batch(lua_State *L, scheduler *s, batch *b, int names)
{
    for (size_t i = 0; i < b->count; i++) {
        int top = lua_gettop(L);
        lua_rawgeti(L, 2, (int)i + 1);
        int first = push_spec(L, top + 1, names);
        lapse_spec *spec = &b->specs[i];
        *spec = (lapse_spec){.id = NULL};
        spec->id = lua_tolstring(L, first + SPEC_ID, &spec->id_len);
        read_spec(L, first, spec);
        if (b->numbers[i] &&
            glue_name_handler(L, s, first + SPEC_CALLBACK, first + SPEC_QUEUE, spec) > 0) {
            slots_drop(L, &s->slots, b->numbers[i]); /* The handler has it already. */
            b->numbers[i] = 0;
        }
        lua_settop(L, top);
    }
}

static void attach_callbacks(scheduler *s, batch *b)
{
    for (size_t i = 0; i < b->count; i++) {
        if (!b->numbers[i])
            continue;
        b->specs[i].fn = glue_call_in_lua;
        b->specs[i].arg = slots_arg(&s->slots, b->numbers[i]);
    }
}

/* Push the array for the results and one of the codes' names, for when they are needed. */
static int push_answers(lua_State *L, const batch *b)
{
    lua_createtable(L, (int)b->count, 0);
    lua_newtable(L);
#define PUSH_NAME(code, number, name, text)                                                        \
    lua_pushliteral(L, name);                                                                      \
    lua_rawseti(L, -2, -(number));
    LAPSE_ERROR_MAP(PUSH_NAME)
#undef PUSH_NAME
    return lua_gettop(L) - 1;
}

/* Return the results, in the array at `answers`. Allocates nothing: the orders exist. */
static int return_results(lua_State *L, const batch *b, int answers, int64_t accepted)
{
    for (size_t i = 0; i < b->count; i++) {
        if (b->results[i] > 0)
            glue_push_int64(L, b->results[i]);
        else
            lua_rawgeti(L, answers + 1, -(int)b->results[i]);
        lua_rawseti(L, answers, (int)i + 1);
    }
    lua_settop(L, answers);
    glue_push_int64(L, accepted);
    return 2;
}

/* Tickets as the results. */
static int64_t submit_batch(scheduler *s, batch *b)
{
    int64_t accepted = 0;
    for (size_t i = 0; i < b->count; i++) {
        b->results[i] = glue_submit_put(s, &b->specs[i]);
        accepted += b->results[i] > 0;
    }
    return accepted;
}

static int64_t put_batch(scheduler *s, batch *b)
{
    return s->submits ? submit_batch(s, b)
                      : lapse_schedule_many(s->lapse, b->specs, b->count, b->results);
}

static int64_t try_batch(lua_State *L, scheduler *s, batch *b, int names)
{
    b->filled = 0;
    lua_pushcfunction(L, anchor_batch);
    for (int i = 1; i <= 3; i++)
        lua_pushvalue(L, i);
    lua_pushvalue(L, names + SPEC_CALLBACK);
    if (lua_pcall(L, 4, 0, 0) != 0) {
        drop_batch(L, s, b, true);
        return lua_error(L);
    }
    fill_batch(L, s, b, names);
    attach_callbacks(s, b);
    int64_t accepted = put_batch(s, b);
    drop_batch(L, s, b, accepted < 0);
    return accepted;
}

static int schedule_many(lua_State *L)
{
    scheduler *s = glue_self(L);
    lua_settop(L, 2);
    if (!lua_istable(L, 2))
        glue_misuse(L, "an array of orders is expected, got %s", luaL_typename(L, 2));
    batch *b = push_batch(L, glue_length(L, 2));
    int answers = push_answers(L, b);
    int names = push_spec_names(L);
    luaL_checkstack(L, 4 * SPECS, "a batch");
    check_batch(L, s, names);
    if (!s->lapse)
        return glue_closed(L);
    int64_t accepted;
    GLUE_CALL(L, s, accepted, try_batch(L, s, b, names));
    if (accepted < 0)
        return glue_finish(L, s, glue_failure(L, accepted));
    return glue_finish(L, s, return_results(L, b, answers, accepted));
}

/* -- Cancel and change -- */

static int cancel(lua_State *L)
{
    scheduler *s = glue_self(L);
    const char *id;
    bool possible = glue_read_id(L, 2, &id);
    int64_t generation = glue_check_generation(L, 3);
    if (!s->lapse)
        return glue_closed(L);
    if (s->submits && possible)
        return glue_submit_named(
            L, s, (lapse_ask){.what = LAPSE_ASK_CANCEL, .id = id, .generation = generation});
    int fate = LAPSE_FATE_UNKNOWN;
    if (possible)
        GLUE_CALL(L, s, fate, lapse_cancel(s->lapse, id, generation));
    return glue_finish(L, s, glue_push_fate(L, fate));
}

static int cancel_wait(lua_State *L)
{
    scheduler *s = glue_self(L);
    const char *id;
    bool possible = glue_read_id(L, 2, &id);
    lapse_ns timeout = glue_check_timeout(L, 3), start = glue_real_now();
    int64_t generation = glue_check_generation(L, 4);
    if (!s->lapse)
        return glue_closed(L);
    int fate = LAPSE_FATE_UNKNOWN;
    while (possible) {
        GLUE_CALL(L, s, fate,
                  lapse_cancel_wait(s->lapse, id, generation, glue_left(timeout, start)));
        if (fate != LAPSE_EINTR)
            break;
        glue_after_signal(L);
    }
    return glue_finish(L, s, glue_push_fate(L, fate));
}

static int reschedule(lua_State *L)
{
    scheduler *s = glue_self(L);
    const char *id;
    bool possible = glue_read_id(L, 2, &id);
    lapse_ns delay = glue_check_seconds(L, 3, "the delay");
    int64_t generation = glue_check_generation(L, 4);
    if (!s->lapse)
        return glue_closed(L);
    if (s->submits && possible)
        return glue_submit_named(
            L, s,
            (lapse_ask){
                .what = LAPSE_ASK_RESCHEDULE, .id = id, .generation = generation, .delay = delay});
    int fate = LAPSE_FATE_UNKNOWN;
    if (possible)
        GLUE_CALL(L, s, fate, lapse_reschedule(s->lapse, id, generation, delay));
    return glue_finish(L, s, glue_push_fate(L, fate));
}

/* -- Tables -- */

const luaL_Reg glue_default_schedule_functions[] = {
    {"schedule", schedule},     {"put", put}, {"cancel", cancel},
    {"reschedule", reschedule}, {NULL, NULL},
};

const luaL_Reg glue_schedule_methods[] = {
    {"schedule", schedule},
    {"schedule_at", schedule_at},
    {"schedule_many", schedule_many},
    {"put", put},
    {"cancel", cancel},
    {"cancel_wait", cancel_wait},
    {"reschedule", reschedule},
    {NULL, NULL},
};
