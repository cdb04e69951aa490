-- What callbacks may do, what they are told, and what becomes of their errors.
-- tiers: small

local lapse = require "lapse"
local support = require "support"
local invent, nothing = support.invent, support.nothing

-- A scheduler that keeps what on_error is told.
local function watched()
    local errors = {}
    local s, at, clock = invent {
        on_error = function(order, err, trace)
            errors[#errors + 1] = { id = order.id, err = err, trace = trace }
        end,
    }
    return s, at, errors, clock
end

describe("a callback", function()
    it("that returns lapse.retry itself, not what it returns, has failed", function()
        local told = {}
        local s, at = invent { on_error = function(order, err)
            told[order.id] = err
        end }
        for name, verdict in pairs { retry = lapse.retry, reject = lapse.reject } do
            s:schedule(name, 0, function()
                return verdict
            end)
        end
        s:schedule("other", 0, function()
            return print -- another value means nothing
        end)
        assert.are.equal(3, at(0))
        assert.is_truthy(told.retry:find("call lapse.retry(delay)", 1, true))
        assert.is_truthy(told.reject:find("call lapse.reject(reason)", 1, true))
        assert.is_nil(told.other)
        assert.are.same({ 2, 0 }, { s:stats().failed, s:stats().dead })
    end)

    it("is told the order", function()
        local s, at = invent()
        local id, order
        local generation = s:put {
            id = "x", queue = "shop", payload = "42", delay = 1,
            callback = function(...)
                id, order = ...
            end,
        }
        at(1.25)
        assert.are.equal("x", id)
        assert.are.equal("x", order.id)
        assert.are.equal("x", tostring(order))
        assert.are.equal("shop", order.queue)
        assert.are.equal("42", order.payload)
        assert.are.equal(1, order.attempt)
        assert.are.equal(1767225601, order.due)
        assert.are.equal(0.25, order.late)
        assert.are.equal(generation, order.generation)
        assert.is_true(order.fence > 0)
        assert.is_nil(order.unheard_of)
        assert.is_false(pcall(function()
            order.id = "y"
        end))
    end)

    it("may be anything that can be called", function()
        local s, at = invent()
        local seen = support.recorder()
        assert.is_truthy(s:schedule("x", 1, seen))
        at(1)
        assert.are.equal("x", seen[1])
        for _, bad in ipairs { 5, "f", {}, true } do
            assert.is_false(pcall(s.schedule, s, "x", 1, bad))
        end
        assert.is_false(pcall(s.schedule, s, "x", 1))
    end)

    it("runs in the order of due times, and of acceptance among equal ones", function()
        local s, at = invent()
        local seen = support.recorder()
        for i, delay in ipairs { 3, 1, 2, 1, 3 } do
            s:schedule("o" .. i, delay, seen)
        end
        at(5)
        assert.are.same("o2 o4 o3 o1 o5", table.concat(seen, " "))
    end)

    it("is done, repeated or a dead letter, as it says", function()
        local s, at, errors = watched()
        local attempts = {}
        s:schedule("retry", 1, function(_, order)
            attempts[#attempts + 1] = order.attempt
            if order.attempt < 3 then
                return lapse.retry(2)
            end
        end)
        s:schedule("raised retry", 1, function(_, order)
            if order.attempt == 1 then
                error(lapse.retry(2))
            end
        end)
        s:schedule("reject", 1, function()
            return lapse.reject "no such order"
        end)
        s:schedule("other values", 1, function()
            return false, "not a verdict"
        end)
        at(1)
        assert.are.equal("pending", s:get("retry").state)
        at(2.999)
        assert.are.same({ 1 }, attempts)
        at(3)
        at(5)
        assert.are.same({ 1, 2, 3 }, attempts)
        assert.are.equal("Unknown", select(3, s:get "raised retry"))
        local dead = s:get "reject"
        assert.are.same({ "dead", "rejected" }, { dead.state, dead.reason })
        assert.are.equal("no such order", dead.error)
        assert.are.same({}, errors)
        assert.are.equal(3, s:stats().retried)
    end)

    it("asked to be repeated without a delay waits for the policy's back-off", function()
        local s, at = invent()
        s:schedule("x", 1, function()
            return lapse.retry()
        end)
        at(1)
        assert.are.equal("pending", s:get("x").state)
        assert.is_true(s:get("x").remaining > 0)
    end)

    it("P-24 that schedules itself again at once starves nobody", function()
        local s, at = invent()
        local runs, other = 0, support.recorder()
        local function again(id)
            runs = runs + 1
            s:schedule(id, runs % 2 == 0 and 0 or -5, again)
        end
        s:schedule("again", 0, again)
        s:schedule("retry", 0, function()
            return lapse.retry(0)
        end)
        s:schedule("other", 0.02, other)
        for tick = 1, 20 do
            at(tick / 1000)
            assert.is_true(runs <= tick)
        end
        assert.is_true(runs >= 10)
        assert.are.equal(1, #other)
        assert.is_true(s:step() <= 2) -- The clock stands still: one pass, no more.
    end)

    it("P-25 may change everything that is due with it", function()
        local s, at = invent()
        local seed = 20261130
        local function random(n)
            seed = (seed * 16807) % 2147483647
            return seed % n
        end
        local pending, ran, added = {}, 0, 0
        local callback
        local function add(id, delay)
            if s:schedule(id, delay, callback) then
                pending[id] = true
            end
        end
        function callback(id)
            assert.is_true(pending[id])
            pending[id] = nil
            ran = ran + 1
            local what = random(5)
            if what == 0 then
                add(id, 0)
            elseif what == 1 then
                add(id, random(1000) / 1000)
            elseif what == 2 then
                add(id, 100 + random(100))
            elseif what == 3 and added < 3000 then
                for _ = 1, 3 do
                    added = added + 1
                    add("more" .. added, random(100) / 1000)
                end
            else
                local neighbour = "o" .. random(1000)
                assert.are.equal(pending[neighbour] or false, s:cancel(neighbour))
                pending[neighbour] = nil
            end
        end
        for i = 0, 999 do
            add("o" .. i, 0.05)
        end
        for tick = 1, 500 do
            at(tick / 100)
        end
        local left = 0
        for _ in pairs(pending) do
            left = left + 1
        end
        assert.are.equal(left, s:stats().pending)
        assert.are.equal(ran, s:stats().done)
        assert.is_true(ran > 1000)
    end)

    it("may run a pass of its own", function()
        local s, at = invent()
        local seen = support.recorder()
        s:schedule("outer", 1, function(id)
            assert.are.equal(1, s:step())
            seen(id)
        end)
        s:schedule("inner", 1, seen)
        assert.are.equal(1, at(1))
        assert.are.same("inner outer", table.concat(seen, " "))
        assert.are.equal(0, s:stats().running)
    end)
end)

describe("an error in a callback", function()
    it("P-28 stops none of the others, and is told once", function()
        local s, at, errors = watched()
        local fine = support.recorder()
        local values = { "text", { code = 5 }, false, 42 }
        for i = 1, 1000 do
            s:schedule("o" .. i, 0.05, i % 2 == 0 and fine or function()
                error(values[i % 4 + 1], 0)
            end)
        end
        assert.are.equal(1000, at(0.06))
        assert.are.equal(500, #fine)
        assert.are.equal(500, #errors)
        assert.are.equal("o1", errors[1].id)
        assert.are.equal(values[2], errors[1].err)
        assert.are.equal("string", type(errors[1].trace))
        s:schedule("later", 0.05, fine)
        assert.are.equal(1, at(1))
        local stats = s:stats()
        assert.are.same({ 500, 0, 0 }, { stats.failed, stats.running, stats.pending })
    end)

    it("P-28 in on_error itself is told once, on stderr", function()
        local s, at = invent {
            on_error = function()
                error "the handler fails as well"
            end,
        }
        local seen = support.recorder()
        s:schedule("a", 1, function()
            error "first"
        end)
        s:schedule("b", 1, seen)
        local lines = support.stderr_of(function()
            at(1)
        end)
        assert.are.equal(1, #lines)
        assert.is_truthy(lines[1]:find('on_error failed for order "a"', 1, true))
        assert.are.equal(1, #seen)
    end)

    it("goes to stderr in one line when there is no on_error", function()
        local s, at = invent { on_error = nothing }
        s:on_error(nil)
        s:schedule("a", 1, function()
            error("two\nlines", 0)
        end)
        local lines = support.stderr_of(function()
            at(1)
        end)
        assert.are.same({ 'lapse: order "a" failed: two lines\n' }, lines)
    end)

    it("P-45 may be of any kind", function()
        local s, at, errors = watched()
        local spiteful = setmetatable({}, {
            __tostring = function()
                error "no text"
            end,
        })
        local wrong = setmetatable({}, {
            __tostring = function()
                return {}
            end,
        })
        local function deep()
            return 1 + deep()
        end
        local causes = {
            function() error "text" end, function() error {} end, function() error(nil) end,
            function() error(spiteful) end, function() error(wrong) end, deep,
        }
        for i, cause in ipairs(causes) do
            s:schedule("o" .. i, 1, cause)
        end
        assert.are.equal(#causes, at(1))
        assert.are.equal(#causes, #errors)
        assert.are.equal(spiteful, errors[4].err)
        assert.is_truthy(tostring(errors[6].err):find "stack overflow")
        assert.are.equal(#causes, s:stats().failed)
    end)

    it("P-45 costs nothing that stays, 10 000 times", function()
        local s, at, clock
        s, at, clock = invent { on_error = nothing }
        local function fail()
            error {}
        end
        local function fail_often(from)
            for i = 1, 5000 do
                s:schedule("o" .. i, 0.001, fail)
                at(from + i / 100)
            end
            support.collect()
            return collectgarbage "count"
        end
        local before = fail_often(0)
        local after = fail_often(100)
        assert.is_true(after - before < 16)
        assert.are.equal(10000, s:stats().failed)
        assert.are.same({ 0, 0 }, { s:stats().running, s:stats().pending })
        assert.is_truthy(clock)
    end)
end)

describe("a yield in a callback", function()
    it("P-47 is an error with the order's id, and the order is done", function()
        local s, at, errors = watched()
        local seen = support.recorder()
        local resumed = 0
        s:schedule("yields", 1, function()
            coroutine.yield "to nobody"
            resumed = resumed + 1
        end)
        s:schedule("next", 1, seen)
        at(1)
        at(2)
        assert.are.equal(1, #errors)
        assert.are.equal("yields", errors[1].id)
        assert.is_truthy(errors[1].err:find("callback must not yield", 1, true))
        assert.is_truthy(errors[1].err:find('"yields"', 1, true))
        assert.are.equal(1, #seen)
        assert.are.equal(0, resumed)
        assert.are.equal("Unknown", select(3, s:get "yields"))
        assert.are.equal(1, s:stats().failed)
    end)

    it("P-47 inside a coroutine of the callback's own is nobody's business", function()
        local s, at, errors = watched()
        local got
        s:schedule("x", 1, function()
            local values = coroutine.wrap(function()
                coroutine.yield(1)
                coroutine.yield(2)
            end)
            got = values() + values()
        end)
        at(1)
        assert.are.equal(3, got)
        assert.are.same({}, errors)
    end)

    it("P-47 may be answered by the callback: it resumes who scheduled it", function()
        local s, at, errors = watched()
        local paid
        local waiter = coroutine.create(function()
            local self = coroutine.running()
            s:schedule("wake", 1, function(id)
                assert(coroutine.resume(self, id))
            end)
            paid = coroutine.yield()
        end)
        assert(coroutine.resume(waiter))
        at(1)
        assert.are.equal("wake", paid)
        assert.are.same({}, errors)
        assert.are.equal("dead", coroutine.status(waiter))
    end)

    it("closes what the callback left to be closed, in Lua 5.4", function()
        if _VERSION ~= "Lua 5.4" then
            assert.is_nil(rawget(coroutine, "close"))
            return
        end
        local s, at, errors = watched()
        local closed = support.recorder()
        local callback = load [[
            local closed, leave = ...
            return function(id)
                local guard <close> = setmetatable({}, { __close = function() closed(id) end })
                leave()
            end
        ]]
        s:schedule("yields", 1, callback(closed, coroutine.yield))
        s:schedule("raises", 1, callback(closed, error))
        at(1)
        assert.are.same("yields raises", table.concat(closed, " "))
        assert.are.equal(2, #errors)
    end)
end)
