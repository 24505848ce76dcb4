"""Allocation of pages of keys and values to streams."""

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from megatalker.errors import CapacityError
from megatalker_kernels.constants import PAGE


@dataclass(frozen=True, slots=True)
class PageGrant:
    """Pages that a slot has received, in the order of its positions."""

    slot: int
    first_chunk: int
    """Index of the first of these pages among the slot's pages."""
    pages: tuple[int, ...]


class PagePool:
    """Pages ``1 .. limit`` of 64 positions, shared by streams; each takes them as it grows. Page 0 is not the pool's.

    Args:
        pages: how many there are at first.
        limit: how many there may be.
        enlarge: called with a larger number of pages before one of them is handed out. When it raises, the pool
            stays as it was, and the request receives none.
    """

    def __init__(self, pages: int, limit: int, enlarge: Callable[[int], None]) -> None:
        self._pages = pages
        self._limit = limit
        self._enlarge = enlarge
        self._unused = list(range(1, pages + 1))
        self._held: dict[int, list[int]] = {}

    @property
    def free(self) -> int:
        """Number of pages that no slot holds, including pages that the pool may still add."""
        return len(self._unused) + self._limit - self._pages

    def held(self, slot: int) -> Sequence[int]:
        """The pages of a slot, in the order of its positions."""
        return self._held[slot]

    @contextmanager
    def admit(self, positions: Mapping[int, int]) -> Iterator[list[PageGrant]]:
        """Give pages to new slots (keys) for this many positions (values); free them again if the block raises.

        Raises:
            CapacityError: there are not enough for all.
        """
        self._provide(sum(map(_pages_of, positions.values())))
        self._held |= {slot: [] for slot in positions}
        try:
            yield [self._extend(slot, count) for slot, count in positions.items()]
        except BaseException:
            for slot in positions:
                self.release(slot)
            raise

    def grow(self, positions: Mapping[int, int]) -> list[PageGrant]:
        """Give each slot (key) the pages that it lacks for this many positions (value).

        Raises:
            CapacityError: there are not enough for all; no slot has received any.
        """
        missing = {slot: _pages_of(count) - len(self._held[slot]) for slot, count in positions.items()}
        self._provide(sum(missing.values()))
        return [self._extend(slot, positions[slot]) for slot, pages in missing.items() if pages > 0]

    def release(self, slot: int) -> None:
        """Free all pages of a slot."""
        for page in self._held.pop(slot):
            heapq.heappush(self._unused, page)

    def _provide(self, wanted: int) -> None:
        """Enlarge the pool until this many pages are unused: to twice its size, or further if that is not enough."""
        if wanted > self.free:
            raise CapacityError(
                f"{wanted} more pages of {PAGE} positions are needed and {self.free} of {self._limit} are free; "
                "release a stream, or raise backends.megakernel.pages"
            )
        lacking = wanted - len(self._unused)
        if lacking > 0:
            pages = min(self._limit, max(2 * self._pages, self._pages + lacking))
            self._enlarge(pages)
            self._unused += range(self._pages + 1, pages + 1)  # the largest, at the end: the list is still a heap
            self._pages = pages

    def _extend(self, slot: int, positions: int) -> PageGrant:
        held = self._held[slot]
        fresh = tuple(heapq.heappop(self._unused) for _ in range(len(held), _pages_of(positions)))
        first = len(held)
        held += fresh
        return PageGrant(slot, first, fresh)


def _pages_of(positions: int) -> int:
    return -(-positions // PAGE)
