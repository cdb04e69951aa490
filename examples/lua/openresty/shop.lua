-- shop.lua - what nginx.conf calls: place an order, pay it, look at it.
--
-- The shop's database, here a shared dictionary, decides how an order ends: `add` succeeds for the
-- first one only, as UPDATE ... WHERE status = 'open' would. So nothing goes wrong when the
-- payment reaches another worker than the one that has the order, or the callback runs twice.

local lapse = require "resty.lapse"

local orders = ngx.shared.shop

local shop = {}

-- True for the first that ends the order.
local function finish(order_id, status)
    return (orders:add("end of " .. order_id, status))
end

-- Runs when the time is up; may wait for a database or another server.
local function close_unpaid(order_id, order)
    if finish(order_id, "closed") then
        ngx.log(ngx.NOTICE, order_id, " was not paid in time: closed, ",
            ("%.1f ms late"):format(order.late * 1000))
    end
end

-- In every worker: orders name this handler, so that they are handed over when nginx reloads.
function shop.start(seconds_to_pay)
    shop.seconds_to_pay = seconds_to_pay
    assert(lapse.start { dict = "lapse" })
    assert(lapse.handle("close_unpaid", close_unpaid))
end

local function answer(status, text)
    ngx.status = status
    ngx.say(text)
end

function shop.place(order_id)
    if not orders:add("order " .. order_id, true) then
        return answer(409, "placed before")
    end
    local placed, message = lapse.put {
        id = order_id, queue = "close_unpaid", delay = shop.seconds_to_pay,
    }
    if not placed then
        orders:delete("order " .. order_id)
        return answer(503, message)
    end
    answer(201, "placed")
end

function shop.pay(order_id)
    if not orders:get("order " .. order_id) then
        return answer(404, "no such order")
    end
    if not finish(order_id, "paid") then
        return answer(409, orders:get("end of " .. order_id))
    end
    lapse.cancel(order_id) -- In another worker it stays pending: its callback finds it paid.
    answer(200, "paid")
end

function shop.show(order_id)
    if not orders:get("order " .. order_id) then
        return answer(404, "no such order")
    end
    answer(200, orders:get("end of " .. order_id) or "open")
end

return shop
