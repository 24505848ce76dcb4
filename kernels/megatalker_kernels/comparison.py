"""How far two workspaces are apart, buffer by buffer."""

from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from megatalker_kernels.workspace import Workspace

SKIPPED = ("barrier", "chosen", "status", "codes")
"""The specification has no barrier and publishes neither codes among blocks nor tickets."""

ROUNDED = ("attention", "activation")
"""Float32 buffers of numbers that were rounded to bfloat16."""

FEW = 1e-3
"""Share of a buffer's elements that may miss the tolerance."""
FAR = 3.0


@dataclass(frozen=True, slots=True)
class Difference:
    """Difference between two results of one buffer."""

    buffer: str
    wrong: int
    """Elements further apart than the tolerance allows, or not numbers."""
    max_abs: float
    max_rel: float
    """Largest error in units of the buffer's root mean square (of the elements that are not zero)."""
    first: tuple[int, ...]
    """Index of the first wrong element, or of the largest error."""

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def compare(found: Workspace, expected: Workspace, tolerance: float) -> list[Difference]:
    """Buffers that differ in any bit; those with ``wrong > 0`` differ too much.

    Args:
        found: after the kernel.
        expected: after the specification.
        tolerance: allowed error, relative to an element and to the root mean square of its buffer. Integers must agree.
            A few elements (:data:`FEW`) may miss it by a factor of :data:`FAR`: where a rounding tipped over early on.
    """
    others = expected.buffers()
    pairs = [(name, one, others[name]) for name, one in found.buffers().items() if name not in SKIPPED]
    pairs.append(("wide predictor_logits", found.wide.predictor_logits, expected.wide.predictor_logits))
    return [_difference(name, one, other, tolerance) for name, one, other in pairs if not torch.equal(one, other)]


def _difference(name: str, found: Tensor, expected: Tensor, tolerance: float) -> Difference:
    if not found.is_floating_point():
        bad = found != expected
        return Difference(name, int(bad.sum()), float((found.long() - expected.long()).abs().max()), 0.0, _first(bad))
    step = 2.0**-7 if expected.dtype == torch.bfloat16 or name in ROUNDED else 0.0  # two units in the last place
    found, expected = found.float(), expected.float()
    error = (found - expected).abs()
    filled = int((expected != 0).sum())
    rms = float(expected.square().sum().div(max(filled, 1)).sqrt())
    allowed = (tolerance + step) * expected.abs() + tolerance * rms
    bad = ~(error <= allowed)
    far = ~(error <= FAR * allowed)
    if int(bad.sum()) <= 1 + FEW * filled:
        bad = far
    worst = float(error.max())
    where = _first(bad) if bool(bad.any()) else _first(error == error.max())
    return Difference(name, int(bad.sum()), worst, worst / rms if rms else float("inf"), where)


def _first(mask: Tensor) -> tuple[int, ...]:
    found = mask.nonzero()
    return tuple(found[0].tolist()) if len(found) else ()
