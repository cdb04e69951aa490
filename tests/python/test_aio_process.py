"""lapse.aio and the life of its process: Ctrl-C, fork, exit."""

import asyncio
import os
import re
import signal
import threading
import time

import lapse
import lapse.aio
import pytest
from loops import until, what_is_left
from support import python, rounds

# -- P-41: Ctrl-C -------------------------------------------------------------------------


WAITS = {
    "take": lambda s: s.take(timeout=60),
    "take without limit": lambda s: s.take("q"),
    "cancel_wait": lambda s: s.cancel_wait("stuck", 60),
    "cancel_wait without limit": lambda s: s.cancel_wait("stuck"),
    "close": lambda s: s.close(60),
    "close without limit": lambda s: s.close(),
    "process": lambda s: s.process(),
}


@pytest.mark.parametrize("wait", WAITS)
def test_p41_ctrl_c_is_seen(loops, wait):
    s, inside, seen = loops.scheduler(concurrency=1), threading.Event(), []

    async def stuck(order):
        inside.set()
        await asyncio.Event().wait()

    async def main():
        await s.schedule("stuck", 0, stuck)
        await s.schedule("next", 0, stuck)
        await until(lambda: inside.is_set() and s._s.timeout() == 0)
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
        start = time.monotonic()
        try:
            await WAITS[wait](s)
        except asyncio.CancelledError:
            seen.append(time.monotonic() - start)
            raise

    with pytest.raises(KeyboardInterrupt):
        loops.run(main)
    assert len(seen) == 1 and seen[0] < 5
    left = ["next"] if "cancel" in wait else ["next", "stuck"]
    assert what_is_left(s) == left  # and it is still usable
    asyncio.run(s.close())


def test_p41_ctrl_c_while_plain_callbacks_run():
    """A long row of them gives way between two orders; none is half done."""
    s, ran = lapse.aio.Scheduler(), []

    def callback(order):
        ran.append(order)
        if len(ran) == 1000:
            os.kill(os.getpid(), signal.SIGINT)

    async def main():
        await s.schedule_many([(f"{i}", 0, callback) for i in range(200_000)])
        await until(lambda: len(ran) == 200_000)

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(main())
    assert 1000 <= len(ran) < 200_000
    assert len(what_is_left(s)) == 200_000 - len(ran)
    asyncio.run(s.close())


# -- Fork ---------------------------------------------------------------------------------


FORK = """
import asyncio, os, sys, warnings
warnings.simplefilter("ignore", DeprecationWarning)
import lapse, lapse.aio

s = lapse.aio.Scheduler()
ran, dead = [], []

@s.handler("close", attempts=1)
async def close(order):
    await asyncio.sleep(0)  # sleeps: one pass of the loop
    ran.append((str(order), os.getpid()))

async def in_child():
    assert [info async for info in s.orders()] == []
    assert await s.cancel("far") is lapse.Fate.UNKNOWN
    await s.schedule("c", 0.01, close)
    await s.schedule("t", 0.02, queue="q")
    async with await s.take("q", 10) as claim:
        assert claim == "t"
    while not ran:
        await asyncio.sleep(0.001)  # sleeps: between two looks
    await s.close(5)
    assert ran == [("c", os.getpid())], ran

def child():
    code = 1
    try:
        ran.clear()
        asyncio.run(in_child())
        code = 0
    except BaseException:
        import traceback; traceback.print_exc()
    finally:
        os._exit(code)
"""


def fork_program(body):
    done = python(FORK + body)
    assert done.returncode == 0 and done.stderr == "", done.stderr


def test_p32_fork_before_any_loop():
    """gunicorn --preload: made and its handlers registered at import, used in the workers."""
    fork_program(
        """
for _ in range(3):
    if os.fork() == 0:
        child()
for _ in range(3):
    assert os.wait()[1] == 0
asyncio.run(in_child())
"""
    )


def test_p32_fork_in_a_running_loop():
    fork_program(
        """
async def main():
    go, inside = asyncio.Event(), asyncio.Event()

    async def waits(order):
        inside.set()
        await go.wait()
        ran.append((str(order), os.getpid()))

    for i in range(10):
        await s.schedule(f"p{i}", 0.1, close)
    await s.schedule("far", 3600, close)
    await s.schedule("runs", 0, waits)
    taking = asyncio.ensure_future(s.take("other"))
    await inside.wait()
    pids = []
    for _ in range(3):
        pid = os.fork()
        if pid == 0:
            child()
        pids.append(pid)
    for pid in pids:
        assert os.waitpid(pid, 0)[1] == 0
    go.set()
    while len(ran) < 11:
        await asyncio.sleep(0.001)  # sleeps: between two looks
    assert sorted(name for name, _ in ran) == sorted([f"p{i}" for i in range(10)] + ["runs"])
    assert {pid for _, pid in ran} == {os.getpid()}
    assert await s.cancel("far") is lapse.Fate.CANCELLED
    await s.schedule("o", 0, queue="other")
    async with await taking as claim:
        assert claim == "o"
    await s.close()

asyncio.run(main())
"""
    )


def test_p32_a_child_that_ends_by_itself():
    """What it inherited of the parent's tasks is not its to complain about."""
    fork_program(
        """
async def main():
    async def waits(order):
        await asyncio.Event().wait()

    await s.schedule("runs", 0, waits)
    while not s._runner.held:
        await asyncio.sleep(0.001)  # sleeps: between two looks
    pid = os.fork()
    if pid == 0:
        raise SystemExit(0)
    assert os.waitpid(pid, 0)[1] == 0
    await s.stop()

try:
    asyncio.run(main())
except SystemExit:
    os._exit(0)
"""
    )


# -- Exit ---------------------------------------------------------------------------------


UNFINISHED = r"\d+ callbacks? w(as|ere) not finished: the event loop was closed"


@pytest.mark.parametrize("ending", ["falls off", "exit", "raises", "os._exit", "unfinished"])
def test_p35_the_interpreter_ends(ending):
    expected = {"falls off": 0, "exit": 3, "raises": 1, "os._exit": 4, "unfinished": 0}[ending]
    for _ in range(rounds(1, 5, 50)):
        done = python(
            """
            import asyncio, os, sys, lapse.aio
            s = lapse.aio.Scheduler()

            async def callback(order):
                await asyncio.sleep(0)  # sleeps: one pass of the loop

            async def main(how):
                await s.schedule_many([(f"{i}", i % 6 / 1000, callback) for i in range(100)])
                await s.schedule("far", 3600, callback)
                await asyncio.sleep(0.003)  # sleeps: while some of them run
                if how == "exit": sys.exit(3)
                if how == "raises": raise ValueError
                if how == "os._exit": os._exit(4)

            if sys.argv[1] == "unfinished":
                loop = asyncio.new_event_loop()
                loop.run_until_complete(main(""))
            else:
                asyncio.run(main(sys.argv[1]))
            """,
            ending,
        )
        assert done.returncode == expected, done.stderr
        told = [line for line in done.stderr.splitlines() if "ask" not in line[:4]]
        if ending == "unfinished":  # a task may not have begun
            told = [line for line in told if not line.endswith("was never awaited")]
        # What begins while asyncio.run already cancels is told of when the loop is closed.
        told = [line for line in told if not re.fullmatch(UNFINISHED, line)]
        assert told == [] or ending == "raises", done.stderr  # of tasks tells asyncio
        assert "Fatal" not in done.stderr


def test_it_costs_a_process_nothing_until_it_is_used():
    done = python(
        """
        import sys, threading, lapse
        assert "asyncio" not in sys.modules
        lapse.aio.Scheduler()
        assert "asyncio" in sys.modules and threading.active_count() == 1
        try: lapse.nothing
        except AttributeError as error: print(error)
        """
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "module 'lapse' has no attribute 'nothing'\n"
