-- starve.lua - every call with its first, second, ... allocation failing, for host.c.
--
-- A call that runs out of memory has raised "not enough memory" and changed nothing, or has
-- done all of its work: then nothing was raised. Either way the scheduler works on.

local lapse = require "lapse"

local function nothing() end

local function handler() end

local id, long = ("n"):rep(99), ("x"):rep(300)

local calls = {
    schedule = function(s)
        return s:schedule(id, 5, function() end)
    end,
    schedule_at = function(s)
        return s:schedule_at("new", 1.8e9, nothing)
    end,
    put = function(s)
        return s:put { id = "new", payload = long, callback = nothing }
    end,
    replace = function(s)
        return s:put { id = "far", delay = 9, callback = nothing, replace = true }
    end,
    many = function(s)
        local orders = {}
        for i = 1, 10 do
            orders[i] = { id = "new" .. i, callback = i % 2 == 0 and nothing or handler }
        end
        return s:schedule_many(orders)
    end,
    exists = function(s)
        return s:schedule("far", 5, nothing)
    end,
    cancel = function(s)
        return s:cancel "far"
    end,
    cancel_unknown = function(s)
        return s:cancel "none"
    end,
    reschedule = function(s)
        return s:reschedule("far", 9)
    end,
    get = function(s)
        return s:get "far"
    end,
    each = function(s)
        local n = 0
        for _ in s:each() do
            n = n + 1
        end
        return n
    end,
    poll = function(s)
        local order = s:poll()
        return order.payload, order:renew(), order:done()
    end,
    take = function(s)
        local order = s:take()
        return order:reject "no"
    end,
    stats = function(s)
        return s:stats()
    end,
    step = function(s)
        return s:step()
    end,
    stop = function(s)
        return s:stop()
    end,
    close = function(s)
        return s:close()
    end,
    new = function(_, clock)
        return lapse.new { clock = clock, on_dead = nothing, log = nothing }:close()
    end,
    retry = function()
        return lapse.retry(5, "why")
    end,
    handle = function(s)
        return s:handle("h", function() end, { attempts = 3 })
    end,
    replace_handler = function(s)
        return s:handle("handled", function() end)
    end,
    remove_handler = function(s)
        return s:handle("handled", nil)
    end,
    name_handler = function(s)
        return s:schedule(id, 5, handler)
    end,
    requeue = function(s)
        return s:requeue("dead", 5)
    end,
    purge = function(s)
        return s:purge()
    end,
    queue_stats = function(s)
        return s:queue_stats "handled"
    end,
    queues = function(s)
        return s:queues()
    end,
    metrics = function(s)
        return s:metrics()
    end,
    pause = function(s)
        return s:pause "handled"
    end,
}

-- What they do to the number of pending orders: those that only add, and those that may
-- have done so although they raised.
local adds = { schedule = 1, schedule_at = 1, put = 1, many = 10, name_handler = 1, requeue = 1 }
local takes = { cancel = -1, poll = -1, take = -1, step = -2 }

-- A scheduler with four pending orders, a dead letter and a handler; its clock; and how
-- many dead letters it has told of.
local function fresh()
    local clock = lapse.manual_clock()
    local told = 0
    local s = assert(lapse.new {
        clock = clock, on_error = nothing,
        on_dead = function(info)
            told = told + (info.state == "dead" and 1 or 0)
        end,
    })
    assert(s:handle("handled", handler, { rate = 5 }))
    assert(s:schedule("dead", -1, lapse.reject) and s:step() == 1)
    assert(s:schedule("far", 3600, nothing))
    assert(s:schedule("due", 0, function(order_id, order)
        return lapse.reject(order_id .. order.queue)
    end))
    assert(s:schedule("wrong", 0, function(order_id)
        error("wrong " .. order_id)
    end))
    assert(s:put { id = "pull", payload = long })
    return s, clock, function()
        return told
    end
end

local function check_pending(s, name, fine)
    local pending = s:stats().pending
    if fine then
        assert(pending == 4 + (adds[name] or takes[name] or 0), name)
    else
        assert(pending <= 4 and pending >= 4 + (takes[name] or 0), name)
    end
end

-- Which handlers there are is told without a contradiction.
local function check_handlers(s, name)
    assert(s:handle("h", handler) and s:handle("handled", handler))
    local fine, err = pcall(s.schedule, s, "of which queue?", 0, handler)
    assert(not fine and err:find "several queues", name)
    assert(s:handle("h", nil) and s:handle("handled", nil))
    assert(s:schedule("a callback again", 0, handler))
    assert(s:get("a callback again").queue == "", name)
end

return function(allow)
    local function try(name, call, n)
        local s, clock, told = fresh()
        collectgarbage()
        allow(n)
        local fine, err = pcall(call, s, clock)
        allow(-1)
        if name == "close" and fine then
            return true
        end
        assert(fine or err == "not enough memory", err)
        check_pending(s, name, fine)
        collectgarbage()
        collectgarbage()
        assert(s:stats().running == 0, name)
        if name ~= "stop" then
            assert(s:schedule("after", 0, nothing)) -- Tells what could not be told before.
            -- In a step the hook itself may have been what ran out of memory.
            assert(s:stats().dead_total - told() <= (name == "step" and 1 or 0), name)
            check_handlers(s, name)
        end
        assert(s:close(), name)
        return fine
    end

    local starved = 0
    for name, call in pairs(calls) do
        local n = 0
        while not try(name, call, n) do
            n = n + 1
            starved = starved + 1
        end
    end
    return starved
end
