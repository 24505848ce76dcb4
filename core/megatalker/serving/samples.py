"""Bare samples as telephones, sockets and files take them: at any usual rate, as numbers or in G.711, cut to frames."""

import io
from typing import Literal, get_args

import numpy as np
import soundfile
from numpy.typing import NDArray

from megatalker.checkpoint.config import SAMPLE_RATE
from megatalker.errors import InvalidRequestError
from megatalker.serving.audio import StreamResampler, to_pcm16

__all__ = ["SAMPLE_RATES", "SampleEncoder", "SampleFormat", "SampleFrames", "default_rate", "to_bytes"]

Samples = NDArray[np.float32]
SampleFormat = Literal["s16le", "f32le", "pcm_mulaw", "pcm_alaw"]
"""16-bit and float32 little-endian samples; G.711 in its two laws, a byte a sample."""
SAMPLE_RATES = (8_000, 16_000, 22_050, 24_000, 44_100, 48_000)
"""Rates in Hz that requests may ask for."""
TELEPHONE_RATE = 8_000

_G711 = {"pcm_mulaw": "ULAW", "pcm_alaw": "ALAW"}
_SILENCE = {"s16le": b"\0\0", "f32le": bytes(4), "pcm_mulaw": b"\xff", "pcm_alaw": b"\xd5"}
"""One sample of silence."""


def default_rate(kind: str) -> int:
    """Return the rate in Hz of a format where none is asked for: 8000 for G.711, which telephones speak, else 24000."""
    return TELEPHONE_RATE if kind in _G711 else SAMPLE_RATE


def to_bytes(samples: Samples, kind: SampleFormat) -> bytes:
    """Return float32 ``[n]`` in this format, full scale 1, clipped; raises as :func:`to_pcm16`."""
    if kind == "f32le":
        return samples.astype("<f4", copy=False).tobytes()
    numbers = to_pcm16(samples)
    return _g711(numbers, _G711[kind]) if numbers and kind in _G711 else numbers


class SampleEncoder:
    """Turns the speech of one utterance into bare samples at another rate and in another format, chunk by chunk.

    The bytes do not depend on how the speech was cut into chunks. Output lags behind input by 19 ms at 8 kHz, less at
    higher rates, and not at all at 24 kHz.

    Args:
        kind: ``s16le``, ``f32le``, ``pcm_mulaw`` or ``pcm_alaw``.
        rate: in Hz, one of 8000, 16000, 22050, 24000, 44100 and 48000. ``None``: 8000 for ``pcm_mulaw`` and
            ``pcm_alaw``, else 24000.

    Raises:
        InvalidRequestError: there is no such format, or the rate is none of these.
    """

    def __init__(self, kind: SampleFormat = "s16le", rate: int | None = None) -> None:
        if kind not in get_args(SampleFormat):
            raise InvalidRequestError(
                f"the format of samples is {kind!r:.40}, expected one of {', '.join(get_args(SampleFormat))}"
            )
        if rate is not None and (isinstance(rate, bool) or rate not in SAMPLE_RATES):
            raise InvalidRequestError(
                f"sample_rate is {rate!r:.40}, expected one of {', '.join(map(str, SAMPLE_RATES))}"
            )
        self.kind, self.rate = kind, rate or default_rate(kind)
        self._resampler = StreamResampler(self.rate)

    @property
    def sample_bytes(self) -> int:
        """Bytes of a sample."""
        return len(_SILENCE[self.kind])

    @property
    def silence(self) -> bytes:
        """One sample of silence."""
        return _SILENCE[self.kind]

    def encode(self, samples: Samples) -> bytes:
        """Float32 ``[n]`` at 24 kHz in, full scale 1, clipped; what is certain by now out, maybe nothing.

        Raises:
            InvalidRequestError: a sample is not finite.
        """
        return to_bytes(self._resampler.process(samples), self.kind)

    def finish(self) -> bytes:
        """Return the rest of the speech. Call it once, last."""
        return to_bytes(self._resampler.finish(), self.kind) if self.rate != SAMPLE_RATE else b""


class SampleFrames:
    """Cuts the speech of one utterance into frames of equal length, as media streams of telephones want it.

    Args:
        encoder: of the samples.
        seconds: of a frame, at most 1, which must hold a whole number of samples; telephones take 0.02.

    Raises:
        InvalidRequestError: a frame would hold no whole number of samples.
    """

    def __init__(self, encoder: SampleEncoder, seconds: float = 0.02) -> None:
        samples = seconds * encoder.rate
        if not 1 <= samples <= encoder.rate or abs(samples - round(samples)) > 1e-6:
            raise InvalidRequestError(
                f"a frame of {seconds:g} s at {encoder.rate} Hz has {samples:g} samples, expected a whole number, at "
                "most 1 s of them"
            )
        self._encoder, self._size = encoder, round(samples) * encoder.sample_bytes
        self._rest = b""

    def push(self, samples: Samples) -> list[bytes]:
        """Float32 ``[n]`` at 24 kHz in; the frames that are whole by now out, maybe none."""
        return self._cut(self._encoder.encode(samples))

    def finish(self, *, pad: bool = True) -> list[bytes]:
        """Return the last frames, the very last filled up with silence if ``pad``. Call it once, last."""
        frames, rest = self._cut(self._encoder.finish()), self._rest
        if rest and pad:
            rest += self._encoder.silence * ((self._size - len(rest)) // self._encoder.sample_bytes)
        return [*frames, rest] if rest else frames

    def _cut(self, data: bytes) -> list[bytes]:
        data = self._rest + data
        whole = len(data) - len(data) % self._size
        self._rest = data[whole:]
        return [data[at : at + self._size] for at in range(0, whole, self._size)]


def _g711(numbers: bytes, law: str) -> bytes:
    """16-bit samples in G.711, by libsndfile."""
    file = io.BytesIO()
    soundfile.write(file, np.frombuffer(numbers, "<i2"), TELEPHONE_RATE, format="RAW", subtype=law)
    return file.getvalue()
