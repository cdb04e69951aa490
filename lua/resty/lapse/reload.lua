-- reload.lua - hands pending orders from the workers that end to those that follow them.
--
-- A worker that ends puts its orders into a list in a shared dictionary, of which the others
-- take a part whenever they look. Only orders for a handler can travel, by its name. Instants
-- travel as they are: CLOCK_BOOTTIME is the same in all processes. An order that a worker cannot
-- take, since it has one of the same id, goes back to the list.

local ngx = ngx
local ceil, min, tonumber = math.ceil, math.min, tonumber

local LIST = "lapse:orders"
local MOST = 1000         -- orders taken in one turn
local EVERY = 1           -- seconds between two looks
local AT_FIRST = 0.1      -- the same while workers of the time before may end
local AT_FIRST_FOR = 5    -- seconds after the start

local reload = {}

-- "<due, in microseconds of the clock> <length of id> <of queue> <of payload, or -1> ..."
-- Another form needs another name of the list: old and new workers share it.
local function pack(order, now)
    local payload = order.payload
    -- Rounded up: late is allowed, early is not.
    local due = ceil((now + order.remaining) * 1e6) + 1
    return ("%.0f %d %d %d "):format(due, #order.id, #order.queue, payload and #payload or -1)
        .. order.id .. order.queue .. (payload or "")
end

local function unpack_order(text, now)
    local due, id, queue, payload, at = text:match "^(%d+) (%d+) (%d+) (%-?%d+) ()"
    if not due then
        return nil -- Somebody else has put it there.
    end
    local queue_at = at + tonumber(id)
    local payload_at = queue_at + tonumber(queue)
    return {
        id = text:sub(at, queue_at - 1),
        queue = text:sub(queue_at, payload_at - 1),
        payload = tonumber(payload) >= 0 and text:sub(payload_at) or nil,
        delay = due / 1e6 - now,
    }
end

-- The list in the dictionary `name`, for one worker whose clock reads `now`.
function reload.new(name, now)
    local dict = ngx.shared[name]
    if not dict then
        return nil, ('there is no lua_shared_dict "%s"'):format(name)
    end
    return {
        name = name,
        dict = dict,
        look_at = now,
        settled_at = now + AT_FIRST_FOR,
        adopted = 0,
        handed_over = 0,
    }
end

-- Take over one order.
local function take(list, scheduler, text)
    local order = unpack_order(text, scheduler:now())
    if not order then
        ngx.log(ngx.ERR, "lapse: no order, in the dictionary ", list.name, ": ", text)
        return
    end
    local generation, message = scheduler:put(order)
    if generation then
        list.adopted = list.adopted + 1
        return
    end
    local fine, full = list.dict:rpush(LIST, text)
    if not fine then
        ngx.log(ngx.ERR, "lapse: order ", order.id, " is lost: ", message, ", ", full)
    end
end

-- Take over what other workers left; returns the seconds until the next look.
function reload.adopt(list, scheduler)
    local now = scheduler:now()
    if now < list.look_at then
        return list.look_at - now
    end
    local length = list.dict:llen(LIST) or 0
    for _ = 1, min(length, MOST) do
        local text = list.dict:lpop(LIST)
        if not text then
            break
        end
        take(list, scheduler, text)
    end
    local pause = now < list.settled_at and AT_FIRST or EVERY
    if length > MOST then
        pause = 0
    end
    list.look_at = now + pause
    return pause
end

-- The pending orders of a stopped scheduler go into the list, if there is one. Returns how many
-- did not.
function reload.hand_over(list, scheduler)
    if not list then
        return scheduler:stats().pending
    end
    local orders = scheduler:each "pending"
    local now = scheduler:now()
    local left, full = 0, nil
    for order in orders do
        local fine, message
        if order.queue ~= "" then
            fine, message = list.dict:rpush(LIST, pack(order, now))
        end
        if fine then
            scheduler:cancel(order.id, order.generation)
            list.handed_over = list.handed_over + 1
        else
            left = left + 1
            full = full or message
        end
    end
    if full then
        ngx.log(ngx.ERR, "lapse: not all orders could be handed over: ", full,
            ': give lua_shared_dict "', list.name, '" more room')
    end
    return left
end

return reload
