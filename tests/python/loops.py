"""What the tests of lapse.aio share: the loops it runs in, and waiting in one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import lapse
import lapse.aio
from support import PATIENCE, of_debian

# asyncio's own loop and uvloop; "thread" asks the store on the loop's executor, as one is
# asked that may wait for a disk or a network.
KINDS = ["asyncio", "uvloop", "thread"]


class Loops:
    """Runs a test's coroutine function in a loop of one kind, with what it makes in there."""

    def __init__(self, kind: str) -> None:
        if kind == "uvloop":
            self.uvloop = of_debian("uvloop")
        self.kind = kind

    def new_loop(self) -> asyncio.AbstractEventLoop:
        return self.uvloop.new_event_loop() if self.kind == "uvloop" else asyncio.new_event_loop()

    def run(self, main: Callable[[], Awaitable[Any]], *, debug: bool = False) -> Any:
        """As asyncio.run, but a test that hangs fails; its warnings are the test's."""
        with asyncio.Runner(loop_factory=self.new_loop, debug=debug) as runner:
            return runner.run(asyncio.wait_for(main(), 2 * PATIENCE))

    def scheduler(self, *args: Any, **options: Any) -> lapse.aio.Scheduler:
        s = lapse.aio.Scheduler(*args, **options)
        if self.kind == "thread":
            s._runner.inline = False
        return s

    def told(self, **options: Any) -> tuple[lapse.aio.Scheduler, lapse.ManualClock]:
        """One under a manual clock: clock.advance(1), then await s.process()."""
        clock = lapse.ManualClock()
        return self.scheduler(clock=clock, **options), clock


class Slow:
    """Its `callback` sets `inside` and goes on when `go` is set; then the order is in `ended`."""

    def __init__(self) -> None:
        self.inside, self.go = asyncio.Event(), asyncio.Event()
        self.ended: list[lapse.Order] = []

    async def callback(self, order: lapse.Order) -> None:
        self.inside.set()
        await self.go.wait()
        self.ended.append(order)


async def until(condition: Callable[[], Any], what: str = "it") -> None:
    """Wait for something that the loop is about to do."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, f"{what} did not happen"
        await asyncio.sleep(0.001)  # sleeps: between two looks at what the loop does


async def passes(count: int = 3) -> None:
    """Let the loop look at its descriptors a few times."""
    for _ in range(count):
        await asyncio.sleep(0)  # sleeps: one pass of the loop


async def listed(s: lapse.aio.Scheduler, states: lapse.State | None = None) -> list[str]:
    """The ids of its orders, sorted."""
    return sorted([info.id async for info in s.orders(states)])


def what_is_left(s: lapse.aio.Scheduler) -> Any:
    """In another loop: the ids of its orders, before any of them runs there."""
    s._runner.inline = True  # so that nothing comes between these two

    async def main():
        await s.stop()
        return await listed(s, lapse.State.PENDING | lapse.State.RUNNING)

    return asyncio.run(main())
