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
        for position in range(prompt.known, prompt.rows):
            wanted = position // CHUNK + 1
            if rows == most_rows or (rows and chunks + wanted > most_chunks):
                if position > begin:
                    launch.append((prompt, range(begin, position)))
                yield launch
                launch, rows, chunks, begin = [], 0, 0, position
            rows, chunks = rows + 1, chunks + wanted
        launch.append((prompt, range(begin, prompt.rows)))
    if launch:
        yield launch
