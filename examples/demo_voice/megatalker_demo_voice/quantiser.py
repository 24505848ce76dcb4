"""Residual quantisation with codebooks that follow running means of what they stand for."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

_DECAY = 0.98
_RARE = 0.05
"""A code used less often than this share of its fair share is moved to where the data are."""
_LLOYD_STEPS = 12


class Codebook(nn.Module):
    """One level: ``size`` entries of ``width`` values, kept as sums and counts of the vectors assigned to them."""

    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.size = size
        self.entries: Tensor
        self.sums: Tensor
        self.counts: Tensor
        self.register_buffer("entries", torch.zeros(size, width))
        self.register_buffer("sums", torch.zeros(size, width))
        self.register_buffer("counts", torch.ones(size))

    def assign(self, vectors: Tensor) -> Tensor:
        """``[n, width]`` -> ``[n]``: the nearest entry of each, in float32."""
        if self.size == 1:
            return vectors.new_zeros(len(vectors), dtype=torch.long)
        # differences, not products: those are rounded where matrix units work in less than float32
        return (vectors.unsqueeze(1) - self.entries).pow(2).sum(-1).argmin(1)

    @torch.no_grad()
    def follow(self, vectors: Tensor, codes: Tensor) -> None:
        """Move the entries towards the vectors assigned to them; move unused ones onto random vectors."""
        if self.size == 1:
            return
        chosen = torch.nn.functional.one_hot(codes, self.size).to(vectors.dtype)
        self.counts.lerp_(chosen.sum(0), 1 - _DECAY)
        self.sums.lerp_(chosen.T @ vectors, 1 - _DECAY)
        self.entries.copy_(self.sums / self.counts.clamp(min=1e-6)[:, None])
        fair = len(vectors) / self.size
        rare = (self.counts < _RARE * fair)[:, None]
        others = vectors[torch.randint(len(vectors), (self.size,), device=vectors.device)]
        self.entries.copy_(torch.where(rare, others, self.entries))
        self.sums.copy_(torch.where(rare, others * fair * 0.5, self.sums))
        self.counts.copy_(torch.where(rare[:, 0], torch.full_like(self.counts, fair * 0.5), self.counts))

    @torch.no_grad()
    def fit(self, vectors: Tensor, generator: torch.Generator) -> None:
        """k-means from a random start."""
        if self.size == 1:
            return
        if len(vectors) < self.size:
            raise ValueError(f"{len(vectors)} vectors are too few for a codebook of {self.size}; fit on more speech")
        order = torch.randperm(len(vectors), generator=generator)[: self.size].to(vectors.device)
        self.entries.copy_(vectors[order])
        for _ in range(_LLOYD_STEPS):
            chosen = torch.nn.functional.one_hot(self.assign(vectors), self.size).to(vectors.dtype)
            counts = chosen.sum(0)
            means = (chosen.T @ vectors) / counts.clamp(min=1)[:, None]
            self.entries.copy_(torch.where(counts[:, None] > 0, means, self.entries))
        counts = torch.bincount(self.assign(vectors), minlength=self.size).to(vectors.dtype)
        self.counts.copy_(counts.clamp(min=1) * 1536 / len(vectors))  # as after batches of this many
        self.sums.copy_(self.entries * self.counts[:, None])

    @torch.no_grad()
    def resume(self, count: int) -> None:
        """Let loaded entries be followed on: as after batches of ``count`` vectors, all codes equally frequent."""
        self.counts.fill_(count / self.size)
        self.sums.copy_(self.entries * self.counts[:, None])


class ResidualQuantiser(nn.Module):
    """Levels that each quantise what the ones before left over."""

    def __init__(self, sizes: Sequence[int], width: int) -> None:
        super().__init__()
        self.levels = nn.ModuleList(Codebook(size, width) for size in sizes)

    def forward(self, vectors: Tensor, *, follow: bool) -> tuple[Tensor, Tensor]:
        """Quantise.

        Args:
            vectors: ``[n, width]`` float32.
            follow: move the codebooks.

        Returns:
            ``[levels, n]`` codes, and ``[levels, n, width]``: the sum of the entries up to each level.
        """
        residual, total = vectors.detach(), torch.zeros_like(vectors)
        codes, sums = [], []
        for level in self.levels:
            assert isinstance(level, Codebook)
            chosen = level.assign(residual)
            entry = level.entries[chosen]
            if follow:
                level.follow(residual, chosen)
            residual, total = residual - entry, total + entry
            codes.append(chosen)
            sums.append(total)
        return torch.stack(codes), torch.stack(sums)

    def decode(self, codes: Tensor) -> Tensor:
        """``[..., n]`` codes of the first ``n`` levels -> ``[..., width]``: the sum of their entries."""
        levels = zip(self.levels, codes.unbind(-1), strict=False)
        return torch.stack([level.entries[chosen] for level, chosen in levels]).sum(0)  # type: ignore[index]

    @torch.no_grad()
    def fit(self, vectors: Tensor, generator: torch.Generator) -> None:
        """Start every level by k-means on ``[n, width]``."""
        residual = vectors
        for level in self.levels:
            assert isinstance(level, Codebook)
            level.fit(residual, generator)
            residual = residual - level.entries[level.assign(residual)]

    def resume(self, count: int) -> None:
        """:meth:`Codebook.resume` for every level."""
        for level in self.levels:
            assert isinstance(level, Codebook)
            level.resume(count)
