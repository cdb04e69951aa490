# tiers: full
"""The same shops with LAPSE_URL=sqlite:...: orders outlive their worker without any recovery.

gunicorn runs without the shops' gunicorn.conf.py, which would look into the table.
"""

import signal
import time
from pathlib import Path

import lapse
import pytest
from hosts import Serve, Server, runs, until
from test_gunicorn import place_in_both

# Not with --preload: the master, where the handlers are registered, would be one more consumer.
two_workers = pytest.mark.parametrize("host", ["flask-two", "django-two"])


def durable(serve: Serve, host: str, folder: Path, pay_within: str) -> Server:
    empty = folder / "empty.conf.py"
    empty.write_text("")
    url = f"sqlite:///{folder / 'lapse.db'}"
    return serve(host, "--config", str(empty), LAPSE_URL=url, SHOP_PAY_WITHIN=pay_within)


@two_workers
def test_orders_of_a_killed_worker_are_closed(serve: Serve, host: str, tmp_path: Path) -> None:
    shop = durable(serve, host, tmp_path, "6")
    taken = place_in_both(shop, 2)
    victim = min(taken)
    shop.signal(signal.SIGKILL, victim)
    until("it is gone", lambda: not runs(victim))
    orders = [i for ids in taken.values() for i in ids]
    shop.until_closed(*orders)
    assert shop.changes() == {i: ["closed"] for i in orders}
    shop.stop()


@two_workers
def test_a_payment_in_another_worker_cancels(serve: Serve, host: str, tmp_path: Path) -> None:
    shop = durable(serve, host, tmp_path, "3600")
    taken = place_in_both(shop, 2)
    one, other = taken
    for payer, ids in ((one, taken[other]), (other, taken[one])):
        with shop.only(payer):
            assert [shop.pay(i).status for i in ids] == [200] * 2
    shop.stop()
    with lapse.Scheduler(shop.settings["LAPSE_URL"], workers=0) as s:
        assert s.orders(lapse.State.PENDING) == []


@two_workers
def test_a_server_that_was_killed_closes_what_fell_due_meanwhile(
    serve: Serve, host: str, tmp_path: Path
) -> None:
    shop = durable(serve, host, tmp_path, "4")
    orders = [i for ids in place_in_both(shop, 2).values() for i in ids]
    due = time.monotonic() + 4
    shop.kill()
    time.sleep(max(0.0, due - time.monotonic()))  # sleeps: nobody is there when they fall due
    assert shop.changes() == {}
    shop.start()
    shop.until_closed(*orders)
    assert shop.changes() == {i: ["closed"] for i in orders}
    shop.stop()
