-- fast.lua - the plainest calls of schedule, put and cancel by way of LuaJIT's FFI (fast.c).
--
-- LuaJIT compiles these into the code of a request, which it cannot do with a function of Lua's C
-- API. Only for orders in memory. They answer false when a call is not of that kind, and nothing
-- was done: the caller asks the method, which knows all kinds, and what is wrong with an argument.

local core = require "lapse.core"
local ffi = require "ffi"
local has_nkeys, nkeys = pcall(require, "table.nkeys") -- of OpenResty's LuaJIT

local cast, typeof = ffi.cast, ffi.typeof
local getmetatable, pairs, type = getmetatable, pairs, type
local failure, finish, keep = core.loop.failure, core.loop.finish, core.loop.keep

local schedule_type = typeof "double (*)(void *, const char *, size_t, double, void *)"
local put_type = typeof("double (*)(void *, const char *, size_t, double, const char *, size_t, "
    .. "const char *, size_t)")
local cancel_type = typeof "int (*)(void *, const char *, size_t)"
local flag_type = typeof "const bool *"
local pointer_type = typeof "void *"

-- lapse_fate of lapse.h.
local UNKNOWN, CANCELLED, RUNNING, DONE = 0, 1, 3, 4

local fast = {}

-- The handlers or the worker have changed.
function fast.forget(w)
    if w.fast then
        w.fast.last, w.fast.callback, w.fast.queue, w.fast.cell = nil, nil, nil, nil
        keep(w.scheduler, nil)
    end
end

---What a worker needs for it; to be made in the worker, of a scheduler in memory.
function fast.new(scheduler)
    local schedule, put, cancel, unfinished = core.loop.fast(scheduler)
    return {
        scheduler = cast(pointer_type, scheduler),
        schedule = cast(schedule_type, schedule),
        put = cast(put_type, put),
        cancel = cast(cancel_type, cancel),
        unfinished = cast(flag_type, unfinished),
        last = nil,     -- the callback that was scheduled with last
        callback = nil, -- the one that is kept, as it was that twice in a row
        queue = nil,    -- the one queue that it handles, or
        cell = nil,     -- where C counts it
    }
end

-- How many queues the callback handles, and one of them.
local function handled_by(w, callback)
    local count, name = 0, nil
    for queue, handler in pairs(w.handlers) do
        if handler == callback then
            count, name = count + 1, queue
        end
    end
    return count, name
end

-- Most programs schedule with few functions; one that comes twice in a row is kept.
local function get_to_know(w, callback)
    local f = w.fast
    if callback ~= f.last or type(callback) ~= "function" then
        f.last = callback
        return
    end
    local count, queue = handled_by(w, callback)
    if count > 1 then
        return
    end
    local cell = keep(w.scheduler, count == 0 and callback or nil)
    if count == 1 or cell then
        f.callback, f.queue, f.cell = callback, queue, cell and cast(pointer_type, cell)
    end
end

-- The answer to what was tried: the generation; or nil, message, code.
local function answer(w, f, generation)
    if generation < 0 then
        return failure(w.scheduler, generation)
    elseif f.unfinished[0] then
        finish(w.scheduler)
    end
    return generation
end

local function try(f, id, delay)
    local queue = f.queue
    if queue then
        return f.put(f.scheduler, id, #id, delay, queue, #queue, nil, 0)
    end
    return f.schedule(f.scheduler, id, #id, delay, f.cell)
end

function fast.schedule(w, id, delay, callback)
    local f = w.fast
    if callback ~= f.callback then
        get_to_know(w, callback)
        return false
    elseif type(id) ~= "string" or type(delay) ~= "number" then
        return false
    end
    local generation = try(f, id, delay)
    if generation == 0 then
        return false
    end
    return answer(w, f, generation)
end

-- For a queue.
local function put(w, order)
    if type(order) ~= "table" then
        return false
    end
    local id, queue, delay, payload = order.id, order.queue, order.delay, order.payload
    if type(id) ~= "string" or type(queue) ~= "string" or type(delay) ~= "number" then
        return false
    end
    local known, bytes = 3, 0
    if payload ~= nil then
        if type(payload) ~= "string" then
            return false
        end
        known, bytes = 4, #payload
    end
    if nkeys(order) ~= known or getmetatable(order) then
        return false -- Something else is in it.
    end
    local f = w.fast
    local generation = f.put(f.scheduler, id, #id, delay, queue, #queue, payload, bytes)
    if generation == 0 then
        return false
    end
    return answer(w, f, generation)
end

fast.put = has_nkeys and put or function()
    return false
end

-- true; or false and why not.
local function fate_of(fate)
    if fate == CANCELLED then
        return true
    elseif fate == UNKNOWN then
        return false, "unknown"
    elseif fate == RUNNING then
        return false, "running"
    elseif fate == DONE then
        return false, "done"
    end
    return nil
end

-- As the method; nil: it was not tried.
function fast.cancel(w, id, generation)
    if type(id) ~= "string" or generation ~= nil then
        return nil
    end
    local f = w.fast
    local fate = f.cancel(f.scheduler, id, #id)
    if fate >= 0 and f.unfinished[0] then
        finish(w.scheduler)
    end
    return fate_of(fate)
end

return fast
