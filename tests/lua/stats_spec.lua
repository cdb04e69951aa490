-- Counts: of all orders, by queue, and as text for Prometheus.

local lapse = require "lapse"
local support = require "support"
local invent, nothing = support.invent, support.nothing

-- Every order accepted is in exactly one place.
local function check_books(s)
    local n = s:stats()
    assert.are.equal(n.scheduled,
        n.done + n.cancelled + n.replaced + n.dead_total + n.pending + n.running)
    return n
end

describe("stats", function()
    it("account for every order", function()
        local s, at = invent { max_pending = 4, keep = 1, on_error = nothing }
        s:handle("q", function(_, order)
            check_books(s)
            if order.id == "fails" then
                error "no"
            end
            return order.id == "rejected" and lapse.reject() or nil
        end, { attempts = 2 })
        for _, id in ipairs { "done", "fails", "rejected", "cancelled", "refused" } do
            s:put { id = id, queue = "q", delay = 1 }
        end
        s:cancel "cancelled"
        s:put { id = "done", queue = "q", delay = 1, replace = true }
        s:reschedule("done", 2)
        for second = 1, 5 do
            at(second)
            check_books(s)
        end
        s:requeue("rejected", 60)
        s:purge "fails"
        local n = check_books(s)
        assert.are.same({ 1, 0, 0 }, { n.pending, n.running, n.dead })
        assert.are.same({ 6, 1, 1, 1 }, { n.scheduled, n.refused, n.replaced, n.rescheduled })
        assert.are.same({ 1, 1, 2 }, { n.done, n.cancelled, n.dead_total })
        assert.are.same({ 4, 2, 1, 1 }, { n.started, n.failed, n.retried, n.rejected })
        assert.are.same({ 1, 1, 0, 0 }, { n.requeued, n.purged, n.lost, n.dead_dropped })
        assert.are.same({ failed = 1, rejected = 1, expired = 0, maxlen = 0, lost = 0 }, n.dead_by)
        assert.is_true(n.bytes > 0)
        assert.are.equal(0, n.poll_bound)
        assert.are.equal(0, n.offline)
    end)

    it("P-22 count what is pending exactly, also while a callback of the same tick runs", function()
        local s, at, clock = invent { max_pending = 20 }
        s:schedule("slow", 0.05, function()
            for i = 1, 10 do
                assert.is_true(s:cancel("n" .. i))
                assert.are.same({ 10 - i, 1 }, { s:stats().pending, s:stats().running })
            end
            clock:advance(1)
        end)
        for i = 1, 10 do
            s:schedule("n" .. i, 0.05, nothing)
        end
        assert.are.equal(1, at(0.05))
        assert.are.same({ 0, 0 }, { s:stats().pending, s:stats().running })
        local accepted = 0
        for i = 1, 21 do
            accepted = accepted + (s:schedule("m" .. i, 9, nothing) and 1 or 0)
        end
        assert.are.equal(20, accepted)
        for i = 1, 20 do
            assert.is_true(s:cancel("m" .. i))
        end
        assert.are.equal(0, check_books(s).pending)
        assert.is_true(s:close())
    end)

    it("P-22 hold through retries, losses, dead letters and their return", function()
        local s, at, clock = invent { max_pending = 50, on_error = nothing, lease = 1 }
        local seed = 20261130
        local function random(n)
            seed = (seed * 16807) % 2147483647
            return seed % n
        end
        s:handle("handled", function()
            local what = random(5)
            if what == 0 then
                error "no"
            elseif what == 1 then
                return lapse.retry(random(3))
            elseif what == 2 then
                return lapse.reject()
            elseif what == 3 then
                clock:advance(random(3))
            end
        end, { attempts = 3, backoff = 1, run_limit = 2, expires = 5 })
        local held, refused = {}, 0
        for step = 1, 3000 do
            local id, what = "o" .. random(80), random(9)
            if what < 4 then
                local queue = what < 2 and "handled" or "taken"
                if not s:put { id = id, queue = queue, delay = random(4) } then
                    refused = refused + 1
                end
            elseif what == 4 then
                s:cancel(id)
            elseif what == 5 then
                held[step % 3] = s:poll "taken" or false
            elseif what == 6 and held[step % 3] then
                held[step % 3]:retry(1)
            elseif what == 7 then
                s:requeue(id, 1)
            elseif what == 8 and random(5) == 0 then
                s:purge(id)
            end
            at(step / 3)
            local n = check_books(s)
            assert.is_true(n.pending + n.running <= 50)
        end
        local n = s:stats()
        for _, key in ipairs { "dead_total", "requeued", "purged", "lost", "retried", "stale" } do
            assert.is_true(n[key] > 0, key)
        end
        assert.is_true(refused > 0)
    end)
end)

describe("queue_stats", function()
    it("are those of one queue", function()
        local s, at = invent { on_error = nothing }
        s:handle("mail", function(id)
            if id == "bad" then
                error "no"
            end
        end, { attempts = 1 })
        s:put { id = "good", queue = "mail", delay = 1 }
        s:put { id = "bad", queue = "mail", delay = 1 }
        s:put { id = "later", queue = "mail", delay = 60 }
        s:put { id = "cancelled", queue = "mail", delay = 60 }
        s:put { id = "waits", queue = "sms", delay = 1 }
        s:cancel "cancelled"
        at(3)
        local mail, sms = s:queue_stats "mail", s:queue_stats "sms"
        assert.are.same({ "mail", true, false }, { mail.queue, mail.handled, mail.paused })
        assert.are.same({ 1, 0, 1 }, { mail.pending, mail.running, mail.dead })
        assert.are.same({ 2, 1, 1, 0 }, { mail.started, mail.done, mail.failed, mail.retried })
        assert.are.same({ 1, 1, 1 }, { mail.cancelled, mail.dead_total, mail.dead_by.failed })
        assert.is_true(mail.late_max >= 2 and mail.late_p50 >= 2 and mail.late_p99 < 2.2)
        assert.are.equal(0, mail.oldest_due)
        assert.are.same({ false, 1 }, { sms.handled, sms.pending })
        assert.is_true(sms.oldest_due >= 1.9 and sms.oldest_due <= 2)
        assert.are.equal("Unknown", select(3, s:queue_stats "fax"))
        assert.is_false(pcall(s.queue_stats, s, 5))
        local names = s:queues()
        table.sort(names)
        assert.are.same({ "", "mail", "sms" }, names)
        s:close()
        for _, call in ipairs { "queue_stats", "queues", "metrics" } do
            assert.are.equal("Closed", select(3, s[call](s, "mail")))
        end
    end)
end)

describe("metrics", function()
    it("are what stats say, as text", function()
        local s, at = invent()
        s:handle('a "quoted" queue', nothing)
        for i = 1, 5 do
            s:put { id = "o" .. i, queue = 'a "quoted" queue', delay = i }
        end
        s:schedule("x", 2, function()
            return lapse.reject()
        end)
        at(2)
        local text = s:metrics()
        assert.is_truthy(text:find('\nlapse_orders{state="pending"} 3\n', 1, true))
        assert.is_truthy(text:find('\nlapse_orders{state="dead"} 1\n', 1, true))
        assert.is_truthy(text:find('queue="a \\"quoted\\" queue"', 1, true))
        for line in text:gmatch "[^\n]+" do
            assert.is_truthy(line:find "^# HELP lapse_" or line:find "^# TYPE lapse_"
                or line:find "^lapse_[%w_]+[ {].*[%d%.]+$", line)
        end
        assert.are.equal("\n", text:sub(-1))
    end)
end)
