#!/bin/sh
# tier: full
# luacheck has nothing to say about the Lua files.
set -eu
cd "$(dirname "$0")/../.."
luacheck --quiet --no-color --no-cache lua tests examples bench
