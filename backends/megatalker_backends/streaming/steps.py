"""Runs the decoder at whatever size a call has: directly, or by steps of fixed sizes that were prepared beforehand."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

Decode = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""``(codes [streams, frames, groups] int64, states [streams, size]) -> (samples, next states)``; no side effects."""


@dataclass(frozen=True, slots=True)
class StepShape:
    """Fixed sizes of a step, and its limits."""

    groups: int
    state_size: int
    max_streams: int
    max_frames: int
    device: torch.device

    def blank(self, streams: int, frames: int) -> tuple[Tensor, Tensor]:
        """Codes and states of the given size, to warm up with or to copy into."""
        codes = torch.zeros(streams, frames, self.groups, dtype=torch.int64, device=self.device)
        return codes, torch.zeros(streams, self.state_size, device=self.device)


class Steps:
    """Runs ``decode`` directly, a step being about ``max_frames`` frames of all its streams together.

    On a CPU larger steps cost more for each frame, since their intermediate results no longer fit into its caches.
    """

    def __init__(self, decode: Decode, shape: StepShape) -> None:
        self.shape = shape
        self._decode = decode

    def split(self, streams: int, frames: int) -> list[int]:
        """The frames that each of ``streams`` advances by in each step; together they make ``frames``."""
        size = max(1, self.shape.max_frames // streams)
        whole, rest = divmod(frames, size)
        return [size] * whole + [rest] * (rest > 0)

    def run(self, codes: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        """One step of at most ``max_streams`` streams and one size from :meth:`split`; returns new tensors."""
        return self._decode(codes, states)

    def warmup(self) -> None:
        """Run every kind of size that a compiler tells apart: one or many streams, one or many frames."""
        for streams in {1, self.shape.max_streams}:
            for frames in {1, *self.split(streams, self.shape.max_frames)}:
                self.run(*self.shape.blank(streams, frames))


class FixedStep(Protocol):
    """A step of one size, prepared beforehand, that reads and writes the same tensors every time."""

    codes: Tensor
    states: Tensor

    def run(self) -> tuple[Tensor, Tensor]:
        """Samples and next states, valid until any fixed step runs again."""


class FixedSteps(Steps):
    """Prepares a step for each power of two of streams and of frames, and for each limit.

    Streams between two sizes are padded, frames between two sizes are split: decoding is exact for any chunking.

    Args:
        decode: see :data:`Decode`.
        shape: sizes and limits.
        prepare: makes a :class:`FixedStep` of ``decode`` that reads the given codes and states.
    """

    def __init__(
        self, decode: Decode, shape: StepShape, prepare: Callable[[Decode, Tensor, Tensor], FixedStep]
    ) -> None:
        super().__init__(decode, shape)
        self._prepare = prepare
        self._streams = _sizes(shape.max_streams)
        self._frames = _sizes(shape.max_frames)
        self._prepared: dict[tuple[int, int], FixedStep] = {}

    def split(self, streams: int, frames: int) -> list[int]:
        del streams  # a step exists for every number of them
        parts: list[int] = []
        for size in reversed(self._frames):
            count, frames = divmod(frames, size)
            parts += [size] * count
        return parts

    def run(self, codes: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        streams, frames, _ = codes.shape
        size = (next(size for size in self._streams if size >= streams), frames)
        if size not in self._prepared:
            self._prepared[size] = self._prepare(self._decode, *self.shape.blank(*size))
        step = self._prepared[size]
        # Rows beyond `streams` keep what an earlier step left there: rows do not see each other.
        step.codes[:streams].copy_(codes)
        step.states[:streams].copy_(states)
        samples, next_states = step.run()
        return samples[:streams].clone(), next_states[:streams].clone()

    def warmup(self) -> None:
        # Largest first, so that the smaller steps fit into the memory that the largest one took.
        for streams in reversed(self._streams):
            for frames in reversed(self._frames):
                self.run(*self.shape.blank(streams, frames))


def _sizes(limit: int) -> list[int]:
    """Powers of two below ``limit``, and ``limit``."""
    return [*(1 << power for power in range((limit - 1).bit_length())), limit]
