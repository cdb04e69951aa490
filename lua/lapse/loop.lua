-- loop.lua - the run loop: C hands out due orders, this calls their callbacks.
--
-- Every callback runs in a coroutine of its own, which is used again after one that
-- returned. Nothing a callback does ends the loop: an error is reported, a yield too. What
-- is begun is settled, also when the loop itself is left by an error, such as Ctrl-C.
-- Here the hooks are called too: on_error, on_dead and log.
--
-- It knows neither delays nor ids, and it does not wait: `run` asks C to.

local core = require "lapse.core"

local begin, settle = core.loop.begin, core.loop.settle
local begin_pass, abandon_pass = core.loop.begin_pass, core.loop.abandon_pass
local wait, leave_run = core.loop.wait, core.loop.leave_run
local error_handler = core.loop.error_handler
local finish, next_event = core.loop.finish, core.loop.next_event
local create, resume, yield = coroutine.create, coroutine.resume, coroutine.yield
local close = rawget(coroutine, "close") -- Lua 5.4
local getmetatable, pcall, type, tostring = getmetatable, pcall, type, tostring
local traceback = debug and debug.traceback

-- lapse_verdict of lapse.h.
local DONE, FAIL = 0, 3
local Verdict = core.verdict
local retry, reject = core.retry, core.reject

local OVERRAN = "the callback ran longer than its run_limit: it has lost the order"

-- Yielded by a worker whose callback has returned; no callback can get hold of it.
local FINISHED = {}

-- The function instead of what it returns would mean done.
local function check_called(value)
    if value == retry then
        error("the callback returned lapse.retry itself: call lapse.retry(delay)", 0)
    elseif value == reject then
        error("the callback returned lapse.reject itself: call lapse.reject(reason)", 0)
    end
end

-- What settles an order whose callback returned, or raised, `value`.
local function verdict_of(value)
    if getmetatable(value) ~= Verdict then
        return DONE
    end
    return value.verdict, value.delay, value.reason
end

-- The same for what it returned, in its coroutine, where an error is the callback's.
local function verdict_returned(value)
    if type(value) == "function" then
        check_called(value)
    end
    return verdict_of(value)
end

-- A coroutine that calls one callback after the other. Between two it holds on to none.
local function worker(callback, id, order)
    while true do
        local value = callback(id, order)
        callback, id, order = nil, nil, nil -- luacheck: ignore 311
        if value == nil then -- Done, as most are.
            callback, id, order = yield(FINISHED)
        else
            callback, id, order = yield(FINISHED, verdict_returned(value))
        end
    end
end

local spare -- a worker that waits for its next callback, or nil

-- Any error value as text; __tostring may be wrong itself.
local function describe(err)
    if type(err) == "string" then
        return err
    end
    local fine, text = pcall(tostring, err)
    if fine and type(text) == "string" then
        return text
    end
    return "an error object of type " .. type(err)
end

local function to_stderr(text)
    local stderr = io and io.stderr
    if stderr then
        stderr:write("lapse: ", (text:gsub("%c", " ")), "\n")
    end
end

-- Tell on_dead and log what the library had to say in a call. An error in them is told once,
-- to stderr. C calls this at the end of a call that has news.
core.teller[1] = function(scheduler)
    local name, hook, first, second = next_event(scheduler)
    while name do
        local fine, err = pcall(hook, first, second)
        if not fine then
            to_stderr(("%s failed: %s"):format(name, describe(err)))
        end
        name, hook, first, second = next_event(scheduler)
    end
end

-- Tell on_error, once. An error in on_error is told once, to stderr.
local function report(scheduler, order, err, trace)
    local handler = error_handler(scheduler)
    if not handler then
        return to_stderr(('order "%s" failed: %s'):format(order.id, describe(err)))
    end
    local fine, second = pcall(handler, order, err, trace)
    if not fine then
        to_stderr(('on_error failed for order "%s": %s'):format(order.id, describe(second)))
    end
end

-- The worker of a callback that did not return. Its to-be-closed variables belong to the
-- callback: they are closed before the order is settled.
local function discard(thread, text)
    local trace = traceback and traceback(thread, text)
    if close then
        close(thread)
    end
    return trace
end

local function failed(scheduler, order, err, thread)
    local text = describe(err)
    local trace = discard(thread, text)
    local _, news = settle(scheduler, order, FAIL, nil, text)
    report(scheduler, order, err, trace)
    if news then
        finish(scheduler)
    end
end

-- The callback said `verdict`; nil: done.
local function ended(scheduler, order, verdict, delay, reason)
    local overran, news = settle(scheduler, order, verdict or DONE, delay, reason)
    if overran then
        report(scheduler, order, OVERRAN)
    end
    if news then
        finish(scheduler)
    end
end

-- The callback raised `err`, which may be a verdict.
local function raised(scheduler, order, err, thread)
    local verdict, delay, reason = verdict_of(err)
    if verdict == DONE then
        return failed(scheduler, order, err, thread)
    end
    discard(thread)
    ended(scheduler, order, verdict, delay, reason)
end

-- The callback called coroutine.yield, and nobody here could resume it.
local function yielded(scheduler, order, thread)
    failed(scheduler, order, ('callback must not yield (order "%s")'):format(order.id), thread)
end

-- Run one callback on the worker, and keep the worker if it can be used again.
local function call(scheduler, thread, callback, id, order)
    local fine, signal, verdict, delay, reason = resume(thread, callback, id, order)
    if not fine then
        raised(scheduler, order, signal, thread)
    elseif signal ~= FINISHED then
        yielded(scheduler, order, thread)
    else
        spare = thread
        ended(scheduler, order, verdict, delay, reason)
    end
end

-- Run what is due by the beginning of the pass.
local function pass(scheduler, max)
    local ran = 0
    while ran < max do
        -- The worker comes first: from begin to settle nothing may fail.
        local thread = spare or create(worker)
        spare = nil
        local callback, id, order = begin(scheduler)
        if not callback then
            spare = thread
            if id and ran == 0 then
                return nil, id, order -- a message and a code
            end
            break
        end
        call(scheduler, thread, callback, id, order)
        ran = ran + 1
    end
    return ran
end

-- The table is for lua/resty/lapse.lua, whose callbacks run apart from each other.
local loop = {
    OVERRAN = OVERRAN,
    verdict_of = verdict_of,
    verdict_returned = verdict_returned,
    describe = describe,
    report = report,
}

-- An iterator over an array; without one the function `name`, which called this, raises the message
-- at the place of its caller.
function loop.iterate(array, name, message)
    if not array then
        error(name .. ": " .. message, 3)
    end
    local i = 0
    return function()
        i = i + 1
        return array[i]
    end
end

-- Returns how many ran; or nil, message, code.
function loop.step(scheduler, max)
    local depth, message, code = begin_pass(scheduler)
    if not depth then
        return nil, message, code
    end
    local fine, ran
    fine, ran, message, code = pcall(pass, scheduler, max)
    if not fine then
        abandon_pass(scheduler, depth)
        error(ran, 0)
    end
    if not ran then
        return nil, message, code
    end
    return ran
end

-- Returns true after stop; or nil, message, code.
function loop.run(scheduler)
    local fine, message, code
    repeat
        fine, message, code = loop.step(scheduler, math.huge)
        if fine then
            fine, message, code = wait(scheduler)
        end
    until not fine
    if code == "Closed" then
        leave_run(scheduler)
        return true
    end
    return nil, message, code
end

return loop
