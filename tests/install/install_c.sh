#!/bin/sh
# The C library, installed into an empty prefix, serves programs built with pkg-config and with
# CMake, shared and static, and shows only its public functions. $1: the build folder.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
build=$(cd "$1" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
prefix=$work/prefix
cc=${CC:-cc}
version=$(sed -n 's/^#define LAPSE_VERSION_[MP][AIJNORTCH]* *\([0-9]*\)$/\1/p' \
    "$here/../../core/include/lapse.h" | paste -sd.)

# says <program>: run it; it must know the installed version.
says() {
    if LD_LIBRARY_PATH=$lib "$1" >"$work/out" && grep -qx 'closed unpaid' "$work/out" &&
        grep -qx "version $version" "$work/out"; then
        echo "ok: $1"
    else
        cat "$work/out"
        exit 1
    fi
}

# alone <program>: it does not ask for the shared library.
alone() {
    if readelf -d "$1" | grep -q liblapse; then
        echo "$1 needs the shared library"
        exit 1
    fi
}

cmake --install "$build" --component core --prefix "$prefix" >/dev/null
lib=$(dirname "$(find "$prefix" -name liblapse.so)")
test -f "$prefix/include/lapse.h"

# The soname carries the major version, and the names point at one file.
test "$(readlink "$lib/liblapse.so")" = "liblapse.so.${version%%.*}"
test "$(readlink "$lib/liblapse.so.${version%%.*}")" = "liblapse.so.$version"
echo "ok: names of the shared library"

# Exactly the functions that the headers declare are visible.
libpq=$(pkg-config --cflags libpq 2>/dev/null || :)
nm -D --defined-only "$lib/liblapse.so" | awk '{ print $3 }' | sort >"$work/visible"
# shellcheck disable=SC2086 # Its words are split on purpose.
for header in "$prefix/include"/*.h; do
    printf '#include <%s>\n' "$(basename "$header")"
done | "$cc" -E -P -I "$prefix/include" $libpq - |
    tr '\n' ' ' | tr ';' '\n' | grep 'visibility' |
    sed 's/.*[ *]\(lapse_[a-z_]*\)(.*/\1/' | sort >"$work/declared"
test -s "$work/declared"
diff "$work/declared" "$work/visible"
echo "ok: $(wc -l <"$work/visible") public functions, nothing else visible"

export PKG_CONFIG_PATH="$lib/pkgconfig"
test "$(pkg-config --modversion lapse)" = "$version"
# shellcheck disable=SC2046 # The flags are split on purpose.
"$cc" -Wall -Werror "$here/consumer/consumer.c" $(pkg-config --cflags --libs lapse) \
    -o "$work/pc_shared"
says "$work/pc_shared"
mkdir "$work/static"
cp "$lib/liblapse.a" "$work/static"
# shellcheck disable=SC2046
"$cc" -Wall -Werror -DLAPSE_STATIC "$here/consumer/consumer.c" -L "$work/static" \
    $(pkg-config --cflags lapse) $(pkg-config --libs --static lapse | sed "s|-L[^ ]*||") \
    -o "$work/pc_static"
alone "$work/pc_static"
says "$work/pc_static"

cmake -S "$here/consumer" -B "$work/cmake" -DCMAKE_PREFIX_PATH="$prefix" \
    -DCMAKE_C_COMPILER="$cc" -DWANTED_VERSION="${version%.*}" >/dev/null
cmake --build "$work/cmake" >/dev/null
says "$work/cmake/with_lapse"
alone "$work/cmake/with_lapse_static"
says "$work/cmake/with_lapse_static"
