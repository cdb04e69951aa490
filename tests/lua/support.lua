-- support.lua - what the Lua tests share: invented time, a look at files, child processes.

local lapse = require "lapse"

local support = {}

support.is_luajit = rawget(_G, "jit") ~= nil
support.this_lua = support.is_luajit and rawget(_G, "jit").version or _VERSION

-- A scheduler on a manual clock. `at` sets the clock to that many seconds after the start
-- and runs what is due by then. An error in a callback, such as a failed assertion, is
-- raised by `at` unless the options have an on_error.
function support.invent(options)
    options = options or {}
    local first
    options.clock = lapse.manual_clock(1000)
    options.on_error = options.on_error or function(_, err)
        first = first or { err }
    end
    local scheduler = assert(lapse.new(options))
    local function at(seconds)
        local behind = 1000 + seconds - options.clock:now()
        if behind > 0 then
            options.clock:advance(behind)
        end
        local ran, message, code = scheduler:step()
        if first then
            error(first[1], 0)
        end
        return ran, message, code
    end
    return scheduler, at, options.clock
end

-- Collects what callbacks are called with: `seen` is both a callback and an array of ids.
function support.recorder()
    return setmetatable({}, {
        __call = function(seen, id)
            seen[#seen + 1] = id
        end,
    })
end

function support.nothing() end

-- Everything that has become garbage is gone.
function support.collect()
    for _ = 1, 4 do
        collectgarbage "collect"
    end
end

-- The command of this interpreter.
function support.interpreter()
    local i = 0
    while arg[i - 1] do
        i = i - 1
    end
    return arg[i]
end

local function write(source)
    local name = os.tmpname()
    local file = assert(io.open(name, "w"))
    file:write(source)
    file:close()
    return name
end

-- Start a script in a process of its own, with what stands before its command. Returns a
-- function that waits for its end and returns all that it wrote and how it ended.
function support.start_script(source, before)
    local name = write(source)
    local pipe = assert(io.popen(("%s %s %s 2>&1; echo \"exit $?\""):format(before or "",
        support.interpreter(), name)))
    return function()
        local output = pipe:read "*a"
        pipe:close()
        os.remove(name)
        local text, status = output:match "^(.*)exit (%d+)\n$"
        return text, tonumber(status)
    end
end

function support.run_script(source, before)
    return support.start_script(source, before)()
end

-- What is written to stderr while `body` runs.
function support.stderr_of(body)
    local kept, lines = io.stderr, {}
    io.stderr = { -- luacheck: ignore 122
        write = function(_, ...)
            lines[#lines + 1] = table.concat { ... }
        end,
    }
    local fine, err = pcall(body)
    io.stderr = kept -- luacheck: ignore 122
    assert(fine, err)
    return lines
end

return support
