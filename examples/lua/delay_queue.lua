-- delay_queue.lua - five orders of three seconds, taken one after the other.
--
-- What java.util.concurrent.DelayQueue does: an order waits for its time, and take waits for
-- the order. LAPSE_DEMO_SPEED=20 makes everything twenty times faster.

local lapse = require "lapse"

local SPEED = tonumber(os.getenv "LAPSE_DEMO_SPEED") or 1
local DELAY = 3 / SPEED

local orders = assert(lapse.new())
local start = orders:now()

for i = 1, 5 do
    local id = ("OID%08d"):format(i)
    assert(orders:put { id = id, delay = DELAY })
    local order = assert(orders:take())
    local late = ("late %.1f ms"):format(order.late * 1000)
    print(("%6.2f s  %-12s %-8s %s"):format(orders:now() - start, order.id, "taken", late))
    order:done()
end
orders:close()
