"""Which CPythons there are on this machine, 3.11 and newer: one path a line when it is run.

Those on PATH and where people keep several of them; LAPSE_PYTHONS names more, separated by
colons. Of 3.12.1 and 3.12.4 only the first is taken, but for the tier soak, which takes each
release; one that cannot be started is left out.
"""

from __future__ import annotations

import functools
import glob
import os
import re
import shutil
import subprocess
import sys

OLDEST = (3, 11)
PLACES = ("~/.*/versions/*/bin", "/opt/*/bin", "/usr/local/bin", "/usr/bin")
NAME = re.compile(r"python3\.\d+t?$")
ASK = """
import sys, sysconfig
free = "t" if sysconfig.get_config_var("Py_GIL_DISABLED") else ""
print(sys.implementation.name, "%d.%d.%d" % sys.version_info[:3] + free, sys.executable)
"""


def candidates() -> list[str]:
    """Paths of what may be one: this one and what is asked for come first."""
    named = [p for p in os.environ.get("LAPSE_PYTHONS", "").split(":") if p]
    folders = os.environ.get("PATH", "").split(":")
    folders += [f for place in PLACES for f in sorted(glob.glob(os.path.expanduser(place)))]
    found = [p for f in folders for p in sorted(glob.glob(f"{f}/python3.*")) if NAME.search(p)]
    return [sys.executable, *filter(None, map(shutil.which, named)), *found]


def look(path: str) -> tuple[str, str]:
    """Its release, "3.13.0" or "3.13.0t" without the GIL, and its path; "" if it is none."""
    try:
        told = subprocess.run(
            [path, "-I", "-c", ASK], capture_output=True, text=True, timeout=60, check=True
        ).stdout.split()
    except (OSError, subprocess.SubprocessError):
        return "", ""
    return (told[1], told[2]) if len(told) == 3 and told[0] == "cpython" else ("", "")


@functools.cache
def pythons() -> dict[str, str]:
    """The path of each release, the running one first."""
    found: dict[str, tuple[str, str]] = {}
    for candidate in dict.fromkeys(candidates()):
        release, path = look(candidate)
        minor = tuple(int(part) for part in release.rstrip("t").split(".")[:2] if part)
        kind = f"{minor}{release.endswith('t')}"
        if os.environ.get("LAPSE_TIER") == "soak":
            kind = release
        if minor >= OLDEST:
            found.setdefault(kind, (release, path))
    return dict(found.values())


if __name__ == "__main__":
    print("\n".join(pythons().values()))
