"""What a callback can say about its order, and where errors, dead letters and warnings go."""

from __future__ import annotations

import logging
from typing import TypeAlias

from . import _lapse
from ._enums import info_of
from ._types import Around, Callback, OnDead, OnError, Seconds

__all__ = [
    "DONE",
    "GIVE_BACK",
    "Reject",
    "Retry",
    "Verdict",
    "asked_for",
    "bury",
    "forks_beside_callbacks",
    "log",
    "report",
    "surround",
    "verdict_of_block",
    "will_not_run",
]

Verdict: TypeAlias = tuple[int, int, str | None]  # verdict, delay in ns, error

DONE: Verdict = (_lapse.VERDICT_DONE, 0, None)
GIVE_BACK: Verdict = (_lapse.VERDICT_GIVE_BACK, 0, None)

_log = logging.getLogger("lapse")


def _plain(text: object) -> str:
    """Text that can be written as UTF-8, whatever str() of an exception gave."""
    return str(text).encode("utf-8", "backslashreplace").decode("utf-8")


class Retry(Exception):
    """Raise or return it in a callback to run the order again.

    delay: seconds (int, float or timedelta; below 0 is 0); None leaves it to the
    policy's back-off. error: a text for the dead letter that it becomes when the attempts
    of its handler are used up; a callback of an order's own may ask as often as it likes.
    Raises lapse.Range or TypeError, as schedule does, when made with a delay that is no
    time.
    """

    def __init__(
        self, delay: Seconds | None = None, error: object | None = None
    ) -> None:
        super().__init__(delay, error)
        self.delay = delay
        self.error = None if error is None else _plain(error)
        self._delay_ns = -1 if delay is None else _lapse._seconds_to_ns(delay)


class Reject(Exception):
    """Raise or return it in a callback when the order is hopeless: to the dead letters.

    reason: a text that is kept with the dead letter.
    """

    _delay_ns = 0

    def __init__(self, reason: object | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.error = None if reason is None else _plain(reason)


def asked_for(said: Retry | Reject) -> Verdict:
    kind = _lapse.VERDICT_RETRY if isinstance(said, Retry) else _lapse.VERDICT_REJECT
    return kind, said._delay_ns, said.error


def verdict_of_block(error: BaseException | None) -> Verdict:
    """Of a claim whose block was left, by this exception or without one."""
    if error is None:
        return DONE
    if isinstance(error, (Retry, Reject)):
        return asked_for(error)
    if isinstance(error, Exception):
        return _lapse.VERDICT_RETRY, -1, describe(error)
    return GIVE_BACK  # Ctrl-C, a cancellation


def describe(error: BaseException) -> str:
    """An exception as one line, also when its own str() fails."""
    try:
        text = _plain(error)
    except Exception:
        text = "(its text cannot be had)"
    name = type(error).__name__
    return f"{name}: {text}" if text else name


def report(
    on_error: OnError | None,
    order: _lapse.Order,
    error: BaseException,
) -> str:
    """Report the error of a callback once, and return it as text.

    To on_error, else to logging; an error in on_error goes to logging with the first one
    as its context. What logging itself raises leaves here, and the caller makes it
    unraisable.
    """
    if on_error is None:
        _log.error(
            "order %r (queue %r, attempt %d) failed",
            order.id,
            order.queue,
            order.attempt,
            exc_info=error,
        )
        return describe(error)
    try:
        on_error(order, error)
    except BaseException as second:
        _log.error("on_error failed for order %r", order.id, exc_info=second)
    return describe(error)


def bury(on_dead: OnDead | None, found: _lapse._Found) -> None:
    """Tell of a dead letter once: on_dead, else logging; as report does."""
    info = info_of(found)
    if on_dead is None:
        name = info.reason.name.lower()
        _log.warning("order %r is a dead letter: %s (%s)", info.id, name, info.error or "no error")
        return
    try:
        on_dead(info, info.reason)
    except BaseException as error:
        _log.error("on_dead failed for order %r", info.id, exc_info=error)


def surround(
    around: Around, callback: Callback, order: _lapse.Order
) -> object:
    """What the callback returns when it is called inside the context manager of `around`."""
    with around(order):
        return callback(order)
    return None  # it has swallowed what the callback raised


def will_not_run(level: int, pending: int, why: str) -> None:
    """Say how many pending orders nobody will run."""
    _log.log(level, "%d pending order%s will not run: %s", pending, "s"[pending == 1 :], why)


def forks_beside_callbacks(store: str) -> None:
    """Say what a fork may do to the child while workers run."""
    _log.warning(
        "this process forks while workers of its %s Scheduler may run callbacks: a lock that one "
        "of them holds stays locked in the child. Register handlers after the fork, under "
        "gunicorn --preload in post_worker_init",
        store,
    )


_LEVELS = (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR)


def log(level: int, text: str) -> None:
    """What the library has to say, at the level of lapse.h."""
    _log.log(_LEVELS[level], "%s", text)
