"""The PostgreSQL store beside procrastinate, the same work in the same process: JSON lines, a table.

    python3 -m venv venv && venv/bin/pip install procrastinate 'psycopg[binary,pool]'
    PYTHONPATH=build/bench/python venv/bin/python bench/store/postgresql_peer.py [jobs [rounds]]

What is measured is schedule -> done: the time from the first call until all callbacks have run
and the database says so. A worker is there from the start. Both are used as their manuals show
for asyncio, each with tables of its own on one private server, which flushes its log to the disk
(fsync = on). They take turns, and the order changes from round to round.

    many      100 orders a call: schedule_many, batch_defer_async
    callers   one order a call by 16 callers at a time

procrastinate runs with the concurrency that it documents (20) and with that of lapse (100), its
pool as large; what counts is its better one in each round. It keeps jobs that are done, which is
its default, as UPDATE; "-delete" deletes them, as lapse does.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import statistics
import sys
import time

import lapse
import lapse.aio
import procrastinate
import psycopg
from postgresql_server import server

CALL, CALLERS, PAYLOAD = 100, 16, "x" * 64
fresh = itertools.count()


def execute(url: str, *statements: str) -> list[tuple]:
    with psycopg.connect(url, autocommit=True) as c:
        for statement in statements[:-1]:
            c.execute(statement)
        cursor = c.execute(statements[-1])
        return cursor.fetchall() if cursor.description else []


async def until_empty(url: str, question: str) -> None:
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as c:
        while (await (await c.execute(question)).fetchone())[0]:
            await asyncio.sleep(0.002)


async def drive(many, one, workload: str, jobs: int) -> None:
    """The calls of a workload."""
    if workload == "many":
        for first in range(0, jobs, CALL):
            await many(range(first, min(first + CALL, jobs)))
        return
    numbers = iter(range(jobs))

    async def caller():
        for n in numbers:
            await one(n)

    await asyncio.gather(*(caller() for _ in range(CALLERS)))


# -- lapse ---------------------------------------------------------------------------------------


async def run_lapse(url: str, workload: str, jobs: int) -> float:
    schema = f"lapse_{next(fresh)}"
    left, ran = jobs, asyncio.Event()
    async with lapse.aio.Scheduler(f"{url}?schema={schema}") as s:

        @s.handler("close")
        async def close(order):
            nonlocal left
            left -= 1
            if not left:
                ran.set()

        async def many(numbers):
            rows = [(f"OID{n:08}", 0, None, PAYLOAD.encode(), "close") for n in numbers]
            for result in await s.schedule_many(rows):
                assert isinstance(result, int), result

        async def one(n):
            await s.schedule(f"OID{n:08}", 0, queue="close", payload=PAYLOAD.encode())

        begun = time.perf_counter()
        await drive(many, one, workload, jobs)
        await ran.wait()
        await until_empty(url, f"SELECT count(*) FROM {schema}.lapse_order")
        took = time.perf_counter() - begun
    execute(url, f"DROP SCHEMA {schema} CASCADE")
    return jobs / took


# -- procrastinate ----------------------------------------------------------------------------------


async def run_procrastinate(url: str, workload: str, jobs: int, concurrency: int, delete: str) -> float:
    execute(url, "DROP SCHEMA IF EXISTS peer CASCADE", "CREATE SCHEMA peer")
    connector = procrastinate.PsycopgConnector(
        conninfo=url, kwargs={"options": "-c search_path=peer"}, max_size=concurrency)  # fmt: skip
    app = procrastinate.App(connector=connector)
    left, ran = jobs, asyncio.Event()

    @app.task(name="close")
    async def close(order_id, payload):
        nonlocal left
        left -= 1
        if not left:
            ran.set()

    async def many(numbers):
        await close.batch_defer_async(
            *({"order_id": f"OID{n:08}", "payload": PAYLOAD} for n in numbers))  # fmt: skip

    async def one(n):
        await close.defer_async(order_id=f"OID{n:08}", payload=PAYLOAD)

    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        worker = asyncio.create_task(app.run_worker_async(
            concurrency=concurrency, delete_jobs=delete, install_signal_handlers=False))  # fmt: skip
        begun = time.perf_counter()
        await drive(many, one, workload, jobs)
        await ran.wait()
        await until_empty(
            url, "SELECT count(*) FROM peer.procrastinate_jobs WHERE status <> 'succeeded'")
        took = time.perf_counter() - begun
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)
    return jobs / took


KINDS = {
    "lapse": run_lapse,
    "procrastinate-20": lambda *a: run_procrastinate(*a, 20, "never"),
    "procrastinate-100": lambda *a: run_procrastinate(*a, 100, "never"),
    "procrastinate-20-delete": lambda *a: run_procrastinate(*a, 20, "successful"),
}


# -- Rounds ---------------------------------------------------------------------------------------


def line(name: str, values: list[float], unit: str) -> None:
    middle = statistics.median(values)
    print(f"{name:42} {middle:9.2f} ({min(values):.2f} to {max(values):.2f}) {unit}")


def main() -> None:
    jobs = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 5
    found: dict[tuple[str, str], list[float]] = {}
    ratios: dict[str, list[float]] = {}
    with server() as url:
        for i in range(rounds):
            for workload in ("many", "callers"):
                names = list(KINDS)
                for name in names[i % len(names):] + names[: i % len(names)]:
                    rate = asyncio.run(KINDS[name](url, workload, jobs))
                    found.setdefault((workload, name), []).append(rate)
                    print(json.dumps({"round": i, "workload": workload, "name": name, "jobs": jobs,
                                      "per_s": round(rate), "load": os.getloadavg()[0]}),
                          flush=True)  # fmt: skip
                peer = max(found[workload, name][-1] for name in KINDS if name != "lapse")
                ratios.setdefault(workload, []).append(found[workload, "lapse"][-1] / peer)
    print(f"procrastinate {procrastinate.__version__}, psycopg {psycopg.__version__} "
          f"({psycopg.pq.__impl__}), {jobs} jobs, {rounds} rounds")  # fmt: skip
    for (workload, name), rates in found.items():
        line(f"{workload}: {name}", rates, "a second, schedule -> done")
    for workload, values in ratios.items():
        line(f"{workload}: lapse", values, "x the best procrastinate of the round")


main()
