"""Keys and values of prompt heads, remembered for prompts that begin alike.

What a row leaves behind depends on it and on those before it only. The unit is 8 rows of a prompt, called a pass, known
by a digest of all rows up to its end, and a copy stands for a computation bit for bit.
"""

from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b

import torch
from torch import Tensor

from megatalker_kernels.constants import PAGE, ROWS
from megatalker_kernels.transfer import send
from megatalker_kernels.workspace import Workspace

PASSES_OF_PAGE = PAGE // ROWS


class PrefixCache:
    """Remembers the passes that were used last.

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

    def keys(self, embeds: Tensor) -> list[bytes]:
        """The names of all passes of a prompt ``[T, hidden]`` but the last, which yields logits as well."""
        if not len(self._store):
            return []
        data = embeds.to("cpu", torch.float32).contiguous().numpy()
        names = []
        name = b""
        for start in range(0, len(data) - ROWS, ROWS):
            name = blake2b(name + data[start : start + ROWS].tobytes(), digest_size=16).digest()
            names.append(name)
        return names

    def restore(self, keys: Sequence[bytes], pages: Sequence[int]) -> int:
        """Fill a stream's pages with what is remembered of its prompt; how many positions that was."""
        count = next((index for index, key in enumerate(keys) if key not in self._places), len(keys))
        if count:
            page, part = self._spots(range(count), pages)
            place = self._send([self._places[key] for key in keys[:count]])
            self._pages()[:, page, :, :, part] = self._store[place]
        return count * ROWS

    def remember(self, keys: Sequence[bytes], pages: Sequence[int]) -> None:
        """Keep what a stream's pages now hold of its prompt."""
        keys = keys[: len(self._store)]
        for key in reversed(keys):  # the head last: it is of more use than what follows, and that is of none without it
            if key in self._places:
                self._places.move_to_end(key)
        fresh = [index for index, key in enumerate(keys) if key not in self._places]
        if fresh:
            places = [self._unused.pop() if self._unused else self._places.popitem(last=False)[1] for _ in fresh]
            page, part = self._spots(fresh, pages)
            self._store[self._send(places)] = self._pages()[:, page, :, :, part]
            for index, place in reversed(list(zip(fresh, places, strict=True))):
                self._places[keys[index]] = place

    def clear(self) -> None:
        """Forget everything."""
        self._unused += self._places.values()
        self._places.clear()

    def _pages(self) -> Tensor:
        """``[layers, pages, 2, kv heads, passes of a page, ROWS, head_dim]``: the pages there are now."""
        pages = self._space.talker_kv
        return pages.view(*pages.shape[:4], PASSES_OF_PAGE, ROWS, pages.shape[-1])

    def _spots(self, passes: Sequence[int], pages: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Page, and place within it, of each pass."""
        both = self._send([[pages[index // PASSES_OF_PAGE], index % PASSES_OF_PAGE] for index in passes])
        return both[:, 0], both[:, 1]

    def _send(self, numbers: Sequence[int] | Sequence[Sequence[int]]) -> Tensor:
        return send(torch.tensor(numbers), self._space.device)
