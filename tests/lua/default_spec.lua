-- The functions of the module, and the scheduler behind them: dots, stop, close, and again.

local lapse = require "lapse"
local support = require "support"
local nothing = support.nothing

describe("the default scheduler", function()
    after_each(function()
        lapse.close()
    end)

    it("is made anew after close, without hooks and handlers", function()
        local first, seen = lapse.default_scheduler(), {}
        lapse.on_dead(function(info)
            seen[#seen + 1] = info.id
        end)
        assert.is_true(lapse.handle("q", nothing))
        assert.is_truthy(lapse.schedule("x", 60, nothing))
        assert.is_true(lapse.close())
        assert.are.equal("Closed", select(3, first:cancel "x"))
        assert.are.same({ false, "unknown" }, { lapse.cancel "x" })
        assert.are_not.equal(first, lapse.default_scheduler())
        assert.is_nil(lapse.default_scheduler():queue_stats "q")
        assert.is_truthy(lapse.schedule("x", 0, lapse.reject))
        assert.is_truthy(lapse.put { id = "y", queue = "q", callback = lapse.reject })
        local ran = 0
        repeat
            ran = ran + lapse.step()
        until ran == 2
        assert.are.same({}, seen)
        assert.is_true(lapse.default_scheduler():close())
        assert.is_truthy(lapse.schedule("x", 60, nothing))
    end)

    it("is made anew when something is scheduled after its run", function()
        local handled, dead, failed = support.recorder(), {}, {}
        lapse.handle("q", handled)
        lapse.on_dead(function(info)
            dead[#dead + 1] = info.id
        end)
        lapse.on_error(function(order)
            failed[#failed + 1] = order.id
        end)
        lapse.schedule("left", 60, nothing)
        for i = 1, 3 do
            lapse.put { id = "handled" .. i, queue = "q", delay = -1 }
            lapse.schedule("rejected" .. i, -1, function()
                return lapse.reject "no"
            end)
            lapse.schedule("failed" .. i, -1, error)
            lapse.schedule("stop" .. i, 0.01, lapse.stop) -- after these
            assert.is_true(lapse.run())
            assert.are.same({ i, i, i }, { #handled, #dead, #failed })
            -- What is pending stays with the scheduler that was stopped.
            local old = lapse.default_scheduler()
            assert.is_true(lapse.run())
            assert.are.equal("Closed", select(3, lapse.step()))
            assert.are.equal(i == 1 and "pending" or nil, (lapse.get "left" or {}).state)
            assert.are.equal(old, lapse.default_scheduler())
        end
        assert.is_truthy(lapse.schedule("new", 60, nothing))
        assert.is_true(lapse.cancel "new")
    end)

    it("is made anew for a handler or an order in full, too", function()
        for _, again in ipairs {
            function()
                return lapse.handle("q", nothing)
            end,
            function()
                return lapse.put { id = "x" }
            end,
        } do
            local old = lapse.default_scheduler()
            lapse.stop()
            local _, message, code = again()
            assert.are.equal("Closed", code) -- A run may be going on elsewhere.
            assert.is_truthy(message:find("lapse.new()", 1, true))
            assert.is_true(lapse.run())
            assert.is_truthy(again())
            assert.are_not.equal(old, lapse.default_scheduler())
        end
    end)

    it("is made anew with the queues that were paused", function()
        local seen = support.recorder()
        lapse.handle("held", seen)
        lapse.handle("free", seen)
        for _, queue in ipairs { "held", "free", "", "no orders" } do
            assert.is_true(lapse.default_scheduler():pause(queue))
        end
        assert.is_true(lapse.default_scheduler():resume "free")
        lapse.stop()
        assert.is_true(lapse.run())
        assert.is_truthy(lapse.put { id = "1", queue = "held" })
        assert.is_truthy(lapse.schedule("3", 0, function(id)
            seen(id)
        end))
        assert.is_truthy(lapse.put { id = "2", queue = "free" })
        local s, ran = lapse.default_scheduler(), 0
        while ran == 0 do -- The one that runs is the last of the three.
            ran = lapse.step()
        end
        assert.are.same("2", table.concat(seen, " "))
        assert.is_true(s:queue_stats("no orders").paused)
        assert.is_false(s:queue_stats("free").paused)
        assert.is_true(s:resume "held" and s:resume "")
        while ran < 3 do
            ran = ran + lapse.step()
        end
        assert.are.same("2 1 3", table.concat(seen, " "))
    end)

    it("stays stopped while an outer run has yet to return", function()
        local code
        lapse.schedule("outer", 0, function()
            lapse.stop()
            assert.is_true(lapse.run())
            code = select(3, lapse.schedule("x", 0, nothing))
        end)
        assert.is_true(lapse.run())
        assert.are.equal("Closed", code)
        assert.is_truthy(lapse.schedule("x", 0, nothing))
    end)

    it("lets another scheduler stay stopped for good", function()
        local s = assert(lapse.new())
        s:stop()
        assert.is_true(s:run())
        local _, message, code = s:schedule("x", 0, nothing)
        assert.are.equal("Closed", code)
        assert.is_truthy(message:find("open another with lapse.new()", 1, true))
        s:close()
        _, message = s:schedule("x", 0, nothing)
        assert.is_truthy(message:find("open another with lapse.new()", 1, true))
    end)

    it("is called with a dot", function()
        local calls = {
            schedule = function() lapse:schedule("x", 1, nothing) end,
            put = function() lapse:put { id = "x" } end,
            cancel = function() lapse:cancel "x" end,
            stop = function() lapse:stop() end,
            run = function() lapse:run() end,
            step = function() lapse:step() end,
            new = function() lapse:new { keep = 1 } end,
            retry = function() lapse:retry(5) end,
            reject = function() lapse:reject "no" end,
            manual_clock = function() lapse:manual_clock(5) end,
        }
        for name, call in pairs(calls) do
            local fine, err = pcall(call)
            assert.is_false(fine)
            assert.is_truthy(err:find(
                "default_spec.lua:%d+: lapse%." .. name .. ": call it with a dot"), err)
        end
    end)
end)

describe("a wrong argument", function()
    local s = support.invent()
    local clock = 1.9e12 -- milliseconds

    local function message(call)
        local fine, err = pcall(call)
        assert.is_false(fine)
        return err
    end

    for text, call in pairs {
        ["lapse.each: the state is 'pending', 'running', 'done' or 'dead', got 'deed'"] =
            function() s:each "deed" end,
        ["overflow is 'refuse' or 'dead_letter_oldest', got 'x'"] =
            function() lapse.new { overflow = "x" } end,
        ["on_error is a function, got number"] = function() lapse.new { on_error = 5 } end,
        ["log is a function, got string"] = function() lapse.new { log = "x" } end,
        ["lapse.on_dead: on_dead is a function, got table"] = function() s:on_dead {} end,
        ["the handler is a function, got string"] = function() s:handle("q", "f") end,
        ["lapse.schedule: the delay is a number of seconds up to 100 years, got nan"] =
            function() s:schedule("x", 0 / 0, nothing) end,
        ["that looks like milliseconds, divide by 1000"] =
            function() s:schedule_at("x", clock, nothing) end,
        ["the instant is seconds since 1970, within 100 years from now, got nan"] =
            function() s:schedule_at("x", 0 / 0, nothing) end,
        ["the policy's backoff is a number of seconds from 0 to 100 years, got -1.5"] =
            function() s:handle("q", nothing, { backoff = -1.5 }) end,
        ["the policy's run_limit is a number of seconds from 0 to 100 years, got -1e-12"] =
            function() s:handle("q", nothing, { run_limit = -1e-12 }) end,
        ["a clock's start is a number of seconds from 0 to 100 years, got -1"] =
            function() lapse.manual_clock(-1) end,
        ["keep is a number of seconds from 0 to 100 years, got -1"] =
            function() lapse.new { keep = -1 } end,
        ["lease is a number of seconds from 0 to 100 years, got nan"] =
            function() lapse.new { lease = 0 / 0 } end,
    } do
        it("is told: " .. text, function()
            local err = message(call)
            assert.is_truthy(err:find(text, 1, true), err)
            assert.is_truthy(err:find("default_spec.lua:%d+: "), err)
        end)
    end

    it("is no close in a callback: that is told to stop", function()
        local orders, at = support.invent()
        local answer
        orders:schedule("x", 0, function()
            answer = { orders:close() }
        end)
        at(0)
        assert.are.equal("InCallback", answer[3])
        assert.is_truthy(answer[2]:find("stop()", 1, true))
    end)
end)

describe("numbers of 16 digits", function()
    it("have texts that do not lose the last ones", function()
        local s, at = support.invent { keep = 60 }
        local keys, fences = {}, {}
        local function note(id, order)
            assert.are.equal(("%s:%d"):format(id, order.generation), order.key)
            assert.are.equal(("%d"):format(order.fence), order.fence_text)
            assert.are.equal(order.key, s:get(id).key)
            keys[#keys + 1], fences[#fences + 1] = order.key, order.fence_text
        end
        for i = 1, 3 do
            s:schedule("OID", 0, note)
            at(i)
        end
        s:put { id = "OID", queue = "q" }
        at(4)
        local claim = s:take("q", 0)
        note("OID", claim)
        claim:done()
        for i = 2, 4 do
            assert.are_not.equal(keys[i - 1], keys[i])
            assert.are_not.equal(fences[i - 1], fences[i])
            assert.is_truthy(keys[i]:find "^OID:%d+$")
        end
    end)

    it("are the same key at every attempt, and on the dead letter", function()
        local keys, dead = {}, nil
        local s, at = support.invent {
            on_error = nothing,
            on_dead = function(info)
                dead = info.key
            end,
        }
        s:handle("q", function(_, order)
            keys[#keys + 1] = order.key
            error "no"
        end, { attempts = 2, backoff = 1, jitter_percent = -1 })
        s:put { id = "x", queue = "q" }
        at(0)
        at(1)
        assert.are.same({ dead, dead }, keys)
    end)
end)
