"""The consumer's half of an utterance, wherever it is made: an iterator of chunks for threads and event loops."""

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from megatalker.engine.facts import Chunk, FinishReason
from megatalker.engine.mailbox import Mailbox


class Listening(ABC):
    """Hands out what arrives in a mailbox.

    Iterate over it, with ``for`` or ``async for``, from one place; every other method may be called from any thread.
    The iteration raises what went wrong after the chunks that were made. Leaving a ``with`` or ``async with`` block
    cancels what is not finished.
    """

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox

    @abstractmethod
    def cancel(self) -> None:
        """End now: chunks not yet taken are dropped, the iteration ends, the backend's rows are free within a frame.

        Does nothing when the stream has ended.
        """

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Chunk:
        chunk = self._mailbox.take()
        if chunk is None:
            raise StopIteration
        return chunk

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Chunk:
        chunk = await self._mailbox.take_async()
        if chunk is None:
            raise StopAsyncIteration
        return chunk

    def read_all(self) -> NDArray[np.float32]:
        """Wait for the rest of the speech: ``[samples]`` at 24 kHz."""
        chunks = [chunk.pcm for chunk in self]
        return np.concatenate(chunks) if chunks else np.empty(0, np.float32)

    async def aclose(self) -> None:
        """As :meth:`cancel`, for ``contextlib.aclosing``."""
        self.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why no further chunk is made; ``None`` while there may be one. Chunks may still wait to be taken."""
        return self._mailbox.reason

    @property
    def error(self) -> Exception | None:
        """What went wrong, when ``finish_reason`` is ``error``; the iteration raises it."""
        return self._mailbox.error
