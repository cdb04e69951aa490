-- Dead letters: why, what they keep, who is told, and how they come back or go.

local lapse = require "lapse"
local support = require "support"
local invent, nothing = support.invent, support.nothing

local function reject()
    return lapse.reject "no such account"
end

-- A scheduler that keeps what on_dead is told.
local function watched(options)
    local dead = {}
    options = options or {}
    options.on_error = options.on_error or nothing
    function options.on_dead(info)
        dead[#dead + 1] = info
    end
    local s, at, clock = invent(options)
    return s, at, dead, clock
end

describe("a dead letter", function()
    it("says what it was and why it died", function()
        local s, at, dead = watched()
        local generation = s:put {
            id = "x", queue = "shop", payload = "a\0b", delay = 2, callback = reject,
        }
        at(3)
        assert.are.equal(1, #dead)
        local info = s:get "x"
        assert.are.same(dead[1], info)
        assert.are.same({ "x", "shop", "a\0b" }, { info.id, info.queue, info.payload })
        assert.are.same({ "dead", "rejected", 1 }, { info.state, info.reason, info.attempt })
        assert.are.same({ "no such account", generation }, { info.error, info.generation })
        assert.are.same({ 1767225602, 1767225603 }, { info.due, info.ended })
        assert.are.equal(0, info.remaining)
        local listed = {}
        for each in s:each "dead" do
            listed[#listed + 1] = each
        end
        assert.are.same({ info }, listed)
    end)

    it("has one of five reasons", function()
        local s, at, dead, clock = watched { max_pending = 2, overflow = "dead_letter_oldest" }
        s:handle("fails", error, { attempts = 1 })
        s:handle("hangs", function()
            clock:advance(10)
        end, { attempts = 1, run_limit = 5 })
        s:handle("expires", nothing, { expires = 1 })
        s:put { id = "failed", queue = "fails" }
        at(0)
        s:put { id = "lost", queue = "hangs" }
        at(0)
        s:put { id = "expired", queue = "expires" }
        at(100)
        s:schedule("rejected", 0, reject)
        at(200)
        for _, id in ipairs { "maxlen", "y", "z" } do
            s:schedule(id, 1, nothing)
        end
        assert.are.equal(5, #dead)
        for _, info in ipairs(dead) do
            assert.are.equal(info.id, info.reason)
            assert.are.equal(1, s:stats().dead_by[info.reason])
        end
        assert.are.equal(5, s:stats().dead_total)
    end)

    it("keeps its error clipped, and without what would break a line", function()
        local s, at, dead = watched()
        s:handle("q", function()
            error("two\nlines\0" .. ("x"):rep(5000), 0)
        end, { attempts = 1 })
        s:put { id = "x", queue = "q" }
        at(0)
        assert.is_true(#dead[1].error <= 1000)
        assert.is_nil(dead[1].error:find "%c")
        assert.is_truthy(dead[1].error:find "^two")
    end)

    it("comes back with its callback, payload and fresh attempts", function()
        local s, at, dead = watched()
        local seen = {}
        local broken = true
        s:handle("q", function(id, order)
            seen[#seen + 1] = id .. order.attempt .. order.payload
            if broken then
                error("gateway down", 0)
            end
        end, { attempts = 2, backoff = 1, jitter_percent = -1 })
        local first = s:put { id = "x", queue = "q", payload = "p" }
        s:schedule("own", 0, function(_, order)
            seen[#seen + 1] = "own" .. order.attempt
            return broken and lapse.reject() or nil
        end)
        at(0)
        at(1)
        assert.are.equal(2, #dead)
        broken = false
        local second = s:requeue("x", 5)
        assert.is_true(second > first)
        assert.are.equal(5, s:get("x").remaining)
        assert.are.equal("pending", s:get("x").state)
        assert.is_truthy(s:requeue("own", 0, dead[1].generation))
        support.collect()
        at(6)
        assert.are.same({ "x1p", "own1", "x2p", "own1", "x1p" }, seen)
        assert.are.same({ 2, 0, 2 }, { s:stats().requeued, s:stats().dead, s:stats().dead_total })
    end)

    it("comes back only when it can", function()
        local s, at = watched()
        local generation = s:schedule("x", 0, reject)
        at(0)
        assert.are.equal("Unknown", select(3, s:requeue("y", 0)))
        assert.are.equal("Unknown", select(3, s:requeue("", 0)))
        assert.are.equal("Unknown", select(3, s:requeue("x", 0, generation + 1)))
        s:schedule("x", 60, nothing)
        assert.are.equal("Exists", select(3, s:requeue("x", 0)))
        assert.is_true(s:cancel "x")
        for _, delay in ipairs { 0 / 0, "1", 1e300, true } do
            assert.is_false(pcall(s.requeue, s, "x", delay))
        end
        assert.is_truthy(s:requeue("x", -5, generation))
        assert.are.equal(1, at(0.1))
        assert.is_truthy(s:requeue "x") -- at once
        assert.are.equal(1, at(0.2))
        s:stop()
        assert.are.equal("Closed", select(3, s:requeue("x", 0)))
    end)

    it("is purged by id, by generation, or with all others", function()
        local s, at = watched()
        local generations = {}
        for i = 1, 3 do
            generations[i] = s:schedule("x", 0, reject)
            at(i)
        end
        for i = 1, 4 do
            s:schedule("o" .. i, 0, reject)
        end
        at(4)
        assert.are.equal(7, s:stats().dead)
        assert.are.equal(0, s:purge "none")
        assert.are.equal(0, s:purge "")
        assert.are.equal(1, s:purge("x", generations[2]))
        assert.are.equal(0, s:purge("x", generations[2]))
        assert.are.equal(2, s:purge "x")
        assert.are.equal(4, s:purge())
        assert.are.equal(0, s:purge())
        assert.are.same({ 0, 7, 7 }, { s:stats().dead, s:stats().purged, s:stats().dead_total })
        assert.is_false(pcall(s.purge, s, 5))
        assert.is_false(pcall(s.purge, s, nil, 1))
        s:close()
        assert.are.equal("Closed", select(3, s:purge()))
        assert.are.equal("Closed", select(3, s:requeue("x", 0)))
    end)

    it("is dropped beyond max_dead, the oldest first", function()
        local s, at, dead = watched { max_dead = 3 }
        for i = 1, 10 do
            s:schedule("o" .. i, i, reject)
        end
        for i = 1, 10 do
            at(i)
        end
        assert.are.equal(10, #dead)
        local left = {}
        for info in s:each "dead" do
            left[#left + 1] = info.id
        end
        table.sort(left)
        assert.are.same({ "o10", "o8", "o9" }, left)
        assert.are.equal(7, s:stats().dead_dropped)
    end)
end)

describe("on_dead", function()
    it("is told before the call that caused it returns, and once", function()
        local s, at, dead = watched { max_pending = 1, overflow = "dead_letter_oldest" }
        s:schedule("a", 1, nothing)
        s:schedule("b", 1, nothing)
        assert.are.same({ 1, "a" }, { #dead, dead[1].id })
        s:schedule_many {
            { id = "c", delay = 1, callback = nothing },
            { id = "d", delay = 1, callback = nothing },
        }
        assert.are.same({ 3, "b", "c" }, { #dead, dead[2].id, dead[3].id })
        s:put { id = "e", queue = "q" }
        s:take("q", 0):reject "no"
        assert.are.same({ 5, "e", "no" }, { #dead, dead[5].id, dead[5].error })
        at(1)
        assert.are.equal(5, #dead)
    end)

    it("is told after on_error", function()
        local told = {}
        local s, at = invent {
            on_error = function()
                told[#told + 1] = "error"
            end,
            on_dead = function()
                told[#told + 1] = "dead"
            end,
        }
        s:handle("q", error, { attempts = 1 })
        s:put { id = "x", queue = "q" }
        at(0)
        assert.are.same({ "error", "dead" }, told)
    end)

    it("may use the scheduler, and is set and removed", function()
        local s, at = invent()
        local seen = support.recorder()
        s:on_dead(function(info)
            assert.are.equal("dead", s:get(info.id).state)
            assert.is_truthy(s:schedule("follow up", 1, seen))
            assert.are.equal(1, s:purge(info.id))
            support.collect()
        end)
        s:schedule("x", 0, reject)
        at(0)
        at(1)
        assert.are.equal("follow up", seen[1])
        s:on_dead(nil)
        s:schedule("y", 1, reject)
        at(2)
        assert.are.equal("dead", s:get("y").state)
        assert.is_false(pcall(s.on_dead, s, 5))
        assert.is_false(pcall(lapse.new, { on_dead = 5 }))
        assert.is_false(pcall(lapse.new, { log = "stderr" }))
    end)

    it("that causes one dead letter after the other does not hold up the caller", function()
        local s, at
        local told = 0
        s, at = invent {
            max_pending = 1, overflow = "dead_letter_oldest",
            on_dead = function()
                told = told + 1
                s:schedule("again" .. told, 60, nothing)
            end,
        }
        s:schedule("a", 60, nothing)
        s:schedule("b", 60, nothing)
        assert.are.equal(1, told)
        at(1)
        assert.are.equal(2, told)
    end)

    it("may close the scheduler", function()
        local s, at
        s, at = invent {
            on_dead = function()
                assert.is_true(s:close())
            end,
        }
        s:schedule("x", 0, reject)
        s:schedule("y", 0, nothing)
        assert.are.equal(1, at(0))
        assert.are.equal("Closed", select(3, s:step()))
        s = lapse.new {
            max_pending = 1, overflow = "dead_letter_oldest",
            on_dead = function()
                s:close()
            end,
        }
        s:schedule("x", 60, nothing)
        assert.is_truthy(s:schedule("y", 60, nothing))
        assert.are.equal("Closed", select(3, s:stats()))
    end)

    it("P-28 P-45 that fails is told of once, and stops nothing", function()
        local spiteful = setmetatable({}, {
            __tostring = function()
                error "no text"
            end,
        })
        local causes = {
            function() error("text", 0) end, function() error {} end, function() error(nil) end,
            function() error(spiteful) end, coroutine.yield,
        }
        local i = 0
        local s, at = invent {
            on_dead = function()
                i = i + 1
                causes[(i - 1) % #causes + 1]()
            end,
            log = function()
                error("log fails", 0)
            end,
        }
        local seen = support.recorder()
        local count = 10 * #causes
        for n = 1, count do
            s:schedule("o" .. n, 1, reject)
            s:schedule("fine" .. n, 1, seen)
        end
        local ran
        local lines = support.stderr_of(function()
            ran = at(1)
        end)
        assert.are.same({ 2 * count, count, count }, { ran, #seen, #lines })
        assert.are.equal("lapse: on_dead failed: text\n", lines[1])
        assert.are.same({ 0, 0 }, { s:stats().running, s:stats().pending })
    end)

    it("is told by run too, while nothing else is due", function()
        local s
        s = lapse.new {
            lease = 0.01,
            on_dead = function(info)
                assert(info.reason == "lost")
                s:stop()
            end,
        }
        s:put { id = "x", queue = "q" }
        local claims = {}
        for i = 1, 5 do
            claims[i] = s:take "q" -- when the claim before it has ended
            assert.are.equal(i, claims[i].attempt)
        end
        assert.is_true(s:run())
        assert.are.equal(1, s:stats().dead)
        assert.is_false(claims[5]:holds())
    end)
end)

describe("the log", function()
    it("has four levels of messages, on the thread that was in a call", function()
        local messages = {}
        local s, at, clock = invent {
            lease = 1,
            log = function(level, message)
                messages[#messages + 1] = level .. " " .. message
            end,
        }
        s:put { id = "two\nlines", queue = "q" }
        local held = s:take("q", 0)
        clock:advance(2)
        assert.are.equal(0, #messages)
        at(3)
        assert.are.equal(1, #messages)
        assert.is_truthy(messages[1]:find "^warning order .*was not settled in time")
        assert.is_nil(messages[1]:find "\n")
        assert.are.equal("Stale", select(3, held:done()))
        assert.are.equal(1, #messages)
    end)
end)
