-- The annotations that editors read say what there is: no more and no less.

local lapse = require "lapse"
local core = require "lapse.core"
local support = require "support"

-- The fields of each annotated class, and what the module's functions are said to be.
local function read_annotations()
    local path = assert(package.path:match "([^;]*/lua/)%?%.lua", "the source is not in the path")
    local found, functions, current, documented = {}, {}, nil, false
    for line in io.lines(path .. "lapse/init.lua") do
        local class, parent = line:match "^%-%-%-@class (%S+)%s*:?%s*(%S*)"
        local field = line:match "^%-%-%-@field package ([%w_]+)"
            or line:match "^%-%-%-@field ([%w_]+)"
        local method = line:match "^function Scheduler:([%w_]+)"
        local name = line:match "^lapse%.([%w_]+) =" or line:match "^function lapse%.([%w_]+)"
        if class then
            found[class] = { parent = found[parent] }
            current = class
        elseif field then
            found[current][field] = true
        elseif method then
            found["lapse.Scheduler"][method] = documented
        elseif name then
            functions[name] = documented
        end
        documented = line:match "^%-%-%-" and true
            or documented and line:match "^%-%- luacheck" ~= nil
    end
    return found, functions
end

local classes, functions = read_annotations()

local function sorted(set)
    local names = {}
    for name in pairs(set) do
        if name ~= "parent" then
            names[#names + 1] = name
        end
    end
    table.sort(names)
    return names
end

-- The annotated fields of a class that `value` lacks, of those that it always has.
local function lacking(class, value, optional)
    local found = {}
    for name in pairs(classes[class]) do
        if name ~= "parent" and not optional[name] and value[name] == nil then
            found[#found + 1] = name
        end
    end
    return found
end

describe("the annotations", function()
    it("name every function of the module", function()
        assert.are.same(sorted(lapse), sorted(functions))
        for name, documented in pairs(functions) do
            assert.is_true(documented, name)
        end
    end)

    it("name every method of a scheduler", function()
        assert.are.same(sorted(core.methods), sorted(classes["lapse.Scheduler"]))
    end)

    it("name what an order and a claim have", function()
        local s, at = support.invent()
        local seen
        s:put { id = "x", payload = "p", callback = function(_, order)
            seen = order
        end }
        at(0)
        assert.are.same({}, lacking("lapse.Order", seen, {}))
        s:put { id = "y", queue = "q", payload = "p" }
        local claim = s:poll "q"
        assert.are.same({}, lacking("lapse.Order", claim, {}))
        assert.are.same({}, lacking("lapse.Claim", claim, {}))
        assert.are.same(classes["lapse.Order"], classes["lapse.Claim"].parent)
    end)

    it("name what get, stats and queue_stats tell", function()
        local s, at = support.invent { on_error = support.nothing, keep = 60 }
        s:put { id = "x", payload = "p", callback = function()
            return lapse.reject "no"
        end }
        at(0)
        local info = s:get "x"
        info.ended = info.ended or true -- Of what is done.
        assert.are.same(sorted(classes["lapse.Info"]), sorted(info))
        assert.are.same(sorted(classes["lapse.Stats"]), sorted(s:stats()))
        assert.are.same(sorted(classes["lapse.QueueStats"]), sorted(s:queue_stats()))
    end)

    it("name what options, policies and orders in full may have", function()
        local s = support.invent()
        local function refused(call, fields, wrong)
            for name in pairs(fields) do
                local fine, err = pcall(call, { [name] = wrong })
                assert.is_false(fine, name)
                assert.is_nil(err:find "has no field", name)
            end
        end
        local handle = function(policy)
            return s:handle("q", support.nothing, policy)
        end
        local put = function(spec)
            return s:put(spec)
        end
        local odd = io.stdout -- the wrong type for all of them
        refused(lapse.new, classes["lapse.Options"], odd)
        refused(handle, classes["lapse.Policy"], odd)
        refused(put, classes["lapse.Spec"], odd)
    end)

    it("name what a clock has", function()
        assert.are.same({}, lacking("lapse.Clock", lapse.manual_clock(), {}))
    end)
end)
