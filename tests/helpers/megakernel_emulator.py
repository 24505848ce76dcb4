"""Runs the megakernel, compiled from the very sources, on the CPU; and what its launches must leave alike."""

import ctypes
from collections.abc import Sequence
from itertools import accumulate

import torch

from emulation import compile_for_cpu
from megatalker_kernels.launching import Kernel
from megatalker_kernels.module import Arguments
from megatalker_kernels.nvrtc import SOURCES
from megatalker_kernels.schedule import Launch, Row
from megatalker_kernels.shapes import KernelShape
from megatalker_kernels.workspace import Workspace


class MegakernelEmulator:
    """The :class:`megatalker_kernels.module.GpuModule` of tensors on the CPU.

    Args:
        shape: with few blocks, all of which run on one thread.
        architecture: ``__CUDA_ARCH__``: from 900 on weights are fetched by bulk copies, and
            at 900 warpgroups multiply.
        wide: the wide kernel instead.
    """

    clock_hz = 1_000_000
    """The clock ticks when the emulator turns to another warp."""

    def __init__(self, shape: KernelShape, architecture: int = 900, *, wide: bool = False) -> None:
        macros = [*shape.macros(), ("__CUDA_ARCH__", str(architecture)), *([("MT_WIDE", "1")] if wide else [])]
        if architecture == 900:
            macros.append(("__CUDA_ARCH_FEAT_SM90_ALL", "1"))
        self._library = compile_for_cpu(SOURCES, "megakernel", macros)
        self.seed = 0
        """Seed of the order in which warps run; each launch draws another one."""

    def entry(self, name: str, *, shared_bytes: int = 0) -> str:
        return name

    def start(self, function: str, blocks: int, threads: int, arguments: Arguments) -> None:
        assert function in ("megatalker_layout", "megatalker_wide_layout")
        self._library.start(ctypes.c_void_p(arguments.address))

    def start_together(self, function: str, blocks: int, threads: int, shared: int, arguments: Arguments) -> None:
        assert function in ("megatalker_frame", "megatalker_wide")
        self.seed += 1
        pointer = ctypes.c_void_p(arguments.address)
        assert self._library.start_together(blocks, threads, shared, self.seed, pointer) == 0, "copies in flight"

    def synchronize(self) -> None:
        """Launches are over when they return."""


def assert_same_results(ours: Workspace, theirs: Workspace) -> None:
    for name in ("talker_kv", "hidden", "pending", "seen"):
        assert torch.equal(getattr(ours, name), getattr(theirs, name)), name
    for space in (ours, theirs):
        space.check_guards()


def assert_launches_leave_as_much(
    kernel: Kernel,
    rows: tuple[Row, ...],
    sizes: Sequence[int],
    codes: list[tuple[int, ...]],
    ours: Workspace,
    theirs: Workspace,
) -> None:
    """Check that several launches of the megakernel make the frames that one wide launch made in ``ours``."""
    for end, size in zip(accumulate(sizes), sizes, strict=True):
        part = slice(end - size, end)
        theirs.text[:size] = ours.wide.text[part]
        assert kernel.wait(kernel.run(Launch("decode", rows[part]))) == codes[part]
        kernel.check()
        assert torch.equal(ours.wide.predictor_logits[part], theirs.predictor_logits[:size])
    assert_same_results(ours, theirs)
