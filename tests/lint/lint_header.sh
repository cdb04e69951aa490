#!/bin/sh
# The public header stands alone: strict C11, C++11, and both again for the static library.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
warn="-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Werror"
count=0

# compile <compiler> <language> <standard> [<flag>...]
compile() {
    compiler=$1 language=$2 standard=$3
    shift 3
    # shellcheck disable=SC2086 # The flags are split on purpose.
    printf '#include <lapse.h>\nlapse_ns half_hour = LAPSE_MINUTES(30);\n' |
        "$compiler" $warn -x "$language" -std="$standard" -I "$root/core/include" "$@" \
            -fsyntax-only -
    count=$((count + 1))
}

for flag in "" -DLAPSE_STATIC; do
    compile "${CC:-cc}" c c11 ${flag:+"$flag"}
    compile "${CC:-cc}" c gnu17 ${flag:+"$flag"}
    compile "${CXX:-c++}" c++ c++11 ${flag:+"$flag"}
    compile "${CXX:-c++}" c++ c++20 ${flag:+"$flag"}
done
echo "lint_header: compiled $count times"
