"""Table of the slots that streams hold and of their lengths, for backends whose state is a fixed number of slots."""

import heapq
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic

from typing_extensions import TypeVar  # for the default

from megatalker.errors import CapacityError
from megatalker.interfaces import StreamHandle, StreamRequest

StateT = TypeVar("StateT", default=Any)
"""A backend's own data for a stream, besides its slot."""


@dataclass(slots=True, eq=False)
class TableEntry(Generic[StateT]):
    """One stream of a decoder."""

    handle: StreamHandle
    row: int
    """The lowest that was free."""
    positions: int
    """Prompt rows plus frames so far: the position of the next talker step."""
    frames: int
    """Frames so far, those of the request's history included: the index of the next one."""
    state: StateT = field(init=False)
    """The backend's own; not set before the backend sets it."""

    def advance(self) -> None:
        """The stream emitted a frame."""
        self.positions += 1
        self.frames += 1


class StreamTable(Generic[StateT]):
    """Streams of one decoder. It trusts what the checking shell has let through.

    Args:
        max_streams: rows ``0 .. max_streams - 1``.
    """

    def __init__(self, max_streams: int) -> None:
        self._free = list(range(max_streams))
        self._entries: dict[StreamHandle, TableEntry[StateT]] = {}
        self._issued = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[StreamHandle]:
        return iter(self._entries)

    def __getitem__(self, stream: StreamHandle) -> TableEntry[StateT]:
        return self._entries[stream]

    @contextmanager
    def admit(self, requests: Sequence[StreamRequest]) -> Iterator[list[TableEntry[StateT]]]:
        """Hold a row for each request: ``with table.admit(requests) as entries: ...run the prompts...``.

        When the block raises, all of them are free again.

        Raises:
            CapacityError: fewer rows are free. After the shell's checks: some were not given back by :meth:`release`.
        """
        if len(requests) > len(self._free):
            raise CapacityError(f"{len(requests)} rows are needed and {len(self._free)} are free; release a stream")
        entries = [self._enter(request) for request in requests]
        try:
            yield entries
        except BaseException:
            for entry in entries:
                self.release(entry.handle)
            raise

    def release(self, stream: StreamHandle) -> TableEntry[StateT]:
        """Free the stream's row; returns what stood here."""
        entry = self._entries.pop(stream)
        heapq.heappush(self._free, entry.row)
        return entry

    def _enter(self, request: StreamRequest) -> TableEntry[StateT]:
        self._issued += 1
        stream, history = StreamHandle(self._issued), len(request.history)
        entry = TableEntry[StateT](stream, heapq.heappop(self._free), len(request.embeds), history)
        self._entries[stream] = entry
        return entry
