-- Dead letters of the RabbitMQ store from Lua, for each of the broker's reasons and of ours; and
-- with ticket= every answer, from two schedulers.
-- tiers: full

local assert = require "luassert"
local lapse = require "lapse"
local support = require "support"

local here = debug.getinfo(1, "S").source:match "^@(.*)/[^/]*$" or "."
local build = (os.getenv "LUA_CPATH" or ""):match "^([^;]*)/lua/[^/;]*/%?%.so"

local function read(command)
    local pipe = assert(io.popen(command))
    local line = pipe:read "*l"
    pipe:close()
    return line
end

describe("RabbitMQ", function()
    local folder, base, url
    local places = 0

    setup(function()
        folder = read "mktemp -d"
        local self = assert(io.open "/proc/self/stat") -- The server ends with this process.
        base = read(("%s/../servers/rabbitmq start %s/server %d"):format(
            here, folder, self:read "*n"))
        self:close()
    end)

    teardown(function()
        os.execute(("%s/../servers/rabbitmq stop %s/server; rm -rf %s"):format(
            here, folder, folder))
    end)

    before_each(function()
        places = places + 1
        url = ("%s?new=0s&prefix=lua%d"):format(base, places)
    end)

    local function dead_in(s)
        local found, ids = {}, {}
        for info in s:each "dead" do
            found[info.id] = info
            ids[#ids + 1] = info.id
        end
        table.sort(ids)
        return found, table.concat(ids, " ")
    end

    -- A worker for a queue, until so many have been seen.
    local function run(queue, count, ...)
        local s = assert(lapse.new(url))
        local seen = {}
        s:handle(queue, function(id, order)
            seen[#seen + 1] = id .. " " .. order.attempt .. " " .. (order.payload or "")
            if #seen == count then
                s:stop()
            end
        end, ...)
        assert(s:run())
        s:close(10)
        table.sort(seen)
        return seen
    end

    it("has its own dead letters listed and requeued", function()
        assert.is_truthy(build)
        local made = ("PYTHONPATH=%s/python %s %s/../python/rabbitmq_deaths.py '%s' 2>&1"):format(
            build, "/usr/bin/python3 -B", here, url)
        local finish = support.start_script(("io.write(io.popen(%q):read '*a')"):format(made))
        local said = finish()
        local s = assert(lapse.new(url))
        local found, ids = dead_in(s)
        assert.are.equal("delivery_limit expired maxlen rejected", ids, said)
        local reasons = {
            rejected = "rejected", expired = "expired", maxlen = "maxlen", delivery_limit = "lost",
        }
        for id, reason in pairs(reasons) do
            local info = found[id]
            assert.are.same({ reason, "q", "\0" .. id }, { info.reason, info.queue, info.payload })
            assert.is_truthy(info.error:find("RabbitMQ: " .. id .. " in ", 1, true), info.error)
            assert(s:requeue(id))
        end
        assert.are.equal("", select(2, dead_in(s)))
        s:close(10)
        assert.are.same({
            "delivery_limit 1 \0delivery_limit", "expired 1 \0expired", "maxlen 1 \0maxlen",
            "rejected 1 \0rejected",
        }, run("q", 4))
    end)

    it("has those of ours listed, requeued and purged", function()
        support.run_script(([[
            local lapse = require "lapse"
            local s = assert(lapse.new(%q))
            assert(s:put { id = "lost", queue = "lost" })
            s:handle("lost", function() os.exit(1, false) end, { attempts = 1 })
            s:run()
        ]]):format(url))
        local s
        local told = {}
        local function on_dead(info)
            told[#told + 1] = info.id .. " " .. info.reason
            if #told == 4 then
                s:stop()
            end
        end
        s = assert(lapse.new { url = url, on_error = support.nothing, on_dead = on_dead })
        s:handle("lost", support.nothing, { attempts = 1 })
        s:handle("q", function(id)
            if id == "rejected" then
                return lapse.reject "no such order"
            end
            error "no gateway"
        end, { attempts = 2, backoff = 0.01 })
        s:handle("late", support.nothing, { expires = 0.1 })
        s:pause "late"
        assert(s:put { id = "expired", queue = "late" })
        assert(s:put { id = "failed", queue = "q", payload = "p" })
        assert(s:put { id = "rejected", queue = "q" })
        local begun = s:now()
        s:handle("clock", function()
            if s:now() < begun + 0.2 then
                return lapse.retry(0.1)
            end
            s:resume "late"
        end, { attempts = 100 })
        assert(s:put { id = "clock", queue = "clock" })
        assert(s:run())
        table.sort(told)
        assert.are.same({
            "expired expired", "failed failed", "lost lost", "rejected rejected",
        }, told)
        s:close(10)

        s = assert(lapse.new(url))
        local found, ids = dead_in(s)
        assert.are.equal("expired failed lost rejected", ids)
        assert.are.equal(2, found.failed.attempt)
        assert.is_truthy(found.failed.error:find("no gateway", 1, true))
        assert.are.equal("no such order", found.rejected.error)
        assert.are.equal(1, s:purge "rejected")
        assert(s:requeue("failed", 0.1))
        assert(s:requeue "expired")
        assert(s:requeue "lost")
        assert.are.equal("", select(2, dead_in(s)))
        s:close(10)
        assert.are.same({ "failed 1 p" }, run("q", 1))
        assert.are.same({ "expired 1 " }, run("late", 1))
        assert.are.same({ "lost 1 " }, run("lost", 1))
    end)

    it("with a ticket answers exactly, whoever asks", function()
        local file = ("sqlite:///%s/orders.db?keep=1h"):format(folder)
        url = url .. "&ticket=" .. file:gsub("[:/?=]", function(c)
            return ("%%%02X"):format(c:byte())
        end)
        local a, b = assert(lapse.new(url)), assert(lapse.new(url))
        local made = assert(a:put { id = "o", queue = "q", delay = 60, payload = "\0" })
        assert.are.equal("Exists", select(3, b:put { id = "o", queue = "q" }))
        assert.are.equal("\0", b:get("o").payload)
        assert.is_true(b:reschedule("o", 3600))
        local newer = assert(b:put { id = "o", queue = "q", delay = 60, replace = true })
        assert.are.same({ false, "unknown" }, { a:cancel("o", made) })
        assert.is_true(a:cancel("o", newer))
        assert.are.same({ false, "done" }, { b:cancel "o" })
        assert(a:put { id = "sooner", queue = "q", delay = 3600 })
        local ran
        b:handle("q", function(id)
            ran = id
            b:stop()
        end)
        assert.is_true(a:reschedule("sooner", 0.2))
        assert(b:run())
        assert.are.equal("sooner", ran)
        a:close(10)
        b:close(10)
    end)
end)
