"""What the lints share: which files there are, their text without comments, the report.

A lint is a script with a function `check(tree)` that yields findings. It exits with 0 when
there are none. `--root` names another tree: test_lints.py shows that each lint bites.
"""

import argparse
import os
import re
import sys
from pathlib import Path

SKIPPED = {".git", "build", "dist", "__pycache__", ".mypy_cache", ".pytest_cache", ".cache"}


class Tree:
    """The project's files, by their path relative to the root."""

    def __init__(self, root):
        self.root = Path(root)

    def files(self, *folders, ext=()):
        """Paths below `folders` (all, if none are named) whose names end in one of `ext`."""
        for folder in folders or (".",):
            for where, names, files in os.walk(self.root / folder):
                names[:] = sorted(n for n in names if n not in SKIPPED and "egg-info" not in n)
                for name in sorted(set(files) - SKIPPED):
                    if not ext or name.endswith(tuple(ext)):
                        yield (Path(where) / name).relative_to(self.root).as_posix()

    def text(self, path):
        return (self.root / path).read_text(encoding="utf-8", errors="replace")

    def lines(self, path):
        """(number, line) of the file as it is."""
        return enumerate(self.text(path).split("\n"), 1)

    def code(self, path):
        """(number, line) of a C file without comments and without what stands in strings."""
        return enumerate(strip_c(self.text(path)).split("\n"), 1)


C_TOKEN = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.DOTALL)


def strip_c(text):
    """The text with comments and strings emptied; every line stays where it is."""
    includes = r'(?m)^[ \t]*#[ \t]*include[ \t]*"[^"]*"'

    def empty(match):
        token = match.group(0)
        return '""' if token[0] in "\"'" else " " + "\n" * token.count("\n")

    kept = [m.span() for m in re.finditer(includes, text)]
    out, at = [], 0
    for match in C_TOKEN.finditer(text):
        if any(a <= match.start() < b for a, b in kept):
            continue
        out += [text[at : match.start()], empty(match)]
        at = match.end()
    return "".join(out) + text[at:]


def main(check):
    """Run the lint on the tree and say what it found."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", default=Path(__file__).parents[2])
    parser.add_argument("build", nargs="?", help="the build folder; not looked at")
    found = list(check(Tree(parser.parse_args().root)))
    for finding in found:
        print(finding)
    print(f"{Path(sys.argv[0]).stem}: {len(found)} finding(s)")
    sys.exit(1 if found else 0)
