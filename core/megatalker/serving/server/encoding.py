"""Formats of audio over HTTP, made from chunks as they come."""

import io
from abc import ABC, abstractmethod
from typing import ClassVar, Literal

import numpy as np
import soundfile
from numpy.typing import NDArray

from megatalker.checkpoint.config import SAMPLE_RATE
from megatalker.serving.audio import WavWriter, to_pcm16

ResponseFormat = Literal["wav", "pcm", "flac"]
Samples = NDArray[np.float32]


class Encoder(ABC):
    """Turns float32 ``[n]`` at 24 kHz into bytes of a 16-bit mono format."""

    media_type: ClassVar[str]

    @abstractmethod
    def encode(self, samples: Samples) -> bytes:
        """What can be sent now, maybe nothing."""

    def finish(self) -> bytes:
        """What is left at the end."""
        return b""


class PcmEncoder(Encoder):
    """Little-endian samples and nothing else."""

    media_type = "audio/pcm"

    def encode(self, samples: Samples) -> bytes:
        return to_pcm16(samples)


class WavEncoder(Encoder):
    """A header that states the largest possible length, as players of streams expect, then the samples."""

    media_type = "audio/wav"

    def __init__(self) -> None:
        self._pipe = _Pipe()
        self._writer = WavWriter(self._pipe)

    def encode(self, samples: Samples) -> bytes:
        self._writer.write(samples)
        return self._pipe.take()

    def finish(self) -> bytes:
        return self._pipe.take()  # the header, if there was no speech


class FlacEncoder(Encoder):
    """A whole file at the end: its header holds the length, and readers refuse or misread files that do not say it."""

    media_type = "audio/flac"

    def __init__(self) -> None:
        self._file = io.BytesIO()
        self._writer = soundfile.SoundFile(self._file, "w", SAMPLE_RATE, 1, subtype="PCM_16", format="FLAC")

    def encode(self, samples: Samples) -> bytes:
        self._writer.write(np.frombuffer(to_pcm16(samples), "<i2"))
        return b""

    def finish(self) -> bytes:
        self._writer.close()
        return self._file.getvalue()


ENCODERS: dict[ResponseFormat, type[Encoder]] = {"wav": WavEncoder, "pcm": PcmEncoder, "flac": FlacEncoder}


class _Pipe(io.BytesIO):
    """Keeps what is written until it is taken; says that it cannot seek, so that nobody goes back."""

    def seekable(self) -> bool:
        return False

    def take(self) -> bytes:
        kept = self.getvalue()
        self.seek(0)
        self.truncate()
        return kept
