"""The Redis store beside plain ZADD, and beside BullMQ: rates, and memory of an order.

    cmake --preset release -B build/bench -DLAPSE_BENCH=ON -DLAPSE_PYTHON=ON
    cmake --build build/bench --target bench_store_redis python_package
    PYTHONPATH=build/bench/python /usr/bin/python3 bench/store/redis.py [orders [rounds]]
    npm install --prefix FOLDER bullmq ioredis    # a folder outside the source tree; then
    PYTHONPATH=build/bench/python /usr/bin/python3 bench/store/redis.py [orders [rounds]] FOLDER

Starts a server of its own, which keeps an append-only file. Lines are medians (least to most) of
rounds, in which all take turns; a ratio is of one round.

* ZADD: redis-benchmark with one connection, 256 commands in flight, members as long as an order's id
  and payload.
* lapse, turn by turn (bench_store_redis): 256 orders are scheduled at a time, then claimed and ended
  100 at a time, on one connection, as the scheduler's driver does.
* lapse from Python and BullMQ from Node, as their users do: 256 orders a call, each with an id, a
  payload of 64 bytes and a delay. `schedule`: due in an hour. `done`: due in a ms, until an
  asynchronous callback has run for the last one, at most 100 at a time.
"""

import asyncio
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import lapse
import lapse.aio

ROOT = Path(__file__).resolve().parents[2]
SERVER, TURNS = ROOT / "tests/servers/redis", ROOT / "build/bench/bench/bench_store_redis"
CALL, CLAIMED, PAYLOAD, CONCURRENCY = 256, 100, 64, 100


def output(*command) -> str:
    words = [str(word) for word in command]
    return subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True).stdout


def zadd(port: str, orders: int) -> float:
    member = "OID__rand_int__" + "x" * (PAYLOAD - 4)  # It puts 12 digits there.
    out = output("redis-benchmark", "-p", port, "-c", 1, "-P", CALL, "-n", orders, "-r", orders,
                 "--csv", "ZADD", "plain", "__rand_int__", member)  # fmt: skip
    return float(out.splitlines()[-1].split(",")[1].strip('"'))


def used(port: str) -> int:
    return int(re.search(r"^used_memory:(\d+)", output("redis-cli", "-p", port, "info", "memory"),
                         re.M)[1])  # fmt: skip


def turns(url: str, orders: int) -> dict:
    return json.loads(output(TURNS, url, orders, CALL, CLAIMED))


def calls(orders: int, delay: float):
    for first in range(0, orders, CALL):
        yield [(f"OID{n:08}", delay, None, b"x" * PAYLOAD, "close")
               for n in range(first, min(first + CALL, orders))]  # fmt: skip


def schedule(url: str, orders: int) -> float:
    with lapse.Scheduler(url, workers=0) as s:
        begun = time.perf_counter()
        for call in calls(orders, 3600):
            assert all(isinstance(r, int) for r in s.schedule_many(call))
        return orders / (time.perf_counter() - begun)


async def finish(url: str, orders: int) -> float:
    left, over = orders, asyncio.Event()
    async with lapse.aio.Scheduler(url, concurrency=CONCURRENCY) as s:

        @s.handler("close")
        async def close(order):
            nonlocal left
            left -= 1
            if not left:
                over.set()

        begun = time.perf_counter()
        for call in calls(orders, 0.001):
            assert all(isinstance(r, int) for r in await s.schedule_many(call))
        await over.wait()
        return orders / (time.perf_counter() - begun)


def bullmq(folder: str, port: str, name: str, orders: int) -> dict:
    out = output("node", ROOT / "bench/store/bullmq.mjs", folder, port, name, orders, CALL, PAYLOAD,
                 CONCURRENCY)  # fmt: skip
    return {k: v for line in out.splitlines() for k, v in json.loads(line).items()}


class Table:
    def __init__(self) -> None:
        self.rows: dict[tuple[str, str], list[float]] = {}

    def add(self, name: str, unit: str, value: float) -> float:
        self.rows.setdefault((name, unit), []).append(value)
        return value

    def show(self) -> None:
        for (name, unit), values in self.rows.items():
            middle = statistics.median(values)
            print(f"{name:44} {middle:10.2f} ({min(values):.2f} to {max(values):.2f}) {unit}")


def take_round(table: Table, base: str, port: str, name: str, orders: int, folder: str) -> None:
    plain = table.add("ZADD of redis-benchmark", "a second", zadd(port, orders))
    ours = turns(f"{base}?prefix=turns{name}", orders)
    for what in ("schedule", "claim", "end"):
        table.add(f"{what}, turn by turn", "a second", ours[what])
        table.add(f"{what}, turn by turn", "x ZADD", ours[what] / plain)
    before = used(port)
    put = table.add("schedule from Python", "a second", schedule(f"{base}?prefix=far{name}", orders))
    table.add("an order, id of 11, payload of 64", "bytes", (used(port) - before) / orders)
    done = asyncio.run(finish(f"{base}?prefix=near{name}", orders))
    table.add("schedule and done from Python", "a second", done)
    if folder:
        theirs = bullmq(folder, port, name, orders)
        table.add("schedule, BullMQ", "a second", theirs["schedule"])
        table.add("schedule and done, BullMQ", "a second", theirs["done"])
        table.add("schedule, lapse / BullMQ", "x", put / theirs["schedule"])
        table.add("schedule and done, lapse / BullMQ", "x", done / theirs["done"])


def main() -> None:
    numbers = [int(word) for word in sys.argv[1:] if word.isdigit()]
    folders = [word for word in sys.argv[1:] if not word.isdigit()]
    orders, rounds = [*numbers, *(100_000, 5)[len(numbers):]][:2]
    table = Table()
    with tempfile.TemporaryDirectory(prefix="lapse-bench-") as folder:
        base = output(SERVER, "start", f"{folder}/server", os.getpid()).strip()
        port = base.rsplit(":", 1)[1].split("/")[0]
        try:
            for i in range(rounds):
                output("redis-cli", "-p", port, "flushall")
                take_round(table, base, port, str(i), orders, *folders or [""])
        finally:
            output(SERVER, "stop", f"{folder}/server")
    table.show()


main()
