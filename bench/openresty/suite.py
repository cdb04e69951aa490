"""What `bench/run openresty` runs: resty.lapse beside ngx.timer.at, each in an nginx of its own."""

import os
import pathlib
import shutil
import subprocess
import sys

ONE = pathlib.Path(__file__).parent / "one.py"

LATE = ("early", "min_ms", "p50_ms", "p99_ms", "max_ms")
WORKLOADS = {
    "const": (("all",), ("schedule_ns", "bytes")),
    "cancel": (("lapse",), ("cancel_ns",)),
    "fire": (("all", "inline"), ("fire_ns",)),
    "late": (("all",), LATE),
    "request": (("all", "lapse", "request"), ("rps", "cpu_us", "p50_us", "p99_us")),
}
TITLES = {
    "const": "{n} pending, delays 30 to 31 minutes",
    "cancel": "{n} pending, all cancelled in random order",
    "fire": "{n} orders due at once",
    "late": "{n} orders due within 1.2 s, real time",
    "request": "{n} pending; wrk on a location that schedules, cancels too, or does neither",
}
NO_RATIO = {"early", "min_ms", "max_ms", "rps"}
AGAINST = ("none",)
SIZES = {"late": ["1k"], "request": ["10k"], "fire": ["1k", "100k"]}
OTHER_SIZES = ["1k", "100k", "1M"]
QUICK_SIZES = ["10k"]
QUICK_PEERS = {}
FIXED_SIZES = {"late", "request"}

BUILD = ("lua_module_5.1", ("-DLAPSE_BENCH=OFF", "-DLAPSE_PYTHON=OFF", "-DLAPSE_LUA=ON"))

GROUPS = {
    "lapse": ["all"],
    "lapse-cancel": ["lapse"],
    "lapse-inline": ["inline"],
    "ngx.timer": ["all"],
    "none": ["request"],
}


def find_peers(options, folder):
    """Peer -> (command, groups, {workload: the most orders}), and the versions."""
    os.environ["LAPSE_BUILD_DIR"] = str(options.bin or folder)
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    nginx = shutil.which("nginx", path=os.environ["PATH"] + ":/usr/sbin:/sbin")
    if not nginx or not shutil.which("wrk"):
        sys.exit("nginx or wrk not found: scripts/packages bench installs them")
    version = subprocess.run([nginx, "-v"], stderr=subprocess.PIPE, text=True, check=True).stderr
    command = [options.python, str(ONE)]
    peers = {name: (command, groups, {}) for name, groups in GROUPS.items()}
    return peers, [version.strip()]
