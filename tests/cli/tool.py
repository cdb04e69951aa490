"""What the tests of the tool share: running it, and a store in a known state.

LAPSE_TOOL is the tool, LAPSE_CLI_WORLD the program of world.c.
"""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

DONE, NO, USAGE, STORE = range(4)  # exit codes
TOOL = os.environ["LAPSE_TOOL"]
WORLD = os.environ["LAPSE_CLI_WORLD"]

Word = str | bytes


@dataclass
class Ran:
    code: int
    out: bytes
    err: bytes

    @property
    def text(self) -> str:
        return self.out.decode()

    @property
    def objects(self) -> list[Any]:
        """Each line as JSON, which must be UTF-8."""
        return [json.loads(line) for line in self.text.splitlines()]


def environment(url: str | None) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("LAPSE_")}
    return kept if url is None else kept | {"LAPSE_URL": url}


def lapse(*words: Word, url: str | None = None, stdin: bytes = b"") -> Ran:
    """Run the tool."""
    done = subprocess.run(
        [TOOL, *words], input=stdin, capture_output=True, env=environment(url), timeout=100
    )
    return Ran(done.returncode, done.stdout, done.stderr)


def sqlite(folder: Path) -> str:
    """The URL of a file in that folder, of which there is none yet; or the test is skipped."""
    made = lapse("schedule", "probe", "1h", "--json", url=f"sqlite:///{folder}/probe.db")
    if made.objects[0].get("error") == "NoStore":
        pytest.skip("this build has no SQLite store")
    return f"sqlite:///{folder}/orders.db"


def world(url: str, *steps: list[Word]) -> list[Ran]:
    """Run steps of world.c on one open store; what each command of the tool printed.

    Standard error belongs to all of them together and stands in each.
    """
    words: list[Word] = []
    for step in steps:
        words += [*step, ","]
    done = subprocess.run(
        [WORLD, url, *words[:-1]], capture_output=True, env=environment(None), timeout=100
    )
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    ran, lines = [], b""
    for line in done.stdout.splitlines(keepends=True):
        before, exit_word, code = line.rpartition(b"exit ")
        if exit_word and code.strip().isdigit():
            ran.append(Ran(int(code), lines + before, done.stderr))
            lines = b""
        else:
            lines += line
    assert len(ran) == sum(not str(step[0]).startswith("+") for step in steps)
    return ran
