"""The contract between the engine and its decode backends. Read this file first.

A backend implements :class:`TalkerDecoder` or :class:`Codec`, describes itself with a :class:`TalkerBackend` or
:class:`CodecBackend`, and returns that description from the ``megatalker_backends`` hook (:mod:`megatalker.plugins`).
The words are those of Qwen3-TTS: a *frame* is 16 codec codes, 80 ms, 1920 samples at 24 kHz.

Threads: the engine calls one instance from one thread at a time. Nothing here may start work at import time.
Tensors: inputs may live on any device, outputs live on the backend's device unless stated. The caller owns what it
passed; a backend that needs it after the call returns makes a copy.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NewType, Self

import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor

from megatalker.checkpoint import Checkpoint
from megatalker.errors import UnsupportedError
from megatalker.sampling import SamplingParams

API_VERSION = 1
"""Version of this contract. A plug-in states the version it was written for; another version is refused at
registration."""

StreamHandle = NewType("StreamHandle", int)
"""Names one stream inside one decoder. Never reused, so that a released handle is recognised as such."""


class BackendSettings(BaseModel):
    """Base class of a backend's own settings (the ``[backends.NAME]`` or ``[codecs.NAME]`` table); unknown keys are
    refused.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a backend can do, as data. Tests and the engine ask this, never a backend's name.

    ``None`` means "not known before loading" in a specification and "no limit of its own" in a loaded instance.
    """

    devices: frozenset[str]
    """Device types it runs on: ``cpu``, ``cuda``."""
    dtypes: frozenset[torch.dtype]
    """Weight and arithmetic types it accepts."""
    max_streams: int | None = None
    """Streams it can hold at the same time, and the largest batch of one ``decode`` call."""
    max_positions: int | None = None
    """Prompt rows plus frames of one stream. Codecs leave it ``None``."""
    batch: bool = False
    """One call for several streams costs clearly less than one call for each."""
    forced_codes: bool = False
    """``DecodeStep.forced`` and ``return_logits`` work: the backend can be checked by teacher forcing."""
    seeded_sampling: bool = True
    """Codes follow the sampling contract (:mod:`megatalker.sampling`); without it the backend is greedy only."""
    prefix_reuse: bool = False
    """Equal prompt heads are computed once, with bit-identical results."""
    encode: bool = False
    """Codecs: ``encode`` works."""
    chunk_invariant: bool = False
    """Codecs: a state's samples are bit-equal for any chunking of its codes and any other states in the same calls."""


@dataclass(frozen=True, slots=True)
class LoadContext:
    """Where and how to load: device, weight dtype, and the backend's own validated settings."""

    device: torch.device
    dtype: torch.dtype
    settings: BackendSettings
    """An instance of the specification's own ``settings`` class."""


# --- talker decoder ---


@dataclass(frozen=True, slots=True)
class StreamRequest:
    """Everything a decoder needs to start, or to continue, one stream.

    To continue a stream that another backend began, ``embeds`` already contains the rows of the emitted frames and
    ``history`` their first codes; the next frame has index ``len(history)``, so the sampling noise is the same.
    """

    embeds: Tensor
    """``[T, hidden_size]``, T >= 2, floating point: the talker's prefill rows (:mod:`megatalker.prompt`)."""
    sampling: SamplingParams = field(default_factory=SamplingParams)
    history: tuple[int, ...] = ()
    """Code 0 of each frame already emitted, oldest first."""


@dataclass(frozen=True, slots=True)
class DecodeStep:
    """One stream's share of a ``decode`` call."""

    stream: StreamHandle
    text: Tensor
    """``[hidden_size]``: the text row (or pad row) added to this frame's code embeddings before the talker step."""
    forced: Sequence[int] | None = None
    """Emit these codes (one per code group) instead of sampled ones. Needs ``capabilities.forced_codes``. The first one
    may be the end-of-speech id, which ends the stream."""


@dataclass(frozen=True, slots=True)
class FrameLogits:
    """Raw logits, before any sampling rule, from which one frame was (or would have been) chosen."""

    talker: Tensor
    """``[talker vocab]`` float32, for code 0."""
    predictor: Tensor
    """``[code groups - 1, predictor vocab]`` float32, for the other codes; ``[0, predictor vocab]`` when the stream
    ended."""


@dataclass(frozen=True, slots=True)
class Frame:
    """What one stream produced in one ``decode`` call."""

    stream: StreamHandle
    codes: tuple[int, ...] | None
    """One code per code group, or ``None`` when the stream chose end-of-speech instead of a frame."""
    logits: FrameLogits | None = None

    @property
    def ended(self) -> bool:
        """The stream ended by itself; it accepts no further step, only ``release``."""
        return self.codes is None


class TalkerDecoder(ABC):
    """Turns prompts into frames of codes.

    One frame = choose code 0 from the pending logits; if it is end-of-speech the stream ends; else run the code
    predictor for the other codes; then run the talker step (sum of the frame's code embeddings plus
    ``DecodeStep.text``)
    that yields the next pending logits. An implementation may return the codes before that talker step has finished.

    A stream's codes depend on its own request and steps only, never on its neighbours in a batch.
    """

    @property
    @abstractmethod
    def capabilities(self) -> Capabilities:
        """The abilities and limits of this loaded instance."""

    @abstractmethod
    def prefill(self, request: StreamRequest) -> StreamHandle:
        """Run the prompt and hold the first pending logits.

        Raises:
            InvalidRequestError: ``embeds`` has the wrong shape, is not finite, or a history id lies outside the
                vocabulary.
            CapacityError: every row is taken, or the prompt alone exceeds ``max_positions``. Nothing is held.
        """

    @abstractmethod
    def decode(self, steps: Sequence[DecodeStep], *, return_logits: bool = False) -> list[Frame]:
        """Advance each stream by one frame; results stand in the order of ``steps``.

        Raises (before any stream has advanced):
            InvalidRequestError: an unknown, released or ended stream; a stream named twice; a malformed text row
                or forced codes.
            CapacityError: more steps than ``max_streams``, or a stream has no position left.
            UnsupportedError: ``forced`` or ``return_logits`` without the capability.
        """

    def begin(self, steps: Sequence[DecodeStep]) -> Callable[[], list[Frame]]:
        """Start what :meth:`decode` does; the function returned waits for it and gives its frames.

        A decoder whose device works by itself starts there what it can, so that the caller has the time until then for
        other work. Nothing else is asked of the decoder before the function has been called, once. Default: nothing
        starts before that call.

        Raises: as :meth:`decode`, here or in the function returned.
        """
        return lambda: self.decode(steps)

    @abstractmethod
    def release(self, stream: StreamHandle) -> None:
        """Free the stream's rows at once, at any moment of its life. Releasing twice raises ``InvalidRequestError``."""

    def warmup(self) -> None:  # noqa: B027 - optional, with a default
        """Compile, capture and touch everything that the first request would otherwise wait for. Default: nothing."""

    def close(self) -> None:  # noqa: B027 - optional, with a default
        """Free device memory. The instance is not used afterwards. Default: nothing."""


# --- codec ---


class CodecState(ABC):
    """What a codec carries from one call to the next for one stream: explicit, small, copyable."""

    @abstractmethod
    def copy(self) -> Self:
        """An independent state: decoding with one never changes the other."""


class Codec(ABC):
    """Turns frames of codes into 24 kHz mono PCM, and PCM into codes.

    Exactness: the concatenated chunks of one state equal one full forward of the official decoder over all codes within
    1e-4 (float32), for any chunking and at any length.
    """

    @property
    @abstractmethod
    def capabilities(self) -> Capabilities:
        """The abilities and limits of this loaded instance."""

    @abstractmethod
    def open(self) -> CodecState:
        """A state at the start of speech."""

    @abstractmethod
    def decode(self, states: Sequence[CodecState], codes: Sequence[Tensor]) -> list[Tensor]:
        """Decode the next frames of each state, and advance it.

        Args:
            states: distinct states made by this codec.
            codes: for each state ``[frames, code groups]`` integer, frames >= 1; the counts may differ between states.

        Returns:
            For each state ``[frames * 1920]`` float32 samples within [-1, 1].

        Raises (before any state has advanced):
            InvalidRequestError: a wrong shape, an id outside the codebook, a state named twice or made by another
                codec.
        """

    def encode(self, audio: Tensor) -> Tensor:  # noqa: ARG002 - optional, with a default
        """Encode ``[samples]`` float32 mono PCM at 24 kHz to ``[frames, code groups]`` int64 codes (for cloning)."""
        raise UnsupportedError(
            f"{type(self).__name__} does not encode audio; choose a codec whose capabilities list encode"
        )

    def warmup(self) -> None:  # noqa: B027 - optional, with a default
        """As :meth:`TalkerDecoder.warmup`."""

    def close(self) -> None:  # noqa: B027 - optional, with a default
        """As :meth:`TalkerDecoder.close`."""


# --- specifications ---


@dataclass(frozen=True, slots=True)
class Availability:
    """A probe's answer: usable, or the reason why not and what would help."""

    reason: str | None = None

    @property
    def available(self) -> bool:
        return self.reason is None


AVAILABLE = Availability()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Backend:
    name: str
    """Lower-case identifier, unique among the installed backends of its kind."""
    summary: str
    """One line for ``megatalker backends``."""
    api_version: int
    """The :data:`API_VERSION` this plug-in was written for: a literal number, not the constant."""
    capabilities: Capabilities
    probe: Callable[[Checkpoint, torch.device, BackendSettings], Availability]
    """Whether the backend can run this checkpoint there, with these settings of its own. Cheap: reads configuration,
    loads nothing, never raises for a missing optional package."""
    rank: int = 0
    """``auto`` takes the available backend with the highest rank."""
    settings: type[BackendSettings] = BackendSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class TalkerBackend(_Backend):
    """Describes a talker decoder."""

    load: Callable[[Checkpoint, LoadContext], TalkerDecoder]


@dataclass(frozen=True, slots=True, kw_only=True)
class CodecBackend(_Backend):
    """Describes a codec."""

    load: Callable[[Checkpoint, LoadContext], Codec]
