#!/bin/sh
# tier: full
# The stubs say what the module has, and a typed program is checked as its author expects.
#     lint_typing.sh <build>
set -eu
build=$1
cd "$(dirname "$0")/../.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if [ ! -d "$build/python/lapse" ]; then
    echo "skipped: no Python module was built"
    exit 0
fi
status=0

# mypy before 1.7 has to be asked for Unpack, a later one says that it need not be.
cat >"$work/config" <<'END'
[mypy]
strict = True
enable_incomplete_feature = Unpack
END

MYPYPATH=$PWD/python mypy --config-file "$work/config" --cache-dir "$work/cache" \
    tests/python/typed_use.py tests/python/typed_aio.py || status=1

# The one stub. Of modules that carry their types in their source there is nothing to compare.
# Whether a class can be inherited from together with another is not said in stubs for now.
set --
if stubtest --help | grep -q -e --ignore-disjoint-bases; then set -- --ignore-disjoint-bases; fi
PYTHONPATH=$build/python PYTHONDONTWRITEBYTECODE=1 stubtest "$@" \
    --mypy-config-file "$work/config" lapse._lapse || status=1
exit $status
