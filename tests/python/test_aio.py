"""lapse.aio: the same names, awaitable; callbacks of either kind run in the loop."""

import asyncio
import functools
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from datetime import datetime, timedelta, timezone

import lapse
import lapse.aio
import pytest
from lapse import Fate, Reason, State
from loops import listed, passes, until
from support import boot_ns, rounds

# -- Schedule and run -----------------------------------------------------------------


def test_both_kinds_of_callbacks_run_in_the_loop(loops):
    async def main():
        ran, threads = [], set()

        async def coroutine(order):
            threads.add(threading.get_ident())
            await asyncio.sleep(0)  # sleeps: one pass of the loop
            ran.append((order, order.payload, order.attempt, order.generation))

        def plain(order):
            threads.add(threading.get_ident())
            ran.append((order, order.payload, order.attempt, order.generation))

        async with loops.scheduler() as s:
            first = await s.schedule("OID1", 0.02, coroutine, b"7")
            second = await s.schedule("OID2", 0.01, plain, payload=b"8")
            await until(lambda: len(ran) == 2)
        assert ran == [("OID2", b"8", 1, second), ("OID1", b"7", 1, first)]
        assert threads == {threading.get_ident()}

    loops.run(main)


def test_memory_needs_no_thread():
    async def main():
        before = threading.active_count()
        async with lapse.aio.Scheduler() as s:
            done = asyncio.Event()
            await s.schedule("o", 0, lambda order: done.set())
            await done.wait()
            assert await s.take(timeout=0.01) is None
            assert threading.active_count() == before

    asyncio.run(main())


def test_p01_never_early(loops):
    async def main():
        early, count, done = [], 200, asyncio.Event()

        async with loops.scheduler() as s:
            for i in range(count):
                delay = i * 0.0003
                due = boot_ns() + round(delay * 1e9)

                async def check(order, due=due):
                    if boot_ns() < due or order.late < 0:
                        early.append(order)

                await s.schedule(f"o{i}", delay, check)
            await s.schedule("last", 0.2, lambda order: done.set())
            await done.wait()
            assert early == [] and (await s.stats())["done"] == count + 1

    loops.run(main)


def test_what_a_callback_may_be(loops):
    class Shop:
        ran = []

        async def close(self, order):
            self.ran.append(order)

        async def __call__(self, order):
            self.ran.append(order)

        def plain(self, order):
            self.ran.append(order)

    async def two(prefix, order):
        Shop.ran.append(prefix + order)

    async def main():
        shop, loop = Shop(), asyncio.get_running_loop()
        callbacks = {
            "method": shop.close,
            "instance": shop,
            "partial": functools.partial(two, ""),
            "lambda": lambda order: shop.close(order),
            "task": lambda order: loop.create_task(shop.close(order)),
            "plain": shop.plain,
            "future": lambda order: (shop.ran.append(order), f := loop.create_future(),
                                     loop.call_soon(f.set_result, None))[1],
        }  # fmt: skip
        async with loops.scheduler() as s:
            for name, callback in callbacks.items():
                await s.schedule(name, 0, callback)
            await until(lambda: len(shop.ran) == len(callbacks))
            assert sorted(shop.ran) == sorted(callbacks)
            await until(lambda: not s._runner.held)
            assert (await s.stats())["done"] == len(callbacks)

    loops.run(main)


def test_any_result_is_done(loops):
    async def main():
        s, clock = loops.told()
        for n, result in enumerate([None, 0, "", ValueError("returned"), object, s, [1], True]):

            async def answer(order, result=result):
                return result

            await s.schedule(f"a{n}", 1, answer)
            await s.schedule(f"b{n}", 1, lambda order, result=result: result)
        clock.advance(1)
        assert await s.process() == 16
        found = await s.stats()
        assert (found["done"], found["failed"], found["pending"]) == (16, 0, 0)
        await s.close()

    loops.run(main)


@pytest.mark.parametrize("kind", ["generator", "async generator", "no callable"])
def test_what_a_callback_may_not_be(loops, kind):
    def generator(order):
        yield order

    async def async_generator(order):
        yield order

    callback = {"generator": generator, "async generator": async_generator}.get(kind, 7)

    async def main():
        async with loops.scheduler() as s:
            with pytest.raises(TypeError):
                await s.schedule("o", 0, callback)
            with pytest.raises(TypeError):
                s.handle("q", callback)
            assert (await s.stats())["scheduled"] == 0

    loops.run(main)


def test_instants_and_timedeltas(loops):
    async def main():
        ran = []
        async with loops.scheduler() as s:
            soon = datetime.now(timezone.utc) + timedelta(seconds=0.01)
            await s.schedule_at("at", soon, ran.append)
            await s.schedule_at("past", 0, ran.append)
            await s.schedule("delta", timedelta(milliseconds=5), ran.append)
            with pytest.raises(lapse.Invalid):
                await s.schedule_at("naive", datetime.now(), ran.append)
            await until(lambda: len(ran) == 3)

    loops.run(main)


def test_p56_one_bad_order_does_not_hold_back_the_others(loops):
    async def main():
        ran = []
        async with loops.scheduler() as s:
            orders = ((f"o{i}" if i != 37 else "bad\0", 0.001, ran.append) for i in range(100))
            answers = await s.schedule_many(orders)
            assert [type(a) is int for a in answers] == [i != 37 for i in range(100)]
            assert isinstance(answers[37], lapse.BadId)
            await until(lambda: len(ran) == 99)

    loops.run(main)


def test_callbacks_start_by_due_time(loops):
    async def main():
        s, clock = loops.told(concurrency=7)
        started = []

        async def callback(order):
            started.append(int(order))
            await passes(int(order) % 3)

        for i in range(100):
            await s.schedule(str(i), (i * 37) % 100 + 1, callback)
        clock.advance(200)
        assert await s.process() == 100
        assert started == sorted(started, key=lambda i: (i * 37) % 100)
        await s.close()

    loops.run(main)


def test_a_long_row_does_not_hold_up_the_loop(loops):
    """Plain callbacks that are due together are run a few at a time."""

    async def main():
        ran, seen = [], set()
        n = rounds(2000, 20_000, 20_000)
        s, clock = loops.told()

        def busy(order):
            ran.append(order)
            end = time.perf_counter_ns() + 20_000
            while time.perf_counter_ns() < end:
                pass

        await s.schedule_many([(str(i), 1, busy) for i in range(n)])
        clock.advance(1)
        while len(ran) < n:
            seen.add(len(ran))
            await passes(1)
        assert len(seen) > 2 and ran == [str(i) for i in range(n)]
        await s.close()

    loops.run(main)


def test_p24_rescheduling_itself_starves_nothing(loops):
    async def main():
        turns = 0
        async with loops.scheduler() as s:

            async def again(order):
                nonlocal turns
                turns += 1
                await s.schedule("again", 0, again)

            def plain(order):
                asyncio.get_running_loop().create_task(s.schedule("plain", 0, plain))

            other = asyncio.Event()
            await s.schedule("again", 0, again)
            await s.schedule("plain", 0, plain)
            await s.schedule("other", 0.02, lambda order: other.set())
            await other.wait()
            await until(lambda: turns > 3)

    loops.run(main)


def test_callbacks_have_a_context_of_their_own(loops):
    request = ContextVar("request", default=None)

    async def main():
        seen = []
        request.set("the first one")
        async with loops.scheduler() as s:

            async def coroutine(order):
                seen.append(request.get())
                request.set("left behind")

            await s.schedule("a", 0, coroutine)
            await s.schedule("b", 0.01, coroutine)
            await s.schedule("c", 0.02, lambda order: seen.append(request.get()))
            await until(lambda: len(seen) == 3)
        assert seen == [None, None, None] and request.get() == "the first one"

    loops.run(main)


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
        inside, go = asyncio.Event(), asyncio.Event()

        async def callback(order):
            inside.set()
            await go.wait()
            raise lapse.Retry(0)

        async with loops.scheduler() as s:
            await s.schedule("o", 0, callback)
            await inside.wait()
            assert await s.cancel("o") is Fate.RUNNING
            assert await s.reschedule("o", 5) is Fate.RUNNING
            go.set()
            await until(lambda: not s._runner.held)
            found = await s.stats()
            assert (found["pending"], found["running"], found["cancelled"]) == (0, 0, 1)

    loops.run(main)


def test_p21_cancel_wait(loops):
    async def main():
        inside, go, ended = asyncio.Event(), asyncio.Event(), []
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))  # it does one thing after the other

        async def callback(order):
            inside.set()
            await go.wait()
            ended.append(order)

        async with loops.scheduler() as s:
            await s.schedule("o", 0, callback)
            await s.schedule("pending", 60, callback)
            await inside.wait()
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
            go.set()
            assert await waiting is Fate.RUNNING and ended == ["o"]

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


def test_a_full_loop_does_not_spin(loops, monkeypatch):
    """While no order fits, the descriptor stays readable: nobody may listen to it."""
    calls = []
    ready = lapse._runner.Runner.ready
    monkeypatch.setattr(lapse._runner.Runner, "ready", lambda r: (calls.append(1), ready(r)))

    async def main():
        go, inside = asyncio.Event(), asyncio.Event()

        async def callback(order):
            inside.set()
            await go.wait()

        async with loops.scheduler(concurrency=1) as s:
            await s.schedule_many([(str(i), 0, callback) for i in range(3)])
            await inside.wait()
            await until(lambda: not s._runner.passing)
            before = len(calls)
            await passes(100)
            assert len(calls) == before and (await s.stats())["pending"] == 2
            go.set()

    loops.run(main)


def test_an_idle_loop_does_not_wake(loops, monkeypatch):
    """What a taker could have, and nobody wants, is told once."""
    calls = []
    ready = lapse._runner.Runner.ready
    monkeypatch.setattr(lapse._runner.Runner, "ready", lambda r: (calls.append(1), ready(r)))

    async def main():
        s, clock = loops.told()
        await s.schedule("pull", 1, queue="q")
        await s.schedule("far", 3600, print)
        await s.schedule("paused", 1, print, queue="p")
        await s.pause("p")
        clock.advance(2)
        await until(lambda: calls)
        await passes(20)
        before = len(calls)
        await passes(100)
        assert len(calls) == before <= 3
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


# -- Ids ----------------------------------------------------------------------------------


def test_p52_an_embedded_nul(loops):
    async def main():
        async with loops.scheduler() as s:
            for bad in ("a\0b", b"a\0c", "", "x" * 256):
                with pytest.raises(lapse.BadId):
                    await s.schedule(bad, 60, print)
            assert await s.cancel("a\0b") is Fate.UNKNOWN
            assert await s.cancel_wait("a\0b") is Fate.UNKNOWN
            payload, got = bytes(range(256)), []
            await s.schedule(b"\xff\x80", 0, lambda order: got.append((order, order.payload)))
            await until(lambda: got)
            assert got == [("\udcff\udc80", payload[:0])]
            await s.schedule("o", 0, lambda order: got.append(order.payload), payload)
            await until(lambda: len(got) == 2)
            assert got[1] == payload

    loops.run(main)


def test_p53_the_same_id_again(loops):
    async def main():
        ran, go = [], asyncio.Event()
        s, clock = loops.told()

        async def old(order):
            ran.append("old")
            await go.wait()
            raise lapse.Retry(0)

        async def new(order):
            ran.append("new")

        first = await s.schedule("X", 10, old)
        with pytest.raises(lapse.Exists):
            await s.schedule("X", 1, new)
        assert (await s.get("X")).generation == first
        second = await s.schedule("X", 5, new, replace=True)
        assert second > first
        clock.advance(5)
        assert await s.process() == 1 and ran == ["new"]
        await s.schedule("X", 0, old)
        clock.advance(1)
        await until(lambda: s._runner.held)  # it runs: another generation may follow
        third = await s.schedule("X", 0, new)
        clock.advance(1)
        await until(lambda: ran == ["new", "old", "new"])
        assert third > second
        go.set()
        await until(lambda: not s._runner.held)
        assert (await s.stats())["pending"] == 0  # the old one is not repeated
        await s.close()

    loops.run(main)


def test_p54_two_spellings_of_one_name(loops):
    async def main():
        ids = ["caf\u00e9-1", "cafe\u0301-1", "A", "a", "x", "x ", "\u212b", "\u00c5", "\uff11"]
        ran = []
        s, clock = loops.told()
        for name in ids:
            await s.schedule(name, 1, ran.append)
        assert await s.cancel(ids[0]) is Fate.CANCELLED
        assert await s.cancel_wait(ids[2]) is Fate.CANCELLED
        clock.advance(2)
        await s.process()
        assert ran == [ids[1], *ids[3:]]
        await s.close()

    loops.run(main)


def test_p55_numbers_are_no_ids(loops):
    async def main():
        async with loops.scheduler() as s:
            for bad in (130775545883395173, 1.5, None, object()):
                with pytest.raises(TypeError):
                    await s.schedule(bad, 60, print)
                with pytest.raises(TypeError):
                    await s.cancel_wait(bad)
            for bad in (True, "1800", None):
                with pytest.raises(TypeError):
                    await s.schedule("o", bad, print)
            for bad in (float("nan"), float("inf"), 2.0**53):
                with pytest.raises(lapse.Range):
                    await s.schedule("o", bad, print)
            await s.schedule("130775545883395173", 1800, print)
            await s.schedule("o", 1800.5, print)
            assert await listed(s) == ["130775545883395173", "o"]

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
        go, inside, ended = asyncio.Event(), asyncio.Event(), []

        async def callback(order):
            inside.set()
            await go.wait()
            ended.append(order)

        s = loops.scheduler()
        await s.schedule("OID7", 0, callback)
        await inside.wait()
        for limit in (0, 0.01):
            with pytest.raises(lapse.Timeout, match="'OID7' still runs"):
                await s.close(limit)
        assert not s.closed
        both = [asyncio.ensure_future(s.close()) for _ in range(2)]
        await passes(10)
        assert not any(close.done() for close in both)
        go.set()
        await asyncio.gather(*both)
        assert s.closed and ended == ["OID7"]
        await s.close()

    loops.run(main)


def test_close_that_is_cancelled_leaves_it_stopped(loops):
    async def main():
        go, inside = asyncio.Event(), asyncio.Event()

        async def callback(order):
            inside.set()
            await go.wait()

        s = loops.scheduler()
        await s.schedule("o", 0, callback)
        await inside.wait()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(s.close(), 0.01)
        assert not s.closed
        with pytest.raises(lapse.Closed):
            await s.schedule("x", 0, print)
        go.set()
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


# -- Wrong calls ----------------------------------------------------------------------------


@pytest.mark.parametrize("options, error", [
    ({"concurrency": 0}, lapse.Invalid),
    ({"concurrency": 10**9}, lapse.Invalid),
    ({"concurrency": True}, TypeError),
    ({"concurrency": 2.5}, TypeError),
    ({"on_error": 7}, TypeError),
    ({"on_dead": "x"}, TypeError),
    ({"around": 7}, TypeError),
    ({"url": "nosuch:"}, lapse.Error),
    ({"url": 5}, TypeError),
    ({"overflow": "x"}, lapse.Invalid),
    ({"keep": -1}, lapse.Range),
])  # fmt: skip
def test_opening_refuses(options, error):
    with pytest.raises(error):
        lapse.aio.Scheduler(**options)


def test_attributes_are_checked_and_shown():
    s = lapse.aio.Scheduler()
    for name in ("on_error", "on_dead", "around"):
        assert getattr(s, name) is None
        with pytest.raises(TypeError):
            setattr(s, name, 7)
        assert getattr(s, name) is None
        setattr(s, name, print)
        assert getattr(s, name) is print
    assert repr(s) == "<lapse.aio.Scheduler memory: 0 pending, 0 running>"


def test_a_bad_timeout_changes_nothing(loops):
    async def main():
        async with loops.scheduler() as s:
            await s.schedule("o", 60, print)
            for call in (
                lambda bad: s.cancel_wait("o", bad),
                lambda bad: s.close(bad),
                lambda bad: s.take(timeout=bad),
            ):
                with pytest.raises(TypeError):
                    await call("1")
                with pytest.raises(lapse.Range):
                    await call(float("nan"))
            assert (await s.get("o")).state is State.PENDING

    loops.run(main)


def test_it_is_there_without_another_import():
    assert lapse.aio.Scheduler.__module__ == "lapse.aio"
    assert lapse.aio.Claim.__module__ == "lapse.aio"
