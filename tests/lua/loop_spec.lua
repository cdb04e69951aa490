-- The run loop, the host's own loop, and taking orders without a callback.
-- tiers: small

local lapse = require "lapse"
local support = require "support"
local invent, nothing = support.invent, support.nothing

describe("step", function()
    it("runs no more than it is asked to, and never waits", function()
        local s, at, clock = invent()
        local seen = support.recorder()
        for i = 1, 10 do
            s:schedule("o" .. i, i <= 5 and 1 or 100, seen)
        end
        assert.are.equal(0, s:step())
        clock:advance(1)
        assert.are.equal(0, s:step(0))
        assert.are.equal(2, s:step(2))
        assert.are.equal(3, s:step(99))
        assert.are.equal(0, at(2))
        assert.are.same("o1 o2 o3 o4 o5", table.concat(seen, " "))
        for _, bad in ipairs { -1, 0 / 0, "1", true } do
            assert.is_false(pcall(s.step, s, bad))
        end
    end)

    it("P-48 is what runs callbacks, on the thread of the script, and nothing else does", function()
        local s, _, clock = invent()
        local runs = 0
        for i = 1, 1000 do
            s:schedule("o" .. i, 0.001, function()
                runs = runs + 1
            end)
        end
        clock:advance(1)
        local work = {}
        for i = 1, 100000 do
            work[i % 1000] = { i }
        end
        assert.are.equal(100000, work[0][1])
        assert.are.equal(0, runs)
        s:cancel "o1"
        s:next()
        assert.are.equal(0, runs)
        assert.are.equal(999, s:step())
        assert.are.equal(999, runs)
        local threads = 0
        for line in io.lines "/proc/self/status" do
            threads = tonumber(line:match "^Threads:%s*(%d+)") or threads
        end
        assert.are.equal(1, threads)
    end)

    it("settles what it began when a hook ends it", function()
        local s, _, clock = invent()
        local host = coroutine.create(function()
            return s:step()
        end)
        s:schedule("x", 1, function()
            -- As the interpreter's handler of Ctrl-C does: a hook on the thread of the loop.
            debug.sethook(host, function()
                debug.sethook(host)
                error("interrupted!", 0)
            end, "", 1)
        end)
        clock:advance(1)
        local fine, err = coroutine.resume(host)
        if support.is_luajit then -- Hooks are for all threads: this one came in the callback.
            assert.is_true(fine)
        else
            assert.are.equal("interrupted!", err)
        end
        assert.are.same({ 0, 1 }, { s:stats().running, s:stats().failed })
        assert.is_truthy(s:schedule("x", 1, nothing))
        assert.is_true(s:close())
    end)
end)

describe("run", function()
    it("waits for what is due, until stop", function()
        local s = assert(lapse.new())
        local seen = support.recorder()
        local begun = lapse.now()
        s:schedule("b", 0.03, function(id)
            seen(id)
            s:stop()
        end)
        s:schedule("a", 0.02, seen)
        assert.is_true(s:run())
        assert.is_true(lapse.now() - begun >= 0.03)
        assert.are.same("a b", table.concat(seen, " "))
        assert.is_true(s:run())
    end)

    it("has a default scheduler for the functions of the module", function()
        local text, status = support.run_script [[
            local lapse = require "lapse"
            assert(lapse.next() == nil)
            assert(lapse.schedule("a", 60, print))
            assert(lapse.get("a").remaining > 59)
            assert(lapse.reschedule("a", 0))
            assert(lapse.next() <= 0.001)
            assert(lapse.schedule("b", 60, print))
            assert(lapse.cancel "b")
            repeat local ran = lapse.step() until ran == 1
            lapse.on_error(function(order, err) print(order.id, err) end)
            lapse.schedule("c", 0, function() lapse.stop() error("last", 0) end)
            assert(lapse.fd() > 2)
            print(lapse.run())
            print(lapse.schedule("d", 0, print) ~= nil) -- of a new one
            print(pcall(lapse.schedule, "e", "0", print))
            lapse.schedule("e", "0", print)
        ]]
        assert.is_truthy(text:find "a\ta\nc\tlast\ntrue\ntrue\nfalse\tlapse: the delay")
        assert.is_truthy(text:find ":16: lapse.schedule: the delay is a number of seconds")
        assert.are.equal(1, status)
    end)

    it("ends at Ctrl-C", function()
        local waits = { "lapse.run()", "lapse.new():take()", "lapse.new():take('q', 60)" }
        for _, wait in ipairs(waits) do
            -- sleeps: only a real signal interrupts a real wait
            local text, status = support.run_script("lapse = require 'lapse' " .. wait,
                "timeout --foreground --signal=INT 0.3")
            assert.are.equal(124, status)
            assert.is_truthy(text:find("interrupted!", 1, true))
        end
    end)
end)

describe("a loop of the host", function()
    it("is told the descriptor and the time", function()
        local s, at, clock = invent()
        local fd = s:fd()
        assert.is_true(fd > 2)
        assert.is_nil(s:next())
        s:schedule("x", 1.5, nothing)
        assert.are.equal(1.5, s:next())
        assert.are.equal(1000, s:now())
        clock:advance(1)
        assert.are.equal(1001, s:now())
        assert.are.equal(0.5, s:next())
        clock:advance(1)
        assert.are.equal(0, s:next())
        assert.are.equal(1, at(2))
        assert.is_nil(s:next())
        assert.are.equal(fd, s:fd())
    end)

    it("of cqueues finds its protocol", function()
        local s = invent()
        s:schedule("x", 2, nothing)
        assert.are.same({ s:fd(), "r", 2 }, { s:pollfd(), s:events(), s:timeout() })
    end)
end)

describe("an order without a callback", function()
    it("is taken when it is due, by queue", function()
        local s, at, clock = invent()
        s:put { id = "a", queue = "mail", delay = 1, payload = "to a" }
        s:put { id = "b", queue = "sms", delay = 1 }
        assert.is_nil(s:poll "mail")
        assert.are.equal("Timeout", select(3, s:take("mail", 0)))
        clock:advance(1)
        assert.are.equal(0, s:step())
        assert.is_nil(s:poll "fax")
        local order = s:poll "mail"
        assert.are.same({ "a", "to a" }, { order.id, order.payload })
        assert.are.same({ "mail", 1 }, { order.queue, order.attempt })
        assert.are.equal("running", s:get("a").state)
        assert.is_true(order:done())
        assert.are.equal("Stale", select(3, order:done()))
        assert.are.equal("a", order.id)
        assert.are.equal("b", s:take().id)
        assert.is_nil(s:poll())
        at(1)
    end)

    it("is repeated, rejected or given back, as its taker says", function()
        local s, _, clock = invent()
        s:put { id = "x" }
        assert.is_true(s:take(nil, 0):retry(2))
        assert.is_nil(s:poll())
        clock:advance(2)
        local second = s:poll()
        assert.are.equal(2, second.attempt)
        assert.is_true(second:give_back())
        local again = s:poll()
        assert.are.equal(2, again.attempt)
        assert.is_true(again.fence > second.fence)
        assert.is_true(again:reject "hopeless")
        assert.are.equal("hopeless", s:get("x").error)
        assert.is_false(pcall(again.retry, again, "5"))
        assert.is_false(pcall(again.done, {}))
    end)

    it("is pending again when its taker forgets it", function()
        local s = invent()
        s:put { id = "x" }
        assert.is_truthy(s:poll())
        assert.is_nil(s:poll())
        support.collect()
        local order = s:poll()
        assert.are.equal(1, order.attempt)
        assert.is_true(order:done())
    end)

    it("waits for its time in take", function()
        local s = assert(lapse.new())
        local begun = lapse.now()
        s:put { id = "x", delay = 0.02 }
        assert.is_true(s:take(nil, 5):done())
        assert.is_true(lapse.now() - begun >= 0.02)
        begun = lapse.now()
        assert.are.equal("Timeout", select(3, s:take(nil, 0.02)))
        assert.is_true(lapse.now() - begun >= 0.02)
        for _, bad in ipairs { 0 / 0, "1", true, 1 / 0 } do
            assert.is_false(pcall(s.take, s, nil, bad))
        end
        assert.is_false(pcall(s.take, s, 5))
        assert.is_false(pcall(s.take, s, ("x"):rep(256)))
    end)
end)
