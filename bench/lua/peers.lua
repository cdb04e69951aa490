-- peers.lua - the peers: each schedules, cancels by order id and runs callbacks, as its users do.
--
-- A peer is given what a program has to add so that a callback is told its order's id and that an
-- order can be cancelled by it: a closure, and a table from id to handle. `luv-bare` goes without
-- both: one callback for all, and the handles in an array. A peer is a table with
--
--     groups     workloads it takes part in: "throughput", "many", "cancel", "late"
--     version    of the library; raises where it is not installed
--     open       -> a table with these functions:
--         schedule(ids, delays, n)    a batch; the callback gets the id
--         cancel(ids, n)              a batch; of `bare` ones, the numbers
--         turn()                      let the loop turn once, without waiting
--         run()                       run the loop until stop
--         stop()                      called in the last callback
--
-- Whatever is loaded for a peer is loaded by its functions: a process holds one peer only. Those
-- in nginx are in bench/openresty.

local peers = {}

-- -- lapse -----------------------------------------------------------------------------------

local function lapse_with(url)
    return {
        groups = { "throughput", "cancel", "late" },
        version = function()
            return "lapse " .. require("lapse").version
        end,
        open = function(callback, s)
            s = s or assert(require("lapse").new(url))
            return {
                schedule = function(ids, delays, n)
                    for i = 1, n do
                        s:schedule(ids[i], delays[i], callback)
                    end
                end,
                cancel = function(ids, n)
                    for i = 1, n do
                        assert(s:cancel(ids[i]))
                    end
                end,
                turn = function()
                    s:step()
                end,
                run = function()
                    assert(s:run())
                end,
                stop = function()
                    s:stop()
                end,
            }
        end,
    }
end

peers["lapse"] = lapse_with "memory:"
peers["lapse-heap"] = lapse_with "memory:?engine=heap"

-- As lapse, with a new function for every order, which keeps its id by itself.
peers["lapse-closures"] = {
    groups = { "throughput", "cancel" },
    version = peers.lapse.version,
    open = function(callback)
        local s = assert(require("lapse").new())
        local peer = peers.lapse.open(callback, s)
        function peer.schedule(ids, delays, n)
            for i = 1, n do
                local id = ids[i]
                s:schedule(id, delays[i], function()
                    callback(id)
                end)
            end
        end
        return peer
    end,
}

-- As lapse, 64 orders a call.
peers["lapse-many"] = {
    groups = { "many" },
    version = peers.lapse.version,
    open = function(callback)
        local s = assert(require("lapse").new())
        local orders = {}
        local peer = peers.lapse.open(callback, s)
        local function fit(count)
            for i = count + 1, #orders do
                orders[i] = nil
            end
            for i = #orders + 1, count do
                orders[i] = { callback = callback }
            end
        end
        function peer.schedule(ids, delays, n)
            for first = 0, n - 1, 64 do
                local count = math.min(64, n - first)
                fit(count)
                for i = 1, count do
                    orders[i].id, orders[i].delay = ids[first + i], delays[first + i]
                end
                local _, accepted = s:schedule_many(orders)
                assert(accepted == count)
            end
        end
        return peer
    end,
}

-- -- luv -------------------------------------------------------------------------------------

local function luv_version()
    return "libuv " .. require("luv").version_string() .. " (luv)"
end

local function close_timer(timer)
    timer:stop()
    timer:close()
end

-- A delay counts from the call only if the loop's time is up to date.
peers["luv"] = {
    groups = { "throughput", "cancel", "late" },
    version = luv_version,
    open = function(callback)
        local uv = require "luv"
        local ceil = math.ceil
        local timers = {}
        return {
            schedule = function(ids, delays, n)
                for i = 1, n do
                    local id, timer = ids[i], uv.new_timer()
                    uv.update_time()
                    timer:start(ceil(delays[i] * 1000), 0, function()
                        timers[id] = nil
                        timer:close()
                        callback(id)
                    end)
                    timers[id] = timer
                end
            end,
            cancel = function(ids, n)
                for i = 1, n do
                    local id = ids[i]
                    close_timer(timers[id])
                    timers[id] = nil
                end
            end,
            turn = function()
                uv.run "nowait"
            end,
            run = function()
                uv.run()
            end,
            stop = function()
                uv.stop()
            end,
        }
    end,
}

peers["luv-bare"] = {
    groups = { "throughput", "cancel" },
    version = luv_version,
    bare = true,
    open = function(callback)
        local uv = require "luv"
        local ceil = math.ceil
        local timers, last = {}, 0
        local peer = peers.luv.open(callback)
        function peer.schedule(_, delays, n)
            for i = 1, n do
                local timer = uv.new_timer()
                timer:start(ceil(delays[i] * 1000), 0, callback)
                timers[last + i] = timer
            end
            last = last + n
        end
        function peer.cancel(numbers, n)
            for i = 1, n do
                local number = numbers[i]
                close_timer(timers[number])
                timers[number] = nil
            end
        end
        return peer
    end,
}

-- -- cqueues: a coroutine that sleeps for each; nothing cancels one ------------------------------

peers["cqueues"] = {
    groups = { "throughput", "late" },
    version = function()
        return "cqueues " .. require("cqueues").VERSION
    end,
    open = function(callback)
        local cqueues = require "cqueues"
        local loop, sleep, stopped = cqueues.new(), require("cqueues").sleep, false
        return {
            schedule = function(ids, delays, n)
                for i = 1, n do
                    local id, delay = ids[i], delays[i]
                    loop:wrap(function()
                        sleep(delay)
                        callback(id)
                    end)
                end
            end,
            turn = function()
                assert(loop:step(0))
            end,
            run = function()
                repeat
                    assert(loop:step())
                until stopped
            end,
            stop = function()
                stopped = true
            end,
        }
    end,
}

-- -- copas: its timers, which are not in Debian's copas ------------------------------------------

peers["copas"] = {
    groups = { "throughput", "cancel", "late" },
    version = function()
        assert(require("copas").timer or require "copas.timer")
        return require("copas")._VERSION
    end,
    open = function(callback)
        local copas = require "copas"
        local timer = copas.timer or require "copas.timer"
        local timers, stopped = {}, false
        local function fire(_, id)
            timers[id] = nil
            callback(id)
        end
        return {
            schedule = function(ids, delays, n)
                for i = 1, n do
                    local id = ids[i]
                    timers[id] = timer.new { delay = delays[i], params = id, callback = fire }
                end
            end,
            cancel = function(ids, n)
                for i = 1, n do
                    local id = ids[i]
                    assert(timers[id]:cancel())
                    timers[id] = nil
                end
            end,
            turn = function()
                copas.step(0)
            end,
            run = function()
                repeat
                    copas.step()
                until stopped
            end,
            stop = function()
                stopped = true
            end,
        }
    end,
}

return peers
