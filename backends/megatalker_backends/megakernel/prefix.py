"""Keys and values of prompt heads, remembered for prompts that begin alike.

What a row leaves behind depends on it and on those before it only. The unit is 8 rows of a prompt, called a pass, known
by a digest of all rows up to its end, and a copy stands for a computation bit for bit.
"""

from collections import OrderedDict
from collections.abc import Sequence
from hashlib import sha256
from itertools import accumulate

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from megatalker_kernels.constants import PAGE, ROWS
from megatalker_kernels.transfer import send
from megatalker_kernels.workspace import Workspace

PASSES_OF_PAGE = PAGE // ROWS
LEAST_ROWS = 6 * ROWS
"""Shortest prompt that is remembered, in rows. Computing fewer rows takes less time than waiting for a busy device
to read them.
"""


class PrefixCache:
    """Cache of the most recently used passes of prompts.

    Args:
        space: whose pages are copied from and to.
        rows: how many prompt rows are remembered.
    """

    def __init__(self, space: Workspace, rows: int) -> None:
        layers, _, two, heads, _, dim = space.talker_kv.shape
        self._space = space
        self._store = space.talker_kv.new_empty(rows // ROWS, layers, two, heads, ROWS, dim)
        self._places: OrderedDict[bytes, int] = OrderedDict()
        self._unused = list(range(rows // ROWS))

    def keys(self, prompts: Sequence[Tensor]) -> list[list[bytes]]:
        """Return, for each of these prompts ``[rows, hidden]``, the names of all passes except the last, which also
        yields logits. A short prompt has none.
        """
        lengths = list(map(len, prompts))
        if not len(self._store) or max(lengths) < LEAST_ROWS:
            return [[] for _ in lengths]
        data = torch.cat(list(prompts)).view(torch.uint8).cpu().numpy()  # one wait for all
        kind = str(prompts[0].dtype).encode()
        return [
            _names(kind, data[end - length : end]) if length >= LEAST_ROWS else []
            for length, end in zip(lengths, accumulate(lengths), strict=True)
        ]

    def restore(self, prompts: Sequence[tuple[Sequence[bytes], Sequence[int]]]) -> list[int]:
        """Fill the pages of streams with what is remembered of their prompts, each given by its keys and its pages.
        Return the number of positions filled for each.
        """
        counts = [
            next((index for index, key in enumerate(keys) if key not in self._places), len(keys)) for keys, _ in prompts
        ]
        spots = [
            (*_spot(index, pages), self._places[keys[index]])
            for (keys, pages), count in zip(prompts, counts, strict=True)
            for index in range(count)
        ]
        if spots:
            page, part, place = self._send(spots)
            self._pages()[:, page, :, :, part] = self._store[place]
        return [count * ROWS for count in counts]

    def remember(self, prompts: Sequence[tuple[Sequence[bytes], Sequence[int]]]) -> None:
        """Keep what the pages of streams now hold of their prompts, given as for :meth:`restore`."""
        taken: dict[int, tuple[int, int]] = {}  # by place; if one call takes a place twice, the last counts
        for keys, pages in (prompt for prompt in prompts if prompt[0]):
            taken |= self._take_places(keys[: len(self._store)], pages)
        if taken:
            page, part, place = self._send([(*spot, place) for place, spot in taken.items()])
            self._store[place] = self._pages()[:, page, :, :, part]

    def _take_places(self, keys: Sequence[bytes], pages: Sequence[int]) -> dict[int, tuple[int, int]]:
        """Return store places for passes of a prompt that are not remembered yet, and their spots in the pages."""
        for key in reversed(keys):  # the head last, so that it is kept longest: later passes are of no use without it
            if key in self._places:
                self._places.move_to_end(key)
        fresh = [index for index, key in enumerate(keys) if key not in self._places]
        places = {index: self._unused.pop() if self._unused else self._places.popitem(last=False)[1] for index in fresh}
        for index in reversed(fresh):
            self._places[keys[index]] = places[index]
        return {place: _spot(index, pages) for index, place in places.items()}

    def clear(self) -> None:
        """Forget everything."""
        self._unused += self._places.values()
        self._places.clear()

    def _pages(self) -> Tensor:
        """``[layers, pages, 2, kv heads, passes of a page, ROWS, head_dim]``: the pages there are now."""
        pages = self._space.talker_kv
        return pages.view(*pages.shape[:4], PASSES_OF_PAGE, ROWS, pages.shape[-1])

    def _send(self, spots: Sequence[tuple[int, int, int]]) -> Tensor:
        """``[3, n]``: pages, passes within them, and places in the store."""
        return send(torch.tensor(spots).T.contiguous(), self._space.device)


def _spot(index: int, pages: Sequence[int]) -> tuple[int, int]:
    """Page, and pass within it, of a stream's pass of this number."""
    return pages[index // PASSES_OF_PAGE], index % PASSES_OF_PAGE


def _names(name: bytes, rows: NDArray[np.uint8]) -> list[bytes]:
    names = []
    for start in range(0, len(rows) - ROWS, ROWS):
        digest = sha256(name)
        digest.update(rows[start : start + ROWS].data)
        name = digest.digest()
        names.append(name)
    return names
