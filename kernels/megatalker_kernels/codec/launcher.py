"""Compiles the codec's kernels for a device and starts them there."""

from collections.abc import Sequence
from ctypes import Structure
from dataclasses import dataclass
from typing import Any

import torch

from megatalker_kernels.codec.numbers import Numbers
from megatalker_kernels.codec.structures import macros
from megatalker_kernels.codec.tiles import TILES, WARPGROUP_TILES, Tile, WarpgroupTile
from megatalker_kernels.module import Arguments, GpuModule, capability, processors
from megatalker_kernels.nvrtc import WARPGROUPS, Cubin, architecture, compile_kernel

SOURCE = "codec/codec.cu"


@dataclass(frozen=True, slots=True)
class CodecConstants:
    """Constants that the CUDA sources share with this package."""

    tiles: Sequence[Tile | WarpgroupTile]
    numbers: Numbers

    def macros(self) -> list[tuple[str, str]]:
        """Preprocessor definitions."""
        products = " ".join(tile.macro for tile in self.tiles)
        return [*macros().items(), ("PRODUCTS", products), ("NUMBERS", self.numbers.value)]


def target(capability: int, numbers: Numbers) -> tuple[str, Numbers, Sequence[Tile | WarpgroupTile]]:
    """Return the architecture, numbers and tiles to compile for a device of this compute capability."""
    warpgroups = WARPGROUP_TILES[numbers] if capability == WARPGROUPS else ()
    return architecture(capability), numbers, (*TILES, *warpgroups)


def compile_codec(arch: str, numbers: Numbers, tiles: Sequence[Tile | WarpgroupTile]) -> Cubin:
    """The kernels for ``sm_80`` or later, with a product of ``numbers`` for each of ``tiles``.

    Raises:
        ToolchainError: see :func:`compile_kernel`.
    """
    return compile_kernel(CodecConstants(tiles, numbers), arch, source=SOURCE)


class CodecKernels:
    """The kernels, ready to be started on torch's current stream.

    Args:
        device: a CUDA device.
        numbers: what products multiply; weights are packed for them.
        tiles: which products there are; ``None``: all that the device can run.

    Raises:
        ToolchainError: the kernels cannot be compiled or loaded.
    """

    def __init__(
        self, device: torch.device, numbers: Numbers, tiles: Sequence[Tile | WarpgroupTile] | None = None
    ) -> None:
        self.processors = processors(device)
        self.numbers = numbers
        arch, _, known = target(capability(device), numbers)
        tiles = known if tiles is None else tiles
        self.has_warpgroups = any(isinstance(tile, WarpgroupTile) for tile in tiles)
        self._module = GpuModule(compile_codec(arch, numbers, tiles).code, device)
        self._entries = {tile.kernel: self._entry(tile.kernel, tile.shared_bytes) for tile in tiles}
        self._entries |= {name: self._entry(name, 0) for name in ("lookup", "attention", "mixing")}

    def launch(self, kernel: str, blocks: int, threads: int, shared_bytes: int, argument: Structure) -> None:
        """Run ``megatalker_codec_KERNEL``; what ``argument`` points to must outlive the work on the device."""
        self._module.start_in_chain(
            self._entries[kernel], blocks, threads, Arguments(argument), shared_bytes=shared_bytes
        )

    def _entry(self, kernel: str, shared_bytes: int) -> Any:
        return self._module.entry(f"megatalker_codec_{kernel}", shared_bytes=shared_bytes)
