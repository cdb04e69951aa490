/* convert.c - between Lua values and what the library takes and gives.
 *
 * Wrong arguments raise, with the place of the call and the name of the function; what
 * the world can do to a correct call is a condition: nil, a message, a code. Numbers are
 * never taken from strings, nor ids from numbers. */
#include "glue.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* -- Errors -- */

int glue_misuse(lua_State *L, const char *format, ...)
{
    lua_Debug ar = {0};
    luaL_where(L, 1);
    if (lua_getstack(L, 0, &ar))
        lua_getinfo(L, "n", &ar);
    if (ar.name)
        lua_pushfstring(L, "lapse.%s: ", ar.name);
    else
        lua_pushliteral(L, "lapse: ");
    va_list args;
    va_start(args, format);
    lua_pushvfstring(L, format, args);
    va_end(args);
    lua_concat(L, 3);
    return lua_error(L);
}

static const char *detail_of(int code)
{
    const char *detail = lapse_error_detail();
    return detail && *detail ? detail : lapse_strerror(code);
}

int glue_condition(lua_State *L, int code, const char *message)
{
    lua_pushnil(L);
    lua_pushstring(L, message);
    lua_pushstring(L, lapse_error_name(code));
    return 3;
}

int glue_failure(lua_State *L, int64_t result)
{
    int code = (int)result;
    if (code == LAPSE_EINVAL || code == LAPSE_ERANGE || code == LAPSE_EID)
        return glue_misuse(L, "%s", detail_of(code));
    if (code == LAPSE_ECLOSED)
        return glue_condition(L, code, "the scheduler was stopped: open another with lapse.new()");
    if (code == LAPSE_EFORKED)
        return glue_condition(L, code,
                              "the scheduler was opened before fork(): it is the parent's");
    return glue_condition(L, code, detail_of(code));
}

int glue_closed(lua_State *L)
{
    return glue_condition(L, LAPSE_ECLOSED,
                          "the scheduler was closed: open another with lapse.new()");
}

int glue_unknown(lua_State *L)
{
    return glue_condition(L, LAPSE_EUNKNOWN, lapse_strerror(LAPSE_EUNKNOWN));
}

int glue_no_memory(lua_State *L)
{
    return glue_condition(L, LAPSE_ENOMEM, lapse_strerror(LAPSE_ENOMEM));
}

int glue_refused(lua_State *L, const char *what, int number)
{
    char text[100];
    if (strerror_r(number, text, sizeof text))
        snprintf(text, sizeof text, "error %d", number);
    lua_pushnil(L);
    lua_pushfstring(L, "%s: %s", what, text);
    lua_pushstring(L, lapse_error_name(LAPSE_ESYSTEM));
    return 3;
}

bool glue_is(lua_State *L, int index, int upvalue)
{
    if (!lua_touserdata(L, index) || !lua_getmetatable(L, index))
        return false;
    bool same = lua_rawequal(L, -1, lua_upvalueindex(upvalue));
    lua_pop(L, 1);
    return same;
}

/* -- Ids and names -- */

static void check_string(lua_State *L, int index, const char *what)
{
    int type = lua_type(L, index);
    if (type == LUA_TSTRING)
        return;
    if (type == LUA_TNUMBER)
        glue_misuse(L, "%s is a string, got a number: format it, as in ('%%d'):format(id)", what);
    else
        glue_misuse(L, "%s is a string, got %s", what, luaL_typename(L, index));
}

const char *glue_check_id(lua_State *L, int index, size_t *len)
{
    check_string(L, index, "an order id");
    return lua_tolstring(L, index, len);
}

bool glue_read_id(lua_State *L, int index, const char **id)
{
    size_t len;
    check_string(L, index, "an order id");
    *id = lua_tolstring(L, index, &len);
    return lapse_check_id(*id, len) == LAPSE_OK;
}

const char *glue_check_queue(lua_State *L, int index)
{
    if (lua_isnoneornil(L, index))
        return NULL;
    size_t len;
    check_string(L, index, "a queue's name");
    const char *queue = lua_tolstring(L, index, &len);
    if (len > LAPSE_ID_MAX || strlen(queue) != len)
        glue_misuse(L, "a queue's name has at most %d bytes and no NUL", LAPSE_ID_MAX);
    return queue;
}

const char *glue_check_text(lua_State *L, int index, const char *what)
{
    if (lua_isnoneornil(L, index))
        return NULL;
    check_string(L, index, what);
    return lua_tostring(L, index);
}

void glue_check_keys(lua_State *L, int index, const char *what, const char *const *names)
{
    lua_pushnil(L);
    while (lua_next(L, index)) {
        lua_pop(L, 1);
        const char *key = lua_type(L, -1) == LUA_TSTRING ? lua_tostring(L, -1) : "";
        const char *const *name = names;
        while (*name && strcmp(*name, key) != 0)
            name++;
        if (!*name)
            glue_misuse(L, "%s has no field '%s'", what, *key ? key : luaL_typename(L, -1));
    }
}

/* Push "'a', 'b' or 'c'". */
static void push_choice(lua_State *L, const glue_name *names)
{
    lua_pushliteral(L, "");
    for (const glue_name *n = names; n->name; n++) {
        const char *before = n == names ? "" : n[1].name ? ", " : " or ";
        lua_pushfstring(L, "%s'%s'", before, n->name);
        lua_concat(L, 2);
    }
}

int glue_check_name(lua_State *L, int index, const char *what, const glue_name *names)
{
    check_string(L, index, what);
    const char *given = lua_tostring(L, index);
    for (const glue_name *n = names; n->name; n++)
        if (strcmp(n->name, given) == 0)
            return n->value;
    push_choice(L, names);
    return glue_misuse(L, "%s is %s, got '%s'", what, lua_tostring(L, -1), given);
}

const char *glue_name_of(const glue_name *names, int value)
{
    for (const glue_name *n = names; n->name; n++)
        if (n->value == value)
            return n->name;
    return NULL;
}

const glue_name glue_states[] = {
    {"pending", LAPSE_STATE_PENDING},
    {"running", LAPSE_STATE_RUNNING},
    {"done", LAPSE_STATE_DONE},
    {"dead", LAPSE_STATE_DEAD},
    {NULL, 0},
};

static const glue_name reasons[] = {
    {"failed", LAPSE_REASON_FAILED},   {"rejected", LAPSE_REASON_REJECTED},
    {"expired", LAPSE_REASON_EXPIRED}, {"maxlen", LAPSE_REASON_MAXLEN},
    {"lost", LAPSE_REASON_LOST},       {NULL, 0},
};

static const glue_name fates[] = {
    {"unknown", LAPSE_FATE_UNKNOWN},
    {"running", LAPSE_FATE_RUNNING},
    {"done", LAPSE_FATE_DONE},
    {NULL, 0},
};

int glue_push_fate(lua_State *L, int fate)
{
    if (fate < 0)
        return glue_failure(L, fate);
    bool changed = fate == LAPSE_FATE_CANCELLED || fate == LAPSE_FATE_RESCHEDULED;
    lua_pushboolean(L, changed);
    if (changed)
        return 1;
    lua_pushstring(L, glue_name_of(fates, fate));
    return 2;
}

/* -- Numbers and times -- */

static lua_Number check_number(lua_State *L, int index, const char *what, const char *unit)
{
    if (lua_type(L, index) != LUA_TNUMBER)
        glue_misuse(L, "%s is a number%s, got %s", what, unit, luaL_typename(L, index));
    return lua_tonumber(L, index);
}

static void refuse_seconds(lua_State *L, const char *what, const char *range, lua_Number seconds)
{
    glue_misuse(L, "%s is a number of seconds %s 100 years, got %f", what, range,
                isnan(seconds) ? fabs(seconds) : seconds); /* nan, not -nan */
}

lapse_ns glue_check_seconds(lua_State *L, int index, const char *what)
{
    lua_Number seconds = check_number(L, index, what, " of seconds");
    lapse_ns ns = 0;
    if (lapse_ns_from_seconds(seconds, &ns) < 0)
        refuse_seconds(L, what, "up to", seconds);
    return ns;
}

lapse_ns glue_check_span(lua_State *L, int index, const char *what)
{
    lua_Number seconds = check_number(L, index, what, " of seconds");
    lapse_ns ns = 0;
    if (seconds < 0 || lapse_ns_from_seconds(seconds, &ns) < 0)
        refuse_seconds(L, what, "from 0 to", seconds);
    return ns;
}

lapse_ns glue_check_timeout(lua_State *L, int index)
{
    if (lua_isnoneornil(L, index))
        return LAPSE_FOREVER;
    return glue_check_seconds(L, index, "the timeout");
}

static void refuse_instant(lua_State *L, const char *what, lua_Number seconds)
{
    const char *hint = "";
    if (seconds > 1e11 && seconds < 1e13)
        hint = ": that looks like milliseconds, divide by 1000";
    glue_misuse(L, "%s is seconds since 1970, within 100 years from now, got %f%s", what,
                isnan(seconds) ? fabs(seconds) : seconds, hint);
}

lapse_ns glue_check_instant(lua_State *L, int index, const char *what)
{
    lua_Number seconds = check_number(L, index, what, " of seconds since 1970");
    lua_Number whole = floor(seconds);
    if (!(fabs(whole) < 9.2e9)) /* also NaN; int64 nanoseconds end in the year 2262 */
        refuse_instant(L, what, seconds);
    /* The fraction is exact, and rounded up: late is allowed, early is not. */
    lapse_ns ns = LAPSE_SECONDS((lapse_ns)whole) + (lapse_ns)ceil((seconds - whole) * 1e9);
    return ns == 0 ? -1 : ns; /* 0 would mean that none is given; both are long past */
}

static uint64_t check_whole(lua_State *L, int index, const char *what)
{
    lua_Number n = check_number(L, index, what, "");
    if (!(n >= 0 && n <= 9007199254740992.0 && n == floor(n)))
        glue_misuse(L, "%s is a whole number of 0 or more, got %f", what, n);
    return (uint64_t)n;
}

int64_t glue_check_generation(lua_State *L, int index)
{
    if (lua_isnoneornil(L, index))
        return LAPSE_ANY;
    uint64_t generation = check_whole(L, index, "a generation");
    /* 0 was never given to an order, and must not mean any of them. */
    return generation ? (int64_t)generation : -1;
}

uint64_t glue_check_count(lua_State *L, int index, const char *what, uint64_t most)
{
    uint64_t count = check_whole(L, index, what);
    if (count > most)
        glue_misuse(L, "%s is too large: %f", what, lua_tonumber(L, index));
    return count;
}

void glue_check_callback(lua_State *L, int index, const char *what)
{
    if (lua_isfunction(L, index))
        return;
    /* Handlers are looked up by what is called, beside the names of their queues. */
    if (lua_type(L, index) == LUA_TSTRING || !luaL_getmetafield(L, index, "__call"))
        glue_misuse(L, "%s is a function, got %s", what, luaL_typename(L, index));
    lua_pop(L, 1);
}

void glue_push_seconds(lua_State *L, lapse_ns ns)
{
    lua_pushnumber(L, (lua_Number)ns / 1e9);
}

void glue_push_decimal(lua_State *L, int64_t number)
{
    char digits[24];
    snprintf(digits, sizeof digits, "%" PRId64, number);
    lua_pushstring(L, digits);
}

void glue_push_key(lua_State *L, const char *id, int64_t generation)
{
    lua_pushfstring(L, "%s:", id);
    glue_push_decimal(L, generation);
    lua_concat(L, 2);
}

/* -- Order information -- */

static void set_string(lua_State *L, const char *key, const char *value)
{
    if (!value)
        return;
    lua_pushstring(L, value);
    lua_setfield(L, -2, key);
}

static void set_seconds(lua_State *L, const char *key, lapse_ns ns)
{
    glue_push_seconds(L, ns);
    lua_setfield(L, -2, key);
}

void glue_push_info(lua_State *L, const lapse_info *info)
{
    lua_createtable(L, 0, 9);
    lua_pushlstring(L, info->id, info->id_len);
    lua_setfield(L, -2, "id");
    set_string(L, "queue", info->queue);
    set_string(L, "state", glue_name_of(glue_states, (int)info->state));
    if (info->payload) {
        lua_pushlstring(L, info->payload, info->payload_len);
        lua_setfield(L, -2, "payload");
    }
    set_seconds(L, "due", info->due);
    set_seconds(L, "remaining", info->remaining);
    if (info->ended)
        set_seconds(L, "ended", info->ended);
    glue_push_int64(L, info->generation);
    lua_setfield(L, -2, "generation");
    glue_push_key(L, info->id, info->generation);
    lua_setfield(L, -2, "key");
    lua_pushinteger(L, info->attempt);
    lua_setfield(L, -2, "attempt");
    set_string(L, "reason", glue_name_of(reasons, (int)info->reason));
    set_string(L, "error", info->error);
}

void glue_push_deaths(lua_State *L, const uint64_t *dead_by)
{
    lua_createtable(L, 0, 5);
    for (const glue_name *n = reasons; n->name; n++) {
        glue_push_int64(L, dead_by[n->value]);
        lua_setfield(L, -2, n->name);
    }
}
