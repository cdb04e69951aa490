"""Unpaid orders are closed, and their stock is given back, in an asyncio application.

The story of shop.py: eight orders are placed; a customer has 3 seconds to pay. Four pay in
time, four do not, and one of these comes too late. All of it runs in one event loop, without
a thread: the customers are tasks, and so is what closes an order. Payment and closing may
meet at the same instant: both change the order only if it is still open, with one conditional
UPDATE, so that exactly one of them wins.

LAPSE_DEMO_SPEED=20 in the environment makes every delay 20 times shorter.
"""

import asyncio
import os
import sqlite3
import time

import lapse.aio

SPEED = float(os.environ.get("LAPSE_DEMO_SPEED", 1))
STOCK = 100

db = sqlite3.connect(":memory:", isolation_level=None)
db.execute("CREATE TABLE orders (id TEXT PRIMARY KEY, status TEXT NOT NULL)")
db.execute("CREATE TABLE stock (pieces INTEGER NOT NULL)")
db.execute("INSERT INTO stock VALUES (?)", (STOCK,))
started = time.monotonic()
scheduler = lapse.aio.Scheduler()


def tell(order_id: str, event: str, note: str = "") -> None:
    """One line of the timeline."""
    print(f"{time.monotonic() - started:6.2f} s  {order_id:<12} {event:<8} {note}", flush=True)


async def change(order_id: str, status: str) -> bool:
    """The order goes from open to `status`; false when it is not open any more."""
    await asyncio.sleep(0)  # where a database of its own would be waited for
    changed = db.execute(
        "UPDATE orders SET status = ? WHERE id = ? AND status = 'open'", (status, order_id)
    )
    return changed.rowcount == 1


@scheduler.handler("close_unpaid", attempts=5)
async def close_unpaid(order: lapse.Order) -> None:
    """Its time is up: close the order if it was not paid; again if the database is away."""
    if await change(order.id, "closed"):
        db.execute("UPDATE stock SET pieces = pieces + 1")
        tell(order, "closed", f"late {order.late * 1000:.1f} ms")


async def place(order_id: str) -> None:
    db.execute("UPDATE stock SET pieces = pieces - 1")
    db.execute("INSERT INTO orders VALUES (?, 'open')", (order_id,))
    tell(order_id, "placed")
    await scheduler.schedule(order_id, 3 / SPEED, close_unpaid)


async def pay(order_id: str) -> None:
    paid = await change(order_id, "paid")
    tell(order_id, "paid" if paid else "too late", "" if paid else "the order was closed")
    if paid:
        await scheduler.cancel(order_id)


# What the customers do, in seconds after the start.
STORY = [
    (0.0, place, 1), (0.3, place, 2), (0.6, place, 3), (0.9, place, 4), (1.0, pay, 1),
    (1.2, place, 5), (1.5, place, 6), (1.6, pay, 5), (1.8, place, 7), (2.1, place, 8),
    (3.1, pay, 3), (3.8, pay, 7), (5.1, pay, 6),
]  # fmt: skip


async def sleep_until(seconds: float) -> None:
    await asyncio.sleep(max(0.0, started + seconds / SPEED - time.monotonic()))


def count(status: str) -> int:
    return db.execute("SELECT count(*) FROM orders WHERE status = ?", (status,)).fetchone()[0]


async def main() -> None:
    async with scheduler:  # closes it at the end: waits for callbacks that run
        for at, act, number in STORY:
            await sleep_until(at)
            await act(f"OID{number:08}")
        await sleep_until(6.0)
    (pieces,) = db.execute("SELECT pieces FROM stock").fetchone()
    paid, closed = count("paid"), count("closed")
    print(f"{paid + closed} placed, {paid} paid, {closed} closed, stock {pieces}/{STOCK}")


asyncio.run(main())
