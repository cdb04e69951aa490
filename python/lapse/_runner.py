"""What an event loop holds of lapse.aio: it begins orders, awaits callbacks and settles.

The loop's reader holds the Runner, and the Runner the C core: never the Scheduler, whose
callbacks would stay for as long as the loop. An order that was begun is a Held: whoever
drops it unsettled gives the order back, so nothing is lost when a task or a whole loop is
thrown away. All of it runs in the loop's thread; what runs on another says so.

To begin an order and to settle its callback never waits, whatever the store. Calls that may
wait are submitted, and answered by way of the descriptor; those that cannot be are made on a
thread of the loop's executor: one of them waits for the claims of all takers.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from contextvars import Context
from functools import partial
from itertools import count
from typing import Any, TypeAlias, TypeVar, cast

from . import _lapse
from ._claim import Claim
from ._types import Callback
from ._verdicts import (
    DONE,
    GIVE_BACK,
    Reject,
    Retry,
    Verdict,
    asked_for,
    describe,
    report,
)

__all__ = ["Around", "Runner"]

Around: TypeAlias = Callable[
    [_lapse.Order], AbstractContextManager[object] | AbstractAsyncContextManager[object]
]
_T = TypeVar("_T")

_REST = 1.0  # seconds without a start after a task was cancelled: its loop may be ending
_BREATH = 0.01  # the same when memory is short
_LOOK = 1.0  # seconds between looks at the clock while no more orders fit
_LOOK_FOR_TAKERS = 0.02
_LOOK_FOR_ANSWERS = 0.005
_TAKE_NS = 100_000_000  # for which a thread waits for claims before it looks who wants any

_log = logging.getLogger("lapse")


class Held:
    """An order that was begun: its callback runs, or is about to, in `task`."""

    __slots__ = ("_worker", "awaitable", "order", "task", "unbegun")

    def __init__(self, worker: _lapse.Worker, order: _lapse.Order) -> None:
        self._worker: _lapse.Worker | None = worker
        self.order = order
        self.awaitable: object = None
        self.task: asyncio.Task[Any] | None = None
        self.unbegun: Callable[[asyncio.Task[Any]], object] | None = None

    def settle(self, verdict: int, delay_ns: int = 0, error: str | None = None) -> None:
        """End it; only the first call counts. Any thread."""
        worker, self._worker = self._worker, None
        if worker is not None:
            try:
                worker.settle(self.order.fence, verdict, delay_ns, error)
            except _lapse.Error:
                pass  # lost, scheduled anew, closed or forked: there is nothing to settle

    def disown(self) -> None:
        """It is settled elsewhere."""
        self._worker = None

    def throw_away(self) -> None:
        """Its loop is closed: give it back, and end what nobody will await any more."""
        self.settle(*GIVE_BACK)
        if self.task is not None:
            _throw_away(self.task)
        _close(self.awaitable)

    def __del__(self) -> None:
        self.settle(*GIVE_BACK)


class _Unraisable:
    """Hands an error to sys.unraisablehook, which takes those of finalizers."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __del__(self) -> None:
        raise self.error


def _close(awaitable: object) -> None:
    """End a coroutine; nothing when it has ended."""
    try:
        if inspect.iscoroutine(awaitable):
            awaitable.close()
    except Exception as error:
        _log.error("a callback whose event loop is closed ended badly", exc_info=error)


def _be_quiet(task: asyncio.Task[Any]) -> None:
    """A task that is destroyed does not report that it was pending."""
    task._log_destroy_pending = False  # type: ignore[attr-defined]


def _throw_away(task: asyncio.Task[Any]) -> None:
    _close(task.get_coro())
    _be_quiet(task)


async def _call(callback: Callback, order: _lapse.Order, around: Around | None) -> object:
    """What a callback of either kind answers, inside what is around it."""
    if around is not None:
        manager = around(order)
        if isinstance(manager, AbstractAsyncContextManager):
            async with manager:
                return await _call(callback, order, None)
        else:
            with manager:
                return await _call(callback, order, None)
        return None  # it has swallowed what the callback raised
    answer = callback(order)
    return await answer if inspect.isawaitable(answer) else answer


def _verdict_in(answer: object) -> Retry | Reject | None:
    """A Retry or Reject that was returned, as an instance or a class; None: done."""
    if isinstance(answer, type) and issubclass(answer, (Retry, Reject)):
        answer = answer()
    return answer if isinstance(answer, (Retry, Reject)) else None


def _was_cancelled(task: asyncio.Task[Any]) -> bool:
    """Whether somebody cancelled this task; else the callback awaited what was cancelled."""
    return bool(getattr(task, "cancelling", lambda: 1)())


def _give_up(taker: asyncio.Future[Claim | None]) -> None:
    if not taker.done():
        taker.set_result(None)


class Runner:
    """Runs the callbacks of one scheduler in one loop."""

    __slots__ = (
        "_asked",
        "_collecting",
        "_fd",
        "_listening",
        "_looking",
        "_pump",
        "_resting",
        "_serving",
        "_stopped",
        "_tags",
        "begun",
        "concurrency",
        "held",
        "hooks",
        "inline",
        "loop",
        "submits",
        "takers",
        "worker",
    )

    def __init__(self, worker: _lapse.Worker, concurrency: int) -> None:
        self.worker = worker
        self.concurrency = concurrency
        self.submits = worker.may_block
        self.inline = not self.submits
        self.loop: asyncio.AbstractEventLoop | None = None
        self.begun = 0  # orders, ever
        self.held: set[Held] = set()
        self.hooks: set[asyncio.Task[None]] = set()  # hooks that are coroutines
        self.takers: dict[str | None, deque[asyncio.Future[Claim | None]]] = {}
        self._fd = -1
        self._listening = False
        self._stopped = False
        self._serving = False
        self._resting: asyncio.TimerHandle | None = None
        self._looking: asyncio.TimerHandle | None = None
        self._pump: asyncio.Task[None] | None = None
        self._asked: dict[int, asyncio.Future[Any]] = {}  # what the store was asked, by its tag
        self._tags = count(1)
        self._collecting: asyncio.TimerHandle | None = None

    # -- The loop -------------------------------------------------------------------

    def bind(self, loop: asyncio.AbstractEventLoop, fd: int) -> None:
        """Serve this loop from now on; there is none, or it was closed."""
        self.loop = loop
        self._fd = fd
        self.mind()

    def abandon(self) -> None:
        """Give back what a closed loop left behind."""
        left, self.held = list(self.held), set()
        for held in left:
            held.throw_away()
        for task in self.hooks | self.passing:
            _throw_away(task)
        self.hooks.clear()
        self.takers.clear()
        self._asked.clear()
        self._pump = self._resting = self._looking = self._collecting = None
        self._listening = False
        if left:
            several = "s were" if len(left) > 1 else " was"
            _log.warning(
                "%d callback%s not finished: the event loop was closed", len(left), several
            )

    def leave_to_parent(self) -> None:
        """In the child of a fork: the loop and its tasks are the parent's. Touch nothing."""
        for task in self.tasks() | self.hooks | self.passing:
            _be_quiet(task)

    def spawn(self, work: Coroutine[Any, Any, _T], name: str) -> asyncio.Task[_T]:
        """A task with a context of its own: none of whoever happened to be first."""
        assert self.loop is not None
        make: Callable[..., asyncio.Task[_T]] = self.loop.create_task
        return Context().run(make, work, name=name)

    async def ask(self, function: Callable[..., _T], *args: object) -> _T:
        """Call the store: at once when it answers from memory, else on a thread."""
        work = None if self.inline else self._on_thread(function, *args)
        return function(*args) if work is None else await work

    async def send(self, submit: Callable[[int], object]) -> Any:
        """Have submit(tag) ask the store, and wait for its answer without a thread.

        Raises what submit raises; None when it says that no answer will come.
        """
        assert self.loop is not None
        tag = next(self._tags)
        if submit(tag) is False:
            return None
        answer = self._asked[tag] = self.loop.create_future()
        self.mind()
        return await answer

    def _collect(self) -> None:
        """Pass on what the store has answered."""
        try:
            while (found := self.worker.collect()) is not None:
                tag, result = found
                answer = self._asked.pop(tag, None)
                if answer is None or answer.done():
                    continue  # nobody waits for it any more
                if isinstance(result, BaseException):
                    answer.set_exception(result)
                else:
                    answer.set_result(result)
        except _lapse.Closed:
            self.lose_answers()

    def _collect_later(self) -> None:
        """The descriptor is not listened to: look by the clock."""
        self._collecting = None
        self._collect()
        self.mind()

    @property
    def asked(self) -> set[asyncio.Future[Any]]:
        """The answers that are waited for."""
        return set(self._asked.values())

    def lose_answers(self) -> None:
        """It was closed: no more answers come."""
        asked, self._asked = self._asked, {}
        for answer in asked.values():
            if not answer.done():
                answer.set_exception(
                    _lapse.Unsure("the scheduler was closed before the store had answered")
                )

    def _on_thread(
        self, function: Callable[..., _T], *args: object
    ) -> asyncio.Future[_T] | None:
        """None when the loop is ending, and its executor has ended before it."""
        assert self.loop is not None
        try:
            return self.loop.run_in_executor(None, function, *args)
        except RuntimeError:
            return None

    def _later(self, delay: float, function: Callable[[], object]) -> asyncio.TimerHandle:
        assert self.loop is not None
        return Context().run(self.loop.call_later, delay, function)

    def mind(self) -> None:
        """Listen while another order could start; look by the clock while none could."""
        loop = self.loop
        if loop is None or loop.is_closed():
            return
        wanted = self.room > 0
        if wanted and not self._listening:
            Context().run(loop.add_reader, self._fd, self.ready)
        elif self._listening and not wanted:
            loop.remove_reader(self._fd)
        self._listening = wanted
        if self._looking is None and len(self.held) >= self.concurrency and not self._stopped:
            every = _LOOK_FOR_TAKERS if self.takers and self.inline else _LOOK
            self._looking = self._later(every, self._look)
        if self._asked and not wanted and self._collecting is None:
            self._collecting = self._later(_LOOK_FOR_ANSWERS, self._collect_later)

    def _look(self) -> None:
        """No order can start now: see to callbacks that run too long, and to takers."""
        self._looking = None
        self.worker.look()
        self._serve_takers()
        self.mind()

    def end(self) -> None:
        """Nothing starts any more; what runs goes on."""
        self._stopped = True
        takers, self.takers = self.takers, {}
        for waiting in takers.values():
            for taker in waiting:
                if not taker.done():
                    taker.set_exception(_lapse.Closed("the scheduler was stopped: open another"))
        self.mind()

    def _rest(self, seconds: float) -> None:
        """Start nothing for a while."""
        if self._resting is None and self.loop is not None and not self.loop.is_closed():
            self._resting = self._later(seconds, self._end_rest)
            self.mind()

    def _end_rest(self) -> None:
        self._resting = None
        self.mind()

    # -- What is due ----------------------------------------------------------------

    @property
    def room(self) -> int:
        """How many more orders may start now."""
        if self._stopped or self._resting is not None:
            return 0
        return max(0, self.concurrency - len(self.held))

    def ready(self) -> None:
        """The descriptor is readable: there is something to do."""
        if self.submits:
            self._collect()
        self._serve()
        self._serve_takers()
        self.mind()

    def _serve(self) -> None:
        if self._serving:
            return  # a callback asks inside the pass that called it
        self._serving = True
        try:
            self.begun += self.worker.serve(self._start, self._enter, self.room)
        except _lapse.Closed:
            self.end()
        except _lapse.NoMemory:
            self._rest(_BREATH)
        finally:
            self._serving = False

    # -- Callbacks ------------------------------------------------------------------

    def _start(self, order: _lapse.Order, awaitable: Awaitable[object]) -> None:
        """A callback was called and wants to be awaited."""
        self._adopt(Held(self.worker, order), awaitable)

    def _enter(
        self, order: _lapse.Order, callback: Callback, around: Callable[[_lapse.Order], Any]
    ) -> None:
        """A callback is to be called with something around it."""
        self._adopt(Held(self.worker, order), _call(callback, order, around))

    def _adopt(self, held: Held, awaitable: Awaitable[object]) -> None:
        held.awaitable = awaitable
        self.held.add(held)
        finish = self._finish(held, awaitable)
        try:
            task = self.spawn(finish, f"lapse-{held.order.id}")
        except BaseException:
            for unbegun in (finish, awaitable):
                _close(unbegun)
            self.held.discard(held)
            held.disown()
            raise
        if held.task is None:  # else it is an eager task, and has begun
            held.task = task
            held.unbegun = partial(self._drop, held)
            task.add_done_callback(held.unbegun)

    def _drop(self, held: Held, task: asyncio.Task[Any]) -> None:
        """The task was cancelled before its first step."""
        held.throw_away()
        self._ended(held)
        self._rest(_REST)

    async def _finish(self, held: Held, awaitable: Awaitable[object]) -> None:
        """Wait for what a callback answers, and settle its order."""
        task = held.task = cast("asyncio.Task[Any]", asyncio.current_task())
        if held.unbegun is not None:
            task.remove_done_callback(held.unbegun)
        try:
            held.settle(*await self._verdict(task, held.order, awaitable))
        except asyncio.CancelledError:
            self._rest(_REST)  # first, for what is given back is due
            raise
        finally:
            held.settle(*GIVE_BACK)  # unless it is settled
            self._ended(held)

    async def _verdict(
        self, task: asyncio.Task[Any], order: _lapse.Order, awaitable: Awaitable[object]
    ) -> Verdict:
        try:
            said = _verdict_in(await awaitable)
        except asyncio.CancelledError as error:
            if _was_cancelled(task):
                raise
            return self._judge(order, error)
        except GeneratorExit:
            raise
        except BaseException as error:
            return self._judge(order, error)
        return DONE if said is None else self._judge(order, said)

    def _judge(self, order: _lapse.Order, said: BaseException) -> Verdict:
        """The verdict for what a callback raised, or returned to the same effect."""
        try:
            if isinstance(said, (Retry, Reject)):
                return asked_for(said)
        except AttributeError as broken:  # a subclass that lacks what Retry sets
            return self._fail(order, broken)
        return self._fail(order, said)

    def _fail(self, order: _lapse.Order, error: BaseException) -> Verdict:
        try:
            told = report(self.worker.on_error, order, error)
        except BaseException as second:  # logging itself is broken
            _Unraisable(second)
            told = describe(error)
        return _lapse.VERDICT_FAIL, -1, told

    def _ended(self, held: Held) -> None:
        self.held.discard(held)
        if not self._listening:
            self.mind()

    def tasks(self, order_id: str | None = None, generation: int = 0) -> set[asyncio.Task[Any]]:
        """The callbacks that run: all of them, or those of an order."""
        return {
            held.task
            for held in self.held
            if held.task is not None
            and (order_id is None or held.order == order_id)
            and generation in (0, held.order.generation)
        }

    # -- Takers ---------------------------------------------------------------------

    def poll(self, queue: str | None, limit_ns: int = 0) -> Claim | None:
        """Claim, waiting so long for an order. Any thread."""
        claim = self.worker.take(queue, Claim, limit_ns)
        if claim is not None:
            claim._runner = self
        return claim

    async def take(self, queue: str | None, timeout: float | None) -> Claim | None:
        """Wait in line for a claim; None when the time is up."""
        assert self.loop is not None
        if self._pump is not None and queue not in self.takers:
            claim = await self.ask(self.poll, queue)  # the thread waits for others now
            if claim is not None:
                return claim
        taker: asyncio.Future[Claim | None] = self.loop.create_future()
        self.takers.setdefault(queue, deque()).append(taker)
        if self._looking is not None:
            self._looking.cancel()  # it is looked more often while somebody waits
            self._looking = None
        self._serve_takers()
        self.mind()
        timer = None if timeout is None else self._later(timeout, partial(_give_up, taker))
        try:
            return await taker
        except asyncio.CancelledError:
            if taker.done() and not taker.cancelled() and not taker.exception():
                claim = taker.result()  # it came together with the cancellation
                if claim is not None:
                    await claim.give_back()
            raise
        finally:
            if timer is not None:
                timer.cancel()
            self._leave_line(queue, taker)

    def _leave_line(self, queue: str | None, taker: asyncio.Future[Claim | None]) -> None:
        waiting = self.takers.get(queue)
        if waiting is not None and taker in waiting:
            waiting.remove(taker)
            if not waiting:
                del self.takers[queue]

    def _serve_takers(self) -> None:
        """Claim for those who wait, in their order; or have it done on a thread."""
        if not self.takers:
            return
        if not self.inline:
            self._start_pump()
            return
        for queue in list(self.takers):
            while queue in self.takers and (claims := self._poll_all({queue: 1})[queue]):
                self._give(queue, claims[0])

    def _start_pump(self) -> None:
        """Have a thread claim for those who wait, for as long as there are any."""
        if self._pump is None:
            pump = self.spawn(self._run_pump(), "lapse-takers")
            if not pump.done():
                self._pump = pump
                pump.add_done_callback(self._pumped)

    async def _run_pump(self) -> None:
        while wanted := {queue: len(waiting) for queue, waiting in self.takers.items()}:
            found = await self.ask(self._poll_all, wanted, _TAKE_NS)
            for queue, claims in found.items():
                for claim in claims:
                    self._give(queue, claim)
        self._pump = None  # together with the look: who comes now starts another

    def _pumped(self, pump: asyncio.Task[None]) -> None:
        if self._pump is pump:  # it was cancelled
            self._pump = None

    @property
    def passing(self) -> set[asyncio.Task[Any]]:
        """The pass for takers that is under way on a thread."""
        return {self._pump} if self._pump is not None else set()

    def _poll_all(
        self, wanted: dict[str | None, int], limit_ns: int = 0
    ) -> dict[str | None, list[Any]]:
        """Up to so many claims of each queue, or the error that its takers get. Any thread.

        With a limit it waits for the first: in one queue, or in each for a part of the time.
        """
        found = {queue: self._poll_some(queue, most) for queue, most in wanted.items()}
        for queue in wanted if limit_ns else ():
            if any(found.values()):
                break
            found[queue] = self._poll_some(queue, 1, limit_ns // len(wanted))
        return found

    def _poll_some(self, queue: str | None, most: int, limit_ns: int = 0) -> list[Any]:
        claims: list[Any] = []
        try:
            while len(claims) < most and (claim := self.poll(queue, limit_ns)) is not None:
                claims.append(claim)
        except _lapse.Error as error:
            claims.append(error)
        return claims

    def _give(self, queue: str | None, claim: Claim | _lapse.Error) -> None:
        """To the first in line; an error to all of them. Nobody: the claim is given back."""
        waiting = self.takers.get(queue, deque())
        while waiting:
            taker = waiting.popleft()
            if taker.done():
                continue
            if isinstance(claim, Claim):
                taker.set_result(claim)
                break
            taker.set_exception(claim)
        if not waiting:
            self.takers.pop(queue, None)

    def give_back(self, fence: int) -> None:
        """A claim was dropped. Any thread; never waits."""
        try:
            self.worker.settle(fence, *GIVE_BACK)
        except _lapse.Error:
            pass  # closed or forked: it was given back there

    def is_here(self) -> bool:
        """Whether the loop is running, on this thread. Any thread."""
        try:
            return asyncio.get_running_loop() is self.loop
        except RuntimeError:
            return False
