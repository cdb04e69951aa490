#!/bin/sh
# tier: full
# The shell scripts: shellcheck has nothing to say about them.
set -eu
cd "$(dirname "$0")/../.."
grep -rlE '^#!/bin/(ba)?sh' .ci scripts tests examples bench | xargs shellcheck tools/lapse/completion.bash
