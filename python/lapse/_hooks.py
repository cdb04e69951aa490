"""The hooks on_error and on_dead of lapse.aio: functions of either kind, called in the loop."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from contextvars import Context
from typing import TYPE_CHECKING

from . import _lapse
from ._enums import Info, Reason
from ._types import OnDead, OnError
from ._verdicts import report

if TYPE_CHECKING:
    from ._runner import Runner

__all__ = ["Hooks"]

_log = logging.getLogger("lapse")


class Hooks:
    """Where errors and dead letters go: to functions of either kind, in the loop.

    The C core holds this and shows it to the collector; its news may come on any thread.
    """

    __slots__ = ("on_dead", "on_error", "runner")

    def __init__(self, on_error: OnError | None, on_dead: OnDead | None) -> None:
        self.on_error = on_error
        self.on_dead = on_dead
        self.runner: Runner | None = None

    def error(self, order: _lapse.Order, error: BaseException) -> None:
        """A callback failed, or lost its order by its run_limit. Any thread."""
        self._in_loop(self._tell_error, order, error)

    def dead(self, info: Info, reason: Reason) -> None:
        """An order became a dead letter. Any thread."""
        self._in_loop(self._tell_dead, info, reason)

    def _in_loop(self, tell: Callable[..., None], *args: object) -> None:
        runner = self.runner
        if runner is None or runner.loop is None or runner.is_here():
            tell(*args)
            return
        try:
            Context().run(runner.loop.call_soon_threadsafe, tell, *args)
        except RuntimeError:  # it is closed
            tell(*args)

    def _tell_error(self, order: _lapse.Order, error: BaseException) -> None:
        runner = self.runner
        if self.on_error is not None:
            self._follow(self.on_error(order, error), "on_error", order.id)
        elif runner is None or runner.loop is None or runner.loop.is_closed():
            report(None, order, error)
        else:
            runner.loop.call_exception_handler(
                {
                    "message": f"order {order.id!r} (queue {order.queue!r}, "
                    f"attempt {order.attempt}) failed",
                    "exception": error,
                    "order": order,
                }
            )

    def _tell_dead(self, info: Info, reason: Reason) -> None:
        if self.on_dead is not None:
            self._follow(self.on_dead(info, reason), "on_dead", info.id)

    def _follow(self, answer: object, name: str, order_id: str) -> None:
        """Await a hook that is a coroutine function."""
        if not inspect.isawaitable(answer):
            return
        runner = self.runner
        waiting = self._await(answer, name, order_id)
        if runner is None or not runner.is_here():
            waiting.close()
            if inspect.iscoroutine(answer):
                answer.close()
            _log.error("%s did not run for order %r: its event loop is closed", name, order_id)
            return
        task = runner.spawn(waiting, f"lapse-{name}")
        if not task.done():
            runner.hooks.add(task)
            task.add_done_callback(runner.hooks.discard)

    @staticmethod
    async def _await(answer: Awaitable[object], name: str, order_id: str) -> None:
        try:
            await answer
        except (asyncio.CancelledError, GeneratorExit):
            raise
        except BaseException as error:
            _log.error("%s failed for order %r", name, order_id, exc_info=error)
