"""What `bench/run lua` runs: the Lua module beside other timers, one process for each.

A workload without a prefix runs in Lua 5.4, one with `jit-` in LuaJIT. nginx has a suite of its
own, openresty.
"""

import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]

PLACES = {"": "Lua 5.4", "jit-": "LuaJIT"}
LATE = ("early", "min_ms", "p50_ms", "p99_ms", "max_ms", "cpu_ms")
KINDS = {
    "const": (("throughput", "many"), ("schedule_ns", "bytes", "gc_ms")),
    "cancel": (("cancel",), ("cancel_ns",)),
    "fire": (("throughput",), ("fire_ns",)),
    "late": (("late",), LATE),
}
KIND_TITLES = {
    "const": "{n} pending, delays 30 to 31 minutes",
    "cancel": "{n} pending, 90 % cancelled in random order",
    "fire": "{n} orders due at one moment",
    "late": "{n} orders due within 2 s, real time",
}


def of_all_places(of_kinds, change):
    return {place + kind: change(place, value) for place in PLACES
            for kind, value in of_kinds.items()}


WORKLOADS = of_all_places(
    KINDS, lambda place, kind: (tuple(place + group for group in kind[0]), kind[1]))
TITLES = of_all_places(KIND_TITLES, lambda place, title: f"{PLACES[place]}: {title}")
NO_RATIO = {"early", "min_ms", "p99_ms", "max_ms", "gc_ms"}
AGAINST = ("luv", "luv-bare", "luv-jit")
SIZES = {place + "late": ["10k"] for place in PLACES}
OTHER_SIZES = ["1k", "100k", "1M"]
QUICK_SIZES = ["10k"]
QUICK_PEERS = {}
FIXED_SIZES = set(SIZES)
SLOW = {"fire": 100000, "jit-fire": 100000}  # the most orders, for a coroutine each
COROUTINES = ("cqueues", "copas")

BUILD = ("all", ("-DLAPSE_BENCH=OFF", "-DLAPSE_PYTHON=OFF", "-DLAPSE_LUA=ON"))


def listed(command, place, suffix):
    """(peer, groups, version) of each that is installed there."""
    done = subprocess.run([*command, "--list"], stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        print(f"without {PLACES[place]}: {' '.join(command)} failed", file=sys.stderr)
    for line in done.stdout.splitlines():
        peer, groups, version = line.split("\t")
        yield peer + suffix, [place + group for group in groups.split(",")], version


def find_peers(options, folder):
    """Peer -> (command, groups, {workload: the most orders}), and the versions."""
    build = str(options.bin or folder)
    plain = [str(ROOT / "scripts" / "with-lua"), build]
    commands = {
        ("", ""): [*plain, "lua5.4", str(HERE / "one.lua")],
        ("jit-", "-jit"): [*plain, "luajit", str(HERE / "one.lua")],
    }
    peers, versions = {}, []
    for (place, suffix), command in commands.items():
        for peer, groups, version in listed(command, place, suffix):
            most = SLOW if peer.startswith(COROUTINES) else {}
            peers[peer] = (command, groups, most)
            versions.append(f"{peer}: {version}")
    return peers, versions
