-- From new to close: limits, stop, and that nothing stays behind.
-- tiers: small

local lapse = require "lapse"
local support = require "support"
local invent, nothing, collect = support.invent, support.nothing, support.collect

describe("a scheduler", function()
    it("is opened with what it says, and nothing else", function()
        assert.is_truthy(lapse.new())
        assert.is_truthy(lapse.new "memory:?engine=heap")
        assert.is_truthy(lapse.new { url = "memory:?tick=10ms", max_pending = 5, keep = 1.5 })
        assert.is_truthy(lapse.new { lease = 5, stuck_after = 1, max_dead = 10, log = nothing })
        assert.are.equal("BadUrl", select(3, lapse.new "memory:?engine=none"))
        assert.are.equal("string", type(select(3, lapse.new "nowhere://")))
        for _, bad in ipairs {
            5, true, nothing, { max = 1 }, { max_pending = -1 }, { max_pending = 1.5 },
            { keep = 0 / 0 }, { keep = "1" }, { overflow = "drop" }, { on_error = 5 },
            { clock = 5 }, { url = 5 }, { "memory:" }, { lease = "1" }, { lease = 1 / 0 },
            { stuck_after = 0 / 0 }, { max_dead = -1 }, { on_dead = {} }, { log = 5 },
        } do
            assert.is_false(pcall(lapse.new, bad))
        end
    end)

    it("refuses to be something else", function()
        local s = invent()
        for _, name in ipairs { "schedule", "step", "run", "each" } do
            local _, err = pcall(s[name], {}, 1)
            assert.is_truthy(err:find("call it with a colon", 1, true), name)
        end
        assert.is_false(pcall(s.step, io.stdout))
        assert.is_false(pcall(s.step, lapse.manual_clock()))
        assert.are.equal("lapse.Scheduler", getmetatable(s))
    end)

    it("P-29 holds max_pending orders and no more", function()
        local s = invent { max_pending = 1000 }
        local accepted, codes = 0, {}
        for i = 1, 2000 do
            local generation, _, code = s:schedule("o" .. i, 600, nothing)
            accepted = accepted + (generation and 1 or 0)
            codes[code or "none"] = true
        end
        assert.are.equal(1000, accepted)
        assert.are.same({ none = true, Full = true }, codes)
        for i = 1, 10 do
            assert.is_true(s:cancel("o" .. i))
        end
        for i = 1, 50 do
            accepted = accepted + (s:schedule("n" .. i, 600, nothing) and 1 or 0)
        end
        assert.are.equal(1010, accepted)
    end)

    it("P-29 makes the oldest a dead letter when told to", function()
        local s, at = invent { max_pending = 2, overflow = "dead_letter_oldest" }
        local seen = support.recorder()
        for i = 1, 3 do
            assert.is_truthy(s:schedule("o" .. i, 1, seen))
        end
        assert.are.equal("maxlen", s:get("o1").reason)
        at(1)
        assert.are.same("o2 o3", table.concat(seen, " "))
    end)

    it("P-31 after stop lists exactly what did not run", function()
        local s, at = invent()
        local ran = {}
        for i = 1, 1000 do
            s:schedule("o" .. i, 1, function(id)
                ran[id] = true
                if i == 400 then
                    s:stop()
                    assert.are.equal("Closed", select(3, s:schedule("late", 1, nothing)))
                end
            end)
        end
        assert.are.equal(400, at(1))
        assert.are.equal("Closed", select(3, at(2)))
        assert.is_true(s:stop())
        local left = 0
        for info in s:each "pending" do
            assert.is_nil(ran[info.id])
            ran[info.id] = true
            left = left + 1
        end
        assert.are.equal(600, left)
        assert.is_true(s:cancel "o1000")
        assert.is_true(s:close())
        for _, call in ipairs { "step", "fd", "next", "stats", "stop", "poll" } do
            assert.are.equal("Closed", select(3, s[call](s)))
        end
        assert.are.equal("Closed", select(3, s:cancel "o999"))
        assert.is_true(s:run())
    end)

    it("walks over its orders by their state", function()
        local s, at = invent { keep = 60 }
        s:schedule("dead", 1, function()
            return lapse.reject "x"
        end)
        s:schedule("done", 1, nothing)
        s:put { id = "pending", delay = 5, queue = "q", payload = "p" }
        local running
        s:schedule("running", 1, function()
            for info in s:each "running" do
                running = info.id
            end
        end)
        at(1)
        assert.are.equal("running", running)
        local states = {}
        for info in s:each() do
            states[info.id] = info.state
        end
        assert.are.same({ "dead", "done" }, { states.dead, states.done })
        assert.are.same({ "done", "pending" }, { states.running, states.pending })
        local info = s:get "pending"
        assert.are.same({ "q", "p", 4 }, { info.queue, info.payload, info.remaining })
        assert.is_false(pcall(s.each, s, "lost"))
    end)

    it("is closed at the end of its scope, in Lua 5.4", function()
        if _VERSION ~= "Lua 5.4" then
            assert.is_truthy(lapse.new():close())
            return
        end
        local s = load [[
            local lapse = ...
            local scheduler <close> = lapse.new()
            return scheduler
        ]] (lapse)
        assert.are.equal("Closed", select(3, s:fd()))
    end)
end)

describe("memory", function()
    it("P-43 the coroutine that loaded and scheduled is gone", function()
        local kept = {}
        for name, module in pairs(package.loaded) do
            if name:find "^lapse" then
                kept[name] = module
                package.loaded[name] = nil
            end
        end
        local hits, s, clock = 0, nil, nil
        local function hit()
            hits = hits + 1
            assert.is_truthy(coroutine.running())
        end
        coroutine.wrap(function()
            local fresh = require "lapse"
            clock = fresh.manual_clock()
            s = fresh.new { clock = clock }
            for i = 1, 500 do
                s:schedule("o" .. i, 5, hit)
            end
        end)()
        local suspended = coroutine.create(function()
            for i = 501, 1000 do
                s:schedule("o" .. i, 5, hit)
            end
            coroutine.yield()
            error "never resumed"
        end)
        assert(coroutine.resume(suspended))
        for name, module in pairs(kept) do
            package.loaded[name] = module
        end
        collect()
        collect()
        clock:advance(5)
        assert.are.equal(1000, s:step())
        assert.are.equal(1000, hits)
        assert.are.equal("suspended", coroutine.status(suspended))
    end)

    local function registry_size()
        local n = 0
        for _ in pairs(debug.getregistry()) do
            n = n + 1
        end
        return n
    end

    it("P-46 no callback stays, however its order ends", function()
        local s, at = invent { max_pending = 100, on_error = nothing }
        local weak = setmetatable({}, { __mode = "k" })
        local now = 0
        local function callback(body)
            local function f(...)
                return body(...)
            end
            weak[f] = true
            return f
        end
        local function step()
            now = now + 1
            at(now)
        end
        local ends = {
            function(id) -- it runs
                s:schedule(id, 0.5, callback(nothing))
                step()
            end,
            function(id) -- it fails
                s:schedule(id, 0.5, callback(error))
                step()
            end,
            function(id) -- it yields
                s:schedule(id, 0.5, callback(function()
                    coroutine.yield()
                end))
                step()
            end,
            function(id) -- it is cancelled
                s:schedule(id, 1e6, callback(nothing))
                s:cancel(id)
            end,
            function(id) -- it is refused
                s:schedule(id, 1e6, callback(nothing))
                s:schedule(id, 1e6, callback(nothing))
                s:schedule_many { { id = id, callback = callback(nothing) } }
                s:cancel(id)
            end,
            function(id) -- it is given another time
                s:schedule(id, 1e6, callback(nothing))
                s:reschedule(id, 0)
                step()
            end,
            function(id) -- it is replaced
                s:schedule(id, 1e6, callback(nothing))
                s:put { id = id, delay = 0.5, callback = callback(nothing), replace = true }
                step()
            end,
            function(id) -- it is repeated, then cancelled
                s:schedule(id, 0.5, callback(function()
                    return lapse.retry(1e6)
                end))
                step()
                s:cancel(id)
            end,
            function(id) -- it is a dead letter, purged
                s:schedule(id, 0.5, callback(lapse.reject))
                step()
                assert(s:purge(id) == 1)
            end,
            function(id) -- it is a dead letter, scheduled again
                s:schedule(id, 0.5, callback(function(_, order)
                    return order.attempt == 1 and s:stats().dead == 0 and lapse.reject() or nil
                end))
                step()
                s:requeue(id, 1e6)
                s:cancel(id)
            end,
            function(id) -- it is run by a handler, which is replaced and then removed
                s:handle("q", callback(nothing), { attempts = 2 })
                s:put { id = id, queue = "q", delay = 0.5 }
                s:handle("q", callback(error), { attempts = 1 })
                step()
                s:handle("q", nil)
                s:purge(id)
            end,
            function(id) -- its handler replaces itself
                s:handle("q", callback(function()
                    s:handle("q", callback(nothing))
                end))
                s:put { id = id, queue = "q", delay = 0.5 }
                step()
                s:handle("q", nil)
            end,
            function() -- its handler is refused
                s:put { id = "taken", queue = "taken" }
                s:take("taken", 0):done()
                assert(not s:handle("taken", callback(nothing)))
                assert(not pcall(s.handle, s, "q", callback(nothing), { attempts = -1 }))
            end,
            function(id) -- it schedules itself
                s:schedule(id, 0.5, callback(function()
                    s:schedule(id, 0.5, callback(nothing))
                end))
                step()
                step()
            end,
        }
        ends[1] "warm"
        collect()
        local before = registry_size()
        for i = 1, 2000 do
            for n, finish in ipairs(ends) do
                finish(("o%d/%d"):format(i, n))
            end
        end
        assert.are.equal(0, s:stats().pending)
        collect()
        assert.is_nil(next(weak))
        assert.is_true(registry_size() <= before + 1)
        for i = 1, 50 do
            s:schedule("left" .. i, 1e6, callback(nothing))
            s:schedule("dead" .. i, 0, callback(lapse.reject))
            s:handle("q" .. i, callback(nothing))
        end
        step()
        assert.are.equal(50, s:stats().dead)
        s:close()
        collect()
        assert.is_nil(next(weak))
    end)

    it("P-46 one function for many orders stays as long as one of them does", function()
        local s, at = invent()
        local weak = setmetatable({}, { __mode = "k" })
        local runs = {}
        local function share(name)
            local function f(id)
                runs[#runs + 1] = id .. name
            end
            weak[f] = true
            return f
        end
        local a, b = share "a", share "b"
        for i = 1, 3 do
            s:schedule("a" .. i, i, a)
            s:put { id = "b" .. i, delay = i, callback = b }
        end
        s:handle("q", a)
        a, b = nil, nil
        s:cancel "a1"
        s:cancel "b2"
        collect()
        at(2)
        assert.are.same("b1b a2a", table.concat(runs, " "))
        s:handle("q", nil)
        at(3)
        assert.are.same("b1b a2a a3a b3b", table.concat(runs, " "))
        collect()
        assert.is_nil(next(weak))
        assert.is_nil(a or b)
    end)

    it("P-46 a function is never taken for one that was at its address", function()
        local s, at = invent()
        local wrong, ran = {}, 0
        for round = 1, 200 do
            for i = 1, 40 do -- more than are remembered
                local id = round .. "/" .. i
                local function callback(given)
                    ran = ran + 1
                    wrong[#wrong + 1] = given ~= id and given or nil
                end
                s:schedule(id, i % 4 == 0 and 1 or 1e6, callback)
                if i % 4 ~= 0 then
                    s:cancel(id)
                end
            end
            at(round)
            collectgarbage() -- The next ones lie where these were.
        end
        assert.are.same({}, wrong)
        assert.are.equal(200 * 10, ran)
    end)

    it("P-46 a callback keeps only what it scheduled for its own id", function()
        local s, at = invent()
        local weak = setmetatable({}, { __mode = "k" })
        local function old()
            local function new() end
            weak[new] = "new"
            s:schedule("x", 1, new)
        end
        weak[old] = "old"
        s:schedule("x", 1, old)
        old = nil
        at(1)
        collect()
        local key, what = next(weak)
        assert.are.equal("new", what)
        assert.is_nil(next(weak, key))
        assert.is_nil(old)
    end)

    it("P-46 a scheduler that only its own callbacks refer to is collected", function()
        local weak = setmetatable({}, { __mode = "k" })
        local function make(i)
            local s = assert(lapse.new())
            weak[s] = i
            s:schedule("x", 3600, function()
                return s
            end)
            s:on_error(function()
                return s
            end)
            s:on_dead(function()
                return s
            end)
            s:handle("q", function()
                return s
            end)
            s:put { id = "y" }
            s:take "" -- held, and forgotten
        end
        for i = 1, 50 do
            make(i)
        end
        make = nil -- What is left of its last call in the stack is overwritten.
        collect()
        assert.is_nil(next(weak))
        assert.is_nil(make)
    end)

    it("a clock lives as long as a scheduler uses it, and no longer than both", function()
        local s, at = invent()
        collect()
        s:schedule("x", 1, nothing)
        assert.are.equal(1, at(1))
        local clock = lapse.manual_clock(5)
        lapse.new({ clock = clock }):close()
        assert.are.equal(6, clock:advance(1):now())
        for _, bad in ipairs { -1, 0 / 0, "1", 1e300 } do
            assert.is_false(pcall(clock.advance, clock, bad))
        end
        assert.are.equal(6, clock:now())
    end)
end)

describe("the end of the program", function()
    local SCRIPT = [[
        local lapse = require "lapse"
        local s = assert(lapse.new())
        local file = io.tmpfile()
        local function ran() print("ran", file:seek()) end
        for i = 1, 1000 do s:schedule("later" .. i, 3600, ran) end
        for i = 1, 50 do
            s:schedule("now" .. i, 0, ran)
            lapse.schedule("now" .. i, 0, ran)
        end
        s:put { id = "held", queue = "q" }
        local held = s:take "q"
    ]]

    it("P-44 runs no callback", function()
        assert.are.same({ "", 0 }, { support.run_script(SCRIPT) })
    end)

    it("P-44 runs no callback after os.exit", function()
        assert.are.same({ "", 3 }, { support.run_script(SCRIPT .. "os.exit(3, true)") })
    end)

    it("P-44 runs no further callback after os.exit in one", function()
        local text, status = support.run_script(SCRIPT .. [[
            s:put { id = "last", delay = -1, callback = function() os.exit(4, true) end }
            s:on_error(function() print "failed" end)
            for i = 1, 50 do s:cancel("now" .. i) end
            s:run()
        ]])
        assert.are.same({ "", 4 }, { text, status })
    end)
end)
