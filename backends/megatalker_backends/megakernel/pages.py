"""Which stream holds which pages of keys and values."""

import heapq
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from megatalker.errors import CapacityError
from megatalker_kernels.shapes import PAGE


@dataclass(frozen=True, slots=True)
class Grant:
    """Pages that a slot has received, in the order of its positions."""

    slot: int
    first_chunk: int
    """Which of the slot's pages the first of them is."""
    pages: tuple[int, ...]


class PagePool:
    """Pages ``0 .. pages - 1`` of 64 positions, shared by streams; each takes them as it grows.

    Args:
        pages: how many there are.
    """

    def __init__(self, pages: int) -> None:
        self._pages = pages
        self._free = list(range(pages))
        self._held: dict[int, list[int]] = {}

    @property
    def free(self) -> int:
        """Pages that nobody holds."""
        return len(self._free)

    def held(self, slot: int) -> Sequence[int]:
        """The pages of a slot, in the order of its positions."""
        return self._held[slot]

    @contextmanager
    def admit(self, slot: int, positions: int) -> Iterator[Grant]:
        """Pages for a stream that begins with this many positions; they are free again when the block raises.

        Raises:
            CapacityError: there are not enough.
        """
        self._check(-(-positions // PAGE))
        self._held[slot] = []
        try:
            yield self._extend(slot, positions)
        except BaseException:
            self.release(slot)
            raise

    def grow(self, positions: Mapping[int, int]) -> list[Grant]:
        """Give each slot (key) the pages that it lacks for this many positions (value).

        Raises:
            CapacityError: there are not enough for all; nobody has received any.
        """
        missing = {slot: -(-count // PAGE) - len(self._held[slot]) for slot, count in positions.items()}
        self._check(sum(missing.values()))
        return [self._extend(slot, positions[slot]) for slot, pages in missing.items() if pages > 0]

    def release(self, slot: int) -> None:
        """Free all pages of a slot."""
        for page in self._held.pop(slot):
            heapq.heappush(self._free, page)

    def _check(self, wanted: int) -> None:
        if wanted > len(self._free):
            raise CapacityError(
                f"{wanted} more pages of {PAGE} positions are needed and {len(self._free)} of {self._pages} are free; "
                "release a stream, or raise backends.megakernel.pages"
            )

    def _extend(self, slot: int, positions: int) -> Grant:
        held = self._held[slot]
        fresh = tuple(heapq.heappop(self._free) for _ in range(len(held), -(-positions // PAGE)))
        first = len(held)
        held += fresh
        return Grant(slot, first, fresh)
