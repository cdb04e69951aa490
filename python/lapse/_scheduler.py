"""lapse.Scheduler: worker threads, exit and fork around the C part.

A worker thread holds the core, never the Scheduler: a Scheduler that nobody refers to is
collected while its workers wait, and its orders never run. Threads are daemons, so that
they do not keep the process; at exit they are stopped and joined before the interpreter
ends. In the child of a fork every Scheduler is empty and starts workers of its own.
"""

from __future__ import annotations

import atexit
import logging
import os
import time
import warnings
import weakref
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack, cast

from . import _lapse
from ._enums import Fate, Info, Reason, State, info_of
from ._threads import AnyThread, make_lock, make_thread, running
from ._types import (
    Around,
    Callback,
    Id,
    OnDead,
    OnError,
    Overflow,
    Policy,
    QueueStats,
    Seconds,
    Stats,
)
from ._verdicts import (
    DONE,
    GIVE_BACK,
    Reject,
    Retry,
    asked_for,
    forks_beside_callbacks,
    verdict_of_block,
    will_not_run,
)

__all__ = ["Claim", "Scheduler", "default_scheduler"]

_Function = TypeVar("_Function", bound=Callable[[_lapse.Order], object])

_MAX_WORKERS = 256
_EXIT_GRACE = 5.0  # seconds that running callbacks get when the interpreter ends


class Claim(_lapse.Order):
    """An order that was taken: a str equal to its id, held until it is settled.

    Use it with `with`: leaving the block settles it as done; `raise Retry(delay)` and
    `raise Reject(reason)` inside are verdicts and stop there; any other exception asks
    for a retry after the policy's back-off and goes on; Ctrl-C and the like give the
    order back as if it had not been tried. A claim that is dropped is given back.
    """

    __slots__ = ("_scheduler",)
    _scheduler: Scheduler | None

    def _settle(self, verdict: int, delay_ns: int, error: str | None) -> None:
        scheduler = getattr(self, "_scheduler", None)
        if scheduler is None:
            raise _lapse.Stale(f"order {self.id!r} has been settled already")
        self._scheduler = None
        scheduler._settle(self.fence, verdict, delay_ns, error)

    @property
    def held(self) -> bool:
        """Whether it is not settled yet."""
        return getattr(self, "_scheduler", None) is not None

    def done(self) -> None:
        """Finished. Raises lapse.Stale when the claim is no longer held, as all of these."""
        self._settle(*DONE)

    def retry(self, delay: Seconds | None = None, error: object | None = None) -> None:
        """Again after `delay` seconds; None: after the policy's back-off."""
        self._settle(*asked_for(Retry(delay, error)))

    def reject(self, reason: object | None = None) -> None:
        """Hopeless: to the dead letters."""
        self._settle(*asked_for(Reject(reason)))

    def give_back(self) -> None:
        """Not tried: pending again, and the attempt does not count."""
        self._settle(*GIVE_BACK)

    def renew(self, lease: Seconds = 0) -> None:
        """Hold it for another `lease` seconds from now; 0: as long as it was given for.

        A claim is held for the scheduler's `lease` (30 s); when that ends first, the order
        is delivered anew and this claim is stale.
        """
        scheduler = getattr(self, "_scheduler", None)
        if scheduler is None:
            raise _lapse.Stale(f"order {self.id!r} has been settled already")
        scheduler.renew(self, lease)

    def holds(self) -> bool:
        """Whether it still holds its order: not settled, its lease not ended.

        What a long job asks before it writes; False also when the id was scheduled anew.
        """
        scheduler = getattr(self, "_scheduler", None)
        return scheduler is not None and scheduler.holds(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        if not self.held:
            return False
        try:
            self._settle(*verdict_of_block(error))
        except _lapse.Stale:
            pass  # its id was scheduled anew meanwhile; nothing else is wrong
        return isinstance(error, (Retry, Reject))

    def __del__(self) -> None:
        if self.held:
            try:
                self.give_back()
            except _lapse.Error:
                pass  # closed or forked: it was given back there


_schedulers: weakref.WeakSet[Scheduler] = weakref.WeakSet()
_exiting = False


class Scheduler(_lapse.Scheduler):
    """Runs a callback when an order's time is up, unless the order is cancelled first.

    url:         where orders live, see lapse.h; "memory:?engine=heap" for exact order,
                 "sqlite:////var/lib/shop/orders.db" for orders that outlive the process.
                 None: "memory:".
    workers:     threads that run callbacks, 0 to 256, started with the first order that
                 brings one or is for a handler, and one more that watches over them. On a
                 durable store also with the first handler: others may schedule for it.
                 0: the host's loop calls process() or run().
    on_error:    called as on_error(order, error) for what a callback raises, also
                 SystemExit and the like, and with a lapse.Timeout for one that lost its
                 order by its run_limit; None: the logger "lapse".
    on_dead:     called as on_dead(info, reason) for each order that becomes a dead letter,
                 with a lapse.Info and a lapse.Reason; None: the logger "lapse".
    max_pending: pending and running orders at most; 0 without limit.
    overflow:    beyond it "refuse" (lapse.Full) or "dead_letter_oldest": the order that was
                 scheduled, rescheduled or retried longest ago makes room.
    keep:        seconds for which cancel and get remember a finished order.
    max_dead:    dead letters kept; 0 means 10 000. The oldest are dropped.
    lease:       seconds for which take and poll claim an order; 0 means 30.
    stuck_after: a callback that runs for more seconds is named in the log; 0 means 60.
    clock:       a ManualClock for tests; None: the real one.
    around:      called as around(order) before each callback; what it returns is entered for
                 the callback with `with`: Flask's app_context(), a @contextmanager of yours.
                 None: nothing. Take and poll go without.

    Durations are int, float or timedelta, 0 to 100 years; what the URL says wins. Raises
    lapse.BadUrl, NoStore, Invalid, Range, NoMemory, System; of a durable store also Offline,
    BadStore.

    Orders of a durable store name the queue of a handler, in any process; a function that is
    registered stands for its queue, another one is lapse.Unsupported. Any call on it may also
    raise lapse.Offline, Timeout (too busy), BadStore, System, and Unsure: its answer was lost,
    and whether it was done is not known. Calls wait without the GIL.

    on_error, on_dead and the logger are called without locks, on the thread on which it
    happened or on one of lapse's; what they raise goes to the logger. close() waits for
    them and is refused inside them, as in callbacks.

    Keep a reference to it: orders of a Scheduler that is dropped do not run. All methods
    may be called from any thread, and from callbacks unless they say otherwise.
    """

    __slots__ = ("__weakref__", "_durable", "_lock", "_store", "_threads", "_workers")

    def __init__(
        self,
        url: str | None = "memory:",
        *,
        workers: int = 1,
        on_error: OnError | None = None,
        on_dead: OnDead | None = None,
        max_pending: int = 0,
        overflow: Overflow = "refuse",
        keep: Seconds = 0,
        max_dead: int = 0,
        lease: Seconds = 0,
        stuck_after: Seconds = 0,
        clock: _lapse.ManualClock | None = None,
        around: Around | None = None,
    ) -> None:
        if url is None:
            url = "memory:"
        if not isinstance(url, str):
            raise TypeError(f"url is a str, got {type(url).__name__}")
        if "\0" in url:
            raise _lapse.BadUrl(f"url holds a NUL: {url!r}")
        if not isinstance(overflow, str):
            raise TypeError(f"overflow is 'refuse' or 'dead_letter_oldest', not {overflow!r}")
        if not isinstance(workers, int) or isinstance(workers, bool):
            raise TypeError(f"workers is an int, got {workers!r}")
        if not 0 <= workers <= _MAX_WORKERS:
            raise _lapse.Invalid(f"workers is 0 to {_MAX_WORKERS}, not {workers}")
        self._open(
            url,
            on_error,
            on_dead,
            max_pending,
            overflow,
            keep,
            max_dead,
            lease,
            stuck_after,
            clock,
            around,
        )
        self._durable = self._worker().may_block
        self._store = url.partition(":")[0]  # the rest may hold a password
        self._workers = workers
        self._lock = make_lock()
        self._threads: list[AnyThread] = []
        self._lazy = workers > 0
        _schedulers.add(self)

    def handle(
        self,
        queue: str,
        function: Callback | None,
        *,
        attempts: int = 5,
        backoff: Seconds = 1,
        backoff_max: Seconds = 3600,
        backoff_percent: int = 200,
        jitter_percent: int = 20,
        run_limit: Seconds = 3600,
        expires: Seconds | None = None,
        rate: int = 0,
        stuck_after: Seconds | None = None,
    ) -> None:
        """Let `function` run the orders of `queue` that bring no callback of their own.

        Schedule them with queue="..." and no callback, or give the function itself as the
        callback. A second call replaces the handler for the orders that start afterwards;
        None removes it, and its orders stay pending for a taker or the next handler.

        attempts:        deliveries before an order that failed or asked for a retry is a
                         dead letter, 1 to 4000.
        backoff:         seconds before the second attempt.
        backoff_max:     the longest of them.
        backoff_percent: each is so many percent of the one before, 100 to 100 000.
        jitter_percent:  each is spread by so many percent, up and down, up to 100;
                         below 0: none.
        run_limit:       a callback that runs for more seconds has lost its order, which is
                         delivered anew; what it answers is ignored.
        expires:         an order that is late by more seconds is a dead letter instead of
                         running; None: never.
        rate:            orders started per second at most; 0 without limit.
        stuck_after:     a callback that runs for more seconds is named in the log; None: as
                         the scheduler says.

        0 means the default everywhere. Handlers stay registered in the child of a fork.
        Raises lapse.Mixed when the queue was taken from, Range, Invalid, Closed, Forked,
        NoMemory, or TypeError; then nothing has changed. Any thread, and callbacks.
        """
        _check_queue(queue)
        self._handle(
            queue,
            function,
            attempts,
            backoff,
            backoff_max,
            backoff_percent,
            jitter_percent,
            run_limit,
            expires,
            rate,
            stuck_after,
        )

    def handler(
        self, queue: str, **policy: Unpack[Policy]
    ) -> Callable[[_Function], _Function]:
        """Decorate the function that handles `queue`; the options are those of handle().

        @s.handler("close_unpaid", attempts=5)
        def close_unpaid(order): ...

        s.schedule("OID00000010", 30 * 60, close_unpaid)    # or queue="close_unpaid"
        """

        _check_handler(queue)

        def register(function: _Function) -> _Function:
            self.handle(queue, function, **policy)
            return function

        return register

    def holds(self, order: _lapse.Order | int) -> bool:
        """Whether a callback or claim still holds its order; ask before a late write.

        order: the Order that the callback got, or its fence. False when its run_limit or
        lease has ended, when its id was scheduled anew, and when it is settled. Any thread.
        """
        return self._holds(_fence_of(order))

    def renew(self, order: _lapse.Order | int, lease: Seconds = 0) -> None:
        """Hold an order for `lease` seconds from now; 0: as long as it was given for.

        order: an Order or its fence, as for holds(). Raises lapse.Stale when it is no
        longer held. For claims; a callback holds its order up to its run_limit anyway, and
        may move that limit with this.
        """
        self._renew(_fence_of(order), _lapse._seconds_to_ns(lease, "lease"))

    def get(self, order_id: Id) -> Info | None:
        """Look up the newest generation of an order; None when there is no such order."""
        found = self._get(order_id)
        return None if found is None else info_of(found)

    def orders(self, states: State | None = None) -> list[Info]:
        """List the orders whose state is in `states` (None: all), in no promised order.

        orders(State.DEAD) lists the dead letters. One that changes meanwhile may be missed or
        shown in either state. After stop() the pending ones are exactly those that did not
        run.
        """
        return [info_of(found) for found in self._orders(_bits_of(states))]

    def stats(self) -> Stats:
        """Counts and lateness, named as in lapse.h; times are seconds.

        pending, running, kept, dead: orders now. scheduled ... stale: since it was
        opened; dead_by is a dict by reason, {"failed": 0, ...}. late_p50, late_p99,
        late_p999: at most 1/16 too high. oldest_due: how long the oldest due order has
        waited. bytes: memory held for orders.
        """
        return cast(Stats, _name_reasons(self._stats()))

    def queue_stats(self, queue: str) -> QueueStats:
        """The same of one queue, '' for the default one; also whether it is handled, paused.

        oldest_due: how long its oldest due order has waited for a consumer. Lateness covers
        its last starts. Raises lapse.Unknown for a queue that never had an order or a
        handler; queues() lists those that did.
        """
        return cast(QueueStats, _name_reasons(self._queue_stats(queue)))

    def close(self, timeout: Seconds | None = None) -> None:
        """Stop, wait up to `timeout` seconds for running callbacks, and free everything.

        None waits without limit; Ctrl-C is seen. lapse.Timeout names an order that still
        runs and leaves the scheduler stopped: call again. lapse.InCallback inside one of
        its own callbacks. A second call does nothing. Pending orders of "memory:" do not
        run: how many there were goes to the logger "lapse", as INFO. Those of a durable
        store stay in it, and what was taken and not settled is given back.
        """
        pending = self._close(timeout)
        threads, self._threads = self._threads, []
        for thread in threads:
            thread.join()
        if pending and not self._durable:
            will_not_run(logging.INFO, pending, "their Scheduler was closed")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        store = getattr(self, "_store", "?")
        if self.closed:
            return f"<lapse.Scheduler {store}: closed>"
        if self._durable:
            return f"<lapse.Scheduler {store}: open>"  # figures would have to be waited for
        now = self._stats()
        return f"<lapse.Scheduler {store}: {now['pending']} pending, {now['running']} running>"

    def __del__(self) -> None:
        if self.closed or _exiting:
            return
        if self._durable:  # its orders are safe, and to count them would wait for the store
            warnings.warn(
                "a Scheduler was dropped without close(): others get what it holds later",
                ResourceWarning,
                source=self,
                stacklevel=2,
            )
            return
        if not (pending := self._stats()["pending"]):
            return
        will_not_run(logging.WARNING, pending, "their Scheduler was dropped without close()")
        warnings.warn(
            f"{pending} orders will not run: their Scheduler was dropped without close()",
            ResourceWarning,
            source=self,
            stacklevel=2,
        )

    def _start_workers(self) -> None:
        """Have the workers that are wanted; the C part calls it while _lazy is set."""
        if _exiting:
            raise _lapse.Closed("the interpreter is ending: nothing would run any more")
        with self._lock:
            while len(self._threads) <= self._workers:
                number = len(self._threads)
                name = f"lapse-{number - 1}" if number else "lapse-watch"
                thread = make_thread(self._worker(), name, watches=number == 0)
                thread.start()
                self._threads.append(thread)
            self._lazy = False

    def _give_back(self, timeout: float) -> None:
        """At exit: what was claimed and is not settled goes to other processes at once."""
        try:
            self._close(timeout)
        except _lapse.Error:
            pass  # something still runs: its lease ends by itself

    def _forget_parent(self) -> None:
        """In the child of a fork: empty, with its handlers and no threads yet."""
        self._lock = make_lock()
        self._threads = []
        self._lazy = self._workers > 0
        self._after_fork()


def _check_queue(queue: object) -> None:
    if not isinstance(queue, str):
        raise TypeError(f"a queue's name is a str, not {type(queue).__name__}")


def _check_handler(queue: object) -> None:
    """Catch the decorator without its parentheses, which would register nothing."""
    if not isinstance(queue, str):
        raise TypeError(f'write @s.handler("queue"): a queue\'s name is a str, not {queue!r}')


def _fence_of(order: object) -> int:
    if isinstance(order, _lapse.Order):
        return order.fence
    if isinstance(order, int) and not isinstance(order, bool):
        return order
    raise TypeError(f"order is a lapse.Order, or its fence as int, not {order!r}")


_ALL_STATES = State.PENDING | State.RUNNING | State.DONE | State.DEAD


def _bits_of(states: object) -> int:
    """A set of states as the C part takes it; 0 for all."""
    if states is None:
        return 0
    if isinstance(states, str) and states.upper() in State.__members__:
        raise TypeError(f"states is a lapse.State: use lapse.State.{states.upper()}")
    if not isinstance(states, int) or isinstance(states, bool):
        raise TypeError(f"states is a lapse.State, for instance lapse.State.DEAD, not {states!r}")
    if not 0 <= states <= _ALL_STATES:
        raise _lapse.Invalid(f"states: {states!r} is no lapse.State, nor several of them with |")
    return int(states)


def _name_reasons(found: dict[str, Any]) -> dict[str, Any]:
    by = found["dead_by"]
    found["dead_by"] = {r.name.lower(): by[r.value] for r in Reason if r is not Reason.NONE}
    return found


# -- The default scheduler ----------------------------------------------------------

_default_lock = make_lock()
_default: Scheduler | None = None


def default_scheduler() -> Scheduler:
    """The Scheduler behind lapse.schedule and the other functions of the module.

    In memory, with one worker; made at the first use. Set its on_error to see the errors
    of callbacks. After it was closed, by lapse.close(), the next use makes a new one.
    """
    global _default
    with _default_lock:
        if _default is None or _default.closed:
            _default = Scheduler()
            _lapse._set_default(_default)
        return _default


def close(timeout: Seconds | None = None) -> None:
    """Scheduler.close on the default scheduler, if there is one; the next use makes a new one."""
    scheduler = _default
    if scheduler is not None:
        scheduler.close(timeout)


def stop() -> None:
    """Scheduler.stop on the default scheduler, if there is one; close() makes way for another."""
    scheduler = _default
    if scheduler is not None:
        scheduler.stop()


def schedule_many(orders: Iterable[_lapse._Given]) -> list[int | Exception]:
    """Scheduler.schedule_many on the default scheduler."""
    return default_scheduler().schedule_many(orders)


def cancel_wait(
    order_id: Id, timeout: Seconds | None = None, generation: int = 0
) -> Fate:
    """Scheduler.cancel_wait on the default scheduler."""
    return default_scheduler().cancel_wait(order_id, timeout, generation)


def get(order_id: Id) -> Info | None:
    """Scheduler.get on the default scheduler."""
    return default_scheduler().get(order_id)


def orders(states: State | None = None) -> list[Info]:
    """Scheduler.orders on the default scheduler."""
    return default_scheduler().orders(states)


def stats() -> Stats:
    """Scheduler.stats on the default scheduler."""
    return default_scheduler().stats()


def queue_stats(queue: str) -> QueueStats:
    """Scheduler.queue_stats on the default scheduler."""
    return default_scheduler().queue_stats(queue)


def queues() -> list[str]:
    """Scheduler.queues on the default scheduler."""
    return default_scheduler().queues()


def metrics() -> str:
    """Scheduler.metrics on the default scheduler."""
    return default_scheduler().metrics()


def handle(queue: str, function: Callback | None, **policy: Unpack[Policy]) -> None:
    """Scheduler.handle on the default scheduler, which tells the options."""
    default_scheduler().handle(queue, function, **policy)


def handler(queue: str, **policy: Unpack[Policy]) -> Callable[[_Function], _Function]:
    """Scheduler.handler on the default scheduler; the options are those of Scheduler.handle."""
    _check_handler(queue)
    return default_scheduler().handler(queue, **policy)


def pause(queue: str) -> None:
    """Scheduler.pause on the default scheduler."""
    default_scheduler().pause(queue)


def resume(queue: str) -> None:
    """Scheduler.resume on the default scheduler."""
    default_scheduler().resume(queue)


def requeue(order_id: Id, delay: Seconds = 0, generation: int = 0) -> int:
    """Scheduler.requeue on the default scheduler."""
    return default_scheduler().requeue(order_id, delay, generation)


def purge(order_id: Id | None = None, generation: int = 0) -> int:
    """Scheduler.purge on the default scheduler."""
    return default_scheduler().purge(order_id, generation)


def holds(order: _lapse.Order | int) -> bool:
    """Scheduler.holds on the default scheduler."""
    return default_scheduler().holds(order)


# -- Exit and fork ------------------------------------------------------------------


def _at_exit() -> None:
    """Stop and join every worker; a callback that does not return is left behind.

    Runs after the threads that are no daemons have ended: they may use lapse to their
    last line.
    """
    global _exiting
    _exiting = True
    for scheduler in list(_schedulers):
        scheduler.stop()
    threads = list(running.items())
    for _, worker in threads:
        worker.stop()
    until = time.monotonic() + _EXIT_GRACE
    for thread, _ in threads:
        thread.join(max(0.0, until - time.monotonic()))
    for scheduler in list(_schedulers):
        if scheduler._durable:
            scheduler._give_back(max(0.0, until - time.monotonic()))


_fork_was_told = False


def _before_fork() -> None:
    """Say once that the workers of a durable store may be inside a callback just now.

    They start with the first handler, at import under `gunicorn --preload`. Whatever lock a
    callback holds stays locked in the child, which hangs when it comes to it: nothing in its log
    would say why.
    """
    global _fork_was_told
    if _fork_was_told:
        return
    for scheduler in list(_schedulers):
        if scheduler._durable and any(thread in running for thread in scheduler._threads):
            _fork_was_told = True
            forks_beside_callbacks(scheduler._store)
            return


def _after_fork_in_child() -> None:
    global _default_lock
    _default_lock = make_lock()
    running.clear()
    for scheduler in list(_schedulers):
        scheduler._forget_parent()


atexit.register(_at_exit)
os.register_at_fork(before=_before_fork, after_in_child=_after_fork_in_child)
