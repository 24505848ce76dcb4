"""The megakernel itself, run on the CPU: every launch as its specification, whichever warp is ahead."""

import pytest
import torch

from emulation import needs_compiler
from megakernel_emulator import MegakernelEmulator
from megatalker_kernels.diff import POSITIONS, Bench, cases
from megatalker_kernels.schedule import Launch
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
"""What a launch leaves behind."""

pytestmark = [needs_compiler, pytest.mark.slow]


def shape_of(name: str, code_groups: int) -> KernelShape:
    talker, predictor = SHAPES[name]
    return KernelShape.fit(
        talker, predictor, code_groups=code_groups, max_positions=1024, processors=BLOCKS, capability=90
    )


@pytest.fixture(
    scope="module", params=[("projected", 900), ("projected", 800), ("other heads", 900)], ids="{0[0]}-{0[1]}".format
)
def bench(request: pytest.FixtureRequest) -> Bench:
    name, architecture = request.param
    shape = shape_of(name, code_groups=4)
    emulator = MegakernelEmulator(shape, architecture)
    return Bench(random_model(shape, CPU), emulator, POSITIONS, STALL_TIMEOUT_S)


def test_launches_do_what_the_specification_says(bench: Bench) -> None:
    for name, launch in cases(bench):
        result = bench.launch(launch)
        assert result["ok"], (name, result["differences"])
        assert not result.get("wrong_codes"), name


@pytest.mark.parametrize("step", [0.1, 0.5, 1e9])
def test_equal_logits_are_chosen_among_as_the_contract_says(bench: Bench, step: float) -> None:
    fill_streams(bench.ours, POSITIONS, kinds=samplings()[2:])
    pending = bench.ours.pending.div(4)
    for frame in range(3):
        bench.ours.pending.copy_(pending.div(step).round().mul(step))
        assert not bench.launch(Launch("decode", bench.streams.rows(range(8), frame)))["wrong_codes"]
    fill_streams(bench.ours, POSITIONS)


def test_the_order_of_warps_changes_no_bit(bench: Bench) -> None:
    launch = Launch("decode", bench.streams.rows(range(8), 7))
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


def test_a_block_that_stops_is_named_and_the_next_launch_works(bench: Bench) -> None:
    launch = Launch("decode", bench.streams.rows(range(3), 2))
    for phase, block in ((1, 0), (9, 5)):
        result = bench.stall(launch, phase, block)
        assert result["ok"], result
        assert f"block {block} is behind, in phase {phase}" in result["error"]


def test_every_phase_does_what_the_specification_says() -> None:
    shape = shape_of("projected", code_groups=2)
    bench = Bench(random_model(shape, CPU), MegakernelEmulator(shape), POSITIONS, STALL_TIMEOUT_S)
    for phase in bench.phases(Launch("decode", bench.streams.rows(range(5), 3))):
        assert phase["ok"], phase
