-- durable.lua - orders outlive the process: one places them and ends, another closes what is
-- overdue.
--
-- The first process places three orders, two to be paid within two seconds and one within a
-- minute, and ends without closing anything. Three seconds later this one opens the same SQLite
-- file. It learns that the third order was paid, and closes the other two, a second late; nobody
-- schedules anything for that. Neither process knows a function of the other: an order names the
-- queue of a handler.
--
-- With Redis key-expiry events the two orders would be lost: nobody listened when they expired.
-- LAPSE_DEMO_SPEED=20 makes everything twenty times faster.

local lapse = require "lapse"

local SPEED = tonumber(os.getenv "LAPSE_DEMO_SPEED") or 1
local url, start = arg[1], tonumber(arg[2]) or lapse.now() -- all schedulers have one clock

local function say(id, event, note)
    print(("%6.2f s  %-12s %-8s %s"):format(lapse.now() - start, id, event, note))
    io.stdout:flush()
end

-- The shop: when put returns, the order is on the disk.
local function place_orders()
    local s = assert(lapse.new(url))
    for _, order in ipairs { { "OID1", 2 }, { "OID2", 60 }, { "OID3", 2 } } do
        assert(s:put { id = order[1], queue = "close_unpaid", delay = order[2] / SPEED })
        say(order[1], "placed", "")
    end
    os.exit(0, false) -- nothing is closed
end

-- The next process: it only consumes.
local function close_overdue()
    local s = assert(lapse.new(url))
    local unpaid = 2

    s:handle("close_unpaid", function(id, order)
        say(id, "closed", ("late %.1f ms"):format(order.late * 1000))
        unpaid = unpaid - 1
        if unpaid == 0 then
            s:stop()
        end
    end, { attempts = 5 })

    if s:cancel "OID2" then
        say("OID2", "paid", "")
    end
    s:run()
    s:close()
end

-- The command of this interpreter.
local function interpreter()
    local first = 0
    while arg[first - 1] do
        first = first - 1
    end
    return arg[first]
end

if url then
    place_orders()
else
    local pipe = io.popen "mktemp -d"
    local folder = pipe:read "*l"
    pipe:close()
    url = "sqlite:///" .. folder .. "/orders.db"
    os.execute(("'%s' '%s' '%s' %.9f"):format(interpreter(), arg[0], url, start))
    os.execute(("sleep %.3f"):format(3 / SPEED))
    close_overdue()
    os.execute("rm -r " .. folder)
end
