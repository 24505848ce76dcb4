"""All parameters of a model in two long rows, so that one call updates, clips or sums over all of them."""

import torch
from torch import Tensor, nn


class FlatParameters:
    """Moves a model's parameters into ``matrices`` (to decay) and ``vectors`` (not to), and gives them gradients."""

    def __init__(self, model: nn.Module) -> None:
        named = list(model.parameters())
        self.matrices = _join([parameter for parameter in named if parameter.ndim > 1])
        self.vectors = _join([parameter for parameter in named if parameter.ndim <= 1])

    @property
    def gradients(self) -> tuple[Tensor, Tensor]:
        assert self.matrices.grad is not None
        assert self.vectors.grad is not None
        return self.matrices.grad, self.vectors.grad

    def zero(self) -> None:
        for gradient in self.gradients:
            gradient.zero_()

    def clip(self, largest: float) -> Tensor:
        """Scale the gradients down to this norm; returns the norm that they had."""
        norm: Tensor = torch.stack([gradient.norm() for gradient in self.gradients]).norm()
        scale = (largest / (norm + 1e-6)).clamp(max=1.0)
        for gradient in self.gradients:
            gradient.mul_(scale)
        return norm


def _join(parameters: list[nn.Parameter]) -> nn.Parameter:
    joined = nn.Parameter(torch.cat([parameter.detach().flatten() for parameter in parameters]))
    joined.grad = torch.zeros_like(joined)
    start = 0
    for parameter in parameters:
        end = start + parameter.numel()
        parameter.data = joined.data[start:end].view_as(parameter)
        parameter.grad = joined.grad[start:end].view_as(parameter)
        start = end
    return joined
