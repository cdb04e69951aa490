#!/bin/sh
# The Lua module: from an installed prefix and from a rock, in each Lua. $1: the build folder.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
build=$(cd "$1" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# works <interpreter> <version> <prefix>: an order lapses with the module from there only.
works() {
    found=$(dirname "$(find "$3" -path "*/lua/$2/lapse/core.so")")
    (
        cd "$work"
        export LUA_PATH="$3/share/lua/$2/?.lua;$3/share/lua/$2/?/init.lua"
        LUA_CPATH="$(dirname "$found")/?.so" "$1" -e '
            local lapse = require "lapse"
            local closed
            assert(lapse.schedule("unpaid", 0.01, function(id) closed = id; lapse.stop() end))
            assert(lapse.schedule("paid", 60, print))
            assert(lapse.cancel("paid"))
            lapse.run()
            assert(closed == "unpaid")'
    )
    echo "ok: $1 with $3"
}

cmake --install "$build" --component lua --prefix "$work/prefix" >/dev/null
works lua5.4 5.4 "$work/prefix"
works lua5.1 5.1 "$work/prefix"
works luajit 5.1 "$work/prefix"

# From a copy: the rock builds inside the sources. That it builds is what counts here, not how fast
# the result is.
export CMAKE_BUILD_TYPE=Debug
mkdir "$work/tree"
cd "$root"
cp -R CMakeLists.txt cmake core tools bindings lua "$work/tree"
cd "$work/tree"
# make_rock <version> <folder> [<variable>=<value>...]: the module for it, in a tree of its own.
make_rock() {
    version=$1 rocks=$2
    shift 2
    rm -rf build
    luarocks --lua-version "$version" --tree "$rocks" make lua/lapse-scm-1.rockspec "$@" \
        >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
}

make_rock 5.4 "$work/rocks"
make_rock 5.1 "$work/rocks"
make_rock 5.1 "$work/jitrocks" LUA_INCDIR="$(pkg-config --variable=includedir luajit)"
works lua5.4 5.4 "$work/rocks"
works lua5.1 5.1 "$work/rocks"
works luajit 5.1 "$work/rocks"
works luajit 5.1 "$work/jitrocks"
