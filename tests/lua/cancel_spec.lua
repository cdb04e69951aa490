-- Cancel and reschedule: the four answers, before, in and after the callback.

local lapse = require "lapse"
local support = require "support"
local invent, nothing = support.invent, support.nothing

local function both(...)
    return { ... }
end

describe("cancel", function()
    it("P-20 answers true for exactly the orders that never run", function()
        local s, at = invent()
        local ran, cancelled = {}, {}
        for i = 1, 1000 do
            s:schedule("o" .. i, i / 1000, function(id)
                ran[id] = true
            end)
        end
        for i = 1, 1000 do
            at(i / 1500)
            local id = "o" .. math.random(1000)
            local won, why = s:cancel(id)
            if won then
                assert.is_nil(cancelled[id])
                cancelled[id] = true
            else
                assert.are.equal("unknown", why)
            end
        end
        at(2)
        for i = 1, 1000 do
            local id = "o" .. i
            assert.is_true((ran[id] or false) ~= (cancelled[id] or false))
        end
    end)

    it("answers what became of the order", function()
        local s, at = invent { keep = 60 }
        assert.are.same({ false, "unknown" }, both(s:cancel "x"))
        s:schedule("x", 1, function()
            assert.are.same({ false, "running" }, both(s:cancel "x"))
            assert.are.same({ false, "running" }, both(s:reschedule("x", 5)))
        end)
        at(1)
        assert.are.same({ false, "done" }, both(s:cancel "x"))
        assert.are.same({ false, "done" }, both(s:reschedule("x", 5)))
        assert.are.equal("done", s:get("x").state)
        at(62)
        assert.are.same({ false, "unknown" }, both(s:cancel "x"))
    end)

    it("P-21 P-23 cancel_wait answers running at once inside its own callback", function()
        local s, at = invent()
        local answer
        s:schedule("x", 1, function()
            answer = both(s:cancel_wait("x", 5))
        end)
        at(1)
        assert.are.same({ false, "running" }, answer)
        s:schedule("y", 1, nothing)
        assert.are.same({ true }, both(s:cancel_wait("y", 5)))
        assert.are.same({ false, "unknown" }, both(s:cancel_wait("y")))
    end)

    it("P-22 counts exactly", function()
        local s, at = invent { max_pending = 20 }
        local inside
        s:schedule("slow", 1, function()
            for i = 1, 10 do
                assert.is_true(s:cancel("n" .. i))
            end
            inside = s:stats()
        end)
        for i = 1, 10 do
            s:schedule("n" .. i, 1, nothing)
        end
        assert.are.equal(1, at(1))
        assert.are.same({ 0, 1 }, { inside.pending, inside.running })
        assert.are.same({ 0, 0 }, { s:stats().pending, s:stats().running })
        for i = 1, 20 do
            assert.is_truthy(s:schedule("m" .. i, 9, nothing))
        end
        assert.are.equal("Full", select(3, s:schedule("m21", 9, nothing)))
        assert.is_true(s:cancel "m1")
        assert.is_truthy(s:schedule("m21", 9, nothing))
    end)

    it("P-23 works on another scheduler in a callback", function()
        local a, at = invent()
        local b, b_at = invent()
        local seen = support.recorder()
        b:schedule("x", 1, seen)
        a:schedule("x", 1, function()
            assert.is_true(b:cancel "x")
            b:schedule("y", 1, seen)
            assert.are.equal(0, b:step())
        end)
        at(1)
        b_at(1)
        assert.are.same({ "y" }, { seen[1] })
    end)

    it("P-26 of itself, reschedule, stop and close inside the callback are answered", function()
        local s, at = invent()
        local runs, answers = 0, {}
        s:schedule("self", 1, function(id)
            runs = runs + 1
            answers.cancel = both(s:cancel(id))
            return lapse.retry(1)
        end)
        s:schedule("again", 1, function(id)
            runs = runs + 1
            s:schedule(id, 1, nothing)
            answers.again = both(s:cancel(id))
        end)
        s:schedule("close", 1, function()
            answers.close = select(3, s:close())
        end)
        at(1)
        at(100)
        assert.are.equal(2, runs)
        assert.are.same({ false, "running" }, answers.cancel)
        assert.are.same({ true }, answers.again)
        assert.are.equal("InCallback", answers.close)

        s:schedule("stop", 1, function()
            answers.stop = s:stop()
        end)
        s:schedule("after", 1, nothing)
        at(200)
        assert.is_true(answers.stop)
        assert.are.equal("pending", s:get("after").state)
        assert.is_true(s:close())
        assert.is_true(s:close())
    end)
end)

describe("reschedule", function()
    it("gives a pending order another time", function()
        local s, at = invent()
        local seen = support.recorder()
        local generation = s:schedule("x", 10, seen)
        assert.is_true(s:reschedule("x", 1))
        assert.are.equal(generation, s:get("x").generation)
        at(1)
        assert.are.equal(1, #seen)
        assert.are.same({ false, "unknown" }, both(s:reschedule("x", 1)))
    end)
end)
