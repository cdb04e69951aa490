"""Run a callback when an order's time is up, unless it was cancelled.

    import lapse

    lapse.schedule("OID00000010", 30 * 60, close_unpaid)     # order created
    lapse.cancel("OID00000010")                              # order paid

Delays are seconds, as int, float or timedelta. A callback gets one argument, an Order,
which is a str equal to the id. It runs on a worker thread; what it raises goes to the
logger "lapse", or to on_error of a Scheduler of your own.

help(lapse.Scheduler) is the reference. The functions of this module are its methods on
lapse.default_scheduler(), which is made at the first use; lapse.close() closes it.

    timing      schedule, schedule_at, schedule_many, reschedule, cancel, cancel_wait
    looking     get, orders, stats, queue_stats, queues, metrics
    handlers    handle, handler, pause, resume; holds inside a callback
    verdicts    raise or return Retry, Reject in a callback
    dead        orders(State.DEAD), requeue, purge
    asyncio     lapse.aio.Scheduler
    pull        Scheduler.take, Scheduler.poll, which give a Claim
    loop        Scheduler.process, run, fileno, timeout, now
    ending      stop, close
    tests       ManualClock, and an Order of your own
    answers     Fate, State, Reason, Info
    errors      Error, and a subclass for each kind: Exists, Full, Range, Closed, ...
    typing      Policy, Stats, QueueStats
"""

import importlib
import typing

from . import _lapse
from ._enums import Fate, Info, Reason, State
from ._lapse import (
    BadId,
    BadStore,
    BadUrl,
    Closed,
    Error,
    Exists,
    Forked,
    Full,
    InCallback,
    Interrupted,
    Invalid,
    ManualClock,
    Mixed,
    NoMemory,
    NoStore,
    Offline,
    Order,
    Range,
    Stale,
    System,
    Timeout,
    Unknown,
    Unsupported,
    Unsure,
    __version__,
    cancel,
    reschedule,
    schedule,
    schedule_at,
)
from ._scheduler import (
    Claim,
    Scheduler,
    cancel_wait,
    close,
    default_scheduler,
    get,
    handle,
    handler,
    holds,
    metrics,
    orders,
    pause,
    purge,
    queue_stats,
    queues,
    requeue,
    resume,
    schedule_many,
    stats,
    stop,
)
from ._types import Policy, QueueStats, Stats
from ._verdicts import Reject, Retry

RangeError = Range

ID_MAX = _lapse.ID_MAX
PAYLOAD_MAX = _lapse.PAYLOAD_MAX

# They are shown, in tracebacks for instance, by the names under which they are imported.
for _public in (Claim, Fate, Info, Reason, Reject, Retry, Scheduler, State):
    _public.__module__ = __name__
del _public

if not typing.TYPE_CHECKING:  # typed programs import lapse.aio themselves

    def __getattr__(name):
        """lapse.aio, which brings asyncio with it, is imported by its first use."""
        if name == "aio":
            return importlib.import_module("lapse.aio")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "ID_MAX",
    "PAYLOAD_MAX",
    "BadId",
    "BadStore",
    "BadUrl",
    "Claim",
    "Closed",
    "Error",
    "Exists",
    "Fate",
    "Forked",
    "Full",
    "InCallback",
    "Info",
    "Interrupted",
    "Invalid",
    "ManualClock",
    "Mixed",
    "NoMemory",
    "NoStore",
    "Offline",
    "Order",
    "Policy",
    "QueueStats",
    "Range",
    "RangeError",
    "Reason",
    "Reject",
    "Retry",
    "Scheduler",
    "Stale",
    "State",
    "Stats",
    "System",
    "Timeout",
    "Unknown",
    "Unsupported",
    "Unsure",
    "__version__",
    "cancel",
    "cancel_wait",
    "close",
    "default_scheduler",
    "get",
    "handle",
    "handler",
    "holds",
    "metrics",
    "orders",
    "pause",
    "purge",
    "queue_stats",
    "queues",
    "requeue",
    "reschedule",
    "resume",
    "schedule",
    "schedule_at",
    "schedule_many",
    "stats",
    "stop",
]
