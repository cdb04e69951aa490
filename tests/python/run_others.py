"""The small tests in the other CPythons that are here: the same module, and pytest from here.

    run_others.py [<argument of pytest>...]

What a store on a server answers does not depend on the interpreter, so that only the tier soak
runs those tests here too.

pytest and what it needs is written in Python, so that the files of one release serve another.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from pythons import pythons

PYTEST = "pytest _pytest pluggy iniconfig packaging attr attrs pygments py".split()


def lend(folder: Path) -> None:
    """Link the modules of pytest into a folder."""
    for name in PYTEST:
        found = importlib.util.find_spec(name)
        if found is not None and found.origin is not None:
            file = Path(found.origin)
            source = file.parent if found.submodule_search_locations else file
            (folder / source.name).symlink_to(source)


def tests() -> list[str]:
    if os.environ.get("LAPSE_TIER") == "soak":
        servers = []
    else:
        servers = os.environ.get("LAPSE_SERVER_STORES", "").split()
    here = Path(__file__).parent
    return [str(here), *(f"--ignore-glob={here}/test_{store}*.py" for store in servers)]


def run(path: str, lent: str) -> bool:
    places = [os.environ.get("PYTHONPATH", ""), lent]
    done = subprocess.run(
        [path, "-m", "pytest", "-q", "-rfE", "-p", "no:cacheprovider", "--disable-warnings",
         *(sys.argv[1:] or tests())],
        env={**os.environ, "LAPSE_TIER": "quick", "PYTHONPATH": ":".join(filter(None, places))},
        check=False,
    )
    return done.returncode == 0


def main() -> int:
    this, *others = pythons().items()
    if not others:
        print(f"skipped: there is no CPython here but {this[1]}")
    failed = []
    with tempfile.TemporaryDirectory() as folder:
        lend(Path(folder))
        for release, path in others:
            print(f"-- {release}: {path}", flush=True)
            if not run(path, folder):
                failed.append(release)
    print("failed: " + ", ".join(failed) if failed else "ok: " + ", ".join(dict(others)))
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
