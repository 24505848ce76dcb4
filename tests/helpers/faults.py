"""Ways in which a fake backend fails."""

import threading
from collections.abc import Callable
from typing import Any

from waiting import HANG_S


def raise_at(call: int) -> Callable[[int], None]:
    def raising(now: int) -> None:
        if now == call:
            raise RuntimeError("device lost")

    return raising


class Hang:
    """A call that does not return before it is released."""

    def __init__(self, call: int) -> None:
        self.call, self.thread = call, None
        self.entered, self.release = threading.Event(), threading.Event()

    def __call__(self, now: int) -> None:
        if now == self.call:
            self.thread = threading.current_thread()
            self.entered.set()
            self.release.wait(HANG_S)


def replace_item(index: int, change: Callable[[Any], Any]) -> Callable[[int, list[Any]], Any]:
    """Spoils the first result of call ``index``."""
    return lambda call, items: [change(items[0]), *items[1:]] if call == index else items
