-- lapse.lua - run a callback when an order's time is up, inside nginx.
--
--     init_worker_by_lua_block {
--         local lapse = require "resty.lapse"
--         lapse.start { dict = "lapse" }
--         lapse.handle("close_unpaid", function(order_id, order)
--             -- may use cosockets and ngx.sleep
--         end)
--     }
--     ...
--     local lapse = require "resty.lapse"
--     lapse.put { id = "OID00000010", queue = "close_unpaid", delay = 30 * 60 } -- order created
--     lapse.cancel "OID00000010"                                                -- order paid
--
-- The functions have the names, arguments and answers of those of `lapse` (lua/lapse/init.lua),
-- where they are described. What is different here:
--
-- Workers     Every worker has a scheduler of its own, which keeps its orders in memory: what
--             was scheduled in one is not known to the others. Those of a durable store are
--             everybody's.
-- Callbacks   run in timers, at most `max_inflight` at once, and may wait: for cosockets,
--             ngx.sleep, semaphores. No request waits for them, and no other callback, but those of
--             `inline` handlers. ngx.exit() in a callback is a failure of its order.
-- Phases      Every function may be called in every phase after start, and in callbacks; none of
--             them yields. On a durable store those that ask it let their light thread wait for
--             the answer; where nginx does not allow that they answer nil, a message and the code
--             "CannotWait", and nothing was done (each and order:holds raise).
-- Queues      An order brings its own callback, or names the queue of a handler, not both. Only
--             the latter can be handed over when nginx reloads its configuration.
-- Errors      go to nginx's error log, unless there is an on_error, which may wait as well.
--             on_dead and log must not.
-- Not here    run, step, fd, next, stop, close: a worker does that. take, poll, cancel_wait:
--             they would stop the worker; a handler takes orders.

local lapse_core = require "lapse"
local core = require "lapse.core"
local loop = require "lapse.loop"
local ask = require "resty.lapse.ask"
local fast = require "resty.lapse.fast"
local process = require "ngx.process"
local reload = require "resty.lapse.reload"
local worker = require "resty.lapse.worker"

local ngx = ngx
local get_phase = ngx.get_phase
local max = math.max
local error, ipairs, pairs, pcall, type = error, ipairs, pairs, pcall, type
local methods = core.methods
local wake = worker.wake

---@class resty.lapse.Options
---@field url string? "memory:" by default; "memory:?tick=10ms", "sqlite:////path/orders.db", ...
---@field max_pending integer? pending and running orders at most; 0, the default: no limit
---@field overflow ("refuse"|"dead_letter_oldest")? what happens beyond it
---@field keep number? seconds that cancel and get remember a finished order; 0 by default
---@field max_dead integer? dead letters kept, the oldest are dropped; 10 000 by default
---@field lease number? of a durable store: seconds after which a dead worker's orders come back; 30
---@field stuck_after number? seconds; a callback that runs longer is named in the log; 60
---@field on_error lapse.OnError? a callback failed; may wait
---@field on_dead lapse.OnDead? an order became a dead letter; must not wait
---@field log lapse.Log? must not wait
---@field dict string? of memory: a lua_shared_dict, by which pending orders reach the next workers
---@field max_inflight integer? callbacks that run at once, 1 to 100 000; 64 by default
---@field inline boolean? callbacks run one after the other: for tiny ones that never wait
---@field only_worker integer? only this one, from 0 on, has a scheduler

---@class resty.lapse.Policy : lapse.Policy
---@field inline boolean? as in the options, for this handler

---@class resty.lapse.Stats
---@field inflight integer callbacks that run
---@field launched integer timers that nginx was asked for
---@field lost_launches integer of these, dropped by nginx and asked for again
---@field drivers integer light threads that have been the driver, one after the other
---@field adopted integer orders taken over from workers before this one
---@field handed_over integer orders left to the workers after this one

local lapse = {
    version = lapse_core.version,
    retry = lapse_core.retry,
    reject = lapse_core.reject,
}

local this      -- the worker, once it is started
local elsewhere -- why this worker has none

local NOT_STARTED = "resty.lapse is not started in this Lua state: call "
    .. "require('resty.lapse').start() in init_worker_by_lua*. With lua_code_cache off every "
    .. "request has a Lua state of its own, and nothing can be scheduled"
local IN_INIT = "resty.lapse: %s() in init_by_lua*: what is made there is the master's, not a "
    .. "worker's; %s"

-- There is no worker: raises, or answers nil, message, "Elsewhere". Called as a tail call.
local function absent(name)
    if elsewhere then
        return nil, elsewhere, "Elsewhere"
    end
    if get_phase() == "init" then
        error(IN_INIT:format(name, "schedule in init_worker_by_lua* or later"), 2)
    end
    error(NOT_STARTED, 2)
end

-- -- Start ------------------------------------------------------------------------------------

local LEVELS = { debug = ngx.DEBUG, info = ngx.INFO, warning = ngx.WARN, error = ngx.ERR }

local function log(level, message)
    ngx.log(LEVELS[level], "lapse: ", message)
end

local function log_error(order, err, trace)
    ngx.log(ngx.ERR, 'lapse: order "', order.id, '" failed: ', trace or loop.describe(err))
end

local OWN = { dict = "string", max_inflight = "number", inline = "boolean", only_worker = "number" }

-- Those of this module, checked, and those of lapse.new.
local function split(options)
    local own, others = {}, { on_error = log_error, log = log }
    for name, value in pairs(options) do
        if not OWN[name] then
            others[name] = value
        elseif type(value) ~= OWN[name] then
            error(("resty.lapse.start: %s is a %s, got %s"):format(name, OWN[name], type(value)), 3)
        else
            own[name] = value
        end
    end
    local most = own.max_inflight or 64
    if not (most >= 1 and most <= 100000) then
        error(("resty.lapse.start: max_inflight is 1 to 100000, got %g"):format(most), 3)
    end
    own.max_inflight = most
    if others.clock then
        error("resty.lapse.start: nginx cannot wait by a manual clock", 3)
    end
    return own, others
end

local function check_phase()
    local phase = get_phase()
    if phase == "init" then
        error(IN_INIT:format("start", "call it in init_worker_by_lua*"), 3)
    elseif phase ~= "init_worker" then
        error("resty.lapse.start: call it in init_worker_by_lua*, not in phase " .. phase, 3)
    elseif this or elsewhere then
        error("resty.lapse.start: it was called before", 3)
    end
end

-- Why this process has no scheduler, if so.
local function why_not(only)
    local kind = process.type()
    if kind ~= "worker" and kind ~= "single" then
        return "orders are kept by workers, and this is a process of type " .. kind
    elseif only and ngx.worker.id() ~= only then
        return ("orders are kept by the worker %d only, and this is %d"):format(only,
            ngx.worker.id())
    end
end

local OPENS_IN = 1 -- seconds that a worker waits before it serves: a store opens in much less

local UNITS = { ns = 1e-9, us = 1e-6, ms = 0.001, s = 1, m = 60, h = 3600, d = 86400 }

-- How long a call waits for a durable store, as calls do elsewhere: a quarter of the lease.
local function limit_of(options)
    local number, unit = (options.url or ""):match "[?&]lease=(%d+)(%a+)"
    local lease = number and number * (UNITS[unit] or 1) or options.lease or 0
    return max(0.1, (lease > 0 and lease or 30) / 4)
end

-- A store that cannot be opened yet is tried again; one that never will is an answer.
local function start_durable(own, others)
    local scheduler, place, code = core.new_apart(others)
    if not scheduler then
        return nil, place, code
    end
    local open, message, reason = core.loop.is_open(scheduler, OPENS_IN)
    if open == nil then
        return nil, message, reason
    elseif not open then
        ngx.log(ngx.WARN, "lapse: the store is not open yet, and is tried again",
            message and ": " or "", message or "")
    end
    this, message = worker.start(scheduler, own, nil, {
        place = place, patience = limit_of(others), stand_in = lapse_core.new(),
        told_closed = not open and (message or "") or nil,
    })
    if not this then
        return nil, message, "System"
    end
    return true
end

---Give this worker its scheduler. Once, in init_worker_by_lua*.
---@param options resty.lapse.Options?
---@return true? started or nil, message, code
---@return string? message
---@return string? code
function lapse.start(options)
    check_phase()
    local own, others = split(options or {})
    elsewhere = why_not(own.only_worker)
    if elsewhere then
        return true
    end
    if type(others.url) == "string" and not others.url:find "^memory:" then
        return start_durable(own, others)
    end
    local scheduler, message, code = lapse_core.new(others)
    if not scheduler then
        return nil, message, code
    end
    core.loop.host(scheduler)
    local list
    if own.dict then
        list, message = reload.new(own.dict, scheduler:now())
        if not list then
            return nil, message, "System"
        end
    end
    this, message = worker.start(scheduler, own, list)
    if not this then
        return nil, message, "System"
    end
    this.fast = fast.new(scheduler)
    return true
end

-- -- Schedule -----------------------------------------------------------------------------------
-- The calls are tail calls, so that an error of an argument is at the place of the caller. The
-- driver is woken before: it looks when nginx is about, which is after the call.

-- An order is due in `delay` seconds: has the driver to know?
local function expect(w, delay)
    if not (type(delay) == "number" and delay >= w.pause) then
        wake(w)
    end
end

---@param order_id string
---@param delay number
---@param callback lapse.Callback a function of its own, or one that handles one queue
---@return integer? generation or nil, message, code
---@return string? message
---@return string? code
function lapse.schedule(order_id, delay, callback)
    local w = this
    if not w then
        return absent "schedule"
    end
    if w.place then
        return ask.call(w, "schedule", order_id, delay, callback)
    end
    expect(w, delay)
    local generation, message, code = fast.schedule(w, order_id, delay, callback)
    if generation then
        return generation
    elseif generation == nil then
        return nil, message, code
    end
    return methods.schedule(w.scheduler, order_id, delay, callback)
end

-- What would not be handed over as it is, or never run.
local function check_order(w, order, level)
    if type(order) ~= "table" then
        return -- C says what is wrong.
    end
    local queue, callback = order.queue, order.callback
    if queue == nil or queue == "" then
        if callback == nil then
            error("resty.lapse: an order has a callback, or the queue of a handler", level)
        end
    elseif callback ~= nil and w.handlers[queue] ~= callback then
        error("resty.lapse: an order has a callback or the queue of a handler, not both", level)
    end
end

---Schedule an order in full, which names the queue of a handler or brings a callback.
---@param order lapse.Spec
---@return integer? generation or nil, message, code
---@return string? message
---@return string? code
function lapse.put(order)
    local w = this
    if not w then
        return absent "put"
    end
    check_order(w, order, 3)
    if w.place then
        return ask.call(w, "put", order)
    end
    expect(w, type(order) == "table" and order.delay)
    local generation, message, code = fast.put(w, order)
    if generation then
        return generation
    elseif generation == nil then
        return nil, message, code
    end
    return methods.put(w.scheduler, order)
end

---@param orders lapse.Spec[]
---@return (integer|string)[]? results a generation or a code for each; or nil, message, code
---@return integer|string accepted
---@return string? code
function lapse.schedule_many(orders)
    local w = this
    if not w then
        return absent "schedule_many"
    end
    for _, order in ipairs(type(orders) == "table" and orders or {}) do
        check_order(w, order, 3)
    end
    if w.place then
        return ask.schedule_many(w, orders)
    end
    wake(w)
    return methods.schedule_many(w.scheduler, orders)
end

---@param order_id string
---@param delay number
---@param generation integer?
---@return boolean? changed
---@return lapse.Why why
---@return string? code
function lapse.reschedule(order_id, delay, generation)
    local w = this
    if not w then
        return absent "reschedule"
    end
    if w.place then
        return ask.call(w, "reschedule", order_id, delay, generation)
    end
    expect(w, delay)
    return methods.reschedule(w.scheduler, order_id, delay, generation)
end

---@param order_id string
---@param generation integer?
---@return boolean? cancelled
---@return lapse.Why why
---@return string? code
function lapse.cancel(order_id, generation)
    local w = this
    if not w then
        return absent "cancel"
    end
    if w.place then
        return ask.call(w, "cancel", order_id, generation)
    end
    local cancelled, why = fast.cancel(w, order_id, generation)
    if cancelled then
        return true
    elseif cancelled == false then
        return false, why
    end
    return methods.cancel(w.scheduler, order_id, generation)
end

-- The method `name`, which needs no answer of a durable store.
local function change(w, name, ...)
    if not w.opened then
        return ask.change(w, name, ...)
    end
    return methods[name](w.scheduler, ...)
end

-- -- Handlers -----------------------------------------------------------------------------------

-- The policy as the scheduler knows it, and whether it says inline.
local function read_policy(policy)
    if type(policy) ~= "table" or policy.inline == nil then
        return policy, false
    end
    if type(policy.inline) ~= "boolean" then
        error("resty.lapse.handle: inline is a boolean, got " .. type(policy.inline), 3)
    end
    local rest = {}
    for name, value in pairs(policy) do
        if name ~= "inline" then
            rest[name] = value
        end
    end
    return rest, policy.inline
end

---Let `handler` run the orders of `queue`, in this worker: call it in init_worker_by_lua*.
---@param queue string not ""
---@param handler lapse.Callback?
---@param policy resty.lapse.Policy?
---@return true? fine or nil, message, code
---@return string? message
---@return string? code
function lapse.handle(queue, handler, policy)
    local w = this
    if not w then
        return absent "handle"
    end
    if queue == nil or queue == "" then
        error("resty.lapse.handle: a handler has a name: name its queue", 2)
    end
    local rest, inline = read_policy(policy)
    local fine, answer, message, code = pcall(change, w, "handle", queue, handler, rest)
    if not fine then
        error(answer, 2)
    elseif not answer then
        return nil, message, code
    end
    fast.forget(w)
    w.handlers[queue] = handler
    w.inline[queue] = inline or nil
    wake(w)
    return true
end

-- -- The rest -----------------------------------------------------------------------------------

---@alias resty.lapse.Plain fun(...): any, any, any

-- The method `name` as a function.
local function plain(name)
    return function(...)
        local w = this
        if not w then
            return absent(name)
        end
        return change(w, name, ...)
    end
end

-- The same for one after which something may be due at once.
local function waking(name)
    return function(...)
        local w = this
        if not w then
            return absent(name)
        end
        wake(w)
        return change(w, name, ...)
    end
end

-- The function `otherwise`, of the method `name`, which asks a durable store and waits.
local function asking(name, otherwise)
    return function(...)
        local w = this
        if w and w.place then
            return ask.call(w, name, ...)
        end
        return otherwise(...)
    end
end

---@type fun(order_id: string, at: number, callback: lapse.Callback): integer?, string?, string?
lapse.schedule_at = asking("schedule_at", waking "schedule_at")
---@type fun(order_id: string): lapse.Info?, string?, string?
lapse.get = asking("get", plain "get")
local each = plain "each"

---@param state ("pending"|"running"|"done"|"dead")?
---@return fun(): lapse.Info? iterator
function lapse.each(state)
    local w = this
    if not w or not w.place then
        return each(state)
    end
    local fine, orders, message = pcall(ask.call, w, "orders", state)
    if not fine then
        error(orders, 2)
    end
    return (loop.iterate(orders, "resty.lapse.each", message)) -- Not a tail call.
end

---@type fun(queue: string): true?, string?, string?
lapse.pause = plain "pause"
---@type fun(queue: string): true?, string?, string?
lapse.resume = waking "resume"
---@type fun(order_id: string, delay: number?, generation: integer?): integer?, string?, string?
lapse.requeue = asking("requeue", waking "requeue")
---@type fun(order_id: string?, generation: integer?): integer?, string?, string?
lapse.purge = asking("purge", plain "purge")
---@type fun(queue: string): lapse.QueueStats?, string?, string?
lapse.queue_stats = asking("queue_stats", plain "queue_stats")
---@type fun(): string[]?, string?, string?
lapse.queues = asking("queues", plain "queues")
---@type fun(): string?, string?, string?
lapse.metrics = asking("metrics", plain "metrics")
---@type fun(handler: lapse.OnDead?)
lapse.on_dead = plain "on_dead"

---@return number? seconds of the clock that delays count on
---@return string? message
---@return string? code
function lapse.now()
    local w = this
    if not w then
        return absent "now"
    end
    return methods.now(w.stand_in or w.scheduler)
end

---Have errors of callbacks told to `handler(order, error, traceback)`; nil: to the error log.
---@param handler lapse.OnError?
function lapse.on_error(handler)
    local w = this
    if not w then
        return absent "on_error"
    end
    if handler == nil then
        handler = log_error
    end
    return change(w, "on_error", handler)
end

local scheduler_stats = asking("stats", plain "stats")

---What happened in this worker: the scheduler's counts, and those of resty.lapse.Stats.
---@return table<string, any>? stats or nil, message, code
---@return string? message
---@return string? code
function lapse.stats()
    local w = this
    if not w then
        return absent "stats"
    end
    local stats, message, code = scheduler_stats()
    if not stats then
        return nil, message, code
    end
    stats.inflight = w.live
    stats.launched = w.launched
    stats.lost_launches = w.lost
    stats.drivers = w.generation
    stats.adopted = w.list and w.list.adopted or 0
    stats.handed_over = w.list and w.list.handed_over or 0
    return stats
end

-- A callback asks whether it still holds its order.
local holds = core.order.holds
function core.order.holds(order)
    local ticket, message, code = holds(order)
    if type(ticket) ~= "number" then
        return ticket, message, code
    end
    return ask.answer(this, "order:holds()", ticket)
end

---Nothing starts in this worker any more, and what is pending in memory is handed over. nginx's
---signals do so by themselves, but for TERM to a single worker: call it in exit_worker_by_lua* for
---that.
---@return true? left or nil, message, code
---@return string? message
---@return string? code
function lapse.leave()
    local w = this
    if not w then
        return absent "leave"
    end
    worker.leave(w)
    wake(w)
    return true
end

return lapse
