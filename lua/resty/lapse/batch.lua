-- batch.lua - how many orders a worker claims at once from a durable store.
--
-- It begins with one. Each time that all of them have begun at once it claims twice as many; when
-- that took its time, half as many: so that a burst needs few looks at the store, and few orders
-- wait for a busy worker while another one is idle.

local core = require "lapse.core"

local want = core.loop.want
local floor, max, min = math.floor, math.max, math.min

local MOST = 32       -- orders
local AT_ONCE = 0.004 -- seconds

local batch = {}

-- The next look is for as many as there is room for callbacks, at most.
function batch.want(w, room)
    want(w.scheduler, max(1, min(w.batch, room)))
end

-- All that was claimed has begun, or there was nothing to claim.
function batch.ended(w)
    local begun = w.batch_begun
    if begun == 0 then
        return
    end
    w.batch_begun = 0
    if w.scheduler:now() - w.batch_began > AT_ONCE then
        w.batch = max(1, floor(w.batch / 2))
    else
        w.batch = min(begun < w.batch and begun or 2 * begun, MOST)
    end
end

-- An order has begun that was claimed.
function batch.begun(w)
    if w.batch_begun == 0 then
        w.batch_began = w.scheduler:now()
    end
    w.batch_begun = w.batch_begun + 1
    if w.batch_begun >= w.batch then
        batch.ended(w)
    end
end

-- Nothing was due for a while.
function batch.forget(w)
    w.batch = 1
end

return batch
