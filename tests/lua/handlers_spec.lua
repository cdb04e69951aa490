-- Handlers of queues: policies, retries, rates, claims that are lost, pausing.
-- tiers: small

local lapse = require "lapse"
local support = require "support"
local invent, nothing = support.invent, support.nothing

-- A handler that keeps what it is shown and answers what `answer` does.
local function watcher(answer)
    local seen = {}
    return seen, function(id, order)
        seen[#seen + 1] = { id = id, attempt = order.attempt, late = order.late, order = order }
        if answer then
            return answer(id, order)
        end
    end
end

local function ids(seen)
    local list = {}
    for i, run in ipairs(seen) do
        list[i] = run.id
    end
    return table.concat(list, " ")
end

local function fail()
    error("gateway down", 0)
end

describe("a handler", function()
    it("runs the orders that name its queue and bring no callback", function()
        local s, at = invent()
        local seen, handler = watcher()
        local own = support.recorder()
        assert.is_true(s:handle("close_unpaid", handler))
        s:put { id = "a", queue = "close_unpaid", delay = 1, payload = "42" }
        s:put { id = "b", queue = "other", delay = 1 }
        s:put { id = "c", queue = "close_unpaid", delay = 2, callback = own }
        assert.are.equal(1, at(1))
        assert.are.equal(1, at(2))
        assert.are.equal("a", ids(seen))
        assert.are.same({ "close_unpaid", "42" }, { seen[1].order.queue, seen[1].order.payload })
        assert.are.same("c", table.concat(own))
        assert.are.equal("pending", s:get("b").state)
    end)

    it("runs what was pending before it came, and is replaced and removed", function()
        local s, at = invent()
        local old, old_handler = watcher()
        local new, new_handler = watcher()
        s:put { id = "a", queue = "q", delay = 1 }
        assert.are.equal(0, at(2))
        s:handle("q", old_handler)
        assert.are.equal(1, at(2))
        s:put { id = "b", queue = "q", delay = 1 }
        s:handle("q", new_handler)
        assert.are.equal(1, at(3))
        assert.are.same({ "a", "b" }, { ids(old), ids(new) })
        assert.is_true(s:handle("q", nil))
        s:put { id = "c", queue = "q" }
        assert.are.equal(0, at(4))
        assert.are.equal("c", s:take("q", 0).id)
        assert.is_true(s:handle("q", nil))
        assert.is_true(s:handle "never heard of")
    end)

    it("is named by its function as well", function()
        local s, at = invent { on_error = nothing }
        local seen, handler = watcher(fail)
        s:handle("q", handler, { attempts = 2, backoff = 1, jitter_percent = -1 })
        s:schedule("a", 1, handler)
        s:schedule_at("b", 1, handler)
        s:put { id = "c", queue = "q", callback = handler }
        s:put { id = "d", queue = "its own", callback = handler }
        assert.are.equal(3, s:schedule_many {
            { id = "e", callback = handler }, { id = "f", queue = "q", callback = handler },
            { id = "g", callback = nothing },
        } and s:queue_stats("q").pending - 2)
        at(1)
        at(2)
        local runs = {}
        for _, run in ipairs(seen) do
            runs[run.id] = (runs[run.id] or "") .. run.order.queue .. run.attempt .. " "
        end
        for _, id in ipairs { "a", "b", "c", "e", "f" } do
            assert.are.equal("q1 q2 ", runs[id])
        end
        assert.are.equal("its own1 ", runs.d)
    end)

    it("that handles several queues is asked which", function()
        local s, at = invent()
        local seen, handler = watcher()
        s:handle("p", handler)
        s:handle("q", handler)
        local _, err = pcall(s.schedule, s, "x", 0, handler)
        assert.is_truthy(err:find("handles several queues", 1, true))
        _, err = pcall(s.schedule_many, s, { { id = "x", callback = handler } })
        assert.is_truthy(err:find("handles several queues", 1, true))
        assert.is_truthy(s:put { id = "x", queue = "q", callback = handler })
        s:handle("q", nothing)
        assert.is_truthy(s:schedule("y", 0, handler))
        s:handle("p", nil)
        assert.is_truthy(s:schedule("z", 0, handler)) -- a callback like any other
        at(1)
        assert.are.equal("z", ids(seen))
        assert.are.same({ "y", "p" }, { s:get("y").id, s:get("y").queue })
    end)

    it("is of one default scheduler too", function()
        local text = support.run_script [[
            local lapse = require "lapse"
            lapse.on_dead(function(dead) print(dead.id, dead.reason, dead.error) lapse.stop() end)
            lapse.handle("q", function() return lapse.reject "no" end)
            lapse.put { id = "x", queue = "q" }
            lapse.run()
            print(lapse.default_scheduler():stats().dead)
        ]]
        assert.are.equal("x\trejected\tno\n1\n", text)
    end)

    it("and takers exclude each other on a queue", function()
        local s = invent()
        s:put { id = "x", queue = "taken" }
        s:take("taken", 0):done()
        assert.are.equal("Mixed", select(3, s:handle("taken", nothing)))
        s:handle("handled", nothing)
        assert.are.equal("Mixed", select(3, s:poll "handled"))
        assert.are.equal("Mixed", select(3, s:take("handled", 0)))
        s:stop()
        assert.are.equal("Closed", select(3, s:handle("q", nothing)))
        s:close()
        assert.are.equal("Closed", select(3, s:handle("q", nothing)))
        assert.are.equal("Closed", select(3, s:pause "q"))
    end)

    it("may be registered by a handler, and replace itself", function()
        local s, at = invent()
        local second = support.recorder()
        local first
        function first(id)
            s:handle("q", second)
            support.collect()
            return id == "a" and lapse.retry(1) or nil
        end
        s:handle("q", first)
        first = nil
        s:put { id = "a", queue = "q" }
        s:put { id = "b", queue = "q" }
        at(1)
        at(2)
        assert.are.same("b a", table.concat(second, " "))
        assert.is_nil(first)
    end)

    it("has a policy with these fields and no others", function()
        local s = invent()
        local fine = {
            {}, { attempts = 0 }, { attempts = 4000 }, { backoff = 0, backoff_max = 0 },
            { jitter_percent = -1, backoff_percent = 100 }, { run_limit = 0.5, expires = 60 },
            { rate = 0 }, { rate = 1e6, stuck_after = 1 }, { jitter_percent = 100 },
        }
        for _, policy in ipairs(fine) do
            assert.is_true(s:handle("q", nothing, policy))
        end
        local bad = {
            5, "x", { retries = 1 }, { attempts = -1 }, { attempts = 4001 }, { attempts = 1.5 },
            { attempts = "3" }, { backoff = "1" }, { backoff = 0 / 0 }, { backoff = 1e300 },
            { backoff_percent = 99 }, { jitter_percent = 101 }, { jitter_percent = "none" },
            { run_limit = 1 / 0 }, { expires = true }, { stuck_after = {} }, { rate = -1 },
            { rate = 1e12 }, { attempts = 2 ^ 53 }, { "attempts" },
        }
        for i, policy in ipairs(bad) do
            assert.is_false(pcall(s.handle, s, "q", nothing, policy), i)
        end
        for _, handler in ipairs { 5, "f", {}, true } do
            assert.is_false(pcall(s.handle, s, "q", handler))
        end
        assert.is_false(pcall(s.handle, s, 5, nothing))
        assert.is_false(pcall(s.handle, s, ("x"):rep(256), nothing))
        assert.is_true(s:handle(nil, nothing))
        assert.are.equal(0, s:queue_stats("").pending)
    end)

    it("whose order expires is not called", function()
        local dead
        local s, at = invent {
            on_dead = function(info)
                dead = info
            end,
        }
        local seen, handler = watcher()
        s:handle("q", handler, { expires = 10 })
        s:put { id = "in time", queue = "q", delay = 5 }
        s:put { id = "too late", queue = "q", delay = 1 }
        assert.are.equal(1, at(12))
        assert.are.equal("in time", ids(seen))
        assert.are.same({ "too late", "expired", "dead" }, { dead.id, dead.reason, dead.state })
        assert.are.equal(1, s:stats().dead_by.expired)
    end)
end)

describe("a queue", function()
    it("that is paused starts nothing until it is resumed", function()
        local s, at = invent()
        local seen, handler = watcher()
        local own = support.recorder()
        s:handle("q", handler)
        assert.is_true(s:pause "q")
        s:put { id = "b", queue = "q", delay = 2 }
        s:put { id = "a", queue = "q", delay = 1 }
        s:put { id = "c", queue = "q", delay = 3 }
        s:put { id = "own", queue = "q", delay = 1, callback = own }
        s:put { id = "elsewhere", delay = 1, callback = own }
        assert.are.equal(1, at(5))
        assert.is_nil(s:next())
        assert.is_true(s:cancel "c")
        assert.is_true(s:queue_stats("q").paused)
        assert.is_true(s:resume "q")
        assert.are.equal(3, at(6))
        assert.are.equal("a b", ids(seen))
        assert.are.same("elsewhere own", table.concat(own, " "))
        assert.is_false(s:queue_stats("q").paused)
        assert.is_false(pcall(s.pause, s, 5))
        assert.is_true(s:pause())
        assert.is_true(s:resume())
    end)
end)

describe("retries", function()
    it("P-76 are spaced out, bounded and spread", function()
        local errors = 0
        local dead = {}
        local s, at = invent {
            on_error = function(_, err)
                assert(err == "gateway down")
                errors = errors + 1
            end,
            on_dead = function(info)
                dead[#dead + 1] = info
            end,
        }
        local attempts, now, firsts, spread = {}, 0, {}, 0
        s:handle("q", function(id, order)
            if id == "f" then
                attempts[order.attempt] = now
            elseif order.attempt == 2 and not firsts[now] then
                firsts[now] = true
                spread = spread + 1
            end
            fail()
        end, { attempts = 5, backoff = 1, jitter_percent = 20 })
        s:put { id = "f", queue = "q" }
        for i = 1, 1000 do
            s:put { id = "o" .. i, queue = "q" }
        end
        s:put { id = "other", delay = 2, callback = nothing }
        for tick = 0, 3000 do
            now = tick / 100
            at(now)
        end
        assert.are.equal(5, #attempts)
        for k = 1, 4 do
            local gap = attempts[k + 1] - attempts[k]
            assert.is_true(gap >= 0.8 * 2 ^ (k - 1) and gap <= 1.2 * 2 ^ (k - 1) + 0.02)
        end
        assert.is_true(spread > 30)
        assert.are.equal(5005, errors)
        assert.are.equal(1001, #dead)
        local f = s:get "f"
        assert.are.same({ "dead", "failed", 5 }, { f.state, f.reason, f.attempt })
        assert.are.equal("gateway down", f.error)
        assert.are.equal(5005, s:queue_stats("q").failed)
        assert.are.equal("Unknown", select(3, s:get "other"))
    end)

    it("P-76 do not follow a permanent error", function()
        local s, at = invent()
        local seen, handler = watcher(function()
            return lapse.reject "no such account"
        end)
        s:handle("q", handler)
        s:put { id = "x", queue = "q" }
        for second = 1, 100 do
            at(second)
        end
        assert.are.equal(1, #seen)
        local x = s:get "x"
        assert.are.same({ "rejected", "no such account", 1 }, { x.reason, x.error, x.attempt })
    end)

    it("come after the delay that the handler asks for, as often as its policy allows", function()
        local s, at = invent()
        local seen, handler = watcher(function(_, order)
            return lapse.retry(2 ^ order.attempt, "not yet")
        end)
        s:handle("q", handler, { attempts = 3 })
        s:put { id = "x", queue = "q", delay = 1 }
        at(1)
        at(2.999)
        assert.are.equal(1, #seen)
        at(3)
        at(7)
        assert.are.equal(3, #seen)
        local x = s:get "x"
        assert.are.same({ "dead", "failed", "not yet" }, { x.state, x.reason, x.error })
        assert.is_false(pcall(lapse.retry, 1, 5))
    end)

    it("have the default of what the policy leaves out, or gives as 0", function()
        for _, policy in ipairs { {}, { attempts = 0, backoff = 0, jitter_percent = 0 } } do
            local s, at = invent { on_error = nothing }
            local seen, handler = watcher(fail)
            s:handle("q", handler, policy)
            s:put { id = "x", queue = "q" }
            at(0)
            local delay = s:get("x").remaining
            assert.is_true(delay >= 0.8 and delay <= 1.2 and delay ~= 1)
            for second = 1, 40 do
                at(second)
            end
            assert.are.equal(5, #seen)
        end
    end)
end)

describe("a claim", function()
    it("P-59 that ended is stale, and its order is delivered anew", function()
        local s, _, clock = invent { lease = 1, keep = 60 }
        s:put { id = "x", queue = "q" }
        local a = s:take("q", 0)
        assert.is_true(a:holds())
        clock:advance(0.5)
        assert.is_true(a:renew())
        clock:advance(0.9)
        assert.is_true(a:holds())
        clock:advance(0.2)
        assert.is_false(a:holds())
        local b = s:take("q", 0)
        assert.are.same({ "x", 2 }, { b.id, b.attempt })
        assert.is_true(b.fence > a.fence)
        assert.is_true(b:renew(60))
        assert.are.equal("Stale", select(3, a:renew(1)))
        assert.are.equal("Stale", select(3, a:done()))
        assert.are.equal("running", s:get("x").state)
        clock:advance(59)
        assert.is_true(b:holds())
        assert.is_true(b:done())
        assert.are.equal("Stale", select(3, b:done()))
        assert.are.equal("Stale", select(3, b:renew()))
        assert.are.equal("done", s:get("x").state)
        assert.are.same({ 1, 2 }, { s:stats().lost, s:stats().started })
        assert.is_false(pcall(b.renew, b, "1"))
        assert.is_false(pcall(b.holds, s))
    end)

    it("P-59 of a handler lasts for its run_limit, and the loss is told once", function()
        local errors, messages = {}, {}
        local s, at, clock = invent {
            on_error = function(order, err)
                errors[#errors + 1] = order.id .. ": " .. tostring(err)
            end,
            log = function(level, message)
                messages[#messages + 1] = level .. ": " .. message
            end,
        }
        local held, order_kept = {}, nil
        s:handle("q", function(_, order)
            order_kept = order
            held[#held + 1] = order:holds()
            if order.attempt == 1 then
                clock:advance(3)
                held[#held + 1] = order:holds()
                held[#held + 1] = select(3, order:renew())
            end
        end, { run_limit = 2, stuck_after = 1 })
        s:put { id = "x", queue = "q" }
        assert.are.equal(1, at(0))
        assert.are.equal(1, at(4))
        assert.are.same({ true, false, "Stale", true }, held)
        assert.are.equal(1, #errors)
        assert.is_truthy(errors[1]:find("^x: the callback ran longer than its run_limit"))
        assert.are.equal(1, #messages)
        assert.is_truthy(messages[1]:find('^warning: order "?x"? was not settled in time'))
        assert.are.same({ 1, 1, 1 }, { s:stats().done, s:stats().lost, s:stats().stale })
        assert.is_false(order_kept:holds())
    end)

    it("P-59 of a callback that fails when it has lost its order is told once", function()
        local errors = {}
        local s, at, clock = invent {
            on_error = function(_, err)
                errors[#errors + 1] = err
            end,
        }
        local runs = 0
        s:handle("q", function()
            runs = runs + 1
            clock:advance(runs == 1 and 3 or 0)
            fail()
        end, { run_limit = 2, attempts = 2 })
        s:put { id = "x", queue = "q" }
        at(0)
        at(4)
        assert.are.same({ "gateway down", "gateway down" }, errors)
        assert.are.equal("dead", s:get("x").state)
    end)

    it("is named in the log when its callback seems stuck", function()
        local messages = {}
        local s, at, clock = invent {
            stuck_after = 5,
            log = function(level, message)
                messages[#messages + 1] = { level, message }
            end,
        }
        s:schedule("slow", 1, function()
            clock:advance(4)
            s:schedule("probe", 60, nothing)
            assert.are.equal(0, #messages)
            clock:advance(2)
            s:cancel "probe"
            assert.are.equal(1, #messages) -- Told before the call returns.
        end)
        at(1)
        assert.are.equal(1, #messages)
        assert.are.equal("warning", messages[1][1])
        assert.is_truthy(messages[1][2]:find("slow", 1, true))
    end)

    it("P-63 whose worker is lost five times makes a dead letter", function()
        local dead
        local s, _, clock = invent {
            lease = 1,
            on_dead = function(info)
                dead = info
            end,
        }
        s:put { id = "poison", queue = "q" }
        for i = 1, 99 do
            s:put { id = "g" .. i, queue = "q" }
        end
        local deliveries, done, lost = 0, 0, {}
        for _ = 1, 10 do
            local order = s:poll "q"
            while order do
                if order.id == "poison" then
                    deliveries = deliveries + 1
                    lost[deliveries] = order -- Its worker never comes back.
                else
                    done = done + (order:done() and 1 or 0)
                end
                order = s:poll "q"
            end
            clock:advance(1)
        end
        assert.are.same({ 5, 99 }, { deliveries, done })
        assert.are.same({ "poison", "lost", 5 }, { dead.id, dead.reason, dead.attempt })
        assert.are.same({ 5, 1 }, { s:stats().lost, s:stats().dead_by.lost })
        assert.are.equal("Stale", select(3, lost[5]:done()))
    end)

    it("P-63 can be cancelled while its worker is lost", function()
        local s, _, clock = invent { lease = 1 }
        s:put { id = "poison", queue = "q" }
        local order = s:take("q", 0)
        local fate = { s:cancel "poison" }
        assert.are.same({ false, "running" }, fate)
        clock:advance(1)
        assert.is_nil(s:poll "q")
        assert.are.equal("Stale", select(3, order:done()))
        assert.are.same({ 0, 1 }, { s:stats().running, s:stats().cancelled })
    end)

    it("P-63 of a callback that hangs is delivered as often as its policy says", function()
        local s, at, clock = invent { on_error = nothing }
        local seen, handler = watcher(function()
            clock:advance(3)
        end)
        s:handle("q", handler, { attempts = 3, run_limit = 2 })
        s:put { id = "x", queue = "q" }
        for second = 1, 60 do
            at(second)
        end
        assert.are.equal(3, #seen)
        assert.are.same({ "dead", "lost" }, { s:get("x").state, s:get("x").reason })
    end)
end)

describe("an outage", function()
    it("P-75 is caught up with at the rate, oldest first, without starving new ones", function()
        local RATE, BACKLOG, NEW = 200, 2000, 100 -- a second
        local s, at = invent()
        local starts, now, old, new, newest_wait = {}, 0, {}, 0, 0
        s:handle("q", function(id, order)
            starts[#starts + 1] = now
            if id:find "^old" then
                old[#old + 1] = tonumber(id:match "%d+")
            else
                new = new + 1
                newest_wait = math.max(newest_wait, now < 15 and order.late or 0)
            end
        end, { rate = RATE })
        for i = 1, BACKLOG do
            s:put { id = "old" .. i, queue = "q", delay = i / 1000 }
        end
        now = 3600
        local added = 0
        for tick = 0, 2500 do
            at(now)
            if tick % (100 / NEW) == 0 then
                added = added + 1
                s:put { id = "new" .. added, queue = "q" }
            end
            now = 3600 + tick / 100
        end
        for i = 1, #starts - RATE do
            local last = starts[i + math.floor(1.05 * RATE)]
            assert.is_true(not last or last - starts[i] >= 1 - 1e-9)
        end
        assert.are.equal(BACKLOG, #old)
        local misplaced = 0
        for i = 2, #old do
            misplaced = misplaced + (old[i] < old[i - 1] and 1 or 0)
        end
        assert.is_true(misplaced < BACKLOG / 10)
        assert.is_true(new > 0.9 * added)
        assert.is_true(s:stats().pending < 100)
    end)

    it("P-75 can be stopped in the middle, with nothing lost", function()
        local s, at = invent()
        local seen, handler = watcher()
        s:handle("q", handler, { rate = 10 })
        for i = 1, 500 do
            s:put { id = "o" .. i, queue = "q" }
        end
        for tick = 1, 200 do
            at(3600 + tick / 100)
        end
        assert.is_true(s:stop())
        local left = 0
        for _ in s:each "pending" do
            left = left + 1
        end
        assert.is_true(#seen > 15 and #seen < 25)
        assert.are.equal(500, left + #seen)
    end)

    it("P-77 loses nothing: what is overdue runs once and is told how late it is", function()
        local s, at, clock = invent()
        local seen, handler = watcher()
        local late = { ["2 s"] = 2, ["1 h"] = 3600, ["30 days"] = 30 * 86400 }
        s:handle("q", handler)
        s:pause "q"
        local start = 30 * 86400
        for id, by in pairs(late) do
            s:put { id = id, queue = "q", delay = start - by }
        end
        clock:advance(start)
        for i = 1, 100 do
            s:put { id = "n" .. i, queue = "q", delay = 60 }
        end
        s:resume "q"
        assert.are.equal(3, at(start))
        assert.are.equal(0, at(start + 1))
        for _, run in ipairs(seen) do
            assert.is_true(math.abs(run.late - late[run.id]) < 0.01)
            assert.are.equal(1, run.attempt)
        end
        assert.are.equal("30 days 1 h 2 s", ids(seen))
        assert.are.equal(100, s:stats().pending)
    end)
end)
