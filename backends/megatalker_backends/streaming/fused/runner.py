"""Advances streams by kernels, whose memory stays where it is: a step is one upload, one graph and one copy."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
from torch import Tensor

from megatalker_backends.sizes import next_size, sizes_up_to, split_into
from megatalker_backends.streaming.fused.decoder import FusedDecoder
from megatalker_backends.streaming.steps import announced
from megatalker_kernels.codec.structures import MAX_FRAMES, TICKET_WORDS

MOST_FRAMES = 256
"""Frames of all streams of a step, at most: half as many take a tenth more time each with numbers of one float16, more
take more memory.
"""
Prepare = Callable[[Callable[[], Tensor]], Callable[[], Tensor]]
"""Turns work on fixed tensors into a function that repeats it; results last until any such function runs."""


@dataclass(slots=True)
class FusedMemory:
    """Memory of one stream. A step reads one context, writes the other, and appends to the cache."""

    contexts: Tensor
    """``[2, context size]`` float32."""
    cache: Tensor
    """``[cache size]`` float32: rings of keys and values."""
    turn: int = 0
    """The context to be read next."""
    frames: int = 0
    """Number of frames decoded until now."""

    @classmethod
    def blank(cls, decoder: FusedDecoder, device: torch.device) -> Self:
        """Return the memory of a stream before its first frame."""
        contexts = torch.zeros(2, decoder.context_size, device=device)
        return cls(contexts, torch.zeros(decoder.cache_size, device=device))

    def clone(self) -> Self:
        return replace(self, contexts=self.contexts.clone(), cache=self.cache.clone())

    def copy_(self, successor: Self) -> None:
        self.turn, self.frames = successor.turn, successor.frames

    def after(self, frames: int) -> Self:
        """Return the memory after a step of ``frames``."""
        return replace(self, turn=1 - self.turn, frames=self.frames + frames)

    def ticket(self) -> list[int]:
        """Return the words that tell the kernels where this memory lies."""
        first = self.contexts.data_ptr()
        second = first + self.contexts.nbytes // 2
        contexts = (second, first) if self.turn else (first, second)
        return [*contexts, self.cache.data_ptr(), self.frames]


class FusedRunner:
    """Prepares a step for each power of two of streams and of frames, and for each limit, up to :data:`MOST_FRAMES`.

    Args:
        decoder: on ``device``.
        device: where everything lies.
        groups: codes of a frame.
        max_streams: of one step.
        max_frames: of one step; no more than :data:`MAX_FRAMES` are used.
        prepare: see :data:`Prepare`.
    """

    chunk_invariant = False  # how a product's sums are dealt to blocks depends on how many rows it has

    def __init__(
        self,
        decoder: FusedDecoder,
        device: torch.device,
        *,
        groups: int,
        max_streams: int,
        max_frames: int,
        prepare: Prepare,
    ) -> None:
        self.max_streams = max_streams
        self._decoder = decoder
        self._device = device
        self._groups = groups
        self._prepare = prepare
        self._streams = sizes_up_to(max_streams)
        self._frames = sizes_up_to(min(max_frames, MAX_FRAMES))
        self._steps: dict[tuple[int, int], tuple[Tensor, Callable[[], Tensor]]] = {}
        self._spare = self.open()

    def open(self) -> FusedMemory:
        return FusedMemory.blank(self._decoder, self._device)

    def run(self, codes: Tensor, memories: Sequence[FusedMemory]) -> tuple[Tensor, Sequence[FusedMemory]]:
        streams = next_size(self._streams, len(codes))
        parts = torch.split(codes, split_into(self._frames_of(streams), codes.shape[1]), dim=1)
        steps = [self._step(streams, part.shape[1]) for part in parts]
        chunks = []
        for part, (words, replay) in zip(parts, steps, strict=True):
            words.copy_(words_of(part, self._padded(memories, len(words))), non_blocking=True)
            chunks.append(replay()[: len(codes)].clone())
            memories = [memory.after(part.shape[1]) for memory in memories]
        return chunks[0] if len(chunks) == 1 else torch.cat(chunks, dim=1), memories

    def warmup(self) -> None:
        # Largest first, so that the smaller steps fit into the memory that the largest one took.
        sizes = [(streams, frames) for streams in self._streams for frames in self._frames_of(streams)]
        for streams, frames in announced(sizes[::-1]):
            self._step(streams, frames)

    def _frames_of(self, streams: int) -> list[int]:
        """Return the numbers of frames for which steps of this many streams are prepared."""
        return [frames for frames in self._frames if frames == 1 or streams * frames <= MOST_FRAMES]

    def _step(self, streams: int, frames: int) -> tuple[Tensor, Callable[[], Tensor]]:
        """Return the words that a step reads, and the function that runs it."""
        if (streams, frames) not in self._steps:
            blank = torch.zeros(streams, frames, self._groups, dtype=torch.int64)
            words = words_of(blank, self._padded([], streams)).to(self._device)
            run = self._prepare(lambda: self._decoder.step(words, frames))
            self._steps[streams, frames] = words, run
        return self._steps[streams, frames]

    def _padded(self, memories: Sequence[FusedMemory], size: int) -> list[FusedMemory]:
        """Fill up to ``size`` streams with the spare memory, whose content is never used."""
        return [*memories, *[self._spare] * (size - len(memories))]


def words_of(codes: Tensor, memories: Sequence[FusedMemory]) -> Tensor:
    """Return a step's input: tickets of all streams, then codes ``[streams, frames, groups]`` of the first ones."""
    words = np.zeros((len(memories), TICKET_WORDS + codes[0].numel()), np.int64)  # torch takes twice as long for this
    words[:, :TICKET_WORDS] = [memory.ticket() for memory in memories]
    words[: len(codes), TICKET_WORDS:] = codes.numpy().reshape(len(codes), -1)
    return torch.from_numpy(words)
