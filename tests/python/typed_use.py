"""How typed programs use lapse, for mypy --strict; it is checked, never run.

Each `type: ignore` marks a mistake that mypy must find: one that it does not need is an
error as well.
"""

import array
from datetime import UTC, datetime, timedelta
from typing import Literal, assert_type

import lapse


def close(order: lapse.Order) -> None:
    assert_type(order.id, str)
    assert_type(order.payload, bytes)
    assert_type(order.attempt, int)
    assert_type(order.due, float)


def close_by_id(order_id: str) -> lapse.Retry | None:
    return lapse.Retry(5, "gateway down") if order_id else None


def no_argument() -> None: ...


def wants_int(order: int) -> None: ...


class Shop:
    def close(self, order: lapse.Order) -> bool:
        return True

    def __call__(self, order_id: str, /) -> int:
        return 1


def delays(s: lapse.Scheduler) -> None:
    assert_type(s.schedule("o", 1, close), int)
    s.schedule(b"o", 0.5, close_by_id)
    s.schedule("o", timedelta(minutes=30), Shop().close)
    s.schedule("o", delay=1, callback=Shop(), payload=b"x", queue="q", replace=True)
    s.schedule("o", 1, lambda order: print(order.late))
    s.schedule("o", 1, payload=bytearray(b"x"))
    s.schedule("o", 1, payload=memoryview(b"x"))
    s.schedule("o", 1, payload=array.array("b", [1]))
    s.schedule("o", 1, queue="q")
    s.schedule("o", 1, None, None, None, False)
    s.schedule_at("o", datetime.now(UTC), close)
    s.schedule_at("o", 1.5e9, close)
    lapse.schedule("o", 1, close)
    lapse.schedule_at("o", 1_500_000_000, close)
    s.schedule("o", "1", close)  # type: ignore[arg-type]
    s.schedule("o", None, close)  # type: ignore[arg-type]
    s.schedule("o", datetime.now(), close)  # type: ignore[arg-type]
    s.schedule_at("o", timedelta(1), close)  # type: ignore[arg-type]
    s.schedule(7, 1, close)  # type: ignore[arg-type]
    s.schedule("o", 1, 5)  # type: ignore[arg-type]
    s.schedule("o", 1, no_argument)  # type: ignore[arg-type]
    s.schedule("o", 1, wants_int)  # type: ignore[arg-type]
    s.schedule("o", 1, close, payload="text")  # type: ignore[arg-type]
    s.schedule("o", 1, close, queue=b"q")  # type: ignore[arg-type]
    s.schedule("o", 1, close, dealy=1)  # type: ignore[call-arg]
    s.schedule("o")  # type: ignore[call-arg]


def many(s: lapse.Scheduler) -> None:
    results = s.schedule_many([("a", 1), (b"b", timedelta(1), close), ("c", 1, None, b"x", "q")])
    assert_type(results, list[int | Exception])
    for result in results:
        if isinstance(result, Exception):
            raise result
        assert_type(result, int)
    s.schedule_many({"order_id": o, "delay": 1, "callback": close} for o in ("a", "b"))
    lapse.schedule_many([{"order_id": "a", "delay": 1, "replace": True}])
    s.schedule_many([("a",)])  # type: ignore[list-item]
    s.schedule_many(["a"])  # type: ignore[list-item]
    s.schedule_many([{"order_id": "a"}])  # type: ignore[list-item]


def answers(s: lapse.Scheduler) -> None:
    fate = s.cancel("o")
    assert_type(fate, lapse.Fate)
    if fate:
        print(fate.name)
    assert_type(s.cancel("o", 5), lapse.Fate)
    assert_type(s.cancel_wait("o", timeout=timedelta(seconds=1)), lapse.Fate)
    assert_type(s.reschedule("o", 5, generation=7), lapse.Fate)
    assert_type(lapse.cancel("o"), lapse.Fate)
    info = s.get("o")
    assert_type(info, lapse.Info | None)
    if info is not None:
        assert_type(info.state, lapse.State)
        assert_type(info.reason, lapse.Reason)
        assert_type(info.error, str | None)
    assert_type(s.orders(lapse.State.DEAD | lapse.State.DONE), list[lapse.Info])
    assert_type(s.stats()["pending"], int)
    assert_type(s.stats()["late_p99"], float)
    assert_type(lapse.queue_stats("q")["handled"], bool)
    assert_type(s.stats()["dead_by"]["failed"], int)
    s.stats()["pendign"]  # type: ignore[typeddict-item]
    s.orders("DEAD")  # type: ignore[arg-type]
    s.cancel(5)  # type: ignore[arg-type]
    s.cancel("o", "5")  # type: ignore[arg-type]
    print(s.get("o").id)  # type: ignore[union-attr]


def claims(s: lapse.Scheduler) -> None:
    forever = s.take()
    assert_type(forever, lapse.Claim)
    assert_type(s.take("q", None), lapse.Claim)
    assert_type(s.take(timeout=None), lapse.Claim)
    timed = s.take("q", timeout=5)
    assert_type(timed, lapse.Claim | None)
    assert_type(s.take("q", 0.5), lapse.Claim | None)
    assert_type(s.poll("q"), lapse.Claim | None)
    with forever as claim:
        assert_type(claim, lapse.Claim)
        assert_type(claim.held, bool)
        claim.renew(timedelta(seconds=60))
        claim.retry(5, ValueError("x"))
    timed.done()  # type: ignore[union-attr]
    s.take(5)  # type: ignore[call-overload]
    s.take(timeout="5")  # type: ignore[call-overload]


def on_error(order: lapse.Order, error: BaseException) -> None: ...
def on_dead(info: lapse.Info, reason: lapse.Reason) -> None: ...
def on_wrong(order: lapse.Order) -> None: ...


def options() -> None:
    overflow: Literal["refuse", "dead_letter_oldest"] = "dead_letter_oldest"
    s = lapse.Scheduler(
        "memory:?engine=heap",
        workers=2,
        on_error=on_error,
        on_dead=on_dead,
        max_pending=1000,
        overflow=overflow,
        keep=timedelta(hours=1),
        max_dead=5,
        lease=30,
        stuck_after=0.5,
        clock=lapse.ManualClock(),
    )
    s.on_error = None
    s.on_dead = lambda info, reason: print(info.id, reason.name)
    with s as same:
        assert_type(same, lapse.Scheduler)
    s.close(timeout=timedelta(seconds=5))
    lapse.Scheduler(overflow="drop")  # type: ignore[arg-type]
    lapse.Scheduler(worker=1)  # type: ignore[call-arg]
    lapse.Scheduler(on_error=on_wrong)  # type: ignore[arg-type]
    lapse.Scheduler("memory:", 2)  # type: ignore
    lapse.Scheduler(clock=5)  # type: ignore[arg-type]


def policies(s: lapse.Scheduler) -> None:
    policy: lapse.Policy = {"attempts": 3, "backoff": timedelta(seconds=2)}
    policy["expires"] = None
    s.handle("q", close, **policy)
    s.handle("q", None)
    lapse.handle("q", close, rate=100)

    @s.handler("refund", attempts=5, backoff=0.5, jitter_percent=-1)
    def refund(order: lapse.Order) -> int:
        return 1

    assert_type(refund(lapse.Order("o")), int)  # the decorator keeps its type
    s.schedule("o", 1, refund)

    @lapse.handler("close", **policy)
    def other(order_id: str) -> None: ...

    s.pause("q")
    s.resume("q")
    wrong: lapse.Policy = {"attempt": 3}  # type: ignore
    s.handle("q", close, attempts="5")  # type: ignore[arg-type]
    s.handle("q", close, attempt=5)  # type: ignore[call-arg]
    s.handler("q", attempts="5")  # type: ignore[arg-type]
    s.handler("q", attempt=5)  # type: ignore[call-arg]
    lapse.handle("q", close, attempt=5)  # type: ignore[call-arg]
    s.handler("q")(no_argument)  # type: ignore[type-var]
    s.handler(close)  # type: ignore[arg-type]
    del wrong


def errors(s: lapse.Scheduler) -> None:
    try:
        s.schedule("o", 1, close)
    except lapse.Exists as error:
        assert_type(error.code, int)
    except lapse.Error:
        raise
    builtin: ValueError = lapse.Range()
    late: TimeoutError = lapse.Timeout()
    raise lapse.Retry(timedelta(seconds=5)) from (builtin or late)
