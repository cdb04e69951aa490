#!/bin/sh
# tier: full
# Python files compile, pyflakes and mypy have nothing to say; ruff too where it is there.
set -eu
cd "$(dirname "$0")/../.."
cache=$(mktemp -d)
trap 'rm -rf "$cache"' EXIT
status=0
set -- python tests examples setup.py
PYTHONPYCACHEPREFIX=$cache "${PYTHON:-python3}" -m compileall -q "$@" || status=1
pyflakes3 "$@" || status=1
if command -v ruff >/dev/null; then ruff check --no-cache "$@" || status=1; fi
(cd python && mypy --strict --enable-incomplete-feature=Unpack --cache-dir "$cache" -p lapse) || status=1
exit $status
