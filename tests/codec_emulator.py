"""Runs the codec's kernels, compiled from the very sources, on the CPU (see ``cuda_on_cpu``)."""

import ctypes
import re
import shutil
import subprocess
from pathlib import Path

from megatalker_kernels.codec.launcher import SOURCE, CodecConstants
from megatalker_kernels.codec.tiles import TILES
from megatalker_kernels.nvrtc import SOURCES

HERE = Path(__file__).parent / "cuda_on_cpu"
COMPILER = shutil.which("g++")


class CodecEmulator:
    """As :class:`megatalker_kernels.codec.launcher.CodecKernels`, for tensors on the CPU."""

    processors = 12
    """So few that sums of small products stay whole and those of larger ones are split."""

    def __init__(self, folder: Path) -> None:
        for path in (SOURCES / SOURCE).parent.iterdir():
            text = path.read_text(encoding="utf-8")
            text = re.sub(r"extern __shared__ float4 (\w+)\[\];", r"float4* const \1 = emulation::shared;", text)
            (folder / path.name).write_text(text, encoding="utf-8")
        shutil.copy(HERE / "primitive.cuh", folder)
        library = folder / "emulator.so"
        options = ["-std=c++20", "-O2", "-fPIC", "-shared", f"-I{folder}", f"-I{HERE}"]
        macros = [f"-D{name}={value}" for name, value in CodecConstants(TILES).macros()]
        sources = [str(HERE / "emulator.cpp"), "-o", str(library)]
        subprocess.run([str(COMPILER), "-w", *options, *macros, *sources], check=True)
        self._library = ctypes.CDLL(str(library))
        self.launches: list[str] = []

    def launch(self, kernel: str, blocks: int, threads: int, shared_bytes: int, argument: ctypes.Structure) -> None:
        failure = self._library.emulate(kernel.encode(), blocks, threads, shared_bytes, ctypes.byref(argument))
        assert failure == 0, f"{kernel} with {shared_bytes} bytes: {failure}"
        self.launches.append(kernel)
