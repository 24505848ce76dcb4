"""Advances the memory of streams: here by torch operations, in the package ``fused`` by kernels."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, Self

import torch
from torch import Tensor

from megatalker.checkpoint.config import CodecConfig
from megatalker.errors import SettingsError
from megatalker.plugins.graphs import GraphCapture
from megatalker.plugins.precision import exact_products
from megatalker_backends.compiler import CompilerError, compiler_errors
from megatalker_backends.streaming.model import StreamingDecoder
from megatalker_backends.streaming.products import lay_out
from megatalker_backends.streaming.settings import StreamingSettings
from megatalker_backends.streaming.steps import Decode, FixedSteps, Steps, StepShape

OPTIONS: dict[str, str | int | bool | Callable[..., Any]] = {"cpp_wrapper": True}
"""Options of the compiler. Its default wrapper in Python takes long compared to a single frame."""


class StreamMemory(Protocol):
    """Memory that one stream carries from call to call. A tensor is one."""

    def clone(self) -> Self:
        """An independent memory."""

    def copy_(self, successor: Self) -> object:
        """Become ``successor``, which :meth:`CodecRunner.run` made of this memory."""


class CodecRunner(Protocol):
    """Decodes codes that the codec has checked already."""

    max_streams: int
    """Streams of one call, at most."""
    chunk_invariant: bool
    """Whether a frame has the same bits however calls divide its stream."""

    def open(self) -> StreamMemory:
        """The memory of a stream before its first frame."""

    def run(self, codes: Tensor, memories: Sequence[Any]) -> tuple[Tensor, Sequence[StreamMemory]]:
        """Decode ``codes`` ``[streams, frames, groups]`` int64 into ``[streams, samples]`` float32.

        Returns:
            The samples, on the device, and a successor for each memory. Unless a memory becomes its successor
            (:meth:`StreamMemory.copy_`), its stream has not advanced.
        """

    def warmup(self) -> None:
        """Prepare steps of every size."""


class TorchRunner:
    """Runs the decoder as torch modules. A memory is a tensor ``[state size]``, see :class:`StateLayout`."""

    def __init__(
        self, decoder: StreamingDecoder, config: CodecConfig, settings: StreamingSettings, device: torch.device
    ) -> None:
        decoder = decoder.to(device)
        self.max_streams = settings.max_batch
        self._device = device
        shape = StepShape(
            groups=config.num_quantizers,
            state_size=decoder.layout.size,
            max_streams=settings.max_batch,
            max_frames=settings.max_frames,
            device=device,
        )
        if settings.cuda_graphs and device.type == "cuda":
            self._steps: Steps = FixedSteps(decoder, shape, GraphCapture(device))
        elif settings.compile:
            self._steps = Steps(_compiled(decoder), shape)
        else:
            if device.type == "cpu":
                lay_out(decoder)
            self._steps = Steps(decoder.frame_by_frame, shape)
        self.chunk_invariant = self._steps.chunk_invariant

    def open(self) -> Tensor:
        return torch.zeros(self._steps.shape.state_size, device=self._device)

    def run(self, codes: Tensor, memories: Sequence[Tensor]) -> tuple[Tensor, Sequence[Tensor]]:
        with exact_products(self._device):
            return self._steps.run(codes.to(self._device), memories)

    def warmup(self) -> None:
        with exact_products(self._device):
            self._steps.warmup()


def _compiled(decoder: StreamingDecoder) -> Decode:
    with _compiler_errors():
        compiled: Decode = torch.compile(decoder, dynamic=False, fullgraph=True, options=OPTIONS)

    def decode(codes: Tensor, states: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        chunks, successors = list[Tensor](), list[Tensor]()
        with _compiler_errors():
            for stream, begin in zip(codes, states, strict=True):
                state = begin[None]
                for frame in stream:
                    samples, state = compiled(frame.view(1, 1, -1), state)
                    chunks.append(samples)
                successors.append(state[0])
        return torch.cat(chunks).view(len(codes), -1), successors

    return decode


@contextmanager
def _compiler_errors() -> Iterator[None]:
    try:
        with compiler_errors():
            yield
    except CompilerError as error:
        raise cannot_compile(error) from error


def cannot_compile(reason: object) -> SettingsError:
    """The error where ``compile`` is asked for and cannot be had."""
    key = "codecs.streaming.compile"
    return SettingsError(f"{key} is true, but {reason}; mend that, or set {key} to false")
