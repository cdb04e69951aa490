-- measure.lua - what the workloads measure with: ids, time, memory. Nothing here knows a peer.

local measure = { BATCH = 1024 }

local ID = "OID%017d" -- 20 bytes, as in bench/core

function measure.id_of(number)
    return ID:format(number)
end

function measure.number_of(id)
    return tonumber(id:sub(4))
end

-- Call body(ids, first, n) with the ids of 1 to `count` in batches, or of `numbers`. The table
-- is used again.
function measure.batches(count, numbers, body)
    local ids = {}
    for first = 1, count, measure.BATCH do
        local n = math.min(measure.BATCH, count - first + 1)
        for i = 1, n do
            local at = first + i - 1
            ids[i] = measure.id_of(numbers and numbers[at] or at)
        end
        body(ids, first, n)
    end
end

-- CPU seconds of this process: being preempted does not count.
measure.cpu = os.clock

-- The anonymous memory of this process, exactly, when all garbage is gone.
function measure.held_bytes()
    collectgarbage()
    collectgarbage()
    for line in io.lines "/proc/self/smaps_rollup" do
        local kilobytes = line:match "^Anonymous:%s*(%d+)"
        if kilobytes then
            return tonumber(kilobytes) * 1024
        end
    end
    error "/proc/self/smaps_rollup has no line Anonymous"
end

-- CPU milliseconds of a full collection by the collector, the least of three.
function measure.collection_ms()
    local least = math.huge
    for _ = 1, 3 do
        local begun = measure.cpu()
        collectgarbage()
        least = math.min(least, measure.cpu() - begun)
    end
    return least * 1000
end

-- Numbers that are the same in every Lua.
function measure.random(seed)
    return function()
        seed = (seed * 16807) % 2147483647
        return seed / 2147483647
    end
end

-- `most` of the numbers from 1 to `count`, in random order.
function measure.chosen(count, most, random)
    local numbers = {}
    for i = 1, count do
        numbers[i] = i
    end
    for i = count, 2, -1 do
        local j = 1 + math.floor(random() * i)
        numbers[i], numbers[j] = numbers[j], numbers[i]
    end
    for i = most + 1, count do
        numbers[i] = nil
    end
    return numbers
end

function measure.percentile(sorted, part)
    return sorted[math.max(1, math.ceil(#sorted * part))]
end

local function number(value)
    return (value % 1 == 0 and "%d" or "%.6g"):format(value)
end

-- {"peer": "lapse", ...} with the keys in this order.
function measure.json(fields)
    local parts = {}
    for i, field in ipairs(fields) do
        local name, value = field[1], field[2]
        local text = type(value) == "number" and number(value) or ('"%s"'):format(value)
        parts[i] = ('"%s": %s'):format(name, text)
    end
    return "{" .. table.concat(parts, ", ") .. "}"
end

return measure
