-- Loading: the right build for each Lua, and a clear word about the wrong one.

local lapse = require "lapse"
local support = require "support"

local THIS, OTHER = "5.1", "5.4"
if _VERSION == "Lua 5.4" then
    THIS, OTHER = OTHER, THIS
end

-- Where the build for this Lua lies, with the other beside it.
local function build_folder()
    for template in package.cpath:gmatch "[^;]+" do
        local folder = template:match("^(.*/lua/)" .. THIS:gsub("%.", "%%.") .. "/%?%.so$")
        if folder then
            return folder
        end
    end
end

describe("the module", function()
    it("names its version", function()
        assert.is_truthy(lapse.version:find "^%d+%.%d+%.%d+$")
    end)

    it("P-49 of the right build is loaded", function()
        local core = require "lapse.core"
        assert.is_truthy(core.built_for:find("Lua " .. THIS, 1, true))
    end)

    it("P-49 of another Lua's build says so when it is loaded", function()
        local folder = assert(build_folder(), "not run from a build folder")
        local text, status = support.run_script(([[
            package.cpath = %q
            print(pcall(require, "lapse"))
            print(package.loadlib(%q, "luaopen_lapse_core"))
        ]]):format(folder .. OTHER .. "/?.so", folder .. OTHER .. "/lapse/core.so"))
        assert.are.equal(0, status)
        local this = support.this_lua
        assert.is_truthy(text:find(("lapse/core.so is built for Lua %s"):format(OTHER), 1, true))
        assert.is_truthy(text:find(("but this is %s: put"):format(this), 1, true))
        assert.is_truthy(text:find "\nnil\t[^\n]*undefined symbol")
    end)

    it("P-49 that is not there at all says what require says", function()
        local text = support.run_script [[
            package.cpath = "/nonexistent/?.so"
            print(pcall(require, "lapse"))
        ]]
        assert.is_truthy(text:find("module 'lapse.core' not found", 1, true))
    end)

    it("P-49 P-50 shows nothing but its entry, and brings no Lua of its own", function()
        local folder = assert(build_folder(), "not run from a build folder")
        local function read(command)
            local pipe = assert(io.popen(command .. " " .. folder .. THIS .. "/lapse/core.so"))
            local text = pipe:read "*a"
            pipe:close()
            return text
        end
        local shown = {}
        for name in read("nm -D --defined-only"):gmatch "(%S+)\n" do
            shown[#shown + 1] = name
        end
        assert.are.same({ "luaopen_lapse_core" }, shown)
        local needed = read "readelf -d"
        assert.is_truthy(needed:find("NEEDED", 1, true))
        assert.is_nil(needed:find "NEEDED[^\n]*lua")
    end)

    it("P-50 does nothing when it is loaded, and keeps nothing between states", function()
        local text, status = support.run_script [[
            -- Timers and the like, and threads.
            local function held()
                local pipe = io.popen "cd /proc/$PPID && { ls -l fd | grep anon_inode; ls task; }"
                local text = pipe:read "*a"
                pipe:close()
                return text
            end
            local before = held()
            local lapse = require "lapse"
            assert(held() == before)
            lapse.fd()
            assert(held() ~= before)
            package.loaded["lapse"], package.loaded["lapse.loop"] = nil, nil
            package.loaded["lapse.core"] = nil
            local other = require "lapse"
            assert(lapse.schedule("x", 0, print))
            assert(other.next() == nil)
            assert(other.schedule("x", 60, print))
            lapse.stop()
            assert(other.cancel "x")
            print(pcall(other.new().schedule, lapse.new(), "x", 1, print))
        ]]
        assert.is_truthy(text:find("call it with a colon, on a scheduler", 1, true), text)
        assert.are.equal(0, status)
    end)
end)
