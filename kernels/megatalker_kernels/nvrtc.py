"""Compiles the kernel with NVRTC from pip wheels, and remembers the result on disk."""

import hashlib
import io
import json
import logging
import os
import re
import tempfile
from dataclasses import asdict, dataclass
from importlib import import_module, metadata, util
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol

from megatalker_kernels.errors import ToolchainError

logger = logging.getLogger(__name__)

SOURCES = Path(__file__).parent / "csrc"
PACKAGES = ("cuda-core", "cuda-bindings", "nvidia-cuda-nvrtc", "nvidia-cuda-runtime")
STANDARD = "c++20"
WARPGROUPS = 90
"""The compute capability whose tensor cores serve warpgroups."""


class Macros(Protocol):
    """Constants that a source is compiled for."""

    def macros(self) -> list[tuple[str, str]]:
        """Preprocessor definitions."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Resources that the assembler reports: the largest of all functions."""

    registers: int
    spilled_bytes: int
    """Spill stores plus spill loads."""
    stack_bytes: int


@dataclass(frozen=True, slots=True)
class Cubin:
    """A compiled kernel."""

    code: bytes
    usage: Usage


def why_not_compile() -> str | None:
    """Say what is missing for compiling; ``None`` if nothing is."""
    missing = [name for name in ("cuda.core", "cuda.pathfinder") if not _found(name)]
    if missing:
        return f"{' and '.join(missing)} cannot be imported; install the extra: pip install 'megatalker[cuda]'"
    return None


def _found(module: str) -> bool:
    try:
        return util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def cache_folder() -> Path:
    """Return the folder where compiled kernels are kept unless the caller names another."""
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "megatalker" / "kernels"


def architecture(capability: int) -> str:
    """Return the architecture of a compute capability with its own features, such as ``sm_90a`` for 90."""
    return f"sm_{capability}a" if capability == WARPGROUPS else f"sm_{capability}"


def compile_kernel(shape: Macros, arch: str, *, source: str = "frame.cu", cache: Path | None = None) -> Cubin:
    """Compile ``source`` for ``shape``, or take the remembered result.

    Args:
        shape: sizes, which become macros.
        arch: see :func:`architecture`.
        source: a file of ``csrc`` or of a folder in it.
        cache: folder of remembered results; ``None``: :func:`cache_folder`.

    Raises:
        ToolchainError: packages are missing, or the compiler refuses the source (the message holds its log).
    """
    reason = why_not_compile()
    if reason is not None:
        raise ToolchainError(f"the kernel cannot be compiled: {reason}")
    folder = cache_folder() if cache is None else cache
    path = folder / f"{Path(source).stem}-{arch}-{_fingerprint(shape, arch, source)}.cubin"
    remembered = _recall(path)
    if remembered is not None:
        return remembered
    logger.info("compiling kernel %s for %s, once; up to 40 s", source, arch)
    began = perf_counter()
    cubin = _compile(shape, arch, source)
    logger.info("compiled kernel %s for %s in %.0f s", source, arch, perf_counter() - began)
    _remember(path, cubin)
    return cubin


def _compile(shape: Macros, arch: str, source: str) -> Cubin:
    core: Any = import_module("cuda.core")
    pathfinder: Any = import_module("cuda.pathfinder")
    headers = pathfinder.find_nvidia_header_directory("cudart")
    if headers is None:
        raise ToolchainError("the CUDA headers are missing; install them: pip install nvidia-cuda-runtime")
    options = core.ProgramOptions(
        std=STANDARD,
        arch=arch,
        include_path=[*map(str, _folders(source)), str(headers)],
        define_macro=shape.macros(),
        ptxas_options=["-v"],
        no_cache=True,  # NVRTC remembers code, but not the assembler's log
        device_as_default_execution_space=True,  # NVRTC 13.0 needs it for generic lambdas
    )
    log = io.StringIO()
    try:
        program = core.Program((SOURCES / source).read_text(encoding="utf-8"), "c++", options)
        code = bytes(program.compile("cubin", logs=log).code)
    except Exception as error:  # cuda.core raises several unrelated types
        raise ToolchainError(f"NVRTC cannot compile {source} for {arch}: {error}\n{log.getvalue()}") from error
    return Cubin(code, read_usage(log.getvalue()))


def read_usage(log: str) -> Usage:
    """Registers, spills and stack from the assembler's log (``ptxas -v``).

    Raises:
        ToolchainError: the log does not say.
    """

    def numbers(pattern: str) -> list[int]:
        return [int(found) for found in re.findall(pattern, log)]

    registers = numbers(r"Used (\d+) registers")
    if not registers:
        raise ToolchainError(f"the assembler's log names no registers:\n{log}")
    spilled = numbers(r"(\d+) bytes spill (?:stores|loads)")
    return Usage(max(registers), sum(spilled), max(numbers(r"(\d+) bytes stack frame"), default=0))


def _folders(source: str) -> list[Path]:
    """Folders of a source's headers; all sources share those of ``csrc``."""
    return list(dict.fromkeys([(SOURCES / source).parent, SOURCES]))


def _fingerprint(shape: Macros, arch: str, source: str) -> str:
    digest = hashlib.sha256()
    headers = [path for folder in _folders(source) for path in sorted(folder.glob("*.cuh"))]
    for path in (SOURCES / source, *headers):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    versions = {name: metadata.version(name) for name in PACKAGES if _installed(name)}
    digest.update(json.dumps([shape.macros(), arch, STANDARD, versions], sort_keys=True).encode())
    return digest.hexdigest()[:16]


def _installed(distribution: str) -> bool:
    try:
        metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True


def _recall(path: Path) -> Cubin | None:
    notes = path.with_suffix(".json")
    if not (path.is_file() and notes.is_file()):
        return None
    return Cubin(path.read_bytes(), Usage(**json.loads(notes.read_text(encoding="utf-8"))))


def _remember(path: Path, cubin: Cubin) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # The code goes last: a process that finds it finds the notes, too.
    _write(path.with_suffix(".json"), json.dumps(asdict(cubin.usage)).encode())
    _write(path, cubin.code)


def _write(path: Path, content: bytes) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
    Path(name).replace(path)
