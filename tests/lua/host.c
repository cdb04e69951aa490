/* host.c - a C program that embeds Lua and the module, for what no script can show.
 *
 * Several Lua states in one process, calls without a Lua frame below them, fork, the end of
 * a state, and memory that runs out. Run it by scripts/with-lua like an interpreter, which
 * it also is as far as `-e` goes. */
#include <check.h>
#include <lauxlib.h>
#include <lua.h>
#include <lualib.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* -- A state with what the scripts below share -- */

static int count_call(lua_State *L)
{
    int *calls = lua_touserdata(L, lua_upvalueindex(1));
    ++*calls;
    return 0;
}

/* Run a chunk; the test fails with its error. Results are left on the stack. */
static void run(lua_State *L, const char *chunk)
{
    if (luaL_loadstring(L, chunk) || lua_pcall(L, 0, LUA_MULTRET, 0))
        ck_abort_msg("%s", lua_tostring(L, -1));
}

static lua_Number number(lua_State *L, const char *expression)
{
    char chunk[200];
    snprintf(chunk, sizeof chunk, "return %s", expression);
    run(L, chunk);
    lua_Number n = lua_tonumber(L, -1);
    lua_pop(L, 1);
    return n;
}

static const char *const PRELUDE =
    "lapse = require 'lapse'\n"
    "clock = lapse.manual_clock()\n"
    "s = assert(lapse.new { clock = clock, max_pending = 2000, on_error = told })\n"
    "function at(seconds) clock:advance(seconds - clock:now()) return s:step() end\n";

/* `called` and `told` are functions that count into these. */
static void prepare(lua_State *L, int *called, int *told)
{
    luaL_openlibs(L);
    lua_pushlightuserdata(L, called);
    lua_pushcclosure(L, count_call, 1);
    lua_setglobal(L, "called");
    lua_pushlightuserdata(L, told);
    lua_pushcclosure(L, count_call, 1);
    lua_setglobal(L, "told");
    run(L, PRELUDE);
}

static lua_State *new_state(int *called, int *told)
{
    *called = *told = 0;
    lua_State *L = luaL_newstate();
    ck_assert_ptr_nonnull(L);
    prepare(L, called, told);
    return L;
}

/* -- States -- */

START_TEST(P_43_a_thread_that_scheduled_is_gone)
{
    int called, told;
    lua_State *L = new_state(&called, &told);
    lua_State *thread = lua_newthread(L);
    run(thread, "for i = 1, 1000 do s:schedule('o' .. i, 5, called) end");
    lua_settop(L, 0);
    for (int i = 0; i < 10; i++)
        lua_gc(L, LUA_GCCOLLECT, 0);
    ck_assert_int_eq((int)number(L, "at(5)"), 1000);
    ck_assert_int_eq(called, 1000);
    lua_close(L);
}
END_TEST

START_TEST(P_44_closing_a_state_runs_nothing)
{
    int called, told;
    lua_State *L = new_state(&called, &told);
    run(L, "local file = io.tmpfile()\n"
           "local function f() file:write 'x' called() end\n"
           "for i = 1, 1000 do s:schedule('later' .. i, 3600, f) end\n"
           "for i = 1, 50 do s:schedule('now' .. i, 0, f) lapse.schedule('now' .. i, 0, f) end\n"
           "s:put { id = 'held', queue = 'q' }\n"
           "held = s:take 'q'\n");
    lua_close(L);
    ck_assert_int_eq(called, 0);
    ck_assert_int_eq(told, 0);
}
END_TEST

START_TEST(P_46_no_callback_stays)
{
    int called, told;
    lua_State *L = new_state(&called, &told);
    run(L, "weak = setmetatable({}, { __mode = 'k' })\n"
           "local function new() local function f() called() end weak[f] = true return f end\n"
           "local now, shared = 0, new()\n"
           "local function step() now = now + 1 at(now) end\n"
           "for i = 1, 300 do\n"
           "    local f = i % 3 == 0 and shared or new()\n"
           "    for j = 1, 20 do s:schedule('o' .. j, j, f) end\n"
           "    s:put { id = 'o1', delay = 0, callback = new(), replace = true }\n"
           "    s:schedule('o2', 0, new())\n"
           "    for j = 3, 10 do s:cancel('o' .. j) end\n"
           "    step()\n"
           "    s:schedule_many { { id = 'o11', callback = f }, { id = 'x', callback = shared } }\n"
           "    for j = 11, 20 do s:cancel('o' .. j) end\n"
           "    step()\n"
           "end\n"
           "assert(s:stats().pending == 0)\n");
    for (int i = 0; i < 4; i++)
        lua_gc(L, LUA_GCCOLLECT, 0);
    ck_assert_int_eq((int)number(L, "next(weak) == nil and 1 or 0"), 1);
    ck_assert_int_eq(called, 300 * 3);
    lua_close(L);
}
END_TEST

START_TEST(P_50_states_know_nothing_of_each_other)
{
    int called_a, called_b, told_a, told_b;
    lua_State *a = new_state(&called_a, &told_a), *b = new_state(&called_b, &told_b);
    const char *fill = "for i = 1, 2000 do assert(s:schedule('o' .. i, 5, called)) end\n"
                       "assert(select(3, s:schedule('more', 5, called)) == 'Full')\n"
                       "lapse.schedule('x', 3600, called)\n";
    run(a, fill);
    run(b, fill);
    run(b, "s:put { id = 'o1', replace = true, callback = function() error 'b' end }");
    lua_close(a);
    ck_assert_int_eq((int)number(b, "s:stats().pending"), 2000);
    ck_assert_int_eq((int)number(b, "at(5)"), 2000);
    ck_assert_int_eq(called_b, 1999);
    ck_assert_int_eq(told_b, 1);
    a = new_state(&called_a, &told_a);
    run(a, fill);
    ck_assert_int_eq((int)number(a, "at(5)"), 2000);
    ck_assert_int_eq(called_a, 2000);
    ck_assert_int_eq(told_a, 0);
    ck_assert_int_eq((int)number(b, "lapse.next() > 3000 and 1 or 0"), 1);
    lua_close(b);
    lua_close(a);
}
END_TEST

/* -- A loop of the host -- */

static int is_readable(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    return poll(&p, 1, 0);
}

START_TEST(the_descriptor_tells_of_stop_once)
{
    int called, told;
    lua_State *L = new_state(&called, &told);
    int fd = (int)number(L, "s:fd()");
    run(L, "s:schedule('x', 1, called)");
    ck_assert_int_eq(is_readable(fd), 0);
    run(L, "clock:advance(1)");
    ck_assert_int_eq(is_readable(fd), 1);
    ck_assert_int_eq((int)number(L, "s:step()"), 1);
    ck_assert_int_eq(is_readable(fd), 0);
    run(L, "s:stop()");
    ck_assert_int_eq(is_readable(fd), 1);
    ck_assert_int_eq((int)number(L, "select(3, s:step()) == 'Closed' and 1 or 0"), 1);
    ck_assert_int_eq(is_readable(fd), 0);
    lua_close(L);
}
END_TEST

START_TEST(the_descriptor_tells_of_stop_in_a_callback)
{
    int called, told;
    lua_State *L = new_state(&called, &told);
    int fd = (int)number(L, "s:fd()");
    run(L, "s:schedule('stops', 1, function() s:stop() end) s:schedule('x', 1, called)");
    ck_assert_int_eq((int)number(L, "at(1)"), 1); /* What ran is what it answers. */
    ck_assert_int_eq(is_readable(fd), 1);
    ck_assert_int_eq((int)number(L, "select(3, s:step()) == 'Closed' and 1 or 0"), 1);
    ck_assert_int_eq(is_readable(fd), 0);
    ck_assert_int_eq(called, 0);
    lua_close(L);
}
END_TEST

/* -- Calls from C -- */

static int panic(lua_State *L)
{
    ck_abort_msg("an error left a call: %s", lua_tostring(L, -1));
    return 0;
}

START_TEST(P_45_errors_stay_inside_a_step_that_c_called)
{
    int called, told;
    lua_State *L = new_state(&called, &told);
    lua_atpanic(L, panic);
    run(L, "local spiteful = setmetatable({}, { __tostring = function() error 'no' end })\n"
           "local function deep() return 1 + deep() end\n"
           "causes = { function() error 'text' end, function() error {} end,\n"
           "    function() error(nil) end, function() error(spiteful) end, coroutine.yield }\n"
           "function fill(from)\n"
           "    for i = 1, 599 do s:schedule('o' .. i, 1, causes[i % #causes + 1]) end\n"
           "    s:schedule('deep', 1, deep)\n"
           "end\n");
    int memory = 0;
    for (int round = 1; round <= 5; round++) {
        run(L, "fill() clock:advance(2)");
        int top = lua_gettop(L);
        lua_getglobal(L, "s");
        lua_getfield(L, -1, "step");
        lua_insert(L, -2);
        lua_call(L, 1, 1); /* No protected call, no Lua function below it. */
        ck_assert_int_eq((int)lua_tointeger(L, -1), 600);
        lua_pop(L, 1);
        ck_assert_int_eq(lua_gettop(L), top);
        ck_assert_int_eq(told, round * 600);
        for (int i = 0; i < 3; i++)
            lua_gc(L, LUA_GCCOLLECT, 0);
        if (round == 2)
            memory = lua_gc(L, LUA_GCCOUNT, 0);
    }
    ck_assert_int_le(lua_gc(L, LUA_GCCOUNT, 0), memory + 16);
    ck_assert_int_eq((int)number(L, "s:stats().running + s:stats().pending"), 0);
    ck_assert_int_eq((int)number(L, "s:stats().failed"), 5 * 600);
    lua_close(L);
}
END_TEST

/* -- Fork -- */

static int fork_here(lua_State *L)
{
    lua_pushinteger(L, fork());
    return 1;
}

/* End the child as another program: what it inherited, and must not free, is no leak. */
static int leave(lua_State *L)
{
    if (lua_toboolean(L, 1))
        execl("/bin/sh", "sh", "-c", "exit 7", (char *)NULL);
    _exit(1);
}

/* Run a chunk that forks by `child = fork()`. Its part for the child ends in leave(fine). */
static void run_forking(lua_State *L, const char *chunk)
{
    lua_pushcfunction(L, fork_here);
    lua_setglobal(L, "fork");
    lua_pushcfunction(L, leave);
    lua_setglobal(L, "leave");
    run(L, chunk);
    int status = 0;
    ck_assert_int_gt(waitpid((pid_t)number(L, "child"), &status, 0), 0);
    ck_assert(WIFEXITED(status));
    ck_assert_int_eq(WEXITSTATUS(status), 7);
}

START_TEST(P_32_a_forked_scheduler_is_empty_and_works)
{
    int called, told;
    lua_State *L = new_state(&called, &told);
    run_forking(L, "weak = setmetatable({}, { __mode = 'k' })\n"
                   "for i = 1, 1000 do\n"
                   "    local function f() called() end\n"
                   "    weak[f] = true\n"
                   "    s:schedule('o' .. i, 1, f)\n"
                   "end\n"
                   "s:put { id = 'p', queue = 'q' }\n"
                   "held, fd = s:take 'q', s:fd()\n"
                   "child = fork()\n"
                   "if child == 0 then\n"
                   "    local fine, err = pcall(function()\n"
                   "        assert(s:schedule('o1', 1, called))\n"
                   "        assert(s:stats().pending == 1)\n"
                   "        assert(s:cancel 'o2' == false)\n"
                   "        for _ = 1, 3 do collectgarbage() end\n"
                   "        assert(next(weak) == nil)\n"
                   "        assert(select(3, held:done()) == 'Stale')\n"
                   "        assert(at(1) == 1)\n"
                   "        assert(s:fd() ~= fd)\n"
                   "        assert(s:close())\n"
                   "    end)\n"
                   "    if not fine then io.stderr:write(tostring(err), '\\n') end\n"
                   "    leave(fine)\n"
                   "end\n");
    ck_assert_int_eq((int)number(L, "s:stats().pending"), 1000);
    ck_assert_int_eq((int)number(L, "held:done() and at(1)"), 1000);
    ck_assert_int_eq(called, 1000);
    lua_close(L);
}
END_TEST

START_TEST(P_32_a_forked_scheduler_keeps_its_handlers_and_hooks)
{
    int called, told;
    lua_State *L = new_state(&called, &told);
    run_forking(L,
                "function handler() called() return lapse.reject() end\n"
                "s:handle('q', handler, { rate = 100 })\n"
                "s:handle('gone', called) s:handle('gone', nil)\n"
                "dead = 0\n"
                "s:on_dead(function() dead = dead + 1 end)\n"
                "s:put { id = 'x', queue = 'q' }\n"
                "child = fork()\n"
                "if child == 0 then\n"
                "    local fine = at(1) == 0 and s:put { id = 'y', queue = 'q' }\n"
                "        and s:schedule('z', 0, handler) and s:put { id = 'w', queue = 'gone' }\n"
                "        and at(2) + at(3) == 2 and dead == 2\n"
                "        and s:queue_stats('q').handled and not s:queue_stats('gone').handled\n"
                "        and s:handle('q', nil) and s:close()\n"
                "    leave(fine)\n"
                "end\n"
                "assert(at(1) == 1 and dead == 1)\n");
    ck_assert_int_eq(called, 1);
    lua_close(L);
}
END_TEST

START_TEST(P_32_a_callback_forks)
{
    int called, told;
    lua_State *L = new_state(&called, &told);
    run_forking(L, "s:schedule('forks', 1, function() child = fork() end)\n"
                   "s:schedule('next', 1, called)\n"
                   "local ran = at(1)\n"
                   "if child == 0 then\n"
                   "    local fine = ran == 1 and s:stats().started == 0 and s:next() == nil\n"
                   "        and s:schedule('x', 1, called) and at(2) == 1 and s:close()\n"
                   "    leave(fine)\n"
                   "end\n"
                   "assert(ran == 2)\n");
    ck_assert_int_eq((int)number(L, "s:stats().done"), 2);
    ck_assert_int_eq(called, 1);
    lua_close(L);
}
END_TEST

START_TEST(P_32_a_child_ends_without_touching_what_it_inherited)
{
    int called, told;
    lua_State *L = new_state(&called, &told);
    run_forking(L, "s:schedule('x', 1, called)\n"
                   "child = fork()\n"
                   "if child == 0 then leave(s:close()) end\n");
    ck_assert_int_eq((int)number(L, "at(1)"), 1);
    lua_close(L);
}
END_TEST

/* -- Memory that runs out -- */

/* Allocations that succeed yet; below 0: all do. */
static void *allocate(void *left, void *block, size_t old, size_t size)
{
    long *n = left;
    if (size == 0) {
        free(block);
        return NULL;
    }
    bool grows = !block || size > old;
    if (grows && *n == 0)
        return NULL;
    *n -= grows && *n > 0;
    return realloc(block, size);
}

static int allow(lua_State *L)
{
    long *left;
    lua_getallocf(L, (void **)&left);
    *left = (long)lua_tonumber(L, 1);
    return 0;
}

START_TEST(an_allocation_that_fails_leaves_nothing_half_done)
{
    long left = -1;
    int called = 0, told = 0;
    lua_State *L = lua_newstate(allocate, &left);
    ck_assert_ptr_nonnull(L);
    prepare(L, &called, &told);
    /* LuaJIT's compiler and some of its string functions do not survive this themselves. */
    run(L, "if jit then jit.off() end");
    lua_pushcfunction(L, allow);
    lua_setglobal(L, "allow");
    /* Each call is made with 0, 1, 2, ... allocations allowed, until it no longer runs out. */
    run(L, "return require 'starve' (allow)");
    ck_assert_int_gt((int)lua_tointeger(L, -1), 100);
    lua_close(L);
}
END_TEST

/* -- All -- */

static int run_line(const char *line)
{
    lua_State *L = luaL_newstate();
    luaL_openlibs(L);
    int failed = luaL_loadstring(L, line) || lua_pcall(L, 0, 0, 0);
    lua_close(L);
    return failed;
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "-e") == 0)
        return run_line(argv[2]);
    TCase *all = tcase_create("all");
    tcase_set_timeout(all, 300);
    tcase_add_test(all, P_43_a_thread_that_scheduled_is_gone);
    tcase_add_test(all, P_44_closing_a_state_runs_nothing);
    tcase_add_test(all, P_46_no_callback_stays);
    tcase_add_test(all, the_descriptor_tells_of_stop_once);
    tcase_add_test(all, the_descriptor_tells_of_stop_in_a_callback);
    tcase_add_test(all, P_45_errors_stay_inside_a_step_that_c_called);
    tcase_add_test(all, P_50_states_know_nothing_of_each_other);
    tcase_add_test(all, P_32_a_forked_scheduler_is_empty_and_works);
    tcase_add_test(all, P_32_a_forked_scheduler_keeps_its_handlers_and_hooks);
    tcase_add_test(all, P_32_a_callback_forks);
    tcase_add_test(all, P_32_a_child_ends_without_touching_what_it_inherited);
    tcase_add_test(all, an_allocation_that_fails_leaves_nothing_half_done);
    Suite *suite = suite_create("lua host");
    suite_add_tcase(suite, all);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? 1 : 0;
}
