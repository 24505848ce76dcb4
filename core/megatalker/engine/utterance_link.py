"""The way from a stream to the engine that speaks its utterance, in this process or in another."""

import time
from dataclasses import dataclass
from typing import Protocol

from megatalker.engine.chunks import ChunkQueue, Progress
from megatalker.engine.commands import Cancel, CommandQueue, Feed, FinishText
from megatalker.engine.utterance import Utterance

__all__ = ["LocalLink", "UtteranceLink"]


class UtteranceLink(Protocol):
    """An utterance of one engine, as its stream sees it."""

    @property
    def chunks(self) -> ChunkQueue:
        """Audio."""

    @property
    def progress(self) -> Progress:
        """Facts, which the engine writes."""

    def feed(self, text: str) -> None:
        """More text; raises ``EngineClosedError`` where nobody will speak it."""

    def finish_text(self) -> None:
        """The text is complete; raises as :meth:`feed`."""

    def cancel(self) -> None:
        """Nobody listens any more. Safe in finalizers, and where the utterance has ended."""


@dataclass(frozen=True, slots=True)
class LocalLink:
    """To the worker of this process."""

    utterance: Utterance
    commands: CommandQueue

    @property
    def chunks(self) -> ChunkQueue:
        return self.utterance.chunks

    @property
    def progress(self) -> Progress:
        return self.utterance.progress

    def feed(self, text: str) -> None:
        self.commands.put(Feed(self.utterance, text, time.monotonic()))

    def finish_text(self) -> None:
        self.commands.put(FinishText(self.utterance))

    def cancel(self) -> None:
        self.commands.queue.put(Cancel(self.utterance))
