-- loop_select.lua - orders and a TCP server in one loop around LuaSocket's select.
--
-- Three orders are to be paid within three seconds; a buyer pays the first in time, by sending
-- its id to the server. select watches anything that has `getfd` and `dirty`.
-- LAPSE_DEMO_SPEED=20 makes everything twenty times faster.

local lapse = require "lapse"
local socket = require "socket"

local SPEED = tonumber(os.getenv "LAPSE_DEMO_SPEED") or 1

local orders = assert(lapse.new())
local start = orders:now()
local server = assert(socket.bind("127.0.0.1", 0))
local open = 3

local function say(id, event, note)
    print(("%6.2f s  %-12s %-8s %s"):format(orders:now() - start, id, event, note or ""))
end

local function close_unpaid(id, order)
    say(id, "closed", ("late %.1f ms"):format(order.late * 1000))
    open = open - 1
end

local function pay(id)
    if orders:cancel(id) then
        say(id, "paid")
        open = open - 1
    end
end

-- The buyer, which would be another program: a timer of its own sends the payment.
local function send_payment(id)
    local host, port = server:getsockname()
    assert(orders:schedule("buyer", 1 / SPEED, function()
        local buyer = assert(socket.connect(host, port))
        assert(buyer:send(id))
        buyer:close()
    end))
end

-- The scheduler, as select wants it.
local timer = {
    getfd = function() return orders:fd() end,
    dirty = function() return false end, -- Nothing is buffered in Lua.
}

for i = 1, open do
    local id = ("OID%08d"):format(i)
    assert(orders:schedule(id, 3 / SPEED, close_unpaid))
    say(id, "placed")
end
send_payment "OID00000001"

while open > 0 do
    local readable = socket.select({ server, timer })
    if readable[timer] then
        orders:step()
    end
    if readable[server] then
        local client = assert(server:accept())
        pay(client:receive "*a")
        client:close()
    end
end
server:close()
orders:close()
