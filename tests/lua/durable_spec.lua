-- Durable stores: orders that outlive the process, and handlers with names.
-- tiers: small

local lapse = require "lapse"
local support = require "support"
local invent, nothing = support.invent, support.nothing

-- The URL of a database that is not there yet, in a folder of its own.
local folders = {}
local function new_url()
    local pipe = assert(io.popen "mktemp -d")
    local folder = pipe:read "*l"
    pipe:close()
    folders[#folders + 1] = folder
    return "sqlite:///" .. folder .. "/orders.db"
end

local function has_sqlite()
    local s, _, code = lapse.new(new_url())
    if s then
        s:close()
    end
    return code ~= "NoStore"
end

local function ids(s, state)
    local found = {}
    for i, info in ipairs(s:orders(state)) do
        found[i] = info.id
    end
    table.sort(found)
    return table.concat(found, " ")
end

-- Run a script in a process of its own, with `url` in it; it must end well and say nothing wrong.
local function run(url, source)
    local text, status = support.run_script(
        ("local lapse = require 'lapse'\nlocal url = %q\n"):format(url) .. source)
    assert.are.equal(0, status, text)
    return text
end

if not has_sqlite() then
    return describe("durable stores", function()
        pending "this build has no SQLite"
    end)
end

describe("a durable store", function()
    local url, s

    before_each(function()
        url = new_url()
        s = assert(lapse.new(url))
    end)

    after_each(function()
        s:close(10)
        for _, folder in ipairs(folders) do
            os.execute("rm -rf " .. folder)
        end
        folders = {}
    end)

    it("keeps orders when the process that placed them is gone", function()
        run(url, [[
            local s = assert(lapse.new(url))
            for i = 1, 10 do
                assert(s:put { id = "o" .. i, queue = "close", delay = 60, payload = "p" .. i })
            end
            assert(s:cancel "o3" and s:reschedule("o4", 3600))
            os.exit(0, false) -- nothing is closed
        ]])
        assert.are.equal("o1 o10 o2 o4 o5 o6 o7 o8 o9", ids(s, "pending"))
        assert.are.equal("p7", s:get("o7").payload)
        assert.is_true(s:get("o4").remaining > 3000)
    end)

    it("gives what is overdue to a process that only consumes", function()
        assert(s:put { id = "a", queue = "close" })
        assert(s:put { id = "b", queue = "close", payload = "7" })
        assert(s:put { id = "c", queue = "another" })
        s:close(10)
        local text = run(url, [[
            local s = assert(lapse.new(url))
            local count = 0
            s:handle("close", function(id, order)
                io.write(id, " ", order.attempt, " ", tostring(order.payload), " ",
                    tostring(order.late >= 0), "\n")
                count = count + 1
                if count == 2 then s:stop() end
            end)
            assert(s:run())
            assert(s:close(10))
        ]])
        assert.are.equal("a 1 nil true\nb 1 7 true\n", text)
        s = assert(lapse.new(url))
        assert.are.equal("c", ids(s, "pending"))
    end)

    it("hears of orders that another process places while it waits", function()
        local finish = support.start_script(
            ("local lapse = require 'lapse'\nlocal s = assert(lapse.new %q)\n"):format(url) .. [[
            s:handle("close", function(id) print(id) s:stop() end)
            s:run()
        ]])
        assert(s:put { id = "a", queue = "close", delay = 0.05 })
        local text, status = finish()
        assert.are.same({ "a\n", 0 }, { text, status })
        assert.is_nil(s:get "a")
    end)

    it("takes a registered function for its queue", function()
        local function ship() end
        s:handle("ship", ship)
        assert(s:schedule("a", 60, ship))
        assert(s:put { id = "b", callback = ship, queue = "ship", delay = 60 })
        assert.are.equal("ship", s:get("a").queue)
        assert.are.equal("ship", s:get("b").queue)
    end)

    it("refuses a callback that is not registered", function()
        for _, call in ipairs {
            function() return s:schedule("a", 60, nothing) end,
            function() return s:schedule_at("a", os.time() + 60, nothing) end,
            function() return s:put { id = "a", callback = nothing, queue = "close" } end,
        } do
            local made, message, code = call()
            assert.is_nil(made)
            assert.are.equal("Unsupported", code)
            assert.is_truthy(message:find("register it with handle", 1, true), message)
        end
        s:handle("close", nothing)
        assert.are.equal("Unsupported",
            (select(3, s:put { id = "a", callback = nothing, queue = "another" })))
        local results, accepted = s:schedule_many {
            { id = "a", callback = function() end },
            { id = "b", callback = nothing, delay = 60 },
            { id = "c", queue = "close", delay = 60 },
        }
        assert.are.equal("Unsupported", results[1])
        assert.are.equal(2, accepted)
        assert.are.equal("b c", ids(s))
        s:handle("close", nil)
        assert.are.equal("Unsupported", (select(3, s:schedule("a", 60, nothing))))
        assert.has_error(function() s:schedule("a", 60, "close") end)
    end)

    it("runs handlers by step with invented time, and retries", function()
        local at
        s:close(10)
        s, at = invent { url = url, on_error = nothing }
        local seen = {}
        s:handle("refund", function(id, order)
            seen[#seen + 1] = id .. order.attempt
            if order.attempt < 3 then
                error "gateway down"
            end
        end, { attempts = 5, backoff = 10, jitter_percent = -1 })
        assert(s:put { id = "a", queue = "refund", delay = 1800 })
        assert(s:put { id = "paid", queue = "refund", delay = 1800 })
        assert.are.equal(0, at(1799))
        assert.is_true(s:cancel "paid")
        assert.are.equal(1, at(1800))
        assert.are.equal(0, at(1809))
        assert.are.equal(1, at(1810))
        assert.are.equal(1, at(1830))
        assert.are.equal("a1 a2 a3", table.concat(seen, " "))
        assert.are.equal("", ids(s))
    end)

    it("gives claims to takers, one each", function()
        local other = assert(lapse.new(url))
        for i = 1, 4 do
            assert(s:put { id = "o" .. i, queue = "q", payload = tostring(i) })
        end
        local done, again = assert(s:take("q", 10)), assert(s:take("q", 10))
        local bad, given = assert(s:take("q", 10)), assert(s:take("q", 10))
        assert.is_nil(other:poll "q")
        assert.is_true(done:holds() and done:renew() and done:done())
        assert.is_true(again:retry(0) and bad:reject "no such account" and given:give_back())
        local found = {}
        for _ = 1, 2 do
            local claim = assert(other:take("q", 10))
            found[#found + 1] = claim.id .. " " .. claim.attempt
            assert(claim:done())
        end
        table.sort(found)
        local expected = { again.id .. " 2", given.id .. " 1" }
        table.sort(expected)
        assert.are.same(expected, found)
        assert.are.equal(bad.id, ids(s, "dead"))
        assert.are.equal("rejected", s:get(bad.id).reason)
        assert.are.equal("Timeout", (select(3, s:take("q", 0.01))))
        other:close(10)
    end)

    it("has claims back at once from a process that ends", function()
        run(url, [[
            local s = assert(lapse.new(url))
            assert(s:put { id = "a", queue = "q" })
            kept = assert(s:take("q", 10))
        ]])
        local claim = assert(s:take("q", 5)) -- the lease would have lasted for 30 seconds
        assert.are.equal(1, claim.attempt)
        assert(claim:done())
    end)

    it("names who lost the lease (P-59)", function()
        local slow = assert(lapse.new(url .. "?lease=100ms"))
        assert(s:put { id = "a", queue = "q" })
        local first = assert(slow:take("q", 10))
        local second = assert(s:take("q", 10))
        assert.are.equal(2, second.attempt)
        assert.is_true(second.fence > first.fence)
        assert.is_false(first:holds())
        assert.are.equal("Stale", (select(3, first:done())))
        assert.is_true(second:done())
        assert.is_nil(s:get "a")
        slow:close(10)
    end)

    it("answers a late payment (P-72)", function()
        s:close(10)
        s = assert(lapse.new(url .. "?keep=120s"))
        s:handle("close", function() s:stop() end)
        assert(s:put { id = "a", queue = "close" })
        assert(s:put { id = "later", queue = "close", delay = 60 })
        assert(s:run())
        s:close(10)
        s = assert(lapse.new(url .. "?keep=120s"))
        assert.are.same({ false, "done" }, { s:cancel "a" })
        assert.are.same({ false, "unknown" }, { s:cancel "nobody's" })
        assert.is_true(s:reschedule("later", 300))
        assert.are.equal("done", s:get("a").state)
    end)

    it("tells what is wrong with it", function()
        local path = url:gsub("sqlite:///", "") .. ".junk"
        local file = assert(io.open(path, "w"))
        file:write(("this is no database, but a letter. "):rep(300))
        file:close()
        for address, expected in pairs {
            ["sqlite:///" .. path] = "BadStore",
            [url .. "?tick=1ms"] = "BadUrl",
            ["sqlite:////nowhere/at/all/orders.db"] = "BadUrl",
        } do
            local made, message, code = lapse.new(address)
            assert.is_nil(made)
            assert.are.equal(expected, code, message)
        end
        assert.are.equal("Unknown", (select(3, s:get "nobody's")))
        assert(s:put { id = "a", queue = "q", delay = 60 })
        assert.are.equal("Exists", (select(3, s:put { id = "a", queue = "q", delay = 60 })))
        assert.is_true(s:stop())
        assert.are.equal("Closed", (select(3, s:put { id = "b", queue = "q" })))
        assert.is_true(s:cancel "a") -- a payment counts also after stop
        assert.is_true(s:close(10))
        assert.are.equal("Closed", (select(3, s:cancel "a")))
    end)

    it("is used by two at once in one process", function()
        local other = assert(lapse.new(url))
        local ran = {}
        for _, each in ipairs { s, other } do
            each:handle("q", function(id) ran[#ran + 1] = id end)
        end
        for i = 1, 40 do
            assert(s:put { id = ("%02d"):format(i), queue = "q" })
        end
        local until_ = os.time() + 30
        while #ran < 40 and os.time() < until_ do
            assert(s:step())
            assert(other:step())
        end
        table.sort(ran)
        assert.are.equal(40, #ran)
        for i = 1, 40 do
            assert.are.equal(("%02d"):format(i), ran[i])
        end
        other:close(10)
    end)
end)
