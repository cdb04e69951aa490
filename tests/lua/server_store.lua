-- What holds of every store on a server from Lua, and the handlers that it shares with Python:
-- for redis_spec.lua, postgresql_spec.lua and rabbitmq_spec.lua.

local assert = require "luassert"
local lapse = require "lapse"
local support = require "support"

local here = debug.getinfo(1, "S").source:match "^@(.*)/[^/]*$" or "."
-- The Python module lies beside the Lua ones.
local build = (os.getenv "LUA_CPATH" or ""):match "^([^;]*)/lua/[^/;]*/%?%.so"

local function read(command)
    local pipe = assert(io.popen(command))
    local line = pipe:read "*l"
    pipe:close()
    return line
end

-- `b`: busted's functions, which only the file that it runs is given. Of the store: `name`;
-- `server`, its script in tests/servers; `scheme`, unless it is called as that; `apart`, the option
-- that keeps places on one server apart; `worker`, more options for another process on the same
-- place; `ticket`, that it keeps its orders in a file beside the server; `blind`, that it can say
-- nothing of an order that is pending.
return function(b, store)
    local describe, it, setup, teardown = b.describe, b.it, b.setup, b.teardown
    local before_each, after_each = b.before_each, b.after_each
    local script = here .. "/../servers/" .. store.server

    describe("a store in " .. store.name, function()
        local folder, base, url, s
        local places = 0

        setup(function()
            folder = read "mktemp -d"
            local self = assert(io.open "/proc/self/stat") -- The server ends with this process.
            base = assert(read(("%s start %s/server %d"):format(script, folder, self:read "*n")))
            self:close()
        end)

        teardown(function()
            os.execute(("%s stop %s/server; rm -rf %s"):format(script, folder, folder))
        end)

        before_each(function()
            places = places + 1
            url = ("%s?%s=lua%d"):format(base, store.apart, places)
            if store.ticket then
                local file = ("sqlite:///%s/%d.db"):format(folder, places)
                url = url .. "&ticket=" .. file:gsub("[:/]", { [":"] = "%3A", ["/"] = "%2F" })
            end
            s = assert(lapse.new(url))
        end)

        after_each(function()
            s:close(10)
        end)

        local function run(source)
            local text, status = support.run_script(
                ("local lapse = require 'lapse'\nlocal url = %q\n"):format(url) .. source)
            assert.are.equal(0, status, text)
            return text
        end

        local ids = { "130775545883395173", "130775545883395174", "a b", "{x}", "'\\", "\1\255" }
        local bytes = {}
        for i = 0, 255 do
            bytes[#bytes + 1] = string.char(i)
        end
        local payload = table.concat(bytes)

        it("delivers ids and payloads as they are", function()
            local wanted, seen, count = {}, {}, 0
            for _, id in ipairs(ids) do
                assert(s:put { id = id, queue = "q", delay = 0.01, payload = payload })
                wanted[id] = payload
            end
            s:handle("q", function(id, order)
                seen[id] = order.payload
                count = count + 1
                if count == #ids then
                    s:stop()
                end
            end)
            assert(s:run())
            assert.are.same(wanted, seen)
        end)

        it("says of an order what it was given", function()
            if store.blind then
                assert(s:put { id = "o", queue = "q", delay = 60 })
                local none, err = s:cancel "o"
                assert.is_nil(none)
                assert.is_truthy(tostring(err):find("ticket", 1, true), tostring(err))
                return
            end
            for _, id in ipairs(ids) do
                assert(s:put { id = id, queue = "q", delay = 60, payload = payload })
                assert.are.equal(payload, s:get(id).payload)
                assert.are.equal(id, s:get(id).id)
            end
            assert.is_true(s:cancel(ids[1]))
            assert.are.equal("pending", s:get(ids[2]).state)
        end)

        it("runs what another process has placed", function()
            run [[
                local s = assert(lapse.new(url))
                for i = 1, 10 do
                    assert(s:put { id = "o" .. i, queue = "close", payload = "p" .. i })
                end
                os.exit(0, false) -- nothing is closed
            ]]
            local seen, count = {}, 0
            s:handle("close", function(id, order)
                seen[id] = order.payload
                count = count + 1
                if count == 10 then
                    s:stop()
                end
            end)
            assert(s:run())
            assert.are.equal("p7", seen.o7)
        end)

        it("retries, rejects and requeues", function()
            local attempts = 0
            s:handle("close", function(id, order)
                attempts = order.attempt
                if id == "again" and order.attempt == 1 then
                    return lapse.retry(0)
                end
                if id == "hopeless" then
                    return lapse.reject "no stock"
                end
                if id == "again" then
                    s:stop()
                end
            end)
            assert(s:put { id = "hopeless", queue = "close" })
            assert(s:put { id = "again", queue = "close", delay = 0.01 })
            assert(s:run())
            assert.are.equal(2, attempts)
            s:close(10)
            s = assert(lapse.new(url))
            for info in s:each "dead" do
                assert.are.equal("hopeless", info.id)
                assert.are.equal("no stock", info.error)
            end
            assert(s:requeue("hopeless", 60))
            if not store.blind then
                assert.are.equal("pending", s:get("hopeless").state)
            end
        end)

        it("has its orders closed by a worker in Python", function()
            assert.is_truthy(build)
            local finish = support.start_script(("local pipe = io.popen(%q)\n"):format(
                ("PYTHONPATH=%s/python python3 -B -c '%s' '%s'"):format(build, [[
import lapse, sys, threading
ran = threading.Event()
s = lapse.Scheduler(sys.argv[1])
@s.handler("close_unpaid")
def close_unpaid(order):
    print(order, order.payload, order.attempt, flush=True)
    ran.set()
assert ran.wait(60)
s.close()
]], url .. store.worker)) .. "io.write(pipe:read '*a')")
            local made = assert(s:put {
                id = "OID00000010", queue = "close_unpaid", payload = "\0\255", delay = 0.2,
            })
            local text, status = finish()
            assert.are.equal(0, status)
            -- What of the test's server loses orders is warned of.
            assert.is_truthy(text:find("OID00000010 b'\\x00\\xff' 1\n", 1, true), text)
            assert.is_true(made > 0)
            assert.is_nil(s:get "OID00000010")
        end)

        it("does not show a password", function()
            local scheme = store.scheme or store.server
            local none, err = lapse.new(scheme .. "://shop:s3cret@127.0.0.1:1/0")
            assert.is_nil(none)
            assert.is_nil(tostring(err):find("s3cret", 1, true))
        end)
    end)
end
