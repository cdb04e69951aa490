# tiers: full
"""Several workers of gunicorn: forked, reloaded and killed in the middle.

The orders of memory: belong to one worker and end with it. What a shop does about that is in
its gunicorn.conf.py; what happens to a shop without it is shown here as well.
"""

import os
import signal
import threading
from pathlib import Path

import pytest
from hosts import Serve, Server, runs, until

two_workers = pytest.mark.parametrize("host", ["flask-two", "flask-preload", "django-preload"])


def place_in_both(shop: Server, each: int) -> dict[int, list[str]]:
    """Worker -> the orders that it took."""
    taken: dict[int, list[str]] = {}
    for worker in shop.workers():
        with shop.only(worker):
            placed = [shop.place() for _ in range(each)]
        assert {order.worker for order in placed} == {worker}
        taken[worker] = [order.id for order in placed]
    assert len(taken) == 2
    return taken


@two_workers
def test_payment_may_reach_another_worker(serve: Serve, host: str) -> None:
    """cancel() knows nothing of the order there; the callback finds it paid."""
    shop = serve(host, SHOP_PAY_WITHIN="6")
    taken = place_in_both(shop, 3)
    one, other = taken
    for payer, ids in ((one, taken[other]), (other, taken[one])):
        with shop.only(payer):
            assert [shop.pay(i).status for i in ids] == [200] * 3
    later = place_in_both(shop, 1)
    shop.until_closed(*later[one], *later[other])
    assert {shop.status(i) for i in taken[one] + taken[other]} == {"paid"}
    shop.stop()


@pytest.mark.parametrize("host", ["flask-preload", "django-preload"])
def test_with_preload_the_master_runs_nothing(serve: Serve, host: str) -> None:
    shop = serve(host, SHOP_PAY_WITHIN="0.5")
    taken = place_in_both(shop, 2)
    shop.until_closed(*(i for ids in taken.values() for i in ids))
    assert shop.threads(shop.process.pid) == 1
    assert set(taken) == shop.workers()
    shop.stop()


@two_workers
def test_a_reload_in_the_middle_loses_no_order(serve: Serve, host: str) -> None:
    shop = serve(host, SHOP_PAY_WITHIN="2", SHOP_GRACE="3")
    before = shop.workers()
    orders, ended = [], threading.Event()

    def customers() -> None:
        while not ended.is_set():
            orders.append(shop.place().id)

    placing = threading.Thread(target=customers)
    placing.start()
    until("some orders were placed", lambda: len(orders) >= 10)
    shop.signal(signal.SIGHUP)
    until("all workers are new", lambda: not before & shop.workers() and shop.workers())
    until("the old ones are gone", lambda: not any(map(runs, before)))
    ended.set()
    placing.join()
    shop.until_closed(*orders)
    assert shop.changes() == {i: ["closed"] for i in orders}
    shop.stop()


@two_workers
def test_orders_of_a_killed_worker_are_taken_up_by_its_successor(serve: Serve, host: str) -> None:
    shop = serve(host, SHOP_PAY_WITHIN="6")
    taken = place_in_both(shop, 3)
    paid = [ids.pop() for ids in taken.values()]
    for order_id in paid:
        assert shop.pay(order_id).status == 200
    victim = min(taken)
    shop.signal(signal.SIGKILL, victim)
    until("it is gone", lambda: not runs(victim))
    shop.until_closed(*(i for ids in taken.values() for i in ids))
    closed = {i: ["closed"] for ids in taken.values() for i in ids}
    assert shop.changes() == closed | {i: ["paid"] for i in paid}
    shop.stop()


@two_workers
def test_without_recovery_the_orders_of_a_killed_worker_stay_open(
    serve: Serve, host: str, tmp_path: Path
) -> None:
    """What memory: does not promise. The orders of the other worker are closed all the same."""
    empty = tmp_path / "empty.conf.py"
    empty.write_text("")
    shop = serve(host, "--config", str(empty), SHOP_PAY_WITHIN="6")
    taken = place_in_both(shop, 2)
    victim = min(taken)
    lost = taken.pop(victim)
    shop.signal(signal.SIGKILL, victim)
    until("it has a successor", lambda: victim not in shop.workers() and len(shop.workers()) == 2)
    later = place_in_both(shop, 1)
    shop.until_closed(*(i for ids in taken.values() for i in ids))
    shop.until_closed(*(i for ids in later.values() for i in ids))
    assert {shop.status(i) for i in lost} == {"open"}
    assert {shop.pay(i).status for i in lost} == {200}
    shop.stop()


@two_workers
def test_workers_that_are_recycled_hand_their_orders_on(serve: Serve, host: str) -> None:
    """max_requests: a worker ends by itself after so many requests."""
    shop = serve(host, "--max-requests", "15", SHOP_PAY_WITHIN="2", SHOP_GRACE="1")
    seen = {os.getpid()}
    orders = []

    def recycled() -> bool:
        order = shop.place()
        orders.append(order.id)
        seen.add(order.worker or 0)
        return len(seen) > 5

    until("workers were recycled", recycled)
    shop.until_closed(*orders)
    assert shop.changes() == {i: ["closed"] for i in orders}
    shop.stop()
