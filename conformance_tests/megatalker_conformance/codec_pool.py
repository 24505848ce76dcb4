"""Code sequences whose official full forward is known: schedules of any kind are checked at no further cost."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from megatalker.checkpoint.config import FRAME_SAMPLES
from megatalker_conformance.codes import CodeSource, OfficialCodec

TRUNKS = 2
TRUNK = 190
"""Frames."""
FORKS = (0, 1, 2, 5, 12, 30, 73, 110)
"""Frames at which sequences part from a trunk, so that a state and its copy can go different ways."""
BRANCH = 36
"""Frames from a fork on."""
OPENINGS = 23
"""Short sequences that differ from the first frame on; a prime number, so that no pattern of a width repeats them."""
OPENING = 6
"""Frames of each."""
REPEATED = 80
"""Frames of sequences that repeat themselves: past the 72 of the transformer's window."""


@dataclass(frozen=True)
class CodeSequence:
    """Codes, and what the official decoder makes of them."""

    codes: Tensor
    """``[frames, code groups]`` int64."""
    official: OfficialCodec

    def __len__(self) -> int:
        return len(self.codes)

    @cached_property
    def samples(self) -> Tensor:
        """``[frames * 1920]``."""
        return self.official.decode(self.codes)

    def between(self, start: int, end: int) -> Tensor:
        """Samples of these frames."""
        return self.samples[start * FRAME_SAMPLES : end * FRAME_SAMPLES]


class CodePool:
    """Trunks, and branches that begin as a trunk does: a state may go on along any that agrees with its past.

    Args:
        source: of codes.
        official: decodes each once.
        long: frames of the longest sequence.
    """

    def __init__(self, source: CodeSource, official: OfficialCodec, long: int) -> None:
        self.official = official
        codes: list[Tensor] = []
        for trunk in range(TRUNKS):
            whole = source.random(TRUNK, seed=100 * trunk)
            branches = (source.random(BRANCH, seed=100 * trunk + 1 + number) for number in range(len(FORKS)))
            codes += [whole, *(torch.cat((whole[:at], tail)) for at, tail in zip(FORKS, branches, strict=True))]
        self.drawn = len(codes)
        """Sequences that schedules are drawn from: the first ones."""
        self.trunks = range(0, self.drawn, 1 + len(FORKS))
        """The sequences of :data:`TRUNK` frames."""
        self.openings = range(len(codes), len(codes) + OPENINGS)
        """Short sequences of which no two begin alike."""
        codes += [source.random(OPENING, seed=1000 + number) for number in range(OPENINGS)]
        frames = source.random(3, seed=300)
        frames[0] = 0
        codes += [frames[[0]].repeat(REPEATED, 1), frames[[1]].repeat(REPEATED, 1)]
        codes += [frames[[1, 2]].repeat(REPEATED // 2, 1)]
        self.repeating = range(self.openings.stop, len(codes))
        """Zeros only, one frame again and again, and two frames by turns."""
        self.long = len(codes)
        """The longest sequence."""
        codes.append(source.random(long, seed=100 * TRUNKS))
        self.sequences = [CodeSequence(each, official) for each in codes]
        self.branches = [(at, 1 + number) for number, at in enumerate(FORKS)]
        """Branches of sequence 0: the frame at which each one parts from it, and the number of its sequence."""
        self._families = [number // (1 + len(FORKS)) if number < self.drawn else number for number in range(len(codes))]
        self._own = [*([TRUNK, *FORKS] * TRUNKS), *([OPENING] * OPENINGS), *([REPEATED] * 3), long]

    def agreeing(self, sequence: int, position: int) -> list[int]:
        """The sequences that begin with the first ``position`` frames of this one, and go on after them."""
        return [
            other
            for other, codes in enumerate(self.sequences)
            if other == sequence
            or (
                self._families[other] == self._families[sequence]
                and position <= min(self._own[other], self._own[sequence])
                and position < len(codes)
            )
        ]
