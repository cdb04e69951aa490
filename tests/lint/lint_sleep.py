"""Tests invent time; one that waits for real time says why: a comment `sleeps: <reason>`.

The comment stands on the same line or on the one above.
"""

import re

from lint import main

# After "int" a test declares its own in place of the system's.
SLEEPS = re.compile(
    r"\b(?<!int )(?<!void )(?:sleep|usleep|nanosleep|clock_nanosleep|thrd_sleep|pause_ms)\s*\("
    r"|\bpoll\s*\(\s*NULL\b|\bsocket\.sleep\b"
    r"|os\.execute\s*\(?\s*[\"']sleep|^\s*sleep\s+[\d$.]"
)
REASON = re.compile(r"sleeps: \S+")
C_FILE = (".c", ".h")


def check(tree):
    for path in tree.files("tests", ext=(*C_FILE, ".py", ".lua", ".sh")):
        if path.startswith("tests/lint/"):
            continue
        lines = tree.text(path).split("\n")
        code = tree.code(path) if path.endswith(C_FILE) else tree.lines(path)
        for number, line in code:
            excused = REASON.search(lines[number - 1]) or REASON.search(lines[number - 2])
            if SLEEPS.search(line) and not (excused and number > 1):
                yield f"{path}:{number}: sleeps without a reason"


if __name__ == "__main__":
    main(check)
