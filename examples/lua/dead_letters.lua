-- dead_letters.lua - what cannot be done is kept with its reason, and put back when it can.
--
-- Three refunds are due after half a second. The first is paid out; the second has no account
-- to go to, which no retry would change; the third meets a gateway that is down until its
-- three attempts, one and two seconds apart, are used up. Of the two dead letters one is
-- deleted; the other is put back when the gateway is up again, and is paid out.
--
-- With RabbitMQ this takes a second exchange and queue, a header that counts deaths, and a
-- program that moves messages back. LAPSE_DEMO_SPEED=20 makes everything twenty times faster.

local lapse = require "lapse"

local SPEED = tonumber(os.getenv "LAPSE_DEMO_SPEED") or 1
local s = assert(lapse.new())
local start = s:now()
local gateway_is_up = false

local function say(id, event, note)
    print(("%6.2f s  %-12s %-8s %s"):format(s:now() - start, id, event, note))
end

-- The gateway is up again: look through what is left.
local function tidy_up()
    for letter in s:each "dead" do
        say(letter.id, "letter", ("%s, attempt %d"):format(letter.reason, letter.attempt))
        if letter.reason == "rejected" then
            s:purge(letter.id)
            say(letter.id, "purged", "")
        else
            s:requeue(letter.id, 0.5 / SPEED)
            say(letter.id, "requeued", "")
        end
    end
end

s:handle("refund", function(id, order)
    if id == "O2" then
        return lapse.reject "no such account"
    elseif id == "O3" and not gateway_is_up then
        error("gateway down", 0)
    end
    say(id, "done", "attempt " .. order.attempt)
    if id == "O3" then
        s:stop()
    end
end, { attempts = 3, backoff = 1 / SPEED, jitter_percent = -1 })

s:on_error(function(order, err)
    say(order.id, "failed", ("attempt %d: %s"):format(order.attempt, err))
end)

s:on_dead(function(letter)
    say(letter.id, "dead", letter.reason .. ": " .. letter.error)
    if letter.id == "O3" then
        gateway_is_up = true
        tidy_up()
    end
end)

for _, id in ipairs { "O1", "O2", "O3" } do
    assert(s:put { id = id, queue = "refund", delay = 0.5 / SPEED })
end
s:run()
