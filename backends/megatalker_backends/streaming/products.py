"""Products of a few rows a frame, which share the reading of their weights and keep their bits.

A frame brings one to four rows to the largest matrices of the decoder, and reading those takes most of the time. Parts
are the rows of one frame each, or those of a whole call.
"""

from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from megatalker.checkpoint.pages import release_pages
from megatalker_backends.sizes import next_size

SIZES = (4, 8, 16, 32)
"""Rows of calls to the matrix library, if it computes all rows of all of them alike."""
LARGE = 2**18
"""Weights of a matrix from which on it is worth while: smaller ones stay in a core's cache."""
_alike: dict[tuple[object, ...], Sequence[int]] = {}


def lay_out(decoder: nn.Module) -> None:
    """Store the matrices that modules name in ``few_rows`` column by column: a call of few rows need not sort them."""
    for module in decoder.modules():
        for name in getattr(module, "few_rows", ()):
            setattr(module, name, getattr(module, name).t().contiguous().t())
    release_pages(())


def linear(parts: Sequence[Tensor], weight: Tensor, bias: Tensor | None = None) -> list[Tensor]:
    """Multiply each of the parts ``[..., inputs]`` by ``weight`` ``[outputs, inputs]``.

    On a CPU a part's bits do not depend on the other parts; parts of many rows are multiplied one by one.
    """
    large = weight.numel() >= LARGE and weight.device.type == "cpu" and not torch.compiler.is_compiling()
    if not large or parts[0].shape[:-1].numel() >= SIZES[-1]:
        return [F.linear(part, weight, bias) for part in parts]
    rows = [part.flatten(0, -2) for part in parts]
    products = torch.split(_joined([*_calls(_joined(rows), weight, bias)]), [len(some) for some in rows])
    return [product.view(*part.shape[:-1], -1) for product, part in zip(products, parts, strict=True)]


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat([*parts]) if len(parts) > 1 else parts[0]


def _calls(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Iterator[Tensor]:
    sizes = _sizes(weight, bias)
    for some in torch.split(rows, sizes[-1]):
        missing = next_size(sizes, len(some)) - len(some)
        product = F.linear(F.pad(some, (0, 0, 0, missing)) if missing else some, weight, bias)
        yield product[: len(some)]


def _sizes(weight: Tensor, bias: Tensor | None) -> Sequence[int]:
    """Sizes of calls whose rows all get the same bits: matrix libraries choose how to add up a product by its shape."""
    key = weight.shape, weight.stride(), torch.get_num_threads()
    if key not in _alike:
        row = torch.linspace(-1, 1, weight.shape[1]).expand(SIZES[-1], -1).contiguous()
        products = [F.linear(row[:size], weight, bias) for size in SIZES]
        first = products[0][0]
        found = [size for size, some in zip(SIZES, products, strict=True) if (some == first).all()]
        _alike[key] = found if SIZES[0] in found else (1,)
    return _alike[key]
