#!/bin/sh
# tier: full
# C files look as .clang-format says.
set -eu
cd "$(dirname "$0")/../.."
find core bindings tools examples tests bench -name '*.[ch]' -print0 |
    xargs -0 clang-format --dry-run -Werror
