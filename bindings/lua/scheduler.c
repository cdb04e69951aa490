/* scheduler.c - the scheduler object, from lapse.new to close, and what a loop needs of it.
 *
 * Index 1 is the scheduler in every call. Its own table holds the callbacks (slots.c),
 * itself for the orders that refer to it, the hooks (hooks.c) and the handlers (handle.c).
 * Orders are none of its business. */
#include "glue.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* -- Which scheduler -- */

void glue_check_dot(lua_State *L)
{
    if (!lua_istable(L, 1))
        return;
    lua_rawgeti(L, lua_upvalueindex(UP_TELLER), 2);
    bool module = lua_rawequal(L, 1, -1);
    lua_pop(L, 1);
    if (module)
        glue_misuse(L, "call it with a dot: the module has functions, a scheduler has methods");
}

static void insert_default(lua_State *L)
{
    glue_check_dot(L);
    glue_push_default(L);
    lua_insert(L, 1);
}

static scheduler *check_self(lua_State *L, glue_last *last)
{
    if (lua_istable(L, lua_upvalueindex(UP_DEFAULT)))
        insert_default(L);
    if (!glue_is(L, 1, UP_SCHEDULER))
        glue_misuse(L, "call it with a colon, on a scheduler; got %s", luaL_typename(L, 1));
    scheduler *s = lua_touserdata(L, 1);
    if (last)
        last->scheduler = s;
    return s;
}

scheduler *glue_self(lua_State *L)
{
    glue_last *last = lua_touserdata(L, lua_upvalueindex(UP_LAST));
    scheduler *s = lua_touserdata(L, 1);
    return s && last && last->scheduler == s ? s : check_self(L, last);
}

bool glue_revive(lua_State *L, scheduler *s)
{
    if (s->hosted || lapse_after_fork(s->lapse) < 0)
        return false;
    slots_forget(L, &s->slots);
    s->kept = 0;
    glue_forget_events(s);
    s->depth = 0;
    glue_restore_handlers(L, s);
    return true;
}

/* -- Time limits -- */

lapse_ns glue_real_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_BOOTTIME, &now);
    return LAPSE_SECONDS(now.tv_sec) + now.tv_nsec;
}

lapse_ns glue_left(lapse_ns timeout, lapse_ns start)
{
    if (timeout == LAPSE_FOREVER)
        return timeout;
    lapse_ns spent = glue_real_now() - start;
    return spent < timeout ? timeout - spent : 0;
}

static int nothing(lua_State *L)
{
    (void)L;
    return 0;
}

/* The interpreter's signal handler sets a hook, which runs with the next call. */
void glue_after_signal(lua_State *L)
{
    lua_pushcfunction(L, nothing);
    lua_call(L, 0, 0);
}

/* -- Open -- */

static const glue_name overflows[] = {
    {"refuse", LAPSE_REFUSE},
    {"dead_letter_oldest", LAPSE_DEAD_LETTER_OLDEST},
    {NULL, 0},
};

/* Push a scheduler that is closed yet, whose finalizer can take it as it is. */
static scheduler *push_scheduler(lua_State *L)
{
    scheduler *s = glue_new_object(L, sizeof *s, 1);
    *s = (scheduler){.lapse = NULL};
    lua_createtable(L, 0, 2);
    lua_pushvalue(L, -2);
    lua_rawseti(L, -2, OWN_SCHEDULER);
    glue_set_own(L, -2);
    lua_pushvalue(L, lua_upvalueindex(UP_SCHEDULER));
    lua_setmetatable(L, -2);
    return s;
}

/* The scheduler is on the stack top. */
static int open_scheduler(scheduler *s, const char *url, lapse_options *options)
{
    options->release = slots_release;
    glue_listen(s, options);
    int code = lapse_open(url, options, &s->lapse);
    s->durable = code == LAPSE_OK && (lapse_abilities(s->lapse) & LAPSE_CAN_DURABLE);
    return code;
}

/* Push the field `name` of the options; false for nil. */
static bool push_option(lua_State *L, const char *name)
{
    lua_getfield(L, 1, name);
    return !lua_isnil(L, -1);
}

/* The hook `name`, kept in the own table of the scheduler at index 2. */
static bool read_hook(lua_State *L, const char *name, int own)
{
    if (!push_option(L, name))
        return false;
    glue_check_callback(L, -1, name);
    glue_get_own(L, 2);
    lua_insert(L, -2);
    lua_rawseti(L, -2, own);
    return true;
}

static void read_seconds(lua_State *L, const char *name, lapse_ns *to)
{
    if (push_option(L, name))
        *to = glue_check_span(L, -1, name);
}

static void read_count(lua_State *L, const char *name, uint64_t *to)
{
    if (push_option(L, name))
        *to = glue_check_count(L, -1, name, UINT64_MAX);
}

/* A path that ended at a NUL would be another one. */
static const char *check_url(lua_State *L, int index, const char *what)
{
    const char *url = glue_check_text(L, index, what);
    if (url && strlen(url) != glue_length(L, index))
        glue_misuse(L, "the url contains a NUL byte");
    return url;
}

/* Read the table at index 1 into the options and the scheduler at index 2. */
static const char *read_options(lua_State *L, lapse_options *options, scheduler *s)
{
    static const char *const names[] = {"url",      "clock",    "max_pending", "overflow",
                                        "keep",     "max_dead", "lease",       "stuck_after",
                                        "on_error", "on_dead",  "log",         NULL};
    glue_check_keys(L, 1, "the options table", names);
    read_hook(L, "on_error", OWN_ON_ERROR);
    s->wants_dead = read_hook(L, "on_dead", OWN_ON_DEAD);
    s->wants_log = read_hook(L, "log", OWN_LOG);
    read_count(L, "max_pending", &options->max_pending);
    read_count(L, "max_dead", &options->max_dead);
    read_seconds(L, "keep", &options->keep);
    read_seconds(L, "lease", &options->lease);
    read_seconds(L, "stuck_after", &options->stuck_after);
    if (push_option(L, "overflow"))
        options->overflow = (lapse_overflow)glue_check_name(L, -1, "overflow", overflows);
    if (push_option(L, "clock")) {
        s->clock = glue_clock_share(L, lua_gettop(L));
        options->clock = glue_clock_of(s->clock);
    }
    lua_settop(L, 2);
    lua_getfield(L, 1, "url"); /* Stays on the stack for as long as it is read. */
    return check_url(L, 3, "the url");
}

/* Push the scheduler that the argument describes, yet closed, at index 2. */
static scheduler *read_scheduler(lua_State *L, const char **url, lapse_options *options)
{
    glue_check_dot(L);
    lua_settop(L, 1);
    scheduler *s = push_scheduler(L);
    *url = lua_istable(L, 1) ? read_options(L, options, s)
                             : check_url(L, 1, "the url, or an options table,");
    return s;
}

/* options -> scheduler, place. As new, for a host that does not wait: it opens on a thread
 * (opener.c), and tells of everything through a socket at that place (relay.c). */
static int new_apart(lua_State *L)
{
    lapse_options options = {.clock = NULL};
    const char *url;
    scheduler *s = read_scheduler(L, &url, &options);
    s->hosted = true;
    options.release = slots_release;
    glue_listen(s, &options);
    int results = glue_push_relay(L, s);
    if (results != 1)
        return results;
    int number = glue_start_opener(s, url, &options);
    if (number)
        return glue_refused(L, "a thread for the store", number);
    lua_replace(L, 1);
    lua_settop(L, 2);
    lua_insert(L, 1);
    return 2;
}

static int new_scheduler(lua_State *L)
{
    lapse_options options = {.clock = NULL};
    const char *url;
    scheduler *s = read_scheduler(L, &url, &options);
    int code = open_scheduler(s, url, &options);
    if (code < 0)
        return glue_failure(L, code);
    lua_settop(L, 2);
    return 1;
}

/* -- The default scheduler of this Lua state: it lives in the UP_DEFAULT table -- */

static scheduler *push_new_default(lua_State *L)
{
    scheduler *s = push_scheduler(L);
    lapse_options options = {.clock = NULL};
    int code = open_scheduler(s, NULL, &options);
    if (code < 0)
        glue_misuse(L, "the default scheduler does not open: %s", lapse_error_detail());
    return s;
}

/* The scheduler on the stack top is the default from now on. */
static void set_default(lua_State *L)
{
    lua_pushvalue(L, -1);
    lua_rawseti(L, lua_upvalueindex(UP_DEFAULT), 1);
}

void glue_push_default(lua_State *L)
{
    lua_rawgeti(L, lua_upvalueindex(UP_DEFAULT), 1);
    const scheduler *s = lua_touserdata(L, -1);
    if (s && s->lapse)
        return;
    lua_pop(L, 1);
    push_new_default(L);
    set_default(L);
}

/* The own table at `from` has a hook or the handlers that the one at `to` is to have. */
static void hand_on(lua_State *L, int from, int to, int own)
{
    lua_rawgeti(L, from, own);
    lua_rawseti(L, to, own);
}

/* A queue that is paused stays so. */
static int hand_on_pauses(lapse *from, lapse *to)
{
    const char *name;
    int code = LAPSE_OK;
    for (size_t i = 0; code == LAPSE_OK && (name = lapse_queue_name(from, i)); i++) {
        lapse_queue_stats queue;
        if (lapse_queue_statistics(from, name, &queue) == LAPSE_OK && queue.paused)
            code = lapse_pause(to, name);
    }
    return code;
}

/* Put a new scheduler with the hooks, handlers and pauses of the one at index 1 there. */
static scheduler *replace_default(lua_State *L, const scheduler *old)
{
    scheduler *s = push_new_default(L);
    int made = lua_gettop(L), from = made + 1, to = made + 2;
    glue_get_own(L, 1);
    glue_get_own(L, made);
    hand_on(L, from, to, OWN_ON_ERROR);
    hand_on(L, from, to, OWN_ON_DEAD);
    hand_on(L, from, to, OWN_HANDLERS);
    s->wants_dead = old->wants_dead;
    s->handles = old->handles;
    if (hand_on_pauses(old->lapse, s->lapse) < 0)
        luaL_error(L, "%s", lapse_strerror(LAPSE_ENOMEM));
    lua_settop(L, made);
    lua_replace(L, 1);
    glue_restore_handlers(L, s);
    lua_pushvalue(L, 1);
    set_default(L);
    lua_pop(L, 1);
    return s;
}

scheduler *glue_self_anew(lua_State *L)
{
    scheduler *s = glue_self(L);
    bool is_default = s->over && lua_istable(L, lua_upvalueindex(UP_DEFAULT));
    return is_default ? replace_default(L, s) : s;
}

static int default_scheduler(lua_State *L)
{
    glue_push_default(L);
    return 1;
}

/* -- Close -- */

void glue_unwind(scheduler *s, uint32_t depth, lapse_verdict verdict, const char *why)
{
    while (s->depth > depth)
        lapse_settle(s->lapse, s->runs[--s->depth].fence, verdict, 0, why);
}

/* After lapse_close: what the binding holds itself. */
static void forget(lua_State *L, scheduler *s)
{
    s->lapse = NULL;
    slots_forget(L, &s->slots);
    slots_close(&s->slots);
    s->kept = 0;
    glue_forget_handlers(L, s);
    glue_forget_events(s);
    free(s->runs);
    s->runs = NULL;
    s->depth = s->run_room = 0;
    glue_clock_leave(s->clock);
    s->clock = NULL;
}

/* How long to wait when nobody says it: for nothing, or for a durable store to take what was
 * settled last. */
static lapse_ns patience(const scheduler *s)
{
    return s->durable ? LAPSE_SECONDS(5) : 0;
}

/* The binding's own. */
static void close_threads(scheduler *s)
{
    glue_close_opener(s);
    glue_close_aside(s);
    glue_close_relay(s);
}

static int close_scheduler(lua_State *L)
{
    scheduler *s = glue_self(L);
    lapse_ns timeout = lua_isnoneornil(L, 2) ? patience(s) : glue_check_timeout(L, 2);
    glue_finish(L, s, 0); /* Nobody tells the hooks later. */
    if (s->lapse) {
        close_threads(s);
        int code = lapse_close(s->lapse, timeout);
        if (code == LAPSE_EINCALLBACK)
            return glue_condition(L, code, "close waits for callbacks and this is one: use stop()");
        if (code < 0)
            return glue_failure(L, code);
        forget(L, s);
    }
    lua_pushboolean(L, true);
    return 1;
}

/* Also in lua_close: runs nothing in Lua. What was claimed and not settled, even by a
 * callback that ended the program, is given back. */
static int collect(lua_State *L)
{
    scheduler *s = lua_touserdata(L, 1);
    glue_last *last = lua_touserdata(L, lua_upvalueindex(UP_LAST));
    if (last->scheduler == s)
        last->scheduler = NULL;
    close_threads(s);
    if (s->lapse) {
        glue_unwind(s, 0, LAPSE_GIVE_BACK, NULL);
        lapse_close(s->lapse, patience(s));
    }
    forget(L, s);
    return 0;
}

static int leave_scope(lua_State *L)
{
    lua_settop(L, 1); /* The error that ends the scope is no timeout. */
    return close_scheduler(L);
}

static int stop(lua_State *L)
{
    scheduler *s = glue_self(L);
    if (!s->lapse)
        return glue_closed(L);
    int code;
    GLUE_CALL(L, s, code, lapse_stop(s->lapse));
    if (code < 0)
        return glue_failure(L, code);
    lua_pushboolean(L, true);
    return 1;
}

/* -- The host's loop -- */

static int fd(lua_State *L)
{
    scheduler *s = glue_self(L);
    if (!s->lapse)
        return glue_closed(L);
    int number;
    GLUE_CALL(L, s, number, lapse_fd(s->lapse));
    if (number < 0)
        return glue_failure(L, number);
    lua_pushinteger(L, number);
    return 1;
}

static int next_due(lua_State *L)
{
    scheduler *s = glue_self(L);
    if (!s->lapse)
        return glue_closed(L);
    lapse_ns left;
    GLUE_CALL(L, s, left, lapse_timeout(s->lapse));
    if (left < 0)
        return glue_failure(L, left);
    if (left == LAPSE_FOREVER)
        lua_pushnil(L);
    else
        glue_push_seconds(L, left);
    return 1;
}

static int now(lua_State *L)
{
    const scheduler *s = glue_self(L);
    if (!s->lapse)
        return glue_closed(L);
    glue_push_seconds(L, lapse_now(s->lapse));
    return 1;
}

static int events(lua_State *L)
{
    glue_self(L);
    lua_pushliteral(L, "r");
    return 1;
}

/* -- For the loop in Lua -- */

bool glue_reserve_run(scheduler *s)
{
    if (s->depth < s->run_room)
        return true;
    uint32_t room = s->run_room ? 2 * s->run_room : 4;
    run *more = realloc(s->runs, room * sizeof *more);
    if (!more)
        return false;
    s->runs = more;
    s->run_room = room;
    return true;
}

/* Begin a pass: what is due by now. Returns the depth it runs at. */
static int begin_pass(lua_State *L)
{
    scheduler *s = glue_self(L);
    if (!s->lapse)
        return glue_closed(L);
    if (!glue_reserve_run(s))
        return glue_no_memory(L);
    s->runs[s->depth] = (run){.until = lapse_now(s->lapse)};
    glue_push_int64(L, s->depth);
    return 1;
}

/* A pass that began at this depth was left by an error. */
static int abandon_pass(lua_State *L)
{
    scheduler *s = glue_self(L);
    uint32_t depth = (uint32_t)luaL_checkinteger(L, 2);
    if (s->lapse)
        glue_unwind(s, depth, LAPSE_FAIL, "the run loop was interrupted");
    slots_drain(L, &s->slots);
    return 0;
}

/* The scheduler is nginx's: what is forked from that has no event loop, and a child's calls
 * answer "Forked". */
static int host(lua_State *L)
{
    glue_self(L)->hosted = true;
    return 0;
}

/* run returns, as the scheduler was stopped. Within a callback an outer one goes on. */
static int leave_run(lua_State *L)
{
    scheduler *s = glue_self(L);
    s->over = s->depth == 0;
    return 0;
}

/* How long run may wait, and a host not at all: a claim that is lost meanwhile may be worth
 * telling of. Nobody can advance a manual clock while this thread waits. */
static lapse_ns longest_wait(const scheduler *s)
{
    if (glue_has_news(s) || s->submits)
        return 0;
    return s->clock ? LAPSE_FOREVER : lapse_timeout(s->lapse);
}

/* Wait until there is something to do: true; nil, message, code. */
static int wait_due(lua_State *L)
{
    scheduler *s = glue_self(L);
    if (!s->lapse)
        return glue_closed(L);
    int code;
    GLUE_CALL(L, s, code, lapse_wait(s->lapse, longest_wait(s)));
    if (code < 0 && code != LAPSE_EINTR) /* The interpreter looks at its signals in Lua. */
        return glue_finish(L, s, glue_failure(L, code));
    lua_pushboolean(L, true);
    return glue_finish(L, s, 1);
}

static int to_string(lua_State *L)
{
    scheduler *s = glue_self(L);
    lua_pushfstring(L, "lapse.Scheduler (%s): %p", s->lapse ? "open" : "closed", (void *)s);
    return 1;
}

/* -- Tables -- */

const luaL_Reg glue_scheduler_functions[] = {
    {"new", new_scheduler},
    {"new_apart", new_apart},
    {NULL, NULL},
};

const luaL_Reg glue_default_functions[] = {
    {"default", default_scheduler}, {"fd", fd},   {"next", next_due}, {"now", now}, {"stop", stop},
    {"close", close_scheduler},     {NULL, NULL},
};

const luaL_Reg glue_scheduler_methods[] = {
    {"fd", fd},     {"next", next_due},         {"now", now},
    {"pollfd", fd}, {"events", events},         {"timeout", next_due},
    {"stop", stop}, {"close", close_scheduler}, {NULL, NULL},
};

const luaL_Reg glue_pass_methods[] = {
    {"begin_pass", begin_pass},
    {"abandon_pass", abandon_pass},
    {"wait", wait_due},
    {"leave_run", leave_run},
    {"host", host},
    {NULL, NULL},
};

const luaL_Reg glue_scheduler_meta[] = {
    {"__gc", collect},
    {"__close", leave_scope},
    {"__tostring", to_string},
    {NULL, NULL},
};
