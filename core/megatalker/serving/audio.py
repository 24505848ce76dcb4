"""Speech as others want it: WAV files written while they grow, 16-bit samples and codes, other sampling rates."""

import struct
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

import numpy as np
import soxr
from numpy.typing import NDArray

from megatalker.checkpoint.config import SAMPLE_RATE
from megatalker.errors import InvalidRequestError
from megatalker.voices.audio_file import check_rate

__all__ = ["StreamResampler", "WavWriter", "from_code_bytes", "from_pcm16", "to_code_bytes", "to_pcm16"]

Samples = NDArray[np.float32]
SOURCE_TYPE = "http://cv.iptc.org/newscodes/digitalsourcetype/trainedAlgorithmicMedia"
"""IPTC's name of media that a trained model made, by which programs know them."""
SYNTHETIC = f"Synthetic speech, made by megatalker. Digital source type: {SOURCE_TYPE}"
"""The comment in files of speech."""
LOUDEST = np.float32(32767)
"""Full scale as a 16-bit sample."""


def to_pcm16(samples: Samples) -> bytes:
    """Float samples as little-endian 16-bit PCM: scaled by 32767, rounded to nearest, clipped.

    Raises:
        InvalidRequestError: a sample is not finite.
    """
    if not np.isfinite(samples).all():
        raise InvalidRequestError("the audio holds samples that are not finite, expected values from -1 to 1")
    scaled = np.clip(samples, -1.0, 1.0) * LOUDEST
    data: bytes = np.rint(scaled).astype("<i2").tobytes()
    return data


def from_pcm16(data: bytes) -> Samples:
    """The float samples of :func:`to_pcm16`, to its precision; a byte after the last whole sample is left out."""
    return np.frombuffer(data, "<i2", len(data) // 2).astype(np.float32) / LOUDEST


def to_code_bytes(codes: NDArray[np.int64]) -> bytes:
    """``[frames, code groups]`` as little-endian unsigned 16-bit numbers, frame by frame."""
    return codes.astype("<u2").tobytes()


def from_code_bytes(data: bytes, groups: int) -> NDArray[np.int64]:
    """The codes of :func:`to_code_bytes`; raises ``ValueError`` where the bytes are no whole frames."""
    return np.frombuffer(data, "<u2").astype(np.int64).reshape(-1, groups)


class StreamResampler:
    """Converts a 24 kHz stream to another rate, chunk by chunk; no sample is lost and none is added.

    Output lags behind input by up to 40 ms (80 ms to 8 kHz), which the ``fast`` filter halves at some loss of treble.

    Args:
        rate: the target in Hz, 4000 to 384000; 24000 passes samples through.
        fast: prefer a short lag.
    """

    def __init__(self, rate: int, *, fast: bool = False) -> None:
        check_rate(rate)
        quality = "LQ" if fast else "HQ"
        self._stream = (
            soxr.ResampleStream(SAMPLE_RATE, rate, 1, dtype="float32", quality=quality) if rate != SAMPLE_RATE else None
        )

    def process(self, samples: Samples) -> Samples:
        """Float32 ``[n]`` in; what is certain by now out, maybe nothing."""
        return self._run(samples, last=False)

    def finish(self) -> Samples:
        """The end of the stream: returns what is still inside. Call it once, last."""
        return self._run(np.zeros(0, np.float32), last=True)

    def _run(self, samples: Samples, last: bool) -> Samples:
        if self._stream is None:
            return samples
        converted: Samples = self._stream.resample_chunk(np.ascontiguousarray(samples, np.float32), last=last)
        return converted


class WavWriter:
    """Writes mono WAV as it is generated. After every :meth:`write` the file is complete and playable.

    On a target that cannot seek (a pipe) the header states the largest length instead, as players of streams expect.

    Args:
        target: a path, or a binary file object, which stays open.
        rate: sampling rate in Hz.
        float32: store float32 instead of 16-bit samples.
        comment: text that is stored in front of the samples, such as :data:`SYNTHETIC`; ``None``: none.
        tags: further texts there: ``title``, ``artist``, ``album``, ``track``.

    Raises:
        InvalidRequestError: the file cannot be opened.
    """

    def __init__(
        self,
        target: str | Path | BinaryIO,
        *,
        rate: int = SAMPLE_RATE,
        float32: bool = False,
        comment: str | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> None:
        self._owned = isinstance(target, str | Path)
        self._file = _create(Path(target)) if isinstance(target, str | Path) else target
        self._rate, self._float32 = rate, float32
        self._tags = ({} if comment is None else {"comment": comment}) | dict(tags or {})
        self._start = self._file.tell() if self._file.seekable() else None
        self._data_bytes = 0
        self._file.write(self._header(0 if self._start is not None else _UNKNOWN))
        self._file.flush()

    def write(self, samples: Samples) -> None:
        """Append float32 ``[n]``, full scale 1, clipped in 16-bit files."""
        data = samples.astype("<f4").tobytes() if self._float32 else to_pcm16(samples)
        self._file.write(data)
        self._data_bytes += len(data)
        if self._start is not None:
            end = self._file.tell()
            self._file.seek(self._start)
            self._file.write(self._header(self._data_bytes))
            self._file.seek(end)
        self._file.flush()

    def _header(self, data_bytes: int) -> bytes:
        return _wav_header(self._rate, self._float32, data_bytes, _information(self._tags))

    def close(self) -> None:
        """Close the file if it was opened here."""
        if self._owned:
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


_UNKNOWN = 0xFFFFFFFF


def _wav_header(rate: int, float32: bool, data_bytes: int, information: bytes) -> bytes:
    width = 4 if float32 else 2
    kind = 3 if float32 else 1
    fields = struct.pack("<HHIIHH", kind, 1, rate, rate * width, width, 8 * width)
    if float32:  # the standard asks for an extension size and a sample count in files that are not PCM
        fact = struct.pack("<4sII", b"fact", 4, data_bytes // width)
        fields = struct.pack("<I", len(fields) + 2) + fields + struct.pack("<H", 0) + fact
    else:
        fields = struct.pack("<I", len(fields)) + fields
    body = b"WAVEfmt " + fields + information + b"data" + struct.pack("<I", min(data_bytes, _UNKNOWN))
    return b"RIFF" + struct.pack("<I", min(len(body) + data_bytes, _UNKNOWN)) + body


_TAGS = {"comment": b"ICMT", "title": b"INAM", "artist": b"IART", "album": b"IPRD", "track": b"ITRK"}


def _information(tags: Mapping[str, str]) -> bytes:
    """Return the chunk that holds a comment and tags."""
    if not tags:
        return b""
    chunks = b"INFO"
    for name, value in tags.items():
        text = value.encode("utf-8", "replace") + b"\0"
        text += bytes(len(text) % 2)
        chunks += struct.pack("<4sI", _TAGS[name], len(text)) + text
    return struct.pack("<4sI", b"LIST", len(chunks)) + chunks


def _create(path: Path) -> BinaryIO:
    try:
        return path.open("wb")
    except OSError as error:
        raise InvalidRequestError(
            f"cannot write {path}: {error.strerror}; expected a file name in an existing, writable folder"
        ) from error
