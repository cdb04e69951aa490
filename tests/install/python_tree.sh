# shellcheck shell=sh disable=SC2034
# python_tree.sh - what the tests of the Python package share; sourced by them.
#
# They build from a copy of the tree, for a build leaves files beside its sources.
root=$(cd "$(dirname "$0")/../.." && pwd)
python=${PYTHON:-python3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# That it builds is what counts here, not how fast the result is.
export CFLAGS=-O0

fail() {
    echo "$*" >&2
    exit 1
}

# quietly <command>...: what it prints is shown only if it fails.
quietly() {
    "$@" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
}

# copy_tree <folder>: what the source archive is made from.
copy_tree() {
    mkdir "$1"
    (cd "$root" && cp -R bindings core docs examples lua python tests tools ./*.md LICENSE MANIFEST.in \
        pyproject.toml setup.py "$1")
    find "$1" -name __pycache__ -prune -exec rm -rf {} +
}

# make_archive <tree>: the source archive; its path is in $archive.
make_archive() {
    (cd "$1" && quietly "$python" -c \
        'import sys; from setuptools.build_meta import build_sdist as b; b(sys.argv[1])' "$work/sdist")
    archive=$(find "$work/sdist" -name 'lapse-*.tar.gz')
}

# make_wheel <source> <folder>: the wheel for $python, made with its own setuptools and wheel,
# without the network; its path is in $wheel.
make_wheel() {
    quietly "$python" -m pip wheel --quiet --no-deps --no-index --no-build-isolation \
        --no-cache-dir --wheel-dir "$2" "$1"
    wheel=$(find "$2" -name 'lapse-*.whl')
}

# has_gil <python>: whether it is not free-threaded.
has_gil() {
    "$1" -c 'import sys, sysconfig; sys.exit(bool(sysconfig.get_config_var("Py_GIL_DISABLED")))'
}
