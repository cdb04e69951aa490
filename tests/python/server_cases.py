"""Cases that hold for every store on a server: the file of each store names those that it runs there,
and adds what only that store promises."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Iterable

import lapse
import lapse.aio
import pytest
from consumer import Consumer, offline, place, try_schedule
from support import PATIENCE, TIER, fine, in_threads, until

# -- Who uses it ------------------------------------------------------------------------------------


def threads_schedule_and_workers_run(s: lapse.Scheduler) -> None:
    """It has some workers."""
    ran, lock = [], threading.Lock()

    @s.handler("close")
    def close(order):
        with lock:
            ran.append(str(order))

    def schedule(n):
        for i in range(50):
            s.schedule(f"{n}-{i}", 0.05 * (i % 5), close)

    in_threads(8, schedule)
    until(lambda: len(ran) == 400)
    assert len(set(ran)) == 400
    until(lambda: s.stats()["done"] == 400)


def asyncio_and_another_process(
    url: str, first: Callable[[lapse.aio.Scheduler], Awaitable[None]] | None = None
) -> None:
    """`first`: what else is asked of the scheduler; none of it runs."""

    async def main():
        ran = []
        async with lapse.aio.Scheduler(url) as s:

            @s.handler("close", attempts=3, backoff=0.001)
            async def close(order):
                ran.append((str(order), order.attempt))
                if order == "again" and order.attempt == 1:
                    raise ValueError

            if first is not None:
                await first(s)
            await s.schedule("again", 0, close)
            await asyncio.to_thread(fine, """
with lapse.Scheduler(sys.argv[1], workers=0) as other:
    other.schedule("from elsewhere", 0.1, queue="close")
""", url)
            async with asyncio.timeout(PATIENCE):
                while len(ran) < 3:
                    await asyncio.sleep(0.001)  # sleeps: between two looks
        assert sorted(ran) == [("again", 1), ("again", 2), ("from elsewhere", 1)]

    asyncio.run(main(), debug=False)


# -- The link ---------------------------------------------------------------------------------------

OUTAGES = pytest.mark.parametrize("seconds", [1, 10, *([60] if TIER == "soak" else [])])


def refused_for_a_while(proxy, through: str, caplog, seconds: float) -> list[str]:
    """What ran: each order, at least once."""
    orders = sorted([f"before{n}" for n in range(5)] + [f"o{n}" for n in range(20)])
    with Consumer(through) as c:
        place(c.s, "before", 5, 0)
        until(lambda: len(c.ran) == 5)
        place(c.s, "o", 20, seconds / 2)
        proxy.refuse()
        until(lambda: offline(c.s) > 0)
        with pytest.raises((lapse.Offline, lapse.Unsure)):
            c.s.schedule("refused", 0, queue="q")
        used = time.process_time()
        time.sleep(seconds)  # sleeps: the outage lasts as long as the case says
        used = time.process_time() - used
        assert offline(c.s) >= seconds * 0.9
        proxy.accept()
        until(lambda: len(set(c.ids())) == len(orders))  # And nobody has scheduled anything.
        until(lambda: offline(c.s) == 0)
        assert used < max(0.2 * seconds, 0.5), "it spins while the store is away"
    assert sorted(set(c.ids())) == orders
    failed = [r for r in caplog.records if r.levelno >= logging.WARNING]
    assert 1 <= len(failed) <= 10, "said once in an outage, not with each try"
    return c.ids()


def the_first_connection_fails(proxy, through: str) -> str:
    """What the error says."""
    proxy.refuse()
    with pytest.raises(lapse.Offline, match="cannot be reached") as caught:
        lapse.Scheduler(through)
    proxy.accept()
    lapse.Scheduler(through).close()
    return str(caught.value)


def cut_again_and_again(proxy, c: Consumer, cuts: int, delay: float) -> set[str]:
    """Four threads schedule orders for it meanwhile. All that were accepted run; which may have."""
    answered, doubtful, end = [], [], threading.Event()

    def produce(n):
        i = 0
        while not end.is_set():
            id, i = f"{n}-{i}", i + 1
            try:
                c.s.schedule(id, delay, queue="q")
                answered.append(id)
            except lapse.Unsure:
                doubtful.append(id)
            except lapse.Offline:
                time.sleep(0.01)  # sleeps: as a producer does that is refused

    threads = [threading.Thread(target=produce, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(cuts):
        before = len(answered)
        until(lambda n=before: len(answered) > n + 20)
        proxy.cut()
    end.set()
    for thread in threads:
        thread.join()
    until(lambda: offline(c.s) == 0)
    until(lambda: set(answered) <= set(c.ids()))
    return set(answered) | set(doubtful)


def a_stalled_link_is_not_waited_for(proxy, s: lapse.Scheduler) -> lapse.Error:
    """What was said of an order meanwhile."""
    proxy.stall()
    began = time.monotonic()
    with pytest.raises((lapse.Unsure, lapse.Offline)) as caught:
        s.schedule("o", 60, queue="q")
    assert time.monotonic() - began < PATIENCE
    proxy.stall(False)
    try_schedule(s, "o", 60)
    return caught.value


# -- Passwords --------------------------------------------------------------------------------------


def are_refused(urls: Iterable[str]) -> list[str]:
    """The texts that say why."""
    texts = []
    for url in urls:
        with pytest.raises(lapse.Error) as caught:
            lapse.Scheduler(url)
        texts += [str(caught.value), repr(caught.value)]
    return texts


def show_none_of(words: Iterable[str], texts: Iterable[str], capfd) -> None:
    """Nor does what was printed."""
    for text in [*texts, *capfd.readouterr()]:
        for word in words:
            assert word not in text
