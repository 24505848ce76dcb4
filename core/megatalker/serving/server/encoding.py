"""Formats of audio over HTTP, each made from chunks as they come."""

import io
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from fractions import Fraction
from functools import partial
from typing import BinaryIO, Literal, Protocol

import av
import av.filter
import numpy as np
from numpy.typing import NDArray

from megatalker.checkpoint.config import FRAME_SAMPLES, SAMPLE_RATE
from megatalker.serving.audio import WavWriter, to_pcm16

ResponseFormat = Literal["mp3", "opus", "aac", "flac", "wav", "pcm"]
Samples = NDArray[np.float32]
PIECE_BYTES = FRAME_SAMPLES
"""Half a frame, two bytes a sample."""


class Encoder(ABC):
    """Turns float32 ``[n]`` at 24 kHz, mono, into bytes of a format.

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


def pieces(samples: Samples) -> Iterator[bytes]:
    """Whole frames as 16-bit samples, 40 ms at a time: two pieces are a frame."""
    data = to_pcm16(samples)
    return (data[at : at + PIECE_BYTES] for at in range(0, len(data), PIECE_BYTES))


class PcmEncoder(Encoder):
    """Little-endian 16-bit samples and nothing else."""

    media_type = "audio/pcm"

    def __init__(self, file: BinaryIO | None = None) -> None:
        self._file = file

    def encode(self, samples: Samples) -> bytes:
        data = to_pcm16(samples)
        if self._file is None:
            return data
        self._file.write(data)
        return b""


class WavEncoder(Encoder):
    """A header, then 16-bit samples. Without a ``file`` the header states the largest possible length, as players of
    streams expect.
    """

    media_type = "audio/wav"

    def __init__(self, file: BinaryIO | None = None) -> None:
        self._pipe = _Pipe()
        self._writer = WavWriter(file or self._pipe)

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
        file: BinaryIO | None = None,
        **coding: str,
    ) -> None:
        """``muxing`` are FFmpeg's options of a container that is sent piece by piece, ``coding`` those of the codec."""
        self.media_type = media_type
        self._pipe, self._clock = _Pipe(), _Clock()
        options = {"flush_packets": "1", **muxing} if file is None else {}
        self._file = av.open(file or self._pipe, "w", format=container, options=options)
        stream = self._file.add_stream(codec, rate=SAMPLE_RATE, layout="mono", options=coding)
        assert isinstance(stream, av.AudioStream)
        self._stream = stream

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


_UNSEEKABLE_MP3 = {"write_xing": "0", "id3v2_version": "0"}  # what these hold is known at the end only


class _MakeEncoder(Protocol):
    def __call__(self, *, file: BinaryIO | None = None) -> Encoder: ...


ENCODERS: dict[ResponseFormat, _MakeEncoder] = {
    "mp3": partial(CompressingEncoder, "audio/mpeg", "mp3", "libmp3lame", _UNSEEKABLE_MP3, b="96000"),
    "opus": partial(CompressingEncoder, "audio/ogg", "ogg", "libopus", {"page_duration": "20000"}, b="48000"),
    "aac": partial(CompressingEncoder, "audio/aac", "adts", "aac", {}, b="96000"),
    "flac": partial(CompressingEncoder, "audio/flac", "flac", "flac", {}, frame_size=str(FRAME_SAMPLES)),
    "wav": WavEncoder,
    "pcm": PcmEncoder,
}

SLOWEST, FASTEST = 0.25, 4.0
_SLOWEST_STEP = 0.5
"""The slowest speed of one ``atempo`` filter."""


class StretchingEncoder(Encoder):
    """Speech at another speed and the same pitch, in the format of ``encoder``."""

    slow = True

    def __init__(self, speed: float, encoder: Encoder) -> None:
        """``speed`` is from :data:`SLOWEST` to :data:`FASTEST`; 2 takes half the time."""
        self._encoder, self.media_type = encoder, encoder.media_type
        self._clock, self._graph = _Clock(), av.filter.Graph()
        nodes = [
            self._graph.add_abuffer(
                sample_rate=SAMPLE_RATE, format="flt", layout="mono", time_base=Fraction(1, SAMPLE_RATE)
            )
        ]
        steps = [speed] if speed >= _SLOWEST_STEP else [_SLOWEST_STEP, speed / _SLOWEST_STEP]
        nodes += [self._graph.add("atempo", str(step)) for step in steps]
        self._graph.link_nodes(*nodes, self._graph.add("abuffersink")).configure()

    def encode(self, samples: Samples) -> bytes:
        self._graph.push(self._clock.frame(samples, "flt"))
        return self._encoder.encode(self._stretched())

    def finish(self) -> bytes:
        self._graph.push(None)
        return self._encoder.encode(self._stretched()) + self._encoder.finish()

    def _stretched(self) -> Samples:
        parts = [np.empty(0, np.float32)]
        while True:
            try:
                frame = self._graph.pull()
            except (av.BlockingIOError, av.EOFError):  # no more for now, or at all
                return np.concatenate(parts)
            assert isinstance(frame, av.AudioFrame)
            parts.append(frame.to_ndarray()[0])


class _Clock:
    """Frames for FFmpeg, one after another."""

    def __init__(self) -> None:
        self._samples = 0

    def frame(self, samples: NDArray[np.float32] | NDArray[np.int16], kind: str) -> av.AudioFrame:
        frame = av.AudioFrame.from_ndarray(samples[None], format=kind, layout="mono")
        frame.sample_rate, frame.pts = SAMPLE_RATE, self._samples
        self._samples += len(samples)
        return frame


class _Pipe(io.BytesIO):
    """Keeps what is written until it is taken; says that it cannot seek, so that nobody goes back."""

    def seekable(self) -> bool:
        return False

    def take(self) -> bytes:
        kept = self.getvalue()
        self.seek(0)
        self.truncate()
        return kept
