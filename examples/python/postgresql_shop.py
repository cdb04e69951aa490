"""The order and its timeout in one transaction: a shop in PostgreSQL, with psycopg.

Four orders are placed, each with 2 seconds to be paid, and each together with its timeout: one
transaction writes both, or neither. OID1 is paid in time, which cancels its timeout in the
transaction of the payment. OID2's transaction is rolled back, so that nothing is left of it, no
timer either. OID3's is open for a second more than OID4's; both are closed by a worker, which
finds them when they are committed and their time is up.

LAPSE_URL names the store (postgresql://user@host/database), in whose database the shop's
table is made too. LAPSE_DEMO_SPEED=20 makes every delay 20 times shorter.
"""

import os
import sys
import threading
import time

import lapse
import psycopg

SPEED = float(os.environ.get("LAPSE_DEMO_SPEED", 1))
URL = os.environ.get("LAPSE_URL", "postgresql://localhost/shop")
DATABASE = URL.split("?")[0]  # without the options that are lapse's

closed = threading.Semaphore(0)
started = time.monotonic()


def tell(order_id: str, event: str) -> None:
    print(f"{(time.monotonic() - started) * SPEED:6.2f} s  {order_id:<6} {event}", flush=True)


def close_unpaid(order: lapse.Order) -> None:
    with psycopg.connect(DATABASE) as shop:
        done = shop.execute(
            "UPDATE shop_order SET status = 'closed' WHERE id = %s AND status = 'open'", [str(order)]
        )
        tell(order, "closed" if done.rowcount else "was paid after all")
    closed.release()


def place(shop: psycopg.Connection, order_id: str) -> None:
    shop.execute("INSERT INTO shop_order (id) VALUES (%s)", [order_id])
    shop.execute(
        "SELECT lapse_schedule(%s, make_interval(secs => %s), 'close_unpaid')", [order_id, 2 / SPEED]
    )


def pay(shop: psycopg.Connection, order_id: str) -> None:
    shop.execute("UPDATE shop_order SET status = 'paid' WHERE id = %s AND status = 'open'", [order_id])
    (fate,) = shop.execute("SELECT lapse_cancel(%s)", [order_id]).fetchone()
    tell(order_id, f"paid, timeout {fate}")


def main() -> int:
    worker = lapse.Scheduler(URL)  # makes its tables when they are not there yet
    worker.handle("close_unpaid", close_unpaid)
    with psycopg.connect(DATABASE, autocommit=True) as shop:
        shop.execute("DROP TABLE IF EXISTS shop_order")
        shop.execute(
            "CREATE TABLE shop_order (id text PRIMARY KEY, status text NOT NULL DEFAULT 'open')"
        )
        slow = psycopg.connect(DATABASE)
        place(slow, "OID3")
        with shop.transaction():
            place(shop, "OID1")
            place(shop, "OID4")
        tell("OID1", "placed")
        tell("OID4", "placed")
        with shop.transaction():
            place(shop, "OID2")
            tell("OID2", "rolled back")
            raise psycopg.Rollback
        time.sleep(1 / SPEED)
        slow.commit()
        slow.close()
        tell("OID3", "placed")
        with shop.transaction():
            pay(shop, "OID1")
        for _ in range(2):
            if not closed.acquire(timeout=60):
                return 1
        found = shop.execute("SELECT id, status FROM shop_order ORDER BY id").fetchall()
        print(", ".join(f"{order_id} {status}" for order_id, status in found))
    worker.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
