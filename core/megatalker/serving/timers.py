"""Timers of an event loop that a pause of the whole process does not use up."""

import asyncio
from collections.abc import Callable
from contextvars import Context
from typing import TYPE_CHECKING, Any, cast

PIECE_S = 0.5
"""A process that was stopped (SIGSTOP, ``docker pause``, a debugger) finds at most this much less left of a timer: what
arrived meanwhile is read before the timer has run out."""
WHOLE_S = 0.75
"""Shorter timers are not split."""


class SplitTimer:
    """A timer that waits for one piece of its time after another; in place of ``asyncio.TimerHandle``."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        delay: float,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        context: Context | None,
    ) -> None:
        self._loop, self._left_s, self._callback, self._args = loop, delay, callback, args
        self._cancelled = False
        self._wait(context)

    def cancel(self) -> None:
        """Never call back."""
        self._cancelled = True
        self._piece.cancel()

    def cancelled(self) -> bool:
        """Whether :meth:`cancel` was called."""
        return self._cancelled

    def when(self) -> float:
        """Time of the callback, by the loop's clock."""
        return self._piece.when() + self._left_s

    def _wait(self, context: Context | None = None) -> None:
        seconds = min(PIECE_S, self._left_s)
        self._left_s -= seconds
        self._piece = self._loop.call_later(seconds, self._wait_or_call, context=context)

    def _wait_or_call(self) -> None:
        if self._left_s > 0:
            self._wait()
        else:
            self._callback(*self._args)


if TYPE_CHECKING:
    _Loop = asyncio.SelectorEventLoop  # any loop will do
else:
    _Loop = object


class SplitTimers(_Loop):
    """Mixed into the class of an event loop, before it: all its longer timers are :class:`SplitTimer`."""

    def call_later(  # type: ignore[override] # as loops had it before they had types
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Call back after a time that a pause of the process does not use up."""
        if delay <= WHOLE_S:
            return super().call_later(delay, callback, *args, context=context)
        return cast("asyncio.TimerHandle", SplitTimer(self, delay, callback, args, context))

    def call_at(  # type: ignore[override] # the same
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Call back after a time that a pause of the process does not use up."""
        if when - self.time() <= WHOLE_S:
            return super().call_at(when, callback, *args, context=context)
        return self.call_later(when - self.time(), callback, *args, context=context)
