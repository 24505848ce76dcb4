"""Notices a stream that has lost its end: sampling can miss end-of-speech for good and go on in silence or a loop.

It looks at what is produced, never at how long it takes: slow speech is not cut. It only counts frames after the
last piece of text was fed, and two signs only, each of which must last :data:`PATIENCE_FRAMES` without a break:

* the frames repeat exactly, all codes, with a period of at most :data:`MAX_PERIOD_FRAMES`;
* the audio is near silence: below :data:`SILENCE_RMS`, and far below (:data:`SILENCE_RATIO`) the loudest frame that the
  same stream has spoken, so that a quiet voice is not taken for silence.
"""

from collections import deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from megatalker.checkpoint.config import FRAME_SAMPLES, FRAME_SECONDS

PATIENCE_FRAMES = 100  # not tuned: a definition
"""8 seconds."""
MAX_PERIOD_FRAMES = 25  # not tuned: a definition
"""2 seconds."""
SILENCE_RMS = 1e-3  # not tuned: a definition
"""-60 dBFS."""
SILENCE_RATIO = 1e-2  # not tuned: a definition
"""-40 dB below the loudest frame."""


def frame_levels(pcm: NDArray[np.float32]) -> list[float]:
    """Return the root mean square of each frame of ``[frames * 1920]`` samples; not finite where a sample is not."""
    frames = pcm.reshape(-1, FRAME_SAMPLES)
    levels: list[float] = np.sqrt(np.einsum("ns,ns->n", frames, frames) / FRAME_SAMPLES).tolist()
    return levels


class RunawayDetector:
    """Watches one stream. Both methods return the reason to end it, or ``None``."""

    def __init__(self) -> None:
        self._recent: deque[tuple[int, ...]] = deque(maxlen=MAX_PERIOD_FRAMES)
        self._repeats = [0] * (MAX_PERIOD_FRAMES + 1)
        self._loudest = 0.0
        self._silent = 0

    def frame(self, codes: tuple[int, ...], text_done: bool) -> str | None:
        """One more frame was decoded; ``text_done``: all text had been fed before it."""
        if not text_done:
            self._recent.clear()
        elif codes in self._recent:
            return self._repeated(codes)
        else:
            self._recent.append(codes)
        self._repeats = [0] * (MAX_PERIOD_FRAMES + 1)
        return None

    def audio(self, levels: Sequence[float], text_done: bool) -> str | None:
        """One more chunk was made, with :func:`frame_levels`; ``text_done``: all text had been fed before its first
        frame.
        """
        for level in levels:
            self._loudest = max(self._loudest, level)
            quiet = level < SILENCE_RMS and level < SILENCE_RATIO * self._loudest
            self._silent = self._silent + 1 if quiet and text_done else 0
        if self._silent >= PATIENCE_FRAMES:
            return f"{self._silent * FRAME_SECONDS:.0f} s of silence after the end of the text"
        return None

    def _repeated(self, codes: tuple[int, ...]) -> str | None:
        """One of the recent frames came once more."""
        for period, earlier in enumerate(reversed(self._recent), start=1):
            self._repeats[period] = self._repeats[period] + 1 if earlier == codes else 0
        self._recent.append(codes)
        for period, count in enumerate(self._repeats):
            if count >= PATIENCE_FRAMES:
                return f"the same {period} frames repeated for {count * FRAME_SECONDS:.0f} s after the end of the text"
        return None
