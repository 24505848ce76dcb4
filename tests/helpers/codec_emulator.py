"""Runs the codec's kernels, compiled from the very sources, on the CPU."""

import ctypes

from emulation import compile_for_cpu
from megatalker_kernels.codec.launcher import SOURCE, CodecConstants
from megatalker_kernels.codec.numbers import Numbers
from megatalker_kernels.codec.tiles import TILES, WARPGROUP_TILES
from megatalker_kernels.nvrtc import SOURCES


class CodecEmulator:
    """The :class:`megatalker_kernels.codec.launcher.CodecKernels` of tensors on the CPU."""

    processors = 12
    """Few enough processors that sums of small products stay whole while those of larger ones are split."""

    def __init__(self, numbers: Numbers) -> None:
        self.numbers = numbers
        self.has_warpgroups = bool(WARPGROUP_TILES[numbers])
        constants = CodecConstants((*TILES, *WARPGROUP_TILES[numbers]), numbers)
        self._library = compile_for_cpu((SOURCES / SOURCE).parent, "codec", constants.macros())
        self.launches: list[str] = []

    def launch(self, kernel: str, blocks: int, threads: int, shared_bytes: int, argument: ctypes.Structure) -> None:
        known = self._library.emulate(kernel.encode(), blocks, threads, shared_bytes, ctypes.byref(argument))
        assert known, f"there is no kernel {kernel}"
        self.launches.append(kernel)
