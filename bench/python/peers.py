"""The peers: each schedules, cancels by order id, and runs callbacks, as its users do.

A peer is given what a program has to add so that an order can be cancelled by its id: a dict
from id to handle. `asyncio-bare` and `uvloop-bare` go without: they keep the handles in a
list and are told the number of the order. A callback gets the id. What is not of Python itself is imported by its class, so that
a process holds one such peer only.
"""

from __future__ import annotations

import asyncio
import platform
import sched
import threading
import time
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

Callback = Callable[[str], object]


class Peer:
    """What a workload calls. `sizes`: workload -> the most orders it is given."""

    package = ""  # the Debian package, if it is not of Python itself
    sizes: dict[str, int] = {}

    def __init__(self, count: int, callback: Callback) -> None:
        """Open it for `count` orders that all have this callback."""
        self.callback = callback

    @staticmethod
    def version() -> str:
        """Of the peer; it is imported by this."""
        return platform.python_version()

    def schedule(self, ids: list[str], delays: list[float]) -> None:
        raise NotImplementedError

    def cancel(self, ids: list[str], numbers: list[int]) -> None:
        """All of them are pending."""
        raise NotImplementedError

    def pending(self) -> int:
        """How many are."""
        raise NotImplementedError

    def turn(self) -> None:
        """One turn of the loop, if the program has one."""

    def run(self) -> None:
        """Run callbacks, or have them run, until finish() is called by one of them."""
        raise NotImplementedError

    def finish(self) -> None:
        """Called by the last callback, on whatever thread it runs."""
        raise NotImplementedError

    def close(self) -> None:
        pass


class Threaded(Peer):
    """Callbacks run on another thread; this one waits."""

    def __init__(self, count: int, callback: Callback) -> None:
        super().__init__(count, callback)
        self.finished = threading.Event()

    def run(self) -> None:
        self.finished.wait()

    def finish(self) -> None:
        self.finished.set()


class Looped(Peer):
    """Callbacks run in an asyncio loop on this thread."""

    @staticmethod
    def new_loop() -> Any:
        return asyncio.SelectorEventLoop()

    def __init__(self, count: int, callback: Callback) -> None:
        super().__init__(count, callback)
        self.loop = self.new_loop()

    def turn(self) -> None:
        self.loop.call_soon(self.loop.stop)
        self.loop.run_forever()

    def run(self) -> None:
        self.loop.run_forever()

    def finish(self) -> None:
        self.loop.stop()


# -- lapse ---------------------------------------------------------------------------


class Lapse(Threaded):
    """lapse.Scheduler with its worker thread."""

    url = "memory:"

    def __init__(self, count: int, callback: Callback) -> None:
        import lapse

        super().__init__(count, callback)
        self.scheduler = lapse.Scheduler(self.url)

    @staticmethod
    def version() -> str:
        import lapse

        return str(lapse.__version__)

    def schedule(self, ids: list[str], delays: list[float]) -> None:
        schedule, callback = self.scheduler.schedule, self.callback
        for order_id, delay in zip(ids, delays, strict=True):
            schedule(order_id, delay, callback)

    def cancel(self, ids: list[str], numbers: list[int]) -> None:
        cancel = self.scheduler.cancel
        for order_id in ids:
            cancel(order_id)

    def pending(self) -> int:
        return int(self.scheduler.stats()["pending"])

    def close(self) -> None:
        self.scheduler.close()


class LapseHeap(Lapse):
    url = "memory:?engine=heap"


class LapseMany(Lapse):
    """64 orders in one call of schedule_many."""

    def schedule(self, ids: list[str], delays: list[float]) -> None:
        many, callback = self.scheduler.schedule_many, self.callback
        for start in range(0, len(ids), 64):
            end = start + 64
            many([(i, d, callback) for i, d in zip(ids[start:end], delays[start:end], strict=True)])


class LapseLoop(Looped):
    """lapse.Scheduler without threads, its descriptor in an asyncio loop."""

    schedule, cancel, pending = Lapse.schedule, Lapse.cancel, Lapse.pending
    version = staticmethod(Lapse.version)

    def __init__(self, count: int, callback: Callback) -> None:
        import lapse

        super().__init__(count, callback)
        self.scheduler = lapse.Scheduler(workers=0)
        self.loop.add_reader(self.scheduler.fileno(), self.scheduler.process)

    def close(self) -> None:
        self.loop.remove_reader(self.scheduler.fileno())
        self.scheduler.close()


class LapseAio(Looped):
    """lapse.aio.Scheduler: every call is awaited."""

    @staticmethod
    def version() -> str:
        import lapse.aio

        return str(lapse.__version__)

    def __init__(self, count: int, callback: Callback) -> None:
        super().__init__(count, callback)
        self.loop.run_until_complete(self._open())

    async def _open(self) -> None:
        import lapse.aio

        self.scheduler = lapse.aio.Scheduler()

    def schedule(self, ids: list[str], delays: list[float]) -> None:
        self.loop.run_until_complete(self._schedule(ids, delays))

    async def _schedule(self, ids: list[str], delays: list[float]) -> None:
        schedule, callback = self.scheduler.schedule, self.callback
        for order_id, delay in zip(ids, delays, strict=True):
            await schedule(order_id, delay, callback)

    def cancel(self, ids: list[str], numbers: list[int]) -> None:
        self.loop.run_until_complete(self._cancel(ids))

    def pending(self) -> int:
        return int(self.loop.run_until_complete(self.scheduler.stats())["pending"])

    async def _cancel(self, ids: list[str]) -> None:
        cancel = self.scheduler.cancel
        for order_id in ids:
            await cancel(order_id)

    def close(self) -> None:
        self.loop.run_until_complete(self.scheduler.close())


# -- asyncio and uvloop ----------------------------------------------------------------


class Asyncio(Looped):
    """loop.call_later, and a dict from id to handle."""

    def __init__(self, count: int, callback: Callback) -> None:
        super().__init__(count, callback)
        handles: dict[str, Any] = {}

        def ends(order_id: str) -> None:
            del handles[order_id]
            callback(order_id)

        self.handles, self.ends = handles, ends

    def schedule(self, ids: list[str], delays: list[float]) -> None:
        later, handles, ends = self.loop.call_later, self.handles, self.ends
        for order_id, delay in zip(ids, delays, strict=True):
            handles[order_id] = later(delay, ends, order_id)

    def cancel(self, ids: list[str], numbers: list[int]) -> None:
        pop = self.handles.pop
        for order_id in ids:
            pop(order_id).cancel()

    def pending(self) -> int:
        return len(self.handles)


class AsyncioBare(Looped):
    """loop.call_later, and the handles in a list: the number of the order is known."""

    def __init__(self, count: int, callback: Callback) -> None:
        super().__init__(count, callback)
        self.handles: list[Any] = []

    def schedule(self, ids: list[str], delays: list[float]) -> None:
        later, append, callback = self.loop.call_later, self.handles.append, self.callback
        for order_id, delay in zip(ids, delays, strict=True):
            append(later(delay, callback, order_id))

    def cancel(self, ids: list[str], numbers: list[int]) -> None:
        handles = self.handles
        for number in numbers:
            handles[number].cancel()

    def pending(self) -> int:
        return sum(not handle.cancelled() for handle in self.handles)


class Uvloop(Asyncio):
    package = "python3-uvloop"

    @staticmethod
    def new_loop() -> Any:
        import uvloop

        return uvloop.new_event_loop()

    @staticmethod
    def version() -> str:
        import uvloop

        return str(vars(uvloop)["__version__"])


class UvloopBare(AsyncioBare):
    package = Uvloop.package
    new_loop, version = staticmethod(Uvloop.new_loop), staticmethod(Uvloop.version)


# -- Threads -------------------------------------------------------------------------


class Heapq(Threaded):
    """A heap, a Condition and a thread, as one writes it by hand; cancel marks the entry."""

    def __init__(self, count: int, callback: Callback) -> None:
        super().__init__(count, callback)
        self.entries: dict[str, list[Any]] = {}
        self.heap: list[list[Any]] = []
        self.changed = threading.Condition()
        threading.Thread(target=self._work, daemon=True).start()

    def schedule(self, ids: list[str], delays: list[float]) -> None:
        callback = self.callback
        for order_id, delay in zip(ids, delays, strict=True):
            entry = [time.monotonic() + delay, order_id, callback]
            with self.changed:
                self.entries[order_id] = entry
                heappush(self.heap, entry)
                if self.heap[0] is entry:
                    self.changed.notify()

    def cancel(self, ids: list[str], numbers: list[int]) -> None:
        for order_id in ids:
            with self.changed:
                self.entries.pop(order_id)[2] = None

    def pending(self) -> int:
        return len(self.entries)

    def _take(self) -> list[Any]:
        """The next entry that is due, waiting for it."""
        with self.changed:
            while True:
                if not self.heap:
                    self.changed.wait()
                    continue
                left = self.heap[0][0] - time.monotonic()
                if left > 0:
                    self.changed.wait(left)
                    continue
                entry = heappop(self.heap)
                if entry[2]:
                    del self.entries[entry[1]]
                    return entry

    def _work(self) -> None:
        while True:
            _, order_id, callback = self._take()
            callback(order_id)


class Sched(Peer):
    """The standard library's sched.scheduler, run on this thread. Its cancel searches the
    whole list and orders it anew, so it is asked for fewer. It gives up the GIL after every
    callback."""

    sizes = {"fire": 100_000, "late-gil": 2000}
    cancels = 20_000_000  # entries that its cancels look at, in all

    def __init__(self, count: int, callback: Callback) -> None:
        super().__init__(count, callback)
        self.scheduler = sched.scheduler(time.monotonic, time.sleep)
        self.events: dict[str, Any] = {}

        def ends(order_id: str) -> None:
            del self.events[order_id]
            callback(order_id)

        self.ends = ends

    def schedule(self, ids: list[str], delays: list[float]) -> None:
        enter, events, ends = self.scheduler.enter, self.events, self.ends
        for order_id, delay in zip(ids, delays, strict=True):
            events[order_id] = enter(delay, 1, ends, (order_id,))

    def cancel(self, ids: list[str], numbers: list[int]) -> None:
        cancel, pop = self.scheduler.cancel, self.events.pop
        for order_id in ids:
            cancel(pop(order_id))

    def pending(self) -> int:
        return len(self.scheduler.queue)

    def run(self) -> None:
        self.scheduler.run()

    def finish(self) -> None:
        pass  # run() ends with the last


class Timer(Threaded):
    """threading.Timer: a thread for each order. Some 22 000 are all that start at once."""

    sizes = {"const": 1000, "cancel": 1000, "fire": 1000, "late": 2000, "late-gil": 2000}

    def __init__(self, count: int, callback: Callback) -> None:
        super().__init__(count, callback)
        self.timers: dict[str, threading.Timer] = {}

        def ends(order_id: str) -> None:
            del self.timers[order_id]
            callback(order_id)

        self.ends = ends

    def schedule(self, ids: list[str], delays: list[float]) -> None:
        for order_id, delay in zip(ids, delays, strict=True):
            timer = threading.Timer(delay, self.ends, (order_id,))
            timer.daemon = True
            self.timers[order_id] = timer
            timer.start()

    def cancel(self, ids: list[str], numbers: list[int]) -> None:
        for order_id in ids:
            self.timers.pop(order_id).cancel()

    def pending(self) -> int:
        return len(self.timers)


class Apscheduler(Threaded):
    """APScheduler's BackgroundScheduler with its memory store. Jobs that are late run all
    the same: by its default of one second it would leave them out."""

    package = "python3-apscheduler"
    sizes = {"const": 100_000, "cancel": 100_000, "fire": 1000, "late": 2000, "late-gil": 2000}

    def __init__(self, count: int, callback: Callback) -> None:
        from apscheduler.executors.pool import ThreadPoolExecutor
        from apscheduler.schedulers.background import BackgroundScheduler

        super().__init__(count, callback)
        self.scheduler = BackgroundScheduler(
            timezone="UTC",
            executors={"default": ThreadPoolExecutor(1)},
            job_defaults={"misfire_grace_time": None},
        )
        self.scheduler.start()

    @staticmethod
    def version() -> str:
        import apscheduler

        return str(apscheduler.version)

    def schedule(self, ids: list[str], delays: list[float]) -> None:
        from datetime import datetime, timedelta, timezone

        add, callback = self.scheduler.add_job, self.callback
        for order_id, delay in zip(ids, delays, strict=True):
            due = datetime.now(timezone.utc) + timedelta(seconds=delay)
            add(callback, "date", run_date=due, args=(order_id,), id=order_id)

    def cancel(self, ids: list[str], numbers: list[int]) -> None:
        for order_id in ids:
            self.scheduler.remove_job(order_id)

    def pending(self) -> int:
        return len(self.scheduler.get_jobs())

    def close(self) -> None:
        self.scheduler.shutdown(wait=False)


PEERS: dict[str, type[Peer]] = {
    "lapse": Lapse,
    "lapse-heap": LapseHeap,
    "lapse-many": LapseMany,
    "lapse-loop": LapseLoop,
    "lapse-aio": LapseAio,
    "asyncio": Asyncio,
    "asyncio-bare": AsyncioBare,
    "uvloop": Uvloop,
    "uvloop-bare": UvloopBare,
    "heapq": Heapq,
    "sched": Sched,
    "timer": Timer,
    "apscheduler": Apscheduler,
}
