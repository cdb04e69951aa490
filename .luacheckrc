-- What luacheck may take for granted.
std = "min" -- what 5.1, LuaJIT and 5.4 share
max_line_length = 100
files["lua/resty"] = { std = "ngx_lua" }
files["examples/lua/openresty"] = { std = "ngx_lua" }
files["bench/openresty"] = { std = "ngx_lua", read_globals = { "peer", "workload", "count", "seed" } }
files["tests"] = { std = "min+busted" }
exclude_files = { "lua/lapse/meta" }
