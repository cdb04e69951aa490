"""The Redis store beside plain ZADD: rates, and memory of an order. Starts a server of its own.

    PYTHONPATH=build/dev/python /usr/bin/python3 bench/store/redis.py [orders]

Lines are medians (least to most) of five rounds, in which ZADD of redis-benchmark (4
connections, 64 commands in flight) and lapse (one scheduler, 256 orders a call) take turns.
Both keep an append-only file. "claim, callback, done" has one worker thread.
"""

import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import lapse

SERVER = Path(__file__).resolve().parents[2] / "tests" / "servers" / "redis"
ROUNDS, CALL, PAYLOAD = 5, 256, b"x" * 64


def zadd(port: str, orders: int) -> float:
    command = ["redis-benchmark", "-p", port, "-c", "4", "-P", "64", "-n", str(orders), "-r",
               str(orders), "--csv", "ZADD", "plain", "__rand_int__", "OID__rand_int__"]  # fmt: skip
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return float(out.splitlines()[-1].split(",")[1].strip('"'))


def used(port: str) -> int:
    command = ["redis-cli", "-p", port, "info", "memory"]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return int(re.search(r"^used_memory:(\d+)", out, re.M)[1])


def schedule(s: lapse.Scheduler, orders: int, delay: float) -> float:
    begun = time.perf_counter()
    for first in range(0, orders, CALL):
        rows = [(f"OID{n:08}", delay, None, PAYLOAD, "close")
                for n in range(first, min(first + CALL, orders))]  # fmt: skip
        results = s.schedule_many(rows)
        assert all(isinstance(r, int) for r in results), results
    return orders / (time.perf_counter() - begun)


def finish(url: str, orders: int) -> float:
    """Until worker threads have run them all: claimed in batches, callbacks that do nothing."""
    left, over = [orders], threading.Event()

    def close(order):
        left[0] -= 1
        if not left[0]:
            over.set()

    with lapse.Scheduler(url, workers=1) as s:
        begun = time.perf_counter()
        s.handle("close", close)
        over.wait()
        return orders / (time.perf_counter() - begun)


def line(name: str, values: list[float], unit: str) -> None:
    middle = statistics.median(values)
    print(f"{name:34} {middle:10.2f} ({min(values):.2f} to {max(values):.2f}) {unit}")


def main() -> None:
    orders = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    folder = tempfile.mkdtemp(prefix="lapse-bench-")
    base = subprocess.run([SERVER, "start", f"{folder}/server", str(os.getpid())],
                          capture_output=True, text=True, check=True).stdout.strip()  # fmt: skip
    port = base.rsplit(":", 1)[1].split("/")[0]
    plain, put, done, size = [], [], [], []
    for i in range(ROUNDS):
        url = f"{base}?prefix=bench{i}"
        plain.append(zadd(port, orders))
        with lapse.Scheduler(url, workers=0) as s:
            before = used(port)
            put.append(schedule(s, orders, 3600) / plain[-1])
            size.append((used(port) - before) / orders)
        due = f"{base}?prefix=due{i}"
        with lapse.Scheduler(due, workers=0) as s:
            schedule(s, orders, 0)
        done.append(finish(due, orders) / plain[-1])
    line("ZADD of redis-benchmark", plain, "a second")
    line("schedule, 256 a call", put, "x ZADD")
    line("claim, callback, done", done, "x ZADD")
    line("an order, id of 11, payload of 64", size, "bytes")
    subprocess.run([SERVER, "stop", f"{folder}/server"], check=True)


main()
