-- shop.lua - orders that are not paid in time are closed, and their goods go back.
--
-- Eight buyers order; whoever has not paid three seconds later loses the order. In a real
-- shop these are thirty minutes, and placing and paying are requests: here they are timed
-- by the same scheduler. LAPSE_DEMO_SPEED=20 makes everything twenty times faster.

local lapse = require "lapse"

local SPEED = tonumber(os.getenv "LAPSE_DEMO_SPEED") or 1
local PAY_WITHIN = 3

-- When each order is placed, and how much later its buyer pays, if at all.
local BUYERS = {
    { places = 0.0, pays = 1.0 },
    { places = 0.3 },
    { places = 0.6, pays = 2.5 },
    { places = 0.9 },
    { places = 1.2, pays = 0.4 },
    { places = 1.5, pays = 3.6 }, -- too late
    { places = 1.8, pays = 2.0 },
    { places = 2.1 },
}

local STOCK = 100
local stock = STOCK
local orders = {} -- the orders table: status and buyer by id
local placed, paid, closed, open = 0, 0, 0, #BUYERS

local shop = assert(lapse.new())
local start = shop:now()

local function say(id, event, note)
    print(("%6.2f s  %-12s %-8s %s"):format(shop:now() - start, id, event, note or ""))
end

-- Nothing more happens to one of the orders.
local function finish()
    open = open - 1
    if open == 0 then
        shop:stop()
    end
end

-- The order's time is up. What it finds in the orders table decides, not the timer alone.
local function close_unpaid(id, order)
    local row = orders[id]
    if row.status ~= "open" then
        return
    end
    row.status = "closed"
    stock = stock + 1
    closed = closed + 1
    say(id, "closed", ("late %.1f ms"):format(order.late * 1000))
    if not row.buyer.pays then
        finish()
    end
end

local function pay(id)
    if shop:cancel(id) then -- From here on close_unpaid never starts.
        orders[id].status = "paid"
        paid = paid + 1
        say(id, "paid")
    else
        say(id, "too late", "the order was closed")
    end
    finish()
end

local function place(id, buyer)
    orders[id] = { status = "open", buyer = buyer }
    stock = stock - 1
    placed = placed + 1
    assert(shop:schedule(id, PAY_WITHIN / SPEED, close_unpaid))
    say(id, "placed")
    if buyer.pays then
        -- A second timer of an order has an id of its own.
        assert(shop:schedule(id .. "/pay", buyer.pays / SPEED, function()
            pay(id)
        end))
    end
end

for i, buyer in ipairs(BUYERS) do
    local id = ("OID%08d"):format(i)
    assert(shop:schedule(id .. "/place", buyer.places / SPEED, function()
        place(id, buyer)
    end))
end

shop:run()
print(("%d placed, %d paid, %d closed, stock %d/%d"):format(placed, paid, closed, stock, STOCK))
