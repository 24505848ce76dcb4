"""The codec: groups its streams into steps, and advances their states once everything has succeeded."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

from megatalker.checkpoint import Checkpoint
from megatalker.errors import SettingsError
from megatalker.interfaces import Codec, CodecCapabilities, CodecState, LoadContext
from megatalker_backends.compiler import missing_compiler
from megatalker_backends.streaming.encoder.encoder import CodecEncoder
from megatalker_backends.streaming.fused.choice import fused_runner, wants_kernels
from megatalker_backends.streaming.model import StreamingDecoder
from megatalker_backends.streaming.runner import CodecRunner, StreamMemory, TorchRunner, cannot_compile
from megatalker_backends.streaming.settings import StreamingSettings
from megatalker_backends.streaming.weights import Weights

CAPABILITIES = CodecCapabilities(
    devices=frozenset({"cpu", "cuda", "mps"}),
    dtypes=frozenset({torch.float32}),
    encode=True,
)


@dataclass(eq=False)
class StreamingState(CodecState):
    """The memory of one stream. A few hundred kB for the demo, 6 MB for published codecs."""

    memory: StreamMemory

    def copy(self) -> Self:
        return replace(self, memory=self.memory.clone())


class StreamingCodec(Codec):
    """Exact incremental decoding, always in float32, whatever the talker's type. The encoder is loaded when it is first
    needed.

    Raises:
        CheckpointError: a tensor cannot be read.
        SettingsError: a setting asks for what cannot be had here.
        BackendUnavailableError: the kernels cannot be compiled or loaded.
    """

    def __init__(self, checkpoint: Checkpoint, context: LoadContext[StreamingSettings]) -> None:
        self._checkpoint, self._context = checkpoint, context
        _ = self._encoder if context.encoder_only else self._runner

    @cached_property
    def _runner(self) -> CodecRunner:
        checkpoint, settings, device = self._checkpoint, self._context.settings, self._context.device
        if settings.compile and device.type == "cuda":
            raise SettingsError("codecs.streaming.compile is for the CPU; on CUDA set codecs.streaming.kernels to 'on'")
        missing = missing_compiler(device) if settings.compile else None
        if missing is not None:
            raise cannot_compile(missing)
        config = checkpoint.codec_config
        fused = wants_kernels(config, settings, device)
        if settings.precision == "fast" and not fused:
            raise SettingsError("codecs.streaming.precision 'fast' needs the CUDA kernels, which do not run here")
        decoder = StreamingDecoder(config, Weights(checkpoint.codec_tensor, "decoder"))
        return (fused_runner if fused else TorchRunner)(decoder, config, settings, device)

    @cached_property
    def _encoder(self) -> CodecEncoder:
        return CodecEncoder(self._checkpoint, self._context.device)

    @property
    def capabilities(self) -> CodecCapabilities:
        if self._context.encoder_only:
            return CAPABILITIES
        found = replace(CAPABILITIES, chunk_invariant=self._runner.chunk_invariant)
        return replace(found, product_bits=16) if self._context.settings.precision == "fast" else found

    def open(self) -> StreamingState:
        return StreamingState(self._runner.open())

    @torch.inference_mode()
    def decode(self, states: Sequence[CodecState], codes: Sequence[Tensor]) -> list[Tensor]:
        memories = [_memory(state) for state in states]
        decoded: dict[int, tuple[Tensor, StreamMemory]] = {}
        for batch in self._batches(codes):
            here = [memories[index] for index in batch]
            samples, successors = self._runner.run(torch.stack([codes[index] for index in batch]), here)
            decoded.update(zip(batch, zip(samples, successors, strict=True), strict=True))
        for index, memory in enumerate(memories):
            memory.copy_(decoded[index][1])
        return [decoded[index][0] for index in range(len(states))]

    def encode(self, audio: Tensor) -> Tensor:
        return self._encoder.encode(audio)

    @torch.inference_mode()
    def warmup(self) -> None:
        self._runner.warmup()

    def close(self) -> None:
        for part in ("_runner", "_encoder"):
            self.__dict__.pop(part, None)

    def _batches(self, codes: Sequence[Tensor]) -> Iterator[list[int]]:
        """Indices of streams that run together: equally many frames, at most ``max_batch`` streams."""
        members: dict[int, list[int]] = {}
        for index, fresh in enumerate(codes):
            members.setdefault(len(fresh), []).append(index)
        limit = self._runner.max_streams
        for equal in members.values():
            for start in range(0, len(equal), limit):
                yield equal[start : start + limit]


def _memory(state: CodecState) -> StreamMemory:
    assert isinstance(state, StreamingState), "the shell lets no other codec's states through"
    return state.memory
