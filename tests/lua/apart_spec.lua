-- What lua/resty/lapse.lua builds on: runs apart from each other, and ties to requests. The rest
-- of it is tested in nginx.

local lapse = require "lapse"
local core = require "lapse.core"
local support = require "support"
local invent, nothing = support.invent, support.nothing

local begin, settle = core.loop.begin_apart, core.loop.settle_apart
local DONE, RETRY, FAIL = 0, 1, 3

describe("runs apart", function()
    it("end in any order", function()
        local s, _, clock = invent()
        for i = 1, 9 do
            s:schedule("o" .. i, i, nothing)
        end
        clock:advance(100)
        local orders = {}
        for i = 1, 9 do
            local callback, id, order = begin(s)
            assert.are.equal(nothing, callback)
            assert.are.equal("o" .. i, id)
            orders[i] = order
        end
        assert.is_nil(begin(s))
        assert.are.equal(9, s:stats().running)
        for _, i in ipairs { 5, 9, 1, 2, 8, 3, 7, 4, 6 } do
            assert.is_true(orders[i]:holds())
            settle(s, orders[i], DONE)
            assert.is_false(orders[i]:holds())
        end
        local stats = s:stats()
        assert.are.same({ 0, 0, 9 }, { stats.running, stats.pending, stats.done })
    end)

    it("are settled once", function()
        local s, _, clock = invent()
        s:schedule("a", 1, nothing)
        clock:advance(1)
        local _, _, order = begin(s)
        assert.is_false((settle(s, order, DONE)))
        assert.is_nil((settle(s, order, DONE)))
        assert.are.equal(1, s:stats().done)
    end)

    it("are retried and fail as others do", function()
        local s, _, clock = invent()
        s:handle("q", nothing, { attempts = 2, backoff = 5, jitter_percent = -1 })
        s:put { id = "a", queue = "q" }
        s:put { id = "b", queue = "q" }
        local _, _, a = begin(s)
        local _, _, b = begin(s)
        settle(s, a, RETRY, 2)
        settle(s, b, FAIL, nil, "no gateway")
        assert.are.equal(2, s:get("a").remaining)
        assert.are.equal(5, s:get("b").remaining)
        clock:advance(5)
        for _ = 1, 2 do
            local _, _, order = begin(s)
            settle(s, order, FAIL, nil, "no gateway")
        end
        assert.are.equal("no gateway", s:get("a").error)
        assert.are.equal(2, s:stats().dead)
    end)

    it("tell which of them has lost its order", function()
        local s, _, clock = invent()
        s:handle("q", nothing, { run_limit = 10, attempts = 1 })
        s:put { id = "long", queue = "q" }
        local _, _, long = begin(s)
        clock:advance(9)
        s:put { id = "short", queue = "q" }
        local _, _, short = begin(s)
        clock:advance(2)
        begin(s) -- Sees to what is overdue.
        assert.is_false((settle(s, short, DONE)))
        assert.is_true((settle(s, long, DONE)))
    end)

    it("keep close away, and are given back when the scheduler is collected", function()
        local s, _, clock = invent()
        s:schedule("a", 1, nothing)
        clock:advance(1)
        local _, _, order = begin(s)
        assert.are.equal("InCallback", (select(3, s:close())))
        settle(s, order, DONE)
        assert.is_true(s:close())
        assert.are.equal("Closed", (select(3, begin(s))))

        local weak = setmetatable({ invent() }, { __mode = "v" })
        weak[1]:schedule("b", 0, nothing)
        assert.are.equal(nothing, (begin(weak[1])))
        support.collect()
        assert.is_nil(weak[1])
    end)

    it("say what is wrong", function()
        local s = invent()
        assert.has_error(function()
            settle(s, "a", DONE)
        end)
        assert.has_error(function()
            begin(lapse)
        end)
    end)
end)

describe("a tie", function()
    it("has not ended before its request, and frees itself", function()
        local tie, handler, data = core.tie()
        assert.are.equal("userdata", type(handler))
        assert.are.equal("userdata", type(data))
        assert.is_false(tie:ended())
        tie:undo()
        assert.is_true(tie:ended())
        assert.has_error(function()
            tie.ended(lapse.manual_clock())
        end)
    end)

    if support.is_luajit then
        it("ends when nginx calls its handler, whichever goes first", function()
            local ffi = require "ffi"
            local function tell(handler, data)
                ffi.cast("void (*)(void *)", handler)(data)
            end
            local tie, handler, data = core.tie()
            tell(handler, data)
            assert.is_true(tie:ended())
            handler, data = select(2, core.tie())
            support.collect()
            tell(handler, data)
        end)
    end
end)
