#!/bin/sh
# The command-line tool, installed alone into an empty prefix: it runs without the library beside
# it, with its manual page and what bash completes. $1: the build folder.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
build=$(cd "$1" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
unset LAPSE_URL

cmake --install "$build" --component tool --prefix "$work/prefix" >/dev/null
cd "$work/prefix"
test "$(find . -type f | sort | tr '\n' ' ')" = \
    "./bin/lapse ./share/bash-completion/completions/lapse ./share/man/man1/lapse.1 "
cmp share/man/man1/lapse.1 "$root/docs/lapse.1"
if readelf -d bin/lapse | grep -q liblapse; then
    echo "the tool needs the shared library"
    exit 1
fi
bin/lapse check | grep -q '^healthy *yes$'
LAPSE_DEMO_SPEED=20 bin/lapse demo | grep -qx '8 placed, 4 paid, 4 closed, stock 96/100'
echo "ok: $(bin/lapse --version)"
