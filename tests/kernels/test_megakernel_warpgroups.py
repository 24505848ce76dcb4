"""Products by warpgroups, run on the CPU: they leave the bits of those by warps, whichever division is taken."""

from dataclasses import replace

import pytest
import torch

from emulation import needs_compiler
from megakernel_emulator import MegakernelEmulator, assert_launches_leave_as_much, assert_same_results
from megatalker_kernels.constants import ROWS
from megatalker_kernels.launching import Kernel
from megatalker_kernels.schedule import Launch, PackedRows
from megatalker_kernels.shapes import KernelShape, StackShape
from megatalker_kernels.trial import fill_streams, pages_for, random_model
from megatalker_kernels.workspace import Workspace

CPU = torch.device("cpu")
POSITIONS = (20, 63, 64, 65, 130, 17, 31, 1) * 9
STACK = StackShape(512, 1024, 1, 16, 4, 32, 1152)
"""Shape whose matrices have one or two times the columns of a stage: warpgroups multiply whole stages."""

pytestmark = [needs_compiler, pytest.mark.slow]


@pytest.fixture(scope="module")
def kernels() -> tuple[Kernel, Kernel, Workspace, Workspace]:
    """The kernel for warpgroups and the one for warps, each with its workspace."""
    predictor = replace(STACK, vocab=128)
    shape = KernelShape.fit(STACK, predictor, code_groups=3, max_positions=512, processors=24, capability=90)
    shape = replace(shape, stage_columns=512, operand_columns=1024)
    model = random_model(shape, CPU)
    ours, theirs = (Workspace(shape, len(POSITIONS), pages_for(POSITIONS), CPU) for _ in range(2))
    frame = MegakernelEmulator(shape)
    by_groups, by_warps = (
        Kernel(model, space, frame, MegakernelEmulator(shape, architecture, wide=True), stall_timeout_s=10.0)
        for space, architecture in ((ours, 900), (theirs, 800))
    )
    return by_groups, by_warps, ours, theirs


@pytest.mark.parametrize("rows", [8, 64, 100, 256])  # with these blocks, every division
def test_prompts(kernels: tuple[Kernel, Kernel, Workspace, Workspace], rows: int) -> None:
    fill_streams(kernels[2], POSITIONS)
    kernels[2].wide.text[:rows].normal_(generator=torch.Generator().manual_seed(rows))
    run_both(kernels, Launch("prefill", PackedRows([(4, range(rows), True)]), wide=True))


def test_frames(kernels: tuple[Kernel, Kernel, Workspace, Workspace]) -> None:
    streams = fill_streams(kernels[2], POSITIONS)
    run_both(kernels, Launch("decode", streams.rows(range(len(POSITIONS)), 5), wide=True))


def test_frames_of_more_units_than_warps_leave_the_bits_of_the_megakernel(
    kernels: tuple[Kernel, Kernel, Workspace, Workspace],
) -> None:
    wide, narrow, ours, theirs = kernels
    rows = fill_streams(ours, POSITIONS).rows(range(len(POSITIONS)), 5)
    ours.wide.text[: len(rows)].normal_(generator=torch.Generator().manual_seed(1))
    theirs.copy_from(ours)
    codes = wide.wait(wide.run(Launch("decode", rows, wide=True)))
    assert_launches_leave_as_much(narrow, rows, [ROWS] * (len(rows) // ROWS), codes, ours, theirs)


def run_both(kernels: tuple[Kernel, Kernel, Workspace, Workspace], launch: Launch) -> None:
    *both, ours, theirs = kernels
    theirs.copy_from(ours)
    for kernel in both:
        kernel.run(launch)
        kernel.check()
    assert torch.equal(ours.wide.codes, theirs.wide.codes)
    assert_same_results(ours, theirs)
