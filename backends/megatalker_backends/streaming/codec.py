"""The codec: checks a call, groups its streams into steps, and advances their states once everything has succeeded."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from megatalker.checkpoint import Checkpoint
from megatalker.interfaces import Capabilities, Codec, CodecState, LoadContext
from megatalker_backends.codec_requests import OwnedState, check_codes, check_states
from megatalker_backends.streaming.graphs import GraphCapture
from megatalker_backends.streaming.model import StreamingDecoder
from megatalker_backends.streaming.precision import matmul_precision
from megatalker_backends.streaming.settings import StreamingSettings
from megatalker_backends.streaming.steps import FixedSteps, Steps, StepShape
from megatalker_backends.streaming.weights import Weights

CAPABILITIES = Capabilities(
    devices=frozenset({"cpu", "cuda"}),
    dtypes=frozenset({torch.float32}),
    batch=True,
)


@dataclass(eq=False)
class StreamingState(OwnedState):
    """The memory of one stream; see :class:`StateLayout`. A few hundred kB for the demo, 5 MB for published codecs."""

    codec: "StreamingCodec"
    memory: Tensor
    """``[state size]`` float32, on the codec's device; the decoder writes into it."""

    def copy(self) -> Self:
        return replace(self, memory=self.memory.clone())


class StreamingCodec(Codec):
    """Exact incremental decoding, always in float32, whatever the talker's type.

    Raises:
        CheckpointError: a tensor cannot be read.
    """

    def __init__(self, checkpoint: Checkpoint, context: LoadContext) -> None:
        settings = context.settings
        assert isinstance(settings, StreamingSettings)
        self._config = checkpoint.codec_config
        self._device = context.device
        self._tf32 = settings.tf32
        decoder = StreamingDecoder(self._config, Weights(checkpoint.codec_tensor, "decoder")).to(context.device)
        decode = torch.compile(decoder, dynamic=True, fullgraph=True) if settings.compile else decoder
        shape = StepShape(
            groups=self._config.num_quantizers,
            state_size=decoder.layout.size,
            max_streams=settings.max_batch,
            max_frames=settings.max_frames,
            device=context.device,
        )
        captured = settings.cuda_graphs and context.device.type == "cuda"
        self._steps = FixedSteps(decode, shape, GraphCapture()) if captured else Steps(decode, shape)

    @property
    def capabilities(self) -> Capabilities:
        return CAPABILITIES

    def open(self) -> StreamingState:
        return StreamingState(self, torch.zeros(self._steps.shape.state_size, device=self._device))

    @torch.inference_mode()
    def decode(self, states: Sequence[CodecState], codes: Sequence[Tensor]) -> list[Tensor]:
        owned = check_states(self, StreamingState, states)
        checked = check_codes(self._config, len(owned), codes)
        decoded: dict[int, tuple[Tensor, Tensor]] = {}
        with matmul_precision(self._device, tf32=self._tf32):
            for batch in self._batches(checked):
                memory = torch.stack([owned[index].memory for index in batch])
                samples, memory = self._run(torch.stack([checked[index] for index in batch]), memory)
                decoded.update(zip(batch, zip(samples, memory, strict=True), strict=True))
        for index, state in enumerate(owned):
            state.memory.copy_(decoded[index][1])
        return [decoded[index][0] for index in range(len(owned))]

    def warmup(self) -> None:
        with torch.inference_mode(), matmul_precision(self._device, tf32=self._tf32):
            self._steps.warmup()

    def close(self) -> None:
        del self._steps

    def _batches(self, codes: Sequence[Tensor]) -> Iterator[list[int]]:
        """Indices of streams that run together: equally many frames, at most ``max_batch`` streams."""
        members: dict[int, list[int]] = {}
        for index, fresh in enumerate(codes):
            members.setdefault(len(fresh), []).append(index)
        limit = self._steps.shape.max_streams
        for equal in members.values():
            for start in range(0, len(equal), limit):
                yield equal[start : start + limit]

    def _run(self, codes: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """All frames of one batch, in as many steps as it takes."""
        chunks = []
        sizes = self._steps.split(*codes.shape[:2])
        for part in torch.split(codes.to(self._device), sizes, dim=1):
            samples, memory = self._steps.run(part, memory)
            chunks.append(samples)
        return chunks[0] if len(chunks) == 1 else torch.cat(chunks, dim=1), memory
