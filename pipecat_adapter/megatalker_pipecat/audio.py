"""Converts the engine's chunks to Pipecat's audio: trims leading silence, resamples, makes 16-bit samples."""

import numpy as np
from numpy.typing import NDArray
from pipecat.audio.utils import detect_speech_onset

from megatalker.checkpoint.config import SAMPLE_RATE
from megatalker.serving.audio import StreamResampler

Pcm = NDArray[np.float32]


class LeadingSilence:
    """Trims the silence before the first sound, except for its last :data:`PREROLL_S`.

    Audio that is not clearly silence is kept: after :data:`PATIENCE_S` without a sound, and at the end of an utterance
    without one, everything held back is returned.
    """

    THRESHOLD_DB = -50.0
    LASTING_MS = 30.0
    """Shortest sound that ends the silence, in milliseconds."""
    PREROLL_S = 0.02
    """Seconds kept in front of the sound, so that its beginning is not cut."""
    PATIENCE_S = 1.0

    def __init__(self) -> None:
        self._held: Pcm | None = np.empty(0, np.float32)

    def push(self, pcm: Pcm) -> Pcm:
        """Take samples, and return the samples to play."""
        if self._held is None:
            return pcm
        self._held = np.concatenate([self._held, pcm])
        onset = detect_speech_onset(
            to_bytes(self._held),
            SAMPLE_RATE,
            hop_ms=5.0,
            threshold_db=self.THRESHOLD_DB,
            min_voiced_ms=self.LASTING_MS,
        )
        if onset is not None:
            self._held = self._held[max(0, onset - int(self.PREROLL_S * SAMPLE_RATE)) :]
        elif len(self._held) < self.PATIENCE_S * SAMPLE_RATE:
            return np.empty(0, np.float32)
        return self.finish()

    def finish(self) -> Pcm:
        """Return the samples held back; later ones are not held back."""
        held, self._held = self._held, None
        return np.empty(0, np.float32) if held is None else held


class Sound:
    """One utterance on its way from 24 kHz floats to 16-bit PCM at the pipeline's rate.

    The bytes of all :meth:`push` calls and of :meth:`finish` hold ``round(samples * rate / 24000)`` samples, whatever
    the chunks and the pauses between them.
    """

    def __init__(self, rate: int, *, trim: bool) -> None:
        """``trim``: remove leading silence."""
        self._silence = LeadingSilence() if trim else None
        self._resampler = None if rate == SAMPLE_RATE else StreamResampler(rate)
        self._samples = 0

    @property
    def seconds(self) -> float:
        """Duration of the audio so far, trimmed silence excluded, the resampler's delay included."""
        return self._samples / SAMPLE_RATE

    def push(self, pcm: Pcm) -> bytes:
        """``[samples]`` at 24 kHz in; 16-bit little-endian mono PCM out, possibly none yet."""
        return self._convert(pcm if self._silence is None else self._silence.push(pcm))

    def finish(self) -> bytes:
        """Return the rest. Call it once, at the end of the utterance."""
        rest = self._convert(np.empty(0, np.float32) if self._silence is None else self._silence.finish())
        if self._resampler is None:
            return rest
        return rest + to_bytes(self._resampler.finish())

    def _convert(self, pcm: Pcm) -> bytes:
        self._samples += len(pcm)
        if self._resampler is None or not len(pcm):
            return to_bytes(pcm)
        return to_bytes(self._resampler.process(pcm))


def silence(rate: int, seconds: float) -> bytes:
    """Return silence of this length as 16-bit PCM."""
    return bytes(2 * round(rate * seconds))


def to_bytes(pcm: Pcm) -> bytes:
    """Convert floats to 16-bit little-endian PCM; values outside [-1, 1] are clipped."""
    audio: bytes = np.clip(np.rint(pcm * 32767.0), -32768, 32767).astype("<i2").tobytes()
    return audio
