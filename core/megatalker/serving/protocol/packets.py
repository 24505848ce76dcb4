"""Binary messages of ``/v1/speak``: one chunk of audio each, with the id of its utterance.

Little-endian::

    offset  size  field
    0       1     version, 1
    1       1     sample format: 0 = signed 16-bit, 1 = float32; plus 128 where no chunk follows
    2       2     frames in this chunk, 1920 samples each
    4       4     index of the chunk in its utterance
    8       8     samples of the utterance before this chunk
    16      2     code groups, 0 if the chunk carries no codes
    18      2     length of the id in bytes
    20            id in UTF-8, zero-padded to a multiple of 4 bytes
                  samples, mono, 24 kHz
                  codes, unsigned 16-bit, frame by frame
"""

import struct
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from megatalker.checkpoint.config import FRAME_SAMPLES
from megatalker.engine.outputs import Chunk
from megatalker.errors import InvalidRequestError
from megatalker.serving.audio import from_code_bytes, from_pcm16, to_code_bytes, to_pcm16
from megatalker.serving.protocol.messages import AudioFormat

VERSION = 1

_HEADER = struct.Struct("<BBHIQHH")
_FORMATS: tuple[AudioFormat, ...] = ("s16le", "f32le")
_FINAL = 0x80
_WIDTHS = {"s16le": 2, "f32le": 4}


@dataclass(frozen=True, slots=True, eq=False)
class Packet:
    """One chunk as it came over the wire."""

    id: str
    index: int
    sample_offset: int
    frames: int
    pcm: NDArray[np.float32]
    """``[frames * 1920]`` at 24 kHz within [-1, 1]."""
    codes: NDArray[np.int64] | None
    """``[frames, code groups]`` where asked for."""
    final: bool
    """See :attr:`megatalker.engine.Chunk.final`. The end itself is the event ``done``."""


def pack(utterance: str, chunk: Chunk, audio: AudioFormat) -> bytes:
    """A chunk of an utterance as one binary message."""
    name = utterance.encode()
    samples = chunk.pcm.astype("<f4", copy=False).tobytes() if audio == "f32le" else to_pcm16(chunk.pcm)
    groups, codes = (0, b"") if chunk.codes is None else (chunk.codes.shape[1], to_code_bytes(chunk.codes))
    kind = _FORMATS.index(audio) | (_FINAL if chunk.final else 0)
    header = _HEADER.pack(VERSION, kind, chunk.frames, chunk.index, chunk.sample_offset, groups, len(name))
    return header + name + bytes(-len(name) % 4) + samples + codes


def unpack(message: bytes) -> Packet:
    """The chunk in a binary message.

    Raises:
        InvalidRequestError: not such a message, or one of another version.
    """
    if len(message) < _HEADER.size or message[0] != VERSION or message[1] & ~_FINAL >= len(_FORMATS):
        raise InvalidRequestError(
            f"a binary message of {len(message)} bytes begins with {message[:2].hex() or 'nothing'}, expected a chunk "
            f"of version {VERSION}; use the same megatalker version at both ends"
        )
    _, kind, frames, index, offset, groups, length = _HEADER.unpack_from(message)
    audio = _FORMATS[kind & ~_FINAL]
    at = _HEADER.size + length + -length % 4
    end = at + frames * FRAME_SAMPLES * _WIDTHS[audio]
    if len(message) != end + 2 * frames * groups:
        raise InvalidRequestError(
            f"a chunk of {frames} frames has {len(message)} bytes, expected {end + 2 * frames * groups}; it is damaged"
        )
    name = message[_HEADER.size : _HEADER.size + length].decode()
    samples, codes = _samples(message[at:end], audio), from_code_bytes(message[end:], groups) if groups else None
    return Packet(name, index, offset, frames, samples, codes, bool(kind & _FINAL))


def _samples(data: bytes, audio: AudioFormat) -> NDArray[np.float32]:
    if audio == "f32le":
        return np.frombuffer(data, "<f4").astype(np.float32)
    return from_pcm16(data)
