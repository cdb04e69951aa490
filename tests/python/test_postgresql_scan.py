"""What the database reads for orders that fall due: the scan of the articles beside the store.

Counts, not times; bench/store/postgresql_scan.py has both at a million orders.
"""

from __future__ import annotations

import threading

import lapse
from postgresql_server import Server
from support import PATIENCE, of_debian, until

psycopg = of_debian("psycopg")

LATER, DUE, SCANS = 5000, 100, 4


SERVER = Server


def read_by(base: str, table: str) -> int:
    """Rows of the table and entries of its indexes that were read by sessions that have ended."""
    with psycopg.connect(base, autocommit=True) as c:
        others = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'"
        until(lambda: c.execute(others).fetchone() == (1,), "the others")
        return c.execute(
            "SELECT (SELECT coalesce(sum(seq_tup_read), 0) FROM pg_stat_user_tables"
            "  WHERE relname = %s) + (SELECT coalesce(sum(idx_tup_read), 0)"
            "  FROM pg_stat_user_indexes WHERE relname = %s)",
            [table, table],
        ).fetchone()[0]


def scan(base: str) -> list[str]:
    """Every so often all that is due, then an update each: with the primary key, as one finds it."""
    closed = []
    with psycopg.connect(base, autocommit=True) as c:
        for tick in range(SCANS):
            c.execute(
                "UPDATE orders SET due = now() - interval '1 s' WHERE id IN"
                " (SELECT 'D' || i FROM generate_series(%s::int, %s) i)",
                [tick * DUE // SCANS, (tick + 1) * DUE // SCANS - 1],
            )
            due = "SELECT id FROM orders WHERE NOT closed AND due < now()"
            for (order_id,) in c.execute(due).fetchall():
                c.execute("UPDATE orders SET closed = true WHERE id = %s", [order_id])
                closed.append(order_id)
    return closed


def test_the_store_reads_what_is_due_and_the_scan_reads_all(server):
    base = server.url
    with psycopg.connect(base, autocommit=True) as c:
        c.execute("CREATE TABLE orders (id text PRIMARY KEY, due timestamptz,"
                  " closed boolean DEFAULT false)")  # fmt: skip
        c.execute("INSERT INTO orders SELECT 'F' || i, now() + interval '1 day'"
                  " FROM generate_series(1, %s) i", [LATER])  # fmt: skip
        c.execute("INSERT INTO orders SELECT 'D' || i, now() + interval '1 day'"
                  " FROM generate_series(0, %s) i", [DUE - 1])  # fmt: skip
    assert len(scan(base)) == DUE
    scanned = read_by(base, "orders")
    assert scanned >= SCANS * LATER

    ran: list[str] = []
    enough = threading.Event()

    def close(order):
        ran.append(order.id)
        if len(ran) == DUE:
            enough.set()

    url = f"{base}?poll=1m"  # A poll reads a few rows; how many there are depends on the machine.
    with lapse.Scheduler(url, workers=0) as s:
        s.schedule_many([(f"F{i}", 86400, None, None, "close") for i in range(LATER)])
        s.schedule_many([(f"D{i}", 0.5, None, None, "close") for i in range(DUE)])
    before = read_by(base, "lapse_order")
    with lapse.Scheduler(url, workers=1) as s:
        s.handle("close", close)
        assert enough.wait(PATIENCE)
    read = read_by(base, "lapse_order") - before
    assert sorted(ran) == sorted(f"D{i}" for i in range(DUE))
    print(f"{DUE} of {LATER} orders: the scan read {scanned} rows, lapse {read}")
    # An order is found, locked, held and ended, each by an index; some more for what comes next.
    assert DUE <= read <= 25 * DUE
