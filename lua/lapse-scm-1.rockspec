-- The rock of the current sources: luarocks make lua/lapse-scm-1.rockspec
-- A release's rockspec is made from this one with the version of lapse.h.
rockspec_format = "3.0"
package = "lapse"
version = "scm-1"
source = { url = "." }
description = {
  summary = "Run a callback when an order's time is up, unless it was cancelled",
  license = "MIT",
}
supported_platforms = { "linux" }
dependencies = { "lua >= 5.1, < 5.5" }
build = {
  type = "command",
  build_command = "cmake -S . -B build/rock"
    .. " -DLAPSE_LUA=ON -DLAPSE_PYTHON=OFF -DLAPSE_TOOL=OFF -DLAPSE_LUA_INCLUDE_DIR=$(LUA_INCDIR)"
    .. " -DLAPSE_LUA_MODULE_DIR=$(LUADIR) -DLAPSE_LUA_CMODULE_DIR=$(LIBDIR)"
    .. " && cmake --build build/rock --target lua_modules",
  install_command = "cmake --install build/rock --component lua",
}
