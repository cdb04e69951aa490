-- measure.lua - one workload of bench/openresty, sent to an nginx of its own: one.py puts the
-- locals `peer`, `workload`, `count` and `seed` before it. Returns names and figures.
--
-- What is counted is the worker's CPU time, but lateness, which is in real time. Ids and delays are
-- made before the clock of a batch starts.

local ffi = require "ffi"
local lapse = require "resty.lapse"

ffi.cdef [[
typedef struct { long s, ns; } bench_time;
int clock_gettime(int clock, bench_time *time);
]]

local BATCH = 1024
local HALF_HOUR, SPREAD = 1800, 60
local PROCESS_CPU = 2

local time = ffi.new "bench_time"
local function cpu()
    ffi.C.clock_gettime(PROCESS_CPU, time)
    return tonumber(time.s) * 1e9 + tonumber(time.ns)
end

local now = lapse.now

-- Bytes that the worker has in memory, garbage aside.
local function held()
    collectgarbage()
    collectgarbage()
    local file = assert(io.open "/proc/self/smaps_rollup")
    local anonymous = file:read("*a"):match "Anonymous:%s*(%d+) kB"
    file:close()
    return tonumber(anonymous) * 1024
end

local peers = {}

function peers.lapse(callback)
    local schedule = lapse.schedule
    return function(id, delay)
        assert(schedule(id, delay, callback))
    end
end

peers["lapse-inline"] = function(callback)
    assert(lapse.handle("inline", callback, { inline = true }))
    return function(id, delay)
        assert(lapse.put { id = id, delay = delay, queue = "inline" })
    end
end

peers["lapse-cancel"] = peers.lapse

peers["ngx.timer"] = function(callback)
    local at = ngx.timer.at
    local function call(_, id)
        callback(id)
    end
    return function(id, delay)
        assert(at(delay, call, id))
    end
end

local function id_of(i)
    return ("order-%014d"):format(i)
end

local function long_delay()
    return HALF_HOUR + SPREAD * math.random()
end

-- Schedule them all; the CPU time that it took.
local function fill(schedule, delay_of)
    local spent = 0
    for from = 1, count, BATCH do
        local to = math.min(from + BATCH - 1, count)
        local ids, delays = {}, {}
        for i = from, to do
            ids[i], delays[i] = id_of(i), delay_of(i)
        end
        local start = cpu()
        for i = from, to do
            schedule(ids[i], delays[i])
        end
        spent = spent + cpu() - start
    end
    return spent
end

local function never(id)
    error(id .. " ran long before its time")
end

local function wait_until(holds)
    while not holds() do
        ngx.sleep(0.01)
    end
end

local workloads = {}

function workloads.const()
    local schedule = peers[peer](never)
    local before = held()
    local spent = fill(schedule, long_delay)
    return { schedule_ns = spent / count, bytes = (held() - before) / count }
end

function workloads.cancel()
    fill(peers[peer](never), long_delay)
    local order = {}
    for i = 1, count do
        local j = math.random(i)
        order[i] = order[j]
        order[j] = i
    end
    local spent = 0
    for from = 1, count, BATCH do
        local to = math.min(from + BATCH - 1, count)
        local ids = {}
        for i = from, to do
            ids[i] = id_of(order[i])
        end
        local start = cpu()
        for i = from, to do
            assert(lapse.cancel(ids[i]))
        end
        spent = spent + cpu() - start
    end
    return { cancel_ns = spent / count }
end

function workloads.fire()
    local ran, first, last = 0, nil, nil
    local schedule = peers[peer](function()
        ran = ran + 1
        if ran == 1 then
            first = cpu()
        elseif ran == count then
            last = cpu()
        end
    end)
    local due = now() + 0.5 + count * 3e-5
    fill(schedule, function()
        return due - now()
    end)
    assert(now() < due, "scheduling took longer than the delay")
    wait_until(function()
        return ran >= count
    end)
    return { fire_ns = (last - first) / count }
end

function workloads.late()
    local due, late = {}, {}
    local schedule = peers[peer](function(id)
        late[#late + 1] = now() - due[id]
    end)
    for i = 1, count do
        local id, delay = id_of(i), 0.05 + 1.2 * math.random()
        due[id] = now() + delay
        schedule(id, delay)
    end
    wait_until(function()
        return #late >= count
    end)
    table.sort(late)
    local early = 0
    for _, seconds in ipairs(late) do
        early = early + (seconds < 0 and 1 or 0)
    end
    local function at(share)
        return late[1 + math.floor(share * (count - 1))] * 1e3
    end
    return { early = early, min_ms = at(0), p50_ms = at(0.5), p99_ms = at(0.99), max_ms = at(1) }
end

-- What the location of the workload does at each request.
function workloads.request()
    package.loaded.on_request = function() end
    if peer == "none" then
        return {}
    end
    local schedule, cancels = peers[peer](never), peer == "lapse-cancel"
    fill(schedule, long_delay)
    package.loaded.on_request = function(id)
        schedule(id, HALF_HOUR)
        if cancels then
            assert(lapse.cancel(id))
        end
    end
    return {}
end

math.randomseed(seed)
ngx.sleep(0.02) -- nginx's clock is fresh afterwards, which is what its timers count from
local lines = {}
for name, value in pairs(workloads[workload]()) do
    lines[#lines + 1] = ("%s %.9g"):format(name, value)
end
return table.concat(lines, "\n")
