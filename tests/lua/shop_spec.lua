-- What happens to a shop's orders: paid too late, closed twice, ordered again.

local lapse = require "lapse"
local support = require "support"
local invent, nothing = support.invent, support.nothing

describe("a shop", function()
    it("P-71 returns stock once, although an order is delivered thrice and swept twice", function()
        local s, at = invent { on_error = nothing }
        local orders, stock, keys, fences, deliveries = {}, 0, {}, {}, 0
        -- UPDATE orders SET status = 'closed' WHERE id = ? AND status = 'open'
        local function close(id)
            if orders[id] == "open" then
                orders[id] = "closed"
                stock = stock + 1
            end
        end
        s:handle("close_unpaid", function(id, order)
            deliveries = deliveries + 1
            keys[id .. "/" .. order.generation] = true
            assert.is_true(order.fence > (fences[id] or 0))
            fences[id] = order.fence
            close(id)
            if order.attempt < 3 then
                error "the answer of the database was lost"
            end
        end, { attempts = 3, backoff = 1, jitter_percent = -1 })
        for i = 1, 20 do
            orders["o" .. i] = "open"
            s:put { id = "o" .. i, queue = "close_unpaid", delay = 1 }
        end
        local function sweep()
            for id in pairs(orders) do
                close(id)
            end
        end
        s:schedule("sweep 1", 1, sweep)
        at(1)
        at(2)
        sweep()
        at(4)
        assert.are.same({ 60, 20, 0 }, { deliveries, stock, s:stats().dead })
        assert.are.equal(21, s:stats().done)
        local different = 0
        for _ in pairs(keys) do
            different = different + 1
        end
        assert.are.equal(20, different)
    end)

    it("P-72 is told that a payment is too late", function()
        local s, at = invent { keep = 300 }
        local generation = s:schedule("x", 10, nothing)
        at(5)
        assert.is_true(s:reschedule("x", 300)) -- The buyer is on the payment page.
        assert.are.equal(0, at(10))
        assert.are.equal(1, at(305))
        at(305 + 120)
        assert.are.same({ false, "done" }, { s:cancel "x" })
        assert.are.same({ false, "done" }, { s:cancel("x", generation) })
        assert.are.same({ false, "done" }, { s:reschedule("x", 300) })
        assert.are.same({ "done", 1767225905 }, { s:get("x").state, s:get("x").ended })
        at(305 + 301)
        assert.are.same({ false, "unknown" }, { s:cancel "x" })
        assert.are.same({ false, "unknown" }, { s:reschedule("x", 300) })
    end)

    it("P-72 is told so while the order is being closed", function()
        local s, at = invent()
        local answers
        s:schedule("x", 1, function(id)
            answers = { s:reschedule(id, 300) }
            answers[3], answers[4] = s:cancel(id)
        end)
        at(1)
        assert.are.same({ false, "running", false, "running" }, answers)
        assert.are.same({ false, "unknown" }, { s:cancel "x" })
    end)

    -- Bring the order "x" of a fresh scheduler into each state, and schedule it once more.
    local function in_state(state, again)
        local s, at = invent { keep = 60, on_error = nothing }
        local old, result = 0, nil
        local function run()
            old = old + 1
        end
        local make = {
            absent = nothing,
            pending = function()
                s:schedule("x", 10, run)
            end,
            running = function()
                s:schedule("x", 0, function()
                    result = { again(s) }
                    return lapse.retry(1) -- It has been scheduled anew: not repeated.
                end)
                at(1)
            end,
            done = function()
                s:schedule("x", 0, nothing)
                at(1)
            end,
            failed = function()
                s:schedule("x", 0, error)
                at(1)
            end,
            cancelled = function()
                s:schedule("x", 10, run)
                s:cancel "x"
            end,
            dead = function()
                s:schedule("x", 0, function()
                    return lapse.reject()
                end)
                at(1)
            end,
        }
        make[state]()
        result = result or { again(s) }
        return result, s, at, function()
            return old
        end
    end

    local states = { "absent", "pending", "running", "done", "failed", "cancelled", "dead" }
    for _, state in ipairs(states) do
        it("P-53 may order again under the id of one that is " .. state, function()
            local new = 0
            local function run()
                new = new + 1
            end
            local refused, s, at, old = in_state(state, function(scheduler)
                return scheduler:schedule("x", 20, run)
            end)
            if state == "pending" then
                assert.are.equal("Exists", refused[3])
                assert.are.equal(10, s:get("x").remaining)
                at(10)
                assert.are.equal(1, old())
            else
                assert.are.equal("number", type(refused[1]))
                at(22)
                assert.are.same({ 0, 1 }, { old(), new })
            end
            new = 0
            local replaced
            replaced, s, at, old = in_state(state, function(scheduler)
                return scheduler:put { id = "x", delay = 20, callback = run, replace = true }
            end)
            assert.are.equal("number", type(replaced[1]))
            assert.are.equal(20, s:get("x").remaining)
            at(22)
            assert.are.same({ 0, 1 }, { old(), new })
            assert.are.equal(state == "pending" and 1 or 0, s:stats().replaced)
        end)
    end
end)
