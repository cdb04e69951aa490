"""lapse.aio: the same names, awaitable; callbacks of either kind run in the loop."""

import asyncio
import functools
import threading
import time
from contextvars import ContextVar
from datetime import datetime, timedelta, timezone

import lapse
import lapse.aio
import pytest
from lapse import Fate, State
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
