"""The interface of every engine, near or far: :class:`~megatalker.engine.Engine` in this process,
:class:`~megatalker.serving.client.RemoteEngine` on another machine. Write against these to accept both.
"""

from types import TracebackType
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from megatalker.engine.speech.options import SpeechOptions
from megatalker.engine.speech.outputs import BackendSwitch, Chunk, FinishReason, Pieces, StreamFacts
from megatalker.engine.speech.word_times import SpokenWord

__all__ = ["Speech", "SpeechEngine"]


class Speech(Protocol):
    """One utterance while it is made; see :class:`~megatalker.engine.SpeechStream`.

    Iterate over it, with ``for`` or ``async for``, from one place; every other method may be called from any thread,
    and from within a running event loop: none of them waits.
    """

    def feed(self, text: str) -> None:
        """Append a piece of text; raises ``InvalidRequestError`` where the text was complete."""

    def finish(self) -> None:
        """The text is complete."""

    def cancel(self) -> None:
        """End now; the rows of the backend are free within a frame."""

    async def aclose(self) -> None:
        """Do the same as :meth:`cancel`."""

    def __iter__(self) -> Self: ...

    def __next__(self) -> Chunk: ...

    def __aiter__(self) -> Self: ...

    async def __anext__(self) -> Chunk: ...

    def read_all(self) -> NDArray[np.float32]:
        """Wait for the rest of the speech: ``[samples]`` at 24 kHz."""

    def pieces(self, seconds: float) -> Pieces:
        """The speech in pieces of this length, which must divide a frame of 0.08 s, to iterate over instead."""

    def take_words(self, *, begun: bool = False) -> list[SpokenWord]:
        """Words that end within the chunks taken so far, without those returned before; at the end of the iteration the
        rest of those that were spoken. Their times are estimates; with the setting ``aligner`` they are found in the
        audio, and the words of a segment of text come once it is over. Nothing unless the option ``word_times`` is on.

        ``begun``: words that begin within these chunks, where that is known; their ends are guesses. No aligner is
        waited for.
        """

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    @property
    def seed(self) -> int:
        """The seed in use."""

    @property
    def backend(self) -> str:
        """Name of the talker backend that speaks now; empty while a remote engine has not answered."""

    @property
    def switches(self) -> tuple[BackendSwitch, ...]:
        """Moves to other backends, oldest first."""

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why no further chunk is made; ``None`` while there may be one."""

    @property
    def error(self) -> Exception | None:
        """The error that ended it, when ``finish_reason`` is ``error``; the iteration raises it."""

    def facts(self) -> StreamFacts:
        """Figures so far."""


class SpeechEngine(Protocol):
    """Text in, streaming speech out; see :class:`~megatalker.engine.Engine` for the meaning of the arguments."""

    def speak(self, text: str | None, options: SpeechOptions | None = None, **changes: Any) -> Speech:
        """Begin to speak; returns at once. What can never work raises ``InvalidRequestError`` here, or, where only a
        remote engine can know it, when the speech is iterated over.
        """

    def check(self, options: SpeechOptions | None = None, **changes: Any) -> None:
        """Raise what :meth:`speak` would say of these options; nothing is spoken. A remote engine asks its server, and
        waits for the answer.
        """

    def close(self) -> None:
        """End all speech and free what is held. May be called again."""
