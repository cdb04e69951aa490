-- Calls by way of LuaJIT's FFI, which resty.lapse makes: as the methods, or not at all.

local support = require "support"
local core = require "lapse.core"
local invent, collect = support.invent, support.collect

-- A worker as far as fast.lua knows it.
local function worker(options)
    local fast = require "resty.lapse.fast"
    local s, at, clock = invent(options)
    local w = { scheduler = s, handlers = {} }
    w.fast = fast.new(s)
    return fast, w, s, at, clock
end

-- So that the function is kept.
local function introduce(fast, w, callback)
    assert.is_false(fast.schedule(w, "introduced", 1, callback))
    assert.is_false(fast.schedule(w, "introduced", 1, callback))
end

local function tests()
    it("schedule what the method would", function()
        local fast, w, s, at = worker()
        local seen = {}
        local function callback(id, order)
            seen[#seen + 1] = id
            assert.are.equal(seen[id], order.generation)
        end
        introduce(fast, w, callback)
        for i = 1, 1000 do -- LuaJIT has compiled it by then.
            local id = "o" .. i
            seen[id] = fast.schedule(w, id, i / 1000, callback)
            assert.is_true(seen[id] > 0)
        end
        assert.are.equal(1000, s:stats().pending)
        assert.are.equal(500, at(0.5))
        assert.are.equal(500, at(2))
        assert.are.equal("o1", seen[1])
        assert.are.equal("o1000", seen[1000])
    end)

    it("leave what is not plain to the method", function()
        local fast, w, s = worker()
        local function callback() end
        introduce(fast, w, callback)
        for _, call in ipairs {
            { 7, 1 }, { "", 1 }, { ("x"):rep(256), 1 }, { "a\0b", 1 }, { nil, 1 }, { {}, 1 },
            { "o", "1" }, { "o", 0 / 0 }, { "o", math.huge }, { "o", 1e12 }, { "o", nil },
        } do
            assert.is_false(fast.schedule(w, call[1], call[2], callback))
        end
        for _, order in ipairs {
            7, "o", {}, { id = "o", delay = 1 }, { id = "o", queue = "q" },
            { id = "o", queue = 7, delay = 1 }, { id = "o", queue = "q", delay = 1, at = 5 },
            { id = "o", queue = "q", delay = 1, replace = true },
            { id = "o", queue = "q", delay = 1, typo = 1 },
            { id = "o", queue = "q", delay = 1, payload = 7 },
            { id = "o", queue = ("q"):rep(256), delay = 1 },
            { id = "o", queue = "a\0b", delay = 1 },
            { id = "", queue = "q", delay = 1 }, { id = "o", queue = "q", delay = 0 / 0 },
            { id = "o", queue = "q", delay = 1, payload = ("x"):rep(2 ^ 24 + 1) },
            setmetatable({ id = "o", queue = "q", delay = 1 }, {}),
        } do
            assert.is_false(fast.put(w, order))
        end
        assert.is_nil(fast.cancel(w, 7))
        assert.is_nil(fast.cancel(w, "o", 1))
        local stats = s:stats()
        assert.are.same({ 0, 0 }, { stats.scheduled, stats.refused })
    end)

    it("answer what went wrong, once", function()
        local fast, w, s = worker { max_pending = 2 }
        local function callback() end
        introduce(fast, w, callback)
        assert.is_true(fast.schedule(w, "o", 1, callback) > 0)
        local made, message, code = fast.schedule(w, "o", 1, callback)
        assert.is_nil(made)
        assert.are.equal("Exists", code)
        assert.is_truthy(message:find("o", 1, true))
        assert.is_true(fast.put(w, { id = "p", queue = "q", delay = 1 }) > 0)
        assert.are.equal("Full", select(3, fast.put(w, { id = "p2", queue = "q", delay = 1 })))
        assert.are.equal(2, s:stats().refused)
        s:close()
        assert.is_false(fast.schedule(w, "late", 1, callback))
        assert.is_false(fast.put(w, { id = "late", queue = "q", delay = 1 }))
        assert.is_nil(fast.cancel(w, "o"))
    end)

    it("put payloads bit for bit", function()
        local fast, w, s, at = worker()
        local seen = {}
        s:handle("q", function(id, order) seen[id] = order.payload or false end)
        local bytes = "\0" .. ("\255\0"):rep(1000) .. "\1"
        assert.is_true(fast.put(w, { id = "with", queue = "q", delay = 1, payload = bytes }) > 0)
        assert.is_true(fast.put(w, { id = "without", queue = "q", delay = 1 }) > 0)
        at(1)
        assert.are.same({ with = bytes, without = false }, seen)
    end)

    it("cancel with the four answers", function()
        local fast, w, s, at, clock = worker { keep = 60 }
        local inside
        local function callback(id) inside = { fast.cancel(w, id) } end
        s:schedule("runs", 1, callback)
        s:schedule("paid", 1, callback)
        assert.are.same({ true, n = 1 }, { n = select("#", fast.cancel(w, "paid")), true })
        assert.are.same({ false, "unknown" }, { fast.cancel(w, "nobody's") })
        assert.are.same({ false, "unknown" }, { fast.cancel(w, ("x"):rep(300)) })
        assert.are.same({ false, "unknown" }, { fast.cancel(w, "a\0b") })
        at(1)
        assert.are.same({ false, "running" }, inside)
        assert.are.same({ false, "done" }, { fast.cancel(w, "runs") })
        clock:advance(61)
        assert.are.equal(1, s:stats().cancelled)
    end)

    it("name the handler that the callback is", function()
        local fast, w, s, at = worker()
        local seen = {}
        local function handler(id, order) seen[id] = order.queue end
        local function handle(queue)
            assert(s:handle(queue, handler))
            fast.forget(w)
            w.handlers[queue] = handler
        end
        introduce(fast, w, handler)
        handle "one"
        introduce(fast, w, handler)
        assert.is_true(fast.schedule(w, "o", 1, handler) > 0)
        handle "two"
        introduce(fast, w, handler)
        assert.is_false(fast.schedule(w, "o2", 1, handler)) -- The method raises.
        at(1)
        assert.are.same({ o = "one" }, seen)
    end)

    it("let go of callbacks", function()
        local fast, w, s, at = worker()
        local alive = setmetatable({}, { __mode = "k" })
        local function new()
            local callback = function() return alive end
            alive[callback] = true
            return callback
        end
        local function count()
            collect()
            local n = 0
            for _ in pairs(alive) do
                n = n + 1
            end
            return n
        end
        for i = 1, 10 do
            local callback = new()
            introduce(fast, w, callback)
            assert.is_true(fast.schedule(w, "ends" .. i, 1, callback) > 0)
            assert.is_true(fast.schedule(w, "stays" .. i, 9, callback) > 0)
            assert.are.equal("Exists", select(3, fast.schedule(w, "stays" .. i, 9, callback)))
        end
        assert.are.equal(10, count())
        at(1)
        assert.are.equal(10, count())
        for i = 1, 10 do
            assert.is_true(fast.cancel(w, "stays" .. i))
        end
        assert.are.equal(1, count()) -- The one that is kept.
        introduce(fast, w, support.nothing)
        assert.are.equal(0, count())
        assert.are.equal(0, s:stats().pending)
    end)

    it("tell the hooks what they cause", function()
        local dead = {}
        local fast, w = worker {
            max_pending = 1, overflow = "dead_letter_oldest",
            on_dead = function(info) dead[#dead + 1] = info.id end,
        }
        local function callback() end
        introduce(fast, w, callback)
        for i = 1, 3 do
            assert.is_true(fast.schedule(w, "o" .. i, 1, callback) > 0)
        end
        assert.is_true(fast.put(w, { id = "o4", queue = "q", delay = 1 }) > 0)
        assert.are.same({ "o1", "o2", "o3" }, dead)
    end)

    it("are not for durable stores", function()
        local folder = os.tmpname()
        os.remove(folder)
        local s = require("lapse").new("sqlite:///" .. folder)
        if s then -- It is built in.
            local fast = require "resty.lapse.fast"
            local w = { scheduler = s, handlers = {}, fast = fast.new(s) }
            assert.is_false(fast.put(w, { id = "o", queue = "q", delay = 1 }))
            assert.is_nil(fast.cancel(w, "o"))
            s:close()
            for _, suffix in ipairs { "", "-wal", "-shm" } do
                os.remove(folder .. suffix)
            end
        end
    end)
end

describe("fast calls", function()
    if support.is_luajit then
        tests()
    else
        it("are for LuaJIT only", function()
            assert.is_function(core.loop.fast)
        end)
    end
end)
