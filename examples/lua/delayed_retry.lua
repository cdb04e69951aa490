-- delayed_retry.lua - a retry ladder: each attempt says when the next one shall be.
--
-- The callback finds that it cannot go on and asks for another attempt after one, two and four
-- seconds; the fourth succeeds. With RabbitMQ each rung is a queue of its own, with a time to
-- live and a dead-letter exchange that leads back. LAPSE_DEMO_SPEED=20 makes everything twenty
-- times faster.

local lapse = require "lapse"

local SPEED = tonumber(os.getenv "LAPSE_DEMO_SPEED") or 1
local LADDER = { 1, 2, 4 } -- seconds before the second, third and fourth attempt
local start = lapse.now()

local function say(id, event, note)
    print(("%6.2f s  %-12s %-8s %s"):format(lapse.now() - start, id, event, note))
end

local function notify_shop(id, order)
    say(id, "attempt", order.attempt)
    local delay = LADDER[order.attempt]
    if delay then
        return lapse.retry(delay / SPEED, "the shop does not answer")
    end
    say(id, "done", "attempt " .. order.attempt)
    lapse.stop()
end

lapse.schedule("OID00000010", 0, notify_shop)
lapse.run()
