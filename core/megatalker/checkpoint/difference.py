"""Weights stored as what they differ by from another checkpoint's: four bits each, and a scale for every 32 of them."""

from collections.abc import Mapping

import torch
from torch import Tensor

__all__ = ["DIFFERENCE", "WEIGHTS", "apply_difference", "difference", "is_coarse", "nearest"]

WEIGHTS, DIFFERENCE = "model.safetensors", "difference.safetensors"
_GROUP = 32
_LARGEST = 7
"""Steps go from -7 to 7."""
_STEPS, _SCALES = ".steps", ".scales"
_STORED = torch.bfloat16


def difference(
    base: Mapping[str, Tensor], wanted: Mapping[str, Tensor], *, whole: tuple[str, ...] = ()
) -> dict[str, Tensor]:
    """Return what :func:`apply_difference` adds to ``base`` to come close to ``wanted``.

    Args:
        base: tensors by name, on the CPU.
        wanted: likewise; a name that ``base`` does not have, vectors, and what does not divide into groups are stored
            as they are, in bfloat16.
        whole: substrings of the names of others that are stored as they are.

    Returns:
        For ``NAME`` either itself, or ``NAME.steps`` (``[n / 2]`` uint8, two steps each) and ``NAME.scales``
        (``[n / 32]`` float16); nothing for tensors that are the same in ``base``.
    """
    stored: dict[str, Tensor] = {}
    for name, tensor in wanted.items():
        if name in base and torch.equal(base[name].to(_STORED), tensor.to(_STORED)):
            continue
        if name not in base or not is_coarse(tensor) or any(part in name for part in whole):
            stored[name] = tensor.to(_STORED).contiguous()
            continue
        steps, scales = _rounded(base[name], tensor)
        low, high = (steps.to(torch.int16) + 8).to(torch.uint8).view(-1, 2).unbind(1)
        stored[name + _STEPS], stored[name + _SCALES] = low | high << 4, scales
    return stored


def apply_difference(base: Mapping[str, Tensor], stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors that :func:`difference` stored, with those of ``base`` for all others; the same bits everywhere."""
    made = {name: tensor for name, tensor in stored.items() if not name.endswith((_STEPS, _SCALES))}
    for name, packed in stored.items():
        if name.endswith(_STEPS):
            name = name.removesuffix(_STEPS)
            steps = torch.stack([packed & 15, packed >> 4], dim=1).flatten().to(torch.float32) - 8
            made[name] = _sum(base[name], steps, stored[name + _SCALES])
    return {**base, **made}


def nearest(base: Tensor, wanted: Tensor) -> Tensor:
    """Return ``wanted`` as it is after :func:`difference` and :func:`apply_difference`: float32, of the same shape."""
    return _sum(base, *_rounded(base, wanted)).to(torch.float32)


def is_coarse(tensor: Tensor) -> bool:
    """Whether a tensor divides into groups and is no vector: others are stored as they are."""
    return tensor.ndim > 1 and tensor.numel() % _GROUP == 0


def _rounded(base: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """``[n]`` steps as float32, and ``[n / 32]`` scales."""
    groups = (wanted.to(torch.float32) - base.to(torch.float32)).reshape(-1, _GROUP)
    scales = (groups.abs().amax(1) / _LARGEST).to(torch.float16)
    # what is smaller than the smallest scale is nothing
    divisors = scales.to(torch.float32).clamp(min=1e-12)[:, None]
    return (groups / divisors).round().clamp(-_LARGEST, _LARGEST).flatten(), scales


def _sum(base: Tensor, steps: Tensor, scales: Tensor) -> Tensor:
    # the product is exact in float32, and the sum is rounded once: no machine computes another one
    change = steps.view(-1, _GROUP) * scales.to(torch.float32)[:, None]
    return (base.to(torch.float32).reshape(-1, _GROUP) + change).view(base.shape).to(_STORED)
