"""Messages between an engine process and the process of its callers, in msgpack.

Each has ``id``, the utterance's number in its caller's process. All moments are seconds of the system's monotonic
clock, which the processes of a machine share.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import torch
from msgspec import Struct
from numpy.typing import NDArray

from megatalker.engine.outputs import BackendSwitch, Continuation, EngineMetrics, FinishReason, StreamEnd
from megatalker.engine.request import Request, TalkerLimits
from megatalker.errors import MegatalkerError, describe_error, named_error


class Segment(Struct, array_like=True, frozen=True):
    """A segment of a text that was given at once, tokenised."""

    text: str
    ids: list[int]


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
    """The listener has taken this many frames more."""

    id: int
    frames: int


class WarmUpOrder(Struct, array_like=True, frozen=True, tag=True):
    """Warm both backends up; a :class:`WarmedUp` answers."""


Order = Begin | FeedText | EndText | StopSpeech | Taken | WarmUpOrder


# ---- from the engine


class Failure(Struct, array_like=True, frozen=True):
    """An error on its way to another process."""

    kind: str
    text: str
    retry_after_s: float | None = None

    @classmethod
    def of(cls, error: BaseException) -> "Failure":
        """Return the message for this error."""
        if not isinstance(error, MegatalkerError):
            return cls(MegatalkerError.__name__, describe_error(error))
        return cls(type(error).__name__, str(error), getattr(error, "retry_after_s", None))

    def exception(self) -> MegatalkerError:
        """Return the error to raise in this process."""
        return named_error(self.kind, self.text, self.retry_after_s)


class Begun(Struct, array_like=True, frozen=True):
    """A segment whose speech has begun, for word times."""

    index: int
    """Segments that had begun before it."""
    letters_before: int
    begins_s: float
    text: str
    """The part of it that has come."""
    cut: bool


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


class EngineOpened(Struct, array_like=True, frozen=True, tag=True):
    """The engine has loaded its backends, or cannot."""

    engine: int
    failure: Failure | None


class WarmedUp(Struct, array_like=True, frozen=True, tag=True):
    """The end of a warm-up."""

    engine: int
    failure: Failure | None


class Logged(Struct, array_like=True, frozen=True, tag=True):
    """A line for the log, with its traceback."""

    engine: int
    logger: str
    level: int
    text: str


Report = SpeechOutput | EngineStatus | EngineOpened | WarmedUp | Logged


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
_reports: msgspec.msgpack.Decoder[Report] = msgspec.msgpack.Decoder(Report, dec_hook=_decode)


def pack_orders(orders: Sequence[Order]) -> bytes:
    """Return orders for an engine as one message."""
    return _encoder.encode(orders)


def unpack_orders(data: bytes) -> list[Order]:
    """Return the orders of a message."""
    return _orders.decode(data)


def pack_report(report: Report) -> bytes:
    """Return what an engine reports as a message."""
    return _encoder.encode(report)


def unpack_report(data: bytes) -> Report:
    """Return the report of a message."""
    return _reports.decode(data)
