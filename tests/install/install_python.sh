#!/bin/sh
# The Python package: source archive, from that a wheel, and that works in an empty environment.
# Nothing is taken from the network; the interpreter's own setuptools and wheel build it.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
python=${PYTHON:-python3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# From a copy: the build leaves files beside its sources.
mkdir "$work/tree"
cd "$root"
cp -R bindings core python lua tools "$work/tree"
cp ./*.md LICENSE MANIFEST.in pyproject.toml setup.py "$work/tree"
find "$work/tree" -name __pycache__ -prune -exec rm -rf {} +
cd "$work/tree"
"$python" -c 'from setuptools.build_meta import build_sdist as b; b("../sdist")' >"$work/log" 2>&1 ||
    { cat "$work/log"; exit 1; }
cd "$work"
archive=$(find sdist -name 'lapse-*.tar.gz')
for file in core/include/lapse.h bindings/python core/engine python/lapse/py.typed LICENSE; do
    tar -tzf "$archive" | grep -q "^[^/]*/$file" || { echo "not in the archive: $file"; exit 1; }
done
echo "ok: $archive"

"$python" -m pip wheel --quiet --no-deps --no-index --no-build-isolation --no-cache-dir \
    --wheel-dir wheels "$archive"
wheel=$(find wheels -name 'lapse-*.whl')
echo "ok: $wheel"
if [ "$("$python" -c 'import sysconfig; print(sysconfig.get_config_var("Py_GIL_DISABLED") or 0)')" = 0 ]; then
    case $wheel in
    *-cp311-abi3-linux_*) ;;
    *) echo "not for every CPython from 3.11 on: $wheel"; exit 1 ;;
    esac
fi

"$python" -m venv empty
empty/bin/python -m pip install --quiet --no-deps --no-index "$wheel"
empty/bin/python -I - <<'END'
import importlib.metadata
import importlib.resources
import threading

import lapse

closed = threading.Event()
lapse.schedule("unpaid", 0.01, lambda order: closed.set() if order == "unpaid" else None)
lapse.schedule("paid", 60, print)
assert lapse.cancel("paid")
assert closed.wait(30)
assert importlib.resources.files(lapse).joinpath("py.typed").is_file()
print("ok: lapse", importlib.metadata.version("lapse"), "runs in an empty environment")
END

# The command-line tool comes with it, and says the same both ways.
test "$(empty/bin/lapse --version)" = "$(empty/bin/python -I -m lapse --version)"
empty/bin/lapse check >/dev/null
echo "ok: $(empty/bin/lapse --version), the tool"
