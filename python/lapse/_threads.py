"""The threads that run callbacks, and locks: those of the interpreter, gevent or not.

In a process that gevent has patched, threading.Thread is a greenlet, and one that waits in C
stops all others. A worker waits in C; so it is a thread of the system's there, too, and the
hub goes on.
"""

from __future__ import annotations

import _thread
import sys
import threading
from typing import Any

from . import _lapse

__all__ = ["AnyThread", "make_lock", "make_thread", "running"]


def _is_patched() -> bool:
    monkey = sys.modules.get("gevent.monkey")
    return monkey is not None and bool(monkey.is_module_patched("threading"))


def _original(name: str) -> Any:
    """What _thread has by that name, or had before gevent replaced it."""
    monkey = sys.modules.get("gevent.monkey")
    return getattr(_thread, name) if monkey is None else monkey.get_original("_thread", name)


def make_lock() -> threading.Lock:
    """A lock that holds up the system's thread; it is held for moments only."""
    lock: threading.Lock = _original("allocate_lock")()
    return lock


def _work(worker: _lapse.Worker, watches: bool) -> None:
    """Run callbacks until the scheduler stops.

    One that watches runs none: it sees to it that the others are missed when all hang.
    """
    if watches:
        worker.watch()
    else:
        worker.run()


class WorkerThread(threading.Thread):
    """Holds the core and no Scheduler."""

    def __init__(self, worker: _lapse.Worker, name: str, watches: bool) -> None:
        super().__init__(name=name, daemon=True)
        self.worker: _lapse.Worker | None = worker
        self.watches = watches

    def start(self) -> None:
        worker = self.worker
        if worker is None:
            raise RuntimeError("threads can only be started once")
        running[self] = worker  # before it runs: the exit must not miss it
        try:
            super().start()
        except BaseException:
            del running[self]
            raise

    def run(self) -> None:
        worker, self.worker = self.worker, None
        try:
            if worker is not None:
                _work(worker, self.watches)
        finally:
            running.pop(self, None)


class NativeThread:
    """The same where threading.Thread is gevent's."""

    def __init__(self, worker: _lapse.Worker, name: str, watches: bool) -> None:
        self.name = name
        self._worker = worker
        self._watches = watches
        self._runs = make_lock()

    def start(self) -> None:
        running[self] = self._worker
        self._runs.acquire()
        try:
            _original("start_new_thread")(self._run, ())
        except BaseException:
            del running[self]
            raise

    def join(self, timeout: float | None = None) -> None:
        if self._runs.acquire(timeout=-1 if timeout is None else timeout):
            self._runs.release()

    def _run(self) -> None:
        try:
            _work(self._worker, self._watches)
        finally:
            _end_hub()
            running.pop(self, None)
            self._runs.release()


def _end_hub() -> None:
    """Callbacks that used gevent have left this thread a hub of its own."""
    get = getattr(sys.modules.get("gevent._hub_local"), "get_hub_if_exists", None)
    hub = get() if get is not None else None
    if hub is not None:
        hub.destroy(True)


AnyThread = WorkerThread | NativeThread

# Threads that run now, with what stops them; kept here because nothing else keeps a
# thread whose Scheduler is gone.
running: dict[AnyThread, _lapse.Worker] = {}


def make_thread(worker: _lapse.Worker, name: str, *, watches: bool) -> AnyThread:
    """A thread that is not started yet."""
    if _is_patched():
        return NativeThread(worker, name, watches)
    return WorkerThread(worker, name, watches)
