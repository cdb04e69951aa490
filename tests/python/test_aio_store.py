"""lapse.aio on a durable store: nothing holds up the loop, and nothing is lost with it."""

import asyncio
import gc
import sqlite3
import time

import lapse
import lapse.aio
import pytest
from lapse import Fate, State
from loops import Loops, listed, passes, until
from support import PATIENCE, SANITIZED, python, rounds


@pytest.fixture(params=["asyncio", "uvloop"])
def loops(request):
    """The store itself decides what is asked on a thread."""
    return Loops(request.param)


def test_the_calls(loops, url):
    async def main():
        ran = []
        async with lapse.aio.Scheduler(url, on_error=lambda order, error: None) as s:
            assert not s._runner.inline
            assert repr(s) == "<lapse.aio.Scheduler sqlite: 0 running here>"

            @s.handler("q", attempts=3, backoff=0.001)
            async def handle(order):
                await passes(1)
                ran.append((str(order), order.attempt, order.payload))
                if order == "again" and order.attempt == 1:
                    raise ValueError

            made = await s.schedule("a", 0.01, handle, b"7")
            await s.schedule("again", 0, queue="q")
            await s.schedule("paid", 60, handle)
            assert (await s.get("paid")).state is State.PENDING
            assert await s.reschedule("paid", 120) is Fate.RESCHEDULED
            assert await s.cancel("paid") is Fate.CANCELLED
            assert await s.cancel_wait("paid") is Fate.UNKNOWN
            with pytest.raises(lapse.Exists):
                await s.schedule("far", 60, queue="q")
                await s.schedule("far", 60, queue="q")
            with pytest.raises(lapse.Unsupported):
                await s.schedule("own", 1, lambda order: None)
            await until(lambda: len(ran) == 3)
            assert sorted(ran) == [("a", 1, b"7"), ("again", 1, b""), ("again", 2, b"")]
            assert made > 0 and await listed(s) == ["far"]

    loops.run(main)


def test_claims(loops, url):
    async def main():
        async with lapse.aio.Scheduler(url) as s:
            takers = [asyncio.ensure_future(s.take(queue, PATIENCE)) for queue in "aabc"]
            await passes(3)
            for n, queue in enumerate("abac"):
                await s.schedule(f"{queue}{n}", 0.01 * n, queue=queue)
            claims = await asyncio.gather(*takers)
            assert [claim.queue for claim in claims] == ["a", "a", "b", "c"]
            assert len(set(claims)) == 4
            for claim in claims[:3]:
                async with claim:
                    assert await claim.holds()
            await claims[3].retry(0)
            async with await s.take("c", PATIENCE) as claim:
                assert (claim, claim.attempt) == ("c3", 2)
            assert await s.take("a", timeout=0.01) is None and await s.poll("a") is None
            last = asyncio.ensure_future(s.take())
            await passes(3)
            await s.stop()
            with pytest.raises(lapse.Closed):
                await last

    loops.run(main)


def test_a_store_that_is_busy_does_not_hold_up_the_loop(loops, url):
    """Another process has the database for itself: calls wait, the loop goes on."""

    async def main():
        async with lapse.aio.Scheduler(url) as s:
            await s.schedule("first", 60, queue="q")
            other = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
            other.execute("BEGIN EXCLUSIVE")
            waiting = asyncio.ensure_future(s.schedule("second", 60, queue="q"))
            await passes(200)
            assert not waiting.done()
            other.execute("ROLLBACK")
            other.close()
            assert await waiting > 0
            assert await listed(s) == ["first", "second"]

    loops.run(main)


def test_overdue_orders_run_without_anybody_scheduling(loops, url):
    with lapse.Scheduler(url, workers=0) as before:
        for n in range(20):
            before.schedule(f"{n}", 0, queue="q")

    async def main():
        ran = []
        s = lapse.aio.Scheduler(url)

        @s.handler("q")
        async def handle(order):
            ran.append(str(order))

        async with s:
            await until(lambda: len(ran) == 20)
        assert sorted(ran, key=int) == [f"{n}" for n in range(20)]

    loops.run(main)


def test_schedulers_that_share_it(loops, url):
    """As two processes do; each order is one consumer's."""

    async def main():
        count, ran = rounds(100, 500, 5000), []

        async def handle(order):
            await passes(1)
            ran.append(str(order))

        async with lapse.aio.Scheduler(url) as a, lapse.aio.Scheduler(url, concurrency=5) as b:
            a.handle("q", handle)
            b.handle("q", handle)
            await a.schedule_many([(f"{n}", 0, None, None, "q") for n in range(count)])
            await until(lambda: len(ran) >= count)
            await until(lambda: not a._runner.held and not b._runner.held)
            await passes(20)
        assert sorted(ran, key=int) == [f"{n}" for n in range(count)]

    loops.run(main)


def test_p42_what_a_closed_loop_left_goes_to_another_consumer(loops, url):
    begun, ended = [], []

    async def first():
        s = lapse.aio.Scheduler(url, concurrency=10)

        @s.handler("q")
        async def handle(order):
            begun.append(str(order))
            if len(begun) > 5:
                await asyncio.Event().wait()
            ended.append(str(order))

        await s.schedule_many([(f"{n}", 0, None, None, "q") for n in range(40)])
        await until(lambda: len(begun) == 15)
        return s

    loop = loops.new_loop()
    s = loop.run_until_complete(first())
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()

    async def second():
        again = []
        async with s:  # it sees what became of its loop, and gives back what it held
            s.handle("q", None)
            await until(lambda: not s._runner.held)
        async with lapse.aio.Scheduler(url) as other:

            @other.handler("q")
            async def handle(order):
                again.append((str(order), order.attempt))

            await until(lambda: len(again) == 35)
        assert sorted([name for name, attempt in again] + ended, key=int) == [
            f"{n}" for n in range(40)
        ]
        assert {attempt for name, attempt in again} == {1}

    loops.run(second)


def test_an_idle_loop_does_not_wake(loops, url, wakes):
    async def main():
        async with lapse.aio.Scheduler(url) as s:
            s.handle("q", print)
            await s.schedule("pull", 0, queue="p")
            await s.schedule("far", 3600, queue="q")
            await asyncio.sleep(0.05)  # sleeps: while nothing is due
            before = len(wakes)
            await passes(200)
            assert len(wakes) - before <= 2 and before < 20

    loops.run(main)


@pytest.mark.skipif(
    SANITIZED,
    reason="ThreadSanitizer ends a forked child that starts a thread again, and one of "
    "AddressSanitizer may wait for ever for a lock that its allocator had in the parent",
)
def test_p32_it_crosses_the_fork(url):
    """gunicorn --preload: opened in the master, used in the workers, all on one store."""
    done = python(
        """
        import asyncio, os, sys, warnings
        warnings.simplefilter("ignore", DeprecationWarning)
        import lapse.aio

        s = lapse.aio.Scheduler(sys.argv[1])

        @s.handler("q")
        async def handle(order):
            await asyncio.sleep(0)  # sleeps: one pass of the loop

        async def worker(number):
            async with s:
                for n in range(5):
                    await s.schedule(f"{number}-{n}", 0, handle)
                async with asyncio.timeout(20):
                    while any([await s.get(f"{number}-{n}") for n in range(5)]):  # whoever runs it
                        await asyncio.sleep(0.01)  # sleeps: between two looks

        for number in range(3):
            if os.fork() == 0:
                code = 1
                try:
                    asyncio.run(worker(number))
                    code = 0
                except BaseException:
                    import traceback; traceback.print_exc()
                finally:
                    os._exit(code)
        for _ in range(3):
            assert os.wait()[1] == 0
        asyncio.run(worker(9))
        """,
        url,
    )
    assert done.returncode == 0 and done.stderr == "", done.stderr


def test_its_orders_run_later_and_nobody_says_otherwise(loops, url, caplog):
    async def main():
        caplog.set_level("INFO")
        async with lapse.aio.Scheduler(url) as s:
            await s.schedule("a", 60, queue="q")
        dropped = lapse.aio.Scheduler(url)
        await dropped.schedule("b", 60, queue="q")
        with pytest.warns(ResourceWarning, match="dropped without close"):
            del dropped
            gc.collect()
        assert "will not run" not in caplog.text
        async with lapse.aio.Scheduler(url) as s:
            assert await listed(s) == ["a", "b"]

    loops.run(main)


# -- What is submitted and answered without a thread -----------------------------------


def commits(path):
    """How many transactions the write-ahead log holds: a frame that ends one tells a size."""
    with open(path, "rb") as log:
        data = log.read()
    page = int.from_bytes(data[8:12], "big")
    frames = (data[at : at + 24] for at in range(32, len(data), 24 + page))
    ends = [frame[4:8] for frame in frames if frame[8:16] == data[16:24]]
    return sum(end != bytes(4) for end in ends)


def test_many_calls_share_few_commits(loops, url):
    async def main():
        log, count = url.removeprefix("sqlite:///") + "-wal", 500
        async with lapse.aio.Scheduler(url) as s:
            await s.schedule("first", 60, queue="q")
            before = commits(log)
            made = await asyncio.gather(
                *(s.schedule(f"{n}", 60, queue="q") for n in range(count))
            )
            shared = commits(log) - before
            print(f"{count} concurrent schedules in {shared} commits")
            assert 0 < shared < count
            assert made == sorted(made) and len(set(made)) == count
            fates = await asyncio.gather(*(s.cancel(f"{n}") for n in range(count)))
            assert fates == [Fate.CANCELLED] * count
            assert await listed(s) == ["first"]

    loops.run(main)


def test_no_thread_is_started_for_them(loops, url):
    async def main():
        loop = asyncio.get_running_loop()
        s = lapse.aio.Scheduler(url)
        loop.run_in_executor = None  # nothing asks for a thread
        generation = await s.schedule("a", 60, queue="q")
        assert await s.schedule_at("b", time.time() + 60, None, b"7", "q") > generation
        assert (await s.get("b")).payload == b"7" and await s.get("nobody") is None
        assert await s.reschedule("a", 0, generation) is Fate.RESCHEDULED
        assert await s.cancel("a", generation + 5) is Fate.UNKNOWN
        assert await s.cancel("b") is Fate.CANCELLED
        for impossible in ("n\0l", b"\0"):
            assert await s.get(impossible) is None
            assert await s.reschedule(impossible, 1) is Fate.UNKNOWN
            assert await s.cancel(impossible) is Fate.UNKNOWN
        for wrong, error in [
            (lambda: s.schedule("a", 60, queue="q"), lapse.Exists),
            (lambda: s.schedule("c", float("nan"), queue="q"), lapse.Range),
            (lambda: s.schedule_at("c", 9e18, queue="q"), lapse.Range),
            (lambda: s.schedule("", 1), lapse.BadId),
            (lambda: s.schedule("c", 1, print), lapse.Unsupported),
            (lambda: s.schedule("c", 1, 5), TypeError),
            (lambda: s.cancel(5), TypeError),
            (lambda: s.requeue("a"), lapse.Unknown),
            (lambda: s.reschedule("a", "soon"), TypeError),
        ]:
            with pytest.raises(error):
                await wrong()
        assert s._runner.asked == set()
        del loop.run_in_executor
        await s.close()
        assert await s.cancel("a") is Fate.UNKNOWN
        with pytest.raises(lapse.Closed):
            await s.schedule("d", 1, queue="q")

    if loops.kind == "uvloop":
        pytest.skip("its methods cannot be replaced")
    loops.run(main)


def test_a_dead_letter_is_put_back(loops, url):
    async def main():
        async with lapse.aio.Scheduler(url) as s:

            @s.handler("q")
            async def hopeless(order):
                raise lapse.Reject("no such account")

            await s.schedule("a", 0, hopeless)
            while await listed(s) != ["a"] or (await s.get("a")).state is not State.DEAD:
                await asyncio.sleep(0.001)  # sleeps: between two looks
            s.handle("q", None)
            assert await s.requeue("a", 60) > 0
            assert (await s.get("a")).state is State.PENDING

    loops.run(main)


def test_answers_come_while_no_more_orders_fit(loops, url):
    """The loop does not listen then, for what is due would wake it without end."""

    async def main():
        go = asyncio.Event()
        async with lapse.aio.Scheduler(url, concurrency=1) as s:

            @s.handler("q")
            async def handle(order):
                await go.wait()

            for n in range(3):
                await s.schedule(f"{n}", 0, handle)
            await until(lambda: s._runner.held)
            assert await s.schedule("more", 60, handle) > 0
            assert await s.cancel("more") is Fate.CANCELLED
            await s.stop()
            assert (await s.get("2")).state is State.PENDING
            assert await s.cancel("2") is Fate.CANCELLED
            go.set()

    loops.run(main)


def test_who_does_not_wait_any_more_harms_nobody(loops, url):
    async def main():
        async with lapse.aio.Scheduler(url) as s:
            other = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
            other.execute("BEGIN EXCLUSIVE")
            calls = [asyncio.ensure_future(s.schedule(f"{n}", 60, queue="q")) for n in range(3)]
            await passes(20)
            calls[1].cancel()
            await passes(3)
            other.execute("ROLLBACK")
            other.close()
            assert await calls[0] < await calls[2] and calls[1].cancelled()
            await until(lambda: not s._runner.asked)

    loops.run(main)


def test_p42_a_loop_that_is_closed_over_its_questions(loops, url):
    async def asks():
        s = lapse.aio.Scheduler(url)
        await s.schedule("before", 60, queue="q")
        for n in range(20):
            s._here().loop.create_task(s.schedule(f"{n}", 60, queue="q"))
        await passes(1)
        return s

    loop = loops.new_loop()
    s = loop.run_until_complete(asks())
    for task in asyncio.all_tasks(loop):
        task._log_destroy_pending = False
    loop.close()

    async def goes_on():
        async with s:
            assert await s.cancel("before") is Fate.CANCELLED
            await s.schedule("after", 60, queue="q")
            assert set(await listed(s)) == {"after", *map(str, range(20))}

    loops.run(goes_on)
