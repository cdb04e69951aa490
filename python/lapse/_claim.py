"""An order that was taken in an event loop: lapse.aio.Claim."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Self

from . import _lapse
from ._types import Seconds
from ._verdicts import DONE, GIVE_BACK, Reject, Retry, asked_for, verdict_of_block

if TYPE_CHECKING:
    from ._runner import Runner

__all__ = ["Claim"]


class Claim(_lapse.Order):
    """An order that was taken: a str equal to its id, held until it is settled.

    Use it with `async with`: leaving the block settles it as done; `raise Retry(delay)` and
    `raise Reject(reason)` inside are verdicts and stop there; any other exception asks for a
    retry after the policy's back-off and goes on; a cancellation gives the order back as if
    it had not been tried. A claim that is dropped is given back.
    """

    __slots__ = ("_runner",)
    _runner: Runner | None

    async def _settle(self, verdict: int, delay_ns: int, error: str | None) -> None:
        runner = self._held_by()
        self._runner = None
        await runner.ask(runner.worker.settle, self.fence, verdict, delay_ns, error)

    def _held_by(self) -> Runner:
        runner: Runner | None = getattr(self, "_runner", None)
        if runner is None:
            raise _lapse.Stale(f"order {self.id!r} has been settled already")
        return runner

    @property
    def held(self) -> bool:
        """Whether it is not settled yet."""
        return getattr(self, "_runner", None) is not None

    async def done(self) -> None:
        """Finished. Raises lapse.Stale when the claim is no longer held, as all of these."""
        await self._settle(*DONE)

    async def retry(self, delay: Seconds | None = None, error: object | None = None) -> None:
        """Again after `delay` seconds; None: after the policy's back-off."""
        await self._settle(*asked_for(Retry(delay, error)))

    async def reject(self, reason: object | None = None) -> None:
        """Hopeless: to the dead letters."""
        await self._settle(*asked_for(Reject(reason)))

    async def give_back(self) -> None:
        """Not tried: pending again, and the attempt does not count."""
        await self._settle(*GIVE_BACK)

    async def renew(self, lease: Seconds = 0) -> None:
        """Hold it for another `lease` seconds from now; 0: as long as it was given for."""
        runner = self._held_by()
        await runner.ask(runner.worker.renew, self.fence, _lapse._seconds_to_ns(lease, "lease"))

    async def holds(self) -> bool:
        """Whether it still holds its order: not settled, its lease not ended."""
        runner = getattr(self, "_runner", None)
        return runner is not None and await runner.ask(runner.worker.holds, self.fence)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        if not self.held:
            return False
        try:
            await self._settle(*verdict_of_block(error))
        except _lapse.Stale:
            pass  # its id was scheduled anew meanwhile; nothing else is wrong
        return isinstance(error, (Retry, Reject))

    def __del__(self) -> None:
        runner = getattr(self, "_runner", None)
        if runner is not None:
            runner.give_back(self.fence)
