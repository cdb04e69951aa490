#!/bin/sh
# tier: full
# clang-tidy has nothing to say about the core, the bindings and the tool. $1: the build folder.
#
# It looks at one function at a time: across functions it would have to know that what
# lp_fail returns is always below 0.
set -eu
cd "$(dirname "$0")/../.."
find core bindings tools -name '*.c' -print0 |
    xargs -0 -n 4 -P "$(nproc)" clang-tidy --quiet --warnings-as-errors='*' -p "$1" \
        --extra-arg=-Xclang --extra-arg=-analyzer-config --extra-arg=-Xclang --extra-arg=ipa=none
