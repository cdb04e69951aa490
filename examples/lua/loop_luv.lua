-- loop_luv.lua - orders and a TCP server in one loop of luv.
--
-- Three orders are to be paid within three seconds; a buyer pays the first in time, by sending
-- its id to the server. luv watches the scheduler's descriptor, and step runs what is due.
-- LAPSE_DEMO_SPEED=20 makes everything twenty times faster.

local lapse = require "lapse"
local uv = require "luv"

local SPEED = tonumber(os.getenv "LAPSE_DEMO_SPEED") or 1

local orders = assert(lapse.new())
local start = orders:now()
local server, watch = uv.new_tcp(), nil
local open = 3

local function say(id, event, note)
    print(("%6.2f s  %-12s %-8s %s"):format(orders:now() - start, id, event, note or ""))
end

-- One order less to wait for; the loop ends when it has nothing left to watch.
local function finish()
    open = open - 1
    if open == 0 then
        watch:close()
        server:close()
    end
end

local function close_unpaid(id, order)
    say(id, "closed", ("late %.1f ms"):format(order.late * 1000))
    finish()
end

local function pay(id)
    if orders:cancel(id) then
        say(id, "paid")
        finish()
    end
end

-- The shop's server: a connection brings the id of an order that was paid.
local function serve()
    assert(server:bind("127.0.0.1", 0))
    assert(server:listen(8, function()
        local client = uv.new_tcp()
        assert(server:accept(client))
        client:read_start(function(_, id)
            if id then
                pay(id)
            else
                client:close()
            end
        end)
    end))
end

local function send_payment(id)
    local buyer, timer = uv.new_tcp(), uv.new_timer()
    timer:start(math.ceil(1000 / SPEED), 0, function()
        timer:close()
        buyer:connect("127.0.0.1", server:getsockname().port, function(err)
            assert(not err, err)
            buyer:write(id)
            buyer:shutdown(function()
                buyer:close()
            end)
        end)
    end)
end

watch = uv.new_poll(orders:fd())
watch:start("r", function(err)
    assert(not err, err)
    orders:step()
end)

serve()
for i = 1, open do
    local id = ("OID%08d"):format(i)
    assert(orders:schedule(id, 3 / SPEED, close_unpaid))
    say(id, "placed")
end
send_payment "OID00000001"
uv.run()
orders:close() -- after its descriptor is no longer watched
