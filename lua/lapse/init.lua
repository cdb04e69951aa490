-- lapse - run a callback when an order's time is up, unless it was cancelled.
--
--     local lapse = require "lapse"
--     lapse.schedule("OID00000010", 30 * 60, close_unpaid)   -- order created
--     lapse.cancel("OID00000010")                            -- order paid
--     lapse.run()
--
-- What holds for every function:
--
-- Units       Every time is a number of seconds, whole or not. Delays count from the call,
--             on a clock that the machine's sleep moves and its wall clock does not. Below
--             0 means 0; rounding is up: nothing is early. Instants (`at`, `due`) are
--             seconds since 1970-01-01 UTC.
-- Ids         Strings of 1 to 255 bytes without NUL, compared byte for byte.
-- Errors      A wrong argument raises: another type than asked for (also a number as an
--             id, or a string as a delay), an id that cannot be, a time that is NaN,
--             infinite or more than 100 years away. What the world can do to a correct
--             call is answered by nil, a message and a code: "Exists", "Full", "Closed",
--             "Timeout", "Unknown", "Stale", "Mixed", "InCallback", "BadUrl", "NoStore",
--             "Unsupported", "NoMemory", "System", "Offline", "BadStore", and "Unsure" when
--             it is not known whether it was done. Else nothing was changed.
-- Callbacks   are called as callback(order_id, order) by run and step only, on the thread
--             that called these, each in a coroutine of its own. Returning means done.
--             `return lapse.retry(delay)` asks for another attempt, `return
--             lapse.reject(reason)` makes it a dead letter. An error goes to on_error; then
--             the order is done, or tried again if it is a handler's. A callback must not
--             yield: that is such an error too. Everything here may be called in a callback,
--             but close of its own scheduler.
-- Handlers    An order brings its own callback, or is for the handler of its queue, which
--             has a policy: how often it is tried, after which delays, ...
-- Hooks       on_error, on_dead and log are called on the same thread, when the call that
--             had the news returns, and must not yield. An error in one goes to stderr.
-- Fork        In a child process a scheduler is empty and works, with its handlers and
--             hooks; the orders stay the parent's.
--
-- Numbers     Generations and fences have 16 digits, of which `..` and tostring show 14 in Lua
--             5.1 and LuaJIT. Use order.key, order.fence_text, or ("%d"):format(n).
--
-- The functions of the module itself use one scheduler of this Lua state, made when first
-- needed, which keeps its orders in memory. They make a new one after lapse.close(), and when
-- run has returned after lapse.stop() for the next schedule, put or handle: that one has the
-- hooks, handlers and paused queues, but none of the orders. What was still pending is in the
-- old one, which lapse.default_scheduler() returns until then, and never runs.

-- -- The C module -------------------------------------------------------------------------

local BUILT_FOR = "lapse%.core built for ([%w%. ]+)"

local function this_lua()
    local jit = rawget(_G, "jit")
    return jit and jit.version or _VERSION
end

-- Where require would find the C module; package.searchpath is not in Lua 5.1.
local function find_core()
    for template in package.cpath:gmatch "[^;]+" do
        local path = template:gsub("%?", "lapse/core")
        local file = io and io.open(path, "rb")
        if file then
            return path, file
        end
    end
end

-- Which Lua the C module on the path was built for, if that is not this one.
local function explain()
    local path, file = find_core()
    if not path then
        return nil
    end
    local built_for = file:read("*a"):match(BUILT_FOR)
    file:close()
    if built_for and not (built_for .. " "):find(_VERSION .. " ", 1, true) then
        return ("lapse: %s is built for %s, but this is %s: put the folder of the build for %s "
            .. "first in package.cpath"):format(path, built_for, this_lua(), _VERSION)
    end
end

local function load_core()
    local fine, core = pcall(require, "lapse.core")
    if not fine then
        error(explain() or core, 0)
    end
    return core
end

local core = load_core()
local loop = require "lapse.loop"

-- -- Types ----------------------------------------------------------------------------------

---An order as its callback or taker sees it. Read-only; readable also after it was settled.
---tostring() gives the id. renew counts from now, and by default for as long as the order was
---held at first; it answers nil, message, "Stale" when it is lost.
---@class lapse.Order
---@field id string
---@field queue string "" unless another was given
---@field payload string? opaque bytes, as they were given
---@field attempt integer 1 on the first delivery
---@field due number instant it was due
---@field late number seconds after `due` that it started; never negative
---@field fence integer grows with every claim of the id: `UPDATE ... WHERE fence < ?`
---@field fence_text string the same in decimal, for a statement that is put together
---@field generation integer what schedule returned for it
---@field key string id:generation in decimal, the same at every attempt: an idempotency key
---@field holds fun(self): boolean whether it still is the caller's: ask before a late write
---@field renew fun(self, lease: number?): true?, string?, string? hold it for another `lease`

---An order that was taken. It is held until one of its methods settles it, for the `lease` of
---the options: then it is delivered anew, and after five deliveries it is a dead letter. One
---that is forgotten is pending again when it is collected, or at its `<close>` in Lua 5.4.
---The methods return true; or nil, message, "Stale" when it is not held any more.
---@class lapse.Claim : lapse.Order
---@field done fun(self): true? finished
---@field retry fun(self, delay: number?, error: string?): true? again after `delay`, or a back-off
---@field reject fun(self, reason: string?): true? to the dead letters
---@field give_back fun(self): true? not tried: pending again, the attempt does not count

---What get and each tell about an order.
---@class lapse.Info
---@field id string
---@field queue string
---@field state "pending"|"running"|"done"|"dead"
---@field payload string?
---@field due number instant
---@field remaining number seconds until it is due; 0 when due, running or ended
---@field ended number? instant it was done or died
---@field generation integer
---@field key string id:generation, as that of the order
---@field attempt integer deliveries so far
---@field reason ("failed"|"rejected"|"expired"|"maxlen"|"lost")? why it is a dead letter
---@field error string? last error of a dead letter

---An order in full, for put and schedule_many.
---@class lapse.Spec
---@field id string
---@field delay number? seconds from now; 0 when neither this nor `at` is given
---@field at number? instant, instead of `delay`
---@field callback lapse.Callback? without one: for the queue's handler, or for take and poll
---@field queue string? at most 255 bytes without NUL; "" by default
---@field payload string? at most 16 MiB
---@field replace boolean? a pending order of this id gives way: its callback never starts

---What a callback returns to be run again, or to become a dead letter.
---@class lapse.Verdict

---How a queue's orders are delivered. 0 and what is left out is the default.
---@class lapse.Policy
---@field attempts integer? deliveries before an order that fails is a dead letter; 5 by default
---@field backoff number? seconds before the second attempt; 1
---@field backoff_max number? the longest; 3600
---@field backoff_percent integer? each is so many percent of the one before; 200
---@field jitter_percent integer? each is spread by so many percent; 20; below 0: none
---@field run_limit number? seconds after which a callback that still runs has lost its order; 3600
---@field expires number? an order that is later than this is a dead letter; never by default
---@field stuck_after number? seconds after which a callback that still runs is named in the log
---@field rate integer? orders started per second at most; no limit by default

---What happened since the scheduler was opened; times are seconds.
---@class lapse.Stats
---@field pending integer orders now, as running, kept and dead
---@field running integer
---@field kept integer finished, and remembered for `keep` seconds
---@field dead integer
---@field scheduled integer
---@field refused integer schedules that were: "Exists", "Full", ...
---@field replaced integer
---@field rescheduled integer
---@field cancelled integer
---@field done integer
---@field dead_total integer
---@field dead_dropped integer dead letters that made room for others
---@field dead_by table<string, integer> of dead_total, by reason
---@field requeued integer
---@field purged integer
---@field lost integer claims that ended without a settlement
---@field started integer deliveries
---@field failed integer
---@field retried integer
---@field rejected integer
---@field given_back integer
---@field stale integer settlements that came too late
---@field late_p50 number start less due, of the deliveries
---@field late_p99 number
---@field late_p999 number
---@field late_max number
---@field oldest_due number how long the oldest due order has waited
---@field poll_bound number how late polling may be; 0 in memory
---@field offline number for how long the store could not be reached; 0: it can be
---@field bytes integer memory of all orders
---@field longest_move integer index entries that one call has moved at most

---What happened on a queue; times are seconds.
---@class lapse.QueueStats
---@field queue string
---@field handled boolean it has a handler
---@field paused boolean
---@field pending integer orders now, as running and dead
---@field running integer
---@field dead integer
---@field started integer deliveries since the scheduler was opened
---@field done integer
---@field failed integer
---@field retried integer
---@field cancelled integer
---@field dead_total integer
---@field dead_by table<string, integer> of these, by reason
---@field oldest_due number how long its oldest due order has waited
---@field late_p50 number
---@field late_p99 number
---@field late_max number

---@alias lapse.Callback fun(order_id: string, order: lapse.Order): lapse.Verdict?
---@alias lapse.Fate "running"|"done"|"unknown"
---@alias lapse.OnError fun(order: lapse.Order, err: any, traceback: string?)
---@alias lapse.OnDead fun(dead: lapse.Info)
---@alias lapse.Log fun(level: "debug"|"info"|"warning"|"error", message: string)

---@class lapse.Options
---@field url string? "memory:" by default; "memory:?engine=heap", "memory:?tick=10ms", ...
---@field clock lapse.Clock? instead of the real one
---@field max_pending integer? pending and running orders at most; 0, the default: no limit
---@field overflow ("refuse"|"dead_letter_oldest")? what happens beyond it
---@field keep number? seconds that cancel and get remember a finished order; 0 by default
---@field max_dead integer? dead letters kept, the oldest are dropped; 10 000 by default
---@field lease number? seconds that take and poll hold an order for; 30 by default
---@field stuck_after number? seconds; a callback that runs longer is named in the log; 60
---@field on_error lapse.OnError? a callback failed
---@field on_dead lapse.OnDead? an order became a dead letter
---@field log lapse.Log?

---A clock that stands still until it is advanced: for tests with invented time.
---@class lapse.Clock
---@field advance fun(self, seconds: number): lapse.Clock move it and its wall clock forward
---@field now fun(self): number its reading
---@field set_wall fun(self, at: number): lapse.Clock step its wall clock to an instant

---@alias lapse.Why lapse.Fate|string|nil

-- luacheck: push no max line length
---What the functions of the module do for the default scheduler these do for this one.
---schedule_at takes an instant instead of a delay; put one order in full; schedule_many an
---array of these, and answers with an array of generations or codes ("Exists", "BadId", ...)
---and the number accepted: one bad order does not hold back the others. cancel_wait waits up
---to `timeout` seconds, by default without a limit, for a callback that runs to return. take
---waits likewise for an order without a callback that is due, of one queue or of any; poll
---does not wait and answers nil when none is due. handle registers the handler of a queue,
---"Mixed" if it was taken from; see lapse.handle. While a queue is paused none of its orders
---starts. requeue makes a dead letter a pending order again, at once unless there is a delay,
---and answers with its new generation, or "Unknown", "Exists"; purge deletes the dead letters
---of an id, one of its generations, or all, and answers how many. stats counts since the
---scheduler was opened; its times are in seconds. queue_stats does so for one queue, queues
---names all there are; metrics is all of it in Prometheus' text format. close waits up to
---`timeout` seconds, by default 0, and 5 for a durable store to take what was settled last.
---@class lapse.Scheduler
---@field schedule fun(self, order_id: string, delay: number, callback: lapse.Callback): integer?, string?, string?
---@field schedule_at fun(self, order_id: string, at: number, callback: lapse.Callback): integer?, string?, string?
---@field schedule_many fun(self, orders: lapse.Spec[]): (integer|string)[]?, integer|string, string?
---@field put fun(self, order: lapse.Spec): integer?, string?, string?
---@field cancel fun(self, order_id: string, generation: integer?): boolean?, lapse.Why, string?
---@field cancel_wait fun(self, order_id: string, timeout: number?, generation: integer?): boolean?, lapse.Why, string?
---@field reschedule fun(self, order_id: string, delay: number, generation: integer?): boolean?, lapse.Why, string?
---@field get fun(self, order_id: string): lapse.Info?, string?, string?
---@field take fun(self, queue: string?, timeout: number?): lapse.Claim?, string?, string?
---@field poll fun(self, queue: string?): lapse.Claim?, string?, string?
---@field stats fun(self): lapse.Stats?, string?, string?
---@field handle fun(self, queue: string?, handler: lapse.Callback?, policy: lapse.Policy?): true?, string?, string?
---@field pause fun(self, queue: string?): true?, string?, string?
---@field resume fun(self, queue: string?): true?, string?, string?
---@field requeue fun(self, order_id: string, delay: number?, generation: integer?): integer?, string?, string?
---@field purge fun(self, order_id: string?, generation: integer?): integer?, string?, string?
---@field queue_stats fun(self, queue: string?): lapse.QueueStats?, string?, string?
---@field queues fun(self): string[]?, string?, string?
---@field metrics fun(self): string?, string?, string?
---@field on_error fun(self, handler: lapse.OnError?)
---@field on_dead fun(self, handler: lapse.OnDead?)
---@field fd fun(self): integer?, string?, string?
---@field next fun(self): number?, string?, string?
---@field now fun(self): number?, string?, string?
---@field stop fun(self): true?, string?, string?
---@field close fun(self, timeout: number?): true?, string?, string?
---@field pollfd fun(self): integer as fd, for cqueues
---@field events fun(self): string "r", for cqueues
---@field timeout fun(self): number? as next, for cqueues
---@field package orders fun(self, state: string?): lapse.Info[]?, string?, string?
-- luacheck: pop
local Scheduler = core.methods

-- -- Schedulers -------------------------------------------------------------------------------

-- These raise at the place that called the caller.
local function check_max(max)
    if max == nil then
        return math.huge
    end
    if type(max) ~= "number" or max ~= max or max < 0 then
        error("lapse.step: max is a number of 0 or more, got " .. tostring(max), 3)
    end
    return max
end

local function check_dot(first, lapse, name)
    if first == lapse then
        error(("lapse.%s: call it with a dot: the module has functions, a scheduler has methods")
            :format(name), 3)
    end
end

local function check_scheduler(scheduler, name)
    if type(scheduler) ~= "userdata" then
        error(("lapse.%s: call it with a colon, on a scheduler; got %s"):format(name,
            type(scheduler)), 3)
    end
end

---Run the callbacks that are due now, in order of their time; never waits. What they
---schedule with no delay runs in the next step.
---@param max number? at most so many; no limit by default
---@return integer? ran how many; nil, message, "Closed" after stop
---@return string? message
---@return string? code
function Scheduler:step(max)
    check_scheduler(self, "step")
    max = check_max(max)
    return loop.step(self, max)
end

---Run callbacks until stop, also while nothing is pending: it waits, without using the CPU.
---With a manual clock use step: nobody could advance the clock while this waits.
---@return true? stopped or nil, message, code
---@return string? message
---@return string? code
function Scheduler:run()
    check_scheduler(self, "run")
    return loop.run(self)
end

local STATES = { pending = true, running = true, done = true, dead = true }

---Walk over the orders in one state, or over all, in no promised order: a snapshot of the
---time of the call. After stop the pending ones are exactly those that did not run.
---@param state ("pending"|"running"|"done"|"dead")?
---@return fun(): lapse.Info? iterator
function Scheduler:each(state)
    check_scheduler(self, "each")
    if state ~= nil and not STATES[state] then
        error(("lapse.each: the state is 'pending', 'running', 'done' or 'dead', got '%s'")
            :format(tostring(state)), 2)
    end
    local orders, message = self:orders(state)
    return (loop.iterate(orders, "lapse.each", message)) -- Not a tail call.
end

-- -- The module -------------------------------------------------------------------------------

local lapse = {}
core.teller[2] = lapse -- to tell lapse:schedule, with a colon, from lapse.schedule

---The version of the library: major.minor.patch.
---@type string
lapse.version = core.version

---Open a scheduler. It is closed by close, at its `<close>`, or when it is collected.
---Orders that are still pending then do not run.
---@type fun(url_or_options: string|lapse.Options|nil): lapse.Scheduler?, string?, string?
lapse.new = core.new

---Make a manual clock; its wall clock starts at 2026-01-01 00:00 UTC.
---@type fun(start_seconds: number?): lapse.Clock
lapse.manual_clock = core.manual_clock

---For a callback to return (or raise): run this order again after `delay` seconds; without
---one, after the policy's back-off. `error` says why, if it becomes a dead letter by that.
---@type fun(delay: number?, error: string?): lapse.Verdict
lapse.retry = core.retry

---For a callback to return (or raise): this order is hopeless, a dead letter.
---@type fun(reason: string?): lapse.Verdict
lapse.reject = core.reject

---Run `callback` when `delay` seconds have passed, unless the order is cancelled first.
---Returns the order's generation, which grows with every order; or nil, message, code:
---"Exists" (the pending order is untouched), "Full", "Closed", "NoMemory".
---@type fun(order_id: string, delay: number, callback: lapse.Callback): integer?, string?, string?
lapse.schedule = core.default.schedule

---Schedule an order in full: with a payload, for a queue, at an instant, ...
---@type fun(order: lapse.Spec): integer?, string?, string?
lapse.put = core.default.put

---Let `handler` run the orders of `queue` that bring no callback of their own, as `policy`
---says; it replaces the handler before it for what starts afterwards. nil removes it: the
---orders stay pending for the next. An order names its queue, or brings this very function as
---its callback, if that handles one queue only.
-- luacheck: push no max line length
---@type fun(queue: string?, handler: lapse.Callback?, policy: lapse.Policy?): true?, string?, string?
-- luacheck: pop
lapse.handle = core.default.handle

---The order was paid. Returns true: its callback has not started and never will. Or false
---and why not: "running" (no further attempt follows), "done" (within `keep`), "unknown".
---With a generation only that one is cancelled.
---@type fun(order_id: string, generation: integer?): boolean?, lapse.Why, string?
lapse.cancel = core.default.cancel

---Give a pending order a new delay from now; same callback and generation. Returns true; or
---false and why not, as cancel, and nothing is changed.
---@type fun(order_id: string, delay: number, generation: integer?): boolean?, lapse.Why, string?
lapse.reschedule = core.default.reschedule

---Look up an order; nil, message, "Unknown" if there is none.
---@type fun(order_id: string): lapse.Info?, string?, string?
lapse.get = core.default.get

---The descriptor for a poll loop, the same one for life: readable while step has something
---to do, and after stop until a step has answered "Closed". Never read or close it.
---@type fun(): integer?, string?, string?
lapse.fd = core.default.fd

---Seconds until step has something to do, 0 when it has; nil when nothing is pending and
---nothing is held: a callback that runs or an order that was taken is looked after, too.
---@type fun(): number?, string?, string?
lapse.next = core.default.next

---The reading of the clock that delays count on, in seconds: of the machine's time since it
---was started, its sleep included, or of a manual clock. For measuring how long things take.
---@type fun(): number?, string?, string?
lapse.now = core.default.now

---Nothing starts any more and schedule answers "Closed", until run has returned. Allowed in a
---callback.
---@type fun(): true?, string?, string?
lapse.stop = core.default.stop

---Close the scheduler behind these functions, with its orders, hooks and handlers; the next
---call makes a new one. Waits up to `timeout` seconds for what runs.
---@type fun(timeout: number?): true?, string?, string?
lapse.close = core.default.close

---Have errors of callbacks told to `handler(order, error, traceback)`, each once; nil: to
---stderr, a line each.
---@type fun(handler: lapse.OnError?)
lapse.on_error = core.default.on_error

---Have dead letters told to `handler(info)`; nil: to nobody.
---@type fun(handler: lapse.OnDead?)
lapse.on_dead = core.default.on_dead

---The scheduler behind these functions, for all that is not among them.
---@type fun(): lapse.Scheduler
lapse.default_scheduler = core.default.default

---Run what is due now; see Scheduler:step.
---@param max number?
---@return integer?, string?, string?
function lapse.step(max)
    check_dot(max, lapse, "step")
    max = check_max(max)
    return loop.step(core.default.default(), max)
end

---Run callbacks until lapse.stop(), also while nothing is pending; see Scheduler:run.
---@return true?, string?, string?
function lapse.run(...)
    check_dot((...), lapse, "run")
    return loop.run(core.default.default())
end

return lapse
