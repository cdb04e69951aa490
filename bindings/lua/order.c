/* order.c - orders as Lua sees them, from the claim to the settlement.
 *
 * An order is a userdata that holds a copy of everything: it stays readable after it was
 * settled. Its own table is the scheduler's. One that a callback is shown is settled by the
 * loop in Lua; one that was taken is `held` until one of its methods settles it, and given
 * back if it is forgotten. */
#include "look.h"

#include <string.h>

typedef struct order {
    lapse_order view; /* its pointers lead into `bytes` */
    bool held;        /* taken and not settled */
    char bytes[];     /* id, NUL, queue, NUL, payload */
} order;

/* -- Make -- */

static char *put_bytes(char *to, const void *from, size_t len)
{
    if (len)
        memcpy(to, from, len);
    return to + len;
}

static void copy_order(order *o, const lapse_order *from, size_t queue_len)
{
    char *queue = put_bytes(o->bytes, from->id, from->id_len + 1);
    char *payload = put_bytes(queue, from->queue, queue_len + 1);
    put_bytes(payload, from->payload, from->payload_len);
    o->view = *from;
    o->view.id = o->bytes;
    o->view.queue = queue;
    o->view.payload = from->payload ? payload : NULL;
    o->held = false;
}

/* Push an order with the metatable at `meta` and the scheduler's own table at `own`. */
static order *push_order(lua_State *L, const lapse_order *from, int meta, int own)
{
    size_t queue_len = strlen(from->queue);
    size_t size = sizeof(order) + from->id_len + queue_len + 2 + from->payload_len;
    order *o = glue_new_object(L, size, 1);
    copy_order(o, from, queue_len);
    lua_pushvalue(L, own);
    glue_set_own(L, -2);
    lua_pushvalue(L, meta);
    lua_setmetatable(L, -2);
    return o;
}

/* (scheduler, metatable, whether taken) -> order, or callback, id, order. Turns what the
 * scheduler offers into Lua values, in a protected call. */
int glue_offer(lua_State *L)
{
    const scheduler *s = lua_touserdata(L, 1);
    const lapse_order *from = s->offered;
    uint32_t number = s->offered_arg ? slots_number(s->offered_arg) : 0;
    bool taken = lua_toboolean(L, 3);
    glue_get_own(L, 1);
    if (taken) {
        push_order(L, from, 2, 4)->held = true;
        return 1;
    }
    lua_rawgeti(L, 4, (int)number);
    lua_pushlstring(L, from->id, from->id_len);
    push_order(L, from, 2, 4);
    return 3;
}

/* Prepare the protected call, before the claim: this may raise. */
static void prepare_offer(lua_State *L, int metatable, bool taken)
{
    lua_pushvalue(L, lua_upvalueindex(UP_OFFER));
    lua_pushvalue(L, 1);
    lua_pushvalue(L, lua_upvalueindex(metatable));
    lua_pushboolean(L, taken);
}

/* Make it. Without memory for the Lua values the order is pending again. */
static int offer(lua_State *L, scheduler *s, const lapse_order *from, void *arg, int results)
{
    int64_t fence = from->fence;
    s->offered = from;
    s->offered_arg = arg;
    if (lua_pcall(L, 3, results, 0) == 0)
        return LAPSE_OK;
    lapse_settle(s->lapse, fence, LAPSE_GIVE_BACK, 0, NULL);
    return LAPSE_ENOMEM;
}

/* -- Callbacks: begin and settle, for the loop in Lua -- */

/* scheduler -> callback, id, order of the next one that is due by `until`, for whose run there
 * is room; nil when none is due; nil, message, code. After stop the descriptor stays readable
 * until a pass that has run nothing says so. */
static int begin_by(lua_State *L, scheduler *s, lapse_ns until)
{
    const lapse_order *next = NULL;
    lapse_callback fn;
    void *arg = NULL;
    int found;
    prepare_offer(L, UP_ORDER, false);
    GLUE_CALL(L, s, found, lapse_begin(s->lapse, until, &next, &fn, &arg));
    if (found == LAPSE_ECLOSED && s->runs[s->depth].fence == 0)
        lapse_process(s->lapse, 1); /* Runs nothing: its descriptor has told the host. */
    if (found < 0)
        return glue_finish(L, s, glue_failure(L, found));
    if (found == 0) {
        lua_pushnil(L);
        return glue_finish(L, s, 1); /* Some may have expired. */
    }
    s->runs[s->depth].overran = false;
    s->runs[s->depth++].fence = next->fence; /* From here on close() is refused. */
    if (offer(L, s, next, arg, 3) < 0) {
        s->depth--;
        return lua_error(L);
    }
    return 3;
}

/* scheduler -> callback, id, order of the next one that the pass has. */
static int begin(lua_State *L)
{
    scheduler *s = glue_self(L);
    if (!s->lapse)
        return glue_closed(L);
    if (s->depth >= s->run_room)
        return glue_misuse(L, "no pass has begun");
    return begin_by(L, s, s->runs[s->depth].until);
}

/* The same without a pass: a run apart from all others, which ends when it ends. */
static int begin_apart(lua_State *L)
{
    scheduler *s = glue_self(L);
    if (!s->lapse)
        return glue_closed(L);
    if (!glue_reserve_run(s))
        return glue_no_memory(L);
    s->runs[s->depth] = (run){.until = LAPSE_FOREVER};
    return begin_by(L, s, LAPSE_FOREVER);
}

/* Look for an order on a durable store without starting one: the scheduler's descriptor is
 * readable until a host has looked. */
static int look_only(lua_State *L)
{
    scheduler *s = glue_self(L);
    const lapse_order *none;
    lapse_callback fn;
    void *arg;
    if (s->lapse) /* Nothing is due by the beginning of time. */
        (void)lapse_begin(s->lapse, INT64_MIN, &none, &fn, &arg);
    return glue_finish(L, s, 0);
}

/* (scheduler, number) So many callbacks can start at once: what the next looks are for. */
static int want(lua_State *L)
{
    scheduler *s = glue_self(L);
    lua_Integer callbacks = luaL_checkinteger(L, 2);
    if (s->lapse && callbacks != s->wanted && lapse_want(s->lapse, (unsigned)callbacks) == LAPSE_OK)
        s->wanted = callbacks;
    return 0;
}

/* (scheduler, order, verdict, delay or nil, error or nil) */
typedef struct settlement {
    int64_t fence;
    lapse_verdict verdict;
    lapse_ns delay;
    const char *error;
} settlement;

static settlement check_settlement(lua_State *L)
{
    if (!glue_is(L, 2, UP_ORDER))
        glue_misuse(L, "an order is expected, got %s", luaL_typename(L, 2));
    const order *o = lua_touserdata(L, 2);
    return (settlement){
        .fence = o->view.fence,
        .verdict = (lapse_verdict)luaL_checkinteger(L, 3),
        .delay = lua_isnoneornil(L, 4) ? -1 : glue_check_seconds(L, 4, "the delay"),
        .error = glue_check_text(L, 5, "the error"),
    };
}

/* The run with this fence, counted from 1; 0: a fork in the callback, the order is the
 * parent's. */
static uint32_t find_run(const scheduler *s, int64_t fence)
{
    uint32_t at = s->depth;
    while (at > 0 && s->runs[at - 1].fence != fence)
        at--;
    return at;
}

/* End a run; the last one takes its place. -> whether it had lost its order, whether there is
 * something to tell. */
static int end_run(lua_State *L, scheduler *s, uint32_t at, const settlement *end)
{
    run *ended = &s->runs[at - 1];
    lapse_settle(s->lapse, end->fence, end->verdict, end->delay, end->error);
    bool overran = ended->overran && end->verdict != LAPSE_FAIL;
    ended->overran = false;
    *ended = s->runs[--s->depth];
    slots_drain(L, &s->slots);
    lua_pushboolean(L, overran);
    lua_pushboolean(L, glue_has_news(s));
    return 2;
}

/* End a run of a pass, and what was begun within it. */
static int settle(lua_State *L)
{
    scheduler *s = glue_self(L);
    settlement end = check_settlement(L);
    uint32_t at = find_run(s, end.fence);
    if (at == 0)
        return 0;
    glue_unwind(s, at, LAPSE_FAIL, "its run was left unfinished");
    return end_run(L, s, at, &end);
}

/* End a run that is apart from all others. */
static int settle_apart(lua_State *L)
{
    scheduler *s = glue_self(L);
    settlement end = check_settlement(L);
    uint32_t at = find_run(s, end.fence);
    return at ? end_run(L, s, at, &end) : 0;
}

/* -- Pull: poll and take -- */

static int hand_over(lua_State *L, scheduler *s, int found, const lapse_order *next)
{
    if (found < 0)
        return glue_finish(L, s, glue_failure(L, found));
    if (offer(L, s, next, NULL, 1) < 0)
        return lua_error(L);
    return glue_finish(L, s, 1);
}

static int poll(lua_State *L)
{
    scheduler *s = glue_self(L);
    const char *queue = glue_check_queue(L, 2);
    if (!s->lapse)
        return glue_closed(L);
    const lapse_order *next = NULL;
    int found;
    prepare_offer(L, UP_CLAIM, true);
    GLUE_CALL(L, s, found, lapse_poll(s->lapse, queue, &next));
    if (found == 0) {
        lua_pushnil(L);
        return glue_finish(L, s, 1);
    }
    return hand_over(L, s, found, next);
}

static int take(lua_State *L)
{
    scheduler *s = glue_self(L);
    const char *queue = glue_check_queue(L, 2);
    lapse_ns timeout = glue_check_timeout(L, 3), start = glue_real_now();
    lua_settop(L, 3);
    if (!s->lapse)
        return glue_closed(L);
    const lapse_order *next = NULL;
    int found;
    for (;;) {
        prepare_offer(L, UP_CLAIM, true);
        GLUE_CALL(L, s, found, lapse_take(s->lapse, queue, glue_left(timeout, start), &next));
        if (found != LAPSE_EINTR)
            break;
        lua_settop(L, 3);
        glue_after_signal(L);
    }
    if (found == 0)
        return glue_finish(L, s, glue_condition(L, LAPSE_ETIMEOUT, lapse_strerror(LAPSE_ETIMEOUT)));
    return hand_over(L, s, found, next);
}

/* -- Settle what was taken -- */

static order *check_claim(lua_State *L)
{
    if (!glue_is(L, 1, UP_CLAIM))
        glue_misuse(L, "call it with a colon, on an order that was taken");
    return lua_touserdata(L, 1);
}

/* Put the scheduler of the order at index 1 there. */
static scheduler *scheduler_of(lua_State *L)
{
    glue_get_own(L, 1);
    lua_rawgeti(L, -1, OWN_SCHEDULER);
    lua_replace(L, 1);
    lua_pop(L, 1);
    return lua_touserdata(L, 1);
}

static int end_claim(lua_State *L, lapse_verdict verdict, lapse_ns delay, const char *error)
{
    order *o = check_claim(L);
    if (!o->held)
        return glue_condition(L, LAPSE_ESTALE, "the order was settled already");
    int64_t fence = o->view.fence;
    lua_pushvalue(L, 1); /* The order stays reachable below its scheduler. */
    lua_insert(L, 2);
    scheduler *s = scheduler_of(L);
    if (!s->lapse)
        return glue_closed(L);
    o->held = false;
    int code;
    GLUE_CALL(L, s, code, lapse_settle(s->lapse, fence, verdict, delay, error));
    if (code < 0)
        return glue_finish(L, s, glue_failure(L, code));
    lua_pushboolean(L, true);
    return glue_finish(L, s, 1);
}

static int claim_done(lua_State *L)
{
    return end_claim(L, LAPSE_DONE, 0, NULL);
}

static int claim_retry(lua_State *L)
{
    lapse_ns delay = lua_isnoneornil(L, 2) ? -1 : glue_check_seconds(L, 2, "the delay");
    return end_claim(L, LAPSE_RETRY, delay, glue_check_text(L, 3, "the error"));
}

static int claim_reject(lua_State *L)
{
    return end_claim(L, LAPSE_REJECT, 0, glue_check_text(L, 2, "the reason"));
}

static int claim_give_back(lua_State *L)
{
    return end_claim(L, LAPSE_GIVE_BACK, 0, NULL);
}

/* Nobody can settle it any more. Allocates nothing, calls nothing in Lua. */
static int collect_claim(lua_State *L)
{
    order *o = lua_touserdata(L, 1);
    if (!o->held)
        return 0;
    o->held = false;
    scheduler *s = scheduler_of(L);
    if (s && s->lapse)
        lapse_settle(s->lapse, o->view.fence, LAPSE_GIVE_BACK, 0, NULL);
    return 0;
}

/* -- Whether it is held -- */

static order *check_order(lua_State *L)
{
    if (!glue_is(L, 1, UP_CLAIM) && !glue_is(L, 1, UP_ORDER))
        glue_misuse(L, "call it with a colon, on an order");
    return lua_touserdata(L, 1);
}

static int64_t make_holds(look *l, lapse *s)
{
    return lapse_holds(s, l->number);
}

static int push_holds(lua_State *L, const look *l)
{
    lua_pushboolean(L, l->result > 0);
    return 1;
}

static int holds_aside(lua_State *L, scheduler *s, int64_t fence)
{
    look *l = glue_new_look(make_holds, push_holds, NULL);
    if (l)
        l->number = fence;
    return glue_look_aside(L, s, l);
}

static int holds(lua_State *L)
{
    int64_t fence = check_order(L)->view.fence;
    scheduler *s = scheduler_of(L);
    if (s->submits && s->lapse)
        return holds_aside(L, s, fence);
    lua_pushboolean(L, s->lapse && lapse_holds(s->lapse, fence));
    return 1;
}

/* (order, [lease]) -> true; nil, message, "Stale". */
static int renew(lua_State *L)
{
    int64_t fence = check_order(L)->view.fence;
    lapse_ns lease = lua_isnoneornil(L, 2) ? 0 : glue_check_seconds(L, 2, "the lease");
    scheduler *s = scheduler_of(L);
    if (!s->lapse)
        return glue_closed(L);
    int code;
    GLUE_CALL(L, s, code, lapse_renew(s->lapse, fence, lease));
    if (code < 0)
        return glue_failure(L, code);
    lua_pushboolean(L, true);
    return 1;
}

/* -- Look -- */

enum { ID = 1, QUEUE, PAYLOAD, DUE, LATE, FENCE, FENCE_TEXT, GENERATION, KEY, ATTEMPT };

static const glue_name fields[] = {
    {"id", ID},
    {"queue", QUEUE},
    {"payload", PAYLOAD},
    {"due", DUE},
    {"late", LATE},
    {"fence", FENCE},
    {"fence_text", FENCE_TEXT},
    {"generation", GENERATION},
    {"key", KEY},
    {"attempt", ATTEMPT},
    {NULL, 0},
};

void glue_add_order_fields(lua_State *L)
{
    for (const glue_name *f = fields; f->name; f++) {
        lua_pushinteger(L, f->value);
        lua_setfield(L, -2, f->name);
    }
}

static void push_field(lua_State *L, const lapse_order *view, int field)
{
    switch (field) {
    case ID:
        lua_pushlstring(L, view->id, view->id_len);
        return;
    case QUEUE:
        lua_pushstring(L, view->queue);
        return;
    case PAYLOAD:
        if (view->payload)
            lua_pushlstring(L, view->payload, view->payload_len);
        else
            lua_pushnil(L);
        return;
    case DUE:
        glue_push_seconds(L, view->due);
        return;
    case LATE:
        glue_push_seconds(L, view->late);
        return;
    case FENCE:
        glue_push_int64(L, view->fence);
        return;
    case FENCE_TEXT:
        glue_push_decimal(L, view->fence);
        return;
    case KEY:
        glue_push_key(L, view->id, view->generation);
        return;
    case GENERATION:
        glue_push_int64(L, view->generation);
        return;
    default:
        lua_pushinteger(L, view->attempt);
    }
}

int glue_order_index(lua_State *L)
{
    const order *o = lua_touserdata(L, 1);
    lua_settop(L, 2);
    lua_rawget(L, lua_upvalueindex(1));
    if (o && lua_type(L, -1) == LUA_TNUMBER)
        push_field(L, &o->view, (int)lua_tointeger(L, -1));
    return 1;
}

static int read_only(lua_State *L)
{
    return luaL_error(L, "an order cannot be written to");
}

static int to_string(lua_State *L)
{
    const order *o = lua_touserdata(L, 1);
    lua_pushlstring(L, o->view.id, o->view.id_len);
    return 1;
}

/* -- Tables -- */

const luaL_Reg glue_run_methods[] = {
    {"begin", begin}, {"settle", settle},  {"begin_apart", begin_apart},
    {"want", want},   {"look", look_only}, {"settle_apart", settle_apart},
    {NULL, NULL},
};

const luaL_Reg glue_pull_methods[] = {{"poll", poll}, {"take", take}, {NULL, NULL}};

const luaL_Reg glue_order_meta[] = {
    {"__newindex", read_only},
    {"__tostring", to_string},
    {NULL, NULL},
};

const luaL_Reg glue_order_methods[] = {{"holds", holds}, {"renew", renew}, {NULL, NULL}};

const luaL_Reg glue_claim_meta[] = {
    {"__newindex", read_only},
    {"__tostring", to_string},
    {"__gc", collect_claim},
    {"__close", collect_claim},
    {NULL, NULL},
};

const luaL_Reg glue_claim_methods[] = {
    {"done", claim_done},           {"retry", claim_retry}, {"reject", claim_reject},
    {"give_back", claim_give_back}, {NULL, NULL},
};
