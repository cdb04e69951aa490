"""What `bench/run python` runs: the Python package beside other timers, one process for each."""

import json
import os
import pathlib
import subprocess

ONE = pathlib.Path(__file__).parent / "one.py"

LATE = ("early", "min_ms", "p50_ms", "p99_ms", "p999_ms", "max_ms")
WORKLOADS = {
    "const": (("all", "many"), ("schedule_ns", "bytes", "gc_ms", "gc_empty_ms")),
    "cancel": (("all",), ("cancel_ns",)),
    "fire": (("all",), ("fire_ns",)),
    "late": (("all",), (*LATE, "cpu_ms")),
    "late-gil": (("all",), LATE),
}
TITLES = {
    "const": "{n} pending, delays 30 to 31 minutes",
    "cancel": "{n} pending, all cancelled in random order",
    "fire": "{n} orders due within as many microseconds",
    "late": "{n} orders due within 5 s, real time",
    "late-gil": "{n} orders due within 5 s, and a thread that burns the GIL",
}
NO_RATIO = {"early", "min_ms", "max_ms", "p999_ms", "gc_empty_ms"}
AGAINST = ("asyncio", "asyncio-bare")
SIZES = {"late": ["2k", "100k"], "late-gil": ["2k", "100k"]}
OTHER_SIZES = ["1k", "100k", "1M"]
QUICK_SIZES = ["10k"]
QUICK_PEERS = {}
FIXED_SIZES = set()

BUILD = ("python_package", ("-DLAPSE_BENCH=OFF", "-DLAPSE_PYTHON=ON"))


def find_peers(options, folder):
    """Peer -> (command, groups, {workload: the most orders}), and the versions."""
    os.environ["PYTHONPATH"] = str(options.bin or folder / "python")
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    command = [options.python, str(ONE)]
    listing = subprocess.run([*command, "--list"], check=True, stdout=subprocess.PIPE, text=True)
    peers, versions = {}, []
    for line in listing.stdout.splitlines():
        found = json.loads(line)
        groups = ["many"] if found["peer"] == "lapse-many" else ["all"]
        peers[found["peer"]] = (command, groups, found["sizes"])
        versions.append(f"{found['peer']} {found['version']}")
    return peers, versions
