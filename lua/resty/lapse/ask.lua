-- ask.lua - asks a durable store, and lets the caller wait for the answer.
--
-- What is asked goes to the store's own thread. The call gets a ticket, and its light thread
-- waits on a semaphore; the worker goes on. The driver (worker.lua) collects the answers and
-- wakes those who wait for them. An answer for which nobody waits any more, since its request
-- has ended, is thrown away: what was asked is done all the same.

local core = require "lapse.core"
local semaphore = require "ngx.semaphore"

local ngx = ngx
local get_phase = ngx.get_phase
local error, ipairs, max, pcall, select, type = error, ipairs, math.max, pcall, select, type
local collect_one, is_open = core.loop.collect, core.loop.is_open
local methods = core.methods
local now = methods.now

local ask = {}

-- As get_phase names them. What is not here, nginx does not let wait.
local MAY_WAIT = {
    rewrite = true, server_rewrite = true, access = true, content = true, timer = true,
    ssl_cert = true, ssl_client_hello = true, ssl_session_fetch = true,
}

local CANNOT_WAIT = "%s waits for the store, and nginx does not let the phase %s wait: call it in "
    .. "a timer, ngx.timer.at(0, function() ... end), or in a phase before"
local IN_INIT_WORKER = "%s waits for the store, and nginx does not let the phase init_worker wait: "
    .. "call it in a timer, ngx.timer.at(0, function() ... end)"
local UNSURE = "the store has not answered for %g s: whether it was done is not known; look, or "
    .. "ask again"
local NOT_YET = "the store has not opened for %g s: it is tried again"
local SPARES = 64 -- semaphores that are kept

-- nil if the call `name` may wait here; else why not.
function ask.why_not(name)
    local phase = get_phase()
    if MAY_WAIT[phase] then
        return nil
    end
    return (phase == "init_worker" and IN_INIT_WORKER or CANNOT_WAIT):format(name, phase)
end

-- -- Tickets ------------------------------------------------------------------------------------

local function take_semaphore(w)
    local spares = w.spares
    local spare = spares[#spares]
    if spare then
        spares[#spares] = nil
        return spare
    end
    return semaphore.new()
end

local function keep_semaphore(w, spare)
    local spares = w.spares
    if #spares < SPARES then
        spares[#spares + 1] = spare
    end
end

-- One who waits for the answer to `ticket`: to be made before nginx can go on.
local function expect(w, ticket)
    local waiter = { semaphore = take_semaphore(w) }
    w.waiters[ticket] = waiter
    w.asked = w.asked + 1
    return waiter
end

-- Wait until there is an answer: its three values. `patience` is what is left of w.patience.
local function await(w, ticket, waiter, patience)
    w.expect_answers(w)
    local woken, message = waiter.semaphore:wait(patience)
    if woken then
        keep_semaphore(w, waiter.semaphore)
    elseif not waiter.answered then
        w.waiters[ticket] = nil
        w.asked = w.asked - 1
        if message ~= "timeout" then
            return nil, message, "System"
        end
        return nil, UNSURE:format(w.patience), "Unsure"
    end
    return waiter[1], waiter[2], waiter[3]
end

-- Hand the answers that have come to those who wait for them; how many came.
function ask.collect(w)
    local count = 0
    while true do
        local ticket, first, second, third = collect_one(w.scheduler)
        if not ticket then
            return count
        end
        count = count + 1
        local waiter = w.waiters[ticket]
        if waiter then
            w.waiters[ticket] = nil
            w.asked = w.asked - 1
            waiter.answered = true
            waiter[1], waiter[2], waiter[3] = first, second, third
            waiter.semaphore:post(1)
        end
    end
end

-- -- Open ---------------------------------------------------------------------------------------
-- A store opens on a thread, and is tried again until it does. Until then handlers and the like
-- are given to a scheduler in memory that stands in for it, and once more to the real one.

local unpack = unpack

local function finish_opening(w)
    w.opened = true
    w.stand_in:close()
    w.stand_in = nil
    for _, change in ipairs(w.left and {} or w.changes) do
        methods[change[1]](w.scheduler, unpack(change, 2, change.n))
    end
    w.changes = nil
end

-- Whether the store is open; else nil, message, code if it is known why not.
local function try_open(w)
    if w.opened then
        return true
    end
    local open, message, code = is_open(w.scheduler)
    if open then
        finish_opening(w)
        return true
    end
    return false, message, code
end

-- What is wrong is told once, and what is wrong then.
local function tell(w, open, message)
    if message and message ~= w.told_closed then
        w.told_closed = message
        ngx.log(ngx.WARN, "lapse: the store is not open yet: ", message)
    elseif open and w.told_closed then
        w.told_closed = nil
        ngx.log(ngx.NOTICE, "lapse: the store is open")
    end
end

-- The same, for the driver: those who wait for it hear of it.
function ask.try_open(w)
    local open, message = try_open(w)
    tell(w, open, message)
    if open or message then
        local waiters = w.openers
        w.openers = {}
        for _, waiter in ipairs(waiters) do
            waiter:post(1)
        end
    end
    return open
end

-- The same, for a call: it waits for the first attempt to end.
local function await_open(w)
    local open, message, code = try_open(w)
    if open or message then
        return open, message, code
    end
    local waiter = semaphore.new()
    w.openers[#w.openers + 1] = waiter
    waiter:wait(w.patience)
    open, message, code = try_open(w)
    if open or message then
        return open, message, code
    end
    return false, NOT_YET:format(w.patience), "Timeout"
end

-- Make a change that needs no answer of the store: the method `name`. Raises as that does.
function ask.change(w, name, ...)
    if try_open(w) then
        return methods[name](w.scheduler, ...)
    end
    local fine, message, code = methods[name](w.stand_in, ...)
    if message == nil then
        w.changes[#w.changes + 1] = { name, n = select("#", ...) + 1, ... }
    end
    return fine, message, code
end

-- -- Calls --------------------------------------------------------------------------------------

-- An error of an argument, at the place of whoever called the function that this is called in.
local function raise(name, message)
    if type(message) == "string" then
        message = message:gsub("^lapse: ", "lapse." .. name .. ": ")
    end
    error(message, 3)
end

-- Whether the store can be asked from here, and is open; else nil, message, code.
local function can_ask(w, name)
    local why = ask.why_not("resty.lapse: " .. name .. "()")
    if why then
        return nil, why, "CannotWait"
    end
    return await_open(w)
end

-- Call the method `name` and wait for its answer. Called as a tail call.
function ask.call(w, name, ...)
    local ready, why, reason = can_ask(w, name)
    if not ready then
        return nil, why, reason
    end
    local fine, ticket, message, code = pcall(methods[name], w.scheduler, ...)
    if not fine then
        raise(name, ticket)
    elseif type(ticket) ~= "number" or ticket == 0 then
        return ticket, message, code -- It is known without asking.
    end
    return await(w, ticket, expect(w, ticket), w.patience)
end

-- Wait for the answer of what was asked already; raises where that cannot be.
function ask.answer(w, name, ticket)
    local why = ask.why_not(name)
    if why then
        error(why, 3)
    end
    return await(w, ticket, expect(w, ticket), w.patience)
end

-- The same as call for many orders, which share the store's turns and the patience of one call: an
-- array of generations or codes, and how many were accepted.
function ask.schedule_many(w, orders)
    local ready, why, reason = can_ask(w, "schedule_many")
    if not ready then
        return nil, why, reason
    end
    local fine, results, message, code = pcall(methods.schedule_many, w.scheduler, orders)
    if not fine then
        raise("schedule_many", results)
    elseif not results then
        return nil, message, code
    end
    local waiters, accepted = {}, 0
    local deadline = now(w.scheduler) + w.patience
    for i = 1, #results do
        waiters[i] = type(results[i]) == "number" and expect(w, results[i])
    end
    for i = 1, #results do
        if waiters[i] then
            local left = max(0, deadline - now(w.scheduler))
            local generation, _, failure = await(w, results[i], waiters[i], left)
            accepted = accepted + (generation and 1 or 0)
            results[i] = generation or failure
        end
    end
    return results, accepted
end

return ask
