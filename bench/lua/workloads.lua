-- workloads.lua - what a peer is made to do, and what is measured.
--
-- Ids, delays and all tables of the workload itself are made before a batch's clock starts.

local measure = require "measure"
local cpu = measure.cpu

local workloads = {}

local HALF_HOUR, SPREAD = 1800, 60

local function never(id)
    error(tostring(id) .. " ran long before its time")
end

local function delays_of(n, random)
    local delays = {}
    for i = 1, n do
        delays[i] = HALF_HOUR + SPREAD * random()
    end
    return delays
end

-- CPU seconds to schedule them all, to be run long after this process has ended.
local function fill(peer, count, random)
    local spent = 0
    measure.batches(count, nil, function(ids, _, n)
        local delays = delays_of(n, random)
        local begun = cpu()
        peer.schedule(ids, delays, n)
        peer.turn()
        spent = spent + cpu() - begun
    end)
    return spent
end

-- Schedule `count` orders: time, and memory while they are pending.
function workloads.const(kind, count, random)
    local peer = kind.open(never)
    local held, empty = measure.held_bytes(), measure.collection_ms()
    local spent = fill(peer, count, random)
    return {
        { "schedule_ns", spent / count * 1e9 },
        { "bytes", (measure.held_bytes() - held) / count },
        { "gc_ms", measure.collection_ms() - empty },
    }
end

-- As const; then 90 % are cancelled by their ids, in random order.
function workloads.cancel(kind, count, random)
    local most = math.max(1, math.floor(count * 0.9))
    local numbers = measure.chosen(count, most, random)
    local peer = kind.open(never)
    fill(peer, count, random)
    local spent = 0
    measure.batches(most, numbers, function(ids, first, n)
        if kind.bare then
            for i = 1, n do
                ids[i] = numbers[first + i - 1]
            end
        end
        local begun = cpu()
        peer.cancel(ids, n)
        peer.turn()
        spent = spent + cpu() - begun
    end)
    return { { "cancel_ns", spent / most * 1e9 } }
end

-- Seconds that pass while `count` orders are scheduled, and more: a batch is tried.
local function ample_time(peer, count, random)
    local now = workloads.now
    local ids = {}
    for i = 1, measure.BATCH do
        ids[i] = "tried" .. i
    end
    local begun = now()
    peer.schedule(ids, delays_of(measure.BATCH, random), measure.BATCH)
    peer.turn()
    return 0.5 + math.max((now() - begun) / measure.BATCH * 8, 15e-6) * count
end

-- `count` orders that are due at one moment, after all were scheduled: CPU time from the first
-- callback to the last.
function workloads.fire(kind, count, random)
    local now = workloads.now
    local ran, first, last = 0, nil, nil
    local peer
    peer = kind.open(function()
        ran = ran + 1
        if ran == 1 then
            first = cpu()
        elseif ran == count then
            last = cpu()
            peer.stop()
        end
    end)
    local at = now() + ample_time(peer, count, random)
    measure.batches(count, nil, function(ids, _, n)
        local delay, delays = at - now(), {}
        for i = 1, n do
            delays[i] = delay
        end
        peer.schedule(ids, delays, n)
        peer.turn()
    end)
    assert(ran == 0, "scheduling took too long")
    peer.run()
    assert(ran == count, "not all ran")
    return { { "fire_ns", (last - first) / (count - 1) * 1e9 } }
end

-- `count` orders due at random moments within two seconds, in real time.
function workloads.late(kind, count, random)
    local now = workloads.now
    local due, late, peer = {}, {}, nil
    peer = kind.open(function(id)
        late[#late + 1] = (now() - due[measure.number_of(id)]) * 1000
        if #late == count then
            peer.stop()
        end
    end)
    local ids, delays = {}, {}
    for i = 1, count do
        ids[1], delays[1] = measure.id_of(i), 0.05 + 2 * random()
        due[i] = now() + delays[1]
        peer.schedule(ids, delays, 1)
    end
    local begun = cpu()
    peer.run()
    local spent = cpu() - begun
    table.sort(late)
    local early = 0
    while early < count and late[early + 1] < 0 do
        early = early + 1
    end
    return {
        { "early", early },
        { "min_ms", late[1] },
        { "p50_ms", measure.percentile(late, 0.5) },
        { "p99_ms", measure.percentile(late, 0.99) },
        { "max_ms", late[count] },
        { "cpu_ms", spent * 1000 },
    }
end

-- Seconds that pass, for all peers by the same clock: that of lapse.
function workloads.now()
    return require("lapse").now()
end

-- The result as JSON. A workload may be named with where it runs: `jit-const`.
function workloads.run(name, kind, workload, count, seed)
    local run = assert(workloads[workload:match "[^-]*$"], "no such workload")
    local figures = run(kind, count, measure.random(seed * 7919 + 1))
    local result = { { "peer", name }, { "workload", workload }, { "n", count } }
    for _, figure in ipairs(figures) do
        result[#result + 1] = figure
    end
    return measure.json(result)
end

return workloads
