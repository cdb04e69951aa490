"""The version is written in core/include/lapse.h only; the changelog tells its history."""

import re

from lint import main

PARTS = re.compile(r"^#define LAPSE_VERSION_(MAJOR|MINOR|PATCH) +(\d+)$", re.MULTILINE)
HEADER = "core/include/lapse.h"
MAY_NAME_IT = {HEADER, "CHANGELOG.md"}
SKIPPED = ("tests/", "docs/", "README.md")


def check(tree):
    parts = dict(PARTS.findall(tree.text(HEADER)))
    if set(parts) != {"MAJOR", "MINOR", "PATCH"}:
        yield f"{HEADER}: MAJOR, MINOR and PATCH are not each defined as a number"
        return
    version = "{MAJOR}.{MINOR}.{PATCH}".format_map(parts)
    found = re.compile(rf"(?<![\d.]){re.escape(version)}(?![\d.])")
    if not found.search(tree.text("CHANGELOG.md")):
        yield f"CHANGELOG.md: says nothing about {version}"
    for path in tree.files():
        if path in MAY_NAME_IT or path.startswith(SKIPPED) or path.endswith((".so", ".pyc")):
            continue
        for number, line in tree.lines(path):
            if found.search(line):
                yield f"{path}:{number}: writes the version {version} again"


if __name__ == "__main__":
    main(check)
