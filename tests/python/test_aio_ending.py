"""lapse.aio: an order is cancelled or given another time, and the scheduler ends."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import lapse
import lapse.aio
import pytest
from lapse import Fate, State
from loops import Slow, listed, passes, until
from support import rounds

# -- Cancel and change ----------------------------------------------------------------


def test_cancel_and_reschedule(loops):
    async def main():
        ran = []
        s, clock = loops.told(keep=60)
        made = await s.schedule("a", 10, ran.append)
        assert await s.cancel("a", made + 1) is Fate.UNKNOWN
        assert await s.reschedule("a", 20) is Fate.RESCHEDULED
        clock.advance(15)
        assert await s.process() == 0
        assert await s.cancel("a", made) is Fate.CANCELLED
        assert await s.cancel("never") is Fate.UNKNOWN
        await s.schedule("b", 1, ran.append)
        clock.advance(10)
        assert await s.process() == 1
        assert await s.cancel("b") is Fate.DONE and ran == ["b"]
        await s.close()

    loops.run(main)


def test_p20_cancel_while_it_runs(loops):
    async def main():
        slow = Slow()

        async def callback(order):
            await slow.callback(order)
            raise lapse.Retry(0)

        async with loops.scheduler() as s:
            await s.schedule("o", 0, callback)
            await slow.inside.wait()
            assert await s.cancel("o") is Fate.RUNNING
            assert await s.reschedule("o", 5) is Fate.RUNNING
            slow.go.set()
            await until(lambda: not s._runner.held)
            found = await s.stats()
            assert (found["pending"], found["running"], found["cancelled"]) == (0, 0, 1)

    loops.run(main)


def test_p21_cancel_wait(loops):
    async def main():
        slow = Slow()
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))  # it does one thing after the other

        async with loops.scheduler() as s:
            await s.schedule("o", 0, slow.callback)
            await s.schedule("pending", 60, slow.callback)
            await slow.inside.wait()
            assert await s.cancel_wait("pending") is Fate.CANCELLED
            assert await s.cancel_wait("never", 0) is Fate.UNKNOWN
            with pytest.raises(lapse.Timeout, match="'o' still runs"):
                await s.cancel_wait(b"o", 0.01)
            assert await s.cancel_wait("o", 5, generation=99) is Fate.UNKNOWN
            waiting = asyncio.ensure_future(s.cancel_wait("o"))
            await passes(3)
            await loop.run_in_executor(None, int)  # it was asked before that
            await passes(10)
            assert not waiting.done()
            slow.go.set()
            assert await waiting is Fate.RUNNING and slow.ended == ["o"]

    loops.run(main)


def test_cancel_wait_inside_that_callback(loops):
    async def main():
        answers = []
        async with loops.scheduler() as s:

            async def callback(order):
                answers.append(await s.cancel_wait(order))

            await s.schedule("o", 0, callback)
            await until(lambda: answers)
            assert answers == [Fate.RUNNING]

    loops.run(main)


def test_p20_every_order_has_one_winner(loops):
    """Orders that fall due are cancelled at that very moment."""

    async def main():
        n, ran, cancelled = rounds(500, 3000, 30_000), [], []

        async def callback(order):
            ran.append(str(order))

        async with loops.scheduler() as s:
            for i in range(n):
                await s.schedule(f"o{i}", 0.001 + i % 10 * 0.001, callback)
                victim = f"o{i - i % 7}"
                if await s.cancel(victim):
                    cancelled.append(victim)
            await until(lambda: len(ran) + len(cancelled) == n)
            assert not set(ran) & set(cancelled) and len(set(ran)) == len(ran)
            await until(lambda: not s._runner.held)
            found = await s.stats()
            assert (found["done"], found["cancelled"]) == (len(ran), len(cancelled))

    loops.run(main)


# -- Ending -------------------------------------------------------------------------------


def test_stop_lists_what_did_not_run(loops):
    async def main():
        ran = []
        async with loops.scheduler() as s:

            async def stops(order):
                await s.stop()
                ran.append(order)

            await s.schedule_many([(f"later{i}", 60, ran.append) for i in range(10)])
            await s.schedule("stops", 0, stops)
            await until(lambda: ran)
            await s.stop()
            with pytest.raises(lapse.Closed):
                await s.schedule("x", 0, print)
            assert await listed(s, State.PENDING) == [f"later{i}" for i in range(10)]
            assert await s.cancel("later0") is Fate.CANCELLED
            assert not s._runner._listening

    loops.run(main)


def test_close_waits_for_callbacks(loops):
    async def main():
        slow, s = Slow(), loops.scheduler()
        await s.schedule("OID7", 0, slow.callback)
        await slow.inside.wait()
        for limit in (0, 0.01):
            with pytest.raises(lapse.Timeout, match="'OID7' still runs"):
                await s.close(limit)
        assert not s.closed
        both = [asyncio.ensure_future(s.close()) for _ in range(2)]
        await passes(10)
        assert not any(close.done() for close in both)
        slow.go.set()
        await asyncio.gather(*both)
        assert s.closed and slow.ended == ["OID7"]
        await s.close()

    loops.run(main)


def test_close_that_is_cancelled_leaves_it_stopped(loops):
    async def main():
        slow, s = Slow(), loops.scheduler()
        await s.schedule("o", 0, slow.callback)
        await slow.inside.wait()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(s.close(), 0.01)
        assert not s.closed
        with pytest.raises(lapse.Closed):
            await s.schedule("x", 0, print)
        slow.go.set()
        await s.close()

    loops.run(main)


def test_p26_close_inside_a_callback_is_refused(loops):
    async def main():
        errors = []
        async with loops.scheduler() as s:

            async def closes(order):
                try:
                    await s.close()
                except lapse.InCallback as error:
                    errors.append(error)

            async def on_error(order, error):
                await closes(order)

            def fails(order):
                raise ValueError

            s.on_error = on_error
            await s.schedule("a", 0, closes)
            await s.schedule("b", 0, fails)
            await until(lambda: len(errors) == 2)

    loops.run(main)


def test_a_plain_callback_may_have_it_closed(loops):
    async def main():
        s, closing = loops.scheduler(), []
        await s.schedule("o", 0, lambda order: closing.append(asyncio.ensure_future(s.close())))
        await until(lambda: closing and closing[0].done())
        await closing[0]
        assert s.closed

    loops.run(main)


def test_after_close(loops, caplog):
    async def main():
        caplog.set_level("INFO")
        s = loops.scheduler()
        await s.schedule("o", 60, print)
        await s.close()
        assert "1 pending order will not run" in caplog.text
        assert s.closed and repr(s) == "<lapse.aio.Scheduler memory: closed>"
        for call in (
            lambda: s.schedule("o", 1, print),
            lambda: s.take(),
            lambda: s.take(timeout=1),
            lambda: s.poll(),
            lambda: s.stats(),
            lambda: s.pause("q"),
            lambda: listed(s),
        ):
            with pytest.raises(lapse.Closed):
                await call()
        assert await s.cancel("o") is Fate.UNKNOWN
        assert await s.cancel_wait("o") is Fate.UNKNOWN
        await s.stop()
        await s.close()

    loops.run(main)


def test_nothing_runs_after_close(loops):
    async def main():
        for _ in range(rounds(20, 100, 1000)):
            ran, s = [], loops.scheduler()

            async def callback(order, ran=ran):
                await passes(1)
                ran.append(order)

            await s.schedule_many([(f"{i}", i * 0.0001, callback) for i in range(50)])
            await passes(5)
            await s.close()
            count = len(ran)
            await passes(5)
            assert len(ran) == count

    loops.run(main)
