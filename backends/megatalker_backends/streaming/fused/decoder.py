"""One step of the decoder: a chain of about eighty kernels, each of which does the work between two matrix products.

A snake is computed once, by the kernel that produces its input.
"""

import torch
from torch import Tensor

from megatalker.checkpoint.config import CodecConfig
from megatalker_backends.streaming.fused.kernels import Kernels, Launcher, WatchedKernels
from megatalker_backends.streaming.fused.weights import Block, FusedWeights, Wave, Widening
from megatalker_kernels.codec.structures import MAX_FRAMES, Activation

MAX_TILES = 1024


class FusedDecoder:
    """Decodes the next frames of several streams, whose memory lies where their tickets say.

    Args:
        weights: on the device.
        config: the shapes they have.
        launcher: for kernels on that device.
    """

    def __init__(self, weights: FusedWeights, config: CodecConfig, launcher: Launcher) -> None:
        self._weights = weights
        self._config = config
        self._launcher = launcher
        self._arrivals = torch.zeros(MAX_TILES, dtype=torch.int32, device=weights.table.device)

    @property
    def context_size(self) -> int:
        """Floats that one stream's convolutions carry; a stream has them twice, to read and to write."""
        return self._weights.context_size

    @property
    def cache_size(self) -> int:
        """Floats of one stream's keys and values."""
        config = self._config
        ring = config.sliding_window - 1 + MAX_FRAMES
        return len(self._weights.layers) * ring * 2 * config.num_kv_heads * config.head_dim

    @property
    def largest_weight(self) -> float:
        """Largest magnitude of the weights of all products."""
        return self._weights.largest

    def step(self, words: Tensor, frames: int) -> Tensor:
        """Decode the frames of ``words`` (see :class:`structures.Tickets`) into ``[streams, samples]`` float32."""
        return self._step(Kernels(self._launcher, self._config, words, frames, self._arrivals))

    def largest_input(self, words: Tensor, frames: int) -> float:
        """Do a :meth:`step`; return the largest magnitude among inputs of products, NaN if one is NaN."""
        run = WatchedKernels(self._launcher, self._config, words, frames, self._arrivals)
        self._step(run)
        return float(torch.stack(run.largest).max())

    def _step(self, run: Kernels) -> Tensor:
        weights = self._weights
        packed = self._transform(run, run.multiply_packed(weights.pre, run.look_up(weights.table)))
        for widening in weights.widenings:
            packed = _widen(run, widening, packed)
        afters = [*(block.before for block in weights.blocks), weights.wave]
        packed = run.multiply_packed(weights.first, packed, afters[0])
        for block, after in zip(weights.blocks, afters[1:], strict=True):
            packed = _upsample(run, block, packed, after)
        return run.multiply(weights.last, packed, activation=Activation.SAMPLE).view(run.streams, -1)

    def _transform(self, run: Kernels, packed: Tensor) -> Tensor:
        weights, eps = self._weights, self._config.rms_norm_eps
        rows, packed = run.multiply_both(weights.into, packed)
        for index, layer in enumerate(weights.layers):
            mixed = run.attend(index, run.multiply(layer.qkv, packed, eps=eps), weights.frequencies)
            rows, packed = run.multiply_both(layer.out, mixed, residual=rows)
            gated = run.multiply_packed(layer.gate_up, packed, eps=eps, activation=Activation.GATED)
            rows, packed = run.multiply_both(layer.down, gated, residual=rows)
        return run.multiply_packed(weights.out, packed, eps=eps)


def _widen(run: Kernels, widening: Widening, packed: Tensor) -> Tensor:
    rows = run.multiply(widening.spread, packed).view(-1, widening.taps.shape[1])
    wide = run.multiply_packed(widening.widen, run.mix(widening, rows), activation=Activation.GELU)
    return run.multiply_packed(widening.narrow, wide, residual=rows)


def _upsample(run: Kernels, block: Block, packed: Tensor, after: Wave) -> Tensor:
    first, *others = block.units
    rows, packed = run.multiply_both(block.up, packed, first.before)
    packed = packed.view(-1, first.conv.weight.shape[2])
    rows = rows.view(len(packed), -1)
    unit = first
    for following in others:
        inner = run.multiply_packed(unit.conv, packed, unit.between)
        rows, packed = run.multiply_both(unit.point, inner, following.before, residual=rows)
        unit = following
    inner = run.multiply_packed(unit.conv, packed, unit.between)
    return run.multiply_packed(unit.point, inner, after, residual=rows)
