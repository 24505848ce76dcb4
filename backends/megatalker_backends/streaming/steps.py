"""Runs the torch decoder on calls of any size, or by steps of a few sizes prepared beforehand."""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor

from megatalker_backends.sizes import next_size, sizes_up_to, split_into

logger = logging.getLogger(__name__)

Decode = Callable[[Tensor, Any], tuple[Tensor, Any]]
"""``(codes [streams, frames, groups] int64, states) -> (samples, next states)``; no side effects. States are a list of
``[size]`` for :class:`Steps`, and one tensor ``[streams, size]`` for :class:`FixedSteps`."""
Results = tuple[Tensor, Tensor]
Prepare = Callable[[Callable[[], Results]], Callable[[], Results]]
"""Turns work on fixed tensors into a function that repeats it; results last until any such function runs."""


def announced(steps: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Steps (streams, frames) to warm up with, each announced in the log before it runs."""
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
    """Runs ``decode``, whose bits do not depend on chunking and on the other streams."""

    chunk_invariant = True

    def __init__(self, decode: Decode, shape: StepShape) -> None:
        self.shape = shape
        self._decode = decode

    def run(self, codes: Tensor, states: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Decode ``codes`` ``[streams, frames, groups]`` of at most ``max_streams`` streams from ``[size]`` each.

        Returns:
            ``[streams, samples]`` and the next states, as new tensors.
        """
        return self._decode(codes, states)

    def warmup(self) -> None:
        """Run every size that is prepared when it is first met."""
        for streams, frames in announced([(1, 1)]):
            codes, states = self.shape.blank(streams, frames)
            self.run(codes, list(states))


@dataclass(frozen=True, slots=True)
class FixedStep:
    """A step of one size that reads and writes the same tensors every time."""

    codes: Tensor
    states: Tensor
    run: Callable[[], Results]


class FixedSteps(Steps):
    """Prepares a step for each power of two of streams and of frames, and for each limit.

    Streams between two sizes are padded, frames between two sizes are split: decoding is exact for any chunking, but
    its last bits depend on the step's size.
    """

    chunk_invariant = False

    def __init__(self, decode: Decode, shape: StepShape, prepare: Prepare) -> None:
        super().__init__(decode, shape)
        self._prepare = prepare
        self._streams = sizes_up_to(shape.max_streams)
        self._frames = sizes_up_to(shape.max_frames)
        self._prepared: dict[tuple[int, int], FixedStep] = {}

    def split(self, frames: int) -> list[int]:
        """The frames of each step; together they make ``frames``."""
        return split_into(self._frames, frames)

    def run(self, codes: Tensor, states: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        chunks, batch = [], torch.stack(list(states))
        for part in torch.split(codes, self.split(codes.shape[1]), dim=1):
            samples, batch = self._run_step(part, batch)
            chunks.append(samples)
        return torch.cat(chunks, dim=1), list(batch)

    def warmup(self) -> None:
        # Largest first, so that the smaller steps fit into the memory that the largest one took.
        for streams, frames in announced(list(product(reversed(self._streams), reversed(self._frames)))):
            self._run_step(*self.shape.blank(streams, frames))

    def _run_step(self, codes: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        streams, frames, _ = codes.shape
        step = self._step(next_size(self._streams, streams), frames)
        # Rows beyond `streams` keep what an earlier step left there: rows do not see each other.
        step.codes[:streams].copy_(codes)
        step.states[:streams].copy_(states)
        samples, next_states = step.run()
        return samples[:streams].clone(), next_states[:streams].clone()

    def _step(self, streams: int, frames: int) -> FixedStep:
        if (streams, frames) not in self._prepared:
            codes, states = self.shape.blank(streams, frames)
            run = self._prepare(lambda: self._decode(codes, states))
            self._prepared[streams, frames] = FixedStep(codes, states, run)
        return self._prepared[streams, frames]
