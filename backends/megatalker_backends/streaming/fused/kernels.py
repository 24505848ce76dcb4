"""The kernels of one step as functions of tensors."""

from ctypes import Structure
from typing import Any, Protocol

import torch
from torch import Tensor

from megatalker.checkpoint.config import CodecConfig
from megatalker_backends.streaming.fused.weights import PackedProduct, Wave, Widening
from megatalker_kernels.codec import structures
from megatalker_kernels.codec.numbers import Numbers
from megatalker_kernels.codec.structures import ATTENTION_THREADS, MAX_FRAMES, MIXING_THREADS, Activation
from megatalker_kernels.codec.tiles import WarpgroupTile, choose_tiling


class Launcher(Protocol):
    """Starts kernels, one after another."""

    processors: int
    """Number of blocks that keep the device busy."""
    numbers: Numbers
    """Number format of products."""
    has_warpgroups: bool
    """Whether the device runs the tiles of warpgroups."""

    def launch(self, kernel: str, blocks: int, threads: int, shared_bytes: int, argument: Structure) -> None:
        """Run ``megatalker_codec_KERNEL``."""


class Kernels:
    """Starts kernels on rows ``[streams * time, channels]`` of the streams that ``words`` names; packed rows are
    ``[streams * time, Numbers.words(channels)]``.

    Args:
        launcher: for the device of ``words``.
        config: shapes.
        words: ``[streams, words]`` int64, see :class:`structures.Tickets`.
        frames: of each stream.
        arrivals: int32 zeros, as many as any product has tiles whose sums are split.
    """

    def __init__(self, launcher: Launcher, config: CodecConfig, words: Tensor, frames: int, arrivals: Tensor) -> None:
        self._launcher = launcher
        self._config = config
        self.streams = len(words)
        self._frames = frames
        self._device = words.device
        self._tickets = structures.Tickets(words.data_ptr(), words.shape[1])
        self._arrivals = arrivals

    def look_up(self, table: Tensor) -> Tensor:
        """Sums of the ``[groups * codebook, width]`` entries that the frames' codes name, packed."""
        config, width = self._config, table.shape[1]
        out = self._packed(self.streams * self._frames, width)
        argument = structures.LookupStep(
            table=table.data_ptr(),
            out=out.data_ptr(),
            tickets=self._tickets,
            time=self._frames,
            groups=config.num_quantizers,
            codebook=config.codebook_size,
            width=width,
        )
        self._launcher.launch("lookup", len(out), 128, 0, argument)
        return out

    def multiply(
        self, matrix: PackedProduct, rows: Tensor, *, eps: float = -1.0, activation: Activation = Activation.PLAIN
    ) -> Tensor:
        """Products of windows of packed ``rows``, normalised by their root mean square if ``eps`` is given."""
        out = self._empty(len(rows), 1 if activation is Activation.SAMPLE else len(matrix.weight))
        self._multiply(matrix, rows, out, None, None, None, eps, activation)
        return out

    def multiply_packed(
        self,
        matrix: PackedProduct,
        rows: Tensor,
        wave: Wave | None = None,
        *,
        residual: Tensor | None = None,
        eps: float = -1.0,
        activation: Activation = Activation.PLAIN,
    ) -> Tensor:
        """Do :meth:`multiply`, add ``residual``, apply a snake if there is one, and pack the result for products."""
        packed = self._packed(len(rows), len(matrix.weight) // (2 if activation is Activation.GATED else 1))
        self._multiply(matrix, rows, None, packed, wave, residual, eps, activation)
        return packed

    def multiply_both(
        self, matrix: PackedProduct, rows: Tensor, wave: Wave | None = None, *, residual: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the results of :meth:`multiply` and of :meth:`multiply_packed`."""
        raw, packed = self._empty(len(rows), len(matrix.weight)), self._packed(len(rows), len(matrix.weight))
        self._multiply(matrix, rows, raw, packed, wave, residual)
        return raw, packed

    def _multiply(
        self,
        matrix: PackedProduct,
        rows: Tensor,
        raw: Tensor | None,
        packed: Tensor | None,
        wave: Wave | None,
        residual: Tensor | None,
        eps: float = -1.0,
        activation: Activation = Activation.PLAIN,
    ) -> None:
        columns, taps, words = matrix.weight.shape
        processors, whole = self._launcher.processors, eps >= 0
        warpgroups = None if matrix.for_warpgroups is None or whole else self._launcher.numbers
        chosen = choose_tiling(len(rows), columns, taps, words, processors, whole=whole, warpgroups=warpgroups)
        weight = matrix.for_warpgroups if isinstance(chosen.tile, WarpgroupTile) else matrix.weight
        tiles = chosen.tile.count(len(rows), columns)
        partial = self._empty(chosen.shares, len(rows), columns) if chosen.shares > 1 else None
        epilogue = structures.Epilogue(
            bias=_address(matrix.bias),
            residual=_address(residual),
            frequency=_address(wave.frequency if wave else None),
            height=_address(wave.height if wave else None),
            raw=_address(raw),
            packed=_address(packed),
            channels=len(wave.frequency) if wave else 0,
            columns=columns,
            activation=activation,
        )
        argument = structures.ProductStep(
            input=self._input(rows, matrix.slot, matrix.context),
            epilogue=epilogue,
            tickets=self._tickets,
            weight=_address(weight),
            partial=_address(partial),
            arrivals=self._arrivals.data_ptr(),
            taps=taps,
            dilation=matrix.dilation,
            shares=chosen.shares,
            eps=eps,
            scale=matrix.scale,
        )
        tile = chosen.tile
        self._launcher.launch(tile.kernel, tiles * chosen.shares, tile.threads, tile.shared_bytes, argument)

    def attend(self, index: int, qkv: Tensor, frequencies: Tensor) -> Tensor:
        """The heads of layer ``index``, side by side, packed."""
        config, width = self._config, self._config.head_dim
        ring = config.sliding_window - 1 + MAX_FRAMES
        out = self._packed(len(qkv), config.num_heads * width)
        argument = structures.AttentionStep(
            qkv=qkv.data_ptr(),
            frequencies=frequencies.data_ptr(),
            out=out.data_ptr(),
            tickets=self._tickets,
            slot=index * ring * 2 * config.num_kv_heads * width,
            time=self._frames,
            heads=config.num_heads,
            kv_heads=config.num_kv_heads,
            width=width,
            window=config.sliding_window,
        )
        shared = 4 * (MAX_FRAMES * (3 * width + ring) + ATTENTION_THREADS * MAX_FRAMES)
        self._launcher.launch("attention", self.streams * config.num_heads, ATTENTION_THREADS, shared, argument)
        return out

    def mix(self, widening: Widening, rows: Tensor) -> Tensor:
        """Depthwise convolution and layer normalisation of ``rows``, packed."""
        out = self._packed(*rows.shape)
        argument = structures.MixingStep(
            input=self._input(rows, widening.slot, len(widening.taps) - 1),
            tickets=self._tickets,
            taps=widening.taps.data_ptr(),
            bias=widening.taps_bias.data_ptr(),
            out=out.data_ptr(),
            eps=1e-6,
        )
        self._launcher.launch("mixing", len(rows), MIXING_THREADS, 4 * rows.shape[1], argument)
        return out

    def _input(self, rows: Tensor, slot: int, context: int) -> structures.Input:
        return structures.Input(
            data=rows.data_ptr(),
            slot=slot,
            rows=len(rows),
            time=len(rows) // self.streams,
            words=rows.shape[1],
            context=context,
        )

    def _empty(self, *shape: int) -> Tensor:
        return torch.empty(shape, device=self._device)

    def _packed(self, rows: int, columns: int) -> Tensor:
        return self._empty(rows, self._launcher.numbers.words(columns))


class WatchedKernels(Kernels):
    """Records the largest magnitude among the inputs of each product."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.largest: list[Tensor] = []

    def _multiply(self, matrix: PackedProduct, rows: Tensor, *others: Any) -> None:
        self.largest.append(self._launcher.numbers.unpack(rows).abs().max())
        super()._multiply(matrix, rows, *others)


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
