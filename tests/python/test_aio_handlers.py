"""lapse.aio: handlers, and how many callbacks run at once."""

import asyncio

import lapse
import lapse.aio
import pytest
from lapse import Fate, Reason, State
from loops import Slow, listed, passes, until
from support import rounds

# -- Handlers ---------------------------------------------------------------------------


def test_handlers_retry_and_end(loops):
    async def main():
        s, clock = loops.told(on_error=lambda order, error: None)
        attempts = []

        @s.handler("refund", attempts=3, backoff=1, jitter_percent=-1)
        async def refund(order):
            attempts.append((str(order), order.attempt))
            if order != "good":
                raise ConnectionError("gateway down")

        await s.schedule("good", 1, refund)
        await s.schedule("bad", 1, queue="refund")
        for _ in range(5):
            clock.advance(10)
            await s.process()
        assert attempts == [("good", 1), ("bad", 1), ("bad", 2), ("bad", 3)]
        dead = await s.get("bad")
        assert (dead.reason, dead.error) == (Reason.FAILED, "ConnectionError: gateway down")
        assert (await s.queue_stats("refund"))["handled"] and await s.queues() == ["", "refund"]
        await s.close()

    loops.run(main)


def test_a_handler_may_be_registered_without_a_loop(loops):
    s, ran = loops.scheduler(), []

    @s.handler("q")
    async def handle(order):
        ran.append(order)

    async def main():
        async with s:
            await s.schedule("o", 0, queue="q")
            await until(lambda: ran)

    loops.run(main)
    assert s.closed


def test_the_decorator_needs_its_queue():
    s = lapse.aio.Scheduler()
    with pytest.raises(TypeError, match=r'write @s.handler\("queue"\)'):
        s.handler(print)


def test_pause_resume_requeue_purge(loops):
    async def main():
        s, clock = loops.told()
        ran = []

        async def callback(order):
            ran.append(str(order))
            raise lapse.Reject("no such account")

        await s.pause("q")
        s.handle("q", callback)
        for name in "abc":
            await s.schedule(name, 0, queue="q")
        clock.advance(1)
        assert await s.process() == 0
        await s.resume("q")
        await until(lambda: len(ran) == 3)
        await until(lambda: not s._runner.held)
        assert await listed(s, State.DEAD) == ["a", "b", "c"]
        assert (await s.get("a")).reason is Reason.REJECTED
        assert await s.requeue("a", 5) > 0
        with pytest.raises(lapse.Unknown):
            await s.requeue("never")
        assert await s.purge("b") == 1 and await s.purge() == 1
        assert await listed(s) == ["a"] and await s.get("b") is None
        assert 'lapse_orders{state="pending"} 1' in await s.metrics()
        assert s.now() == pytest.approx(1)
        await s.close()

    loops.run(main)


# -- How many at once -------------------------------------------------------------------


@pytest.mark.parametrize("plain", [False, True])
def test_p29_no_more_than_concurrency_at_once(loops, plain):
    async def main():
        now = most = ended = 0
        n = rounds(60, 300, 3000)

        async def callback(order):
            nonlocal now, most, ended
            now += 1
            most = max(most, now)
            await passes(3)
            now -= 1
            ended += 1

        async with loops.scheduler(concurrency=5) as s:
            given = (lambda order: callback(order)) if plain else callback
            await s.schedule_many([(str(i), 0, given) for i in range(n)])
            await until(lambda: ended == n)
            assert most == 5

    loops.run(main)


def test_orders_beyond_it_stay_pending(loops):
    async def main():
        go, inside = asyncio.Event(), []

        async def callback(order):
            inside.append(str(order))
            await go.wait()

        async with loops.scheduler(concurrency=2) as s:
            await s.schedule_many([(str(i), 0, callback) for i in range(5)])
            await until(lambda: len(inside) == 2)
            await passes(20)
            found = await s.stats()
            assert (found["pending"], found["running"]) == (3, 2)
            assert await s.cancel("2") is Fate.CANCELLED
            go.set()
            await until(lambda: len(inside) == 4)
        assert inside == ["0", "1", "3", "4"]

    loops.run(main)


def test_a_full_loop_does_not_spin(loops, wakes):
    """While no order fits, the descriptor stays readable: nobody may listen to it."""

    async def main():
        slow = Slow()
        async with loops.scheduler(concurrency=1) as s:
            await s.schedule_many([(str(i), 0, slow.callback) for i in range(3)])
            await slow.inside.wait()
            await until(lambda: not s._runner.passing)
            before = len(wakes)
            await passes(100)
            assert len(wakes) == before and (await s.stats())["pending"] == 2
            slow.go.set()

    loops.run(main)


def test_an_idle_loop_does_not_wake(loops, wakes):
    """What a taker could have, and nobody wants, is told once."""

    async def main():
        s, clock = loops.told()
        await s.schedule("pull", 1, queue="q")
        await s.schedule("far", 3600, print)
        await s.schedule("paused", 1, print, queue="p")
        await s.pause("p")
        clock.advance(2)
        await until(lambda: wakes)
        await passes(20)
        before = len(wakes)
        await passes(100)
        assert len(wakes) == before <= 3
        await s.close()

    loops.run(main)


def test_run_limit_while_the_loop_is_full(loops, monkeypatch):
    """Nobody listens then, and callbacks that run too long are seen all the same."""
    monkeypatch.setattr("lapse._runner._LOOK", 0.02)

    async def main():
        lost, go = [], asyncio.Event()
        s, clock = loops.told(concurrency=1, on_error=lambda order, error: lost.append(error))

        @s.handler("q", run_limit=10, attempts=2)
        async def hangs(order):
            await go.wait()

        await s.schedule("o", 0, hangs)
        clock.advance(1)
        await until(lambda: s._runner.held)
        clock.advance(11)
        await until(lambda: lost)
        assert isinstance(lost[0], lapse.Timeout)
        (held,) = s._runner.held
        assert not await s.holds(held.order)
        go.set()
        await until(lambda: len(s._runner.held) == 0 and s._runner.room)
        await s.process()
        assert (await s.stats())["lost"] == 1
        await s.close()

    loops.run(main)


def test_p27_a_stuck_callback_is_named(loops, caplog):
    async def main():
        go = asyncio.Event()
        s, clock = loops.told(stuck_after=60)
        await s.schedule("OID-stuck", 0, lambda order: go.wait())
        clock.advance(1)
        await until(lambda: s._runner.held)
        clock.advance(61)
        await until(lambda: "OID-stuck" in caplog.text)
        go.set()
        await s.close()

    loops.run(main)


def test_holds_and_renew_inside_a_callback(loops):
    async def main():
        said = []
        s, clock = loops.told(on_error=lambda order, error: None)

        @s.handler("q", run_limit=10, attempts=1)
        async def long(order):
            said.append(await s.holds(order))
            await s.renew(order, 100)
            clock.advance(50)
            said.append(await s.holds(order))
            clock.advance(60)
            said.append(await s.holds(order.fence))

        await s.schedule("o", 1, long)
        clock.advance(2)
        await s.process()
        assert said == [True, True, False]
        await s.close()

    loops.run(main)
