"""lapse.aio: what callbacks raise, where it is reported, and what a cancellation means."""

import asyncio
import gc
import logging
import sys

import lapse
import lapse.aio
import pytest
from lapse import Reason, State
from loops import listed, passes, until
from support import PATIENCE


def raiser(error, coroutine):
    """A callback of either kind that raises it."""

    async def awaited(order):
        await passes(1)
        raise error

    def plain(order):
        raise error

    return awaited if coroutine else plain


BOTH = pytest.mark.parametrize("coroutine", [False, True], ids=["plain", "coroutine"])


@BOTH
def test_p28_one_error_stops_nothing(loops, coroutine):
    async def main():
        kinds = [Exception, SystemExit, KeyboardInterrupt, MemoryError]
        errors, ran = [], []
        s, clock = loops.told(on_error=lambda order, error: errors.append((str(order), error)))
        for i in range(1000):
            bad = raiser(kinds[i // 2 % 4](i), coroutine)
            await s.schedule(f"{i}", 0.05, bad if i % 2 else ran.append)
        clock.advance(0.06)
        assert await s.process() == 1000
        assert ran == [f"{i}" for i in range(0, 1000, 2)]
        assert sorted(int(order) for order, error in errors) == list(range(1, 1000, 2))
        assert all(error.args == (int(order),) for order, error in errors)
        await s.schedule("later", 0.05, ran.append)
        clock.advance(0.06)
        assert await s.process() == 1 and ran[-1] == "later"
        await s.close()

    loops.run(main)


@BOTH
@pytest.mark.parametrize("handler", ["none", "plain", "coroutine", "raises", "coroutine raises"])
@pytest.mark.parametrize("error", [ValueError("v"), SystemExit(5), KeyboardInterrupt()])
def test_p40_one_report_each(loops, caplog, monkeypatch, handler, error, coroutine):
    async def main():
        told, unraisable, fallen = [], [], []
        monkeypatch.setattr(sys, "unraisablehook", unraisable.append)
        asyncio.get_running_loop().set_exception_handler(lambda loop, what: fallen.append(what))

        def plain(order, error):
            told.append((order, error))

        async def awaited(order, error):
            await passes(1)
            told.append((order, error))

        def raises(order, error):
            told.append((order, error))
            raise RuntimeError("in the handler")

        async def awaited_raises(order, error):
            raises(order, error)

        s, clock = loops.told()
        s.on_error = {"none": None, "plain": plain, "coroutine": awaited, "raises": raises,
                      "coroutine raises": awaited_raises}[handler]  # fmt: skip
        await s.schedule("e", 1, raiser(error, coroutine), queue="q")
        clock.advance(2)
        await s.process()
        await until(lambda: told or fallen)
        await s.close()
        for order, reported in told:
            assert (order, order.queue, reported) == ("e", "q", error)
            assert reported.__traceback__ is not None
        for what in fallen:
            assert what["exception"] is error and what["order"] == "e"
            assert what["message"] == "order 'e' (queue 'q', attempt 1) failed"
        assert len(told) + len(fallen) == 1 and bool(fallen) == (handler == "none")
        records = [r for r in caplog.records if r.name == "lapse" and r.levelno >= logging.ERROR]
        assert [r.getMessage() for r in records] == (
            ["on_error failed for order 'e'"] if "raises" in handler else []
        )
        assert unraisable == [] and sys.exc_info() == (None, None, None)
        assert [].__len__() == 0

    loops.run(main)


def test_the_loops_own_handler_logs_it(loops, caplog):
    async def main():
        async with loops.scheduler() as s:
            await s.schedule("OID7", 0, raiser(ValueError("on purpose"), True))
            await until(lambda: caplog.records)
        (record,) = caplog.records
        assert record.name == "asyncio" and record.exc_info[1].args == ("on purpose",)
        assert "order 'OID7' (queue '', attempt 1) failed" in record.getMessage()

    loops.run(main)


def test_p40_broken_logging_is_unraisable(loops, monkeypatch):
    async def main():
        unraisable = []
        monkeypatch.setattr(sys, "unraisablehook", lambda args: unraisable.append(args.exc_value))
        monkeypatch.setattr(logging.Logger, "error", lambda *args, **kw: 1 / 0)

        def on_error(order, error):
            raise ValueError

        s, clock = loops.told(on_error=on_error)
        await s.schedule("a", 1, raiser(OSError(), True))
        await s.schedule("b", 1, raiser(OSError(), False))
        clock.advance(2)
        assert await s.process() == 2
        gc.collect()
        assert [type(error) for error in unraisable] == [ZeroDivisionError] * 2
        assert (await s.stats())["failed"] == 2
        await s.close()

    loops.run(main)


def test_errors_of_orders_lost_and_dead_reach_the_hooks(loops):
    async def main():
        lost, dead = [], []

        async def on_error(order, error):
            await passes(1)
            lost.append((order, error))

        async def on_dead(info, reason):
            await passes(1)
            dead.append((info.id, info.error, reason))

        go = asyncio.Event()
        s, clock = loops.told(on_error=on_error, on_dead=on_dead)

        @s.handler("q", run_limit=10, attempts=1)
        async def hangs(order):
            await go.wait()

        await s.schedule("o", 0, hangs)
        clock.advance(1)
        await until(lambda: s._runner.held)
        clock.advance(11)
        await until(lambda: lost and dead)
        assert lost[0][0] == "o" and isinstance(lost[0][1], lapse.Timeout)
        assert dead == [("o", "the callback ran longer than its run_limit", Reason.LOST)]
        go.set()
        await s.close()

    loops.run(main)


def test_dead_letters_without_a_hook_are_logged(loops, caplog):
    async def main():
        async with loops.scheduler() as s:
            await s.schedule("o", 0, raiser(lapse.Reject("no such account"), True))
            await until(lambda: "order 'o' is a dead letter: rejected (no such account)"
                        in caplog.text)  # fmt: skip

    loops.run(main)


def test_close_waits_for_hooks(loops):
    async def main():
        go, told = asyncio.Event(), []

        async def on_error(order, error):
            await go.wait()
            told.append(error)

        s = loops.scheduler(on_error=on_error)
        await s.schedule("o", 0, raiser(ValueError(), True))
        await until(lambda: s._runner.hooks)
        with pytest.raises(lapse.Timeout):
            await s.close(0.01)
        go.set()
        await s.close()
        assert len(told) == 1

    loops.run(main)


# -- Verdicts ---------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("returned", [False, True], ids=["raised", "returned"])
@pytest.mark.parametrize("verdict", [
    lapse.Retry, lapse.Retry(0.5), lapse.Reject, lapse.Reject("no such account")
])  # fmt: skip
def test_verdicts(loops, verdict, returned, coroutine):
    async def main():
        reported = []
        s, clock = loops.told(on_error=lambda order, error: reported.append(error))

        def plain(order):
            if returned:
                return verdict
            raise verdict

        async def awaited(order):
            await passes(1)
            return plain(order)

        await s.schedule("o", 1, awaited if coroutine else plain)
        clock.advance(2)
        assert await s.process() == 1 and reported == []
        found = await s.get("o")
        if isinstance(verdict, lapse.Retry) or verdict is lapse.Retry:
            delay = getattr(verdict, "delay", None)
            assert found.state is State.PENDING
            assert 0 < found.remaining <= (1.3 if not isinstance(delay, float) else 0.502)
        else:
            assert (found.state, found.reason) == (State.DEAD, Reason.REJECTED)
            assert found.error == getattr(verdict, "error", None) or verdict is lapse.Reject
        await s.close()

    loops.run(main)


@BOTH
def test_verdicts_that_cannot_be_made_are_errors(loops, coroutine):
    class Needs(lapse.Retry):
        def __init__(self, argument):
            pass

    async def main():
        reported = []
        s, clock = loops.told(on_error=lambda order, error: reported.append(type(error)))

        async def lacks(order):
            raise Needs(1)

        async def no_time(order):
            raise lapse.Retry("soon")

        async def returns(order):
            return Needs

        for n, callback in enumerate([lacks, no_time, returns]):
            given = callback if coroutine else (lambda order, f=callback: f(order))
            await s.schedule(f"{n}", 1, given)
        clock.advance(2)
        await s.process()
        assert sorted(e.__name__ for e in reported) == ["AttributeError", "TypeError", "TypeError"]
        assert (await s.stats())["failed"] == 3
        await s.close()

    loops.run(main)


# -- Cancellation -------------------------------------------------------------------------


def test_a_cancelled_task_gives_its_order_back(loops, monkeypatch):
    monkeypatch.setattr("lapse._runner._REST", 0.05)

    async def main():
        attempts, inside = [], asyncio.Event()

        async def callback(order):
            attempts.append((order.attempt, asyncio.get_running_loop().time()))
            inside.set()
            if len(attempts) == 1:
                await asyncio.Event().wait()

        async with loops.scheduler() as s:
            await s.schedule("o", 0, callback)
            await inside.wait()
            (task,) = s._runner.tasks()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await until(lambda: (task.done() and not s._runner.held) or len(attempts) == 2)
            assert (await s.stats())["given_back"] == 1
            await until(lambda: len(attempts) == 2)
            (first, began), (second, again) = attempts
            assert (first, second) == (1, 1)
            assert again - began >= 0.048  # uvloop's clock counts milliseconds
            await until(lambda: not s._runner.held)
            assert (await s.stats())["done"] == 1

    loops.run(main)


def test_awaiting_what_was_cancelled_is_an_error_of_the_callback(loops):
    """Giving back what cancels itself would run it again at once, for ever."""

    async def main():
        reported = []
        s, clock = loops.told(on_error=lambda order, error: reported.append(type(error)))

        async def callback(order):
            other = asyncio.ensure_future(asyncio.Event().wait())
            other.cancel()
            await other

        await s.schedule("o", 1, callback)
        clock.advance(2)
        await s.process()
        assert reported == [asyncio.CancelledError]
        found = await s.stats()
        assert (found["failed"], found["given_back"], found["pending"]) == (1, 0, 0)
        await s.close()

    loops.run(main)


def test_a_timeout_inside_a_callback_is_an_error_like_others(loops):
    async def main():
        reported = []
        async with loops.scheduler() as s:
            s.on_error = lambda order, error: reported.append(type(error))

            async def callback(order):
                async with asyncio.timeout(0.001):
                    await asyncio.Event().wait()

            await s.schedule("o", 0, callback)
            await until(lambda: reported)
            assert reported == [TimeoutError]

    loops.run(main)


def test_cancelling_before_the_first_step(loops, monkeypatch):
    """A task that never began gives its order back as well."""
    monkeypatch.setattr("lapse._runner._REST", 60)

    async def main():
        ran = []

        async def callback(order):
            ran.append(order)

        s, clock = loops.told()
        await s.schedule("o", 1, callback)
        clock.advance(2)
        s._runner.ready()
        while not s._runner.tasks():
            await passes(1)
        for task in s._runner.tasks():
            task.cancel()
        await until(lambda: not s._runner.held)
        found = await s.stats()
        assert (found["pending"] + len(ran), found["running"]) == (1, 0)
        await s.close()

    loops.run(main)


def test_what_a_callback_leaves_to_the_loop_is_the_hosts(loops):
    """A task that a callback started is no part of it."""

    async def main():
        done = asyncio.Event()

        async def later():
            await passes(5)
            done.set()

        keep = []

        async def callback(order):
            keep.append(asyncio.ensure_future(later()))

        s = loops.scheduler()
        await s.schedule("o", 0, callback)
        await until(lambda: keep)
        await s.close()
        await asyncio.wait_for(done.wait(), PATIENCE)
        assert await listed_nothing(s)

    async def listed_nothing(s):
        with pytest.raises(lapse.Closed):
            await listed(s)
        return True

    loops.run(main)
