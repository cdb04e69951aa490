# tiers: full
"""gunicorn with four workers on one SQLite file: orders belong to nobody and are lost by nobody.

Customers place and pay all the time, at whatever worker answers, while workers are reloaded and
killed. Whatever was answered with 201 is paid or closed in the end, exactly once.
"""

import http.client
import signal
import threading
from pathlib import Path

from hosts import Serve, Server, until
from test_durable import durable


class Customers:
    """Threads that place orders and pay every other one of them."""

    def __init__(self, shop: Server, count: int) -> None:
        self.shop = shop
        self.placed: list[str] = []  # answered
        self.paid: set[str] = set()  # answered
        self.unsure: set[str] = set()  # whose payment was cut off
        self.cut_off = 0
        self.workers: set[int | None] = set()
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._run) for _ in range(count)]
        for thread in self._threads:
            thread.start()

    def _run(self) -> None:
        number = 0
        while not self._ended.is_set():
            number += 1
            try:
                order = self.shop.place()
                self.workers.add(order.worker)
                self.placed.append(order.id)
                if number % 2:
                    self._pay(order.id)
            except (OSError, http.client.HTTPException):
                self.cut_off += 1  # by the kill of a worker

    def _pay(self, order_id: str) -> None:
        self.unsure.add(order_id)
        answer = self.shop.pay(order_id)
        assert answer.status in (200, 409), answer
        if answer.status == 200:
            self.paid.add(order_id)
        self.unsure.discard(order_id)

    def more(self) -> None:
        before = len(self.placed)
        until("more orders were placed", lambda: len(self.placed) >= before + 20)

    def end(self) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()


def test_place_pay_close_reload_and_kill(serve: Serve, tmp_path: Path) -> None:
    shop = durable(serve, "flask-four", tmp_path, "1.5")
    customers = Customers(shop, 4)
    try:
        customers.more()
        before = shop.workers()
        shop.signal(signal.SIGHUP)
        until("all workers are new", lambda: len(shop.workers()) == 4 and not before & shop.workers())
        customers.more()
        for _ in range(2):
            victim = min(shop.workers())
            shop.signal(signal.SIGKILL, victim)
            until("it was replaced", lambda v=victim: v not in shop.workers())
            until("there are four", lambda: len(shop.workers()) == 4)
            customers.more()
    finally:
        customers.end()
    assert len(customers.workers) >= 5, "the orders were placed at several workers"
    unpaid = [i for i in customers.placed if i not in customers.paid | customers.unsure]
    assert unpaid and customers.paid
    shop.until_closed(*unpaid)
    until("no order is open", lambda: not shop.sql("SELECT 1 FROM orders WHERE status = 'open'"))
    changes = shop.changes()
    assert {i: changes[i] for i in customers.paid} == {i: ["paid"] for i in customers.paid}
    assert {i: changes[i] for i in unpaid} == {i: ["closed"] for i in unpaid}
    assert all(len(once) == 1 for once in changes.values())
    shop.stop()
    import lapse

    with lapse.Scheduler(shop.settings["LAPSE_URL"], workers=0) as s:
        left = s.orders(lapse.State.PENDING | lapse.State.RUNNING | lapse.State.DEAD)
        assert [info for info in left if info.id in changes] == []
    print(f"{len(customers.placed)} placed, {len(customers.paid)} paid, {customers.cut_off} cut off")
