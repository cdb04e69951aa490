-- loop_cqueues.lua - orders and a TCP server in one loop of cqueues.
--
-- Three orders are to be paid within three seconds; a buyer pays the first in time, by sending
-- its id to the server. A scheduler can be polled as it is: it has `pollfd`, `events` and
-- `timeout`. LAPSE_DEMO_SPEED=20 makes everything twenty times faster.

local lapse = require "lapse"
local cqueues = require "cqueues"
local socket = require "cqueues.socket"

local SPEED = tonumber(os.getenv "LAPSE_DEMO_SPEED") or 1

local orders = assert(lapse.new())
local start = orders:now()
local loop = cqueues.new()
local server = socket.listen("127.0.0.1", 0)
local open, ended = 3, false

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

-- What a program needs for its orders: a coroutine that polls the scheduler.
loop:wrap(function()
    repeat
        cqueues.poll(orders)
        local _, _, code = orders:step()
    until code == "Closed"
    cqueues.cancel(orders:fd()) -- The loop forgets the descriptor before it is closed.
    orders:close()
    ended = true
end)

-- The shop's server: a connection brings the id of an order that was paid.
loop:wrap(function()
    while true do
        local client = server:accept()
        loop:wrap(function()
            pay(client:read "*l")
            client:close()
        end)
    end
end)

loop:wrap(function()
    local _, host, port = server:localname()
    cqueues.sleep(1 / SPEED)
    local buyer = socket.connect(host, port)
    buyer:write "OID00000001\n"
    buyer:flush()
    buyer:close()
end)

for i = 1, open do
    local id = ("OID%08d"):format(i)
    assert(orders:schedule(id, 3 / SPEED, close_unpaid))
    say(id, "placed")
end
while not ended do
    assert(loop:step())
end
server:close()
