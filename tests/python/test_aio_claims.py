"""lapse.aio: take and poll, waiting in line, verdicts inside the block."""

import asyncio
import gc

import lapse
import lapse.aio
import pytest
from lapse import Reason, State
from loops import Slow, listed, passes, until
from support import PATIENCE, rounds


def test_take_waits_for_what_falls_due(loops):
    async def main():
        async with loops.scheduler() as s:
            taking = asyncio.ensure_future(s.take("q", timeout=PATIENCE))
            await s.schedule("OID1", 0.02, queue="q", payload=b"7")
            await s.schedule("other", 0, queue="else")
            claim = await taking
            assert (claim, claim.payload, claim.queue, claim.held) == ("OID1", b"7", "q", True)
            async with claim:
                assert await claim.holds()
            assert not claim.held and not await claim.holds()
            assert await s.poll("q") is None
            assert await s.take("q", timeout=0.01) is None
            assert await s.take("q", timeout=-1) is None
            async with await s.take() as claim:
                assert claim == "other"
            assert (await s.stats())["done"] == 2

    loops.run(main)


def test_those_who_wait_are_served_in_their_order(loops):
    async def main():
        got, n = [], 10
        s, clock = loops.told()

        async def taker(number):
            async with await s.take("q") as claim:
                got.append((number, str(claim)))

        tasks = []
        for number in range(n):
            tasks.append(asyncio.ensure_future(taker(number)))
            await passes(1)
        for i in range(n):
            await s.schedule(f"o{i}", i + 1, queue="q")
        clock.advance(n + 1)
        await asyncio.gather(*tasks)
        assert got == [(i, f"o{i}") for i in range(n)]
        assert not s._runner.takers
        await s.close()

    loops.run(main)


def test_many_takers_share_the_work(loops):
    async def main():
        n, got = rounds(300, 2000, 20_000), []

        async def taker(s):
            while (claim := await s.take("q", timeout=PATIENCE)) != "end":
                async with claim:
                    got.append(str(claim))
                await passes(len(got) % 3)
            await claim.retry(0)  # for the next one

        async with loops.scheduler() as s:
            takers = [asyncio.ensure_future(taker(s)) for _ in range(8)]
            await s.schedule_many([(f"{i}", i % 50 * 0.001, None, None, "q") for i in range(n)])
            await until(lambda: len(got) == n)
            await s.schedule("end", 0, queue="q")
            done, waiting = await asyncio.wait(takers, return_when=asyncio.FIRST_COMPLETED)
            await s.stop()
            await asyncio.gather(*takers, return_exceptions=True)
        assert sorted(got) == sorted(f"{i}" for i in range(n))

    loops.run(main)


def test_verdicts_inside_the_block(loops):
    async def main():
        s, clock = loops.told()
        for name in ("done", "retry", "reject", "error", "cancelled"):
            await s.schedule(name, 0, queue=name)
        clock.advance(1)
        async with await s.poll("done"):
            pass
        async with await s.poll("retry"):
            raise lapse.Retry(60)
        async with await s.poll("reject"):
            raise lapse.Reject("no such account")
        with pytest.raises(ValueError):
            async with await s.poll("error"):
                raise ValueError("goes on")
        with pytest.raises(asyncio.CancelledError):
            async with await s.poll("cancelled"):
                raise asyncio.CancelledError
        assert await listed(s, State.PENDING) == ["cancelled", "error", "retry"]
        assert (await s.get("retry")).remaining == pytest.approx(60, abs=0.01)
        assert (await s.get("cancelled")).attempt == 0
        assert (await s.get("error")).attempt == 1
        dead = await s.get("reject")
        assert (dead.reason, dead.error) == (Reason.REJECTED, "no such account")
        await s.close()

    loops.run(main)


def test_explicit_verdicts(loops):
    async def main():
        s, clock = loops.told(lease=30)
        for name in ("a", "b", "c", "d", "e"):
            await s.schedule(name, 0, queue=name)
        clock.advance(1)
        claims = {name: await s.poll(name) for name in "abcde"}
        await claims["a"].done()
        await claims["b"].retry(5)
        await claims["c"].reject("no")
        await claims["d"].give_back()
        await claims["e"].renew(100)
        for call in (claims["a"].done, claims["b"].reject, claims["c"].renew):
            with pytest.raises(lapse.Stale):
                await call()
        with pytest.raises(TypeError):
            await claims["e"].retry("soon")
        clock.advance(99)
        assert await claims["e"].holds()
        clock.advance(2)
        assert not await claims["e"].holds()
        with pytest.raises(lapse.Stale):
            await claims["e"].done()
        await s.close()

    loops.run(main)


def test_a_claim_whose_lease_ends_is_delivered_anew(loops):
    async def main():
        s, clock = loops.told(lease=30)
        await s.schedule("o", 0, queue="q")
        clock.advance(1)
        first = await s.poll("q")
        waiting = asyncio.ensure_future(s.take("q"))
        await passes(10)
        clock.advance(31)
        second = await waiting
        assert (second, second.attempt) == ("o", 2) and second.fence > first.fence
        async with first:
            pass  # leaving the block of a stale claim is no error
        async with second:
            pass
        assert (await s.stats())["done"] == 1
        await s.close()

    loops.run(main)


def test_a_dropped_claim_is_given_back(loops):
    async def main():
        async with loops.scheduler() as s:
            await s.schedule("o", 0, queue="q")
            claim = await s.take("q")
            assert await s.poll("q") is None
            del claim
            gc.collect()
            async with await s.take("q", PATIENCE) as claim:
                assert (claim, claim.attempt) == ("o", 1)

    loops.run(main)


def test_a_cancelled_take_claims_nothing(loops):
    """Whether it is cancelled before, while or after its claim comes."""

    async def main():
        for n in range(rounds(60, 300, 3000)):
            s, clock = loops.told()
            taking = asyncio.ensure_future(s.take("q"))
            await passes(2)
            await s.schedule("o", 1, queue="q")
            clock.advance(2)
            await passes(n % 6)
            taking.cancel()
            try:
                claim = await taking
            except asyncio.CancelledError:
                claim = await s.take("q", PATIENCE)
            assert (claim, claim.attempt) == ("o", 1)
            await claim.done()
            await s.close()

    loops.run(main)


def test_a_take_in_a_timeout(loops):
    async def main():
        async with loops.scheduler() as s:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await s.take("q")
            assert not s._runner.takers
            await s.schedule("o", 0, queue="q")
            async with await s.take("q", PATIENCE) as claim:
                assert claim == "o"

    loops.run(main)


def test_take_is_served_while_the_loop_is_full(loops):
    async def main():
        slow = Slow()
        async with loops.scheduler(concurrency=1) as s:
            await s.schedule("runs", 0, slow.callback)
            await s.schedule("waits", 0, slow.callback)
            await slow.inside.wait()
            await s.schedule("o", 0.01, queue="q")
            async with await s.take("q", PATIENCE) as claim:
                assert claim == "o"
            slow.go.set()

    loops.run(main)


def test_take_never_yields_an_order_with_a_callback(loops):
    async def main():
        ran = []
        s, clock = loops.told()

        @s.handler("handled")
        async def handle(order):
            ran.append(str(order))

        await s.schedule("own", 1, handle)
        await s.schedule("b", 1, lambda order: ran.append(str(order)))
        clock.advance(2)
        assert await s.take(timeout=0.01) is None
        await until(lambda: len(ran) == 2)
        for call in (s.take("handled"), s.poll("handled")):
            with pytest.raises(lapse.Mixed):
                await call
        await s.schedule("x", 60, queue="taken")
        assert await s.poll("taken") is None
        with pytest.raises(lapse.Mixed):
            s.handle("taken", handle)
        await s.close()

    loops.run(main)


@pytest.mark.parametrize("how", ["stop", "close"])
def test_stop_ends_every_take(loops, how):
    async def main():
        s = loops.scheduler()
        takers = [asyncio.ensure_future(s.take(queue)) for queue in ("a", "b", None, None)]
        await passes(5)
        await getattr(s, how)()
        for result in await asyncio.gather(*takers, return_exceptions=True):
            assert isinstance(result, lapse.Closed)
        await s.close()

    loops.run(main)


def test_closing_gives_claims_back_and_they_know(loops):
    async def main():
        s = loops.scheduler()
        await s.schedule("o", 0, queue="q")
        claim = await s.take("q")
        await s.close()
        assert not await claim.holds()
        with pytest.raises(lapse.Error):
            await claim.done()
        assert not claim.held

    loops.run(main)


def test_a_claim_outlives_its_scheduler(loops):
    """It holds the core; the order ends with it."""

    async def main():
        s = loops.scheduler()
        await s.schedule("o", 0, queue="q")
        claim = await s.take("q")
        del s
        gc.collect()
        await claim.done()

    loops.run(main)
