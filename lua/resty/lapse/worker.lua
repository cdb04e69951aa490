-- worker.lua - runs the due orders of one nginx worker.
--
-- Light threads of three kinds, each in an nginx timer:
--
--   driver    waits on a semaphore until the next order is due, then launches a runner. It calls
--             no callback, and another one takes its place now and then, as what a timer uses is
--             freed at its end only.
--   runner    claims one due order, launches the next runner if more are due, calls the callback,
--             settles. If the next runner has not started by then, the callback did not wait, and
--             this one goes on with the next order. Nothing is claimed before a runner runs: when
--             nginx drops its timer, for which there is no error, nothing is lost, and the driver
--             launches another.
--   watchdog  looks after them every second, and is what nginx calls first when the worker is to
--             end: a worker does not end as long as a driver waits.
--
-- On a durable store the driver waits on a relay (relay.lua) instead, and hands out answers, too.
-- There the worker claims orders when it looks for one and finds none, so it looks only while
-- another callback may begin (batch.lua).
--
-- Nothing here reads nginx's clock, which stands still while Lua code runs.

local core = require "lapse.core"
local loop = require "lapse.loop"
local ask = require "resty.lapse.ask"
local batch = require "resty.lapse.batch"
local relay = require "resty.lapse.relay"
local reload = require "resty.lapse.reload"
local new_tie = require "resty.lapse.tie"
local semaphore = require "ngx.semaphore"

local ngx = ngx
local exiting, sleep = ngx.worker.exiting, ngx.sleep
local timer_at, timer_every = ngx.timer.at, ngx.timer.every
local max, min, pairs, type, xpcall = math.max, math.min, pairs, type, xpcall
local traceback = debug.traceback

local begin, settle = core.loop.begin_apart, core.loop.settle_apart
local look = core.loop.look
local finish, see_to_stuck = core.loop.finish, core.loop.wait -- for no time when something is due
local next_due = core.methods.next
local verdict_of, verdict_returned = loop.verdict_of, loop.verdict_returned
local report, describe = loop.report, loop.describe

local DONE, FAIL = 0, 3       -- lapse_verdict of lapse.h
local LONGEST = 5             -- seconds that the driver waits at most
local SHORTEST = 0.001        -- less would be none: nginx counts milliseconds
local AGAIN = 0.25            -- seconds after which a launch that came to nothing is repeated
local LIFE = 1000             -- times that a driver wakes up before another takes its place
local ROW = 16                -- callbacks in a row before a look at the clock
local ROW_TIME = 0.001        -- seconds of callbacks in a row before nginx looks at its requests
local IN_VAIN = 8             -- runners in a row that found nothing, when something seemed due
local NO_ROOM = "%s, perhaps after a stack overflow" -- nor for on_throw
local ENDED = "the callback ended its timer, as ngx.exit() does"

local worker = {}

-- Have the driver look at once. Allowed in every phase.
local function wake(w)
    if w.semaphore and not w.posted then
        w.posted = true
        w.pause = 0
        w.semaphore:post(1)
    end
end

-- -- Settle -----------------------------------------------------------------------------------

local function ended(w, order, verdict, delay, reason)
    local overran, news = settle(w.scheduler, order, verdict, delay, reason)
    if overran then
        report(w.scheduler, order, loop.OVERRAN)
    end
    if news then
        finish(w.scheduler)
    end
end

local function failed(w, order, err, trace)
    local _, news = settle(w.scheduler, order, FAIL, nil, describe(err))
    report(w.scheduler, order, err, trace)
    if news then
        finish(w.scheduler)
    end
end

-- -- Runners ----------------------------------------------------------------------------------

local run

-- How many runners there may be now.
local function limit(w)
    return w.few or w.max_inflight
end

local function has_room(w)
    return w.live + w.launching < limit(w)
end

-- Launch a runner, unless there are enough. nginx may refuse or drop it: see `turn`.
local function launch(w)
    if not has_room(w) then
        return
    end
    w.launched = w.launched + 1
    if timer_at(0, run, w, w.epoch) then
        w.launching = w.launching + 1
    end
end

-- What was launched did not start: nginx has dropped it, for lack of timers or connections. For a
-- while no more are launched than are running.
local function lost(w)
    w.lost = w.lost + w.launching
    w.epoch = w.epoch + 1
    w.launching = 0
    w.few = max(1, w.live)
    w.more_at = w.scheduler:now() + 2 * AGAIN
end

-- Some time after that, see whether nginx allows more.
local function try_more(w)
    if w.few and w.scheduler:now() >= w.more_at then
        w.few = 2 * w.few
        if w.few >= w.max_inflight then
            w.few = nil
        end
    end
end

local function acknowledge(w, epoch)
    if epoch == w.epoch then
        w.launching = w.launching - 1
    end
    w.begun = w.begun + 1
    try_more(w)
end

-- Let the next look be for as many as may begin, where `ending` runners are about to end.
local function want_orders(w, ending)
    batch.want(w, limit(w) - w.live - w.launching + ending)
end

-- Whether the driver has to know that the next order is due in `left` seconds.
local function is_news(w, left)
    if w.place then
        return w.due -- The relay tells it when there is one.
    end
    return w.due or left and left < w.pause
end

-- Something began or ended: launch a runner for the next order, or have the driver wait for it.
local function go_on(w)
    if w.place and not has_room(w) then
        if w.due then
            wake(w)
        end
        return
    end
    if w.place then
        want_orders(w, 0)
    end
    local left = next_due(w.scheduler)
    if left == 0 then
        -- One that is on its way launches the next; but not one that nginx has dropped.
        if (w.launching == 0 or w.few) and w.in_vain < IN_VAIN then
            launch(w)
        end
    elseif is_news(w, left) then
        wake(w)
    end
end

-- An error with its traceback; a verdict, which may be raised too, stays as it is. Strings come
-- first, as after a stack overflow there is room for little.
local function on_throw(err)
    if type(err) == "string" then
        return { err, traceback(err, 2) }
    elseif verdict_of(err) ~= DONE then
        return err
    end
    return { err, traceback(describe(err), 2) }
end

local function called(callback, id, order)
    return verdict_returned(callback(id, order))
end

local function call(w, callback, id, order)
    local fine, verdict, delay, reason = xpcall(called, on_throw, callback, id, order)
    if fine then
        return ended(w, order, verdict, delay, reason)
    end
    local thrown = verdict
    verdict, delay, reason = verdict_of(thrown)
    if verdict ~= DONE then
        ended(w, order, verdict, delay, reason)
    elseif type(thrown) == "table" then
        failed(w, order, thrown[1], thrown[2])
    else
        failed(w, order, NO_ROOM:format(thrown))
    end
end

-- Run one order. True: other runners have begun meanwhile, as its callback waited.
local function run_order(w, callback, id, order)
    if w.inline_all or w.inline[order.queue] then
        call(w, callback, id, order)
        return false
    end
    go_on(w)
    local begun = w.begun
    call(w, callback, id, order)
    return w.begun ~= begun
end

-- Callbacks begin in a row. It ends when one has had to rest.
local function begin_row(w)
    w.row = 0
    w.row_began = w.scheduler:now()
    w.must_rest = false
end

-- One more callback has run: is it nginx's turn?
local function count_in_row(w)
    w.row = w.row + 1
    if w.row % ROW == 0 and w.scheduler:now() - w.row_began >= ROW_TIME then
        w.must_rest = true
    end
end

-- nginx runs timers that are due, new ones too, before it looks at its requests. So a pause is
-- of a millisecond: one of none would be such a timer.
local function rest(w)
    w.must_rest = false
    sleep(SHORTEST)
    begin_row(w)
end

-- The next order that is due; claimed already, on a durable store.
local function begin_next(w)
    if not w.place then
        return begin(w.scheduler)
    end
    want_orders(w, 1)
    local callback, id, order = begin(w.scheduler)
    if callback then
        batch.begun(w)
    else
        batch.ended(w)
    end
    return callback, id, order
end

-- Run one order after the other until one has waited, or the row is long enough.
local function run_orders(w, runner)
    local ran, waited = 0, false
    while not waited and not w.must_rest and not w.left do
        local callback, id, order = begin_next(w)
        if not callback then
            break
        end
        runner.order = order
        if ran > 0 then
            ngx.ctx = {} -- Of one callback only.
        end
        waited = run_order(w, callback, id, order)
        runner.order = nil
        ran = ran + 1
        count_in_row(w)
    end
    w.in_vain = ran > 0 and 0 or w.in_vain + 1 -- Such as for lack of memory: the driver goes on.
end

function run(_, w, epoch)
    acknowledge(w, epoch)
    while w.must_rest do
        rest(w)
    end
    if w.left then
        return
    end
    local runner = { tie = new_tie() }
    w.runners[runner] = true
    w.live = w.live + 1
    run_orders(w, runner)
    w.runners[runner] = nil
    w.live = w.live - 1
    if exiting() then
        worker.leave(w)
    else
        go_on(w)
    end
end

-- The runners whose timers have ended before them.
local function find_ended(w)
    local found = {}
    for runner in pairs(w.runners) do
        if runner.tie:ended() then
            found[#found + 1] = runner
        end
    end
    return found
end

local function reap(w)
    for _, runner in pairs(find_ended(w)) do
        w.runners[runner] = nil
        w.live = w.live - 1
        if runner.order then
            failed(w, runner.order, ENDED)
        end
    end
end

-- -- The driver ---------------------------------------------------------------------------------

-- What was launched before this wait has started by now, or never will.
local function find_lost(w, waited)
    if waited and w.due and w.launching > 0 and w.launched == w.launched_before then
        lost(w)
    end
end

-- An order is due: the driver looks after what is launched for it.
local function look_after(w)
    w.due = true
    w.launched_before = w.launched
    return AGAIN
end

-- On a durable store: wait for the store, or for what was launched.
local function turn_durable(w, waited)
    if not ask.try_open(w) then
        return LONGEST
    end
    local answers = ask.collect(w)
    if w.left then
        w.due = false
        return LONGEST
    end
    find_lost(w, waited)
    try_more(w)
    if w.live >= limit(w) then
        see_to_stuck(w.scheduler)
        -- Woken for nothing: an order that nobody can start now.
        w.due = not waited and answers == 0 and w.full
        w.full = true
        return w.due and AGAIN or LONGEST
    end
    w.full = false
    if w.launching > 0 then
        return look_after(w)
    end
    want_orders(w, 0)
    look(w.scheduler)
    if next_due(w.scheduler) ~= 0 then
        batch.ended(w)
        if waited then
            batch.forget(w)
        end
        w.due = false
        return LONGEST
    end
    begin_row(w)
    launch(w)
    return look_after(w)
end

-- Do what there is to do now; returns how long to wait. `waited`: for as long as was said last.
local function turn(w, waited)
    if w.place then
        return turn_durable(w, waited)
    end
    local pause = LONGEST
    if w.list then
        pause = min(pause, reload.adopt(w.list, w.scheduler))
    end
    local left = next_due(w.scheduler)
    if left ~= 0 then
        w.due = false
        return max(SHORTEST, min(left or pause, pause))
    end
    find_lost(w, waited)
    try_more(w) -- Also when all that may run wait for long.
    if w.live >= limit(w) then
        see_to_stuck(w.scheduler)
    elseif w.launching == 0 then
        begin_row(w)
        launch(w)
    end
    return look_after(w)
end

-- From now on this is the driver; the one before it leaves.
local function take_over(w)
    local mine, message
    if w.place then
        mine, message = relay.connect(w)
    else
        mine, message = semaphore.new()
    end
    if not mine then
        error("lapse: the driver has nothing to wait on: " .. message, 0)
    end
    local before = w.semaphore
    w.driver = new_tie()
    w.semaphore, w.posted, w.pause = mine, false, 0
    w.generation = w.generation + 1
    if before then
        before:post(1)
    end
    return mine, w.generation
end

-- Whether a driver has work in this worker.
local function has_work(w)
    return not w.left or w.asked > 0
end

local drive

-- Until another one takes over.
local function keep_driving(w, mine, number)
    local woken, wakes, message = true, 0
    while w.generation == number do
        if exiting() and not w.left then
            worker.leave(w)
        end
        if not has_work(w) then
            break
        end
        local pause = turn(w, not woken)
        wakes = wakes + 1
        if wakes % LIFE == 0 then
            timer_at(0, drive, w)
        end
        w.pause = w.due and 0 or pause -- Runners have it look when nothing is due any more.
        woken, message = mine:wait(pause)
        if not woken and message ~= "timeout" and w.generation == number then
            error("lapse: the driver cannot wait: " .. message, 0)
        end
        if w.generation == number then
            w.posted, w.pause = false, 0
        end
    end
end

function drive(_, w)
    if not has_work(w) then
        return
    end
    local mine, number = take_over(w)
    keep_driving(w, mine, number)
    if mine.close then
        mine:close()
    end
end

-- Somebody waits for an answer of the store: the driver has to hear of it.
local function expect_answers(w)
    if w.left and (not w.driver or w.driver:ended()) then
        timer_at(0, drive, w) -- The last one has left before this was asked.
    elseif w.due and w.asked == 1 then
        wake(w)
    end
end

-- -- The watchdog -------------------------------------------------------------------------------

local function watch(_, w)
    if exiting() then
        worker.leave(w)
        if w.semaphore then
            w.semaphore:post(1)
            sleep(0.001) -- So that nginx sees the post before it waits for events.
        end
        return
    end
    if not w.driver or w.driver:ended() then
        timer_at(0, drive, w)
    end
    reap(w)
    if w.place and ask.try_open(w) then
        ask.collect(w) -- Should the driver have no connection.
    end
end

-- -- A worker's life ----------------------------------------------------------------------------

-- Nothing starts any more in this worker. Calls are answered as before, and orders stay where
-- they are: others have what was claimed and not started.
local function leave_durable(w)
    w.left = true
    if not w.opened then
        return
    end
    for queue, handler in pairs(w.handlers) do
        if handler then
            w.scheduler:pause(queue)
        end
    end
end

-- Nothing starts any more; pending orders are handed over. Again when what ran has ended.
function worker.leave(w)
    if w.place then
        return w.left or leave_durable(w)
    end
    if not w.left then
        w.left = true
        w.scheduler:stop()
    end
    w.staying = reload.hand_over(w.list, w.scheduler)
    if w.staying > 0 and not w.told then
        w.told = true
        ngx.log(ngx.NOTICE, "lapse: ", w.staying, " pending orders end with this worker")
    end
end

worker.wake = wake

-- Returns a worker; or nil and what nginx said. Of a durable store: `durable.place` is where its
-- relay is reached, `durable.patience` how long a call waits for it, `durable.stand_in` a scheduler
-- that stands in for it until it is open, `durable.told_closed` what the log has been told of that.
function worker.start(scheduler, options, list, durable)
    local w = {
        scheduler = scheduler,
        place = durable and durable.place,
        patience = durable and durable.patience,
        stand_in = durable and durable.stand_in,
        opened = not durable,
        changes = {},  -- to be made when it is open
        told_closed = durable and durable.told_closed, -- why it is not, as the log has it
        openers = {},  -- semaphores of those who wait for that
        waiters = {},  -- by ticket
        asked = 0,     -- of them
        spares = {},   -- semaphores
        expect_answers = expect_answers,
        full = false,  -- no other callback may begin, as of the last turn
        list = list,
        max_inflight = options.max_inflight,
        inline_all = options.inline,
        inline = {},   -- by queue
        handlers = {}, -- by queue
        runners = {},
        live = 0,      -- runners that run
        launching = 0, -- runners that have not started
        begun = 0,     -- runners that ever started
        row = 0,       -- callbacks since nginx looked at its requests
        row_began = 0,
        must_rest = false,
        batch = 1,     -- orders to claim at once
        batch_begun = 0, -- of those that were claimed last
        batch_began = 0, -- when the first of them did
        in_vain = 0,   -- runners in a row that found nothing
        epoch = 0,     -- of launches
        few = nil,     -- as many runners as nginx seems to allow
        more_at = 0,
        generation = 0, -- of the driver
        semaphore = nil, -- which it waits on
        posted = false,
        pause = 0,     -- seconds that it waits, 0 when it need not be woken
        due = false,   -- it looks after launches
        left = false,  -- the worker is to end
        launched = 0,
        launched_before = 0, -- when the driver last looked
        lost = 0,
    }
    local fine, message = timer_every(1, watch, w)
    if fine then
        fine, message = timer_at(0, drive, w)
    end
    if not fine then
        return nil, message
    end
    return w
end

return worker
