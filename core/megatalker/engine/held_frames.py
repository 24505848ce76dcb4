"""Facts of frames whose audio a stage between the engine and its consumer holds back."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from megatalker.engine.outputs import Chunk, StreamEnd

__all__ = ["HeldFrames"]


class HeldFrames:
    """Codes and ends of an utterance's frames, until their audio is handed out.

    Args:
        frames: of the utterance before the first chunk.
    """

    def __init__(self, frames: int) -> None:
        self._frames = frames
        """Handed out."""
        self.held = 0
        """Frames that wait."""
        self._codes: list[NDArray[np.int64]] = []
        self._ends: list[StreamEnd] = []

    def add(self, chunk: Chunk) -> None:
        """Hold the frames of a chunk."""
        self.held += chunk.frames
        self._ends += chunk.ends
        if chunk.frames and chunk.codes is not None:
            self._codes.append(chunk.codes)

    def hand_out(self, chunk: Chunk, frames: int) -> Chunk:
        """Return the chunk as one of the next ``frames`` frames."""
        self._frames, self.held = self._frames + frames, self.held - frames
        ends = tuple(end for end in self._ends if end.frame < self._frames)
        self._ends = self._ends[len(ends) :]
        codes = None
        if frames and self._codes:
            known = np.concatenate(self._codes)
            self._codes, codes = [known[frames:]], known[:frames]
        return replace(chunk, frames=frames, codes=codes, ends=ends)
