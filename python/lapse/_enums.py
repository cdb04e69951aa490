"""The answers and states of orders, with the numbers of lapse.h."""

from __future__ import annotations

import enum
from typing import NamedTuple

from . import _lapse

__all__ = ["Fate", "Info", "Reason", "State"]


class Fate(enum.Enum):
    """What became of an order. No answer is ever taken back.

    True when what was asked was done: for cancel only CANCELLED, for reschedule only
    RESCHEDULED.
    """

    UNKNOWN = _lapse.FATE_UNKNOWN
    """No such order, or of another generation, or long done."""
    CANCELLED = _lapse.FATE_CANCELLED
    """Its callback has not started and never will."""
    RESCHEDULED = _lapse.FATE_RESCHEDULED
    """It is pending with its new time."""
    RUNNING = _lapse.FATE_RUNNING
    """A consumer holds it; no further attempt will follow a cancel."""
    DONE = _lapse.FATE_DONE
    """It ended within the last `keep` seconds."""

    def __bool__(self) -> bool:
        return self in (Fate.CANCELLED, Fate.RESCHEDULED)


class State(enum.IntFlag):
    """Where an order is; a set of these selects orders."""

    PENDING = _lapse.STATE_PENDING
    RUNNING = _lapse.STATE_RUNNING
    DONE = _lapse.STATE_DONE
    DEAD = _lapse.STATE_DEAD


class Reason(enum.Enum):
    """Why an order is a dead letter."""

    NONE = _lapse.REASON_NONE
    FAILED = _lapse.REASON_FAILED
    """Its attempts are used up."""
    REJECTED = _lapse.REASON_REJECTED
    """Its callback said so."""
    EXPIRED = _lapse.REASON_EXPIRED
    """It was too late to run."""
    MAXLEN = _lapse.REASON_MAXLEN
    """It made room for another."""
    LOST = _lapse.REASON_LOST
    """Its workers died."""


class Info(NamedTuple):
    """A look at an order. Times are seconds; instants count from 1970 (UTC).

    A dead letter also tells why it died (reason), the last error (clipped to 1000 bytes,
    control characters escaped), after how many deliveries (attempt) and when (ended).
    """

    state: State
    id: str
    queue: str
    payload: bytes
    due: float
    remaining: float
    ended: float
    generation: int
    attempt: int
    reason: Reason
    error: str | None


for _name, _text in {
    "state": "Where it is: a lapse.State.",
    "id": "Its id as str.",
    "queue": "Its queue's name; '' is the default one.",
    "payload": "Its payload; b'' without one.",
    "due": "When it is due, an instant; after a retry that of the next attempt.",
    "remaining": "Seconds until it is due; 0 when it is due, running or ended.",
    "ended": "When it was done or died, an instant; 0 before.",
    "generation": "What schedule() returned; each order has its own, also of one id.",
    "attempt": "Deliveries so far.",
    "reason": "Why it is a dead letter: a lapse.Reason; NONE elsewhere.",
    "error": "The last error of a dead letter; None elsewhere.",
}.items():
    getattr(Info, _name).__doc__ = _text


def info_of(found: _lapse._Found) -> Info:
    """An Info from the tuple that the C part makes."""
    return Info._make(found)._replace(state=State(found[0]), reason=Reason(found[9]))
