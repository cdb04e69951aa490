#!/bin/sh
# tier: full
# clang-tidy has nothing to say about the core, the bindings and the tool. $1: the build folder.
#
# It looks at one function at a time: across functions it would have to know that what
# lp_fail returns is always below 0. It would look at a file once for each library that the file
# is in; the shared core differs from the static one only in what is visible.
set -eu
cd "$(dirname "$0")/../.."
commands=$(mktemp -d)
trap 'rm -rf "$commands"' EXIT
"${PYTHON:-python3}" - "$1/compile_commands.json" >"$commands/compile_commands.json" <<'END'
import json
import sys

with open(sys.argv[1]) as file:
    entries = json.load(file)
json.dump([e for e in entries if "/lapse.dir/" not in e["command"]], sys.stdout)
END
find core bindings tools -name '*.c' -print0 |
    xargs -0 -n 4 -P "$(nproc)" clang-tidy --quiet --warnings-as-errors='*' -p "$commands" \
        --extra-arg=-Xclang --extra-arg=-analyzer-config --extra-arg=-Xclang --extra-arg=ipa=none
