"""Tensors on an Apple GPU that need none: shapes, types and devices of every operation, without numbers."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

MPS = torch.device("mps", 0)
MISSING = (torch.float64, torch.complex128)
"""Types that the device does not have."""
aten = torch.ops.aten
_PLAIN = {Tensor.__invert__: aten.bitwise_not, Tensor.contiguous: aten.clone}


@contextmanager
def apple_gpu() -> Iterator[FakeTensorMode]:
    """Within the block tensors are fake. An operation fails that mixes devices, or makes a type that ``mps`` lacks."""
    with FakeTensorMode(allow_non_fake_inputs=True) as fake, _NoDoubles(), _Indexing(), torch.no_grad():
        yield fake


class _NoDoubles(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor) and tensor.device.type == "mps" and tensor.dtype in MISSING:
                raise TypeError(f"{func} makes {tensor.dtype}, which mps does not have")
        return result


class _Indexing(TorchFunctionMode):
    """``x[...]`` and attention by operations that are no more than their shapes: torch's own ask for the device."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.__getitem__:
            return _view(args[0], args[1])
        if func is Tensor.__setitem__:
            tensor, index, value = args
            parts = index if isinstance(index, tuple) else (index,)
            value = value if isinstance(value, Tensor) else torch.tensor(value, dtype=tensor.dtype)
            if any(isinstance(part, Tensor) for part in parts):
                places = [part if isinstance(part, Tensor) else None for part in parts]
                return aten.index_put_(tensor, places, value.to(tensor.device))
            return _view(tensor, index).copy_(value)
        if func in _PLAIN:
            return _PLAIN[func](args[0])
        if func is torch.nn.functional.scaled_dot_product_attention:
            query, key, value = args
            return (query @ key.mT) @ value
        return func(*args, **(kwargs or {}))


def _view(tensor: Tensor, index: Any) -> Tensor:
    parts: Sequence[Any] = index if isinstance(index, tuple) else (index,)
    if Ellipsis in [part for part in parts if not isinstance(part, Tensor)]:
        place = [part is Ellipsis for part in parts].index(True)
        named = sum(part is not None for part in parts) - 1
        parts = (*parts[:place], *[slice(None)] * (tensor.ndim - named), *parts[place + 1 :])
    dim, places = 0, {}
    for part in parts:
        if part is None:
            tensor = tensor.unsqueeze(dim)
        elif isinstance(part, int):
            tensor = aten.select.int(tensor, dim, part)
            continue
        elif isinstance(part, slice):
            tensor = aten.slice.Tensor(tensor, dim, part.start, part.stop, part.step or 1)
        else:
            places[dim] = part
        dim += 1
    if places:
        tensor = aten.index.Tensor(tensor, [places.get(one) for one in range(max(places) + 1)])
    return tensor
