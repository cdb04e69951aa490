"""lapse.aio and the life of event loops: closed, stopped, several, dropped."""

import asyncio
import contextlib
import gc
import os
import sys
import threading
import warnings
import weakref

import lapse
import lapse.aio
import pytest
from loops import passes, until, what_is_left
from support import PATIENCE, python, rounds

# -- P-42: the loop is closed ------------------------------------------------------------


@pytest.mark.parametrize("coroutine", [False, True], ids=["plain", "coroutine"])
def test_p42_the_loop_is_closed(loops, coroutine, caplog):
    """1 000 orders due in 0 to 20 ms, the loop closed at 10 ms: each ran or is listed."""
    s, ran = loops.scheduler(), []

    async def awaited(order):
        await passes(int(order) % 3)
        ran.append(str(order))

    def plain(order):
        ran.append(str(order))

    async def main():
        callback = awaited if coroutine else plain
        await s.schedule_many([(f"{i}", i * 0.00002, callback) for i in range(1000)])
        await asyncio.sleep(0.01)  # sleeps: until the loop is closed in the middle

    loop = loops.new_loop()
    left = loop.create_task(main())
    loop.run_until_complete(left)
    for task in asyncio.all_tasks(loop):
        if task.get_name().startswith("Task"):
            task.cancel()  # the test's own
    loop.run_until_complete(passes(1))
    if loops.kind == "thread":
        loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        before = list(ran)
        undelivered = what_is_left(s)
        assert ran == before
        assert len(before) == len(set(before))
        assert sorted(before + undelivered, key=int) == [f"{i}" for i in range(1000)]
        asyncio.run(s.close())
        gc.collect()
    assert [r for r in caplog.records if r.levelno >= 40] == []


def test_p42_callbacks_in_the_middle_are_given_back(caplog):
    s, begun, ended = lapse.aio.Scheduler(concurrency=10), [], []

    async def callback(order):
        begun.append(order)
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(order)

    async def main():
        await s.schedule_many([(f"{i}", 0, callback) for i in range(30)])
        await until(lambda: len(begun) == 10)

    loop = asyncio.new_event_loop()
    loop.run_until_complete(main())
    loop.close()
    left = what_is_left(s)
    assert len(left) == 30 and len(begun) == len(ended) == 10
    assert "10 callbacks were not finished: the event loop was closed" in caplog.text
    asyncio.run(s.close())


def test_p42_asyncio_run_ends_over_running_callbacks():
    """It cancels them: they are given back, and do not start again while it ends."""
    s, begun = lapse.aio.Scheduler(), []

    async def callback(order):
        begun.append(order)
        await asyncio.Event().wait()

    async def slow_to_end():
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.1)  # sleeps: as a host that takes its time to end

    async def main():
        keep = asyncio.ensure_future(slow_to_end())
        await s.schedule_many([(f"{i}", 0, callback) for i in range(5)])
        await until(lambda: len(begun) == 5)
        assert not keep.done()

    asyncio.run(main())
    assert len(begun) == 5
    assert what_is_left(s) == [f"{i}" for i in range(5)] and len(begun) == 5
    asyncio.run(s.close())


def test_p42_in_a_process_of_its_own():
    """No abort and nothing on stderr but the report, whatever of it is collected when."""
    done = python(
        """
        import asyncio, lapse.aio

        def once():
            s = lapse.aio.Scheduler()

            async def callback(order):
                await asyncio.Event().wait()

            async def main():
                await s.schedule_many([(f"{i}", i * 0.00002, callback) for i in range(1000)])
                await asyncio.sleep(0.01)  # sleeps: until the loop is closed in the middle

            loop = asyncio.new_event_loop()
            task = loop.create_task(main())
            loop.run_until_complete(task)
            loop.close()
            return s

        once()
        kept = once()
        """
    )
    assert done.returncode == 0, done.stderr
    for line in done.stderr.splitlines():
        known = ("callbacks were not finished: the event loop was closed",
                 "pending orders will not run: their Scheduler was dropped without close()",
                 "Task was destroyed but it is pending!",  # the program's own wait
                 "task: <Task pending name='Task-")  # fmt: skip
        assert any(text in line for text in known), line


# -- One loop after another, and several --------------------------------------------------


def test_asyncio_run_twice(loops):
    """Orders that were pending when the first loop ended run in the second."""
    s, ran = loops.scheduler(), []

    async def callback(order):
        ran.append((str(order), threading.get_ident()))

    async def first():
        await s.schedule("now", 0, callback)
        await s.schedule("later", 0.05, callback)
        await until(lambda: ran)

    async def second():
        await s.schedule("too", 0, callback)
        await until(lambda: len(ran) == 3)
        await s.close()

    loops.run(first)
    loops.run(second)
    assert sorted(name for name, thread in ran) == ["later", "now", "too"]


def test_a_loop_that_is_stopped_and_goes_on(loops):
    loop, ran = loops.new_loop(), []
    s = loops.scheduler()

    async def callback(order):
        await passes(2)
        ran.append(str(order))

    async def start():
        await s.schedule("a", 0, callback)
        await s.schedule("b", 0.01, callback)

    loop.run_until_complete(start())
    loop.call_soon(loop.stop)
    loop.run_forever()
    loop.run_until_complete(until(lambda: ran == ["a", "b"]))
    loop.run_until_complete(s.close())
    if loops.kind == "thread":
        loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()


def test_two_loops_in_two_threads(loops):
    errors = []

    def work(number):
        async def main():
            ran = []

            async def callback(order):
                await passes(1)
                ran.append(str(order))

            async with loops.scheduler() as s:
                count = rounds(200, 1000, 10_000)
                await s.schedule_many([(f"{number}-{i}", 0, callback) for i in range(count)])
                await until(lambda: len(ran) == count)
                assert all(name.startswith(f"{number}-") for name in ran)

        try:
            loops.run(main)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def test_another_loop_may_not_use_it(loops):
    s, release, bound = loops.scheduler(), threading.Event(), threading.Event()

    async def holds():
        async with s:
            bound.set()
            await asyncio.get_running_loop().run_in_executor(None, release.wait)

    async def other():
        with pytest.raises(RuntimeError, match="bound to a different event loop"):
            await s.schedule("o", 0, print)
        with pytest.raises(RuntimeError, match="bound to a different event loop"):
            await s.close()

    thread = threading.Thread(target=lambda: loops.run(holds))
    thread.start()
    try:
        assert bound.wait(PATIENCE)
        asyncio.run(other())
    finally:
        release.set()
        thread.join()
    assert s.closed


def test_without_a_loop_it_says_so():
    s = lapse.aio.Scheduler()
    with pytest.raises(RuntimeError, match="no running event loop"):
        s.schedule("o", 0, print).send(None)
    with pytest.raises(RuntimeError, match="no running event loop"):
        s.close().send(None)


def test_from_another_thread(loops):
    async def main():
        ran, loop = [], asyncio.get_running_loop()
        async with loops.scheduler() as s:

            def work():
                call = s.schedule("o", 0, ran.append)
                assert asyncio.run_coroutine_threadsafe(call, loop).result(PATIENCE) > 0

            await loop.run_in_executor(None, work)
            await until(lambda: ran)

    loops.run(main)


def test_debug_mode(loops, caplog):
    """asyncio checks what is called from where, and that every coroutine is awaited."""

    async def main():
        ran = []

        async def callback(order):
            await passes(1)
            ran.append(order)

        async with loops.scheduler() as s:
            await s.schedule("a", 0, callback)
            await s.schedule("b", 0, ran.append)
            await s.schedule("c", 0, queue="q")
            async with await s.take("q", PATIENCE):
                pass
            await until(lambda: len(ran) == 2)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loops.run(main, debug=True)
        gc.collect()
    assert [r for r in caplog.records if "was never" in r.getMessage() or r.levelno >= 40] == []


@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks came with CPython 3.12")
def test_eager_tasks():
    async def main():
        asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)
        ran, errors = [], []

        async def at_once(order):
            ran.append(str(order))

        async def closes(order):
            try:
                await s.close()
            except lapse.InCallback as error:
                errors.append(error)

        async with lapse.aio.Scheduler(concurrency=3) as s:
            for i in range(20):
                await s.schedule(f"{i}", 0, at_once)
            await s.schedule("closes", 0.001, closes)
            await until(lambda: len(ran) == 20 and errors)

            async def later(order):
                await passes(2)
                ran.append(str(order))

            for i in range(20):
                await s.schedule(f"{i}", 0, later)
            await until(lambda: len(ran) == 40)

    asyncio.run(main())


def test_a_task_factory_of_the_hosts():
    async def main():
        made, ran = [], []

        def factory(loop, coro, **options):
            made.append(coro.__name__)
            return asyncio.Task(coro, loop=loop, **options)

        asyncio.get_running_loop().set_task_factory(factory)

        async def callback(order):
            ran.append(order)

        async with lapse.aio.Scheduler() as s:
            await s.schedule("o", 0, callback)
            await until(lambda: ran)
        assert made

    asyncio.run(main())


def test_a_task_factory_that_fails_is_an_error_of_the_order(caplog):
    async def main():
        reported = []
        async with lapse.aio.Scheduler() as s:
            s.on_error = lambda order, error: reported.append(error)

            async def callback(order):
                pass

            loop = asyncio.get_running_loop()

            def factory(loop, coro, **options):
                raise OSError("no more tasks")

            await s.schedule("o", 0, callback)
            loop.set_task_factory(factory)
            await until(lambda: reported)
            loop.set_task_factory(None)
            assert isinstance(reported[0], OSError) and not s._runner.held
            found = await s.stats()
            assert (found["failed"], found["stale"]) == (1, 0)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        asyncio.run(main())
        gc.collect()


# -- Dropped --------------------------------------------------------------------------------


def test_one_that_is_dropped_is_collected(loops, caplog):
    """The loop holds the core, never the Scheduler; a cycle through a callback is garbage."""

    async def main():
        s = loops.scheduler()

        class Shop:
            async def close(self, order):
                pass

        shop = Shop()
        shop.s = s
        await s.schedule("o", 60, shop.close)
        s.handle("q", shop.close)
        s.on_error = s.on_dead = lambda *args, keep=shop: None
        s.around = lambda order, keep=shop: contextlib.nullcontext()
        refs = [weakref.ref(s), weakref.ref(shop)]
        fd = s._s.fileno()
        del s, shop
        with pytest.warns(ResourceWarning, match="1 orders will not run"):
            gc.collect()
        assert [ref() for ref in refs] == [None, None]
        assert "1 pending order will not run" in caplog.text
        await until(lambda: closed(fd), "the end of its descriptor")

    def closed(fd):
        gc.collect()
        try:
            return not os.readlink(f"/proc/self/fd/{fd}").startswith("anon_inode:[timerfd]")
        except OSError:
            return True

    loops.run(main)


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_running_callbacks_of_a_dropped_one_end(loops):
    async def main():
        s, go, inside, ended = loops.scheduler(), asyncio.Event(), asyncio.Event(), []

        async def callback(order):
            inside.set()
            await go.wait()
            ended.append(str(order))

        await s.schedule("runs", 0, callback)
        await s.schedule("pending", 60, callback)
        await inside.wait()
        del s, callback
        gc.collect()
        go.set()
        await until(lambda: ended)
        await passes(10)
        assert ended == ["runs"]

    loops.run(main)


def test_p39_callbacks_are_let_go(loops):
    class Shop:
        async def close(self, order):
            await passes(1)

        async def fails(self, order):
            await passes(1)
            raise ValueError(self)

    async def main():
        s, clock = loops.told(on_error=lambda order, error: None)
        gc.collect()
        gc.disable()
        try:
            for path in ("done", "failed", "cancelled", "replaced", "purged"):
                shop = Shop()
                ref = weakref.ref(shop)
                method = shop.fails if path == "failed" else shop.close
                await s.schedule("o", 1, method)
                del shop, method
                assert ref() is not None, path
                if path == "cancelled":
                    assert await s.cancel("o")
                elif path == "replaced":
                    await s.schedule("o", 1, print, replace=True)
                    await s.cancel("o")
                else:
                    clock.advance(2)
                    await s.process()
                await until(lambda ref=ref: ref() is None, path)
        finally:
            gc.enable()
        await s.close()

    loops.run(main)


def test_nothing_is_left_behind(loops):
    def fds():
        return len(os.listdir("/proc/self/fd"))

    async def main():
        async def callback(order):
            await passes(1)

        async def once():
            async with loops.scheduler() as s:
                await s.schedule_many([(f"{i}", 0, callback) for i in range(20)])
                await s.schedule("taken", 0, queue="q")
                async with await s.take("q", PATIENCE):
                    pass
                assert await s.take("q", timeout=0.001) is None
                await until(lambda: not s._runner.held)

        for _ in range(3):
            await once()
        gc.collect()
        before, objects = fds(), len(gc.get_objects())
        for _ in range(rounds(20, 100, 1000)):
            await once()
        gc.collect()
        assert fds() == before
        assert len(gc.get_objects()) - objects < 200

    loops.run(main)
