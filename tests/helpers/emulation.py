"""Compiles CUDA sources for the CPU; see ``cuda_on_cpu``."""

import ctypes
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from kept import kept

HERE = Path(__file__).parent / "cuda_on_cpu"
LIBRARY = "emulator.so"
COMPILER = shutil.which("g++")
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler (g++) is on the PATH")


def compile_for_cpu(sources: Path, kind: str, macros: Sequence[tuple[str, str]]) -> ctypes.CDLL:
    """A library of what lies in ``sources``, with the stand-ins and the entry points of ``cuda_on_cpu/KIND``.

    It is compiled once for its content, for all processes and later runs: see ``kept``.

    Args:
        sources: folder of CUDA headers and sources.
        kind: of kernels.
        macros: preprocessor definitions.
    """
    files = {path.name: _for_cpu(path.read_text(encoding="utf-8")) for path in sorted(sources.glob("*.cu*"))}
    files |= {path.name: path.read_text(encoding="utf-8") for path in sorted(HERE.glob("*.*h"))}
    files |= {path.name: path.read_text(encoding="utf-8") for path in sorted((HERE / kind).iterdir())}
    options = ["-w", "-std=c++20", "-O2", "-fPIC", "-shared", *(f"-D{name}={value}" for name, value in macros)]
    options.append("-U_FORTIFY_SOURCE")  # its check takes a change of stacks for an attack
    version = subprocess.run([str(COMPILER), "--version"], check=True, capture_output=True, text=True).stdout

    def compile_into(folder: Path) -> None:
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
        command = [str(COMPILER), *options, "emulator.cpp", "-o", LIBRARY]
        subprocess.run(command, cwd=folder, check=True)

    return ctypes.CDLL(str(kept("emulators", [version, options, files], compile_into) / LIBRARY))


def _for_cpu(source: str) -> str:
    memory = r"float4* const \1 = static_cast<float4*>(emulation::block_memory());"
    return re.sub(r"extern __shared__ float4 (\w+)\[\];", memory, source)
