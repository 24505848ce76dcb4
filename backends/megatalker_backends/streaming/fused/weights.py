"""The decoder's weights in the order in which the kernels read them."""

from dataclasses import dataclass
from typing import Any, Self, TypeVar

import torch
from torch import Tensor

from megatalker_backends.streaming.convolution import RowConv, SignalConv
from megatalker_backends.streaming.latent import Doubling
from megatalker_backends.streaming.model import StreamingDecoder
from megatalker_backends.streaming.transformer import WindowLayer
from megatalker_backends.streaming.waveform import ResidualUnit, Snake, UpsamplingBlock
from megatalker_kernels.codec.numbers import Numbers
from megatalker_kernels.codec.tiles import warpgroup_depth

Member = TypeVar("Member")


@dataclass(frozen=True, slots=True)
class PackedProduct:
    """Weights of windows of rows."""

    weight: Tensor
    """``[columns, taps, words]``, packed for the numbers that products multiply."""
    for_warpgroups: Tensor | None = None
    """The same, packed for tiles of warpgroups."""
    scale: float = 1.0
    """Factor by which the sums must be multiplied."""
    bias: Tensor | None = None
    dilation: int = 1
    slot: int = 0
    """Offset of this convolution's context in a stream's context, in floats."""

    @property
    def context(self) -> int:
        """Rows of a window before its last."""
        return (self.weight.shape[1] - 1) * self.dilation

    @classmethod
    def packed(cls, numbers: Numbers, weight: Tensor, device: torch.device, *, warpgroups: bool, **others: Any) -> Self:
        """Pack a float32 ``weight``; ``warpgroups``: whether tiles of warpgroups may be asked for."""
        enlargement = numbers.enlargement(weight)
        large = weight.to(device) * enlargement
        depth = warpgroup_depth(numbers, numbers.words(weight.shape[2]))
        for_warpgroups = numbers.pack_for_warpgroups(large, depth) if warpgroups else None
        return cls(numbers.pack(large), for_warpgroups, 1 / enlargement, **others)


@dataclass(frozen=True, slots=True)
class Wave:
    """A snake's two factors."""

    frequency: Tensor
    height: Tensor


@dataclass(frozen=True, slots=True)
class TransformerProducts:
    """Products of one layer of the transformer."""

    qkv: PackedProduct
    out: PackedProduct
    gate_up: PackedProduct
    """Rows of gate and up alternate."""
    down: PackedProduct


@dataclass(frozen=True, slots=True)
class Widening:
    """Transposed convolution and ConvNeXt block."""

    spread: PackedProduct
    taps: Tensor
    """``[taps, channels]``"""
    taps_bias: Tensor
    slot: int
    widen: PackedProduct
    narrow: PackedProduct


@dataclass(frozen=True, slots=True)
class Unit:
    """Residual unit of an upsampling block."""

    before: Wave
    conv: PackedProduct
    between: Wave
    point: PackedProduct


@dataclass(frozen=True, slots=True)
class Block:
    """Upsampling block."""

    before: Wave
    up: PackedProduct
    units: list[Unit]


class FusedWeights:
    """A copy of ``decoder`` on ``device``; every convolution gets a slot of the context that each stream carries."""

    def __init__(self, decoder: StreamingDecoder, device: torch.device, numbers: Numbers, *, warpgroups: bool) -> None:
        self._device = device
        self._numbers = numbers
        self._warpgroups = warpgroups
        self.largest = 0.0
        """Largest magnitude of the weights of all products."""
        self.context_size = 0
        """Floats of one stream's context."""
        transformer, waveform = decoder.transformer, decoder.waveform
        self.table = self._put(decoder.codebooks.table)
        self.pre = self._conv(decoder.pre_conv)
        self.into = self._linear(transformer.into, transformer.into_bias)
        self.layers = [self._layer(layer) for layer in _members(transformer.layers, WindowLayer)]
        self.out = self._linear(transformer.out, transformer.out_bias)
        self.frequencies = self._put(transformer.inverse_frequencies)
        self.widenings = [self._widening(doubling) for doubling in _members(decoder.doublings, Doubling)]
        self.first = self._conv(waveform.first)
        self.blocks = [self._block(block) for block in _members(waveform.blocks, UpsamplingBlock)]
        self.wave = self._wave(waveform.snake)
        self.last = self._conv(waveform.last)

    def _put(self, tensor: Tensor) -> Tensor:
        return tensor.to(self._device).contiguous()

    def _matrix(self, weight: Tensor, bias: Tensor | None, dilation: int = 1, slot: int = 0) -> PackedProduct:
        self.largest = max(self.largest, float(weight.abs().max()))
        put = None if bias is None else self._put(bias)
        others = {"bias": put, "dilation": dilation, "slot": slot}
        return PackedProduct.packed(self._numbers, weight, self._device, warpgroups=self._warpgroups, **others)

    def _reserve(self, rows: int, words: int) -> int:
        slot, self.context_size = self.context_size, self.context_size + rows * words
        return slot

    def _linear(self, weight: Tensor, bias: Tensor | None = None) -> PackedProduct:
        return self._matrix(weight[:, None], bias)

    def _conv(self, conv: RowConv | SignalConv, steps: int = 1) -> PackedProduct:
        """A convolution whose weight is ``[steps * outputs, inputs * kernel]``."""
        kernel, dilation = conv.kernel, conv.dilation
        taps = conv.weight.view(steps, -1, conv.weight.shape[1] // kernel, kernel).transpose(2, 3)
        taps = _in_eights(taps, 1, 3).flatten(0, 1)
        slot = self._reserve((kernel - 1) * dilation, self._numbers.words(taps.shape[2]))
        return self._matrix(taps, _in_eights(conv.bias.view(steps, -1), 1).flatten(), dilation, slot)

    def _wave(self, snake: Snake) -> Wave:
        return Wave(*(self._put(_in_eights(factor.flatten(), 0)) for factor in (snake.frequency, snake.height)))

    def _layer(self, layer: WindowLayer) -> TransformerProducts:
        gate_up = torch.stack(layer.gate_up.chunk(2), dim=1).flatten(0, 1)
        return TransformerProducts(*map(self._linear, (layer.qkv, layer.out, gate_up, layer.down)))

    def _widening(self, doubling: Doubling) -> Widening:
        return Widening(
            spread=self._linear(doubling.spread, doubling.spread_bias),
            taps=self._put(doubling.taps.T),
            taps_bias=self._put(doubling.taps_bias),
            slot=self._reserve(doubling.taps.shape[1] - 1, doubling.width),
            widen=self._linear(doubling.widen, doubling.widen_bias),
            narrow=self._linear(doubling.narrow, doubling.narrow_bias),
        )

    def _block(self, block: UpsamplingBlock) -> Block:
        units = [self._unit(unit) for unit in _members(block.units, ResidualUnit)]
        return Block(self._wave(block.snake), self._conv(block.conv.conv, block.conv.rate), units)

    def _unit(self, unit: ResidualUnit) -> Unit:
        return Unit(
            before=self._wave(unit.before),
            conv=self._conv(unit.conv),
            between=self._wave(unit.between),
            point=self._linear(_in_eights(unit.weight, 0, 1), _in_eights(unit.bias.flatten(), 0)),
        )


def _in_eights(tensor: Tensor, *dims: int) -> Tensor:
    """Pad these dimensions with zeros at the end: the kernels take eight channels at a time."""
    for dim in dims:
        missing = list(tensor.shape)
        missing[dim] = -missing[dim] % 8
        tensor = torch.cat((tensor, tensor.new_zeros(missing)), dim)
    return tensor


def _members(modules: torch.nn.ModuleList, kind: type[Member]) -> list[Member]:
    return [module for module in modules if isinstance(module, kind)]
