"""lapse.aio on RabbitMQ, by itself and with a store that keeps the orders: an order runs, is tried again,
dies, is requeued; and the loop goes on while the broker does not answer."""

import asyncio
from urllib.parse import quote

import lapse
import lapse.aio
import pytest
from consumer import Consumer
from lapse import Fate, Reason, State
from loops import Loops, listed, until
from support import PATIENCE, of_debian

of_debian("pika")
from rabbitmq_server import Server  # noqa: E402: it needs pika

SERVER = Server


@pytest.fixture(params=["asyncio", "uvloop"])
def loops(request):
    """The store itself decides what is asked on a thread."""
    return Loops(request.param)


@pytest.fixture(params=["alone", "kept"])
def url(request, server, tmp_path):
    address = server.place()
    if request.param == "alone":
        return address
    return f"{address}&ticket={quote(f'sqlite:///{tmp_path}/orders.db?keep=1h', safe='')}"


def is_kept(url):
    return "ticket=" in url


def test_an_order_runs_is_tried_again_dies_and_is_requeued(loops, url):
    async def main():
        ran, told = [], []
        async with lapse.aio.Scheduler(
            url, on_error=lambda *_: None, on_dead=lambda info, why: told.append((info.id, why))
        ) as s:

            @s.handler("q", attempts=3, backoff=0.01)
            async def close(order):
                await asyncio.sleep(0)  # sleeps: other tasks go on
                ran.append((str(order), order.attempt, order.payload))
                if order == "hopeless":
                    raise lapse.Reject("no such order")
                if order == "again" and order.attempt < 3:
                    raise lapse.Retry(0.01)
                if order == "fails" and len(told) < 2:
                    raise ValueError("no gateway")

            results = await s.schedule_many(
                [(id, 0.05, None, b"\0", "q") for id in ("o", "hopeless", "again", "fails")]
            )
            assert all(isinstance(r, int) for r in results)
            await until(lambda: len(told) == 2 and ("again", 3, b"\0") in ran)
            assert sorted(told) == [("fails", Reason.FAILED), ("hopeless", Reason.REJECTED)]
            assert sorted(await listed(s, State.DEAD)) == ["fails", "hopeless"]
            assert await s.purge("hopeless") == 1
            before = len(ran)
            assert await s.requeue("fails", 0.05) > 0
            await until(lambda: len(ran) == before + 1)
            assert ran[-1] == ("fails", 1, b"\0") and await listed(s, State.DEAD) == []
        tries = [n for id, n, _ in ran if id == "again"]
        assert tries == [1, 2, 3] and [n for id, n, _ in ran if id == "o"] == [1]

    loops.run(main)


def test_what_can_be_asked_of_a_pending_order(loops, url):
    async def main():
        async with lapse.aio.Scheduler(url) as s:
            await s.schedule("o", 60, queue="q")
            if not is_kept(url):
                for ask in (
                    s.cancel("o"), s.get("o"), s.reschedule("o", 60),
                    s.schedule("o", 60, queue="q", replace=True), listed(s),
                ):  # fmt: skip
                    with pytest.raises(lapse.Unsupported, match="ticket"):
                        await ask
                return
            with pytest.raises(lapse.Exists):
                await s.schedule("o", 60, queue="q")
            assert (await s.get("o")).state is State.PENDING and await listed(s) == ["o"]
            assert await s.reschedule("o", 120) is Fate.RESCHEDULED
            assert await s.cancel("o") is Fate.CANCELLED
            assert await s.cancel("o") is Fate.DONE

    loops.run(main)


def test_claims_of_two_schedulers(loops, url):
    async def main():
        async with lapse.aio.Scheduler(url) as a, lapse.aio.Scheduler(url) as b:
            waiting = asyncio.ensure_future(b.take("q", PATIENCE))
            await a.schedule("o", 0.05, queue="q")
            async with await waiting as claim:
                assert (claim, claim.attempt) == ("o", 1) and await claim.holds()
            assert await a.poll("q") is None
            await a.schedule("p", 0, queue="q")
            claim = await a.take("q", PATIENCE)
            await claim.retry(0)
            async with await b.take("q", PATIENCE) as claim:
                assert (claim, claim.attempt) == ("p", 2)

    loops.run(main)


def test_the_loop_goes_on_while_the_broker_does_not_answer(loops, proxy, through, url):
    """By itself the answer comes when the broker does; with a ticket it does not wait for that."""

    async def main():
        async with lapse.aio.Scheduler(through + "&lease=2m&timeout=30s") as s:
            await s.schedule("warm", 3600, queue="q")
            proxy.stall()
            call = asyncio.ensure_future(s.schedule("o", 0.01, queue="q"))
            turns = 0
            while turns < 1000:
                turns += 1
                await asyncio.sleep(0)  # sleeps: one turn of the loop
            assert is_kept(url) or not call.done()
            proxy.stall(False)
            assert await call > 0

    loops.run(main)
    with Consumer(url) as c:
        loops.run(lambda: until(lambda: "o" in c.ids()))
