-- relay.lua - what the driver of a durable store waits on: as a semaphore, but it wakes for the
-- store, too.
--
-- A thread (relay.c) writes a byte into a socket when the driver has been told to look, when the
-- store has answers or an order, or when the time is up. So the cosocket never times out by
-- itself, which nginx would write into its log.

local core = require "lapse.core"
local ask = require "resty.lapse.ask"

local watch, ring = core.loop.watch, core.loop.ring
local min = math.min
local tcp = ngx.socket.tcp

local NEVER = 2 ^ 31 - 1 -- milliseconds: the longest time-out there is
local SLICE = 0.01       -- seconds between two looks for answers, while the descriptor says nothing
local TIMED_OUT = "t"

local Relay = {}
Relay.__index = Relay

-- Allowed in every phase.
function Relay:post()
    ring(self.w.scheduler)
end

-- While an order is due that nobody has started yet, the descriptor stays readable and says
-- nothing.
local function slice(w, pause)
    return w.due and w.asked > 0 and min(pause, SLICE) or pause
end

-- true: there is something to do; nil, "timeout"; nil, message.
function Relay:wait(pause)
    local w = self.w
    repeat
        local now = slice(w, pause)
        watch(w.scheduler, now, not w.due)
        local byte, message = self.socket:receive(1)
        if not byte then
            return nil, message
        end
        ask.collect(w)
        if byte ~= TIMED_OUT then
            return true
        end
        pause = pause - now
    until pause <= 0
    return nil, "timeout"
end

function Relay:close()
    self.socket:close()
end

local relay = {}

-- Connect to the thread; only in the timer that will wait. nil, message.
function relay.connect(w)
    local socket = tcp()
    socket:settimeouts(1000, 1000, NEVER)
    local fine, message = socket:connect(w.place)
    if not fine then
        return nil, message
    end
    return setmetatable({ w = w, socket = socket }, Relay)
end

return relay
