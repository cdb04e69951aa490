-- loop_copas.lua - orders and a TCP server in one loop of copas.
--
-- Three orders are to be paid within three seconds; a buyer pays the first in time, by sending
-- its id to the server. copas waits for anything that LuaSocket's select can watch, and calls
-- its `receive` when it is readable. LAPSE_DEMO_SPEED=20 makes everything twenty times faster.

local lapse = require "lapse"
local socket = require "socket"
local copas = require "copas"

local SPEED = tonumber(os.getenv "LAPSE_DEMO_SPEED") or 1

local orders = assert(lapse.new())
local start = orders:now()
local server = assert(socket.bind("127.0.0.1", 0))
local open = 3

local function say(id, event, note)
    print(("%6.2f s  %-12s %-8s %s"):format(orders:now() - start, id, event, note or ""))
end

-- One order less to wait for. When none is left, step answers "Closed".
local function finish()
    open = open - 1
    if open == 0 then
        orders:stop()
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
copas.addserver(server, function(client)
    pay(copas.receive(client, 11))
end)

-- The buyer, which would be another program: a timer of its own sends the payment.
local function send_payment(id)
    local host, port = server:getsockname()
    assert(orders:schedule("buyer", 1 / SPEED, function()
        local buyer = assert(socket.connect(host, port))
        assert(buyer:send(id))
        buyer:close()
    end))
end

-- The scheduler, as a socket that is never done being read: "timeout" asks for another wait.
local timer = {
    getfd = function() return orders:fd() end,
    dirty = function() return false end, -- Nothing is buffered in Lua.
    settimeout = function() return true end,
    receive = function()
        local _, _, code = orders:step()
        return nil, code or "timeout"
    end,
    close = function() return orders:close() end,
}

local ended = false
copas.addthread(function()
    copas.receive(timer) -- until orders:stop()
    ended = true
end)

for i = 1, open do
    local id = ("OID%08d"):format(i)
    assert(orders:schedule(id, 3 / SPEED, close_unpaid))
    say(id, "placed")
end
send_payment "OID00000001"

while not ended do
    copas.step()
end
server:close()
orders:close()
