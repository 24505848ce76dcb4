"""Products whose bits depend on nothing but a frame's own numbers: not on the other frames of a call.

A frame brings one to four rows to the largest matrices of the decoder, and reading those takes most of the time: rows
of many frames share it (:func:`linear`). Other matrices meet many steps of each frame (:func:`product`).
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from megatalker.checkpoint.pages import trim_heap
from megatalker_backends.sizes import next_size

SIZES = (4, 8, 16, 32)
"""Rows of calls to the matrix library, if it computes all rows of all of them alike."""
PIECES = 4
"""Parts of the outputs of a product of many steps."""
_alike: dict[tuple[object, ...], Sequence[int]] = {}


def lay_out(decoder: nn.Module) -> None:
    """Store the matrices that modules name in ``few_rows`` column by column: a call of few rows need not sort them."""
    for module in decoder.modules():
        for name in getattr(module, "few_rows", ()):
            setattr(module, name, getattr(module, name).t().contiguous().t())
    trim_heap()


def product(weight: Tensor, columns: Tensor, plus: Tensor) -> Tensor:
    """``weight`` ``[outputs, inputs]`` times ``columns`` ``[inputs, steps]``, plus ``[outputs, 1 or steps]``.

    On a CPU always in :data:`PIECES` products, which torch shares out to threads: left to themselves, matrix libraries
    add one large product up in another order with another number of threads.
    """
    if weight.device.type != "cpu":
        return torch.addmm(plus, weight, columns)
    if len(weight) % PIECES == 0:
        rows = weight.view(PIECES, -1, weight.shape[1])
        return torch.baddbmm(plus.view(PIECES, rows.shape[1], -1), rows, columns.expand(PIECES, -1, -1)).flatten(0, 1)
    steps = columns.view(len(columns), PIECES, -1).transpose(0, 1)
    return torch.bmm(weight.expand(PIECES, -1, -1), steps).transpose(0, 1).flatten(1).add_(plus)


def linear(parts: Sequence[Tensor], weight: Tensor, bias: Tensor | None = None) -> list[Tensor]:
    """Multiply each of the parts ``[..., inputs]`` by ``weight`` ``[outputs, inputs]``.

    On a CPU a row's bits do not depend on the other rows.
    """
    if weight.device.type != "cpu" or torch.compiler.is_compiling():
        return [F.linear(part, weight, bias) for part in parts]
    rows = _joined([part.flatten(0, -2) for part in parts])
    sizes = _sizes(weight, bias)
    made = _joined([_call(some, sizes, weight, bias) for some in torch.split(rows, sizes[-1])])
    if len(parts) == 1:
        return [made.view(*parts[0].shape[:-1], -1)]
    shares = torch.split(made, [part.shape[:-1].numel() for part in parts])
    return [share.view(*part.shape[:-1], -1) for share, part in zip(shares, parts, strict=True)]


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat([*parts]) if len(parts) > 1 else parts[0]


def _call(rows: Tensor, sizes: Sequence[int], weight: Tensor, bias: Tensor | None) -> Tensor:
    missing = next_size(sizes, len(rows)) - len(rows)
    if not missing:
        return F.linear(rows, weight, bias)
    return F.linear(torch.constant_pad_nd(rows, (0, 0, 0, missing)), weight, bias)[: len(rows)]


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
