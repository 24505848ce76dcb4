"""The megakernel itself, run on the CPU: every launch as its specification, whichever warp is ahead."""

import pytest
import torch

from emulation import needs_compiler
from megakernel_emulator import MegakernelEmulator, assert_launches_leave_as_much, assert_same_results
from megatalker_kernels.diff import POSITIONS, KernelDiff, cases
from megatalker_kernels.launching import Kernel
from megatalker_kernels.schedule import Launch, PackedRows
from megatalker_kernels.shapes import KernelShape, StackShape
from megatalker_kernels.trial import MODELS, fill_streams, random_model, samplings

CPU = torch.device("cpu")
BLOCKS = 8
STALL_TIMEOUT_S = 0.05
SHAPES = {
    "projected": MODELS["tiny"],
    "other heads": (StackShape(64, 96, 1, 2, 1, 128, 1536), StackShape(64, 160, 2, 3, 1, 64, 384)),
}
RESULTS = ("talker_kv", "predictor_kv", "hidden", "pending", "predictor_logits", "seen")
"""Buffers with the results of a launch."""

pytestmark = [needs_compiler, pytest.mark.slow]


def shape_of(name: str, code_groups: int) -> KernelShape:
    talker, predictor = SHAPES[name]
    return KernelShape.fit(
        talker, predictor, code_groups=code_groups, max_positions=1024, processors=BLOCKS, capability=90
    )


@pytest.fixture(
    scope="module", params=[("projected", 900), ("projected", 800), ("other heads", 900)], ids="{0[0]}-{0[1]}".format
)
def bench(request: pytest.FixtureRequest) -> KernelDiff:
    name, architecture = request.param
    shape = shape_of(name, code_groups=4)
    return KernelDiff(random_model(shape, CPU), emulators(shape, architecture), POSITIONS, STALL_TIMEOUT_S)


def emulators(shape: KernelShape, architecture: int = 900) -> list[MegakernelEmulator]:
    return [MegakernelEmulator(shape, architecture, wide=wide) for wide in (False, True)]


def test_launches_match_the_specification(bench: KernelDiff) -> None:
    for name, launch in cases(bench):
        result = bench.launch(launch)
        assert result["ok"], (name, result["differences"])
        assert not result.get("wrong_codes"), name


@pytest.mark.parametrize(
    ("bench", "step"),
    [*((("projected", 900), step) for step in (0.1, 0.5, 1e9)), (("other heads", 900), 0.5)],
    indirect=["bench"],
)
def test_equal_logits_are_chosen_among_as_the_contract_says(bench: KernelDiff, step: float) -> None:
    fill_streams(bench.ours, POSITIONS, kinds=samplings()[2:])
    pending = bench.ours.pending.div(4)
    for frame in range(3):
        bench.ours.pending.copy_(pending.div(step).round().mul(step))
        assert not bench.launch(Launch("decode", bench.streams.rows(range(8), frame)))["wrong_codes"]
    fill_streams(bench.ours, POSITIONS)


@pytest.mark.parametrize("wide", [False, True])
def test_the_order_of_warps_changes_no_bit(bench: KernelDiff, wide: bool) -> None:
    launch = Launch("decode", bench.streams.rows(range(8), 7), wide=wide)
    bench.before.copy_from(bench.ours)
    expected: dict[str, torch.Tensor] = {}
    for _ in range(12):
        bench.ours.copy_from(bench.before)
        bench.kernel.run(launch)
        bench.kernel.check()
        found = {name: getattr(bench.ours, name).clone() for name in RESULTS}
        for name, tensor in expected.items():
            assert torch.equal(found[name], tensor), name
        expected = found


@pytest.mark.parametrize("wide", [False, True])
def test_a_block_that_stops_is_named_and_the_next_launch_works(bench: KernelDiff, wide: bool) -> None:
    launch = Launch("decode", bench.streams.rows(range(3), 2), wide=wide)
    for phase, block in ((1, 0), (9, 5)):
        result = bench.stall(launch, phase, block)
        assert result["ok"], result
        assert f"block {block} is behind, in phase {phase}" in result["error"]


@pytest.mark.parametrize("sizes", [(1, 2, 3, 2), (8,)])
def test_wide_frames_leave_the_bits_of_the_megakernel(bench: KernelDiff, sizes: tuple[int, ...]) -> None:
    rows = bench.streams.rows(range(8), 9)
    ours, theirs = bench.ours, bench.theirs
    other = Kernel(bench.model, theirs, *bench.modules, stall_timeout_s=STALL_TIMEOUT_S)
    theirs.copy_from(ours)
    wide_codes = bench.kernel.wait(bench.kernel.run(Launch("decode", rows, wide=True)))
    bench.kernel.check()
    assert_launches_leave_as_much(other, rows, sizes, wide_codes, ours, theirs)


def test_packed_prompts_leave_the_bits_of_single_ones(bench: KernelDiff) -> None:
    """The wide kernel alone, with prompts that stop and continue."""
    rows = PackedRows([(0, range(20), True), (3, range(60, 67), True), (5, range(250, 259), True)])
    ours, theirs = bench.ours, bench.theirs
    ours.wide.text[: len(rows)].normal_(generator=torch.Generator().manual_seed(3))
    other = Kernel(bench.model, theirs, *bench.modules, stall_timeout_s=STALL_TIMEOUT_S)
    theirs.copy_from(ours)
    bench.kernel.run(Launch("prefill", rows, wide=True))
    bench.kernel.check()
    done = 0
    first = [(0, range(1), False), (0, range(1, 17), False), (0, range(17, 20), True)]
    for part in (*first, (3, range(60, 67), True), (5, range(250, 259), True)):
        some = PackedRows([part])
        theirs.wide.text[: len(some)] = ours.wide.text[done : done + len(some)]
        other.run(Launch("prefill", some, wide=True))
        other.check()
        done += len(some)
    assert_same_results(ours, theirs)


def test_every_phase_matches_the_specification() -> None:
    shape = shape_of("projected", code_groups=2)
    bench = KernelDiff(random_model(shape, CPU), emulators(shape), POSITIONS, STALL_TIMEOUT_S)
    for phase in bench.phases(Launch("decode", bench.streams.rows(range(5), 3))):
        assert phase["ok"], phase
