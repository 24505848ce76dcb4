"""Runs the torch decoder at whatever size a call has: directly, or by steps of fixed sizes prepared beforehand."""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from megatalker_backends.streaming.sizes import next_size, sizes_up_to, split_into

logger = logging.getLogger(__name__)

Decode = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""``(codes [streams, frames, groups] int64, states [streams, size]) -> (samples, next states)``; no side effects."""
Results = tuple[Tensor, Tensor]
Prepare = Callable[[Callable[[], Results]], Callable[[], Results]]
"""Makes of work on fixed tensors a function that does it again; its results last until any such function runs."""


def announced(steps: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Steps (streams, frames) to warm up with, each told of in the log before it is made."""
    for done, (streams, frames) in enumerate(steps, 1):
        logger.info(
            "streaming: warming up %d of %d: %d frames of each of %d streams", done, len(steps), frames, streams
        )
        yield streams, frames


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
        kinds = [
            (streams, frames)
            for streams in {1, self.shape.max_streams}
            for frames in {1, *self.split(streams, self.shape.max_frames)}
        ]
        for streams, frames in announced(kinds):
            self.run(*self.shape.blank(streams, frames))


@dataclass(frozen=True, slots=True)
class FixedStep:
    """A step of one size that reads and writes the same tensors every time."""

    codes: Tensor
    states: Tensor
    run: Callable[[], Results]


class FixedSteps(Steps):
    """Prepares a step for each power of two of streams and of frames, and for each limit.

    Streams between two sizes are padded, frames between two sizes are split: decoding is exact for any chunking.
    """

    def __init__(self, decode: Decode, shape: StepShape, prepare: Prepare) -> None:
        super().__init__(decode, shape)
        self._prepare = prepare
        self._streams = sizes_up_to(shape.max_streams)
        self._frames = sizes_up_to(shape.max_frames)
        self._prepared: dict[tuple[int, int], FixedStep] = {}

    def split(self, streams: int, frames: int) -> list[int]:
        del streams  # a step exists for every number of them
        return split_into(self._frames, frames)

    def run(self, codes: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        streams, frames, _ = codes.shape
        step = self._step(next_size(self._streams, streams), frames)
        # Rows beyond `streams` keep what an earlier step left there: rows do not see each other.
        step.codes[:streams].copy_(codes)
        step.states[:streams].copy_(states)
        samples, next_states = step.run()
        return samples[:streams].clone(), next_states[:streams].clone()

    def warmup(self) -> None:
        # Largest first, so that the smaller steps fit into the memory that the largest one took.
        for streams, frames in announced(list(product(reversed(self._streams), reversed(self._frames)))):
            self.run(*self.shape.blank(streams, frames))

    def _step(self, streams: int, frames: int) -> FixedStep:
        if (streams, frames) not in self._prepared:
            codes, states = self.shape.blank(streams, frames)
            run = self._prepare(lambda: self._decode(codes, states))
            self._prepared[streams, frames] = FixedStep(codes, states, run)
        return self._prepared[streams, frames]
