"""lapse.aio: seeded stories of many clients, in which every order has one winner."""

import asyncio
import contextlib
import random

import lapse
import lapse.aio
import pytest
from lapse import Fate
from loops import passes, until
from support import rounds


class Shop:
    """Clients that schedule, cancel, replace, take and pause at random; what became of what."""

    def __init__(self, s: lapse.aio.Scheduler, seed: int) -> None:
        self.s = s
        self.dice = random.Random(seed)
        self.started: list[int] = []  # generations, once for each start
        self.running: set[int] = set()
        self.cancelled: set[int] = set()
        self.wrong: list[str] = []
        self.placed: dict[str, int] = {}
        s.handle("handled", self.close, attempts=3, backoff=0.001)

    def begin(self, order: lapse.Order) -> None:
        if order.generation in self.cancelled:
            self.wrong.append(f"{order} runs though it was cancelled")
        if order.generation in self.running:
            self.wrong.append(f"{order} runs twice at once")
        self.started.append(order.generation)

    async def close(self, order: lapse.Order) -> object:
        self.begin(order)
        self.running.add(order.generation)
        try:
            await passes(self.dice.randrange(4))
            match self.dice.randrange(12):
                case 0:
                    raise lapse.Retry(self.dice.choice([0, 0.001]))
                case 1:
                    return lapse.Reject("on purpose")
                case 2:
                    raise ValueError("on purpose")
                case 3 if order.attempt == 1:
                    asyncio.current_task().cancel()
                    await passes(1)
                case 4:
                    await self.s.cancel(order)
            return None
        finally:
            self.running.discard(order.generation)

    def close_plainly(self, order: lapse.Order) -> object:
        self.begin(order)
        return self.dice.choice([None, None, lapse.Retry(0), lapse.Reject])

    async def place(self) -> None:
        name = f"o{self.dice.randrange(60)}"
        kind = self.dice.randrange(4)
        callback = [self.close, self.close_plainly, None, None][kind]
        queue = ["own", "own", "handled", "taken"][kind]
        delay = self.dice.choice([0, 0.001, 0.004, 60])
        try:
            self.placed[name] = await self.s.schedule(
                name, delay, callback, None, queue, self.dice.random() < 0.3
            )
        except lapse.Exists:
            pass

    async def pay(self) -> None:
        if not self.placed:
            return
        name, generation = self.dice.choice(list(self.placed.items()))
        if self.dice.randrange(3):
            fate = await self.s.cancel(name, generation)
        else:
            fate = await self.s.cancel_wait(name, None, generation)
            if generation in self.running:
                self.wrong.append(f"{name} runs after cancel_wait")
        if fate is Fate.CANCELLED:
            self.cancelled.add(generation)

    async def move(self) -> None:
        await self.s.reschedule(f"o{self.dice.randrange(60)}", 0.001)

    async def take(self) -> None:
        claim = await self.s.take("taken", self.dice.choice([0, 0.002]))
        if claim is None:
            return
        self.begin(claim)
        with contextlib.suppress(lapse.Stale):  # its id was scheduled anew meanwhile
            match self.dice.randrange(4):
                case 0:
                    await claim.retry(0.001)
                case 1:
                    await claim.give_back()
                case 2:
                    claim = None  # dropped
                case _:
                    async with claim:
                        await passes(1)

    async def stall(self) -> None:
        queue = self.dice.choice(["own", "handled"])
        await self.s.pause(queue)
        await passes(5)
        await self.s.resume(queue)

    async def client(self, steps: int) -> None:
        acts = [self.place] * 6 + [self.pay] * 3 + [self.take, self.move, self.stall]
        for _ in range(steps):
            await self.dice.choice(acts)()
            await passes(self.dice.randrange(2))


def quiet(*told: object) -> None:
    """The errors and dead letters are on purpose."""


def books(found: dict) -> None:
    assert found["scheduled"] == sum(
        found[part]
        for part in ("done", "cancelled", "replaced", "dead_total", "pending", "running")
    ), found


@pytest.mark.parametrize("concurrency", [1, 3, 100])
def test_every_order_has_one_winner(loops, monkeypatch, concurrency):
    monkeypatch.setattr("lapse._runner._REST", 0.001)
    steps = rounds(60, 200, 1000)

    async def story(seed: int) -> None:
        s = loops.scheduler(concurrency=concurrency, on_error=quiet, on_dead=quiet)
        shop = Shop(s, seed)
        await asyncio.gather(*(shop.client(steps) for _ in range(4)))
        books(await s.stats())
        await s.resume("own")
        for name in list(shop.placed):
            await s.reschedule(name, 0)
        await until(lambda: not s._runner.held)
        await s.stop()
        books(await s.stats())
        await s.close()
        assert shop.wrong == [], seed
        assert not shop.cancelled & shop.running and shop.started

    async def main() -> None:
        for seed in range(rounds(3, 12, 100)):
            await story(seed)

    loops.run(main)
