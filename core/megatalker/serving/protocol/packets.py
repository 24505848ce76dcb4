"""Binary messages of ``/v1/speak``: one chunk of audio each, with the id of its utterance.

Little-endian::

    offset  size  field
    0       1     version, 1
    1       1     sample format: 0 = signed 16-bit, 1 = float32, 2 = mu-law, 3 = A-law; plus 128 where no chunk follows
    2       2     frames in this chunk, 80 ms each: 1920 samples at 24 kHz, more or fewer where markup sets a rate
    4       4     index of the chunk in its utterance
    8       8     samples of the utterance before this chunk
    16      2     code groups, 0 if the chunk carries no codes
    18      2     length of the id in bytes
    20            id in UTF-8, zero-padded to a multiple of 4 bytes
                  samples, mono, 24 kHz unless another rate was asked for
                  codes, unsigned 16-bit, frame by frame

A pause that markup asked for is a chunk without frames.

At another rate than 24 kHz samples come a little later than their frames, and a last chunk without frames has the rest.
"""

import struct
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from megatalker.checkpoint.config import SAMPLE_RATE
from megatalker.engine.speech.outputs import Chunk
from megatalker.errors import InvalidRequestError
from megatalker.serving.audio import from_code_bytes, from_pcm16, to_code_bytes
from megatalker.serving.samples import SampleEncoder, SampleFormat

VERSION = 1

_HEADER = struct.Struct("<BBHIQHH")
_FORMATS: tuple[SampleFormat, ...] = ("s16le", "f32le", "pcm_mulaw", "pcm_alaw")
_FINAL = 0x80
_WIDTHS = {"s16le": 2, "f32le": 4}
"""Bytes of a sample, in formats that are read here."""


@dataclass(frozen=True, slots=True, eq=False)
class Packet:
    """One chunk as it came over the wire."""

    id: str
    index: int
    sample_offset: int
    frames: int
    pcm: NDArray[np.float32]
    """``[samples]`` at 24 kHz within [-1, 1], as those of :class:`~megatalker.engine.Chunk`."""
    codes: NDArray[np.int64] | None
    """``[frames, code groups]`` where asked for."""
    final: bool
    """See :attr:`megatalker.engine.Chunk.final`. The end itself is the event ``done``."""


class PacketEncoder:
    """Makes binary messages of one utterance's chunks.

    Args:
        utterance: its id.
        encoder: of the samples.
    """

    def __init__(self, utterance: str, encoder: SampleEncoder) -> None:
        self._name, self._encoder = utterance.encode(), encoder
        self._samples = 0
        self._last: Chunk | None = None

    def push(self, chunk: Chunk) -> list[bytes]:
        """Return the message of a chunk."""
        if self._last is None:
            self._samples = round(chunk.sample_offset * self._encoder.rate / SAMPLE_RATE)
        self._last = chunk
        data = self._encoder.encode(chunk.pcm)
        if chunk.final:
            data += self._encoder.finish()
        groups, codes = (0, b"") if chunk.codes is None else (chunk.codes.shape[1], to_code_bytes(chunk.codes))
        return [self._pack(data, chunk.frames, chunk.index, chunk.final, groups) + codes]

    def finish(self) -> list[bytes]:
        """Return the samples that are left after a last chunk that was not known to be the last, if any."""
        if self._last is None or self._last.final:
            return []
        data = self._encoder.finish()
        return [self._pack(data, 0, self._last.index + 1, True, 0)] if data else []

    def _pack(self, data: bytes, frames: int, index: int, final: bool, groups: int) -> bytes:
        kind = _FORMATS.index(self._encoder.kind) | (_FINAL if final else 0)
        header = _HEADER.pack(VERSION, kind, frames, index, self._samples, groups, len(self._name))
        self._samples += len(data) // self._encoder.sample_bytes
        return header + self._name + bytes(-len(self._name) % 4) + data


def unpack(message: bytes) -> Packet:
    """The chunk in a binary message: 16-bit or float32 samples at 24 kHz, which :class:`RemoteEngine` asks for.

    Raises:
        InvalidRequestError: not such a message, or one of another version.
    """
    if len(message) < _HEADER.size or message[0] != VERSION or message[1] & ~_FINAL >= len(_WIDTHS):
        raise InvalidRequestError(
            f"a binary message of {len(message)} bytes begins with {message[:2].hex() or 'nothing'}, expected a chunk "
            f"of version {VERSION}; use the same megatalker version at both ends"
        )
    _, kind, frames, index, offset, groups, length = _HEADER.unpack_from(message)
    audio = _FORMATS[kind & ~_FINAL]
    at = _HEADER.size + length + -length % 4
    end = len(message) - 2 * frames * groups
    if end < at or (end - at) % _WIDTHS[audio]:
        raise InvalidRequestError(
            f"a chunk of {frames} frames has {len(message)} bytes, expected {at}, {_WIDTHS[audio]} for each sample and "
            f"{2 * frames * groups} of codes; it is damaged"
        )
    name = message[_HEADER.size : _HEADER.size + length].decode()
    samples, codes = _samples(message[at:end], audio), from_code_bytes(message[end:], groups) if groups else None
    return Packet(name, index, offset, frames, samples, codes, bool(kind & _FINAL))


def _samples(data: bytes, audio: SampleFormat) -> NDArray[np.float32]:
    if audio == "f32le":
        return np.frombuffer(data, "<f4").astype(np.float32)
    return from_pcm16(data)
