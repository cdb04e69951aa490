-- The examples run, twenty times faster than they do for people. Those in the loops of others
-- have a buyer in real time, who must not be too late on a busy machine: they are twice as fast,
-- and run at the same time.
-- tiers: small

local support = require "support"

-- The root of the project, by where this file is.
local ROOT = debug.getinfo(1, "S").source:match "^@(.*)tests/lua/[^/]*$"

local function start(name, speed)
    return support.start_script(("dofile %q"):format(ROOT .. "examples/lua/" .. name),
        "LAPSE_DEMO_SPEED=" .. speed)
end

-- The lines of a timeline as {time, id, event}, and what stands below it.
local function finish(wait)
    local text, status = wait()
    assert.are.equal(0, status, text)
    local lines, rest = {}, {}
    for line in text:gmatch "[^\n]+" do
        local time, id, event = line:match "^ *(%d+%.%d%d) s  (............) (........) "
        if time then
            lines[#lines + 1] = {
                time = tonumber(time), id = id:match "^%S+", event = event:match "^(.-) *$",
            }
        else
            rest[#rest + 1] = line
        end
    end
    return lines, rest
end

local function run(name)
    return finish(start(name, 20))
end

describe("the example", function()
    it("delay_queue.lua takes an order every three seconds", function()
        local lines, rest = run "delay_queue.lua"
        assert.are.same({}, rest)
        assert.are.equal(5, #lines)
        for i, line in ipairs(lines) do
            assert.are.same({ ("OID%08d"):format(i), "taken" }, { line.id, line.event })
            assert.is_true(line.time >= i * 0.15 - 0.005)
        end
    end)

    it("timing_wheel.lua closes its order after five ticks of a second", function()
        local lines = run "timing_wheel.lua"
        local ticks = 0
        for _, line in ipairs(lines) do
            ticks = ticks + (line.event == "tick" and 1 or 0)
        end
        local last = lines[#lines]
        assert.are.same({ "OID00000010", "closed" }, { last.id, last.event })
        assert.is_true(last.time >= 0.245)
        assert.is_true(ticks >= 4)
    end)

    it("shop.lua closes the orders that nobody paid in time, and only these", function()
        local lines, rest = run "shop.lua"
        assert.are.same({ "8 placed, 4 paid, 4 closed, stock 96/100" }, rest)
        local ends, late = {}, {}
        for _, line in ipairs(lines) do
            if line.event == "paid" or line.event == "closed" then
                assert.is_nil(ends[line.id])
                ends[line.id] = line.event
            elseif line.event == "too late" then
                late[#late + 1] = line.id
            end
        end
        assert.are.same({ "OID00000006" }, late)
        local paid = { true, false, true, false, true, false, true, false }
        for i, was_paid in ipairs(paid) do
            assert.are.equal(was_paid and "paid" or "closed", ends[("OID%08d"):format(i)])
        end
    end)
end)

describe("the example in a loop of", function()
    local names = { "luv", "cqueues", "select" }
    if _VERSION == "Lua 5.4" and not pcall(require, "copas") then
        pending("copas is not run: Debian's is for Lua 5.1")
    else
        names[#names + 1] = "copas"
    end
    local running = {}

    setup(function()
        for _, name in ipairs(names) do
            running[name] = start("loop_" .. name .. ".lua", 2)
        end
    end)

    for _, name in ipairs(names) do
        it(name .. " closes what is not paid through its server", function()
            local lines, rest = finish(running[name])
            assert.are.same({}, rest)
            local told = {}
            for i, line in ipairs(lines) do
                told[i] = line.id:sub(-1) .. " " .. line.event
            end
            assert.are.same({
                "1 placed", "2 placed", "3 placed", "1 paid", "2 closed", "3 closed",
            }, told)
            assert.is_true(lines[4].time >= 0.495 and lines[5].time >= 1.495)
        end)
    end
end)
