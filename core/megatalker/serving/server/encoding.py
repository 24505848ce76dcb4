"""Formats of audio over HTTP, each made from chunks as they come."""

import io
from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import partial
from typing import BinaryIO, Literal, Protocol

import av
import numpy as np
from numpy.typing import NDArray

from megatalker.checkpoint.config import FRAME_SECONDS, SAMPLE_RATE
from megatalker.engine.speech.stretching import FrameClock, PitchKeepingStretch
from megatalker.errors import InvalidRequestError
from megatalker.serving.audio import StreamResampler, WavWriter, to_pcm16
from megatalker.serving.samples import SAMPLE_RATES, SampleFormat, default_rate, to_bytes

ResponseFormat = Literal["mp3", "opus", "aac", "flac", "wav", "pcm", "pcm_mulaw", "pcm_alaw"]
Samples = NDArray[np.float32]


class Encoder(ABC):
    """Turns float32 ``[n]``, mono, into bytes of a format.

    One that was made for a ``file``, which can seek, writes there instead of returning bytes; after :meth:`finish` its
    header states the true length where the format has one.
    """

    media_type: str
    slow = False
    """Whether encoding takes long enough to be done in a thread of its own."""

    @abstractmethod
    def encode(self, samples: Samples) -> bytes:
        """Return the bytes that can be sent now, maybe none."""

    def finish(self) -> bytes:
        """Return the bytes that are left at the end."""
        return b""


BARE_TYPES: dict[SampleFormat, str] = {"s16le": "audio/pcm", "pcm_mulaw": "audio/PCMU", "pcm_alaw": "audio/PCMA"}


class BareEncoder(Encoder):
    """Samples and nothing else."""

    def __init__(
        self,
        kind: SampleFormat,
        rate: int,  # noqa: ARG002 - nothing tells it
        file: BinaryIO | None = None,
        comment: str | None = None,  # noqa: ARG002 - there is no place for it
    ) -> None:
        self.media_type = BARE_TYPES[kind]
        self._kind, self._file = kind, file

    def encode(self, samples: Samples) -> bytes:
        data = to_bytes(samples, self._kind)
        if self._file is None:
            return data
        self._file.write(data)
        return b""


class WavEncoder(Encoder):
    """A header, then 16-bit samples. Without a ``file`` the header states the largest possible length, as players of
    streams expect.
    """

    media_type = "audio/wav"

    def __init__(self, rate: int, file: BinaryIO | None = None, comment: str | None = None) -> None:
        self._pipe = _Pipe()
        self._writer = WavWriter(file or self._pipe, rate=rate, comment=comment)

    def encode(self, samples: Samples) -> bytes:
        self._writer.write(samples)
        return self._pipe.take()

    def finish(self) -> bytes:
        return self._pipe.take()  # the header, if there was no speech


class CompressingEncoder(Encoder):
    """A format that FFmpeg encodes, sent packet by packet: only what the codec looks ahead is kept back."""

    slow = True

    def __init__(
        self,
        media_type: str,
        container: str,
        codec: str,
        muxing: Mapping[str, str],
        rate: int = SAMPLE_RATE,
        file: BinaryIO | None = None,
        comment: str | None = None,
        bit_rate: int | None = None,
        **coding: str,
    ) -> None:
        """``muxing`` are FFmpeg's options of a container that is sent piece by piece, ``coding`` those of the codec;
        ``bit_rate`` is lowered to what codecs have at low rates; ``comment`` is stored in front.
        """
        self.media_type = media_type
        self._pipe, self._clock = _Pipe(), FrameClock(rate)
        options = {"flush_packets": "1", **muxing} if file is None else {}
        options |= {"write_id3v2": "1"} if container == "adts" and comment is not None else {}
        options |= {"id3v2_version": "0"} if container == "mp3" and comment is None and file is None else {}
        self._file = av.open(file or self._pipe, "w", format=container, options=options)
        if comment is not None:
            self._file.metadata["comment"] = comment
        coding |= {} if bit_rate is None else {"b": str(min(bit_rate, MOST_BITS * rate))}
        stream = self._file.add_stream(codec, rate=rate, layout="mono", options=coding)
        assert isinstance(stream, av.AudioStream)
        self._stream = stream

    def tag(self, tags: Mapping[str, str]) -> None:
        """Store tags such as ``title``; before the first samples."""
        self._file.metadata.update(tags)

    def encode(self, samples: Samples) -> bytes:
        if samples.size:
            self._mux(self._clock.frame(np.frombuffer(to_pcm16(samples), "<i2"), "s16"))
        return self._pipe.take()

    def finish(self) -> bytes:
        self._mux(None)
        self._file.close()
        return self._pipe.take()

    def _mux(self, frame: av.AudioFrame | None) -> None:
        for packet in self._stream.encode(frame):
            self._file.mux(packet)


class FlacEncoder(CompressingEncoder):
    """FLAC whose blocks are as long as a frame of speech, so that none waits for the next one."""

    def __init__(self, rate: int, file: BinaryIO | None = None, comment: str | None = None) -> None:
        block = str(round(rate * FRAME_SECONDS))
        super().__init__("audio/flac", "flac", "flac", {}, rate, file, comment, frame_size=block)


MOST_BITS = 6
"""Bits a sample that MP3 and AAC have at any rate."""
_UNSEEKABLE_MP3 = {"write_xing": "0"}  # what it holds is known at the end only


class _MakeEncoder(Protocol):
    def __call__(self, *, rate: int, file: BinaryIO | None = None, comment: str | None = None) -> Encoder: ...


ENCODERS: dict[ResponseFormat, _MakeEncoder] = {
    "mp3": partial(CompressingEncoder, "audio/mpeg", "mp3", "libmp3lame", _UNSEEKABLE_MP3, bit_rate=96_000),
    "opus": partial(CompressingEncoder, "audio/ogg", "ogg", "libopus", {"page_duration": "20000"}, bit_rate=48_000),
    "aac": partial(CompressingEncoder, "audio/aac", "adts", "aac", {}, bit_rate=96_000),
    "flac": FlacEncoder,
    "wav": WavEncoder,
    "pcm": partial(BareEncoder, "s16le"),
    "pcm_mulaw": partial(BareEncoder, "pcm_mulaw"),
    "pcm_alaw": partial(BareEncoder, "pcm_alaw"),
}
OPUS_RATES = (8_000, 16_000, 24_000, 48_000)
"""Rates that both Opus and a request may have."""


def rate_of(kind: ResponseFormat, asked: int | None) -> int:
    """Return the rate in Hz that a format has where this one is asked for.

    Raises:
        InvalidRequestError: the format has no such rate.
    """
    rates = OPUS_RATES if kind == "opus" else SAMPLE_RATES
    if asked is not None and asked not in rates:
        raise InvalidRequestError(f"sample_rate is {asked}: {kind} takes {', '.join(map(str, rates))}")
    return asked or default_rate(kind)


def make_encoder(
    kind: ResponseFormat,
    *,
    rate: int | None = None,
    speed: float = 1.0,
    file: BinaryIO | None = None,
    comment: str | None = None,
) -> Encoder:
    """Return an encoder that takes float32 ``[n]`` at 24 kHz, mono.

    Args:
        kind: the format.
        rate: in Hz, as :func:`rate_of` takes it.
        speed: as :class:`~megatalker.engine.speech.stretching.PitchKeepingStretch` takes it.
        file: see :class:`Encoder`.
        comment: stored in front of the speech, where the format has a place for it; ``None``: none.

    Raises:
        InvalidRequestError: the format has no such rate.
    """
    rate = rate_of(kind, rate)
    encoder = ENCODERS[kind](rate=rate, file=file, comment=comment)
    if rate != SAMPLE_RATE:
        encoder = ResamplingEncoder(rate, encoder)
    return encoder if speed == 1.0 else StretchingEncoder(speed, encoder)


class ResamplingEncoder(Encoder):
    """Speech at another rate, in the format of ``encoder``, which takes samples at that rate."""

    def __init__(self, rate: int, encoder: Encoder) -> None:
        self._encoder, self.media_type, self.slow = encoder, encoder.media_type, encoder.slow
        self._resampler = StreamResampler(rate)

    def encode(self, samples: Samples) -> bytes:
        return self._encoder.encode(self._resampler.process(samples))

    def finish(self) -> bytes:
        return self._encoder.encode(self._resampler.finish()) + self._encoder.finish()


class StretchingEncoder(Encoder):
    """Speech at another speed and the same pitch, in the format of ``encoder``."""

    slow = True

    def __init__(self, speed: float, encoder: Encoder) -> None:
        """``speed``: as :class:`~megatalker.engine.speech.stretching.PitchKeepingStretch` takes it."""
        self._encoder, self.media_type = encoder, encoder.media_type
        self._stretch = PitchKeepingStretch(speed)

    def encode(self, samples: Samples) -> bytes:
        return self._encoder.encode(self._stretch.process(samples))

    def finish(self) -> bytes:
        return self._encoder.encode(self._stretch.finish()) + self._encoder.finish()


class _Pipe(io.BytesIO):
    """Keeps what is written until it is taken; says that it cannot seek, so that nobody goes back."""

    def seekable(self) -> bool:
        return False

    def take(self) -> bytes:
        kept = self.getvalue()
        self.seek(0)
        self.truncate()
        return kept
