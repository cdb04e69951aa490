"""Includes point one way: bindings to the public header, engine to stores, down to base."""

import posixpath
import re

from lint import main

# Folder of the file, then what it may include: a folder ending in "/", or one header.
# "lapse.h" stands for core/include. The longest folder that matches counts.
MAY_INCLUDE = {
    "core/include/": ["core/include/"],
    "core/base/": ["core/base/", "core/include/"],
    "core/timer/": ["core/timer/", "core/base/", "core/include/"],
    "core/stores/": ["core/stores/", "core/base/", "core/include/"],
    "core/stores/memory": ["core/stores/", "core/timer/", "core/base/", "core/include/"],
    "core/engine/": [
        "core/engine/",
        "core/stores/durable.h",
        "core/stores/store.h",
        "core/stores/table.h",
        "core/stores/url.h",
        "core/base/",
        "core/include/",
    ],
    "bindings/python/": ["bindings/python/", "tools/lapse/cli.h", "core/include/"],
    "bindings/lua/": ["bindings/lua/", "core/include/"],
    "tools/lapse/": ["tools/lapse/", "core/include/"],
    "examples/": ["core/include/"],
}

QUOTED = re.compile(r'^\s*#\s*include\s*"([^"]+)"')
PUBLIC = re.compile(r"^\s*#\s*include\s*<(lapse\.h|lapse/[^>]+)>")
SEARCHED = ("", "core", "core/include", "tools")


def target(tree, path, name):
    """The file that an include means, or None if the tree has no such file."""
    for folder in (posixpath.dirname(path), *SEARCHED):
        full = posixpath.normpath(posixpath.join(folder, name))
        if (tree.root / full).is_file():
            return full
    return None


def check(tree):
    for path in tree.files("core", "bindings", "tools", "examples", ext=(".c", ".h")):
        folders = [f for f in MAY_INCLUDE if path.startswith(f)]
        if not folders:
            yield f"{path}: in no folder that tests/lint/lint_includes.py knows"
            continue
        allowed = MAY_INCLUDE[max(folders, key=len)]
        for number, line in tree.code(path):
            match = QUOTED.match(line) or PUBLIC.match(line)
            if not match:
                continue
            full = target(tree, path, match.group(1))
            if full is None:
                yield f"{path}:{number}: no file {match.group(1)}"
            elif not full.startswith(tuple(allowed)):
                yield f"{path}:{number}: may not include {full}"


if __name__ == "__main__":
    main(check)
