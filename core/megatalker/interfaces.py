"""The contract between the engine and its decode backends. Read this file first.

A backend implements :class:`TalkerDecoder` or :class:`Codec`, describes itself with a :class:`TalkerBackend` or
:class:`CodecBackend`, and returns that description from the ``megatalker_backends`` hook (:mod:`megatalker.plugins`).
The words are those of Qwen3-TTS: a *frame* is 16 codec codes, 80 ms, 1920 samples at 24 kHz.

Checks: core wraps every loaded instance in a shell (:mod:`megatalker.plugins.checked`) that refuses what is malformed
before the backend is called, and finds fault with malformed results. A backend states facts and computes: where a
method says "checked", it need not look.
Threads: the engine calls one instance from one thread at a time, which need not always be the same. Nothing here may
start work at import time.
Instances share nothing: several may be loaded, and used by turns.
Tensors: inputs may live on any device, outputs live on the backend's device unless stated. The caller owns what it
passed; a backend that needs it after the call returns makes a copy.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Generic, Literal, NewType, Self

import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor
from typing_extensions import TypeVar  # for the default

from megatalker.checkpoint import Checkpoint
from megatalker.sampling import SamplingParams

API_VERSION = 2
"""Version of this contract. A plug-in states the version it was written for; another version is refused at
registration. CHANGELOG.md lists what each version changed."""

StreamHandle = NewType("StreamHandle", int)
"""Names one stream inside one decoder: positive, and larger than every handle before it, so that none is used twice."""


class BackendSettings(BaseModel):
    """Base class of a backend's own settings (the ``[backends.NAME]`` or ``[codecs.NAME]`` table); unknown keys are
    refused.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)


SettingsT = TypeVar("SettingsT", bound=BackendSettings, default=Any)
"""A backend's own settings. A backend that has none leaves it out."""


class Limit(Enum):
    """A stand-in for a number where there is none."""

    UNKNOWN = "not known before loading"
    """Appears in a specification only; a loaded instance knows its limits."""
    NONE = "no limit of its own"


@dataclass(frozen=True, slots=True)
class TalkerCapabilities:
    """Abilities of a talker backend, as data. Tests and the engine read this, never a backend's name."""

    devices: frozenset[str]
    """Device types it runs on: ``cpu``, ``cuda``, ``mps``."""
    dtypes: frozenset[torch.dtype]
    """Weight and arithmetic types it accepts."""
    max_streams: int | Limit = Limit.UNKNOWN
    """Streams it can hold at the same time, and the largest batch of one ``decode`` call."""
    max_positions: int | Limit = Limit.UNKNOWN
    """Prompt rows plus frames of one stream. ``Limit.NONE``: as many as the checkpoint has."""
    batch: bool = False
    """One call for several streams costs clearly less than one call for each."""
    forced_codes: bool = False
    """``DecodeStep.forced`` and ``return_logits`` work: the backend can be checked by teacher forcing."""
    seeded_sampling: bool = True
    """Codes follow the sampling contract (:mod:`megatalker.sampling`); without it the backend is greedy only."""
    prefix_reuse: bool = False
    """Equal prompt heads are computed once, with bit-identical results."""
    batch_invariant: bool = False
    """The bits of a stream's logits and codes do not depend on how many streams its calls name, on its place among them
    or on the others. Without it they may differ by rounding, as the arithmetic of ``dtypes`` allows."""
    exact_continuation: bool = False
    """A prefill that continues a stream leaves the bits that decoding its frames left, if the request holds ``codes``
    and ``text``. Without it they may differ by rounding."""
    weight_bits: int | None = None
    """The loaded instance has its layers' matrices rounded to this many bits (16, 8, 4), whatever ``dtypes`` says: its
    logits are held to bounds of their own, its codes are not those of ``reference``. ``None``: they are in the type
    that was asked for."""


@dataclass(frozen=True, slots=True)
class CodecCapabilities:
    """Abilities of a codec; see :class:`TalkerCapabilities`."""

    devices: frozenset[str]
    dtypes: frozenset[torch.dtype]
    max_streams: int | Limit = Limit.NONE
    """States it takes in one ``decode`` call."""
    encode: bool = False
    """``encode`` works."""
    chunk_invariant: bool = False
    """A state's samples are bit-equal for any chunking of its codes and any other states in the same calls."""
    product_bits: Literal[16] | None = None
    """Bits of numbers that are rounded before they are multiplied; held to the official decoder's error in float16."""


@dataclass(frozen=True, slots=True)
class LoadContext(Generic[SettingsT]):
    """The context to load in: device, weight dtype, and the backend's own validated settings."""

    device: torch.device
    dtype: torch.dtype
    settings: SettingsT
    """An instance of the specification's own ``settings`` class."""
    max_streams: int = 8
    """Streams that the engine runs at the same time: a talker holds as many, or as many as it can, where its own
    settings say nothing else."""
    early: bool = False
    """Warm-up may end when one stream is served well, and leave the rest to :meth:`TalkerDecoder.prepare`."""
    encoder_only: bool = False
    """Only :meth:`Codec.encode` will be called: a codec may leave out what decoding needs."""


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
    codes: Tensor | None = None
    """``[len(history), code groups]`` int64 on the CPU: all codes of these frames, for a backend that adds their
    embeddings up as its ``decode`` does. ``None``: only ``history`` is known."""
    text: Tensor | None = None
    """``[len(history), hidden_size]``: the text rows of these frames, where ``codes`` is given."""


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
    """The result of one ``decode`` call for one stream."""

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
    ``DecodeStep.text``) that yields the next pending logits. An implementation may hand out the codes before that
    talker step has finished. A stream's codes depend on its own request and steps only, never on its neighbours in a
    batch.

    The model. :mod:`megatalker.checkpoint.shapes` lists every tensor (``Checkpoint.tensor`` reads one), and
    ``Checkpoint.config`` the sizes. Talker and code predictor are both stacks of Qwen3 layers: RMS norm before
    attention and before the MLP, RMS norm on each query and key head, rotary positions (first half of a head with the
    second), grouped queries, ``down(silu(gate) * up)``, RMS norm at the end. With ``h`` the talker's last output row:

    * ``talker.codec_head`` of ``h`` gives the logits of code 0.
    * The predictor begins anew with each frame. Its row 0 is ``h``; its row ``k`` is the embedding of code ``k - 1``,
      and ``talker.code_predictor.lm_head.{k - 1}`` of its output there gives the logits of code ``k``. Where the config
      says ``projects_predictor``, every row goes through ``talker.code_predictor.small_to_mtp_projection`` first.
    * Code 0 is embedded by ``talker.model.codec_embedding``, code ``k`` by
      ``talker.code_predictor.model.codec_embedding.{k - 1}``: one set of tables for the predictor and for the sum that
      the talker is fed.

    :class:`megatalker.sampling.SamplerRows` chooses codes in torch for many streams;
    :mod:`megatalker.sampling.numpy_sampler` is the same rule for one choice in NumPy.
    :class:`megatalker.plugins.stream_table.StreamTable` keeps rows for streams.
    """

    @property
    @abstractmethod
    def capabilities(self) -> TalkerCapabilities:
        """The abilities and limits of this loaded instance. Asked once."""

    @abstractmethod
    def prefill(self, requests: Sequence[StreamRequest]) -> list[StreamHandle]:
        """Run each prompt and hold its first pending logits; a backend that cannot batch does them in turn.

        All or nothing: when this raises, nothing is held. Checked: shapes, finite values (those on an accelerator are
        taken on trust), history ids, ``max_streams``, ``max_positions``.

        Returns:
            A handle for each request, in their order.

        Raises:
            CapacityError: something else than streams and positions is used up for now.
        """

    @abstractmethod
    def decode(
        self, steps: Sequence[DecodeStep], *, return_logits: bool = False
    ) -> "list[Frame] | Callable[[], list[Frame]]":
        """Advance each stream by one frame; results stand in the order of ``steps``.

        Where a device works by itself, start it and return a function that waits for the frames, so that the caller has
        the time until then for other work. It is called once, before anything else is asked of the decoder, and
        ``steps`` stay as they are until it has returned.

        Checked: at least one step; streams that are held, have not ended and have a position left, each named once;
        text rows; forced codes; ``forced`` and ``return_logits`` with the capability only.

        Raises (before any stream has advanced):
            CapacityError: as :meth:`prefill`.
        """

    @abstractmethod
    def release(self, stream: StreamHandle) -> None:
        """Free the stream's rows at once, at any moment of its life. Checked: it is held."""

    def warmup(self) -> None:  # noqa: B027 - optional, with a default
        """Compile, capture and touch everything that the first request would otherwise wait for. Default: nothing.

        Results are the same without it.
        """

    def prepare(self) -> str | None:
        """Take into use a piece of what an early warm-up (``LoadContext``) left for later, once something else has
        prepared it. Asked now and then after warm-up, between other calls, where a pause of half a second harms nobody;
        results are the same before and after.

        Returns:
            What is still being prepared, such as ``frames of 4 streams``, for log and health; ``None``: nothing, and it
            is not asked again. Default: ``None``.

        Raises:
            Exception: it cannot be prepared. The decoder goes on without, and is not asked again.
        """
        return None

    def close(self) -> None:  # noqa: B027 - optional, with a default
        """Free device memory. The instance is not used afterwards. Default: nothing."""


# --- codec ---


class CodecState(ABC):
    """The state of one stream that a codec carries from one call to the next: explicit, small, copyable."""

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
    def capabilities(self) -> CodecCapabilities:
        """The abilities and limits of this loaded instance. Asked once."""

    @abstractmethod
    def open(self) -> CodecState:
        """A state at the start of speech. Once nobody holds it, nothing of it stays."""

    @abstractmethod
    def decode(self, states: Sequence[CodecState], codes: Sequence[Tensor]) -> list[Tensor]:
        """Decode the next frames of each state, and advance it. When this raises, no state has advanced.

        Args:
            states: at least one, made by this codec's :meth:`open` or by ``copy``. Checked: distinct, at most
                ``max_streams``.
            codes: for each state ``[frames, code groups]`` int64 on the CPU, frames >= 1; the counts may differ between
                states. Checked: shapes, and every code inside the codebook.

        Returns:
            For each state ``[frames * 1920]`` float32 samples within [-1, 1].
        """

    def encode(self, audio: Tensor) -> Tensor:
        """Encode mono PCM at 24 kHz to codes, for cloning. Called where the capabilities list ``encode``.

        Args:
            audio: ``[samples]`` float32 on the CPU. Checked: at least one sample, finite.

        Returns:
            ``[frames, code groups]`` int64.
        """
        raise NotImplementedError(f"the capabilities of {type(self).__name__} list encode, which it does not implement")

    def warmup(self) -> None:  # noqa: B027 - optional, with a default
        """Prepare for the first call; see :meth:`TalkerDecoder.warmup`."""

    def close(self) -> None:  # noqa: B027 - optional, with a default
        """Free all resources; see :meth:`TalkerDecoder.close`."""


# --- specifications ---


@dataclass(frozen=True, slots=True)
class Availability:
    """A probe's answer: usable, or the reason why not and what would help."""

    reason: str | None = None

    @property
    def available(self) -> bool:
        return self.reason is None


AVAILABLE = Availability()


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """Memory of the device that a backend takes, by arithmetic over shapes: nothing is loaded for it."""

    load_bytes: int
    """Taken at load: weights, tables and what does not grow with speech."""
    stream_bytes: int
    """Taken by each stream that has spoken for a minute, in addition."""
    weights: str = ""
    """Number format of the weights, such as ``int8``."""


MINUTE_ROWS = 814
"""Positions of a stream that has spoken for a minute: 750 frames, and a prompt of 64 rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Backend(Generic[SettingsT]):
    name: str
    """Lower-case identifier, unique among the installed backends of its kind."""
    summary: str
    """One line for ``megatalker backends``."""
    api_version: int
    """The :data:`API_VERSION` this plug-in was written for: a literal number, not the constant."""
    probe: Callable[[Checkpoint, torch.device, SettingsT], Availability] = lambda *_: AVAILABLE
    """Whether the backend can run this checkpoint there, with these settings of its own. Cheap: reads configuration,
    loads nothing, never raises for a missing optional package. Default: it can."""
    memory: Callable[[Checkpoint, LoadContext[SettingsT]], MemoryNeed | None] = lambda *_: None
    """Memory that loading with this context would take on its device, which need not be here; nothing is loaded for it.
    An engine whose talker cannot have as much is refused before it loads. ``None``: unknown, which is the default."""
    rank: int = 0
    """``auto`` takes the available backend with the highest rank."""
    settings: type[SettingsT] = BackendSettings  # type: ignore[assignment]  # of a backend without settings


@dataclass(frozen=True, slots=True, kw_only=True)
class TalkerBackend(_Backend[SettingsT]):
    """Describes a talker decoder."""

    capabilities: TalkerCapabilities
    load: Callable[[Checkpoint, LoadContext[SettingsT]], TalkerDecoder]


@dataclass(frozen=True, slots=True, kw_only=True)
class CodecBackend(_Backend[SettingsT]):
    """Describes a codec."""

    capabilities: CodecCapabilities
    load: Callable[[Checkpoint, LoadContext[SettingsT]], Codec]
