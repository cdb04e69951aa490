"""around: a context manager that every callback runs in; threads, the host's loop, asyncio."""

import asyncio
import contextlib
import contextvars
import gc
import threading
import weakref

import lapse
import lapse.aio
import pytest
from lapse import Reason, State
from loops import passes, until
from support import Story, python
from support import until as wait_until

LOG = []


@pytest.fixture(autouse=True)
def log():
    LOG.clear()
    return LOG


@contextlib.contextmanager
def around(order):
    """What a framework does: something before, something after, an eye on errors."""
    LOG.append(f"enter {order}")
    try:
        yield
    except BaseException as error:
        LOG.append(f"{type(error).__name__} {order}")
        raise
    finally:
        LOG.append(f"leave {order}")


@contextlib.asynccontextmanager
async def async_around(order):
    with around(order):
        await passes(1)
        try:
            yield
        finally:
            await passes(1)


def plain(order):
    LOG.append(f"run {order}")


def rejects(order):
    raise lapse.Reject("no")


def returns_reject(order):
    return lapse.Reject("no")


# -- Threads and the host's loop ----------------------------------------------------------


def test_each_callback_runs_inside(log):
    story = Story(around=around)
    story.s.schedule("a", 1, plain)
    story.s.handle("q", plain)
    story.s.schedule("b", 2, queue="q")
    story.at(3)
    assert log == ["enter a", "run a", "leave a", "enter b", "run b", "leave b"]
    assert story.s.stats()["done"] == 2


def test_on_the_worker_that_runs_the_callback(log):
    threads = set()

    @contextlib.contextmanager
    def here(order):
        threads.add(threading.get_ident())
        yield
        threads.add(threading.get_ident())

    with lapse.Scheduler(around=here) as s:
        s.schedule("o", 0, lambda order: (threads.add(threading.get_ident()), log.append(1)))
        wait_until(lambda: log)
    assert len(threads) == 1 and threading.get_ident() not in threads


def test_it_sees_what_the_callback_raises(log):
    """As a database transaction does, which a raised verdict rolls back as well."""
    errors = []
    story = Story(around=around, on_error=lambda order, error: errors.append(error))

    def fails(order):
        raise ValueError

    story.s.schedule("bad", 1, fails)
    story.s.schedule("rejected", 2, rejects)
    story.s.schedule("returned", 3, returns_reject)
    story.at(4)
    assert log == ["enter bad", "ValueError bad", "leave bad", "enter rejected",
                   "Reject rejected", "leave rejected", "enter returned",
                   "leave returned"]  # fmt: skip
    assert [type(error) for error in errors] == [ValueError]
    for name in ("rejected", "returned"):
        assert story.s.get(name).reason is Reason.REJECTED


def test_what_it_swallows_is_done():
    story = Story(around=lambda order: contextlib.suppress(ValueError))

    def fails(order):
        raise ValueError

    story.s.schedule("o", 1, fails)
    story.at(2)
    assert story.s.stats()["done"] == 1 and story.s.stats()["failed"] == 0


@pytest.mark.parametrize("where", ["call", "enter", "leave", "no manager"])
def test_its_own_errors_are_the_callbacks(log, where):
    errors = []

    @contextlib.contextmanager
    def broken(order):
        if where == "enter":
            raise KeyError(where)
        yield
        raise KeyError(where)

    def raises(order):
        raise KeyError(where)

    given = {"call": raises, "no manager": lambda order: 5}.get(where, broken)
    story = Story(around=given, on_error=lambda order, error: errors.append((order, error)))
    story.s.schedule("o", 1, plain)
    story.at(2)
    ((order, error),) = errors
    assert order == "o" and isinstance(error, TypeError if where == "no manager" else KeyError)
    assert bool(log) == (where == "leave") and story.s.stats()["failed"] == 1


def test_it_can_be_changed(log):
    story = Story()
    assert story.s.around is None
    story.s.around = around
    assert story.s.around is around
    with pytest.raises(TypeError, match="around is a callable that takes an order"):
        story.s.around = 7
    story.s.schedule("a", 1, plain)
    story.at(1)
    story.s.around = None
    story.s.schedule("b", 1, plain)
    story.at(3)
    assert log == ["enter a", "run a", "leave a", "run b"]
    story.s.close()
    with pytest.raises(lapse.Closed):
        story.s.around = around
    with pytest.raises(TypeError):
        lapse.Scheduler(around=7)


def test_claims_go_without(log):
    story = Story(around=around)
    story.s.schedule("o", 0)
    story.clock.advance(1)
    with story.s.take(timeout=0):
        pass
    assert log == []


def test_a_coroutine_is_refused_all_the_same():
    errors = []
    story = Story(around=around, on_error=lambda order, error: errors.append(error))

    async def coroutine(order):
        pass

    story.s.schedule("o", 1, lambda order: coroutine(order))
    story.at(2)
    assert [type(error) for error in errors] == [TypeError]


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_p39_it_is_let_go(log):
    class Framework:
        def around(self, order):
            return around(order)

    framework = Framework()
    s = lapse.Scheduler(workers=0, around=framework.around)
    framework.s = s
    s.schedule("o", 60, plain)
    refs = [weakref.ref(framework), weakref.ref(s)]
    del framework, s
    gc.collect()
    assert [ref() for ref in refs] == [None, None]


def test_p39_close_lets_it_go():
    class Around:
        def __call__(self, order):
            return contextlib.nullcontext()

    with lapse.Scheduler(workers=0, around=(given := Around())):
        ref = weakref.ref(given)
        del given
        gc.collect()
        assert ref() is not None
    gc.collect()
    assert ref() is None


def test_p32_it_crosses_the_fork():
    done = python(
        """
        import contextlib, os, lapse, warnings
        warnings.simplefilter("ignore", DeprecationWarning)
        entered = []

        @contextlib.contextmanager
        def around(order):
            entered.append(order)
            yield

        s = lapse.Scheduler(workers=0, around=around)
        if os.fork() == 0:
            s.schedule("o", 0, lambda order: None)
            while not s.process(): pass
            os._exit(entered != ["o"])
        assert os.wait()[1] == 0 and entered == []
        """
    )
    assert done.returncode == 0 and done.stderr == "", done.stderr


# -- asyncio --------------------------------------------------------------------------------


@pytest.mark.parametrize("manager", [around, async_around], ids=["with", "async with"])
def test_both_kinds_of_callbacks_run_inside(loops, log, manager):
    async def coroutine(order):
        await passes(2)
        log.append(f"run {order}")

    async def main():
        s, clock = loops.told(around=manager)
        await s.schedule("a", 1, coroutine)
        await s.schedule("b", 3, plain)
        s.handle("q", coroutine)
        await s.schedule("c", 5, queue="q")
        for _ in range(3):
            clock.advance(2)
            assert await s.process() == 1
        assert log == [f"{what} {name}" for name in "abc" for what in ("enter", "run", "leave")]
        assert (await s.stats())["done"] == 3
        await s.close()

    loops.run(main)


@pytest.mark.parametrize("manager", [around, async_around], ids=["with", "async with"])
def test_it_sees_what_a_coroutine_raises(loops, log, manager):
    async def main():
        errors = []
        s, clock = loops.told(around=manager, on_error=lambda order, error: errors.append(error))

        async def fails(order):
            await passes(1)
            raise ValueError

        await s.schedule("bad", 1, fails)
        await s.schedule("rejected", 3, lambda order: rejects(order))
        clock.advance(2)
        await s.process()
        clock.advance(2)
        await s.process()
        assert log == ["enter bad", "ValueError bad", "leave bad", "enter rejected",
                       "Reject rejected", "leave rejected"]  # fmt: skip
        assert [type(error) for error in errors] == [ValueError]
        assert (await s.get("rejected")).state is State.DEAD
        await s.close()

    loops.run(main)


def test_a_coroutine_sees_what_it_sets(loops):
    app = contextvars.ContextVar("app")
    seen = []

    @contextlib.contextmanager
    def app_context(order):
        token = app.set(f"app of {order}")
        yield
        app.reset(token)

    async def coroutine(order):
        await passes(2)
        seen.append(app.get())

    async def main():
        async with loops.scheduler(around=app_context) as s:
            await s.schedule("a", 0, coroutine)
            await s.schedule("b", 0, coroutine)
            await until(lambda: len(seen) == 2)
        assert sorted(seen) == ["app of a", "app of b"]

    loops.run(main)


def test_in_asyncio_what_it_swallows_is_done_and_its_errors_are_reported(loops):
    async def main():
        errors = []
        s, clock = loops.told(on_error=lambda order, error: errors.append(type(error)))

        async def fails(order):
            raise ValueError

        for n, manager in enumerate([
            lambda order: contextlib.suppress(ValueError),
            lambda order: 5,
            lambda order: 1 / 0,
        ]):  # fmt: skip
            s.around = manager
            await s.schedule(f"{n}", 1, fails)
            clock.advance(2)
            await s.process()
        assert errors == [TypeError, ZeroDivisionError]
        found = await s.stats()
        assert (found["done"], found["failed"]) == (3, 2)  # a failure ends an order of its own
        await s.close()

    loops.run(main)


def test_it_leaves_when_the_task_is_cancelled(loops, log):
    async def main():
        s, inside = loops.scheduler(around=async_around), asyncio.Event()

        async def hangs(order):
            inside.set()
            await asyncio.Event().wait()

        await s.schedule("o", 0, hangs)
        await inside.wait()
        for task in s._runner.tasks():
            task.cancel()
        await until(lambda: not s._runner.held)
        assert log == ["enter o", "CancelledError o", "leave o"]
        assert (await s.get("o")).state is State.PENDING
        await s.close()

    loops.run(main)
