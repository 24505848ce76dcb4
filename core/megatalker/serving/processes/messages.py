"""Messages about utterances between an engine process and its clients, in msgpack.

Each has ``id``, the utterance's number, which no other has, not even of another client. All moments are seconds of the
system's monotonic clock, which the processes of a machine share.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import torch
from msgspec import Struct
from numpy.typing import NDArray

from megatalker.engine.speech.joints import Joint
from megatalker.engine.speech.outputs import (
    BackendSwitch,
    Continuation,
    EngineMetrics,
    FinishReason,
    ReachedMark,
    StreamEnd,
)
from megatalker.engine.speech.request import Request, TalkerLimits
from megatalker.prompt.markup.prosody import PLAIN, Prosody
from megatalker.serving.processes.control import Attach, Detach, Failure, ToClient, WarmUpOrder

MOST_UTTERANCES = 1 << 32
"""Utterances that a client numbers, from its own number times this: the numbers of two clients never meet."""


class Segment(Struct, array_like=True, frozen=True):
    """A segment of a text that was given at once, tokenised."""

    text: str
    ids: list[int]
    voice: str = ""
    """The voice, where the text names a voice."""
    lead: Joint | None = None
    """The joint before it; after the last segment one without text has the rest."""


# ---- to the engine


class Begin(Struct, array_like=True, frozen=True, tag=True):
    """A checked request."""

    id: int
    owner: str
    request: Request
    clean: bool
    """The text was cleaned: paragraphs end segments."""
    segments: list[Segment] | None
    """The text; ``None`` where it is fed."""
    word_times: bool
    after: Continuation | None
    suspect: bool
    """An engine died in a call for it: it goes in calls of its own."""


class FeedText(Struct, array_like=True, frozen=True, tag=True):
    """More text, checked and clean."""

    id: int
    text: str
    at: float


class EndText(Struct, array_like=True, frozen=True, tag=True):
    """The text is complete."""

    id: int


class StopSpeech(Struct, array_like=True, frozen=True, tag=True):
    """Nobody listens any more."""

    id: int


class Taken(Struct, array_like=True, frozen=True, tag=True):
    """The listener has taken this many samples more."""

    id: int
    samples: int


Order = Attach | Detach | Begin | FeedText | EndText | StopSpeech | Taken | WarmUpOrder


# ---- from the engine


class Begun(Struct, array_like=True, frozen=True):
    """A segment whose speech has begun, for word times."""

    index: int
    """Segments that had begun before it."""
    letters_before: int
    begins_s: float
    text: str
    """The part of it that has come."""
    cut: bool
    pause_s: float = 0.0


class Audio(Struct, array_like=True, frozen=True):
    """A chunk."""

    id: int
    pcm: bytearray
    """Float32 samples."""
    codes: bytes
    """16-bit codes, ``[frames, code groups]``."""
    frames: int
    decoded_at: float
    requested_at: float
    prefilled_at: float | None
    gap_s: float | None
    """From the chunk before, where the engine had no reason to wait."""
    segments: int
    final: bool
    ends: tuple[StreamEnd, ...]
    begun: list[Begun]
    """Segments that have begun or changed since the chunk before, where word times are wanted."""
    switches: tuple[BackendSwitch, ...]
    marks: tuple[ReachedMark, ...] = ()
    prosody: Prosody = PLAIN


class Ended(Struct, array_like=True, frozen=True):
    """The utterance is over."""

    id: int
    reason: FinishReason
    error: Failure | None
    segments: int
    unsaid_chars: int
    underruns: int
    begun: list[Begun]


class SpeechOutput(Struct, array_like=True, frozen=True, tag=True):
    """Chunks of one codec step, or ends."""

    engine: int
    """Number of the process, which no other has."""
    audio: list[Audio] = []
    ended: list[Ended] = []


class EngineStatus(Struct, array_like=True, frozen=True, tag=True):
    """The state of an engine, at least twice a second."""

    engine: int
    limits: TalkerLimits
    metrics: EngineMetrics
    wait_s: float | None
    """How long a request that comes now waits for a slot; ``None`` while that is unknown."""
    failure: Failure | None
    """Why it refuses every request."""


Report = SpeechOutput | EngineStatus
ToClientOrReport = Report | ToClient


# ---- on the wire


def _encode(value: Any) -> object:
    match value:
        case torch.Tensor():
            array = value.numpy()
            return (array.dtype.str, array.shape, array.tobytes())
        case np.ndarray():
            return (value.dtype.str, value.shape, value.tobytes())
    raise NotImplementedError(f"cannot encode a {type(value).__name__}")


def _decode(kind: type, value: Any) -> object:
    if kind is torch.Tensor or kind is np.ndarray or getattr(kind, "__origin__", None) is np.ndarray:
        dtype, shape, data = value
        array: NDArray[Any] = np.frombuffer(bytearray(data), dtype).reshape(shape)
        return torch.from_numpy(array) if kind is torch.Tensor else array
    raise NotImplementedError(f"cannot decode a {kind}")


_encoder = msgspec.msgpack.Encoder(enc_hook=_encode)
_orders = msgspec.msgpack.Decoder(list[Order], dec_hook=_decode)
_reports: msgspec.msgpack.Decoder[ToClientOrReport] = msgspec.msgpack.Decoder(ToClientOrReport, dec_hook=_decode)
_status = msgspec.msgpack.Decoder(EngineStatus, dec_hook=_decode)


def pack_orders(orders: Sequence[Order]) -> bytes:
    """Return orders for an engine as one message."""
    return _encoder.encode(orders)


def unpack_orders(data: bytes) -> list[Order]:
    """Return the orders of a message."""
    return _orders.decode(data)


def pack_report(report: Report) -> bytes:
    """Return what an engine reports as a message."""
    return _encoder.encode(report)


def unpack_for_client(data: bytes) -> ToClientOrReport:
    """Return a message to a client."""
    return _reports.decode(data)


def unpack_status(data: bytes) -> EngineStatus:
    """Return the state of an engine."""
    return _status.decode(data)
