"""lapse for asyncio: the Scheduler whose calls are awaited and whose callbacks run in the loop.

    import lapse.aio

    async def close_unpaid(order):
        ...

    async with lapse.aio.Scheduler() as s:
        await s.schedule("OID00000010", 30 * 60, close_unpaid)   # order created
        await s.cancel("OID00000010")                            # order paid

It has the names of lapse.Scheduler, and no threads: the loop waits on a descriptor of lapse.
asyncio's own loop and uvloop serve. A callback is a coroutine function or a plain function.
"""

from __future__ import annotations

import asyncio
import os
import time
import weakref
from asyncio import get_running_loop
from collections.abc import AsyncIterator, Callable, Iterable
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack, cast

from . import _lapse
from . import _scheduler as _sync
from ._claim import Claim
from ._enums import Fate, Info, State, info_of
from ._hooks import Hooks
from ._runner import Around, Runner
from ._types import (
    Callback,
    Id,
    Instant,
    OnDead,
    OnError,
    Overflow,
    Policy,
    QueueStats,
    Results,
    Seconds,
    Stats,
)

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

__all__ = ["Claim", "Scheduler"]

Claim.__module__ = __name__  # where it is imported from

_T = TypeVar("_T")
_Function = TypeVar("_Function", bound=Callback)

_MAX_CONCURRENCY = 1_000_000


class Scheduler:
    """Runs a callback in the event loop when an order's time is up, unless it was cancelled.

    url:         where orders live, as for lapse.Scheduler.
    concurrency: coroutine callbacks that run at the same time at most, 1 to 1 000 000.
                 Orders beyond it stay pending, and can be cancelled, until one has ended.
    on_error:    called as on_error(order, error) for what a callback raises; a plain or a
                 coroutine function. None: the loop's exception handler, which logs it.
    on_dead:     called as on_dead(info, reason) for each dead letter, likewise; None: the
                 logger "lapse".
    around:      called as around(order) before each callback; what it returns is entered
                 for the callback, with `async with` where it can be, else with `with`.
    max_pending, overflow, keep, max_dead, lease, stuck_after, clock: as for lapse.Scheduler.

    It opens the store, which may wait for a disk or a network if that is a durable one. Its
    calls then never hold up the loop: schedule, schedule_at, cancel, reschedule, get and
    requeue are submitted together, without a thread, so that many share one flush of the disk;
    the others are made on a thread of the loop's executor.

    Make it anywhere, also at import, and register its handlers there. It belongs to the loop
    in which it is first used; another loop may take it over once that one is closed, else it
    is a RuntimeError. Its methods are called in that loop's thread; from other threads use
    asyncio.run_coroutine_threadsafe.

    A coroutine callback is a task of its own with an empty context. When the task is
    cancelled, as asyncio.run() does at its end, the order is given back: pending again, as if
    it had not been tried, and nothing starts for a second.

    Keep a reference to it: orders of a Scheduler that is dropped do not run.
    """

    def __init__(
        self,
        url: str | None = "memory:",
        *,
        concurrency: int = 100,
        on_error: OnError | None = None,
        on_dead: OnDead | None = None,
        around: Around | None = None,
        max_pending: int = 0,
        overflow: Overflow = "refuse",
        keep: Seconds = 0,
        max_dead: int = 0,
        lease: Seconds = 0,
        stuck_after: Seconds = 0,
        clock: _lapse.ManualClock | None = None,
    ) -> None:
        if not isinstance(concurrency, int) or isinstance(concurrency, bool):
            raise TypeError(f"concurrency is an int, got {concurrency!r}")
        if not 1 <= concurrency <= _MAX_CONCURRENCY:
            raise _lapse.Invalid(f"concurrency is 1 to {_MAX_CONCURRENCY}, not {concurrency}")
        self._hooks = Hooks(on_error, on_dead)
        self._s = _sync.Scheduler(
            url,
            workers=0,
            on_error=on_error,
            on_dead=on_dead,
            around=cast("Any", around),
            max_pending=max_pending,
            overflow=overflow,
            keep=keep,
            max_dead=max_dead,
            lease=lease,
            stuck_after=stuck_after,
            clock=clock,
        )
        self._s._await_results()
        self._wire()
        self._concurrency = concurrency
        self._runner = self._make_runner()
        self._submits = self._runner.submits
        _schedulers.add(self)

    # -- Schedule, cancel, change ---------------------------------------------------

    async def schedule(
        self,
        order_id: Id,
        delay: Seconds,
        callback: Callback | None = None,
        payload: ReadableBuffer | None = None,
        queue: str | None = None,
        replace: bool = False,
    ) -> int:
        """Run callback(order) when `delay` has passed, unless the order is cancelled first.

        The arguments and errors are those of lapse.Scheduler.schedule; the callback may be
        a coroutine function, or anything that returns an awaitable. Returns the order's
        generation.
        """
        order = (order_id, delay, callback, payload, queue, replace)
        if self._submits:
            return cast("int", await self._send(partial(self._s._submit_put, False, *order)))
        return await self._ask(self._s.schedule, *order)

    async def schedule_at(
        self,
        order_id: Id,
        at: Instant,
        callback: Callback | None = None,
        payload: ReadableBuffer | None = None,
        queue: str | None = None,
        replace: bool = False,
    ) -> int:
        """As schedule, at an instant: an aware datetime, or seconds since 1970 (UTC)."""
        order = (order_id, at, callback, payload, queue, replace)
        if self._submits:
            return cast("int", await self._send(partial(self._s._submit_put, True, *order)))
        return await self._ask(self._s.schedule_at, *order)

    async def schedule_many(self, orders: Iterable[_lapse._Given]) -> Results:
        """Schedule many orders in one step; one bad order does not hold back the others.

        Takes and returns what lapse.Scheduler.schedule_many does.
        """
        return await self._ask(self._s.schedule_many, list(orders))

    async def cancel(self, order_id: Id, generation: int = 0) -> Fate:
        """The order was paid: returns its Fate, which is true only when it was cancelled."""
        if self._submits:
            ask = partial(self._s._submit, _lapse.ASK_CANCEL, order_id, generation, 0)
            if (fate := await self._send(ask)) is not None:
                return cast("Fate", fate)
            return self._s.cancel(order_id, generation)  # which knows the answer
        return await self._ask(self._s.cancel, order_id, generation)

    async def cancel_wait(
        self, order_id: Id, timeout: Seconds | None = None, generation: int = 0
    ) -> Fate:
        """Cancel, and if the callback is running wait until it has ended.

        timeout: seconds, None without limit; lapse.Timeout when it passes. Inside that very
        callback it answers RUNNING at once.
        """
        limit = _limit(timeout)
        fate = await self.cancel(order_id, generation)
        text = _text(order_id)
        end = _end(limit)
        running = self._runner.tasks(text, generation)
        if running and asyncio.current_task() not in running:
            _, late = await asyncio.wait(running, timeout=_left(end))
            if late:
                raise _lapse.Timeout(f"order {text!r} still runs: it will not be repeated")
        return fate

    async def reschedule(self, order_id: Id, delay: Seconds, generation: int = 0) -> Fate:
        """Give a pending order a new delay from now, in seconds as for schedule.

        Returns Fate.RESCHEDULED; or RUNNING, DONE or UNKNOWN, and then nothing has changed.
        """
        if self._submits:
            ask = partial(self._s._submit, _lapse.ASK_RESCHEDULE, order_id, generation, delay)
            if (fate := await self._send(ask)) is not None:
                return cast("Fate", fate)
            return self._s.reschedule(order_id, delay, generation)  # which knows the answer
        return await self._ask(self._s.reschedule, order_id, delay, generation)

    # -- Handlers -------------------------------------------------------------------

    def handle(self, queue: str, function: Callback | None, **policy: Unpack[Policy]) -> None:
        """Let `function` run the orders of `queue` that bring no callback of their own.

        A plain call, also without a loop, for it never waits. The options are those of
        lapse.Scheduler.handle; the function may be a coroutine function.
        """
        self._s.handle(queue, function, **policy)
        if not self._s.closed:
            self._bind_if_running()

    def handler(
        self, queue: str, **policy: Unpack[Policy]
    ) -> Callable[[_Function], _Function]:
        """Decorate the function that handles `queue`; the options are those of handle().

        @s.handler("close_unpaid", attempts=5)
        async def close_unpaid(order): ...

        await s.schedule("OID00000010", 30 * 60, close_unpaid)   # or queue="close_unpaid"
        """
        _sync._check_handler(queue)

        def register(function: _Function) -> _Function:
            self.handle(queue, function, **policy)
            return function

        return register

    async def pause(self, queue: str) -> None:
        """No order of `queue` ('' is the default one) starts until resume()."""
        await self._ask(self._s.pause, queue)

    async def resume(self, queue: str) -> None:
        """Let the orders of `queue` start again, those that are due oldest first."""
        await self._ask(self._s.resume, queue)

    async def holds(self, order: _lapse.Order | int) -> bool:
        """Whether a callback or claim still holds its order; ask before a late write."""
        return await self._ask(self._s.holds, order)

    async def renew(self, order: _lapse.Order | int, lease: Seconds = 0) -> None:
        """Hold an order for `lease` seconds from now; 0: as long as it was given for."""
        await self._ask(self._s.renew, order, lease)

    # -- Claims instead of callbacks ------------------------------------------------

    async def take(
        self, queue: str | None = None, timeout: Seconds | None = None
    ) -> Claim | None:
        """Wait for the next due order that has no callback, and claim it.

        queue: None for any. timeout: seconds, None without limit. Returns a lapse.aio.Claim,
        to be used with `async with`, or None when the time has passed; those who wait get
        theirs in the order in which they came. Raises lapse.Closed when the scheduler is
        stopped. A cancelled take has claimed nothing.
        """
        limit = _limit(timeout)
        if limit == 0:
            return await self.poll(queue)
        return await self._bind().take(queue, limit)

    async def poll(self, queue: str | None = None) -> Claim | None:
        """As take, but never waits for an order."""
        return await self._ask(self._runner.poll, queue)

    # -- Look -----------------------------------------------------------------------

    async def get(self, order_id: Id) -> Info | None:
        """Look up the newest generation of an order; None when there is no such order."""
        if self._submits:
            found = await self._send(partial(self._s._submit, _lapse.ASK_GET, order_id, 0, 0))
            return None if found is None else info_of(found)
        return await self._ask(self._s.get, order_id)

    async def orders(self, states: State | None = None) -> AsyncIterator[Info]:
        """Iterate over the orders whose state is in `states` (None: all), in no promised order.

        `async for info in s.orders(State.DEAD)` shows the dead letters, as they were when
        the iteration began.
        """
        for info in await self._ask(self._s.orders, states):
            yield info

    async def requeue(self, order_id: Id, delay: Seconds = 0, generation: int = 0) -> int:
        """Make a dead letter a pending order again, due after `delay` seconds.

        Returns the new generation. Raises lapse.Unknown when there is no such dead letter.
        """
        if self._submits:
            ask = partial(self._s._submit, _lapse.ASK_REQUEUE, order_id, generation, delay)
            if (made := await self._send(ask)) is not None:
                return cast("int", made)
            return self._s.requeue(order_id, delay, generation)  # which knows the answer
        return await self._ask(self._s.requeue, order_id, delay, generation)

    async def purge(self, order_id: Id | None = None, generation: int = 0) -> int:
        """Delete dead letters: of one id, or with None all there are; returns how many."""
        return await self._ask(self._s.purge, order_id, generation)

    async def stats(self) -> Stats:
        """Counts and lateness, as lapse.Scheduler.stats."""
        return await self._ask(self._s.stats)

    async def queue_stats(self, queue: str) -> QueueStats:
        """The same of one queue, '' for the default one."""
        return await self._ask(self._s.queue_stats, queue)

    async def queues(self) -> list[str]:
        """The names of all queues that had an order or a handler."""
        return await self._ask(self._s.queues)

    async def metrics(self) -> str:
        """All statistics as text for Prometheus, in its exposition format 0.0.4."""
        return await self._ask(self._s.metrics)

    def now(self) -> float:
        """The scheduler's clock in seconds: uptime, sleep included."""
        return self._s.now()

    # -- Ending ---------------------------------------------------------------------

    async def process(self) -> int:
        """Start what is due now, and wait until all callbacks that run have ended.

        Returns how many it started. The loop does so by itself: a test that has advanced its
        ManualClock does not have to wait for it, whoever of the two was first.
        """
        runner = self._bind()
        me = {cast("asyncio.Task[Any]", asyncio.current_task())}
        begun = runner.begun
        while True:
            seen, room = runner.begun, runner.room
            runner.ready()
            if runner.begun != seen:
                continue
            if room or await self._ask(self._s.timeout) != 0:
                break  # nothing was due, or is
            if running := runner.tasks() - me:
                await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            elif not runner.room:
                break  # nothing may start now
        if running := runner.tasks() - me:
            await asyncio.wait(running)
        return runner.begun - begun

    async def stop(self) -> None:
        """Nothing starts any more, and schedule raises lapse.Closed.

        Running callbacks go on; orders that did not run can be listed with orders(). Also
        inside callbacks; a second call does nothing.
        """
        await self._ask(self._s.stop)
        self._runner.end()

    async def close(self, timeout: Seconds | None = None) -> None:
        """Stop, wait up to `timeout` seconds for running callbacks, and free everything.

        None waits without limit. lapse.Timeout names an order that still runs and leaves the
        scheduler stopped: call again. lapse.InCallback inside one of its own callbacks or
        hooks. A second call does nothing. Pending orders of "memory:" do not run: how many
        there were goes to the logger "lapse", as INFO.
        """
        limit = _limit(timeout)
        if self.closed:
            return
        runner = self._bind()
        if asyncio.current_task() in runner.tasks() | runner.hooks:
            raise _lapse.InCallback(
                "close inside a callback of this scheduler would wait for itself: use stop()"
            )
        end = _end(limit)
        await self.stop()
        await self._wait_idle(runner, end)
        await self._ask(self._s.close, _left(end))
        runner.lose_answers()

    async def _wait_idle(self, runner: Runner, end: float | None) -> None:
        await asyncio.sleep(0)  # a callback that is under way in this pass returns first
        while running := runner.tasks() | runner.hooks | runner.passing | runner.asked:
            if _left(end) == 0:
                what = f"order {next(iter(runner.held)).order.id!r}" if runner.held else "a call"
                raise _lapse.Timeout(f"{what} still runs: close again to wait for it")
            await asyncio.wait(running, timeout=_left(end))

    @property
    def closed(self) -> bool:
        """Whether close() has freed it."""
        return self._s.closed

    async def __aenter__(self) -> Self:
        self._bind()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    # -- Hooks ----------------------------------------------------------------------

    @property
    def on_error(self) -> OnError | None:
        """Called as on_error(order, error) for what a callback raises; None: the loop."""
        return self._hooks.on_error

    @on_error.setter
    def on_error(self, hook: OnError | None) -> None:
        self._s.on_error = hook  # it refuses what is no hook
        self._hooks.on_error = hook
        self._wire()

    @property
    def on_dead(self) -> OnDead | None:
        """Called as on_dead(info, reason) for each dead letter; None: logging."""
        return self._hooks.on_dead

    @on_dead.setter
    def on_dead(self, hook: OnDead | None) -> None:
        self._s.on_dead = hook
        self._hooks.on_dead = hook
        self._wire()

    @property
    def around(self) -> Around | None:
        """Called as around(order); its context manager is entered for the callback."""
        return self._s.around

    @around.setter
    def around(self, around: Around | None) -> None:
        self._s.around = cast("Any", around)

    def __repr__(self) -> str:
        if self.closed or self._runner.inline:
            return repr(self._s).replace("<lapse.", "<lapse.aio.", 1)
        running = len(self._runner.held)  # the rest would be waited for
        return f"<lapse.aio.Scheduler {self._s._store}: {running} running here>"

    def __del__(self) -> None:
        runner = getattr(self, "_runner", None)
        if runner is not None and runner.loop is not None and runner.loop.is_closed():
            runner.abandon()

    # -- The loop -------------------------------------------------------------------

    def _wire(self) -> None:
        """Have the C part call the hooks by way of the loop."""
        self._s.on_error = self._hooks.error
        self._s.on_dead = self._hooks.dead if self._hooks.on_dead is not None else None

    def _make_runner(self) -> Runner:
        runner = Runner(self._s._worker(), self._concurrency)
        self._hooks.runner = runner
        return runner

    async def _ask(self, function: Callable[..., _T], *args: object) -> _T:
        """Call the store: at once when it answers from memory, else on a thread."""
        runner = self._here()
        return function(*args) if runner.inline else await runner.ask(function, *args)

    async def _send(self, submit: Callable[[int], object]) -> Any:
        """Submit a call to a durable store, and wait for its answer without a thread."""
        return await self._here().send(submit)

    def _here(self) -> Runner:
        runner = self._runner
        return runner if runner.loop is get_running_loop() else self._bind()

    def _bind(self) -> Runner:
        """What runs the callbacks, in the loop that is running."""
        loop = get_running_loop()
        if self._runner.loop is not loop:
            self._move_to(loop)
        return self._runner

    def _bind_if_running(self) -> None:
        try:
            get_running_loop()
        except RuntimeError:
            return
        self._bind()

    def _move_to(self, loop: asyncio.AbstractEventLoop) -> None:
        runner = self._runner
        if runner.loop is not None:
            if not runner.loop.is_closed():
                raise RuntimeError(f"{self!r} is bound to a different event loop")
            runner.abandon()
        if self.closed:
            runner.loop = loop
        else:
            runner.bind(loop, self._s.fileno())

    def _forget_parent(self) -> None:
        """In the child of a fork: empty, and not bound to a loop."""
        _left_behind.append(self._runner)
        self._runner.leave_to_parent()
        if not self.closed:
            self._runner = self._make_runner()


def _text(order_id: Id) -> str:
    """An id as an Order shows it."""
    return order_id.decode("utf-8", "surrogateescape") if isinstance(order_id, bytes) else order_id


def _limit(timeout: Seconds | None) -> float | None:
    """A timeout as seconds; below 0 is 0."""
    return None if timeout is None else _lapse._seconds_to_ns(timeout, "timeout") / 1e9


def _end(limit: float | None) -> float | None:
    return None if limit is None else time.monotonic() + limit


def _left(end: float | None) -> float | None:
    return None if end is None else max(0.0, end - time.monotonic())


_schedulers: weakref.WeakSet[Scheduler] = weakref.WeakSet()
_left_behind: list[Runner] = []  # of the parent: their tasks would complain when destroyed


def _after_fork_in_child() -> None:
    for scheduler in list(_schedulers):
        scheduler._forget_parent()


os.register_at_fork(after_in_child=_after_fork_in_child)
