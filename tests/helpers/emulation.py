"""Compiles CUDA sources for the CPU; see ``cuda_on_cpu``."""

import ctypes
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

HERE = Path(__file__).parent / "cuda_on_cpu"
COMPILER = shutil.which("g++")
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler (g++) is on the PATH")


def compile_for_cpu(sources: Path, kind: str, macros: Sequence[tuple[str, str]], folder: Path) -> ctypes.CDLL:
    """A library of what lies in ``sources``, with the stand-ins and the entry points of ``cuda_on_cpu/KIND``.

    Args:
        sources: folder of CUDA headers and sources.
        kind: of kernels.
        macros: preprocessor definitions.
        folder: empty; for the library.
    """
    for path in sources.glob("*.cu*"):
        text = path.read_text(encoding="utf-8")
        memory = r"float4* const \1 = static_cast<float4*>(emulation::block_memory());"
        (folder / path.name).write_text(re.sub(r"extern __shared__ float4 (\w+)\[\];", memory, text), encoding="utf-8")
    for path in (HERE / kind).iterdir():
        shutil.copy(path, folder)
    library = folder / "emulator.so"
    options = ["-std=c++20", "-O2", "-fPIC", "-shared", f"-I{folder}", f"-I{HERE}"]
    definitions = [f"-D{name}={value}" for name, value in macros]
    files = [str(folder / "emulator.cpp"), "-o", str(library)]
    subprocess.run([str(COMPILER), "-w", *options, *definitions, *files], check=True)
    return ctypes.CDLL(str(library))
