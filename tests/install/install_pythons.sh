#!/bin/sh
# tiers: full soak
# The Python package in every CPython that is here, 3.11 and newer: installed from the sources,
# from the source archive, and from one wheel for all. tests/python/pythons.py finds them.
# shellcheck disable=SC1091,SC2154 # python_tree.sh makes them
set -eu
. "$(dirname "$0")/python_tree.sh"
cd "$work"

# imports <python>: an order lapses there.
imports() {
    "$1" -I -W error - <<'END'
import sys
import threading

import lapse

closed = threading.Event()
lapse.schedule("unpaid", 0.01, lambda order: closed.set())
lapse.schedule("paid", 60, print)
assert lapse.cancel("paid") and closed.wait(30)
assert lapse.__file__.startswith(sys.prefix)
END
}

# A free-threaded interpreter gets a wheel of its own. The module does not claim to be safe
# without the GIL, so the import turns it on and says so.
imports_without_gil() {
    "$1" -I -W always -c '
import sys, warnings
with warnings.catch_warnings(record=True) as seen:
    import lapse
assert sys._is_gil_enabled(), "nobody turned the GIL on"
assert any("lapse._lapse" in str(w.message) and "GIL" in str(w.message) for w in seen), seen'
    "$1" -I -W ignore -c '
import lapse, threading
closed = threading.Event()
lapse.schedule("unpaid", 0.01, lambda order: closed.set())
assert closed.wait(30)'
    case $2 in
    *abi3*) fail "a free-threaded interpreter has no stable ABI: $2" ;;
    esac
}

# install <what> <folder>: as a user does, into an empty environment, where pip builds it with
# what pyproject.toml asks for; its interpreter is in $env.
install() {
    quietly "$each" -m venv "$2"
    env=$2/bin/python
    quietly "$env" -m pip install --quiet --no-index --find-links "$work/index" --no-cache-dir "$1"
}

# from_sources: from the archive by way of a wheel, built by this interpreter. The tree has the
# same files: the first one builds from there too, in the tier soak each of them.
from_sources() {
    quietly "$each" -m venv "$work/wheel-env-$count"
    quietly "$work/wheel-env-$count/bin/python" -m pip wheel --quiet --no-index \
        --find-links "$work/index" --no-cache-dir --wheel-dir "$work/wheels-$count" "$archive"
    wheel=$(find "$work/wheels-$count" -name 'lapse-*.whl')
    if has_gil "$each"; then
        "$each" "$root/tests/install/check_wheel.py" "$wheel"
        if [ "$count" = 1 ] || [ "${LAPSE_TIER:-}" = soak ]; then
            copy_tree "$work/tree-$count"
            install "$work/tree-$count" "$work/tree-env-$count" # pip install .
            imports "$env"
        fi
        install "$wheel" "$work/archive-env-$count"
        imports "$env"
    else
        install "$wheel" "$work/archive-env-$count"
        imports_without_gil "$env" "$wheel"
    fi
    echo "ok: $release from the sources: $each"
}

# The tools that build it come from where pip finds them, once.
sources=yes
if ! "$python" -m pip download --quiet --dest "$work/index" setuptools wheel \
    >"$work/log" 2>&1; then
    sources=no
    echo "skipped: pip finds no setuptools, so only $python builds from the sources"
fi

copy_tree "$work/tree"
make_archive "$work/tree"
make_wheel "$archive" "$work/wheels"
common=$wheel
count=0
for each in $("$python" "$root/tests/python/pythons.py"); do
    count=$((count + 1))
    release=$("$each" -c 'import platform; print(platform.python_version())')
    if has_gil "$each"; then
        install "$common" "$work/env-$count"
        imports "$env"
        echo "ok: $release with the wheel for all: $each"
    fi
    if [ $sources = yes ]; then from_sources; fi
done
[ "$count" -gt 0 ] || fail "no CPython was found"
[ "$count" -gt 1 ] || echo "skipped: there is no CPython here but $python"
