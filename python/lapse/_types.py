"""Types for annotations: what the calls take and give, beyond the classes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from typing import Any, Literal, TypeAlias, TypedDict

from . import _lapse
from ._enums import Info, Reason

__all__ = ["Policy", "QueueStats", "Stats"]

Id: TypeAlias = str | bytes
Seconds: TypeAlias = float | timedelta
Instant: TypeAlias = float | datetime
Callback: TypeAlias = Callable[[_lapse.Order], object]
OnError: TypeAlias = Callable[[_lapse.Order, BaseException], object]
OnDead: TypeAlias = Callable[[Info, Reason], object]
Around: TypeAlias = Callable[[_lapse.Order], AbstractContextManager[object]]
Overflow: TypeAlias = Literal["refuse", "dead_letter_oldest"]
Results: TypeAlias = list[int | Exception]


class Policy(TypedDict, total=False):
    """The options of Scheduler.handle, as a dict: handler("q", **policy)."""

    attempts: int
    backoff: float | timedelta
    backoff_max: float | timedelta
    backoff_percent: int
    jitter_percent: int
    run_limit: float | timedelta
    expires: float | timedelta | None
    rate: int
    stuck_after: float | timedelta | None


class Stats(TypedDict):
    """What Scheduler.stats returns; times are seconds."""

    pending: int
    running: int
    kept: int
    dead: int
    scheduled: int
    refused: int
    replaced: int
    rescheduled: int
    cancelled: int
    done: int
    dead_total: int
    dead_dropped: int
    requeued: int
    purged: int
    lost: int
    started: int
    failed: int
    retried: int
    rejected: int
    given_back: int
    stale: int
    late_p50: float
    late_p99: float
    late_p999: float
    late_max: float
    oldest_due: float
    poll_bound: float
    offline: float
    bytes: int
    longest_move: int
    dead_by: dict[str, int]


class QueueStats(TypedDict):
    """What Scheduler.queue_stats returns; times are seconds."""

    handled: bool
    paused: bool
    pending: int
    running: int
    dead: int
    started: int
    done: int
    failed: int
    retried: int
    cancelled: int
    dead_total: int
    oldest_due: float
    late_p50: float
    late_p99: float
    late_max: float
    dead_by: dict[str, int]


class _InDict(TypedDict, total=False):
    callback: Callback | None
    payload: Any
    queue: str | None
    replace: bool


class GivenDelay(_InDict):
    """An order as schedule_many takes it, after a delay."""

    order_id: Id
    delay: Seconds


class GivenInstant(_InDict):
    """The same at an instant."""

    order_id: Id
    at: Instant
