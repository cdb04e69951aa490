-- tie.lua - tells whether the request, or timer, that made it is still there.
--
-- ngx.exit() ends a request at once, and no Lua code of it runs any more. nginx calls what is
-- registered with ngx_http_cleanup_add then; what we register is a function in C (tie.c), which
-- sets a flag.

local base = require "resty.core.base"
local core = require "lapse.core"
local ffi = require "ffi"

base.allows_subsystem "http"

-- A name of our own: others may have declared nginx's in another way.
ffi.cdef [[
typedef struct {
    void (*handler)(void *data);
    void *data;
} lapse_cleanup;
lapse_cleanup *lapse_cleanup_add(void *request, size_t size) __asm__("ngx_http_cleanup_add");
]]

local C, cast = ffi.C, ffi.cast
local get_request = base.get_request
local new_tie = core.tie
local handler_type = ffi.typeof "void (*)(void *)"

local _ = C.lapse_cleanup_add -- Raises here, and not in a timer, should nginx hide it.

-- Returns an object with a method ended(); raises without memory.
return function()
    local tie, handler, data = new_tie()
    if not tie then
        error(handler, 0)
    end
    local cleanup = C.lapse_cleanup_add(get_request(), 0)
    if cleanup == nil then
        tie:undo()
        error("lapse: nginx has no memory", 0)
    end
    cleanup.handler = cast(handler_type, handler)
    cleanup.data = data
    return tie
end
