"""The kernel compiles for every architecture within its registers, without a GPU and without a toolkit."""

import ctypes
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from megatalker_kernels import nvrtc
from megatalker_kernels.errors import ToolchainError
from megatalker_kernels.launching import SOURCES
from megatalker_kernels.params import Structures
from megatalker_kernels.shapes import REGISTERS, KernelShape, shared_bytes
from megatalker_kernels.trial import MODELS

pytestmark = pytest.mark.slow

needs_compiler = pytest.mark.skipif(nvrtc.why_not_compile() is not None, reason=str(nvrtc.why_not_compile()))
LOG = """
ptxas info    : Function properties for f
    16 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 61 registers, used 1 barriers
ptxas info    : Function properties for g
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 224 registers, used 2 barriers
"""


def fit(model: str, capability: int) -> KernelShape:
    talker, predictor = MODELS[model]
    return KernelShape.fit(talker, predictor, code_groups=16, max_positions=4096, processors=132, capability=capability)


@needs_compiler
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("capability", [80, 86, 89, 90, 100, 120])
def test_no_spills_and_no_more_registers_than_fit(capability: int, source: str) -> None:
    usage = nvrtc.compile_kernel(fit("demo", capability), nvrtc.architecture(capability), source=source).usage
    assert usage.spilled_bytes == 0
    assert usage.registers <= (REGISTERS if source == "frame.cu" else 255)


@needs_compiler
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("model", ["0.6B", "1.7B"])
def test_published_sizes_compile_without_spills(model: str, source: str) -> None:
    usage = nvrtc.compile_kernel(fit(model, 90), nvrtc.architecture(90), source=source).usage
    assert usage.spilled_bytes == 0
    assert usage.registers <= (REGISTERS if source == "frame.cu" else 255)


@needs_compiler
@pytest.mark.parametrize("model", MODELS)
def test_structures_lie_as_the_header_says(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = fit(model, 90)
    lines = ['#include "wide_params.cuh"']
    for name, structure in Structures(shape).all().items():
        fields: Any = structure._fields_
        lines.append(f"static_assert(sizeof({name}) == {ctypes.sizeof(structure)});")
        lines += [
            f"static_assert(__INTADDR__(&(({name}*)0)->{field}) == {getattr(structure, field).offset});"
            for field, *_ in fields
        ]
    lines.append('extern "C" __global__ void nothing() {}')
    compile_text(monkeypatch, tmp_path, shape, "\n".join(lines))


def compile_text(monkeypatch: pytest.MonkeyPatch, folder: Path, shape: KernelShape, text: str) -> nvrtc.Usage:
    for header in nvrtc.SOURCES.glob("*.cuh"):
        (folder / header.name).write_bytes(header.read_bytes())
    (folder / "text.cu").write_text(text, encoding="utf-8")
    monkeypatch.setattr(nvrtc, "SOURCES", folder)
    return nvrtc.compile_kernel(shape, "sm_90", source="text.cu", cache=folder / "cache").usage


@needs_compiler
def test_a_compiled_kernel_is_remembered_until_a_source_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape, text = fit("tiny", 90), 'extern "C" __global__ void nothing() {}'
    first = compile_text(monkeypatch, tmp_path, shape, text)
    core: Any = import_module("cuda.core")
    monkeypatch.setattr(core, "Program", None)
    assert nvrtc.compile_kernel(shape, "sm_90", source="text.cu", cache=tmp_path / "cache").usage == first
    (tmp_path / "text.cu").write_text(text + "\n", encoding="utf-8")
    with pytest.raises(ToolchainError, match=r"cannot compile text\.cu for sm_90"):
        nvrtc.compile_kernel(shape, "sm_90", source="text.cu", cache=tmp_path / "cache")


@needs_compiler
def test_an_error_of_the_compiler_reaches_the_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ToolchainError, match="undefined_name"):
        compile_text(monkeypatch, tmp_path, fit("tiny", 90), 'extern "C" __global__ void f() { undefined_name(); }')


def test_usage_is_the_worst_of_all_functions() -> None:
    assert nvrtc.read_usage(LOG) == nvrtc.Usage(registers=224, spilled_bytes=20, stack_bytes=16)
    with pytest.raises(ToolchainError, match="no registers"):
        nvrtc.read_usage("ptxas info : nothing")


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(nvrtc, "_found", lambda _module: False)
    with pytest.raises(ToolchainError, match=r"cuda\.core and cuda\.pathfinder.*megatalker\[cuda\]"):
        nvrtc.compile_kernel(fit("tiny", 90), "sm_90", cache=tmp_path)


def test_shared_memory_is_counted_in_whole_lines() -> None:
    assert shared_bytes(fit("0.6B", 90)) % 128 == 0
