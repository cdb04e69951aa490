#!/bin/sh
# The Python package: source archive, from that a wheel, and that works in an empty environment;
# the same with the installed C library. $1: the build folder.
# shellcheck disable=SC1091,SC2154 # python_tree.sh makes them
set -eu
. "$(dirname "$0")/python_tree.sh"
build=$(cd "$1" && pwd)
cd "$work"

# -- The source archive has all that is needed, and nothing that a build left behind --------

copy_tree "$work/tree"
make_archive "$work/tree"
tar -tzf "$archive" | sed 's|^[^/]*/||' >"$work/archived"
(cd "$root" && find core bindings/python tools/lapse python/lapse \( -name '*.[ch]' -o -name '*.py' -o \
    -name '*.pyi' -o -name py.typed \) && echo LICENSE && echo README.md) |
    while read -r file; do
        grep -qx "$file" "$work/archived" || fail "not in the archive: $file"
    done
if grep -E '\.(so|o|pyc)$' "$work/archived"; then fail "the archive holds what a build made"; fi
echo "ok: $archive"

# -- The wheel ----------------------------------------------------------------------------

make_wheel "$archive" "$work/wheels"
if has_gil "$python"; then
    case $wheel in
    *-cp311-abi3-linux_*) ;;
    *) fail "not for every CPython from 3.11 on: $wheel" ;;
    esac
fi
echo "ok: $wheel"
"$python" "$root/tests/install/check_wheel.py" "$wheel"

# Tools that a machine may have; what they would find is a wheel that others cannot use.
if command -v auditwheel >/dev/null; then
    auditwheel show "$wheel"
else
    echo "skipped: auditwheel is not here"
fi
if command -v abi3audit >/dev/null; then
    abi3audit --strict "$wheel"
else
    echo "skipped: abi3audit is not here"
fi

"$python" -m venv empty
empty/bin/python -m pip install --quiet --no-deps --no-index "$wheel"
empty/bin/python -I - <<'END'
import importlib.metadata
import importlib.resources

import lapse

metadata = importlib.metadata.metadata("lapse")
assert metadata["Version"] == lapse.__version__, metadata["Version"]
assert metadata["License"] == "MIT" or metadata["License-Expression"] == "MIT"
assert metadata["Requires-Python"] == ">=3.11" and metadata["Summary"]
assert metadata.get_payload().startswith("# lapse"), "the description is the README"
assert importlib.resources.files(lapse).joinpath("py.typed").is_file()
assert importlib.resources.files(lapse).joinpath("_lapse.pyi").is_file()
END
"$python" "$root/tests/examples/check_demos.py" shop \
    "$work/empty/bin/python" -I "$root/examples/python/shop.py"
echo "ok: the shop runs in an empty environment"

# The command-line tool comes with it, and says the same both ways.
test "$(empty/bin/lapse --version)" = "$(empty/bin/python -I -m lapse --version)"
empty/bin/lapse check >/dev/null
echo "ok: $(empty/bin/lapse --version), the tool"

# -- With the installed C library ------------------------------------------------------------

if (cd "$work/tree" && LAPSE_USE_SYSTEM=1 PKG_CONFIG_LIBDIR=/nowhere "$python" setup.py --version) \
    >"$work/log" 2>&1; then
    fail "LAPSE_USE_SYSTEM=1 builds without an installed liblapse"
fi
grep -q 'LAPSE_USE_SYSTEM=1: pkg-config does not find lapse' "$work/log" || fail "$(cat "$work/log")"
cmake --install "$build" --component core --prefix "$work/prefix" >/dev/null
pc=$(dirname "$(find "$work/prefix" -name lapse.pc)")
LAPSE_USE_SYSTEM=1 PKG_CONFIG_PATH=$pc make_wheel "$archive" "$work/system"
"$python" -m venv system-env
system-env/bin/python -m pip install --quiet --no-deps --no-index "$wheel"
module=$(find system-env -name '_lapse*.so')
readelf -d "$module" | grep -q 'NEEDED.*\[liblapse\.so' || fail "$module does not need liblapse"
LD_LIBRARY_PATH=$(dirname "$pc") system-env/bin/python -I -c '
import lapse, threading
closed = threading.Event()
lapse.schedule("unpaid", 0.01, lambda order: closed.set())
assert closed.wait(30)'
echo "ok: with the installed liblapse"

# -- Stores: with its library, and without ------------------------------------------------------

if pkg-config --exists 'sqlite3 >= 3.35'; then
    empty/bin/python -I -c '
import lapse
with lapse.Scheduler("sqlite:///orders.db", workers=0) as s:
    s.schedule("o", 60, queue="q")
with lapse.Scheduler("sqlite:///orders.db", workers=0) as s:
    assert s.cancel("o")'
    echo "ok: sqlite: is built in"
else
    echo "skipped: pkg-config does not find sqlite3"
fi
LAPSE_SQLITE=OFF make_wheel "$archive" "$work/bare"
"$python" -m venv bare-env
bare-env/bin/python -m pip install --quiet --no-deps --no-index "$wheel"
bare-env/bin/python -I -c '
import lapse
try:
    lapse.Scheduler("sqlite:///orders.db")
except lapse.NoStore as error:
    assert "libsqlite3-dev" in str(error), error
else:
    raise SystemExit("a store that was not built")
assert lapse.schedule("o", 60)'
if readelf -d "$(find bare-env -name '_lapse*.so')" | grep -q sqlite; then
    fail "LAPSE_SQLITE=OFF needs SQLite"
fi
echo "ok: LAPSE_SQLITE=OFF"

# -- Options of the build ---------------------------------------------------------------------

refuses() {
    if (cd "$work/tree" && env "$1" PKG_CONFIG_LIBDIR=/nowhere "$python" setup.py --version) \
        >"$work/log" 2>&1; then
        fail "$1 is accepted"
    fi
    grep -q "$2" "$work/log" || fail "$(cat "$work/log")"
    echo "ok: $1 is refused"
}
refuses LAPSE_SQLITE=ON 'LAPSE_SQLITE=ON: '
refuses LAPSE_SQLITE=maybe 'is AUTO, ON or OFF'
