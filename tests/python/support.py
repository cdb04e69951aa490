"""What the tests share: invented time, tiers, and programs run in their own process."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import textwrap
import threading
import time

import debian
import lapse
import pytest
from pythons import pythons

TIER = os.environ.get("LAPSE_TIER", "quick")
SANITIZED = bool(os.environ.get("LAPSE_SANITIZED"))
of_debian = debian.of_debian
PATIENCE = 30.0  # seconds until a test gives up on something that must happen


def rounds(quick: int, full: int, soak: int) -> int:
    return {"quick": quick, "full": full, "soak": soak}[TIER]


def free_port() -> int:
    """One that nobody has now."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def boot_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class Story:
    """A scheduler under a manual clock: `at(0.05)` moves to that time and runs what is due."""

    TICK = 0.001
    told: list[Story] = []  # closed after each test

    def __init__(self, url: str = "memory:", **options) -> None:
        self.clock = lapse.ManualClock()
        self.s = lapse.Scheduler(url, workers=0, clock=self.clock, **options)
        self.ran: list[lapse.Order] = []
        self.now_ns = 0
        Story.told.append(self)

    def mark(self, order: lapse.Order) -> None:
        self.ran.append(order)

    def at(self, seconds: float) -> list[str]:
        """Move to `seconds` from the start and run what is due; what ran, in order."""
        step = round(seconds * 1e9) - self.now_ns
        self.clock.advance(step // 10**9)
        self.clock.advance(step % 10**9 / 1e9)
        self.now_ns += step
        before = len(self.ran)
        self.s.process()
        return [order.id for order in self.ran[before:]]

    @property
    def pending(self) -> int:
        return self.s.stats()["pending"]


def until(condition, what: str = "it") -> None:
    """Wait for something that another thread is about to do."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, f"{what} did not happen"
        time.sleep(0.001)  # sleeps: between two looks at what another thread does


def until_asleep(task: threading.Thread | int) -> None:
    """Wait until a thread of this process, or the main one of another, waits in the kernel, or ends.

    Between two looks this one waits too: what has waited for the GIL has it by then.
    """
    is_thread = isinstance(task, threading.Thread)
    path = f"/proc/self/task/{task.native_id}/stat" if is_thread else f"/proc/{task}/stat"
    seen = 0

    def waits() -> bool:
        nonlocal seen
        try:
            with open(path) as stat:
                state = stat.read().rsplit(") ", 1)[1][0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        seen = seen + 1 if state == "S" else 0
        return seen == 3 or state in "ZX"

    until(waits, "the wait")


def in_threads(count: int, work) -> None:
    """Run work(number) on `count` threads and pass on what the first of them raises."""
    errors: list[BaseException] = []

    def guarded(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(n,)) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def python(
    program: str, *args: str, timeout: float = PATIENCE, executable: str = sys.executable
) -> subprocess.CompletedProcess:
    """Run a program text in an interpreter of its own."""
    return subprocess.run(
        [executable, "-c", textwrap.dedent(program), *args],
        capture_output=True,
        text=True,
        timeout=timeout,
    )


def fine(program: str, *args: str) -> str:
    """Run a program in a process of its own; what it prints."""
    done = python("import lapse, os, sys, time, threading\n" + textwrap.dedent(program), *args)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    return done.stdout


def ids(s: lapse.Scheduler, states: lapse.State = lapse.State.PENDING) -> list[str]:
    """Of its orders, sorted."""
    return sorted(info.id for info in s.orders(states))


def every_python(test):
    """Run a test in each CPython that there is; in this one only when it is to be quick.

    The module is the same file for all of them. A sanitizer is built for this one.
    """
    this = {"this": sys.executable}
    found = this if TIER == "quick" or SANITIZED else pythons()
    return pytest.mark.parametrize("executable", found.values(), ids=found.keys())(test)
