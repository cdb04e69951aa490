"""Orders outlive the process: one places them and is killed, another closes what is overdue.

The first process places three orders, two to be paid within two seconds and one within a
minute, and then dies by kill -9. Three seconds later this one opens the same SQLite file. It
learns that the third order was paid, and closes the other two, a second late; nobody
schedules anything for that. Neither process knows a function of the other: an order names
the queue of a handler.

With Redis key-expiry events the two orders would be lost: nobody listened when they expired.

LAPSE_DEMO_SPEED=20 in the environment makes every delay 20 times shorter.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time

import lapse

SPEED = float(os.environ.get("LAPSE_DEMO_SPEED", 1))


def now() -> float:
    """The clock of all schedulers, in every process."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def tell(order_id: str, event: str, note: str = "") -> None:
    print(f"{now() - started:6.2f} s  {order_id:<12} {event:<8} {note}".rstrip(), flush=True)


def place_orders(url: str) -> None:
    """The shop: when schedule returns, the order is on the disk."""
    with lapse.Scheduler(url) as s:
        for order_id, pay_within in (("OID1", 2), ("OID2", 60), ("OID3", 2)):
            s.schedule(order_id, pay_within / SPEED, queue="close_unpaid")
            tell(order_id, "placed")
        os.kill(os.getpid(), signal.SIGKILL)


def close_overdue(url: str) -> None:
    """The next process: it only consumes."""
    with lapse.Scheduler(url, workers=0) as s:
        unpaid = {"OID1", "OID3"}

        @s.handler("close_unpaid", attempts=5)
        def close_unpaid(order: lapse.Order) -> None:
            tell(order, "closed", f"late {order.late * 1000:.1f} ms")
            unpaid.discard(order.id)
            if not unpaid:
                s.stop()  # ends run() below

        if s.cancel("OID2"):
            tell("OID2", "paid")
        s.run()


if len(sys.argv) == 3:
    started = float(sys.argv[2])
    place_orders(sys.argv[1])
else:
    started = now()
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/orders.db"
        shop = subprocess.run([sys.executable, __file__, url, str(started)])
        assert shop.returncode == -signal.SIGKILL
        time.sleep(3 / SPEED)
        close_overdue(url)
