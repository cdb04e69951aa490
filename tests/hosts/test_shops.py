# tiers: full
"""Each shop on each of its servers: an order that is not paid in time is closed."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from hosts import HOSTS, Serve, Server

every_host = pytest.mark.parametrize("host", HOSTS)
one_of_each = pytest.mark.parametrize(
    "host", ["flask-sync", "django-preload", "fastapi-asyncio", "fastapi-uvloop"]
)


@every_host
def test_an_unpaid_order_is_closed_and_not_before_its_time(serve: Serve, host: str) -> None:
    shop = serve(host, SHOP_PAY_WITHIN="0.7")
    begun = time.monotonic()
    order = shop.place()
    shop.until_closed(order.id)
    assert time.monotonic() - begun >= 0.7
    assert shop.pay(order.id).status == 409
    assert shop.changes() == {order.id: ["closed"]}
    shop.stop()


@every_host
def test_a_paid_order_stays_paid(serve: Serve, host: str) -> None:
    shop = serve(host, SHOP_PAY_WITHIN="4")
    paid = [shop.place().id for _ in range(4)]
    assert [shop.pay(i).status for i in paid] == [200] * 4  # in whatever worker
    assert shop.pay(paid[0]).status == 409
    later = [shop.place().id for _ in range(4)]
    shop.until_closed(*later)
    assert {shop.status(i) for i in paid} == {"paid"}
    assert shop.changes() == {i: ["paid"] for i in paid} | {i: ["closed"] for i in later}
    assert shop.pay("none").status == 404
    shop.stop()


def pay_at(shop: Server, order_id: str, when: float) -> int:
    time.sleep(max(0.0, when - time.monotonic()))  # sleeps: the payment meets the closing
    return shop.pay(order_id).status


@every_host
def test_payment_and_closing_meet_and_one_of_them_wins(serve: Serve, host: str) -> None:
    shop = serve(host, SHOP_PAY_WITHIN="1.5")
    with ThreadPoolExecutor(8) as customers:
        asked = []
        for number in range(30):
            due = time.monotonic() + 1.5
            order_id = shop.place().id
            when = due + number % 5 / 200
            asked.append((order_id, customers.submit(pay_at, shop, order_id, when)))
        answers = {order_id: answer.result() for order_id, answer in asked}
    shop.until_closed(*(i for i, status in answers.items() if status == 409))
    assert set(answers.values()) <= {200, 409}
    assert shop.changes() == {
        i: ["paid" if status == 200 else "closed"] for i, status in answers.items()
    }
    shop.stop()


@one_of_each
def test_it_ends_at_once_with_orders_pending(serve: Serve, host: str) -> None:
    shop = serve(host)
    order = shop.place()
    shop.stop()
    assert shop.changes() == {}
    shop.start()
    assert shop.status(order.id) == "open"
    assert shop.pay(order.id).status == 200
    shop.stop()


@one_of_each
@pytest.mark.parametrize("ends", ["stop", "kill"])
def test_a_server_that_starts_again_closes_what_fell_due_meanwhile(
    serve: Serve, host: str, ends: str
) -> None:
    """memory: ends with the process; the shop's table, read at the start, does not."""
    shop = serve(host, SHOP_PAY_WITHIN="4")
    orders = [shop.place().id for _ in range(4)]
    paid = orders.pop()
    shop.pay(paid)
    due = time.monotonic() + 4
    getattr(shop, ends)()
    time.sleep(max(0.0, due - time.monotonic()))  # sleeps: nobody is there when they fall due
    before = shop.changes()
    assert before == {paid: ["paid"]}
    shop.start()
    shop.until_closed(*orders)
    assert shop.changes() == before | {i: ["closed"] for i in orders}
    shop.stop()
