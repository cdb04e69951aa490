-- Order ids: which there can be, which are the same, and what the same one again means.

local lapse = require "lapse"
local support = require "support"
local invent, nothing = support.invent, support.nothing

describe("an order id", function()
    it("P-52 holds no NUL, and is never cut off at one", function()
        local s = invent()
        assert.is_false(pcall(s.schedule, s, "a\0b", 1, nothing))
        assert.is_false(pcall(s.put, s, { id = "a\0c", callback = nothing }))
        assert.are.equal(0, s:stats().pending)
        s:schedule("a", 1, nothing)
        assert.are.same({ false, "unknown" }, { s:cancel "a\0b" })
        assert.are.same({ false, "unknown" }, { s:reschedule("a\0b", 5) })
        assert.are.same("Unknown", select(3, s:get "a\0b"))
        assert.are.equal(1, s:get("a").remaining)
    end)

    it("P-52 is not alone: a queue and a URL hold no NUL either", function()
        local s = invent()
        local calls = {
            function() return s:put { id = "x", queue = "a\0b" } end,
            function() return s:handle("a\0b", nothing) end,
            function() return s:poll "a\0b" end,
            function() return lapse.new "memory:\0?engine=none" end,
            function() return lapse.new { url = "memory:\0" } end,
        }
        for _, call in ipairs(calls) do
            local fine, err = pcall(call)
            assert.is_false(fine)
            assert.is_truthy(err:find("NUL", 1, true), err)
        end
        assert.are.equal(0, s:stats().pending)
    end)

    it("P-52 leaves every byte to the payload", function()
        local s, at = invent()
        local bytes = {}
        for i = 0, 255 do
            bytes[#bytes + 1] = string.char(i)
        end
        local payload, got = table.concat(bytes)
        s:put { id = "p", payload = payload, callback = function(_, order)
            got = order.payload
        end }
        assert.are.equal(payload, s:get("p").payload)
        at(0)
        assert.are.equal(payload, got)
    end)

    it("is 1 to 255 bytes long", function()
        local s = invent()
        assert.is_truthy(s:schedule(("x"):rep(255), 1, nothing))
        assert.is_false(pcall(s.schedule, s, ("x"):rep(256), 1, nothing))
        assert.is_false(pcall(s.schedule, s, "", 1, nothing))
        assert.are.same({ false, "unknown" }, { s:cancel(("x"):rep(256)) })
        assert.is_true(s:cancel(("x"):rep(255)))
    end)

    it("P-54 is compared byte for byte", function()
        local s, at = invent()
        local seen = {}
        local ids = {
            "caf\195\169-1", "cafe\204\129-1", "A", "a", "x", "x ", "\226\132\171", "\195\133",
        }
        for _, id in ipairs(ids) do
            assert.is_truthy(s:schedule(id, 1, function(given, order)
                seen[given] = order.id
            end))
        end
        assert.is_true(s:cancel(ids[1]))
        at(1)
        assert.is_nil(seen[ids[1]])
        for i = 2, #ids do
            assert.are.equal(ids[i], seen[ids[i]])
        end
    end)

    it("P-55 is never a number", function()
        local s = invent()
        for _, call in ipairs { "schedule", "reschedule", "cancel", "get" } do
            local fine, err = pcall(s[call], s, 130775545883395173, 1, nothing)
            assert.is_false(fine)
            assert.is_truthy(err:find("format it", 1, true))
        end
        if support.is_luajit then
            local long = load "return 130775545883395173LL" ()
            assert.is_false(pcall(s.schedule, s, long, 1, nothing))
            assert.is_false(pcall(s.schedule, s, "x", long, nothing))
        end
        assert.is_truthy(s:schedule("130775545883395173", 1, nothing))
        assert.are.same({ false, "unknown" }, { s:cancel "130775545883395172" })
        assert.is_true(s:cancel "130775545883395173")
    end)
end)

describe("the same id again", function()
    it("P-53 is refused while it is pending, and the old order stays", function()
        local s, at = invent()
        local old, new = support.recorder(), support.recorder()
        s:schedule("x", 10, old)
        local generation, message, code = s:schedule("x", 1, new)
        assert.is_nil(generation)
        assert.are.equal("string", type(message))
        assert.are.equal("Exists", code)
        at(1)
        at(10)
        assert.are.same({ 1, 0 }, { #old, #new })
    end)

    it("P-53 replaces the pending order when asked to", function()
        local s, at = invent()
        local old, new = support.recorder(), support.recorder()
        local first = s:schedule("x", 1, old)
        local second = s:put { id = "x", delay = 10, callback = new, replace = true }
        assert.is_true(second > first)
        assert.are.same({ false, "unknown" }, { s:cancel("x", first) })
        at(10)
        assert.are.same({ 0, 1 }, { #old, #new })
    end)

    it("P-53 is a new order while the old one runs, and after every end of it", function()
        local s, at = invent()
        local runs = support.recorder()
        s:schedule("x", 1, function()
            assert.is_truthy(s:schedule("x", 1, runs))
        end)
        at(1)
        at(2)
        assert.are.equal(1, #runs)
        assert.is_truthy(s:schedule("x", 1, runs)) -- done
        s:cancel "x"
        assert.is_truthy(s:schedule("x", 1, function() -- cancelled
            error "no"
        end))
        s:on_error(nothing)
        at(3)
        assert.is_truthy(s:schedule("x", 1, function() -- failed
            return require("lapse").reject "no"
        end))
        at(4)
        assert.is_truthy(s:schedule("x", 1, runs)) -- dead
        at(5)
        assert.are.equal(2, #runs)
    end)

    it("has a generation of its own that cancel and reschedule ask for", function()
        local s = invent()
        local generation = s:schedule("x", 1, nothing)
        assert.are.same({ false, "unknown" }, { s:cancel("x", generation + 1) })
        assert.are.same({ false, "unknown" }, { s:cancel("x", 0) })
        assert.are.same({ false, "unknown" }, { s:reschedule("x", 5, generation - 1) })
        assert.is_true(s:reschedule("x", 5, generation))
        assert.is_false(pcall(s.cancel, s, "x", 1.5))
        assert.is_false(pcall(s.cancel, s, "x", "1"))
        assert.is_true(s:cancel("x", generation))
    end)
end)

describe("schedule_many", function()
    it("P-56 takes all orders but the bad ones, and says why", function()
        local s, at = invent { max_pending = 99 }
        local seen, orders = support.recorder(), {}
        for i = 1, 100 do
            orders[i] = { id = "o" .. i, delay = 1, callback = seen }
        end
        orders[37].id = ("x"):rep(300)
        local results, accepted = s:schedule_many(orders)
        assert.are.equal(99, accepted)
        assert.are.equal(100, #results)
        for i, result in ipairs(results) do
            assert.are.equal(i == 37 and "string" or "number", type(result))
        end
        assert.are.equal("BadId", results[37])
        local again, none = s:schedule_many(orders)
        assert.are.equal(0, none)
        assert.are.equal("Exists", again[1])
        at(1)
        assert.are.equal(99, #seen)
        assert.are.equal("o1", seen[1])
    end)

    it("raises for what is no order before it takes any", function()
        local s = invent()
        local good = { id = "x", callback = nothing }
        for _, bad in ipairs {
            1, "x", { id = 5 }, { id = "y", delay = "1" }, { id = "y", when = 1 },
            { id = "y", callback = 5 }, { callback = nothing },
        } do
            assert.is_false(pcall(s.schedule_many, s, { good, bad }))
        end
        assert.is_false(pcall(s.schedule_many, s, "x"))
        assert.are.equal(0, s:stats().pending)
        assert.are.same({}, (s:schedule_many {}))
    end)
end)
