"""Speech in pieces of one length, instead of in chunks."""

from collections.abc import AsyncIterator, Iterator

import numpy as np
from numpy.typing import NDArray

from megatalker.checkpoint.config import FRAME_SAMPLES, FRAME_SECONDS, SAMPLE_RATE
from megatalker.engine.outputs import Chunk
from megatalker.errors import InvalidRequestError

__all__ = ["Pieces"]

Pcm = NDArray[np.float32]


class Pieces:
    """The chunks of a stream, cut; iterate over it once, with ``for`` or ``async for``, instead of over the stream.

    A piece never waits for the chunk after it, since its length divides a frame.

    Raises:
        InvalidRequestError: ``seconds`` does not divide a frame.
    """

    def __init__(self, sync: Iterator[Chunk], later: AsyncIterator[Chunk], seconds: float) -> None:
        """``sync`` and ``later`` are the same stream, for threads and for event loops."""
        samples = round(seconds * SAMPLE_RATE)
        if samples < 1 or abs(samples - seconds * SAMPLE_RATE) > 1e-6 or FRAME_SAMPLES % samples:
            raise InvalidRequestError(
                f"pieces of {seconds} s were asked for, expected a length that divides a frame of {FRAME_SECONDS} s, "
                "such as 0.04, 0.02 or 0.01"
            )
        self._sync, self._later, self._samples = sync, later, samples
        self._rest: Pcm = np.empty(0, np.float32)

    def __iter__(self) -> Iterator[Pcm]:
        """``[seconds * 24000]`` samples each; after pauses of another length silence fills the last."""
        for chunk in self._sync:
            yield from self._cut(chunk.pcm)
        yield from self._last()

    async def __aiter__(self) -> AsyncIterator[Pcm]:
        """Yield the same pieces to an event loop."""
        async for chunk in self._later:
            for piece in self._cut(chunk.pcm):
                yield piece
        for piece in self._last():
            yield piece

    def _cut(self, pcm: Pcm) -> Pcm:
        """Return ``[pieces, samples]``, and keep what is left."""
        joined = np.concatenate((self._rest, pcm)) if len(self._rest) else pcm
        end = len(joined) - len(joined) % self._samples
        self._rest = joined[end:].copy()
        return joined[:end].reshape(-1, self._samples)

    def _last(self) -> Pcm:
        return self._cut(np.zeros(-len(self._rest) % self._samples, np.float32))
