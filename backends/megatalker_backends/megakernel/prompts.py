"""Rows of prompts, packed into launches."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

from megatalker_kernels.constants import CHUNK


@dataclass(frozen=True, slots=True, eq=False)
class Prompt:
    """What a stream begins with."""

    slot: int
    embeds: Tensor
    """``[rows, hidden]`` on the device."""
    known: int
    """How many rows' keys and values are in the stream's pages already; not all."""

    @property
    def rows(self) -> int:
        """All of them."""
        return self.embeds.shape[0]


def packed(prompts: Sequence[Prompt], most_rows: int, most_chunks: int) -> Iterator[list[tuple[Prompt, range]]]:
    """The positions of each launch, prompt after prompt, without gaps.

    Args:
        prompts: in the order in which they are taken.
        most_rows: of one launch.
        most_chunks: pieces of ``CHUNK`` positions that the rows of one launch attend to; a row may have more.
    """
    launch: list[tuple[Prompt, range]] = []
    rows = chunks = 0
    for prompt in prompts:
        begin = prompt.known
        while begin < prompt.rows:
            wanted = begin // CHUNK + 1  # by each position up to the next piece's first
            count = min(prompt.rows - begin, wanted * CHUNK - begin, most_rows - rows, (most_chunks - chunks) // wanted)
            if count <= 0 and rows:
                yield launch
                launch, rows, chunks = [], 0, 0
                continue
            count = max(count, 1)
            if launch and launch[-1][0] is prompt:
                launch[-1] = prompt, range(launch[-1][1].start, begin + count)
            else:
                launch.append((prompt, range(begin, begin + count)))
            begin, rows, chunks = begin + count, rows + count, chunks + count * wanted
    if launch:
        yield launch
