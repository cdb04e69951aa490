-- fired.lua - what callbacks in the tests do: append a line to the file that the test reads.

local path = os.getenv "LAPSE_FIRED"

-- One write of a short line is not torn by those of other workers.
return function(...)
    local file = assert(io.open(path, "a"))
    file:write(table.concat({ ... }, " "), "\n")
    file:close()
end
