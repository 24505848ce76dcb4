"""Audio as a device makes it: it is there when somebody has waited for it."""

from collections.abc import Callable
from typing import ClassVar

from torch import Tensor

from megatalker.engine.codec_stage import Download, Samples


class SlowDownload(Download):
    """A download that stays under way until it is waited for, on any device."""

    on_start: ClassVar[Callable[[], None]] = lambda: None
    """Called when it begins."""
    on_wait: ClassVar[Callable[[], None]] = lambda: None
    """Called before each wait; may raise or block."""

    def __init__(self, chunks: list[Tensor]) -> None:
        type(self).on_start()
        super().__init__(chunks)

    @property
    def under_way(self) -> bool:
        return True

    def wait(self) -> Samples:
        type(self).on_wait()
        return super().wait()
