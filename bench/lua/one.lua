-- one.lua - one process, one peer, one workload, one size: prints one JSON line.
--
--     lua5.4 bench/lua/one.lua --list
--     lua5.4 bench/lua/one.lua luv const 100000 [SEED]

local folder = (arg and arg[0] or ""):match "^(.*/)[^/]*$" or "./"
package.path = folder .. "?.lua;" .. package.path

local peers = require "peers"
local workloads = require "workloads"

local ORDER = {
    "lapse", "lapse-heap", "lapse-closures", "lapse-many", "luv", "luv-bare", "cqueues", "copas",
}

if arg[1] == "--list" then
    for _, name in ipairs(ORDER) do
        local fine, version = pcall(peers[name].version)
        if fine then
            print(("%s\t%s\t%s"):format(name, table.concat(peers[name].groups, ","), version))
        else
            io.stderr:write(("without %s: not installed for %s\n"):format(name, _VERSION))
        end
    end
    os.exit(0)
end

-- In LuaJIT the suite names them `luv-jit` and `jit-const`.
local kind = assert(peers[(arg[1]:gsub("%-jit$", ""))], "no such peer")
print(workloads.run(arg[1], kind, arg[2], tonumber(arg[3]), tonumber(arg[4] or 1)))
io.stdout:flush()
os.exit(0, false) -- without freeing everything one by one
