"""The article's scan beside the PostgreSQL store, in one run: how late, and what the database does.

    PYTHONPATH=build/bench/python /usr/bin/python3 bench/store/postgresql_scan.py
        [--orders 1000000] [--due 3000] [--seconds 60] [--every 3]

The scan is the job that articles begin with: every 3 s

    SELECT id FROM orders WHERE state = 0 AND due < now() ORDER BY due

and then, for each order, UPDATE orders SET state = 1 WHERE id = ? AND state = 0. It runs twice:
"scan, indexed" has a partial index on due that is just right for it; "scan" has the primary key
only. All three have so many orders in their table, of which `due` fall due at even steps within so
many seconds, the others in a day or later. They run one after the other, each in a database of its
own on one private server that flushes its log to the disk. How late an order is counts to when its
callback runs, or to when its UPDATE has answered, by the clock of the machine. What the database
does is what its own counters say (pg_stat_database, pg_stat_wal), and the CPU time of the
server's processes. Prints a JSON line for each, and a table.
"""

import argparse
import json
import os
import statistics
import threading
import time
from pathlib import Path

import lapse
import psycopg
from postgresql_server import server

START_IN = 20  # seconds until the first is due: the consumer is there before
COUNTED = ("tup_returned", "tup_fetched", "tup_updated", "tup_deleted", "blks_hit", "blks_read",
           "xact_commit")  # fmt: skip


def connect(url: str) -> psycopg.Connection:
    return psycopg.connect(url, autocommit=True)


# -- What the server does --------------------------------------------------------------------------


def cpu_seconds(main: int) -> float:
    """Of the server's process, of those that it has ended, and of those that it has."""
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(")", 1)[1].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if stat.parent.name == str(main):
            ticks += sum(map(int, fields[11:15]))
        elif fields[1] == str(main):
            ticks += sum(map(int, fields[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")


def counters(admin: psycopg.Connection, name: str, main: int) -> dict[str, float]:
    """Once nobody is connected to the database: what a session has done is counted at its end."""
    while admin.execute("SELECT count(*) FROM pg_stat_activity WHERE datname = %s AND"
                        " backend_type = 'client backend'", [name]).fetchone()[0]:  # fmt: skip
        time.sleep(0.05)
    admin.execute("SELECT pg_stat_clear_snapshot()")
    row = admin.execute(f"SELECT {', '.join(COUNTED)} FROM pg_stat_database WHERE datname = %s",
                        [name]).fetchone()  # fmt: skip
    wal = admin.execute("SELECT pg_current_wal_lsn() - '0/0'").fetchone()[0]
    return {**dict(zip(COUNTED, row)), "wal_bytes": float(wal), "cpu_s": cpu_seconds(main)}


# -- The orders -----------------------------------------------------------------------------------


def scan_table(url: str, options: argparse.Namespace, *, indexed: bool) -> None:
    with connect(url) as c:
        c.execute("CREATE TABLE orders (id text PRIMARY KEY, state smallint NOT NULL DEFAULT 0,"
                  " due timestamptz NOT NULL, payload bytea)")  # fmt: skip
        c.execute("INSERT INTO orders SELECT 'F' || i, 0, now() + interval '1 day' + i * interval"
                  " '1 ms', decode(repeat('00', 64), 'hex') FROM generate_series(1, %s) i",
                  [options.orders])  # fmt: skip
        if indexed:
            c.execute("CREATE INDEX orders_due ON orders (due) WHERE state = 0")
        c.execute("VACUUM ANALYZE orders")


def scan_due(url: str, begin: float, step: float, count: int) -> None:
    with connect(url) as c:
        c.execute("INSERT INTO orders SELECT 'D' || i, 0, to_timestamp(%s + i * %s),"
                  " decode(repeat('00', 64), 'hex') FROM generate_series(0, %s) i",
                  [begin, step, count - 1])  # fmt: skip


def lapse_table(url: str, options: argparse.Namespace) -> None:
    lapse.Scheduler(url, workers=0).close()
    with connect(url) as c:
        c.execute("INSERT INTO lapse_order (id, queue, at, seq, generation, due, payload)"
                  " SELECT convert_to('F' || i, 'UTF8'), 'close', t, s, s, t,"
                  " decode(repeat('00', 64), 'hex') FROM (SELECT i, nextval('lapse_seq') AS s,"
                  " now() + interval '1 day' + i * interval '1 ms' AS t"
                  " FROM generate_series(1, %s) i) x", [options.orders])  # fmt: skip
        c.execute("VACUUM ANALYZE lapse_order")


def lapse_due(url: str, begin: float, step: float, count: int) -> None:
    with connect(url) as c:
        c.execute("SELECT lapse_schedule('D' || i, to_timestamp(%s + i * %s) - clock_timestamp(),"
                  " 'close', decode(repeat('00', 64), 'hex')) FROM generate_series(0, %s) i",
                  [begin, step, count - 1])  # fmt: skip


# -- The consumers -----------------------------------------------------------------------------------


def run_scan(url: str, count: int, every: float, note) -> None:
    with connect(url) as c:
        at = time.time()
        while count:
            for (order_id,) in c.execute("SELECT id FROM orders WHERE state = 0 AND due < now()"
                                         " ORDER BY due").fetchall():  # fmt: skip
                c.execute("UPDATE orders SET state = 1 WHERE id = %s AND state = 0", [order_id])
                note(order_id)
                count -= 1
            at += every
            time.sleep(max(0, at - time.time()) if count else 0)


def run_lapse(url: str, count: int, every: float, note) -> None:
    over, left = threading.Event(), [count]

    def close(order):
        note(order.id)
        left[0] -= 1
        if not left[0]:
            over.set()

    with lapse.Scheduler(url, workers=1) as s:
        s.handle("close", close)
        over.wait()


def measure(name, base: str, options, table, due, run) -> dict:
    database = "run_" + name.replace(" ", "_").replace(",", "")
    step = options.seconds / options.due
    with connect(base) as admin:
        main = int(admin.execute("SELECT pg_read_file('postmaster.pid')").fetchone()[0].split()[0])
        admin.execute(f"CREATE DATABASE {database}")
        url = base.rsplit("/", 1)[0] + "/" + database
        table(url)
        admin.execute("CHECKPOINT")
        begin = time.time() + START_IN
        due(url, begin, step, options.due)
        before = counters(admin, database, main)
        assert time.time() < begin, "the machine is too slow: START_IN is over"
        ran: dict[str, float] = {}
        run(url, options.due, options.every, lambda order_id: ran.setdefault(order_id, time.time()))
        after = counters(admin, database, main)
        admin.execute(f"DROP DATABASE {database}")
    late = sorted(at - begin - int(order_id[1:]) * step for order_id, at in ran.items())
    assert len(late) == options.due
    assert late[0] >= 0, f"{late[0]} s: early"
    found = {"name": name, "orders": options.orders, "due": options.due, "load": os.getloadavg()[0]}
    found |= {"late_p50_ms": round(statistics.median(late) * 1e3, 1),
              "late_p99_ms": round(late[int(len(late) * 0.99)] * 1e3, 1),
              "late_max_ms": round(late[-1] * 1e3, 1)}  # fmt: skip
    found |= {key: round(after[key] - before[key], 2) for key in after}
    print(json.dumps(found), flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--orders", type=int, default=1_000_000)
    parser.add_argument("--due", type=int, default=3000)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--every", type=float, default=3)
    options = parser.parse_args()
    with server("shared_buffers = '512MB'", "max_wal_size = '8GB'") as base:
        runs = [
            measure("scan", base, options,
                    lambda url: scan_table(url, options, indexed=False), scan_due, run_scan),
            measure("scan, indexed", base, options,
                    lambda url: scan_table(url, options, indexed=True), scan_due, run_scan),
            measure("lapse", base, options,
                    lambda url: lapse_table(url, options), lapse_due, run_lapse),
        ]  # fmt: skip
    print(f"{options.orders} orders in the table, {options.due} due within {options.seconds:g} s")
    print(" " * 14 + "".join(f"{run['name']:>16}" for run in runs))
    for key in runs[0]:
        if key not in ("name", "orders", "due"):
            print(f"{key:14}" + "".join(f"{run[key]:16}" for run in runs))


main()
