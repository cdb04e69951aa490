#!/bin/sh
# tier: full
# cppcheck has nothing to say about the core, the tool and the bindings, these without their
# hosts' headers.
set -eu
cd "$(dirname "$0")/../.."

# look <file or flag>... The compilers and clang-tidy know better what is uninitialized.
look() {
    cppcheck --quiet --std=c11 --language=c --enable=warning,performance,portability \
        --inline-suppr --error-exitcode=1 --suppress=missingInclude --suppress=unknownMacro \
        --suppress=uninitvar \
        -I core/include -I core -D__linux__ -D__x86_64__ "$@"
}

look core
look -I tools tools
look -DPy_LIMITED_API=0x030b0000 '-DPy_RETURN_NONE=return Py_None' bindings/python
look -DLUA_VERSION_NUM=501 bindings/lua
look -DLUA_VERSION_NUM=504 bindings/lua
