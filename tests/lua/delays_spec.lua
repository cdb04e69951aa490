-- Delays: units, ranges, rounding, and what is no delay.

local lapse = require "lapse"
local support = require "support"
local invent, nothing = support.invent, support.nothing

local DAY = 24 * 60 * 60

describe("a delay", function()
    it("P-01 that is huge does not fire now", function()
        for _, engine in ipairs { "wheel", "heap" } do
            local s, at = invent { url = "memory:?engine=" .. engine }
            local seen = support.recorder()
            local accepted = {}
            for i, power in ipairs { 31, 32, 41, 42, 52, 53, 62, 63, 64, 1023 } do
                local id = "huge" .. i
                local fine, generation = pcall(s.schedule, s, id, 2 ^ power / 1000, seen)
                if fine then
                    accepted[#accepted + 1] = id
                    assert.is_truthy(generation)
                end
            end
            assert.are.equal(3, #accepted) -- 2^42 ms are 139 years
            s:schedule("near", 0.05, seen)
            at(1)
            assert.are.equal("near", table.concat(seen, " "))
            assert.are.equal(#accepted, s:stats().pending)
            for _, id in ipairs(accepted) do
                assert.is_true(s:cancel(id))
            end
            assert.are.equal(0, s:stats().pending)
        end
    end)

    it("P-09 of more than 2^31 milliseconds stays as long as it is", function()
        local s, at = invent()
        local seen = support.recorder()
        local days = { 24.9, 30, 49.8, 60 }
        for _, n in ipairs(days) do
            s:schedule("for" .. n, n * DAY, seen)
        end
        for _, n in ipairs(days) do
            assert.is_true(math.abs(s:get("for" .. n).remaining - n * DAY) < 1)
        end
        at(5)
        assert.are.equal(0, #seen)
        for i, n in ipairs(days) do
            at(n * DAY - 1)
            assert.are.equal(i - 1, #seen)
            at(n * DAY + 0.001)
            assert.are.equal(i, #seen)
        end
    end)

    it("P-10 is refused when it is no number of seconds", function()
        local s = invent()
        local nan, inf = 0 / 0, 1 / 0
        for _, bad in ipairs { nan, -nan, inf, -inf, 1e300, true, false, "5", {}, nothing } do
            assert.is_false(pcall(s.schedule, s, "x", bad, nothing))
            assert.is_false(pcall(s.reschedule, s, "x", bad))
            assert.is_false(pcall(lapse.retry, bad))
            assert.is_false(pcall(s.put, s, { id = "x", delay = bad, callback = nothing }))
        end
        assert.is_false(pcall(s.schedule, s, "x", nil, nothing))
        assert.are.equal(0, s:stats().pending)
    end)

    it("P-10 says what is wrong, and where", function()
        local s = invent()
        local function message(delay)
            local _, err = pcall(function()
                s:schedule("x", delay, nothing)
            end)
            return err
        end
        for delay, text in pairs { ["5"] = "got string", [1e300] = "1e+300", [1 / 0] = "inf" } do
            assert.is_truthy(message(delay):find(text, 1, true))
            assert.is_truthy(message(delay):find("delays_spec.lua:%d+: lapse.schedule: the delay"))
        end
        assert.is_truthy(message(0 / 0):find "nan")
    end)

    it("P-10 of a denormal is rounded up to one tick, and minus zero is zero", function()
        local s, at = invent()
        local seen = support.recorder()
        s:schedule("denormal", 5e-324, seen)
        s:schedule("zero", -0.0, seen)
        at(0)
        assert.are.same("zero", seen[1])
        at(0.001)
        assert.are.same("denormal", seen[2])
    end)

    it("P-11 below zero runs at once", function()
        for _, engine in ipairs { "wheel", "heap" } do
            local s, at = invent { url = "memory:?engine=" .. engine }
            local seen = support.recorder()
            for i, delay in ipairs { -0.001, -0.046, -2 ^ 31, -2 ^ 62, -1e300 } do
                s:schedule("n" .. i, delay, seen)
            end
            assert.are.equal(0, s:next())
            assert.are.equal(5, at(0))
        end
    end)

    it("P-12 is never cut short, on a manual clock", function()
        for _, engine in ipairs { "wheel", "heap" } do
            for _, delay in ipairs { 0.0004, 0.0015, 0.002999, 1 / 3, 1799.9999 } do
                local s, at = invent { url = "memory:?engine=" .. engine }
                local seen = support.recorder()
                s:schedule("x", delay, seen)
                at(delay - 1e-6)
                assert.are.equal(0, #seen)
                at(delay + 0.001)
                assert.are.equal(1, #seen)
            end
        end
    end)

    it("P-12 is never cut short, on the real clock", function()
        local s = assert(lapse.new())
        local left, early = 1000, {}
        for i = 1, left do
            local delay = math.random(1, 50000) / 1e6
            local begun = lapse.now()
            s:schedule("x" .. i, delay, function(id)
                if lapse.now() - begun < delay then
                    early[#early + 1] = id
                end
                left = left - 1
                if left == 0 then
                    s:stop()
                end
            end)
        end
        assert.is_true(s:run())
        assert.are.same({}, early)
        assert.are.equal(1000, s:stats().done)
    end)

    it("P-13 counts seconds", function()
        local s, at = invent()
        local seen = support.recorder()
        s:schedule("a", 1500, seen)
        s:schedule("b", 1.5, seen)
        at(1.499)
        assert.are.equal(0, #seen)
        at(1.5)
        assert.are.equal("b", seen[1])
        at(1499.999)
        assert.are.equal(1, #seen)
        at(1500)
        assert.are.equal("a", seen[2])
    end)

    it("P-55 is the same whole or not, and the same in every Lua", function()
        local s = invent()
        s:schedule("whole", 1800, nothing)
        s:schedule("float", 1800.0, nothing)
        s:schedule("half", 1800.5, nothing)
        assert.are.equal(1800, s:get("whole").remaining)
        assert.are.equal(1800, s:get("float").remaining)
        assert.are.equal(1800.5, s:get("half").remaining)
        for _, bad in ipairs { 2 ^ 53, 2 ^ 53 + 1, "1800" } do
            assert.is_false(pcall(s.schedule, s, "x", bad, nothing))
        end
        local hundred_years = 36525 * DAY
        assert.is_truthy(s:schedule("longest", hundred_years, nothing))
        assert.is_false(pcall(s.schedule, s, "longer", hundred_years + 1, nothing))
        assert.are.equal(hundred_years, s:get("longest").remaining)
    end)
end)

describe("an instant", function()
    local START = 1767225600 -- where a manual clock's wall clock starts

    it("is when the order is due", function()
        local s, at = invent()
        local seen = support.recorder()
        assert.is_truthy(s:schedule_at("at", START + 10.5, seen))
        assert.are.equal(START + 10.5, s:get("at").due)
        at(10.499)
        assert.are.equal(0, #seen)
        at(10.501)
        assert.are.equal(1, #seen)
    end)

    it("that has passed is now", function()
        local s, at = invent()
        local seen = support.recorder()
        for i, instant in ipairs { 0, -5, 1, START - 1, START } do
            assert.is_truthy(s:schedule_at("past" .. i, instant, seen))
        end
        assert.is_truthy(s:put { id = "put", at = 0, callback = seen })
        at(0)
        assert.are.equal(6, #seen)
    end)

    it("is refused when it is none", function()
        local s = invent()
        local far = START + 200 * 365 * DAY
        for _, bad in ipairs { 0 / 0, 1 / 0, -1 / 0, 1e18, "2026-01-01", far } do
            assert.is_false(pcall(s.schedule_at, s, "x", bad, nothing))
        end
        assert.is_false(pcall(s.put, s, { id = "x", at = START, delay = 1, callback = nothing }))
        assert.are.equal(0, s:stats().pending)
    end)
end)
