"""What scheduling costs in the path of a request, in instructions: pair.py without a clock.

    LAPSE_BUILD_DIR=build/bench python3 bench/openresty/count.py [NAME...]

Each location of pair.py is asked in an nginx of its own under valgrind's callgrind, 1500 times and
3000 times more: the difference of the two runs' instructions in user mode, by request, is without
the start and without what LuaJIT needs to compile. Prints a JSON line for each, with its ratio to the
same location without. The profiles stay in the folder CALLGRIND, if that is set.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "tests" / "nginx")]

import nginx as harness  # noqa: E402
from pair import LOCATIONS, QUERY, START, server_of  # noqa: E402

WARM, COUNTED = 1500, 3000
HTTP = "keepalive_requests 1000000;"
WRAPPER = """#!/bin/sh
exec {valgrind} --tool=callgrind --callgrind-out-file={out}/%p -q {program} "$@"
"""


def ask(port: int, location: str, count: int) -> None:
    """So many requests, one after the other, on one connection."""
    request = f"GET /{location}{QUERY} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    with socket.create_connection(("127.0.0.1", port), 60) as connection:
        for _ in range(count):
            connection.sendall(request)
            answer = b""
            while not answer.endswith(b"0\r\n\r\n"):
                more = connection.recv(4096)
                assert more, answer
                answer += more
            assert answer.startswith(b"HTTP/1.1 200"), answer


def instructions(name: str, count: int, keep: Path) -> int:
    """Of the worker, from its start to its end."""
    server, start = server_of([name]), START.format(url="memory:")
    keep.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        wrapper = Path(folder) / "nginx"
        wrapper.write_text(WRAPPER.format(
            valgrind=shutil.which("valgrind"), out=keep, program=harness.program()))  # fmt: skip
        wrapper.chmod(0o700)
        real, harness.program = harness.program, lambda: str(wrapper)
        try:
            parts = {"workers": 1, "http": HTTP, "server": server, "init_worker": start}
            with harness.running(Path(folder), **parts) as nginx:
                ask(nginx.port, name, count)
                profile = keep / str(nginx.workers()[0])
        finally:
            harness.program = real
    return int(re.search(r"^(?:summary|totals): (\d+)", profile.read_text(), re.M)[1])  # type: ignore[index]


def main() -> None:
    names = sys.argv[1:] or [name for name in LOCATIONS if name != "again"]
    counts: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        base = Path(os.environ.get("CALLGRIND", folder))
        for name in names:
            warm = instructions(name, WARM, base / name / "warm")
            more = instructions(name, WARM + COUNTED, base / name / "more")
            counts[name] = (more - warm) / COUNTED
            line: dict[str, object] = {"name": name, "instructions": round(counts[name])}
            if without := counts.get(LOCATIONS[name][1]):
                line["ratio"] = round(counts[name] / without, 3)
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
