-- timing_wheel.lua - one order of five seconds, beside a clock that ticks.
--
-- The clock is nothing but an order that schedules itself again. The loop waits in between;
-- nothing polls. LAPSE_DEMO_SPEED=20 makes everything twenty times faster.

local lapse = require "lapse"

local SPEED = tonumber(os.getenv "LAPSE_DEMO_SPEED") or 1
local start = lapse.now()

local function say(id, event, note)
    print(("%6.2f s  %-12s %-8s %s"):format(lapse.now() - start, id, event, note))
end

local ticks = 0

local function tick(id)
    ticks = ticks + 1
    say(id, "tick", ticks)
    -- From the start, not from the last tick: lateness does not add up.
    lapse.schedule(id, start + (ticks + 1) / SPEED - lapse.now(), tick)
end

local function close(id, order)
    say(id, "closed", ("late %.1f ms"):format(order.late * 1000))
    lapse.stop()
end

lapse.schedule("clock", 1 / SPEED, tick)
lapse.schedule("OID00000010", 5 / SPEED, close)
lapse.run()
