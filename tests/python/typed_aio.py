"""How typed programs use lapse.aio, for mypy --strict; it is checked, never run.

Each `type: ignore` marks a mistake that mypy must find: one that it does not need is an
error as well.
"""

import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import assert_type

import lapse
import lapse.aio


async def close(order: lapse.Order) -> None:
    assert_type(order.id, str)


def close_plainly(order: lapse.Order) -> lapse.Retry | None:
    return lapse.Retry(5) if order else None


async def on_error(order: lapse.Order, error: BaseException) -> None: ...


async def on_dead(info: lapse.Info, reason: lapse.Reason) -> None: ...


@contextlib.contextmanager
def around(order: lapse.Order) -> Iterator[None]:
    yield


@contextlib.asynccontextmanager
async def async_around(order: lapse.Order) -> AsyncIterator[int]:
    yield 1


def no_manager(order: lapse.Order) -> int:
    return 1


async def calls(s: lapse.aio.Scheduler) -> None:
    assert_type(await s.schedule("o", 1, close), int)
    assert_type(await s.schedule_at(b"o", 1.5e9, close_plainly, payload=b"x", queue="q"), int)
    assert_type(await s.schedule_many([("a", 1, close), {"order_id": "b", "delay": 2}]),
                list[int | Exception])  # fmt: skip
    assert_type(await s.cancel("o", generation=2), lapse.Fate)
    assert_type(await s.cancel_wait("o", 1.5), lapse.Fate)
    assert_type(await s.reschedule("o", 5), lapse.Fate)
    assert_type(await s.get("o"), lapse.Info | None)
    async for info in s.orders(lapse.State.DEAD):
        assert_type(info, lapse.Info)
    stats = await s.stats()
    assert_type(stats["pending"], int)
    assert_type(await s.metrics(), str)
    assert_type(await s.process(), int)
    await s.schedule(7, 1, close)  # type: ignore[arg-type]
    await s.schedule("o", "1", close)  # type: ignore[arg-type]
    stats["nothing"]  # type: ignore[typeddict-item]
    for info in s.orders():  # type: ignore[attr-defined]
        pass


async def claims(s: lapse.aio.Scheduler) -> None:
    claim = await s.take("q", timeout=1)
    assert_type(claim, lapse.aio.Claim | None)
    claim.done()  # type: ignore[union-attr]
    if claim is not None:
        async with claim as same:
            assert_type(same, lapse.aio.Claim)
            await same.renew(60)
            assert_type(await same.holds(), bool)
        with claim:  # type: ignore[attr-defined]
            pass


def handlers(s: lapse.aio.Scheduler) -> None:
    @s.handler("q", attempts=3, backoff=0.5)
    async def handle(order: lapse.Order) -> None: ...

    @s.handler("r", atempts=3)  # type: ignore[call-arg]
    def misspelt(order: lapse.Order) -> None: ...

    s.handle("q", close_plainly, run_limit=60)
    s.handle("q", None)


async def hooks() -> None:
    async with lapse.aio.Scheduler(
        on_error=on_error, on_dead=on_dead, around=async_around, concurrency=10
    ) as s:
        s.around = around
        s.around = None
        s.around = no_manager  # type: ignore[assignment]
    lapse.Scheduler(around=around)
    lapse.Scheduler(around=async_around)  # type: ignore[arg-type]
