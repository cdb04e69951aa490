-- In the loops of others: luv, cqueues, copas and LuaSocket's select, the real ones.
--
-- These run in real time, as the loops do: nothing is early, and how late is not asked.
-- tiers: small

local lapse = require "lapse"
local support = require "support"
local nothing = support.nothing

-- Debian's copas is for Lua 5.1; whichever is there is tried.
local MAY_LACK = { copas = _VERSION == "Lua 5.4" }

-- Each makes, for a scheduler, what turns the loop once, what runs a function in it after some
-- seconds, and what ends it. `step` is what the loop calls when the descriptor is readable.
local loops = {}

function loops.luv(uv, orders, step)
    local watch = uv.new_poll(orders:fd())
    watch:start("r", function(err)
        assert(not err, err)
        step()
    end)
    return {
        turn = function()
            uv.run "once"
        end,
        after = function(seconds, call)
            local timer = uv.new_timer()
            timer:start(math.ceil(seconds * 1000), 0, function()
                timer:close()
                call()
            end)
        end,
        leave = function()
            watch:close()
            uv.run()
        end,
    }
end

function loops.cqueues(cqueues, orders, step)
    local loop = cqueues.new()
    loop:wrap(function()
        while true do
            cqueues.poll(orders)
            step()
        end
    end)
    return {
        turn = function()
            assert(loop:step())
        end,
        after = function(seconds, call)
            loop:wrap(function()
                cqueues.sleep(seconds) -- sleeps: in its loop, beside what is tested
                call()
            end)
        end,
        leave = function()
            cqueues.cancel(orders:fd())
        end,
    }
end

-- LuaSocket's select, and copas around it, have no timers: a wait with a limit is theirs.
local function with_limit(turn)
    local later
    return {
        turn = function()
            turn(later and later.seconds)
            if later and lapse.now() >= later.at then
                local call = later.call
                later = nil
                call()
            end
        end,
        after = function(seconds, call)
            later = { seconds = seconds, at = lapse.now() + seconds, call = call }
        end,
        leave = nothing,
    }
end

local function as_socket(orders)
    return {
        getfd = function()
            return orders:fd()
        end,
        dirty = function()
            return false
        end,
        settimeout = function()
            return true
        end,
        close = nothing,
    }
end

function loops.socket(socket, orders, step)
    local timer = as_socket(orders)
    return with_limit(function(limit)
        if socket.select({ timer }, nil, limit)[timer] then
            step()
        end
    end)
end

function loops.copas(copas, orders, step)
    local timer = as_socket(orders)
    local ended = false
    function timer.receive()
        return nil, step() or ended and "ended" or "timeout"
    end
    copas.addthread(function()
        copas.receive(timer)
    end)
    local loop = with_limit(function(limit)
        copas.step(limit)
    end)
    function loop.leave() -- It is over already if a step answered "Closed".
        ended = true
        if orders:schedule("the last one", 0, nothing) then
            copas.step()
        end
    end
    return loop
end

-- A loop of the library `name` with a scheduler; how often it has stepped, and its last code.
local function enter(name)
    local orders = assert(lapse.new())
    local steps = { n = 0 }
    local loop = loops[name](require(name), orders, function()
        steps.n = steps.n + 1
        steps.code = select(3, orders:step())
        return steps.code
    end)
    return orders, loop, steps
end

local function leave(orders, loop)
    loop.leave()
    assert.is_true(orders:close())
end

for name in pairs(loops) do
    describe("the loop of " .. name, function()
        if MAY_LACK[name] and not pcall(require, name) then
            pending("is not there for " .. _VERSION)
            return
        end

        it("P-12 runs every order, none early, and sleeps in between", function()
            local orders, loop, steps = enter(name)
            local left, early = 50, {}
            for i = 1, left do
                local delay, begun = i / 500, lapse.now()
                orders:schedule("o" .. i, delay, function(id)
                    early[#early + 1] = lapse.now() - begun < delay and id or nil
                    left = left - 1
                end)
            end
            assert.is_true(orders:cancel "o7")
            while left > 1 do
                loop.turn()
            end
            assert.are.same({}, early)
            assert.are.equal(49, orders:stats().done)
            -- A descriptor that is always readable would be seen thousands of times.
            assert.is_true(steps.n <= 3 * 50, steps.n)
            leave(orders, loop)
        end)

        it("P-06 is woken for an order that comes while it waits for a later one", function()
            local orders, loop, steps = enter(name)
            local waited
            orders:schedule("far", 3600, nothing)
            loop.after(0.01, function()
                local begun = lapse.now()
                orders:schedule("near", 0.01, function()
                    waited = lapse.now() - begun
                end)
            end)
            repeat
                loop.turn()
            until waited
            assert.is_true(waited >= 0.01)
            assert.is_true(steps.n <= 6, steps.n)
            leave(orders, loop)
        end)

        it("P-28 goes on after an error in a callback", function()
            local orders, loop = enter(name)
            local failed, ran = {}, false
            orders:on_error(function(order)
                failed[#failed + 1] = order.id
            end)
            orders:schedule("fails", 0.001, error)
            orders:schedule("yields", 0.001, coroutine.yield)
            orders:schedule("runs", 0.005, function()
                ran = true
            end)
            repeat
                loop.turn()
            until ran
            assert.are.same({ "fails", "yields" }, failed)
            leave(orders, loop)
        end)

        it("is told of stop, also of one in a callback", function()
            local orders, loop, steps = enter(name)
            orders:schedule("stops", 0.001, function()
                orders:stop()
            end)
            orders:schedule("left", 0.001, error)
            repeat
                loop.turn()
            until steps.code
            assert.are.equal("Closed", steps.code)
            assert.are.equal("pending", orders:get("left").state)
            assert.is_true(steps.n <= 4, steps.n)
            leave(orders, loop)
        end)
    end)
end
