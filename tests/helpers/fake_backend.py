"""A talker and a codec whose output depends on every bit they are given: wrong feeding, order or replay changes it.

They keep the whole contract, cost microseconds, and can be told to fail in each way a backend can.
"""

import hashlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

import megatalker.plugins
from megatalker.checkpoint import Checkpoint
from megatalker.checkpoint.config import FRAME_SAMPLES
from megatalker.interfaces import (
    AVAILABLE,
    Availability,
    BackendSettings,
    Codec,
    CodecBackend,
    CodecCapabilities,
    CodecState,
    DecodeStep,
    Frame,
    LoadContext,
    StreamHandle,
    StreamRequest,
    TalkerBackend,
    TalkerCapabilities,
    TalkerDecoder,
)
from megatalker.plugins import BackendRegistry
from megatalker.prompt import PromptBuilder

CAPABILITIES = TalkerCapabilities(
    devices=frozenset({"cpu"}),
    dtypes=frozenset({torch.float32}),
    max_streams=8,
    max_positions=4096,
    batch=True,
)
CODEC_CAPABILITIES = CodecCapabilities(devices=frozenset({"cpu"}), dtypes=frozenset({torch.float32}))


@dataclass
class Behaviour:
    """Behaviour of a fake backend; the hooks run inside its calls and may raise or block."""

    frames: int | None = 30
    """Frames after which a stream chooses end-of-speech; ``None``: never."""
    capabilities: TalkerCapabilities = CAPABILITIES
    codec_capabilities: CodecCapabilities = CODEC_CAPABILITIES
    on_load: Callable[[], None] = lambda: None
    on_prefill: Callable[[StreamRequest], None] = lambda request: None
    on_decode: Callable[[int], None] = lambda call: None
    """Given the index of the call, from 0."""
    on_warmup: Callable[[], None] = lambda: None
    on_prepare: Callable[[], str | None] = lambda: None
    spoil: Callable[[int, list[Any]], Any] = lambda call, result: result
    """Given the index of the call and its result; returns what is handed out instead."""


@dataclass
class _FakeStream:
    digest: bytes
    history: list[int]
    seed: int


class FakeTalker(TalkerDecoder):
    def __init__(self, checkpoint: Checkpoint, behaviour: Behaviour, *, early: bool = False) -> None:
        behaviour.on_load()
        self.behaviour, self.early = behaviour, early
        self.config = checkpoint.config
        self.codebook = checkpoint.codec_config.codebook_size
        self.builder = PromptBuilder(checkpoint, torch.device("cpu"), torch.float32)
        self.streams: dict[StreamHandle, _FakeStream] = {}
        self.issued = 0
        self.prefills: list[StreamRequest] = []
        self.calls: list[list[StreamHandle]] = []
        self.warmed = 0
        self.closed = threading.Event()

    @property
    def capabilities(self) -> TalkerCapabilities:
        return self.behaviour.capabilities

    def prefill(self, requests: Sequence[StreamRequest]) -> list[StreamHandle]:
        handles: list[StreamHandle] = []
        try:
            for request in requests:
                self.behaviour.on_prefill(request)
                handles.append(self._prefill(request))
        except BaseException:
            for handle in handles:
                del self.streams[handle]
            del self.prefills[len(self.prefills) - len(handles) :]
            raise
        return handles

    def _prefill(self, request: StreamRequest) -> StreamHandle:
        self.prefills.append(request)
        digest = b""
        for row in request.embeds:
            digest = _mix(digest, row)
        self.issued += 1
        handle = StreamHandle(self.issued)
        seed = request.sampling.seed if request.sampling.do_sample else 0
        self.streams[handle] = _FakeStream(digest, list(request.history), seed)
        return handle

    def decode(self, steps: Sequence[DecodeStep], *, return_logits: bool = False) -> list[Frame]:
        call = len(self.calls)
        self.calls.append([step.stream for step in steps])
        self.behaviour.on_decode(call)
        frames = [self._frame(step) for step in steps]
        return self.behaviour.spoil(call, frames)

    def _frame(self, step: DecodeStep) -> Frame:
        stream = self.streams[step.stream]
        if self.behaviour.frames is not None and len(stream.history) >= self.behaviour.frames:
            return Frame(step.stream, None)
        noise = hashlib.sha256(stream.digest + repr((stream.seed, stream.history)).encode()).digest()
        limit = min(self.codebook, self.config.first_suppressed_id)
        codes = tuple(noise[group] * 7 % limit for group in range(self.config.num_code_groups))
        stream.digest = _mix(stream.digest, self.builder.frame_rows(torch.tensor([codes]))[0] + step.text)
        stream.history.append(codes[0])
        return Frame(step.stream, codes)

    def release(self, stream: StreamHandle) -> None:
        del self.streams[stream]

    def warmup(self) -> None:
        self.behaviour.on_warmup()
        self.warmed += 1

    def prepare(self) -> str | None:
        return self.behaviour.on_prepare()

    def close(self) -> None:
        self.closed.set()


class FakeState(CodecState):
    def __init__(self, digest: bytes = b"") -> None:
        self.digest = digest

    def copy(self) -> Self:
        return type(self)(self.digest)


class FakeCodec(Codec):
    """Noise that depends on all codes of its state so far."""

    def __init__(self, behaviour: Behaviour) -> None:
        behaviour.on_load()
        self.behaviour = behaviour
        self.calls: list[list[int]] = []
        """Frames of each state of each call."""
        self.states: list[Sequence[CodecState]] = []
        """States of each call."""
        self.closed = threading.Event()

    @property
    def capabilities(self) -> CodecCapabilities:
        return self.behaviour.codec_capabilities

    def open(self) -> FakeState:
        return FakeState()

    def decode(self, states: Sequence[CodecState], codes: Sequence[Tensor]) -> list[Tensor]:
        call = len(self.calls)
        self.calls.append([len(item) for item in codes])
        self.states.append(states)
        self.behaviour.on_decode(call)
        chunks: list[Any] = [self._decode(state, item) for state, item in zip(states, codes, strict=True)]
        return self.behaviour.spoil(call, chunks)

    def _decode(self, state: CodecState, codes: Tensor) -> Tensor:
        assert isinstance(state, FakeState)
        frames = []
        for row in codes:
            state.digest = _mix(state.digest, row)
            generator = np.random.default_rng(int.from_bytes(state.digest[:8], "little"))
            frames.append(generator.uniform(-0.5, 0.5, FRAME_SAMPLES).astype(np.float32))
        return torch.from_numpy(np.concatenate(frames))

    def warmup(self) -> None:
        self.behaviour.on_warmup()

    def close(self) -> None:
        self.closed.set()


def _mix(digest: bytes, row: Tensor) -> bytes:
    return hashlib.sha256(digest + row.contiguous().numpy().tobytes()).digest()


@dataclass
class Fakes:
    """A plug-in with fake backends by name, first listed ranks highest; remembers every instance it loads."""

    talkers: dict[str, Behaviour] = field(default_factory=lambda: {"fake": Behaviour()})
    codecs: dict[str, Behaviour] = field(default_factory=lambda: {"noise": Behaviour()})
    unavailable: dict[str, str] = field(default_factory=dict)
    loaded: dict[str, Any] = field(default_factory=dict)
    """Name -> the latest instance."""

    @property
    def registry(self) -> BackendRegistry:
        return BackendRegistry([("fakes", self)])

    @megatalker.plugins.hookimpl
    def megatalker_backends(self) -> list[TalkerBackend | CodecBackend]:
        specs: list[TalkerBackend | CodecBackend] = []
        for rank, name in enumerate(reversed(self.talkers)):
            able = self.talkers[name].capabilities
            specs.append(TalkerBackend(**self._common(name, rank), capabilities=able, load=self._talker(name)))
        for rank, name in enumerate(reversed(self.codecs)):
            able = self.codecs[name].codec_capabilities
            specs.append(CodecBackend(**self._common(name, rank), capabilities=able, load=self._codec(name)))
        return specs

    def _common(self, name: str, rank: int) -> dict[str, Any]:
        return {
            "name": name,
            "summary": "a fake",
            "api_version": 2,
            "probe": lambda checkpoint, device, own: Availability(self.unavailable.get(name)) or AVAILABLE,
            "rank": rank,
            "settings": BackendSettings,
        }

    def _talker(self, name: str) -> Callable[[Checkpoint, LoadContext], TalkerDecoder]:
        def load(checkpoint: Checkpoint, context: LoadContext) -> TalkerDecoder:
            self.loaded[name] = FakeTalker(checkpoint, self.talkers[name], early=context.early)
            return self.loaded[name]

        return load

    def _codec(self, name: str) -> Callable[[Checkpoint, LoadContext], Codec]:
        def load(checkpoint: Checkpoint, context: LoadContext) -> Codec:
            self.loaded[name] = FakeCodec(self.codecs[name])
            return self.loaded[name]

        return load


def ends_after(*frames: int | None) -> Fakes:
    """Fakes whose decoder streams end after these many frames each, in the order in which they begin; the last number
    counts for all that follow; ``None``: never.
    """
    spoken: dict[int, int] = {}

    def end(call: int, result: list[Frame]) -> list[Frame]:
        return [Frame(frame.stream, None) if is_over(frame.stream) else frame for frame in result]

    def is_over(stream: StreamHandle) -> bool:
        spoken[stream] = spoken.get(stream, 0) + 1
        most = frames[min(stream, len(frames)) - 1]  # streams are numbered from 1
        return most is not None and spoken[stream] > most

    return Fakes(talkers={"fake": Behaviour(frames=None, spoil=end)})
