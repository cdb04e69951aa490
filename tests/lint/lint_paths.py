"""No file names one machine's folders, users or mirrors."""

import re

from lint import main

# Written in pieces, so that this file holds none of them.
HOMES = "|".join(("home", "root", "Users", "work", "workspace"))
MIRRORS = "|".join(("deb\\.debian", "snapshot\\.debian", "pypi\\.org", "pythonhosted", "pyenv"))
LOCAL = re.compile(rf"(?<![\w.$}}\])/-])/(?:{HOMES})/|\b(?:{MIRRORS})|/tmp/[\w-]+(?<!XXXXXX)/")
BINARY = (".so", ".png", ".gz", ".whl", ".pyc", ".o", ".a")


def check(tree):
    for path in tree.files():
        if path.endswith(BINARY) or path == "tests/lint/lint_paths.py":
            continue
        for number, line in tree.lines(path):
            match = LOCAL.search(line)
            if match:
                yield f"{path}:{number}: names {match.group(0)}"


if __name__ == "__main__":
    main(check)
